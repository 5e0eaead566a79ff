//! Limits the lines about requests and log-ons that were refused.
//!
//! Being refused takes no right, so any client could fill the disk with such lines. Each address has a token bucket:
//! [`BURST`] lines at once, and [`LINES_PER_SECOND`] after that. One more bucket, of [`ALL`] times that, holds for all
//! addresses together, so that many addresses gain little. A long line counts as several ([`super::cut`]). What is left out is counted
//! per address, and the thread that writes tells the count.
//!
//! The table has [`MOST_ADDRESSES`] buckets. A bucket that is full again and has nothing left to tell is as good as none,
//! so it makes room. While there is no room, further addresses share one bucket, and a line tells their count without
//! an address.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_machine::{LogLimit, Source, Time};

/// Lines about one address per second.
pub const LINES_PER_SECOND: u32 = 50;
/// Lines about one address that may come at once.
pub const BURST: u32 = 500;
/// Addresses that have a bucket of their own.
pub const MOST_ADDRESSES: usize = 1024;

/// How many times the lines of one address all of them may have.
pub const ALL: u32 = 10;

/// The time in which a bucket gains one line.
const PAUSE: Duration = Duration::from_micros(1_000_000 / LINES_PER_SECOND as u64);
/// The same of the bucket of all addresses.
const PAUSE_OF_ALL: Duration = Duration::from_micros(1_000_000 / (ALL * LINES_PER_SECOND) as u64);
/// The time in which an empty bucket fills up.
const FILLS_IN: Duration = Duration::from_micros(1_000_000 * BURST as u64 / LINES_PER_SECOND as u64);
/// The interval after which the count of an address is told again.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(super) struct Denials {
    /// Lines that were left out and not told yet, of all addresses. Changed under the lock.
    left_out: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    addresses: HashMap<Source, Bucket>,
    /// The bucket of the addresses that have none.
    others: Bucket,
    /// When the bucket of all addresses is full, if no further line is taken from it.
    all_full_at: Time,
    /// When the table was last searched for buckets that make room.
    swept: Option<Time>,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// When it is full, if no further line is taken from it.
    full_at: Time,
    /// Lines that were left out and not told yet.
    left_out: u64,
    /// When they were last told.
    told_at: Option<Time>,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// It is written.
    Line,
    /// It is counted, and others wait to be told.
    Counted,
    /// It is counted, and the first that waits to be told.
    FirstCounted,
}

/// Lines that were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Of this address; `None` for those that share a bucket.
    pub source: Option<Source>,
    /// Their number, never 0.
    pub lines: u64,
}

/// When a bucket that gains a line in each `pause` is full again, if these lines are taken from it; `None` if it has not so
/// many.
fn take(full_at: Time, lines: u32, pause: Duration, now: Time) -> Option<Time> {
    Some(full_at.max(now) + pause.saturating_mul(lines)).filter(|full_at| full_at.since(now) <= FILLS_IN)
}

impl Bucket {
    fn is_due(&self, now: Time) -> bool {
        self.left_out > 0 && self.told_at.is_none_or(|told| now.since(told) >= TOLD_EVERY)
    }

    /// Whether a new bucket would do as well.
    fn is_new(&self, now: Time) -> bool {
        self.left_out == 0 && self.full_at <= now
    }
}

impl Table {
    /// The bucket of an address, which is a new one if there is room.
    fn bucket(&mut self, source: Source, now: Time) -> &mut Bucket {
        if !self.addresses.contains_key(&source) && self.addresses.len() >= MOST_ADDRESSES {
            // Not for each line: the search looks at the whole table.
            if self.swept.is_none_or(|swept| now.since(swept) >= PAUSE) {
                self.swept = Some(now);
                self.addresses.retain(|_, bucket| !bucket.is_new(now));
            }
            if self.addresses.len() >= MOST_ADDRESSES {
                return &mut self.others;
            }
        }
        self.addresses.entry(source).or_default()
    }

