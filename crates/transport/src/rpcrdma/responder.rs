//! The server's side of RPC-over-RDMA: delivers complete calls, and sends replies in the form that the call requested.
//!
//! [`Responder`] takes received messages and finished Reads, and produces work for the queue pair and complete calls.
//! It implements RFC 8166 3.4.5 (pulling), 3.4.6 (pushing), 4.5 (errors), RFC 8797 4.1 (remote invalidation) and RFC
//! 8167. It owns the calls whose chunks are being pulled. The driver posts, allocates and waits.
//!
//! A call is delivered only when it is complete: the stream, from the message or from the position-zero chunk, and
//! beside it the payload of its one other Read chunk. Payload that can go from the peer's memory straight to its
//! destination is left there, and pulled on request. Calls to the client use Send only, and its replies are delivered
//! as messages (RFC 8167). A header or a chunk list that breaks a rule, or needs more memory than a connection may
//! hold, is answered with RDMA_ERROR; the connection continues.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Buf, Payload, Time, buf};
use weft_rdma::{Segment, Stag, Work};
use weft_wire::rpcrdma::{Body, Chunks, ErrorCode, Header, Unusable, VERSION, WriteChunk};
use weft_wire::xdr::{Encoder, pad};

use super::chunks::{self, Reads};
use super::receives::{REVERSE_CREDITS, Receives};
use super::ticket::CallTicket;
use crate::channel::{Detached, Ending, Error, Message, Outgoing, Part, Ticket, TicketKind, To};
use crate::memory::counted_sum;

/// Time limit for the Reads of one call, from the moment they are posted. All that a connection may pull at a time
/// takes this long at 5 Mbit/s; a slower or silent peer loses the connection, which frees its buffers.
pub(super) const PULL_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a client's first call. A client connects because it has something to ask.
pub(super) const FIRST_CALL_LIMIT: Duration = Duration::from_secs(30);
/// XDR padding that a chunk may hold after its payload.
const MAX_FILL: u64 = 3;
/// Bytes of a header without chunks.
const HEADER_BYTES: usize = 28;
/// msg_type of an RPC message (RFC 5531 section 9).
const CALL: [u8; 4] = [0, 0, 0, 0];
const REPLY: [u8; 4] = [0, 0, 0, 1];

/// The limits of a connection, from configuration and negotiation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Largest message to the peer.
    pub threshold: usize,
    /// The most credits granted; never zero, which a peer would read as one (RFC 8166 3.3.1).
    pub credits: u32,
    /// Largest stream pulled or pushed by chunks.
    pub max_message: usize,
    /// Largest payload that is pulled.
    pub max_payload: usize,
    /// Bytes of the pool that Reads may hold at a time, counted in whole size classes. A call that alone needs more is
    /// refused.
    pub pull_bytes: usize,
    /// Whether Send with Invalidate was agreed.
    pub remote_invalidation: bool,
    /// Whether payload beside a whole stream stays with the peer until it is requested.
    pub leaves_payload: bool,
}

/// The purpose of Reads.
#[derive(Debug)]
enum Goal {
    /// A call.
    Call {
        ticket: CallTicket,
        /// The inline part; `None` if the stream is in the position-zero chunk.
        inline: Option<Bytes>,
        /// Whether there is a payload chunk, possibly of no bytes.
        detached: bool,
    },
    /// Payload that was left with the peer.
    Payload(Rc<Fetched>),
}

/// Payload pulled on request, shared with the requester.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    /// Inner `None`: the connection has ended.
    pub outcome: RefCell<Option<Option<Bytes>>>,
    pub waker: RefCell<Option<Waker>>,
}

