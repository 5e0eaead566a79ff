//! Turns a byte stream into messages, with as few calls and copies as the sizes allow.
//!
//! Small messages share a staging buffer, many per receive call, and are slices of it; a large message is received into
//! its own buffer; a message of several frames is joined. The [`Framing`] defines the format. It owns the buffers being
//! filled, but keeps nothing that it has delivered.
//!
//! Bytes are copied only when a message does not fit where it began: the head of a large message that came with the
//! previous call (at most [`HEAD_BYTES`] while large messages arrive), and the head of a small message at the end of a
//! staging buffer. Both go through `buf::copy`, which counts, as does the joining of frames.

use std::io::{self, IoSliceMut};
use std::marker::PhantomData;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures_util::future::LocalBoxFuture;
use weft_machine::buf::Waiting;
use weft_machine::{Buf, Pool, Stream, Time, buf, recorder, rt};

use super::gather::{Gather, PATIENCE};
use super::{Framing, HEADER_LEN, Head};
use crate::arriving::Arrived;
use crate::channel::Ending;

/// Room for small messages of a busy channel: 30 READ replies of 8 KiB, or 2000 requests.
const MAX_STAGING_BYTES: usize = 256 << 10;
/// Room of a channel that receives little at a time.
const MIN_STAGING_BYTES: usize = 32 << 10;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
/// A message longer than this that has not arrived in full gets its own buffer.
const LARGE_BYTES: usize = 16 << 10;
/// How much of the remainder of a large message to wait for at a time; the kernel uses less if its buffer is smaller.
const LARGE_LOW_WATER: usize = 512 << 10;
/// How much may arrive after a large message in the same call: the head of the next one, which is copied.
const HEAD_BYTES: usize = 4 << 10;
/// The most frames in one message; a peer that sends one byte in each must not cost a buffer for each.
const MAX_FRAMES: usize = 1024;

/// A message longer than this from an untrusted peer gets its buffer only when part of it has arrived: see
/// [`GOOD_PART`]. A WRITE of 64 KiB, the most frequent of the large ones, is not longer: asking what has arrived of it, and waiting for
/// the rest, would cost up to four system calls.
const WARY_BYTES: usize = 68 << 10;
/// The part of a large message that waits in the socket before it gets a buffer, at most half of the message: an
/// announcement alone costs no memory, and the kernel has that much room for a socket by default (tcp_rmem).
const GOOD_PART: usize = 256 << 10;
/// Bytes that complete no message, received in a row before other connections of the core get their turn: a peer may
/// send keepalives without end, faster than they are skipped.
const IDLE_BYTES: usize = 256 << 10;
/// The first staging buffer of a stranger. It doubles as bytes arrive.
const STRANGER_STAGING_BYTES: usize = 4 << 10;

/// The memory policy of a receive.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) pool: &'a Pool,
    pub(super) max_message: usize,
    /// The peer is unidentified: no memory is held before bytes have arrived.
    pub(super) stranger: bool,
    /// A length announced by the peer is believed only when part of the message has arrived.
    pub(super) wary: bool,
}

/// A message received into its own buffer. It ends on a cache line: payload of whole lines at its end, as a WRITE has it, then
/// begins on one, and is copied a tenth faster to where it goes.
struct Large {
    /// Filled up to its length. The frame begins at [`Large::start`].
    buf: Buf,
    /// Bytes of the frame, for which the buffer has room.
    len: usize,
    /// Whether it is the last frame of the message.
    last: bool,
}

impl Large {
    /// Where a frame of `len` bytes begins in its buffer.
    fn start(len: usize) -> usize {
        len.wrapping_neg() % CACHE_LINE
    }

    /// The room that a frame of `len` bytes needs. A buffer has a power of two, so this takes no more memory.
    fn room(len: usize) -> usize {
        len.saturating_add(Large::start(len))
    }

    /// Bytes still to come; the buffer is filled up to [`Large::room`] at most.
    fn rest(&self) -> usize {
        Large::room(self.len).saturating_sub(self.buf.len())
    }

