//! Credits: how many requests the server lets us have in flight, and the queue of requests that wait for credits.
//!
//! Spec: [MS-SMB2] 3.2.4.1.2 (requesting), 3.2.4.1.5 (charge), 3.2.5.1.4 (granting). Owns the count and the queue,
//! first come first served.
//!
//! `available + permitted + in flight` is the window. If the first waiter asks for more than the whole window, it gets
//! all of it as soon as nothing is in flight, and shrinks its request.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use super::error::Error;

struct Waiter {
    id: u64,
    charge: u16,
    waker: Waker,
}

/// The credits of one connection.
pub(super) struct Credits {
    /// Credits that nobody holds.
    available: u32,
    /// Credits given to callers who have not yet sent.
    permitted: u32,
    /// Credits of unanswered requests.
    in_flight: u32,
    /// The number of credits to aim for.
    target: u32,
    queue: VecDeque<Waiter>,
    granted: Vec<(u64, u16)>,
    next_id: u64,
    /// How often a request had to wait.
    starved: u64,
}

/// Identifies a waiter in the queue; 0 means not queued.
#[derive(Default)]
pub(super) struct WaiterId(u64);

impl Credits {
    /// A new connection has one credit, for NEGOTIATE (3.2.4.1.2).
    pub fn new(target: u16) -> Credits {
        Credits {
            available: 1,
            permitted: 0,
            in_flight: 0,
            target: u32::from(target.max(1)),
            queue: VecDeque::new(),
            granted: Vec::new(),
            next_id: 1,
            starved: 0,
        }
    }

