//! An open regular file: a typed call for each operation of its object. The object carries them out (see
//! [`super::object`]), and [`crate::opens`] decides about access.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use weft_machine::{DataRanges, File, Payload, PayloadSource, Pool};

use super::flushes::Failures;
use super::object::{
    Counted, Done, Heard, Limited, Object, ObjectOp, Plain, Quota, ReadOnly, Settling, Submission,
};
use super::{Error, NodeId};
use crate::health::Health;

/// An open regular file: reads are ranges that the transport fetches late, writes are chains.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The node.
    pub node: NodeId,
    object: Arc<dyn Object>,
}

/// The typed answer, or a future for it.
macro_rules! answer {
    ($submission:expr, $answer:pat => $value:expr) => {
        match $submission.await? {
            $answer => Ok($value),
            other => unreachable!("the object answered {other:?}"),
        }
    };
}

/// A read in progress.
pub enum Read<'a> {
    /// The bytes, possibly a range that has not been read yet.
    Now(Result<Payload, Error>),
    /// The read must wait.
    Later(Submission<'a>),
}

impl Read<'_> {
    /// Waits for the bytes.
    pub async fn data(self) -> Result<Payload, Error> {
        match self {
            Read::Now(data) => data,
            Read::Later(waits) => answer!(waits, Done::Data(data) => data),
        }
    }
}

impl OpenFile {
    /// A node whose open object is `object`.
    pub fn new(node: NodeId, object: Arc<dyn Object>) -> OpenFile {
        OpenFile { node, object }
    }

    /// A file of the host, or one in memory.
    pub fn of_file(node: NodeId, file: File) -> OpenFile {
        OpenFile::new(node, Arc::new(Plain(file)))
    }

    /// The same, refusing changes.
    pub fn read_only(self) -> OpenFile {
        self.wrapped(|object| Arc::new(ReadOnly(object)))
    }

    /// The same, growing only as `quota` allows.
    pub fn limited(self, quota: Arc<dyn Quota>) -> OpenFile {
        self.wrapped(|object| Arc::new(Limited::new(object, quota)))
    }

    /// The same with a wrapper around its object.
    pub fn wrapped(self, wrap: impl FnOnce(Arc<dyn Object>) -> Arc<dyn Object>) -> OpenFile {
        OpenFile { node: self.node, object: wrap(self.object) }
    }

    /// The same, recording disk errors in `health`.
    pub(crate) fn heard_by(self, health: Option<Arc<Health>>) -> OpenFile {
        match health {
            Some(health) => self.wrapped(|object| Arc::new(Heard::new(object, health))),
            None => self,
        }
    }

    /// The same, counting every failed flush. Files in memory have none.
    pub(super) fn counted_by(self, failures: &Failures) -> OpenFile {
        if self.object.plain().is_some_and(File::is_in_memory) {
            return self;
        }
        self.wrapped(|object| Arc::new(Counted::new(object, failures)))
    }

    /// The same, with changes other than writes durable when they are answered.
    pub(super) fn settling(self, settles: bool) -> OpenFile {
        if settles { self.wrapped(|object| Arc::new(Settling(object))) } else { self }
    }

    /// Its object.
    pub fn object(&self) -> &dyn Object {
        &*self.object
    }

