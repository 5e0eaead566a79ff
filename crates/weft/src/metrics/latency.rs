//! Durations of operations in the last hour, minute by minute: the heat map of the status page.
//!
//! The meter only counts since the start, so somebody must remember what it said a minute ago. [`Hour`] keeps the
//! differences of complete minutes, at most [`MAX_MINUTES`] of them: whatever the traffic, some 90 KiB.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_machine::meter::{BUCKETS, Sample, bound};

/// Minutes in an answer, of which the last one is not complete.
pub(crate) const MAX_MINUTES: usize = 60;
/// The time between two complete ones.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Operations that wait for other clients: their duration says nothing about the server.
const WAITING: [&str; 3] = ["change_notify", "lock", "oplock_break"];

/// Durations of the last hour.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Latency {
    /// Upper bounds of the buckets in seconds; one more bucket has none.
    pub bounds: Vec<f64>,
    /// The minutes, oldest first. The last one is still running.
    pub minutes: Vec<Minute>,
}

/// The operations of a minute.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Minute {
    /// When it ended, in seconds of Unix time.
    pub ended: u64,
    /// How long ago that was, whatever has been done to the clock of the host; 0 for the running one.
    #[serde(default)]
    pub age_seconds: f64,
    /// How long it was: less than 60 for the running one, more if the server was stopped for a while.
    pub seconds: f64,
    /// The operations by kind; kinds without operations are left out.
    pub series: Vec<Series>,
}

/// The operations of one kind in a minute.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Series {
    /// What they do.
    pub operation: Operation,
    /// Whether their payload travelled by RDMA.
    pub by_rdma: bool,
    /// Operations by duration.
    pub counts: Vec<u64>,
    /// The sum of their durations.
    pub seconds: f64,
}

/// What an operation does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// READ, of all protocols.
    Read,
    /// WRITE, of all protocols.
    Write,
    /// Everything else, but not what waits for other clients.
    #[default]
    Other,
}

impl Operation {
    fn of(name: &str) -> Option<Operation> {
        match name {
            "read" | "read_plus" => Some(Operation::Read),
            "write" => Some(Operation::Write),
            name if WAITING.contains(&name) => None,
            _ => Some(Operation::Other),
        }
    }
}

/// Operations and the sum of their durations, by kind, since the start of the process.
type Totals = BTreeMap<(Operation, bool), ([u64; BUCKETS], f64)>;

fn totals(samples: &[Sample]) -> Totals {
    let mut totals = Totals::new();
    for sample in samples {
        let Some(operation) = Operation::of(sample.operation) else { continue };
        let (counts, seconds) = totals.entry((operation, sample.by_rdma)).or_default();
        for (to, from) in counts.iter_mut().zip(&sample.buckets) {
            *to += from;
        }
        *seconds += sample.seconds;
    }
    totals
}

/// What has been counted between two totals.
fn between(before: &Totals, now: &Totals) -> Vec<Series> {
    let mut all = Vec::new();
    for (kind, (counts, seconds)) in now {
        let (counts_before, seconds_before) = before.get(kind).copied().unwrap_or_default();
        let counts: Vec<u64> =
            counts.iter().zip(counts_before).map(|(now, before)| now.saturating_sub(before)).collect();
        if counts.iter().any(|count| *count > 0) {
            let (operation, by_rdma) = *kind;
            // The conversion from ticks becomes more exact with time, so a sum may shrink a little.
            let seconds = (seconds - seconds_before).max(0.0);
            all.push(Series { operation, by_rdma, counts, seconds });
        }
    }
    all
}

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// Since the hour began to be recorded.
    pub passed: Duration,
    /// Unix time.
    pub wall: Duration,
}

/// The last hour.
#[derive(Debug, Default)]
pub(crate) struct Hour {
    /// Minutes, and when they ended.
    complete: VecDeque<(Duration, Minute)>,
    /// What had been counted when the running minute began, and when that was.
    before: Totals,
    began: Duration,
}

impl Hour {
    fn running(&self, now: &Totals, at: At) -> Minute {
        Minute {
            ended: at.wall.as_secs(),
            age_seconds: 0.0,
            seconds: at.passed.saturating_sub(self.began).as_secs_f64(),
            series: between(&self.before, now),
        }
    }

