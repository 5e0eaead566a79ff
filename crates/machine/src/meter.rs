//! Counts and times the operations that a server carries out, on each core for itself.
//!
//! Each thread has a table that only it writes, by plain loads and stores of its own cache lines; [`samples`] adds the
//! tables up when somebody asks. An operation is timed from the last reading of the time-stamp counter on its thread
//! (the begin of the turn, or the end of the request before) to one further reading when it is answered. Nothing is
//! locked, and memory is allocated only for the first operation of its class on a share. Until [`enable`], all of it
//! is one load and one branch.
//!
//! The number of series is bounded: operations and classes are constants, and at most [`MAX_SHARES`] shares have
//! series of their own.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::rt::turn;

/// Buckets of a histogram: bounds of 4 microseconds and each power of two of it up to 16.8 seconds, and one without a
/// bound.
pub const BUCKETS: usize = 24;
/// The lowest bound.
const UNIT: Duration = Duration::from_micros(4);
/// Shares with series of their own; further ones are counted together.
pub const MAX_SHARES: usize = 64;
/// The most classes; there is a table per class and share.
const MAX_CLASSES: usize = 16;
/// How long [`enable`] compares the time-stamp counter with the clock.
const CALIBRATION: Duration = Duration::from_millis(2);
/// Operations whose payload may travel by RDMA have a second series for it.
const PATHS: usize = 2;

/// Units of the lowest bound per tick, times 2^32; 0 until [`enable`].
static SCALE: AtomicU64 = AtomicU64::new(0);
/// The origin of the conversion of ticks to seconds, which becomes more exact with time.
static ORIGIN: OnceLock<(u64, Instant)> = OnceLock::new();
static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());

/// A kind of connections: a protocol over a transport, with the operations of the protocol.
#[derive(Debug)]
pub struct Class {
    /// The protocol, as a label.
    pub protocol: &'static str,
    /// The transport, as a label.
    pub transport: &'static str,
    /// The names of its operations; an empty name is not counted.
    operations: &'static [&'static str],
    number: OnceLock<usize>,
}

/// What operations are counted under: a share, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subject(usize);

/// When an operation began, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Started(u64);

/// What an operation is: its class, its number there, and its subject, in one word. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What(u64);

/// The same in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The protocol.
    pub protocol: &'static str,
    /// The transport.
    pub transport: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// The share; empty: none.
    pub share: Arc<str>,
}

/// The payload that an operation moved.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    /// From the client.
    pub received_bytes: u64,
    /// To the client.
    pub sent_bytes: u64,
    /// Whether it travelled by RDMA Read or Write, not in the message.
    pub by_rdma: bool,
}

/// One operation of a class and share, over all cores.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its class.
    pub class: &'static Class,
    /// The share; empty: none, `*`: those beyond [`MAX_SHARES`].
    pub share: Arc<str>,
    /// Its name.
    pub operation: &'static str,
    /// Whether its payload travelled by RDMA.
    pub by_rdma: bool,
    /// Operations by duration; see [`bound`].
    pub buckets: [u64; BUCKETS],
    /// The sum of their durations.
    pub seconds: f64,
    /// Payload from clients.
    pub received_bytes: u64,
    /// Payload to clients.
    pub sent_bytes: u64,
}

struct Registry {
    classes: Vec<&'static Class>,
    /// Index 0 is "none", 1 "all others".
    shares: Vec<Arc<str>>,
    tables: Vec<Arc<Table>>,
    /// Shares that have no series of their own.
    refused: Vec<Arc<str>>,
}

/// The counters of one thread.
struct Table([OnceLock<Box<[Series]>>; MAX_CLASSES * (MAX_SHARES + 2)]);

