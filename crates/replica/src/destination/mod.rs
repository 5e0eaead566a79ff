//! The side that keeps a copy: a log that a source appends to, volumes that the log is applied to.
//!
//! What: [`Destination`]. Spec: ours; the crate's page and `wire::repl::control`.
//! Owns: its log, its state, its volumes while it is open. Does not: listen, or know who asks (the caller has let them in).
//!
//! Operation: any core may call. [`Destination::run`] applies the log and makes room in it; somebody has to run it.
//! An append is sorted by its sequence, written behind what is there, made durable with what came beside it, and answered.
//! Blocks that are copied go straight to the volumes; that is no consistent copy until the source says so.
//! Memory: appends that have to wait, for their predecessors or for room, are at most [`MAX_WAITING`]; what was logged and
//! not applied yet is kept in memory up to [`Config::memory_bytes`], and read from the log beyond.
//! Errors: a medium that fails stops the destination until it is opened anew.

mod apply;
mod claim;
mod floor;
mod snapshot;

use std::iter::Peekable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::clock::Time;
use weft_machine::{RemotePayload, rt};
use weft_store::block::{Block, BlockOp};
use weft_wire::repl::control::{Era, Refusal, Report, Request, Response, Sync};
use weft_wire::repl::record::SECTOR;

use crate::bitmap::Bitmap;
use crate::digest::digests;
use crate::error::{Error, Objection};
use crate::journal::{Journal, Side, read};
use crate::log::Log;
use crate::overlay::Overlay;
use crate::record::{Header, Kind, Record};
use crate::replay::{self, Opened};
use crate::scan::Damage;
use crate::signal::{Gate, Signal};
use crate::space::Space;
use crate::state::State;
use crate::status::{Mode, PeerStatus, Phase, Role, Status};

pub(crate) use claim::MAX_EPOCHS_AHEAD;
pub use floor::Holder;

/// Appends that wait at a time.
pub const MAX_WAITING: usize = 64;
/// The longest range that is compared at a time.
const MAX_CHECK_BYTES: u64 = 64 << 20;
/// Bytes of a piece at least: what sources ask for. The digest of a few bytes tells what they are.
const LEAST_PIECE: u32 = 64 << 10;

/// How a destination behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// What messages call the group,
    pub group: String,
    /// and its source.
    pub source: String,
    /// Payload that was logged and not applied yet, in memory.
    pub memory_bytes: usize,
    /// Whether the sum of every payload is checked when it comes. Without it, damage on the way is found only when the log
    /// is replayed.
    pub check_payloads: bool,
    /// When writes are to be answered, where that was agreed: shown until the source has come and says it.
    pub mode: Option<Mode>,
    /// A source that was not heard of for so long is taken for lost: as long as it waits itself for an answer before it goes on
    /// alone.
    pub silence: Duration,
}

impl Default for Config {
    fn default() -> Config {
        let silence = Duration::from_secs(10);
        Config {
            group: "replica".into(),
            source: "its source".into(),
            memory_bytes: 64 << 20,
            check_payloads: true,
            mode: None,
            silence,
        }
    }
}

/// What somebody knows who promotes a copy, and wants nevertheless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Force {
    /// Its source was heard of a moment ago.
    pub source_alive: bool,
    /// A resync was under way: it is no state that the source ever had.
    pub inconsistent: bool,
    /// Its source has said that it had more.
    pub behind: bool,
}

