//! Byte-range locks of one node: SMB's, exact and per open, and POSIX locks, merged and per lock owner.
//!
//! [MS-FSA] 2.1.4.10, 2.1.5.8, 2.1.5.9; RFC 8881 9 and fcntl(2) for the ranges of NLM and NFSv4. The table of opens
//! takes the mutex and waits.
//!
//! ```text
//!                         SMB, per open                 POSIX (NLM, NFSv4), per owner
//!   lock                  meets even its own            replaces its own: upgrades, downgrades
//!   unlock                exactly what was locked       any part: splits
//!   keeps others from     locking, reading, writing     locking; SMB also from reading and writing
//! ```
//!
//! The two kinds conflict with each other like two owners of one kind. POSIX locks are advisory among POSIX clients
//! and mandatory for SMB, whose clients know no other kind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use super::Refused;

/// Maximum number of byte-range locks of one node, over all owners.
pub const MAX_LOCKS: usize = 4096;
/// Maximum number of tasks waiting for a lock or a caching right of one node.
pub const MAX_WAITING: usize = 4096;

/// Locks held in the process.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Byte-range locks held in the process, over all protocols.
pub fn locks_held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// A byte range.
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

    /// A range as NFSv4 writes it: `u64::MAX` means to the end of the file, however it grows (RFC 8881 18.10). `None`
    /// if it is empty or reaches beyond the last possible byte. The very last byte, which no file has, is never
    /// locked.
    pub fn to_end(offset: u64, len: u64) -> Option<Range> {
        match len {
            0 => None,
            u64::MAX => Some(Range { offset, len: u64::MAX - offset }).filter(|range| range.len > 0),
            _ => Range::new(offset, len),
        }
    }

    /// Whether it reaches to the end of the file, however it grows: NFSv4 writes length `u64::MAX`.
    pub fn is_to_end(self) -> bool {
        self.len == u64::MAX - self.offset
    }

    /// The last byte; only for ranges that have one.
    fn last(self) -> u64 {
        self.offset + (self.len - 1)
    }

    fn between(first: u64, last: u64) -> Range {
        // The one range of 2^64 bytes is shortened by a byte that no file has.
        Range { offset: first, len: (last - first).saturating_add(1) }
    }

    /// [MS-FSA] 2.1.4.10: {0, 0} conflicts with nothing; another empty range conflicts with ranges that strictly
    /// contain it.
    pub(super) fn meets(self, other: Range) -> bool {
        let empty = |r: Range| r.offset == 0 && r.len == 0;
        let last = |r: Range| i128::from(r.offset) + i128::from(r.len) - 1;
        !empty(self)
            && !empty(other)
            && i128::from(self.offset) <= last(other)
            && last(self) >= i128::from(other.offset)
    }
}

/// A range that is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockedRange {
    /// The range.
    pub range: Range,
    /// Whether nobody else may lock any of it; otherwise others may lock it shared.
    pub exclusive: bool,
}

/// The owner of POSIX ranges: an NFSv4 lock owner, an NLM caller's process. The protocol maps its own name for it to
/// one of these ([`super::Opens::lock_owner`]); a number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LockOwner(pub(super) u64);

/// The conflicting lock: the answer of NFSv4's LOCK4denied and NLM's TEST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The locked range.
    pub range: Range,
    /// Whether the lock is exclusive.
    pub exclusive: bool,
    /// The owner; `None` for an SMB open.
    pub owner: Option<LockOwner>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Owner {
    Open(u64),
    Posix(LockOwner),
    /// Reads or writes over NFS; holds no locks.
    Nobody,
}

/// The purpose of a range access.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Read,
    Write,
    Lock { exclusive: bool },
}

#[derive(Clone, Copy)]
struct Lock {
    range: Range,
    exclusive: bool,
    owner: Owner,
}

impl Lock {
    /// Whether it prevents `by` from its intent, given that the ranges overlap.
    fn forbids(&self, intent: Intent, by: Owner) -> bool {
        match (self.owner, by, intent) {
            // An exclusive lock excludes everybody else, and prevents its owner from locking twice.
            (Owner::Open(_), Owner::Open(_), Intent::Lock { exclusive: true }) => true,
            (Owner::Open(_), Owner::Open(_), Intent::Lock { exclusive: false } | Intent::Read) => {
                self.exclusive && self.owner != by
            }
            // A shared lock prevents everybody from writing, including its owner.
            (Owner::Open(_), Owner::Open(_), Intent::Write) => !self.exclusive || self.owner != by,
            // A lock request of the same owner replaces its existing locks.
            (Owner::Posix(one), Owner::Posix(other), Intent::Lock { .. }) if one == other => false,
            (Owner::Posix(_), Owner::Posix(_) | Owner::Nobody, Intent::Read | Intent::Write) => false,
            (_, _, Intent::Lock { exclusive }) => self.exclusive || exclusive,
            (_, _, Intent::Read) => self.exclusive,
            (_, _, Intent::Write) => true,
        }
    }
}

