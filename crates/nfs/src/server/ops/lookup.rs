//! LOOKUP (RFC 1813 3.3.3).

use weft_store::{Error, Kind};
use weft_wire::nfs3::{AttrOnly, LookupArgs, LookupOk, Outcome};

use super::{failed, failed_at};
use crate::server::caller::EXECUTE;
use crate::server::context::Context;
use crate::server::file_id::FileId;

pub(in crate::server) async fn lookup(cx: &Context<'_>, args: LookupArgs) -> Outcome<LookupOk, AttrOnly> {
    let dir = match cx.node(&args.what.dir).await {
        Ok(dir) => dir,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let name = &args.what.name.0;
    let found = match (dir.getattr().await, &name[..]) {
        (Ok(attr), b".") => Ok(attr),
        (Ok(attr), name) => match cx.caller.check(&attr, EXECUTE) {
            Ok(()) => dir.vfs().lookup(dir.id, name, false).await,
            Err(e) if attr.kind == Kind::Dir => Err(e),
            Err(_) => Err(Error::NotDir),
        },
        (Err(e), _) => Err(e),
    };
    let found = match found {
        Ok(attr) => cx.handle(FileId { node: attr.node, ..dir.file() }).await.map(|handle| (attr, handle)),
        Err(e) => Err(e),
    };
    match found {
        Ok((attr, object)) => {
            Ok(LookupOk { object, attributes: Some(dir.attributes(&attr)), dir_attributes: dir.post().await })
        }
        Err(e) => failed_at(&dir, &e).await,
    }
}
