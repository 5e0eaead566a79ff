//! Operations of an administrator on a source: add and remove destinations, suspend, verify, and decide which side
//! counts.
//!
//! The exchange of roles is in `exchange`.

use std::pin::pin;

use futures_util::future::{Either, select};
use weft_machine::rt;
use weft_wire::repl::control::Era;

use super::exchange::{DOES_NOT_FOLLOW, Exclusive, Ready};
use super::session::End;
use super::{Core, Halt, Partner, Source};
use crate::answer::{Answer, question};
use crate::bitmap::Bitmap;
use crate::error::Error;
use crate::peer::Link;
use crate::replay;
use crate::space;
use crate::state::{MAX_NAME, MAX_PEERS, PeerState, State};
use crate::status::{Mode, Phase, Role, Verified};

/// The most commands that wait for a session.
const MOST_COMMANDS: usize = 16;

/// A destination to add.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Its name, for people: at most [`MAX_NAME`] bytes, and unique.
    pub name: String,
    /// When writes are answered.
    pub mode: Mode,
    /// How it gets its first copy.
    pub first: First,
}

/// How a destination gets its first copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// Everything but holes is copied.
    Copy,
    /// Everything is compared, and differing ranges are copied.
    Seeded,
    /// It has a copy: it was the source of this group until this side was promoted, or another destination of that
    /// source.
    Partner,
}

/// Work for a session.
#[derive(Debug)]
pub(super) enum Command {
    Verify { repair: bool, answer: Answer<Result<Verified, Error>> },
    Switch { tag: u64, answer: Answer<Result<(), Error>>, exclusive: Exclusive },
}

