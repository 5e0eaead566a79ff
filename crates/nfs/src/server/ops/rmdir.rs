//! RMDIR (RFC 1813 3.3.13).

use weft_store::Error;
use weft_store::opens::Access;
use weft_wire::nfs3::{Outcome, RemoveArgs, Status, WccOnly};

use super::{begin, failed, removable, status};
use crate::server::context::{Context, Node};

pub(in crate::server) async fn rmdir(cx: &Context<'_>, args: RemoveArgs) -> Outcome<WccOnly, WccOnly> {
    let (dir, before) = match begin(cx, &args.object.dir).await {
        Ok(begun) => begun,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let done = match &args.object.name.0[..] {
        b"." => Err(Status::INVAL),
        b".." => Err(Status::EXIST),
        name => remove(cx, &dir, name).await.map_err(|e| status(&e)),
    };
    let wcc = dir.wcc(before).await;
    match done {
        Ok(()) => Ok(WccOnly { wcc }),
        Err(status) => failed(status, WccOnly { wcc }),
    }
}

async fn remove(cx: &Context<'_>, dir: &Node<'_>, name: &[u8]) -> Result<(), Error> {
    removable(cx, dir, name, Access::Handle).await?;
    dir.vfs().rmdir(dir.id, name).await
}