    /// The frame, which has arrived.
    fn freeze(self) -> (Bytes, bool) {
        let mut bytes = self.buf.freeze();
        bytes.advance(Large::start(self.len));
        (bytes, self.last)
    }
}

/// A message of several frames, joined as they come.
#[derive(Default)]
struct Begun {
    /// Filled up to its length; grows as frames arrive.
    buf: Option<Buf>,
    frames: usize,
}

impl Begun {
    fn len(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.len())
    }

    fn capacity(&self) -> usize {
        self.buf.as_ref().map_or(0, Buf::capacity)
    }

    /// Continues in `larger`.
    fn move_to(&mut self, mut larger: Buf) {
        larger.set_len(self.len());
        if let Some(old) = &self.buf {
            buf::copy(&mut larger, old);
        }
        self.buf = Some(larger);
    }

    /// Appends a frame, for which there is room.
    fn append(&mut self, frame: &[u8]) {
        let len = self.len();
        self.frames = self.frames.saturating_add(1);
        if let Some(whole) = &mut self.buf {
            whole.set_len(len.saturating_add(frame.len()));
            buf::copy(whole.split_at_mut(len).1, frame);
        }
    }
}

/// The receiving half of a channel.
pub(super) struct Receiver<F> {
    /// A finished large frame, before `ready` in order, and whether it is the last of its message.
    finished: Option<(Bytes, bool)>,
    /// Whole small frames with their headers, in order.
    ready: Bytes,
    /// A message whose last frame has not arrived.
    begun: Option<Begun>,
    /// Its next frame, in `finished`, needs a buffer of this many bytes, which the pool did not have.
    room_wanted: Option<usize>,
    /// The bytes that follow: its filled part is the beginning of one message, or empty.
    staging: Option<Buf>,
    /// If set, the stream continues in here, and the staging buffer is empty.
    large: Option<Large>,
    /// The next large frame's length, and whether it is a last one, until its buffer is allocated.
    wanted: Option<(usize, bool)>,
    /// The position of it, or of a new staging buffer, in the queue for memory.
    waiting: Waiting,
    /// How much of the large message that needs a buffer has arrived.
    arrival: Arrival,
    /// Waits for memory, not for the peer.
    starved: bool,
    /// A stranger's terms applied when the received bytes were last checked.
    stranger: bool,
    /// When the last bytes arrived: a message may be taken long after it was received.
    arrival_of_last: recorder::Arrival,
    /// Bytes received so far, in whole messages or not.
    raw_bytes: u64,
    /// How much one call may receive into the staging buffer: grows while small messages fill it.
    offer: usize,
    /// Why nothing follows what has been received.
    ended: Option<Ending>,
    bytes: u64,
    messages: u64,
    gathering: Option<Gathering>,
    framing: PhantomData<F>,
}

/// How much of a large message has arrived while it has no buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// Not checked yet.
    Unknown,
    /// The socket will report when enough of it is there.
    Awaited,
    /// Enough has arrived.
    Enough,
}

/// Waiting for several messages at a time.
struct Gathering {
    gather: Gather,
    /// The low-water mark last set on the socket, in bytes.
    low_water: usize,
    /// The time of the last receive.
    since: Time,
    /// The wait for the peer timed out, and nothing has come since.
    paused: bool,
    /// Present while it waits for several.
    inhibitor: Option<rt::SpinInhibitor>,
    /// Runs from the first wait after a receive on.
    patience: Option<LocalBoxFuture<'static, ()>>,
}

impl Gathering {
    fn new() -> Gathering {
        Gathering {
            gather: Gather::default(),
            low_water: 1,
            since: rt::now(),
            paused: false,
            inhibitor: None,
            patience: None,
        }
    }

    fn received(&mut self, messages: usize, bytes: usize) {
        self.since = rt::now();
        self.paused = false;
        self.inhibitor = None;
        // Left alone it would wake the core, which mostly sleeps between two receives.
        self.patience = None;
        self.gather.received(messages, bytes, self.since);
    }

    fn set_low_water(&mut self, stream: &Stream, bytes: usize) -> io::Result<()> {
        if self.low_water != bytes {
            stream.set_low_water(bytes)?;
            self.low_water = bytes;
        }
        Ok(())
    }

