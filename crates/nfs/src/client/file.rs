//! A file of a mounted export: reads and writes, many at a time. The code is the same for all protocol versions; they
//! differ in [`Remote`].
//!
//! Implements RFC 1813 3.3.6 (READ), 3.3.7 (WRITE) and 3.3.21 (COMMIT), and RFC 8881 18.22, 18.32 and 18.3. A file
//! keeps the write verifier of its uncommitted data. It does not cache or append.
//!
//! Buffers: a read of at most `max_read` bytes is returned as it was received or placed, without a copy. A longer
//! one, or one that the server answers in pieces, is joined into one buffer, and that copy is counted. A written
//! `Bytes` is sent without a copy where payload travels inside the message, and is copied once where it has to be
//! registered for the peer. [`File::write_buf`] lends its buffer and never copies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::{LocalBoxFuture, try_join_all};
use weft_machine::{Buf, Pool, buf};
use weft_wire::nfs3::{
    AttrOnly, CommitArgs, CommitOk, Handle, Outcome, ReadArgs, ReadOk, Stable, Verifier, WccOnly, WriteHead,
    WriteOk, procedure,
};
use weft_wire::xdr::Malformed;

use super::Error;
use super::attributes::{Attributes, SetAttributes};
use super::connections::Connections;
use super::locks::{ByteRange, LockKind, OnConflict};
use super::mount::{Mount, NFS, ok};
use super::patience::Patience;
use super::rpc::Cargo;
use super::v4::Opened;

/// A READ of this many bytes or fewer receives its data inside the reply, which costs less than registering memory.
const SMALL_READ: usize = 2048;
/// RPC header, status and attributes in front of a READ's data.
const AROUND_BYTES: usize = 256;

/// A file.
pub struct File {
    remote: Remote,
    /// Write verifier of the server instance that holds the uncommitted data.
    verifier: Cell<Option<Verifier>>,
    lost: Cell<bool>,
    /// Whether something was written since the last commit.
    dirty: Cell<bool>,
    /// Uncommitted data, kept where the mount survives a lost connection.
    held: RefCell<Held>,
}

/// How the file is addressed on the server.
enum Remote {
    /// A version 3 file, which the server does not open.
    V3(Mount, Handle),
    /// An open version 4 file.
    V4(Rc<Opened>),
}

/// Data that the server may lose until it is committed, in the order in which it was written.
#[derive(Default)]
struct Held {
    /// Offset, data, and the verifier of the server instance that holds it.
    pieces: Vec<(u64, Bytes, Verifier)>,
    bytes: usize,
}

/// Most bytes held uncommitted; more triggers a commit first.
const MAX_HELD: usize = 32 << 20;
/// How often a server may lose uncommitted data before that is an error.
const MAX_REWRITES: u32 = 5;

impl File {
    pub(super) fn new(mount: Mount, handle: Handle) -> File {
        File::of(Remote::V3(mount, handle))
    }

    pub(super) fn of_v4(opened: Rc<Opened>) -> File {
        File::of(Remote::V4(opened))
    }

    fn of(remote: Remote) -> File {
        File {
            remote,
            verifier: Cell::new(None),
            lost: Cell::new(false),
            dirty: Cell::new(false),
            held: RefCell::default(),
        }
    }

    /// The file's handle, in version 3.
    pub fn handle(&self) -> Option<Handle> {
        match &self.remote {
            Remote::V3(_, handle) => Some(*handle),
            Remote::V4(_) => None,
        }
    }

    fn connections(&self) -> &Connections {
        match &self.remote {
            Remote::V3(mount, _) => &mount.rpc,
            Remote::V4(opened) => &opened.client.connections,
        }
    }

    fn pool(&self) -> &Pool {
        match &self.remote {
            Remote::V3(mount, _) => &mount.pool,
            Remote::V4(opened) => &opened.client.pool,
        }
    }

    fn max_read(&self) -> usize {
        match &self.remote {
            Remote::V3(mount, _) => mount.max_read(),
            Remote::V4(opened) => opened.client.sizes.get().0,
        }
    }

    fn max_write(&self) -> usize {
        match &self.remote {
            Remote::V3(mount, _) => mount.max_write(),
            Remote::V4(opened) => opened.client.sizes.get().1,
        }
    }

