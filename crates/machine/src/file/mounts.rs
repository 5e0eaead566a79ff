//! Tracks which file systems are mounted where, and which of them depend on another machine or process.
//!
//! The table is described in proc_pid_mountinfo(5). A thread reads it when the kernel reports a change, so no core
//! does, and nobody must ask a file system, which may not answer, for its type. This file owns that thread and the last
//! table; it never accesses a file system.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// The shortest time between two readings: a host that starts containers changes its table hundreds of times a second.
const READ_EVERY: Duration = Duration::from_millis(100);
/// The most bytes of the table that are read.
const MAX_TABLE_BYTES: u64 = 16 << 20;

/// File systems whose every call may wait for another machine or another process.
const REMOTE: [&str; 29] = [
    "9p",
    "acfs",
    "afs",
    "autofs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "fuseblk",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "panfs",
    "prl_fs",
    "pvfs2",
    "sharefs",
    "smb3",
    "smbfs",
    "vboxsf",
    "virtiofs",
    "vmhgfs",
    "wekafs",
];

/// Major and minor number of a device, as in statx(2).
pub type Device = (u32, u32);

/// One line of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The device number that stat(2) reports for its files, for most file systems.
    pub device: Device,
    /// Where it is mounted, as this process sees it.
    pub point: PathBuf,
    /// Its type, for example `fuse.sshfs`.
    pub kind: String,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|&b| b == b' ');
        let device = std::str::from_utf8(fields.by_ref().nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let point = PathBuf::from(std::ffi::OsString::from_vec(unescaped(fields.nth(1)?)));
        // Any number of optional fields, followed by a hyphen.
        fields.by_ref().find(|field| *field == b"-")?;
        let kind = String::from_utf8_lossy(fields.next()?).into_owned();
        Some(Mount { device: (major.parse().ok()?, minor.parse().ok()?), point, kind })
    }

    /// Whether its calls may wait for another machine or another process.
    pub fn is_remote(&self) -> bool {
        let base = self.kind.split('.').next().unwrap_or_default();
        REMOTE.contains(&base)
    }
}

/// The kernel writes space, tab, line feed, hash and backslash as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match behind.split_at_checked(3).filter(|_| first == b'\\') {
            Some((digits, behind)) if octal(digits).is_some() => {
                bytes.extend(octal(digits));
                rest = behind;
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    bytes
}

/// All mounts, from the last reading.
static TABLE: Mutex<Option<Arc<Vec<Mount>>>> = Mutex::new(None);
/// Gets each new table.
static LEARN: OnceLock<fn(&[Mount])> = OnceLock::new();
/// Incremented by each reading.
static READINGS: AtomicU64 = AtomicU64::new(0);

fn table() -> MutexGuard<'static, Option<Arc<Vec<Mount>>>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that changes whenever `mounts` may.
pub fn readings() -> u64 {
    READINGS.load(Ordering::Acquire)
}

/// All mounts. The first call reads the table and starts the thread that follows its changes.
pub fn mounts() -> Arc<Vec<Mount>> {
    static FOLLOWED: Once = Once::new();
    FOLLOWED.call_once(|| {
        let Some(changes) = File::open("/proc/self/mountinfo").ok() else { return };
        read();
        if let Err(e) = std::thread::Builder::new().name("weft-mounts".to_owned()).spawn(|| follow(changes)) {
            tracing::warn!("file systems mounted from now on are treated as local: no thread: {e}");
        }
    });
    table().clone().unwrap_or_default()
}

/// From now on `learn` gets each new table, before [`readings`] changes. There is one such function; it is known before the
/// file systems that it updates.
pub(super) fn notify(learn: fn(&[Mount])) {
    LEARN.get_or_init(|| learn);
}

fn read() {
    let mut bytes = Vec::new();
    let read = File::open("/proc/self/mountinfo")
        .and_then(|file| file.take(MAX_TABLE_BYTES).read_to_end(&mut bytes));
    if read.is_err() {
        return;
    }
    let mounts: Arc<Vec<Mount>> = Arc::new(parse(&bytes));
    *table() = Some(mounts.clone());
    if let Some(learn) = LEARN.get() {
        learn(&mounts);
    }
    READINGS.fetch_add(1, Ordering::Release);
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|&b| b == b'\n').filter_map(Mount::parse).collect()
}

fn follow(changes: File) {
    loop {
        // The kernel reports to each descriptor once that the table has changed since it was opened, or last reported.
        match poll(&mut [PollFd::new(&changes, PollFlags::PRI)], None) {
            Ok(_) => read(),
            Err(Errno::INTR) => {}
            Err(e) => return tracing::warn!("changes of mounts are no longer followed: {e}"),
        }
        std::thread::sleep(READ_EVERY);
    }
}

/// The mounts below a folder that calls may block in, with the path from the folder to each.
pub fn remote_below(folder: &Path) -> Vec<(Mount, PathBuf)> {
    let mounts = mounts();
    let remote = mounts.iter().filter(|mount| mount.is_remote());
    remote
        .filter_map(|mount| {
            let way = mount.point.strip_prefix(folder).ok()?.to_owned();
            (!way.as_os_str().is_empty()).then(|| (mount.clone(), way))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_is_remote_and_where_it_lies() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 0:52 / /srv/a\\040b rw master:3 propagate_from:2 - fuse.sshfs nas:/x rw\n\
            41 22 0:53 / /srv/nas rw - nfs4 nas:/y rw\n\
            42 22 0:54 / /run rw - tmpfs tmpfs rw\n\
            damaged 1 line\n";
        let mounts = parse(table);
        let seen: Vec<_> = mounts
            .iter()
            .map(|mount| (mount.point.to_str().unwrap(), mount.device, mount.is_remote()))
            .collect();
        assert_eq!(
            seen,
            [
                ("/", (8, 1), false),
                ("/srv/a b", (0, 52), true),
                ("/srv/nas", (0, 53), true),
                ("/run", (0, 54), false),
            ]
        );
        assert_eq!(unescaped(b"\\134040\\04"), b"\\040\\04");
    }

    #[test]
    fn each_truncation_of_a_line_is_read_or_left_out() {
        let line = b"40 22 0:52 / /srv rw,nosuid master:3 - fuse.sshfs nas:/x rw";
        let whole = (0..=line.len()).filter_map(|len| Mount::parse(&line[..len])).count();
        assert!(whole > 0 && whole < line.len());
    }
}
