//! Security descriptors, self-relative.
//!
//! Spec: [MS-DTYP] 2.4.2 (SID), 2.4.4 (ACE), 2.4.5 (ACL), 2.4.6 (descriptor). Owns: nothing.
//! Does not: keep a SACL (it is neither parsed nor emitted) or decide access.
//!
//! ```text
//! descriptor: 0 Revision=1 | 1 Sbz | 2 Control | 4 OffsetOwner | 8 OffsetGroup | 12 OffsetSacl | 16 OffsetDacl
//! ACL:        0 Revision=2 | 1 Sbz | 2 AclSize | 4 AceCount    | 6 Sbz         | 8 ACEs
//! ACE:        0 Type       | 1 Flags | 2 Size  | 4 Mask        | 8 SID
//! SID:        0 Revision=1 | 1 SubAuthorityCount | 2 authority (6, big-endian) | 8 sub-authorities
//! ```

use crate::smb2::Malformed;
use crate::smb2::access::AccessMask;
use crate::smb2::field::{Put, Reader, bits, len16, len32, patch_u16, patch_u32};

const WHAT: Malformed = Malformed("security descriptor");
/// [MS-DTYP] 2.4.2: at most 15 sub-authorities.
const MAX_SUB_AUTHORITIES: usize = 15;
/// More ACEs in one ACL are refused; the 64 KiB of an ACL could hold about 3,200 of the smallest.
pub const MAX_ACES: usize = 4096;

bits! {
    /// Control flags.
    Control: u16 {
        /// There is a DACL.
        DACL_PRESENT = 0x0004;
        /// There is a SACL.
        SACL_PRESENT = 0x0010;
        /// The DACL does not inherit.
        DACL_PROTECTED = 0x1000;
        /// Offsets instead of pointers; always set on the wire.
        SELF_RELATIVE = 0x8000;
    }
}

/// Who.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sid {
    /// Identifier authority, 48 bits.
    pub authority: u64,
    /// Sub-authorities; at most 15.
    pub sub_authorities: Vec<u32>,
}

impl Sid {
    /// S-1-1-0: everyone.
    pub fn everyone() -> Sid {
        Sid { authority: 1, sub_authorities: vec![0] }
    }

    /// S-1-22-1-uid: a Unix user, as Samba writes it.
    pub fn unix_user(uid: u32) -> Sid {
        Sid { authority: 22, sub_authorities: vec![1, uid] }
    }

    /// S-1-22-2-gid: a Unix group, as Samba writes it.
    pub fn unix_group(gid: u32) -> Sid {
        Sid { authority: 22, sub_authorities: vec![2, gid] }
    }

    /// Reads it; further bytes are left alone.
    pub fn parse(bytes: &[u8]) -> Result<Sid, Malformed> {
        let mut r = Reader::new(bytes);
        let (revision, count) = (r.u8()?, usize::from(r.u8()?));
        if revision != 1 || count > MAX_SUB_AUTHORITIES {
            return Err(Malformed("SID"));
        }
        let authority = r.array::<6>()?.iter().fold(0, |value, &b| value << 8 | u64::from(b));
        let sub_authorities = (0..count).map(|_| r.u32()).collect::<Result<_, _>>()?;
        Ok(Sid { authority, sub_authorities })
    }

    /// Appends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let subs = &self.sub_authorities[..self.sub_authorities.len().min(MAX_SUB_AUTHORITIES)];
        out.put_u8(1);
        out.put_u8(subs.len() as u8);
        out.put(&self.authority.to_be_bytes()[2..]);
        subs.iter().for_each(|s| out.put_u32(*s));
    }
}

impl std::fmt::Display for Sid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S-1-{}", self.authority)?;
        self.sub_authorities.iter().try_for_each(|s| write!(f, "-{s}"))
    }
}

/// One entry of an ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ace {
    /// May.
    Allow {
        /// Inheritance.
        flags: u8,
        /// What.
        mask: AccessMask,
        /// Who.
        sid: Sid,
    },
    /// May not.
    Deny {
        /// Inheritance.
        flags: u8,
        /// What.
        mask: AccessMask,
        /// Who.
        sid: Sid,
    },
    /// Any other kind, as it came: everything after Type, Flags and Size.
    Other {
        /// AceType.
        kind: u8,
        /// Inheritance.
        flags: u8,
        /// The rest.
        body: Vec<u8>,
    },
}

