//! One connection of a capture: the TCP packets and FPDUs that would carry its messages over iWARP.
//!
//! Headers follow RFC 791 3.1 (IPv4), RFC 9293 3.1 (TCP), RFC 5044 4 (FPDU) and RFC 5041 4 (DDP). The flow owns the
//! sequence and message numbers. It shows no loss, repetition or delay, because there is no real wire.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use bytes::Bytes;
use weft_machine::Peer;
use weft_wire::ddp::{self, Tagged, Untagged};
use weft_wire::mpa::{self, Crc, Frame, Kind};
use weft_wire::rdmap::{self, Opcode, ReadRequest};

use super::file::Capture;
use crate::verbs::Segment;
use crate::wrap::SetUp;

/// Payload of a segment: packets of a size that every reader accepts.
const PIECE: usize = 16 << 10;
/// Addresses for ends without one: TEST-NET-1 (RFC 5737).
const INITIATOR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const RESPONDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The first port for clients (RFC 6335 6).
const FIRST_PORT: u16 = 49_152;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// The sending end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Here,
    Peer,
}

/// The state of one end.
#[derive(Clone, Copy, Debug)]
struct End {
    addr: SocketAddrV4,
    /// The next sequence number.
    next: u32,
    sends: u32,
    reads: u32,
}

/// See the module.
pub(super) struct Flow {
    capture: Capture,
    here: End,
    peer: End,
    /// IPv4 identification of the next packet.
    number: u16,
    open: bool,
}

impl Flow {
    /// Starts with a TCP handshake and the two MPA frames.
    pub(super) fn new(capture: Capture, peer: Peer, set_up: &SetUp<'_>) -> Flow {
        let number = capture.next_flow();
        let client = FIRST_PORT.wrapping_add(number % (u16::MAX - FIRST_PORT));
        // The peer's address, if it has one.
        let known = match peer.addr() {
            Some(SocketAddr::V4(addr)) => Some(addr),
            _ => None,
        };
        let initiator = SocketAddrV4::new(INITIATOR, client);
        let responder = SocketAddrV4::new(RESPONDER, set_up.port);
        let (here, peer) = if set_up.initiator {
            (initiator, known.unwrap_or(responder))
        } else {
            (responder, known.unwrap_or(initiator))
        };
        let end = |addr| End { addr, next: 0, sends: 0, reads: 0 };
        let mut flow = Flow { capture, here: end(here), peer: end(peer), number: 0, open: true };
        let (asks, says) = if set_up.initiator { (From::Here, From::Peer) } else { (From::Peer, From::Here) };
        flow.packet(asks, SYN, &[]);
        flow.packet(says, SYN | ACK, &[]);
        flow.packet(asks, ACK, &[]);
        for (from, kind, private_data) in
            [(asks, Kind::Request, set_up.request), (says, Kind::Reply, set_up.reply)]
        {
            flow.frame(from, kind, private_data);
        }
        flow
    }

    /// A Send and its variants.
    pub(super) fn send(&mut self, from: From, data: &[u8], invalidate: Option<u32>, solicited: bool) {
        let opcode = Opcode::send(invalidate.is_some(), solicited);
        let end = self.end(from);
        end.sends = end.sends.wrapping_add(1);
        let msn = end.sends;
        for (mo, piece, last) in pieces(data) {
            let header = Untagged {
                last,
                control: opcode.control(),
                invalidate: invalidate.unwrap_or(0),
                qn: rdmap::QN_SEND,
                msn,
                mo: mo as u32,
            };
            self.fpdu(from, &header.emit(), piece);
        }
    }

    /// An RDMA Write or an RDMA Read Response.
    pub(super) fn tagged(&mut self, from: From, opcode: Opcode, stag: u32, to: u64, data: &[u8]) {
        for (at, piece, last) in pieces(data) {
            let to = to.wrapping_add(at as u64);
            let header = Tagged { last, control: opcode.control(), stag, to };
            self.fpdu(from, &header.emit(), piece);
        }
    }

