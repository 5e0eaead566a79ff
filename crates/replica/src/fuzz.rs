//! Sources without manners, and operators without sense, against a real destination.
//!
//! Spec: `wire::repl`, docs/replication.md. Owns: a destination over simulated disks, and the model of what they may
//! hold. Does not: check what an honest source is told; the stories and seeds of `tests` do. Exists in the builds of
//! tests and fuzzers alone.
//!
//! An input is a [`Script`]. Requests are bytes, as they would travel: sessions that are opened with any history,
//! appends in order and not, again, cut and damaged, blocks and resyncs at any moment, several at a time. Operators
//! promote, give up, close and open; disks are full, hosts die, connections end, time passes. Checked: no panic; the
//! destination stops only when it is told to; what it answered for is there after any death, and nothing that was not
//! asked for (see [`model`]); bytes that are not replicated stay; epochs do not fall; a copy in a resync does not call
//! itself consistent; appends that wait are bounded; whoever waits is answered when another source comes, which is
//! served and ends with an equal copy.

#[cfg_attr(not(test), allow(dead_code, reason = "stories do more to disks than scripts"))]
pub(crate) mod disk;
mod model;
mod source;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt::Task;
use weft_machine::sim::{Script, Sim, with_rng};
use weft_machine::{Pool, rt};
use weft_store::block::{Block, BlockOp, Outcome};
use weft_wire::repl::control::{Era, Hello, MAX_ERAS, Request, Response, Sync};

use self::disk::Disk;
use self::model::{Byte, Model, VolumeRange, difference};
use crate::destination::{Config, Destination, Force, MAX_WAITING};
use crate::error::Error;
use crate::journal::{self, Format, MIN_LOG_BYTES, Names, Side, Wall};
use crate::record::{Header, Kind, Record, sum_of};
use crate::source::{self as real, Source};
use crate::state::State;
use crate::status::Role;

/// A name, as in `fuzz/`, and what runs under it.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: &[Target] = &[("repl_destination", repl_destination)];

const MAX_ACTS: usize = 150;
/// Requests that are under way at a time.
const MAX_UNDER_WAY: usize = 90;
const PARTNERSHIP: [u8; 16] = *b"warp and weft   ";
/// Of each volume so much is replicated at first,
const SIZES: [u64; 2] = [80 << 10, 24 << 10];
/// and so much more is there.
const BEHIND: [u64; 2] = [8 << 10, 4 << 10];
/// Longer than a destination may take for anything that does not wait for its source.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    static MODEL: RefCell<Option<Rc<RefCell<Model>>>> = const { RefCell::new(None) };
}

/// Called where a record gets its place in a log.
pub(crate) fn placed(sequence: u64, record: &Record) {
    if let Some(model) = MODEL.with_borrow(Clone::clone) {
        model.borrow_mut().placed(sequence, record);
    }
}

/// Called where a resync has begun a log anew.
pub(crate) fn restarted(base: u64, life: u64) {
    if let Some(model) = MODEL.with_borrow(Clone::clone) {
        model.borrow_mut().restarted(base, life);
    }
}

/// A script of a source without manners.
pub fn repl_destination(data: &[u8]) {
    let mut script = Script::new(data);
    Sim::new(u64::from(script.byte())).time_limit(Duration::from_secs(1 << 20)).run(async {
        let mut room = Room::new().await;
        let mut acts = 0;
        while !script.is_over() && acts < MAX_ACTS {
            room.act(&mut script).await;
            acts += 1;
        }
        room.end().await;
    });
    MODEL.take();
}

/// What a request that is under way may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    /// Nobody: it is answered in time.
    No,
    /// Its source, or an earlier append.
    ForSource,
}

/// A picture of the volumes, and what was known of them when it was taken.
struct Picture {
    blocks: Vec<Arc<dyn Block>>,
    known: Vec<Vec<Byte>>,
}

