//! Access control lists: converts between security descriptors and NFSv4 ACLs.
//!
//! See RFC 8881 6.2.1 (nfsace4), 6.3.2 (a list from a mode) and 6.4.1 (setting one), and [MS-DTYP] 2.4.4 to 2.4.6.
//! `guard` evaluates descriptors. System lists are not kept: audit and alarm entries are refused, as `aclsupport`
//! announces.
//!
//! The bits of masks and of inheritance have the same values in both. Principals map as follows:
//!
//! | NFSv4 | descriptor |
//! |---|---|
//! | OWNER@, GROUP@ | the descriptor's owner and group; of a file without one, S-1-22-1-uid and S-1-22-2-gid |
//! | EVERYONE@, AUTHENTICATED@, NETWORK@ | S-1-1-0, S-1-5-11, S-1-5-2 |
//! | a number, or one of a group | S-1-22-1-number, S-1-22-2-number |
//! | S-1-... | itself: users and groups of SMB |

use bytes::Bytes;
use weft_store::access;
use weft_store::{Attr, Kind};
use weft_wire::nfs4::{Ace as Wire, Acl, Status, Text, UpTo, ace_mask as mask, ace_type};
use weft_wire::security::{Ace, AceFlags, Control, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

use super::compound::Compound;
use super::names::{status, utf8};
use crate::server::context::Node;

/// aclsupport: ALLOW and DENY entries.
pub(super) const SUPPORTED: u32 = 3;
/// ACE4_IDENTIFIER_GROUP.
const GROUP: u32 = 0x40;
/// ACE4_INHERITED_ACE.
const INHERITED: u32 = 0x80;
/// ACE4_FILE_INHERIT_ACE to ACE4_INHERIT_ONLY_ACE.
const INHERITANCE: u32 = 0x0f;

const READS: u32 = mask::READ_DATA | mask::READ_NAMED_ATTRS;
const WRITES: u32 = mask::WRITE_DATA | mask::APPEND_DATA | mask::WRITE_NAMED_ATTRS;
const ALWAYS: u32 = mask::READ_ATTRIBUTES | mask::READ_ACL | mask::SYNCHRONIZE;
const OWNERS: u32 = mask::WRITE_ATTRIBUTES | mask::WRITE_ACL | mask::WRITE_OWNER;

/// The ACL of a node.
pub(super) async fn of(node: &Node<'_>, attr: &Attr) -> Result<Acl, Status> {
    let stored = access::stored(&node.share.vfs, attr).await.map_err(|e| status(&e))?;
    Ok(match stored {
        Some(descriptor) => of_descriptor(&descriptor),
        None => of_mode(attr.mode, attr.kind == Kind::Dir),
    })
}

fn of_descriptor(descriptor: &SecurityDescriptor) -> Acl {
    let aces = match &descriptor.dacl {
        Dacl::Null => return UpTo(vec![wire(ace_type::ALLOWED, 0, AccessMask::FILE_ALL.0, "EVERYONE@")]),
        Dacl::Absent => &[][..],
        Dacl::List(aces) => aces,
    };
    let entry = |kind, flags: AceFlags, mask: AccessMask, sid: &Sid| {
        let (who, group) = name(sid, descriptor);
        let inherited = if flags.contains(AceFlags::INHERITED) { INHERITED } else { 0 };
        let flags = u32::from(flags.0) & INHERITANCE | inherited | if group { GROUP } else { 0 };
        wire(kind, flags, mask.expand_generic().0 & AccessMask::FILE_ALL.0, &who)
    };
    let entries = aces.iter().filter_map(|ace| match ace {
        Ace::Allow { flags, mask, sid } => Some(entry(ace_type::ALLOWED, *flags, *mask, sid)),
        Ace::Deny { flags, mask, sid } => Some(entry(ace_type::DENIED, *flags, *mask, sid)),
        // Conditional and similar entries, which have no effect here either.
        Ace::Other { .. } => None,
    });
    UpTo(entries.take(weft_wire::nfs4::MAX_ACES).collect())
}

/// RFC 8881 6.3.2: each class has exactly the rights of its mode bits, even where another class has more.
pub(super) fn of_mode(mode: u32, directory: bool) -> Acl {
    let rights = |bits: u32| {
        let mut rights = 0;
        let mut add = |bit, more| rights |= if bits & bit != 0 { more } else { 0 };
        add(4, READS);
        add(2, WRITES | if directory { mask::DELETE_CHILD } else { 0 });
        add(1, mask::EXECUTE);
        rights
    };
    let [owner, group, others] = [mode >> 6 & 7, mode >> 3 & 7, mode & 7].map(rights);
    let mut list = vec![wire(ace_type::ALLOWED, 0, owner | ALWAYS | OWNERS, "OWNER@")];
    let deny = |list: &mut Vec<Wire>, flags, mask, who| {
        if mask != 0 {
            list.push(wire(ace_type::DENIED, flags, mask, who));
        }
    };
    deny(&mut list, 0, (group | others) & !owner, "OWNER@");
    list.push(wire(ace_type::ALLOWED, GROUP, group | ALWAYS, "GROUP@"));
    deny(&mut list, GROUP, others & !group, "GROUP@");
    list.push(wire(ace_type::ALLOWED, 0, others | ALWAYS, "EVERYONE@"));
    UpTo(list)
}

fn wire(kind: u32, flags: u32, mask: u32, who: &str) -> Wire {
    Wire { kind, flags, mask, who: Text(Bytes::copy_from_slice(who.as_bytes())) }
}

/// The NFSv4 name of a SID, and whether it is a group by number.
fn name(sid: &Sid, of: &SecurityDescriptor) -> (String, bool) {
    match () {
        () if of.owner.as_ref() == Some(sid) => ("OWNER@".into(), false),
        () if of.group.as_ref() == Some(sid) => ("GROUP@".into(), true),
        () if *sid == Sid::everyone() => ("EVERYONE@".into(), false),
        () if *sid == Sid::authenticated_users() => ("AUTHENTICATED@".into(), false),
        () if *sid == Sid::network() => ("NETWORK@".into(), false),
        () => match (sid.authority, &sid.sub_authorities[..]) {
            (22, [1, uid]) => (uid.to_string(), false),
            (22, [2, gid]) => (gid.to_string(), true),
            _ => (sid.to_string(), false),
        },
    }
}

/// The reverse; `None` if it names nobody (NFS4ERR_BADOWNER).
fn sid(who: &str, group: bool, owner: &Sid, owning_group: &Sid) -> Option<Sid> {
    Some(match who {
        "OWNER@" => owner.clone(),
        "GROUP@" => owning_group.clone(),
        "EVERYONE@" => Sid::everyone(),
        "AUTHENTICATED@" => Sid::authenticated_users(),
        "NETWORK@" => Sid::network(),
        _ if who.starts_with("S-") => who.parse().ok()?,
        _ if !who.is_empty() && who.bytes().all(|b| b.is_ascii_digit()) => {
            let id = who.parse().ok()?;
            if group { Sid::unix_group(id) } else { Sid::unix_user(id) }
        }
        _ => return None,
    })
}

/// Whether an ACL can be stored, whoever will own it.
pub(super) fn check(acl: &Acl) -> Result<(), Status> {
    let nobody = Sid::unix_user(0);
    dacl(acl, &nobody, &nobody).map(drop)
}

fn dacl(acl: &Acl, owner: &Sid, group: &Sid) -> Result<Dacl, Status> {
    let ace = |ace: &Wire| {
        let who = utf8(&ace.who)?;
        let sid = sid(who, ace.flags & GROUP != 0, owner, group).ok_or(Status::BADOWNER)?;
        let inherited = if ace.flags & INHERITED != 0 { AceFlags::INHERITED.0 } else { 0 };
        let flags = AceFlags((ace.flags & INHERITANCE) as u8 | inherited);
        let mask = AccessMask(ace.mask & AccessMask::FILE_ALL.0);
        match ace.kind {
            ace_type::ALLOWED => Ok(Ace::Allow { flags, mask, sid }),
            ace_type::DENIED => Ok(Ace::Deny { flags, mask, sid }),
            ace_type::AUDIT | ace_type::ALARM => Err(Status::ATTRNOTSUPP),
            _ => Err(Status::INVAL),
        }
    };
    Ok(Dacl::List(acl.0.iter().map(ace).collect::<Result<_, _>>()?))
}

/// Refuses a caller that may not change permissions: neither the owner nor admitted by the descriptor.
pub(super) async fn check_set(c: &Compound<'_>, node: &Node<'_>, attr: &Attr) -> Result<(), Status> {
    if c.cx.caller.owns(attr) {
        return Ok(());
    }
    let stored = access::stored(&node.share.vfs, attr).await.map_err(|e| status(&e))?;
    let granted = stored.map(|descriptor| c.cx.caller.granted_by(Some(&descriptor)));
    if granted.is_some_and(|granted| granted.contains(AccessMask::WRITE_DAC)) {
        Ok(())
    } else {
        Err(Status::PERM)
    }
}

/// Applies inherited entries to a new node in `dir`, then the requested ACL.
pub(super) async fn inherit(
    c: &Compound<'_>,
    dir: &Node<'_>,
    of_dir: &Attr,
    made: &Attr,
    acl: Option<&Acl>,
) -> Result<(), Status> {
    dir.hand_down(c.cx, of_dir, made).await.map_err(|e| status(&e))?;
    keep(c, dir, made, acl).await
}

/// Stores an ACL, if one is given; the mode becomes the closest match.
pub(super) async fn keep(
    c: &Compound<'_>,
    node: &Node<'_>,
    attr: &Attr,
    acl: Option<&Acl>,
) -> Result<(), Status> {
    let Some(acl) = acl else { return Ok(()) };
    if !matches!(attr.kind, Kind::File | Kind::Dir) {
        return Err(Status::ATTRNOTSUPP);
    }
    let vfs = &node.share.vfs;
    let known = access::stored(vfs, attr).await.map_err(|e| status(&e))?.unwrap_or_default();
    let owner = known.owner.unwrap_or_else(|| Sid::unix_user(attr.uid));
    let group = known.group.unwrap_or_else(|| Sid::unix_group(attr.gid));
    let dacl = dacl(acl, &owner, &group)?;
    let descriptor =
        SecurityDescriptor { control: Control::NONE, owner: Some(owner), group: Some(group), dacl };
    tracing::debug!(peer = %c.cx.peer, node = attr.node.0, "an ACL is set over NFS");
    access::keep(vfs, attr.node, &descriptor).await.map_err(|e| status(&e))
}
