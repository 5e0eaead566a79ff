//! The bytes of a regular file of a memory disk: none, in a memfd, or on the heap.
//!
//! Why: a memfd takes a descriptor, which a process has few of. A share has a budget of them; when that is used up, small files that
//! nobody has open are laid on the heap ([`Content::park`]), and come back into a memfd when somebody opens them. Until then files
//! cost what they did: nothing is copied. Owns: the bytes. Does not: choose which file is parked (see `tree`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::quota::{Charge, Data, Usage};
use crate::vfs::Error;

/// The largest file that is laid on the heap: a tenth of a millisecond to copy when it is opened again.
const MAX_PARKED: u64 = 1 << 20;

/// See the module.
pub(super) enum Content {
    /// Nothing was ever written.
    Empty,
    /// In a memfd.
    Open(Arc<Data>, SetAfter),
    /// On the heap, with what it was charged.
    Parked(Box<[u8]>, Charge),
}

/// Times of the last change of the bytes when something of the node was set: a later change overrides that.
#[derive(Clone, Copy)]
pub(super) struct SetAfter {
    /// When the modification time was: after a later change it is that one's.
    pub(super) mtime: Duration,
    /// When the mode was: who writes later takes its set-id bits, as on any file system.
    pub(super) mode: Duration,
}

impl Content {
    /// The memfd, made now where there is none.
    pub(super) fn data(&mut self, usage: &Arc<Usage>) -> Result<Arc<Data>, Error> {
        let data = match self {
            Content::Open(data, _) => return Ok(data.clone()),
            Content::Empty => Data::new(Charge::none(usage.clone()))?,
            Content::Parked(bytes, charge) => {
                let mut data = Data::new(Charge::none(usage.clone()))?;
                let bytes = bytes::Bytes::copy_from_slice(bytes);
                data.file.append_here::<io::Error>(&bytes, |_| Ok(()))?;
                data.charge = std::mem::replace(charge, Charge::none(usage.clone()));
                data
            }
        };
        let data = Arc::new(data);
        let filled = match self {
            Content::Parked(..) => data.file.state_in_memory()?.changed,
            _ => Duration::ZERO,
        };
        *self = Content::Open(data.clone(), SetAfter { mtime: filled, mode: filled });
        Ok(data)
    }

    /// Whether it has a descriptor.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Content::Open(..))
    }

    /// Lays the bytes on the heap, if nobody has the file open and it is small enough. Whether a descriptor is free by that. Who
    /// calls it has noted the times that the bytes know.
    pub(super) fn park(&mut self) -> Result<bool, Error> {
        let Content::Open(data, _) = self else { return Ok(false) };
        let len = data.file.len()?;
        if Arc::strong_count(data) > 1 || len > MAX_PARKED {
            return Ok(false);
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::NoSpace)?];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&data.file, rest, done as u64) {
                // Behind the end of the memfd is what nobody wrote.
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let Content::Open(data, set_after) = std::mem::replace(self, Content::Empty) else {
            return Ok(false);
        };
        match Arc::try_unwrap(data) {
            Ok(Data { charge, .. }) => {
                *self = Content::Parked(bytes.into(), charge);
                Ok(true)
            }
            Err(data) => {
                *self = Content::Open(data, set_after);
                Ok(false)
            }
        }
    }
}
