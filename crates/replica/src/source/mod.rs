//! The side that users write to: wraps the blocks of a group and sends changes to its destinations.
//!
//! Any thread may submit. A write is *placed*: it gets its sequence, and is carried out from then on even if the caller
//! drops it. It is written to the log together with other placed writes, applied to its volume behind every earlier
//! write that it overlaps, and answered. [`Source::ship`] is the loop for one destination, and runs where the caller
//! starts it; a [`Peer`](crate::peer::Peer) connects. All state in memory is in one `Core`, which changes in one place
//! (`crate::owner`).
//!
//! Payload in flight is at most [`Config::memory_bytes`], and as much again may be kept to be sent; further writes
//! wait.
//!
//! A failure of a volume or of the journal stops the source, because the content of its volumes is unknown then;
//! opening it again replays the log. A source that learns of a later one stops as well.

mod admin;
mod checkpoint;
mod exchange;
mod gone;
mod growth;
mod outline;
mod reads;
mod resync;
mod session;
mod status;
mod waiting;
mod write;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::clock::Time;
use weft_machine::rt;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};
use weft_wire::repl::control::{Era, Refusal, Report, Request, Response};

use self::admin::Command;
pub use self::admin::{First, PeerConfig};
use self::exchange::GIVEN_UP;
use self::reads::FailedReads;
use self::waiting::Waiting;
use crate::bitmap::Bitmap;
use crate::error::Error;
use crate::history::same;
use crate::journal::{Journal, MIN_LOG_BYTES, Side};
use crate::log::{Fill, Log};
use crate::owner::{Owner, View};
use crate::record::MAX_PAYLOAD;
use crate::replay::{self, Opened};
use crate::signal::Gate;
use crate::space::Space;
use crate::state::{PeerState, State};
use crate::status::{Mode, Phase, Role};

/// What happens to synchronous writes while a destination is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// They are answered without it, and the status says that they are unprotected.
    Continue,
    /// They wait until it is back and has everything; before its first copy is finished they do not wait.
    Wait,
}

/// What happens when the log is full because a connected destination is slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFull {
    /// Writes wait for it.
    Slow,
    /// Its session ends, and the next one copies what the bitmap names.
    Resync,
}

/// How a source behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the group in messages.
    pub group: String,
    /// The most payload in memory on its way to the log and the volumes; as much again on its way to destinations.
    pub memory_bytes: usize,
    /// See [`OnLoss`].
    pub on_loss: OnLoss,
    /// See [`OnFull`].
    pub on_full: OnFull,
    /// A destination that lacks more bytes than this is shown as lagging,
    pub lag_alert_bytes: u64,
    /// and so is one that lacks a record older than this.
    pub lag_alert: Duration,
    /// Time between two attempts to reach a destination.
    pub retry: Duration,
    /// How often an idle destination is asked whether it is still there.
    pub beat: Duration,
    /// A destination that does not answer a request within this time is unreachable.
    pub timeout: Duration,
    /// Bytes of a copy in flight.
    pub copy_bytes: usize,
    /// Look for zeros in copied data: worth it on devices, which cannot report their holes.
    pub find_zeroes: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            group: "replica".into(),
            memory_bytes: 64 << 20,
            on_loss: OnLoss::Continue,
            on_full: OnFull::Slow,
            lag_alert_bytes: 1 << 30,
            lag_alert: Duration::from_secs(30),
            retry: Duration::from_secs(1),
            beat: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
            copy_bytes: 8 << 20,
            find_zeroes: false,
        }
    }
}

/// A side that users write to.
#[derive(Debug)]
pub struct Source {
    side: Side,
    config: Config,
    journal: Journal,
    log: Log,
    owner: Owner<Core>,
    /// One checkpoint at a time.
    checkpoints: Gate,
    /// Room in the log was asked for since it was last looked for.
    room_wanted: AtomicBool,
    space: Space,
    /// The longest payload of one record.
    longest: usize,
}

