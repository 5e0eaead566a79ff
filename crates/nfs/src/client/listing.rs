//! The entries of a directory, and the limits on how much of a listing the client accepts.
//!
//! See RFC 1813 3.3.17 and RFC 8881 18.23. `paths` and `v4` send the requests.

use bytes::Bytes;
use weft_wire::nfs3::Handle;
use weft_wire::xdr::Malformed;

use super::Error;
use super::attributes::Attributes;

/// Most names listed of one directory: about 1 GiB of memory, besides the names themselves.
const MAX_LISTING: usize = 4 << 20;
/// Most bytes of those names.
const MAX_NAMES_BYTES: usize = 512 << 20;

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Bytes,
    /// Its file number (inode).
    pub fileid: u64,
    /// Attributes, if the server gave them.
    pub attributes: Option<Attributes>,
    /// Handle, if the server gave it.
    pub handle: Option<Handle>,
}

/// Counts the entries received so far, because a server may list without end.
#[derive(Default)]
pub(super) struct Listed {
    names: usize,
    bytes: usize,
}

impl Listed {
    /// Counts a name and returns a copy that owns its memory: a parsed name is part of the reply and would keep its
    /// whole receive buffer in use.
    pub(super) fn own(&mut self, name: &Bytes) -> Result<Bytes, Error> {
        self.names = self.names.saturating_add(1);
        self.bytes = self.bytes.saturating_add(name.len());
        if self.names > MAX_LISTING {
            return Err(Malformed("a folder of more than 4 million names").into());
        }
        if self.bytes > MAX_NAMES_BYTES {
            return Err(Malformed("a folder whose names exceed 512 MiB").into());
        }
        Ok(Bytes::copy_from_slice(name))
    }
}
