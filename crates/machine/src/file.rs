//! Open files: positioned reads and writes that try the page cache first.
//!
//! A read first tries RWF_NOWAIT on the calling core, which never sleeps and costs one system call; only what the page
//! cache does not hold is read by a worker thread. (io_uring hands buffered reads on tmpfs to workers, which was
//! measured to be slower.) A file owns the descriptor. Paths, rights and share modes are handled by `store`.

pub mod busy;
mod doubted;
pub mod ending;
pub mod journal;
mod mapped;
mod memory;
mod mounts;
mod occupied;
pub mod pipe;
pub mod private;
pub mod project;
pub mod regular;
mod resident;
mod space;
pub mod system;
mod warm;
pub mod whole;

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use self::busy::{Claim, Inode, Unlocked};
use self::mapped::{FileMapping, Mapped};
pub use self::mapped::{MappedRange, Piece};
pub use self::memory::InMemory;
use self::memory::Memory;
pub use self::mounts::{Mount, readings as mount_readings, remote_below};
pub use self::space::DataRanges;
use self::system::{Descriptor, FileSystem};
use self::warm::Warm;
use crate::buf::{Buf, Window};
use crate::clock::Time;
use crate::recorder::{self, Hop};
use crate::rt;

/// Slices that a write passes to the kernel in one call: a megabyte in page-sized pieces.
const SLICES_PER_CALL: usize = 256;
/// Pieces of a short write, such as a record of a log with its header and padding.
const FEW_SLICES: usize = 8;
/// How much of a range [`crate::net::Stream::send_file`] brings into the page cache at a time: enough for the disk to
/// stream, little enough to stay in the cache until it is sent.
pub(crate) const WARM_BYTES: usize = 1 << 20;
/// Bytes of a file system that may block, which are held in memory until the peer takes them.
pub(crate) const FETCHED_BYTES: usize = 128 << 10;

/// An open file. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct File(Arc<Open>);

#[derive(Debug)]
struct Open {
    fd: Descriptor,
    /// Whether it lies on tmpfs, which refuses RWF_NOWAIT although its reads never wait for a disk (unless swapped
    /// out). Known after the first refusal.
    in_memory: OnceLock<bool>,
    /// Present for a file made by [`File::in_memory`]: this then tracks the length, and reads.
    memory: Option<Memory>,
    mapped: Mapped,
    warm: Warm,
    /// Set when it was first queried.
    inode: OnceLock<Inode>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // A file that may block is closed by a thread of its file system, without a query of the memory that it frees.
        if self.fd.blocking().is_none() {
            ending::let_go(self.fd.as_fd());
        }
    }
}

impl Open {
    /// Reads without sleeping; `AGAIN` or `OPNOTSUPP` if that cannot be guaranteed.
    fn read_cached(&self, offset: u64, into: &Window) -> Result<usize, Errno> {
        if let Some(memory) = &self.memory {
            return memory
                .read_at(self.fd.as_fd(), offset, into)
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL));
        }
        if self.fd.blocking().is_some() {
            // Some file systems accept RWF_NOWAIT for their pages, but still fetch the file's attributes.
            return Err(Errno::AGAIN);
        }
        if self.in_memory.get() == Some(&true) {
            return sys::read_at(self.fd.as_fd(), offset, into, false);
        }
        match sys::read_at(self.fd.as_fd(), offset, into, true) {
            Err(Errno::OPNOTSUPP) if self.find_in_memory() => self.read_cached(offset, into),
            other => other,
        }
    }

    /// RWF_NOWAIT was refused: checks whether that is because the file is in memory anyway.
    fn find_in_memory(&self) -> bool {
        *self.in_memory.get_or_init(|| rustix::fs::fstatfs(&self.fd).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC))
    }

    /// Whether the byte at `offset` can be read without sleeping. Past the end it can. One that cannot be read cannot: the
    /// read that follows says why.
    fn is_cached(&self, offset: u64) -> bool {
        if self.in_memory.get() == Some(&true) {
            return true;
        }
        let mut byte = [0];
        match rustix::io::preadv2(
            &self.fd,
            &mut [io::IoSliceMut::new(&mut byte)],
            offset,
            ReadWriteFlags::NOWAIT,
        ) {
            Err(Errno::AGAIN) => false,
            Err(Errno::OPNOTSUPP) => self.find_in_memory(),
            Err(_) => false,
            Ok(_) => true,
        }
    }
}

