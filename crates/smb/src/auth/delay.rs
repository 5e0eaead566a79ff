//! How long a log-on waits before its password is looked at, so that passwords are not guessed by trying.
//!
//! Spec: none; [MS-SMB2] leaves it to the server.
//! Owns: a count of failures per user name and per address, at most [`MOST`] of each, and forgets them after
//! [`MEMORY`]. Does not: lock anybody out, know whether a user exists, or sleep: the caller does.
//!
//! Attempts for one name, or from one address, are given times one after the other: many connections at once try no
//! more than one does. The wait comes before the password is looked at, so that hanging up early saves nothing. An
//! address from which the user has logged on before does not wait for the failures of others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_machine::Time;

use super::keys;

/// Entries of each kind; of more, those that failed longest ago are forgotten.
const MOST: usize = 4096;
/// Failures that cost nothing: people mistype.
const FREE: u32 = 4;
/// The wait after the first failure that does; doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// The longest distance between two attempts.
const LONGEST: Duration = Duration::from_secs(15);
/// The longest wait of one attempt; those behind are refused unseen. Shorter than clients, and a connection that has
/// not logged on, live.
const PATIENCE: Duration = Duration::from_secs(20);
/// After so long without a failure it is forgotten.
const MEMORY: Duration = Duration::from_secs(900);

/// Too many attempts are waiting already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

/// The failures of a server's clients.
#[derive(Default)]
pub struct Delays(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    users: HashMap<Arc<str>, Failures>,
    sources: HashMap<Source, Failures>,
    /// Who has logged on from where, and when last.
    known: HashMap<(Arc<str>, Source), Time>,
}

/// Where a connection comes from: an IPv4 address, the first half of an IPv6 one (which one host may change at will), or
/// whatever else the transport calls its peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Source {
    Ip(IpAddr),
    Other(Arc<str>),
}

impl Source {
    fn of(peer: &str) -> Source {
        let ip = peer.parse::<SocketAddr>().map(|addr| addr.ip()).or_else(|_| peer.parse());
        match ip.map(|ip| ip.to_canonical()) {
            Ok(IpAddr::V6(ip)) => Source::Ip(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
            Ok(ip) => Source::Ip(ip),
            Err(_) => Source::Other(peer.into()),
        }
    }
}

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Time,
    /// When the next attempt may be looked at.
    next: Time,
}

impl Failures {
    /// The time of one more attempt.
    fn slot(&mut self, now: Time) -> Time {
        if self.count <= FREE || now - self.last > MEMORY {
            return now;
        }
        let at = self.next.max(now);
        self.next = at + self.distance();
        at
    }

    fn distance(&self) -> Duration {
        FIRST.saturating_mul(1 << (self.count - FREE - 1).min(16)).min(LONGEST)
    }
}

impl Delays {
    /// How long an attempt to log on as `user` from `peer` has to wait.
    pub fn enter(&self, user: &str, peer: &str, now: Time) -> Result<Duration, Crowded> {
        let (user, source) = (Arc::from(keys::upper(user)), Source::of(peer));
        let tables = &mut *self.lock();
        let known = tables.known.contains_key(&(Arc::clone(&user), source.clone()));
        let mut at = now;
        let entries = [
            tables.users.get_mut(&user).filter(|_| !known),
            tables.sources.get_mut(&source).filter(|_| !known),
        ];
        for failures in entries.into_iter().flatten() {
            let before = *failures;
            at = at.max(failures.slot(now));
            if at - now > PATIENCE {
                *failures = before;
                return Err(Crowded);
            }
        }
        Ok(at - now)
    }

    /// It was the wrong password, or there is no such user.
    pub fn failed(&self, user: &str, peer: &str, now: Time) {
        let (user, source) = (Arc::from(keys::upper(user)), Source::of(peer));
        let tables = &mut *self.lock();
        tables.known.remove(&(Arc::clone(&user), source.clone()));
        count(&mut tables.users, user, now);
        count(&mut tables.sources, source, now);
    }

