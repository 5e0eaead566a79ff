//! What is at the paths of shares, and whether those of the server's own files answer.
//!
//! All paths of a configuration are looked at together, once for each check of it, and no rule looks at those of shares again: a
//! file system that hangs costs a check [`LOOK_LIMIT`], however many shares and rules it has. (Volumes are known once the state
//! directory has answered, so they are looked at after the others.)

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags, accessat, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use weft_machine::confine::{self, Use};
use weft_machine::deadline::{self, Unanswered};

use super::share::{FolderFault, LOOK_LIMIT, ShareConfig, ShareSource};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Looks(HashMap<PathBuf, Result<Looked, Unanswered>>);

/// What is at a path.
#[derive(Serialize, Deserialize, Debug)]
struct Looked {
    /// The path without links, or an error number.
    real: Result<Vec<u8>, i32>,
    /// The error of its metadata, although its path leads somewhere.
    unseen: Option<i32>,
    /// The mount that the path leads through, if the file system behind it is gone.
    dead_mount: Option<Vec<u8>>,
    is_dir: bool,
    is_mount: bool,
    place: Option<Place>,
    owner: Option<u32>,
    /// The error of listing and searching it.
    closed: Option<i32>,
    /// Whether this process lacks the permission to create files in it.
    is_unwritable: bool,
    /// Whether Landlock keeps this process out of it.
    is_outside: bool,
}

/// The identity of a folder, independent of its path.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Its file system.
    pub device: u64,
    /// Its inode.
    pub node: u64,
}

impl Place {
    /// What is at a path. Blocks for as long as its file system takes.
    pub(crate) fn of(path: &Path) -> Option<Place> {
        path.metadata().ok().as_ref().map(Place::found)
    }

    fn found(found: &Metadata) -> Place {
        Place { device: found.dev(), node: found.ino() }
    }
}