    /// An RDMA Read Request for a read into `sink`.
    pub(super) fn read_request(&mut self, from: From, source: Segment, sink: u32) {
        let end = self.end(from);
        end.reads = end.reads.wrapping_add(1);
        let header = Untagged {
            last: true,
            control: Opcode::ReadRequest.control(),
            invalidate: 0,
            qn: rdmap::QN_READ_REQUEST,
            msn: end.reads,
            mo: 0,
        };
        let request = ReadRequest {
            sink_stag: sink,
            sink_to: 0,
            size: source.len,
            source_stag: source.stag.0,
            source_to: source.offset,
        };
        self.fpdu(from, &header.emit(), &request.emit());
    }

    /// Both ends close.
    pub(super) fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            self.packet(From::Here, FIN | ACK, &[]);
            self.packet(From::Peer, FIN | ACK, &[]);
            self.packet(From::Here, ACK, &[]);
        }
    }

    fn end(&mut self, from: From) -> &mut End {
        match from {
            From::Here => &mut self.here,
            From::Peer => &mut self.peer,
        }
    }

    /// A frame of MPA set-up. Private data too long for a real frame, which shared memory allows, is left out.
    fn frame(&mut self, from: From, kind: Kind, private_data: &Bytes) {
        let fits = private_data.len() <= mpa::MAX_PRIVATE_DATA;
        let frame = Frame {
            kind,
            markers: false,
            crc: true,
            rejected: false,
            revision: 1,
            enhanced: None,
            private_data: if fits { private_data.clone() } else { Bytes::new() },
        };
        let mut bytes = Vec::new();
        frame.emit(&mut bytes);
        self.packet(from, PSH | ACK, &bytes);
    }

    fn fpdu(&mut self, from: From, header: &[u8], payload: &[u8]) {
        let ulpdu = (header.len() + payload.len()) as u16;
        let mut bytes = Vec::with_capacity(mpa::fpdu_len(ulpdu));
        bytes.extend_from_slice(&ulpdu.to_be_bytes());
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + mpa::pad(ulpdu), 0);
        let mut crc = Crc::default();
        crc.update(&bytes);
        bytes.extend_from_slice(&crc.field());
        self.packet(from, PSH | ACK, &bytes);
    }

    fn packet(&mut self, from: From, flags: u8, data: &[u8]) {
        let (own, other) = match from {
            From::Here => (&mut self.here, &self.peer),
            From::Peer => (&mut self.peer, &self.here),
        };
        let mut packet = ip_header(own.addr, other.addr, self.number, HEADERS + data.len());
        self.number = self.number.wrapping_add(1);
        packet.extend_from_slice(&own.addr.port().to_be_bytes());
        packet.extend_from_slice(&other.addr.port().to_be_bytes());
        packet.extend_from_slice(&own.next.to_be_bytes());
        let acknowledged = if flags & ACK == 0 { 0 } else { other.next };
        packet.extend_from_slice(&acknowledged.to_be_bytes());
        // Five words of header, the largest window, no checksum, no urgent data.
        packet.extend_from_slice(&[5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend_from_slice(data);
        let numbered = data.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        own.next = own.next.wrapping_add(numbered);
        self.capture.packet(&packet);
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.close();
    }
}

/// Bytes of the two headers.
const HEADERS: usize = 40;
const _: () = assert!(HEADERS + mpa::fpdu_len((PIECE + ddp::UNTAGGED_LEN) as u16) <= u16::MAX as usize);

fn ip_header(from: SocketAddrV4, to: SocketAddrV4, number: u16, len: usize) -> Vec<u8> {
    let mut header = Vec::with_capacity(len);
    header.extend_from_slice(&[0x45, 0]);
    header.extend_from_slice(&(len as u16).to_be_bytes());
    header.extend_from_slice(&number.to_be_bytes());
    // Don't fragment; 64 hops; TCP; the checksum follows.
    header.extend_from_slice(&[0x40, 0, 64, 6, 0, 0]);
    header.extend_from_slice(&from.ip().octets());
    header.extend_from_slice(&to.ip().octets());
    let mut sum: u32 =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    header
}

/// A message in pieces, each with its offset and whether it is the last; an empty message has one piece.
fn pieces(data: &[u8]) -> impl Iterator<Item = (usize, &[u8], bool)> {
    let count = data.len().div_ceil(PIECE).max(1);
    (0..count).map(move |i| {
        let (from, last) = (i * PIECE, i + 1 == count);
        (from, &data[from..if last { data.len() } else { from + PIECE }], last)
    })
}
