//! A file in memory: a memfd that is also mapped, so that a read is a copy and not a system call.
//!
//! The kernel reads and writes tmpfs page by page, which costs half as much again as a copy from or to a mapping;
//! sendfile, and writes to places without pages yet, use the descriptor as for any file. It owns the length that
//! everybody sees, the time of the last change (the kernel does not notice stores into the mapping), and the mapping.
//! The parent owns the descriptor.
//!
//! It remembers which parts of the file have all their pages, and how much memory the pages occupy. Both stay known
//! until pages are added or removed, so that neither an overwrite nor a query of the size is a system call.
//!
//! Invariant: length <= the memfd's size, and the memfd never shrinks. A mapped page beyond the end of its file would
//! kill the process that touches it; therefore a truncation only punches a hole and lowers the length.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::fs::FallocateFlags;

use crate::buf::{Mapping, Window};
use crate::clock;

/// Shorter writes to pages not known to exist use the descriptor: a query costs what the copy saves.
const MAPPED_WRITE: usize = 4096;
/// The bytes covered by one bit of [`Mapped::present`]: two kilobytes of bits for a gigabyte.
const CHUNK: usize = 64 << 10;
/// Chunks per word of bits.
const BITS: usize = u64::BITS as usize;

/// The state of a file in memory, besides its descriptor.
#[derive(Default)]
pub(super) struct Memory {
    len: AtomicU64,
    /// Time of the last change, in nanoseconds since 1970: no two changes have the same time, and zero means never.
    changed: AtomicU64,
    /// How often pages may have been added or removed.
    reshaped: AtomicU64,
    /// The bytes that the pages occupy, and the value of `reshaped` that they are valid for.
    taken: Mutex<Option<(u64, u64)>>,
    /// Held while a task appends.
    appending: Mutex<()>,
    mapped: RwLock<Mapped>,
}

/// The current mapping.
#[derive(Default)]
struct Mapped {
    mapping: Option<Mapping>,
    /// A bit for each chunk of the mapping, set if all its pages were seen to exist. A removal of pages clears it
    /// afterwards, with exclusive access: whoever sets a bit has held the lock since before it queried the kernel.
    present: Box<[AtomicU64]>,
}

impl Mapped {
    fn len(&self) -> usize {
        self.mapping.as_ref().map_or(0, Mapping::len)
    }

    /// How many bytes from `offset`, at most `len`, lie in pages that are known to exist.
    fn known(&self, offset: usize, len: usize) -> usize {
        let knows = |chunk: usize| {
            let word = self.present.get(chunk / BITS).map_or(0, |word| word.load(Ordering::Relaxed));
            word & (1 << (chunk % BITS)) != 0
        };
        let first = offset / CHUNK;
        let known = (first..(offset + len).div_ceil(CHUNK)).take_while(|chunk| knows(*chunk)).count();
        ((first + known) * CHUNK).saturating_sub(offset).min(len)
    }

    /// The same for chunks that are not known, by asking the kernel.
    fn ask(&self, mapping: &Mapping, offset: usize, len: usize) -> usize {
        // Asks about the whole chunk, so that the next write to it need not.
        let chunk = offset / CHUNK;
        if mapping.present(chunk * CHUNK, CHUNK) < CHUNK {
            return mapping.present(offset, len);
        }
        if let Some(word) = self.present.get(chunk / BITS) {
            word.fetch_or(1 << (chunk % BITS), Ordering::Relaxed);
        }
        ((chunk + 1) * CHUNK - offset).min(len)
    }

    /// Pages of this range may be gone.
    fn forget(&mut self, range: Range<u64>) {
        let (start, end) = (range.start / CHUNK as u64, range.end.div_ceil(CHUNK as u64));
        let all = self.present.len() * BITS;
        let within = |chunk: u64| usize::try_from(chunk).unwrap_or(usize::MAX).min(all);
        for chunk in within(start)..within(end) {
            *self.present[chunk / BITS].get_mut() &= !(1 << (chunk % BITS));
        }
    }
}

