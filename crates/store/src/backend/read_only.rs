//! [`ReadOnly`] refuses all changes through any backend. The host, and other users of the backend, can still change
//! it.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, ready};

use crate::vfs::{Backend, Error, NodeId, Op, Outcome, Watches};

/// See the module.
pub struct ReadOnly(Arc<dyn Backend>);

impl ReadOnly {
    /// Wraps `backend`, refusing changes.
    pub fn new(backend: Arc<dyn Backend>) -> ReadOnly {
        ReadOnly(backend)
    }
}

fn changes(op: &Op) -> bool {
    match op {
        Op::Setattr { .. }
        | Op::Open { write: true, .. }
        | Op::Create { .. }
        | Op::Remove { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | Op::Link { .. }
        | Op::MayUnlink { .. }
        | Op::SetXattr { .. }
        | Op::RemoveXattr { .. } => true,
        Op::Lookup { .. }
        | Op::Getattr { .. }
        | Op::Open { write: false, .. }
        | Op::Readlink { .. }
        | Op::Readdir { .. }
        | Op::Place { .. }
        | Op::Statfs
        | Op::SyncDir { .. }
        | Op::SyncAll { .. }
        | Op::Hold { .. }
        | Op::GetXattr { .. }
        | Op::ListXattrs { .. }
        | Op::XattrSummary { .. }
        | Op::Stable { .. }
        | Op::Find { .. } => false,
    }
}

impl Backend for ReadOnly {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn changes_on_the_host(&self) -> bool {
        self.0.changes_on_the_host()
    }

    fn sweep(&self, max: usize) {
        self.0.sweep(max);
    }

    fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if changes(&op) { Box::pin(ready(Err(Error::ReadOnly))) } else { self.0.submit(op) }
    }

    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn Any + Send + Sync>>> {
        self.0.clone().observe(dir, recursive, watches)
    }
}
