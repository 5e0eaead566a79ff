//! The queue pair: work in, completions out, and the bytes moved in between by whoever initiates.
//!
//! What: `post` carries work out at once, in order; only a file that must be read from disk makes later work queue
//! behind it, for `poll` to continue. Spec: RFC 5040 5 (ordering), 8 (errors end the connection).
//! Owns: posted buffers, regions, the mapped slabs of the peer. Does not: block, except for at most one copy of the
//! peer's when memory is taken back (see `regions`).
//!
//! Operation: a Send takes the peer's next posted receive buffer out of its ring, copies the message straight into
//! it and puts the news into the peer's news ring. A Write or Read checks the peer's region table and copies; the
//! peer learns nothing of it.
//! Buffers: receive buffers and regions are windows while the peer may write them, and exclusive again afterwards.
//! Errors: every end goes through `end`: nothing of ours is reachable any more, then all posted work flushes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::net::Readable;
use weft_machine::rt::{self, Poller, PollerGuard, Task};
use weft_machine::shm::{Consumer, Doorbell, Producer, Sleeper, Socket, Words};
use weft_machine::{Buf, File, FileRange, Payload, Pool, Window};

use super::NAME;
use super::layout::{Half, RECV_SLOTS, SLOT_WORDS, Side, halves};
use super::message::{MAX_MESSAGE, Message};
use super::moderation::Moderated;
use super::news::{News, Posted};
use super::quarantine;
use super::regions::{Denied, Inside, Reach, RegionTable, Stuck, wait_outside};
use super::slabs::{Announced, PeerSlabs};
use crate::{
    Access, Caps, Completion, Disconnect, Done, PostError, QueuePair, Refusal, Segment, Stag, Traffic, Work,
    WorkError,
};

/// What one trip to the disk fetches when a Write's file is not in the page cache.
const SCRATCH_BYTES: usize = 1 << 20;

/// What a file takes at a time while the peer may not have its memory back.
const INSIDE_BYTES: u32 = 1 << 20;

/// What set-up has agreed.
pub(super) struct Parts {
    pub(super) side: Side,
    pub(super) link: Readable<Socket>,
    pub(super) segment: Words,
    pub(super) our_bell: Doorbell,
    pub(super) their_bell: Doorbell,
    pub(super) pool: Pool,
    pub(super) slabs: PeerSlabs,
    pub(super) caps: Caps,
    pub(super) stall_limit: Duration,
    pub(super) peer: String,
}

/// A connected queue pair; dropping it closes the connection.
pub(super) struct ShmQueuePair(Rc<Inner>);

struct Inner {
    pool: Pool,
    caps: Caps,
    stall_limit: Duration,
    peer: String,
    link: Readable<Socket>,
    bell: Rc<Readable<Doorbell>>,
    inbox: Rc<Inbox>,
    reach: Reach,
    /// Ours: set when we take nothing more.
    ended: Words,
    /// Ours: for the peer's statistics.
    our_traffic: Words,
    their_hazard: Words,
    their_traffic: Words,
    /// The socket has ended, or said something that it must not say.
    link_end: RefCell<Option<Disconnect>>,
    state: RefCell<State>,
}

struct State {
    /// Why everything is over, once it is.
    ended: Option<Disconnect>,
    /// `close` was called while work was queued.
    closing: bool,
    completions: VecDeque<Completion>,
    /// A Write whose file is being read from disk; `queue` waits behind it.
    head: Option<FileWrite>,
    queue: VecDeque<Work>,
    /// Sends, Writes and Reads posted whose completions were not taken (or will not come, being unsignalled).
    sends_posted: usize,
    /// By slot: what the peer may fill.
    recvs: Vec<Option<PostedRecv>>,
    free_slots: Vec<u16>,
    recv_ring: Producer<SLOT_WORDS>,
    /// Where the peer's next messages go: what was read ahead from its ring.
    peer_recvs: VecDeque<Posted>,
    peer_recv_ring: Consumer<SLOT_WORDS>,
    peer_news: Producer<SLOT_WORDS>,
    regions: RegionTable,
    announced: Announced,
    slabs: PeerSlabs,
    sent: (u64, u64),
    received: (u64, u64),
    written: (u64, u64),
    read: (u64, u64),
    _watch: Option<Watch>,
}

