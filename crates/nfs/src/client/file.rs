//! A file of a mounted export: reads and writes, many at a time.
//!
//! Spec: RFC 1813 3.3.6 (READ), 3.3.7 (WRITE), 3.3.21 (COMMIT). Owns: the write verifier of what is not committed.
//! Does not: cache, lock or append.
//!
//! Buffers: a read of at most `max_read` bytes is handed up as it was received or placed, without a copy; a longer one
//! is joined from pieces, counted. A written `Bytes` leaves as it is where payload travels inside the message, and is
//! copied once where it has to be opened to the peer; [`File::write_buf`] lends its buffer and is never copied.

use std::cell::Cell;

use bytes::Bytes;
use futures_util::future::try_join_all;
use weft_machine::{Buf, buf};
use weft_wire::nfs3::{
    AttrOnly, Attributes, CommitArgs, CommitOk, Handle, Outcome, ReadArgs, ReadOk, SetAttributes, Stable,
    Verifier, WccOnly, WriteHead, WriteOk, procedure,
};
use weft_wire::xdr::Malformed;

use super::Error;
use super::mount::{Mount, NFS, ok};
use super::rpc::Cargo;

/// A READ of this many bytes or fewer asks for its data inside the reply: that costs less than offering memory.
const SMALL_READ: usize = 2048;
/// RPC header, status and attributes in front of a READ's data.
const AROUND_BYTES: usize = 160;

/// A file.
pub struct File {
    mount: Mount,
    handle: Handle,
    /// Of the server run that holds what was written and is not committed.
    verifier: Cell<Option<Verifier>>,
    lost: Cell<bool>,
}

impl File {
    pub(super) fn new(mount: Mount, handle: Handle) -> File {
        File { mount, handle, verifier: Cell::new(None), lost: Cell::new(false) }
    }

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Its attributes.
    pub async fn stat(&self) -> Result<Attributes, Error> {
        self.mount.getattr(self.handle).await
    }

    /// Sets its size.
    pub async fn set_len(&self, len: u64) -> Result<(), Error> {
        let set = SetAttributes { size: Some(len), ..SetAttributes::default() };
        self.mount.setattr(self.handle, set).await
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
        let step = self.mount.max_read();
        if len <= step {
            return self.read_piece(offset, len).await;
        }
        let pieces = (0..len).step_by(step).map(|at| self.read_piece(offset + at as u64, step.min(len - at)));
        Ok(try_join_all(pieces).await?.concat())
    }

    /// One READ, or more where the server gives less than it was asked for.
    async fn read_piece(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Error> {
        let (mut chain, mut got) = (Vec::new(), 0);
        while got < len {
            let (data, eof) = self.read_once(offset + got as u64, len - got).await?;
            if data.is_empty() && !eof {
                return Err(Malformed("READ gives neither data nor the end of the file").into());
            }
            got += data.len();
            chain.push(data);
            if eof {
                break;
            }
        }
        Ok(chain)
    }

    /// One READ.
    async fn read_once(&self, offset: u64, len: usize) -> Result<(Bytes, bool), Error> {
        let placed = self.mount.channel().limits().placed_payload().is_some() && len > SMALL_READ;
        let sink = if placed {
            let mut sink = self.mount.pool.alloc(len).await;
            sink.set_len(len);
            Some(sink)
        } else {
            None
        };
        let longest_reply = AROUND_BYTES + if placed { 0 } else { len + 3 };
        let cargo = Cargo { sink, longest_reply, ..Cargo::default() };
        // max_read keeps a length below 32 bits.
        let args = ReadArgs { file: self.handle, offset, count: len as u32 };
        let outcome: Outcome<ReadOk, AttrOnly> =
            self.mount.rpc.call(NFS, procedure::READ, &args, cargo).await?;
        let read = ok(outcome)?;
        if read.data.len() > len {
            return Err(Malformed("RFC 1813 3.3.6: more data than asked for").into());
        }
        Ok((read.data, read.head.eof))
    }

    /// Writes all of `data`; it is durable after the next [`File::commit`]. Pieces go out at once.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), Error> {
        let step = self.mount.max_write();
        if data.len() <= step {
            return self.write_piece(offset, data).await;
        }
        let piece = |at: usize| data.slice(at..data.len().min(at + step));
        let pieces = (0..data.len()).step_by(step).map(|at| self.write_piece(offset + at as u64, piece(at)));
        try_join_all(pieces).await.map(drop)
    }

    /// The same for a buffer that the transport may open to the server instead of copying it.
    pub async fn write_buf(&self, offset: u64, data: Buf) -> Result<(), Error> {
        if data.len() > self.mount.max_write() || self.mount.channel().limits().placed_payload().is_none() {
            return self.write(offset, data.freeze()).await;
        }
        let len = data.len();
        let cargo = Cargo { source: Some(data), ..Cargo::default() };
        let written = self.write_once(offset, len, Stable::Unstable, cargo).await?;
        // The buffer went with the call; a server that writes half of a WRITE gets a plain error.
        if written < len { Err(Malformed("RFC 1813 3.3.7: a short write").into()) } else { Ok(()) }
    }

    async fn write_piece(&self, offset: u64, mut data: Bytes) -> Result<(), Error> {
        let mut at = offset;
        while !data.is_empty() {
            let cargo = Cargo { payload: Some(data.clone().into()), ..Cargo::default() };
            let written = self.write_once(at, data.len(), Stable::Unstable, cargo).await?;
            if written == 0 {
                return Err(Malformed("WRITE makes no progress").into());
            }
            at += written as u64;
            drop(data.split_to(written));
        }
        Ok(())
    }

    /// One WRITE; the bytes written, at most `len`.
    async fn write_once(
        &self,
        offset: u64,
        len: usize,
        stable: Stable,
        cargo: Cargo,
    ) -> Result<usize, Error> {
        let head = WriteHead { file: self.handle, offset, count: len as u32, stable };
        let outcome: Outcome<WriteOk, WccOnly> =
            self.mount.rpc.call_with(NFS, procedure::WRITE, |e| head.emit(e), cargo).await?;
        let done = ok(outcome)?;
        if done.committed == Stable::Unstable {
            self.held_by(done.verifier);
        }
        Ok((done.count as usize).min(len))
    }

    /// Notes which run of the server holds uncommitted data.
    fn held_by(&self, verifier: Verifier) {
        if self.verifier.replace(Some(verifier)).is_some_and(|known| known != verifier) {
            self.lost.set(true);
        }
    }

    /// Makes durable what was written so far. [`Error::Lost`]: the server restarted in between, and everything since
    /// the last commit has to be written again.
    pub async fn commit(&self) -> Result<(), Error> {
        let args = CommitArgs { file: self.handle, offset: 0, count: 0 };
        let outcome: Outcome<CommitOk, WccOnly> =
            self.mount.rpc.call(NFS, procedure::COMMIT, &args, Cargo::default()).await?;
        let done = ok(outcome)?;
        let known = self.verifier.take();
        if self.lost.take() || known.is_some_and(|known| known != done.verifier) {
            return Err(Error::Lost);
        }
        Ok(())
    }
}
