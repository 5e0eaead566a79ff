//! Wire types common to all versions of NFS: handles, verifiers, the stability of a WRITE, bits of ACCESS.
//!
//! They follow RFC 1813 2.3.3, 3.3.4, 3.3.7; RFC 7530 2.1; RFC 8881 3.2, 18.1, 18.32. `nfs3` and `nfs4` re-export them
//! next to their procedures and operations.

use std::fmt;

use crate::xdr::{Decoder, Encoder, Malformed, Xdr};

/// A verifier: of writes, of directory cookies, of an exclusive CREATE, or of a client's boot.
pub type Verifier = [u8; 8];

/// A file handle of at most `MAX` bytes: opaque to clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle<const MAX: usize> {
    /// `len <= MAX`; the bytes after it are zero.
    len: usize,
    bytes: [u8; MAX],
}

impl<const MAX: usize> Handle<MAX> {
    /// A handle with these bytes; `None` if there are more than `MAX`.
    pub fn new(handle: &[u8]) -> Option<Handle<MAX>> {
        let mut bytes = [0; MAX];
        bytes.get_mut(..handle.len())?.copy_from_slice(handle);
        Some(Handle { len: handle.len(), bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const MAX: usize> fmt::Debug for Handle<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fh:")?;
        self.as_bytes().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl<const MAX: usize> Xdr for Handle<MAX> {
    fn parse(d: &mut Decoder) -> Result<Handle<MAX>, Malformed> {
        let (len, bytes) = d.short_opaque()?;
        Ok(Handle { len, bytes })
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(self.as_bytes());
    }
}

/// stable_how, stable_how4: when written data has to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stable {
    /// By the next COMMIT.
    Unstable = 0,
    /// The data before the reply.
    DataSync = 1,
    /// Data and metadata before the reply.
    FileSync = 2,
}

impl Xdr for Stable {
    fn parse(d: &mut Decoder) -> Result<Stable, Malformed> {
        match d.u32()? {
            0 => Ok(Stable::Unstable),
            1 => Ok(Stable::DataSync),
            2 => Ok(Stable::FileSync),
            _ => Err(Malformed("unknown stable_how")),
        }
    }
    fn emit(&self, e: &mut Encoder) {
        e.u32(*self as u32);
    }
}

/// Bits of ACCESS.
#[allow(missing_docs, reason = "the RFCs' names")]
pub mod access {
    pub const READ: u32 = 0x01;
    pub const LOOKUP: u32 = 0x02;
    pub const MODIFY: u32 = 0x04;
    pub const EXTEND: u32 = 0x08;
    pub const DELETE: u32 = 0x10;
    pub const EXECUTE: u32 = 0x20;
}
