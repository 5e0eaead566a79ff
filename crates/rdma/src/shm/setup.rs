//! Connection set-up over a Unix socket.
//!
//! The connecting side creates the control segment and its doorbell and passes both with its request; the accepting
//! side maps the segment, posts its first receive buffers and answers with its doorbell. The roles are those of RFC
//! 6581 (private data, IRD and ORD), without its wire format. It owns the listening socket. A silent peer holds nothing
//! up; each step has the configured time limit.

use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, LocalBoxFuture, select};
use weft_machine::net::Readable;
use weft_machine::shm::{Doorbell, PathListener, Ringer, Socket, Words, adopt};
use weft_machine::{Peer, Pool, rt};

use super::layout::{SEGMENT_BYTES, SEGMENT_WORDS, Side};
use super::message::{MAX_MESSAGE, MAX_PRIVATE, Message};
use super::queue_pair::{Parts, ShmQueuePair};
use super::slabs::PeerSlabs;
use super::{Config, Provider};
use crate::{Caps, ConnectError, ConnectParams, QueuePair, Work};

/// Names tried when any port is acceptable.
const ANY_PORT_TRIES: usize = 64;
/// The dynamic ports of IANA.
const DYNAMIC_PORTS: RangeInclusive<u16> = 49152..=u16::MAX;
/// Pause before another attempt at a listener whose backlog is full.
const BACKLOG_PAUSE: Duration = Duration::from_millis(2);

/// A listening socket.
pub(super) struct ShmListener {
    socket: Readable<PathListener>,
    addr: SocketAddr,
    pool: Pool,
    config: Config,
}

/// Listens on the socket named after `addr`'s port.
pub(super) fn listen(pool: Pool, config: Config, mut addr: SocketAddr) -> io::Result<ShmListener> {
    let bind = |port| PathListener::bind(&config.dir, &Provider::socket_name(port));
    let socket = if addr.port() != 0 {
        bind(addr.port())?
    } else {
        let start = RandomState::new().build_hasher().finish() as u16 | *DYNAMIC_PORTS.start();
        let mut tries = (start..=u16::MAX).chain(DYNAMIC_PORTS).take(ANY_PORT_TRIES);
        loop {
            let port = tries.next().ok_or(io::ErrorKind::AddrInUse)?;
            match bind(port) {
                Ok(socket) => {
                    addr.set_port(port);
                    break socket;
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e),
            }
        }
    };
    Ok(ShmListener { socket: Readable::new(socket)?, addr, pool, config })
}

impl crate::Listener for ShmListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> LocalBoxFuture<'_, io::Result<Box<dyn crate::Incoming>>> {
        Box::pin(async move {
            loop {
                match self.socket.inner().try_accept() {
                    Ok(socket) => {
                        let peer = match socket.peer() {
                            Ok(peer) => peer,
                            Err(e) => {
                                tracing::warn!("refused a connection by shared memory: {e}");
                                continue;
                            }
                        };
                        let (pool, config) = (self.pool.clone(), self.config.clone());
                        let incoming = ShmIncoming { socket, peer, pool, config };
                        return Ok(Box::new(incoming) as Box<dyn crate::Incoming>);
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.readable().await?,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        tracing::warn!(
                            "refused a connection to {}: {e}",
                            self.socket.inner().path().display()
                        );
                    }
                    Err(e) => return Err(e),
                }
            }
        })
    }
}

struct ShmIncoming {
    socket: Socket,
    peer: Peer,
    pool: Pool,
    config: Config,
}

impl crate::Incoming for ShmIncoming {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn request(self: Box<Self>) -> LocalBoxFuture<'static, Result<Box<dyn crate::Request>, ConnectError>> {
        Box::pin(async move {
            let link = Readable::new(self.socket)?;
            let (message, fds) = within(self.config.setup_limit, "shm request", receive(&link)).await?;
            let Message::Request { ird, ord, private_data } = message else {
                return Err(ConnectError::Violation("expected a request"));
            };
            let [segment, bell] = <[OwnedFd; 2]>::try_from(fds)
                .map_err(|_| ConnectError::Violation("a request passes two descriptors"))?;
            let segment = Words::over(adopt(segment, SEGMENT_BYTES, SEGMENT_BYTES)?);
            let (peer, pool, config) = (self.peer, self.pool, self.config);
            let request = ShmRequest {
                link,
                pool,
                config,
                ird,
                ord,
                private_data,
                segment,
                bell: Ringer::adopt(bell)?,
                peer,
            };
            Ok(Box::new(request) as Box<dyn crate::Request>)
        })
    }
}

struct ShmRequest {
    link: Readable<Socket>,
    pool: Pool,
    config: Config,
    ird: u16,
    ord: u16,
    private_data: Bytes,
    segment: Words,
    bell: Ringer,
    peer: Peer,
}

impl crate::Request for ShmRequest {
    fn private_data(&self) -> &Bytes {
        &self.private_data
    }

    fn peer(&self) -> Peer {
        self.peer
    }

