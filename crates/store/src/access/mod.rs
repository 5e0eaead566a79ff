//! Who may do what: the one decision about it, for whichever protocol asks.
//!
//! Spec: [MS-DTYP] 2.5.3.2 (access check), [MS-FSA] 2.1.5.1.2.1 (what the directory above adds).
//! Does not: prove who somebody is, or replace the file system's own decision: what Unix denies to the
//! server's process stays denied.
//!
//! A file has the descriptor that a client has set, or that it inherited when it was made; see [`keep`]. A file without
//! one is judged by [`posix::synthesised`]: users of a share share what nobody has protected, as far as the server's own
//! Unix user may touch it. Descriptors are stored only where there is something to say that permissions do not say, so
//! a share on which nobody ever set one pays a look at an attribute that is not there, and nothing else.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod chmod;
pub mod inherit;
mod keep;
pub mod posix;
#[cfg(test)]
mod tests;

pub use keep::{Guard, XATTR, keep, look, stored};
use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

/// What everybody gets who owns a thing, unless an entry for OWNER RIGHTS says otherwise.
const OWNERS: AccessMask = AccessMask(AccessMask::READ_CONTROL.0 | AccessMask::WRITE_DAC.0);

/// Who asks: a user, and the groups that he is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Himself: owns what he makes.
    pub user: Sid,
    /// The group of what he makes.
    pub group: Sid,
    /// All that he is besides.
    pub others: Vec<Sid>,
}

impl Token {
    /// A Unix user as NFS knows him.
    pub fn unix(uid: u32, gid: u32, gids: &[u32]) -> Token {
        let others = [Sid::everyone(), Sid::network(), Sid::authenticated_users()];
        let others = others.into_iter().chain(gids.iter().map(|gid| Sid::unix_group(*gid))).collect();
        Token { user: Sid::unix_user(uid), group: Sid::unix_group(gid), others }
    }

    /// Whether he is, or belongs to, this one.
    pub fn has(&self, sid: &Sid) -> bool {
        self.user == *sid || self.group == *sid || self.others.contains(sid)
    }
}

/// All that `token` may do with a thing that has this descriptor, with generic rights mapped to those of files.
///
/// Entries count in their order: what one has decided, no later one changes.
pub fn granted(descriptor: &SecurityDescriptor, token: &Token) -> AccessMask {
    let aces = match &descriptor.dacl {
        Dacl::Null => return AccessMask::FILE_ALL,
        // A descriptor that was never given one denies, as one with an empty list does.
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

/// What the directory above adds to rights on a thing in it: who may delete in the directory may delete the thing, and
/// who may list it may see the thing's attributes.
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
