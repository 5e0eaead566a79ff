//! One open of a node: its accesses, and its end.
//!
//! [MS-FSA] 2.1.5.3 and 2.1.5.4 (reads and writes against locks), 2.1.5.5 (close), 2.1.5.8, 2.1.5.9 (locks). An open
//! is an entry in the table of opens, from [`Opens::open`] until it is closed or dropped, and owns its byte-range
//! locks. Names are not removed here: the last close returns a [`Removal`], and the caller removes the name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use weft_machine::recorder::{self, Hop};
use weft_machine::{Time, rt};

use super::grants::Wish;
use super::holders::Ending;
use super::locks::{Intent, LockedRange, Owner};
use super::ranges::Wait;
use super::{Access, Caching, Form, Holder, Key, Node, Opens, Range, Refused, Rights};
use crate::vfs::NodeId;

/// One open of a node. Dropping it closes it; [`Open::close`] also tells whether the name must be removed now.
#[derive(Debug)]
pub struct Open {
    pub(super) table: Arc<Opens>,
    pub(super) node: NodeId,
    pub(super) id: u64,
    pub(super) key: Key,
    /// The number of byte-range locks of the node.
    pub(super) locks: Arc<AtomicUsize>,
    /// The number of caching rights of the node that a write breaks.
    pub(super) readers: Arc<AtomicUsize>,
    pub(super) closed: AtomicBool,
    /// See [`super::Opening::past_grace`].
    pub(super) past_grace: bool,
}

impl Open {
    /// The node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The opener's key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// `None` once closed: a request overtaken by the close of its handle changes nothing.
    fn with<T>(&self, act: impl FnOnce(&mut Node, u64) -> T) -> Option<T> {
        let mut shard = self.table.shard(self.node);
        let known = shard.get_mut(&self.node)?;
        known.holders.contains(self.id).then(|| act(known, self.id))
    }

    fn at_the_end(&self, change: impl FnOnce(&mut Ending)) {
        self.with(|known, id| known.holders.ending(id).map(change));
    }

