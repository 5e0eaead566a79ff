//! LOOKUP. Spec: RFC 1813 3.3.3.

use weft_wire::nfs3::{AttrOnly, LookupArgs, LookupOk, Outcome};

use super::{failed, failed_at};
use crate::server::dispatch::Connection;

pub(in crate::server) async fn lookup(cx: &Connection<'_>, args: LookupArgs) -> Outcome<LookupOk, AttrOnly> {
    let dir = match cx.node(&args.what.dir) {
        Ok(dir) => dir,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let name = &args.what.name.0;
    let found = match &name[..] {
        b"." => dir.getattr().await,
        name => dir.vfs().lookup(dir.id, name, false).await,
    };
    match found {
        Ok(attr) => Ok(LookupOk {
            object: cx.server.handles.make(dir.number, attr.node),
            attributes: Some(dir.attributes(&attr)),
            dir_attributes: dir.post().await,
        }),
        Err(e) => failed_at(&dir, &e).await,
    }
}
