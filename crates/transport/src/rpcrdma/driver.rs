//! Binds one side's state machine to its queue pair, the pool and the files.
//!
//! [`Inner`] is the connection. It owns the queues between the channel's users and the queue pair. It decides nothing
//! that RFC 8166 decides. `channel` is what users call.
//!
//! `drive` moves everything that can move: posts queued work, takes completions, finds buffers for pulls, prepares the
//! oldest unsent message. `send` calls it without waiting, and so does every future that waits; the queue pair wakes
//! the last caller, which does the work for all and wakes the others concerned. A future that ends passes the wake-up
//! on ([`Inner::hand_over`]). A received message is delivered as a slice of the receive buffer if the pool has a fresh
//! one to post in its place; otherwise it is copied, so that the peer's credits stay backed by buffers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use slab::Slab;
use weft_machine::buf::Waiting;
use weft_machine::recorder::{self, Stage};
use weft_machine::{Buf, LogLimit, Payload, Pool, Time, rt};
use weft_rdma::{Completion, Done, PostError, QueuePair, Work};

use super::Config;
use super::requester::{Prepared, Requester, Shape, prepare, refusal};
use super::responder::{Arrived, Out, Responder, id};
use crate::channel::{Ending, Error, Outgoing, Part};

/// Work that waits for room in the send queue; more means that the peer does not take what it requested. All credits
/// with the longest chunk lists make 64 * 168 pieces.
const MAX_WORK: usize = 1 << 14;

/// Which side of RPC this is.
pub(super) enum Role {
    Responder(Responder),
    Requester(Requester),
}

pub(super) struct Inner {
    pub(super) qp: Rc<dyn QueuePair>,
    pool: Pool,
    pub(super) config: Config,
    /// Tells the waits of unsent replies for a disk.
    pub(super) stage: Arc<Stage>,
    pub(super) state: RefCell<State>,
    /// The task that waits in `recv`.
    pub(super) reader: RefCell<Option<Waker>>,
}

pub(super) struct State {
    pub(super) role: Role,
    pub(super) out: Out,
    /// Submitted but not yet with the state machine, oldest first.
    pub(super) unsent: VecDeque<Unsent>,
    /// The oldest of them, being prepared.
    pub(super) preparing: Option<Preparing>,
    /// Sends on the queue pair, by key.
    pub(super) sends: Slab<Rc<Sent>>,
    pub(super) closing: bool,
    pub(super) ended: Option<Ending>,
    completions: Vec<Completion>,
    /// The position in the queue for memory of the oldest call to be pulled.
    pub(super) waiting: Waiting,
    /// Wakes the driving task when the state machine's deadline may have come; never later than that.
    timer: Option<(Time, LocalBoxFuture<'static, ()>)>,
}

/// A message that waits for credits, for the send queue, or for messages before it.
pub(super) struct Unsent {
    pub message: Outgoing,
    /// How it will travel; calls only.
    pub shape: Option<Shape>,
    pub sent: Rc<Sent>,
}

pub(super) struct Preparing {
    ready: LocalBoxFuture<'static, Result<Ready, Error>>,
    /// Of a call.
    xid: Option<u32>,
    pub sent: Rc<Sent>,
}

/// A message whose bytes are all in place.
enum Ready {
    Reply(Outgoing),
    Call(Prepared),
}

/// The state of one send, shared with its future.
#[derive(Default)]
pub(super) struct Sent {
    /// Of the message, in memory.
    pub bytes: usize,
    pub outcome: Cell<Option<Result<(), Error>>>,
    pub waker: RefCell<Option<Waker>>,
}

impl Sent {
    fn finish(&self, outcome: Result<(), Error>) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

pub(super) fn receive_buffer(buf: Buf) -> Work {
    Work::Recv { id: id::RECV, buf }
}

impl Inner {
    pub(super) fn new(qp: Rc<dyn QueuePair>, pool: Pool, config: Config, role: Role) -> Rc<Inner> {
        let state = State {
            role,
            out: Out::default(),
            unsent: VecDeque::new(),
            preparing: None,
            sends: Slab::new(),
            closing: false,
            ended: None,
            completions: Vec::new(),
            waiting: Waiting::default(),
            timer: None,
        };
        let (stage, state, reader) = (Stage::new(), RefCell::new(state), RefCell::new(None));
        Rc::new(Inner { qp, pool, config, stage, state, reader })
    }

