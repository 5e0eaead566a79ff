//! MKNOD (RFC 1813 3.3.11).
//!
//! A device node made by a client would give access to the host's devices: only unsquashed root may create one.

use weft_store::{Make, Special};
use weft_wire::nfs3::{CreateOk, FileType, MknodArgs, Node, Outcome, Status, WccOnly};

use super::{begin, failed, make};
use crate::server::attributes::changes;
use crate::server::context::Context;

pub(in crate::server) async fn mknod(cx: &Context<'_>, args: MknodArgs) -> Outcome<CreateOk, WccOnly> {
    let (special, set) = match &args.node {
        Node::Pipe(FileType::Sock, set) => (Ok(Special::Socket), Some(set)),
        Node::Pipe(_, set) => (Ok(Special::Fifo), Some(set)),
        Node::Device(_, set, _) if !cx.caller.makes_devices() => (Err(Status::PERM), Some(set)),
        Node::Device(FileType::Blk, set, n) => (Ok(Special::Block(n.major, n.minor)), Some(set)),
        Node::Device(_, set, n) => (Ok(Special::Char(n.major, n.minor)), Some(set)),
        Node::Other(_) => (Err(Status::BADTYPE), None),
    };
    match (special, set) {
        (Ok(special), Some(set)) => make(cx, &args.object, Make::Special(special), changes(set)).await,
        (refused, _) => match begin(cx, &args.object.dir).await {
            Ok((dir, before)) => {
                let status = refused.err().unwrap_or(Status::BADTYPE);
                failed(status, WccOnly { wcc: dir.wcc(before).await })
            }
            Err(status) => failed(status, WccOnly::default()),
        },
    }
}
