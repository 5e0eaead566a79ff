//! Packets of connection-oriented RPC: bind, request, response, fault (C706 12.6, [MS-RPCE] 2.2.2).
//!
//! The stub of a parsed request is a slice of the packet. Callers reassemble fragments and keep bindings.
//!
//! ```text
//! header: 0 version=5 | 1 minor | 2 type | 3 flags | 4 drep (4) | 8 frag_length | 10 auth_length | 12 call_id
//! bind:   16 max_xmit | 18 max_recv | 20 assoc_group | 24 count, 3 zeros | contexts: id, count, abstract, transfers
//! request: 16 alloc_hint | 20 context id | 22 opnum | (object UUID) | 24 stub
//! response, fault: 16 alloc_hint | 20 context id | 22 cancels, 0 | 24 stub, or status and 4 zeros
//! ```

use bytes::Bytes;

use super::{FaultStatus, Malformed, Syntax};
use crate::smb2::field::{Put, Reader, bits, codes, len16, len32, pad, patch_u16, since};

/// Length of the header common to all packets.
pub const HEADER_LEN: usize = 16;
/// Length of header, allocation hint, context id and so on, before the stub of a request, a response or a fault.
pub const CALL_HEADER_LEN: usize = 24;
/// The largest fragment that every peer must receive (C706 12.6.3.1); a smaller offer is invalid.
pub const MUST_RECEIVE_LEN: u16 = 1432;
/// Most presentation contexts in one bind.
pub const MAX_CONTEXTS: usize = 32;
/// Most transfer syntaxes of one presentation context.
pub const MAX_TRANSFERS: usize = 16;
/// Little-endian integers, ASCII, IEEE floats.
const DREP: [u8; 4] = [0x10, 0, 0, 0];

codes! {
    /// Packet type.
    PacketType: u8 {
        /// A call.
        REQUEST = 0;
        /// An answer.
        RESPONSE = 2;
        /// A failure.
        FAULT = 3;
        /// Opens an association.
        BIND = 11;
        /// Accepts an association.
        BIND_ACK = 12;
        /// Refuses an association.
        BIND_NAK = 13;
        /// Adds contexts to an association.
        ALTER_CONTEXT = 14;
        /// Answers an ALTER_CONTEXT.
        ALTER_CONTEXT_RESPONSE = 15;
        /// Third leg of an authentication.
        AUTH3 = 16;
        /// Asks to cancel a call.
        CANCEL = 18;
        /// Abandons a call.
        ORPHANED = 19;
    }
}

bits! {
    /// Packet flags.
    Flags: u8 {
        /// First fragment.
        FIRST = 0x01;
        /// Last fragment.
        LAST = 0x02;
        /// An object UUID follows the operation number.
        OBJECT = 0x80;
    }
}

impl Flags {
    /// An unfragmented packet.
    pub const WHOLE: Flags = Flags(3);
}

/// The header of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type.
    pub kind: PacketType,
    /// Flags.
    pub flags: Flags,
    /// Length of the packet; at least [`HEADER_LEN`].
    pub frag_len: u16,
    /// Length of the authentication value at its end.
    pub auth_len: u16,
    /// Id of the call.
    pub call_id: u32,
}

impl Header {
    /// Parses the header from the first bytes of a packet, which may still be incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let mut r = Reader::new(bytes);
        let (major, minor, kind, flags) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        if major != 5 || minor > 1 {
            return Err(Malformed("RPC version"));
        }
        // Character and float formats do not matter, because no stub here contains either.
        if r.array::<4>()?[0] & 0xf0 != DREP[0] {
            return Err(Malformed("big-endian NDR"));
        }
        let (frag_len, auth_len, call_id) = (r.u16()?, r.u16()?, r.u32()?);
        let tail = if auth_len == 0 { 0 } else { usize::from(auth_len) + 8 };
        if usize::from(frag_len).saturating_sub(HEADER_LEN) < tail {
            return Err(Malformed("fragment length"));
        }
        Ok(Header { kind: PacketType(kind), flags: Flags(flags), frag_len, auth_len, call_id })
    }

    /// Appends a header; [`finish`] fills in the length.
    fn emit(kind: PacketType, flags: Flags, call_id: u32, out: &mut Vec<u8>) {
        out.put(&[5, 0, kind.0, flags.0]);
        out.put(&DREP);
        out.put_u16(0);
        out.put_u16(0);
        out.put_u32(call_id);
    }
}

fn finish(out: &mut [u8], start: usize) {
    let len = len16(since(out, start));
    patch_u16(out, start.saturating_add(8), len);
}

/// The bytes after the header of a packet, without the authentication value.
fn body(packet: &[u8]) -> Result<&[u8], Malformed> {
    let header = Header::parse(packet)?;
    let tail = if header.auth_len == 0 { 0 } else { usize::from(header.auth_len) + 8 };
    packet
        .get(HEADER_LEN..usize::from(header.frag_len).saturating_sub(tail))
        .ok_or(Malformed("fragment length"))
}

/// An interface that the client wants to call, with the transfer syntaxes that it offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The context id that requests will use.
    pub id: u16,
    /// Interface.
    pub interface: Syntax,
    /// Transfer syntaxes.
    pub transfers: Vec<Syntax>,
}

