//! Remembers which hosts hold locks, in order to notify them after a restart.
//!
//! See X/Open XNFS chapter 11 and RFC 1813 6.1. With a state directory, the list survives restarts. `nsm` notifies
//! hosts and hears of their restarts; `nlm` has their locks.
//!
//! Hosts are remembered by address alone, because they are notified by address. The name that a caller claims would
//! let one address fill the table.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Source, Time, clock, rt};
use weft_wire::nlm::{Object, Status};

use super::durable::{Durable, Unusable};
use super::{Server, rpcbind};

/// Most hosts remembered. Beyond that, hosts without locks are forgotten.
const MAX_HOSTS: usize = 4096;
/// Most hosts of one source, because an IPv6 network has any number of addresses.
const MAX_HOSTS_OF_SOURCE: usize = 64;
/// A host without locks is forgotten after this time: not at once, because most hosts lock again soon, and every
/// change writes to the disk.
const IDLE: Duration = Duration::from_secs(300);

/// When a host was last known to hold locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// In the last run.
    Before,
    /// In this run, and at the last check.
    Holding,
    /// It has held no locks since then.
    Idle(Time),
}

/// The hosts that hold locks.
pub(super) struct Monitors {
    /// The state number: odd while we run, and larger in every run.
    pub state: u32,
    hosts: Mutex<HashMap<IpAddr, Seen>>,
    /// The hosts of the last run.
    pub before: Vec<IpAddr>,
}

impl Monitors {
    /// For a new run. Without a state directory no hosts are known, and the clock supplies the state number.
    pub fn new(durable: Option<&Durable>) -> Monitors {
        let seconds = clock::wall().as_secs();
        let by_clock = (seconds as u32) | 1;
        let (mut state, mut before) = (by_clock, Vec::new());
        if let Some(durable) = durable {
            match durable.next_run() {
                Ok(run) => (state, before) = (run.wrapping_mul(2) | 1, hosts(durable)),
                Err(e) => {
                    tracing::error!("clients of the last run cannot be told to reclaim their locks: {e}")
                }
            }
        }
        Monitors {
            state,
            hosts: Mutex::new(before.iter().map(|host| (*host, Seen::Before)).collect()),
            before,
        }
    }

    /// Whether some host may have locks to reclaim.
    pub fn any_before(&self) -> bool {
        !self.before.is_empty()
    }

