//! Access decisions, the same for every protocol.
//!
//! [MS-DTYP] 2.5.3.2 (access check), [MS-FSA] 2.1.5.1.2.1 (rights from the directory above). Identities are proved
//! elsewhere. The file system's own decision still applies: what Unix denies to the server's process stays denied.
//!
//! A file has the descriptor that a client has set, or that it inherited when it was created; see [`keep`]. A file
//! without one is judged by [`posix::synthesised`]: the users of a share have equal access to unprotected files, as
//! far as the server's own Unix user may access them. Descriptors are stored only if they say more than permissions
//! do, so a share without descriptors pays only for looking up a missing attribute.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod chmod;
pub mod inherit;
mod keep;
pub mod posix;
#[cfg(test)]
mod tests;

pub use keep::{Guard, keep, look, stored};
use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

/// The name of the extended attribute that holds a descriptor.
pub const XATTR: &[u8] = b"weft.security";
/// The rights of every owner, unless an entry for OWNER RIGHTS says otherwise.
const OWNERS: AccessMask = AccessMask(AccessMask::READ_CONTROL.0 | AccessMask::WRITE_DAC.0);

/// The requester: a user with his groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The user, who owns what he creates.
    pub user: Sid,
    /// The group of what he creates.
    pub group: Sid,
    /// All his other groups.
    pub others: Vec<Sid>,
}

impl Token {
    /// A Unix user as NFS identifies him.
    pub fn unix(uid: u32, gid: u32, gids: &[u32]) -> Token {
        let others = [Sid::everyone(), Sid::network(), Sid::authenticated_users()];
        let others = others.into_iter().chain(gids.iter().map(|gid| Sid::unix_group(*gid))).collect();
        Token { user: Sid::unix_user(uid), group: Sid::unix_group(gid), others }
    }

    /// Whether the user is, or belongs to, this SID.
    pub fn has(&self, sid: &Sid) -> bool {
        self.user == *sid || self.group == *sid || self.others.contains(sid)
    }
}

/// All rights of `token` on an object with this descriptor, with generic rights mapped to those of files.
///
/// Entries apply in order: a later entry never changes an earlier one's decision.
pub fn granted(descriptor: &SecurityDescriptor, token: &Token) -> AccessMask {
    let aces = match &descriptor.dacl {
        Dacl::Null => return AccessMask::FILE_ALL,
        // A missing list denies, like an empty one.
        Dacl::Absent => &[][..],
        Dacl::List(aces) => aces,
    };
    let owner = descriptor.owner.as_ref().is_some_and(|owner| token.has(owner));
    let owner_rights = Sid::owner_rights();
    let spelled_out = aces.iter().any(|ace| match ace {
        Ace::Allow { sid, .. } | Ace::Deny { sid, .. } => {
            *sid == owner_rights && !ace.flags().contains(AceFlags::INHERIT_ONLY)
        }
        Ace::Other { .. } => false,
    });
    let mut allowed = if owner && !spelled_out { OWNERS } else { AccessMask::NONE };
    let mut denied = AccessMask::NONE;
    let concerns = |sid: &Sid| if *sid == owner_rights { owner } else { token.has(sid) };
    for ace in aces.iter().filter(|ace| !ace.flags().contains(AceFlags::INHERIT_ONLY)) {
        match ace {
            Ace::Allow { mask, sid, .. } if concerns(sid) => {
                allowed |= mask.expand_generic().without(denied);
            }
            Ace::Deny { mask, sid, .. } if concerns(sid) => {
                denied |= mask.expand_generic().without(allowed);
            }
            _ => {}
        }
    }
    allowed & AccessMask::FILE_ALL
}

/// The rights on an object that the directory above adds: who may delete in the directory may delete the object, and
/// who may list it may see the object's attributes.
pub fn from_above(directory: AccessMask) -> AccessMask {
    let mut added = AccessMask::NONE;
    if directory.contains(AccessMask::FILE_DELETE_CHILD) {
        added |= AccessMask::DELETE;
    }
    if directory.contains(AccessMask::FILE_READ_DATA) {
        added |= AccessMask::FILE_READ_ATTRIBUTES;
    }
    added
}
