//! Identifies a file of some share.

use weft_store::{NodeId, ShareKey};

/// A node of one of the server's shares.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FileId {
    /// The share.
    pub share: ShareKey,
    /// The node there.
    pub node: NodeId,
}
