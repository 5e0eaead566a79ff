//! The contract between transports and protocols: a message comes in whole, a reply goes out as a list of parts.
//!
//! It follows [MS-SMBD] 3.1.4, and RFC 8166 3.4 (DDP-eligible data) and 4.4 (chunks). The modules beside it implement
//! it.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
pub use weft_machine::Peer;
use weft_machine::net::Holder;
use weft_machine::payload::Fetching;
pub use weft_machine::payload::RemotePayload;
use weft_machine::recorder::Stage;
use weft_machine::{Buf, File, Payload, Pool};
use weft_rdma::QueuePair;
pub use weft_rdma::{Access, Segment, Stag, Traffic};

/// An answer longer than this has its bytes from [`Channel::answers`] until the medium has taken it. Shorter ones are bounded for
/// each connection, see [`Channel::unsent_bytes`].
pub const SHORT_ANSWER: usize = 4 << 10;

/// A message that arrived.
#[derive(Debug)]
pub struct Message {
    /// The message, contiguous.
    pub body: Bytes,
    /// Payload that travelled beside the message (RDMA Read chunk pulled by us, Write chunk filled by the peer). An RPC
    /// decoder takes it if the stream has the item's length but not its bytes (RFC 8166 3.4.3).
    pub detached: Option<Detached>,
    /// Where the payload of the reply goes; give it back with the reply. Meaningless to the protocol.
    pub ticket: Ticket,
}

/// Payload beside a message.
#[derive(Debug)]
pub enum Detached {
    /// Its bytes.
    Here(Bytes),
    /// Still in the peer's memory, because it may go straight from there to its destination. It stays there until the
    /// call is answered.
    There(Rc<dyn RemotePayload>),
}

impl Detached {
    /// The bytes, if they have been received.
    pub fn here(self) -> Option<Bytes> {
        match self {
            Detached::Here(bytes) => Some(bytes),
            Detached::There(_) => None,
        }
    }
}

/// How a peer wants the reply's payload; opaque outside this crate.
#[derive(Debug, Default)]
pub struct Ticket(pub(crate) TicketKind);

impl Ticket {
    /// Whether the reply's payload goes into the peer's memory instead of the message.
    pub fn takes_payload(&self) -> bool {
        match &self.0 {
            TicketKind::Inline => false,
            TicketKind::RpcRdma(ticket) => ticket.takes_payload(),
        }
    }
}

/// The siblings' own tickets.
#[derive(Debug, Default)]
pub(crate) enum TicketKind {
    /// Nothing was offered: inline.
    #[default]
    Inline,
    /// The call's Write list and Reply chunk.
    RpcRdma(crate::rpcrdma::CallTicket),
}

/// A piece of an outgoing message, in stream order.
#[derive(Debug)]
pub enum Part {
    /// Protocol bytes.
    Bytes(Bytes),
    /// Payload. RPC transports treat it as the content of an XDR opaque: they add the pad when it travels inline.
    Payload {
        /// The bytes.
        data: Payload,
        /// Where.
        to: To,
    },
}

/// Where payload goes.
#[derive(Debug)]
pub enum To {
    /// Into the message, at this place.
    Inline,
    /// As the call requested; the ticket is in [`Outgoing`].
    Ticket,
    /// By RDMA Write into these segments, before the message is sent.
    Segments(Vec<Segment>),
}

/// A message to send.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The message in order.
    pub parts: Vec<Part>,
    /// The ticket of the call that this answers.
    pub ticket: Ticket,
    /// A region of the peer to revoke with this message, if the transport can (Send with Invalidate).
    pub invalidate: Option<Stag>,
    /// For calls: where a large payload of the answer may be placed. A transport without RDMA ignores it; a filled one
    /// is returned as [`Message::detached`] of the reply. The first `len()` bytes of the buffer are offered.
    pub sink: Option<Buf>,
    /// For RPC calls: payload after the last part (an XDR opaque's content whose length the last part ends with), as a
    /// buffer that the transport may open to the peer instead of copying it. SMB leaves it `None`.
    pub source: Option<Buf>,
    /// For RPC calls: the length of the longest possible reply, in bytes and without the payload that `sink` takes. A
    /// transport with small receive buffers makes room if the reply may exceed them.
    pub longest_reply: usize,
}

