//! The driver: binds an [`Engine`] to a queue pair, the pool and the clock.
//!
//! [`Core`] is one connection. It implements [MS-SMBD] 3.1.4. It owns the queue pair, work that the queue pair had no
//! room for, and delivered messages. It decides nothing about the protocol.
//!
//! `drive` takes completions until there are none and then `pump`s: posts receives, carries out the engine's outputs.
//! `send` and `recv` call both directly. When it is woken, the connection's own task does the same after the reader; it
//! also waits for pool memory, file reads and timers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use slab::Slab;
use weft_machine::buf::Waiting;
use weft_machine::recorder::Stage;
use weft_machine::{Buf, Payload, Pool, Time, rt};
use weft_rdma::{Completion, Disconnect, Done, PostError, QueuePair, Work, WorkError};

use super::config::Config;
use super::engine::{Engine, Event, Output, Role, Submission};
use super::relay::Relay;
use super::split;
use crate::channel::{Ending, Error, Outgoing, Part, To};
use crate::sent::Sent;

/// How long a closed channel keeps sending queued messages to a peer that grants no credits.
pub(super) const LINGER: Duration = Duration::from_secs(5);
/// The most unsent messages. SMB2 credits are 16 bits wide, so a peer cannot have more outstanding.
const MAX_QUEUED: u64 = 1 << 16;
/// Batches of completions after which other tasks of the core run.
const BATCHES: usize = 16;
/// Receive buffers kept for the next receives.
const MAX_SPARES: usize = 8;

/// The kind of work that a completion belongs to: the upper bits of its id.
const RECEIVE: u64 = 0;
const SEND: u64 = 1 << 62;
const WRITE: u64 = 2 << 62;
pub(super) const READ: u64 = 3 << 62;
const KIND: u64 = 3 << 62;
/// The number of Sends that finish no message.
const NO_MESSAGE: u64 = !KIND;

/// A connection and everything that it owns.
pub(super) struct Core {
    pub(super) queue_pair: Rc<dyn QueuePair>,
    pub(super) pool: Pool,
    pub(super) relay: Arc<Relay>,
    /// The relay, as the queue pair's waker.
    waker: Waker,
    /// The queue pair can be polled without a system call.
    pub(super) bypass: bool,
    /// A reader is active: it polls for messages itself.
    pub(super) reading: Cell<bool>,
    /// Tells the waits of unsent messages for a disk.
    pub(super) stage: Arc<Stage>,
    pub(super) state: RefCell<State>,
}

