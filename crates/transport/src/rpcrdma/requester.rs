//! The client's side of RPC-over-RDMA: offers memory with a call and takes it back with the reply.
//!
//! [`Requester`] turns prepared calls into work and received messages into replies. It implements RFC 8166 3.3.1
//! (credits), 3.5 (message sizes), 4.4 (registration) and RFC 8797 4.1 (remote invalidation). It owns the registrations
//! of every call until its reply, even if nobody waits for the reply any more. The driver posts, allocates and waits;
//! nothing is retransmitted.
//!
//! A call that fits the inline threshold is sent in one Send. Otherwise its payload becomes a Read chunk; if the
//! remainder is still too long, the whole stream does (position zero). Sink, source and reply room are regions until
//! the reply has arrived and they are invalidated, either by the peer's Send with Invalidate or by us; only then are
//! they returned. A reply whose header is unusable is discarded (RFC 8166 4.5); one that claims more than was offered
//! ends the connection. RDMA_ERROR becomes an RPC reply SYSTEM_ERR, RPC's closest equivalent.

use std::collections::HashMap;

use bytes::Bytes;
use weft_machine::{Buf, Payload, Pool, Window, buf};
use weft_rdma::{Access, QueuePair, Segment, Stag, Work};
use weft_wire::rpc;
use weft_wire::rpcrdma::{Body, Chunks, ErrorCode, Header, ReadSegment, VERSION};
use weft_wire::xdr::{Encoder, fill, pad};

use super::chunks;
use super::responder::{Arrived, Out, xid_of};
use crate::channel::{Detached, Ending, Error, Message, Outgoing, Part, Ticket};

/// The limits of a connection, from configuration and negotiation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Largest message to the peer.
    pub threshold: usize,
    /// Largest message from the peer.
    pub reply_threshold: usize,
    /// Credits requested with every call; as many receive buffers are posted.
    pub credits: u32,
}

/// The state machine.
#[derive(Debug)]
pub(super) struct Requester {
    terms: Terms,
    /// Calls that may be in flight now: one until the first reply grants more (RFC 8166 3.3.3).
    granted: u32,
    calls: HashMap<u32, Call>,
}

/// A call in flight, and the memory that the peer can access for it.
#[derive(Debug, Default)]
struct Call {
    sink: Option<Segment>,
    reply: Option<Segment>,
    /// Regions of the payload and of a long call.
    sources: Vec<Stag>,
}

/// How a call will be sent; decided before its buffers are allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    xid: u32,
    /// Bytes of the stream without payload and padding, and of the payload.
    stream_len: usize,
    payload_len: usize,
    /// The payload's position in the stream.
    position: usize,
    /// The payload goes as a Read chunk.
    placed: bool,
    /// The stream goes as a position-zero chunk.
    long: bool,
    /// Room for a long reply.
    reply_room: Option<usize>,
}

/// Payload that the peer will pull.
#[derive(Debug)]
enum Source {
    /// Still to be registered.
    Buf(Buf),
    /// Already opened in place.
    Lent(Segment),
}

/// A call with everything it needs.
#[derive(Debug)]
pub(super) struct Prepared {
    shape: Shape,
    /// The part of the stream that goes in the message.
    stream: Vec<Bytes>,
    /// The payload, if it goes as a chunk.
    payload: Option<Source>,
    /// The stream, if it is long.
    long: Option<Buf>,
    sink: Option<Buf>,
    reply: Option<Buf>,
}

/// Bytes of a header with these lists, one segment each.
fn header_len(read: bool, write: bool, reply: bool) -> usize {
    let lists = [(true, 28), (read, 24), (write, 24), (reply, 20)];
    lists.iter().filter(|(there, _)| *there).map(|(_, len)| len).sum()
}

