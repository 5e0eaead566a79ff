//! Whether the disk of a share takes what is written to it, told to whoever runs the server.
//!
//! Clients learn of a full, read-only or failing disk by the status of their requests, and their users rarely pass that on. So the first
//! refusal is a warning in the log with the share, the path and what to do, and the end of the trouble is a line, too; in between
//! `weft status` shows it. A folder that was moved or removed while it is served is shown there as well.
//! Owns: what is wrong now. Does not: change what clients are answered, or look at the disk by itself: without requests
//! nothing is known of that.
//!
//! A full disk takes overwrites, and a failing one most requests. So a request that succeeds ends the trouble only when none
//! has failed for [`CALM`], and that of a full disk only where the request took space. The log has one warning per kind of trouble
//! in [`REMIND`], whatever clients do, and at most one end of trouble for each.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use weft_machine::file::system::FileSystem;
use weft_machine::{Time, rt};

use crate::vfs::{Backend, DirName, Error, NodeId, Op, Outcome, Watches};

/// Trouble is over when nothing has failed for so long, and something has succeeded.
pub const CALM: Duration = Duration::from_secs(10);
/// How long a status waits for a file system that may block.
pub const LOOK: Duration = Duration::from_secs(1);
/// Trouble that lasts is told again after this.
pub const REMIND: Duration = Duration::from_secs(600);

/// What is wrong with a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// No space, or none within the quota.
    Full,
    /// The file system is mounted read-only, or has become so by an error.
    ReadOnly,
    /// It cannot be read or written (EIO, or the device is gone).
    Failing,
}

impl Trouble {
    fn of(error: &Error) -> Option<Trouble> {
        let failing = [Errno::IO, Errno::UCLEAN, Errno::NODEV, Errno::NXIO, Errno::REMOTEIO, Errno::SHUTDOWN];
        match error {
            Error::NoSpace => Some(Trouble::Full),
            Error::ReadOnly => Some(Trouble::ReadOnly),
            Error::Io(e) => {
                let errno = e.raw_os_error().map(Errno::from_raw_os_error)?;
                failing.contains(&errno).then_some(Trouble::Failing)
            }
            _ => None,
        }
    }
}

/// What a request takes of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// Nothing, or it is not known.
    Nothing,
    /// A new file.
    Name,
    /// Space for content.
    Space,
}

/// Trouble that has not ended.
#[derive(Clone, Debug)]
struct Current {
    trouble: Trouble,
    since: Time,
    last: Time,
    failed: u64,
    /// What the last request that failed was to take.
    refused: Takes,
    /// The log has a warning of it, and so is to have its end.
    warned: bool,
}

/// When the log had its last warning of each kind, whatever has ended since.
#[derive(Debug, Default)]
struct Told {
    full: Option<Time>,
    read_only: Option<Time>,
    failing: Option<Time>,
}

impl Told {
    /// Whether a warning is due; it counts as given.
    fn is_due(&mut self, trouble: Trouble, now: Time) -> bool {
        let told = match trouble {
            Trouble::Full => &mut self.full,
            Trouble::ReadOnly => &mut self.read_only,
            Trouble::Failing => &mut self.failing,
        };
        let due = told.is_none_or(|told| now.since(told) >= REMIND);
        if due {
            *told = Some(now);
        }
        due
    }
}

/// Of one share.
#[derive(Debug)]
pub struct Health {
    share: String,
    /// The folder on the host; `None` in memory.
    folder: Option<PathBuf>,
    /// The same, open as it is served.
    root: Option<Arc<OwnedFd>>,
    /// What it lies on.
    system: Option<Arc<FileSystem>>,
    /// Somebody looks at the folder, and has not been answered.
    looks: AtomicBool,
    /// Whether `current` is there: all that a request that succeeds looks at.
    ill: AtomicBool,
    known: Mutex<Known>,
}

/// What is wrong now, and what was said.
#[derive(Debug, Default)]
struct Known {
    current: Option<Current>,
    told: Told,
}

/// Where it was, as part of a line of the log: clients choose names, and a line break in one would begin a line of theirs.
fn place(path: &Path) -> String {
    format!(", at {}", path.as_os_str().as_bytes().escape_ascii())
}

