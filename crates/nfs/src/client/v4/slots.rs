//! Slots of a session: they limit the outstanding requests, and each has its own sequence number.
//!
//! See RFC 8881 2.10.6.1 and 2.10.6.2. [`Slots`] keeps the sequence numbers and the queue of waiting requests.
//!
//! A request that is abandoned before its reply leaves its slot in doubt: the server may or may not have seen its
//! sequence number. The next user resolves that before it uses the slot (see `session`), so no number is used for two
//! requests. A request that undoes an abandoned one is sent after that, because slots have no order among each other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// All slots of one session.
pub(super) struct Slots {
    state: RefCell<State>,
    ended: Cell<bool>,
}

struct State {
    slots: Vec<Slot>,
    free: BTreeSet<u32>,
    /// Number of slots that the server wants used (sr_target_highest_slotid + 1).
    target: u32,
    /// Waiting requests, in order of arrival.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
    /// Tasks that wait until others have resolved slots in doubt.
    settling: Vec<Waker>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Sequence number of the last request that the server has seen.
    sequence: u32,
    doubtful: bool,
}

impl State {
    /// Sets a slot by its number; the number of slots never changes.
    fn set(&mut self, number: u32, value: Slot) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            *slot = value;
        }
        self.settling.drain(..).for_each(Waker::wake);
    }
}

impl Slots {
    pub fn new(count: u32) -> Rc<Slots> {
        let state = State {
            slots: vec![Slot::default(); count as usize],
            free: (0..count).collect(),
            target: count,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            settling: Vec::new(),
        };
        Rc::new(Slots { state: RefCell::new(state), ended: Cell::new(false) })
    }

    /// Takes the lowest free slot, waiting for one; `None` once the session has ended.
    pub async fn take(self: &Rc<Slots>) -> Option<SlotGuard> {
        let mut place = Waiting { slots: self, ticket: None };
        poll_fn(|cx| {
            if self.ended.get() {
                return Poll::Ready(None);
            }
            let state = &mut *self.state.borrow_mut();
            if let Some(slot) = state.free.first().copied().filter(|slot| *slot < state.target) {
                state.free.remove(&slot);
                return Poll::Ready(Some(SlotGuard { slots: self.clone(), slot, answered: false }));
            }
            let ticket = *place.ticket.get_or_insert_with(|| {
                state.next_ticket = state.next_ticket.wrapping_add(1);
                state.next_ticket
            });
            state.waiting.insert(ticket, cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Takes a slot in doubt, waiting while others resolve them all. `None` once no slot is in doubt, or the session
    /// has ended. Slots beyond the target are not counted: the server may have retired them.
    pub async fn take_doubtful(self: &Rc<Slots>) -> Option<SlotGuard> {
        poll_fn(|cx| {
            let state = &mut *self.state.borrow_mut();
            let is_doubtful = |slot: &u32| state.slots.get(*slot as usize).is_some_and(|slot| slot.doubtful);
            if self.ended.get() || !(0..state.target).any(|slot| is_doubtful(&slot)) {
                return Poll::Ready(None);
            }
            let free = state.free.range(..state.target).copied().find(is_doubtful);
            if let Some(slot) = free {
                state.free.remove(&slot);
                return Poll::Ready(Some(SlotGuard { slots: self.clone(), slot, answered: false }));
            }
            if !state.settling.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.settling.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// The session has ended: no more slots are given out.
    pub fn end(&self) {
        self.ended.set(true);
        let mut state = self.state.borrow_mut();
        let waiting = std::mem::take(&mut state.waiting).into_values();
        let settling = std::mem::take(&mut state.settling);
        drop(state);
        waiting.chain(settling).for_each(Waker::wake);
    }

    /// The server wants only slots up to this one used (RFC 8881 18.46.3); slot 0 is always allowed.
    pub fn aim(&self, highest: u32) {
        let mut state = self.state.borrow_mut();
        let count = state.slots.len() as u32;
        let more = highest.saturating_add(1).clamp(1, count);
        let grown = more > state.target;
        state.target = more;
        drop(state);
        if grown {
            self.wake_one();
        }
    }

    /// The highest slot in use.
    pub fn highest(&self) -> u32 {
        let state = self.state.borrow();
        let busy = (0..state.slots.len() as u32).rev().find(|slot| !state.free.contains(slot));
        busy.unwrap_or(0)
    }

    fn wake_one(&self) {
        let first = self.state.borrow_mut().waiting.pop_first();
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }
}

/// A request that waits for a slot. If it was woken and is dropped instead, it wakes the next; a spurious wake-up
/// does no harm.
struct Waiting<'a> {
    slots: &'a Rc<Slots>,
    ticket: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let still = self.slots.state.borrow_mut().waiting.remove(&ticket).is_some();
        let any = !self.slots.state.borrow().free.is_empty();
        if !still && any {
            self.slots.wake_one();
        }
    }
}

/// A slot, taken for one request. Dropping it without [`SlotGuard::answered`] leaves the slot in doubt.
pub(super) struct SlotGuard {
    slots: Rc<Slots>,
    pub slot: u32,
    answered: bool,
}

impl SlotGuard {
    fn state(&self) -> Slot {
        self.slots.state.borrow().slots.get(self.slot as usize).copied().unwrap_or_default()
    }

    /// The sequence number of the slot's next request.
    pub fn sequence(&self) -> u32 {
        self.state().sequence.wrapping_add(1)
    }

    /// Whether the previous request was abandoned.
    pub fn is_doubtful(&self) -> bool {
        self.state().doubtful
    }

    /// The server has seen the sequence number, whatever it replied.
    pub fn advance(&mut self) {
        let next = Slot { sequence: self.sequence(), doubtful: false };
        self.slots.state.borrow_mut().set(self.slot, next);
    }

    /// Nothing is outstanding in the slot any more.
    pub fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let now = self.state();
        let state = &mut *self.slots.state.borrow_mut();
        if !self.answered {
            state.set(self.slot, Slot { doubtful: true, ..now });
        }
        state.free.insert(self.slot);
        let next = state.waiting.pop_first();
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}
