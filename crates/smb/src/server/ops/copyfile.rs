//! Copies a whole file for a Mac: SRV_COPYCHUNK without chunks.
//!
//! Apple's published client (SMBClient, `smbfs_smb_2.c`, smb2fs_smb_copyfile_mac) opens the source, overwrites or creates the
//! target, and leaves all else to the server, which does what copyfile(3) does on a Mac. Here the data, the named streams, the
//! extended attributes, the DOS attributes and the times follow, and the right to execute goes to those who may read the
//! copy. The security descriptor does not: the copy is a file of its user in its folder.

use weft_machine::rt;
use weft_store::access;
use weft_store::opens::{Open as Claim, Opening, Rights};
use weft_store::vfs::{Attr, Dos, Error, Kind, NodeId, OpenFile, SetAttr, SetTime, SetXattr, Vfs};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::fsctl::Copied;

use super::opens::Open;
use super::recalls::{self, Interim};
use super::{attributes, ea};
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// Bytes that are copied before others get a turn.
const PIECE_BYTES: u64 = 16 << 20;
/// Clients are told that a longer copy takes time.
const LONG_BYTES: u64 = 64 << 20;

/// Copies `source` to `target`, both open.
pub(super) async fn copy(cx: &OpContext, source: &Open, target: &Open) -> Result<Copied, Failure> {
    source.require_any(AccessMask::FILE_READ_DATA | AccessMask::FILE_EXECUTE)?;
    target.require(AccessMask::FILE_WRITE_DATA)?;
    let (Some(from), Some(to)) = (&source.file, &target.file) else {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    };
    let of_stream = |open: &Open| open.vfs.stream_of(open.node).is_some();
    // Onto itself it would empty the file.
    if source.node == target.node || of_stream(source) || of_stream(target) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let len = from.len().await?;
    source.claim.may_read(0, len)?;
    target.claim.may_write(0, len)?;
    if len > LONG_BYTES {
        cx.pending();
    }
    // What the two handles may do is done with the server's rights.
    let (old, new) = (source.vfs.as_server(), target.vfs.as_server());
    let done = data(cx, from, to, len).await;
    target.written(0).await;
    done?;
    new.setattr(target.node, SetAttr { size: Some(len), ..SetAttr::default() }).await?;
    streams(cx, (&old, source.node), (&new, target.node)).await?;
    if target.access.contains(AccessMask::FILE_WRITE_EA) {
        for (name, value) in ea::all(&old, source.node).await? {
            new.set_xattr(target.node, &name, &value, SetXattr::Either).await?;
        }
    }
    metadata(&old, source.node, target).await?;
    // There were no chunks.
    Ok(Copied { total_bytes: u32::try_from(len).unwrap_or(u32::MAX), ..Copied::default() })
}

/// The kernel copies, or shares blocks if it can.
async fn data(cx: &OpContext, from: &OpenFile, to: &OpenFile, len: u64) -> Result<(), Failure> {
    let mut at = 0u64;
    while at < len {
        if cx.session().is_ended() {
            return Err(NtStatus::USER_SESSION_DELETED.into());
        }
        let piece = len.saturating_sub(at).min(PIECE_BYTES);
        match to.copy_from(at, from, at, piece).await? {
            done if done == piece => at = at.saturating_add(done),
            // Another client truncated the source meanwhile.
            _ => return Err(NtStatus::INVALID_VIEW_SIZE.into()),
        }
        rt::yield_if_due().await;
    }
    Ok(())
}

/// Copies the named streams of a file. They are opened like any client would, so that others who have them open agree.
async fn streams(
    cx: &OpContext,
    (old, from): (&Vfs, NodeId),
    (new, to): (&Vfs, NodeId),
) -> Result<(), Failure> {
    let streams = match old.streams(from).await {
        Err(Error::NotSupported) => return Ok(()),
        other => other?,
    };
    for stream in streams {
        let source = match old.stream(from, &stream.name, false).await {
            // Removed meanwhile.
            Err(Error::NotFound) => continue,
            other => other?.attr.node,
        };
        let target = new.stream(to, &stream.name, true).await?.attr.node;
        let _reads = claim(cx, old, source, Rights::READ).await?;
        let _writes = claim(cx, new, target, Rights::WRITE).await?;
        let (reader, writer) = (old.open(source, false).await?, new.open(target, true).await?);
        let len = reader.len().await?;
        data(cx, &reader, &writer, len).await?;
        new.setattr(target, SetAttr { size: Some(len), ..SetAttr::default() }).await?;
    }
    Ok(())
}

/// Opens a stream for as long as the result lives.
async fn claim(cx: &OpContext, vfs: &Vfs, node: NodeId, access: Rights) -> Result<Claim, Failure> {
    let opening = Opening::new(access, Rights::ALL, vfs.opens().key());
    Ok(recalls::wait(cx, Interim::Told, vfs.opens().open(node, &opening)).await?.0)
}

/// Attributes, times, and who may execute the copy, as far as the handle and its user may change them: writing to a file of
/// somebody else gives no right to them.
async fn metadata(old: &Vfs, from: NodeId, target: &Open) -> Result<(), Failure> {
    let vfs = &target.vfs;
    let (source, copy) = (old.getattr(from).await?, vfs.getattr(target.node).await?);
    let mode = executable(&source, &copy);
    if mode != copy.mode
        && target.require_any(AccessMask::FILE_WRITE_ATTRIBUTES | AccessMask::WRITE_DAC).is_ok()
    {
        let mode = SetAttr { mode: Some(mode), ..SetAttr::default() };
        allowed(access::chmod::set(vfs, &copy, mode).await.map(drop))?;
    }
    if !target.access.contains(AccessMask::FILE_WRITE_ATTRIBUTES) {
        return Ok(());
    }
    let before = vfs.xattr_summary(target.node).await?.dos;
    let kept = old.xattr_summary(from).await?.dos;
    let born = kept.and_then(|dos| dos.born).unwrap_or(source.btime);
    let attributes = kept.map_or_else(|| before.unwrap_or_default().attributes, |dos| dos.attributes);
    let dos = Dos { attributes, born: Some(born), changed: None };
    allowed(attributes::keep(vfs, &copy, before, dos).await)?;
    let set = SetAttr { mtime: Some(SetTime::To(source.mtime)), ..SetAttr::default() };
    if allowed(vfs.setattr(target.node, set).await.map(drop))? {
        target.keep_mtime(Some(source.mtime));
    }
    Ok(())
}

/// Whether a change was made; what the user may not change stays.
fn allowed(done: Result<(), Error>) -> Result<bool, Error> {
    match done {
        Ok(()) => Ok(true),
        Err(Error::Access | Error::NotPermitted) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The mode of a copy: of those who may read it, may execute it who may execute the source.
fn executable(source: &Attr, copy: &Attr) -> u32 {
    match source.kind {
        Kind::File => copy.mode | (source.mode & 0o111 & ((copy.mode & 0o444) >> 2)),
        _ => copy.mode,
    }
}
