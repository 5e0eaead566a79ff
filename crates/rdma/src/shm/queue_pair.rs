//! The queue pair: work in, completions out; the initiator moves the bytes in between.
//!
//! `post` carries out work at once, in order (see [`work`]); only if a file must be read from disk does later work
//! queue behind it, and `poll` continues. See RFC 5040 5 (ordering) and 8 (errors end the connection). It owns posted
//! buffers, regions and the mapped slabs of the peer. It does not block, except for at most one copy by the peer when
//! memory is taken back (see `regions`).
//!
//! A Send takes the peer's next posted receive buffer out of its ring, copies the message straight into it and puts the
//! news into the peer's news ring. A Write or Read checks the peer's region table and copies; the peer is not notified.
//! Receive buffers and regions are windows while the peer may write them, and exclusive again afterwards. Every end
//! goes through `end`: it first makes all our memory unreachable, then flushes all posted work.

mod work;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::net::Readable;
use weft_machine::recorder::Stage;
use weft_machine::rt::{self, Poller, PollerGuard, Task};
use weft_machine::shm::{Consumer, Doorbell, Producer, Ringer, Sleeper, Socket, Word, Words};
use weft_machine::{Buf, File, Peer, Pool, Window};

use self::work::{FileWrite, Stop, check};
use super::NAME;
use super::layout::{Half, SLOT_WORDS, Side, halves};
use super::message::{MAX_MESSAGE, Message};
use super::moderation::Moderated;
use super::news::{News, Posted};
use super::quarantine;
use super::regions::{Held, Reach, RegionTable, Stuck, wait_outside};
use super::slabs::{Announced, PeerSlabs};
use crate::verbs::tally;
use crate::{
    Access, Caps, Completion, Disconnect, Done, PostError, QueuePair, Segment, Stag, Traffic, Work, WorkError,
};

/// The results of set-up.
pub(super) struct Parts {
    pub(super) side: Side,
    pub(super) link: Readable<Socket>,
    pub(super) segment: Words,
    pub(super) our_bell: Doorbell,
    pub(super) their_bell: Ringer,
    pub(super) pool: Pool,
    pub(super) slabs: PeerSlabs,
    pub(super) caps: Caps,
    pub(super) stall_limit: Duration,
    pub(super) peer: Peer,
}

/// A connected queue pair; dropping it closes the connection.
pub(super) struct ShmQueuePair(Rc<Inner>);

struct Inner {
    pool: Pool,
    caps: Caps,
    stall_limit: Duration,
    peer: Peer,
    link: Readable<Socket>,
    inbox: Rc<Inbox>,
    reach: Reach,
    /// Ours: set when we accept nothing more.
    ended: Word,
    /// Ours: for the peer's statistics.
    our_traffic: [Word; 4],
    their_hazard: Word,
    their_traffic: [Word; 4],
    /// The socket has ended, or delivered an unexpected message.
    link_end: RefCell<Option<Disconnect>>,
    /// Tells the waits of payload for a disk.
    stage: Arc<Stage>,
    state: RefCell<State>,
}

struct State {
    /// Why the connection ended, once it has.
    ended: Option<Disconnect>,
    /// `close` was called while work was queued.
    closing: bool,
    completions: VecDeque<Completion>,
    /// A Write whose file is being read from disk; `queue` waits behind it.
    head: Option<FileWrite>,
    queue: VecDeque<Work>,
    /// Sends, Writes and Reads posted whose completions were not taken (or will not come, because they are
    /// unsignalled).
    sends_posted: usize,
    /// The buffers that the peer may fill, by slot.
    recvs: Vec<Option<PostedRecv>>,
    free_slots: Vec<u16>,
    recv_ring: Producer<SLOT_WORDS>,
    /// Buffers for our next messages, read ahead from the peer's ring.
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

/// The listeners for events of the peer.
struct Watch {
    _poller: PollerGuard,
    _bell: Task<()>,
    _link: Task<()>,
}

/// The part of a queue pair that the core's loop polls.
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
        self.their_bell.ring_if_owed();
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
            inbox: inbox.clone(),
            reach: Reach::new(hazard, theirs.ended, theirs.regions),
            ended,
            our_traffic: traffic,
            their_hazard: theirs.hazard,
            their_traffic: theirs.traffic,
            link_end: RefCell::new(None),
            stage: Stage::new(),
            state: RefCell::new(state),
        });
        let watch = Watch {
            _bell: rt::spawn(answer_bell(Readable::new(parts.our_bell)?, inbox.clone())),
            _link: rt::spawn(watch_link(Rc::downgrade(&inner))),
            _poller: rt::register_poller(inbox),
        };
        inner.state.borrow_mut()._watch = Some(watch);
        Ok(Rc::new(ShmQueuePair(inner)))
    }

    pub(super) fn link(&self) -> &Socket {
        self.0.link.inner()
    }
}