#[derive(Debug)]
struct Core {
    state: State,
    /// Sizes of the volumes as users see them: at most those in the durable state.
    sizes: Vec<u64>,
    /// Records that are placed and not applied yet, by sequence.
    active: BTreeMap<u64, Active>,
    /// Ranges that writes stay away from while they are copied or compared.
    locks: Vec<Lock>,
    next_lock: u64,
    /// Payload of the active records,
    active_bytes: usize,
    /// and its limit: [`Config::memory_bytes`].
    memory_bytes: usize,
    waiting: Waiting,
    peers: Vec<Option<Partner>>,
    halted: Option<Halt>,
    /// Writes wait: the roles are being exchanged.
    quiet: bool,
    /// Alive as long as an exchange of the roles is under way, with any destination.
    exchange: Weak<()>,
    /// Writes fail: this side is no source any more.
    given_up: bool,
    closing: bool,
    /// The log was applied to the volumes. Before that, nothing leaves the log, and nothing is sent.
    replayed: bool,
    /// Records may be sent before they are durable here, as the durable state says.
    ahead: bool,
    /// Writes that were answered though a synchronous destination did not have them.
    answered_alone: u64,
    /// The answers of the destinations about the partnership were checked after opening, and this side goes on.
    goes_on: bool,
    /// A destination has taken this era into its history since this side was opened.
    known: bool,
    written_bytes: u64,
    log_wait: Duration,
    failed_reads: FailedReads,
}

#[derive(Clone, Debug)]
struct Active {
    member: u16,
    range: Range<u64>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Lock {
    id: u64,
    member: u16,
    range: Range<u64>,
    /// Wakes the copy when no active record overlaps the range.
    waker: Option<Waker>,
}

/// Why nothing is written any more.
#[derive(Clone, Debug)]
struct Halt {
    phase: Phase,
    why: String,
    /// The era of the source that has taken over.
    by: Option<Era>,
}

/// What a destination says about the partnership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knows {
    /// It has a copy.
    Yes,
    /// The server does not know it: it was removed there, or another server has taken its place.
    No,
    /// The source has told it that the partnership is over.
    Ended,
}

/// The state of a destination in memory.
#[derive(Debug)]
struct Partner {
    phase: Phase,
    since_ms: u64,
    connected: bool,
    /// Everything through here is durable there, or in its bitmap.
    acked: u64,
    /// Whether it could be promoted.
    consistent: bool,
    /// Writes are answered without it.
    lone: bool,
    /// Since this side was opened, it was asked whether this side is its source, or could not be reached.
    greeted: bool,
    /// Its latest answer, since this side was opened, whether it knows the partnership; `None` if it could not be
    /// asked.
    knows: Option<Knows>,
    /// It has refused this source because both sides were written to.
    disputed: bool,
    maps: Vec<Bitmap>,
    /// Its session has to end and begin again.
    again: bool,
    shipping: bool,
    /// Its session compares; ranges that this marks are copied afterwards.
    comparing: bool,
    /// The last record that could not be read from the log for it.
    unreadable: u64,
    /// For its session, in order. The end of the session drops them, which answers them.
    commands: VecDeque<Command>,
    /// Counts the commands that its sessions were given.
    commands_left: u64,
    last_error: Option<String>,
    heard_ms: u64,
    /// When its last session ended, until the next one has begun; 0 otherwise.
    lost_ms: u64,
    /// Last sequence in its volumes, as it reported last.
    applied: u64,
    copied_bytes: u64,
    sent_bytes: u64,
    copy_began: Time,
    records_sent: u64,
    record_bytes_sent: u64,
}

