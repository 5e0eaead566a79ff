//! Hosts that die and come back, and the model that says what they have to hold.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::sim::with_rng;
use weft_machine::{Pool, rt};
use weft_store::block::{Block, BlockOp, Outcome};
use weft_wire::repl::control::Era;

use super::link::{Cable, Host, Link, Side as Runs};
use crate::destination::{self, Destination, Force};
use crate::error::Error;
use crate::fuzz::disk::Disk;
use crate::journal::{self, Format, Names, Side, Wall};
use crate::record::{Header, Kind, Record, SECTOR};
use crate::source::{Config, First, PeerConfig, Source};
use crate::state::{COPY_BYTES, State};
use crate::status::{Mode, Phase, Role, Verified};

pub const PARTNERSHIP: [u8; 16] = *b"warp and weft   ";

/// Whether the source lives is another story's.
pub const ALIVE: Force = Force { source_alive: true, inconsistent: false, behind: true };

/// A machine with its disks.
pub struct Node {
    pub host: Rc<Host>,
    pub journal: Disk,
    pub members: Vec<Disk>,
    /// The journal, before it was ruined.
    pub healthy: RefCell<Vec<u8>>,
}

/// What the histories of all hosts amount to.
#[derive(Default)]
pub struct Model {
    base: Vec<Vec<u8>>,
    records: Vec<Record>,
    /// What a source had placed, and perhaps sent, and lost in a crash: the era that it began then, and the records
    /// behind it.
    lost: Option<(Era, Vec<Record>)>,
    /// Answered to a writer,
    pub answered: BTreeSet<u64>,
    /// and that while the source said that it was protected.
    pub protected: BTreeSet<u64>,
}

impl Model {
    /// Takes in what sources have placed meanwhile.
    pub fn learn(&mut self) {
        for (sequence, record) in super::take_placed() {
            assert_eq!(sequence, self.records.len() as u64 + 1, "a source skips or repeats a sequence");
            self.records.push(record);
        }
    }

    pub fn last(&mut self) -> u64 {
        self.learn();
        self.records.len() as u64
    }

    /// What was placed behind `last` never happened.
    pub fn forget_after(&mut self, last: u64) {
        self.learn();
        assert!(last <= self.records.len() as u64, "a host has {last}, which was never placed");
        self.records.truncate(last as usize);
        self.answered.split_off(&(last + 1));
        self.protected.split_off(&(last + 1));
    }

    /// A source has come back with everything through `last`, under this history: what was behind that it has lost.
    fn lose_after(&mut self, eras: &[Era], last: u64) {
        self.learn();
        let restarted = eras.len() > 1 && eras[eras.len() - 2].epoch == eras[eras.len() - 1].epoch;
        let era = eras[eras.len() - 1];
        let known = self.lost.as_ref().is_some_and(|(other, _)| other.tag == era.tag);
        if restarted && !known && era.after == last && last <= self.records.len() as u64 {
            self.lost = Some((era, self.records[last as usize..].to_vec()));
        }
        self.forget_after(last);
    }

    /// Whether a host of this history that has everything through `last` has something that its source has lost: after
    /// which sequence.
    pub fn has_lost(&self, eras: &[Era], last: u64) -> Option<u64> {
        let (era, _) = self.lost.as_ref()?;
        let knows = eras.iter().any(|known| (known.epoch, known.tag) == (era.epoch, era.tag));
        (last > era.after && !knows).then_some(era.after)
    }

    /// A host of this history was promoted: if it has what its source had lost, that happened, and what the source
    /// wrote instead did not. Whether some of that was answered.
    pub fn promoted(&mut self, eras: &[Era], last: u64) -> bool {
        self.learn();
        // Without the era that has just begun.
        let at = self.has_lost(&eras[..eras.len() - 1], last);
        let Some((_, lost)) = self.lost.take() else { return false };
        let Some(at) = at else { return false };
        let answered = self.answered.range(at + 1..).next().is_some();
        assert_eq!(self.protected.range(at + 1..).next(), None, "protected by a copy that is further");
        self.forget_after(at);
        self.records.extend(lost);
        answered
    }

