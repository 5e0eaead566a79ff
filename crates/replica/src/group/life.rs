//! The state in memory of a group: the role that runs, and how far its end has come.
//!
//! It changes by the events below alone, one at a time ([`Owner`](crate::owner::Owner)). Only the task of the group
//! ([`Group::govern`](super::Group::govern)) changes the role, so the host hears of roles in their order. A command asks
//! for two things: to open a stopped group again, and to end it.
//!
//! ```text
//!             copies ─► Destination ─┐
//! starts ─► Starting                 ├─► starts, or stops ─► Stopped ─► asked to start, starts
//!             runs ─► serves: Source ┘
//!
//! Governed ─► Ending ─► Closed ─► Ended ─► Settled
//! ```
//!
//! Few tasks wait for a group, each for a condition of its own, so they wait for the outline.

use std::sync::Arc;

use super::{State, Stopped};
use crate::destination::Destination;
use crate::owner::{Owned, Wakes, replace};
use crate::source::Source;

/// How far the end of a group has come. It never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    /// Its task opens it, and opens it again.
    Governed,
    /// It ends, for good or with the process: its task opens nothing any more.
    Ending,
    /// The side that ran is closed.
    Closed,
    /// Its task has ended.
    Ended,
    /// Its volumes hold every answered write.
    Settled,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Core {
    state: State,
    /// Counts the changes of `state`.
    changes: u64,
    /// The source that runs, though its fronts may not be open yet; after it has stopped, until the next role begins.
    running: Option<Arc<Source>>,
    stage: Stage,
    /// [`Group::end`](super::Group::end) decides what its fronts lead to: the task leaves them as they are.
    holds_fronts: bool,
}

impl Core {
    /// A group whose task has not begun.
    pub fn new() -> Core {
        Core {
            state: State::Starting,
            changes: 0,
            running: None,
            stage: Stage::Governed,
            holds_fronts: false,
        }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn running(&self) -> Option<&Arc<Source>> {
        self.running.as_ref()
    }

    pub fn is_ending(&self) -> bool {
        self.stage >= Stage::Ending
    }

    /// Whether the side that ran is closed, because the group ends.
    pub fn is_closed(&self) -> bool {
        self.stage >= Stage::Closed
    }

    pub fn has_ended(&self) -> bool {
        self.stage >= Stage::Ended
    }

    pub fn is_settled(&self) -> bool {
        self.stage >= Stage::Settled
    }

    pub fn holds_fronts(&self) -> bool {
        self.holds_fronts
    }

    fn become_now(&mut self, state: State) {
        if !matches!((&self.state, &state), (State::Starting, State::Starting)) {
            self.changes = self.changes.wrapping_add(1);
        }
        self.state = state;
    }

    fn advance(&mut self, stage: Stage) {
        self.stage = self.stage.max(stage);
    }

    /// The task is about to read the journal. Returns the source that ran until now.
    pub fn starts(&mut self) -> Option<Arc<Source>> {
        self.become_now(State::Starting);
        self.running.take()
    }

    /// A source runs. Its fronts are closed, and its partners are asked whether it is still the source.
    pub fn runs(&mut self, source: Arc<Source>) {
        self.running = Some(source);
    }

    /// The fronts of the running source are open.
    pub fn serves(&mut self) {
        if let Some(source) = &self.running {
            self.become_now(State::Source(source.clone()));
        }
    }

    /// A destination runs.
    pub fn copies(&mut self, destination: Arc<Destination>) {
        self.become_now(State::Destination(destination));
    }

    /// The group is neither source nor destination. Returns the source that ran until now.
    pub fn stops(&mut self, stopped: Arc<Stopped>) -> Option<Arc<Source>> {
        self.become_now(State::Stopped(stopped));
        self.running.take()
    }

    /// Somebody asks to open the group again. That changes nothing unless it is stopped: another command may have been
    /// quicker, or the group ends.
    pub fn is_asked_to_start(&mut self) {
        if matches!(self.state, State::Stopped(_)) && !self.is_ending() {
            self.become_now(State::Starting);
        }
    }

    /// The group ends.
    pub fn ends(&mut self) {
        self.advance(Stage::Ending);
    }

    /// The side that ran is closed, because the group ends.
    pub fn closes(&mut self) {
        self.advance(Stage::Closed);
    }

    /// The task has ended. The state says what ran last.
    pub fn has_come_to_its_end(&mut self) {
        self.running = None;
        self.advance(Stage::Ended);
    }

    /// The volumes of the ended group hold every answered write.
    pub fn settles(&mut self) {
        self.advance(Stage::Settled);
    }

    /// [`Group::end`](super::Group::end) takes the fronts, or leaves them to the task again.
    pub fn hold_fronts(&mut self, holds: bool) {
        self.holds_fronts = holds;
    }

    /// Breaks an invariant.
    #[cfg(all(test, debug_assertions))]
    pub fn break_down(&mut self, source: Arc<Source>) {
        self.running = Some(source);
        self.stage = Stage::Ended;
    }
}

impl Owned for Core {
    /// The number of the state, and how far the end has come.
    type Outline = (u64, Stage);
    type News = ();

    fn outline(&self) -> Self::Outline {
        (self.changes, self.stage)
    }

    fn renew(&self, outline: &mut Self::Outline) -> Option<()> {
        replace(outline, self.outline())
    }

    fn settle(&mut self, _is_news: bool) -> Wakes {
        Wakes::default()
    }

    #[cfg(debug_assertions)]
    fn everyone(&mut self) -> Wakes {
        Wakes::default()
    }

    #[cfg(debug_assertions)]
    fn check(&self) {
        match (&self.state, &self.running) {
            (State::Starting, _) => {}
            (State::Source(source), Some(running)) => {
                assert!(Arc::ptr_eq(source, running), "a group serves another source than runs");
            }
            (State::Source(_), None) => {
                assert!(self.has_ended(), "a group serves a source that does not run")
            }
            (State::Destination(_) | State::Stopped(_), running) => {
                assert!(running.is_none(), "a source runs in a group that is none");
            }
        }
        assert!(!self.has_ended() || self.running.is_none(), "a source runs in a group whose task has ended");
    }
}
