//! Chunks: converts lists on the wire to work on a queue pair, and back.
//!
//! It groups a Read list, fills a Write chunk and cuts payload. It implements RFC 8166 3.4.4 to 3.4.6; it does not post
//! work.

use std::collections::VecDeque;

use weft_machine::Payload;
use weft_rdma::{Segment, Stag, Work};
use weft_wire::rpcrdma as wire;

/// One in this many Writes is signalled, so that a long chunk cannot fill a send queue with work that never reports.
const SIGNAL_EVERY: usize = 16;

pub(super) fn from_wire(s: wire::Segment) -> Segment {
    Segment { stag: Stag(s.handle), offset: s.offset, len: s.length }
}

pub(super) fn to_wire(s: Segment) -> wire::Segment {
    wire::Segment { handle: s.stag.0, length: s.len, offset: s.offset }
}

/// Bytes of a chunk.
pub(super) fn len(chunk: &[wire::Segment]) -> u64 {
    chunk.iter().map(|s| u64::from(s.length)).sum()
}

/// The chunk as it is returned when none of it was used (RFC 8166 4.3.2.2).
pub(super) fn unused(mut chunk: wire::WriteChunk) -> wire::WriteChunk {
    chunk.iter_mut().for_each(|s| s.length = 0);
    chunk
}

/// A parsed Read list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// The position-zero chunk: the stream itself.
    pub stream: Vec<Segment>,
    /// The one payload chunk.
    pub payload: Vec<Segment>,
    /// Its position in the unreduced stream.
    pub position: usize,
}

/// Groups a Read list. `Err` names the rule that it breaks; no procedure that we support has more than one payload
/// chunk.
pub(super) fn group(list: &[wire::ReadSegment]) -> Result<Reads, &'static str> {
    let mut reads = Reads::default();
    for read in list {
        let position = read.position as usize;
        let chunk = if position == 0 {
            &mut reads.stream
        } else {
            if !position.is_multiple_of(4) {
                return Err("RFC 8166 3.4.5: position is not a multiple of four");
            }
            if reads.position != 0 && reads.position != position {
                return Err("more than one payload chunk");
            }
            reads.position = position;
            &mut reads.payload
        };
        append(chunk, from_wire(read.target));
    }
    Ok(reads)
}

/// Appends a segment; a segment that continues the last one extends it, so that a chunk in one region is one Read.
fn append(chunk: &mut Vec<Segment>, next: Segment) {
    if next.len == 0 {
        return;
    }
    if let Some(last) = chunk.last_mut() {
        let adjacent =
            last.stag == next.stag && last.offset.checked_add(u64::from(last.len)) == Some(next.offset);
        if let Some(sum) = last.len.checked_add(next.len).filter(|_| adjacent) {
            last.len = sum;
            return;
        }
    }
    chunk.push(next);
}

/// Posts the Writes that put `payload` into `chunk`, in order and without padding, and returns the chunk with the
/// lengths used. The caller has checked that it fits.
pub(super) fn fill(
    mut chunk: wire::WriteChunk,
    mut payload: Payload,
    id: u64,
    work: &mut VecDeque<Work>,
) -> wire::WriteChunk {
    for (n, segment) in chunk.iter_mut().enumerate() {
        let used = payload.len().min(segment.length as usize);
        let to = Segment { len: used as u32, ..from_wire(*segment) };
        segment.length = used as u32;
        if used > 0 {
            let data = payload.take_front(used);
            work.push_back(Work::Write { id, data, to, signalled: n % SIGNAL_EVERY == SIGNAL_EVERY - 1 });
        }
    }
    debug_assert!(payload.is_empty());
    chunk
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use weft_machine::FileRange;

    use super::*;

    fn read(position: u32, handle: u32, offset: u64, length: u32) -> wire::ReadSegment {
        wire::ReadSegment { position, target: wire::Segment { handle, length, offset } }
    }

    fn segment(stag: u32, offset: u64, len: u32) -> Segment {
        Segment { stag: Stag(stag), offset, len }
    }

    #[test]
    fn a_chunk_in_one_region_is_one_read() {
        let reads = group(&[read(128, 7, 0, 4096), read(128, 7, 4096, 4096), read(128, 8, 8192, 0)]).unwrap();
        assert_eq!(reads.payload, [segment(7, 0, 8192)]);
        assert_eq!(reads.position, 128);
        let reads = group(&[read(128, 7, 0, 4096), read(128, 8, 4096, 1)]).unwrap();
        assert_eq!(reads.payload.len(), 2);
    }

    #[test]
    fn lengths_and_offsets_at_the_edge_do_not_overflow() {
        let reads = group(&[read(0, 7, 0, u32::MAX), read(0, 7, u64::from(u32::MAX), 1)]).unwrap();
        assert_eq!(reads.stream.len(), 2);
        let reads = group(&[read(0, 7, u64::MAX, 5), read(0, 7, 4, 5)]).unwrap();
        assert_eq!(reads.stream.len(), 2);
    }

    #[test]
    fn positions_must_be_aligned_and_one() {
        assert!(group(&[read(5, 1, 0, 1)]).is_err());
        assert!(group(&[read(4, 1, 0, 1), read(8, 1, 0, 1)]).is_err());
        assert!(group(&[read(0, 1, 0, 1), read(8, 1, 0, 1)]).is_ok());
    }

    #[test]
    fn payload_fills_segments_in_order_and_reports_what_was_used() {
        let chunk = [(1, 5), (2, 0), (3, 5), (4, 9)]
            .map(|(handle, length)| wire::Segment { handle, length, offset: 100 })
            .to_vec();
        let payload = Payload::Chain(vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defgh")]);
        let mut work = VecDeque::new();
        let used = fill(chunk, payload, 1, &mut work);
        assert_eq!(used.iter().map(|s| s.length).collect::<Vec<_>>(), [5, 0, 3, 0]);
        let written: Vec<_> = work
            .into_iter()
            .map(|w| match w {
                Work::Write { data: Payload::Chain(chain), to, .. } => (chain.concat(), to),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(written, [(b"abcde".to_vec(), segment(1, 100, 5)), (b"fgh".to_vec(), segment(3, 100, 3))]);
    }

    #[test]
    fn a_file_range_is_cut_without_being_read() {
        let file = weft_machine::File::in_memory("cut").unwrap();
        let mut payload = Payload::File(FileRange { file, offset: 10, len: 100 });
        let front = payload.take_front(30);
        let (Payload::File(front), Payload::File(rest)) = (front, payload) else { panic!() };
        assert_eq!((front.offset, front.len, rest.offset, rest.len), (10, 30, 40, 70));
    }
}
