//! The descriptor that a new file or directory inherits, and the stored form of a descriptor that a client sets.
//!
//! [MS-DTYP] 2.5.3.4 (creating a descriptor), 2.5.3.4.4 (the table of flags). Later changes do not spread to existing
//! files: clients do that entry by entry.

use weft_wire::security::{Ace, AceFlags, Control, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

use super::Token;

/// The flags of inheritable entries.
const HEIRS: AceFlags = AceFlags(AceFlags::OBJECT_INHERIT.0 | AceFlags::CONTAINER_INHERIT.0);
const GENERIC: AccessMask = AccessMask(0xF000_0000);

/// The descriptor of a new object. `asked` is its creator's wish; the directory supplies the missing parts, and
/// otherwise the creator.
pub fn created(
    directory: &SecurityDescriptor,
    asked: Option<SecurityDescriptor>,
    container: bool,
    token: &Token,
) -> SecurityDescriptor {
    let asked = asked.unwrap_or_default();
    let owner = asked.owner.unwrap_or_else(|| token.user.clone());
    let group = asked.group.unwrap_or_else(|| token.group.clone());
    let (control, dacl) = match asked.dacl {
        Dacl::Absent => inherited(directory, container, &owner, &group),
        dacl => (asked.control, dacl),
    };
    let descriptor = SecurityDescriptor { control, owner: Some(owner), group: Some(group), dacl };
    canonical(descriptor)
}

/// The stored form of a descriptor: effective generic rights are mapped, and inheritance is marked as automatic only
/// if the request asked for it ([MS-DTYP] 2.4.6: DR and DI).
#[must_use]
pub fn canonical(mut descriptor: SecurityDescriptor) -> SecurityDescriptor {
    let automatic = Control::DACL_AUTO_INHERIT_REQ | Control::DACL_AUTO_INHERITED;
    let kept = descriptor.control & Control::DACL_PROTECTED;
    descriptor.control = match descriptor.control.contains(automatic) {
        true => kept | Control::DACL_AUTO_INHERITED,
        false => kept,
    };
    if let Dacl::List(aces) = &mut descriptor.dacl {
        for ace in aces.iter_mut() {
            let effective = !ace.flags().contains(AceFlags::INHERIT_ONLY);
            if let Ace::Allow { mask, .. } | Ace::Deny { mask, .. } = ace
                && effective
            {
                *mask = mask.expand_generic();
            }
        }
    }
    descriptor
}

/// The list that a directory hands down; if it hands down none, the creator and the system may do everything.
fn inherited(directory: &SecurityDescriptor, container: bool, owner: &Sid, group: &Sid) -> (Control, Dacl) {
    let automatic = directory.control.contains(Control::DACL_AUTO_INHERITED);
    let Dacl::List(aces) = &directory.dacl else { return (Control::NONE, own(owner)) };
    if !aces.iter().any(|ace| ace.flags().intersects(HEIRS)) {
        return (Control::NONE, own(owner));
    }
    let mark = if automatic { AceFlags::INHERITED } else { AceFlags::NONE };
    let heir = Heir { container, owner, group, mark };
    let aces = aces.iter().flat_map(|ace| heir.inherit(ace)).collect();
    // Both flags, because `canonical` treats only both as a request.
    let control = Control::DACL_AUTO_INHERIT_REQ | Control::DACL_AUTO_INHERITED;
    (if automatic { control } else { Control::NONE }, Dacl::List(aces))
}

fn own(owner: &Sid) -> Dacl {
    let all = |sid| Ace::allow(sid, AccessMask::FILE_ALL, AceFlags::NONE);
    Dacl::List(vec![all(owner.clone()), all(Sid::system())])
}

struct Heir<'a> {
    container: bool,
    owner: &'a Sid,
    group: &'a Sid,
    mark: AceFlags,
}

impl Heir<'_> {
    /// The inherited forms of one entry: none, an effective one, an inheritable one, or both in one or two entries.
    fn inherit(&self, ace: &Ace) -> Vec<Ace> {
        let flags = ace.flags();
        let works = flags.contains(match self.container {
            true => AceFlags::CONTAINER_INHERIT,
            false => AceFlags::OBJECT_INHERIT,
        });
        let hands_on = self.container && flags.intersects(HEIRS) && !flags.contains(AceFlags::NO_PROPAGATE);
        let heirs = flags & HEIRS;
        match (works, hands_on) {
            (false, false) => Vec::new(),
            (true, false) => vec![self.concrete(ace).with_flags(self.mark)],
            (false, true) => vec![ace.clone().with_flags(heirs | AceFlags::INHERIT_ONLY | self.mark)],
            (true, true) => {
                let concrete = self.concrete(ace);
                if concrete == *ace {
                    return vec![concrete.with_flags(heirs | self.mark)];
                }
                let handed = ace.clone().with_flags(heirs | AceFlags::INHERIT_ONLY | self.mark);
                vec![concrete.with_flags(self.mark), handed]
            }
        }
    }

    /// Replaces CREATOR OWNER by the owner, and generic rights by those of files.
    fn concrete(&self, ace: &Ace) -> Ace {
        let mut ace = ace.clone();
        if let Ace::Allow { mask, sid, .. } | Ace::Deny { mask, sid, .. } = &mut ace {
            if *sid == Sid::creator_owner() {
                *sid = self.owner.clone();
            } else if *sid == Sid::creator_group() {
                *sid = self.group.clone();
            }
            if mask.intersects(GENERIC) {
                *mask = mask.expand_generic();
            }
        }
        ace
    }
}
