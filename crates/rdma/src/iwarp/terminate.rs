//! Maps each fault to its Terminate on the wire, and to the errors for the refused and the refusing user.
//!
//! The codes are those of RFC 5040 4.8 figure 9, RFC 5041 7.2, RFC 5044 8 and RFC 6581 8.
//!
//! One table serves both directions, so what we send and what we understand cannot drift apart. DDP has no code for
//! access rights on an RDMA Write; like hardware, we answer with RDMAP's.

use weft_wire::rdmap::QN_READ_REQUEST;
use weft_wire::{ddp, rdmap};

use crate::verbs::{Disconnect, Refusal};

/// A fault detected here that ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// We cannot continue, through no fault of the peer.
    Local,
    ReadInvalidStag,
    ReadBounds,
    ReadAccess,
    ReadWrap,
    CannotInvalidate,
    RdmapVersion,
    UnexpectedOpcode,
    /// A malformed Read Request or Terminate.
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
    /// The error for the user of the refused side; `None`: the raw numbers.
    refusal: Option<Refusal>,
    /// The error for the user of the refusing side, when there is no `refusal`.
    what: &'static str,
}

const fn row(fault: Fault, numbers: (u8, u8, u8), refusal: Option<Refusal>, what: &'static str) -> Row {
    Row { fault, layer: numbers.0, etype: numbers.1, code: numbers.2, refusal, what }
}

// Where rows have equal numbers, a received Terminate means the first.
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

/// Most other implementations refuse a Write with one of these instead: RDMAP codes for errors that DDP has codes for
/// as well, and the other way round.
const SYNONYMS: &[((u8, u8, u8), Refusal)] = &[
    ((0, 1, 0x03), Refusal::NotAssociated),
    ((1, 1, 0x02), Refusal::NotAssociated),
    ((0, 2, 0x09), Refusal::CannotInvalidate),
];

impl Fault {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.fault == self).expect("every fault has its row; a test looks at each")
    }

    /// The error that this fault gives the local user.
    pub(super) fn disconnect(self) -> Disconnect {
        let row = self.row();
        row.refusal.map_or(Disconnect::Violation(row.what), Disconnect::Refused)
    }

    /// The Terminate that reports it. RFC 5040 figure 10 says which headers it includes: none for MPA and local
    /// failures, otherwise the DDP header, and also the Read Request if RDMAP refused one.
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

/// All numbers that we can send.
#[cfg(test)]
pub(super) fn all_numbers() -> Vec<rdmap::TerminateNumbers> {
    TABLE.iter().map(|row| (row.layer, row.etype, row.code)).collect()
}

/// The segment that a Terminate answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) segment_len: u16,
    pub(super) header: ddp::Header,
    pub(super) read: Option<rdmap::ReadRequest>,
}

/// What a received Terminate means to the user whose work was refused.
///
/// Linux's siw (6.12) swaps layer and error type. Numbers that no specification defines are read swapped if that gives
/// a defined meaning; numbers that are defined as they stand keep that meaning, whether siw sent them or not. If both
/// readings are defined and the direct one is nothing that work can be refused for, the result is [`Refusal::Other`],
/// which names both.
pub(super) fn refusal(terminate: &rdmap::Terminate) -> Refusal {
    let (layer, etype, code) = (terminate.layer, terminate.etype, terminate.code);
    let numbers = match rdmap::terminate_name((layer, etype, code)) {
        Some(_) => (layer, etype, code),
        None => (etype, layer, code),
    };
    known(numbers, terminate).unwrap_or(Refusal::Other { layer, etype, code })
}

