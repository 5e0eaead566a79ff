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

/// The user of this process, as [`user_name`].
pub fn own_user() -> String {
    user_name(rustix::process::geteuid().as_raw())
}

/// The name of a user of this host (passwd(5)), because a directory service may not answer, or else the number.
pub fn user_name(uid: u32) -> String {
    let uid = uid.to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(&uid)).then(|| name.to_owned())
    });
    name.unwrap_or(uid)
}
