//! Descriptors as text, for logs and tests: `O:S-1-5-18G:S-1-1-0D:P(A;OICI;0x1f01ff;;;WD)`.
//!
//! Implements [MS-DTYP] 2.5.1 (SDDL), without SACLs and account names. Entries other than allow and deny are shown as
//! their number.

use std::fmt;
use std::str::FromStr;

use super::{Ace, AceFlags, Control, Dacl, SecurityDescriptor, Sid};
use crate::smb2::Malformed;
use crate::smb2::access::AccessMask;

const MALFORMED: Malformed = Malformed("SDDL");
const FLAGS: [(&str, AceFlags); 5] = [
    ("OI", AceFlags::OBJECT_INHERIT),
    ("CI", AceFlags::CONTAINER_INHERIT),
    ("NP", AceFlags::NO_PROPAGATE),
    ("IO", AceFlags::INHERIT_ONLY),
    ("ID", AceFlags::INHERITED),
];
const CONTROL: [(&str, Control); 3] = [
    ("P", Control::DACL_PROTECTED),
    ("AR", Control::DACL_AUTO_INHERIT_REQ),
    ("AI", Control::DACL_AUTO_INHERITED),
];
/// Rights that have a name of their own when they stand alone.
const RIGHTS: [(&str, AccessMask); 4] = [
    ("FA", AccessMask::FILE_ALL),
    ("FR", AccessMask::FILE_GENERIC_READ),
    ("FW", AccessMask::FILE_GENERIC_WRITE),
    ("FX", AccessMask::FILE_GENERIC_EXECUTE),
];

fn aliases() -> [(&'static str, Sid); 7] {
    [
        ("WD", Sid::everyone()),
        ("CO", Sid::creator_owner()),
        ("CG", Sid::creator_group()),
        ("OW", Sid::owner_rights()),
        ("NU", Sid::network()),
        ("AU", Sid::authenticated_users()),
        ("SY", Sid::system()),
    ]
}

impl fmt::Display for SecurityDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(owner) = &self.owner {
            write!(f, "O:{owner}")?;
        }
        if let Some(group) = &self.group {
            write!(f, "G:{group}")?;
        }
        if self.dacl == Dacl::Absent {
            return Ok(());
        }
        f.write_str("D:")?;
        for (name, flag) in CONTROL {
            if self.control.contains(flag) {
                f.write_str(name)?;
            }
        }
        match &self.dacl {
            Dacl::List(aces) => aces.iter().try_for_each(|ace| write!(f, "{ace}")),
            _ => f.write_str("NO_ACCESS_CONTROL"),
        }
    }
}

impl fmt::Display for Ace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, mask, sid) = match self {
            Ace::Allow { mask, sid, .. } => ("A", mask, sid),
            Ace::Deny { mask, sid, .. } => ("D", mask, sid),
            Ace::Other { kind, .. } => return write!(f, "({kind})"),
        };
        write!(f, "({kind};")?;
        for (name, flag) in FLAGS {
            if self.flags().contains(flag) {
                f.write_str(name)?;
            }
        }
        match RIGHTS.iter().find(|(_, rights)| rights == mask) {
            Some((name, _)) => write!(f, ";{name};;;")?,
            None => write!(f, ";{:#x};;;", mask.0)?,
        }
        match aliases().iter().find(|(_, known)| known == sid) {
            Some((alias, _)) => write!(f, "{alias})"),
            None => write!(f, "{sid})"),
        }
    }
}

fn sid(text: &str) -> Result<Sid, Malformed> {
    match aliases().into_iter().find(|(alias, _)| *alias == text) {
        Some((_, sid)) => Ok(sid),
        None => text.parse(),
    }
}

/// Consumes known names from the front while there are any.
fn names<T: Copy>(mut text: &str, known: &[(&str, T)], mut take: impl FnMut(T)) -> Result<(), Malformed> {
    while !text.is_empty() {
        let found = known.iter().find_map(|(name, value)| Some((text.strip_prefix(name)?, *value)));
        let (rest, value) = found.ok_or(MALFORMED)?;
        take(value);
        text = rest;
    }
    Ok(())
}

impl FromStr for SecurityDescriptor {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<SecurityDescriptor, Malformed> {
        let (head, dacl) = match text.split_once("D:") {
            Some((head, dacl)) => (head, Some(dacl)),
            None => (text, None),
        };
        let (owner, group) = match head.split_once("G:") {
            Some((owner, group)) => (owner, Some(sid(group)?)),
            None => (head, None),
        };
        let owner = match owner.strip_prefix("O:") {
            Some(owner) => Some(sid(owner)?),
            None if owner.is_empty() => None,
            None => return Err(MALFORMED),
        };
        let mut control = Control::NONE;
        let dacl = match dacl {
            None => Dacl::Absent,
            Some("NO_ACCESS_CONTROL") => Dacl::Null,
            Some(dacl) => {
                let (flags, aces) = dacl.split_at(dacl.find('(').unwrap_or(dacl.len()));
                names(flags, &CONTROL, |flag| control |= flag)?;
                let aces = aces.split_inclusive(')').map(|ace| {
                    ace.strip_prefix('(').and_then(|ace| ace.strip_suffix(')')).ok_or(MALFORMED)?.parse()
                });
                Dacl::List(aces.collect::<Result<_, _>>()?)
            }
        };
        Ok(SecurityDescriptor { control, owner, group, dacl })
    }
}

impl FromStr for Ace {
    type Err = Malformed;

    /// Parses an entry without its parentheses.
    fn from_str(text: &str) -> Result<Ace, Malformed> {
        let fields: Vec<_> = text.split(';').collect();
        let [kind, flag_names, rights, "", "", who] = fields[..] else { return Err(MALFORMED) };
        let mut flags = AceFlags::NONE;
        names(flag_names, &FLAGS, |flag| flags |= flag)?;
        let mask = match rights.strip_prefix("0x") {
            Some(hex) => AccessMask(u32::from_str_radix(hex, 16).map_err(|_| MALFORMED)?),
            None => {
                let mut mask = AccessMask::NONE;
                names(rights, &RIGHTS, |rights| mask |= rights)?;
                mask
            }
        };
        let sid = sid(who)?;
        match kind {
            "A" => Ok(Ace::Allow { flags, mask, sid }),
            "D" => Ok(Ace::Deny { flags, mask, sid }),
            _ => Err(MALFORMED),
        }
    }
}