    /// It was the right one: this user's and this address's failures are forgiven.
    pub fn succeeded(&self, user: &str, peer: &str, now: Time) {
        let (user, source) = (Arc::from(keys::upper(user)), Source::of(peer));
        let tables = &mut *self.lock();
        tables.sources.remove(&source);
        tables.users.remove(&user);
        make_room(&mut tables.known, now, |last| *last);
        tables.known.insert((user, source), now);
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // Each change leaves the tables whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count<K: Clone + Eq + Hash>(table: &mut HashMap<K, Failures>, key: K, now: Time) {
    if !table.contains_key(&key) {
        make_room(table, now, |failures| failures.last);
    }
    let failures = table.entry(key).or_insert(Failures { count: 0, last: now, next: now });
    if now - failures.last > MEMORY {
        failures.count = 0;
    }
    failures.count = failures.count.saturating_add(1);
    failures.last = now;
    if failures.count == FREE + 1 {
        failures.next = now + failures.distance();
    }
}

/// Forgets what is old, and of what is left the oldest quarter, once the table is full.
fn make_room<K: Clone + Eq + Hash, V>(table: &mut HashMap<K, V>, now: Time, last: impl Fn(&V) -> Time) {
    if table.len() < MOST {
        return;
    }
    table.retain(|_, value| now - last(value) <= MEMORY);
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

    fn fail(delays: &Delays, times: u32, user: &str, peer: &str) {
        (0..times).for_each(|_| delays.failed(user, peer, at(1000)));
    }

    #[test]
    fn the_first_failures_are_free_then_each_costs_twice_as_much() {
        let delays = Delays::default();
        fail(&delays, FREE, "eve", "10.0.0.1:999");
        assert_eq!(delays.enter("eve", "10.0.0.1:998", at(1000)), Ok(Duration::ZERO));
        fail(&delays, 1, "Eve", "10.0.0.1:1");
        assert_eq!(delays.enter("EVE", "10.0.0.9:1", at(1000)), Ok(FIRST), "by name");
        assert_eq!(delays.enter("bob", "10.0.0.1:5", at(1000)), Ok(FIRST), "by address");
        assert_eq!(delays.enter("bob", "10.0.0.2:5", at(1000)), Ok(Duration::ZERO));
        fail(&delays, 20, "eve", "10.0.0.1:1");
        assert_eq!(delays.enter("eve", "10.0.0.3:1", at(1500)), Ok(Duration::ZERO), "rested");
        assert_eq!(delays.enter("eve", "10.0.0.3:1", at(1500)), Ok(LONGEST));
    }

    #[test]
    fn many_connections_at_once_try_no_faster_than_one() {
        let delays = Delays::default();
        fail(&delays, 30, "eve", "10.0.0.1:1");
        let waits: Vec<_> =
            (0..10).map(|n| delays.enter("eve", &format!("10.1.0.{n}:1"), at(1500))).collect();
        assert_eq!(waits[..2], [Ok(Duration::ZERO), Ok(LONGEST)]);
        assert!(waits[2..].iter().all(|wait| *wait == Err(Crowded)));
        // The refused ones have taken no place.
        assert_eq!(delays.enter("eve", "10.1.0.1:1", at(1530)), Ok(Duration::ZERO));
    }

    #[test]
    fn who_has_been_here_before_does_not_wait_for_others() {
        let delays = Delays::default();
        delays.succeeded("alice", "10.0.0.7:1", at(1));
        fail(&delays, 40, "alice", "10.6.6.6:1");
        assert_eq!(delays.enter("alice", "10.0.0.7:2", at(1000)), Ok(Duration::ZERO));
        assert!(delays.enter("alice", "10.0.0.8:2", at(1000)).unwrap() > Duration::ZERO);
        // Unless the failures are its own.
        delays.failed("alice", "10.0.0.7:2", at(1000));
        assert!(delays.enter("alice", "10.0.0.7:2", at(1000)).unwrap_or(LONGEST) > Duration::ZERO);
    }

    #[test]
    fn failures_are_forgotten() {
        let delays = Delays::default();
        fail(&delays, 40, "eve", "10.0.0.1:1");
        let later = at(1000) + MEMORY + FIRST;
        assert_eq!([(); 3].map(|()| delays.enter("eve", "10.0.0.1:1", later)), [Ok(Duration::ZERO); 3]);
        delays.failed("eve", "10.0.0.1:1", later);
        assert_eq!([(); 3].map(|()| delays.enter("eve", "10.0.0.1:1", later)), [Ok(Duration::ZERO); 3]);
    }

    #[test]
    fn addresses_of_one_ipv6_host_are_one() {
        assert_eq!(Source::of("[2001:db8::1]:5"), Source::of("[2001:db8::ffff]:6"));
        assert_ne!(Source::of("[2001:db8::1]:5"), Source::of("[2001:db8:0:1::1]:5"));
        assert_eq!(Source::of("[::ffff:10.0.0.1]:5"), Source::of("10.0.0.1:7"));
        assert_eq!(Source::of("pid 4 of this host"), Source::Other("pid 4 of this host".into()));
    }

    #[test]
    fn the_tables_are_bounded() {
        let delays = Delays::default();
        for n in 0..3 * MOST {
            let peer = format!("10.{}.{}.{}:1", n >> 16, n >> 8 & 255, n & 255);
            delays.failed(&format!("user{n}"), &peer, at(n as u64 / 100));
            delays.succeeded(&format!("good{n}"), &peer, at(n as u64 / 100));
        }
        let tables = delays.lock();
        assert!(tables.users.len() <= MOST && tables.sources.len() <= MOST && tables.known.len() <= MOST);
        assert!(tables.users.contains_key(format!("USER{}", 3 * MOST - 1).as_str()));
    }
}
