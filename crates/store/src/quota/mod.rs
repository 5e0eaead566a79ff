//! The quota of a share: how much its folder may occupy.
//!
//! | way | where | what it costs |
//! |---|---|---|
//! | by the kernel (`project`) | ext4 with the features project and quota, XFS mounted with prjquota | nothing |
//! | by counting (`ledger`, `walk`, `backend`) | any folder of at most [`MAX_FILES`] files | memory for each file, and an atomic operation for each write |
//!
//! The server counts in the background: at each start, every [`RECOUNT`] and after each reload, because other programs may
//! write to the folder. During a count it also counts its clients' writes. Until the first count is complete, what was used
//! before the restart counts (`record`). A quota is refused if the folder has too many files to count. If the folder gets
//! too many files later, nothing in it may grow until a count finds fewer.
//!
//! A quota can be exceeded, because it was lowered or because other programs write to the folder. Clients may then still
//! read, overwrite, rename and delete.

mod backend;
mod ledger;
mod project;
mod record;
mod walk;

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use weft_machine::clock;

use self::backend::Counting;
use self::ledger::Ledger;
pub use self::ledger::{CREDIT_BYTES, MAX_FILES, SLACK_BYTES};
use self::project::NoProject;
use self::record::{RECORD, Record};
use self::walk::Unreached;
use crate::vfs::Backend;

/// How often a folder is counted again.
pub const RECOUNT: Duration = Duration::from_secs(3600);
/// How long the check of a new quota may count files.
const LOOK: Duration = Duration::from_secs(2);
/// How often the log tells the progress of a count.
const TELL: Duration = Duration::from_secs(10);
/// How many times in a row a count is repeated because directories were moved during it.
const MAX_REPEATS: usize = 3;

/// A quota that cannot be enforced.
#[derive(Debug, thiserror::Error)]
#[error(
    "{folder} has more than {MAX_FILES} files, too many to count for a quota, and {why}: use a file system with project quotas \
     (ext4: tune2fs -O project,quota DEVICE while it is not mounted, then mount -o prjquota; XFS: mount -o prjquota), and add \
     the quota as root"
)]
pub struct Uncountable {
    folder: String,
    why: NoProject,
}

/// How a quota is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// By the kernel, as the quota of the project with this number.
    Project(u32),
    /// By counting.
    Count {
        /// Files and directories found so far.
        files: u64,
        /// Whether the first count is still under way.
        is_counting: bool,
        /// Whether the folder has too many files, so that nothing may grow.
        is_unknown: bool,
    },
}

/// What a share uses of its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The quota.
    pub limit_bytes: u64,
    /// The space in use. It exceeds the limit if the limit was lowered, or if other programs write to the folder.
    pub used_bytes: u64,
    /// How it is enforced.
    pub means: Means,
}

/// See the module. Clones are the same quota.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Enforced>);

#[derive(Debug)]
struct Enforced {
    name: String,
    root: Arc<OwnedFd>,
    limit_bytes: AtomicU64,
    /// Where a count is recorded.
    record: Option<PathBuf>,
    by: By,
}

#[derive(Debug)]
enum By {
    Project(u32),
    Count(Arc<Counter>),
}

/// The file in a state directory where the count of a folder is kept that a share limits.
pub fn record_file(state: &Path, share: &str, folder: &Path) -> PathBuf {
    record::file(state, share, folder)
}

/// Checks a quota before anything changes: [`Uncountable`] if it can neither be left to the kernel nor be counted. Blocks.
pub fn check(folder: &Path, root: impl AsFd, limit_bytes: u64) -> Result<(), Uncountable> {
    let Ok(root) = readable(root) else { return Ok(()) };
    let why = match project::can_limit(&root, limit_bytes) {
        Ok(()) => return Ok(()),
        Err(why) => why,
    };
    let begun = clock::instant();
    match walk::has_at_most(&root, MAX_FILES, || begun.elapsed() >= LOOK) {
        true => Ok(()),
        false => Err(Uncountable { folder: folder.display().to_string(), why }),
    }
}

