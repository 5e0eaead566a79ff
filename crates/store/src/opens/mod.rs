//! The table of opens for SMB and NFS: share modes, deletion at the last close, byte-range locks, caching rights.
//!
//! [MS-FSA] 2.1.5.1.2 (opening an existing file), 2.1.5.5 (close); for locks and caching rights see below. An
//! [`Open`] leaves the table when it is dropped. Files are not touched here: the caller whose close is the last is
//! told to remove the name, and until that is done nobody can open the node.
//!
//! # Use by a protocol
//!
//! - **With opens** (SMB, NFSv4): [`Opens::open`] waits until others have given back conflicting rights, then enters
//!   the open; [`Opens::try_open`] returns [`Refused::Recalling`] instead (NFS4ERR_DELAY). All opens that share a
//!   cache carry one [`Key`]: an SMB lease, an NFSv4 client. An access by a key never breaks that key's own rights.
//! - **Without opens** (NFSv3, and operations by name): [`Opens::pass`] before a READ, WRITE, SETATTR of the size,
//!   REMOVE or RENAME checks share modes, starts recalls and waits for them. [`Opens::recall`] starts recalls without
//!   waiting. A change of a directory's names is [`Access::Children`].
//! - **Caching rights**: [`Open::request`] after the open (an oplock, a lease, a delegation), with a [`Holder`] that
//!   is notified of recalls; [`Opens::acknowledge`] when the client agrees. SMB's rights end with the last open of
//!   their key; a delegation ends by [`Opens::give_back`].
//! - **After a restart**: a protocol whose clients reclaim their state reserves the table for them with
//!   [`Opens::reserve`].
//! - **Locks**: for an SMB open [`Open::try_lock`], [`Open::lock`], [`Open::unlock`]; for POSIX locks of a
//!   [`LockOwner`] [`Opens::try_set_range`], [`Opens::set_range`] (waits), [`Opens::test_range`],
//!   [`Opens::release_ranges`]. POSIX locks need no open. [`Opens::may_transfer`] checks a READ or WRITE of NFS
//!   against the mandatory locks of SMB.
//!
//! Cost: a READ or WRITE on an open without byte-range locks reads one or two atomics. NFS calls [`Opens::pass`],
//! which reads one atomic while the table is empty. Everything else takes the mutex of one shard for a short walk.

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
pub use self::locks::{
    Conflict, LockOwner, LockedRange, MAX_LOCKS, MAX_WAITING, Range, SetFailed, locks_held,
};
pub use self::open::{Alone, Open, Removal};
use self::reclaim::Reclaims;
pub use self::reclaim::Reservation;
pub use self::waiting::Waiters;
use crate::vfs::{Error, NodeId};

/// Shards of the table: enough that cores rarely contend for one.
const SHARDS: usize = 64;
/// Maximum number of opens of one node.
pub const MAX_OPENS_OF_A_NODE: usize = 65_536;

/// What an open does, or allows others to do. Attributes and security are not covered.
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
    /// Reading only.
    pub const READ: Rights = Rights { read: true, ..Rights::NONE };
    /// Writing only.
    pub const WRITE: Rights = Rights { write: true, ..Rights::NONE };
    /// Deletion only.
    pub const DELETE: Rights = Rights { delete: true, ..Rights::NONE };

    fn any(self) -> bool {
        self != Rights::NONE
    }

    /// Reading, writing, deleting.
    fn each(self) -> [bool; 3] {
        [self.read, self.write, self.delete]
    }
}

/// Why the table refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Another open's share mode forbids it.
    #[error("sharing violation")]
    Sharing,
    /// The node is about to be removed.
    #[error("delete pending")]
    DeletePending,
    /// A byte-range lock of another owner conflicts.
    #[error("byte range locked")]
    Locked,
    /// There is no such lock to release.
    #[error("byte range not locked")]
    NotLocked,
    /// The open was closed while its request was carried out.
    #[error("closed")]
    Closed,
    /// Another client caches what this needs, and has been asked to give it back.
    #[error("caching rights are being recalled")]
    Recalling,
    /// A limit is reached.
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
            Refused::Closed => Error::Stale,
            Refused::Limit(what) => Error::Limit(what),
        }
    }
}

/// The parameters of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// What it does.
    pub access: Rights,
    /// What others may do meanwhile.
    pub share: Rights,
    /// The opener: see [`Opens::key`].
    pub key: Key,
    /// How much of the node it reaches, which decides whether it breaks others' caches.
    pub reach: Reach,
    /// Whether the open drops the data (SUPERSEDE, OVERWRITE; an NFSv4 OPEN that sets the size to 0). For others this
    /// is a write, whatever `access` says.
    pub overwrites: bool,
    /// Whether it skips the grace period: it reclaims, or the node did not exist before the restart.
    pub past_grace: bool,
    /// Whether the server holds it for a delegation: see [`Opens::count`].
    pub delegates: bool,
}

impl Opening {
    /// An open for data, without overwriting, by a client that reclaims nothing.
    pub fn new(access: Rights, share: Rights, key: Key) -> Opening {
        Opening {
            access,
            share,
            key,
            reach: Reach::Data,
            overwrites: false,
            past_grace: false,
            delegates: false,
        }
    }

    /// The access that others must allow.
    fn needs(&self) -> Rights {
        Rights { write: self.access.write || self.overwrites, ..self.access }
    }
}

/// How much an open may touch ([MS-FSA] 2.1.4.12, case OPEN).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Only attributes: breaks nothing.
    Attributes,
    /// Attributes and the security descriptor: breaks oplocks, but no leases.
    Security,
    /// Data.
    Data,
}

