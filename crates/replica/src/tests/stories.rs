//! One thing at a time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::{Sim, with_rng};
use weft_store::block::{Block, BlockOp};
use weft_wire::repl::MAX_EPOCH;
use weft_wire::repl::control::{Era, Hello, MAX_ERAS, Refusal, Request, Response, Sync, Welcome};

use super::link::Says;
use super::three::following;
use super::world::{ALIVE, PARTNERSHIP, Start, World};
use crate::bitmap::Bitmap;
use crate::destination::{self, Destination, Force};
use crate::error::{Error, Objection};
use crate::fuzz::disk::Disk;
use crate::peer;
use crate::record::{Header, Kind, Record, sum_of};
use crate::source::{Config, First, OnFull, OnLoss};
use crate::status::{Mode, Phase, Role};
use futures_util::FutureExt;

pub(super) const K: u64 = 1 << 10;

pub(super) fn start(mode: Mode) -> Start {
    Start {
        sizes: vec![512 * K, 256 * K],
        log_bytes: vec![512 * K, 512 * K],
        mode,
        config: Config {
            retry: Duration::from_millis(20),
            timeout: Duration::from_millis(500),
            ..Config::default()
        },
        slow_disk: Duration::from_micros(50),
        slow_cable: Duration::from_micros(100),
        filled: 100 * K,
        same: false,
    }
}

pub(super) fn tell<F: Future<Output = ()>>(story: F) {
    Sim::new(7).run(story);
}

/// A source and a destination that follows.
pub(super) async fn pair(start: Start, first: First) -> World {
    let world = World::new(start).await;
    let source = world.start_source(0).await;
    world.add_peer(&source, "copy", first).await;
    world.start_destination(1).await;
    world.ship(0, 0, 1);
    world.until_follows(0).await;
    world
}

pub(super) async fn write(block: &Arc<dyn Block>, offset: u64, len: usize, byte: u8) {
    let data = vec![Bytes::from(vec![byte; len])];
    block.submit(BlockOp::Write { offset, data, durable: false }).await.expect("it is written");
}

#[test]
fn what_the_source_has_lost_of_what_it_sent_goes() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        // The first write is sent when it is durable, as all before it were.
        write(&world.source(0).block(0), 0, 512, 1).await;
        world.write_on(0, Duration::from_micros(100));
        while world.destination(1).status().last <= world.source(0).status().last {
            rt::sleep(Duration::from_micros(5)).await;
        }
        let had = world.destination(1).status().last;
        world.nodes[0].journal.forget();
        world.kill(0);
        let source = world.start_source(0).await;
        assert!(source.status().last < had, "nothing was lost");
        // Other writes take the place of what was lost.
        world.ship(0, 0, 1);
        world.until_follows(0).await;
        assert!(source.status().last < had, "what was lost has come back");
        write(&source.block(1), 0, 8192, 2).await;
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn the_first_copy_skips_what_is_empty() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.check_equal(0, 1).await;
        let peer = world.source(0).status().peers.remove(0);
        assert_eq!(peer.bytes_done, 768 * K);
        // Two volumes of which 100 KiB each are not zeros, a page more or less.
        assert!((200 * K..210 * K).contains(&peer.bytes_sent), "{peer:?}");
        assert_eq!(peer.bytes_remaining, 0);
    });
}

#[test]
fn a_first_copy_ends_though_the_destination_takes_long_to_make_it_durable() {
    tell(async {
        let world = World::new(start(Mode::Synchronous)).await;
        let source = world.start_source(0).await;
        world.add_peer(&source, "copy", First::Copy).await;
        world.start_destination(1).await;
        // Many times as long as the source waits for an answer.
        let disks = &world.nodes[1].members;
        disks.iter().for_each(|disk| disk.slow_flushes_down(Duration::from_micros(20)));
        world.ship(0, 0, 1);
        world.until_follows(0).await;
        disks.iter().for_each(|disk| disk.slow_flushes_down(Duration::ZERO));
        world.check_equal(0, 1).await;
    });
}

#[test]
fn a_seeded_copy_sends_what_differs() {
    tell(async {
        let world = World::new(Start { same: true, ..start(Mode::Synchronous) }).await;
        let source = world.start_source(0).await;
        let at = source.block(0);
        write(&at, 70 * K, 512, 1).await;
        world.add_peer(&source, "copy", First::Seeded).await;
        world.start_destination(1).await;
        world.ship(0, 0, 1);
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        let sent = source.status().peers[0].bytes_sent;
        // Or nothing, where the record came first.
        assert!(sent <= 64 * K, "{sent}");
    });
}

