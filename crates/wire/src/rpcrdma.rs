//! RPC-over-RDMA version 1: the header in front of an RPC message (RFC 8166 section 4), and the private data of
//! connection set-up (RFC 8797 section 4).
//!
//! [`Header`] parses the chunk lists once into typed lists. The region's owner judges whether a chunk may be read or
//! written.
//!
//! ```text
//! xid  vers=1  credit  proc | read list:  (1 P HLOO)* 0
//!                           | write list: (1 n HLOO*n)* 0
//!                           | reply chunk: 0, or 1 n HLOO*n      P position, H handle, L length, OO offset
//! ```

use bytes::Bytes;

use crate::xdr::{Decoder, Encoder, Malformed};

/// The version that this module speaks.
pub const VERSION: u32 = 1;
/// A header shorter than this is discarded unread (RFC 8166 4.5).
pub const MIN_HEADER: usize = 28;
/// Most segments that one header may name: a Read list of this many fills an inline threshold of 4096 bytes.
pub const MAX_SEGMENTS: usize = 168;
/// Default inline threshold in both directions (RFC 8166 3.3.3).
pub const DEFAULT_THRESHOLD: usize = 1024;

/// A plain segment (RFC 8166 3.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// STag.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
    /// Tagged offset.
    pub offset: u64,
}

/// A read segment (RFC 8166 3.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSegment {
    /// Position of the chunk in the unreduced stream; 0 stands for the whole stream.
    pub position: u32,
    /// The memory that holds its bytes.
    pub target: Segment,
}

/// A Write chunk or a Reply chunk: the memory that the requester offers, or in a reply the amount of it that was used.
pub type WriteChunk = Vec<Segment>;

/// The three chunk lists (RFC 8166 4.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// Read list, as sent.
    pub reads: Vec<ReadSegment>,
    /// Write list.
    pub writes: Vec<WriteChunk>,
    /// Reply chunk.
    pub reply: Option<WriteChunk>,
}

impl Chunks {
    /// Bytes that [`Header::emit`] writes for these lists.
    pub fn emitted_len(&self) -> usize {
        let segments = |chunk: &WriteChunk| chunk.len().saturating_mul(16);
        let reads = self.reads.len().saturating_mul(24);
        let writes = self.writes.iter().map(|chunk| segments(chunk).saturating_add(8));
        // The reply chunk has no word of its own that marks its presence: the end of the list serves.
        let reply = self.reply.iter().map(|chunk| segments(chunk).saturating_add(4));
        [12, reads].into_iter().chain(writes).chain(reply).fold(0, usize::saturating_add)
    }
}

/// The message type and its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// RDMA_MSG: the (reduced) stream follows the header.
    Msg(Chunks),
    /// RDMA_NOMSG: the stream is in the position-zero Read chunk (call) or the Reply chunk (reply).
    NoMsg(Chunks),
    /// RDMA_DONE: never needed, and to be ignored.
    Done,
    /// RDMA_ERROR: no other answer will follow.
    Error(ErrorCode),
}

/// Why there is no RPC reply (RFC 8166 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// ERR_VERS, with the versions that the responder supports.
    Version {
        /// Lowest.
        low: u32,
        /// Highest.
        high: u32,
    },
    /// ERR_CHUNK: the header or its chunks cannot be used.
    Chunk,
}

/// The header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Same as in the RPC message.
    pub xid: u32,
    /// The version field. [`Header::parse`] accepts only 1; an RDMA_ERROR repeats that of the failing call.
    pub version: u32,
    /// Credits requested (call) or granted (reply).
    pub credits: u32,
    /// The message type and its chunks.
    pub body: Body,
}

/// Why a header could not be used, and the answer that a responder owes the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Shorter than [`MIN_HEADER`]: no answer.
    Short,
    /// Another version: answer RDMA_ERROR with ERR_VERS.
    Version {
        /// Transaction id.
        xid: u32,
        /// The requested version.
        version: u32,
    },
    /// Anything else: answer RDMA_ERROR with ERR_CHUNK.
    Chunk {
        /// Transaction id.
        xid: u32,
        /// The rule that it broke.
        why: &'static str,
    },
    /// An unreadable RDMA_ERROR: no answer, because an error in answer to an error could go on without end.
    Error,
}

