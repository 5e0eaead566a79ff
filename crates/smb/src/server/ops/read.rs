//! READ: answers with a range of the file, which is read here only if it is small and part of the message.
//!
//! Spec: [MS-SMB2] 3.3.5.12. It waits for a file only if its file system may block: otherwise whoever sends the answer
//! reads what is not in memory. A large READ needs no buffer here then. The answer carries the range; the transport splices it, reads it into a send buffer, or
//! writes it into the client's memory by RDMA. Payload of an encrypted session never moves by RDMA unprotected: without
//! RDMA transforms the request is an invalid parameter.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_machine::Payload;
use weft_store::Error;
use weft_store::vfs::{Kind, Read};
use weft_transport::{Segment, Stag, must_be_read};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::channel::{Channel, Descriptors};
use weft_wire::smb2::rdma_transform::{Crypto, RdmaTransformId};
use weft_wire::smb2::read::{Flags, RESPONSE_DATA_AT, Request, Response};
use weft_wire::smb2::{Dialect, HEADER_LEN, NtStatus};

use super::opens::Open;
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// Up to this size payload is sent in a gathered message, not by sendfile, so it is read at once.
const READ_NOW_BYTES: usize = 16 << 10;

/// Answers a READ; `None`, with nothing done, if it would have to wait.
pub(crate) fn try_read(cx: &OpContext) -> Option<Answer> {
    let (request, route) = match parsed(cx) {
        Ok(parsed) => parsed,
        Err(failure) => return Some(Err(failure)),
    };
    let answer = match Checked::new(cx, &request, &route) {
        Err(failure) => Err(failure),
        Ok(checked) => match checked.submit(cx, &request, &route) {
            Err(failure) => Err(failure),
            Ok(Read::Later(_)) => return None,
            Ok(Read::Now(Ok(data))) if must_be_read_here(&data, &route) => return None,
            Ok(Read::Now(data)) => {
                data.map_err(Failure::from).and_then(|data| checked.reply(cx, &request, &route, data))
            }
        },
    };
    Some(invalidating(answer, &route))
}

pub(crate) async fn read(cx: &OpContext) -> Answer {
    let (request, route) = parsed(cx)?;
    let answer = async {
        let checked = Checked::new(cx, &request, &route)?;
        let data = checked.submit(cx, &request, &route)?.data().await?;
        let data = match must_be_read_here(&data, &route) {
            true => Box::pin(cx.connection().read_into_room(data)).await.map_err(Error::from)?,
            false => data,
        };
        checked.reply(cx, &request, &route, data)
    };
    let answer = answer.await;
    invalidating(answer, &route)
}

/// Whether the payload must not be queued unread. By RDMA it travels beside the messages.
fn must_be_read_here(data: &Payload, route: &Route) -> bool {
    route.segments.is_none() && matches!(data, Payload::File(range) if must_be_read(range))
}

fn parsed(cx: &OpContext) -> Result<(Request, Route), Failure> {
    let request = Request::parse(cx.message())?;
    let route = Route::of_read(cx, &request.channel)?;
    Ok((request, route))
}

fn invalidating(mut answer: Answer, route: &Route) -> Answer {
    match &mut answer {
        Ok(reply) => reply.invalidate = route.invalidate,
        Err(failure) => failure.invalidate = route.invalidate,
    }
    answer
}

/// A READ that passed all checks.
struct Checked {
    open: Arc<Open>,
    /// Bytes to read.
    len: usize,
}

