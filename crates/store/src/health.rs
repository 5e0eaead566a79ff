//! Detects problems of the disk of a share or volume from failing requests, and reports them to the server's administrator.
//!
//! Clients notice a full, read-only or failing disk by the status of their requests, and their users rarely report
//! it. So the first failure is logged as a warning with the share, the path and what to do, and the end of the
//! problem is logged, too; in between `weft status` shows it. It also shows a folder that was moved, removed or closed
//! to the server's user while it is served. Answers to clients do not change, and without requests nothing is known, because the disk is not
//! probed.
//!
//! A full disk accepts overwrites, and a failing one most requests. So a successful request ends a problem only if
//! none has failed for [`CALM`], and a full disk only if the request took space. The log has one warning per kind of
//! problem in [`REMIND`], whatever clients do, and at most one end for each.

mod heard;

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags, accessat, statx};
use rustix::io::Errno;
use weft_machine::file::system::FileSystem;
use weft_machine::{Time, rt};

pub(crate) use self::heard::Heard;
use crate::vfs::Error;

/// A problem is over after a success, if nothing has failed for this long.
pub const CALM: Duration = Duration::from_secs(10);
/// How long a status waits for a file system that may block.
pub const LOOK: Duration = Duration::from_secs(1);
/// A lasting problem is logged again after this time.
pub const REMIND: Duration = Duration::from_secs(600);

/// A problem of a disk.
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
            Error::NoSpace | Error::OverQuota => Some(Trouble::Full),
            Error::ReadOnly => Some(Trouble::ReadOnly),
            Error::Io(e) => {
                let errno = e.raw_os_error().map(Errno::from_raw_os_error)?;
                failing.contains(&errno).then_some(Trouble::Failing)
            }
            _ => None,
        }
    }
}

/// What a successful request takes from a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// Nothing, or unknown.
    Nothing,
    /// A new file.
    Name,
    /// Space for content.
    Space,
}

/// A problem that has not ended.
#[derive(Clone, Debug)]
struct Current {
    trouble: Trouble,
    since: Time,
    last: Time,
    failed: u64,
    /// What the last failed request would have taken.
    refused: Takes,
    /// Whether it was logged, so that its end must be logged, too.
    warned: bool,
}

/// The time of the last logged warning of each kind, even if the problem has ended.
#[derive(Debug, Default)]
struct Told {
    full: Option<Time>,
    read_only: Option<Time>,
    failing: Option<Time>,
}

impl Told {
    /// Whether a warning is due; if so, records it as given.
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

/// What is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Share,
    Volume,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Share => "share",
            Kind::Volume => "volume",
        })
    }
}

/// The health of one share or volume.
#[derive(Debug)]
pub struct Health {
    kind: Kind,
    name: String,
    /// The folder on the host, or the volume's file or device; `None` in memory.
    folder: Option<PathBuf>,
    /// The open root of the folder.
    root: Option<Arc<OwnedFd>>,
    /// Its file system.
    system: Option<Arc<FileSystem>>,
    /// Whether a check of the folder is running.
    looks: AtomicBool,
    /// Whether `current` is set: the only thing that a successful request checks.
    ill: AtomicBool,
    problems: Mutex<Problems>,
}

/// The current problem, and the logged warnings.
#[derive(Debug, Default)]
struct Problems {
    current: Option<Current>,
    told: Told,
    /// Why the folder is not at its path or cannot be read, as last logged.
    astray: Option<String>,
}

/// The path for a log line, escaped: clients choose names, and a line break in one would start a forged line.
fn place(path: &Path) -> String {
    format!(", at {}", path.as_os_str().as_bytes().escape_ascii())
}

impl Health {
    /// The health of a share with this name, in this folder or in memory.
    pub fn new(share: &str, folder: Option<&Path>) -> Health {
        Health {
            kind: Kind::Share,
            name: share.to_owned(),
            folder: folder.map(Path::to_owned),
            root: None,
            system: None,
            looks: AtomicBool::new(false),
            ill: AtomicBool::new(false),
            problems: Mutex::default(),
        }
    }

    /// The health of a volume with this name, in this file, on this device or in memory.
    pub(crate) fn of_volume(name: &str, path: Option<&Path>) -> Health {
        Health { kind: Kind::Volume, ..Health::new(name, path) }
    }

    /// The same, for a folder served through this descriptor.
    #[must_use]
    pub fn of_root(self, root: Arc<OwnedFd>) -> Health {
        Health { root: Some(root), ..self }
    }

    /// The same, on this file system.
    #[must_use]
    pub fn on(self, system: Arc<FileSystem>) -> Health {
        Health { system: Some(system), ..self }
    }