/// The metadata of a file in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InMemory {
    /// Its length.
    pub len: u64,
    /// Bytes that its pages occupy.
    pub allocated: u64,
    /// Time of the last change since 1970; no two changes have the same time. Zero: never.
    pub changed: Duration,
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

    /// While the guard lives, nobody else appends.
    pub fn appending(&self) -> MutexGuard<'_, ()> {
        self.appending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes up to `end` have been written.
    pub fn written(&self, end: u64) {
        self.len.fetch_max(end, Ordering::AcqRel);
        self.touched();
    }

    /// The bytes have been changed.
    pub fn touched(&self) {
        let now = clock::wall().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let later = |before: u64| Some(now.max(before.saturating_add(1)));
        // The update is never refused.
        let _ = self.changed.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    /// The descriptor was used for a call that may have added pages.
    pub fn reshaped(&self) {
        self.reshaped.fetch_add(1, Ordering::AcqRel);
    }

    /// The descriptor was used for a call that may have removed the pages of `range`.
    pub fn lost(&self, range: Range<u64>) {
        self.mapped_mut().forget(range);
        self.reshaped();
    }

    /// The current metadata. Pages that reads of holes add are counted only after the next change.
    pub fn state(&self, fd: BorrowedFd<'_>) -> io::Result<InMemory> {
        let as_of = self.reshaped.load(Ordering::Acquire);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let allocated = match *taken {
            Some((then, allocated)) if then == as_of => allocated,
            _ => {
                let blocks = rustix::fs::fstat(fd)?.st_blocks;
                let allocated = u64::try_from(blocks).unwrap_or(0).saturating_mul(512);
                *taken = Some((as_of, allocated));
                allocated
            }
        };
        let changed = Duration::from_nanos(self.changed.load(Ordering::Acquire));
        Ok(InMemory { len: self.len(), allocated, changed })
    }

    /// Writes the beginning of `bytes`, as far as the file already has pages for it, and returns how much. The
    /// remainder must go through the descriptor: allocation can fail there, while through a mapping a failure would
    /// kill the process.
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
        if len == 0 {
            return 0;
        }
        let mut mapped = self.mapped();
        if mapped.len() < start + len {
            drop(mapped);
            if len < MAPPED_WRITE || self.map(fd).is_err() {
                return 0;
            }
            mapped = self.mapped();
        }
        let Some(mapping) = &mapped.mapping else { return 0 };
        let mut done = 0;
        while done < len {
            let present = match mapped.known(start + done, len - done) {
                0 if len < MAPPED_WRITE => 0,
                0 => mapped.ask(mapping, start + done, len - done),
                known => known,
            };
            if present == 0 || !copy(mapping, start + done, done..done + present) {
                break;
            }
            done += present;
        }
        done
    }

    // A mapping is replaced as a whole, so a panic cannot leave a partial one.
    fn mapped(&self) -> RwLockReadGuard<'_, Mapped> {
        self.mapped.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn mapped_mut(&self) -> RwLockWriteGuard<'_, Mapped> {
        self.mapped.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Truncates or extends; truncated bytes read as zeros when the file grows again.
    pub fn set_len(&self, fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        let size = physical(fd)?;
        if len > size {
            rustix::fs::ftruncate(fd, len)?;
        }
        let before = self.len.swap(len, Ordering::AcqRel);
        if len < before && len < size {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Space that was reserved past the end is freed too, as by any truncation.
            let punched = rustix::fs::fallocate(fd, hole, len, i64::MAX as u64 - len);
            self.lost(len..size);
            punched?;
        }
        self.touched();
        Ok(())
    }

    /// Copies from `offset` into `into`; short only at the end of the file.
    pub fn read_at(&self, fd: BorrowedFd<'_>, offset: u64, into: &Window) -> io::Result<usize> {
        self.read(fd, offset, into, |mapping, start, into| mapping.copy_to(start, into))
    }

    /// The same, and appends the CRC32C of each whole `piece` to `sums`, or nothing if this is not possible.
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
            // As the kernel does for any file.
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(into) = into.slice(0, left.min(into.len())).filter(|w| !w.is_empty()) else { return Ok(0) };
        // Below the length, and so within the address space.
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            let mapped = self.mapped();
            if let Some(mapping) = &mapped.mapping
                && copy(mapping, start, &into)
            {
                return Ok(into.len());
            }
            drop(mapped);
            self.map(fd)?;
        }
    }

    /// Maps the file at its current length and as much again, so that a growing file is seldom remapped.
    fn map(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let wanted = usize::try_from(physical(fd)?).ok().and_then(usize::checked_next_power_of_two);
        let wanted = wanted.ok_or(io::ErrorKind::OutOfMemory)?.max(super::PAGE as usize);
        let mut mapped = self.mapped_mut();
        if mapped.len() < wanted {
            let mapping = Some(Mapping::new(fd.try_clone_to_owned()?, wanted)?);
            let mut present: Box<[AtomicU64]> =
                (0..wanted.div_ceil(CHUNK).div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
            present.iter_mut().zip(&mut mapped.present).for_each(|(new, old)| std::mem::swap(new, old));
            *mapped = Mapped { mapping, present };
        }
        Ok(())
    }
}

/// The memfd's own size, which is never less than the length.
fn physical(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(fd.as_fd())?.st_size).unwrap_or(0))
}
