//! The end of all connections: a flag, and the wakers to call when it is raised.
//!
//! It holds one waker per sleeping connection, and waits for nobody.

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

/// A connection's registration.
pub struct Drainee<'a> {
    drain: &'a Drain,
    key: usize,
    /// The waker in the table, so that the lock is taken once per task and not once per sleep.
    known: Option<Waker>,
}

impl Drain {
    /// Raises the flag: every sleeping connection checks it again.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        self.sleepers().iter_mut().filter_map(|(_, waker)| waker.take()).for_each(Waker::wake);
    }

    /// Registers a connection until the result is dropped.
    pub fn join(&self) -> Drainee<'_> {
        Drainee { drain: self, key: self.sleepers().insert(None), known: None }
    }

    // Nothing under the lock can panic half-way.
    fn sleepers(&self) -> MutexGuard<'_, Slab<Option<Waker>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drainee<'_> {
    /// Whether the flag is raised; if not, `cx` is woken when it is.
    pub fn poll(&mut self, cx: &Context<'_>) -> bool {
        if !self.known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.known = Some(cx.waker().clone());
            if let Some(slot) = self.drain.sleepers().get_mut(self.key) {
                *slot = Some(cx.waker().clone());
            }
        }
        // Checked after the waker is stored: a begin() in between either sees the waker or is seen here.
        self.drain.begun.load(Ordering::SeqCst)
    }
}

impl Drop for Drainee<'_> {
    fn drop(&mut self) {
        self.drain.sleepers().try_remove(self.key);
    }
}
