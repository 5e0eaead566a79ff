//! FLUSH.
//!
//! Spec: [MS-SMB2] 3.3.5.11. Files that are not open for writing are not flushed. A Mac's full sync (F_FULLFSYNC) also makes
//! the file's name durable, and waits for the disk as every flush does: the kernel empties the disk's cache.

use weft_store::vfs::{Error, Kind};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::flush::{Request, Response};

use super::opens::Open;
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// FILE_WRITE_DATA and FILE_APPEND_DATA; on a directory the same bits are FILE_ADD_FILE and FILE_ADD_SUBDIRECTORY.
const WRITE: AccessMask = AccessMask(AccessMask::FILE_WRITE_DATA.0 | AccessMask::FILE_APPEND_DATA.0);

pub(super) async fn flush(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = cx.open(request.file)?;
    open.require_any(WRITE)?;
    match (&open.file, open.kind) {
        (Some(file), _) => {
            file.sync_for(&open.told_losses).await?;
            if request.full_sync && cx.session().is_mac() {
                sync_name(&open).await?;
            }
        }
        (None, Kind::Dir) => open.vfs.sync_dir(open.node).await?,
        (None, _) => return Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
    }
    let mut reply = Reply::new();
    Response.emit(&mut reply.message);
    Ok(reply)
}

/// Makes the name of an open file durable; one without a name has nothing to lose.
async fn sync_name(open: &Open) -> Result<(), Failure> {
    match open.place().await {
        // The handle may write, whatever the user may do in its directory.
        Ok(place) => Ok(open.vfs.as_server().sync_dir(place.dir).await?),
        Err(Error::NotFound | Error::Stale) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
