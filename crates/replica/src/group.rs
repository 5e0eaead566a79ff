//! One side of a group as its users and its partners meet it, whatever part it plays: what is in front of its volumes, and when.
//!
//! What: [`Group`], [`Host`]. Spec: docs/replication.md, "Fronts". Owns: the fronts of the volumes, and what the group is at
//! present. Does not: name files, connect, or listen: its [`Host`] does.
//!
//! ```text
//!            ┌─────────────── opened as ───────────────────────────┐
//!   journal ─┤ source:      partners are asked, then fronts open   ├─ roles exchanged, promoted, superseded ─► again
//!            │ destination: fronts stay closed                     │─ cannot be opened, both were written to ─► stopped
//!            └─────────────────────────────────────────────────────┘  (fronts closed, until told; a full disk: until it is not)
//! ```
//!
//! A front of a group leads to a source or nowhere: the one step that puts the bare volume behind it is [`Group::end`], after
//! which there is no group. A source answers nothing before each of its partners was asked whether it is one still, or could
//! not be reached.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_machine::rt;
use weft_store::block::{Block, BlockOp};
use weft_wire::repl::control::{Era, Refusal, Request, Response};

use crate::destination::{self, Destination, Force};
use crate::error::Error;
use crate::front::Front;
use crate::journal::{self, Side};
use crate::rescue;
use crate::signal::{Gate, Signal};
use crate::source::{self, First, PeerConfig, Source};
use crate::state::State as Remembered;
use crate::status::{Mode, Phase, Role, Status};

/// How long a group may take to become what it was told to be.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// How long links may take to end when a source has stopped.
const LINKS_END_WITHIN: Duration = Duration::from_secs(15);
/// How often a group that a full disk has stopped is opened anew.
const FULL_RETRY: Duration = Duration::from_secs(5);
/// How often somebody who waits for a source to fall silent looks.
const SILENCE_LOOK: Duration = Duration::from_millis(50);

/// Another side, as the host knows it.
#[derive(Clone, Debug)]
pub struct Partner {
    /// What it is called.
    pub name: String,
    /// Whether writes wait for it while it is a destination.
    pub mode: Mode,
}

/// What a group needs of the process that it is in.
pub trait Host {
    /// Its journal and volumes; or why they cannot be used, and what to type.
    fn side(&self) -> LocalBoxFuture<'_, Result<Side, Unusable>>;
    /// The same with a new journal in place of one that is lost, not laid out yet, and how it is to be laid out.
    fn renew(&self) -> LocalBoxFuture<'_, Result<(Side, journal::Format), String>>;
    /// The latest epoch that is known here without the journal, or to a partner that can be reached.
    fn latest_epoch(&self) -> LocalBoxFuture<'_, u64>;
    /// Its partners; the first of a destination is its source.
    fn partners(&self) -> Vec<Partner>;
    /// How a source behaves.
    fn source(&self) -> source::Config;
    /// How a destination behaves.
    fn destination(&self) -> destination::Config;
    /// Whoever comes in the name of the partnership is led there from now on.
    fn lead(&self, to: Behind);
    /// Runs [`Source::ship`] for destination number `n`.
    fn ship(&self, source: &Arc<Source>, n: usize, partner: &str);
    /// It has become something else.
    fn became(&self, state: &State);
}

/// Why journal or volumes cannot be used.
#[derive(Clone, Debug)]
pub struct Unusable {
    /// What kind of reason it is.
    pub cause: Cause,
    /// A sentence.
    pub why: String,
}

/// Who answers the requests of a partnership.
#[derive(Clone, Debug)]
pub enum Behind {
    /// Nobody yet.
    Starting,
    /// It keeps a copy.
    Destination(Arc<Destination>),
    /// It is written to here.
    Source(Arc<Source>),
    /// Nobody, until somebody decides or mends something.
    Stopped,
}

impl Behind {
    /// Carries out a request.
    pub async fn control(&self, request: Request) -> Response {
        match self {
            Behind::Destination(destination) => destination.control(request).await,
            Behind::Source(source) => source.control(&request).await,
            // It may be back in a moment: who asks waits for that, and does not call it lost.
            Behind::Starting => Response::Refused(Refusal::Session),
            Behind::Stopped => Response::Refused(Refusal::Stopped),
        }
    }
}

