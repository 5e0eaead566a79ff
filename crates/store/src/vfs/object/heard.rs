//! An open file of a monitored share: a full or failing disk shows in the results of changes.
//!
//! Only plain files reveal a disk's state: a stream may be stored where its disk has little space for it, and other
//! objects have no disk. Clients may ask for more space than a disk has, so a refused [`ObjectOp::Allocate`] says
//! nothing.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fd::{AsFd, AsRawFd};
use weft_machine::File;

use super::super::Error;
use super::{Done, Layer, Object, ObjectOp, Submission};
use crate::health::{Health, Takes};

/// See the module.
#[derive(Debug)]
pub struct Heard {
    inner: Arc<dyn Object>,
    health: Arc<Health>,
}

impl Heard {
    /// Records the results of changes of `inner` in `health`.
    pub fn new(inner: Arc<dyn Object>, health: Arc<Health>) -> Heard {
        Heard { inner, health }
    }

    /// The file's current disk usage. Read only while there is a problem: then it matters whether a change takes
    /// space.
    fn footprint(&self, file: &File) -> Option<u64> {
        if !self.health.is_ill() {
            return None;
        }
        if file.is_in_memory() {
            // The quota of a ram share counts sizes.
            return file.len().ok();
        }
        file.links_and_allocated().ok().map(|(_, allocated)| allocated)
    }

    fn heard(&self, file: &File, before: Option<u64>, done: &Result<impl Sized, Error>) {
        let grown = || before.zip(self.footprint(file)).is_some_and(|(before, now)| now > before);
        let takes = if done.is_err() || grown() { Takes::Space } else { Takes::Nothing };
        self.health.heard(done, takes, || path(file));
    }
}

fn path(file: &File) -> Option<PathBuf> {
    if file.is_in_memory() {
        return None;
    }
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).ok()
}

impl Layer for Heard {
    fn inner(&self) -> &dyn Object {
        &*self.inner
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let tells = matches!(
            op,
            ObjectOp::Write { .. } | ObjectOp::Append { .. } | ObjectOp::Copy { .. } | ObjectOp::Sync { .. }
        );
        let Some(file) = self.inner.plain().filter(|_| tells) else { return self.inner.submit(op) };
        let before = if matches!(op, ObjectOp::Sync { .. }) { None } else { self.footprint(file) };
        self.inner.submit(op).then(move |done| {
            // A write that needs its bytes in memory has not touched the disk.
            if !matches!(done, Ok(Done::NeedsMemory)) {
                self.heard(file, before, &done);
            }
            Submission::Now(done)
        })
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        // While there is a problem, a write is compared with the space that it takes.
        if self.health.is_ill() {
            return None;
        }
        let done = self.inner.write_now(offset, chain)?;
        if let (Err(_), Some(file)) = (&done, self.inner.plain()) {
            self.heard(file, None, &done);
        }
        Some(done)
    }
}
