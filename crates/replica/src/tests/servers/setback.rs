//! A server's disks are of an earlier day: a backup was restored, or a virtual machine returned to a snapshot.
//!
//! What is checked: what the copy has that the server has no more is not overwritten before somebody says so; two
//! histories are never mixed; and what each side says to type leads to two sides that are equal.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::{Sim, with_rng};
use weft_store::block::{Block, BlockOp};

use super::{CLIENTS, DECISIONS, SLOT, Servers, number};
use crate::group::{Cause, State};
use crate::status::Phase;

/// How many seeds are run; `WEFT_REPLICA_SEEDS` says otherwise.
const SEEDS: u64 = 40;

/// What a server's disks held at one moment.
struct Image {
    journal: Vec<u8>,
    members: Vec<Vec<u8>>,
    /// The last record, where it was a source that was followed.
    last: Option<u64>,
}

impl Servers {
    /// The last record of a source that its copy follows.
    fn followed(&self, n: usize) -> Option<u64> {
        let source = self.well(n)?;
        let copy = match self.running(1 - n)?.group.state() {
            State::Destination(copy) => copy.status(),
            _ => return None,
        };
        copy.consistent.then(|| source.status().last.min(copy.last))
    }

    /// What the disks of a server hold now: not in the middle of a resync, whose source takes it for finished later.
    fn image(&self, n: usize) -> Option<Image> {
        let whole = match self.running(n)?.group.state() {
            State::Destination(copy) => copy.status().consistent,
            State::Source(_) => true,
            _ => false,
        };
        let node = &self.world.nodes[n];
        whole.then(|| Image {
            journal: node.journal.content(),
            members: node.members.iter().map(|disk| disk.content()).collect(),
            last: self.followed(n),
        })
    }

    /// The server ends, and starts with what its disks held once: all of them, or the journal alone, which is noticed
    /// where the copy has more than that journal.
    fn set_back(self: &Rc<Self>, n: usize, image: &Image) {
        let more = image.last.zip(self.followed(n)).is_some_and(|(then, now)| then < now);
        let all = !more || with_rng(|rng| rng.below(3)) > 0;
        self.kill(n);
        self.world.nodes[n].journal.replace(image.journal.clone());
        if all {
            for (disk, content) in self.world.nodes[n].members.iter().zip(&image.members) {
                disk.replace(content.clone());
            }
        }
        self.stale[n].set(true);
    }

    /// A server follows the other one, so it has what that has.
    fn is_fresh_again(&self) {
        for n in 0..2 {
            let Some(State::Source(source)) = self.running(n).map(|running| running.group.state()) else {
                continue;
            };
            let follows = |phase, unprotected: bool| phase == Phase::ContinuouslyReplicating && !unprotected;
            if source.status().peers.iter().all(|peer| follows(peer.phase, peer.unprotected)) {
                self.stale[1 - n].set(false);
            }
        }
    }

    /// Something else happens, as it does.
    async fn disturb(self: &Rc<Self>, n: usize) {
        let life = self.world.nodes[n].host.life.get();
        match with_rng(|rng| rng.below(5)) {
            0 => {
                self.kill(n);
                rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=3000)))).await;
                self.start(n);
            }
            1 => {
                // It ends in order.
                if let Some(running) = self.running(n) {
                    let _died = self.within_life(n, life, running.group.close()).await;
                    self.kill(n);
                    self.start(n);
                }
            }
            2 => {
                if let Some(State::Source(source)) = self.running(n).map(|running| running.group.state()) {
                    let _refused = self.within_life(n, life, source.switch(0, self.next_tag())).await;
                }
            }
            3 => {
                self.world.cut();
                rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=4000)))).await;
                self.world.heal();
            }
            _ => {}
        }
        rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=2500)))).await;
    }
}