impl Shape {
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// Decides for `call`; `Err` if it is not an RPC call that can be sent.
    pub fn of(call: &Outgoing, terms: &Terms) -> Result<Shape, Error> {
        let xid = xid_of(&call.parts).ok_or(Error::Misuse("an RPC message starts with its xid"))?;
        let (mut stream_len, mut payload) = (0usize, None);
        for part in &call.parts {
            match part {
                Part::Bytes(bytes) => stream_len = stream_len.saturating_add(bytes.len()),
                Part::Payload { .. } if payload.is_some() => return Err(Error::Misuse("a second payload")),
                Part::Payload { data, .. } => payload = Some((stream_len, data.len())),
            }
        }
        if let Some(source) = &call.source {
            if payload.is_some() {
                return Err(Error::Misuse("a second payload"));
            }
            payload = Some((stream_len, source.len()));
        }
        let (position, payload_len) = payload.unwrap_or((stream_len, 0));
        let len = stream_len.saturating_add(payload_len).saturating_add(pad(payload_len));
        if u32::try_from(len).is_err() {
            return Err(Error::Misuse("a message of 4 GiB"));
        }
        let write = call.sink.is_some();
        // RFC 8166 4.3.3: a Reply chunk is offered if the longest reply exceeds one Send.
        let reply_header = header_len(false, write, false);
        let long_reply = call.longest_reply.saturating_add(reply_header) > terms.reply_threshold;
        let reply_room = long_reply.then_some(call.longest_reply);
        let inline = header_len(false, write, long_reply).saturating_add(len);
        let placed = inline > terms.threshold && payload_len > 0;
        let reduced = header_len(placed, write, long_reply).saturating_add(stream_len);
        let long = if placed { reduced > terms.threshold } else { inline > terms.threshold };
        // RFC 8166 3.4.5: the position of a Read chunk is a multiple of four.
        if placed && !position.is_multiple_of(4) {
            return Err(Error::Misuse("payload off its alignment"));
        }
        Ok(Shape { xid, stream_len, payload_len, position, placed, long, reply_room })
    }
}

/// Puts everything into memory that can be registered. Payload in shared memory is copied here (counted) unless it can
/// be lent in place; a source buffer, or a range of a file, is not copied.
pub(super) async fn prepare(
    call: Outgoing,
    shape: Shape,
    pool: Pool,
    qp: &dyn QueuePair,
) -> Result<Prepared, Error> {
    let Outgoing { parts, sink, source, .. } = call;
    let mut stream = Vec::with_capacity(parts.len().saturating_add(2));
    let (mut placed, mut payload) = (None, None);
    let inline = |stream: &mut Vec<Bytes>, chain: Vec<Bytes>| {
        stream.extend(chain);
        stream.push(Bytes::from_static(fill(shape.payload_len)));
    };
    for part in parts {
        match part {
            Part::Bytes(bytes) => stream.push(bytes),
            Part::Payload { data, .. } if shape.placed => placed = Some(data),
            Part::Payload { data, .. } => inline(&mut stream, data.into_chain(&pool).await?),
        }
    }
    match source {
        Some(source) if shape.placed => payload = Some(Source::Buf(source)),
        Some(source) => inline(&mut stream, vec![source.freeze()]),
        None => {}
    }
    let long = if shape.long {
        let mut buf = pool.alloc(shape.stream_len).await;
        stream.drain(..).for_each(|bytes| buf.extend_from_slice(&bytes));
        Some(buf)
    } else {
        None
    };
    let reply = match shape.reply_room {
        Some(room) => {
            let mut buf = pool.alloc(room).await;
            buf.set_len(room);
            Some(buf)
        }
        None => None,
    };
    // Last, so that a caller that gives up earlier has opened nothing.
    if let Some(data) = placed {
        let lent = match &data {
            Payload::Chain(chain) => match chain.as_slice() {
                [only] => qp.register_shared(only),
                _ => None,
            },
            Payload::File(_) => None,
        };
        payload = Some(match lent {
            Some(segment) => Source::Lent(segment),
            None => Source::Buf(into_buf(data, &pool).await?),
        });
    }
    Ok(Prepared { shape, stream, payload, long, sink, reply })
}