    /// Its attributes.
    pub async fn stat(&self) -> Result<Attributes, Error> {
        match &self.remote {
            Remote::V3(mount, handle) => mount.getattr(*handle).await,
            Remote::V4(opened) => opened.stat().await,
        }
    }

    /// Changes its attributes.
    pub async fn set(&self, set: SetAttributes) -> Result<(), Error> {
        match &self.remote {
            Remote::V3(mount, handle) => mount.setattr(*handle, set).await,
            Remote::V4(opened) => opened.set(&set).await,
        }
    }

    /// Sets its size.
    pub async fn set_len(&self, len: u64) -> Result<(), Error> {
        if !self.held.borrow().pieces.is_empty() {
            // An uncommitted write that is repeated later would extend the file again.
            self.commit().await?;
        }
        self.set(SetAttributes { size: Some(len), ..SetAttributes::default() }).await
    }

    /// Makes durable what was written and closes the file, which version 4 reports to the server. A file that is
    /// dropped without this stays open there for a while, unless it has locks: then the mount unlocks and closes it soon.
    pub async fn close(&self) -> Result<(), Error> {
        let committed = if self.dirty.get() { self.commit().await } else { Ok(()) };
        match &self.remote {
            Remote::V3(..) => committed,
            Remote::V4(opened) => opened.close().await.and(committed),
        }
    }

    /// Locks a range (RFC 8881 18.10) until it is unlocked or the file is closed. It replaces the locks that this file
    /// already has there. The lock belongs to this [`File`]: another one of the same mount is excluded like any other
    /// client. Other NFS clients may read and write all the same; SMB clients may not.
    ///
    /// A server that has restarted grants no locks in its grace period; the call waits for its end. A call that is
    /// dropped, or fails because the server does not answer, may have locked the range all the same, until it is unlocked
    /// or the file is closed.
    ///
    /// # Errors
    /// [`Error::Locked`] with [`OnConflict::Fail`] if another lock conflicts. [`Error::LocksLost`] if the server has lost
    /// the locks of this file: then every call but [`File::stat`], [`File::commit`] and [`File::close`] fails like this,
    /// and so does a commit that would have to write again. [`Error::Misuse`] if the range is empty or ends beyond
    /// 2^64 - 1, and in version 3, whose locks are another protocol. OPENMODE if the file is not open for writing and the
    /// lock is exclusive.
    pub async fn lock(&self, range: ByteRange, kind: LockKind, on_conflict: OnConflict) -> Result<(), Error> {
        self.lockable()?.lock(range, kind, on_conflict).await
    }

    /// Unlocks a range (RFC 8881 18.12). It may be a part of what was locked, and need not be locked at all.
    ///
    /// # Errors
    /// [`Error::LocksLost`] and [`Error::Misuse`] as in [`File::lock`].
    pub async fn unlock(&self, range: ByteRange) -> Result<(), Error> {
        self.lockable()?.unlock(range).await
    }

    fn lockable(&self) -> Result<&Opened, Error> {
        match &self.remote {
            Remote::V3(..) => {
                Err(Error::Misuse("NFS version 3 locks by another protocol; mount with version 4.1"))
            }
            Remote::V4(opened) => Ok(opened),
        }
    }

