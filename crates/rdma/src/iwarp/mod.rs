//! iWARP in user space: RDMAP over DDP over MPA over an ordinary TCP socket.
//!
//! Implements RFC 5044 (MPA), 5041 (DDP), 5040 (RDMAP), 6581 (enhanced set-up) and 5042 (security). It needs no root,
//! kernel module or hardware; the peer may use an RNIC or Linux's siw.
//!
//! ```text
//! driver        socket, tasks, time                        (this room's only I/O)
//! connection    posted work, completions, the stream's life
//! send receive  messages <-> segments                      RDMAP, DDP
//! frame setup   FPDUs and markers, set-up frames           MPA
//! probe         what a peer answers to a set-up frame, for diagnosis
//! regions terminate                                        what the peer may access, and how it is refused
//! nudge                                                    recovers a peer that missed our first FPDUs
//! patience                                                 limits for a peer that never finishes
//! ```
//!
//! Except `driver` and the set-up below, no file does I/O; all are tested under virtual time.

// No input from the peer is used as an unchecked index, and every sum that may overflow states the outcome.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod ahead;
mod config;
mod connection;
mod driver;
mod frame;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod nudge;
mod patience;
pub mod probe;
mod regions;
mod setup;
mod terminate;

pub use config::Config;
#[cfg(any(test, fuzzing))]
pub use fuzz::{fpdu_stream, mpa_setup};

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::net::Socket;
use weft_machine::{Peer, Pool, Stream, Time, rt};
use weft_wire::mpa::{self, NOT_NEGOTIATED};

use self::connection::{Connection, Limits};
use self::driver::Handle;
use self::setup::{Agreed, Asked, Failure, Initiator, Offer, Responder};
use crate::verbs::{self, Caps, ConnectError, ConnectParams, Connected, QueuePair, Work};

const NAME: &str = "iwarp";
const HUNG_UP: &str = "the peer closed the connection during MPA set-up";

/// Makes iWARP connections.
#[derive(Clone, Debug)]
pub struct Provider {
    pool: Pool,
    config: Config,
}

impl Provider {
    /// A provider whose connections take their buffers from `pool`.
    pub fn new(pool: Pool, config: Config) -> Provider {
        Provider { pool, config }
    }

    fn offer(&self, params: &ConnectParams) -> Result<Offer, ConnectError> {
        if params.private_data.len() > mpa::MAX_USER_PRIVATE_DATA {
            return Err(
                io::Error::new(io::ErrorKind::InvalidInput, "private data longer than 508 bytes").into()
            );
        }
        // All ones would mean "not negotiated".
        let depth =
            |wanted: u16, default: u16| if wanted == 0 { default } else { wanted }.min(NOT_NEGOTIATED - 1);
        Ok(Offer {
            crc: self.config.crc,
            markers: self.config.markers,
            ird: depth(params.ird, self.config.ird),
            ord: depth(params.ord, self.config.ord),
            peer_to_peer: self.config.peer_to_peer,
            enhanced: true,
            private_data: params.private_data.clone(),
        })
    }

    /// Fails if the memory for it is not free before `until`: other connections of the peer may have used up its share.
    async fn connection(&self, agreed: &Agreed, until: Time) -> Result<Connection, ConnectError> {
        let staging = self.pool.alloc(connection::first_staging(agreed));
        let staging = rt::timeout(left(until), staging).await;
        let staging = staging.map_err(|rt::Elapsed| ConnectError::TimedOut("memory for the connection"))?;
        let limits = Limits {
            max_send_work: self.config.max_send_work,
            max_recv_work: self.config.max_recv_work,
            max_regions: self.config.max_regions.min(regions::MAX_REGIONS),
            fpdu_payload: self.config.fpdu_payload,
            close_timeout: self.config.close_timeout,
        };
        // Keyed by the system's randomness, which makes the STags hard for a peer to guess.
        let random = RandomState::new();
        let seed = [random.hash_one(0), random.hash_one(1)];
        Ok(Connection::new(agreed, limits, staging, seed))
    }

