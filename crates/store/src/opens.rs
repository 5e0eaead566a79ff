//! The one table of opens: share modes, deletion at the last close, byte-range locks; for SMB and NFS alike.
//!
//! Spec: [MS-FSA] 2.1.5.1.2.2 (sharing), 2.1.5.5 (close), 2.1.4.10, 2.1.5.8 and 2.1.5.9 (byte-range locks).
//! Owns: who has which node open, and how. An [`Open`] leaves the table when it is dropped.
//! Does not: touch files. Who closes last is told to remove the name, and until that is done nobody opens the node.
//!
//! Cost: a READ or WRITE on an open without byte-range locks reads one atomic. NFS asks [`Opens::may`], which reads
//! one atomic while nobody has anything open. Everything else takes the mutex of one shard for a short walk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::vfs::{Error, NodeId};

/// Shards of the table: enough that cores seldom meet in one.
const SHARDS: usize = 64;
/// Byte-range locks of one node, of all its opens together.
pub const MAX_LOCKS: usize = 4096;
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

    /// Whether `self` asks for something that `others` does not allow.
    fn exceeds(self, allowed: Rights) -> bool {
        (self.read && !allowed.read) || (self.write && !allowed.write) || (self.delete && !allowed.delete)
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
    /// A named limit.
    #[error("limit reached: {0}")]
    Limit(&'static str),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Sharing | Refused::DeletePending | Refused::Locked => Error::Sharing,
            Refused::NotLocked => Error::Invalid,
            Refused::Limit(what) => Error::Limit(what),
        }
    }
}

/// A byte range, and how it is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes; `offset + len - 1` fits 64 bits.
    pub len: u64,
}

impl Range {
    /// `None` when it reaches beyond the last possible byte.
    pub fn new(offset: u64, len: u64) -> Option<Range> {
        (len == 0 || offset.checked_add(len - 1).is_some()).then_some(Range { offset, len })
    }

    /// [MS-FSA] 2.1.4.10: {0, 0} meets nothing; another empty range meets what it lies strictly inside.
    fn meets(self, other: Range) -> bool {
        let empty = |r: Range| r.offset == 0 && r.len == 0;
        let last = |r: Range| i128::from(r.offset) + i128::from(r.len) - 1;
        !empty(self)
            && !empty(other)
            && i128::from(self.offset) <= last(other)
            && last(self) >= i128::from(other.offset)
    }
}

/// What a range access is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Read,
    Write,
    Lock { exclusive: bool },
}

#[derive(Clone, Copy)]
struct Lock {
    range: Range,
    exclusive: bool,
    owner: u64,
}

struct Holder {
    id: u64,
    access: Rights,
    share: Rights,
    delete_on_close: bool,
    /// A pending deletion takes effect when this open closes, whoever else has the node open.
    delete_at_once: bool,
}

/// What is known about one node that is open.
#[derive(Default)]
struct Node {
    holders: Vec<Holder>,
    delete_pending: bool,
    /// Set by the last close until the name is gone.
    removing: bool,
    locks: Vec<Lock>,
    /// How many `locks` there are, for readers and writers, without the shard's mutex.
    lock_count: Arc<AtomicUsize>,
    waiting: Vec<Waker>,
}

impl Node {
    fn conflicts(&self, range: Range, intent: Intent, owner: u64) -> bool {
        self.locks.iter().filter(|lock| lock.range.meets(range)).any(|lock| match intent {
            // An exclusive lock keeps everybody else out, and its owner from locking twice.
            Intent::Lock { exclusive: true } => true,
            Intent::Lock { exclusive: false } | Intent::Read => lock.exclusive && lock.owner != owner,
            // A shared lock keeps everybody from writing, its owner too.
            Intent::Write => !lock.exclusive || lock.owner != owner,
        })
    }

    fn locks_changed(&mut self) -> Vec<Waker> {
        self.lock_count.store(self.locks.len(), Ordering::Release);
        std::mem::take(&mut self.waiting)
    }

    /// Whether a new open may do what it asks, next to those that exist.
    fn admits(&self, access: Rights, share: Rights) -> Result<(), Refused> {
        if self.delete_pending || self.removing {
            return Err(Refused::DeletePending);
        }
        let clash = |holder: &Holder| {
            holder.access.any() && (access.exceeds(holder.share) || holder.access.exceeds(share))
        };
        if access.any() && self.holders.iter().any(clash) { Err(Refused::Sharing) } else { Ok(()) }
    }
}

/// The opens of one share.
pub struct Opens {
    shards: [Mutex<HashMap<NodeId, Node>>; SHARDS],
    next: AtomicUsize,
    /// Nodes in the table, so that a server of NFS alone never takes a lock here.
    open_nodes: AtomicUsize,
}

impl Default for Opens {
    fn default() -> Opens {
        Opens {
            shards: std::array::from_fn(|_| Mutex::default()),
            next: AtomicUsize::new(1),
            open_nodes: AtomicUsize::new(0),
        }
    }
}

