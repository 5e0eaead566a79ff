//! Decides which source this copy follows: hello, the begin and end of resyncs, promotion, and refusals (the crate's
//! page, "Histories"; `wire::repl::control`).

use std::pin::pin;
use std::sync::Arc;

use weft_machine::rt::{self, uncancelled};
use weft_wire::repl::MAX_SEQUENCE;
use weft_wire::repl::control::{Era, Hello, MAX_RANGES, Refusal, Sync, Welcome};

use super::waiting::Awaited;
use super::{Core, Destination, Force, phase_of};
use crate::bitmap::Bitmap;
use crate::error::{Error, Objection};
use crate::history::{self, Fork, fork, same};
use crate::journal::Journal;
use crate::peer::AHEAD_BYTES;
use crate::replay;
use crate::space;
use crate::state::{State, Tail};
use crate::status::{Mode, Phase, Role};

/// How many epochs a source may be ahead of the destination that it claims. A higher epoch was not reached by counting
/// promotions, and would leave no numbers for later sources.
pub(crate) const MAX_EPOCHS_AHEAD: u64 = 1 << 32;

/// Why a copy on a full disk is not promoted.
const FULL: &str = "a disk is full here, and what has arrived waits for it, so this copy does not become the source: make room first, and try again";

/// Session numbers per opening, so that those of two openings do not meet.
const SESSIONS_PER_LIFE: u64 = 1 << 32;

/// Whether neither the log nor the bitmap of a source of this history names what this side lacks. That is so if this
/// side has lost records and follows another history, shares none with the source, or is in the middle of a resync by
/// another source, whose bitmap alone names the missing blocks. Records of its own history are named by the source's
/// log or bitmap.
fn is_unnamed(state: &State, eras: &[Era]) -> bool {
    let (own, Some(latest)) = (state.era(), eras.last()) else { return true };
    let is_its_source = latest.epoch == own.epoch && eras.iter().any(|era| same(era, &own));
    let are_strangers = fork(&state.eras, 0, eras).is_none();
    are_strangers
        || (state.damaged && !same(&own, latest))
        || (!state.consistent && !state.gave_up && !is_its_source)
}

impl Destination {
    /// Answers a source that claims this side. A full disk is reported at once.
    pub(super) async fn hello(&self, hello: Hello) -> Result<Welcome, Refusal> {
        match self.space.unless_full(self.welcome(&hello)).await {
            Some(welcomed) => welcomed,
            None => Err(self.handle(|core| self.turn_away(core, &hello))),
        }
    }

    /// The refusal of a source whose claim waits for a full disk. A source that this side follows counts as heard from.
    fn turn_away(&self, core: &mut Core, hello: &Hello) -> Refusal {
        let now = self.side.wall.now_ms();
        // Its own source, which says hello again and again, does not settle what another one disputes.
        let was_disputed = core.disputed;
        let judged = self.judge_hello(core, hello);
        core.disputed |= was_disputed;
        if let Err(refusal) = judged {
            return refusal;
        }
        (core.heard_ms, core.heard, core.lost_ms) = (now, rt::now(), 0);
        // What its source has now cannot arrive yet.
        core.told = core.told.max(hello.last.min(MAX_SEQUENCE));
        if core.phase == Phase::WaitingForSource && core.state.consistent {
            (core.phase, core.since_ms) = (Phase::ReplayingLog, now);
        }
        Refusal::NoSpace
    }

    async fn welcome(&self, hello: &Hello) -> Result<Welcome, Refusal> {
        let Some(era) = hello.eras.last().copied() else { return Err(Refusal::Invalid) };
        let claimed = {
            // Wait for the begin or end of a resync, or a promotion, that is under way.
            let _turn = self.volumes.enter().await;
            // Requests of an earlier claim that still wait end now.
            self.handle(|core| self.claim(core, hello, era))
        };
        let (welcome, adopt) = claimed?;
        // Blocks of an earlier session must not land behind those of this one.
        self.until_has(welcome.session, Awaited::Stored).await?;
        self.recheck(welcome.session)?;
        // The claim is durable before it is confirmed, so that earlier sources are refused from then on, even after a
        // crash.
        let placed = self.log.fill().last;
        self.until_has(welcome.session, Awaited::Durable(placed)).await?;
        let (eras, sizes) = (hello.eras.clone(), hello.sizes.clone());
        // `claim` has set the promise in memory already.
        let promise = move |state: &mut State| {
            if adopt {
                state.eras = eras;
                state.gave_up = false;
                state.forget_set_back();
                // The source has never grown as far as this side had under another one. Longer it becomes when a resync
                // begins: what is new here is not what the source has there.
                let least: Vec<u64> =
                    state.members.iter().zip(&sizes).map(|(member, size)| member.size.min(*size)).collect();
                state.resize(&least);
            }
        };
        if adopt {
            self.handle(Core::forget_claims);
        }
        {
            let _turn = self.journal.gate.enter().await;
            // If this side was promoted meanwhile, it keeps the history that it began.
            self.recheck(welcome.session)?;
            if let Err(e) = self.write_state(promise).await {
                self.fail(format!("the journal has failed: {e}"));
                return Err(Refusal::Io);
            }
        }
        self.handle(Core::fit_own);
        self.recheck(welcome.session)?;
        self.phase(match welcome.consistent {
            // It lacks records until it has those that its source has reported, which may be at once.
            true => Phase::ReplayingLog,
            false => Phase::Resyncing,
        });
        Ok(welcome)
    }