async fn into_buf(data: Payload, pool: &Pool) -> Result<Buf, Error> {
    let mut buf = pool.alloc(data.len()).await;
    buf.set_len(data.len());
    match data {
        Payload::Chain(chain) => {
            let mut rest = &mut buf[..];
            for piece in chain {
                let (to, behind) = rest.split_at_mut(piece.len());
                buf::copy(to, &piece);
                rest = behind;
            }
            Ok(buf)
        }
        Payload::File(range) => {
            let window: Window = buf.into_window();
            range.read_into(&window).await?;
            window.try_into_buf().map_err(|_| Error::Misuse("a window that somebody keeps"))
        }
    }
}

impl Requester {
    pub fn new(terms: Terms) -> Requester {
        Requester { terms, granted: 1, calls: HashMap::new() }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Whether another call may be sent (RFC 8166 3.3.1).
    pub fn admits(&self) -> bool {
        (self.calls.len() as u64) < u64::from(self.granted.min(self.terms.credits))
    }

    /// Sends a call; `send_id` is returned in the completion of its Send.
    pub fn call(
        &mut self,
        call: Prepared,
        qp: &dyn QueuePair,
        send_id: u64,
        out: &mut Out,
    ) -> Result<(), Error> {
        let Prepared { shape, stream, payload, long, sink, reply } = call;
        if self.calls.contains_key(&shape.xid) {
            if let Some(Source::Lent(segment)) = payload {
                qp.invalidate(segment.stag);
            }
            return Err(Error::Misuse("a call with this xid is in flight"));
        }
        let mut entry = Call::default();
        let registered = self.register(&mut entry, qp, shape.position, payload, long, sink, reply);
        let chunks = match registered {
            Ok(chunks) => chunks,
            Err(e) => {
                entry.release(qp);
                return Err(e);
            }
        };
        let mut e = Encoder::with_capacity(chunks.emitted_len().saturating_add(16));
        let body = if shape.long { Body::NoMsg(chunks) } else { Body::Msg(chunks) };
        Header { xid: shape.xid, version: VERSION, credits: self.terms.credits, body }.emit(&mut e);
        let mut data = vec![e.into_bytes()];
        data.extend(stream.into_iter().filter(|bytes| !bytes.is_empty()));
        self.calls.insert(shape.xid, entry);
        out.work.push_back(Work::Send {
            id: send_id,
            data,
            invalidate: None,
            solicited: false,
            signalled: true,
        });
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "one for each kind of memory that a call can offer")]
    fn register(
        &self,
        entry: &mut Call,
        qp: &dyn QueuePair,
        position: usize,
        payload: Option<Source>,
        long: Option<Buf>,
        sink: Option<Buf>,
        reply: Option<Buf>,
    ) -> Result<Chunks, Error> {
        let open = |buf: Buf, access| qp.register(buf, access).map_err(post_error);
        let mut chunks = Chunks::default();
        if let Some(Source::Lent(segment)) = &payload {
            entry.sources.push(segment.stag);
        }
        for (source, position) in [(long.map(Source::Buf), 0), (payload, position)] {
            if let Some(source) = source {
                let segment = match source {
                    Source::Lent(segment) => segment,
                    Source::Buf(buf) => {
                        let segment = open(buf, Access::RemoteRead)?;
                        entry.sources.push(segment.stag);
                        segment
                    }
                };
                let target = chunks::to_wire(segment);
                chunks.reads.push(ReadSegment { position: position as u32, target });
            }
        }
        if let Some(buf) = sink {
            let segment = open(buf, Access::RemoteFill)?;
            entry.sink = Some(segment);
            chunks.writes.push(vec![chunks::to_wire(segment)]);
        }
        if let Some(buf) = reply {
            let segment = open(buf, Access::RemoteWrite)?;
            entry.reply = Some(segment);
            chunks.reply = Some(vec![chunks::to_wire(segment)]);
        }
        Ok(chunks)
    }