/// The page cache's unit here; with larger pages, one byte more is checked than needed.
const PAGE: u64 = 4096;
/// statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        File::opened(Descriptor::new(fd, None))
    }
}

impl File {
    /// A file of this file system: while that may block, no call is made on a core.
    pub fn on(fd: OwnedFd, system: Arc<FileSystem>) -> File {
        File::opened(Descriptor::new(fd, Some(system)))
    }

    /// Its file system, while that may block.
    pub fn blocking(&self) -> Option<&Arc<FileSystem>> {
        self.0.fd.blocking()
    }

    fn opened(fd: Descriptor) -> File {
        File(Arc::new(Open {
            fd,
            in_memory: OnceLock::new(),
            memory: None,
            mapped: Mapped::default(),
            warm: Warm::default(),
            inode: OnceLock::new(),
        }))
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl File {
    /// An anonymous file in memory (tmpfs pages), readable, writable and sparse. Its length must change through this
    /// type only, never through the descriptor.
    pub fn in_memory(name: &str) -> io::Result<File> {
        let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(File::of_memory(fd))
    }

    /// An empty file on tmpfs that nobody else has open.
    fn of_memory(fd: OwnedFd) -> File {
        File(Arc::new(Open {
            fd: Descriptor::new(fd, None),
            in_memory: OnceLock::from(true),
            memory: Some(Memory::default()),
            mapped: Mapped::default(),
            warm: Warm::default(),
            inode: OnceLock::new(),
        }))
    }

    /// Like [`File::in_memory`], in pages of 2 MiB if the file has room for a whole one: storing data where there was
    /// none takes a fifth of the time, but a write of a few bytes occupies 2 MiB. memfds have such pages only if an
    /// administrator enables them for all memfds, so this is an unnamed file of a tmpfs of this process, which nobody else
    /// can find. An error if that is not permitted (it needs CAP_SYS_ADMIN), or if the kernel has no such pages.
    pub fn in_large_pages() -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(File::folder_of_large_pages()?, ".", flags, Mode::RUSR | Mode::WUSR)?;
        Ok(File::of_memory(fd))
    }

    /// The root of the tmpfs for [`File::in_large_pages`], which the first call mounts nowhere.
    pub(crate) fn folder_of_large_pages() -> io::Result<BorrowedFd<'static>> {
        use rustix::mount;
        static MOUNTED: OnceLock<OwnedFd> = OnceLock::new();
        if let Some(root) = MOUNTED.get() {
            return Ok(root.as_fd());
        }
        let fs = mount::fsopen("tmpfs", mount::FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_set_string(fs.as_fd(), "huge", "within_size")?;
        // No limit, as for a memfd.
        mount::fsconfig_set_string(fs.as_fd(), "size", "0")?;
        mount::fsconfig_create(fs.as_fd())?;
        let nowhere =
            mount::fsmount(fs.as_fd(), mount::FsMountFlags::FSMOUNT_CLOEXEC, mount::MountAttrFlags::empty())?;
        // Another thread may have been faster.
        Ok(MOUNTED.get_or_init(|| nowhere).as_fd())
    }

    /// Fills `into` from `offset`; the count is short only at the end of the file.
    pub async fn read_at(&self, offset: u64, into: &Window) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = into.slice(done, into.len() - done).filter(|w| !w.is_empty()) {
            let n = match self.0.read_cached(offset + done as u64, &rest) {
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                // Not in the page cache, or a file system without RWF_NOWAIT.
                Err(Errno::AGAIN | Errno::OPNOTSUPP) => {
                    let file = self.clone();
                    let at = offset + done as u64;
                    let read = busy::blocking_in(self, move || sys::read_at(file.as_fd(), at, &rest, false));
                    recorder::at(Hop::Disk, read).await??
                }
                Err(e) => return Err(e.into()),
            };
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done)
    }

