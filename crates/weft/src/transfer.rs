//! One file there or back: pipelined, verified, resumable.
//!
//! A copy is written under a partial name beside its target and renamed when it is whole and verified; a failure, a
//! signal or a lost connection leaves the old target as it was. With `--resume` the partial file stays then, its name
//! says which version of the source it is of, and the next run goes on from where it ends.
//! Owns: the partial file. Does not: know which protocol or transport carries the bytes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::TryLockError;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use weft_machine::{File, Pool};

use crate::Failure;
use crate::args::Transfer;
use crate::connect::{Remote, RemoteFile};
use crate::when::When;

/// Memory for a client's payload buffers.
pub(crate) const CLIENT_BUFFERS: usize = 512 << 20;
/// How far a block may be written ahead of the first one that is not there yet: what a partial file may lack before its
/// end, hence where a resumed copy goes on.
const MAX_AHEAD_BYTES: u64 = 128 << 20;

/// What ends the name of a copy in progress.
const PARTIAL_SUFFIX: &str = ".weft-partial";
/// The longest name that file systems take, in bytes; in SMB's characters it is no longer.
const MAX_NAME: usize = 255;

/// Set by SIGINT and SIGTERM from now on. The second of them ends the process, whatever that is waiting for.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopped.clone())?;
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    Ok(stopped)
}

/// How copies go about it.
#[derive(Clone)]
pub(crate) struct Plan {
    block: u64,
    queue_depth: usize,
    verify: bool,
    resume: bool,
    /// The target gets the source's time.
    pub(crate) keep_times: bool,
    /// Progress is of many files together: none of them starts it anew.
    pub(crate) many: bool,
    stopped: Arc<AtomicBool>,
    bar: ProgressBar,
}

impl Plan {
    /// As the command line has it.
    pub(crate) fn new(args: &Transfer, stopped: Arc<AtomicBool>) -> Plan {
        let bar = if args.quiet { ProgressBar::hidden() } else { ProgressBar::no_length() };
        bar.set_style(
            ProgressStyle::with_template(
                "{msg:9} {bar:32} {bytes:>10} of {total_bytes} {binary_bytes_per_sec:>13} {eta:>4} left",
            )
            .expect("the template is a constant that parses"),
        );
        Plan {
            block: args.block.max(1),
            queue_depth: args.queue_depth.max(1) as usize,
            verify: !args.no_verify,
            resume: args.resume,
            keep_times: false,
            many: false,
            stopped,
            bar,
        }
    }

    /// Takes the progress bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Whether the user wants to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// From here on progress is towards this many bytes of many files.
    pub(crate) fn begin_many(&mut self, bytes: u64) {
        self.begin("copying", bytes);
        self.many = true;
    }

    fn begin(&self, what: &'static str, size: u64) {
        if !self.many {
            self.bar.reset();
            self.bar.set_length(size);
            self.bar.set_message(what);
        }
    }

    /// Runs `step` for each block from `first` on, `queue_depth` of them at a time; ends at the first failure or a
    /// signal. `counts`: whether they are progress of many files.
    async fn each_block<F>(
        &self,
        (first, size): (u64, u64),
        counts: bool,
        step: impl Fn(u64, u32) -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let next = Cell::new(first);
        let mut outstanding = BTreeSet::new();
        let mut running = FuturesUnordered::new();
        if counts || !self.many {
            self.bar.inc(first);
        }
        loop {
            while running.len() < self.queue_depth && next.get() < size {
                let offset = next.get();
                let oldest = outstanding.first().copied().unwrap_or(offset);
                if offset >= oldest + MAX_AHEAD_BYTES {
                    break;
                }
                let len = self.block.min(size - offset) as u32;
                next.set(offset + u64::from(len));
                outstanding.insert(offset);
                let step = step(offset, len);
                running.push(async move { (offset, step.await.map(|()| len)) });
            }
            let Some((offset, done)) = running.next().await else { return Ok(()) };
            outstanding.remove(&offset);
            let len = done?;
            if counts || !self.many {
                self.bar.inc(u64::from(len));
            }
            if self.is_stopped() {
                return Err(match self.resume {
                    true => "interrupted; the same command goes on from here",
                    false => "interrupted; the partial copy is removed",
                }
                .into());
            }
        }
    }