fn segment(d: &mut Decoder) -> Result<Segment, Malformed> {
    Ok(Segment { handle: d.u32()?, length: d.u32()?, offset: d.u64()? })
}

/// Counts the segments of all lists against one limit.
struct Budget(usize);

impl Budget {
    fn take(&mut self, count: usize) -> Result<(), Malformed> {
        self.0 = self.0.checked_sub(count).ok_or(Malformed("too many segments"))?;
        Ok(())
    }
}

fn write_chunk(d: &mut Decoder, budget: &mut Budget) -> Result<WriteChunk, Malformed> {
    let count = d.length(MAX_SEGMENTS)?;
    budget.take(count)?;
    if count.saturating_mul(16) > d.remaining() {
        return Err(Malformed("stream ends inside a Write chunk"));
    }
    (0..count).map(|_| segment(d)).collect()
}

fn chunks(d: &mut Decoder) -> Result<Chunks, Malformed> {
    let mut budget = Budget(MAX_SEGMENTS);
    let mut chunks = Chunks::default();
    while d.bool()? {
        budget.take(1)?;
        chunks.reads.push(ReadSegment { position: d.u32()?, target: segment(d)? });
    }
    while d.bool()? {
        // An empty chunk also costs: a list of them must not grow without bound.
        budget.take(1)?;
        chunks.writes.push(write_chunk(d, &mut budget)?);
    }
    chunks.reply = d.optional(|d| write_chunk(d, &mut budget))?;
    Ok(chunks)
}

fn emit_segments(e: &mut Encoder, chunk: &WriteChunk) {
    e.u32(chunk.len() as u32);
    for s in chunk {
        emit_segment(e, s);
    }
}

fn emit_segment(e: &mut Encoder, s: &Segment) {
    e.u32(s.handle);
    e.u32(s.length);
    e.u64(s.offset);
}

impl Header {
    /// Reads the header of a received message; the second value is the remainder (the RPC message after RDMA_MSG).
    pub fn parse(message: Bytes) -> Result<(Header, Bytes), Unusable> {
        if message.len() < MIN_HEADER && !Header::is_error(&message) {
            return Err(Unusable::Short);
        }
        let mut d = Decoder::new(message);
        let (Ok(xid), Ok(version), Ok(credits), Ok(procedure)) = (d.u32(), d.u32(), d.u32(), d.u32()) else {
            return Err(Unusable::Short);
        };
        if version != VERSION && procedure != ERROR {
            return Err(Unusable::Version { xid, version });
        }
        let unusable = |Malformed(why)| Unusable::Chunk { xid, why };
        let body = match procedure {
            MSG => Body::Msg(chunks(&mut d).map_err(unusable)?),
            NOMSG => Body::NoMsg(chunks(&mut d).map_err(unusable)?),
            DONE => Body::Done,
            ERROR => Body::Error(error(&mut d).map_err(|_| Unusable::Error)?),
            MSGP => return Err(unusable(Malformed("RFC 8166 4.6.1: RDMA_MSGP"))),
            _ => return Err(unusable(Malformed("RFC 8166 4.2.4: unknown rdma_proc"))),
        };
        Ok((Header { xid, version, credits, body }, d.rest()))
    }

    /// RDMA_ERROR is the one message that may be shorter than [`MIN_HEADER`]: ERR_CHUNK ends after 20 bytes.
    fn is_error(message: &[u8]) -> bool {
        message.get(12..16) == Some(&ERROR.to_be_bytes()) && message.len() >= 20
    }

