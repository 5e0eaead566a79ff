//! The sending half: turns posted work and Read Responses into FPDUs.
//!
//! Implements RFC 5041 5.2 (segmentation) and 5.3 (order), RFC 5040 5.1 to 5.3 and 6.1 (ORD). It owns queued work with
//! its payload, and the responses owed to the peer. It neither copies payload nor reads files; the driver reads a chunk
//! at a time when `wants_file` asks for it.
//!
//! One message is sent at a time, in the order of posting; Read Responses alternate with posted work, so that neither
//! starves. A Read that would exceed the ORD waits, and work posted after it waits as well.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::OnceLock;

use bytes::Bytes;
use weft_machine::{Buf, FileRange, Payload, Time};
use weft_wire::mpa::Shift;
use weft_wire::rdmap::{Opcode, QN_READ_REQUEST, QN_SEND, ReadRequest};
use weft_wire::{ddp, mpa, rdmap};

use super::{Connection, PendingRead, State};
use crate::iwarp::frame::{Next, Out};
use crate::iwarp::setup::{Agreed, Opening, Role};
use crate::iwarp::terminate::Refused;
use crate::verbs::{Caps, Done, PostError, Segment, Stag, Work, add, tally};

/// Output is framed in batches of about this many bytes: one gather write, and small enough that the bytes that the CRC
/// has read are still in the second-level cache when the socket copies them.
pub(in crate::iwarp) const BATCH_BYTES: usize = 256 << 10;
/// A batch of small messages ends early at this many pieces, which one gather write takes.
const BATCH_PIECES: usize = 128;
/// It also ends at this many bytes between payloads: an idle connection keeps the room for them.
const BATCH_SMALL_BYTES: usize = 8 << 10;
/// Payload per FPDU when markers are on: the marker's back pointer has 16 bits.
const MARKED_PAYLOAD: usize = 32 << 10;
/// The longest payload that the 16-bit length field leaves after the longer of the two headers.
pub(in crate::iwarp) const MAX_FPDU_PAYLOAD: usize = u16::MAX as usize - ddp::UNTAGGED_LEN;
/// File payload is read in pieces of this many FPDUs.
const FILE_FPDUS: usize = 4;
/// Payload that may stay in its file does so from this length on; below, the copy costs less than the system calls.
const STAY_MIN: usize = 20 << 10;
/// Such payload is brought into the page cache this many FPDUs at a time: a megabyte, a disk's stride.
const WARM_FPDUS: usize = 16;

/// The sending half of a connection.
pub(in crate::iwarp) struct Tx {
    pub(in crate::iwarp) out: Out,
    /// Whether FPDUs may be sent yet (RFC 5044 7.1.2 rule 4).
    pub(in crate::iwarp) may_send: bool,
    queue: VecDeque<Queued>,
    current: Option<Message>,
    responses: VecDeque<Response>,
    /// Whose turn it is when both have work.
    responses_next: bool,
    /// Messages that are completely framed but not yet completely handed to the socket.
    ends: VecDeque<End>,
    /// Stream bytes that the socket has taken.
    sent: u64,
    /// Sends, Writes and Reads posted and not completed.
    posted: usize,
    send_msn: u32,
    read_msn: u32,
    fpdu_payload: usize,
    /// Over `fpdu_payload`, computed when first needed.
    shift: Option<Shift>,
    /// The driver is reading a piece of a file.
    reading: bool,
}

enum Queued {
    Send { id: u64, source: Source, len: usize, invalidate: Option<Stag>, solicited: bool, signalled: bool },
    Write { id: u64, source: Source, len: usize, to: Segment, signalled: bool },
    Read { user: Option<(u64, Buf)>, from: Segment },
}

impl Queued {
    fn id(&self) -> Option<u64> {
        match self {
            Queued::Send { id, .. } | Queued::Write { id, .. } => Some(*id),
            Queued::Read { user, .. } => user.as_ref().map(|(id, _)| *id),
        }
    }
}

/// An admitted Read of the peer.
pub(in crate::iwarp) struct Response {
    request: ReadRequest,
    /// For the Terminate, if the region goes away meanwhile.
    header: ddp::Header,
    bytes: Bytes,
}

/// A message that is being segmented into FPDUs.
struct Message {
    kind: Kind,
    len: usize,
    done: usize,
    source: Source,
}

