//! What the log says names the group and the partner that it is about.

use std::time::Duration;

use super::stories::{pair, start, write};
use super::world::World;
use crate::group::{Group, SETTLES_WITHIN, State};
use crate::source::{Config, First};
use crate::status::{Mode, Phase};
use weft_machine::rt;
use weft_machine::sim::{self, Sim};

/// What is logged while a story is told.
fn logged<F: Future<Output = ()>>(story: F) -> Vec<String> {
    let ((), lines) = sim::logged(7, story);
    lines.into_iter().map(|(_, line)| line).collect()
}

fn says(lines: &[String], wanted: &str) {
    assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted:?} is not in {lines:#?}");
}

async fn following() -> World {
    let start = start(Mode::Synchronous);
    let config = Config { group: "db".into(), ..start.config };
    pair(super::world::Start { config, ..start }, First::Copy).await
}

#[test]
fn a_source_that_stops_names_its_group_and_who_is_the_source_now() {
    let lines = logged(async {
        let world = following().await;
        world.source(0).switch(0, 5).await.expect("the copy follows");
    });
    says(&lines, "group db: replication to copy: ContinuouslyReplicating");
    says(&lines, "group db: replication stops, and so do writes: the roles were exchanged");
}

#[test]
fn a_destination_that_is_not_heard_of_is_named() {
    let lines = logged(async {
        let world = following().await;
        world.kill(0);
        let source = world.start_source(0).await;
        // Nobody ships to it.
        source.greeted().await;
        assert_eq!(source.status().peers[0].phase, Phase::WaitingForDestination);
    });
    says(&lines, "group db: copy did not answer within 1.5s whether this side is still the source");
}

#[test]
fn a_group_that_does_not_open_says_for_how_long_it_was_waited_for() {
    Sim::new(7).run(async {
        let group = Group::new("db", Vec::new());
        let began = rt::now();
        let why =
            group.settled(|state| matches!(state, State::Source(_))).await.expect_err("nobody opens it");
        assert_eq!(rt::now().since(began), SETTLES_WITHIN);
        assert!(
            why.starts_with("db is not open after 60 s") && why.contains("`weft replica status`"),
            "{why}"
        );
    });
}

#[test]
fn a_source_whose_disk_fails_says_that_its_copy_takes_over() {
    let stopped = Group::new("db", Vec::new()).failed_source("volume vol1: input/output error");
    assert!(stopped.why.starts_with("volume vol1: input/output error. "), "{}", stopped.why);
    for said in ["`weft replica switch db --failover` there", "start the server again"] {
        assert!(stopped.why.contains(said), "{said}: {}", stopped.why);
    }
}

#[test]
fn a_copy_whose_disk_fails_names_its_group_and_its_source() {
    let lines = logged(async {
        let world = following().await;
        let block = world.source(0).block(0);
        write(&block, 0, 4096, 1).await;
        let copy = world.destination(1);
        world.until("it is applied", || copy.status().applied == copy.status().last).await;
        world.nodes[1].members[0].fail(0);
        let compared = world.source(0).verify(0, false).await;
        compared.expect_err("one of its sectors cannot be read");
        rt::sleep(Duration::from_millis(1)).await;
    });
    says(&lines, "group replica: the copy of its source: volume vol0: ");
}

#[test]
fn a_full_disk_is_named_with_its_group_and_volume() {
    let lines = logged(async {
        let world = following().await;
        let block = world.source(0).block(1);
        world.nodes[0].members[1].fill(true);
        let held = rt::timeout(Duration::from_millis(100), write(&block, 0, 4096, 1)).await;
        held.expect_err("it waits");
        world.nodes[0].journal.fill(true);
        let held = rt::timeout(Duration::from_millis(100), write(&block, 8192, 4096, 1)).await;
        held.expect_err("it waits");
        world.nodes[0].members[1].fill(false);
        world.nodes[0].journal.fill(false);
        rt::sleep(Duration::from_secs(3)).await;
    });
    says(&lines, "group db: the disk of volume vol1 is full");
    says(&lines, "group db: the disk of its journal is full");
}

#[test]
fn a_log_that_cannot_be_read_is_named_with_its_group_and_so_is_what_is_given_up_of_it() {
    let lines = logged(async {
        let world = following().await;
        let block = world.source(0).block(0);
        for number in 0..8 {
            write(&block, number * 4096, 4096, 1).await;
        }
        world.kill(0);
        let journal = &world.nodes[0].journal;
        let (side, content) = (world.side(0), journal.content());
        let state = crate::journal::look(&side.journal, &side.pool).await.expect("a state");
        let log_at = state.layout.log_at as usize;
        // The second of the records of 512 and 4096 bytes.
        journal.fail(log_at + 4608);
        assert!(content.len() > log_at + 4608);
        crate::rescue::salvage(&side, 9).await.expect("what is left of it counts");
    });
    says(&lines, "group db: 512 bytes of its log, at 4608, cannot be read");
    says(&lines, "group db: its log is damaged, and records 2 to 8 are given up");
}

#[test]
fn a_volume_that_was_made_shorter_is_named_with_what_to_type() {
    Sim::new(7).run(async {
        let world = following().await;
        world.kill(0);
        let disk = &world.nodes[0].members[1];
        disk.replace(disk.content()[..4096].to_vec());
        let refused = crate::source::Source::open(world.side(0), world.config.clone()).await;
        let why = refused.expect_err("it is short").to_string();
        assert!(
            why.starts_with("volume vol1 has 4096 bytes") && why.contains("`weft replica verify db "),
            "{why}"
        );
    });
}
