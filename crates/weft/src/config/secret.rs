//! Files with secrets: which users besides the server could read or change them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secret {
    /// A token: who reads it is let in.
    Token,
    /// A private key or a keytab, which a group may share.
    Key,
}

impl Secret {
    /// The permission bits that it must not have, and a mode without them.
    fn closed(self) -> (u32, &'static str) {
        match self {
            Secret::Token => (0o077, "600"),
            Secret::Key => (0o026, "640"),
        }
    }
}

/// Why a file does not keep its secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Exposed {
    /// Another user owns it.
    #[error("belongs to user {owner}, who can read and change it: chown {to} it")]
    Foreign { owner: u32, to: u32 },
    /// Its mode is too wide.
    #[error("can be read by other users: chmod {0} it")]
    Open(&'static str),
}

/// The users who may own the secrets of a server with this state directory: root, the user of this process, and the owner of
/// the state directory, which holds the keys that the server has made. The last is the service's user if root examines the
/// service's configuration.
pub(super) fn owners(state: Option<&Path>) -> Vec<u32> {
    let of_state = state.and_then(|path| path.metadata().ok()).map(|found| found.uid());
    [0, rustix::process::geteuid().as_raw()].into_iter().chain(of_state).collect()
}

/// Whether only these users can change a file with a secret, and nobody reads it whom the secret is kept from. Pipes and devices
/// are not judged: a pipe is what its maker passes.
pub(super) fn check(secret: Secret, found: &Metadata, owners: &[u32]) -> Result<(), Exposed> {
    if !found.is_file() {
        return Ok(());
    }
    if !owners.contains(&found.uid()) {
        let to = rustix::process::geteuid().as_raw();
        return Err(Exposed::Foreign { owner: found.uid(), to });
    }
    let (closed, mode) = secret.closed();
    if found.mode() & closed == 0 { Ok(()) } else { Err(Exposed::Open(mode)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_secret_is_its_owners_and_a_key_may_be_its_groups() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, b"").unwrap();
        for (mode, token, key) in
            [(0o600, true, true), (0o400, true, true), (0o640, false, true), (0o660, false, false)]
                .into_iter()
                .chain([(0o604, false, false), (0o602, false, false), (0o644, false, false)])
        {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let found = path.metadata().unwrap();
            for (secret, is_safe) in [(Secret::Token, token), (Secret::Key, key)] {
                let judged = check(secret, &found, &owners(None));
                assert_eq!(judged.is_ok(), is_safe, "{mode:o} {secret:?}");
            }
        }
    }

    #[test]
    fn a_secret_belongs_to_root_the_server_or_the_owner_of_its_state() {
        let dir = tempfile::tempdir().unwrap();
        let (path, state) = (dir.path().join("secret"), dir.path().join("state"));
        std::fs::write(&path, b"").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::create_dir(&state).unwrap();
        let judge = |secret| check(secret, &path.metadata().unwrap(), &owners(Some(&state)));
        assert_eq!(judge(Secret::Token), Ok(()));
        if !rustix::process::geteuid().is_root() {
            return println!("SKIPPED: only root can give files away");
        }
        chown(&path, Some(3000), Some(3000)).unwrap();
        for secret in [Secret::Token, Secret::Key] {
            assert_eq!(judge(secret), Err(Exposed::Foreign { owner: 3000, to: 0 }));
        }
        chown(&state, Some(3000), Some(3000)).unwrap();
        assert_eq!(judge(Secret::Token), Ok(()));
    }
}
