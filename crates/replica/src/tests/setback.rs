//! A side's disks are of an earlier day: a backup was restored, or a virtual machine returned to a snapshot.

use std::time::Duration;

use weft_machine::rt;

use super::stories::{K, pair, start, tell, write};
use super::three::following;
use super::world::World;
use crate::destination::Holder;
use crate::group;
use crate::journal::{self, Format};
use crate::rescue;
use crate::source::{Config, First, Source};
use crate::status::{Mode, Phase, Role};

/// What the disks of a host hold: the journal, and the volumes.
fn image(world: &World, n: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let node = &world.nodes[n];
    (node.journal.content(), node.members.iter().map(|disk| disk.content()).collect())
}

fn set_back(world: &World, n: usize, image: &(Vec<u8>, Vec<Vec<u8>>)) {
    world.nodes[n].journal.replace(image.0.clone());
    for (disk, content) in world.nodes[n].members.iter().zip(&image.1) {
        disk.replace(content.clone());
    }
}

/// A source that was closed with 10 records, and opened again, and has 30, which its copy has, too; and what its disks
/// held then.
async fn followed() -> (World, (Vec<u8>, Vec<Vec<u8>>)) {
    let world = pair(start(Mode::Synchronous), First::Copy).await;
    for n in 0..10 {
        write(&world.source(0).block(0), n * 4096, 4096, 1).await;
    }
    world.source(0).close().await.expect("it closes");
    world.kill(0);
    let then = image(&world, 0);
    world.start_source(0).await;
    world.ship(0, 0, 1);
    world.until_follows(0).await;
    for n in 0..20 {
        write(&world.source(0).block(0), n * 8192, 4096, 2).await;
    }
    (world, then)
}

async fn is_told(world: &World, source: &Source) -> (u64, u64) {
    world.until("it is told", || source.halted().is_some()).await;
    assert_eq!(source.halted().map(|(phase, _)| phase), Some(Phase::SetBack));
    source.set_back().expect("what both have")
}

#[test]
fn a_source_that_has_less_than_its_copy_was_set_back_and_says_so_until_somebody_decides() {
    tell(async {
        let (world, then) = followed().await;
        world.source(0).close().await.expect("it closes");
        world.kill(0);
        set_back(&world, 0, &then);
        let source = world.open_source(0).await;
        world.ship(0, 0, 1);
        assert_eq!(is_told(&world, &source).await, (10, 30));
        assert_eq!(world.destination(1).status().last, 30, "the copy has what it had");
        // It is opened again, and its copy cannot be reached.
        world.kill(0);
        world.cut();
        let source = world.open_source(0).await;
        assert_eq!(source.halted().map(|(phase, _)| phase), Some(Phase::SetBack));
        // It gives up, and is compared as a whole, whatever its journal names.
        source.demote().await.expect("it becomes a copy");
        let state = journal::look(&world.nodes[0].journal.open(), &world.pool).await.expect("a state");
        assert_eq!((state.role, state.damaged), (Role::Destination, true));
        // It remembers what a source has to have.
        assert_eq!((state.floor(), state.set_back_by_name()), (Some(30), Some("copy")));
    });
}

/// A source that has 30 records, a copy that has them, and one that has 10; then its disks are as they were when it had
/// 20. It has given up.
async fn two_copies() -> World {
    let world = following().await;
    let source = world.source(0);
    let mut then = None;
    for n in 0..30 {
        match n {
            10 => world.kill(2),
            20 => then = Some(image(&world, 0)),
            _ => {}
        }
        write(&source.block(0), n * 4096, 4096, 1).await;
    }
    world.kill(0);
    set_back(&world, 0, &then.expect("an image"));
    world.start_destination_as_it_is(2).await;
    let source = world.open_source(0).await;
    // The one that lags is asked first.
    world.ship(0, 1, 2);
    world.ship(0, 0, 1);
    assert_eq!(is_told(&world, &source).await, (20, 30));
    assert_eq!(source.set_back_by().as_deref(), Some("host1:copy"));
    source.until_links_ended().await;
    source.demote().await.expect("it becomes a copy");
    world.kill(0);
    world.start_destination_as_it_is(0).await;
    world
}

/// A copy is promoted, and sends to host 0.
async fn promoted(world: &World, n: usize) -> std::sync::Arc<Source> {
    world.destination(n).promote(50 + n as u64, super::world::ALIVE).await.expect("it is promoted");
    world.kill(n);
    let source = world.open_source(n).await;
    world.add_peer(&source, "host0:copy", First::Partner).await;
    world.ship(n, 0, 0);
    source
}

#[test]
fn a_side_that_was_set_back_follows_no_source_that_lacks_what_its_copy_has() {
    tell(async {
        let world = two_copies().await;
        let lagging = promoted(&world, 2).await;
        assert!(lagging.status().last < 30, "it lags");
        // It goes on past the number of what only the other one has.
        for n in 0..40 {
            write(&lagging.block(0), n * 4096, 4096, 9).await;
        }
        rt::sleep(Duration::from_secs(2)).await;
        let says = |peer: &crate::status::PeerStatus| peer.last_error.clone().unwrap_or_default();
        assert_eq!(lagging.status().peers[0].phase, Phase::Refused);
        assert!(says(&lagging.status().peers[0]).contains("up to 30"), "{:?}", lagging.status());
        let copy = world.destination(0);
        let told = |holder| {
            copy.holder_is(holder);
            says(&copy.status().peers[0])
        };
        let told =
            [Holder::NotKnown, Holder::Has("host1:copy".into()), Holder::Lost, Holder::Later(9)].map(told);
        for (told, (who, takes_over)) in told.iter().zip([
            ("which host1:copy had; whether it has them still is not known", true),
            ("which host1:copy has.", true),
            ("it says that it has no whole copy now", false),
            ("it is of epoch 9 now", false),
        ]) {
            assert!(told.contains(who) && told.contains("--keep there --force` here"), "{told}");
            assert_eq!(told.contains("--failover` there"), takes_over, "{told}");
        }
        // Somebody wants it nevertheless.
        copy.follow_any().await.expect("it is remembered");
        world.until_follows(2).await;
        assert_eq!((copy.floor(), copy.status().peers[0].last_error.clone()), (None, None));
    });
}

