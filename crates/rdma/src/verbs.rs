//! The contract between providers and their users: the types and the traits.
//!
//! It follows RFC 5040 5 (message formats) and 8 (error semantics); ARCHITECTURE.md explains the design. `iwarp`, `shm`
//! and `rnic` implement it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Add;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::recorder::Stage;
use weft_machine::{Buf, File, Payload, Peer, Pool};
use weft_wire::rdmap;

/// A steering tag: names one registered region of one queue pair (RFC 5040 1.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stag:{:08x}", self.0)
    }
}

/// A range of a peer's registered memory, as chunk lists and SMB2 buffer descriptors carry it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The region.
    pub stag: Stag,
    /// Tagged offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Segment {
    /// Bytes of all of them.
    pub fn total(segments: &[Segment]) -> u64 {
        segments.iter().map(|segment| u64::from(segment.len)).sum()
    }
}

/// What the peer may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The peer may read it (RDMA Read).
    RemoteRead,
    /// The peer may write it (RDMA Write); bytes that it does not write keep their value.
    RemoteWrite,
    /// The peer may write it, and bytes that it does not write are undefined once the region is taken back; all bytes
    /// are undefined if the connection ends first. For memory where a message will say how much was filled. A provider
    /// may then receive further ahead, and before it has verified what it receives.
    RemoteFill,
}

impl Access {
    /// Whether a region with this access allows `wanted`: reading or writing.
    pub fn allows(self, wanted: Access) -> bool {
        (self == Access::RemoteRead) == (wanted == Access::RemoteRead)
    }
}

/// Work for a queue pair. The Sends, Writes and Reads of a queue pair are carried out in the order in which they were
/// posted (a Read's data may arrive later; a Send posted after it is not held back).
#[derive(Debug)]
pub enum Work {
    /// A message for the peer's next posted receive buffer.
    Send {
        /// Returned in the completion.
        id: u64,
        /// The message, in parts.
        data: Vec<Bytes>,
        /// A region of the peer that this message also revokes (Send with Invalidate).
        invalidate: Option<Stag>,
        /// Ask for an event at the peer (Send with Solicited Event).
        solicited: bool,
        /// Whether to report success; failure is always reported.
        signalled: bool,
    },
    /// A buffer for one incoming message; its capacity bounds the message.
    Recv {
        /// Returned in the completion.
        id: u64,
        /// Receives the message.
        buf: Buf,
    },
    /// Payload for the peer's memory.
    Write {
        /// Returned in the completion.
        id: u64,
        /// The bytes; the provider reads a file range, directly into the peer's memory if it can.
        data: Payload,
        /// The destination; `len` is at least the payload's.
        to: Segment,
        /// Whether to report success; failure is always reported.
        signalled: bool,
    },
    /// Reads the peer's memory into `into`, from its start; always signalled. For an empty Read neither STag nor offset
    /// are checked (RFC 5040 5.2.1); it completes after the Reads before it.
    Read {
        /// Returned in the completion.
        id: u64,
        /// Capacity is at least `from.len`.
        into: Buf,
        /// The source.
        from: Segment,
    },
}

impl Work {
    /// The id that its completion carries.
    pub fn id(&self) -> u64 {
        match self {
            Work::Send { id, .. }
            | Work::Recv { id, .. }
            | Work::Write { id, .. }
            | Work::Read { id, .. } => *id,
        }
    }
}

/// The outcome of one piece of work.
#[derive(Debug)]
pub struct Completion {
    /// As posted.
    pub id: u64,
    /// The outcome.
    pub result: Result<Done, WorkError>,
}

/// Success, and what the work returns.
#[derive(Debug)]
pub enum Done {
    /// The message was handed to the medium (it may not have been placed yet).
    Sent,
    /// A message arrived; `buf.len()` is its length.
    Received {
        /// The message.
        buf: Buf,
        /// The local region that the peer revoked with it.
        invalidated: Option<Stag>,
        /// Whether the peer asked for an event.
        solicited: bool,
    },
    /// The payload was handed to the medium.
    Written,
    /// The peer's memory was read; `buf.len()` is `from.len`.
    Read {
        /// The buffer as posted, filled.
        buf: Buf,
    },
}

