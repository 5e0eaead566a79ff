//! Who waits for the core of a destination, and whom an event wakes.
//!
//! A task says what it waits for: mostly a sequence, which is to be placed, durable or applied. The waits are kept in the
//! core, under its lock, so nothing can change between a look and the wait that follows it. An event wakes those who wait
//! for what it has brought about, so n appends cause n wake-ups. An event that changes who is served, or whether anybody
//! is, wakes everybody: it is rare, and may have ended any wait.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use weft_wire::repl::control::Refusal;

use super::{Core, Destination};
use crate::log::Fill;
use crate::owner::{Owned, Wakes, replace};
#[cfg(debug_assertions)]
use crate::status::{Phase, Role};

/// What a task waits for. Those up to [`Awaited::Stored`] are for requests of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Awaited {
    /// A record of this sequence can be placed: the one before it is, and the log has room.
    Turn(u64),
    /// Everything through this sequence is durable in the log.
    Durable(u64),
    /// Everything through this sequence is in the volumes.
    Applied(u64),
    /// No blocks are being written to the volumes.
    Stored,
    /// The log has durable records that are not applied; or others have been applied, or the log was emptied.
    Unapplied,
    /// Another [`Outline`].
    News,
}

/// The waits of one destination.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Each with a number of its own: those who wait for the same are woken in the order in which they came.
    wakers: BTreeMap<(Awaited, u64), Waker>,
    next: u64,
    /// The log when [`Owned::settle`] looked last,
    log: Fill,
    /// and through which sequence it was applied.
    applied: u64,
}

impl Waiting {
    pub fn new(log: Fill, applied: u64) -> Waiting {
        Waiting { wakers: BTreeMap::new(), next: 0, log, applied }
    }

    /// Ends the waits between these, both included.
    fn end(&mut self, from: Awaited, through: Awaited, wakes: &mut Wakes) {
        let range = (from, 0)..=(through, u64::MAX);
        while let Some((wait, _)) = self.wakers.range(range.clone()).next() {
            let wait = *wait;
            wakes.extend(self.wakers.remove(&wait));
        }
    }
}

/// Everything in the core that a task waits for and that has no [`Awaited`] of its own.
#[derive(PartialEq, Debug)]
pub(super) struct Outline {
    session: Option<u64>,
    promised_epoch: u64,
    lacks: Option<u64>,
    floor: Option<u64>,
    has_failed: bool,
    is_retired: bool,
    is_closing: bool,
    begins: bool,
    prepares: bool,
}

impl Owned for Core {
    type Outline = Outline;
    type News = ();

    fn renew(&self, outline: &mut Outline) -> Option<()> {
        replace(outline, self.outline())
    }

    fn outline(&self) -> Outline {
        Outline {
            session: self.session,
            promised_epoch: self.state.promised.epoch,
            lacks: self.lacks,
            floor: self.state.floor(),
            has_failed: self.failed.is_some(),
            is_retired: self.retired,
            is_closing: self.closing,
            begins: self.beginning > 0,
            prepares: self.preparing.strong_count() > 0,
        }
    }

    fn settle(&mut self, is_news: bool) -> Wakes {
        let mut wakes = Wakes::default();
        let (log, applied) = (self.log, self.applied);
        let before = std::mem::replace(&mut self.waiting.log, log);
        let has_moved = (before.durable, self.waiting.applied) != (log.durable, applied);
        self.waiting.applied = applied;
        if is_news {
            wakes.extend(std::mem::take(&mut self.waiting.wakers).into_values());
            return wakes;
        }
        let turn = match (before.first, before.last) != (log.first, log.last) {
            // The log has made room, or another record was placed.
            true => log.last.saturating_add(1),
            false => log.last,
        };
        // A full disk keeps the log full: all appends look again, and those with records left are refused.
        let turn = if self.is_full { u64::MAX } else { turn };
        self.waiting.end(Awaited::Turn(0), Awaited::Turn(turn), &mut wakes);
        self.waiting.end(Awaited::Durable(0), Awaited::Durable(log.durable), &mut wakes);
        self.waiting.end(Awaited::Applied(0), Awaited::Applied(applied), &mut wakes);
        if self.has(Awaited::Stored) {
            self.waiting.end(Awaited::Stored, Awaited::Stored, &mut wakes);
        }
        if has_moved || self.has(Awaited::Unapplied) {
            self.waiting.end(Awaited::Unapplied, Awaited::Unapplied, &mut wakes);
        }
        wakes
    }