    /// Appends the header.
    pub fn emit(&self, e: &mut Encoder) {
        e.u32(self.xid);
        e.u32(self.version);
        e.u32(self.credits);
        match &self.body {
            Body::Msg(chunks) => emit_chunks(e, MSG, chunks),
            Body::NoMsg(chunks) => emit_chunks(e, NOMSG, chunks),
            Body::Done => e.u32(DONE),
            Body::Error(ErrorCode::Version { low, high }) => {
                e.u32(ERROR);
                e.u32(ERR_VERS);
                e.u32(*low);
                e.u32(*high);
            }
            Body::Error(ErrorCode::Chunk) => {
                e.u32(ERROR);
                e.u32(ERR_CHUNK);
            }
        }
    }
}

const MSG: u32 = 0;
const NOMSG: u32 = 1;
const MSGP: u32 = 2;
const DONE: u32 = 3;
const ERROR: u32 = 4;
const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

fn emit_chunks(e: &mut Encoder, procedure: u32, chunks: &Chunks) {
    e.u32(procedure);
    for read in &chunks.reads {
        e.bool(true);
        e.u32(read.position);
        emit_segment(e, &read.target);
    }
    e.bool(false);
    for write in &chunks.writes {
        e.bool(true);
        emit_segments(e, write);
    }
    e.bool(false);
    e.optional(chunks.reply.as_ref(), emit_segments);
}

fn error(d: &mut Decoder) -> Result<ErrorCode, Malformed> {
    match d.u32()? {
        ERR_VERS => Ok(ErrorCode::Version { low: d.u32()?, high: d.u32()? }),
        ERR_CHUNK => Ok(ErrorCode::Chunk),
        _ => Err(Malformed("RFC 8166 4.5: unknown rdma_err")),
    }
}

/// A peer's properties, sent at connection set-up (RFC 8797 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// Whether the peer accepts Send with Invalidate on this connection (for a client: whether all its STags may be
    /// invalidated remotely).
    pub remote_invalidation: bool,
    /// Largest message that the peer sends, in bytes: 1024 to 262144.
    pub send_bytes: usize,
    /// Largest message that the peer receives.
    pub receive_bytes: usize,
}

impl Default for PrivateData {
    /// The properties of a peer that sends none (RFC 8797 5.1).
    fn default() -> PrivateData {
        PrivateData {
            remote_invalidation: false,
            send_bytes: DEFAULT_THRESHOLD,
            receive_bytes: DEFAULT_THRESHOLD,
        }
    }
}

/// The format identifier (RFC 8797 section 8).
const FORMAT: [u8; 4] = 0xf6ab_0e18_u32.to_be_bytes();
const FORMAT_VERSION: u8 = 1;
/// Sizes are sent in units of this many bytes (RFC 8797 4.2).
const SIZE_STEP: usize = 1024;

impl PrivateData {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// Finds the structure at any offset in a connection's private data (RFC 8797 5.2); a peer that sent none gets the
    /// defaults.
    pub fn find(private_data: &[u8]) -> PrivateData {
        let size = |steps: u8| usize::from(steps).saturating_add(1).saturating_mul(SIZE_STEP);
        let found =
            private_data.windows(PrivateData::BYTES).find_map(|window| match window.split_first_chunk() {
                Some((&FORMAT, &[FORMAT_VERSION, flags, send, receive])) => Some((flags, send, receive)),
                _ => None,
            });
        let Some((flags, send, receive)) = found else { return PrivateData::default() };
        PrivateData {
            remote_invalidation: flags & 1 == 1,
            send_bytes: size(send),
            receive_bytes: size(receive),
        }
    }

    /// The eight bytes. Sizes are rounded down to whole KiB within 1 to 256 KiB.
    pub fn emit(&self) -> [u8; PrivateData::BYTES] {
        let size = |bytes: usize| u8::try_from((bytes / SIZE_STEP).saturating_sub(1)).unwrap_or(u8::MAX);
        let [a, b, c, d] = FORMAT;
        let flags = u8::from(self.remote_invalidation);
        [a, b, c, d, FORMAT_VERSION, flags, size(self.send_bytes), size(self.receive_bytes)]
    }
}

#[cfg(test)]
mod tests;
