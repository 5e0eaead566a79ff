//! An operation that takes long enough to be followed, and the queue of answers of a connection.
//!
//! A [`Flight`] exists from the moment at which an operation waits, or has spent a noticeable time, until its answer has
//! left. Any thread may tell it what happens: its core, a worker, a partner's session. Its mutex is taken a few times
//! for each wait, and is contended only by somebody who looks at what is under way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hop::{Hop, PerHop};
use crate::meter::What;
use crate::rt::turn;

/// Bytes of a file's name; longer ones are cut.
pub(super) const MAX_TEXT_BYTES: usize = 200;

/// Who does what to what. It is cheap to make, because every operation that waits is described.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The client's address.
    pub client: Option<Arc<str>>,
    /// The user.
    pub user: User,
    /// The file, by its name or handle; empty: unknown.
    pub file: String,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum User {
    /// Unknown, or none.
    #[default]
    None,
    /// Who has logged on.
    Named(Arc<str>),
    /// Whom an NFS client claims to act for.
    Id(u32),
}

impl Details {
    fn bounded(mut self) -> Details {
        self.file.truncate(self.file.floor_char_boundary(MAX_TEXT_BYTES));
        self.file.shrink_to_fit();
        self
    }

    /// Bytes of its own text: the others belong to connections and sessions.
    pub(super) fn bytes(&self) -> usize {
        self.file.len()
    }
}

/// What is known of an operation, in ticks.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub what: What,
    pub details: Details,
    pub received: u64,
    /// When it ended, or was looked at.
    pub until: u64,
    pub hops: PerHop<u64>,
    pub bytes: u64,
    /// Where it is; `None`: it has ended.
    pub at: Option<Hop>,
}

/// Takes those that have ended.
pub(super) trait Landed: Send + Sync {
    /// It is over.
    fn landed(&self, key: usize, known: Known, is_patient: bool);
}

/// An operation that is followed.
pub(super) struct Flight {
    pub received: u64,
    state: Mutex<State>,
}

struct State {
    /// Who is told of its end, and its key there.
    book: Option<(Arc<dyn Landed>, usize)>,
    hops: PerHop<u64>,
    waits: PerHop<u32>,
    /// A core works on it.
    on_core: bool,
    /// The times of `hops` go up to this moment.
    since: u64,
    /// It ends when nobody holds it any more: its future, its unsent answer.
    holders: u32,
    /// The part of its message that is being carried out, since when, and the one that took longest before.
    what: What,
    details: Option<Details>,
    what_since: u64,
    longest: Option<(u64, What, Option<Details>)>,
    bytes: u64,
    /// It waits for events on purpose, and is neither shown nor kept.
    hidden: bool,
    /// Its waits for other clients do not make it slow.
    patient: bool,
    /// Its answer is in the queues.
    is_sent: bool,
    /// The queues that its answer is in, and how long they had waited for a disk before.
    stages: Vec<(Arc<Stage>, u64)>,
}

impl State {
    fn at(&self) -> Hop {
        if self.on_core { Hop::Store } else { self.waits.first().unwrap_or(Hop::Queue) }
    }

    /// Counts the time until now. Another processor's counter may be a little behind.
    fn settle(&mut self, now: u64) {
        let passed = now.saturating_sub(self.since);
        *self.hops.at(self.at()) += passed;
        self.since = self.since.max(now);
    }

    /// The hops, with the time that the queue of answers has waited for a disk told as such.
    fn hops(&self, now: u64) -> PerHop<u64> {
        let mut hops = self.hops;
        for (stage, before) in &self.stages {
            let disk = stage.waited(now).saturating_sub(*before).min(hops.of(Hop::Wire));
            *hops.at(Hop::Wire) -= disk;
            *hops.at(Hop::Disk) += disk;
        }
        hops
    }

    fn where_it_is(&self) -> Hop {
        let at = self.at();
        let reads = at == Hop::Wire && self.stages.iter().any(|(stage, _)| stage.waits());
        if reads { Hop::Disk } else { at }
    }
}

impl Flight {
    /// A flight of an operation that a core works on since `mark`, with one holder.
    pub fn new(received: u64, mark: u64, what: What, now: u64) -> Flight {
        let mut hops = PerHop::default();
        *hops.at(Hop::Queue) = mark.saturating_sub(received);
        *hops.at(Hop::Store) = now.saturating_sub(mark);
        Flight {
            received,
            state: Mutex::new(State {
                book: None,
                hops,
                waits: PerHop::default(),
                on_core: true,
                since: now,
                holders: 1,
                what,
                details: None,
                what_since: received,
                longest: None,
                bytes: 0,
                hidden: false,
                patient: false,
                is_sent: false,
                stages: Vec::new(),
            }),
        }
    }

    // Nothing panics between two changes.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its end is told to this book.
    pub fn entered(&self, book: Arc<dyn Landed>, key: usize) {
        self.state().book = Some((book, key));
    }

    /// A core works on it again.
    pub fn resumed(&self, now: u64) {
        let mut state = self.state();
        state.settle(now);
        state.on_core = true;
    }

    /// It waits.
    pub fn paused(&self, now: u64) {
        let mut state = self.state();
        state.settle(now);
        state.on_core = false;
    }

