//! What each fault is called: on the wire (Terminate), to the user who is refused, and to the user who refuses.
//!
//! Spec: RFC 5040 4.8 figure 9; RFC 5041 7.2; RFC 5044 8; RFC 6581 8. Owns: the table. Does not: send anything.
//!
//! One table serves both directions, so what we say and what we understand cannot drift apart. Access rights on an
//! RDMA Write have no code at the DDP layer; like hardware, we answer with RDMAP's.

use weft_wire::rdmap::QN_READ_REQUEST;
use weft_wire::{ddp, rdmap};

use crate::verbs::{Disconnect, Refusal};

/// Something that ends the stream, detected here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// We cannot go on, through no fault of the peer.
    Local,
    ReadInvalidStag,
    ReadBounds,
    ReadAccess,
    ReadWrap,
    CannotInvalidate,
    RdmapVersion,
    UnexpectedOpcode,
    /// A Read Request or Terminate that is not one.
    MalformedControl,
    InvalidStag,
    Bounds,
    Access,
    Wrap,
    TaggedVersion,
    InvalidQueue,
    NoBuffer,
    TooManyReads,
    MsnRange,
    InvalidOffset,
    TooLong,
    UntaggedVersion,
    Crc,
    /// A length that no FPDU of this stream can have.
    Framing,
    /// The responder wants more Reads at once than this side offered.
    InsufficientIrd,
    /// No ready-to-receive indication that both sides know.
    NoRtr,
}

struct Row {
    fault: Fault,
    layer: u8,
    etype: u8,
    code: u8,
    /// What the user of the refused side is told; `None`: the raw numbers.
    refusal: Option<Refusal>,
    /// What the user of the refusing side is told when there is no `refusal`.
    what: &'static str,
}

const fn row(fault: Fault, numbers: (u8, u8, u8), refusal: Option<Refusal>, what: &'static str) -> Row {
    Row { fault, layer: numbers.0, etype: numbers.1, code: numbers.2, refusal, what }
}

// The first row of equal numbers is the one that a received Terminate means.
const TABLE: &[Row] = &[
    row(Fault::Local, (0, 0, 0), None, "local failure"),
    row(Fault::ReadInvalidStag, (0, 1, 0x00), Some(Refusal::InvalidStag), "Read of an invalid STag"),
    row(Fault::ReadBounds, (0, 1, 0x01), Some(Refusal::Bounds), "Read out of bounds"),
    row(Fault::ReadAccess, (0, 1, 0x02), Some(Refusal::Access), "Read without the right"),
    row(Fault::Access, (0, 1, 0x02), Some(Refusal::Access), "Write without the right"),
    row(Fault::ReadWrap, (0, 1, 0x04), Some(Refusal::Bounds), "Read wraps around"),
    row(Fault::CannotInvalidate, (0, 1, 0x09), Some(Refusal::CannotInvalidate), "STag cannot be invalidated"),
    row(Fault::RdmapVersion, (0, 2, 0x05), None, "RDMAP version"),
    row(Fault::UnexpectedOpcode, (0, 2, 0x06), None, "unexpected RDMAP opcode"),
    row(Fault::MalformedControl, (0, 2, 0xff), None, "malformed RDMAP header"),
    row(Fault::InvalidStag, (1, 1, 0x00), Some(Refusal::InvalidStag), "Write to an invalid STag"),
    row(Fault::Bounds, (1, 1, 0x01), Some(Refusal::Bounds), "Write out of bounds"),
    row(Fault::Wrap, (1, 1, 0x03), Some(Refusal::Bounds), "Write wraps around"),
    row(Fault::TaggedVersion, (1, 1, 0x04), None, "DDP version in a tagged segment"),
    row(Fault::InvalidQueue, (1, 2, 0x01), None, "DDP queue number"),
    row(Fault::NoBuffer, (1, 2, 0x02), Some(Refusal::NoBuffer), "no buffer"),
    row(Fault::TooManyReads, (1, 2, 0x02), Some(Refusal::TooManyReads), "too many Reads"),
    row(Fault::MsnRange, (1, 2, 0x03), None, "DDP message sequence number"),
    row(Fault::InvalidOffset, (1, 2, 0x04), None, "DDP message offset"),
    row(Fault::TooLong, (1, 2, 0x05), Some(Refusal::TooLong), "message too long"),
    row(Fault::UntaggedVersion, (1, 2, 0x06), None, "DDP version in an untagged segment"),
    row(Fault::Crc, (2, 0, 0x02), None, "CRC of an FPDU does not match"),
    row(Fault::Framing, (2, 0, 0x03), None, "FPDU length or header"),
    row(Fault::InsufficientIrd, (2, 0, 0x06), None, "more RDMA Reads than were offered"),
    row(Fault::NoRtr, (2, 0, 0x07), None, "no common ready-to-receive indication"),
];

