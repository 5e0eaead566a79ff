//! An open file whose writes and flushes are counted.
//!
//! A write is counted before it is answered, even if it has failed, because a part of it may have been written.

use std::sync::Arc;

use super::super::Error;
use super::super::flushes::{Failures, Flushes};
use super::{Done, Ended, Layer, Object, ObjectOp, Submission};

/// See the module.
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn Object>,
    flushes: Flushes,
}

impl Counted {
    /// Adds each failed flush of `inner` to `failures`.
    pub fn new(inner: Arc<dyn Object>, failures: &Failures) -> Counted {
        Counted { inner, flushes: Flushes::new(failures.clone()) }
    }

    async fn flush(&self, ended: Ended) -> Result<Done, Error> {
        let done = match self.inner.plain() {
            // A flush by the kernel ends whether or not somebody waits, so others can wait for it.
            Some(_) => self.flushes.run(|ended| self.inner.submit(ObjectOp::Sync { ended })).await,
            None => self.flushes.run_alone(|ended| self.inner.submit(ObjectOp::Sync { ended })).await,
        };
        ended(&done);
        done.map(|()| Done::Done)
    }
}

impl Layer for Counted {
    fn inner(&self) -> &dyn Object {
        &*self.inner
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        match op {
            ObjectOp::Sync { ended } => Submission::later(self.flush(ended)),
            op if op.changes() => self.inner.submit(op).then(|done| {
                if !matches!(done, Ok(Done::NeedsMemory)) {
                    self.flushes.wrote();
                }
                Submission::Now(done)
            }),
            op => self.inner.submit(op),
        }
    }

    fn is_unflushed(&self) -> bool {
        self.flushes.is_due()
    }
}
