//! COMMIT (RFC 1813 3.3.21).
//!
//! Whatever range was requested, the whole file is made durable, which the RFC allows.

use weft_store::Kind;
use weft_wire::nfs3::{CommitArgs, CommitOk, Outcome, Status, WccOnly};

use super::{failed, status, wcc};
use crate::server::context::Context;

pub(in crate::server) async fn commit(cx: &Context<'_>, args: CommitArgs) -> Outcome<CommitOk, WccOnly> {
    let node = match cx.node(&args.file).await {
        Ok(node) => node,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let before = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed(status(&e), WccOnly::default()),
    };
    let done = if before.kind == Kind::File {
        // Any descriptor will do, because fsync makes the file durable, not the writes of one descriptor.
        match cx.server.files.open(&node.share.vfs, node.file(), false).await {
            Ok(file) => cx.server.run.commit(&node.share.vfs, &file).await.map_err(|e| status(&e)),
            Err(e) => Err(status(&e)),
        }
    } else {
        Err(Status::INVAL)
    };
    let wcc = node.wcc(Some(wcc(&before))).await;
    match done {
        Ok(verifier) => Ok(CommitOk { wcc, verifier }),
        Err(status) => failed(status, WccOnly { wcc }),
    }
}
