//! Pictures of a copy, which a test failover serves.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_store::block::{Block, BlockOp};

use super::stories::{K, pair, start, tell, write};
use super::world::{Start, World};
use crate::destination::Destination;
use crate::fuzz::disk::Disk;
use crate::source::{Config, First, OnFull};
use crate::status::Mode;

#[test]
fn a_picture_of_the_destination_can_be_tried_while_replication_goes_on() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.write_on(0, Duration::from_micros(500));
        for _ in 0..5 {
            world.check_snapshot(1).await.expect("a picture");
        }
        world.stop.set(true);
        let stores = world.nodes[1]
            .members
            .iter()
            .map(|disk| crate::fuzz::disk::Disk::new(vec![0; disk.content().len()], Duration::ZERO).open());
        let pictures = world.destination(1).snapshot(stores.collect()).await.expect("a picture");
        write(&pictures[0], 1000, 5000, 0xcc).await;
        world.until("nobody writes", || world.writers.get() == 0).await;
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        drop(pictures);
    });
}

/// Stores for a picture of a host's volumes.
fn stores(world: &World, n: usize) -> Vec<Disk> {
    let size = |disk: &Disk| disk.content().len();
    world.nodes[n].members.iter().map(|disk| Disk::new(vec![0; size(disk)], Duration::ZERO)).collect()
}

#[test]
fn a_picture_that_finds_no_room_ends_and_replication_goes_on() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        let (block, copy) = (world.source(0).block(0), world.destination(1));
        let disks = stores(&world, 1);
        let pictures = copy.snapshot(disks.iter().map(Disk::open).collect()).await.expect("a picture");
        write(&block, 0, 4096, 1).await;
        world.until("it is applied", || copy.status().applied == copy.status().last).await;
        assert_ne!(disks[0].content()[..4096], [0; 4096], "nothing was kept");
        disks.iter().for_each(|disk| disk.fill(true));
        write(&block, 300 * K, 4096, 2).await;
        world.until("it is applied", || copy.status().applied == copy.status().last).await;
        // Half of it would be wrong.
        let read = |n: usize| pictures[n].submit(BlockOp::Read { offset: 0, len: 4096 });
        read(0).await.expect_err("it has ended");
        write_fails(&pictures[0]).await;
        let why = copy.status().picture_ended.expect("it says so");
        assert!(why.starts_with("the snapshot of volume vol0 has ended"), "{why}");
        read(1).await.expect("nothing has changed there");
        assert_eq!(disks[0].content()[..4096], [0; 4096], "the room is not given back");
        world.until_follows(0).await;
        assert_eq!(copy.status().last_error, None);
        write(&block, 100 * K, 4096, 3).await;
        assert_eq!(world.source(0).status().unprotected_writes, 0);
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        drop(pictures);
        assert_eq!(copy.status().picture_ended, None);
    });
}

async fn write_fails(block: &Arc<dyn Block>) {
    let data = vec![Bytes::from_static(&[1; 512])];
    block.submit(BlockOp::Write { offset: 0, data, durable: false }).await.expect_err("it has ended");
}

#[test]
fn a_picture_that_finds_no_room_is_no_full_disk_of_a_resync() {
    tell(async {
        let start = start(Mode::Synchronous);
        let config = Config { on_full: OnFull::Resync, ..start.config.clone() };
        let world = pair(Start { config, ..start }, First::Copy).await;
        let copy = world.destination(1);
        let disks = stores(&world, 1);
        let pictures = copy.snapshot(disks.iter().map(Disk::open).collect()).await.expect("a picture");
        disks.iter().for_each(|disk| disk.fill(true));
        world.cut();
        let block = world.source(0).block(0);
        for i in 0..200 {
            write(&block, i % 128 * 4096, 4096, i as u8).await;
        }
        world.heal();
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
        assert!(copy.status().picture_ended.is_some());
        drop(pictures);
    });
}

#[test]
fn a_picture_of_a_destination_that_never_catches_up_is_had_nevertheless() {
    tell(async {
        let slow = Start {
            log_bytes: vec![512 * K, 128 * K],
            config: Config { memory_bytes: 32 << 10, ..start(Mode::Synchronous).config },
            slow_disk: Duration::from_millis(2),
            ..start(Mode::Synchronous)
        };
        let world = pair(slow, First::Copy).await;
        (0..4).for_each(|_| world.write_on(0, Duration::from_millis(1)));
        let copy = world.destination(1);
        let lags = |copy: &Destination| copy.status().last - copy.status().applied;
        world.until("its log is full", || copy.status().log_used > 120 * K).await;
        for _ in 0..3 {
            assert!(lags(&copy) > 0);
            let asked = copy.status().last;
            // Virtual time, and what lay in the log takes less than one second of it.
            let picture = rt::timeout(Duration::from_secs(60), world.check_snapshot(1)).await;
            picture.expect("it waits for what comes for ever").expect("a picture");
            assert!(copy.status().applied >= asked, "what was logged is not in it");
        }
        assert!(lags(&copy) > 0, "it has caught up, so nothing was shown");
        world.stop.set(true);
        world.until_follows(0).await;
        world.check_equal(0, 1).await;
    });
}