    /// Like [`File::read_at`] from the page cache only: `None` if the read would have to sleep (what was read until
    /// then is in `into`).
    pub fn try_read_at(&self, offset: u64, into: &Window) -> Option<io::Result<usize>> {
        let mut done = 0;
        while let Some(rest) = into.slice(done, into.len() - done).filter(|w| !w.is_empty()) {
            match self.0.read_cached(offset + done as u64, &rest) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP) => return None,
                Err(e) => return Some(Err(e.into())),
            }
        }
        Some(Ok(done))
    }

    /// Writes all of `chain` at `offset`, in as few calls as the kernel allows.
    ///
    /// The write goes to the page cache on the calling core. (Too many file systems refuse RWF_NOWAIT writes for an
    /// attempt to pay, and a hop to a worker thread costs more than the copy.) It goes to a worker only if the file
    /// system may block. While a worker has the file's lock, the write waits as a task (see [`busy`]).
    pub async fn write_at(&self, offset: u64, chain: &[Bytes]) -> io::Result<()> {
        let unlocked = busy::shared_of(self).await?;
        if let Some(system) = self.blocking() {
            let (file, chain) = (self.clone(), chain.to_vec());
            let write = move || {
                let _unlocked = unlocked;
                file.write_chain(offset, &chain)
            };
            return recorder::at(Hop::Disk, system.data(write)).await?;
        }
        self.write_here(offset, chain)
    }

    /// The same without waiting: `None` while a worker may have the file's lock, and if the file system may block.
    pub fn try_write_at(&self, offset: u64, chain: &[Bytes]) -> Option<io::Result<()>> {
        if self.blocking().is_some() {
            return None;
        }
        let _unlocked = Unlocked::all()?;
        Some(self.write_here(offset, chain))
    }

    /// On the calling core, which the kernel stops while too much waits for the disk.
    fn write_here(&self, offset: u64, chain: &[Bytes]) -> io::Result<()> {
        let written = self.write_chain(offset, chain);
        recorder::spent(Hop::Disk);
        written
    }

    fn write_chain(&self, offset: u64, chain: &[Bytes]) -> io::Result<()> {
        if let [bytes] = chain {
            // The payload of a message is one slice, and often short: this avoids a table of slices, which costs as
            // much as a small copy.
            return self.write_piece(offset, bytes);
        }
        if chain.len() <= FEW_SLICES {
            return self.write_batch::<FEW_SLICES>(offset, chain).map(drop);
        }
        let mut at = offset;
        for batch in chain.chunks(SLICES_PER_CALL) {
            at = self.write_batch::<SLICES_PER_CALL>(at, batch)?;
        }
        Ok(())
    }

    /// Writes up to `N` pieces, and returns the offset behind them. The table of slices is filled before it is used, and a long
    /// one costs as much as a small write.
    fn write_batch<const N: usize>(&self, offset: u64, batch: &[Bytes]) -> io::Result<u64> {
        let mut at = offset;
        let mut slices = [IoSlice::new(&[]); N];
        for (slice, bytes) in slices.iter_mut().zip(batch) {
            *slice = IoSlice::new(bytes);
        }
        let mut rest = &mut slices[..batch.len()];
        IoSlice::advance_slices(&mut rest, 0); // drops empty slices at the front
        while !rest.is_empty() {
            let Some(n) = self.written(at, rustix::io::pwritev(&self.0.fd, rest, at))? else { continue };
            IoSlice::advance_slices(&mut rest, n);
            at = at.saturating_add(n as u64);
        }
        Ok(at)
    }

    /// Appends all of `bytes` at the current end of the file: concurrent appends, by this descriptor or another one,
    /// come before or after it. `admit` is told the offset before anything is written; it is exact for a file in
    /// memory, and a moment old for any other. The caller holds a claim, as for [`File::place_at`].
    pub async fn append<E: From<io::Error>>(
        &self,
        bytes: &Bytes,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(system) = self.blocking() else { return self.append_here(bytes, admit) };
        admit(self.len()?)?;
        let (file, bytes) = (self.clone(), bytes.clone());
        let appended = recorder::at(Hop::Disk, system.data(move || file.append_to_end(&bytes))).await;
        Ok(appended.map_err(io::Error::from)??)
    }

    /// The same on the calling core.
    pub fn append_here<E: From<io::Error>>(
        &self,
        bytes: &[u8],
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(memory) = &self.0.memory {
            // The descriptor's own end may lie beyond ours, so the kernel cannot append.
            let _alone = memory.appending();
            let end = memory.len();
            admit(end)?;
            return Ok(self.write_piece(end, bytes)?);
        }
        admit(self.len()?)?;
        Ok(self.append_to_end(bytes)?)
    }

    fn append_to_end(&self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let slices = [IoSlice::new(rest)];
            let n = match rustix::io::pwritev2(&self.0.fd, &slices, 0, ReadWriteFlags::APPEND) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => n,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            rest = rest.get(n..).unwrap_or_default();
        }
        Ok(())
    }

    fn write_piece(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (mut at, mut rest) = (offset, bytes);
        if let Some(memory) = &self.0.memory {
            let n = memory.write_at(self.0.fd.as_fd(), offset, bytes);
            rest = &rest[n..];
            at = at.saturating_add(n as u64);
            if n > 0 {
                // The file may have been truncated meanwhile: it becomes longer again, as with any write.
                memory.written(at);
            }
        }
        while !rest.is_empty() {
            let Some(n) = self.written(at, rustix::io::pwrite(&self.0.fd, rest, at))? else { continue };
            rest = &rest[n..];
            at = at.saturating_add(n as u64);
        }
        Ok(())
    }

    /// Whether it was made by [`File::in_memory`]: a write to it never waits for a disk.
    pub fn is_in_memory(&self) -> bool {
        self.0.memory.is_some()
    }

    /// Writes all of `from` at `offset`, on the calling core: the single copy needed for payload in a peer's memory. If
    /// the peer changes the payload meanwhile, it may be torn. The caller holds a claim on the file (see
    /// [`busy::shared_of`]) if others can punch holes into it.
    pub fn place_at(&self, offset: u64, from: &Window) -> io::Result<()> {
        let mut done = 0;
        if let Some(memory) = &self.0.memory {
            done = memory.place_at(self.0.fd.as_fd(), offset, from);
            if done > 0 {
                // As after a write: the file may have been truncated meanwhile.
                memory.written(offset.saturating_add(done as u64));
            }
        }
        while let Some(rest) = from.slice(done, from.len() - done).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            done += self.written(at, sys::write_at(self.as_fd(), at, &rest))?.unwrap_or(0);
        }
        Ok(())
    }

    /// The result of one write at `at`: how many bytes the file has taken, `None` to try again.
    fn written(&self, at: u64, result: Result<usize, Errno>) -> io::Result<Option<usize>> {
        let n = match result {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => n,
            Err(Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if let Some(memory) = &self.0.memory {
            memory.reshaped();
            memory.written(at.saturating_add(n as u64));
        }
        Ok(Some(n))
    }

    /// Makes data (and metadata unless `data_only`) durable.
    pub async fn sync(&self, data_only: bool) -> io::Result<()> {
        let file = self.clone();
        let sync = busy::blocking_in(self, move || {
            if data_only { rustix::fs::fdatasync(&file.0.fd) } else { rustix::fs::fsync(&file.0.fd) }
        });
        recorder::at(Hop::Disk, sync).await??;
        Ok(())
    }

    /// Identifies the file, so that calls that wait for each other find each other, see [`busy`].
    pub fn inode(&self) -> io::Result<Inode> {
        if let Some(inode) = self.0.inode.get() {
            return Ok(*inode);
        }
        let inode = Inode::of(self)?;
        Ok(*self.0.inode.get_or_init(|| inode))
    }

    /// Sets the size; a longer file reads as zeros at its end.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        if let Some(memory) = &self.0.memory {
            return memory.set_len(self.0.fd.as_fd(), len);
        }
        Ok(rustix::fs::ftruncate(&self.0.fd, len)?)
    }

    /// Size in bytes now. A file system that may block is not queried: the result is then the size from the kernel's
    /// last attributes or writes.
    pub fn len(&self) -> io::Result<u64> {
        if let Some(memory) = &self.0.memory {
            return Ok(memory.len());
        }
        if self.blocking().is_some() {
            return Ok(self.known(StatxFlags::SIZE)?.stx_size);
        }
        Ok(u64::try_from(rustix::fs::fstat(&self.0.fd)?.st_size).unwrap_or(0))
    }

    /// Attributes as cached by the kernel, because the file system may block and is not queried.
    fn known(&self, wanted: StatxFlags) -> io::Result<rustix::fs::Statx> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        Ok(rustix::fs::statx(&self.0.fd, c"", flags, wanted)?)
    }

    /// The bytes that it occupies. A file system that may block is not queried, and the kernel learns of new blocks from its
    /// answers only: a file there that has become longer occupies its length.
    pub fn occupied_bytes(&self) -> io::Result<u64> {
        if self.blocking().is_some() {
            let known = self.known(StatxFlags::SIZE | StatxFlags::BLOCKS)?;
            return Ok(known.stx_blocks.saturating_mul(512).max(known.stx_size));
        }
        Ok(self.links_and_allocated()?.1)
    }

    /// The number of names, and the bytes allocated; for these, too, [`File::len`]'s caveat holds.
    pub fn links_and_allocated(&self) -> io::Result<(u64, u64)> {
        if self.blocking().is_some() {
            let known = self.known(StatxFlags::NLINK | StatxFlags::BLOCKS)?;
            return Ok((known.stx_nlink.into(), known.stx_blocks.saturating_mul(512)));
        }
        let stat = rustix::fs::fstat(&self.0.fd)?;
        Ok((stat.st_nlink, stat.st_blocks.unsigned_abs().saturating_mul(512)))
    }

    /// The state of a file in memory, without a system call unless something has changed that only the system knows;
    /// `Unsupported` for any other file.
    pub fn state_in_memory(&self) -> io::Result<InMemory> {
        let memory = self.0.memory.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        memory.state(self.0.fd.as_fd())
    }

    /// Counts a short read. Returns whether the file is mapped by now, so that sending ranges of it is better than
    /// reading them (see [`FileRange::mapped`]).
    pub fn is_mapped(&self) -> bool {
        self.blocking().is_none() && self.mapping().is_some()
    }

    fn mapping(&self) -> Option<&Arc<FileMapping>> {
        let open = &self.0;
        open.mapped.after_reads(open.fd.as_fd(), || self.len())
    }

    /// Whether the size is zero now.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A range of an open file: payload that was not read yet, so that a transport may splice it or read it straight into
