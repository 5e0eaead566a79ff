//! Cuts payload to fit the peer's segments.
//!
//! [`writes`] makes one RDMA Write per segment that the payload reaches. It implements [MS-SMBD] 3.1.4.5. Buffers are
//! sliced and file ranges moved; no byte is touched. The caller posts.

use weft_machine::Payload;
use weft_rdma::Segment;

use crate::channel::Error;

/// Checks that `segments` have room for `len` bytes and that this side accepts moving them at once.
pub(super) fn check(len: usize, segments: &[Segment], max_read_write: usize) -> Result<(), Error> {
    if len > max_read_write {
        return Err(Error::Misuse("payload longer than MaxReadWriteSize"));
    }
    if (len as u64) > Segment::total(segments) {
        return Err(Error::Misuse("payload longer than the peer's segments"));
    }
    Ok(())
}

/// Cuts `data`, which has passed [`check`]: each piece goes with exactly the part of a segment that it fills.
pub(super) fn writes(mut data: Payload, segments: Vec<Segment>, mut post: impl FnMut(Payload, Segment)) {
    let mut left = data.len();
    for segment in segments {
        let n = left.min(segment.len as usize);
        if n == 0 {
            continue;
        }
        left = left.saturating_sub(n);
        let to = Segment { len: n as u32, ..segment };
        if left == 0 {
            post(data, to);
            return;
        }
        post(data.take_front(n), to);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use weft_machine::{File, FileRange};
    use weft_rdma::Stag;

    use super::*;

    fn segment(number: usize, len: u32) -> Segment {
        Segment { stag: Stag(number as u32), offset: 1000 * number as u64, len }
    }

    #[test]
    fn a_file_range_is_moved_not_read() {
        let file = File::in_memory("weft-split-test").unwrap();
        let data = Payload::File(FileRange { file, offset: 10, len: 25 });
        let segments = vec![segment(1, 10), segment(2, 0), segment(3, 10), segment(4, 10), segment(5, 10)];
        let mut seen = Vec::new();
        writes(data, segments, |data, to| match data {
            Payload::File(range) => seen.push((range.offset, range.len, to.stag.0, to.offset, to.len)),
            Payload::Chain(_) => panic!("a file range stays one"),
        });
        assert_eq!(seen, [(10, 10, 1, 1000, 10), (20, 10, 3, 3000, 10), (30, 5, 4, 4000, 5)]);
    }

    #[test]
    fn room_and_limit_are_checked() {
        let segments = [segment(1, 10), segment(2, u32::MAX), segment(3, u32::MAX)];
        assert!(check(10, &segments[..1], 10).is_ok());
        assert!(matches!(check(11, &segments[..1], 100), Err(Error::Misuse(_))));
        assert!(matches!(check(11, &segments, 10), Err(Error::Misuse(_))));
        assert!(check(11, &segments, 11).is_ok());
    }

    proptest! {
        #[test]
        fn every_byte_goes_to_its_place(
            pieces in proptest::collection::vec(0usize..20, 0..8),
            lens in proptest::collection::vec(0u32..20, 0..8),
        ) {
            let mut next = 0u8;
            let chain: Vec<Bytes> = pieces
                .iter()
                .map(|&n| (0..n).map(|_| { next = next.wrapping_add(1); next }).collect::<Vec<u8>>().into())
                .collect();
            let all: Vec<u8> = chain.iter().flatten().copied().collect();
            let segments: Vec<Segment> = lens.iter().enumerate().map(|(i, &len)| segment(i, len)).collect();
            prop_assume!(check(all.len(), &segments, usize::MAX).is_ok());
            let mut got: Vec<u8> = Vec::new();
            let mut last = None;
            writes(Payload::Chain(chain), segments, |data, to| {
                assert_eq!(data.len(), to.len as usize);
                assert!(last.is_none_or(|last| last < to.stag.0), "in the order of the segments");
                last = Some(to.stag.0);
                let Payload::Chain(chain) = data else { panic!("a chain stays one") };
                got.extend(chain.iter().flatten().copied());
            });
            prop_assert_eq!(got, all);
        }
    }
}
