//! Takes whole FPDUs out of a stream with markers, and removes the markers.
//!
//! Implements RFC 5044 4.3 (position and content of markers), 4.4 (the CRC covers them) and 8 (errors). It owns the
//! bytes of the FPDU that is arriving. It does not interpret FPDUs; they go to the ring as if the stream had neither
//! markers nor CRCs.
//!
//! ```text
//! | marker 0 | length, header, payload ... | marker | ... pad | CRC |     508 bytes between two markers;
//!            ^------- its FPDUPTR ---------^                            all of it is a multiple of four
//! ```
//!
//! On an ordered socket markers serve no purpose; they are used only if the configuration asks for them, and cost a
//! copy of everything received.

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
    /// Room for two of the longest, so that the remainder of one and all of the next fit.
    bytes: Box<[u8]>,
    len: usize,
    /// Stream bytes from the start of `bytes` to the next marker; 0: the marker is there.
    until: usize,
    crc: bool,
}

/// The position of an FPDU that has arrived completely.
struct CompleteFpdu {
    /// A marker precedes it.
    has_lead: bool,
    /// Its length without markers.
    len: usize,
    /// Its length including the markers inside and in front.
    raw: usize,
}

impl Marked {
    pub(super) fn new(crc: bool) -> Marked {
        Marked { bytes: vec![0; 2 * LONGEST].into(), len: 0, until: 0, crc }
    }

    /// Where the next bytes go; never empty, because a complete FPDU has left the buffer.
    pub(super) fn free(&mut self) -> &mut [u8] {
        self.bytes.split_at_mut(self.len).1
    }

    pub(super) fn commit(&mut self, n: usize) {
        self.len = self.len.saturating_add(n);
        assert!(self.len <= self.bytes.len(), "more received than there was room for");
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Moves the next FPDU to the ring, if it has arrived completely.
    pub(super) fn next(&mut self, ring: &mut Ring) -> Result<bool, Fault> {
        let Some(fpdu) = self.complete_fpdu() else { return Ok(false) };
        let raw = self.bytes.split_at(fpdu.raw).0;
        // The CRC is checked first: nothing that does not match is interpreted.
        if self.crc {
            let (covered, field) = raw.split_last_chunk::<CRC_LEN>().ok_or(Fault::Framing)?;
            let mut crc = Crc::default();
            crc.update(covered);
            if crc.field() != *field {
                return Err(Fault::Crc);
            }
        }
        let (mut rest, mut until) = (raw, self.until);
        if fpdu.has_lead {
            rest = behind_marker(rest, 0)?;
            until = BETWEEN;
        }
        let mut left = fpdu.len;
        // Stream bytes since the length field, including markers: the value of FPDUPTR.
        let mut since = 0usize;
        loop {
            let (part, behind) = rest.split_at_checked(until.min(left)).ok_or(Fault::Framing)?;
            ring.append(part);
            left = left.saturating_sub(part.len());
            until = until.saturating_sub(part.len());
            if left == 0 {
                break;
            }
            since = since.saturating_add(part.len());
            rest = behind_marker(behind, since)?;
            since = since.saturating_add(MARKER_LEN);
            until = BETWEEN;
        }
        self.until = until;
        self.bytes.copy_within(fpdu.raw..self.len, 0);
        self.len = self.len.saturating_sub(fpdu.raw);
        Ok(true)
    }

    fn complete_fpdu(&self) -> Option<CompleteFpdu> {
        let has_lead = self.until == 0;
        let (lead, before) = if has_lead { (MARKER_LEN, BETWEEN) } else { (0, self.until) };
        // Markers and FPDUs are multiples of four, so no marker splits the length field.
        let length = self.bytes.get(..self.len)?.get(lead..)?.first_chunk::<LENGTH_LEN>()?;
        let len = mpa::fpdu_len(u16::from_be_bytes(*length));
        // A marker directly after the last byte belongs to the next FPDU.
        let inside = len.saturating_sub(before).div_ceil(BETWEEN);
        let raw = lead.saturating_add(len).saturating_add(inside.saturating_mul(MARKER_LEN));
        (self.len >= raw).then_some(CompleteFpdu { has_lead, len, raw })
    }
}

/// What follows the marker at the start of `raw`. Its FPDUPTR must be `since`, the distance back to the start of its
/// FPDU; the two low bits are ignored.
fn behind_marker(raw: &[u8], since: usize) -> Result<&[u8], Fault> {
    let (&[_, _, high, low], behind) = raw.split_first_chunk::<MARKER_LEN>().ok_or(Fault::Framing)?;
    if usize::from(u16::from_be_bytes([high, low]) & !3) == since { Ok(behind) } else { Err(Fault::Framing) }
}

impl Ring {
    /// Appends bytes; the caller ensures that they fit.
    fn append(&mut self, bytes: &[u8]) {
        let (first, second) = self.free(bytes.len());
        let (to_first, to_second) = bytes.split_at(first.len());
        buf::copy(first, to_first);
        buf::copy(second, to_second);
        self.commit(bytes.len());
    }
}
