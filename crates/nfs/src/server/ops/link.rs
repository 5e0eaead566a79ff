//! LINK (RFC 1813 3.3.15).

use weft_store::Kind;
use weft_store::opens::{Access, Rights};
use weft_wire::nfs3::{LinkArgs, LinkWcc, Outcome, Status};

use super::{begin, failed, status};
use crate::server::context::Context;
use crate::server::guard;

pub(in crate::server) async fn link(cx: &Context<'_>, args: LinkArgs) -> Outcome<LinkWcc, LinkWcc> {
    let (file, (dir, before)) = match (cx.node(&args.file).await, begin(cx, &args.link.dir).await) {
        (Ok(file), Ok(dir)) => (file, dir),
        (Err(status), _) | (_, Err(status)) => return failed(status, LinkWcc::default()),
    };
    let done = if file.share.id == dir.share.id {
        let linked = async {
            let above = dir.getattr().await?;
            dir.check_make(&cx.caller, &above).await?;
            dir.admit(cx, &above, guard::making(Kind::File)).await?;
            cx.caller.check_link(&file.getattr().await?)?;
            // A delegation covers the names that the file has, so it is recalled (RFC 8881 10.4).
            file.pass(Access::Rename, Rights::NONE).await?;
            dir.vfs().link(file.id, dir.id, &args.link.name.0).await
        };
        linked.await.map_err(|e| status(&e))
    } else {
        Err(Status::XDEV)
    };
    let wcc = LinkWcc { attributes: file.post().await, dir: dir.wcc(before).await };
    match done {
        Ok(()) => Ok(wcc),
        Err(status) => failed(status, wcc),
    }
}
