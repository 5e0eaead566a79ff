//! Requests that a client repeats because it does not know their result.
//!
//! Spec: [MS-SMB2] 3.3.5.9 and 3.3.5.9.10 (CreateGuid), 3.3.5.14 (LockSequence). Owns the CREATEs in progress or done
//! by CreateGuid, at most [`MAX_GUIDS`], and the LOCKs that an open has seen. Answers are not stored: that of a
//! repeated CREATE is built from the open. See also [`super::channel_sequence`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weft_wire::smb2::{Guid, NtStatus};

use super::opens::Open;

/// Repeatable CREATEs, of all clients together.
const MAX_GUIDS: usize = 1 << 20;

/// ClientGuid and CreateGuid.
type Name = (Guid, Guid);

enum CreateState {
    InProgress,
    Done(Weak<Open>),
}

/// The repeatable CREATEs.
#[derive(Default)]
pub(crate) struct Creates(Mutex<HashMap<Name, CreateState>>);

/// Whether a CREATE with a CreateGuid is new.
pub(super) enum Begin {
    /// The first with its name.
    First(Begun),
    /// It was carried out before.
    Again(Arc<Open>),
}

/// A CREATE in progress; removed from the table if it fails.
pub(super) struct Begun {
    table: Arc<Creates>,
    name: Name,
}

impl Creates {
    /// Number of repeatable CREATEs.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Registers a CREATE; `replay` says whether its client believes that it is a repetition.
    pub(super) fn begin(self: &Arc<Creates>, name: Name, replay: bool) -> Result<Begin, NtStatus> {
        // Dropped after the lock, because its drop takes the lock.
        let open;
        let mut creates = lock(&self.0);
        match creates.get(&name) {
            Some(CreateState::InProgress) if replay => return Err(NtStatus::FILE_NOT_AVAILABLE),
            Some(CreateState::InProgress) => return Err(NtStatus::DUPLICATE_OBJECTID),
            Some(CreateState::Done(known)) => {
                open = known.upgrade().filter(|open| open.is_replayable());
                match &open {
                    Some(open) if replay => return Ok(Begin::Again(open.clone())),
                    Some(_) => return Err(NtStatus::DUPLICATE_OBJECTID),
                    None => {}
                }
            }
            None => {}
        }
        if creates.len() >= MAX_GUIDS {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        creates.insert(name, CreateState::InProgress);
        Ok(Begin::First(Begun { table: self.clone(), name }))
    }
}

/// How an open is found if its CREATE is repeated.
pub(super) struct Repeatable {
    table: Arc<Creates>,
    name: Name,
    user: Arc<str>,
    /// Whether the open is closed. Changes under the table's lock.
    closed: AtomicBool,
}

impl Repeatable {
    /// Whether it was opened by this user.
    pub(super) fn is_of(&self, user: &str) -> bool {
        *self.user == *user
    }

    /// Removes an open that is closed.
    pub(super) fn forget(&self, open: &Open) {
        let mut creates = lock(&self.table.0);
        self.closed.store(true, Ordering::Relaxed);
        let mine = |known: &CreateState| matches!(known, CreateState::Done(known) if std::ptr::eq(known.as_ptr(), open));
        if creates.get(&self.name).is_some_and(mine) {
            creates.remove(&self.name);
        }
    }
}

impl Begun {
    /// Records what it opened, while nobody else can close that.
    pub(super) fn opened(&self, open: &Open, user: &Arc<str>) {
        let (table, closed) = (self.table.clone(), AtomicBool::new(false));
        let create = Repeatable { table, name: self.name, user: user.clone(), closed };
        let first = open.create.set(create).is_ok();
        debug_assert!(first, "an open comes from one CREATE");
    }

    /// Marks it as done: its user can repeat it as long as nothing else was done with the open. This includes opens
    /// that are not durable, although 3.3.5.9.10 requires durability: otherwise a client could open a file twice.
    pub(super) fn done(self, open: &Arc<Open>) {
        open.set_replayable();
        let mut creates = lock(&self.table.0);
        // An open that is already closed has been removed, and nothing would remove it again.
        if open.create.get().is_some_and(|create| !create.closed.load(Ordering::Relaxed)) {
            creates.insert(self.name, CreateState::Done(Arc::downgrade(open)));
        }
        // Dropping `self` takes the lock.
        drop(creates);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut creates = lock(&self.table.0);
        if matches!(creates.get(&self.name), Some(CreateState::InProgress)) {
            creates.remove(&self.name);
        }
    }
}

/// LockSequenceArray: the last LOCK under each index.
#[derive(Default)]
pub(super) struct LockSequences(Mutex<HashMap<u8, u8>>);

impl LockSequences {
    /// Valid indexes are 1 to 64.
    const LAST: u32 = 64;

    fn index(sequence: u32) -> Option<(u8, u8)> {
        // LockSequenceNumber is the lower four bits (2.2.26).
        let (index, number) = (sequence >> 4, (sequence & 0xf) as u8);
        (1..=LockSequences::LAST).contains(&index).then_some((index as u8, number))
    }

    /// Whether this LOCK was carried out before; a different one under its index is forgotten.
    pub(super) fn was_done(&self, sequence: u32) -> bool {
        let Some((index, number)) = LockSequences::index(sequence) else { return false };
        let mut done = lock(&self.0);
        match done.get(&index) {
            Some(known) if *known == number => true,
            Some(_) => {
                done.remove(&index);
                false
            }
            None => false,
        }
    }

    /// The last LOCK under each index.
    pub(super) fn all(&self) -> Vec<(u8, u8)> {
        lock(&self.0).iter().map(|(index, number)| (*index, *number)).collect()
    }

    /// Restores the entries of the last run.
    pub(super) fn restore(&self, all: &[(u8, u8)]) {
        lock(&self.0).extend(all.iter().copied());
    }

    /// Removes a LOCK that was not carried out after all.
    pub(super) fn forget(&self, sequence: u32) {
        if let Some((index, _)) = LockSequences::index(sequence) {
            lock(&self.0).remove(&index);
        }
    }

    /// Records a LOCK that was carried out.
    pub(super) fn done(&self, sequence: u32) {
        if let Some((index, number)) = LockSequences::index(sequence) {
            lock(&self.0).insert(index, number);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of these tables is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_done_once() {
        let locks = LockSequences::default();
        let name = |index: u32, number: u32| index << 4 | number;
        assert!(!locks.was_done(name(1, 5)));
        locks.done(name(1, 5));
        assert!(locks.was_done(name(1, 5)));
        assert!(!locks.was_done(name(2, 5)));
        assert!(!locks.was_done(name(1, 6)), "a new one in its place");
        assert!(!locks.was_done(name(1, 5)), "which is then the one to be remembered");
        for index in [0, 65] {
            locks.done(name(index, 1));
            assert!(!locks.was_done(name(index, 1)), "index {index} counts for nothing");
        }
    }
}
