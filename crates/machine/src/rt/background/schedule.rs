//! Which tasks wait in the background, which of them runs next, when, and for how long.
//!
//! Nothing here reads a clock or wakes a task: the caller passes the time, in ticks, and gets wakers back.
//!
//! Whether a task belongs to the background shows in an account of its time: each poll that takes [`LONG_TICKS`] or more
//! adds its duration, whether the task was told that its turn is over or not; each shorter poll subtracts its own, and
//! time that passes subtracts a little. A task at [`MOST_TICKS`] waits here when it is woken. So it is the length of the
//! polls that counts, not the number of them: a client that keeps a core busy by requests of a few microseconds delays
//! nobody for long. A few long polls may only show that the host took the processor away, so each adds at most
//! [`CHARGED_TICKS`].
//!
//! Tasks that wait here run in the order of their arrival, each
//!
//! - for a whole turn, or a quarter if several wait, when no other task has had something to do for a while;
//! - for a smaller part of a turn, if no other task has something to do at the moment;
//! - for such a part while other tasks are busy without a pause, if they have had [`SHARE`] times as long as the
//!   background.

use std::cell::{Cell, OnceCell};
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;

use crate::rt::turn::TURN_TICKS;

/// Polls of this length delay others: 100 tasks with shorter ones, all woken at once, delay a task by at most 30 ms.
/// Eight READs of 64 KiB take less.
pub(super) const LONG_TICKS: u64 = TURN_TICKS / 8;
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
pub(super) const SHORT_TICKS: u64 = TURN_TICKS / 20;
/// What all tasks in the background share while others have something to do, if each gets at least that.
const SHARED_TICKS: u64 = TURN_TICKS / 4;
/// While other tasks are busy without a pause, they get this many times as long as the background.
pub(super) const SHARE: u64 = 4;
/// A longer turn counts as one of this length: the host has probably taken the processor away meanwhile.
pub(super) const MOST_USED_TICKS: u64 = 4 * TURN_TICKS;
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

/// A task in the background, as both the task and the queue see it.
#[derive(Debug)]
struct Seat {
    state: Cell<State>,
}

/// A task's account, and its seat in the background.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Ticks of long polls, see above.
    ticks: Cell<u64>,
    /// When the account last changed.
    changed: Cell<u64>,
    /// Tasks that never get to the background need no memory for it.
    seat: OnceCell<Rc<Seat>>,
}

impl Account {
    /// How long the task, which is woken, may run; `None` if that is for [`Queue::wait_or_run`] to say.
    #[inline]
    pub(super) fn turn(&self) -> Option<u64> {
        match self.ticks.get() {
            0 => Some(TURN_TICKS),
            1..MOST_TICKS => Some(CHARGED_TICKS),
            MOST_TICKS.. => None,
        }
    }

    /// Whether a poll of so many ticks changes the account: [`Queue::ran`] is told.
    #[inline]
    pub(super) fn matters(&self, ticks: u64) -> bool {
        ticks >= LONG_TICKS || self.ticks.get() > 0
    }

    /// Changes the account after a poll, which the task was granted so many ticks for if it waited in the background.
    fn charge(&self, now: u64, ticks: u64, granted: Option<u64>) {
        self.drain(now);
        let before = self.ticks.get();
        let long = granted.map_or(LONG_TICKS, |granted| granted.min(LONG_TICKS));
        self.ticks.set(match granted {
            _ if ticks >= long => (before + ticks.min(CHARGED_TICKS)).min(ACCOUNT_TICKS),
            Some(_) => before.saturating_sub(ticks.max(CLEARED_TICKS)),
            None => before.saturating_sub(ticks),
        });
    }

    fn drain(&self, now: u64) {
        let passed = now.saturating_sub(self.changed.replace(now));
        self.ticks.set(self.ticks.get().saturating_sub(passed / DRAIN));
    }
}

struct Waiting<W> {
    seat: Rc<Seat>,
    waker: W,
}

impl<W> Waiting<W> {
    /// Whether the task still exists: its account owns the seat as well.
    fn is_alive(&self) -> bool {
        Rc::strong_count(&self.seat) > 1
    }
}

/// The background of a loop, whose tasks are woken by a `W`.
pub(crate) struct Queue<W> {
    /// In the order of their arrival.
    waiting: VecDeque<Waiting<W>>,
    /// The tasks that were woken to run and have not begun.
    granted: Vec<Waiting<W>>,
    /// Turns of granted tasks since the loop last asked.
    turns: u64,
    /// How long they lasted.
    used: u64,
    /// Ticks that the background may use although others are busy; what it has used beyond that if negative.
    balance: i64,
    /// Polls of tasks of this thread when the loop last asked.
    polls: u64,
    /// When it did.
    asked: u64,
    /// When a task that is not in the background was seen to have run.
    others_ran: u64,
    /// Whether somebody waited when the loop last asked.
    was_used: bool,
}