    /// Reads `[offset, offset + len)`; shorter only at the end of the file.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        let mut chain = self.read_chain(offset, len).await?;
        if chain.len() <= 1 {
            return Ok(chain.pop().unwrap_or_default());
        }
        let mut whole = vec![0; chain.iter().map(Bytes::len).sum()];
        let mut rest = &mut whole[..];
        for piece in &chain {
            let (to, behind) = rest.split_at_mut(piece.len());
            buf::copy(to, piece);
            rest = behind;
        }
        Ok(Bytes::from(whole))
    }

    /// Like [`File::read`], but returns the pieces as they were received. All of them are requested at once.
    pub async fn read_chain(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Error> {
        let step = self.max_read();
        if len <= step {
            return self.read_piece(offset, len).await;
        }
        let piece = |at: usize| (offset.saturating_add(at as u64), step.min(len.saturating_sub(at)));
        let pieces = (0..len).step_by(step).map(piece).map(|(at, len)| self.read_piece(at, len));
        Ok(try_join_all(pieces).await?.concat())
    }

    /// Reads one piece, with more than one READ if the server returns less than requested.
    async fn read_piece(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Error> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let mut joined = Vec::new();
        loop {
            let at = offset.saturating_add(joined.len() as u64);
            let wanted = len.saturating_sub(joined.len());
            let (data, eof) = self.read_once(at, wanted).await?;
            if data.is_empty() && !eof {
                return Err(Malformed("READ returned no data and no end of file").into());
            }
            let done = eof || data.len() == wanted;
            if done && joined.is_empty() {
                return Ok(vec![data]);
            }
            // Each piece keeps its whole receive buffer alive, and a server may return one byte at a time.
            let before = joined.len();
            joined.reserve_exact(wanted);
            joined.resize(before.saturating_add(data.len()), 0);
            buf::copy(joined.split_at_mut(before).1, &data);
            if done {
                return Ok(vec![Bytes::from(joined)]);
            }
        }
    }

    /// Sends one READ.
    async fn read_once(&self, offset: u64, len: usize) -> Result<(Bytes, bool), Error> {
        let placed = self.connections().places() && len > SMALL_READ;
        let sink = || placed.then(|| (self.pool().clone(), len));
        let longest_reply = AROUND_BYTES.saturating_add(if placed { 0 } else { len.saturating_add(3) });
        let cargo = || Cargo { sink: sink(), longest_reply, ..Cargo::default() };
        // `max_read` keeps the length below 32 bits.
        let count = len as u32;
        let (data, eof) = match &self.remote {
            Remote::V3(mount, file) => {
                let args = ReadArgs { file: *file, offset, count };
                let patience = Patience::new();
                loop {
                    let outcome: Outcome<ReadOk, AttrOnly> =
                        mount.rpc.call(&patience, NFS, procedure::READ, &args, cargo()).await?;
                    match ok(outcome) {
                        Ok(read) => break (read.data, read.head.eof),
                        Err(e) if patience.again(&e).await => {}
                        Err(e) => return Err(e),
                    }
                }
            }
            Remote::V4(opened) => opened.read(offset, count, cargo()).await?,
        };
        if data.len() > len {
            return Err(Malformed("RFC 1813 3.3.6, RFC 8881 18.22: more data than asked for").into());
        }
        Ok((data, eof))
    }

    /// Writes all of `data`; it is durable after the next [`File::commit`]. All pieces are sent at once.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), Error> {
        if self.held.borrow().bytes.saturating_add(data.len()) > MAX_HELD {
            self.commit().await?;
        }
        let step = self.max_write();
        if data.len() <= step {
            return self.write_piece(offset, data).await;
        }
        let piece = |at: usize| data.slice(at..data.len().min(at.saturating_add(step)));
        let write = |at: usize| self.write_piece(offset.saturating_add(at as u64), piece(at));
        let pieces = (0..data.len()).step_by(step).map(write);
        try_join_all(pieces).await.map(drop)
    }

    /// Like [`File::write`], for a buffer that the transport may register for the server instead of copying it.
    pub async fn write_buf(&self, offset: u64, data: Buf) -> Result<(), Error> {
        if data.len() > self.max_write() || !self.connections().lends() {
            return self.write(offset, data.freeze()).await;
        }
        let len = data.len();
        let cargo = Cargo { source: Some(data), ..Cargo::default() };
        let (written, _) = self.write_once(offset, len, Stable::Unstable, cargo).await?;
        // The buffer went with the call, so the remainder cannot be sent: a short WRITE is an error.
        if written < len { Err(Malformed("RFC 1813 3.3.7: a short write").into()) } else { Ok(()) }
    }

    async fn write_piece(&self, offset: u64, mut data: Bytes) -> Result<(), Error> {
        let mut at = offset;
        while !data.is_empty() {
            let cargo = Cargo { payload: Some(data.clone().into()), ..Cargo::default() };
            let (written, holder) = self.write_once(at, data.len(), Stable::Unstable, cargo).await?;
            if written == 0 {
                return Err(Malformed("WRITE makes no progress").into());
            }
            let piece = data.split_to(written);
            if let Some(verifier) = holder.filter(|_| self.connections().repeats()) {
                let held = &mut *self.held.borrow_mut();
                held.bytes = held.bytes.saturating_add(piece.len());
                held.pieces.push((at, piece, verifier));
            }
            at = at.saturating_add(written as u64);
        }
        Ok(())
    }

    /// Sends one WRITE. Returns the bytes written, at most `len`, and, if they are not durable yet, the verifier of
    /// the server instance that holds them.
    async fn write_once(
        &self,
        offset: u64,
        len: usize,
        stable: Stable,
        mut cargo: Cargo,
    ) -> Result<(usize, Option<Verifier>), Error> {
        self.dirty.set(true);
        let count = len as u32;
        let (count, committed, verifier) = match &self.remote {
            Remote::V3(mount, file) => {
                let head = WriteHead { file: *file, offset, count, stable };
                let patience = Patience::new();
                loop {
                    let outcome: Outcome<WriteOk, WccOnly> = mount
                        .rpc
                        .call_with(&patience, NFS, procedure::WRITE, |e| head.emit(e), cargo.again())
                        .await?;
                    match ok(outcome) {
                        Ok(done) => break (done.count, done.committed, done.verifier),
                        Err(e) if patience.again(&e).await => {}
                        Err(e) => return Err(e),
                    }
                }
            }
            Remote::V4(opened) => {
                let done = opened.write(offset, count, stable, cargo).await?;
                (done.count, done.committed, done.verifier)
            }
        };
        let holder = (committed == Stable::Unstable).then_some(verifier);
        if !self.connections().repeats() {
            holder.into_iter().for_each(|verifier| self.held_by(verifier));
        }
        Ok(((count as usize).min(len), holder))
    }

    /// Notes the server instance that holds uncommitted data.
    fn held_by(&self, verifier: Verifier) {
        if self.verifier.replace(Some(verifier)).is_some_and(|known| known != verifier) {
            self.lost.set(true);
        }
    }

    /// Makes durable what was written so far. [`Error::Lost`]: the server restarted in between, and the caller must
    /// repeat everything since the last commit.
    ///
    /// A mount that reconnects repeats the writes itself, and returns [`Error::Lost`] only if the server keeps losing
    /// them. The caller must not write to the same ranges meanwhile.
    pub async fn commit(&self) -> Result<(), Error> {
        self.dirty.set(false);
        let committed = self.commit_held().await;
        if committed.is_err() {
            self.dirty.set(true);
        }
        committed
    }

    async fn commit_held(&self) -> Result<(), Error> {
        if !self.connections().repeats() {
            return self.commit_once().await;
        }
        for _ in 0..MAX_REWRITES {
            let held = self.held.take();
            let mut pieces = held.pieces.into_iter();
            let written = async {
                let verifier = self.commit_all().await?;
                let mut again = false;
                while let Some((offset, data, holder)) = pieces.as_slice().first().cloned() {
                    // Once one piece is lost, all later ones are repeated too, because they may overlap it.
                    if again || holder != verifier {
                        again = true;
                        self.write_piece(offset, data).await?;
                    }
                    pieces.next();
                }
                Ok(again)
            };
            let written = written.await;
            // Pieces that an error kept from being repeated stay held.
            let held = &mut *self.held.borrow_mut();
            let again = pieces.as_slice().iter().map(|(_, data, _)| data.len()).sum();
            held.bytes = held.bytes.saturating_add(again);
            held.pieces.splice(0..0, pieces);
            match written {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Err(Error::Lost)
    }

    /// Sends one COMMIT. Returns the verifier of the server instance.
    fn commit_all(&self) -> LocalBoxFuture<'_, Result<Verifier, Error>> {
        Box::pin(async move {
            match &self.remote {
                Remote::V3(mount, file) => {
                    let args = CommitArgs { file: *file, offset: 0, count: 0 };
                    let patience = Patience::durable();
                    loop {
                        let outcome: Outcome<CommitOk, WccOnly> = mount
                            .rpc
                            .call(&patience, NFS, procedure::COMMIT, &args, Cargo::default())
                            .await?;
                        match ok(outcome) {
                            Err(e) if patience.again(&e).await => {}
                            done => return done.map(|done| done.verifier),
                        }
                    }
                }
                Remote::V4(opened) => opened.commit().await,
            }
        })
    }

    async fn commit_once(&self) -> Result<(), Error> {
        let verifier = self.commit_all().await?;
        let known = self.verifier.take();
        if self.lost.take() || known.is_some_and(|known| known != verifier) {
            return Err(Error::Lost);
        }
        Ok(())
    }
}
