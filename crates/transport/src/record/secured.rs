//! RPC over TCP with TLS: a connection starts in the clear, and a probe as its first call asks for TLS.
//!
//! [`accept`] makes a plain or a [`Secured`] channel of a connection, as its first call asks. It implements RFC 9289
//! 4.1, 5.1.1 and RFC 5531 section 11. It owns the stream, bytes received that are not yet a message, and the queue of
//! unsent messages with its task. It neither chooses certificates (see [`Tls`]) nor decides who may continue in the
//! clear.
//!
//! Payload passes through memory here: encrypted data cannot be sent from the page cache.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::{Either, LocalBoxFuture, select};
use weft_machine::net::{Link, Tls};
use weft_machine::recorder::{self, Stage};
use weft_machine::{Buf, FileRange, LogLimit, Payload, Pool, Stream, Time, rt};
use weft_wire::rpc::{Fragment, Probe};
use weft_wire::xdr;

use super::{Config, Record};
use crate::channel::*;
use crate::strangers::{Deadlines, Progress, Strangers, TICK};

/// Time limit for a handshake, from the probe on.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a closed channel keeps sending queued messages to a peer that does not read.
const LINGER: Duration = Duration::from_secs(5);
/// Failures kept for callers that have not asked yet, and may never.
const MAX_FAILED: usize = 1024;
/// Bytes received at a time.
const RECEIVED_BYTES: usize = 64 << 10;
/// Bytes of a file in memory at a time, to be sent.
const PIECE_BYTES: usize = 64 << 10;
/// The same for an unidentified peer: one TLS record.
const STRANGER_RECEIVED_BYTES: usize = 16 << 10;

/// Makes a channel of a connection. With `tls`, the first call may be RFC 9289's probe: the connection then continues
/// under TLS. Any other call is the first one of a plain channel.
///
/// # Errors
/// The peer began TLS and did not finish its handshake, or the connection broke.
pub async fn accept(
    stream: Stream,
    tls: Option<&Tls>,
    pool: Pool,
    config: Config,
    terms: Strangers,
) -> Result<Rc<dyn Channel>, Error> {
    let Some(tls) = tls else { return Ok(Record::of_stranger(stream, pool, config, terms)) };
    // Every call is at least as long as the probe, so waiting for that many bytes delays no peer.
    let mut first = [0; Fragment::BYTES + Probe::BYTES];
    let mut deadlines = Deadlines::new(rt::now());
    let seen = loop {
        if let Ok(seen) = rt::timeout(TICK, stream.peek(&mut first)).await {
            break seen?;
        }
        // Bytes of a partial first call stay in the socket, and less than a probe never counts as progress.
        let begun = matches!(stream.peek(&mut [0]).now_or_never(), Some(Ok(1)));
        let progress = Progress { stranger: Some(terms.limit), waits_inside: begun, bytes: 0, messages: 0 };
        if let Some(late) = deadlines.check(rt::now(), progress) {
            return Err(Error::TimedOut(late));
        }
    };
    let Some(probe) = first.get(..seen).and_then(Probe::parse) else {
        return Ok(Record::of_stranger(stream, pool, config, terms));
    };
    let mut rest = first.as_mut_slice();
    while !rest.is_empty() {
        match stream.recv(&mut [IoSliceMut::new(rest)]).await? {
            0 => return Err(Error::Closed),
            n => rest = rest.split_at_mut(n).1,
        }
    }
    stream.send_all(&[probe.accept()]).await?;
    let peer = stream.peer();
    let mut link = Link::new(stream);
    let shaken = rt::timeout(HANDSHAKE, link.start_tls(tls)).await;
    shaken.map_err(|_| Error::TimedOut("the TLS handshake"))??;
    // The deadline of the first call runs from the connection on, not from the handshake.
    Ok(Secured::new(link, peer, config.max_message, terms, deadlines))
}

/// RPC under TLS. Dropping it closes the channel.
pub struct Secured(Rc<Inner>);

struct Inner {
    link: Link,
    peer: Peer,
    max_message: usize,
    terms: Strangers,
    /// Until then the terms of strangers apply.
    known: Cell<bool>,
    deadlines: RefCell<Deadlines>,
    /// When they are checked next.
    next_look: Cell<Time>,
    receiver: RefCell<Receiver>,
    queue: RefCell<Queue>,
    /// Tells the waits of unsent messages for a disk.
    stage: Arc<Stage>,
    /// Bytes and messages.
    sent: Cell<(u64, u64)>,
    received: Cell<(u64, u64)>,
}

