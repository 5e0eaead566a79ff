//! WRITE (RFC 1813 3.3.7).

use weft_store::opens::{Access, Rights};
use weft_store::{Attr, Error, Kind};
use weft_wire::nfs3::{Outcome, Stable, Status, Verifier, WccOnly, WriteArgs, WriteHead, WriteOk};
use weft_wire::xdr::Data;

use super::{failed, status, wcc};
use crate::server::attributes::MAX_FILE_SIZE;
use crate::server::caller::WRITE;
use crate::server::context::{Context, Node};

pub(in crate::server) async fn write(cx: &Context<'_>, args: WriteArgs) -> Outcome<WriteOk, WccOnly> {
    let WriteArgs { head, data } = args;
    let node = match cx.node(&head.file).await {
        Ok(node) => node,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let before = match node.getattr().await {
        Ok(attr) => attr,
        Err(e) => return failed(status(&e), WccOnly::default()),
    };
    let done = match store(cx, &node, &before, &head, data).await {
        Some(done) => done.map_err(|e| status(&e)),
        None => Err(Status::FBIG),
    };
    let wcc = node.wcc(Some(wcc(&before))).await;
    match done {
        Ok(verifier) => Ok(WriteOk { wcc, count: head.count, committed: head.stable, verifier }),
        Err(status) => failed(status, WccOnly { wcc }),
    }
}

/// `None` if the range lies beyond the largest file size.
async fn store(
    cx: &Context<'_>,
    node: &Node<'_>,
    before: &Attr,
    head: &WriteHead,
    data: Data,
) -> Option<Result<Verifier, Error>> {
    if data.len() as u64 != u64::from(head.count) || before.kind != Kind::File {
        return Some(Err(Error::Invalid));
    }
    head.offset.checked_add(u64::from(head.count)).filter(|end| *end <= MAX_FILE_SIZE)?;
    let written = async {
        node.check_data(&cx.caller, before, WRITE).await?;
        let unflushed = cx.server.run.writing(&node.share.vfs);
        let open = async || {
            node.pass(Access::Write, Rights::WRITE).await?;
            node.open(cx, before, true, (head.offset, head.count)).await
        };
        let file = open().await?;
        // Locks and opens may be added while the payload travels.
        let again = async || Box::pin(open()).await;
        let file = cx.write_data::<Error>(file, head.offset, data, again).await?;
        node.vfs().content_changed(node.id).await;
        match head.stable {
            Stable::Unstable => Ok(unflushed.unstable()),
            Stable::DataSync | Stable::FileSync => unflushed.stable(&file).await,
        }
    };
    Some(written.await)
}
