//! RENAME (RFC 1813 3.3.14). An existing target is replaced.

use weft_store::Error;
use weft_store::opens::Access;
use weft_wire::nfs3::{Outcome, RenameArgs, RenameWcc, Status};

use super::{begin, failed, removable, status};
use crate::server::context::{Context, Node};
use crate::server::guard;

pub(in crate::server) async fn rename(cx: &Context<'_>, args: RenameArgs) -> Outcome<RenameWcc, RenameWcc> {
    let (from, to) = match (begin(cx, &args.from.dir).await, begin(cx, &args.to.dir).await) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(status), _) | (_, Err(status)) => return failed(status, RenameWcc::default()),
    };
    let ((from, from_before), (to, to_before)) = (from, to);
    let done = if from.share.id == to.share.id {
        replace(cx, (&from, &args.from.name.0), (&to, &args.to.name.0)).await.map_err(|e| status(&e))
    } else {
        Err(Status::XDEV)
    };
    let wcc = RenameWcc { from_dir: from.wcc(from_before).await, to_dir: to.wcc(to_before).await };
    match done {
        Ok(()) => Ok(wcc),
        Err(status) => failed(status, wcc),
    }
}

async fn replace(
    cx: &Context<'_>,
    (from, from_name): (&Node<'_>, &[u8]),
    (to, to_name): (&Node<'_>, &[u8]),
) -> Result<(), Error> {
    let moved = removable(cx, from, from_name, Access::Rename).await?;
    let has_replaced = match removable(cx, to, to_name, Access::Handle).await {
        // Two names of one file both stay.
        Ok(target) => target != moved,
        Err(Error::NotFound) => {
            let above = to.getattr().await?;
            cx.caller.check_make(&above)?;
            to.admit(cx, &above, guard::making(to.vfs().getattr(moved).await?.kind)).await?;
            false
        }
        Err(e) => return Err(e),
    };
    from.vfs().rename(from.at(from_name), to.at(to_name), true).await?;
    cx.has_replaced.set(has_replaced);
    Ok(())
}