/// BIND and ALTER_CONTEXT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Largest fragment that the client sends.
    pub max_xmit: u16,
    /// Largest fragment that it receives.
    pub max_recv: u16,
    /// Association group; 0: a new one.
    pub group: u32,
    /// Contexts.
    pub contexts: Vec<Context>,
}

fn syntax(r: &mut Reader<'_>) -> Result<Syntax, Malformed> {
    Ok(Syntax { uuid: r.array()?, version: r.u32()? })
}

fn put_syntax(syntax: &Syntax, out: &mut Vec<u8>) {
    out.put(&syntax.uuid);
    out.put_u32(syntax.version);
}

impl Bind {
    /// Parses a whole packet.
    pub fn parse(packet: &[u8]) -> Result<Bind, Malformed> {
        let mut r = Reader::new(body(packet)?);
        let (max_xmit, max_recv, group) = (r.u16()?, r.u16()?, r.u32()?);
        let count = usize::from(r.u8()?);
        r.array::<3>()?;
        if count > MAX_CONTEXTS {
            return Err(Malformed("presentation contexts"));
        }
        let contexts = (0..count).map(|_| {
            let (id, transfers) = (r.u16()?, usize::from(r.u8()?));
            r.u8()?;
            if transfers > MAX_TRANSFERS {
                return Err(Malformed("transfer syntaxes"));
            }
            let interface = syntax(&mut r)?;
            let transfers = (0..transfers).map(|_| syntax(&mut r)).collect::<Result<_, _>>()?;
            Ok(Context { id, interface, transfers })
        });
        Ok(Bind { contexts: contexts.collect::<Result<_, _>>()?, max_xmit, max_recv, group })
    }

    /// Appends a BIND, or an ALTER_CONTEXT.
    pub fn emit(&self, kind: PacketType, call_id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        Header::emit(kind, Flags::WHOLE, call_id, out);
        out.put_u16(self.max_xmit);
        out.put_u16(self.max_recv);
        out.put_u32(self.group);
        out.put_u32(self.contexts.len() as u32 & 0xff);
        for context in &self.contexts {
            out.put_u16(context.id);
            out.put_u16(context.transfers.len() as u16 & 0xff);
            put_syntax(&context.interface, out);
            context.transfers.iter().for_each(|transfer| put_syntax(transfer, out));
        }
        finish(out, start);
    }
}

/// The outcome for one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Accepted with this transfer syntax.
    Accepted(Syntax),
    /// Unknown interface (abstract_syntax_not_supported).
    NoInterface,
    /// No common transfer syntax (proposed_transfer_syntaxes_not_supported).
    NoTransfer,
    /// A limit of the server was reached (local_limit_exceeded).
    Limit,
    /// Answer to a feature negotiation ([MS-RPCE] 2.2.2.4, negotiate_ack): the supported features.
    Features(u16),
}

/// BIND_ACK and ALTER_CONTEXT_RESPONSE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindAck {
    /// Largest fragment that the server sends.
    pub max_xmit: u16,
    /// Largest fragment that it receives.
    pub max_recv: u16,
    /// Association group.
    pub group: u32,
    /// Secondary address: the pipe's name, without its NUL.
    pub address: String,
    /// One for each context, in order.
    pub verdicts: Vec<Verdict>,
}

impl BindAck {
    /// Parses a whole packet.
    pub fn parse(packet: &[u8]) -> Result<BindAck, Malformed> {
        let body = body(packet)?;
        let mut r = Reader::new(body);
        let (max_xmit, max_recv, group) = (r.u16()?, r.u16()?, r.u32()?);
        let len = usize::from(r.u16()?);
        let address = r.take(len)?;
        let address = address.strip_suffix(&[0]).unwrap_or(address);
        let address = std::str::from_utf8(address).map_err(|_| Malformed("secondary address"))?.to_owned();
        // The results are aligned relative to the packet's start; the body starts at a multiple of four.
        r.take(len.wrapping_add(10).wrapping_neg() & 3)?;
        let count = usize::from(r.u8()?);
        r.array::<3>()?;
        let verdicts = (0..count).map(|_| {
            let (result, reason) = (r.u16()?, r.u16()?);
            let transfer = syntax(&mut r)?;
            Ok(match (result, reason) {
                (0, _) => Verdict::Accepted(transfer),
                (3, features) => Verdict::Features(features),
                (_, 1) => Verdict::NoInterface,
                (_, 2) => Verdict::NoTransfer,
                _ => Verdict::Limit,
            })
        });
        Ok(BindAck {
            verdicts: verdicts.collect::<Result<_, Malformed>>()?,
            max_xmit,
            max_recv,
            group,
            address,
        })
    }

