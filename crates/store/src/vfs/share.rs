//! What is served by a name.
//!
//! Owns: nothing; its file system is shared. Does not: decide who may use it: see [`Rules`].

use std::fmt;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use super::Vfs;
use crate::rules::Rules;
use crate::snapshots::Snapshots;

/// Which share: made of its name, so it is the same after a restart, and whatever other shares come or go.
///
/// It is part of what clients keep (NFS file handles): how it is made is never to be changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareId(
    /// `0 <= number < 2^56`.
    u64,
);

impl ShareId {
    /// Bytes of one in a handle.
    pub const BYTES: usize = 7;

    /// That of the share with this name.
    pub fn of_name(name: &str) -> ShareId {
        let [_, id @ ..] = SipHasher24::new().hash(name.as_bytes()).to_be_bytes();
        ShareId::from_bytes(id)
    }

    /// As a handle has it.
    pub fn to_bytes(self) -> [u8; ShareId::BYTES] {
        let [_, id @ ..] = self.0.to_be_bytes();
        id
    }

    /// What [`ShareId::to_bytes`] gave; no share need have it.
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

/// A named share.
#[derive(Clone)]
pub struct Share {
    /// That of its name.
    pub id: ShareId,
    /// What clients call it.
    pub name: Arc<str>,
    /// Its files.
    pub vfs: Vfs,
    /// What is asked of whoever uses it.
    pub rules: Rules,
    /// Its earlier states, where its host keeps any.
    pub snapshots: Option<Arc<Snapshots>>,
}

impl Share {
    /// A share that asks nothing.
    pub fn new(name: impl Into<Arc<str>>, vfs: Vfs) -> Share {
        let name = name.into();
        Share { id: ShareId::of_name(&name), name, vfs, rules: Rules::default(), snapshots: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles that clients have from earlier versions name shares so.
    #[test]
    fn the_id_of_a_share_is_that_of_its_name_for_good() {
        let id = ShareId::of_name("data");
        assert_eq!(id, ShareId::from_bytes(id.to_bytes()));
        assert_ne!(id, ShareId::of_name("Data"));
        assert_eq!(format!("{id:?}"), "ShareId(7d6c506f87a3b3)");
    }
}
