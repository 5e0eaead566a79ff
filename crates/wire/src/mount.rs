//! MOUNT version 3 (RFC 1813 section 5, appendix I): maps an export's path to its root handle. The server decides who
//! may mount.

use std::fmt;

use bytes::Bytes;

use crate::nfs3::Handle;
use crate::rpc::Flavor;
use crate::xdr::{Decoder, Encoder, Malformed, Xdr, xdr_struct};

/// The program number (RFC 1813 5.1.2).
pub const PROGRAM: u32 = 100_005;
/// Its version.
pub const VERSION: u32 = 3;
/// Longest path.
pub const MAX_PATH: usize = 1024;
/// Longest host or group name.
pub const MAX_NAME: usize = 255;
/// Most flavours that are parsed from a reply to MNT.
pub const MAX_FLAVORS: usize = 32;

/// Procedure numbers (RFC 1813 5.2).
#[allow(missing_docs, reason = "the RFC's names")]
pub mod procedure {
    pub const NULL: u32 = 0;
    pub const MNT: u32 = 1;
    pub const DUMP: u32 = 2;
    pub const UMNT: u32 = 3;
    pub const UMNTALL: u32 = 4;
    pub const EXPORT: u32 = 5;
}

/// dirpath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPath(pub Bytes);

impl Xdr for DirPath {
    fn parse(d: &mut Decoder) -> Result<DirPath, Malformed> {
        d.opaque(MAX_PATH).map(DirPath)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// A host or group name.
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

/// mountstat3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountStatus(pub u32);

#[allow(missing_docs, reason = "the RFC's names")]
impl MountStatus {
    pub const OK: MountStatus = MountStatus(0);
    pub const PERM: MountStatus = MountStatus(1);
    pub const NOENT: MountStatus = MountStatus(2);
    pub const IO: MountStatus = MountStatus(5);
    pub const ACCES: MountStatus = MountStatus(13);
    pub const NOTDIR: MountStatus = MountStatus(20);
    pub const INVAL: MountStatus = MountStatus(22);
    pub const NAMETOOLONG: MountStatus = MountStatus(63);
    pub const NOTSUPP: MountStatus = MountStatus(10004);
    pub const SERVERFAULT: MountStatus = MountStatus(10006);
}

/// The meaning for the person who mounts, and the RFC's name.
impl fmt::Display for MountStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, name) = match *self {
            MountStatus::OK => ("mounted", "MNT3_OK"),
            MountStatus::PERM => ("only root may mount it", "MNT3ERR_PERM"),
            MountStatus::NOENT => ("the server exports no such path", "MNT3ERR_NOENT"),
            MountStatus::IO => ("the server cannot read it", "MNT3ERR_IO"),
            MountStatus::ACCES => ("the server does not export it to this client", "MNT3ERR_ACCES"),
            MountStatus::NOTDIR => ("it is not a folder", "MNT3ERR_NOTDIR"),
            MountStatus::INVAL => ("the server cannot read the request", "MNT3ERR_INVAL"),
            MountStatus::NAMETOOLONG => ("the name is too long", "MNT3ERR_NAMETOOLONG"),
            MountStatus::NOTSUPP => ("the server does not do this", "MNT3ERR_NOTSUPP"),
            MountStatus::SERVERFAULT => ("the server failed", "MNT3ERR_SERVERFAULT"),
            MountStatus(other) => return write!(f, "mountstat3 {other}"),
        };
        write!(f, "{words} ({name})")
    }
}

/// mountres3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountResult {
    /// Mounted.
    Ok {
        /// The root.
        handle: Handle,
        /// Credentials that the server accepts, best first.
        flavors: Vec<Flavor>,
    },
    /// Refused.
    Failed(MountStatus),
}

impl Xdr for MountResult {
    fn parse(d: &mut Decoder) -> Result<MountResult, Malformed> {
        match MountStatus(d.u32()?) {
            MountStatus::OK => {
                let handle = Handle::parse(d)?;
                let count = d.length(MAX_FLAVORS)?;
                let flavors = (0..count).map(|_| d.u32().map(Flavor)).collect::<Result<_, _>>()?;
                Ok(MountResult::Ok { handle, flavors })
            }
            status => Ok(MountResult::Failed(status)),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        match self {
            MountResult::Ok { handle, flavors } => {
                e.u32(MountStatus::OK.0);
                handle.emit(e);
                e.u32(flavors.len() as u32);
                flavors.iter().for_each(|f| e.u32(f.0));
            }
            MountResult::Failed(status) => e.u32(status.0),
        }
    }
}

/// A linked list: a one before each item, a zero at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T: Xdr> Xdr for List<T> {
    fn parse(d: &mut Decoder) -> Result<List<T>, Malformed> {
        // The list cannot outgrow the stream, since every item takes at least four bytes of it.
        let mut items = Vec::new();
        while d.bool()? {
            items.push(T::parse(d)?);
        }
        Ok(List(items))
    }
    fn emit(&self, e: &mut Encoder) {
        for item in &self.0 {
            e.bool(true);
            item.emit(e);
        }
        e.bool(false);
    }
}

xdr_struct! {
    /// mountbody: one mount of a client.
    pub struct MountEntry {
        /// Client.
        pub hostname: Name,
        /// Export.
        pub directory: DirPath,
    }
}

xdr_struct! {
    /// exportnode.
    pub struct Export {
        /// Path.
        pub dir: DirPath,
        /// Groups that may mount it; empty for everybody.
        pub groups: List<Name>,
    }
}

#[cfg(test)]
mod tests;
