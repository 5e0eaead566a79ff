//! A queue of tasks that wait for a place.
//!
//! It holds their wakers; the owner counts the places. The owner, under its lock, hands a place over with
//! [`Tickets::grant`] and wakes the returned task; the place then belongs to the task, whether it fetches it or leaves.

use std::collections::BTreeMap;
use std::task::Waker;

/// See the module.
pub(crate) struct Tickets {
    next: u64,
    /// `None`: a place was handed over and not fetched yet.
    tasks: BTreeMap<u64, Option<Waker>>,
}

impl Tickets {
    /// An empty queue.
    pub(crate) const fn new() -> Tickets {
        Tickets { next: 0, tasks: BTreeMap::new() }
    }

    /// The number of tasks that wait, or have not fetched their place.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Enqueues a task; returns its ticket.
    pub(crate) fn enter(&mut self, waker: Waker) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.tasks.insert(ticket, Some(waker));
        ticket
    }

    /// Hands a place over to the first waiting task.
    pub(crate) fn grant(&mut self) -> Option<Waker> {
        self.tasks.values_mut().find_map(Option::take)
    }

    /// Whether the task was handed a place, which it fetches by this call; otherwise it waits with this waker.
    pub(crate) fn fetch(&mut self, ticket: u64, waker: &Waker) -> bool {
        match self.tasks.get_mut(&ticket) {
            Some(Some(known)) => {
                known.clone_from(waker);
                false
            }
            _ => {
                self.tasks.remove(&ticket);
                true
            }
        }
    }

    /// The task no longer waits. Returns whether it had been handed a place, which must be given back.
    pub(crate) fn leave(&mut self, ticket: u64) -> bool {
        matches!(self.tasks.remove(&ticket), Some(None))
    }

    #[cfg(test)]
    pub(crate) fn is_granted(&self, ticket: u64) -> bool {
        self.tasks[&ticket].is_none()
    }
}