impl Partner {
    fn new(state: &PeerState, maps: Vec<Bitmap>, now_ms: u64) -> Partner {
        Partner {
            phase: if state.suspended { Phase::Suspended } else { Phase::WaitingForDestination },
            since_ms: now_ms,
            connected: false,
            acked: state.covered,
            consistent: false,
            greeted: state.suspended,
            knows: None,
            disputed: false,
            lone: !state.copied || state.unprotected || state.suspended,
            maps,
            again: false,
            shipping: false,
            comparing: false,
            unreadable: 0,
            commands: VecDeque::new(),
            commands_left: 0,
            last_error: None,
            heard_ms: 0,
            lost_ms: 0,
            applied: 0,
            copied_bytes: 0,
            sent_bytes: 0,
            copy_began: Time::ZERO,
            records_sent: 0,
            record_bytes_sent: 0,
        }
    }

    /// Whether writes wait for it, so that what is sent to it before it is durable here is answered earlier.
    fn is_awaited(&self, state: &PeerState) -> bool {
        state.mode == Mode::Synchronous && self.consistent && !self.lone && !state.suspended
    }

    /// Whether writes wait for it, and the durable state says that they do not.
    fn is_relied_on_anew(&self, state: &PeerState) -> bool {
        state.unprotected && !self.lone && !state.suspended
    }

    /// Whether its session carries out commands.
    fn follows(&self) -> bool {
        self.connected && self.consistent && !self.again
    }

    /// Whether its session has ended, and nothing was decided since.
    fn is_lost(&self) -> bool {
        self.lost_ms > 0 && self.phase.is_connected()
    }

    /// Its session cannot continue: the next one copies what it lacks.
    fn must_begin_again(&mut self, now_ms: u64) {
        self.again = true;
        if self.phase == Phase::ContinuouslyReplicating {
            (self.phase, self.since_ms) = (Phase::Resyncing, now_ms);
        }
    }

    /// Its session has ended. Returns whether there was one, and its commands. The caller drops them after the event:
    /// that answers them.
    fn hang_up(&mut self, now_ms: u64) -> (bool, VecDeque<Command>) {
        let had_it = std::mem::take(&mut self.connected);
        if had_it {
            self.lost_ms = now_ms;
        }
        self.again = false;
        self.comparing = false;
        self.maps.iter_mut().for_each(Bitmap::give_up_copies);
        (had_it, std::mem::take(&mut self.commands))
    }

    fn is_clean(&self) -> bool {
        self.maps.iter().all(Bitmap::is_clean)
    }

    /// Whether the bitmaps name everything.
    fn is_full(&self) -> bool {
        self.maps.iter().all(Bitmap::is_full)
    }
}

impl Core {
    fn peer(&self, n: usize) -> Result<(&Partner, &PeerState), Error> {
        match (self.peers.get(n), self.state.peers.get(n)) {
            (Some(Some(partner)), Some(Some(state))) => Ok((partner, state)),
            _ => Err(Error::NoPeer(n)),
        }
    }

    fn peer_mut(&mut self, n: usize) -> Result<(&mut Partner, &mut PeerState), Error> {
        match (self.peers.get_mut(n), self.state.peers.get_mut(n)) {
            (Some(Some(partner)), Some(Some(state))) => Ok((partner, state)),
            _ => Err(Error::NoPeer(n)),
        }
    }

    /// Whether writes wait for this destination, so that what is sent to it before it is durable here is answered
    /// earlier.
    fn is_awaited(&self, n: usize) -> bool {
        self.peer(n).is_ok_and(|(partner, state)| partner.is_awaited(state))
    }

    /// Last sequence that is applied, with all before it.
    fn applied(&self, fill: &Fill) -> u64 {
        if !self.replayed {
            // The volumes may or may not contain the records of the log.
            return fill.first.saturating_sub(1);
        }
        self.active.keys().next().map_or(fill.durable, |first| first.saturating_sub(1))
    }

    /// Whether both sides were written to, and nobody has decided.
    fn is_split(&self) -> bool {
        matches!(&self.halted, Some(Halt { phase: Phase::SplitBrain, .. }))
    }