impl<W> Default for Queue<W> {
    fn default() -> Queue<W> {
        Queue {
            waiting: VecDeque::new(),
            granted: Vec::new(),
            turns: 0,
            used: 0,
            balance: 0,
            polls: 0,
            asked: 0,
            others_ran: 0,
            was_used: false,
        }
    }
}

impl<W> Queue<W> {
    /// How long a task that belongs here and is woken may run; `None` if it has to wait for its turn.
    pub(super) fn wait_or_run(
        &mut self,
        account: &Account,
        now: u64,
        waker: impl FnOnce() -> W,
    ) -> Option<u64> {
        let seat = account.seat.get_or_init(|| Rc::new(Seat { state: Cell::new(State::Away) }));
        match seat.state.get() {
            State::Granted(least) => {
                // Behind hundreds of tasks that were hot, it has earned more than when it was granted its turn.
                let ticks = self.earned().clamp(least, TURN_TICKS);
                self.granted.retain(|task| !Rc::ptr_eq(&task.seat, seat));
                seat.state.set(State::Runs(ticks));
                Some(ticks)
            }
            State::Waits => None,
            State::Away | State::Runs(_) => {
                account.drain(now);
                if let Some(ticks) = account.turn() {
                    return Some(ticks);
                }
                seat.state.set(State::Waits);
                self.waiting.push_back(Waiting { seat: seat.clone(), waker: waker() });
                None
            }
        }
    }

    /// A task has run for so many ticks, until now.
    pub(super) fn ran(&mut self, account: &Account, now: u64, ticks: u64) {
        let mut granted = None;
        if let Some(seat) = account.seat.get()
            && let State::Runs(limit) = seat.state.get()
        {
            let used = ticks.min(MOST_USED_TICKS);
            seat.state.set(State::Away);
            self.turns += 1;
            self.used = self.used.saturating_add(used);
            granted = Some(limit);
        }
        account.charge(now, ticks, granted);
    }

    /// Instead of [`Queue::offer`] if the queue is empty.
    pub(super) fn rest(&mut self, polls: u64) {
        (self.polls, self.turns, self.used, self.was_used) = (polls, 0, 0, false);
    }

    /// Grants turns and wakes those that get them. `polls` counts those of all tasks of the loop so far; `more` says
    /// whether some are hot.
    pub(super) fn offer(&mut self, now: u64, polls: u64, more: bool, wake: impl Fn(&W)) {
        let others = polls.wrapping_sub(mem::replace(&mut self.polls, polls));
        let others = others.saturating_sub(mem::take(&mut self.turns));
        let used = mem::take(&mut self.used);
        self.granted.retain(Waiting::is_alive);
        let was_used = mem::replace(&mut self.was_used, true);
        let passed = now.saturating_sub(mem::replace(&mut self.asked, now));
        if was_used {
            self.settle(passed.saturating_sub(used), used);
        } else {
            self.balance = 0;
        }
        // Tasks that were granted a turn are hot as well.
        let busy = others > 0 || !was_used || (more && self.granted.is_empty());
        if busy {
            self.others_ran = now;
        } else {
            // Who has nothing to do has no use for the time that the background has taken.
            self.balance = self.balance.max(0);
        }
        let quiet = now.saturating_sub(self.others_ran) > QUIET_TICKS;
        let waiting = self.waiting.len().max(1) as u64;
        let part = (SHARED_TICKS / waiting).max(SHORT_TICKS);
        if !busy && self.granted.is_empty() {
            self.grant(if quiet { (TURN_TICKS / waiting).max(SHARED_TICKS) } else { part }, &wake);
        }
        // Those that were granted turns run behind all tasks that are hot. If that took long, several have earned one.
        while self.balance >= part as i64 * (self.granted.len() as i64 + 1) && self.grant(part, &wake) {}
    }

    /// The part of each task in what the background may use although others are busy.
    fn earned(&self) -> u64 {
        let tasks = (self.granted.len() + self.waiting.len()).max(1) as u64;
        u64::try_from(self.balance).unwrap_or(0).saturating_sub(self.used) / tasks
    }

    /// Settles the time that the others and the background have used.
    fn settle(&mut self, theirs: u64, used: u64) {
        let plus = theirs.min(SHARE * MOST_USED_TICKS) / SHARE;
        let balance = self.balance.saturating_add_unsigned(plus).saturating_sub_unsigned(used);
        self.balance = balance.clamp(-(MOST_SAVED_TICKS as i64), MOST_SAVED_TICKS as i64);
    }

    /// Grants a turn to the first task that waits and exists; false if there is none.
    fn grant(&mut self, ticks: u64, wake: &impl Fn(&W)) -> bool {
        while let Some(task) = self.waiting.pop_front() {
            if task.is_alive() {
                task.seat.state.set(State::Granted(ticks));
                wake(&task.waker);
                self.granted.push(task);
                return true;
            }
        }
        false
    }

    pub(super) fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting.is_empty()
    }
}
