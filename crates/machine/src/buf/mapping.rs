//! Mappings of shared memory, and the memfds behind them.
//!
//! Slabs of the pool, slabs of a shm peer and the rings of shm are such mappings. Access goes through `Buf`, [`Window`]
//! or the copies here; nobody gets a reference to the bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::{Window, summed};

/// The unit of mincore(2).
const PAGE: usize = 4096;
/// Pages per mincore call.
const PAGES_ASKED: usize = 64;

/// A mapping of shared memory; unmapped when the last window into it is dropped.
pub struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    fd: OwnedFd,
}

// SAFETY: a mapping is an address range that stays valid until drop; all access goes through Buf (exclusive by
// construction) or Window (raw copies only).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd`, shared and writable.
    pub fn new(fd: OwnedFd, len: usize) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd.as_fd(),
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len, fd })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Prevents huge pages in this mapping, so that touching a page occupies the memory of one page. A kernel without
    /// huge pages returns an error, which is just as good.
    pub(super) fn forbid_huge_pages(&self) {
        // SAFETY: advice about a mapping of ours changes no byte of it.
        let _ = unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_NOHUGEPAGE) };
    }

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

    /// Copies `bytes` to `offset`: the transfer of the medium itself, not counted. False, without a change, if they do
    /// not fit. The caller ensures that the pages exist.
    #[must_use]
    pub(crate) fn copy_from(&self, offset: usize, bytes: &[u8]) -> bool {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: the range is inside the mapping, which outlives this call, and nobody has a reference to its bytes.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        true
    }

    /// The same from memory that others may change: at worst the bytes are torn.
    #[must_use]
    pub(crate) fn place(&self, offset: usize, from: &Window) -> bool {
        if offset.checked_add(from.len).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: as in `copy_to`, the other way round.
        unsafe { copy_interleaved(from.as_ptr(), self.base.as_ptr().add(offset), from.len) };
        true
    }

    /// How many bytes from `offset`, at most `len`, lie in pages that are in memory, so that accessing them cannot
    /// fault.
    pub(crate) fn present(&self, offset: usize, len: usize) -> usize {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= self.len) else { return 0 };
        let first = offset / PAGE * PAGE;
        let pages = (end - first).div_ceil(PAGE).min(PAGES_ASKED);
        let mut found = [0u8; PAGES_ASKED];
        // SAFETY: the pages begin inside the mapping, whose end the kernel rounds up to a page, and it writes one byte for each
        // of at most PAGES_ASKED.
        let asked =
            unsafe { libc::mincore(self.base.as_ptr().add(first).cast(), pages * PAGE, found.as_mut_ptr()) };
        if asked != 0 {
            return 0;
        }
        let present = found[..pages].iter().take_while(|page| **page & 1 != 0).count();
        (first + present * PAGE).min(end).saturating_sub(offset)
    }

    /// The first byte, for the atomics of `shm`.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mmap above, and no window outlives its Arc<Mapping>.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Creates an anonymous shared memory file of `len` bytes, sealed to that size: a peer that shrank it would turn every
/// later access into SIGBUS.
pub fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