    /// Ends when nothing has been received for [`PATIENCE`](super::gather::PATIENCE).
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = self.since + PATIENCE;
        let patience = self.patience.get_or_insert_with(|| Box::pin(rt::sleep_until(until)));
        ready!(patience.as_mut().poll(cx));
        self.patience = None;
        Poll::Ready(())
    }
}

impl<F> Default for Receiver<F> {
    fn default() -> Receiver<F> {
        Receiver {
            finished: None,
            ready: Bytes::new(),
            begun: None,
            room_wanted: None,
            staging: None,
            large: None,
            wanted: None,
            waiting: Waiting::default(),
            arrival: Arrival::Unknown,
            starved: false,
            stranger: false,
            arrival_of_last: recorder::Arrival::default(),
            raw_bytes: 0,
            offer: HEAD_BYTES,
            ended: None,
            bytes: 0,
            messages: 0,
            gathering: None,
            framing: PhantomData,
        }
    }
}

impl<F: Framing> Receiver<F> {
    /// A receiver that may wait for several small messages at a time; see [`super::gather`].
    pub(super) fn gathering() -> Receiver<F> {
        Receiver { gathering: Some(Gathering::new()), ..Receiver::default() }
    }

    /// The next message, or why there is none.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
        terms: Terms<'_>,
    ) -> Poll<Result<Bytes, Ending>> {
        if self.stranger && !terms.stranger {
            // New terms change where an incomplete message continues.
            self.scan(terms);
        }
        self.stranger = terms.stranger;
        let mut idle_bytes = 0;
        loop {
            if let Some(body) = self.ready(terms) {
                return Poll::Ready(Ok(body));
            }
            if let Some(bytes) = self.room_wanted {
                let room = terms.pool.poll_alloc(cx, bytes, &mut self.waiting);
                if let Some(room) = ready!(self.poll_starved(cx, stream, terms, room)) {
                    self.room_wanted = None;
                    self.begun.get_or_insert_default().move_to(room);
                }
                continue;
            }
            if let Some(ending) = &self.ended {
                return Poll::Ready(Err(ending.clone()));
            }
            if idle_bytes > IDLE_BYTES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let filled = match self.poll_arrival(cx, stream, terms) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(e)) => Err(e),
                Poll::Ready(Ok(())) => {
                    let room = self.poll_room(cx, terms);
                    if ready!(self.poll_starved(cx, stream, terms, room)).is_none() {
                        continue;
                    }
                    match self.poll_fill(|into| stream.poll_recv(cx, into)) {
                        Poll::Pending if terms.stranger => {
                            // An idle connection holds no memory.
                            self.staging = self.staging.take().filter(|staging| !staging.is_empty());
                            return Poll::Pending;
                        }
                        Poll::Pending => ready!(self.poll_gather(cx, stream)),
                        Poll::Ready(filled) => filled,
                    }
                }
            };
            match filled {
                Ok(0) => self.ended = Some(self.end_of_stream()),
                Ok(n) => {
                    self.arrival_of_last = recorder::Arrival::now();
                    let messages = self.filled(n, terms);
                    // A large message is bounded, and so are its frames.
                    if self.large.is_none() {
                        idle_bytes = idle_bytes.saturating_add(n);
                    }
                    if let Some(gathering) = &mut self.gathering {
                        gathering.received(messages, n);
                    }
                }
                // A client that leaves without waiting for its last answers causes a reset; that is no fault.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset && terms.wary => {
                    self.ended = Some(if self.is_inside() { Ending::Io(e.kind()) } else { Ending::Peer });
                }
                Err(e) => self.ended = Some(Ending::Io(e.kind())),
            }
        }
    }

    /// Waits for memory: passes on what `polled` has, or `None` if the client has gone meanwhile. Nothing is received in
    /// this state, so its end would not be noticed otherwise: it would keep its place in the queue, and its requests
    /// their memory, for which it may itself wait.
    fn poll_starved<T>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
        terms: Terms<'_>,
        polled: Poll<T>,
    ) -> Poll<Option<T>> {
        self.starved = polled.is_pending();
        match polled {
            Poll::Ready(room) => Poll::Ready(Some(room)),
            // What a server has sent before it left is still of use to its client.
            Poll::Pending if terms.wary && stream.poll_hangup(cx).is_ready() => {
                self.ended = Some(self.end_of_stream());
                self.abandon();
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Gives back all memory: nothing is received any more.
    pub(super) fn abandon(&mut self) {
        self.ended.get_or_insert(Ending::Local);
        self.starved = false;
        self.waiting.leave();
        (self.finished, self.ready) = (None, Bytes::new());
        (self.begun, self.room_wanted) = (None, None);
        (self.staging, self.large, self.wanted) = (None, None, None);
    }

    /// The socket has nothing, or less than its low-water mark: waits for more, but not without end.
    fn poll_gather(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<io::Result<usize>> {
        let Some(gathering) = &mut self.gathering else { return Poll::Pending };
        if let Some(large) = &self.large {
            // Partial receives of a large message gain nothing, and the peer has promised the remainder.
            gathering.set_low_water(stream, large.rest().min(LARGE_LOW_WATER))?;
            gathering.inhibitor.get_or_insert_with(rt::SpinInhibitor::new);
            return Poll::Pending;
        }
        if gathering.paused {
            return Poll::Pending;
        }
        let low_water = gathering.gather.low_water();
        // Carrying out what was received last has taken longer than the patience, so there is nothing to wait for. What has come
        // meanwhile is reported, because the mark is not raised.
        if low_water > 1 && gathering.low_water == 1 && rt::now() >= gathering.since + PATIENCE {
            gathering.gather.paused();
            gathering.paused = true;
            return Poll::Pending;
        }
        gathering.set_low_water(stream, low_water)?;
        if low_water == 1 {
            return Poll::Pending;
        }
        gathering.inhibitor.get_or_insert_with(rt::SpinInhibitor::new);
        ready!(gathering.poll_patience(cx));
        // Receives what is there, however little.
        match self.poll_fill(|into| match stream.try_recv(into) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Poll::Pending
            }
            taken => Poll::Ready(taken),
        }) {
            Poll::Ready(taken) => {
                if let Some(gathering) = &mut self.gathering {
                    gathering.gather.missed();
                }
                Poll::Ready(taken)
            }
            Poll::Pending => {
                // The peer has stopped. The next bytes must be reported at once.
                if let Some(gathering) = &mut self.gathering {
                    gathering.gather.paused();
                    gathering.paused = true;
                    gathering.inhibitor = None;
                    gathering.set_low_water(stream, 1)?;
                }
                Poll::Pending
            }
        }
    }

    /// A message that has already arrived.
    pub(super) fn ready(&mut self, terms: Terms<'_>) -> Option<Bytes> {
        if self.room_wanted.is_some() {
            return None;
        }
        loop {
            let (frame, last) = self.finished.take().or_else(|| self.cut())?;
            let body = if last && self.begun.is_none() {
                frame
            } else {
                match self.join(frame, last, terms) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(ending) => {
                        self.ended = Some(ending);
                        self.ready = Bytes::new();
                        return None;
                    }
                }
                if !last {
                    continue;
                }
                self.begun.take().and_then(|begun| begun.buf).map(Buf::freeze).unwrap_or_default()
            };
            self.bytes = self.bytes.saturating_add(body.len() as u64);
            self.messages = self.messages.saturating_add(1);
            self.arrival_of_last.taken();
            return Some(body);
        }
    }

    /// Joins a frame to its message. False if there is no memory for that: the frame is kept then, and `room_wanted` is
    /// set.
    fn join(&mut self, frame: Bytes, last: bool, terms: Terms<'_>) -> Result<bool, Ending> {
        let begun = self.begun.get_or_insert_default();
        let len = begun.len().saturating_add(frame.len());
        if len > terms.max_message {
            return Err(Ending::Violation("message longer than this side accepts"));
        }
        if begun.frames == MAX_FRAMES {
            return Err(Ending::Violation("message of more frames than this side accepts"));
        }
        if begun.capacity() < len {
            let bytes = len.max(begun.capacity().saturating_mul(2).min(terms.max_message));
            let Some(room) = terms.pool.try_alloc(bytes) else {
                self.room_wanted = Some(bytes);
                self.finished = Some((frame, last));
                return Ok(false);
            };
            begun.move_to(room);
        }
        begun.append(&frame);
        Ok(true)
    }

    /// Part of a message has arrived, and the peer owes the remainder.
    pub(super) fn waits_inside(&self) -> bool {
        let staged = self.staging.as_ref().is_some_and(|staging| !staging.is_empty());
        let inside = staged || self.large.is_some() || self.wanted.is_some() || self.begun.is_some();
        // Frames that wait to be joined hold memory, so the wait must be limited.
        inside && (!self.starved || self.room_wanted.is_some())
    }

    /// Nothing more is received before there is memory for it.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.starved && !self.waiting.is_empty()
    }

    /// What a message that has not arrived in full holds, and what has been received.
    pub(super) fn arrived(&self) -> Arrived {
        let large_bytes = self.large.as_ref().map_or(0, |large| large.buf.capacity());
        let begun_bytes = self.begun.as_ref().map_or(0, Begun::capacity);
        let held_bytes = large_bytes.saturating_add(begun_bytes);
        Arrived { held_bytes, received_bytes: self.raw_bytes, messages: self.messages }
    }

    /// Bytes received, and messages delivered.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.raw_bytes, self.messages)
    }

    /// Ends when enough of an announced large message has arrived to be worth a buffer.
    fn poll_arrival(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
        terms: Terms<'_>,
    ) -> Poll<io::Result<()>> {
        let Some((len, _)) = self.wanted.filter(|(len, _)| terms.wary && *len > WARY_BYTES) else {
            return Poll::Ready(Ok(()));
        };
        let staged = self.staging.as_ref().map_or(0, |staging| staging.len());
        let part = (len.saturating_sub(staged) / 2).min(GOOD_PART);
        if self.arrival == Arrival::Unknown {
            if stream.waiting_bytes()? >= part {
                self.arrival = Arrival::Enough;
                return Poll::Ready(Ok(()));
            }
            stream.forget_readable();
            self.set_low_water(stream, part)?;
            self.arrival = Arrival::Awaited;
        }
        if self.arrival == Arrival::Awaited {
            // The kernel reports when that much is there, or when its buffer cannot hold so much.
            ready!(stream.poll_readable(cx));
            self.set_low_water(stream, 1)?;
            self.arrival = Arrival::Enough;
        }
        Poll::Ready(Ok(()))
    }

    /// Sets the mark also if it is set already, so that the kernel checks again what was forgotten: a full buffer, in
    /// which nothing more arrives, is reported once.
    fn set_low_water(&mut self, stream: &Stream, bytes: usize) -> io::Result<()> {
        stream.set_low_water(bytes)?;
        if let Some(gathering) = &mut self.gathering {
            gathering.low_water = bytes;
        }
        Ok(())
    }

    /// Bytes and messages delivered.
    pub(super) fn received(&self) -> (u64, u64) {
        (self.bytes, self.messages)
    }

    /// The first of the whole small frames. `scan` has checked their headers.
    fn cut(&mut self) -> Option<(Bytes, bool)> {
        loop {
            match head::<F>(&self.ready) {
                Some(Ok(Head::Frame { len, last })) => {
                    self.ready.advance(HEADER_LEN);
                    return Some((self.ready.split_to(len), last));
                }
                Some(Ok(Head::Nothing)) => self.ready.advance(HEADER_LEN),
                Some(Err(_)) | None => {
                    // The last message takes the reference to the staging buffer.
                    self.ready = Bytes::new();
                    return None;
                }
            }
        }
    }

    /// Ensures room for the next bytes.
    fn poll_room(&mut self, cx: &mut Context<'_>, terms: Terms<'_>) -> Poll<()> {
        let pool = terms.pool;
        if let Some((len, last)) = self.wanted {
            let mut own = ready!(pool.poll_alloc(cx, Large::room(len), &mut self.waiting));
            own.set_len(Large::start(len));
            self.wanted = None;
            self.arrival = Arrival::Unknown;
            if let Some(staging) = &mut self.staging {
                let head = staging.split_at(HEADER_LEN.min(staging.len())).1;
                let start = own.len();
                own.set_len(start.saturating_add(head.len()));
                buf::copy(own.split_at_mut(start).1, head);
                let all = staging.len();
                drop(staging.split_to(all));
            }
            self.offer = HEAD_BYTES;
            self.large = Some(Large { buf: own, len, last });
        }
        // After a large message HEAD_BYTES suffice; a small one that has begun must fit as a whole.
        let needed = match &self.staging {
            Some(staging) if terms.stranger => self.needed(staging).min(staging.len().max(1)),
            None if terms.stranger => 1,
            Some(staging) => {
                (HEADER_LEN + LARGE_BYTES).saturating_sub(staging.len()).min(self.needed(staging))
            }
            None => HEAD_BYTES,
        };
        let room = |staging: &Buf| staging.capacity().saturating_sub(staging.len());
        if self.staging.as_ref().is_none_or(|staging| room(staging) < needed) {
            let room = match &self.staging {
                _ if !terms.stranger => {
                    self.offer.saturating_mul(4).clamp(MIN_STAGING_BYTES, MAX_STAGING_BYTES)
                }
                Some(staging) => staging.len().saturating_mul(2).max(STRANGER_STAGING_BYTES),
                None => STRANGER_STAGING_BYTES,
            };
            let mut fresh = match &self.large {
                None => ready!(pool.poll_alloc(cx, room, &mut self.waiting)),
                // It goes on without, because others may wait for the memory that it holds.
                Some(_) => match pool.try_alloc(room) {
                    Some(fresh) => fresh,
                    None => return Poll::Ready(()),
                },
            };
            if let Some(begun) = self.staging.take().filter(|begun| !begun.is_empty()) {
                fresh.set_len(begun.len());
                buf::copy(&mut fresh, &begun);
            }
            self.staging = Some(fresh);
        }
        Poll::Ready(())
    }

    /// How many more bytes the message that begins in `staging` needs.
    fn needed(&self, staging: &Buf) -> usize {
        match head::<F>(staging) {
            Some(Ok(Head::Frame { len, .. })) => HEADER_LEN.saturating_add(len).saturating_sub(staging.len()),
            _ => HEAD_BYTES,
        }
    }

    /// One receive call.
    fn poll_fill(
        &mut self,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match (&mut self.large, &mut self.staging) {
            (Some(large), staging) => {
                let filled = large.buf.len();
                let (frame, _) = large.buf.room().split_at_mut(Large::room(large.len));
                let behind = staging.as_mut().map(Buf::room).unwrap_or_default();
                let (behind, _) = behind.split_at_mut(HEAD_BYTES.min(behind.len()));
                receive(&mut [IoSliceMut::new(frame.split_at_mut(filled).1), IoSliceMut::new(behind)])
            }
            (None, None) => Poll::Ready(Err(io::ErrorKind::InvalidInput.into())),
            (None, Some(staging)) => {
                let begun = staging.len();
                let (_, free) = staging.room().split_at_mut(begun);
                let (offered, _) = free.split_at_mut(self.offer.min(free.len()));
                receive(&mut [IoSliceMut::new(offered)])
            }
        }
    }

    /// Accounts for `n` received bytes; returns the number of messages that they completed.
    fn filled(&mut self, mut n: usize, terms: Terms<'_>) -> usize {
        self.raw_bytes = self.raw_bytes.saturating_add(n as u64);
        let mut messages = 0usize;
        if let Some(mut large) = self.large.take() {
            let into_large = n.min(large.rest());
            large.buf.set_len(large.buf.len().saturating_add(into_large));
            n = n.saturating_sub(into_large);
            if large.rest() > 0 {
                self.large = Some(large);
                return 0;
            }
            self.finished = Some(large.freeze());
            messages = 1;
        } else if n >= self.offer {
            self.offer = self.offer.saturating_mul(2).min(MAX_STAGING_BYTES);
        }
        if let Some(staging) = &mut self.staging {
            staging.set_len(staging.len().saturating_add(n));
            messages = messages.saturating_add(self.scan(terms));
        }
        messages
    }

    /// Moves whole messages from the staging buffer to `ready` and decides where the incomplete one continues. Returns
    /// their number.
    fn scan(&mut self, terms: Terms<'_>) -> usize {
        let large_from = if terms.stranger { WARY_BYTES } else { LARGE_BYTES };
        let Some(staging) = &mut self.staging else { return 0 };
        let mut rest: &[u8] = staging;
        let mut messages = 0usize;
        loop {
            let (len, last) = match head::<F>(rest) {
                Some(Ok(Head::Nothing)) => (0, true),
                Some(Ok(Head::Frame { len, last })) => (len, last),
                None => break,
                Some(Err(why)) => {
                    self.ended = Some(Ending::Malformed(why));
                    break;
                }
            };
            if len > terms.max_message {
                self.ended = Some(Ending::Violation("message longer than this side accepts"));
                break;
            }
            let Some(behind) = rest.get(HEADER_LEN.saturating_add(len)..) else {
                if len > large_from {
                    self.wanted = Some((len, last));
                }
                break;
            };
            rest = behind;
            messages = messages.saturating_add(1);
        }
        let whole = staging.len().saturating_sub(rest.len());
        if whole > 0 {
            self.ready = staging.split_to(whole).freeze();
        }
        messages
    }

    /// The peer has sent its last byte.
    fn end_of_stream(&self) -> Ending {
        if self.is_inside() { Ending::Io(io::ErrorKind::UnexpectedEof) } else { Ending::Peer }
    }

    /// Whether part of a message has arrived.
    fn is_inside(&self) -> bool {
        let begun = self.large.is_some() || self.begun.is_some();
        begun || self.staging.as_ref().is_some_and(|staging| !staging.is_empty())
    }
}

