//! [`ReadOnly`] refuses all changes through any backend. The host, and other users of the backend, can still change
//! it.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, ready};

use crate::vfs::{Attr, Backend, Caller, Effect, Error, NodeId, Op, Outcome, Watches};

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

impl Backend for ReadOnly {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn changes_on_the_host(&self) -> bool {
        self.inner.changes_on_the_host()
    }

    fn judges_callers(&self) -> bool {
        self.inner.judges_callers()
    }

    fn sweep(&self, max: usize) {
        self.inner.sweep(max);
    }

    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        self.inner.attr_now(node)
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match changes(&op) {
            true => Box::pin(ready(Err((self.refusal)()))),
            false => self.inner.submit(op, by),
        }
    }

    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn Any + Send + Sync>>> {
        self.inner.clone().observe(dir, recursive, watches)
    }
}