    /// Refuses a source that this side does not follow, whatever else it is doing, and notes why. Returns where the
    /// histories part.
    fn judge_hello(&self, core: &mut Core, hello: &Hello) -> Result<Fork, Refusal> {
        let judged = self.judged(core, hello);
        if !matches!(judged, Err(Refusal::Session)) {
            core.disputed = matches!(judged, Err(Refusal::SplitBrain(_)));
        }
        if let Err(Refusal::Lacks { .. }) = judged {
            core.lacks = hello.eras.last().map(|era| era.epoch);
        }
        judged
    }

    fn judged(&self, core: &Core, hello: &Hello) -> Result<Fork, Refusal> {
        if core.failed.is_some() {
            return Err(Refusal::Io);
        }
        if core.leaving > 0 {
            return Err(Refusal::Session);
        }
        let state = &core.state;
        let Some(era) = hello.eras.last().copied() else { return Err(Refusal::Invalid) };
        if state.partnership != hello.partnership {
            return Err(Refusal::Partnership);
        }
        if core.retired {
            return Err(Refusal::Fenced(state.era()));
        }
        // The size of the volume counts, not that of its replicated part, which grows with the resync.
        let there = self.side.members.iter().map(|block| block.geometry().size);
        let fits = state.members.len() == hello.sizes.len() && there.zip(&hello.sizes).all(|(a, b)| a >= *b);
        if !fits {
            return Err(Refusal::Sizes(state.members.len() as u16));
        }
        if era.epoch < state.promised.epoch {
            return Err(Refusal::Fenced(history::parted(state.promised, &state.eras, &hello.eras)));
        }
        if era.epoch.saturating_sub(state.promised.epoch) > MAX_EPOCHS_AHEAD {
            return Err(Refusal::Invalid);
        }
        // Every placed record becomes durable, so it counts.
        let fill = self.log.fill();
        let fresh = !state.holds;
        if !fresh
            && !state.gave_up
            && let Some(both) = history::set_back(&state.eras, fill.last, core.claimed, &hello.eras)
        {
            return Err(Refusal::SetBack { both, copy: fill.last });
        }
        if let Some(floor) = state.floor().filter(|floor| history::end_of_epoch(state.era(), hello) < *floor)
        {
            return Err(Refusal::Lacks { copy: floor });
        }
        let goes_on = hello.eras.iter().any(|known| same(known, &state.promised))
            || (era.epoch == state.era().epoch && history::goes_on(&state.eras, &hello.eras));
        if era.epoch == state.promised.epoch && !goes_on && !state.gave_up {
            return Err(Refusal::SplitBrain(state.promised));
        }
        if (fresh || state.unfinished) && !hello.adopt {
            // The source knows a copy that was removed here. It does not know this one, which may belong to another
            // destination of it by now, and would call it consistent although records are missing.
            return Err(Refusal::Partnership);
        }
        if fresh {
            return Ok(Fork { at: 0, own_era: false });
        }
        match fork(&state.eras, fill.last, &hello.eras) {
            Some(fork) if !fork.own_era || state.gave_up || hello.adopt => Ok(fork),
            None if state.gave_up || hello.adopt => Ok(Fork { at: 0, own_era: true }),
            _ => Err(Refusal::SplitBrain(state.era())),
        }
    }