#[derive(Default)]
struct Receiver {
    /// Received and not yet parsed.
    raw: BytesMut,
    /// Fragments of the next message.
    message: BytesMut,
    staging: Vec<u8>,
    /// Messages taken so far.
    messages: u64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Outgoing>,
    /// Bytes in memory of those, and of the one being sent.
    waiting_bytes: usize,
    writing_bytes: usize,
    /// Messages queued, and messages that the medium took.
    pushed: u64,
    taken: u64,
    /// Those of them that were not sent, because their payload cannot be read; at most [`MAX_FAILED`].
    failed: BTreeMap<u64, io::Error>,
    closing: bool,
    ended: Option<Ending>,
    writer: Option<Waker>,
    /// The tasks that wait for a message to be taken.
    senders: Vec<Waker>,
}

impl Secured {
    fn new(
        link: Link,
        peer: Peer,
        max_message: usize,
        terms: Strangers,
        deadlines: Deadlines,
    ) -> Rc<Secured> {
        let inner = Rc::new(Inner {
            link,
            peer,
            max_message,
            terms,
            known: Cell::new(false),
            deadlines: RefCell::new(deadlines),
            next_look: Cell::new(rt::now() + TICK),
            receiver: RefCell::default(),
            queue: RefCell::default(),
            stage: Stage::new(),
            sent: Cell::default(),
            received: Cell::default(),
        });
        rt::spawn(inner.clone().write()).detach();
        Rc::new(Secured(inner))
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        self.close();
    }
}

impl Receiver {
    /// The next whole message of the received bytes.
    fn take(&mut self, max: usize) -> Result<Option<Bytes>, Error> {
        while let Some(head) = self.raw.first_chunk() {
            let Fragment { last, len } = Fragment::parse(*head);
            let len = len as usize;
            if self.message.len().saturating_add(len) > max {
                return Err(Error::Violation("RFC 5531 11: a record longer than this server accepts"));
            }
            if self.raw.len() < Fragment::BYTES.saturating_add(len) {
                break;
            }
            self.raw.advance(Fragment::BYTES);
            let fragment = self.raw.split_to(len);
            if last && self.message.is_empty() {
                self.messages = self.messages.saturating_add(1);
                return Ok(Some(fragment.freeze()));
            }
            self.message.extend_from_slice(&fragment);
            if last {
                self.messages = self.messages.saturating_add(1);
                return Ok(Some(self.message.split().freeze()));
            }
        }
        Ok(None)
    }
}