    /// Every volume of a host of this history after `last`.
    pub fn volumes_of(&mut self, eras: &[Era], last: u64) -> Vec<Vec<u8>> {
        self.learn();
        match self.has_lost(eras, last) {
            None => self.volumes_at(last),
            Some(at) => {
                let (_, lost) = self.lost.as_ref().expect("something was lost");
                assert!(last <= at + lost.len() as u64, "a host has {last}, which was never placed");
                let records = self.records[..at as usize].iter().chain(lost);
                Model::play(&self.base, records.take(last as usize))
            }
        }
    }

    /// The most that a host of this history can have.
    fn most(&mut self, eras: &[Era]) -> u64 {
        self.learn();
        let placed = self.records.len() as u64;
        let lost = self.lost.as_ref().map_or(0, |(era, lost)| era.after + lost.len() as u64);
        match self.has_lost(eras, lost) {
            Some(_) => lost,
            None => placed,
        }
    }

    /// Every volume after `last`.
    pub fn volumes_at(&mut self, last: u64) -> Vec<Vec<u8>> {
        self.learn();
        assert!(last <= self.records.len() as u64, "a host has {last}, which was never placed");
        Model::play(&self.base, self.records[..last as usize].iter())
    }

    fn play<'a>(base: &[Vec<u8>], records: impl Iterator<Item = &'a Record>) -> Vec<Vec<u8>> {
        let mut volumes = base.to_vec();
        for record in records {
            let at = record.header.offset as usize;
            let len = record.header.range_len() as usize;
            let range = &mut volumes[usize::from(record.header.member)][at..at + len];
            match record.header.kind {
                Kind::Write { .. } => range.copy_from_slice(&record.payload.concat()),
                _ => range.fill(0),
            }
        }
        volumes
    }

    fn answer(&mut self, id: &[u8; 8], protected: bool) {
        self.learn();
        let found = self.records.iter().rposition(|r| r.payload.first().is_some_and(|p| p.starts_with(id)));
        // Not found: it was answered by a source that lost its history since.
        if let Some(at) = found {
            self.answered.insert(at as u64 + 1);
            if protected {
                self.protected.insert(at as u64 + 1);
            }
        }
    }
}

/// Everything.
pub struct World {
    pub nodes: Vec<Node>,
    pub cable: Rc<Cable>,
    pub pool: Pool,
    pub model: Rc<RefCell<Model>>,
    pub mode: Mode,
    pub config: Config,
    pub stop: Rc<Cell<bool>>,
    pub writers: Rc<Cell<usize>>,
    next_id: Rc<Cell<u64>>,
    /// Journals of hosts that die may be damaged where their state is.
    pub states_rot: Cell<bool>,
}

/// How a world begins.
pub struct Start {
    pub sizes: Vec<u64>,
    pub log_bytes: Vec<u64>,
    pub mode: Mode,
    pub config: Config,
    pub slow_disk: Duration,
    pub slow_cable: Duration,
    /// How much of the volumes is not zeros at first.
    pub filled: u64,
    /// The destinations hold the same already.
    pub same: bool,
}

