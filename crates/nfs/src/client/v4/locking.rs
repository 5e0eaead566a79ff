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
        let kind =
            LockType { exclusive: kind == LockKind::Exclusive, waits: on_conflict == OnConflict::Wait };
        let op = |_| {
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
        };
        let mut results = self.run(op, Keep::Yes, None, Cargo::default()).await?;
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

    /// See [`crate::client::File::unlock`].
    pub async fn unlock(&self, range: ByteRange) -> Result<(), Error> {
        range.check()?;
        let _alone = self.locks.turn.lock().await;
        if self.locks.are_lost() {
            return Err(Error::LocksLost);
        }
        // Without a state id, the owner has never locked anything.
        let Some(stateid) = self.locks.stateid.get() else { return Ok(()) };
        let ops = || self.unlocking(stateid, range);
        let mut results = self.client.run(ops, Keep::Yes, None, Cargo::default()).await?;
        if is_lost(results.status) {
            self.locks.forgotten();
            return if self.locks.are_lost() { Err(Error::LocksLost) } else { Ok(()) };
        }
        results.ok::<()>(opnum::PUTFH)?;
        results.ok::<Stateid>(opnum::LOCKU)?;
        self.locks.held.borrow_mut().remove(range);
        Ok(())
    }

    fn unlocking(&self, stateid: Stateid, range: ByteRange) -> Vec<Op> {
        // The server ignores the type and the number (RFC 8881 18.12.3).
        let kind = LockType { exclusive: false, waits: false };
        let unlock = Locku { kind, seqid: 0, stateid, offset: range.offset, length: range.len };
        vec![Op::Putfh(self.handle), Op::Locku(unlock)]
    }

    /// The operations that release all locks of a file that is dropped.
    pub(super) fn unlocking_all(&self) -> Option<Vec<Op>> {
        let stateid = self.locks.in_use().filter(|_| self.locks.are_held())?;
        Some(self.unlocking(stateid, ByteRange::WHOLE))
    }
}