struct PostedRecv {
    id: u64,
    window: Window,
}

/// What listens for the peer.
struct Watch {
    _poller: PollerGuard,
    _bell: Task<()>,
    _link: Task<()>,
}

/// The part of a queue pair that the core's loop looks at.
struct Inbox {
    news: RefCell<Consumer<SLOT_WORDS>>,
    waker: Cell<Option<Waker>>,
    sleeping: Sleeper,
    their_bell: Moderated,
}

impl Inbox {
    fn wake(&self) -> bool {
        match self.waker.take() {
            Some(waker) => {
                waker.wake();
                true
            }
            None => false,
        }
    }
}

impl Poller for Inbox {
    fn poll(&self) -> bool {
        self.their_bell.look();
        self.news.borrow().has_news() && self.wake()
    }

    fn before_sleep(&self) -> bool {
        self.sleeping.announce();
        !self.poll()
    }

    fn after_sleep(&self) {
        self.sleeping.awake();
    }
}

/// Why a piece of work did not succeed.
enum Stop {
    /// The peer's table, or its lack of receive buffers, says no.
    Refused(Refusal),
    /// The peer has ended; its news say why.
    PeerEnded,
    /// The peer's shared memory makes no sense.
    Violation(&'static str),
    /// The file could not be read.
    Payload(io::ErrorKind),
}

impl From<Denied> for Stop {
    fn from(denied: Denied) -> Stop {
        match denied {
            Denied::Refused(refusal) => Stop::Refused(refusal),
            Denied::Ended => Stop::PeerEnded,
        }
    }
}

/// A Write of a file range, resumable.
struct FileWrite {
    id: u64,
    range: FileRange,
    to: Segment,
    signalled: bool,
    /// Bytes placed; `done <= range.len`.
    done: usize,
    /// The next bytes on their way from disk, into memory of our own: the peer's region must not be entered across
    /// an await.
    fetch: Option<LocalBoxFuture<'static, io::Result<Buf>>>,
}

impl ShmQueuePair {
    pub(super) fn new(parts: Parts) -> io::Result<Rc<ShmQueuePair>> {
        quarantine::sweep();
        let (ours, theirs) = halves(&parts.segment, parts.side);
        let Half { hazard, sleeping, ended, news_taken, recvs_taken, traffic, recvs, news, regions } = ours;
        let inbox = Rc::new(Inbox {
            news: RefCell::new(Consumer::new(news, news_taken)),
            waker: Cell::new(None),
            sleeping,
            their_bell: Moderated::new(theirs.sleeping, parts.their_bell),
        });
        let slots = parts.caps.max_recv_work;
        let state = State {
            ended: None,
            closing: false,
            completions: VecDeque::new(),
            head: None,
            queue: VecDeque::new(),
            sends_posted: 0,
            recvs: (0..slots).map(|_| None).collect(),
            free_slots: (0..slots as u16).rev().collect(),
            recv_ring: Producer::new(recvs, theirs.recvs_taken),
            peer_recvs: VecDeque::new(),
            peer_recv_ring: Consumer::new(theirs.recvs, recvs_taken),
            peer_news: Producer::new(theirs.news, theirs.news_taken),
            regions: RegionTable::new(regions, parts.caps.max_regions),
            announced: Announced::default(),
            slabs: parts.slabs,
            sent: (0, 0),
            received: (0, 0),
            written: (0, 0),
            read: (0, 0),
            _watch: None,
        };
        let inner = Rc::new(Inner {
            pool: parts.pool,
            caps: parts.caps,
            stall_limit: parts.stall_limit,
            peer: parts.peer,
            link: parts.link,
            bell: Rc::new(Readable::new(parts.our_bell)?),
            inbox: inbox.clone(),
            reach: Reach::new(hazard, theirs.ended, theirs.regions),
            ended,
            our_traffic: traffic,
            their_hazard: theirs.hazard,
            their_traffic: theirs.traffic,
            link_end: RefCell::new(None),
            state: RefCell::new(state),
        });
        let watch = Watch {
            _bell: rt::spawn(answer_bell(inner.bell.clone(), inbox.clone())),
            _link: rt::spawn(watch_link(Rc::downgrade(&inner))),
            _poller: rt::register_poller(inbox),
        };
        inner.state.borrow_mut()._watch = Some(watch);
        Ok(Rc::new(ShmQueuePair(inner)))
    }

