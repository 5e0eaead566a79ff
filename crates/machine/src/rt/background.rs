//! The background: tasks whose turns are long get one after another, between those of the other tasks.
//!
//! Otherwise a task with little to do waits for the turns of all that have much: beside 70 connections that list long
//! folders, each round trip of a client that logs on would take 140 ms. Whether a task belongs here shows in an account
//! of its time: each poll that takes [`LONG_TICKS`] or more adds its duration, whether the task was told that its turn
//! is over or not; each shorter poll subtracts its own, and time that passes subtracts a little. A task at
//! [`MOST_TICKS`] waits here when it is woken. So it is the length of the polls that counts, not the number of
//! them: a client that keeps a core busy by requests of a few microseconds delays nobody for long. A few long polls may
//! only show that the host took the processor away, so each adds at most [`CHARGED_TICKS`].
//!
//! Tasks that wait here run in the order of their arrival, each
//!
//! - for a whole turn, or a quarter if several wait, when no other task has had something to do for a while;
//! - for a smaller part of a turn, if no other task has something to do at the moment;
//! - for such a part while other tasks are busy without a pause, if they have had [`SHARE`] times as long as the
//!   background.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::task::{Context, Waker};

use super::turn::{self, TURN_TICKS};

/// Polls of this length delay others: 100 tasks with shorter ones, all woken at once, delay a task by at most 30 ms.
/// Eight READs of 64 KiB take less.
const LONG_TICKS: u64 = TURN_TICKS / 8;
/// What a long poll adds at most to the account, and how long the next turn of such a task is.
const CHARGED_TICKS: u64 = TURN_TICKS / 4;
/// A task waits in the background from this account on: after four long polls.
const MOST_TICKS: u64 = 4 * CHARGED_TICKS;
/// No account is above this.
const ACCOUNT_TICKS: u64 = 6 * CHARGED_TICKS;
/// An account loses one tick while this many pass. Tasks in this number, each with one long poll per round, could keep
/// the core busy without getting here.
const DRAIN: u64 = 4096;
/// In the background, a short poll counts as at least this long: a task that came here by accident leaves soon.
const CLEARED_TICKS: u64 = TURN_TICKS / 16;
/// The shortest turn of a task in the background while others have something to do. It delays them, so it is shorter
/// than the time in which a client that keeps a few requests under way has used up its answers.
const SHORT_TICKS: u64 = TURN_TICKS / 20;
/// What all tasks in the background share while others have something to do, if each gets at least that.
const SHARED_TICKS: u64 = TURN_TICKS / 4;
/// While other tasks are busy without a pause, they get this many times as long as the background.
const SHARE: u64 = 4;
/// A longer turn counts as one of this length: the host has probably taken the processor away meanwhile.
const MOST_USED_TICKS: u64 = 4 * TURN_TICKS;
/// The most time that the background saves up while its tasks wait behind others, and that it owes to them.
const MOST_SAVED_TICKS: u64 = 8 * TURN_TICKS;
/// Other tasks have something to do if one of them ran within this time.
const QUIET_TICKS: u64 = TURN_TICKS / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not in the background, or not woken.
    Away,
    Waits,
    /// May run, for at least so many ticks.
    Granted(u64),
    /// Runs because it was granted so many ticks.
    Runs(u64),
}

/// A task's account, and its place in the background.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Ticks of long polls, see above.
    account: Cell<u64>,
    /// When the account last changed.
    changed: Cell<u64>,
    /// Tasks that never get to the background need no memory for it.
    state: OnceCell<Rc<Cell<State>>>,
}

impl Place {
    /// How long the task, which is woken, may run; `None` if it has to wait.
    #[inline]
    pub(super) fn turn(&self, cx: &Context<'_>) -> Option<u64> {
        match self.account.get() {
            0 => Some(TURN_TICKS),
            1..MOST_TICKS => Some(CHARGED_TICKS),
            MOST_TICKS.. => self.wait_or_run(cx),
        }
    }

    /// After the task has run for so many ticks.
    #[inline]
    pub(super) fn ran(&self, ticks: u64) {
        if ticks >= LONG_TICKS || self.account.get() > 0 {
            self.enter(ticks);
        }
    }

    /// Changes the account after a poll.
    #[cold]
    fn enter(&self, ticks: u64) {
        let state = self.state.get().filter(|state| matches!(state.get(), State::Runs(_)));
        let granted = state.map(|state| state.replace(State::Away));
        if granted.is_some() {
            QUEUE.with_borrow_mut(|queue| queue.ran(ticks));
        }
        let limit = if let Some(State::Runs(limit)) = granted { limit.min(LONG_TICKS) } else { LONG_TICKS };
        self.drain(turn::ended());
        let account = self.account.get();
        self.account.set(match granted {
            _ if ticks >= limit => (account + ticks.min(CHARGED_TICKS)).min(ACCOUNT_TICKS),
            Some(_) => account.saturating_sub(ticks.max(CLEARED_TICKS)),
            None => account.saturating_sub(ticks),
        });
    }

    fn drain(&self, now: u64) {
        let passed = now.saturating_sub(self.changed.replace(now));
        self.account.set(self.account.get().saturating_sub(passed / DRAIN));
    }

