//! An open file of version 4.1: READ, WRITE and COMMIT by its state id, which changes when the server restarts.
//!
//! See RFC 8881 18.16 (OPEN), 18.2, 18.22, 18.32, 18.3 and 8.4.2 (reclaim). An open file owns its state id and its
//! locks (see `locks`). `file` splits long transfers and holds uncommitted data, for all versions.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::lock::Mutex;
use weft_wire::nfs4::{
    Bitmap, Claim, Close, Commit, Fattr, Handle, MAX_DATA, Op, Opaque, Open, OpenHow, OpenOk, Owner, Read,
    Setattr, Stable, Stateid, Status, Text, Verifier, Write, WriteOk, opnum, share,
};

use super::attributes::{WANTED, changes, shown};
use super::compound::Results;
use super::locks::{Locks, Outstanding};
use super::session::{Client, Closing, Keep};
use crate::client::patience::Patience;
use crate::client::rpc::Cargo;
use crate::client::{Attributes, ByteRange, Error, SetAttributes};
use weft_wire::xdr::Malformed;

/// How often the state may be lost during one request.
const MAX_REOPENS: u32 = 5;

/// How an open is restored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Back {
    /// CLAIM_PREVIOUS: the server restores it before it admits others.
    Previous,
    /// CLAIM_FH: a new open.
    Anew,
}

/// The access of an open and what it denies to others (RFC 8881 9.7): bits of [`share`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharing {
    pub access: u32,
    pub deny: u32,
}

/// An open file.
pub(crate) struct Opened {
    pub client: Rc<Client>,
    pub handle: Handle,
    stateid: Cell<Stateid>,
    sharing: Sharing,
    /// The open owner's name, and the lock owner's.
    pub(super) owner: Opaque,
    /// The open owner's number.
    number: u64,
    pub(super) locks: Locks,
    /// Held by the task that reopens the file; the others wait for it.
    reopening: Mutex<()>,
    /// Why the file could not be reopened.
    pub lost: Cell<Option<Status>>,
    closed: Cell<bool>,
}

impl Opened {
    /// Opens a file, given the operations that walk to its directory, and its name.
    pub async fn open(
        client: &Rc<Client>,
        dir: &[Op],
        name: Text,
        sharing: Sharing,
        how: OpenHow,
    ) -> Result<Rc<Opened>, Error> {
        let Sharing { access, deny } = sharing;
        client.close_forgotten(false).await?;
        let (number, owner) = client.new_owner();
        let open = |how| {
            Op::Open(Open {
                seqid: 0,
                access: access | share::WANT_NO_DELEG,
                deny,
                // The session identifies the client (RFC 8881 18.16.3).
                owner: Owner { client: 0, owner: owner.clone() },
                how,
                claim: Claim::Null(name.clone()),
            })
        };
        // Without a reply, the state id is unknown. The same owner gets the same state again, which is then the
        // compound's current state id (RFC 8881 9.9, 16.2.3.1.2).
        let close = Op::Close(Close { seqid: 0, stateid: Stateid::CURRENT });
        let closing = Closing { unlock: None, close: [dir, &[open(None), close]].concat() };
        let unanswered = client.unanswered(closing);
        let ops = || [dir, &[open(how.clone()), Op::Getfh]].concat();
        let mut results = client.run(ops, Keep::Yes, None, Cargo::default()).await?;
        unanswered.answered();
        skip(&mut results, dir)?;
        let ok: OpenOk = results.ok(opnum::OPEN)?;
        let handle = results.ok(opnum::GETFH)?;
        let opened = Rc::new(Opened {
            client: client.clone(),
            handle,
            stateid: Cell::new(ok.stateid),
            sharing,
            owner,
            number,
            locks: Locks::default(),
            reopening: Mutex::default(),
            lost: Cell::new(None),
            closed: Cell::new(false),
        });
        client.enter(number, &opened);
        Ok(opened)
    }

