//! What SMB keeps of a file that Unix has no place for: DOS attributes and a birth time that a client has set.
//!
//! Spec: [MS-FSCC] 2.6 (the attributes). Owns: nothing. Does not: decide which attributes mean what.
//!
//! Kept in the extended attribute `user.weft.dos`, 16 bytes, little-endian:
//!
//! ```text
//! 0         1              4             8                       16
//! | layout 1 | 0    0    0 | attributes  | birth, 100 ns since 1601 |
//! ```
//! A birth of 0 is "as the file system has it". A value of another shape is left alone and counts as absent, so that a
//! later version may change the layout.

use super::Timestamp;

/// Extended attributes whose names begin like this are Weft's own: no protocol shows them or lets clients set them.
pub const OWN_XATTRS: &[u8] = b"weft.";
/// Where [`Dos`] is kept.
pub(crate) const XATTR: &[u8] = b"weft.dos";
/// Seconds from 1601 to 1970.
const EPOCH_SECS: i64 = 11_644_473_600;
const TICKS: i64 = 10_000_000;

/// DOS attributes and birth of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dos {
    /// FILE_ATTRIBUTE_* bits as the client has set them.
    pub attributes: u32,
    /// Birth as a client has set it.
    pub born: Option<Timestamp>,
}

impl Dos {
    /// Reads what is kept; `None` when it is not of this layout.
    pub fn parse(bytes: &[u8]) -> Option<Dos> {
        let [1, 0, 0, 0, a0, a1, a2, a3, born @ ..] = bytes else { return None };
        let ticks = i64::from_le_bytes(born.try_into().ok()?);
        let born = (ticks != 0).then(|| Timestamp {
            secs: ticks.div_euclid(TICKS) - EPOCH_SECS,
            // Below 1,000,000,000.
            nanos: u32::try_from(ticks.rem_euclid(TICKS) * 100).unwrap_or(0),
        });
        Some(Dos { attributes: u32::from_le_bytes([*a0, *a1, *a2, *a3]), born })
    }

    /// What to keep.
    pub fn to_bytes(self) -> [u8; 16] {
        let ticks = self.born.map_or(0, |t| {
            let ticks = t.secs.saturating_add(EPOCH_SECS).saturating_mul(TICKS);
            // The one tick that means "none" is the first of 1601.
            ticks.saturating_add(i64::from(t.nanos / 100)).max(1)
        });
        let mut bytes = [0; 16];
        bytes[0] = 1;
        bytes[4..8].copy_from_slice(&self.attributes.to_le_bytes());
        bytes[8..].copy_from_slice(&ticks.to_le_bytes());
        bytes
    }
}

/// What lies beside a file, as a listing tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// What a client has set.
    pub dos: Option<Dos>,
    /// How many extended attributes there are, Weft's own not counted.
    pub xattrs: u32,
    /// Bytes of their names and values together.
    pub xattr_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back() {
        let born = Timestamp { secs: -1, nanos: 123_456_700 };
        for dos in [
            Dos::default(),
            Dos { attributes: 0x26, born: Some(born) },
            Dos { attributes: u32::MAX, born: Some(Timestamp { secs: 15_032_385_535, nanos: 0 }) },
        ] {
            assert_eq!(Dos::parse(&dos.to_bytes()), Some(dos));
        }
        let whole = Dos { attributes: 2, born: None }.to_bytes();
        for len in 0..whole.len() {
            assert_eq!(Dos::parse(&whole[..len]), None);
        }
        assert_eq!(Dos::parse(&[whole.as_slice(), &[0]].concat()), None);
        let mut later = whole;
        later[0] = 2;
        assert_eq!(Dos::parse(&later), None);
    }
}