impl Source {
    /// Adds a destination and returns its number. Its first copy begins when [`Source::ship`] runs for it.
    pub async fn add_peer(&self, config: PeerConfig) -> Result<usize, Error> {
        let PeerConfig { name, mode, first } = config;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::Limit(format!("a destination's name has 1 to {MAX_NAME} bytes")));
        }
        let n = self.handle(|core| {
            let known = |p: &Option<PeerState>| p.as_ref().is_some_and(|p| p.name == name);
            if core.state.peers.iter().any(known) {
                return Err(Error::Limit(format!("there is a destination {name:?} already")));
            }
            let n = core.peers.iter().position(Option::is_none).unwrap_or(core.peers.len());
            if n == MAX_PEERS {
                return Err(Error::Limit(format!("a source has at most {MAX_PEERS} destinations")));
            }
            let after = core.state.era().after;
            let maps = core.state.members.iter().map(|member| {
                let mut map = Bitmap::new(member.size, member.granule);
                map.mark_all();
                if first == First::Partner {
                    // The log holds every record since this era began: see the check below.
                    map.clear();
                }
                map
            });
            let maps: Vec<Bitmap> = maps.collect();
            let fill = self.log.fill();
            if first == First::Partner && fill.first.saturating_sub(1) > after {
                let gone = "what changed since this side was promoted has left the log: add the destination as seeded";
                return Err(Error::State(gone));
            }
            let state = PeerState {
                name,
                mode,
                seeded: first == First::Seeded,
                copied: first == First::Partner,
                unprotected: first == First::Partner,
                suspended: false,
                may_be_gone: true,
                // Older records that the log still has are sent again: a source may have lost them after it had sent
                // them.
                covered: if first == First::Partner { after.min(fill.first.saturating_sub(1)) } else { 0 },
                verified: None,
            };
            let partner = Partner::new(&state, maps, self.side.wall.now_ms());
            put(&mut core.peers, n, partner);
            put(&mut core.state.peers, n, state);
            Ok(n)
        })?;
        // The bitmap first: a state that names the destination relies on it.
        self.persist_bitmaps().await?;
        self.persist(|_| ()).await?;
        Ok(n)
    }

    /// Forgets a destination. It keeps what it has.
    pub async fn remove_peer(&self, n: usize) -> Result<(), Error> {
        self.core().peer(n)?;
        self.forget_peers(&[n]).await
    }

    /// Forgets all other destinations, in one write, and returns their names.
    pub async fn keep_destinations(&self, is_kept: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
        let names = |(n, peer): (usize, &Option<PeerState>)| peer.as_ref().map(|peer| (n, peer.name.clone()));
        let known: Vec<_> = self.core().state.peers.iter().enumerate().filter_map(names).collect();
        let (numbers, names): (Vec<_>, Vec<_>) = known.into_iter().filter(|(_, name)| !is_kept(name)).unzip();
        if numbers.is_empty() {
            return Ok(names);
        }
        self.forget_peers(&numbers).await?;
        Ok(names)
    }

    /// Forgets destinations on disk, and then in one event: until then writes are answered only if they have them, and after it
    /// nothing of the log is kept for them.
    async fn forget_peers(&self, numbers: &[usize]) -> Result<(), Error> {
        let _turn = self.journal.gate.enter().await;
        let mut state = self.core().state.clone();
        numbers.iter().for_each(|n| drop(take(&mut state.peers, *n)));
        self.write_state(state).await?;
        let gone = self.handle(|core| {
            core.make_way();
            numbers.iter().for_each(|n| drop(take(&mut core.state.peers, *n)));
            numbers.iter().filter_map(|n| take(&mut core.peers, *n)).collect::<Vec<Partner>>()
        });
        // This answers their commands, so it is not part of the event.
        drop(gone);
        Ok(())
    }

    /// Sends nothing until [`Source::resume`]; the source remembers what is written meanwhile.
    pub async fn suspend(&self, n: usize) -> Result<(), Error> {
        self.set_suspended(n, true).await
    }

    /// Ends [`Source::suspend`].
    pub async fn resume(&self, n: usize) -> Result<(), Error> {
        self.set_suspended(n, false).await
    }

    async fn set_suspended(&self, n: usize, suspended: bool) -> Result<(), Error> {
        self.core().peer(n)?;
        let change = |state: &mut State| {
            if let Some(Some(peer)) = state.peers.get_mut(n) {
                peer.suspended = suspended;
                // Writes do not wait for a suspended destination.
                peer.unprotected |= suspended && peer.mode == Mode::Synchronous;
            }
        };
        self.persist(change).await?;
        let changed = self.on_peer(n, |partner, _| {
            if suspended {
                partner.lone = true;
                (partner.phase, partner.since_ms) = (Phase::Suspended, self.side.wall.now_ms());
            } else if partner.phase == Phase::Suspended {
                partner.phase = Phase::WaitingForDestination;
            }
        });
        changed.ok_or(Error::NoPeer(n))
    }

    /// Compares everything with destination `n` while both are in use. With `repair`, differing ranges are copied
    /// again.
    pub async fn verify(&self, n: usize, repair: bool) -> Result<Verified, Error> {
        let (answer, asker) = question();
        self.command(n, |_| Ok(Command::Verify { repair, answer }))?;
        asker.answer().await.unwrap_or(Err(Error::State("the destination was lost meanwhile")))
    }

    /// Exchanges the roles: destination `n` becomes the source, under an era of this random tag, with every write that
    /// was answered here. This side has to be opened again, as a destination. An error leaves everything as it was,
    /// unless [`Source::has_given_up`].
    pub async fn switch(&self, n: usize, tag: u64) -> Result<(), Error> {
        let (answer, asker) = question();
        self.command(n, |core| {
            let (partner, _) = core.peer(n)?;
            let verifies = |command: &Command| matches!(command, Command::Verify { .. });
            if partner.comparing || partner.commands.iter().any(verifies) {
                return Err(Error::State(
                    "the destination is being compared: try again when `weft replica verify` is done; `weft replica suspend` and \
                     `weft replica resume` end it",
                ));
            }
            Ok(Command::Switch { tag, answer, exclusive: Exclusive::of(core)? })
        })?;
        asker.answer().await.unwrap_or(Err(Error::State("the destination was lost meanwhile")))
    }

    /// Queues a command for the session of destination `n`.
    fn command(
        &self,
        n: usize,
        command: impl FnOnce(&mut Core) -> Result<Command, Error>,
    ) -> Result<(), Error> {
        self.handle(|core| {
            let (partner, _) = core.peer(n)?;
            if !partner.follows() {
                return Err(Error::State(DOES_NOT_FOLLOW));
            }
            if partner.commands.len() >= MOST_COMMANDS {
                return Err(Error::State("other commands wait for this destination already"));
            }
            let command = command(core)?;
            let (partner, _) = core.peer_mut(n)?;
            partner.commands.push_back(command);
            partner.commands_left = partner.commands_left.wrapping_add(1);
            Ok(())
        })
    }

    /// Carries out commands over the link, until the destination is ready to take over.
    pub(super) async fn carry_out(&self, n: usize, link: Link<'_>) -> Result<Ready<'_>, End> {
        loop {
            let command = self.owner.until(|| {
                if self.core().peer(n).is_ok_and(|(partner, _)| partner.commands.is_empty()) {
                    return None;
                }
                let next = self.on_peer(n, |partner, _| {
                    let command = partner.commands.pop_front()?;
                    partner.comparing = matches!(command, Command::Verify { .. });
                    Some(command)
                });
                next.flatten()
            });
            match command.await {
                Command::Verify { repair, answer } => {
                    let compared = {
                        let compared = pin!(self.compare_all(n, link, repair));
                        match select(compared, pin!(answer.unwanted())).await {
                            Either::Left((compared, _)) => Some(compared),
                            Either::Right(_) => None,
                        }
                    };
                    match compared {
                        Some(Ok(verified)) => {
                            // It is durable before the answer, because the ranges still differ after a restart.
                            let found = verified.clone();
                            let remembered = self.persist(|state| {
                                if let Some(Some(peer)) = state.peers.get_mut(n) {
                                    peer.verified = Some(found);
                                }
                            });
                            answer.give(remembered.await.map(|()| verified));
                        }
                        Some(Err(end)) => {
                            answer.give(Err(Error::State("the comparison was interrupted")));
                            return Err(end);
                        }
                        None => {}
                    }
                    // From here on the session may end, and this with it: marked ranges are copied in the next one.
                    self.on_peer(n, |partner, _| partner.comparing = false);
                }
                Command::Switch { tag, answer, exclusive } => {
                    if let Some(ready) = self.get_ready(n, link, tag, answer, exclusive).await {
                        return Ok(ready);
                    }
                }
            }
        }
    }

    /// Carries out a decision of an administrator, who is told of a full disk. Nobody else waits for such a decision.
    pub async fn unless_full(&self, decision: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        self.space.unless_full(decision).await.ok_or(Error::State(space::FULL))?
    }

    /// Makes a source that was superseded, or that does not count after a split, a destination: records that only it
    /// has will be overwritten. It has to be opened again as a [`Destination`](crate::destination::Destination). If it
    /// was set back, it then refuses sources that lack the records of its copy.
    pub async fn demote(&self) -> Result<(), Error> {
        self.become_copy(false).await
    }

    /// Does the same, but the destination follows any source.
    pub async fn demote_for_any(&self) -> Result<(), Error> {
        self.become_copy(true).await
    }

    async fn become_copy(&self, of_any: bool) -> Result<(), Error> {
        let (halted, set_back) = match &self.core().halted {
            Some(Halt { phase: Phase::Superseded | Phase::SplitBrain, .. }) => (true, false),
            Some(Halt { phase: Phase::SetBack, .. }) => (true, true),
            _ => (false, false),
        };
        if !halted {
            return Err(Error::State(
                "no other source has taken over: `weft replica switch` exchanges the roles",
            ));
        }
        self.handle(|core| {
            // From now on the bitmaps name the ranges that only this side may have changed, whatever leaves its log.
            let fill = self.log.fill();
            let Core { state, peers, .. } = core;
            if peers.iter().all(Option::is_none) {
                return Err(Error::State(
                    "this side has no bitmap to remember by what only it has: format it anew",
                ));
            }
            for partner in peers.iter_mut().flatten() {
                for header in self.log.headers(fill.first, fill.last) {
                    if let Some(map) = partner.maps.get_mut(usize::from(header.member)) {
                        map.mark(header.offset, header.range_len());
                    }
                }
            }
            debug_assert_eq!(state.role, Role::Source);
            Ok(())
        })?;
        let _turn = self.journal.gate.enter().await;
        self.write_bitmaps().await?;
        self.decide(|state| {
            state.role = Role::Destination;
            state.gave_up = true;
            state.consistent = false;
            if of_any || !set_back {
                state.forget_set_back();
            }
            // The volumes may be older or newer than the journal, so the bitmaps may not name every change.
            state.damaged |= set_back;
        })
        .await
    }

    /// Makes a decision durable, and then known: one that could not be written can be repeated, or replaced by the other.
    /// Which page was written then, the next opening shows. The caller is in the journal's gate.
    async fn decide(&self, change: impl Fn(&mut State)) -> Result<(), Error> {
        let mut state = self.core().state.clone();
        change(&mut state);
        self.write_state(state).await?;
        self.handle(|core| change(&mut core.state));
        Ok(())
    }

    /// Gives up in favour of the other side: a source that goes on, though a destination refuses it because both sides
    /// were written to, becomes a destination. It has to be opened again as one.
    pub async fn give_up(&self) -> Result<(), Error> {
        if !self.is_disputed() {
            return Err(Error::State("no destination says that both sides were written to"));
        }
        self.halt(Phase::SplitBrain, "this side has given up: the other one counts".into(), None);
        // Placed records must be in the log before `demote` marks their ranges.
        let idle = self.owner.until(|| self.core().active.is_empty().then_some(()));
        let _failed = rt::timeout(self.config.timeout, idle).await;
        self.demote().await
    }

    /// Decides a split in favour of this side: it begins an era, of this random tag, above the other side's, whose own
    /// writes will be overwritten once it is demoted. Replication has to be started again.
    pub async fn overrule(&self, tag: u64) -> Result<(), Error> {
        let by = match &self.core().halted {
            Some(Halt {
                phase: Phase::SplitBrain | Phase::Superseded | Phase::SetBack,
                by: Some(by),
                ..
            }) => *by,
            _ => return Err(Error::State("there is no other source to overrule")),
        };
        // The era has to begin behind the last record that is there after a crash as well.
        let after = self.log.fill().last;
        self.log.durable_through(after).await?;
        // The log may have failed behind that record.
        if let Some(why) = self.log.failure() {
            return Err(Error::Halted(why));
        }
        let begin = |state: &mut State| {
            let epoch = by.epoch.max(state.era().epoch).saturating_add(1);
            let era = Era { epoch, tag, after };
            state.push_era(era);
            state.promised = era;
            state.forget_set_back();
        };
        let _turn = self.journal.gate.enter().await;
        self.decide(begin).await?;
        self.handle(|core| core.halted = None);
        Ok(())
    }

    /// Writes nothing to the journal once this has returned: the group is opened again. Commands to this source are
    /// refused with that reason.
    pub(crate) async fn retire(&self) {
        self.space.be_patient(false);
        self.journal.retire().await;
    }

    /// Ends replication and empties the log as far as possible, so that the next opening is quick. Writes fail from now
    /// on.
    pub async fn close(&self) -> Result<(), Error> {
        self.space.be_patient(false);
        self.handle(|core| (core.closing, core.quiet) = (true, true));
        let idle = self.owner.until(|| {
            let core = self.core();
            (core.halted.is_some() || core.active.is_empty()).then_some(())
        });
        idle.await;
        let closed = self.put_away_log().await;
        match &closed {
            Ok(()) => self.halt(Phase::Suspended, "it was closed".into(), None),
            Err(e) => self.halt(Phase::Failed, format!("it could not be closed: {e}"), None),
        }
        closed
    }

    /// Empties the log as far as possible; the volumes have the rest of it, durably.
    async fn put_away_log(&self) -> Result<(), Error> {
        self.checkpoint().await?;
        let fill = self.log.fill();
        if fill.first <= fill.last {
            // A destination lacks the records that stay. If the group ends, the log goes, and the volumes have them
            // alone.
            return replay::flush(&self.side).await;
        }
        // Every record that was sent is durable.
        self.persist(|state| (state.closed, state.ahead) = (true, false)).await
    }
}

/// Puts an element at an existing index, or at the next one.
fn put<T>(all: &mut Vec<Option<T>>, n: usize, one: T) {
    match all.get_mut(n) {
        Some(place) => *place = Some(one),
        None => all.push(Some(one)),
    }
}

/// Removes an element; the others keep their numbers.
fn take<T>(all: &mut [Option<T>], n: usize) -> Option<T> {
    all.get_mut(n).and_then(Option::take)
}
