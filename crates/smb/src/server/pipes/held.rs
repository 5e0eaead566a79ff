//! What the pipes of all clients keep: fragments of calls that are not whole, answers that nobody has read.
//!
//! Whoever has logged on may have many pipes, and leave something in each. So all of it together has a bound, and the pipe that
//! would exceed it ends.
//! Owns: the sum.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all pipes of a server keep: some hundred calls of the longest kind, and 65,536 pipes without any.
pub(super) const MAX_HELD_BYTES: usize = 64 << 20;

/// The sum of a server. Cloning shares it.
#[derive(Clone, Default)]
pub(in crate::server) struct Held(Arc<AtomicUsize>);

/// What one pipe keeps; nothing once it is dropped.
#[derive(Default)]
pub(super) struct Holding {
    held: Held,
    bytes: usize,
}

impl Held {
    /// Room for so much; `None` when there is none.
    pub(super) fn hold(&self, bytes: usize) -> Option<Holding> {
        let mut holding = Holding { held: self.clone(), bytes: 0 };
        holding.set(bytes).then_some(holding)
    }

    #[cfg(test)]
    pub(in crate::server) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Holding {
    /// It is so much now. `false`: there is no room for more than before.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        let sum = &self.held.0;
        if let Some(less) = self.bytes.checked_sub(bytes) {
            sum.fetch_sub(less, Ordering::Relaxed);
            self.bytes = bytes;
            return true;
        }
        let more = bytes.saturating_sub(self.bytes);
        let grown = |sum: usize| sum.checked_add(more).filter(|sum| *sum <= MAX_HELD_BYTES);
        let fits = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok();
        if fits {
            self.bytes = bytes;
        }
        fits
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_bounded_and_comes_back() {
        let held = Held::default();
        let mut first = held.hold(MAX_HELD_BYTES - 10).unwrap();
        let mut second = held.hold(10).unwrap();
        assert!(!second.set(11) && held.hold(1).is_none());
        assert!(first.set(5) && second.set(11));
        assert_eq!(held.bytes(), 16);
        drop((first, second));
        assert_eq!(held.bytes(), 0);
    }
}
