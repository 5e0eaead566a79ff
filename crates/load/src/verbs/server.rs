//! The passive side of the workloads on verbs: accepts connections and serves each until its client leaves.
//!
//! What: [`serve`] runs one listener; what a connection wants is told by its private data.
//! Owns: the connections. Does not: bind, or stop by itself; whoever drops the future stops it.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weft_machine::net::is_exhausted;
use weft_machine::{Pool, rt};
use weft_rdma::{ConnectError, ConnectParams, Incoming, Listener, Request};
use weft_wire::perf::{Malformed, Plan};

use super::end::{End, EndError};
use super::perf::{self, server::PerfError};
use super::ping::{self, PingError};

/// Connections at a time. More are closed at once, with a line in the log.
pub const MAX_CONNECTIONS: usize = 4096;
/// Memory of a server's buffers: the regions of its clients and their receive buffers.
pub const BUFFERS: usize = 2 << 30;

/// What a server answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// Pings only.
    Pings,
    /// Pings and measurements.
    All,
}

/// Why a connection ended otherwise than by its client's leaving.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Set-up failed.
    #[error("not established: {0}")]
    Connect(#[from] ConnectError),
    /// Buffers or work.
    #[error("{0}")]
    End(#[from] EndError),
    /// A round failed.
    #[error("{0}")]
    Ping(#[from] PingError),
    /// A measurement failed.
    #[error("{0}")]
    Perf(#[from] PerfError),
}

/// How long an accept waits when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts from `listener` until dropped. What becomes of connections is logged.
pub async fn serve(listener: Box<dyn Listener>, answers: Answers, pool: Pool) -> std::io::Result<()> {
    let open = Rc::new(Cell::new(0));
    loop {
        let incoming = match listener.accept().await {
            Ok(incoming) => incoming,
            Err(e) if is_exhausted(&e) => {
                tracing::warn!("accepting connections: {e} (is `ulimit -n` too small?)");
                rt::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Err(e) => return Err(e),
        };
        if open.get() >= MAX_CONNECTIONS {
            tracing::warn!("refused a connection: {MAX_CONNECTIONS} are open");
            continue;
        }
        open.set(open.get().saturating_add(1));
        let (open, pool) = (open.clone(), pool.clone());
        rt::spawn(async move {
            if let Err(e) = connection(incoming, answers, pool).await {
                tracing::warn!("a connection ended: {e}");
            }
            open.set(open.get().saturating_sub(1));
        })
        .detach();
    }
}

async fn connection(incoming: Box<dyn Incoming>, answers: Answers, pool: Pool) -> Result<(), ServeError> {
    let request: Box<dyn Request> = incoming.request().await?;
    let peer = request.peer();
    // rping has no private data, other than a plan it means nothing.
    let measures = !matches!(Plan::parse(request.private_data()), Err(Malformed::Magic));
    if measures && answers == Answers::All {
        let batches = perf::server::serve(request, pool).await?;
        tracing::debug!("{peer}: left after {batches} batches");
        return Ok(());
    }
    if measures {
        tracing::warn!(
            "{peer} wants to measure, this server answers pings only: start `weft rdma perf server`"
        );
        return Ok(request.reject(bytes::Bytes::new()).await?);
    }
    let qp = request.accept(ConnectParams::default(), ping::recvs(&pool)?).await?;
    let provider = qp.provider();
    tracing::info!("{peer} over {provider}: pings");
    let rounds = ping::serve(&mut End::new(qp, pool)).await?;
    tracing::info!("{peer} over {provider}: left after {rounds} rounds");
    Ok(())
}
