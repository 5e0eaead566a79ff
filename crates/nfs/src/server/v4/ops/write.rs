//! WRITE and COMMIT (RFC 8881 18.32, 18.3; RFC 7530 16.36, 16.3).

use weft_store::{Error, Kind};
use weft_wire::nfs4::{Commit, Stable, Status, Verifier, Write, WriteOk};

use super::super::compound::Compound;
use super::super::fs_object::no_file;
use super::super::io::{self, Intent};
use super::super::names::status;
use crate::server::attributes::MAX_FILE_SIZE;

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
    let kind = node.attr().await?.kind;
    if kind != Kind::File {
        return Err(no_file(kind, c.minor));
    }
    args.offset.checked_add(u64::from(args.count)).ok_or(Status::INVAL)?;
    let files = &c.cx.server.files;
    let file = files.open(&node.share.vfs, node.file(), false).await.map_err(|e| status(&e))?;
    c.cx.server.run.commit(&node.share.vfs, &file).await.map_err(|e| status(&e))
}
