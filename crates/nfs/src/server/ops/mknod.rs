//! MKNOD: refused. Spec: RFC 1813 3.3.11 (NFS3ERR_NOTSUPP).
//!
//! A device that a client makes would be a way into the host.

use weft_wire::nfs3::{CreateOk, MknodArgs, Outcome, Status, WccOnly};

use super::{begin, failed};
use crate::server::dispatch::Connection;

pub(in crate::server) async fn mknod(cx: &Connection<'_>, args: MknodArgs) -> Outcome<CreateOk, WccOnly> {
    match begin(cx, &args.object.dir).await {
        Ok((dir, before)) => failed(Status::NOTSUPP, WccOnly { wcc: dir.wcc(before).await }),
        Err(status) => failed(status, WccOnly::default()),
    }
}
