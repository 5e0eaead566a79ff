//! The progress of a copy that continues after its reply.
//!
//! See RFC 7862 4.8 (state ids of copies), 15.8 and 15.9. `ops::copy` does the copying.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_wire::nfs4::{Stateid, Status};

use super::numbers::Other;

/// One copy.
pub struct Offload {
    pub other: Other,
    copied: AtomicU64,
    cancelled: AtomicBool,
    ended: OnceLock<Status>,
}

impl Offload {
    pub fn new(other: Other) -> Offload {
        Offload {
            other,
            copied: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            ended: OnceLock::new(),
        }
    }

    pub fn stateid(&self) -> Stateid {
        Stateid { seqid: 1, other: self.other }
    }

    /// Bytes copied so far.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Acquire)
    }

    pub fn add(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Cancels the remainder.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// The copy has ended with this status.
    pub fn end(&self, status: Status) {
        let _ = self.ended.set(status);
    }

    /// The status, if the copy has ended.
    pub fn outcome(&self) -> Option<Status> {
        self.ended.get().copied()
    }
}
