//! A file of a mounted export: reads and writes, many at a time. One idea for all versions, which differ in [`Remote`].
//!
//! Spec: RFC 1813 3.3.6 (READ), 3.3.7 (WRITE), 3.3.21 (COMMIT); RFC 8881 18.22, 18.32, 18.3.
//! Owns: the write verifier of what is not committed. Does not: cache, lock or append.
//!
//! Buffers: a read of at most `max_read` bytes is handed up as it was received or placed, without a copy; a longer one
//! is joined from pieces, counted, as is one that the server answers in pieces. A written `Bytes` leaves as it is where payload travels inside the message, and is
//! copied once where it has to be opened to the peer; [`File::write_buf`] lends its buffer and is never copied.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use weft_machine::{Buf, Pool, buf};
use weft_wire::nfs3::{
    AttrOnly, CommitArgs, CommitOk, Handle, Outcome, ReadArgs, ReadOk, Stable, Verifier, WccOnly, WriteHead,
    WriteOk, procedure,
};
use weft_wire::xdr::Malformed;

use super::Error;
use super::attributes::{Attributes, SetAttributes};
use super::lines::Lines;
use super::mount::{Mount, NFS, ok};
use super::patience::Patience;
use super::rpc::Cargo;
use super::v4::Opened;

/// A READ of this many bytes or fewer asks for its data inside the reply: that costs less than offering memory.
const SMALL_READ: usize = 2048;
/// RPC header, status and attributes in front of a READ's data.
const AROUND_BYTES: usize = 256;

/// A file.
pub struct File {
    remote: Remote,
    /// Of the server run that holds what was written and is not committed.
    verifier: Cell<Option<Verifier>>,
    lost: Cell<bool>,
    /// Something was written since the last commit.
    dirty: Cell<bool>,
    /// What was written and is not committed, where a lost connection is not the end.
    held: RefCell<Held>,
}

/// Where its bytes are.
enum Remote {
    /// A file that the server is not told of.
    V3(Mount, Handle),
    /// An open one.
    V4(Rc<Opened>),
}

/// Data that a server may lose until it is committed, in the order in which it was written.
#[derive(Default)]
struct Held {
    /// Each with the run of the server that has it.
    pieces: Vec<(u64, Bytes, Verifier)>,
    bytes: usize,
}