/// the peer's memory.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// Where the bytes are.
    pub file: File,
    /// First byte.
    pub offset: u64,
    /// The length; the creator of the range has limited it to the file's size. Bytes lost to a later truncation are
    /// sent as zeros.
    pub len: usize,
}

/// Whether a send failed because a mapped file no longer has the bytes to send.
pub fn is_lost(e: &io::Error) -> bool {
    Errno::from_io_error(e) == Some(Errno::FAULT)
}

/// Why a file could not be sent: it cannot be read, whatever the state of the stream.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unreadable(io::Error);

/// Marks an error as the file's, for [`is_unreadable`].
pub fn unreadable(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), Unreadable(e))
}

/// Whether a send failed because the file cannot be read.
pub fn is_unreadable(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|inner| inner.is::<Unreadable>())
}

impl FileRange {
    /// The range without its first `n` bytes, or without all of them.
    #[must_use]
    pub fn advanced(&self, n: usize) -> FileRange {
        let n = n.min(self.len);
        FileRange { file: self.file.clone(), offset: self.offset.saturating_add(n as u64), len: self.len - n }
    }

    /// The error of a call that reads the range and sends: marked if a stream does not have it.
    pub(crate) fn blamed(&self, e: io::Error) -> io::Error {
        match Errno::from_io_error(&e) {
            Some(Errno::IO | Errno::NODATA | Errno::STALE | Errno::UCLEAN) => {
                doubted::add(&self.file);
                unreadable(e)
            }
            _ => e,
        }
    }

