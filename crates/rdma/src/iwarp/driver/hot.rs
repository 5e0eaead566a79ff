//! Polls the sockets of connections that exchange small messages directly, without asking epoll first.
//!
//! [`Hot`] is a poller of the core (see `weft_machine::rt::Poller`). It holds one of the few slots that a core has for
//! such sockets. It does not receive; the link does.
//!
//! Without it, a spinning core asks epoll and wakes the receiving task, which receives: two system calls and a task
//! switch for each message of a ping-pong. A receive that finds nothing costs no more than an epoll_wait that finds
//! nothing, so a connection that recently received a small message is tried directly. Only a few are tried at a time,
//! and only for a short while.

use std::cell::Cell;
use std::rc::Weak;

use weft_machine::rt::Poller;

use super::Link;

/// Connections of a core that may be hot at the same time.
const MAX_HOT: usize = 2;
/// A connection that receives more than this at a time is not hot: polling it often would cut a large transfer into
/// pieces.
const SMALL_BYTES: usize = 16 << 10;
/// A connection stops being hot after this many empty polls: about as long as a core spins.
const MAX_MISSES: u32 = 96;

thread_local! {
    static HOT: Cell<usize> = const { Cell::new(0) };
}

/// See the module.
pub(super) struct Hot {
    link: Weak<Link>,
    hot: Cell<bool>,
    misses: Cell<u32>,
}

impl Hot {
    pub(super) fn new(link: Weak<Link>) -> Hot {
        Hot { link, hot: Cell::new(false), misses: Cell::new(0) }
    }

    /// `bytes` bytes arrived.
    pub(super) fn came(&self, bytes: usize) {
        if bytes > SMALL_BYTES {
            return self.cool();
        }
        self.misses.set(0);
        if !self.hot.get() && HOT.get() < MAX_HOT {
            HOT.set(HOT.get().saturating_add(1));
            self.hot.set(true);
        }
    }

    fn cool(&self) {
        if self.hot.replace(false) {
            // During thread exit the counter may already be gone.
            let _ = HOT.try_with(|count| count.set(count.get().saturating_sub(1)));
        }
    }
}

impl Drop for Hot {
    fn drop(&mut self) {
        self.cool();
    }
}

impl Poller for Hot {
    fn poll(&self) -> bool {
        if !self.hot.get() {
            return false;
        }
        match self.link.upgrade() {
            Some(link) if link.try_receive() => true,
            link => {
                self.misses.set(self.misses.get().saturating_add(1));
                if link.is_none() || self.misses.get() >= MAX_MISSES {
                    self.cool();
                }
                false
            }
        }
    }

    /// While the core sleeps, epoll watches this socket like any other.
    fn before_sleep(&self) -> bool {
        self.cool();
        true
    }

    fn after_sleep(&self) {}
}
