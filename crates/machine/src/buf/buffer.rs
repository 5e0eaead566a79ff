//! The two views of a piece of the pool: [`Buf`], exclusive, and [`Window`], shared with others.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use super::arena::Piece;
use super::memory::{Handle, Memory};
use super::{Mapping, count};

/// An exclusive, page-aligned buffer: bytes up to `len`, room up to `capacity`.
pub struct Buf {
    pub(super) chunk: Arc<Chunk>,
    pub(super) ptr: NonNull<u8>,
    pub(super) cap: usize,
    pub(super) len: usize,
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

    /// Sets the length. Bytes that were not filled hold what the previous user left: fill them before showing them.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.cap);
        self.len = len;
    }

    /// The whole capacity, filled or not. Slab memory is always initialised (memfds start zeroed).
    pub fn room(&mut self) -> &mut [u8] {
        // SAFETY: the range [ptr, ptr+cap) belongs to this Buf alone and is initialised.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.cap) }
    }

    /// Appends header bytes (not payload: that goes through [`copy`](super::copy)).
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.set_len(start + bytes.len());
        self[start..].copy_from_slice(bytes);
    }

    /// Splits the buffer: the first `at` bytes (all filled) become a buffer of their own; `self` keeps the other bytes
    /// and the remaining room. A receiver cuts finished messages off the front this way while it keeps filling. The
    /// memory returns to the pool when all parts are gone; until then [`Window::try_into_buf`] does not give a part
    /// back.
    ///
    /// # Panics
    /// If `at` exceeds the length.
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

    /// Shared, immutable, reference-counted bytes; the memory returns to the pool when the last reference is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Gives up exclusive access: the first `len` bytes become memory that others may write.
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
/// There is deliberately no way to access it as `&[u8]`. Bytes move in and out by copying, by file reads and writes,
/// and by socket reads and writes.
#[derive(Clone)]
pub struct Window {
    pub(super) chunk: Arc<Chunk>,
    pub(super) ptr: NonNull<u8>,
    pub(super) len: usize,
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

    /// The sub-range `[offset, offset + len)`, or `None` if it is not inside.
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

    /// Copies `bytes` to `offset`: the transfer of the medium itself (a receive, a verb), not counted as a payload
    /// copy. Returns false, without a change, if the range is not inside.
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

    /// Copies from `offset` into `bytes`; false, without a change, if the range is not inside.
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

    /// The exclusive buffer again, once nobody else holds a window of the same memory (a whole, unsliced window from
    /// [`Buf::into_window`]); otherwise the window unchanged.
    pub fn try_into_buf(mut self) -> Result<Buf, Window> {
        // `get_mut` rather than a check of the count: it synchronises with the drops of other windows, so writes
        // through them happened before the buffer is exclusive again.
        if self.cap == 0 || Arc::get_mut(&mut self.chunk).is_none() {
            return Err(self);
        }
        Ok(Buf { chunk: self.chunk, ptr: self.ptr, cap: self.cap, len: self.len })
    }

    /// The address of the memory, for a device that takes it as a number (see `rdma::rnic`).
    pub fn address(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    /// The address, for system calls in this crate.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

/// Keeps a piece of memory alive, and gives it back to its share on drop.
pub(super) enum Chunk {
    /// A piece of a slab, at address `start`. The pool keeps its slabs mapped as long as it lives, so a reference to
    /// a share is enough.
    Pooled { share: Arc<Handle>, piece: Piece, start: usize },
    /// A mapping of a peer's memory.
    Foreign { _mapping: Arc<Mapping> },
}

impl Chunk {
    /// The position of `ptr` in its slab, if that belongs to `memory`.
    pub(super) fn location(&self, ptr: NonNull<u8>, memory: &Arc<Memory>) -> Option<(u32, u64)> {
        let Chunk::Pooled { share, piece, start } = self else { return None };
        if !Arc::ptr_eq(&share.memory, memory) {
            return None;
        }
        let into_piece = ptr.as_ptr() as usize - start;
        Some((piece.slab, (piece.offset() + into_piece) as u64))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Chunk::Pooled { share, piece, .. } = self {
            share.give(*piece);
        }
    }
}
