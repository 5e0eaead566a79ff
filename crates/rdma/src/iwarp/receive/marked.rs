//! A stream with markers: FPDUs are taken out of it whole, without them.
//!
//! Spec: RFC 5044 4.3 (where markers stand and what they say), 4.4 (the CRC covers them), 8 (errors).
//! Owns: the bytes of the FPDU that is arriving. Does not: look into FPDUs; they go to the ring as if there had been no
//! markers, and no CRC to check.
//!
//! ```text
//! | marker 0 | length, header, payload ... | marker | ... pad | CRC |     508 bytes between two markers;
//!            ^------- its FPDUPTR ---------^                            all of it is a multiple of four
//! ```
//!
//! In order and over a socket markers serve nobody; they are asked for where a user's configuration says so, and cost a copy of
//! everything received.

use weft_machine::buf;
use weft_wire::mpa::{self, CRC_LEN, Crc, LENGTH_LEN, MARKER_INTERVAL, MARKER_LEN};

use super::Ring;
use crate::iwarp::terminate::Fault;

/// Bytes between two markers.
const BETWEEN: usize = MARKER_INTERVAL - MARKER_LEN;
/// The longest FPDU with its markers.
const LONGEST: usize = mpa::MAX_FPDU + (mpa::MAX_FPDU / BETWEEN + 2) * MARKER_LEN;

/// The received stream.
pub(super) struct Marked {
    /// Two of the longest, so that the last one's rest and the next one fit.
    bytes: Box<[u8]>,
    len: usize,
    /// Stream bytes from the start of `bytes` to the next marker; 0: it stands there.
    until: usize,
    crc: bool,
}

/// Where an FPDU lies that is there whole.
struct Whole {
    /// Bytes of a marker in front of it.
    lead: usize,
    /// Its length without markers.
    len: usize,
    /// Its length with the markers inside, and `lead`.
    raw: usize,
}

impl Marked {
    pub(super) fn new(crc: bool) -> Marked {
        Marked { bytes: vec![0; 2 * LONGEST].into(), len: 0, until: 0, crc }
    }

    /// Where the next bytes go; never empty, as an FPDU that is whole has left.
    pub(super) fn free(&mut self) -> &mut [u8] {
        &mut self.bytes[self.len..]
    }

    pub(super) fn commit(&mut self, n: usize) {
        self.len += n;
        assert!(self.len <= self.bytes.len(), "more received than there was room for");
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Moves the next FPDU to the ring, if it is there whole.
    pub(super) fn next(&mut self, ring: &mut Ring) -> Result<bool, Fault> {
        let Some(whole) = self.whole() else { return Ok(false) };
        let raw = &self.bytes[..whole.raw];
        // The CRC comes first: what does not match is not interpreted.
        if self.crc {
            let (covered, field) = raw.split_at(whole.raw - CRC_LEN);
            let mut crc = Crc::default();
            crc.update(covered);
            if crc.field() != field {
                return Err(Fault::Crc);
            }
        }
        if whole.lead > 0 && pointer(raw) != 0 {
            return Err(Fault::Framing);
        }
        let mut left = whole.len;
        let mut at = whole.lead;
        let mut until = if whole.lead > 0 { BETWEEN } else { self.until };
        loop {
            let part = until.min(left);
            ring.append(&raw[at..at + part]);
            (left, at, until) = (left - part, at + part, until - part);
            if left == 0 {
                break;
            }
            if pointer(&raw[at..]) != at - whole.lead {
                return Err(Fault::Framing);
            }
            at += MARKER_LEN;
            until = BETWEEN;
        }
        self.until = until;
        self.bytes.copy_within(whole.raw..self.len, 0);
        self.len -= whole.raw;
        Ok(true)
    }

    fn whole(&self) -> Option<Whole> {
        let lead = if self.until == 0 { MARKER_LEN } else { 0 };
        // Markers and FPDUs are multiples of four: none stands inside the length.
        let length = self.bytes[..self.len].get(lead..lead + LENGTH_LEN)?;
        let len = mpa::fpdu_len(u16::from_be_bytes([length[0], length[1]]));
        let before = if lead > 0 { BETWEEN } else { self.until };
        // One that would follow the last byte belongs to the next FPDU.
        let inside = if len > before { 1 + (len - before - 1) / BETWEEN } else { 0 };
        let raw = lead + len + inside * MARKER_LEN;
        (self.len >= raw).then_some(Whole { lead, len, raw })
    }
}

/// FPDUPTR: how far back the FPDU begins that the marker stands in. Its two low bits are not looked at.
fn pointer(marker: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([marker[2], marker[3]]) & !3)
}

impl Ring {
    /// Puts bytes behind what is there; there is room.
    fn append(&mut self, bytes: &[u8]) {
        let (first, second) = self.free(bytes.len());
        let (to_first, to_second) = bytes.split_at(first.len());
        buf::copy(first, to_first);
        buf::copy(second, to_second);
        self.commit(bytes.len());
    }
}
