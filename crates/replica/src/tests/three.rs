//! A source and two destinations, of which one becomes the source.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join3};
use weft_machine::rt;

use super::stories::{K, start, tell, write};
use super::world::{ALIVE, Start, World};
use crate::destination::Force;
use crate::source::{First, Source};
use crate::status::{Mode, Phase, Role};

/// Three hosts: 0 is the source, 1 and 2 follow it, as `host1:copy` and `host2:copy`.
pub(super) async fn following() -> World {
    let world = World::new(Start { log_bytes: vec![512 * K; 3], ..start(Mode::Synchronous) }).await;
    let source = world.start_source(0).await;
    for n in [1, 2] {
        let peer = world.add_peer(&source, &format!("host{n}:copy"), First::Copy).await;
        world.start_destination(n).await;
        world.ship(0, peer, n);
    }
    world.until_follows(0).await;
    world
}

/// The same with something written.
async fn three() -> World {
    let world = following().await;
    write(&world.source(0).block(0), 0, 4096, 1).await;
    world
}

/// A host that has become the source is opened as one, with these others as its destinations.
pub(super) async fn opened(world: &World, n: usize, others: &[usize]) -> Arc<Source> {
    world.kill(n);
    let source = world.open_source(n).await;
    for other in others {
        let peer = world.add_peer(&source, &format!("host{other}:copy"), First::Partner).await;
        world.ship(n, peer, *other);
    }
    source
}

/// Host 2 becomes the source in place of host 0, which becomes its copy.
async fn switched(world: &World, others: &[usize]) -> Arc<Source> {
    world.source(0).switch(1, 77).await.expect("the roles are exchanged");
    world.kill(0);
    world.start_destination(0).await;
    let source = opened(world, 2, others).await;
    world.until_follows(2).await;
    source
}

/// Host 2 is the source, as host 1 hears only after its promotion.
async fn promoted_beside_a_source(world: &World) -> Arc<Source> {
    switched(world, &[0]).await;
    // Nobody has told host 1, and its operator takes the source for lost.
    world.destination(1).promote(78, ALIVE).await.expect("it is promoted");
    let second = opened(world, 1, &[0]).await;
    second.greeted().await;
    second
}

/// Host 0, which was the source before host 1 was promoted, is opened again without it, and is said to count; host 2,
/// which follows host 1, has refused it.
pub(super) async fn comes_back(world: &World) {
    let first = world.open_source(0).await;
    world.ship(0, 1, 2);
    let (phase, _) = first.until_halted().await;
    assert!(matches!(phase, Phase::Superseded | Phase::SplitBrain), "{phase:?}");
    first.until_links_ended().await;
    first.overrule(78).await.expect("it counts");
    world.kill(0);
    let first = world.open_source(0).await;
    first.remove_peer(0).await.expect("it is away");
}

#[test]
fn a_promoted_copy_hears_of_another_source_before_anything_is_answered() {
    tell(async {
        let world = three().await;
        let second = promoted_beside_a_source(&world).await;
        let halted = second.halted().map(|(phase, _)| phase);
        assert_eq!(halted, Some(Phase::SplitBrain), "its fronts would be opened");
    });
}

#[test]
fn a_source_takes_the_other_destinations_over() {
    tell(async {
        let world = three().await;
        let source = switched(&world, &[0, 1]).await;
        write(&source.block(0), 8192, 4096, 2).await;
        world.until_follows(2).await;
        world.check_equal(2, 0).await;
        world.check_equal(2, 1).await;
        // Nothing was copied: they had it.
        assert!(source.status().peers.iter().all(|peer| peer.bytes_sent == 0), "{:?}", source.status());
    });
}

/// One of these hosts, at most, is a source when its journal is looked at.
async fn sources(world: &World) -> Vec<usize> {
    let mut sources = Vec::new();
    for n in 0..3 {
        if world.role(n).await == Role::Source {
            sources.push(n);
        }
    }
    sources
}

