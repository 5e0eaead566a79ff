//! Server-wide state of handles, beyond sessions: their persistent ids, and leases.
//!
//! Spec: [MS-SMB2] 3.3.1.5 (global structures: GlobalOpenTable, GlobalLeaseTableList). Owns the next handle number, and
//! the tables of leases, of opens without a session, of repeatable CREATEs, of tunnelled 8.3 names, and of offload
//! tokens. Opens with a session are in the session's table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_store::vfs::{ShareKey, Vfs};

use super::durable::Preserved;
use super::instances::Instances;
use super::lease::Leases;
use super::offload::Tokens;
use super::replay::Creates;
use super::tunnel::Tunnel;

/// The server-wide handle state.
pub(crate) struct Handles {
    pub(super) leases: Arc<Leases>,
    pub(super) preserved: Arc<Preserved>,
    pub(super) creates: Arc<Creates>,
    pub(super) instances: Instances,
    pub(super) tunnel: Arc<Tunnel>,
    pub(super) tokens: Arc<Tokens>,
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
            next: AtomicU64::new(1),
        }
    }
}

impl Handles {
    /// Marks a number as used by a handle of the last run.
    pub(super) fn taken(&self, number: u64) {
        self.next.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// Closes the handles that wait for a client, except those for whose user and files `stays` is true.
    pub(in crate::server) fn close_waiting_unless(&self, stays: impl Fn(&str, &Vfs) -> bool) {
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
