//! The channel over a [`Core`]: what users call, and the futures that they wait on.
//!
//! [`Smbd`] is the channel. It implements [MS-SMBD] 3.1.4. It holds a reference to the connection, and so do its
//! futures. `driver` posts and polls.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::{LocalBoxFuture, try_join_all};
use weft_machine::payload::Fetching;
use weft_machine::recorder::{self, Hop};
use weft_machine::{Buf, File, Payload, Pool, Time, buf, rt};
use weft_rdma::{PostError, Work, WorkError};

use super::driver::{Core, LINGER, READ, Reading};
use super::engine::{Agreed, Event};
use crate::channel::{
    Access, Channel, Ending, Error, Exposed, Kind, Limits, Message, Outgoing, Part, Peer, RemotePayload,
    Segment, Sending, Stages, Ticket, To, Traffic, fill,
};

/// RDMA Reads of [`RemotePayload::fetch`] in progress, including queued ones.
const MAX_READS: usize = 1 << 12;

/// An SMB Direct connection. Dropping it closes the channel.
pub struct Smbd(Rc<Core>);

impl Smbd {
    /// Waits until both sides have negotiated.
    pub(super) async fn negotiate(core: Rc<Core>) -> Result<Rc<Smbd>, Error> {
        let smbd = Rc::new(Smbd(core));
        Negotiation(&smbd.0).await?;
        Ok(smbd)
    }

    /// The negotiated parameters, with the current credits.
    pub fn agreed(&self) -> Agreed {
        self.0.state.borrow().engine.agreed()
    }
}

impl Core {
    /// The next delivered message.
    fn take(&self) -> Option<Message> {
        let state = &mut *self.state.borrow_mut();
        let body = state.inbox.pop_front()?;
        // Taking a message cannot be refused.
        let _ = state.engine.handle(Event::Taken(body.len()), Time::ZERO);
        if state.engine.receives_urgent() {
            self.pump(state, false);
        }
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }

    /// Pulls one segment.
    async fn fetch_one(self: Rc<Core>, from: Segment, into: Buf) -> Result<Buf, Error> {
        let slot = {
            let state = &mut *self.state.borrow_mut();
            if let Some(ending) = &state.ended {
                return Err(ending.at_sender());
            }
            if state.reads.len() >= MAX_READS {
                return Err(Error::Misuse("too many fetches at once"));
            }
            let slot = state.reads.insert(Reading::UnderWay(None));
            self.relay.need_task(true);
            self.post(state, Work::Read { id: READ | slot as u64, into, from });
            slot
        };
        recorder::at(Hop::Wire, Fetch { core: self, slot: Some(slot) }).await
    }

    async fn fetch(self: Rc<Core>, from: Vec<Segment>) -> Result<Bytes, Error> {
        let len = Segment::total(&from);
        if len > self.state.borrow().engine.max_read_write() as u64 {
            return Err(Error::Misuse("fetch longer than MaxReadWriteSize"));
        }
        let segments: Vec<_> = from.into_iter().filter(|segment| segment.len > 0).collect();
        let size = |segment: &Segment| segment.len as usize;
        match segments[..] {
            [] => return Ok(Bytes::new()),
            [only] => {
                let into = self.pool.alloc(size(&only)).await;
                return Ok(self.fetch_one(only, into).await?.freeze());
            }
            _ => {}
        }
        // A Read fills its buffer from the start, so several segments are joined by a copy. The buffers are allocated
        // all at once: two fetches that each held some of them could wait for each other forever.
        let all: Vec<_> = std::iter::once(len as usize).chain(segments.iter().map(size)).collect();
        let bufs = self.pool.alloc_many(&all).await;
        let mut bufs =
            bufs.map_err(|_| Error::Misuse("a fetch that needs more than the buffer pool"))?.into_iter();
        let mut whole = bufs.next().ok_or(Error::Closed)?;
        let reads = segments.iter().zip(bufs).map(|(from, into)| self.clone().fetch_one(*from, into));
        for part in try_join_all(reads).await? {
            let filled = whole.len();
            whole.set_len(filled.saturating_add(part.len()));
            if let Some(room) = whole.get_mut(filled..) {
                buf::copy(room, &part);
            }
        }
        Ok(whole.freeze())
    }
}

/// Memory that the peer has exposed, one segment behind the other.
struct Remote {
    core: Rc<Core>,
    from: Vec<Segment>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.from).finish()
    }
}

impl RemotePayload for Remote {
    fn len(&self) -> usize {
        Segment::total(&self.from) as usize
    }

    fn fill(&self, file: &File, offset: u64, len: usize) -> Option<io::Result<()>> {
        if len > self.core.state.borrow().engine.max_read_write() {
            return None;
        }
        fill(&*self.core.queue_pair, &self.from, file, offset, len)
    }