    pub(super) fn link(&self) -> &Socket {
        self.0.link.inner()
    }

    pub(super) fn bell(&self) -> &Doorbell {
        self.0.bell.inner()
    }
}

/// Passes the bell on to whoever waits for completions.
async fn answer_bell(bell: Rc<Readable<Doorbell>>, inbox: Rc<Inbox>) {
    while let Ok(()) = bell.readable().await {
        bell.inner().silence();
        inbox.poll();
    }
}

/// Maps slabs as they are passed, and notices the peer's death. Never holds the queue pair across a wait, which would
/// keep a dropped one alive.
async fn watch_link(inner: Weak<Inner>) {
    std::future::poll_fn(|cx| {
        let Some(inner) = inner.upgrade() else { return Poll::Ready(()) };
        loop {
            inner.drain_link(&mut inner.state.borrow_mut());
            if inner.link_end.borrow().is_none() {
                match std::task::ready!(inner.link.poll_readable(cx)) {
                    Ok(()) => continue,
                    Err(e) => *inner.link_end.borrow_mut() = Some(Disconnect::Lost(e.kind())),
                }
            }
            inner.inbox.wake();
            return Poll::Ready(());
        }
    })
    .await;
}

impl Inner {
    fn drain_link(&self, state: &mut State) {
        let mut bytes = [0; MAX_MESSAGE];
        while self.link_end.borrow().is_none() {
            let end = match self.link.inner().try_recv(&mut bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    Disconnect::Violation("socket message too long")
                }
                Err(e) => Disconnect::Lost(e.kind()),
                Ok(received) if received.len == 0 => Disconnect::Lost(io::ErrorKind::ConnectionReset),
                Ok(received) => {
                    let added =
                        match (Message::parse(&bytes[..received.len]), received.fds.into_iter().next()) {
                            (Ok(Message::Slab { number }), Some(fd)) => state.slabs.add(number, fd),
                            (Ok(_), _) => Err("unexpected message after set-up"),
                            (Err(e), _) => Err(e),
                        };
                    match added {
                        Ok(()) => continue,
                        Err(what) => Disconnect::Violation(what),
                    }
                }
            };
            *self.link_end.borrow_mut() = Some(end);
        }
    }

