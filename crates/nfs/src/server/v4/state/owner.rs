//! Owners of opens and of locks: their requests take turns, and minor version 0 numbers them.
//!
//! Spec: RFC 7530 9.1.7 to 9.1.11 (sequence ids and replays). Owns: the last answer of each owner.
//! Does not: know what an operation does. From minor version 1 on turns are only an order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use futures_util::lock::{Mutex as Queue, OwnedMutexGuard};
use weft_machine::Charge;
use weft_store::ShareId;
use weft_store::opens;
use weft_wire::nfs4::Status;

use super::State;
use crate::server::file_id::FileId;

/// An owner of opens.
pub struct Owner {
    _charge: Charge,
    /// OPEN_CONFIRM came, or is not needed.
    confirmed: AtomicBool,
    turn: Arc<Queue<Turn>>,
}

/// An owner of locks.
pub struct LockOwner {
    pub client: u64,
    pub name: Bytes,
    _charge: Charge,
    turn: Arc<Queue<Turn>>,
    /// Its name in each share's table of locks.
    ids: Mutex<HashMap<ShareId, opens::LockOwner>>,
}

/// What an owner did last, and what it holds.
#[derive(Default)]
pub struct Turn {
    /// `None` before the first request.
    seqid: Option<u32>,
    last: Option<Answered>,
    /// Opens. Its client has them, and they have it: when the client goes they go.
    states: Vec<Weak<State>>,
    /// An open that is closed, and is known to the client only so that the CLOSE can be asked again.
    pub closed: Option<Weak<State>>,
}

/// An answer that is given again to the same question.
#[derive(Clone)]
pub struct Answered {
    pub op: u32,
    pub status: Status,
    /// What follows the status.
    pub body: Bytes,
    /// Where the operation left the current file handle.
    pub place: Option<FileId>,
}

/// What a sequence id says.
pub enum Turned {
    /// The next request.
    Next,
    /// The last one again.
    Again(Answered),
}

impl Turn {
    /// Its opens.
    pub fn states(&self) -> impl Iterator<Item = Arc<State>> {
        self.states.iter().filter_map(Weak::upgrade)
    }

    pub fn opened(&mut self, state: &Arc<State>) {
        self.states.push(Arc::downgrade(state));
    }

    /// Forgets one, and those that are gone.
    pub fn forget(&mut self, gone: &State) {
        self.states.retain(|known| known.upgrade().is_some_and(|known| known.other != gone.other));
    }

    /// RFC 7530 9.1.7: the last one again, the next one, or NFS4ERR_BAD_SEQID.
    pub fn check(&self, seqid: u32, op: u32) -> Result<Turned, Status> {
        let Some(known) = self.seqid else { return Ok(Turned::Next) };
        match &self.last {
            Some(last) if seqid == known && last.op == op => Ok(Turned::Again(last.clone())),
            _ if seqid == known.wrapping_add(1) => Ok(Turned::Next),
            _ => Err(Status::BAD_SEQID),
        }
    }

    /// Whether any request has come.
    pub fn is_new(&self) -> bool {
        self.seqid.is_none()
    }

    /// RFC 7530 9.1.7: after these the owner's number stays as it was.
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

    /// Moves on; whoever else takes a turn in the same request remembers the answer.
    pub fn advance(&mut self, seqid: u32, status: Status) {
        if Turn::counts(status) {
            (self.seqid, self.last) = (Some(seqid), None);
        }
    }

    /// Remembers an answer.
    pub fn answered(&mut self, seqid: u32, answered: Answered) {
        if Turn::counts(answered.status) {
            self.seqid = Some(seqid);
            self.last = Some(answered);
        }
    }
}

impl Owner {
    pub fn new(charge: Charge) -> Owner {
        Owner { _charge: charge, confirmed: AtomicBool::new(false), turn: Arc::default() }
    }

    /// Its opens can be used.
    pub fn confirm(&self) {
        self.confirmed.store(true, Ordering::Release);
    }

    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Acquire)
    }

    /// Waits for its turn.
    pub async fn turn(&self) -> OwnedMutexGuard<Turn> {
        self.turn.clone().lock_owned().await
    }

    /// Whether nothing hangs on it. One whose turn is taken is busy.
    pub fn is_idle(&self) -> bool {
        self.turn.try_lock().is_some_and(|turn| turn.states().next().is_none())
    }
}

impl LockOwner {
    pub fn new(client: u64, name: Bytes, charge: Charge) -> LockOwner {
        LockOwner { client, name, _charge: charge, turn: Arc::default(), ids: Mutex::default() }
    }

    /// Waits for its turn.
    pub async fn turn(&self) -> OwnedMutexGuard<Turn> {
        self.turn.clone().lock_owned().await
    }

    /// Whether nothing hangs on it but the table of its client. One whose turn is taken is busy.
    pub fn is_idle(self: &Arc<LockOwner>) -> bool {
        // The table's own, and one for each set of locks.
        Arc::strong_count(self) == 1
    }

    /// Its name in the table of this share; `new` makes one.
    pub fn id(&self, share: ShareId, new: impl FnOnce() -> opens::LockOwner) -> opens::LockOwner {
        *self.ids.lock().unwrap_or_else(PoisonError::into_inner).entry(share).or_insert_with(new)
    }

    /// Whether it is this one in the table of this share.
    pub fn is(&self, share: ShareId, id: opens::LockOwner) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).get(&share) == Some(&id)
    }
}
