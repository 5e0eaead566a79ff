//! What the server knows of handles beyond the sessions that have them: their persistent ids, and leases.
//!
//! Spec: [MS-SMB2] 3.3.1.5 (global structures: GlobalOpenTable, GlobalLeaseTableList).
//! Owns: the number that the next handle gets, and the tables of leases, of opens without a session, and of CREATEs
//! that may come again. Does not: keep opens that have a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::durable::Preserved;
use super::lease::Leases;
use super::replay::Creates;

/// The handles of a server.
pub(crate) struct Handles {
    pub(super) leases: Arc<Leases>,
    pub(super) preserved: Arc<Preserved>,
    pub(super) creates: Arc<Creates>,
    next: AtomicU64,
}

impl Default for Handles {
    fn default() -> Handles {
        Handles {
            leases: Arc::default(),
            preserved: Arc::default(),
            creates: Arc::default(),
            next: AtomicU64::new(1),
        }
    }
}

impl Handles {
    /// FileId.Persistent of the next open: unique while the server runs, and never all ones.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}
