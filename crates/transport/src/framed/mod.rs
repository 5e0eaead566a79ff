//! Messages over a byte stream, each behind a header of four bytes: what `nbss` and `record` have in common.
//!
//! What: [`Framed`], a [`Channel`] over a stream, for any [`Framing`]. Spec: that of the framing.
//! Owns: the stream, the receive staging buffer, the queue of unsent messages and its writer task.
//! Does not: do RDMA, look into messages, or retry.
//!
//! Operation: whoever calls `send` drains the queue at once, as far as the socket takes it; only what is left waits
//! for the writer task. A corked channel drains at the uncork or when its reader would sleep.
//! Buffers: received messages are slices of pool buffers that were filled by the kernel; sent payload leaves from
//! the caller's buffers, from one scratch buffer per gather write, or from the page cache.
//! Errors: a payload that cannot be read before its message began fails that `send` alone; everything else ends the
//! channel.

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
    Access, Channel, Ending, Error, Exposed, Kind, Limits, Message, Outgoing, Peer, Sending, Ticket, Traffic,
};
use crate::strangers::{Deadlines, Progress, Strangers, TICK};
use receiver::{Receiver, Terms};
use sender::Sender;

/// How long a closed channel goes on sending what was queued to a peer that does not read.
const LINGER: Duration = Duration::from_secs(5);

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 4;

/// What a header announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A frame.
    Frame {
        /// Bytes behind the header.
        len: usize,
        /// Whether the message ends with it.
        last: bool,
    },
    /// Nothing follows (a keepalive).
    Nothing,
}

/// How messages are told apart in a stream.
pub trait Framing: 'static {
    /// Which sibling it makes.
    const KIND: Kind;
    /// Whether payload is the content of an XDR opaque, so that fill travels behind it.
    const XDR: bool;
    /// The longest frame that a header can announce.
    const MAX_FRAME: usize;
    /// The longest message where [`Config`] says nothing else.
    const DEFAULT_MESSAGE: usize;
    /// Reads a header; `Err` says which rule it breaks.
    fn parse(header: [u8; HEADER_LEN]) -> Result<Head, &'static str>;
    /// The header of a message in one frame; `None` when `len` has no room in it.
    fn emit(len: usize) -> Option<[u8; HEADER_LEN]>;
}

/// What a channel over TCP is willing to do.
#[derive(Clone, Copy, Debug)]
pub struct Config<F> {
    /// Longest message in bytes, both ways; at most what the header can say and a pool buffer can hold.
    pub max_message: usize,
    /// Whether to take several small messages at a time while a peer keeps them coming: for servers, whose cost per
    /// message is the wake-up. A peer that waits for its answers is not kept waiting; see `framed::gather`.
    pub gather: bool,
    /// The defaults are those of this framing.
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
    /// Terms of the peer until it is known; none for whoever connects to others.
    strangers: Option<Strangers>,
    known: Cell<bool>,
    /// The reader waits for the peer.
    reading: Cell<bool>,
    /// The writer task looks at the deadlines.
    watched: Cell<bool>,
    watch: RefCell<Watch>,
    tx: RefCell<Tx>,
}

/// When the deadlines are looked at, and what they are.
struct Watch {
    deadlines: Deadlines,
    tick: Option<LocalBoxFuture<'static, ()>>,
}

/// The sending half's state around its queue.
struct Tx {
    sender: Sender,
    corked: bool,
    /// The writer task waits for the socket, a file or the pool; until it is woken there is no use in trying.
    waiting: bool,
    closing: bool,
    ended: Option<Ending>,
    /// The writer task's.
    waker: Waker,
}

impl<F: Framing> Framed<F> {
    /// Takes over a connected stream. Buffers come from `pool`.
    pub fn new(stream: Stream, pool: Pool, config: Config<F>) -> Rc<Framed<F>> {
        Framed::over(stream, pool, config, None)
    }

    /// The same for a server: until the peer is known, it is received from on other terms.
    pub fn of_stranger(stream: Stream, pool: Pool, config: Config<F>, terms: Strangers) -> Rc<Framed<F>> {
        Framed::over(stream, pool, config, Some(terms))
    }

    fn over(
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
    /// The writer task: finishes what callers could not.
    async fn write(self: Rc<Self>) {
        poll_fn(|cx| self.poll_write(cx)).await;
        // Closed or broken. What was queued before a close still goes out, if the peer takes it.
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
        // What has begun to go out goes on; a cork holds back only what has not.
        let begun = std::mem::take(&mut tx.waiting);
        if begun || !tx.corked {
            tx.drain(&self.stream, &self.pool, false);
        }
        if tx.closing || tx.ended.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Ends when a deadline has passed. Looks at them as long as there is one.
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
            if let Some(late) = watch.deadlines.look(rt::now(), progress) {
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
                pool: &self.pool,
                max_message: self.max_message,
                stranger: false,
                wary: terms.is_some(),
            },
        }
    }

    /// Ends when nothing is queued any more.
    fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        let tx = &mut *self.tx.borrow_mut();
        tx.waker.clone_from(cx.waker());
        tx.waiting = false;
        tx.drain(&self.stream, &self.pool, false);
        if tx.sender.is_empty() || tx.ended.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The next message; waits only with `cx`.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Message>, Error>> {
        let mut receiver = self.receiver.borrow_mut();
        let polled = receiver.poll(cx, &self.stream, self.terms());
        self.reading.set(polled.is_pending());
        match polled {
            Poll::Ready(Ok(body)) => Poll::Ready(Ok(Some(message(body)))),
            Poll::Ready(Err(ending)) => match &self.tx.borrow().ended {
                // The stream was ended here.
                Some(late @ Ending::TimedOut(_)) => Poll::Ready(late.at_reader()),
                _ => Poll::Ready(ending.at_reader()),
            },
            Poll::Pending => {
                let tx = &mut *self.tx.borrow_mut();
                // Of a peer that was connected to, everything is taken as it comes.
                if self.strangers.is_some() && !self.watched.get() && receiver.waits_inside() {
                    self.watched.set(true);
                    tx.waker.wake_by_ref();
                }
                // The reader sleeps, so there is no batch that replies could wait for.
                if std::mem::take(&mut tx.corked) {
                    tx.drain(&self.stream, &self.pool, false);
                }
                if tx.closing { Poll::Ready(Ok(None)) } else { Poll::Pending }
            }
        }
    }
}

fn message(body: Bytes) -> Message {
    Message { body, detached: None, ticket: Ticket::default() }
}

impl Tx {
    /// Sends as much as can be sent now, and `more` soon. What cannot wakes the writer task later.
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

/// Waits until the socket has taken one message.
struct Taken<F> {
    inner: Rc<Inner<F>>,
    number: u64,
}

impl<F> Future for Taken<F> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let tx = &mut *self.inner.tx.borrow_mut();
        if let Some(outcome) = tx.sender.sent.outcome(self.number) {
            return Poll::Ready(outcome.map_err(Error::Io));
        }
        if let Some(ending) = &tx.ended {
            return Poll::Ready(Err(ending.at_sender()));
        }
        tx.sender.sent.wait(self.number, cx.waker());
        Poll::Pending
    }
}

impl<F> Drop for Taken<F> {
    fn drop(&mut self) {
        self.inner.tx.borrow_mut().sender.sent.forget(self.number);
    }
}

/// Waits for a message. A reader that gives it up holds the peer up itself.
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
            None => Sending::waiting(Taken { inner: self.0.clone(), number }),
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