impl Fetched {
    fn finish(&self, outcome: Option<Bytes>) {
        self.outcome.replace(Some(outcome));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Chunks pulled together.
#[derive(Debug)]
struct Pull {
    goal: Goal,
    /// The position-zero chunk and the payload chunk.
    gathers: [Gather; 2],
    /// Reads that have not finished.
    left: usize,
    /// Bytes of the pool that its buffers occupy.
    counted: usize,
    /// The deadline of the Reads; set when they are posted.
    deadline: Time,
}

impl Pull {
    fn new(goal: Goal, gathers: [Gather; 2]) -> Pull {
        let left = gathers.iter().map(|gather| gather.segments.len()).sum();
        let counted = counted_sum(gathers.iter().flat_map(Gather::wanted));
        Pull { goal, gathers, left, counted, deadline: Time::ZERO }
    }
}

/// One chunk being pulled.
#[derive(Debug, Default)]
struct Gather {
    segments: Vec<Segment>,
    /// The contiguous result: the buffer of its only Read, otherwise a buffer that its Reads are copied to.
    whole: Option<Buf>,
}

impl Gather {
    fn new(segments: Vec<Segment>) -> Gather {
        Gather { segments, whole: None }
    }

    fn len(&self) -> usize {
        Segment::total(&self.segments) as usize
    }

    /// Buffers that it needs: one for each Read, after one for the whole if there are several.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        buffers(&self.segments)
    }

    /// Read number `n` has finished.
    fn filled(&mut self, n: usize, piece: Buf) {
        match &mut self.whole {
            None => self.whole = Some(piece),
            Some(whole) => {
                let at: usize = self.segments.iter().take(n).map(|s| s.len as usize).sum();
                let to = whole.get_mut(at..).and_then(|rest| rest.get_mut(..piece.len()));
                if let Some(to) = to {
                    buf::copy(to, &piece);
                }
            }
        }
    }

    fn take(&mut self) -> Bytes {
        self.whole.take().map(Buf::freeze).unwrap_or_default()
    }
}

/// Lengths of the buffers that a chunk of these segments is pulled into.
fn buffers(segments: &[Segment]) -> impl Iterator<Item = usize> {
    let len = |segment: &Segment| segment.len as usize;
    let whole = (segments.len() > 1).then(|| segments.iter().map(len).sum());
    whole.into_iter().chain(segments.iter().map(len))
}

/// The state machine.
#[derive(Debug)]
pub(super) struct Responder {
    terms: Terms,
    /// Pulls that wait for buffers, oldest first.
    waiting: VecDeque<Pull>,
    /// Pulls whose Reads are posted.
    pulling: slab::Slab<Pull>,
    /// Bytes of the pool that these hold; at most `terms.pull_bytes`.
    pulling_bytes: usize,
    receives: Receives,
    /// The deadline of the client's first call; `None` once it has called.
    first_call: Option<Time>,
    /// Calls received and not answered. A peer may have as many outstanding as it has credits; it may have our reply,
    /// and call again, before we see the reply's completion, so twice as many are allowed.
    unanswered: u32,
    /// Calls to the client (RFC 8167).
    reverse: Reverse,
}

/// The reverse direction: our calls, whose replies are messages of their own.
#[derive(Debug)]
struct Reverse {
    /// Calls that the client accepts at a time; one until its first reply grants more.
    granted: u32,
    /// Xids of unanswered calls.
    asked: HashSet<u32>,
    /// Calls that wait for credit: their messages, and the ids of their Sends.
    waiting: VecDeque<(u32, Vec<Bytes>, u64)>,
}

impl Default for Reverse {
    fn default() -> Reverse {
        Reverse { granted: 1, asked: HashSet::new(), waiting: VecDeque::new() }
    }
}

/// The low bits of a Read's id distinguish the Reads of one pull.
const READ_INDEX_BITS: u32 = 8;

/// What the state machine produced.
#[derive(Debug, Default)]
pub(super) struct Out {
    /// To be posted in this order.
    pub work: VecDeque<Work>,
    /// To be delivered.
    pub messages: VecDeque<Arrived>,
}

/// A message to be delivered.
#[derive(Debug)]
pub(super) enum Arrived {
    /// With all its payload.
    Whole(Message),
    /// With payload that stays with the peer.
    Left(Left),
}

/// A call whose payload lies in these segments of the peer's memory.
#[derive(Debug)]
pub(super) struct Left {
    pub body: Bytes,
    pub payload: Vec<Segment>,
    pub ticket: Ticket,
}

/// Ids of work: its kind and its number.
pub(super) mod id {
    pub const RECV: u64 = 0;
    pub const WRITE: u64 = 1 << 56;
    pub const READ: u64 = 2 << 56;
    pub const SEND: u64 = 3 << 56;
    const KEY: u64 = (1 << 56) - 1;
    pub fn kind(id: u64) -> u64 {
        id & !KEY
    }
    pub fn key(id: u64) -> usize {
        (id & KEY) as usize
    }
}

impl Responder {
    /// [`Receives::first`] of `terms.credits` are posted; the client must call before `first_call`.
    pub fn new(terms: Terms, first_call: Option<Time>) -> Responder {
        debug_assert!(terms.credits > 0);
        Responder {
            receives: Receives::new(terms.credits),
            terms,
            waiting: VecDeque::new(),
            pulling: slab::Slab::new(),
            pulling_bytes: 0,
            first_call,
            unanswered: 0,
            reverse: Reverse::default(),
        }
    }

