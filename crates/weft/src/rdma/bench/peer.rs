//! The processes of a bench besides its servers: each reports that it is ready and does one thing until it is ended.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Instant;

use futures_util::stream::{StreamExt, TryStreamExt, iter};
use serde_json::{Value, json};
use weft_load::memory::resident;
use weft_load::verbs::bench::{atomic, tcp};
use weft_load::verbs::perf::client::connect_idle;
use weft_machine::shm::{Words, adopt};
use weft_machine::{Pool, rt};

use super::{iwarp_provider, loopback};
use crate::Failure;
use crate::args::{Bench, Peer};
use crate::rdma::{pin, raise_descriptors};

/// Memory for the plain TCP program's buffers.
const BUFFERS: usize = 256 << 20;
/// Memory for the buffers of the idle connections: one staging buffer each, most of it never touched.
const IDLE_BUFFERS: usize = 1 << 30;
/// Connections set up at the same time.
const AT_A_TIME: usize = 32;

/// Runs one of them.
pub(super) fn run(kind: Peer, args: &Bench, congestion: &str) -> Result<ExitCode, Failure> {
    if let Some(cpu) = args.cpu {
        pin(cpu)?;
    }
    match kind {
        Peer::Tcp => {
            let listener = TcpListener::bind(loopback(0))?;
            ready(&json!({ "port": listener.local_addr()?.port() }))?;
            tcp::serve(&listener, congestion, &Pool::new(BUFFERS))?;
        }
        Peer::Atomic => {
            let bytes = atomic::WORDS * size_of::<u64>();
            let memory = std::io::stdin().as_fd().try_clone_to_owned()?;
            let words = Words::over(adopt(memory, bytes, bytes)?);
            ready(&json!({}))?;
            atomic::serve(&words);
        }
        Peer::Idle => rt::block_on(hold_connections(args))??,
    }
    Ok(ExitCode::SUCCESS)
}

fn ready(line: &Value) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Makes the connections and keeps them until the process is ended.
async fn hold_connections(args: &Bench) -> Result<(), Failure> {
    raise_descriptors()?;
    let addr = loopback(args.port.ok_or("--port is missing")?);
    let pool = Pool::new(IDLE_BUFFERS);
    let provider = iwarp_provider(&pool, true);
    // One-time allocations do not count for the connections.
    drop(connect_idle(&provider, addr, &pool).await?);
    let before = resident(std::process::id())?;
    let started = Instant::now();
    let connecting = (0..args.connections).map(|_| connect_idle(&provider, addr, &pool));
    let ends: Vec<_> = iter(connecting).buffer_unordered(AT_A_TIME).try_collect().await?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes = resident(std::process::id())?.saturating_sub(before);
    let bytes_each = bytes as f64 / f64::from(args.connections.max(1));
    ready(&json!({ "seconds": seconds, "bytes_each": bytes_each, "connections": ends.len() }))?;
    std::future::pending::<()>().await;
    Ok(())
}