/// A task that waits until nothing conflicts.
struct Waiter {
    waker: Waker,
    range: Range,
    owner: Owner,
}

/// The locks of a node.
#[derive(Default)]
pub(super) struct Locks {
    held: Vec<Lock>,
    /// The number of locks of each owner: most owners hold none, and need no search.
    by_owner: HashMap<Owner, usize>,
    /// The number of locks, for readers and writers, without the shard's mutex.
    count: Arc<AtomicUsize>,
    /// By the number of the wait.
    waiting: HashMap<u64, Waiter>,
}

#[cfg(test)]
thread_local! {
    /// Number of locks examined because an owner released all of its locks.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The bytes affected by these ranges, for matching waiters: sorted and disjoint.
struct Spans(Vec<(u64, u64)>);

impl Spans {
    fn of(ranges: impl IntoIterator<Item = Range>) -> Spans {
        let mut spans: Vec<_> = ranges.into_iter().map(Spans::one).collect();
        spans.sort_unstable();
        spans.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        Spans(spans)
    }

    /// First and last byte. An empty range matches the bytes on both sides of it.
    fn one(range: Range) -> (u64, u64) {
        match range.len {
            0 => (range.offset.saturating_sub(1), range.offset),
            _ => (range.offset, range.last()),
        }
    }

    fn meet(&self, range: Range) -> bool {
        let (first, last) = Spans::one(range);
        let at = self.0.partition_point(|span| span.1 < first);
        self.0.get(at).is_some_and(|span| span.0 <= last)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        HELD.fetch_sub(self.held.len(), Ordering::Relaxed);
    }
}

impl Locks {
    /// Shared by the opens of the node: zero means that no check is needed.
    pub fn count(&self) -> Arc<AtomicUsize> {
        self.count.clone()
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The ranges of an owner.
    pub fn of(&self, owner: Owner) -> Vec<LockedRange> {
        let held = self.held.iter().filter(|lock| lock.owner == owner);
        held.map(|lock| LockedRange { range: lock.range, exclusive: lock.exclusive }).collect()
    }

    pub fn conflict(&self, range: Range, intent: Intent, by: Owner) -> Option<Conflict> {
        let found = self.held.iter().find(|lock| lock.range.meets(range) && lock.forbids(intent, by))?;
        let owner = if let Owner::Posix(owner) = found.owner { Some(owner) } else { None };
        Some(Conflict { range: found.range, exclusive: found.exclusive, owner })
    }

    /// Adds an SMB lock.
    pub fn lock(&mut self, range: Range, exclusive: bool, owner: Owner) -> Result<(), Refused> {
        if self.conflict(range, Intent::Lock { exclusive }, owner).is_some() {
            return Err(Refused::Locked);
        }
        if self.held.len() >= MAX_LOCKS {
            return Err(Refused::Limit("byte-range locks of a file"));
        }
        self.held.push(Lock { range, exclusive, owner });
        self.counted(owner, 0, 1);
        Ok(())
    }

    /// Removes one SMB lock on exactly this range; an exclusive one first.
    pub fn unlock(&mut self, range: Range, owner: Owner) -> Result<Vec<Waker>, Refused> {
        let mine = |lock: &Lock| lock.owner == owner && lock.range == range;
        let exclusive = self.held.iter().position(|lock| mine(lock) && lock.exclusive);
        let at = exclusive.or_else(|| self.held.iter().rposition(mine)).ok_or(Refused::NotLocked)?;
        self.held.remove(at);
        self.counted(owner, 1, 0);
        Ok(self.freed([range], None))
    }

    /// Locks a range of a POSIX owner in place of its existing locks there, or (`None`) unlocks it. Its other locks
    /// are split as needed, and merged with neighbours of the same kind.
    pub fn set(
        &mut self,
        range: Range,
        owner: LockOwner,
        wish: Option<bool>,
    ) -> Result<Vec<Waker>, SetFailed> {
        if range.len == 0 {
            return Err(SetFailed::Refused(Refused::NotLocked));
        }
        if let Some(exclusive) = wish
            && let Some(conflict) = self.conflict(range, Intent::Lock { exclusive }, Owner::Posix(owner))
        {
            return Err(SetFailed::Conflict(conflict));
        }
        // A lock, and another piece of a split. An unlock adds at most one piece, and usually none: other owners'
        // locks must not prevent an owner from releasing its own.
        let splits = |lock: &Lock| {
            lock.owner == Owner::Posix(owner)
                && lock.range.offset < range.offset
                && range.last() < lock.range.last()
        };
        let added = if wish.is_some() { 2 } else { usize::from(self.held.iter().any(splits)) };
        if self.held.len() + added > MAX_LOCKS {
            return Err(SetFailed::Refused(Refused::Limit("byte-range locks of a file")));
        }
        let held_before = self.held.len();
        let (mut first, mut last) = (range.offset, range.last());
        let mut pieces = Vec::new();
        self.held.retain(|lock| {
            if lock.owner != Owner::Posix(owner) {
                return true;
            }
            let (from, to) = (lock.range.offset, lock.range.last());
            if wish == Some(lock.exclusive) {
                // An owner's locks of one kind neither overlap nor touch, so one pass is enough.
                let joins = from <= range.last().saturating_add(1) && range.offset <= to.saturating_add(1);
                if joins {
                    (first, last) = (first.min(from), last.max(to));
                }
                return !joins;
            }
            if from > range.last() || to < range.offset {
                return true;
            }
            if from < range.offset {
                pieces.push(Lock { range: Range::between(from, range.offset - 1), ..*lock });
            }
            if to > range.last() {
                pieces.push(Lock { range: Range::between(range.last() + 1, to), ..*lock });
            }
            false
        });
        self.held.append(&mut pieces);
        if let Some(exclusive) = wish {
            let range = Range::between(first, last);
            self.held.push(Lock { range, exclusive, owner: Owner::Posix(owner) });
        }
        self.counted(Owner::Posix(owner), held_before, self.held.len());
        // A range that is exclusively locked afterwards was not freed for anybody.
        Ok(self.freed((wish != Some(true)).then_some(range), None))
    }

    /// Releases all locks of `owner`.
    pub fn release(&mut self, owner: Owner) -> Vec<Waker> {
        let mut freed = Vec::new();
        if self.holds(owner) {
            self.held.retain(|lock| {
                #[cfg(test)]
                LOOKS.set(LOOKS.get() + 1);
                let goes = lock.owner == owner;
                if goes {
                    freed.push(lock.range);
                }
                !goes
            });
            self.counted(owner, freed.len(), 0);
        }
        // Tasks that wait through this handle must notice that it is closed.
        self.freed(freed, Some(owner))
    }

    pub fn holds(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// Registers a waiting task under the number of its wait, until it is woken or calls [`Locks::give_up`].
    pub fn wait(&mut self, number: u64, waker: &Waker, range: Range, owner: Owner) -> Result<(), Refused> {
        if self.waiting.len() >= MAX_WAITING && !self.waiting.contains_key(&number) {
            return Err(Refused::Limit("tasks that wait for a lock of a file"));
        }
        self.waiting.insert(number, Waiter { waker: waker.clone(), range, owner });
        Ok(())
    }

    /// Ends the wait.
    pub fn give_up(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// Updates the number of an owner's locks.
    fn counted(&mut self, owner: Owner, before: usize, after: usize) {
        let held = self.by_owner.entry(owner).or_default();
        *held = (*held + after).saturating_sub(before);
        HELD.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        if *held == 0 {
            self.by_owner.remove(&owner);
        }
        self.count.store(self.held.len(), Ordering::Release);
    }

    /// The tasks that wait for one of these released ranges, or in the name of `owner`. They check again.
    fn freed(&mut self, ranges: impl IntoIterator<Item = Range>, owner: Option<Owner>) -> Vec<Waker> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let (spans, none_left) = (Spans::of(ranges), self.held.is_empty());
        let hears = |waiter: &Waiter| none_left || owner == Some(waiter.owner) || spans.meet(waiter.range);
        self.waiting.extract_if(|_, waiter| hears(waiter)).map(|(_, waiter)| waiter.waker).collect()
    }
}

/// Why a POSIX range was not set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetFailed {
    /// A conflicting lock of another owner.
    Conflict(Conflict),
    /// An empty range, or a limit.
    Refused(Refused),
}
