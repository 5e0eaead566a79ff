//! The byte ranges of one owner in one file, as charged to their client.
//!
//! This file keeps the charge; the store's table of opens keeps the ranges, beside those of SMB.
//!
//! A LOCK adds at most two ranges: its own, and the second piece of one that it splits. So memory for two is reserved
//! first, and the unused part is returned. An UNLOCK may also split a range. Without memory for the second piece it
//! still releases ranges that leave no further piece, so that a client without memory can release what it holds.
//!
//! A LOCK and the end of its object (CLOSE, or a client that goes) come from two connections, on two cores. The end
//! takes the same lock as a LOCK, once, and the ranges are released after it, so no range is set that nobody would
//! release.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_machine::Charge;
use weft_machine::budget::Full;
use weft_store::NodeId;
use weft_store::opens::{LockOwner, Opens, Range};

use super::budget::RANGE_BYTES;

/// Most ranges that one LOCK adds.
const ADDED_BY_LOCK: usize = 2;

/// The charge for the ranges of one owner in one file.
pub struct Ranges {
    /// The charge for the object that has the ranges.
    base_bytes: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    charge: Charge,
    /// The object that has the ranges has ended.
    ended: bool,
}

/// The owner of the ranges.
#[derive(Clone, Copy)]
pub struct LockedBy<'a> {
    pub opens: &'a Opens,
    pub node: NodeId,
    pub owner: LockOwner,
}

impl LockedBy<'_> {
    /// Their number.
    fn count(&self) -> usize {
        self.opens.ranges_of(self.node, self.owner).len()
    }
}

/// Why a range could not be locked or unlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// The budget has no memory left.
    Full,
    /// The object that has the ranges has ended.
    Ended,
}

impl Ranges {
    /// No ranges yet; `charge` is for the object that will have them.
    pub fn new(charge: Charge) -> Ranges {
        Ranges { base_bytes: charge.bytes(), inner: Mutex::new(Inner { charge, ended: false }) }
    }

    // Every change is one number or one word.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless they have ended.
    fn living(&self) -> Result<MutexGuard<'_, Inner>, Unchanged> {
        let inner = self.inner();
        if inner.ended { Err(Unchanged::Ended) } else { Ok(inner) }
    }

    /// Prevents further locking and unlocking. The caller releases the ranges that are locked.
    pub fn end(&self) {
        self.inner().ended = true;
    }

    /// The same if no range is locked; returns whether that was so.
    pub fn end_empty(&self, by: LockedBy<'_>) -> bool {
        let mut inner = self.inner();
        inner.ended |= !by.opens.holds_ranges(by.node, by.owner);
        inner.ended
    }

    /// Runs `act`, which locks one range, if there is memory for what that may add.
    pub fn lock<T>(&self, by: LockedBy<'_>, act: impl FnOnce() -> T) -> Result<T, Unchanged> {
        let inner = self.living()?;
        inner.charge.grow(ADDED_BY_LOCK.saturating_mul(RANGE_BYTES)).map_err(|Full| Unchanged::Full)?;
        let done = act();
        self.settle(&inner.charge, by.count());
        Ok(done)
    }

    /// Runs `act`, which unlocks `range`.
    pub fn unlock<T>(&self, by: LockedBy<'_>, range: Range, act: impl FnOnce() -> T) -> Result<T, Unchanged> {
        let inner = self.living()?;
        if let Err(Full) = inner.charge.grow(RANGE_BYTES)
            && by.opens.ranges_of(by.node, by.owner).iter().any(|held| splits(held.range, range))
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

/// Whether removing `range` from `held` leaves two pieces.
fn splits(held: Range, range: Range) -> bool {
    let end = |range: Range| range.offset.saturating_add(range.len);
    held.offset < range.offset && end(range) < end(held)
}
