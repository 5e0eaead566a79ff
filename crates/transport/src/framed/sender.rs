//! Turns messages into a byte stream: an ordered queue, gather writes, and sendfile.
//!
//! [`Sender`] is a queue of items that is drained in batches. The [`Framing`] defines the format. It owns the queued
//! messages and the scratch buffer of the current batch. It does not wait by itself; `poll` takes a waker.
//!
//! A batch is the content of one gather write: whole messages up to [`BATCH_BYTES`], or the part of a message before a
//! long file range. The batch's short file ranges are sent from a mapping of their file, or read from the page cache
//! into one page-aligned scratch buffer right before the write; long ones follow by sendfile. A short range that cannot
//! be read removes its own message from the queue; see [`Sent`]. So does a long one whose beginning cannot be read: the
//! message does not begin before that is known, and the messages before it do not wait for its disk. If what follows proves
//! unreadable, the stream can only end.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::buf::Waiting;
use weft_machine::file::{self, busy};
use weft_machine::recorder::{self, Stage};
use weft_machine::{Buf, FileRange, LogLimit, MappedRange, Payload, Piece, Pool, Stream, rt};
use weft_wire::xdr;

use super::{Framing, HEADER_LEN};
use crate::channel::{Ending, Error, Outgoing, Part, To};
use crate::sent::Sent;

/// A gather write ends with the message that reaches this size: two of the largest TCP segment trains (GSO).
const BATCH_BYTES: usize = 128 << 10;
/// Bytes that a corked channel holds back at most, including files, which are not read before they are sent.
const CORK_BYTES: usize = 1 << 20;
/// File ranges of at least this go by sendfile (measured: see the example `nbss_cost`).
pub(super) const SPLICE_BYTES: usize = 20 << 10;
/// How much of one message may be read into the scratch buffer; its other file ranges go by sendfile.
const LOAD_BYTES: usize = 256 << 10;
/// Slices of one system call: 32 READ replies.
const SLICES: usize = 96;
/// A shorter batch is sent from a shorter array, because an array is filled before it is used: three READ replies, or the
/// beginning of one before a sendfile.
const FEW_SLICES: usize = 12;
/// The most queued messages. SMB2 credits are 16 bits wide, so a peer that does not read cannot have more outstanding.
const MAX_QUEUED: u64 = 1 << 16;
/// Payload in the scratch buffer starts on its own page, see `machine::buf`.
const PAGE: usize = 4096;

/// A piece of the stream, in order.
enum Item {
    /// A message begins.
    Head([u8; HEADER_LEN]),
    /// Bytes in memory.
    Bytes(Bytes),
    /// A short file range, not yet read.
    Load(FileRange),
    /// A short file range that is sent from a mapping.
    Mapped(MappedRange, FileRange),
    /// A range of the batch's scratch buffer.
    Loaded(usize, usize),
    /// A long file range.
    Splice(FileRange),
    /// The same, of which it is not known whether it can be read.
    Unseen(FileRange),
    /// The end of the message with this number.
    End(u64),
}

impl Item {
    fn len(&self) -> usize {
        match self {
            Item::Head(head) => head.len(),
            Item::Bytes(bytes) => bytes.len(),
            Item::Load(range) | Item::Splice(range) | Item::Unseen(range) | Item::Mapped(_, range) => {
                range.len
            }
            Item::Loaded(_, len) => *len,
            Item::End(_) => 0,
        }
    }
}

/// The items at the front of the queue that are being sent.
#[derive(Default)]
struct Batch {
    items: usize,
    bytes: usize,
    /// 0 <= sent <= bytes.
    sent: usize,
    scratch: Option<Buf>,
}