    /// Whether a destination has records that this side has lost, and nobody has decided.
    fn is_set_back(&self) -> bool {
        matches!(&self.halted, Some(Halt { phase: Phase::SetBack, .. }))
    }

    /// Whether destinations were told that the partnership is over, and nobody has decided.
    fn is_over(&self) -> bool {
        matches!(&self.halted, Some(Halt { phase: Phase::Refused, .. }))
    }

    /// Whether a synchronous destination lacks this record.
    fn is_alone(&self, sequence: u64) -> bool {
        self.peers.iter().zip(&self.state.peers).any(|pair| match pair {
            (Some(partner), Some(state)) => {
                state.mode == Mode::Synchronous && !(partner.consistent && partner.acked >= sequence)
            }
            _ => false,
        })
    }

    /// Everything through here is durable on each synchronous destination that writes wait for.
    fn acknowledged_through(&self) -> u64 {
        let through = self.peers.iter().zip(&self.state.peers).filter_map(|pair| match pair {
            (Some(partner), Some(state)) if state.mode == Mode::Synchronous && !partner.lone => {
                Some(if partner.consistent { partner.acked } else { 0 })
            }
            _ => None,
        });
        through.min().unwrap_or(u64::MAX)
    }

    /// Whether each synchronous destination that writes wait for has this record.
    fn is_acknowledged(&self, sequence: u64) -> bool {
        sequence <= self.acknowledged_through()
    }
}

impl Source {
    /// Opens a side that is a source, and applies its log to the volumes. If the log is damaged that fails
    /// ([`Error::Log`]): answered writes may be lost.
    pub async fn open(side: Side, config: Config) -> Result<Arc<Source>, Error> {
        let source = Source::open_unreplayed(side, config).await?;
        source.replay().await?;
        Ok(source)
    }

    /// Opens a side that is a source, and leaves the volumes as they are until [`Source::replay`] is called. Meanwhile
    /// destinations are asked whether this side is their source: a source that was set back must not replay its log
    /// into newer volumes.
    pub async fn open_unreplayed(side: Side, config: Config) -> Result<Arc<Source>, Error> {
        let space = Space::default();
        let side = space.of(&side);
        let opened = replay::read(&side, Role::Source, config.memory_bytes).await?;
        let Opened { mut state, journal, log, damage } = opened;
        if let Some(damage) = damage {
            return Err(Error::Log(damage));
        }
        // It knows a later source, and nobody has decided.
        let fenced = (!same(&state.promised, &state.era())).then_some(state.promised);
        // New records may reuse sequences of records that were sent and are not here: lost before they were durable, or
        // written by this side before it was set back.
        let ahead = std::mem::take(&mut state.ahead);
        let era = state.open_era(side.draw, log.fill().durable, !ahead);
        state.promised = fenced.unwrap_or(era);
        let set_back = state.set_back.map(|(both, copy)| Halt {
            phase: Phase::SetBack,
            why: Refusal::SetBack { both, copy }.to_string(),
            by: Some(state.era()),
        });
        let fenced = fenced.map(|by| Halt {
            phase: Phase::SplitBrain,
            why: format!("another source, of epoch {}, has taken over", by.epoch),
            by: Some(by),
        });
        let halted = fenced.or(set_back);
        let now = side.wall.now_ms();
        let mut peers = Vec::new();
        for (n, peer) in state.peers.iter().enumerate() {
            peers.push(match peer {
                Some(peer) => Some(Partner::new(peer, journal.bitmaps(&state, n).await, now)),
                None => None,
            });
        }
        journal.write_state(state.clone()).await?;
        space.be_patient(true);
        // Several of the longest fit into either log.
        let longest = usize::try_from(MIN_LOG_BYTES / 16).unwrap_or(MAX_PAYLOAD).min(MAX_PAYLOAD);
        let core = Core {
            sizes: state.members.iter().map(|member| member.size).collect(),
            state,
            active: BTreeMap::new(),
            locks: Vec::new(),
            next_lock: 0,
            active_bytes: 0,
            memory_bytes: config.memory_bytes,
            waiting: Waiting::default(),
            peers,
            halted,
            quiet: false,
            exchange: Weak::new(),
            given_up: false,
            closing: false,
            replayed: log.fill().first > log.fill().last,
            ahead: false,
            answered_alone: 0,
            goes_on: false,
            known: false,
            written_bytes: 0,
            log_wait: Duration::ZERO,
            failed_reads: FailedReads::default(),
        };
        Ok(Arc::new(Source {
            side,
            config,
            journal,
            log,
            owner: Owner::new(core),
            checkpoints: Gate::default(),
            room_wanted: AtomicBool::default(),
            space,
            longest,
        }))
    }

