//! The background: tasks whose turns are long get one after another, between those of the other tasks.
//!
//! Otherwise a task with little to do waits for the turns of all that have much: beside 70 connections that list long
//! folders, each round trip of a client that logs on would take 140 ms. [`schedule`] decides who waits here, who runs
//! next and for how long; this file owns the queue of each thread's loop and tells it the time.

mod schedule;

use std::cell::RefCell;
use std::task::{Context, Waker};

use super::turn;

pub(super) use schedule::Account;

pub(super) type Queue = schedule::Queue<Waker>;

thread_local! {
    static QUEUE: RefCell<Queue> = RefCell::default();
}

/// How long a task, which is woken, may run; `None` if it has to wait.
#[inline]
pub(super) fn turn(account: &Account, cx: &Context<'_>) -> Option<u64> {
    account.turn().or_else(|| wait_or_run(account, cx))
}

#[cold]
fn wait_or_run(account: &Account, cx: &Context<'_>) -> Option<u64> {
    QUEUE.with_borrow_mut(|queue| queue.wait_or_run(account, turn::ticks(), || cx.waker().clone()))
}

/// A task's turn has just ended, after so many ticks.
#[inline]
pub(super) fn ran(account: &Account, ticks: u64) {
    if account.matters(ticks) {
        enter(account, ticks);
    }
}

#[cold]
fn enter(account: &Account, ticks: u64) {
    QUEUE.with_borrow_mut(|queue| queue.ran(account, turn::ended(), ticks));
}

/// Called in each turn of the loop, with the polls of tasks so far and whether more tasks are hot: lets tasks in the
/// background run if it is their turn. Returns whether one runs or waits.
pub(super) fn offer(polls: u64, more: bool) -> bool {
    QUEUE.with_borrow_mut(|queue| {
        if queue.is_empty() {
            queue.rest(polls);
            return false;
        }
        queue.offer(turn::ticks(), polls, more, Waker::wake_by_ref);
        !queue.is_empty()
    })
}

/// Whether no task of this thread waits in the background or was granted a turn.
pub(super) fn is_empty() -> bool {
    QUEUE.with_borrow(Queue::is_empty)
}

/// A loop begins on this thread, or, with its queue, goes on. Returns the queue of the one before.
pub(super) fn replace(with: Queue) -> Queue {
    QUEUE.replace(with)
}

#[cfg(test)]
mod tests;