/// An operation that needs more than one poll.
enum Slow {
    /// The short range at this index of the queue, read by a worker thread.
    Read(usize, LocalBoxFuture<'static, io::Result<Vec<Bytes>>>),
    /// The beginning of the long range at this index, read into the page cache by a worker thread.
    Warm(usize, LocalBoxFuture<'static, io::Result<()>>),
    /// The long range at the front of the queue.
    Splice(LocalBoxFuture<'static, io::Result<()>>),
}

/// The sending half of a channel.
#[derive(Default)]
pub(super) struct Sender {
    /// Whether the stream can send mapped ranges.
    maps: bool,
    items: VecDeque<Item>,
    batch: Batch,
    /// The position of its scratch buffer in the queue for memory.
    waiting: Waiting,
    slow: Option<Slow>,
    /// The beginning of the next long range was found in the page cache, and nothing was waited for since.
    is_warm: bool,
    /// Tells its waits for a disk.
    pub(super) stage: Arc<Stage>,
    queued_bytes: usize,
    /// The part of these bytes that is in memory and was queued since the last poll.
    fresh_bytes: usize,
    /// Whether the stream holds back its last segment until it is full, because more follows.
    held: bool,
    /// The senders that wait, and for which message.
    pub(super) sent: Sent,
    bytes: u64,
    messages: u64,
}

impl Sender {
    pub(super) fn new(stream: &Stream) -> Sender {
        Sender { maps: stream.takes_mapped(), ..Sender::default() }
    }

    /// Queues a message and returns its number.
    pub(super) fn push<F: Framing>(&mut self, outgoing: Outgoing, max_message: usize) -> Result<u64, Error> {
        let Outgoing { mut parts, source, .. } = outgoing;
        if let Some(source) = source {
            parts.push(Part::Payload { data: source.freeze().into(), to: To::Inline });
        }
        let len = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part_len::<F>(part)));
        if len > max_message {
            return Err(Error::Misuse("message longer than the channel's limit"));
        }
        if self.sent.outstanding() >= MAX_QUEUED {
            return Err(Error::Misuse("more messages queued than a peer can have requested"));
        }
        let head = F::emit(len).ok_or(Error::Misuse("message longer than its header can say"))?;
        self.items.push_back(Item::Head(head));
        let fresh_before = self.fresh_bytes;
        let mut load_budget = LOAD_BYTES;
        for part in parts {
            let fill = fill::<F>(&part);
            match part {
                Part::Bytes(bytes) => self.push_bytes(bytes),
                Part::Payload { data: Payload::Chain(chain), .. } => {
                    chain.into_iter().for_each(|bytes| self.push_bytes(bytes));
                }
                Part::Payload { data: Payload::File(range), .. } if range.len == 0 => {}
                Part::Payload { data: Payload::File(range), .. } => {
                    let room = range.len.next_multiple_of(PAGE);
                    let short = range.len < SPLICE_BYTES;
                    if let Some(mapped) = (short && self.maps).then(|| range.mapped()).flatten() {
                        self.items.push_back(Item::Mapped(mapped, range));
                    } else if short && room <= load_budget {
                        load_budget = load_budget.saturating_sub(room);
                        self.items.push_back(Item::Load(range));
                    } else {
                        self.items.push_back(Item::Unseen(range));
                    }
                }
            }
            self.push_bytes(Bytes::from_static(fill));
        }
        let number = self.sent.number(self.fresh_bytes.saturating_sub(fresh_before));
        self.items.push_back(Item::End(number));
        self.queued_bytes = self.queued_bytes.saturating_add(HEADER_LEN).saturating_add(len);
        self.bytes = self.bytes.saturating_add(len as u64);
        self.messages = self.messages.saturating_add(1);
        Ok(number)
    }

    fn push_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.fresh_bytes = self.fresh_bytes.saturating_add(bytes.len());
            self.items.push_back(Item::Bytes(bytes));
        }
    }

    /// Whether a cork has held back enough: a megabyte, or as many bytes in memory as one gather write takes, because
    /// longer waits lose them from the processor's cache.
    pub(super) fn holds_enough(&self) -> bool {
        self.queued_bytes >= CORK_BYTES || self.fresh_bytes >= BATCH_BYTES
    }

    /// Messages that the stream has not taken completely.
    pub(super) fn outstanding(&self) -> usize {
        usize::try_from(self.sent.outstanding()).unwrap_or(usize::MAX)
    }

    /// Their bytes in memory.
    pub(super) fn outstanding_bytes(&self) -> usize {
        self.sent.outstanding_bytes()
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes and messages queued so far.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.bytes, self.messages)
    }

    /// Drops the queue: the stream has failed.
    pub(super) fn clear(&mut self) {
        self.slow = None;
        self.batch = Batch::default();
        self.items.clear();
        (self.queued_bytes, self.fresh_bytes) = (0, 0);
        self.sent.wake_all();
    }

    /// Sends until the queue is empty, or it has to wait. With `more` another call follows soon: the stream may hold
    /// back what does not fill a segment.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Rc<Stream>,
        pool: &Pool,
        more: bool,
    ) -> Poll<Result<(), Ending>> {
        self.fresh_bytes = 0;
        let mut result = self.poll_all(cx, stream, pool, more);
        // The wait may be for a disk; complete messages must not wait with it. A full socket reports room before it gets to its last
        // segment, which more bytes fill then.
        if result.is_pending() {
            self.is_warm = false;
            if !stream.is_full()
                && let Err(e) = self.hold(stream, false)
            {
                result = Poll::Ready(Err(e));
            }
        }
        self.sent.wake();
        if let Poll::Ready(Err(e)) = &result
            && file::is_unreadable(e)
        {
            static UNREADABLE: LogLimit = LogLimit::new();
            if let Some(left_out) = UNREADABLE.pass(rt::now()) {
                tracing::warn!(
                    peer = %stream.peer(),
                    "a file cannot be read, and part of the message with it has been sent, so its connection ends: \
                     {e}{left_out}"
                );
            }
        }
        result.map_err(|e| Ending::Io(e.kind()))
    }

    fn poll_all(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Rc<Stream>,
        pool: &Pool,
        more: bool,
    ) -> Poll<io::Result<()>> {
        if more {
            self.hold(stream, true)?;
        }
        loop {
            if self.slow.is_some() {
                ready!(self.poll_slow(cx))?;
            } else if self.batch.items > 0 {
                ready!(self.poll_batch(cx, stream))?;
            } else {
                match self.items.front() {
                    None => return Poll::Ready(if more { Ok(()) } else { self.hold(stream, false) }),
                    Some(Item::Splice(range) | Item::Unseen(range)) => {
                        let (stream, range) = (stream.clone(), range.clone());
                        let is_warm = std::mem::take(&mut self.is_warm);
                        if self.sent.outstanding() > 1 {
                            self.hold(&stream, true)?;
                        }
                        let splicing = async move { stream.send_file_begun(&range, is_warm).await };
                        self.slow = Some(Slow::Splice(Box::pin(recorder::staged(&self.stage, splicing))));
                    }
                    Some(_) => ready!(self.poll_compose(cx, pool))?,
                }
            }
        }
    }

    /// Otherwise each message would end with its own segment, which costs both kernels as much as a full one.
    fn hold(&mut self, stream: &Stream, on: bool) -> io::Result<()> {
        if self.held != on {
            stream.hold(on)?;
            self.held = on;
        }
        Ok(())
    }

    /// Removes the first `n` items: the stream has them.
    fn pop(&mut self, n: usize) {
        let (mut bytes, mut last) = (0usize, None);
        for item in self.items.drain(..n) {
            bytes = bytes.saturating_add(item.len());
            if let Item::End(number) = item {
                last = Some(number);
            }
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
        // Includes the messages before it.
        if let Some(number) = last {
            self.sent.done(number);
        }
    }

    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.slow {
            None => {}
            Some(Slow::Splice(sending)) => {
                let sent = ready!(sending.as_mut().poll(cx));
                self.slow = None;
                sent?;
                self.pop(1);
            }
            Some(Slow::Warm(at, warming)) => {
                let at = *at;
                let warmed = ready!(warming.as_mut().poll(cx));
                self.slow = None;
                match warmed {
                    Ok(()) => self.has_seen(at),
                    Err(e) => self.fail(at, e)?,
                }
            }
            Some(Slow::Read(at, reading)) => {
                let at = *at;
                let read = ready!(reading.as_mut().poll(cx));
                self.slow = None;
                match read {
                    // A file range becomes one buffer.
                    Ok(chain) => match (chain.into_iter().next(), self.items.get_mut(at)) {
                        (Some(bytes), Some(item)) => *item = Item::Bytes(bytes),
                        _ => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                    },
                    Err(e) => self.fail(at, e)?,
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Decides what the next gather write contains, and reads its short file ranges.
    fn poll_compose(&mut self, cx: &mut Context<'_>, pool: &Pool) -> Poll<io::Result<()>> {
        let (mut end, mut bytes, mut room) = self.extent(self.items.len());
        if let Some(Item::Unseen(_) | Item::Splice(_)) = self.items.get(end)
            && let Some(head) = self.head_of(end)
        {
            match self.first_cold(end) {
                None => {}
                // The messages before it do not wait for its disk.
                Some(_) if head > 0 => (end, bytes, room) = self.extent(head),
                Some(cold) => {
                    self.look_at(cold);
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let mut batch = Batch { items: end, bytes, ..Batch::default() };
        if room > 0 {
            let scratch = ready!(self.poll_load(cx, pool, end, room));
            match scratch {
                Loading::Done(scratch) => batch.scratch = Some(scratch),
                Loading::Slow(at) => {
                    if let Some(Item::Load(range)) = self.items.get(at) {
                        self.read(at, range.clone(), pool);
                    }
                    return Poll::Ready(Ok(()));
                }
                Loading::Failed(at, e) => return Poll::Ready(self.fail(at, e)),
            }
        }
        self.batch = batch;
        Poll::Ready(Ok(()))
    }

    /// The first of the long ranges of a message, from this index on, that is not known to be readable.
    fn first_cold(&mut self, from: usize) -> Option<usize> {
        let end = self.items.iter().skip(from).position(|item| matches!(item, Item::End(_)));
        let end = end.map_or(self.items.len(), |end| from.saturating_add(end));
        for at in from..end {
            match self.items.get(at) {
                Some(Item::Unseen(range)) if !range.begins_warm() => return Some(at),
                Some(Item::Unseen(_)) => self.has_seen(at),
                _ => {}
            }
        }
        None
    }

    /// The long range at this index can be read.
    fn has_seen(&mut self, at: usize) {
        let Some(item @ Item::Unseen(_)) = self.items.get_mut(at) else { return };
        if let Item::Unseen(range) = std::mem::replace(item, Item::Head([0; HEADER_LEN])) {
            *item = Item::Splice(range);
            self.is_warm = true;
        }
    }

    /// Reads the beginning of the long range at this index, because its message must not begin before it is known to be
    /// readable. Where every read may block, what was read is kept, so that it is not read again: in memory of its own, because
    /// the peer decides how long.
    fn look_at(&mut self, at: usize) {
        let Some(Item::Unseen(range)) = self.items.get(at) else { return };
        if range.file.blocking().is_none() {
            let range = range.clone();
            let warming = async move { range.warm_beginning().await };
            self.slow = Some(Slow::Warm(at, Box::pin(recorder::staged(&self.stage, warming))));
            return;
        }
        let (first, rest) = range.beginning();
        let read = first.clone();
        let reading = async move { Ok(vec![read.fetch(0, read.len).await?]) };
        self.slow = Some(Slow::Read(at, Box::pin(recorder::staged(&self.stage, reading))));
        if let Some(item) = self.items.get_mut(at) {
            *item = Item::Load(first);
        }
        if rest.len > 0 {
            self.items.insert(at.saturating_add(1), Item::Splice(rest));
        }
    }

    /// Reads the range at this index into memory.
    fn read(&mut self, at: usize, range: FileRange, pool: &Pool) {
        let pool = pool.clone();
        let reading = async move { Payload::File(range).into_chain(&pool).await };
        self.slow = Some(Slow::Read(at, Box::pin(recorder::staged(&self.stage, reading))));
    }

    /// The number of items in the next batch, of at most the first `most`; their bytes, and the scratch room for its file
    /// ranges.
    fn extent(&self, most: usize) -> (usize, usize, usize) {
        let (mut bytes, mut room) = (0usize, 0usize);
        for (i, item) in self.items.range(..most).enumerate() {
            match item {
                Item::Splice(_) | Item::Unseen(_) => return (i, bytes, room),
                Item::End(_) if bytes >= BATCH_BYTES => return (i.saturating_add(1), bytes, room),
                Item::Load(range) => room = room.saturating_add(range.len.next_multiple_of(PAGE)),
                _ => {}
            }
            bytes = bytes.saturating_add(item.len());
        }
        (most, bytes, room)
    }

    /// Reads the file ranges of the first `end` items into one buffer.
    fn poll_load(&mut self, cx: &mut Context<'_>, pool: &Pool, end: usize, room: usize) -> Poll<Loading> {
        let mut scratch = ready!(pool.poll_alloc(cx, room, &mut self.waiting));
        scratch.set_len(room);
        let window = scratch.into_window();
        let mut used = 0usize;
        let mut trouble = None;
        for (i, item) in self.items.range_mut(..end).enumerate() {
            let Item::Load(range) = item else { continue };
            let len = range.len;
            let read = window.slice(used, len).map(|into| range.try_read_into(&into));
            match read {
                Some(Some(Ok(()))) => {
                    *item = Item::Loaded(used, len);
                    used = used.saturating_add(len.next_multiple_of(PAGE));
                }
                Some(None) => trouble = Some(Loading::Slow(i)),
                Some(Some(Err(e))) => trouble = Some(Loading::Failed(i, e)),
                None => trouble = Some(Loading::Failed(i, io::ErrorKind::InvalidInput.into())),
            }
            if trouble.is_some() {
                break;
            }
        }
        let scratch = window.try_into_buf().expect("every slice of this window is gone");
        let Some(trouble) = trouble else { return Poll::Ready(Loading::Done(scratch)) };
        self.keep_loaded(end, scratch);
        Poll::Ready(trouble)
    }

    /// The batch of the first `items` items will be composed again: the bytes read for it are kept as separate buffers.
    fn keep_loaded(&mut self, items: usize, scratch: Buf) {
        let scratch = scratch.freeze();
        for item in self.items.range_mut(..items) {
            if let Item::Loaded(at, len) = *item {
                *item = Item::Bytes(scratch.slice(at..at.saturating_add(len)));
            }
        }
    }

    /// The index at which the message around item `at` begins, unless part of it has been sent.
    fn head_of(&self, at: usize) -> Option<usize> {
        let bounds = |item: &Item| matches!(item, Item::Head(_) | Item::End(_));
        let bound = self.items.iter().take(at).rposition(bounds)?;
        // An end means that what follows it has lost its head: it has been sent.
        matches!(self.items.get(bound), Some(Item::Head(_))).then_some(bound)
    }

    /// Removes the message around item `at` from the queue, unless part of it has been sent.
    fn fail(&mut self, at: usize, e: io::Error) -> io::Result<()> {
        self.is_warm = false;
        let Some(head) = self.head_of(at) else { return Err(file::unreadable(e)) };
        let ends = |(i, item): (usize, &Item)| matches!(item, Item::End(_)).then_some(i);
        let Some(end) = self.items.iter().enumerate().skip(at).find_map(ends) else {
            return Err(file::unreadable(e));
        };
        for item in self.items.drain(head..=end) {
            self.queued_bytes = self.queued_bytes.saturating_sub(item.len());
            if !matches!(item, Item::Head(_)) {
                self.bytes = self.bytes.saturating_sub(item.len() as u64);
            }
            if let Item::End(number) = item {
                self.messages = self.messages.saturating_sub(1);
                self.sent.fail(number, e);
                break;
            }
        }
        Ok(())
    }

    /// Sends the batch with one gather write.
    fn poll_batch(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<io::Result<()>> {
        if self.maps_what_is_locked() && self.unmap() {
            return Poll::Ready(Ok(()));
        }
        match self.batch.items {
            ..=FEW_SLICES => self.poll_gathered::<FEW_SLICES>(cx, stream),
            _ => self.poll_gathered::<SLICES>(cx, stream),
        }
    }

    /// The same, of at most so many slices.
    fn poll_gathered<const MOST: usize>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
    ) -> Poll<io::Result<()>> {
        let Batch { items, bytes, sent, ref scratch } = self.batch;
        let mut pieces = [Piece::bytes(&[]); MOST];
        let mut used = 0usize;
        let mut skip = sent;
        let mut free = pieces.iter_mut();
        for item in self.items.range(..items) {
            if let Some(behind) = skip.checked_sub(item.len()) {
                skip = behind;
                continue;
            }
            let Some(piece) = free.next() else { break };
            *piece = match item {
                Item::Head(head) => Piece::bytes(head.split_at(skip).1),
                Item::Bytes(bytes) => Piece::bytes(bytes.split_at(skip).1),
                Item::Loaded(at, len) => {
                    let loaded = scratch.as_ref().and_then(|scratch| scratch.get(*at..)?.get(skip..*len));
                    Piece::bytes(loaded.unwrap_or_default())
                }
                Item::Mapped(range, _) => Piece::mapped(range, skip),
                Item::Load(_) | Item::Splice(_) | Item::Unseen(_) | Item::End(_) => Piece::bytes(&[]),
            };
            used = used.saturating_add(1);
            skip = 0;
        }
        if sent < bytes {
            // Bytes of the same message follow, so these should not be sent in a packet of their own.
            let more = matches!(self.items.get(items), Some(Item::Splice(_) | Item::Unseen(_)));
            match ready!(stream.poll_send_pieces(cx, pieces.split_at(used).0, more)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => self.batch.sent = self.batch.sent.saturating_add(n),
                Err(e) if file::is_lost(&e) && self.unmap() => return Poll::Ready(Ok(())),
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        if self.batch.sent >= bytes {
            self.batch = Batch::default();
            self.pop(items);
        }
        Poll::Ready(Ok(()))
    }
}

impl Sender {
    /// Whether the batch contains mapped pages of a file that a worker has begun to truncate while the peer took
    /// nothing: pages already freed would fault in when it ends, and this core would wait for that.
    fn maps_what_is_locked(&self) -> bool {
        let is_locked = |item: &Item| matches!(item, Item::Mapped(_, range) if busy::is_locked(&range.file));
        self.maps && busy::any() && self.items.range(..self.batch.items).any(is_locked)
    }

    /// A mapped file has become shorter during the batch, or is locked: composes the remainder again, with mapped
    /// ranges to be read. False if there are none.
    fn unmap(&mut self) -> bool {
        let Batch { items, sent, scratch, .. } = std::mem::take(&mut self.batch);
        if let Some(scratch) = scratch {
            self.keep_loaded(items, scratch);
        }
        let mut found = false;
        for item in self.items.range_mut(..items) {
            if let Item::Mapped(_, range) = item {
                *item = Item::Load(range.clone());
                found = true;
            }
        }
        self.take_sent(items, sent);
        found
    }

    /// Removes the first `sent` bytes of the first `items` items, none of which is in the scratch buffer or mapped.
    fn take_sent(&mut self, items: usize, sent: usize) {
        let (mut whole, mut rest) = (0usize, sent);
        for item in self.items.iter().take(items) {
            let Some(behind) = rest.checked_sub(item.len()).filter(|_| rest > 0) else { break };
            rest = behind;
            whole = whole.saturating_add(1);
        }
        self.pop(whole);
        if rest > 0
            && let Some(front) = self.items.front_mut()
        {
            *front = match &*front {
                Item::Head(head) => Item::Bytes(Bytes::copy_from_slice(head.split_at(rest).1)),
                Item::Bytes(bytes) => Item::Bytes(bytes.slice(rest..)),
                Item::Load(range) => Item::Load(range.advanced(rest)),
                Item::Splice(range) => Item::Splice(range.advanced(rest)),
                Item::Unseen(range) => Item::Unseen(range.advanced(rest)),
                Item::Loaded(..) | Item::Mapped(..) | Item::End(_) => {
                    unreachable!("neither read nor mapped nor empty")
                }
            };
            self.queued_bytes = self.queued_bytes.saturating_sub(rest);
        }
    }
}

/// The result of reading a batch's file ranges.
enum Loading {
    /// All are in this buffer.
    Done(Buf),
    /// The item at this index needs the disk.
    Slow(usize),
    /// The item at this index cannot be read.
    Failed(usize, io::Error),
}

/// XDR padding after a part.
fn fill<F: Framing>(part: &Part) -> &'static [u8] {
    match part {
        Part::Payload { data, .. } if F::XDR => xdr::fill(data.len()),
        _ => &[],
    }
}

fn part_len<F: Framing>(part: &Part) -> usize {
    let len = match part {
        Part::Bytes(bytes) => bytes.len(),
        Part::Payload { data, .. } => data.len(),
    };
    len.saturating_add(fill::<F>(part).len())
}
