//! Checks whether the state directory accepts what the server must record.
//!
//! Clients would notice a full, read-only or failing state directory only by refused requests, or at the next start
//! of the server. So a status asks for the free space there, writes an unnamed file and makes it durable. The file is left
//! out for a while after it succeeded: some users ask for a status every second, and each such write makes the file
//! system commit.
//!
//! A hanging disk blocks a thread for as long as it hangs. Only one check runs at a time, so at most one thread is
//! blocked.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::StatVfsMountFlags;
use weft_machine::rt;
use weft_store::health::mount_point;

use crate::out::{ShellCommand, path_name};

/// How long a status waits for the directory.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a file written there proves that others can be written.
const WRITTEN_FRESH: Duration = Duration::from_secs(5);
/// Bytes written: a disk block, like a name or a record needs.
const BLOCK_BYTES: usize = 4096;

/// See the module.
pub(super) struct StateDir {
    path: PathBuf,
    looked: Arc<Mutex<Looked>>,
}

#[derive(Default)]
struct Looked {
    /// When the running check began.
    since: Option<Instant>,
    /// The result of the last check.
    found: Option<String>,
    /// When a file was last written, if nothing was wrong since.
    written: Option<Instant>,
}

fn lock(looked: &Mutex<Looked>) -> MutexGuard<'_, Looked> {
    // No change under this lock can be interrupted.
    looked.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StateDir {
    /// A check of this folder.
    pub(super) fn new(path: PathBuf) -> StateDir {
        StateDir { path, looked: Arc::default() }
    }

    /// What is wrong with it, if anything.
    pub(super) async fn trouble(&self) -> Option<String> {
        if self.begin() {
            let (path, looked) = (self.path.clone(), self.looked.clone());
            let written = lock(&looked).written;
            let look = rt::blocking(move || {
                let result = look(&path, written);
                let found = result.as_ref().err().map(|e| said(&path, e));
                *lock(&looked) = Looked { since: None, found, written: result.ok() };
            });
            // A late result is reported by the next status.
            let _ = rt::timeout(PATIENCE, look).await;
        }
        let looked = lock(&self.looked);
        match looked.since.map(|since| since.elapsed()).filter(|&waits| waits >= PATIENCE) {
            Some(waits) => Some(format!(
                "the state directory {} has not answered for {} s: see the kernel's log (dmesg)",
                path_name(&self.path),
                waits.as_secs()
            )),
            None => looked.found.clone(),
        }
    }

    /// Begins a check unless one is running; returns whether it did.
    fn begin(&self) -> bool {
        let mut looked = lock(&self.looked);
        let begins = looked.since.is_none();
        if begins {
            looked.since = Some(Instant::now());
        }
        begins
    }
}

/// Does what recording state does, unless a file was written recently; returns when one was. Blocks.
fn look(dir: &Path, written: Option<Instant>) -> io::Result<Instant> {
    let space = rustix::fs::statvfs(dir)?;
    // Root may use reserved blocks; some file systems do not count files.
    let is_full = space.f_blocks > 0 && space.f_bavail == 0 || space.f_files > 0 && space.f_favail == 0;
    if is_full {
        return Err(ErrorKind::StorageFull.into());
    }
    if space.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(ErrorKind::ReadOnlyFilesystem.into());
    }
    if let Some(written) = written.filter(|written| written.elapsed() < WRITTEN_FRESH) {
        return Ok(written);
    }
    let mut file = tempfile::tempfile_in(dir)?;
    file.write_all(&[0; BLOCK_BYTES])?;
    file.sync_all()?;
    Ok(Instant::now())
}

/// What the error means, and what to do.
fn said(dir: &Path, e: &io::Error) -> String {
    let name = path_name(dir);
    let lost = "the state that clients need after a restart cannot be recorded";
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!(
            "the disk of the state directory {name} is full: {lost}; free some space ({}; df -i for files)",
            ShellCommand::new("df -h").operand(dir)
        ),
        ErrorKind::ReadOnlyFilesystem => {
            let mount = mount_point(dir).unwrap_or_else(|| "MOUNTPOINT".into());
            format!(
                "the disk of the state directory {name} is read-only: {lost}, and new NFSv4 clients are refused. See why (dmesg), \
                 repair it, and mount it for writing ({}). Do not restart the server before that: it would not start",
                ShellCommand::new("mount -o remount,rw").operand(mount)
            )
        }
        _ => format!(
            "the state directory {name} cannot be written: {e}; {lost}. See the kernel's log (dmesg). Do not restart the server \
             before it is writable"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    fn trouble(dir: &StateDir) -> Option<String> {
        rt::block_on(dir.trouble()).unwrap()
    }

    #[test]
    fn a_state_directory_that_takes_nothing_is_told_until_it_does() {
        let work = tempfile::tempdir().unwrap();
        let folder = work.path().join("state");
        std::fs::create_dir(&folder).unwrap();
        // Its space can be queried, but nothing can be created in it, like on a file system closed by an error.
        let open = File::open(&folder).unwrap();
        let dir = StateDir::new(format!("/proc/self/fd/{}/.", open.as_raw_fd()).into());
        assert_eq!(trouble(&dir), None);
        std::fs::remove_dir(&folder).unwrap();
        assert_eq!(trouble(&dir), None, "a file was written a moment ago");
        lock(&dir.looked).written = Instant::now().checked_sub(WRITTEN_FRESH);
        // From now on each status tries again.
        for _ in 0..2 {
            let why = trouble(&dir).unwrap();
            assert!(why.contains("cannot be written: ") && why.contains("Do not restart"), "{why}");
        }
        let dir = StateDir { path: work.path().to_owned(), ..dir };
        assert_eq!(trouble(&dir), None, "it was repaired");
    }

    #[test]
    fn a_disk_that_hangs_is_told_and_keeps_one_thread() {
        let dir = StateDir::new("/".into());
        assert!(dir.begin());
        // Another status meanwhile.
        assert_eq!(trouble(&dir), None);
        lock(&dir.looked).since = Instant::now().checked_sub(PATIENCE * 2);
        assert!(trouble(&dir).is_some_and(|why| why.contains("has not answered for 6 s")));
        assert!(!dir.begin());
    }

    #[test]
    fn what_to_do_is_said_by_the_kind_of_trouble() {
        // A mount point everywhere; the root directory of a chroot need not be one.
        let said = |kind: ErrorKind| said(Path::new("/proc"), &kind.into());
        let read_only = said(ErrorKind::ReadOnlyFilesystem);
        assert!(read_only.contains("(mount -o remount,rw /proc). Do not restart"), "{read_only}");
        let full = said(ErrorKind::QuotaExceeded);
        assert!(full.contains("is full") && full.contains("df -h /proc"), "{full}");
    }
}
