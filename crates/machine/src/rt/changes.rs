//! A count of changes, and the wakers of the tasks that follow it.
//!
//! It holds one waker per follower, and waits for nobody.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use slab::Slab;

/// Shared by all followers, on all cores.
#[derive(Default)]
pub struct ChangeCount {
    count: AtomicU64,
    followers: Mutex<Slab<Option<Waker>>>,
}

/// A task's registration.
pub struct Follower<'a> {
    changes: &'a ChangeCount,
    key: usize,
    /// The waker in the table, so that the lock is taken once per task and not once per sleep.
    known: Option<Waker>,
}

impl ChangeCount {
    /// Number of changes so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts a change: every follower is woken.
    pub fn advance(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let wakers: Vec<Waker> = self.followers().iter().filter_map(|(_, waker)| waker.clone()).collect();
        // Outside of the lock, because a task that ends takes it.
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Registers a task until the result is dropped.
    pub fn follow(&self) -> Follower<'_> {
        Follower { changes: self, key: self.followers().insert(None), known: None }
    }

    // Nothing under the lock can panic half-way.
    fn followers(&self) -> MutexGuard<'_, Slab<Option<Waker>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower<'_> {
    /// Number of changes so far; `cx` is woken by the next one.
    pub fn poll(&mut self, cx: &Context<'_>) -> u64 {
        if !self.known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.known = Some(cx.waker().clone());
            if let Some(slot) = self.changes.followers().get_mut(self.key) {
                *slot = Some(cx.waker().clone());
            }
        }
        // Read after the waker is stored: a change in between either sees the waker or is seen here.
        self.changes.count()
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.changes.followers().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_follower_is_woken_by_every_change_until_it_is_dropped() {
        let changes = ChangeCount::default();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut follower = changes.follow();
        assert_eq!(follower.poll(&Context::from_waker(&waker)), 0);
        changes.advance();
        changes.advance();
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
        assert_eq!(follower.poll(&Context::from_waker(&waker)), 2);
        drop(follower);
        changes.advance();
        assert_eq!((woken.0.load(Ordering::SeqCst), changes.count()), (2, 3));
    }
}
