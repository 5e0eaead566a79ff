//! Converts attributes, times and errors between the store's types and those of NFS.
//!
//! See RFC 1813 2.5 and 2.6.

use weft_store::{self as store, Attr, Kind, SetAttr, ShareId, Special, Timestamp};
use weft_wire::nfs3::{Attributes, FileType, SetAttributes, SetTime, SpecData, Status, Time, WccAttr};

/// The kernel's file offsets are signed.
pub(super) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// fattr3 of a node of this share.
pub(super) fn attributes(share: ShareId, attr: &Attr) -> Attributes {
    Attributes {
        kind: match attr.kind {
            Kind::File => FileType::Reg,
            Kind::Dir => FileType::Dir,
            Kind::Symlink => FileType::Lnk,
            Kind::Special(Special::Fifo) => FileType::Fifo,
            Kind::Special(Special::Socket) => FileType::Sock,
            Kind::Special(Special::Block(..)) => FileType::Blk,
            Kind::Special(Special::Char(..)) => FileType::Chr,
        },
        mode: attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.allocated,
        rdev: match attr.kind {
            Kind::Special(Special::Block(major, minor) | Special::Char(major, minor)) => {
                SpecData { major, minor }
            }
            _ => SpecData::default(),
        },
        fsid: share.number().saturating_add(1),
        fileid: attr.fileid,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

pub(super) fn wcc(attr: &Attr) -> WccAttr {
    WccAttr { size: attr.size, mtime: time(attr.mtime), ctime: time(attr.ctime) }
}

/// nfstime3 cannot express years before 1970 or after 2106; such times become the nearest valid one.
pub(super) fn time(t: Timestamp) -> Time {
    let seconds = u32::try_from(t.secs.max(0)).unwrap_or(u32::MAX);
    Time { seconds, nseconds: t.nanos }
}

/// Converts sattr3. NFS3ERR_INVAL for an invalid time, NFS3ERR_FBIG for a size beyond what FSINFO announces.
pub(super) fn changes(set: &SetAttributes) -> Result<SetAttr, Status> {
    let time = |t: SetTime| match t {
        SetTime::Keep => Ok(None),
        SetTime::Server => Ok(Some(store::SetTime::Now)),
        SetTime::Client(t) if t.nseconds < 1_000_000_000 => {
            let time = Timestamp { secs: i64::from(t.seconds), nanos: t.nseconds };
            Ok(Some(store::SetTime::To(time)))
        }
        SetTime::Client(_) => Err(Status::INVAL),
    };
    if set.size.is_some_and(|size| size > MAX_FILE_SIZE) {
        return Err(Status::FBIG);
    }
    Ok(SetAttr {
        size: set.size,
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        atime: time(set.atime)?,
        mtime: time(set.mtime)?,
    })
}

/// Maps errors of the store to nfsstat3; nothing else does.
pub(super) fn status(e: &store::Error) -> Status {
    match e {
        store::Error::NotFound => Status::NOENT,
        store::Error::Stale => Status::STALE,
        store::Error::NotPermitted => Status::PERM,
        store::Error::Exists => Status::EXIST,
        store::Error::NotDir => Status::NOTDIR,
        store::Error::IsDir => Status::ISDIR,
        store::Error::NotEmpty => Status::NOTEMPTY,
        store::Error::Access | store::Error::BadName => Status::ACCES,
        store::Error::NameTooLong => Status::NAMETOOLONG,
        store::Error::Invalid => Status::INVAL,
        store::Error::NoSpace => Status::NOSPC,
        store::Error::OverQuota => Status::DQUOT,
        store::Error::TooLarge => Status::FBIG,
        // Both are transient: the client repeats the request by itself.
        store::Error::Limit(_) | store::Error::Sharing => Status::JUKEBOX,
        store::Error::ReadOnly => Status::ROFS,
        store::Error::NotSupported => Status::NOTSUPP,
        // NFSv3 has no operations on extended attributes.
        store::Error::NoXattr | store::Error::XattrTooBig => Status::SERVERFAULT,
        // The connection ends over this; the answer is for the log of whoever still hears it.
        store::Error::Payload(_) => {
            tracing::debug!("a WRITE: {e}");
            Status::IO
        }
        store::Error::Io(e) => {
            tracing::warn!("file system error: {e}");
            Status::IO
        }
    }
}
