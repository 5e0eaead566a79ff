//! The one table of opens: share modes, deletion at the last close, byte-range locks, caching rights; for SMB and NFS.
//!
//! Spec: [MS-FSA] 2.1.5.1.2 (open of what exists), 2.1.5.5 (close); locks and caching rights see below.
//! Owns: who has which node open, and how. An [`Open`] leaves the table when it is dropped.
//! Does not: touch files. Who closes last is told to remove the name, and until that is done nobody opens the node.
//!
//! # How a protocol uses it
//!
//! - **With opens** (SMB, NFSv4): [`Opens::open`] waits until others have given back what is in the way, then enters
//!   the open; [`Opens::try_open`] says [`Refused::Recalling`] instead (NFS4ERR_DELAY). All opens that share a cache
//!   carry one [`Key`]: an SMB lease, an NFSv4 client. What a key does never takes away what the same key holds.
//! - **Without** (NFSv3, and whatever is done by name): [`Opens::pass`] before a READ, WRITE, SETATTR of the size,
//!   REMOVE or RENAME does both: share modes, and recalls with their wait. [`Opens::recall`] starts the recalls and
//!   does not wait. A change to the names of a directory is [`Access::Children`] of it.
//! - **Caching rights**: [`Open::request`] after the open (an oplock, a lease, a delegation), with a [`Holder`] that
//!   is told of recalls; [`Opens::acknowledge`] when the client agrees. SMB's rights end with the last open of their
//!   key; a delegation ends by [`Opens::give_back`].
//! - **After a restart**: a protocol whose clients take back what they had keeps the table for them by [`Opens::reserve`].
//! - **Locks**: of an SMB open by [`Open::try_lock`], [`Open::lock`], [`Open::unlock`]; POSIX ones of a
//!   [`LockOwner`] by [`Opens::try_set_range`], [`Opens::set_range`] (waits), [`Opens::test_range`],
//!   [`Opens::release_ranges`]. They need no open. [`Opens::may_transfer`] is what a READ or WRITE of NFS asks about
//!   the mandatory locks of SMB.
//!
//! Cost: a READ or WRITE on an open without byte-range locks reads one or two atomics. NFS asks [`Opens::pass`], which
//! reads one atomic while the table is empty. Everything else takes the mutex of one shard for a short walk.

mod grants;
mod holders;
mod locks;
mod open;
mod ranges;
mod reclaim;
mod waiting;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::grants::Grants;
pub use self::grants::{Access, AckFailed, BREAK_TIMEOUT, Caching, Form, Holder, Key, MAX_GRANTS, Recall};
use self::holders::{Entry, Holders};
use self::locks::Locks;
pub use self::locks::{Conflict, LockOwner, MAX_LOCKS, MAX_WAITING, Range, SetFailed};
pub use self::open::{Open, Removal};
use self::reclaim::Reclaims;
pub use self::reclaim::Reservation;
pub use self::waiting::Waiters;
use crate::vfs::{Error, NodeId};

/// Shards of the table: enough that cores seldom meet in one.
const SHARDS: usize = 64;
/// Opens of one node at a time.
pub const MAX_OPENS_OF_A_NODE: usize = 65_536;

/// What an open does, or lets others do. Attributes and security are nobody's business here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Read or execute data, list a directory.
    pub read: bool,
    /// Write or append data.
    pub write: bool,
    /// Delete or rename.
    pub delete: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Rights = Rights { read: true, write: true, delete: true };
    /// Nothing.
    pub const NONE: Rights = Rights { read: false, write: false, delete: false };
    /// Reading alone.
    pub const READ: Rights = Rights { read: true, ..Rights::NONE };
    /// Writing alone.
    pub const WRITE: Rights = Rights { write: true, ..Rights::NONE };
    /// Deletion alone.
    pub const DELETE: Rights = Rights { delete: true, ..Rights::NONE };

    fn any(self) -> bool {
        self != Rights::NONE
    }

    /// Reading, writing, deleting.
    fn each(self) -> [bool; 3] {
        [self.read, self.write, self.delete]
    }
}

/// Why the table said no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Somebody's share mode forbids it.
    #[error("sharing violation")]
    Sharing,
    /// The node is about to be removed.
    #[error("delete pending")]
    DeletePending,
    /// A byte-range lock of somebody else is in the way.
    #[error("byte range locked")]
    Locked,
    /// No such lock to take back.
    #[error("byte range not locked")]
    NotLocked,
    /// Somebody caches what this needs, and has been asked to give it back.
    #[error("caching rights are being recalled")]
    Recalling,
    /// A named limit.
    #[error("limit reached: {0}")]
    Limit(&'static str),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Sharing | Refused::DeletePending | Refused::Locked | Refused::Recalling => {
                Error::Sharing
            }
            Refused::NotLocked => Error::Invalid,
            Refused::Limit(what) => Error::Limit(what),
        }
    }
}

