//! In whose name an operation is carried out.
//!
//! A backend whose files are the kernel's makes its system calls with the rights of the caller, so that the kernel
//! judges modes and POSIX ACLs, and new files belong to him. A backend without such a judge serves every caller alike,
//! and its protocol decides.

use std::ops::{BitAnd, BitOr};
use std::sync::Arc;

use weft_machine::credentials::{self, Credentials};
use weft_machine::{LogLimit, rt};

use super::Error;

/// In whose name an operation is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The server's: its own work, and that of clients for whom it decides itself.
    Server,
    /// A user's.
    User(Arc<Credentials>),
}

impl Caller {
    /// Whether the kernel judges the operation for somebody else than the server.
    pub fn is_user(&self) -> bool {
        matches!(self, Caller::User(_))
    }

    /// Makes system calls with the caller's rights. They must not wait or start threads.
    pub(crate) fn run<T>(&self, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        match self {
            Caller::Server => act(),
            Caller::User(user) => credentials::as_user(user, act).unwrap_or_else(|e| {
                static REFUSED: LogLimit = LogLimit::new();
                if let Some(left_out) = REFUSED.pass(rt::now()) {
                    tracing::warn!(uid = user.uid(), "the server may not act for this user: {e}{left_out}");
                }
                Err(Error::Access)
            }),
        }
    }
}

/// Permissions on a file or directory, as access(2) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(u32);

impl Permissions {
    /// None.
    pub const NONE: Permissions = Permissions(0);
    /// To execute a file, or to use the names of a directory.
    pub const EXECUTE: Permissions = Permissions(1);
    /// To write.
    pub const WRITE: Permissions = Permissions(2);
    /// To read.
    pub const READ: Permissions = Permissions(4);
    /// All of them, one by one.
    pub const EACH: [Permissions; 3] = [Permissions::READ, Permissions::WRITE, Permissions::EXECUTE];

    /// The three lowest bits of a mode.
    pub fn from_bits(bits: u32) -> Permissions {
        Permissions(bits & 7)
    }

    /// As the three lowest bits of a mode.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are among them.
    pub fn contains(self, other: Permissions) -> bool {
        self & other == other
    }
}

impl BitOr for Permissions {
    type Output = Permissions;

    fn bitor(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }
}

impl BitAnd for Permissions {
    type Output = Permissions;

    fn bitand(self, other: Permissions) -> Permissions {
        Permissions(self.0 & other.0)
    }
}