/// Why a piece of work failed. The queue pair is then in its error state: all other work is flushed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkError {
    /// The queue pair ended before this work was carried out.
    #[error("flushed: the connection ended first")]
    Flushed,
    /// The peer refused it: bad STag, bounds or rights (it sent a Terminate, or its table refused).
    #[error("refused by the peer: {0}")]
    Remote(Refusal),
    /// The payload's file could not be read.
    #[error("payload unreadable: {0:?}")]
    Payload(io::ErrorKind),
}

/// Why access to a region was refused; each has a Terminate code (RFC 5040 4.8, RFC 5041 7.2).
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// Unknown, revoked or foreign STag.
    #[error("invalid STag")]
    InvalidStag,
    /// The range is not inside the region.
    #[error("base or bounds violation")]
    Bounds,
    /// The region does not allow this kind of access.
    #[error("access rights violation")]
    Access,
    /// STag belongs to another connection.
    #[error("STag not associated with this stream")]
    NotAssociated,
    /// No receive buffer was posted for a Send.
    #[error("no buffer posted for a message")]
    NoBuffer,
    /// A message longer than the posted buffer.
    #[error("message too long for the posted buffer")]
    TooLong,
    /// More RDMA Reads at once than were agreed.
    #[error("too many RDMA Reads outstanding")]
    TooManyReads,
    /// STag cannot be invalidated.
    #[error("STag cannot be invalidated")]
    CannotInvalidate,
    /// Anything else: the layer, type and code of the Terminate, as sent.
    #[error("Terminate layer {layer} type {etype} code {code:#04x}{}", in_words(*.layer, *.etype, *.code))]
    Other {
        /// RFC 5040 4.8 Layer.
        layer: u8,
        /// EType.
        etype: u8,
        /// Error code.
        code: u8,
    },
}

/// The meaning of a Terminate, if its numbers are defined; Linux's siw swaps layer and type.
fn in_words(layer: u8, etype: u8, code: u8) -> String {
    let said = rdmap::terminate_name((layer, etype, code));
    let swapped = rdmap::terminate_name((etype, layer, code)).filter(|_| layer != etype);
    match (said, swapped) {
        (Some(said), None) => format!(" ({said})"),
        (Some(said), Some(swapped)) => {
            format!(" ({said}; or, from a peer that swaps layer and type as Linux's siw does, {swapped})")
        }
        (None, Some(swapped)) => format!(" (layer and type swapped, as Linux's siw does: {swapped})"),
        (None, None) => String::new(),
    }
}

/// Why `post` or `register` refused: a mistake of the caller, or a limit.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The send or receive queue is full: wait for completions.
    #[error("queue full")]
    QueueFull,
    /// The region table is full.
    #[error("region table full ({0} regions)")]
    RegionsFull(usize),
    /// The work is inconsistent (buffer smaller than the segment, ...).
    #[error("misuse: {0}")]
    Misuse(&'static str),
    /// The queue pair has ended.
    #[error("connection closed")]
    Closed,
}

/// Why a connection ended.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Disconnect {
    /// Orderly end by the peer.
    #[error("closed by the peer")]
    Peer,
    /// We closed it.
    #[error("closed here")]
    Local,
    /// The peer reported our fault.
    #[error("terminated by the peer: {0}")]
    Terminated(Refusal),
    /// The peer broke the protocol, in this way.
    #[error("protocol violation by the peer: {0}")]
    Violation(&'static str),
    /// The peer attempted an access without the right to it.
    #[error("refused the peer: {0}")]
    Refused(Refusal),
    /// The socket failed, or the peer process died.
    #[error("connection lost: {0:?}")]
    Lost(io::ErrorKind),
}

