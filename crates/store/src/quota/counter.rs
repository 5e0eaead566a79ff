//! Counts a folder in the background: at the start, every [`RECOUNT`], and when asked. The shares of one folder have one
//! counter, so what one of them takes is taken from the others, too. It counts as long as there is such a share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use weft_machine::clock;

use super::folder::FolderId;
use super::ledger::{Allowance, Ledger, NO_LIMIT};
use super::record::{RECORD, Record};
use super::walk::{self, Unreached};

/// How often a folder is counted again.
pub const RECOUNT: Duration = Duration::from_secs(3600);
/// How often the log tells the progress of a count.
const TELL: Duration = Duration::from_secs(10);
/// How many times in a row a count is repeated because directories were moved during it.
const MAX_REPEATS: usize = 3;

/// See the module.
#[derive(Debug)]
struct Counter {
    folder: FolderId,
    root: Arc<OwnedFd>,
    ledger: Arc<Ledger>,
    /// By their numbers. Locked before the ring.
    shares: Mutex<BTreeMap<u64, Arc<CountedShare>>>,
    ring: Mutex<Ring>,
    bell: Condvar,
    /// One count at a time.
    turn: Mutex<()>,
}

/// A share of a counted folder.
#[derive(Debug)]
struct CountedShare {
    name: String,
    /// `None` if nothing is recorded, or nothing any more.
    record: Mutex<Option<Record>>,
}

#[derive(Debug, Default)]
struct Ring {
    /// No count has begun since somebody asked for one.
    is_wanted: bool,
    /// The last share has gone.
    is_over: bool,
    has_counted: bool,
}

/// All counters.
static COUNTERS: Mutex<Vec<Weak<Counter>>> = Mutex::new(Vec::new());

// Each change under a lock is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of one share in the count of its folder.
#[derive(Debug)]
pub(super) struct Count {
    counter: Arc<Counter>,
    number: u64,
    allowance: Arc<Allowance>,
}

impl Count {
    /// Lets a share's folder be counted, together with the other shares of it. The count is recorded in a file, and begins with
    /// what is recorded there.
    pub(super) fn begin(
        name: &str,
        root: &Arc<OwnedFd>,
        limit_bytes: u64,
        record: Option<&Path>,
    ) -> std::io::Result<Count> {
        let folder = FolderId::of(root)?;
        let mut record = record.map(|path| Record::new(path, folder.node));
        // Before the lock, because it may block.
        let used_bytes = record.as_mut().and_then(Record::read).unwrap_or(0);
        let share = Arc::new(CountedShare { name: name.to_owned(), record: Mutex::new(record) });
        let (counter, number) = {
            let mut all = lock(&COUNTERS);
            all.retain(|counter| counter.strong_count() > 0);
            let mut known = all.iter().filter_map(Weak::upgrade).filter(|counter| counter.folder == folder);
            let joined = known.find_map(|counter| Some((counter.join(&share)?, counter)));
            match joined {
                Some((number, counter)) => {
                    counter.ledger.remember(used_bytes);
                    counter.again();
                    (counter, number)
                }
                None => {
                    let counter = Counter::start(folder, root.clone(), (0, share), used_bytes)?;
                    all.push(Arc::downgrade(&counter));
                    (counter, 0)
                }
            }
        };
        let allowance = Allowance::new(counter.ledger.clone(), limit_bytes);
        Ok(Count { counter, number, allowance })
    }

    pub(super) fn allowance(&self) -> &Arc<Allowance> {
        &self.allowance
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.counter.ledger
    }

    /// Whether the first count is still under way.
    pub(super) fn is_counting(&self) -> bool {
        !lock(&self.counter.ring).has_counted
    }

    /// Lets the folder be counted again.
    pub(super) fn again(&self) {
        self.counter.again();
    }

    /// The share has no limit any more, and nothing is recorded for it.
    pub(super) fn end(&self) {
        self.allowance.set_limit(NO_LIMIT);
        let share = lock(&self.counter.shares).get(&self.number).cloned();
        let Some(share) = share else { return };
        if let Some(record) = lock(&share.record).take() {
            record.remove();
        }
    }

    /// Records a count now, for tests.
    #[cfg(test)]
    pub(super) fn keep(&self) {
        self.counter.keep();
    }

