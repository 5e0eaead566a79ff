//! The byte ranges of one owner in one file, as their client is charged for them.
//!
//! Owns: the charge. Does not: keep the ranges; the store's table of opens does, beside those of SMB.
//!
//! A LOCK adds two ranges at most: its own, and a piece more of one that it splits. So room for two is taken before it is
//! tried, and what it did not need is given back. An UNLOCK may split a range, too; without room for the piece it still
//! gives back whatever leaves no further piece, so that a client that is out of memory can let go of what it holds.

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
    charge: Mutex<Charge>,
}

impl Ranges {
    /// None yet; `charge` is for what they will hang on.
    pub fn new(charge: Charge) -> Ranges {
        Ranges { base_bytes: charge.bytes(), charge: Mutex::new(charge) }
    }

    // What is changed is one number at a time.
    fn charge(&self) -> MutexGuard<'_, Charge> {
        self.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out `act`, which locks one range of `owner` in `node`, if there is room for what that may add.
    pub fn lock<T>(
        &self,
        (opens, node, owner): (&Opens, NodeId, LockOwner),
        act: impl FnOnce() -> T,
    ) -> Result<T, Full> {
        let charge = self.charge();
        charge.grow(ADDED_BY_LOCK.saturating_mul(RANGE_BYTES))?;
        let done = act();
        self.settle(&charge, opens.ranges_of(node, owner).len());
        Ok(done)
    }

    /// Carries out `act`, which unlocks `range` of `owner` in `node`.
    pub fn unlock<T>(
        &self,
        (opens, node, owner): (&Opens, NodeId, LockOwner),
        range: Range,
        act: impl FnOnce() -> T,
    ) -> Result<T, Full> {
        let charge = self.charge();
        if let Err(full) = charge.grow(RANGE_BYTES)
            && opens.ranges_of(node, owner).iter().any(|(held, _)| splits(*held, range))
        {
            return Err(full);
        }
        let done = act();
        self.settle(&charge, opens.ranges_of(node, owner).len());
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