/// Passes the bell on to the task that waits for completions.
async fn answer_bell(bell: Readable<Doorbell>, inbox: Rc<Inbox>) {
    loop {
        bell.arrived().await;
        loop {
            let still_rings = bell.inner().still_rings();
            inbox.poll();
            match still_rings {
                Ok(false) => break,
                // A peer that rings without a pause must not keep this core from its other tasks.
                Ok(true) => rt::yield_now().await,
                // A peer that closes the bell no longer wakes us; whether the peer itself is gone shows on its socket.
                Err(_) => return,
            }
        }
    }
}

/// Maps slabs as they are passed, and detects the peer's death. Never holds the queue pair across a wait, because that
/// would keep a dropped one alive.
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
                    let message = Message::parse(bytes.get(..received.len).unwrap_or_default());
                    let added = match (message, received.fds.into_iter().next()) {
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

    /// Slab `number` of the peer. If it is not mapped yet, its descriptor is already in the socket.
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

    fn count_write(&self, bytes: usize) {
        let [total, operations, ..] = &self.our_traffic;
        count_on(total, operations, bytes);
    }

    fn count_read(&self, bytes: usize) {
        let [.., total, operations] = &self.our_traffic;
        count_on(total, operations, bytes);
    }

    // ---- receive buffers ----

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
        // Numbers in `free_slots` are indices of `recvs`.
        if let Some(place) = state.recvs.get_mut(usize::from(slot)) {
            *place = Some(PostedRecv { id, window: buf.into_window() });
        }
        Ok(())
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
                None => self.end(state, Disconnect::Violation("malformed news")),
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
        tally(&mut state.received, len);
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
        tracing::debug!(peer = %self.peer, %reason, "shm connection ended");
        state.ended = Some(reason);
        state._watch = None;
        // A live peer should not mistake our silence for a stall. If its ring is full it is not listening anyway, and
        // sees the socket close.
        let _ = self.tell(state, News::Closed);
        // From here on the peer accesses none of our memory; see `regions`.
        self.ended.store(1, Ordering::Release);
        let outside = wait_outside(&self.their_hazard, self.stall_limit, || self.link.inner().hung_up());
        let mut flushed = Vec::new();
        flushed.extend(state.head.take().map(|write| write.id));
        flushed.extend(state.queue.drain(..).map(|work| work.id()));
        let mut windows = Vec::new();
        for PostedRecv { id, window } in state.recvs.iter_mut().filter_map(Option::take) {
            flushed.push(id);
            windows.push(Held::Window(window));
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

/// Counts one operation in our half, which only we write.
fn count_on(total: &Word, operations: &Word, bytes: usize) {
    for (word, more) in [(total, bytes as u64), (operations, 1)] {
        word.store(word.load(Ordering::Relaxed).saturating_add(more), Ordering::Relaxed);
    }
}

const FOREIGN_BUFFER: PostError =
    PostError::Misuse("the buffer is not a whole buffer of the provider's pool");

/// Whether this is the completion of a Send, Write or Read that succeeded.
fn is_send(completion: &Completion) -> bool {
    matches!(completion.result, Ok(Done::Sent | Done::Written | Done::Read { .. }))
}

impl QueuePair for ShmQueuePair {
    fn provider(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        self.0.caps
    }

    fn peer(&self) -> Peer {
        self.0.peer
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

    fn register_shared(&self, bytes: &Bytes) -> Option<Segment> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        if state.ended.is_some() {
            return None;
        }
        let place = inner.pool.location(bytes)?;
        state.announced.ensure(place.0, &inner.pool, inner.link.inner()).ok()?;
        state.regions.add_shared(bytes, place).ok()
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        let inner = &self.0;
        let state = &mut *inner.state.borrow_mut();
        let dead = || inner.link.inner().hung_up();
        match state.regions.take(stag, &inner.their_hazard, inner.stall_limit, dead)? {
            Ok(Held::Window(window)) => window.try_into_buf().ok(),
            Ok(Held::Lent(_)) => None,
            Err((Stuck, held)) => {
                quarantine::keep(inner.link.inner(), vec![held]);
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
        state.sends_posted = state.sends_posted.saturating_add(1);
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
        // While there is nothing else to do, fetches the peer's receive buffers out of its cache.
        if state.completions.is_empty()
            && let Err(what) = inner.read_ahead(state)
        {
            inner.end(state, Disconnect::Violation(what));
        }
        if state.ended.is_none()
            && let Some(reason) = inner.link_end.borrow().clone()
        {
            // News that the peer published before it left still counts; the ring was filled before the socket closed.
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

    /// Polling checks the ring itself; only pending bells of this side are left.
    fn look(&self) {
        self.0.inbox.their_bell.ring_if_owed();
    }

    fn stage(&self) -> Option<Arc<Stage>> {
        Some(self.0.stage.clone())
    }

    fn traffic(&self) -> Traffic {
        let state = self.0.state.borrow();
        let [placed, placed_times, served, served_times] =
            self.0.their_traffic.each_ref().map(|word| word.load(Ordering::Relaxed));
        Traffic {
            sent: state.sent,
            received: state.received,
            written: state.written,
            placed: (placed, placed_times),
            read: state.read,
            served: (served, served_times),
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
