//! Attributes of files, as the client shows and takes them for both versions.
//!
//! Spec: RFC 1813 2.5 (fattr3, sattr3), RFC 8881 5.8. Does not: show what version 3 has no field for, but times before 1970 and
//! after 2106.

use weft_wire::nfs3::{self, FileType, SpecData};

use super::Error;

/// A moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; version 4 has negative ones.
    pub seconds: i64,
    /// Nanoseconds, counted forwards from the second.
    pub nseconds: u32,
}

impl From<nfs3::Time> for Time {
    fn from(nfs3::Time { seconds, nseconds }: nfs3::Time) -> Time {
        Time { seconds: seconds.into(), nseconds }
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes occupied.
    pub used: u64,
    /// Device numbers.
    pub rdev: SpecData,
    /// File system.
    pub fsid: u64,
    /// Number in the file system.
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
    /// Stays.
    #[default]
    Keep,
    /// The server's.
    Server,
    /// This one.
    Client(Time),
}

impl SetTime {
    /// As version 3 says it.
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

/// What to change.
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
    /// As version 3 says it.
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
