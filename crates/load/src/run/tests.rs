use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;

use super::*;
use crate::workload::{Mix, Order};

/// A target that takes 1 ms per operation and holds `len` bytes.
struct Slow {
    len: u64,
    most: Cell<u32>,
    now: Cell<u32>,
}

impl Target for Slow {
    fn read(&self, offset: u64, len: u32) -> LocalBoxFuture<'_, Result<usize, TargetError>> {
        async move {
            self.now.set(self.now.get() + 1);
            self.most.set(self.most.get().max(self.now.get()));
            rt::sleep(Duration::from_millis(1)).await;
            self.now.set(self.now.get() - 1);
            Ok(self.len.saturating_sub(offset).min(u64::from(len)) as usize)
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
        seed: 1,
    }
}

fn measure(len: u64, mix: Mix) -> (Rc<Slow>, Result<Measured, RunError>) {
    let target = Rc::new(Slow { len, most: Cell::new(0), now: Cell::new(0) });
    let outcome = rt::block_on(run(target.clone(), &workload(mix), Some(std::process::id()))).unwrap();
    (target, outcome)
}

#[test]
fn a_run_keeps_its_queue_full_and_counts_after_the_warm_up() {
    let (target, measured) = measure(1 << 20, Mix::Read);
    let measured = measured.unwrap();
    assert_eq!(target.most.get(), 3);
    assert_eq!(measured.latency.len(), measured.operations);
    assert_eq!(measured.bytes, measured.operations * 4096);
    assert!(measured.operations >= 3);
    assert!(measured.latency.min() >= 900_000, "an operation sleeps for 1 ms");
    assert!(measured.server_cpu.is_some());
}

#[test]
fn a_short_read_is_an_error_that_names_the_span() {
    let (_, outcome) = measure(4096 * 2, Mix::Read);
    assert!(matches!(outcome, Err(RunError::Short { .. })));
}

#[test]
fn a_failing_operation_ends_the_run() {
    let (_, outcome) = measure(1 << 20, Mix::Write);
    assert_eq!(outcome.unwrap_err().to_string(), "read-only");
}