    // A map's insert or remove leaves it usable even if it panicked.
    fn hosts(&self) -> MutexGuard<'_, HashMap<IpAddr, Seen>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hosts of the last run. Entries with names, written by an earlier version, are rewritten.
fn hosts(durable: &Durable) -> Vec<IpAddr> {
    let read = || {
        let keys = durable.hosts()?;
        let (old, _): (Vec<_>, Vec<_>) = keys.iter().partition(|key| !key.ends_with(&[0]));
        for addr in old.iter().filter_map(|key| from_key(key)) {
            durable.watch(&key(addr))?;
        }
        if !old.is_empty() {
            durable.unwatch(&old.iter().map(|key| key.to_vec()).collect::<Vec<_>>())?;
        }
        let addresses: BTreeSet<IpAddr> = keys.iter().filter_map(|key| from_key(key)).collect();
        Ok::<_, Unusable>(addresses.into_iter().collect())
    };
    read().unwrap_or_else(|e| {
        tracing::error!("clients of the last run cannot be told to reclaim their locks: {e}");
        Vec::new()
    })
}

/// The key in the journal: the address as text, and a zero byte.
fn key(addr: IpAddr) -> Vec<u8> {
    [addr.to_string().as_bytes(), &[0]].concat()
}

fn from_key(key: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(key.split(|b| *b == 0).next()?).ok()?.parse().ok()
}

/// Remembers a host before it is told that it has a lock. By then its lock is in the lock table.
pub(super) fn monitor(server: &Server, addr: IpAddr) -> Result<(), Status> {
    let addr = addr.to_canonical();
    let source = Source::of_ip(addr);
    let of_source = |host: &IpAddr| Source::of_ip(*host) == source;
    // Hosts of the last run may return to reclaim their locks until the grace period ends.
    let waits = server.states.grace.lasts(rt::now());
    let may_come = |host: &IpAddr| waits && server.monitors.before.contains(host);
    let mut hosts = server.monitors.hosts();
    if let Some(seen) = hosts.get_mut(&addr) {
        *seen = Seen::Holding;
        return Ok(());
    }
    let own = |hosts: &HashMap<IpAddr, Seen>| hosts.keys().filter(|host| of_source(host)).count();
    if own(&hosts) >= MAX_HOSTS_OF_SOURCE {
        forget(server, &mut hosts, |host, _| of_source(host) && !may_come(host));
    }
    if hosts.len() >= MAX_HOSTS {
        forget(server, &mut hosts, |host, _| !may_come(host));
    }
    if hosts.len() >= MAX_HOSTS || own(&hosts) >= MAX_HOSTS_OF_SOURCE {
        tracing::debug!(host = %addr, "limit reached: hosts that hold NLM locks");
        return Err(Status::DENIED_NOLOCKS);
    }
    if let Some(durable) = server.states.durable()
        && let Err(e) = durable.watch(&key(addr))
    {
        tracing::error!("refused a lock that would not survive a restart: {e}");
        return Err(Status::FAILED);
    }
    hosts.insert(addr, Seen::Holding);
    Ok(())
}

/// This host has restarted, so it has nothing to reclaim unless it holds locks now.
pub(super) fn forget_idle(server: &Server, addr: IpAddr) {
    let addr = addr.to_canonical();
    forget(server, &mut server.monitors.hosts(), |host, _| *host == addr);
}

/// Forgets hosts of the last run that did not reclaim their locks in the grace period, and hosts that have held no
/// locks for long: every remembered host is called after each restart, and the others wait for that. Call this
/// periodically.
pub(super) fn sweep(server: &Server, now: Time) {
    let waits = server.states.grace.lasts(now);
    let mut hosts = server.monitors.hosts();
    forget(server, &mut hosts, |_, seen| match seen {
        Seen::Before => !waits,
        Seen::Holding => false,
        Seen::Idle(since) => now.since(since) >= IDLE,
    });
    // A host that was forgotten and holds locks again is already in the lock table.
    let holding = server.locking.addresses();
    for (host, seen) in hosts.iter_mut() {
        match seen {
            _ if holding.contains(host) => *seen = Seen::Holding,
            Seen::Holding => *seen = Seen::Idle(now),
            Seen::Before | Seen::Idle(_) => {}
        }
    }
}

/// Forgets those of these hosts that hold no locks.
fn forget(server: &Server, hosts: &mut HashMap<IpAddr, Seen>, these: impl Fn(&IpAddr, Seen) -> bool) {
    let holding = server.locking.addresses();
    let idle = hosts.iter().filter(|(host, seen)| these(host, **seen) && !holding.contains(*host));
    let idle: HashSet<IpAddr> = idle.map(|(host, _)| *host).collect();
    if let Some(durable) = server.states.durable().filter(|_| !idle.is_empty())
        && let Err(e) = durable.unwatch(&idle.iter().map(|host| key(*host)).collect::<Vec<_>>())
    {
        return tracing::warn!("could not forget hosts that hold no locks: {e}");
    }
    hosts.retain(|host, _| !idle.contains(host));
}

/// The name by which this host knows the server: clients use the name in their mount command, usually an address.
pub(super) fn name_for(server: &Server, host: IpAddr) -> Option<Object> {
    let to = SocketAddr::new(host, 0);
    let facing = match server.services.get() {
        Some(services) => services.at(Some(to)),
        None => rpcbind::facing(to),
    };
    facing.map(|ip: IpAddr| Object(Bytes::from(ip.to_string())))
}
