//! Caching rights of one node: SMB oplocks and leases, and NFSv4 delegations, as one concept.
//!
//! [MS-FSA] 2.1.4.12 (what an access breaks), 2.1.5.18 (requests), 2.1.5.19 (acknowledgments); RFC 8881 10.4. This
//! module owns the rights and the recalls in progress. It takes no mutex, does not wait, and does not notify holders:
//! it returns the notifications, and the table of opens sends them after it has released its mutex.
//!
//! A right belongs to a [`Key`], not to an open: all opens of a lease have one key, and an access by a key never
//! breaks that key's own rights. A recall must be acknowledged if its holder keeps a part of the right, or if it
//! takes the right to write or to keep handles; until then, or until [`BREAK_TIMEOUT`], the holder keeps all its
//! rights, and accesses that would see stale data wait.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use weft_machine::Time;

use super::Refused;
use super::locks::MAX_WAITING;
use crate::vfs::NodeId;

/// How long a holder may take to acknowledge by default: Windows allows 35 seconds ([MS-SMB2] 3.3.2.1), and a waiting
/// client must have its answer by then.
pub const BREAK_TIMEOUT: Duration = Duration::from_millis(34_500);
/// Maximum number of caching rights of one node, over all clients.
pub const MAX_GRANTS: usize = 4096;

/// What a client may do without asking the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caching {
    /// Answer reads from its memory.
    pub read: bool,
    /// Delay writes, and handle byte-range locks itself.
    pub write: bool,
    /// Keep the handle open after its user closed it.
    pub handle: bool,
}

impl Caching {
    /// Nothing.
    pub const NONE: Caching = Caching { read: false, write: false, handle: false };
    /// A level II oplock, a read lease.
    pub const R: Caching = Caching { read: true, ..Caching::NONE };
    /// An exclusive oplock.
    pub const RW: Caching = Caching { write: true, ..Caching::R };
    /// A read lease with handles, a read delegation.
    pub const RH: Caching = Caching { handle: true, ..Caching::R };
    /// A batch oplock, a write delegation.
    pub const RWH: Caching = Caching { write: true, handle: true, ..Caching::R };
    const W: Caching = Caching { write: true, ..Caching::NONE };
    const H: Caching = Caching { handle: true, ..Caching::NONE };

    /// The rights in both.
    #[must_use]
    pub fn and(self, other: Caching) -> Caching {
        Caching {
            read: self.read && other.read,
            write: self.write && other.write,
            handle: self.handle && other.handle,
        }
    }

    /// The rights that `other` lacks.
    #[must_use]
    pub fn without(self, other: Caching) -> Caching {
        Caching {
            read: self.read && !other.read,
            write: self.write && !other.write,
            handle: self.handle && !other.handle,
        }
    }

    /// Whether it includes all of `other`.
    pub fn contains(self, other: Caching) -> bool {
        other.without(self) == Caching::NONE
    }
}

/// The kind of a right, which decides what a recall leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// None, level II (`R`), exclusive (`RW`) or batch (`RWH`): breaks to level II or to nothing.
    Oplock,
    /// Any of `R`, `RH`, `RW`, `RWH`: loses the conflicting rights and keeps the rest.
    Lease,
    /// Read (`RH`) or write (`RWH`): is recalled completely.
    Delegation,
}

/// The owner of rights and accesses: an open with an oplock, a lease, an NFSv4 client. Made by [`super::Opens::key`];
/// a number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key(pub(super) u64);

/// An intended access to a node, as far as it matters for caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Open it for more than its attributes.
    Open,
    /// Open it for writing, or so that others may not read it.
    OpenToWrite,
    /// Open it and drop its data.
    Overwrite,
    /// Read data.
    Read,
    /// Change data or size, or lock a range.
    Write,
    /// An access that another's open forbids, if that open may only exist because its client has no reason to close
    /// it. NFSv4 clients close unused files, so delegations are not affected.
    Close,
    /// Take its name away.
    Handle,
    /// Change its name.
    Rename,
    /// Change what is in it: it is a directory.
    Children,
}

