//! Sessions: slots cache their last reply, so that a repetition is answered and not carried out again.
//!
//! See RFC 8881 2.10.6.1 (exactly once) and 18.46 (SEQUENCE). A cached reply is the bytes of a COMPOUND4res, without
//! RPC header and framing.
//!
//! When a session is created, it is charged for all replies that its slots may cache, so no request fails because its
//! reply cannot be cached. When memory becomes scarce, SEQUENCE asks clients that hold much to use fewer slots;
//! higher slots are retired once the client shows that it has read this. A client that uses all remaining slots gets
//! the others back when memory is available again.

use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foldhash::HashMap;
use siphasher::sip::SipHasher24;
use weft_machine::{Budget, Charge};
use weft_wire::nfs4::{ChannelAttrs, SessionId, Status};
use weft_wire::xdr::Decoder;

use super::budget::slot_bytes;
use super::numbers::random_hasher;
use super::{Back, Lease, States};
use crate::server::credential::Credential;
use crate::server::duplicates::hash_credential;
use crate::server::identity::{Identity, Origin};
use crate::server::instead::KeepsReplies;
use crate::server::shard;

const SHARDS: usize = 16;
/// Bytes of a request that identify it.
const QUESTION_BYTES: usize = 512;

/// One session.
pub struct Session {
    pub id: SessionId,
    pub lease: Arc<Lease>,
    /// The agreed channel attributes.
    pub fore: ChannelAttrs,
    /// The channel for calls to the client.
    pub back: Arc<Back>,
    /// The agreed number of slots.
    slots: Vec<Mutex<Slot>>,
    /// Number of slots in use: `1 <= live <= slots.len()`. Changed under the lock of `size`.
    live: AtomicU32,
    size: Mutex<Size>,
    /// All slots are live, and the client was not asked to use fewer.
    whole: AtomicBool,
    budget: Budget,
    ended: AtomicBool,
}

/// The number of slots that the client is asked to use.
struct Size {
    /// For the session and its live slots.
    charge: Charge,
    /// The slot whose reply asks the client to use fewer, and how many.
    told: Option<(u32, u32)>,
}

/// Slot numbers in SEQUENCE's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Highest {
    /// The highest slot that can be used.
    pub slot: u32,
    /// The highest slot that the client should use.
    pub target: u32,
}

#[derive(Default)]
struct Slot {
    /// Sequence number of the last request; the first one is 1.
    sequence: u32,
    busy: bool,
    /// Distinguishes a repetition from another request with the same sequence number.
    question: u64,
    kept: Kept,
}

impl Slot {
    /// Whether this is the number of the next request.
    fn is_next(&self, sequence: u32) -> bool {
        sequence == self.sequence.wrapping_add(1)
    }

    /// Begins a request; what the slot was before.
    fn take(&mut self, sequence: u32, question: u64) -> Slot {
        std::mem::replace(self, Slot { sequence, busy: true, question, kept: Kept::Nothing })
    }
}

/// A slot that a request has taken which is answered at once. Dropped without an answer, it is as it was before: the request has
/// done nothing, and begins anew.
#[must_use = "dropped, it gives the slot back"]
pub struct TakenSlot<'a> {
    session: &'a Session,
    number: u32,
    before: Option<Slot>,
}

impl TakenSlot<'_> {
    /// The request is answered, and its reply not cached.
    pub fn answered(mut self) {
        self.before = None;
        self.session.finish(self.number, Kept::Lost);
    }
}

impl Drop for TakenSlot<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take()
            && let Some(mut slot) = self.session.busy_slot(self.number)
        {
            *slot = before;
        }
    }
}

/// The last reply.
#[derive(Clone, Default)]
pub enum Kept {
    /// There was no request yet.
    #[default]
    Nothing,
    /// The cached reply.
    Reply(Bytes),
    /// The reply was not cached.
    Lost,
    /// The request was not carried out, because its payload was lost on the way.
    NotExecuted,
}

/// How a request relates to its slot's last one.
pub enum Begun {
    /// A new request, or one that was not carried out the first time: carry it out, then call [`Session::finish`].
    Go,
    /// A repetition.
    Again(Kept),
}

impl KeepsReplies for Session {
    fn answered_instead(&self, slot: u32, sequence: u32, reply: Bytes) {
        if let Ok(mut slot) = self.slot(slot)
            && slot.sequence == sequence
            && !slot.busy
            && matches!(slot.kept, Kept::Lost)
        {
            slot.kept = Kept::Reply(reply);
        }
    }
}