    fn claim(&self, core: &mut Core, hello: &Hello, era: Era) -> Result<(Welcome, bool), Refusal> {
        let now = self.side.wall.now_ms();
        let fork = self.judge_hello(core, hello)?;
        let state = &core.state;
        let fill = self.log.fill();
        let fresh = !state.holds;
        let sizes: Vec<u64> = state.members.iter().map(|member| member.size).collect();
        let diverged = !fresh
            && (fill.last > fork.at
                || core.own.iter().any(|map| !map.is_clean())
                || is_unnamed(state, &hello.eras));
        let welcome = Welcome {
            session: state.life.wrapping_mul(SESSIONS_PER_LIFE).wrapping_add(core.sessions.wrapping_add(1)),
            last: fill.last.min(fork.at),
            consistent: state.consistent,
            fresh,
            diverged,
            sizes,
        };
        // The claim is not durable, and so not confirmed, yet; but earlier sources are refused from now on.
        core.state.promised = era;
        core.lacks = None;
        core.sessions = core.sessions.wrapping_add(1);
        core.session = Some(welcome.session);
        core.fork = fork.at;
        core.told = hello.last.min(MAX_SEQUENCE);
        core.offered = hello.eras.clone();
        core.offered_sizes = hello.sizes.clone();
        core.first_copy = hello.adopt;
        core.mode = Some(if hello.synchronous { Mode::Synchronous } else { Mode::Asynchronous });
        (core.heard_ms, core.heard, core.lost_ms) = (now, rt::now(), 0);
        Ok((welcome, !fresh && !diverged))
    }

    pub(super) async fn begin(&self, session: u64, base: u64, sync: Sync) -> Result<(), Refusal> {
        self.check(session)?;
        let _begins = Begins::new(self);
        self.drain().await.map_err(|e| self.medium(&e))?;
        let _turn = self.volumes.enter().await;
        self.recheck(session)?;
        if let Err(e) = self.begin_at(session, base).await {
            self.fail(format!("a resync could not begin: {e}"));
            return Err(Refusal::Io);
        }
        let now = self.side.wall.now_ms();
        self.handle(|core| {
            core.direct_bytes = 0;
            core.begin_phase(phase_of(sync), now);
        });
        Ok(())
    }

    async fn begin_at(&self, session: u64, base: u64) -> Result<(), Error> {
        let goes_on = base == self.log.fill().last;
        let (eras, sizes, first_copy, life) = self.handle(|core| {
            core.claimed = core.claimed.min(base);
            core.forget_claims();
            let life = core.state.life.saturating_add(1);
            (core.offered.clone(), core.offered_sizes.clone(), core.first_copy, life)
        });
        let position = self.log.tail_after(u64::MAX).position;
        let tail = Tail { position, sequence: base.saturating_add(1), life };
        // No record may stay that a later opening would apply over the copied blocks. The source, which is connected,
        // has them all.
        self.settle(0, |state| {
            state.eras = eras;
            state.resize(&sizes);
            state.consistent = false;
            state.unfinished |= first_copy;
            state.holds = true;
            state.gave_up = false;
            state.forget_set_back();
            if !goes_on {
                state.life = life;
                state.tail = tail;
            }
        })
        .await?;
        self.handle(|core| {
            if !goes_on {
                self.log.restart(base, life);
                #[cfg(any(test, fuzzing))]
                crate::fuzz::restarted(base, life);
            }
            core.fit_own();
            core.applied = base;
            core.whole = 0;
            core.fork = core.fork.max(base);
            debug_assert!(core.session != Some(session) || core.state.eras == core.offered);
        });
        // The source has marked, durably, the ranges that only this side has changed.
        let pages = self.handle(|core| {
            let Core { state, own, .. } = core;
            let mut pages = Vec::new();
            for (member, (map, sizes)) in own.iter_mut().zip(&state.members).enumerate() {
                if map.is_clean() {
                    continue;
                }
                let clean = Bitmap::new(sizes.size, sizes.granule);
                let peers =
                    state.peers.iter().enumerate().filter_map(|(n, peer)| peer.is_some().then_some(n));
                for n in peers {
                    pages
                        .extend((0..clean.pages()).map(|page| Journal::page(state, n, member, page, &clean)));
                }
                map.clear();
            }
            pages
        });
        let _turn = self.journal.gate.enter().await;
        self.journal.write_pages(pages).await
    }

    pub(super) async fn finish(&self, session: u64, at: u64) -> Result<(), Refusal> {
        self.check(session)?;
        // No resync may begin meanwhile.
        let _turn = self.volumes.enter().await;
        self.recheck(session)?;
        if self.log.fill().durable < at {
            return Err(Refusal::Gap(self.log.fill().durable));
        }
        let whole = |state: &mut State| {
            (state.consistent, state.damaged, state.unfinished) = (true, false, false);
        };
        let finished = self.persist(whole).await;
        if let Err(e) = finished {
            self.fail(format!("the journal has failed: {e}"));
            return Err(Refusal::Io);
        }
        let now = self.side.wall.now_ms();
        self.handle(|core| {
            (core.damage, core.whole) = (None, at);
            core.begin_phase(Phase::ContinuouslyReplicating, now);
        });
        Ok(())
    }