/// The mutable state.
pub(super) struct State {
    pub(super) engine: Engine,
    /// Work that the queue pair had no room for, in order.
    works: VecDeque<Work>,
    /// Completions held back while the engine waits for a buffer.
    backlog: VecDeque<Completion>,
    /// `poll` appends completions here; empty between calls.
    completions: Vec<Completion>,
    spares: Vec<Buf>,
    pub(super) inbox: VecDeque<Bytes>,
    pub(super) sent: Sent,
    /// Messages whose payload is being read, and all messages sent after them.
    pub(super) loading: VecDeque<(u64, LocalBoxFuture<'static, io::Result<Outgoing>>)>,
    pub(super) reads: Slab<Reading>,
    /// The pool had no memory for receives, or for a reassembly buffer.
    hungry: bool,
    /// The position of that request in the queue for memory.
    waiting: Waiting,
    /// When the connection's task will check the clock.
    armed: Time,
    pub(super) closing: Option<Time>,
    /// What users are told; the queue pair may live on until `gone`.
    pub(super) ended: Option<Ending>,
    /// The queue pair has ended.
    gone: bool,
}

/// An RDMA Read of [`RemotePayload::fetch`](crate::RemotePayload::fetch).
pub(super) enum Reading {
    UnderWay(Option<Waker>),
    Done(Result<Buf, WorkError>),
    /// Nobody waits any more; the buffer is dropped when the Read completes.
    Abandoned,
}

/// Work that posts a receive buffer.
pub(super) fn receive(buf: Buf) -> Work {
    Work::Recv { id: RECEIVE, buf }
}

/// Starts the connection of a new queue pair that has `posted` receives.
pub(super) fn start(
    queue_pair: Rc<dyn QueuePair>,
    role: Role,
    config: Config,
    pool: Pool,
    posted: usize,
) -> Rc<Core> {
    let now = rt::now();
    let mut engine = Engine::new(role, config, now);
    // The engine cannot refuse a posted receive.
    let _ = engine.handle(Event::Posted(posted), now);
    let relay = Arc::new(Relay::default());
    let core = Rc::new(Core {
        bypass: queue_pair.caps().kernel_bypass,
        queue_pair,
        pool,
        waker: relay.clone().into(),
        relay,
        reading: Cell::new(false),
        stage: Stage::new(),
        state: RefCell::new(State {
            engine,
            works: VecDeque::new(),
            backlog: VecDeque::new(),
            completions: Vec::new(),
            spares: Vec::new(),
            inbox: VecDeque::new(),
            sent: Sent::default(),
            loading: VecDeque::new(),
            reads: Slab::new(),
            hungry: false,
            waiting: Waiting::default(),
            armed: now,
            closing: None,
            ended: None,
            gone: false,
        }),
    });
    rt::spawn(core.clone().run()).detach();
    core
}

impl Core {
    /// The connection's own task; it ends with the queue pair.
    async fn run(self: Rc<Core>) {
        loop {
            let deadline = {
                let state = &mut *self.state.borrow_mut();
                state.armed = state.next_look();
                state.armed
            };
            let mut sleep = pin!(rt::sleep_until(deadline));
            let mut asleep = true;
            poll_fn(|cx| {
                self.relay.set_task(cx.waker());
                self.drive(true);
                self.feed(cx);
                self.relay.need_task(self.state.borrow().needs_task());
                asleep = sleep.as_mut().poll(cx).is_pending();
                let state = self.state.borrow();
                if state.gone || !asleep || state.next_look() < state.armed {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            if self.state.borrow().gone {
                return;
            }
            if !asleep {
                self.look_at_the_clock();
            }
        }
    }

    fn look_at_the_clock(&self) {
        let now = rt::now();
        let state = &mut *self.state.borrow_mut();
        if state.closing.is_some_and(|at| at <= now) {
            // The peer's time is over. If the provider does not report the end within another LINGER, it is abandoned.
            self.queue_pair.close();
            state.gone = state.ended.is_some();
            state.closing = Some(now + LINGER);
            state.end(Ending::Local, &self.relay);
        }
        if state.ended.is_none()
            && let Err(ending) = state.engine.handle(Event::Timeout, now)
        {
            self.fail(state, ending, now);
        }
        self.pump(state, true);
    }

    /// Takes completions until there are none. `idle`: also does what can wait for an idle moment.
    pub(super) fn drive(&self, idle: bool) {
        self.take_completions(&mut self.state.borrow_mut(), idle);
    }

    /// Takes the completions of work that was carried out while it was posted, so that nobody needs to be woken for
    /// them. This pays only if polling needs no system call.
    pub(super) fn reap(&self, state: &mut State) {
        if self.bypass {
            self.take_completions(state, false);
        }
    }

    fn take_completions(&self, state: &mut State, idle: bool) {
        let mut cx = Context::from_waker(&self.waker);
        let mut batches = 0;
        while !state.gone {
            if batches == BATCHES {
                self.relay.wake_task();
                break;
            }
            batches = batches.saturating_add(1);
            match self.queue_pair.poll(&mut cx, &mut state.completions) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) => {
                    let now = rt::now();
                    let mut completions = std::mem::take(&mut state.completions);
                    for completion in completions.drain(..) {
                        self.complete(state, completion, now);
                    }
                    state.completions = completions;
                    state.sent.wake();
                    self.pump(state, false);
                }
                Poll::Ready(Err(disconnect)) => {
                    state.gone = true;
                    let ending = match disconnect {
                        Disconnect::Peer if state.engine.is_mid_message() => {
                            Ending::Io(io::ErrorKind::UnexpectedEof)
                        }
                        Disconnect::Peer => Ending::Peer,
                        Disconnect::Local => Ending::Local,
                        other => Ending::Rdma(other),
                    };
                    state.end(ending, &self.relay);
                    self.relay.wake_task();
                }
            }
        }
        if idle {
            self.pump(state, true);
        }
    }

    /// Ends the connection for a local reason.
    fn fail(&self, state: &mut State, ending: Ending, now: Time) {
        tracing::debug!(peer = %self.queue_pair.peer(), ?ending, "SMB Direct connection failed");
        state.end(ending, &self.relay);
        state.closing.get_or_insert(now + LINGER);
        self.queue_pair.close();
        self.relay.wake_task();
    }

    fn complete(&self, state: &mut State, completion: Completion, now: Time) {
        let number = completion.id & NO_MESSAGE;
        match (completion.id & KIND, completion.result) {
            (RECEIVE, Ok(Done::Received { buf, invalidated, solicited })) => {
                if state.ended.is_some() {
                    return;
                }
                if !state.backlog.is_empty() || state.engine.buffer_wanted().is_some() {
                    let result = Ok(Done::Received { buf, invalidated, solicited });
                    state.backlog.push_back(Completion { id: completion.id, result });
                    return;
                }
                self.received(state, buf, now);
            }
            (SEND, Ok(_)) if number != NO_MESSAGE => state.sent.done(number),
            (READ, result) => {
                let outcome = match result {
                    Ok(Done::Read { buf }) => Ok(buf),
                    Ok(_) => Err(WorkError::Flushed),
                    Err(e) => Err(e),
                };
                if let Err(e) = &outcome {
                    self.broken(state, e.clone(), now);
                }
                state.read(number as usize, outcome);
            }
            (_, Err(e)) => self.broken(state, e, now),
            (_, Ok(_)) => {}
        }
    }

    fn received(&self, state: &mut State, buf: Buf, now: Time) {
        if let Err(ending) = state.engine.handle(Event::Received(buf), now) {
            self.fail(state, ending, now);
        }
    }

    /// A piece of work failed, and the queue pair with it. The first error that is not a flush is the reason.
    fn broken(&self, state: &mut State, e: WorkError, now: Time) {
        if e != WorkError::Flushed && state.ended.is_none() {
            self.fail(state, Ending::Work(e), now);
        }
    }

    /// Posts receives and carries out the engine's outputs, until nothing is left to do now.
    pub(super) fn pump(&self, state: &mut State, idle: bool) {
        if state.ended.is_some() {
            return;
        }
        let mut progress = true;
        while progress && state.ended.is_none() {
            self.post_works(state);
            progress = self.post_receives(state, idle);
            while let Some(output) = state.engine.poll_output() {
                progress = true;
                self.carry_out(state, output);
            }
            progress |= self.assemble(state);
        }
        if state.closing.is_some() && state.ended.is_none() && state.is_drained() {
            self.queue_pair.close();
            state.end(Ending::Local, &self.relay);
        }
        if state.next_look() < state.armed {
            self.relay.wake_task();
        }
    }

    /// Posts work that waits for room in the queue.
    fn post_works(&self, state: &mut State) {
        while let Some(work) = state.works.pop_front() {
            if let Err(work) = self.try_post(state, work) {
                state.works.push_front(work);
                return;
            }
        }
    }

    pub(super) fn post(&self, state: &mut State, work: Work) {
        if state.works.is_empty() {
            if let Err(work) = self.try_post(state, work) {
                state.works.push_back(work);
            }
        } else {
            state.works.push_back(work);
        }
    }

    /// Posts now, or returns the work if the queue is full.
    fn try_post(&self, state: &mut State, work: Work) -> Result<(), Work> {
        match self.queue_pair.post(work) {
            Ok(()) => Ok(()),
            Err((PostError::QueueFull, work)) => Err(work),
            Err((e, work)) => {
                // Closed: the next poll returns the reason. Otherwise the work is inconsistent.
                if let Work::Read { id, .. } = work {
                    state.read((id & NO_MESSAGE) as usize, Err(WorkError::Flushed));
                }
                if !matches!(e, PostError::Closed) {
                    tracing::debug!(error = %e, "work refused");
                    self.fail(state, Ending::Violation("work that the provider refuses"), rt::now());
                }
                Ok(())
            }
        }
    }

    /// Returns whether any was posted.
    fn post_receives(&self, state: &mut State, idle: bool) -> bool {
        if !(idle || state.engine.receives_urgent()) {
            return false;
        }
        let (wanted, needed) = (state.engine.receives_wanted(), state.engine.receives_needed());
        let size = state.engine.receive_size();
        let mut posted = 0;
        while posted < wanted {
            // Optional receives only take memory from pools that have plenty.
            let take = || posted < needed || self.pool.has_plenty();
            let Some(buf) = state.spares.pop().or_else(|| take().then(|| self.pool.try_alloc(size))?) else {
                if posted < needed {
                    self.starve(state);
                }
                break;
            };
            match self.queue_pair.post(receive(buf)) {
                Ok(()) => posted = posted.saturating_add(1),
                Err((PostError::QueueFull, Work::Recv { buf, .. })) => {
                    state.spares.push(buf);
                    break;
                }
                Err(_) => break,
            }
        }
        state.spares.truncate(MAX_SPARES);
        if posted > 0 {
            // The engine cannot refuse a posted receive.
            let _ = state.engine.handle(Event::Posted(posted), Time::ZERO);
        }
        posted > 0
    }

    fn carry_out(&self, state: &mut State, output: Output) {
        match output {
            Output::Send { data, invalidate, finishes } => {
                let id = SEND | finishes.unwrap_or(NO_MESSAGE);
                let send = Work::Send { id, data, invalidate, solicited: false, signalled: true };
                self.post(state, send);
            }
            Output::Deliver(body) => {
                state.inbox.push_back(body);
                if !self.reading.get() {
                    self.relay.wake_reader();
                }
            }
            Output::Spare(buf) => {
                if buf.capacity() >= state.engine.receive_size() {
                    state.spares.push(buf);
                }
            }
            Output::Close(ending) => self.fail(state, ending, rt::now()),
        }
    }

    /// Gives the engine the buffer that it waits for, and the messages that arrived meanwhile. Returns whether anything
    /// happened.
    fn assemble(&self, state: &mut State) -> bool {
        if state.ended.is_some() {
            return false;
        }
        if let Some(len) = state.engine.buffer_wanted() {
            let Some(buf) = self.pool.try_alloc(len) else {
                self.starve(state);
                return false;
            };
            self.bring(state, buf);
        } else if state.backlog.is_empty() {
            return false;
        }
        while state.ended.is_none() && state.engine.buffer_wanted().is_none() {
            let Some(completion) = state.backlog.pop_front() else { break };
            if let Ok(Done::Received { buf, .. }) = completion.result {
                self.received(state, buf, rt::now());
            }
        }
        true
    }

    /// Passes the requested buffer to the engine.
    fn bring(&self, state: &mut State, buf: Buf) {
        let now = rt::now();
        if let Err(ending) = state.engine.handle(Event::Buffer(buf), now) {
            self.fail(state, ending, now);
        }
    }

    /// The pool is empty: the connection's task waits for memory.
    fn starve(&self, state: &mut State) {
        if !state.hungry {
            state.hungry = true;
            self.relay.need_task(true);
            self.relay.wake_task();
        }
    }

    /// Handles what only the connection's task can wait for: pool memory, and payload being read.
    fn feed(&self, cx: &mut Context<'_>) {
        let state = &mut *self.state.borrow_mut();
        let mut fed = false;
        if state.hungry && state.ended.is_none() {
            let wanted = state.engine.buffer_wanted();
            let len = wanted.unwrap_or(state.engine.receive_size());
            if let Poll::Ready(buf) = self.pool.poll_alloc(cx, len, &mut state.waiting) {
                state.hungry = false;
                fed = true;
                match wanted {
                    Some(_) => self.bring(state, buf),
                    None => state.spares.push(buf),
                }
            }
        }
        while let Some((number, loading)) = state.loading.front_mut() {
            let number = *number;
            let Poll::Ready(loaded) = loading.as_mut().poll(cx) else { break };
            state.loading.pop_front();
            fed = true;
            match loaded {
                Ok(outgoing) => self.submit(state, number, outgoing),
                Err(e) => state.sent.fail(number, e),
            }
        }
        if fed {
            self.pump(state, true);
        }
    }

    /// Posts a message's RDMA Writes and queues its bytes. All inline payload must be in memory.
    pub(super) fn submit(&self, state: &mut State, number: u64, outgoing: Outgoing) {
        if state.ended.is_some() {
            return;
        }
        // The first element is reserved for the header.
        let mut body = Vec::with_capacity(outgoing.parts.len().saturating_add(1));
        body.push(Bytes::new());
        for part in outgoing.parts {
            match part {
                Part::Bytes(bytes) => body.push(bytes),
                Part::Payload { data, to: To::Segments(segments) } => {
                    split::writes(data, segments, |data, to| {
                        self.post(state, Work::Write { id: WRITE, data, to, signalled: false });
                    });
                }
                Part::Payload { data: Payload::Chain(chain), .. } => body.extend(chain),
                Part::Payload { data: Payload::File(_), .. } => debug_assert!(false, "loaded before"),
            }
        }
        let len = body.iter().map(Bytes::len).sum();
        let submission = Submission { number, body, len, invalidate: outgoing.invalidate };
        // The engine cannot refuse a submission: its length was checked.
        let _ = state.engine.handle(Event::Submit(submission), Time::ZERO);
    }

    /// Whether a message can be sent at all.
    pub(super) fn check(&self, state: &State, outgoing: &Outgoing) -> Result<(), Error> {
        if let Some(ending) = &state.ended {
            return Err(ending.at_sender());
        }
        if state.closing.is_some() {
            return Err(Error::Closed);
        }
        if state.sent.outstanding() >= MAX_QUEUED {
            return Err(Error::Misuse("more messages queued than a peer can have requested"));
        }
        let mut len = 0usize;
        for part in &outgoing.parts {
            match part {
                Part::Bytes(bytes) => len = len.saturating_add(bytes.len()),
                Part::Payload { data, to: To::Segments(segments) } => {
                    split::check(data.len(), segments, state.engine.max_read_write())?;
                }
                Part::Payload { data, .. } => len = len.saturating_add(data.len()),
            }
        }
        match len {
            0 => Err(Error::Misuse("SMB Direct has no empty messages")),
            _ if len > state.engine.max_message_out() => {
                Err(Error::Misuse("message longer than the peer can reassemble"))
            }
            _ => Ok(()),
        }
    }
}

impl State {
    /// Users are told the first reason.
    fn end(&mut self, ending: Ending, relay: &Relay) {
        if self.ended.is_none() {
            self.ended = Some(ending);
            self.works.clear();
            self.backlog.clear();
            self.loading.clear();
            self.sent.wake_all();
            relay.wake_all();
        }
        if self.gone {
            for (_, reading) in &mut self.reads {
                if let Reading::UnderWay(waker) = reading {
                    let waker = waker.take();
                    *reading = Reading::Done(Err(WorkError::Flushed));
                    waker.into_iter().for_each(Waker::wake);
                }
            }
        }
    }

