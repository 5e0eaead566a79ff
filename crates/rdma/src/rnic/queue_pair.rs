//! The queue pair: work in, completions out; the device moves the bytes.
//!
//! `post` hands work to the device at once if it can; a payload that must be read from a file, and work beyond the send
//! queue's depth, wait in order for `poll`. See RFC 5040 5 (ordering) and 8 (errors end the connection),
//! ibv_post_send(3), ibv_poll_cq(3). It owns posted buffers, regions and the device's queue pair. `setup` sets
//! connections up.
//!
//! All work is posted signalled, so that the fill of the device's queue is known; completions that nobody asked for are
//! dropped here. An awake core polls the completion queue; before it sleeps it arms the event. One task per connection
//! takes the connection manager's events, and drives a dropped queue pair until its Sends have been sent. Receive
//! buffers, regions and sinks of Reads are windows while the device may write them. Every end goes through `end`, which
//! destroys the device's queue pair; buffers are released only after that.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::net::Readable;
use weft_machine::rt::{self, Poller};
use weft_machine::{Buf, Peer, Pool, Time};

use super::NAME;
use super::bindings::*;
use super::cm::{EventChannel, Qp};
use super::faults::Watch;
use super::memory::{Local, NotReleased, Regions};
use super::objects::Cq;
use super::queues::{DeviceSide, Queues, Stop};
use super::requests::check;
use super::status;
use crate::{
    Access, Caps, Completion, Disconnect, PostError, QueuePair, Segment, Stag, Traffic, Work, WorkError,
};

/// The objects that set-up has made.
pub(super) struct Parts {
    pub(super) peer: Peer,
    pub(super) qp: Arc<Qp>,
    pub(super) watch: Watch,
    pub(super) events: Readable<Arc<EventChannel>>,
    pub(super) local: Local,
    pub(super) regions: Regions,
    pub(super) pool: Pool,
    pub(super) caps: Caps,
    pub(super) send_pieces: usize,
    pub(super) close_timeout: Duration,
}

/// A queue pair before its start; receives can be posted.
pub(super) struct Unconnected(Rc<Inner>);

/// A connected queue pair; dropping it closes the connection.
pub(super) struct RnicQueuePair(Rc<Inner>);

struct Inner {
    peer: Peer,
    close_timeout: Duration,
    events: Readable<Arc<EventChannel>>,
    /// Waits in `poll`.
    user: Cell<Option<Waker>>,
    /// The task of the connection.
    attendant: Cell<Option<Waker>>,
    /// The user has dropped the queue pair.
    orphaned: Cell<bool>,
    state: RefCell<Queues>,
}

impl Unconnected {
    pub(super) fn new(parts: Parts) -> Unconnected {
        let Parts { qp, peer, watch, events, local, regions, pool, caps, send_pieces, close_timeout } = parts;
        let device = DeviceSide { watch, _poller: None, armed: false, qp };
        let state = Queues {
            pool,
            send_pieces,
            caps,
            device: Some(device),
            ended: None,
            reason: None,
            deadline: None,
            closing: false,
            completions: VecDeque::new(),
            queue: VecDeque::new(),
            head: None,
            sends: VecDeque::new(),
            first_send: 0,
            recvs: VecDeque::new(),
            first_recv: 0,
            blamed: None,
            posted: 0,
            local,
            regions,
            traffic: Traffic::default(),
        };
        Unconnected(Rc::new(Inner {
            peer,
            close_timeout,
            events,
            user: Cell::new(None),
            attendant: Cell::new(None),
            orphaned: Cell::new(false),
            state: RefCell::new(state),
        }))
    }

    pub(super) fn post_recv(&self, work: Work) -> Result<(), (PostError, Work)> {
        match work {
            Work::Recv { id, buf } => self.0.state.borrow_mut().post_recv(id, buf),
            other => {
                Err((PostError::Misuse("only receives can be posted before the connection is there"), other))
            }
        }
    }

    pub(super) fn events(&self) -> &Readable<Arc<EventChannel>> {
        &self.0.events
    }

    /// The connection is established: takes its limits and starts the listeners for events.
    pub(super) fn start(self, ird: u16, ord: u16) -> io::Result<Rc<RnicQueuePair>> {
        let inner = self.0;
        let state = &mut *inner.state.borrow_mut();
        (state.caps.ird, state.caps.ord) = (ird, ord);
        if let Some(device) = &mut state.device {
            let bell = Readable::new(device.qp.cq().clone())?;
            device._poller = Some(rt::register_poller(Rc::new(Lookout(Rc::downgrade(&inner)))));
            rt::spawn(attend(inner.clone(), bell)).detach();
        }
        Ok(Rc::new(RnicQueuePair(inner.clone())))
    }
}

/// The part of a queue pair that the core's loop polls for completions.
struct Lookout(Weak<Inner>);

impl Poller for Lookout {
    fn poll(&self) -> bool {
        self.0.upgrade().is_some_and(|inner| inner.reap())
    }

