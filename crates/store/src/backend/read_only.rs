//! [`ReadOnly`] refuses all changes through any backend. The host, and other users of the backend, can still change
//! it.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::{LocalBoxFuture, ready};

use crate::vfs::{Backend, Caller, Effect, Error, Layer, Op, Outcome};

/// See the module.
pub struct ReadOnly {
    inner: Arc<dyn Backend>,
    refusal: fn() -> Error,
}

impl ReadOnly {
    /// Wraps `backend`, refusing changes.
    pub fn new(backend: Arc<dyn Backend>) -> ReadOnly {
        ReadOnly { inner: backend, refusal: || Error::ReadOnly }
    }

    /// Wraps `backend` for users who may only read it, while others change it.
    pub fn for_readers(backend: Arc<dyn Backend>) -> ReadOnly {
        ReadOnly { inner: backend, refusal: || Error::Access }
    }
}

/// Also an operation that only prepares a change.
fn changes(op: &Op) -> bool {
    match op.effect() {
        Effect::Inspects | Effect::Reads | Effect::Flushes => false,
        Effect::OpensToWrite
        | Effect::AsksToRemove
        | Effect::SetsAttributes(_)
        | Effect::SetsXattrs(_)
        | Effect::AddsName { .. }
        | Effect::RemovesName { .. }
        | Effect::Moves { .. } => true,
    }
}

impl Layer for ReadOnly {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn is_read_only(&self) -> bool {
        true
    }

    /// Leftovers stay: removing them would be a change.
    fn tidy(&self, _: Instant) {}

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match changes(&op) {
            true => Box::pin(ready(Err((self.refusal)()))),
            false => self.inner.submit(op, by),
        }
    }
}
