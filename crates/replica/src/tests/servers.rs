//! Two servers as they run: groups behind fronts, clients that connect again at once, files that are gone after a
//! restart, and operators who type at the wrong moment.
//!
//! What is checked: a client's write is answered by a source or by nobody; what was answered when both sides had it is
//! on a copy that is promoted, however the promotion came about, and on the side that a decision keeps; a source whose
//! copy was promoted, while it was well and could be reached, answers nothing any more; what [`invariants`] says, after
//! every event; and when the operators are done, what each stopped side says to type leads to two sides that are equal.

mod create;
mod ended;
mod fronts;
mod invariants;
mod life;
mod one_way;
mod setback;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, LocalBoxFuture, select};
use weft_machine::rt;
use weft_machine::sim::{Sim, with_rng};
use weft_store::block::{Block, BlockOp};

use super::link::{Link, Side as Runs};
use super::stories::K;
use super::world::{PARTNERSHIP, Start, World};
use crate::destination::{self, Force};
use crate::front::Front;
use crate::fuzz::disk::Disk;
use crate::group::{Behind, Cause, Group, Host, Partner, State, Unusable};
use crate::journal::{self, Format, Side};
use crate::source::{self, First, OnLoss, Source};
use crate::status::{Mode, Phase};

/// How many seeds are run; `WEFT_REPLICA_SEEDS` says otherwise. Of what `WEFT_SEEDS` says to all simulations (CI:
/// 4,000) a hundredth is run here.
const SEEDS: u64 = 40;
const SHARE: u64 = 100;
const SLOT: usize = 4096;
const CLIENTS: usize = 3;
/// Virtual time in which two servers that nobody disturbs have to become equal.
const CONVERGES_WITHIN: Duration = Duration::from_secs(60);

/// How often operators who have come to their senses look again, and type what is to be typed.
const DECISIONS: usize = 5;

/// What a restart finds in place of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    /// The journal is not there.
    Journal,
    /// The journal is shorter than it was, or full of zeros.
    JournalContent,
    /// The group's own file is of no use, until it is put back.
    Group,
}

/// What a slot of the volume may hold.
#[derive(Clone, Copy, Default)]
struct Slot {
    sent: u64,
    /// Answered when both sides had it.
    protected: u64,
}

/// A server that runs.
#[derive(Clone)]
struct Running {
    group: Arc<Group>,
    fronts: Vec<Arc<Front>>,
    life: u64,
}

/// What sources were seen to do.
#[derive(Default)]
struct Seen {
    /// The slot and version of what a source has placed.
    placed: HashMap<(usize, u64), (u64, u64)>,
    ever: HashSet<(u64, u64)>,
    protected: HashSet<(u64, u64)>,
    /// A source that was well when its copy was promoted, as long as it can hear of that.
    fenced: Option<Fenced>,
}

struct Fenced {
    source: Arc<Source>,
    cuts: u64,
    by: usize,
    life: u64,
}

struct Servers {
    world: World,
    running: RefCell<Vec<Option<Running>>>,
    slots: RefCell<Vec<Slot>>,
    seen: RefCell<Seen>,
    /// Volumes are served before it is known whose they are, as they once were.
    hasty: bool,
    stop: Cell<bool>,
    typing: Cell<usize>,
    tag: Cell<u64>,
    /// What each server's file says of its group, where it has one.
    written: [RefCell<Option<Written>>; 2],
    /// Servers that are not down.
    up: [Cell<bool>; 2],
    /// Servers on which a command adds or removes a group.
    busy: [Cell<bool>; 2],
    /// What each server has lost of its files, and nobody has begun anew or put back.
    lost: [Cell<Option<Lost>>; 2],
    /// Counts how often somebody has said that what is gone is gone: what was promised before is not asked for after
    /// that.
    given_up: Cell<u64>,
    /// Servers that were made a copy for a source that does not know it (yet).
    unknown: [Cell<bool>; 2],
    /// Servers that were removed though nobody knew what their volumes held.
    unsure: [Cell<bool>; 2],
    claims: RefCell<invariants::Claims>,
    /// All sources that there were: they are known by where they lie.
    sources: RefCell<Vec<Arc<Source>>>,
    /// Servers whose disks are of an earlier day, until they follow the other one.
    stale: [Cell<bool>; 2],
    promotions: Cell<u64>,
    answered: Cell<u64>,
    broken: RefCell<Option<String>>,
}

