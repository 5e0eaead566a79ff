//! The side that keeps a copy: a log that a source appends to, volumes that the log is applied to.
//!
//! The requests are in `wire::repl::control`; the caller has authenticated the source. While a destination is open,
//! nobody else may use its journal and volumes.
//!
//! Any thread may call. [`Destination::run`] applies the log and makes room in it; the caller has to run it. Appends
//! are sorted by their sequence, written behind the end of the log, flushed together, and answered. Copied blocks go
//! straight to the volumes, which are inconsistent until the source ends the resync. All state in memory is in one
//! `Core`, which changes in one place (`crate::owner`).
//!
//! At most [`MAX_WAITING`] appends wait for their predecessors or for room. Records that are logged and not applied yet
//! stay in memory up to [`Config::memory_bytes`], and are read from the log beyond.
//!
//! A failure of a medium stops the destination until it is opened again.

mod append;
mod apply;
mod blocks;
mod claim;
mod floor;
mod snapshot;
mod status;
mod waiting;

use std::sync::{Arc, Weak};
use std::time::Duration;

use weft_machine::clock::Time;
use weft_machine::rt;
use weft_store::block::{Block, BlockOp};
use weft_wire::repl::control::{Era, Refusal, Request, Response, Sync};

use crate::bitmap::Bitmap;
use crate::error::{Damage, Error, Objection};
use crate::journal::{Journal, Side};
use crate::log::{Fill, Log};
use crate::overlay::Overlay;
use crate::owner::{Owner, View};
use crate::replay::{self, Opened};
use crate::signal::Gate;
use crate::space::{self, Space, Watcher};
use crate::state::State;
use crate::status::{Mode, Phase, Role};

pub(crate) use claim::MAX_EPOCHS_AHEAD;
pub use floor::Holder;
use waiting::{Awaited, Waiting};

/// The most appends that wait.
pub const MAX_WAITING: usize = 64;

/// How a destination behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the group in messages,
    pub group: String,
    /// and its source.
    pub source: String,
    /// The most payload in memory that is logged and not applied yet.
    pub memory_bytes: usize,
    /// Whether the sum of every payload is checked on arrival. Without it, damage in transit is found only when the log
    /// is replayed.
    pub check_payloads: bool,
    /// The agreed mode, if any: shown until the source connects and says it.
    pub mode: Option<Mode>,
    /// A source that was not heard from for this long counts as lost: as long as the source itself waits for an answer
    /// before it goes on alone.
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

/// The objections that a promotion overrides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Force {
    /// Its source was heard from recently.
    pub source_alive: bool,
    /// A resync is under way: its volumes hold no state that the source ever had.
    pub inconsistent: bool,
    /// Its source had more records at the last hello.
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

/// A side that keeps a copy.
#[derive(Debug)]
pub struct Destination {
    side: Side,
    /// The volumes for requests whose source is told of a full disk at once.
    bare: Vec<Arc<dyn Block>>,
    space: Space,
    config: Config,
    journal: Journal,
    log: Log,
    owner: Owner<Core>,
    /// Held by tasks that write to volumes bypassing the log, or need that nobody does.
    volumes: Gate,
}

#[derive(Debug)]
struct Core {
    state: State,
    /// The ranges that it may have changed alone, as a source that gave up.
    own: Vec<Bitmap>,
    /// The current claim.
    session: Option<u64>,
    sessions: u64,
    /// Where the session's history parts from that of the volumes here.
    fork: u64,
    /// The history that the session's source came with,
    offered: Vec<Era>,
    /// and its volumes' sizes.
    offered_sizes: Vec<u64>,
    /// It is the first copy, as the session's source knows it.
    first_copy: bool,
    /// The last record placed here that its sources are known to have durable. The state takes it over when it is
    /// written.
    claimed: u64,
    /// The last record that its source is known to have had, until this side has caught up with it. Later records in
    /// flight do not count: a synchronous source has not answered them, and an asynchronous one is always a little
    /// ahead.
    told: u64,
    /// The log after the last event.
    log: Fill,
    /// Whether something waited for space on a disk then. The first write that waits is an event, and so is the end of
    /// the last wait.
    is_full: bool,
    /// Everything through here is in the volumes.
    applied: u64,
    /// Blocks that a resync has copied may contain writes through here.
    whole: u64,
    applied_ms: u64,
    waiting: Waiting,
    /// Appends that are being answered.
    appends: usize,
    /// Blocks that are being written to volumes, bypassing the log.
    storing: usize,
    phase: Phase,
    since_ms: u64,
    /// The mode: as its source says, and until that connects, as agreed.
    mode: Option<Mode>,
    heard_ms: u64,
    /// The same, or when this side was opened: before that nobody could be heard from.
    heard: Time,
    /// When the connection of its session ended, until it is heard from again; 0 otherwise.
    lost_ms: u64,
    /// A source was refused because both sides were written to.
    disputed: bool,
    /// The epoch of the source that was refused last because it lacks records of a copy.
    lacks: Option<u64>,
    /// What is known about that copy now.
    holder: Holder,
    direct_bytes: u64,
    /// How many tasks are making it a source: all requests are refused meanwhile.
    leaving: usize,
    /// How many resyncs are about to begin: nothing is placed in a log that is about to restart.
    beginning: usize,
    /// Alive as long as a task prepares for an exchange of roles.
    preparing: Weak<()>,
    /// It has become a source, and has to be opened as one.
    retired: bool,
    failed: Option<String>,
    /// Damage that was found when it was opened, until it is repaired.
    damage: Option<Damage>,
    /// It was asked to close,
    ends: bool,
    /// and has closed: everything is durable in the volumes.
    closing: bool,
    snapshots: Vec<Weak<Overlay>>,
}

