//! A lease: when a client was last heard of, and whether its state still exists.
//!
//! See RFC 7530 9.5 and RFC 8881 8.3. All states and sessions of a client share these atomics. An expired lease is
//! honoured until another client wants what it covers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use weft_machine::Time;

use super::owned::Owned;

/// The lease of one client.
#[derive(Debug)]
pub struct Lease {
    /// The client's id.
    pub client: u64,
    /// The owner of the client's record.
    pub owned: Owned,
    renewed: AtomicU64,
    ended: AtomicBool,
    /// Number of delegations that the client holds.
    pub delegations: AtomicUsize,
    /// Number of revoked delegations that the client has not freed yet.
    pub revoked: AtomicUsize,
}

impl Lease {
    pub fn new(client: u64, owned: Owned, now: Time) -> Lease {
        Lease {
            client,
            owned,
            renewed: AtomicU64::new(now.as_nanos()),
            ended: AtomicBool::new(false),
            delegations: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
        }
    }

    /// The client was heard of now.
    pub fn renew(&self, now: Time) {
        self.renewed.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// When it was last heard of.
    pub fn renewed(&self) -> Time {
        Time::from_nanos(self.renewed.load(Ordering::Relaxed))
    }

    /// Whether the client has been silent for longer than `lease`.
    pub fn lapsed(&self, now: Time, lease: Duration) -> bool {
        now.since(self.renewed()) > lease
    }

    /// The client's state is taken, or the client is replaced. The caller holds the lock of its state, to which
    /// nothing is added afterwards.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
