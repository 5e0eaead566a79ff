//! Access control lists ([MS-DTYP] 2.4.5) and their entries (2.4.4).
//!
//! Object and conditional entries are kept unchanged but have no effect.
//!
//! ```text
//! ACL: 0 Revision=2 | 1 Sbz | 2 AclSize | 4 AceCount | 6 Sbz | 8 ACEs
//! ACE: 0 Type | 1 Flags | 2 Size | 4 Mask | 8 SID
//! ```

use super::{MALFORMED, Sid};
use crate::smb2::Malformed;
use crate::smb2::access::AccessMask;
use crate::smb2::field::{Put, Reader, bits, len16, patch_u16, since};

/// Most ACEs in one ACL; more are refused. The 64 KiB of an ACL could hold about 3,200 of the smallest.
pub const MAX_ACES: usize = 4096;

bits! {
    /// Which objects inherit an entry, and whether it was inherited.
    AceFlags: u8 {
        /// Files in this directory inherit it.
        OBJECT_INHERIT = 0x01;
        /// Subdirectories inherit it.
        CONTAINER_INHERIT = 0x02;
        /// Objects below the subdirectories do not.
        NO_PROPAGATE = 0x04;
        /// The entry does not apply to this directory itself.
        INHERIT_ONLY = 0x08;
        /// Inherited from the parent directory.
        INHERITED = 0x10;
    }
}

/// One entry of an ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ace {
    /// Allows rights.
    Allow {
        /// Inheritance flags.
        flags: AceFlags,
        /// The rights that it allows.
        mask: AccessMask,
        /// The subject.
        sid: Sid,
    },
    /// Denies rights.
    Deny {
        /// Inheritance flags.
        flags: AceFlags,
        /// The rights that it denies.
        mask: AccessMask,
        /// The subject.
        sid: Sid,
    },
    /// Any other kind, unchanged: everything after Type, Flags and Size.
    Other {
        /// AceType.
        kind: u8,
        /// Inheritance flags.
        flags: AceFlags,
        /// The remaining bytes.
        body: Vec<u8>,
    },
}

impl Ace {
    /// An entry that allows `mask` to `sid`.
    pub fn allow(sid: Sid, mask: AccessMask, flags: AceFlags) -> Ace {
        Ace::Allow { flags, mask, sid }
    }

    /// Inheritance flags.
    pub fn flags(&self) -> AceFlags {
        match self {
            Ace::Allow { flags, .. } | Ace::Deny { flags, .. } | Ace::Other { flags, .. } => *flags,
        }
    }

    /// The same entry with other flags.
    #[must_use]
    pub fn with_flags(mut self, new: AceFlags) -> Ace {
        match &mut self {
            Ace::Allow { flags, .. } | Ace::Deny { flags, .. } | Ace::Other { flags, .. } => *flags = new,
        }
        self
    }

    fn parse(kind: u8, flags: AceFlags, body: &[u8]) -> Result<Ace, Malformed> {
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
        let kind = match self {
            Ace::Allow { .. } => 0,
            Ace::Deny { .. } => 1,
            Ace::Other { kind, .. } => *kind,
        };
        out.put_u8(kind);
        out.put_u8(self.flags().0);
        out.put_u16(0);
        match self {
            Ace::Allow { mask, sid, .. } | Ace::Deny { mask, sid, .. } => {
                out.put_u32(mask.0);
                sid.emit(out);
            }
            Ace::Other { body, .. } => out.put(body),
        }
        let size = len16(since(out, start));
        patch_u16(out, start.saturating_add(2), size);
    }
}

pub(super) fn parse_acl(bytes: &[u8]) -> Result<Vec<Ace>, Malformed> {
    let mut r = Reader::new(bytes);
    r.u16()?;
    let size = usize::from(r.u16()?);
    let count = usize::from(r.u16()?);
    if count > MAX_ACES || size < 8 {
        return Err(MALFORMED);
    }
    let mut r = Reader::new(bytes.get(8..size).ok_or(MALFORMED)?);
    (0..count)
        .map(|_| {
            let (kind, flags) = (r.u8()?, AceFlags(r.u8()?));
            let len = usize::from(r.u16()?).checked_sub(4).ok_or(MALFORMED)?;
            Ace::parse(kind, flags, r.take(len)?)
        })
        .collect()
}

pub(super) fn emit_acl(aces: &[Ace], out: &mut Vec<u8>) {
    let at = out.len();
    out.put_u16(2);
    out.put_u16(0);
    out.put_u16(len16(aces.len()));
    out.put_u16(0);
    aces.iter().for_each(|ace| ace.emit(out));
    let size = len16(since(out, at));
    patch_u16(out, at.saturating_add(2), size);
}