impl World {
    /// Formats everything; node 0 is the source.
    pub async fn new(start: Start) -> World {
        super::forget();
        let pool = Pool::new(64 << 20);
        let content: Vec<Vec<u8>> = start
            .sizes
            .iter()
            .map(|size| {
                let mut bytes = vec![0; *size as usize];
                let filled = start.filled.min(*size) as usize;
                with_rng(|rng| rng.fill(&mut bytes[..filled]));
                bytes
            })
            .collect();
        let mut nodes = Vec::new();
        for (n, log_bytes) in start.log_bytes.iter().enumerate() {
            let format = Format {
                partnership: PARTNERSHIP,
                role: if n == 0 { Role::Source } else { Role::Destination },
                tag: 1000 + n as u64,
                sizes: start.sizes.clone(),
                log_bytes: *log_bytes,
            };
            let bytes = journal::bytes(&format).expect("a journal");
            let journal = Disk::new(vec![0xee; bytes as usize], start.slow_disk);
            journal::format(&journal.open(), &format).await.expect("it is laid out");
            let members = content.iter().map(|bytes| {
                let other = || (0..bytes.len()).map(|at| at as u8).collect();
                Disk::new(if n == 0 || start.same { bytes.clone() } else { other() }, start.slow_disk)
            });
            nodes.push(Node {
                host: Rc::default(),
                journal,
                members: members.collect(),
                healthy: RefCell::default(),
            });
        }
        let model = Model { base: content, ..Model::default() };
        World {
            nodes,
            cable: Rc::new(Cable {
                up: Cell::new(true),
                cuts: Cell::new(0),
                slowest: start.slow_cable,
                muted: RefCell::default(),
                loses_one_in: Cell::new(0),
            }),
            pool,
            model: Rc::new(RefCell::new(model)),
            mode: start.mode,
            config: start.config,
            stop: Rc::default(),
            writers: Rc::default(),
            next_id: Rc::new(Cell::new(1)),
            states_rot: Cell::new(false),
        }
    }

    pub fn side(&self, n: usize) -> Side {
        let node = &self.nodes[n];
        Side {
            journal: node.journal.open(),
            members: node.members.iter().map(Disk::open).collect(),
            pool: self.pool.clone(),
            log_memory: Default::default(),
            wall: Wall::new(1_790_000_000_000 + rt::now().as_nanos() / 1_000_000),
            names: Names::new(&self.config.group, (0..node.members.len()).map(|n| format!("vol{n}"))),
            draw: with_rng(|rng| rng.within(0..=u64::MAX)),
        }
    }

    pub fn volumes(&self, n: usize) -> Vec<Vec<u8>> {
        self.nodes[n].members.iter().map(Disk::content).collect()
    }

    /// The host dies, whatever it is doing.
    pub fn kill(&self, n: usize) {
        let node = &self.nodes[n];
        node.host.life.set(node.host.life.get() + 1);
        if let Runs::Source(source) = node.host.side.replace(Runs::Nothing) {
            super::bury(source);
        }
        with_rng(|rng| {
            node.journal.die(rng);
            node.members.iter().for_each(|disk| disk.die(rng));
        });
        if self.states_rot.get() && with_rng(|rng| rng.below(3)) == 0 {
            // Nobody says that the older one knows how far the log has got.
            self.ruin_copy(n, |older, newer| older.tail == newer.tail);
        }
    }

    /// Ruins the copy of a dead host's state that counts: a byte of it is another one, or it cannot be read.
    pub fn ruin_state(&self, n: usize) {
        self.ruin_copy(n, |_, _| true);
    }

    /// Ruins one copy of a dead host's state: the one that counts, if `newer` says so of the older and the newer one.
    fn ruin_copy(&self, n: usize, newer: impl Fn(&State, &State) -> bool) {
        let disk = &self.nodes[n].journal;
        let content = disk.content();
        let copy = |at: usize| {
            let bytes = content.get(at..at + COPY_BYTES).and_then(|copy| copy.try_into().ok());
            bytes.and_then(|bytes| State::parse(bytes).ok())
        };
        let (Some(first), Some(second)) = (copy(0), copy(COPY_BYTES)) else { return };
        let newest = if first.generation > second.generation { 0 } else { COPY_BYTES };
        let (older, latest) = if newest == 0 { (&second, &first) } else { (&first, &second) };
        let place = if newer(older, latest) { newest } else { COPY_BYTES - newest };
        let byte = place + with_rng(|rng| rng.below(COPY_BYTES));
        match with_rng(|rng| rng.below(2)) {
            0 => disk.fail(byte),
            _ => disk.plant(byte, &[content[byte] ^ 0x55]),
        }
    }

