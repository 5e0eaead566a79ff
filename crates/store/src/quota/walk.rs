//! Counts what the files below a folder occupy, and gives them a project.
//!
//! Names are opened one by one below their directory, and links are never followed. The walk runs on a thread of its own and
//! may wait for the disk. Mount points below the folder belong to it, as for du(1).

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use weft_machine::file::project::{self, Project};

use super::ledger::{Counted, Inode, Ledger, MAX_FILES};

/// Directories deeper than this count as closed: a descriptor is open for each on the way.
const MAX_DEPTH: usize = 512;
/// The walk asks so often whether it should end, and before each directory.
const ENTRIES_BETWEEN: usize = 256;

/// Why a walk did not reach every file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreached {
    /// There are more files than may be counted.
    #[error("it has more than {MAX_FILES} files and folders")]
    TooMany,
    /// It is no longer needed.
    #[error("nobody needs it any more")]
    Ended,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for Unreached {
    fn from(e: Errno) -> Unreached {
        Unreached::Io(e.into())
    }
}

/// A directory on the way, and the names of the directories in it that are still to be walked.
struct Level {
    dir: OwnedFd,
    names: Vec<CString>,
}

/// What is found: where, under which name, and of which kind.
struct Found<'a> {
    dir: &'a OwnedFd,
    name: &'a CString,
    stat: &'a Statx,
}

fn stat(dir: impl AsFd, name: &std::ffi::CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn is_dir(stat: &Statx) -> bool {
    FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory
}

fn open_dir(dir: impl AsFd, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// A name that was removed, or replaced, since it was read.
fn is_gone(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
}

/// Calls `each` for every name below `root`, and `left` for directories after everything in them. Returns what is closed: the
/// number of directories that cannot be read or are too deep, and of names that cannot be reached.
fn walk(
    root: &OwnedFd,
    ends: impl Fn() -> bool,
    mut each: impl FnMut(&Found<'_>) -> Result<(), Unreached>,
    mut left: impl FnMut(&OwnedFd) -> Result<(), Unreached>,
) -> Result<usize, Unreached> {
    let (closed, mut entries) = (Cell::new(0), 0_usize);
    let close = || closed.set(closed.get() + 1);
    let mut seen = HashSet::new();
    let mut read = |dir: OwnedFd, seen: &mut HashSet<(u32, u32, u64)>| -> Result<Level, Unreached> {
        let mut names = Vec::new();
        if ends() {
            return Err(Unreached::Ended);
        }
        for entry in Dir::read_from(&dir)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            entries += 1;
            if entries.is_multiple_of(ENTRIES_BETWEEN) && ends() {
                return Err(Unreached::Ended);
            }
            let name = entry.file_name().to_owned();
            let stat = match stat(&dir, &name) {
                Ok(stat) => stat,
                Err(e) if is_gone(e) => continue,
                // The names of the directory can be read, and nothing more.
                Err(Errno::ACCESS | Errno::PERM) => {
                    close();
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            each(&Found { dir: &dir, name: &name, stat: &stat })?;
            // Mounts can lead to a directory twice.
            if is_dir(&stat) && seen.insert((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)) {
                names.push(name);
            }
        }
        Ok(Level { dir, names })
    };
    let mut levels = vec![read(open_dir(root, c".")?, &mut seen)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            left(&level.dir)?;
            levels.pop();
            continue;
        };
        let dir = match open_dir(&level.dir, &name) {
            Ok(dir) => dir,
            Err(e) if is_gone(e) => continue,
            Err(Errno::ACCESS | Errno::PERM) => {
                close();
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        if levels.len() == MAX_DEPTH {
            close();
            continue;
        }
        levels.push(read(dir, &mut seen)?);
    }
    Ok(closed.get())
}

/// Counts everything below `root` into `ledger`. Returns also what is closed (see [`walk`]).
pub(super) fn count(
    root: &OwnedFd,
    ledger: &Ledger,
    ends: impl Fn() -> bool,
) -> Result<(Counted, usize), Unreached> {
    let moved = ledger.begin_count();
    let counted = counted(root, ledger, ends);
    match counted {
        Ok(closed) => Ok((ledger.end_count(moved, closed > 0), closed)),
        Err(e) => {
            ledger.abandon_count();
            Err(e)
        }
    }
}

fn counted(root: &OwnedFd, ledger: &Ledger, ends: impl Fn() -> bool) -> Result<usize, Unreached> {
    let begun = ledger.begin();
    let at = stat(root, c"")?;
    let home = (at.stx_dev_major, at.stx_dev_minor);
    ledger.measured(Inode::of_stat(&at, home), at.stx_blocks.saturating_mul(512), begun);
    // Not those of the ledger, which still knows files that others have removed.
    let mut names = 0_usize;
    let each = |found: &Found<'_>| {
        names += 1;
        if names > MAX_FILES {
            return Err(Unreached::TooMany);
        }
        // Again, because it may have grown while the directory was read.
        let begun = ledger.begin();
        let stat = match stat(found.dir, found.name) {
            Ok(stat) => stat,
            Err(e) if is_gone(e) => return Ok(()),
            Err(Errno::ACCESS | Errno::PERM) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        ledger.measured(Inode::of_stat(&stat, home), stat.stx_blocks.saturating_mul(512), begun);
        Ok(())
    };
    walk(root, ends, each, |_| Ok(()))
}

/// Whether there are at most so many files below `root`, as far as can be found out before `ends`.
pub(super) fn has_at_most(root: &OwnedFd, files: usize, ends: impl Fn() -> bool) -> bool {
    let mut found = 0;
    let each = |_: &Found<'_>| {
        found += 1;
        if found > files { Err(Unreached::TooMany) } else { Ok(()) }
    };
    !matches!(walk(root, ends, each, |_| Ok(())), Err(Unreached::TooMany))
}

/// Gives everything below `root` this project, the root itself last: then a root with it says that all of them have it.
pub(super) fn assign(root: &OwnedFd, id: u32, goes_on: &dyn Fn()) -> Result<(), Unreached> {
    let of_dir = Project { id, is_inherited: true };
    let each = |found: &Found<'_>| {
        goes_on();
        // Links and devices take no space beyond their inode.
        if FileType::from_raw_mode(found.stat.stx_mode.into()) != FileType::RegularFile {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOATIME;
        match rustix::fs::openat(found.dir, found.name, flags, Mode::empty()) {
            Ok(file) => Ok(project::set_project(&file, Project { id, is_inherited: false })?),
            Err(e) if is_gone(e) => Ok(()),
            Err(e) => Err(e.into()),
        }
    };
    match walk(root, || false, each, |dir| Ok(project::set_project(dir, of_dir)?))? {
        0 => Ok(()),
        closed => {
            let why =
                format!("{closed} folders in it cannot be read, or are more than {MAX_DEPTH} levels deep");
            Err(io::Error::other(why).into())
        }
    }
}
