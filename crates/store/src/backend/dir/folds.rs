//! How the names of a directory are spelled, found without regard to case.
//!
//! Why: Linux looks names up as they are spelled, so before a client that ignores case creates a file, or opens one by
//! another spelling, every entry would have to be read; filling a directory would cost the square of its size.
//! Owns: the names of a few directories. Limits: [`MAX_DIRS`] directories of [`MAX_NAMES`] names, [`MAX_ALL_NAMES`]
//! together (about 100 bytes each). Does not: read directories.
//!
//! Truth: what is remembered of a directory holds while its times do not change but by our own operations, and for
//! [`MAX_AGE`] at most. What somebody else changes within one tick of the file system's clock, or within one of our
//! operations, can go unnoticed that long: then a look-up that ignores case misses a name whose case differs, and
//! nothing else.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::backend::names;
use crate::vfs::{NodeId, Timestamp};

/// Directories remembered.
const MAX_DIRS: usize = 16;
/// Names of one directory; larger ones are scanned each time.
pub(super) const MAX_NAMES: usize = 200_000;
/// Names of all directories.
const MAX_ALL_NAMES: usize = 400_000;
/// How long they are believed.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Times of a directory that change whenever its entries do.
pub(super) type Stamp = (Timestamp, Timestamp);

/// The names of one directory, by the hash of what they fold to. Most hashes have one.
#[derive(Default)]
struct Spellings {
    first: HashMap<u64, Box<[u8]>>,
    /// The others: names that differ by case only, and false matches.
    more: HashMap<u64, Vec<Box<[u8]>>>,
    len: usize,
}

impl Spellings {
    fn add(&mut self, name: Box<[u8]>) {
        let hash = names::fold_hash(&name);
        self.len += 1;
        if let Some(name) = self.first.insert(hash, name) {
            self.more.entry(hash).or_default().push(name);
        }
    }

    fn remove(&mut self, name: &[u8]) {
        let hash = names::fold_hash(name);
        let more = self.more.get_mut(&hash);
        if let Some(at) = more.as_ref().and_then(|more| more.iter().position(|one| **one == *name)) {
            more.expect("as found").swap_remove(at);
            self.len -= 1;
        } else if self.first.get(&hash).is_some_and(|first| **first == *name) {
            self.len -= 1;
            match more.and_then(Vec::pop) {
                Some(next) => self.first.insert(hash, next),
                None => self.first.remove(&hash),
            };
        }
    }

    /// The name that folds to `wanted`; one whose 8.3 name it is is looked for among all, which nobody does often.
    fn find(&self, wanted: &[u8]) -> Option<&[u8]> {
        let hash = names::fold_hash(wanted);
        let more = self.more.get(&hash).into_iter().flatten();
        let found = self.first.get(&hash).into_iter().chain(more).find(|name| names::fold(name) == wanted);
        let all = || self.first.values().chain(self.more.values().flatten());
        let by_short = || all().find(|name| names::is_called(name, wanted));
        found.or_else(|| names::may_be_short(wanted).then(by_short).flatten()).map(|name| &**name)
    }
}

struct Names {
    stamp: Stamp,
    made: Instant,
    spellings: Spellings,
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
    /// One is, and spelled like this.
    Spelled(Vec<u8>),
    /// Nothing: read the directory.
    Nothing,
}

impl Folds {
    /// Whether anything is remembered of `dir`: only then must changes be told.
    pub(super) fn remembers(&self, dir: NodeId) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// What is known about a folded name in a directory whose times are `stamp`.
    pub(super) fn ask(&mut self, dir: NodeId, stamp: Stamp, wanted: &[u8], now: Instant) -> Known {
        match self.dirs.get(&dir) {
            None => Known::Nothing,
            Some(names) if names.stamp != stamp || now.duration_since(names.made) > MAX_AGE => {
                self.dirs.remove(&dir);
                Known::Nothing
            }
            Some(names) => match names.spellings.find(wanted) {
                Some(name) => Known::Spelled(name.to_vec()),
                None => Known::Absent,
            },
        }
    }

    /// Remembers all names of a directory, whose times were `stamp` before they were read.
    pub(super) fn learn(&mut self, dir: NodeId, stamp: Stamp, names: Vec<Vec<u8>>, now: Instant) {
        self.dirs.remove(&dir);
        while self.dirs.len() >= MAX_DIRS || self.names() + names.len() > MAX_ALL_NAMES {
            let oldest = self.dirs.iter().min_by_key(|(_, names)| names.made).map(|(&dir, _)| dir);
            let Some(oldest) = oldest else { break };
            self.dirs.remove(&oldest);
        }
        let mut spellings = Spellings::default();
        spellings.first.reserve(names.len());
        names.into_iter().for_each(|name| spellings.add(name.into_boxed_slice()));
        self.dirs.insert(dir, Names { stamp, made: now, spellings });
    }