    /// Ruins a record of a dead host's log that was durable before another one was written: it rots, cannot be read, or
    /// another write has landed there. Its sequence; `None` where the log has none.
    pub fn ruin_log(&self, n: usize) -> Option<u64> {
        self.ruin_sector(n, 0)
    }

    /// The same of its payload.
    pub fn ruin_payload(&self, n: usize) -> Option<u64> {
        self.ruin_sector(n, 1)
    }

    /// Ruins a sector of a record, but for so many at its beginning.
    fn ruin_sector(&self, n: usize, spared: usize) -> Option<u64> {
        let disk = &self.nodes[n].journal;
        let content = disk.content();
        let copy = |at: usize| <[u8; COPY_BYTES]>::try_from(&content[at..at + COPY_BYTES]).expect("a copy");
        let state = State::latest(&copy(0), &copy(COPY_BYTES)).expect("a state");
        let ring = &content[state.layout.log_at as usize..];
        let (mut at, mut next, mut least) =
            (state.tail.position as usize, state.tail.sequence, state.tail.life);
        let mut records: Vec<(usize, Header)> = Vec::new();
        while at + SECTOR <= ring.len()
            && let Ok(header) = Header::parse(&ring[at..])
            && (header.log, header.sequence) == (state.log, next)
            && header.life >= least
        {
            least = header.life;
            if header.kind == Kind::Pad {
                at = 0;
                continue;
            }
            let payload = &ring[at + SECTOR..at + SECTOR + header.payload_len()];
            let whole = match header.kind {
                Kind::Write { sum, .. } => crc32c::crc32c(payload) == sum,
                _ => true,
            };
            if !whole || records.len() > 10_000 {
                break;
            }
            records.push((at, header));
            next += 1;
            at = (at + header.record_len()) % ring.len();
        }
        let settled = records.last().map_or(0, |(_, header)| header.settled);
        let known = records.iter().filter(|(_, header)| header.sequence <= settled).count();
        if known == 0 {
            return None;
        }
        self.nodes[n].healthy.replace(content.clone());
        let (at, header) = records[with_rng(|rng| rng.below(known))];
        let sectors = header.record_len() / SECTOR;
        // Padding is of no account; the header's sector is, and so is every one of the payload.
        let sector = with_rng(|rng| rng.within(spared as u64..=sectors as u64 - 1)) as usize;
        let place = state.layout.log_at as usize + at + sector * SECTOR;
        let (other, _) = records[with_rng(|rng| rng.below(records.len()))];
        let lost = ring[other..other + SECTOR].to_vec();
        match with_rng(|rng| rng.below(3)) {
            0 => disk.fail(place),
            1 if lost != content[place..place + SECTOR] => disk.plant(place, &lost),
            _ => disk.plant(place, &[content[place] ^ 0x55]),
        }
        Some(header.sequence)
    }

    /// What was ruined last is as it was.
    pub fn mend_log(&self, n: usize) {
        let node = &self.nodes[n];
        node.journal.mend();
        node.journal.plant(0, &node.healthy.borrow());
    }

    pub async fn role(&self, n: usize) -> Role {
        journal::look(&self.nodes[n].journal.open(), &self.pool).await.expect("a state").role
    }

    pub fn source(&self, n: usize) -> Arc<Source> {
        match &*self.nodes[n].host.side.borrow() {
            Runs::Source(source) => source.clone(),
            other => panic!("host {n} runs {other:?}"),
        }
    }

    pub fn destination(&self, n: usize) -> Arc<Destination> {
        match &*self.nodes[n].host.side.borrow() {
            Runs::Destination(destination) => destination.clone(),
            other => panic!("host {n} runs {other:?}"),
        }
    }