    /// Moves whatever can move. The queue pair wakes `cx` when more can.
    pub(super) fn drive(&self, cx: &mut Context<'_>) {
        let state = &mut *self.state.borrow_mut();
        loop {
            state.pull(cx, self);
            state.advance(cx, self);
            if state.ended.is_some() {
                return;
            }
            let mut completions = std::mem::take(&mut state.completions);
            let polled = self.qp.poll(cx, &mut completions);
            let progress = !completions.is_empty();
            for completion in completions.drain(..) {
                if let Err(ending) = state.completed(completion, self) {
                    state.end(ending, self);
                    break;
                }
            }
            state.completions = completions;
            match polled {
                Poll::Ready(Err(disconnect)) => {
                    let ending = match disconnect {
                        weft_rdma::Disconnect::Peer => Ending::Peer,
                        weft_rdma::Disconnect::Local => Ending::Local,
                        other => Ending::Rdma(other),
                    };
                    return state.end(ending, self);
                }
                Poll::Ready(Ok(())) => {}
                // The results of the completions must move before anybody sleeps.
                Poll::Pending if progress => {}
                Poll::Pending => return state.watch_the_clock(cx, self),
            }
        }
    }

    /// Like `drive`, without a task to wake: what needs one, such as a wait for buffers, is left to the next future
    /// that waits.
    pub(super) fn try_advance(&self) {
        let state = &mut *self.state.borrow_mut();
        state.advance(&mut Context::from_waker(Waker::noop()), self);
        if state.preparing.is_some() || !state.out.messages.is_empty() {
            self.wake_reader();
        }
    }

    pub(super) fn wake_reader(&self) {
        if let Some(reader) = &*self.reader.borrow() {
            reader.wake_by_ref();
        }
    }