/// A destination with its disks, and what is under way.
struct Room {
    pool: Pool,
    journal: Disk,
    members: Vec<Disk>,
    model: Rc<RefCell<Model>>,
    copy: Arc<Destination>,
    runs: Option<Task<()>>,
    under_way: Vec<(Waits, Task<()>)>,
    picture: Option<Picture>,
    /// What the last hello came with.
    offered: Vec<Era>,
    /// What was seen in this life: of what it promised, and of what it follows.
    epochs: [u64; 2],
    stamp: u64,
    full: bool,
}

impl Room {
    async fn new() -> Room {
        let format = Format {
            partnership: PARTNERSHIP,
            role: Role::Destination,
            tag: 7,
            sizes: SIZES.to_vec(),
            log_bytes: MIN_LOG_BYTES,
        };
        let bytes = journal::bytes(&format).expect("a journal");
        let slow = Duration::from_micros(200);
        let journal = Disk::new(vec![0xee; bytes as usize], slow);
        journal::format(&journal.open(), &format).await.expect("it is laid out");
        let content: Vec<Vec<u8>> =
            SIZES.iter().zip(BEHIND).map(|(size, more)| vec![0xa5; (size + more) as usize]).collect();
        let members: Vec<Disk> = content.iter().map(|bytes| Disk::new(bytes.clone(), slow)).collect();
        let pool = Pool::new(16 << 20);
        let model = Rc::new(RefCell::new(Model::new(content)));
        MODEL.set(Some(model.clone()));
        let (copy, runs) = open(&journal, &members, &pool).await.expect("it opens");
        model.borrow_mut().life = remembered(&journal, &pool).await.life;
        Room {
            pool,
            journal,
            members,
            model,
            copy,
            runs,
            under_way: Vec::new(),
            picture: None,
            offered: Vec::new(),
            epochs: [0; 2],
            stamp: 0,
            full: false,
        }
    }

    async fn act(&mut self, script: &mut Script<'_>) {
        self.under_way.retain(|(_, task)| !task.is_finished());
        let room = self.under_way.len() < MAX_UNDER_WAY;
        match script.byte() % 32 {
            0..=3 if room => self.hello(script),
            4..=12 if room => self.append(script),
            13..=15 if room => self.blocks(script),
            16..=22 if room => self.ask(script),
            23 if script.rarely(4) => self.promote(script).await,
            24 if script.rarely(4) => {
                let died = script.flag();
                self.open_again(died).await;
            }
            25 if script.rarely(4) => {
                let _full = rt::timeout(PATIENCE, self.copy.give_up()).await;
            }
            // A connection ends, with everything that it carries.
            26 if script.rarely(4) => self.hang_up(),
            27 if script.rarely(4) => self.fill(!self.full),
            28 => self.look().await,
            29 => self.compare().await,
            30 => rt::sleep(Duration::from_millis(1 << script.below(15))).await,
            _ => {}
        }
        if script.byte() % 4 != 3 {
            rt::sleep(Duration::from_millis(2)).await;
        }
        self.check().await;
    }

    /// A source comes, of any history.
    fn hello(&mut self, script: &mut Script<'_>) {
        let mut eras = self.copy.eras();
        let last = self.model.borrow().last;
        let latest = self.epochs.iter().copied().max().unwrap_or(0);
        self.stamp += 1;
        let epoch = latest.saturating_add(u64::from(!script.one_in(4)));
        let own = Era { epoch, tag: self.stamp, after: last.saturating_sub(script.below(8) as u64) };
        match script.byte() % 16 {
            0..=6 => eras.push(own),
            7 | 8 => eras.clone_from(&self.offered),
            9 => {}
            10 => {
                eras.truncate(script.below(MAX_ERAS));
                eras.push(own);
            }
            11 => eras = vec![own],
            12 => {
                for _ in 0..=script.below(2 * MAX_ERAS) {
                    self.stamp += 1;
                    eras.push(Era { tag: self.stamp, ..own });
                }
            }
            13 => eras.extend([own, Era { tag: script.edge(), ..own }]),
            _ => eras.push(Era { epoch: script.edge(), tag: script.edge(), after: script.edge() }),
        }
        let many = eras.len().saturating_sub(MAX_ERAS);
        eras.drain(..many);
        if !script.rarely(8) {
            // Most histories make sense.
            eras.sort_by_key(|era| era.epoch);
            let mut least = u64::MAX;
            for era in eras.iter_mut().rev() {
                least = least.min(era.after);
                era.after = least;
            }
        }
        self.offered.clone_from(&eras);
        let mut sizes = self.copy.status().sizes;
        if script.rarely(8) {
            let at = script.below(sizes.len());
            sizes[at] = match script.byte() % 4 {
                0 => SIZES[at] + BEHIND[at],
                1 => SIZES[at],
                2 => SIZES[at] + 512,
                _ => script.edge(),
            };
        }
        let mut partnership = PARTNERSHIP;
        partnership[15] ^= u8::from(script.rarely(64));
        let (first, last) = (script.edge(), script.edge());
        let (synchronous, adopt) = (script.flag(), script.one_in(4));
        let hello = Hello { partnership, first, last, synchronous, adopt, sizes, eras };
        self.send(Request::Hello(hello), Waits::No, script);
    }

