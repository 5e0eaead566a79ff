//! The end of all connections: a flag, and the wakers to call when it is raised.

use std::task::Context;

use super::changes::{ChangeCount, Follower};

/// Shared by all connections, on all cores. The flag is raised once it has changed.
#[derive(Default)]
pub struct Drain(ChangeCount);

/// A connection's registration.
pub struct Drainee<'a>(Follower<'a>);

impl Drain {
    /// Raises the flag: every sleeping connection checks it again.
    pub fn begin(&self) {
        self.0.advance();
    }

    /// Registers a connection until the result is dropped.
    pub fn join(&self) -> Drainee<'_> {
        Drainee(self.0.follow())
    }
}

impl Drainee<'_> {
    /// Whether the flag is raised; if not, `cx` is woken when it is.
    pub fn poll(&mut self, cx: &Context<'_>) -> bool {
        self.0.poll(cx) > 0
    }
}
