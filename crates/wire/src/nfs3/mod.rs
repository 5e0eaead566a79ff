//! NFS version 3: arguments and results of every procedure.
//!
//! The basic types (RFC 1813 section 2) are here; each group of procedures (3.3) has its own file. Names are the RFC's
//! without prefix and suffix. The server resolves handles and chooses error codes.

mod attributes;
mod create;
mod data;
mod directory;
mod names;
mod volume;

pub use attributes::*;
pub use create::*;
pub use data::*;
pub use directory::*;
pub use names::*;
pub use volume::*;

use std::fmt;

use bytes::Bytes;

pub use crate::xdr::Xdr;
pub(crate) use crate::xdr::xdr_struct;
use crate::xdr::{Decoder, Encoder, Malformed};

/// The program number (RFC 1813 2.2).
pub const PROGRAM: u32 = 100_003;
/// The program version.
pub const VERSION: u32 = 3;
/// Longest file handle (RFC 1813 2.4).
pub const MAX_HANDLE: usize = 64;
/// Longest name that is parsed. The protocol has no limit, so that a server can answer NFS3ERR_NAMETOOLONG.
pub const MAX_NAME: usize = 1024;
/// Longest path that is parsed (PATH_MAX).
pub const MAX_PATH: usize = 4096;
/// Largest payload of a READ or WRITE that is parsed; a server announces its own limit in FSINFO.
pub const MAX_DATA: usize = 8 << 20;

/// Procedure numbers (RFC 1813 3.3).
#[allow(missing_docs, reason = "the RFC's names")]
pub mod procedure {
    pub const NULL: u32 = 0;
    pub const GETATTR: u32 = 1;
    pub const SETATTR: u32 = 2;
    pub const LOOKUP: u32 = 3;
    pub const ACCESS: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const READ: u32 = 6;
    pub const WRITE: u32 = 7;
    pub const CREATE: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const SYMLINK: u32 = 10;
    pub const MKNOD: u32 = 11;
    pub const REMOVE: u32 = 12;
    pub const RMDIR: u32 = 13;
    pub const RENAME: u32 = 14;
    pub const LINK: u32 = 15;
    pub const READDIR: u32 = 16;
    pub const READDIRPLUS: u32 = 17;
    pub const FSSTAT: u32 = 18;
    pub const FSINFO: u32 = 19;
    pub const PATHCONF: u32 = 20;
    pub const COMMIT: u32 = 21;
}

pub use crate::nfs::{Stable, Verifier, access};

/// nfs_fh3.
pub type Handle = crate::nfs::Handle<MAX_HANDLE>;

/// filename3: one component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub Bytes);

impl Xdr for Name {
    fn parse(d: &mut Decoder) -> Result<Name, Malformed> {
        d.opaque(MAX_NAME).map(Name)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// nfspath3: a link's target. It is DDP-eligible in READLINK and SYMLINK (RFC 8267 section 3), so the content may be
/// detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(pub Bytes);

impl Xdr for Path {
    fn parse(d: &mut Decoder) -> Result<Path, Malformed> {
        d.payload(MAX_PATH).map(Path)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// nfsstat3 (RFC 1813 2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

#[allow(missing_docs, reason = "the RFC's names")]
impl Status {
    pub const OK: Status = Status(0);
    pub const PERM: Status = Status(1);
    pub const NOENT: Status = Status(2);
    pub const IO: Status = Status(5);
    pub const ACCES: Status = Status(13);
    pub const EXIST: Status = Status(17);
    pub const XDEV: Status = Status(18);
    pub const NOTDIR: Status = Status(20);
    pub const ISDIR: Status = Status(21);
    pub const INVAL: Status = Status(22);
    pub const FBIG: Status = Status(27);
    pub const NOSPC: Status = Status(28);
    pub const ROFS: Status = Status(30);
    pub const NAMETOOLONG: Status = Status(63);
    pub const NOTEMPTY: Status = Status(66);
    pub const DQUOT: Status = Status(69);
    pub const STALE: Status = Status(70);
    pub const BADHANDLE: Status = Status(10001);
    pub const NOT_SYNC: Status = Status(10002);
    pub const BAD_COOKIE: Status = Status(10003);
    pub const NOTSUPP: Status = Status(10004);
    pub const TOOSMALL: Status = Status(10005);
    pub const SERVERFAULT: Status = Status(10006);
    pub const BADTYPE: Status = Status(10007);
    pub const JUKEBOX: Status = Status(10008);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Status::OK => "NFS3_OK",
            Status::PERM => "NFS3ERR_PERM",
            Status::NOENT => "NFS3ERR_NOENT",
            Status::IO => "NFS3ERR_IO",
            Status::ACCES => "NFS3ERR_ACCES",
            Status::EXIST => "NFS3ERR_EXIST",
            Status::XDEV => "NFS3ERR_XDEV",
            Status::NOTDIR => "NFS3ERR_NOTDIR",
            Status::ISDIR => "NFS3ERR_ISDIR",
            Status::INVAL => "NFS3ERR_INVAL",
            Status::FBIG => "NFS3ERR_FBIG",
            Status::NOSPC => "NFS3ERR_NOSPC",
            Status::ROFS => "NFS3ERR_ROFS",
            Status::NAMETOOLONG => "NFS3ERR_NAMETOOLONG",
            Status::NOTEMPTY => "NFS3ERR_NOTEMPTY",
            Status::DQUOT => "NFS3ERR_DQUOT",
            Status::STALE => "NFS3ERR_STALE",
            Status::BADHANDLE => "NFS3ERR_BADHANDLE",
            Status::NOT_SYNC => "NFS3ERR_NOT_SYNC",
            Status::BAD_COOKIE => "NFS3ERR_BAD_COOKIE",
            Status::NOTSUPP => "NFS3ERR_NOTSUPP",
            Status::TOOSMALL => "NFS3ERR_TOOSMALL",
            Status::SERVERFAULT => "NFS3ERR_SERVERFAULT",
            Status::BADTYPE => "NFS3ERR_BADTYPE",
            Status::JUKEBOX => "NFS3ERR_JUKEBOX",
            Status(other) => return write!(f, "nfsstat3 {other}"),
        };
        f.write_str(name)
    }
}

/// A failed operation: its status, and the data that the result carries nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure<F> {
    /// Not [`Status::OK`].
    pub status: Status,
    /// The `resfail` arm.
    pub data: F,
}

/// The result of a procedure: its `resok` or its `resfail` arm.
pub type Outcome<T, F> = Result<T, Failure<F>>;

impl<T: Xdr, F: Xdr> Xdr for Outcome<T, F> {
    fn parse(d: &mut Decoder) -> Result<Self, Malformed> {
        match Status(d.u32()?) {
            Status::OK => T::parse(d).map(Ok),
            status => Ok(Err(Failure { status, data: F::parse(d)? })),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            Ok(ok) => {
                e.u32(Status::OK.0);
                ok.emit(e);
            }
            Err(failure) => {
                e.u32(failure.status.0);
                failure.data.emit(e);
            }
        }
    }
}

#[cfg(test)]
mod tests;