enum Kind {
    Send { id: u64, opcode: Opcode, invalidate: u32, msn: u32, signalled: bool },
    Write { id: u64, stag: u32, to: u64, signalled: bool },
    Response { request: ReadRequest, header: ddp::Header },
}

/// Payload of a message: the part in memory, and the remainder of a file range.
struct Source {
    chain: VecDeque<Bytes>,
    /// The CRC32C of each of the first FPDU-sized pieces of `chain`, as far as the driver knew them.
    sums: VecDeque<u32>,
    /// The part that is not in memory yet.
    file: Option<FileRange>,
    /// The first bytes of `file` that need no reading: the socket can send them from the page cache.
    cached: usize,
}

/// What the driver must do with a range of a file.
pub(in crate::iwarp) enum FileNeed {
    /// Read it into memory and hand it over, with the CRC32C of each whole `piece` if that costs nothing extra.
    Read { range: FileRange, piece: Option<usize> },
    /// Bring it into the page cache.
    Warm(FileRange),
}

impl Source {
    fn new(chain: Vec<Bytes>) -> Source {
        Source { chain: chain.into(), sums: VecDeque::new(), file: None, cached: 0 }
    }

    fn ready(&self) -> usize {
        self.chain.iter().map(Bytes::len).sum::<usize>().saturating_add(self.cached)
    }

    /// Takes the next bytes of the file range.
    fn split_file(&mut self, len: usize) -> Option<FileRange> {
        let range = self.file.as_mut()?;
        let part = FileRange { file: range.file.clone(), offset: range.offset, len: range.len.min(len) };
        range.offset = range.offset.saturating_add(part.len as u64);
        range.len = range.len.saturating_sub(part.len);
        if range.len == 0 {
            self.file = None;
        }
        Some(part)
    }

    /// The next FPDU's payload with its checksum, if that is known.
    fn take_summed(&mut self, len: usize, fpdu_payload: usize) -> Option<(Bytes, u32)> {
        let front = self.chain.front_mut().filter(|front| len == fpdu_payload && front.len() >= len)?;
        let sum = self.sums.pop_front()?;
        let bytes = front.split_to(len);
        if front.is_empty() {
            self.chain.pop_front();
        }
        Some((bytes, sum))
    }

    /// Moves `len` bytes into the FPDU.
    fn move_to(&mut self, mut len: usize, out: &mut Out) {
        if self.cached > 0 {
            self.cached = self.cached.saturating_sub(len);
            if let Some(part) = self.split_file(len) {
                out.file(part);
            }
            return;
        }
        while len > 0 {
            let Some(front) = self.chain.front_mut() else { return };
            if let Some(rest) = len.checked_sub(front.len()) {
                len = rest;
                out.payload(std::mem::take(front));
                self.chain.pop_front();
            } else {
                out.payload(front.split_to(len));
                return;
            }
        }
    }
}

impl From<Payload> for Source {
    fn from(payload: Payload) -> Source {
        match payload {
            Payload::Chain(chain) => Source::new(chain),
            Payload::File(range) => Source { file: Some(range), ..Source::new(Vec::new()) },
        }
    }
}

/// Where a message ends in the stream, and what to report to its owner then.
struct End {
    at: u64,
    id: u64,
    len: usize,
    signalled: bool,
    /// The region, if it was a Write.
    write: Option<Stag>,
}

impl Tx {
    pub(in crate::iwarp) fn new(agreed: &Agreed, fpdu_payload: usize) -> Tx {
        let most = if agreed.markers { MARKED_PAYLOAD } else { MAX_FPDU_PAYLOAD };
        Tx {
            out: Out::new(agreed.crc, agreed.markers),
            may_send: matches!(agreed.role, Role::Initiator { .. }),
            queue: VecDeque::new(),
            current: None,
            responses: VecDeque::new(),
            responses_next: false,
            ends: VecDeque::new(),
            sent: 0,
            posted: 0,
            send_msn: 1,
            read_msn: 1,
            fpdu_payload: fpdu_payload.clamp(1, most),
            shift: None,
            reading: false,
        }
    }

