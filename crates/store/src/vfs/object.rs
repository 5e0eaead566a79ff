//! The Object contract: the bytes of one open file behind one submit function.
//!
//! [`Object`], [`ObjectOp`], [`Done`], [`Submission`]. Names are elsewhere, and [`crate::opens`] decides about
//! access.
//!
//! An object without a descriptor implements only [`Object::submit`]. The benefits of a descriptor (sendfile,
//! mappings, copies by the kernel, being filled by a peer) are optional capabilities. Additional
//! work per operation (quotas, notifications, counting flushes) is done by wrappers: see `Layer`.
//!
//! Cost: an operation that need not wait is answered by the call ([`Submission::Now`]), without a future. The two that clients
//! send most have a first try of their own ([`Object::read_now`], [`Object::write_now`]): it passes no request and no answer
//! through the wrappers.
//! Errors: a failed operation may have changed any part of its range, and nothing else.

mod counted;
mod heard;
mod limited;
mod plain;
mod read_only;
mod settling;
mod witnessed;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{DataRanges, File, Payload, PayloadSource, Pool};

pub(super) use self::counted::Counted;
pub(super) use self::heard::Heard;
pub(super) use self::limited::Limited;
pub use self::limited::Quota;
pub use self::plain::Plain;
pub(crate) use self::plain::range;
pub(super) use self::read_only::ReadOnly;
pub(super) use self::settling::Settling;
pub(super) use self::witnessed::{Told, Witnessed};
use super::Error;

/// Gets the result of a flush when it ends, even if nobody waits for it any more.
pub type Ended = Box<dyn FnOnce(&Result<(), Error>) + Send>;

/// Gets the offset of an append before anything is written, and may refuse it.
pub type Admit<'a> = Box<dyn FnOnce(u64) -> Result<(), Error> + 'a>;

/// An open file, or anything that is served like one.
pub trait Object: Debug + Send + Sync {
    /// Carries out one operation.
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a>;

    /// The file of the host, if this is just a file.
    fn plain(&self) -> Option<&File> {
        None
    }

    /// The file that contains its bytes at present. It may be longer than the object, writes may go elsewhere, and it is not to be
    /// read while the object does not answer [`ObjectOp::Read`].
    fn content(&self) -> Option<&File> {
        self.plain()
    }

    /// The existing bytes of `[offset, offset + len)`, read into a buffer of `pool`. `None`: they are not in memory,
    /// or the pool is empty; then use [`ObjectOp::Read`].
    fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        let _ = (pool, offset, len);
        None
    }

    /// Writes all of `chain` at `offset`, if that need not wait. `None`: nothing was written; then use [`ObjectOp::Write`].
    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        let _ = (offset, chain);
        None
    }

    /// Whether it refuses every change.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether there were writes that no flush has made durable since. By default they are not counted.
    fn is_unflushed(&self) -> bool {
        false
    }

    /// How many of its flushes have failed. By default they are not counted.
    fn failed_flushes(&self) -> u64 {
        0
    }
}

