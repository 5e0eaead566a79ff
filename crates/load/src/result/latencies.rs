//! Latencies: a histogram of fixed size, which merges the histograms of many clients, and the values read from it.
//!
//! The buckets are the same everywhere (up to a minute, three digits), so merging the histograms of several agents
//! yields exactly the histogram of all their samples. It takes 190 KiB, however many samples it counts.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Spread;

/// Longer latencies count as this: a minute.
const HIGHEST_NS: u64 = 60_000_000_000;
/// Buckets are at most one thousandth wide.
const DIGITS: u8 = 3;

/// The percentiles of a [`Latency`], with their names in the CSV and the tables.
pub const PERCENTILES: [(&str, f64); 7] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.99999),
];

/// A histogram of nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies(Histogram<u64>);

/// Why a text is not a histogram.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LatenciesError {
    /// Its buckets differ.
    #[error(
        "the histogram has different buckets ({digits} digits, up to {highest} ns) and cannot be merged here"
    )]
    Buckets {
        /// Its precision.
        digits: u8,
        /// Its largest value.
        highest: u64,
    },
    /// A pair is not "nanoseconds:count".
    #[error("the histogram is damaged at pair {0}")]
    Pair(usize),
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Latencies {
        Latencies(
            Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS).expect("the bounds are constants that fit"),
        )
    }

    /// Counts one operation, without allocating.
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds.min(HIGHEST_NS));
    }

    /// Counts an operation of a series that should start every `interval` nanoseconds: operations delayed by a slow
    /// one count as if they had started on time (coordinated omission).
    pub fn record_corrected(&mut self, nanoseconds: u64, interval: u64) {
        self.record(nanoseconds);
        let mut missing = nanoseconds.min(HIGHEST_NS).saturating_sub(interval);
        while interval > 0 && missing >= interval {
            self.record(missing);
            missing -= interval;
        }
    }

    /// Adds the histogram of another client, thread or repetition.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("every Latencies has the same bounds");
    }

    /// Number of operations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean in nanoseconds; 0 if empty.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// The latency in nanoseconds that this part of the operations (0 to 1) did not exceed.
    pub fn quantile(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }

    /// The shortest latency.
    pub fn min(&self) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.min() }
    }

    /// The longest latency.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// Non-empty buckets: the lowest value of each in nanoseconds, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|step| {
            (self.0.lowest_equivalent(step.value_iterated_to()), step.count_since_last_iteration())
        })
    }
}

impl From<Histogram<u64>> for Latencies {
    fn from(histogram: Histogram<u64>) -> Latencies {
        let mut latencies = Latencies::new();
        for step in histogram.iter_recorded() {
            latencies.0.saturating_record_n(step.value_iterated_to().min(HIGHEST_NS), step.count_at_value());
        }
        latencies
    }
}

/// The JSON of [`Latencies`]: "nanoseconds:count" of each non-empty bucket, separated by spaces.
#[derive(Serialize, Deserialize)]
struct Text {
    digits: u8,
    highest: u64,
    counts: String,
}

impl Serialize for Latencies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counts: Vec<String> = self.buckets().map(|(value, count)| format!("{value}:{count}")).collect();
        Text { digits: DIGITS, highest: HIGHEST_NS, counts: counts.join(" ") }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Latencies, D::Error> {
        let text = Text::deserialize(deserializer)?;
        text.latencies().map_err(serde::de::Error::custom)
    }
}

impl Text {
    fn latencies(&self) -> Result<Latencies, LatenciesError> {
        if (self.digits, self.highest) != (DIGITS, HIGHEST_NS) {
            return Err(LatenciesError::Buckets { digits: self.digits, highest: self.highest });
        }
        let mut latencies = Latencies::new();
        let mut total = 0u64;
        for (index, pair) in self.counts.split_ascii_whitespace().enumerate() {
            let damaged = || LatenciesError::Pair(index + 1);
            let (value, count) = pair.split_once(':').ok_or_else(damaged)?;
            let value = value.parse().ok().filter(|value| *value <= HIGHEST_NS).ok_or_else(damaged)?;
            let count: u64 = count.parse().ok().filter(|count| *count > 0).ok_or_else(damaged)?;
            total = total.checked_add(count).ok_or_else(damaged)?;
            latencies.0.saturating_record_n(value, count);
        }
        Ok(latencies)
    }
}

/// Latencies of a point in nanoseconds, each over the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: Spread,
    /// The fastest operation.
    pub min: Spread,
    /// 50 % of the operations were faster.
    pub p50: Spread,
    /// 90 % were faster.
    pub p90: Spread,
    /// 95 % were faster.
    pub p95: Spread,
    /// 99 % were faster.
    pub p99: Spread,
    /// 99.9 % were faster.
    #[serde(rename = "p99.9")]
    pub p999: Spread,
    /// 99.99 % were faster.
    #[serde(rename = "p99.99")]
    pub p9999: Spread,
    /// 99.999 % were faster.
    #[serde(rename = "p99.999")]
    pub p99999: Spread,
    /// The slowest operation.
    pub max: Spread,
}

