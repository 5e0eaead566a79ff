//! Builds messages from answers: headers, padding, signatures, encryption.
//!
//! Spec: [MS-SMB2] 3.3.4.1 (signing, compounding, compressing, encrypting), 3.3.4.4 (errors). Each [`Answered`] says
//! whether it is signed or encrypted.
//!
//! The payload of a plain answer is passed on unchanged, even an unread file range. For signing it is read into a pool
//! buffer; for encryption it is read into its place in the single buffer of the whole message, so neither copies it.
//! RDMA payload is signed or encrypted in its own buffer if that was negotiated (RDMA transforms); otherwise it is
//! never sent for an encrypted request.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Buf, LogLimit, Payload, Pool, buf, rt};
use weft_transport::{Outgoing, Part, Segment, Stag, To};
use weft_wire::smb2::header::{self, Flags};
use weft_wire::smb2::rdma_transform::{Crypto, RdmaTransformId};
use weft_wire::smb2::{HEADER_LEN, Header, NtStatus, error, read};

use super::answer::{Answer, Failure};
use super::concerned::Concerned;
use super::session::Session;
use super::status;
use crate::compression::Agreed;
use crate::crypto::{Preauth, SealError, Sealer, Sender, SigningKey, TRANSFORM_LEN};

/// A request with its answer, ready to be sent.
pub(super) struct Answered {
    /// The response's header, without status, NextCommand and signature.
    pub header: Header,
    /// The operation's result.
    pub answer: Answer,
    /// The key that signs the response.
    pub sign: Option<Arc<SigningKey>>,
    /// A preauthentication chain that the response is added to.
    pub hash: Option<Rc<RefCell<Preauth>>>,
}

impl Answered {
    /// Whether the payload must be in memory, for signing, but is possibly not.
    pub(super) fn has_to_be_read(&self) -> bool {
        let Ok(reply) = &self.answer else { return false };
        let unread = matches!(reply.payload, Some(Payload::File(_)));
        self.sign.is_some() && (unread || reply.transform.is_some())
    }

    /// The length of the encrypted message, if all of the answer goes into it and is in memory.
    fn sealed_len(&self) -> Option<usize> {
        let reply = self.answer.as_ref().ok()?;
        let payload = match &reply.payload {
            Some(Payload::File(_)) => return None,
            Some(payload) => payload.len(),
            None => 0,
        };
        let is_alone = reply.segments.is_empty() && !reply.compress;
        is_alone.then(|| reply.message.len().saturating_add(payload).saturating_add(TRANSFORM_LEN))
    }
}

/// A response in pieces. On the wire: head, payload (unless it goes to segments), pad.
struct Piece {
    header: Header,
    head: Vec<u8>,
    payload: Option<Payload>,
    segments: Vec<Segment>,
    transform: Option<RdmaTransformId>,
    invalidate: Option<Stag>,
    compress: bool,
    sign: Option<Arc<SigningKey>>,
    hash: Option<Rc<RefCell<Preauth>>>,
}

impl Piece {
    fn new(answered: Answered, sealed: bool, max_message: usize) -> Piece {
        let Answered { mut header, answer, sign, hash } = answered;
        let mut piece = match answer {
            Ok(reply) => {
                header.status = reply.status;
                let (payload, segments) = (reply.payload, reply.segments);
                Piece {
                    header,
                    head: reply.message,
                    payload,
                    segments,
                    transform: reply.transform,
                    invalidate: reply.invalidate,
                    compress: reply.compress,
                    sign,
                    hash,
                }
            }
            Err(failure) => Piece::failed(header, failure, sign, hash),
        };
        // An operation that chose RDMA on an encrypted session would send plaintext, and an answer longer than the
        // transport carries exceeds what NEGOTIATE announced. Neither happens: the operations refuse earlier.
        let encrypted = piece.transform == Some(RdmaTransformId::ENCRYPTION);
        let leaks = !piece.segments.is_empty() && sealed != encrypted;
        if leaks || piece.inline_len() > max_message.saturating_sub(TRANSFORM_LEN + 8) {
            let failure = Failure { invalidate: piece.invalidate, ..NtStatus::INVALID_PARAMETER.into() };
            piece = Piece::failed(piece.header, failure, piece.sign, piece.hash);
        }
        piece
    }