    /// A minute has passed.
    pub(crate) fn record(&mut self, samples: &[Sample], at: At) {
        let now = totals(samples);
        let minute = self.running(&now, at);
        if self.complete.len() + 1 >= MAX_MINUTES {
            self.complete.pop_front();
        }
        self.complete.push_back((at.passed, minute));
        (self.before, self.began) = (now, at.passed);
    }

    /// The complete minutes and the running one.
    pub(crate) fn told(&self, samples: &[Sample], at: At) -> Latency {
        let running = self.running(&totals(samples), at);
        let aged = |(ended, minute): &(Duration, Minute)| Minute {
            age_seconds: at.passed.saturating_sub(*ended).as_secs_f64(),
            ..minute.clone()
        };
        Latency {
            bounds: (0..BUCKETS).map(bound).filter(|bound| bound.is_finite()).collect(),
            minutes: self.complete.iter().map(aged).chain([running]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::meter::Class;

    use super::*;

    static CLASS: Class = Class::new("latency", "tcp", &["read"]);

    fn sample(operation: &'static str, by_rdma: bool, bucket: usize, count: u64) -> Sample {
        let mut buckets = [0; BUCKETS];
        buckets[bucket] = count;
        Sample {
            class: &CLASS,
            share: "a".into(),
            operation,
            by_rdma,
            buckets,
            seconds: count as f64,
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    fn at(seconds: u64) -> At {
        At { passed: Duration::from_secs(seconds), wall: Duration::from_secs(1_000_000 + seconds) }
    }

    #[test]
    fn a_minute_shows_what_was_counted_in_it_and_not_before() {
        let mut hour = Hour::default();
        hour.record(&[sample("read", false, 3, 10)], at(60));
        let samples =
            [sample("read", false, 3, 14), sample("read", false, 5, 1), sample("write", true, 0, 2)];
        let told = hour.told(&samples, at(75));
        assert_eq!(told.bounds.len(), BUCKETS - 1);
        let [complete, running] = &told.minutes[..] else { panic!("{told:?}") };
        assert_eq!((complete.ended, complete.seconds), (1_000_060, 60.0));
        assert_eq!((running.ended, running.seconds), (1_000_075, 15.0));
        assert_eq!((complete.age_seconds, running.age_seconds), (15.0, 0.0));
        // The host's clock is set back; ages stay what they are.
        let set_back = At { wall: Duration::from_secs(5), ..at(80) };
        let ages: Vec<f64> =
            hour.told(&samples, set_back).minutes.iter().map(|one| one.age_seconds).collect();
        assert_eq!(ages, [20.0, 0.0]);
        assert_eq!(complete.series[0].counts[3], 10);
        let [read, write] = &running.series[..] else { panic!("{running:?}") };
        assert_eq!((read.operation, read.counts[3], read.counts[5]), (Operation::Read, 4, 1));
        assert_eq!((write.operation, write.by_rdma, write.counts[0]), (Operation::Write, true, 2));
        assert_eq!((read.seconds, write.seconds), (5.0, 2.0));
    }

    #[test]
    fn what_waits_for_others_is_left_out_and_so_is_an_idle_kind() {
        let mut hour = Hour::default();
        let samples = [
            sample("change_notify", false, 20, 3),
            sample("lock", false, 20, 3),
            sample("create", false, 1, 1),
        ];
        hour.record(&samples, at(60));
        let told = hour.told(&samples, at(61));
        assert_eq!(told.minutes[0].series.len(), 1);
        assert_eq!(told.minutes[0].series[0].operation, Operation::Other);
        assert_eq!(told.minutes[1].series, []);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut hour = Hour::default();
        for minute in 1..=200 {
            hour.record(&[sample("read", false, 2, minute)], at(minute * 60));
        }
        let told = hour.told(&[sample("read", false, 2, 200)], at(200 * 60 + 1));
        assert_eq!(told.minutes.len(), MAX_MINUTES);
        assert_eq!(told.minutes[0].ended, 1_000_000 + 142 * 60);
        assert!(told.minutes[..59].iter().all(|minute| minute.series[0].counts[2] == 1));
    }

    #[test]
    fn the_schema_describes_it() {
        let schema = schemars::schema_for!(Latency).to_value();
        for field in ["bounds", "minutes"] {
            assert!(schema["properties"][field].is_object(), "{field}: {schema}");
        }
        for field in ["operation", "by_rdma", "counts", "seconds"] {
            assert!(schema["$defs"]["Series"]["properties"][field].is_object(), "{field}: {schema}");
        }
    }
}