/// What went wrong, if something did; and whether the server that was set back has said so.
async fn story() -> (Option<String>, bool) {
    let servers = Servers::new(false).await;
    [0, 1].into_iter().for_each(|n| servers.start(n));
    (0..CLIENTS).for_each(|number| rt::spawn(servers.clone().client(number)).detach());
    rt::spawn(servers.clone().watch()).detach();
    rt::sleep(Duration::from_secs(2)).await;
    let pick = |most: usize| with_rng(|rng| rng.below(most));
    for _ in 0..pick(3) {
        servers.disturb(pick(2)).await;
    }
    let n = if pick(3) == 0 { 1 } else { 0 };
    let mut image = None;
    for _ in 0..200 {
        image = servers.image(n);
        if image.is_some() {
            break;
        }
        rt::sleep(Duration::from_millis(100)).await;
    }
    let mut told = false;
    if let Some(image) = image {
        for _ in 0..pick(4) {
            servers.disturb(pick(2)).await;
        }
        rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=2000)))).await;
        servers.set_back(n, &image);
        // It may have to go on alone for a while, perhaps past what the other one has, and be opened more than once.
        let alone = pick(3);
        match alone {
            0 => servers.kill(1 - n),
            1 => servers.world.cut(),
            _ => {}
        }
        for _ in 0..pick(3) {
            servers.start(n);
            rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=8000)))).await;
            servers.kill(n);
        }
        servers.start(n);
        rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=8000)))).await;
        servers.world.heal();
        if alone == 0 {
            servers.start(1 - n);
        }
    }
    let expected = |cause| matches!(cause, Cause::Split | Cause::SetBack);
    for _ in 0..DECISIONS {
        rt::sleep(Duration::from_secs(10)).await;
        servers.is_fresh_again();
        let is_told =
            |state: &State| matches!(state, State::Stopped(stopped) if stopped.cause == Cause::SetBack);
        told |= servers.states().iter().any(is_told);
        if servers.broken.borrow().is_some() || servers.settled().is_some() {
            break;
        }
        servers.decide_unless_stopped(expected).await;
    }
    servers.converges().await;
    let broken = servers.broken.borrow().clone();
    (broken, told)
}

fn run(seed: u64) -> (Option<String>, bool) {
    let result = Rc::new(std::cell::RefCell::new(None));
    let end = result.clone();
    Sim::new(seed).time_limit(Duration::from_secs(3600)).run(async move {
        let told = story().await;
        end.replace(Some(told));
    });
    result.take().expect("the story ends")
}

/// Writes a byte to a few places of a server's volume.
async fn write(servers: &Rc<Servers>, n: usize, byte: u8) {
    let running = servers.running(n).expect("it runs");
    for number in 0..10 {
        let (offset, data) = ((number * SLOT) as u64, vec![Bytes::from(vec![byte; SLOT])]);
        let write = BlockOp::Write { offset, data, durable: true };
        let written = rt::timeout(Duration::from_secs(60), running.fronts[0].submit(write)).await;
        written.expect("it is answered").expect("it is written");
    }
}

#[test]
fn what_the_log_of_a_server_that_was_set_back_holds_is_in_its_volumes_when_its_group_ends() {
    Sim::new(3).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        let flushed = servers.image(0).expect("it is whole").members;
        write(&servers, 0, 1).await;
        // As a power failure leaves it: all of it in the log, nothing in the volumes.
        let then = Image { members: flushed, ..servers.image(0).expect("it is whole") };
        write(&servers, 0, 2).await;
        servers.kill(0);
        let node = &servers.world.nodes[0];
        node.journal.replace(then.journal);
        node.members.iter().zip(&then.members).for_each(|(disk, content)| disk.replace(content.clone()));
        servers.start(0);
        let running = servers.running(0).expect("it runs");
        running.group.until(|state| matches!(state, State::Stopped(_))).await;
        let status = running.group.status().expect("its source is kept");
        assert!(status.last - status.applied >= 10, "it says that they are applied: {status:?}");
        let bare = servers.world.side(0).members;
        running.group.end(&bare, false, async |_| Ok(())).await.expect("it ends");
        // Durably.
        servers.kill(0);
        let has = servers.world.volumes(0).swap_remove(0);
        assert!(has[..10 * SLOT].iter().all(|byte| *byte == 1), "what was answered is gone");
    });
}

/// `WEFT_SEED=n` runs that one alone.
#[test]
fn whatever_is_set_back_nothing_is_mixed_and_nothing_is_overwritten_unasked() {
    let all = number("WEFT_REPLICA_SEEDS").unwrap_or(SEEDS);
    let seeds = number("WEFT_SEED").map_or(0..all, |seed| seed..seed + 1);
    let many = seeds.end - seeds.start >= SEEDS;
    let mut told = 0;
    for seed in seeds {
        let (broken, says) = run(seed);
        assert_eq!(broken, None, "WEFT_SEED={seed}");
        told += u64::from(says);
    }
    println!("{told} times a side has said that it was set back");
    assert!(!many || told > SEEDS / 8, "{told} times a side has said that it was set back");
}
