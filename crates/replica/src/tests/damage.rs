//! Logs whose middle is gone, while a side is down and while it runs.

use std::sync::Arc;
use std::time::Duration;

use weft_machine::rt;
use weft_store::block::BlockOp;

use super::stories::{K, pair, start, tell, write};
use super::world::{ALIVE, Start, World};
use crate::error::Error;
use crate::rescue;
use crate::source::{Config, First, Source};
use crate::status::{Mode, Phase, Role};

/// Writes one after the other, each in a batch of its own: `count` records that the journals hold.
async fn write_some(world: &World, n: usize, count: u64) {
    let block = world.source(n).block(0);
    for i in 0..count {
        write(&block, i * 4096, 4096, i as u8 + 1).await;
    }
}

#[test]
fn a_source_does_not_give_up_for_a_destination_that_has_lost_something() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        write_some(&world, 0, 20).await;
        world.kill(1);
        world.ruin_log(1).expect("its log holds something");
        world.start_destination(1).await;
        // The source has not heard of it yet.
        let source = world.source(0);
        assert_eq!(source.status().peers[0].phase, Phase::ContinuouslyReplicating);
        source.switch(0, 5).await.expect_err("there is nobody to take over");
        assert_eq!(world.role(0).await, Role::Source);
        world.until_follows(0).await;
        write_some(&world, 0, 5).await;
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn reads_that_fail_are_counted_and_stop_nothing() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let block = world.source(0).block(1);
        write(&block, 0, 8192, 1).await;
        world.nodes[0].members[1].fail(4096);
        let read = |offset, len| block.submit(BlockOp::Read { offset, len });
        read(0, 4096).await.expect("its sectors are well");
        assert_eq!(world.source(0).status().read_errors, 0);
        for _ in 0..3 {
            read(0, 8192).await.expect_err("one of its sectors cannot be read");
        }
        read(1 << 40, 4096).await.expect_err("that is no fault of the disk");
        let status = world.source(0).status();
        assert_eq!((status.read_errors, status.last_error), (3, None));
        let said = status.last_read_error.expect("it says which");
        assert!(said.starts_with("volume vol1: 8192 bytes at 0 cannot be read"), "{said}");
        // It goes on, and the copy has what was written.
        write(&block, 4096, 4096, 2).await;
        read(0, 8192).await.expect("its sector was written to");
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}

#[test]
fn a_destination_goes_on_before_the_damage_and_is_no_copy_until_it_has_caught_up() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        write_some(&world, 0, 20).await;
        world.kill(1);
        let first = world.ruin_log(1).expect("its log holds something");
        let copy = world.start_destination(1).await;
        let status = copy.status();
        assert_eq!((status.consistent, status.last), (false, first - 1));
        let said = status.peers[0].last_error.clone().expect("it says so");
        assert!(said.contains("damaged") && said.contains(&first.to_string()), "{said}");
        assert!(matches!(copy.promote(5, ALIVE).await, Err(Error::State(_))), "it is promoted unasked");
        let copy = {
            // To be opened again, it is no other: the damage was written down.
            world.kill(1);
            world.start_destination(1).await
        };
        assert!(!copy.status().consistent);
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        let status = copy.status();
        assert!(status.consistent && status.peers[0].last_error.is_none(), "{status:?}");
        // What it lacked was in the source's log.
        assert_eq!(world.source(0).status().peers[0].bytes_done, 0);
        // And it is a copy like any other again.
        world.kill(1);
        assert!(world.start_destination(1).await.status().consistent);
    });
}