impl Inner {
    async fn recv(&self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(body) = self.receiver.borrow_mut().take(self.longest())? {
                return Ok(Some(self.message(body)));
            }
            if let Some(ended) = &self.queue.borrow().ended {
                return ended.at_reader();
            }
            // Taken out during the wait, so that nothing is borrowed meanwhile. A dropped reader loses only the buffer.
            let mut staging = std::mem::take(&mut self.receiver.borrow_mut().staging);
            staging.resize(if self.known.get() { RECEIVED_BYTES } else { STRANGER_RECEIVED_BYTES }, 0);
            let received = self.in_time(self.link.recv(&mut staging)).await?;
            let mut receiver = self.receiver.borrow_mut();
            match received {
                Ok(0) if receiver.raw.is_empty() && receiver.message.is_empty() => return Ok(None),
                Ok(0) => return Err(Error::Violation("RFC 5531 11: the stream ends inside a record")),
                Ok(n) => receiver.raw.extend_from_slice(staging.split_at(n).0),
                // A client that leaves without waiting for its last answers causes a reset; that is no fault.
                Err(e)
                    if e.kind() == std::io::ErrorKind::ConnectionReset
                        && receiver.raw.is_empty()
                        && receiver.message.is_empty() =>
                {
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
            receiver.staging = staging;
        }
    }

    fn longest(&self) -> usize {
        if self.known.get() { self.max_message } else { self.max_message.min(self.terms.max_message) }
    }

    /// The received data, unless a deadline passes first. Deadlines are checked while there is one.
    async fn in_time<T>(&self, received: impl Future<Output = T>) -> Result<T, Error> {
        let mut received = pin!(received);
        let mut tick = None::<LocalBoxFuture<'_, ()>>;
        let now = rt::now();
        if self.next_look.get() + TICK <= now {
            // Nobody has read from the channel for a while, so its peer could not continue.
            self.check_deadlines(now, false)?;
        }
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(received) = received.as_mut().poll(cx) {
                    return Poll::Ready(Ok(received));
                }
                if self.known.get() && !self.is_inside() {
                    tick = None;
                    return Poll::Pending;
                }
                let sleep = tick.get_or_insert_with(|| {
                    if self.next_look.get() <= rt::now() {
                        self.next_look.set(rt::now() + TICK);
                    }
                    Box::pin(rt::sleep_until(self.next_look.get()))
                });
                ready!(sleep.as_mut().poll(cx));
                tick = None;
                self.check_deadlines(rt::now(), true)?;
            }
        })
        .await
    }

    /// Part of a message, or of a TLS record, has arrived.
    fn is_inside(&self) -> bool {
        let receiver = self.receiver.borrow();
        !receiver.raw.is_empty() || !receiver.message.is_empty() || self.link.is_inside_record()
    }

    fn check_deadlines(&self, now: Time, reading: bool) -> Result<(), Error> {
        self.next_look.set(now + TICK);
        let progress = Progress {
            stranger: (!self.known.get()).then_some(self.terms.limit),
            waits_inside: reading && self.is_inside(),
            bytes: self.link.received_bytes(),
            messages: self.receiver.borrow().messages,
        };
        let late = self.deadlines.borrow_mut().check(now, progress);
        late.map_or(Ok(()), |late| Err(Error::TimedOut(late)))
    }

    fn message(&self, body: Bytes) -> Message {
        count(&self.received, body.len());
        Message { body, detached: None, ticket: Ticket::default() }
    }

    /// Sends the queue, until the channel is closed and nothing is left.
    async fn write(self: Rc<Inner>) {
        while let Some(message) = poll_fn(|cx| self.poll_next(cx)).await {
            // A peer that takes nothing may hold up its messages as long as it likes, but not after the channel is
            // closed.
            let late = async {
                poll_fn(|cx| self.poll_closing(cx)).await;
                rt::sleep(LINGER).await;
            };
            let sent = match select(pin!(self.put(message)), pin!(late)).await {
                Either::Left((sent, _)) => sent,
                Either::Right(_) => Err(Error::TimedOut("a peer that takes nothing")),
            };
            let mut queue = self.queue.borrow_mut();
            queue.taken = queue.taken.saturating_add(1);
            queue.writing_bytes = 0;
            match sent {
                Ok(None) => {}
                Ok(Some(unreadable)) => {
                    if queue.failed.len() == MAX_FAILED {
                        queue.failed.pop_first();
                    }
                    let number = queue.taken;
                    queue.failed.insert(number, unreadable);
                }
                Err(e) => {
                    tracing::debug!(peer = %self.peer, "under TLS: {e}");
                    queue.ended = Some(Ending::Io(io::ErrorKind::BrokenPipe));
                    queue.waiting.clear();
                    queue.waiting_bytes = 0;
                }
            }
            queue.senders.drain(..).for_each(Waker::wake);
        }
        if let Err(e) = rt::timeout(LINGER, self.link.finish()).await.unwrap_or(Ok(())) {
            tracing::debug!(peer = %self.peer, "at the end of TLS: {e}");
        }
    }

    /// The next message; `None` when there will be none.
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Outgoing>> {
        let mut queue = self.queue.borrow_mut();
        match queue.waiting.pop_front() {
            Some(message) => {
                queue.writing_bytes = message.memory_bytes();
                queue.waiting_bytes = queue.waiting_bytes.saturating_sub(queue.writing_bytes);
                Poll::Ready(Some(message))
            }
            None if queue.closing || queue.ended.is_some() => Poll::Ready(None),
            None => {
                queue.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.borrow_mut();
        if queue.closing {
            return Poll::Ready(());
        }
        queue.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sends a message, or returns why its payload cannot be read: then nothing of it is sent. What is known by then is the
    /// beginning of each range of a file (see [`FileRange::warm_beginning`]).
    async fn put(&self, message: Outgoing) -> Result<Option<io::Error>, Error> {
        let mut parts = message.parts;
        if let Some(source) = message.source {
            parts.push(Part::Payload { data: source.freeze().into(), to: To::Inline });
        }
        let mut len = 0usize;
        for part in &parts {
            len = len.saturating_add(match part {
                Part::Bytes(bytes) => bytes.len(),
                Part::Payload { to: To::Segments(_), .. } => {
                    return Err(Error::Misuse("RDMA Write over TCP"));
                }
                Part::Payload { data, .. } => data.len().saturating_add(xdr::fill(data.len()).len()),
            });
            if let Part::Payload { data: Payload::File(range), .. } = part
                && let Err(e) = recorder::staged(&self.stage, range.warm_beginning()).await
            {
                return Ok(Some(e));
            }
        }
        let head = u32::try_from(len).ok().and_then(|len| Fragment { last: true, len }.emit());
        let head = head.ok_or(Error::Misuse("a message longer than a record"))?;
        let mut chain = vec![Bytes::copy_from_slice(&head)];
        for part in parts {
            match part {
                Part::Bytes(bytes) => chain.push(bytes),
                Part::Payload { data, .. } => {
                    let fill = xdr::fill(data.len());
                    match data {
                        Payload::Chain(bytes) => chain.extend(bytes),
                        Payload::File(range) => self.put_range(&range, &mut chain).await?,
                    }
                    chain.push(Bytes::from_static(fill));
                }
            }
        }
        self.link.send_all(&chain).await?;
        count(&self.sent, len);
        Ok(None)
    }

    /// Sends the pieces of a file's range behind `chain`, except the last one, which is left there. Each piece is read when the
    /// peer has taken the one before it: the peer decides how long it is held.
    async fn put_range(&self, range: &FileRange, chain: &mut Vec<Bytes>) -> Result<(), Error> {
        let mut done = 0;
        while done < range.len {
            let len = PIECE_BYTES.min(range.len.saturating_sub(done));
            let piece = recorder::staged(&self.stage, range.piece(done, len)).await;
            chain.push(piece.inspect_err(|e| {
                static UNREADABLE: LogLimit = LogLimit::new();
                if let Some(left_out) = UNREADABLE.pass(rt::now()) {
                    tracing::warn!(
                        peer = %self.peer,
                        "a file cannot be read, and part of the message with it has been sent, so its connection ends: \
                         {e}{left_out}"
                    );
                }
            })?);
            done = done.saturating_add(len);
            if done < range.len {
                self.link.send_all(chain).await?;
                chain.clear();
            }
        }
        Ok(())
    }
}

fn count(of: &Cell<(u64, u64)>, bytes: usize) {
    let (before, messages) = of.get();
    of.set((before.saturating_add(bytes as u64), messages.saturating_add(1)));
}

impl Channel for Secured {
    fn kind(&self) -> Kind {
        Kind::Record
    }

    fn medium(&self) -> &'static str {
        "tls"
    }

    fn security(&self) -> Option<Security> {
        Some(Security { holder: self.0.link.holder() })
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
        Box::pin(self.0.recv())
    }

    fn try_recv(&self) -> Option<Message> {
        // An error in it is reported by the next `recv`.
        let body = self.0.receiver.borrow_mut().take(self.0.longest()).ok()??;
        Some(self.0.message(body))
    }

    fn send(&self, outgoing: Outgoing) -> Sending {
        let mut queue = self.0.queue.borrow_mut();
        if let Some(ended) = &queue.ended {
            return Sending::answered(Err(ended.at_sender()));
        }
        if queue.closing {
            return Sending::answered(Err(Error::Closed));
        }
        queue.waiting_bytes = queue.waiting_bytes.saturating_add(outgoing.memory_bytes());
        queue.waiting.push_back(outgoing);
        queue.pushed = queue.pushed.saturating_add(1);
        let number = queue.pushed;
        if let Some(writer) = queue.writer.take() {
            writer.wake();
        }
        let inner = self.0.clone();
        Sending::waiting(poll_fn(move |cx| {
            let mut queue = inner.queue.borrow_mut();
            if queue.taken >= number {
                return Poll::Ready(queue.failed.remove(&number).map_or(Ok(()), |e| Err(Error::Io(e))));
            }
            if let Some(ended) = &queue.ended {
                return Poll::Ready(Err(ended.at_sender()));
            }
            queue.senders.retain(|waker| !waker.will_wake(cx.waker()));
            queue.senders.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn backlog(&self) -> usize {
        let queue = self.0.queue.borrow();
        queue.pushed.saturating_sub(queue.taken) as usize
    }

    fn has_ended(&self) -> bool {
        self.0.queue.borrow().ended.is_some()
    }

    fn stages(&self) -> Stages {
        [Some(self.0.stage.clone()), None]
    }

    fn unsent_bytes(&self) -> usize {
        let queue = self.0.queue.borrow();
        queue.waiting_bytes.saturating_add(queue.writing_bytes)
    }

    fn cork(&self, _on: bool) {}

    fn expose(&self, _buf: Buf, _access: Access) -> Result<Exposed, Error> {
        Err(Error::Misuse("memory exposed over TCP"))
    }

    fn revoke(&self, _exposed: Exposed) -> Option<Buf> {
        None
    }

    fn traffic(&self) -> Traffic {
        Traffic { sent: self.0.sent.get(), received: self.0.received.get(), ..Traffic::default() }
    }

    fn close(&self) {
        let mut queue = self.0.queue.borrow_mut();
        queue.closing = true;
        if let Some(writer) = queue.writer.take() {
            writer.wake();
        }
    }
}