    /// Reads `len` bytes of the range, from its byte `from`, into the page cache with a worker thread, unless its first
    /// and last bytes are there already (or if the file system cannot tell).
    pub async fn warm(&self, from: usize, len: usize) -> io::Result<()> {
        drop(self.warm_claimed(from, len).await?);
        Ok(())
    }

    /// The same. While the result is held no worker frees these bytes: it is for one attempt to send, which may fail,
    /// and must not be held across a wait.
    pub async fn warm_claimed(&self, from: usize, len: usize) -> io::Result<Vec<Claim>> {
        let Some(last) = len.checked_sub(1) else { return Ok(Vec::new()) };
        let start = self.offset.saturating_add(from as u64);
        let end = start.saturating_add(last as u64);
        // Bytes freed at this moment are no longer in the page cache. A worker locks a file in memory as well.
        let mut claims = busy::shared_of(&self.file).await?.into_claims();
        if self.is_warm(start, end) {
            return Ok(claims);
        }
        let now = rt::now();
        if claims.is_empty() {
            claims.extend(busy::to_read(self.file.inode()?).await);
        }
        claims = self.read_ahead(start, len, claims).await?;
        self.file.0.warm.saw(&(start..end.saturating_add(1)), now, || self.file.len().unwrap_or(0));
        Ok(claims)
    }

