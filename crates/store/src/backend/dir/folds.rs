//! A cache of the names in a directory, for look-ups that ignore case.
//!
//! Linux looks names up exactly. Without this cache, every entry would have to be read before a client that ignores
//! case creates a file, or opens one by another spelling, so filling a directory would take quadratic time.
//! Limits: [`MAX_DIRS`] directories of [`MAX_NAMES`] names or [`MAX_KEYS`] keys, [`MAX_ALL_NAMES`] together (about
//! 100 bytes each). A look-up compares at most [`MAX_OF_A_KEY`] names twice, because it blocks everybody on its core.
//! Directories are read elsewhere.
//!
//! Consistency: the cached names of a directory are valid while its times change only by our own operations, and for
//! at most [`MAX_AGE`]. A change by another program within one tick of the file system's clock, or during one of our
//! operations, can stay unnoticed for that long; its only effect is that a look-up that ignores case misses a name in
//! another case.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use crate::backend::names;
use crate::vfs::{NodeId, Timestamp};

/// Maximum number of cached directories.
const MAX_DIRS: usize = 16;
/// Maximum number of names of one directory; for larger ones only keys are cached.
const MAX_NAMES: usize = 200_000;
/// Maximum number of names with one key. More are only counted: a look-up reads the directory for them, in steps.
const MAX_OF_A_KEY: usize = 16;
/// Maximum number of keys of one directory.
pub(super) const MAX_KEYS: usize = 1_000_000;
/// Number of keys that take as much memory as a name.
const KEYS_A_NAME: usize = 5;
/// Maximum number of names of all directories.
const MAX_ALL_NAMES: usize = 400_000;
/// How long cached names are valid.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Times of a directory that change whenever its entries do.
pub(super) type Stamp = (Timestamp, Timestamp);

/// The cached names of one directory.
enum Spellings {
    /// The names themselves.
    Whole(Whole),
    /// For a large directory, only the number of names with each key ([`names::key`]): enough to know that a name
    /// does not exist, with eight bytes per name.
    Counts(HashMap<u32, u32>),
}

/// Names by key. Most keys have one name.
#[derive(Default)]
struct Whole {
    first: HashMap<u32, Box<[u8]>>,
    /// Keys with several names: names that differ only in case, and collisions.
    more: HashMap<u32, Vec<Box<[u8]>>>,
    /// The number of names for keys that have had more than [`MAX_OF_A_KEY`]. These names are not in the maps above.
    crowded: HashMap<u32, u32>,
    /// Names in the maps above.
    len: usize,
}

impl Whole {
    fn add(&mut self, name: Box<[u8]>) {
        let key = names::key(&name);
        if let Some(count) = self.crowded.get_mut(&key) {
            *count = count.saturating_add(1);
            return;
        }
        self.len += 1;
        let Some(name) = self.first.insert(key, name) else { return };
        let more = self.more.entry(key).or_default();
        more.push(name);
        if more.len() >= MAX_OF_A_KEY {
            let names = more.len() + 1;
            self.first.remove(&key);
            self.more.remove(&key);
            self.len -= names;
            self.crowded.insert(key, u32::try_from(names).unwrap_or(u32::MAX));
        }
    }

    fn remove(&mut self, name: &[u8]) {
        let key = names::key(name);
        if self.crowded.contains_key(&key) {
            return uncount(&mut self.crowded, key);
        }
        let more = self.more.get_mut(&key);
        if let Some(at) = more.as_ref().and_then(|more| more.iter().position(|one| **one == *name)) {
            more.expect("as found").swap_remove(at);
            self.len -= 1;
        } else if self.first.get(&key).is_some_and(|first| **first == *name) {
            self.len -= 1;
            match more.and_then(Vec::pop) {
                Some(next) => self.first.insert(key, next),
                None => self.first.remove(&key),
            };
        }
    }

    /// The first name with a key for which `is_it` holds.
    fn find(&self, key: u32, is_it: impl Fn(&[u8]) -> bool) -> CachedName {
        if self.crowded.contains_key(&key) {
            return CachedName::Perhaps;
        }
        let more = self.more.get(&key).into_iter().flatten();
        let found = self.first.get(&key).into_iter().chain(more).find(|name| is_it(name));
        found.map_or(CachedName::Absent, |name| CachedName::Spelled(name.to_vec()))
    }

    /// The name that folds to `wanted`, or whose 8.3 name it is.
    fn ask(&self, wanted: &[u8]) -> CachedName {
        match self.find(names::key(wanted), |name| names::fold(name) == wanted) {
            CachedName::Absent => match names::key_of_short(wanted) {
                Some(key) => self.find(key, |name| names::is_called(name, wanted)),
                None => CachedName::Absent,
            },
            own => own,
        }
    }