impl Access {
    fn opens(self) -> bool {
        matches!(self, Access::Open | Access::OpenToWrite | Access::Overwrite)
    }

    /// BreakCacheState of [MS-FSA] 2.1.4.12.
    fn breaks(self) -> Caching {
        match self {
            Access::Open | Access::OpenToWrite | Access::Read => Caching::W,
            Access::Overwrite | Access::Write | Access::Children => Caching::RW,
            Access::Close | Access::Handle | Access::Rename => Caching::H,
        }
    }
}

/// A right to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// The node.
    pub node: NodeId,
    /// The holder's key.
    pub key: Key,
    /// The holder's rights so far.
    pub from: Caching,
    /// The remaining rights.
    pub to: Caching,
    /// Whether the holder keeps all rights until it acknowledges; otherwise they are already gone.
    pub acknowledge: bool,
    /// Whether this is another step of a recall that the holder has just acknowledged.
    pub goes_on: bool,
}

/// The protocol that granted a right. Called on the core of the access, with no lock held, in the order of the
/// recalls of one right.
pub trait Holder: Send + Sync {
    /// Notifies the client. `false`: the client cannot be reached, and the right is removed at once, as if
    /// acknowledged.
    fn recall(&self, recall: Recall) -> bool;

    /// How long the client may take to acknowledge.
    fn patience(&self) -> Duration {
        BREAK_TIMEOUT
    }

    /// The client did not acknowledge in time and has lost all its rights.
    fn revoked(&self, node: NodeId, key: Key) {
        let _ = (node, key);
    }
}

/// A notification for a holder, sent once the table is unlocked.
pub(super) enum Event {
    Recall(Arc<dyn Holder>, Recall),
    Revoked(Arc<dyn Holder>, NodeId, Key),
}

/// Why an acknowledgment is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AckFailed {
    /// Nothing was recalled from this key, or it was too late.
    #[error("nothing was recalled")]
    NotRecalled,
    /// It keeps more than was left to it, which was this.
    #[error("more kept than was left")]
    TooMuch(Caching),
}

struct Breaking {
    /// The rights that the holder was told it may keep.
    to: Caching,
    /// The rights it may keep after further accesses: never more than `to`.
    then: Caching,
    deadline: Time,
}

struct Granted {
    key: Key,
    form: Form,
    caching: Caching,
    breaking: Option<Breaking>,
    holder: Arc<dyn Holder>,
}

impl Granted {
    /// The rights that remain if `access` proceeds.
    fn left(&self, access: Access) -> Caching {
        let lost = access.breaks();
        let has = self.caching;
        match self.form {
            _ if has == Caching::NONE => has,
            // RFC 8881 10.4: the holder of a delegation opens the file for reading without asking.
            Form::Delegation if access == Access::OpenToWrite => Caching::NONE,
            Form::Delegation if access == Access::Close || has.and(lost) == Caching::NONE => has,
            Form::Delegation => Caching::NONE,
            Form::Lease if lost.read => Caching::NONE,
            Form::Lease => has.without(lost),
            Form::Oplock if lost.read => Caching::NONE,
            Form::Oplock if lost.write => Caching::R,
            // Only a batch oplock protects a name; a sharing violation has already broken it (2.1.5.1.2).
            Form::Oplock if has.handle && access == Access::Rename => Caching::NONE,
            Form::Oplock => has,
        }
    }

    /// Whether `access` must wait for the acknowledgment: while the holder may have data that nobody else has, or a
    /// handle that it may still close. A delegation ends only when its client returns it.
    fn holds_up(&self, access: Access) -> bool {
        if self.form == Form::Delegation {
            return self.breaking.is_some();
        }
        let needed = Caching { read: false, ..access.breaks() };
        self.breaking.is_some() && self.caching.and(needed) != Caching::NONE
    }