    /// A source and its destination, where both run.
    pub fn running(&self, source: usize, copy: usize) -> Option<(Arc<Source>, Arc<Destination>)> {
        match (&*self.nodes[source].host.side.borrow(), &*self.nodes[copy].host.side.borrow()) {
            (Runs::Source(source), Runs::Destination(copy)) => Some((source.clone(), copy.clone())),
            _ => None,
        }
    }

    /// Opens a source, which has to hold everything that it has answered.
    pub async fn open_source(&self, n: usize) -> Arc<Source> {
        let source = Source::open(self.side(n), self.config.clone()).await.expect("it opens");
        self.nodes[n].host.side.replace(Runs::Source(source.clone()));
        self.learn_sizes(n);
        source
    }

    /// The volumes of a source are what they are: longer, where it has grown, by what its disks hold there; shorter,
    /// where it was promoted before it had heard of that.
    pub fn learn_sizes(&self, n: usize) {
        let sizes = self.source(n).status().sizes;
        let mut model = self.model.borrow_mut();
        for ((base, size), disk) in model.base.iter_mut().zip(sizes).zip(&self.nodes[n].members) {
            let size = size as usize;
            base.truncate(size);
            base.extend(&disk.content()[base.len()..size]);
        }
    }

    /// The volumes of a host get room for so many bytes.
    pub fn lengthen(&self, n: usize, sizes: &[u64]) {
        for (disk, size) in self.nodes[n].members.iter().zip(sizes) {
            with_rng(|rng| disk.lengthen(*size as usize, rng));
        }
    }

    /// How much of the volumes of a host is replicated, if it runs.
    fn sizes(&self, n: usize) -> Vec<u64> {
        match &*self.nodes[n].host.side.borrow() {
            Runs::Source(source) => source.status().sizes,
            Runs::Destination(destination) => destination.status().sizes,
            _ => Vec::new(),
        }
    }

    /// A source that begins where its log ends.
    pub async fn start_source(&self, n: usize) -> Arc<Source> {
        let source = self.open_source(n).await;
        let last = source.status().last;
        {
            let mut model = self.model.borrow_mut();
            model.learn();
            let lost = model.answered.range(last + 1..).next().copied();
            assert_eq!(lost, None, "the source has forgotten what it has answered: it has {last}");
            model.lose_after(&source.eras(), last);
            self.compare(
                n,
                &model.volumes_at(last),
                &format!("the source's volumes are not those of {last}"),
            );
        }
        source
    }

    pub fn ship(&self, from: usize, peer: usize, to: usize) {
        let link = Link {
            cable: self.cable.clone(),
            to: self.nodes[to].host.clone(),
            from: self.nodes[from].host.clone(),
            life: self.nodes[from].host.life.get(),
            pool: self.pool.clone(),
        };
        let source = self.source(from);
        rt::spawn(async move { source.ship(peer, Rc::new(link)).await }).detach();
    }

    pub async fn add_peer(&self, source: &Source, name: &str, first: First) -> usize {
        let config = PeerConfig { name: name.into(), mode: self.mode, first };
        source.add_peer(config).await.expect("there is room")
    }

    /// Opens a destination: where it says that it is consistent, it is what the source once was.
    pub async fn start_destination(&self, n: usize) -> Arc<Destination> {
        let destination = self.start_destination_as_it_is(n).await;
        let status = destination.status();
        if status.consistent {
            let eras = destination.eras();
            let expected = self.model.borrow_mut().volumes_of(&eras, status.last);
            self.compare(n, &expected, &format!("the destination is no prefix at {}", status.last));
            let has = self.model.borrow().has_lost(&eras, status.last).unwrap_or(status.last);
            let lost = self.model.borrow().protected.range(has + 1..).next().copied();
            assert_eq!(lost, None, "the destination has forgotten a protected write: it has {}", status.last);
        }
        destination
    }