impl Health {
    /// Of a share of this name, in this folder or in memory.
    pub fn new(share: &str, folder: Option<&Path>) -> Health {
        Health {
            share: share.to_owned(),
            folder: folder.map(Path::to_owned),
            root: None,
            system: None,
            looks: AtomicBool::new(false),
            ill: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// The same, of a folder that is served as this.
    #[must_use]
    pub fn of_root(self, root: Arc<OwnedFd>) -> Health {
        Health { root: Some(root), ..self }
    }

    /// The same, on this file system.
    #[must_use]
    pub fn on(self, system: Arc<FileSystem>) -> Health {
        Health { system: Some(system), ..self }
    }

    /// [`Health::troubles`] for who does not wait: a file system that does not answer within [`LOOK`] is what is wrong.
    pub async fn look(self: Arc<Health>) -> Option<String> {
        let Some(system) = self.system.clone().filter(|system| system.blocks()) else {
            return rt::blocking(move || self.troubles()).await;
        };
        let unanswered = || {
            let folder = self.folder.as_deref().unwrap_or(Path::new(""));
            let hangs = format!("the file system of {} does not answer", folder.display());
            Some(system.trouble().unwrap_or(hangs))
        };
        // One at a time: the others would take the places of clients.
        if self.looks.swap(true, Ordering::AcqRel) {
            return unanswered();
        }
        let looking = Looking(self.clone());
        let look = system.data(move || looking.0.troubles());
        match rt::timeout(LOOK, look).await {
            Ok(Ok(troubles)) => troubles,
            Ok(Err(_)) | Err(rt::Elapsed) => unanswered(),
        }
    }

    /// All that is wrong, and what to do about it; `None` where nothing is. Blocks.
    pub fn troubles(&self) -> Option<String> {
        let troubles: Vec<String> = [self.astray(), self.trouble()].into_iter().flatten().collect();
        (!troubles.is_empty()).then(|| troubles.join(". "))
    }

    /// Why the next start will not find the folder that is served: its path leads to another one, or nowhere.
    fn astray(&self) -> Option<String> {
        let (folder, root) = (self.folder.as_ref()?, self.root.as_ref()?);
        let open = rustix::fs::fstat(root).ok()?;
        let path = folder.display();
        let why = match std::fs::metadata(folder) {
            Ok(there) if (there.dev(), there.ino()) == (open.st_dev, open.st_ino) => return None,
            Ok(_) => "is another folder now",
            Err(e) if e.kind() == io::ErrorKind::NotFound => "is not there any more",
            // A folder above that cannot be looked into, say: that has nothing to do with this one.
            Err(_) => return None,
        };
        // Some file systems count no links of folders, so the kernel is asked for the path.
        let now = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).ok()?;
        let is_gone = open.st_nlink == 0 || now.as_os_str().as_bytes().ends_with(b" (deleted)");
        Some(match is_gone {
            true => format!(
                "{path} {why}: the folder that is served was removed, and takes nothing. Restart the server when the right folder is \
                 there"
            ),
            false if now == *folder => format!(
                "{path} {why}: another file system was mounted over the folder that is served. Unmount it, or restart the server to \
                 serve that one"
            ),
            false => format!(
                "{path} {why}: the folder that is served was moved to {}, and what clients write goes there. Move it back, or restart \
                 the server with its new path",
                now.display()
            ),
        })
    }

    /// What requests have met, where something is wrong.
    pub fn trouble(&self) -> Option<String> {
        let current = self.known().current.clone()?;
        let now = rt::now();
        let (since, last) = (now.since(current.since).as_secs(), now.since(current.last).as_secs());
        let said = self.said(current.trouble);
        Some(format!("{said} ({} requests failed in {since} s, the last one {last} s ago)", current.failed))
    }

    /// Whether something is wrong.
    pub(crate) fn is_ill(&self) -> bool {
        self.ill.load(Ordering::Acquire)
    }

    /// A request that changes something, and takes so much where it succeeds, has ended; `at` is asked for the path only where
    /// that is logged.
    pub(crate) fn heard<T>(
        &self,
        done: &Result<T, Error>,
        takes: Takes,
        at: impl FnOnce() -> Option<PathBuf>,
    ) {
        match done {
            Ok(_) => self.worked(takes, rt::now()),
            Err(e) => {
                if let Some(trouble) = Trouble::of(e)
                    && self.failed(trouble, takes, rt::now())
                {
                    let at = at().map_or(String::new(), |path| place(&path));
                    tracing::warn!("share {}: {}{at}", self.share, self.said(trouble));
                }
            }
        }
    }

    /// Whether that is to be logged.
    fn failed(&self, trouble: Trouble, takes: Takes, now: Time) -> bool {
        let Known { current, told } = &mut *self.known();
        self.ill.store(true, Ordering::Release);
        let first = Current { trouble, since: now, last: now, failed: 0, refused: takes, warned: false };
        let known = current.get_or_insert(first);
        // A disk that fails may be full at times; the worse of the two is what is told.
        if known.trouble != Trouble::Failing && known.trouble != trouble {
            (known.trouble, known.since, known.failed) = (trouble, now, 0);
        }
        (known.last, known.refused) = (now, takes);
        known.failed = known.failed.saturating_add(1);
        let due = known.trouble == trouble && told.is_due(trouble, now);
        known.warned |= due;
        due
    }

    fn worked(&self, takes: Takes, now: Time) {
        if !self.is_ill() {
            return;
        }
        let current = &mut self.known().current;
        let Some(known) = current.as_ref().filter(|known| now.since(known.last) >= CALM) else { return };
        if known.trouble == Trouble::Full {
            let taken = takes != Takes::Nothing && [takes, Takes::Nothing].contains(&known.refused);
            if !taken || self.is_full() {
                return;
            }
        }
        let (failed, since, warned) = (known.failed, now.since(known.since).as_secs(), known.warned);
        *current = None;
        self.ill.store(false, Ordering::Release);
        if warned {
            tracing::info!(
                "share {}: its disk works again; {failed} requests had failed in {since} s",
                self.share
            );
        }
    }

    /// A full disk may take a little still.
    fn is_full(&self) -> bool {
        if self.system.as_ref().is_some_and(|system| system.blocks()) {
            // It is not asked on a core.
            return false;
        }
        let space = self.folder.as_ref().and_then(|folder| rustix::fs::statvfs(folder).ok());
        space.is_some_and(|space| space.f_bavail == 0 || (space.f_files > 0 && space.f_favail == 0))
    }

    fn said(&self, trouble: Trouble) -> Said<'_> {
        Said { trouble, folder: self.folder.as_deref() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // No change of what it guards can be interrupted.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A look at the folder, until it ends, or does not begin.
struct Looking(Arc<Health>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.looks.store(false, Ordering::Release);
    }
}

/// A sentence: what is wrong, and what to do.
struct Said<'a> {
    trouble: Trouble,
    folder: Option<&'a Path>,
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(folder) = self.folder.map(Path::display) else {
            return match self.trouble {
                Trouble::Full => {
                    f.write_str("the ramdisk is full: remove files, or serve a larger one (--ram NAME=SIZE)")
                }
                Trouble::ReadOnly | Trouble::Failing => {
                    f.write_str("the ramdisk fails: see the log of the kernel (dmesg)")
                }
            };
        };
        match self.trouble {
            Trouble::Full => write!(
                f,
                "the disk of {folder} is full, or its quota: make space (df -h {folder}; df -i for files)"
            ),
            Trouble::ReadOnly => write!(
                f,
                "the disk of {folder} is read-only: see why (dmesg), then mount -o remount,rw {}; or serve it with --read-only",
                self.folder.and_then(mount_point).as_deref().unwrap_or(Path::new("MOUNTPOINT")).display()
            ),
            Trouble::Failing => {
                write!(
                    f,
                    "the disk of {folder} fails: see the log of the kernel (dmesg), and save what can be read"
                )
            }
        }
    }
}

