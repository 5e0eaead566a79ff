//! The expected state of the byte-range locks of one file: what the server has granted, as far as clients can know.
//!
//! A claim begins when its client gets the answer and ends before its client asks for the range to be unlocked. So the
//! server holds the lock at least as long as the claim lasts, unless it forgets clients: then nobody knows, and their
//! claims end. Two claims that exclude each other were therefore granted side by side.
//!
//! The locks of the two protocols differ ([MS-FSA] 2.1.5.8, 2.1.5.9; RFC 8881 9.1): SMB stacks them and unlocks exactly
//! what was locked; NFS replaces and splits them.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::model::Protocol;

/// A lock that a client holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The number of the worker.
    pub by: usize,
    /// Its protocol.
    pub protocol: Protocol,
    /// Bytes.
    pub range: Range<u64>,
    /// Whether nobody else may hold a lock there.
    pub exclusive: bool,
}

impl Claim {
    fn meets(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    /// Whether the server must not grant both.
    fn excludes(&self, other: &Claim) -> bool {
        // An SMB handle may add shared locks to its exclusive one.
        let own = self.by == other.by;
        self.meets(&other.range) && (other.exclusive || self.exclusive && !own)
    }

    /// What is left of it outside of a range.
    fn without(self, gone: &Range<u64>) -> impl Iterator<Item = Claim> {
        let left = self.range.start..self.range.end.min(gone.start);
        let right = self.range.start.max(gone.end)..self.range.end;
        let piece = move |range: Range<u64>| Claim { range, ..self.clone() };
        [left, right].into_iter().filter(|range| !range.is_empty()).map(piece)
    }
}

/// All claims of a world.
#[derive(Default)]
pub struct Locks {
    claims: RefCell<Vec<Claim>>,
    /// How often claims may have been lost.
    losses: Cell<u64>,
}

impl Locks {
    /// To be asked when a LOCK begins.
    pub fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// A lock is about to be requested: a shared lock of NFS replaces an exclusive one of the same client before the client
    /// hears of it.
    pub fn requested(&self, wish: &Claim) {
        if wish.protocol == Protocol::Nfs && !wish.exclusive {
            let weaker = |claim: Claim| match claim.by == wish.by && claim.meets(&wish.range) {
                true => Claim { exclusive: false, ..claim },
                false => claim,
            };
            let claims = self.claims.take();
            self.claims.replace(claims.into_iter().map(weaker).collect());
        }
    }

    /// A LOCK that began at so many losses was answered. Whether it is a claim; why that may not be.
    pub fn granted(&self, claim: Claim, losses: u64) -> Result<bool, String> {
        if self.losses.get() != losses {
            // The answer was on its way when the server forgot the lock.
            return Ok(false);
        }
        if claim.protocol == Protocol::Nfs {
            self.released(claim.by, claim.protocol, &claim.range);
        }
        let claims = &mut *self.claims.borrow_mut();
        if let Some(held) = claims.iter().find(|held| held.excludes(&claim)) {
            return Err(format!("{held:?} was granted, and so is {claim:?}"));
        }
        claims.push(claim);
        Ok(true)
    }

    /// A range is about to be unlocked. Whether its client has a claim that ends by that.
    pub fn released(&self, by: usize, protocol: Protocol, range: &Range<u64>) -> bool {
        let claims = &mut *self.claims.borrow_mut();
        let before = claims.clone();
        match protocol {
            Protocol::Nfs => {
                let cut = |claim: Claim| match claim.by == by {
                    true => claim.without(range).collect(),
                    false => vec![claim],
                };
                *claims = claims.drain(..).flat_map(cut).collect();
            }
            Protocol::Smb => {
                // An exclusive lock is unlocked before shared ones.
                let mine = |claim: &Claim| claim.by == by && claim.range == *range;
                let exclusive = claims.iter().position(|claim| mine(claim) && claim.exclusive);
                if let Some(at) = exclusive.or_else(|| claims.iter().position(mine)) {
                    claims.remove(at);
                }
            }
        }
        *claims != before
    }

    /// All locks of a client are about to be released, or are lost for a reason that the client knows.
    pub fn released_all(&self, by: usize) {
        self.claims.borrow_mut().retain(|claim| claim.by != by);
    }

    /// Whether this client holds anything.
    pub fn has_claims(&self, by: usize) -> bool {
        self.claims.borrow().iter().any(|claim| claim.by == by)
    }

    /// The server may have forgotten the locks of this protocol, or all.
    pub fn lost(&self, of: Option<Protocol>) {
        self.losses.set(self.losses.get() + 1);
        self.claims.borrow_mut().retain(|claim| of.is_some_and(|of| of != claim.protocol));
    }
}
