//! For tests of several rooms, which include this file: two equal trees, one that a server uses in a user's name and one for a
//! thread that is this user in every respect. Both must end alike.
//!
//! Users, groups and ACLs are ids that no host has. Only root can be another user, so elsewhere tests say that they are
//! skipped.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use weft_machine::credentials;

/// A user, the group of what he creates, and his other groups.
pub(crate) type User = (u32, u32, &'static [u32]);

/// The owner and the group of files.
pub(crate) const OWNER: u32 = 2001;
pub(crate) const GROUP: u32 = 3000;
/// The owner of what is in directories.
pub(crate) const ANOTHER: u32 = 2002;
/// Whom ACLs name.
const NAMED_USER: u32 = 2004;
const NAMED_GROUP: u32 = 3007;

/// Users by their relation to files of OWNER and GROUP.
pub(crate) const USERS: [User; 6] = [
    (OWNER, 3001, &[]),
    (ANOTHER, GROUP, &[]),
    (2003, 3003, &[GROUP, 3004]),
    (NAMED_USER, 3005, &[]),
    (2005, 3006, &[NAMED_GROUP]),
    (2006, 3008, &[3009]),
];

/// An ACL: what it gives the named user and the named group.
pub(crate) type Acl = (u16, u16);

/// Sets an ACL of this kind, "access" or "default": acl(5) as Linux stores it (include/uapi/linux/posix_acl_xattr.h).
pub(crate) fn give_acl(path: &Path, kind: &str, (user, group): Acl) -> Result<(), Errno> {
    const NO_ID: u32 = u32::MAX;
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (0x01_u16, 7_u16, NO_ID),
        (0x02, user, NAMED_USER),
        (0x04, 5, NO_ID),
        (0x08, group, NAMED_GROUP),
        (0x10, 7, NO_ID),
        (0x20, 1, NO_ID),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(path, format!("system.posix_acl_{kind}"), &bytes, XattrFlags::empty())
}

/// Runs `act` as a user in every respect, without any of root's capabilities: by another call than the server's, and with
/// the real user changed as well. That 0 is the saved user only lets the thread return.
pub(crate) fn being<T>((uid, gid, groups): User, act: impl FnOnce() -> T) -> T {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let own = rustix::process::getgroups().unwrap();
    let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(Some(group), Some(group), Some(Gid::ROOT)).unwrap();
    set_thread_res_uid(Some(user), Some(user), Some(Uid::ROOT)).unwrap();
    let done = act();
    set_thread_res_uid(Some(Uid::ROOT), Some(Uid::ROOT), Some(Uid::ROOT)).unwrap();
    set_thread_res_gid(Some(Gid::ROOT), Some(Gid::ROOT), Some(Gid::ROOT)).unwrap();
    set_thread_groups(&own).unwrap();
    done
}

/// Sets a mode.
pub(crate) fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Makes a directory "d" of these permissions, perhaps with an ACL of its kind, beside a file "out". In it are two files and a
/// directory; what a test has made as "new" is gone.
pub(crate) fn make_dir(tree: &Path, acl: Option<(&str, Acl)>, bits: u32) {
    let dir = tree.join("d");
    let _ = std::fs::remove_dir_all(&dir);
    for name in ["new", "out"] {
        let _ = std::fs::remove_file(tree.join(name));
    }
    std::fs::create_dir(&dir).unwrap();
    for name in ["d/f", "d/e", "out"] {
        let file = tree.join(name);
        std::fs::write(&file, b"").unwrap();
        chown(&file, Some(ANOTHER), Some(GROUP)).unwrap();
        mode(&file, 0o644);
    }
    std::fs::create_dir(dir.join("sub")).unwrap();
    chown(dir.join("sub"), Some(ANOTHER), Some(GROUP)).unwrap();
    chown(&dir, Some(OWNER), Some(GROUP)).unwrap();
    if let Some((kind, acl)) = acl {
        give_acl(&dir, kind, acl).unwrap();
    }
    mode(&dir, bits);
}

/// What others can see of a file: owner, group, mode and ACL; and nothing if it does not exist.
pub(crate) fn state(path: &Path) -> Option<(u32, u32, u32, Vec<u8>)> {
    let meta = path.symlink_metadata().ok()?;
    let mut acl = vec![0; 256];
    let len = match meta.is_symlink() {
        true => 0,
        false => rustix::fs::getxattr(path, "system.posix_acl_access", &mut acl).unwrap_or(0),
    };
    acl.truncate(len);
    Some((meta.uid(), meta.gid(), meta.mode(), acl))
}

/// The two trees.
pub(crate) struct Twins {
    _folder: tempfile::TempDir,
    pub served: PathBuf,
    pub plain: PathBuf,
}

impl Twins {
    /// `None` if this process or this file system cannot have such a table.
    pub(crate) fn new() -> Option<Twins> {
        let folder = tempfile::tempdir().unwrap();
        if let Err(e) = credentials::check() {
            println!("SKIPPED: only root can act for other users: {e}");
            return None;
        }
        if let Err(e) = give_acl(folder.path(), "default", (7, 7)) {
            println!("SKIPPED: {} has no POSIX ACLs: {e}", folder.path().display());
            return None;
        }
        rustix::fs::removexattr(folder.path(), "system.posix_acl_default").unwrap();
        mode(folder.path(), 0o755);
        let [served, plain] = ["served", "plain"].map(|name| folder.path().join(name));
        for tree in [&served, &plain] {
            std::fs::create_dir(tree).unwrap();
            // The group that the test runs in must make no difference.
            mode(tree, 0o777);
        }
        Some(Twins { _folder: folder, served, plain })
    }

    /// Does the same to both.
    pub(crate) fn each(&self, build: impl Fn(&Path)) {
        build(&self.served);
        build(&self.plain);
    }
}