/// What a server remembers of its group, beside the journal.
#[derive(Clone)]
struct Written {
    partnership: [u8; 16],
    partners: Vec<String>,
}

impl Written {
    fn new(partnership: [u8; 16], partners: &[&str]) -> Written {
        Written { partnership, partners: partners.iter().map(|name| (*name).to_owned()).collect() }
    }
}

/// A server, as its group knows it.
struct At {
    servers: Rc<Servers>,
    n: usize,
    life: u64,
}

impl At {
    fn is_alive(&self) -> bool {
        self.servers.world.nodes[self.n].host.life.get() == self.life
    }
}

impl Host for At {
    fn side(&self) -> LocalBoxFuture<'_, Result<Side, Unusable>> {
        Box::pin(async move {
            if !self.is_alive() {
                std::future::pending::<()>().await;
            }
            let unusable = |cause, why: &str| Err(Unusable { cause, why: why.into() });
            match self.servers.lost[self.n].get() {
                Some(Lost::Journal) => unusable(Cause::Journal, "its journal is of no use: no such file"),
                Some(Lost::Group) => unusable(Cause::Failed, "its file is of no use"),
                _ => Ok(self.servers.world.side(self.n)),
            }
        })
    }

    fn renew(&self) -> LocalBoxFuture<'_, Result<(Side, Format), String>> {
        Box::pin(async move {
            let side = self.servers.world.side(self.n);
            let written = self.servers.written[self.n].borrow().clone();
            let format = Format {
                partnership: written.ok_or("its file is of no use")?.partnership,
                role: crate::status::Role::Destination,
                tag: 0,
                sizes: side.members.iter().map(|block| block.geometry().size).collect(),
                log_bytes: 256 * K,
            };
            let bytes = journal::bytes(&format).expect("a journal") as usize;
            self.servers.world.nodes[self.n].journal.replace(vec![0xee; bytes]);
            self.servers.lost[self.n].set(None);
            Ok((side, format))
        })
    }

    fn latest_epoch(&self) -> LocalBoxFuture<'_, u64> {
        Box::pin(async move {
            let other = self.servers.running(1 - self.n).filter(|_| self.servers.world.cable.up.get());
            other.and_then(|other| other.group.status()).map_or(0, |status| status.epoch)
        })
    }

    fn partners(&self) -> Vec<Partner> {
        let written = self.servers.written[self.n].borrow();
        let names = written.iter().flat_map(|written| &written.partners);
        names.map(|name| Partner { name: name.clone(), mode: Mode::Synchronous }).collect()
    }

    fn source(&self) -> source::Config {
        self.servers.world.config.clone()
    }

    fn destination(&self) -> destination::Config {
        let silence = self.servers.world.config.timeout;
        destination::Config { memory_bytes: 32 << 10, silence, ..destination::Config::default() }
    }

    fn lead(&self, to: Behind) {
        if let Behind::Source(source) = &to {
            self.servers.sources.borrow_mut().push(source.clone());
        }
        if self.is_alive() {
            let side = match to {
                Behind::Starting => Runs::Starting,
                Behind::Destination(destination) => Runs::Destination(destination),
                Behind::Source(source) => Runs::Source(source),
                Behind::Stopped => Runs::Stopped,
            };
            self.servers.world.nodes[self.n].host.side.replace(side);
        }
    }

    fn ship(&self, source: &Arc<Source>, n: usize, _: &str) {
        let world = &self.servers.world;
        let link = Link {
            cable: world.cable.clone(),
            to: world.nodes[1 - self.n].host.clone(),
            from: world.nodes[self.n].host.clone(),
            life: self.life,
            pool: world.pool.clone(),
        };
        let source = source.clone();
        rt::spawn(async move { source.ship(n, Rc::new(link)).await }).detach();
    }

    fn became(&self, _: &State) {}
}

fn content(slot: u64, version: u64) -> Vec<u8> {
    [slot.to_be_bytes(), version.to_be_bytes()].concat().repeat(SLOT / 16)
}

/// Gives a source its destination, as `weft replica create` does.
async fn attach(world: &World, n: usize, first: First) {
    let source = Source::open(world.side(n), world.config.clone()).await.expect("it opens");
    let config = source::PeerConfig { name: "other".into(), mode: Mode::Synchronous, first };
    source.add_peer(config).await.expect("there is room");
    source.close().await.expect("it closes");
}