#[test]
fn a_source_whose_log_is_damaged_is_not_opened_and_the_destination_takes_over() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        write_some(&world, 0, 20).await;
        world.kill(0);
        let first = world.ruin_log(0).expect("its log holds something");
        let refused = Source::open(world.side(0), Config::default()).await;
        let Err(Error::Log(damage)) = refused else { panic!("{refused:?}") };
        assert_eq!((damage.first, damage.last), (first, 20));
        let era = world.destination(1).promote(5, ALIVE).await.expect("it has everything");
        assert_eq!(era.after, 20);
        rescue::give_up(&world.side(0)).await.expect("it gives up");
        assert!(matches!(rescue::give_up(&world.side(0)).await, Err(Error::Role { .. })));
        world.kill(1);
        let new = world.start_source(1).await;
        world.add_peer(&new, "old", First::Partner).await;
        world.start_destination(0).await;
        world.ship(1, 0, 0);
        world.until_follows(1).await;
        world.check_equal(1, 0).await;
        // Compared as a whole, and sent what its volume had not been made durable of.
        let peer = new.status().peers.remove(0);
        assert_eq!(peer.bytes_done, 768 * K);
        assert!(peer.bytes_sent <= 128 * K, "{peer:?}");
    });
}

#[test]
fn a_journal_that_was_cut_off_behind_its_state_is_of_no_use() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        write_some(&world, 0, 20).await;
        for n in [0, 1] {
            world.kill(n);
            let mut content = world.nodes[n].journal.content();
            content.truncate(content.len() - 512);
            world.nodes[n].journal.replace(content);
        }
        let refused = Source::open(world.side(0), Config::default()).await.expect_err("its log is not whole");
        assert!(matches!(refused, Error::Damaged(_)) && refused.to_string().contains("cut off"), "{refused}");
        let config = crate::destination::Config::default();
        let refused = crate::destination::Destination::open(world.side(1), config).await.map(drop);
        assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
    });
}

#[test]
fn what_is_left_of_a_source_counts_where_somebody_says_so() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        write_some(&world, 0, 20).await;
        world.kill(0);
        assert!(
            matches!(rescue::salvage(&world.side(0), 6).await, Err(Error::State(_))),
            "there is no damage"
        );
        let first = world.ruin_log(0).expect("its log holds something");
        let state = rescue::salvage(&world.side(0), 6).await.expect("it goes on with what is left");
        assert_eq!((state.role, state.era().epoch, state.era().after), (Role::Source, 2, first - 1));
        world.model.borrow_mut().forget_after(first - 1);
        let source = world.open_source(0).await;
        world.ship(0, 0, 1);
        write(&source.block(1), 64 * K, 4096, 0xee).await;
        world.until_follows(0).await;
        let last = source.status().last;
        let copy = world.destination(1);
        world.until("everything is applied", || copy.status().applied == last).await;
        // Whatever that is: both have the same.
        world.compare(1, &world.volumes(0), "they are not equal");
        // And what was behind the damage was not thrown away.
        let volume = &world.volumes(0)[0];
        for sequence in (1..=20).filter(|sequence| *sequence != first) {
            assert_eq!(volume[(sequence as usize - 1) * 4096], sequence as u8, "record {sequence}");
        }
        assert!(Source::open(world.side(0), Config::default()).await.is_ok(), "it is whole again");
    });
}

#[test]
fn a_record_that_rots_while_its_destination_is_away_is_gone_round() {
    tell(async {
        let config = Config { memory_bytes: 4 << 10, ..start(Mode::Asynchronous).config };
        let world = pair(Start { config, ..start(Mode::Asynchronous) }, First::Copy).await;
        world.cut();
        write_some(&world, 0, 30).await;
        // None of them is kept in memory.
        // A source that runs has the headers in memory.
        let rotten = world.ruin_payload(0).expect("its log holds something");
        let source: Arc<Source> = world.source(0);
        world.heal();
        let (mut done, before) = (0, source.status().peers[0].bytes_done);
        world
            .until("it follows", || {
                // Of the session that copied it: another one may begin when that is over.
                let now = source.status().peers[0].bytes_done;
                done = done.max(if now == before { 0 } else { now });
                source.status().peers[0].phase == Phase::ContinuouslyReplicating
                    && source.status().peers[0].lag_bytes == 0
            })
            .await;
        world.check_equal(0, 1).await;
        assert!(done > 0, "record {rotten} was not gone round");
        rt::sleep(Duration::from_secs(1)).await;
        // It does not lie in the way of the next start.
        world.kill(0);
        world.start_source(0).await;
    });
}
