//! File attributes in the form that the client shows and accepts for both protocol versions.
//!
//! They are version 3's attributes (RFC 1813 2.5, fattr3 and sattr3; RFC 8881 5.8), with one extension: times before
//! 1970 and after 2106, which only version 4 can carry.

use weft_wire::nfs3::{self, FileType, SpecData};

use super::Error;

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; negative values exist in version 4 only.
    pub seconds: i64,
    /// Nanoseconds, counted forwards from `seconds`.
    pub nseconds: u32,
}

impl From<nfs3::Time> for Time {
    fn from(nfs3::Time { seconds, nseconds }: nfs3::Time) -> Time {
        Time { seconds: seconds.into(), nseconds }
    }
}

/// The attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// File type.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated on disk.
    pub used: u64,
    /// Device numbers.
    pub rdev: SpecData,
    /// File system.
    pub fsid: u64,
    /// File number (inode) within the file system.
    pub fileid: u64,
    /// Last read.
    pub atime: Time,
    /// Last write.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
}

impl From<nfs3::Attributes> for Attributes {
    fn from(told: nfs3::Attributes) -> Attributes {
        Attributes {
            kind: told.kind,
            mode: told.mode,
            nlink: told.nlink,
            uid: told.uid,
            gid: told.gid,
            size: told.size,
            used: told.used,
            rdev: told.rdev,
            fsid: told.fsid,
            fileid: told.fileid,
            atime: told.atime.into(),
            mtime: told.mtime.into(),
            ctime: told.ctime.into(),
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave the time unchanged.
    #[default]
    Keep,
    /// Set it to the server's current time.
    Server,
    /// Set it to this time.
    Client(Time),
}

impl SetTime {
    /// Converts to the version 3 form.
    fn v3(self) -> Result<nfs3::SetTime, Error> {
        Ok(match self {
            SetTime::Keep => nfs3::SetTime::Keep,
            SetTime::Server => nfs3::SetTime::Server,
            SetTime::Client(Time { seconds, nseconds }) => {
                let seconds = u32::try_from(seconds).map_err(|_| Error::Time)?;
                nfs3::SetTime::Client(nfs3::Time { seconds, nseconds })
            }
        })
    }
}

/// Attributes to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend.
    pub size: Option<u64>,
    /// Last read.
    pub atime: SetTime,
    /// Last write.
    pub mtime: SetTime,
}

impl SetAttributes {
    /// Converts to the version 3 form.
    pub(super) fn v3(&self) -> Result<nfs3::SetAttributes, Error> {
        Ok(nfs3::SetAttributes {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: self.atime.v3()?,
            mtime: self.mtime.v3()?,
        })
    }
}
