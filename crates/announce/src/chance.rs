//! Random delays and ids of messages, from a seed: a run can be repeated. None of them is a secret.

use std::time::Duration;

use weft_wire::wsd::Uuid;

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// One that starts from this seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration between two numbers of milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        let range = most.saturating_sub(least).saturating_add(1);
        Duration::from_millis(least.saturating_add(self.draw().checked_rem(range).unwrap_or(0)))
    }

    /// A random UUID.
    pub fn uuid(&mut self) -> Uuid {
        let (high, low) = (u128::from(self.draw()), u128::from(self.draw()));
        Uuid::of_random((high << 64 | low).to_be_bytes())
    }
}