    fn fetch(&self) -> Fetching {
        let fetch = self.core.clone().fetch(self.from.clone());
        Box::pin(async move { Ok(fetch.await?) })
    }
}

/// Waits until the engine is established.
struct Negotiation<'a>(&'a Core);

impl Future for Negotiation<'_> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.drive(true);
        let state = self.0.state.borrow();
        if let Some(ending) = &state.ended {
            return Poll::Ready(Err(ending.at_sender()));
        }
        if state.engine.is_established() {
            return Poll::Ready(Ok(()));
        }
        self.0.relay.set_reader(cx.waker());
        Poll::Pending
    }
}

impl Drop for Negotiation<'_> {
    fn drop(&mut self) {
        self.0.relay.clear_reader();
        self.0.relay.wake_task();
    }
}

/// Waits for one RDMA Read.
struct Fetch {
    core: Rc<Core>,
    slot: Option<usize>,
}

impl Future for Fetch {
    type Output = Result<Buf, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(slot) = self.slot else { return Poll::Ready(Err(Error::Closed)) };
        let result = {
            let state = &mut *self.core.state.borrow_mut();
            match state.reads.get_mut(slot) {
                Some(Reading::UnderWay(waker)) => {
                    *waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Some(Reading::Done(_)) => {}
                Some(Reading::Abandoned) | None => return Poll::Ready(Err(Error::Closed)),
            }
            match (state.reads.remove(slot), &state.ended) {
                (Reading::Done(Ok(buf)), _) => Ok(buf),
                (Reading::Done(Err(WorkError::Flushed)), Some(ending)) => Err(ending.at_sender()),
                (Reading::Done(Err(e)), _) => Err(Error::Work(e)),
                _ => Err(Error::Closed),
            }
        };
        self.slot = None;
        Poll::Ready(result)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let state = &mut *self.core.state.borrow_mut();
        match state.reads.get_mut(slot) {
            Some(reading @ Reading::UnderWay(_)) => *reading = Reading::Abandoned,
            Some(_) => drop(state.reads.remove(slot)),
            None => {}
        }
    }
}

/// Waits until the queue pair has taken one message.
struct Taken {
    core: Rc<Core>,
    number: u64,
}

impl Future for Taken {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let state = &mut *self.core.state.borrow_mut();
        if let Some(outcome) = state.sent.outcome(self.number) {
            return Poll::Ready(outcome.map_err(Error::Io));
        }
        if let Some(ending) = &state.ended {
            return Poll::Ready(Err(ending.at_sender()));
        }
        state.sent.wait(self.number, cx.waker());
        self.core.relay.need_task(true);
        Poll::Pending
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.core.state.borrow_mut().sent.forget(self.number);
    }
}

/// Waits for a message. While it sleeps, the queue pair wakes its task before the connection's.
struct Receive<'a> {
    core: &'a Core,
    asleep: bool,
}

impl Future for Receive<'_> {
    type Output = Result<Option<Message>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let core = self.core;
        let mut message = core.take();
        core.reading.set(true);
        if message.is_none() {
            core.drive(false);
            message = core.take();
        }
        core.reading.set(false);
        let ready = match message {
            Some(message) => Some(Ok(Some(message))),
            None => core.state.borrow().ended.as_ref().map(Ending::at_reader),
        };
        match ready {
            Some(result) => {
                if std::mem::take(&mut self.asleep) {
                    core.relay.clear_reader();
                }
                Poll::Ready(result)
            }
            None => {
                // Set before the pump, which may deliver a message that waited for a buffer.
                self.asleep = true;
                core.relay.set_reader(cx.waker());
                core.pump(&mut core.state.borrow_mut(), true);
                Poll::Pending
            }
        }
    }
}

impl Drop for Receive<'_> {
    fn drop(&mut self) {
        if self.asleep {
            // It may have been woken for an event that somebody else waits for.
            self.core.relay.clear_reader();
            self.core.relay.wake_task();
        }
    }
}

/// Reads the inline file ranges of a message.
async fn load(mut outgoing: Outgoing, pool: Pool) -> io::Result<Outgoing> {
    for part in &mut outgoing.parts {
        if let Part::Payload { data, to: To::Inline | To::Ticket } = part {
            let unread = std::mem::replace(data, Payload::Chain(Vec::new()));
            *data = Payload::Chain(unread.into_chain(&pool).await?);
        }
    }
    Ok(outgoing)
}

