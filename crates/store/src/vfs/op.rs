//! The requests to a backend, their arguments and their results.

use std::any::Any;
use std::sync::Arc;

use super::{
    Attr, Created, DirName, Listing, NodeId, OpenFile, Permissions, SetAttr, Space, Special, Stable,
    XattrSummary,
};

/// How SETXATTR treats an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Fail with [`Error::Exists`](super::Error::Exists).
    Create,
    /// Fail with [`Error::NoXattr`](super::Error::NoXattr) unless there is one.
    Replace,
    /// Create or replace.
    Either,
}

/// How CREATE treats an existing name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// Fail with [`Error::Exists`](super::Error::Exists).
    Fail,
    /// Return it (`created` is false); with `size` in `set` it is truncated.
    Reuse,
    /// NFSv3 exclusive: return it if it was created with this verifier, fail otherwise.
    Verifier([u8; 8]),
}

/// What to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Make {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A pipe, socket or device. The protocol, and then the kernel, decide whether the user may create a device.
    Special(Special),
}

/// One request to a backend.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Op {
    /// Looks up a name in a directory: [`Outcome::Attr`]. `..` of the root is the root. With `fold_case` a name that
    /// does not exist exactly matches one that differs only in case.
    Lookup { dir: NodeId, name: Vec<u8>, fold_case: bool },
    /// [`Outcome::Attr`].
    Getattr { node: NodeId },
    /// [`Outcome::Attr`] with the new attributes.
    Setattr { node: NodeId, set: SetAttr },
    /// [`Outcome::File`]. Regular files only.
    Open { node: NodeId, write: bool },
    /// [`Outcome::Created`].
    Create { dir: NodeId, name: Vec<u8>, make: Make, exists: Exists, set: SetAttr },
    /// Removes a file, link or other non-directory: [`Outcome::Unlinked`].
    Remove { dir: NodeId, name: Vec<u8> },
    /// Removes an empty directory: [`Outcome::Unlinked`].
    Rmdir { dir: NodeId, name: Vec<u8> },
    /// [`Outcome::Unlinked`]. Without `replace` an existing target fails with [`Error::Exists`](super::Error::Exists). Two names of one
    /// file stay unchanged (rename(2)).
    Rename { from: DirName, to: DirName, replace: bool },
    /// Adds a name to a file: [`Outcome::Done`].
    Link { node: NodeId, dir: NodeId, name: Vec<u8> },
    /// [`Outcome::Target`].
    Readlink { node: NodeId },
    /// At most `max` entries after `cookie` (0: from the start): [`Outcome::Entries`]. With `xattrs` each includes
    /// the summary of its file's extended attributes.
    Readdir { dir: NodeId, cookie: u64, max: usize, xattrs: bool },
    /// The current place of a node: its directory and name ([`Outcome::Place`]); an open handle deletes and renames
    /// through it.
    Place { node: NodeId },
    /// [`Outcome::Space`].
    Statfs,
    /// Makes a directory's entries durable: [`Outcome::Done`].
    SyncDir { dir: NodeId },
    /// Makes all data on the file system of a node durable: [`Outcome::Done`]. For nodes that no smaller flush can
    /// reach.
    SyncAll { node: NodeId },
    /// Keeps a node accessible although its name is removed: [`Outcome::Held`].
    Hold { node: NodeId },
    /// The value of an extended attribute, named without `user.`: [`Outcome::Value`].
    GetXattr { node: NodeId, name: Vec<u8> },
    /// [`Outcome::Done`].
    SetXattr { node: NodeId, name: Vec<u8>, value: Vec<u8>, how: SetXattr },
    /// The names of all extended attributes, including Weft's own: [`Outcome::Names`].
    ListXattrs { node: NodeId },
    /// [`Outcome::Done`].
    RemoveXattr { node: NodeId, name: Vec<u8> },
    /// The summary of a file's extended attributes: [`Outcome::XattrSummary`].
    XattrSummary { node: NodeId },
    /// [`Outcome::Stable`].
    Stable { node: NodeId },
    /// Whether the host allows removing the name: [`Outcome::Done`], or the error that [`Op::Remove`] or
    /// [`Op::Rmdir`] would return, as far as that is known beforehand.
    MayUnlink { dir: NodeId, name: Vec<u8> },
    /// Which of these permissions the caller has: [`Outcome::Permissions`]. All of them where no kernel judges.
    Access { node: NodeId, wanted: Permissions },
    /// The node of a file with this identity, which may have been given out before a restart: [`Outcome::Attr`].
    Find { stable: Stable },
}

/// What an operation does to the file system. Everything that treats operations by kind asks for this, so that a new
/// operation is classified once, here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect<'a> {
    /// It tells what needs no permission: its caller has found the node, or it is part of another operation.
    Inspects,
    /// It reads, which its caller may be forbidden.
    Reads,
    /// It makes earlier changes durable.
    Flushes,
    /// None yet: it opens a file whose bytes its caller may then change.
    OpensToWrite,
    /// None: it asks whether a name may be removed.
    AsksToRemove,
    /// It changes a node's attributes, possibly the size.
    SetsAttributes(NodeId),
    /// It changes a node's extended attributes.
    SetsXattrs(NodeId),
    /// It adds a name to a directory, of a new node or of an existing one.
    AddsName { dir: NodeId, name: &'a [u8], of: Option<NodeId> },
    /// It removes a name from a directory.
    RemovesName { dir: NodeId, name: &'a [u8] },
    /// It moves a name.
    Moves { from: &'a DirName, to: &'a DirName },
}

/// A directory and a name in it; `None` if the whole directory is read.
type Named<'a> = (NodeId, Option<&'a [u8]>);