impl Force {
    fn passes(&self, objection: Objection) -> bool {
        match objection {
            Objection::Alive(_) => self.source_alive,
            Objection::Behind(_) => self.behind,
            Objection::Inconsistent | Objection::GaveUp => self.inconsistent,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Destination {
    side: Side,
    /// The volumes, for what a source is told at once where they are full.
    bare: Vec<Arc<dyn Block>>,
    space: Space,
    config: Config,
    journal: Journal,
    log: Log,
    core: Mutex<Core>,
    changed: Signal,
    /// Whoever writes to volumes past the log, or needs that nobody does, is in here.
    volumes: Gate,
}

#[derive(Debug)]
struct Core {
    state: State,
    /// What it may have changed alone, as a source that gave up.
    own: Vec<Bitmap>,
    /// The claim that counts.
    session: Option<u64>,
    sessions: u64,
    /// Where the session's history parted from what is held here.
    fork: u64,
    /// The history that the session's source came with,
    offered: Vec<Era>,
    /// and its volumes' sizes.
    offered_sizes: Vec<u64>,
    /// It is the first copy, as the session's source knows it.
    first_copy: bool,
    /// What its sources have said that they had durable, of what is placed here. The state has it when it is written.
    claimed: u64,
    /// The last record that its source is known to have had, until this side has caught up with it. Afterwards nothing follows
    /// from what is under way: a synchronous source has not answered it, and an asynchronous one is always a little ahead.
    told: u64,
    /// Everything through here is in the volumes.
    applied: u64,
    /// Blocks that a resync has copied may be of writes up to here.
    whole: u64,
    applied_ms: u64,
    waiting: usize,
    /// Blocks that are on their way into volumes, past the log.
    storing: usize,
    phase: Phase,
    since_ms: u64,
    /// When its source answers writes: as that says, before it comes as was agreed.
    mode: Option<Mode>,
    heard_ms: u64,
    /// The same, or when this side was opened: whoever is to be heard of has had no time for it.
    heard: Time,
    /// When the connection of its session ended, until it is heard of again; 0 otherwise.
    lost_ms: u64,
    /// A source was refused because both were written to.
    disputed: bool,
    /// A source of this epoch was refused last because it lacks what a copy has.
    lacks: Option<u64>,
    /// Whether that copy has it still.
    holder: Holder,
    direct_bytes: u64,
    /// So many are about to make it a source: nobody is listened to.
    leaving: usize,
    /// So many resyncs are about to begin: nothing is placed in a log that is to begin anew.
    beginning: usize,
    /// Alive as long as a task prepares for an exchange of roles.
    preparing: Weak<()>,
    /// It is a source now: to be opened as one.
    retired: bool,
    failed: Option<String>,
    /// What was found when it was opened, until that is made good.
    damage: Option<Damage>,
    /// Somebody has asked for its end,
    ends: bool,
    /// and everything is where it is to be.
    closing: bool,
    snapshots: Vec<Weak<Overlay>>,
}

impl Core {
    /// Bytes came past the log.
    fn stored(&mut self, bytes: u64) {
        self.direct_bytes = self.direct_bytes.saturating_add(bytes);
    }

    /// Records that its source is known to have had, and that are not among the `has` first ones, which are here. A copy in the
    /// middle of a resync lacks something else.
    fn missing(&self, has: u64) -> u64 {
        if self.state.consistent { self.told.saturating_sub(has) } else { 0 }
    }

    /// It has what its source was known to have, if that is so.
    fn catch_up(&mut self, has: u64, now_ms: u64) {
        if self.phase == Phase::ReplayingLog && self.told <= has {
            (self.phase, self.since_ms, self.told) = (Phase::ContinuouslyReplicating, now_ms, 0);
        }
    }

    /// It was a source, gave up for another one, and nothing of that one has come yet. A resync that begins clears what names
    /// the writes that this side had alone; before, the volumes are what they were.
    fn is_given_up(&self) -> bool {
        let State { gave_up, consistent, damaged, .. } = &self.state;
        *gave_up && !consistent && !damaged && self.own.iter().any(|map| !map.is_clean())
    }

    /// Another history is adopted: what was said of records that are not in it does not count.
    fn forget_claims(&mut self) {
        self.claimed = self.claimed.min(self.fork);
    }

    /// The bitmaps of what it changed alone are as long as the volumes.
    fn fit_own(&mut self) {
        for (map, member) in self.own.iter_mut().zip(&self.state.members) {
            map.resize(member.size, member.granule);
        }
    }
}

impl Destination {
    /// Opens a side that is a destination: what its log holds is applied to the volumes once more. Where the log is damaged,
    /// the copy is inconsistent from now on, and goes on behind the last record before the damage.
    pub async fn open(side: Side, config: Config) -> Result<Arc<Destination>, Error> {
        let space = Space::default();
        let bare = side.members.clone();
        let side = space.of(&side);
        let opened = replay::open(&side, Role::Destination, config.memory_bytes).await?;
        let Opened { mut state, journal, log, damage } = opened;
        let mut own: Vec<Bitmap> =
            state.members.iter().map(|member| Bitmap::new(member.size, member.granule)).collect();
        for (n, peer) in state.peers.iter().enumerate() {
            if peer.is_some() {
                for (all, one) in own.iter_mut().zip(journal.bitmaps(&state, n).await) {
                    one.ranges(0, usize::MAX).0.iter().for_each(|(offset, len)| all.mark(*offset, *len));
                }
            }
        }
        let applied = log.fill().durable;
        let headers = log.headers(log.fill().first, applied);
        let claimed = headers.iter().map(|header| header.claimed).fold(state.claimed, u64::max);
        state.claimed = claimed;
        let told = state.told;
        if let Some(damage) = damage {
            tracing::error!(
                "group {}: {damage}; this copy cannot be promoted until its source has made it equal again",
                config.group
            );
            // The volumes may be further than the log, which begins anew: nothing behind the damage is met again.
            replay::flush(&side).await?;
            state.consistent = false;
            state.damaged = true;
            state.tail = log.tail_after(applied);
        }
        journal.write_state(state.clone()).await?;
        if damage.is_some() {
            log.free_through(applied);
        }
        let core = Core {
            state,
            own,
            session: None,
            sessions: 0,
            fork: applied,
            offered: Vec::new(),
            offered_sizes: Vec::new(),
            first_copy: false,
            claimed,
            told,
            applied,
            whole: 0,
            applied_ms: 0,
            waiting: 0,
            storing: 0,
            phase: Phase::WaitingForSource,
            since_ms: side.wall.now_ms(),
            mode: config.mode,
            heard_ms: 0,
            heard: rt::now(),
            lost_ms: 0,
            disputed: false,
            lacks: None,
            holder: Holder::NotKnown,
            direct_bytes: 0,
            leaving: 0,
            beginning: 0,
            preparing: Weak::new(),
            retired: false,
            failed: None,
            damage,
            ends: false,
            closing: false,
            snapshots: Vec::new(),
        };
        space.be_patient(true);
        Ok(Arc::new(Destination {
            side,
            bare,
            space,
            config,
            journal,
            log,
            core: Mutex::new(core),
            changed: Signal::default(),
            volumes: Gate::default(),
        }))
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its reads land.
    pub(crate) fn pool(&self) -> &weft_machine::Pool {
        &self.side.pool
    }

    fn fail(&self, why: String) {
        {
            let mut core = self.core();
            if core.failed.is_none() {
                let Config { group, source, .. } = &self.config;
                match core.ends {
                    true => tracing::debug!("group {group}: the copy of {source} ends: {why}"),
                    false => tracing::error!("group {group}: the copy of {source} stops: {why}"),
                }
                core.failed = Some(why);
                core.phase = Phase::Failed;
            }
        }
        self.changed.notify();
        self.log.changed.notify();
    }

    /// Carries out one request.
    pub async fn control(self: &Arc<Self>, request: Request) -> Response {
        let done = |result: Result<(), Refusal>| result.map_or_else(Response::Refused, |()| Response::Done);
        match request {
            Request::Hello(hello) => match self.hello(hello).await {
                Ok(welcome) => Response::Welcome(welcome),
                Err(refusal) => Response::Refused(refusal),
            },
            Request::Begin { session, base, sync } => done(self.begin(session, base, sync).await),
            Request::Zero { session, member, offset, len } => {
                let op = BlockOp::WriteZeroes { offset, len, durable: false, keep_space: false, fast: false };
                done(self.store(session, member, op).await)
            }
            Request::Barrier { session } => done(self.barrier(session).await),
            Request::Finish { session, at } => done(self.finish(session, at).await),
            Request::Checksums { session, member, offset, len, piece, after } => {
                match self.checksums(session, member, offset, len, piece, after).await {
                    Ok(digests) => Response::Digests(digests),
                    Err(refusal) => Response::Refused(refusal),
                }
            }
            Request::Diverged { session, member, from } => match self.diverged(session, member, from) {
                Ok((ranges, next)) => Response::Ranges { ranges, next },
                Err(refusal) => Response::Refused(refusal),
            },
            Request::Suspend { session } => {
                let checked = self.check(session);
                if checked.is_ok() {
                    self.phase(Phase::Suspended);
                }
                done(checked)
            }
            Request::Prepare { session } => done(self.prepare(session).await),
            Request::TakeOver { session, era } => done(self.take_over(session, era).await),
            Request::Status => Response::Report(self.report()),
            Request::Beat { session } => match self.check(session) {
                Ok(()) => Response::Report(self.report()),
                Err(refusal) => Response::Refused(refusal),
            },
        }
    }

    fn phase(&self, phase: Phase) {
        let now = self.side.wall.now_ms();
        let mut core = self.core();
        if core.failed.is_none() && core.phase != phase {
            (core.phase, core.since_ms) = (phase, now);
        }
    }

    /// The request is of the session that counts.
    fn check(&self, session: u64) -> Result<(), Refusal> {
        let now = self.side.wall.now_ms();
        let mut core = self.core();
        if core.failed.is_some() {
            return Err(Refusal::Io);
        }
        if core.retired {
            return Err(Refusal::Fenced(core.state.era()));
        }
        if core.session != Some(session) {
            return Err(Refusal::Session);
        }
        (core.heard_ms, core.heard, core.lost_ms) = (now, rt::now(), 0);
        if core.phase == Phase::ReplayingLog {
            core.catch_up(self.log.fill().durable, now);
        }
        Ok(())
    }

    /// The latest epoch that it follows, or that has claimed it.
    pub fn latest_epoch(&self) -> u64 {
        let core = self.core();
        core.state.promised.epoch.max(core.state.era().epoch)
    }

    /// Whether a source has begun to copy to it, or it was one: it is not as it was made.
    pub fn holds(&self) -> bool {
        self.core().state.holds
    }

    /// Waits for a source of another epoch than this to be accepted, and says of which.
    pub async fn until_claimed(&self, known: u64) -> u64 {
        let claimed = || {
            let core = self.core();
            let epoch = core.state.promised.epoch;
            (core.session.is_some() && epoch != known).then_some(epoch)
        };
        self.changed.until(claimed).await
    }

    /// When its source was last heard of, or this side was opened.
    pub fn heard_at(&self) -> Time {
        self.core().heard
    }

    /// The connection has ended over which this session was claimed. That says nothing of whether its source lives: whoever is to take
    /// that for lost waits until it was silent for long enough.
    pub fn connection_ended(&self, session: u64) {
        let now = self.side.wall.now_ms();
        let mut core = self.core();
        if core.session == Some(session) {
            core.lost_ms = now;
        }
    }

    /// Whether its source was not heard of for as long as it may be silent.
    pub fn is_source_silent(&self) -> bool {
        rt::now().since(self.heard_at()) >= self.config.silence
    }

    /// Whether a source was refused because both sides were written to, and none was accepted since.
    pub fn is_disputed(&self) -> bool {
        self.core().disputed
    }

    /// What only this side has may go: the source that was refused for it counts.
    pub async fn give_up(&self) -> Result<(), Error> {
        self.persist(|state| {
            // In the middle of a resync no bitmap of this side names what it lacks.
            state.damaged |= !state.consistent && !state.gave_up;
            state.gave_up = true;
        })
        .await
    }

    /// Appends records, whose sequences follow each other, to the log. Answered when they are durable. What the log has
    /// already is passed over.
    pub async fn append(self: &Arc<Self>, session: u64, records: Vec<Record>) -> Result<(), Refusal> {
        self.check(session)?;
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
        let (first, last) = (first.header.sequence, last.header.sequence);
        for (sequence, record) in (first..).zip(&records) {
            self.judge(record, sequence)?;
        }
        let mut records = records.into_iter().peekable();
        {
            let mut core = self.core();
            if core.waiting >= MAX_WAITING {
                return Err(Refusal::Gap(self.log.fill().last));
            }
            core.waiting = core.waiting.saturating_add(1);
        }
        let _waits = Waits(self);
        // What is to come before it may be on its way beside it, and there may have to be room.
        self.changed
            .until(|| match self.place(session, &mut records) {
                Ok(()) if records.peek().is_none() => Some(Ok(())),
                // There will be no room before somebody makes space.
                Ok(()) => self.space.is_wanted().then_some(Err(Refusal::NoSpace)),
                Err(refusal) => Some(Err(refusal)),
            })
            .await?;
        // Others may come next now.
        self.changed.notify();
        self.log.durable_through(last, || self.check(session).err()).await
    }

    /// Places as many records as follow what the log has, and find room.
    fn place(
        self: &Arc<Self>,
        session: u64,
        records: &mut Peekable<std::vec::IntoIter<Record>>,
    ) -> Result<(), Refusal> {
        self.check(session)?;
        {
            // As long as this is locked nobody else places a record, or ends the session.
            let mut core = self.core();
            if core.session != Some(session) {
                return Err(Refusal::Session);
            }
            if core.state.eras != core.offered || core.beginning > 0 {
                return Err(Refusal::Inconsistent);
            }
            let mut end = self.log.fill().last;
            while let Some(record) = records.peek() {
                let sequence = record.header.sequence;
                if sequence == end.saturating_add(1) {
                    // What the source calls settled it had durable before it sent this.
                    let claimed = record.header.settled.min(sequence);
                    let header = Header { claimed, ..record.header };
                    match self.log.place(Record { header, payload: record.payload.clone() }) {
                        Some(placed) => end = placed,
                        None => break,
                    }
                    core.claimed = core.claimed.max(claimed);
                    if core.phase == Phase::ReplayingLog {
                        core.told = match record.header.settled {
                            // Sent before it was durable there: its source waits for this side, so nothing answered is missing.
                            settled if settled < sequence => 0,
                            settled => core.told.max(settled),
                        };
                    }
                    #[cfg(any(test, fuzzing))]
                    crate::fuzz::placed(end, record);
                } else if sequence > end {
                    break;
                }
                records.next();
            }
        }
        if self.log.claim_writer() {
            // A task of its own: what was placed is written whoever goes away.
            rt::spawn(self.clone().write_log()).detach();
        }
        Ok(())
    }

    /// Whether a range is in a volume, as long as that is replicated: what it has more is none of the group's.
    fn is_inside(&self, member: u16, offset: u64, len: u64) -> bool {
        let core = self.core();
        let size = core.state.members.get(usize::from(member)).map(|member| member.size);
        size.is_some_and(|size| offset.checked_add(len).is_some_and(|end| end <= size))
    }

    fn judge(&self, record: &Record, sequence: u64) -> Result<(), Refusal> {
        let header = &record.header;
        let inside = self.is_inside(header.member, header.offset, header.range_len());
        if header.kind == Kind::Pad || header.sequence != sequence || !inside {
            return Err(Refusal::Invalid);
        }
        if self.config.check_payloads && !record.is_whole() {
            return Err(Refusal::Damaged);
        }
        Ok(())
    }

    async fn write_log(self: Arc<Self>) {
        loop {
            while self.log.write_next().await.is_some() {}
            if let Some(why) = self.log.failure() {
                self.fail(format!("the journal has failed: {why}"));
                return;
            }
            if !self.log.claim_writer() {
                return;
            }
        }
    }

    /// Stores bytes in a volume, past the log. Durable after a barrier.
    pub async fn write_blocks(
        self: &Arc<Self>,
        session: u64,
        member: u16,
        offset: u64,
        data: Vec<Bytes>,
    ) -> Result<(), Refusal> {
        self.store(session, member, BlockOp::Write { offset, data, durable: false }).await
    }

    /// Lets a peer's memory fill a range of a volume, past the log, as [`Destination::write_blocks`] would store it: no
    /// consistent copy is there that could be torn. False where the volume does not lie in memory, or is not within reach.
    pub async fn fill_blocks(
        self: &Arc<Self>,
        session: u64,
        member: u16,
        offset: u64,
        payload: &dyn RemotePayload,
        len: usize,
    ) -> Result<bool, Refusal> {
        let (_stores, block) = self.stores(session, member)?;
        let Some(file) = block.memory() else { return Ok(false) };
        let bytes = len as u64;
        if !self.is_inside(member, offset, bytes) {
            return Err(Refusal::Invalid);
        }
        self.preserve_range(member, offset, bytes).await;
        match payload.fill(file, offset, len) {
            None => Ok(false),
            Some(Ok(())) => {
                self.core().stored(bytes);
                Ok(true)
            }
            Some(Err(e)) => Err(self.medium(&replay::of_volume(&self.side, usize::from(member), e.into()))),
        }
    }

    /// Something is about to be stored in a volume, past the log: as long as the first value lives, that is known.
    fn stores(&self, session: u64, member: u16) -> Result<(Stores<'_>, &Arc<dyn Block>), Refusal> {
        self.check(session)?;
        let stores = {
            let mut core = self.core();
            if core.session != Some(session) {
                return Err(Refusal::Session);
            }
            if core.state.consistent {
                // Blocks are copied in a resync only: this destination is to stay what it is.
                return Err(Refusal::Invalid);
            }
            core.storing = core.storing.saturating_add(1);
            Stores(self)
        };
        let block = self.bare.get(usize::from(member)).ok_or(Refusal::Invalid)?;
        Ok((stores, block))
    }

    async fn store(&self, session: u64, member: u16, op: BlockOp) -> Result<(), Refusal> {
        let (_stores, block) = self.stores(session, member)?;
        let (bytes, (offset, len)) = match &op {
            BlockOp::Write { data, offset, .. } => {
                let bytes = data.iter().map(|bytes| bytes.len() as u64).sum();
                (bytes, (*offset, bytes))
            }
            BlockOp::WriteZeroes { offset, len, .. } => (0, (*offset, *len)),
            _ => return Err(Refusal::Invalid),
        };
        if !self.is_inside(member, offset, len) {
            return Err(Refusal::Invalid);
        }
        self.preserve(member, &op).await;
        match block.submit(op).await {
            Ok(_) => {
                self.core().stored(bytes);
                Ok(())
            }
            Err(weft_store::Error::Invalid) => Err(Refusal::Invalid),
            Err(e) => Err(self.medium(&replay::of_volume(&self.side, usize::from(member), e))),
        }
    }

    /// What a failing medium is called on the wire. Space may come back; nothing else does.
    fn medium(&self, e: &Error) -> Refusal {
        let Config { group, source, .. } = &self.config;
        tracing::warn!("group {group}: the copy of {source}: {e}");
        match e.is_full() {
            true => Refusal::NoSpace,
            false => Refusal::Io,
        }
    }

    async fn barrier(&self, session: u64) -> Result<(), Refusal> {
        self.check(session)?;
        replay::flush(&self.side).await.map_err(|e| self.medium(&e))
    }

    async fn checksums(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        len: u64,
        piece: u32,
        after: u64,
    ) -> Result<Vec<[u8; 16]>, Refusal> {
        self.check(session)?;
        let block = self.side.members.get(usize::from(member)).ok_or(Refusal::Invalid)?;
        // The last piece ends with the range, which ends where an extent or the volume does: with a sector.
        let whole = |n: u64| n.is_multiple_of(SECTOR as u64);
        if len == 0 || len > MAX_CHECK_BYTES || !whole(offset) || !whole(len) || piece < LEAST_PIECE {
            return Err(Refusal::Invalid);
        }
        if !self.is_inside(member, offset, len) {
            return Err(Refusal::Invalid);
        }
        self.changed
            .until(|| match self.check(session) {
                Err(refusal) => Some(Err(refusal)),
                Ok(()) => (self.core().applied >= after).then_some(Ok(())),
            })
            .await?;
        let chain = read(block, &self.side.pool, offset, len as usize).await.map_err(|e| match e {
            Error::Store(e) => self.medium(&replay::of_volume(&self.side, usize::from(member), e)),
            other => self.medium(&other),
        })?;
        Ok(rt::blocking(move || digests(&chain, piece as usize)).await)
    }

    fn report(&self) -> Report {
        let core = self.core();
        let fill = self.log.fill();
        Report {
            epoch: core.state.era().epoch,
            source: core.retired,
            consistent: core.state.consistent && core.failed.is_none(),
            last: fill.durable,
            applied: core.applied,
            log_bytes: core.state.layout.log_bytes,
            log_used: fill.used,
            applied_ms: core.applied_ms,
        }
    }

    /// What is known to be missing from its log, until its source has made that good. Where it has stopped for that, it is to be
    /// opened anew.
    pub fn damage(&self) -> Option<Damage> {
        self.core().damage
    }

    /// Its history.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn eras(&self) -> Vec<Era> {
        self.core().state.eras.clone()
    }

    /// The latest source that has claimed it.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn promised(&self) -> Era {
        self.core().state.promised
    }

    /// How it is doing, now.
    pub fn status(&self) -> Status {
        let silent = self.is_source_silent();
        let mut core = self.core();
        let fill = self.log.fill();
        core.catch_up(fill.durable, self.side.wall.now_ms());
        let (phase, since_ms) = match core.phase {
            // These last whether or not a source is there.
            phase @ (Phase::Failed | Phase::Suspended | Phase::WaitingForSource) => (phase, core.since_ms),
            // What it was doing, it does no more.
            _ if core.lost_ms > 0 => (Phase::WaitingForSource, core.lost_ms),
            _ if silent => (Phase::WaitingForSource, core.heard_ms),
            phase => (phase, core.since_ms),
        };
        let (lag_bytes, oldest) = self.log.behind(core.applied);
        let source = PeerStatus {
            name: "source".into(),
            mode: core.mode,
            phase,
            since_ms,
            acknowledged: fill.durable,
            applied: core.applied,
            bytes_done: core.direct_bytes,
            bytes_remaining: 0,
            bytes_sent: core.direct_bytes,
            rate: 0.0,
            eta_seconds: None,
            lag_records: core.missing(fill.durable),
            lag_bytes,
            lag_seconds: oldest.map(|ms| self.side.wall.age(ms).as_secs_f64()).unwrap_or_default(),
            lag_alert: false,
            unprotected: false,
            records_sent: 0,
            record_bytes_sent: 0,
            heard_ms: core.heard_ms,
            lost_ms: if phase == Phase::WaitingForSource { core.lost_ms } else { 0 },
            last_error: core
                .failed
                .clone()
                .or_else(|| core.damage.map(|damage| damage.to_string()))
                .or_else(|| self.refused_source(&core)),
            verified: None,
        };
        Status {
            role: if core.retired { Role::Source } else { Role::Destination },
            partnership: core.state.partnership.iter().map(|byte| format!("{byte:02x}")).collect(),
            epoch: core.state.era().epoch,
            generation: self.journal.generation(),
            last: fill.durable,
            applied: core.applied,
            consistent: core.state.consistent,
            gave_up: core.is_given_up(),
            sizes: core.state.members.iter().map(|member| member.size).collect(),
            log_bytes: core.state.layout.log_bytes,
            log_used: fill.used,
            log_wait_ms: 0,
            written_bytes: 0,
            full: self.space.is_wanted(),
            unprotected_writes: 0,
            read_errors: 0,
            last_read_error: None,
            picture_ended: core
                .snapshots
                .iter()
                .filter_map(Weak::upgrade)
                .find_map(|picture| picture.ended()),
            in_flight_bytes: 0,
            peers: vec![source],
            last_error: core.failed.clone(),
        }
    }

    /// Writes nothing to the journal any more, once this returns: the group is opened anew.
    pub(crate) async fn retire(&self) {
        self.space.be_patient(false);
        self.journal.retire().await;
    }

    /// Stops applying, makes the volumes durable and lets the log go.
    pub async fn close(&self) -> Result<(), Error> {
        {
            self.space.be_patient(false);
            let mut core = self.core();
            (core.session, core.ends) = (None, true);
        }
        self.changed.notify();
        self.drain().await?;
        let last = {
            let _turn = self.volumes.enter().await;
            self.settle(0, |state| state.closed = true).await
        };
        self.core().closing = true;
        self.fail("it was closed".into());
        last
    }
}

/// An append that waits, until it is dropped.
struct Waits<'a>(&'a Destination);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut core = self.0.core();
        core.waiting = core.waiting.saturating_sub(1);
    }
}

/// Blocks on their way into a volume, until it is dropped.
struct Stores<'a>(&'a Destination);

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        {
            let mut core = self.0.core();
            core.storing = core.storing.saturating_sub(1);
        }
        self.0.changed.notify();
    }
}

fn phase_of(sync: Sync) -> Phase {
    match sync {
        Sync::Changed => Phase::Resyncing,
        Sync::Initial => Phase::InitialBlockCopy,
        Sync::Seeded => Phase::SeededCopy,
    }
}
