//! Connection set-up with the connection manager: resolve, connect, listen, accept, reject.
//!
//! See rdma_cm(7) and the man pages of its calls. It owns identifiers and event channels until a queue pair takes them.
//!
//! Each connection has its own event channel, on the core that owns it; a request moves from the listener's channel to
//! its own first of all. Each step has the configured time limit.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::net::Readable;
use weft_machine::{Peer, Pool, Time, rt};

use super::Config;
use super::bindings::*;
use super::cm::{CmEvent, CmId, Conn, EventChannel, Offer, Qp, QueueSizes};
use super::devices::{Limits, Transport, devices};
use super::faults;
use super::library::{Library, Unavailable};
use super::memory::{Local, Regions};
use super::objects::{Cq, Pd};
use super::queue_pair::{Parts, Unconnected};
use crate::{Caps, ConnectError, ConnectParams, Connected, QueuePair, Work};

/// Requests that the kernel queues for a busy listener; its own limit is 1024.
const BACKLOG: i32 = 1024;
/// Private data that fits every InfiniBand message: 92 bytes of a connection request less 36 for the connection
/// manager.
const IB_PRIVATE_DATA: usize = 56;
/// On iWARP the library's interface has one byte for the length, and 4 bytes of RFC 6581 count.
const IWARP_PRIVATE_DATA: usize = 251;
/// The library treats larger read depths as "the maximum".
const MAX_DEPTH: u32 = 128;
/// How often InfiniBand resends a lost packet.
const RETRIES: u8 = 7;
/// How often InfiniBand resends a message that finds no buffer; 7 would mean without limit.
const RNR_RETRIES: u8 = 6;
/// InfiniBand's code for a rejection by the application.
const CONSUMER_REJECT: i32 = 28;

impl From<Unavailable> for ConnectError {
    fn from(unavailable: Unavailable) -> ConnectError {
        ConnectError::Unavailable(unavailable.to_string())
    }
}

type Events = Readable<Arc<EventChannel>>;

/// A channel for one identifier; fails without a device or a connection manager.
fn channel() -> Result<Arc<EventChannel>, Unavailable> {
    let library = Library::get()?;
    EventChannel::create(library).map_err(|e| match devices() {
        Ok(_) => Unavailable::ConnectionManager(e.to_string()),
        Err(unavailable) => unavailable,
    })
}

