//! Which hosts have locked something, and are told when we have restarted.
//!
//! Spec: X/Open XNFS chapter 11; RFC 1813 6.1. Owns: these hosts, over restarts where there is a state directory.
//! Does not: hear of those that restart, or call anybody (`nsm`); know what they hold (`nlm`).
//!
//! Hosts are remembered by address alone, since that is how they are told. A name that a caller gives itself would let one
//! address fill the table.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Source, Time, clock, rt};
use weft_wire::nlm::{Object, Status};

use super::durable::{Durable, Unusable};
use super::{Server, rpcbind};

/// Hosts that are remembered. Beyond that those go that hold nothing.
const MAX_HOSTS: usize = 4096;
/// Of them those of one source: an IPv6 network has any number of addresses.
const MAX_HOSTS_OF_SOURCE: usize = 64;
/// A host that holds nothing is forgotten after this: not at once, as most lock something again soon, and each time is a write to
/// the disk.
const IDLE: Duration = Duration::from_secs(300);

/// When a host was seen to hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// In the last run.
    Before,
    /// In this run; it held something still when that was looked at.
    Holding,
    /// It has held nothing since then.
    Idle(Time),
}

/// Which hosts have locked something.
pub(super) struct Monitors {
    /// Odd while we run, and larger with every run.
    pub state: u32,
    hosts: Mutex<HashMap<IpAddr, Seen>>,
    /// Those of the last run.
    pub before: Vec<IpAddr>,
}

impl Monitors {
    /// Of a run that begins. Without a state directory nobody is known, and the clock counts the runs.
    pub fn new(durable: Option<&Durable>) -> Monitors {
        let seconds = clock::wall().as_secs();
        let by_clock = (seconds as u32) | 1;
        let (mut state, mut before) = (by_clock, Vec::new());
        if let Some(durable) = durable {
            match durable.next_run() {
                Ok(run) => (state, before) = (run.wrapping_mul(2) | 1, hosts(durable)),
                Err(e) => {
                    tracing::error!("clients of the last run cannot be told to take their locks again: {e}")
                }
            }
        }
        Monitors {
            state,
            hosts: Mutex::new(before.iter().map(|host| (*host, Seen::Before)).collect()),
            before,
        }
    }

    /// Whether somebody may have something to reclaim.
    pub fn any_before(&self) -> bool {
        !self.before.is_empty()
    }

    // A map's insert or remove leaves it usable even if it panicked.
    fn hosts(&self) -> MutexGuard<'_, HashMap<IpAddr, Seen>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those of the last run. What an earlier version has written with names is written anew.
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
        tracing::error!("clients of the last run cannot be told to take their locks again: {e}");
        Vec::new()
    })
}

/// As it is remembered: the address as text, and a zero.
fn key(addr: IpAddr) -> Vec<u8> {
    [addr.to_string().as_bytes(), &[0]].concat()
}

fn from_key(key: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(key.split(|b| *b == 0).next()?).ok()?.parse().ok()
}

/// Remembers a host before it is told that it has a lock. It is in the table of those who hold something by then.
pub(super) fn monitor(server: &Server, addr: IpAddr) -> Result<(), Status> {
    let addr = addr.to_canonical();
    let source = Source::of_ip(addr);
    let of_source = |host: &IpAddr| Source::of_ip(*host) == source;
    // Those of the last run may come to take their locks again, as long as they may.
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
        tracing::debug!(host = %addr, "limit reached: hosts that hold locks of NLM");
        return Err(Status::DENIED_NOLOCKS);
    }
    if let Some(durable) = server.states.durable()
        && let Err(e) = durable.watch(&key(addr))
    {
        tracing::error!("a lock was refused, which would not outlive a restart: {e}");
        return Err(Status::FAILED);
    }
    hosts.insert(addr, Seen::Holding);
    Ok(())
}

/// This host has restarted: unless it holds something still, it has nothing to take again.
pub(super) fn forget_idle(server: &Server, addr: IpAddr) {
    let addr = addr.to_canonical();
    forget(server, &mut server.monitors.hosts(), |host, _| *host == addr);
}

/// Forgets those of the last run that had something to take again and did not, once they no longer may, and those that have held
/// nothing for long: whoever is remembered is called after each restart, and all wait for him. To be called from time to time.
pub(super) fn sweep(server: &Server, now: Time) {
    let waits = server.states.grace.lasts(now);
    let mut hosts = server.monitors.hosts();
    forget(server, &mut hosts, |_, seen| match seen {
        Seen::Before => !waits,
        Seen::Holding => false,
        Seen::Idle(since) => now.since(since) >= IDLE,
    });
    // Who was forgotten first holds something now, and is in the table of those already.
    let holding = server.locking.addresses();
    for (host, seen) in hosts.iter_mut() {
        match seen {
            _ if holding.contains(host) => *seen = Seen::Holding,
            Seen::Holding => *seen = Seen::Idle(now),
            Seen::Before | Seen::Idle(_) => {}
        }
    }
}

/// Forgets those of these hosts that hold nothing.
fn forget(server: &Server, hosts: &mut HashMap<IpAddr, Seen>, these: impl Fn(&IpAddr, Seen) -> bool) {
    let holding = server.locking.addresses();
    let idle = hosts.iter().filter(|(host, seen)| these(host, **seen) && !holding.contains(*host));
    let idle: HashSet<IpAddr> = idle.map(|(host, _)| *host).collect();
    if let Some(durable) = server.states.durable().filter(|_| !idle.is_empty())
        && let Err(e) = durable.unwatch(&idle.iter().map(|host| key(*host)).collect::<Vec<_>>())
    {
        return tracing::warn!("hosts that hold no locks stay remembered: {e}");
    }
    hosts.retain(|host, _| !idle.contains(host));
}

/// What this server is called by this host: clients know a server by whatever name it was mounted by, an address of it most of
/// the time.
pub(super) fn name_for(server: &Server, host: IpAddr) -> Option<Object> {
    let to = SocketAddr::new(host, 0);
    let facing = match server.services.get() {
        Some(services) => services.at(Some(to)),
        None => rpcbind::facing(to),
    };
    facing.map(|ip: IpAddr| Object(Bytes::from(ip.to_string())))
}