    #[cold]
    fn wait_or_run(&self, cx: &Context<'_>) -> Option<u64> {
        let state = self.state.get_or_init(|| Rc::new(Cell::new(State::Away)));
        match state.get() {
            State::Granted(least) => {
                // Behind hundreds of tasks that were hot, it has earned more than when it was granted its turn.
                let ticks = QUEUE.with_borrow(Queue::earned).clamp(least, TURN_TICKS);
                state.set(State::Runs(ticks));
                Some(ticks)
            }
            State::Waits => None,
            State::Away | State::Runs(_) => {
                self.drain(turn::ticks());
                if self.account.get() < MOST_TICKS {
                    return Some(CHARGED_TICKS);
                }
                state.set(State::Waits);
                let waiting = Waiting { state: state.clone(), waker: cx.waker().clone() };
                QUEUE.with_borrow_mut(|queue| queue.waiting.push_back(waiting));
                None
            }
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

    /// Whether the task was granted a turn that it has not begun.
    fn is_granted(&self) -> bool {
        matches!(self.state.get(), State::Granted(_)) && self.is_alive()
    }
}

/// The background of a loop.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    /// The tasks that were woken to run.
    granted: Vec<Waiting>,
    /// Turns of granted tasks since the loop last asked.
    turns: u64,
    /// How long they lasted.
    used: u64,
    /// Ticks that the background may use although others are busy.
    saved: u64,
    /// Ticks that it has used beyond that.
    owed: u64,
    /// Polls of tasks of this thread when the loop last asked.
    polls: u64,
    /// When it did.
    asked: u64,
    /// When a task that is not in the background was seen to have run.
    others_ran: u64,
    /// Whether somebody waited when the loop last asked.
    was_used: bool,
}

thread_local! {
    static QUEUE: RefCell<Queue> = RefCell::default();
}

impl Queue {
    fn ran(&mut self, ticks: u64) {
        self.turns += 1;
        self.used = self.used.saturating_add(ticks.min(MOST_USED_TICKS));
    }

    fn offer(&mut self, polls: u64, more: bool) -> bool {
        let others = polls.wrapping_sub(mem::replace(&mut self.polls, polls));
        let others = others.saturating_sub(mem::take(&mut self.turns));
        let used = mem::take(&mut self.used);
        self.granted.retain(Waiting::is_granted);
        if self.is_empty() {
            self.was_used = false;
            return false;
        }
        let now = turn::ticks();
        let was_used = mem::replace(&mut self.was_used, true);
        if was_used {
            let theirs = now.saturating_sub(self.asked).saturating_sub(used);
            self.account(theirs, used);
        } else {
            (self.saved, self.owed) = (0, 0);
        }
        self.asked = now;
        // Tasks that were granted a turn are hot as well.
        let busy = others > 0 || !was_used || (more && self.granted.is_empty());
        if busy {
            self.others_ran = now;
        } else {
            // Who has nothing to do has no use for the time that the background has taken.
            self.owed = 0;
        }
        let quiet = now.saturating_sub(self.others_ran) > QUIET_TICKS;
        let waiting = self.waiting.len().max(1) as u64;
        let part = (SHARED_TICKS / waiting).max(SHORT_TICKS);
        if !busy && self.granted.is_empty() {
            self.grant(if quiet { (TURN_TICKS / waiting).max(SHARED_TICKS) } else { part });
        }
        // Those that were granted turns run behind all tasks that are hot. If that took long, several have earned one.
        while self.owed == 0 && self.saved >= part * (self.granted.len() as u64 + 1) && self.grant(part) {}
        !self.is_empty()
    }

    /// The part of each task in what the background may use although others are busy.
    fn earned(&self) -> u64 {
        let tasks = (self.granted.len() + self.waiting.len()).max(1);
        self.saved.saturating_sub(self.used) / tasks as u64
    }

    /// Accounts for the time that the others and the background have used.
    fn account(&mut self, theirs: u64, used: u64) {
        let plus = self.saved + theirs.min(SHARE * MOST_USED_TICKS) / SHARE;
        let minus = self.owed + used;
        self.saved = plus.saturating_sub(minus).min(MOST_SAVED_TICKS);
        self.owed = minus.saturating_sub(plus).min(MOST_SAVED_TICKS);
    }

    /// Grants a turn to the first task that waits and exists; false if there is none.
    fn grant(&mut self, ticks: u64) -> bool {
        let next = loop {
            match self.waiting.pop_front() {
                None => return false,
                Some(task) if task.is_alive() => break task,
                Some(_) => {}
            }
        };
        next.state.set(State::Granted(ticks));
        next.waker.wake_by_ref();
        self.granted.push(next);
        true
    }

    fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }
}

/// Called in each turn of the loop, with the polls of tasks so far and whether more tasks are hot: lets tasks in the
/// background run if it is their turn. Returns whether one runs or waits.
pub(super) fn offer(polls: u64, more: bool) -> bool {
    QUEUE.with_borrow_mut(|queue| queue.offer(polls, more))
}

/// Whether no task of this thread waits in the background or was granted a turn.
pub(super) fn is_empty() -> bool {
    QUEUE.with_borrow(Queue::is_empty)
}

/// A loop begins on this thread, or, with its queue, goes on. Returns the queue of the one before.
pub(super) fn replace(with: Queue) -> Queue {
    QUEUE.replace(with)
}
