//! An open regular file: reads, writes, and what else is done to its bytes.
//!
//! Owns: a share of the descriptor. Does not: decide who may (see [`crate::opens`]).
//! Buffers: a read is a range that the transport fetches late; a write takes slices of what it received.
//! Cost: a write tells watches of directories that something changed; while there are none, that is one atomic load.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::lock::MutexGuard as Alone;
use weft_machine::file::busy;
use weft_machine::{File, FileRange, Payload, Pool};

use super::flushes::{Failures, Flushes};
use super::sink::{Put, Sink};
use super::stream::{Content, Stream};
use super::watch::{What, Witness};
use super::{Error, NodeId};
use crate::health::{Health, Takes};

/// An open regular file: reads are ranges that the transport fetches late, writes are chains.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// Which node.
    pub node: NodeId,
    file: File,
    read_only: bool,
    /// Bound on the file's size set by a ram share's limit; `None` elsewhere.
    quota: Option<Arc<dyn Quota>>,
    /// Whom to tell of writes.
    witness: Option<Witness>,
    /// The stream whose bytes these are. They lie where its content says, which may be another file than a moment ago.
    stream: Option<(Arc<Stream>, Arc<Content>)>,
    /// Takes changes in the file's place.
    sink: Option<Arc<dyn Sink>>,
    /// Who hears what becomes of changes.
    health: Option<Arc<Health>>,
    /// Its flushes, and where those that fail are counted; `None` in memory and below a stream.
    flushes: Option<(Arc<Flushes>, Failures)>,
    /// Whether changes other than writes are durable when they are answered: no later flush is asked for.
    settles: bool,
}

/// What a file takes of its disk; `None` where nobody asks.
#[derive(Clone, Copy)]
struct Footprint(Option<u64>);

/// Why nothing was appended.
enum Refused<E> {
    Store(E),
    Io(io::Error),
}

impl<E> From<io::Error> for Refused<E> {
    fn from(e: io::Error) -> Refused<E> {
        Refused::Io(e)
    }
}

/// Decides whether a write may grow a file (the size limit of a ram share).
pub trait Quota: std::fmt::Debug + Send + Sync {
    /// Called before bytes up to `end` are written to a file of size `len`; `NoSpace` where there is no room, `TooLarge` where no file
    /// ends that far out.
    fn grow(&self, len: u64, end: u64) -> Result<(), Error>;
}

impl OpenFile {
    /// Wraps a descriptor.
    pub fn new(node: NodeId, file: File, quota: Option<Arc<dyn Quota>>) -> OpenFile {
        OpenFile {
            node,
            file,
            read_only: false,
            quota,
            witness: None,
            stream: None,
            sink: None,
            health: None,
            flushes: None,
            settles: false,
        }
    }

    /// The same, with every change going to `sink`: what can be read of it is in the file when the sink says that it has
    /// it. The size is fixed, and copies from elsewhere are not taken.
    pub fn through(self, sink: Arc<dyn Sink>) -> OpenFile {
        OpenFile { sink: Some(sink), ..self }
    }

    /// The same, refusing writes.
    pub fn read_only(self) -> OpenFile {
        OpenFile { read_only: true, ..self }
    }

    /// The bytes of a stream.
    pub(super) fn of_stream(stream: Arc<Stream>, content: Arc<Content>) -> OpenFile {
        let file = OpenFile::new(stream.id, content.file().clone(), None);
        OpenFile { stream: Some((stream, content)), ..file }
    }

    /// Where its bytes are.
    pub(super) fn file(&self) -> &File {
        match &self.stream {
            None => &self.file,
            Some((_, content)) => content.file(),
        }
    }

    /// Who has a say in its growth.
    pub(super) fn quota(&self) -> Option<&Arc<dyn Quota>> {
        match &self.stream {
            None => self.quota.as_ref(),
            Some((_, content)) => content.quota(),
        }
    }

    /// Whether it refuses writes.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The same, telling `witness` of every change.
    pub(super) fn witnessed(self, witness: Witness) -> OpenFile {
        OpenFile { witness: Some(witness), ..self }
    }

    /// The same, with `health` hearing of what the disk refuses.
    pub(crate) fn heard_by(self, health: Option<Arc<Health>>) -> OpenFile {
        OpenFile { health, ..self }
    }

    /// The same, with every flush that fails counted.
    pub(super) fn counted_by(self, failures: &Failures) -> OpenFile {
        let counts = !self.file.is_in_memory() || self.sink.is_some() || self.stream.is_some();
        let flushes = counts.then(|| (Arc::new(Flushes::new(failures.clone())), failures.clone()));
        OpenFile { flushes, ..self }
    }