impl Servers {
    async fn new(hasty: bool) -> Rc<Servers> {
        let start = Start {
            sizes: vec![24 * SLOT as u64, 64 * K],
            log_bytes: vec![256 * K, 256 * K],
            mode: Mode::Synchronous,
            config: source::Config {
                on_loss: if with_rng(|rng| rng.below(3)) == 0 { OnLoss::Wait } else { OnLoss::Continue },
                retry: Duration::from_millis(200),
                beat: Duration::from_millis(200),
                timeout: Duration::from_secs(2),
                ..source::Config::default()
            },
            slow_disk: Duration::from_micros(with_rng(|rng| [20, 500][rng.below(2)])),
            slow_cable: Duration::from_micros(with_rng(|rng| [20, 500][rng.below(2)])),
            filled: 0,
            same: false,
        };
        let slots = vec![Slot::default(); start.sizes[0] as usize / SLOT];
        let world = World::new(start).await;
        attach(&world, 0, First::Copy).await;
        world.states_rot.set(with_rng(|rng| rng.below(2)) == 0);
        Rc::new(Servers {
            world,
            running: RefCell::new(vec![None, None]),
            slots: RefCell::new(slots),
            seen: RefCell::default(),
            hasty,
            stop: Cell::default(),
            typing: Cell::default(),
            tag: Cell::new(100),
            written: [0, 1].map(|_| RefCell::new(Some(Written::new(PARTNERSHIP, &["other"])))),
            up: Default::default(),
            busy: Default::default(),
            lost: Default::default(),
            given_up: Cell::default(),
            unknown: Default::default(),
            unsure: Default::default(),
            claims: RefCell::default(),
            sources: RefCell::default(),
            stale: Default::default(),
            promotions: Cell::default(),
            answered: Cell::default(),
            broken: RefCell::default(),
        })
    }

    fn fail(&self, why: String) {
        self.broken.borrow_mut().get_or_insert(why);
        self.stop.set(true);
    }

    fn next_tag(&self) -> u64 {
        self.tag.set(self.tag.get() + 1);
        self.tag.get()
    }

    fn running(&self, n: usize) -> Option<Running> {
        self.running.borrow()[n].clone()
    }

    fn at(self: &Rc<Self>, n: usize) -> At {
        At { servers: self.clone(), n, life: self.world.nodes[n].host.life.get() }
    }

    /// A server begins, with its group, if it has one.
    fn start(self: &Rc<Self>, n: usize) {
        self.up[n].set(true);
        match self.written[n].borrow().is_some() {
            true => self.enter(n),
            // Whoever comes is told that nothing is known.
            false => drop(self.world.nodes[n].host.side.replace(Runs::Stranger)),
        }
    }

    /// A server's group begins.
    fn enter(self: &Rc<Self>, n: usize) {
        let node = &self.world.nodes[n];
        let disks: Vec<Arc<dyn Block>> = node.members.iter().map(Disk::open).collect();
        let fronts: Vec<Arc<Front>> = disks.iter().map(|disk| Front::new(disk.geometry())).collect();
        if self.hasty {
            fronts.iter().zip(disks).for_each(|(front, disk)| front.begin(disk));
        }
        let group = Arc::new(Group::new("db", fronts.clone()));
        let host = self.at(n);
        self.running.borrow_mut()[n] = Some(Running { group: group.clone(), fronts, life: host.life });
        node.host.side.replace(Runs::Starting);
        rt::spawn(async move { group.govern(&host).await }).detach();
    }

    fn kill(&self, n: usize) {
        self.up[n].set(false);
        self.running.borrow_mut()[n] = None;
        self.world.kill(n);
    }

