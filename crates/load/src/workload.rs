//! What a measurement does: mix, size, depth and order of operations.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Read, write, or a mix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mix {
    /// Reads only.
    #[default]
    Read,
    /// Writes only.
    Write,
    /// This percentage of reads.
    Percent(u8),
}

impl Mix {
    /// Whether operation number `n` is a read. The reads are spread evenly, without randomness, so two transports do
    /// the same work.
    pub fn is_read(self, n: u64) -> bool {
        match self {
            Mix::Read => true,
            Mix::Write => false,
            Mix::Percent(reads) => (n * 61) % 100 < u64::from(reads.min(100)),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Sequential => f.pad("sequential"),
            Order::Random => f.pad("random"),
            Order::Zipf(hundredths) => f.pad(&format!("zipf {:.2}", f64::from(*hundredths) / 100.0)),
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// One block after another, starting over at the end.
    Sequential,
    /// Uniformly random blocks, the same sequence for every run with the same seed.
    #[default]
    Random,
    /// Random blocks, a few of which are used often: the probability of the block of rank `n` is proportional to `n`
    /// to the power of minus this many hundredths, 1 to 300.
    Zipf(u16),
}

/// The work of one thread, the same over every compared transport.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The mix of operations.
    pub mix: Mix,
    /// Bytes of one operation.
    pub size: u32,
    /// Outstanding operations.
    pub queue_depth: u32,
    /// The order of offsets.
    pub order: Order,
    /// Each queue slot uses one file only; otherwise every operation uses the next file.
    pub streams: bool,
    /// Bytes used of each file, rounded to a multiple of `size`.
    pub span: u64,
    /// Uncounted time at the beginning.
    pub warm_up: Duration,
    /// Counted time.
    pub duration: Duration,
    /// Uncounted time at the end.
    pub cool_down: Duration,
    /// Seed of the random order.
    pub seed: u64,
    /// Operations per second; `None`: as many as possible. Latency then counts from the moment when an operation was
    /// due.
    pub rate: Option<f64>,
    /// Pause between the end of an operation and the next one of the same queue slot.
    pub think: Duration,
    /// Compare every byte read with the [`crate::pattern`], and write that pattern.
    pub verify: bool,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload {
            mix: Mix::Read,
            size: 8 << 10,
            queue_depth: 1,
            order: Order::Random,
            streams: false,
            span: 0,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            cool_down: Duration::ZERO,
            seed: 0x5eed,
            rate: None,
            think: Duration::ZERO,
            verify: false,
        }
    }
}

/// The sequence of a workload's offsets.
#[derive(Debug)]
pub struct Offsets {
    order: Order,
    size: u64,
    blocks: u64,
    next: u64,
    state: u64,
    zipf: Option<Zipf>,
}

impl Offsets {
    /// The offsets of `workload`; a span smaller than one block still yields offset 0.
    pub fn new(workload: &Workload) -> Offsets {
        let size = u64::from(workload.size.max(1));
        let blocks = (workload.span / size).max(1);
        Offsets {
            order: workload.order,
            size,
            blocks,
            next: 0,
            // The generator must not start at zero.
            state: workload.seed | 1,
            zipf: match workload.order {
                Order::Zipf(hundredths) => {
                    Some(Zipf::new(blocks, f64::from(hundredths.clamp(1, 300)) / 100.0))
                }
                Order::Sequential | Order::Random => None,
            },
        }
    }

    /// The next offset in bytes.
    pub fn take(&mut self) -> u64 {
        let block = match (self.order, self.zipf) {
            (Order::Sequential, _) => {
                let block = self.next;
                self.next = (self.next + 1) % self.blocks;
                block
            }
            (Order::Zipf(_), Some(zipf)) => zipf.block(|| self.fraction()),
            (Order::Random | Order::Zipf(_), _) => self.random() % self.blocks,
        };
        block * self.size
    }