    /// Slab `number` of the peer. When it is unknown here its descriptor is in the socket already.
    fn slab<'s>(&self, state: &'s mut State, number: u32) -> Result<&'s Window, Stop> {
        if state.slabs.slab(number).is_none() {
            self.drain_link(state);
        }
        state.slabs.slab(number).ok_or(Stop::Violation("names a slab that it has not passed"))
    }

    fn tell(&self, state: &mut State, news: News) -> Result<(), Stop> {
        state.peer_news.push(news.emit()).map_err(|_| Stop::Violation("does not count its news"))?;
        self.inbox.their_bell.news();
        Ok(())
    }

    fn count(&self, index: usize, bytes: usize) {
        // We are the only writer of our half's counters.
        for (word, add) in self.our_traffic[index..index + 2].iter().zip([bytes as u64, 1]) {
            word.store(word.load(Ordering::Relaxed) + add, Ordering::Relaxed);
        }
    }

    // ---- carrying out work ----

    fn post_recv(&self, state: &mut State, id: u64, buf: Buf) -> Result<(), (PostError, Work)> {
        let Some((slab, offset)) = buf.location(&self.pool).filter(|_| !buf.is_part()) else {
            return Err((FOREIGN_BUFFER, Work::Recv { id, buf }));
        };
        let Some(slot) = state.free_slots.pop() else {
            return Err((PostError::QueueFull, Work::Recv { id, buf }));
        };
        // A buffer of the pool is at most MAX_BUF long.
        let posted = Posted { slot, capacity: buf.capacity() as u32, slab, offset };
        if state.announced.ensure(slab, &self.pool, self.link.inner()).is_err() {
            state.free_slots.push(slot);
            return Err((PostError::Closed, Work::Recv { id, buf }));
        }
        if state.recv_ring.push(posted.emit()).is_err() {
            // The ring has a place per slot: only a peer that counts wrong gets here.
            state.free_slots.push(slot);
            return Err((PostError::QueueFull, Work::Recv { id, buf }));
        }
        state.recvs[usize::from(slot)] = Some(PostedRecv { id, window: buf.into_window() });
        Ok(())
    }

    /// Takes the peer's posted receive buffers out of its ring before a Send needs one.
    fn read_ahead(&self, state: &mut State) -> Result<(), &'static str> {
        while state.ended.is_none() && state.peer_recvs.len() < RECV_SLOTS {
            let Some(posted) = next_recv(state)? else { break };
            state.peer_recvs.push_back(posted);
        }
        Ok(())
    }

    fn send(
        &self,
        state: &mut State,
        data: &[Bytes],
        invalidate: Option<Stag>,
        solicited: bool,
    ) -> Result<(), Stop> {
        let inside = self.reach.receive_buffers()?;
        let len: usize = data.iter().map(Bytes::len).sum();
        let posted = match state.peer_recvs.pop_front() {
            Some(posted) => posted,
            None => next_recv(state).map_err(Stop::Violation)?.ok_or(Stop::Refused(Refusal::NoBuffer))?,
        };
        if len > posted.capacity as usize {
            return Err(Stop::Refused(Refusal::TooLong));
        }
        let slab = self.slab(state, posted.slab)?;
        let mut at = usize::try_from(posted.offset).map_err(|_| OUTSIDE)?;
        for piece in data {
            if !slab.write_at(at, piece) {
                return Err(OUTSIDE);
            }
            at += piece.len();
        }
        if let Some(stag) = invalidate
            && !self.reach.invalidate(stag)
        {
            return Err(Stop::Refused(Refusal::InvalidStag));
        }
        drop(inside);
        let len32 = len as u32;
        self.tell(
            state,
            News::Message { slot: posted.slot, len: len32, invalidated: invalidate, solicited },
        )?;
        add(&mut state.sent, len);
        Ok(())
    }

    fn write_chain(&self, state: &mut State, chain: &[Bytes], to: Segment) -> Result<(), Stop> {
        let len: usize = chain.iter().map(Bytes::len).sum();
        let (_inside, slab, mut at) = self.enter(state, to, len, Access::RemoteWrite)?;
        for piece in chain {
            if !slab.write_at(at, piece) {
                return Err(OUTSIDE);
            }
            at += piece.len();
        }
        Ok(())
    }

    fn read(&self, state: &mut State, into: &mut Buf, from: Segment) -> Result<(), Stop> {
        let len = from.len as usize;
        let (_inside, slab, at) = self.enter(state, from, len, Access::RemoteRead)?;
        into.set_len(len);
        if slab.read_at(at, into) { Ok(()) } else { Err(OUTSIDE) }
    }

    /// A Read whose bytes the kernel copies from the peer's slab into a file: nowhere in between.
    fn read_into(
        &self,
        state: &mut State,
        from: Segment,
        file: &File,
        offset: u64,
    ) -> Option<io::Result<()>> {
        let mut done = 0;
        while done < from.len {
            let len = (from.len - done).min(INSIDE_BYTES);
            let part = Segment { offset: from.offset.checked_add(done.into())?, len, ..from };
            let len = len as usize;
            let (_inside, slab, at) = self.enter(state, part, len, Access::RemoteRead).ok()?;
            if let Err(e) = file.place_at(offset.checked_add(done.into())?, &slab.slice(at, len)?) {
                return Some(Err(e));
            }
            done += part.len;
        }
        add(&mut state.read, from.len as usize);
        self.count(2, from.len as usize);
        Some(Ok(()))
    }

    /// Enters a region of the peer: while the first value lives it is not taken back.
    fn enter<'s>(
        &'s self,
        state: &'s mut State,
        segment: Segment,
        len: usize,
        access: Access,
    ) -> Result<(Inside<'s>, &'s Window, usize), Stop> {
        let (inside, place) = self.reach.region(segment, len, access)?;
        let at = usize::try_from(place.offset).map_err(|_| OUTSIDE)?;
        Ok((inside, self.slab(state, place.slab)?, at))
    }

    /// Goes on with a Write of a file. Without `cx` it does not go to the disk: it only says that it must.
    fn write_file(
        &self,
        state: &mut State,
        write: &mut FileWrite,
        mut cx: Option<&mut Context<'_>>,
    ) -> Poll<Result<(), Stop>> {
        loop {
            if let Some(fetch) = &mut write.fetch {
                let Some(cx) = cx.as_deref_mut() else { return Poll::Pending };
                let fetched = std::task::ready!(fetch.as_mut().poll(cx));
                write.fetch = None;
                let bytes = match fetched {
                    Ok(buf) => buf.freeze(),
                    Err(e) => return Poll::Ready(Err(Stop::Payload(e.kind()))),
                };
                let placed = bytes.len();
                if let Err(stop) = self.write_chain(state, &[bytes], write.rest()) {
                    return Poll::Ready(Err(stop));
                }
                write.done += placed;
            }
            let rest = write.rest_of_file();
            if rest.len == 0 {
                return Poll::Ready(Ok(()));
            }
            match self.write_cached(state, &rest, write.rest()) {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(stop) => return Poll::Ready(Err(stop)),
            }
            let part = FileRange { len: rest.len.min(SCRATCH_BYTES), ..rest };
            let pool = self.pool.clone();
            write.fetch = Some(Box::pin(async move {
                let mut scratch = pool.alloc(part.len).await;
                scratch.set_len(part.len);
                let window = scratch.into_window();
                part.read_into(&window).await?;
                window.try_into_buf().map_err(|_| io::ErrorKind::ResourceBusy.into())
            }));
        }
    }

    /// Reads the file straight into the peer's region, from the page cache alone; false when that does not hold it.
    fn write_cached(&self, state: &mut State, range: &FileRange, to: Segment) -> Result<bool, Stop> {
        let (_inside, slab, at) = self.enter(state, to, range.len, Access::RemoteWrite)?;
        let window = slab.slice(at, range.len).ok_or(OUTSIDE)?;
        match range.try_read_into(&window) {
            Some(Ok(())) => Ok(true),
            Some(Err(e)) => Err(Stop::Payload(e.kind())),
            None => Ok(false),
        }
    }

    /// Carries out one piece of work, or makes it the head that later work waits for.
    fn execute(&self, state: &mut State, work: Work) {
        let (id, signalled, result) = match work {
            Work::Send { id, data, invalidate, solicited, signalled } => {
                let result = self.send(state, &data, invalidate, solicited);
                (id, signalled, result.map(|()| Done::Sent))
            }
            // RFC 5040 and 5041: an empty Write or Read touches no memory, so its STag is not looked at.
            Work::Write { id, data, signalled, .. } if data.is_empty() => {
                (id, signalled, Ok(self.written(state, 0)))
            }
            Work::Read { id, mut into, from } if from.len == 0 => {
                into.set_len(0);
                (id, true, Ok(self.fetched(state, into)))
            }
            Work::Write { id, data: Payload::Chain(chain), to, signalled } => {
                let len = chain.iter().map(Bytes::len).sum();
                let result = self.write_chain(state, &chain, to);
                (id, signalled, result.map(|()| self.written(state, len)))
            }
            Work::Write { id, data: Payload::File(range), to, signalled } => {
                let mut write = FileWrite { id, range, to, signalled, done: 0, fetch: None };
                match self.write_file(state, &mut write, None) {
                    Poll::Ready(result) => {
                        let len = write.range.len;
                        (id, signalled, result.map(|()| self.written(state, len)))
                    }
                    Poll::Pending => {
                        state.head = Some(write);
                        // For `poll`, which alone can wait for the disk.
                        self.inbox.wake();
                        return;
                    }
                }
            }
            Work::Read { id, mut into, from } => {
                let result = self.read(state, &mut into, from);
                (id, true, result.map(|()| self.fetched(state, into)))
            }
            // `post` keeps receives apart.
            Work::Recv { .. } => return,
        };
        self.complete(state, id, signalled, result);
    }

    fn written(&self, state: &mut State, len: usize) -> Done {
        add(&mut state.written, len);
        self.count(0, len);
        Done::Written
    }

    fn fetched(&self, state: &mut State, buf: Buf) -> Done {
        add(&mut state.read, buf.len());
        self.count(2, buf.len());
        Done::Read { buf }
    }

    fn complete(&self, state: &mut State, id: u64, signalled: bool, result: Result<Done, Stop>) {
        match result {
            Ok(done) if signalled => state.completions.push_back(Completion { id, result: Ok(done) }),
            Ok(_) => state.sends_posted -= 1,
            Err(stop) => self.stop(state, id, stop),
        }
    }

    /// A piece of work failed: with it ends the connection.
    fn stop(&self, state: &mut State, id: u64, stop: Stop) {
        let (error, reason) = match stop {
            Stop::Refused(refusal) => {
                // The peer learns which of its rights ended the connection.
                let _ = self.tell(state, News::Refused(refusal));
                (WorkError::Remote(refusal), Some(Disconnect::Terminated(refusal)))
            }
            Stop::PeerEnded => (WorkError::Flushed, None),
            Stop::Violation(what) => (WorkError::Flushed, Some(Disconnect::Violation(what))),
            Stop::Payload(kind) => (WorkError::Payload(kind), Some(Disconnect::Local)),
        };
        state.completions.push_back(Completion { id, result: Err(error) });
        match reason {
            Some(reason) => self.end(state, reason),
            None => {
                // It told the reason before it set `ended`, behind its last messages.
                self.take_news(state);
                self.end(state, Disconnect::Lost(io::ErrorKind::ConnectionAborted));
            }
        }
    }

    /// Carries out what waits behind a file.
    fn advance(&self, state: &mut State, cx: &mut Context<'_>) {
        while state.ended.is_none() {
            if let Some(mut write) = state.head.take() {
                match self.write_file(state, &mut write, Some(cx)) {
                    Poll::Pending => {
                        state.head = Some(write);
                        return;
                    }
                    Poll::Ready(result) => {
                        let result = result.map(|()| self.written(state, write.range.len));
                        self.complete(state, write.id, write.signalled, result);
                    }
                }
            } else if let Some(work) = state.queue.pop_front() {
                self.execute(state, work);
            } else {
                if state.closing {
                    self.end(state, Disconnect::Local);
                }
                return;
            }
        }
    }

    // ---- the peer's news ----

    fn take_news(&self, state: &mut State) {
        while state.ended.is_none() {
            let Some(slot) = self.inbox.news.borrow_mut().pop() else { return };
            match News::parse(slot) {
                Some(News::Message { slot, len, invalidated, solicited }) => {
                    if let Err(what) = self.receive(state, slot, len, invalidated, solicited) {
                        self.end(state, Disconnect::Violation(what));
                    }
                }
                Some(News::Refused(refusal)) => self.end(state, Disconnect::Refused(refusal)),
                Some(News::Closed) => self.end(state, Disconnect::Peer),
                None => self.end(state, Disconnect::Violation("news that make no sense")),
            }
        }
    }

    fn receive(
        &self,
        state: &mut State,
        slot: u16,
        len: u32,
        invalidated: Option<Stag>,
        solicited: bool,
    ) -> Result<(), &'static str> {
        let posted = state.recvs.get_mut(usize::from(slot)).and_then(Option::take);
        let PostedRecv { id, window } = posted.ok_or("a message in a buffer that was not posted")?;
        state.free_slots.push(slot);
        // Nobody else holds a window of a posted receive buffer.
        let mut buf = window.try_into_buf().map_err(|_| "a message in a buffer that is in use")?;
        let len = len as usize;
        if len > buf.capacity() {
            return Err("a message longer than its buffer");
        }
        buf.set_len(len);
        if let Some(stag) = invalidated {
            state.regions.revoke(stag);
        }
        add(&mut state.received, len);
        state
            .completions
            .push_back(Completion { id, result: Ok(Done::Received { buf, invalidated, solicited }) });
        Ok(())
    }

    // ---- the end ----

    fn end(&self, state: &mut State, reason: Disconnect) {
        if state.ended.is_some() {
            return;
        }
        tracing::debug!(peer = %self.peer, %reason, "shm connection ends");
        state.ended = Some(reason);
        state._watch = None;
        // A peer that is still alive should not take our silence for a stall. When its ring is full it is not
        // listening anyway, and sees the socket close.
        let _ = self.tell(state, News::Closed);
        // From here on the peer touches nothing of ours; see `regions`.
        self.ended[0].store(1, Ordering::Release);
        let outside = wait_outside(&self.their_hazard[0], self.stall_limit, || self.link.inner().hung_up());
        let mut flushed = Vec::new();
        flushed.extend(state.head.take().map(|write| write.id));
        flushed.extend(state.queue.drain(..).map(|work| id_of(&work)));
        let mut windows = Vec::new();
        for PostedRecv { id, window } in state.recvs.iter_mut().filter_map(Option::take) {
            flushed.push(id);
            windows.push(window);
        }
        let flush = |id| Completion { id, result: Err(WorkError::Flushed) };
        state.completions.extend(flushed.into_iter().map(flush));
        if let Err(Stuck) = outside {
            windows.extend(state.regions.drain());
            quarantine::keep(self.link.inner(), windows);
        }
        self.inbox.wake();
    }
}