#[test]
fn a_synchronous_write_is_answered_when_both_have_it() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let source = world.source(0);
        let block = source.block(1);
        for n in 0..20 {
            write(&block, n * 4096, 4096, n as u8).await;
            let last = world.source(0).status().last;
            assert_eq!(world.destination(1).status().last, last);
        }
        assert!(!source.status().peers[0].unprotected);
        world.check_equal(0, 1).await;
    });
}

#[test]
fn a_destination_says_what_was_agreed_until_its_source_says_otherwise() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let says = |copy: &Destination| copy.status().peers[0].mode;
        assert_eq!(says(&world.destination(1)), Some(Mode::Synchronous), "it was told");
        world.cut();
        for agreed in [None, Some(Mode::Asynchronous)] {
            world.kill(1);
            let config = destination::Config { mode: agreed, ..destination::Config::default() };
            let copy = Destination::open(world.side(1), config).await.expect("it opens");
            assert_eq!(says(&copy), agreed);
        }
        world.kill(1);
        let copy = world.start_destination(1).await;
        assert_eq!(says(&copy), None, "nobody has told it");
        world.heal();
        world.until("it is told", || says(&copy) == Some(Mode::Synchronous)).await;
    });
}

#[test]
fn a_destination_whose_source_is_gone_does_not_say_that_it_replicates() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let copy = world.destination(1);
        let phase = || copy.status().peers[0].phase;
        rt::sleep(Duration::from_secs(30)).await;
        assert_eq!(phase(), Phase::ContinuouslyReplicating, "a source that has nothing to send is heard of");
        world.kill(0);
        rt::sleep(Duration::from_secs(11)).await;
        assert_eq!(phase(), Phase::WaitingForSource);
        world.start_source(0).await;
        world.ship(0, 0, 1);
        world.until("it follows again", || phase() == Phase::ContinuouslyReplicating).await;
    });
}

/// A copy that was away while its source wrote 20 records, has heard of them and got none of them, and whose source is
/// gone then.
async fn told_and_not_sent(mode: Mode) -> World {
    let world = pair(Start { slow_cable: Duration::from_millis(40), ..start(mode) }, First::Copy).await;
    world.kill(1);
    let block = world.source(0).block(0);
    for n in 0..20 {
        write(&block, n * 4096, 4096, 1).await;
    }
    let copy = world.start_destination(1).await;
    while copy.status().peers[0].heard_ms == 0 {
        rt::sleep(Duration::from_micros(100)).await;
    }
    world.cut();
    rt::sleep(Duration::from_secs(1)).await;
    world
}

#[test]
fn a_copy_that_lacks_what_its_source_has_says_so_and_is_not_promoted_unforced() {
    for mode in [Mode::Synchronous, Mode::Asynchronous] {
        tell(async move {
            let world = told_and_not_sent(mode).await;
            let lacks = |copy: &Destination| {
                let status = copy.status();
                (status.last, status.peers[0].lag_records, status.consistent)
            };
            let copy = world.destination(1);
            assert_eq!(copy.status().peers[0].phase, Phase::ReplayingLog);
            assert_eq!(lacks(&copy), (0, 20, true));
            // It remembers that.
            world.kill(1);
            let copy = world.start_destination(1).await;
            assert_eq!(lacks(&copy), (0, 20, true));
            let silent = Force { source_alive: true, ..Force::default() };
            // Who passes over one of them is told of both.
            for force in [silent, Force { behind: true, ..Force::default() }] {
                let Err(Error::Objections(all)) = copy.promote(5, force).await else { panic!("{force:?}") };
                assert!(matches!(all[..], [Objection::Alive(_), Objection::Behind(20)]), "{all:?}");
            }
            // It follows again, and nothing is missing.
            world.heal();
            world.until_follows(0).await;
            world
                .until("it says so", || copy.status().peers[0].phase == Phase::ContinuouslyReplicating)
                .await;
            assert_eq!(lacks(&copy), (20, 0, true));
            world.kill(0);
            copy.promote(5, silent).await.expect("it has everything");
        });
    }
}