impl Session {
    /// `charge`: see [`super::budget::session`].
    pub fn new(
        id: SessionId,
        lease: Arc<Lease>,
        fore: ChannelAttrs,
        back: Arc<Back>,
        charge: Charge,
    ) -> Session {
        let slots = (0..fore.max_requests).map(|_| Mutex::default()).collect();
        let budget = charge.budget().clone();
        let size = Mutex::new(Size { charge, told: None });
        let live = AtomicU32::new(fore.max_requests);
        let (whole, ended) = (AtomicBool::new(true), AtomicBool::new(false));
        Session { id, lease, fore, back, slots, live, size, whole, budget, ended }
    }

    // A slot is written by a single assignment, last. Whether it is live is checked under its lock: see `retire`.
    fn slot(&self, number: u32) -> Result<MutexGuard<'_, Slot>, Status> {
        let slot = self.slots.get(number as usize).ok_or(Status::BADSLOT)?;
        let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if number < self.live.load(Ordering::Acquire) { Ok(slot) } else { Err(Status::BADSLOT) }
    }

    /// A slot with a running request. It is not asked whether it is live, because `retire` takes slots out of use before it finds
    /// that one of them is busy.
    fn busy_slot(&self, number: u32) -> Option<MutexGuard<'_, Slot>> {
        Some(self.slots.get(number as usize)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// RFC 8881 2.10.6.1: the slot's next request, a repetition of the last one, or out of order.
    pub fn begin(&self, slot: u32, sequence: u32, question: u64) -> Result<Begun, Status> {
        let mut slot = self.slot(slot)?;
        if slot.is_next(sequence) {
            if slot.busy {
                return Err(Status::SEQ_MISORDERED);
            }
            drop(slot.take(sequence, question));
            return Ok(Begun::Go);
        }
        if sequence != slot.sequence || matches!(slot.kept, Kept::Nothing) && !slot.busy {
            return Err(Status::SEQ_MISORDERED);
        }
        if slot.busy {
            // The reply is on its way (RFC 8881 2.10.6.2).
            return Err(Status::DELAY);
        }
        // The payload may be in the message itself this time, so the request may look different.
        if matches!(slot.kept, Kept::NotExecuted) {
            drop(slot.take(sequence, question));
            return Ok(Begun::Go);
        }
        if question != slot.question {
            return Err(Status::SEQ_FALSE_RETRY);
        }
        Ok(Begun::Again(slot.kept.clone()))
    }

    /// Takes the slot for its next request, if that is what this is.
    pub fn begin_at_once(&self, number: u32, sequence: u32, question: u64) -> Option<TakenSlot<'_>> {
        let mut slot = self.slot(number).ok()?;
        if slot.busy || !slot.is_next(sequence) {
            return None;
        }
        let before = Some(slot.take(sequence, question));
        drop(slot);
        Some(TakenSlot { session: self, number, before })
    }

    /// A slot's request has been answered.
    pub fn finish(&self, slot: u32, kept: Kept) {
        if matches!(kept, Kept::NotExecuted) {
            // The next request in this slot may be a repetition, from a client that has not read the target.
            let mut size = self.size.lock().unwrap_or_else(PoisonError::into_inner);
            size.told = size.told.filter(|(by, _)| *by != slot);
        }
        if let Some(mut slot) = self.busy_slot(slot) {
            slot.busy = false;
            slot.kept = kept;
        }
    }

    /// The highest slot that can be used.
    pub fn highest_slot(&self) -> u32 {
        self.live.load(Ordering::Acquire).saturating_sub(1)
    }

    /// The slot numbers while all slots can be used, and memory is not scarce.
    pub fn all_slots(&self) -> Option<Highest> {
        let last = self.fore.max_requests.saturating_sub(1);
        let is_whole = !self.budget.is_scarce() && self.whole.load(Ordering::Acquire);
        is_whole.then_some(Highest { slot: last, target: last })
    }

    /// The slot numbers for the reply to a new request in `slot`; the highest slot that the client uses now is
    /// `used`.
    pub fn resize(&self, slot: u32, used: u32) -> Highest {
        if let Some(all) = self.all_slots() {
            return all;
        }
        let mut size = self.size.lock().unwrap_or_else(PoisonError::into_inner);
        let overdrawn = size.charge.is_overdrawn();
        match size.told {
            _ if !overdrawn => size.told = None,
            // The client has read the reply with the target before it used this slot again. Slots that are still busy
            // are waited for.
            Some((by, slots)) if by == slot => {
                size.told = None;
                if used < slots {
                    self.retire(&mut size, slots);
                }
            }
            _ => {}
        }
        let live = self.live.load(Ordering::Acquire);
        if overdrawn && live > 1 && size.told.is_none() {
            size.told = Some((slot, live / 2));
        } else if !overdrawn && slot == self.highest_slot() && live < self.fore.max_requests {
            self.revive(&mut size, live.saturating_mul(2).min(self.fore.max_requests));
        }
        let highest = self.highest_slot();
        self.whole.store(
            size.told.is_none() && highest.saturating_add(1) == self.fore.max_requests,
            Ordering::Release,
        );
        Highest { slot: highest, target: size.told.map_or(highest, |(_, slots)| slots.saturating_sub(1)) }
    }

    /// Removes the slots from `slots` on, unless one has a running request.
    fn retire(&self, size: &mut Size, slots: u32) {
        let live = self.live.load(Ordering::Acquire);
        // Stored first: later requests in these slots see it, and earlier ones hold a slot's lock.
        self.live.store(slots, Ordering::Release);
        let gone = || self.slots.iter().take(live as usize).skip(slots as usize);
        let lock = |slot: &'_ Mutex<Slot>| slot.lock().unwrap_or_else(PoisonError::into_inner).busy;
        if gone().any(lock) {
            self.live.store(live, Ordering::Release);
            return;
        }
        gone().for_each(|slot| *slot.lock().unwrap_or_else(PoisonError::into_inner) = Slot::default());
        size.charge.shrink((live.saturating_sub(slots) as usize).saturating_mul(slot_bytes(&self.fore)));
    }

    /// Restores `slots` slots if there is memory; the restored ones start afresh (RFC 8881 2.10.6.1).
    fn revive(&self, size: &mut Size, slots: u32) {
        let live = self.live.load(Ordering::Acquire);
        let more = slots.saturating_sub(live) as usize;
        if size.charge.grow(more.saturating_mul(slot_bytes(&self.fore))).is_ok() {
            self.live.store(slots, Ordering::Release);
        }
    }

    /// Bytes of cached replies.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        let kept = |slot: &Mutex<Slot>| match &slot.lock().unwrap_or_else(PoisonError::into_inner).kept {
            Kept::Reply(reply) => reply.len(),
            Kept::Nothing | Kept::Lost | Kept::NotExecuted => 0,
        };
        self.slots.iter().map(kept).sum()
    }

    /// DESTROY_SESSION, or the client is gone.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.back.end();
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Distinguishes requests from each other.
pub struct Questions(SipHasher24);