    /// It waits for this, too.
    pub fn enter(&self, hop: Hop) {
        let mut state = self.state();
        state.settle(turn::ticks());
        *state.waits.at(hop) += 1;
    }

    /// It does not wait for this any more.
    pub fn leave(&self, hop: Hop) {
        let mut state = self.state();
        state.settle(turn::ticks());
        let waits = state.waits.at(hop);
        *waits = waits.saturating_sub(1);
    }

    /// It waits for `to` instead of `from`.
    pub fn change(&self, from: Hop, to: Hop) {
        let mut state = self.state();
        state.settle(turn::ticks());
        let waits = state.waits.at(from);
        *waits = waits.saturating_sub(1);
        *state.waits.at(to) += 1;
    }

    /// The core has spent the time until now on this.
    pub fn spent(&self, hop: Hop, now: u64) {
        let mut state = self.state();
        let passed = now.saturating_sub(state.since);
        *state.hops.at(hop) += passed;
        state.since = state.since.max(now);
    }

    /// The same when it has just been made: what counted as the core's work since `mark` was this.
    pub fn was(&self, hop: Hop, ticks: u64) {
        let mut state = self.state();
        let moved = ticks.min(state.hops.of(Hop::Store));
        *state.hops.at(Hop::Store) -= moved;
        *state.hops.at(hop) += moved;
    }

    /// This is carried out now. Of the parts of a message, it is known by the longest.
    pub fn is(&self, what: What, now: u64) {
        let mut state = self.state();
        if !state.what.is_like(what) && state.what != What::default() {
            let took = now.saturating_sub(state.what_since);
            if state.longest.as_ref().is_none_or(|(most, ..)| took > *most) {
                state.longest = Some((took, state.what, state.details.take()));
            }
            (state.what_since, state.details) = (now, None);
        }
        state.what = what;
    }

    /// Whether nobody has described it yet.
    pub fn lacks_details(&self) -> bool {
        self.state().details.is_none()
    }

    pub fn describe(&self, details: Details) {
        self.state().details = Some(details.bounded());
    }

    pub fn moves(&self, bytes: u64) {
        self.state().bytes = bytes;
    }

    pub fn hide(&self) {
        self.state().hidden = true;
    }

    pub fn is_patient(&self) {
        self.state().patient = true;
    }

    /// Its answer waits in these queues, if it did not before.
    pub fn sending(&self, stages: impl IntoIterator<Item = Arc<Stage>>) {
        let now = turn::ticks();
        let mut state = self.state();
        if std::mem::replace(&mut state.is_sent, true) {
            return;
        }
        state.settle(now);
        *state.waits.at(Hop::Wire) += 1;
        for stage in stages {
            let before = stage.waited(now);
            state.stages.push((stage, before));
        }
    }

    /// One more needs it.
    pub fn hold(&self) {
        self.state().holders += 1;
    }

    /// One fewer needs it; the last one ends it.
    pub fn release(&self) {
        let mut state = self.state();
        state.holders = state.holders.saturating_sub(1);
        if state.holders > 0 {
            return;
        }
        state.settle(turn::ticks());
        let known = Flight::known(self.received, &state, None);
        let (hidden, patient, book) = (state.hidden, state.patient, state.book.take());
        drop(state);
        if let Some((book, key)) = book {
            // A hidden one is not kept: as long as nothing.
            let known = if hidden { Known { until: known.received, ..known } } else { known };
            book.landed(key, known, patient);
        }
    }

    /// What is known of it now, unless it is hidden.
    pub fn look(&self, now: u64) -> Option<Known> {
        let mut state = self.state();
        if state.hidden {
            return None;
        }
        state.settle(now);
        let at = state.where_it_is();
        Some(Flight::known(self.received, &state, Some(at)))
    }

    fn known(received: u64, state: &State, at: Option<Hop>) -> Known {
        let (mut what, mut details) = (state.what, state.details.clone());
        if let Some((most, longest, of_it)) = &state.longest
            && *most > state.since.saturating_sub(state.what_since)
        {
            (what, details) = (*longest, of_it.clone());
        }
        Known {
            what,
            details: details.unwrap_or_default(),
            received,
            until: state.since,
            hops: state.hops(state.since),
            bytes: state.bytes,
            at,
        }
    }
}

/// The queue of answers of a connection: how long it has waited for a disk rather than for its peer. An answer in it
/// that is not sent waits for the same.
#[derive(Debug, Default)]
pub struct Stage(Mutex<StageState>);

#[derive(Debug, Default)]
struct StageState {
    waits: u32,
    since: u64,
    waited: u64,
}

impl Stage {
    /// A queue that waits for nothing.
    pub fn new() -> Arc<Stage> {
        Arc::default()
    }

    fn state(&self) -> MutexGuard<'_, StageState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self) {
        let mut state = self.state();
        if state.waits == 0 {
            state.since = turn::ticks();
        }
        state.waits += 1;
    }

    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.waits = state.waits.saturating_sub(1);
        if state.waits == 0 {
            state.waited += turn::ticks().saturating_sub(state.since);
        }
    }

    fn waits(&self) -> bool {
        self.state().waits > 0
    }

    /// Ticks in all.
    fn waited(&self, now: u64) -> u64 {
        let state = self.state();
        let current = if state.waits > 0 { now.saturating_sub(state.since) } else { 0 };
        state.waited.saturating_add(current)
    }
}
