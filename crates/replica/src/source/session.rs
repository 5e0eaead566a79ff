//! The loop for one destination: say hello, bring the destination up to date, then send record after record.
//!
//! The answer to the hello alone decides how. If the source's log holds all records that the destination lacks, and no
//! bitmap names anything, the source sends them. Otherwise a resync begins (see `resync`): behind the destination's
//! last record if the log allows it, else behind the source's own, with everything in between marked in the bitmap,
//! durably, before the destination is told.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::FuturesOrdered;
use weft_machine::rt;
use weft_wire::repl::control::{Era, Hello, Refusal, Sync, Welcome};

use super::{Core, Halt, Knows, OnLoss, Partner, Source};
use crate::bitmap::Bitmap;
use crate::destination::MAX_EPOCHS_AHEAD;
use crate::error::{Damage, Error};
use crate::history::{self, lost_nothing, same};
use crate::peer::{self, AHEAD_BYTES, APPEND_BYTES, Link, Peer};
use crate::record::Record;
use crate::state::PeerState;
use crate::status::{Mode, Phase};

/// Appends to one destination in flight.
const APPENDS_IN_FLIGHT: usize = 4;
/// The most records of one append.
const APPEND_RECORDS: usize = 1024;

/// How soon a destination that has refused a session is asked again.
const ASKS_AGAIN: Duration = Duration::from_millis(20);

/// Why a session ends.
pub(super) enum End {
    /// A request to the destination failed.
    Peer(peer::Error),
    /// This side failed.
    Own(Error),
    /// It has to begin again at once.
    Again,
    /// It must not begin again until it is resumed.
    Suspended,
    /// The source stops.
    Stopped,
}

impl From<peer::Error> for End {
    fn from(e: peer::Error) -> End {
        End::Peer(e)
    }
}

impl From<Error> for End {
    fn from(e: Error) -> End {
        match e {
            Error::Peer(e) => End::Peer(e),
            own => End::Own(own),
        }
    }
}