/// A request to an object. Ranges are `[offset, offset + len)` and end within 63 bits.
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum ObjectOp<'a> {
    /// The existing bytes of the range: [`Done::Data`]. `size` is the object's size, if the caller has just learned
    /// it.
    Read { offset: u64, len: usize, size: Option<u64> },
    /// Writes all of `source`. An object in memory asks a remote source to fill its bytes. After [`Done::NeedsMemory`] the same
    /// write must follow with a source in memory; the content of the range is undefined until then.
    Write { offset: u64, source: PayloadSource<'a> },
    /// Appends all of `bytes`. Concurrent appends never overlap.
    Append { bytes: &'a Bytes, admit: Admit<'a> },
    /// Makes earlier writes durable.
    Sync { ended: Ended },
    /// Reserves space; the object grows to the end of the range unless `keep_size`.
    Allocate { offset: u64, len: u64, keep_size: bool },
    /// Makes a range read as zeros and keeps the size. With `keep_space` the range stays reserved where that is possible;
    /// without, its space is released, or the answer is [`Error::NotSupported`].
    Zero { offset: u64, len: u64, keep_space: bool },
    /// Copies `len` bytes of `from`, from its byte `offset` on, to `at`; fewer where `from` ends: [`Done::Copied`].
    Copy { at: u64, from: &'a dyn Object, offset: u64, len: u64 },
    /// Makes `[at, at + len)` share the blocks of `from`.
    Clone { at: u64, from: &'a dyn Object, offset: u64, len: u64 },
    /// At most `max` ranges that hold data: [`Done::Extents`].
    Extents { offset: u64, len: u64, max: usize },
    /// The size: [`Done::Len`].
    Len,
    /// Truncates or extends.
    Resize { size: u64 },
    /// A message that is not a file operation; the answer has at most `max` bytes: [`Done::Answer`].
    Exchange { message: Bytes, max: usize },
}

/// The answer of an operation.
#[derive(Debug)]
pub enum Done {
    /// Of a read.
    Data(Payload),
    /// Success of a changing operation.
    Done,
    /// A write was not done, because its bytes must be in memory: no object waits for a peer.
    NeedsMemory,
    /// Of a copy: how many bytes.
    Copied(u64),
    /// Ranges that hold data.
    Extents(DataRanges),
    /// The size.
    Len(u64),
    /// Of a message.
    Answer(Bytes),
}

impl ObjectOp<'_> {
    /// A flush whose result only its caller gets.
    pub fn sync() -> Self {
        ObjectOp::Sync { ended: Box::new(|_| ()) }
    }

    /// Whether it changes bytes, space or size. A message may have any effect, so it requires the right to write.
    pub fn changes(&self) -> bool {
        match self {
            ObjectOp::Read { .. } | ObjectOp::Extents { .. } | ObjectOp::Len | ObjectOp::Sync { .. } => false,
            ObjectOp::Write { .. }
            | ObjectOp::Append { .. }
            | ObjectOp::Allocate { .. }
            | ObjectOp::Zero { .. }
            | ObjectOp::Copy { .. }
            | ObjectOp::Clone { .. }
            | ObjectOp::Resize { .. }
            | ObjectOp::Exchange { .. } => true,
        }
    }

    /// The end of the bytes that it writes, if that may enlarge the object and is known beforehand.
    pub fn grows_to(&self) -> Option<u64> {
        let (offset, len) = match self {
            ObjectOp::Write { offset, source } => (*offset, source.len()),
            ObjectOp::Allocate { offset, len, .. } => (*offset, *len),
            ObjectOp::Copy { at, len, .. } | ObjectOp::Clone { at, len, .. } => (*at, *len),
            ObjectOp::Resize { size } => (0, *size),
            _ => return None,
        };
        Some(offset.saturating_add(len))
    }
}

/// An operation in progress.
#[must_use = "an operation that has to wait does nothing unless it is awaited"]
pub enum Submission<'a> {
    /// It is done.
    Now(Result<Done, Error>),
    /// It must wait.
    Later(LocalBoxFuture<'a, Result<Done, Error>>),
}

impl<'a> Submission<'a> {
    /// A waiting operation.
    pub fn later(future: impl Future<Output = Result<Done, Error>> + 'a) -> Submission<'a> {
        Submission::Later(Box::pin(future))
    }

    /// Continues with the answer: at once if it is available.
    #[inline]
    pub fn then(self, next: impl FnOnce(Result<Done, Error>) -> Submission<'a> + 'a) -> Submission<'a> {
        match self {
            Submission::Now(done) => next(done),
            Submission::Later(done) => Submission::later(async move { next(done.await).await }),
        }
    }
}

impl Future for Submission<'_> {
    type Output = Result<Done, Error>;

    /// # Panics If polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Done, Error>> {
        match &mut *self {
            Submission::Later(future) => future.as_mut().poll(cx),
            Submission::Now(done) => Poll::Ready(std::mem::replace(done, Err(Error::Invalid))),
        }
    }
}

/// An object that adds something to another one's operations.
pub(crate) trait Layer: Debug + Send + Sync {
    /// The inner object.
    fn inner(&self) -> &dyn Object;
    /// [`Object::submit`].
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a>;
    /// [`Object::write_now`]. Without it every write is submitted, so a layer that overlooks it still sees all writes.
    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        let _ = (offset, chain);
        None
    }
    /// [`Object::is_read_only`].
    fn is_read_only(&self) -> bool {
        self.inner().is_read_only()
    }
    /// [`Object::is_unflushed`].
    fn is_unflushed(&self) -> bool {
        self.inner().is_unflushed()
    }
    /// [`Object::failed_flushes`].
    fn failed_flushes(&self) -> u64 {
        self.inner().failed_flushes()
    }
}

impl<L: Layer> Object for L {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        Layer::submit(self, op)
    }
    fn plain(&self) -> Option<&File> {
        self.inner().plain()
    }
    fn content(&self) -> Option<&File> {
        self.inner().content()
    }
    fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        self.inner().read_now(pool, offset, len)
    }
    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        Layer::write_now(self, offset, chain)
    }
    fn is_read_only(&self) -> bool {
        Layer::is_read_only(self)
    }
    fn is_unflushed(&self) -> bool {
        Layer::is_unflushed(self)
    }
    fn failed_flushes(&self) -> u64 {
        Layer::failed_flushes(self)
    }
}
