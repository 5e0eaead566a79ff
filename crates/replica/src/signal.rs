//! Waiting for a condition that another task makes true, perhaps on another core; and a lock that is fair.
//!
//! A [`Signal`] wakes everyone who waits, so it suits conditions that few tasks wait for. The condition itself lies
//! under a lock of its owner. A `Gate` wakes one task at a time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Wakes every waiter, and each checks its own condition.
#[derive(Debug, Default)]
pub struct Signal {
    /// Counts the notifications. A waiter that is polled for another reason need not check again while it stands still.
    notified: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        #[cfg(test)]
        crate::tests::locked();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes every waiter: something has changed.
    pub fn notify(&self) {
        let waiting = {
            let mut waiting = self.lock();
            self.notified.fetch_add(1, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until `check` returns an answer. It is called at once, and after every notification, so each change of the
    /// condition needs one.
    pub async fn until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        // The waker in the list, and how many notifications there had been.
        let mut registered: Option<(u64, Waker)> = None;
        poll_fn(|cx| {
            // Whoever sees a notification counted sees what has changed before it.
            let before = self.notified.load(Ordering::Acquire);
            if registered.as_ref().is_some_and(|(at, waker)| *at == before && waker.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(answer) = check() {
                return Poll::Ready(answer);
            }
            let at = {
                let mut waiting = self.lock();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                // Only counted under the lock.
                self.notified.load(Ordering::Relaxed)
            };
            registered = Some((at, cx.waker().clone()));
            match at == before {
                true => Poll::Pending,
                // A notification between the check and the registration has woken nobody.
                false => check().map_or(Poll::Pending, Poll::Ready),
            }
        })
        .await
    }
}

/// A lock that is held across waits, and granted in the order of the requests: a task that releases it and asks again
/// does not overtake a waiter.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    is_held: bool,
    next: u64,
    /// One entry for each future of [`Gate::enter`], by ascending number.
    waiting: VecDeque<(u64, Waker)>,
}

impl Queue {
    /// The waiter that is to be woken: the first one, when nobody holds the gate.
    fn successor(&self) -> Option<Waker> {
        let first = self.waiting.front().filter(|_| !self.is_held)?;
        Some(first.1.clone())
    }
}

/// Holds a [`Gate`] until it is dropped.
#[derive(Debug)]
pub(crate) struct GateGuard<'a>(&'a Gate);

/// A request for a [`Gate`]: leaves the queue when it is granted or dropped.
struct Waiter<'a> {
    gate: &'a Gate,
    number: Option<u64>,
}

impl Gate {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the gate.
    pub async fn enter(&self) -> GateGuard<'_> {
        let mut waiter = Waiter { gate: self, number: None };
        poll_fn(|cx| {
            let mut queue = self.queue();
            let Some(number) = waiter.number else {
                if !queue.is_held && queue.waiting.is_empty() {
                    queue.is_held = true;
                    return Poll::Ready(GateGuard(self));
                }
                queue.next = queue.next.wrapping_add(1);
                let number = queue.next;
                queue.waiting.push_back((number, cx.waker().clone()));
                waiter.number = Some(number);
                return Poll::Pending;
            };
            let is_first = queue.waiting.front().is_some_and(|(first, _)| *first == number);
            if is_first && !queue.is_held {
                queue.waiting.pop_front();
                waiter.number = None;
                queue.is_held = true;
                return Poll::Ready(GateGuard(self));
            }
            if let Some((_, waker)) = queue.waiting.iter_mut().find(|(waiting, _)| *waiting == number) {
                waker.clone_from(cx.waker());
            }
            Poll::Pending
        })
        .await
    }

    /// Takes the gate if nobody holds it or waits for it.
    pub fn try_enter(&self) -> Option<GateGuard<'_>> {
        let mut queue = self.queue();
        let is_free = !queue.is_held && queue.waiting.is_empty();
        // Not `then_some`: dropping a guard that was never granted would release the gate.
        is_free.then(|| {
            queue.is_held = true;
            GateGuard(self)
        })
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        let successor = {
            let mut queue = self.0.queue();
            queue.is_held = false;
            queue.successor()
        };
        successor.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let successor = {
            let mut queue = self.gate.queue();
            let was_first = queue.waiting.front().is_some_and(|(first, _)| *first == number);
            queue.waiting.retain(|(waiting, _)| *waiting != number);
            // It may have been woken already; the next waiter takes its place.
            if was_first { queue.successor() } else { None }
        };
        successor.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};

    use super::*;

    #[test]
    fn a_waiter_checks_once_for_each_notification_and_misses_none_during_its_check() {
        // Of a clone and its original, `will_wake` need not know that they are equal.
        let waker = Waker::noop().clone();
        let mut cx = Context::from_waker(&waker);
        let (signal, checks) = (Signal::default(), AtomicUsize::new(0));
        let mut wait = Box::pin(signal.until(|| {
            // Something changes behind the back of the first check.
            if checks.fetch_add(1, Ordering::Relaxed) == 0 {
                signal.notify();
            }
            None::<()>
        }));
        for _ in 0..3 {
            assert!(wait.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(checks.load(Ordering::Relaxed), 2, "the second one looks again");
        signal.notify();
        for _ in 0..3 {
            assert!(wait.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(checks.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn only_one_is_inside() {
        let gate = Gate::default();
        let guard = gate.try_enter().expect("it is free");
        assert!(gate.try_enter().is_none());
        assert!(gate.try_enter().is_none(), "a refused request releases nothing");
        drop(guard);
        assert!(gate.try_enter().is_some());
    }

    #[test]
    fn a_new_request_does_not_overtake_a_waiter_and_a_dropped_waiter_is_skipped() {
        let mut cx = Context::from_waker(Waker::noop());
        let gate = Gate::default();
        let guard = gate.try_enter().expect("it is free");
        let (mut gone, mut first, mut again) =
            (Box::pin(gate.enter()), Box::pin(gate.enter()), Box::pin(gate.enter()));
        assert!(gone.as_mut().poll(&mut cx).is_pending() && first.as_mut().poll(&mut cx).is_pending());
        drop(guard);
        assert!(again.as_mut().poll(&mut cx).is_pending() && gate.try_enter().is_none());
        drop(gone);
        let Poll::Ready(guard) = first.as_mut().poll(&mut cx) else { panic!("it is its turn") };
        assert!(again.as_mut().poll(&mut cx).is_pending());
        drop(guard);
        assert!(again.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn each_release_wakes_one_waiter() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let gate = Gate::default();
        let mut held = gate.try_enter();
        let mut waiting: Vec<_> = (0..64).map(|_| Box::pin(gate.enter())).collect();
        assert!(waiting.iter_mut().all(|enter| enter.as_mut().poll(&mut cx).is_pending()));
        for enter in &mut waiting {
            drop(held.take());
            let Poll::Ready(guard) = enter.as_mut().poll(&mut cx) else { panic!("it is the first") };
            held = Some(guard);
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 64);
    }
}