#[test]
fn what_a_destination_says_to_have_changed_lies_inside_its_volume_and_in_order() {
    const G: u64 = 64 * K;
    const SIZE: u64 = 10 * G;
    type Answer = (&'static [(u64, u64)], Option<u64>);
    /// What is marked where the first answer is this one, and the second says that there is no more.
    fn told(ranges: &[(u64, u64)], next: Option<u64>) -> Result<Vec<(u64, u64)>, peer::Error> {
        let ranges = ranges.to_vec();
        let peer = Says(move |request| match request {
            Request::Hello(_) => Response::Welcome(Welcome {
                session: 1,
                last: 0,
                consistent: true,
                fresh: false,
                diverged: true,
                sizes: vec![SIZE],
            }),
            Request::Diverged { from: 0, .. } => Response::Ranges { ranges: ranges.clone(), next },
            _ => Response::Ranges { ranges: vec![(8 * G, G)], next: None },
        });
        let hello = Hello {
            partnership: PARTNERSHIP,
            first: 1,
            last: 0,
            synchronous: true,
            adopt: false,
            sizes: vec![SIZE],
            eras: Vec::new(),
        };
        let walk = async {
            let (link, _) = peer::Link::hello(&peer, hello).await?;
            let mut map = Bitmap::new(SIZE, G);
            link.diverged(0, SIZE, &mut map).await.map(|()| map.ranges(0, usize::MAX).0)
        };
        walk.now_or_never().expect("nothing is waited for")
    }
    assert_eq!(told(&[(G, G), (3 * G, 2 * G)], None), Ok(vec![(G, G), (3 * G, 2 * G)]));
    assert_eq!(told(&[(G, G)], Some(4 * G)), Ok(vec![(G, G), (8 * G, G)]));
    let odd: [Answer; 8] = [
        // Behind the end, or past what can be counted.
        (&[(9 * G, 2 * G)], None),
        (&[(SIZE, 1)], None),
        (&[(G, u64::MAX)], None),
        // Not in order, or the same once more.
        (&[(3 * G, G), (G, G)], None),
        (&[(0, SIZE), (0, SIZE)], None),
        // On from where it was, from inside a range, or from where there is nothing.
        (&[(G, G)], Some(0)),
        (&[(G, 4 * G)], Some(2 * G)),
        (&[(G, G)], Some(SIZE)),
    ];
    for (ranges, next) in odd {
        assert_eq!(told(ranges, next), Err(peer::Error::Violation), "{ranges:?} {next:?}");
    }
}

#[test]
fn a_copy_that_lacks_what_its_source_has_is_promoted_by_force() {
    tell(async {
        let world = told_and_not_sent(Mode::Synchronous).await;
        world.kill(0);
        let era = world.destination(1).promote(5, ALIVE).await.expect("it is consistent");
        assert_eq!(era.after, 0);
    });
}

#[test]
fn an_asynchronous_write_waits_for_nobody_and_the_lag_is_shown() {
    tell(async {
        let config = Config { lag_alert_bytes: 10 * K, ..start(Mode::Asynchronous).config };
        let world = pair(Start { config, ..start(Mode::Asynchronous) }, First::Copy).await;
        world.cut();
        let block = world.source(0).block(0);
        write(&block, 0, 8192, 1).await;
        rt::sleep(Duration::from_secs(2)).await;
        write(&block, 0, 8192, 2).await;
        let peer = world.source(0).status().peers.remove(0);
        assert_eq!((peer.phase, peer.lag_bytes), (Phase::WaitingForDestination, 16 * K));
        assert!(peer.lag_seconds >= 2.0 && peer.lag_alert, "{peer:?}");
        world.heal();
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        // What it had missed came from the log.
        assert_eq!(world.source(0).status().peers[0].bytes_done, 0);
    });
}

#[test]
fn after_a_long_outage_only_what_changed_is_copied() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        world.cut();
        let block = world.source(0).block(0);
        // More than the log holds, into one granule.
        for n in 0..300u64 {
            write(&block, (n % 8) * 4096, 4096, n as u8).await;
        }
        world.heal();
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        let peer = world.source(0).status().peers.remove(0);
        assert_eq!(peer.bytes_done, 64 * K, "a granule");
    });
}

#[test]
fn while_a_destination_is_away_writes_go_on_or_wait_as_configured() {
    for on_loss in [OnLoss::Continue, OnLoss::Wait] {
        tell(async {
            let config = Config { on_loss, ..start(Mode::Synchronous).config };
            let world = pair(Start { config, ..start(Mode::Synchronous) }, First::Copy).await;
            world.cut();
            let source = world.source(0);
            let block = source.block(0);
            let written = rt::timeout(Duration::from_secs(5), write(&block, 0, 512, 1)).await.is_ok();
            assert_eq!(written, on_loss == OnLoss::Continue);
            assert_eq!(source.status().peers[0].unprotected, written);
            world.heal();
            world.until_follows(0).await;
            assert!(!source.status().peers[0].unprotected);
            world.check_equal(0, 1).await;
        });
    }
}

