//! The space of a file: reservations, holes, zeros, ranges with data, and copies by the kernel.
//!
//! See fallocate(2), lseek(2) SEEK_DATA, copy_file_range(2) and ioctl_ficlonerange(2). Everything that may take long
//! runs on a worker thread, with a claim on the file (see [`busy`]). The limits of a share are enforced by `store`;
//! only [`File::clone_range`] ever reports that it is not supported.

use std::io;
use std::ops::Range;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use super::File;
use super::busy::{self, Inode};

/// How much one kernel call copies, so that a worker can be released between two of them.
const COPY_BYTES: u64 = 64 << 20;
/// A file that occupies no more is searched for holes directly on the core. It has at most a thousand extents, which
/// lseek scans in some hundred microseconds.
const SOUGHT_AT_ONCE_BYTES: u64 = 1 << 20;
/// The same limit for data that is read and written by hand.
const BY_HAND_BYTES: u64 = 16 << 20;
/// The buffer for that.
const BUFFER_BYTES: u64 = 1 << 20;

/// Ranges of a file that hold data, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRanges {
    /// Between two of them is a hole.
    pub ranges: Vec<Range<u64>>,
    /// Whether more ranges follow than were asked for.
    pub more: bool,
}

impl File {
    /// Reserves `[offset, offset + len)`; the file grows to its end unless `keep_size`. A request that exceeds the free
    /// space is refused before anything is allocated: ext4 keeps what it has found until then, and a request of a few
    /// bytes would fill the disk.
    pub async fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        self.fallocate(flags, offset, len).await
    }

    /// At least the part of `len` bytes that this file does not occupy yet must be free.
    fn require_room(&self, len: u64) -> io::Result<()> {
        let held = rustix::fs::fstat(self)?.st_blocks.unsigned_abs().saturating_mul(512);
        let disk = rustix::fs::fstatvfs(self)?;
        // An unnamed file in memory has no disk either.
        let is_bounded = disk.f_blocks > 0;
        if is_bounded && len.saturating_sub(held) > disk.f_bavail.saturating_mul(disk.f_frsize) {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    /// Frees the space of a range, which then reads as zeros. The size does not change.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).await
    }

    /// Makes a range read as zeros, keeping its space if the file system can and has room; the size does not change.
    pub async fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match self.fallocate(flags, offset, len).await {
            Err(e) if unsupported(&e) || e.kind() == io::ErrorKind::StorageFull => {}
            other => return other,
        }
        match self.punch_hole(offset, len).await {
            Err(e) if unsupported(&e) => {}
            other => return other,
        }
        self.write_zeros(offset, self.len()?.min(offset.saturating_add(len))).await
    }

    /// Writes zeros up to `end`.
    pub(super) async fn write_zeros(&self, mut offset: u64, end: u64) -> io::Result<()> {
        while offset < end {
            let (file, mut at) = (self.clone(), offset);
            let stop = end.min(offset.saturating_add(BY_HAND_BYTES));
            offset = stop;
            let written = busy::ranged(self, move || -> io::Result<()> {
                let zeros = vec![0; BUFFER_BYTES as usize];
                while at < stop {
                    let piece = usize::try_from(BUFFER_BYTES.min(stop - at)).unwrap_or(usize::MAX);
                    at += write(&file, at, &zeros[..piece])?;
                }
                Ok(())
            });
            written.await??;
        }
        Ok(())
    }

    /// One call on a worker. All consequences of the call are handled there, because the caller may not wait until its
    /// end.
    async fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let file = self.clone();
        busy::ranged(self, move || {
            let mut len = len;
            if flags.contains(FallocateFlags::ZERO_RANGE) {
                // The kernel reserves all of the range. Behind the end of the file there is nothing to zero.
                len = len.min(file.len()?.saturating_sub(offset));
                if len == 0 {
                    return Ok(());
                }
            }
            if !flags.contains(FallocateFlags::PUNCH_HOLE) {
                file.require_room(len)?;
            }
            let done = loop {
                match rustix::fs::fallocate(&file, flags, offset, len) {
                    Err(Errno::INTR) => {}
                    other => break other,
                }
            };
            let end = offset.saturating_add(len);
            // Also after an error, which may have come half-way.
            if let Some(memory) = &file.0.memory {
                memory.lost(offset..end);
                memory.touched();
            }
            done?;
            if flags.is_empty() {
                file.grown(end);
            }
            Ok(())
        })
        .await?
    }

    /// Ranges of `[offset, offset + len)` that hold data, at most `max` of them. A
    /// file system without this information reports everything as data.
    ///
    /// lseek scans each extent until it has found what it seeks, which takes seconds in a fragmented file, and waits
    /// for calls that change the file's space.
    pub async fn data_ranges(&self, offset: u64, len: u64, max: usize) -> io::Result<DataRanges> {
        if self.blocking().is_none()
            && rustix::fs::fstat(self)?.st_blocks.unsigned_abs().saturating_mul(512) <= SOUGHT_AT_ONCE_BYTES
        {
            let _unlocked = busy::shared_of(self).await?;
            return self.seek_data_ranges(offset, len, max);
        }
        let file = self.clone();
        busy::seeking(self, move || file.seek_data_ranges(offset, len, max)).await?
    }

    fn seek_data_ranges(&self, offset: u64, len: u64, max: usize) -> io::Result<DataRanges> {
        let end = self.len()?.min(offset.saturating_add(len));
        let mut ranges = Vec::new();
        let mut at = offset;
        while at < end {
            let start = match rustix::fs::seek(self, SeekFrom::Data(at)) {
                Ok(start) if start < end => start,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(e) => return Err(e.into()),
            };
            if ranges.len() == max {
                return Ok(DataRanges { ranges, more: true });
            }
            // Every file ends in a hole; if it is gone meanwhile, the file was truncated.
            let stop = match rustix::fs::seek(self, SeekFrom::Hole(start)) {
                Ok(stop) => stop.min(end),
                Err(Errno::NXIO) => break,
                Err(e) => return Err(e.into()),
            };
            ranges.push(start..stop);
            at = stop;
        }
        Ok(DataRanges { ranges, more: false })
    }

    /// Copies at most `len` bytes of `source` from `from` to `at` in this file, like memmove(3) if both are the same
    /// file; fewer only if the source ends. The kernel copies, or shares blocks, if it can.
    pub async fn copy_from(&self, at: u64, source: &File, from: u64, len: u64) -> io::Result<u64> {
        let len = source.len()?.saturating_sub(from).min(len);
        if at.checked_add(len).is_none() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let overlaps = at < from + len && from < at + len && self.is_same(source)?;
        let mut done = 0;
        while !overlaps && done < len {
            let piece = COPY_BYTES.min(len - done);
            let (to, src) = (self.clone(), source.clone());
            let copied = busy::ranged_between(self, source, false, move || {
                let (mut from, mut at) = (from + done, at + done);
                let start = at;
                let copied =
                    rustix::fs::copy_file_range(&src, Some(&mut from), &to, Some(&mut at), piece as usize)?;
                // Here, because the caller may not wait until the end of the call.
                if copied > 0 {
                    to.grown(start + copied as u64);
                }
                Ok(copied)
            });
            match copied.await? {
                // The source shrank.
                Ok(0) => return Ok(done),
                Ok(n) => done += n as u64,
                Err(Errno::INTR) => {}
                // Not supported between these file systems, or not at all.
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => break,
                Err(e) => return Err(e.into()),
            }
        }
        let backwards = overlaps && from < at;
        while done < len {
            let piece = BY_HAND_BYTES.min(len - done);
            let shift = if backwards { len - done - piece } else { done };
            let (to, src) = (self.clone(), source.clone());
            let by_hand = move || copy(&to, at + shift, &src, from + shift, piece, backwards);
            let copied = busy::ranged_between(self, source, false, by_hand).await??;
            done += copied;
            // The source shrank.
            if copied < piece {
                break;
            }
        }
        Ok(done)
    }

    /// Makes `[at, at + len)` of this file share the blocks of `source` from `from` on. `Unsupported` if the file
    /// system cannot; offsets and lengths are multiples of its blocks, except for a length that ends both files.
    pub async fn clone_range(&self, at: u64, source: &File, from: u64, len: u64) -> io::Result<()> {
        if self.0.memory.is_some() || source.0.memory.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // For the kernel, a length of zero means "to the end".
        if len == 0 {
            return Ok(());
        }
        let (to, src) = (self.clone(), source.clone());
        // Sharing blocks locks both files.
        let clone = move || sys::clone_range(&to, at, &src, from, len);
        busy::ranged_between(self, source, true, clone).await?.map_err(|e| match e {
            Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV => io::ErrorKind::Unsupported.into(),
            e => e.into(),
        })
    }

    fn grown(&self, end: u64) {
        if let Some(memory) = &self.0.memory {
            memory.reshaped();
            memory.written(end);
        }
    }

    fn is_same(&self, other: &File) -> io::Result<bool> {
        Ok(Inode::of(self)? == Inode::of(other)?)
    }
}

