//! In whose name a [`Vfs`] acts, and what the kernel grants him.

use futures_util::future::LocalBoxFuture;

use super::{NodeId, Op, Outcome, Vfs};
use crate::vfs::{Caller, Error, Permissions};

impl Vfs {
    /// The same file system, whose operations are those of `caller` if the kernel judges callers. Files that it opens
    /// keep the rights that he has now.
    #[must_use]
    pub fn acting_as(&self, caller: Caller) -> Vfs {
        let by = if self.backend.judges_callers() { caller } else { Caller::Server };
        Vfs { by, ..self.clone() }
    }

    /// The same file system, acting for the server.
    #[must_use]
    pub fn as_server(&self) -> Vfs {
        Vfs { by: Caller::Server, ..self.clone() }
    }

    /// Whether it can act for a caller: a kernel judges its files.
    pub fn may_act(&self) -> bool {
        self.backend.judges_callers()
    }

    /// In whose name it acts.
    pub fn caller(&self) -> &Caller {
        &self.by
    }

    /// Whether the kernel judges its operations for a user. Otherwise the protocol must decide what its user may do.
    pub fn is_judged(&self) -> bool {
        self.by.is_user()
    }

    /// Submits an operation of the caller.
    pub(super) fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        self.backend.submit(op, self.by.clone())
    }

    /// Which of these permissions on a node the caller has: see [`Op::Access`].
    pub async fn access(&self, node: NodeId, wanted: Permissions) -> Result<Permissions, Error> {
        let node = self.streams.base(node)?;
        match self.submit(Op::Access { node, wanted }).await? {
            Outcome::Permissions(granted) => Ok(granted),
            other => unreachable!("backend answered {other:?}"),
        }
    }

    /// Refuses a caller who lacks one of these permissions on a file whose streams he uses: their bytes are read and
    /// written by the server.
    pub(super) async fn judge_streams(&self, base: NodeId, wanted: Permissions) -> Result<(), Error> {
        if !self.is_judged() || self.access(base, wanted).await? == wanted {
            Ok(())
        } else {
            Err(Error::Access)
        }
    }
}
