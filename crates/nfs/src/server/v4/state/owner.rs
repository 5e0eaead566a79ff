//! Owners of opens and of locks: their requests run in sequence, which minor version 0 numbers.
//!
//! See RFC 7530 9.1.7 to 9.1.11 (sequence ids and replays). Each owner caches its last reply.
//!
//! From minor version 1 on, the sequence only orders requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use futures_util::lock::{Mutex as Queue, OwnedMutexGuard};
use weft_machine::Charge;
use weft_store::ShareKey;
use weft_store::opens;
use weft_wire::nfs4::Status;

use super::State;
use crate::server::file_id::FileId;

/// An owner of opens.
pub struct Owner {
    _charge: Charge,
    /// OPEN_CONFIRM was received, or is not needed.
    confirmed: AtomicBool,
    turn: Arc<Queue<OwnerSequence>>,
}

/// An owner of locks.
pub struct LockOwner {
    pub client: u64,
    pub name: Bytes,
    _charge: Charge,
    turn: Arc<Queue<OwnerSequence>>,
    /// Its id in each share's table of locks.
    ids: Mutex<HashMap<ShareKey, opens::LockOwner>>,
}

/// An owner's last operation, and what it holds.
#[derive(Default)]
pub struct OwnerSequence {
    /// `None` before the first request.
    seqid: Option<u32>,
    last: Option<Answered>,
    /// Its opens, as weak references: the client owns them, and they own the owner.
    states: Vec<Weak<State>>,
    /// A closed open, kept only so that the CLOSE can be repeated.
    pub closed: Option<Weak<State>>,
}

/// A reply cached for repetitions.
#[derive(Clone)]
pub struct Answered {
    pub op: u32,
    pub status: Status,
    /// The bytes after the status.
    pub body: Bytes,
    /// The current file handle after the operation.
    pub current: Option<FileId>,
}

/// How a request's sequence id relates to the last one.
pub enum SequenceCheck {
    /// The next request.
    Next,
    /// A repetition of the last one.
    Again(Answered),
}

impl OwnerSequence {
    /// The owner's opens.
    pub fn states(&self) -> impl Iterator<Item = Arc<State>> {
        self.states.iter().filter_map(Weak::upgrade)
    }

    pub fn opened(&mut self, state: &Arc<State>) {
        self.states.push(Arc::downgrade(state));
    }

    /// Forgets an open, and those that no longer exist.
    pub fn forget(&mut self, gone: &State) {
        self.states.retain(|known| known.upgrade().is_some_and(|known| known.other != gone.other));
    }

    /// RFC 7530 9.1.7: a repetition, the next one, or NFS4ERR_BAD_SEQID.
    pub fn check(&self, seqid: u32, op: u32) -> Result<SequenceCheck, Status> {
        let Some(known) = self.seqid else { return Ok(SequenceCheck::Next) };
        match &self.last {
            Some(last) if seqid == known && last.op == op => Ok(SequenceCheck::Again(last.clone())),
            _ if seqid == known.wrapping_add(1) => Ok(SequenceCheck::Next),
            _ => Err(Status::BAD_SEQID),
        }
    }

    /// Whether no request has come yet.
    pub fn is_new(&self) -> bool {
        self.seqid.is_none()
    }

    /// RFC 7530 9.1.7: after these statuses, the sequence id stays the same.
    fn counts(status: Status) -> bool {
        !matches!(
            status,
            Status::STALE_CLIENTID
                | Status::STALE_STATEID
                | Status::BAD_STATEID
                | Status::BAD_SEQID
                | Status::BADXDR
                | Status::RESOURCE
                | Status::NOFILEHANDLE
                | Status::MOVED
        )
    }

    /// Advances the sequence id; another owner in the same request caches the reply.
    pub fn advance(&mut self, seqid: u32, status: Status) {
        if OwnerSequence::counts(status) {
            (self.seqid, self.last) = (Some(seqid), None);
        }
    }

    /// Caches a reply.
    pub fn answered(&mut self, seqid: u32, answered: Answered) {
        if OwnerSequence::counts(answered.status) {
            self.seqid = Some(seqid);
            self.last = Some(answered);
        }
    }
}

impl Owner {
    pub fn new(charge: Charge) -> Owner {
        Owner { _charge: charge, confirmed: AtomicBool::new(false), turn: Arc::default() }
    }

    /// Confirms the owner, so its opens can be used.
    pub fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }

    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Waits for the owner's previous request.
    pub async fn turn(&self) -> OwnedMutexGuard<OwnerSequence> {
        self.turn.clone().lock_owned().await
    }

    /// Whether it holds nothing. An owner with a running request is busy.
    pub fn is_idle(&self) -> bool {
        self.turn.try_lock().is_some_and(|turn| turn.states().next().is_none())
    }
}

impl LockOwner {
    pub fn new(client: u64, name: Bytes, charge: Charge) -> LockOwner {
        LockOwner { client, name, _charge: charge, turn: Arc::default(), ids: Mutex::default() }
    }

    /// Waits for the owner's previous request.
    pub async fn turn(&self) -> OwnedMutexGuard<OwnerSequence> {
        self.turn.clone().lock_owned().await
    }

    /// Whether only the client's table refers to it. An owner with a running request is busy.
    pub fn is_idle(self: &Arc<LockOwner>) -> bool {
        // One reference from the table, and one from each set of locks.
        Arc::strong_count(self) == 1
    }

    /// Its id in this share's table; `new` creates one.
    pub fn id(&self, share: ShareKey, new: impl FnOnce() -> opens::LockOwner) -> opens::LockOwner {
        *self.ids.lock().unwrap_or_else(PoisonError::into_inner).entry(share).or_insert_with(new)
    }

    /// Forgets its ids in the tables of these shares.
    pub fn forget(&self, gone: &[ShareKey]) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).retain(|share, _| !gone.contains(share));
    }

    /// Whether this is its id in this share's table.
    pub fn is(&self, share: ShareKey, id: opens::LockOwner) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(&share) == Some(&id)
    }
}
