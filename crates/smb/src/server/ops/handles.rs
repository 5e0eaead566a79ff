//! Server-wide state of handles, beyond sessions: their persistent ids, and leases.
//!
//! Spec: [MS-SMB2] 3.3.1.5 (global structures: GlobalOpenTable, GlobalLeaseTableList). Owns the next handle number, and
//! the tables of leases, of opens without a session, of repeatable CREATEs, of tunnelled 8.3 names, of offload tokens,
//! and of records that wait for their shares. Opens with a session are in the session's table.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_store::vfs::{ShareKey, Vfs};

use super::durable::{MAX_PRESERVED, Preserved};
use super::instances::Instances;
use super::lease::Leases;
use super::offload::Tokens;
use super::replay::Creates;
use super::tunnel::Tunnel;
use crate::server::user_id::UserId;

/// Records of the last runs that wait for their shares: as many as handles that wait for their clients.
const MAX_UNRESTORED: usize = MAX_PRESERVED;

/// The server-wide handle state.
pub(crate) struct Handles {
    pub(super) leases: Arc<Leases>,
    pub(super) preserved: Arc<Preserved>,
    pub(super) creates: Arc<Creates>,
    pub(super) instances: Instances,
    pub(super) tunnel: Arc<Tunnel>,
    pub(super) tokens: Arc<Tokens>,
    /// Persistent handles with a record that could not be restored yet. At most [`MAX_UNRESTORED`].
    unrestored: Mutex<HashSet<u64>>,
    next: AtomicU64,
}

impl Default for Handles {
    fn default() -> Handles {
        Handles {
            leases: Arc::default(),
            preserved: Arc::default(),
            creates: Arc::default(),
            instances: Instances::default(),
            tunnel: Arc::default(),
            tokens: Arc::default(),
            unrestored: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }
}

impl Handles {
    /// Marks a number as used by a handle of the last run.
    pub(super) fn taken(&self, number: u64) {
        self.next.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// The handles that could not be restored yet.
    pub(in crate::server) fn unrestored(&self) -> MutexGuard<'_, HashSet<u64>> {
        // Each change is one call of the set.
        self.unrestored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a handle wait for its share; false if there is no room.
    pub(super) fn await_share(&self, number: u64) -> bool {
        let mut unrestored = self.unrestored();
        unrestored.contains(&number) || unrestored.len() < MAX_UNRESTORED && unrestored.insert(number)
    }

    /// Closes the handles that wait for a client, except those for whose user, by name and id, and files `stays` is
    /// true.
    pub(in crate::server) fn close_waiting_unless(&self, stays: impl Fn(&str, Option<UserId>, &Vfs) -> bool) {
        self.preserved.close_unless(stays);
    }

    /// Ends the tokens of copies, except those for whose user and share `stays` is true.
    pub(in crate::server) fn end_tokens_unless(&self, stays: impl Fn(&str, ShareKey) -> bool) {
        self.tokens.keep_only(stays);
    }

    /// Number of repeatable CREATEs.
    #[cfg(test)]
    pub(in crate::server) fn creates(&self) -> usize {
        self.creates.len()
    }

    /// FileId.Persistent of the next open: unique while the server runs, and never all ones.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
