//! POSIX byte-range locks in the table, for NLM and NFSv4.
//!
//! RFC 8881 18.10 to 18.12 (LOCK, LOCKT, LOCKU); fcntl(2). The rules are in [`super::locks`]. Deadlocks between
//! waiters are not detected, and protocols map their lock owners themselves.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use weft_machine::recorder::{self, Hop};

use super::locks::{Intent, LockedRange, Locks, Owner};
use super::{Access, Conflict, Key, LockOwner, Opens, Range, Refused, SetFailed};
use crate::vfs::NodeId;

/// A task's wait for a lock. Dropping it leaves nothing behind.
pub(super) struct Wait<'a> {
    opens: &'a Opens,
    node: NodeId,
    /// Its number, once it is registered.
    number: Option<u64>,
}

impl<'a> Wait<'a> {
    pub(super) fn new(opens: &'a Opens, node: NodeId) -> Wait<'a> {
        Wait { opens, node, number: None }
    }

    /// Registers the task to be woken when the conflict may be gone.
    pub(super) fn enter(
        &mut self,
        locks: &mut Locks,
        waker: &Waker,
        range: Range,
        owner: Owner,
    ) -> Result<(), Refused> {
        let number = *self.number.get_or_insert_with(|| self.opens.number());
        locks.wait(number, waker, range, owner)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        if let Some(known) = self.opens.shard(self.node).get_mut(&self.node) {
            known.locks.give_up(number);
        }
    }
}

impl Opens {
    /// Locks a range for `owner` in place of its existing locks there, or returns the conflict at once.
    pub fn try_set_range(
        &self,
        node: NodeId,
        owner: LockOwner,
        range: Range,
        exclusive: bool,
    ) -> Result<(), SetFailed> {
        self.try_set_range_as(node, None, owner, range, exclusive)
    }

    /// The same for a client that may cache the node, and keeps that right.
    pub fn try_set_range_as(
        &self,
        node: NodeId,
        by: Option<Key>,
        owner: LockOwner,
        range: Range,
        exclusive: bool,
    ) -> Result<(), SetFailed> {
        let mut shard = self.shard(node);
        let done = self.known(&mut shard, node).locks.set(range, owner, Some(exclusive));
        self.forget_if_unused(&mut shard, node);
        drop(shard);
        done?.into_iter().for_each(Waker::wake);
        // Another client's read cache would hide data that others see.
        let _ = self.recall(node, by, Access::Write);
        Ok(())
    }

    /// The same, waiting until nothing conflicts. Dropping the future cancels the wait.
    pub async fn set_range(
        &self,
        node: NodeId,
        owner: LockOwner,
        range: Range,
        exclusive: bool,
    ) -> Result<(), Refused> {
        let mut wait = Wait::new(self, node);
        let set = poll_fn(|cx| match self.try_set_range(node, owner, range, exclusive) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(SetFailed::Refused(refused)) => Poll::Ready(Err(refused)),
            Err(SetFailed::Conflict(_)) => {
                let mut shard = self.shard(node);
                let known = self.known(&mut shard, node);
                let still = known.locks.conflict(range, Intent::Lock { exclusive }, Owner::Posix(owner));
                let waits = wait.enter(&mut known.locks, cx.waker(), range, Owner::Posix(owner));
                if still.is_none() {
                    // The conflict ended in between.
                    cx.waker().wake_by_ref();
                }
                self.forget_if_unused(&mut shard, node);
                waits.map_or_else(|refused| Poll::Ready(Err(refused)), |()| Poll::Pending)
            }
        });
        recorder::at(Hop::Peer, set).await
    }

    /// Waits until nothing conflicts with `owner`, without taking the lock: another may be faster.
    pub async fn range_freed(
        &self,
        node: NodeId,
        owner: LockOwner,
        range: Range,
        exclusive: bool,
    ) -> Result<(), Refused> {
        let mut wait = Wait::new(self, node);
        let freed = poll_fn(|cx| {
            let mut shard = self.shard(node);
            let Some(known) = shard.get_mut(&node) else { return Poll::Ready(Ok(())) };
            match known.locks.conflict(range, Intent::Lock { exclusive }, Owner::Posix(owner)) {
                None => Poll::Ready(Ok(())),
                Some(_) => {
                    let waits = wait.enter(&mut known.locks, cx.waker(), range, Owner::Posix(owner));
                    waits.map_or_else(|refused| Poll::Ready(Err(refused)), |()| Poll::Pending)
                }
            }
        });
        recorder::at(Hop::Peer, freed).await
    }

    /// Unlocks a range of `owner`: any part of its locks, or none.
    pub fn clear_range(&self, node: NodeId, owner: LockOwner, range: Range) -> Result<(), Refused> {
        let mut shard = self.shard(node);
        let Some(known) = shard.get_mut(&node) else { return Ok(()) };
        let done = known.locks.set(range, owner, None);
        self.forget_if_unused(&mut shard, node);
        drop(shard);
        match done {
            Ok(waiting) => waiting.into_iter().for_each(Waker::wake),
            Err(SetFailed::Refused(refused)) => return Err(refused),
            Err(SetFailed::Conflict(_)) => unreachable!("nothing is in the way of an unlock"),
        }
        Ok(())
    }

    /// The lock that would conflict with `owner`, if any.
    pub fn test_range(
        &self,
        node: NodeId,
        owner: LockOwner,
        range: Range,
        exclusive: bool,
    ) -> Option<Conflict> {
        let shard = self.shard(node);
        shard.get(&node)?.locks.conflict(range, Intent::Lock { exclusive }, Owner::Posix(owner))
    }

    /// Releases all ranges of `owner` in one node.
    pub fn release_ranges(&self, node: NodeId, owner: LockOwner) {
        let mut shard = self.shard(node);
        let Some(known) = shard.get_mut(&node) else { return };
        let waiting = known.locks.release(Owner::Posix(owner));
        self.forget_if_unused(&mut shard, node);
        drop(shard);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Releases all ranges of `owner` in every node, for a client that is gone. Walks the whole table.
    pub fn release_owner(&self, owner: LockOwner) {
        for shard in 0..super::SHARDS {
            let holding: Vec<NodeId> = {
                let shard = self.shard(NodeId(shard as u64));
                let holds = shard.iter().filter(|(_, known)| known.locks.holds(Owner::Posix(owner)));
                holds.map(|(node, _)| *node).collect()
            };
            for node in holding {
                self.release_ranges(node, owner);
            }
        }
    }

    /// Whether `owner` holds any range of `node` (NFS4ERR_LOCKS_HELD).
    pub fn holds_ranges(&self, node: NodeId, owner: LockOwner) -> bool {
        self.shard(node).get(&node).is_some_and(|known| known.locks.holds(Owner::Posix(owner)))
    }

    /// The ranges of `owner` in `node`.
    pub fn ranges_of(&self, node: NodeId, owner: LockOwner) -> Vec<LockedRange> {
        let shard = self.shard(node);
        shard.get(&node).map(|known| known.locks.of(Owner::Posix(owner))).unwrap_or_default()
    }

    /// Whether no mandatory lock of SMB conflicts with a READ or WRITE over NFS; POSIX locks are advisory for it.
    pub fn may_transfer(&self, node: NodeId, range: Range, write: bool) -> Result<(), Refused> {
        if self.is_empty() {
            return Ok(());
        }
        let intent = if write { Intent::Write } else { Intent::Read };
        let shard = self.shard(node);
        match shard.get(&node).and_then(|known| known.locks.conflict(range, intent, Owner::Nobody)) {
            Some(_) => Err(Refused::Locked),
            None => Ok(()),
        }
    }
}
