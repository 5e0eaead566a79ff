//! The side that is written to: wraps the blocks of a group and sends what changes to its destinations.
//!
//! What: [`Source`]. Spec: ours; see the crate's page for the life of a write.
//! Owns: the log, the bitmaps and the state of its side; ranges that are locked while they are copied.
//! Does not: connect (a [`Peer`](crate::peer::Peer) does), or start tasks of its own but those that carry writes to their end.
//!
//! Operation: any core may submit. A write is *placed* (it has its sequence then, and happens, whatever becomes of whoever
//! asked), written to the log with all others that are waiting, applied to its volume behind every earlier write that it
//! overlaps, and answered. [`Source::ship`] is the loop for one destination, and runs where the caller starts it.
//! Memory: payload on its way is at most [`Config::memory_bytes`]; as much again may be kept to be sent. Who writes more
//! waits.
//! Errors: a volume or a journal that fails stops the source, because nobody knows any more what is where; opening it anew
//! replays the log. A source that learns of a later one stops as well.

mod admin;
mod checkpoint;
mod exchange;
mod gone;
mod growth;
mod reads;
mod resync;
mod session;
mod status;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::clock::Time;
use weft_machine::rt;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};
use weft_wire::repl::control::{Era, Refusal, Report, Request, Response};

pub use self::admin::{First, PeerConfig};
use self::exchange::GIVEN_UP;
use self::reads::FailedReads;
use crate::bitmap::Bitmap;
use crate::error::Error;
use crate::history::same;
use crate::journal::{Journal, MIN_LOG_BYTES, Side};
use crate::log::{Fill, Log};
use crate::record::MAX_PAYLOAD;
use crate::replay::{self, Opened};
use crate::signal::{Gate, Signal};
use crate::space::Space;
use crate::state::{PeerState, State};
use crate::status::{Mode, Phase, Role};

/// What happens to synchronous writes while a destination is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// They are answered without it, and the status says that they are unprotected.
    Continue,
    /// They wait until it is back and has everything. (Until its first copy is finished they do not.)
    Wait,
}

/// What happens when the log is full because a connected destination is slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFull {
    /// Writes wait for it.
    Slow,
    /// Its replication is given up for now, and begins again with what the bitmap says.
    Resync,
}

/// How a source behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// What messages call the group.
    pub group: String,
    /// Payload in memory, on its way to the log and the volumes; as much again on its way to destinations.
    pub memory_bytes: usize,
    /// See [`OnLoss`].
    pub on_loss: OnLoss,
    /// See [`OnFull`].
    pub on_full: OnFull,
    /// A destination that lacks more than so many bytes is shown as lagging,
    pub lag_alert_bytes: u64,
    /// and so is one that lacks something older.
    pub lag_alert: Duration,
    /// Time between two attempts to reach a destination.
    pub retry: Duration,
    /// How often an idle destination is asked whether it is still there.
    pub beat: Duration,
    /// A destination that has not answered a request for so long is unreachable.
    pub timeout: Duration,
    /// Bytes of a copy that are under way at a time.
    pub copy_bytes: usize,
    /// Look for zeros in what is copied. Worth it where the volume cannot tell its holes: on devices.
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

/// See the module.
#[derive(Debug)]
pub struct Source {
    side: Side,
    config: Config,
    journal: Journal,
    log: Log,
    core: Mutex<Core>,
    /// Something in the core has changed.
    changed: Signal,
    /// One checkpoint at a time.
    checkpoints: Gate,
    space: Space,
    /// The longest payload of one record.
    longest: usize,
}

#[derive(Debug)]
struct Core {
    state: State,
    /// Of the volumes, as users see them: never more than is durable in the state.
    sizes: Vec<u64>,
    /// Placed and not applied yet, by sequence.
    active: BTreeMap<u64, Active>,
    /// Ranges that writes stay away from while they are copied or compared.
    locks: Vec<Lock>,
    next_lock: u64,
    /// Payload of what is active.
    active_bytes: usize,
    peers: Vec<Option<Partner>>,
    halted: Option<Halt>,
    /// Writes wait: the roles are being exchanged.
    quiet: bool,
    /// Alive as long as somebody wants the roles exchanged, with whichever destination.
    exchange: Weak<()>,
    /// Writes fail: this side is no source any more.
    given_up: bool,
    closing: bool,
    /// The volumes are what the log says. Before, nothing leaves the log, and nobody is sent anything.
    replayed: bool,
    /// Records may be sent before they are durable here: the state says so, durably.
    ahead: bool,
    /// Writes that were answered though a synchronous destination did not have them.
    answered_alone: u64,
    /// What destinations say of the partnership was looked at when this side was opened, and it goes on.
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
}