impl Latency {
    /// Reduces the repetitions; `None` if there are none, or if one has no operation.
    pub fn of(repetitions: &[&Latencies]) -> Option<Latency> {
        if repetitions.iter().any(|latencies| latencies.count() == 0) {
            return None;
        }
        let spread = |f: &dyn Fn(&Latencies) -> f64| {
            Spread::of(repetitions.iter().map(|latencies| f(latencies)).collect())
        };
        let quantile = |q: f64| spread(&|latencies| latencies.quantile(q) as f64);
        Some(Latency {
            mean: spread(&Latencies::mean)?,
            min: spread(&|latencies| latencies.min() as f64)?,
            p50: quantile(0.5)?,
            p90: quantile(0.9)?,
            p95: quantile(0.95)?,
            p99: quantile(0.99)?,
            p999: quantile(0.999)?,
            p9999: quantile(0.9999)?,
            p99999: quantile(0.99999)?,
            max: spread(&|latencies| latencies.max() as f64)?,
        })
    }

    /// In the order of [`PERCENTILES`].
    pub fn percentiles(&self) -> [Spread; 7] {
        [self.p50, self.p90, self.p95, self.p99, self.p999, self.p9999, self.p99999]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Latencies {
        let mut latencies = Latencies::new();
        values.iter().for_each(|value| latencies.record(*value));
        latencies
    }

    proptest! {
        // One case creates ten histograms.
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn histograms_of_four_agents_merge_to_the_histogram_of_the_whole(
            samples in proptest::collection::vec((0usize..4, 0u64..100_000_000_000), 0..400),
        ) {
            let mut agents = vec![Latencies::new(); 4];
            for (agent, value) in &samples {
                agents[*agent].record(*value);
            }
            // As in a real run: each agent writes its own, and the merging side parses it.
            let mut merged = Latencies::new();
            for agent in &agents {
                let text = serde_json::to_string(agent).unwrap();
                merged.merge(&serde_json::from_str(&text).unwrap());
            }
            let whole = of(&samples.iter().map(|(_, value)| *value).collect::<Vec<_>>());
            prop_assert_eq!(&merged, &whole);
            prop_assert_eq!(merged.count(), samples.len() as u64);
            for (_, quantile) in PERCENTILES {
                prop_assert_eq!(merged.quantile(quantile), whole.quantile(quantile));
            }
            prop_assert_eq!((merged.min(), merged.max()), (whole.min(), whole.max()));
            prop_assert_eq!(merged.mean(), whole.mean());
        }

        #[test]
        fn damaged_histograms_are_refused_not_believed(counts in "[0-9: ]{0,40}") {
            let text = Text { digits: DIGITS, highest: HIGHEST_NS, counts };
            if let Ok(latencies) = text.latencies() {
                // Parsing and writing again yields the same.
                let again = serde_json::to_string(&latencies).unwrap();
                prop_assert_eq!(serde_json::from_str::<Latencies>(&again).unwrap(), latencies);
            }
        }
    }

    #[test]
    fn a_histogram_says_what_is_wrong_with_it() {
        let text = |digits, counts: &str| Text { digits, highest: HIGHEST_NS, counts: counts.into() };
        assert_eq!(text(3, "5:1 x:2").latencies(), Err(LatenciesError::Pair(2)));
        assert_eq!(text(3, "5").latencies(), Err(LatenciesError::Pair(1)));
        assert_eq!(text(3, "5:0").latencies(), Err(LatenciesError::Pair(1)));
        let most = format!("5:{} 6:1", u64::MAX);
        assert_eq!(text(3, &most).latencies(), Err(LatenciesError::Pair(2)));
        let other = LatenciesError::Buckets { digits: 2, highest: HIGHEST_NS };
        assert_eq!(text(2, "").latencies(), Err(other));
        assert_eq!(text(3, "").latencies(), Ok(Latencies::new()));
    }

    #[test]
    fn what_waited_behind_a_slow_operation_is_counted() {
        let mut latencies = Latencies::new();
        latencies.record_corrected(1_000, 1_000);
        latencies.record_corrected(4_500, 1_000);
        // 4,500, and those that should have started 1, 2 and 3 us later.
        assert_eq!(latencies.count(), 5);
        assert!((1_500..1_510).contains(&latencies.quantile(0.4)), "{}", latencies.quantile(0.4));
        latencies.record_corrected(10, 0);
        assert_eq!(latencies.count(), 6);
    }

    #[test]
    fn an_empty_repetition_has_no_latency() {
        assert_eq!(Latency::of(&[]), None);
        assert_eq!(Latency::of(&[&of(&[1]), &of(&[])]), None);
        let latency = Latency::of(&[&of(&[100; 10]), &of(&[200; 10])]).unwrap();
        assert_eq!(latency.p50, Spread { min: 100.0, median: 150.0, max: 200.0 });
        assert_eq!(latency.percentiles()[6], latency.max);
    }
}
