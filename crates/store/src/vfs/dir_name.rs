//! A name in a directory: what RFC 1813 calls diropargs3.

use super::NodeId;

/// A name in a directory, owned, or borrowed as `DirName<&[u8]>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirName<N = Vec<u8>> {
    /// The directory.
    pub dir: NodeId,
    /// The name, as the host has it.
    pub name: N,
}

impl DirName {
    /// The same without the name's memory.
    pub fn borrow(&self) -> DirName<&[u8]> {
        DirName { dir: self.dir, name: &self.name }
    }
}

impl DirName<&[u8]> {
    /// The same with memory of its own.
    pub fn to_owned(self) -> DirName {
        DirName { dir: self.dir, name: self.name.to_vec() }
    }
}
