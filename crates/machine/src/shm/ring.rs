//! A queue of fixed-size slots from one process to another (single producer, single consumer).
//!
//! What: each slot carries its own stamp, so news and data arrive in the same cache line and a consumer that polls
//! touches nothing else. `taken` goes the other way and is read only when the producer believes the ring to be full.
//!
//! ```text
//! slot (N+1 words):  stamp | word 1 | ... | word N        stamp = position + 1, so 0 is "never written"
//! ```
//!
//! Owns: its positions, privately: none is ever read back from shared memory, so a peer that scribbles can
//! spoil what the slots say but cannot move an index. Does not: wake anybody, or validate what it hands out.

use std::sync::atomic::Ordering;

use super::Words;

/// The ring has no free slot (or its consumer's `taken` makes no sense, which ends the same way).
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The writing end; `N` words a slot.
pub struct Producer<const N: usize> {
    slots: Words,
    taken: Words,
    capacity: u64,
    /// Slots written so far.
    position: u64,
    /// `position - capacity <= seen_taken <= position`, as last read from the consumer.
    seen_taken: u64,
}

/// The reading end; `N` words a slot.
pub struct Consumer<const N: usize> {
    slots: Words,
    taken: Words,
    capacity: u64,
    /// Slots read so far.
    position: u64,
}

fn capacity<const N: usize>(slots: &Words, taken: &Words) -> u64 {
    let capacity = slots.len() / (N + 1);
    assert!(capacity.is_power_of_two() && slots.len() == capacity * (N + 1) && !taken.is_empty());
    capacity as u64
}

impl<const N: usize> Producer<N> {
    /// Over zeroed `slots` (a power of two of them) and the first word of `taken`.
    pub fn new(slots: Words, taken: Words) -> Producer<N> {
        Producer { capacity: capacity::<N>(&slots, &taken), slots, taken, position: 0, seen_taken: 0 }
    }

    /// Appends a slot.
    pub fn push(&mut self, words: [u64; N]) -> Result<(), Full> {
        if self.position - self.seen_taken == self.capacity {
            let taken = self.taken[0].load(Ordering::Acquire);
            // Only positions that the consumer can have reached count.
            if taken > self.position || self.position - taken >= self.capacity {
                return Err(Full);
            }
            self.seen_taken = taken;
        }
        let at = (self.position & (self.capacity - 1)) as usize * (N + 1);
        let slot = &self.slots[at..at + N + 1];
        for (to, word) in slot[1..].iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.position += 1;
        slot[0].store(self.position, Ordering::Release);
        Ok(())
    }
}

impl<const N: usize> Consumer<N> {
    /// Over the same words as the producer's.
    pub fn new(slots: Words, taken: Words) -> Consumer<N> {
        Consumer { capacity: capacity::<N>(&slots, &taken), slots, taken, position: 0 }
    }

    fn at(&self) -> usize {
        (self.position & (self.capacity - 1)) as usize * (N + 1)
    }

    /// Whether a slot waits; one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.slots[self.at()].load(Ordering::Acquire) == self.position + 1
    }

    /// Takes the next slot: a private copy, whatever the peer does to the original meanwhile.
    pub fn pop(&mut self) -> Option<[u64; N]> {
        if !self.has_news() {
            return None;
        }
        let at = self.at();
        let slot = &self.slots[at + 1..at + 1 + N];
        let words = std::array::from_fn(|i| slot[i].load(Ordering::Relaxed));
        self.position += 1;
        // Release: the slot was read before the producer may write it again.
        self.taken[0].store(self.position, Ordering::Release);
        Some(words)
    }
}
