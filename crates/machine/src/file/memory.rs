//! A file in memory: a memfd that is also mapped here, so that a read is a copy and not a system call.
//!
//! The kernel's read of tmpfs goes page by page and costs half as much again as a copy from a mapping, and so does its write;
//! sendfile, and writes to where there are no pages yet, use the descriptor as they do for any file.
//! Owns: the length that everybody sees, and the mapping. Does not: own the descriptor (see the parent).
//!
//! Invariant: length <= the memfd's size, and the memfd never shrinks. A mapped page past the end of its file would
//! kill the process that touches it; therefore a truncation punches a hole and lowers the length only.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::FallocateFlags;

use crate::buf::{Mapping, Window};

/// Shorter writes go to the descriptor: asking about their pages costs what the copy saves.
const MAPPED_WRITE: usize = 4096;

/// The part of a file in memory that a descriptor alone does not have.
#[derive(Default)]
pub(super) struct Memory {
    len: AtomicU64,
    mapping: RwLock<Option<Mapping>>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Memory {
    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Bytes up to `end` have been written to the descriptor.
    pub fn written(&self, end: u64) {
        self.len.fetch_max(end, Ordering::AcqRel);
    }

    /// Writes the beginning of `bytes`, as far as the file has pages for it already, and says how far. The rest is for the
    /// descriptor: what is to be allocated can be refused there, while a mapping would kill the process.
    pub fn write_at(&self, fd: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> usize {
        self.write(fd, offset, bytes.len(), |mapping, at, piece| mapping.copy_from(at, &bytes[piece]))
    }

    /// The same from memory that others may change.
    pub fn place_at(&self, fd: BorrowedFd<'_>, offset: u64, from: &Window) -> usize {
        self.write(fd, offset, from.len(), |mapping, at, piece| {
            from.slice(piece.start, piece.len()).is_some_and(|from| mapping.place(at, &from))
        })
    }

    fn write(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        copy: impl Fn(&Mapping, usize, Range<usize>) -> bool,
    ) -> usize {
        let Ok(start) = usize::try_from(offset) else { return 0 };
        let inside = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(inside);
        if len < MAPPED_WRITE {
            return 0;
        }
        if self.mapped().as_ref().is_none_or(|mapping| mapping.len() < start + len) && self.map(fd).is_err() {
            return 0;
        }
        let mapping = self.mapped();
        let Some(mapping) = &*mapping else { return 0 };
        let mut done = 0;
        while done < len {
            let present = mapping.present(start + done, len - done);
            if present == 0 || !copy(mapping, start + done, done..done + present) {
                break;
            }
            done += present;
        }
        done
    }

    // A mapping is replaced as a whole: whoever panicked left one behind or none.
    fn mapped(&self) -> RwLockReadGuard<'_, Option<Mapping>> {
        self.mapping.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Truncates or extends; what is cut off reads as zeros when the file grows again.
    pub fn set_len(&self, fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        let size = physical(fd)?;
        if len > size {
            rustix::fs::ftruncate(fd, len)?;
        }
        let before = self.len.swap(len, Ordering::AcqRel);
        if len < before && len < size {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(fd, hole, len, size - len)?;
        }
        Ok(())
    }

    /// Copies from `offset` into `into`; short only at the end of the file.
    pub fn read_at(&self, fd: BorrowedFd<'_>, offset: u64, into: &Window) -> io::Result<usize> {
        self.read(fd, offset, into, |mapping, start, into| mapping.copy_to(start, into))
    }

    /// The same, and the CRC32C of each whole `piece` appended to `sums`, or nothing where that is not to be had.
    pub fn read_summed(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        into: &Window,
        piece: usize,
        sums: &mut Vec<u32>,
    ) -> io::Result<usize> {
        self.read(fd, offset, into, |mapping, start, into| {
            mapping.copy_summed_to(start, into, piece, sums) || mapping.copy_to(start, into)
        })
    }

    fn read(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        into: &Window,
        mut copy: impl FnMut(&Mapping, usize, &Window) -> bool,
    ) -> io::Result<usize> {
        if i64::try_from(offset).is_err() {
            // As the kernel has it for any file.
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(into) = into.slice(0, left.min(into.len())).filter(|w| !w.is_empty()) else { return Ok(0) };
        // In bounds of the length, thus of what the address space can hold.
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            let mapping = self.mapped();
            if let Some(mapping) = &*mapping
                && copy(mapping, start, &into)
            {
                return Ok(into.len());
            }
            drop(mapping);
            self.map(fd)?;
        }
    }

    /// Maps the file as long as it is now, and as much again, so that a growing file is seldom mapped anew.
    fn map(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let wanted = usize::try_from(physical(fd)?).ok().and_then(usize::checked_next_power_of_two);
        let wanted = wanted.ok_or(io::ErrorKind::OutOfMemory)?.max(super::PAGE as usize);
        let mut mapping = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        if mapping.as_ref().is_none_or(|mapping| mapping.len() < wanted) {
            *mapping = Some(Mapping::new(fd.try_clone_to_owned()?, wanted)?);
        }
        Ok(())
    }
}

/// The memfd's own size: never less than the length.
fn physical(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd.as_fd())?.st_size).unwrap_or(0))
}