/// The nodes that an operation names, and the names that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mentions<'a> {
    pub(crate) nodes: [Option<NodeId>; 2],
    pub(crate) names: [Option<Named<'a>>; 2],
}

impl Op {
    /// See [`Mentions`].
    pub(crate) fn mentions(&self) -> Mentions<'_> {
        match self {
            Op::Getattr { node }
            | Op::Setattr { node, .. }
            | Op::Open { node, .. }
            | Op::Readlink { node }
            | Op::Place { node }
            | Op::SyncDir { dir: node }
            | Op::SyncAll { node }
            | Op::Hold { node }
            | Op::GetXattr { node, .. }
            | Op::SetXattr { node, .. }
            | Op::ListXattrs { node }
            | Op::RemoveXattr { node, .. }
            | Op::XattrSummary { node }
            | Op::Stable { node }
            | Op::Access { node, .. } => Mentions { nodes: [Some(*node), None], names: [None, None] },
            Op::Lookup { dir, name, .. }
            | Op::Create { dir, name, .. }
            | Op::Remove { dir, name }
            | Op::Rmdir { dir, name }
            | Op::MayUnlink { dir, name } => {
                Mentions { nodes: [Some(*dir), None], names: [Some((*dir, Some(name))), None] }
            }
            Op::Readdir { dir, .. } => {
                Mentions { nodes: [Some(*dir), None], names: [Some((*dir, None)), None] }
            }
            Op::Link { node, dir, name } => {
                Mentions { nodes: [Some(*node), Some(*dir)], names: [Some((*dir, Some(name))), None] }
            }
            Op::Rename { from, to, .. } => Mentions {
                nodes: [Some(from.dir), Some(to.dir)],
                names: [Some((from.dir, Some(&from.name))), Some((to.dir, Some(&to.name)))],
            },
            Op::Statfs | Op::Find { .. } => Mentions { nodes: [None, None], names: [None, None] },
        }
    }

    /// See [`Effect`].
    pub(crate) fn effect(&self) -> Effect<'_> {
        match self {
            Op::Getattr { .. }
            | Op::Readlink { .. }
            | Op::Place { .. }
            | Op::Statfs
            | Op::Hold { .. }
            | Op::ListXattrs { .. }
            | Op::XattrSummary { .. }
            | Op::Stable { .. }
            | Op::Find { .. } => Effect::Inspects,
            Op::Lookup { .. }
            | Op::Open { write: false, .. }
            | Op::Readdir { .. }
            | Op::GetXattr { .. }
            | Op::Access { .. } => Effect::Reads,
            Op::SyncDir { .. } | Op::SyncAll { .. } => Effect::Flushes,
            Op::Open { write: true, .. } => Effect::OpensToWrite,
            Op::MayUnlink { .. } => Effect::AsksToRemove,
            Op::Setattr { node, .. } => Effect::SetsAttributes(*node),
            Op::SetXattr { node, .. } | Op::RemoveXattr { node, .. } => Effect::SetsXattrs(*node),
            Op::Create { dir, name, .. } => Effect::AddsName { dir: *dir, name, of: None },
            Op::Link { node, dir, name } => Effect::AddsName { dir: *dir, name, of: Some(*node) },
            Op::Remove { dir, name } | Op::Rmdir { dir, name } => Effect::RemovesName { dir: *dir, name },
            Op::Rename { from, to, .. } => Effect::Moves { from, to },
        }
    }
}

/// The result of an operation.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum Outcome {
    /// Attributes.
    Attr(Attr),
    /// An open file.
    File(OpenFile),
    /// A node, new or not.
    Created(Created),
    /// Names.
    Entries(Listing),
    /// Directory and name of a node.
    Place(DirName),
    /// A link's target.
    Target(Vec<u8>),
    /// Space.
    Space(Space),
    /// Keeps the node accessible until dropped.
    Held(Hold),
    /// An extended attribute.
    Value(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// Summary of a file's extended attributes.
    XattrSummary(XattrSummary),
    /// Permissions.
    Permissions(Permissions),
    /// The file's identity.
    Stable(Stable),
    /// A name was removed; contains the node if it is known to have lost its last name.
    Unlinked(Option<NodeId>),
    /// Nothing to return.
    Done,
}

/// Keeps a node accessible: while it lives, attributes can be read and set even after the name was removed. Every
/// open of a stateful protocol owns one.
pub struct Hold(#[allow(dead_code, reason = "it works by being kept")] Arc<dyn Any + Send + Sync>);

impl Hold {
    /// Wraps a value that the backend wants to keep alive.
    pub fn new(kept: Arc<dyn Any + Send + Sync>) -> Hold {
        Hold(kept)
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hold")
    }
}
