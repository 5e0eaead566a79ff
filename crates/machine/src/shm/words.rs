//! A control segment: shared memory accessed as 64-bit atomics, the only sound form while a peer writes it.
//!
//! See memfd_create(2), and F_ADD_SEALS in fcntl(2). It owns the mapping. The words have no meaning here.

use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::SealFlags;

use crate::buf::{Mapping, memfd};

const WORD_BYTES: usize = size_of::<AtomicU64>();

/// Words of shared memory. Clones and parts share the mapping.
#[derive(Clone)]
pub struct Words {
    mapping: Arc<Mapping>,
    first: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the words are atomics in a mapping that outlives them.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// A new segment of `len` zero words.
    pub fn create(name: &str, len: usize) -> io::Result<Words> {
        let bytes = len.saturating_mul(WORD_BYTES);
        Ok(Words::over(Mapping::new(memfd(name, bytes)?, bytes)?))
    }

    /// All whole words of `mapping` (a page-aligned address, so aligned for any atomic).
    pub fn over(mapping: Mapping) -> Words {
        let len = mapping.len() / WORD_BYTES;
        Words { first: mapping.base().cast(), mapping: Arc::new(mapping), len }
    }

    /// A part of these words.
    ///
    /// # Panics
    /// If `range` is not inside: layouts are constants, never taken from a peer.
    pub fn part(&self, range: Range<usize>) -> Words {
        let words = self.get(range.clone()).expect("a part of the layout");
        let first = NonNull::from(words).cast();
        Words { mapping: self.mapping.clone(), first, len: range.len() }
    }

    /// The word at `at`.
    ///
    /// # Panics
    /// If it is not inside: layouts are constants, never taken from a peer.
    pub fn word(&self, at: usize) -> Word {
        let word = self.get(at).expect("a word of the layout");
        Word { word: NonNull::from(word), _mapping: self.mapping.clone() }
    }

    /// The descriptor of the whole segment, for passing to a peer.
    pub fn segment_fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }
}

impl Deref for Words {
    type Target = [AtomicU64];
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the range lies inside the mapping, is initialised (memfds start zeroed) and aligned, and is only
        // ever seen as atomics, which others may change at any time.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

/// One word of shared memory, for a field of the layout that is used alone. Clones share the mapping.
#[derive(Clone)]
pub struct Word {
    word: NonNull<AtomicU64>,
    _mapping: Arc<Mapping>,
}

// SAFETY: the word is an atomic in a mapping that outlives it.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Deref for Word {
    type Target = AtomicU64;
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: as for `Words`, of which it is one.
        unsafe { self.word.as_ref() }
    }
}

/// Maps a descriptor passed by a peer, after checking everything that the peer could otherwise use against us: its size
/// must be sealed (a file that shrinks under a mapping raises SIGBUS) and between `min` and `max` bytes.
pub fn adopt(fd: OwnedFd, min: usize, max: usize) -> io::Result<Mapping> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let Ok(seals) = rustix::fs::fcntl_get_seals(&fd) else {
        return refused("the peer passed a descriptor that is not a memfd");
    };
    if !seals.contains(SealFlags::SHRINK) {
        return refused("the peer passed a memfd that may still shrink");
    }
    let size = usize::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
    if size < min.max(1) || size > max {
        return refused("the peer passed a memfd of an unexpected size");
    }
    Mapping::new(fd, size)
}
