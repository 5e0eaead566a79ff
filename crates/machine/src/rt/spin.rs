//! The adaptive busy-poll policy: how long a core polls before it sleeps in the kernel.
//!
//! Waking a sleeping core costs 20 to 100 microseconds on virtual machines; the answer of a polling peer comes in less
//! than that. But a core that spins in vain wastes a CPU, so it spins only while that pays. This file holds the
//! policy's state; `reactor` reads the clock and polls.

use std::time::Duration;

/// Longest busy-poll phase before a sleep: long enough for the peer to answer eight requests of 8 KiB or one of 512 KiB
/// while we wait for it, because a sleep between the two costs more than either. Compared with 30 us, which is enough
/// for the answer to one small request: READs at a depth of 8 over iWARP were half as fast again, 512 KiB over shared
/// memory twice as fast.
pub const SPIN_MAX: Duration = Duration::from_micros(100);
/// After this many fruitless spins in a row, spinning becomes rare.
const PATIENCE: u32 = 4;
/// The first rarity: one idle period out of this many spins; each further loss doubles it.
const RARE_FIRST: u32 = 8;
/// The greatest rarity. Two ends on one CPU cannot win by spinning: at one in 8 their round trips per second fell by a
/// third, at one in 64 by a twentieth. And a core that has become busy has 64 idle periods within milliseconds.
const RARE_MOST: u32 = 64;

/// Decides for each idle period of a core whether it begins with a spin.
#[derive(Debug)]
pub(super) struct Spin {
    max: Duration,
    lost_in_a_row: u32,
    /// One idle period out of this many spins, once the patience is used up.
    rarity: u32,
    periods_without: u32,
}

impl Spin {
    /// A policy that spins at most `max` at a time; zero never spins.
    pub(super) fn new(max: Duration) -> Spin {
        Spin { max, lost_in_a_row: 0, rarity: RARE_FIRST, periods_without: 0 }
    }

    /// An idle period begins: returns how long to spin first.
    pub(super) fn budget(&mut self) -> Duration {
        if self.lost_in_a_row < PATIENCE {
            return self.max;
        }
        self.periods_without += 1;
        if self.periods_without < self.rarity {
            return Duration::ZERO;
        }
        self.periods_without = 0;
        self.max
    }

    /// The spin found something to do.
    pub(super) fn won(&mut self) {
        *self = Spin::new(self.max);
    }

    /// The spin found nothing.
    pub(super) fn lost(&mut self) {
        if self.lost_in_a_row < PATIENCE {
            self.lost_in_a_row += 1;
        } else {
            self.rarity = (self.rarity * 2).min(RARE_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_until_it_has_lost_often_then_ever_more_rarely_then_always_again() {
        let mut spin = Spin::new(SPIN_MAX);
        for _ in 0..PATIENCE {
            assert_eq!(spin.budget(), SPIN_MAX);
            spin.lost();
        }
        for rarity in [8, 16, 32, 64, 64, 64] {
            for _ in 1..rarity {
                assert_eq!(spin.budget(), Duration::ZERO);
            }
            assert_eq!(spin.budget(), SPIN_MAX, "one period in {rarity} still tries");
            spin.lost();
        }
        for _ in 1..64 {
            assert_eq!(spin.budget(), Duration::ZERO);
        }
        assert_eq!(spin.budget(), SPIN_MAX);
        spin.won();
        for _ in 0..PATIENCE {
            assert_eq!(spin.budget(), SPIN_MAX, "one success restores patience");
            spin.lost();
        }
        for _ in 1..8 {
            assert_eq!(spin.budget(), Duration::ZERO);
        }
        assert_eq!(spin.budget(), SPIN_MAX);
    }

    #[test]
    fn zero_never_spins() {
        let mut spin = Spin::new(Duration::ZERO);
        for _ in 0..100 {
            assert_eq!(spin.budget(), Duration::ZERO);
            spin.lost();
        }
    }
}
