//! Byte ranges and locks as callers name them, and the set of ranges that a file has locked.
//!
//! See RFC 8881 9.1 and 18.10. `v4::locks` sends the requests.

use std::ops::Range;

use super::Error;

/// A byte range of a file. It may lie beyond the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1; `u64::MAX` reaches to the end of the file, however it grows.
    pub len: u64,
}

impl ByteRange {
    /// The whole file, however it grows.
    pub const WHOLE: ByteRange = ByteRange { offset: 0, len: u64::MAX };

    pub(super) fn check(self) -> Result<(), Error> {
        let ends = self.len == u64::MAX || self.offset.checked_add(self.len).is_some();
        match ends && !self.bytes().is_empty() {
            true => Ok(()),
            false => Err(Error::Misuse("a range to lock has at least one byte, and none beyond 2^64 - 1")),
        }
    }

    fn bytes(self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len)
    }
}

/// Which locks of others a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Exclusive ones. The file must be open for reading.
    Shared,
    /// All. The file must be open for writing.
    Exclusive,
}

/// What a lock request does while another lock conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// It fails.
    Fail,
    /// It asks again until the lock is granted, for any length of time.
    Wait,
}

/// A lock of another owner (LOCK4denied).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockConflict {
    /// What it locks.
    pub range: ByteRange,
    /// Its kind.
    pub kind: LockKind,
}

/// The ranges that one owner has locked; they do not overlap.
#[derive(Default)]
pub(super) struct LockedRanges(Vec<Range<u64>>);

impl LockedRanges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, range: ByteRange) {
        self.remove(range);
        self.0.push(range.bytes());
    }

    /// A part of a locked range may be removed, which splits it.
    pub fn remove(&mut self, range: ByteRange) {
        let gone = range.bytes();
        let left = |held: Range<u64>| {
            [held.start..held.end.min(gone.start), held.start.max(gone.end)..held.end]
                .into_iter()
                .filter(|piece| !piece.is_empty())
        };
        self.0 = self.0.drain(..).flat_map(left).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn a_range_has_bytes_and_an_end() {
        assert!([range(0, 1), range(u64::MAX - 1, 1), range(3, u64::MAX)].iter().all(|r| r.check().is_ok()));
        assert!(ByteRange::WHOLE.check().is_ok());
        let wrong = [range(0, 0), range(3, u64::MAX - 1), range(u64::MAX, 1), range(u64::MAX, u64::MAX)];
        assert!(wrong.iter().all(|r| matches!(r.check(), Err(Error::Misuse(_)))));
    }

    #[test]
    fn ranges_are_replaced_and_split() {
        let mut locked = LockedRanges::default();
        locked.add(range(0, 100));
        locked.remove(range(40, 20));
        assert_eq!(locked.0, [0..40, 60..100]);
        locked.add(range(30, 40));
        assert_eq!(locked.0, [0..30, 70..100, 30..70]);
        locked.remove(range(10, u64::MAX));
        assert_eq!(locked.0, std::slice::from_ref(&(0..10)));
        locked.add(range(5, u64::MAX));
        assert_eq!(locked.0, [0..5, 5..u64::MAX]);
        locked.remove(ByteRange::WHOLE);
        assert!(locked.is_empty());
    }
}