    /// What is done for a server, unless that dies first.
    async fn within_life<T>(&self, n: usize, life: u64, what: impl Future<Output = T>) -> Option<T> {
        let dies = async {
            while self.world.nodes[n].host.life.get() == life {
                rt::sleep(Duration::from_millis(10)).await;
            }
        };
        match select(pin!(what), pin!(dies)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    /// Takes in what sources have done since the last call.
    fn learn(&self) {
        let seen = &mut *self.seen.borrow_mut();
        for (source, sequence, record) in super::take_placed_by() {
            let Some(payload) = record.payload.first().filter(|payload| payload.len() >= 16) else {
                continue;
            };
            let word = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().expect("eight bytes"));
            let id = (word(0), word(8));
            seen.placed.insert((source, sequence), id);
            seen.ever.insert(id);
        }
        for (source, sequence, protected) in super::take_answered() {
            let fenced = seen.fenced.as_ref().is_some_and(|fenced| {
                Arc::as_ptr(&fenced.source) as usize == source
                    && self.world.cable.cuts.get() == fenced.cuts
                    && self.world.nodes[fenced.by].host.life.get() == fenced.life
            });
            // What the copy had taken before it was promoted may be answered a moment later.
            // One whose last destination was removed goes on alone: somebody has typed that.
            let alone = |source: &Source| source.status().peers.is_empty();
            if let (true, false, Some(fenced)) = (fenced, protected, &seen.fenced)
                && !alone(&fenced.source)
            {
                let status = fenced.source.status();
                self.fail(format!(
                    "record {sequence} was answered by a source whose copy had been promoted: {status:?}"
                ));
            }
            if protected && let Some(why) = self.claims.borrow_mut().answers(source) {
                self.fail(format!("record {sequence}: {why}"));
            }
            if protected && let Some(id) = seen.placed.get(&(source, sequence)) {
                seen.protected.insert(*id);
            }
        }
    }

    /// Writes to slots of its own, to whichever server answers.
    async fn client(self: Rc<Self>, number: usize) {
        let (mut at, mut version) = (0, 0);
        while !self.stop.get() {
            rt::sleep(Duration::from_micros(with_rng(|rng| rng.within(1_000..=40_000)))).await;
            let Some(running) = self.running(at) else {
                at = with_rng(|rng| rng.below(2));
                continue;
            };
            let slots = self.slots.borrow().len();
            let slot = with_rng(|rng| rng.below(slots / CLIENTS)) * CLIENTS + number;
            version += 1;
            self.slots.borrow_mut()[slot].sent = version;
            let given_up = self.given_up.get();
            let (id, offset) = ((slot as u64, version), (slot * SLOT) as u64);
            let data = vec![Bytes::from(content(id.0, id.1))];
            let write = BlockOp::Write { offset, data, durable: false };
            let done = async {
                let written = running.fronts[0].submit(write).await.is_ok();
                written && running.fronts[0].submit(BlockOp::Flush).await.is_ok()
            };
            if self.within_life(at, running.life, done).await != Some(true) {
                // Mostly the same again, at once.
                at = if with_rng(|rng| rng.below(4)) == 0 { 1 - at } else { at };
                continue;
            }
            if running.group.has_ended() {
                // Replication was removed meanwhile: a volume that is no source's has answered, as it may.
                continue;
            }
            self.answered.set(self.answered.get() + 1);
            self.learn();
            let seen = self.seen.borrow();
            if !seen.ever.contains(&id) {
                self.fail(format!("slot {slot}, version {version}: answered, and no source has it"));
            }
            if seen.protected.contains(&id) && self.given_up.get() == given_up {
                let mut slots = self.slots.borrow_mut();
                slots[slot].protected = slots[slot].protected.max(version);
            }
        }
    }

    /// The version that each slot of a server's volume holds; none where it is torn, or was never written to.
    fn versions(&self, n: usize) -> Vec<u64> {
        let volume = self.world.volumes(n).swap_remove(0);
        let version = |(number, held): (usize, &[u8])| {
            let version = u64::from_be_bytes(held[8..16].try_into().expect("eight bytes"));
            if held == content(number as u64, version) { version } else { 0 }
        };
        volume.chunks(SLOT).enumerate().map(version).collect()
    }

    /// What was answered as protected is there.
    fn check(&self, n: usize, when: &str) {
        for (number, (slot, version)) in self.slots.borrow().iter().zip(self.versions(n)).enumerate() {
            if version < slot.protected || version > slot.sent {
                let promised = slot.protected;
                self.fail(format!("{when}: server {n}, slot {number} holds version {version} of {promised}"));
            }
        }
    }

    /// Somebody has said that what these volumes hold counts, though something may be missing there.
    fn count(&self, versions: &[u64]) {
        self.given_up.set(self.given_up.get() + 1);
        for (slot, version) in self.slots.borrow_mut().iter_mut().zip(versions) {
            slot.protected = slot.protected.min(*version);
        }
    }

    /// The source of the other server, where that is well, protected and can be reached.
    fn well(&self, n: usize) -> Option<Arc<Source>> {
        let Some(State::Source(source)) = self.running(n).map(|running| running.group.state()) else {
            return None;
        };
        let follows = |source: &Source| {
            let status = source.status();
            let peer = status.peers.first();
            peer.is_some_and(|p| !p.unprotected && p.phase == Phase::ContinuouslyReplicating)
        };
        let reached = (0..2).all(|n| self.world.cable.carries(&self.world.nodes[n].host));
        (reached && follows(&source)).then_some(source)
    }

    async fn fail_over(self: &Rc<Self>, n: usize, force: Force) {
        let Some(running) = self.running(n) else { return };
        let State::Destination(copy) = running.group.state() else { return };
        let (well, cuts) = (self.well(1 - n), self.world.cable.cuts.get());
        let was_consistent = copy.status().consistent;
        let promoted = running.group.failover(&copy, self.next_tag(), force).await;
        self.learn();
        if promoted.is_ok() {
            self.promotions.set(self.promotions.get() + 1);
            match was_consistent {
                true if self.stale[n].get() => self.count(&self.versions(n)),
                true => self.check(n, "promoted"),
                false if force.inconsistent => self.count(&self.versions(n)),
                false => self.fail(format!("server {n} was promoted in the middle of a resync, unforced")),
            }
            if let Some(source) = well
                && self.world.cable.cuts.get() == cuts
                && Servers::is_well_still(&source)
            {
                let fenced = Fenced { source, cuts, by: n, life: running.life };
                self.seen.borrow_mut().fenced = Some(fenced);
            }
        }
    }

    /// It had no reason to go on alone but the promotion.
    fn is_well_still(source: &Source) -> bool {
        source.status().peers.first().is_some_and(|peer| !peer.unprotected)
    }

    /// Somebody types something, or pulls a plug.
    async fn type_something(self: Rc<Self>) {
        let (n, what) = with_rng(|rng| (rng.below(2), rng.below(26)));
        let state = |n: usize| self.running(n).map(|running| running.group.state());
        // Most commands are for one of them.
        let n = match (what, state(n)) {
            (0..=4, Some(State::Source(_))) | (5 | 6, Some(State::Destination(_))) => 1 - n,
            _ => n,
        };
        let life = self.world.nodes[n].host.life.get();
        match what {
            21..=23 => {
                let _died = self.within_life(n, life, self.create_here(n)).await;
            }
            _ if self.written[n].borrow().is_none() => {}
            0..=4 => {
                let (alive, torn) = with_rng(|rng| (rng.below(2) == 0, rng.below(4) == 0));
                let force = Force { source_alive: alive, inconsistent: alive && torn, behind: alive };
                let _died = self.within_life(n, life, self.fail_over(n, force)).await;
            }
            5 | 6 => {
                if let Some(State::Source(source)) = self.running(n).map(|running| running.group.state()) {
                    let _refused = self.within_life(n, life, source.switch(0, self.next_tag())).await;
                }
            }
            7..=9 => {
                let here = with_rng(|rng| rng.below(2)) == 0;
                let _refused = self.within_life(n, life, self.resolve(n, here)).await;
            }
            10..=12 => {
                self.kill(n);
                rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=300)))).await;
                if !self.up[n].get() {
                    self.start(n);
                }
            }
            17 | 18 => {
                self.kill(n);
                self.lose(n);
                rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=300)))).await;
                if !self.up[n].get() {
                    self.start(n);
                }
            }
            19 | 20 => {
                let _died = self.within_life(n, life, self.test_failover(n)).await;
            }
            13 => {
                if let Some(running) = self.running(n) {
                    let _died = self.within_life(n, life, running.group.close()).await;
                    if self.world.nodes[n].host.life.get() == life {
                        self.kill(n);
                        self.start(n);
                    }
                }
            }
            14 | 24 | 25 if with_rng(|rng| rng.below(2)) == 0 => {
                let force = with_rng(|rng| rng.below(4)) == 0;
                let _died = self.within_life(n, life, self.remove(n, force)).await;
            }
            _ => {
                match with_rng(|rng| rng.below(3)) {
                    0 => self.world.mute(n),
                    _ => self.world.cut(),
                }
                rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=4000)))).await;
                self.world.heal();
            }
        }
        if !self.up[n].get() {
            // The plug was pulled in the middle of a command.
            rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(1..=300)))).await;
            if !self.up[n].get() {
                self.start(n);
            }
        }
        self.invariants();
        self.typing.set(self.typing.get() - 1);
    }

    /// A file is gone, or of no use, while its server is down.
    fn lose(&self, n: usize) {
        let journal = &self.world.nodes[n].journal;
        let mut content = journal.content();
        let lost = match with_rng(|rng| rng.below(4)) {
            0 => Lost::Journal,
            1 => {
                content.truncate(with_rng(|rng| rng.below(content.len() / 512)) * 512);
                Lost::JournalContent
            }
            2 => {
                content.fill(0);
                Lost::JournalContent
            }
            _ => Lost::Group,
        };
        // One that is lost is not found again where the group's file is gone as well.
        if self.lost[n].get().is_none() {
            journal.replace(content);
            self.lost[n].set(Some(lost));
        }
    }

    /// Decides on one side, as `weft replica resolve` does.
    async fn resolve(self: &Rc<Self>, n: usize, here: bool) -> Result<(), String> {
        let Some(running) = self.running(n) else { return Err("it does not run".into()) };
        let lost =
            matches!(running.group.state(), State::Stopped(stopped) if stopped.cause == Cause::Journal);
        let versions = self.versions(n);
        let resolved = running.group.resolve(&self.at(n), here, true, self.next_tag()).await;
        let stale = self.stale[n].get() && resolved.is_ok();
        if here && (stale || lost && self.lost[n].get().is_none()) {
            // What only the log held is gone, as was said, whether or not the group has opened by now.
            self.count(&versions);
        }
        resolved
    }

    /// A picture of a copy is written to, and goes again.
    async fn test_failover(&self, n: usize) {
        let Some(State::Destination(copy)) = self.running(n).map(|running| running.group.state()) else {
            return;
        };
        let disk = |size: u64| Disk::new(vec![0; size as usize], Duration::from_micros(10));
        let disks: Vec<Disk> = copy.status().sizes.into_iter().map(disk).collect();
        let stores = disks.iter().map(Disk::open).collect();
        let Ok(pictures) = copy.snapshot(stores).await else { return };
        if with_rng(|rng| rng.below(3)) == 0 {
            // What it would keep has no room: that is the picture's end, and nobody else's.
            disks.iter().for_each(|disk| disk.fill(true));
        }
        rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=500)))).await;
        let offset = (with_rng(|rng| rng.below(24)) * SLOT) as u64;
        let write = BlockOp::Write { offset, data: vec![Bytes::from(vec![0xdd; SLOT])], durable: true };
        let _ended = pictures[0].submit(write).await;
        rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=500)))).await;
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|n| self.running(n).expect("it runs").group.state())
    }

    /// The server that is the source, where the other one follows it.
    fn settled(&self) -> Option<usize> {
        let states = self.states();
        (0..2).find(|n| match (&states[*n], &states[1 - *n]) {
            (State::Source(source), State::Destination(_)) => {
                let status = source.status();
                !status.peers.is_empty()
                    && status
                        .peers
                        .iter()
                        .all(|peer| peer.phase == Phase::ContinuouslyReplicating && !peer.unprotected)
            }
            _ => false,
        })
    }

    async fn settles(&self) -> Option<usize> {
        let until = rt::now() + CONVERGES_WITHIN;
        while rt::now() < until && self.broken.borrow().is_none() {
            if let Some(source) = self.settled() {
                return Some(source);
            }
            rt::sleep(Duration::from_millis(50)).await;
        }
        self.settled()
    }

    fn describe_one(&self, n: usize) -> String {
        match self.running(n).map(|running| running.group.state()) {
            None => format!("{n}: down"),
            Some(State::Stopped(stopped)) => format!("{n}: {:?}, {}", stopped.cause, stopped.why),
            Some(State::Starting) => format!("{n}: starting"),
            Some(State::Source(source)) => format!("{n}: {:?}", source.status()),
            Some(State::Destination(copy)) => format!("{n}: {:?}", copy.status()),
        }
    }

    fn describe(&self) -> String {
        format!("{}\n{}", self.describe_one(0), self.describe_one(1))
    }

    /// The operators come to their senses: each side is told what its reason says, in either order.
    async fn decide(self: &Rc<Self>) {
        let states = self.states();
        let lost = |n: usize| matches!(&states[n], State::Stopped(stopped) if matches!(stopped.cause, Cause::Journal | Cause::SetBack));
        let is_copy = |n: usize| matches!(states[n], State::Destination(_));
        if is_copy(0) && is_copy(1) {
            // Both have given up: one is taken as it is.
            let n = with_rng(|rng| rng.below(2));
            return self.fail_over(n, Force { source_alive: true, inconsistent: true, behind: true }).await;
        }
        let mut keep = with_rng(|rng| rng.below(2));
        if is_copy(keep) && !lost(1 - keep) {
            // A copy has nothing that would be kept.
            keep = 1 - keep;
        }
        if is_copy(keep) {
            // "Where the other side has them: failover there, then `--keep there` here."
            let State::Destination(copy) = &states[keep] else { unreachable!("it is one") };
            let force = Force { source_alive: false, inconsistent: !copy.status().consistent, behind: true };
            self.fail_over(keep, force).await;
            if !matches!(self.states()[keep], State::Source(_)) {
                self.fail(format!("server {keep} does not take over\n{}", self.describe()));
            }
        }
        let mut order = [(keep, true), (1 - keep, false)];
        if with_rng(|rng| rng.below(2)) == 0 {
            order.reverse();
        }
        for (n, here) in order {
            let needs = lost(n) || !(is_copy(n) || lost(1 - n));
            if let Err(why) = self.resolve(n, here).await
                && needs
            {
                self.fail(format!("server {n} does not keep {here}: {why}\n{}", self.describe()));
            }
        }
    }

    /// Somebody decides, unless a side is stopped for another reason than is expected.
    async fn decide_unless_stopped(self: &Rc<Self>, expected: impl Fn(Cause) -> bool) {
        let stopped = |state: &State| match state {
            State::Stopped(stopped) if !expected(stopped.cause) => Some(stopped.why.clone()),
            _ => None,
        };
        match self.states().iter().find_map(stopped) {
            Some(why) => self.fail(format!("stopped for no reason: {why}")),
            None => self.decide().await,
        }
        self.invariants();
    }

    /// The servers become equal, and hold what was promised.
    async fn converges(self: &Rc<Self>) {
        if self.broken.borrow().is_some() {
            // One of them may not even run.
            return;
        }
        let source = self.settles().await;
        self.stop.set(true);
        rt::sleep(Duration::from_secs(5)).await;
        match source {
            None if self.broken.borrow().is_none() => {
                self.fail(format!("they never become equal:\n{}", self.describe()));
            }
            None => {}
            Some(source) => {
                self.learn();
                rt::sleep(Duration::from_secs(5)).await;
                (0..2).for_each(|n| self.check(n, "in the end"));
                let volumes = self.world.volumes(source);
                if self.settled() == Some(source) && volumes != self.world.volumes(1 - source) {
                    self.fail("they are not equal".into());
                }
            }
        }
    }

    /// Who has lost the group's file finds it again.
    async fn put_back(self: &Rc<Self>) {
        for n in 0..2 {
            if self.lost[n].get() == Some(Lost::Group) {
                self.kill(n);
                self.lost[n].set(None);
                self.start(n);
            }
        }
    }
}

