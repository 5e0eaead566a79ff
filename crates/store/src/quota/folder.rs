//! Which folder a quota is of: two shares of one folder use the same space.

use std::io;
use std::os::fd::OwnedFd;

/// The identity of a folder, whatever its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FolderId {
    device: u64,
    /// Its inode.
    pub node: u64,
}

impl FolderId {
    pub(super) fn of(root: &OwnedFd) -> io::Result<FolderId> {
        let stat = rustix::fs::fstat(root)?;
        Ok(FolderId { device: stat.st_dev, node: stat.st_ino })
    }
}
