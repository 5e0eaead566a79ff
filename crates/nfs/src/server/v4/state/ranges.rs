//! The byte ranges of one owner in one file, as their client is charged for them.
//!
//! Owns: the charge. Does not: keep the ranges; the store's table of opens does, beside those of SMB.
//!
//! A LOCK adds two ranges at most: its own, and a piece more of one that it splits. So room for two is taken before it is
//! tried, and what it did not need is given back. An UNLOCK may split a range, too; without room for the piece it still
//! gives back whatever leaves no further piece, so that a client that is out of memory can let go of what it holds.
//!
//! A LOCK and the end of what it is for (CLOSE, or a client that goes) come from two connections, on two cores. The end takes
//! the same lock as a LOCK, once, and the ranges are released after it: so none is set that nobody would release.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_machine::Charge;
use weft_machine::budget::Full;
use weft_store::NodeId;
use weft_store::opens::{LockOwner, Opens, Range};

use super::budget::RANGE_BYTES;

/// Ranges that one LOCK adds at most.
const ADDED_BY_LOCK: usize = 2;

/// What the ranges of one owner in one file are charged.
pub struct Ranges {
    /// For what they hang on, whatever their number.
    base_bytes: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    charge: Charge,
    /// What they hang on has ended.
    ended: bool,
}

/// Whose ranges they are.
#[derive(Clone, Copy)]
pub struct LockedBy<'a> {
    pub opens: &'a Opens,
    pub node: NodeId,
    pub owner: LockOwner,
}

impl LockedBy<'_> {
    /// How many they are.
    fn count(&self) -> usize {
        self.opens.ranges_of(self.node, self.owner).len()
    }
}

/// Why no range was locked or unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// There is no memory for it.
    Full,
    /// What the ranges hang on has ended.
    Ended,
}

impl Ranges {
    /// None yet; `charge` is for what they will hang on.
    pub fn new(charge: Charge) -> Ranges {
        Ranges { base_bytes: charge.bytes(), inner: Mutex::new(Inner { charge, ended: false }) }
    }

    // What is changed is one number, or one word, at a time.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless they have ended.
    fn living(&self) -> Result<MutexGuard<'_, Inner>, Unchanged> {
        let inner = self.inner();
        if inner.ended { Err(Unchanged::Ended) } else { Ok(inner) }
    }

    /// No range is locked or unlocked from now on. Whoever ends them releases those that are locked.
    pub fn end(&self) {
        self.inner().ended = true;
    }

    /// The same if none is locked; whether it is so.
    pub fn end_empty(&self, by: LockedBy<'_>) -> bool {
        let mut inner = self.inner();
        inner.ended |= !by.opens.holds_ranges(by.node, by.owner);
        inner.ended
    }

    /// Carries out `act`, which locks one range, if there is room for what that may add.
    pub fn lock<T>(&self, by: LockedBy<'_>, act: impl FnOnce() -> T) -> Result<T, Unchanged> {
        let inner = self.living()?;
        inner.charge.grow(ADDED_BY_LOCK.saturating_mul(RANGE_BYTES)).map_err(|Full| Unchanged::Full)?;
        let done = act();
        self.settle(&inner.charge, by.count());
        Ok(done)
    }

    /// Carries out `act`, which unlocks `range`.
    pub fn unlock<T>(&self, by: LockedBy<'_>, range: Range, act: impl FnOnce() -> T) -> Result<T, Unchanged> {
        let inner = self.living()?;
        if let Err(Full) = inner.charge.grow(RANGE_BYTES)
            && by.opens.ranges_of(by.node, by.owner).iter().any(|(held, _)| splits(*held, range))
        {
            return Err(Unchanged::Full);
        }
        let done = act();
        self.settle(&inner.charge, by.count());
        Ok(done)
    }

    fn settle(&self, charge: &Charge, ranges: usize) {
        let wanted = self.base_bytes.saturating_add(ranges.saturating_mul(RANGE_BYTES));
        charge.shrink(charge.bytes().saturating_sub(wanted));
    }
}

/// Whether taking `range` out of `held` leaves two pieces.
fn splits(held: Range, range: Range) -> bool {
    let end = |range: Range| range.offset.saturating_add(range.len);
    held.offset < range.offset && end(range) < end(held)
}
