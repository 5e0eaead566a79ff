//! Files whose last name is gone: whoever keeps a descriptor of one without having it open closes it, so that the file
//! system gets the space back.
//!
//! What: [`Cache`] is told at once of what this server removes or replaces ([`Caches::forget`]). What other programs remove is found
//! by a thread that looks at the cached descriptors of every share, a bounded number each turn. Owns: that thread, which ends with
//! the last share. Does not: close what a client has open; that lives on without a name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use weft_machine::clock;

use super::{Backend, NodeId, ShareId};

/// How often the thread looks. With [`PER_TURN`] descriptors it has seen the 4096 that a `dir` share caches within 40 seconds.
const TURN: Duration = Duration::from_secs(10);
/// Descriptors of a share looked at in one turn: a system call of half a microsecond each.
const PER_TURN: usize = 1024;

/// Keeps open files between requests without a client having them open.
pub trait Cache: Send + Sync {
    /// The last name of a file of `share` is gone; it was added with that ([`super::Vfs::add_cache`]).
    fn forget(&self, share: ShareId, node: NodeId);
    /// Closes the files of `share` that have no name any more.
    fn sweep(&self, share: ShareId);
}

/// The caches of one file system, with the number by which each knows it.
#[derive(Default)]
pub(super) struct Caches {
    all: Mutex<Vec<(ShareId, Weak<dyn Cache>)>>,
    /// Nobody changes anything in this file system, so neither does the thread.
    read_only: AtomicBool,
}

impl Caches {
    pub(super) fn add(&self, share: ShareId, cache: Weak<dyn Cache>) {
        let mut caches = lock(&self.all);
        caches.retain(|(_, cache)| cache.strong_count() > 0);
        caches.push((share, cache));
    }

    /// Outside the lock, because closing a file can take time.
    fn each(&self, act: impl Fn(&dyn Cache, ShareId)) {
        let all = lock(&self.all).clone();
        all.iter().for_each(|(share, cache)| {
            if let Some(cache) = cache.upgrade() {
                act(&*cache, *share);
            }
        });
    }

    pub(super) fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    pub(super) fn forget(&self, node: NodeId) {
        self.each(|cache, share| cache.forget(share, node));
    }

    pub(super) fn sweep(&self) {
        self.each(|cache, share| cache.sweep(share));
    }
}

/// What the thread looks after.
struct Swept {
    backend: Weak<dyn Backend>,
    caches: Weak<Caches>,
}

impl Swept {
    fn turn(&self) {
        let (Some(backend), Some(caches)) = (self.backend.upgrade(), self.caches.upgrade()) else { return };
        backend.sweep(PER_TURN);
        if !caches.read_only.load(Ordering::Acquire) {
            backend.tidy(clock::instant());
        }
        caches.sweep();
    }
}

/// The shares that are looked after. The thread runs while there are any.
static SHARES: Mutex<Vec<Swept>> = Mutex::new(Vec::new());

/// Has the thread look after a share until it is dropped.
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
            "the space of files that other programs delete may stay in use: no thread to look for them: {e}"
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

// A list that a panic left is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
