//! Summarizes durations.
//!
//! A histogram has a fixed size, however many samples it counts.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest distinct time; longer ones count as this.
const MAX_NS: u64 = 60_000_000_000;

/// Counts durations with three significant digits, in 190 KiB.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Times {
        Times(Histogram::new_with_bounds(1, MAX_NS, 3).expect("the bounds are constants that fit"))
    }
}

/// A summary of durations, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The shortest.
    pub min_us: f64,
    /// The median, perftest's "typical".
    pub p50_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub stdev_us: f64,
    /// 99 % are shorter.
    pub p99_us: f64,
    /// 99.9 % are shorter.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Times {
    /// Counts one duration.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(MAX_NS));
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The summary; `None` without a sample.
    pub fn quantiles(&self) -> Option<Quantiles> {
        if self.0.is_empty() {
            return None;
        }
        let us = |nanos: f64| nanos / 1e3;
        let at = |share: f64| us(self.0.value_at_quantile(share) as f64);
        Some(Quantiles {
            min_us: us(self.0.min() as f64),
            p50_us: at(0.5),
            mean_us: us(self.0.mean()),
            stdev_us: us(self.0.stdev()),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.0.max() as f64),
        })
    }
}

impl Quantiles {
    /// Every time divided by `parts`: 2 yields one way of a round trip.
    #[must_use]
    pub fn divided(self, parts: f64) -> Quantiles {
        Quantiles {
            min_us: self.min_us / parts,
            p50_us: self.p50_us / parts,
            mean_us: self.mean_us / parts,
            stdev_us: self.stdev_us / parts,
            p99_us: self.p99_us / parts,
            p999_us: self.p999_us / parts,
            max_us: self.max_us / parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_samples() {
        let mut times = Times::default();
        assert_eq!(times.quantiles(), None);
        (1..=1000).for_each(|us| times.record(Duration::from_micros(us)));
        let all = times.quantiles().unwrap();
        let near = |a: f64, b: f64| (a - b).abs() <= b / 500.0;
        assert_eq!(times.count(), 1000);
        assert!(near(all.min_us, 1.0) && near(all.p50_us, 500.0) && near(all.p99_us, 990.0), "{all:?}");
        assert!(near(all.max_us, 1000.0) && near(all.mean_us, 500.5), "{all:?}");
        assert!(near(times.quantiles().unwrap().divided(2.0).p50_us, 250.0));
        // Times beyond the longest distinct one still count.
        times.record(Duration::from_secs(3600));
        assert_eq!(times.count(), 1001);
    }
}
