//! What a way to another server, and both sides' logs, are worth: the measures of `weft replica check`.
//!
//! Spec: none; the questions are those of Storage Replica's Test-SRTopology. Does not: judge.
//! It runs in the command's own process: no server is needed on this side.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use weft_machine::Pool;
use weft_smb::client::OpenOptions;
use weft_wire::smb2::ioctl::CtlCode;

use super::config::{Address, Folder};
use super::setup::{self, Ask, Found, Tell};
use super::{carrier, door, group};

/// Round trips that are taken.
const TRIPS: usize = 64;
/// Bytes of one WRITE, and how many are under way: as a copy does it.
const PIECE: usize = 4 << 20;
const PIECES: usize = 4;
/// How long the bandwidth is looked at.
const BANDWIDTH_FOR: Duration = Duration::from_secs(2);

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// "tcp", "iwarp", "shm" or "rnic".
    pub transport: &'static str,
    /// What was agreed on.
    pub description: String,
    /// Median round trip of a small request, milliseconds.
    pub round_trip_ms: f64,
    /// The slowest of a hundred, or so.
    pub round_trip_worst_ms: f64,
    /// Bytes a second into the other server's memory.
    pub bytes_per_second: f64,
    /// Of these bytes, so many moved by RDMA.
    pub rdma_bytes: u64,
    /// Bytes a second of durable writes to this side's log, where its place is known.
    pub log_bytes_per_second: f64,
    /// Milliseconds of a small durable write there.
    pub log_ms: f64,
}

/// The other side's volumes, and the speed of its log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct There {
    /// Bytes a second of durable writes to its log.
    pub log_bytes_per_second: f64,
    /// Milliseconds of a small durable write there.
    pub log_ms: f64,
    /// The volumes that were asked for.
    pub volumes: Vec<VolumeThere>,
    /// Names of those that are not served there, and why.
    #[serde(skip)]
    pub refused: Vec<(String, String)>,
}

/// Why the other server says nothing of its log.
#[derive(Clone, Debug)]
pub(crate) enum Unknown {
    /// It cannot be reached, or nobody is let in.
    Unreachable(String),
    /// It has answered that.
    Refused(String),
}

/// A volume of the other side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VolumeThere {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that hold something.
    pub used: u64,
    /// The group that it is in.
    pub group: Option<String>,
}

/// Asks the other server what it has: for its log, and for each volume by itself, since it refuses a question as a whole.
pub(crate) async fn look(address: &Address, pool: &Pool, volumes: &[String]) -> Result<There, Unknown> {
    let ask = async |volumes: Vec<String>, measure| {
        let told = carrier::exchange(address, pool, &Ask::Look { volumes, measure }).await;
        match told.map_err(Unknown::Unreachable)? {
            Tell::Looked { log, volumes, .. } => Ok((log, volumes)),
            Tell::Error(why) => Err(Unknown::Refused(why.into())),
            _ => Err(Unknown::Refused("it answered another question".into())),
        }
    };
    let (Some((log_bytes_per_second, log_ms)), _) = ask(Vec::new(), true).await? else {
        return Err(Unknown::Refused("it answered another question".into()));
    };
    let mut there = There { log_bytes_per_second, log_ms, volumes: Vec::new(), refused: Vec::new() };
    for name in volumes {
        match ask(vec![name.clone()], false).await {
            Ok((_, found)) => there.volumes.extend(found.into_iter().map(volume)),
            Err(Unknown::Refused(why)) => there.refused.push((name.clone(), why)),
            Err(unreachable) => return Err(unreachable),
        }
    }
    Ok(there)
}

fn volume(found: Found) -> VolumeThere {
    VolumeThere {
        name: found.name.into(),
        size: found.size,
        used: found.used,
        group: found.group.map(String::from),
    }
}

/// Measures the way there, and this side's log.
pub(crate) async fn measure(address: &Address, pool: &Pool, state: &Path) -> Result<Measured, String> {
    let joined = carrier::join_server(address, pool, address.encrypt).await?;
    let text = |e: weft_smb::client::Error| e.to_string();
    let door = joined.tree.open(door::SETUP, OpenOptions::write()).await.map_err(text)?;
    let question = serde_json::to_vec(&Ask::Nothing).map_err(|e| e.to_string())?;
    let most = u32::try_from(setup::MAX_MESSAGE).unwrap_or(u32::MAX);
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let began = Instant::now();
        door.ioctl(CtlCode::WEFT_EXCHANGE, question.clone().into(), most).await.map_err(text)?;
        trips.push(began.elapsed().as_secs_f64() * 1e3);
    }
    trips.sort_by(f64::total_cmp);

    let sink = joined.tree.open(door::MEASURE, OpenOptions::write()).await.map_err(text)?;
    let before = joined.session.traffic();
    let began = Instant::now();
    let (mut moved, mut underway) = (0_u64, FuturesUnordered::new());
    let write = async |mut buf: weft_machine::Buf| {
        buf.set_len(PIECE);
        sink.write_buf(0, buf).await
    };
    for _ in 0..PIECES {
        underway.push(write(pool.alloc(PIECE).await));
    }
    while let Some(written) = underway.next().await {
        let buf = written.map_err(text)?;
        moved += PIECE as u64;
        if began.elapsed() < BANDWIDTH_FOR {
            underway.push(write(buf));
        }
    }
    let elapsed = began.elapsed().as_secs_f64();
    drop(underway);
    let after = joined.session.traffic();
    let rdma_bytes = after.served.0 - before.served.0 + after.written.0 - before.written.0;
    let measured = Measured {
        transport: joined.transport,
        description: joined.session.describe().to_string(),
        round_trip_ms: trips[TRIPS / 2],
        round_trip_worst_ms: trips[TRIPS - 1],
        bytes_per_second: moved as f64 / elapsed,
        rdma_bytes,
        log_bytes_per_second: 0.0,
        log_ms: 0.0,
    };
    if let Err(e) = joined.session.logoff().await {
        tracing::debug!("while leaving: {e}");
    }
    let folder = Folder::of(state);
    let log = folder.make().and_then(|()| group::measure(folder.path()));
    let (log_bytes_per_second, log_ms) =
        log.map_err(|e| format!("the journal's folder, {}: {e}", folder.path().display()))?;
    Ok(Measured { log_bytes_per_second, log_ms, ..measured })
}
