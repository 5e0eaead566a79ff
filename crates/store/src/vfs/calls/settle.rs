//! Changes of names and attributes that are durable when they are answered, for protocols that promise that (NFS: RFC 1813 1.4 and 4.8,
//! RFC 8881 4.2.3.1 and 18.36). SMB promises it with FLUSH alone.
//!
//! What: every call of [`Vfs`] that changes something gets [`Unsettled`] beside its outcome, and ends with it, behind everything that others
//! are told of the change. Does not: settle what is written to a file; the caller decides that ([`OpenFile::sync`]).
//!
//! | changed | flushed |
//! |---|---|
//! | attributes, extended ones, a file's streams | the file or directory |
//! | a new name | the directory, and what was made |
//! | a further name | the file and the directory |
//! | a name that went | the directory |
//! | a name that moved | both directories |
//! | what cannot be opened for that (links, devices, what the server may not read) | its file system |

use super::{Kind, Make, NodeId, Op, Outcome, SetAttr, Streams, Vfs};
use crate::vfs::{Error, OpenFile};

/// What is to be flushed before a change is answered.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "a change is settled before it is answered"]
pub struct Unsettled([Option<NodeId>; 2]);

impl Unsettled {
    fn of(op: &Op) -> Unsettled {
        Unsettled(match op {
            Op::Setattr { node, .. } | Op::SetXattr { node, .. } | Op::RemoveXattr { node, .. } => {
                [Some(*node), None]
            }
            Op::Create { dir, .. } | Op::Remove { dir, .. } | Op::Rmdir { dir, .. } => [None, Some(*dir)],
            Op::Rename { from, to, .. } => [Some(to.dir), (from.dir != to.dir).then_some(from.dir)],
            Op::Link { node, dir, .. } => [Some(*node), Some(*dir)],
            Op::Lookup { .. }
            | Op::Getattr { .. }
            | Op::Open { .. }
            | Op::Readlink { .. }
            | Op::Readdir { .. }
            | Op::Place { .. }
            | Op::Statfs
            | Op::SyncDir { .. }
            | Op::SyncAll { .. }
            | Op::Hold { .. }
            | Op::GetXattr { .. }
            | Op::ListXattrs { .. }
            | Op::Beside { .. }
            | Op::MayUnlink { .. }
            | Op::Stable { .. }
            | Op::Find { .. } => [None, None],
        })
    }

    /// Of a file's streams.
    pub(super) fn streams(of: NodeId) -> Unsettled {
        Unsettled([Some(of), None])
    }

    /// With what was made. A link or device that has nothing of its own is there when its name is.
    fn and_made(self, made: NodeId, whole: bool) -> Unsettled {
        let Unsettled([_, dir]) = self;
        Unsettled([whole.then_some(made), dir])
    }
}

impl Vfs {
    /// The same file system, whose changes of names and attributes, and of the ranges of a file that are reserved, freed or cloned, are
    /// durable when they are answered. In memory nothing is.
    #[must_use]
    pub fn settled(self) -> Vfs {
        let settles = self.backend.changes_on_the_host();
        Vfs { settles, ..self }
    }

    /// Carries out what changes something.
    pub(super) async fn change(&self, op: Op) -> Result<(Outcome, Unsettled), Error> {
        if !self.settles {
            return Ok((self.backend.submit(op).await?, Unsettled::default()));
        }
        let unsettled = Unsettled::of(&op);
        let whole = match &op {
            Op::Create { make: Make::Symlink(_) | Make::Special(_), set, .. } => *set != SetAttr::default(),
            _ => true,
        };
        let outcome = self.backend.submit(op).await?;
        let unsettled = match &outcome {
            // One that was there, too: the one who made it may have been told that it is not durable, and asks again.
            Outcome::Created { attr, .. } => unsettled.and_made(attr.node, whole),
            _ => unsettled,
        };
        Ok((outcome, unsettled))
    }

    /// Makes a change durable.
    pub async fn settle(&self, Unsettled(nodes): Unsettled) -> Result<(), Error> {
        if self.settles {
            for node in nodes.into_iter().flatten() {
                // In a box: calls of those who settle nothing do not carry its room about.
                Box::pin(self.settle_node(node)).await?;
            }
        }
        Ok(())
    }

    async fn settle_node(&self, node: NodeId) -> Result<(), Error> {
        let flushed = async {
            if Streams::is_stream(node) {
                return self.open(node, false).await?.sync().await;
            }
            match self.getattr(node).await?.kind {
                Kind::File => {
                    let file: OpenFile = self.open(node, false).await?;
                    file.heard_by(self.health.clone()).sync().await
                }
                Kind::Dir => self.sync_dir(node).await,
                Kind::Symlink | Kind::Special(_) => Err(Error::NotSupported),
            }
        };
        match flushed.await {
            // Gone meanwhile, and settled by whoever removed it.
            Err(Error::Stale | Error::NotFound) => Ok(()),
            // For want of descriptors, too: "ask again later" is no answer to what has been done.
            Err(
                Error::Access | Error::NotPermitted | Error::Invalid | Error::NotSupported | Error::Limit(_),
            ) => match self.backend.submit(Op::SyncAll { node }).await {
                Err(Error::Limit(what)) => Err(Error::Io(std::io::Error::other(what))),
                done => done.map(drop),
            },
            done => done,
        }
    }
}
