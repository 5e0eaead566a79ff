//! What clients meet while a copy becomes the source, and while replication is removed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use weft_machine::sim::{Sim, with_rng};
use weft_machine::{Pool, rt};
use weft_store::Error;
use weft_store::block::{Block, BlockOp, Outcome};

use super::{Running, Runs, SLOT, Servers};
use crate::destination::Force;
use crate::front::Front;
use crate::group::{Settled, State};

#[test]
fn requests_wait_while_a_copy_that_was_promoted_asks_its_destinations() {
    Sim::new(7).run(async {
        let servers = Servers::new(false).await;
        [0, 1].into_iter().for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0));
        servers.kill(0);
        // It comes back, and says nothing yet.
        servers.world.nodes[0].host.side.replace(Runs::Starting);
        let running = servers.running(1).expect("it runs");
        let State::Destination(copy) = running.group.state() else { panic!("a copy") };
        let write = || {
            let data = vec![Bytes::from(vec![7; SLOT])];
            running.fronts[0].submit(BlockOp::Write { offset: 0, data, durable: false })
        };
        write().await.expect_err("it is a copy");
        copy.promote(77, Force { source_alive: true, inconsistent: false, behind: false })
            .await
            .expect("it is promoted");
        rt::sleep(Duration::from_secs(1)).await;
        assert!(matches!(running.group.state(), State::Starting));
        write().await.expect("it waits, and is written");
    });
}

#[test]
fn a_front_that_is_closed_says_something_else_and_no_other_does() {
    Sim::new(7).run(async {
        let servers = Servers::new(false).await;
        [0, 1].into_iter().for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0));
        for n in [0, 1] {
            let running = servers.running(n).expect("it runs");
            running.group.is_copy_of("third:db");
            let read = running.fronts[0].submit(BlockOp::Read { offset: 0, len: SLOT }).await;
            match n {
                0 => drop(read.expect("a source stays one")),
                _ => assert!(read.expect_err("a copy").to_string().contains("third:db")),
            }
        }
    });
}

/// Writes to a slot of its own through a front until it is told to stop, and returns the last byte that was answered,
/// or the first refusal.
async fn write_on(front: Arc<Front>, pool: Pool, slot: usize, stop: Rc<Cell<bool>>) -> Result<u8, String> {
    let mut byte = 0_u8;
    while !stop.get() {
        byte = byte.wrapping_add(1);
        let data = vec![Bytes::from(vec![byte; SLOT])];
        let write = BlockOp::Write { offset: (slot * SLOT) as u64, data, durable: slot.is_multiple_of(2) };
        front.submit(write).await.map_err(|e| format!("a write is refused: {e}"))?;
        front.until_readable().await.map_err(|e| format!("a read is refused: {e}"))?;
        let read = front.submit(BlockOp::Read { offset: (slot * SLOT) as u64, len: SLOT }).await;
        let Outcome::Data(read) = read.map_err(|e| format!("a read is refused: {e}"))? else {
            panic!("no data")
        };
        let read = read.into_chain(&pool).await.expect("it is read");
        assert!(read.iter().flatten().all(|read| *read == byte), "what was answered is not read");
        rt::sleep(Duration::from_micros(with_rng(|rng| rng.within(0..=300)))).await;
    }
    Ok(byte)
}

#[test]
fn nobody_is_refused_while_replication_is_removed_and_what_is_answered_is_in_the_volume() {
    for seed in 0..20 {
        Sim::new(seed).time_limit(Duration::from_secs(600)).run(async {
            let servers = Servers::new(false).await;
            [0, 1].into_iter().for_each(|n| servers.start(n));
            assert_eq!(servers.settles().await, Some(0));
            let running = servers.running(0).expect("it runs");
            let stop = Rc::new(Cell::new(false));
            let client = |slot| {
                rt::spawn(write_on(running.fronts[0].clone(), servers.world.pool.clone(), slot, stop.clone()))
            };
            let clients: Vec<_> = (0..8).map(client).collect();
            rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=20)))).await;
            running.group.detach("other", || Ok(())).await.expect("it is removed");
            let bare = servers.world.side(0).members;
            let forget = async |_: &Settled| {
                // Nobody has written to the volume past the log while a crash could bring that back.
                let before = servers.world.volumes(0);
                rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=2000)))).await;
                assert!(servers.world.volumes(0) == before, "it is written to before its log is gone");
                Ok(())
            };
            running.group.end(&bare, false, forget).await.expect("it ends");
            rt::sleep(Duration::from_millis(10)).await;
            stop.set(true);
            for (slot, client) in clients.into_iter().enumerate() {
                let byte = client.await.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                let volume = servers.world.volumes(0).swap_remove(0);
                let held = &volume[slot * SLOT..(slot + 1) * SLOT];
                assert!(held.iter().all(|held| *held == byte), "seed {seed}: an answered write is lost");
            }
        });
    }
}

/// Server 0 is the source, and its destination was removed.
async fn without_destination() -> (Rc<Servers>, Running) {
    let servers = Servers::new(false).await;
    [0, 1].into_iter().for_each(|n| servers.start(n));
    assert_eq!(servers.settles().await, Some(0));
    let running = servers.running(0).expect("it runs");
    running.group.detach("other", || Ok(())).await.expect("it is removed");
    (servers, running)
}