/// Reads the inline file ranges of a message without waiting; false if that is not possible.
fn load_now(outgoing: &mut Outgoing, pool: &Pool) -> io::Result<bool> {
    for part in &mut outgoing.parts {
        let Part::Payload { data, to: To::Inline | To::Ticket } = part else { continue };
        let Payload::File(range) = data else { continue };
        let Some(mut buf) = pool.try_alloc(range.len) else { return Ok(false) };
        buf.set_len(range.len);
        let window = buf.into_window();
        let Some(read) = range.try_read_into(&window) else { return Ok(false) };
        read?;
        let buf = window.try_into_buf().expect("nobody else holds this window");
        *data = Payload::Chain(vec![buf.freeze()]);
    }
    Ok(true)
}

impl Channel for Smbd {
    fn kind(&self) -> Kind {
        Kind::Smbd
    }

    fn medium(&self) -> &'static str {
        self.0.queue_pair.provider()
    }

    fn peer(&self) -> Peer {
        self.0.queue_pair.peer()
    }

    fn limits(&self) -> Limits {
        let engine = &self.0.state.borrow().engine;
        Limits {
            max_message: engine.max_message_in().min(engine.max_message_out()),
            max_rdma: Some(engine.max_read_write()),
        }
    }

    fn authenticated(&self) {
        self.0.state.borrow_mut().engine.authenticated();
    }

    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(Receive { core: &self.0, asleep: false })
    }

    fn try_recv(&self) -> Option<Message> {
        self.0.take()
    }

    fn send(&self, mut outgoing: Outgoing) -> Sending {
        if let Some(source) = outgoing.source.take() {
            outgoing.parts.push(Part::Payload { data: source.freeze().into(), to: To::Inline });
        }
        let core = &self.0;
        let state = &mut *core.state.borrow_mut();
        if let Err(e) = core.check(state, &outgoing) {
            return Sending::answered(Err(e));
        }
        let loaded = match load_now(&mut outgoing, &core.pool) {
            Ok(loaded) => loaded,
            Err(e) => return Sending::answered(Err(Error::Io(e))),
        };
        let number = state.sent.number(outgoing.memory_bytes());
        if loaded && state.loading.is_empty() {
            core.relay.mute(true);
            core.submit(state, number, outgoing);
            core.pump(state, false);
            core.reap(state);
            core.relay.mute(false);
            if let Some(outcome) = state.sent.outcome(number) {
                return Sending::answered(outcome.map_err(Error::Io));
            }
        } else {
            let loading = recorder::staged(&core.stage, load(outgoing, core.pool.clone()));
            state.loading.push_back((number, Box::pin(loading)));
            core.relay.need_task(true);
            core.relay.wake_task();
        }
        Sending::waiting(Taken { core: core.clone(), number })
    }

    fn backlog(&self) -> usize {
        self.0.state.borrow().sent.outstanding() as usize
    }

    fn waits_for_memory(&self) -> bool {
        self.0.state.borrow().waits_for_memory()
    }

    fn has_ended(&self) -> bool {
        self.0.state.borrow().ended.is_some()
    }

    fn unsent_bytes(&self) -> usize {
        self.0.state.borrow().sent.outstanding_bytes()
    }

    fn stages(&self) -> Stages {
        [Some(self.0.stage.clone()), self.0.queue_pair.stage()]
    }

    fn cork(&self, _on: bool) {
        // Work is posted one by one; the provider batches.
    }

    fn remote(&self, from: Vec<Segment>) -> Box<dyn RemotePayload> {
        Box::new(Remote { core: self.0.clone(), from })
    }

    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, Error> {
        match self.0.queue_pair.register(buf, access) {
            Ok(segment) => {
                let revocable = self.0.queue_pair.caps().revocable_regions;
                Ok(Exposed { segments: vec![segment], revocable })
            }
            Err(PostError::Closed) => Err(Error::Closed),
            Err(PostError::Misuse(what)) => Err(Error::Misuse(what)),
            Err(PostError::QueueFull | PostError::RegionsFull(_)) => {
                Err(Error::Misuse("more memory exposed than the provider has regions for"))
            }
        }
    }

    fn revoke(&self, exposed: Exposed) -> Option<Buf> {
        exposed
            .segments
            .iter()
            .fold(None, |last, segment| self.0.queue_pair.invalidate(segment.stag).or(last))
    }

    fn traffic(&self) -> Traffic {
        self.0.queue_pair.traffic()
    }

    fn close(&self) {
        let core = &self.0;
        let state = &mut *core.state.borrow_mut();
        if state.closing.is_none() {
            state.closing = Some(rt::now() + LINGER);
            core.relay.need_task(true);
            core.pump(state, false);
            core.relay.wake_task();
        }
    }
}

impl Drop for Smbd {
    fn drop(&mut self) {
        self.close();
    }
}
