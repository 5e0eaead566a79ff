//! A folder of this host that a command works in, and all that lies below it.
//!
//! The folder that the user has named may be reached through symbolic links. It is opened once, and what lies below it is reached
//! from there without following any: whoever may write in the folder can put a link in the place of anything at any moment, and
//! a path would lead root wherever that link leads.
//! Owns: the folder's descriptor (O_PATH: searching it is enough). Does not: follow links, or give out paths to be opened.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// How a folder is opened to be worked in.
const SEARCHED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// No link anywhere on the way, and no way out.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// What a user reads where a link was found.
const LINK: &str = "a symbolic link has this name here";

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// How users call it. It is never opened.
    shown: PathBuf,
}

impl Folder {
    /// The folder that the user has named; links on the way are followed.
    pub(crate) fn named(path: &Path) -> io::Result<Folder> {
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Folder { fd: rustix::fs::openat(CWD, at, SEARCHED, Mode::empty())?, shown: path.to_owned() })
    }

    /// The same; it and those above are made where they are missing.
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
            // A kernel without it, or a filter of system calls; a path that is too long for one call.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::NAMETOOLONG) => self.walk(path)?,
            opened => opened.map_err(told)?,
        };
        Ok(Folder { fd, shown })
    }

    /// The same as `openat2` does it, name by name.
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

    /// The folder that holds what is at `path`, and its name there.
    pub(crate) fn holder<'p>(&self, path: &'p str) -> io::Result<(Folder, &'p str)> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        check(name)?;
        Ok((self.within(above)?, name))
    }

    /// How users call what is at `path`.
    pub(crate) fn path_of(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.shown.clone() } else { self.shown.join(path) }
    }

    /// All names in it.
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

    /// What a name is, a link itself.
    pub(crate) fn stat(&self, name: &str) -> io::Result<Stat> {
        check(name)?;
        Ok(rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The same as the standard library tells it; `None`: there is nothing.
    pub(crate) fn look(&self, name: &str) -> io::Result<Option<Metadata>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        check(name)?;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd).metadata().map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(told(e)),
        }
    }

    /// Opens, or makes, what is not a link.
    pub(crate) fn open(&self, name: &str, flags: OFlags, mode: u32) -> io::Result<File> {
        check(name)?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode)).map(File::from).map_err(told)
    }

    /// Opens a regular file that exists. Anything else is refused, and waited for in no case: a FIFO may have come into its place.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let file = self.open(name, flags | OFlags::NONBLOCK, 0)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file any more"));
        }
        // io_uring would not wait for the disk.
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Makes a folder in it.
    pub(crate) fn make(&self, name: &str) -> io::Result<()> {
        check(name)?;
        Ok(rustix::fs::mkdirat(&self.fd, name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?)
    }

    /// Removes a name, of an empty folder or of anything else.
    pub(crate) fn remove(&self, name: &str, folder: bool) -> io::Result<()> {
        check(name)?;
        let flags = if folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(&self.fd, name, flags)?)
    }

    /// Gives `from` the name `to`, whose file is replaced.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check(from)?;
        check(to)?;
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// A path of a name in this very folder, for calls that take no descriptor and follow no link at its end.
    pub(crate) fn by_descriptor(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name is one name: it leads nowhere else.
fn check(name: &str) -> io::Result<()> {
    if name.contains(['/', '\0']) || matches!(name, "" | "." | "..") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name of a file")));
    }
    Ok(())
}

fn is_link(folder: &OwnedFd, name: &str) -> bool {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
}

/// The system's sentence for a link is "too many levels".
fn told(e: Errno) -> io::Error {
    if e == Errno::LOOP { io::Error::other(LINK) } else { e.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with `d/e/file`, and `link` to what is outside of it.
    fn tree() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("outside/e")).unwrap();
        std::fs::write(at("outside/e/file"), "outside").unwrap();
        std::fs::create_dir_all(at("root/d/e")).unwrap();
        std::fs::write(at("root/d/e/file"), "inside").unwrap();
        symlink(at("outside"), at("root/link")).unwrap();
        symlink(at("root"), at("named")).unwrap();
        // The one that the user has named may be a link.
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
        // Also not one that takes a folder's place after it was listed.
        std::fs::rename(dir.path().join("root/d"), dir.path().join("root/x")).unwrap();
        symlink(dir.path().join("outside"), dir.path().join("root/d")).unwrap();
        assert!(root.holder("d/e/file").is_err());
        // What is open already is the folder that it was.
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
        // Deeper than any path that one system call takes.
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
