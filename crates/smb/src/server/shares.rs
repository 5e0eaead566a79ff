//! The server's current shares, which can be replaced while it runs.
//!
//! A tree keeps the share that it was connected to, with that share's requirements: requests never look here. So a
//! change takes effect at the next TREE_CONNECT.

use std::sync::{Arc, PoisonError, RwLock};

use weft_store::vfs::Share;

/// See the module documentation.
pub(crate) struct Shares(RwLock<Arc<[Share]>>);

impl Shares {
    pub fn new(shares: Vec<Share>) -> Shares {
        Shares(RwLock::new(shares.into()))
    }

    /// The current shares.
    pub fn now(&self) -> Arc<[Share]> {
        // It guards a pointer, which no panic leaves half-changed.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The share with this name, in any case.
    pub fn named(&self, name: &str) -> Option<Share> {
        let wanted = name.to_lowercase();
        self.now().iter().find(|share| share.name.to_lowercase() == wanted).cloned()
    }

    pub fn replace(&self, shares: Vec<Share>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = shares.into();
    }
}
