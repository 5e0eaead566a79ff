//! What identifies a share and its file system in the tables of a running server.

use std::sync::atomic::{AtomicU64, Ordering};

use super::share_id::ShareId;

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
