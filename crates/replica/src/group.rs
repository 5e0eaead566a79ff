//! One side of a group in any role: opens it as its journal says, and opens and closes the fronts of its volumes
//! (docs/replication.md, "Fronts").
//!
//! Files, connections and listeners belong to its [`Host`].
//!
//! ```text
//!            ┌─────────────── opened as ───────────────────────────┐
//!   journal ─┤ source:      partners are asked, then fronts open   ├─ roles exchanged, promoted, superseded ─► again
//!            │ destination: fronts stay closed                     │─ cannot be opened, both were written to ─► stopped
//!            └─────────────────────────────────────────────────────┘  (fronts closed, until told; a full disk: until it is not)
//! ```
//!
//! A front of a group leads to a source or nowhere: only [`Group::end`] puts the bare volume behind it, after which
//! there is no group. A source answers no write before each of its partners was asked whether it is still the source,
//! or could not be reached.

mod end;
mod life;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join_all};
use weft_machine::rt;
use weft_wire::repl::control::{Era, Refusal, Request, Response};

pub use self::end::Settled;
use self::life::Core;
use crate::destination::{self, Destination, Force};
use crate::error::Error;
use crate::front::Front;
use crate::journal::{self, Side};
use crate::owner::Owner;
pub use crate::partner::Partner;
use crate::rescue;
use crate::signal::Gate;
use crate::source::{self, First, PeerConfig, Source};
use crate::state::State as Remembered;
use crate::status::{Phase, Role, Status};

/// How long a group may take to change to a requested state.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// How long links may take to end when a source has stopped.
const LINKS_END_WITHIN: Duration = Duration::from_secs(15);
/// How often a group that a full disk has stopped is opened again.
const FULL_RETRY: Duration = Duration::from_secs(5);
/// How often a wait for the silence of a source checks it.
const SILENCE_LOOK: Duration = Duration::from_millis(50);

/// The services that a group needs from its process.
pub trait Host {
    /// Its journal and volumes; or why they are unusable, and what to type.
    fn side(&self) -> LocalBoxFuture<'_, Result<Side, Unusable>>;
    /// Its volumes with a new journal in place of a lost one, not formatted yet, and the parameters to format it.
    fn renew(&self) -> LocalBoxFuture<'_, Result<(Side, journal::Format), String>>;
    /// The latest epoch that is known without the journal, here or to a reachable partner.
    fn latest_epoch(&self) -> LocalBoxFuture<'_, u64>;
    /// Its partners; the first of a destination is its source.
    fn partners(&self) -> Vec<Partner>;
    /// How a source behaves.
    fn source(&self) -> source::Config;
    /// How a destination behaves.
    fn destination(&self) -> destination::Config;
    /// Directs requests of the partnership to this side from now on.
    fn lead(&self, to: Behind);
    /// Runs [`Source::ship`] for destination number `n`.
    fn ship(&self, source: &Arc<Source>, n: usize, partner: &str);
    /// The state of the group has changed.
    fn became(&self, state: &State);
}

/// Why the journal or the volumes are unusable.
#[derive(Clone, Debug)]
pub struct Unusable {
    /// The kind of reason.
    pub cause: Cause,
    /// A sentence.
    pub why: String,
}

/// The side that answers the requests of a partnership.
#[derive(Clone, Debug)]
pub enum Behind {
    /// Nobody yet.
    Starting,
    /// It keeps a copy.
    Destination(Arc<Destination>),
    /// A source.
    Source(Arc<Source>),
    /// Nobody, until an administrator decides or repairs something.
    Stopped,
}

impl Behind {
    /// Carries out a request.
    pub fn control(&self, request: Request) -> LocalBoxFuture<'_, Response> {
        Box::pin(async move {
            match self {
                Behind::Destination(destination) => destination.control(request).await,
                Behind::Source(source) => source.control(&request).await,
                // It may be open again in a moment: the partner waits for that, and does not count it as lost.
                Behind::Starting => Response::Refused(Refusal::Session),
                Behind::Stopped => Response::Refused(Refusal::Stopped),
            }
        })
    }
}

/// The state of a group.
#[derive(Clone, Debug)]
pub enum State {
    /// Being opened: its journal is being read, or its partners are being asked.
    Starting,
    /// A source.
    Source(Arc<Source>),
    /// A copy.
    Destination(Arc<Destination>),
    /// Neither.
    Stopped(Arc<Stopped>),
}