    /// A message has arrived.
    pub fn received(&mut self, message: Bytes, qp: &dyn QueuePair, out: &mut Out) -> Result<(), Ending> {
        let Ok((header, stream)) = Header::parse(message) else {
            tracing::debug!("unusable RPC-over-RDMA reply discarded");
            return Ok(());
        };
        let (lists, long) = match header.body {
            Body::Msg(chunks) => (chunks, false),
            Body::NoMsg(chunks) => (chunks, true),
            Body::Done => return Ok(()),
            Body::Error(code) => return self.refused(header.xid, code, qp, out),
        };
        let Some(mut call) = self.calls.remove(&header.xid) else {
            tracing::debug!(xid = header.xid, "reply without a call discarded");
            return Ok(());
        };
        self.grant(header.credits);
        let offered = call.sink.is_some();
        let (sink, reply) = call.release(qp);
        let detached = match (offered, sink) {
            (true, Some(buf)) => {
                Some(Detached::Here(used(buf, lists.writes.first().map_or(0, |c| chunks::len(c)))?))
            }
            (true, None) => return Err(Ending::Violation("a region that we offered is gone")),
            (false, _) => None,
        };
        let body = if long {
            let Some(buf) = reply else {
                return Err(Ending::Violation("RFC 8166 4.3.3: a long reply that was not asked for"));
            };
            used(buf, lists.reply.as_ref().map_or(0, |c| chunks::len(c)))?
        } else {
            stream
        };
        if body.get(..4) != Some(&header.xid.to_be_bytes()) {
            return Err(Ending::Violation("RFC 8166 4.2.1: xid of header and reply differ"));
        }
        let message = Message { body, detached, ticket: Ticket::default() };
        out.messages.push_back(Arrived::Whole(message));
        Ok(())
    }

    /// Zero violates RFC 8166 3.3.1; we treat it as one, as others do, so that nothing stalls.
    fn grant(&mut self, credits: u32) {
        self.granted = credits.max(1);
    }

    fn refused(
        &mut self,
        xid: u32,
        code: ErrorCode,
        qp: &dyn QueuePair,
        out: &mut Out,
    ) -> Result<(), Ending> {
        let Some(mut call) = self.calls.remove(&xid) else { return Ok(()) };
        tracing::debug!(xid, ?code, "call refused by the responder");
        call.release(qp);
        out.messages.push_back(Arrived::Whole(refusal(xid)));
        Ok(())
    }
}

/// The local reply to a call that will get none.
pub(super) fn refusal(xid: u32) -> Message {
    let mut e = Encoder::with_capacity(24);
    rpc::Reply::SystemError.emit(xid, &mut e);
    Message { body: e.into_bytes(), detached: None, ticket: Ticket::default() }
}

impl Call {
    /// Takes back all regions: from here on the peer cannot access them, whatever it does (RFC 8166 4.4.1).
    fn release(&mut self, qp: &dyn QueuePair) -> (Option<Buf>, Option<Buf>) {
        for stag in self.sources.drain(..) {
            qp.invalidate(stag);
        }
        let take = |region: Option<Segment>| region.and_then(|segment| qp.invalidate(segment.stag));
        (take(self.sink.take()), take(self.reply.take()))
    }
}

/// The part of a region that the reply declares as used.
fn used(mut buf: Buf, len: u64) -> Result<Bytes, Ending> {
    match usize::try_from(len) {
        Ok(len) if len <= buf.len() => {
            buf.set_len(len);
            Ok(buf.freeze())
        }
        _ => Err(Ending::Violation("RFC 8166 3.4.6: more returned than the chunk had room for")),
    }
}

pub(super) fn post_error(e: weft_rdma::PostError) -> Error {
    match e {
        weft_rdma::PostError::Misuse(why) => Error::Misuse(why),
        weft_rdma::PostError::Closed => Error::Closed,
        weft_rdma::PostError::QueueFull => Error::Misuse("queue full"),
        weft_rdma::PostError::RegionsFull(_) => Error::Misuse("region table full"),
    }
}
