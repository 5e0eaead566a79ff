//! What the receiver of a connection holds of a message that has not arrived in full, readable from any core.
//!
//! The receiver notes it whenever it sleeps, so what is noted is waited for from the peer. A server judges by it who keeps
//! memory that others need.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// See the module. Each field is a number of its own, so no order among them is needed.
#[derive(Debug, Default)]
pub struct Arriving {
    held_bytes: AtomicUsize,
    received_bytes: AtomicU64,
    messages: AtomicU64,
}

/// What was noted last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Memory for a message whose remainder the peer owes; zero if no message has begun, or nobody receives.
    pub held_bytes: usize,
    /// Bytes received so far, of this message and those before.
    pub received_bytes: u64,
    /// Messages received so far.
    pub messages: u64,
}

impl Arriving {
    /// What was noted last.
    pub fn arrived(&self) -> Arrived {
        Arrived {
            held_bytes: self.held_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
        }
    }

    /// The receiver sleeps.
    pub fn note(&self, arrived: Arrived) {
        self.held_bytes.store(arrived.held_bytes, Ordering::Relaxed);
        self.received_bytes.store(arrived.received_bytes, Ordering::Relaxed);
        self.messages.store(arrived.messages, Ordering::Relaxed);
    }

    /// The peer is not waited for.
    pub(crate) fn pause(&self) {
        self.held_bytes.store(0, Ordering::Relaxed);
    }
}
