//! The time after a restart in which clients take back what they had open: until it is over nobody else may take that from them.
//!
//! Spec: RFC 8881 8.4.2.1, RFC 7530 9.6.2 (grace). Owns: who may still reclaim, and until when. Does not: know what they had. A
//! protocol that remembers its clients over a restart, but not their files, reserves the whole table ([`Opens::reserve`]), and lets its own
//! clients through by its own rules ([`Opening::past_grace`]).
//!
//! While the table is reserved, an open that could be in the way of what is reclaimed waits until the last client has said that it is done or
//! its time is over: one that writes, deletes or truncates, or does not let others read and write. So do byte-range locks of SMB, and
//! what is removed or renamed without an open. Who reads and shares everything is in the way of an open alone that denies
//! reading, which no client does that reclaims (Linux denies nothing), and passes. So does whoever opens a file that he
//! has just made: nobody had that.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use weft_machine::{Time, rt};

use super::locks::MAX_WAITING;
use super::{Access, Opening, Opens, Refused, Rights};

/// Who may reclaim.
#[derive(Default)]
pub(super) struct Reclaims {
    /// Anybody, so that a table that is not reserved reads one atomic.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of each reservation, and until when it holds.
    until: Vec<(u64, Time)>,
    waiting: Vec<Waker>,
}

/// Keeps a table of opens for those who reclaim, until it is dropped or its time is over.
#[derive(Debug)]
#[must_use = "it holds while this lives"]
pub struct Reservation {
    table: Arc<Opens>,
    number: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.table.reclaims.release(|(number, _)| *number == self.number);
    }
}

impl Reclaims {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each critical section leaves both lists whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, over: impl Fn(&(u64, Time)) -> bool) {
        let mut state = self.state();
        state.until.retain(|reservation| !over(reservation));
        if !state.until.is_empty() {
            return;
        }
        self.any.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Until when somebody may reclaim; `None` when nobody may.
    pub(super) fn deadline(&self) -> Option<Time> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let now = rt::now();
        self.release(|(_, until)| *until <= now);
        self.state().until.iter().map(|(_, until)| *until).max()
    }

    /// Ends when nobody may reclaim any more, or at `deadline`.
    pub(super) async fn over(&self, deadline: Time) -> Result<(), Refused> {
        let ended = poll_fn(|cx| {
            let mut state = self.state();
            if state.until.is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.waiting.retain(|known| !known.will_wake(cx.waker()));
            if state.waiting.len() >= MAX_WAITING {
                return Poll::Ready(Err(Refused::Limit("tasks that wait for the grace period")));
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        });
        match rt::timeout(deadline.since(rt::now()), ended).await {
            Ok(ended) => ended,
            Err(rt::Elapsed) => Ok(()),
        }
    }
}

impl Opening {
    /// Whether it could be in the way of an open that somebody takes back.
    pub(super) fn is_in_the_way(&self) -> bool {
        let Opening { access, share, .. } = self;
        let excludes = access.any() && !(share.read && share.write);
        !self.past_grace && (access.write || access.delete || self.overwrites || excludes)
    }
}

impl Opens {
    /// Keeps the table for clients that may take back what they had before a restart, at most until then.
    pub fn reserve(self: &Arc<Opens>, until: Time) -> Reservation {
        let number = self.number();
        let mut state = self.reclaims.state();
        state.until.push((number, until));
        self.reclaims.any.store(true, Ordering::Release);
        drop(state);
        Reservation { table: self.clone(), number }
    }

    /// Refuses, while somebody may reclaim, what takes a file away from under its name and cannot wait.
    pub fn may_replace(&self) -> Result<(), Refused> {
        if self.reclaims.deadline().is_some() { Err(Refused::Sharing) } else { Ok(()) }
    }

    /// Waits until nobody may reclaim what `access` would take from him.
    pub(super) async fn after_reclaims(&self, access: Access, rights: Rights) -> Result<(), Refused> {
        let takes = rights.delete || access == Access::Overwrite;
        while takes && let Some(deadline) = self.reclaims.deadline() {
            self.reclaims.over(deadline).await?;
        }
        Ok(())
    }
}