/// Why set-up failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The provider cannot work here; the text says why and what to do.
    #[error("provider not available: {0}")]
    Unavailable(String),
    /// The peer rejected the connection; its private data.
    #[error("rejected by the peer")]
    Rejected(Bytes),
    /// The peer does not speak this protocol, or broke it.
    #[error("protocol violation during set-up: {0}")]
    Violation(&'static str),
    /// No answer in time.
    #[error("timed out during {0}")]
    TimedOut(&'static str),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A receive that cannot be posted before an acceptance is a mistake of the caller.
impl From<PostError> for ConnectError {
    fn from(e: PostError) -> ConnectError {
        ConnectError::Io(io::Error::new(io::ErrorKind::InvalidInput, e))
    }
}

/// The default time limit for a provider's set-up; for the initiator it covers all steps.
pub const SETUP_LIMIT: Duration = Duration::from_secs(10);

/// Limits of a provider and, after set-up, of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Sends, Writes and Reads posted and not completed.
    pub max_send_work: usize,
    /// Receive buffers posted.
    pub max_recv_work: usize,
    /// Inbound RDMA Reads at a time (IRD).
    pub ird: u16,
    /// Outbound RDMA Reads at a time (ORD). More are queued, not refused.
    pub ord: u16,
    /// Regions registered at a time.
    pub max_regions: usize,
    /// Whether payload reaches the peer's memory without the kernel.
    pub kernel_bypass: bool,
    /// Whether Send with Invalidate is sent as such; otherwise it is sent as a plain Send and revokes nothing.
    pub send_with_invalidate: bool,
    /// Whether the peer's Send with Invalidate can revoke regions that are registered here; otherwise such a Send ends
    /// the connection, so the peer must not be invited to use it.
    pub revocable_regions: bool,
    /// Whether [`QueuePair::read_into`] is supported: then payload should stay with the peer until its destination is
    /// known.
    pub reads_into_files: bool,
}

/// What a side offers at set-up.
#[derive(Clone, Debug, Default)]
pub struct ConnectParams {
    /// Opaque to the provider; at most 508 bytes (RFC 6581 leaves 4 of 512 to IRD/ORD).
    pub private_data: Bytes,
    /// Inbound Reads requested; 0 uses the provider's default.
    pub ird: u16,
    /// Outbound Reads requested; 0 uses the provider's default.
    pub ord: u16,
}

/// The traffic of a queue pair so far, by kind: the answer to "was RDMA really used?".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes and messages sent by Send.
    pub sent: (u64, u64),
    /// Bytes and messages received by Send.
    pub received: (u64, u64),
    /// Bytes and operations written to the peer by RDMA Write.
    pub written: (u64, u64),
    /// Bytes and operations that the peer wrote here.
    pub placed: (u64, u64),
    /// Bytes and operations read from the peer by RDMA Read.
    pub read: (u64, u64),
    /// Bytes and operations that the peer read here.
    pub served: (u64, u64),
}

impl Add for Traffic {
    type Output = Traffic;

    /// The sum of both.
    fn add(self, other: Traffic) -> Traffic {
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        Traffic {
            sent: add(self.sent, other.sent),
            received: add(self.received, other.received),
            written: add(self.written, other.written),
            placed: add(self.placed, other.placed),
            read: add(self.read, other.read),
            served: add(self.served, other.served),
        }
    }
}

/// Adds to a counter, which saturates.
pub(crate) fn add(counter: &mut u64, more: u64) {
    *counter = counter.saturating_add(more);
}

/// Counts one operation of `bytes` in a field of [`Traffic`].
pub(crate) fn tally((total, operations): &mut (u64, u64), bytes: usize) {
    add(total, bytes as u64);
    add(operations, 1);
}

/// The result of `connect`: the queue pair, and the private data of the acceptance.
pub type Connected = (Rc<dyn QueuePair>, Bytes);

