//! Where bytes live: shares, the virtual file system and its backends, and the one table of opens.
//!
//! What: a [`Vfs`] is a tree of files behind one submit function; `dir` serves a folder, `ram` a memory disk.
//! Owns: file descriptors of open files, share modes. Does not: know SMB or NFS; names are bytes, times are Unix.
#![forbid(unsafe_code)]

pub mod access;
pub mod backend;
pub mod opens;
pub mod vfs;

pub use vfs::*;

/// Whether this process is root: then the kernel refuses it nothing, and who serves others has to decide for it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