    /// Where a partial file of this length lets a copy go on.
    fn resume_at(&self, partial: u64, size: u64) -> u64 {
        let safe = partial.min(size).saturating_sub(MAX_AHEAD_BYTES);
        safe / self.block * self.block
    }

    fn partial_name(&self, name: &str, size: u64, modified: When) -> String {
        if !self.resume {
            return partial_name(name, "");
        }
        // Another version of the source is another partial file.
        let hash = mixed([size, modified.secs as u64, u64::from(modified.nanos)]);
        partial_name(name, &format!(".{hash:08x}"))
    }
}

fn mixed(words: impl IntoIterator<Item = u64>) -> u32 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    words.into_iter().fold(0xcbf2_9ce4, mix) as u32
}

/// What a copy of `name` is called until it is whole. A long name is cut, and a hash of all of it keeps it apart from others
/// that begin alike.
pub(crate) fn partial_name(name: &str, tag: &str) -> String {
    let whole = format!(".{name}{tag}{PARTIAL_SUFFIX}");
    if whole.len() <= MAX_NAME {
        return whole;
    }
    let tag = format!("~{:08x}{tag}", mixed(name.bytes().map(u64::from)));
    let mut len = MAX_NAME - 1 - tag.len() - PARTIAL_SUFFIX.len();
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    format!(".{}{tag}{PARTIAL_SUFFIX}", &name[..len])
}

/// Whether a file is a copy in progress, or what an interrupted one has left.
pub(crate) fn is_partial(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(PARTIAL_SUFFIX)
}

