//! Payload memory: page-aligned buffers cut from memfd slabs, and the one counted copy.
//!
//! Slabs are memfds so that the shm provider can hand them to a peer process of the same user. A buffer is either
//! exclusive ([`Buf`]: plain bytes) or shared ([`Window`]: memory that a peer, the kernel or another task may change
//! at any moment, therefore never seen as a Rust reference).
//! Owns: the slabs. A buffer returns to its size class when its last owner lets go.
//! Does not: zero buffers on reuse; a `Buf` of length n shows only what its owner filled in.
//!
//! Operation: `Pool::alloc` waits while the pool is at its limit; `try_alloc` does not.
//! Buffers: every size class is a multiple of the page size, so payloads start page-aligned. A copy whose ends
//! differ by 1 to 31 bytes modulo 4096 runs several times slower on common processors.
//! Errors: a request larger than [`MAX_BUF`] is the caller's fault and never succeeds.

mod prefetch;
mod summed;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

pub use prefetch::prefetch;

/// The largest buffer: one SMB Direct transfer of 8 MiB and room for its headers, one size class up.
pub const MAX_BUF: usize = 16 << 20;
/// The smallest buffer.
pub const MIN_BUF: usize = 4096;
/// How much memory one slab maps. Pages are taken from the system only when they are touched.
const SLAB_BYTES: usize = 64 << 20;
/// The unit of mincore(2).
const PAGE: usize = 4096;
/// Pages that one question about them covers.
const PAGES_ASKED: usize = 64;
/// Size classes double from `MIN_BUF` to `MAX_BUF`.
const CLASSES: usize = (MAX_BUF / MIN_BUF).trailing_zeros() as usize + 1;

fn class_of(len: usize) -> Option<usize> {
    (len <= MAX_BUF).then(|| (len.max(MIN_BUF).next_power_of_two() / MIN_BUF).trailing_zeros() as usize)
}

/// A mapping of shared memory; unmapped when the last window into it is gone.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
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

    /// Copies the bytes from `offset` into all of `into`: the medium's own move, not counted. False, touching nothing,
    /// when they are not inside. The caller knows that the pages exist (see `file::memory`).
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

    /// [`Mapping::copy_to`] that appends the CRC32C of each whole `piece` to `sums`; false when it cannot.
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

    /// Copies `bytes` to `offset`: the medium's own move, not counted. False, touching nothing, when they do not fit inside.
    /// The caller knows that the pages exist.
    #[must_use]
    pub(crate) fn copy_from(&self, offset: usize, bytes: &[u8]) -> bool {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: the range is inside the mapping, which outlives this call, and nobody has a reference to its bytes.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        true
    }

    /// The same from memory that others may change: torn bytes are the worst.
    #[must_use]
    pub(crate) fn place(&self, offset: usize, from: &Window) -> bool {
        if offset.checked_add(from.len).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: as in `copy_to`, the other way round.
        unsafe { copy_interleaved(from.as_ptr(), self.base.as_ptr().add(offset), from.len) };
        true
    }

    /// How many bytes from `offset`, at most `len`, lie in pages that are in memory, so that touching them asks the system
    /// for nothing.
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

/// Copies like `ptr::copy` between ranges that do not overlap; a large range as four pieces at once, line by line. One
/// stream of reads leaves the memory system idle at each page's end: four took a sixth less time for 512 KiB here.
///
/// # Safety
/// Both ranges are valid for `len` bytes, and no reference to either exists. Where they overlap, bytes may be torn.
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

/// Creates an anonymous shared memory file of `len` bytes whose size nobody can change any more: a peer that shrank
/// it would turn every later access into SIGBUS.
pub fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

struct Slab {
    mapping: Arc<Mapping>,
    used: usize,
}

/// A free piece of a slab.
#[derive(Clone, Copy)]
struct Piece {
    slab: u32,
    offset: usize,
}

struct Shelves {
    slabs: Vec<Slab>,
    free: [Vec<Piece>; CLASSES],
    waiting: VecDeque<Waker>,
    in_use_bytes: usize,
}

struct PoolInner {
    limit_bytes: usize,
    shelves: Mutex<Shelves>,
}

