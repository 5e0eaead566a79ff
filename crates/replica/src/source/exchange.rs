//! Exchanges the roles: a destination becomes the source in this side's place (docs/replication.md, "Exchanging the
//! roles").
//!
//! ```text
//! get_ready   in the session, beside the stream: may be dropped at any moment without effect
//!             destination prepares │ writes wait │ it has everything, prepares again │ both journals were written just now
//! hand_over   in the session's place, never dropped: this side gives up, durably │ take over, until that is answered
//! ```
//!
//! Everything that can take long or fail comes first. Then only one write of the state remains on each side.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::rt;
use weft_wire::repl::control::{Era, Hello, Refusal};

use super::session::End;
use super::{Core, Source};
use crate::answer::Answer;
use crate::error::Error;
use crate::peer::{self, Link, Peer};
use crate::status::{Mode, Phase, Role};

/// Why nothing is written any more after a switch.
pub(super) const GIVEN_UP: &str = "the roles were exchanged: this side is a destination now";

/// Why a command to a destination is not carried out.
pub(super) const DOES_NOT_FOLLOW: &str =
    "the destination does not follow at present: `weft replica status` says why";

/// How long writes wait for the roles to be exchanged, and how long the destination may prepare before they do.
const QUIET_FOR: Duration = Duration::from_secs(30);

/// How often a full disk is checked for meanwhile.
const SPACE_LOOK: Duration = Duration::from_millis(100);

/// How many of its time-outs a destination that does not answer is asked to take over, once this side has given up.
const ASKS_FOR: u32 = 3;

/// Held by the only exchange of roles.
#[derive(Debug)]
pub(super) struct Exclusive(#[allow(dead_code)] Arc<()>);

impl Exclusive {
    pub(super) fn of(core: &mut Core) -> Result<Exclusive, Error> {
        if core.exchange.strong_count() > 0 || core.given_up {
            return Err(Error::State("the roles are being exchanged already"));
        }
        let one = Arc::new(());
        core.exchange = Arc::downgrade(&one);
        Ok(Exclusive(one))
    }
}

/// Everything is ready for the destination to take over. Writes wait.
pub(super) struct Ready<'a> {
    tag: u64,
    /// The last record; both sides have it in their volumes.
    after: u64,
    answer: Answer<Result<(), Error>>,
    _exclusive: Exclusive,
    _quiet: Quiet<'a>,
}

