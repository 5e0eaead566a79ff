//! What is served by a name.
//!
//! Owns: nothing; its file system is shared. Does not: decide who may use it: see [`Rules`].

use std::sync::Arc;

use super::Vfs;
use crate::rules::Rules;
use crate::snapshots::Snapshots;

/// A named share.
#[derive(Clone)]
pub struct Share {
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
        Share { name: name.into(), vfs, rules: Rules::default(), snapshots: None }
    }
}
