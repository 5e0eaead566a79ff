//! Transmission: requests of 28 bytes, simple replies (16 bytes), replies in chunks (20 bytes each), and the payload
//! after them.
//!
//! Implements doc/proto.md "Request message", "Simple reply message" and "Structured reply chunk message": [`Request`],
//! [`SimpleReply`] and [`Chunk`]. Payload does not pass through this module; the headers give its length.
//!
//! ```text
//! request       4 0x25609513 | 2 flags | 2 type | 8 cookie | 8 offset | 4 length | data of a WRITE
//! simple reply  4 0x67446698 | 4 error | 8 cookie | data of a READ
//! chunk         4 0x668e33ef | 2 flags | 2 type | 8 cookie | 4 length | payload:
//!   NONE          nothing
//!   OFFSET_DATA   8 offset | data
//!   OFFSET_HOLE   8 offset | 4 length
//!   BLOCK_STATUS  4 context | descriptors, each 4 length | 4 flags
//!   ERROR         4 error | 2 length | message           ERROR_OFFSET adds 8 offset
//! ```

use super::{Malformed, Reader};

/// Length of a request without its data.
pub const REQUEST_LEN: usize = 28;
/// Length of a simple reply without its data.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Length of a chunk before its payload.
pub const CHUNK_HEADER_LEN: usize = 20;
/// Length of a data chunk before the data.
pub const DATA_CHUNK_LEN: usize = CHUNK_HEADER_LEN + 8;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const FLAG_DONE: u16 = 1 << 0;

/// Flags of requests.
pub mod command_flags {
    /// The request is answered once it is durable.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES keeps the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ is answered with one data chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS returns a single extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES fails unless it is faster than a WRITE.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// The type of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command(pub u16);

impl Command {
    /// Read from the export.
    pub const READ: Command = Command(0);
    /// Write to the export.
    pub const WRITE: Command = Command(1);
    /// Disconnect; no reply.
    pub const DISC: Command = Command(2);
    /// Make answered writes durable.
    pub const FLUSH: Command = Command(3);
    /// The range is no longer needed.
    pub const TRIM: Command = Command(4);
    /// Load the range into the cache.
    pub const CACHE: Command = Command(5);
    /// Make the range read as zeros.
    pub const WRITE_ZEROES: Command = Command(6);
    /// Describe the allocation of the range.
    pub const BLOCK_STATUS: Command = Command(7);
}

/// A client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// [`command_flags`].
    pub flags: u16,
    /// The command.
    pub command: Command,
    /// Returned in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Request {
    /// Parses the header.
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Result<Request, Malformed> {
        let mut r = Reader(bytes);
        match r.u32()? {
            REQUEST_MAGIC => Ok(Request {
                flags: r.u16()?,
                command: Command(r.u16()?),
                cookie: r.u64()?,
                offset: r.u64()?,
                len: r.u32()?,
            }),
            other => Err(Malformed::Magic(other.into())),
        }
    }

    /// The header on the wire.
    pub fn emit(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// "Error values": the errors that a reply may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Code {
    /// The export is read-only.
    Permission = 1,
    /// The medium failed.
    Io = 5,
    /// No memory.
    Memory = 12,
    /// The request is invalid.
    Invalid = 22,
    /// Past the end of the export, or no space left.
    NoSpace = 28,
    /// Too long for one chunk.
    Overflow = 75,
    /// Unsupported, or not fast.
    NotSupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Code {
    const ALL: [Code; 8] = [
        Code::Permission,
        Code::Io,
        Code::Memory,
        Code::Invalid,
        Code::NoSpace,
        Code::Overflow,
        Code::NotSupported,
        Code::Shutdown,
    ];

    /// "Error values": a client treats an unknown value as EINVAL.
    fn from_wire(number: u32) -> Code {
        Code::ALL.into_iter().find(|code| *code as u32 == number).unwrap_or(Code::Invalid)
    }
}

/// A reply without chunks; the data of a successful READ follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimpleReply {
    /// The request's cookie.
    pub cookie: u64,
    /// The error, if any.
    pub error: Option<Code>,
}

impl SimpleReply {
    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; SIMPLE_REPLY_LEN] {
        let mut bytes = [0; SIMPLE_REPLY_LEN];
        bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.map_or(0, |code| code as u32).to_be_bytes());
        bytes[8..].copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }
}

/// The status of one extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Length in bytes, not zero.
    pub len: u32,
    /// For `base:allocation`: [`Descriptor::HOLE`], [`Descriptor::ZERO`].
    pub flags: u32,
}

impl Descriptor {
    /// Nothing is allocated here.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// A chunk of a structured reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// No content.
    None,
    /// `len` bytes from `offset`; the data follows the emitted header.
    Data {
        /// Offset in the export.
        offset: u64,
        /// Bytes, not zero.
        len: u32,
    },
    /// `len` zeros from `offset`.
    Hole {
        /// Offset in the export.
        offset: u64,
        /// Bytes, not zero.
        len: u32,
    },
    /// The status of the range from its start, but not necessarily to its end.
    BlockStatus {
        /// The context's id.
        context: u32,
        /// At least one.
        descriptors: Vec<Descriptor>,
    },
    /// An error, with an explanation for people.
    Error {
        /// The error.
        code: Code,
        /// Its offset, if known.
        offset: Option<u64>,
        /// The explanation.
        message: String,
    },
}

const TYPE_NONE: u16 = 0;
const TYPE_OFFSET_DATA: u16 = 1;
const TYPE_OFFSET_HOLE: u16 = 2;
const TYPE_BLOCK_STATUS: u16 = 5;
const TYPE_ERROR: u16 = 1 << 15 | 1;
const TYPE_ERROR_OFFSET: u16 = 1 << 15 | 2;

