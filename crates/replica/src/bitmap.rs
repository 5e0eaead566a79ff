//! The parts of a volume that a destination may lack: one bit per granule, in pages with a checksum each.
//!
//! [`crate::journal`] reads and writes the pages.
//!
//! ```text
//! page:   4 CRC32C of the rest | 4 number of the page in the journal's bitmaps | 4088 bits, least significant first
//! ```
//!
//! A page of zeros was never written, and is clean. A page with a wrong sum counts as all dirty, which costs no more
//! than a copy of equal bytes. Granules that are being copied are tracked apart from dirty ones, so a write during the
//! copy is not lost when the copy ends. On disk both are dirty.

use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Granules of a page.
pub const PAGE_BITS: u64 = 8 * (PAGE_BYTES as u64 - 8);
/// The smallest granule.
pub const MIN_GRANULE: u64 = 64 << 10;
/// The largest bitmap, bytes in the journal and in memory.
pub const MAX_BYTES: u64 = 1 << 20;

const WORD: u64 = 64;
/// How many ranges are collected at a time while one bitmap is marked in another.
const MERGED_RANGES: usize = 1024;

/// The bits of one volume for one destination.
#[derive(Debug)]
pub struct Bitmap {
    size: u64,
    granule: u64,
    dirty: Vec<u64>,
    copying: Vec<u64>,
    count: u64,
    /// Pages that differ from those in the journal.
    stale: BTreeSet<u64>,
}

/// The size of a granule and of the bitmap for a volume of `size` bytes, with room for it to grow fourfold.
pub fn layout(size: u64, least_bytes: u64) -> (u64, u64) {
    let mut granule = MIN_GRANULE;
    loop {
        let pages = size.saturating_mul(4).div_ceil(granule).div_ceil(PAGE_BITS).max(1);
        let bytes = pages.saturating_mul(PAGE_BYTES as u64);
        if bytes <= MAX_BYTES.max(least_bytes) {
            return (granule, bytes.max(least_bytes));
        }
        granule = granule.saturating_mul(2);
    }
}

/// The word of a granule's bit, and its mask.
fn place(granule: u64) -> (usize, u64) {
    ((granule / WORD) as usize, 1 << (granule % WORD))
}

/// The page that a granule's bit is in.
fn page_of(granule: u64) -> u64 {
    granule / PAGE_BITS
}

/// The words of a page.
fn words_of(page: u64) -> Range<usize> {
    // PAGE_BITS is a multiple of the bits of a word.
    let at = |page: u64| (page.saturating_mul(PAGE_BITS) / WORD) as usize;
    at(page)..at(page.saturating_add(1))
}

impl Bitmap {
    /// A bitmap with no bit set.
    pub fn new(size: u64, granule: u64) -> Bitmap {
        let granule = granule.max(1);
        let words = size.div_ceil(granule).div_ceil(WORD) as usize;
        Bitmap {
            size,
            granule,
            dirty: vec![0; words],
            copying: vec![0; words],
            count: 0,
            stale: BTreeSet::new(),
        }
    }

    /// Adapts to another size of the volume, perhaps with coarser granules. Marks inside the volume stay, new granules
    /// are clean, and granules that were being copied are dirty again.
    pub fn resize(&mut self, size: u64, granule: u64) {
        if (self.size, self.granule) == (size, granule) {
            return;
        }
        self.give_up_copies();
        let mut new = Bitmap::new(size, granule);
        self.ranges(0, usize::MAX).0.into_iter().for_each(|(offset, len)| new.mark(offset, len));
        // Coarser granules move the bits, and the last page has more of them.
        new.stale = (0..new.pages()).collect();
        *self = new;
    }

    fn granules(&self) -> u64 {
        self.size.div_ceil(self.granule)
    }

    /// The granule of a byte.
    fn granule_at(&self, offset: u64) -> u64 {
        offset.checked_div(self.granule).unwrap_or(0)
    }

    /// The first byte of a granule, or the end of the volume for the one behind the last.
    fn start_of(&self, granule: u64) -> u64 {
        granule.saturating_mul(self.granule).min(self.size)
    }

    /// The number of its pages.
    pub fn pages(&self) -> u64 {
        self.granules().div_ceil(PAGE_BITS)
    }