    /// Takes `charge` credits, fewer if the window is smaller than that, or waits. `Err` if no more will ever come.
    pub fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        charge: u16,
        waiter: &mut WaiterId,
    ) -> Poll<Result<u16, Error>> {
        if waiter.0 == 0 {
            if self.queue.is_empty() && self.available >= u32::from(charge) {
                return Poll::Ready(Ok(self.permit(charge)));
            }
            waiter.0 = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            self.starved = self.starved.saturating_add(1);
            self.queue.push_back(Waiter { id: waiter.0, charge, waker: cx.waker().clone() });
            self.distribute();
        }
        if let Some(i) = self.granted.iter().position(|(id, _)| *id == waiter.0) {
            *waiter = WaiterId::default();
            return Poll::Ready(Ok(self.granted.swap_remove(i).1));
        }
        if self.all() == 0 {
            return Poll::Ready(Err(Error::Violation("no credits granted")));
        }
        if let Some(entry) = self.queue.iter_mut().find(|w| w.id == waiter.0) {
            entry.waker.clone_from(cx.waker());
        }
        Poll::Pending
    }

    /// Leaves the queue.
    pub fn leave(&mut self, waiter: &WaiterId) {
        if let Some(i) = self.granted.iter().position(|(id, _)| *id == waiter.0) {
            let (_, charge) = self.granted.swap_remove(i);
            self.give_back(charge);
        } else if waiter.0 != 0 {
            self.queue.retain(|w| w.id != waiter.0);
            self.distribute();
        }
    }

    /// Returns credits that a caller does not use.
    pub fn give_back(&mut self, charge: u16) {
        self.permitted = self.permitted.saturating_sub(u32::from(charge));
        self.available = self.available.saturating_add(u32::from(charge));
        self.distribute();
    }

    /// Counts a permitted request as sent; returns how many credits it should ask for.
    pub fn sent(&mut self, charge: u16) -> u16 {
        self.permitted = self.permitted.saturating_sub(u32::from(charge));
        self.in_flight = self.in_flight.saturating_add(u32::from(charge));
        let wanted = self.target.saturating_sub(self.all()).saturating_add(u32::from(charge));
        u16::try_from(wanted).unwrap_or(u16::MAX)
    }

    /// Counts a response: the `charge` credits of its request are spent (0 after an interim response), `granted` are
    /// new.
    pub fn received(&mut self, charge: u16, granted: u16) {
        self.in_flight = self.in_flight.saturating_sub(u32::from(charge));
        // The bound is the range of message ids: a server that grants without end must not exceed it.
        const MOST: u32 = 1 << 16;
        self.available = self.available.saturating_add(u32::from(granted)).min(MOST);
        self.distribute();
    }

    /// How often a request had to wait for its credits.
    pub fn starved(&self) -> u64 {
        self.starved
    }

    /// The window in credits, at least 1: the largest charge that can ever be granted.
    pub fn window(&self) -> u32 {
        self.all().max(1)
    }

    /// Credits that we hold or have spent on unanswered requests.
    fn all(&self) -> u32 {
        self.available.saturating_add(self.permitted).saturating_add(self.in_flight)
    }

    /// Wakes every waiter because the connection has ended.
    pub fn wake_all(&mut self) {
        self.queue.drain(..).for_each(|w| w.waker.wake());
    }

    fn permit(&mut self, charge: u16) -> u16 {
        self.available = self.available.saturating_sub(u32::from(charge));
        self.permitted = self.permitted.saturating_add(u32::from(charge));
        charge
    }

    fn distribute(&mut self) {
        while let Some(front) = self.queue.front() {
            let idle = self.permitted == 0 && self.in_flight == 0;
            let charge = match self.available {
                0 if idle => {
                    // They poll again and learn that the connection has ended.
                    return self.queue.iter().for_each(|w| w.waker.wake_by_ref());
                }
                available if available >= u32::from(front.charge) => front.charge,
                available if idle => u16::try_from(available).unwrap_or(u16::MAX),
                _ => return,
            };
            self.permit(charge);
            if let Some(front) = self.queue.pop_front() {
                self.granted.push((front.id, charge));
                front.waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn take(credits: &mut Credits, charge: u16) -> (WaiterId, Poll<Result<u16, Error>>) {
        let mut waiter = WaiterId::default();
        let poll = credits.poll_take(&mut cx(), charge, &mut waiter);
        (waiter, poll)
    }

    #[test]
    fn a_window_is_used_refilled_and_never_exceeded() {
        let mut credits = Credits::new(10);
        assert!(matches!(take(&mut credits, 1).1, Poll::Ready(Ok(1))));
        assert_eq!(credits.sent(1), 10, "one spent, nine more wanted");
        let (mut waiter, waiting) = take(&mut credits, 1);
        assert!(waiting.is_pending());
        assert_eq!(credits.starved(), 1);
        credits.received(1, 10);
        assert!(matches!(credits.poll_take(&mut cx(), 1, &mut waiter), Poll::Ready(Ok(1))));
        assert_eq!(credits.sent(1), 1);
        assert_eq!(credits.window(), 10);
    }

    #[test]
    fn the_first_waiter_is_served_first_even_if_it_wants_more() {
        let mut credits = Credits::new(4);
        assert!(take(&mut credits, 1).1.is_ready());
        credits.sent(1);
        credits.received(1, 4);
        for _ in 0..2 {
            assert!(take(&mut credits, 1).1.is_ready());
            credits.sent(1);
        }
        let (mut large, poll) = take(&mut credits, 3);
        assert!(poll.is_pending());
        let (mut small, poll) = take(&mut credits, 1);
        assert!(poll.is_pending(), "does not overtake");
        credits.received(1, 1);
        assert!(matches!(credits.poll_take(&mut cx(), 3, &mut large), Poll::Ready(Ok(3))));
        assert!(credits.poll_take(&mut cx(), 1, &mut small).is_pending());
        credits.leave(&small);
        credits.give_back(3);
        assert!(take(&mut credits, 3).1.is_ready());
    }

    #[test]
    fn more_than_the_window_is_served_in_part_once_idle() {
        let mut credits = Credits::new(4);
        assert!(matches!(take(&mut credits, 16).1, Poll::Ready(Ok(1))));
        credits.sent(1);
        let (mut waiter, poll) = take(&mut credits, 16);
        assert!(poll.is_pending());
        credits.received(1, 4);
        assert!(matches!(credits.poll_take(&mut cx(), 16, &mut waiter), Poll::Ready(Ok(4))));
    }

    #[test]
    fn a_server_that_grants_nothing_fails_the_waiters() {
        let mut credits = Credits::new(4);
        assert!(take(&mut credits, 1).1.is_ready());
        credits.sent(1);
        let (mut waiter, poll) = take(&mut credits, 1);
        assert!(poll.is_pending());
        credits.received(1, 0);
        assert!(matches!(
            credits.poll_take(&mut cx(), 1, &mut waiter),
            Poll::Ready(Err(Error::Violation(_)))
        ));
    }

    #[test]
    fn a_granted_place_that_is_left_goes_to_the_next() {
        let mut credits = Credits::new(4);
        assert!(take(&mut credits, 1).1.is_ready());
        credits.sent(1);
        let (first, _) = take(&mut credits, 1);
        let (mut second, _) = take(&mut credits, 1);
        credits.received(1, 1);
        credits.leave(&first);
        assert!(matches!(credits.poll_take(&mut cx(), 1, &mut second), Poll::Ready(Ok(1))));
    }

    #[test]
    fn an_endless_grant_is_capped() {
        let mut credits = Credits::new(u16::MAX);
        for _ in 0..10_000 {
            credits.received(0, u16::MAX);
        }
        assert_eq!(credits.window(), 1 << 16);
    }
}
