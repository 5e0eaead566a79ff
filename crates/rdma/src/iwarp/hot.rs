//! A socket that is looked at without asking epoll first, while messages go to and fro on it.
//!
//! What: [`Hot`], a poller of the core (see `weft_machine::rt::Poller`). Spec: none.
//! Owns: one of the few places that a core has for such sockets. Does not: receive; the link does, whoever asks it.
//!
//! A core that spins asks epoll, wakes the receiving task, and that receives: two system calls and a task switch for
//! each message of a ping-pong. A receive that finds nothing costs no more than an epoll_wait that finds nothing, so
//! a connection on which something small came lately is tried directly. Few may be tried at a time, and not for long.

use std::cell::Cell;
use std::rc::Weak;

use weft_machine::rt::Poller;

use super::driver::Link;

/// Connections of a core that may be hot at a time.
const MAX_HOT: usize = 2;
/// A connection that brings more at a time is not one of those: looking often would cut a large transfer into pieces.
const SMALL_BYTES: usize = 16 << 10;
/// Looks in vain after which a connection is not hot any more: about as long as a core spins.
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

    /// So many bytes came.
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
            // During thread exit the count may be gone already.
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

    /// While the core sleeps, epoll watches this socket as any other.
    fn before_sleep(&self) -> bool {
        self.cool();
        true
    }

    fn after_sleep(&self) {}
}
