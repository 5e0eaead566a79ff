//! Measurements of `weft replica check`: the link to another server, and the logs on both sides.
//!
//! The questions are those of Storage Replica's Test-SRTopology; the command judges the results. The measurement runs
//! in the command's own process, so this side needs no server.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Serialize;
use weft_machine::Pool;
use weft_smb::client::OpenOptions;
use weft_wire::smb2::ioctl::CtlCode;

use super::config::{Address, Folder};
use super::error::{Unasked, Unmeasured};
use super::setup::{self, Ask, Found, Tell};
use super::{carrier, door, group};

/// Number of round trips measured.
const TRIPS: usize = 64;
/// Size of one WRITE and the number outstanding, as in a copy.
const PIECE: usize = 4 << 20;
const PIECES: usize = 4;
/// Duration of the bandwidth measurement.
const BANDWIDTH_FOR: Duration = Duration::from_secs(2);

/// The measurements.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// "tcp", "iwarp", "shm" or "rnic".
    pub transport: &'static str,
    /// The negotiated parameters.
    pub description: String,
    /// Median round trip of a small request, milliseconds.
    pub round_trip_ms: f64,
    /// The slowest round trip measured.
    pub round_trip_worst_ms: f64,
    /// Bytes per second into the other server's memory.
    pub bytes_per_second: f64,
    /// How many of these bytes moved by RDMA.
    pub rdma_bytes: u64,
    /// Bytes per second of durable writes to this side's log, if its location is known.
    pub log_bytes_per_second: f64,
    /// Milliseconds of a small durable write to it.
    pub log_ms: f64,
}

/// The other side's volumes, and the speed of its log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct There {
    /// Bytes per second of durable writes to its log.
    pub log_bytes_per_second: f64,
    /// Milliseconds of a small durable write to it.
    pub log_ms: f64,
    /// The requested volumes.
    pub volumes: Vec<VolumeThere>,
    /// Names of volumes that are not served on that host, and why.
    #[serde(skip)]
    pub refused: Vec<(String, String)>,
}

/// Why the other server's state is unknown.
#[derive(Debug)]
pub(crate) enum Unknown {
    /// It cannot be reached, or refuses the log-on.
    Unreachable(Unasked),
    /// It has refused the question; its sentence.
    Refused(String),
}

/// A volume on the other side.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VolumeThere {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// The group that contains it.
    pub group: Option<String>,
}

/// Asks the other server separately about its log and each volume, because it refuses a question as a whole.
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

/// Measures the link to the other server, and this side's log.
pub(crate) async fn measure(address: &Address, pool: &Pool, state: &Path) -> Result<Measured, Unmeasured> {
    let joined = carrier::join_server(address, pool, address.encrypt).await.map_err(Unmeasured::NotJoined)?;
    let door = joined.tree.open(door::SETUP, OpenOptions::write()).await?;
    let question = serde_json::to_vec(&Ask::Nothing)?;
    let most = u32::try_from(setup::MAX_MESSAGE).unwrap_or(u32::MAX);
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let began = Instant::now();
        door.ioctl(CtlCode::WEFT_EXCHANGE, question.clone().into(), most).await?;
        trips.push(began.elapsed().as_secs_f64() * 1e3);
    }
    trips.sort_by(f64::total_cmp);

    let sink = joined.tree.open(door::MEASURE, OpenOptions::write()).await?;
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
        let buf = written?;
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
        description: joined.tree.describe().to_string(),
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
        log.map_err(|source| Unmeasured::Folder { folder: folder.path().to_owned(), source })?;
    Ok(Measured { log_bytes_per_second, log_ms, ..measured })
}
