//! Tasks that wait for a place, in the order in which they came.
//!
//! Owns: their wakers. Does not: count places. Whoever has this under its lock hands a place over by [`Tickets::grant`] and wakes the
//! task that is answered; the place is the task's from then on, whether it fetches it or leaves.

use std::collections::BTreeMap;
use std::task::Waker;

/// See the module.
pub(crate) struct Tickets {
    next: u64,
    /// `None`: a place was handed over, and not yet fetched.
    tasks: BTreeMap<u64, Option<Waker>>,
}

impl Tickets {
    /// Nobody.
    pub(crate) const fn new() -> Tickets {
        Tickets { next: 0, tasks: BTreeMap::new() }
    }

    /// How many wait, or have not fetched their place.
    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// A task waits; its ticket.
    pub(crate) fn enter(&mut self, waker: Waker) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.tasks.insert(ticket, Some(waker));
        ticket
    }

    /// Hands a place over to the first who waits.
    pub(crate) fn grant(&mut self) -> Option<Waker> {
        self.tasks.values_mut().find_map(Option::take)
    }

    /// Whether the task has been handed a place, which it has fetched by that; otherwise it waits by this waker.
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

    /// The task waits no more. Whether it had been handed a place, which is to be given back.
    pub(crate) fn leave(&mut self, ticket: u64) -> bool {
        matches!(self.tasks.remove(&ticket), Some(None))
    }

    #[cfg(test)]
    pub(crate) fn is_granted(&self, ticket: u64) -> bool {
        self.tasks[&ticket].is_none()
    }
}