impl std::fmt::Debug for Opens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opens({} nodes)", self.open_nodes.load(Ordering::Relaxed))
    }
}

impl Opens {
    fn shard(&self, node: NodeId) -> MutexGuard<'_, HashMap<NodeId, Node>> {
        // Nodes are numbered in order; consecutive ones go to different shards. Each critical section leaves the map
        // whole, also when it panics for want of memory.
        self.shards[node.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens `node` for `access`, letting others do `share` meanwhile.
    pub fn open(self: &Arc<Opens>, node: NodeId, access: Rights, share: Rights) -> Result<Open, Refused> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) as u64;
        let mut shard = self.shard(node);
        if let Some(known) = shard.get(&node) {
            known.admits(access, share)?;
            if known.holders.len() >= MAX_OPENS_OF_A_NODE {
                return Err(Refused::Limit("opens of a file"));
            }
        } else {
            self.open_nodes.fetch_add(1, Ordering::Release);
        }
        let known = shard.entry(node).or_default();
        known.holders.push(Holder { id, access, share, delete_on_close: false, delete_at_once: false });
        Ok(Open {
            table: self.clone(),
            node,
            id,
            lock_count: known.lock_count.clone(),
            closed: AtomicBool::new(false),
        })
    }

    /// Whether somebody without an open (NFS) may do this to `node` now.
    pub fn may(&self, node: NodeId, access: Rights) -> Result<(), Refused> {
        if self.open_nodes.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.shard(node).get(&node).map_or(Ok(()), |known| known.admits(access, Rights::ALL))
    }

    /// Whether the name of `node` may be removed, replaced or changed by somebody without an open.
    pub fn may_remove(&self, node: NodeId) -> Result<(), Refused> {
        self.may(node, Rights::DELETE)
    }

    /// Whether anybody has `node` open, for whatever purpose.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.shard(node).get(&node).is_some_and(|known| !known.holders.is_empty())
    }

    /// How many opens a node has.
    pub fn count(&self, node: NodeId) -> usize {
        self.shard(node).get(&node).map_or(0, |known| known.holders.len())
    }

    /// Whether the node goes away with its last open.
    pub fn delete_pending(&self, node: NodeId) -> bool {
        self.shard(node).get(&node).is_some_and(|known| known.delete_pending)
    }

    fn forget_if_unused(&self, shard: &mut HashMap<NodeId, Node>, node: NodeId) {
        if shard.get(&node).is_some_and(|known| known.holders.is_empty() && !known.removing) {
            shard.remove(&node);
            self.open_nodes.fetch_sub(1, Ordering::Release);
        }
    }
}

/// One open of a node. Dropping it closes it; [`Open::close`] also says whether the name must go now.
#[derive(Debug)]
pub struct Open {
    table: Arc<Opens>,
    node: NodeId,
    id: u64,
    lock_count: Arc<AtomicUsize>,
    closed: AtomicBool,
}

impl Open {
    /// Which node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// `None` once closed: a request that was overtaken by the close of its handle changes nothing any more.
    fn with<T>(&self, act: impl FnOnce(&mut Node, u64) -> T) -> Option<T> {
        let mut shard = self.table.shard(self.node);
        let known = shard.get_mut(&self.node)?;
        known.holders.iter().any(|holder| holder.id == self.id).then(|| act(known, self.id))
    }

    /// Removes the node's name when this open closes (and all others have).
    pub fn set_delete_on_close(&self) {
        self.with(|known, id| {
            if let Some(holder) = known.holders.iter_mut().find(|holder| holder.id == id) {
                holder.delete_on_close = true;
            }
        });
    }

    /// Removes the node's name at the last close, or no longer. Until then nobody opens it again.
    pub fn set_delete_pending(&self, pending: bool) {
        self.with(|known, _| known.delete_pending = pending);
    }

    /// Lets a pending deletion take effect when this open closes, not when the last one does (POSIX semantics: the
    /// others keep a file without a name).
    pub fn set_delete_at_once(&self, at_once: bool) {
        self.with(|known, id| {
            if let Some(holder) = known.holders.iter_mut().find(|holder| holder.id == id) {
                holder.delete_at_once = at_once;
            }
        });
    }

    /// Whether the name goes away at the last close.
    pub fn delete_pending(&self) -> bool {
        self.with(|known, _| known.delete_pending).unwrap_or(false)
    }

    /// Whether this open's reads of the range are free of others' locks.
    pub fn may_read(&self, offset: u64, len: u64) -> Result<(), Refused> {
        self.may_access(offset, len, Intent::Read)
    }

    /// Whether this open's writes to the range are free of locks.
    pub fn may_write(&self, offset: u64, len: u64) -> Result<(), Refused> {
        self.may_access(offset, len, Intent::Write)
    }