/// What went wrong, if something did; how often a copy was promoted, and how many writes were answered.
async fn story(hasty: bool) -> (Option<String>, u64, u64) {
    let servers = Servers::new(hasty).await;
    [0, 1].into_iter().for_each(|n| servers.start(n));
    (0..CLIENTS).for_each(|number| rt::spawn(servers.clone().client(number)).detach());
    rt::spawn(servers.clone().watch()).detach();
    rt::sleep(Duration::from_secs(2)).await;
    for _ in 0..with_rng(|rng| rng.within(2..=14)) {
        rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=1500)))).await;
        if servers.broken.borrow().is_some() {
            break;
        }
        // They do not wait for each other.
        servers.typing.set(servers.typing.get() + 1);
        rt::spawn(servers.clone().type_something()).detach();
    }
    while servers.typing.get() > 0 {
        rt::sleep(Duration::from_millis(50)).await;
    }
    servers.world.heal();
    for n in 0..2 {
        if !servers.up[n].get() {
            servers.start(n);
        }
    }
    servers.put_back().await;
    if !servers.are_partners() {
        servers.remove_all().await;
        if servers.broken.borrow().is_none() {
            servers.create_anew().await;
        }
    }
    // Two sources tell each other, and a superseded one becomes a copy, before anybody looks.
    for _ in 0..DECISIONS {
        rt::sleep(Duration::from_secs(10)).await;
        if servers.broken.borrow().is_some() || servers.settled().is_some() {
            break;
        }
        let expected = |cause| matches!(cause, Cause::Split | Cause::Journal);
        servers.decide_unless_stopped(expected).await;
    }
    servers.converges().await;
    let broken = servers.broken.borrow().clone();
    (broken, servers.promotions.get(), servers.answered.get())
}

