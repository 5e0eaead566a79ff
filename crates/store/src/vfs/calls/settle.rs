//! Makes changes of names and attributes durable before they are answered, for protocols that guarantee that (NFS:
//! RFC 1813 1.4 and 4.8, RFC 8881 4.2.3.1 and 18.36). SMB guarantees it only for FLUSH.
//!
//! Every call of [`Vfs`] that changes something gets an [`Unsettled`] with its outcome, and settles it last, after
//! all notifications. File writes are not settled here; the caller decides about them ([`OpenFile::sync`]).
//!
//! | changed | flushed |
//! |---|---|
//! | attributes, extended attributes, a file's streams | the file or directory |
//! | a new name | the directory, and the new object |
//! | another name of a file | the file and the directory |
//! | a removed name | the directory |
//! | a moved name | both directories |
//! | an object that cannot be opened for flushing (links, devices, what the server may not read) | its file system |

use super::{Kind, Make, NodeId, Op, Outcome, SetAttr, Streams, Vfs};
use crate::vfs::{Created, Effect, Error, OpenFile};

/// The nodes to flush before a change is answered.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "a change is settled before it is answered"]
pub struct Unsettled([Option<NodeId>; 2]);

impl Unsettled {
    fn of(op: &Op) -> Unsettled {
        Unsettled(match op.effect() {
            Effect::SetsAttributes(node) | Effect::SetsXattrs(node) => [Some(node), None],
            Effect::AddsName { dir, of, .. } => [of, Some(dir)],
            Effect::RemovesName { dir, .. } => [None, Some(dir)],
            Effect::Moves { from, to } => [Some(to.dir), (from.dir != to.dir).then_some(from.dir)],
            Effect::Inspects
            | Effect::Reads
            | Effect::Flushes
            | Effect::OpensToWrite
            | Effect::AsksToRemove => [None, None],
        })
    }

    /// For a change of a file's streams.
    pub(super) fn streams(of: NodeId) -> Unsettled {
        Unsettled([Some(of), None])
    }

    /// For a request to create an existing file: its creator may have been told that it is not durable, and repeats
    /// the request. `file` is `None` if it has been flushed since.
    pub fn existing(file: Option<NodeId>, dir: NodeId) -> Unsettled {
        Unsettled([file, Some(dir)])
    }

    /// Adds the new object. A link or device without data of its own is durable with its name.
    fn and_made(self, made: NodeId, whole: bool) -> Unsettled {
        let Unsettled([_, dir]) = self;
        Unsettled([whole.then_some(made), dir])
    }
}

impl Vfs {
    /// The same file system, whose changes of names, attributes, and reserved, freed or cloned ranges are durable
    /// when they are answered. In memory nothing is durable.
    #[must_use]
    pub fn settled(self) -> Vfs {
        let settles = self.backend.changes_on_the_host();
        Vfs { settles, ..self }
    }

    /// Runs a changing operation.
    pub(super) async fn change(&self, op: Op) -> Result<(Outcome, Unsettled), Error> {
        if !self.settles {
            return Ok((self.submit(op).await?, Unsettled::default()));
        }
        let unsettled = Unsettled::of(&op);
        let whole = match &op {
            Op::Create { make: Make::Symlink(_) | Make::Special(_), set, .. } => *set != SetAttr::default(),
            _ => true,
        };
        let outcome = self.submit(op).await?;
        let unsettled = match &outcome {
            // Also for an existing object: its creator may have been told that it is not durable, and repeats the
            // request.
            Outcome::Created(Created { attr, .. }) => unsettled.and_made(attr.node, whole),
            _ => unsettled,
        };
        Ok((outcome, unsettled))
    }

    /// Makes a change durable.
    pub async fn settle(&self, Unsettled(nodes): Unsettled) -> Result<(), Error> {
        if self.settles {
            for node in nodes.into_iter().flatten() {
                // Boxed, so that calls that settle nothing do not carry its size.
                Box::pin(self.settle_node(node)).await?;
            }
        }
        Ok(())
    }

    async fn settle_node(&self, node: NodeId) -> Result<(), Error> {
        if self.is_judged() {
            // The change was made; whether its user may read the file does not matter.
            return Box::pin(self.as_server().settle_node(node)).await;
        }
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
            // Removed meanwhile, and settled by the remover.
            Err(Error::Stale | Error::NotFound) => Ok(()),
            // Also for lack of descriptors: the change has been made, so "try again later" would be wrong.
            Err(
                Error::Access | Error::NotPermitted | Error::Invalid | Error::NotSupported | Error::Limit(_),
            ) => match self.submit(Op::SyncAll { node }).await {
                Err(Error::Limit(what)) => Err(Error::Io(std::io::Error::other(what))),
                done => done.map(drop),
            },
            done => done,
        }
    }
}
