//! ACCESS. Spec: RFC 1813 3.3.4.
//!
//! All users act as the user of this process, so what the mode bits say about the caller decides nothing: every right
//! that makes sense for the kind of node is granted, and the operation itself finds out. Executing is left to the mode
//! bits, since the client does it without asking again.

use weft_store::Kind;
use weft_wire::nfs3::{AccessArgs, AccessOk, AttrOnly, Outcome, access};

use super::{failed, failed_at};
use crate::server::dispatch::Connection;

pub(in crate::server) async fn access(cx: &Connection<'_>, args: AccessArgs) -> Outcome<AccessOk, AttrOnly> {
    let node = match cx.node(&args.object) {
        Ok(node) => node,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let attr = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed_at(&node, &e).await,
    };
    let possible = match attr.kind {
        Kind::Dir => access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE,
        Kind::File if attr.mode & 0o111 != 0 => {
            access::READ | access::MODIFY | access::EXTEND | access::EXECUTE
        }
        Kind::File => access::READ | access::MODIFY | access::EXTEND,
        Kind::Symlink | Kind::Other => access::READ,
    };
    Ok(AccessOk { attributes: Some(node.attributes(&attr)), access: args.access & possible })
}