#[test]
fn a_destination_whose_log_was_full_when_it_died_goes_on() {
    tell(async {
        let mut start = start(Mode::Asynchronous);
        start.log_bytes = vec![512 * K, 64 * K];
        let world = pair(start, First::Copy).await;
        let block = world.source(0).block(0);
        for round in 0..20u64 {
            for n in 0..16 {
                write(&block, n * 4096, 4096, (round + n) as u8).await;
            }
            world.kill(1);
            world.start_destination(1).await;
        }
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn one_source_has_several_destinations() {
    tell(async {
        let world =
            World::new(Start { log_bytes: vec![512 * K, 256 * K, 1024 * K], ..start(Mode::Asynchronous) })
                .await;
        let source = world.start_source(0).await;
        for n in [1, 2] {
            let peer = world.add_peer(&source, &format!("copy {n}"), First::Copy).await;
            world.start_destination(n).await;
            world.ship(0, peer, n);
        }
        let block = source.block(0);
        for n in 0..100u64 {
            write(&block, (n * 7 % 100) * 4096, 4096, n as u8).await;
        }
        world.kill(2);
        for n in 0..100u64 {
            write(&block, (n * 3 % 100) * 4096, 4096, n as u8).await;
        }
        world.start_destination(2).await;
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        world.check_equal(0, 2).await;
    });
}

#[test]
fn a_destination_that_was_away_while_its_source_crashed_often_is_no_stranger() {
    tell(async {
        let world = following().await;
        let source = world.source(0);
        world.kill(1);
        let first = source.eras();
        for n in 0..MAX_ERAS as u64 + 8 {
            let source = world.source(0);
            world
                .until("the other one follows", || {
                    source.status().peers[1].phase == Phase::ContinuouslyReplicating
                })
                .await;
            // Sent before it is durable here: a source that comes back has perhaps lost it, and begins an era.
            write(&source.block(0), n * 4096, 4096, n as u8).await;
            world.kill(0);
            world.start_source(0).await;
            world.ship(0, 1, 2);
        }
        let eras = world.source(0).eras();
        assert!(eras.len() == MAX_ERAS && eras[0] == first[0], "{eras:?}");
        world.start_destination(1).await;
        world.ship(0, 0, 1);
        world.until_follows(0).await;
        assert!(!world.destination(1).is_disputed());
        world.check_equal(0, 1).await;
        world.check_equal(0, 2).await;
    });
}

#[test]
fn a_slow_destination_slows_writes_or_is_given_up_for_now() {
    for on_full in [OnFull::Slow, OnFull::Resync] {
        tell(async {
            let config = Config { on_full, ..start(Mode::Asynchronous).config };
            let mut start = Start { config, ..start(Mode::Asynchronous) };
            start.slow_cable = Duration::from_millis(100);
            start.log_bytes = vec![64 * K, 512 * K];
            let world = pair(start, First::Copy).await;
            let source = world.source(0);
            let block = source.block(0);
            let began = rt::now();
            for n in 0..100u64 {
                write(&block, (n % 16) * 4096, 4096, n as u8).await;
                assert!(source.status().log_used <= 64 * K);
            }
            let took = rt::now().since(began);
            let waited = Duration::from_millis(source.status().log_wait_ms);
            match on_full {
                OnFull::Slow => assert!(waited > Duration::from_millis(200), "{waited:?} of {took:?}"),
                OnFull::Resync => assert!(took < Duration::from_millis(200), "{took:?}"),
            }
            world.until_follows(0).await;
            world.check_equal(0, 1).await;
            assert!(source.status().peers[0].bytes_done > 0, "the first copy, or a resync");
        });
    }
}

#[test]
fn the_roles_are_exchanged_and_back() {
    tell(async {
        let mut world = pair(start(Mode::Synchronous), First::Copy).await;
        for (from, to) in [(0, 1), (1, 0)] {
            let source = world.source(from);
            write(&source.block(0), 4096, 4096, 10 + from as u8).await;
            source.switch(0, 77 + from as u64).await.expect("they are exchanged");
            let refused = source.block(0).submit(BlockOp::Flush).await;
            assert!(refused.is_err(), "it is no source any more");
            assert_eq!((world.role(from).await, world.role(to).await), (Role::Destination, Role::Source));
            world.kill(from);
            world.kill(to);
            let new = world.start_source(to).await;
            world.add_peer(&new, "the old source", First::Partner).await;
            world.start_destination(from).await;
            world.ship(to, 0, from);
            world.until_follows(to).await;
            // Nothing had to be copied.
            assert_eq!(new.status().peers[0].bytes_done, 0);
            world.check_equal(to, from).await;
        }
        world.stop.set(true);
        world.nodes.truncate(2);
    });
}

#[test]
fn volumes_grow_while_they_are_written_to_and_what_is_new_is_replicated() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let source = world.source(0);
        let grown = [800 * K, 256 * K];
        assert!(source.grow(&grown).await.is_err(), "the volume is not as long");
        world.lengthen(0, &grown);
        assert_eq!(source.block(0).geometry().size, 512 * K, "its volume is longer than what is replicated");
        source.grow(&grown).await.expect("it grows");
        world.learn_sizes(0);
        assert_eq!(source.block(0).geometry().size, 800 * K);
        assert!(source.grow(&[700 * K, 256 * K]).await.is_err(), "it shrinks");
        // The other side has no room yet: it refuses, and what it has is what it had.
        world.until("it refuses", || source.status().peers[0].phase == Phase::Refused).await;
        assert!(source.switch(0, 7).await.is_err(), "a copy that lacks the end becomes the source");
        assert_eq!(world.destination(1).status().sizes, [512 * K, 256 * K]);
        write(&source.block(0), 790 * K, 4096, 9).await;
        world.lengthen(1, &grown);
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        let done = source.status().peers[0].bytes_done;
        assert!(done <= 320 * K, "what is new, a granule more or less, not {done}");
    });
}

