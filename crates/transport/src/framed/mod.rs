//! Messages over a byte stream, each after a header of four bytes: the common part of `nbss` and `record`.
//!
//! [`Framed`] is a [`Channel`] over a stream, for any [`Framing`]. The framing defines the headers. It owns the stream,
//! the staging buffer for receives, the queue of unsent messages and its writer task. It has no RDMA, does not
//! interpret messages and does not retry.
//!
//! `send` drains the queue at once, as far as the socket accepts it; the writer task sends the remainder. A corked
//! channel drains at the uncork, or when its reader would sleep. Received messages are slices of pool buffers that the
//! kernel filled; sent payload comes from the caller's buffers, from one scratch buffer per gather write, or from the
//! page cache. A payload that cannot be read before its message has begun fails that `send` only; any other error ends
//! the channel. The beginning of a long payload, up to a megabyte, is known to be readable before its message begins.

mod gather;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::buf::MAX_BUF;
use weft_machine::{Buf, Pool, Stream, rt};

use crate::channel::{
    Access, Channel, Ending, Error, Exposed, Kind, Limits, Message, Outgoing, Peer, Sending, Stages, Takes,
    Ticket, Traffic,
};
use crate::strangers::{Deadlines, Progress, Strangers, TICK};
use receiver::{Receiver, Terms};
use sender::Sender;

/// How long a closed channel keeps sending queued messages to a peer that does not read.
const LINGER: Duration = Duration::from_secs(5);

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 4;

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A frame.
    Frame {
        /// Bytes after the header.
        len: usize,
        /// Whether it is the last frame of the message.
        last: bool,
    },
    /// No frame follows (a keepalive).
    Nothing,
}

/// How a stream is divided into messages.
pub trait Framing: 'static {
    /// The kind of the channel.
    const KIND: Kind;
    /// Whether payload is the content of an XDR opaque and needs its padding sent after it.
    const XDR: bool;
    /// The longest frame that a header can announce.
    const MAX_FRAME: usize;
    /// The longest message unless [`Config`] sets another limit.
    const DEFAULT_MESSAGE: usize;
    /// Parses a header; `Err` names the rule that it breaks.
    fn parse(header: [u8; HEADER_LEN]) -> Result<Head, &'static str>;
    /// The header of a message in one frame; `None` if `len` does not fit.
    fn emit(len: usize) -> Option<[u8; HEADER_LEN]>;
}

/// The limits and options of a channel over TCP.
#[derive(Clone, Copy, Debug)]
pub struct Config<F> {
    /// Longest message in bytes, in both directions; at most what a header can state and a pool buffer can hold.
    pub max_message: usize,
    /// Whether to receive several small messages at a time while a peer keeps sending them: for servers, whose main
    /// cost per message is the wake-up. A peer that waits for its answers is not kept waiting; see `framed::gather`.
    pub gather: bool,
    /// The defaults depend on the framing.
    pub framing: PhantomData<F>,
}

impl<F: Framing> Default for Config<F> {
    fn default() -> Config<F> {
        Config { max_message: F::DEFAULT_MESSAGE, gather: false, framing: PhantomData }
    }
}

/// Messages over TCP. Dropping it closes the channel.
pub struct Framed<F: Framing>(Rc<Inner<F>>);

struct Inner<F> {
    stream: Rc<Stream>,
    pool: Pool,
    max_message: usize,
    peer: Peer,
    receiver: RefCell<Receiver<F>>,
    /// Terms for the peer until it is identified; none if we initiated the connection.
    strangers: Option<Strangers>,
    known: Cell<bool>,
    /// The reader waits for the peer.
    reading: Cell<bool>,
    /// The writer task watches the deadlines.
    watched: Cell<bool>,
    watch: RefCell<Watch>,
    tx: RefCell<Tx>,
}

/// When the deadlines are next checked, and their state.
struct Watch {
    deadlines: Deadlines,
    tick: Option<LocalBoxFuture<'static, ()>>,
}

/// The sending half: state beside its queue.
struct Tx {
    sender: Sender,
    corked: bool,
    /// The writer task waits for the socket, a file or the pool; trying again before its wake-up is useless.
    waiting: bool,
    closing: bool,
    ended: Option<Ending>,
    /// Wakes the writer task.
    waker: Waker,
}

impl<F: Framing> Framed<F> {
    /// Takes over a connected stream. Until the peer is identified, terms for strangers apply, if there are any.
    ///
    /// Callers outside this crate use the constructors of `nbss` and `record`, which are not generic: so all of a
    /// channel is compiled in this crate, at its level of optimisation.
    pub(crate) fn over(
        stream: Stream,
        pool: Pool,
        Config { max_message, gather, .. }: Config<F>,
        strangers: Option<Strangers>,
    ) -> Rc<Framed<F>> {
        let peer = stream.peer();
        let sender = Sender::new(&stream);
        let inner = Rc::new(Inner {
            stream: Rc::new(stream),
            pool,
            max_message: max_message.min(F::MAX_FRAME).min(MAX_BUF),
            peer,
            known: Cell::new(strangers.is_none()),
            reading: Cell::new(false),
            watched: Cell::new(strangers.is_some()),
            watch: RefCell::new(Watch { deadlines: Deadlines::new(rt::now()), tick: None }),
            strangers,
            receiver: RefCell::new(if gather { Receiver::gathering() } else { Receiver::default() }),
            tx: RefCell::new(Tx {
                sender,
                corked: false,
                waiting: false,
                closing: false,
                ended: None,
                waker: Waker::noop().clone(),
            }),
        });
        rt::spawn(inner.clone().write()).detach();
        Rc::new(Framed(inner))
    }
}

