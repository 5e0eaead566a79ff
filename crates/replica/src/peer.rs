//! The requests of a source to a destination, independent of the transport: the contract [`Peer`], and [`Link`], which
//! has a method for each request. The messages are in `wire::repl`; retrying is up to `source`.
//!
//! Three calls carry everything. `control` exchanges one small message. `append` and `write_blocks` move payload: over
//! SMB each is a WRITE, whose payload goes over RDMA when available. Several calls may be in flight and may arrive in
//! any order; the destination sorts appends by their sequence.
//!
//! After [`Error::Unreachable`] and [`Error::Silent`] the request may or may not have been carried out: the answer to
//! the next hello tells. A peer connects and reconnects only inside `control`, when it gets a [`Request::Hello`]. An
//! append or a write that fails for an unknown reason counts as unreachable.

mod local;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::Payload;
use weft_wire::repl::control::{DIGEST, Era, Hello, Refusal, Report, Request, Response, Sync, Welcome};

use crate::bitmap::Bitmap;
use crate::record::{MIN_LOG_BYTES, Record};

pub use self::local::Local;

/// The most bytes of one append, with headers and padding. A single record may be longer, by a header at most.
pub const APPEND_BYTES: usize = 4 << 20;
/// The most bytes of records that a source sends before they are durable in its own log, as they lie there. A
/// destination keeps as many of the youngest in its log: should the source lose them, it has to name what they changed.
pub const AHEAD_BYTES: u64 = MIN_LOG_BYTES / 8;
/// The most bytes of one call of [`Peer::write_blocks`].
pub const BLOCKS_BYTES: usize = 4 << 20;

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The link is down, or went down before the answer came. The text is for people.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// Neither an answer nor an error arrived within this time.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The destination refused.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// It does not know the request: its version is older.
    #[error("its version of Weft does not know this request")]
    Unknown,
    /// Its answer does not fit the request.
    #[error("it does not keep to the protocol")]
    Violation,
}

/// A destination, as seen from a source's core.
pub trait Peer: fmt::Debug {
    /// Sends a request and returns its response. A refusal may be a `Response::Refused` or an [`Error::Refused`].
    fn control(&self, request: Request) -> LocalBoxFuture<'_, Result<Response, Error>>;

    /// Appends records of consecutive sequences to the destination's log. Answered when they are durable there.
    fn append(&self, session: u64, records: Vec<Record>) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// Stores bytes in volume number `member`, bypassing the log; durable after a barrier. At most [`BLOCKS_BYTES`].
    fn write_blocks(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        data: Payload,
    ) -> LocalBoxFuture<'_, Result<(), Error>>;
}

/// A session with a peer.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    peer: &'a dyn Peer,
    session: u64,
}

impl<'a> Link<'a> {
    /// Claims the destination.
    pub async fn hello(peer: &'a dyn Peer, hello: Hello) -> Result<(Link<'a>, Welcome), Error> {
        match ask(peer, Request::Hello(hello)).await? {
            Response::Welcome(welcome) => Ok((Link { peer, session: welcome.session }, welcome)),
            _ => Err(Error::Violation),
        }
    }

    /// See [`Peer::append`].
    pub async fn append(&self, records: Vec<Record>) -> Result<(), Error> {
        self.peer.append(self.session, records).await
    }

    /// See [`Peer::write_blocks`].
    pub async fn write_blocks(&self, member: u16, offset: u64, data: Payload) -> Result<(), Error> {
        self.peer.write_blocks(self.session, member, offset, data).await
    }

    /// See [`Request::Zero`].
    pub async fn zero(&self, member: u16, offset: u64, len: u64) -> Result<(), Error> {
        self.done(Request::Zero { session: self.session, member, offset, len }).await
    }

    /// See [`Request::Checksums`].
    pub async fn checksums(
        &self,
        member: u16,
        offset: u64,
        len: u64,
        piece: u32,
        after: u64,
    ) -> Result<Vec<[u8; DIGEST]>, Error> {
        let session = self.session;
        let request = Request::Checksums { session, member, offset, len, piece, after };
        match ask(self.peer, request).await? {
            Response::Digests(digests) if digests.len() as u64 == len.div_ceil(piece.into()) => Ok(digests),
            _ => Err(Error::Violation),
        }
    }

    /// See [`Request::Barrier`].
    pub async fn barrier(&self) -> Result<(), Error> {
        self.done(Request::Barrier { session: self.session }).await
    }

    /// See [`Request::Begin`].
    pub async fn begin(&self, base: u64, sync: Sync) -> Result<(), Error> {
        self.done(Request::Begin { session: self.session, base, sync }).await
    }

    /// See [`Request::Finish`].
    pub async fn finish(&self, at: u64) -> Result<(), Error> {
        self.done(Request::Finish { session: self.session, at }).await
    }

    /// Marks everything that the destination has changed in one volume, of `size` bytes there, since the histories
    /// parted. The answers are not collected: the ranges must ascend inside the volume, so a walk takes at most as many
    /// steps as the bitmap has bits.
    pub async fn diverged(&self, member: u16, size: u64, map: &mut Bitmap) -> Result<(), Error> {
        let mut from = 0;
        loop {
            match ask(self.peer, Request::Diverged { session: self.session, member, from }).await? {
                Response::Ranges { ranges, next } => {
                    let mut at = from;
                    for (offset, len) in ranges {
                        let end = offset.checked_add(len).filter(|end| *end <= size && offset >= at);
                        at = end.ok_or(Error::Violation)?;
                        map.mark(offset, len);
                    }
                    match next {
                        // A destination that goes backwards would keep this in a loop.
                        Some(next) if next <= from || next < at || next >= size => {
                            return Err(Error::Violation);
                        }
                        Some(next) => from = next,
                        None => return Ok(()),
                    }
                }
                _ => return Err(Error::Violation),
            }
        }
    }

    /// See [`Request::Suspend`].
    pub async fn suspend(&self) -> Result<(), Error> {
        self.done(Request::Suspend { session: self.session }).await
    }

    /// See [`Request::Prepare`].
    pub async fn prepare(&self) -> Result<(), Error> {
        self.done(Request::Prepare { session: self.session }).await
    }

    /// See [`Request::TakeOver`].
    pub async fn take_over(&self, era: Era) -> Result<(), Error> {
        self.done(Request::TakeOver { session: self.session, era }).await
    }

    /// See [`Request::Beat`].
    pub async fn beat(&self) -> Result<Report, Error> {
        match ask(self.peer, Request::Beat { session: self.session }).await? {
            Response::Report(report) => Ok(report),
            _ => Err(Error::Violation),
        }
    }

    async fn done(&self, request: Request) -> Result<(), Error> {
        match ask(self.peer, request).await? {
            Response::Done => Ok(()),
            _ => Err(Error::Violation),
        }
    }
}

/// The status of a peer, whichever source it follows. See [`Request::Status`].
pub(crate) async fn status(peer: &dyn Peer) -> Result<Report, Error> {
    match ask(peer, Request::Status).await? {
        Response::Report(report) => Ok(report),
        _ => Err(Error::Violation),
    }
}

async fn ask(peer: &dyn Peer, request: Request) -> Result<Response, Error> {
    match peer.control(request).await? {
        Response::Refused(refusal) => Err(refusal.into()),
        response => Ok(response),
    }
}

/// The bytes of an append on the wire: the records as they lie in a log.
pub fn append_bytes(records: &[Record]) -> Vec<Bytes> {
    let mut chain = Vec::with_capacity(records.len().saturating_mul(3));
    records.iter().for_each(|record| record.emit(&mut chain));
    chain
}
