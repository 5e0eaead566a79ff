//! SMB metadata without a Unix equivalent: DOS attributes and a birth time set by a client ([MS-FSCC] 2.6).
//!
//! Kept in the extended attribute `user.weft.dos`, 32 bytes, little-endian:
//!
//! ```text
//! 0         1           4             8       16       24           32
//! | layout 1 | 0  0  0  | attributes  | birth | change | last write |      times in 100 ns since 1601
//! ```
//! A birth of 0 means the file system's birth time. The stored change time is valid as long as the last write is the
//! stored one: Unix has its own change time, which nobody can set, and which storing this value changes. A value with
//! another layout counts as missing, so that a later version may change the layout.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use super::Timestamp;

/// Extended attributes with this prefix are Weft's own: no protocol shows them or lets clients set them.
pub const OWN_XATTRS: &[u8] = b"weft.";
/// The attribute with [`Dos`].
pub(crate) const XATTR: &[u8] = b"weft.dos";
/// Seconds from 1601 to 1970.
const EPOCH_SECS: i64 = 11_644_473_600;
const TICKS: i64 = 10_000_000;

/// DOS attributes and birth of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dos {
    /// FILE_ATTRIBUTE_* bits as the client has set them.
    pub attributes: u32,
    /// Birth time, if set by a client.
    pub born: Option<Timestamp>,
    /// Change time, if set by a client, and the last write at that moment.
    pub changed: Option<(Timestamp, Timestamp)>,
}

fn from_ticks(ticks: i64) -> Option<Timestamp> {
    (ticks != 0).then(|| Timestamp {
        secs: ticks.div_euclid(TICKS).saturating_sub(EPOCH_SECS),
        // Below 1,000,000,000.
        nanos: u32::try_from(ticks.rem_euclid(TICKS).saturating_mul(100)).unwrap_or(0),
    })
}

fn to_ticks(time: Option<Timestamp>) -> i64 {
    time.map_or(0, |t| {
        let ticks = t.secs.saturating_add(EPOCH_SECS).saturating_mul(TICKS);
        // The one tick that would mean "none" is the first one of 1601.
        ticks.saturating_add(i64::from(t.nanos / 100)).max(1)
    })
}

impl Dos {
    /// Parses a stored value; `None` if it has another layout.
    pub fn parse(bytes: &[u8]) -> Option<Dos> {
        let (head, times) = bytes.split_first_chunk::<8>()?;
        let [1, 0, 0, 0, attributes @ ..] = *head else { return None };
        let ([born, changed, written], []) = times.as_chunks::<8>() else { return None };
        let time = |bytes: &[u8; 8]| from_ticks(i64::from_le_bytes(*bytes));
        Some(Dos {
            attributes: u32::from_le_bytes(attributes),
            born: time(born),
            changed: time(changed).zip(time(written)),
        })
    }

    /// The value to store.
    pub fn to_bytes(self) -> [u8; 32] {
        let times = [self.born, self.changed.map(|c| c.0), self.changed.map(|c| c.1)];
        let times = times.into_iter().flat_map(|time| to_ticks(time).to_le_bytes());
        let fields = [[1, 0, 0, 0], self.attributes.to_le_bytes()].into_iter().flatten().chain(times);
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(fields).for_each(|(to, field)| *to = field);
        bytes
    }

    /// The change time of a file last written at `mtime`, if a client has set it.
    pub fn changed_at(&self, mtime: Timestamp) -> Option<Timestamp> {
        // Compared in ticks, the precision of the stored value.
        let (changed, written) = self.changed?;
        (to_ticks(Some(written)) == to_ticks(Some(mtime))).then_some(changed)
    }
}

/// Summary of a file's extended attributes, for listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct XattrSummary {
    /// The values set by a client.
    pub dos: Option<Dos>,
    /// Number of extended attributes, without Weft's own.
    pub count: u32,
    /// Total bytes of their names and values.
    pub bytes: u32,
    /// Whether the file has named streams.
    pub streams: bool,
}

impl XattrSummary {
    /// The summary of a symbolic link, which has no attributes: for DOS it is a directory or a file like its target.
    /// A target that ends in a separator is a directory.
    pub(crate) fn of_link(target: &[u8]) -> XattrSummary {
        const DIRECTORY: u32 = 0x10;
        const ARCHIVE: u32 = 0x20;
        let attributes = if matches!(target.last(), Some(b'/' | b'\\')) { DIRECTORY } else { ARCHIVE };
        XattrSummary { dos: Some(Dos { attributes, ..Dos::default() }), ..XattrSummary::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_change_holds_until_the_next_write() {
        let t = |secs| Timestamp { secs, nanos: 123_456_789 };
        let dos = Dos { changed: Some((t(1), t(2))), ..Dos::default() };
        let dos = Dos::parse(&dos.to_bytes()).unwrap();
        let changed = Timestamp { secs: 1, nanos: 123_456_700 };
        assert_eq!(dos.changed_at(t(2)), Some(changed));
        assert_eq!(dos.changed_at(t(3)), None);
        assert_eq!(Dos::default().changed_at(t(2)), None);
    }

    #[test]
    fn what_is_kept_comes_back() {
        let born = Timestamp { secs: -1, nanos: 123_456_700 };
        for dos in [
            Dos::default(),
            Dos { attributes: 0x26, born: Some(born), changed: Some((born, born)) },
            Dos {
                attributes: u32::MAX,
                born: Some(Timestamp { secs: 15_032_385_535, nanos: 0 }),
                changed: None,
            },
        ] {
            assert_eq!(Dos::parse(&dos.to_bytes()), Some(dos));
        }
        let whole = Dos { attributes: 2, ..Dos::default() }.to_bytes();
        for len in 0..whole.len() {
            assert_eq!(Dos::parse(&whole[..len]), None);
        }
        assert_eq!(Dos::parse(&[whole.as_slice(), &[0]].concat()), None);
        let mut later = whole;
        later[0] = 2;
        assert_eq!(Dos::parse(&later), None);
    }
}