impl Core {
    /// Bytes that bypassed the log.
    fn stored(&mut self, bytes: u64) {
        self.direct_bytes = self.direct_bytes.saturating_add(bytes);
    }

    /// How many records its source is known to have had behind record `has`, the last one here. During a resync the
    /// copy lacks other things.
    fn missing(&self, has: u64) -> u64 {
        if self.state.consistent { self.told.saturating_sub(has) } else { 0 }
    }

    fn begin_phase(&mut self, phase: Phase, now_ms: u64) {
        if self.failed.is_none() && self.phase != phase {
            (self.phase, self.since_ms) = (phase, now_ms);
        }
    }

    /// Notes that it has caught up with its source, if it has.
    fn catch_up(&mut self, has: u64, now_ms: u64) {
        if self.phase == Phase::ReplayingLog && self.told <= has {
            (self.phase, self.since_ms, self.told) = (Phase::ContinuouslyReplicating, now_ms, 0);
        }
    }

    /// Whether it was a source, gave up for another one, and has received nothing from that one yet. Until a resync
    /// begins, which clears the marks of the writes that only this side has, the volumes are as they were.
    fn is_given_up(&self) -> bool {
        let State { gave_up, consistent, damaged, .. } = &self.state;
        *gave_up && !consistent && !damaged && self.own.iter().any(|map| !map.is_clean())
    }

    /// Adopts another history: claims about records that are not in it are void.
    fn forget_claims(&mut self) {
        self.claimed = self.claimed.min(self.fork);
    }

    /// Adapts the bitmaps of its own changes to the sizes of the volumes.
    fn fit_own(&mut self) {
        for (map, member) in self.own.iter_mut().zip(&self.state.members) {
            map.resize(member.size, member.granule);
        }
    }
}