    fn failed(
        mut header: Header,
        failure: Failure,
        sign: Option<Arc<SigningKey>>,
        hash: Option<Rc<RefCell<Preauth>>>,
    ) -> Piece {
        header.status = failure.status;
        let mut head = Vec::with_capacity(HEADER_LEN + 9);
        head.resize(HEADER_LEN, 0);
        failure.data.emit(&mut head);
        let (payload, segments) = (None, Vec::new());
        let invalidate = failure.invalidate;
        Piece { header, head, payload, segments, transform: None, invalidate, compress: false, sign, hash }
    }

    /// Bytes in the message, without padding.
    fn inline_len(&self) -> usize {
        let inline = self.payload.as_ref().filter(|_| self.segments.is_empty());
        self.head.len().saturating_add(inline.map_or(0, Payload::len))
    }

    /// Whether its payload is in memory.
    fn holds_room(&self) -> bool {
        matches!(self.payload, Some(Payload::Chain(_)))
    }

    /// Padding after which another header can follow.
    fn pad(&self) -> usize {
        self.inline_len().wrapping_neg() & 7
    }

    /// Bytes in the message, with padding.
    fn padded_len(&self) -> usize {
        self.inline_len().saturating_add(self.pad())
    }

    /// Writes the header; `last` says whether it is the last of its compound.
    fn complete(&mut self, last: bool) {
        if !last {
            // Below the transport's limit, hence below 2^32.
            self.header.next_command = self.padded_len() as u32;
        }
        let header = self.header.to_bytes();
        if let Some(place) = self.head.first_chunk_mut() {
            *place = header;
        }
    }

    /// Reads a payload that must be in memory. A read failure turns the answer into an error.
    async fn load(&mut self, pool: &Pool) {
        match self.payload.take() {
            Some(payload) if self.segments.is_empty() => match payload.into_chain(pool).await {
                Ok(chain) => self.payload = Some(Payload::Chain(chain)),
                Err(e) => self.unreadable(&e),
            },
            other => self.payload = other,
        }
    }

    /// Signs RDMA payload, and describes that in the body.
    async fn sign_payload(&mut self, pool: &Pool) {
        let (Some(key), Some(payload)) = (self.sign.clone(), self.payload.take()) else { return };
        match payload.into_chain(pool).await {
            Ok(chain) => {
                let parts: Vec<&[u8]> = chain.iter().map(|bytes| &bytes[..]).collect();
                let (nonce, signature) = key.sign_payload(Sender::Server, &parts);
                let kind = RdmaTransformId::SIGNING;
                read::Response::set_transform(&mut self.head, &Crypto { kind, signature, nonce });
                self.payload = Some(Payload::Chain(chain));
            }
            Err(e) => self.unreadable(&e),
        }
    }

    /// Encrypts RDMA payload in its own buffer.
    async fn seal_payload(&mut self, sealer: &Sealer, room: &Room) -> Result<(), SealError> {
        let holds = self.holds_room();
        let Some(payload) = self.payload.take() else { return Ok(()) };
        let len = payload.len();
        let mut out = room.alloc(len, holds).await;
        out.set_len(len);
        let window = out.into_window();
        match &payload {
            Payload::File(range) => {
                if let Err(e) = range.read_into(&window).await {
                    self.unreadable(&e);
                    return Ok(());
                }
            }
            Payload::Chain(chain) => {
                let mut at = 0usize;
                for bytes in chain {
                    let inside = window.place(at, bytes);
                    debug_assert!(inside);
                    at = at.saturating_add(bytes.len());
                }
            }
        }
        let mut out = window.try_into_buf().expect("nobody else holds this window");
        let (nonce, signature) = sealer.seal_payload(&mut out)?;
        let kind = RdmaTransformId::ENCRYPTION;
        read::Response::set_transform(&mut self.head, &Crypto { kind, signature, nonce });
        self.payload = Some(Payload::Chain(vec![out.freeze()]));
        Ok(())
    }

    fn unreadable(&mut self, e: &std::io::Error) {
        tell_unreadable(None, e);
        let failure = Failure { invalidate: self.invalidate, ..status::UNEXPECTED_IO_ERROR.into() };
        *self = Piece::failed(self.header, failure, self.sign.take(), self.hash.take());
    }

    /// Signs a completed and loaded piece.
    fn sign(&mut self, pad: &[u8]) {
        let Some(key) = &self.sign else { return };
        let mut rest: Vec<&[u8]> = Vec::new();
        if let (Some(Payload::Chain(chain)), true) = (&self.payload, self.segments.is_empty()) {
            rest.extend(chain.iter().map(|bytes| &bytes[..]));
        }
        if !pad.is_empty() {
            rest.push(pad);
        }
        key.sign_parts(Sender::Server, &mut self.head, &rest);
    }