    /// Queues a Send, Write or Read after the checks that can be made locally.
    pub(in crate::iwarp) fn post(&mut self, work: Work, caps: &Caps) -> Result<(), (PostError, Work)> {
        if self.posted >= caps.max_send_work {
            return Err((PostError::QueueFull, work));
        }
        if let Err(what) = check(&work, caps) {
            return Err((PostError::Misuse(what), work));
        }
        self.posted = self.posted.saturating_add(1);
        self.queue.push_back(match work {
            Work::Send { id, data, invalidate, solicited, signalled } => {
                let len = data.iter().map(Bytes::len).sum();
                Queued::Send { id, source: Source::new(data), len, invalidate, solicited, signalled }
            }
            Work::Write { id, data, to, signalled } => {
                let len = data.len();
                Queued::Write { id, source: data.into(), len, to, signalled }
            }
            Work::Read { id, into, from } => Queued::Read { user: Some((id, into)), from },
            Work::Recv { .. } => unreachable!("receive buffers have their own queue"),
        });
        Ok(())
    }

    /// Queues a Read Response that we owe the peer. The caller has checked the IRD.
    pub(in crate::iwarp) fn respond(&mut self, request: ReadRequest, header: ddp::Header, bytes: Bytes) {
        self.responses.push_back(Response { request, header, bytes });
    }

    /// Responses owed, including the one under way: these count against the IRD.
    pub(in crate::iwarp) fn responses(&self) -> usize {
        let current = matches!(self.current, Some(Message { kind: Kind::Response { .. }, .. }));
        self.responses.len().saturating_add(usize::from(current))
    }

    /// Whether the batch has room for more.
    fn batch_open(&self) -> bool {
        self.out.len() < BATCH_BYTES
            && self.out.pieces() < BATCH_PIECES
            && self.out.small_bytes() < BATCH_SMALL_BYTES
    }

    /// An RDMA Write of no bytes, to no region.
    fn empty_write(&mut self) {
        let header = ddp::Tagged { last: true, control: Opcode::Write.control(), stag: 0, to: 0 }.emit();
        self.out.begin(&header, 0);
        self.out.finish(header.len());
    }

    /// Sends the peer something to react to, unless more is on its way anyway.
    pub(in crate::iwarp) fn nudge(&mut self) {
        if self.drained() {
            self.empty_write();
        }
    }

    /// Nothing is left to send.
    pub(in crate::iwarp) fn drained(&self) -> bool {
        self.out.is_empty() && self.current.is_none() && self.responses.is_empty() && self.queue.is_empty()
    }

    /// Drops everything that is not framed; returns the ids that were not completed, in order.
    pub(in crate::iwarp) fn flush(&mut self) -> Vec<u64> {
        self.responses.clear();
        self.reading = false;
        let ends = self.ends.drain(..).map(|end| end.id);
        let current = self.current.take().and_then(|message| message.id());
        let queue = self.queue.drain(..).filter_map(|queued| queued.id());
        self.posted = 0;
        ends.chain(current).chain(queue).collect()
    }

    /// The oldest message that the socket has taken completely.
    fn next_end(&mut self) -> Option<End> {
        self.ends.front().filter(|end| end.at <= self.sent)?;
        self.ends.pop_front()
    }

    /// Removes the Reads that were not requested yet from the queue.
    pub(in crate::iwarp) fn drop_queued_reads(&mut self) -> Vec<u64> {
        let (reads, rest): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|queued| matches!(queued, Queued::Read { .. }));
        self.queue = rest;
        self.posted = self.posted.saturating_sub(reads.len());
        reads.iter().filter_map(Queued::id).collect()
    }

    /// A completed or failed Read frees its slot in the queue.
    pub(in crate::iwarp) fn read_done(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Removes the oldest Write to `stag` from the work to be flushed.
    pub(in crate::iwarp) fn forget_write_to(&mut self, stag: Stag) -> Option<u64> {
        if let Some(at) = self.ends.iter().position(|end| end.write == Some(stag)) {
            return self.ends.remove(at).map(|end| end.id);
        }
        match self.current {
            Some(Message { kind: Kind::Write { stag: to, .. }, .. }) if to == stag.0 => self.forget_current(),
            _ => None,
        }
    }

    /// Removes the message that is being framed.
    pub(in crate::iwarp) fn forget_current(&mut self) -> Option<u64> {
        self.reading = false;
        self.current.take().and_then(|message| message.id())
    }

    /// Whether a response that is not completely framed reads from a buffer; if so, its progress, for the Terminate.
    /// All such responses are dropped.
    pub(in crate::iwarp) fn read_cut_off(&mut self, from: impl Fn(&Bytes) -> bool) -> Option<Refused> {
        let mut first = None;
        if let Some(Message { kind: Kind::Response { request, header }, done, source, .. }) = &self.current
            && source.chain.iter().any(&from)
        {
            first = Some((progress(request, *done), *header));
            self.current = None;
        }
        self.responses.retain(|response| {
            let cut = from(&response.bytes);
            if cut && first.is_none() {
                first = Some((response.request, response.header));
            }
            !cut
        });
        first.map(|(read, header)| Refused {
            segment_len: (ddp::UNTAGGED_LEN + rdmap::READ_REQUEST_LEN) as u16,
            header,
            read: Some(read),
        })
    }
}

