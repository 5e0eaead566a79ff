//! An open file with a limit on its growth (the size limit of a ram share).

use std::sync::Arc;

use super::super::Error;
use super::{Done, Layer, Object, ObjectOp, Submission};

/// Decides whether a write may grow a file.
pub trait Quota: std::fmt::Debug + Send + Sync {
    /// Called before bytes up to `end` are written to a file of size `len`; `NoSpace` if there is no room, `TooLarge`
    /// if `end` exceeds the longest file.
    fn grow(&self, len: u64, end: u64) -> Result<(), Error>;
}

/// See the module.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Object>,
    quota: Arc<dyn Quota>,
}

impl Limited {
    /// Lets `inner` grow only as `quota` allows.
    pub fn new(inner: Arc<dyn Object>, quota: Arc<dyn Quota>) -> Limited {
        Limited { inner, quota }
    }
}

impl Layer for Limited {
    fn inner(&self) -> &dyn Object {
        &*self.inner
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let end = match op {
            ObjectOp::Append { bytes, admit } => {
                let admit = Box::new(move |end: u64| {
                    self.quota.grow(end, end.saturating_add(bytes.len() as u64))?;
                    admit(end)
                });
                return self.inner.submit(ObjectOp::Append { bytes, admit });
            }
            // Shared blocks take no space.
            ObjectOp::Clone { .. } => return self.inner.submit(op),
            _ => op.grows_to(),
        };
        let Some(end) = end else { return self.inner.submit(op) };
        self.inner.submit(ObjectOp::Len).then(move |len| match len {
            Ok(Done::Len(len)) => match self.quota.grow(len, end) {
                Ok(()) => self.inner.submit(op),
                Err(e) => Submission::Now(Err(e)),
            },
            other => Submission::Now(other),
        })
    }
}
