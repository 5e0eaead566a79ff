//! Disks that are full, and what is said of them.

use std::time::Duration;

use weft_machine::rt;

use super::stories::{K, pair, start, tell, write};
use super::three::{comes_back, following, opened};
use super::world::{ALIVE, Start};
use crate::error::Objection;
use crate::source::{Config, First, OnLoss};
use crate::status::{Mode, Phase, Role};

#[test]
fn what_is_to_be_written_to_a_full_disk_waits_for_space_and_that_is_said() {
    // Of either host the volume, and the journal.
    for (n, journal) in [(0, false), (0, true), (1, false), (1, true)] {
        tell(async {
            let config = Config { on_loss: OnLoss::Wait, ..start(Mode::Synchronous).config };
            let log_bytes = vec![512 * K, 64 * K];
            let world = pair(Start { config, log_bytes, ..start(Mode::Synchronous) }, First::Copy).await;
            let disk = match journal {
                true => world.nodes[n].journal.clone(),
                false => world.nodes[n].members[0].clone(),
            };
            disk.fill(true);
            let (source, copy) = (world.source(0), world.destination(1));
            let (block, done) = (source.block(0), std::rc::Rc::new(std::cell::Cell::new(0)));
            let count = done.clone();
            rt::spawn(async move {
                for i in 0..40 {
                    write(&block, i * 4096, 4096, i as u8 + 1).await;
                    count.set(i + 1);
                }
            })
            .detach();
            rt::sleep(Duration::from_secs(30)).await;
            assert!(done.get() < 40, "there was space on {n}");
            let full = if n == 0 { source.status().full } else { copy.status().full };
            assert!(full, "{n}, {journal}: nobody says so");
            disk.fill(false);
            world.until("all is written", || done.get() == 40).await;
            world.until_follows(0).await;
            assert!(!source.status().full && !copy.status().full);
            world.check_equal(0, 1).await;
        });
    }
}

#[test]
fn a_copy_whose_disk_is_full_is_heard_of_and_hears_of_its_source() {
    // Its volume, which it cannot apply to while a source says hello, and its journal, which is to name the source.
    for journal in [false, true] {
        tell(async {
            let world = pair(start(Mode::Asynchronous), First::Copy).await;
            let (source, copy) = (world.source(0), world.destination(1));
            let disk = match journal {
                true => world.nodes[1].journal.clone(),
                false => world.nodes[1].members[0].clone(),
            };
            disk.fill(true);
            write(&source.block(0), 0, 4096, 1).await;
            world.until("its disk is full", || copy.status().full).await;
            world.cut();
            rt::sleep(Duration::from_secs(30)).await;
            assert!(copy.is_source_silent());
            write(&source.block(0), 4096, 4096, 2).await;
            world.heal();
            rt::sleep(Duration::from_secs(5)).await;
            let (here, there) = (source.status().peers.remove(0), copy.status());
            let said = here.last_error.expect("it says why");
            assert!(said.contains("its disk is full"), "{said}");
            let now = world.side(0).wall.now_ms();
            assert!(now - here.heard_ms < 2000, "{} ms ago", now - here.heard_ms);
            assert!(there.full && !copy.is_source_silent());
            assert_ne!(there.peers[0].phase, Phase::WaitingForSource, "{there:?}");
            assert!(
                matches!(copy.objections()[..], [Objection::Alive(_), Objection::Behind(_)]),
                "{:?}",
                copy.objections()
            );
            disk.fill(false);
            world.until_follows(0).await;
            world.check_equal(0, 1).await;
        });
    }
}

#[test]
fn a_copy_whose_disk_is_full_refuses_the_other_source_of_a_split_for_what_it_is() {
    tell(async {
        let world = following().await;
        write(&world.source(0).block(0), 0, 4096, 1).await;
        world.kill(0);
        world.kill(2);
        // Two promotions, of which host 2 follows the first one.
        world.destination(1).promote(77, ALIVE).await.expect("it has everything");
        world.start_destination(2).await;
        let block = opened(&world, 1, &[2]).await.block(0);
        let copy = world.destination(2);
        write(&block, 0, 4096, 2).await;
        world.until_follows(1).await;
        world.nodes[2].members[0].fill(true);
        write(&block, 4096, 4096, 3).await;
        world.until("its disk is full", || copy.status().full).await;
        world.kill(1);
        comes_back(&world).await;
        let told = copy.objections();
        world.ship(0, 1, 2);
        world.until("both sides were written to", || copy.is_disputed()).await;
        assert!(
            !copy.objections().iter().any(|o| matches!(o, Objection::Behind(_))),
            "{told:?} {:?}",
            copy.objections()
        );
        // Whoever decides is told at once that this waits for space, or it is decided.
        if copy.give_up().await.is_err() {
            world.nodes[2].members[0].fill(false);
            copy.give_up().await.expect("there is space");
        }
        world.nodes[2].members[0].fill(false);
        world.until_follows(0).await;
        assert!(world.volumes(0) == world.volumes(2), "the copy has something else");
    });
}

#[test]
fn a_copy_whose_disk_is_full_is_not_promoted_when_there_is_space_again() {
    // What it cannot apply was there before it is asked for, or is only found then.
    for waits in [true, false] {
        tell(async {
            let world = pair(start(Mode::Asynchronous), First::Copy).await;
            let (block, copy) = (world.source(0).block(0), world.destination(1));
            let disk = &world.nodes[1].members[0];
            disk.fill(waits);
            if !waits {
                disk.slow_down(Duration::from_secs(2));
            }
            for i in 0..8 {
                write(&block, 0, 4096, i).await;
            }
            rt::sleep(Duration::from_secs(1)).await;
            assert_eq!(copy.status().full, waits);
            disk.fill(true);
            let began = rt::now();
            let promoted = rt::timeout(Duration::from_secs(30), copy.promote(99, ALIVE)).await;
            let promoted = promoted.expect("it is refused");
            let why = promoted.expect_err("it cannot apply its log").to_string();
            assert!(why.contains("a disk is full here"), "{why}");
            assert!(!waits || rt::now().since(began) < Duration::from_millis(1), "that is known at once");
            disk.slow_down(Duration::from_micros(50));
            disk.fill(false);
            world.until_follows(0).await;
            world.check_equal(0, 1).await;
            assert_eq!((world.role(1).await, copy.status().role), (Role::Destination, Role::Destination));
            copy.promote(100, ALIVE).await.expect("there is space");
        });
    }
}