    /// [`Health::troubles`] with a time limit: a file system that does not answer within [`LOOK`] is itself the
    /// problem.
    pub async fn look(self: Arc<Health>) -> Option<String> {
        let Some(system) = self.system.clone().filter(|system| system.blocks()) else {
            return rt::blocking(move || self.troubles()).await;
        };
        let unanswered = || {
            let folder = self.folder.as_deref().unwrap_or(Path::new(""));
            let hangs = format!("the file system of {} does not answer", folder.display());
            Some(system.trouble().unwrap_or(hangs))
        };
        // One at a time: others would take places from clients.
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

    /// All problems, and what to do about them; `None` if there are none. Blocks.
    pub fn troubles(&self) -> Option<String> {
        let astray = self.astray().or_else(|| self.closed());
        let before = std::mem::replace(&mut self.problems().astray, astray.clone());
        if let Some(why) = astray.as_ref().filter(|why| before.as_ref() != Some(*why)) {
            tracing::warn!("{} {}: {why}", self.kind, self.name);
        }
        let troubles: Vec<String> = [astray, self.trouble()].into_iter().flatten().collect();
        (!troubles.is_empty()).then(|| troubles.join(". "))
    }

    /// Why the next start will not find the served folder: its path leads to another one, or to none.
    fn astray(&self) -> Option<String> {
        let (folder, root) = (self.folder.as_ref()?, self.root.as_ref()?);
        let open = rustix::fs::fstat(root).ok()?;
        let path = folder.display();
        let why = match std::fs::metadata(folder) {
            Ok(there) if (there.dev(), there.ino()) == (open.st_dev, open.st_ino) => return None,
            Ok(_) => "is now another folder",
            Err(e) if e.kind() == io::ErrorKind::NotFound => "no longer exists",
            // For example, a parent folder cannot be searched: that says nothing about this one.
            Err(_) => return None,
        };
        // Some file systems do not count links of folders, so the kernel is asked for the path.
        let now = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).ok()?;
        let is_gone = open.st_nlink == 0 || now.as_os_str().as_bytes().ends_with(b" (deleted)");
        // The path of a folder on a file system that was unmounted lazily begins at that file system's root.
        let is_there =
            std::fs::metadata(&now).is_ok_and(|it| (it.dev(), it.ino()) == (open.st_dev, open.st_ino));
        Some(match is_gone {
            true => format!(
                "{path} {why}: the served folder was removed, and accepts no changes. When the right folder is there, `weft reload` \
                 serves it"
            ),
            false if now == *folder => format!(
                "{path} {why}: another file system was mounted over the served folder. Unmount it, or serve the new one: `weft reload`"
            ),
            false if !is_there => format!(
                "{path} {why}: the file system of the served folder was unmounted, and clients still use it. Mount it again, then: \
                 `weft reload`"
            ),
            false => format!(
                "{path} {why}: the served folder was moved to {}, where clients' writes now go. Move it back, or write its new path \
                 into the configuration, then: `weft reload`",
                now.display()
            ),
        })
    }

    /// Why neither clients nor the next start can use the served folder: this user may not read it. Root passes, or uses it as its
    /// callers.
    fn closed(&self) -> Option<String> {
        let (folder, root) = (self.folder.as_ref()?, self.root.as_ref()?);
        let asked = accessat(root, ".", Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS);
        if asked != Err(Errno::ACCESS) || crate::is_root() {
            return None;
        }
        let (path, user) = (folder.display(), crate::own_user());
        let is_own =
            rustix::fs::fstat(root).is_ok_and(|open| open.st_uid == rustix::process::geteuid().as_raw());
        let give = match is_own {
            true => format!("chmod u+rwx {path}"),
            false => format!("chown {user}: {path}, or set an ACL (setfacl -m u:{user}:rwx {path})"),
        };
        Some(format!(
            "{path} is closed to the server's user {user}, who may not read it: {give}. Then clients can use it again; a restart alone does \
             not help, because the share would not be served"
        ))
    }

    /// The problem seen by requests, if any.
    pub fn trouble(&self) -> Option<String> {
        let current = self.problems().current.clone()?;
        let now = rt::now();
        let (since, last) = (now.since(current.since).as_secs(), now.since(current.last).as_secs());
        let said = self.said(current.trouble);
        Some(format!("{said} ({} requests failed in {since} s, the last one {last} s ago)", current.failed))
    }

    /// Whether there is a problem.
    pub(crate) fn is_ill(&self) -> bool {
        self.ill.load(Ordering::Acquire)
    }

