//! `weft cp`: a file or a whole folder, there or back, pipelined, with progress, verified, nothing half-done left behind.
//!
//! Owns: nothing; [`crate::transfer`] copies, [`crate::sync`] walks folders. Does not: know which protocol or transport
//! carries the bytes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde_json::json;
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::{Cp, Sync};
use crate::connect::Remote;
use crate::sync;
use crate::transfer::{CLIENT_BUFFERS, Plan, fetch, stop_on_signals, store};
use crate::url::Url;

/// Runs the command.
pub(crate) fn run(args: Cp) -> Result<ExitCode, Failure> {
    let direction = Direction::of(&args.from, &args.to)?;
    if args.recursive {
        let to = sync::Into::FolderOfThatName;
        let args = Sync {
            from: args.from,
            to: args.to,
            delete: false,
            dry_run: false,
            transfer: args.transfer,
            files: args.files,
        };
        return sync::run_as(args, sync::Which::All, to);
    }
    let stopped = stop_on_signals()?;
    rt::block_on(copy(&args, direction, stopped))??;
    Ok(ExitCode::SUCCESS)
}

/// Which end is the server's.
pub(crate) enum Direction {
    /// To the server.
    Up(PathBuf, Url),
    /// From it.
    Down(Url, PathBuf),
}

impl Direction {
    /// One of the two must be a URL, and only one.
    pub(crate) fn of(from: &str, to: &str) -> Result<Direction, Failure> {
        match (Url::parse(from)?, Url::parse(to)?) {
            (Some(from), None) => Ok(Direction::Down(from, PathBuf::from(to))),
            (None, Some(to)) => Ok(Direction::Up(PathBuf::from(from), to)),
            (None, None) => {
                Err("one of the two must be a URL: smb://HOST:PORT/SHARE/PATH or nfs://...".into())
            }
            (Some(_), Some(_)) => Err("copying from server to server: copy to a local file first".into()),
        }
    }

    /// The server's end.
    pub(crate) fn url(&self) -> &Url {
        match self {
            Direction::Up(_, url) | Direction::Down(url, _) => url,
        }
    }
}

async fn copy(args: &Cp, direction: Direction, stopped: Arc<AtomicBool>) -> Result<(), Failure> {
    let remote = Remote::connect(direction.url(), &args.transfer.connect, &Pool::new(CLIENT_BUFFERS)).await?;
    remote.outlast(args.transfer.patience(), stopped.clone());
    if !args.transfer.quiet {
        note!("{}", remote.describe());
    }
    let plan = Plan::new(&args.transfer, stopped);
    let started = Instant::now();
    let (bytes, name) = match &direction {
        Direction::Down(from, to) => {
            let target = if to.is_dir() { to.join(from.file_name()) } else { to.clone() };
            let bytes =
                fetch(&remote, &from.path, &target, &plan).await.map_err(|e| format!("{from}: {e}"))?;
            (bytes, target.display().to_string())
        }
        Direction::Up(from, to) => {
            let into_folder = to.path.is_empty() || to.folder || remote.is_folder(&to.path).await?;
            let target = if into_folder { to.join(name_of(from)?) } else { to.clone() };
            let bytes =
                store(&remote, from, &target.path, &plan).await.map_err(|e| format!("{target}: {e}"))?;
            (bytes, target.to_string())
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    plan.finish();
    let traffic = remote.traffic();
    let rdma_bytes = traffic.written.0 + traffic.placed.0 + traffic.read.0 + traffic.served.0;
    let verified = !args.transfer.no_verify;
    if args.transfer.json {
        let outcome = json!({
            "to": name, "bytes": bytes, "seconds": seconds, "verified": verified,
            "transport": remote.transport(), "rdma_bytes": rdma_bytes,
            "connections": remote.connections(), "lost_connections": remote.lost_connections(),
            "reconnected": remote.losses(),
        });
        say!("{outcome}")?;
    } else if !args.transfer.quiet {
        let verified = if verified { "verified" } else { "not verified" };
        say!(
            "{name}: {bytes} bytes in {seconds:.2} s over {}, {verified}; {rdma_bytes} payload bytes moved by RDMA",
            remote.transport()
        )?;
        let connections = remote.connections();
        if connections.len() > 1 || remote.lost_connections() > 0 {
            for connection in &connections {
                say!("  {connection}")?;
            }
        }
        match remote.lost_connections() {
            0 => {}
            n => say!("  {n} lost on the way; what they had not answered went by the others")?,
        }
        if remote.losses() > 0 {
            say!("  connected again {} times, and went on where it was", remote.losses())?;
        }
    }
    remote.close().await;
    Ok(())
}

/// The last component of a local path.
pub(crate) fn name_of(path: &Path) -> Result<&str, Failure> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| format!("{}: the name is not UTF-8, or there is none", path.display()).into())
}
