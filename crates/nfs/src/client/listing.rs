//! What a directory has in it, and how much of that is taken from a server.
//!
//! Spec: RFC 1813 3.3.17, RFC 8881 18.23. Does not: ask for it (`paths`, `v4`).

use bytes::Bytes;
use weft_wire::nfs3::Handle;
use weft_wire::xdr::Malformed;

use super::Error;
use super::attributes::Attributes;

/// Names of one directory that are listed at most: about 1 GiB of memory beside the names themselves.
const MAX_LISTING: usize = 4 << 20;
/// And so many bytes of them.
const MAX_NAMES_BYTES: usize = 512 << 20;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// Its number in the file system.
    pub fileid: u64,
    /// Attributes, if the server gave them.
    pub attributes: Option<Attributes>,
    /// Handle, if the server gave it.
    pub handle: Option<Handle>,
}

/// How much of a directory has come. What a server lists may have no end.
#[derive(Default)]
pub(super) struct Listed {
    names: usize,
    bytes: usize,
}

impl Listed {
    /// Counts a name, and gives one that owns its memory: what was parsed is a part of the reply, whose whole buffer it would
    /// keep from those who receive.
    pub(super) fn own(&mut self, name: &Bytes) -> Result<Bytes, Error> {
        self.names = self.names.saturating_add(1);
        self.bytes = self.bytes.saturating_add(name.len());
        if self.names > MAX_LISTING {
            return Err(Malformed("a directory of more than 4 million names").into());
        }
        if self.bytes > MAX_NAMES_BYTES {
            return Err(Malformed("a directory whose names have more than 512 MiB").into());
        }
        Ok(Bytes::copy_from_slice(name))
    }
}
