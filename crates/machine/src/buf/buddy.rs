//! A buddy allocator over the pages of one slab: blocks of a power of two pages, each aligned to its length.
//!
//! A free block merges with its neighbour as soon as that is free too, so memory returned in one size serves every
//! other. The tree is an array: node 1 is the slab, nodes 2n and 2n + 1 are the halves of node n, and each node knows
//! the largest free block below it, so taking and giving are one walk between root and block (at most 14 steps).

use super::PAGES;

/// The order of the whole slab: a block of order n has 2^n pages.
pub(super) const SLAB_ORDER: u8 = PAGES.trailing_zeros() as u8;

/// The free pages of a slab.
pub(super) struct Buddy {
    /// By node: 1 + the order of the largest free block inside, or 0 when nothing is free. A taken block has 0, and the
    /// nodes below it keep the values of free ones.
    largest: Box<[u8]>,
}

impl Buddy {
    /// Everything free.
    pub(super) fn new() -> Buddy {
        let mut largest = vec![0; 2 * PAGES].into_boxed_slice();
        for (node, value) in largest.iter_mut().enumerate().skip(1) {
            *value = 1 + SLAB_ORDER - node.ilog2() as u8;
        }
        Buddy { largest }
    }

    /// Takes the free block of `order` with the lowest address and returns its first page. The lowest address keeps
    /// used memory together, and bounds how far fragments spread (see `arena::MAX_SPREAD`).
    pub(super) fn take(&mut self, order: u8) -> Option<usize> {
        if self.largest[1] <= order {
            return None;
        }
        let mut node = 1;
        for _ in order..SLAB_ORDER {
            node *= 2;
            if self.largest[node] <= order {
                node += 1;
            }
        }
        self.largest[node] = 0;
        let page = (node << order) - PAGES;
        self.note_above(node, order);
        Some(page)
    }

    /// Returns a block that [`Buddy::take`] gave.
    pub(super) fn give(&mut self, page: usize, order: u8) {
        let node = (PAGES + page) >> order;
        debug_assert_eq!(self.largest[node], 0, "only a taken block is given back");
        self.largest[node] = order + 1;
        self.note_above(node, order);
    }

    /// Whether no block is taken.
    pub(super) fn is_whole(&self) -> bool {
        self.largest[1] == SLAB_ORDER + 1
    }

    /// Calls `show` with the maximal free blocks as (first page, pages), from the highest address down, until it
    /// returns false.
    pub(super) fn free_blocks(&self, mut show: impl FnMut(usize, usize) -> bool) {
        self.walk(1, SLAB_ORDER, &mut show);
    }

    fn walk(&self, node: usize, order: u8, show: &mut impl FnMut(usize, usize) -> bool) -> bool {
        match self.largest[node] {
            0 => true,
            free if free == order + 1 => show((node << order) - PAGES, 1 << order),
            _ => self.walk(2 * node + 1, order - 1, show) && self.walk(2 * node, order - 1, show),
        }
    }

    /// Updates the nodes above `node`.
    fn note_above(&mut self, mut node: usize, mut order: u8) {
        while node > 1 {
            node /= 2;
            order += 1;
            let (low, high) = (self.largest[2 * node], self.largest[2 * node + 1]);
            // Both halves are completely free: `order` is one more than theirs.
            let merged = if low == order && high == order { order + 1 } else { low.max(high) };
            if self.largest[node] == merged {
                return;
            }
            self.largest[node] = merged;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_whatever_their_sizes_were() {
        let mut buddy = Buddy::new();
        let small: Vec<usize> = (0..4).map(|_| buddy.take(0).unwrap()).collect();
        assert_eq!(small, [0, 1, 2, 3]);
        assert_eq!(buddy.take(2), Some(4));
        for page in [0, 2, 1, 3] {
            buddy.give(page, 0);
        }
        assert_eq!(buddy.take(2), Some(0), "four single pages are a block of four");
        buddy.give(0, 2);
        buddy.give(4, 2);
        assert!(buddy.is_whole());
        assert_eq!(buddy.take(SLAB_ORDER), Some(0));
        assert_eq!(buddy.take(0), None);
    }

    #[test]
    fn free_blocks_are_shown_from_above() {
        let mut buddy = Buddy::new();
        buddy.take(12);
        let page = buddy.take(0).unwrap();
        let mut shown = Vec::new();
        buddy.free_blocks(|page, pages| {
            shown.push((page, pages));
            true
        });
        assert_eq!(shown[..2], [(8192, 8192), (6144, 2048)]);
        assert_eq!(shown.last(), Some(&(page + 1, 1)));
        assert_eq!(shown.iter().map(|(_, pages)| pages).sum::<usize>(), PAGES - 4096 - 1);
    }
}