    fn may_access(&self, offset: u64, len: u64, intent: Intent) -> Result<(), Refused> {
        // A lock that is being taken at this moment may come before or after this access: both are right.
        if self.lock_count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let range = Range { offset, len: len.min((u64::MAX - offset).saturating_add(1)) };
        match self.with(|known, id| known.conflicts(range, intent, id)) {
            Some(true) => Err(Refused::Locked),
            _ => Ok(()),
        }
    }

    /// Locks a range, or says [`Refused::Locked`] at once.
    pub fn try_lock(&self, range: Range, exclusive: bool) -> Result<(), Refused> {
        self.with(|known, id| known.lock(range, exclusive, id)).unwrap_or(Err(Refused::NotLocked))
    }

    /// Locks a range as soon as no other lock is in the way. `Refused::NotLocked` when the open was closed meanwhile.
    pub async fn lock(&self, range: Range, exclusive: bool) -> Result<(), Refused> {
        std::future::poll_fn(|cx| self.poll_lock(cx, range, exclusive)).await
    }

    fn poll_lock(&self, cx: &mut Context<'_>, range: Range, exclusive: bool) -> Poll<Result<(), Refused>> {
        let outcome = self.with(|known, id| {
            let outcome = known.lock(range, exclusive, id);
            if outcome == Err(Refused::Locked) {
                // One entry per waiting task: those that gave up leave with the next change.
                known.waiting.retain(|waker| !waker.will_wake(cx.waker()));
                known.waiting.push(cx.waker().clone());
            }
            outcome
        });
        match outcome {
            Some(Err(Refused::Locked)) => Poll::Pending,
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Ready(Err(Refused::NotLocked)),
        }
    }

    /// Takes back one lock that this open holds on exactly this range; an exclusive one first.
    pub fn unlock(&self, range: Range) -> Result<(), Refused> {
        let waiting = self.with(|known, id| {
            let mine = |lock: &Lock| lock.owner == id && lock.range == range;
            let exclusive = known.locks.iter().position(|lock| mine(lock) && lock.exclusive);
            let at = exclusive.or_else(|| known.locks.iter().rposition(mine)).ok_or(Refused::NotLocked)?;
            known.locks.remove(at);
            Ok(known.locks_changed())
        });
        waiting.unwrap_or(Err(Refused::NotLocked))?.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Closes, and says whether the node's name is to be removed now. Then the caller removes it and drops the
    /// [`Removal`]; until that the node cannot be opened. A second close does nothing.
    pub fn close(&self) -> Option<Removal> {
        self.leave().then(|| Removal { table: self.table.clone(), node: self.node })
    }

    fn leave(&self) -> bool {
        if self.closed.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut shard = self.table.shard(self.node);
        let Some(known) = shard.get_mut(&self.node) else { return false };
        let mut at_once = false;
        if let Some(at) = known.holders.iter().position(|holder| holder.id == self.id) {
            let holder = known.holders.swap_remove(at);
            known.delete_pending |= holder.delete_on_close;
            at_once = holder.delete_at_once;
        }
        known.locks.retain(|lock| lock.owner != self.id);
        // Whoever waits looks again: this may have been the lock in the way, or the waiter's own handle.
        let waiting = known.locks_changed();
        let remove = (known.holders.is_empty() || at_once) && known.delete_pending && !known.removing;
        known.removing |= remove;
        self.table.forget_if_unused(&mut shard, self.node);
        drop(shard);
        waiting.into_iter().for_each(Waker::wake);
        remove
    }
}

impl Node {
    fn lock(&mut self, range: Range, exclusive: bool, owner: u64) -> Result<(), Refused> {
        if self.conflicts(range, Intent::Lock { exclusive }, owner) {
            return Err(Refused::Locked);
        }
        if self.locks.len() >= MAX_LOCKS {
            return Err(Refused::Limit("byte-range locks of a file"));
        }
        self.locks.push(Lock { range, exclusive, owner });
        self.lock_count.store(self.locks.len(), Ordering::Release);
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.leave() {
            // Nobody took on the removal (a panic, or a table dropped whole): the file stays, and can be opened.
            tracing::warn!("{:?} was to be deleted on close, but its last open was dropped", self.node);
            drop(Removal { table: self.table.clone(), node: self.node });
        }
    }
}

/// A name that must be removed now; while this lives, its node cannot be opened.
#[derive(Debug)]
#[must_use = "the file is removed by whoever holds this"]
pub struct Removal {
    table: Arc<Opens>,
    /// What to remove.
    node: NodeId,
}

impl Removal {
    /// What to remove.
    pub fn node(&self) -> NodeId {
        self.node
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let mut shard = self.table.shard(self.node);
        if let Some(known) = shard.get_mut(&self.node) {
            known.removing = false;
            known.delete_pending = false;
        }
        self.table.forget_if_unused(&mut shard, self.node);
    }
}

#[cfg(test)]
mod tests;
