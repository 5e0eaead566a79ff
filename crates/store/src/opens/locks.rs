//! Byte-range locks of one node: SMB's, exact and of an open, beside POSIX', merged and of a lock owner.
//!
//! Spec: [MS-FSA] 2.1.4.10, 2.1.5.8, 2.1.5.9; RFC 8881 9 and fcntl(2) for the ranges of NLM and NFSv4.
//! Owns: who holds which range. Does not: take a mutex or wait; the table of opens does both.
//!
//! ```text
//!                         SMB, per open                 POSIX (NLM, NFSv4), per owner
//!   lock                  meets even its own            replaces its own: upgrades, downgrades
//!   unlock                exactly what was locked       any part: splits
//!   keeps others from     locking, reading, writing     locking; SMB also from reading and writing
//! ```
//!
//! The two kinds conflict with each other as two owners of one kind do. POSIX locks are advisory among those who know
//! them and mandatory for SMB, whose clients know no other kind.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use super::Refused;

/// Byte-range locks of one node, of all its owners together.
pub const MAX_LOCKS: usize = 4096;
/// Tasks that wait for a lock or a caching right of one node.
pub const MAX_WAITING: usize = 4096;

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

    /// A range as NFSv4 writes it: `u64::MAX` means to the end of the file, however it grows (RFC 8881 18.10).
    /// `None` when it is empty or reaches beyond the last possible byte. The last byte of all, which no file has, is
    /// never locked.
    pub fn to_end(offset: u64, len: u64) -> Option<Range> {
        match len {
            0 => None,
            u64::MAX => Some(Range { offset, len: u64::MAX - offset }).filter(|range| range.len > 0),
            _ => Range::new(offset, len),
        }
    }

    /// Whether it reaches to the end of the file, however it grows: what NFSv4 writes as length `u64::MAX`.
    pub fn is_to_end(self) -> bool {
        self.len == u64::MAX - self.offset
    }

    /// The last byte; for ranges that have one.
    fn last(self) -> u64 {
        self.offset + (self.len - 1)
    }

    fn between(first: u64, last: u64) -> Range {
        // The one range of 2^64 bytes is cut by a byte that no file has.
        Range { offset: first, len: (last - first).saturating_add(1) }
    }

    /// [MS-FSA] 2.1.4.10: {0, 0} meets nothing; another empty range meets what it lies strictly inside.
    pub(super) fn meets(self, other: Range) -> bool {
        let empty = |r: Range| r.offset == 0 && r.len == 0;
        let last = |r: Range| i128::from(r.offset) + i128::from(r.len) - 1;
        !empty(self)
            && !empty(other)
            && i128::from(self.offset) <= last(other)
            && last(self) >= i128::from(other.offset)
    }
}

/// Somebody who holds POSIX ranges: an NFSv4 lock owner, an NLM caller's process. Whoever keeps the protocol's own
/// name for it maps that to one of these ([`super::Opens::lock_owner`]); a number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LockOwner(pub(super) u64);

/// The lock in the way: what NFSv4's LOCK4denied and NLM's TEST answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// What is locked.
    pub range: Range,
    /// Whether exclusively.
    pub exclusive: bool,
    /// By whom; `None` for an SMB open.
    pub owner: Option<LockOwner>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Owner {
    Open(u64),
    Posix(LockOwner),
    /// Reads or writes by NFS; holds nothing.
    Nobody,
}

/// What a range access is for.
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
    /// Whether it keeps `by` from what it is about, where the two ranges meet.
    fn forbids(&self, intent: Intent, by: Owner) -> bool {
        match (self.owner, by, intent) {
            // An exclusive lock keeps everybody else out, and its owner from locking twice.
            (Owner::Open(_), Owner::Open(_), Intent::Lock { exclusive: true }) => true,
            (Owner::Open(_), Owner::Open(_), Intent::Lock { exclusive: false } | Intent::Read) => {
                self.exclusive && self.owner != by
            }
            // A shared lock keeps everybody from writing, its owner too.
            (Owner::Open(_), Owner::Open(_), Intent::Write) => !self.exclusive || self.owner != by,
            // A lock request of the same owner replaces what it has.
            (Owner::Posix(one), Owner::Posix(other), Intent::Lock { .. }) if one == other => false,
            (Owner::Posix(_), Owner::Posix(_) | Owner::Nobody, Intent::Read | Intent::Write) => false,
            (_, _, Intent::Lock { exclusive }) => self.exclusive || exclusive,
            (_, _, Intent::Read) => self.exclusive,
            (_, _, Intent::Write) => true,
        }
    }
}

