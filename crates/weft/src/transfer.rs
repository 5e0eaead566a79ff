//! Copies one file to or from a server: pipelined, verified, resumable.
//!
//! A copy is written under a partial name beside its destination and replaces it when it is complete and verified; a
//! failure, a signal or a lost connection leaves the old file unchanged. The destination keeps its other metadata
//! (`local` for local files, [`RemoteDraft::replace`] on a server). With `--resume` the partial file stays, its name
//! identifies the version of the source, and the next run continues from its end. This file owns the partial file on
//! the server. It does not depend on the protocol or transport.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use weft_machine::{File, Pool};
use weft_rdma::Traffic;

use crate::args::Transfer;
use crate::connect::{Partial, Remote, RemoteDraft, RemoteFile};
use crate::fault::Fault;
use crate::local::{Source, Target};
use crate::partial::{mixed, mixed_text, partial_name};

/// Memory for the payload buffers of a client.
pub(crate) const CLIENT_BUFFERS: usize = 512 << 20;
/// How far writes may run ahead of the first missing block. A partial file may lack this much before its end, so a
/// resumed copy starts that much earlier.
const MAX_AHEAD_BYTES: u64 = 128 << 20;

/// How a copy is done.
#[derive(Clone)]
pub(crate) struct Plan {
    block: u64,
    queue_depth: usize,
    verify: bool,
    resume: bool,
    /// The copy gets the source's time.
    pub(crate) keep_times: bool,
    /// Progress covers many files, so that no single file resets it.
    pub(crate) many: bool,
    stopped: Arc<AtomicBool>,
    /// The traffic when the copy was complete and its verification began.
    pub(crate) copied: Rc<Cell<Option<Traffic>>>,
    /// Whether a failure leaves the destination unchanged.
    spares_target: Rc<Cell<bool>>,
    bar: ProgressBar,
}

impl Plan {
    /// The plan that the command line asks for.
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
            copied: Rc::default(),
            spares_target: Rc::new(Cell::new(true)),
            bar,
        }
    }

    /// Removes the progress bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Whether the user has interrupted the command.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// From now on the progress bar counts this many bytes over many files.
    pub(crate) fn begin_many(&mut self, bytes: u64) {
        self.begin("copying", bytes);
        self.many = true;
    }

    /// From now on the progress bar counts things, not bytes.
    pub(crate) fn begin_count(&self, what: &'static str, things: u64) {
        self.bar.set_style(
            ProgressStyle::with_template("{msg:9} {bar:32} {pos:>10} of {len} {per_sec:>13} {eta:>4} left")
                .expect("the template is a constant that parses"),
        );
        self.bar.reset();
        self.bar.set_length(things);
        self.bar.set_message(what);
    }

    /// Counts one of them.
    pub(crate) fn count_one(&self) {
        self.bar.inc(1);
    }

    fn begin(&self, what: &'static str, size: u64) {
        if !self.many {
            self.bar.reset();
            self.bar.set_length(size);
            self.bar.set_message(what);
        }
    }

    /// Runs `step` for each block from `first` on, `queue_depth` of them at a time; ends at the first failure or
    /// signal. `counts`: whether blocks count as progress over many files.
    async fn each_block<F>(
        &self,
        (first, size): (u64, u64),
        counts: bool,
        step: impl Fn(u64, u32) -> F,
    ) -> Result<(), Fault>
    where
        F: Future<Output = Result<(), Fault>>,
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
                return Err(match (self.resume, self.spares_target.get()) {
                    (_, false) => "interrupted; the destination is incomplete",
                    (true, true) => "interrupted; repeat the command to continue",
                    (false, true) => "interrupted; the partial copy is removed",
                }
                .into());
            }
        }
    }

    /// The offset at which a copy continues, for a partial file of this length.
    fn resume_at(&self, partial: u64, size: u64) -> u64 {
        let safe = partial.min(size).saturating_sub(MAX_AHEAD_BYTES);
        safe / self.block * self.block
    }

    /// The tag in the name of a partial file of `--resume`: another version of the source has another tag.
    fn tag(&self, version: impl IntoIterator<Item = u64>) -> Option<String> {
        self.resume.then(|| format!(".{:08x}", mixed(version)))
    }
}