/// The state of one node that is open, locked or cached.
#[derive(Default)]
struct Node {
    holders: Holders,
    delete_pending: bool,
    /// [`Ending::parent`](holders::Ending::parent) of the open that set the pending deletion.
    deleted_by: Option<Key>,
    /// Set from the last close until the name is removed.
    removing: bool,
    /// Set while an [`Alone`] exists.
    alone: bool,
    locks: Locks,
    grants: Grants,
}

impl Node {
    /// Whether a new open is compatible with the existing ones.
    fn admits(&self, access: Rights, share: Rights) -> Result<(), Refused> {
        if self.delete_pending || self.removing {
            return Err(Refused::DeletePending);
        }
        if self.alone || self.holders.clashes(access, share) { Err(Refused::Sharing) } else { Ok(()) }
    }

    fn is_unused(&self) -> bool {
        self.holders.is_empty()
            && !self.removing
            && !self.alone
            && self.locks.is_empty()
            && self.grants.is_empty()
    }
}

type Shard = HashMap<NodeId, Node>;

/// The opens of one share.
pub struct Opens {
    shards: [Mutex<Shard>; SHARDS],
    /// Source of numbers for opens, keys, lock owners and generations: each is used once.
    next: AtomicU64,
    /// Number of nodes in the table, so that an NFS-only server never takes a lock here.
    known_nodes: AtomicUsize,
    /// Whether a client may have cached a directory: from then on, changes of directories check for that.
    directories: AtomicBool,
    /// Clients that may still reclaim state from before a restart.
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
        // Nodes are numbered consecutively, so neighbours use different shards. A panic for lack of memory leaves the
        // map consistent.
        self.shards[node.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A key for an opener or holder of caching rights: one per SMB open without a lease, per SMB lease, per NFSv4
    /// client.
    pub fn key(&self) -> Key {
        Key(self.number())
    }

    /// An identifier for an owner of POSIX locks.
    pub fn lock_owner(&self) -> LockOwner {
        LockOwner(self.number())
    }

    /// From now on directories may be cached.
    pub fn cache_directories(&self) {
        if !self.caches_directories() {
            self.directories.store(true, Ordering::Release);
        }
    }

    /// Whether a client may have cached a directory.
    pub fn caches_directories(&self) -> bool {
        self.directories.load(Ordering::Acquire)
    }

    /// Whether the table is empty: then nothing can conflict.
    fn is_empty(&self) -> bool {
        self.known_nodes.load(Ordering::Acquire) == 0
    }

    fn known<'a>(&self, shard: &'a mut Shard, node: NodeId) -> &'a mut Node {
        shard.entry(node).or_insert_with(|| {
            self.known_nodes.fetch_add(1, Ordering::Release);
            let mut known = Node::default();
            // A new generation, so that a waiter notices that the node was forgotten and entered again.
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
        let Opening { access, share, key, reach, delegates, .. } = *opening;
        known.holders.insert(id, Entry { key, access, share, reach, delegates });
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

    /// Whether an access without an open is compatible with the share modes of `node` now. See [`Opens::pass`].
    pub fn may(&self, node: NodeId, access: Rights) -> Result<(), Refused> {
        if self.is_empty() {
            return Ok(());
        }
        self.shard(node).get(&node).map_or(Ok(()), |known| known.admits(access, Rights::ALL))
    }

    /// Whether the share modes allow removing, replacing or renaming `node` without an open. See [`Opens::pass`].
    pub fn may_remove(&self, node: NodeId) -> Result<(), Refused> {
        self.may(node, Rights::DELETE)
    }

    /// Whether `dir` may gain or lose a name: an open of it may forbid writing, and no open may be there to remove or
    /// move it.
    pub fn may_rename_in(&self, dir: NodeId) -> Result<(), Refused> {
        let share = Rights { delete: false, ..Rights::ALL };
        self.shard(dir).get(&dir).map_or(Ok(()), |known| known.admits(Rights::WRITE, share))
    }

    /// Whether a stream of `base` may be opened: an open of the file itself may delete all of its streams, so the new
    /// open must share deletion with it ([MS-FSA] 2.1.5.1.2.1). The reverse check is
    /// [`crate::vfs::Vfs::may_remove_with_streams`].
    pub fn may_open_stream(&self, base: NodeId, access: Rights, share: Rights) -> Result<(), Refused> {
        if !access.any() || share.delete {
            return Ok(());
        }
        let deletes = |known: &Node| known.holders.deletes();
        if self.shard(base).get(&base).is_some_and(deletes) { Err(Refused::Sharing) } else { Ok(()) }
    }

    /// Whether every open of `node` may be kept only for a client's cache, and is closed when asked for: each has the
    /// right to cache handles.
    pub fn only_cached(&self, node: NodeId) -> bool {
        let cached = |known: &Node| {
            let keys = known.grants.handle_keys();
            known.holders.all_keys(|key| keys.contains(&key))
        };
        self.shard(node).get(&node).is_none_or(cached)
    }

    /// Whether `node` is open, for any purpose.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.shard(node).get(&node).is_some_and(|known| !known.holders.is_empty())
    }

    /// All open nodes.
    pub fn open_nodes(&self) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.extend(shard.iter().filter(|(_, known)| !known.holders.is_empty()).map(|(node, _)| *node));
        }
        nodes
    }

    /// The number of opens of a node by clients; delegations are none.
    pub fn count(&self, node: NodeId) -> usize {
        self.shard(node).get(&node).map_or(0, |known| known.holders.of_clients())
    }

    /// The number of opens of a node with this key.
    pub fn count_of(&self, node: NodeId, key: Key) -> usize {
        self.shard(node).get(&node).map_or(0, |known| known.holders.count_of(key))
    }

    /// Whether the node is removed at its last close. After that close it no longer counts as existing.
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