/// The next event, which must be of kind `wanted`.
async fn expect(events: &Events, wanted: u32, transport: Option<Transport>) -> Result<CmEvent, ConnectError> {
    loop {
        let event = match events.inner().next() {
            Ok(event) => event,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                events.readable().await?;
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        tracing::debug!(kind = event.kind, status = event.status, conn = ?event.conn, "set-up");
        let errno = || io::Error::from_raw_os_error(event.status.saturating_neg());
        return Err(match event.kind {
            kind if kind == wanted => return Ok(event),
            RDMA_CM_EVENT_REJECTED => match (transport, event.status) {
                (Some(Transport::Iwarp), _) | (_, CONSUMER_REJECT) => {
                    ConnectError::Rejected(event.conn.private_data)
                }
                // The peer's connection manager has no such listener, or no room.
                _ => ConnectError::Io(io::ErrorKind::ConnectionRefused.into()),
            },
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => {
                let text = format!("no RDMA device has a route to that address ({})", errno());
                ConnectError::Io(io::Error::new(io::ErrorKind::HostUnreachable, text))
            }
            RDMA_CM_EVENT_UNREACHABLE if event.status == -110 => {
                ConnectError::TimedOut("the connection request")
            }
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE if event.status < 0 => errno().into(),
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_DISCONNECTED => {
                ConnectError::Io(io::ErrorKind::ConnectionReset.into())
            }
            RDMA_CM_EVENT_DEVICE_REMOVAL => {
                ConnectError::Io(io::Error::new(io::ErrorKind::NotConnected, "the RDMA device was removed"))
            }
            // For example a changed address.
            _ => continue,
        });
    }
}

async fn within<T>(
    until: Time,
    what: &'static str,
    step: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    rt::timeout(until.since(rt::now()), step).await.unwrap_or(Err(ConnectError::TimedOut(what)))
}

/// An identifier with everything that a connection needs, on one device.
struct Endpoint {
    unconnected: Unconnected,
    qp: Arc<Qp>,
    transport: Transport,
    /// The largest depths that the device and the configuration allow.
    depths: (u8, u8),
}

impl Endpoint {
    fn open(id: CmId, peer: Peer, events: Events, config: &Config, pool: &Pool) -> io::Result<Endpoint> {
        let library = Library::get().map_err(io::Error::other)?;
        let context = id.context()?;
        let limits = context.limits()?;
        let caps = caps(config, &limits);
        let send_pieces = (limits.pieces as usize).clamp(1, config.max_pieces);
        let pd = Pd::alloc(context)?;
        let cq = Cq::create(context, caps.max_send_work.saturating_add(caps.max_recv_work) as u32)?;
        let sizes = QueueSizes {
            send: caps.max_send_work as u32,
            recv: caps.max_recv_work as u32,
            send_pieces: send_pieces as u32,
        };
        let qp = Arc::new(Qp::create(Arc::new(id), &pd, &cq, sizes)?);
        let watch = faults::watch(library, context, [qp.key(), cq.as_ptr() as usize])?;
        let unconnected = Unconnected::new(Parts {
            qp: qp.clone(),
            peer,
            watch,
            events,
            local: Local::new(pd.clone(), pool.clone()),
            regions: Regions::new(pd, caps.max_regions),
            pool: pool.clone(),
            caps,
            send_pieces,
            close_timeout: config.close_timeout,
        });
        let depth = |limit: u32| limit.min(MAX_DEPTH) as u8;
        let depths = (depth(limits.ird), depth(limits.ord));
        Ok(Endpoint { unconnected, qp, transport: context.transport(), depths })
    }

    /// The offer to send to the peer. Depths of 0 take the configured values.
    fn offer(&self, params: &ConnectParams, config: &Config) -> Result<Offer, ConnectError> {
        let limit = if self.transport == Transport::Iwarp { IWARP_PRIVATE_DATA } else { IB_PRIVATE_DATA };
        checked(&params.private_data, limit)?;
        let depth = |wanted: u16, default: u16, limit: u8| {
            u8::try_from(if wanted == 0 { default } else { wanted }).unwrap_or(u8::MAX).min(limit)
        };
        Ok(Offer {
            private_data: params.private_data.clone(),
            ird: depth(params.ird, config.ird, self.depths.0),
            ord: depth(params.ord, config.ord, self.depths.1),
            retries: RETRIES,
            rnr_retries: RNR_RETRIES,
        })
    }
}

fn checked(private_data: &[u8], limit: usize) -> Result<(), ConnectError> {
    if private_data.len() > limit {
        let text = format!("private data longer than {limit} bytes, the limit of this device");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text).into());
    }
    Ok(())
}

fn caps(config: &Config, limits: &Limits) -> Caps {
    let depth = (limits.queue_depth as usize).max(1);
    let half = (limits.completions as usize / 2).max(1);
    Caps {
        max_send_work: config.max_send_work.min(depth).min(half),
        max_recv_work: config.max_recv_work.min(depth).min(half),
        max_regions: config.max_regions.min(limits.regions as usize),
        send_with_invalidate: limits.send_with_invalidate,
        // Devices let a peer revoke what a queue pair registered, and user space cannot register that way: rxe ends the
        // connection. siw supports it, but does not announce it.
        revocable_regions: false,
        reads_into_files: false,
        ..config.caps()
    }
}

