//! The end of all connections: a flag, and whom to wake when it is raised.
//!
//! Owns: one waker per connection that sleeps. Does not: wait for anybody.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use slab::Slab;

/// Shared by all connections, on all cores.
#[derive(Default)]
pub struct Drain {
    begun: AtomicBool,
    sleepers: Mutex<Slab<Option<Waker>>>,
}

/// A connection's place in it.
pub struct Drainee<'a> {
    drain: &'a Drain,
    key: usize,
    /// What the table holds, so that the lock is taken once per task and not once per sleep.
    known: Option<Waker>,
}

impl Drain {
    /// Ends it: every connection that sleeps looks again.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        self.sleepers().iter_mut().filter_map(|(_, waker)| waker.take()).for_each(Waker::wake);
    }

    /// A connection's place; leave by dropping it.
    pub fn join(&self) -> Drainee<'_> {
        Drainee { drain: self, key: self.sleepers().insert(None), known: None }
    }

    // Nothing under the lock can panic half-way.
    fn sleepers(&self) -> MutexGuard<'_, Slab<Option<Waker>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drainee<'_> {
    /// Whether the end has come; if not, `cx` is woken when it does.
    pub fn poll(&mut self, cx: &Context<'_>) -> bool {
        if !self.known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.known = Some(cx.waker().clone());
            if let Some(slot) = self.drain.sleepers().get_mut(self.key) {
                *slot = Some(cx.waker().clone());
            }
        }
        // After the waker is known: a begin() in between either sees it or is seen here.
        self.drain.begun.load(Ordering::SeqCst)
    }
}

impl Drop for Drainee<'_> {
    fn drop(&mut self) {
        self.drain.sleepers().try_remove(self.key);
    }
}