    /// Adds a name, which may already be there.
    fn replace(&mut self, name: &[u8]) {
        // It is unknown whether a name with a crowded key already exists, so it is counted again (see
        // `Spellings::change`).
        if !self.crowded.contains_key(&names::key(name)) {
            self.remove(name);
        }
        self.add(name.into());
    }

    fn is_full(&self) -> bool {
        self.len + self.crowded.len() >= MAX_NAMES
    }

    /// The number of names with each key.
    fn counts(&self) -> HashMap<u32, u32> {
        let mut counts = HashMap::with_capacity(self.crowded.len() + self.first.len());
        counts.extend(&self.crowded);
        counts.extend(self.first.keys().map(|key| (*key, 1)));
        for (key, more) in &self.more {
            more.iter().for_each(|_| count(&mut counts, *key));
        }
        counts
    }
}

impl Spellings {
    fn ask(&self, wanted: &[u8]) -> CachedName {
        match self {
            Spellings::Whole(whole) => whole.ask(wanted),
            Spellings::Counts(counts) => {
                let keys = [Some(names::key(wanted)), names::key_of_short(wanted)];
                let any = keys.into_iter().flatten().any(|key| counts.contains_key(&key));
                if any { CachedName::Perhaps } else { CachedName::Absent }
            }
        }
    }

    /// Records that an entry was replaced, added or removed.
    fn change(&mut self, removed: Option<&[u8]>, added: Option<&[u8]>) {
        match self {
            Spellings::Whole(whole) => {
                if let Some(name) = removed {
                    whole.remove(name);
                }
                if let Some(name) = added {
                    whole.replace(name);
                }
            }
            // It is unknown whether a name was replaced: a count that is too high costs a scan, one that is too low
            // hides a name.
            Spellings::Counts(counts) => {
                if let Some(name) = removed {
                    uncount(counts, names::key(name));
                }
                if let Some(name) = added {
                    count(counts, names::key(name));
                }
            }
        }
    }

    /// Its memory, in units of names.
    fn weight(&self) -> usize {
        match self {
            Spellings::Whole(whole) => whole.len + whole.crowded.len() / KEYS_A_NAME,
            Spellings::Counts(counts) => counts.len() / KEYS_A_NAME,
        }
    }

    fn is_full(&self) -> bool {
        match self {
            Spellings::Whole(whole) => whole.is_full(),
            Spellings::Counts(counts) => counts.len() >= MAX_KEYS,
        }
    }
}

fn count(counts: &mut HashMap<u32, u32>, key: u32) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

fn uncount(counts: &mut HashMap<u32, u32>, key: u32) {
    if let Entry::Occupied(mut held) = counts.entry(key) {
        match *held.get() {
            // Too many to have been counted.
            u32::MAX => {}
            1 => drop(held.remove()),
            _ => *held.get_mut() -= 1,
        }
    }
}

/// Names being read from a directory: all names up to [`MAX_NAMES`], then their keys.
pub(super) struct Learned(Spellings);

impl Default for Learned {
    fn default() -> Learned {
        Learned(Spellings::Whole(Whole::default()))
    }
}

impl Learned {
    /// Takes another name. Each is filed as it is read, so that storing them needs no long step at the end.
    pub(super) fn add(&mut self, name: Vec<u8>) {
        if let Spellings::Whole(whole) = &self.0
            && whole.is_full()
        {
            self.0 = Spellings::Counts(whole.counts());
        }
        match &mut self.0 {
            Spellings::Whole(whole) => whole.add(name.into_boxed_slice()),
            Spellings::Counts(counts) => count(counts, names::key(&name)),
        }
    }
}

struct Names {
    stamp: Stamp,
    made: Instant,
    spellings: Spellings,
}

/// The cached directories.
#[derive(Default)]
pub(super) struct Folds {
    dirs: HashMap<NodeId, Names>,
    /// Directories being read, and whether one of our operations has changed their entries meanwhile: the read may
    /// lack the change, which their times need not show.
    reading: HashMap<NodeId, bool>,
}

/// The cache's answer about a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CachedName {
    /// No entry has this name in any case.
    Absent,
    /// An entry has this name, with this spelling.
    Spelled(Vec<u8>),
    /// An entry may have this name: read the directory until it is found; its names are already stored.
    Perhaps,
    /// Unknown: read the directory, and store its names.
    Nothing,
}