/// The refusal that `numbers` mean, if they refuse work.
fn known(numbers: rdmap::TerminateNumbers, terminate: &rdmap::Terminate) -> Option<Refusal> {
    let read_queue = matches!(terminate.header, Some(ddp::Header::Untagged(h)) if h.qn == QN_READ_REQUEST);
    TABLE
        .iter()
        .filter(|row| (row.layer, row.etype, row.code) == numbers)
        .find(|row| (row.fault == Fault::TooManyReads) == read_queue || row.fault != Fault::NoBuffer)
        .and_then(|row| row.refusal)
        .or_else(|| SYNONYMS.iter().find(|(synonym, _)| *synonym == numbers).map(|(_, refusal)| *refusal))
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

    /// Codes that we never send, and why.
    const NEVER_SENT: &[(rdmap::TerminateNumbers, &str)] = &[
        ((0, 1, 0x03), "an STag of another stream is not known to this one: it is invalid"),
        ((0, 1, 0xff), "each protection error has its code"),
        ((0, 2, 0x07), "a failure of ours is local, (0, 0)"),
        ((0, 2, 0x08), "a failure of ours is local, (0, 0)"),
        ((0, 2, 0x09), "said as a protection error, (0, 1, 9)"),
        ((1, 0, 0x00), "a failure of ours is local, (0, 0)"),
        ((1, 1, 0x02), "an STag of another stream is not known to this one: it is invalid"),
        ((2, 0, 0x01), "there is nothing left to say it on"),
        ((2, 0, 0x04), "RFC 5044 8: the connection is closed at once"),
        ((2, 0, 0x05), "nothing local fails between the MPA reply and the first FPDU"),
    ];

    #[test]
    fn what_we_say_is_in_the_specifications_and_what_we_do_not_has_a_reason() {
        for row in TABLE {
            let numbers = (row.layer, row.etype, row.code);
            assert!(
                rdmap::terminate_name(numbers).is_some()
                    && NEVER_SENT.iter().all(|(never, _)| *never != numbers),
                "{:?}",
                row.fault
            );
        }
        for (numbers, name) in rdmap::TERMINATES {
            let sent = TABLE.iter().any(|row| (row.layer, row.etype, row.code) == *numbers);
            let never = NEVER_SENT.iter().any(|(never, _)| never == numbers);
            assert!(sent != never, "{numbers:?} {name}");
        }
    }

    /// Every fault, as a peer sends it that swaps layer and type.
    #[test]
    fn a_peer_that_swaps_layer_and_type_is_understood_where_that_makes_sense() {
        for row in TABLE {
            let queue = if row.fault == Fault::TooManyReads { QN_READ_REQUEST } else { 0 };
            let said = row.fault.terminate(Some(header(queue)));
            let heard = refusal(&rdmap::Terminate { layer: said.etype, etype: said.layer, ..said });
            match (row.refusal, heard) {
                (Some(meant), heard) if heard == meant => {}
                // Both readings are defined, and this one refuses nothing.
                (_, Refusal::Other { layer, etype, code }) => {
                    assert_eq!((layer, etype, code), (row.etype, row.layer, row.code));
                    let words = heard.to_string();
                    let name = rdmap::terminate_name((row.layer, row.etype, row.code)).unwrap();
                    assert!(words.contains(name), "{words}");
                    let ambiguous = rdmap::terminate_name((layer, etype, code)).is_some() && layer != etype;
                    assert_eq!(words.contains("; or,"), ambiguous, "{words}");
                }
                (meant, heard) => panic!("{:?}: {meant:?} was heard as {heard:?}", row.fault),
            }
        }
        // The Terminate that siw 6.12 sends for a message without a buffer.
        let seen =
            rdmap::Terminate { layer: 2, etype: 1, code: 2, segment_len: None, header: None, read: None };
        assert_eq!(refusal(&seen), Refusal::NoBuffer);
        let raw = Refusal::Other { layer: 3, etype: 7, code: 0x55 };
        assert_eq!(raw.to_string(), "Terminate layer 3 type 7 code 0x55");
        let both = Refusal::Other { layer: 2, etype: 0, code: 6 };
        assert_eq!(
            both.to_string(),
            "Terminate layer 2 type 0 code 0x06 (MPA: insufficient IRD; or, from a peer that swaps layer and type as \
             Linux's siw does, RDMAP: unexpected opcode)"
        );
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
