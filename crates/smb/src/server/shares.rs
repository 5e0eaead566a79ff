//! The shares that a server has now. They can be replaced while it runs.
//!
//! A tree keeps the share that it was connected to, with what that asked then: a request never looks here. So a change counts
//! from the next TREE_CONNECT on.

use std::sync::{Arc, PoisonError, RwLock};

use weft_store::vfs::Share;

/// See the module.
pub(crate) struct Shares(RwLock<Arc<[Share]>>);

impl Shares {
    pub fn new(shares: Vec<Share>) -> Shares {
        Shares(RwLock::new(shares.into()))
    }

    /// Those of now.
    pub fn now(&self) -> Arc<[Share]> {
        // What it guards is a pointer, which no panic leaves half changed.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The one that clients call so, in whatever case.
    pub fn named(&self, name: &str) -> Option<Share> {
        let wanted = name.to_lowercase();
        self.now().iter().find(|share| share.name.to_lowercase() == wanted).cloned()
    }

    pub fn replace(&self, shares: Vec<Share>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = shares.into();
    }
}