/// What a peer says whose ring or table points outside of its slabs.
const OUTSIDE: Stop = Stop::Violation("names memory outside of its slabs");

fn add(counter: &mut (u64, u64), bytes: usize) {
    counter.0 += bytes as u64;
    counter.1 += 1;
}

fn next_recv(state: &mut State) -> Result<Option<Posted>, &'static str> {
    match state.peer_recv_ring.pop() {
        None => Ok(None),
        Some(slot) => Posted::parse(slot).map(Some).ok_or("a receive buffer that makes no sense"),
    }
}

const FOREIGN_BUFFER: PostError = PostError::Misuse("buffer not a whole one of the provider's pool");

/// What is wrong with a Send, Write or Read.
fn check(work: &Work, posted: usize, limit: usize) -> Result<(), PostError> {
    match work {
        Work::Send { data, .. } if data.iter().map(Bytes::len).sum::<usize>() > u32::MAX as usize => {
            return Err(PostError::Misuse("message longer than 4 GiB"));
        }
        Work::Write { data, to, .. } if data.len() > to.len as usize => {
            return Err(PostError::Misuse("payload longer than its segment"));
        }
        Work::Read { into, from, .. } if into.capacity() < from.len as usize => {
            return Err(PostError::Misuse("buffer smaller than the segment"));
        }
        _ => {}
    }
    if posted < limit { Ok(()) } else { Err(PostError::QueueFull) }
}

