//! RPC over RDMA: calls and replies by Send, payload by RDMA Read and Write.
//!
//! [`connect`] and [`accept`] return an [`RpcRdma`], a [`Channel`](crate::Channel) over a queue pair, as client or as
//! server. It implements RFC 8166 and RFC 8797 (private data). It owns the queue pair, its receive buffers and the
//! queue of unsent messages. It interprets only the xid and type of RPC messages, does not retransmit, and as a client
//! does not answer calls of the server (RFC 8167).
//!
//! `responder` and `requester` are state machines that take messages and produce work; `driver` binds one of them to
//! the queue pair, the pool and the files, and `channel` is what users call. Any task that waits (a reader, a sender)
//! drives the connection.

mod channel;
mod chunks;
mod driver;
mod receives;
mod remote;
mod requester;
mod responder;
mod ticket;

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use weft_machine::buf::MAX_BUF;
use weft_machine::{Pool, Time, rt};
use weft_rdma::{ConnectParams, Provider, QueuePair, Request, Work};
use weft_wire::rpcrdma::PrivateData;

use crate::channel::Error;
pub use channel::RpcRdma;
use driver::{Role, receive_buffer};
use receives::Receives;
pub use receives::{CREDITS_EXHAUSTED, CREDITS_GRANTED};
use requester::Requester;
use responder::{FIRST_CALL_LIMIT, Responder};
pub(crate) use ticket::CallTicket;

/// Most bytes of the pool that the Reads of one connection hold at a time: enough for eight calls of 1 MiB in segments,
/// and so for any link's bandwidth; further calls wait, and their client with them.
const MAX_PULL_BYTES: usize = MAX_BUF;
/// One connection's Reads may hold one in this many bytes of its pool, which is the share of its source address.
const PULL_PART: usize = 4;

/// What a side offers and accepts.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Largest message sent and received inline, in bytes: a multiple of 1024 from 1 KiB to 256 KiB. A peer that does
    /// not state its inline threshold gets 1024 (RFC 8797 5.1).
    pub inline_bytes: usize,
    /// Server: the most credits granted to a client that uses them. Client: credits requested. At least 1.
    pub credits: u32,
    /// Longest RPC message without its payload, in both directions.
    pub max_message: usize,
    /// Largest payload by RDMA, in both directions.
    pub max_payload: usize,
    /// Offer to revoke (server) or to have revoked (client) memory by Send with Invalidate.
    pub remote_invalidation: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            inline_bytes: 4096,
            credits: 64,
            max_message: (1 << 20) + (64 << 10),
            max_payload: 1 << 20,
            remote_invalidation: true,
        }
    }
}

impl Config {
    pub(crate) fn normal(self) -> Config {
        Config {
            inline_bytes: self.inline_bytes.clamp(1024, 256 << 10) & !1023,
            credits: self.credits.max(1),
            // A whole chunk is pulled into one buffer.
            max_message: self.max_message.min(MAX_BUF),
            max_payload: self.max_payload.min(MAX_BUF - 3),
            ..self
        }
    }

    fn private_data(&self) -> PrivateData {
        PrivateData {
            remote_invalidation: self.remote_invalidation,
            send_bytes: self.inline_bytes,
            receive_bytes: self.inline_bytes,
        }
    }

    fn params(&self) -> ConnectParams {
        let private_data = Bytes::copy_from_slice(&self.private_data().emit());
        ConnectParams { private_data, ..ConnectParams::default() }
    }
}

/// Connects to a server. Buffers come from `pool`.
pub async fn connect(
    provider: &dyn Provider,
    addr: SocketAddr,
    config: Config,
    pool: Pool,
) -> Result<Rc<RpcRdma>, Error> {
    let mut config = config.normal();
    config.credits =
        config.credits.min(u32::try_from(provider.caps().max_recv_work).unwrap_or(u32::MAX).max(1));
    config.remote_invalidation &= provider.caps().revocable_regions;
    let (qp, answer) = provider.connect(addr, config.params()).await?;
    client(qp, &answer, config, pool).await
}

/// The client's end of a queue pair that is already connected; `answer` is the private data of the acceptance.
async fn client(
    qp: Rc<dyn QueuePair>,
    answer: &[u8],
    config: Config,
    pool: Pool,
) -> Result<Rc<RpcRdma>, Error> {
    let peer = PrivateData::find(answer);
    let terms = requester::Terms {
        threshold: config.inline_bytes.min(peer.receive_bytes),
        reply_threshold: config.inline_bytes.min(peer.send_bytes),
        credits: config.credits,
    };
    // The server sends only replies, so these receives are posted in time (RFC 8166 3.3.1).
    for _ in 0..config.credits {
        let buf = pool.alloc(config.inline_bytes).await;
        qp.post(receive_buffer(buf)).map_err(|(e, _)| requester::post_error(e))?;
    }
    Ok(RpcRdma::new(qp, pool, config, Role::Requester(Requester::new(terms))))
}

/// Accepts a client. Buffers come from `pool`.
pub async fn accept(request: Box<dyn Request>, config: Config, pool: Pool) -> Result<Rc<RpcRdma>, Error> {
    let config = config.normal();
    let peer = PrivateData::find(request.private_data());
    let mut recvs: Vec<Work> = Vec::new();
    for _ in 0..first_receives(config.credits) {
        recvs.push(receive_buffer(pool.alloc(config.inline_bytes).await));
    }
    let qp = request.accept(config.params(), recvs).await?;
    Ok(server(qp, peer, config, pool, Some(rt::now() + FIRST_CALL_LIMIT)))
}

/// Receives to post before a connection is accepted.
pub(crate) fn first_receives(credits: u32) -> u32 {
    Receives::first(credits)
}

/// The server's end of a queue pair that has [`first_receives`]; its client must call before `first_call`.
pub(crate) fn server(
    qp: Rc<dyn QueuePair>,
    peer: PrivateData,
    config: Config,
    pool: Pool,
    first_call: Option<Time>,
) -> Rc<RpcRdma> {
    let terms = responder::Terms {
        threshold: config.inline_bytes.min(peer.receive_bytes),
        credits: config.credits,
        max_message: config.max_message,
        max_payload: config.max_payload,
        pull_bytes: pull_bytes(&pool),
        remote_invalidation: config.remote_invalidation && peer.remote_invalidation,
        leaves_payload: qp.caps().reads_into_files,
    };
    RpcRdma::new(qp, pool, config, Role::Responder(Responder::new(terms, first_call)))
}

/// How much of `pool` the Reads of one connection may hold at a time.
fn pull_bytes(pool: &Pool) -> usize {
    (pool.limit_bytes() / PULL_PART).min(MAX_PULL_BYTES)
}

#[cfg(test)]
mod tests;
