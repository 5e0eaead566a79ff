//! How often writes are woken: each a few times, however many there are at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_store::block::BlockOp;

use super::stories::{pair, start, tell};
use super::world::{Start, World};
use crate::source::{Config, First, OnFull};
use crate::status::Mode;

/// Writes at once.
const WRITES: u64 = 64;

/// How often one write is polled at most, on average: for the first time, when it has its place, when its record is
/// applied, and when that is acknowledged.
const MOST_POLLS: u64 = 4;

/// Submits writes at once, `stride` bytes apart, and counts how often they are polled until all are answered.
async fn polls(world: &World, stride: u64) -> u64 {
    let block = world.source(0).block(0);
    let (polls, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for n in 0..WRITES {
        let (block, polls, answered) = (block.clone(), polls.clone(), answered.clone());
        rt::spawn(async move {
            let data = vec![Bytes::from(vec![n as u8; 4096])];
            let mut write = block.submit(BlockOp::Write { offset: n * stride, data, durable: false });
            let written = poll_fn(|cx| {
                polls.set(polls.get() + 1);
                write.as_mut().poll(cx)
            });
            written.await.expect("it is written");
            answered.set(answered.get() + 1);
        })
        .detach();
    }
    world.until("all are answered", || answered.get() == WRITES).await;
    polls.get()
}

#[test]
fn n_writes_at_once_are_woken_n_times() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let polls = polls(&world, 4096).await;
        assert!(polls <= MOST_POLLS * WRITES, "{WRITES} writes were polled {polls} times");
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn writes_that_overlap_or_find_no_room_are_woken_in_turn() {
    tell(async {
        let mut start = start(Mode::Synchronous);
        // Two of them.
        start.config.memory_bytes = 2 * 4096;
        let world = pair(start, First::Copy).await;
        let apart = polls(&world, 4096).await;
        let over_each_other = polls(&world, 512).await;
        for polls in [apart, over_each_other] {
            assert!(polls <= MOST_POLLS * WRITES, "{WRITES} writes were polled {polls} times");
        }
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn a_write_that_nobody_waits_for_any_more_keeps_no_other_back() {
    tell(async {
        let mut start = start(Mode::Synchronous);
        start.config.memory_bytes = 4096;
        let world = pair(start, First::Copy).await;
        let block = world.source(0).block(0);
        for round in 0..8 {
            let op = |n: u64| BlockOp::Write {
                offset: n * 4096,
                data: vec![Bytes::from(vec![n as u8; 4096])],
                durable: false,
            };
            let mut writes: Vec<_> = (0..4).map(|n| block.submit(op(n))).collect();
            for write in &mut writes {
                assert!(rt::timeout(Duration::ZERO, write.as_mut()).await.is_err(), "a disk takes longer");
            }
            // The first has its place, the second is the next to get one.
            let last = writes.pop().expect("there are four");
            rt::sleep(Duration::from_micros(50 * round)).await;
            drop(writes);
            last.await.expect("it is written");
        }
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn writes_that_a_removed_destination_has_kept_waiting_go_on_at_once() {
    tell(async {
        let config = Config { on_full: OnFull::Slow, ..start(Mode::Asynchronous).config };
        let mut start = Start { config, ..start(Mode::Asynchronous) };
        // No answer of the destination comes within this story.
        start.slow_cable = Duration::from_millis(100);
        start.log_bytes = vec![64 * 1024, 512 * 1024];
        let world = pair(start, First::Copy).await;
        let source = world.source(0);
        let writing = async {
            polls(&world, 4096).await;
            rt::now()
        };
        let removing = async {
            rt::sleep(Duration::from_millis(20)).await;
            let used = source.status().log_used;
            assert!(used > 48 * 1024, "{used} bytes of the log are used: nobody waits for room");
            source.remove_peer(0).await.expect("it is removed");
            rt::now()
        };
        let (written, removed) = futures_util::future::join(writing, removing).await;
        let after = written.since(removed);
        assert!(
            written > removed && after < Duration::from_millis(20),
            "written {after:?} after the removal"
        );
        world.stop.set(true);
    });
}