    /// The operations that restore the open.
    pub(super) fn reclaim(&self, back: Back) -> Vec<Op> {
        let claim = match back {
            Back::Previous => Claim::Previous(0),
            Back::Anew => Claim::Fh,
        };
        let wish = match back {
            Back::Previous => 0,
            Back::Anew => share::WANT_NO_DELEG,
        };
        let owner = Owner { client: 0, owner: self.owner.clone() };
        let (access, deny) = (self.sharing.access | wish, self.sharing.deny);
        let open = Open { seqid: 0, access, deny, owner, how: None, claim };
        vec![Op::Putfh(self.handle), Op::Open(open)]
    }

    /// Applies the server's reply to [`Opened::reclaim`].
    pub(super) fn taken(&self, mut results: Results) -> Result<Status, Error> {
        if results.status != Status::OK {
            return Ok(results.status);
        }
        results.ok::<()>(opnum::PUTFH)?;
        let ok: OpenOk = results.ok(opnum::OPEN)?;
        self.stateid.set(ok.stateid);
        self.locks.forgotten();
        Ok(Status::OK)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    pub(super) fn stateid(&self) -> Stateid {
        self.stateid.get()
    }

    /// A request on the file. If the server does not know the state (because the lease expired, say), the file is
    /// reopened and the request repeated, unless the file has lost locks. `op` makes the operation from the state id
    /// for READ and WRITE (RFC 8881 8.2.5): that of the locks if there are any.
    pub(super) async fn run(
        &self,
        op: impl Fn(Stateid) -> Op,
        keep: Keep,
        payload: Option<u32>,
        mut cargo: Cargo,
    ) -> Result<Results, Error> {
        for _ in 0..MAX_REOPENS {
            if let Some(status) = self.lost.get() {
                return Err(Error::Status4(status));
            }
            if self.locks.are_lost() {
                return Err(Error::LocksLost);
            }
            let used = Cell::new(self.stateid.get());
            let ops = || {
                used.set(self.stateid.get());
                vec![Op::Putfh(self.handle), op(self.locks.in_use().unwrap_or(used.get()))]
            };
            let outstanding = (keep == Keep::Yes).then(|| self.locks.outstanding());
            let mut results = self.client.run(ops, keep, payload, cargo.again()).await?;
            outstanding.into_iter().for_each(Outstanding::answered);
            if !is_lost(results.status) {
                results.ok::<()>(opnum::PUTFH)?;
                return Ok(results);
            }
            self.reopen(used.get()).await?;
        }
        Err(Error::Status4(Status::BAD_STATEID))
    }

    /// Reopens the file, unless another task has since `used` was sent.
    async fn reopen(&self, used: Stateid) -> Result<(), Error> {
        let _alone = self.reopening.lock().await;
        if self.stateid.get() != used || self.closed.get() {
            return Ok(());
        }
        let ops = || self.reclaim(Back::Anew);
        let results = self.client.run(ops, Keep::Yes, None, Cargo::default()).await?;
        match self.taken(results)? {
            Status::OK => Ok(()),
            status => Err(Error::Status4(status)),
        }
    }

    /// Sends one READ; also returns whether it reached the end of the file.
    pub async fn read(&self, offset: u64, count: u32, cargo: Cargo) -> Result<(Bytes, bool), Error> {
        let op = |stateid| Op::Read(Read { stateid, offset, count });
        let mut results = self.run(op, Keep::No, None, cargo).await?;
        let d = results.passed(opnum::READ)?;
        let (eof, data) = (d.bool()?, d.payload(MAX_DATA)?);
        Ok((data, eof))
    }

    /// Sends one WRITE of `len` bytes, which are in the cargo.
    pub async fn write(&self, offset: u64, len: u32, stable: Stable, cargo: Cargo) -> Result<WriteOk, Error> {
        let op = |stateid| Op::Write(Write { stateid, offset, stable, data: Bytes::new().into() });
        let mut results = self.run(op, Keep::Yes, Some(len), cargo).await?;
        results.ok(opnum::WRITE)
    }

    /// Commits the whole file.
    pub async fn commit(&self) -> Result<Verifier, Error> {
        let ops = || vec![Op::Putfh(self.handle), Op::Commit(Commit { offset: 0, count: 0 })];
        let patience = Patience::durable();
        let committing = self.client.run_within(&patience, ops, Keep::Yes, None, Cargo::default());
        let mut results = committing.await?;
        results.ok::<()>(opnum::PUTFH)?;
        results.ok(opnum::COMMIT)
    }

    /// GETATTR.
    pub async fn stat(&self) -> Result<Attributes, Error> {
        let ops = || vec![Op::Putfh(self.handle), Op::Getattr(WANTED)];
        let mut results = self.client.run(ops, Keep::No, None, Cargo::default()).await?;
        results.ok::<()>(opnum::PUTFH)?;
        let fattr: Fattr = results.ok(opnum::GETATTR)?;
        Ok(shown(&fattr)?.ok_or(Malformed("attributes without a type"))?)
    }

    /// SETATTR.
    pub async fn set(&self, set: &SetAttributes) -> Result<(), Error> {
        let fattr = changes(set);
        let op = |stateid| Op::Setattr(Setattr { stateid, attributes: fattr.clone() });
        let mut results = self.run(op, Keep::Yes, None, Cargo::default()).await?;
        let status = results.next(opnum::SETATTR)?;
        let _set: Bitmap = results.result()?;
        if status == Status::OK { Ok(()) } else { Err(Error::Status4(status)) }
    }

    /// The operations that close the file.
    fn closing(&self) -> Vec<Op> {
        vec![Op::Putfh(self.handle), Op::Close(Close { seqid: 0, stateid: self.stateid.get() })]
    }

    /// RFC 8881 18.2.3: a server may refuse to close a file with locks, so it is unlocked first.
    fn closing_unlocked(&self) -> Closing {
        Closing { unlock: self.unlocking_all(), close: self.closing() }
    }

    /// CLOSE; a second time does nothing.
    pub async fn close(&self) -> Result<(), Error> {
        if self.closed.replace(true) || self.lost.get().is_some() {
            return Ok(());
        }
        self.client.leave(self.number);
        let waiting = self.client.unanswered(self.closing_unlocked());
        let alone = self.locks.turn.lock().await;
        // A LOCK that had its turn before may have been granted meanwhile; no other is sent.
        let unanswered = self.client.unanswered(self.closing_unlocked());
        waiting.answered();
        if self.locks.may_be_held() {
            match self.unlock_in_turn(ByteRange::WHOLE).await {
                // The CLOSE shows whether the server accepts that it was not unlocked.
                Ok(()) | Err(Error::LocksLost | Error::Status4(_)) => {}
                Err(e) => return Err(e),
            }
        }
        drop(alone);
        let mut results = self.client.run(|| self.closing(), Keep::Yes, None, Cargo::default()).await?;
        if !stays_open(results.status) {
            unanswered.answered();
        }
        // A server that restarted meanwhile has closed it.
        if is_lost(results.status) {
            return Ok(());
        }
        results.ok::<()>(opnum::PUTFH)?;
        results.passed(opnum::CLOSE).map(drop)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.client.leave(self.number);
            if self.lost.get().is_none() {
                self.client.close_later(self.closing_unlocked());
            }
        }
    }
}

/// Whether the server no longer knows the state of an open, or of its locks.
pub(super) fn is_lost(status: Status) -> bool {
    matches!(
        status,
        Status::BAD_STATEID
            | Status::STALE_STATEID
            | Status::OLD_STATEID
            | Status::EXPIRED
            | Status::ADMIN_REVOKED
    )
}

/// Whether a CLOSE with this status was not carried out, so that the file has to be closed later. A file that the server
/// does not know is closed.
pub(super) fn stays_open(status: Status) -> bool {
    matches!(status, Status::DELAY | Status::LOCKS_HELD)
}

/// Skips the results of the operations that walk to the file.
pub(super) fn skip(results: &mut Results, walk: &[Op]) -> Result<(), Error> {
    walk.iter().try_for_each(|op| results.ok::<()>(op.number()))
}
