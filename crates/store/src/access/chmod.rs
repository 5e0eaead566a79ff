//! Sets permissions on a file with a descriptor, and adapts the descriptor to them.
//!
//! RFC 8881 6.4.1.1 (setting the mode and not the list), 6.3.2 (the mode of a list). Whether the caller may do so is
//! checked elsewhere. A file without a descriptor has nothing but its permissions, and is not touched here.
//!
//! The three classes get their own entries before and after the others, as in a list made from a mode. The old
//! entries of the three classes lose reading, writing and executing; other named users and groups keep at most the
//! group's share of these. All other rights, and entries that only children inherit, stay.

use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

use super::keep::{store, stored};
use crate::vfs::{Attr, Error, Kind, NodeId, SetAttr, Vfs};

/// Rights that a class always has, whatever its bits: it may see the file's metadata.
const ALWAYS: AccessMask =
    AccessMask(AccessMask::FILE_READ_ATTRIBUTES.0 | AccessMask::READ_CONTROL.0 | AccessMask::SYNCHRONIZE.0);
/// Additional rights of the owner.
const OWNERS: AccessMask =
    AccessMask(AccessMask::FILE_WRITE_ATTRIBUTES.0 | AccessMask::WRITE_DAC.0 | AccessMask::WRITE_OWNER.0);

/// Sets attributes of a file; if they include permissions and the file has a descriptor, adapts the descriptor.
///
/// # Errors
/// Those of [`Vfs::setattr`], and of keeping an extended attribute.
pub async fn set(vfs: &Vfs, before: &Attr, set: SetAttr) -> Result<Attr, Error> {
    let permissions = set.mode.is_some();
    let after = vfs.setattr(before.node, set).await?;
    if permissions && let Some(descriptor) = stored(vfs, before).await? {
        let follows = following(&descriptor, &after, Named::Masked);
        store(vfs, before.node, &follows).await?;
    }
    Ok(after)
}

/// Sets permissions and a new descriptor together. The permissions decide for the three classes. Other users and groups
/// have what the descriptor gives them, even beyond the group's permissions, as in a list of macOS.
///
/// # Errors
/// Those of [`Vfs::setattr`], and of keeping an extended attribute.
pub async fn set_with(
    vfs: &Vfs,
    node: NodeId,
    mode: u32,
    descriptor: &SecurityDescriptor,
) -> Result<(), Error> {
    let after = vfs.setattr(node, SetAttr { mode: Some(mode), ..SetAttr::default() }).await?;
    store(vfs, node, &following(descriptor, &after, Named::AsListed)).await
}

/// What other users and groups than the three classes keep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// At most the group's share of reading, writing and executing.
    Masked,
    /// Everything.
    AsListed,
}

/// The descriptor of a file after its permissions have become those of `attr`.
fn following(descriptor: &SecurityDescriptor, attr: &Attr, named: Named) -> SecurityDescriptor {
    let directory = attr.kind == Kind::Dir;
    let [owner, group, others] =
        [attr.mode >> 6, attr.mode >> 3, attr.mode].map(|bits| rights(bits, directory));
    let all = rights(7, directory);
    // The owner's SMB identity, and the Unix user whose bits these are.
    let mut users = vec![Sid::unix_user(attr.uid)];
    users.extend(descriptor.owner.clone().filter(|owner| users.first() != Some(owner)));
    let mut groups = vec![Sid::unix_group(attr.gid)];
    groups.extend(descriptor.group.clone().filter(|group| groups.first() != Some(group)));
    let is_class = |sid: &Sid| {
        users.contains(sid) || groups.contains(sid) || *sid == Sid::everyone() || *sid == Sid::owner_rights()
    };
    let mut list = Vec::new();
    for sid in &users {
        add(&mut list, true, owner | ALWAYS | OWNERS, sid);
        add(&mut list, false, (group | others).without(owner), sid);
    }
    let aces = match &descriptor.dacl {
        // Everybody may do everything: of that, everything except reading, writing and executing remains.
        Dacl::Null => vec![Ace::allow(Sid::everyone(), AccessMask::FILE_ALL, AceFlags::NONE)],
        Dacl::Absent => Vec::new(),
        Dacl::List(aces) => aces.clone(),
    };
    for ace in aces {
        let flags = ace.flags();
        if flags.contains(AceFlags::INHERIT_ONLY) {
            list.push(ace);
            continue;
        }
        let (mask, sid, allows) = match &ace {
            Ace::Allow { mask, sid, .. } => (mask.expand_generic(), sid.clone(), true),
            Ace::Deny { mask, sid, .. } => (mask.expand_generic(), sid.clone(), false),
            Ace::Other { .. } => {
                list.push(ace);
                continue;
            }
        };
        let class = is_class(&sid);
        let left = match (class, allows) {
            // Rights that the class's own entries grant are not repeated, however often permissions are set.
            (true, true) if users.contains(&sid) => mask.without(all | ALWAYS | OWNERS),
            (true, true) => mask.without(all | ALWAYS),
            (true, false) => mask.without(all),
            (false, true) if named == Named::Masked => mask.without(all.without(group)),
            (false, _) => mask,
        };
        if left == mask {
            list.push(ace);
            continue;
        }
        let heirs = flags & (AceFlags::OBJECT_INHERIT | AceFlags::CONTAINER_INHERIT);
        if heirs != AceFlags::NONE {
            // Entries for children do not depend on this file's permissions.
            list.push(ace.with_flags(flags | AceFlags::INHERIT_ONLY));
        }
        add(&mut list, allows, left, &sid);
        if !class {
            // A named user or group must not get rights that others have but the group lacks.
            add(&mut list, false, others.without(group), &sid);
        }
    }
    for sid in &groups {
        add(&mut list, true, group | ALWAYS, sid);
        add(&mut list, false, others.without(group), sid);
    }
    add(&mut list, true, others | ALWAYS, &Sid::everyone());
    SecurityDescriptor { dacl: Dacl::List(list), ..descriptor.clone() }
}

/// Appends an entry, unless it is empty.
fn add(list: &mut Vec<Ace>, allows: bool, mask: AccessMask, sid: &Sid) {
    let (flags, sid) = (AceFlags::NONE, sid.clone());
    match (mask == AccessMask::NONE, allows) {
        (true, _) => {}
        (false, true) => list.push(Ace::Allow { flags, mask, sid }),
        (false, false) => list.push(Ace::Deny { flags, mask, sid }),
    }
}

/// The rights for three permission bits, and nothing else.
fn rights(bits: u32, directory: bool) -> AccessMask {
    let mut rights = AccessMask::NONE;
    if bits & 4 != 0 {
        rights |= AccessMask::FILE_READ_DATA;
    }
    if bits & 2 != 0 {
        rights |= AccessMask::FILE_WRITE_DATA | AccessMask::FILE_APPEND_DATA;
        if directory {
            rights |= AccessMask::FILE_DELETE_CHILD;
        }
    }
    if bits & 1 != 0 {
        rights |= AccessMask::FILE_EXECUTE;
    }
    rights
}
