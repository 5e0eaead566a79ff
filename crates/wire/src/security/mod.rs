//! Security descriptors ([MS-DTYP] 2.4.6): the owner of an object, and the access that each subject has.
//!
//! [`Sid`] implements 2.4.2, [`Ace`] 2.4.4 and 2.4.5, and the text form 2.5.1. SACLs are neither parsed nor emitted,
//! because auditing needs a privilege that nobody is given. The store decides access.
//!
//! ```text
//! descriptor: 0 Revision=1 | 1 Sbz | 2 Control | 4 OffsetOwner | 8 OffsetGroup | 12 OffsetSacl | 16 OffsetDacl
//! ```

mod ace;
mod sddl;
mod sid;

#[cfg(test)]
mod tests;

pub use ace::{Ace, AceFlags, MAX_ACES};
pub use sid::Sid;

use crate::smb2::Malformed;
use crate::smb2::field::{Put, Reader, bits, len32, patch_u32, since};

const MALFORMED: Malformed = Malformed("security descriptor");
const DACL_PRESENT: u16 = 0x0004;
const SELF_RELATIVE: u16 = 0x8000;
/// Longest descriptor that is parsed: a DACL of 64 KiB, two SIDs, the header.
pub const MAX_DESCRIPTOR_LEN: usize = 65_536 + 2 * 68 + 20;

bits! {
    /// Control flags about the origin of a DACL, beyond the presence of parts.
    Control: u16 {
        /// The writer requests that inheritance be recorded.
        DACL_AUTO_INHERIT_REQ = 0x0100;
        /// Inheritance is recorded in the entries' flags.
        DACL_AUTO_INHERITED = 0x0400;
        /// The DACL does not inherit.
        DACL_PROTECTED = 0x1000;
        /// All of these.
        KEPT = 0x1500;
    }
}

/// The discretionary access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dacl {
    /// Not part of this descriptor.
    #[default]
    Absent,
    /// A null DACL allows everything to everybody.
    Null,
    /// Anything not allowed here is denied; an empty list denies everybody.
    List(Vec<Ace>),
}

/// A descriptor. Parts that are `None` or absent are omitted; setting such a descriptor leaves them unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityDescriptor {
    /// Origin of the DACL.
    pub control: Control,
    /// Owner.
    pub owner: Option<Sid>,
    /// Group.
    pub group: Option<Sid>,
    /// DACL.
    pub dacl: Dacl,
}

impl SecurityDescriptor {
    /// Parses a descriptor.
    pub fn parse(bytes: &[u8]) -> Result<SecurityDescriptor, Malformed> {
        if bytes.len() > MAX_DESCRIPTOR_LEN {
            return Err(MALFORMED);
        }
        let mut r = Reader::new(bytes);
        if r.u8()? != 1 {
            return Err(MALFORMED);
        }
        r.u8()?;
        let control = r.u16()?;
        let (owner, group, _sacl, dacl) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let at = |offset: u32| bytes.get(offset as usize..).ok_or(MALFORMED);
        let sid = |offset| match offset {
            0 => Ok(None),
            _ => at(offset).and_then(Sid::parse).map(Some),
        };
        let dacl = match (control & DACL_PRESENT != 0, dacl) {
            (false, _) => Dacl::Absent,
            (true, 0) => Dacl::Null,
            (true, _) => Dacl::List(ace::parse_acl(at(dacl)?)?),
        };
        let control = Control(control & Control::KEPT.0);
        Ok(SecurityDescriptor { control, owner: sid(owner)?, group: sid(group)?, dacl })
    }

    /// Appends the descriptor.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let present = if self.dacl == Dacl::Absent { 0 } else { DACL_PRESENT };
        out.put_u8(1);
        out.put_u8(0);
        out.put_u16(SELF_RELATIVE | present | self.control.0);
        out.put_zeros(16);
        for (field, sid) in [(4, &self.owner), (8, &self.group)] {
            if let Some(sid) = sid {
                let at = len32(since(out, start));
                patch_u32(out, start.saturating_add(field), at);
                sid.emit(out);
            }
        }
        if let Dacl::List(aces) = &self.dacl {
            let at = len32(since(out, start));
            patch_u32(out, start.saturating_add(16), at);
            ace::emit_acl(aces, out);
        }
    }

    /// The descriptor as a byte vector.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        self.emit(&mut bytes);
        bytes
    }
}