    /// Counts now, for tests: waits until a count is complete that has begun after this call.
    #[cfg(test)]
    pub(super) fn recount(&self) {
        self.counter.again();
        while {
            let _turn = lock(&self.counter.turn);
            lock(&self.counter.ring).is_wanted
        } {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let mut shares = lock(&self.counter.shares);
        shares.remove(&self.number);
        if shares.is_empty() {
            lock(&self.counter.ring).is_over = true;
            self.counter.bell.notify_all();
        }
    }
}

impl Counter {
    fn start(
        folder: FolderId,
        root: Arc<OwnedFd>,
        first: (u64, Arc<CountedShare>),
        used_bytes: u64,
    ) -> std::io::Result<Arc<Counter>> {
        let ledger = Ledger::new();
        ledger.remember(used_bytes);
        let counter = Arc::new(Counter {
            folder,
            root,
            ledger,
            shares: Mutex::new(BTreeMap::from([first])),
            ring: Mutex::default(),
            bell: Condvar::new(),
            turn: Mutex::default(),
        });
        let counts = counter.clone();
        std::thread::Builder::new().name("weft-count".to_owned()).spawn(move || counts.run())?;
        Ok(counter)
    }

    /// Adds a share, unless the last one has gone. Returns its number.
    fn join(&self, share: &Arc<CountedShare>) -> Option<u64> {
        let mut shares = lock(&self.shares);
        if lock(&self.ring).is_over {
            return None;
        }
        let number = shares.last_key_value().map_or(0, |(last, _)| last + 1);
        shares.insert(number, share.clone());
        Some(number)
    }

    /// Lets the thread count again.
    fn again(&self) {
        lock(&self.ring).is_wanted = true;
        self.bell.notify_all();
    }

    /// Its shares, for the log.
    fn names(&self) -> String {
        let shares = lock(&self.shares);
        let names: Vec<&str> = shares.values().map(|share| &*share.name).collect();
        format!("share{} {}", if names.len() == 1 { "" } else { "s" }, names.join(", "))
    }

    fn run(&self) {
        loop {
            self.count();
            let counted = clock::instant();
            while clock::since(counted) < RECOUNT {
                self.keep();
                let ring = lock(&self.ring);
                let waits = |ring: &mut Ring| !ring.is_wanted && !ring.is_over;
                let rung = self.bell.wait_timeout_while(ring, RECORD, waits);
                let (ring, _) = rung.unwrap_or_else(PoisonError::into_inner);
                if ring.is_over {
                    return;
                }
                if ring.is_wanted {
                    break;
                }
            }
        }
    }

    /// Records what is used.
    fn keep(&self) {
        let used_bytes = self.ledger.used_at_most();
        // Writing may block, so no share waits for it to come or go.
        let shares: Vec<_> = lock(&self.shares).values().cloned().collect();
        for share in shares {
            if let Some(record) = &mut *lock(&share.record) {
                record.write(used_bytes);
            }
        }
    }

    fn count(&self) {
        let _turn = lock(&self.turn);
        lock(&self.ring).is_wanted = false;
        for repeat in 0..=MAX_REPEATS {
            let is_last = repeat == MAX_REPEATS;
            if !self.count_once(is_last) {
                break;
            }
        }
        lock(&self.ring).has_counted = true;
    }

    /// Returns whether it is to be repeated.
    fn count_once(&self, is_last: bool) -> bool {
        let begun = clock::instant();
        let (told, kept) = (Cell::new(begun), Cell::new(begun));
        let ends = || {
            if clock::since(kept.get()) >= RECORD {
                kept.set(clock::instant());
                self.keep();
            }
            if clock::since(told.get()) >= TELL {
                told.set(clock::instant());
                let (names, files) = (self.names(), self.ledger.files());
                tracing::info!("{names}: counting for its quota, {files} files so far");
            }
            lock(&self.ring).is_over
        };
        match walk::count(&self.root, &self.ledger, ends) {
            Ok((counted, closed)) => {
                let (files, used, names) = (self.ledger.files(), self.ledger.used_bytes(), self.names());
                self.ledger.set_unknown(false);
                let is_repeated = counted.is_uncertain && !is_last;
                if !is_repeated {
                    self.ledger.forget_remembered(closed > 0);
                }
                if closed > 0 {
                    tracing::warn!(
                        "{names}: {closed} folders or files cannot be reached, so they count for the quota only as far as they were \
                         known before"
                    );
                }
                let (took, limit) = (clock::since(begun), self.ledger.least_bytes());
                tracing::info!(
                    "{names}: {used} of {limit} bytes are used, in {files} files; counted in {took:.1?}"
                );
                is_repeated
            }
            Err(Unreached::Ended) => false,
            Err(why) => {
                // Never silently: what cannot be counted may not grow.
                self.ledger.set_unknown(true);
                tracing::error!(
                    "{}: its quota cannot be counted: {why}; nothing in it may grow until that is mended: move files out of it, or let \
                     the kernel count (ext4: tune2fs -O project,quota; XFS and ext4: mount -o prjquota)",
                    self.names()
                );
                false
            }
        }
    }
}