/// A Read Request as RFC 5040 4.8 requires it in a Terminate after `done` bytes were sent.
fn progress(request: &ReadRequest, done: usize) -> ReadRequest {
    ReadRequest {
        sink_to: request.sink_to.wrapping_add(done as u64),
        source_to: request.source_to.wrapping_add(done as u64),
        size: request.size.saturating_sub(done as u32),
        ..*request
    }
}

fn check(work: &Work, caps: &Caps) -> Result<(), &'static str> {
    // DDP's offsets have 32 bits (RFC 5041 5.2).
    const MAX_MESSAGE: usize = u32::MAX as usize;
    match work {
        Work::Send { data, .. } if data.iter().map(Bytes::len).sum::<usize>() > MAX_MESSAGE => {
            Err("message of 4 GiB or more")
        }
        Work::Write { data, to, .. } if data.len() > to.len as usize => {
            Err("payload longer than its segment")
        }
        Work::Read { into, from, .. } if from.len as usize > into.capacity() => {
            Err("buffer smaller than its segment")
        }
        Work::Read { .. } if caps.ord == 0 => Err("the peer allows no RDMA Reads"),
        _ => Ok(()),
    }
}

impl Message {
    fn id(&self) -> Option<u64> {
        match self.kind {
            Kind::Send { id, .. } | Kind::Write { id, .. } => Some(id),
            Kind::Response { .. } => None,
        }
    }
}

impl Connection {
    /// The initiator's indication that it is ready to receive, before anything that the user posts (RFC 6581 9.2).
    pub(in crate::iwarp) fn open_with(&mut self, opening: Opening) {
        let nowhere = Segment { stag: Stag(0), offset: 0, len: 0 };
        match opening {
            Opening::Write => self.tx.empty_write(),
            Opening::Send => {
                let header = send_header(Opcode::Send, 0, self.tx.send_msn, 0, true).emit();
                self.tx.send_msn = self.tx.send_msn.wrapping_add(1);
                self.tx.out.begin(&header, 0);
                self.tx.out.finish(header.len());
            }
            Opening::Read => self.request_read(None, nowhere),
        }
    }

    /// Frames the next batch once the socket has the last one, or adds to one that has not started.
    pub(in crate::iwarp) fn pump(&mut self) {
        if !self.tx.out.is_fresh() || !self.tx.may_send || matches!(self.state, State::Ended(_)) {
            return;
        }
        while self.tx.batch_open() {
            let more = if self.tx.current.is_some() { self.next_fpdu() } else { self.next_message() };
            if !more {
                break;
            }
        }
    }

    /// Whether there is nothing to send next.
    pub(in crate::iwarp) fn nothing_to_send(&self) -> bool {
        self.tx.out.is_empty()
    }

    /// Pieces that wait for the socket.
    pub(in crate::iwarp) fn pieces_out(&self) -> usize {
        self.tx.out.pieces()
    }

