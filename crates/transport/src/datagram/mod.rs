//! RPC over UDP: each datagram is a message, each peer address a channel.
//!
//! [`Port`] receives datagrams and returns a [`Datagram`], a [`Channel`], for each new peer. RFC 5531 section 11
//! requires record marking only on stream transports. It owns the socket and the datagrams that nobody has taken yet.
//! It neither retransmits (the caller does), nor detects repetitions (the duplicate request cache does), nor joins
//! fragments.
//!
//! The sender of a datagram may forge its source address. Unless the address is verified ([`Reached`]), a peer is sent
//! no more bytes than came from it: a longer answer is replaced by a refusal, which is short enough.
//!
//! A peer that is silent for [`IDLE`] leaves orderly, and is a new peer when it sends again: no state depends on a peer
//! here.

mod reached;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use weft_machine::net::{Readable, inherited};
use weft_machine::{Buf, LogLimit, Payload, Pool, rt};
use weft_wire::rpc::{AuthStat, Reply};
use weft_wire::xdr::{self, Encoder};

pub use self::reached::{MAX_REACHED, Presence, REMEMBERED, Reached};
use crate::channel::*;

/// Longest message in bytes, in both directions: READs and WRITEs of 32 KiB and their headers. UDP's own limit is
/// 65,507, and a message longer than one packet is lost whole with any of its fragments.
pub const MAX_MESSAGE: usize = (32 << 10) + 4096;
/// Datagrams received in a row before other tasks of the core run.
const DATAGRAMS_IN_A_ROW: usize = 64;
/// Peers that a port tracks at a time. Datagrams of further peers are dropped, as a network may drop them.
pub const MAX_PEERS: usize = 1024;
/// Datagrams of a peer that nobody has taken yet. Further ones are dropped.
pub const MAX_WAITING: usize = 64;
/// A peer that is silent for this long is forgotten.
pub const IDLE: Duration = Duration::from_secs(10);

/// A UDP socket of a server. It lives on one core.
pub struct Port {
    socket: Rc<Readable<UdpSocket>>,
    local: SocketAddr,
    pool: Pool,
    peers: Rc<RefCell<HashMap<SocketAddr, Weak<Inbox>>>>,
    reached: Reached,
    /// One byte longer than the longest message: a datagram that fills it was too long.
    staging: RefCell<Vec<u8>>,
}

/// Received datagrams of one peer.
#[derive(Default)]
struct Inbox {
    waiting: RefCell<VecDeque<Bytes>>,
    reader: Cell<Option<Waker>>,
    closed: Cell<bool>,
}

impl Port {
    /// Binds `addr`, or takes the socket that the service manager has bound to it; port 0 chooses any.
    ///
    /// # Errors
    /// The address is in use or not this host's.
    pub fn bind(addr: SocketAddr, pool: Pool) -> io::Result<Port> {
        let socket = inherited::udp(addr)?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let staging = RefCell::new(vec![0; MAX_MESSAGE + 1]);
        let socket = Rc::new(Readable::new(socket)?);
        Ok(Port { socket, local, pool, peers: Rc::default(), reached: Reached::default(), staging })
    }

    /// Enables answers of any length to the addresses in `reached`.
    #[must_use]
    pub fn trusting(self, reached: Reached) -> Port {
        Port { reached, ..self }
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Receives datagrams until one comes from a new peer; returns its channel, which holds that datagram. It must be
    /// called again and again: no peer receives messages otherwise.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn accept(&self) -> io::Result<Rc<Datagram>> {
        let mut turns = (1..=DATAGRAMS_IN_A_ROW).cycle();
        loop {
            if turns.next() == Some(DATAGRAMS_IN_A_ROW) {
                rt::yield_now().await;
            }
            self.socket.readable().await?;
            let mut staging = self.staging.borrow_mut();
            let (len, from) = match self.socket.inner().recv_from(&mut staging) {
                Ok(received) => received,
                // An ICMP error for an earlier answer is no fault of the socket.
                Err(e) if passes(&e) => continue,
                Err(e) => return Err(e),
            };
            let Some(body) = staging.get(..len).filter(|_| len <= MAX_MESSAGE) else {
                tracing::debug!(%from, "a datagram longer than {MAX_MESSAGE} bytes was dropped");
                continue;
            };
            let body = Bytes::copy_from_slice(body);
            drop(staging);
            if let Some(channel) = self.deliver(from, body) {
                return Ok(Rc::new(channel));
            }
        }
    }

