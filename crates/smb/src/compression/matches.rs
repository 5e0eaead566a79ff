//! Finds repeated data: the first step of all LZ77 variants.
//!
//! Spec: [MS-XCA] 2.1.4.1 (the encoder may find matches as it likes). Owns a table of the last position of each hashed
//! 3-byte sequence. The search is cheap: one candidate per position, and incompressible data is skipped faster and
//! faster.

/// Shorter matches have no code in any variant.
pub(super) const MIN: usize = 3;
const HASH_BITS: u32 = 14;
/// After this many positions without a match (as a shift) only every second position is searched, and so on.
const PATIENCE: u32 = 6;

/// A unit of encoder output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A literal byte.
    Literal(u8),
    /// Repeats the `len` bytes that start `distance` bytes back.
    Match { len: usize, distance: usize },
}

/// Finds where three bytes were last seen.
pub(super) struct Finder {
    /// Position plus one; 0 for none.
    last: Vec<u32>,
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
impl Finder {
    pub(super) fn new() -> Finder {
        Finder { last: vec![0; 1 << HASH_BITS] }
    }

    /// Returns the last position of the three bytes at `at`, and records the new one.
    fn replace(&mut self, input: &[u8], at: usize) -> Option<usize> {
        let three = u32::from_le_bytes([input[at], input[at + 1], input[at + 2], 0]);
        let slot = (three.wrapping_mul(0x9E37_79B1) >> (32 - HASH_BITS)) as usize;
        // A message is shorter than 4 GiB.
        let before = std::mem::replace(&mut self.last[slot], at as u32 + 1);
        before.checked_sub(1).map(|at| at as usize)
    }

    /// Splits `input[from..to]` into tokens. Matches start at `floor` or later, at most `window` bytes back, and are at
    /// most `longest(position)` bytes long.
    pub(super) fn cut(
        &mut self,
        input: &[u8],
        (from, to): (usize, usize),
        (floor, window): (usize, usize),
        longest: impl Fn(usize) -> usize,
        mut emit: impl FnMut(Token),
    ) {
        let mut at = from;
        let mut misses = 0u32;
        while at < to {
            let found = if at + MIN <= to { self.replace(input, at) } else { None };
            let near = found.filter(|&before| before >= floor && at - before <= window);
            let len = near.map_or(0, |before| common(input, before, at, to.min(at + longest(at))));
            if let (Some(before), MIN..) = (near, len) {
                emit(Token::Match { len, distance: at - before });
                // The rest of a long match is in the table already.
                for inside in (at + 1..(at + len).min(at + 16)).take_while(|inside| inside + MIN <= to) {
                    self.replace(input, inside);
                }
                at += len;
                misses = 0;
                continue;
            }
            misses += 1;
            for _ in 0..(1 + (misses >> PATIENCE) as usize).min(to - at) {
                emit(Token::Literal(input[at]));
                at += 1;
            }
        }
    }
}

/// Length of the common prefix of the data at `a` and at `b`, up to `end`.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an encoder: it indexes and adds positions in our own data"
)]
fn common(input: &[u8], a: usize, b: usize, end: usize) -> usize {
    let (old, new) = (&input[a..], &input[b..end]);
    let words = new.chunks_exact(8).zip(old.chunks_exact(8)).take_while(|(new, old)| new == old).count();
    let sure = 8 * words;
    sure + new[sure..].iter().zip(&old[sure..]).take_while(|(new, old)| new == old).count()
}
