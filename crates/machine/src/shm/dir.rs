//! The directory for the sockets of shared memory peers, which only this user can enter.
//!
//! It follows the XDG Base Directory Specification (`XDG_RUNTIME_DIR`: owned by the user, mode 0700). The directory is
//! never removed, because every Weft process of the user shares it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `$XDG_RUNTIME_DIR/weft`, or `/tmp/weft-<uid>` if that variable names no directory. Both ends of a connection must
/// have the same environment to meet. The directory is not created: see [`secure_dir`].
pub fn runtime_dir() -> PathBuf {
    choose(std::env::var_os("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
}

pub(super) fn choose(xdg: Option<OsString>, uid: u32) -> PathBuf {
    let usable = |dir: &OsStr| Path::new(dir).is_absolute() && Path::new(dir).is_dir();
    match xdg {
        Some(dir) if usable(&dir) => Path::new(&dir).join("weft"),
        _ => PathBuf::from(format!("/tmp/weft-{uid}")),
    }
}

/// Creates `path` (mode 0700) if missing and opens it; refuses a symbolic link, a foreign owner and a mode that admits
/// others: everybody can write to `/tmp`, and the owner of the directory controls who answers in it.
pub fn secure_dir(path: &Path) -> io::Result<OwnedFd> {
    let refused = |why: &str| {
        let text = format!("{} {why}; remove it or set XDG_RUNTIME_DIR", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::LOOP | Errno::NOTDIR) => return refused("is not a directory"),
        Err(e) => return Err(e.into()),
    };
    let stat = rustix::fs::fstat(&dir)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return refused("belongs to another user");
    }
    if stat.st_mode & 0o077 != 0 {
        return refused("is open to other users");
    }
    Ok(dir)
}