    /// xorshift64*: fast, reproducible, and good enough to spread over blocks. Returns 53 bits.
    fn random(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Uniform, at least 0 and below 1.
    fn fraction(&mut self) -> f64 {
        self.random() as f64 / (1u64 << 53) as f64
    }
}

/// Zipf's distribution over blocks, by rejection-inversion (W. Hörmann, G. Derflinger: Rejection-inversion to generate
/// variates from monotone discrete distributions, 1996): no table, however large the file.
#[derive(Clone, Copy, Debug)]
struct Zipf {
    blocks: u64,
    exponent: f64,
    low: f64,
    high: f64,
    cut: f64,
    /// Spreads the ranks over the file; coprime to `blocks`.
    stride: u64,
}

impl Zipf {
    fn new(blocks: u64, exponent: f64) -> Zipf {
        let mut zipf = Zipf { blocks, exponent, low: 0.0, high: 0.0, cut: 0.0, stride: stride(blocks) };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(blocks as f64 + 0.5);
        zipf.cut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn block(self, mut fraction: impl FnMut() -> f64) -> u64 {
        loop {
            let area = self.high + fraction() * (self.low - self.high);
            let at = self.inverse(area);
            let rank = at.round().clamp(1.0, self.blocks as f64);
            if rank - at <= self.cut || area >= self.integral(rank + 0.5) - self.density(rank) {
                let rank = rank as u64 - 1;
                return (u128::from(rank) * u128::from(self.stride) % u128::from(self.blocks)) as u64;
            }
        }
    }

    fn density(self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the density from 1 to `x`.
    fn integral(self, x: f64) -> f64 {
        let (log, power) = (x.ln(), 1.0 - self.exponent);
        if power.abs() < 1e-9 { log } else { (power * log).exp_m1() / power }
    }

    fn inverse(self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { area.exp() } else { ((power * area).max(-1.0 + 1e-15).ln_1p() / power).exp() }
    }
}

/// A number near two thirds of `blocks` that is coprime to it.
fn stride(blocks: u64) -> u64 {
    fn divisor(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { divisor(b, a % b) }
    }
    let from = (blocks as f64 * 0.618) as u64;
    (from.max(1)..).find(|n| divisor(*n, blocks) == 1).unwrap_or(1)
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
        let mix = Mix::Percent(30);
        Workload { mix, size: 4096, order, span: 10 * 4096 + 17, seed: 7, ..Workload::default() }
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
    fn zipf_uses_few_blocks_often_as_the_law_says() {
        let mut offsets = Offsets::new(&Workload { span: 1000 * 4096, ..workload(Order::Zipf(100)) });
        let mut seen = std::collections::HashMap::<u64, u32>::new();
        for _ in 0..100_000 {
            let offset = offsets.take();
            assert!(offset.is_multiple_of(4096) && offset < 1000 * 4096);
            *seen.entry(offset).or_default() += 1;
        }
        let mut often: Vec<u32> = seen.values().copied().collect();
        often.sort_unstable_by(|a, b| b.cmp(a));
        // The sum of 1/n up to 1000 is 7.485, so rank n has 1/(7.485 n) of all.
        for (rank, expected) in [(1, 13_360.0), (2, 6680.0), (10, 1336.0)] {
            let count = f64::from(often[rank - 1]);
            assert!((count / expected - 1.0).abs() < 0.15, "rank {rank}: {count} instead of {expected}");
        }
        assert!(seen.len() > 900, "rare blocks are used, too");
        // A file of one block and a steep distribution terminate too.
        for hundredths in [1, 99, 100, 101, 300] {
            let mut one = Offsets::new(&Workload { span: 4096, ..workload(Order::Zipf(hundredths)) });
            assert!((0..100).all(|_| one.take() == 0));
        }
    }

    #[test]
    fn a_mix_keeps_its_share() {
        assert_eq!((0..100).filter(|n| Mix::Percent(30).is_read(*n)).count(), 30);
        assert_eq!((0..100).filter(|n| Mix::Percent(200).is_read(*n)).count(), 100);
    }
}