/// More than this is not held: it is committed first.
const MAX_HELD: usize = 32 << 20;
/// How often a server may lose what is written to it before that is an error.
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

    /// Its handle, in version 3.
    pub fn handle(&self) -> Option<Handle> {
        match &self.remote {
            Remote::V3(_, handle) => Some(*handle),
            Remote::V4(_) => None,
        }
    }

    fn lines(&self) -> &Lines {
        match &self.remote {
            Remote::V3(mount, _) => &mount.rpc,
            Remote::V4(opened) => &opened.client.lines,
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

    /// Whether payload can be placed beside messages.
    fn places(&self) -> bool {
        self.lines().channel().limits().placed_payload().is_some()
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
            // Written again later, it would grow back.
            self.commit().await?;
        }
        self.set(SetAttributes { size: Some(len), ..SetAttributes::default() }).await
    }

    /// Makes durable what was written, and ends the use of the file: version 4 tells the server. What is dropped without
    /// this stays open there for a while.
    pub async fn close(&self) -> Result<(), Error> {
        let committed = if self.dirty.get() { self.commit().await } else { Ok(()) };
        match &self.remote {
            Remote::V3(..) => committed,
            Remote::V4(opened) => opened.close().await.and(committed),
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

    /// The same as the pieces that were received; all of them are asked for at once.
    pub async fn read_chain(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Error> {
        let step = self.max_read();
        if len <= step {
            return self.read_piece(offset, len).await;
        }
        let piece = |at: usize| (offset.saturating_add(at as u64), step.min(len.saturating_sub(at)));
        let pieces = (0..len).step_by(step).map(piece).map(|(at, len)| self.read_piece(at, len));
        Ok(try_join_all(pieces).await?.concat())
    }

    /// One READ, or more where the server gives less than it was asked for.
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
                return Err(Malformed("READ gives neither data nor the end of the file").into());
            }
            let done = eof || data.len() == wanted;
            if done && joined.is_empty() {
                return Ok(vec![data]);
            }
            // A piece keeps the whole buffer in which it was received, and a server may give a byte at a time.
            let before = joined.len();
            joined.reserve_exact(wanted);
            joined.resize(before.saturating_add(data.len()), 0);
            buf::copy(joined.split_at_mut(before).1, &data);
            if done {
                return Ok(vec![Bytes::from(joined)]);
            }
        }
    }

    /// One READ.
    async fn read_once(&self, offset: u64, len: usize) -> Result<(Bytes, bool), Error> {
        let placed = self.places() && len > SMALL_READ;
        let sink = || placed.then(|| (self.pool().clone(), len));
        let longest_reply = AROUND_BYTES.saturating_add(if placed { 0 } else { len.saturating_add(3) });
        let cargo = || Cargo { sink: sink(), longest_reply, ..Cargo::default() };
        // max_read keeps a length below 32 bits.
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

    /// Writes all of `data`; it is durable after the next [`File::commit`]. Pieces go out at once.
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

    /// The same for a buffer that the transport may open to the server instead of copying it.
    pub async fn write_buf(&self, offset: u64, data: Buf) -> Result<(), Error> {
        let lent = self.places() && !self.lines().repeats();
        if data.len() > self.max_write() || !lent {
            return self.write(offset, data.freeze()).await;
        }
        let len = data.len();
        let cargo = Cargo { source: Some(data), ..Cargo::default() };
        let (written, _) = self.write_once(offset, len, Stable::Unstable, cargo).await?;
        // The buffer went with the call; a server that writes half of a WRITE gets a plain error.
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
            if let Some(verifier) = holder.filter(|_| self.lines().repeats()) {
                let held = &mut *self.held.borrow_mut();
                held.bytes = held.bytes.saturating_add(piece.len());
                held.pieces.push((at, piece, verifier));
            }
            at = at.saturating_add(written as u64);
        }
        Ok(())
    }

    /// One WRITE; the bytes written, at most `len`, and which run of the server may still lose them.
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
        if !self.lines().repeats() {
            holder.into_iter().for_each(|verifier| self.held_by(verifier));
        }
        Ok(((count as usize).min(len), holder))
    }

    /// Notes which run of the server holds uncommitted data.
    fn held_by(&self, verifier: Verifier) {
        if self.verifier.replace(Some(verifier)).is_some_and(|known| known != verifier) {
            self.lost.set(true);
        }
    }

    /// Makes durable what was written so far. [`Error::Lost`]: the server restarted in between, and everything since
    /// the last commit has to be written again.
    ///
    /// A mount that is kept connected writes it again by itself, and says [`Error::Lost`] only of a server that loses it time
    /// and again. Nothing that it touches should be written meanwhile.
    pub async fn commit(&self) -> Result<(), Error> {
        self.dirty.set(false);
        let committed = self.commit_held().await;
        if committed.is_err() {
            self.dirty.set(true);
        }
        committed
    }

    async fn commit_held(&self) -> Result<(), Error> {
        if !self.lines().repeats() {
            return self.commit_once().await;
        }
        for _ in 0..MAX_REWRITES {
            let held = self.held.take();
            let mut pieces = held.pieces.into_iter();
            let written = async {
                let verifier = self.commit_all().await?;
                let mut again = false;
                while let Some((offset, data, holder)) = pieces.as_slice().first().cloned() {
                    // Once one is lost, all behind it go again: a later one may lie on top of it.
                    if again || holder != verifier {
                        again = true;
                        self.write_piece(offset, data).await?;
                    }
                    pieces.next();
                }
                Ok(again)
            };
            let written = written.await;
            // What an error has kept from being written again is still to be.
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

    /// One COMMIT: which run of the server it was.
    async fn commit_all(&self) -> Result<Verifier, Error> {
        match &self.remote {
            Remote::V3(mount, file) => {
                let args = CommitArgs { file: *file, offset: 0, count: 0 };
                let patience = Patience::durable();
                loop {
                    let outcome: Outcome<CommitOk, WccOnly> =
                        mount.rpc.call(&patience, NFS, procedure::COMMIT, &args, Cargo::default()).await?;
                    match ok(outcome) {
                        Err(e) if patience.again(&e).await => {}
                        done => return done.map(|done| done.verifier),
                    }
                }
            }
            Remote::V4(opened) => opened.commit().await,
        }
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
