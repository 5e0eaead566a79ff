//! What a measurement does: operation, size, depth, order.
//!
//! Owns: nothing. Does not: run.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Read, write, or a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// This many reads in a hundred operations.
    Percent(u8),
}

impl Mix {
    /// Whether operation number `n` is a read. Spread evenly, without randomness, so two transports do the same work.
    pub fn is_read(self, n: u64) -> bool {
        match self {
            Mix::Read => true,
            Mix::Write => false,
            Mix::Percent(reads) => (n * 61) % 100 < u64::from(reads.min(100)),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mix::Read => f.pad("READ"),
            Mix::Write => f.pad("WRITE"),
            Mix::Percent(reads) => f.pad(&format!("{reads}:{}", 100 - reads.min(&100))),
        }
    }
}

/// The order of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// One block after the other, from the start again at the end.
    Sequential,
    /// Uniformly random blocks, the same sequence for every run with the same seed.
    Random,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Operations.
    pub mix: Mix,
    /// Bytes of one operation.
    pub size: u32,
    /// Operations outstanding at a time.
    pub queue_depth: u32,
    /// Offsets.
    pub order: Order,
    /// Bytes of the file that are used; a multiple of `size` is taken.
    pub span: u64,
    /// Not counted, first.
    pub warm_up: Duration,
    /// Counted.
    pub duration: Duration,
    /// Of the random order.
    pub seed: u64,
}

/// The offsets of a workload, one after the other.
#[derive(Debug)]
pub struct Offsets {
    order: Order,
    size: u64,
    blocks: u64,
    next: u64,
    state: u64,
}

impl Offsets {
    /// Offsets of `workload`; a span smaller than one block still gives offset 0.
    pub fn new(workload: &Workload) -> Offsets {
        let size = u64::from(workload.size.max(1));
        Offsets {
            order: workload.order,
            size,
            blocks: (workload.span / size).max(1),
            next: 0,
            // The generator must not start at zero.
            state: workload.seed | 1,
        }
    }

    /// The next offset in bytes.
    pub fn take(&mut self) -> u64 {
        let block = match self.order {
            Order::Sequential => {
                let block = self.next;
                self.next = (self.next + 1) % self.blocks;
                block
            }
            Order::Random => {
                // xorshift64*: fast, reproducible, good enough to spread over blocks.
                self.state ^= self.state >> 12;
                self.state ^= self.state << 25;
                self.state ^= self.state >> 27;
                (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % self.blocks
            }
        };
        block * self.size
    }
}

/// "8 KiB", "1 MiB", "1364 B".
pub fn size_label(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(order: Order) -> Workload {
        Workload {
            mix: Mix::Percent(30),
            size: 4096,
            queue_depth: 1,
            order,
            span: 10 * 4096 + 17,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            seed: 7,
        }
    }

    #[test]
    fn sequential_offsets_wrap_within_the_span() {
        let mut offsets = Offsets::new(&workload(Order::Sequential));
        let seen: Vec<u64> = (0..11).map(|_| offsets.take() / 4096).collect();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    }

    #[test]
    fn random_offsets_are_reproducible_and_inside() {
        let draw = |n| {
            let mut offsets = Offsets::new(&workload(Order::Random));
            (0..n).map(|_| offsets.take()).collect::<Vec<_>>()
        };
        assert_eq!(draw(100), draw(100));
        assert!(draw(1000).iter().all(|o| o % 4096 == 0 && o + 4096 <= 10 * 4096));
        let distinct: std::collections::HashSet<_> = draw(1000).into_iter().collect();
        assert_eq!(distinct.len(), 10);
    }

    #[test]
    fn a_mix_keeps_its_share() {
        assert_eq!((0..100).filter(|n| Mix::Percent(30).is_read(*n)).count(), 30);
        assert_eq!((0..100).filter(|n| Mix::Percent(200).is_read(*n)).count(), 100);
    }
}