    /// Whether the page cache has the file's bytes `start` and `end`, or had them a moment ago; false if the file system
    /// cannot tell, or a read of the file has failed.
    fn is_warm(&self, start: u64, end: u64) -> bool {
        let open = &self.file.0;
        if open.in_memory.get() == Some(&true) {
            return true;
        }
        if doubted::has(&self.file) {
            return false;
        }
        let (range, now) = (start..end.saturating_add(1), rt::now());
        if open.warm.knows(&range, now) {
            return true;
        }
        let cached = self.file.blocking().is_none()
            && open.is_cached(start)
            && (start / PAGE == end / PAGE || open.is_cached(end));
        if cached {
            self.saw(range, now);
        }
        cached
    }

    /// The page cache has the first and the last byte of `range`. If it has what lies around it as well, that need not be asked for
    /// each part of it.
    fn saw(&self, range: Range<u64>, now: Time) {
        let open = &self.file.0;
        // Of pages that are still being read the last one comes last.
        let around =
            resident::around(open.fd.as_fd(), &range).filter(|around| open.is_cached(around.end - 1));
        open.warm.saw(&around.unwrap_or(range), now, || self.file.len().unwrap_or(0));
    }

    /// Whether [`FileRange::warm`] of the part that [`crate::net::Stream::send_file`] begins with would neither read nor
    /// wait now. Costs what that costs then.
    pub fn begins_warm(&self) -> bool {
        let Some(last) = self.beginning_len().checked_sub(1) else { return true };
        // A worker that frees blocks of some file may be about to free these.
        !busy::any() && self.is_warm(self.offset, self.offset.saturating_add(last as u64))
    }

    /// Reads what [`crate::net::Stream::send_file`] begins with into the page cache, see [`FileRange::warm`].
    pub async fn warm_beginning(&self) -> io::Result<()> {
        self.warm(0, self.beginning_len()).await
    }