#[test]
fn growth_that_was_given_up_in_the_middle_can_be_asked_for_again() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (source, grown) = (world.source(0), [800 * K, 256 * K]);
        world.lengthen(0, &grown);
        world.lengthen(1, &grown);
        // Whoever asked is gone before any disk has answered.
        assert!(rt::timeout(Duration::ZERO, source.grow(&grown)).await.is_err());
        assert_eq!(source.block(0).geometry().size, 512 * K);
        source.grow(&grown).await.expect("it grows");
        world.learn_sizes(0);
        assert_eq!(source.block(0).geometry().size, 800 * K);
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn who_was_promoted_before_it_grew_is_as_long_as_it_was_and_so_becomes_its_copy() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        world.cut();
        let (old, grown) = (world.source(0), [800 * K, 256 * K]);
        world.lengthen(0, &grown);
        world.lengthen(1, &grown);
        old.grow(&grown).await.expect("it grows");
        write(&old.block(0), 790 * K, 4096, 9).await;
        let era = world.destination(1).promote(99, ALIVE).await.expect("it is consistent");
        world.kill(1);
        world.model.borrow_mut().forget_after(era.after);
        let new = world.open_source(1).await;
        assert_eq!(new.block(0).geometry().size, 512 * K);
        world.heal();
        world.ship(0, 0, 1);
        world.until("it is shown", || old.status().peers[0].phase == Phase::SplitBrain).await;
        old.demote().await.expect("it gives up");
        world.kill(0);
        world.add_peer(&new, "the old source", First::Partner).await;
        world.start_destination_as_it_is(0).await;
        world.ship(1, 0, 0);
        world.until_follows(1).await;
        assert_eq!(world.destination(0).status().sizes, [512 * K, 256 * K]);
        world.check_equal(1, 0).await;
        // It grows in its turn, and what the other once had there does not count.
        new.grow(&grown).await.expect("it grows");
        world.learn_sizes(1);
        world.until_follows(1).await;
        world.check_equal(1, 0).await;
    });
}

/// Both are written to while they cannot see each other.
async fn split() -> World {
    let world = pair(start(Mode::Synchronous), First::Copy).await;
    world.cut();
    let old = world.source(0);
    rt::sleep(Duration::from_secs(1)).await;
    write(&old.block(0), 0, 4096, 0xaa).await;
    let era = world.destination(1).promote(99, ALIVE).await.expect("it is consistent");
    world.kill(1);
    world.model.borrow_mut().forget_after(era.after);
    let new = world.open_source(1).await;
    write(&new.block(0), 200 * K, 4096, 0xbb).await;
    world.heal();
    world.ship(0, 0, 1);
    world.until("it is shown", || old.status().peers[0].phase == Phase::SplitBrain).await;
    assert!(old.block(0).submit(BlockOp::Flush).await.is_err());
    world
}

