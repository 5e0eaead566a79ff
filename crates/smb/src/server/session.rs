//! Sessions and tree connects: who the user is, the keys, and what is connected and open.
//!
//! Spec: [MS-SMB2] 3.3.1.8 (session), 3.3.1.9 (tree connect), 3.3.5.5.3 (its end by PreviousSessionId).
//! Owns: the trees and the open table of a session. The server-wide table and the connections of a session share it
//! by `Arc`, so that further channels can bind to it. Does not: authenticate (see [`super::session_setup`]).
//!
//! A session ends once, by whoever comes first (LOGOFF, its connection's end, a newer session): from then on no
//! connection finds it, and its opens are closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_store::vfs::Share;

use super::ops::Opens;
use crate::crypto::SessionKeys;
use crate::ids::IdMap;

/// A session that authenticated.
pub(crate) struct Session {
    /// SessionId: random, never 0 or -1.
    pub id: u64,
    /// The user's name as configured.
    pub user: Arc<str>,
    /// Open files and directories.
    pub opens: Opens,
    pub(super) keys: SessionKeys,
    /// Requests that came neither signed nor encrypted are refused.
    pub(super) signing_required: bool,
    /// Requests that did not come encrypted are refused.
    pub(super) encrypt: bool,
    ended: AtomicBool,
    trees: Mutex<Trees>,
}

#[derive(Default)]
struct Trees {
    last: u32,
    by_id: IdMap<u32, Arc<Tree>>,
}

/// A share that a session is connected to.
pub(crate) struct Tree {
    /// TreeId: never 0 or -1.
    pub id: u32,
    /// The share; `None` is IPC$, which has no files.
    pub share: Option<Share>,
}

impl Session {
    pub(super) fn new(
        id: u64,
        user: Arc<str>,
        keys: SessionKeys,
        signing_required: bool,
        encrypt: bool,
    ) -> Session {
        Session {
            id,
            user,
            opens: Opens::default(),
            keys,
            signing_required,
            encrypt,
            ended: AtomicBool::new(false),
            trees: Mutex::default(),
        }
    }

    /// Whether it has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends it: no request finds it any more, what is open is closed, delete-on-close included.
    pub(super) async fn end(&self, table: &Sessions) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            table.remove(self.id);
            lock(&self.trees).by_id.clear();
            self.opens.close_all().await;
        }
    }

    /// The tree of this id.
    pub(super) fn tree(&self, id: u32) -> Option<Arc<Tree>> {
        lock(&self.trees).by_id.get(&id).cloned()
    }

    /// Connects to a share, unless the session has `limit` trees already.
    pub(super) fn connect(&self, share: Option<Share>, limit: usize) -> Option<Arc<Tree>> {
        let trees = &mut *lock(&self.trees);
        if trees.by_id.len() >= limit {
            return None;
        }
        // The limit is far below 2^32, so a free id is found soon.
        loop {
            trees.last = trees.last.wrapping_add(1);
            let id = trees.last;
            if id != 0 && id != u32::MAX && !trees.by_id.contains_key(&id) {
                let tree = Arc::new(Tree { id, share });
                trees.by_id.insert(id, tree.clone());
                return Some(tree);
            }
        }
    }

    /// Leaves a share; false when there is no such tree.
    pub(super) async fn disconnect(&self, id: u32) -> bool {
        let found = lock(&self.trees).by_id.remove(&id).is_some();
        if found {
            self.opens.close_tree(id).await;
        }
        found
    }
}

/// Every session of the server: GlobalSessionTable.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<u64, Arc<Session>>>);

impl Sessions {
    /// Enters a session; false when its id is taken.
    pub(super) fn insert(&self, session: &Arc<Session>) -> bool {
        let mut table = lock(&self.0);
        match table.contains_key(&session.id) {
            true => false,
            false => table.insert(session.id, session.clone()).is_none(),
        }
    }

    pub(super) fn find(&self, id: u64) -> Option<Arc<Session>> {
        lock(&self.0).get(&id).cloned()
    }

    fn remove(&self, id: u64) {
        lock(&self.0).remove(&id);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of these tables is one call that cannot panic half way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
