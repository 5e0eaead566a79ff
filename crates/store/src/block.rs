//! The Block contract: a row of bytes behind one submit function.
//!
//! What: [`Block`], [`BlockOp`], [`Outcome`]. Spec: ours; NBD's transmission phase fits it, and so does a SCSI disk.
//! Does not: name volumes, or remember them (see [`crate::volume`]).
//!
//! Operation: a block is given whole requests that own their buffers, and may carry out several at a time, in any order.
//! A block may be made of blocks: what replicates appends an operation to a log, sends it away, and submits it to the
//! block inside. Therefore nothing here is asked for that such a one could not keep.
//! Buffers: a read answers with bytes in memory or with a file range that nobody has read; a write brings a chain.
//! Errors: [`Error::Invalid`] for a range that is not inside, and then nothing has changed; [`Error::NoSpace`];
//! [`Error::Io`] from the medium. A write that failed has changed any part of its range, and nothing else.
//!
//! The promises, which `volume/tests` puts to every implementer:
//!
//! - What a write changed is seen by every read that is submitted after it was answered. A read that is in flight beside
//!   a write may see a part of it.
//! - Durable (the flag, and [`BlockOp::Flush`] for what was answered before it was submitted): it survives the death of
//!   the process and of the host. [`Medium::Ram`] promises that to nobody, and says so by its name.
//! - Dropping a future does not stop its request: the kernel finishes a call that has begun. Requests that are submitted after
//!   the drop are carried out after that call, and [`Block::memory`] returns `None` until it has returned. So whoever has dropped
//!   the futures of all earlier requests needs no barrier before the next one.
//! - Once something could not be made durable, nothing ever is again: the kernel reports such a loss once, and forgets
//!   the pages. Whoever opens the volume anew reads what is really there.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{File, Payload};

use crate::Error;

/// A row of bytes.
pub trait Block: std::fmt::Debug + Send + Sync {
    /// What it is made of.
    fn geometry(&self) -> Geometry;
    /// The file in memory that its bytes lie in, from the file's first byte on, where whoever may write to the block may as
    /// well write there: inside of its size, and for nothing durable. By default there is none. Ask anew for
    /// each request.
    fn memory(&self) -> Option<&File> {
        None
    }
    /// Whether what lies where its bytes are read past [`Block::submit`] is what it would answer. By default it is.
    fn readable(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Carries out one operation.
    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>>;
}

/// Facts about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes in all. The one fact that changes while it is open, and only upwards.
    pub size: u64,
    /// Where they lie.
    pub medium: Medium,
    /// Offsets and lengths that are multiples of it are served best; others are served, too.
    pub preferred: u32,
}

/// Where the bytes of a volume lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// In memory, as long as the process lives.
    Ram,
    /// In a file.
    File,
    /// On a block device.
    Device,
}

impl Medium {
    /// "ram", "file" or "device".
    pub fn name(self) -> &'static str {
        match self {
            Medium::Ram => "ram",
            Medium::File => "file",
            Medium::Device => "device",
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
        /// Answered when it is durable.
        durable: bool,
    },
    /// Everything that was answered is durable.
    Flush,
    /// The range is not needed any more. It reads as zeros afterwards, or as before: who needs to know which (a copy
    /// that must be equal) asks for [`BlockOp::WriteZeroes`].
    Trim {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Answered when it is durable.
        durable: bool,
    },
    /// The range reads as zeros afterwards.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// Answered when it is durable.
        durable: bool,
        /// The space stays reserved: later writes there do not run out of it.
        keep_space: bool,
        /// [`Error::NotSupported`], and nothing has changed, where it would mean writing as many zeros.
        fast: bool,
    },
    /// What the range is made of: [`Outcome::Extents`].
    Status {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// The answer may end before the range does, at so many extents; at least one.
        max_extents: usize,
    },
}

/// What became of a request.
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
    /// Whether nothing is stored: it reads as zeros, and a write may run out of space. False where it is not known.
    pub hole: bool,
}

impl BlockOp {
    /// Checks the operation against the size; every implementer's first step.
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