    /// Further accesses need more while the holder has not answered: it is asked again. Like Windows, this takes
    /// handles first, and then the rest.
    fn go_on(&mut self, node: NodeId, then: Caching, now: Time, events: &mut Vec<Event>) {
        let step = if self.caching.handle && !then.handle { self.caching.without(Caching::H) } else { then };
        self.begin(node, step, now, events);
        if let Some(Event::Recall(_, recall)) = events.last_mut() {
            recall.goes_on = true;
        }
        if let Some(breaking) = &mut self.breaking {
            breaking.then = then;
        }
    }

    fn begin(&mut self, node: NodeId, to: Caching, now: Time, events: &mut Vec<Event>) {
        let acknowledge = self.caching.write || self.caching.handle;
        let recall = Recall { node, key: self.key, from: self.caching, to, acknowledge, goes_on: false };
        events.push(Event::Recall(self.holder.clone(), recall));
        if acknowledge {
            self.breaking = Some(Breaking { to, then: to, deadline: now + self.holder.patience() });
        } else {
            self.caching = to;
        }
    }
}

/// Work to do once the table is unlocked: waking waiters, and dropping holders, whose destructors may take locks.
#[derive(Default)]
#[must_use]
pub(super) struct Freed {
    waiting: Vec<Waker>,
    gone: Option<Granted>,
}

impl Freed {
    pub fn wake(self) {
        self.waiting.into_iter().for_each(Waker::wake);
        drop(self.gone);
    }
}

/// A request for rights together with an open.
pub(super) struct Wish {
    pub key: Key,
    pub form: Form,
    pub caching: Caching,
    /// Whether no other key has the node open for more than its attributes.
    pub alone: bool,
    /// Whether no other key has the node open for writing.
    pub unwritten: bool,
    /// Whether there are byte-range locks.
    pub locked: bool,
    pub delete_pending: bool,
    pub holder: Arc<dyn Holder>,
}

/// Counts of rights by kind, consulted at every open and close, however many clients cache the node.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// All rights.
    any: usize,
    reading: usize,
    writing: usize,
    handles: usize,
    /// Rights to read but not to write.
    readers: usize,
    /// Rights of each form.
    oplocks: usize,
    oplocks_reading: usize,
    batches: usize,
    delegations: usize,
    /// Rights being recalled.
    breaking: usize,
}

impl Tally {
    fn each(&mut self, granted: &Granted, change: impl Fn(&mut usize)) {
        let has = granted.caching;
        let (is_oplock, is_delegation) = (granted.form == Form::Oplock, granted.form == Form::Delegation);
        let any = has != Caching::NONE;
        let counts = [
            (&mut self.any, any),
            (&mut self.reading, has.read),
            (&mut self.writing, has.write),
            (&mut self.handles, has.handle),
            (&mut self.readers, has.read && !has.write),
            (&mut self.oplocks, is_oplock && any),
            (&mut self.oplocks_reading, is_oplock && has.read),
            (&mut self.batches, is_oplock && has.handle),
            (&mut self.delegations, is_delegation && any),
            (&mut self.breaking, granted.breaking.is_some()),
        ];
        counts.into_iter().filter(|(_, counts)| *counts).for_each(|(count, _)| change(count));
    }

    fn add(&mut self, granted: &Granted) {
        self.each(granted, |count| *count += 1);
    }

    fn take(&mut self, granted: &Granted) {
        self.each(granted, |count| *count -= 1);
    }

    /// Whether an access can break any right, or must wait for one.
    fn cares(&self, access: Access) -> bool {
        let lost = access.breaks();
        lost.read && self.reading > 0
            || lost.write && self.writing > 0
            || lost.handle && self.handles > 0
            || access == Access::OpenToWrite && self.delegations > 0
            || access.opens() && self.breaking > 0
    }
}