impl Outgoing {
    /// A message of bytes only.
    pub fn bytes(bytes: impl Into<Bytes>) -> Outgoing {
        Outgoing { parts: vec![Part::Bytes(bytes.into())], ..Outgoing::default() }
    }

    /// Its bytes in memory: all except ranges of files, and payload sent beside it, which the transport's work queues
    /// bound.
    pub fn memory_bytes(&self) -> usize {
        let len = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.len(),
            Part::Payload { data: Payload::Chain(chain), to: To::Inline } => {
                chain.iter().map(Bytes::len).sum()
            }
            Part::Payload { .. } => 0,
        };
        self.parts.iter().map(len).fold(0, usize::saturating_add)
    }
}

/// Memory opened to the peer by [`Channel::expose`].
#[derive(Debug)]
pub struct Exposed {
    /// What to send to the peer.
    pub segments: Vec<Segment>,
    /// Whether the peer may be asked to revoke it with its answer.
    pub revocable: bool,
}

/// What a transport can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest message in either direction, in bytes.
    pub max_message: usize,
    /// Largest payload by RDMA; `None` without RDMA.
    pub max_rdma: Option<usize>,
}

impl Limits {
    /// Largest payload that can be placed beside the message: then [`Outgoing::sink`] and [`Outgoing::source`] are
    /// worth using.
    pub fn placed_payload(&self) -> Option<usize> {
        self.max_rdma
    }
}

/// The transport and its medium, as shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SMB over TCP.
    Nbss,
    /// SMB Direct.
    Smbd,
    /// RPC over TCP.
    Record,
    /// RPC over UDP.
    Datagram,
    /// RPC over RDMA.
    RpcRdma,
}

/// The queues of a channel: its own, and that of its queue pair.
pub type Stages = [Option<Arc<Stage>>; 2];

/// What protects a channel from third parties between its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Security {
    /// The holder of the peer's certificate, which an authority of ours has signed.
    pub holder: Option<Holder>,
}