    /// Records the result of a changing request, which takes `takes` on success; `at` provides the path only for
    /// logging.
    pub(crate) fn heard<T>(
        &self,
        done: &Result<T, Error>,
        takes: Takes,
        at: impl FnOnce() -> Option<PathBuf>,
    ) {
        match done {
            Ok(_) => self.worked(takes, rt::now),
            Err(e) => {
                if let Some(trouble) = Trouble::of(e)
                    && self.failed(trouble, takes, rt::now())
                {
                    let at = at().map_or(String::new(), |path| place(&path));
                    tracing::warn!("{} {}: {}{at}", self.kind, self.name, self.said(trouble));
                }
            }
        }
    }

    /// Records a failure; returns whether it must be logged.
    fn failed(&self, trouble: Trouble, takes: Takes, now: Time) -> bool {
        let Problems { current, told, .. } = &mut *self.problems();
        self.ill.store(true, Ordering::Release);
        let first = Current { trouble, since: now, last: now, failed: 0, refused: takes, warned: false };
        let known = current.get_or_insert(first);
        // A failing disk may be full at times; the worse problem is reported.
        if known.trouble != Trouble::Failing && known.trouble != trouble {
            (known.trouble, known.since, known.failed) = (trouble, now, 0);
        }
        (known.last, known.refused) = (now, takes);
        known.failed = known.failed.saturating_add(1);
        let due = known.trouble == trouble && told.is_due(trouble, now);
        known.warned |= due;
        due
    }

    /// Records a success. Asks for the time only while there is a problem.
    fn worked(&self, takes: Takes, now: impl FnOnce() -> Time) {
        if !self.is_ill() {
            return;
        }
        let now = now();
        let current = &mut self.problems().current;
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
                "{} {}: its disk works again; {failed} requests had failed in {since} s",
                self.kind,
                self.name
            );
        }
    }

    /// A full disk may still accept a little.
    fn is_full(&self) -> bool {
        if self.system.as_ref().is_some_and(|system| system.blocks()) {
            // The file system is not asked on a core.
            return false;
        }
        let space = self.folder.as_ref().and_then(|folder| rustix::fs::statvfs(folder).ok());
        space.is_some_and(|space| space.f_bavail == 0 || (space.f_files > 0 && space.f_favail == 0))
    }

    fn said(&self, trouble: Trouble) -> Said<'_> {
        Said { kind: self.kind, trouble, folder: self.folder.as_deref() }
    }

    fn problems(&self) -> MutexGuard<'_, Problems> {
        // No change under this lock can be interrupted.
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running check of the folder, until it ends or fails to start.
struct Looking(Arc<Health>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.looks.store(false, Ordering::Release);
    }
}

/// A sentence with the problem and what to do.
struct Said<'a> {
    kind: Kind,
    trouble: Trouble,
    folder: Option<&'a Path>,
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(folder) = self.folder.map(Path::display) else {
            return match (self.trouble, self.kind) {
                (Trouble::Full, Kind::Volume) => f.write_str(
                    "this host has no memory left for the volume, which is in memory: end other programs, or let clients discard \
                     what they no longer need (fstrim)",
                ),
                (_, Kind::Volume) => f.write_str("the memory of the volume fails: see the kernel's log (dmesg)"),
                (Trouble::Full, Kind::Share) => {
                    f.write_str("the ramdisk is full: remove files, or serve a larger one (--ram NAME=SIZE)")
                }
                (Trouble::ReadOnly | Trouble::Failing, Kind::Share) => {
                    f.write_str("the ramdisk fails: see the kernel's log (dmesg)")
                }
            };
        };
        match self.trouble {
            Trouble::Full if self.kind == Kind::Volume => write!(
                f,
                "the disk of the volume's file {folder} is full, or its quota: free some space (df -h {folder}), or let clients discard what \
                 they no longer need (fstrim)"
            ),
            Trouble::Full => write!(
                f,
                "the disk of {folder} is full, or its quota: free some space (df -h {folder}; df -i for files)"
            ),
            Trouble::ReadOnly => {
                let point = self.folder.and_then(mount_point);
                write!(
                    f,
                    "the disk of {folder} is read-only: see why (dmesg), then mount -o remount,rw {}",
                    point.as_deref().unwrap_or(Path::new("MOUNTPOINT")).display()
                )?;
                match self.kind {
                    Kind::Share => f.write_str("; or serve it with --read-only"),
                    Kind::Volume => Ok(()),
                }
            }
            Trouble::Failing => {
                write!(
                    f,
                    "the disk of {folder} fails: see the kernel's log (dmesg), and back up what is readable"
                )
            }
        }
    }
}

/// The mount point of a folder's file system, if the kernel reports it (Linux 5.8).
pub fn mount_point(folder: &Path) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let is_root = |path: &&Path| {
        let found = statx(CWD, *path, AtFlags::empty(), StatxFlags::TYPE);
        found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    };
    folder.ancestors().find(is_root).map(Path::to_owned)
}

#[cfg(test)]
mod tests;
