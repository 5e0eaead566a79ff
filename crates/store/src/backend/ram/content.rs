//! The bytes of a regular file of a memory disk: none, in a memfd, or on the heap.
//!
//! A memfd takes a descriptor, of which a process has few. A share has a budget of them; when it is used up, small
//! files that nobody has open are moved to the heap ([`Content::park`]), and move back to a memfd when they are
//! opened. Until then nothing is copied. `tree` chooses the files to park.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::quota::{Charge, Data, Usage};
use crate::vfs::Error;

/// The largest file that is moved to the heap: copying it back takes a tenth of a millisecond.
const MAX_PARKED: u64 = 1 << 20;

/// See the module.
pub(super) enum Content {
    /// Never written.
    Empty,
    /// In a memfd.
    Open(Arc<Data>, SetAfter),
    /// On the heap, with its charge.
    Parked(Box<[u8]>, Charge),
}

/// Records which change of the bytes preceded the setting of an attribute: a later change overrides the attribute.
#[derive(Clone, Copy)]
pub(super) struct SetAfter {
    /// For the modification time: a later change sets it again.
    pub(super) mtime: Duration,
    /// For the mode: a later write clears its set-id bits, as on any file system.
    pub(super) mode: Duration,
}

impl Content {
    /// The memfd, created if there is none.
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

    /// Moves the bytes to the heap if nobody has the file open and it is small enough. Returns whether that frees a
    /// descriptor. The caller has saved the times that the bytes determine.
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
                // Beyond the end of the memfd nothing was written.
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
                *self = Content::Parked(bytes.into(), charge.moved(len));
                Ok(true)
            }
            Err(data) => {
                *self = Content::Open(data, set_after);
                Ok(false)
            }
        }
    }
}