    /// Receives to post, if memory allows, and whether they are needed.
    pub fn receives_wanted(&self) -> (u32, bool) {
        (self.receives.wanted(), self.receives.needed())
    }

    /// `n` of them were posted.
    pub fn posted(&mut self, n: u32, out: &mut Out) {
        self.receives.posted(n);
        self.ask(out);
    }

    /// A message has arrived.
    pub fn received(&mut self, message: Bytes, out: &mut Out) -> Result<(), Ending> {
        // RFC 8167 5.1: only the RPC message, after a header without chunks, shows whether it is a call or a reply.
        let is_reply = message.get(HEADER_BYTES + 4..HEADER_BYTES + 8) == Some(&REPLY);
        if is_reply
            && let Ok((Header { xid, credits, body: Body::Msg(chunks), .. }, body)) =
                Header::parse(message.clone())
            && chunks == Chunks::default()
            && body.get(..4) == Some(&xid.to_be_bytes())
        {
            self.replied(xid, credits, body, out);
            return Ok(());
        }
        if self.unanswered >= self.terms.credits.saturating_mul(2) {
            return Err(Ending::Violation("RFC 8166 3.3.1: more calls than credits"));
        }
        match Header::parse(message) {
            Ok((Header { xid, body: Body::Msg(chunks), .. }, stream)) => {
                self.call(xid, chunks, Some(stream), out)
            }
            Ok((Header { xid, body: Body::NoMsg(chunks), .. }, _)) => self.call(xid, chunks, None, out),
            // RFC 8166 4.6.2, 4.2.4, 4.5: silently discarded.
            Ok((Header { body: Body::Done | Body::Error(_), .. }, _))
            | Err(Unusable::Short | Unusable::Error) => {}
            Err(Unusable::Version { xid, version }) => {
                self.refuse(xid, version, ErrorCode::Version { low: VERSION, high: VERSION }, out);
            }
            Err(Unusable::Chunk { xid, why }) => {
                tracing::debug!(xid, why, "unusable RPC-over-RDMA header");
                self.refuse(xid, VERSION, ErrorCode::Chunk, out);
            }
        }
        Ok(())
    }

    /// The client has answered. A reply without a call is discarded.
    fn replied(&mut self, xid: u32, credits: u32, body: Bytes, out: &mut Out) {
        if !self.reverse.asked.remove(&xid) {
            tracing::debug!(xid, "reply without a call discarded");
            return;
        }
        self.reverse.granted = credits.clamp(1, REVERSE_CREDITS);
        let message = Message { body, detached: None, ticket: Ticket::default() };
        out.messages.push_back(Arrived::Whole(message));
        self.ask(out);
    }