/// A set of slabs with a limit. Cloning shares it.
#[derive(Clone)]
pub struct Pool(Arc<PoolInner>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("limit_bytes", &self.0.limit_bytes).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that hands out at most `limit_bytes` at a time (rounded up to one `MAX_BUF`).
    pub fn new(limit_bytes: usize) -> Pool {
        Pool(Arc::new(PoolInner {
            limit_bytes: limit_bytes.max(MAX_BUF),
            shelves: Mutex::new(Shelves {
                slabs: Vec::new(),
                free: [const { Vec::new() }; CLASSES],
                waiting: VecDeque::new(),
                in_use_bytes: 0,
            }),
        }))
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.0.limit_bytes
    }

    /// Bytes handed out at present, counted in whole size classes.
    pub fn in_use_bytes(&self) -> usize {
        self.0.lock().in_use_bytes
    }

    /// An empty buffer with room for `capacity` bytes, or `None` when the pool is at its limit.
    ///
    /// # Panics
    /// When `capacity` exceeds [`MAX_BUF`]: sizes from the network are checked against protocol limits first.
    pub fn try_alloc(&self, capacity: usize) -> Option<Buf> {
        let class = class_of(capacity).expect("buffer request above MAX_BUF");
        let mut shelves = self.0.lock();
        shelves.take(class, self.0.limit_bytes).map(|piece| self.wrap(&shelves, piece, class))
    }

    /// Like [`Pool::try_alloc`], but waits for a buffer instead of failing.
    pub async fn alloc(&self, capacity: usize) -> Buf {
        std::future::poll_fn(|cx| self.poll_alloc(cx, capacity)).await
    }

    /// Poll form of [`Pool::alloc`].
    pub fn poll_alloc(&self, cx: &mut Context<'_>, capacity: usize) -> Poll<Buf> {
        let class = class_of(capacity).expect("buffer request above MAX_BUF");
        let mut shelves = self.0.lock();
        match shelves.take(class, self.0.limit_bytes) {
            Some(piece) => Poll::Ready(self.wrap(&shelves, piece, class)),
            None => {
                shelves.waiting.push_back(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// A buffer that holds a copy of `bytes`. For headers and tests; payload moves by [`copy`].
    pub fn buf_from(&self, bytes: &[u8]) -> Option<Buf> {
        let mut buf = self.try_alloc(bytes.len())?;
        buf.set_len(bytes.len());
        buf.copy_from_slice(bytes);
        Some(buf)
    }

    /// The slabs that exist now, in order of their number: what the shm provider hands to its peer.
    pub fn slabs(&self) -> Vec<Arc<Mapping>> {
        self.0.lock().slabs.iter().map(|s| s.mapping.clone()).collect()
    }

    /// Slab number `number`, where it exists.
    pub fn slab(&self, number: u32) -> Option<Arc<Mapping>> {
        self.0.lock().slabs.get(number as usize).map(|s| s.mapping.clone())
    }

    /// The addresses of the slab that `address` lies in, where it is one of this pool. Slabs stay mapped at least as
    /// long as the pool lives.
    pub fn slab_around(&self, address: usize) -> Option<Range<usize>> {
        let shelves = self.0.lock();
        let ranges = shelves.slabs.iter().map(|slab| {
            let base = slab.mapping.base.as_ptr() as usize;
            base..base + slab.mapping.len
        });
        ranges.into_iter().find(|range| range.contains(&address))
    }

    /// Where `bytes` lie for a peer that maps our slabs, as [`Buf::location`] has it; `None` when they are not a buffer of this
    /// pool.
    pub fn location(&self, bytes: &Bytes) -> Option<(u32, u64)> {
        let shelves = self.0.lock();
        let start = bytes.as_ptr() as usize;
        shelves.slabs.iter().zip(0..).find_map(|(slab, number)| {
            let offset = start.checked_sub(slab.mapping.base.as_ptr() as usize)?;
            let inside = offset.checked_add(bytes.len()).is_some_and(|end| end <= slab.used);
            inside.then_some((number, offset as u64))
        })
    }

    fn wrap(&self, shelves: &Shelves, piece: Piece, class: usize) -> Buf {
        let base = shelves.slabs[piece.slab as usize].mapping.base;
        // SAFETY: the piece lies within its slab, so the pointer stays inside the mapping.
        let ptr = unsafe { base.add(piece.offset) };
        let chunk = Chunk::Pooled { pool: self.clone(), piece, class, start: ptr.as_ptr() as usize };
        Buf { chunk: Arc::new(chunk), ptr, cap: MIN_BUF << class, len: 0 }
    }
}

impl PoolInner {
    // A panic while the lock is held would have to come from Vec growth; the shelves are consistent even then.
    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    fn take(&mut self, class: usize, limit_bytes: usize) -> Option<Piece> {
        let size = MIN_BUF << class;
        if self.in_use_bytes + size > limit_bytes {
            return None;
        }
        let piece = self.free[class].pop().or_else(|| self.cut(size))?;
        self.in_use_bytes += size;
        Some(piece)
    }

    /// Cuts a new piece off the youngest slab, or off a new one. What is left of the old slab stays unused: the
    /// pages were never touched, so it costs address space only.
    fn cut(&mut self, size: usize) -> Option<Piece> {
        if self.slabs.last().is_none_or(|s| s.used + size > SLAB_BYTES) {
            let mapping = memfd("weft-slab", SLAB_BYTES)
                .and_then(|fd| Mapping::new(fd, SLAB_BYTES))
                .map_err(|e| tracing::warn!("no memory for another buffer slab: {e}"))
                .ok()?;
            self.slabs.push(Slab { mapping: Arc::new(mapping), used: 0 });
        }
        let slab = self.slabs.len() - 1;
        let offset = self.slabs[slab].used;
        self.slabs[slab].used += size;
        Some(Piece { slab: slab as u32, offset })
    }
}

/// What keeps a piece of memory alive; gives it back to the pool on drop.
enum Chunk {
    /// A piece of a slab, which begins at address `start`. The pool keeps its slabs mapped as long as it lives, so a
    /// reference to it is enough.
    Pooled { pool: Pool, piece: Piece, class: usize, start: usize },
    /// A mapping of a peer's memory.
    Foreign { _mapping: Arc<Mapping> },
}

impl Chunk {
    fn location(&self, ptr: NonNull<u8>, pool: &Pool) -> Option<(u32, u64)> {
        let Chunk::Pooled { pool: owner, piece, start, .. } = self else { return None };
        if !Arc::ptr_eq(&owner.0, &pool.0) {
            return None;
        }
        let into_piece = ptr.as_ptr() as usize - start;
        Some((piece.slab, (piece.offset + into_piece) as u64))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let Chunk::Pooled { pool, piece, class, .. } = self else { return };
        let mut shelves = pool.0.lock();
        shelves.in_use_bytes -= MIN_BUF << *class;
        shelves.free[*class].push(*piece);
        // All waiters look again: they may want different sizes.
        let waiting = std::mem::take(&mut shelves.waiting);
        drop(shelves);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// An exclusive, page-aligned buffer: bytes up to `len`, room up to `capacity`.
pub struct Buf {
    chunk: Arc<Chunk>,
    ptr: NonNull<u8>,
    cap: usize,
    len: usize,
}

// SAFETY: a Buf is the only handle to its range (Windows are made by consuming it), so it is as Send as a Vec<u8>.
unsafe impl Send for Buf {}
// SAFETY: `&Buf` gives only `&[u8]`.
unsafe impl Sync for Buf {}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({}/{})", self.len, self.cap)
    }
}

impl Buf {
    /// How many bytes fit.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Sets the length. Bytes beyond what was filled hold whatever the previous user left: fill before showing.
    ///
    /// # Panics
    /// When `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.cap);
        self.len = len;
    }

    /// The whole room, filled or not. Slab memory is always initialised (memfds start zeroed).
    pub fn room(&mut self) -> &mut [u8] {
        // SAFETY: the range [ptr, ptr+cap) belongs to this Buf alone and is initialised.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.cap) }
    }

    /// Appends header bytes (not payload: that goes through [`copy`]).
    ///
    /// # Panics
    /// When they do not fit.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.set_len(start + bytes.len());
        self[start..].copy_from_slice(bytes);
    }

    /// Splits the buffer: the first `at` bytes (all of them filled) leave as a buffer of their own, the rest stays with
    /// what it holds and all the remaining room. A receiver cuts finished messages off the front this way while it
    /// goes on filling. The memory returns to the pool when all parts are gone; until then
    /// [`Window::try_into_buf`] does not give a part back.
    ///
    /// # Panics
    /// When `at` exceeds the length.
    pub fn split_to(&mut self, at: usize) -> Buf {
        assert!(at <= self.len);
        let front = Buf { chunk: self.chunk.clone(), ptr: self.ptr, cap: at, len: at };
        // SAFETY: at <= len <= cap, so the pointer stays inside the mapping. The two ranges do not overlap, so each
        // part is the only handle to its own.
        self.ptr = unsafe { self.ptr.add(at) };
        self.cap -= at;
        self.len -= at;
        front
    }

    /// Whether other parts of a split buffer are alive, so that [`Window::try_into_buf`] would not give this one back.
    pub fn is_part(&self) -> bool {
        Arc::strong_count(&self.chunk) > 1
    }

    /// Shared, immutable, reference-counted bytes; the memory returns to the pool with the last of them.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Where this memory lies for a peer that maps our slabs; see [`Window::location`].
    pub fn location(&self, pool: &Pool) -> Option<(u32, u64)> {
        self.chunk.location(self.ptr, pool)
    }

    /// Gives up exclusiveness: the first `len` bytes as memory that others may write.
    pub fn into_window(self) -> Window {
        Window { chunk: self.chunk, ptr: self.ptr, len: self.len, cap: self.cap }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `room`; len <= cap.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `room`; len <= cap.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A range of memory that somebody else may change at any time: a registered region, or a peer's region mapped here.
///
/// There is deliberately no way to see it as `&[u8]`. Bytes move in and out by copying, by file reads and writes,
/// and by socket reads and writes.
#[derive(Clone)]
pub struct Window {
    chunk: Arc<Chunk>,
    ptr: NonNull<u8>,
    len: usize,
    cap: usize,
}

// SAFETY: a Window hands out no references; racing copies through it can tear bytes, never memory safety.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({})", self.len)
    }
}

impl Window {
    /// A window over a whole foreign mapping (a peer's slab).
    pub fn over(mapping: Arc<Mapping>) -> Window {
        let (ptr, len) = (mapping.base, mapping.len);
        Window { chunk: Arc::new(Chunk::Foreign { _mapping: mapping }), ptr, len, cap: 0 }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sub-range `[offset, offset + len)`, or `None` when it is not inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Window> {
        if !self.covers(offset, len) {
            return None;
        }
        // SAFETY: offset <= self.len, so the pointer stays inside the mapping.
        let ptr = unsafe { self.ptr.add(offset) };
        Some(Window { chunk: self.chunk.clone(), ptr, len, cap: 0 })
    }

    fn covers(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Copies `bytes` to `offset`: the medium's own move (a receive, a verb), not counted as a payload copy.
    /// Returns false, touching nothing, when the range is not inside.
    #[must_use]
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> bool {
        if !self.covers(offset, bytes.len()) {
            return false;
        }
        // SAFETY: the range is inside the mapping; source and destination cannot overlap because no reference into
        // a window exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.as_ptr().add(offset), bytes.len()) };
        true
    }

    /// Copies from `offset` into `bytes`; false, touching nothing, when the range is not inside.
    #[must_use]
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> bool {
        if !self.covers(offset, bytes.len()) {
            return false;
        }
        // SAFETY: as in `write_at`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.ptr.as_ptr().add(offset), bytes.as_mut_ptr(), bytes.len())
        };
        true
    }

    /// Placement of received payload by our own code: [`Window::write_at`], counted.
    #[must_use]
    pub fn place(&self, offset: usize, bytes: &[u8]) -> bool {
        count(bytes.len());
        self.write_at(offset, bytes)
    }

    /// The exclusive buffer again, once nobody else holds a window of the same memory (a whole, unsliced window
    /// that came from [`Buf::into_window`]); otherwise the window unchanged.
    pub fn try_into_buf(mut self) -> Result<Buf, Window> {
        // `get_mut` rather than a look at the count: it synchronises with the drops of other windows, so what was
        // written through them happened before the buffer is exclusive again.
        if self.cap == 0 || Arc::get_mut(&mut self.chunk).is_none() {
            return Err(self);
        }
        Ok(Buf { chunk: self.chunk, ptr: self.ptr, cap: self.cap, len: self.len })
    }

    /// Where this memory lies for a peer that maps our slabs: (slab number, offset in it). `None` when it is not of
    /// `pool`.
    pub fn location(&self, pool: &Pool) -> Option<(u32, u64)> {
        self.chunk.location(self.ptr, pool)
    }

    /// Where the memory begins, for a device that is told by number (see `rdma::rnic`).
    pub fn address(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// The address, for system calls in this crate.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

thread_local! {
    static COPIES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn count(bytes: usize) {
    COPIES.with(|c| {
        let (n, total) = c.get();
        c.set((n + 1, total + bytes as u64));
    });
}

/// The one copy of payload in Weft's own code. Everything that moves payload from buffer to buffer calls it (or
/// [`Window::place`]), so a test can assert how often that happens.
///
/// # Panics
/// When the lengths differ.
pub fn copy(to: &mut [u8], from: &[u8]) {
    count(from.len());
    to.copy_from_slice(from);
}

/// How many payload copies this thread has made, and of how many bytes, since it started.
pub fn copies() -> (u64, u64) {
    COPIES.with(Cell::get)
}

#[cfg(test)]
mod tests;
