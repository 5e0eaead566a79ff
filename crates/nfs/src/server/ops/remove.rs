//! REMOVE (RFC 1813 3.3.12).

use weft_store::Error;
use weft_store::opens::Access;
use weft_wire::nfs3::{Outcome, RemoveArgs, WccOnly};

use super::{begin, failed, removable, status};
use crate::server::context::{Context, Node};

pub(in crate::server) async fn remove(cx: &Context<'_>, args: RemoveArgs) -> Outcome<WccOnly, WccOnly> {
    let (dir, before) = match begin(cx, &args.object.dir).await {
        Ok(begun) => begun,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let done = unlink(cx, &dir, &args.object.name.0).await;
    let wcc = dir.wcc(before).await;
    match done {
        Ok(()) => Ok(WccOnly { wcc }),
        Err(e) => failed(status(&e), WccOnly { wcc }),
    }
}

async fn unlink(cx: &Context<'_>, dir: &Node<'_>, name: &[u8]) -> Result<(), Error> {
    removable(cx, dir, name, Access::Handle).await?;
    dir.vfs().remove(dir.id, name).await
}
