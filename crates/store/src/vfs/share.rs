//! A named share. Its file system is shared; [`Rules`] decide who may use it.

use std::sync::Arc;

use super::{ShareId, Vfs, VfsId};
use crate::rules::Rules;
use crate::snapshots::Snapshots;

/// A named share.
#[derive(Clone)]
pub struct Share {
    /// The id of its name.
    pub id: ShareId,
    /// What clients call it.
    pub name: Arc<str>,
    /// Its files.
    pub vfs: Vfs,
    /// The rules for its users.
    pub rules: Rules,
    /// Its snapshots, if its host keeps any.
    pub snapshots: Option<Arc<Snapshots>>,
}

impl Share {
    /// A share without restrictions.
    pub fn new(name: impl Into<Arc<str>>, vfs: Vfs) -> Share {
        let name = name.into();
        Share { id: ShareId::of_name(&name), name, vfs, rules: Rules::default(), snapshots: None }
    }

    /// What identifies it in the tables of a running server.
    pub fn key(&self) -> ShareKey {
        ShareKey { id: self.id, vfs: self.vfs.id() }
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
