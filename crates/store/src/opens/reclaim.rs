//! The grace period after a restart, in which clients reclaim what they had open, and others cannot take it from
//! them.
//!
//! RFC 8881 8.4.2.1, RFC 7530 9.6.2 (grace). This module knows who may still reclaim, and until when, but not what. A
//! protocol that remembers its clients over a restart, but not their files, reserves the whole table
//! ([`Opens::reserve`]), and admits its own clients by its own rules ([`Opening::past_grace`]).
//!
//! While the table is reserved, an open that could conflict with a reclaimed one (it writes, deletes or truncates, or
//! denies others reading or writing) waits until the last client is finished or its time is over. So do byte-range
//! locks of SMB, and removals and renames without an open. An open that only reads and shares everything passes: it
//! conflicts only with an open that denies reading, which no reclaiming client makes (Linux denies nothing). So does
//! an open of a file that its opener has just created.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use weft_machine::recorder::{self, Hop};
use weft_machine::{Time, rt};

use super::locks::MAX_WAITING;
use super::{Access, Opening, Opens, Refused, Rights};

/// The clients that may reclaim.
#[derive(Default)]
pub(super) struct Reclaims {
    /// Whether there are any, so that an unreserved table reads one atomic.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of each reservation, and its end.
    until: Vec<(u64, Time)>,
    waiting: Vec<Waker>,
}

/// Keeps a table reserved for reclaiming clients, until it is dropped or its time is over.
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
        // Every critical section leaves both lists consistent.
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

    /// Until when a client may reclaim; `None` if none may.
    pub(super) fn deadline(&self) -> Option<Time> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let now = rt::now();
        self.release(|(_, until)| *until <= now);
        self.state().until.iter().map(|(_, until)| *until).max()
    }

    /// Completes when no client may reclaim any more, or at `deadline`.
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
    /// Whether it could conflict with a reclaimed open.
    pub(super) fn is_in_the_way(&self) -> bool {
        let Opening { access, share, .. } = self;
        let excludes = access.any() && !(share.read && share.write);
        !self.past_grace && (access.write || access.delete || self.overwrites || excludes)
    }
}

impl Opens {
    /// Reserves the table for clients that may reclaim, at most until then.
    pub fn reserve(self: &Arc<Opens>, until: Time) -> Reservation {
        let number = self.number();
        let mut state = self.reclaims.state();
        state.until.push((number, until));
        self.reclaims.any.store(true, Ordering::Release);
        drop(state);
        Reservation { table: self.clone(), number }
    }

    /// Refuses, during the grace period, removing a file under its name by a caller that cannot wait.
    pub fn may_replace(&self) -> Result<(), Refused> {
        if self.reclaims.deadline().is_some() { Err(Refused::Sharing) } else { Ok(()) }
    }

    /// Waits until no client may reclaim what `access` would take from it.
    pub(super) async fn after_reclaims(&self, access: Access, rights: Rights) -> Result<(), Refused> {
        let takes = rights.delete || access == Access::Overwrite;
        while takes && let Some(deadline) = self.reclaims.deadline() {
            recorder::at(Hop::Peer, self.reclaims.over(deadline)).await?;
        }
        Ok(())
    }
}
