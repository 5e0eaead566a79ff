//! READ: a range of the file, not read here unless it is small and goes into the message.
//!
//! Spec: [MS-SMB2] 3.3.5.12. Of a file it never waits: what is not in memory is read by whoever sends it.
//! Buffers: none for a large READ. The answer carries the range; the transport splices it, reads it into a buffer that is sent, or
//! writes it into the client's memory by RDMA. Does not: let payload of an encrypted session travel by RDMA where
//! nothing would protect it: without RDMA transforms that is an invalid parameter.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_machine::Payload;
use weft_store::vfs::{Kind, Read};
use weft_transport::{Segment, Stag};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::channel::{Channel, Descriptors};
use weft_wire::smb2::rdma_transform::{Crypto, RdmaTransformId};
use weft_wire::smb2::read::{Flags, RESPONSE_DATA_AT, Request, Response};
use weft_wire::smb2::{Dialect, HEADER_LEN, NtStatus};

use super::opens::{self, Open};
use crate::server::context::{Answer, Failure, OpContext, Reply};

/// Up to this many bytes travel in a gathered message anyway, not by sendfile: they are read at once.
const READ_NOW_BYTES: usize = 16 << 10;

/// Answers a READ, unless it has to wait: then `None`, and nothing is done.
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
        checked.reply(cx, &request, &route, data)
    };
    let answer = answer.await;
    invalidating(answer, &route)
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

/// A READ that the client may make.
struct Checked {
    open: Arc<Open>,
    /// How much is read.
    len: usize,
}

impl Checked {
    fn new(cx: &OpContext, request: &Request, route: &Route) -> Result<Checked, Failure> {
        let open = opens::find(cx, request.file)?;
        // Who may execute a file may read it over the network (3.3.5.12).
        open.require_any(AccessMask::FILE_READ_DATA | AccessMask::FILE_EXECUTE)?;
        if request.length > cx.max_payload() {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        if let Some(segments) = &route.segments {
            let room: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
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
        // [MS-FSA] 2.1.5.3: the range ends within 63 bits.
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

/// Whether the payload inside a message goes into a socket untouched: then the transport can send it from a mapping. What is
/// signed, sealed, compressed or packed into Sends is gone over here, and better in a buffer than as a range to be read.
fn leaves_as_it_is(cx: &OpContext, request: &Request) -> bool {
    let touched =
        cx.encrypted() || cx.signed().is_some() || request.flags.contains(Flags::REQUEST_COMPRESSED);
    !touched && cx.channel().limits().max_rdma.is_none()
}

/// How much is answered inside a message. NEGOTIATE may have offered more, for RDMA: on an encrypted session Linux asks
/// for all of that inline, from a transport that carries a fraction of it to the client. A short READ is asked on.
fn inline_len(cx: &OpContext, request: &Request) -> Result<usize, NtStatus> {
    let most = cx.max_inline();
    if request.minimum_count as usize > most {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(most.min(request.length as usize))
}

/// As much of the client's memory as is needed.
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

/// How the payload of a READ or WRITE travels.
#[derive(Default)]
pub(super) struct Route {
    /// Through this memory of the client; `None`: in the message.
    pub(super) segments: Option<Vec<Segment>>,
    /// What the answer revokes, whether it is a success or not.
    pub(super) invalidate: Option<Stag>,
    /// What is done to a READ's payload before it goes there.
    transform: Option<RdmaTransformId>,
    /// What was done to a WRITE's payload.
    pub(super) crypto: Option<Crypto>,
}

impl Route {
    /// The route that a READ asks for, when the connection can go it (3.3.5.12). What is encrypted or signed in messages
    /// is so by RDMA too, if that was negotiated; what is encrypted in messages does not travel by RDMA otherwise.
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

    /// The same for a WRITE (3.3.5.13), whose request says what was done to the payload.
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
        // A client that insists on signatures and could sign this does not leave it unsigned; somebody else would.
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

    /// Announces the payload's length in the body, and leaves room for what is done to it.
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

/// The memory of a channel without transform, and whether it is to be revoked. Before 3.0 the field is reserved.
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