#[test]
fn of_two_switches_to_different_destinations_one_takes_place() {
    tell(async {
        let world = three().await;
        let source = world.source(0);
        let (first, second) = join(source.switch(0, 77), source.switch(1, 78)).await;
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        let expected = if first.is_ok() { 1 } else { 2 };
        assert_eq!(sources(&world).await, [expected], "{first:?} {second:?}");
        // What was answered before is there, and the others follow.
        world.kill(0);
        world.start_destination(0).await;
        let source = opened(&world, expected, &[0, 3 - expected]).await;
        world.until_follows(expected).await;
        write(&source.block(0), 8192, 4096, 2).await;
        world.until_follows(expected).await;
        world.check_equal(expected, 0).await;
        world.check_equal(expected, 3 - expected).await;
    });
}

#[test]
fn a_switch_and_failovers_on_both_destinations_at_once_make_one_source() {
    tell(async {
        let world = three().await;
        let (source, first, second) = (world.source(0), world.destination(1), world.destination(2));
        let unforced = Force::default();
        let (switched, one, other) =
            join3(source.switch(0, 77), first.promote(78, unforced), second.promote(79, unforced)).await;
        switched.expect("its source is well");
        // Their source was heard of a moment ago.
        assert!(one.is_err() && other.is_err(), "{one:?} {other:?}");
        assert_eq!(sources(&world).await, [1]);
    });
}

#[test]
fn a_switch_back_at_the_moment_of_a_switch_makes_one_source() {
    tell(async {
        let world = three().await;
        world.source(0).switch(0, 77).await.expect("the roles are exchanged");
        // The operator of the new source exchanges them on, and that of the old one types the same again.
        let again = world.source(0).switch(1, 78).await;
        assert!(again.is_err(), "it is no source any more");
        world.kill(0);
        world.start_destination(0).await;
        let source = opened(&world, 1, &[0, 2]).await;
        world.until_follows(1).await;
        let (back, on) = join(source.switch(0, 79), source.switch(1, 80)).await;
        assert!(back.is_ok() != on.is_ok(), "{back:?} {on:?}");
        let expected = if back.is_ok() { 0 } else { 2 };
        assert_eq!(sources(&world).await, [expected], "{back:?} {on:?}");
    });
}

/// Host 2 was away while more was written than the log has, and is in the middle of the resync that follows from that.
async fn one_in_a_resync() -> World {
    let world = three().await;
    let source = world.source(0);
    world.kill(2);
    let block = source.block(0);
    for n in 0..120 {
        write(&block, (n % 60) * 8192, 8192, n as u8).await;
    }
    source.checkpoint().await.expect("the log is let go");
    world.nodes[2].members[0].slow_down(Duration::from_millis(200));
    let copy = world.start_destination(2).await;
    world.until("a resync begins", || !copy.status().consistent).await;
    world
}

#[test]
fn a_copy_in_the_middle_of_a_resync_is_made_whole_by_another_source() {
    for switches in [false, true] {
        tell(async {
            let world = one_in_a_resync().await;
            match switches {
                true => world.source(0).switch(0, 77).await.expect("that one follows"),
                false => {
                    world.kill(0);
                    world.destination(1).promote(77, ALIVE).await.expect("it has everything");
                }
            }
            world.kill(0);
            world.kill(2);
            world.nodes[2].members[0].slow_down(Duration::from_micros(50));
            world.start_destination(2).await;
            let source = opened(&world, 1, &[2]).await;
            write(&source.block(0), 0, 4096, 200).await;
            world.until_follows(1).await;
            world.check_equal(1, 2).await;
        });
    }
}

/// What host 2 has when it gives up what the promoted host 1 wrote.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Had {
    /// The middle of a resync.
    Part,
    /// Everything, in its log as well.
    All,
    /// Everything; most of it has left its log.
    Volumes,
    /// Everything; it was closed, with an empty log.
    Closed,
}