/// A group that is neither source nor destination: its fronts are closed.
#[derive(Debug)]
pub struct Stopped {
    /// The kind of reason.
    pub cause: Cause,
    /// A sentence that says what to type.
    pub why: String,
    /// The source, which is kept for the decision after both sides were written to.
    source: Option<Arc<Source>>,
}

/// Why a group is stopped: one variant for each way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Its journal is lost or invalid.
    Journal,
    /// The content of a volume is unknown: it lies on another file.
    Volume,
    /// Its log is damaged.
    Log,
    /// Both sides were written to.
    Split,
    /// It is a source that was set back: a destination has records that are lost here.
    SetBack,
    /// It was opened as a source, and a destination says that its source has ended the partnership.
    Over,
    /// A disk is full: opening is retried until there is room.
    Full,
    /// Something else has to be repaired first.
    Failed,
}

impl From<Unusable> for Stopped {
    fn from(Unusable { cause, why }: Unusable) -> Stopped {
        Stopped { cause, why, source: None }
    }
}

/// The message for users of a copy.
fn copy_of(source: &str) -> String {
    format!("this is the copy of a replica: it can be used at {source}")
}

/// The host in a partner's name HOST:GROUP.
fn host_of(partner: &str) -> &str {
    partner.rsplit_once(':').map_or(partner, |(host, _)| host)
}

/// See the module.
#[derive(Debug)]
pub struct Group {
    /// Its name here.
    name: String,
    fronts: Vec<Arc<Front>>,
    owner: Owner<Core>,
    /// Held by changes to the list of destinations and by the opening of a source, which compares the journal with the
    /// host's list.
    destinations: Gate,
}

impl Group {
    /// A group whose volumes have these closed fronts.
    pub fn new(name: &str, fronts: Vec<Arc<Front>>) -> Group {
        Group { name: name.to_owned(), fronts, owner: Owner::new(Core::new()), destinations: Gate::default() }
    }

    /// Its current state.
    pub fn state(&self) -> State {
        self.owner.read().state().clone()
    }

    /// Applies an event that changes the role. The host hears of it before those who wait for it.
    fn enter<R>(&self, host: &dyn Host, event: impl FnOnce(&mut Core) -> R) -> R {
        let ((result, state), effects) = self.owner.apply(|core| {
            let result = event(core);
            (result, core.state().clone())
        });
        host.became(&state);
        self.owner.tell(effects);
        result
    }

    fn is_ending(&self) -> bool {
        self.owner.read().is_ending()
    }

    fn running(&self) -> Option<Arc<Source>> {
        self.owner.read().running().cloned()
    }

    /// The status of the engine, if it runs: a source runs before its fronts are open, while its log is replayed.
    pub fn status(&self) -> Option<Status> {
        match self.state() {
            State::Source(source) => Some(source.status()),
            State::Destination(destination) => Some(destination.status()),
            State::Stopped(stopped) => stopped.source.as_ref().map(|source| source.status()),
            State::Starting => self.running().map(|source| source.status()),
        }
    }

    /// Waits until its state satisfies the condition.
    pub async fn until(&self, is: impl Fn(&State) -> bool) {
        self.owner.until(|| is(&self.state()).then_some(())).await;
    }

