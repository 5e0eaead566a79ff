//! An open file that refuses changes.

use std::sync::Arc;

use super::super::Error;
use super::{Layer, Object, ObjectOp, Submission};

/// See the module.
#[derive(Debug)]
pub struct ReadOnly(pub Arc<dyn Object>);

impl Layer for ReadOnly {
    fn inner(&self) -> &dyn Object {
        &*self.0
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        if op.changes() { Submission::Now(Err(Error::Access)) } else { self.0.submit(op) }
    }

    fn is_read_only(&self) -> bool {
        true
    }
}
