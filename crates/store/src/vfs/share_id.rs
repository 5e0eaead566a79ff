//! The id of a share, which outlives the server's run in the handles of its clients, and its key in the tables of a
//! running server.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher24;

/// Identifies a share: derived from its name, so it is the same after a restart, whatever other shares come or go.
///
/// Clients store it (in NFS file handles), so its derivation must never change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(
    /// `0 <= number < 2^56`.
    u64,
);

impl ShareId {
    /// Its length in a handle, in bytes.
    pub const BYTES: usize = 7;

    /// The id of the share with this name.
    pub fn of_name(name: &str) -> ShareId {
        let [_, id @ ..] = SipHasher24::new().hash(name.as_bytes()).to_be_bytes();
        ShareId::from_bytes(id)
    }

    /// Its form in a handle.
    pub fn to_bytes(self) -> [u8; ShareId::BYTES] {
        let [_, id @ ..] = self.0.to_be_bytes();
        id
    }

    /// The inverse of [`ShareId::to_bytes`]; a share with this id need not exist.
    pub fn from_bytes([a, b, c, d, e, f, g]: [u8; ShareId::BYTES]) -> ShareId {
        ShareId(u64::from_be_bytes([0, a, b, c, d, e, f, g]))
    }

    /// As a number, below 2^56.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for ShareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShareId({:014x})", self.0)
    }
}

/// Identifies a file system in this process. Nodes, and the keys and owners of its table of opens, mean nothing in
/// another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VfsId(u64);

impl VfsId {
    /// An id that no other file system has.
    pub(super) fn new() -> VfsId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        VfsId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A share with the file system that it serves. A server's tables use this as a key, because nodes, keys and lock owners
/// mean nothing in another file system: a share that comes back under its old name with other files is another one to
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShareKey {
    /// The share.
    pub id: ShareId,
    /// Its file system.
    pub vfs: VfsId,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles from earlier versions contain these ids.
    #[test]
    fn the_id_of_a_share_is_that_of_its_name_for_good() {
        let id = ShareId::of_name("data");
        assert_eq!(id, ShareId::from_bytes(id.to_bytes()));
        assert_ne!(id, ShareId::of_name("Data"));
        assert_eq!(format!("{id:?}"), "ShareId(7d6c506f87a3b3)");
    }
}
