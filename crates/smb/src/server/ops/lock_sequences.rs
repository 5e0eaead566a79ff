//! LOCKs that a client repeats because it does not know their result.
//!
//! Spec: [MS-SMB2] 3.3.5.14 (LockSequence). Owns the LOCKs that an open has seen.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    // Every update of this table is one call that cannot panic half-way, so a poisoned lock is harmless.
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