    /// A waiting sender has ended: the queue pair must wake somebody else.
    pub(super) fn hand_over(&self) {
        if self.reader.borrow().is_some() {
            return self.wake_reader();
        }
        let state = self.state.borrow();
        let unsent = state.unsent.iter().map(|unsent| &unsent.sent);
        let preparing = state.preparing.iter().map(|preparing| &preparing.sent);
        let mut waiting = state.sends.iter().map(|(_, sent)| sent).chain(preparing).chain(unsent);
        let next = waiting.find_map(|sent| sent.waker.borrow().clone());
        drop(state);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

impl State {
    fn advance(&mut self, cx: &mut Context<'_>, inner: &Inner) {
        self.send_unsent(cx, inner);
        self.post_receives(inner);
        self.post(inner);
        let drained = self.unsent.is_empty() && self.preparing.is_none() && self.out.work.is_empty();
        if self.closing && drained && self.ended.is_none() {
            inner.qp.close();
        }
    }

    /// Posts receives for the credits that the client has used.
    fn post_receives(&mut self, inner: &Inner) {
        let Role::Responder(responder) = &mut self.role else { return };
        let (wanted, needed) = responder.receives_wanted();
        // Optional receives only take memory from pools that have plenty.
        if wanted == 0 || !needed && !inner.pool.has_plenty() {
            return;
        }
        let post = |_: &u32| {
            let buf = inner.pool.try_alloc(inner.config.inline_bytes);
            buf.is_some_and(|buf| inner.qp.post(receive_buffer(buf)).is_ok())
        };
        let posted = (0..wanted).take_while(post).count() as u32;
        if posted > 0 {
            responder.posted(posted, &mut self.out);
        }
    }

    /// Finds buffers for calls whose chunks wait to be pulled.
    fn pull(&mut self, cx: &mut Context<'_>, inner: &Inner) {
        let pool = &inner.pool;
        let Role::Responder(responder) = &mut self.role else { return };
        while let Some(wanted) = responder.wanted() {
            match pool.poll_alloc_many(cx, &wanted, &mut self.waiting) {
                Poll::Ready(Ok(bufs)) => responder.provide(bufs, rt::now(), &mut self.out),
                Poll::Ready(Err(e)) => {
                    tracing::warn!("a call's chunks: {e}");
                    return self.end(Ending::Violation("chunks that the pool cannot hold"), inner);
                }
                Poll::Pending => return,
            }
        }
    }

    /// Ends a connection whose peer is late, or ensures that `cx` is woken in time.
    fn watch_the_clock(&mut self, cx: &mut Context<'_>, inner: &Inner) {
        let Role::Responder(responder) = &self.role else { return };
        while let Some((deadline, what)) = responder.deadline() {
            if deadline <= rt::now() {
                return self.end(Ending::TimedOut(what), inner);
            }
            // Deadlines only move later: a timer that fires early is set again.
            let (_, timer) =
                self.timer.get_or_insert_with(|| (deadline, Box::pin(rt::sleep_until(deadline))));
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.timer = None;
        }
    }

    /// Passes unsent messages to the state machine, in order.
    fn send_unsent(&mut self, cx: &mut Context<'_>, inner: &Inner) {
        loop {
            if let Some(preparing) = &mut self.preparing {
                let Poll::Ready(ready) = preparing.ready.as_mut().poll(cx) else { return };
                if let Some(Preparing { xid, sent, .. }) = self.preparing.take() {
                    match ready {
                        Ok(ready) => self.issue(ready, xid, sent, inner),
                        Err(e) => self.failed(xid, sent, e, inner),
                    }
                }
                continue;
            }
            if let Role::Requester(requester) = &self.role
                && !requester.admits()
            {
                return;
            }
            let Some(Unsent { message, shape, sent }) = self.unsent.pop_front() else { return };
            let (pool, qp) = (inner.pool.clone(), inner.qp.clone());
            match (&self.role, shape) {
                (Role::Requester(_), Some(shape)) => {
                    let ready =
                        Box::pin(async move { Ok(Ready::Call(prepare(message, shape, pool, &*qp).await?)) });
                    self.preparing = Some(Preparing { ready, xid: Some(shape.xid()), sent });
                }
                (Role::Responder(responder), _) if responder.must_load(&message) => {
                    self.preparing = Some(Preparing {
                        ready: Box::pin(recorder::staged(&inner.stage, load(message, pool))),
                        xid: None,
                        sent,
                    });
                }
                _ => self.issue(Ready::Reply(message), None, sent, inner),
            }
        }
    }

    fn issue(&mut self, ready: Ready, xid: Option<u32>, sent: Rc<Sent>, inner: &Inner) {
        let entry = self.sends.vacant_entry();
        let send_id = id::SEND | entry.key() as u64;
        let issued = match (&mut self.role, ready) {
            (Role::Responder(responder), Ready::Reply(reply)) => {
                responder.reply(reply, send_id, &mut self.out)
            }
            (Role::Requester(requester), Ready::Call(call)) => {
                requester.call(call, &*inner.qp, send_id, &mut self.out)
            }
            _ => Err(Error::Misuse("a message for the other role")),
        };
        match issued {
            Ok(()) => {
                entry.insert(sent);
            }
            Err(e) => self.failed(xid, sent, e, inner),
        }
    }

    /// The caller of a reply that cannot be sent would wait forever, so the connection must end (RFC 8166 4.5.4). A
    /// call that cannot be sent fails alone; the waiter for its reply gets the error that a refusal by the server would
    /// give, since not everybody waits for the send.
    fn failed(&mut self, xid: Option<u32>, sent: Rc<Sent>, e: Error, inner: &Inner) {
        tracing::debug!("message not sent: {e}");
        match xid {
            Some(xid) => self.out.messages.push_back(Arrived::Whole(refusal(xid))),
            None => {
                static UNSENT: LogLimit = LogLimit::new();
                if let Some(left_out) = UNSENT.pass(rt::now()) {
                    let peer = inner.qp.peer();
                    tracing::warn!(%peer, "a reply cannot be sent, so its connection ends: {e}{left_out}");
                }
                self.end(Ending::Violation("a reply could not be sent"), inner);
            }
        }
        sent.finish(Err(e));
    }

    fn post(&mut self, inner: &Inner) {
        while let Some(work) = self.out.work.pop_front() {
            match inner.qp.post(work) {
                Ok(()) => {}
                // Completions make room.
                Err((PostError::QueueFull, work)) => {
                    self.out.work.push_front(work);
                    if self.out.work.len() > MAX_WORK {
                        self.end(Ending::Violation("the peer does not take its replies"), inner);
                    }
                    return;
                }
                // `poll` reports why.
                Err((PostError::Closed, _)) => return self.out.work.clear(),
                Err((PostError::Misuse(why), _)) => return self.end(Ending::Violation(why), inner),
                Err((PostError::RegionsFull(_), _)) => {
                    return self.end(Ending::Violation("region table full"), inner);
                }
            }
        }
    }

    fn completed(&mut self, completion: Completion, inner: &Inner) -> Result<(), Ending> {
        let (kind, key) = (id::kind(completion.id), id::key(completion.id));
        match completion.result {
            Ok(Done::Received { buf, .. }) => {
                let message = self.repost(buf, inner);
                match &mut self.role {
                    Role::Responder(responder) => responder.received(message, &mut self.out)?,
                    Role::Requester(requester) => requester.received(message, &*inner.qp, &mut self.out)?,
                }
            }
            Ok(Done::Read { buf }) => {
                if let Role::Responder(responder) = &mut self.role {
                    responder.pulled(key, buf, &mut self.out);
                }
            }
            Ok(Done::Sent | Done::Written) => {
                if kind == id::SEND
                    && let Some(sent) = self.sends.try_remove(key)
                {
                    sent.finish(Ok(()));
                }
            }
            Err(e) => {
                if kind == id::SEND
                    && let Some(sent) = self.sends.try_remove(key)
                {
                    sent.finish(Err(e.clone().into()));
                }
                // The queue pair is in its error state; the reason of the first failure is the one to report. Flushed
                // work has none, and `poll` will report it.
                if e != weft_rdma::WorkError::Flushed && self.ended.is_none() {
                    return Err(Ending::Work(e));
                }
            }
        }
        Ok(())
    }

    /// Takes the message out of a receive buffer, and posts a buffer for the next message.
    fn repost(&mut self, buf: Buf, inner: &Inner) -> Bytes {
        let (message, next) = match inner.pool.try_alloc(inner.config.inline_bytes) {
            Some(next) => (buf.freeze(), next),
            None => (Bytes::copy_from_slice(&buf), buf),
        };
        if let Err((e, _)) = inner.qp.post(receive_buffer(next))
            && !matches!(e, PostError::Closed)
        {
            self.end(Ending::Violation("a receive buffer could not be posted"), inner);
        }
        message
    }

    /// Only the first reason counts.
    fn end(&mut self, ending: Ending, inner: &Inner) {
        if self.ended.is_some() {
            return;
        }
        inner.qp.close();
        self.out.work.clear();
        if let Role::Responder(responder) = &mut self.role {
            responder.abandon();
        }
        let unsent = std::mem::take(&mut self.unsent).into_iter().map(|unsent| unsent.sent);
        let preparing = self.preparing.take().map(|preparing| preparing.sent);
        for sent in self.sends.drain().chain(preparing).chain(unsent) {
            sent.finish(Err(ending.at_sender()));
        }
        self.timer = None;
        self.waiting.leave();
        self.ended = Some(ending);
        inner.wake_reader();
    }
}

/// Reads the file ranges that a reply carries in its stream.
async fn load(mut reply: Outgoing, pool: Pool) -> Result<Ready, Error> {
    for part in &mut reply.parts {
        if let Part::Payload { data, .. } = part
            && matches!(data, Payload::File(_))
        {
            let file = std::mem::replace(data, Payload::Chain(Vec::new()));
            *data = Payload::Chain(file.into_chain(&pool).await?);
        }
    }
    Ok(Ready::Reply(reply))
}
