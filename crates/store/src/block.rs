//! The Block contract: a linear array of bytes behind one submit function.
//!
//! [`Block`], [`BlockOp`], [`Outcome`]. The contract is ours; NBD's transmission phase fits it, and so does a SCSI
//! disk. [`crate::volume`] names and records volumes.
//!
//! Operation: a block gets whole requests that own their buffers, and may run several at a time, in any order. A
//! block may be built from other blocks: replication appends an operation to a log, sends it to the destinations, and
//! submits it to the block inside. Nothing in the contract is impossible for such a block.
//! Buffers: a read answers with bytes in memory or with a file range that has not been read yet; a write brings a
//! chain.
//! Errors: [`Error::Invalid`] for a range outside of the block, which then has not changed; [`Error::NoSpace`];
//! [`Error::Io`] from the medium. A failed write may have changed any part of its range, and nothing else.
//!
//! The guarantees, which `volume/tests` checks for every implementer:
//!
//! - Every read submitted after a write was answered sees its changes. A read concurrent with a write may see a part
//!   of them.
//! - Durable (the flag, and [`BlockOp::Flush`] for what was answered before it was submitted): it survives a crash of
//!   the process and of the host. [`Medium::Ram`] does not guarantee this, as its name says.
//! - Dropping a future does not stop its request: the kernel finishes a call that has begun. Requests submitted after
//!   the drop run after that call, and [`Block::memory`] returns `None` until it has returned. So a caller that has
//!   dropped the futures of all earlier requests needs no barrier before the next one.
//! - After a failure to make something durable, every later attempt fails: the kernel reports such a loss once, and
//!   forgets the pages. Reopening the volume reads what is really there.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{File, Payload};

use crate::Error;

/// A linear array of bytes.
pub trait Block: std::fmt::Debug + Send + Sync {
    /// Its geometry.
    fn geometry(&self) -> Geometry;
    /// The file in memory that contains its bytes from offset 0, if users may write to that file directly: inside of
    /// the block's size, and not for durable data. None by default. Must be called again for each request.
    fn memory(&self) -> Option<&File> {
        None
    }
    /// Whether reading its bytes without [`Block::submit`] returns what `submit` would. True by default.
    fn readable(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Waits as long as `submit` would until [`Block::readable`] is true, or returns why it is not.
    fn until_readable(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async { self.readable() })
    }
    /// Carries out one operation.
    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>>;
}

/// Facts about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size in bytes. The only fact that may change while it is open, and it only grows.
    pub size: u64,
    /// Where its bytes are.
    pub medium: Medium,
    /// Preferred granularity: offsets and lengths that are multiples of it are fastest; others work, too.
    pub preferred: u32,
}

/// Where the bytes of a volume are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// In memory, while the process lives.
    Ram,
    /// In a file.
    File,
    /// On a block device.
    Device,
    /// In an image of a Ceph cluster.
    Rbd,
}

impl Medium {
    /// "ram", "file", "device" or "rbd".
    pub fn name(self) -> &'static str {
        match self {
            Medium::Ram => "ram",
            Medium::File => "file",
            Medium::Device => "device",
            Medium::Rbd => "rbd",
        }
    }
}

/// A request. Ranges are `[offset, offset + len)` and not empty.
#[derive(Clone, Debug)]
pub enum BlockOp {
    /// Exactly these bytes: [`Outcome::Data`].
    Read {
        /// First byte.
        offset: u64,
        /// How many.
        len: usize,
    },
    /// These bytes at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// In order.
        data: Vec<Bytes>,
        /// Answer only when it is durable.
        durable: bool,
    },
    /// Makes everything answered so far durable.
    Flush,
    /// The range is no longer needed. Afterwards it reads as zeros or as before: a caller that needs to know (for
    /// example for an identical copy) uses [`BlockOp::WriteZeroes`].
    Trim {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Answer only when it is durable.
        durable: bool,
    },
    /// The range reads as zeros afterwards.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Answer only when it is durable.
        durable: bool,
        /// Keep the space reserved, so that later writes cannot run out of it.
        keep_space: bool,
        /// Fail with [`Error::NotSupported`], without a change, if zeros would have to be written.
        fast: bool,
    },
    /// The allocation of the range: [`Outcome::Extents`].
    Status {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// The answer may end before the range does, after this many extents; at least one.
        max_extents: usize,
    },
}

/// The result of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Of a read.
    Data(Payload),
    /// Of everything that changes something.
    Done,
    /// Of a status: from the range's start, without gaps, neighbours differing.
    Extents(Vec<Extent>),
}

/// A part of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes, not zero.
    pub len: u64,
    /// Whether nothing is stored: it reads as zeros, and a write may run out of space. False if unknown.
    pub hole: bool,
}

impl BlockOp {
    /// Checks the operation against the size; every implementer does this first.
    pub fn validate(&self, size: u64) -> Result<(), Error> {
        let (offset, len) = match self {
            BlockOp::Flush => return Ok(()),
            BlockOp::Read { offset, len } => (*offset, *len as u64),
            BlockOp::Write { offset, data, .. } => {
                (*offset, data.iter().map(|bytes| bytes.len() as u64).sum())
            }
            BlockOp::Trim { offset, len, .. } | BlockOp::WriteZeroes { offset, len, .. } => (*offset, *len),
            BlockOp::Status { max_extents: 0, .. } => return Err(Error::Invalid),
            BlockOp::Status { offset, len, .. } => (*offset, *len),
        };
        match offset.checked_add(len) {
            Some(end) if len > 0 && end <= size => Ok(()),
            _ => Err(Error::Invalid),
        }
    }
}
