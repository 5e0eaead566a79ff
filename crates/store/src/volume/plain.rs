//! A block whose bytes are stored directly in one open file: in memory, in a folder, or on a device.
//!
//! fallocate(2), lseek(2) SEEK_DATA, open(2) O_DIRECT, fsync(2). The file contains the volume's bytes and nothing
//! else, so other tools can use it.
//!
//! Operation: reads are file ranges, so a transport may splice them out of the page cache; writes go to the page
//! cache on the calling core. With `direct`, aligned transfers bypass the page cache on worker threads; unaligned
//! ones use it, and the kernel keeps the two coherent.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use weft_machine::buf::MAX_BUF;
use weft_machine::file::busy;
use weft_machine::{DataRanges, File, FileRange, Payload, Pool};

use super::abandoned::Abandoned;
use crate::Error;
use crate::block::{Block, BlockOp, Extent, Geometry, Medium, Outcome};
use crate::health::{Health, Takes};

/// The block size that every disk and file system reads and writes atomically, and the alignment of direct transfers,
/// also in memory.
pub(super) const BLOCK_BYTES: u32 = 4096;
/// Zeros written in one call if the medium cannot make them itself.
const ZEROS_BYTES: u64 = 1 << 20;
/// Slices of one direct write.
const SLICES_PER_CALL: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Plain {
    file: File,
    direct: Option<Direct>,
    medium: Medium,
    /// Shrinks only if nobody uses the truncated part: see [`super::Growth::give_back`].
    size: AtomicU64,
    /// Whether something could not be made durable; see the contract.
    lost: Arc<AtomicBool>,
    /// Changes that continue although their futures were dropped.
    abandoned: Abandoned,
    /// Learns the results of changes, if anybody asks for them.
    health: Option<Health>,
}

/// Direct access, bypassing the page cache.
#[derive(Debug)]
pub struct Direct {
    /// The same file, opened with O_DIRECT.
    pub file: File,
    /// Provides the buffers of reads.
    pub pool: Pool,
}

impl Plain {
    /// A volume of `size` zero bytes in memory, which is allocated as it is written.
    pub fn in_memory(size: u64) -> io::Result<Plain> {
        let file = File::in_memory("weft-volume")?;
        file.set_len(size)?;
        Ok(Plain::new(file, None, Medium::Ram, size))
    }

    /// A volume of `size` zero bytes in memory, all allocated now, in huge pages if allowed.
    pub fn in_taken_memory(size: u64) -> io::Result<Plain> {
        let file = File::in_large_pages().or_else(|e| {
            tracing::info!("a volume uses small memory pages, which take longer to fill: {e}");
            File::in_memory("weft-volume")
        })?;
        file.set_len(size)?;
        take(&file, 0, size)?;
        Ok(Plain::new(file, None, Medium::Ram, size))
    }

    /// The first `size` bytes of an open file or device.
    pub fn new(file: File, direct: Option<Direct>, medium: Medium, size: u64) -> Plain {
        Plain {
            file,
            direct,
            medium,
            size: AtomicU64::new(size),
            lost: Arc::default(),
            abandoned: Abandoned::default(),
            health: None,
        }
    }

    /// The same, whose changes tell `health` about their disk.
    #[must_use]
    pub(super) fn heard_by(self, health: Health) -> Plain {
        Plain { health: Some(health), ..self }
    }

    /// The problem of the disk that changes have met, if any.
    pub(super) fn trouble(&self) -> Option<String> {
        self.health.as_ref()?.trouble()
    }

    /// The bytes allocated for it. Read only while there is a problem: then it matters whether a change takes space.
    fn allocated(&self) -> Option<u64> {
        self.health.as_ref().filter(|health| health.is_ill())?;
        self.file.links_and_allocated().ok().map(|(_, allocated)| allocated)
    }

    /// Records the result of a change, before which these bytes were allocated. A device does not tell what is allocated.
    fn heard(&self, before: Option<u64>, done: &Result<(), Error>) {
        let Some(health) = &self.health else { return };
        let has_grown = || before.zip(self.allocated()).is_some_and(|(before, now)| now > before);
        let takes = if done.is_err() || self.medium == Medium::Device || has_grown() {
            Takes::Space
        } else {
            Takes::Nothing
        };
        health.heard(done, takes, || None);
    }

