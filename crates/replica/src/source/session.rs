//! The loop for one destination: hello, what has to be done for it to follow, and then record after record.
//!
//! Spec: the crate's page, "Histories". Owns: its session. Does not: copy blocks (see `resync`).
//!
//! What a hello's answer says decides alone: the destination's log is gone on with where the source's still holds what
//! follows and no bitmap names anything; otherwise a resync begins, behind the destination's last record if the log allows
//! it, else behind the source's own, with everything in between in the bitmap, durably, before the destination is told.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesOrdered;
use weft_machine::rt;
use weft_wire::repl::control::{Era, Hello, Refusal, Sync, Welcome};

use super::{Halt, Knows, OnLoss, Partner, Source};
use crate::bitmap::Bitmap;
use crate::destination::MAX_EPOCHS_AHEAD;
use crate::error::Error;
use crate::history::{self, lost_nothing, same};
use crate::peer::{self, AHEAD_BYTES, APPEND_BYTES, Link, Peer};
use crate::record::Record;
use crate::scan::Damage;
use crate::state::PeerState;
use crate::status::{Mode, Phase};

/// Appends to one destination at a time.
const APPENDS_IN_FLIGHT: usize = 4;
/// Records of one append.
const APPEND_RECORDS: usize = 1024;

/// How soon a destination is asked again that has turned a session away.
const ASKS_AGAIN: Duration = Duration::from_millis(20);