    /// What to send next, in up to `slices.len()` pieces.
    pub(in crate::iwarp) fn next_out<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> Next<'a> {
        self.tx.out.next(slices)
    }

    /// The socket took `n` bytes.
    pub(in crate::iwarp) fn sent(&mut self, n: usize, now: Time) {
        self.tx.out.advance(n);
        add(&mut self.tx.sent, n as u64);
        self.nudge.sent(now);
        self.patience.awaits_read(self.reads.front().map(|read| read.len), now);
        while let Some(end) = self.tx.next_end() {
            self.tx.posted = self.tx.posted.saturating_sub(1);
            let (count, done) = match end.write {
                Some(_) => (&mut self.traffic.written, Done::Written),
                None => (&mut self.traffic.sent, Done::Sent),
            };
            tally(count, end.len);
            if end.signalled {
                self.complete(end.id, done);
            }
        }
        self.end_if_drained(now);
    }

    /// The next piece of a file that the current message needs; the driver answers with `file_read` or `file_warm`.
    pub(in crate::iwarp) fn wants_file(&mut self) -> Option<FileNeed> {
        let more = !self.tx.reading && self.tx.out.is_fresh() && self.tx.batch_open();
        let message = self.tx.current.as_mut().filter(|_| more)?;
        let source = &mut message.source;
        let left = source.file.as_ref().filter(|_| source.cached == 0)?.len;
        // sendfile from a slow file system may block on it.
        let range = source.file.clone().filter(|range| range.file.blocking().is_none());
        let stays = self.tx.out.takes_files() && left >= STAY_MIN;
        let need = if let Some(range) = range.filter(|_| stays) {
            FileNeed::Warm(FileRange {
                len: left.min(self.tx.fpdu_payload.saturating_mul(WARM_FPDUS)),
                ..range
            })
        } else {
            let piece = self.tx.out.takes_sums().then_some(self.tx.fpdu_payload);
            let some = self.tx.fpdu_payload.saturating_mul(FILE_FPDUS);
            FileNeed::Read { range: source.split_file(some)?, piece }
        };
        self.tx.reading = true;
        Some(need)
    }

    /// The bytes of [`FileNeed::Read`], and the checksums of their first pieces, as many as are known.
    pub(in crate::iwarp) fn file_read(&mut self, read: io::Result<(Bytes, Vec<u32>)>, now: Time) {
        // The stream may have ended meanwhile.
        if !std::mem::take(&mut self.tx.reading) {
            return;
        }
        match (read, &mut self.tx.current) {
            (Ok((bytes, sums)), Some(message)) => {
                // The checksums are of whole FPDUs only if the chain is empty.
                if message.source.chain.is_empty() {
                    message.source.sums = sums.into();
                }
                message.source.chain.push_back(bytes);
            }
            (Ok(_), None) => {}
            (Err(e), _) => self.payload_unreadable(e.kind(), now),
        }
    }

    /// All bytes of [`FileNeed::Warm`] are in the page cache.
    pub(in crate::iwarp) fn file_warm(&mut self, warm: io::Result<usize>, now: Time) {
        if !std::mem::take(&mut self.tx.reading) {
            return;
        }
        match (warm, &mut self.tx.current) {
            (Ok(len), Some(message)) => message.source.cached = len,
            (Ok(_), None) => {}
            (Err(e), _) => self.payload_unreadable(e.kind(), now),
        }
    }

    /// Starts the next message; false when none may be sent.
    fn next_message(&mut self) -> bool {
        let respond = !self.tx.responses.is_empty() && (self.tx.responses_next || !self.work_ready());
        self.tx.responses_next = !respond;
        if respond {
            let Some(Response { request, header, bytes }) = self.tx.responses.pop_front() else {
                return false;
            };
            self.tx.current = Some(Message {
                kind: Kind::Response { request, header },
                len: bytes.len(),
                done: 0,
                source: Source::new(vec![bytes]),
            });
            return true;
        }
        if !self.work_ready() {
            return false;
        }
        match self.tx.queue.pop_front() {
            None => false,
            Some(Queued::Read { user, from }) => {
                self.request_read(user, from);
                true
            }
            Some(Queued::Send { id, source, len, invalidate, solicited, signalled }) => {
                let msn = self.tx.send_msn;
                self.tx.send_msn = msn.wrapping_add(1);
                let opcode = Opcode::send(invalidate.is_some(), solicited);
                let invalidate = invalidate.map_or(0, |stag| stag.0);
                let kind = Kind::Send { id, opcode, invalidate, msn, signalled };
                self.tx.current = Some(Message { kind, len, done: 0, source });
                true
            }
            Some(Queued::Write { id, source, len, to, signalled }) => {
                let kind = Kind::Write { id, stag: to.stag.0, to: to.offset, signalled };
                self.tx.current = Some(Message { kind, len, done: 0, source });
                true
            }
        }
    }

    fn work_ready(&self) -> bool {
        match self.tx.queue.front() {
            None => false,
            Some(Queued::Read { .. }) => self.reads.len() < usize::from(self.caps.ord),
            Some(_) => true,
        }
    }

    fn request_read(&mut self, user: Option<(u64, Buf)>, from: Segment) {
        let (sink_stag, sink_to) = self.regions.sink_tag();
        let msn = self.tx.read_msn;
        self.tx.read_msn = msn.wrapping_add(1);
        let request = ReadRequest {
            sink_stag,
            sink_to,
            size: from.len,
            source_stag: from.stag.0,
            source_to: from.offset,
        };
        let header = ddp::Untagged {
            last: true,
            control: Opcode::ReadRequest.control(),
            invalidate: 0,
            qn: QN_READ_REQUEST,
            msn,
            mo: 0,
        };
        self.tx.out.begin(&header.emit(), rdmap::READ_REQUEST_LEN);
        self.tx.out.put_small(&request.emit());
        self.tx.out.finish(ddp::UNTAGGED_LEN + rdmap::READ_REQUEST_LEN);
        let len = from.len as usize;
        self.reads.push_back(PendingRead { user, sink_stag, sink_to, msn, len, filled: 0 });
    }

    /// Frames one segment of the current message; false when it waits for its file.
    fn next_fpdu(&mut self) -> bool {
        let Tx { out, current, fpdu_payload, shift, ends, .. } = &mut self.tx;
        let Some(message) = current else { return false };
        let payload = message.len.saturating_sub(message.done).min(*fpdu_payload);
        if message.source.ready() < payload {
            return false;
        }
        let done = message.done.saturating_add(payload);
        let last = done == message.len;
        let ulpdu = message.begin(payload, last, out);
        match message.source.take_summed(payload, *fpdu_payload) {
            Some((bytes, sum)) => {
                out.payload_summed(bytes, sum, shift.get_or_insert_with(|| shift_over(payload)));
            }
            None => message.source.move_to(payload, out),
        }
        out.finish(ulpdu);
        message.done = done;
        if last {
            let len = message.len;
            match message.kind {
                Kind::Send { id, signalled, .. } => {
                    ends.push_back(End { at: out.end(), id, len, signalled, write: None });
                }
                Kind::Write { id, signalled, stag, .. } => {
                    ends.push_back(End { at: out.end(), id, len, signalled, write: Some(Stag(stag)) });
                }
                Kind::Response { .. } => {
                    tally(&mut self.traffic.served, len);
                }
            }
            *current = None;
        }
        true
    }
}