/// The fixed part of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// Whether this is the last chunk of its reply.
    pub done: bool,
    /// Number of the chunk's type.
    pub kind: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Length of the payload in bytes.
    pub len: u32,
}

impl ChunkHeader {
    fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CHUNK_HEADER_LEN.saturating_add(self.len.min(64) as usize));
        bytes.extend(CHUNK_MAGIC.to_be_bytes());
        bytes.extend(if self.done { FLAG_DONE } else { 0 }.to_be_bytes());
        bytes.extend(self.kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.len.to_be_bytes());
        bytes
    }
}

/// The next header in the server's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyHeader {
    /// A simple reply of [`SIMPLE_REPLY_LEN`] bytes.
    Simple(SimpleReply),
    /// A chunk header of [`CHUNK_HEADER_LEN`] bytes.
    Chunk(ChunkHeader),
}

impl ReplyHeader {
    /// Parses the header at the start of `bytes`, which may be longer.
    pub fn parse(bytes: &[u8]) -> Result<ReplyHeader, Malformed> {
        let mut r = Reader(bytes);
        match r.u32()? {
            SIMPLE_REPLY_MAGIC => {
                let error = r.u32()?;
                let cookie = r.u64()?;
                let error = (error != 0).then(|| Code::from_wire(error));
                Ok(ReplyHeader::Simple(SimpleReply { cookie, error }))
            }
            CHUNK_MAGIC => {
                // "Structured reply flags": unknown ones are ignored.
                let done = r.u16()? & FLAG_DONE != 0;
                Ok(ReplyHeader::Chunk(ChunkHeader { done, kind: r.u16()?, cookie: r.u64()?, len: r.u32()? }))
            }
            other => Err(Malformed::Magic(other.into())),
        }
    }
}

impl Chunk {
    /// The chunk on the wire, without the bytes of [`Chunk::Data`].
    pub fn emit(&self, cookie: u64, done: bool) -> Vec<u8> {
        let head = |kind, len| ChunkHeader { done, kind, cookie, len }.emit();
        match self {
            Chunk::None => head(TYPE_NONE, 0),
            Chunk::Data { offset, len } => {
                let mut bytes = head(TYPE_OFFSET_DATA, len.saturating_add(8));
                bytes.extend(offset.to_be_bytes());
                bytes
            }
            Chunk::Hole { offset, len } => {
                let mut bytes = head(TYPE_OFFSET_HOLE, 12);
                bytes.extend(offset.to_be_bytes());
                bytes.extend(len.to_be_bytes());
                bytes
            }
            Chunk::BlockStatus { context, descriptors } => {
                let mut bytes =
                    head(TYPE_BLOCK_STATUS, (descriptors.len() as u32).saturating_mul(8).saturating_add(4));
                bytes.extend(context.to_be_bytes());
                for descriptor in descriptors {
                    bytes.extend(descriptor.len.to_be_bytes());
                    bytes.extend(descriptor.flags.to_be_bytes());
                }
                bytes
            }
            Chunk::Error { code, offset, message } => {
                let kind = if offset.is_some() { TYPE_ERROR_OFFSET } else { TYPE_ERROR };
                let tail = offset.map(u64::to_be_bytes);
                let len = message.len().saturating_add(if tail.is_some() { 6 + 8 } else { 6 });
                let mut bytes = head(kind, len as u32);
                bytes.extend((*code as u32).to_be_bytes());
                bytes.extend((message.len() as u16).to_be_bytes());
                bytes.extend(message.as_bytes());
                bytes.extend(tail.into_iter().flatten());
                bytes
            }
        }
    }

    /// Length of the payload before the data: all of it, except for a data chunk.
    pub fn fixed_len(header: &ChunkHeader) -> u32 {
        if header.kind == TYPE_OFFSET_DATA { header.len.min(8) } else { header.len }
    }

    /// Parses the payload of a chunk, without the bytes of [`Chunk::Data`].
    pub fn parse(header: &ChunkHeader, payload: &[u8]) -> Result<Chunk, Malformed> {
        let mut r = Reader(payload);
        let chunk = match header.kind {
            TYPE_NONE if !header.done => return Err(Malformed::Range("flags of a last chunk")),
            TYPE_NONE => Chunk::None,
            TYPE_OFFSET_DATA => {
                let len = header.len.checked_sub(8).filter(|len| *len > 0);
                Chunk::Data { offset: r.u64()?, len: len.ok_or(Malformed::Range("length of data"))? }
            }
            TYPE_OFFSET_HOLE => match (r.u64()?, r.u32()?) {
                (_, 0) => return Err(Malformed::Range("length of a hole")),
                (offset, len) => Chunk::Hole { offset, len },
            },
            TYPE_BLOCK_STATUS => {
                let context = r.u32()?;
                let mut descriptors = Vec::with_capacity(r.0.len() / 8);
                while !r.0.is_empty() {
                    descriptors.push(Descriptor { len: r.u32()?, flags: r.u32()? });
                }
                if descriptors.is_empty() || descriptors.iter().any(|descriptor| descriptor.len == 0) {
                    return Err(Malformed::Range("descriptors"));
                }
                Chunk::BlockStatus { context, descriptors }
            }
            TYPE_ERROR | TYPE_ERROR_OFFSET => {
                let code = match r.u32()? {
                    0 => return Err(Malformed::Range("error")),
                    code => Code::from_wire(code),
                };
                let len = usize::from(r.u16()?);
                let message = String::from_utf8_lossy(r.bytes(len)?).into_owned();
                let offset = if header.kind == TYPE_ERROR_OFFSET { Some(r.u64()?) } else { None };
                Chunk::Error { code, offset, message }
            }
            _ => return Err(Malformed::Range("chunk type")),
        };
        r.end()?;
        Ok(chunk)
    }
}