    fn into_parts(self, pad: &'static [u8], parts: &mut Vec<Part>) -> Option<Stag> {
        parts.push(Part::Bytes(Bytes::from(self.head)));
        if let Some(data) = self.payload {
            let to = if self.segments.is_empty() { To::Inline } else { To::Segments(self.segments) };
            parts.push(Part::Payload { data, to });
        }
        if !pad.is_empty() {
            parts.push(Part::Bytes(Bytes::from_static(pad)));
        }
        self.invalidate
    }
}

/// Where the memory of messages of answers comes from.
pub(super) struct Room {
    /// What answers of this connection may hold until their client has read them.
    pub answers: Pool,
    /// For messages of answers that hold such memory already. Waiting for more of it, many of them could wait for each other for ever;
    /// they are charged for what they hold until the message is sent.
    pub beside: Pool,
}

impl Room {
    async fn alloc(&self, len: usize, holds: bool) -> Buf {
        match self.answers.try_alloc(len) {
            Some(room) => room,
            None if holds => self.beside.alloc(len).await,
            None => self.answers.alloc(len).await,
        }
    }
}

/// A message that is ready, and the answer to send instead if its payload proves unreadable.
pub(super) struct Ready {
    pub outgoing: Outgoing,
    pub fallback: Vec<Header>,
    /// Pool buffers of answers that were encrypted or compressed: their address is charged until the message is sent.
    pub held: Vec<Bytes>,
    /// For the flight recorder.
    pub concerned: Concerned,
}

/// A message without payload.
pub(super) fn short(outgoing: Outgoing) -> Ready {
    Ready { outgoing, fallback: Vec::new(), held: Vec::new(), concerned: Concerned::default() }
}

/// The pool buffers that answers hold.
fn rooms(pieces: &[Piece]) -> Vec<Bytes> {
    let chains = pieces.iter().filter(|piece| piece.segments.is_empty()).map(|piece| &piece.payload);
    let bytes = chains.filter_map(|payload| match payload {
        Some(Payload::Chain(chain)) => Some(chain),
        _ => None,
    });
    bytes.flatten().cloned().collect()
}

const PAD: [u8; 8] = [0; 8];

/// The padding after one of `count` answers in a message. 3.3.4.1.3: in a compound the last one is padded like the
/// others; a single one is not.
fn pad(piece: &Piece, count: usize) -> &'static [u8] {
    if count == 1 { &[] } else { PAD.split_at(piece.pad()).0 }
}

/// Puts the answers to one message, in order, into as few messages as the transport allows; usually one.
pub(super) async fn compose(
    answers: Vec<Answered>,
    sealed: Option<&Session>,
    compression: Option<&Agreed>,
    room: &Room,
    max_message: usize,
) -> Result<Vec<Ready>, SealError> {
    let mut ready = Vec::with_capacity(1);
    let mut group: Vec<Piece> = Vec::with_capacity(answers.len());
    let mut len = TRANSFORM_LEN;
    for answered in answers {
        let piece = Piece::new(answered, sealed.is_some(), max_message);
        let more = piece.padded_len();
        if !group.is_empty() && len.saturating_add(more) > max_message {
            let holds = !ready.is_empty();
            ready.push(message(std::mem::take(&mut group), sealed, compression, room, holds).await?);
            len = TRANSFORM_LEN;
        }
        len = len.saturating_add(more);
        group.push(piece);
    }
    if !group.is_empty() {
        let holds = !ready.is_empty();
        ready.push(message(group, sealed, compression, room, holds).await?);
    }
    Ok(ready)
}

/// The message of a single answer that is neither encrypted nor hashed, and whose payload need not be read first.
pub(super) fn at_once(answered: Answered, max_message: usize) -> Ready {
    debug_assert!(!answered.has_to_be_read() && answered.hash.is_none());
    let mut piece = Piece::new(answered, false, max_message);
    piece.complete(true);
    piece.sign(&[]);
    let fallback = match &piece.payload {
        Some(Payload::File(_)) => vec![piece.header],
        _ => Vec::new(),
    };
    let mut parts = Vec::with_capacity(2);
    let invalidate = piece.into_parts(&[], &mut parts);
    Ready { fallback, ..short(Outgoing { parts, invalidate, ..Outgoing::default() }) }
}

