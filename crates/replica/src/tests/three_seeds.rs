//! Three hosts at once, from one number: whoever is the source dies, hands over or is cut off while the others are in
//! the middle of something.
//!
//! What is checked: writes that were answered while all three had them are there in the end, and the three are equal.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::{Rng, Sim, with_rng};
use weft_store::block::BlockOp;

use super::seeds::number;
use super::world::{ALIVE, Start, World};
use crate::error::Error;
use crate::source::{Config, First, OnFull, OnLoss, PeerConfig, Source};
use crate::status::{Mode, Phase, Role};

const BLOCK: usize = 4096;
const BLOCKS: usize = 256;

fn start(rng: &mut Rng) -> Start {
    let slow = |rng: &mut Rng, of: [u64; 3]| Duration::from_micros(of[rng.below(3)]);
    Start {
        sizes: vec![(BLOCKS * BLOCK) as u64],
        log_bytes: (0..3).map(|_| rng.within(64..=256) * 1024).collect(),
        mode: Mode::Synchronous,
        config: Config {
            memory_bytes: 32 << 10,
            on_loss: OnLoss::Continue,
            on_full: if rng.below(2) == 0 { OnFull::Slow } else { OnFull::Resync },
            retry: Duration::from_millis(20),
            timeout: Duration::from_millis(500),
            ..Config::default()
        },
        slow_disk: slow(rng, [20, 200, 2000]),
        slow_cable: slow(rng, [10, 100, 2000]),
        filled: 0,
        same: false,
    }
}

struct Story {
    world: World,
    source: usize,
    tag: u64,
    count: Rc<Cell<u64>>,
    /// By block: what was written last and answered while all hosts had it.
    protected: Rc<RefCell<BTreeMap<usize, u64>>>,
}

fn name(n: usize) -> String {
    format!("host{n}:copy")
}

impl Story {
    fn others(&self) -> [usize; 2] {
        [(self.source + 1) % 3, (self.source + 2) % 3]
    }

    /// One writer: what it writes is counted.
    fn write(&self) {
        let source = self.world.source(self.source);
        let (host, count) = (self.world.nodes[self.source].host.clone(), self.count.clone());
        let (life, protected, stop) = (host.life.get(), self.protected.clone(), self.world.stop.clone());
        let pause = with_rng(|rng| [200, 1000, 4000][rng.below(3)]);
        rt::spawn(async move {
            let block = source.block(0);
            while !stop.get() && host.life.get() == life {
                let at = with_rng(|rng| rng.below(BLOCKS));
                count.set(count.get() + 1);
                let number = count.get();
                let data = vec![Bytes::from(number.to_le_bytes().repeat(BLOCK / 8))];
                let op = BlockOp::Write { offset: (at * BLOCK) as u64, data, durable: false };
                if block.submit(op).await.is_err() {
                    return;
                }
                let status = source.status();
                let all_have = status.peers.len() == 2 && status.peers.iter().all(|peer| !peer.unprotected);
                if all_have && host.life.get() == life {
                    protected.borrow_mut().insert(at, number);
                }
                rt::sleep(with_rng(|rng| Duration::from_micros(rng.within(0..=pause)))).await;
            }
        })
        .detach();
    }

    /// A host is opened as a source, and sends to the others.
    async fn open(&self, n: usize) -> Arc<Source> {
        let source = self.world.open_source(n).await;
        for to in (0..3).filter(|to| *to != n) {
            let known = source.status().peers.iter().position(|peer| peer.name == name(to));
            let peer = match known {
                Some(peer) => peer,
                None => {
                    let peer = |first| PeerConfig { name: name(to), mode: Mode::Synchronous, first };
                    match source.add_peer(peer(First::Partner)).await {
                        Err(Error::State(_)) => source.add_peer(peer(First::Seeded)).await,
                        other => other,
                    }
                    .expect("there is room")
                }
            };
            self.world.ship(n, peer, to);
        }
        source
    }