impl Folds {
    /// Whether `dir` is cached or being read: only then must changes be reported.
    pub(super) fn remembers(&self, dir: NodeId) -> bool {
        self.dirs.contains_key(&dir) || self.reading.contains_key(&dir)
    }

    /// `dir` is about to be read, by one reader at a time, until [`Folds::end`].
    pub(super) fn begin(&mut self, dir: NodeId) {
        self.reading.insert(dir, false);
    }

    /// See [`Folds::begin`].
    pub(super) fn end(&mut self, dir: NodeId) {
        self.reading.remove(&dir);
    }

    /// The answer about a folded name in a directory whose times are `stamp`.
    pub(super) fn ask(&mut self, dir: NodeId, stamp: Stamp, wanted: &[u8], now: Instant) -> CachedName {
        match self.dirs.get(&dir) {
            None => CachedName::Nothing,
            Some(names) if names.stamp != stamp || now.duration_since(names.made) > MAX_AGE => {
                self.dirs.remove(&dir);
                CachedName::Nothing
            }
            Some(names) => names.spellings.ask(wanted),
        }
    }

    /// Stores all names of a directory, whose times were `stamp` before they were read; not if we have changed it
    /// meanwhile.
    pub(super) fn learn(&mut self, dir: NodeId, stamp: Stamp, learned: Learned, now: Instant) {
        self.dirs.remove(&dir);
        if self.reading.get(&dir).is_some_and(|changed| *changed) {
            return;
        }
        let Learned(spellings) = learned;
        while self.dirs.len() >= MAX_DIRS || self.names() + spellings.weight() > MAX_ALL_NAMES {
            let oldest = self.dirs.iter().min_by_key(|(_, names)| names.made).map(|(&dir, _)| dir);
            let Some(oldest) = oldest else { break };
            self.dirs.remove(&oldest);
        }
        self.dirs.insert(dir, Names { stamp, made: now, spellings });
    }

    fn names(&self) -> usize {
        self.dirs.values().map(|names| names.spellings.weight()).sum()
    }

    /// One of our operations has changed `dir`, which was not cached: a read in progress may lack the change.
    pub(super) fn distrust(&mut self, dir: NodeId) {
        self.dirs.remove(&dir);
        if let Some(changed) = self.reading.get_mut(&dir) {
            *changed = true;
        }
    }

    /// The cached names of `dir` proved wrong.
    pub(super) fn forget(&mut self, dir: NodeId) {
        self.dirs.remove(&dir);
    }

    /// Records that one of our operations changed the times from `before` to `after`, removed a name and added one.
    pub(super) fn changed(
        &mut self,
        dir: NodeId,
        (before, after): (Stamp, Stamp),
        removed: Option<&[u8]>,
        added: Option<&[u8]>,
    ) {
        if let Some(changed) = self.reading.get_mut(&dir) {
            *changed = true;
        }
        let all = self.names();
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        if names.stamp != before || names.spellings.is_full() || all >= MAX_ALL_NAMES {
            self.dirs.remove(&dir);
            return;
        }
        names.stamp = after;
        names.spellings.change(removed, added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: NodeId = NodeId(9);

    #[test]
    fn what_we_change_while_a_directory_is_read_is_not_missed_afterwards() {
        let (mut folds, now) = (Folds::default(), Instant::now());
        assert!(!folds.remembers(DIR));
        folds.begin(DIR);
        assert!(folds.remembers(DIR));
        // Behind the position read so far, and within a tick of the clock.
        folds.changed(DIR, (stamp(1), stamp(1)), None, Some(b"Foo"));
        folds.learn(DIR, stamp(1), learned(&["bar"]), now);
        folds.end(DIR);
        assert_eq!(folds.ask(DIR, stamp(1), b"FOO", now), CachedName::Nothing);
        folds.begin(DIR);
        folds.learn(DIR, stamp(1), learned(&["bar", "Foo"]), now);
        folds.end(DIR);
        assert_eq!(folds.ask(DIR, stamp(1), b"FOO", now), CachedName::Spelled(b"Foo".to_vec()));
    }

    #[test]
    fn what_we_began_to_change_before_a_directory_was_read_is_not_missed_afterwards() {
        let (mut folds, now) = (Folds::default(), Instant::now());
        // Another core checks before it creates Foo, within the tick of the clock in which the directory is read
        // here.
        let other = |folds: &mut Folds| folds.distrust(DIR);
        assert!(!folds.remembers(DIR));
        folds.begin(DIR);
        other(&mut folds);
        folds.learn(DIR, stamp(1), learned(&["bar"]), now);
        folds.end(DIR);
        assert_eq!(folds.ask(DIR, stamp(1), b"FOO", now), CachedName::Nothing);
        folds.begin(DIR);
        folds.learn(DIR, stamp(1), learned(&["bar"]), now);
        folds.end(DIR);
        other(&mut folds);
        assert_eq!(folds.ask(DIR, stamp(1), b"FOO", now), CachedName::Nothing);
    }

    fn stamp(secs: i64) -> Stamp {
        let t = Timestamp { secs, nanos: 0 };
        (t, t)
    }

    fn learned(names: &[&str]) -> Learned {
        let mut learned = Learned::default();
        names.iter().for_each(|name| learned.add(name.as_bytes().to_vec()));
        learned
    }

    fn spelled(name: &str) -> CachedName {
        CachedName::Spelled(name.as_bytes().to_vec())
    }

    #[test]
    fn names_hold_while_only_we_change_the_directory() {
        let mut folds = Folds::default();
        let now = Instant::now();
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now), CachedName::Nothing);
        folds.learn(DIR, stamp(1), learned(&["readme"]), now);
        assert_eq!(folds.ask(DIR, stamp(1), b"README", now), spelled("readme"));
        assert_eq!(folds.ask(DIR, stamp(1), b"OTHER", now), CachedName::Absent);
        folds.changed(DIR, (stamp(1), stamp(2)), None, Some(b"Other"));
        assert_eq!(folds.ask(DIR, stamp(2), b"OTHER", now), spelled("Other"));
        folds.changed(DIR, (stamp(2), stamp(3)), Some(b"Other"), None);
        assert_eq!(folds.ask(DIR, stamp(3), b"OTHER", now), CachedName::Absent);
        // Another program has changed the directory.
        assert_eq!(folds.ask(DIR, stamp(4), b"OTHER", now), CachedName::Nothing);
        assert!(!folds.remembers(DIR));
    }

