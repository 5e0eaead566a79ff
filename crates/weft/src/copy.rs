//! `weft cp`: one file, there or back, pipelined, with progress, verified, nothing half-done left behind.
//!
//! A copy is written under a partial name beside its target and renamed when it is whole and verified; a failure, a
//! signal or a lost connection leaves the old target as it was.
//! Owns: the partial file. Does not: know which protocol or transport carries the bytes.

use std::cell::Cell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use weft_machine::{File, Pool, rt};

use crate::Failure;
use crate::args::Cp;
use crate::connect::{Remote, RemoteFile};
use crate::url::Url;

/// Memory for a client's payload buffers.
pub(crate) const CLIENT_BUFFERS: usize = 512 << 20;

/// Runs the command.
pub(crate) fn run(args: Cp) -> Result<ExitCode, Failure> {
    let direction = match (Url::parse(&args.from)?, Url::parse(&args.to)?) {
        (Some(from), None) => Direction::Down(from, PathBuf::from(&args.to)),
        (None, Some(to)) => Direction::Up(PathBuf::from(&args.from), to),
        (None, None) => {
            return Err("one of the two must be a URL: smb://HOST:PORT/SHARE/PATH or nfs://...".into());
        }
        (Some(_), Some(_)) => return Err("copying from server to server: copy to a local file first".into()),
    };
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    rt::block_on(copy(&args, direction, stopped))??;
    Ok(ExitCode::SUCCESS)
}

enum Direction {
    Up(PathBuf, Url),
    Down(Url, PathBuf),
}

/// How a copy goes about it.
#[derive(Clone)]
struct Plan {
    block: u64,
    queue_depth: usize,
    stopped: Arc<AtomicBool>,
    bar: ProgressBar,
}

async fn copy(args: &Cp, direction: Direction, stopped: Arc<AtomicBool>) -> Result<(), Failure> {
    let pool = Pool::new(CLIENT_BUFFERS);
    let url = match &direction {
        Direction::Up(_, url) | Direction::Down(url, _) => url,
    };
    let remote = Remote::connect(url, &args.connect, &pool).await?;
    if !args.quiet {
        eprintln!("{}", remote.describe());
    }
    let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::no_length() };
    bar.set_style(
        ProgressStyle::with_template(
            "{msg:9} {bar:32} {bytes:>10} of {total_bytes} {binary_bytes_per_sec:>13} {eta:>4} left",
        )
        .expect("the template is a constant that parses"),
    );
    let plan = Plan { block: args.block, queue_depth: args.queue_depth.max(1) as usize, stopped, bar };
    let started = Instant::now();
    let (bytes, name) = match &direction {
        Direction::Down(from, to) => download(&remote, from, to, &plan, !args.no_verify).await?,
        Direction::Up(from, to) => upload(&remote, from, to, &plan, !args.no_verify).await?,
    };
    let seconds = started.elapsed().as_secs_f64();
    plan.bar.finish_and_clear();
    let traffic = remote.traffic();
    let rdma_bytes = traffic.written.0 + traffic.placed.0 + traffic.read.0 + traffic.served.0;
    if args.json {
        let outcome = json!({
            "to": name, "bytes": bytes, "seconds": seconds, "verified": !args.no_verify,
            "transport": remote.transport(), "rdma_bytes": rdma_bytes,
            "connections": remote.connections(), "lost_connections": remote.lost_connections(),
        });
        println!("{outcome}");
    } else if !args.quiet {
        let verified = if args.no_verify { "not verified" } else { "verified" };
        println!(
            "{name}: {bytes} bytes in {seconds:.2} s over {}, {verified}; {rdma_bytes} payload bytes moved by RDMA",
            remote.transport()
        );
        let connections = remote.connections();
        if connections.len() > 1 || remote.lost_connections() > 0 {
            connections.iter().for_each(|connection| println!("  {connection}"));
        }
        match remote.lost_connections() {
            0 => {}
            n => println!("  {n} lost on the way; what they had not answered went by the others"),
        }
    }
    remote.close().await;
    Ok(())
}

async fn download(
    remote: &Remote,
    from: &Url,
    to: &Path,
    plan: &Plan,
    verify: bool,
) -> Result<(u64, String), Failure> {
    let target = if to.is_dir() { to.join(from.file_name()) } else { to.to_owned() };
    let source = remote.open(&from.path, false).await.map_err(|e| format!("{from}: {e}"))?;
    let size = source.len().await?;
    let partial = Partial::local(&target)?;
    let file = partial.create()?;
    plan.begin("copying", size);
    plan.each_block(size, |offset, len| {
        let (source, file) = (source.clone(), file.clone());
        async move {
            let bytes = source.read(offset, len).await?;
            if bytes.len() != len as usize {
                return Err(
                    format!("the file became shorter while it was copied (at offset {offset})").into()
                );
            }
            Ok(file.write_at(offset, &[bytes]).await?)
        }
    })
    .await?;
    file.sync(true).await?;
    if verify {
        plan.begin("verifying", size);
        compare(&source, &file, size, plan).await?;
    }
    source.close().await?;
    partial.keep(&target)?;
    Ok((size, target.display().to_string()))
}