/// Most peers that are not ours say that a Write was refused by one of these instead: RDMAP's codes for what DDP has
/// codes for as well, and the other way round.
const SYNONYMS: &[((u8, u8, u8), Refusal)] = &[
    ((0, 1, 0x03), Refusal::NotAssociated),
    ((1, 1, 0x02), Refusal::NotAssociated),
    ((0, 2, 0x09), Refusal::CannotInvalidate),
];

impl Fault {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.fault == self).expect("every fault has its row; a test looks at each")
    }

    /// What ends the stream here.
    pub(super) fn disconnect(self) -> Disconnect {
        let row = self.row();
        row.refusal.map_or(Disconnect::Violation(row.what), Disconnect::Refused)
    }

    /// The Terminate that reports it. RFC 5040 figure 10 says which headers go with it: none from MPA and for local
    /// failures, the DDP header otherwise, and the Read Request with it when one was refused by RDMAP.
    pub(super) fn terminate(self, refused: Option<Refused>) -> rdmap::Terminate {
        let row = self.row();
        let with_header = row.layer == 1 || (row.layer == 0 && row.etype != 0);
        let refused = refused.filter(|_| with_header);
        rdmap::Terminate {
            layer: row.layer,
            etype: row.etype,
            code: row.code,
            segment_len: refused.map(|r| r.segment_len),
            header: refused.map(|r| r.header),
            read: refused.and_then(|r| r.read).filter(|_| row.layer == 0 && row.etype == 1),
        }
    }
}

/// The segment that a Terminate answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) segment_len: u16,
    pub(super) header: ddp::Header,
    pub(super) read: Option<rdmap::ReadRequest>,
}

/// What a received Terminate means to the user whose work it refuses.
pub(super) fn refusal(terminate: &rdmap::Terminate) -> Refusal {
    let numbers = (terminate.layer, terminate.etype, terminate.code);
    let read_queue = matches!(terminate.header, Some(ddp::Header::Untagged(h)) if h.qn == QN_READ_REQUEST);
    let known = TABLE
        .iter()
        .filter(|row| (row.layer, row.etype, row.code) == numbers)
        .find(|row| (row.fault == Fault::TooManyReads) == read_queue || row.fault != Fault::NoBuffer)
        .and_then(|row| row.refusal)
        .or_else(|| SYNONYMS.iter().find(|(synonym, _)| *synonym == numbers).map(|(_, refusal)| *refusal));
    let (layer, etype, code) = numbers;
    known.unwrap_or(Refusal::Other { layer, etype, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(qn: u32) -> Refused {
        let header = ddp::Untagged { last: true, control: 0x41, invalidate: 0, qn, msn: 1, mo: 0 };
        Refused { segment_len: 46, header: ddp::Header::Untagged(header), read: None }
    }

    #[test]
    fn what_we_say_is_what_we_understand() {
        for row in TABLE {
            let queue = if row.fault == Fault::TooManyReads { QN_READ_REQUEST } else { 0 };
            let terminate = row.fault.terminate(Some(header(queue)));
            let understood = refusal(&terminate);
            match (row.fault.disconnect(), understood) {
                (Disconnect::Refused(said), heard) => assert_eq!(said, heard, "{:?}", row.fault),
                (Disconnect::Violation(_), Refusal::Other { layer, etype, code }) => {
                    assert_eq!((layer, etype, code), (row.layer, row.etype, row.code));
                }
                other => panic!("{:?}: {other:?}", row.fault),
            }
        }
    }

    #[test]
    fn headers_go_where_figure_10_says() {
        assert!(Fault::Crc.terminate(Some(header(0))).header.is_none());
        assert!(Fault::Local.terminate(Some(header(0))).header.is_none());
        assert!(Fault::NoBuffer.terminate(Some(header(0))).header.is_some());
        let read = rdmap::ReadRequest { sink_stag: 1, sink_to: 2, size: 3, source_stag: 4, source_to: 5 };
        let refused = Refused { read: Some(read), ..header(1) };
        assert_eq!(Fault::ReadBounds.terminate(Some(refused)).read, Some(read));
        assert!(Fault::TooManyReads.terminate(Some(refused)).read.is_none());
    }
}
