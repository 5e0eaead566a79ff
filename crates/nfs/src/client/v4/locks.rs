//! The byte-range locks of an open file, and how their loss is noticed. `locking` sends LOCK and LOCKU.
//!
//! See RFC 8881 8.2.2 (state ids) and 9.1.2 (their use by READ and WRITE).
//! Each open file is a lock owner of its own. Its first LOCK names that owner (open_to_lock_owner4) and returns the
//! state id of the owner's locks, which later requests use.
//!
//! A LOCK that ends without a reply, because the caller gave up or the server could not be reached, may have been
//! granted. It is remembered until everything is unlocked. If it was the first one, the state id is unknown, too: the
//! same owner gets it again by the same LOCK (18.10.3).
//!
//! A LOCKU, WRITE or SETATTR that ends without a reply may be carried out after later requests. It would unlock what they
//! have locked, or change what is no longer locked. So the next LOCK or LOCKU first ensures that the server no longer
//! carries it out. After the CLOSE, its state id is not valid any more.
//!
//! The locks end when the server loses the open: it has restarted, or has not heard from this client for a lease
//! period. They are not reclaimed. The file then refuses to be read, written, locked or unlocked ([`Error::LocksLost`]),
//! because others may have changed what the caller believes to be locked. READs and WRITEs carry the locks' state id, so
//! the server refuses also one that is under way when the locks are lost.

use std::cell::{Cell, RefCell};

use futures_util::lock::Mutex;
use weft_wire::nfs4::{LockType, Stateid};

use crate::client::locks::{ByteRange, LockedRanges};

/// The locks of one open file.
#[derive(Default)]
pub(super) struct Locks {
    /// The state id of the owner's locks, once there were any. Its seqid is zero, which names the current one (8.2.2): a
    /// LOCK that was given up may have incremented it.
    pub(super) stateid: Cell<Option<Stateid>>,
    /// What is locked; what was locked, if the locks are lost.
    pub(super) held: RefCell<LockedRanges>,
    /// The last LOCK without a reply: the server may have locked this range, which is not in `held`. Without a state id
    /// there is at most one.
    pub(super) unanswered: Cell<Option<(LockType, ByteRange)>>,
    /// Whether the server may still carry out a request that ended without a reply.
    pub(super) unsettled: Cell<bool>,
    lost: Cell<bool>,
    /// Held while a LOCK or LOCKU is unanswered: the server carries them out in the order in which `held` changes. After
    /// the last LOCKU, that of [`Opened::close`](super::opened::Opened::close), no LOCK is sent.
    pub(super) turn: Mutex<()>,
}

impl Locks {
    /// Whether the caller believes to hold locks that the server has lost.
    pub fn are_lost(&self) -> bool {
        self.lost.get()
    }

    /// Whether the server may have locked something.
    pub fn may_be_held(&self) -> bool {
        !self.lost.get() && (!self.held.borrow().is_empty() || self.unanswered.get().is_some())
    }

    /// The state id for READ and WRITE while a range is locked, even if that lock is lost.
    pub fn in_use(&self) -> Option<Stateid> {
        self.stateid.get().filter(|_| !self.held.borrow().is_empty())
    }

    /// The guard to hold until a request that changes the file or its locks is answered.
    pub fn outstanding(&self) -> Outstanding<'_> {
        Outstanding { unsettled: &self.unsettled, answered: false }
    }

    /// The server does not know the state id, or has opened the file anew.
    pub fn forgotten(&self) {
        self.unanswered.set(None);
        match self.held.borrow().is_empty() {
            true => self.stateid.set(None),
            false => self.lost.set(true),
        }
    }
}

/// A request that the server must not carry out after a later one. If it gets no reply, because the caller gave up or
/// the server could not be reached, it is unsettled.
pub(super) struct Outstanding<'a> {
    unsettled: &'a Cell<bool>,
    answered: bool,
}

impl Outstanding<'_> {
    pub fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.unsettled.set(true);
        }
    }
}