    /// Changes access and share mode (another OPEN by the same NFSv4 owner, OPEN_DOWNGRADE); on a conflict with
    /// another open everything stays unchanged.
    pub fn change(&self, access: Rights, share: Rights) -> Result<(), Refused> {
        let changed = self.with(|known, id| {
            known.holders.change(id, access, share)?;
            Ok(known.grants.changed())
        });
        changed.unwrap_or(Err(Refused::NotLocked))?.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Changes by this open, including the removal of the name, do not break the caching right of the directory held
    /// under this key.
    pub fn set_parent(&self, parent: Option<Key>) {
        self.at_the_end(|ending| ending.parent = parent);
    }

    /// Removes the node's name when this open and all others are closed.
    pub fn set_delete_on_close(&self) {
        self.at_the_end(|ending| ending.delete_on_close = true);
    }

    /// Sets or clears the removal of the node's name at the last close. Until then nobody can open it again.
    pub fn set_delete_pending(&self, pending: bool) {
        self.with(|known, id| {
            known.delete_pending = pending;
            known.deleted_by = known.holders.ending(id).and_then(|ending| ending.parent);
        });
    }

    /// Lets a pending deletion take effect when this open closes instead of the last one (POSIX semantics: the others
    /// keep a file without a name).
    pub fn set_delete_at_once(&self, at_once: bool) {
        self.at_the_end(|ending| ending.delete_at_once = at_once);
    }

    /// Whether the name is removed at the last close.
    pub fn delete_pending(&self) -> bool {
        self.with(|known, _| known.delete_pending).unwrap_or(false)
    }

    /// Whether no lock of another owner conflicts with reading the range.
    pub fn may_read(&self, offset: u64, len: u64) -> Result<(), Refused> {
        self.may_access(offset, len, Intent::Read)
    }

    /// Whether no lock conflicts with writing the range. Breaks read caches of others.
    pub fn may_write(&self, offset: u64, len: u64) -> Result<(), Refused> {
        self.may_access(offset, len, Intent::Write)?;
        self.writes();
        Ok(())
    }

    /// The same for an open of NFSv4: SMB locks are mandatory for it, POSIX locks are advisory, including its own.
    pub fn may_transfer(&self, offset: u64, len: u64, write: bool) -> Result<(), Refused> {
        let intent = if write { Intent::Write } else { Intent::Read };
        self.may_access_as(Some(Owner::Nobody), offset, len, intent)?;
        if write {
            self.writes();
        }
        Ok(())
    }

    /// Breaks read caches, without waiting: rights to write were already recalled when this was opened.
    pub(super) fn writes(&self) {
        if self.readers.load(Ordering::Acquire) != 0 {
            let _ = self.table.recall(self.node, Some(self.key), Access::Write);
        }
    }

    fn may_access(&self, offset: u64, len: u64, intent: Intent) -> Result<(), Refused> {
        self.may_access_as(None, offset, len, intent)
    }

    fn may_access_as(&self, by: Option<Owner>, offset: u64, len: u64, intent: Intent) -> Result<(), Refused> {
        // Its share mode, locks and caching rights may belong to others by now.
        if self.closed.load(Ordering::Acquire) {
            return Err(Refused::Closed);
        }
        // An empty range conflicts with no lock. A lock being set concurrently may come before or after this access:
        // both orders are valid.
        if len == 0 || self.locks.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let range = Range { offset, len: len.min((u64::MAX - offset).saturating_add(1)) };
        match self.with(|known, id| known.locks.conflict(range, intent, by.unwrap_or(Owner::Open(id)))) {
            Some(Some(_)) => Err(Refused::Locked),
            _ => Ok(()),
        }
    }

    /// Locks a range, or returns [`Refused::Locked`] at once.
    pub fn try_lock(&self, range: Range, exclusive: bool) -> Result<(), Refused> {
        if self.reclaimed_by().is_some() {
            return Err(Refused::Locked);
        }
        self.with(|known, id| known.locks.lock(range, exclusive, Owner::Open(id)))
            .unwrap_or(Err(Refused::NotLocked))?;
        self.writes();
        Ok(())
    }

    /// Locks a range once no other lock conflicts. `Refused::NotLocked` if the open was closed meanwhile.
    pub async fn lock(&self, range: Range, exclusive: bool) -> Result<(), Refused> {
        while let Some(deadline) = self.reclaimed_by() {
            recorder::at(Hop::Peer, self.table.reclaims.over(deadline)).await?;
        }
        let mut wait = Wait::new(&self.table, self.node);
        let locked = std::future::poll_fn(|cx| self.poll_lock(cx, &mut wait, range, exclusive));
        recorder::at(Hop::Peer, locked).await?;
        self.writes();
        Ok(())
    }

    /// Until when a client may reclaim a lock from before a restart that would conflict with this one.
    fn reclaimed_by(&self) -> Option<Time> {
        if self.past_grace { None } else { self.table.reclaims.deadline() }
    }

    fn poll_lock(
        &self,
        cx: &mut Context<'_>,
        wait: &mut Wait<'_>,
        range: Range,
        exclusive: bool,
    ) -> Poll<Result<(), Refused>> {
        let outcome = self.with(|known, id| match known.locks.lock(range, exclusive, Owner::Open(id)) {
            Err(Refused::Locked) => {
                wait.enter(&mut known.locks, cx.waker(), range, Owner::Open(id)).map(|()| Poll::Pending)
            }
            outcome => outcome.map(Poll::Ready),
        });
        match outcome {
            Some(Ok(Poll::Pending)) => Poll::Pending,
            Some(Ok(Poll::Ready(()))) => Poll::Ready(Ok(())),
            Some(Err(refused)) => Poll::Ready(Err(refused)),
            None => Poll::Ready(Err(Refused::NotLocked)),
        }
    }

    /// Releases one lock of this open on exactly this range; an exclusive one first.
    pub fn unlock(&self, range: Range) -> Result<(), Refused> {
        let waiting = self.with(|known, id| known.locks.unlock(range, Owner::Open(id)));
        waiting.unwrap_or(Err(Refused::NotLocked))?.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The ranges that this open has locked.
    pub fn locked(&self) -> Vec<LockedRange> {
        if self.locks.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.with(|known, id| known.locks.of(Owner::Open(id))).unwrap_or_default()
    }

    /// Whether this open holds any lock.
    pub fn has_locked(&self) -> bool {
        self.locks.load(Ordering::Acquire) != 0 && !self.locked().is_empty()
    }

    /// Requests caching rights for this open's key. Returns the key's rights, which may be less than requested or, if
    /// it had more, more; and whether they are being recalled.
    pub fn request(&self, form: Form, caching: Caching, holder: Arc<dyn Holder>) -> (Caching, bool) {
        let key = self.key;
        self.with(|known, _| {
            let (alone, locked) = (known.holders.is_alone(key), !known.locks.is_empty());
            let unwritten = known.holders.is_unwritten(key);
            let delete_pending = known.delete_pending;
            known.grants.request(Wish {
                key,
                form,
                caching,
                alone,
                unwritten,
                locked,
                delete_pending,
                holder,
            })
        })
        .unwrap_or((Caching::NONE, false))
    }

    /// Keeps others from opening the node, if nobody has it open besides this: opens wait, and operations without an
    /// open are refused, until the result is dropped.
    pub fn alone(&self) -> Result<Alone, Refused> {
        let alone = self.with(|known, _| {
            let alone = known.holders.len() == 1 && !known.alone && !known.removing;
            known.alone |= alone;
            alone
        });
        match alone {
            Some(true) => Ok(Alone { table: self.table.clone(), node: self.node }),
            Some(false) | None => Err(Refused::Sharing),
        }
    }

    /// Closes, and tells whether the node's name must be removed now. Then the caller removes it and drops the
    /// [`Removal`]; until then the node cannot be opened. A second close does nothing.
    pub fn close(&self) -> Option<Removal> {
        self.leave()
    }

    fn leave(&self) -> Option<Removal> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return None;
        }
        let mut shard = self.table.shard(self.node);
        let known = shard.get_mut(&self.node)?;
        let (mut at_once, mut parent, mut events) = (false, None, Vec::new());
        if let Some(ending) = known.holders.remove(self.id) {
            (at_once, parent) = (ending.delete_at_once, ending.parent);
            if ending.delete_on_close && !known.delete_pending {
                (known.delete_pending, known.deleted_by) = (true, parent);
                // Like a FileDispositionInformation: handles kept only for a cache delay the deletion. Nobody waits,
                // because the name is removed with the last of them in any case.
                known.grants.recall(self.node, Some(self.key), Access::Handle, rt::now(), &mut events);
            }
        }
        let waiting = known.locks.release(Owner::Open(self.id));
        let last_of_key = !known.holders.has(self.key);
        let freed = known.grants.closed(self.key, last_of_key);
        let remove = (known.holders.is_empty() || at_once) && known.delete_pending && !known.removing;
        known.removing |= remove;
        // The open that marked it and the one that closes last both take part in the removal.
        let parent = parent.filter(|_| known.deleted_by == parent);
        self.table.forget_if_unused(&mut shard, self.node);
        drop(shard);
        self.table.tell(events);
        waiting.into_iter().for_each(Waker::wake);
        freed.wake();
        remove.then(|| Removal { table: self.table.clone(), node: self.node, parent })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(removal) = self.leave() {
            // Nobody took over the removal (a panic, or the whole table was dropped): the file stays, and can be
            // opened.
            tracing::warn!("{:?} was to be deleted on close, but its last open was dropped", self.node);
            drop(removal);
        }
    }
}

