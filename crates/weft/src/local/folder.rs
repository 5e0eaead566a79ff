//! A local folder that a command works in, and its contents.
//!
//! The folder that the user has named may be reached through symbolic links. It is opened once, and everything below
//! it is reached from there without following links: whoever may write in the folder can replace anything with a link
//! at any moment, and a path would lead root to that link's target. This file owns the folder's descriptor (O_PATH:
//! search permission is enough), and gives out no paths to open.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// The flags for opening a folder to work in.
const SEARCHED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// No symbolic links on the way, and no escape from the folder.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// The message for a symbolic link.
const LINK: &str = "this name is a symbolic link here";

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// The path that messages show. It is never opened.
    shown: PathBuf,
}

impl Folder {
    /// The folder that the user has named; links on the way are followed.
    pub(crate) fn named(path: &Path) -> io::Result<Folder> {
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Folder { fd: rustix::fs::openat(CWD, at, SEARCHED, Mode::empty())?, shown: path.to_owned() })
    }

    /// The same; missing folders are created, including parents.
    pub(crate) fn made(path: &Path) -> io::Result<Folder> {
        std::fs::create_dir_all(path)?;
        Folder::named(path)
    }

    /// The folder at `path` below this one; the empty path is this one.
    pub(crate) fn within(&self, path: &str) -> io::Result<Folder> {
        let shown = self.path_of(path);
        if path.is_empty() {
            return Ok(Folder { fd: self.fd.try_clone()?, shown });
        }
        path.split('/').try_for_each(check)?;
        let fd = match rustix::fs::openat2(&self.fd, path, SEARCHED, Mode::empty(), CONFINED) {
            // The kernel lacks the call, a filter blocks it, or the path is too long for one call.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::NAMETOOLONG) => self.walk(path)?,
            opened => opened.map_err(told)?,
        };
        Ok(Folder { fd, shown })
    }

    /// Does what `openat2` does, name by name.
    fn walk(&self, path: &str) -> io::Result<OwnedFd> {
        let mut at = self.fd.try_clone()?;
        for name in path.split('/') {
            at = match rustix::fs::openat(&at, name, SEARCHED | OFlags::NOFOLLOW, Mode::empty()) {
                Err(Errno::NOTDIR) if is_link(&at, name) => return Err(told(Errno::LOOP)),
                opened => opened.map_err(told)?,
            };
        }
        Ok(at)
    }

    /// The folder that contains `path`, and the name in it.
    pub(crate) fn holder<'p>(&self, path: &'p str) -> io::Result<(Folder, &'p str)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        check(name)?;
        Ok((self.within(above)?, name))
    }

    /// The path that messages show for `path`.
    pub(crate) fn path_of(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.shown.clone() } else { self.shown.join(path) }
    }

    /// All names in the folder.
    pub(crate) fn list(&self) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut names = Vec::new();
        for entry in Dir::new(rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if !matches!(&name[..], b"." | b"..") {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// The metadata of a name, without following a link.
    pub(crate) fn stat(&self, name: &str) -> io::Result<Stat> {
        check(name)?;
        Ok(rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The same as the standard library's type; `None` if it does not exist.
    pub(crate) fn look(&self, name: &str) -> io::Result<Option<Metadata>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        check(name)?;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd).metadata().map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(told(e)),
        }
    }

    /// Opens or creates a file that is not a link.
    pub(crate) fn open(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        check(name)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode)).map(File::from).map_err(told)
    }

    /// Opens an existing regular file. Anything else is refused without blocking: a FIFO may have taken its place.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let file = self.open(name, flags | OFlags::NONBLOCK, 0)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no longer a regular file"));
        }
        // With O_NONBLOCK, io_uring would not wait for the disk.
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Creates a folder in it.
    pub(crate) fn make(&self, name: &str) -> io::Result<()> {
        check(name)?;
        Ok(rustix::fs::mkdirat(&self.fd, name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?)
    }

    /// Removes an empty folder, or anything else, by name.
    pub(crate) fn remove(&self, name: &str, folder: bool) -> io::Result<()> {
        check(name)?;
        let flags = if folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(&self.fd, name, flags)?)
    }

    /// Renames `from` to `to`, replacing that file.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check(from)?;
        check(to)?;
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// A path of a name in this very folder, for calls that take no descriptor and do not follow a link at the end.
    pub(crate) fn by_descriptor(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Checks that a name is a single component.
fn check(name: &str) -> io::Result<()> {
    if name.contains(['/', '\0']) || matches!(name, "" | "." | "..") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a file name")));
    }
    Ok(())
}

