//! A lease: how long ago a client was heard of, and whether its state is still there.
//!
//! Spec: RFC 7530 9.5, RFC 8881 8.3. Owns: words that every state and session of the client shares.
//! Does not: take anything away. A lease that ran out is honoured until somebody else wants what it covers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use weft_machine::Time;

use super::owned::Owned;

/// Of one client.
#[derive(Debug)]
pub struct Lease {
    /// The client's id.
    pub client: u64,
    /// Whose it is.
    pub owned: Owned,
    renewed: AtomicU64,
    ended: AtomicBool,
    /// Delegations that the client holds.
    pub delegations: AtomicUsize,
    /// Delegations that were taken from it and that it has not freed.
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

    /// The client was heard of.
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

    /// The client's state is taken away, or it is replaced: with what it holds locked, which nothing comes to then.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
