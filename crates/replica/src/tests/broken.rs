//! An event breaks an invariant: everyone who waits learns it at once, and nothing hangs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Pool, rt};
use weft_store::Error;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};
use weft_store::volume::plain::Plain;

use crate::destination::{self, Destination};
use crate::group::Group;
use crate::journal::{self, Format, MIN_LOG_BYTES, Names, Side, Wall};
use crate::source::{self, Source};
use crate::status::Role;

/// How soon a wait ends.
const WITHIN: Duration = Duration::from_secs(1);
/// How long a test takes at most on a busy host.
const HANGS_AFTER: Duration = Duration::from_secs(60);

const SIZE: u64 = 1 << 20;

/// A volume whose writes never end.
#[derive(Debug)]
struct Stuck(Plain);

impl Block for Stuck {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match op {
            BlockOp::Write { .. } => Box::pin(std::future::pending()),
            other => self.0.submit(other),
        }
    }
}

async fn side(role: Role) -> Side {
    let format = Format { partnership: [1; 16], role, tag: 5, sizes: vec![SIZE], log_bytes: MIN_LOG_BYTES };
    let bytes = journal::bytes(&format).expect("a journal");
    let block: Arc<dyn Block> = Arc::new(Plain::in_memory(bytes).expect("memory"));
    journal::format(&block, &format).await.expect("it is laid out");
    Side {
        journal: block,
        members: vec![Arc::new(Stuck(Plain::in_memory(SIZE).expect("memory")))],
        pool: Pool::new(1 << 20),
        log_memory: Default::default(),
        wall: Wall::new(1),
        names: Names::new("db", []),
        draw: 1,
    }
}

/// Runs a story on a loop of its own. Returns the words of the panic that ends it.
fn panic_of<F: Future<Output = ()>>(story: impl FnOnce() -> F + Send + 'static) -> String {
    let (tell, told) = mpsc::channel();
    // A thread, because a lock that is never released would block the test as well.
    std::thread::spawn(move || {
        let run = AssertUnwindSafe(|| rt::block_on(story()).expect("the loop starts"));
        let panic = catch_unwind(run).expect_err("nothing has panicked");
        tell.send(*panic.downcast::<String>().expect("words")).expect("somebody listens");
    });
    told.recv_timeout(HANGS_AFTER).expect("it hangs")
}

/// Waits while a task breaks an invariant. A panic of a detached task is not passed on to anybody.
async fn wait_for<T>(wait: impl Future<Output = T>, breaks: impl FnOnce() + 'static) {
    let mut wait = pin!(wait);
    let begun = rt::timeout(Duration::ZERO, wait.as_mut()).await;
    assert!(begun.is_err(), "it does not wait");
    rt::spawn(async move { breaks() }).detach();
    let waited = rt::timeout(WITHIN, wait).await;
    panic!("the wait {}", if waited.is_ok() { "has ended well" } else { "goes on" });
}

#[test]
fn who_waits_for_a_destination_that_is_broken_is_told_why() {
    let why = panic_of(|| async {
        let copy = Destination::open(side(Role::Destination).await, destination::Config::default());
        let copy = copy.await.expect("it opens");
        let breaks = copy.clone();
        wait_for(copy.until_claimed(0), move || breaks.break_down()).await;
    });
    assert!(why.contains("broken") && why.contains("what is not durable was applied"), "{why}");
}

#[test]
fn who_waits_for_a_source_that_is_broken_is_told_why() {
    for writes in [false, true] {
        let why = panic_of(move || async move {
            let source = Source::open(side(Role::Source).await, source::Config::default());
            let source = source.await.expect("it opens");
            let (block, breaks) = (source.block(0), source.clone());
            let data = vec![Bytes::from(vec![1; 4096])];
            let write = block.submit(BlockOp::Write { offset: 0, data, durable: false });
            match writes {
                true => wait_for(write, move || breaks.break_down()).await,
                false => wait_for(source.until_halted(), move || breaks.break_down()).await,
            }
        });
        assert!(why.contains("broken") && why.contains("payload on its way is counted wrongly"), "{why}");
    }
}

#[test]
fn who_waits_for_a_group_that_is_broken_is_told_why() {
    let why = panic_of(|| async {
        let source = Source::open(side(Role::Source).await, source::Config::default());
        let source = source.await.expect("it opens");
        let group = Arc::new(Group::new("db", Vec::new()));
        let breaks = group.clone();
        wait_for(group.until(|_| false), move || breaks.break_down(source)).await;
    });
    assert!(why.contains("broken") && why.contains("a group whose task has ended"), "{why}");
}

#[test]
fn what_is_dropped_after_an_invariant_was_broken_does_not_panic() {
    let why = panic_of(|| async {
        let source = Source::open(side(Role::Source).await, source::Config::default());
        let source = source.await.expect("it opens");
        let locked = source.lock(0, 0..4096).await;
        let broken = catch_unwind(AssertUnwindSafe(|| source.break_down()));
        broken.expect_err("an invariant was broken");
        drop(locked);
        panic!("{}", "it is dropped");
    });
    assert_eq!(why, "it is dropped");
}
