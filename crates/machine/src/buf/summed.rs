//! Copies and checksums in one pass.
//!
//! A copy from uncached memory mostly waits for memory; the CRC32C of the bytes costs nothing extra then, and saves a
//! second pass over half a megabyte. Four pieces are copied at once: a single stream of reads leaves the memory system
//! idle at each page's end, and the CRC instruction has a latency of three cycles.

/// Pieces copied at once.
const STREAMS: usize = 4;
/// Bytes copied of each piece in turn.
const LINE: usize = 64;

/// Whether this processor supports [`copy_summed`] with this size of pieces.
pub(crate) fn can_sum(piece: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return piece > 0 && piece.is_multiple_of(LINE) && std::arch::is_x86_feature_detected!("sse4.2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Copies `pieces` consecutive pieces of `piece` bytes each, and appends the CRC32C of each to `sums`.
///
/// # Safety
/// `can_sum(piece)` is true. Both ranges are valid for `piece * pieces` bytes, and no reference to either exists. If
/// they overlap, or change meanwhile, bytes may be torn; the checksums are of the bytes that were stored.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_summed(
    from: *const u8,
    to: *mut u8,
    piece: usize,
    pieces: usize,
    sums: &mut Vec<u32>,
) {
    let mut done = 0;
    while done < pieces {
        let at = done * piece;
        // SAFETY: the group's pieces lie inside the caller's ranges, and the caller guarantees the instruction.
        unsafe {
            let (from, to) = (from.add(at), to.add(at));
            if pieces - done >= STREAMS {
                sums.extend(group::<STREAMS>(from, to, piece));
                done += STREAMS;
            } else {
                sums.extend(group::<1>(from, to, piece));
                done += 1;
            }
        }
    }
}

/// Copies `N` pieces side by side.
///
/// # Safety
/// As [`copy_summed`], for `N` pieces.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn group<const N: usize>(from: *const u8, to: *mut u8, piece: usize) -> [u32; N] {
    use std::arch::x86_64::_mm_crc32_u64;

    let mut sums = [u64::from(u32::MAX); N];
    for at in (0..piece).step_by(LINE) {
        for (stream, sum) in sums.iter_mut().enumerate() {
            let start = stream * piece + at;
            for word in (start..start + LINE).step_by(8) {
                // SAFETY: piece is a multiple of LINE, so start + LINE <= N * piece.
                let value = unsafe { from.add(word).cast::<u64>().read_unaligned() };
                *sum = _mm_crc32_u64(*sum, value.to_le());
                // SAFETY: as above.
                unsafe { to.add(word).cast::<u64>().write_unaligned(value) };
            }
        }
    }
    sums.map(|sum| !(sum as u32))
}

/// Never called, because `can_sum` returns false.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_summed(_: *const u8, _: *mut u8, _: usize, _: usize, _: &mut Vec<u32>) {
    unreachable!("can_sum said no");
}
