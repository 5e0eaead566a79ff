//! Turns: how long a task may run before the other tasks of its core get to run.
//!
//! A turn begins when a task is polled. Nothing interrupts a task, and requests take from a microsecond to many
//! milliseconds, so a number of requests bounds no turn. A task that works for others therefore checks the clock
//! ([`turn_is_over`], [`yield_if_due`]) after each request, each operation of a compound request and each entry of a
//! listing. The state is the clock of each thread's turn. A single system call is not bounded; one that may take long
//! runs on a worker.
//!
//! A task whose polls are long waits in the background for its next turn, see [`super::background`].
//!
//! A check reads the processor's time-stamp counter and compares. In a simulation turns do not end, because its time
//! stands still while a task runs; [`crate::sim::Sim::short_turns`] ends one at every second check. Nor do turns end
//! under Valgrind, where all of them are long: the instructions that are counted there are those of a fast processor.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The longest turn: two milliseconds at 3 GHz. Slow and fast processors may differ by a factor of two; nothing depends
/// on it.
#[cfg(target_arch = "x86_64")]
pub(crate) const TURN_TICKS: u64 = 6_000_000;
/// The longest turn in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const TURN_TICKS: u64 = 2_000_000;
/// The most polls that a task gives way for, after a turn of as many times the limit.
const MOST_ROUNDS: u64 = 64;

struct TurnClock {
    /// When the running task was polled; [`NEVER`] if turns do not end.
    began: Cell<u64>,
    /// How many ticks it has.
    limit: Cell<u64>,
    /// When the last poll of a task ended.
    ended: Cell<u64>,
    /// The last reading of the clock.
    looked: Cell<u64>,
    /// It was made at the end of an operation, and the check that follows need not make another one.
    at_end: Cell<bool>,
    /// When what the running task has received may have arrived, at the earliest; at most `looked`.
    arrived: Cell<u64>,
    /// Changes with every turn.
    number: Cell<u64>,
    /// Checks that a turn may still make after its time is up: none except in a simulation with short turns.
    looks_left: Cell<u64>,
    simulated: Cell<bool>,
    /// Turns do not end.
    endless: Cell<bool>,
}

/// No time is before this one.
const NEVER: u64 = u64::MAX;

thread_local! {
    static TURN: TurnClock = const {
        TurnClock {
            began: Cell::new(NEVER),
            limit: Cell::new(TURN_TICKS),
            ended: Cell::new(0),
            looked: Cell::new(0),
            at_end: Cell::new(false),
            arrived: Cell::new(0),
            number: Cell::new(0),
            looks_left: Cell::new(0),
            simulated: Cell::new(false),
            endless: Cell::new(false),
        }
    };
}

#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the instruction, and Linux lets programs use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    crate::clock::Time::monotonic().as_nanos()
}

/// The last reading of the clock on this thread: the begin of the turn, or a later check.
#[inline]
pub(crate) fn looked() -> u64 {
    TURN.with(|turn| turn.looked.get())
}

/// Reads the clock.
#[inline]
pub(crate) fn look() -> u64 {
    TURN.with(|turn| {
        let now = ticks();
        turn.looked.set(now);
        now
    })
}

/// Reads the clock at the end of an operation, also for the check of the turn that follows.
#[inline]
pub(crate) fn look_at_end() -> u64 {
    TURN.with(|turn| turn.at_end.set(true));
    look()
}

/// What the running task receives may have waited in the socket since then; 0: since the begin of the turn at most.
#[inline]
pub(crate) fn set_arrived(since: u64) {
    if since != 0 {
        TURN.with(|turn| turn.arrived.set(since));
    }
}

/// When what the running task has received may have arrived, at the earliest.
#[inline]
pub(crate) fn arrived() -> u64 {
    TURN.with(|turn| turn.arrived.get())
}

/// Turns of this thread do not end from now on, or end again.
pub(super) fn set_endless(endless: bool) {
    TURN.with(|turn| turn.endless.set(endless));
}

/// A task of this thread is about to be polled, for this many ticks.
#[inline]
pub(super) fn begin(limit: u64) {
    TURN.with(|turn| {
        let now = ticks();
        turn.began.set(if turn.endless.get() { NEVER } else { now });
        turn.looked.set(now);
        turn.at_end.set(false);
        turn.arrived.set(now);
        turn.limit.set(limit);
        turn.number.set(turn.number.get().wrapping_add(1));
    });
}

/// The task has been polled. Returns for how many ticks.
#[inline]
pub(super) fn end() -> u64 {
    TURN.with(|turn| {
        let (now, began) = (ticks(), turn.began.get());
        // A turn without an end has not ended yet.
        turn.ended.set(if began == NEVER { 0 } else { now });
        now.saturating_sub(began)
    })
}

/// When the last poll of a task of this thread ended.
#[inline]
pub(super) fn ended() -> u64 {
    TURN.with(|turn| turn.ended.get())
}

/// The same as [`begin`] in a simulation.
pub(crate) fn begin_simulated(short: bool) {
    TURN.with(|turn| {
        turn.began.set(if short { 0 } else { NEVER });
        turn.limit.set(TURN_TICKS);
        turn.looks_left.set(1);
        turn.simulated.set(true);
        turn.number.set(turn.number.get().wrapping_add(1));
    });
}

/// A simulation has ended: the thread has no turns any more.
pub(crate) fn end_simulated() {
    TURN.with(|turn| {
        turn.began.set(NEVER);
        turn.simulated.set(false);
    });
}

impl TurnClock {
    /// Ticks since the turn began. Zero if another processor's counter is behind.
    fn lasts(&self) -> u64 {
        if !self.at_end.replace(false) {
            self.looked.set(ticks());
        }
        self.looked.get().saturating_sub(self.began.get())
    }

    fn is_over(&self) -> bool {
        self.lasts() >= self.limit.get() && self.is_really_over()
    }

    #[cold]
    fn is_really_over(&self) -> bool {
        let left = self.looks_left.get();
        if self.simulated.get() && left > 0 {
            self.looks_left.set(left - 1);
            return false;
        }
        true
    }

    /// How many polls the task gives way for: a task that has used much lets the others have several turns.
    fn rounds(&self) -> u64 {
        if self.simulated.get() { 1 } else { (self.lasts() / TURN_TICKS).clamp(1, MOST_ROUNDS) }
    }
}

/// Whether the running task has run for so long that it must let others run. It stays over until the task is polled
/// again.
#[inline]
pub fn turn_is_over() -> bool {
    TURN.with(TurnClock::is_over)
}

/// Ends the turn if it [is over](turn_is_over). A task that polls this beside other futures must call [`turn_is_over`]
/// itself: this future waits until the whole task has been polled again, once for each full turn that it has used.
#[inline]
pub fn yield_if_due() -> YieldIfDue {
    YieldIfDue { waits: None }
}

/// See [`yield_if_due`].
#[derive(Debug)]
#[must_use = "nothing waits unless it is awaited"]
pub struct YieldIfDue {
    waits: Option<Waits>,
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    /// The turn in which this was last polled.
    number: u64,
    rounds: u64,
}

impl Future for YieldIfDue {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        TURN.with(|turn| match self.waits {
            None if !turn.is_over() => Poll::Ready(()),
            waits => {
                let number = turn.number.get();
                let mut waits = waits.unwrap_or_else(|| Waits { number, rounds: turn.rounds() });
                if waits.number != number {
                    waits = Waits { number, rounds: waits.rounds - 1 };
                }
                if waits.rounds == 0 {
                    return Poll::Ready(());
                }
                self.waits = Some(waits);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
    }
}
