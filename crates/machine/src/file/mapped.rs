//! Maps files, so that a short range of them is sent to a socket without being read first.
//!
//! [`MappedRange`] is a range of a file that only the kernel ever accesses; [`Mapped`] decides when an open file is
//! mapped. See mmap(2) and mincore(2). It owns the mapping and gives nobody access to the bytes.
//!
//! A read into a buffer and a send from it copy twice; a send from the mapping copies once and saves a system call.
//! Touching a page that its file has lost would kill the process; the kernel, which copies for a send, returns EFAULT
//! instead. So a mapping is used only for sending, and its type allows nothing else.
//!
//! A file is mapped after [`READS_FIRST`] short reads, at its length then; ranges beyond that are read as usual.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::mm::{MapFlags, ProtFlags};

use super::PAGE;

/// Short reads of an open file before it is mapped: mapping costs as much as some of them.
const READS_FIRST: u32 = 32;
/// Files mapped at a time in this process; the kernel has a limit of 65,530 mappings of all kinds.
const MAX_MAPPED: usize = 4096;
/// The longest file that is mapped: page tables occupy a five-hundredth of what is read.
const MAX_LEN: u64 = 1 << 40;
/// The most pages in one query of the page cache: a short range, widened to the chunks of [`super::warm`].
const PAGES_ASKED: usize = 64;

static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// A file, mapped read-only from its beginning.
#[derive(Debug)]
pub(super) struct FileMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range that stays mapped until drop; nothing here reads it.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    fn new(fd: BorrowedFd<'_>, len: u64) -> Option<FileMapping> {
        let len = usize::try_from(len).ok().filter(|len| (1..=MAX_LEN).contains(&(*len as u64)))?;
        if MAPPED.fetch_add(1, Ordering::Relaxed) >= MAX_MAPPED {
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases no Rust object.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, 0) };
        match base.ok().and_then(|base| NonNull::new(base.cast())) {
            Some(base) => Some(FileMapping { base, len }),
            None => {
                MAPPED.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// The part of `range` that is inside.
    pub(super) fn clip(&self, range: Range<u64>) -> Range<u64> {
        let len = self.len as u64;
        range.start.min(len)..range.end.min(len)
    }

    /// Whether the page cache holds all pages of a short range inside the mapping.
    pub(super) fn is_cached(&self, range: &Range<u64>) -> bool {
        let (Ok(first), Ok(end)) = (usize::try_from(range.start / PAGE), usize::try_from(range.end)) else {
            return false;
        };
        let pages = end.div_ceil(PAGE as usize).saturating_sub(first);
        if pages > PAGES_ASKED || end > self.len {
            return false;
        }
        let mut found = [0u8; PAGES_ASKED];
        // SAFETY: the pages are inside the mapping, as far as it reaches into its last page, and the kernel writes one byte
        // for each of at most PAGES_ASKED.
        let asked = unsafe {
            let start = self.base.as_ptr().add(first * PAGE as usize);
            libc::mincore(start.cast(), pages * PAGE as usize, found.as_mut_ptr())
        };
        asked == 0 && found[..pages].iter().all(|page| page & 1 != 0)
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mmap, and no range outlives its Arc<FileMapping>.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        MAPPED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The mapping of an open file, made when it pays.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Short reads so far, as far as they are counted.
    reads: AtomicU32,
    /// Inner `None`: it cannot be mapped.
    mapping: OnceLock<Option<Arc<FileMapping>>>,
}

impl Mapped {
    /// The mapping, once there were enough short reads. `len` returns the file's length; called once.
    pub(super) fn after_reads(
        &self,
        fd: BorrowedFd<'_>,
        len: impl FnOnce() -> io::Result<u64>,
    ) -> Option<&Arc<FileMapping>> {
        if let Some(mapping) = self.mapping.get() {
            return mapping.as_ref();
        }
        if self.reads.fetch_add(1, Ordering::Relaxed) < READS_FIRST {
            return None;
        }
        self.mapping
            .get_or_init(|| len().ok().and_then(|len| FileMapping::new(fd, len)).map(Arc::new))
            .as_ref()
    }
}

/// Bytes of a mapped file, used only by [`Piece::mapped`].
#[derive(Clone, Debug)]
pub struct MappedRange {
    mapping: Arc<FileMapping>,
    offset: usize,
    len: usize,
}

impl MappedRange {
    /// `None` if the range is not inside the mapping.
    pub(super) fn new(mapping: &Arc<FileMapping>, offset: u64, len: usize) -> Option<MappedRange> {
        let offset = usize::try_from(offset).ok()?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= mapping.len);
        inside.then(|| MappedRange { mapping: mapping.clone(), offset, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// An element of a send: bytes in memory, or of a mapped file. Only the kernel accesses its content.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Piece<'a>(IoSlice<'a>);

impl<'a> Piece<'a> {
    /// Bytes in memory.
    pub fn bytes(bytes: &'a [u8]) -> Piece<'a> {
        Piece(IoSlice::new(bytes))
    }

    /// A range of a mapped file, from its byte `from` on. Sending it fails with EFAULT if the file has lost the bytes.
    pub fn mapped(range: &'a MappedRange, from: usize) -> Piece<'a> {
        let from = from.min(range.len);
        // SAFETY: the range is inside the mapping, which outlives 'a. Only the kernel gets the slice, and copies from
        // it as from any memory that others may change; `Piece` lets nobody read it.
        let bytes = unsafe {
            let start = range.mapping.base.as_ptr().add(range.offset + from);
            std::slice::from_raw_parts(start, range.len - from)
        };
        Piece(IoSlice::new(bytes))
    }

    /// For system calls.
    pub(crate) fn as_slices<'s>(pieces: &'s [Piece<'a>]) -> &'s [IoSlice<'a>] {
        // SAFETY: `Piece` is a transparent `IoSlice`.
        unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast(), pieces.len()) }
    }
}