    /// Ranges that this side has changed since the histories parted.
    #[allow(clippy::type_complexity)]
    pub(super) fn diverged(
        &self,
        session: u64,
        member: u16,
        from: u64,
    ) -> Result<(Vec<(u64, u64)>, Option<u64>), Refusal> {
        self.handle(|core| {
            self.hear(core, session)?;
            let (fill, fork) = (self.log.fill(), core.fork);
            for header in self.log.headers(fork.saturating_add(1), fill.last) {
                if let Some(map) = core.own.get_mut(usize::from(header.member)) {
                    map.mark(header.offset, header.range_len());
                }
            }
            let is_forgotten = fill.last > fork && core.state.names_behind(fill.first) > fork;
            if is_unnamed(&core.state, &core.offered) || is_forgotten {
                // Its history differs, and nothing names all of its records any more.
                core.own.iter_mut().for_each(Bitmap::mark_all);
            }
            let own = core.own.get(usize::from(member)).ok_or(Refusal::Invalid)?;
            Ok(own.ranges(from, MAX_RANGES))
        })
    }

    /// Does the slow work of an exchange of the roles in advance: applies the log, flushes the volumes, and writes the
    /// journal unchanged. A full disk is reported at once.
    pub(super) async fn prepare(self: &Arc<Self>, session: u64) -> Result<(), Refusal> {
        self.check(session)?;
        if !self.core().state.consistent {
            return Err(Refusal::Inconsistent);
        }
        let mut prepared = pin!(self.make_durable());
        while !self.space.is_wanted() {
            match rt::timeout(space::LOOK, prepared.as_mut()).await {
                Ok(done) => {
                    done.map_err(|e| self.medium(&e))?;
                    return self.recheck(session);
                }
                // The session has ended, which says nothing about when its source was heard from.
                Err(_) if self.core().session != Some(session) => return Err(Refusal::Session),
                Err(_) => {}
            }
        }
        Err(Refusal::NoSpace)
    }

    async fn make_durable(self: &Arc<Self>) -> Result<(), Error> {
        let only = self.until(|core| {
            if core.preparing.strong_count() > 0 {
                return Err(Awaited::News);
            }
            let only = Arc::new(());
            core.preparing = Arc::downgrade(&only);
            Ok(only)
        });
        let (only, destination) = (only.await, self.clone());
        // Dropping it in the middle would end the session, so it is a separate task: one at a time, however often a
        // source asks.
        let prepared = uncancelled(async move {
            let prepared = async {
                destination.drain().await?;
                destination.checkpoint().await
            };
            let done = prepared.await;
            destination.handle(|_| drop(only));
            done
        });
        prepared.await
    }

    /// The source has given up, so this runs to its end even if nobody waits for the answer.
    pub(super) async fn take_over(self: &Arc<Self>, session: u64, era: Era) -> Result<(), Refusal> {
        self.handle(|core| {
            self.hear(core, session)?;
            let ahead = era.epoch.checked_sub(core.state.promised.epoch);
            let fits = core.state.consistent
                && ahead.is_some_and(|ahead| (1..=MAX_EPOCHS_AHEAD).contains(&ahead))
                && era.after == self.log.fill().last;
            if !fits || core.leaving > 0 {
                return Err(Refusal::Inconsistent);
            }
            core.session = None;
            core.leaving = core.leaving.saturating_add(1);
            Ok(())
        })?;
        let destination = self.clone();
        let taken = uncancelled(async move {
            let _leaves = Leaves(&destination);
            destination.become_source(era.epoch, era.tag, Some(era.after)).await
        });
        taken.await.map(|_| ()).map_err(|e| self.medium(&e))
    }

    /// The current objections to its promotion.
    pub fn objections(&self) -> Vec<Objection> {
        self.objections_of(&self.core())
    }

    fn objections_of(&self, core: &Core) -> Vec<Objection> {
        let silent = rt::now().since(core.heard);
        let missing = core.missing(self.log.fill().last);
        let alive = (silent < self.config.silence).then_some(Objection::Alive(silent));
        let behind = (missing > 0).then_some(Objection::Behind(missing));
        let inconsistent = match core.is_given_up() {
            true => Some(Objection::GaveUp),
            false => (!core.state.consistent).then_some(Objection::Inconsistent),
        };
        [alive, behind, inconsistent].into_iter().flatten().collect()
    }