/// How somebody wants to open a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// What it does.
    pub access: Rights,
    /// What others may do meanwhile.
    pub share: Rights,
    /// In whose name: see [`Opens::key`].
    pub key: Key,
    /// How much of the node is touched, which decides whether others' caches care.
    pub reach: Reach,
    /// Its data is dropped by the open (SUPERSEDE, OVERWRITE; an NFSv4 OPEN that sets the size to 0). That is a write
    /// to the others, whatever `access` says.
    pub overwrites: bool,
    /// It does not wait for those who may take back what they had before a restart: it is one of them, or nobody had this node then.
    pub past_grace: bool,
}

impl Opening {
    /// For data, in a name of its own, without overwriting, of somebody who had nothing before.
    pub fn new(access: Rights, share: Rights, key: Key) -> Opening {
        Opening { access, share, key, reach: Reach::Data, overwrites: false, past_grace: false }
    }

    /// What others must allow.
    fn needs(&self) -> Rights {
        Rights { write: self.access.write || self.overwrites, ..self.access }
    }
}

/// What an open may touch ([MS-FSA] 2.1.4.12, case OPEN).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Attributes alone: breaks nothing.
    Attributes,
    /// Attributes and the security descriptor: breaks oplocks, but no lease.
    Security,
    /// More than that.
    Data,
}

/// What is known about one node that is open, locked or cached.
#[derive(Default)]
struct Node {
    holders: Holders,
    delete_pending: bool,
    /// [`Ending::parent`](holders::Ending::parent) of the open that made the deletion pending.
    deleted_by: Option<Key>,
    /// Set by the last close until the name is gone.
    removing: bool,
    locks: Locks,
    grants: Grants,
}

impl Node {
    /// Whether a new open may do what it asks, next to those that exist.
    fn admits(&self, access: Rights, share: Rights) -> Result<(), Refused> {
        if self.delete_pending || self.removing {
            return Err(Refused::DeletePending);
        }
        if self.holders.clashes(access, share) { Err(Refused::Sharing) } else { Ok(()) }
    }

    fn is_unused(&self) -> bool {
        self.holders.is_empty() && !self.removing && self.locks.is_empty() && self.grants.is_empty()
    }
}

type Shard = HashMap<NodeId, Node>;

/// The opens of one share.
pub struct Opens {
    shards: [Mutex<Shard>; SHARDS],
    /// Numbers of opens, keys, lock owners and generations: each is used once.
    next: AtomicU64,
    /// Nodes in the table, so that a server of NFS alone never takes a lock here.
    known_nodes: AtomicUsize,
    /// Somebody has cached a directory: from then on those who change one ask who does.
    directories: AtomicBool,
    /// Who may still take back what he had before a restart.
    reclaims: Reclaims,
}

impl Default for Opens {
    fn default() -> Opens {
        Opens {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicU64::new(1),
            known_nodes: AtomicUsize::new(0),
            directories: AtomicBool::new(false),
            reclaims: Reclaims::default(),
        }
    }
}

impl std::fmt::Debug for Opens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opens({} nodes)", self.known_nodes.load(Ordering::Relaxed))
    }
}

