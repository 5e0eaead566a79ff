//! COMMIT (RFC 1813 3.3.21).
//!
//! Whatever range was requested, the whole file is made durable, which the RFC allows.

use weft_store::{Attr, Error, Kind};
use weft_wire::nfs3::{CommitArgs, CommitOk, Outcome, Verifier, WccOnly};

use super::{failed, status, wcc};
use crate::server::context::{Context, Node};

pub(in crate::server) async fn commit(cx: &Context<'_>, args: CommitArgs) -> Outcome<CommitOk, WccOnly> {
    let node = match cx.node(&args.file).await {
        Ok(node) => node,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let before = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed(status(&e), WccOnly::default()),
    };
    let done = flush(cx, &node, &before).await.map_err(|e| status(&e));
    let wcc = node.wcc(Some(wcc(&before))).await;
    match done {
        Ok(verifier) => Ok(CommitOk { wcc, verifier }),
        Err(status) => failed(status, WccOnly { wcc }),
    }
}

async fn flush(cx: &Context<'_>, node: &Node<'_>, before: &Attr) -> Result<Verifier, Error> {
    if before.kind != Kind::File {
        return Err(Error::Invalid);
    }
    // Who may not write has nothing to make durable, and a flush costs the disk as much as a write.
    node.check_writing(cx, before).await?;
    // Any descriptor will do, because fsync makes the file durable, not the writes of one descriptor.
    let file = cx.server.files.open(&node.share.vfs, node.file(), false).await?;
    cx.server.run.commit(&node.share.vfs, &file).await
}