/// Why a channel ended or an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer sent something that its specification forbids; section and fact.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The peer broke a rule of state (credits, sizes, order).
    #[error("violation: {0}")]
    Violation(&'static str),
    /// We requested something that the channel cannot do.
    #[error("misuse: {0}")]
    Misuse(&'static str),
    /// The medium failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The RDMA connection ended.
    #[error("{0}")]
    Rdma(#[from] weft_rdma::Disconnect),
    /// An RDMA operation was refused.
    #[error("{0}")]
    Work(#[from] weft_rdma::WorkError),
    /// RDMA set-up failed.
    #[error("{0}")]
    Connect(#[from] weft_rdma::ConnectError),
    /// Not in time.
    #[error("timed out: {0}")]
    TimedOut(&'static str),
    /// Ended.
    #[error("channel closed")]
    Closed,
}

/// Why a channel has ended, in a form that can be returned to every later caller.
#[derive(Clone, Debug)]
pub enum Ending {
    /// The peer left orderly.
    Peer,
    /// We closed it.
    Local,
    /// See [`Error::Malformed`].
    Malformed(&'static str),
    /// See [`Error::Violation`].
    Violation(&'static str),
    /// See [`Error::TimedOut`].
    TimedOut(&'static str),
    /// See [`Error::Io`].
    Io(io::ErrorKind),
    /// See [`Error::Rdma`].
    Rdma(weft_rdma::Disconnect),
    /// See [`Error::Work`].
    Work(weft_rdma::WorkError),
}

impl Ending {
    /// The result for a reader: an orderly end is not an error.
    pub fn at_reader(&self) -> Result<Option<Message>, Error> {
        match self {
            Ending::Peer | Ending::Local => Ok(None),
            _ => Err(self.at_sender()),
        }
    }

    /// The error for everybody else.
    pub fn at_sender(&self) -> Error {
        match self.clone() {
            Ending::Peer | Ending::Local => Error::Closed,
            Ending::Malformed(what) => Error::Malformed(what),
            Ending::Violation(what) => Error::Violation(what),
            Ending::TimedOut(what) => Error::TimedOut(what),
            Ending::Io(kind) => Error::Io(kind.into()),
            Ending::Rdma(disconnect) => Error::Rdma(disconnect),
            Ending::Work(work) => Error::Work(work),
        }
    }
}

/// A message being sent; completes when the medium has taken it.
#[must_use = "this future is the only report of a failed send"]
pub struct Sending(State);

enum State {
    /// The medium answered at once; `None` after the answer was returned.
    Answered(Option<Result<(), Error>>),
    Waiting(LocalBoxFuture<'static, Result<(), Error>>),
    Numbered(Numbered),
}

/// A medium that takes its messages in the order of their numbers.
pub(crate) trait Takes {
    /// The outcome of a message.
    fn poll_taken(&self, number: u64, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;
    /// Nobody asks about this message any more.
    fn forget(&self, number: u64);
}

/// A message of such a medium. It needs no memory, unlike a future on the heap.
struct Numbered {
    medium: Rc<dyn Takes>,
    number: u64,
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.medium.forget(self.number);
    }
}

impl Sending {
    /// The outcome of the message is already known.
    pub fn answered(result: Result<(), Error>) -> Sending {
        Sending(State::Answered(Some(result)))
    }

    /// `future` returns the outcome.
    pub fn waiting(future: impl Future<Output = Result<(), Error>> + 'static) -> Sending {
        Sending(State::Waiting(Box::pin(future)))
    }

    /// `medium` knows the outcome of message `number`.
    pub(crate) fn numbered(medium: Rc<dyn Takes>, number: u64) -> Sending {
        Sending(State::Numbered(Numbered { medium, number }))
    }

    /// Whether the message was taken at once.
    pub fn is_taken(&self) -> bool {
        matches!(self.0, State::Answered(Some(Ok(()))))
    }
}

impl Future for Sending {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Answered(result) => Poll::Ready(result.take().unwrap_or(Err(Error::Closed))),
            State::Waiting(future) => future.as_mut().poll(cx),
            State::Numbered(message) => message.medium.poll_taken(message.number, cx),
        }
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        match e {
            Error::Io(e) => e,
            Error::Misuse(_) => io::Error::new(io::ErrorKind::InvalidInput, e),
            e => io::Error::new(io::ErrorKind::ConnectionAborted, e),
        }
    }
}

/// Fills a file in memory with the first `len` bytes of these segments, where the provider reaches both: see
/// [`RemotePayload::fill`].
pub(crate) fn fill(
    queue_pair: &dyn QueuePair,
    from: &[Segment],
    file: &File,
    offset: u64,
    len: usize,
) -> Option<io::Result<()>> {
    let mut done = 0;
    for segment in from {
        let rest = len.saturating_sub(done).min(segment.len as usize);
        if rest == 0 {
            continue;
        }
        // At most the length that the segment has.
        let part = Segment { len: rest as u32, ..*segment };
        if let Err(e) = queue_pair.read_into(part, file, offset.saturating_add(done as u64))? {
            return Some(Err(e));
        }
        done = done.saturating_add(rest);
    }
    (done == len).then_some(Ok(()))
}

/// The peer's memory, over a transport without RDMA.
#[derive(Debug)]
struct OutOfReach {
    from: Vec<Segment>,
}

impl RemotePayload for OutOfReach {
    fn len(&self) -> usize {
        Segment::total(&self.from) as usize
    }
    fn fill(&self, _file: &File, _offset: u64, _len: usize) -> Option<io::Result<()>> {
        None
    }
    fn fetch(&self) -> Fetching {
        let refused = Error::Misuse("the peer's memory is not within reach of this transport");
        Box::pin(std::future::ready(Err(refused.into())))
    }
}

/// One connection between two peers. Lives on one core; shared by `Rc`. `send`s are put on the wire in the order in
/// which they were *called* (not polled); `recv` is for one reader at a time.
pub trait Channel {
    /// Which sibling.
    fn kind(&self) -> Kind;
    /// "tcp", or the RDMA provider's name.
    fn medium(&self) -> &'static str;
    /// The peer: rules about addresses apply to it, and logs show it.
    fn peer(&self) -> Peer;
    /// What it can carry.
    fn limits(&self) -> Limits;
    /// What protects it, if anything: then nobody between the ends reads or changes messages.
    fn security(&self) -> Option<Security> {
        None
    }
    /// The protocol has identified the peer (an SMB log-on, a first RPC call): limits for strangers (sizes, deadlines,
    /// shares of memory) may be lifted.
    fn authenticated(&self) {}
    /// The next message; `Ok(None)` is an orderly end. The owner of the future must poll it when it is woken, because
    /// the connection may depend on it to make progress. A reader that pauses drops the future.
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>>;
    /// A message that has already arrived, without waiting: lets a server take a batch per wake-up.
    fn try_recv(&self) -> Option<Message>;
    /// Queues a message. The future ends when the medium has taken it (its buffers are free); dropping the future does
    /// not cancel the message.
    fn send(&self, message: Outgoing) -> Sending;
    /// Messages queued by `send` that the medium has not taken yet: a server stops reading requests above a limit. Zero
    /// if the transport's own credits bound them.
    fn backlog(&self) -> usize {
        0
    }
    /// Bytes in memory of these messages. Data that a peer does not read stays in memory, so a server stops reading its
    /// requests above a limit.
    fn unsent_bytes(&self) -> usize {
        0
    }
    /// The memory for long answers: the part of the pool that the answers to one address share. `None`: the pool is not
    /// divided.
    fn answers(&self) -> Option<Pool> {
        None
    }
    /// Whether answers can no longer reach the peer. A server then drops the requests that it still holds.
    fn has_ended(&self) -> bool {
        false
    }
    /// Bytes that the medium took and the peer's host has not acknowledged; zero if the transport cannot tell. Bytes
    /// that stay unacknowledged for long are lost.
    fn unacknowledged(&self) -> usize {
        0
    }
    /// Whether the channel waits for our own memory, before it receives more or sends a call: meanwhile the peer's
    /// silence is no fault of the peer. See [`crate::Silence`].
    fn waits_for_memory(&self) -> bool {
        false
    }
    /// Holds back small writes until the next call with `false` (or the next `recv` that waits), so that the replies to
    /// a batch of requests take one system call.
    fn cork(&self, on: bool);
    /// The peer's memory, segment after segment, as the source of a write. Without RDMA it is out of reach.
    fn remote(&self, from: Vec<Segment>) -> Box<dyn RemotePayload> {
        Box::new(OutOfReach { from })
    }
    /// Opens memory to the peer. `Err(Misuse)` without RDMA.
    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, Error>;
    /// Takes it back. Afterwards the peer cannot access it, whatever it does.
    fn revoke(&self, exposed: Exposed) -> Option<Buf>;
    /// The queues in which an answer waits: their waits for a disk are told apart from those for the peer.
    fn stages(&self) -> Stages {
        Stages::default()
    }
    /// The traffic by RDMA and by Send so far. Zero RDMA counts without RDMA; then `sent` and `received` count frames.
    fn traffic(&self) -> Traffic;
    /// Ends the connection; queued messages are still sent.
    fn close(&self);
}