impl Opens {
    fn shard(&self, node: NodeId) -> MutexGuard<'_, Shard> {
        // Nodes are numbered in order; consecutive ones go to different shards. Each critical section leaves the map
        // whole, also when it panics for want of memory.
        self.shards[node.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A name for whoever is about to open nodes or to hold caching rights: one for each SMB open without a lease, for
    /// each SMB lease, for each NFSv4 client.
    pub fn key(&self) -> Key {
        Key(self.number())
    }

    /// A name for somebody who will lock POSIX ranges.
    pub fn lock_owner(&self) -> LockOwner {
        LockOwner(self.number())
    }

    /// Directories may be cached from now on.
    pub fn cache_directories(&self) {
        if !self.caches_directories() {
            self.directories.store(true, Ordering::Release);
        }
    }

    /// Whether anybody may have cached a directory.
    pub fn caches_directories(&self) -> bool {
        self.directories.load(Ordering::Acquire)
    }

    /// Whether nothing is known of any node: then nobody is in anybody's way.
    fn is_empty(&self) -> bool {
        self.known_nodes.load(Ordering::Acquire) == 0
    }

    fn known<'a>(&self, shard: &'a mut Shard, node: NodeId) -> &'a mut Node {
        shard.entry(node).or_insert_with(|| {
            self.known_nodes.fetch_add(1, Ordering::Release);
            let mut known = Node::default();
            // So that whoever waits for a change notices that the node was forgotten and is known anew.
            known.grants.generation = self.number();
            known
        })
    }

    fn enter(self: &Arc<Opens>, shard: &mut Shard, node: NodeId, opening: &Opening) -> Result<Open, Refused> {
        let id = self.number();
        let known = self.known(shard, node);
        if known.holders.len() >= MAX_OPENS_OF_A_NODE {
            return Err(Refused::Limit("opens of a file"));
        }
        let Opening { access, share, key, reach, .. } = *opening;
        known.holders.insert(id, Entry { key, access, share, reach });
        Ok(Open {
            table: self.clone(),
            node,
            id,
            key,
            locks: known.locks.count(),
            readers: known.grants.readers(),
            closed: AtomicBool::new(false),
            past_grace: opening.past_grace,
        })
    }

    /// Whether somebody without an open may do this to `node` now, as far as share modes go. See [`Opens::pass`].
    pub fn may(&self, node: NodeId, access: Rights) -> Result<(), Refused> {
        if self.is_empty() {
            return Ok(());
        }
        self.shard(node).get(&node).map_or(Ok(()), |known| known.admits(access, Rights::ALL))
    }

    /// Whether the name of `node` may be removed, replaced or changed by somebody without an open, as far as share
    /// modes go. See [`Opens::pass`].
    pub fn may_remove(&self, node: NodeId) -> Result<(), Refused> {
        self.may(node, Rights::DELETE)
    }

    /// Whether `dir` may get or lose a name: who has it open may forbid writing, and nobody may have it open to remove
    /// or move it.
    pub fn may_rename_in(&self, dir: NodeId) -> Result<(), Refused> {
        let share = Rights { delete: false, ..Rights::ALL };
        self.shard(dir).get(&dir).map_or(Ok(()), |known| known.admits(Rights::WRITE, share))
    }

    /// Whether a stream of `base` may be opened: an open of the file itself may delete all of its streams, which the new
    /// open has to share ([MS-FSA] 2.1.5.1.2.1). The other direction is [`crate::vfs::Vfs::may_remove_with_streams`].
    pub fn may_open_stream(&self, base: NodeId, access: Rights, share: Rights) -> Result<(), Refused> {
        if !access.any() || share.delete {
            return Ok(());
        }
        let deletes = |known: &Node| known.holders.deletes();
        if self.shard(base).get(&base).is_some_and(deletes) { Err(Refused::Sharing) } else { Ok(()) }
    }

    /// Whether every open of `node` may be one that its client keeps for its cache alone, and closes when it is asked for
    /// that: each has the right to cache handles.
    pub fn only_cached(&self, node: NodeId) -> bool {
        let cached = |known: &Node| {
            let keys = known.grants.handle_keys();
            known.holders.all_keys(|key| keys.contains(&key))
        };
        self.shard(node).get(&node).is_none_or(cached)
    }

    /// Whether anybody has `node` open, for whatever purpose.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.shard(node).get(&node).is_some_and(|known| !known.holders.is_empty())
    }

    /// Every node that somebody has open.
    pub fn open_nodes(&self) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.extend(shard.iter().filter(|(_, known)| !known.holders.is_empty()).map(|(node, _)| *node));
        }
        nodes
    }

    /// How many opens a node has.
    pub fn count(&self, node: NodeId) -> usize {
        self.shard(node).get(&node).map_or(0, |known| known.holders.len())
    }

    /// How many of them have this key.
    pub fn count_of(&self, node: NodeId, key: Key) -> usize {
        self.shard(node).get(&node).map_or(0, |known| known.holders.count_of(key))
    }

    /// Whether the node goes away with its last open. Once that is closed it is as good as gone.
    pub fn delete_pending(&self, node: NodeId) -> bool {
        self.shard(node).get(&node).is_some_and(|known| known.delete_pending && !known.removing)
    }

    fn forget_if_unused(&self, shard: &mut Shard, node: NodeId) {
        if shard.get(&node).is_some_and(Node::is_unused) {
            shard.remove(&node);
            self.known_nodes.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