    /// Opens a destination that nothing can be said of.
    pub async fn start_destination_as_it_is(&self, n: usize) -> Arc<Destination> {
        let config = destination::Config { memory_bytes: 32 << 10, ..destination::Config::default() };
        let destination = Destination::open(self.side(n), config).await.expect("it opens");
        self.nodes[n].host.side.replace(Runs::Destination(destination.clone()));
        let runs = destination.clone();
        rt::spawn(async move { runs.run().await }).detach();
        destination
    }

    pub fn compare(&self, n: usize, expected: &[Vec<u8>], what: &str) {
        let sizes = self.sizes(n);
        for (member, (actual, expected)) in self.volumes(n).iter().zip(expected).enumerate() {
            // What a copy has not grown to yet is not its source's; nor is what a disk has more than the group.
            let expected =
                &expected[..sizes.get(member).map_or(expected.len(), |s| expected.len().min(*s as usize))];
            assert!(actual.len() >= expected.len(), "{what}: host {n}, volume {member} is short");
            if let Some(at) = actual.iter().zip(expected).position(|(a, b)| a != b) {
                panic!("{what}: host {n}, volume {member}, byte {at}");
            }
        }
    }

    /// What a host says reaches nobody from now on, as behind a firewall.
    pub fn mute(&self, n: usize) {
        self.cable.muted.replace(Some(self.nodes[n].host.clone()));
        self.cable.cuts.set(self.cable.cuts.get() + 1);
    }

    pub fn cut(&self) {
        self.cable.up.set(false);
        self.cable.cuts.set(self.cable.cuts.get() + 1);
    }

    pub fn heal(&self) {
        self.cable.up.set(true);
        self.cable.muted.replace(None);
    }

    /// Starts a task that writes at random until told to stop, or refused.
    pub fn write_on(&self, n: usize, pause: Duration) {
        let source = self.source(n);
        let host = self.nodes[n].host.clone();
        let (life, model, stop) = (host.life.get(), self.model.clone(), self.stop.clone());
        let (next_id, writers) = (self.next_id.clone(), self.writers.clone());
        let sizes = source.status().sizes;
        let blocks: Vec<Arc<dyn Block>> = (0..sizes.len()).map(|member| source.block(member)).collect();
        writers.set(writers.get() + 1);
        rt::spawn(async move {
            while !stop.get() && host.life.get() == life {
                let (member, sectors, kind) =
                    with_rng(|rng| (rng.below(blocks.len()), rng.within(1..=12), rng.below(10)));
                let len = sectors * 512;
                let offset = with_rng(|rng| rng.within(0..=(sizes[member] - len) / 512)) * 512;
                let id = next_id.get().to_be_bytes();
                next_id.set(next_id.get() + 1);
                let op = match kind {
                    0 => BlockOp::WriteZeroes { offset, len, durable: true, keep_space: true, fast: false },
                    1 => BlockOp::Trim { offset, len, durable: false },
                    2 => BlockOp::Flush,
                    _ => {
                        let mut data = vec![0; len as usize];
                        with_rng(|rng| rng.fill(&mut data));
                        data[..8].copy_from_slice(&id);
                        BlockOp::Write { offset, data: vec![Bytes::from(data)], durable: false }
                    }
                };
                match blocks[member].submit(op).await {
                    Ok(Outcome::Done) => {
                        let protected = source
                            .status()
                            .peers
                            .iter()
                            .all(|peer| peer.mode == Some(Mode::Asynchronous) || !peer.unprotected);
                        let synchronous =
                            source.status().peers.iter().any(|peer| peer.mode == Some(Mode::Synchronous));
                        if kind > 2 && host.life.get() == life {
                            model.borrow_mut().answer(&id, protected && synchronous);
                        }
                    }
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => break,
                }
                rt::sleep(with_rng(|rng| pause.mul_f64(rng.below(100) as f64 / 50.0))).await;
            }
            writers.set(writers.get() - 1);
        })
        .detach();
    }