impl Default for Questions {
    fn default() -> Questions {
        Questions(random_hasher())
    }
}

impl Questions {
    /// Hashes a slot's request of this many operations, with its user: a request of another user is not a repetition
    /// (RFC 8881 2.10.6.1.3.1). Bytes after the last operation are not part of the request, but are included in the
    /// hash.
    pub fn of(&self, credential: &Credential, operations: u32, rest: &Decoder) -> u64 {
        Questions::ended(self.begun(credential, operations), rest.peek(QUESTION_BYTES), rest.remaining())
    }

    /// The hash of a request of this user, without what follows SEQUENCE.
    pub fn begun(&self, credential: &Credential, operations: u32) -> SipHasher24 {
        let mut hasher = self.0;
        hash_credential(credential, &mut hasher);
        hasher.write_u32(operations);
        hasher
    }

    /// The hash of a request, of which `rest` follows SEQUENCE: so many bytes.
    pub fn ended(mut begun: SipHasher24, rest: &[u8], bytes: usize) -> u64 {
        begun.write(rest.get(..QUESTION_BYTES).unwrap_or(rest));
        begun.write_usize(bytes);
        begun.finish()
    }
}

/// All sessions by id.
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
        shard(&self.shards, usize::from(id[0])).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl States {
    /// A live session, for any caller that may use its client, at whatever address.
    pub fn session(&self, id: &SessionId, from: &Origin) -> Result<Arc<Session>, Status> {
        let session = self.sessions.shard(id).get(id).cloned().ok_or(Status::BADSESSION)?;
        let lease = &session.lease;
        if !lease.owned.allows(from) || session.has_ended() || lease.has_ended() {
            return Err(Status::BADSESSION);
        }
        Ok(session)
    }

    /// The same for SEQUENCE. All clients have SP4_NONE, so the first SEQUENCE on a connection associates it with the
    /// session, for any address and user (RFC 8881 2.10.3.1, 18.46.3). From then on, the client is known at that
    /// address.
    pub fn use_session(&self, id: &SessionId, from: &Origin) -> Result<Arc<Session>, Status> {
        let session = self.session(id, from)?;
        session.lease.owned.moves_to(from.source);
        Ok(session)
    }

    /// The same for BIND_CONN_TO_SESSION. Only the client's own user may send it, because it directs the client's
    /// callbacks (RFC 8881 18.34).
    pub fn bind_session(&self, id: &SessionId, by: &Identity) -> Result<Arc<Session>, Status> {
        let session = self.session(id, &by.origin)?;
        if session.lease.owned.by.principal != by.principal {
            return Err(Status::WRONG_CRED);
        }
        session.lease.owned.moves_to(by.origin.source);
        Ok(session)
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
