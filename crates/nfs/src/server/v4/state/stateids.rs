//! State ids: map twelve bytes to an open, a set of locks or a delegation.
//!
//! See RFC 7530 9.1.4 and RFC 8881 8.2. [`Stateids`] is the table of states; `io` decides what a state permits.
//!
//! ```text
//! 0       4                 12
//! | epoch | client, number |      the rest of a stateid4 counts the changes of the state
//! ```
//! Client and number are hidden (see `numbers`), so an id cannot be guessed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::HashMap;
use weft_machine::Charge;
use weft_store::audit::AuditedOpen;
use weft_store::{Hold, OpenFile, Share, opens};
use weft_wire::nfs4::{Stateid, Status};

use super::numbers::{Other, Purpose};
use super::{Client, Delegation, Lease, LockOwner, Owner, Ranges, Speaker, States};
use crate::server::context::Node;
use crate::server::file_id::FileId;
use crate::server::shard;

const SHARDS: usize = 64;

/// An open, a set of locks, or a delegation.
pub struct State {
    pub other: Other,
    pub lease: Arc<Lease>,
    pub file: FileId,
    /// The share at the time of the open, for closing it when the share is gone.
    pub share: Arc<Share>,
    seqid: AtomicU32,
    ended: AtomicBool,
    pub kind: Kind,
    _charge: Charge,
}

/// The kind of a state.
pub enum Kind {
    /// An open.
    Open { owner: Arc<Owner>, held: RwLock<Held> },
    /// Locks of an owner on the file of an open.
    Lock { owner: Arc<LockOwner>, id: opens::LockOwner, open: Arc<State>, ranges: Ranges },
    /// A delegation. Its open file alone permits and denies nothing.
    Delegation { held: RwLock<Held>, right: Arc<Delegation> },
}

/// The resources of an open.
pub struct Held {
    /// `None` once closed.
    pub open: Option<opens::Open>,
    pub file: OpenFile,
    /// The charge for its descriptors, for as long as it keeps them.
    pub _descriptors: Charge,
    /// The user who opened it; others that send its id have only the rights of the mode bits.
    pub opener: u32,
    /// Keeps the node accessible when its name is removed.
    pub hold: Option<Hold>,
    /// The union of share_access over all its OPENs.
    pub access: u32,
    /// The union of share_deny over all its OPENs.
    pub deny: u32,
    /// Sets of locks under it.
    pub locks: Vec<Arc<State>>,
    /// The pairs of access and deny that were requested: bit `access + 4 * deny`.
    pub asked: u16,
    /// What the audit log is told of it, for each of the users who have opened it so; empty without an audit log, and
    /// for delegations.
    pub audited: Vec<AuditedOpen>,
}

impl State {
    /// Its current state id.
    pub fn stateid(&self) -> Stateid {
        Stateid { seqid: self.seqid.load(Ordering::Acquire), other: self.other }
    }

    /// Its state id after a change. The sequence number zero is skipped, because it means the current one (RFC 8881
    /// 8.2.2).
    pub fn changed(&self) -> Stateid {
        let mut seqid = self.seqid.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        if seqid == 0 {
            seqid = self.seqid.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        }
        Stateid { seqid, other: self.other }
    }

    /// Ends the state: a set of locks accepts no further range.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        if let Kind::Lock { ranges, .. } = &self.kind {
            ranges.end();
        }
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The owner of the open; a delegation has none.
    pub fn open_owner(&self) -> Option<&Arc<Owner>> {
        match &self.kind {
            Kind::Open { owner, .. } => Some(owner),
            Kind::Lock { open, .. } => open.open_owner(),
            Kind::Delegation { .. } => None,
        }
    }

    /// The delegation, if it is one.
    pub fn delegation(&self) -> Option<&Arc<Delegation>> {
        if let Kind::Delegation { right, .. } = &self.kind { Some(right) } else { None }
    }

    /// The resources of its open.
    pub fn held(&self) -> RwLockReadGuard<'_, Held> {
        match &self.kind {
            Kind::Open { held, .. } | Kind::Delegation { held, .. } => {
                held.read().unwrap_or_else(PoisonError::into_inner)
            }
            Kind::Lock { open, .. } => open.held(),
        }
    }

    /// The same, for changing them.
    pub fn held_mut(&self) -> RwLockWriteGuard<'_, Held> {
        match &self.kind {
            Kind::Open { held, .. } | Kind::Delegation { held, .. } => {
                held.write().unwrap_or_else(PoisonError::into_inner)
            }
            Kind::Lock { open, .. } => open.held_mut(),
        }
    }

    /// RFC 7530 9.1.4.2, RFC 8881 8.2.2: whether `seqid` is current. With sessions, zero is.
    pub fn is_current(&self, seqid: u32, sessions: bool) -> Result<(), Status> {
        let ahead = seqid.wrapping_sub(self.seqid.load(Ordering::Acquire)).cast_signed();
        match ahead {
            _ if seqid == 0 && sessions => Ok(()),
            0 => Ok(()),
            1.. => Err(Status::BAD_STATEID),
            _ => Err(Status::OLD_STATEID),
        }
    }
}

/// All states by id.
pub struct Stateids {
    shards: [Mutex<HashMap<Other, Arc<State>>>; SHARDS],
    next: AtomicU32,
}

