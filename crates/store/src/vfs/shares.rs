//! The shares of a server, which can be replaced while it runs.
//!
//! A [`ShareList`] never changes. A request or a session reads one list until it ends, so it sees one configuration;
//! [`CurrentShares`] holds the list for those that begin. A reader keeps its list, and finds out by one atomic load
//! that there is a newer one. A reader that waits for its client follows the changes instead, so that it does not
//! keep the files of a removed share open.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use weft_machine::rt::{ChangeCount, Follower};

use super::{Share, ShareId, ShareKey};

/// The shares at one time, in listing order. Their names and ids differ.
pub struct ShareList {
    shares: Vec<Arc<Share>>,
    /// Number of lists before this one.
    number: u64,
}

impl ShareList {
    /// Number of lists that it has replaced, directly or not.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The same shares, as `view` shows each.
    #[must_use]
    pub fn viewed(&self, view: impl Fn(&Share) -> Share) -> ShareList {
        ShareList {
            shares: self.shares.iter().map(|share| Arc::new(view(share))).collect(),
            number: self.number,
        }
    }

    /// The share with this id.
    pub fn get(&self, id: ShareId) -> Option<&Arc<Share>> {
        self.shares.iter().find(|share| share.id == id)
    }

    /// The share with this id, if it still serves the same file system.
    pub fn of(&self, key: ShareKey) -> Option<&Arc<Share>> {
        self.get(key.id).filter(|share| share.vfs.id() == key.vfs)
    }

    /// The share with exactly this name.
    pub fn named(&self, name: &[u8]) -> Option<&Arc<Share>> {
        self.shares.iter().find(|share| share.name.as_bytes() == name)
    }
}

impl Deref for ShareList {
    type Target = [Arc<Share>];

    fn deref(&self) -> &[Arc<Share>] {
        &self.shares
    }
}

/// The current list of shares.
pub struct CurrentShares {
    list: RwLock<Arc<ShareList>>,
    /// Its count is the number of the current list.
    changes: ChangeCount,
}

impl CurrentShares {
    /// These shares, until they are replaced.
    pub fn new(shares: Vec<Share>) -> CurrentShares {
        let list = ShareList { shares: shares.into_iter().map(Arc::new).collect(), number: 0 };
        CurrentShares { list: RwLock::new(Arc::new(list)), changes: ChangeCount::default() }
    }

    // It guards a pointer, which no panic leaves half-changed.
    fn list(&self) -> RwLockReadGuard<'_, Arc<ShareList>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current list.
    pub fn now(&self) -> Arc<ShareList> {
        self.list().clone()
    }

    /// Whether this is the current list. Takes no lock.
    pub fn is_current(&self, list: &ShareList) -> bool {
        list.number == self.changes.count()
    }

    /// Whether this share is served now, by the same file system.
    pub fn serves(&self, share: ShareKey) -> bool {
        self.list().of(share).is_some()
    }

    /// The current share with this name, in any case.
    pub fn named(&self, name: &str) -> Option<Share> {
        let wanted = name.to_lowercase();
        self.list().iter().find(|share| share.name.to_lowercase() == wanted).map(|share| Share::clone(share))
    }

    /// Replaces the list; returns the old one.
    pub fn replace(&self, shares: Vec<Share>) -> Arc<ShareList> {
        let shares = shares.into_iter().map(Arc::new).collect();
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let number = list.number.wrapping_add(1);
        let old = std::mem::replace(&mut *list, Arc::new(ShareList { shares, number }));
        // Under the lock: a reader that sees the new count waits for the new list.
        self.changes.advance();
        old
    }

    /// Registers a task that is woken when the list is replaced. Its count is the number of the current list.
    pub fn follow(&self) -> Follower<'_> {
        self.changes.follow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Ram;
    use crate::vfs::Vfs;

    fn ram() -> Vfs {
        Vfs::new(Ram::new(1 << 20))
    }

    #[test]
    fn a_reader_keeps_its_list_and_sees_that_it_is_old() {
        let current = CurrentShares::new(vec![Share::new("a", ram()), Share::new("b", ram())]);
        let read = current.now();
        assert!(current.is_current(&read));
        let kept = Share::clone(&read[1]);
        let old = current.replace(vec![kept]);
        assert!(Arc::ptr_eq(&old, &read) && !current.is_current(&read));
        assert!(read.named(b"a").is_some() && current.named("A").is_none() && current.named("B").is_some());
        let now = current.now();
        assert!(current.is_current(&now));
        assert_eq!((read.number(), now.number(), now.len()), (0, 1, 1));
        assert!(current.serves(read[1].key()), "at another position");
        assert!(!current.serves(read[0].key()));
    }

    #[test]
    fn a_share_of_other_files_has_another_key() {
        let vfs = ram();
        let share = |vfs: &Vfs| Share::new("data", vfs.clone());
        let current = CurrentShares::new(vec![share(&vfs)]);
        let key = current.now()[0].key();
        current.replace(vec![share(&vfs.clone().read_only().settled())]);
        assert!(current.serves(key), "these are the same files");
        current.replace(vec![share(&ram())]);
        assert!(!current.serves(key));
        assert!(current.now().get(key.id).is_some());
        current.replace(vec![share(&vfs)]);
        assert!(current.serves(key));
    }
}
