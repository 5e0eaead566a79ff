//! What the server knows of handles beyond the sessions that have them: their persistent ids, and leases.
//!
//! Spec: [MS-SMB2] 3.3.1.5 (global structures: GlobalOpenTable, GlobalLeaseTableList).
//! Owns: the number that the next handle gets, and the tables of leases, of opens without a session, of CREATEs
//! that may come again, of 8.3 names that may, and of tokens. Does not: keep opens that have a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::durable::Preserved;
use super::instances::Instances;
use super::lease::Leases;
use super::offload::Tokens;
use super::replay::Creates;
use super::tunnel::Tunnel;

/// The handles of a server.
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
    /// This number is taken by a handle of the last run.
    pub(super) fn taken(&self, number: u64) {
        self.next.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// How many CREATEs are known that can come again.
    #[cfg(test)]
    pub(in crate::server) fn creates(&self) -> usize {
        self.creates.len()
    }

    /// FileId.Persistent of the next open: unique while the server runs, and never all ones.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
