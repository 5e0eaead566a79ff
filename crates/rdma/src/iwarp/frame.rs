//! The output of a connection: FPDUs as pieces for one gather write, never copied together.
//!
//! Implements RFC 5044 4.1 (FPDU), 4.3 (markers) and 4.4 (CRC). It owns headers, trailers and the handles of payload
//! until the socket has taken them. `send` decides what is sent next.
//!
//! The small parts (lengths, headers, pads, CRCs, markers) are contiguous in `small`, so that the trailer of one FPDU
//! and the header of the next are one piece; payload stays in its own buffers. `small` is emptied when everything has
//! been sent.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use weft_machine::{FileRange, buf};
use weft_wire::mpa::{self, Crc, Shift};
use weft_wire::{ddp, rdmap};

/// Payload of up to this many bytes is copied between the headers: gathering it from its own buffer costs more.
const INLINE_BYTES: usize = 64;

/// FPDUs that wait for the socket.
pub(super) struct Out {
    small: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were already sent.
    skip: usize,
    /// Bytes not sent yet.
    len: usize,
    /// Nothing of the batch has been sent yet, so it may grow. (`small` must not grow without bound.)
    fresh: bool,
    /// Bytes ever queued: the stream position of the queue's end.
    end: u64,
    crc: Option<Crc>,
    markers: Option<Markers>,
}

enum Piece {
    Small {
        start: usize,
        len: usize,
    },
    Payload(Bytes),
    /// A range that the socket sends from the page cache itself.
    File(FileRange),
}

/// What to send next.
pub(super) enum Next<'a> {
    /// Nothing waits.
    Nothing,
    /// `filled` of the slices; with `more`, a file follows at once.
    Slices { filled: usize, more: bool },
    /// `range`, without its first `from` bytes.
    File { range: &'a FileRange, from: usize },
}

/// Where the next marker is due.
struct Markers {
    /// Stream bytes until then; 0: before the next byte.
    until: usize,
    /// Stream bytes since the current FPDU's length field.
    since: usize,
}

impl Out {
    pub(super) fn new(crc: bool, markers: bool) -> Out {
        Out {
            small: Vec::new(),
            pieces: VecDeque::new(),
            skip: 0,
            len: 0,
            fresh: true,
            end: 0,
            crc: crc.then(Crc::default),
            // The first marker precedes the first FPDU (RFC 5044 7.1.2 rule 7).
            markers: markers.then_some(Markers { until: 0, since: 0 }),
        }
    }

    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether more may be queued: not while a batch is partly sent.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Pieces that wait.
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of headers, trailers and short payload that wait.
    pub(super) fn small_bytes(&self) -> usize {
        self.small.len()
    }

    /// The stream position of the end of the queue.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Begins an FPDU whose segment consists of `header` and `payload` bytes that follow.
    pub(super) fn begin(&mut self, header: &[u8], payload: usize) {
        let ulpdu = header.len().saturating_add(payload);
        assert!(ulpdu <= usize::from(u16::MAX), "a segment is cut to fit its FPDU");
        if let Some(crc) = &mut self.crc {
            *crc = Crc::default();
        }
        self.begin_markers();
        let mut start = [0; mpa::LENGTH_LEN + ddp::UNTAGGED_LEN];
        let (length, rest) = start.split_at_mut(mpa::LENGTH_LEN);
        length.copy_from_slice(&(ulpdu as u16).to_be_bytes());
        match rest.split_at_mut_checked(header.len()) {
            Some((place, _)) => {
                place.copy_from_slice(header);
                self.put_small(start.split_at(mpa::LENGTH_LEN.saturating_add(header.len())).0);
            }
            None => unreachable!("no segment has a longer header than an untagged one"),
        }
    }

    /// A marker between two FPDUs belongs to the second and holds zero; later markers hold the distance back to the
    /// length field, which follows that first marker (RFC 5044 4.3).
    fn begin_markers(&mut self) {
        let reset = |markers: &mut Option<Markers>| markers.iter_mut().for_each(|markers| markers.since = 0);
        reset(&mut self.markers);
        self.room();
        reset(&mut self.markers);
    }