    fn names(&self) -> usize {
        self.dirs.values().map(|names| names.spellings.len).sum()
    }

    /// What was remembered of `dir` proved wrong.
    pub(super) fn forget(&mut self, dir: NodeId) {
        self.dirs.remove(&dir);
    }

    /// Notes that an operation of ours changed the times from `before` to `after`, took a name away and added one.
    pub(super) fn changed(
        &mut self,
        dir: NodeId,
        (before, after): (Stamp, Stamp),
        removed: Option<&[u8]>,
        added: Option<&[u8]>,
    ) {
        let all = self.names();
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        if names.stamp != before || names.spellings.len >= MAX_NAMES || all >= MAX_ALL_NAMES {
            self.dirs.remove(&dir);
            return;
        }
        names.stamp = after;
        if let Some(name) = removed {
            names.spellings.remove(name);
        }
        if let Some(name) = added {
            // One that was replaced is there already.
            names.spellings.remove(name);
            names.spellings.add(name.into());
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

    fn spelled(name: &str) -> Known {
        Known::Spelled(name.as_bytes().to_vec())
    }

    #[test]
    fn names_hold_while_only_we_change_the_directory() {
        let mut folds = Folds::default();
        let now = Instant::now();
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now), Known::Nothing);
        folds.learn(DIR, stamp(1), vec![b"readme".to_vec()], now);
        assert_eq!(folds.ask(DIR, stamp(1), b"README", now), spelled("readme"));
        assert_eq!(folds.ask(DIR, stamp(1), b"OTHER", now), Known::Absent);
        folds.changed(DIR, (stamp(1), stamp(2)), None, Some(b"Other"));
        assert_eq!(folds.ask(DIR, stamp(2), b"OTHER", now), spelled("Other"));
        folds.changed(DIR, (stamp(2), stamp(3)), Some(b"Other"), None);
        assert_eq!(folds.ask(DIR, stamp(3), b"OTHER", now), Known::Absent);
        // Somebody else was here.
        assert_eq!(folds.ask(DIR, stamp(4), b"OTHER", now), Known::Nothing);
        assert!(!folds.remembers(DIR));
    }

    #[test]
    fn names_that_differ_by_case_only_come_and_go_one_by_one() {
        let mut folds = Folds::default();
        let now = Instant::now();
        folds.learn(DIR, stamp(1), vec![b"a".to_vec(), b"A".to_vec()], now);
        folds.changed(DIR, (stamp(1), stamp(1)), Some(b"A"), None);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now), spelled("a"));
        // A rename that replaces: the name is there once.
        folds.changed(DIR, (stamp(1), stamp(1)), Some(b"x"), Some(b"a"));
        folds.changed(DIR, (stamp(1), stamp(1)), Some(b"a"), None);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now), Known::Absent);
        assert_eq!(folds.names(), 0);
    }

    #[test]
    fn long_names_are_found_by_their_short_ones() {
        let mut folds = Folds::default();
        let now = Instant::now();
        let short = names::short(b"a long name.text").unwrap();
        folds.learn(DIR, stamp(1), vec![b"other long name".to_vec(), b"a long name.text".to_vec()], now);
        assert_eq!(folds.ask(DIR, stamp(1), short.as_bytes(), now), spelled("a long name.text"));
    }

    #[test]
    fn names_age_and_give_way() {
        let mut folds = Folds::default();
        let now = Instant::now();
        folds.learn(DIR, stamp(1), Vec::new(), now);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now + MAX_AGE), Known::Absent);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now + MAX_AGE * 2), Known::Nothing);
        for i in 0..100 {
            folds.learn(NodeId(100 + i), stamp(1), Vec::new(), now + Duration::from_millis(i));
        }
        assert_eq!(folds.dirs.len(), MAX_DIRS);
        assert!(folds.remembers(NodeId(199)));
        folds.changed(NodeId(199), (stamp(7), stamp(8)), None, Some(b"x"));
        assert!(!folds.remembers(NodeId(199)));
        // A large directory pushes older ones out.
        let many = |n: usize| (0..n).map(|i| i.to_string().into_bytes()).collect::<Vec<_>>();
        let later = |n: u64| now + Duration::from_secs(n);
        folds.learn(NodeId(1), stamp(1), many(MAX_NAMES), later(1));
        folds.learn(NodeId(2), stamp(1), many(MAX_NAMES), later(2));
        assert_eq!((folds.dirs.len(), folds.names()), (MAX_DIRS, MAX_ALL_NAMES));
        folds.learn(NodeId(3), stamp(1), many(1), later(3));
        assert_eq!((folds.dirs.len(), folds.names()), (2, MAX_NAMES + 1));
        assert!(!folds.remembers(NodeId(1)) && folds.remembers(NodeId(3)));
    }
}
