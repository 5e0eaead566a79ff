//! A one-shot channel between two tasks: one owes the answer, the other waits for it.
//!
//! Dropping the [`Answer`] answers that there will be none; what that means is up to the asker.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::signal::Signal;

/// The two ends: one owes the answer, the other waits for it.
pub(crate) fn question<T>() -> (Answer<T>, Asker<T>) {
    let shared = Arc::new(Shared { slot: Mutex::new(Slot::Open), changed: Signal::default() });
    (Answer(shared.clone()), Asker(shared))
}

/// Owes the answer.
pub(crate) struct Answer<T>(Arc<Shared<T>>);

/// Waits for the answer.
pub(crate) struct Asker<T>(Arc<Shared<T>>);

struct Shared<T> {
    slot: Mutex<Slot<T>>,
    changed: Signal,
}

enum Slot<T> {
    Open,
    Given(T),
    /// One end was dropped, or the answer was taken.
    Over,
}

impl<T> Shared<T> {
    fn slot(&self) -> MutexGuard<'_, Slot<T>> {
        // The slot is only ever replaced as a whole, so a panic leaves no half of it.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Answer<T> {
    /// Gives the answer.
    pub fn give(self, answer: T) {
        {
            let mut slot = self.0.slot();
            if matches!(*slot, Slot::Open) {
                *slot = Slot::Given(answer);
            }
        }
        self.0.changed.notify();
    }

    /// Waits until the asker is gone.
    pub async fn unwanted(&self) {
        self.0.changed.until(|| matches!(*self.0.slot(), Slot::Over).then_some(())).await;
    }
}

impl<T> Asker<T> {
    /// Waits for the answer; `None` if there will be none.
    pub async fn answer(self) -> Option<T> {
        let taken = || {
            let mut slot = self.0.slot();
            match std::mem::replace(&mut *slot, Slot::Over) {
                Slot::Open => {
                    *slot = Slot::Open;
                    None
                }
                Slot::Given(answer) => Some(Some(answer)),
                Slot::Over => Some(None),
            }
        };
        self.0.changed.until(taken).await
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        {
            let mut slot = self.0.slot();
            if matches!(*slot, Slot::Open) {
                *slot = Slot::Over;
            }
        }
        self.0.changed.notify();
    }
}

impl<T> Drop for Asker<T> {
    fn drop(&mut self) {
        *self.0.slot() = Slot::Over;
        self.0.changed.notify();
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn an_answer_comes_once_and_who_is_dropped_has_given_none() {
        let (answer, asker) = question();
        answer.give(5);
        assert_eq!(asker.answer().now_or_never(), Some(Some(5)));
        let (answer, asker) = question::<u8>();
        assert_eq!(answer.unwanted().now_or_never(), None);
        drop(answer);
        assert_eq!(asker.answer().now_or_never(), Some(None));
        let (answer, asker) = question();
        drop(asker);
        assert_eq!(answer.unwanted().now_or_never(), Some(()));
        answer.give(5);
    }
}