    /// Adds payload to the segment.
    pub(super) fn payload(&mut self, mut bytes: Bytes) {
        if bytes.len() <= INLINE_BYTES {
            return self.put_small(&bytes);
        }
        while !bytes.is_empty() {
            let room = self.room();
            let part = bytes.split_to(room.min(bytes.len()));
            self.account(&part);
            self.pieces.push_back(Piece::Payload(part));
        }
    }

    /// Adds payload with its known CRC32C and the shift over its length. Only without markers.
    pub(super) fn payload_summed(&mut self, bytes: Bytes, sum: u32, shift: &Shift) {
        assert!(self.markers.is_none() && shift.len() == bytes.len());
        if let Some(crc) = &mut self.crc {
            crc.append(sum, shift);
        }
        self.grow(bytes.len());
        self.pieces.push_back(Piece::Payload(bytes));
    }

    /// Whether precomputed checksums of payload can be used.
    pub(super) fn takes_sums(&self) -> bool {
        self.crc.is_some() && self.markers.is_none()
    }

    /// Whether payload may stay in its file: only when neither a CRC nor markers need its bytes.
    pub(super) fn takes_files(&self) -> bool {
        self.crc.is_none() && self.markers.is_none()
    }

    /// Adds a range of a file, which is the whole payload of this segment. Only if [`Out::takes_files`].
    pub(super) fn file(&mut self, range: FileRange) {
        assert!(self.takes_files(), "a CRC or markers need the bytes");
        self.grow(range.len);
        self.pieces.push_back(Piece::File(range));
    }

    /// Ends the FPDU: pad and CRC. `ulpdu` is the length of header and payload together.
    pub(super) fn finish(&mut self, ulpdu: usize) {
        self.put_small([0; 3].split_at(mpa::pad(ulpdu as u16)).0);
        // A marker between pad and CRC belongs to this FPDU; a marker after the CRC belongs to the next.
        self.room();
        let sum = self.crc.take();
        self.put_small(&sum.map_or([0; mpa::CRC_LEN], Crc::field));
        // The field itself is in no sum, and the next FPDU begins its own.
        self.crc = sum;
    }

    /// Writes headers and other short bytes into the arena.
    pub(super) fn put_small(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let (part, rest) = bytes.split_at(room.min(bytes.len()));
            self.account(part);
            self.append(part);
            bytes = rest;
        }
    }

    /// How many bytes may follow before the next marker; first writes a marker that is due.
    fn room(&mut self) -> usize {
        let Some(markers) = &mut self.markers else { return usize::MAX };
        if markers.until == 0 {
            markers.until = mpa::MARKER_INTERVAL;
            let marker = mpa::marker(markers.since as u16);
            self.account(&marker);
            self.append(&marker);
        }
        self.markers.as_ref().map_or(usize::MAX, |m| m.until)
    }

    fn account(&mut self, bytes: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
        if let Some(markers) = &mut self.markers {
            // `room` returned no more than the distance to the next marker.
            markers.until = markers.until.saturating_sub(bytes.len());
            markers.since = markers.since.saturating_add(bytes.len());
        }
        self.grow(bytes.len());
    }

    /// Accounts for `n` bytes appended to the queue.
    fn grow(&mut self, n: usize) {
        self.len = self.len.saturating_add(n);
        self.end = self.end.saturating_add(n as u64);
    }

    fn append(&mut self, bytes: &[u8]) {
        let start = self.small.len();
        self.small.extend_from_slice(bytes);
        match self.pieces.back_mut() {
            Some(Piece::Small { len, .. }) => *len = len.saturating_add(bytes.len()),
            _ => self.pieces.push_back(Piece::Small { start, len: bytes.len() }),
        }
    }

    /// Fills `slices` with what to send next, up to the first file.
    pub(super) fn next<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> Next<'a> {
        let mut skip = self.skip;
        let mut filled = 0usize;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            let bytes: &[u8] = match piece {
                Piece::Small { start, len } => self.small.split_at(*start).1.split_at(*len).0,
                Piece::Payload(bytes) => bytes,
                Piece::File(range) if filled == 0 => return Next::File { range, from: skip },
                Piece::File(_) => return Next::Slices { filled, more: true },
            };
            *slot = IoSlice::new(bytes.split_at(std::mem::take(&mut skip)).1);
            filled = filled.saturating_add(1);
        }
        if filled == 0 { Next::Nothing } else { Next::Slices { filled, more: false } }
    }

    /// The socket took `n` bytes; their buffers are released.
    pub(super) fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "more sent than there was");
        self.len = self.len.saturating_sub(n);
        self.skip = self.skip.saturating_add(n);
        self.fresh = self.len == 0;
        while let Some(piece) = self.pieces.front() {
            let len = match piece {
                Piece::Small { len, .. } => *len,
                Piece::Payload(bytes) => bytes.len(),
                Piece::File(range) => range.len,
            };
            let Some(behind) = self.skip.checked_sub(len) else { return };
            self.skip = behind;
            self.pieces.pop_front();
        }
        self.small.clear();
    }

    /// Gives every payload that `wanted` selects its own copy, so that its owner can have the buffer back.
    pub(super) fn unshare(&mut self, wanted: impl Fn(&Bytes) -> bool) {
        for piece in &mut self.pieces {
            if let Piece::Payload(bytes) = piece
                && wanted(bytes)
            {
                let mut copy = vec![0; bytes.len()];
                buf::copy(&mut copy, bytes);
                *bytes = copy.into();
            }
        }
    }

    /// Discards everything: the socket is gone.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.small.clear();
        self.skip = 0;
        self.len = 0;
        self.fresh = true;
    }

    /// Queues a whole Terminate message.
    pub(super) fn terminate(&mut self, terminate: &rdmap::Terminate) {
        let mut body = Vec::with_capacity(rdmap::MAX_TERMINATE_LEN);
        terminate.emit(&mut body);
        let header = ddp::Untagged {
            last: true,
            control: rdmap::Opcode::Terminate.control(),
            invalidate: 0,
            qn: rdmap::QN_TERMINATE,
            msn: 1,
            mo: 0,
        };
        self.begin(&header.emit(), body.len());
        self.put_small(&body);
        self.finish(ddp::UNTAGGED_LEN.saturating_add(body.len()));
    }
}

