//! LOCK and LOCKU of an open file (RFC 8881 18.10, 18.12), and waiting for a lock (9.6). `locks` has their state.

use std::time::Duration;

use weft_machine::rt;
use weft_wire::nfs4::{Lock, LockDenied, LockType, Locker, Locku, Op, Owner, Stateid, Status, opnum};

use super::opened::{Opened, is_lost};
use super::session::Keep;
use crate::client::Error;
use crate::client::locks::{ByteRange, LockConflict, LockKind, OnConflict};
use crate::client::rpc::Cargo;

/// Shortest and longest pause before a denied LOCK is repeated. The server may announce that the range is free (RFC 8881
/// 20.11), but need not.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

impl Opened {
    /// See [`crate::client::File::lock`].
    pub async fn lock(&self, range: ByteRange, kind: LockKind, on_conflict: OnConflict) -> Result<(), Error> {
        range.check()?;
        let [mut pause, longest] = PAUSES;
        loop {
            match self.try_lock(range, kind, on_conflict).await {
                Err(Error::Locked(_)) if on_conflict == OnConflict::Wait => {}
                ended => return ended,
            }
            rt::sleep(pause).await;
            pause = pause.saturating_mul(2).min(longest);
        }
    }

    async fn try_lock(&self, range: ByteRange, kind: LockKind, on_conflict: OnConflict) -> Result<(), Error> {
        let _alone = self.locks.turn.lock().await;
        if self.is_closed() {
            return Err(Error::Status4(Status::BAD_STATEID));
        }
        self.settle().await?;
        let kind =
            LockType { exclusive: kind == LockKind::Exclusive, waits: on_conflict == OnConflict::Wait };
        let before = self.locks.unanswered.get();
        let op = |_| {
            self.locks.unanswered.set(Some((kind, range)));
            self.locking(kind, range)
        };
        let mut results = self.run(op, Keep::Yes, None, Cargo::default()).await?;
        self.locks.unanswered.set(before);
        match results.next(opnum::LOCK)? {
            Status::OK => {
                let stateid: Stateid = results.result()?;
                self.locks.stateid.set(Some(Stateid { seqid: 0, ..stateid }));
                self.locks.held.borrow_mut().add(range);
                Ok(())
            }
            Status::DENIED => {
                let LockDenied { offset, length, kind, .. } = results.result()?;
                let range = ByteRange { offset, len: length };
                let kind = if kind.exclusive { LockKind::Exclusive } else { LockKind::Shared };
                Err(Error::Locked(LockConflict { range, kind }))
            }
            status => Err(Error::Status4(status)),
        }
    }

    fn locking(&self, kind: LockType, range: ByteRange) -> Op {
        let locker = match self.locks.stateid.get() {
            Some(stateid) => Locker::Known { stateid, seqid: 0 },
            None => Locker::New {
                open_seqid: 0,
                open_stateid: self.stateid(),
                lock_seqid: 0,
                // The session identifies the client (RFC 8881 18.10.3).
                owner: Owner { client: 0, owner: self.owner.clone() },
            },
        };
        Op::Lock(Lock { kind, reclaim: false, offset: range.offset, length: range.len, locker })
    }

    /// If requests got no reply, ensures that the server does not carry them out later. If one was the first LOCK, what
    /// it may have locked is unlocked; a later one is unlocked by its range, or with the whole file.
    async fn settle(&self) -> Result<(), Error> {
        if !self.locks.unsettled.get() && self.locks.unanswered.get().is_none() {
            return Ok(());
        }
        self.client.settle().await?;
        self.locks.unsettled.set(false);
        let Some((kind, range)) = self.locks.unanswered.get() else { return Ok(()) };
        if self.locks.stateid.get().is_some() {
            return Ok(());
        }
        let ops = || self.unlocking_first(kind, range);
        let mut results = self.client.run(ops, Keep::Yes, None, Cargo::default()).await?;
        results.ok::<()>(opnum::PUTFH)?;
        match results.next(opnum::LOCK)? {
            Status::OK => {
                let stateid: Stateid = results.result()?;
                self.locks.stateid.set(Some(Stateid { seqid: 0, ..stateid }));
                results.ok::<Stateid>(opnum::LOCKU)?;
            }
            // The open has ended, and its locks with it. The next request reopens the file.
            status if is_lost(status) => self.locks.forgotten(),
            // The first LOCK failed for the same reason: an owner that had this lock would be granted it again.
            Status::DENIED | Status::OPENMODE | Status::INVAL | Status::BAD_RANGE => {}
            // This proves nothing: the server is busy or faulty, or its owners cannot lock a range twice (LOCK_RANGE, RFC
            // 8881 18.10.4).
            status => return Err(Error::Status4(status)),
        }
        self.locks.unanswered.set(None);
        Ok(())
    }

    /// The operations that unlock what a first LOCK without a reply may have locked. The same owner gets the same state
    /// id again, which is then the compound's current state id (RFC 8881 18.10.3, 16.2.3.1.2). The owner has locked
    /// nothing else, and some servers unlock only the exact range (18.12.4).
    fn unlocking_first(&self, kind: LockType, range: ByteRange) -> Vec<Op> {
        let lock = self.locking(LockType { waits: false, ..kind }, range);
        vec![Op::Putfh(self.handle), lock, unlock(Stateid::CURRENT, range)]
    }

    /// See [`crate::client::File::unlock`].
    pub async fn unlock(&self, range: ByteRange) -> Result<(), Error> {
        range.check()?;
        let _alone = self.locks.turn.lock().await;
        self.unlock_in_turn(range).await
    }

    /// Unlocks a range, for a caller that holds `turn`.
    pub(super) async fn unlock_in_turn(&self, range: ByteRange) -> Result<(), Error> {
        if self.locks.are_lost() {
            return Err(Error::LocksLost);
        }
        self.settle().await?;
        // Without a state id, the owner has never locked anything.
        let Some(stateid) = self.locks.stateid.get() else { return Ok(()) };
        let ops = || self.unlocking(stateid, range);
        let outstanding = self.locks.outstanding();
        let mut results = self.client.run(ops, Keep::Yes, None, Cargo::default()).await?;
        outstanding.answered();
        if is_lost(results.status) {
            self.locks.forgotten();
            return if self.locks.are_lost() { Err(Error::LocksLost) } else { Ok(()) };
        }
        results.ok::<()>(opnum::PUTFH)?;
        results.ok::<Stateid>(opnum::LOCKU)?;
        self.locks.held.borrow_mut().remove(range);
        if range == ByteRange::WHOLE {
            self.locks.unanswered.set(None);
        }
        Ok(())
    }

    fn unlocking(&self, stateid: Stateid, range: ByteRange) -> Vec<Op> {
        vec![Op::Putfh(self.handle), unlock(stateid, range)]
    }

    /// The operations that unlock all that the server may have locked.
    pub(super) fn unlocking_all(&self) -> Option<Vec<Op>> {
        if !self.locks.may_be_held() {
            return None;
        }
        match self.locks.stateid.get() {
            Some(stateid) => Some(self.unlocking(stateid, ByteRange::WHOLE)),
            None => self.locks.unanswered.get().map(|(kind, range)| self.unlocking_first(kind, range)),
        }
    }
}

fn unlock(stateid: Stateid, range: ByteRange) -> Op {
    // The server ignores the type and the number (RFC 8881 18.12.3).
    let kind = LockType { exclusive: false, waits: false };
    Op::Locku(Locku { kind, seqid: 0, stateid, offset: range.offset, length: range.len })
}