    /// Applies the log to the volumes. Nobody may use them before.
    pub async fn replay(&self) -> Result<(), Error> {
        if !self.core().replayed {
            let state = self.core().state.clone();
            replay::again(&self.side, &state).await?;
            self.handle(|core| core.replayed = true);
        }
        Ok(())
    }

    /// The block that users of a volume write to: every write is replicated.
    ///
    /// # Panics
    /// When the group has no such volume.
    pub fn block(self: &Arc<Self>, member: usize) -> Arc<dyn Block> {
        let volume = self.side.members.get(member).expect("a volume of the group").clone();
        Arc::new(Replicated { source: self.clone(), member, volume })
    }

    /// Answers a request that is meant for a destination: its status, or a refusal.
    pub async fn control(&self, request: &Request) -> Response {
        match request {
            Request::Status => Response::Report(self.report()),
            Request::Hello(hello) if hello.partnership != self.core().state.partnership => {
                Response::Refused(Refusal::Partnership)
            }
            Request::Hello(hello) => Response::Refused(self.answer_source(hello).await),
            _ => Response::Refused(Refusal::Session),
        }
    }

    fn report(&self) -> Report {
        let core = self.core();
        let fill = self.log.fill();
        Report {
            epoch: core.state.era().epoch,
            source: true,
            consistent: true,
            last: fill.durable,
            applied: core.applied(&fill),
            log_bytes: core.state.layout.log_bytes,
            log_used: fill.used,
            applied_ms: 0,
        }
    }

    /// Waits until each destination was asked whether this side is still its source, or could not be reached: no write
    /// may be answered before. The wait is limited to the time that asking takes.
    pub async fn greeted(&self) {
        let all = self.owner.until(|| {
            let core = self.core();
            let greeted = core.peers.iter().flatten().all(|partner| partner.greeted);
            (greeted || core.halted.is_some()).then_some(())
        });
        // Connecting, a hello, and what follows it.
        let limit = self.config.timeout.saturating_mul(3);
        if rt::timeout(limit, all).await.is_err() {
            let core = self.core();
            let silent = core.peers.iter().zip(&core.state.peers).filter_map(|pair| match pair {
                (Some(partner), Some(state)) if !partner.greeted => Some(&*state.name),
                _ => None,
            });
            let silent: Vec<&str> = silent.collect();
            tracing::warn!(
                "group {}: {} did not answer within {limit:?} whether this side is still the source; it goes on as the source",
                self.config.group,
                silent.join(", ")
            );
        }
    }

    /// If this side was set back: the last record that both sides have, and the last one that the destination has.
    pub fn set_back(&self) -> Option<(u64, u64)> {
        self.core().state.set_back
    }

    /// The name of that destination.
    pub fn set_back_by(&self) -> Option<String> {
        self.core().state.set_back_by_name().map(str::to_owned)
    }

    /// Why writes fail, if they do.
    pub fn halted(&self) -> Option<(Phase, String)> {
        self.core().halted.as_ref().map(|halt| (halt.phase, halt.why.clone()))
    }