    /// Loads a page from the journal: `number` counts from 0 here, `id` is the number that the page itself must name.
    pub fn load(&mut self, number: u64, id: u32, bytes: &[u8; PAGE_BYTES]) {
        if bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let (sum, summed) = bytes.split_at(4);
        let (said, bits) = summed.split_at(4);
        let whole = sum == crc32c::crc32c(summed).to_le_bytes() && said == id.to_le_bytes();
        let first = number.saturating_mul(PAGE_BITS);
        for (granule, bit) in (first..self.granules()).zip(0..PAGE_BITS as usize) {
            let marked = bits.get(bit / 8).is_some_and(|byte| byte & (1 << (bit % 8)) != 0);
            if !whole || marked {
                self.set(granule);
            }
        }
        if whole {
            self.stale.remove(&number);
        }
    }

    /// A word of the bits as they go to the journal; zero behind the end.
    fn word(&self, at: usize) -> u64 {
        self.dirty.get(at).copied().unwrap_or(0) | self.copying.get(at).copied().unwrap_or(0)
    }

    /// The page as it goes to the journal.
    pub fn page(&self, number: u64, id: u32) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        let (sum, summed) = bytes.split_at_mut(4);
        let (said, bits) = summed.split_at_mut(4);
        said.copy_from_slice(&id.to_le_bytes());
        for (slot, at) in bits.chunks_exact_mut(8).zip(words_of(number)) {
            slot.copy_from_slice(&self.word(at).to_le_bytes());
        }
        sum.copy_from_slice(&crc32c::crc32c(summed).to_le_bytes());
        bytes
    }

    /// Takes the pages that differ from the journal: the caller writes them.
    pub fn take_stale(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.stale)
    }

    /// Returns a page that was not written.
    pub fn give_back_stale(&mut self, page: u64) {
        self.stale.insert(page);
    }

    fn set(&mut self, granule: u64) {
        let (at, bit) = place(granule);
        let (Some(dirty), Some(copying)) = (self.dirty.get_mut(at), self.copying.get(at)) else { return };
        if (*dirty | copying) & bit == 0 {
            self.count = self.count.saturating_add(1);
            self.stale.insert(page_of(granule));
        }
        *dirty |= bit;
    }

    /// Marks every granule that the range touches.
    pub fn mark(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        if offset < end {
            (self.granule_at(offset)..end.div_ceil(self.granule)).for_each(|granule| self.set(granule));
        }
    }

    /// Marks every granule that another bitmap of this volume has marked.
    pub fn mark_all_of(&mut self, other: &Bitmap) {
        let mut from = Some(0);
        while let Some(at) = from {
            let (ranges, next) = other.ranges(at, MERGED_RANGES);
            ranges.into_iter().for_each(|(offset, len)| self.mark(offset, len));
            from = next;
        }
    }

    /// Marks everything.
    pub fn mark_all(&mut self) {
        self.mark(0, self.size);
    }

    /// Whether nothing is dirty or being copied.
    pub fn is_clean(&self) -> bool {
        self.count == 0
    }

    /// Whether everything is dirty or being copied.
    pub fn is_full(&self) -> bool {
        self.count == self.granules()
    }

    /// Bytes that are dirty or being copied.
    pub fn bytes(&self) -> u64 {
        self.start_of(self.count)
    }

    fn next_dirty(&self, from: u64) -> Option<u64> {
        let first = (from / WORD) as usize;
        let mask = |at: usize| if at == first { !0 << (from % WORD) } else { !0 };
        let words = self.dirty.iter().enumerate().skip(first);
        let (at, bits) = words.map(|(at, word)| (at, word & mask(at))).find(|(_, bits)| *bits != 0)?;
        (at as u64).checked_mul(WORD)?.checked_add(bits.trailing_zeros().into())
    }

    /// Takes the first dirty range from `from` on, of at most `most` bytes (or one granule), to be copied.
    pub fn start(&mut self, from: u64, most: u64) -> Option<Range<u64>> {
        let first = self.next_dirty(from.div_ceil(self.granule))?;
        let limit = first.saturating_add(self.granule_at(most).max(1)).min(self.granules());
        let mut end = first;
        while end < limit {
            let (at, bit) = place(end);
            let (dirty, copying) = (self.dirty.get_mut(at)?, self.copying.get_mut(at)?);
            if *dirty & bit == 0 {
                break;
            }
            *dirty &= !bit;
            *copying |= bit;
            end = end.saturating_add(1);
        }
        Some(self.start_of(first)..self.start_of(end))
    }

    /// A range was copied and is durable at the destination.
    pub fn finish(&mut self, range: Range<u64>) {
        for granule in self.granule_at(range.start)..range.end.div_ceil(self.granule) {
            let (at, bit) = place(granule);
            let (Some(dirty), Some(copying)) = (self.dirty.get(at), self.copying.get_mut(at)) else { return };
            if *copying & bit != 0 {
                *copying &= !bit;
                if dirty & bit == 0 {
                    self.count = self.count.saturating_sub(1);
                    self.stale.insert(page_of(granule));
                }
            }
        }
    }

    /// Ranges that were being copied are dirty again.
    pub fn give_up_copies(&mut self) {
        for (dirty, copying) in self.dirty.iter_mut().zip(&mut self.copying) {
            *dirty |= std::mem::take(copying);
        }
    }

    /// Clears everything.
    pub fn clear(&mut self) {
        let is_dirty = |page: &u64| words_of(*page).any(|at| self.word(at) != 0);
        let dirty: Vec<u64> = (0..self.pages()).filter(is_dirty).collect();
        self.stale.extend(dirty);
        self.dirty.fill(0);
        self.copying.fill(0);
        self.count = 0;
    }

    /// At most `max` dirty ranges from `from` on, neighbours joined; and where to continue.
    pub fn ranges(&self, from: u64, max: usize) -> (Vec<(u64, u64)>, Option<u64>) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut at = self.granule_at(from);
        while let Some(granule) = self.next_dirty(at) {
            at = granule.saturating_add(1);
            let offset = self.start_of(granule);
            let len = self.start_of(at).saturating_sub(offset);
            let full = ranges.len() == max;
            match ranges.last_mut() {
                Some((start, all)) if start.checked_add(*all) == Some(offset) => {
                    *all = all.saturating_add(len)
                }
                _ if full => return (ranges, Some(offset)),
                _ => ranges.push((offset, len)),
            }
        }
        (ranges, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = MIN_GRANULE;

    #[test]
    fn ranges_are_marked_copied_and_marked_again() {
        let mut map = Bitmap::new(10 * G - 1, G);
        map.mark(G - 1, 2);
        map.mark(9 * G, 1);
        assert_eq!(map.ranges(0, 9), (vec![(0, 2 * G), (9 * G, G - 1)], None));
        assert_eq!(map.ranges(0, 1), (vec![(0, 2 * G)], Some(9 * G)));
        assert_eq!(map.start(0, 100 * G), Some(0..2 * G));
        // A write during the copy: the end of the copy does not clear the bit.
        map.mark(0, 1);
        map.finish(0..2 * G);
        assert_eq!(map.ranges(0, 9).0, vec![(0, G), (9 * G, G - 1)]);
        assert_eq!(map.start(G, G), Some(9 * G..10 * G - 1));
        map.give_up_copies();
        assert_eq!(map.start(G, G), Some(9 * G..10 * G - 1));
        map.finish(9 * G..10 * G - 1);
        assert_eq!(map.bytes(), G);
        map.clear();
        assert!(map.is_clean() && map.start(0, G).is_none());
    }

    #[test]
    fn pages_come_back_and_a_damaged_one_is_all_dirty() {
        let size = (PAGE_BITS + 5) * G;
        let mut map = Bitmap::new(size, G);
        map.mark(3 * G, 1);
        map.mark(PAGE_BITS * G, 1);
        assert_eq!(map.take_stale().into_iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(map.start(0, G), Some(3 * G..4 * G));
        let pages = [map.page(0, 70), map.page(1, 71)];
        let mut again = Bitmap::new(size, G);
        again.load(0, 70, &pages[0]);
        again.load(1, 71, &pages[1]);
        assert_eq!(again.ranges(0, 9).0, vec![(3 * G, G), (PAGE_BITS * G, G)]);
        assert!(again.take_stale().is_empty());
        // A page from another position, and one with a flipped bit.
        let mut misplaced = Bitmap::new(size, G);
        misplaced.load(1, 70, &pages[1]);
        assert_eq!(misplaced.ranges(0, 9).0, vec![(PAGE_BITS * G, 5 * G)]);
        let mut damaged = pages[0];
        damaged[100] ^= 1;
        let mut all = Bitmap::new(size, G);
        all.load(0, 70, &damaged);
        assert_eq!(all.ranges(0, 9).0, vec![(0, PAGE_BITS * G)]);
    }

    #[test]
    fn large_volumes_have_large_granules() {
        assert_eq!(layout(1 << 30, 4096), (G, 3 * 4096));
        let (granule, bytes) = layout(2 << 40, 4096);
        assert!(bytes <= MAX_BYTES && granule <= 2 << 20, "{granule} {bytes}");
        layout(i64::MAX as u64, 4096);
    }
}