fn run(seed: u64, hasty: bool) -> (Option<String>, u64, u64) {
    let result = Rc::new(RefCell::new(None));
    let told = result.clone();
    Sim::new(seed).time_limit(Duration::from_secs(3600)).run(async move {
        let end = story(hasty).await;
        told.replace(Some(end));
    });
    result.take().expect("the story ends")
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `WEFT_SEED=n` runs that one alone.
#[test]
fn whoever_types_what_protected_writes_are_kept_and_nothing_is_written_past_a_source() {
    let all = number("WEFT_SEEDS").map_or(SEEDS, |n| n / SHARE);
    let all = number("WEFT_REPLICA_SEEDS").unwrap_or(all);
    let seeds = number("WEFT_SEED").map_or(0..all, |seed| seed..seed + 1);
    let (next, promotions, answered) = (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicU64::new(0));
    let run = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return;
        }
        let (broken, promoted, writes) = run(seed, false);
        assert_eq!(broken, None, "WEFT_SEED={seed}");
        promotions.fetch_add(promoted, Ordering::Relaxed);
        answered.fetch_add(writes, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(run);
        }
    });
    let (promotions, answered) = (promotions.into_inner(), answered.into_inner());
    println!("{promotions} promotions, {answered} writes answered");
    if seeds.end - seeds.start >= SEEDS {
        assert!(
            promotions > SEEDS / 4 && answered > 50 * SEEDS,
            "{promotions} promotions, {answered} writes"
        );
    }
}