    /// All of a file of which a read has failed: its other parts may be unreadable as well. Little of a file system that may
    /// block: it is held until the peer takes it.
    fn beginning_len(&self) -> usize {
        match self.file.blocking().is_some() {
            true => self.len.min(FETCHED_BYTES),
            false if doubted::has(&self.file) => self.len,
            false => self.len.min(WARM_BYTES),
        }
    }

    /// The part that [`crate::net::Stream::send_file`] begins with, and the rest.
    pub fn beginning(&self) -> (FileRange, FileRange) {
        let first = FileRange { len: self.beginning_len(), ..self.clone() };
        let rest = self.advanced(first.len);
        (first, rest)
    }

    /// Reads `len` bytes of the file, from its byte `start`, on a worker thread, and discards them.
    async fn read_ahead(&self, start: u64, len: usize, claims: Vec<Claim>) -> io::Result<Vec<Claim>> {
        let file = self.file.clone();
        let read = move || {
            let mut scratch = vec![0; len.min(64 << 10)];
            let mut done = 0;
            while done < len {
                let room = scratch.len().min(len - done);
                match rustix::io::pread(&file, &mut scratch[..room], start.saturating_add(done as u64)) {
                    Ok(0) => break,
                    Ok(n) => done += n,
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(claims)
        };
        let read =
            recorder::at(Hop::Disk, busy::in_places_of(self.file.blocking(), read, rt::blocking)).await?;
        read.inspect_err(|_| doubted::add(&self.file))
    }

    /// `len` bytes from byte `from` of the range, read on a worker thread, with zeros for bytes that the file has lost.
    /// For files whose file system may block: these are never sent without a read.
    pub async fn fetch(&self, from: usize, len: usize) -> io::Result<Bytes> {
        let range = self.clone();
        let read = move || {
            let mut bytes = vec![0; len];
            let mut done = 0;
            while done < len {
                done += range.read_or_zero(from.saturating_add(done), len - done, &mut bytes[done..])?;
            }
            Ok(bytes.into())
        };
        recorder::at(Hop::Disk, busy::in_places_of(self.file.blocking(), read, rt::blocking)).await?
    }

    /// `len` bytes from byte `from` of the range, with zeros for bytes that the file has lost, in memory of their own. A worker
    /// thread reads what the page cache does not have.
    pub async fn piece(&self, from: usize, len: usize) -> io::Result<Bytes> {
        if self.file.blocking().is_some() {
            return self.fetch(from, len).await;
        }
        let _claims = self.warm_claimed(from, len).await?;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            done += self.read_or_zero(from.saturating_add(done), len - done, &mut bytes[done..])?;
        }
        Ok(bytes.into())
    }

    /// The range for sending without a read, if the file is mapped (see `file::mapped`) and the page cache holds the
    /// range. For short ranges: [`crate::net::Stream::send_file`] sends a long one at lower cost.
    pub fn mapped(&self) -> Option<MappedRange> {
        let open = &self.file.0;
        if self.file.blocking().is_some() || busy::is_locked(&self.file) {
            // A freed page faults in only when the worker's call has ended.
            return None;
        }
        let mapping = self.file.mapping()?;
        let found = MappedRange::new(mapping, self.offset, self.len)?;
        if open.memory.is_some() {
            // Nothing can block.
            return Some(found);
        }
        let range = self.offset..self.offset.saturating_add(self.len as u64);
        let now = rt::now();
        if open.warm.knows(&range, now) {
            return Some(found);
        }
        let around = mapping.clip(Warm::widen(&range));
        if mapping.is_cached(&around) {
            self.saw(around, now);
            return Some(found);
        }
        mapping.is_cached(&range).then_some(found)
    }

    /// Reads at most `len` bytes from byte `from` of the range into `staging`; past the end of the file they are zeros.
    /// Returns their number.
    pub fn read_or_zero(&self, from: usize, len: usize, staging: &mut [u8]) -> io::Result<usize> {
        let room = &mut staging[..len];
        loop {
            match rustix::io::pread(&self.file, &mut *room, self.offset.saturating_add(from as u64)) {
                Ok(0) => {
                    room.fill(0);
                    return Ok(len);
                }
                Ok(n) => return Ok(n),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Reads the range into the first `len` bytes of `into`.
    pub async fn read_into(&self, into: &Window) -> io::Result<()> {
        let into = into.slice(0, self.len).ok_or(io::ErrorKind::InvalidInput)?;
        let done = self.file.read_at(self.offset, &into).await?;
        self.fill_up(&into, done);
        Ok(())
    }

    /// Reads the range, of at most as many bytes as the buffer has room for, into it.
    pub async fn read_to(&self, mut buf: Buf) -> io::Result<Bytes> {
        buf.set_len(self.len);
        let window = buf.into_window();
        self.read_into(&window).await?;
        Ok(window.try_into_buf().expect("nobody else holds this window").freeze())
    }

    /// Like [`FileRange::read_into`] from the page cache only: `None` if the read would have to sleep.
    pub fn try_read_into(&self, into: &Window) -> Option<io::Result<()>> {
        let Some(into) = into.slice(0, self.len) else {
            return Some(Err(io::ErrorKind::InvalidInput.into()));
        };
        let done = self.file.try_read_at(self.offset, &into)?;
        Some(done.map(|done| self.fill_up(&into, done)))
    }

    /// Like [`FileRange::try_read_into`]; if we copy the bytes ourselves anyway (files in memory), it appends the
    /// CRC32C of each whole `piece` to `sums`, at almost no cost. Otherwise `sums` does not change.
    pub fn try_read_summed(
        &self,
        into: &Window,
        piece: usize,
        sums: &mut Vec<u32>,
    ) -> Option<io::Result<()>> {
        let Some(memory) = &self.file.0.memory else { return self.try_read_into(into) };
        let Some(into) = into.slice(0, self.len) else {
            return Some(Err(io::ErrorKind::InvalidInput.into()));
        };
        let before = sums.len();
        Some(memory.read_summed(self.file.0.fd.as_fd(), self.offset, &into, piece, sums).map(|done| {
            if done < self.len {
                // The checksums do not cover the zeros.
                sums.truncate(before);
                self.fill_up(&into, done);
            }
        }))
    }

    /// Fills with zeros where the file has shrunk since the range was made.
    fn fill_up(&self, into: &Window, mut done: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        while done < self.len {
            let n = ZEROS.len().min(self.len - done);
            let inside = into.write_at(done, &ZEROS[..n]);
            debug_assert!(inside);
            done += n;
        }
    }
}

/// The system calls that take raw memory.
mod sys {
    use super::*;

    pub(super) fn read_at(
        fd: BorrowedFd<'_>,
        offset: u64,
        into: &Window,
        cached_only: bool,
    ) -> Result<usize, Errno> {
        // SAFETY: the window's range stays mapped while `into` lives. The slice is given only to the kernel, which
        // writes it as it would write any shared memory; nothing here reads it.
        let room = unsafe { std::slice::from_raw_parts_mut(into.as_ptr(), into.len()) };
        if cached_only {
            rustix::io::preadv2(fd, &mut [io::IoSliceMut::new(room)], offset, ReadWriteFlags::NOWAIT)
        } else {
            rustix::io::pread(fd, room, offset)
        }
    }

    pub(super) fn write_at(fd: BorrowedFd<'_>, offset: u64, from: &Window) -> Result<usize, Errno> {
        // SAFETY: the window's range stays mapped while `from` lives. The slice is given only to the kernel, which copies
        // from it as from any memory that others may change; nothing here reads it.
        let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr().cast_const(), from.len()) };
        rustix::io::pwrite(fd, bytes, offset)
    }
}

#[cfg(test)]
mod tests;
