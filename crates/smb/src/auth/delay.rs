//! Delays a log-on before its password is checked, so that passwords cannot be guessed by trial and error.
//!
//! [MS-SMB2] leaves this to the server. Owns the failure counts per (user, source), per source and per user, at most
//! [`MOST`] of each, forgotten after [`MEMORY`]. It does not know whether a user exists, and the caller does the
//! sleeping.
//!
//! Failures are charged to the source that made them, so an attacker cannot lock a user out:
//!
//! | attempt by | waits for |
//! |---|---|
//! | a user who has logged on from this source, without a failure since | nothing |
//! | a source without failures | nothing; [`UNDER_ATTACK`] while others fail for this user. Never refused |
//! | a source with failures | its turn: attempts of a source, and of a source for one user, run one after the other, at growing distances. Refused when the queue is longer than [`PATIENCE`] |
//!
//! The wait precedes the check, so hanging up early saves nothing. Between the end of the wait and the verdict the core
//! runs nothing else, so parallel connections gain nothing over one. A guess from a fresh address costs that address:
//! once a user has [`USER_FREE`] failures, a source has one free guess for that user and then waits, and each guess
//! occupies a connection for [`UNDER_ATTACK`].

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_machine::{Source, Time};

use super::keys;

/// Entries per table; beyond that, the entries with the oldest failure are evicted. An entry takes less than 100 bytes.
const MOST: usize = 16_384;
/// Free failures of a user from one source: people mistype.
const FREE: u32 = 4;
/// Free failures from one source for all users together: several people may share an address.
const SOURCE_FREE: u32 = 16;
/// Failures for a user from all sources beyond which a single failure from a source costs time.
const USER_FREE: u32 = 16;
/// The wait of a log-on from a source without failures while a user has more than [`USER_FREE`] failures from others.
/// Short enough for people and clients, long enough that a guess costs a connection.
const UNDER_ATTACK: Duration = Duration::from_secs(1);
/// The wait after the first failure that is not free; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// The longest distance between two attempts.
const LONGEST: Duration = Duration::from_secs(15);
/// The longest wait of one attempt; attempts that would wait longer are refused unchecked. It is shorter than the
/// timeouts of clients and of connections that have not logged on.
const PATIENCE: Duration = Duration::from_secs(20);
/// A failure is forgotten after this time without another.
const MEMORY: Duration = Duration::from_secs(900);

/// Too many attempts from this source are already waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

/// The failures of a server's clients.
#[derive(Default)]
pub struct Delays {
    tables: Mutex<Tables>,
    /// Names come from the network and may be long, so the tables hold keyed hashes of them.
    names: RandomState,
}

/// The keyed hash of a user's name.
type UserKey = u64;

#[derive(Default)]
struct Tables {
    users: HashMap<UserKey, Failures>,
    sources: HashMap<Source, Failures>,
    pairs: HashMap<(UserKey, Source), Failures>,
    /// Users that have logged on from a source without a failure since, and when they last did.
    known: HashMap<(UserKey, Source), Time>,
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Time,
    /// When the next attempt may be checked.
    next: Time,
}

impl Failures {
    /// The time slot of one more attempt, if `free` failures cost nothing.
    fn slot(&mut self, free: u32, now: Time) -> Time {
        let at = self.next.max(now);
        self.next = after(at, self.distance(free));
        at
    }

    fn distance(&self, free: u32) -> Duration {
        match self.count.checked_sub(free.saturating_add(1)) {
            Some(beyond) => FIRST.saturating_mul(1u32.checked_shl(beyond).unwrap_or(u32::MAX)).min(LONGEST),
            None => Duration::ZERO,
        }
    }

    fn is_remembered(&self, now: Time) -> bool {
        now.since(self.last) <= MEMORY
    }
}