/// The header at the start of `bytes`; `None` while it is incomplete.
fn head<F: Framing>(bytes: &[u8]) -> Option<Result<Head, &'static str>> {
    bytes.first_chunk::<HEADER_LEN>().map(|header| F::parse(*header))
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use weft_machine::Listener;
    use weft_machine::sim::Sim;

    use super::*;
    use crate::nbss::DirectTcp;

    /// Raising the mark, receiving nothing and lowering it again would cost three system calls for each request that took long.
    #[test]
    fn nobody_is_waited_for_when_the_last_requests_took_longer_than_the_patience() {
        Sim::new(1).run(async {
            let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let (theirs, ours) =
                futures_util::join!(Stream::connect(listener.local_addr()), listener.accept());
            let (_theirs, ours) = (theirs.unwrap(), Stream::from_socket(ours.unwrap()).unwrap());
            let mut receiver = Receiver::<DirectTcp>::gathering();
            let mut cx = Context::from_waker(Waker::noop());
            let gathering = receiver.gathering.as_mut().unwrap();
            for i in 0..=64 {
                gathering.gather.received(4, 480, Time::ZERO + std::time::Duration::from_micros(i));
            }
            let mark = gathering.gather.low_water();
            assert!(mark > 1, "the peer sends crowds");
            gathering.received(1, 120);
            rt::sleep(2 * PATIENCE).await;
            assert!(receiver.poll_gather(&mut cx, &ours).is_pending());
            let gathering = receiver.gathering.as_mut().unwrap();
            assert!(gathering.paused && gathering.patience.is_none());
            assert_eq!(gathering.low_water, 1);
            // It took no time.
            gathering.received(1, 120);
            assert!(receiver.poll_gather(&mut cx, &ours).is_pending());
            let gathering = receiver.gathering.as_mut().unwrap();
            assert!(!gathering.paused && gathering.patience.is_some());
            assert_eq!(gathering.low_water, mark);
            // What comes ends the patience, so its timer wakes nobody.
            gathering.received(1, 120);
            assert!(gathering.patience.is_none());
        });
    }
}