    async fn nap(&self, most_ms: u64) {
        rt::sleep(Duration::from_micros(with_rng(|rng| rng.within(0..=most_ms * 1000)))).await;
    }

    async fn restart_copy(&self, n: usize, most_ms: u64) {
        self.world.kill(n);
        self.nap(most_ms).await;
        self.world.start_destination_as_it_is(n).await;
    }

    async fn restart_source(&self) {
        self.world.kill(self.source);
        self.nap(30).await;
        let source = self.open(self.source).await;
        source.greeted().await;
        assert!(source.halted().is_none(), "{:?}", source.halted());
        self.write();
    }

    /// The new source is opened; the old one comes back as its copy.
    async fn succeeded_by(&mut self, n: usize) {
        let old = std::mem::replace(&mut self.source, n);
        self.world.kill(n);
        self.open(n).await;
        // Both are opened at the same moment, or one after the other.
        let at_once = with_rng(|rng| rng.below(2)) == 0;
        if at_once {
            self.open_as_it_is(old).await;
        }
        self.counts(n).await;
        self.write();
        self.nap(100).await;
        if !at_once {
            self.open_as_it_is(old).await;
        }
        self.become_copy(old).await;
    }

    /// A source is one, or is said to count where another one is in the way of that.
    async fn counts(&mut self, n: usize) {
        let source = self.world.source(n);
        source.greeted().await;
        if source.halted().is_some() {
            source.until_links_ended().await;
            self.tag += 1;
            source.overrule(self.tag).await.expect("another one was promoted");
            self.world.kill(n);
            let source = self.open(n).await;
            source.greeted().await;
            assert!(source.halted().is_none(), "{:?}", source.halted());
        }
    }

    async fn open_as_it_is(&self, n: usize) {
        match self.world.role(n).await {
            Role::Source => drop(self.open(n).await),
            Role::Destination => drop(self.world.start_destination_as_it_is(n).await),
        }
    }

    async fn become_copy(&self, n: usize) {
        if self.world.role(n).await == Role::Source {
            let old = self.world.source(n);
            self.world.until("the old source hears of the new one", || old.halted().is_some()).await;
            old.until_links_ended().await;
            old.demote().await.expect("another one has taken over");
            self.world.kill(n);
            self.world.start_destination_as_it_is(n).await;
        }
    }

    async fn switch(&mut self) {
        let to = self.others()[with_rng(|rng| rng.below(2))];
        let source = self.world.source(self.source);
        let n = source.status().peers.iter().position(|peer| peer.name == name(to)).expect("a peer");
        self.tag += 1;
        let switched = source.switch(n, self.tag).await;
        match switched {
            Ok(()) => {
                self.world.kill(self.source);
                self.succeeded_by(to).await;
            }
            Err(_) if source.has_given_up() => {
                // What the answer says to type, unless it has taken over.
                self.world.kill(self.source);
                if self.world.role(to).await == Role::Destination {
                    self.tag += 1;
                    self.world.destination(to).promote(self.tag, ALIVE).await.expect("it has everything");
                }
                self.succeeded_by(to).await;
            }
            Err(_) => {}
        }
    }

    async fn fail_over(&mut self) {
        self.world.kill(self.source);
        if with_rng(|rng| rng.below(3)) == 0 {
            for n in self.others() {
                self.restart_copy(n, 5).await;
            }
        }
        let has = |n: &usize| {
            let status = self.world.destination(*n).status();
            (status.consistent, status.epoch, status.last)
        };
        let best = self.others().into_iter().max_by_key(has).expect("two");
        self.tag += 1;
        match self.world.destination(best).promote(self.tag, ALIVE).await {
            Ok(_) => self.succeeded_by(best).await,
            Err(e) => {
                assert!(!self.world.destination(best).status().consistent, "{e}");
                self.restart_source().await;
            }
        }
    }

