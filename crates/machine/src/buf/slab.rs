//! One slab of the pool: a memfd, which of its pages are free, and which of them occupy memory.
//!
//! A page occupies memory from its first use until it is punched out of the memfd. The holder of a block is assumed to
//! touch all of it, so the count here is never less than what the kernel holds for the slab.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::buddy::Buddy;
use super::{MIN_BUF, Mapping, PAGES, SLAB_BYTES, memfd};

/// The most pages punched per call, 4 MiB: about a tenth of a millisecond under the pool's lock.
const PUNCH_PAGES: usize = 1024;
const WORD_PAGES: usize = u64::BITS as usize;

pub(super) struct Slab {
    mapping: Arc<Mapping>,
    buddy: Buddy,
    touched: Touched,
    /// Pages of taken blocks; all of them are touched.
    used_pages: usize,
}

impl Slab {
    pub(super) fn new() -> io::Result<Slab> {
        let mapping = Mapping::new(memfd("weft-slab", SLAB_BYTES)?, SLAB_BYTES)?;
        mapping.forbid_huge_pages();
        Ok(Slab {
            mapping: Arc::new(mapping),
            buddy: Buddy::new(),
            touched: Touched::default(),
            used_pages: 0,
        })
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// A block of `order`, and how many of its pages did not occupy memory before.
    pub(super) fn take(&mut self, order: u8) -> Option<(usize, usize)> {
        let page = self.buddy.take(order)?;
        self.used_pages += 1 << order;
        Some((page, self.touched.add(page, 1 << order)))
    }

    /// Gives a block back. Its memory stays until it is punched.
    pub(super) fn give(&mut self, page: usize, order: u8) {
        self.buddy.give(page, order);
        self.used_pages -= 1 << order;
    }

    /// Whether no block is taken.
    pub(super) fn is_whole(&self) -> bool {
        self.buddy.is_whole()
    }

    /// Returns memory of free blocks to the system, from the highest address down: `wanted` pages, or as many as there
    /// are, or somewhat more. The result is their number, and the error that ended it early.
    pub(super) fn punch(&mut self, wanted: usize) -> (usize, io::Result<()>) {
        let (mut punched, mut result) = (0, Ok(()));
        if self.touched.pages == self.used_pages {
            return (punched, result);
        }
        let (touched, mapping) = (&mut self.touched, &self.mapping);
        self.buddy.free_blocks(|first, pages| {
            let step = pages.min(PUNCH_PAGES);
            for page in (first..first + pages).step_by(step).rev() {
                if punched >= wanted || result.is_err() {
                    return false;
                }
                if touched.count(page, step) > 0 {
                    result = punch_hole(mapping, page, step);
                    if result.is_ok() {
                        punched += touched.remove(page, step);
                    }
                }
            }
            true
        });
        (punched, result)
    }
}

fn punch_hole(mapping: &Mapping, page: usize, pages: usize) -> io::Result<()> {
    let (offset, len) = ((page * MIN_BUF) as u64, (pages * MIN_BUF) as u64);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match rustix::fs::fallocate(mapping.as_fd(), flags, offset, len) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// A set of pages.
struct Touched {
    words: Box<[u64]>,
    pages: usize,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched { words: vec![0; PAGES / WORD_PAGES].into_boxed_slice(), pages: 0 }
    }
}

impl Touched {
    /// Adds an aligned block; returns how many of its pages are new.
    fn add(&mut self, page: usize, pages: usize) -> usize {
        let new = self.words(page, pages, |word, mask| {
            let new = (mask & !*word).count_ones();
            *word |= mask;
            new
        });
        self.pages += new;
        new
    }

    /// Removes an aligned block; returns how many of its pages were in the set.
    fn remove(&mut self, page: usize, pages: usize) -> usize {
        let old = self.words(page, pages, |word, mask| {
            let old = (mask & *word).count_ones();
            *word &= !mask;
            old
        });
        self.pages -= old;
        old
    }

    /// How many pages of an aligned block are in the set.
    fn count(&mut self, page: usize, pages: usize) -> usize {
        self.words(page, pages, |word, mask| (mask & *word).count_ones())
    }

    /// A block with fewer pages than a word has bits lies in one word, because it is aligned.
    fn words(&mut self, page: usize, pages: usize, mut each: impl FnMut(&mut u64, u64) -> u32) -> usize {
        let first = page / WORD_PAGES;
        if pages < WORD_PAGES {
            return each(&mut self.words[first], ((1 << pages) - 1) << (page % WORD_PAGES)) as usize;
        }
        let words = &mut self.words[first..first + pages / WORD_PAGES];
        words.iter_mut().map(|word| each(word, u64::MAX) as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the kernel holds for a slab.
    fn held(slab: &Slab) -> usize {
        rustix::fs::fstat(slab.mapping.as_fd()).unwrap().st_blocks as usize * 512
    }

    #[test]
    fn punching_gives_memory_of_free_blocks_back_and_keeps_the_rest() {
        let mut slab = Slab::new().unwrap();
        let (kept, new) = slab.take(0).unwrap();
        assert_eq!((kept, new), (0, 1));
        let (freed, new) = slab.take(8).unwrap();
        assert_eq!((freed, new), (256, 256));
        let bytes = vec![0xa5; 256 * MIN_BUF];
        assert!(slab.mapping.copy_from(0, &bytes[..MIN_BUF]));
        assert!(slab.mapping.copy_from(freed * MIN_BUF, &bytes));
        assert_eq!(held(&slab), 257 * MIN_BUF);
        slab.give(freed, 8);
        assert_eq!(slab.punch(usize::MAX).0, 256);
        assert_eq!(held(&slab), MIN_BUF, "the block in use keeps its memory");
        assert_eq!(slab.punch(usize::MAX).0, 0);
        assert_eq!(slab.take(8).unwrap(), (256, 256), "what was punched takes memory anew");
    }

    #[test]
    fn punching_ends_with_what_was_asked_for() {
        let mut slab = Slab::new().unwrap();
        let pages = 2 * PUNCH_PAGES;
        let (page, _) = slab.take(pages.trailing_zeros() as u8).unwrap();
        slab.give(page, pages.trailing_zeros() as u8);
        assert_eq!(slab.punch(1).0, PUNCH_PAGES);
        assert_eq!(slab.touched.count(0, pages), PUNCH_PAGES);
        assert_eq!(
            slab.touched.count(0, PUNCH_PAGES),
            PUNCH_PAGES,
            "low addresses are used first, so they stay"
        );
    }
}