    /// Sets a larger size; its file already has it.
    pub(super) fn grown(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    /// Sets a smaller size.
    pub(super) fn shrunk(&self, size: u64) {
        self.size.fetch_min(size, Ordering::AcqRel);
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Whether something could not be made durable: then every flush fails until the volume is reopened.
    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(super) fn abandoned(&self) -> &Abandoned {
        &self.abandoned
    }

    /// The file with its bytes.
    pub(super) fn content(&self) -> File {
        self.file.clone()
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Payload, Error> {
        let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(offset) && is_aligned(len as u64))
        else {
            return Ok(Payload::File(FileRange { file: self.file.clone(), offset, len }));
        };
        let mut chain = Vec::with_capacity(len.div_ceil(MAX_BUF));
        let mut done = 0;
        while done < len {
            let mut buf = direct.pool.alloc((len - done).min(MAX_BUF)).await;
            buf.set_len((len - done).min(MAX_BUF));
            let (file, at) = (direct.file.clone(), offset + done as u64);
            let buf = busy::blocking(self.file.inode()?, move || {
                let mut filled = 0;
                while filled < buf.len() {
                    match rustix::io::pread(&file, &mut buf[filled..], at + filled as u64) {
                        // The size was checked when the volume was opened: the file was truncated since.
                        Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                        Ok(n) => filled += n,
                        Err(Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Ok(buf)
            });
            let buf = buf.await?;
            done += buf.len();
            chain.push(buf.freeze());
        }
        Ok(Payload::Chain(chain))
    }

    async fn write(&self, offset: u64, data: Vec<Bytes>) -> Result<(), Error> {
        let fits = |bytes: &Bytes| is_aligned(bytes.as_ptr() as u64) && is_aligned(bytes.len() as u64);
        let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(offset) && data.iter().all(fits))
        else {
            return Ok(self.file.write_at(offset, &data).await?);
        };
        let file = direct.file.clone();
        Ok(self.abandoned.make(self.file.inode()?, move || write_direct(&file, offset, &data)).await?)
    }

    /// Makes earlier writes durable, unless a loss has occurred before.
    async fn sync(&self) -> Result<(), Error> {
        if self.medium == Medium::Ram {
            return Ok(());
        }
        let lost = || {
            io::Error::other(
                "an earlier write could not be made durable: every flush fails until the server is restarted",
            )
        };
        if self.has_lost() {
            return Err(lost().into());
        }
        let (file, flag) = (self.file.clone(), self.lost.clone());
        let synced = busy::blocking(self.file.inode()?, move || {
            let synced = rustix::fs::fdatasync(&file);
            // Before anybody else can be told that all is well: the kernel reports a loss only once.
            if synced.is_err() {
                flag.store(true, Ordering::Release);
            }
            synced
        });
        if let Err(e) = synced.await {
            tracing::error!(
                "writes to a volume could not be made durable, and may be lost: {e}; `weft status` shows the volume, and \
                 what to do"
            );
            return Err(io::Error::from(e).into());
        }
        // Another flush may have been told about a loss of this one's data.
        if self.has_lost() { Err(lost().into()) } else { Ok(()) }
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<(), Error> {
        // A device releases only whole blocks; for a file, the kernel zeroes the partial blocks.
        let (start, end) = match self.medium {
            Medium::Device => (align_up(offset), align_down(offset + len)),
            _ => (offset, offset + len),
        };
        if start >= end {
            return Ok(());
        }
        let file = self.file.clone();
        let punch = move || fallocate(&file, FallocateFlags::PUNCH_HOLE, start, end - start);
        match self.abandoned.make_alone(&self.file, punch).await? {
            // It was only a hint.
            Err(e) if unsupported(e) => Ok(()),
            other => Ok(other.map_err(io::Error::from)?),
        }
    }

    async fn zero(&self, offset: u64, len: u64, keep_space: bool, fast: bool) -> Result<(), Error> {
        let whole = self.medium != Medium::Device || (is_aligned(offset) && is_aligned(len));
        let file = self.file.clone();
        let zeroed = self.abandoned.make_alone(&self.file, move || match whole {
            true => zero(&file, offset, len, keep_space, fast),
            // Partial blocks of a device must be written; splitting a range of a few blocks is not worthwhile.
            false if fast => Err(Errno::OPNOTSUPP),
            false => write_zeros(&file, offset, len),
        });
        match zeroed.await? {
            Err(e) if unsupported(e) => Err(Error::NotSupported),
            other => Ok(other.map_err(io::Error::from)?),
        }
    }

    async fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, Error> {
        match self.medium {
            // A device cannot report its allocation. (An image is no file.)
            Medium::Device | Medium::Rbd => Ok(vec![Extent { len, hole: false }]),
            Medium::Ram | Medium::File => extents(&self.file, offset, len, max).await,
        }
    }
}

impl Block for Plain {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size(), medium: self.medium, preferred: BLOCK_BYTES }
    }

    fn memory(&self) -> Option<&File> {
        // A direct store would not wait for abandoned changes, and would block its core on those that lock the file.
        Some(&self.file).filter(|file| file.is_in_memory() && !self.abandoned.any() && !busy::is_locked(file))
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            op.validate(self.size())?;
            self.abandoned.finished().await;
            let before = self.allocated();
            let must_last = match op {
                BlockOp::Read { offset, len } => return self.read(offset, len).await.map(Outcome::Data),
                BlockOp::Status { offset, len, max_extents } => {
                    return self.status(offset, len, max_extents).await.map(Outcome::Extents);
                }
                BlockOp::Write { offset, data, durable } => {
                    let done = self.write(offset, data).await;
                    self.heard(before, &done);
                    done?;
                    durable
                }
                BlockOp::Trim { offset, len, durable } => {
                    let done = self.trim(offset, len).await;
                    self.heard(before, &done);
                    done?;
                    durable
                }
                BlockOp::WriteZeroes { offset, len, durable, keep_space, fast } => {
                    let done = self.zero(offset, len, keep_space, fast).await;
                    self.heard(before, &done);
                    done?;
                    durable
                }
                BlockOp::Flush => true,
            };
            if must_last {
                self.sync().await?;
            }
            Ok(Outcome::Done)
        })
    }
}

fn is_aligned(n: u64) -> bool {
    n.is_multiple_of(BLOCK_BYTES.into())
}

fn align_down(n: u64) -> u64 {
    n - n % u64::from(BLOCK_BYTES)
}

fn align_up(n: u64) -> u64 {
    align_down(n.saturating_add(u64::from(BLOCK_BYTES) - 1))
}

fn unsupported(e: Errno) -> bool {
    matches!(e, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV)
}

fn fallocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, flags | FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Allocates the memory of a range of a file in memory by writing zeros: after a mere reservation, the first write to
/// each page would clear it and, in a virtual machine, fetch it from the host, which costs more than anything else.
/// So no part of it is a hole. If the memory is not available, this fails, because the kernel would end processes.
pub(super) fn take(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let available = memory_available()?;
    if len > available {
        return Err(io::Error::other(format!("{len} bytes are needed, but only {available} are available")));
    }
    fallocate(file, FallocateFlags::empty(), offset, len)?;
    Ok(write_zeros(file, offset, len)?)
}

/// Bytes that the kernel can provide without taking them from processes.
pub(super) fn memory_available() -> io::Result<u64> {
    let page = std::fs::read_to_string("/proc/meminfo")?;
    let line = page.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.ok_or_else(|| io::Error::other("the kernel does not report the available memory"))? * 1024)
}