    /// The same, with changes other than writes durable when they are answered.
    pub(super) fn settling(self, settles: bool) -> OpenFile {
        OpenFile { settles, ..self }
    }

    async fn settle(&self) -> Result<(), Error> {
        if self.settles { self.sync().await } else { Ok(()) }
    }

    /// Passes on what became of a change. A stream may lie where the disk has little space for it, and a sink is no disk.
    fn heard<T>(&self, before: Footprint, done: Result<T, Error>) -> Result<T, Error> {
        if let Some(health) = self.health.as_ref().filter(|_| self.is_plain()) {
            let path = || {
                let number = rustix::fd::AsRawFd::as_raw_fd(&rustix::fd::AsFd::as_fd(&self.file));
                std::fs::read_link(format!("/proc/self/fd/{number}")).ok()
            };
            let grown = || before.0.zip(self.footprint().0).is_some_and(|(before, now)| now > before);
            let takes = if done.is_err() || grown() { Takes::Space } else { Takes::Nothing };
            health.heard(&done, takes, || if self.file.is_in_memory() { None } else { path() });
        }
        done
    }

    /// What it takes of the disk now. Looked at only while something is wrong: then it matters whether a change takes space.
    fn footprint(&self) -> Footprint {
        let is_asked = self.health.as_ref().is_some_and(|health| health.is_ill()) && self.is_plain();
        if !is_asked {
            return Footprint(None);
        }
        // A quota of ours counts sizes.
        Footprint(match self.quota() {
            Some(_) => self.file.len().ok(),
            None => self.file.links_and_allocated().ok().map(|(_, allocated)| allocated),
        })
    }

    /// The bytes of `[offset, offset + len)` that exist, unread as yet; empty at or past the end.
    pub fn read(&self, offset: u64, len: usize) -> Result<Payload, Error> {
        self.read_within(self.len()?, offset, len)
    }

    /// The same for a caller that has just learned the file's size, and so saves asking for it.
    pub fn read_within(&self, size: u64, offset: u64, len: usize) -> Result<Payload, Error> {
        if let Some(sink) = &self.sink {
            sink.readable()?;
        }
        let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
        Ok(Payload::File(FileRange { file: self.file().clone(), offset, len }))
    }

    /// Counts a short read that nothing is done to on its way. Whether it is better sent from where the file is mapped.
    pub fn is_mapped(&self) -> bool {
        self.file().is_mapped()
    }