/// The same for an answer that is encrypted, in one buffer of the pool. Returns an answer that has to wait, for its payload
/// or for the buffer.
pub(super) fn sealed_at_once(
    answered: Answered,
    session: &Session,
    pool: &Pool,
    max_message: usize,
) -> Result<Result<Ready, SealError>, Box<Answered>> {
    debug_assert!(answered.sign.is_none() && answered.hash.is_none());
    let room = answered
        .sealed_len()
        .filter(|len| len.saturating_add(8) <= max_message)
        .and_then(|len| Some((len, pool.try_alloc(len)?)));
    let Some((len, mut out)) = room else { return Err(Box::new(answered)) };
    let mut piece = Piece::new(answered, true, max_message);
    piece.complete(true);
    out.set_len(len);
    let mut free = out.split_at_mut(TRANSFORM_LEN).1;
    let mut put = |bytes: &[u8]| {
        let (place, rest) = std::mem::take(&mut free).split_at_mut(bytes.len());
        buf::copy(place, bytes);
        free = rest;
    };
    put(&piece.head);
    if let Some(Payload::Chain(chain)) = &piece.payload {
        chain.iter().for_each(|bytes| put(bytes));
    }
    Ok(sealer(session).seal(session.id, &mut out).map(|()| {
        let outgoing = Outgoing::bytes(out.freeze());
        short(Outgoing { invalidate: piece.invalidate, ..outgoing })
    }))
}

/// What encrypts the answers of a session that has decrypted a request.
fn sealer(session: &Session) -> &Sealer {
    session.keys.sealer.as_ref().expect("a session that decrypted a request encrypts its answer")
}

/// Builds one message. `holds`: the caller holds memory of answers.
async fn message(
    mut pieces: Vec<Piece>,
    sealed: Option<&Session>,
    compression: Option<&Agreed>,
    room: &Room,
    holds: bool,
) -> Result<Ready, SealError> {
    let compression = compression.filter(|_| pieces.iter().any(|piece| piece.compress));
    if let Some(session) = sealed {
        let held = rooms(&pieces);
        let outgoing = Box::pin(seal(pieces, session, compression, room, holds)).await?;
        return Ok(Ready { held, ..short(outgoing) });
    }
    let count = pieces.len();
    let mut outgoing = Outgoing { parts: Vec::with_capacity(count.saturating_mul(2)), ..Outgoing::default() };
    let mut fallback = Vec::new();
    for (i, piece) in pieces.iter_mut().enumerate() {
        match piece.transform {
            Some(_) => Box::pin(piece.sign_payload(&room.answers)).await,
            None if piece.sign.is_some() || compression.is_some() => piece.load(&room.answers).await,
            None => {}
        }
        piece.complete(i.saturating_add(1) == count);
        piece.sign(pad(piece, count));
        if let Some(hash) = &piece.hash {
            hash.borrow_mut().update(&piece.head);
        }
        if matches!(piece.payload, Some(Payload::File(_))) {
            fallback.push(piece.header);
        }
    }
    if let Some(bytes) = compression.and_then(|agreed| squeezed(agreed, &pieces)) {
        return Ok(Ready { held: rooms(&pieces), ..short(Outgoing::bytes(bytes)) });
    }
    if !fallback.is_empty() {
        // A message succeeds or fails as a whole.
        fallback = pieces.iter().map(|piece| piece.header).collect();
    }
    for piece in pieces {
        let pad = pad(&piece, count);
        let invalidate = piece.into_parts(pad, &mut outgoing.parts);
        outgoing.invalidate = outgoing.invalidate.or(invalidate);
    }
    Ok(Ready { fallback, ..short(outgoing) })
}

/// Compresses a message, if that makes it shorter; all of it is in memory.
fn squeezed(agreed: &Agreed, pieces: &[Piece]) -> Option<Vec<u8>> {
    let plain = pieces.first()?.head.len();
    let mut whole = Vec::with_capacity(pieces.iter().map(Piece::padded_len).sum());
    for (i, piece) in pieces.iter().enumerate() {
        whole.extend_from_slice(&piece.head);
        if let Some(Payload::Chain(chain)) = &piece.payload {
            for bytes in chain {
                let at = whole.len();
                whole.resize(at.saturating_add(bytes.len()), 0);
                buf::copy(whole.split_at_mut(at).1, bytes);
            }
        }
        let pad = if i.saturating_add(1) < pieces.len() { piece.pad() } else { 0 };
        whole.extend_from_slice(PAD.split_at(pad).0);
    }
    agreed.compress(&whole, plain)
}

