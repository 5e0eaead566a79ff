//! Copies between a mapping and a window: transfers of the medium itself, which are not counted.

use super::{Mapping, Window, summed};

impl Mapping {
    /// Copies the bytes from `offset` into all of `into`: the transfer of the medium itself, not counted. False,
    /// without a change, if they are not inside. The caller ensures that the pages exist (see `file::memory`).
    #[must_use]
    pub(crate) fn copy_to(&self, offset: usize, into: &Window) -> bool {
        if offset.checked_add(into.len).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: both ranges are inside their mappings, which outlive this call. They are different mappings, or the
        // same memory mapped twice, where torn bytes are the worst: no reference to either exists.
        unsafe { copy_interleaved(self.base.as_ptr().add(offset), into.as_ptr(), into.len) };
        true
    }

    /// Like [`Mapping::copy_to`], and appends the CRC32C of each whole `piece` to `sums`; false if it cannot.
    #[must_use]
    pub(crate) fn copy_summed_to(
        &self,
        offset: usize,
        into: &Window,
        piece: usize,
        sums: &mut Vec<u32>,
    ) -> bool {
        let inside = offset.checked_add(into.len).is_some_and(|end| end <= self.len);
        if !inside || !summed::can_sum(piece) {
            return false;
        }
        let pieces = into.len / piece;
        let done = pieces * piece;
        // SAFETY: as in `copy_to`; done <= into.len.
        unsafe {
            let (from, to) = (self.base.as_ptr().add(offset), into.as_ptr());
            summed::copy_summed(from, to, piece, pieces, sums);
            std::ptr::copy(from.add(done), to.add(done), into.len - done);
        }
        true
    }

    /// Copies all of `from` to `offset`, as [`Mapping::copy_from`] does. Others may change that memory: at worst the bytes are
    /// torn.
    #[must_use]
    pub(crate) fn place(&self, offset: usize, from: &Window) -> bool {
        if offset.checked_add(from.len).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: as in `copy_to`, the other way round.
        unsafe { copy_interleaved(from.as_ptr(), self.base.as_ptr().add(offset), from.len) };
        true
    }
}

/// Copies like `ptr::copy` between ranges that do not overlap; a large range as four interleaved pieces, line by line.
/// A single stream of reads leaves the memory system idle at each page's end: four streams took a sixth less time for
/// 512 KiB here.
///
/// # Safety
/// Both ranges are valid for `len` bytes, and no reference to either exists. If they overlap, bytes may be torn.
unsafe fn copy_interleaved(from: *const u8, to: *mut u8, len: usize) {
    const PIECES: usize = 4;
    const LINE: usize = 64;
    const LARGE: usize = 64 << 10;
    let piece = if len >= LARGE { len / PIECES / LINE * LINE } else { 0 };
    for at in (0..piece).step_by(LINE) {
        for start in (0..PIECES).map(|number| number * piece) {
            // SAFETY: start + at + LINE <= PIECES * piece <= len.
            unsafe {
                std::ptr::copy(from.add(start + at).cast::<[u8; LINE]>(), to.add(start + at).cast(), 1)
            };
        }
    }
    let done = PIECES * piece;
    // SAFETY: done <= len.
    unsafe { std::ptr::copy(from.add(done), to.add(done), len - done) };
}
