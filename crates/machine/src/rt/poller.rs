//! Pollers: sources of events unknown to the kernel, polled by the core's loop.
//!
//! This file owns each core's list of pollers; `reactor` decides when to poll.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;

/// A source of events that the kernel does not know about: a ring in shared memory.
///
/// A core polls its pollers once per turn of its loop and in each turn of its busy-poll phase. The event itself reaches
/// a task through its waker. A poller whose core sleeps must be reachable by a file descriptor (an eventfd that some
/// task awaits through [`crate::net::Readable`]): the order is `before_sleep`, sleep in the kernel, `after_sleep`.
pub trait Poller {
    /// Checks for events; true if it woke a task.
    fn poll(&self) -> bool;

    /// The core is about to sleep: tells the other side that from now on it must signal the descriptor, then checks
    /// once more. False: there is an event after all (and its task was woken), do not sleep. `after_sleep` follows in
    /// either case.
    fn before_sleep(&self) -> bool;

    /// The core is awake again: the other side need not signal any more.
    fn after_sleep(&self);
}

/// Keeps a poller registered on the core that registered it; dropping it ends that.
#[must_use = "dropping the guard removes the poller"]
pub struct PollerGuard {
    id: u64,
    // The list is per thread.
    _local: PhantomData<Rc<()>>,
}

type List = Rc<Vec<(u64, Rc<dyn Poller>)>>;

thread_local! {
    // A turn iterates over a clone of the Rc, so a poller may register or remove pollers.
    static POLLERS: RefCell<List> = RefCell::new(Rc::default());
    static NEXT_ID: Cell<u64> = const { Cell::new(0) };
}

/// Registers `poller` with the core of this thread.
pub fn register_poller(poller: Rc<dyn Poller>) -> PollerGuard {
    let id = NEXT_ID.get();
    NEXT_ID.set(id + 1);
    POLLERS.with_borrow_mut(|list| {
        let mut longer = Vec::clone(list);
        longer.push((id, poller));
        *list = Rc::new(longer);
    });
    PollerGuard { id, _local: PhantomData }
}

impl Drop for PollerGuard {
    fn drop(&mut self) {
        // During thread exit the list may already be gone: then there is nothing to remove.
        let _ = POLLERS.try_with(|list| {
            let shorter: Vec<_> = list.borrow().iter().filter(|(id, _)| *id != self.id).cloned().collect();
            let old = std::mem::replace(&mut *list.borrow_mut(), Rc::new(shorter));
            // The poller itself may be dropped only now, outside the borrow.
            drop(old);
        });
    }
}

/// Whether this core has pollers.
pub(super) fn any() -> bool {
    POLLERS.with_borrow(|list| !list.is_empty())
}

/// Polls every poller; true if one had events.
pub(super) fn poll_all() -> bool {
    let list = POLLERS.with_borrow(Rc::clone);
    list.iter().fold(false, |news, (_, poller)| poller.poll() || news)
}

/// The pollers that were told of a coming sleep; tells them of its end on drop, whatever happens in between.
pub(super) struct Asleep {
    list: List,
    /// Whether no poller has events.
    pub(super) quiet: bool,
}

/// Tells every poller that the core is about to sleep.
pub(super) fn before_sleep() -> Asleep {
    let list = POLLERS.with_borrow(Rc::clone);
    let quiet = list.iter().fold(true, |quiet, (_, poller)| poller.before_sleep() && quiet);
    Asleep { list, quiet }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        for (_, poller) in self.list.iter() {
            poller.after_sleep();
        }
    }
}
