//! Waiting for a condition that another task, perhaps of another core, makes true; and taking turns.
//!
//! What: [`Signal`], `Gate`. Spec: none. Owns: wakers of those who wait.
//! Does not: hold the condition, which lies under its owner's own lock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Wakes all who wait; each looks for itself.
#[derive(Debug, Default)]
pub struct Signal(Mutex<Vec<Waker>>);

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

/// One at a time, in the order in which they came: who leaves and comes again at once does not pass who waits.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    line: Mutex<Line>,
    left: Signal,
}

#[derive(Debug, Default)]
struct Line {
    taken: bool,
    next: u64,
    /// Who waits; as many as there are futures of [`Gate::enter`].
    waiting: VecDeque<u64>,
}

/// Inside a [`Gate`] until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Gate);

/// A place in the line, until it is dropped.
struct Place<'a>(&'a Gate, u64);

impl Gate {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn.
    pub async fn enter(&self) -> Turn<'_> {
        let place = {
            let mut line = self.line();
            line.next = line.next.wrapping_add(1);
            let number = line.next;
            line.waiting.push_back(number);
            Place(self, number)
        };
        self.left
            .until(|| {
                let mut line = self.line();
                let mine = !line.taken && line.waiting.front() == Some(&place.1);
                mine.then(|| {
                    line.waiting.pop_front();
                    line.taken = true;
                    Turn(self)
                })
            })
            .await
    }

    /// A turn, where nobody has it, or waits for it.
    pub fn try_enter(&self) -> Option<Turn<'_>> {
        let mut line = self.line();
        let free = !line.taken && line.waiting.is_empty();
        // Not `then_some`: a turn that is not had must not be made, since its end would let the next one in.
        free.then(|| {
            line.taken = true;
            Turn(self)
        })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.line().taken = false;
        self.0.left.notify();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let waited = {
            let mut line = self.0.line();
            let before = line.waiting.len();
            line.waiting.retain(|number| *number != self.1);
            line.waiting.len() < before
        };
        if waited {
            // Whoever is next may have been told while this one was in front.
            self.0.left.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::Context;

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

    #[test]
    fn who_comes_again_does_not_pass_who_waits_and_who_gives_up_is_not_waited_for() {
        let mut cx = Context::from_waker(Waker::noop());
        let gate = Gate::default();
        let turn = gate.try_enter().expect("it is free");
        let (mut gone, mut first, mut again) =
            (Box::pin(gate.enter()), Box::pin(gate.enter()), Box::pin(gate.enter()));
        assert!(gone.as_mut().poll(&mut cx).is_pending() && first.as_mut().poll(&mut cx).is_pending());
        drop(turn);
        assert!(again.as_mut().poll(&mut cx).is_pending() && gate.try_enter().is_none());
        drop(gone);
        let Poll::Ready(turn) = first.as_mut().poll(&mut cx) else { panic!("it is its turn") };
        assert!(again.as_mut().poll(&mut cx).is_pending());
        drop(turn);
        assert!(again.as_mut().poll(&mut cx).is_ready());
    }
}
