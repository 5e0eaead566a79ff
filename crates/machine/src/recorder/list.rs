//! The list of slow operations.

use super::book;
use super::told::Slow;
use crate::clock;
use crate::rt::turn;

/// The slow operations: those under way, the oldest first, then those that have ended, the latest first. No core is asked.
pub fn slow() -> Vec<Slow> {
    let (now, wall) = (turn::ticks(), clock::wall());
    let mut all = book::look(now);
    all.sort_by_key(|known| match known.at {
        Some(_) => (0, known.received),
        None => (1, u64::MAX - known.until),
    });
    all.into_iter().map(|known| Slow::new(known, now, wall)).collect()
}