    /// Waits, in virtual time, until something is so.
    pub async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..20_000 {
            if is_so() {
                return;
            }
            rt::sleep(Duration::from_millis(5)).await;
        }
        let sides: Vec<String> = self
            .nodes
            .iter()
            .map(|node| match &*node.host.side.borrow() {
                Runs::Source(source) => format!("{:?}", source.status()),
                Runs::Destination(destination) => format!("{:?}", destination.status()),
                _ => "nothing".into(),
            })
            .collect();
        panic!("never: {what}\n{}", sides.join("\n"));
    }

    pub async fn until_follows(&self, n: usize) {
        let source = self.source(n);
        self.until("the destination follows", || {
            let status = source.status();
            assert!(status.last_error.is_none(), "{status:?}");
            status.peers.iter().all(|p| p.phase == Phase::ContinuouslyReplicating && p.lag_bytes == 0)
        })
        .await;
    }

    /// The destination follows, as far as it can while others write; or not, where faults are quicker.
    pub async fn until_follows_roughly(&self, n: usize) {
        let source = self.source(n);
        for _ in 0..400 {
            if source.status().peers.iter().all(|p| p.phase == Phase::ContinuouslyReplicating) {
                return;
            }
            rt::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The result of a comparison, however often it takes to get one.
    pub async fn until_verified(&self, n: usize) -> Verified {
        for _ in 0..1000 {
            match self.source(n).verify(0, false).await {
                Ok(verified) => return verified,
                Err(_) => rt::sleep(Duration::from_millis(5)).await,
            }
        }
        panic!("never compared: {:?}", self.source(n).status());
    }

    /// Both sides are equal, and what the model says, with nobody writing.
    pub async fn check_equal(&self, source: usize, destination: usize) {
        let last = self.source(source).status().last;
        assert_eq!(last, self.model.borrow_mut().last());
        let copy = self.destination(destination);
        self.until("everything is applied", || copy.status().applied == last).await;
        let expected = self.model.borrow_mut().volumes_at(last);
        assert_eq!(self.sizes(source), self.sizes(destination), "they are not of one size");
        self.compare(source, &expected, "the source is not what it should be");
        self.compare(destination, &expected, "the destination is not equal");
    }

    /// What a destination shows of itself at one moment is what the source once was.
    pub async fn check_snapshot(&self, n: usize) -> Result<(), Error> {
        let destination = self.destination(n);
        let stores = self.nodes[n]
            .members
            .iter()
            .map(|disk| Disk::new(vec![0; disk.content().len()], Duration::from_micros(10)).open());
        let (before, eras) = (destination.status().applied, destination.eras());
        let pictures = destination.snapshot(stores.collect()).await?;
        let after = destination.status().applied;
        let mut volumes = Vec::new();
        for picture in &pictures {
            rt::sleep(Duration::from_millis(with_rng(|rng| rng.within(0..=20)))).await;
            let len = picture.geometry().size as usize;
            match picture.submit(BlockOp::Read { offset: 0, len }).await.expect("it is read") {
                Outcome::Data(payload) => {
                    volumes.push(payload.into_chain(&self.pool).await.expect("memory").concat());
                }
                other => panic!("{other:?}"),
            }
        }
        let mut model = self.model.borrow_mut();
        let is = |expected: Vec<Vec<u8>>| {
            expected.iter().zip(&volumes).all(|(expected, volume)| {
                let both = expected.len().min(volume.len());
                expected[..both] == volume[..both]
            })
        };
        // It may have heard meanwhile that its source has lost something.
        let now = destination.eras();
        let mut is_at = |eras: &[Era], last| last <= model.most(eras) && is(model.volumes_of(eras, last));
        let fits = (before..=after).any(|last| is_at(&eras, last) || is_at(&now, last));
        assert!(fits, "the picture is no prefix, {before} to {after}");
        Ok(())
    }
}
