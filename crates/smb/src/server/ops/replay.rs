//! CREATEs that a client repeats because it does not know their result.
//!
//! Spec: [MS-SMB2] 3.3.5.9 and 3.3.5.9.10 (CreateGuid). Owns the CREATEs in progress or done by CreateGuid, at most
//! [`MAX_GUIDS`]. Answers are not stored: that of a repeated CREATE is built from the open. See also
//! [`super::lock_sequences`] and [`super::channel_sequence`].

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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of these tables is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
