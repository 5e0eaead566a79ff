//! Injects faults into a provider, reproducibly from a seed.
//!
//! Work is refused as if the queue were full, completions come late (in order), connections end early. The layer owns
//! the completions that it holds back. It never corrupts data or breaks the contract: a user that respects the contract
//! loses time or the connection, never bytes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::sim::Rng;
use weft_machine::{Time, rt};

use super::{Layer, SetUp};
use crate::verbs::{Completion, Disconnect, PostError, QueuePair, Work};

/// Which faults to inject, and how often. The default injects none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One in this many Sends, Writes and Reads is refused with [`PostError::QueueFull`]; 0: none. Receive buffers are
    /// never refused: a peer that finds none ends the connection.
    pub refuse_one_in: u64,
    /// One in this many polls that return completions holds them back; 0: none.
    pub delay_one_in: u64,
    /// The longest delay.
    pub delay_max: Duration,
    /// One in this many pieces of work closes its connection, before the work is carried out; 0: none.
    pub cut_one_in: u64,
}

/// The layer. Each connection has its own random numbers, seeded in the order in which connections are made.
#[derive(Clone, Debug)]
pub struct Fault {
    faults: Faults,
    seed: u64,
    connections: Arc<AtomicU64>,
}

impl Fault {
    /// Faults drawn from `seed`.
    pub fn new(seed: u64, faults: Faults) -> Fault {
        Fault { faults, seed, connections: Arc::new(AtomicU64::new(0)) }
    }
}

impl Layer for Fault {
    fn layer(&self, inner: Rc<dyn QueuePair>, _: &SetUp<'_>) -> Rc<dyn QueuePair> {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        Rc::new(Faulty {
            inner,
            faults: self.faults,
            rng: RefCell::new(Rng::new(self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))),
            held: RefCell::default(),
            timer: RefCell::new(None),
            ended: Cell::new(false),
        })
    }
}

struct Faulty {
    inner: Rc<dyn QueuePair>,
    faults: Faults,
    rng: RefCell<Rng>,
    /// Completions and when they may be returned; times do not decrease.
    held: RefCell<VecDeque<(Time, Completion)>>,
    timer: RefCell<Option<(Time, LocalBoxFuture<'static, ()>)>>,
    /// The inner connection has ended; the end is reported after the completions that are held back.
    ended: Cell<bool>,
}

impl Faulty {
    fn strikes(&self, one_in: u64) -> bool {
        one_in > 0 && self.rng.borrow_mut().one_in(one_in)
    }

    /// Takes completions from the inner queue pair, and decides when they may be returned.
    fn gather(&self, cx: &mut Context<'_>) -> Poll<Result<(), Disconnect>> {
        let mut fresh = Vec::new();
        let polled = self.inner.poll(cx, &mut fresh);
        if !fresh.is_empty() {
            let mut held = self.held.borrow_mut();
            let mut due = held.back().map_or(Time::ZERO, |(due, _)| *due).max(rt::now());
            let longest = u64::try_from(self.faults.delay_max.as_nanos()).unwrap_or(u64::MAX);
            if self.strikes(self.faults.delay_one_in) {
                due = due + Duration::from_nanos(self.rng.borrow_mut().within(0..=longest));
            }
            held.extend(fresh.into_iter().map(|completion| (due, completion)));
        }
        polled
    }
}

impl QueuePair for Faulty {
    pass_on!(provider caps peer register register_shared invalidate look stage traffic close);

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        if matches!(work, Work::Recv { .. }) {
            return self.inner.post(work);
        }
        if self.strikes(self.faults.refuse_one_in) {
            return Err((PostError::QueueFull, work));
        }
        if self.strikes(self.faults.cut_one_in) {
            tracing::debug!(peer = %self.inner.peer(), "connection cut on purpose");
            self.inner.close();
        }
        self.inner.post(work)
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let mut end = None;
        if !self.ended.get() {
            // Polls until the inner queue pair waits, so that its wake-up reaches us.
            loop {
                match self.gather(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(reason)) => {
                        self.ended.set(true);
                        end = Some(reason);
                        break;
                    }
                    Poll::Pending => break,
                }
            }
        }
        let before = out.len();
        let now = rt::now();
        let mut held = self.held.borrow_mut();
        while let Some((due, _)) = held.front()
            && *due <= now
            && let Some((_, completion)) = held.pop_front()
        {
            out.push(completion);
        }
        if out.len() > before {
            return Poll::Ready(Ok(()));
        }
        let Some((due, _)) = held.front() else {
            if !self.ended.get() {
                return Poll::Pending;
            }
            // The end is permanent: polling again returns the reason again.
            return match end {
                Some(reason) => Poll::Ready(Err(reason)),
                None => self.inner.poll(cx, out),
            };
        };
        let mut timer = self.timer.borrow_mut();
        if timer.as_ref().is_none_or(|(at, _)| at != due) {
            *timer = Some((*due, Box::pin(rt::sleep_until(*due))));
        }
        if let Some((_, sleep)) = timer.as_mut()
            && sleep.as_mut().poll(cx).is_ready()
        {
            *timer = None;
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