async fn gives_up(had: Had) {
    let world = three().await;
    if had == Had::Part {
        world.kill(2);
        write(&world.source(0).block(0), 0, 4096, 2).await;
    }
    world.kill(0);
    world.destination(1).promote(77, ALIVE).await.expect("it has everything");
    let second = opened(&world, 1, &[2]).await;
    let block = second.block(0);
    let writes = if had == Had::All { 3 } else { 120 };
    for n in 0..writes {
        write(&block, (n % 60) * 8192, 8192, n as u8).await;
    }
    let disk = &world.nodes[2].members[0];
    let copy = match had {
        Had::Part => {
            second.checkpoint().await.expect("the log is let go");
            disk.slow_down(Duration::from_millis(200));
            let copy = world.start_destination(2).await;
            world.until("a resync begins", || !copy.status().consistent).await;
            copy
        }
        Had::All | Had::Volumes | Had::Closed => {
            world.until_follows(1).await;
            world.destination(2)
        }
    };
    world.kill(1);
    disk.slow_down(Duration::from_micros(50));
    let copy = match had {
        Had::Closed => {
            copy.close().await.expect("its log is emptied");
            world.kill(2);
            world.start_destination(2).await
        }
        _ => copy,
    };
    comes_back(&world).await;
    world.ship(0, 1, 2);
    world.until("both sides were written to", || copy.is_disputed()).await;
    copy.give_up().await.expect("what it has may go");
    world.until_follows(0).await;
    let (own, its) = (world.volumes(0), world.volumes(2));
    assert!(own == its, "the copy has something else: {had:?}");
}

#[test]
fn a_copy_that_gives_up_is_made_whole_by_the_source_that_counts() {
    for had in [Had::Part, Had::All, Had::Volumes, Had::Closed] {
        tell(gives_up(had));
    }
}

#[test]
fn a_source_that_gives_up_for_a_copy_from_before_its_own_promotion_is_compared_as_a_whole() {
    tell(async {
        let world = three().await;
        world.kill(1);
        // Host 2 has these as a copy, and neither its log nor its bitmaps name them later.
        let source = world.source(0);
        write(&source.block(1), 0, 4096, 9).await;
        let busy = async |source: &Arc<Source>| {
            for n in 0..120 {
                write(&source.block(0), (n % 60) * 8192, 8192, n as u8).await;
            }
        };
        busy(&source).await;
        world.kill(0);
        world.destination(2).promote(77, ALIVE).await.expect("it has everything");
        let second = opened(&world, 2, &[0]).await;
        busy(&second).await;
        second.checkpoint().await.expect("the log is let go");
        world.kill(2);
        // Host 1 knows nothing of all that, and is said to count.
        let copy = world.start_destination(1).await;
        copy.promote(78, ALIVE).await.expect("it was told of nothing that it lacks");
        opened(&world, 1, &[2]).await;
        let second = world.open_source(2).await;
        let peer = world.add_peer(&second, "host1:copy", First::Partner).await;
        world.ship(2, peer, 1);
        let (phase, _) = second.until_halted().await;
        assert_eq!(phase, Phase::SplitBrain);
        second.until_links_ended().await;
        second.demote().await.expect("what it has may go");
        world.kill(2);
        world.start_destination(2).await;
        world.until_follows(1).await;
        assert!(world.volumes(1) == world.volumes(2), "what only that side had is still there");
    });
}

#[test]
fn a_decision_that_cannot_be_written_is_none() {
    tell(async {
        let world = three().await;
        let second = promoted_beside_a_source(&world).await;
        let before = second.status();
        let journal = &world.nodes[1].journal;
        for _ in 0..2 {
            journal.break_down(true);
            second.overrule(79).await.expect_err("the disk is broken");
            second.demote().await.expect_err("the disk is broken");
            journal.break_down(false);
            let (phase, _) = second.halted().expect("nothing is decided");
            assert_eq!(phase, Phase::SplitBrain);
            assert_eq!((second.status().role, second.status().epoch), (Role::Source, before.epoch));
        }
        second.demote().await.expect("the disk works again");
        world.kill(1);
        assert_eq!(world.role(1).await, Role::Destination);
    });
}

#[test]
fn a_decision_on_a_full_disk_is_refused_and_can_be_made_when_there_is_room() {
    tell(async {
        for keep_here in [true, false] {
            let world = three().await;
            let second = promoted_beside_a_source(&world).await;
            let journal = &world.nodes[1].journal;
            let decide = async || match keep_here {
                true => second.unless_full(second.overrule(79)).await,
                false => second.unless_full(second.demote()).await,
            };
            journal.fill(true);
            for _ in 0..2 {
                let why = decide().await.expect_err("its disk is full").to_string();
                assert!(why.contains("make room first"), "{why}");
            }
            journal.fill(false);
            // What waits is tried again every second.
            rt::sleep(Duration::from_secs(2)).await;
            decide().await.expect("there is room");
        }
    });
}