/// While this exists, nobody else opens its node: see [`Open::alone`].
#[derive(Debug)]
#[must_use = "others can open the node once this is dropped"]
pub struct Alone {
    table: Arc<Opens>,
    node: NodeId,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut shard = self.table.shard(self.node);
        let mut waiting = Vec::new();
        if let Some(known) = shard.get_mut(&self.node) {
            known.alone = false;
            waiting = known.grants.changed();
        }
        self.table.forget_if_unused(&mut shard, self.node);
        drop(shard);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A name that must be removed now; while this exists, its node cannot be opened.
#[derive(Debug)]
#[must_use = "the file is removed by whoever holds this"]
pub struct Removal {
    table: Arc<Opens>,
    /// The node to remove.
    node: NodeId,
    parent: Option<Key>,
}

impl Removal {
    /// The node to remove.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The key under which the directory may stay cached: see [`Open::set_parent`].
    pub fn parent(&self) -> Option<Key> {
        self.parent
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let mut shard = self.table.shard(self.node);
        let mut waiting = Vec::new();
        if let Some(known) = shard.get_mut(&self.node) {
            known.removing = false;
            known.delete_pending = false;
            waiting = known.grants.changed();
        }
        self.table.forget_if_unused(&mut shard, self.node);
        drop(shard);
        waiting.into_iter().for_each(Waker::wake);
    }
}
