//! Sessions and tree connects: who the user is, the keys, and what is connected and open.
//!
//! Spec: [MS-SMB2] 3.3.1.8 (session), 3.3.1.9 (tree connect).
//! Owns: the trees and the open table of a session. The server-wide table and the connections of a session share it
//! by `Arc`, so that further channels can bind to it. Does not: authenticate (see [`crate::auth`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_store::vfs::Share;


use super::ops::Opens;

/// A session that authenticated.
pub(crate) struct Session {
    /// SessionId: random, never 0.
    pub id: u64,
    /// The user's name as configured.
    pub user: Arc<str>,
    /// Open files and directories.
    pub opens: Opens,
    trees: Mutex<Trees>,
}

#[derive(Default)]
struct Trees {
    last: u32,
    by_id: HashMap<u32, Arc<Tree>>,
}

/// A share that a session is connected to.
pub(crate) struct Tree {
    /// TreeId: never 0.
    pub id: u32,
    /// The share; `None` is IPC$, which has no files.
    pub share: Option<Share>,
}