/// Why nothing is written any more.
#[derive(Clone, Debug)]
struct Halt {
    phase: Phase,
    why: String,
    /// Of the source that has taken over.
    by: Option<Era>,
}

/// What a destination says of the partnership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knows {
    /// It has a copy.
    Yes,
    /// The server knows nothing of it: it was removed there, or that is another server by now.
    No,
    /// The source has told it that the partnership is over.
    Ended,
}

/// A destination, as the running source knows it.
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
    /// It has been asked, since this side was opened, whether this side is its source; or could not be reached.
    greeted: bool,
    /// What it has said last, since this side was opened, of whether it knows the partnership; `None` where it could not be asked.
    knows: Option<Knows>,
    /// It has refused this source because both sides were written to.
    disputed: bool,
    maps: Vec<Bitmap>,
    /// Its session is to end and begin again.
    again: bool,
    shipping: bool,
    /// Its session is comparing, and what that marks is copied when it is over.
    comparing: bool,
    /// The last record that could not be read from the log for it.
    unreadable: u64,
    /// Of its session, which owns them.
    commands: Weak<admin::Commands>,
    last_error: Option<String>,
    heard_ms: u64,
    /// When its last session ended, until the next one has begun; 0 otherwise.
    lost_ms: u64,
    /// Last sequence in its volumes, as it said last.
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
            commands: Weak::new(),
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

    fn is_clean(&self) -> bool {
        self.maps.iter().all(Bitmap::is_clean)
    }

    /// Whether the bitmaps name everything.
    fn is_full(&self) -> bool {
        self.maps.iter().all(Bitmap::is_full)
    }
}

impl Core {
    fn peer(&mut self, n: usize) -> Result<(&mut Partner, &mut PeerState), Error> {
        match (self.peers.get_mut(n), self.state.peers.get_mut(n)) {
            (Some(Some(partner)), Some(Some(state))) => Ok((partner, state)),
            _ => Err(Error::NoPeer(n)),
        }
    }

    /// Last sequence that is applied, with all before it.
    fn applied(&self, fill: &Fill) -> u64 {
        if !self.replayed {
            // What the log holds may be in the volumes, or not.
            return fill.first.saturating_sub(1);
        }
        self.active.keys().next().map_or(fill.durable, |first| first.saturating_sub(1))
    }

    /// Both sides were written to, and nobody has decided.
    fn is_split(&self) -> bool {
        matches!(&self.halted, Some(Halt { phase: Phase::SplitBrain, .. }))
    }

    /// A destination has what this side has had and has no more, and nobody has decided.
    fn is_set_back(&self) -> bool {
        matches!(&self.halted, Some(Halt { phase: Phase::SetBack, .. }))
    }

    /// Destinations were told that the partnership is over, and nobody has decided.
    fn is_over(&self) -> bool {
        matches!(&self.halted, Some(Halt { phase: Phase::Refused, .. }))
    }

    /// Whether there are synchronous destinations, and one of them does not have it.
    fn is_alone(&self, sequence: u64) -> bool {
        self.peers.iter().zip(&self.state.peers).any(|pair| match pair {
            (Some(partner), Some(state)) => {
                state.mode == Mode::Synchronous && !(partner.consistent && partner.acked >= sequence)
            }
            _ => false,
        })
    }

    /// Whether every synchronous destination has it, or is not waited for.
    fn is_acknowledged(&self, sequence: u64) -> bool {
        self.peers.iter().zip(&self.state.peers).all(|pair| match pair {
            (Some(partner), Some(state)) => {
                state.mode == Mode::Asynchronous
                    || partner.lone
                    || (partner.consistent && partner.acked >= sequence)
            }
            _ => true,
        })
    }
}

impl Source {
    /// Opens a side that is a source: what its log holds is applied to the volumes once more. One whose log is damaged is not
    /// opened ([`Error::Log`]): it may have answered what it has no more.
    pub async fn open(side: Side, config: Config) -> Result<Arc<Source>, Error> {
        let source = Source::open_unreplayed(side, config).await?;
        source.replay().await?;
        Ok(source)
    }

