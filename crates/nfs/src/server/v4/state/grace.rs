//! The grace period: after a restart, clients that had state may reclaim it before others are admitted.
//!
//! See RFC 7530 9.6.2 and RFC 8881 8.4.2. It records who may reclaim, and reserves the tables of opens, which other
//! protocols respect. `durable` remembers clients over a restart.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weft_machine::Time;
use weft_store::opens::{Opens, Reservation};

use crate::server::durable::Who;

/// When the period ends, and for whom it lasts.
pub struct Grace {
    over: AtomicBool,
    until: Time,
    /// There are also NLM clients, which do not report the end of their reclaims.
    silent: bool,
    /// Clients that had state and have not finished reclaiming.
    waiting: Mutex<HashSet<Who>>,
    /// Excludes others while it lasts.
    reserved: Mutex<Vec<Reservation>>,
}

impl Grace {
    /// These clients had state, and with `silent` others too: they may reclaim until `until`. Without any, there is
    /// no grace period.
    pub fn until(until: Time, who: impl IntoIterator<Item = Who>, silent: bool) -> Grace {
        let waiting: HashSet<Who> = who.into_iter().collect();
        let over = AtomicBool::new(waiting.is_empty() && !silent);
        Grace { over, until, silent, waiting: Mutex::new(waiting), reserved: Mutex::default() }
    }

    /// Reserves these tables, too, for reclaims, as long as the period lasts.
    pub fn reserve<'a>(&self, tables: impl Iterator<Item = &'a Arc<Opens>>, now: Time) {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, which `end` takes after the flag is set.
        if !self.over.load(Ordering::Acquire) && now < self.until {
            reserved.extend(tables.map(|opens| opens.reserve(self.until)));
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

    /// The clients that did not return in time; reports them once.
    pub fn missed(&self, now: Time) -> Vec<Who> {
        if self.lasts(now) {
            return Vec::new();
        }
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain().collect()
    }

    /// This client has finished reclaiming. After the last one, the period ends. Returns whether it had state before.
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
