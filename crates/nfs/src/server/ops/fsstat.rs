//! FSSTAT (RFC 1813 3.3.18).

use weft_wire::nfs3::{AttrOnly, FsstatOk, ObjectArgs, Outcome};

use super::{failed, failed_at};
use crate::server::context::Context;

pub(in crate::server) async fn fsstat(cx: &Context<'_>, args: ObjectArgs) -> Outcome<FsstatOk, AttrOnly> {
    let node = match cx.node(&args.object).await {
        Ok(node) => node,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    match node.vfs().statfs().await {
        Ok(space) => Ok(FsstatOk {
            attributes: node.post().await,
            tbytes: space.total,
            fbytes: space.free,
            abytes: space.available,
            tfiles: space.files,
            ffiles: space.files_free,
            afiles: space.files_free,
            invarsec: 0,
        }),
        Err(e) => failed_at(&node, &e).await,
    }
}