async fn upload(
    remote: &Remote,
    from: &Path,
    to: &Url,
    plan: &Plan,
    verify: bool,
) -> Result<(u64, String), Failure> {
    let local = std::fs::File::open(from).map_err(|e| format!("{}: {e}", from.display()))?;
    let kind = local.metadata()?;
    if !kind.is_file() {
        return Err(format!("{} is not a regular file", from.display()).into());
    }
    let size = kind.len();
    let own_name = from.file_name().and_then(|n| n.to_str()).ok_or("the file's name is not UTF-8")?;
    let into_folder = to.path.is_empty() || to.folder || remote.is_folder(&to.path).await?;
    let target = if into_folder { to.join(own_name) } else { to.clone() };
    let folder = target.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let partial = join(folder, &partial_name(target.file_name()));
    let file = File::from(std::os::fd::OwnedFd::from(local));
    let outcome = async {
        let sink = remote.create(&partial).await.map_err(|e| format!("{target}: {e}"))?;
        plan.begin("copying", size);
        plan.each_block(size, |offset, len| {
            let (sink, file, pool) = (sink.clone(), file.clone(), remote.pool().clone());
            async move { sink.write(offset, read_block(&file, &pool, offset, len).await?).await }
        })
        .await?;
        sink.flush().await?;
        if verify {
            plan.begin("verifying", size);
            compare(&sink, &file, size, plan).await?;
        }
        sink.close().await?;
        remote.rename(&partial, &target.path).await
    }
    .await;
    if outcome.is_err() {
        // The connection may be what failed; then the server's copy of the partial file stays, under its own name.
        if let Err(e) = remote.remove(&partial).await {
            tracing::debug!("the partial file {partial} was not removed: {e}");
        }
    }
    outcome?;
    Ok((size, target.to_string()))
}

/// Reads both again and compares.
async fn compare(remote: &Rc<dyn RemoteFile>, local: &File, size: u64, plan: &Plan) -> Result<(), Failure> {
    let pool = Pool::new(CLIENT_BUFFERS);
    plan.each_block(size, |offset, len| {
        let (remote, local, pool) = (remote.clone(), local.clone(), pool.clone());
        async move {
            let there = remote.read(offset, len).await?;
            let here = read_block(&local, &pool, offset, len).await?;
            if there == here {
                return Ok(());
            }
            let same = there.iter().zip(here.iter()).take_while(|(a, b)| a == b).count() as u64;
            Err(format!("verification failed: the copies differ at offset {}", offset + same).into())
        }
    })
    .await
}

async fn read_block(file: &File, pool: &Pool, offset: u64, len: u32) -> Result<Bytes, Failure> {
    let mut buf = pool.alloc(len as usize).await;
    buf.set_len(len as usize);
    let window = buf.into_window();
    let n = file.read_at(offset, &window).await?;
    if n != len as usize {
        return Err(format!("the local file became shorter while it was copied (at offset {offset})").into());
    }
    Ok(window.try_into_buf().expect("nobody else holds this window").freeze())
}

impl Plan {
    fn begin(&self, what: &'static str, size: u64) {
        self.bar.reset();
        self.bar.set_length(size);
        self.bar.set_message(what);
    }

    /// Runs `step` for each block, `queue_depth` of them at a time; ends at the first failure or a signal.
    async fn each_block<F>(&self, size: u64, step: impl Fn(u64, u32) -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let next = Cell::new(0u64);
        let start = || {
            let offset = next.get();
            (offset < size).then(|| {
                let len = self.block.min(size - offset) as u32;
                next.set(offset + u64::from(len));
                let running = step(offset, len);
                async move { running.await.map(|()| len) }
            })
        };
        let mut running: FuturesUnordered<_> = (0..self.queue_depth).map_while(|_| start()).collect();
        while let Some(done) = running.next().await {
            self.bar.inc(u64::from(done?));
            if self.stopped.load(Ordering::Relaxed) {
                return Err("interrupted; the partial copy is removed".into());
            }
            running.extend(start());
        }
        Ok(())
    }
}

/// A local file under its partial name; removed unless it is kept.
struct Partial {
    path: PathBuf,
    kept: Cell<bool>,
}

impl Partial {
    fn local(target: &Path) -> Result<Partial, Failure> {
        let name = target.file_name().and_then(|n| n.to_str());
        let name = name.ok_or_else(|| format!("{} does not name a file", target.display()))?;
        Ok(Partial { path: target.with_file_name(partial_name(name)), kept: Cell::new(false) })
    }

    fn create(&self) -> Result<File, Failure> {
        let file =
            std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&self.path);
        let file = file.map_err(|e| format!("{}: {e}", self.path.display()))?;
        Ok(File::from(std::os::fd::OwnedFd::from(file)))
    }

    fn keep(&self, target: &Path) -> Result<(), Failure> {
        std::fs::rename(&self.path, target).map_err(|e| format!("{}: {e}", target.display()))?;
        self.kept.set(true);
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept.get()
            && let Err(e) = std::fs::remove_file(&self.path)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("{} was not removed: {e}", self.path.display());
        }
    }
}

fn partial_name(name: &str) -> String {
    format!(".{name}.weft-partial")
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}