    fn deliver(&self, from: SocketAddr, body: Bytes) -> Option<Datagram> {
        let mut peers = self.peers.borrow_mut();
        let known = peers.len();
        match peers.entry(from) {
            Entry::Occupied(entry) => {
                // The entry is removed with its channel, so it has one.
                entry.get().upgrade()?.put(body, from);
                None
            }
            Entry::Vacant(_) if known >= MAX_PEERS => {
                tracing::debug!(%from, "a datagram was dropped: {MAX_PEERS} peers are being tracked");
                None
            }
            Entry::Vacant(entry) => {
                let peer = Rc::new(Inbox::default());
                peer.put(body, from);
                entry.insert(Rc::downgrade(&peer));
                Some(Datagram {
                    peer,
                    addr: from,
                    socket: self.socket.clone(),
                    pool: self.pool.clone(),
                    peers: self.peers.clone(),
                    reached: self.reached.clone(),
                    sent: Cell::default(),
                    received: Cell::default(),
                })
            }
        }
    }
}

/// Errors of a UDP socket that concern one datagram, not the socket.
fn passes(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable, WouldBlock};
    matches!(e.kind(), WouldBlock | Interrupted | ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

impl Inbox {
    fn put(&self, body: Bytes, from: SocketAddr) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= MAX_WAITING {
            return tracing::debug!(%from, "a datagram was dropped: {MAX_WAITING} of this peer wait");
        }
        waiting.push_back(body);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.closed.get() {
            return Poll::Ready(None);
        }
        if let Some(body) = self.waiting.borrow_mut().pop_front() {
            return Poll::Ready(Some(body));
        }
        self.reader.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// The messages from and to one peer of a [`Port`].
pub struct Datagram {
    peer: Rc<Inbox>,
    addr: SocketAddr,
    socket: Rc<Readable<UdpSocket>>,
    pool: Pool,
    peers: Rc<RefCell<HashMap<SocketAddr, Weak<Inbox>>>>,
    reached: Reached,
    /// Bytes and datagrams; `sent <= received` unless the address is known.
    sent: Cell<(u64, u64)>,
    received: Cell<(u64, u64)>,
}

impl Datagram {
    fn message(&self, body: Bytes) -> Message {
        count(&self.received, body.len());
        Message { body, detached: None, ticket: Ticket::default() }
    }

    /// The message that may be sent: this one, a refusal in its place, or none.
    fn bounded(&self, outgoing: Outgoing) -> Option<Outgoing> {
        let room = self.received.get().0.saturating_sub(self.sent.get().0);
        let fits = |outgoing: &Outgoing| length(outgoing) as u64 <= room;
        if fits(&outgoing) || self.reached.contains(self.addr.ip()) {
            return Some(outgoing);
        }
        static REFUSED: LogLimit = LogLimit::new();
        if let Some(left_out) = REFUSED.pass(rt::now()) {
            tracing::warn!(
                peer = %self.addr,
                "refused an answer by UDP that is longer than its call: that address has not connected by TCP{left_out}"
            );
        }
        refusal(&outgoing).filter(fits)
    }
}

/// The refusal in place of this answer: the caller has not proven enough (RFC 5531 section 9, AUTH_TOOWEAK).
fn refusal(of: &Outgoing) -> Option<Outgoing> {
    let Some(Part::Bytes(head)) = of.parts.first() else { return None };
    let xid = u32::from_be_bytes(*head.first_chunk()?);
    let mut e = Encoder::with_capacity(32);
    Reply::AuthError(AuthStat::TOOWEAK).emit(xid, &mut e);
    Some(Outgoing::bytes(e.into_bytes()))
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.peers.borrow_mut().remove(&self.addr);
    }
}

impl Channel for Datagram {
    fn kind(&self) -> Kind {
        Kind::Datagram
    }

    fn medium(&self) -> &'static str {
        "udp"
    }

    fn peer(&self) -> Peer {
        Peer::Udp(self.addr)
    }

    fn limits(&self) -> Limits {
        Limits { max_message: MAX_MESSAGE, max_rdma: None }
    }

    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(async move {
            let taken = rt::timeout(IDLE, poll_fn(|cx| self.peer.poll_take(cx))).await;
            Ok(taken.ok().flatten().map(|body| self.message(body)))
        })
    }

    fn try_recv(&self) -> Option<Message> {
        let body = self.peer.waiting.borrow_mut().pop_front()?;
        Some(self.message(body))
    }

    fn send(&self, outgoing: Outgoing) -> Sending {
        if self.peer.closed.get() {
            return Sending::answered(Err(Error::Closed));
        }
        let Some(outgoing) = self.bounded(outgoing) else { return Sending::answered(Ok(())) };
        count(&self.sent, length(&outgoing));
        let (socket, addr, pool) = (self.socket.clone(), self.addr, self.pool.clone());
        let mut sending =
            Box::pin(async move { put(&socket, &contiguous(outgoing, &pool).await?, addr).await });
        match sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(sent) => Sending::answered(sent),
            // A file must be read, or the socket is full. It is sent whether or not somebody waits for it; UDP reports
            // to nobody whether it arrives.
            Poll::Pending => {
                let sending = async move {
                    if let Err(e) = sending.await {
                        tracing::debug!(peer = %addr, "a datagram was not sent: {e}");
                    }
                };
                rt::spawn(sending).detach();
                Sending::answered(Ok(()))
            }
        }
    }

    fn cork(&self, _on: bool) {}

    fn expose(&self, _buf: Buf, _access: Access) -> Result<Exposed, Error> {
        Err(Error::Misuse("memory exposed over UDP"))
    }

    fn revoke(&self, _exposed: Exposed) -> Option<Buf> {
        None
    }

    fn traffic(&self) -> Traffic {
        Traffic { sent: self.sent.get(), received: self.received.get(), ..Traffic::default() }
    }

    fn close(&self) {
        self.peer.closed.set(true);
        if let Some(reader) = self.peer.reader.take() {
            reader.wake();
        }
    }
}

