//! A backend that adds something to another one's operations: a quota, a refusal, a record of failures.
//!
//! Every question that a layer does not answer itself goes to the backend below it.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::LocalBoxFuture;

use super::{Attr, Backend, Caller, Error, NodeId, Op, Outcome, Watches};

/// See the module.
pub(crate) trait Layer: Send + Sync {
    /// The backend below.
    fn inner(&self) -> &Arc<dyn Backend>;
    /// [`Backend::submit`].
    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>>;
    /// [`Backend::is_read_only`].
    fn is_read_only(&self) -> bool {
        self.inner().is_read_only()
    }
    /// [`Backend::tidy`].
    fn tidy(&self, now: Instant) {
        self.inner().tidy(now);
    }
    /// [`Backend::attr_now`].
    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        self.inner().attr_now(node)
    }
}

impl<L: Layer> Backend for L {
    fn kind(&self) -> &'static str {
        self.inner().kind()
    }
    fn is_read_only(&self) -> bool {
        Layer::is_read_only(self)
    }
    fn changes_on_the_host(&self) -> bool {
        self.inner().changes_on_the_host()
    }
    fn sweep(&self, max: usize) {
        self.inner().sweep(max);
    }
    fn tidy(&self, now: Instant) {
        Layer::tidy(self, now);
    }
    fn judges_callers(&self) -> bool {
        self.inner().judges_callers()
    }
    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        Layer::attr_now(self, node)
    }
    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Layer::submit(self, op, by)
    }
    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn Any + Send + Sync>>> {
        self.inner().clone().observe(dir, recursive, watches)
    }
}
