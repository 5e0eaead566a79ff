//! Sessions: slots that remember their last reply, so that a retry is answered and not carried out again.
//!
//! Spec: RFC 8881 2.10.6.1 (exactly once), 18.46 (SEQUENCE). Owns: slots, replies.
//! Does not: know what a compound did; a reply is the bytes of a COMPOUND4res, without RPC header and framing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_wire::nfs4::{ChannelAttrs, SessionId, Status};

use super::{Back, Lease, States};

const SHARDS: usize = 16;

/// One session.
pub struct Session {
    pub id: SessionId,
    pub lease: Arc<Lease>,
    /// What client and server agreed on.
    pub fore: ChannelAttrs,
    /// By which the client is asked.
    pub back: Arc<Back>,
    slots: Vec<Mutex<Slot>>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Slot {
    /// Of the last request; the first one is 1.
    sequence: u32,
    busy: bool,
    /// Tells a retry from another request with the same number.
    question: u64,
    kept: Kept,
}

/// The last reply.
#[derive(Clone, Default)]
pub enum Kept {
    /// There was no request.
    #[default]
    Nothing,
    /// This.
    Reply(Bytes),
    /// One that was not to be kept.
    Lost,
}

/// What a sequence number says.
pub enum Begun {
    /// A new request: carry it out, then [`Session::end`].
    Go,
    /// A retry.
    Again(Kept),
}

impl Session {
    pub fn new(id: SessionId, lease: Arc<Lease>, fore: ChannelAttrs, back: Arc<Back>) -> Session {
        let slots = (0..fore.max_requests).map(|_| Mutex::default()).collect();
        Session { id, lease, fore, back, slots, ended: AtomicBool::new(false) }
    }

    // What is written to a slot is written last, by assignment.
    fn slot(&self, slot: u32) -> Result<MutexGuard<'_, Slot>, Status> {
        let slot = self.slots.get(slot as usize).ok_or(Status::BADSLOT)?;
        Ok(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// RFC 8881 2.10.6.1: the next request of a slot, the last one again, or out of order.
    pub fn begin(&self, slot: u32, sequence: u32, question: u64) -> Result<Begun, Status> {
        let mut slot = self.slot(slot)?;
        if sequence == slot.sequence.wrapping_add(1) {
            if slot.busy {
                return Err(Status::SEQ_MISORDERED);
            }
            *slot = Slot { sequence, busy: true, question, kept: Kept::Nothing };
            return Ok(Begun::Go);
        }
        if sequence != slot.sequence || matches!(slot.kept, Kept::Nothing) && !slot.busy {
            return Err(Status::SEQ_MISORDERED);
        }
        if slot.busy {
            // The reply is on its way (RFC 8881 2.10.6.2).
            return Err(Status::DELAY);
        }
        if question != slot.question {
            return Err(Status::SEQ_FALSE_RETRY);
        }
        Ok(Begun::Again(slot.kept.clone()))
    }

    /// The request of a slot is answered.
    pub fn finish(&self, slot: u32, kept: Kept) {
        if let Ok(mut slot) = self.slot(slot) {
            slot.busy = false;
            slot.kept = kept;
        }
    }

    /// The highest slot.
    pub fn highest_slot(&self) -> u32 {
        self.fore.max_requests - 1
    }

    /// DESTROY_SESSION, or its client is gone.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.back.end();
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// All sessions by their names.
pub struct Sessions {
    shards: [Mutex<HashMap<SessionId, Arc<Session>>>; SHARDS],
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Sessions {
    // A map's insert or remove leaves it usable even if it panicked.
    fn shard(&self, id: &SessionId) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.shards[id[0] as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl States {
    pub fn session(&self, id: &SessionId) -> Result<Arc<Session>, Status> {
        self.sessions.shard(id).get(id).cloned().ok_or(Status::BADSESSION)
    }

    pub(super) fn enter_session(&self, session: Arc<Session>) {
        self.sessions.shard(&session.id).insert(session.id, session);
    }

    pub(super) fn leave_session(&self, session: &Session) {
        session.end();
        let gone = self.sessions.shard(&session.id).remove(&session.id);
        drop(gone);
    }
}