    /// Appends a BIND_ACK, or an ALTER_CONTEXT_RESPONSE.
    pub fn emit(&self, kind: PacketType, call_id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        Header::emit(kind, Flags::WHOLE, call_id, out);
        out.put_u16(self.max_xmit);
        out.put_u16(self.max_recv);
        out.put_u32(self.group);
        out.put_u16(len16(self.address.len().saturating_add(1)));
        out.put(self.address.as_bytes());
        out.put_u8(0);
        pad(out, start, 4);
        out.put_u32(self.verdicts.len() as u32 & 0xff);
        let nothing = Syntax { uuid: [0; 16], version: 0 };
        for verdict in &self.verdicts {
            let (result, reason, transfer) = match verdict {
                Verdict::Accepted(transfer) => (0, 0, *transfer),
                Verdict::NoInterface => (2, 1, nothing),
                Verdict::NoTransfer => (2, 2, nothing),
                Verdict::Limit => (2, 3, nothing),
                Verdict::Features(features) => (3, *features, nothing),
            };
            out.put_u16(result);
            out.put_u16(reason);
            put_syntax(&transfer, out);
        }
        finish(out, start);
    }
}

codes! {
    /// Why a whole BIND is refused (C706 12.6.3.1, [MS-RPCE] 2.2.2.5).
    NakReason: u16 {
        /// Unspecified.
        NOT_SPECIFIED = 0;
        /// A limit was exceeded.
        LOCAL_LIMIT = 2;
        /// The version is not 5.0.
        PROTOCOL_VERSION = 4;
        /// Unknown kind of authentication.
        AUTHENTICATION_TYPE = 8;
    }
}

/// Appends a BIND_NAK with the supported versions.
pub fn emit_bind_nak(reason: NakReason, call_id: u32, out: &mut Vec<u8>) {
    let start = out.len();
    Header::emit(PacketType::BIND_NAK, Flags::WHOLE, call_id, out);
    out.put_u16(reason.0);
    out.put(&[1, 5, 0]);
    pad(out, start, 4);
    finish(out, start);
}

/// One fragment of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Presentation context.
    pub context: u16,
    /// Operation number.
    pub opnum: u16,
    /// A fragment of the stub.
    pub stub: Bytes,
}

impl Request {
    /// Parses a whole packet.
    pub fn parse(packet: &Bytes) -> Result<Request, Malformed> {
        let header = Header::parse(packet)?;
        let body = body(packet)?;
        let mut r = Reader::new(body);
        r.u32()?;
        let (context, opnum) = (r.u16()?, r.u16()?);
        if header.flags.contains(Flags::OBJECT) {
            r.array::<16>()?;
        }
        Ok(Request { context, opnum, stub: packet.slice_ref(r.rest()) })
    }

    /// Appends one fragment.
    pub fn emit(&self, flags: Flags, call_id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        Header::emit(PacketType::REQUEST, flags, call_id, out);
        out.put_u32(len32(self.stub.len()));
        out.put_u16(self.context);
        out.put_u16(self.opnum);
        out.put(&self.stub);
        finish(out, start);
    }
}

/// One fragment of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Presentation context.
    pub context: u16,
    /// A fragment of the stub.
    pub stub: Bytes,
}

impl Response {
    /// Parses a whole packet.
    pub fn parse(packet: &Bytes) -> Result<Response, Malformed> {
        let mut r = Reader::new(body(packet)?);
        r.u32()?;
        let (context, _) = (r.u16()?, r.u16()?);
        Ok(Response { context, stub: packet.slice_ref(r.rest()) })
    }
}

/// Splits an answer into packets of at most `max_frag` bytes.
pub fn response(context: u16, call_id: u32, stub: &[u8], max_frag: u16) -> Vec<Bytes> {
    // The length of every stub but the last is a multiple of eight, so that alignment continues across fragments (C706
    // 12.6.4.9).
    let room = usize::from(max_frag.max(MUST_RECEIVE_LEN)).saturating_sub(CALL_HEADER_LEN) & !7;
    let mut packets = Vec::new();
    let mut rest = stub;
    loop {
        let (part, behind) = rest.split_at_checked(room).unwrap_or((rest, &[]));
        let mut flags = Flags::NONE;
        if packets.is_empty() {
            flags |= Flags::FIRST;
        }
        if behind.is_empty() {
            flags |= Flags::LAST;
        }
        let mut out = Vec::with_capacity(CALL_HEADER_LEN.saturating_add(part.len()));
        Header::emit(PacketType::RESPONSE, flags, call_id, &mut out);
        out.put_u32(len32(rest.len()));
        out.put_u16(context);
        out.put_u16(0);
        out.put(part);
        finish(&mut out, 0);
        packets.push(out.into());
        if behind.is_empty() {
            return packets;
        }
        rest = behind;
    }
}

/// Appends a FAULT.
pub fn emit_fault(context: u16, call_id: u32, status: FaultStatus, out: &mut Vec<u8>) {
    let start = out.len();
    Header::emit(PacketType::FAULT, Flags::WHOLE, call_id, out);
    out.put_u32(0);
    out.put_u16(context);
    out.put_u16(0);
    out.put_u32(status.0);
    out.put_u32(0);
    finish(out, start);
}

/// The status of a FAULT.
pub fn parse_fault(packet: &[u8]) -> Result<FaultStatus, Malformed> {
    let mut r = Reader::new(body(packet)?);
    r.array::<8>()?;
    Ok(FaultStatus(r.u32()?))
}