fn write(front: &Arc<Front>, slot: usize) -> impl Future<Output = Result<Outcome, Error>> + use<> {
    let front = front.clone();
    let data = vec![Bytes::from(vec![7; SLOT])];
    async move { front.submit(BlockOp::Write { offset: (slot * SLOT) as u64, data, durable: false }).await }
}

#[test]
fn requests_are_refused_with_the_reason_when_replication_cannot_be_removed_and_wait_for_no_other_attempt() {
    Sim::new(7).time_limit(Duration::from_secs(600)).run(async {
        let (servers, running) = without_destination().await;
        let (front, bare) = (&running.fronts[0], servers.world.side(0).members);
        let (ended, written) = {
            let forget = async |_: &Settled| {
                rt::sleep(Duration::from_secs(1)).await;
                Err("the folder is read-only".to_owned())
            };
            let later = async {
                rt::sleep(Duration::from_millis(500)).await;
                write(front, 0).await
            };
            join(running.group.end(&bare, false, forget), later).await
        };
        ended.expect_err("its records are there");
        for written in [written, write(front, 0).await] {
            assert!(written.expect_err("nothing is behind it").to_string().contains("read-only"));
        }
        // The command is stopped in the middle.
        let never = running.group.end(&bare, false, async |_: &Settled| std::future::pending().await);
        rt::timeout(Duration::from_secs(1), never).await.expect_err("it does not end");
        let refused = write(front, 0).await.expect_err("nothing is behind it").to_string();
        assert!(refused.contains("repeat the command"), "{refused}");
        running.group.end(&bare, false, async |_: &Settled| Ok(())).await.expect("it ends");
        write(front, 0).await.expect("it is a volume like any other");
        assert!(servers.world.volumes(0)[0][..SLOT].iter().all(|byte| *byte == 7));
    });
}

#[test]
fn a_source_whose_writes_wait_goes_on_when_replication_cannot_be_removed() {
    for full in [false, true] {
        Sim::new(7).time_limit(Duration::from_secs(3600)).run(async move {
            let (servers, running) = without_destination().await;
            let (front, bare) = (&running.fronts[0], servers.world.side(0).members);
            let disk = &servers.world.nodes[0].members[0];
            match full {
                true => disk.fill(true),
                false => disk.slow_down(Duration::from_secs(400)),
            }
            let first = rt::spawn(write(front, 0));
            rt::sleep(Duration::from_secs(2)).await;
            disk.slow_down(Duration::from_micros(20));
            let refused = async {
                let end = running.group.end(&bare, full, async |_: &Settled| panic!("its log is removed"));
                end.await.expect_err("a write is not carried out")
            };
            let second = rt::spawn(write(front, 1));
            let refused = refused.await;
            assert!(refused.contains(if full { "make room" } else { "try again" }), "{refused}");
            // It is as it was.
            assert!(matches!(running.group.state(), State::Source(_)) && !running.group.has_ended());
            disk.fill(false);
            second.await.expect("the source has written it");
            first.await.expect("the source has written it");
            write(front, 2).await.expect("it is still the source");
            running.group.end(&bare, false, async |_: &Settled| Ok(())).await.expect("it ends");
            assert!(servers.world.volumes(0)[0][..3 * SLOT].iter().all(|byte| *byte == 7));
        });
    }
}

#[test]
fn a_log_that_is_not_in_the_volumes_is_not_removed_however_often_that_is_tried() {
    let (mut failed, mut removed) = (0, 0);
    for ms in 0..40 {
        let (refused, is_removed) = Sim::new(ms).time_limit(Duration::from_secs(3600)).run(async move {
            let (servers, running) = without_destination().await;
            let (front, bare) = (&running.fronts[0], servers.world.side(0).members);
            let disk = &servers.world.nodes[0].members[0];
            write(front, 0).await.expect("the source has written it");
            disk.slow_down(Duration::from_millis(10));
            let removed = Cell::new(false);
            let forget = async |_: &Settled| {
                removed.set(true);
                Ok(())
            };
            let breaks = async {
                rt::sleep(Duration::from_millis(ms)).await;
                disk.break_down(true);
            };
            let (first, ()) = join(running.group.end(&bare, false, forget), breaks).await;
            let mut refused = u32::from(first.is_err());
            for works in [false, false, true] {
                rt::sleep(Duration::from_secs(1)).await;
                // Of a source that has stopped, records may be given up: the user is told.
                if !removed.get() && matches!(running.group.state(), State::Source(_)) {
                    disk.break_down(!works);
                    refused += u32::from(running.group.end(&bare, false, forget).await.is_err());
                }
            }
            // The power fails.
            disk.forget();
            let durable = disk.durable();
            let is_there = durable[..SLOT].iter().all(|byte| *byte == 7);
            assert!(is_there || !removed.get(), "{ms} ms: an answered write is nowhere");
            (refused, removed.get())
        });
        failed += u64::from(refused > 0);
        removed += u64::from(is_removed);
    }
    assert!(failed > 0 && removed > 0, "{failed} attempts failed, and {removed} logs were removed");
}
