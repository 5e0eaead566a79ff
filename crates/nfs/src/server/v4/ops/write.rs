//! WRITE and COMMIT (RFC 8881 18.32, 18.3; RFC 7530 16.36, 16.3).

use weft_store::{Error, Kind};
use weft_wire::nfs4::{Commit, Stable, Status, Verifier, Write, WriteOk, share};

use super::super::compound::Compound;
use super::super::fs_object::no_file;
use super::super::io::{self, Intent};
use super::super::names::status;
use crate::server::attributes::MAX_FILE_SIZE;
use crate::server::file_id::FileId;

pub async fn write(c: &Compound<'_>, args: Write) -> Result<WriteOk, NotWritten> {
    let node = c.node()?;
    let Write { stateid, offset, stable, data } = args;
    let len = data.len() as u64;
    let unflushed = c.cx.server.run.writing(&node.share.vfs);
    let open = async || io::file(c, &node, &stateid, Intent::Write(offset, len)).await;
    let file = open().await?;
    offset.checked_add(len).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Status::FBIG)?;
    // Locks may be added while the payload travels.
    let again = async || Box::pin(open()).await.map_err(NotWritten::from);
    let file = c.cx.write_data(file, offset, data, again).await?;
    node.share.vfs.content_changed(node.id).await;
    let (committed, verifier) = match stable {
        Stable::Unstable => (Stable::Unstable, unflushed.unstable()),
        _ => (Stable::FileSync, unflushed.stable(&file).await.map_err(|e| status(&e))?),
    };
    Ok(WriteOk { count: len as u32, committed, verifier })
}

/// Why data is not written.
pub struct NotWritten {
    pub status: Status,
    /// The payload was lost with its connection.
    pub payload_lost: bool,
}

impl From<Status> for NotWritten {
    fn from(status: Status) -> NotWritten {
        NotWritten { status, payload_lost: false }
    }
}

impl From<Error> for NotWritten {
    fn from(e: Error) -> NotWritten {
        NotWritten { status: status(&e), payload_lost: matches!(e, Error::Payload(_)) }
    }
}

pub async fn commit(c: &Compound<'_>, args: &Commit) -> Result<Verifier, Status> {
    let node = c.node()?;
    let attr = node.attr().await?;
    if attr.kind != Kind::File {
        return Err(no_file(attr.kind, c.minor));
    }
    args.offset.checked_add(u64::from(args.count)).ok_or(Status::INVAL)?;
    // COMMIT names no open, but it may follow WRITEs by one that was made while the caller had the right.
    if let Err(e) = node.check_writing(c.cx, &attr).await
        && !has_opened(c, node.file())
    {
        return Err(status(&e));
    }
    let files = &c.cx.server.files;
    let file = files.open(&node.share.vfs, node.file(), false).await.map_err(|e| status(&e))?;
    c.cx.server.run.commit(&node.share.vfs, &file).await.map_err(|e| status(&e))
}

/// Whether the caller has this file open for writing in the session's client. Without a session, COMMIT names no client.
fn has_opened(c: &Compound<'_>, file: FileId) -> bool {
    let client = c.turn.as_ref().and_then(|turn| c.cx.server.states.holder(&turn.session.lease));
    let Some(client) = client else { return false };
    let states: Vec<_> = client.mine().states.values().filter(|state| state.file == file).cloned().collect();
    states.iter().any(|state| {
        let held = state.held();
        held.open.is_some() && held.access & share::WRITE != 0 && held.opener == c.cx.caller.uid()
    })
}
