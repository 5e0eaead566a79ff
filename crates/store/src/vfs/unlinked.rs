//! Files that have lost their last name: caches close their descriptors, so that the file system frees the space.
//!
//! A [`Cache`] is notified at once about files that this server removes or replaces ([`Caches::forget`]). A thread
//! detects removals by other programs: it checks the cached descriptors of every share, a bounded number each time,
//! and ends with the last share. Files open by clients stay open without a name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use weft_machine::clock;

use super::{Backend, NodeId, ShareKey};

/// How often the thread runs. With [`PER_TURN`] descriptors it checks the 4096 that a `dir` share caches within 40
/// seconds.
const TURN: Duration = Duration::from_secs(10);
/// Descriptors of a share checked each time: a system call of half a microsecond each.
const PER_TURN: usize = 1024;

/// Keeps files open between requests, although no client has them open.
pub trait Cache: Send + Sync {
    /// A file of `share` has lost its last name; the cache was added with its id ([`super::Vfs::add_cache`]).
    fn forget(&self, share: ShareKey, node: NodeId);
    /// Closes the files of `share` without a name.
    fn sweep(&self, share: ShareKey);
    /// Closes all files of `share`.
    fn close(&self, share: ShareKey);
}

/// The caches of one file system, with the share as which each knows it.
#[derive(Default)]
pub(super) struct Caches {
    all: Mutex<Vec<(ShareKey, Weak<dyn Cache>)>>,
    /// Whether this file system is read-only, so that the thread must not change it either.
    read_only: AtomicBool,
}

impl Caches {
    pub(super) fn add(&self, share: ShareKey, cache: Weak<dyn Cache>) {
        let mut caches = lock(&self.all);
        // A share that comes back is added again.
        let known = |(of, old): &(ShareKey, Weak<dyn Cache>)| *of == share && old.ptr_eq(&cache);
        caches.retain(|entry| entry.1.strong_count() > 0 && !known(entry));
        caches.push((share, cache));
    }

    /// Outside of the lock, because closing a file can take time.
    fn each(&self, act: impl Fn(&dyn Cache, ShareKey)) {
        let all = lock(&self.all).clone();
        all.iter().for_each(|(share, cache)| {
            if let Some(cache) = cache.upgrade() {
                act(&*cache, *share);
            }
        });
    }

    pub(super) fn set_read_only(&self, is_read_only: bool) {
        self.read_only.store(is_read_only, Ordering::Release);
    }

    pub(super) fn are_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    pub(super) fn forget(&self, node: NodeId) {
        self.each(|cache, share| cache.forget(share, node));
    }

    pub(super) fn close(&self) {
        self.each(|cache, share| cache.close(share));
    }

    pub(super) fn sweep(&self) {
        self.each(|cache, share| cache.sweep(share));
    }
}

/// A share that the thread handles.
struct Swept {
    backend: Weak<dyn Backend>,
    caches: Weak<Caches>,
}

impl Swept {
    fn turn(&self) {
        let (Some(backend), Some(caches)) = (self.backend.upgrade(), self.caches.upgrade()) else { return };
        backend.sweep(PER_TURN);
        if !caches.are_read_only() {
            backend.tidy(clock::instant());
        }
        caches.sweep();
    }
}

/// The handled shares. The thread runs while there are any.
static SHARES: Mutex<Vec<Swept>> = Mutex::new(Vec::new());

/// Lets the thread handle a share until it is dropped.
pub(super) fn look_after(backend: &Arc<dyn Backend>, caches: &Arc<Caches>) {
    if !backend.changes_on_the_host() {
        return;
    }
    let mut shares = lock(&SHARES);
    let idle = shares.is_empty();
    shares.push(Swept { backend: Arc::downgrade(backend), caches: Arc::downgrade(caches) });
    drop(shares);
    if !idle {
        return;
    }
    if let Err(e) = std::thread::Builder::new().name("weft-sweep".to_owned()).spawn(run) {
        lock(&SHARES).clear();
        tracing::warn!(
            "cannot start the thread that detects files deleted by other programs; their space may stay in use: {e}"
        );
    }
}

fn run() {
    loop {
        std::thread::sleep(TURN);
        let mut shares = lock(&SHARES);
        shares.retain(|share| share.backend.strong_count() > 0);
        if shares.is_empty() {
            return;
        }
        let turn: Vec<Swept> = shares
            .iter()
            .map(|share| Swept { backend: share.backend.clone(), caches: share.caches.clone() })
            .collect();
        drop(shares);
        turn.iter().for_each(Swept::turn);
    }
}

// A list is consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