    async fn initiate(&self, addr: SocketAddr, params: ConnectParams) -> Result<Connected, ConnectError> {
        let offer = self.offer(&params)?;
        // One limit for all steps: a peer that delays each step would otherwise hold us up several times as long.
        let until = rt::now() + self.config.setup_timeout;
        let (stream, agreed) = match self.ask(addr, offer.clone(), until).await? {
            Some(answered) => answered,
            None => {
                tracing::debug!(peer = %addr, "hung up on an enhanced MPA request: asking in the older form");
                let older = Offer { enhanced: false, ..offer };
                self.ask(addr, older, until).await?.ok_or(ConnectError::Violation(HUNG_UP))?
            }
        };
        tracing::debug!(peer = %addr, crc = agreed.crc, ird = agreed.ird, ord = agreed.ord, "iwarp connected");
        let connection = self.connection(&agreed, until).await?;
        Ok((Rc::new(Handle::new(connection, stream, self.pool.clone())), agreed.private_data))
    }
}

impl Provider {
    /// Connects and sends the request; `None` when the peer hung up on an enhanced request and may know only the older
    /// form.
    async fn ask(
        &self,
        addr: SocketAddr,
        offer: Offer,
        until: Time,
    ) -> Result<Option<(Stream, Agreed)>, ConnectError> {
        let congestion = self.config.congestion.as_deref();
        let source = self.config.source_port;
        let stream = match Stream::connect_from(addr, left(until), congestion, source).await {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                return Err(ConnectError::TimedOut("the TCP connection"));
            }
            other => other?,
        };
        let (mut initiator, request) = Initiator::new(offer, until);
        send(&stream, request, left(until), "the MPA request").await?;
        loop {
            let step = match receive(&stream, initiator.wanted(), initiator.deadline()).await {
                Ok(Some(bytes)) => initiator.handle(&mut &bytes[..]),
                Ok(None) => initiator.handle_timeout(rt::now()).map(|()| None),
                Err(e) if initiator.may_ask_again() && hung_up(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            match step {
                Ok(Some(agreed)) => return Ok(Some((stream, agreed))),
                Ok(None) => {}
                Err(failure) => {
                    return Err(say_farewell(&stream, failure, left(until)).await);
                }
            }
        }
    }
}

impl verbs::Provider for Provider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            max_send_work: self.config.max_send_work,
            max_recv_work: self.config.max_recv_work,
            ird: self.config.ird,
            ord: self.config.ord,
            max_regions: self.config.max_regions.min(regions::MAX_REGIONS),
            kernel_bypass: false,
            send_with_invalidate: true,
            revocable_regions: true,
            reads_into_files: false,
        }
    }

    fn listen(&self, addr: SocketAddr) -> LocalBoxFuture<'_, io::Result<Box<dyn verbs::Listener>>> {
        Box::pin(async move {
            let socket = weft_machine::Listener::bind(addr)?;
            if let Some(algorithm) = &self.config.congestion {
                socket.set_congestion(algorithm)?;
            }
            Ok(Box::new(Listener { socket, provider: self.clone() }) as Box<dyn verbs::Listener>)
        })
    }

    fn connect(
        &self,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> LocalBoxFuture<'_, Result<Connected, ConnectError>> {
        Box::pin(self.initiate(addr, params))
    }
}

fn left(until: Time) -> Duration {
    until.since(rt::now())
}

fn hung_up(error: &ConnectError) -> bool {
    match error {
        ConnectError::Violation(what) => *what == HUNG_UP,
        ConnectError::Io(e) => e.kind() == io::ErrorKind::ConnectionReset,
        _ => false,
    }
}

/// Receives up to `wanted` bytes; `None` when the deadline has passed.
async fn receive(stream: &Stream, wanted: usize, deadline: Time) -> Result<Option<Vec<u8>>, ConnectError> {
    let mut bytes = vec![0; wanted];
    match rt::timeout(deadline.since(rt::now()), stream.recv(&mut [IoSliceMut::new(&mut bytes)])).await {
        Err(rt::Elapsed) => Ok(None),
        Ok(Ok(0)) => Err(ConnectError::Violation(HUNG_UP)),
        Ok(received) => {
            bytes.truncate(received?);
            Ok(Some(bytes))
        }
    }
}