    /// The number of a session: mostly that which counts.
    fn session(&self, script: &mut Script<'_>) -> u64 {
        let model = self.model.borrow();
        match (&model.sessions[..], script.rarely(16)) {
            ([], _) => script.edge(),
            (all, true) => *script.one_of(all),
            ([.., last], false) => *last,
        }
    }

    fn member(&self, script: &mut Script<'_>) -> u16 {
        if script.rarely(32) { script.word() } else { script.below(SIZES.len()) as u16 }
    }

    /// A range of a volume, mostly.
    fn range(&self, member: u16, script: &mut Script<'_>) -> (u64, u64) {
        let len = *script.one_of(&[512, 512, 1, 700, 1024, 4096, 6000]);
        if script.rarely(32) {
            return (script.edge(), if script.flag() { script.edge() } else { len });
        }
        let size = SIZES.get(usize::from(member)).map_or(SIZES[0], |size| size - len);
        // Few places, so that they overlap; some are at the end, or across it.
        let offset = match script.byte() {
            at @ 0..0xf0 => u64::from(at % 16) * 512,
            at => size + u64::from(at % 4) * 512,
        };
        (offset, len)
    }

    fn payload(&mut self, len: usize) -> Vec<u8> {
        self.stamp += 1;
        self.stamp.to_le_bytes().iter().cycle().take(len).copied().collect()
    }

    fn append(&mut self, script: &mut Script<'_>) {
        let next = self.model.borrow().last.wrapping_add(1);
        let first = match script.byte() % 32 {
            0..=19 => next,
            20..=25 => next.wrapping_add(script.below(6) as u64),
            26..=29 => next.wrapping_sub(script.below(8) as u64),
            30 => u64::MAX - script.below(4) as u64,
            _ => script.edge(),
        };
        let count = 1 + script.below(4) as u64;
        let mut chain = Vec::new();
        for number in 0..count {
            let member = self.member(script);
            let (offset, len) = self.range(member, script);
            let (kind, payload) = match script.byte() % 16 {
                0 => (Kind::Zeroes { len, keep_space: script.flag() }, Vec::new()),
                1 if script.rarely(8) => (Kind::Pad, Vec::new()),
                kind => {
                    let payload = Bytes::from(self.payload(len.min(8192) as usize));
                    let sum =
                        sum_of(std::slice::from_ref(&payload)) ^ u32::from(kind == 2 && script.rarely(8));
                    (Kind::Write { len: payload.len() as u32, sum }, vec![payload])
                }
            };
            let header = Header {
                log: script.byte().into(),
                life: script.byte().into(),
                epoch: script.byte().into(),
                sequence: if script.rarely(64) { script.edge() } else { first.wrapping_add(number) },
                member,
                offset,
                unix_ms: if script.rarely(16) { script.edge() } else { 1_790_000_000_000 },
                settled: if script.rarely(16) { script.edge() } else { 0 },
                claimed: 0,
                kind,
            };
            Record { header, payload }.emit(&mut chain);
        }
        let mut bytes = chain.concat();
        if script.rarely(32) {
            damage(&mut bytes, script);
        }
        let session = self.session(script);
        let Ok(records) = Record::parse_all(vec![Bytes::from(bytes)]) else { return };
        let Some(last) = records.last().map(|record| record.header.sequence) else { return };
        let (copy, model) = (self.copy.clone(), self.model.clone());
        let task = rt::spawn(async move {
            if copy.append(session, records).await.is_ok() {
                model.borrow_mut().appended(last);
            }
        });
        self.under_way.push((Waits::ForSource, task));
    }