/// Lets the kernel limit a folder, on behalf of a server that lacks the privilege. Returns the project, or `None` if the
/// kernel cannot do it and the server must count. Blocks.
pub fn let_the_kernel(folder: &Path, limit_bytes: u64) -> std::io::Result<Option<u32>> {
    let root = readable(rustix::fs::open(
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)?;
    check(folder, &root, limit_bytes).map_err(std::io::Error::other)?;
    match project::limit(&root, limit_bytes, &|| ()) {
        Ok(id) => Ok(Some(id)),
        Err(NoProject::Io(e)) => Err(e),
        Err(NoProject::Unsupported | NoProject::Forbidden | NoProject::Others) => Ok(None),
    }
}

/// Removes the limit that [`let_the_kernel`] or a server has set on a folder.
pub fn release(folder: &Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    project::unlimit(&rustix::fs::open(folder, flags, Mode::empty())?);
    Ok(())
}

/// A descriptor of a directory that can be read.
fn readable(root: impl AsFd) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(root, c".", flags, Mode::empty())?)
}

impl Quota {
    /// Limits the folder with this open root, which is served as share `name`. Blocks while the kernel's project is made; a
    /// count begins in the background.
    ///
    /// A count is recorded in the file `record`, and begins with what is recorded there. Calls `goes_on` now and then: all files
    /// of a large folder get the kernel's project one by one.
    pub fn new(
        name: &str,
        root: impl AsFd,
        limit_bytes: u64,
        record: Option<&Path>,
        goes_on: &dyn Fn(),
    ) -> std::io::Result<Quota> {
        let root = Arc::new(readable(root)?);
        let by = match project::limit(&root, limit_bytes, goes_on) {
            Ok(id) => {
                tracing::info!("share {name}: the kernel enforces its quota, as that of project {id}");
                By::Project(id)
            }
            Err(why) => {
                tracing::info!("share {name}: its quota is enforced by counting, because {why}");
                By::Count(Counter::start(name, root.clone(), limit_bytes, record)?)
            }
        };
        let (limit_bytes, record) = (AtomicU64::new(limit_bytes), record.map(Path::to_owned));
        Ok(Quota(Arc::new(Enforced { name: name.to_owned(), root, limit_bytes, record, by })))
    }

    /// The same quota with another limit; it is counted again. Another quota if the kernel does not take the limit.
    pub fn limited_to(&self, limit_bytes: u64) -> std::io::Result<Quota> {
        let Enforced { name, root, limit_bytes: limit, record, by } = &*self.0;
        match by {
            By::Project(_) if limit.load(Ordering::Relaxed) == limit_bytes => Ok(self.clone()),
            By::Project(_) => Quota::new(name, root, limit_bytes, record.as_deref(), &|| ()),
            By::Count(counter) => {
                counter.ledger.set_limit(limit_bytes);
                limit.store(limit_bytes, Ordering::Relaxed);
                counter.again();
                Ok(self.clone())
            }
        }
    }

    /// Lets a quota that is counted be counted again.
    pub fn count_again(&self) {
        if let By::Count(counter) = &self.0.by {
            counter.again();
        }
    }

    /// The share has no quota any more.
    pub fn end(&self) {
        match &self.0.by {
            By::Project(_) => project::unlimit(&self.0.root),
            By::Count(counter) => counter.forget(),
        }
    }