/// Zeroes a range in the cheapest way that satisfies the request.
fn zero(file: &File, offset: u64, len: u64, keep_space: bool, fast: bool) -> Result<(), Errno> {
    let try_with = |flags| match fallocate(file, flags, offset, len) {
        Err(e) if unsupported(e) => Ok(false),
        other => other.map(|()| true),
    };
    if !keep_space && try_with(FallocateFlags::PUNCH_HOLE)? {
        return Ok(());
    }
    if try_with(FallocateFlags::ZERO_RANGE)? {
        return Ok(());
    }
    // tmpfs: the space is released and reserved again.
    if keep_space && try_with(FallocateFlags::PUNCH_HOLE)? {
        return fallocate(file, FallocateFlags::empty(), offset, len);
    }
    if fast { Err(Errno::OPNOTSUPP) } else { write_zeros(file, offset, len) }
}

fn write_zeros(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    let zeros = vec![0; usize::try_from(ZEROS_BYTES.min(len)).unwrap_or(0)];
    let mut done = 0;
    while done < len {
        let piece = usize::try_from(len - done).map_or(zeros.len(), |left| left.min(zeros.len()));
        match rustix::io::pwrite(file, &zeros[..piece], offset + done) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n as u64,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn write_direct(file: &File, offset: u64, data: &[Bytes]) -> io::Result<()> {
    let mut at = offset;
    for batch in data.chunks(SLICES_PER_CALL) {
        let mut slices: Vec<IoSlice<'_>> = batch.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match rustix::io::pwritev(file, rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    IoSlice::advance_slices(&mut rest, n);
                    at += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

/// Data and holes in turn.
async fn extents(file: &File, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, Error> {
    let DataRanges { ranges, more } = file.data_ranges(offset, len, max).await?;
    let mut extents = Vec::new();
    let mut at = offset;
    for range in ranges {
        if range.start > at {
            extents.push(Extent { len: range.start - at, hole: true });
        }
        extents.push(Extent { len: range.end - range.start, hole: false });
        at = range.end;
    }
    let end = offset + len;
    if !more && at < end {
        extents.push(Extent { len: end - at, hole: true });
    }
    extents.truncate(max);
    Ok(extents)
}
