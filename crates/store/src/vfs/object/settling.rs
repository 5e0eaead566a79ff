//! An open file whose changes other than writes are durable when they are answered.
//!
//! A client requests a flush after writes if it wants one, but not after other changes.

use std::sync::Arc;

use bytes::Bytes;

use super::super::Error;
use super::{Done, Layer, Object, ObjectOp, Submission};

/// See the module.
#[derive(Debug)]
pub struct Settling(pub Arc<dyn Object>);

impl Layer for Settling {
    fn inner(&self) -> &dyn Object {
        &*self.0
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let settles =
            matches!(op, ObjectOp::Allocate { .. } | ObjectOp::Zero { .. } | ObjectOp::Clone { .. });
        let done = self.0.submit(op);
        if !settles {
            return done;
        }
        done.then(|done| match done {
            Ok(Done::Done) => self.0.submit(ObjectOp::sync()),
            other => Submission::Now(other),
        })
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        self.0.write_now(offset, chain)
    }
}