    /// Whether both are one, so that files that are open stay limited.
    pub fn is(&self, other: &Quota) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The quota in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes.load(Ordering::Relaxed)
    }

    /// What is used.
    pub fn usage(&self) -> Usage {
        let limit_bytes = self.limit_bytes();
        match &self.0.by {
            By::Project(id) => {
                let (total, free) = project::space(&self.0.root).unwrap_or((limit_bytes, 0));
                let used_bytes = total.saturating_sub(free);
                Usage { limit_bytes, used_bytes, means: Means::Project(*id) }
            }
            By::Count(counter) => {
                let ledger = &counter.ledger;
                let means = Means::Count {
                    files: ledger.files() as u64,
                    is_counting: !counter.ring().has_counted,
                    is_unknown: ledger.is_unknown(),
                };
                Usage { limit_bytes, used_bytes: ledger.used_bytes(), means }
            }
        }
    }

    /// The same files, limited.
    pub(crate) fn over(&self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        match &self.0.by {
            By::Project(_) => backend,
            By::Count(counter) => Arc::new(Counting::new(backend, counter.ledger.clone())),
        }
    }

    /// Records a count now, for tests.
    #[cfg(test)]
    pub(crate) fn keep(&self) {
        if let By::Count(counter) = &self.0.by {
            counter.keep();
        }
    }

    /// Counts now, for tests: waits until a count is complete that has begun after this call.
    #[cfg(test)]
    pub(crate) fn recount(&self) {
        if let By::Count(counter) = &self.0.by {
            counter.again();
            while {
                let _turn = counter.turn();
                counter.ring().is_wanted
            } {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Enforced {
    fn drop(&mut self) {
        if let By::Count(counter) = &self.by {
            counter.ring().is_over = true;
            counter.bell.notify_all();
        }
    }
}

/// Counts a folder: at the start, now and then, and when asked.
#[derive(Debug)]
struct Counter {
    name: String,
    root: Arc<OwnedFd>,
    ledger: Arc<Ledger>,
    ring: Mutex<Ring>,
    bell: Condvar,
    /// One count at a time.
    turn: Mutex<()>,
    record: Mutex<Option<Record>>,
}

#[derive(Debug, Default)]
struct Ring {
    /// No count has begun since somebody asked for one.
    is_wanted: bool,
    is_over: bool,
    has_counted: bool,
}

impl Counter {
    fn start(
        name: &str,
        root: Arc<OwnedFd>,
        limit_bytes: u64,
        record: Option<&Path>,
    ) -> std::io::Result<Arc<Counter>> {
        let node = rustix::fs::fstat(&root)?.st_ino;
        let mut record = record.map(|path| Record::new(path, node));
        let used_bytes = record.as_mut().and_then(Record::read).unwrap_or(0);
        let counter = Arc::new(Counter {
            name: name.to_owned(),
            root,
            ledger: Ledger::remembering(limit_bytes, used_bytes),
            record: Mutex::new(record),
            ring: Mutex::default(),
            bell: Condvar::new(),
            turn: Mutex::default(),
        });
        let counts = counter.clone();
        std::thread::Builder::new().name("weft-count".to_owned()).spawn(move || counts.run())?;
        Ok(counter)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the thread count again.
    fn again(&self) {
        self.ring().is_wanted = true;
        self.bell.notify_all();
    }

    fn run(&self) {
        loop {
            self.count();
            let counted = clock::instant();
            while counted.elapsed() < RECOUNT {
                self.keep();
                let ring = self.ring();
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

    fn record(&self) -> MutexGuard<'_, Option<Record>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what is used.
    fn keep(&self) {
        if let Some(record) = &mut *self.record() {
            record.write(self.ledger.used_at_most());
        }
    }

    /// Records nothing any more.
    fn forget(&self) {
        if let Some(record) = self.record().take() {
            record.remove();
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) {
        let _turn = self.turn();
        self.ring().is_wanted = false;
        for repeat in 0..=MAX_REPEATS {
            let is_last = repeat == MAX_REPEATS;
            if !self.count_once(is_last) {
                break;
            }
        }
        self.ring().has_counted = true;
    }

    /// Returns whether it is to be repeated.
    fn count_once(&self, is_last: bool) -> bool {
        let begun = clock::instant();
        let (told, kept) = (std::cell::Cell::new(begun), std::cell::Cell::new(begun));
        let ends = || {
            if kept.get().elapsed() >= RECORD {
                kept.set(clock::instant());
                self.keep();
            }
            if told.get().elapsed() >= TELL {
                told.set(clock::instant());
                tracing::info!(
                    "share {}: counting for its quota, {} files so far",
                    self.name,
                    self.ledger.files()
                );
            }
            self.ring().is_over
        };
        let name = &self.name;
        match walk::count(&self.root, &self.ledger, ends) {
            Ok((counted, closed)) => {
                let (files, used) = (self.ledger.files(), self.ledger.used_bytes());
                self.ledger.set_unknown(false);
                let is_repeated = counted.is_uncertain && !is_last;
                if !is_repeated {
                    self.ledger.forget_remembered(closed > 0);
                }
                if closed > 0 {
                    tracing::warn!(
                        "share {name}: {closed} folders or files cannot be reached, so they count for the quota only as far as they \
                         were known before"
                    );
                }
                let took = begun.elapsed();
                tracing::info!(
                    "share {name}: {used} of {} bytes are used, in {files} files; counted in {took:.1?}",
                    self.ledger.limit_bytes()
                );
                is_repeated
            }
            Err(Unreached::Ended) => false,
            Err(why) => {
                // Never silently: what cannot be counted may not grow.
                self.ledger.set_unknown(true);
                tracing::error!(
                    "share {name}: its quota cannot be counted: {why}; nothing in it may grow until that is mended: move files \
                     out of it, or let the kernel count (ext4: tune2fs -O project,quota; XFS and ext4: mount -o prjquota)"
                );
                false
            }
        }
    }
}