    fn accept(
        self: Box<Self>,
        params: ConnectParams,
        recvs: Vec<Work>,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn QueuePair>, ConnectError>> {
        Box::pin(async move {
            let private_data = checked_private_data(&params)?;
            let (ird, ord) = wanted(&params, &self.config);
            let ord = ord.min(self.ird);
            let caps = Caps { ird: ird.min(self.ord), ord, ..self.config.caps() };
            let (our_bell, ringer) = Doorbell::new()?;
            let qp = ShmQueuePair::new(Parts {
                side: Side::Accepting,
                link: self.link,
                segment: self.segment,
                our_bell,
                their_bell: self.bell,
                pool: self.pool,
                slabs: PeerSlabs::default(),
                caps,
                stall_limit: self.config.stall_limit,
                peer: self.peer,
            })?;
            for recv in recvs {
                qp.post(recv).map_err(|(e, _)| e)?;
            }
            // Only now may the peer send: our answer follows the buffers in the ring.
            let answer = Message::Accept { ird, ord, private_data }.emit();
            qp.link().send(&answer, &[ringer.as_fd()])?;
            Ok(qp as Rc<dyn QueuePair>)
        })
    }

    fn reject(self: Box<Self>, private_data: Bytes) -> LocalBoxFuture<'static, Result<(), ConnectError>> {
        Box::pin(async move {
            let params = ConnectParams { private_data, ..ConnectParams::default() };
            let private_data = checked_private_data(&params)?;
            self.link.inner().send(&Message::Reject { private_data }.emit(), &[])?;
            Ok(())
        })
    }
}

/// Connects to the listener on `addr`'s port.
pub(super) async fn connect(
    pool: &Pool,
    config: &Config,
    addr: SocketAddr,
    params: ConnectParams,
) -> Result<(Rc<dyn QueuePair>, Bytes), ConnectError> {
    let private_data = checked_private_data(&params)?;
    let (our_ird, our_ord) = wanted(&params, config);
    let until = rt::now() + config.setup_limit;
    let socket = within(config.setup_limit, "shm connect", open(config, addr)).await?;
    let link = Readable::new(socket)?;
    let segment = Words::create("weft-control", SEGMENT_WORDS)?;
    let (our_bell, ringer) = Doorbell::new()?;
    let request = Message::Request { ird: our_ird, ord: our_ord, private_data }.emit();
    link.inner().send(&request, &[segment.segment_fd(), ringer.as_fd()])?;
    // We keep only the bell, so that we notice when the peer closes its other end.
    drop(ringer);

    let mut slabs = PeerSlabs::default();
    let answer = async {
        loop {
            match receive(&link).await? {
                // The accepting side posts receive buffers before it answers, and passes their slabs.
                (Message::Slab { number }, fds) => {
                    let fd = fds
                        .into_iter()
                        .next()
                        .ok_or(ConnectError::Violation("a slab without a descriptor"))?;
                    slabs.add(number, fd).map_err(ConnectError::Violation)?;
                }
                (message, mut fds) => return Ok((message, fds.pop())),
            }
        }
    };
    let (message, fd) = within(until.since(rt::now()), "shm answer", answer).await?;
    let (ird, ord, private_data) = match message {
        Message::Accept { ird, ord, private_data } => (ird, ord, private_data),
        Message::Reject { private_data } => return Err(ConnectError::Rejected(private_data)),
        _ => return Err(ConnectError::Violation("expected an answer")),
    };
    let fd = fd.ok_or(ConnectError::Violation("an acceptance passes one descriptor"))?;
    let their_bell = Ringer::adopt(fd)?;
    let caps = Caps { ird: our_ird.min(ord), ord: our_ord.min(ird), ..config.caps() };
    let peer = link.inner().peer()?;
    let parts = Parts {
        side: Side::Connecting,
        link,
        segment,
        our_bell,
        their_bell,
        pool: pool.clone(),
        slabs,
        caps,
        stall_limit: config.stall_limit,
        peer,
    };
    let qp = ShmQueuePair::new(parts)?;
    Ok((qp, private_data))
}

async fn open(config: &Config, addr: SocketAddr) -> Result<Socket, ConnectError> {
    let path = config.dir.join(Provider::socket_name(addr.port()));
    loop {
        match Socket::connect(&path) {
            Ok(socket) => return Ok(socket),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => rt::sleep(BACKLOG_PAUSE).await,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                let path = path.display();
                return Err(ConnectError::Unavailable(format!(
                    "no server listens at {path}; it must run on this host, as this user, \
                     with the same XDG_RUNTIME_DIR"
                )));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives one message of set-up.
async fn receive(link: &Readable<Socket>) -> Result<(Message, Vec<OwnedFd>), ConnectError> {
    let mut bytes = [0; MAX_MESSAGE];
    loop {
        match link.inner().try_recv(&mut bytes) {
            Ok(received) if received.len == 0 => {
                return Err(ConnectError::Io(io::ErrorKind::ConnectionReset.into()));
            }
            Ok(received) => {
                let message = Message::parse(bytes.get(..received.len).unwrap_or_default());
                let message = message.map_err(ConnectError::Violation)?;
                return Ok((message, received.fds));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => link.readable().await?,
            Err(e) => return Err(e.into()),
        }
    }
}

async fn within<T>(
    limit: Duration,
    what: &'static str,
    step: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    match select(std::pin::pin!(step), std::pin::pin!(rt::sleep(limit))).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(ConnectError::TimedOut(what)),
    }
}

fn checked_private_data(params: &ConnectParams) -> Result<Bytes, ConnectError> {
    if params.private_data.len() > MAX_PRIVATE {
        let text = "private data longer than 508 bytes";
        return Err(ConnectError::Io(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    Ok(params.private_data.clone())
}

/// (IRD, ORD) to offer.
fn wanted(params: &ConnectParams, config: &Config) -> (u16, u16) {
    let or_default = |wanted, default| if wanted == 0 { default } else { wanted };
    (or_default(params.ird, config.ird), or_default(params.ord, config.ord))
}