#[test]
fn volumes_that_are_served_before_their_group_is_known_take_writes_that_no_source_has() {
    // What a server once did, and the checks above find.
    let broken = (0..200).find_map(|seed| run(seed, true).0);
    let why = broken.expect("nothing is noticed");
    assert!(why.contains("no source has it") || why.contains("holds version"), "{why}");
}

#[test]
fn a_disk_that_answers_errors_has_not_lost_the_journal() {
    Sim::new(1).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        let group = || servers.running(0).expect("it runs").group;
        group().settled(|state| matches!(state, State::Source(_))).await.expect("it is the source");
        servers.kill(1);
        servers.world.nodes[0].journal.break_down(true);
        let stopped = async |group: Arc<Group>| {
            group.until(|state| matches!(state, State::Stopped(_))).await;
            let State::Stopped(stopped) = group.state() else { panic!("it goes on") };
            (stopped.cause, stopped.why.clone())
        };
        let front = servers.running(0).expect("it runs").fronts[0].clone();
        let write = BlockOp::Write { offset: 0, data: vec![Bytes::from(vec![1; SLOT])], durable: true };
        rt::spawn(async move { front.submit(write).await.map(drop) }).detach();
        // It has failed while it ran,
        let (cause, why) = stopped(group()).await;
        assert_eq!(cause, Cause::Failed, "{why}");
        assert!(why.contains("the journal has failed") && why.contains("a disk that works"), "{why}");
        // and fails still when it is opened anew.
        servers.kill(0);
        servers.start(0);
        let (cause, why) = stopped(group()).await;
        assert_eq!(cause, Cause::Failed, "{why}");
        assert!(why.contains("cannot be read") && !why.contains("--keep"), "{why}");
        for here in [true, false] {
            servers.resolve(0, here).await.expect_err("there is nothing to decide: it is whole");
        }
        servers.kill(0);
        servers.world.nodes[0].journal.break_down(false);
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
    });
}
