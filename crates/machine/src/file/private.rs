//! Files and folders of the server's own: keys, password verifiers, records of open files. Other users cannot read
//! them.
//!
//! The caller chooses the place.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::regular;
use super::whole::{self, Access};

/// The permission bits of other users.
const OTHERS: u32 = 0o077;
/// The most bytes that a file made once is read of: keys have 32 at most.
const MOST_MADE: usize = 4096;
/// Prefixes of the names in a state directory.
const NAMES: [&str; 10] =
    ["run", "announce", "audit-", "nfs-", "smb-", "users", "volumes", "replica", "snapshots", "quotas"];

/// Creates a state directory if missing, closed to other users (0700). A directory that an earlier version left open is
/// closed; one in which another user keeps files is not changed, and a warning is logged.
///
/// # Errors
/// It cannot be created or examined.
pub fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = path.metadata()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if !own || found.mode() & OTHERS == 0 {
        return Ok(());
    }
    if found.mode() & 0o1000 == 0 && holds_state_alone(path)? {
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
        tracing::info!("{} was open to other users; it is closed now (0700)", path.display());
    } else {
        tracing::warn!(
            "{} is open to other users and contains files that are not Weft's: chmod 700 it, or name another",
            path.display()
        );
    }
    Ok(())
}

/// Creates a folder in a state directory if missing, closed to other users (0700). One that root has made belongs to the
/// directory's owner from then on: a service that is not root could not use it.
///
/// # Errors
/// It cannot be created, or given to the owner.
pub fn folder_in_state(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = whole::folder_of(path).metadata()?;
    // The owner may have placed a link there meanwhile.
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
    let made = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if made.metadata()?.uid() == 0 && owner.uid() != 0 {
        std::os::unix::fs::fchown(&made, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

fn holds_state_alone(path: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        if !NAMES.iter().any(|known| name.as_encoded_bytes().starts_with(known.as_bytes())) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Opens a file for reading and writing, or creates it, closed to other users (0600) from the start; a file that an
/// earlier version left open is closed.
///
/// # Errors
/// It cannot be opened or created, or it is no regular file.
pub fn file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = regular::open(path, &options)?;
    let found = file.metadata()?;
    if found.mode() & OTHERS != 0 && found.uid() == rustix::process::geteuid().as_raw() {
        file.set_permissions(Permissions::from_mode(0o600))?;
        tracing::info!("{} was open to other users; it is closed now (0600)", path.display());
    }
    Ok(file)
}

/// The content of a file, or `None` if there is none. One that an earlier program left open to other users is closed.
///
/// # Errors
/// It cannot be read, it is longer than `most` bytes, it is no regular file, or another user, who is not root, can
/// change it.
pub fn read(path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match regular::read_only(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let found = file.metadata()?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    // Root reads the files of a service's user.
    let is_root = rustix::process::geteuid().is_root();
    if !own && !is_root && found.uid() != 0 {
        let text = format!("it belongs to user {}, who could change it: chown it", found.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if found.mode() & OTHERS != 0 && own {
        file.set_permissions(Permissions::from_mode(0o600))?;
        tracing::warn!("{} was open to other users; it is closed now (0600)", path.display());
    }
    let mut content = Vec::new();
    (&file).take(most as u64 + 1).read_to_end(&mut content)?;
    if content.len() > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes")));
    }
    Ok(Some(content))
}

/// The content of a file that is created once: the existing content, or else what `make` returns. A reader of the file
/// always finds the complete content, even after a crash or a full disk during its creation. An empty file, which
/// earlier versions left in such a case, counts as missing. One that is open to other users is closed.
///
/// # Errors
/// It cannot be read or created.
pub fn made_once(path: &Path, make: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match read(path, MOST_MADE) {
        Ok(Some(found)) if !found.is_empty() => return Ok(found),
        Ok(None) => {}
        Ok(Some(_)) => {
            tracing::warn!(
                "{} is empty, as a full disk or a crash leaves a file: it is created again",
                path.display()
            );
            std::fs::remove_file(path)?;
        }
        Err(e) => return Err(e),
    }
    let draft = whole::draft_of(path);
    let made = whole::write(&draft, path, &make()?, Access::Private).and_then(|()| publish(&draft, path));
    if made.is_err() {
        // The first error is the one to report; a draft that stays is replaced by the next one of this process.
        let _ = std::fs::remove_file(&draft);
    }
    made?;
    // Another server may have made it meanwhile.
    read(path, MOST_MADE)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Gives a complete draft its name, durably, unless another server has created the file meanwhile: then that one stays.
/// The draft is gone afterwards.
pub(super) fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    match std::fs::hard_link(draft, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        // A file system without hard links.
        Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {
            std::fs::rename(draft, path)?;
        }
        linked => linked?,
    }
    match std::fs::remove_file(draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn state_is_closed_to_others_from_the_first_file_on() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        folder(&state).unwrap();
        drop(file(&state.join("smb-x.redb")).unwrap());
        assert_eq!((mode(&state), mode(&state.join("smb-x.redb"))), (0o700, 0o600));
    }

    #[test]
    fn what_was_left_open_is_closed_unless_it_is_not_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        folder(&state).unwrap();
        let redb = state.join("nfs-0.0.0.0-2049.redb");
        std::fs::write(&redb, "kept").unwrap();
        std::fs::set_permissions(&redb, Permissions::from_mode(0o644)).unwrap();
        std::fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        folder(&state).unwrap();
        drop(file(&redb).unwrap());
        assert_eq!((mode(&state), mode(&redb)), (0o700, 0o600));
        assert_eq!(std::fs::read(&redb).unwrap(), b"kept");
        std::fs::write(state.join("mine.txt"), "").unwrap();
        std::fs::set_permissions(&state, Permissions::from_mode(0o755)).unwrap();
        folder(&state).unwrap();
        assert_eq!(mode(&state), 0o755, "somebody keeps something else in it");
    }

    #[test]
    fn what_is_read_is_closed_and_not_too_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        assert_eq!(read(&path, 10).unwrap(), None);
        whole::replace(&path, b"first", Access::Private).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&path, 5).unwrap().unwrap(), b"first");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(read(dir.path(), 10).is_err());
    }

    #[test]
    fn what_root_makes_for_a_service_is_the_services() {
        let dir = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534)).unwrap();
            made_once(&dir.path().join("users.key"), || Ok(b"key".to_vec())).unwrap();
            assert_eq!(dir.path().join("users.key").metadata().unwrap().uid(), 65_534);
            let owner = |path: &Path| path.metadata().map(|found| (found.uid(), found.gid())).unwrap();
            let replica = dir.path().join("replica");
            folder_in_state(&replica).unwrap();
            assert_eq!((owner(&replica), mode(&replica)), ((65_534, 65_534), 0o700));
            // Another user's stays theirs, and a link is not followed.
            std::os::unix::fs::chown(&replica, Some(65_533), Some(65_533)).unwrap();
            folder_in_state(&replica).unwrap();
            assert_eq!(owner(&replica), (65_533, 65_533));
            let (elsewhere, link) = (tempfile::tempdir().unwrap(), dir.path().join("link"));
            std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
            assert!(folder_in_state(&link).is_err());
            assert_eq!(owner(elsewhere.path()), (0, 0));
        }
    }

    #[test]
    fn what_is_made_once_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nfs-handles.key");
        let refused = made_once(&path, || Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(!path.exists());
        assert_eq!(made_once(&path, || Ok(b"first".to_vec())).unwrap(), b"first");
        assert_eq!(made_once(&path, || unreachable!()).unwrap(), b"first");
        assert_eq!(mode(&path), 0o600);
        // A backup was restored with the modes of its medium.
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(made_once(&path, || unreachable!()).unwrap(), b"first");
        assert_eq!(mode(&path), 0o600);
        // The file of an earlier version after a full disk.
        std::fs::write(&path, b"").unwrap();
        assert_eq!(made_once(&path, || Ok(b"second".to_vec())).unwrap(), b"second");
        let names: Vec<_> = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["nfs-handles.key"]);
    }
}