impl Destination {
    /// Opens a side that is a destination, and applies its log to the volumes. If the log is damaged, the copy is
    /// inconsistent from now on, and goes on behind the last record before the damage.
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
            // The volumes may contain later records than the log, which starts over: records behind the damage are
            // never read again.
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
            log: log.fill(),
            is_full: false,
            applied,
            whole: 0,
            applied_ms: 0,
            waiting: Waiting::new(log.fill(), applied),
            appends: 0,
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
        let destination = Arc::new(Destination {
            side,
            bare,
            space,
            config,
            journal,
            log,
            owner: Owner::new(core),
            volumes: Gate::default(),
        });
        let watcher: Weak<Destination> = Arc::downgrade(&destination);
        destination.space.tell(watcher);
        Ok(destination)
    }

    /// The core, to look at.
    fn core(&self) -> View<'_, Core> {
        self.owner.read()
    }

    /// Applies one event to the core, and wakes those whose wait is over. The caller must not hold a view.
    fn handle<R>(&self, event: impl FnOnce(&mut Core) -> R) -> R {
        self.owner.handle(|core| {
            let result = event(core);
            (core.log, core.is_full) = (self.log.fill(), self.space.is_wanted());
            result
        })
    }

    /// Applies the event of something that is dropped.
    fn release(&self, event: impl FnOnce(&mut Core)) {
        if !self.owner.is_broken() {
            self.handle(event);
        }
    }

    /// The pool for its reads.
    pub(crate) fn pool(&self) -> &weft_machine::Pool {
        &self.side.pool
    }

    fn fail(&self, why: String) {
        self.handle(|core| {
            if core.failed.is_none() {
                let Config { group, source, .. } = &self.config;
                match core.ends {
                    true => tracing::debug!("group {group}: the copy of {source} ends: {why}"),
                    false => tracing::error!("group {group}: the copy of {source} stops: {why}"),
                }
                core.failed = Some(why);
                core.phase = Phase::Failed;
            }
        });
    }

    /// Carries out one request of a source.
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
        self.handle(|core| core.begin_phase(phase, now));
    }

    /// Checks that a request that has just arrived is of the current session: its source was heard from.
    fn check(&self, session: u64) -> Result<(), Refusal> {
        self.handle(|core| self.hear(core, session))
    }

    /// Checks that the session of a request is still the current one after the request has waited. A source that has
    /// sent a request and then fallen silent must not seem alive as long as its request waits.
    fn recheck(&self, session: u64) -> Result<(), Refusal> {
        self.handle(|core| self.admit(core, session))
    }

    /// Does the same as [`Destination::check`] within an event.
    fn hear(&self, core: &mut Core, session: u64) -> Result<(), Refusal> {
        self.admit(core, session)?;
        (core.heard_ms, core.heard, core.lost_ms) = (self.side.wall.now_ms(), rt::now(), 0);
        Ok(())
    }

    /// Does the same as [`Destination::recheck`] within an event.
    fn admit(&self, core: &mut Core, session: u64) -> Result<(), Refusal> {
        if core.failed.is_some() {
            return Err(Refusal::Io);
        }
        if core.retired {
            return Err(Refusal::Fenced(core.state.era()));
        }
        if core.session != Some(session) {
            return Err(Refusal::Session);
        }
        if core.phase == Phase::ReplayingLog {
            core.catch_up(self.log.fill().durable, self.side.wall.now_ms());
        }
        Ok(())
    }

    /// The latest epoch that it follows or was claimed by.
    pub fn latest_epoch(&self) -> u64 {
        let core = self.core();
        core.state.promised.epoch.max(core.state.era().epoch)
    }

    /// Whether it was ever a source, or a source has begun to copy to it.
    pub fn holds(&self) -> bool {
        self.core().state.holds
    }

    /// Waits until a source of another epoch than this is accepted, and returns that epoch.
    pub async fn until_claimed(&self, known: u64) -> u64 {
        self.until(|core| {
            let epoch = core.state.promised.epoch;
            let is_claimed = core.session.is_some() && epoch != known;
            if is_claimed { Ok(epoch) } else { Err(Awaited::News) }
        })
        .await
    }

    /// When its source was last heard from, or this side was opened.
    pub fn heard_at(&self) -> Time {
        self.core().heard
    }

    /// The connection of this session has ended. Its source may still be alive: it counts as lost only after it was
    /// silent for long enough.
    pub fn connection_ended(&self, session: u64) {
        let now = self.side.wall.now_ms();
        self.handle(|core| {
            if core.session == Some(session) {
                core.lost_ms = now;
            }
        });
    }

    /// Whether its source was silent for longer than [`Config::silence`].
    pub fn is_source_silent(&self) -> bool {
        rt::now().since(self.heard_at()) >= self.config.silence
    }

    /// Whether a source was refused because both sides were written to, and none was accepted since.
    pub fn is_disputed(&self) -> bool {
        self.core().disputed
    }

    /// Gives up the records that only this side has: the source that was refused because of them counts.
    pub async fn give_up(&self) -> Result<(), Error> {
        self.decide(|state| {
            // During a resync nothing of this side names what it lacks.
            state.damaged |= !state.consistent && !state.gave_up;
            state.gave_up = true;
        })
        .await
    }

    /// Makes a decision of an administrator durable, who is told of a full disk.
    async fn decide(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        self.space.unless_full(self.persist(change)).await.ok_or(Error::State(space::FULL))?
    }

    /// Whether a range is inside the replicated part of a volume.
    fn is_inside(&self, member: u16, offset: u64, len: u64) -> bool {
        let core = self.core();
        let size = core.state.members.get(usize::from(member)).map(|member| member.size);
        size.is_some_and(|size| offset.checked_add(len).is_some_and(|end| end <= size))
    }

    /// The refusal for an error of a medium. A full disk may pass; other errors do not.
    fn medium(&self, e: &Error) -> Refusal {
        let Config { group, source, .. } = &self.config;
        tracing::warn!("group {group}: the copy of {source}: {e}");
        match e.is_full() {
            true => Refusal::NoSpace,
            false => Refusal::Io,
        }
    }

    /// Damage to its log that its source has not repaired yet. If it has stopped because of that, it has to be opened
    /// again.
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

    /// Writes nothing to the journal once this has returned: the group is opened again.
    pub(crate) async fn retire(&self) {
        self.space.be_patient(false);
        self.journal.retire().await;
    }

    /// Stops applying, flushes the volumes and empties the log.
    pub async fn close(&self) -> Result<(), Error> {
        self.space.be_patient(false);
        self.handle(|core| (core.session, core.ends) = (None, true));
        self.drain().await?;
        let last = {
            let _turn = self.volumes.enter().await;
            self.settle(0, |state| state.closed = true).await
        };
        self.handle(|core| core.closing = true);
        self.fail("it was closed".into());
        last
    }
}

impl Watcher for Destination {
    fn space_has_changed(&self) {
        self.release(|_| ());
    }
}

fn phase_of(sync: Sync) -> Phase {
    match sync {
        Sync::Changed => Phase::Resyncing,
        Sync::Initial => Phase::InitialBlockCopy,
        Sync::Seeded => Phase::SeededCopy,
    }
}
