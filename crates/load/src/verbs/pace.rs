//! Computes how many operations fill a given time, from the pace of the last batch.

use std::time::Duration;

/// A batch is at most this many times as long as the previous one, because the first ones are slow for other reasons.
const GROWTH: u64 = 8;
/// The part of the time used as an uncounted warm-up: one in this many. Fresh TCP connections speed up for a while,
/// and caches fill.
const WARM_UP_PARTS: u32 = 4;
/// Least number of batches in a measurement by time.
const BATCHES: u32 = 10;

/// Determines the batch sizes of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    seconds_each: f64,
    last_batch: u64,
}

impl Pace {
    /// Operations in a batch of about `time`, from 1 to `most`.
    pub fn batch_for(&self, time: Duration, most: u64) -> u64 {
        let wanted =
            if self.seconds_each > 0.0 { (time.as_secs_f64() / self.seconds_each) as u64 } else { 1 };
        wanted.clamp(1, (self.last_batch * GROWTH).max(1)).min(most)
    }

    /// A batch has finished.
    pub fn took(&mut self, operations: u64, elapsed: Duration) {
        *self = Pace { seconds_each: elapsed.as_secs_f64() / operations as f64, last_batch: operations };
    }

    /// The warm-up time before measuring for `time`.
    pub fn warm_up(time: Duration) -> Duration {
        time / WARM_UP_PARTS
    }

    /// The number of warm-up operations before measuring `count`.
    pub fn warm_up_count(count: u64) -> u64 {
        (count / u64::from(WARM_UP_PARTS)).max(1)
    }

    /// The length of the next batch when `done` of `time` has passed.
    pub fn slice(time: Duration, done: Duration) -> Duration {
        (time / BATCHES).min(time.saturating_sub(done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_to_the_time_and_no_further() {
        let mut pace = Pace::default();
        let second = Duration::from_secs(1);
        let mut seen = Vec::new();
        for _ in 0..6 {
            let batch = pace.batch_for(second, 1 << 20);
            seen.push(batch);
            pace.took(batch, Duration::from_millis(batch));
        }
        assert_eq!(seen, [1, 8, 64, 512, 1000, 1000]);
        assert_eq!(pace.batch_for(second, 16), 16);
        assert_eq!(pace.batch_for(Duration::ZERO, 16), 1);
    }
}
