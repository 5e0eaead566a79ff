//! GETATTR (RFC 1813 3.3.1).

use weft_wire::nfs3::{GetattrArgs, GetattrOk, Outcome};

use super::{failed, status};
use crate::server::context::Context;

pub(in crate::server) async fn getattr(cx: &Context<'_>, args: GetattrArgs) -> Outcome<GetattrOk, ()> {
    let node = match cx.node(&args.object).await {
        Ok(node) => node,
        Err(status) => return failed(status, ()),
    };
    match node.getattr().await {
        Ok(attr) => Ok(GetattrOk { attributes: node.attributes(&attr) }),
        Err(e) => failed(status(&e), ()),
    }
}