fn unsupported(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error())
}

fn write(file: &File, at: u64, bytes: &[u8]) -> io::Result<u64> {
    loop {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => return Ok(n as u64),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The copy by hand, backwards if the front would otherwise be overwritten before it is read.
fn copy(to: &File, at: u64, source: &File, from: u64, len: u64, backwards: bool) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES.min(len) as usize];
    let mut done = 0;
    while done < len {
        let piece = BUFFER_BYTES.min(len - done);
        let shift = if backwards { len - done - piece } else { done };
        let mut read = 0;
        while read < piece {
            let room = &mut buffer[read as usize..piece as usize];
            match rustix::io::pread(source, room, from + shift + read) {
                Ok(0) => break,
                Ok(n) => read += n as u64,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let mut written = 0;
        while written < read {
            written += write(to, at + shift + written, &buffer[written as usize..read as usize])?;
            to.grown(at + shift + written);
        }
        done += read;
        // The source was truncated meanwhile.
        if read < piece && !backwards {
            break;
        }
        if read < piece {
            done += piece - read;
        }
    }
    Ok(done)
}

/// The call that rustix does not provide.
mod sys {
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::io::Errno;
    use rustix::ioctl::{Opcode, Setter, opcode};

    use super::File;

    /// struct file_clone_range.
    #[repr(C)]
    struct CloneRange {
        source: i64,
        from: u64,
        len: u64,
        at: u64,
    }

    /// _IOW(0x94, 13, struct file_clone_range).
    const FICLONERANGE: Opcode = opcode::write::<CloneRange>(0x94, 13);

    pub(super) fn clone_range(to: &File, at: u64, source: &File, from: u64, len: u64) -> Result<(), Errno> {
        let range = CloneRange { source: source.as_fd().as_raw_fd().into(), from, len, at };
        // SAFETY: the code takes a pointer to exactly this structure, which the kernel only reads; both descriptors
        // are open while `to` and `source` are borrowed.
        unsafe {
            let clone = Setter::<FICLONERANGE, CloneRange>::new(range);
            rustix::ioctl::ioctl(to, clone)
        }
    }
}
