//! A queue of fixed-size slots from one process to another (single producer, single consumer).
//!
//! Each slot carries its own stamp, so stamp and data arrive in the same cache line, and a polling consumer touches
//! nothing else. `taken` goes the other way and is read only when the producer considers the ring full.
//!
//! ```text
//! slot (N+1 words):  stamp | word 1 | ... | word N        stamp = position + 1, so 0 is "never written"
//! ```
//!
//! Each end keeps its position privately and never reads it back from shared memory, so a peer that scribbles can
//! corrupt the content of slots but cannot move an index. The ring neither wakes anybody nor validates its content.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Word, Words};

/// The ring has no free slot (or its consumer's `taken` is invalid, which has the same result).
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The writing end, with `N` words per slot.
pub struct Producer<const N: usize> {
    slots: Slots<N>,
    taken: Word,
    /// Slots written so far.
    position: u64,
    /// `position - capacity <= seen_taken <= position`, as last read from the consumer.
    seen_taken: u64,
}

/// The reading end, with `N` words per slot.
pub struct Consumer<const N: usize> {
    slots: Slots<N>,
    taken: Word,
    /// Slots read so far.
    position: u64,
}

/// The slots of a ring; their number is a power of two.
struct Slots<const N: usize> {
    words: Words,
    capacity: u64,
}

impl<const N: usize> Slots<N> {
    const WORDS: usize = N.saturating_add(1);

    fn new(words: Words) -> Slots<N> {
        let (slots, rest) =
            (words.chunks_exact(Self::WORDS).len(), words.chunks_exact(Self::WORDS).remainder());
        assert!(slots.is_power_of_two() && rest.is_empty());
        Slots { words, capacity: slots as u64 }
    }

    /// The stamp and the words of the slot for a position. Never `None`, because the index is below the capacity.
    #[inline]
    fn at(&self, position: u64) -> Option<(&AtomicU64, &[AtomicU64; N])> {
        let slot = (position & self.capacity.wrapping_sub(1)) as usize;
        let (stamp, words) = self.words.get(slot.wrapping_mul(Self::WORDS)..)?.split_first()?;
        Some((stamp, words.first_chunk()?))
    }
}

impl<const N: usize> Producer<N> {
    /// Uses zeroed `slots` (a power of two of them) and the first word of `taken`.
    pub fn new(slots: Words, taken: Words) -> Producer<N> {
        Producer { slots: Slots::new(slots), taken: taken.word(0), position: 0, seen_taken: 0 }
    }

    /// Appends a slot.
    pub fn push(&mut self, words: [u64; N]) -> Result<(), Full> {
        if self.position.wrapping_sub(self.seen_taken) == self.slots.capacity {
            let taken = self.taken.load(Ordering::Acquire);
            // Only positions that the consumer can have reached are valid.
            if self.position.checked_sub(taken).is_none_or(|waiting| waiting >= self.slots.capacity) {
                return Err(Full);
            }
            self.seen_taken = taken;
        }
        let (stamp, slot) = self.slots.at(self.position).ok_or(Full)?;
        for (to, word) in slot.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.position = self.position.wrapping_add(1);
        stamp.store(self.position, Ordering::Release);
        Ok(())
    }
}

impl<const N: usize> Consumer<N> {
    /// Uses the same words as the producer.
    pub fn new(slots: Words, taken: Words) -> Consumer<N> {
        Consumer { slots: Slots::new(slots), taken: taken.word(0), position: 0 }
    }

    /// Whether a slot waits; one load.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news().is_some()
    }

    /// The next slot, once it is written.
    #[inline]
    fn news(&self) -> Option<&[AtomicU64; N]> {
        let (stamp, slot) = self.slots.at(self.position)?;
        (stamp.load(Ordering::Acquire) == self.position.wrapping_add(1)).then_some(slot)
    }

    /// Takes the next slot: a private copy, whatever the peer does to the original meanwhile.
    pub fn pop(&mut self) -> Option<[u64; N]> {
        let words = self.news()?.each_ref().map(|word| word.load(Ordering::Relaxed));
        self.position = self.position.wrapping_add(1);
        // Release: the slot was read before the producer may write it again.
        self.taken.store(self.position, Ordering::Release);
        Some(words)
    }
}
