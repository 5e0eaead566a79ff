//! The passive side of the workloads on verbs: accepts connections and serves each until its client disconnects.
//!
//! [`serve`] runs one listener; a connection's private data selects the workload. The listener is bound by the
//! caller, and dropping the future stops it.
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

/// Most concurrent connections. More are closed at once, and logged.
pub const MAX_CONNECTIONS: usize = 4096;
/// Memory for a server's buffers: its clients' regions and receive buffers.
pub const BUFFERS: usize = 2 << 30;

/// The workloads that a server accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// Pings only.
    Pings,
    /// Pings and measurements.
    All,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Set-up failed.
    #[error("not established: {0}")]
    Connect(#[from] ConnectError),
    /// Buffers or work requests failed.
    #[error("{0}")]
    End(#[from] EndError),
    /// A round failed.
    #[error("{0}")]
    Ping(#[from] PingError),
    /// A measurement failed.
    #[error("{0}")]
    Perf(#[from] PerfError),
}

/// How long accepting pauses when the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts from `listener` until dropped. The outcome of each connection is logged.
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
                tracing::warn!("a connection failed: {e}");
            }
            open.set(open.get().saturating_sub(1));
        })
        .detach();
    }
}

async fn connection(incoming: Box<dyn Incoming>, answers: Answers, pool: Pool) -> Result<(), ServeError> {
    let request: Box<dyn Request> = incoming.request().await?;
    let peer = request.peer();
    // rping's private data is empty; whatever else does not parse as a plan is ignored.
    let measures = !matches!(Plan::parse(request.private_data()), Err(Malformed::Magic));
    if measures && answers == Answers::All {
        let batches = perf::server::serve(request, pool).await?;
        tracing::debug!("{peer}: left after {batches} batches");
        return Ok(());
    }
    if measures {
        tracing::warn!(
            "{peer} requested a measurement, but this server answers only pings: start `weft rdma perf server`"
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