impl<F: Framing> Drop for Framed<F> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<F: Framing> Inner<F> {
    /// The writer task: sends what callers could not.
    async fn write(self: Rc<Self>) {
        poll_fn(|cx| self.poll_write(cx)).await;
        // Closed or broken. Messages queued before a close are still sent, if the peer takes them.
        let drained = rt::timeout(LINGER, poll_fn(|cx| self.poll_drained(cx))).await;
        if drained.is_err() {
            tracing::debug!(peer = %self.peer, "closed with messages that the peer did not take");
        }
        self.stream.shutdown();
        self.tx.borrow_mut().end(Ending::Local);
    }

    /// Ends when the channel is closing or has ended.
    fn poll_write(&self, cx: &mut Context<'_>) -> Poll<()> {
        if let Poll::Ready(late) = self.poll_deadlines(cx) {
            self.tx.borrow_mut().end(Ending::TimedOut(late));
        }
        let tx = &mut *self.tx.borrow_mut();
        tx.waker.clone_from(cx.waker());
        // A message partly sent must continue; a cork holds back only whole messages.
        let begun = std::mem::take(&mut tx.waiting);
        if begun || !tx.corked {
            tx.drain(&self.stream, &self.pool, false);
        }
        if tx.closing || tx.ended.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends when a deadline has passed. Checks them as long as there is one.
    fn poll_deadlines(&self, cx: &mut Context<'_>) -> Poll<&'static str> {
        while self.watched.get() {
            let watch = &mut *self.watch.borrow_mut();
            let tick = watch.tick.get_or_insert_with(|| Box::pin(rt::sleep(TICK)));
            ready!(tick.as_mut().poll(cx));
            watch.tick = None;
            let receiver = self.receiver.borrow();
            let (bytes, messages) = receiver.progress();
            let stranger = self.strangers.as_ref().filter(|_| !self.known.get());
            let progress = Progress {
                stranger: stranger.map(|terms| terms.limit),
                waits_inside: self.reading.get() && receiver.waits_inside(),
                bytes,
                messages,
            };
            if let Some(late) = watch.deadlines.check(rt::now(), progress) {
                return Poll::Ready(late);
            }
            self.watched.set(progress.stranger.is_some() || progress.waits_inside);
        }
        Poll::Pending
    }

    fn terms(&self) -> Terms<'_> {
        match &self.strangers {
            Some(terms) if !self.known.get() => {
                let max_message = terms.max_message.min(self.max_message);
                Terms { pool: &terms.pool, max_message, stranger: true, wary: true }
            }
            terms => Terms {
                pool: terms.as_ref().map_or(&self.pool, |terms| &terms.identified),
                max_message: self.max_message,
                stranger: false,
                wary: terms.is_some(),
            },
        }
    }

    /// Ends when the queue is empty.
    fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        let tx = &mut *self.tx.borrow_mut();
        tx.waker.clone_from(cx.waker());
        tx.waiting = false;
        tx.drain(&self.stream, &self.pool, false);
        if tx.sender.is_empty() || tx.ended.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The next message; waits only if `cx` is given.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Message>, Error>> {
        let mut receiver = self.receiver.borrow_mut();
        let polled = receiver.poll(cx, &self.stream, self.terms());
        self.reading.set(polled.is_pending());
        match polled {
            Poll::Ready(Ok(body)) => Poll::Ready(Ok(Some(message(body)))),
            Poll::Ready(Err(ending)) => match &self.tx.borrow().ended {
                // We ended the stream.
                Some(late @ Ending::TimedOut(_)) => Poll::Ready(late.at_reader()),
                _ => Poll::Ready(ending.at_reader()),
            },
            Poll::Pending => {
                let tx = &mut *self.tx.borrow_mut();
                // A peer that we connected to is received from without deadlines.
                if self.strangers.is_some() && !self.watched.get() && receiver.waits_inside() {
                    self.watched.set(true);
                    tx.waker.wake_by_ref();
                }
                // The reader sleeps, so replies have no batch to wait for.
                if std::mem::take(&mut tx.corked) {
                    tx.drain(&self.stream, &self.pool, false);
                }
                if tx.closing {
                    // Running requests may go on for long, and others may wait for this memory.
                    receiver.abandon();
                    return Poll::Ready(Ok(None));
                }
                if let Some(terms) = &self.strangers {
                    terms.arriving.note(receiver.arrived());
                }
                Poll::Pending
            }
        }
    }
}

fn message(body: Bytes) -> Message {
    Message { body, detached: None, ticket: Ticket::default() }
}

impl Tx {
    /// Sends as much as possible now; with `more`, another call follows soon. For the remainder it leaves the writer
    /// task to be woken.
    fn drain(&mut self, stream: &Rc<Stream>, pool: &Pool, more: bool) {
        if self.waiting || self.ended.is_some() {
            return;
        }
        let mut cx = Context::from_waker(&self.waker);
        match self.sender.poll(&mut cx, stream, pool, more) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(ending)) => self.end(ending),
            Poll::Pending => self.waiting = true,
        }
    }

    /// Only the first reason counts. The writer task then shuts the socket down, which wakes the reader.
    fn end(&mut self, ending: Ending) {
        if self.ended.is_none() {
            self.ended = Some(ending);
            self.sender.clear();
            self.waker.wake_by_ref();
        }
    }
}