impl Source {
    /// Replicates to destination number `n` until the source is closed or stopped, or the destination removed. Runs on
    /// the thread that polls it. After it has returned writes go on, and the source remembers which ones the
    /// destination lacks.
    pub fn ship(self: &Arc<Self>, n: usize, peer: Rc<dyn Peer>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let ships = self.on_peer(n, |partner, _| std::mem::replace(&mut partner.shipping, true));
            if ships.ok_or(Error::NoPeer(n))? {
                return Err(Error::State("this destination is being replicated to already"));
            }
            let _shipping = Shipping(self, n);
            let mut turned_away = None;
            loop {
                let suspended = self.owner.until(|| {
                    let core = self.core();
                    if core.halted.is_some() || core.closing {
                        return Some(None);
                    }
                    match core.peer(n) {
                        Ok((_, state)) => (!state.suspended).then_some(Some(())),
                        Err(_) => Some(None),
                    }
                });
                if suspended.await.is_none() {
                    return Ok(());
                }
                let (began, had) = (rt::now(), self.acknowledged(n));
                let end = match self.session(n, &*peer).await {
                    Ok(never) => match never {},
                    Err(end) => end,
                };
                let had_it = self.ended(n);
                if self.acknowledged(n) > had || rt::now().since(began) >= self.config.timeout {
                    // That session was useful. One that is accepted and ends at once is as good as a refusal.
                    turned_away = None;
                }
                if let End::Peer(peer::Error::Refused(_)) = &end {
                    self.on_peer(n, |partner, _| partner.heard_ms = self.side.wall.now_ms());
                }
                let ask = match &end {
                    // It can be reached, and has ended the session: it was reopened, or is becoming a source.
                    End::Peer(peer::Error::Refused(Refusal::Session)) => true,
                    // It still follows this side.
                    End::Peer(peer::Error::Refused(Refusal::NoSpace)) => false,
                    // It may have ended the session after any other answer, or when it hung up.
                    End::Peer(peer::Error::Silent(_)) => false,
                    End::Peer(_) => had_it,
                    _ => false,
                };
                if !ask {
                    turned_away = None;
                } else if rt::now().since(*turned_away.get_or_insert_with(rt::now)) < self.config.timeout {
                    // Its answer to a hello tells what it is now; until then no write is answered without it.
                    rt::sleep(ASKS_AGAIN).await;
                    continue;
                }
                match end {
                    End::Again => continue,
                    End::Stopped => {
                        self.greet(n);
                        return Ok(());
                    }
                    End::Suspended => self.phase(n, Phase::Suspended, None),
                    End::Own(e) => self.phase(n, Phase::WaitingForDestination, Some(e.to_string())),
                    End::Peer(e) => {
                        let phase = match &e {
                            peer::Error::Refused(refusal) => self.refused(n, refusal).await,
                            _ => Phase::WaitingForDestination,
                        };
                        self.phase(n, phase, Some(self.told(n, &e)));
                    }
                }
                self.lost(n).await;
                self.greet(n);
                let pause = pin!(rt::sleep(self.config.retry));
                let news = pin!(self.owner.until(|| {
                    let core = self.core();
                    let stop = core.halted.is_some() || core.closing;
                    (stop || core.peer(n).map_or(true, |(partner, _)| partner.again)).then_some(())
                }));
                select(pause, news).await;
            }
        })
    }

    fn acknowledged(&self, n: usize) -> u64 {
        self.core().peer(n).map_or(0, |(partner, _)| partner.acked)
    }

    /// Destination `n` was asked, or could not be reached.
    fn greet(&self, n: usize) {
        self.on_peer(n, |partner, _| partner.greeted = true);
    }

    fn phase(&self, n: usize, phase: Phase, error: Option<String>) {
        self.on_peer(n, |partner, state| {
            self.begin_phase(partner, state, phase);
            if let Some(e) = error {
                if partner.last_error.as_ref() != Some(&e) {
                    tracing::warn!("group {}: replication to {}: {e}", self.config.group, state.name);
                }
                partner.last_error = Some(e);
            }
        });
    }

    /// Does the same within an event, without an error.
    fn begin_phase(&self, partner: &mut Partner, state: &PeerState, phase: Phase) {
        if partner.phase != phase {
            tracing::info!("group {}: replication to {}: {phase:?}", self.config.group, state.name);
            (partner.phase, partner.since_ms) = (phase, self.side.wall.now_ms());
        }
    }

    /// Ends the session, and returns whether there was one.
    fn ended(&self, n: usize) -> bool {
        let now = self.side.wall.now_ms();
        let ended = self.on_peer(n, |partner, _| partner.hang_up(now));
        ended.is_some_and(|(had_it, _commands)| had_it)
    }

    /// The error of a destination, and the command to type if nothing else helps.
    fn told(&self, n: usize, e: &peer::Error) -> String {
        let name = self.core().peer(n).map(|(_, state)| state.name.clone()).unwrap_or_default();
        let group = &self.config.group;
        match e {
            // If this side stops because of it, the reason of the stop says more.
            peer::Error::Refused(Refusal::Partnership | Refusal::Ended) if self.core().goes_on => format!(
                "{e}: `weft replica remove {group} --to {name}` ends it here as well, and `weft replica create` begins another"
            ),
            other => other.to_string(),
        }
    }

    /// Draws the consequences of a refusal for the source itself.
    async fn refused(&self, n: usize, refusal: &Refusal) -> Phase {
        let split = matches!(refusal, Refusal::SplitBrain(_) | Refusal::Undecided);
        self.on_peer(n, |partner, _| partner.disputed = split);
        let knows = match refusal {
            Refusal::Partnership => Some(Knows::No),
            Refusal::Ended => Some(Knows::Ended),
            _ => None,
        };
        if let Some(knows) = knows {
            // A failure of the journal halts the source by itself.
            let _failed = self.learn_whether_it_knows(n, knows).await;
            return Phase::Refused;
        }
        let own = self.core().state.era();
        if let Refusal::SetBack { both, copy } = *refusal {
            if self.learn_set_back(n, both, copy) {
                self.halt(Phase::SetBack, refusal.to_string(), Some(own));
                // After a restart it must not go on before somebody has decided. A failure of the journal halts it by
                // itself.
                let _failed = self.persist(|_| ()).await;
            }
            return Phase::SetBack;
        }
        let (by, certain) = match refusal {
            Refusal::Fenced(era) => (*era, false),
            // Of two sources the later one goes on. The earlier one learns so when it says hello.
            Refusal::SplitBrain(era) if era.epoch < own.epoch => return Phase::Refused,
            Refusal::SplitBrain(era) => (*era, true),
            _ => return Phase::Refused,
        };
        // If it has never had a copy of this side, this side was chosen to count, and does not become a copy by itself.
        let copied = matches!(self.core().state.peers.get(n), Some(Some(state)) if state.copied);
        let name = self.core().peer(n).map(|(_, state)| state.name.clone()).unwrap_or_default();
        self.give_way(by, certain || !copied, &format!("{name} says: {refusal}")).await
    }

    /// The source of this era has taken over, according to `told`: writes fail here from now on. This side becomes a
    /// copy if no answered write is lost. If answered writes may be missing there, or `decided` says so, somebody has
    /// to decide.
    async fn give_way(&self, by: Era, decided: bool, told: &str) -> Phase {
        let own = self.core().state.era();
        let split = {
            let core = self.core();
            let fill = self.log.fill();
            // If the end of the log was lost, the records in its place differ from those of the other side.
            let after = match core.state.restarted() {
                Some(era) if !core.known => by.after.min(era.after),
                _ => by.after,
            };
            let peers = || core.peers.iter().zip(&core.state.peers);
            // A record that a synchronous destination lacks was not answered, unless writes did not wait for it. That
            // destination may be another one than has taken over: records that it has and the new source lacks may have
            // been answered.
            let strict = peers().any(|pair| match pair {
                (Some(partner), Some(state)) => {
                    state.mode == Mode::Synchronous
                        && !partner.lone
                        && !state.unprotected
                        && partner.acked <= by.after
                }
                _ => false,
            });
            decided || (fill.last > after && !strict)
        };
        let phase = if split { Phase::SplitBrain } else { Phase::Superseded };
        let why = match split {
            true => format!("{told}; writes that were answered here are missing there"),
            false => format!("{told}; this side can become its destination"),
        };
        self.halt(phase, why, Some(by));
        if split && !same(&by, &own) {
            // After a restart it must not go on before somebody has decided. A failure of the journal halts it by
            // itself.
            let _failed = self.persist(|state| state.promised = by).await;
        }
        phase
    }

    /// Answers the hello of another source. If that was promoted from a copy, this side stops at once: it may be unable
    /// to reach that copy, nothing else would tell it, and both would answer writes.
    pub(super) async fn answer_source(&self, hello: &Hello) -> Refusal {
        let own = self.core().state.era();
        let later = history::successor(&self.core().state.eras, &hello.eras);
        {
            let core = self.core();
            match &core.halted {
                _ if core.is_split() => return Refusal::Undecided,
                _ if core.is_set_back() || core.is_over() => return Refusal::Stopped,
                // It is about to become its copy.
                Some(Halt { phase: Phase::Superseded | Phase::Suspended, .. }) => return Refusal::Session,
                _ if core.given_up || core.closing => return Refusal::Session,
                Some(_) => return Refusal::Stopped,
                None => {}
            }
        }
        let Some(by) = later else { return history::refusal(&self.core().state.eras, &hello.eras) };
        if by.epoch.saturating_sub(own.epoch) > MAX_EPOCHS_AHEAD {
            return Refusal::Invalid;
        }
        let copied = self.core().state.peers.iter().flatten().any(|state| state.copied);
        let told = format!("a copy was promoted, and says that it is the source of epoch {} now", by.epoch);
        match self.give_way(by, !copied, &told).await {
            Phase::SplitBrain => Refusal::Undecided,
            _ => Refusal::Session,
        }
    }

    /// Destination `n` has records that this side has lost. Of several such destinations, the one with most records
    /// counts; returns whether this is the one.
    fn learn_set_back(&self, n: usize, both: u64, copy: u64) -> bool {
        self.handle(|core| {
            let knows_more = core.state.set_back.is_some_and(|(_, known)| known >= copy);
            if knows_more || (core.halted.is_some() && !core.is_set_back()) {
                return false;
            }
            core.state.set_back = Some((both, copy));
            core.state.set_back_by = u8::try_from(n).ok();
            if let Some(halt) = &mut core.halted {
                halt.why = Refusal::SetBack { both, copy }.to_string();
            }
            true
        })
    }

    /// A destination is unreachable: synchronous writes are answered without it, if that is allowed.
    async fn lost(&self, n: usize) {
        if self.core().halted.is_some() {
            // Writes fail.
            return;
        }
        let unprotected = match self.core().peer(n) {
            Ok((partner, state)) if state.mode == Mode::Synchronous && !partner.lone => {
                state.suspended || self.config.on_loss == OnLoss::Continue
            }
            _ => false,
        };
        if !unprotected {
            return;
        }
        // It must be durable before the first answer: after a crash it decides whether answered writes may be lost.
        let remember = |state: &mut crate::state::State| {
            if let Some(Some(peer)) = state.peers.get_mut(n) {
                peer.unprotected = true;
            }
        };
        if self.persist(remember).await.is_ok() {
            // Only this task could have reached it again meanwhile.
            self.on_peer(n, |partner, _| partner.lone = true);
        }
    }

    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, peer::Error>>,
    ) -> Result<T, peer::Error> {
        let limit = self.config.timeout;
        rt::timeout(limit, call).await.unwrap_or(Err(peer::Error::Silent(limit)))
    }

    async fn session(self: &Arc<Self>, n: usize, peer: &dyn Peer) -> Result<Infallible, End> {
        let hello = self.hello(n)?;
        let first_copy = hello.adopt;
        let (link, welcome) = self.in_time(Link::hello(peer, hello)).await?;
        self.on_peer(n, |partner, _| partner.heard_ms = self.side.wall.now_ms());
        self.learn_whether_it_knows(n, Knows::Yes).await?;
        if !self.core().replayed {
            // It knows no other source and no record that this side lacks. Sending has to wait for the volumes.
            self.greet(n);
            self.until_replayed(n).await;
            return Err(End::Again);
        }
        let cursor = self.prepare(n, &link, &welcome, first_copy).await?;
        let ready = {
            let stream = pin!(self.stream(n, link, cursor));
            let copy = pin!(self.resync(n, link));
            let commands = pin!(self.carry_out(n, link));
            let watch = pin!(self.watch(n, link));
            match select(select(stream, copy), select(commands, watch)).await {
                Either::Left((Either::Left((end, _)) | Either::Right((end, _)), _)) => {
                    end.map(|never| match never {})
                }
                Either::Right((Either::Left((ready, _)), _)) => ready,
                Either::Right((Either::Right((end, _)), _)) => end.map(|never| match never {}),
            }
        };
        // From here on nothing else uses the link, and nothing drops this.
        Err(self.hand_over(n, peer, link, ready?).await)
    }

    /// Waits until the log was applied to the volumes, or the session is not wanted any more.
    async fn until_replayed(&self, n: usize) {
        let ready = || {
            let core = self.core();
            let over = core.halted.is_some() || core.closing;
            over || core.replayed || core.peer(n).map_or(true, |(_, state)| state.suspended)
        };
        self.owner.until(|| ready().then_some(())).await;
    }

    /// Decides what the destination needs, begins a resync if necessary, and returns the first sequence to send.
    async fn prepare(
        self: &Arc<Self>,
        n: usize,
        link: &Link<'_>,
        welcome: &Welcome,
        first_copy: bool,
    ) -> Result<u64, End> {
        let diverged = match welcome.diverged {
            true if self.has_had(welcome.last) => {
                let report = self.in_time(link.beat()).await?;
                if report.epoch == self.core().state.era().epoch && report.last > welcome.last {
                    let refusal = Refusal::SetBack { both: welcome.last, copy: report.last };
                    return Err(peer::Error::Refused(refusal).into());
                }
                self.diverged(link, welcome).await?
            }
            true => self.diverged(link, welcome).await?,
            false => Vec::new(),
        };
        let last = welcome.last;
        // Records that were sent before they were durable here count only when they are durable.
        let sent = last.min(self.log.fill().last);
        self.log.durable_through(sent).await?;
        let resync = self.handle(|core| self.reconcile(core, n, welcome, &diverged, first_copy))?;
        let Some((base, kind)) = resync else {
            self.handle(|core| core.known = true);
            self.phase(n, Phase::ReplayingLog, None);
            self.caught_up(n);
            self.protect(n).await?;
            return Ok(last.saturating_add(1));
        };
        self.persist_bitmaps().await?;
        // Writes must not rely on it until the resync is over.
        self.lost(n).await;
        self.in_time(link.begin(base, kind)).await?;
        // Bits are cleared from now on, so they no longer name everything that it lacks should it come back as it was
        // before.
        let begun = |state: &mut crate::state::State| {
            if let Some(Some(peer)) = state.peers.get_mut(n) {
                peer.covered = peer.covered.max(base);
            }
        };
        self.persist(begun).await?;
        self.handle(|core| core.known = true);
        let damaged = self.on_peer(n, |partner, _| {
            partner.acked = base;
            partner.unreadable >= self.log.fill().first
        });
        if damaged.unwrap_or(false) {
            // The unreadable record has to leave the log before this side is opened again.
            self.make_room();
        }
        self.phase(n, phase_of(kind), None);
        Ok(base.saturating_add(1))
    }

    /// Marks in the bitmaps what the destination lacks. Returns where a resync begins, and its kind, unless the log has everything.
    fn reconcile(
        &self,
        core: &mut Core,
        n: usize,
        welcome: &Welcome,
        diverged: &[Bitmap],
        first_copy: bool,
    ) -> Result<Option<(u64, Sync)>, End> {
        let (last, fill) = (welcome.last, self.log.fill());
        let members = core.state.members.clone();
        if last > fill.durable {
            // This is possible only after a disk has lost data, or with an older copy of this side.
            let refusal = Refusal::SetBack { both: fill.durable, copy: last };
            return Err(End::from(peer::Error::Refused(refusal)));
        }
        let (partner, state) = core.peer_mut(n)?;
        if welcome.fresh && !first_copy {
            let empty = "the destination is empty, though its copy was finished: `weft replica remove`, then `weft replica create`";
            return Err(Error::State(empty).into());
        }
        let can_replay = last.saturating_add(1) >= fill.first && last >= partner.unreadable;
        let unknown = !can_replay && last < state.covered;
        if welcome.fresh {
            // An earlier copy went to other volumes.
            partner.maps.iter_mut().for_each(Bitmap::mark_all);
        } else if unknown {
            let (group, name) = (&self.config.group, &state.name);
            tracing::warn!("group {group}: {name} has lost what it had acknowledged: everything is compared");
            partner.maps.iter_mut().for_each(Bitmap::mark_all);
        }
        // Bytes past the size of its copy are unknown.
        for ((map, has), member) in partner.maps.iter_mut().zip(&welcome.sizes).zip(&members) {
            map.mark(*has, member.size.saturating_sub(*has));
        }
        for (map, diverged) in partner.maps.iter_mut().zip(diverged) {
            map.mark_all_of(diverged);
        }
        (partner.connected, partner.lost_ms) = (true, 0);
        (partner.greeted, partner.disputed) = (true, false);
        if matches!(partner.phase, Phase::Refused | Phase::SplitBrain | Phase::Superseded) {
            // It accepts again, so the cause of the refusal is gone.
            partner.last_error = None;
        }
        partner.again = false;
        partner.acked = last;
        partner.consistent = welcome.consistent;
        (partner.copied_bytes, partner.sent_bytes, partner.copy_began) = (0, 0, rt::now());
        let is_enough = can_replay && welcome.consistent && !welcome.diverged && partner.is_clean();
        let kind = match first_copy {
            true if state.seeded => Sync::Seeded,
            true => Sync::Initial,
            // Everything is marked, though no new copy was requested: comparing is enough.
            false if partner.is_full() => Sync::Seeded,
            false => Sync::Changed,
        };
        if partner.phase == Phase::ContinuouslyReplicating {
            // It did so in the last session. What it lacks now takes a while.
            let phase = if is_enough { Phase::ReplayingLog } else { phase_of(kind) };
            self.begin_phase(partner, state, phase);
        }
        Ok(match is_enough {
            true => None,
            false => {
                partner.consistent = false;
                let base = if can_replay { last } else { fill.durable };
                for header in self.log.headers(last.saturating_add(1), base) {
                    if let Some(map) = partner.maps.get_mut(usize::from(header.member)) {
                        map.mark(header.offset, header.range_len());
                    }
                }
                Some((base, kind))
            }
        })
    }

    /// Whether this side has written and lost the records that a destination of this history has behind `last`: it was
    /// opened at `last` with everything that it had sent. A destination of an older version does not find that out
    /// itself.
    fn has_had(&self, last: u64) -> bool {
        let core = self.core();
        let epoch = core.state.era().epoch;
        let mut own = core.state.eras.iter().filter(|era| era.epoch == epoch);
        // Records before the first of them are from another source.
        own.next().is_some_and(|first| first.after < last)
            && own.find(|era| era.after == last).is_some_and(lost_nothing)
    }

    /// Asks the destination for the ranges of each volume that it has changed since the histories parted.
    async fn diverged(&self, link: &Link<'_>, welcome: &Welcome) -> Result<Vec<Bitmap>, End> {
        let members = self.core().state.members.clone();
        let mut all = Vec::new();
        for (n, member) in members.iter().enumerate() {
            let mut map = Bitmap::new(member.size, member.granule);
            let size = welcome.sizes.get(n).copied().unwrap_or(member.size);
            self.in_time(link.diverged(n as u16, size, &mut map)).await?;
            all.push(map);
        }
        Ok(all)
    }

    /// If the destination has everything, synchronous writes wait for it from now on.
    pub(super) fn caught_up(&self, n: usize) {
        self.on_peer(n, |partner, state| self.catches_up(partner, state));
    }

    /// The same within an event.
    fn catches_up(&self, partner: &mut Partner, state: &PeerState) {
        if !partner.consistent || partner.acked < self.log.last() {
            return;
        }
        partner.lone = false;
        if partner.is_clean() && partner.follows() && partner.phase != Phase::ContinuouslyReplicating {
            partner.last_error = None;
            self.begin_phase(partner, state, Phase::ContinuouslyReplicating);
        }
    }

    /// Remembers, durably, that writes are no longer answered without the destination.
    pub(super) async fn protect(&self, n: usize) -> Result<(), Error> {
        if !self.core().peer(n).is_ok_and(|(partner, state)| partner.is_relied_on_anew(state)) {
            return Ok(());
        }
        let _turn = self.journal.gate.enter().await;
        let state = self.handle(|core| {
            let (partner, state) = core.peer_mut(n)?;
            if !partner.is_relied_on_anew(state) {
                // It was suspended meanwhile.
                return Ok::<_, Error>(None);
            }
            state.unprotected = false;
            Ok(Some(core.state.clone()))
        });
        let Some(state) = state? else { return Ok(()) };
        self.journal.write_state(state).await
    }

    /// Sets the flag *ahead*, durably, before the first record is sent that is not durable here.
    async fn allow_ahead(&self, n: usize) -> Result<(), Error> {
        let is_needed = {
            let core = self.core();
            !core.ahead && core.is_awaited(n)
        };
        if !is_needed {
            return Ok(());
        }
        self.persist(|state| state.ahead = true).await?;
        self.handle(|core| core.ahead = true);
        Ok(())
    }

    /// The last sequence that may be sent to this destination now.
    fn sendable(&self, n: usize) -> u64 {
        let ahead = {
            let core = self.core();
            core.ahead && core.is_awaited(n)
        };
        match ahead {
            true => self.log.through_ahead(AHEAD_BYTES),
            false => self.log.durable(),
        }
    }

    /// Sends records, several appends at a time: durable ones, and to a destination that writes wait for also those
    /// being flushed.
    async fn stream(&self, n: usize, link: Link<'_>, mut cursor: u64) -> Result<Infallible, End> {
        let mut window = FuturesOrdered::new();
        loop {
            self.allow_ahead(n).await?;
            while window.len() < APPENDS_IN_FLIGHT {
                let sendable = self.sendable(n);
                if sendable < cursor {
                    break;
                }
                let records = match self.gather(cursor, sendable).await {
                    Err(Error::Log(damage)) => return Err(self.go_round(n, damage).await),
                    other => other?,
                };
                if records.is_empty() {
                    // It is neither in memory nor durable yet.
                    break;
                }
                let next = cursor.saturating_add(records.len() as u64);
                let bytes: u64 = records.iter().map(|record| record.header.payload_len() as u64).sum();
                cursor = next;
                let last = next.saturating_sub(1);
                window.push_back(async move {
                    let count = records.len() as u64;
                    self.in_time(link.append(records)).await.map(|()| (last, count, bytes))
                });
            }
            let more = pin!(self.log.sends.until(|| (self.sendable(n) >= cursor).then_some(())));
            let done = match (window.is_empty(), window.len() < APPENDS_IN_FLIGHT) {
                (true, _) => {
                    more.await;
                    continue;
                }
                (false, true) => match select(window.next(), more).await {
                    Either::Left((done, _)) => done,
                    Either::Right(_) => continue,
                },
                (false, false) => window.next().await,
            };
            let Some(done) = done else { continue };
            let (last, count, bytes) = done?;
            let now = self.side.wall.now_ms();
            let is_relied_on_anew = self.on_peer(n, |partner, state| {
                partner.acked = partner.acked.max(last);
                partner.heard_ms = now;
                partner.records_sent = partner.records_sent.saturating_add(count);
                partner.record_bytes_sent = partner.record_bytes_sent.saturating_add(bytes);
                self.catches_up(partner, state);
                partner.is_relied_on_anew(state)
            });
            if is_relied_on_anew.unwrap_or(false) {
                self.protect(n).await?;
            }
        }
    }

    /// A record that this destination lacks cannot be read from the log. The volume has its content, so the ranges that
    /// changed from there on are copied.
    async fn go_round(&self, n: usize, damage: Damage) -> End {
        let now = self.side.wall.now_ms();
        self.on_peer(n, |partner, state| {
            let why = format!("{damage}; what changed since is copied from the volumes");
            tracing::error!("group {}: replication to {}: {why}", self.config.group, state.name);
            (partner.unreadable, partner.last_error, partner.heard_ms) = (damage.last, Some(why), now);
        });
        End::Again
    }

    /// Records from `cursor` through `last`, as many as one append carries: at least one, if that is durable.
    async fn gather(&self, cursor: u64, last: u64) -> Result<Vec<Record>, Error> {
        let durable = self.log.durable();
        let (mut records, mut bytes) = (Vec::new(), 0);
        for sequence in cursor..=last {
            let mut next = match sequence <= durable {
                true => self.log.record(sequence).await?,
                false => match self.log.recent(sequence) {
                    Some(next) => next,
                    None => break,
                },
            };
            bytes = next.header.record_len().saturating_add(bytes);
            if !records.is_empty() && bytes > APPEND_BYTES {
                break;
            }
            // Records through here are durable now: should this side come back with fewer, it was set back.
            (next.header.settled, next.header.claimed) = (durable, 0);
            records.push(next);
            if records.len() == APPEND_RECORDS {
                break;
            }
        }
        Ok(records)
    }

    /// Ends the session on request, or when the destination does not answer.
    async fn watch(&self, n: usize, link: Link<'_>) -> Result<Infallible, End> {
        loop {
            let end = pin!(self.owner.until(|| {
                let core = self.core();
                if core.halted.is_some() || core.closing {
                    return Some(End::Stopped);
                }
                match core.peer(n) {
                    Err(_) => Some(End::Stopped),
                    Ok((_, state)) if state.suspended => Some(End::Suspended),
                    Ok((partner, _)) => partner.again.then_some(End::Again),
                }
            }));
            if let Either::Left((end, _)) = select(end, pin!(rt::sleep(self.config.beat))).await {
                if matches!(end, End::Suspended) {
                    // Tell it if possible; it would find out by itself.
                    let _told = self.in_time(link.suspend()).await;
                }
                return Err(end);
            }
            let report = self.in_time(link.beat()).await?;
            let now = self.side.wall.now_ms();
            self.on_peer(n, |partner, _| (partner.heard_ms, partner.applied) = (now, report.applied));
        }
    }
}

fn phase_of(sync: Sync) -> Phase {
    match sync {
        Sync::Initial => Phase::InitialBlockCopy,
        Sync::Seeded => Phase::SeededCopy,
        Sync::Changed => Phase::Resyncing,
    }
}

/// Marks a destination as being shipped to until it is dropped.
struct Shipping<'a>(&'a Source, usize);

impl Drop for Shipping<'_> {
    fn drop(&mut self) {
        let now = self.0.side.wall.now_ms();
        let commands = self.0.release(|core| {
            let (partner, _) = core.peer_mut(self.1).ok()?;
            partner.shipping = false;
            Some(partner.hang_up(now))
        });
        // This answers them, so it is not part of the event.
        drop(commands);
    }
}