    /// Waits until its state satisfies the condition, for at most [`SETTLES_WITHIN`]. The error says why it is stopped
    /// or late.
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
        rt::timeout(SETTLES_WITHIN, self.owner.until(look)).await.unwrap_or_else(|_| late())
    }

    /// Runs the group in the role of its journal until it ends. Its fronts are closed before and afterwards.
    pub fn govern<'a>(&'a self, host: &'a dyn Host) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let mut former: Option<Arc<Source>> = None;
            while !self.is_ending() {
                let ran = self.enter(host, Core::starts);
                if let Some(source) = ran.or_else(|| former.take()) {
                    // Commands may still hold it.
                    source.retire().await;
                }
                let Err(stopped) = self.live(host).await else { continue };
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
                former = self.enter(host, |core| core.stops(Arc::new(stopped)));
                let told = self.owner.until(|| {
                    let core = self.owner.read();
                    let is_stopped = matches!(core.state(), State::Stopped(_));
                    (!is_stopped || core.is_closed()).then_some(())
                });
                match full {
                    false => told.await,
                    // Wait for that, or until there may be room.
                    true => rt::timeout(FULL_RETRY, told).await.unwrap_or_default(),
                }
            }
            self.owner.handle(Core::has_come_to_its_end);
        })
    }

    /// Opens a stopped group again, as its journal says. Any other group stays as it is.
    pub fn again(&self) {
        self.owner.handle(Core::is_asked_to_start);
    }

    /// Closes the fronts, unless [`Group::end`] holds them.
    async fn close_fronts(&self, why: &str) {
        for front in &self.fronts {
            if self.owner.read().holds_fronts() {
                return;
            }
            front.close(why).await;
        }
    }

    /// Lets the requests of the fronts wait. Whether those that were being carried out have ended in time.
    async fn hold_fronts(&self, what_for: &str) -> bool {
        let held = join_all(self.fronts.iter().map(|front| front.hold(what_for)));
        rt::timeout(LINKS_END_WITHIN, held).await.is_ok()
    }

    /// Sets the message of the closed fronts of a copy, which names the source. Other fronts stay as they are: the
    /// group may have become a source meanwhile.
    pub fn is_copy_of(&self, source: &str) {
        self.fronts.iter().for_each(|front| front.reword(&copy_of(source)));
    }

    /// If this side was set back: the last record of the copy that has more, and that copy's host.
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

    /// Runs the group in one role. `Ok`: the journal has to be read again.
    async fn live(&self, host: &dyn Host) -> Result<(), Stopped> {
        let turn = self.destinations.enter().await;
        let side = host.side().await?;
        let state = match journal::mend(&side).await {
            Ok(state) => state,
            Err(e) => return Err(self.cannot_look(&e)),
        };
        if self.is_ending() {
            return Ok(());
        }
        for (front, member) in self.fronts.iter().zip(&state.members) {
            front.resize(member.size);
        }
        match state.role {
            Role::Source => {
                // It may have been a copy until now, whose front refuses requests.
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
        self.enter(host, |core| core.copies(destination.clone()));
        tracing::info!("group {}: destination of {source}", self.name);
        destination.run().await;
        destination.retire().await;
        // Requests still go to the destination: once promoted it says so, until the source answers.
        let status = destination.status();
        match (status.role, status.last_error) {
            // Opened again, it goes on before the damage.
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
        self.owner.handle(|core| core.runs(source.clone()));
        host.lead(Behind::Source(source.clone()));
        if let Err(e) = self.send_to_partners(host, &source, state).await {
            // End the loops that run already.
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
        // A destination is in the journal before the host names it, and after it names it no more (see `attach` and
        // `detach`). One that a crash in between has left would be sent nothing, and the log would be kept for it.
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
            // From this state on users may use the volumes.
            self.enter(host, Core::serves);
            tracing::info!("group {}: source, epoch {}", self.name, source.status().epoch);
        } else if source.halted().is_none() {
            // The end may have looked for a source before this one ran.
            let _closed = source.close().await;
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
                // Another destination may have reported since that it has more.
                why: self.was_set_back(&source, &source.halted().map_or(why, |(_, why)| why)),
                source: Some(source),
            }),
            Phase::Refused => {
                Err(Stopped { cause: Cause::Over, why: self.is_over(&source, &why), source: Some(source) })
            }
            // That it is still unreadable is not another reason.
            Phase::Failed => Err(self.failed_source(&why)),
            _ => Err(match now {
                Ok(_) => self.failed(why),
                Err(e) => self.cannot_look(&e),
            }),
        }
    }

    /// The content of its journal is unknown.
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

    /// A disk of a source has failed: answered writes are in its log, and at its copy.
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

    /// The message for an unusable journal.
    pub fn lost_journal(&self, why: &str) -> String {
        self.lost(&format!("its journal is of no use: {why}"))
    }

    /// The message for a journal on a disk that returns errors: the journal may be intact, and must not be replaced
    /// because of that.
    pub fn unreadable_journal(&self, why: &str) -> String {
        self.until_mended(&format!(
            "its journal cannot be read: {why}. It may be whole, and know of writes that were answered here alone. A destination that has \
             all of them can take over meanwhile: `weft replica switch {name} --failover` there",
            name = self.name
        ))
    }

    /// The message for a volume that lies on another file than before.
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

    /// Makes a partner a destination of this source: first in the journal, then `remember` adds it to the host's list,
    /// durably. After a crash in between the next opening of the source forgets it.
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
            // Otherwise nobody would send to it, and the log would be kept for it.
            let removed = source.remove_peer(n).await;
            removed.map_err(|e| format!("{why}; {} stays a destination: {e}", partner.name))?;
            return Err(why);
        }
        host.ship(&source, n, &partner.name);
        Ok(())
    }

    /// Forgets a destination of this source: first `forget` removes it from the host's list, durably, then from the
    /// journal. In the other order a crash in between would leave one that the list names and the journal does not
    /// know, which would count as a partner that has everything.
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

    /// The source, if this side is one at present.
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

    /// Adds a partner to the journal.
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

    /// Makes this side the source without asking the current one. Unless forced, this waits until the current source
    /// was silent for long enough.
    pub async fn failover(&self, copy: &Destination, tag: u64, force: Force) -> Result<Era, Error> {
        if !force.source_alive {
            self.let_fall_silent(copy).await;
        }
        self.take_over(copy, tag, force).await
    }

    /// Waits until the source of a copy was silent for long enough, or is heard from.
    pub async fn let_fall_silent(&self, copy: &Destination) {
        let began = rt::now();
        while copy.heard_at() <= began && !copy.is_source_silent() {
            rt::sleep(SILENCE_LOOK).await;
        }
    }

    /// Does the same as [`Group::failover`], at once.
    pub async fn take_over(&self, copy: &Destination, tag: u64, force: Force) -> Result<Era, Error> {
        let era = copy.promote(tag, force).await?;
        self.settled(|state| matches!(state, State::Source(_))).await.map_err(Error::Halted)?;
        Ok(era)
    }

    /// Decides which side counts, and waits until this side has taken the role that follows. If this side was set back,
    /// and a copy has the lost records, it counts only with `force`; and only with `force` does it follow a source that
    /// lacks those records.
    pub fn resolve<'a>(
        &'a self,
        host: &'a dyn Host,
        keep_here: bool,
        force: bool,
        tag: u64,
    ) -> LocalBoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
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
                        (Cause::Split | Cause::SetBack, Some(source)) if keep_here => {
                            source.unless_full(source.overrule(tag)).await
                        }
                        (Cause::Split | Cause::SetBack, Some(source)) if force => {
                            source.unless_full(source.demote_for_any()).await
                        }
                        (Cause::Split | Cause::SetBack, Some(source)) => {
                            source.unless_full(source.demote()).await
                        }
                        (Cause::Over, Some(source)) if keep_here => {
                            source.unless_full(source.go_on_without()).await
                        }
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
                // It counts already, and the other side learns so whenever it says hello.
                State::Source(source) if keep_here && source.is_disputed() => return Ok(()),
                State::Source(source) if !keep_here && source.is_disputed() => {
                    source.unless_full(source.give_up()).await.map_err(|e| e.to_string())?;
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
            self.again();
            match self.settled(settled).await {
                // It had read its journal just before that was written.
                Err(_) if matches!(self.state(), State::Stopped(stopped) if stopped.cause == Cause::Split) => {
                    self.again();
                    self.settled(settled).await
                }
                done => done,
            }
        })
    }

    /// Whether [`Group::govern`] has ended.
    pub fn has_ended(&self) -> bool {
        self.owner.read().has_ended()
    }

    /// Whether [`Group::end`] has settled its volumes: from then on its records are removed, and none is written.
    pub fn is_settled(&self) -> bool {
        self.owner.read().is_settled()
    }

    /// Ends the task, with everything durable.
    pub fn close(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            self.owner.handle(Core::ends);
            // A write may wait for an unreachable destination indefinitely: it is refused when its source ends.
            let _is_idle = self.hold_fronts("the server ends").await;
            if let Err(e) = self.finish().await {
                tracing::warn!("group {}: while closing: {e}", self.name);
            }
        })
    }

    async fn finish(&self) -> Result<(), Error> {
        self.owner.handle(Core::ends);
        let (state, running) = {
            let core = self.owner.read();
            (core.state().clone(), core.running().cloned())
        };
        let closed = match (state, running) {
            (_, Some(source)) => source.close().await,
            (State::Stopped(stopped), None) => match &stopped.source {
                Some(source) => source.close().await,
                None => Ok(()),
            },
            (State::Destination(destination), None) => destination.close().await,
            _ => Ok(()),
        };
        self.owner.handle(Core::closes);
        let ended = self.owner.until(|| self.has_ended().then_some(()));
        let _in_time = rt::timeout(LINKS_END_WITHIN, ended).await;
        closed
    }
}

#[cfg(all(test, debug_assertions))]
impl Group {
    /// Breaks an invariant.
    pub(crate) fn break_down(&self, source: Arc<Source>) {
        self.owner.handle(|core| core.break_down(source));
    }
}
