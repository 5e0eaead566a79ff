//! Where bytes live: shares, the virtual file system and its backends, the one table of opens, and volumes of blocks.
//!
//! What: a [`Vfs`] is a tree of files behind one submit function; `dir` serves a folder, `ram` a memory disk. A
//! [`block::Block`] is a row of bytes behind another; [`volume`] keeps them in memory, in a file or on a device.
//! Owns: file descriptors of open files, share modes. Does not: know SMB, NFS or NBD; names are bytes, times are Unix.
#![forbid(unsafe_code)]

pub mod access;
pub mod backend;
pub mod block;
pub mod health;
pub mod opens;
pub mod rules;
pub mod set_id;
pub mod snapshots;
pub mod vfs;
pub mod volume;

pub use vfs::*;

/// Whether this process is root: then the kernel refuses it nothing, and who serves others has to decide for it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
