//! The grace period: after a restart, those who had state before may take it back before anybody else gets in.
//!
//! Spec: RFC 7530 9.6.2, RFC 8881 8.4.2. Owns: who may reclaim. Does not: remember clients over a restart (`durable`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use weft_machine::Time;

use crate::server::durable::Who;

/// Until when, and for whom.
pub struct Grace {
    over: AtomicBool,
    until: Time,
    /// There are clients of NLM, too, and those do not say when they are done.
    silent: bool,
    /// Clients that had state before and have not said that they are done.
    waiting: Mutex<HashSet<Who>>,
}

impl Grace {
    /// These had something, and `silent` others: they have until `until`. When there are none, the period is over before
    /// it begins.
    pub fn until(until: Time, who: impl IntoIterator<Item = Who>, silent: bool) -> Grace {
        let waiting: HashSet<Who> = who.into_iter().collect();
        let over = AtomicBool::new(waiting.is_empty() && !silent);
        Grace { over, until, silent, waiting: Mutex::new(waiting) }
    }

    /// Whether it still lasts.
    pub fn lasts(&self, now: Time) -> bool {
        if self.over.load(Ordering::Acquire) {
            return false;
        }
        if now < self.until {
            return true;
        }
        self.over.store(true, Ordering::Release);
        false
    }

    /// Whether this client had state before the restart.
    pub fn may_reclaim(&self, who: &Who) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).contains(who)
    }

    /// Those that did not come back in time, once.
    pub fn missed(&self, now: Time) -> Vec<Who> {
        if self.lasts(now) {
            return Vec::new();
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain().collect()
    }

    /// This client has all that it wants. When it was the last one, the period is over.
    pub fn done(&self, who: &Who) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.remove(who);
        if waiting.is_empty() && !self.silent {
            self.over.store(true, Ordering::Release);
        }
    }
}
