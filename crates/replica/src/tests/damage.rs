//! Logs whose middle is gone, while a side is down and while it runs.

use std::sync::Arc;
use std::time::Duration;

use weft_machine::rt;
use weft_store::block::BlockOp;

use super::stories::{K, pair, start, tell, write};
use super::world::{ALIVE, PARTNERSHIP, Start, World};
use crate::error::Error;
use crate::group::Partner;
use crate::journal::{self, Format};
use crate::rescue;
use crate::source::{Config, First, OnFull, Source};
use crate::state::{COPY_BYTES, Damaged, State};
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
        assert!(matches!(copy.promote(5, ALIVE).await, Err(Error::Objections(_))), "it is promoted unasked");
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

#[test]
fn a_journal_whose_renewal_is_interrupted_is_of_no_use_or_is_what_it_was_to_become() {
    tell(async {
        let format = Format {
            partnership: PARTNERSHIP,
            role: Role::Source,
            tag: 5,
            sizes: vec![512 * K, 256 * K],
            log_bytes: 512 * K,
        };
        let partners = [Partner { name: "copy".into(), mode: Mode::Synchronous }];
        for keep_here in [true, false] {
            let (mut lost, mut renewed) = (0, 0);
            for after in 0..120 {
                let world =
                    World::new(Start { slow_disk: Duration::from_micros(20), ..start(Mode::Synchronous) })
                        .await;
                world.nodes[0].journal.replace(vec![0xee; world.nodes[0].journal.content().len()]);
                let side = world.side(0);
                let renewing = rescue::renew(&side, &format, &partners, keep_here, 77);
                let done = rt::timeout(Duration::from_micros(after * 5), renewing)
                    .await
                    .map(|done| done.expect("there is room"));
                world.kill(0);
                let side = world.side(0);
                match journal::look(&side.journal, &side.pool).await {
                    // Somebody decides once more.
                    Err(e) => {
                        assert!(matches!(e, Error::Damaged(_)) && done.is_err(), "{e}, {done:?}");
                        lost += 1;
                    }
                    Ok(state) if keep_here => {
                        assert_eq!(state.role, Role::Source);
                        assert!(state.era().epoch > 77 && state.peers.len() == 1, "{after}: {state:?}");
                        renewed += 1;
                    }
                    Ok(state) => {
                        assert_eq!(state.role, Role::Destination);
                        assert!(state.holds && state.gave_up && state.damaged, "{after}: {state:?}");
                        renewed += 1;
                    }
                }
            }
            assert!(lost > 0 && renewed > 0, "{lost} of no use, {renewed} renewed");
        }
    });
}

/// Both copies of a dead host's state, as far as they can be believed.
fn copies(world: &World, n: usize) -> [Option<State>; 2] {
    let content = world.nodes[n].journal.content();
    [0, COPY_BYTES].map(|at| State::parse(content[at..at + COPY_BYTES].try_into().expect("a copy")).ok())
}

#[test]
fn a_damaged_page_does_not_make_a_source_forget_that_it_answered_alone() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.kill(1);
        rt::sleep(Duration::from_secs(1)).await;
        write(&world.source(0).block(0), 0, 4096, 0xaa).await;
        world.kill(0);
        world.ruin_state(0);
        let era = world.start_destination(1).await.promote(99, ALIVE).await.expect("it is consistent");
        world.kill(1);
        world.model.borrow_mut().forget_after(era.after);
        let new = world.open_source(1).await;
        write(&new.block(0), 200 * K, 4096, 0xbb).await;
        let old = world.open_source(0).await;
        world.ship(0, 0, 1);
        world.until("it is told", || old.status().last_error.is_some()).await;
        assert_eq!(old.status().peers[0].phase, Phase::SplitBrain);
    });
}

#[test]
fn a_damaged_page_does_not_make_a_mix_of_a_copy() {
    tell(async {
        let start = start(Mode::Synchronous);
        let config = Config { on_full: OnFull::Resync, ..start.config.clone() };
        let world = pair(Start { config, slow_disk: Duration::from_millis(2), ..start }, First::Copy).await;
        world.cut();
        let block = world.source(0).block(0);
        for i in 0..200 {
            write(&block, i % 128 * 4096, 4096, i as u8).await;
        }
        world.heal();
        let copy = world.destination(1);
        world.until("it is resynced", || !copy.status().consistent).await;
        world.kill(1);
        world.ruin_state(1);
        let copy = world.start_destination_as_it_is(1).await;
        assert!(!copy.status().consistent);
        assert!(matches!(copy.promote(5, ALIVE).await, Err(Error::Objections(_))), "it is promoted unasked");
    });
}

#[test]
fn what_a_state_promises_is_in_both_copies_and_a_damaged_one_is_written_anew() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let grown = [800 * K, 256 * K];
        [0, 1].into_iter().for_each(|n| world.lengthen(n, &grown));
        world.source(0).grow(&grown).await.expect("it grows");
        for n in 0..2 {
            world.kill(n);
            let side = world.side(n);
            let before = journal::look(&side.journal, &side.pool).await.expect("a state");
            world.ruin_state(n);
            let found = journal::look(&side.journal, &side.pool).await.expect("the other one is good");
            assert!(found.promises_as(&before) && found.generation < before.generation);
            let mended = journal::mend(&side).await.expect("it is written anew");
            let [Some(first), Some(second)] = copies(&world, n) else { panic!("a copy is damaged still") };
            assert!(first.promises_as(&second) && mended.promises_as(&before));
            assert_eq!(mended.generation, first.generation.max(second.generation));
        }
    });
}

#[test]
fn a_write_of_the_log_s_progress_goes_to_one_copy() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let source = world.source(0);
        write(&source.block(0), 0, 4096, 1).await;
        world.until_follows(0).await;
        source.checkpoint().await.expect("there is room");
        let before = source.status().generation;
        write(&source.block(0), 0, 4096, 2).await;
        world.until_follows(0).await;
        source.checkpoint().await.expect("there is room");
        assert_eq!(source.status().generation, before + 1);
    });
}

#[test]
fn a_journal_that_cannot_be_read_is_not_lost() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.kill(0);
        let journal = &world.nodes[0].journal;
        let whole = journal.content();
        let look = || async {
            let side = world.side(0);
            journal::look(&side.journal, &side.pool).await
        };
        journal.fail(0);
        look().await.expect("the other copy is good");
        journal.fail(COPY_BYTES);
        assert!(matches!(look().await, Err(Error::Store(_))), "{:?}", look().await);
        // One is damaged, and nobody knows what the other one says.
        journal.mend();
        journal.fail(0);
        journal.plant(COPY_BYTES, &[0; 8]);
        assert!(matches!(look().await, Err(Error::Store(_))), "{:?}", look().await);
        journal.mend();
        journal.plant(0, &[0; 8]);
        assert!(matches!(look().await, Err(Error::Damaged(Damaged::Magic))), "{:?}", look().await);
        for bytes in [0, COPY_BYTES, 3 * COPY_BYTES] {
            journal.replace(whole[..bytes].to_vec());
            assert!(matches!(look().await, Err(Error::Damaged(_))), "{bytes} bytes: {:?}", look().await);
        }
    });
}