fn count(of: &Cell<(u64, u64)>, bytes: usize) {
    let (before, datagrams) = of.get();
    of.set((before.saturating_add(bytes as u64), datagrams.saturating_add(1)));
}

fn length(outgoing: &Outgoing) -> usize {
    let part = |part: &Part| match part {
        Part::Bytes(bytes) => bytes.len(),
        Part::Payload { data, .. } => data.len().next_multiple_of(4),
    };
    let source = outgoing.source.as_ref().map_or(0, |source| source.len().next_multiple_of(4));
    outgoing.parts.iter().map(part).sum::<usize>().saturating_add(source)
}

/// The message as one buffer of at most [`MAX_MESSAGE`] bytes.
async fn contiguous(outgoing: Outgoing, pool: &Pool) -> Result<BytesMut, Error> {
    let mut message = BytesMut::new();
    let mut parts = outgoing.parts;
    if let Some(source) = outgoing.source {
        parts.push(Part::Payload { data: source.freeze().into(), to: To::Inline });
    }
    for part in parts {
        let (data, opaque) = match part {
            Part::Bytes(bytes) => (Payload::from(bytes), false),
            Part::Payload { to: To::Segments(_), .. } => return Err(Error::Misuse("RDMA Write over UDP")),
            Part::Payload { data, .. } => (data, true),
        };
        let len = data.len();
        if message.len().saturating_add(len.next_multiple_of(4)) > MAX_MESSAGE {
            return Err(Error::Misuse("a message longer than a datagram"));
        }
        for piece in data.into_chain(pool).await? {
            message.extend_from_slice(&piece);
        }
        if opaque {
            message.extend_from_slice(xdr::fill(len));
        }
    }
    Ok(message)
}

async fn put(socket: &Readable<UdpSocket>, message: &[u8], to: SocketAddr) -> Result<(), Error> {
    loop {
        match socket.inner().send_to(message, to) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests;