impl Ace {
    fn parse(kind: u8, flags: u8, body: &[u8]) -> Result<Ace, Malformed> {
        if kind > 1 {
            return Ok(Ace::Other { kind, flags, body: body.to_vec() });
        }
        let mut r = Reader::new(body);
        let mask = AccessMask(r.u32()?);
        let sid = Sid::parse(r.rest())?;
        Ok(match kind {
            0 => Ace::Allow { flags, mask, sid },
            _ => Ace::Deny { flags, mask, sid },
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, flags) = match self {
            Ace::Allow { flags, .. } => (0, *flags),
            Ace::Deny { flags, .. } => (1, *flags),
            Ace::Other { kind, flags, .. } => (*kind, *flags),
        };
        out.put_u8(kind);
        out.put_u8(flags);
        out.put_u16(0);
        match self {
            Ace::Allow { mask, sid, .. } | Ace::Deny { mask, sid, .. } => {
                out.put_u32(mask.0);
                sid.emit(out);
            }
            Ace::Other { body, .. } => out.put(body),
        }
        let size = len16(out.len() - start);
        patch_u16(out, start + 2, size);
    }
}

/// A descriptor. What is `None` is left out, or left alone when it is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityDescriptor {
    /// Owner.
    pub owner: Option<Sid>,
    /// Group.
    pub group: Option<Sid>,
    /// DACL. An empty list denies everybody.
    pub dacl: Option<Vec<Ace>>,
}

impl SecurityDescriptor {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<SecurityDescriptor, Malformed> {
        let mut r = Reader::new(bytes);
        if r.u8()? != 1 {
            return Err(WHAT);
        }
        r.u8()?;
        let control = Control(r.u16()?);
        let (owner, group, _sacl, dacl) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let at = |offset: u32| bytes.get(offset as usize..).ok_or(WHAT);
        let sid = |offset| match offset {
            0 => Ok(None),
            _ => at(offset).and_then(Sid::parse).map(Some),
        };
        let dacl = match control.contains(Control::DACL_PRESENT) && dacl != 0 {
            true => Some(parse_acl(at(dacl)?)?),
            false => None,
        };
        Ok(SecurityDescriptor { owner: sid(owner)?, group: sid(group)?, dacl })
    }

    /// Appends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let dacl = if self.dacl.is_some() { Control::DACL_PRESENT } else { Control::NONE };
        out.put_u8(1);
        out.put_u8(0);
        out.put_u16((Control::SELF_RELATIVE | dacl).0);
        out.put_zeros(16);
        for (field, sid) in [(4, &self.owner), (8, &self.group)] {
            if let Some(sid) = sid {
                let at = len32(out.len() - start);
                patch_u32(out, start + field, at);
                sid.emit(out);
            }
        }
        if let Some(aces) = &self.dacl {
            let at = out.len();
            patch_u32(out, start + 16, len32(at - start));
            out.put_u16(2);
            out.put_u16(0);
            out.put_u16(len16(aces.len()));
            out.put_u16(0);
            aces.iter().for_each(|ace| ace.emit(out));
            let size = len16(out.len() - at);
            patch_u16(out, at + 2, size);
        }
    }
}

fn parse_acl(bytes: &[u8]) -> Result<Vec<Ace>, Malformed> {
    let mut r = Reader::new(bytes);
    r.u16()?;
    let size = usize::from(r.u16()?);
    let count = usize::from(r.u16()?);
    if count > MAX_ACES || size < 8 {
        return Err(WHAT);
    }
    let mut r = Reader::new(bytes.get(8..size).ok_or(WHAT)?);
    (0..count)
        .map(|_| {
            let (kind, flags) = (r.u8()?, r.u8()?);
            let len = usize::from(r.u16()?).checked_sub(4).ok_or(WHAT)?;
            Ace::parse(kind, flags, r.take(len)?)
        })
        .collect()
}