    fn read(&mut self, slot: usize, outcome: Result<Buf, WorkError>) {
        match self.reads.get_mut(slot) {
            Some(reading @ Reading::UnderWay(_)) => {
                if let Reading::UnderWay(Some(waker)) = std::mem::replace(reading, Reading::Done(outcome)) {
                    waker.wake();
                }
            }
            Some(Reading::Abandoned) => drop(self.reads.remove(slot)),
            Some(Reading::Done(_)) | None => {}
        }
    }

    /// Whether anybody waits for something other than messages, which no reader polls for.
    fn needs_task(&self) -> bool {
        self.hungry
            || self.closing.is_some()
            || !self.loading.is_empty()
            || !self.reads.is_empty()
            || self.sent.is_awaited()
    }

    /// Nothing arrives before the pool has a buffer: for the remainder of a message, or for any message at all.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.hungry && (self.engine.buffer_wanted().is_some() || self.engine.is_without_receives())
    }

    fn is_drained(&self) -> bool {
        self.engine.is_drained() && self.works.is_empty() && self.loading.is_empty()
    }

    /// When the clock must be checked next.
    fn next_look(&self) -> Time {
        let engine = if self.ended.is_none() { self.engine.poll_timeout() } else { None };
        let never = self.armed + Duration::from_secs(3600);
        engine.into_iter().chain(self.closing).min().unwrap_or(never)
    }
}
