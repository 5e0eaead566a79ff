//! The shares of a server, which can be replaced while it runs.
//!
//! A [`ShareList`] never changes. A request or a session reads one list until it ends, so it sees one configuration;
//! [`CurrentShares`] holds the list for those that begin. A reader keeps its list, and finds out by one atomic load
//! that there is a newer one. A reader that waits for its client follows the changes instead, so that it does not
//! keep the files of a removed share open.

use std::ops::Index;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use weft_machine::rt::{ChangeCount, Follower};

use super::{Share, ShareId, ShareKey};

/// The shares at one time, in listing order. Their names and ids differ.
pub struct ShareList {
    shares: Arc<[Arc<Share>]>,
    /// Number of lists before this one.
    number: u64,
    /// How each share is shown, if not as it is.
    view: Option<View>,
}

/// Another look at the shares of a list. A share is looked at when it is first used, because a list may have thousands and a
/// request uses one.
struct View {
    /// In the list's order.
    seen: Box<[OnceLock<Arc<Share>>]>,
    look: Box<dyn Fn(&Share) -> Share + Send + Sync>,
}

impl ShareList {
    /// Number of lists that it has replaced, directly or not.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn new(shares: Vec<Share>, number: u64) -> ShareList {
        ShareList { shares: shares.into_iter().map(Arc::new).collect(), number, view: None }
    }

    /// The same shares, as `look` shows each. Call it on a list that has no view.
    #[must_use]
    pub fn viewed(&self, look: impl Fn(&Share) -> Share + Send + Sync + 'static) -> ShareList {
        let seen = self.shares.iter().map(|_| OnceLock::new()).collect();
        let view = Some(View { seen, look: Box::new(look) });
        ShareList { shares: self.shares.clone(), number: self.number, view }
    }

    /// A share, as the list shows it. `at` is below the number of shares.
    fn shown(&self, at: usize) -> &Arc<Share> {
        match &self.view {
            None => &self.shares[at],
            Some(view) => view.seen[at].get_or_init(|| Arc::new((view.look)(&self.shares[at]))),
        }
    }

    /// The number of shares.
    pub fn len(&self) -> usize {
        self.shares.len()
    }

    /// Whether there are no shares.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// The shares.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Share>> {
        (0..self.shares.len()).map(|at| self.shown(at))
    }

    fn find(&self, is_wanted: impl Fn(&Share) -> bool) -> Option<&Arc<Share>> {
        self.shares.iter().position(|share| is_wanted(share)).map(|at| self.shown(at))
    }

    /// The share with this id.
    pub fn get(&self, id: ShareId) -> Option<&Arc<Share>> {
        self.find(|share| share.id == id)
    }

    /// The share with this id, if it still serves the same file system.
    pub fn of(&self, key: ShareKey) -> Option<&Arc<Share>> {
        self.get(key.id).filter(|share| share.vfs.id() == key.vfs)
    }

    /// The share with exactly this name.
    pub fn named(&self, name: &[u8]) -> Option<&Arc<Share>> {
        self.find(|share| share.name.as_bytes() == name)
    }
}

impl Index<usize> for ShareList {
    type Output = Arc<Share>;

    fn index(&self, at: usize) -> &Arc<Share> {
        self.shown(at)
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
        let list = Arc::new(ShareList::new(shares, 0));
        CurrentShares { list: RwLock::new(list), changes: ChangeCount::default() }
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
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let number = list.number.wrapping_add(1);
        let old = std::mem::replace(&mut *list, Arc::new(ShareList::new(shares, number)));
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
    fn a_view_looks_at_a_share_once_and_only_when_it_is_used() {
        let shares = (0..1000).map(|at| Share::new(format!("s{at}"), ram())).collect();
        let list = CurrentShares::new(shares).now();
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = looks.clone();
        let view = list.viewed(move |share| {
            counted.fetch_add(1, Ordering::Relaxed);
            Share { vfs: share.vfs.clone().read_only(), ..share.clone() }
        });
        assert_eq!((view.len(), view.number(), looks.load(Ordering::Relaxed)), (1000, 0, 0));
        let id = list[7].id;
        for seen in [view.get(id), view.of(list[7].key()), view.named(b"s7"), Some(&view[7])] {
            let seen = seen.expect("the share");
            assert!(seen.id == id && seen.vfs.is_read_only());
        }
        assert!(view.named(b"none").is_none());
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        assert!(view.iter().all(|share| share.vfs.is_read_only()), "no share is shown as it is");
        assert_eq!(looks.load(Ordering::Relaxed), 1000);
        assert!(!list[7].vfs.is_read_only());
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
