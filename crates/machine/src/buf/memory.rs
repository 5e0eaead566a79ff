//! The memory of a pool, as its shares, its buffers and the requests that wait for it hold it.
//!
//! A buffer keeps a [`Handle`] of the share that it was taken of, and gives its piece back to that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CACHED_ORDERS;
use super::arena::{Mappings, Piece};
use super::budget::{Budget, ROOT, Wakers};
use super::cache::Caches;

pub(super) struct Memory {
    pub(super) mappings: Mappings,
    pub(super) caches: Caches,
    pub(super) budget: Mutex<Budget>,
}

impl Memory {
    // Only a failed small allocation can panic while the lock is held; the budget is consistent even then.
    pub(super) fn lock(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` under the lock, and its wakers afterwards.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Budget, &Caches, &mut Wakers) -> T) -> T {
        let mut wakers = Wakers::default();
        let result = change(&mut self.lock(), &self.caches, &mut wakers);
        wakers.wake();
        result
    }
}

/// The common part of a share's handles.
pub(super) struct Handle {
    pub(super) memory: Arc<Memory>,
    pub(super) share: usize,
}

impl Handle {
    /// Whether blocks of this order use the caches, whose blocks belong to the whole pool.
    pub(super) fn caches(&self, order: u8) -> bool {
        self.share == ROOT && usize::from(order) < CACHED_ORDERS
    }

    pub(super) fn give(&self, piece: Piece) {
        if self.caches(piece.order) && self.memory.caches.keep(piece) {
            return;
        }
        self.memory.with(|budget, caches, wakers| budget.give(self.share, piece, caches, wakers));
    }

    /// Cancels request `id`.
    pub(super) fn give_up(&self, id: u64) {
        self.memory.with(|budget, caches, wakers| budget.give_up(id, caches, wakers));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.memory.lock().let_go(self.share);
    }
}
