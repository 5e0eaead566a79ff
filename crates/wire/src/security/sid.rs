//! Security identifiers ([MS-DTYP] 2.4.2), which identify users and groups by number.
//!
//! ```text
//! SID: 0 Revision=1 | 1 SubAuthorityCount | 2 authority (6, big-endian) | 8 sub-authorities
//! ```

use std::str::FromStr;

use crate::smb2::Malformed;
use crate::smb2::field::{Put, Reader};

/// [MS-DTYP] 2.4.2: at most 15 sub-authorities.
const MAX_SUB_AUTHORITIES: usize = 15;

/// A security identifier.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sid {
    /// Identifier authority, 48 bits.
    pub authority: u64,
    /// Sub-authorities; at most 15.
    pub sub_authorities: Vec<u32>,
}

macro_rules! well_known {
    ($($(#[$doc:meta])* $name:ident = $authority:literal, $sub:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name() -> Sid {
            Sid { authority: $authority, sub_authorities: vec![$sub] }
        }
    )*};
}

impl Sid {
    well_known! {
        /// S-1-1-0: everyone.
        everyone = 1, 0;
        /// S-1-3-0: in an inheritable entry, the creator of the object.
        creator_owner = 3, 0;
        /// S-1-3-1: in an inheritable entry, the creator's group.
        creator_group = 3, 1;
        /// S-1-3-4: the owner; such an entry replaces the rights that owners have implicitly.
        owner_rights = 3, 4;
        /// S-1-5-2: everyone who logged on over the network.
        network = 5, 2;
        /// S-1-5-11: everyone who has authenticated.
        authenticated_users = 5, 11;
        /// S-1-5-18: the operating system.
        system = 5, 18;
    }

    /// S-1-22-1-uid: a Unix user, as Samba writes it.
    pub fn unix_user(uid: u32) -> Sid {
        Sid { authority: 22, sub_authorities: vec![1, uid] }
    }

    /// S-1-22-2-gid: a Unix group, as Samba writes it.
    pub fn unix_group(gid: u32) -> Sid {
        Sid { authority: 22, sub_authorities: vec![2, gid] }
    }

    /// The group of S-1-22-2-gid.
    pub fn unix_gid(&self) -> Option<u32> {
        match *self.sub_authorities {
            [2, gid] if self.authority == 22 => Some(gid),
            _ => None,
        }
    }

    /// The permissions in S-1-5-88-3-mode, by which Unix clients store a mode in a list.
    pub fn unix_mode(&self) -> Option<u32> {
        match *self.sub_authorities {
            [88, 3, mode] if self.authority == 5 => Some(mode & 0o7777),
            _ => None,
        }
    }

    /// S-1-5-88-1-uid.
    pub fn nfs_user(uid: u32) -> Sid {
        Sid { authority: 5, sub_authorities: vec![88, 1, uid] }
    }

    /// S-1-5-88-2-gid.
    pub fn nfs_group(gid: u32) -> Sid {
        Sid { authority: 5, sub_authorities: vec![88, 2, gid] }
    }

    /// S-1-5-88-3-mode.
    pub fn nfs_mode(mode: u32) -> Sid {
        Sid { authority: 5, sub_authorities: vec![88, 3, mode & 0o7777] }
    }

    /// Whether it is an identity of Windows' NFS server, S-1-5-88-...: a Unix user, group or mode.
    pub fn is_of_nfs(&self) -> bool {
        self.authority == 5 && self.sub_authorities.first() == Some(&88)
    }

    /// Parses a SID; bytes after it are ignored.
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

    /// Length on the wire in bytes.
    pub fn len(&self) -> usize {
        self.sub_authorities.len().min(MAX_SUB_AUTHORITIES).saturating_mul(4).saturating_add(8)
    }

    /// Always false: a SID has at least an authority.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Appends the SID.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let subs = self.sub_authorities.get(..MAX_SUB_AUTHORITIES).unwrap_or(&self.sub_authorities);
        out.put_u8(1);
        out.put_u8(subs.len() as u8);
        out.put(&self.authority.to_be_bytes()[2..]);
        subs.iter().for_each(|s| out.put_u32(*s));
    }
}

impl std::fmt::Display for Sid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // [MS-DTYP] 2.4.2.1: authorities beyond 32 bits are written in hexadecimal.
        match u32::try_from(self.authority) {
            Ok(authority) => write!(f, "S-1-{authority}")?,
            Err(_) => write!(f, "S-1-{:#014X}", self.authority)?,
        }
        self.sub_authorities.iter().try_for_each(|s| write!(f, "-{s}"))
    }
}

impl FromStr for Sid {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Sid, Malformed> {
        const MALFORMED: Malformed = Malformed("SID");
        let mut parts = text.strip_prefix("S-1-").ok_or(MALFORMED)?.split('-');
        let authority = parts.next().ok_or(MALFORMED)?;
        let authority = match authority.strip_prefix("0x").or(authority.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => authority.parse(),
        };
        let authority = authority.ok().filter(|&value| value < 1 << 48).ok_or(MALFORMED)?;
        let sub_authorities: Vec<u32> =
            parts.map(str::parse).collect::<Result<_, _>>().map_err(|_| MALFORMED)?;
        if sub_authorities.len() > MAX_SUB_AUTHORITIES {
            return Err(MALFORMED);
        }
        Ok(Sid { authority, sub_authorities })
    }
}