    #[cfg(debug_assertions)]
    fn everyone(&mut self) -> Wakes {
        let mut wakes = Wakes::default();
        wakes.extend(std::mem::take(&mut self.waiting.wakers).into_values());
        wakes
    }

    #[cfg(debug_assertions)]
    fn check(&self) {
        let Waiting { wakers, .. } = &self.waiting;
        let forgotten = wakers.keys().find(|(awaited, _)| self.has(*awaited));
        assert!(forgotten.is_none(), "a task waits for what it has: {forgotten:?}");
        let mut of_a_session = wakers.range(..(Awaited::Unapplied, 0)).map(|(wait, _)| wait);
        if self.session.is_none() || self.failed.is_some() {
            let waits = of_a_session.next();
            assert!(waits.is_none(), "a request waits though nobody is served: {waits:?}");
        }
        let turns = wakers.range(..(Awaited::Durable(0), 0)).count();
        assert!(turns == 0 || !self.is_full, "an append waits for a full disk");
        assert!(turns == 0 || self.beginning == 0, "an append waits for a log that starts over");
        assert!(turns <= self.appends, "more appends wait than there are");
        assert!(self.appends <= super::MAX_WAITING, "more appends than may wait");
        assert!(self.log.durable <= self.log.last, "what was not placed is durable");
        assert!(self.applied <= self.log.durable, "what is not durable was applied");
        assert!(
            self.session.is_none() || self.leaving == 0,
            "a source is served by a side that is to be one"
        );
        assert!(!self.retired || self.session.is_none(), "a source is served by another one");
        assert!(!self.retired || self.state.role == Role::Source, "it is a source, and its state is of none");
        assert_eq!(self.failed.is_some(), self.phase == Phase::Failed, "it has stopped, or has not");
    }
}

impl Core {
    /// Whether this has come about.
    pub(super) fn has(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Turn(sequence) => sequence <= self.log.last,
            Awaited::Durable(sequence) => sequence <= self.log.durable,
            Awaited::Applied(sequence) => sequence <= self.applied,
            Awaited::Stored => self.storing == 0,
            Awaited::Unapplied => self.applied < self.log.durable,
            Awaited::News => false,
        }
    }
}

impl Destination {
    /// Waits until `look` has an answer. It looks at once, and whenever what it lacks may have come about.
    pub(super) async fn until<T>(&self, mut look: impl FnMut(&mut Core) -> Result<T, Awaited>) -> T {
        let mut wait = Wait::new(self);
        poll_fn(|cx| {
            self.handle(|core| {
                wait.leave(core);
                match look(core) {
                    Ok(answer) => Poll::Ready(answer),
                    Err(awaited) => {
                        wait.enter(core, awaited, cx.waker());
                        Poll::Pending
                    }
                }
            })
        })
        .await
    }

    /// Waits until this has come about, or the session is over.
    pub(super) async fn until_has(&self, session: u64, awaited: Awaited) -> Result<(), Refusal> {
        self.until(|core| match core.has(awaited) {
            true => Ok(Ok(())),
            false => match self.admit(core, session) {
                Ok(()) => Err(awaited),
                Err(refusal) => Ok(Err(refusal)),
            },
        })
        .await
    }
}

/// A wait, until it is over or dropped.
pub(super) struct Wait<'a> {
    destination: &'a Destination,
    entry: Option<(Awaited, u64)>,
}

impl<'a> Wait<'a> {
    pub fn new(destination: &'a Destination) -> Wait<'a> {
        Wait { destination, entry: None }
    }

    /// Waits for this, which has not come about yet.
    pub fn enter(&mut self, core: &mut Core, awaited: Awaited, waker: &Waker) {
        let Waiting { wakers, next, .. } = &mut core.waiting;
        *next = next.wrapping_add(1);
        wakers.insert((awaited, *next), waker.clone());
        self.entry = Some((awaited, *next));
    }

    /// Waits no more.
    pub fn leave(&mut self, core: &mut Core) {
        if let Some(entry) = self.entry.take() {
            core.waiting.wakers.remove(&entry);
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.entry.is_some() {
            let destination = self.destination;
            destination.release(|core| self.leave(core));
        }
    }
}