/// What a group is.
#[derive(Clone, Debug)]
pub enum State {
    /// Not known yet: its journal is being read, or its partners are being asked.
    Starting,
    /// Written to here.
    Source(Arc<Source>),
    /// A copy.
    Destination(Arc<Destination>),
    /// Neither.
    Stopped(Arc<Stopped>),
}

/// A group that is neither source nor destination: its fronts are closed.
#[derive(Debug)]
pub struct Stopped {
    /// What kind of reason there is.
    pub cause: Cause,
    /// A sentence that says what to type.
    pub why: String,
    /// What both sides have written to is kept for the decision.
    source: Option<Arc<Source>>,
}

/// Why a group is stopped, as far as what gets it out of that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Its journal is lost, or cannot be believed.
    Journal,
    /// What a volume holds cannot be believed: its file is another one.
    Volume,
    /// Its log is damaged.
    Log,
    /// Both sides were written to.
    Split,
    /// It is a source that was set back: a destination has what was written here and is here no more.
    SetBack,
    /// It was opened as a source, and a destination says that its source has ended the partnership.
    Over,
    /// A disk is full: it is opened anew until there is room.
    Full,
    /// Something else is to be mended first.
    Failed,
}

impl From<Unusable> for Stopped {
    fn from(Unusable { cause, why }: Unusable) -> Stopped {
        Stopped { cause, why, source: None }
    }
}

/// What is said to whoever wants to use a copy.
fn copy_of(source: &str) -> String {
    format!("this is the copy of a replica: it can be used at {source}")
}

