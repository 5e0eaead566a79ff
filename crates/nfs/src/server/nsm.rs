//! NSM: who restarted. Clients tell us that they did, and we tell those that had locks that we did.
//!
//! Spec: X/Open XNFS chapter 11; RFC 1813 6.1. Owns: which hosts have locked something, over restarts where there is a state
//! directory. Does not: monitor hosts for others of this host (MON): that is its own status monitor's; decide whether who says
//! that a host has restarted is to be believed (`nlm`).
//!
//! Hosts are remembered by address alone, since that is how they are told. A name that a caller gives itself would let one
//! address fill the table.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weft_machine::{Source, Time, rt};
use weft_wire::nlm::{Object, Status};
use weft_wire::nsm::{Change, Name, StatAnswer, procedure};
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder, Xdr};

use super::context::{Context, Results, args};
use super::durable::{Durable, Unusable};
use super::nlm;
use super::{Server, rpcbind};

/// Hosts that are remembered. Beyond that those go that hold nothing.
const MAX_HOSTS: usize = 4096;
/// Of them those of one source: an IPv6 network has any number of addresses.
const MAX_HOSTS_OF_SOURCE: usize = 64;
/// Hosts that are told of our restart at a time: half of the calls that there may be. One that is switched off takes five seconds,
/// so a thousand of them keep nobody from hearing of it within a grace period.
const AT_ONCE: usize = 128;
/// How often a host is told that cannot be reached, and how long we wait before we go round again.
const ROUNDS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10);
/// A host that holds nothing is forgotten after this: not at once, as most lock something again soon, and each time is a write to
/// the disk.
const IDLE: Duration = Duration::from_secs(300);
/// STAT's answer: this host monitors nobody for the asker.
const STAT_FAIL: u32 = 1;

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
    state: u32,
    hosts: Mutex<HashMap<IpAddr, Seen>>,
    /// Those of the last run.
    before: Vec<IpAddr>,
}

impl Monitors {
    /// Of a run that begins. Without a state directory nobody is known, and the clock counts the runs.
    pub fn new(durable: Option<&Durable>) -> Monitors {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
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

/// Answers a call.
pub(super) async fn answer(
    cx: &Context<'_>,
    number: u32,
    mut d: Decoder,
    mut body: Encoder,
) -> Result<Results, Reply> {
    match number {
        procedure::NULL => {}
        procedure::STAT => {
            let Name { .. } = args(&mut d)?;
            StatAnswer { result: STAT_FAIL, state: cx.server.monitors.state }.emit(&mut body);
        }
        procedure::NOTIFY => {
            let Change { name, state } = args(&mut d)?;
            nlm::restarted(cx, &name, Some(state)).await?;
        }
        _ => return Err(Reply::ProcedureUnavailable),
    }
    Ok(Results::new(body, None))
}

/// Tells those who had locks in the last run that this one has begun.
pub(super) async fn notify(server: &Server) {
    let hosts = server.monitors.before.clone();
    let unreached =
        rounds(hosts, async |host| tell(server, host).await, async || rt::sleep(PAUSE).await).await;
    for host in unreached {
        tracing::warn!(%host, "its status monitor cannot be reached: what it had locked may be lost to it");
    }
}

/// Tells all, and then again those that could not be reached: one that is switched off keeps nobody waiting but for its turn. Gives
/// those that were not reached at all.
async fn rounds(
    mut hosts: Vec<IpAddr>,
    tell: impl AsyncFn(IpAddr) -> bool,
    pause: impl AsyncFn(),
) -> Vec<IpAddr> {
    for round in 0..ROUNDS {
        if hosts.is_empty() {
            break;
        }
        if round > 0 {
            pause().await;
        }
        let tell = &tell;
        let told = hosts.into_iter().map(async |host| (!tell(host).await).then_some(host));
        hosts = stream::iter(told).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
    }
    hosts
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

/// Whether it was told, or cannot be.
async fn tell(server: &Server, host: IpAddr) -> bool {
    let Some(name) = name_for(server, host) else { return true };
    let change = Change { name, state: server.monitors.state };
    let told = nlm::notify(&nlm::way(server, host), &change).await;
    match &told {
        Ok(()) => tracing::debug!(%host, "was told to take its locks again"),
        Err(e) => tracing::debug!(%host, "was not told to take its locks again: {e}"),
    }
    told.is_ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn hosts_that_are_switched_off_are_told_again_when_all_others_were_told() {
        let hosts: Vec<IpAddr> = (1..=200).map(|n| Ipv4Addr::new(10, 0, 0, n).into()).collect();
        let (live, late) = (hosts[199], hosts[0]);
        let said = RefCell::new(Vec::new());
        let pauses = RefCell::new(Vec::new());
        let tell = async |host| {
            said.borrow_mut().push(host);
            let again = said.borrow().iter().filter(|told| **told == host).count();
            host == live || (host == late && again == 2)
        };
        let pause = async || pauses.borrow_mut().push(said.borrow().len());
        let unreached = rt::block_on(rounds(hosts.clone(), tell, pause)).unwrap();
        assert_eq!(*pauses.borrow(), [200, 200 + 199], "all once, then those that did not hear it");
        assert_eq!(said.borrow()[..200], hosts);
        assert_eq!((said.borrow().len(), unreached.len()), (200 + 199 + 198, 198));
        assert!(!unreached.contains(&live) && !unreached.contains(&late));
    }
}