#[derive(Default)]
struct Series {
    buckets: [AtomicU64; BUCKETS],
    ticks: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

thread_local! {
    static TABLE: OnceCell<Arc<Table>> = const { OnceCell::new() };
}

impl Registry {
    const fn new() -> Registry {
        Registry { classes: Vec::new(), shares: Vec::new(), tables: Vec::new(), refused: Vec::new() }
    }
}

fn registry() -> MutexGuard<'static, Registry> {
    // Every change is one push.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to count, in the whole process. Takes some milliseconds.
pub fn enable() {
    let ticks_per_unit = UNIT.as_secs_f64() / seconds_per_tick(*calibrated());
    SCALE.store(((1u64 << 32) as f64 / ticks_per_unit).max(1.0) as u64, Ordering::Relaxed);
}

/// Whether operations are counted.
#[inline]
pub(crate) fn is_on() -> bool {
    SCALE.load(Ordering::Relaxed) != 0
}

/// Compares the time-stamp counter with the clock, once.
fn calibrated() -> &'static (u64, Instant) {
    ORIGIN.get_or_init(|| {
        let origin = (turn::ticks(), Instant::now());
        while origin.1.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        origin
    })
}

/// The duration of so many ticks.
pub(crate) fn duration(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 * seconds_per_tick(*calibrated()))
}

/// The ticks of a duration.
pub(crate) fn ticks(duration: Duration) -> u64 {
    (duration.as_secs_f64() / seconds_per_tick(*calibrated())) as u64
}

fn seconds_per_tick((ticks, instant): (u64, Instant)) -> f64 {
    let passed = turn::ticks().saturating_sub(ticks).max(1);
    instant.elapsed().as_secs_f64() / passed as f64
}

/// The upper bound of a bucket in seconds, or infinity.
pub fn bound(bucket: usize) -> f64 {
    // Divided last, so that it is the number closest to the decimal one.
    if bucket < BUCKETS - 1 { ((UNIT.as_micros() as u64) << bucket) as f64 / 1e6 } else { f64::INFINITY }
}