/// Encrypts a whole message in one buffer; the payload is read straight into its place.
async fn seal(
    mut pieces: Vec<Piece>,
    session: &Session,
    compression: Option<&Agreed>,
    room: &Room,
    holds: bool,
) -> Result<Outgoing, SealError> {
    let mut invalidate = None;
    for piece in pieces.iter_mut().filter(|piece| !piece.segments.is_empty()) {
        piece.seal_payload(sealer(session), room).await?;
    }
    let holds = holds || pieces.iter().any(Piece::holds_room);
    loop {
        let count = pieces.len();
        let lens = pieces.iter().flat_map(|piece| [piece.inline_len(), pad(piece, count).len()]);
        let len = lens.sum::<usize>().saturating_add(TRANSFORM_LEN);
        let mut out = room.alloc(len, holds).await;
        out.set_len(len);
        let window = out.into_window();
        let mut at = TRANSFORM_LEN;
        let mut unreadable = None;
        for (i, piece) in pieces.iter_mut().enumerate() {
            piece.complete(i.saturating_add(1) == count);
            let inside = window.write_at(at, &piece.head);
            debug_assert!(inside);
            at = at.saturating_add(piece.head.len());
            match piece.payload.as_ref().filter(|_| piece.segments.is_empty()) {
                Some(Payload::File(range)) => {
                    let Some(into) = window.slice(at, range.len) else { continue };
                    if let Err(e) = range.read_into(&into).await {
                        unreadable = Some((i, e));
                        break;
                    }
                    at = at.saturating_add(range.len);
                }
                Some(Payload::Chain(chain)) => {
                    for bytes in chain {
                        let inside = window.place(at, bytes);
                        debug_assert!(inside);
                        at = at.saturating_add(bytes.len());
                    }
                }
                None => {}
            }
            let pad = pad(piece, count);
            let inside = window.write_at(at, pad);
            debug_assert!(inside);
            at = at.saturating_add(pad.len());
            invalidate = invalidate.or(piece.invalidate);
        }
        if let Some((i, e)) = unreadable {
            // Again, with an error in its place, because that has another length.
            pieces.get_mut(i).into_iter().for_each(|piece| piece.unreadable(&e));
            continue;
        }
        let mut out = window.try_into_buf().expect("every slice of this window is gone");
        // 3.1.4.3: compression comes first.
        let plain = pieces.first().map_or(0, |piece| piece.head.len());
        let whole = out.split_at(TRANSFORM_LEN).1;
        if let Some(short) = compression.and_then(|agreed| agreed.compress(whole, plain)) {
            return Ok(Outgoing::bytes(seal_short(&short, session)?));
        }
        sealer(session).seal(session.id, &mut out)?;
        let beside = pieces.into_iter().filter(|piece| !piece.segments.is_empty()).filter_map(|piece| {
            Some(Part::Payload { data: piece.payload?, to: To::Segments(piece.segments) })
        });
        let parts = beside.chain([Part::Bytes(out.freeze())]).collect();
        return Ok(Outgoing { invalidate, parts, ..Outgoing::default() });
    }
}

/// Tells that a READ gets an error, because its payload cannot be read. `peer`: as far as it is known here.
pub(super) fn tell_unreadable(peer: Option<&str>, e: &std::io::Error) {
    static UNREADABLE: LogLimit = LogLimit::new();
    if let Some(left_out) = UNREADABLE.pass(rt::now()) {
        let peer = peer.map(tracing::field::display);
        tracing::warn!(peer, "a READ failed: {e}{left_out}");
    }
}

/// The message that reports an unreadable payload: an error for each of the headers.
pub(super) fn unreadable(headers: &[Header]) -> Outgoing {
    let mut message = Vec::new();
    for (i, header) in headers.iter().enumerate() {
        let start = message.len();
        Header { status: status::UNEXPECTED_IO_ERROR, next_command: 0, ..*header }.emit(&mut message);
        error::Response::EMPTY.emit(&mut message);
        if i.saturating_add(1) < headers.len() {
            weft_wire::smb2::compound::link(&mut message, start);
        }
    }
    Outgoing::bytes(message)
}

/// An interim response (3.3.4.2): never signed, because it shares its MessageId with the final response.
pub(super) fn interim(header: &Header) -> Vec<u8> {
    debug_assert!(!header.flags.contains(Flags::SIGNED));
    let mut message = Vec::with_capacity(TRANSFORM_LEN + header::HEADER_LEN + 9);
    header.emit(&mut message);
    error::Response::EMPTY.emit(&mut message);
    message
}

/// Encrypts a message that is not in a pool buffer.
pub(super) fn seal_short(message: &[u8], session: &Session) -> Result<Vec<u8>, SealError> {
    let mut out = vec![0; TRANSFORM_LEN];
    out.extend_from_slice(message);
    sealer(session).seal(session.id, &mut out)?;
    Ok(out)
}
