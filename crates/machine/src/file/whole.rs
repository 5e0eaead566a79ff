//! Files that are written as a whole: after a crash or a full disk a file has its old content or the new one.
//!
//! The content is written to a draft beside the file, which then takes the file's name.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Who owns a file that is written, and who may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Closed to other users (0600). If root writes it in the folder of a service's user, it is that user's.
    Private,
    /// The mode and the owner of the old file. A new one is this user's and readable by all, whatever the umask.
    Inherited,
}

/// Replaces a file, or creates it.
///
/// # Errors
/// The content was not replaced, or it is not known to be durable.
pub fn replace(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    place(path, content, access, |draft| std::fs::rename(draft, path))
}

/// Creates a file.
///
/// # Errors
/// It exists, it was not created, or it is not known to be durable.
pub fn create(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    place(path, content, access, |draft| match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
        // A file system that cannot do so.
        Err(Errno::INVAL | Errno::NOSYS) => {
            std::fs::hard_link(draft, path)?;
            std::fs::remove_file(draft)
        }
        renamed => Ok(renamed?),
    })
}

fn place(
    path: &Path,
    content: &[u8],
    access: Access,
    name: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let draft = draft_of(path);
    if let Err(e) = write(&draft, path, content, access).and_then(|()| name(&draft)) {
        // The first error is the one to report; a draft that stays is replaced by the next one of this process.
        let _ = std::fs::remove_file(&draft);
        return Err(e);
    }
    File::open(folder_of(path))?.sync_all()
}

/// The name of a file's draft, which begins with that of the file.
pub(super) fn draft_of(path: &Path) -> PathBuf {
    path.with_added_extension(format!("new-{}", std::process::id()))
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the draft of a file. Root may do so in the folder of another user, so no link that the user has placed there
/// is followed.
pub(super) fn write(draft: &Path, path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    match std::fs::remove_file(draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    match access {
        Access::Private => {
            if rustix::process::geteuid().is_root() {
                let owner = folder_of(path).metadata()?;
                std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
            }
        }
        Access::Inherited => inherit(&file, path)?,
    }
    file.write_all(content)?;
    file.sync_all()
}

fn inherit(draft: &File, path: &Path) -> io::Result<()> {
    let mode = match path.metadata() {
        Ok(old) => {
            let new = draft.metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                // Whoever owns the file may keep it in any group of his.
                let uid = (new.uid() != old.uid()).then(|| old.uid());
                std::os::unix::fs::fchown(draft, uid, Some(old.gid())).map_err(|e| {
                    let (kind, user, group) = (e.kind(), old.uid(), old.gid());
                    let why = format!(
                        "it belongs to user {user} and group {group}, which only root can keep ({e})"
                    );
                    io::Error::new(kind, why)
                })?;
            }
            old.mode() & 0o7777
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0o644,
        Err(e) => return Err(e),
    };
    draft.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_replaced_is_whole_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weft.toml");
        create(&path, b"first", Access::Inherited).unwrap();
        assert_eq!(mode(&path), 0o644);
        assert_eq!(
            create(&path, b"other", Access::Inherited).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"second", Access::Inherited).unwrap();
        assert_eq!((mode(&path), &std::fs::read(&path).unwrap()[..]), (0o640, &b"second"[..]));
        replace(&path, b"third", Access::Private).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "no draft stays");
        assert!(replace(&dir.path().join("missing/weft.toml"), b"", Access::Private).is_err());
    }

    #[test]
    fn what_root_replaces_keeps_its_owner_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("weft.toml"), dir.path().join("other"));
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, draft_of(&path)).unwrap();
        create(&path, b"new", Access::Inherited).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"kept");
        if rustix::process::geteuid().is_root() {
            let owner = |path: &Path| path.metadata().map(|found| (found.uid(), found.gid())).unwrap();
            std::os::unix::fs::chown(&path, Some(65_533), Some(65_532)).unwrap();
            replace(&path, b"newer", Access::Inherited).unwrap();
            assert_eq!(owner(&path), (65_533, 65_532));
            std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534)).unwrap();
            replace(&path, b"newest", Access::Private).unwrap();
            assert_eq!(owner(&path), (65_534, 65_534));
        }
    }
}
