//! The quota of a share: how much its folder may occupy.
//!
//! | way | where | what it costs |
//! |---|---|---|
//! | by the kernel (`project`) | ext4 with the features project and quota, XFS mounted with prjquota | nothing |
//! | by counting (`counter`, `ledger`, `walk`, `backend`) | any folder of at most [`MAX_FILES`] files | memory for each file, and an atomic operation for each write |
//!
//! The server counts in the background: at each start, every [`RECOUNT`] and after each reload, because other programs may
//! write to the folder. During a count it also counts its clients' writes. Until the first count is complete, what was used
//! before the restart counts (`record`). A quota is refused if the folder has too many files to count. If the folder gets
//! too many files later, nothing in it may grow until a count finds fewer.
//!
//! Shares of one folder use the same space, so they have one count, and each may fill it up to its own limit. A project of the
//! kernel has only one limit: the smallest of theirs.
//!
//! A quota can be exceeded, because it was lowered or because other programs write to the folder. Clients may then still
//! read, overwrite, rename and delete.

mod backend;
mod counter;
mod folder;
mod ledger;
mod project;
mod record;
mod walk;

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use weft_machine::clock;

use self::backend::Counting;
use self::counter::Count;
pub use self::counter::RECOUNT;
use self::ledger::NO_LIMIT;
pub use self::ledger::{CREDIT_BYTES, MAX_FILES, SLACK_BYTES};
use self::project::{NoProject, ProjectLimit};
use crate::vfs::Backend;

/// How long the check of a new quota may count files.
const LOOK: Duration = Duration::from_secs(2);

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
    /// The quota that holds.
    pub limit_bytes: u64,
    /// The space in use, by all shares of the folder. It exceeds the limit if the limit was lowered, or if other programs write to the folder.
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
    /// Where a count is recorded.
    record: Option<PathBuf>,
    by: By,
}

#[derive(Debug)]
enum By {
    Project(u32, ProjectLimit),
    Count(Count),
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
    match walk::has_at_most(&root, MAX_FILES, || clock::since(begun) >= LOOK) {
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
        let own = ProjectLimit::new(&root, limit_bytes)?;
        let by = match project::limit(&root, own.least(), goes_on) {
            Ok(id) => {
                tracing::info!("share {name}: the kernel enforces its quota, as that of project {id}");
                By::Project(id, own)
            }
            Err(why) => {
                tracing::info!("share {name}: its quota is enforced by counting, because {why}");
                // It is no limit of the project.
                drop(own);
                By::Count(Count::begin(name, &root, limit_bytes, record)?)
            }
        };
        Ok(Quota(Arc::new(Enforced { name: name.to_owned(), root, record: record.map(Path::to_owned), by })))
    }

    /// The same quota with another limit; it is counted again. Another quota if the kernel does not take the limit.
    pub fn limited_to(&self, limit_bytes: u64) -> std::io::Result<Quota> {
        let Enforced { name, root, record, by } = &*self.0;
        match by {
            By::Project(_, own) => {
                own.set(limit_bytes);
                match project::limit(root, own.least(), &|| ()) {
                    Ok(_) => Ok(self.clone()),
                    Err(why) => {
                        tracing::info!("share {name}: its quota is enforced by counting, because {why}");
                        own.set(NO_LIMIT);
                        let by = By::Count(Count::begin(name, root, limit_bytes, record.as_deref())?);
                        let (name, root, record) = (name.clone(), root.clone(), record.clone());
                        Ok(Quota(Arc::new(Enforced { name, root, record, by })))
                    }
                }
            }
            By::Count(count) => {
                count.allowance().set_limit(limit_bytes);
                count.again();
                Ok(self.clone())
            }
        }
    }

    /// Lets a quota that is counted be counted again.
    pub fn count_again(&self) {
        if let By::Count(count) = &self.0.by {
            count.again();
        }
    }

    /// The share has no quota any more. Other shares of its folder keep theirs.
    pub fn end(&self) {
        match &self.0.by {
            By::Project(_, own) => {
                own.set(NO_LIMIT);
                match own.least() {
                    NO_LIMIT => project::unlimit(&self.0.root),
                    least => {
                        if let Err(e) = project::limit(&self.0.root, least, &|| ()) {
                            let name = &self.0.name;
                            tracing::warn!(
                                "share {name}: its quota still applies to other shares of its folder: {e}"
                            );
                        }
                    }
                }
            }
            By::Count(count) => count.end(),
        }
    }

    /// Whether both are one, so that files that are open stay limited.
    pub fn is(&self, other: &Quota) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The share's own quota in bytes.
    pub fn limit_bytes(&self) -> u64 {
        match &self.0.by {
            By::Project(_, own) => own.bytes(),
            By::Count(count) => count.allowance().limit_bytes(),
        }
    }

    /// What is used.
    pub fn usage(&self) -> Usage {
        match &self.0.by {
            By::Project(id, own) => {
                let limit_bytes = own.least();
                let (total, free) = project::space(&self.0.root).unwrap_or((limit_bytes, 0));
                let used_bytes = total.saturating_sub(free);
                Usage { limit_bytes, used_bytes, means: Means::Project(*id) }
            }
            By::Count(count) => {
                let ledger = count.ledger();
                let means = Means::Count {
                    files: ledger.files() as u64,
                    is_counting: count.is_counting(),
                    is_unknown: ledger.is_unknown(),
                };
                Usage { limit_bytes: self.limit_bytes(), used_bytes: ledger.used_bytes(), means }
            }
        }
    }

    /// The same files, limited.
    pub(crate) fn over(&self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        match &self.0.by {
            By::Project(..) => backend,
            By::Count(count) => Arc::new(Counting::new(backend, count.allowance().clone())),
        }
    }

    /// Records a count now, for tests.
    #[cfg(test)]
    pub(crate) fn keep(&self) {
        if let By::Count(count) = &self.0.by {
            count.keep();
        }
    }

    /// Counts now, for tests: waits until a count is complete that has begun after this call.
    #[cfg(test)]
    pub(crate) fn recount(&self) {
        if let By::Count(count) = &self.0.by {
            count.recount();
        }
    }
}