impl Source {
    /// Prepares the exchange. `None`: it does not take place, and the asker knows why.
    pub(super) async fn get_ready(
        &self,
        n: usize,
        link: Link<'_>,
        tag: u64,
        answer: Answer<Result<(), Error>>,
        exclusive: Exclusive,
    ) -> Option<Ready<'_>> {
        let ready = match select(pin!(self.quiet_and_equal(n, link)), pin!(answer.unwanted())).await {
            Either::Left((ready, _)) => ready,
            Either::Right(_) => return None,
        };
        match ready {
            Ok((after, quiet)) => Some(Ready { tag, after, answer, _exclusive: exclusive, _quiet: quiet }),
            Err(e) => {
                drop(exclusive);
                answer.give(Err(e));
                None
            }
        }
    }

    async fn quiet_and_equal(&self, n: usize, link: Link<'_>) -> Result<(u64, Quiet<'_>), Error> {
        // A slow disk does most of its work before writes wait.
        self.within(self.prepared(link)).await?;
        let quiet = Quiet::enter(self);
        let after = self.within(self.equal(n, link)).await?;
        Ok((after, quiet))
    }

    /// Carries out a step within [`QUIET_FOR`], as long as the disks here have room.
    async fn within<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let (mut step, until) = (pin!(step), rt::now() + QUIET_FOR);
        loop {
            if self.space.is_wanted() {
                return Err(Error::State(
                    "a disk is full here, and writes wait for it, so the roles cannot be exchanged: make room first",
                ));
            }
            if rt::now() >= until {
                return Err(Error::State(
                    "the destination did not get through what it lacks within 30 s: try again when `weft replica status` shows less lag",
                ));
            }
            if let Ok(done) = rt::timeout(SPACE_LOOK, step.as_mut()).await {
                return done;
            }
        }
    }

    async fn prepared(&self, link: Link<'_>) -> Result<(), Error> {
        link.prepare().await.map_err(|e| match e {
            peer::Error::Refused(Refusal::NoSpace) => Error::State(
                "a disk of the destination is full, and what it lacks waits for that, so the roles cannot be exchanged: make room there \
                 first",
            ),
            peer::Error::Unknown => Error::State(
                "the destination's version of Weft is older and does not prepare for an exchange of the roles: update it first",
            ),
            other => other.into(),
        })
    }

    /// Waits, while writes are held back, until both sides have the same records, durably, and both journals could be
    /// written. Returns the last record.
    async fn equal(&self, n: usize, link: Link<'_>) -> Result<u64, Error> {
        let drained = self.owner.until(|| {
            let core = self.core();
            if let Some(halt) = &core.halted {
                return Some(Err(Error::Halted(halt.why.clone())));
            }
            let idle = core.active.is_empty();
            let fill = self.log.fill();
            match core.peer(n) {
                Err(e) => Some(Err(e)),
                Ok((partner, _)) => {
                    let follows = partner.consistent && !partner.again && partner.acked >= fill.last;
                    (idle && follows).then_some(Ok(fill.last))
                }
            }
        });
        let after = drained.await?;
        self.checkpoint().await?;
        self.persist(|_| ()).await?;
        self.prepared(link).await?;
        // It may have been reopened since, and have lost records: then nobody would be the source.
        let report = self.in_time(link.beat()).await?;
        let equal = report.consistent && (report.last, report.applied) == (after, after);
        if equal { Ok(after) } else { Err(Error::State(DOES_NOT_FOLLOW)) }
    }

    /// Gives up the role of the source for good, and has the destination take over. Nobody drops this.
    pub(super) async fn hand_over(&self, n: usize, peer: &dyn Peer, link: Link<'_>, ready: Ready<'_>) -> End {
        let Ready { tag, after, answer, _exclusive, _quiet } = ready;
        let era = match self.handle(|core| core.give_up(n, tag, after)) {
            Ok(era) => era,
            Err(e) => {
                answer.give(Err(e));
                return End::Again;
            }
        };
        // From here on there are never two sources. A disk that has just become full is an error, and not waited for.
        self.space.be_patient(false);
        if let Err(e) = self.persist(|state| state.role = Role::Destination).await {
            answer.give(Err(e));
            return End::Stopped;
        }
        let taken = self.have_it_take_over(n, peer, link, era).await.map_err(|e| {
            let (name, group) = (self.name_of(n), &self.config.group);
            let limit = self.config.timeout.saturating_mul(ASKS_FOR);
            Error::GivenUp(format!(
                "this side has given up, and {name} has not said within {limit:?} that it is the source: {e}. Unless `weft replica \
                 status` there says that it is, `weft replica switch {group} --failover` there makes it the source"
            ))
        });
        let why = taken.as_ref().map_or_else(Error::to_string, |()| GIVEN_UP.into());
        self.halt(Phase::Superseded, why, Some(era));
        answer.give(taken);
        End::Stopped
    }

    /// Asks until the answer is known. If an answer was lost, the next hello tells; asking twice is harmless.
    async fn have_it_take_over(
        &self,
        n: usize,
        peer: &dyn Peer,
        link: Link<'_>,
        era: Era,
    ) -> Result<(), peer::Error> {
        let until = rt::now() + self.config.timeout.saturating_mul(ASKS_FOR);
        let mut told = self.in_time(link.take_over(era)).await;
        while let Err(why) = told {
            if rt::now() >= until {
                return Err(why);
            }
            tracing::warn!("group {}: {} is to take over: {why}", self.config.group, self.name_of(n));
            rt::sleep(self.config.retry).await;
            told = self.ask_again(n, peer, era).await;
        }
        Ok(())
    }

    async fn ask_again(&self, n: usize, peer: &dyn Peer, era: Era) -> Result<(), peer::Error> {
        let Ok(hello) = self.hello(n) else { return Err(Refusal::Partnership.into()) };
        match self.in_time(Link::hello(peer, hello)).await {
            Ok((link, welcome)) if welcome.consistent && !welcome.diverged && welcome.last == era.after => {
                self.in_time(link.take_over(era)).await
            }
            Ok(_) => Err(Refusal::Inconsistent.into()),
            Err(fenced @ peer::Error::Refused(Refusal::Fenced(_))) => {
                // If it is the source, it has taken over, and only the answer was lost. It may have begun an era since
                // by being reopened.
                let report = self.in_time(peer::status(peer)).await?;
                let has_taken_over = report.source && report.epoch >= era.epoch;
                if has_taken_over { Ok(()) } else { Err(fenced) }
            }
            Err(e) => Err(e),
        }
    }

    fn name_of(&self, n: usize) -> String {
        self.core().peer(n).map_or_else(|_| "the destination".into(), |(_, state)| state.name.clone())
    }

    /// The hello of this side to destination `n`.
    pub(super) fn hello(&self, n: usize) -> Result<Hello, Error> {
        let core = self.core();
        let fill = self.log.fill();
        let state = core.state.clone();
        let (_, peer) = core.peer(n)?;
        Ok(Hello {
            partnership: state.partnership,
            first: fill.first,
            last: fill.durable,
            synchronous: peer.mode == Mode::Synchronous,
            adopt: !peer.copied,
            sizes: state.members.iter().map(|member| member.size).collect(),
            eras: state.eras,
        })
    }

    /// Whether this side has given up the role of the source for good.
    pub fn has_given_up(&self) -> bool {
        self.core().given_up
    }
}

impl Core {
    /// The step after which this side is no source; refused if the state has changed since it was ready.
    fn give_up(&mut self, n: usize, tag: u64, after: u64) -> Result<Era, Error> {
        if let Some(halt) = &self.halted {
            return Err(Error::Halted(halt.why.clone()));
        }
        let ends = self.closing;
        let epoch = self.state.era().epoch.saturating_add(1);
        let idle = self.active.is_empty();
        let (partner, state) = self.peer(n)?;
        let follows = partner.consistent && !partner.again && partner.acked == after && !state.suspended;
        if ends || !idle || !follows {
            return Err(Error::State(DOES_NOT_FOLLOW));
        }
        self.given_up = true;
        Ok(Era { epoch, tag, after })
    }
}

/// Holds back writes until it is dropped.
struct Quiet<'a>(&'a Source);

impl<'a> Quiet<'a> {
    fn enter(source: &'a Source) -> Quiet<'a> {
        source.handle(|core| core.quiet = true);
        Quiet(source)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A source that is being closed keeps holding them back.
        self.0.release(|core| core.quiet = core.closing);
    }
}