    /// Sends a call to the client, as soon as it has granted a credit (RFC 8167 4.1, 5.1). It has no chunks.
    fn call_back(&mut self, xid: u32, stream: Vec<Bytes>, send_id: u64, out: &mut Out) -> Result<(), Error> {
        let len: usize = stream.iter().map(Bytes::len).sum();
        if HEADER_BYTES.saturating_add(len) > self.terms.threshold {
            return Err(Error::Misuse("a call to the client must fit one Send"));
        }
        self.reverse.waiting.push_back((xid, stream, send_id));
        self.receives.call_back();
        self.ask(out);
        Ok(())
    }

    fn ask(&mut self, out: &mut Out) {
        while self.reverse.asked.len() < self.reverse.granted.min(self.receives.replies()) as usize
            && let Some((xid, stream, id)) = self.reverse.waiting.pop_front()
        {
            self.reverse.asked.insert(xid);
            let mut e = Encoder::with_capacity(HEADER_BYTES);
            let body = Body::Msg(Chunks::default());
            Header { xid, version: VERSION, credits: REVERSE_CREDITS, body }.emit(&mut e);
            let data = [e.into_bytes()].into_iter().chain(stream).collect();
            out.work.push_back(Work::Send { id, data, invalidate: None, solicited: false, signalled: true });
        }
    }

    fn call(&mut self, xid: u32, chunks: Chunks, stream: Option<Bytes>, out: &mut Out) {
        let invalidate = self.terms.remote_invalidation.then(|| any_stag(&chunks)).flatten();
        let reads = chunks::group(&chunks.reads);
        let ticket = CallTicket { xid, writes: chunks.writes, reply: chunks.reply, invalidate };
        self.first_call = None;
        self.unanswered = self.unanswered.saturating_add(1);
        self.receives.used(self.unanswered);
        let checked = reads.and_then(|reads| self.check(xid, &reads, stream.as_ref()).map(|()| reads));
        match (checked, stream) {
            (Err(why), _) => {
                tracing::debug!(xid, why, "unusable chunks");
                self.answered();
                self.refuse(xid, VERSION, ErrorCode::Chunk, out);
            }
            (Ok(reads), Some(body)) if reads.payload.is_empty() => {
                // A payload chunk without bytes is a payload of length zero.
                let detached = (reads.position != 0).then(|| Detached::Here(Bytes::new()));
                let ticket = Ticket(TicketKind::RpcRdma(ticket));
                out.messages.push_back(Arrived::Whole(Message { body, detached, ticket }));
            }
            (Ok(reads), Some(body)) if self.terms.leaves_payload => {
                let ticket = Ticket(TicketKind::RpcRdma(ticket));
                out.messages.push_back(Arrived::Left(Left { body, payload: reads.payload, ticket }));
            }
            (Ok(reads), inline) => {
                let detached = reads.position != 0;
                let gathers = [Gather::new(reads.stream), Gather::new(reads.payload)];
                self.waiting.push_back(Pull::new(Goal::Call { ticket, inline, detached }, gathers));
            }
        }
    }

    /// One call fewer has no reply yet.
    fn answered(&mut self) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.receives.answered(self.unanswered);
    }