fn is_link(folder: &OwnedFd, name: &str) -> bool {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// The system's message for a link is "too many levels".
fn told(e: Errno) -> io::Error {
    if e == Errno::LOOP { io::Error::other(LINK) } else { e.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with `d/e/file`, and `link`, which leads outside.
    fn tree() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("outside/e")).unwrap();
        std::fs::write(at("outside/e/file"), "outside").unwrap();
        std::fs::create_dir_all(at("root/d/e")).unwrap();
        std::fs::write(at("root/d/e/file"), "inside").unwrap();
        symlink(at("outside"), at("root/link")).unwrap();
        symlink(at("root"), at("named")).unwrap();
        // The folder that the user has named may be a link.
        let root = Folder::named(&at("named")).unwrap();
        (dir, root)
    }

    #[test]
    fn nothing_below_a_named_folder_is_reached_through_a_link() {
        let (dir, root) = tree();
        let (folder, name) = root.holder("d/e/file").unwrap();
        assert_eq!(
            std::io::read_to_string(folder.open_file(name, OFlags::RDONLY).unwrap()).unwrap(),
            "inside"
        );
        for path in ["link", "link/e", "d/../link", "..", "/", "/etc", "d//e", "d/e/../../.."] {
            assert!(root.within(path).is_err(), "{path}");
            assert!(path.contains("..") || path.starts_with('/') || root.walk(path).is_err(), "{path}");
        }
        for said in [root.within("link/e").unwrap_err(), root.walk("link/e").unwrap_err()] {
            assert_eq!(said.to_string(), LINK);
        }
        // Not even a link that replaces a folder after it was listed.
        std::fs::rename(dir.path().join("root/d"), dir.path().join("root/x")).unwrap();
        symlink(dir.path().join("outside"), dir.path().join("root/d")).unwrap();
        assert!(root.holder("d/e/file").is_err());
        // An open folder stays the same folder.
        assert!(folder.look(name).unwrap().is_some_and(|found| found.is_file()));
        folder.remove(name, false).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("outside/e/file")).unwrap(), "outside");
    }

    #[test]
    fn both_ways_down_lead_to_the_same_folder() {
        use std::os::unix::fs::MetadataExt;
        let (dir, root) = tree();
        let ino = |fd: &OwnedFd| File::from(fd.try_clone().unwrap()).metadata().unwrap().ino();
        let there = std::fs::metadata(dir.path().join("root/d/e")).unwrap().ino();
        assert_eq!(ino(&root.within("d/e").unwrap().fd), there);
        assert_eq!(ino(&root.walk("d/e").unwrap()), there);
        // Deeper than the longest path of a system call.
        let mut path = String::new();
        for _ in 0..20 {
            let name = "n".repeat(250);
            let (folder, _) = (root.within(&path).unwrap(), ());
            folder.make(&name).unwrap();
            path = if path.is_empty() { name } else { format!("{path}/{name}") };
        }
        assert!(path.len() > 4096 && root.within(&path).is_ok());
    }

    #[test]
    fn a_fifo_or_link_in_a_file_s_place_is_not_opened() {
        let (_dir, root) = tree();
        rustix::fs::mknodat(&root, "fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(root.open_file("fifo", OFlags::RDONLY).is_err());
        assert_eq!(root.open_file("link", OFlags::RDONLY).unwrap_err().to_string(), LINK);
        assert!(root.open("link", OFlags::WRONLY | OFlags::CREATE, 0o600).is_err());
        let file = root.within("d/e").unwrap().open_file("file", OFlags::RDONLY).unwrap();
        assert!(!rustix::fs::fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
    }
}
