//! One answer of a thread to a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Waits for the answer; `None` if nobody will give one.
pub(crate) struct Answer<T>(Arc<Mutex<Slot<T>>>);

/// Gives the answer.
pub(crate) struct Answerer<T>(Arc<Mutex<Slot<T>>>);

struct Slot<T> {
    answer: Option<T>,
    over: bool,
    waker: Option<Waker>,
}

fn locked<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both ends.
pub(crate) fn answer<T>() -> (Answerer<T>, Answer<T>) {
    let slot = Arc::new(Mutex::new(Slot { answer: None, over: false, waker: None }));
    (Answerer(slot.clone()), Answer(slot))
}

impl<T> Answerer<T> {
    /// The answer.
    pub(crate) fn give(self, answer: T) {
        locked(&self.0).answer = Some(answer);
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = locked(&self.0);
            slot.over = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = locked(&self.0);
        if slot.over {
            return Poll::Ready(slot.answer.take());
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