/// Copies a remote file to `target`; returns its size.
pub(crate) async fn fetch(remote: &Remote, path: &str, target: Target, plan: &Plan) -> Result<u64, Fault> {
    let found = remote.stat(path).await.map_err(Fault::There)?;
    let found = found.ok_or_else(|| Fault::There("no such file or folder".into()))?;
    if found.folder {
        return Err(Fault::There("it is a folder: copy it with -r".into()));
    }
    let source = remote.open(path, false).await.map_err(Fault::There)?;
    let size = source.len().await.map_err(Fault::There)?;
    let local = target.path().to_owned();
    let here = |e: io::Error| Fault::here(&local, &e);
    // Includes the file's identity, because the files of a backup series may have the same name, size and time.
    let file = [remote.origin(), mixed_text(path)].map(u64::from);
    let version = [size, found.modified.secs as u64, u64::from(found.modified.nanos)];
    let tag = plan.tag(file.into_iter().chain(version));
    let draft = target.draft(|name| partial_name(name, tag.as_deref().unwrap_or_default()), plan.resume);
    let draft = draft.map_err(Fault::Here)?;
    // Also if this future is dropped halfway.
    draft.leave(plan.resume);
    plan.spares_target.set(draft.spares_target());
    let first = plan.resume_at(draft.begun().map_err(here)?, size);
    let file = File::from(std::os::fd::OwnedFd::from(draft.file().map_err(here)?));
    plan.begin("copying", size);
    plan.each_block((first, size), true, |offset, len| {
        let (source, file) = (source.clone(), file.clone());
        async move {
            let bytes = source.read(offset, len).await.map_err(Fault::There)?;
            if bytes.len() != len as usize {
                let shorter = format!("the file became shorter while it was copied (at offset {offset})");
                return Err(Fault::There(shorter.into()));
            }
            file.write_at(offset, &[bytes]).await.map_err(here)
        }
    })
    .await?;
    draft.set_len(size).map_err(Fault::Here)?;
    file.sync(true).await.map_err(here)?;
    plan.copied.set(Some(remote.traffic()));
    if plan.verify {
        plan.begin("verifying", size);
        compare(&source, (&file, &local), size, plan)
            .await
            .inspect_err(|e| draft.leave(plan.resume && e.may_resume()))?;
    }
    source.close().await.map_err(Fault::There)?;
    draft.finish(plan.keep_times.then_some(found.modified)).map_err(Fault::Here)?;
    Ok(size)
}

/// Copies a local file to the remote path `target`; returns its size.
pub(crate) async fn store(remote: &Remote, from: Source, target: &str, plan: &Plan) -> Result<u64, Fault> {
    let Source { file: local, shown: from, size, modified, inode, mode } = from;
    // Includes the file's number, because two files may have the same size and time.
    let tag = plan.tag([size, modified.secs as u64, u64::from(modified.nanos), inode]);
    let draft = remote.draft(target, tag.as_deref(), mode).await.map_err(Fault::There)?;
    let (file, sink) = (File::from(std::os::fd::OwnedFd::from(local)), &draft.partial().file);
    let written = async {
        let begun = if plan.resume { sink.len().await.map_err(Fault::There)? } else { 0 };
        if begun > size {
            sink.set_len(size).await.map_err(Fault::There)?;
        }
        let first = plan.resume_at(begun, size);
        fill(remote, sink, (&file, &from), (first, size), plan).await?;
        if plan.keep_times && !sink.set_modified(modified).await.map_err(Fault::There)? {
            note!(
                "weft: {target} cannot keep its time, {modified}: NFSv3 has only times from 1970 to 2106; ?vers=4.1 has others"
            );
        }
        Ok(size)
    };
    let written = written.await;
    take_place(remote, &*draft, written, plan.resume).await
}