    /// Waits until writes fail.
    pub async fn until_halted(&self) -> (Phase, String) {
        self.owner.until(|| self.halted()).await
    }

    /// Waits until no [`Source::ship`] runs.
    pub async fn until_links_ended(&self) {
        let none = || self.core().peers.iter().flatten().all(|partner| !partner.shipping);
        self.owner.until(|| none().then_some(())).await;
    }

    /// Whether a destination refuses this source because both sides were written to.
    pub fn is_disputed(&self) -> bool {
        self.core().peers.iter().flatten().any(|partner| partner.disputed)
    }

    fn volume(&self, member: usize) -> Result<&Arc<dyn Block>, Error> {
        self.side.members.get(member).ok_or(Error::State("the group does not have this volume"))
    }

    /// The size of a volume, in bytes.
    fn size(&self, member: usize) -> u64 {
        self.core().sizes.get(member).copied().unwrap_or(0)
    }

    /// The size of a volume for its users. A side that has given up refuses: its volumes are outdated as soon as the
    /// next source is written to.
    fn usable_size(&self, member: usize) -> Result<u64, weft_store::Error> {
        let core = self.core();
        match core.given_up {
            true => Err(weft_store::Error::Io(std::io::Error::other(GIVEN_UP))),
            false => Ok(core.sizes.get(member).copied().unwrap_or(0)),
        }
    }

    /// The core, to look at.
    fn core(&self) -> View<'_, Core> {
        self.owner.read()
    }

    /// Applies one event to the core and carries out its effects. The caller must not hold a view.
    fn handle<R>(&self, event: impl FnOnce(&mut Core) -> R) -> R {
        let (result, effects) = self.owner.apply(event);
        let sends = effects.news.as_ref().is_some_and(|news| news.sends);
        self.owner.tell(effects);
        if sends {
            self.log.sends.notify();
        }
        result
    }

    /// Applies the event of something that is dropped. `None`: an invariant was broken.
    fn release<R>(&self, event: impl FnOnce(&mut Core) -> R) -> Option<R> {
        (!self.owner.is_broken()).then(|| self.handle(event))
    }

    /// Applies one event to one destination; `None` if it was removed.
    fn on_peer<R>(&self, n: usize, event: impl FnOnce(&mut Partner, &mut PeerState) -> R) -> Option<R> {
        self.handle(|core| core.peer_mut(n).ok().map(|(partner, state)| event(partner, state)))
    }

    /// Stops everything that writes, and says why.
    fn halt(&self, phase: Phase, why: String, by: Option<Era>) {
        let group = &self.config.group;
        self.handle(|core| {
            if core.halted.is_none() {
                match phase {
                    // The normal end.
                    Phase::Suspended => tracing::debug!("group {group}: replication ends: {why}"),
                    Phase::Superseded => {
                        tracing::warn!("group {group}: replication stops, and so do writes: {why}");
                    }
                    _ => tracing::error!("group {group}: replication stops, and so do writes: {why}"),
                }
                core.halted = Some(Halt { phase, why, by });
            }
        });
    }
}

/// A volume of a source.
#[derive(Debug)]
struct Replicated {
    source: Arc<Source>,
    member: usize,
    volume: Arc<dyn Block>,
}

impl Block for Replicated {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.source.size(self.member), ..self.volume.geometry() }
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, weft_store::Error>> {
        rt::boxed(move || async move {
            op.validate(self.source.usable_size(self.member)?)?;
            match op {
                BlockOp::Read { offset, len } => {
                    let read = self.volume.submit(op).await;
                    if let Err(e) = &read {
                        self.source.read_failed(self.member, offset, len as u64, e);
                    }
                    read
                }
                BlockOp::Status { .. } => self.volume.submit(op).await,
                // Every answered write is durable in the log.
                BlockOp::Flush => self.source.flushed().map(|()| Outcome::Done),
                changes => self.source.change(self.member, changes).await,
            }
        })
    }
}