/// Copies a remote file to `target`; gives its size.
pub(crate) async fn fetch(remote: &Remote, path: &str, target: &Path, plan: &Plan) -> Result<u64, Failure> {
    let found = remote.stat(path).await?.ok_or("no such file or folder")?;
    if found.folder {
        return Err("it is a folder: copy it with -r".into());
    }
    let source = remote.open(path, false).await?;
    let size = source.len().await?;
    let partial = Partial::local(target, |name| plan.partial_name(name, size, found.modified))?;
    let file = partial.open(plan.resume)?;
    let first = plan.resume_at(file.len()?, size);
    plan.begin("copying", size);
    let copied = async {
        plan.each_block((first, size), true, |offset, len| {
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
        file.set_len(size)?;
        file.sync(true).await?;
        if plan.verify {
            plan.begin("verifying", size);
            compare(&source, &file, size, plan).await?;
        }
        source.close().await
    }
    .await;
    if let Err(failure) = copied {
        partial.leave(plan.resume);
        return Err(failure);
    }
    let modified = plan.keep_times.then_some(found.modified);
    partial.keep(target, modified)?;
    Ok(size)
}

/// Copies a local file to the remote path `target`; gives its size.
pub(crate) async fn store(remote: &Remote, from: &Path, target: &str, plan: &Plan) -> Result<u64, Failure> {
    // Looked at before it is opened: opening a FIFO would wait for somebody to write to it.
    let kind = std::fs::metadata(from).map_err(|e| format!("{}: {e}", from.display()))?;
    if !kind.is_file() {
        let advice =
            if kind.is_dir() { ": copy a folder with -r" } else { "; weft put takes what a pipe says" };
        return Err(format!("{} is not a regular file{advice}", from.display()).into());
    }
    let local = std::fs::File::open(from).map_err(|e| format!("{}: {e}", from.display()))?;
    let kind = local.metadata()?;
    let (size, modified) = (kind.len(), When::from(kind.modified()?));
    let (folder, name) = target.rsplit_once('/').unwrap_or(("", target));
    let partial = join(folder, &plan.partial_name(name, size, modified));
    let file = File::from(std::os::fd::OwnedFd::from(local));
    let outcome = async {
        let existing = if plan.resume { remote.stat(&partial).await? } else { None };
        let first = plan.resume_at(existing.as_ref().map_or(0, |stat| stat.size), size);
        let sink = match first {
            0 => remote.create(&partial).await?,
            _ => remote.open(&partial, true).await?,
        };
        plan.begin("copying", size);
        plan.each_block((first, size), true, |offset, len| {
            let (sink, file, pool) = (sink.clone(), file.clone(), remote.pool().clone());
            async move { sink.write(offset, read_block(&file, &pool, offset, len).await?).await }
        })
        .await?;
        sink.flush().await?;
        // A server that was started again may have lost what it had not made durable.
        if plan.verify || sink.is_anew() {
            plan.begin("verifying", size);
            compare(&sink, &file, size, plan).await?;
        }
        if plan.keep_times {
            sink.set_modified(modified).await?;
        }
        sink.close().await?;
        remote.rename(&partial, target).await
    }
    .await;
    if outcome.is_err() && !plan.resume {
        // The connection may be what failed; then the server's copy of the partial file stays, under its own name.
        if let Err(e) = remote.remove(&partial).await {
            tracing::debug!("the partial file {partial} was not removed: {e}");
        }
    }
    outcome.map(|()| size)
}

/// Reads both again and compares.
async fn compare(remote: &Rc<dyn RemoteFile>, local: &File, size: u64, plan: &Plan) -> Result<(), Failure> {
    let pool = Pool::new(CLIENT_BUFFERS);
    plan.each_block((0, size), false, |offset, len| {
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

/// A local file under its partial name; removed unless it is kept.
struct Partial {
    path: PathBuf,
    kept: Cell<bool>,
}

impl Partial {
    fn local(target: &Path, partial_name: impl FnOnce(&str) -> String) -> Result<Partial, Failure> {
        let name = target.file_name().and_then(|n| n.to_str());
        let name = name.ok_or_else(|| format!("{} does not name a file", target.display()))?;
        Ok(Partial { path: target.with_file_name(partial_name(name)), kept: Cell::new(false) })
    }

    /// Empty, or as an earlier run left it; of this process alone until it is closed. Another copy to the same target would
    /// write into what this one has verified.
    fn open(&self, resume: bool) -> Result<File, Failure> {
        let told = |e: std::io::Error| format!("{}: {e}", self.path.display());
        let mut options = std::fs::File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = loop {
            let file = options.open(&self.path).map_err(told)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    // It is the other's to remove.
                    self.kept.set(true);
                    return Err(
                        format!("another copy to this file is under way ({})", self.path.display()).into()
                    );
                }
                // A file system without locks.
                Err(TryLockError::Error(e)) => {
                    tracing::debug!("{} cannot be locked: {e}", self.path.display())
                }
            }
            // Whoever had the lock may have given the file its name meanwhile.
            let ours = file.metadata().map_err(told)?;
            match std::fs::metadata(&self.path) {
                Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => break file,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(told(e).into()),
            }
        };
        if !resume {
            file.set_len(0).map_err(told)?;
        }
        Ok(File::from(std::os::fd::OwnedFd::from(file)))
    }

    /// After a failure: stays for the next run, if there is to be one.
    fn leave(&self, resume: bool) {
        self.kept.set(resume);
    }

    fn keep(&self, target: &Path, modified: Option<When>) -> Result<(), Failure> {
        if let Some(time) = modified.and_then(When::to_system) {
            let file = std::fs::File::options().write(true).open(&self.path)?;
            file.set_modified(time)?;
        }
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

/// A path of a share.
pub(crate) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_names_are_never_too_long() {
        assert_eq!(partial_name("a", ""), ".a.weft-partial");
        assert_eq!(partial_name("a", ".12345678"), ".a.12345678.weft-partial");
        for name in ["n".repeat(255), "\u{1f600}".repeat(63), format!("x{}", "é".repeat(127))] {
            for tag in ["", ".12345678"] {
                let partial = partial_name(&name, tag);
                assert!(partial.len() <= MAX_NAME && partial.len() > MAX_NAME - 4, "{partial}");
                assert!(is_partial(&partial));
            }
        }
        let names = ["a", "b"].map(|end| partial_name(&format!("{}{end}", "n".repeat(254)), ""));
        assert_ne!(names[0], names[1]);
    }

    #[test]
    fn two_copies_to_one_target_do_not_meet_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let partial = || Partial::local(&target, |name| partial_name(name, "")).unwrap();
        let (first, second) = (partial(), partial());
        let file = first.open(false).unwrap();
        assert!(second.open(false).err().unwrap().to_string().contains("under way"));
        drop(second);
        assert!(first.path.exists(), "it is not the second's to remove");
        first.keep(&target, None).unwrap();
        drop(file);
        // What the first has finished nobody writes to any more.
        let third = partial();
        third.open(false).unwrap();
        assert!(target.exists() && third.path.exists());
    }
}