/// Why a session ends.
pub(super) enum End {
    /// The destination.
    Peer(peer::Error),
    /// This side.
    Own(Error),
    /// It is to begin again, at once.
    Again,
    /// It is not to begin again until somebody says so.
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
    /// Replicates to destination number `n` until the source is closed or stopped, or the destination removed. Runs on the
    /// core that polls it. Also when this returns, writes go on, and what this destination lacks is remembered.
    pub async fn ship(self: &Arc<Self>, n: usize, peer: Rc<dyn Peer>) -> Result<(), Error> {
        {
            let mut core = self.core();
            let (partner, _) = core.peer(n)?;
            if std::mem::replace(&mut partner.shipping, true) {
                return Err(Error::State("this destination is being replicated to already"));
            }
        }
        let _shipping = Shipping(self, n);
        let mut turned_away = None;
        loop {
            let suspended = self.changed.until(|| {
                let mut core = self.core();
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
                // That session was of use. One that is only ever given, and ends, is as good as none.
                turned_away = None;
            }
            let ask = match &end {
                // It is there, and does not listen to this session any more: it was opened anew, or is becoming a source.
                End::Peer(peer::Error::Refused(Refusal::Session)) => true,
                // It follows this side still.
                End::Peer(peer::Error::Refused(Refusal::NoSpace)) => false,
                // So may one be that has answered otherwise, or has hung up.
                End::Peer(peer::Error::Silent(_)) => false,
                End::Peer(_) => had_it,
                _ => false,
            };
            if !ask {
                turned_away = None;
            } else if rt::now().since(*turned_away.get_or_insert_with(rt::now)) < self.config.timeout {
                // What it is now it says when it is asked, and nothing is answered without it before.
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
            let news = pin!(self.changed.until(|| {
                let mut core = self.core();
                let stop = core.halted.is_some() || core.closing;
                (stop || core.peer(n).map_or(true, |(partner, _)| partner.again)).then_some(())
            }));
            select(pause, news).await;
        }
    }

    fn acknowledged(&self, n: usize) -> u64 {
        self.core().peer(n).map_or(0, |(partner, _)| partner.acked)
    }

    /// Destination `n` has been asked, or could not be.
    fn greet(&self, n: usize) {
        if let Ok((partner, _)) = self.core().peer(n) {
            partner.greeted = true;
        }
        self.changed.notify();
    }

    fn phase(&self, n: usize, phase: Phase, error: Option<String>) {
        let now = self.side.wall.now_ms();
        if let Ok((partner, state)) = self.core().peer(n) {
            if partner.phase != phase {
                tracing::info!("group {}: replication to {}: {phase:?}", self.config.group, state.name);
                (partner.phase, partner.since_ms) = (phase, now);
            }
            if let Some(e) = error {
                if partner.last_error.as_ref() != Some(&e) {
                    tracing::warn!("group {}: replication to {}: {e}", self.config.group, state.name);
                }
                partner.last_error = Some(e);
            }
        }
        self.changed.notify();
    }

    /// Whether there was a session that has ended.
    fn ended(&self, n: usize) -> bool {
        let (mut had_it, now) = (false, self.side.wall.now_ms());
        if let Ok((partner, _)) = self.core().peer(n) {
            had_it = std::mem::take(&mut partner.connected);
            if had_it {
                partner.lost_ms = now;
            }
            partner.again = false;
            partner.comparing = false;
            partner.maps.iter_mut().for_each(Bitmap::give_up_copies);
        }
        self.changed.notify();
        had_it
    }

    /// What a destination has said, and what to type where nothing else helps.
    fn told(&self, n: usize, e: &peer::Error) -> String {
        let name = self.core().peer(n).map(|(_, state)| state.name.clone()).unwrap_or_default();
        let group = &self.config.group;
        match e {
            // Where this side stops for it, its reason says more.
            peer::Error::Refused(Refusal::Partnership | Refusal::Ended) if self.core().goes_on => format!(
                "{e}: `weft replica remove {group} --to {name}` ends it here, too, and `weft replica create` begins another"
            ),
            other => other.to_string(),
        }
    }

    /// What a refusal means for the source itself.
    async fn refused(&self, n: usize, refusal: &Refusal) -> Phase {
        let split = matches!(refusal, Refusal::SplitBrain(_) | Refusal::Undecided);
        if let Ok((partner, _)) = self.core().peer(n) {
            partner.disputed = split;
        }
        let knows = match refusal {
            Refusal::Partnership => Some(Knows::No),
            Refusal::Ended => Some(Knows::Ended),
            _ => None,
        };
        if let Some(knows) = knows {
            // A journal that fails says so itself.
            let _failed = self.learn_whether_it_knows(n, knows).await;
            return Phase::Refused;
        }
        let own = self.core().state.era();
        if let Refusal::SetBack { both, copy } = *refusal {
            if self.learn_set_back(n, both, copy) {
                self.halt(Phase::SetBack, refusal.to_string(), Some(own));
                // Opened anew, it does not go on before somebody has decided. A journal that fails says so itself.
                let _failed = self.persist(|_| ()).await;
            }
            return Phase::SetBack;
        }
        let (by, certain) = match refusal {
            Refusal::Fenced(era) => (*era, false),
            // Of two sources the later one goes on. The other is told so when it asks, and gives up or is given up for.
            Refusal::SplitBrain(era) if era.epoch < own.epoch => return Phase::Refused,
            Refusal::SplitBrain(era) => (*era, true),
            _ => return Phase::Refused,
        };
        // One that has never had a copy of what is here, refuses: this side was decided for, and does not become a copy by itself.
        let copied = matches!(self.core().state.peers.get(n), Some(Some(state)) if state.copied);
        let name = self.core().peer(n).map(|(_, state)| state.name.clone()).unwrap_or_default();
        self.give_way(by, certain || !copied, &format!("{name} says: {refusal}")).await
    }

    /// The source of this era has taken over, as `told` says: nothing is written here any more. Without a loss this side becomes a copy;
    /// where writes that were answered here may be missing there, or `decided` says so, somebody has to decide.
    async fn give_way(&self, by: Era, decided: bool, told: &str) -> Phase {
        let own = self.core().state.era();
        let split = {
            let core = self.core();
            let fill = self.log.fill();
            // Where the end of the log was lost, what came in its place is not what the other has there.
            let after = match core.state.restarted() {
                Some(era) if !core.known => by.after.min(era.after),
                _ => by.after,
            };
            let peers = || core.peers.iter().zip(&core.state.peers);
            // What one synchronous destination lacks was answered to nobody, unless it was left out. That one may be another than has
            // taken over: what it has, and the new source lacks, may have been answered.
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
            // Opened anew, it does not go on before somebody has decided. A journal that fails says so itself.
            let _failed = self.persist(|state| state.promised = by).await;
        }
        phase
    }

    /// What a source answers to another one that takes it for its destination. A copy that was promoted is believed at once: where
    /// this side cannot reach it, nothing else would tell it, and both would answer writes.
    pub(super) async fn answer_source(&self, hello: &Hello) -> Refusal {
        let own = self.core().state.era();
        let later = history::successor(&self.core().state.eras, &hello.eras);
        {
            let core = self.core();
            match &core.halted {
                _ if core.is_split() => return Refusal::Undecided,
                _ if core.is_set_back() || core.is_over() => return Refusal::Stopped,
                // It becomes its copy in a moment.
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

    /// Destination `n` has what this side has no more. Of several the one counts that has most; whether that is this one.
    fn learn_set_back(&self, n: usize, both: u64, copy: u64) -> bool {
        let mut core = self.core();
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
    }

    /// A destination is away: synchronous writes may be answered without it, where that is allowed.
    async fn lost(&self, n: usize) {
        if self.core().halted.is_some() {
            // Nothing is answered any more.
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
        // It has to be remembered before the first answer: after a crash it decides whether something may be given up.
        let remember = |state: &mut crate::state::State| {
            if let Some(Some(peer)) = state.peers.get_mut(n) {
                peer.unprotected = true;
            }
        };
        if self.persist(remember).await.is_ok() {
            if let Ok((partner, _)) = self.core().peer(n) {
                // It may be back meanwhile only by this task, which is here.
                partner.lone = true;
            }
            self.changed.notify();
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
        if let Ok((partner, _)) = self.core().peer(n) {
            partner.heard_ms = self.side.wall.now_ms();
        }
        self.learn_whether_it_knows(n, Knows::Yes).await?;
        if !self.core().replayed {
            // It knows no other source, and nothing that this side lacks. What it is sent comes from the volumes, too.
            self.greet(n);
            self.until_replayed(n).await;
            return Err(End::Again);
        }
        // They end with this session, whoever waits for what.
        let commands = self.accept_commands(n)?;
        let cursor = self.prepare(n, &link, &welcome, first_copy).await?;
        let ready = {
            let stream = pin!(self.stream(n, link, cursor));
            let copy = pin!(self.resync(n, link));
            let commands = pin!(self.carry_out(n, link, &commands));
            let watch = pin!(self.watch(n, link));
            match select(select(stream, copy), select(commands, watch)).await {
                Either::Left((Either::Left((end, _)) | Either::Right((end, _)), _)) => {
                    end.map(|never| match never {})
                }
                Either::Right((Either::Left((ready, _)), _)) => ready,
                Either::Right((Either::Right((end, _)), _)) => end.map(|never| match never {}),
            }
        };
        // Nothing else uses the link from here on, or could end this.
        Err(self.hand_over(n, peer, link, ready?).await)
    }

    /// Waits until the volumes are what the log says, or nobody needs that any more.
    async fn until_replayed(&self, n: usize) {
        let ready = || {
            let mut core = self.core();
            let over = core.halted.is_some() || core.closing;
            over || core.replayed || core.peer(n).map_or(true, |(_, state)| state.suspended)
        };
        self.changed.until(|| ready().then_some(())).await;
    }

    /// Decides what the destination needs, and begins a resync where it needs one. The first sequence to be sent.
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
        // What was sent before it was durable here is not relied on before it is.
        let sent = last.min(self.log.fill().last);
        self.log.durable_through(sent, || self.log.failure()).await.map_err(Error::Halted)?;
        let resync = {
            let mut core = self.core();
            let fill = self.log.fill();
            let members = core.state.members.clone();
            if last > fill.durable {
                // Only a disk that forgets, or an older copy of this side, makes that possible.
                let refusal = Refusal::SetBack { both: fill.durable, copy: last };
                return Err(peer::Error::Refused(refusal).into());
            }
            let (partner, state) = core.peer(n)?;
            if welcome.fresh && !first_copy {
                let empty = "the destination is empty, though its copy was finished: `weft replica remove`, then `weft replica create`";
                return Err(Error::State(empty).into());
            }
            let can_replay = last.saturating_add(1) >= fill.first && last >= partner.unreadable;
            let unknown = !can_replay && last < state.covered;
            if welcome.fresh {
                // Whatever was copied before was copied to something else.
                partner.maps.iter_mut().for_each(Bitmap::mark_all);
            } else if unknown {
                let (group, name) = (&self.config.group, &state.name);
                tracing::warn!(
                    "group {group}: {name} has lost what it had acknowledged: everything is compared"
                );
                partner.maps.iter_mut().for_each(Bitmap::mark_all);
            }
            // What it has not grown to yet may hold anything there.
            for ((map, has), member) in partner.maps.iter_mut().zip(&welcome.sizes).zip(&members) {
                map.mark(*has, member.size.saturating_sub(*has));
            }
            for (map, diverged) in partner.maps.iter_mut().zip(&diverged) {
                map.mark_all_of(diverged);
            }
            (partner.connected, partner.lost_ms) = (true, 0);
            (partner.greeted, partner.disputed) = (true, false);
            if matches!(partner.phase, Phase::Refused | Phase::SplitBrain | Phase::Superseded) {
                // It refuses no more: what was to be done about that is done.
                partner.last_error = None;
            }
            partner.again = false;
            partner.acked = last;
            partner.consistent = welcome.consistent;
            (partner.copied_bytes, partner.sent_bytes, partner.copy_began) = (0, 0, rt::now());
            match can_replay && welcome.consistent && !welcome.diverged && partner.is_clean() {
                true => None,
                false => {
                    let kind = match first_copy {
                        true if state.seeded => Sync::Seeded,
                        true => Sync::Initial,
                        // Everything, but nobody has asked for a copy of it.
                        false if partner.is_full() => Sync::Seeded,
                        false => Sync::Changed,
                    };
                    partner.consistent = false;
                    let base = if can_replay { last } else { fill.durable };
                    for header in self.log.headers(last.saturating_add(1), base) {
                        if let Some(map) = partner.maps.get_mut(usize::from(header.member)) {
                            map.mark(header.offset, header.range_len());
                        }
                    }
                    Some((base, kind))
                }
            }
        };
        self.changed.notify();
        let Some((base, kind)) = resync else {
            self.core().known = true;
            self.phase(n, Phase::ReplayingLog, None);
            self.caught_up(n);
            self.protect(n).await?;
            return Ok(last.saturating_add(1));
        };
        self.persist_bitmaps().await?;
        // It is not to be relied on until this is over.
        self.lost(n).await;
        self.in_time(link.begin(base, kind)).await?;
        // Bits are cleared from now on: they do not name what it lacks, should it come back as it was before.
        let begun = |state: &mut crate::state::State| {
            if let Some(Some(peer)) = state.peers.get_mut(n) {
                peer.covered = peer.covered.max(base);
            }
        };
        self.persist(begun).await?;
        self.core().known = true;
        let damaged = match self.core().peer(n) {
            Ok((partner, _)) => {
                partner.acked = base;
                partner.unreadable >= self.log.fill().first
            }
            Err(_) => false,
        };
        if damaged {
            // What cannot be read is not to lie in the way when this side is opened again.
            self.make_room();
        }
        self.phase(
            n,
            match kind {
                Sync::Initial => Phase::InitialBlockCopy,
                Sync::Seeded => Phase::SeededCopy,
                Sync::Changed => Phase::Resyncing,
            },
            None,
        );
        Ok(base.saturating_add(1))
    }

    /// Whether what a destination of this history has behind `last` was written here, and lost: this side was opened there with
    /// everything that it had sent. A destination of an older version does not say so itself.
    fn has_had(&self, last: u64) -> bool {
        let core = self.core();
        let epoch = core.state.era().epoch;
        let mut own = core.state.eras.iter().filter(|era| era.epoch == epoch);
        // Before the first of them another side was the source.
        own.next().is_some_and(|first| first.after < last)
            && own.find(|era| era.after == last).is_some_and(lost_nothing)
    }

    /// What the destination has changed since the histories parted, in each volume.
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

    /// The destination has what it lacked: from now on synchronous writes wait for it.
    pub(super) fn caught_up(&self, n: usize) {
        let follows = {
            let mut core = self.core();
            let last = self.log.fill().last;
            match core.peer(n) {
                Ok((partner, _)) if partner.consistent && partner.acked >= last => {
                    partner.lone = false;
                    partner.is_clean() && partner.phase != Phase::ContinuouslyReplicating
                }
                _ => false,
            }
        };
        if follows {
            if let Ok((partner, _)) = self.core().peer(n) {
                partner.last_error = None;
            }
            self.phase(n, Phase::ContinuouslyReplicating, None);
        }
    }

    /// Remembers that nothing is answered without the destination any more.
    pub(super) async fn protect(&self, n: usize) -> Result<(), Error> {
        let relies =
            |partner: &Partner, state: &PeerState| state.unprotected && !partner.lone && !state.suspended;
        if !self.core().peer(n).is_ok_and(|(partner, state)| relies(partner, state)) {
            return Ok(());
        }
        let _turn = self.journal.gate.enter().await;
        let state = {
            let mut core = self.core();
            let (partner, state) = core.peer(n)?;
            if !relies(partner, state) {
                // Somebody has suspended it meanwhile.
                return Ok(());
            }
            state.unprotected = false;
            core.state.clone()
        };
        self.journal.write_state(state).await
    }

    /// Whether writes wait for this destination, so that what is sent to it before it is durable here is answered earlier.
    fn is_awaited(&self, n: usize) -> bool {
        self.core().peer(n).is_ok_and(|(partner, state)| {
            state.mode == Mode::Synchronous && partner.consistent && !partner.lone && !state.suspended
        })
    }

    /// Makes sure that it is remembered, before the first record is sent that is not durable here.
    async fn allow_ahead(&self, n: usize) -> Result<(), Error> {
        if self.core().ahead || !self.is_awaited(n) {
            return Ok(());
        }
        self.persist(|state| state.ahead = true).await?;
        self.core().ahead = true;
        Ok(())
    }

    /// The last sequence that may be sent to this destination now.
    fn sendable(&self, n: usize) -> u64 {
        match self.core().ahead && self.is_awaited(n) {
            true => self.log.through_ahead(AHEAD_BYTES),
            false => self.log.fill().durable,
        }
    }

    /// Sends what is logged here, several appends at a time: what is durable, and to whom writes wait for, what is becoming so.
    async fn stream(&self, n: usize, link: Link<'_>, mut cursor: u64) -> Result<Infallible, End> {
        let mut window = FuturesOrdered::new();
        loop {
            self.allow_ahead(n).await?;
            while window.len() < APPENDS_IN_FLIGHT && self.sendable(n) >= cursor {
                let records = match self.gather(cursor, self.sendable(n)).await {
                    Err(Error::Log(damage)) => return Err(self.go_round(n, damage).await),
                    other => other?,
                };
                if records.is_empty() {
                    // It has left the memory, and is not durable yet.
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
            let more = pin!(self.log.changed.until(|| (self.sendable(n) >= cursor).then_some(())));
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
            if let Ok((partner, _)) = self.core().peer(n) {
                partner.acked = partner.acked.max(last);
                partner.heard_ms = now;
                partner.records_sent = partner.records_sent.saturating_add(count);
                partner.record_bytes_sent = partner.record_bytes_sent.saturating_add(bytes);
            }
            self.caught_up(n);
            self.changed.notify();
            self.protect(n).await?;
        }
    }

    /// A record that this destination lacks cannot be read from the log any more. It is in the volume: what changed from there on
    /// is copied.
    async fn go_round(&self, n: usize, damage: Damage) -> End {
        let now = self.side.wall.now_ms();
        if let Ok((partner, state)) = self.core().peer(n) {
            let why = format!("{damage}; what changed since is copied from the volumes");
            tracing::error!("group {}: replication to {}: {why}", self.config.group, state.name);
            (partner.unreadable, partner.last_error, partner.heard_ms) = (damage.last, Some(why), now);
        }
        End::Again
    }

    /// Records from `cursor` through `last`, as many as one append carries: at least one, where that is durable.
    async fn gather(&self, cursor: u64, last: u64) -> Result<Vec<Record>, Error> {
        let durable = self.log.fill().durable;
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
            // What is durable here by now: should this side come back with less, it was set back.
            (next.header.settled, next.header.claimed) = (durable, 0);
            records.push(next);
            if records.len() == APPEND_RECORDS {
                break;
            }
        }
        Ok(records)
    }

    /// Ends the session when somebody wants it to end, or the destination is not heard of any more.
    async fn watch(&self, n: usize, link: Link<'_>) -> Result<Infallible, End> {
        loop {
            let end = pin!(self.changed.until(|| {
                let mut core = self.core();
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
                    // It is told, if it can be; it would find out by itself.
                    let _told = self.in_time(link.suspend()).await;
                }
                return Err(end);
            }
            let report = self.in_time(link.beat()).await?;
            let now = self.side.wall.now_ms();
            if let Ok((partner, _)) = self.core().peer(n) {
                partner.heard_ms = now;
                partner.applied = report.applied;
            }
        }
    }
}

/// Somebody ships to this destination until it is dropped.
struct Shipping<'a>(&'a Source, usize);

impl Drop for Shipping<'_> {
    fn drop(&mut self) {
        if let Ok((partner, _)) = self.0.core().peer(self.1) {
            partner.shipping = false;
            partner.connected = false;
            partner.maps.iter_mut().for_each(Bitmap::give_up_copies);
        }
        self.0.changed.notify();
    }
}
