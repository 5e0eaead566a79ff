//! How often writes and appends are woken: each a few times, however many there are at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use weft_machine::rt;
use weft_store::block::BlockOp;
use weft_wire::repl::control::{Hello, Refusal, Request, Response, Welcome};

use super::locks;
use super::stories::{pair, start, tell};
use super::world::{PARTNERSHIP, Start, World};
use crate::destination::{Destination, MAX_WAITING};
use crate::record::{Header, Kind, Record, sum_of};
use crate::source::{Config, First, OnFull};
use crate::status::{Mode, Phase};

/// Writes at once.
const WRITES: u64 = 64;

/// How often one write is polled at most, on average: for the first time, when it has its place, when its record is
/// applied, and when that is acknowledged.
const MOST_POLLS: u64 = 4;

/// How often the state in memory of either side, or the list of those who wait for a change, is locked for one write, on
/// average.
const MOST_LOCKS: u64 = 13;

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
        let before = locks();
        let polls = polls(&world, 4096).await;
        let locked = locks() - before;
        assert!(polls <= MOST_POLLS * WRITES, "{WRITES} writes were polled {polls} times");
        assert!(locked <= MOST_LOCKS * WRITES, "for {WRITES} writes something was locked {locked} times");
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

/// How often an append is polled at most, on average: for the first time, when it is its turn, and when it is durable.
const MOST_APPEND_POLLS: u64 = 3;

/// How often the state in memory of the copy, or the list of those who wait for a change, is locked for one append, on
/// average.
const MOST_APPEND_LOCKS: u64 = 9;

/// A copy that another connection of its source has claimed, and that session.
async fn claimed(world: &World) -> (Arc<Destination>, u64) {
    world.cut();
    let copy = world.destination(1);
    let status = copy.status();
    let hello = Hello {
        partnership: PARTNERSHIP,
        first: 1,
        last: status.last,
        synchronous: true,
        adopt: false,
        sizes: status.sizes,
        eras: copy.eras(),
    };
    let welcome = copy.control(Request::Hello(hello)).await;
    let Response::Welcome(Welcome { session, .. }) = welcome else { panic!("{welcome:?}") };
    (copy, session)
}

/// A record of 4 KiB.
fn record(sequence: u64) -> Record {
    let payload = vec![Bytes::from(vec![sequence as u8; 4096])];
    let header = Header {
        log: 0,
        life: 0,
        epoch: 1,
        sequence,
        member: 0,
        offset: sequence % 64 * 4096,
        unix_ms: 0,
        settled: 0,
        claimed: 0,
        kind: Kind::Write { len: 4096, sum: sum_of(&payload) },
    };
    Record { header, payload }
}

/// Appends one record each in this order, all at once, and counts how often the appends are polled until all are
/// answered.
async fn append_polls(copy: &Arc<Destination>, session: u64, order: impl Iterator<Item = u64>) -> u64 {
    let polls = Cell::new(0);
    let appends = order.map(|sequence| {
        let (copy, polls) = (copy.clone(), &polls);
        async move {
            let mut append = Box::pin(copy.append(session, vec![record(sequence)]));
            let appended = poll_fn(|cx| {
                polls.set(polls.get() + 1);
                append.as_mut().poll(cx)
            });
            appended.await.expect("it is appended");
        }
    });
    join_all(appends).await;
    polls.get()
}

#[test]
fn n_appends_at_once_are_woken_n_times_in_whatever_order_they_arrive() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (copy, session) = claimed(&world).await;
        let appends = MAX_WAITING as u64;
        for backwards in [false, true] {
            let last = copy.status().last;
            let sequence = |n| if backwards { last + appends - n } else { last + 1 + n };
            let before = locks();
            let polls = append_polls(&copy, session, (0..appends).map(sequence)).await;
            let locked = locks() - before;
            assert!(polls <= MOST_APPEND_POLLS * appends, "{appends} appends were polled {polls} times");
            assert!(
                locked <= MOST_APPEND_LOCKS * appends,
                "for {appends} appends something was locked {locked} times"
            );
            world.until("all is applied", || copy.status().applied == last + appends).await;
        }
    });
}

