//! Carries out one request: checks it, runs it on the volume, and builds the reply.
//!
//! See doc/proto.md "Request types", "Command flags" and "Error values".

use std::io;

use bytes::Bytes;
use weft_machine::{FileRange, Payload, Pool, rt};
use weft_store::Error as StoreError;
use weft_store::block::{BlockOp, Outcome};
use weft_wire::nbd::transmission::{
    Chunk, Code, Command, Descriptor, Request, SimpleReply, command_flags as flag,
};

use crate::negotiation::{ALLOCATION_ID, Agreed};
use crate::outbox::{Ending, Reply};
use crate::resources::{Limits, Resources};

/// A READ up to this size is read from the page cache here and sent in one call with its header. sendfile saves a
/// copy, but costs a second call.
const READ_AT_ONCE_BYTES: usize = 64 << 10;
/// How much of a longer READ must be readable before its reply begins.
const WARM_BYTES: usize = 1 << 20;

/// Why a request is refused: an error code and a sentence.
pub(crate) type Refusal = (Code, &'static str);

/// Checks a request without the volume. A refused WRITE is still followed by its payload.
pub(crate) fn judge(request: &Request, agreed: &Agreed<'_>, limits: &Limits) -> Result<(), Refusal> {
    let size = agreed.export.block.geometry().size;
    let (may_have, changes) = match request.command {
        Command::READ if agreed.structured => (flag::DF, false),
        Command::READ | Command::FLUSH | Command::CACHE => (0, false),
        Command::WRITE | Command::TRIM => (0, true),
        Command::WRITE_ZEROES => (flag::NO_HOLE | flag::FAST_ZERO, true),
        Command::BLOCK_STATUS if agreed.context => (flag::REQ_ONE, false),
        Command::BLOCK_STATUS => return Err((Code::Invalid, "no metadata context was chosen")),
        _ => return Err((Code::Invalid, "unknown command")),
    };
    // "NBD_CMD_FLAG_FUA": valid with every command.
    if request.flags & !(may_have | flag::FUA) != 0 {
        return Err((Code::Invalid, "a flag that this command does not support"));
    }
    if changes && agreed.export.read_only {
        return Err((Code::Permission, "the volume is read-only"));
    }
    if request.command == Command::FLUSH {
        return match (request.offset, request.len) {
            (0, 0) => Ok(()),
            _ => Err((Code::Invalid, "a flush has no range")),
        };
    }
    let end = request.offset.checked_add(request.len.into());
    if end.is_none_or(|end| end > size) {
        // "Error values": a WRITE past the end finds no space there.
        return Err((if changes { Code::NoSpace } else { Code::Invalid }, "past the end of the volume"));
    }
    if request.command == Command::READ && request.len > limits.request_bytes {
        return Err((Code::Invalid, "longer than the largest block size"));
    }
    if request.command == Command::BLOCK_STATUS && request.len == 0 {
        return Err((Code::Invalid, "the status of nothing"));
    }
    Ok(())
}

/// The operation on the volume. `data` is a WRITE's payload. `None`: there is nothing to do.
pub(crate) fn operation(request: &Request, data: Vec<Bytes>, limits: &Limits) -> Option<BlockOp> {
    let Request { offset, len, .. } = *request;
    let durable = request.flags & flag::FUA != 0;
    if len == 0 && request.command != Command::FLUSH {
        return None;
    }
    match request.command {
        Command::READ => Some(BlockOp::Read { offset, len: len as usize }),
        Command::WRITE => Some(BlockOp::Write { offset, data, durable }),
        Command::FLUSH => Some(BlockOp::Flush),
        Command::TRIM => Some(BlockOp::Trim { offset, len: len.into(), durable }),
        Command::WRITE_ZEROES => Some(BlockOp::WriteZeroes {
            offset,
            len: len.into(),
            durable,
            keep_space: request.flags & flag::NO_HOLE != 0,
            fast: request.flags & flag::FAST_ZERO != 0,
        }),
        Command::BLOCK_STATUS => {
            let max_extents = if request.flags & flag::REQ_ONE != 0 { 1 } else { limits.extents };
            Some(BlockOp::Status { offset, len: len.into(), max_extents })
        }
        // CACHE is only advice, and the page cache fills itself.
        _ => None,
    }
}

/// Carries a request out.
pub(crate) async fn answer(
    resources: &Resources,
    agreed: &Agreed<'_>,
    request: Request,
    data: Vec<Bytes>,
) -> Reply {
    let Some(op) = operation(&request, data, &resources.limits) else { return done(agreed, &request) };
    match agreed.export.block.submit(op).await {
        Ok(Outcome::Done) => done(agreed, &request),
        Ok(Outcome::Data(payload)) => match at_hand(payload, &resources.pool).await {
            Ok(payload) => read(agreed, &request, payload),
            Err(e) => failed(agreed, &request, &e.into()),
        },
        Ok(Outcome::Extents(extents)) => {
            let descriptors = extents.iter().map(|extent| Descriptor {
                // A range is no longer than a request's length field allows.
                len: u32::try_from(extent.len).unwrap_or(request.len),
                flags: if extent.hole { Descriptor::HOLE | Descriptor::ZERO } else { 0 },
            });
            let status = Chunk::BlockStatus { context: ALLOCATION_ID, descriptors: descriptors.collect() };
            bytes(status.emit(request.cookie, true))
        }
        Err(e) => failed(agreed, &request, &e),
    }
}

/// Brings a short payload into memory, and the beginning of a long one into the page cache: an unreadable payload
/// becomes an error now, and no core waits for a disk later.
async fn at_hand(payload: Payload, pool: &Pool) -> io::Result<Payload> {
    let range = match payload {
        Payload::Chain(_) => return Ok(payload),
        Payload::File(range) => range,
    };
    if range.len > READ_AT_ONCE_BYTES {
        range.warm(0, range.len.min(WARM_BYTES)).await?;
        return Ok(Payload::File(range));
    }
    match at_once(&range, pool) {
        Some(bytes) => Ok(Payload::from(bytes)),
        None => Ok(Payload::Chain(Payload::File(range).into_chain(pool).await?)),
    }
}

/// The range's bytes, if they are in the page cache and the pool has a buffer.
fn at_once(range: &FileRange, pool: &Pool) -> Option<Bytes> {
    let mut buf = pool.try_alloc(range.len)?;
    buf.set_len(range.len);
    let window = buf.into_window();
    // A failure here recurs, with its reason, when the range is read the slow way.
    range.try_read_into(&window)?.ok()?;
    Some(window.try_into_buf().ok()?.freeze())
}

fn read(agreed: &Agreed<'_>, request: &Request, payload: Payload) -> Reply {
    let Request { cookie, offset, len, .. } = *request;
    let in_file = matches!(payload, Payload::File(_));
    let (head, ending) = if agreed.structured {
        // "NBD_CMD_READ": a chunk whose bytes may still prove unreadable is not the last one.
        (Chunk::Data { offset, len }.emit(cookie, !in_file), Ending::Chunk { cookie, offset })
    } else {
        (SimpleReply { cookie, error: None }.emit().to_vec(), Ending::Simple)
    };
    let mut reply = bytes(head);
    match payload {
        Payload::Chain(chain) => reply.bytes.extend(chain),
        Payload::File(range) => reply.file = Some((range, ending)),
    }
    reply
}

fn done(agreed: &Agreed<'_>, request: &Request) -> Reply {
    let Request { cookie, command, .. } = *request;
    // "Simple reply message": with structured replies, even an empty READ is answered by a chunk.
    if agreed.structured && command == Command::READ {
        return bytes(Chunk::None.emit(cookie, true));
    }
    bytes(SimpleReply { cookie, error: None }.emit().to_vec())
}

/// The reply to a refused request.
pub(crate) fn refused(agreed: &Agreed<'_>, request: &Request, refusal: Refusal) -> Reply {
    let (code, why) = refusal;
    tracing::debug!(export = agreed.export.name, ?request, why, "refused");
    error(agreed, request, code, why.to_owned())
}

/// The reply to a request that failed on the volume.
pub(crate) fn failed(agreed: &Agreed<'_>, request: &Request, why: &StoreError) -> Reply {
    let code = match why {
        StoreError::Invalid => Code::Invalid,
        StoreError::NoSpace | StoreError::OverQuota | StoreError::TooLarge => Code::NoSpace,
        StoreError::NotSupported => Code::NotSupported,
        StoreError::ReadOnly | StoreError::Access => Code::Permission,
        _ => Code::Io,
    };
    // That writing zeros is not fast here is a reply, not a failure.
    if code == Code::Io
        && let Some(left_out) = agreed.failures.pass(rt::now())
    {
        tracing::warn!(export = agreed.export.name, ?request, "the volume failed: {why}{left_out}");
    }
    error(agreed, request, code, why.to_string())
}

fn error(agreed: &Agreed<'_>, request: &Request, code: Code, message: String) -> Reply {
    if agreed.structured {
        return bytes(Chunk::Error { code, offset: None, message }.emit(request.cookie, true));
    }
    bytes(SimpleReply { cookie: request.cookie, error: Some(code) }.emit().to_vec())
}

fn bytes(head: Vec<u8>) -> Reply {
    Reply { bytes: vec![head.into()], file: None, counted_bytes: 0 }
}