impl Checked {
    fn new(cx: &OpContext, request: &Request, route: &Route) -> Result<Checked, Failure> {
        let open = cx.open(request.file)?;
        // Execute access suffices for reading over the network (3.3.5.12).
        open.require_any(AccessMask::FILE_READ_DATA | AccessMask::FILE_EXECUTE)?;
        if request.length > cx.max_payload() {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        if let Some(segments) = &route.segments {
            let room = Segment::total(segments);
            if request.length == 0 || room < u64::from(request.length) {
                return Err(NtStatus::INVALID_PARAMETER.into());
            }
        }
        if open.file.is_none() {
            let directory = open.kind == Kind::Dir;
            return Err(
                if directory { NtStatus::INVALID_DEVICE_REQUEST } else { NtStatus::ACCESS_DENIED }.into()
            );
        }
        // [MS-FSA] 2.1.5.3: the range must end within 63 bits.
        if request.offset.checked_add(u64::from(request.length)).is_none_or(|end| i64::try_from(end).is_err())
        {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        open.claim.may_read(request.offset, u64::from(request.length))?;
        let len = match route.segments {
            Some(_) => request.length as usize,
            None => inline_len(cx, request)?,
        };
        Ok(Checked { open, len })
    }

    fn submit(&self, cx: &OpContext, request: &Request, route: &Route) -> Result<Read<'_>, Failure> {
        let Some(file) = &self.open.file else { return Err(NtStatus::ACCESS_DENIED.into()) };
        let short = route.segments.is_none() && (1..=READ_NOW_BYTES).contains(&self.len);
        let now = (short && !(leaves_as_it_is(cx, request) && file.is_mapped()))
            .then(|| file.read_now(&cx.server().config.pool, request.offset, self.len))
            .flatten();
        Ok(match now {
            Some(data) => Read::Now(Ok(data)),
            None => file.read(request.offset, self.len),
        })
    }

    fn reply(&self, cx: &OpContext, request: &Request, route: &Route, data: Payload) -> Answer {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if len < request.minimum_count || (len == 0 && request.length > 0) {
            return Err(NtStatus::END_OF_FILE.into());
        }
        if let Some(audited) = self.open.audited.get() {
            audited.read(len.into());
        }
        self.open.position.store(request.offset.saturating_add(u64::from(len)), Ordering::Relaxed);
        let mut reply = Reply::with_capacity(RESPONSE_DATA_AT - HEADER_LEN);
        match &route.segments {
            None => Response::emit_head(len, 0, &mut reply.message),
            Some(segments) => {
                route.emit_head(cx, len, &mut reply);
                reply.segments = clip(segments, len);
            }
        }
        reply.compress = request.flags.contains(Flags::REQUEST_COMPRESSED);
        reply.payload = Some(data).filter(|data: &Payload| !data.is_empty());
        Ok(reply)
    }
}

/// Whether payload inside a message reaches the socket unchanged: then the transport can send it from a mapping.
/// Payload that is signed, encrypted, compressed or packed into Sends is processed here, so a buffer is better than a
/// range.
fn leaves_as_it_is(cx: &OpContext, request: &Request) -> bool {
    let touched =
        cx.encrypted() || cx.signed().is_some() || request.flags.contains(Flags::REQUEST_COMPRESSED);
    !touched && cx.channel().limits().max_rdma.is_none()
}

/// The length of a READ inside a message. NEGOTIATE may have announced more, for RDMA: on an encrypted session Linux
/// requests that much inline, from a transport that carries only a fraction of it. The client requests the remainder.
fn inline_len(cx: &OpContext, request: &Request) -> Result<usize, NtStatus> {
    let most = cx.max_inline();
    if request.minimum_count as usize > most {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(most.min(request.length as usize))
}

/// The first `len` bytes of the client's memory.
fn clip(segments: &[Segment], len: u32) -> Vec<Segment> {
    let mut left = len;
    let mut clipped = Vec::with_capacity(segments.len());
    for segment in segments {
        if left == 0 {
            break;
        }
        let len = segment.len.min(left);
        left = left.saturating_sub(len);
        clipped.push(Segment { len, ..*segment });
    }
    clipped
}

/// How the payload of a READ or WRITE moves.
#[derive(Default)]
pub(super) struct Route {
    /// Through this memory of the client; `None`: in the message.
    pub(super) segments: Option<Vec<Segment>>,
    /// The region that the answer invalidates, on success or failure.
    pub(super) invalidate: Option<Stag>,
    /// The transform to apply to a READ's payload.
    transform: Option<RdmaTransformId>,
    /// The transform that was applied to a WRITE's payload.
    pub(super) crypto: Option<Crypto>,
}

impl Route {
    /// The route that a READ asks for, if the connection supports it (3.3.5.12). If messages are encrypted or signed,
    /// RDMA payload is too, provided that was negotiated; otherwise payload of encrypted messages does not move by
    /// RDMA.
    fn of_read(cx: &OpContext, channel: &Channel) -> Result<Route, Failure> {
        let Some((descriptors, revoke)) = plain(cx, channel)? else { return Ok(Route::default()) };
        let route = Route::by(cx, descriptors, revoke)?;
        let transforms = cx.connection().negotiated().transforms;
        let transform = match (cx.encrypted(), cx.signed().is_some()) {
            (true, _) if transforms.encryption => Some(RdmaTransformId::ENCRYPTION),
            (true, _) => return Err(route.refused()),
            (false, true) if transforms.signing => Some(RdmaTransformId::SIGNING),
            _ => None,
        };
        Ok(Route { transform, ..route })
    }

    /// The route of a WRITE (3.3.5.13), whose request describes the transform of the payload.
    pub(super) fn of_write(cx: &OpContext, channel: &Channel) -> Result<Route, Failure> {
        let transforms = cx.connection().negotiated().transforms;
        if let (Channel::RdmaTransform(transformed), Dialect::V3_1_1) = (channel, cx.dialect()) {
            let route = Route::by(cx, &transformed.descriptors, transformed.revoke)?;
            let fits = match transformed.crypto.kind {
                RdmaTransformId::ENCRYPTION => cx.encrypted() && transforms.encryption,
                _ => !cx.encrypted() && cx.signed().is_some() && transforms.signing,
            };
            return match fits {
                true => Ok(Route { crypto: Some(transformed.crypto.clone()), ..route }),
                false => Err(route.refused()),
            };
        }
        let Some((descriptors, revoke)) = plain(cx, channel)? else { return Ok(Route::default()) };
        let route = Route::by(cx, descriptors, revoke)?;
        // A client that requires signing and could sign this payload does not leave it unsigned; an attacker would.
        let must_sign = cx.session().signing_required || cx.connection().negotiated().signing_required();
        let unsigned = must_sign && transforms.signing;
        if cx.encrypted() || unsigned { Err(route.refused()) } else { Ok(route) }
    }

    fn by(cx: &OpContext, descriptors: &Descriptors, revoke: bool) -> Result<Route, Failure> {
        if cx.channel().limits().max_rdma.is_none() {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        let segments = segments(descriptors);
        let invalidate = segments.first().filter(|_| revoke).map(|segment| segment.stag);
        Ok(Route { segments: Some(segments), invalidate, ..Route::default() })
    }

    fn refused(self) -> Failure {
        Failure { invalidate: self.invalidate, ..NtStatus::INVALID_PARAMETER.into() }
    }

    /// Writes the payload's length into the body, and reserves room for the description of the transform.
    fn emit_head(&self, cx: &OpContext, len: u32, reply: &mut Reply) {
        let nonce_len = match self.transform {
            None => return Response::emit_head(0, len, &mut reply.message),
            Some(RdmaTransformId::ENCRYPTION) => {
                cx.session().keys.sealer.as_ref().map_or(0, |sealer| sealer.nonce_len())
            }
            Some(_) => cx.signed().map_or(0, |key| key.payload_nonce_len()),
        };
        Response::emit_transformed(nonce_len, len, &mut reply.message);
        reply.transform = self.transform;
    }
}

/// The memory of a channel without transform, and whether to invalidate it. Before 3.0 the field is reserved.
fn plain<'a>(cx: &OpContext, channel: &'a Channel) -> Result<Option<(&'a Descriptors, bool)>, Failure> {
    let dialect = cx.dialect();
    match channel {
        _ if dialect < Dialect::V3_0 => Ok(None),
        Channel::None => Ok(None),
        Channel::RdmaV1(descriptors) => Ok(Some((descriptors, false))),
        Channel::RdmaV1Invalidate(descriptors) if dialect >= Dialect::V3_0_2 => Ok(Some((descriptors, true))),
        _ => Err(NtStatus::INVALID_PARAMETER.into()),
    }
}

fn segments(descriptors: &Descriptors) -> Vec<Segment> {
    descriptors.iter().map(|d| Segment { stag: Stag(d.token), offset: d.offset, len: d.length }).collect()
}
