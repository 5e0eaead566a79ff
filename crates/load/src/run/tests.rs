use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::*;
use crate::workload::Order;

/// A target that takes 1 ms per operation and holds `len` bytes of the pattern of file 0, except for one byte.
struct Slow {
    len: u64,
    most: Cell<u32>,
    now: Cell<u32>,
    damaged: Option<u64>,
}

impl Target for Slow {
    fn read(&self, offset: u64, len: u32) -> LocalBoxFuture<'_, Result<Bytes, TargetError>> {
        async move {
            self.now.set(self.now.get() + 1);
            self.most.set(self.most.get().max(self.now.get()));
            rt::sleep(Duration::from_millis(1)).await;
            self.now.set(self.now.get() - 1);
            let mut bytes = pattern::block(0, offset, len as usize);
            bytes.truncate(self.len.saturating_sub(offset) as usize);
            if let Some(at) = self.damaged.and_then(|at| at.checked_sub(offset))
                && let Some(byte) = bytes.get_mut(at as usize)
            {
                *byte ^= 1;
            }
            Ok(bytes.into())
        }
        .boxed_local()
    }
    fn write(&self, _: u64, _: Bytes) -> LocalBoxFuture<'_, Result<(), TargetError>> {
        async { Err("read-only".into()) }.boxed_local()
    }
}

fn workload(mix: Mix) -> Workload {
    Workload {
        mix,
        size: 4096,
        queue_depth: 3,
        order: Order::Sequential,
        span: 1 << 20,
        warm_up: Duration::from_millis(3),
        duration: Duration::from_millis(20),
        ..Workload::default()
    }
}

/// A workload that only a failure ends.
fn endless(mix: Mix) -> Workload {
    Workload { duration: Duration::from_secs(24 * 3600), ..workload(mix) }
}

fn measure_as(len: u64, damaged: Option<u64>, workload: Workload) -> (Rc<Slow>, Result<Measured, RunError>) {
    let target = Rc::new(Slow { len, most: Cell::new(0), now: Cell::new(0), damaged });
    let outcome = rt::block_on(run(target.clone(), &workload, Some(std::process::id()))).unwrap();
    (target, outcome)
}

fn measure(len: u64, mix: Mix) -> (Rc<Slow>, Result<Measured, RunError>) {
    measure_as(len, None, workload(mix))
}

#[test]
fn a_run_keeps_its_queue_full_and_counts_after_the_warm_up() {
    let (target, measured) = measure(1 << 20, Mix::Read);
    let measured = measured.unwrap();
    let counted = &measured.counted;
    assert_eq!(target.most.get(), 3);
    assert_eq!(counted.latency.count(), counted.operations);
    assert_eq!(counted.bytes, counted.operations * 4096);
    assert!(counted.operations >= 3);
    assert!(counted.latency.min() >= 900_000, "an operation sleeps for 1 ms");
    assert!(counted.reads.is_none(), "no part is a mix's");
    assert!(measured.server_cpu.is_some());
}

#[test]
fn a_short_read_is_an_error_that_names_the_span() {
    let (_, outcome) = measure_as(4096 * 2, None, endless(Mix::Read));
    assert!(matches!(outcome, Err(RunError::Short { .. })));
}

#[test]
fn a_failing_operation_ends_the_run() {
    let (_, outcome) = measure_as(1 << 20, None, endless(Mix::Write));
    assert_eq!(outcome.unwrap_err().to_string(), "read-only");
}

#[test]
fn a_wrong_byte_is_found_when_reads_are_verified() {
    let verified = Workload { verify: true, ..workload(Mix::Read) };
    assert!(measure_as(1 << 20, None, verified).1.is_ok());
    let (_, outcome) = measure_as(1 << 20, Some(5000), Workload { verify: true, ..endless(Mix::Read) });
    assert!(matches!(outcome, Err(RunError::Corrupt { file: 0, offset: 5000 })), "{outcome:?}");
}

#[test]
fn a_limited_rate_is_kept_and_what_waits_behind_a_slow_operation_counts_from_when_it_was_due() {
    let limited = |rate| Workload {
        rate: Some(rate),
        queue_depth: 1,
        warm_up: Duration::ZERO,
        duration: Duration::from_millis(100),
        ..workload(Mix::Read)
    };
    // One at a time takes slightly more than 1 ms: 100 a second are possible, 10,000 are not.
    let slow = measure_as(1 << 20, None, limited(100.0)).1.unwrap().counted;
    assert!((1..=11).contains(&slow.operations), "{}", slow.operations);
    let fast = measure_as(1 << 20, None, limited(10_000.0)).1.unwrap();
    let waited = fast.counted.latency.max();
    assert!(waited > 20_000_000, "the last one was due long before it was started: {waited}");
    assert!(fast.counted.late > Duration::from_millis(20), "and the loader says that it is late");
}

#[test]
fn a_run_is_steered_from_outside() {
    let target = Rc::new(Slow { len: 1 << 20, most: Cell::new(0), now: Cell::new(0), damaged: None });
    let watch = Arc::new(Watch::default());
    let counted = rt::block_on(async {
        let (theirs, files) = (watch.clone(), Files::one(target));
        let driving = rt::spawn(async move { drive(&files, &workload(Mix::Percent(50)), &theirs).await });
        while watch.operations() < 3 && !driving.is_finished() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        watch.stop();
        driving.await
    });
    // Half of them are writes, which this target refuses.
    assert_eq!(counted.unwrap().unwrap_err().to_string(), "read-only");
    let mut both = Counted::new(Mix::Percent(50));
    let mut more = Counted::new(Mix::Percent(50));
    more.operations = 2;
    more.reads.as_mut().unwrap().record(5);
    both.merge(&more);
    assert_eq!((both.operations, both.reads.unwrap().count()), (2, 1));
}

/// A second at a million operations per second, of any length: the size of the histograms does not change.
#[test]
fn a_million_samples_a_second_do_not_grow_memory() {
    let mut counted = Counted::new(Mix::Percent(50));
    let warm = |counted: &mut Counted, n: u64| {
        for i in 0..n {
            let nanos = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 60);
            counted.latency.record(nanos);
            counted.reads.as_mut().unwrap().record(nanos);
        }
    };
    warm(&mut counted, 1000);
    let before = crate::memory::resident(std::process::id()).unwrap();
    warm(&mut counted, 5_000_000);
    let after = crate::memory::resident(std::process::id()).unwrap();
    assert_eq!(counted.latency.count(), 5_001_000);
    // Other tests of this process run at the same time; the samples alone would be 80 MB.
    assert!(after < before + (40 << 20), "{before} {after}");
}