#[test]
fn a_source_that_has_not_counted_its_epochs_is_refused_and_one_is_left_for_who_is_promoted() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (copy, last) = (world.destination(1), world.source(0).status().last);
        let hello = |epoch| Hello {
            partnership: PARTNERSHIP,
            first: 1,
            last,
            synchronous: false,
            adopt: true,
            sizes: copy.status().sizes,
            eras: vec![Era { epoch, tag: 77, after: last }],
        };
        for epoch in [1 << 33, MAX_EPOCH] {
            let refused = copy.control(Request::Hello(hello(epoch))).await;
            assert_eq!(refused, Response::Refused(Refusal::Invalid), "{epoch}");
        }
        let welcome = copy.control(Request::Hello(hello(1 << 20))).await;
        assert!(matches!(welcome, Response::Welcome(_)), "{welcome:?}");
        let era = copy.promote(78, ALIVE).await.expect("it is consistent");
        assert_eq!(era.epoch, (1 << 20) + 1);
    });
}

#[test]
fn a_promotion_that_is_given_up_leaves_nothing_behind() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (source, copy) = (world.source(0), world.destination(1));
        world.nodes[1].journal.fill(true);
        let promoted = rt::timeout(Duration::from_secs(5), copy.promote(99, ALIVE)).await;
        assert!(matches!(promoted, Ok(Err(Error::State(_)))), "the journal is full: {promoted:?}");
        world.nodes[1].journal.fill(false);
        // Its source comes again, which is written down there.
        let written = copy.status().generation;
        world.until("it has a session", || copy.status().generation > written).await;
        write(&source.block(0), 0, 4096, 5).await;
        world.until_follows(0).await;
        assert_eq!((world.role(1).await, copy.status().role), (Role::Destination, Role::Destination));
        assert_eq!((copy.status().epoch, source.status().epoch), (1, 1));
        world.check_equal(0, 1).await;
        let era = copy.promote(100, ALIVE).await.expect("there is space");
        assert_eq!((world.role(1).await, era.epoch), (Role::Source, 2));
    });
}

#[test]
fn what_is_answered_after_a_resync_that_was_given_up_half_way_is_there() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.cut();
        let (copy, eras) = (world.destination(1), world.destination(1).eras());
        let (last, sizes) = (copy.status().last, copy.status().sizes);
        let hello = Hello {
            partnership: PARTNERSHIP,
            first: 1,
            last,
            synchronous: false,
            adopt: false,
            sizes,
            eras: eras.clone(),
        };
        let welcome = copy.control(Request::Hello(hello)).await;
        let Response::Welcome(Welcome { session, .. }) = welcome else { panic!("{welcome:?}") };
        world.nodes[1].journal.fill(true);
        let begin = copy.control(Request::Begin { session, base: last + 5, sync: Sync::Changed });
        assert!(rt::timeout(Duration::from_secs(5), begin).await.is_err(), "the journal is full");
        world.nodes[1].journal.fill(false);
        let payload = vec![Bytes::from(vec![7; 512])];
        let header = Header {
            log: 0,
            life: 0,
            epoch: eras.last().map_or(0, |era| era.epoch),
            sequence: last + 1,
            member: 0,
            offset: 0,
            unix_ms: 0,
            settled: 0,
            claimed: 0,
            kind: Kind::Write { len: 512, sum: sum_of(&payload) },
        };
        let answered = copy.append(session, vec![Record { header, payload }]).await;
        // Something else is made durable.
        copy.give_up().await.expect("there is space");
        world.kill(1);
        let copy = world.start_destination_as_it_is(1).await;
        assert_eq!(copy.status().last, last + u64::from(answered.is_ok()), "{answered:?}");
    });
}

#[test]
fn a_claim_that_is_given_up_ends_its_own_session_alone() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.cut();
        let (copy, last) = (world.destination(1), world.source(0).status().last);
        let hello = |epoch| {
            let eras = vec![Era { epoch, tag: 77, after: last }];
            let sizes = copy.status().sizes;
            let hello = Hello {
                partnership: PARTNERSHIP,
                first: 1,
                last,
                synchronous: false,
                adopt: true,
                sizes,
                eras,
            };
            copy.control(Request::Hello(hello))
        };
        world.nodes[1].journal.fill(true);
        // The second comes while the first one is being written down, and the first one is turned away.
        let first = hello(10);
        let second = async {
            rt::sleep(Duration::from_millis(50)).await;
            rt::timeout(Duration::from_secs(30), hello(11)).await
        };
        let there_is_space = async {
            rt::sleep(Duration::from_millis(80)).await;
            world.nodes[1].journal.fill(false);
        };
        let (first, second, ()) = futures_util::future::join3(first, second, there_is_space).await;
        assert!(matches!(first, Response::Refused(_)), "the journal is full: {first:?}");
        assert!(matches!(second, Ok(Response::Welcome(_))), "{second:?}");
    });
}