    fn blocks(&mut self, script: &mut Script<'_>) {
        let member = self.member(script);
        let (offset, len) = self.range(member, script);
        let (session, data) = (self.session(script), self.payload(len.min(8192) as usize));
        self.store(session, member, offset, data);
    }

    fn store(&mut self, session: u64, member: u16, offset: u64, data: Vec<u8>) {
        let (copy, model) = (self.copy.clone(), self.model.clone());
        let id = model
            .borrow_mut()
            .storing(VolumeRange::new(member, offset, data.len() as u64), copy.status().applied);
        let task = rt::spawn(async move {
            match copy.write_blocks(session, member, offset, vec![Bytes::from(data.clone())]).await {
                Ok(()) => stored(&model, session, id, data),
                Err(_) => model.borrow_mut().not_stored(id),
            }
        });
        self.under_way.push((Waits::No, task));
    }

    /// Anything else that a source asks.
    fn ask(&mut self, script: &mut Script<'_>) {
        let session = self.session(script);
        let last = self.model.borrow().last;
        let near = |script: &mut Script<'_>| match script.byte() % 16 {
            0..=7 => last,
            8..=11 => last.wrapping_add(script.below(20) as u64).wrapping_sub(10),
            12 => 1000,
            _ => script.edge(),
        };
        let member = self.member(script);
        let (offset, len) = self.range(member, script);
        let (request, waits) = match script.byte() % 32 {
            0..=7 => {
                let sync = *script.one_of(&[Sync::Changed, Sync::Initial, Sync::Seeded]);
                (Request::Begin { session, base: near(script), sync }, Waits::No)
            }
            8..=11 => (Request::Zero { session, member, offset, len }, Waits::No),
            12..=15 => (Request::Barrier { session }, Waits::No),
            16..=21 => (Request::Finish { session, at: near(script) }, Waits::No),
            22 | 23 => {
                let piece = *script.one_of(&[4096, 512, 1, 65_536, 0, u32::MAX]);
                let after = near(script);
                (Request::Checksums { session, member, offset, len, piece, after }, Waits::ForSource)
            }
            24..=26 => (Request::Diverged { session, member, from: script.edge() }, Waits::No),
            27 => (Request::Suspend { session }, Waits::No),
            28 => {
                let era =
                    Era { epoch: self.epochs[0].wrapping_add(1), tag: script.edge(), after: near(script) };
                let epoch = if script.rarely(4) { script.edge() } else { era.epoch };
                (Request::TakeOver { session, era: Era { epoch, ..era } }, Waits::No)
            }
            29 => (Request::Status, Waits::No),
            30 => (Request::Prepare { session }, Waits::No),
            _ => (Request::Beat { session }, Waits::No),
        };
        self.send(request, waits, script);
    }

    /// A request, as it would travel.
    fn send(&mut self, request: Request, waits: Waits, script: &mut Script<'_>) {
        let mut bytes = request.emit();
        if script.rarely(64) {
            damage(&mut bytes, script);
        }
        // One that the parser refuses goes no further.
        if let Ok(request) = Request::parse(&bytes) {
            self.carry_out(request, waits);
        }
    }

    fn carry_out(&mut self, request: Request, waits: Waits) {
        let (copy, model) = (self.copy.clone(), self.model.clone());
        let (mut storing, mut blocks) = (None, Default::default());
        match &request {
            Request::Zero { member, offset, len, .. } => {
                let place = VolumeRange::new(*member, *offset, *len);
                storing = Some(model.borrow_mut().storing(place, copy.status().applied));
            }
            Request::Barrier { .. } => blocks = model.borrow().answered_blocks(),
            Request::Finish { .. } => {
                let mut model = model.borrow_mut();
                (model.consistent, model.finishing) = (true, model.finishing + 1);
            }
            Request::TakeOver { .. } => model.borrow_mut().consistent = true,
            _ => {}
        }
        let task = rt::spawn(async move {
            let response = copy.control(request.clone()).await;
            // What a source is told can be said.
            assert_eq!(Response::parse(&response.emit()).as_ref(), Ok(&response));
            let done = response == Response::Done;
            match (request, response) {
                (Request::Hello(hello), Response::Welcome(welcome)) => {
                    let epoch = hello.eras.last().map_or(0, |era| era.epoch);
                    model.borrow_mut().welcomed(welcome.session, epoch);
                }
                (Request::Zero { session, len, .. }, _) => {
                    let id = storing.expect("it is stored");
                    match done {
                        true => stored(&model, session, id, vec![0; len as usize]),
                        false => model.borrow_mut().not_stored(id),
                    }
                }
                (Request::Barrier { .. }, _) if done => model.borrow_mut().barrier(&blocks),
                (Request::Finish { .. }, _) => model.borrow_mut().finishing -= 1,
                (Request::Begin { .. }, _) if done => {
                    let mut model = model.borrow_mut();
                    model.consistent &= model.finishing > 0;
                }
                _ => {}
            }
        });
        self.under_way.push((waits, task));
    }

    fn hang_up(&mut self) {
        self.under_way.clear();
        self.model.borrow_mut().leave();
    }

    fn fill(&mut self, full: bool) {
        self.full = full;
        self.members.iter().for_each(|disk| disk.fill(full));
        self.journal.fill(full);
    }

    async fn promote(&mut self, script: &mut Script<'_>) {
        let force = Force { source_alive: script.flag(), inconsistent: script.rarely(4), behind: true };
        self.stamp += 1;
        let promoted = rt::timeout(PATIENCE, self.copy.promote(self.stamp, force)).await;
        match promoted {
            Ok(Ok(era)) => {
                self.model.borrow_mut().promoted(era.epoch);
                let then = script.bytes(6).to_vec();
                self.be_source(&mut Script::new(&then)).await;
            }
            Ok(Err(Error::Halted(why))) => panic!("it has stopped: {why}"),
            Ok(Err(_)) => {}
            Err(_) => assert!(self.full, "a promotion takes for ever"),
        }
    }

    /// The host dies, or the server is stopped in order; and comes back.
    async fn open_again(&mut self, died: bool) {
        self.picture = None;
        if died {
            self.die();
        } else {
            self.fill(false);
            let closed = rt::timeout(PATIENCE, self.copy.close()).await;
            assert!(closed.is_ok_and(|closed| closed.is_ok()), "it does not close");
            rt::sleep(Duration::from_secs(1)).await;
            let waiting = self.under_way.iter().filter(|(_, task)| !task.is_finished()).count();
            assert_eq!(waiting, 0, "requests outlive what they were asked of");
            self.hang_up();
            self.runs = None;
        }
        self.fill(false);
        self.come_back(died).await;
    }

    fn die(&mut self) {
        self.hang_up();
        self.runs = None;
        with_rng(|rng| {
            self.journal.die(rng);
            self.members.iter().for_each(|disk| disk.die(rng));
        });
    }

    /// What the journal says that it is, is opened.
    async fn come_back(&mut self, died: bool) {
        loop {
            let before = remembered(&self.journal, &self.pool).await;
            let begun = before.life != self.model.borrow().life;
            if before.role == Role::Source {
                // It was promoted, or took over, and nobody saw it.
                self.model.borrow_mut().consistent = true;
                self.live_as_source(&mut Script::new(&[]), begun, died).await;
                continue;
            }
            let (copy, runs) = open(&self.journal, &self.members, &self.pool).await.expect("it opens");
            (self.copy, self.runs) = (copy, runs);
            let status = self.copy.status();
            assert_eq!(self.copy.damage(), None, "a death is taken for damage");
            let now = remembered(&self.journal, &self.pool).await;
            self.model.borrow_mut().reopened(before.tail.sequence, status.last, now.life, begun, died);
            let promised = self.model.borrow().promised;
            assert!(
                now.promised.epoch >= promised,
                "epoch {promised} was promised, and it is {:?}",
                now.promised
            );
            // What it had not answered for yet may be gone.
            self.epochs = [now.promised.epoch, status.epoch];
            self.offered.clear();
            self.compare_disks();
            return;
        }
    }

    /// A picture is taken; or looked at, and thrown away.
    async fn look(&mut self) {
        match self.picture.take() {
            Some(picture) => {
                self.fill(false);
                let mut volumes = Vec::new();
                for block in &picture.blocks {
                    let len = block.geometry().size as usize;
                    match block.submit(BlockOp::Read { offset: 0, len }).await.expect("it is read") {
                        Outcome::Data(data) => {
                            volumes.push(data.into_chain(&self.pool).await.expect("memory").concat());
                        }
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!(difference(&volumes, &picture.known), None, "a picture has changed");
            }
            None if self.under_way.iter().all(|(_, task)| task.is_finished()) && !self.full => {
                let stores = self
                    .members
                    .iter()
                    .map(|disk| Disk::new(vec![0; disk.content().len()], Duration::ZERO).open());
                if let Ok(blocks) = self.copy.snapshot(stores.collect()).await {
                    self.picture = Some(Picture { blocks, known: self.model.borrow().known() });
                }
            }
            None => {}
        }
    }

    /// What is so at any moment.
    async fn check(&mut self) {
        if self.copy.status().role == Role::Source {
            self.model.borrow_mut().promoted(self.copy.status().epoch);
            self.be_source(&mut Script::new(&[])).await;
        }
        let status = self.copy.status();
        assert_eq!(status.last_error, None, "it has stopped");
        assert!(
            !status.consistent || self.model.borrow().consistent,
            "a copy in a resync is no consistent one"
        );
        let state = remembered(&self.journal, &self.pool).await;
        if state.role == Role::Source {
            // A promotion is under way, or was given up while this was written: nobody was told of its epoch.
            return;
        }
        let epochs = [state.promised.epoch, status.epoch];
        for (seen, now) in self.epochs.iter_mut().zip(epochs) {
            assert!(now >= *seen, "epoch {seen} falls to {now}");
            *seen = now;
        }
    }

    /// When nothing is under way but what waits for its source, the volumes are what they are to be.
    async fn compare(&mut self) {
        self.fill(false);
        if self.copy.status().full {
            // Taking over goes on though its request is dropped, and is tried again once a second.
            rt::sleep(Duration::from_secs(2)).await;
        }
        let began = rt::now();
        let mut is_idle = false;
        while !is_idle && rt::now().since(began) < PATIENCE {
            rt::sleep(Duration::from_millis(5)).await;
            self.under_way.retain(|(_, task)| !task.is_finished());
            if self.copy.status().role == Role::Source {
                return;
            }
            let idle = self.under_way.iter().all(|(waits, _)| *waits == Waits::ForSource);
            is_idle = idle && self.copy.status().applied == self.model.borrow().last;
        }
        let waits: Vec<Waits> = self.under_way.iter().map(|(waits, _)| *waits).collect();
        assert!(is_idle, "something is never done: {waits:?}, {:?}", self.copy.status());
        let appends = self.under_way.len();
        assert!(appends <= 2 * MAX_WAITING, "{appends} requests wait");
        self.compare_disks();
    }

    fn compare_disks(&self) {
        let volumes: Vec<Vec<u8>> = self.members.iter().map(Disk::content).collect();
        let differs = difference(&volumes, &self.model.borrow().known());
        assert_eq!(differs, None, "the volumes hold something else");
    }

    /// Another source comes, an honest one, and is served.
    async fn end(mut self) {
        self.compare().await;
        if self.copy.status().role == Role::Source {
            self.be_source(&mut Script::new(&[])).await;
        }
        self.compare().await;
        self.check().await;
        let (mut eras, last) = (self.copy.eras(), self.model.borrow().last);
        // Whoever hung up may have left a promise that is not durable.
        let epoch = self.copy.promised().epoch.checked_add(1).expect("an epoch is left");
        eras.push(Era { epoch, tag: u64::MAX, after: last });
        eras.drain(..eras.len().saturating_sub(MAX_ERAS));
        let sizes: Vec<u64> = SIZES.to_vec();
        let hello = Hello {
            partnership: PARTNERSHIP,
            first: last + 1,
            last,
            synchronous: true,
            adopt: true,
            sizes: sizes.clone(),
            eras,
        };
        self.honest(Request::Hello(hello)).await;
        let session = self.model.borrow().session().expect("it was welcomed");
        rt::sleep(Duration::from_secs(1)).await;
        self.under_way.retain(|(_, task)| !task.is_finished());
        assert!(self.under_way.is_empty(), "requests of an earlier source are never answered");
        self.honest(Request::Begin { session, base: last + 5, sync: Sync::Initial }).await;
        for (member, size) in sizes.iter().enumerate() {
            for offset in (0..*size).step_by(8192) {
                let data = self.payload(8192);
                self.store(session, member as u16, offset, data);
            }
        }
        self.compare().await;
        self.honest(Request::Barrier { session }).await;
        self.honest(Request::Finish { session, at: last + 5 }).await;
        self.compare().await;
        let known = self.model.borrow().known();
        for (member, (bytes, size)) in known.iter().zip(&sizes).enumerate() {
            // What lies behind, where an earlier source was longer, nobody has written since.
            let unknown = bytes.iter().take(*size as usize).position(Option::is_none);
            assert_eq!(unknown, None, "something was never written in volume {member}");
        }
        assert!(self.copy.status().consistent);
    }

    /// Something that is done.
    async fn honest(&mut self, request: Request) {
        let (said, before) = (format!("{request:?}"), self.model.borrow().sessions.len());
        let copy = self.copy.clone();
        let done = match &request {
            Request::Hello(_) => {
                self.carry_out(request, Waits::No);
                rt::sleep(PATIENCE).await;
                self.model.borrow().sessions.len() > before
            }
            _ => {
                let blocks = self.model.borrow().answered_blocks();
                self.model.borrow_mut().consistent |= matches!(request, Request::Finish { .. });
                let response = rt::timeout(PATIENCE, copy.control(request.clone())).await;
                let done = response.is_ok_and(|response| response == Response::Done);
                if done && matches!(request, Request::Barrier { .. }) {
                    self.model.borrow_mut().barrier(&blocks);
                }
                done
            }
        };
        assert!(done, "an honest source is not served: {said}, {:?}", self.copy.status());
    }
}

/// Blocks of this session have arrived.
fn stored(model: &RefCell<Model>, session: u64, id: u64, data: Vec<u8>) {
    let mut model = model.borrow_mut();
    assert_eq!(model.session(), Some(session), "blocks of a session that is over arrive");
    model.stored(id, Some(data));
}

fn side(journal: &Disk, members: &[Disk], pool: &Pool) -> Side {
    Side {
        journal: journal.open(),
        members: members.iter().map(Disk::open).collect(),
        pool: pool.clone(),
        log_memory: Default::default(),
        wall: Wall::new(1_790_000_000_000),
        names: Names::new("db", []),
        draw: 1,
    }
}

async fn open(
    journal: &Disk,
    members: &[Disk],
    pool: &Pool,
) -> Result<(Arc<Destination>, Option<Task<()>>), Error> {
    let config = Config { memory_bytes: 32 << 10, ..Config::default() };
    let copy = Destination::open(side(journal, members, pool), config).await?;
    let run = copy.clone();
    Ok((copy, Some(rt::spawn(async move { run.run().await }))))
}

async fn remembered(journal: &Disk, pool: &Pool) -> State {
    journal::look(&journal.open(), pool).await.expect("a state")
}

fn damage(bytes: &mut Vec<u8>, script: &mut Script<'_>) {
    if bytes.is_empty() {
        return;
    }
    let at = script.below(bytes.len());
    match script.byte() % 3 {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << script.below(8),
        _ => bytes.extend_from_slice(&[0; 100]),
    }
}

#[cfg(test)]
mod tests;