#[test]
fn a_side_that_was_set_back_follows_the_copy_that_has_all() {
    tell(async {
        let world = two_copies().await;
        assert_eq!(world.destination(0).floor(), Some((30, Some("host1:copy".to_owned()))));
        promoted(&world, 1).await;
        world.until_follows(1).await;
        assert_eq!(world.destination(0).floor(), None);
        assert_eq!(world.volumes(0), world.volumes(1));
    });
}

#[test]
fn a_snapshot_of_a_source_in_the_middle_of_its_work_is_told_from_a_crash() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        for n in 0..10 {
            write(&world.source(0).block(0), n * 4096, 4096, 1).await;
        }
        let then = image(&world, 0);
        for n in 0..20 {
            write(&world.source(0).block(0), n * 4096, 4096, 2).await;
        }
        world.kill(0);
        set_back(&world, 0, &then);
        let source = world.open_source(0).await;
        world.ship(0, 0, 1);
        assert_eq!(is_told(&world, &source).await, (10, 30));
    });
}

#[test]
fn a_source_that_was_set_back_and_has_gone_on_past_its_copy_is_not_mixed_with_it() {
    tell(async {
        let (world, then) = followed().await;
        world.kill(1);
        world.kill(0);
        set_back(&world, 0, &then);
        // It goes on alone, with the numbers of what its copy has, and is opened once more.
        let source = world.open_source(0).await;
        world.ship(0, 0, 1);
        for n in 0..40 {
            write(&source.block(0), n * 4096, 4096, 3).await;
        }
        source.close().await.expect("it closes");
        world.kill(0);
        let source = world.open_source(0).await;
        world.start_destination_as_it_is(1).await;
        let had = world.volumes(1);
        world.ship(0, 0, 1);
        assert_eq!(is_told(&world, &source).await, (10, 30));
        assert_eq!(world.volumes(1), had);
    });
}

#[test]
fn a_log_of_an_earlier_day_is_not_replayed_into_volumes_that_are_newer() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        write(&world.source(0).block(0), 0, 4096, 1).await;
        let (journal, _) = image(&world, 0);
        for _ in 0..20 {
            write(&world.source(0).block(0), 0, 4096, 2).await;
        }
        world.kill(0);
        // The state directory alone.
        world.nodes[0].journal.replace(journal);
        let had = world.volumes(0);
        let config = world.config.clone();
        let source = Source::open_unreplayed(world.side(0), config).await.expect("it opens");
        world.nodes[0].host.side.replace(super::link::Side::Source(source.clone()));
        world.ship(0, 0, 1);
        source.greeted().await;
        assert_eq!(is_told(&world, &source).await, (1, 21));
        assert_eq!(world.volumes(0), had);
        source.close().await.expect_err("it has halted");
        let state = journal::look(&world.nodes[0].journal.open(), &world.pool).await.expect("a state");
        assert_eq!(state.tail.sequence, 1, "nothing has left the log");
    });
}

#[test]
fn a_copy_that_is_as_it_was_before_a_resync_is_compared() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        let block = world.source(0).block(0);
        world.kill(1);
        let then = image(&world, 1);
        // More than the log holds, which does not name what was written first.
        for n in 0..300u64 {
            let at = if n < 40 { 256 * K } else { 0 };
            write(&block, at + (n % 8) * 4096, 4096, n as u8).await;
        }
        world.start_destination(1).await;
        world.until_follows(0).await;
        world.kill(1);
        set_back(&world, 1, &then);
        world.start_destination(1).await;
        // It is noticed by the next beat.
        rt::sleep(Duration::from_secs(10)).await;
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn a_journal_that_is_begun_anew_is_later_than_what_its_partners_know_and_does_not_become_a_copy() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let format = Format {
            partnership: super::world::PARTNERSHIP,
            role: Role::Source,
            tag: 5,
            sizes: vec![512 * K, 256 * K],
            log_bytes: 512 * K,
        };
        let partners = [group::Partner { name: "copy".into(), mode: Mode::Synchronous }];
        let renew = async |known| {
            world.kill(0);
            rescue::renew(&world.side(0), &format, &partners, true, known).await.expect("it is laid out");
            let source =
                Source::open(world.side(0), Config { ..world.config.clone() }).await.expect("it opens");
            world.nodes[0].host.side.replace(super::link::Side::Source(source.clone()));
            world.ship(0, 0, 1);
            source
        };
        // The clock was years ahead.
        let ahead = 2_000_000_000;
        let source = renew(ahead).await;
        assert_eq!(source.status().epoch, ahead + 1);
        world.until_follows(0).await;
        assert_eq!(world.destination(1).latest_epoch(), ahead + 1);
        // Nobody could be asked: it is refused, stops, and is not made a copy.
        let source = renew(0).await;
        world.until("it is told", || source.halted().is_some()).await;
        assert_eq!(source.halted().map(|(phase, _)| phase), Some(Phase::SplitBrain));
        // Somebody says once more that it counts.
        source.overrule(6).await.expect("it counts");
        assert_eq!(source.status().epoch, ahead + 2);
        rt::sleep(Duration::from_millis(1)).await;
    });
}