#[test]
fn a_promotion_ends_though_others_apply_the_log_first() {
    for seed in 0..32 {
        Sim::new(seed).run(async {
            let mut world = World::new(start(Mode::Synchronous)).await;
            // Volumes that take no time: what is durable may be applied before who waits for it has looked.
            world.nodes[1].members =
                world.volumes(1).into_iter().map(|at| Disk::new(at, Duration::ZERO)).collect();
            let source = world.start_source(0).await;
            world.add_peer(&source, "copy", First::Copy).await;
            world.start_destination(1).await;
            world.ship(0, 0, 1);
            world.until_follows(0).await;
            world.write_on(0, Duration::from_micros(10));
            rt::sleep(with_rng(|rng| Duration::from_micros(rng.within(5000..=6000)))).await;
            let copy = world.destination(1);
            let promoted = rt::timeout(Duration::from_secs(60), copy.promote(99, ALIVE)).await;
            promoted.unwrap_or_else(|_| panic!("seed {seed}: it never ends")).expect("it is consistent");
        });
    }
}

#[test]
fn two_sources_are_told_and_the_later_one_may_count() {
    tell(async {
        let world = split().await;
        world.source(0).demote().await.expect("it gives up");
        world.kill(0);
        let new = world.source(1);
        world.add_peer(&new, "the old source", First::Partner).await;
        world.start_destination(0).await;
        world.ship(1, 0, 0);
        world.until_follows(1).await;
        world.check_equal(1, 0).await;
        // The granule that the old one had written to alone, and what the new one had: not all.
        let done = new.status().peers[0].bytes_done;
        assert!(done > 0 && done <= 128 * K, "{done}");
    });
}

#[test]
fn a_destination_whose_session_has_ended_is_not_said_to_follow() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.until_follows(0).await;
        let (source, cut_at) = (world.source(0), rt::now());
        let peer = || source.status().peers.remove(0);
        assert_eq!(peer().lost_ms, 0);
        world.cut();
        world.until("it is shown", || peer().phase != Phase::ContinuouslyReplicating).await;
        // The next beat tells; what becomes of writes is decided later.
        let (shown, peer_lost) = (rt::now().since(cut_at), peer());
        assert!(shown < Duration::from_secs(3), "{shown:?}");
        assert!(peer_lost.phase == Phase::WaitingForDestination && peer_lost.lost_ms > 0, "{peer_lost:?}");
        assert!(!peer_lost.unprotected, "{peer_lost:?}");
        world.heal();
        world.until_follows(0).await;
        assert_eq!(peer().lost_ms, 0);
    });
}

#[test]
fn who_gave_up_has_what_it_had_until_the_other_one_comes() {
    tell(async {
        let world = split().await;
        world.source(0).demote().await.expect("it gives up");
        world.kill(0);
        let copy = world.start_destination_as_it_is(0).await;
        let status = copy.status();
        assert!(status.gave_up && !status.consistent, "{status:?}");
        let force = Force { source_alive: true, ..Force::default() };
        let refused = copy.promote(100, force).await.expect_err("nobody has forced it").to_string();
        assert!(refused.contains("this side gave up") && !refused.contains("resync"), "{refused}");
        assert_eq!(world.volumes(0)[0][0], 0xaa);
        let new = world.source(1);
        world.add_peer(&new, "the old source", First::Partner).await;
        world.ship(1, 0, 0);
        world.until_follows(1).await;
        assert!(!copy.status().gave_up);
        world.check_equal(1, 0).await;
    });
}

#[test]
fn two_sources_are_told_and_the_earlier_one_may_count() {
    tell(async {
        let world = split().await;
        let (old, new) = (world.source(0), world.source(1));
        assert!(matches!(new.demote().await, Err(Error::State(_))), "nobody has overruled it");
        old.overrule(100).await.expect("it counts");
        // The other is told, too, and gives up.
        world.add_peer(&new, "the first source", First::Partner).await;
        world.ship(1, 0, 0);
        world.until("it is told", || new.status().last_error.is_some()).await;
        new.demote().await.expect("it gives up");
        world.kill(1);
        let volumes = world.volumes(0);
        world.start_destination(1).await;
        world.ship(0, 0, 1);
        while old.status().peers[0].phase == Phase::SplitBrain {
            rt::sleep(Duration::from_micros(10)).await;
        }
        // What was decided is not asked for any more, before it is carried out.
        let peer = old.status().peers.remove(0);
        assert!(peer.phase != Phase::ContinuouslyReplicating && peer.last_error.is_none(), "{peer:?}");
        world.until_follows(0).await;
        world.compare(1, &volumes, "the first source counts");
        assert_eq!(world.volumes(1)[0][0], 0xaa);
    });
}

