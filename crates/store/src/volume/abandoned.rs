//! Changes that a worker thread, or librbd, still makes although their future was dropped.
//!
//! [`Abandoned`] counts them, as the guarantee of [`crate::block`] about dropped futures requires. Changes whose
//! futures are still awaited are not ordered here.
//!
//! Operation: a worker thread finishes a system call whether or not anybody awaits it. A future that is dropped
//! earlier counts its change as abandoned, and later requests wait until the thread has finished it.
//! Cost: one atomic load per request while no change is abandoned.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use weft_machine::File;
use weft_machine::file::busy::{self, Inode};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Abandoned(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Changes that a thread still makes and nobody awaits.
    count: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
    /// Tests hold changes back with it.
    #[cfg(test)]
    held: Mutex<()>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_less(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            let waiting = std::mem::take(&mut *self.waiting());
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// A change, shared by its thread and its future.
struct Change {
    shared: Arc<Shared>,
    /// Either the thread has finished or the future was dropped.
    alone: AtomicBool,
}

/// Held by whoever makes the change, a thread or librbd, until it is finished.
pub(super) struct Runs(Arc<Change>);

impl Drop for Runs {
    fn drop(&mut self) {
        if self.0.alone.swap(true, Ordering::SeqCst) {
            self.0.shared.one_less();
        }
    }
}

/// Held by the future. Must not be dropped before the answer is known.
pub(super) struct Awaits(Arc<Change>);

impl Drop for Awaits {
    fn drop(&mut self) {
        if self.0.alone.load(Ordering::SeqCst) {
            return;
        }
        // Count before giving it up: a request that follows the drop must see it.
        self.0.shared.count.fetch_add(1, Ordering::SeqCst);
        if self.0.alone.swap(true, Ordering::SeqCst) {
            // The thread has finished meanwhile.
            self.0.shared.one_less();
        }
    }
}

impl Abandoned {
    /// Whether a change is abandoned and not finished.
    pub(super) fn any(&self) -> bool {
        self.0.count.load(Ordering::SeqCst) > 0
    }

    /// Waits until all abandoned changes are finished.
    pub(super) async fn finished(&self) {
        if !self.any() {
            return;
        }
        poll_fn(|cx| {
            {
                let mut waiting = self.0.waiting();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
            }
            // A change that finished before that has not woken this task.
            if self.any() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Makes a change of a file on a worker thread, when no other thread has the file for itself.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        file: Inode,
        change: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (work, _awaits) = self.counted(change);
        busy::blocking(file, work).await
    }

    /// The same for a change of a range that locks `file` until it ends: whoever writes to the file meanwhile waits without its
    /// core, see [`busy`].
    pub(super) async fn make_alone<T: Send + 'static>(
        &self,
        file: &File,
        change: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (work, _awaits) = self.counted(change);
        busy::ranged(file, work).await
    }

    fn counted<T, F: FnOnce() -> T>(&self, change: F) -> (impl FnOnce() -> T + use<T, F>, Awaits) {
        let (runs, awaits) = self.begun();
        let work = move || {
            let _runs = runs;
            #[cfg(test)]
            drop(_runs.0.shared.held.lock());
            change()
        };
        (work, awaits)
    }

    /// A change that begins now.
    pub(super) fn begun(&self) -> (Runs, Awaits) {
        let both = Arc::new(Change { shared: self.0.clone(), alone: AtomicBool::new(false) });
        (Runs(both.clone()), Awaits(both))
    }

    #[cfg(test)]
    pub(super) fn hold(&self) -> Held<'_> {
        Held(self.0.held.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Changes do not begin until this is dropped.
#[cfg(test)]
pub(super) struct Held<'a>(#[expect(dead_code, reason = "held, not read")] MutexGuard<'a, ()>);
