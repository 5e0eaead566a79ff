//! Storage: shares, the virtual file system and its backends, the table of opens, and block volumes.
//!
//! A [`Vfs`] is a tree of files behind one submit function; `dir` serves a folder, `ram` a memory disk. A
//! [`block::Block`] is a linear array of bytes behind another; [`volume`] keeps them in memory, in a file or on a
//! device. Nothing here knows SMB, NFS or NBD; names are bytes, times are Unix.
#![forbid(unsafe_code)]

pub mod access;
pub mod audit;
pub mod backend;
pub mod block;
pub mod health;
pub mod opens;
pub mod quota;
pub mod rights;
pub mod rules;
pub mod set_id;
pub mod snapshots;
pub mod vfs;
pub mod volume;

pub use vfs::*;

/// Whether this process is root: then the kernel refuses it nothing, and a server must make access decisions itself.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