#[test]
fn a_destination_that_has_forgotten_is_compared_and_never_copied_unasked() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        let block = world.source(0).block(0);
        let journal = world.nodes[1].journal.content();
        for n in 0..300u64 {
            write(&block, (n % 64) * 4096, 4096, n as u8).await;
        }
        world.until_follows(0).await;
        // Its journal is put back from a backup: it has forgotten what the source's log does not hold any more.
        let mut world = world;
        world.kill(1);
        rt::sleep(Duration::from_secs(3)).await;
        world.nodes[1].journal = crate::fuzz::disk::Disk::new(journal, Duration::from_micros(50));
        world.start_destination_as_it_is(1).await;
        // Nobody writes: that it has died shows all the same.
        let source = world.source(0);
        world
            .until("it is noticed", || source.status().peers[0].phase != Phase::ContinuouslyReplicating)
            .await;
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        let peer = source.status().peers.remove(0);
        assert_eq!(peer.bytes_done, 768 * K, "all was compared");
        assert!(peer.bytes_sent <= 256 * K, "and what its volume had lost was sent: {peer:?}");
    });
}

#[test]
fn volumes_of_real_memory_replicate_on_a_real_loop() {
    use crate::journal::{self, Format, MIN_LOG_BYTES, Names, Side, Wall};
    use crate::peer::Local;
    use crate::source::{PeerConfig, Source};
    use weft_machine::Pool;
    use weft_store::block::Outcome;
    use weft_store::volume::plain::Plain;

    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let ram = |bytes| -> Arc<dyn Block> { Arc::new(Plain::in_memory(bytes).expect("memory")) };
        let side = async |role| {
            let format = Format {
                partnership: [1; 16],
                role,
                tag: 5,
                sizes: vec![8 << 20],
                log_bytes: 16 * MIN_LOG_BYTES,
            };
            let journal = ram(journal::bytes(&format).expect("a journal"));
            journal::format(&journal, &format).await.expect("it is laid out");
            Side {
                journal,
                members: vec![ram(8 << 20)],
                pool: pool.clone(),
                log_memory: Default::default(),
                wall: Wall::new(1),
                names: Names::new("db", []),
                draw: 1,
            }
        };
        let (here, there) = (side(Role::Source).await, side(Role::Destination).await);
        let copy = there.members[0].clone();
        let source = Source::open(here, Config::default()).await.expect("it opens");
        let destination = Destination::open(there, destination::Config::default()).await.expect("it opens");
        let (runs, local) = (destination.clone(), std::rc::Rc::new(Local::new(destination.clone())));
        let _applies = rt::spawn(async move { runs.run().await });
        let config = PeerConfig { name: "copy".into(), mode: Mode::Synchronous, first: First::Copy };
        let n = source.add_peer(config).await.expect("there is room");
        let shipping = source.clone();
        let _ships = rt::spawn(async move { shipping.ship(n, local).await });
        let block = source.block(0);
        for round in 0..64u64 {
            write(&block, round * 100_000, 70_000, round as u8 + 1).await;
        }
        while source.status().peers[0].phase != Phase::ContinuouslyReplicating {
            rt::yield_now().await;
        }
        let verified = source.verify(n, false).await.expect("it is compared");
        assert_eq!((verified.bytes, verified.different), (8 << 20, 0));
        // A consistent copy is not written to past its log, whoever asks.
        let filled = destination.fill_blocks(1, 0, 0, &Untouchable, 10).await;
        assert!(filled.is_err(), "{filled:?}");
        let read = copy.submit(BlockOp::Read { offset: 6_300_000, len: 70_000 }).await;
        let Ok(Outcome::Data(payload)) = read else { panic!("{read:?}") };
        assert_eq!(payload.into_chain(&pool).await.expect("memory").concat(), vec![64; 70_000]);
        source.close().await.expect("it closes");
    })
    .expect("the loop starts");
}

/// Payload that nobody may take.
#[derive(Debug)]
struct Untouchable;

impl weft_machine::RemotePayload for Untouchable {
    fn len(&self) -> usize {
        10
    }
    fn fill(&self, _: &weft_machine::File, _: u64, _: usize) -> Option<std::io::Result<()>> {
        panic!("nothing is to be filled")
    }
    fn fetch(&self) -> weft_machine::payload::Fetching {
        panic!("nothing is to be fetched")
    }
}
