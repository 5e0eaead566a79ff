//! The grace period: after a restart, those who had state before may take it back before anybody else gets in.
//!
//! Spec: RFC 7530 9.6.2, RFC 8881 8.4.2. Owns: who may reclaim, and with that the reservation of the tables of opens, which other
//! protocols keep. Does not: remember clients over a restart (`durable`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weft_machine::Time;
use weft_store::opens::{Opens, Reservation};

use crate::server::durable::Who;

/// Until when, and for whom.
pub struct Grace {
    over: AtomicBool,
    until: Time,
    /// There are clients of NLM, too, and those do not say when they are done.
    silent: bool,
    /// Clients that had state before and have not said that they are done.
    waiting: Mutex<HashSet<Who>>,
    /// Keeps others out while it lasts.
    reserved: Mutex<Vec<Reservation>>,
}

impl Grace {
    /// These had something, and `silent` others: they have until `until`. When there are none, the period is over before
    /// it begins.
    pub fn until(until: Time, who: impl IntoIterator<Item = Who>, silent: bool) -> Grace {
        let waiting: HashSet<Who> = who.into_iter().collect();
        let over = AtomicBool::new(waiting.is_empty() && !silent);
        Grace { over, until, silent, waiting: Mutex::new(waiting), reserved: Mutex::default() }
    }

    /// Keeps these tables for those who reclaim, for as long as it lasts.
    pub fn reserve<'a>(&self, tables: impl Iterator<Item = &'a Arc<Opens>>) {
        if !self.over.load(Ordering::Acquire) {
            let reserved = tables.map(|opens| opens.reserve(self.until)).collect();
            *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = reserved;
        }
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
        let reserved = std::mem::take(&mut *self.reserved.lock().unwrap_or_else(PoisonError::into_inner));
        drop(reserved);
    }

    /// Whether it still lasts.
    pub fn lasts(&self, now: Time) -> bool {
        if self.over.load(Ordering::Acquire) {
            return false;
        }
        if now < self.until {
            return true;
        }
        self.end();
        false
    }

    /// Whether this client had state before the restart.
    pub fn may_reclaim(&self, who: &Who) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.contains(who) || waiting.contains(&who.of_anybody())
    }

    /// Those that did not come back in time, once.
    pub fn missed(&self, now: Time) -> Vec<Who> {
        if self.lasts(now) {
            return Vec::new();
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain().collect()
    }

    /// This client has all that it wants. When it was the last one, the period is over. Whether it had anything before.
    pub fn done(&self, who: &Who) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = waiting.remove(who) | waiting.remove(&who.of_anybody());
        let last = waiting.is_empty() && !self.silent;
        drop(waiting);
        if last {
            self.end();
        }
        known
    }
}
