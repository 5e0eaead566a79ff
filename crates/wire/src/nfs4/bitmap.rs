//! bitmap4 (RFC 8881 3.3.7): sets of attributes, operations and hints.
//!
//! No supported minor version defines bits from 96 on: they are parsed up to a limit, and remembered only as
//! [`Bitmap::beyond`].

use crate::xdr::{Decoder, Encoder, Malformed, Xdr};

/// Words that are kept.
const WORDS: usize = 3;
const BITS: u32 = u32::BITS * WORDS as u32;
/// Most words that are parsed.
const MAX_WORDS: usize = 64;

/// A set of small numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    words: [u32; WORDS],
    beyond: bool,
}

impl Bitmap {
    /// No bits.
    pub const EMPTY: Bitmap = Bitmap { words: [0; WORDS], beyond: false };

    /// The set of these numbers, each below 96; larger numbers do not compile.
    #[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "evaluated by the compiler")]
    pub const fn of(bits: &[u32]) -> Bitmap {
        let mut map = Bitmap::EMPTY;
        let mut i = 0;
        while i < bits.len() {
            map.words[bits[i] as usize / 32] |= 1 << (bits[i] % 32);
            i += 1;
        }
        map
    }

    /// [`Bitmap::or`] for constants.
    #[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "evaluated by the compiler")]
    pub const fn or_const(mut self, other: Bitmap) -> Bitmap {
        let mut i = 0;
        while i < WORDS {
            self.words[i] |= other.words[i];
            i += 1;
        }
        self.beyond |= other.beyond;
        self
    }

    /// Adds a number below 96; larger numbers are ignored.
    pub fn set(&mut self, bit: u32) {
        if let Some(word) = self.words.get_mut(bit as usize / 32) {
            *word |= 1 << (bit % 32);
        }
    }

    /// Removes a number.
    pub fn clear(&mut self, bit: u32) {
        if let Some(word) = self.words.get_mut(bit as usize / 32) {
            *word &= !(1 << (bit % 32));
        }
    }

    /// Whether a number is in the set.
    pub fn has(&self, bit: u32) -> bool {
        self.words.get(bit as usize / 32).is_some_and(|word| word & 1 << (bit % 32) != 0)
    }

    /// Whether the parsed set contained numbers from 96 on.
    pub fn beyond(&self) -> bool {
        self.beyond
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Bitmap::EMPTY
    }

    /// The intersection.
    #[must_use]
    pub fn and(self, other: Bitmap) -> Bitmap {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
        Bitmap { words, beyond: self.beyond && other.beyond }
    }

    /// The union.
    #[must_use]
    pub fn or(self, other: Bitmap) -> Bitmap {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word |= other);
        Bitmap { words, beyond: self.beyond || other.beyond }
    }

    /// The numbers in this set that are not in `other`.
    #[must_use]
    pub fn without(self, other: Bitmap) -> Bitmap {
        let mut words = self.words;
        words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= !other);
        Bitmap { words, beyond: self.beyond && !other.beyond }
    }

    /// The numbers in the set, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..BITS).filter(move |bit| self.has(*bit))
    }
}

impl Xdr for Bitmap {
    fn parse(d: &mut Decoder) -> Result<Bitmap, Malformed> {
        let mut map = Bitmap::EMPTY;
        for n in 0..d.length(MAX_WORDS)? {
            let word = d.u32()?;
            match map.words.get_mut(n) {
                Some(kept) => *kept = word,
                None => map.beyond |= word != 0,
            }
        }
        Ok(map)
    }
    fn emit(&self, e: &mut Encoder) {
        let unset = self.words.iter().rev().take_while(|word| **word == 0).count();
        let len = WORDS.saturating_sub(unset);
        e.u32(len as u32);
        self.words.iter().take(len).for_each(|word| e.u32(*word));
    }
}