/// Where the file system of a folder is mounted, where the kernel tells (Linux 5.8).
pub fn mount_point(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let is_root = |path: &&Path| {
        let found = statx(CWD, *path, AtFlags::empty(), StatxFlags::TYPE);
        found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    };
    folder.ancestors().find(is_root).map(Path::to_owned)
}

/// A backend whose failures are heard.
pub(crate) struct Heard {
    backend: Arc<dyn Backend>,
    health: Arc<Health>,
}

impl Heard {
    pub(crate) fn new(backend: Arc<dyn Backend>, health: Arc<Health>) -> Heard {
        Heard { backend, health }
    }
}

/// The name that an operation changes, where its outcome says something of the disk. An extended attribute does not: ext4 has
/// little space for those on an empty disk.
fn changes(op: &Op) -> Option<Option<Vec<u8>>> {
    match op {
        Op::Create { name, .. }
        | Op::Remove { name, .. }
        | Op::Rmdir { name, .. }
        | Op::Link { name, .. }
        | Op::Rename { to: DirName { name, .. }, .. } => Some(Some(name.clone())),
        Op::Setattr { .. } | Op::SyncDir { .. } | Op::SyncAll { .. } | Op::Open { write: true, .. } => {
            Some(None)
        }
        _ => None,
    }
}

impl Backend for Heard {
    fn kind(&self) -> &'static str {
        self.backend.kind()
    }

    fn is_read_only(&self) -> bool {
        self.backend.is_read_only()
    }

    fn changes_on_the_host(&self) -> bool {
        self.backend.changes_on_the_host()
    }

    fn sweep(&self, max: usize) {
        self.backend.sweep(max);
    }

    fn tidy(&self, now: Instant) {
        self.backend.tidy(now);
    }

    fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if let Op::MayUnlink { .. } = op {
            let asked = self.backend.submit(op);
            return Box::pin(async move {
                let asked = asked.await;
                if asked.is_err() {
                    // A name that may go says nothing about the disk.
                    self.health.heard(&asked, Takes::Nothing, || None);
                }
                asked
            });
        }
        let changes = changes(&op);
        let makes = matches!(op, Op::Create { .. });
        // Anybody may ask for a size that no disk has.
        let sizes = matches!(op, Op::Setattr { .. });
        let submitted = self.backend.submit(op);
        match changes {
            None => submitted,
            Some(name) => Box::pin(async move {
                let done = submitted.await;
                use std::os::unix::ffi::OsStringExt;
                let path = || name.map(|name| PathBuf::from(std::ffi::OsString::from_vec(name)));
                let takes = match &done {
                    Ok(Outcome::Created { created: true, .. }) => Takes::Name,
                    Err(_) if makes => Takes::Name,
                    _ => Takes::Nothing,
                };
                if !(sizes && matches!(done, Err(Error::NoSpace))) {
                    self.health.heard(&done, takes, path);
                }
                done
            }),
        }
    }

    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn Any + Send + Sync>>> {
        self.backend.clone().observe(dir, recursive, watches)
    }
}

#[cfg(test)]
mod tests;
