//! The background: tasks that use up their turns get one at a time, between those of the other tasks.
//!
//! Otherwise a task with little to do waits for the full turns of all that have much: beside 70 connections that list
//! long folders, each round trip of a client that logs on would take 140 ms. Whether a task has much to do shows in
//! its last two turns: it went on until their end. (One turn may end because the host took the processor away.) Such a
//! task waits here, and the loop lets one of them run
//!
//! - for a whole turn, if no other task has had something to do for a while;
//! - for a part of a turn, which all that wait share, if no other task has something to do at the moment;
//! - for such a part, after the other tasks have had [`SHARE`] times as long as the background used last.
//!
//! As soon as it pauses before the end of its turn, it is a task like any other.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::task::{Context, Waker};

use super::turn::{self, TURN_TICKS};

/// The shortest turn of a task in the background while others have something to do. It delays them, so it is shorter
/// than the time in which a client that keeps a few requests under way has used up its answers. A turn for few tasks is
/// longer: one that came here by accident does all that it has to do in it and leaves.
const SHORT_TICKS: u64 = TURN_TICKS / 20;
/// While other tasks are busy without a pause, they get this many times as long as the background has used.
const SHARE: u64 = 4;
/// A longer turn counts as one of this length: the host may have stopped this machine for minutes.
const MOST_USED_TICKS: u64 = 64 * TURN_TICKS;
/// Other tasks have something to do if one of them ran within this time.
const QUIET_TICKS: u64 = TURN_TICKS / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Runs when it is woken.
    Foreground,
    /// Its last turn was used up.
    SpentOnce,
    /// Its last two turns were used up: it has to wait when it is woken.
    Spent,
    Waits,
    /// May run, for so many ticks.
    Granted(u64),
    /// Runs because it was granted.
    Runs,
}

/// A task's place in the background. Tasks that never use up a turn need no memory for it.
#[derive(Debug, Default)]
pub(super) struct Place(OnceCell<Rc<Cell<State>>>);

impl Place {
    /// How long the task, which is woken, may run; `None` if it has to wait.
    #[inline]
    pub(super) fn turn(&self, cx: &Context<'_>) -> Option<u64> {
        match self.0.get() {
            None => Some(TURN_TICKS),
            Some(state) => wait_or_run(state, cx),
        }
    }

    /// After the task has run.
    #[inline]
    pub(super) fn ran(&self) {
        if self.0.get().is_some() || turn::is_spent() {
            ran(self.0.get_or_init(|| Rc::new(Cell::new(State::Foreground))));
        }
    }
}

#[cold]
fn ran(state: &Cell<State>) {
    let before = state.get();
    if before == State::Runs {
        QUEUE.with_borrow_mut(|queue| queue.used = turn::lasts().min(MOST_USED_TICKS));
    }
    state.set(match (turn::is_spent(), before) {
        (false, _) => State::Foreground,
        (true, State::Foreground) => State::SpentOnce,
        (true, _) => State::Spent,
    });
}

#[cold]
fn wait_or_run(state: &Rc<Cell<State>>, cx: &Context<'_>) -> Option<u64> {
    match state.get() {
        State::Foreground | State::SpentOnce | State::Runs => Some(TURN_TICKS),
        State::Granted(ticks) => {
            state.set(State::Runs);
            Some(ticks)
        }
        State::Waits => None,
        State::Spent => {
            state.set(State::Waits);
            let waiting = Waiting { state: state.clone(), waker: cx.waker().clone() };
            QUEUE.with_borrow_mut(|queue| queue.waiting.push_back(waiting));
            None
        }
    }
}

struct Waiting {
    state: Rc<Cell<State>>,
    waker: Waker,
}

impl Waiting {
    /// Whether the task still exists: it owns its state as well.
    fn is_alive(&self) -> bool {
        Rc::strong_count(&self.state) > 1
    }
}

/// The background of a loop.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    /// The task that was woken to run.
    granted: Option<Waiting>,
    /// Polls of tasks of this thread when the loop last asked.
    polls: u64,
    /// How long the task that was granted last ran, in ticks.
    used: u64,
    /// When it was seen to have run.
    ran: u64,
    /// The same of tasks that are not in the background.
    others_ran: u64,
    /// Whether nobody waited when the loop last asked.
    was_empty: bool,
}

thread_local! {
    static QUEUE: RefCell<Queue> = RefCell::default();
}

impl Queue {
    fn offer(&mut self, polls: u64) -> bool {
        let mut others = polls.wrapping_sub(self.polls);
        self.polls = polls;
        let is_empty = self.is_empty();
        let was_empty = mem::replace(&mut self.was_empty, is_empty);
        if is_empty {
            return false;
        }
        let now = turn::ticks();
        if let Some(task) = &self.granted {
            if matches!(task.state.get(), State::Granted(_)) && task.is_alive() {
                return true;
            }
            others = others.saturating_sub(1);
            self.ran = now;
            self.granted = None;
        }
        if others > 0 || was_empty {
            self.others_ran = now;
            // A processor whose counter is behind ends the wait.
            let theirs = now.checked_sub(self.ran);
            if theirs.is_some_and(|ticks| ticks < SHARE * self.used) {
                return !self.waiting.is_empty();
            }
        }
        let next = loop {
            match self.waiting.pop_front() {
                None => return false,
                Some(task) if task.is_alive() => break task,
                Some(_) => {}
            }
        };
        let quiet = now.saturating_sub(self.others_ran) > QUIET_TICKS;
        let part = TURN_TICKS / (self.waiting.len() as u64 + 1);
        next.state.set(State::Granted(if quiet { TURN_TICKS } else { part.max(SHORT_TICKS) }));
        self.used = 0;
        next.waker.wake_by_ref();
        self.granted = Some(next);
        true
    }

    fn is_empty(&self) -> bool {
        self.granted.is_none() && self.waiting.is_empty()
    }
}

/// Called in each turn of the loop, with the polls of tasks so far: lets a task in the background run if it is its
/// turn. Returns whether one runs or waits.
pub(super) fn offer(polls: u64) -> bool {
    QUEUE.with_borrow_mut(|queue| queue.offer(polls))
}

/// Whether no task of this thread waits in the background or was granted a turn.
pub(super) fn is_empty() -> bool {
    QUEUE.with_borrow(Queue::is_empty)
}

/// A loop begins on this thread, or, with its queue, goes on. Returns the queue of the one before.
pub(super) fn replace(with: Queue) -> Queue {
    QUEUE.replace(with)
}