#[cfg(test)]
thread_local! {
    /// Number of rights examined because of another key's access.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The caching rights of a node.
#[derive(Default)]
pub(super) struct Grants {
    /// In the order in which their holders were added.
    by_key: BTreeMap<Key, Granted>,
    tally: Tally,
    /// Number of rights to read but not to write: what a write through an open must check.
    readers: Arc<AtomicUsize>,
    waiting: Vec<Waker>,
    /// Increases with every change that may end a wait.
    pub generation: u64,
}

impl Grants {
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Shared by the opens of the node: zero means that a write breaks nothing.
    pub fn readers(&self) -> Arc<AtomicUsize> {
        self.readers.clone()
    }

    /// Starts the recalls that `access` needs. `Some`: it must wait for acknowledgments, at most until then.
    pub fn recall(
        &mut self,
        node: NodeId,
        by: Option<Key>,
        access: Access,
        now: Time,
        events: &mut Vec<Event>,
    ) -> Option<Time> {
        let mut wait: Option<Time> = None;
        if !self.tally.cares(access) {
            return wait;
        }
        for granted in self.by_key.values_mut() {
            #[cfg(test)]
            LOOKS.set(LOOKS.get() + 1);
            // A writer breaks all level II oplocks, including its own: 2.1.4.12, BreakToNone.
            let level_two = granted.form == Form::Oplock && granted.caching == Caching::R;
            if by == Some(granted.key) && !(level_two && access == Access::Write) {
                continue;
            }
            let left = granted.left(access);
            match &mut granted.breaking {
                _ if left == granted.caching => {}
                Some(breaking) => breaking.then = breaking.then.and(left),
                None => {
                    self.tally.take(granted);
                    granted.begin(node, left, now, events);
                    self.tally.add(granted);
                }
            }
            // An open that arrives while a recall must give back more than was asked for waits for all of it.
            let opens = access.opens();
            let unfinished = granted.breaking.as_ref().is_some_and(|breaking| breaking.then != breaking.to);
            if (granted.holds_up(access) && left != granted.caching || opens && unfinished)
                && let Some(breaking) = &granted.breaking
            {
                wait = Some(wait.map_or(breaking.deadline, |first| first.min(breaking.deadline)));
            }
        }
        self.publish();
        wait
    }

    /// Grants as much of a request as possible; returns the key's rights, and whether they are being recalled.
    pub fn request(&mut self, wish: Wish) -> (Caching, bool) {
        let mut others = self.tally;
        if let Some(own) = self.by_key.get(&wish.key) {
            others.take(own);
        }
        let (unshared, unwritten) = (others.any == 0, others.writing == 0);
        let (oplocks, handles) = (others.oplocks_reading > 0, others.handles > others.batches);
        let mut possible = wish.caching;
        let refused = wish.form == Form::Delegation && (!wish.unwritten || wish.delete_pending);
        if wish.delete_pending && wish.form != Form::Oplock {
            possible.handle = false;
        }
        if !(possible.write && wish.alone && unshared) {
            possible.write = false;
            if wish.form == Form::Oplock || oplocks {
                possible.handle = false;
            }
            // 2.1.5.18.2: level II is not granted beside handle caching.
            if wish.locked || !unwritten || (wish.form == Form::Oplock && handles) {
                possible = Caching::NONE;
            }
        }
        if refused || (wish.form == Form::Delegation && possible != wish.caching) {
            // All or nothing.
            possible = Caching::NONE;
        }
        let (wanted, full) = (wish.caching, self.by_key.len() >= MAX_GRANTS);
        let answer = match self.by_key.get_mut(&wish.key) {
            Some(granted) if granted.breaking.is_some() => (granted.caching, true),
            Some(granted) => {
                // Rights grow to what was asked for, or stay.
                let whole = possible == wanted || granted.caching == Caching::NONE;
                if whole && possible.contains(granted.caching) {
                    self.tally.take(granted);
                    granted.caching = possible;
                    self.tally.add(granted);
                }
                (granted.caching, false)
            }
            None if possible == Caching::NONE || full => (Caching::NONE, false),
            None => {
                let Wish { key, form, holder, .. } = wish;
                let granted = Granted { key, form, caching: possible, breaking: None, holder };
                self.tally.add(&granted);
                self.by_key.insert(key, granted);
                (possible, false)
            }
        };
        self.publish();
        answer
    }

    /// The holder acknowledges and keeps these rights. If others need more by now, another recall follows at once.
    pub fn acknowledge(
        &mut self,
        node: NodeId,
        key: Key,
        keep: Caching,
        now: Time,
        events: &mut Vec<Event>,
    ) -> Result<Vec<Waker>, AckFailed> {
        let granted = self.by_key.get_mut(&key).ok_or(AckFailed::NotRecalled)?;
        let breaking = granted.breaking.as_ref().ok_or(AckFailed::NotRecalled)?;
        let (to, then) = (breaking.to, keep.and(breaking.then));
        if !to.contains(keep) {
            return Err(AckFailed::TooMuch(to));
        }
        self.tally.take(granted);
        (granted.breaking, granted.caching) = (None, keep);
        if then != keep {
            granted.go_on(node, then, now, events);
        }
        self.tally.add(granted);
        Ok(self.changed())
    }

    /// Ends recalls that were not acknowledged in time.
    pub fn expire(&mut self, node: NodeId, now: Time, events: &mut Vec<Event>) -> Vec<Waker> {
        for granted in self.by_key.values_mut() {
            if granted.breaking.as_ref().is_some_and(|breaking| breaking.deadline <= now) {
                self.tally.take(granted);
                (granted.breaking, granted.caching) = (None, Caching::NONE);
                self.tally.add(granted);
                events.push(Event::Revoked(granted.holder.clone(), node, granted.key));
            }
        }
        self.changed()
    }

    /// Removes all rights of a key.
    pub fn release(&mut self, key: Key) -> Freed {
        let gone = self.remove(key);
        Freed { waiting: self.changed(), gone }
    }

    /// An open of this key was closed. Oplocks and leases end with the last one.
    pub fn closed(&mut self, key: Key, last_of_key: bool) -> Freed {
        let ends = |granted: &Granted| last_of_key && granted.form != Form::Delegation;
        let gone = self.by_key.get(&key).is_some_and(ends).then(|| self.remove(key)).flatten();
        Freed { waiting: self.changed(), gone }
    }

    fn remove(&mut self, key: Key) -> Option<Granted> {
        let gone = self.by_key.remove(&key)?;
        self.tally.take(&gone);
        Some(gone)
    }

    /// Whether there is an oplock with handle caching.
    pub fn has_batch(&self) -> bool {
        self.tally.batches > 0
    }

    /// The keys that may keep handles open after their users have closed them. Delegations do not count: an NFSv4
    /// client closes unused files.
    pub fn handle_keys(&self) -> HashSet<Key> {
        let caches = |granted: &&Granted| granted.form != Form::Delegation && granted.caching.handle;
        self.by_key.values().filter(caches).map(|granted| granted.key).collect()
    }

    /// Whether there is an oplock.
    pub fn has_oplocks(&self) -> bool {
        self.tally.oplocks > 0
    }

    /// The rights of a key, and those that it will have after its acknowledgment.
    pub fn held(&self, key: Key) -> Option<(Caching, Option<Caching>)> {
        let granted = self.by_key.get(&key)?;
        Some((granted.caching, granted.breaking.as_ref().map(|breaking| breaking.to)))
    }

    /// Registers a waiting task. One entry per task: tasks that gave up are removed with the next change.
    pub fn wait(&mut self, waker: &Waker) -> Result<(), Refused> {
        self.waiting.retain(|known| !known.will_wake(waker));
        if self.waiting.len() >= MAX_WAITING {
            return Err(Refused::Limit("tasks that wait for a caching right of a file"));
        }
        self.waiting.push(waker.clone());
        Ok(())
    }

    /// Another change that waiting tasks must notice.
    pub fn changed(&mut self) -> Vec<Waker> {
        self.generation += 1;
        self.publish();
        std::mem::take(&mut self.waiting)
    }

    fn publish(&self) {
        self.readers.store(self.tally.readers, Ordering::Release);
    }
}