    fn buckets(&mut self) -> impl Iterator<Item = (Option<Source>, &mut Bucket)> {
        let own = self.addresses.iter_mut().map(|(source, bucket)| (Some(*source), bucket));
        own.chain([(None, &mut self.others)])
    }
}

impl Denials {
    /// An event about this address that counts as so many lines: whether it may be written now. Otherwise it is counted.
    pub fn take(&self, source: Source, lines: u32, now: Time) -> Take {
        static FLOODED: LogLimit = LogLimit::new();
        let of_all = {
            let mut table = self.table();
            let of_all = take(table.all_full_at, lines, PAUSE_OF_ALL, now);
            let bucket = table.bucket(source, now);
            let own = take(bucket.full_at, lines, PAUSE, now);
            if let (Some(own), Some(of_all)) = (own, of_all) {
                bucket.full_at = own;
                table.all_full_at = of_all;
                return Take::Line;
            }
            bucket.left_out = bucket.left_out.saturating_add(1);
            self.left_out.fetch_add(1, Ordering::Relaxed);
            if bucket.left_out > 1 {
                return Take::Counted;
            }
            of_all
        };
        if let Some(more) = FLOODED.pass(now) {
            let (most, of) = match of_all {
                Some(_) => (LINES_PER_SECOND, format!("from {source} ")),
                None => (LINES_PER_SECOND.saturating_mul(ALL), String::new()),
            };
            tracing::warn!(
                "audit log: more than {most} requests a second {of}are refused, so some of them are only counted; a \
                 long name counts as several{more}"
            );
        }
        Take::FirstCounted
    }

    /// Lines that were left out and not told yet.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Whether something was left out and not told yet.
    pub fn has_left_out(&self) -> bool {
        self.left_out() > 0
    }

    /// What is to be told now; with `all` also what was told a short time ago.
    pub fn due(&self, now: Time, all: bool) -> Vec<LeftOut> {
        if !self.has_left_out() {
            return Vec::new();
        }
        let mut table = self.table();
        let due = table.buckets().filter(|(_, bucket)| bucket.is_due(now) || all && bucket.left_out > 0);
        due.map(|(source, bucket)| LeftOut { source, lines: bucket.left_out }).collect()
    }