    /// The same, with the volumes as they are until [`Source::replay`] is called. Destinations are asked meanwhile whether this side
    /// is their source: the log of one that was set back would be replayed into volumes that are newer.
    pub async fn open_unreplayed(side: Side, config: Config) -> Result<Arc<Source>, Error> {
        let space = Space::default();
        let side = space.of(&side);
        let opened = replay::read(&side, Role::Source, config.memory_bytes).await?;
        let Opened { mut state, journal, log, damage } = opened;
        if let Some(damage) = damage {
            return Err(Error::Log(damage));
        }
        // A later source was heard of, which nobody has decided about.
        let fenced = (!same(&state.promised, &state.era())).then_some(state.promised);
        // What comes now may have the numbers of what was sent and is not here: lost where that was not durable yet, or written by
        // this side before it was set back.
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
            core: Mutex::new(core),
            changed: Signal::default(),
            checkpoints: Gate::default(),
            space,
            longest,
        }))
    }

    /// Makes the volumes what the log says. Nobody may use them before.
    pub async fn replay(&self) -> Result<(), Error> {
        if !self.core().replayed {
            let state = self.core().state.clone();
            replay::again(&self.side, &state).await?;
            self.core().replayed = true;
            self.changed.notify();
        }
        Ok(())
    }

    /// A volume of the group as it is to be used: everything written here is replicated.
    ///
    /// # Panics
    /// When the group has no such volume.
    pub fn block(self: &Arc<Self>, member: usize) -> Arc<dyn Block> {
        let volume = self.side.members.get(member).expect("a volume of the group").clone();
        Arc::new(Replicated { source: self.clone(), member, volume })
    }

    /// What a source answers who takes it for a destination: how it is doing, and that it is none.
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

    /// Waits until each destination was asked whether this side is its source still, or could not be reached: nothing is to be
    /// answered before. Not longer than that takes.
    pub async fn greeted(&self) {
        let all = self.changed.until(|| {
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
                "group {}: {} did not say within {limit:?} whether this side is the source still; it goes on as the source",
                self.config.group,
                silent.join(", ")
            );
        }
    }

    /// Up to which record this side has what a destination has, and how far that goes on, where this side was set back.
    pub fn set_back(&self) -> Option<(u64, u64)> {
        self.core().state.set_back
    }

    /// The destination that has that.
    pub fn set_back_by(&self) -> Option<String> {
        self.core().state.set_back_by_name().map(str::to_owned)
    }

    /// Why nothing is written any more, if that is so.
    pub fn halted(&self) -> Option<(Phase, String)> {
        self.core().halted.as_ref().map(|halt| (halt.phase, halt.why.clone()))
    }

    /// Waits until nothing is written any more.
    pub async fn until_halted(&self) -> (Phase, String) {
        self.changed.until(|| self.halted()).await
    }

    /// Waits until no [`Source::ship`] runs.
    pub async fn until_links_ended(&self) {
        let none = || self.core().peers.iter().flatten().all(|partner| !partner.shipping);
        self.changed.until(|| none().then_some(())).await;
    }

    /// Whether a destination refuses this source because both sides were written to.
    pub fn is_disputed(&self) -> bool {
        self.core().peers.iter().flatten().any(|partner| partner.disputed)
    }

    fn volume(&self, member: usize) -> Result<&Arc<dyn Block>, Error> {
        self.side.members.get(member).ok_or(Error::State("the group does not have this volume"))
    }

    /// Bytes of a volume of the group.
    fn size(&self, member: usize) -> u64 {
        self.core().sizes.get(member).copied().unwrap_or(0)
    }

    /// The same for whoever uses it: what a side holds that has given up is old as soon as the next source is written to.
    fn usable_size(&self, member: usize) -> Result<u64, weft_store::Error> {
        let core = self.core();
        match core.given_up {
            true => Err(weft_store::Error::Io(std::io::Error::other(GIVEN_UP))),
            false => Ok(core.sizes.get(member).copied().unwrap_or(0)),
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops everything that writes, and says why.
    fn halt(&self, phase: Phase, why: String, by: Option<Era>) {
        {
            let mut core = self.core();
            if core.halted.is_none() {
                let group = &self.config.group;
                match phase {
                    // In order.
                    Phase::Suspended => tracing::debug!("group {group}: replication ends: {why}"),
                    Phase::Superseded => {
                        tracing::warn!("group {group}: replication stops, and so do writes: {why}");
                    }
                    _ => tracing::error!("group {group}: replication stops, and so do writes: {why}"),
                }
                core.halted = Some(Halt { phase, why, by });
            }
        }
        self.changed.notify();
        self.log.changed.notify();
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
        Box::pin(async move {
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
                // What was answered is durable in the log.
                BlockOp::Flush => self.source.flushed().map(|()| Outcome::Done),
                changes => self.source.change(self.member, changes).await,
            }
        })
    }
}