impl<F> Takes for Inner<F> {
    fn poll_taken(&self, number: u64, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let tx = &mut *self.tx.borrow_mut();
        if let Some(outcome) = tx.sender.sent.outcome(number) {
            return Poll::Ready(outcome.map_err(Error::Io));
        }
        if let Some(ending) = &tx.ended {
            return Poll::Ready(Err(ending.at_sender()));
        }
        tx.sender.sent.wait(number, cx.waker());
        Poll::Pending
    }

    fn forget(&self, number: u64) {
        self.tx.borrow_mut().sender.sent.forget(number);
    }
}

/// Waits for a message. A dropped one means that the reader itself holds up the peer.
struct Receiving<'a, F: Framing>(&'a Inner<F>);

impl<F: Framing> Future for Receiving<'_, F> {
    type Output = Result<Option<Message>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_recv(cx)
    }
}

impl<F: Framing> Drop for Receiving<'_, F> {
    fn drop(&mut self) {
        self.0.reading.set(false);
        if let Some(terms) = &self.0.strangers {
            terms.arriving.pause();
        }
    }
}

impl<F: Framing> Channel for Framed<F> {
    fn kind(&self) -> Kind {
        F::KIND
    }

    fn medium(&self) -> &'static str {
        "tcp"
    }

    fn peer(&self) -> Peer {
        self.0.peer
    }

    fn limits(&self) -> Limits {
        Limits { max_message: self.0.max_message, max_rdma: None }
    }

    fn authenticated(&self) {
        self.0.known.set(true);
    }

    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(Receiving(&self.0))
    }

    fn try_recv(&self) -> Option<Message> {
        self.0.receiver.borrow_mut().ready(self.0.terms()).map(message)
    }

    fn send(&self, outgoing: Outgoing) -> Sending {
        let tx = &mut *self.0.tx.borrow_mut();
        if let Some(ending) = &tx.ended {
            return Sending::answered(Err(ending.at_sender()));
        }
        if tx.closing {
            return Sending::answered(Err(Error::Closed));
        }
        let number = match tx.sender.push::<F>(outgoing, self.0.max_message) {
            Ok(number) => number,
            Err(e) => return Sending::answered(Err(e)),
        };
        if !tx.corked || tx.sender.holds_enough() {
            tx.drain(&self.0.stream, &self.0.pool, tx.corked);
        }
        match tx.sender.sent.outcome(number) {
            Some(outcome) => Sending::answered(outcome.map_err(Error::Io)),
            None => Sending::numbered(self.0.clone(), number),
        }
    }

    fn backlog(&self) -> usize {
        self.0.tx.borrow().sender.outstanding()
    }

    fn unsent_bytes(&self) -> usize {
        self.0.tx.borrow().sender.outstanding_bytes()
    }

    fn has_ended(&self) -> bool {
        self.0.tx.borrow().ended.is_some()
    }

    fn stages(&self) -> Stages {
        [Some(self.0.tx.borrow().sender.stage.clone()), None]
    }

    fn waits_for_memory(&self) -> bool {
        self.0.receiver.borrow().waits_for_memory()
    }

    fn cork(&self, on: bool) {
        let tx = &mut *self.0.tx.borrow_mut();
        tx.corked = on;
        if !on {
            tx.drain(&self.0.stream, &self.0.pool, false);
        }
    }

    fn expose(&self, _buf: Buf, _access: Access) -> Result<Exposed, Error> {
        Err(Error::Misuse("memory exposed over TCP"))
    }

    fn revoke(&self, _exposed: Exposed) -> Option<Buf> {
        None
    }

    fn unacknowledged(&self) -> usize {
        self.0.stream.unacknowledged()
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            sent: self.0.tx.borrow().sender.traffic(),
            received: self.0.receiver.borrow().received(),
            ..Traffic::default()
        }
    }

    fn close(&self) {
        let tx = &mut *self.0.tx.borrow_mut();
        tx.corked = false;
        tx.closing = true;
        tx.waker.wake_by_ref();
    }
}
