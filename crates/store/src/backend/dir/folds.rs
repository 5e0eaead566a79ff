//! Which names exist in a directory without regard to case: says at once that a new name has no other spelling.
//!
//! Why: Linux looks names up as they are spelled, so before a client that ignores case creates a file, every entry
//! would have to be read; filling a directory would cost the square of its size.
//! Owns: hashes of folded names of a few directories. Limits: [`MAX_DIRS`] directories of [`MAX_NAMES`] names.
//! Does not: find the other spelling; that is a scan, which the hash says is worth while.
//!
//! Truth: a directory's hashes hold while its times do not change but by our own operations, and for [`MAX_AGE`] at
//! most. What somebody else changes within one tick of the file system's clock, or within one of our operations, can
//! go unnoticed that long: then a look-up that ignores case misses a name whose case differs, and nothing else.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::backend::names;
use crate::vfs::{NodeId, Timestamp};

/// Directories remembered.
const MAX_DIRS: usize = 16;
/// Names of one directory; larger ones are scanned each time.
pub(super) const MAX_NAMES: usize = 200_000;
/// How long hashes are believed.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Times of a directory that change whenever its entries do.
pub(super) type Stamp = (Timestamp, Timestamp);

struct Names {
    stamp: Stamp,
    made: Instant,
    /// How many names fold to each hash.
    hashes: HashMap<u64, u32>,
}

/// The directories remembered.
#[derive(Default)]
pub(super) struct Folds {
    dirs: HashMap<NodeId, Names>,
}

/// What is known about a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// No entry is called so in any case.
    Absent,
    /// One may be.
    Perhaps,
    /// Nothing: read the directory.
    Nothing,
}

impl Folds {
    /// Whether anything is remembered of `dir`: only then must changes be told.
    pub(super) fn remembers(&self, dir: NodeId) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// What is known about `name` in a directory whose times are `stamp`.
    pub(super) fn ask(&mut self, dir: NodeId, stamp: Stamp, name: &[u8], now: Instant) -> Known {
        match self.dirs.get(&dir) {
            None => Known::Nothing,
            Some(names) if names.stamp != stamp || now.duration_since(names.made) > MAX_AGE => {
                self.dirs.remove(&dir);
                Known::Nothing
            }
            Some(names) if names.hashes.contains_key(&names::fold_hash(name)) => Known::Perhaps,
            Some(_) => Known::Absent,
        }
    }

    /// Remembers all names of a directory, whose times were `stamp` before they were read.
    pub(super) fn learn(&mut self, dir: NodeId, stamp: Stamp, hashes: HashMap<u64, u32>, now: Instant) {
        if self.dirs.len() >= MAX_DIRS && !self.remembers(dir) {
            let oldest = self.dirs.iter().min_by_key(|(_, names)| names.made).map(|(&dir, _)| dir);
            oldest.map(|dir| self.dirs.remove(&dir));
        }
        self.dirs.insert(dir, Names { stamp, made: now, hashes });
    }

    /// Notes that an operation of ours changed the times from `before` to `after`, took a name away and added one.
    pub(super) fn changed(
        &mut self,
        dir: NodeId,
        (before, after): (Stamp, Stamp),
        removed: Option<&[u8]>,
        added: Option<&[u8]>,
    ) {
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        if names.stamp != before || names.hashes.len() >= MAX_NAMES {
            self.dirs.remove(&dir);
            return;
        }
        names.stamp = after;
        if let Some(name) = added {
            *names.hashes.entry(names::fold_hash(name)).or_default() += 1;
        }
        // Afterwards, so that a replaced name, which was there twice for a moment, is not lost.
        if let Some(name) = removed {
            let hash = names::fold_hash(name);
            match names.hashes.get_mut(&hash) {
                Some(1) => drop(names.hashes.remove(&hash)),
                Some(count) => *count -= 1,
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: NodeId = NodeId(9);

    fn stamp(secs: i64) -> Stamp {
        let t = Timestamp { secs, nanos: 0 };
        (t, t)
    }

    #[test]
    fn hashes_hold_while_only_we_change_the_directory() {
        let mut folds = Folds::default();
        let now = Instant::now();
        assert_eq!(folds.ask(DIR, stamp(1), b"a", now), Known::Nothing);
        folds.learn(DIR, stamp(1), HashMap::from([(names::fold_hash(b"readme"), 1)]), now);
        assert_eq!(folds.ask(DIR, stamp(1), b"README", now), Known::Perhaps);
        assert_eq!(folds.ask(DIR, stamp(1), b"other", now), Known::Absent);
        folds.changed(DIR, (stamp(1), stamp(2)), None, Some(b"Other"));
        assert_eq!(folds.ask(DIR, stamp(2), b"oTHER", now), Known::Perhaps);
        folds.changed(DIR, (stamp(2), stamp(3)), Some(b"other"), None);
        assert_eq!(folds.ask(DIR, stamp(3), b"other", now), Known::Absent);
        // Somebody else was here.
        assert_eq!(folds.ask(DIR, stamp(4), b"other", now), Known::Nothing);
        assert!(!folds.remembers(DIR));
    }

    #[test]
    fn hashes_age_and_give_way() {
        let mut folds = Folds::default();
        let now = Instant::now();
        folds.learn(DIR, stamp(1), HashMap::new(), now);
        assert_eq!(folds.ask(DIR, stamp(1), b"a", now + MAX_AGE), Known::Absent);
        assert_eq!(folds.ask(DIR, stamp(1), b"a", now + MAX_AGE * 2), Known::Nothing);
        for i in 0..100 {
            folds.learn(NodeId(100 + i), stamp(1), HashMap::new(), now + Duration::from_millis(i));
        }
        assert_eq!(folds.dirs.len(), MAX_DIRS);
        assert!(folds.remembers(NodeId(199)));
        folds.changed(NodeId(199), (stamp(7), stamp(8)), None, Some(b"x"));
        assert!(!folds.remembers(NodeId(199)));
    }
}