impl Message {
    /// Writes the header of the next segment; returns the length of the ULPDU.
    fn begin(&self, payload: usize, last: bool, out: &mut Out) -> usize {
        let tagged = |opcode: Opcode, stag: u32, to: u64| ddp::Tagged {
            last,
            control: opcode.control(),
            stag,
            // The peer checks it; it must refuse a wrap.
            to: to.wrapping_add(self.done as u64),
        };
        match &self.kind {
            Kind::Send { opcode, invalidate, msn, .. } => {
                let header = send_header(*opcode, *invalidate, *msn, self.done as u32, last).emit();
                out.begin(&header, payload);
                header.len().saturating_add(payload)
            }
            Kind::Write { stag, to, .. } => {
                let header = tagged(Opcode::Write, *stag, *to).emit();
                out.begin(&header, payload);
                header.len().saturating_add(payload)
            }
            Kind::Response { request, .. } => {
                let header = tagged(Opcode::ReadResponse, request.sink_stag, request.sink_to).emit();
                out.begin(&header, payload);
                header.len().saturating_add(payload)
            }
        }
    }
}

/// The shift over one FPDU's payload. Connections with the same configuration share it.
fn shift_over(len: usize) -> Shift {
    static FIRST: OnceLock<Shift> = OnceLock::new();
    let first = FIRST.get_or_init(|| Shift::over(len));
    if first.len() == len { first.clone() } else { Shift::over(len) }
}

fn send_header(opcode: Opcode, invalidate: u32, msn: u32, mo: u32, last: bool) -> ddp::Untagged {
    ddp::Untagged { last, control: opcode.control(), invalidate, qn: QN_SEND, msn, mo }
}

const _: () = assert!(mpa::fpdu_len((MAX_FPDU_PAYLOAD + ddp::UNTAGGED_LEN) as u16) <= mpa::MAX_FPDU);