    fn before_sleep(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return true };
        inner.arm();
        !inner.reap()
    }

    fn after_sleep(&self) {
        // The connection's task takes an event that comes while the core is awake.
    }
}

/// Takes the events of the completion queue, the connection manager and the device, watches deadlines, and serves a
/// dropped queue pair.
async fn attend(inner: Rc<Inner>, bell: Readable<Arc<Cq>>) {
    let mut timer: Option<(Time, LocalBoxFuture<'static, ()>)> = None;
    std::future::poll_fn(|cx| {
        inner.attendant.set(Some(cx.waker().clone()));
        loop {
            inner.take_report(cx);
            let due = {
                let state = inner.state.borrow();
                if state.ended.is_some() {
                    inner.wake_user();
                    return Poll::Ready(());
                }
                state.deadline.as_ref().map(|(at, _)| *at)
            };
            if timer.as_ref().map(|(at, _)| *at) != due {
                timer = due.map(|at| (at, Box::pin(rt::sleep_until(at)) as LocalBoxFuture<'static, ()>));
            }
            if let Some((_, sleep)) = &mut timer
                && sleep.as_mut().poll(cx).is_ready()
            {
                inner.time_is_up();
                continue;
            }
            if inner.orphaned.get() {
                // Nobody else polls; the completions are discarded.
                let mut nobody = Vec::new();
                while let Poll::Ready(Ok(())) = inner.poll(cx, &mut nobody) {
                    nobody.clear();
                }
                if inner.state.borrow().ended.is_some() {
                    continue;
                }
            }
            match (bell.poll_readable(cx), inner.events.poll_readable(cx)) {
                (Poll::Pending, Poll::Pending) => return Poll::Pending,
                (Poll::Ready(Err(e)), _) | (_, Poll::Ready(Err(e))) => {
                    inner.end_now(Disconnect::Lost(e.kind()));
                }
                (rung, Poll::Ready(Ok(()))) => {
                    inner.take_cm_event();
                    if rung.is_ready() {
                        inner.answer_bell(bell.inner());
                    }
                }
                (Poll::Ready(Ok(())), _) => inner.answer_bell(bell.inner()),
            }
        }
    })
    .await;
}

impl Inner {
    fn wake_user(&self) {
        if let Some(waker) = self.user.take() {
            waker.wake();
        }
    }

    fn wake_attendant(&self) {
        if let Some(waker) = self.attendant.take() {
            waker.wake();
        }
    }

    /// Takes completions; true if that woke the user.
    fn reap(&self) -> bool {
        let Some(user) = self.user.take() else { return false };
        let news = {
            let state = &mut *self.state.borrow_mut();
            let ended = state.ended.is_some();
            self.advance(state, None);
            !state.completions.is_empty() || state.ended.is_some() != ended || state.wants_waiting()
        };
        if news {
            user.wake();
        } else {
            self.user.set(Some(user));
        }
        news
    }

    fn arm(&self) {
        let state = &mut *self.state.borrow_mut();
        let Some(device) = &mut state.device else { return };
        if device.armed {
            return;
        }
        match device.qp.cq().arm() {
            Ok(()) => device.armed = true,
            Err(e) => {
                tracing::warn!("arming a completion queue: {e}");
                state.reason.get_or_insert(Disconnect::Lost(e.kind()));
            }
        }
    }

    // ---- events of the device and the connection manager ----

    fn answer_bell(&self, cq: &Cq) {
        if let Err(e) = cq.silence() {
            return self.end_now(Disconnect::Lost(e.kind()));
        }
        if let Some(device) = &mut self.state.borrow_mut().device {
            device.armed = false;
        }
        self.reap();
    }

    fn take_cm_event(&self) {
        let event = match self.events.inner().next() {
            Ok(event) => event,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            Err(e) => return self.end_now(Disconnect::Lost(e.kind())),
        };
        tracing::debug!(kind = event.kind, status = event.status, "connection manager");
        let reason = match event.kind {
            RDMA_CM_EVENT_DEVICE_REMOVAL => Disconnect::Lost(io::ErrorKind::NotConnected),
            RDMA_CM_EVENT_DISCONNECTED if event.status >= 0 => Disconnect::Peer,
            RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE => {
                Disconnect::Lost(io::Error::from_raw_os_error(event.status.saturating_neg()).kind())
            }
            // Changed addresses, and the end of the wait of a closed connection.
            _ => return,
        };
        self.end_now(reason);
    }

    fn take_report(&self, cx: &Context<'_>) {
        let report = {
            let state = self.state.borrow();
            let Some(device) = &state.device else { return };
            device.watch.fault.wake(cx.waker());
            device.watch.fault.report()
        };
        if let Some(report) = report {
            self.end_now(status::of_report(report));
        }
    }

    fn time_is_up(&self) {
        let reason = self.state.borrow_mut().deadline.take().map(|(_, reason)| reason);
        self.end_now(reason.unwrap_or(Disconnect::Local));
    }

    fn end_now(&self, reason: Disconnect) {
        self.end(&mut self.state.borrow_mut(), reason);
        self.wake_user();
    }

    // ---- outgoing work ----

    /// Takes completions and hands on waiting work. `cx` is given when a payload can be waited for.
    fn advance(&self, state: &mut Queues, mut cx: Option<&mut Context<'_>>) {
        loop {
            state.take_completions();
            if let Some(reason) = state.reason.take() {
                return self.end(state, reason);
            }
            if state.device.is_none() {
                return;
            }
            match state.hand_on(cx.as_deref_mut()) {
                // The work handed on may have completed, and there may be room again.
                Ok(true) => {}
                Ok(false) => break,
                Err((id, Stop::Refused(e))) => {
                    tracing::debug!("the device accepts no work: {e}");
                    state.fail(id, WorkError::Flushed);
                    state.flushed();
                    break;
                }
                Err((id, Stop::Memory(e))) => {
                    tracing::warn!(
                        "memory for RDMA: {e}; is the limit of locked memory (ulimit -l) too low?"
                    );
                    state.fail(id, WorkError::Payload(e.kind()));
                    return self.end(state, Disconnect::Local);
                }
            }
        }
        let idle = state.sends.is_empty() && state.queue.is_empty() && state.head.is_none();
        if state.closing && idle {
            self.end(state, Disconnect::Local);
        }
    }

    // ---- the end ----

    fn end(&self, state: &mut Queues, reason: Disconnect) {
        let Some(device) = state.device.as_ref() else { return };
        // A report of the device explains more than the loss of the connection that it caused.
        device.watch.collect();
        let report = device.watch.fault.report();
        state.take_completions();
        let unexplained = matches!(reason, Disconnect::Peer | Disconnect::Lost(_));
        let reported = report.map(status::of_report).filter(|told| !matches!(told, Disconnect::Lost(_)));
        let reason = match state.reason.take() {
            Some(told) if reason != Disconnect::Local => told,
            _ => reported.filter(|_| unexplained).unwrap_or(reason),
        };
        tracing::debug!(peer = %self.peer, %reason, "rnic connection ended");
        if let Some(DeviceSide { watch, _poller, qp, .. }) = state.device.take() {
            if let Err(e) = qp.disconnect() {
                tracing::debug!("rdma_disconnect: {e}");
            }
            state.take_completions_of(&qp);
            drop((watch, _poller));
            debug_assert_eq!(Arc::strong_count(&qp), 1, "set-up has let go of it");
            // From here on the device accesses none of our memory, and nobody can reach our regions.
            drop(qp);
        }
        state.flush();
        state.deadline = None;
        state.ended = Some(reason);
        self.wake_attendant();
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let state = &mut *self.state.borrow_mut();
        self.advance(state, Some(cx));
        if !state.completions.is_empty() {
            out.extend(state.completions.drain(..));
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = &state.ended {
            self.wake_attendant();
            return Poll::Ready(Err(reason.clone()));
        }
        if state.deadline.is_some() {
            // The task watches the deadline.
            self.wake_attendant();
        }
        self.user.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl QueuePair for RnicQueuePair {
    fn provider(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        self.0.state.borrow().caps
    }

    fn peer(&self) -> Peer {
        self.0.peer
    }

    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let state = &mut *self.0.state.borrow_mut();
        if state.device.is_none() || state.closing {
            return Err(PostError::Closed);
        }
        state.regions.register(buf, access)
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        let state = &mut *self.0.state.borrow_mut();
        match state.regions.take(stag) {
            Ok(buf) => buf,
            Err(NotReleased) => {
                self.0.end(state, Disconnect::Lost(io::ErrorKind::Other));
                self.0.wake_user();
                None
            }
        }
    }

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        if state.device.is_none() || state.closing {
            return Err((PostError::Closed, work));
        }
        if let Work::Recv { id, buf } = work {
            return state.post_recv(id, buf);
        }
        if let Err(e) = check(&work, &state.caps, state.send_pieces) {
            return Err((e, work));
        }
        if state.posted >= state.caps.max_send_work {
            return Err((PostError::QueueFull, work));
        }
        state.posted = state.posted.saturating_add(1);
        state.queue.push_back(work);
        inner.advance(state, None);
        if !state.completions.is_empty() || state.ended.is_some() || state.wants_waiting() {
            inner.wake_user();
        }
        Ok(())
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        self.0.poll(cx, out)
    }

    /// Polling checks the completion queue itself.
    fn look(&self) {}

    fn traffic(&self) -> Traffic {
        self.0.state.borrow().traffic
    }

    fn close(&self) {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        if state.device.is_none() || std::mem::replace(&mut state.closing, true) {
            return;
        }
        state.deadline.get_or_insert((rt::now() + inner.close_timeout, Disconnect::Local));
        inner.advance(state, None);
        inner.wake_user();
        inner.wake_attendant();
    }
}

impl Drop for RnicQueuePair {
    fn drop(&mut self) {
        self.0.orphaned.set(true);
        self.close();
        self.0.wake_attendant();
    }
}