/// The bytes of a Terminate that is the first and last FPDU of its stream.
pub(super) fn lone_terminate(terminate: &rdmap::Terminate, crc: bool) -> Vec<u8> {
    let mut out = Out::new(crc, false);
    out.terminate(terminate);
    out.small
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(out: &Out) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 64];
        let Next::Slices { filled, more: false } = out.next(&mut slices) else { return Vec::new() };
        slices[..filled].iter().flat_map(|s| s.to_vec()).collect()
    }

    fn send_header(msn: u32) -> [u8; ddp::UNTAGGED_LEN] {
        ddp::Untagged { last: true, control: 0x43, invalidate: 0, qn: 0, msn, mo: 0 }.emit()
    }

    /// RFC 5044 figures 5 and 6: the first FPDU with its marker, and a later one with a marker inside.
    #[test]
    fn the_marker_examples_of_rfc_5044() {
        let mut out = Out::new(true, true);
        out.begin(&send_header(1), 24);
        out.payload(Bytes::from_static(&[0; 24]));
        out.finish(42);
        let bytes = sent(&out);
        assert_eq!(bytes.len(), 0x34);
        assert_eq!(bytes[..8], [0, 0, 0, 0, 0x00, 0x2a, 0x41, 0x43]);
        assert_eq!(bytes[0x30..], [0x52, 0x23, 0x99, 0x83]);
        // The second example begins at stream offset 0x1ec, after a first FPDU of 492 bytes with its marker.
        let mut out = Out::new(true, true);
        let payload = 0x1ec - 4 - 2 - ddp::UNTAGGED_LEN - 4;
        out.begin(&send_header(1), payload);
        out.payload(vec![0; payload].into());
        out.finish(ddp::UNTAGGED_LEN + payload);
        assert_eq!(out.len(), 0x1ec);
        out.advance(0x1ec);
        out.begin(&send_header(2), 24);
        out.payload(Bytes::from_static(&[0; 24]));
        out.finish(42);
        let bytes = sent(&out);
        assert_eq!(bytes[0x14..0x18], [0, 0, 0, 0x14]);
        assert_eq!(bytes[bytes.len() - 4..], [0x84, 0x92, 0x58, 0x98]);
    }

    /// In the first FPDU of a stream, which follows its own marker, the next marker (byte 512) used to hold 512.
    #[test]
    fn a_marker_points_at_the_length_field_and_not_at_the_marker_before_it() {
        let mut out = Out::new(true, true);
        out.begin(&send_header(1), 1200);
        out.payload(vec![0; 1200].into());
        out.finish(ddp::UNTAGGED_LEN + 1200);
        let bytes = sent(&out);
        assert_eq!(bytes[..4], [0, 0, 0, 0]);
        assert_eq!(bytes[512..516], [0, 0, 0x01, 0xfc]);
        assert_eq!(bytes[1024..1028], [0, 0, 0x03, 0xfc]);
    }

    #[test]
    fn trailer_and_next_header_are_one_piece_and_payload_is_not_copied() {
        let payload = Bytes::from(vec![7; 1000]);
        let mut out = Out::new(true, false);
        for msn in 1..=3 {
            out.begin(&send_header(msn), payload.len());
            out.payload(payload.clone());
            out.finish(ddp::UNTAGGED_LEN + payload.len());
        }
        assert_eq!(out.pieces(), 7);
        let mut slices = [IoSlice::new(&[]); 8];
        assert!(matches!(out.next(&mut slices), Next::Slices { filled: 7, more: false }));
        assert_eq!(slices[3].as_ptr(), payload.as_ptr());
        assert_eq!(out.len() as u64, out.end());
    }

    #[test]
    fn a_file_stands_between_its_header_and_its_trailer() {
        let file = weft_machine::File::in_memory("frame").unwrap();
        let range = FileRange { file, offset: 7, len: 1000 };
        let mut out = Out::new(false, false);
        for _ in 0..2 {
            out.begin(&send_header(1), range.len);
            out.file(range.clone());
            out.finish(ddp::UNTAGGED_LEN + range.len);
        }
        /// Returns (filled, more) or the position in the file, and then sends that many bytes.
        fn then(out: &mut Out, sent: usize) -> Result<(usize, bool), Option<(u64, usize)>> {
            let next = match out.next(&mut [IoSlice::new(&[]); 8]) {
                Next::Slices { filled, more } => Ok((filled, more)),
                Next::File { range, from } => Err(Some((range.offset, from))),
                Next::Nothing => Err(None),
            };
            out.advance(sent);
            next
        }
        assert_eq!(then(&mut out, 20), Ok((1, true)));
        assert_eq!(then(&mut out, 600), Err(Some((7, 0))));
        assert_eq!(then(&mut out, 400), Err(Some((7, 600))));
        // The trailer, and the next header.
        assert_eq!(then(&mut out, 4 + 20 + 1000), Ok((1, true)));
        assert_eq!(then(&mut out, 4), Ok((1, false)));
        assert_eq!(then(&mut out, 0), Err(None));
    }

    #[test]
    fn sums_made_elsewhere_give_the_same_fpdu() {
        let payload = Bytes::from(vec![0x5a; 1000]);
        let whole = |add: &dyn Fn(&mut Out)| {
            let mut out = Out::new(true, false);
            out.begin(&send_header(1), 1000);
            add(&mut out);
            out.finish(ddp::UNTAGGED_LEN + 1000);
            sent(&out)
        };
        let mut sum = Crc::default();
        sum.update(&payload);
        let sum = u32::from_le_bytes(sum.field());
        let summed = whole(&|out| out.payload_summed(payload.clone(), sum, &Shift::over(1000)));
        assert_eq!(summed, whole(&|out| out.payload(payload.clone())));
    }

    #[test]
    fn sent_bytes_leave_one_by_one() {
        let mut out = Out::new(true, false);
        out.begin(&send_header(1), 3);
        out.payload(Bytes::from_static(b"abc"));
        out.finish(ddp::UNTAGGED_LEN + 3);
        let all = sent(&out);
        for gone in 0..all.len() {
            assert_eq!(sent(&out), all[gone..]);
            out.advance(1);
        }
        assert!(out.is_empty() && out.small.is_empty() && out.pieces() == 0);
    }
}