/// Whether a file system is mounted at this folder. Blocks for as long as that takes.
pub(crate) fn is_mount(folder: &Path) -> bool {
    let found = statx(CWD, folder, AtFlags::empty(), StatxFlags::BASIC_STATS);
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Whether an error is that of a mount whose file system or server is gone.
fn is_of_dead_mount(e: &io::Error) -> bool {
    let gone = [Errno::NOTCONN, Errno::STALE, Errno::IO];
    e.raw_os_error().is_some_and(|e| gone.contains(&Errno::from_raw_os_error(e)))
}

/// The mount point of a folder whose file system is gone. The kernel says so without asking that file system.
fn dead_mount(folder: &Path) -> Option<PathBuf> {
    let is_mount = |path: &&Path| {
        let found = statx(CWD, *path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
        found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    };
    folder.ancestors().find(is_mount).filter(|point| *point != Path::new("/")).map(Path::to_owned)
}

/// Whether the caller lacks a right to a folder.
fn lacks(folder: &Path, rights: Access) -> Option<Errno> {
    accessat(CWD, folder, rights | Access::EXEC_OK, AtFlags::EACCESS).err()
}

/// Whether this process lacks the permission to create files in a folder. Blocks for as long as its file system takes.
pub(super) fn is_unwritable(folder: &Path) -> bool {
    matches!(lacks(folder, Access::WRITE_OK), Some(Errno::ACCESS | Errno::PERM))
}

impl Looked {
    fn at(path: &Path) -> Looked {
        let real = path.canonicalize();
        let at = real.as_deref().unwrap_or(path);
        let (found, closed) = (at.metadata(), lacks(at, Access::READ_OK));
        let error = found.as_ref().err().or(real.as_ref().err());
        let dead_mount = error.filter(|e| is_of_dead_mount(e)).and_then(|_| dead_mount(at));
        let number = |e: &io::Error| e.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
        let unseen = found.as_ref().err().map(number);
        let found = found.ok();
        let is_dir = found.as_ref().is_some_and(Metadata::is_dir);
        if found.as_ref().is_some_and(Metadata::is_file) {
            // Some file systems tell of a file that they cannot read. An error is that of its reader.
            let _ = std::fs::File::open(at).and_then(|mut file| file.read(&mut [0]));
        }
        Looked {
            unseen,
            dead_mount: dead_mount.map(|point| point.into_os_string().into_vec()),
            is_dir,
            is_mount: is_dir && is_mount(at),
            place: found.as_ref().map(Place::found),
            owner: found.as_ref().map(Metadata::uid),
            closed: closed.map(Errno::raw_os_error),
            is_unwritable: is_unwritable(at),
            // Landlock does not count among permissions.
            is_outside: is_dir && closed.is_none() && confine::is_outside(at, Use::Change),
            real: real.map(|real| real.into_os_string().into_vec()).map_err(|e| number(&e)),
        }
    }
}

impl Looks {
    /// Looks at these paths, for [`LOOK_LIMIT`] at most.
    pub(crate) fn at<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Looks {
        let mut all: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        all.sort();
        all.dedup();
        let question = |path: &Path| serde_json::to_vec(&Looked::at(path)).unwrap_or_default();
        let answers = deadline::answers(&all, LOOK_LIMIT, question);
        let parsed = |answer: Result<Vec<u8>, Unanswered>| {
            Ok(serde_json::from_slice(&answer?).map_err(io::Error::from)?)
        };
        Looks(all.into_iter().zip(answers.into_iter().map(parsed)).collect())
    }

    /// Looks at more paths, as [`Looks::at`].
    pub(crate) fn also_at(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let new = paths.into_iter().filter(|path| !self.0.contains_key(path));
        let new: Vec<PathBuf> = new.collect();
        self.0.extend(Looks::at(new).0);
    }

    /// The folder that a path leads to, without links. It can be listed and searched, and this process can serve it.
    pub(crate) fn folder(&self, path: &Path) -> Result<PathBuf, FolderFault> {
        let looked = match self.0.get(path) {
            Some(Ok(looked)) => looked,
            Some(Err(Unanswered::Unasked(e))) => {
                return Err(FolderFault::Unreachable(io::Error::new(e.kind(), e.to_string())));
            }
            Some(Err(Unanswered::Late(_))) | None => return Err(FolderFault::Silent),
        };
        let unreachable = |e: i32| match &looked.dead_mount {
            Some(point) => {
                let point = PathBuf::from(OsString::from_vec(point.clone()));
                FolderFault::Dead { source: io::Error::from_raw_os_error(e), point }
            }
            None => FolderFault::Unreachable(io::Error::from_raw_os_error(e)),
        };
        let real = match &looked.real {
            Ok(real) => PathBuf::from(OsString::from_vec(real.clone())),
            Err(e) if Errno::from_raw_os_error(*e) == Errno::NOENT => return Err(FolderFault::Missing),
            Err(e) => return Err(unreachable(*e)),
        };
        match looked {
            Looked { unseen: Some(e), .. } => Err(unreachable(*e)),
            Looked { is_dir: false, .. } => {
                Err(FolderFault::NoFolder { above: real.parent().unwrap_or(Path::new("/")).to_owned() })
            }
            Looked { closed: Some(e), .. } => Err(unreachable(*e)),
            Looked { is_outside: true, .. } => Err(FolderFault::Outside),
            _ => Ok(real),
        }
    }

    fn looked(&self, path: &Path) -> Option<&Looked> {
        self.0.get(path)?.as_ref().ok()
    }

    /// Where a path leads to, without links, if something is there.
    pub(crate) fn real(&self, path: &Path) -> Option<&Path> {
        let real = self.looked(path)?.real.as_ref().ok()?;
        Some(Path::new(std::ffi::OsStr::from_bytes(real)))
    }

    /// What is at a path.
    pub(crate) fn place(&self, path: &Path) -> Option<Place> {
        self.looked(path)?.place
    }

    /// The user who owns what is at a path.
    pub(crate) fn owner(&self, path: &Path) -> Option<u32> {
        self.looked(path)?.owner
    }

    /// Whether a path leads to a folder.
    pub(crate) fn is_dir(&self, path: &Path) -> bool {
        self.looked(path).is_some_and(|looked| looked.is_dir)
    }

    /// Whether a file system is mounted at a path.
    pub(crate) fn is_mount(&self, path: &Path) -> bool {
        self.looked(path).is_some_and(|looked| looked.is_mount)
    }

    /// Whether the file system of a path was asked, and has not answered.
    pub(crate) fn is_silent(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(Result::is_err)
    }

    /// Why nothing is known of a path that was asked about.
    pub(crate) fn silence(&self, path: &Path) -> Option<String> {
        self.0.get(path)?.as_ref().err().map(ToString::to_string)
    }

    /// Whether the file system of a path has answered.
    pub(crate) fn has_answered(&self, path: &Path) -> bool {
        self.looked(path).is_some()
    }

    /// Whether this process may not create files in a folder for lack of permissions, as a server that runs as a user of its
    /// own.
    pub(super) fn is_unwritable(&self, folder: &Path) -> bool {
        self.looked(folder).is_some_and(|looked| looked.is_unwritable)
    }
}

/// A share named after its folder, even if the path is `.` or ends in `..`. Its path was looked at.
pub(crate) fn share_of_folder(path: &Path, looks: &Looks) -> Result<ShareConfig, FolderFault> {
    let real = looks.folder(path)?;
    let name = real.file_name().and_then(|name| name.to_str()).ok_or(FolderFault::Nameless)?;
    Ok(ShareConfig::new(name, ShareSource::Folder(path.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_a_path_is_seen_through_links() {
        let work = tempfile::tempdir().unwrap();
        let work = work.path().canonicalize().unwrap();
        let at = |name: &str| work.join(name);
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink("folder", at("link")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        let looks = Looks::at(["folder", "file", "link", "loop", "none"].map(at));
        for path in ["folder", "link"] {
            assert_eq!(looks.folder(&at(path)).unwrap(), at("folder"));
            assert_eq!(looks.place(&at(path)), Place::of(&at("folder")), "{path}");
        }
        assert!(matches!(looks.folder(&at("file")), Err(FolderFault::NoFolder { above }) if above == work));
        assert!(matches!(looks.folder(&at("none")), Err(FolderFault::Missing)));
        let looped = looks.folder(&at("loop")).unwrap_err();
        assert!(matches!(&looped, FolderFault::Unreachable(e) if e.raw_os_error() == Some(40)), "{looped:?}");
        assert_eq!(looks.real(&at("link")), Some(&*at("folder")));
        assert!(looks.real(&at("none")).is_none() && looks.has_answered(&at("none")));
        assert!(!looks.has_answered(&at("never-asked")));
    }
}