    /// Makes this side the source, under an era of this random tag, with every record of its log. It has to be opened
    /// again as a [`Source`](crate::source::Source). Fails if there is an objection at that moment which `force` does
    /// not override: the old source may still answer writes, or a resync is under way. Fails at once if a disk here is
    /// full.
    pub async fn promote(&self, tag: u64, force: Force) -> Result<Era, Error> {
        let epoch = self.handle(|core| {
            if let Some(why) = &core.failed {
                return Err(Error::Halted(why.clone()));
            }
            if self.space.is_wanted() {
                return Err(Error::State(FULL));
            }
            let objections = self.objections_of(core);
            if objections.iter().any(|objection| !force.passes(*objection)) {
                return Err(Error::Objections(objections));
            }
            // From here on appends and claims are refused.
            core.session = None;
            core.leaving = core.leaving.saturating_add(1);
            Ok(core.state.promised.epoch.max(core.state.era().epoch).saturating_add(1))
        })?;
        let _leaves = Leaves(self);
        self.become_source(epoch, tag, None).await
    }

    /// If `after` is given, this side must have exactly the records through it.
    async fn become_source(&self, epoch: u64, tag: u64, after: Option<u64>) -> Result<Era, Error> {
        let was_consistent = self.core().state.consistent;
        let asked = after.is_none();
        let _turn = match asked {
            true => {
                let durable = async {
                    self.drain().await?;
                    let turn = self.volumes.enter().await;
                    // What is slow or finds no room comes before the step that cannot be taken back.
                    replay::flush(&self.side).await?;
                    Ok::<_, Error>(turn)
                };
                self.space.unless_full(durable).await.ok_or(Error::State(FULL))??
            }
            // The source has given up already, so this waits for room.
            false => {
                self.drain().await?;
                self.volumes.enter().await
            }
        };
        let last = self.log.fill().last;
        {
            // A resync may have begun before this entered the gate.
            let core = self.core();
            if core.state.consistent != was_consistent || core.applied != last {
                return Err(Error::Objections(vec![Objection::Inconsistent]));
            }
        }
        if after.is_some_and(|after| after != last) {
            return Err(Error::State("the records of the destination differ from those of its source"));
        }
        let era = Era { epoch, tag, after: last };
        // Nothing else writes to a disk here: the log is applied, and nothing is placed in it.
        let _impatient = asked.then(|| Impatient::new(self));
        let before = self.journal.generation();
        let settled = self.settle(AHEAD_BYTES, |state| {
            state.role = Role::Source;
            state.consistent = true;
            state.unfinished = false;
            state.holds = true;
            state.gave_up = false;
            state.damaged = false;
            state.ahead = false;
            state.forget_set_back();
            state.told = 0;
            state.promised = era;
            state.push_era(era);
            // Destinations of its earlier time as a source are not known to follow it now.
            state.peers.clear();
        });
        match settled.await {
            Err(e) if asked => {
                let is_untouched = e.is_full() && self.journal.generation() == before;
                // A page of the journal may say that this side is a source, and the asker is told that it is none.
                if !is_untouched && let Err(e) = self.persist(|_| ()).await {
                    self.fail(format!("the journal has failed: {e}"));
                }
                return Err(if e.is_full() { Error::State(FULL) } else { e });
            }
            settled => settled?,
        }
        self.handle(|core| {
            core.retired = true;
            (core.session, core.told) = (None, 0);
        });
        Ok(era)
    }
}

/// Lets a full disk be an error, and not waited for, until it is dropped.
struct Impatient<'a>(&'a Destination);

impl<'a> Impatient<'a> {
    fn new(destination: &'a Destination) -> Impatient<'a> {
        destination.space.be_patient(false);
        Impatient(destination)
    }
}

impl Drop for Impatient<'_> {
    fn drop(&mut self) {
        if self.0.owner.is_broken() {
            return;
        }
        let core = self.0.core();
        // A side that ends or is opened again stays impatient.
        if !core.ends && !core.retired && core.failed.is_none() {
            self.0.space.be_patient(true);
        }
    }
}

/// Marks the side as becoming a source until it is dropped, also if the request was cancelled.
struct Leaves<'a>(&'a Destination);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.release(|core| core.leaving = core.leaving.saturating_sub(1));
    }
}

/// Marks a resync as about to begin until it is dropped.
struct Begins<'a>(&'a Destination);

impl<'a> Begins<'a> {
    fn new(destination: &'a Destination) -> Begins<'a> {
        destination.handle(|core| core.beginning = core.beginning.saturating_add(1));
        Begins(destination)
    }
}

impl Drop for Begins<'_> {
    fn drop(&mut self) {
        self.0.release(|core| core.beginning = core.beginning.saturating_sub(1));
    }
}