/// A task that waits until nothing is in its way.
struct Waiter {
    waker: Waker,
    range: Range,
    owner: Owner,
}

/// The locks of a node.
#[derive(Default)]
pub(super) struct Locks {
    held: Vec<Lock>,
    /// How many each owner holds: whoever holds none, as most do, has nothing to be looked for.
    by_owner: HashMap<Owner, usize>,
    /// How many are held, for readers and writers, without the shard's mutex.
    count: Arc<AtomicUsize>,
    /// By the number of the wait.
    waiting: HashMap<u64, Waiter>,
}

#[cfg(test)]
thread_local! {
    /// Locks that were looked at because an owner gave back all of his.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Which bytes somebody could wait for who waits for one of these ranges, or is freed by one: in order and apart.
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

    /// First byte and last. An empty range meets what has the bytes on both sides of it.
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

impl Locks {
    /// Shared by the opens of the node: zero means that nobody has to look.
    pub fn count(&self) -> Arc<AtomicUsize> {
        self.count.clone()
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What an owner holds: ranges, and whether exclusively.
    pub fn of(&self, owner: Owner) -> Vec<(Range, bool)> {
        let held = self.held.iter().filter(|lock| lock.owner == owner);
        held.map(|lock| (lock.range, lock.exclusive)).collect()
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

    /// Takes back one SMB lock on exactly this range; an exclusive one first.
    pub fn unlock(&mut self, range: Range, owner: Owner) -> Result<Vec<Waker>, Refused> {
        let mine = |lock: &Lock| lock.owner == owner && lock.range == range;
        let exclusive = self.held.iter().position(|lock| mine(lock) && lock.exclusive);
        let at = exclusive.or_else(|| self.held.iter().rposition(mine)).ok_or(Refused::NotLocked)?;
        self.held.remove(at);
        self.counted(owner, 1, 0);
        Ok(self.freed([range], None))
    }

    /// Locks a range of a POSIX owner in place of whatever it held there, or (`None`) holds nothing there any more.
    /// What remains of its other locks is split, and joined with neighbours of its kind.
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
        // A lock and one more piece of what it splits. An unlock leaves one more piece at most, and mostly none: others' locks must
        // not keep anybody from giving back his own.
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
                // Its own locks of one kind neither meet nor touch each other, so one look at each is enough.
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
        // What is held exclusively afterwards was not freed for anybody.
        Ok(self.freed((wish != Some(true)).then_some(range), None))
    }

    /// Takes back all that `owner` holds.
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
        // Whoever waits by this handle has to hear that it is closed.
        self.freed(freed, Some(owner))
    }

    pub fn holds(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// Remembers a task that waits, by the number of its wait, until it may find its way free or [`Locks::give_up`].
    pub fn wait(&mut self, number: u64, waker: &Waker, range: Range, owner: Owner) -> Result<(), Refused> {
        if self.waiting.len() >= MAX_WAITING && !self.waiting.contains_key(&number) {
            return Err(Refused::Limit("tasks that wait for a lock of a file"));
        }
        self.waiting.insert(number, Waiter { waker: waker.clone(), range, owner });
        Ok(())
    }

    /// The wait is over.
    pub fn give_up(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// An owner holds so many instead of so many.
    fn counted(&mut self, owner: Owner, before: usize, after: usize) {
        let held = self.by_owner.entry(owner).or_default();
        *held = (*held + after).saturating_sub(before);
        if *held == 0 {
            self.by_owner.remove(&owner);
        }
        self.count.store(self.held.len(), Ordering::Release);
    }

    /// Those who waited for one of these ranges, which somebody has given back, or in the name of `owner`. They look again.
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
    /// Somebody else's lock.
    Conflict(Conflict),
    /// An empty range, or a limit.
    Refused(Refused),
}
