//! Waiting for a condition that another task, perhaps of another core, makes true; and taking turns.
//!
//! What: [`Signal`], [`Gate`]. Spec: none. Owns: wakers of those who wait.
//! Does not: hold the condition, which lies under its owner's own lock.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Wakes all who wait; each looks for itself.
#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<Vec<Waker>>);

impl Signal {
    /// Something has changed.
    pub fn notify(&self) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until `check` has an answer. It is asked at once, and after every notification.
    pub async fn until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| {
            if let Some(answer) = check() {
                return Poll::Ready(answer);
            }
            {
                let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
            }
            // What changed between the first look and now has woken nobody.
            check().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// One at a time.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    taken: AtomicBool,
    left: Signal,
}

/// Inside a [`Gate`] until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Gate);

impl Gate {
    /// Waits for a turn.
    pub async fn enter(&self) -> Turn<'_> {
        self.left.until(|| self.try_enter()).await
    }

    /// A turn, where nobody has it.
    pub fn try_enter(&self) -> Option<Turn<'_>> {
        // Not `then_some`: a turn that is not had must not be made, since its end would let the next one in.
        (!self.taken.swap(true, Ordering::AcqRel)).then(|| Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
        self.0.left.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_inside() {
        let gate = Gate::default();
        let turn = gate.try_enter().expect("it is free");
        assert!(gate.try_enter().is_none());
        assert!(gate.try_enter().is_none(), "to be refused lets nobody in");
        drop(turn);
        assert!(gate.try_enter().is_some());
    }
}
