//! WRITE: writes slices of the message, or payload from the client's memory, to the file.
//!
//! Spec: [MS-SMB2] 3.3.5.13, [MS-FSA] 2.1.5.4. Payload is in the message's buffer, in the buffer that was fetched into,
//! or in none if the transport reaches the file's own memory. Nothing is copied, except that encrypted RDMA payload is
//! decrypted into another buffer. The specification refuses WRITE_THROUGH without unbuffered I/O; this server
//! makes the data durable instead, which is what the client wants.

use bytes::Bytes;
use weft_machine::PayloadSource;
use weft_store::vfs::{Error, Kind};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::rdma_transform::{Crypto, RdmaTransformId};
use weft_wire::smb2::write::{Flags, Request, Response};

use super::afp_streams::{self, AfpStream};
use super::opens::Open;
use super::read::Route;
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// Offset that means the end of the file (FILE_WRITE_TO_END_OF_FILE; [MS-FSA] 2.1.5.4: any negative one except -2).
const AT_END: u64 = u64::MAX;
const WRITE: AccessMask = AccessMask(AccessMask::FILE_WRITE_DATA.0 | AccessMask::FILE_APPEND_DATA.0);

/// Answers a WRITE whose payload is in the message, if it succeeds and has to wait for nothing; `None`, with nothing done, otherwise.
pub(crate) fn try_write(cx: &OpContext) -> Option<Answer> {
    let request = Request::parse(cx.message()).ok()?;
    if !matches!(request.channel, Channel::None) {
        return None;
    }
    let open = cx.open(request.file).ok()?;
    open.require_any(WRITE).ok()?;
    let len = u32::try_from(request.data.len()).ok().filter(|len| (1..=cx.max_payload()).contains(len))?;
    let file = open.file.as_ref()?;
    let Ok(Target::At(offset)) = target(request.offset, len) else { return None };
    let is_told = open.audited.get().is_some();
    if is_told || is_through(&open, request.flags) || AfpStream::of(cx, &open) == Some(AfpStream::Info) {
        return None;
    }
    open.claim.may_write(offset, u64::from(len)).ok()?;
    // What has failed is written again, and reported then. The same bytes go to the same place, so all that may remain of the first
    // failure is that the health of the disk was told of it twice.
    file.write_now(offset, std::slice::from_ref(&request.data))?.ok()?;
    open.has_written();
    cx.set_written(len, false);
    Some(Ok(answered(len)))
}

fn answered(count: u32) -> Reply {
    let mut reply = Reply::new();
    Response { count }.emit(&mut reply.message);
    reply
}

pub(crate) async fn write(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let route = Route::of_write(cx, &request.channel)?;
    let (invalidate, by_rdma) = (route.invalidate, route.segments.is_some());
    match carry_out(cx, request, route).await {
        Ok(count) => {
            cx.set_written(count, by_rdma);
            Ok(Reply { invalidate, ..answered(count) })
        }
        Err(failure) => Err(Failure { invalidate, ..failure }),
    }
}