    /// RFC 8166 4.5.2 and our own limits.
    fn check(&self, xid: u32, reads: &Reads, stream: Option<&Bytes>) -> Result<(), &'static str> {
        let stream_len = match stream {
            Some(_) if !reads.stream.is_empty() => return Err("position-zero chunk beside a message"),
            Some(stream) if stream.get(..4) != Some(&xid.to_be_bytes()) => {
                return Err("RFC 8166 4.2.1: xid of header and message differ");
            }
            Some(stream) => stream.len() as u64,
            None => Segment::total(&reads.stream),
        };
        if stream_len == 0 {
            return Err("RFC 8166 4.5.2: RDMA_NOMSG without a position-zero chunk");
        }
        if stream_len > self.terms.max_message as u64 {
            return Err("position-zero chunk above the limit");
        }
        if reads.position as u64 > stream_len {
            return Err("position behind the end of the stream");
        }
        // The padding may be part of the chunk (RFC 8166 3.4.5.2).
        if Segment::total(&reads.payload) > (self.terms.max_payload as u64).saturating_add(MAX_FILL) {
            return Err("payload chunk above the limit");
        }
        // Checked before anything is allocated: a call that can never be pulled must not wait.
        if counted_sum(buffers(&reads.stream).chain(buffers(&reads.payload))) > self.terms.pull_bytes {
            return Err("chunks that need more memory than a connection may hold");
        }
        Ok(())
    }

    /// Pulls payload that was left with the peer.
    pub fn fetch(&mut self, payload: Vec<Segment>, fetched: Rc<Fetched>) {
        let gathers = [Gather::default(), Gather::new(payload)];
        self.waiting.push_back(Pull::new(Goal::Payload(fetched), gathers));
    }

    /// The connection has ended: nothing that anybody waits for will come.
    pub fn abandon(&mut self) {
        self.pulling_bytes = 0;
        for pull in self.waiting.drain(..).chain(self.pulling.drain()) {
            if let Goal::Payload(fetched) = pull.goal {
                fetched.finish(None);
            }
        }
    }

    /// The buffers that the oldest waiting call needs, all at once: a call that held some while waiting for others
    /// could starve the other connections forever. `None` while earlier calls hold this connection's share.
    pub fn wanted(&self) -> Option<Vec<usize>> {
        let pull = self.waiting.front()?;
        if self.pulling_bytes.saturating_add(pull.counted) > self.terms.pull_bytes {
            return None;
        }
        Some(pull.gathers.iter().flat_map(Gather::wanted).collect())
    }

    /// What the client must do next, and its deadline.
    pub fn deadline(&self) -> Option<(Time, &'static str)> {
        let reads = self.pulling.iter().map(|(_, pull)| (pull.deadline, "RDMA Reads of a call's chunks"));
        reads.chain(self.first_call.map(|at| (at, "the first call"))).min()
    }

    /// The buffers are available, in that order: posts the call's Reads.
    pub fn provide(&mut self, bufs: Vec<Buf>, now: Time, out: &mut Out) {
        let Some(mut pull) = self.waiting.pop_front() else { return };
        pull.deadline = now + PULL_LIMIT;
        self.pulling_bytes = self.pulling_bytes.saturating_add(pull.counted);
        let entry = self.pulling.vacant_entry();
        let mut bufs = bufs.into_iter();
        let mut id = id::READ | (entry.key() as u64) << READ_INDEX_BITS;
        for gather in &mut pull.gathers {
            if gather.segments.len() > 1 {
                gather.whole = bufs.next().map(|mut whole| {
                    whole.set_len(gather.len());
                    whole
                });
            }
            for (from, into) in gather.segments.iter().zip(bufs.by_ref()) {
                out.work.push_back(Work::Read { id, into, from: *from });
                id = id.saturating_add(1);
            }
        }
        entry.insert(pull);
    }

    /// A Read has finished.
    pub fn pulled(&mut self, key: usize, buf: Buf, out: &mut Out) {
        let (key, index) = (key >> READ_INDEX_BITS, key & ((1 << READ_INDEX_BITS) - 1));
        let Some(pull) = self.pulling.get_mut(key) else { return };
        let [stream, payload] = &mut pull.gathers;
        match index.checked_sub(stream.segments.len()) {
            None => stream.filled(index, buf),
            Some(index) => payload.filled(index, buf),
        }
        pull.left = pull.left.saturating_sub(1);
        if pull.left == 0 {
            let pull = self.pulling.remove(key);
            self.pulling_bytes = self.pulling_bytes.saturating_sub(pull.counted);
            self.assembled(pull, out);
        }
    }

    fn assembled(&mut self, pull: Pull, out: &mut Out) {
        let Pull { goal, gathers: [mut stream, mut payload], .. } = pull;
        let (ticket, inline, detached) = match goal {
            Goal::Call { ticket, inline, detached } => (ticket, inline, detached),
            Goal::Payload(fetched) => return fetched.finish(Some(payload.take())),
        };
        let body = inline.unwrap_or_else(|| stream.take());
        if body.get(..4) != Some(&ticket.xid.to_be_bytes()) {
            tracing::debug!(xid = ticket.xid, "xid of header and pulled message differ");
            self.answered();
            return self.refuse(ticket.xid, VERSION, ErrorCode::Chunk, out);
        }
        let detached = detached.then(|| Detached::Here(payload.take()));
        let ticket = Ticket(TicketKind::RpcRdma(ticket));
        out.messages.push_back(Arrived::Whole(Message { body, detached, ticket }));
    }

    /// Whether this reply contains file ranges that must be read first, because they go in the stream.
    pub fn must_load(&self, reply: &Outgoing) -> bool {
        reply.parts.iter().any(|part| match part {
            Part::Payload { data: Payload::File(_), to: To::Inline } => true,
            Part::Payload { data: Payload::File(_), to: To::Ticket } => !has_write_chunk(&reply.ticket),
            _ => false,
        })
    }

    /// Sends a reply; `send_id` is returned in the completion of its Send.
    pub fn reply(&mut self, reply: Outgoing, send_id: u64, out: &mut Out) -> Result<(), Error> {
        if let Some(xid) = call_xid(&reply) {
            let bytes = |part| match part {
                Part::Bytes(bytes) => Ok(bytes),
                Part::Payload { .. } => Err(Error::Misuse("a call to the client has no payload")),
            };
            let stream = reply.parts.into_iter().map(bytes).collect::<Result<_, _>>()?;
            return self.call_back(xid, stream, send_id, out);
        }
        self.answered();
        let ticket = match reply.ticket.0 {
            TicketKind::RpcRdma(ticket) => ticket,
            TicketKind::Inline => {
                let xid = xid_of(&reply.parts).ok_or(Error::Misuse("an RPC message starts with its xid"))?;
                CallTicket { xid, writes: Vec::new(), reply: None, invalidate: None }
            }
            #[allow(unreachable_patterns, reason = "other transports have tickets of their own")]
            _ => return Err(Error::Misuse("the ticket of another transport")),
        };
        let CallTicket { xid, mut writes, reply: mut reply_chunk, invalidate } = ticket;
        let mut work = VecDeque::new();
        let mut stream: Vec<Bytes> = Vec::with_capacity(reply.parts.len().saturating_mul(2));
        let mut next_write = 0;
        for part in reply.parts {
            let data = match part {
                Part::Bytes(bytes) => {
                    stream.push(bytes);
                    continue;
                }
                Part::Payload { to: To::Segments(_), .. } => {
                    return Err(Error::Misuse("RPC names memory by its ticket"));
                }
                Part::Payload { data, to: To::Ticket } => {
                    // RFC 8166 4.3.2.3: an empty chunk requests this item inline.
                    let slot = writes.get_mut(next_write);
                    next_write = next_write.saturating_add(1);
                    match slot.filter(|chunk| !chunk.is_empty()) {
                        Some(chunk) if chunks::len(chunk) >= data.len() as u64 => {
                            *chunk = chunks::fill(std::mem::take(chunk), data, id::WRITE, &mut work);
                            continue;
                        }
                        Some(_) => {
                            tracing::debug!(xid, "Write chunk too small for the result");
                            return self.refuse_signalled(xid, send_id, out);
                        }
                        None => data,
                    }
                }
                Part::Payload { data, to: To::Inline } => data,
            };
            let Payload::Chain(chain) = data else {
                return Err(Error::Misuse("a file range in the stream was not loaded"));
            };
            let fill = pad(chain.iter().map(Bytes::len).sum());
            stream.extend(chain);
            stream.push(Bytes::from_static(&[0; 3]).slice(..fill.min(3)));
        }
        let mut next_unused = |chunk: &mut WriteChunk| *chunk = chunks::unused(std::mem::take(chunk));
        writes.iter_mut().skip(next_write).for_each(&mut next_unused);
        let stream_len: usize = stream.iter().map(Bytes::len).sum();
        let mut lists = Chunks { reads: Vec::new(), writes, reply: reply_chunk.take() };
        let header_len = lists.emitted_len().saturating_add(16);
        let body = if header_len.saturating_add(stream_len) <= self.terms.threshold {
            lists.reply = lists.reply.map(chunks::unused);
            Body::Msg(lists)
        } else {
            let room = lists.reply.as_ref().map_or(0, |chunk| chunks::len(chunk));
            if room < stream_len as u64 || header_len > self.terms.threshold {
                tracing::debug!(xid, stream_len, room, "reply has no room");
                return self.refuse_signalled(xid, send_id, out);
            }
            let payload = Payload::Chain(std::mem::take(&mut stream));
            lists.reply = lists.reply.map(|chunk| chunks::fill(chunk, payload, id::WRITE, &mut work));
            Body::NoMsg(lists)
        };
        let mut e = Encoder::with_capacity(header_len);
        Header { xid, version: VERSION, credits: self.receives.granted(), body }.emit(&mut e);
        let mut data = vec![e.into_bytes()];
        data.extend(stream.into_iter().filter(|bytes| !bytes.is_empty()));
        out.work.append(&mut work);
        // The Send is last and signalled: its completion implies that the Writes before it are done.
        out.work.push_back(Work::Send { id: send_id, data, invalidate, solicited: false, signalled: true });
        Ok(())
    }

    /// There will be no RPC reply (RFC 8166 4.5).
    fn refuse(&mut self, xid: u32, version: u32, code: ErrorCode, out: &mut Out) {
        out.work.push_back(self.error(xid, version, code, id::WRITE));
    }

    fn refuse_signalled(&mut self, xid: u32, send_id: u64, out: &mut Out) -> Result<(), Error> {
        out.work.push_back(self.error(xid, VERSION, ErrorCode::Chunk, send_id));
        Ok(())
    }

    fn error(&self, xid: u32, version: u32, code: ErrorCode, id: u64) -> Work {
        let mut e = Encoder::with_capacity(28);
        Header { xid, version, credits: self.receives.granted(), body: Body::Error(code) }.emit(&mut e);
        Work::Send { id, data: vec![e.into_bytes()], invalidate: None, solicited: false, signalled: true }
    }
}

fn has_write_chunk(ticket: &Ticket) -> bool {
    matches!(&ticket.0, TicketKind::RpcRdma(CallTicket { writes, .. }) if writes.iter().any(|c| !c.is_empty()))
}

fn any_stag(chunks: &Chunks) -> Option<Stag> {
    let write = chunks.writes.iter().chain(&chunks.reply).flatten().next();
    write.or(chunks.reads.first().map(|r| &r.target)).map(|s| Stag(s.handle))
}

/// The xid of a message that is no reply: a call to the client.
fn call_xid(message: &Outgoing) -> Option<u32> {
    let Part::Bytes(first) = message.parts.first()? else { return None };
    let answers = matches!(message.ticket.0, TicketKind::RpcRdma(_)) || first.get(4..8) != Some(&CALL);
    if answers { None } else { xid_of(&message.parts) }
}

/// The first four bytes of an RPC message.
pub(super) fn xid_of(parts: &[Part]) -> Option<u32> {
    match parts.first()? {
        Part::Bytes(bytes) => bytes.first_chunk().map(|xid| u32::from_be_bytes(*xid)),
        Part::Payload { .. } => None,
    }
}