impl Default for Stateids {
    fn default() -> Stateids {
        Stateids { shards: std::array::from_fn(|_| Mutex::default()), next: AtomicU32::new(1) }
    }
}

impl Stateids {
    // A map's insert or remove leaves it usable even if it panicked.
    fn shard(&self, other: &Other) -> MutexGuard<'_, HashMap<Other, Arc<State>>> {
        shard(&self.shards, usize::from(other[11])).lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, other: &Other) -> Option<Arc<State>> {
        self.shard(other).get(other).cloned()
    }

    pub fn remove(&self, other: &Other) {
        let gone = self.shard(other).remove(other);
        // Closing its file can take time, so it is done without the lock.
        drop(gone);
    }
}

impl States {
    /// An id that no state of this client has now.
    pub fn new_other(&self, client: &Client) -> Other {
        loop {
            let other = self.next_other(client.id);
            if self.ids.get(&other).is_none() {
                return other;
            }
        }
    }

    fn next_other(&self, client: u64) -> Other {
        let number = self.ids.next.fetch_add(1, Ordering::Relaxed);
        let number = u64::from(self.number_of(client)) << 32 | u64::from(number);
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.epoch.to_be_bytes());
        other[4..].copy_from_slice(&self.numbers.hide(Purpose::State, number).to_be_bytes());
        other
    }

    /// Enters a new state; its first sequence number is 1. `charge` is the client's charge for it.
    pub fn enter(&self, lease: Arc<Lease>, node: &Node<'_>, kind: Kind, charge: Charge) -> Arc<State> {
        let (file, share) = (node.file(), node.share.clone());
        loop {
            let other = self.next_other(lease.client);
            let mut shard = self.ids.shard(&other);
            // After 2^32 states the numbers wrap, and some may still be in use.
            if shard.contains_key(&other) {
                continue;
            }
            let (seqid, ended) = (AtomicU32::new(1), AtomicBool::new(false));
            let state = Arc::new(State { other, lease, file, share, seqid, ended, kind, _charge: charge });
            shard.insert(other, state.clone());
            return state;
        }
    }

    /// Removes a state's id.
    pub fn leave(&self, state: &State) {
        state.end();
        if state.delegation().is_some() {
            self.delegated.leave(state);
        }
        self.ids.remove(&state.other);
    }

    /// Removes a set of locks. The caller then releases its ranges.
    pub fn drop_locks(&self, state: &State) {
        self.leave(state);
        if let Kind::Lock { open, .. } = &state.kind {
            open.held_mut().locks.retain(|known| known.other != state.other);
        }
        if let Some(client) = self.holder(&state.lease) {
            let gone = client.mine().states.remove(&state.other);
            drop(gone);
        }
    }

    /// Removes a delegation that was returned, or was revoked and freed. The caller closes it.
    pub fn drop_delegation(&self, state: &State) {
        let Some(right) = state.delegation().filter(|_| !state.has_ended()) else { return };
        self.leave(state);
        right.give_back();
        let count = if right.is_revoked() { &state.lease.revoked } else { &state.lease.delegations };
        count.fetch_sub(1, Ordering::AcqRel);
        if let Some(client) = self.holder(&state.lease) {
            let mut mine = client.mine();
            if !right.is_revoked() {
                mine.delegated.remove(&state.file);
            }
            let gone = mine.states.remove(&state.other);
            drop(mine);
            drop(gone);
        }
    }

    /// The state that a client names. Ended states are found too, for repeated requests.
    pub fn find(&self, stateid: &Stateid, by: Speaker<'_>) -> Result<Arc<State>, Status> {
        let [e0, e1, e2, e3, hidden @ ..] = stateid.other;
        if u32::from_be_bytes([e0, e1, e2, e3]) != self.epoch {
            // With sessions, a restart shows in the session (RFC 8881 15.1.16.5).
            let special = stateid.other == [0; 12] || stateid.other == [0xff; 12];
            let stale = !by.has_session() && !special;
            return Err(if stale { Status::STALE_STATEID } else { Status::BAD_STATEID });
        }
        match self.ids.get(&stateid.other) {
            Some(state) if by.may_use(&state.lease) => Ok(state),
            Some(_) => Err(Status::BAD_STATEID),
            None => {
                let number = self.numbers.show(Purpose::State, u64::from_be_bytes(hidden));
                let id = self.client_id((number >> 32) as u32);
                let gone = self.is_expired(id) || (!by.has_session() && self.is_replaced(id));
                Err(if gone { Status::EXPIRED } else { Status::BAD_STATEID })
            }
        }
    }

    /// The same for a state that must be alive, and named by its current id.
    pub fn current(&self, stateid: &Stateid, by: Speaker<'_>) -> Result<Arc<State>, Status> {
        let state = self.find(stateid, by)?;
        if state.has_ended() {
            return Err(Status::BAD_STATEID);
        }
        if state.delegation().is_some_and(|right| right.is_revoked()) {
            // Minor version 0 has no status for it.
            return Err(if by.has_session() { Status::DELEG_REVOKED } else { Status::EXPIRED });
        }
        state.is_current(stateid.seqid, by.has_session())?;
        Ok(state)
    }
}