/// The bucket of a duration.
fn bucket(ticks: u64, scale: u64) -> usize {
    // A bucket includes its bound.
    let units = (u128::from(ticks.saturating_sub(1)) * u128::from(scale)) >> 32;
    let units = u64::try_from(units).unwrap_or(u64::MAX);
    ((u64::BITS - units.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// An operation begins: the time of the last reading of the clock on this thread.
#[inline]
pub fn started() -> Started {
    Started(turn::looked())
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl Class {
    /// A class, to be kept in a static.
    pub const fn new(
        protocol: &'static str,
        transport: &'static str,
        operations: &'static [&'static str],
    ) -> Class {
        Class { protocol, transport, operations, number: OnceLock::new() }
    }

    fn number(&'static self) -> usize {
        *self.number.get_or_init(|| {
            let classes = &mut registry().classes;
            assert!(classes.len() < MAX_CLASSES, "more classes than tables");
            classes.push(self);
            classes.len() - 1
        })
    }

    /// What an operation of this class is. Its number is its index in the names.
    #[inline]
    pub fn what(&'static self, operation: usize, subject: Subject) -> What {
        // There are fewer than 2^16 of each.
        What(
            (self.number() as u64 + 1) << 32
                | (subject.0 as u64 & 0xffff) << 16
                | (operation as u64 & 0xffff),
        )
    }

    /// An operation is answered. Its number is its index in the names.
    #[inline]
    pub fn answered(&'static self, subject: Subject, operation: usize, started: Started, moved: Moved) {
        let scale = SCALE.load(Ordering::Relaxed);
        if scale != 0 {
            self.count(subject, operation, started, moved, scale);
        }
    }

    fn count(&'static self, subject: Subject, operation: usize, started: Started, moved: Moved, scale: u64) {
        let ticks = turn::look_at_end().saturating_sub(started.0);
        let at = subject.0 * MAX_CLASSES + self.number();
        // While the thread ends, its table may be gone.
        let _ = TABLE.try_with(|table| {
            let series = table.get_or_init(Table::enter).0.get(at).and_then(|block| {
                let block = block.get_or_init(|| {
                    self.operations.iter().flat_map(|_| [Series::default(), Series::default()]).collect()
                });
                block.get(operation * PATHS + usize::from(moved.by_rdma))
            });
            if let Some(series) = series {
                if let Some(bucket) = series.buckets.get(bucket(ticks, scale)) {
                    add(bucket, 1);
                }
                add(&series.ticks, ticks);
                add(&series.received_bytes, moved.received_bytes);
                add(&series.sent_bytes, moved.sent_bytes);
            }
        });
    }
}

impl What {
    /// None.
    pub const NONE: What = What(0);
    const SUBJECT: u64 = 0xffff << 16;

    /// Whether both are the same operation, whatever their subjects.
    pub(crate) fn is_like(self, other: What) -> bool {
        (self.0 ^ other.0) & !What::SUBJECT == 0
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> What {
        What(word)
    }

    /// In words; `None` if it is none.
    pub(crate) fn named(self) -> Option<Named> {
        let registry = registry();
        let class = *registry.classes.get(usize::try_from(self.0 >> 32).ok()?.checked_sub(1)?)?;
        let operation = class.operations.get((self.0 & 0xffff) as usize).copied().unwrap_or_default();
        let share = registry.shares.get((self.0 >> 16 & 0xffff) as usize).cloned();
        Some(Named {
            protocol: class.protocol,
            transport: class.transport,
            operation,
            share: share.unwrap_or_else(|| Arc::from("")),
        })
    }
}

impl Subject {
    /// Operations without a share.
    pub const NONE: Subject = Subject(0);
    const OTHERS: Subject = Subject(1);

    /// The share with this name; none until [`enable`], or until operations are recorded. The same name means the same
    /// series, also after the share was away.
    pub fn named(name: &str) -> Subject {
        if ORIGIN.get().is_none() {
            return Subject::NONE;
        }
        let registry = &mut *registry();
        if registry.shares.is_empty() {
            registry.shares.extend(["".into(), "*".into()]);
        }
        if let Some(at) = registry.shares.iter().position(|known| **known == *name) {
            return Subject(at);
        }
        if registry.shares.len() == MAX_SHARES + 2 {
            if !registry.refused.iter().any(|known| **known == *name) {
                registry.refused.push(name.into());
                tracing::warn!(
                    "limit reached: {MAX_SHARES} shares have metrics of their own; {name} is counted as share=\"*\""
                );
            }
            return Subject::OTHERS;
        }
        registry.shares.push(name.into());
        Subject(registry.shares.len() - 1)
    }
}

impl Table {
    /// The table of a new thread. It stays when the thread ends, because counters never decrease.
    fn enter() -> Arc<Table> {
        let table = Arc::new(Table([const { OnceLock::new() }; _]));
        registry().tables.push(table.clone());
        table
    }
}

/// Shares that are counted together because there are more than [`MAX_SHARES`].
pub fn refused_shares() -> usize {
    registry().refused.len()
}

/// Everything counted so far, in the order of share, class and operation; operations that never happened are left out.
pub fn samples() -> Vec<Sample> {
    let Some(origin) = ORIGIN.get() else { return Vec::new() };
    let second = seconds_per_tick(*origin);
    let registry = registry();
    let none = || Arc::from("");
    let mut samples = Vec::new();
    for at in 0..registry.shares.len().max(1) {
        let share = registry.shares.get(at).cloned().unwrap_or_else(none);
        for (number, class) in registry.classes.iter().enumerate() {
            let blocks =
                registry.tables.iter().filter_map(|table| table.0.get(at * MAX_CLASSES + number)?.get());
            let blocks: Vec<_> = blocks.collect();
            for (i, operation) in class.operations.iter().enumerate() {
                for by_rdma in [false, true] {
                    let series =
                        blocks.iter().filter_map(|block| block.get(i * PATHS + usize::from(by_rdma)));
                    samples.extend(sum(series, second).map(
                        |(buckets, seconds, received_bytes, sent_bytes)| {
                            let share = share.clone();
                            Sample {
                                class,
                                share,
                                operation,
                                by_rdma,
                                buckets,
                                seconds,
                                received_bytes,
                                sent_bytes,
                            }
                        },
                    ));
                }
            }
        }
    }
    samples
}

type Sum = ([u64; BUCKETS], f64, u64, u64);

/// The sum over cores; `None` if nothing was counted.
fn sum<'a>(all: impl Iterator<Item = &'a Series>, second: f64) -> Option<Sum> {
    let mut sum = ([0; BUCKETS], 0.0, 0, 0);
    for series in all {
        for (to, from) in sum.0.iter_mut().zip(&series.buckets) {
            *to += from.load(Ordering::Relaxed);
        }
        sum.1 += series.ticks.load(Ordering::Relaxed) as f64 * second;
        sum.2 += series.received_bytes.load(Ordering::Relaxed);
        sum.3 += series.sent_bytes.load(Ordering::Relaxed);
    }
    (sum.0 != [0; BUCKETS]).then_some(sum)
}

/// A counter of rare events, on any thread.
#[derive(Debug, Default)]
pub struct Events(AtomicU64);

impl Events {
    /// None so far.
    pub const fn new() -> Events {
        Events(AtomicU64::new(0))
    }

    /// One more.
    pub fn count(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many.
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A sum that goes up and down, on any thread. It is changed rarely.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// Nothing so far.
    pub const fn new() -> Level {
        Level(AtomicU64::new(0))
    }

    /// So much more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// So much of what was added is gone.
    pub fn remove(&self, gone: u64) {
        self.0.fetch_sub(gone, Ordering::Relaxed);
    }

    /// What remains.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TCP: Class = Class::new("test", "tcp", &["read", "write"]);

    #[test]
    fn a_bucket_includes_its_bound_and_the_last_one_has_none() {
        // A tick is a nanosecond.
        let scale = (1u64 << 32) / 4000;
        let at = |micros: u64| bucket(micros * 1000, scale);
        assert_eq!([at(0), at(1), at(4), at(5), at(8), at(9), at(16)], [0, 0, 0, 1, 1, 2, 2]);
        assert_eq!([at(16_777_216), at(17_000_000)], [BUCKETS - 2, BUCKETS - 1]);
        assert_eq!(bucket(u64::MAX, u64::MAX), BUCKETS - 1);
        assert_eq!((bound(0), bound(1), bound(BUCKETS - 1)), (4e-6, 8e-6, f64::INFINITY));
        assert!((bound(BUCKETS - 2) - 16.777_216).abs() < 1e-9);
    }

    /// One test, because the registry is the process's.
    #[test]
    fn threads_count_for_themselves_and_are_added_up_and_too_many_shares_share_a_series() {
        enable();
        let data = Subject::named("meter-data");
        let moved = Moved { sent_bytes: 10, ..Moved::default() };
        let count = move || {
            turn::look();
            let started = started();
            std::thread::sleep(Duration::from_millis(3));
            TCP.answered(data, 0, started, moved);
        };
        std::thread::spawn(count).join().unwrap();
        count();
        TCP.answered(
            Subject::NONE,
            1,
            started(),
            Moved { received_bytes: 7, by_rdma: true, ..Moved::default() },
        );
        // An operation without a name is left out, and does no harm.
        TCP.answered(data, 9, started(), moved);
        let all: Vec<Sample> =
            samples().into_iter().filter(|sample| sample.class.protocol == "test").collect();
        let [write, read] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&*read.share, read.operation, read.by_rdma), ("meter-data", "read", false));
        assert_eq!((read.buckets.iter().sum::<u64>(), read.sent_bytes, read.received_bytes), (2, 20, 0));
        assert!((0.006..5.0).contains(&read.seconds), "{}", read.seconds);
        assert!(read.buckets[..9].iter().all(|n| *n == 0), "2 ms and less: {:?}", read.buckets);
        assert_eq!(
            (&*write.share, write.operation, write.by_rdma, write.received_bytes),
            ("", "write", true, 7)
        );
        let a = Subject::named("meter-a");
        assert_eq!(Subject::named("meter-a"), a);
        let all: Vec<Subject> = (0..MAX_SHARES + 2).map(|n| Subject::named(&format!("meter-{n}"))).collect();
        assert_eq!(all.last(), Some(&Subject::OTHERS));
        assert!(refused_shares() >= 2);
        let refused = refused_shares();
        assert_eq!(Subject::named(&format!("meter-{}", MAX_SHARES + 1)), Subject::OTHERS);
        assert_eq!(refused_shares(), refused, "told once");
    }
}