    /// A copy that refuses its source, because it has what another source wrote and that one lacks, is told to give
    /// that up.
    async fn decide(&self) {
        for n in self.others() {
            let copy = self.world.destination(n);
            if copy.is_disputed() {
                copy.give_up().await.expect("its disk works");
            }
        }
    }

    async fn event(&mut self) {
        let copy = self.others()[with_rng(|rng| rng.below(2))];
        match with_rng(|rng| rng.below(10)) {
            0 => self.restart_copy(copy, 20).await,
            1..=3 => {
                // Longer than the log lasts; and what comes next may come in the middle of its resync.
                self.restart_copy(copy, 600).await;
                match with_rng(|rng| rng.below(4)) {
                    0 => self.nap(10).await,
                    1 => self.nap(100).await,
                    _ => return,
                }
                match with_rng(|rng| rng.below(2)) {
                    0 => self.switch().await,
                    _ => self.fail_over().await,
                }
            }
            4 | 5 => self.switch().await,
            6 | 7 => self.fail_over().await,
            8 => self.restart_source().await,
            _ => {
                self.world.cut();
                self.nap(30).await;
                self.world.heal();
            }
        }
    }

    async fn end(&self) {
        self.world.cable.loses_one_in.set(0);
        self.world.heal();
        rt::sleep(Duration::from_secs(1)).await;
        self.world.stop.set(true);
        self.decide().await;
        let source = self.world.source(self.source);
        self.world
            .until("both follow", || {
                let status = source.status();
                let follows = |phase| phase == Phase::ContinuouslyReplicating;
                status.peers.len() == 2 && status.peers.iter().all(|p| follows(p.phase) && p.lag_bytes == 0)
            })
            .await;
        rt::sleep(Duration::from_millis(500)).await;
        let last = source.status().last;
        for n in self.others() {
            let copy = self.world.destination(n);
            self.world.until("everything is applied", || copy.status().applied == last).await;
            let (own, its) = (&self.world.volumes(self.source)[0], &self.world.volumes(n)[0]);
            let differs = own.chunks(BLOCK).zip(its.chunks(BLOCK)).position(|(own, its)| own != its);
            assert_eq!(differs, None, "host {n} differs from its source, host {}", self.source);
        }
        let volume = self.world.volumes(self.source).swap_remove(0);
        for (at, number) in self.protected.borrow().iter() {
            let has = u64::from_le_bytes(volume[at * BLOCK..][..8].try_into().expect("8 bytes"));
            assert!(has >= *number, "block {at} has {has}, and {number} was answered");
        }
    }
}

async fn story() {
    let world = World::new(with_rng(start)).await;
    let source = world.open_source(0).await;
    for n in [1, 2] {
        world.add_peer(&source, &name(n), First::Copy).await;
        world.start_destination_as_it_is(n).await;
        world.ship(0, n - 1, n);
    }
    world.until_follows(0).await;
    let mut story = Story { world, source: 0, tag: 100, count: Rc::default(), protected: Rc::default() };
    story.write();
    story.world.cable.loses_one_in.set(with_rng(|rng| [0, 200, 30][rng.below(3)]));
    for _ in 0..with_rng(|rng| rng.within(3..=9)) {
        story.nap(150).await;
        story.event().await;
    }
    story.end().await;
}

/// How many seeds are run; `WEFT_REPLICA_SEEDS` says otherwise.
const SEEDS: u64 = 20;

/// `WEFT_SEED=n` runs that one alone.
#[test]
fn whoever_is_the_source_of_three_answered_writes_stay_and_all_become_equal() {
    let all = number("WEFT_REPLICA_SEEDS").unwrap_or(SEEDS);
    let seeds = number("WEFT_SEED").map_or(0..all, |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let run = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return;
        }
        Sim::new(seed).time_limit(Duration::from_secs(3600)).run(story());
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(run);
        }
    });
}