/// Sends a frame within `limit`, so that a peer that reads nothing cannot hold us up, however little room its socket
/// has.
async fn send(
    stream: &Stream,
    frame: Vec<u8>,
    limit: Duration,
    what: &'static str,
) -> Result<(), ConnectError> {
    match rt::timeout(limit, stream.send_all(&[frame.into()])).await {
        Ok(sent) => Ok(sent?),
        Err(rt::Elapsed) => Err(ConnectError::TimedOut(what)),
    }
}

async fn say_farewell(stream: &Stream, failure: Failure, limit: Duration) -> ConnectError {
    if !failure.farewell.is_empty()
        && let Err(e) = send(stream, failure.farewell, limit, "the Terminate").await
    {
        tracing::debug!("could not tell the peer why set-up failed: {e}");
    }
    failure.error
}

struct Listener {
    socket: weft_machine::Listener,
    provider: Provider,
}

impl verbs::Listener for Listener {
    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    fn accept(&self) -> LocalBoxFuture<'_, io::Result<Box<dyn verbs::Incoming>>> {
        Box::pin(async {
            let socket = self.socket.accept().await?;
            Ok(Box::new(Incoming { socket, provider: self.provider.clone() }) as Box<dyn verbs::Incoming>)
        })
    }
}

struct Incoming {
    socket: Socket,
    provider: Provider,
}

impl verbs::Incoming for Incoming {
    fn peer(&self) -> Peer {
        self.socket.peer().by_rdma()
    }

    fn charge(&mut self, pool: &Pool) {
        self.provider.pool = pool.clone();
    }

    fn request(self: Box<Self>) -> LocalBoxFuture<'static, Result<Box<dyn verbs::Request>, ConnectError>> {
        Box::pin(async move {
            let Incoming { socket, provider } = *self;
            let stream = Stream::from_socket(socket)?;
            let mut responder = Responder::new(rt::now() + provider.config.setup_timeout);
            loop {
                let step = match receive(&stream, responder.wanted(), responder.deadline()).await? {
                    Some(bytes) => responder.handle(&mut &bytes[..]),
                    None => responder.handle_timeout(rt::now()).map(|()| None),
                };
                match step {
                    Ok(Some(asked)) => {
                        return Ok(Box::new(Request { asked, stream, provider }) as Box<dyn verbs::Request>);
                    }
                    Ok(None) => {}
                    Err(failure) => return Err(failure.error),
                }
            }
        })
    }
}

struct Request {
    asked: Asked,
    stream: Stream,
    provider: Provider,
}

impl Request {
    async fn reply(stream: &Stream, provider: &Provider, reply: Vec<u8>) -> Result<(), ConnectError> {
        send(stream, reply, provider.config.setup_timeout, "the MPA reply").await
    }
}

impl verbs::Request for Request {
    fn private_data(&self) -> &Bytes {
        self.asked.private_data()
    }

    fn peer(&self) -> Peer {
        self.stream.peer().by_rdma()
    }

    fn accept(
        self: Box<Self>,
        params: ConnectParams,
        recvs: Vec<Work>,
    ) -> LocalBoxFuture<'static, Result<Rc<dyn QueuePair>, ConnectError>> {
        Box::pin(async move {
            let Request { asked, stream, provider } = *self;
            let offer = provider.offer(&params)?;
            let (reply, agreed) = asked.accept(&offer);
            let until = rt::now() + provider.config.setup_timeout;
            let mut connection = provider.connection(&agreed, until).await?;
            for recv in recvs {
                connection.post(recv).map_err(|(e, _)| e)?;
            }
            Request::reply(&stream, &provider, reply).await?;
            tracing::debug!(crc = agreed.crc, ird = agreed.ird, ord = agreed.ord, "iwarp accepted");
            Ok(Rc::new(Handle::new(connection, stream, provider.pool.clone())) as Rc<dyn QueuePair>)
        })
    }

    fn reject(self: Box<Self>, private_data: Bytes) -> LocalBoxFuture<'static, Result<(), ConnectError>> {
        Box::pin(async move {
            let Request { asked, stream, provider } = *self;
            let offer = provider.offer(&ConnectParams { private_data, ird: 0, ord: 0 })?;
            Request::reply(&stream, &provider, asked.reject(&offer)).await
        })
    }
}

#[cfg(test)]
mod tests;