/// All times here are far from the end of `Time` (584 years).
fn after(time: Time, by: Duration) -> Time {
    Time::from_nanos(time.as_nanos().saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

impl Delays {
    /// How long an attempt to log on as `user` from `source` has to wait.
    pub fn enter(&self, user: &str, source: Source, now: Time) -> Result<Duration, Crowded> {
        let pair = (self.key(user), source);
        let tables = &mut *self.lock();
        if tables.known.contains_key(&pair) {
            return Ok(Duration::ZERO);
        }
        let attacked = tables.is_attacked(pair.0, now);
        let mut at = if attacked { after(now, UNDER_ATTACK) } else { now };
        let free = if attacked { 0 } else { FREE };
        // Both queues or neither: a refused attempt takes no place.
        let mut of_source = tables.sources.get(&source).copied().filter(|of| of.is_remembered(now));
        let mut of_pair = tables.pairs.get(&pair).copied().filter(|of| of.is_remembered(now));
        for (failures, free) in [(&mut of_source, SOURCE_FREE), (&mut of_pair, free)] {
            if let Some(failures) = failures {
                at = at.max(failures.slot(free, now));
            }
        }
        let wait = at.since(now);
        if wait > PATIENCE {
            return Err(Crowded);
        }
        if let Some(failures) = of_source {
            tables.sources.insert(source, failures);
        }
        if let Some(failures) = of_pair {
            tables.pairs.insert(pair, failures);
        }
        Ok(wait)
    }

    /// The password was wrong, or the user does not exist.
    pub fn failed(&self, user: &str, source: Source, now: Time) {
        let pair = (self.key(user), source);
        let tables = &mut *self.lock();
        tables.known.remove(&pair);
        count(&mut tables.users, pair.0, USER_FREE, now);
        count(&mut tables.sources, source, SOURCE_FREE, now);
        let free = if tables.is_attacked(pair.0, now) { 0 } else { FREE };
        count(&mut tables.pairs, pair, free, now);
    }

    /// The password was right: this user's failures from this source are forgiven. The source's failures for other
    /// users are not, or one valid password would buy guesses at all others; nor are other sources' failures for this
    /// user.
    pub fn succeeded(&self, user: &str, source: Source, now: Time) {
        let pair = (self.key(user), source);
        let tables = &mut *self.lock();
        tables.pairs.remove(&pair);
        make_room(&mut tables.known, now, |last| *last);
        tables.known.insert(pair, now);
    }

    fn key(&self, user: &str) -> UserKey {
        self.names.hash_one(keys::upper(user))
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Every update leaves the tables consistent, so a poisoned lock is harmless.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn is_attacked(&self, user: UserKey, now: Time) -> bool {
        self.users
            .get(&user)
            .is_some_and(|failures| failures.count > USER_FREE && failures.is_remembered(now))
    }
}

fn count<K: Clone + Eq + Hash>(table: &mut HashMap<K, Failures>, key: K, free: u32, now: Time) {
    if !table.contains_key(&key) {
        make_room(table, now, |failures| failures.last);
    }
    let failures = table.entry(key).or_insert(Failures { count: 0, last: now, next: now });
    if !failures.is_remembered(now) {
        failures.count = 0;
    }
    failures.count = failures.count.saturating_add(1);
    failures.last = now;
    failures.next = failures.next.max(after(now, failures.distance(free)));
}

/// Once the table is full, evicts expired entries, and then the oldest quarter of the remainder.
fn make_room<K: Clone + Eq + Hash, V>(table: &mut HashMap<K, V>, now: Time, last: impl Fn(&V) -> Time) {
    if table.len() < MOST {
        return;
    }
    table.retain(|_, value| now.since(last(value)) <= MEMORY);
    if table.len() < MOST {
        return;
    }
    let mut times: Vec<Time> = table.values().map(&last).collect();
    let (_, cut, _) = times.select_nth_unstable(MOST / 4);
    let cut = *cut;
    table.retain(|_, value| last(value) > cut);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn from(n: u32) -> Source {
        Source::V4((0x0a00_0000 + n).into())
    }

    fn fail(delays: &Delays, times: u32, user: &str, source: Source) {
        (0..times).for_each(|_| delays.failed(user, source, at(1000)));
    }

    #[test]
    fn the_first_failures_are_free_then_each_costs_twice_as_much() {
        let delays = Delays::default();
        fail(&delays, FREE, "eve", from(1));
        assert_eq!(delays.enter("eve", from(1), at(1000)), Ok(Duration::ZERO));
        fail(&delays, 1, "Eve", from(1));
        assert_eq!(delays.enter("EVE", from(1), at(1000)), Ok(FIRST));
        assert_eq!(delays.enter("bob", from(1), at(1000)), Ok(Duration::ZERO), "another user there");
        assert_eq!(delays.enter("eve", from(2), at(1000)), Ok(Duration::ZERO), "the user elsewhere");
        fail(&delays, 9, "eve", from(1));
        assert_eq!(delays.enter("eve", from(1), at(1500)), Ok(Duration::ZERO), "rested");
        assert_eq!(delays.enter("eve", from(1), at(1500)), Ok(LONGEST));
    }

    #[test]
    fn a_source_that_tries_many_users_waits_for_each() {
        let delays = Delays::default();
        (0..=SOURCE_FREE).for_each(|n| delays.failed(&format!("user{n}"), from(1), at(1000)));
        assert_eq!(delays.enter("bob", from(1), at(1000)), Ok(FIRST));
        assert_eq!(delays.enter("bob", from(2), at(1000)), Ok(Duration::ZERO));
    }

    #[test]
    fn many_connections_at_once_try_no_faster_than_one() {
        let delays = Delays::default();
        fail(&delays, 30, "eve", from(1));
        let waits: Vec<_> = (0..10).map(|_| delays.enter("eve", from(1), at(1014))).collect();
        assert_eq!(waits[..2], [Ok(Duration::from_secs(1)), Ok(Duration::from_secs(16))]);
        assert!(waits[2..].iter().all(|wait| *wait == Err(Crowded)));
        // Refused attempts have taken no place.
        assert_eq!(delays.enter("eve", from(1), at(1044)), Ok(UNDER_ATTACK));
    }

    /// Twelve addresses that tried wrong passwords used to lock out every address.
    #[test]
    fn a_source_without_failures_is_never_refused() {
        let delays = Delays::default();
        for round in 0..100 {
            (0..5000).for_each(|n| delays.failed("alice", from(n), at(1000 + round)));
            // Waiting attempts do not delay each other either.
            for fresh in 0..50 {
                let source = from(1_000_000 + 50 * round as u32 + fresh);
                assert_eq!(delays.enter("alice", source, at(1000 + round)), Ok(UNDER_ATTACK));
            }
        }
    }

    #[test]
    fn guessing_from_many_sources_costs_a_source_for_each_guess() {
        let delays = Delays::default();
        // Each source spends its free guesses; then the user is under attack, and one failure is enough to wait.
        (0..10).for_each(|n| fail(&delays, 2, "alice", from(n)));
        let waits: Vec<_> = (0..10).map(|n| delays.enter("alice", from(n), at(1000))).collect();
        assert!(waits.iter().all(|wait| wait.is_ok_and(|wait| wait >= UNDER_ATTACK)), "{waits:?}");
        fail(&delays, 5, "alice", from(1));
        assert!(delays.enter("alice", from(1), at(1000)).unwrap_or(LONGEST) > Duration::from_secs(8));
    }

    #[test]
    fn who_has_been_here_before_does_not_wait_for_others() {
        let delays = Delays::default();
        delays.succeeded("alice", from(7), at(1));
        fail(&delays, 40, "alice", from(6));
        fail(&delays, 40, "bob", from(7));
        assert_eq!(delays.enter("alice", from(7), at(1000)), Ok(Duration::ZERO));
        assert_eq!(delays.enter("alice", from(8), at(1000)), Ok(UNDER_ATTACK));
        // Unless the failures are its own.
        delays.failed("alice", from(7), at(1000));
        assert!(delays.enter("alice", from(7), at(1000)).unwrap_or(LONGEST) > Duration::ZERO);
    }

    #[test]
    fn one_right_password_does_not_buy_guesses_at_others() {
        let delays = Delays::default();
        for _ in 0..20 {
            delays.failed("alice", from(1), at(1000));
            delays.succeeded("mallory", from(1), at(1000));
        }
        assert!(delays.enter("alice", from(1), at(1000)).unwrap_or(LONGEST) > Duration::from_secs(8));
    }

    #[test]
    fn failures_are_forgotten() {
        let delays = Delays::default();
        fail(&delays, 40, "eve", from(1));
        let later = at(1000) + MEMORY + FIRST;
        assert_eq!([(); 3].map(|()| delays.enter("eve", from(1), later)), [Ok(Duration::ZERO); 3]);
        delays.failed("eve", from(1), later);
        assert_eq!([(); 3].map(|()| delays.enter("eve", from(1), later)), [Ok(Duration::ZERO); 3]);
    }

    #[test]
    fn the_tables_are_bounded() {
        let delays = Delays::default();
        for n in 0..3 * MOST {
            delays.failed(&format!("user{n}"), from(n as u32), at(n as u64 / 100));
            delays.succeeded(&format!("good{n}"), from(n as u32), at(n as u64 / 100));
        }
        let newest = delays.key(&format!("user{}", 3 * MOST - 1));
        let tables = delays.lock();
        let lens = [tables.users.len(), tables.sources.len(), tables.pairs.len(), tables.known.len()];
        assert!(lens.iter().all(|len| *len <= MOST), "{lens:?}");
        assert!(tables.users.contains_key(&newest));
    }
}
