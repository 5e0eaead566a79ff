//! Maps descriptors to Unix permissions and back.
//!
//! The mapping is our own; docs/guide.md explains it to users. Single entries are not mapped to POSIX ACLs. Admitted
//! users act as the server's own Unix user, so that user's permissions are never removed.
//!
//! | Unix | as a descriptor |
//! |---|---|
//! | owner | the requesting user if the server's own user owns the file; else S-1-22-1-uid: everything |
//! | group | S-1-22-2-gid: the group's bits |
//! | others | Everyone: the others' bits |
//! | the server's user | Authenticated Users: everything, or its class's bits |
//!
//! Where the server acts as the user, there is no entry for the server's own user, and the owner is the requesting user if
//! the file belongs to the Unix user as whom the server acts.

use weft_wire::security::{Ace, AceFlags, Control, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

use super::Token;
use crate::vfs::{Attr, Kind};

/// The rights for one class's read, write and execute bits, the three lowest of `bits`.
fn rights(bits: u32, directory: bool) -> AccessMask {
    let mut rights = AccessMask::NONE;
    if bits & 4 != 0 {
        rights |= AccessMask::FILE_GENERIC_READ;
    }
    if bits & 2 != 0 {
        rights |= AccessMask::FILE_GENERIC_WRITE;
        if directory {
            rights |= AccessMask::FILE_DELETE_CHILD;
        }
    }
    if bits & 1 != 0 {
        rights |= AccessMask::FILE_GENERIC_EXECUTE;
    }
    rights
}

/// The Unix user that the server runs as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

impl Process {
    /// This process's user.
    pub fn own() -> Process {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Process { uid: uid.as_raw(), gid: gid.as_raw() }
    }

    /// Its rights on a file according to the file's permissions.
    fn may(self, attr: &Attr) -> AccessMask {
        let directory = attr.kind == Kind::Dir;
        match () {
            // An owner may change the permissions, so they do not restrict him.
            () if self.uid == 0 || self.uid == attr.uid => AccessMask::FILE_ALL,
            () if self.gid == attr.gid => rights(attr.mode >> 3, directory) | AccessMask::DELETE,
            // The directory decides about deletion, and Unix enforces it.
            () => rights(attr.mode, directory) | AccessMask::DELETE,
        }
    }
}

/// The descriptor of a file that has none.
pub fn synthesised(attr: &Attr, token: &Token, process: Process) -> SecurityDescriptor {
    let everybody = (Sid::authenticated_users(), process.may(attr));
    of_classes(attr, token, process.uid, Some(everybody))
}

/// The descriptor of a file that has none, for a user as whom the server acts: its mode.
pub fn of_mode(attr: &Attr, token: &Token, uid: u32) -> SecurityDescriptor {
    of_classes(attr, token, uid, None)
}

/// The entries of a mode. Files of `own` belong to the user of `token`.
fn of_classes(attr: &Attr, token: &Token, own: u32, more: Option<(Sid, AccessMask)>) -> SecurityDescriptor {
    let directory = attr.kind == Kind::Dir;
    let flags = match directory {
        true => AceFlags::OBJECT_INHERIT | AceFlags::CONTAINER_INHERIT,
        false => AceFlags::NONE,
    };
    let owner = if attr.uid == own { token.user.clone() } else { Sid::unix_user(attr.uid) };
    let group = Sid::unix_group(attr.gid);
    let entries = [
        (owner.clone(), AccessMask::FILE_ALL),
        (group.clone(), rights(attr.mode >> 3, directory)),
        (Sid::everyone(), rights(attr.mode, directory)),
    ];
    let granted = entries.into_iter().chain(more).filter(|(_, mask)| *mask != AccessMask::NONE);
    let dacl = granted.map(|(sid, mask)| Ace::allow(sid, mask, flags)).collect();
    SecurityDescriptor {
        control: Control::NONE,
        owner: Some(owner),
        group: Some(group),
        dacl: Dacl::List(dacl),
    }
}

/// The permissions closest to a descriptor, for a file with `mode`: the group's bits follow the group's rights, the
/// others' bits everybody's rights. The owner's bits stay.
pub fn mode(descriptor: &SecurityDescriptor, mode: u32, gid: u32) -> u32 {
    // A user without any named rights.
    let stranger = Sid { authority: 0, sub_authorities: vec![0] };
    let may = |group: Sid| {
        let token = Token { user: stranger.clone(), group, others: vec![Sid::everyone()] };
        let granted = super::granted(descriptor, &token);
        let bit = |needed, bit| if granted.contains(needed) { bit } else { 0 };
        bit(AccessMask::FILE_READ_DATA, 4)
            | bit(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_APPEND_DATA, 2)
            | bit(AccessMask::FILE_EXECUTE, 1)
    };
    // A file without any write bit was made so by its mode, and stays so until its mode is changed.
    let writable = if mode & 0o222 == 0 { 0o755 } else { 0o777 };
    (mode & !0o77) | ((may(Sid::unix_group(gid)) << 3 | may(stranger.clone())) & writable)
}