    /// The existing bytes of `[offset, offset + len)`, as a range to be read later; empty at or past the end.
    pub fn read(&self, offset: u64, len: usize) -> Read<'_> {
        self.submit_read(offset, len, None)
    }

    /// The same for a caller that already knows the file's size, which saves a system call.
    pub async fn read_within(&self, size: u64, offset: u64, len: usize) -> Result<Payload, Error> {
        self.read_known(size, offset, len).data().await
    }

    /// The same, without waiting.
    pub fn read_known(&self, size: u64, offset: u64, len: usize) -> Read<'_> {
        self.submit_read(offset, len, Some(size))
    }

    fn submit_read(&self, offset: u64, len: usize, size: Option<u64>) -> Read<'_> {
        match self.object.submit(ObjectOp::Read { offset, len, size }) {
            Submission::Now(Ok(Done::Data(data))) => Read::Now(Ok(data)),
            Submission::Now(Err(e)) => Read::Now(Err(e)),
            waits => Read::Later(waits),
        }
    }

    /// Counts a short read whose bytes are sent unchanged. Returns whether it should be sent from a mapping of the
    /// file.
    pub fn is_mapped(&self) -> bool {
        self.object.content().is_some_and(File::is_mapped)
    }

    /// The existing bytes of `[offset, offset + len)`, read into a buffer now. `None`: they are not all in memory, or
    /// the pool is empty; use a range.
    pub fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        self.object.read_now(pool, offset, len)
    }

    /// Writes all of `chain` at `offset`.
    pub async fn write(&self, offset: u64, chain: &[Bytes]) -> Result<(), Error> {
        let source = PayloadSource::Memory(chain);
        offset.checked_add(source.len()).ok_or(Error::Invalid)?;
        if let Some(written) = self.write_now(offset, chain) {
            return written;
        }
        answer!(self.object.submit(ObjectOp::Write { offset, source }), Done::Done => ())
    }

    /// The same, if it need not wait. `None`: nothing was written.
    pub fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        self.object.write_now(offset, chain)
    }

    /// Writes all of `source` at `offset`. If the file lies in memory and the source reaches it, the source fills it. Otherwise
    /// the bytes are fetched first, and `admit` then checks again what may have changed meanwhile (locks, opens). A file that
    /// `admit` has opened for that is written instead of this one, and returned.
    pub async fn write_from<E: From<Error>>(
        &self,
        offset: u64,
        source: PayloadSource<'_>,
        admit: impl AsyncFnOnce() -> Result<Option<OpenFile>, E>,
    ) -> Result<Option<OpenFile>, E> {
        let (payload, len) = match source {
            PayloadSource::Memory(chain) => return Ok(self.write(offset, chain).await.map(|()| None)?),
            PayloadSource::Remote { payload, len } => (payload, len),
        };
        require_range(offset, source.len())?;
        match self.object.submit(ObjectOp::Write { offset, source }).await? {
            Done::NeedsMemory => {}
            Done::Done => return Ok(None),
            other => unreachable!("the object answered {other:?}"),
        }
        let mut bytes = payload.fetch().await.map_err(Error::Payload)?;
        if bytes.len() < len {
            return Err(Error::Invalid.into());
        }
        bytes.truncate(len);
        let again = admit().await?;
        again.as_ref().unwrap_or(self).write(offset, &[bytes]).await?;
        Ok(again)
    }

    /// Appends all of `bytes`, after concurrent appends: two appends never overlap. `admit` gets the offset before
    /// anything is written, and may refuse it.
    pub async fn append<E: From<Error>>(
        &self,
        bytes: &Bytes,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut refused = None;
        let appended = {
            let admit = Box::new(|at: u64| {
                require_range(at, bytes.len() as u64)?;
                admit(at).map_err(|e| {
                    refused = Some(e);
                    Error::Access
                })
            });
            self.object.submit(ObjectOp::Append { bytes, admit }).await
        };
        match refused {
            Some(e) => Err(e),
            None => Ok(appended.map(drop)?),
        }
    }

    /// Sends a message to whatever implements the file; its answer has at most `max` bytes. [`Error::NotSupported`]
    /// for an ordinary file.
    pub async fn exchange(&self, message: Bytes, max: usize) -> Result<Bytes, Error> {
        answer!(self.object.submit(ObjectOp::Exchange { message, max }), Done::Answer(answer) => answer)
    }

    /// Reserves space for `[offset, offset + len)`; the file grows to its end unless `keep_size`.
    pub async fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> Result<(), Error> {
        self.change(offset, len, ObjectOp::Allocate { offset, len, keep_size }).await
    }

    /// Releases the space of a range, which then reads as zeros. The size stays. [`Error::NotSupported`] if the file
    /// system has no holes.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.change(offset, len, ObjectOp::Zero { offset, len, keep_space: false }).await
    }

    /// Makes a range read as zeros; it keeps its space if the file system supports that. The size stays.
    pub async fn zero_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.change(offset, len, ObjectOp::Zero { offset, len, keep_space: true }).await
    }

    async fn change<'a>(&'a self, offset: u64, len: u64, op: ObjectOp<'a>) -> Result<(), Error> {
        self.require_write(offset, len)?;
        self.object.submit(op).await.map(drop)
    }

    /// Refuses a caller without write access first.
    fn require_write(&self, offset: u64, len: u64) -> Result<(), Error> {
        if self.object.is_read_only() { Err(Error::Access) } else { require_range(offset, len) }
    }

    /// Ranges of `[offset, offset + len)` that hold data, at most `max`. Everything between is a hole. Nothing past the end of the file counts as either.
    pub async fn data_ranges(&self, offset: u64, len: u64, max: usize) -> Result<DataRanges, Error> {
        let extents = ObjectOp::Extents { offset, len, max };
        answer!(self.object.submit(extents), Done::Extents(ranges) => ranges)
    }

    /// Copies at most `len` bytes of `source` from offset `from` to `at` in this file; fewer only if the source ends.
    /// The kernel copies, or shares blocks, if it can. Ranges of one file may overlap.
    pub async fn copy_from(&self, at: u64, source: &OpenFile, from: u64, len: u64) -> Result<u64, Error> {
        let len = source.len().await?.saturating_sub(from).min(len);
        self.require_write(at, len)?;
        let copy = ObjectOp::Copy { at, from: source.object(), offset: from, len };
        answer!(self.object.submit(copy), Done::Copied(copied) => copied)
    }

    /// Makes `[at, at + len)` share the blocks of `source` from `from` on. [`Error::NotSupported`] if the file system
    /// cannot (XFS, Btrfs and bcachefs can), [`Error::Invalid`] if its blocks do not align.
    pub async fn clone_range(&self, at: u64, source: &OpenFile, from: u64, len: u64) -> Result<(), Error> {
        self.change(at, len, ObjectOp::Clone { at, from: source.object(), offset: from, len }).await
    }

    /// Makes what was written durable.
    pub async fn sync(&self) -> Result<(), Error> {
        self.object.submit(ObjectOp::sync()).await.map(drop)
    }

    /// The same for the one client of this descriptor, who is not told of failures in another way. `told` counts the failed
    /// flushes of which it knows: the kernel reports a loss once, and the request that learned of it may have been lost with
    /// its connection. Then the next flush fails.
    pub async fn sync_for(&self, told: &AtomicU64) -> Result<(), Error> {
        let done = self.sync().await;
        let failed = self.object.failed_flushes();
        let untold = told.fetch_max(failed, Ordering::AcqRel) < failed;
        match done {
            Ok(()) if untold => {
                Err(std::io::Error::other("an earlier flush has failed: data may be lost").into())
            }
            done => done,
        }
    }

    /// Whether this descriptor has writes that it has not made durable since.
    pub fn is_unflushed(&self) -> bool {
        self.object.is_unflushed()
    }

    /// Whether it is an ordinary file: not a stream, and without a wrapper that handles its changes.
    pub fn is_plain(&self) -> bool {
        self.object.plain().is_some()
    }

    /// Whether it is a file of the host without a name.
    pub fn is_unlinked(&self) -> bool {
        let of_host = self.object.content().filter(|file| !file.is_in_memory());
        of_host.is_some_and(|file| file.links_and_allocated().is_ok_and(|(links, _)| links == 0))
    }

    /// Size now.
    pub async fn len(&self) -> Result<u64, Error> {
        answer!(self.object.submit(ObjectOp::Len), Done::Len(len) => len)
    }

    /// Whether it is empty now.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }
}

/// No file extends past 63 bits.
fn require_range(offset: u64, len: u64) -> Result<(), Error> {
    let end = offset.checked_add(len).ok_or(Error::Invalid)?;
    if i64::try_from(end).is_err() { Err(Error::Invalid) } else { Ok(()) }
}