/// Connects to `addr`.
pub(super) async fn connect(
    pool: &Pool,
    config: &Config,
    addr: SocketAddr,
    params: ConnectParams,
) -> Result<Connected, ConnectError> {
    let until = rt::now() + config.setup_timeout;
    let channel = channel()?;
    let id = CmId::create(&channel)?;
    let events = Readable::new(channel)?;
    let timeout_ms = i32::try_from(config.setup_timeout.as_millis()).unwrap_or(i32::MAX);
    id.resolve_addr(addr, timeout_ms).map_err(no_device_to(addr))?;
    within(until, "the resolution of the address", expect(&events, RDMA_CM_EVENT_ADDR_RESOLVED, None))
        .await?;
    id.resolve_route(timeout_ms)?;
    within(until, "the resolution of the route", expect(&events, RDMA_CM_EVENT_ROUTE_RESOLVED, None)).await?;

    let endpoint = Endpoint::open(id, Peer::Rdma(addr), events, config, pool)?;
    let offer = endpoint.offer(&params, config)?;
    let answer = async {
        let (qp, offered) = (endpoint.qp.clone(), offer.clone());
        // iWARP devices connect their socket inside this call.
        rt::blocking(move || qp.connect(&offered)).await?;
        let wanted = RDMA_CM_EVENT_ESTABLISHED;
        expect(endpoint.unconnected.events(), wanted, Some(endpoint.transport)).await
    };
    let event = within(until, "the connection", answer).await?;
    let (ird, ord) = agreed(&offer, &event.conn);
    tracing::debug!(peer = %addr, ird, ord, "rnic connected");
    let transport = endpoint.transport;
    let queue_pair = endpoint.unconnected.start(ird, ord)?;
    Ok((queue_pair as Rc<dyn QueuePair>, said(event.conn.private_data, transport)))
}

/// The peer's private data. InfiniBand's messages have a field of fixed length and do not say how much of it is used,
/// so empty private data arrives as zeros.
fn said(private_data: Bytes, transport: Transport) -> Bytes {
    let nothing = transport != Transport::Iwarp && private_data.iter().all(|byte| *byte == 0);
    if nothing { Bytes::new() } else { private_data }
}

/// The acceptance says how much of our offer the peer accepted; a device that does not report it leaves the offer
/// unchanged.
fn agreed(offer: &Offer, answer: &Conn) -> (u16, u16) {
    let depth = |ours: u8, theirs: u8| u16::from(if theirs == 0 { ours } else { ours.min(theirs) });
    (depth(offer.ird, answer.responder_resources), depth(offer.ord, answer.initiator_depth))
}

fn no_device_to(addr: SocketAddr) -> impl FnOnce(io::Error) -> ConnectError {
    move |e| match devices() {
        Err(unavailable) => unavailable.into(),
        Ok(_) => io::Error::new(e.kind(), format!("no RDMA device has a route to {}: {e}", addr.ip())).into(),
    }
}

/// A listening identifier.
pub(super) struct RnicListener {
    events: Events,
    /// Declared before the channel that delivers its events.
    _id: CmId,
    addr: SocketAddr,
    pool: Pool,
    config: Config,
}

/// Listens on `addr`: on one device, or on all for a wildcard address.
pub(super) fn listen(pool: Pool, config: Config, mut addr: SocketAddr) -> io::Result<RnicListener> {
    let unavailable = |e: Unavailable| io::Error::new(io::ErrorKind::Unsupported, e);
    devices().map_err(unavailable)?;
    let channel = channel().map_err(unavailable)?;
    let id = CmId::create(&channel)?;
    id.bind(addr)?;
    id.listen(BACKLOG)?;
    addr.set_port(id.port());
    Ok(RnicListener { events: Readable::new(channel)?, _id: id, addr, pool, config })
}

impl crate::Listener for RnicListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> LocalBoxFuture<'_, io::Result<Box<dyn crate::Incoming>>> {
        Box::pin(async move {
            loop {
                match self.events.inner().next() {
                    Ok(CmEvent { request: Some(id), conn, .. }) => {
                        // Dropping it rejects the request: without an address nobody can decide whether the peer is
                        // admitted.
                        let Some(peer) = id.peer().map(Peer::Rdma) else {
                            tracing::debug!("refused a connection: its peer has no address");
                            continue;
                        };
                        let (pool, config) = (self.pool.clone(), self.config.clone());
                        let incoming = RnicIncoming { id, conn, peer, pool, config };
                        return Ok(Box::new(incoming) as Box<dyn crate::Incoming>);
                    }
                    Ok(CmEvent { kind: RDMA_CM_EVENT_DEVICE_REMOVAL, .. }) => {
                        return Err(io::Error::new(
                            io::ErrorKind::NotConnected,
                            "the RDMA device was removed",
                        ));
                    }
                    // An event of a request that was cancelled before its core took it: `request` or `accept` will
                    // fail.
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.events.readable().await?,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        })
    }
}