    #[test]
    fn names_that_differ_by_case_only_come_and_go_one_by_one() {
        let mut folds = Folds::default();
        let now = Instant::now();
        folds.learn(DIR, stamp(1), learned(&["a", "A"]), now);
        folds.changed(DIR, (stamp(1), stamp(1)), Some(b"A"), None);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now), spelled("a"));
        // A rename that replaces: the name exists once.
        folds.changed(DIR, (stamp(1), stamp(1)), Some(b"x"), Some(b"a"));
        folds.changed(DIR, (stamp(1), stamp(1)), Some(b"a"), None);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now), CachedName::Absent);
        assert_eq!(folds.names(), 0);
    }

    /// Spellings of one name.
    fn spellings(n: usize) -> Vec<String> {
        let spelled = |i: usize| {
            let letter = |(bit, c): (usize, char)| if i >> bit & 1 == 1 { c.to_ascii_uppercase() } else { c };
            "abcdefghijklmnopq".chars().enumerate().map(letter).collect()
        };
        (0..n).map(spelled).collect()
    }

    #[test]
    fn a_look_up_compares_few_names_however_many_have_its_key() {
        let (mut folds, now) = (Folds::default(), Instant::now());
        let mut all = spellings(MAX_OF_A_KEY + 1);
        let wanted = names::fold(all[0].as_bytes());
        // The same digits, and a first letter that none of the names has.
        let short = names::short(&wanted).unwrap().replacen('A', "B", 1);
        let last = all.pop().unwrap();
        let mut learn = Learned::default();
        all.iter().chain([&"other".to_owned()]).for_each(|name| learn.add(name.clone().into_bytes()));
        folds.learn(DIR, stamp(1), learn, now);
        let ask = |folds: &mut Folds, name: &[u8]| folds.ask(DIR, stamp(1), name, now);
        assert!(matches!(ask(&mut folds, &wanted), CachedName::Spelled(_)));
        assert_eq!(ask(&mut folds, short.as_bytes()), CachedName::Absent);
        // One more name: the directory must be read, in steps.
        let change = |folds: &mut Folds, removed: Option<&String>, added: Option<&String>| {
            let names = [removed, added].map(|name| name.map(|name| name.as_bytes()));
            folds.changed(DIR, (stamp(1), stamp(1)), names[0], names[1]);
        };
        change(&mut folds, None, Some(&last));
        assert_eq!(ask(&mut folds, &wanted), CachedName::Perhaps);
        assert_eq!(ask(&mut folds, short.as_bytes()), CachedName::Perhaps);
        assert_eq!((ask(&mut folds, b"OTHER"), folds.names()), (spelled("other"), 1));
        // A replaced name counts twice and is never missed; when all are gone, that is known.
        change(&mut folds, Some(&all[0]), Some(&last));
        all.iter().for_each(|name| change(&mut folds, Some(name), None));
        assert_eq!(ask(&mut folds, &wanted), CachedName::Perhaps);
        change(&mut folds, Some(&last), None);
        assert_eq!(ask(&mut folds, &wanted), CachedName::Absent);
        // More than the limit, as they are read; counting continues when only keys are stored.
        let mut learn = Learned::default();
        spellings(1000).into_iter().for_each(|name| learn.add(name.into_bytes()));
        (0..MAX_NAMES + 1).for_each(|i| learn.add(i.to_string().into_bytes()));
        let Learned(Spellings::Counts(counts)) = &learn else { panic!("they are too many") };
        assert_eq!((counts[&names::key(&wanted)], counts[&names::key(b"7")]), (1000, 1));
    }

    #[test]
    fn long_names_are_found_by_their_short_ones() {
        let mut folds = Folds::default();
        let now = Instant::now();
        let short = names::short(b"a long name.text").unwrap();
        folds.learn(DIR, stamp(1), learned(&["other long name", "a long name.text"]), now);
        assert_eq!(folds.ask(DIR, stamp(1), short.as_bytes(), now), spelled("a long name.text"));
    }

    #[test]
    fn of_a_large_directory_it_is_known_what_does_not_exist() {
        let (mut folds, now) = (Folds::default(), Instant::now());
        let mut learned = Learned::default();
        (0..MAX_NAMES + 10).for_each(|i| learned.add(format!("a file {i}").into_bytes()));
        assert!(matches!(learned.0, Spellings::Counts(_)));
        folds.learn(DIR, stamp(1), learned, now);
        let ask =
            |folds: &mut Folds, name: &str| folds.ask(DIR, stamp(1), &names::fold(name.as_bytes()), now);
        assert_eq!(ask(&mut folds, "A FILE 7"), CachedName::Perhaps);
        assert_eq!(ask(&mut folds, &names::short(b"a file 7").unwrap()), CachedName::Perhaps);
        assert_eq!(ask(&mut folds, "another"), CachedName::Absent);
        assert_eq!(ask(&mut folds, &names::short(b"another long one").unwrap()), CachedName::Absent);
        // Added and removed names are tracked; a replaced name counts twice, and is never missed.
        let mut change = |removed: Option<&[u8]>, added: Option<&[u8]>| {
            folds.changed(DIR, (stamp(1), stamp(1)), removed, added);
            folds.ask(DIR, stamp(1), b"ANOTHER", now)
        };
        assert_eq!(change(None, Some(b"Another")), CachedName::Perhaps);
        assert_eq!(change(Some(b"a file 7"), Some(b"Another")), CachedName::Perhaps);
        assert_eq!(change(Some(b"Another"), None), CachedName::Perhaps);
        assert_eq!(change(Some(b"Another"), None), CachedName::Absent);
        assert_eq!(ask(&mut folds, "A FILE 7"), CachedName::Absent);
    }

    #[test]
    fn names_age_and_give_way() {
        let mut folds = Folds::default();
        let now = Instant::now();
        folds.learn(DIR, stamp(1), Learned::default(), now);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now + MAX_AGE), CachedName::Absent);
        assert_eq!(folds.ask(DIR, stamp(1), b"A", now + MAX_AGE * 2), CachedName::Nothing);
        for i in 0..100 {
            folds.learn(NodeId(100 + i), stamp(1), Learned::default(), now + Duration::from_millis(i));
        }
        assert_eq!(folds.dirs.len(), MAX_DIRS);
        assert!(folds.remembers(NodeId(199)));
        folds.changed(NodeId(199), (stamp(7), stamp(8)), None, Some(b"x"));
        assert!(!folds.remembers(NodeId(199)));
        // A large directory evicts older ones.
        let many = |n: usize| {
            let mut many = Learned::default();
            (0..n).for_each(|i| many.add(i.to_string().into_bytes()));
            many
        };
        let later = |n: u64| now + Duration::from_secs(n);
        folds.learn(NodeId(1), stamp(1), many(MAX_NAMES), later(1));
        folds.learn(NodeId(2), stamp(1), many(MAX_NAMES), later(2));
        assert_eq!((folds.dirs.len(), folds.names()), (MAX_DIRS, MAX_ALL_NAMES));
        folds.learn(NodeId(3), stamp(1), many(1), later(3));
        assert_eq!((folds.dirs.len(), folds.names()), (2, MAX_NAMES + 1));
        assert!(!folds.remembers(NodeId(1)) && folds.remembers(NodeId(3)));
    }
}