/// Whether a completion is of a Send, Write or Read that succeeded.
fn is_send(completion: &Completion) -> bool {
    matches!(completion.result, Ok(Done::Sent | Done::Written | Done::Read { .. }))
}

fn id_of(work: &Work) -> u64 {
    match work {
        Work::Send { id, .. } | Work::Recv { id, .. } | Work::Write { id, .. } | Work::Read { id, .. } => *id,
    }
}

impl FileWrite {
    fn rest(&self) -> Segment {
        Segment { offset: self.to.offset.saturating_add(self.done as u64), ..self.to }
    }

    fn rest_of_file(&self) -> FileRange {
        let FileRange { file, offset, len } = &self.range;
        FileRange {
            file: file.clone(),
            offset: offset.saturating_add(self.done as u64),
            len: len - self.done,
        }
    }
}

impl QueuePair for ShmQueuePair {
    fn provider(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        self.0.caps
    }

    fn peer(&self) -> String {
        self.0.peer.clone()
    }

    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        if state.ended.is_some() {
            return Err(PostError::Closed);
        }
        let (slab, _) = buf.location(&inner.pool).filter(|_| !buf.is_part()).ok_or(FOREIGN_BUFFER)?;
        if state.announced.ensure(slab, &inner.pool, inner.link.inner()).is_err() {
            return Err(PostError::Closed);
        }
        state.regions.add(&inner.pool, buf, access)
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        let dead = || inner.link.inner().hung_up();
        match state.regions.take(stag, &inner.their_hazard[0], inner.stall_limit, dead)? {
            Ok(window) => window.try_into_buf().ok(),
            Err((Stuck, window)) => {
                quarantine::keep(inner.link.inner(), vec![window]);
                inner.end(state, Disconnect::Lost(io::ErrorKind::TimedOut));
                None
            }
        }
    }

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        let inner = &self.0;
        let mut state = inner.state.borrow_mut();
        if state.ended.is_some() || state.closing {
            return Err((PostError::Closed, work));
        }
        if let Work::Recv { id, buf } = work {
            return inner.post_recv(&mut state, id, buf);
        }
        if let Err(e) = check(&work, state.sends_posted, inner.caps.max_send_work) {
            return Err((e, work));
        }
        state.sends_posted += 1;
        if state.head.is_some() || !state.queue.is_empty() {
            state.queue.push_back(work);
        } else {
            inner.execute(&mut state, work);
        }
        if !state.completions.is_empty() {
            drop(state);
            inner.inbox.wake();
        }
        Ok(())
    }

    fn read_into(&self, from: Segment, file: &File, offset: u64) -> Option<io::Result<()>> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        if state.ended.is_some() || state.closing || !file.is_in_memory() {
            return None;
        }
        inner.read_into(state, from, file, offset)
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        inner.take_news(state);
        inner.advance(state, cx);
        // When nothing else is to do, there is time to fetch the peer's receive buffers out of its cache.
        if state.completions.is_empty()
            && let Err(what) = inner.read_ahead(state)
        {
            inner.end(state, Disconnect::Violation(what));
        }
        if state.ended.is_none()
            && let Some(reason) = inner.link_end.borrow().clone()
        {
            // What the peer said before it went counts; the ring was filled before the socket closed.
            inner.take_news(state);
            inner.end(state, reason);
        }
        if !state.completions.is_empty() {
            let sends = state.completions.iter().filter(|c| is_send(c)).count();
            state.sends_posted = state.sends_posted.saturating_sub(sends);
            out.extend(state.completions.drain(..));
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = &state.ended {
            return Poll::Ready(Err(reason.clone()));
        }
        inner.inbox.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Polling looks at the ring itself; what is left are bells that this side owes.
    fn look(&self) {
        self.0.inbox.their_bell.look();
    }

    fn traffic(&self) -> Traffic {
        let state = self.0.state.borrow();
        let theirs = |index: usize| {
            let word = |i: usize| self.0.their_traffic[i].load(Ordering::Relaxed);
            (word(index), word(index + 1))
        };
        Traffic {
            sent: state.sent,
            received: state.received,
            written: state.written,
            placed: theirs(0),
            read: state.read,
            served: theirs(2),
        }
    }

    fn close(&self) {
        let state = &mut *self.0.state.borrow_mut();
        state.closing = true;
        if state.head.is_none() && state.queue.is_empty() {
            self.0.end(state, Disconnect::Local);
        }
    }
}

impl Drop for ShmQueuePair {
    fn drop(&mut self) {
        let state = &mut *self.0.state.borrow_mut();
        self.0.end(state, Disconnect::Local);
    }
}
