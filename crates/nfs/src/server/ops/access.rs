//! ACCESS (RFC 1813 3.3.4).
//!
//! A server that is not root grants every right that is meaningful for the type of node, and the operation itself
//! finds out; execution follows the mode bits, because the client executes without asking again.

use weft_store::Kind;
use weft_wire::nfs3::{AccessArgs, AccessOk, AttrOnly, Outcome, access};

use super::{failed, failed_at};
use crate::server::caller::{EXECUTE, READ, WRITE};
use crate::server::context::Context;

pub(in crate::server) async fn access(cx: &Context<'_>, args: AccessArgs) -> Outcome<AccessOk, AttrOnly> {
    let node = match cx.node(&args.object).await {
        Ok(node) => node,
        Err(status) => return failed(status, AttrOnly::default()),
    };
    let attr = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed_at(&node, &e).await,
    };
    let granted = match node.granted(cx, &attr).await {
        Ok(granted) => granted,
        Err(e) => return failed_at(&node, &e).await,
    };
    let mut possible = 0;
    let mut add = |class: u32, bits: u32| possible |= if granted & class != 0 { bits } else { 0 };
    add(READ, access::READ);
    match attr.kind {
        Kind::Dir => {
            add(WRITE, access::MODIFY | access::EXTEND | access::DELETE);
            add(EXECUTE, access::LOOKUP);
        }
        Kind::File => {
            add(WRITE, access::MODIFY | access::EXTEND);
            add(EXECUTE, access::EXECUTE);
        }
        // Clients open pipes, sockets and devices themselves, so this reply alone decides who may.
        Kind::Special(_) => add(WRITE, access::MODIFY | access::EXTEND),
        Kind::Symlink => {}
    }
    Ok(AccessOk { attributes: Some(node.attributes(&attr)), access: args.access & possible })
}