/// Replaces the target with a complete partial file; removes an incomplete one unless it is to be resumed. A complete
/// one that cannot replace the target stays, because the server may already have overwritten a part of the target.
pub(crate) async fn take_place(
    remote: &Remote,
    draft: &dyn RemoteDraft,
    written: Result<u64, Fault>,
    resume: bool,
) -> Result<u64, Fault> {
    let Partial { path: partial, target, file, resumable } = draft.partial();
    if let Ok(size) = written {
        let Err(e) = draft.replace().await else { return Ok(size) };
        let left = match remote.stat(partial).await {
            Ok(Some(left)) if left.size == size => format!("the new content is in {partial}"),
            Ok(_) => format!("{partial} does not have the new content"),
            Err(_) => format!("cannot find out whether the new content is in {partial}"),
        };
        return Err(Fault::There(format!("{target} was not replaced completely: {e}; {left}").into()));
    }
    // If the connection failed, the server's partial file stays, under its own name.
    let keeps = resume && *resumable && written.as_ref().err().is_none_or(Fault::may_resume);
    let left = if keeps { file.close().await } else { draft.discard().await };
    if let Err(e) = left {
        tracing::debug!("the partial file {partial} was not removed or closed: {e}");
    }
    written
}

/// Writes the local file to a remote one, from `first` to `size`, and verifies it.
async fn fill(
    remote: &Remote,
    sink: &Rc<dyn RemoteFile>,
    (file, path): (&File, &Path),
    (first, size): (u64, u64),
    plan: &Plan,
) -> Result<(), Fault> {
    plan.begin("copying", size);
    plan.each_block((first, size), true, |offset, len| {
        let (sink, file, pool) = (sink.clone(), file.clone(), remote.pool().clone());
        async move {
            let block = read_block((&file, path), &pool, offset, len).await?;
            sink.write(offset, block).await.map_err(Fault::There)
        }
    })
    .await?;
    sink.flush().await.map_err(Fault::There)?;
    plan.copied.set(Some(remote.traffic()));
    // A restarted server may have lost data that was not durable.
    if plan.verify || sink.is_anew() {
        plan.begin("verifying", size);
        compare(sink, (file, path), size, plan).await?;
    }
    Ok(())
}

/// Reads both files again and compares them.
async fn compare(
    remote: &Rc<dyn RemoteFile>,
    (local, path): (&File, &Path),
    size: u64,
    plan: &Plan,
) -> Result<(), Fault> {
    let pool = Pool::new(CLIENT_BUFFERS);
    plan.each_block((0, size), false, |offset, len| {
        let (remote, local, pool) = (remote.clone(), local.clone(), pool.clone());
        async move {
            let there = remote.read(offset, len).await.map_err(Fault::There)?;
            let here = read_block((&local, path), &pool, offset, len).await?;
            if there == here {
                return Ok(());
            }
            let same = there.iter().zip(here.iter()).take_while(|(a, b)| a == b).count() as u64;
            Err(Fault::Differ(offset + same))
        }
    })
    .await
}

async fn read_block(
    (file, path): (&File, &Path),
    pool: &Pool,
    offset: u64,
    len: u32,
) -> Result<Bytes, Fault> {
    let mut buf = pool.alloc(len as usize).await;
    buf.set_len(len as usize);
    let window = buf.into_window();
    let n = file.read_at(offset, &window).await.map_err(|e| Fault::here(path, &e))?;
    if n != len as usize {
        let path = path.display();
        let shorter = format!("{path}: the file became shorter while it was copied (at offset {offset})");
        return Err(Fault::Here(shorter.into()));
    }
    Ok(window.try_into_buf().expect("nobody else holds this window").freeze())
}

/// Joins a path of a share and a name.
pub(crate) fn join(folder: &str, name: &str) -> String {
    // With exact capacity: millions of paths may be kept.
    if folder.is_empty() { name.to_owned() } else { [folder, "/", name].concat() }
}

#[cfg(test)]
mod tests;
