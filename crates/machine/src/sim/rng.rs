//! The simulator's random numbers: small, fast, the same on every machine, and not secure.
//!
//! Nothing that must not be guessed may use them.

use std::ops::RangeInclusive;

/// xoshiro256** seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number in `range`; its start if the range is empty.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        match high.checked_sub(low).and_then(|width| width.checked_add(1)) {
            // The bias of the remainder does not matter in a simulation.
            Some(width) => low + self.bits() % width,
            None if high > low => self.bits(),
            None => low,
        }
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.within(0..=(n as u64).saturating_sub(1)) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.bits().is_multiple_of(n.max(1))
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }
}
