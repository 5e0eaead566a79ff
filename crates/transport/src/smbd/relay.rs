//! One waker for a queue pair whose events interest several tasks.
//!
//! [`Relay`] wakes the reader that sleeps in `recv`, and after it the connection's own task. The reader gets its
//! message directly, and drives the connection while it checks (see [`crate::Channel::recv`]): the task is woken only
//! if no reader sleeps, or if somebody waits for something other than messages. The relay holds both wakers; it does
//! not know which event occurred.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Shared by the queue pair (as a waker) and the connection.
#[derive(Debug, Default)]
pub(super) struct Relay {
    wakers: Mutex<Wakers>,
    /// The task that works on the queue pair polls it before it stops, so nobody needs to be woken.
    muted: AtomicBool,
    /// Somebody waits for something other than messages.
    task_needed: AtomicBool,
}

#[derive(Debug, Default)]
struct Wakers {
    reader: Option<Waker>,
    task: Option<Waker>,
}

impl Relay {
    fn lock(&self) -> MutexGuard<'_, Wakers> {
        // Nothing panics while the lock is held.
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a sleeping reader.
    pub(super) fn set_reader(&self, waker: &Waker) {
        set(&mut self.lock().reader, waker);
    }

    /// No reader sleeps any more.
    pub(super) fn clear_reader(&self) {
        self.lock().reader = None;
    }

    /// Registers the connection's own task.
    pub(super) fn set_task(&self, waker: &Waker) {
        set(&mut self.lock().task, waker);
    }

    /// Wakes the connection's own task.
    pub(super) fn wake_task(&self) {
        let waker = self.lock().task.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the reader, if one sleeps: somebody else found a message for it.
    pub(super) fn wake_reader(&self) {
        let waker = self.lock().reader.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the queue pair wakes nobody from now on. Whoever mutes it polls it until nothing is left.
    pub(super) fn mute(&self, muted: bool) {
        self.muted.store(muted, Ordering::Relaxed);
    }

    /// Whether events of the queue pair wake the task even while a reader sleeps.
    pub(super) fn need_task(&self, needed: bool) {
        self.task_needed.store(needed, Ordering::Relaxed);
    }

    /// Wakes both, the reader first.
    pub(super) fn wake_all(&self) {
        // The lock is not held while waking, because a waker may run code of an executor.
        let (reader, task) = {
            let wakers = &mut *self.lock();
            (wakers.reader.clone(), wakers.task.clone())
        };
        reader.into_iter().chain(task).for_each(Waker::wake);
    }
}

fn set(slot: &mut Option<Waker>, waker: &Waker) {
    match slot {
        Some(old) => old.clone_from(waker),
        None => *slot = Some(waker.clone()),
    }
}

impl Wake for Relay {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        // Only one thread uses a connection, including its provider: the flags need no ordering.
        if self.muted.load(Ordering::Relaxed) {
            return;
        }
        let reader = self.lock().reader.clone();
        match reader {
            Some(reader) if !self.task_needed.load(Ordering::Relaxed) => reader.wake(),
            _ => self.wake_all(),
        }
    }
}