/// Makes connections. There is one per kind of hardware, or its absence.
pub trait Provider {
    /// "iwarp", "shm", "rnic".
    fn name(&self) -> &'static str;
    /// The limits before negotiation.
    fn caps(&self) -> Caps;
    /// Listens on `addr`; port 0 chooses any.
    fn listen(&self, addr: SocketAddr) -> LocalBoxFuture<'_, io::Result<Box<dyn Listener>>>;
    /// Connects; the second value is the private data of the acceptance. Finishes within the provider's time limit for
    /// set-up, however many steps that takes.
    fn connect(
        &self,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> LocalBoxFuture<'_, Result<Connected, ConnectError>>;
}

/// Waits for connection requests.
pub trait Listener {
    /// The address that it listens on.
    fn local_addr(&self) -> SocketAddr;
    /// The next peer that has *begun* to connect (a socket was accepted; nothing was read from it). It is cheap and a
    /// silent peer never blocks it; move the result to the core that will own the connection.
    fn accept(&self) -> LocalBoxFuture<'_, io::Result<Box<dyn Incoming>>>;
}

/// A peer that has begun to connect.
pub trait Incoming: Send {
    /// The peer's address, from accept(2) or the connection manager.
    fn peer(&self) -> Peer;
    /// The connection takes its own memory from `pool` instead of the provider's pool; usually a share of that pool, so
    /// that the memory counts as its peer's. Does nothing for providers whose connections need no memory.
    fn charge(&mut self, pool: &Pool) {
        let _ = pool;
    }
    /// Performs the passive side of set-up on this core, up to the peer's request, within a time limit.
    fn request(self: Box<Self>) -> LocalBoxFuture<'static, Result<Box<dyn Request>, ConnectError>>;
}

/// A connection request that waits for an answer.
pub trait Request {
    /// The peer's private data.
    fn private_data(&self) -> &Bytes;
    /// The peer.
    fn peer(&self) -> Peer;
    /// Accepts the request. Receive buffers in `recvs` are posted before the peer can send.
    fn accept(
        self: Box<Self>,
        params: ConnectParams,
        recvs: Vec<Work>,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn QueuePair>, ConnectError>>;
    /// Rejects the request.
    fn reject(self: Box<Self>, private_data: Bytes) -> LocalBoxFuture<'static, Result<(), ConnectError>>;
}

/// A connected pair of queues, its regions and its completions. It lives on one core.
pub trait QueuePair {
    /// The provider's name.
    fn provider(&self) -> &'static str;
    /// The limits that hold for this connection.
    fn caps(&self) -> Caps;
    /// The peer.
    fn peer(&self) -> Peer;
    /// Opens the first `buf.len()` bytes of `buf` to the peer of this connection (and to nobody else). The segment's
    /// `offset` is the peer's address for the start of the region.
    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError>;
    /// Opens bytes to the peer for reading in place, in a buffer of the provider's pool that has other readers: data
    /// that is resent, or kept until it is durable, needs no copy. [`QueuePair::invalidate`] ends it and returns no
    /// buffer. `None`: not supported here, not for these bytes, or not now; the caller then registers a buffer of its
    /// own.
    fn register_shared(&self, bytes: &Bytes) -> Option<Segment> {
        let _ = bytes;
        None
    }
    /// Takes the region back: on return the peer can no longer access it, and no refused or late access has changed it
    /// or will. `None` if there is no such region (for example because the peer's Send with Invalidate already ended it
    /// and it was taken before). A region that the peer invalidated still waits here for its owner.
    fn invalidate(&self, stag: Stag) -> Option<Buf>;
    /// Submits work. On error the work is returned unchanged.
    fn post(&self, work: Work) -> Result<(), (PostError, Work)>;
    /// Reads the peer's memory straight into a file in memory, at `offset`, if that needs no waiting. `None`: not
    /// supported here, not possible now, or not allowed by the peer; the caller then posts a Read, which succeeds or
    /// gives the reason. The file's content is then unspecified.
    fn read_into(&self, from: Segment, file: &File, offset: u64) -> Option<io::Result<()>> {
        let _ = (from, file, offset);
        None
    }
    /// Appends at least one completion to `out`, or ends: `Err` comes after all posted work has completed.
    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>>;
    /// Takes in new events, as the core's loop would do in its next turn, without waiting: for a user that polls
    /// without a pause, as with `ibv_poll_cq`, and yields the core only now and then. The next `poll` returns what was
    /// found.
    fn look(&self);
    /// The queue of its work, which may wait for a disk; `None`: it never does.
    fn stage(&self) -> Option<Arc<Stage>> {
        None
    }
    /// The traffic so far.
    fn traffic(&self) -> Traffic;
    /// Begins an orderly end: posted Sends are still sent; then everything is flushed.
    fn close(&self);
}
