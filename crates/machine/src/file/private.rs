//! Files and folders of the server's own: keys, passwords' verifiers, who had what open. Nobody else reads them.
//!
//! Owns: nothing. Does not: choose the place.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The rights of others.
const OTHERS: u32 = 0o077;
/// Names in a state directory, as they begin.
const NAMES: [&str; 6] = ["run", "nfs-", "smb-", "volumes", "replica", "snapshots"];

/// Makes a state directory where there is none, closed to others (0700). One that an earlier version has left open is closed;
/// one in which anybody else keeps something is left as it is, with a line in the log.
///
/// # Errors
/// It cannot be made, or not be looked at.
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
            "{} is open to other users, and not Weft's alone: chmod 700 it, or name another",
            path.display()
        );
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

/// Opens a file to read and write it, or makes it, closed to others (0600) from its first byte on; one that an earlier version
/// has left open is closed.
///
/// # Errors
/// It cannot be opened or made.
pub fn file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    let found = file.metadata()?;
    if found.mode() & OTHERS != 0 && found.uid() == rustix::process::geteuid().as_raw() {
        file.set_permissions(Permissions::from_mode(0o600))?;
        tracing::info!("{} was open to other users; it is closed now (0600)", path.display());
    }
    Ok(file)
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
}