#[test]
fn appends_that_find_no_room_are_woken_in_turn() {
    tell(async {
        let mut start = start(Mode::Synchronous);
        start.log_bytes = vec![512 * 1024, 64 * 1024];
        let world = pair(start, First::Copy).await;
        let (copy, session) = claimed(&world).await;
        let (appends, last) = (MAX_WAITING as u64, copy.status().last);
        let polls = append_polls(&copy, session, (1..=appends).map(|n| last + n)).await;
        // It may be an append's turn before there is room for it.
        assert!(polls <= (MOST_APPEND_POLLS + 1) * appends, "{appends} appends were polled {polls} times");
        world.until("all is applied", || copy.status().applied == last + appends).await;
    });
}

#[test]
fn appends_that_wait_for_room_are_refused_at_once_when_the_disk_becomes_full() {
    tell(async {
        let mut start = start(Mode::Synchronous);
        start.log_bytes = vec![512 * 1024, 64 * 1024];
        let world = pair(start, First::Copy).await;
        let (copy, session) = claimed(&world).await;
        let last = copy.status().last;
        let disk = &world.nodes[1].members[0];
        disk.fill(true);
        // More than its log holds: the rest waits until records leave the log, which takes a volume with space.
        let appends = (1..=MAX_WAITING as u64).map(|n| copy.append(session, vec![record(last + n)]));
        let answers = rt::timeout(Duration::from_millis(100), join_all(appends)).await;
        let answers = answers.expect("all are answered, though no other event comes");
        let (logged, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert!(!logged.is_empty() && !refused.is_empty(), "{} and {}", logged.len(), refused.len());
        assert!(refused.iter().all(|answer| *answer == Err(Refusal::NoSpace)), "{refused:?}");
        disk.fill(false);
        let has = last + logged.len() as u64;
        world.until("all is applied", || copy.status().applied == has).await;
        assert!(!copy.status().full);
    });
}

#[test]
fn a_source_whose_append_waits_counts_as_silent_when_it_is() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (copy, session) = claimed(&world).await;
        let last = copy.status().last;
        // The record before it never comes.
        let mut append = pin!(copy.append(session, vec![record(last + 2)]));
        assert!(rt::timeout(Duration::ZERO, append.as_mut()).await.is_err());
        copy.connection_ended(session);
        for _ in 0..12 {
            // Every look at the session polls it.
            assert!(rt::timeout(Duration::from_secs(1), append.as_mut()).await.is_err());
        }
        assert!(copy.is_source_silent(), "it was heard from {:?} ago", rt::now().since(copy.heard_at()));
        let source = copy.status().peers.remove(0);
        assert_eq!(source.phase, Phase::WaitingForSource);
        assert!(source.lost_ms > 0, "the end of its connection is forgotten");
        // Its next request is heard.
        let append = copy.append(session, vec![record(last + 1)]);
        append.await.expect("it is appended");
        assert!(!copy.is_source_silent());
    });
}

#[test]
fn an_append_that_nobody_waits_for_any_more_is_forgotten_and_one_of_an_earlier_session_is_refused() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (copy, session) = claimed(&world).await;
        let last = copy.status().last;
        {
            let behind_a_gap = (2..6).map(|n| copy.append(session, vec![record(last + n)]));
            let dropped = rt::timeout(Duration::from_millis(1), join_all(behind_a_gap)).await;
            assert!(dropped.is_err(), "the record before them is missing");
        }
        assert_eq!(
            append_polls(&copy, session, (last + 1)..=(last + 1)).await,
            2,
            "there is nobody else to wait for"
        );
        let waits = copy.append(session, vec![record(last + 3)]);
        let claims = async {
            rt::sleep(Duration::from_millis(1)).await;
            claimed(&world).await
        };
        let (refused, (_, session)) = futures_util::future::join(waits, claims).await;
        assert_eq!(refused, Err(Refusal::Session));
        append_polls(&copy, session, [last + 3, last + 2].into_iter()).await;
        assert_eq!(copy.status().last, last + 3);
    });
}