    /// This was told. Meanwhile there may be more.
    pub fn told(&self, told: &[LeftOut], now: Time) {
        if told.is_empty() {
            return;
        }
        let mut table = self.table();
        for LeftOut { source, lines } in told {
            let bucket = match source {
                Some(source) => table.addresses.get_mut(source),
                None => Some(&mut table.others),
            };
            // A bucket with something to tell makes no room.
            let Some(bucket) = bucket else { continue };
            bucket.left_out = bucket.left_out.saturating_sub(*lines);
            bucket.told_at = Some(now);
            self.left_out.fetch_sub(*lines, Ordering::Relaxed);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No panic can come half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_secs(100) + Duration::from_millis(ms)
    }

    fn source(number: u32) -> Source {
        Source::V4(Ipv4Addr::from_bits(number))
    }

    fn taken(denials: &Denials, source: Source, asked: u32, now: Time) -> u32 {
        (0..asked).filter(|_| denials.take(source, 1, now) == Take::Line).count() as u32
    }

    #[test]
    fn an_address_has_a_burst_and_then_a_rate_and_the_rest_is_counted() {
        let denials = Denials::default();
        assert_eq!(taken(&denials, source(1), 10_000, at(0)), BURST);
        assert_eq!(taken(&denials, source(2), 3, at(0)), 3, "another address");
        assert_eq!(denials.due(at(0), false), [LeftOut { source: Some(source(1)), lines: 9500 }]);
        // One second of a flood.
        let more: u32 = (1..=1000).map(|ms| taken(&denials, source(1), 10, at(ms))).sum();
        assert_eq!(more, LINES_PER_SECOND);
        // An hour later the bucket has not grown beyond its size.
        assert_eq!(taken(&denials, source(1), 10_000, at(3_600_000)), BURST);
    }

    #[test]
    fn a_long_line_counts_as_several() {
        let denials = Denials::default();
        let long = |asked: u32, now| {
            (0..asked).filter(|_| denials.take(source(1), 10, now) == Take::Line).count() as u32
        };
        assert_eq!(long(100, at(0)), BURST / 10);
        assert_eq!((1..=1000).map(|ms| long(1, at(ms))).sum::<u32>(), LINES_PER_SECOND / 10);
        // It is an event that is missing, not its lines.
        assert_eq!(denials.due(at(0), false), [LeftOut { source: Some(source(1)), lines: 50 + 995 }]);
        assert_eq!(taken(&denials, source(1), 1, at(1020)), 1, "a short one fits in");
    }

    #[test]
    fn many_addresses_have_a_limit_together_and_their_lines_are_counted_by_address() {
        let denials = Denials::default();
        let flood = |asked: u32, now| {
            (0..MOST_ADDRESSES as u32).map(|number| taken(&denials, source(number), asked, now)).sum::<u32>()
        };
        assert_eq!(flood(100, at(0)), ALL * BURST);
        assert_eq!((1..=1000).map(|ms| flood(1, at(ms))).sum::<u32>(), ALL * LINES_PER_SECOND);
        let left_out = denials.due(at(1000), false);
        assert!(left_out.contains(&LeftOut { source: Some(source(1023)), lines: 1100 }), "{left_out:?}");
        // What the bucket of all refuses is not taken from that of the address.
        assert_eq!(taken(&denials, source(1023), 600, at(3_600_000)), BURST);
        assert_eq!(taken(&denials, source(5000), 600, at(3_600_000)), BURST, "a further address");
    }

    #[test]
    fn what_was_left_out_is_told_once_and_not_all_the_time() {
        let denials = Denials::default();
        taken(&denials, source(1), BURST, at(0));
        let seven: Vec<Take> = (0..7).map(|_| denials.take(source(1), 1, at(0))).collect();
        assert_eq!((seven[0], &seven[1..]), (Take::FirstCounted, &[Take::Counted; 6][..]));
        let first = denials.due(at(0), false);
        assert_eq!(first, [LeftOut { source: Some(source(1)), lines: 7 }]);
        // More comes while the line is written.
        taken(&denials, source(1), 2, at(0));
        denials.told(&first, at(0));
        assert!(denials.has_left_out() && denials.due(at(999), false).is_empty());
        let rest = [LeftOut { source: Some(source(1)), lines: 2 }];
        assert_eq!(
            (denials.due(at(999), true), denials.due(at(1000), false)),
            (rest.to_vec(), rest.to_vec())
        );
        denials.told(&rest, at(1000));
        assert!(!denials.has_left_out() && denials.due(at(5000), true).is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_its_buckets_make_room_once_they_are_full_and_told() {
        let denials = Denials::default();
        let most = MOST_ADDRESSES as u32;
        (0..most).for_each(|number| assert_eq!(denials.take(source(number), 1, at(0)), Take::Line));
        assert_eq!(taken(&denials, source(0), BURST, at(0)), BURST - 1);
        // The others share one bucket, so ever new addresses are no way round the limit.
        let others: u32 = (most..most + 10_000).map(|number| taken(&denials, source(number), 1, at(1))).sum();
        assert_eq!((others, denials.table().addresses.len()), (BURST, MOST_ADDRESSES));
        let left_out = denials.due(at(1), false);
        assert!(left_out.contains(&LeftOut { source: Some(source(0)), lines: 1 }), "{left_out:?}");
        assert!(left_out.contains(&LeftOut { source: None, lines: 9500 }), "{left_out:?}");
        // All but the one with something to tell are full again.
        assert_eq!(denials.take(source(most), 1, at(40)), Take::Line);
        assert_eq!(denials.table().addresses.len(), 2);
        denials.told(&left_out, at(40));
        assert!(!denials.has_left_out());
    }
}
