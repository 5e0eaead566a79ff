//! Mappings of shared memory, and the memfds behind them.
//!
//! Slabs of the pool, slabs of a shm peer and the rings of shm are such mappings. Access goes through `Buf`, `Window` or
//! the copies here and in `transfer`; nobody gets a reference to the bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

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