async fn carry_out(cx: &OpContext, request: Request, route: Route) -> Result<u32, Failure> {
    let open = cx.open(request.file)?;
    open.require_any(WRITE)?;
    let len = match &route.segments {
        None => u32::try_from(request.data.len()).map_err(|_| NtStatus::INVALID_PARAMETER)?,
        Some(segments) => {
            let room = weft_transport::Segment::total(segments);
            let empty = segments.first().is_none_or(|segment| segment.len == 0);
            if !request.data.is_empty() || empty || room < u64::from(request.remaining_bytes) {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
            request.remaining_bytes
        }
    };
    if len > cx.max_payload() || (len == 0 && route.segments.is_some()) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let Some(file) = &open.file else {
        let directory = open.kind == Kind::Dir;
        return Err(if directory { NtStatus::INVALID_DEVICE_REQUEST } else { NtStatus::ACCESS_DENIED }.into());
    };
    let at = target(request.offset, len)?;
    if len == 0 {
        return Ok(0);
    }
    let mut remote = route.segments.map(|mut segments| {
        clip(&mut segments, len);
        cx.channel().remote(segments)
    });
    let mut data = request.data;
    // What has to be restored, or goes to wherever the end is by then, is fetched first.
    if (route.crypto.is_some() || matches!(at, Target::End))
        && let Some(payload) = remote.take()
    {
        data = payload.fetch().await.map_err(Error::Payload)?;
        if let Some(crypto) = &route.crypto {
            data = restored(cx, data, crypto).await?;
        }
    }
    match at {
        Target::At(offset) if AfpStream::of(cx, &open) == Some(AfpStream::Info) => {
            open.claim.may_write(offset, u64::from(len))?;
            let whole = Box::pin(afp_streams::with_start(cx, file, offset, &data)).await?;
            file.write(0, &[whole]).await?;
        }
        Target::At(offset) => {
            let admit = || open.claim.may_write(offset, u64::from(len));
            admit()?;
            let source = match &remote {
                Some(payload) => PayloadSource::Remote { payload: &**payload, len: len as usize },
                None => PayloadSource::Memory(std::slice::from_ref(&data)),
            };
            // Locks may come while the data travels.
            file.write_from::<Failure>(offset, source, async || Ok(admit().map(|()| None)?)).await?;
        }
        Target::End => {
            file.append::<Failure>(&data, |end| Ok(open.claim.may_write(end, u64::from(len))?)).await?;
        }
    }
    open.written(len.into()).await;
    // What was fetched does not wait for the disk.
    drop((data, remote));
    if is_through(&open, request.flags) {
        file.sync_for(&open.told_losses).await?;
    }
    Ok(len)
}

/// Whether a write is answered only once it is durable.
fn is_through(open: &Open, flags: Flags) -> bool {
    flags.contains(Flags::WRITE_THROUGH) || open.options.contains(CreateOptions::WRITE_THROUGH)
}

/// Where to write.
#[derive(Clone, Copy)]
enum Target {
    At(u64),
    /// At the end of the file at the time of the write.
    End,
}

/// At the requested offset. This includes opens with append access only: Windows writes there too (3.3.5.13, note 364;
/// [MS-FSA] 2.1.5.4 makes no difference). A client that wants the end of the file says so.
fn target(offset: u64, len: u32) -> Result<Target, NtStatus> {
    if offset == AT_END {
        return Ok(Target::End);
    }
    let end = offset.checked_add(u64::from(len)).ok_or(NtStatus::INVALID_PARAMETER)?;
    if i64::try_from(end).is_err() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(Target::At(offset))
}

/// The first `len` bytes of the client's memory.
fn clip(segments: &mut Vec<weft_transport::Segment>, len: u32) {
    let mut left = len;
    for segment in segments.iter_mut() {
        segment.len = segment.len.min(left);
        left = left.saturating_sub(segment.len);
    }
    segments.retain(|segment| segment.len > 0);
}

/// Recovers the client's payload: decrypts it, or verifies its signature.
async fn restored(cx: &OpContext, data: Bytes, crypto: &Crypto) -> Result<Bytes, Failure> {
    if crypto.kind == RdmaTransformId::SIGNING {
        let right =
            cx.signed().is_some_and(|key| key.verify_payload(&crypto.nonce, &crypto.signature, &data));
        return if right { Ok(data) } else { Err(NtStatus::INVALID_SIGNATURE.into()) };
    }
    let opener = cx.session().keys.opener.as_ref().ok_or(NtStatus::INVALID_PARAMETER)?;
    // The payload holds a buffer meanwhile.
    let mut plain = cx.server().spare.to_decrypt(data.len()).await;
    plain.set_len(data.len());
    opener
        .open_payload(&crypto.nonce, &crypto.signature, &data, &mut plain)
        .map_err(|_| NtStatus::AUTH_TAG_MISMATCH)?;
    Ok(plain.freeze())
}