    /// The bytes of `[offset, offset + len)` that exist, read into a buffer now: one system call, where a range costs
    /// two (one for the size). `None`: the page cache does not hold them all, or the pool is empty; take a range.
    pub fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        // Behind a sink the file may be longer than what there is to read.
        if self.sink.is_some() {
            return None;
        }
        let mut buf = pool.try_alloc(len)?;
        buf.set_len(len);
        let window = buf.into_window();
        // What fails here fails again, with its reason, when the range is read.
        let read = self.file().try_read_at(offset, &window)?.ok()?;
        let mut buf = window.try_into_buf().ok()?;
        buf.set_len(read);
        Some(Payload::from(buf.freeze()))
    }

    /// Writes all of `chain` at `offset`.
    pub async fn write(&self, offset: u64, chain: &[Bytes]) -> Result<(), Error> {
        let before = self.footprint();
        self.heard(before, self.write_all(offset, chain).await)
    }

    async fn write_all(&self, offset: u64, chain: &[Bytes]) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::Access);
        }
        let bytes = || chain.iter().map(Bytes::len).sum::<usize>() as u64;
        let _alone = self.begin(offset, bytes).await?;
        if self.quota().is_some() {
            self.may_grow(offset, bytes())?;
        }
        match &self.sink {
            None => self.file().write_at(offset, chain).await?,
            Some(sink) => sink.write(offset, chain.to_vec()).await?,
        }
        self.changed(What::SIZE | What::WRITTEN).await
    }

    /// Writes all of `bytes` behind the last byte, wherever others who append have put that by then: what two append at the same
    /// time never lies in one place. `admit` hears the offset before anything is written, and may refuse it.
    pub async fn append<E: From<Error>>(
        &self,
        bytes: &Bytes,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.read_only {
            return Err(Error::Access.into());
        }
        // A sink has a fixed size: there is nothing behind its last byte.
        self.require_file()?;
        let len = bytes.len() as u64;
        let _alone = match &self.stream {
            // Where it ends is known when nobody else can change it; a large one is a file.
            Some(_) => self.begin(self.len()?, || len).await?,
            None => self.begin(0, || 0).await?,
        };
        let before = self.footprint();
        let _unlocked = busy::shared_of(self.file()).await.map_err(Error::from)?;
        let appended = self.file().append(bytes, |end| {
            self.require_write(end, len).map_err(|e| Refused::Store(e.into()))?;
            if let Some(quota) = self.quota() {
                let grown = self.heard(before, quota.grow(end, end.saturating_add(len)));
                grown.map_err(|e| Refused::Store(e.into()))?;
            }
            admit(end).map_err(Refused::Store)
        });
        match appended.await {
            Ok(()) => Ok(self.heard(before, self.changed(What::SIZE | What::WRITTEN).await)?),
            Err(Refused::Store(e)) => Err(e),
            Err(Refused::Io(e)) => Ok(self.heard(before, Err(Error::from(e)))?),
        }
    }

    /// Lets `put` bring the `len` bytes of one write to where they are to lie. False where that is not in memory, or `put`
    /// cannot: then they are to come by [`OpenFile::write`], and what lies there until then is not said.
    pub async fn place(&self, offset: u64, len: u64, put: Put<'_>) -> Result<bool, Error> {
        if self.read_only {
            return Err(Error::Access);
        }
        let placed = match &self.sink {
            // What a stream in memory is written with goes to its file as well, or moves it.
            None if !self.file.is_in_memory() || self.stream.is_some() => false,
            None => {
                let before = self.footprint();
                if self.quota.is_some() {
                    self.heard(before, self.may_grow(offset, len))?;
                }
                self.mark();
                let _unlocked = busy::shared_of(&self.file).await?;
                let placed = put(&self.file, offset).transpose()?.is_some();
                self.heard(before, Ok(placed))?
            }
            Some(sink) => sink.place(offset, len, put).await?,
        };
        if placed {
            self.changed(What::SIZE | What::WRITTEN).await?;
        }
        Ok(placed)
    }

    /// Puts a message to what is behind the file, where there is something; its answer has at most `max` bytes.
    /// [`Error::NotSupported`] for a file that is just that.
    pub async fn exchange(&self, message: Bytes, max: usize) -> Result<Bytes, Error> {
        if self.read_only {
            return Err(Error::Access);
        }
        self.sink.as_ref().ok_or(Error::NotSupported)?.exchange(message, max).await
    }

    /// What takes changes has no say in what becomes of the size.
    fn require_file(&self) -> Result<(), Error> {
        if self.sink.is_some() { Err(Error::NotSupported) } else { Ok(()) }
    }

    fn may_grow(&self, offset: u64, len: u64) -> Result<(), Error> {
        let end = offset.checked_add(len).ok_or(Error::Invalid)?;
        match self.quota() {
            Some(quota) => quota.grow(self.file().len()?, end),
            None => Ok(()),
        }
    }

    /// Before every change: who sees it on the disk shall know that it is ours.
    fn mark(&self) {
        if let Some(witness) = self.witness.as_ref().filter(|witness| witness.watches.own().is_observed()) {
            witness.watches.own().content(self.node, Instant::now());
        }
    }

    /// Before every change of `len` bytes from `offset` on. Whoever changes a small stream has it to himself until what is answered is
    /// dropped, after [`OpenFile::changed`].
    async fn begin(&self, offset: u64, len: impl FnOnce() -> u64) -> Result<Option<Alone<'_, ()>>, Error> {
        self.mark();
        match &self.stream {
            None => Ok(None),
            Some((stream, content)) => {
                Box::pin(stream.begin(content, offset.checked_add(len()).ok_or(Error::Invalid)?)).await
            }
        }
    }

    async fn changed(&self, what: What) -> Result<(), Error> {
        if let Some((flushes, _)) = &self.flushes {
            flushes.wrote();
        }
        if let Some((stream, content)) = &self.stream {
            Box::pin(stream.save(content)).await?;
        }
        if let Some(witness) = self.witness.as_ref().filter(|witness| witness.is_watched()) {
            match &self.stream {
                Some((stream, _)) => witness.stream(stream, What::STREAM_WRITTEN | What::STREAM_SIZE).await,
                None => witness.modified(self.node, what).await,
            }
        }
        Ok(())
    }

    fn require_write(&self, offset: u64, len: u64) -> Result<(), Error> {
        let end = offset.checked_add(len).ok_or(Error::Invalid)?;
        if self.read_only {
            return Err(Error::Access);
        }
        if i64::try_from(end).is_err() { Err(Error::Invalid) } else { Ok(()) }
    }

    /// Sets space aside for `[offset, offset + len)`; the file grows to its end unless `keep_size`. Anybody may ask for more than
    /// a disk has, so a refusal says nothing of its health.
    pub async fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> Result<(), Error> {
        self.require_write(offset, len)?;
        self.require_file()?;
        let alone = self.begin(offset, || len).await?;
        self.may_grow(offset, len)?;
        self.file().allocate(offset, len, keep_size).await?;
        self.changed(What::SIZE).await?;
        drop(alone);
        self.settle().await
    }

    /// Gives the space of a range back; it reads as zeros. The size stays. [`Error::NotSupported`] where the file
    /// system has no holes.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.require_write(offset, len)?;
        let alone = self.begin(0, || 0).await?;
        match &self.sink {
            None => self.file().punch_hole(offset, len).await?,
            Some(sink) => sink.zero(offset, len, false).await?,
        }
        self.changed(What::WRITTEN).await?;
        drop(alone);
        self.settle().await
    }

    /// Makes a range read as zeros; it keeps its space where the file system can do that. The size stays.
    pub async fn zero_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.require_write(offset, len)?;
        let alone = self.begin(0, || 0).await?;
        match &self.sink {
            None => self.file().zero_range(offset, len).await?,
            Some(sink) => sink.zero(offset, len, true).await?,
        }
        self.changed(What::WRITTEN).await?;
        drop(alone);
        self.settle().await
    }

    /// Ranges of `[offset, offset + len)` that hold data, in order and at most `max`, and whether that is all of them.
    /// Everything between is a hole. What lies past the end of the file is neither.
    pub async fn data_ranges(
        &self,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<(Vec<Range<u64>>, bool), Error> {
        Ok(self.file().data_ranges(offset, len, max).await?)
    }

    /// Copies at most `len` bytes of `source` from `from` to `at` here; fewer only where the source ends. The kernel
    /// copies, or shares blocks, where it can. Ranges of one file may overlap.
    pub async fn copy_from(&self, at: u64, source: &OpenFile, from: u64, len: u64) -> Result<u64, Error> {
        let len = source.len()?.saturating_sub(from).min(len);
        self.require_write(at, len)?;
        self.require_file()?;
        let _alone = self.begin(at, || len).await?;
        self.may_grow(at, len)?;
        let before = self.footprint();
        let copied = self.file().copy_from(at, source.file(), from, len).await;
        let copied = self.heard(before, copied.map_err(Error::from))?;
        self.changed(What::SIZE | What::WRITTEN).await?;
        Ok(copied)
    }

    /// Makes `[at, at + len)` share the blocks of `source` from `from` on. [`Error::NotSupported`] where the file
    /// system cannot (only some can: XFS, Btrfs, bcachefs), [`Error::Invalid`] where its blocks do not align.
    pub async fn clone_range(&self, at: u64, source: &OpenFile, from: u64, len: u64) -> Result<(), Error> {
        self.require_write(at, len)?;
        self.require_file()?;
        let alone = self.begin(at, || len).await?;
        self.file().clone_range(at, source.file(), from, len).await?;
        self.changed(What::SIZE | What::WRITTEN).await?;
        drop(alone);
        self.settle().await
    }

    /// Makes what was written durable.
    pub async fn sync(&self) -> Result<(), Error> {
        match (&self.sink, &self.stream, &self.flushes) {
            (Some(sink), ..) => self.counted(sink.sync()).await,
            (None, Some((stream, content)), _) => self.counted(stream.sync(content)).await,
            (None, None, Some((flushes, _))) => {
                self.heard(Footprint(None), flushes.flush(&self.file).await.map_err(Error::from))
            }
            (None, None, None) => {
                self.heard(Footprint(None), self.file.sync(false).await.map_err(Error::from))
            }
        }
    }

    /// A flush that is no single call of the kernel.
    async fn counted(&self, flush: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let Some((flushes, failures)) = &self.flushes else { return flush.await };
        let written = flushes.written();
        let done = flush.await;
        match &done {
            Ok(()) => flushes.flushed(written),
            Err(_) => failures.add(),
        }
        done
    }

    /// Whether something was written by this descriptor that it has not made durable since.
    pub fn is_unflushed(&self) -> bool {
        self.flushes.as_ref().is_some_and(|(flushes, _)| flushes.is_due())
    }

    /// Whether it is just a file: no stream of one, and nothing else takes its changes.
    pub fn is_plain(&self) -> bool {
        self.stream.is_none() && self.sink.is_none()
    }

    /// Whether it is a file of the host that has no name any more.
    pub fn is_unlinked(&self) -> bool {
        let of_host = self.sink.is_none() && !self.file().is_in_memory();
        of_host && self.file().links_and_allocated().is_ok_and(|(links, _)| links == 0)
    }

    /// Size now.
    pub fn len(&self) -> Result<u64, Error> {
        match &self.sink {
            None => Ok(self.file().len()?),
            Some(sink) => Ok(sink.len()),
        }
    }

    /// Whether it is empty now.
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }
}