struct RnicIncoming {
    id: CmId,
    conn: Conn,
    peer: Peer,
    pool: Pool,
    config: Config,
}

impl crate::Incoming for RnicIncoming {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn request(self: Box<Self>) -> LocalBoxFuture<'static, Result<Box<dyn crate::Request>, ConnectError>> {
        Box::pin(async move {
            let RnicIncoming { mut id, mut conn, peer, pool, config } = *self;
            let channel = channel()?;
            id.migrate(&channel)?;
            conn.private_data = said(conn.private_data, id.context()?.transport());
            let events = Readable::new(channel)?;
            let request = RnicRequest { id, events, conn, peer, pool, config };
            Ok(Box::new(request) as Box<dyn crate::Request>)
        })
    }
}

struct RnicRequest {
    id: CmId,
    events: Events,
    conn: Conn,
    peer: Peer,
    pool: Pool,
    config: Config,
}

impl crate::Request for RnicRequest {
    fn private_data(&self) -> &Bytes {
        &self.conn.private_data
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
            let RnicRequest { id, events, conn, peer, pool, config } = *self;
            let endpoint = Endpoint::open(id, peer, events, &config, &pool)?;
            let mut offer = endpoint.offer(&params, &config)?;
            // The peer cannot use more than it asks for.
            offer.ird = offer.ird.min(conn.responder_resources);
            offer.ord = offer.ord.min(conn.initiator_depth);
            for recv in recvs {
                endpoint.unconnected.post_recv(recv).map_err(|(e, _)| e)?;
            }
            endpoint.qp.accept(&offer)?;
            let established = async {
                let wanted = RDMA_CM_EVENT_ESTABLISHED;
                expect(endpoint.unconnected.events(), wanted, Some(endpoint.transport)).await
            };
            within(rt::now() + config.setup_timeout, "the end of set-up", established).await?;
            let (ird, ord) = (u16::from(offer.ird), u16::from(offer.ord));
            tracing::debug!(%peer, ird, ord, "rnic accepted");
            Ok(endpoint.unconnected.start(ird, ord)? as Rc<dyn QueuePair>)
        })
    }

    fn reject(self: Box<Self>, private_data: Bytes) -> LocalBoxFuture<'static, Result<(), ConnectError>> {
        Box::pin(async move {
            let transport = self.id.context()?.transport();
            let limit = if transport == Transport::Iwarp { IWARP_PRIVATE_DATA } else { IB_PRIVATE_DATA };
            checked(&private_data, limit)?;
            Ok(self.id.reject(&private_data)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_over_infiniband_is_nothing() {
        let zeros = Bytes::from_static(&[0; 56]);
        assert!(said(zeros.clone(), Transport::Ib).is_empty());
        assert_eq!(said(zeros.clone(), Transport::Iwarp), zeros);
        // Without the padding removed, nobody could tell where the data ends.
        let padded = Bytes::from_static(&[8, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(said(padded.clone(), Transport::Ib), padded);
    }

    #[test]
    fn the_smaller_depth_counts_and_silence_changes_nothing() {
        let offer = Offer { private_data: Bytes::new(), ird: 8, ord: 16, retries: 7, rnr_retries: 6 };
        let answer = |ird, ord| Conn { responder_resources: ird, initiator_depth: ord, ..Conn::default() };
        assert_eq!(agreed(&offer, &answer(3, 100)), (3, 16));
        assert_eq!(agreed(&offer, &answer(0, 0)), (8, 16));
    }

    #[test]
    fn without_a_device_everybody_is_told_what_to_do() {
        if let Ok(found) = devices() {
            return println!("skipped: there are {} RDMA devices", found.len());
        }
        rt::block_on(async {
            let addr = SocketAddr::from(([127, 0, 0, 1], 1));
            let pool = Pool::new(1 << 20);
            let connected = connect(&pool, &Config::default(), addr, ConnectParams::default()).await;
            let error = connected.map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("provider not available: "), "{error}");
            assert!(error.contains("install") || error.contains("rdma link add"), "{error}");
            let error = listen(pool, Config::default(), addr).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        })
        .unwrap();
    }
}
