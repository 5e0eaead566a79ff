//! The reparse tag of a file.
//!
//! Spec: [MS-FSCC] 2.1.2.1. Only links, pipes, sockets and devices have one.

use weft_store::vfs::Kind;
use weft_wire::smb2::reparse::{NFS, SYMLINK};

/// The reparse tag of a kind of file.
pub(super) fn of(kind: Kind) -> Option<u32> {
    match kind {
        Kind::Symlink => Some(SYMLINK),
        Kind::Special(_) => Some(NFS),
        Kind::File | Kind::Dir => None,
    }
}