/// The host of a partner that is called HOST:GROUP.
fn host_of(partner: &str) -> &str {
    partner.rsplit_once(':').map_or(partner, |(host, _)| host)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept here is replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See the module.
#[derive(Debug)]
pub struct Group {
    /// Its name here.
    name: String,
    fronts: Vec<Arc<Front>>,
    state: Mutex<State>,
    /// The source that runs, though its fronts may not be open yet.
    running: Mutex<Option<Arc<Source>>>,
    changed: Signal,
    /// Whoever changes which destinations there are is in it, and so is a source that is being opened: what its journal knows
    /// and what its host names are looked at together.
    destinations: Gate,
    /// It ends for good, or with the process.
    ending: AtomicBool,
    /// The task has ended.
    ended: AtomicBool,
    /// [`Group::end`] has got as far as [`Settled`].
    is_settled: AtomicBool,
}

/// Says that the volumes of a group have all that was answered, durably, and that nobody uses them. Only then may the group's log be
/// removed.
#[derive(Debug)]
pub struct Settled(());

impl Group {
    /// A group whose volumes are behind these fronts, which are closed.
    pub fn new(name: &str, fronts: Vec<Arc<Front>>) -> Group {
        Group {
            name: name.to_owned(),
            fronts,
            state: Mutex::new(State::Starting),
            running: Mutex::default(),
            changed: Signal::default(),
            destinations: Gate::default(),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
        }
    }

    /// What it is now.
    pub fn state(&self) -> State {
        lock(&self.state).clone()
    }

    fn set(&self, host: &dyn Host, state: State) {
        *lock(&self.state) = state.clone();
        host.became(&state);
        self.changed.notify();
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// What the engine says, where it runs: a source does before its fronts are open, while its log is replayed.
    pub fn status(&self) -> Option<Status> {
        match self.state() {
            State::Source(source) => Some(source.status()),
            State::Destination(destination) => Some(destination.status()),
            State::Stopped(stopped) => stopped.source.as_ref().map(|source| source.status()),
            State::Starting => lock(&self.running).as_ref().map(|source| source.status()),
        }
    }

    /// Waits until it is something.
    pub async fn until(&self, is: impl Fn(&State) -> bool) {
        self.changed.until(|| is(&self.state()).then_some(())).await;
    }

    /// Waits until it has become what it is to be, for [`SETTLES_WITHIN`]; a stopped one says why, and so does a late one.
    pub async fn settled(&self, is: impl Fn(&State) -> bool) -> Result<(), String> {
        let look = || match self.state() {
            state if is(&state) => Some(Ok(())),
            State::Stopped(stopped) => Some(Err(stopped.why.clone())),
            _ => None,
        };
        let late = || {
            let (name, limit) = (&self.name, SETTLES_WITHIN.as_secs());
            Err(format!("{name} is not open after {limit} s: `weft replica status` says how it is"))
        };
        rt::timeout(SETTLES_WITHIN, self.changed.until(look)).await.unwrap_or_else(|_| late())
    }

    /// Lets the group be what its journal says, until it ends. Its fronts were closed before, and are when this returns.
    pub async fn govern(&self, host: &dyn Host) {
        let mut former: Option<Arc<Source>> = None;
        while !self.is_ending() {
            if let Some(source) = former.take() {
                // Commands may have it still.
                source.retire().await;
            }
            let lived = self.live(host).await;
            former = lock(&self.running).take();
            let Err(stopped) = lived else { continue };
            if self.is_ending() {
                break;
            }
            tracing::error!("group {}: {}", self.name, stopped.why);
            self.close_fronts(&stopped.why).await;
            host.lead(match &stopped.source {
                Some(source) => Behind::Source(source.clone()),
                None => Behind::Stopped,
            });
            let full = stopped.cause == Cause::Full;
            self.set(host, State::Stopped(Arc::new(stopped)));
            let told = self.changed.until(|| {
                let stopped = matches!(self.state(), State::Stopped(_));
                (!stopped || self.is_ending()).then_some(())
            });
            match full {
                false => told.await,
                // Until then, or until there may be room.
                true => rt::timeout(FULL_RETRY, told).await.unwrap_or_default(),
            }
        }
        self.ended.store(true, Ordering::Release);
        self.changed.notify();
    }

    /// A stopped one begins anew with what the journal says.
    pub fn again(&self, host: &dyn Host) {
        self.set(host, State::Starting);
    }

    async fn close_fronts(&self, why: &str) {
        for front in &self.fronts {
            front.close(why).await;
        }
    }

    /// Where the source of this copy is, for whoever comes. Fronts that are not closed stay what they are: it may have become a
    /// source meanwhile.
    pub fn is_copy_of(&self, source: &str) {
        self.fronts.iter().for_each(|front| front.reword(&copy_of(source)));
    }

    /// The last record that a copy has and this side has no more, and that copy's host, where this side was set back.
    pub fn set_back(&self) -> Option<(u64, String)> {
        let (last, by) = match self.state() {
            State::Destination(copy) => copy.floor()?,
            State::Stopped(stopped) => {
                let source = stopped.source.as_ref().filter(|_| stopped.cause == Cause::SetBack)?;
                (source.set_back()?.1, source.set_back_by())
            }
            _ => return None,
        };
        Some((last, by.map_or("another copy".to_owned(), |name| host_of(&name).to_owned())))
    }

    /// One life. `Ok`: the journal is to be asked again.
    async fn live(&self, host: &dyn Host) -> Result<(), Stopped> {
        self.set(host, State::Starting);
        let turn = self.destinations.enter().await;
        let side = host.side().await?;
        let state = match journal::mend(&side).await {
            Ok(state) => state,
            Err(e) => return Err(self.cannot_look(&e)),
        };
        for (front, member) in self.fronts.iter().zip(&state.members) {
            front.resize(member.size);
        }
        match state.role {
            Role::Source => {
                // It may have been a copy until now, whose front refuses what comes.
                for front in &self.fronts {
                    front.hold("the source is being opened, and asks its destinations").await;
                }
                let source = self.open_source(host, &side, &state).await?;
                drop(turn);
                self.live_as_source(host, side, source).await
            }
            Role::Destination => {
                drop(turn);
                self.live_as_destination(host, side).await
            }
        }
    }

    async fn live_as_destination(&self, host: &dyn Host, side: Side) -> Result<(), Stopped> {
        let partner = host.partners().into_iter().next();
        let source = partner.map_or("its source".to_owned(), |partner| partner.name);
        self.close_fronts(&copy_of(&source)).await;
        let config =
            destination::Config { group: self.name.clone(), source: source.clone(), ..host.destination() };
        let opened = Destination::open(side, config).await;
        let destination = opened.map_err(|e| self.stopped(&e, e.to_string()))?;
        host.lead(Behind::Destination(destination.clone()));
        self.set(host, State::Destination(destination.clone()));
        tracing::info!("group {}: destination of {source}", self.name);
        destination.run().await;
        destination.retire().await;
        // Requests are still led there: one that has become a source says so until that answers itself.
        let status = destination.status();
        match (status.role, status.last_error) {
            // Opened anew, it goes on before the damage.
            (Role::Destination, Some(why)) if destination.damage().is_some() => {
                tracing::error!("group {}: {why}", self.name);
                Ok(())
            }
            // Promoted, or the roles were exchanged.
            (Role::Source, _) => Ok(()),
            (_, Some(why)) => Err(self.failed(why)),
            (_, None) => Err(self.failed("the destination has stopped".into())),
        }
    }

    /// Opens a source, and sends to the destinations that the host names.
    async fn open_source(
        &self,
        host: &dyn Host,
        side: &Side,
        state: &Remembered,
    ) -> Result<Arc<Source>, Stopped> {
        let config = source::Config { group: self.name.clone(), ..host.source() };
        let opened = Source::open_unreplayed(side.clone(), config).await;
        let source = opened.map_err(|e| self.cannot_open(&e))?;
        *lock(&self.running) = Some(source.clone());
        host.lead(Behind::Source(source.clone()));
        if let Err(e) = self.send_to_partners(host, &source, state).await {
            // What runs already ends.
            let _closed = source.close().await;
            return Err(self.stopped(&e, e.to_string()));
        }
        Ok(source)
    }

    async fn send_to_partners(
        &self,
        host: &dyn Host,
        source: &Arc<Source>,
        state: &Remembered,
    ) -> Result<(), Error> {
        let partners = host.partners();
        // A destination is in the journal before the host names it, and after it names it no more (see `attach` and `detach`).
        // One that a crash in between has left would be sent nothing, and the log would be kept for it.
        for name in source.keep_destinations(|name| partners.iter().any(|p| p.name == name)).await? {
            tracing::warn!(
                "group {group}: {name} is no destination: the server ended before it was added, or after it was removed. \
                 `weft replica create` adds it, after `weft replica remove {group}` on that host if it is a copy there",
                group = self.name
            );
        }
        for partner in partners {
            let known = state.peers.iter().position(|p| p.as_ref().is_some_and(|p| p.name == partner.name));
            let n = match known {
                Some(n) => n,
                None => self.add(source, &partner, First::Partner).await?,
            };
            host.ship(source, n, &partner.name);
        }
        Ok(())
    }

    async fn live_as_source(&self, host: &dyn Host, side: Side, source: Arc<Source>) -> Result<(), Stopped> {
        source.greeted().await;
        if !self.is_ending()
            && let Err(e) = source.look_for_partners().await
        {
            let _closed = source.close().await;
            return Err(self.cannot_open(&e));
        }
        if source.halted().is_none()
            && !self.is_ending()
            && let Err(e) = source.replay().await
        {
            let _closed = source.close().await;
            return Err(self.cannot_open(&e));
        }
        if source.halted().is_none() && !self.is_ending() {
            for (member, front) in self.fronts.iter().enumerate() {
                front.open(source.block(member)).await;
            }
            // Whoever sees this may use the volumes.
            self.set(host, State::Source(source.clone()));
            tracing::info!("group {}: source, epoch {}", self.name, source.status().epoch);
        }
        let (phase, why) = source.until_halted().await;
        self.close_fronts(&why).await;
        let _ended = rt::timeout(LINKS_END_WITHIN, source.until_links_ended()).await;
        let now = journal::look(&side.journal, &side.pool).await;
        if matches!(&now, Ok(now) if now.role == Role::Destination) {
            return Ok(());
        }
        match phase {
            Phase::Superseded => match source.demote().await {
                Ok(()) => Ok(()),
                Err(e) => Err(self.failed(format!("{why}; it does not become a copy: {e}"))),
            },
            Phase::SplitBrain => Err(Stopped {
                cause: Cause::Split,
                why: format!(
                    "both sides were written to: {why}; on the side that counts: `weft replica resolve {name} --keep here`, on \
                     the other one: `weft replica resolve {name} --keep there`, in either order",
                    name = self.name
                ),
                source: Some(source),
            }),
            Phase::SetBack => Err(Stopped {
                cause: Cause::SetBack,
                // Another destination may have said since that it has more.
                why: self.was_set_back(&source, &source.halted().map_or(why, |(_, why)| why)),
                source: Some(source),
            }),
            Phase::Refused => {
                Err(Stopped { cause: Cause::Over, why: self.is_over(&source, &why), source: Some(source) })
            }
            // That it cannot be read now either is no other reason.
            Phase::Failed => Err(self.failed_source(&why)),
            _ => Err(match now {
                Ok(_) => self.failed(why),
                Err(e) => self.cannot_look(&e),
            }),
        }
    }

    /// What its journal says is not known.
    fn cannot_look(&self, e: &Error) -> Stopped {
        match e {
            Error::Store(medium) if !e.is_full() => {
                Unusable { cause: Cause::Failed, why: self.unreadable_journal(&medium.to_string()) }.into()
            }
            _ => self.stopped(e, e.to_string()),
        }
    }

    fn cannot_open(&self, e: &Error) -> Stopped {
        let why = match e {
            Error::Log(_) => self.damaged_log(e),
            other => other.to_string(),
        };
        self.stopped(e, why)
    }

    fn was_set_back(&self, source: &Source, why: &str) -> String {
        let (last, name) = (source.status().last, &self.name);
        let both = source.set_back().map_or(last, |(both, _)| both);
        let alone = match last.saturating_sub(both) {
            0 => String::new(),
            own => format!(
                " Records {} to {last} were written here since, {own} of them, and go then.",
                both.saturating_add(1)
            ),
        };
        let holder = source.set_back_by().map_or("the copy".to_owned(), |name| host_of(&name).to_owned());
        format!(
            "this side was set back (a backup, or a snapshot?): {why}. What {holder} has counts: `weft replica switch {name} --failover` \
             on {holder}, unless it is the source already, then `weft replica resolve {name} --keep there` here.{alone} To go on with \
             what is here, and lose what only {holder} has: `weft replica resolve {name} --keep here --force`"
        )
    }

    fn is_over(&self, source: &Source, why: &str) -> String {
        let (status, name) = (source.status(), &self.name);
        let records = match status.last.saturating_sub(status.applied) {
            0 => "its log is empty".to_owned(),
            n => format!("{n} records of its log are not applied to them"),
        };
        format!(
            "{why}. So what is remembered here is of a time before that (a backup?), or this server was stopped in the middle of `weft replica remove`: `weft replica remove \
             {name} --force` gives back the volumes as they are; {records}. If the volumes were not used since: `weft replica \
             resolve {name} --keep here` goes on with what the log says, NOT PROTECTED until `weft replica create` makes another copy"
        )
    }

    fn stopped(&self, e: &Error, why: String) -> Stopped {
        let cause = match e {
            Error::Log(_) => Cause::Log,
            Error::Damaged(_) => Cause::Journal,
            e if e.is_full() => Cause::Full,
            _ => Cause::Failed,
        };
        let why = match e {
            Error::Store(_) => format!("its journal: {why}"),
            _ => why,
        };
        match cause {
            Cause::Journal => Unusable { cause, why: self.lost_journal(&why) }.into(),
            Cause::Full => {
                let why = format!("{why}: make room on that disk, and it goes on by itself");
                Unusable { cause, why }.into()
            }
            Cause::Failed => self.failed(why),
            Cause::Log | Cause::Volume | Cause::Split | Cause::SetBack | Cause::Over => {
                Unusable { cause, why }.into()
            }
        }
    }

    fn failed(&self, why: String) -> Stopped {
        Unusable { cause: Cause::Failed, why: self.until_mended(&why) }.into()
    }

    fn until_mended(&self, why: &str) -> String {
        format!(
            "{why}; when that is mended, start the server again, or end replication here: `weft replica remove {} --force`",
            self.name
        )
    }

    /// A disk of a source has failed: what was answered is in its log, and at its copy.
    pub(crate) fn failed_source(&self, why: &str) -> Stopped {
        self.failed(format!(
            "{why}. A destination that has what was answered here takes over: `weft replica switch {} --failover` there; this side becomes \
             its copy when it is started again on a disk that works",
            self.name
        ))
    }

    fn damaged_log(&self, e: &Error) -> String {
        format!(
            "{e}: writes that were answered may be missing here. A destination that has them takes over: `weft replica \
             switch {name} --failover` there, then `weft replica resolve {name} --keep there` here. Without one: \
             `weft replica resolve {name} --keep here` goes on with what is left",
            name = self.name
        )
    }

    /// What is said of a journal that is of no use.
    pub fn lost_journal(&self, why: &str) -> String {
        self.lost(&format!("its journal is of no use: {why}"))
    }

    /// What is said of a journal on a disk that answers with errors: it may be whole, and is not to be begun anew for that.
    pub fn unreadable_journal(&self, why: &str) -> String {
        self.until_mended(&format!(
            "its journal cannot be read: {why}. It may be whole, and know of writes that were answered here alone. A destination that has \
             all of them can take over meanwhile: `weft replica switch {name} --failover` there",
            name = self.name
        ))
    }

    /// What is said of a volume that lies on another file than it did.
    pub fn replaced_volume(&self, volume: &str, why: &str) -> String {
        self.lost(&format!("volume {volume}: {why}"))
    }

    fn lost(&self, what: &str) -> String {
        format!(
            "{what}; writes that were answered may be missing here. Where the other side has them: \
             `weft replica switch {name} --failover` there, unless it is the source already, then `weft replica resolve {name} \
             --keep there` here, which makes this side a copy. Without one: `weft replica resolve {name} --keep here` goes on \
             with what the volumes hold, or `weft replica remove {name} --force` ends replication here",
            name = self.name
        )
    }

    /// Makes a partner a destination of this source: its journal knows it first, then `remember` has the host name it, durably.
    /// What a crash leaves in between is forgotten when the source is opened again.
    pub async fn attach(
        &self,
        host: &dyn Host,
        partner: &Partner,
        first: First,
        remember: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let _turn = self.destinations.enter().await;
        let source = self.written_here()?;
        let n = self.add(&source, partner, first).await.map_err(|e| format!("{}: {e}", partner.name))?;
        if let Err(why) = remember() {
            // Nobody would send to it, and the log would be kept for it.
            let removed = source.remove_peer(n).await;
            removed.map_err(|e| format!("{why}; {} stays a destination: {e}", partner.name))?;
            return Err(why);
        }
        host.ship(&source, n, &partner.name);
        Ok(())
    }

    /// Forgets a destination of this source: `forget` has the host name it no more, durably, and then the journal does not know
    /// it any more. In the other order a crash in between would leave one that is named and not known, which is taken for a
    /// partner that has everything.
    pub async fn detach(
        &self,
        partner: &str,
        forget: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let _turn = self.destinations.enter().await;
        let source = self.written_here()?;
        forget()?;
        let others = |name: &str| name != partner;
        source.keep_destinations(others).await.map_err(|e| format!("{partner}: {e}")).map(drop)
    }

    /// The source, where this side is one at present.
    fn written_here(&self) -> Result<Arc<Source>, String> {
        match self.state() {
            State::Source(source) => Ok(source),
            State::Destination(_) => {
                Err(format!("{} is a destination here: do that where its source is", self.name))
            }
            State::Starting => Err(format!("{} is being opened: try again in a moment", self.name)),
            State::Stopped(stopped) => Err(format!("{} is stopped: {}", self.name, stopped.why)),
        }
    }

    /// Makes a partner known to the journal.
    async fn add(&self, source: &Arc<Source>, partner: &Partner, first: First) -> Result<usize, Error> {
        let peer = |first| PeerConfig { name: partner.name.clone(), mode: partner.mode, first };
        match source.add_peer(peer(first)).await {
            Err(Error::State(why)) if first == First::Partner => {
                tracing::info!("group {}: {} is compared as a whole: {why}", self.name, partner.name);
                source.add_peer(peer(First::Seeded)).await
            }
            other => other,
        }
    }

    /// Makes this side the source, without asking the one that is. Unless it is forced, that has to have been silent for as
    /// long as it may be, which is waited for.
    pub async fn failover(&self, copy: &Destination, tag: u64, force: Force) -> Result<Era, Error> {
        if !force.source_alive {
            self.let_fall_silent(copy).await;
        }
        self.take_over(copy, tag, force).await
    }

    /// Waits until the source of a copy has been silent for as long as it may be, or is heard of.
    pub async fn let_fall_silent(&self, copy: &Destination) {
        let began = rt::now();
        while copy.heard_at() <= began && !copy.is_source_silent() {
            rt::sleep(SILENCE_LOOK).await;
        }
    }

    /// The same as [`Group::failover`], at once.
    pub async fn take_over(&self, copy: &Destination, tag: u64, force: Force) -> Result<Era, Error> {
        let era = copy.promote(tag, force).await?;
        self.settled(|state| matches!(state, State::Source(_))).await.map_err(Error::Halted)?;
        Ok(era)
    }

    /// Decides which side counts; this one is what follows from that when this returns.
    /// Without `force` this side does not count where it was set back, and a copy has what it has had; nor does it follow a source
    /// then that lacks that.
    pub async fn resolve(
        &self,
        host: &dyn Host,
        keep_here: bool,
        force: bool,
        tag: u64,
    ) -> Result<(), String> {
        let nothing =
            || Err(format!("{} has nothing to decide: `weft replica status` says how it is", self.name));
        match self.state() {
            State::Stopped(stopped) => {
                let decided = match (stopped.cause, &stopped.source) {
                    (Cause::SetBack, Some(source)) if keep_here && !force => {
                        let (both, copy) = source.set_back().unwrap_or_default();
                        return Err(format!(
                            "{} records that only the copy has would be overwritten, {} to {copy}: --force does that. {}",
                            copy.saturating_sub(both),
                            both.saturating_add(1),
                            stopped.why
                        ));
                    }
                    (Cause::Split | Cause::SetBack, Some(source)) if keep_here => source.overrule(tag).await,
                    (Cause::Split | Cause::SetBack, Some(source)) if force => source.demote_for_any().await,
                    (Cause::Split | Cause::SetBack, Some(source)) => source.demote().await,
                    (Cause::Over, Some(source)) if keep_here => source.go_on_without().await,
                    (Cause::Log, _) => {
                        let side = host.side().await.map_err(|unusable| unusable.why)?;
                        let decided = match keep_here {
                            true => rescue::salvage(&side, tag).await,
                            false => rescue::give_up(&side).await,
                        };
                        decided.map(drop)
                    }
                    (Cause::Journal | Cause::Volume, _) => {
                        let (side, mut format) = host.renew().await?;
                        format.tag = tag;
                        let (peers, known) = (host.partners(), host.latest_epoch().await);
                        rescue::renew(&side, &format, &peers, keep_here, known).await
                    }
                    _ => return nothing(),
                };
                decided.map_err(|e| format!("{} ({e})", stopped.why))?;
            }
            // It counts already, and the other one is told so whenever it asks.
            State::Source(source) if keep_here && source.is_disputed() => return Ok(()),
            State::Source(source) if !keep_here && source.is_disputed() => {
                source.give_up().await.map_err(|e| e.to_string())?;
            }
            State::Destination(copy) if !keep_here && copy.is_disputed() => {
                return copy.give_up().await.map_err(|e| e.to_string());
            }
            State::Destination(copy) if !keep_here && let Some(asked) = copy.asks_for() => {
                if force {
                    return copy.follow_any().await.map_err(|e| e.to_string());
                }
                return Err(format!(
                    "{} is a copy here already, and follows a source that has {asked}: --force follows one that lacks them",
                    self.name
                ));
            }
            State::Destination(_) if keep_here => {
                return Err(format!(
                    "{name} is a copy here: `weft replica switch {name} --failover` makes it the source when its source is silent \
                     or stopped",
                    name = self.name
                ));
            }
            _ => return nothing(),
        }
        let settled = |state: &State| match keep_here {
            true => matches!(state, State::Source(_)),
            false => matches!(state, State::Destination(_)),
        };
        if matches!(self.state(), State::Stopped(_)) {
            self.again(host);
        }
        match self.settled(settled).await {
            // It had looked at its journal just before that was written.
            Err(_) if matches!(self.state(), State::Stopped(stopped) if stopped.cause == Cause::Split) => {
                self.again(host);
                self.settled(settled).await
            }
            done => done,
        }
    }

    /// Whether [`Group::govern`] has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends it for good: `forget` removes what is kept of the group, durably, and then the volumes are volumes like any others, of
    /// which `bare` are the blocks. The order is what keeps a crash or an error from losing answered writes: the volumes have what
    /// the log holds, durably, before that goes; and nobody writes to them alone while a crash could bring the group back.
    ///
    /// After an error the group is what it was, or closed until this is called again; a copy whose log could not be applied is closed
    /// until the server starts again. `give_up` lets what a copy cannot apply go with its log.
    pub async fn end(
        &self,
        bare: &[Arc<dyn Block>],
        give_up: bool,
        forget: impl AsyncFnOnce(&Settled) -> Result<(), String>,
    ) -> Result<(), String> {
        let settled = self.settle(bare, give_up).await?;
        forget(&settled).await?;
        for (front, block) in self.fronts.iter().zip(bare) {
            front.open(block.clone()).await;
        }
        Ok(())
    }

    /// Ends the task. Where the log has what the volumes lack they have it before, and an error leaves everything as it was.
    async fn settle(&self, bare: &[Arc<dyn Block>], give_up: bool) -> Result<Settled, String> {
        if self.is_settled.load(Ordering::Acquire) {
            return Ok(Settled(()));
        }
        let copy = match self.state() {
            State::Destination(copy) if !give_up => Some(copy.status()).filter(|status| status.consistent),
            _ => None,
        };
        if let Some(status) = &copy
            && status.full
        {
            return Err(format!(
                "{}: a disk is full here, and {} records that its source has answered are in its log alone: make room first, or --force \
                 gives them up",
                self.name,
                status.last.saturating_sub(status.applied)
            ));
        }
        // The log of one that was ended once may be older than its volumes.
        if let State::Stopped(stopped) = self.state()
            && stopped.cause != Cause::Over
            && let Some(source) = &stopped.source
        {
            let name = &self.name;
            source.apply_all().await.map_err(|e| {
                format!("{name}: its log cannot be applied to its volumes: {e}. To give that up: `weft replica resolve {name} --keep there`")
            })?;
        }
        let flushed = match self.state() {
            State::Stopped(stopped) if stopped.source.is_some() => flush(bare).await,
            // A source or a copy that runs is flushed when it is closed; of others nobody can tell what is missing.
            _ => Ok(()),
        };
        flushed
            .map_err(|e| format!("{}: its volumes cannot be flushed, so its log stays: {e}", self.name))?;
        let was_source = matches!(self.state(), State::Source(_));
        let closed = self.try_close().await;
        if !self.has_ended() {
            return Err(format!("{} is still being opened: try again in a moment", self.name));
        }
        match closed {
            // A write that came since may be in the log alone.
            Err(e) if was_source || copy.is_some() => {
                return Err(format!(
                    "{}: its volumes may lack what its log has: {e}; start the server again",
                    self.name
                ));
            }
            Err(e) => tracing::warn!("group {}: while closing: {e}", self.name),
            Ok(()) => {}
        }
        self.is_settled.store(true, Ordering::Release);
        Ok(Settled(()))
    }

    /// Ends the task, with everything durable.
    pub async fn close(&self) {
        if let Err(e) = self.try_close().await {
            tracing::warn!("group {}: while closing: {e}", self.name);
        }
    }

    async fn try_close(&self) -> Result<(), Error> {
        self.ending.store(true, Ordering::Release);
        // A write that waits for a destination that is away may wait for ever: it is refused when its source ends.
        let held = join_all(self.fronts.iter().map(|front| front.hold("the server, or replication, ends")));
        let _waits = rt::timeout(LINKS_END_WITHIN, held).await;
        let running = lock(&self.running).clone();
        let closed = match (self.state(), running) {
            (_, Some(source)) => source.close().await,
            (State::Stopped(stopped), None) => match &stopped.source {
                Some(source) => source.close().await,
                None => Ok(()),
            },
            (State::Destination(destination), None) => destination.close().await,
            _ => Ok(()),
        };
        self.changed.notify();
        let ended = self.changed.until(|| self.ended.load(Ordering::Acquire).then_some(()));
        let _in_time = rt::timeout(LINKS_END_WITHIN, ended).await;
        closed
    }
}

async fn flush(volumes: &[Arc<dyn Block>]) -> Result<(), weft_store::Error> {
    for volume in volumes {
        volume.submit(BlockOp::Flush).await?;
    }
    Ok(())
}
