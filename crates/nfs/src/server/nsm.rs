//! NSM: who restarted. Clients tell us that they did, and we tell those that had locks that we did.
//!
//! Spec: X/Open XNFS chapter 11; RFC 1813 6.1. Owns: which hosts have locked something, over restarts where there is a state
//! directory. Does not: monitor hosts for others of this host (MON): that is its own status monitor's; decide whether who says
//! that a host has restarted is to be believed (`nlm`).
//!
//! Hosts are remembered by address alone, since that is how they are told. A name that a caller gives itself would let one
//! address fill the table.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weft_machine::{Source, rt};
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
/// Hosts that are told of our restart at a time.
const AT_ONCE: usize = 32;
/// How often a host is told that cannot be reached, and how long we wait in between: within a grace period.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10);
/// STAT's answer: this host monitors nobody for the asker.
const STAT_FAIL: u32 = 1;

/// Which hosts have locked something.
pub(super) struct Monitors {
    /// Odd while we run, and larger with every run.
    state: u32,
    hosts: Mutex<HashSet<IpAddr>>,
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
        Monitors { state, hosts: Mutex::new(before.iter().copied().collect()), before }
    }

    /// Whether somebody may have something to reclaim.
    pub fn any_before(&self) -> bool {
        !self.before.is_empty()
    }

    // A set's insert or remove leaves it usable even if it panicked.
    fn hosts(&self) -> MutexGuard<'_, HashSet<IpAddr>> {
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
    if hosts.contains(&addr) {
        return Ok(());
    }
    let own = |hosts: &HashSet<IpAddr>| hosts.iter().filter(|host| of_source(host)).count();
    if own(&hosts) >= MAX_HOSTS_OF_SOURCE {
        forget(server, &mut hosts, |host| of_source(host) && !may_come(host));
    }
    if hosts.len() >= MAX_HOSTS {
        forget(server, &mut hosts, |host| !may_come(host));
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
    hosts.insert(addr);
    Ok(())
}

/// This host has restarted: unless it holds something still, it has nothing to take again.
pub(super) fn forget_idle(server: &Server, addr: IpAddr) {
    let addr = addr.to_canonical();
    forget(server, &mut server.monitors.hosts(), |host| *host == addr);
}

/// Forgets those of these hosts that hold nothing.
fn forget(server: &Server, hosts: &mut HashSet<IpAddr>, these: impl Fn(&IpAddr) -> bool) {
    let holding = server.locking.addresses();
    let idle = |host: &&IpAddr| these(host) && !holding.contains(*host);
    let idle: Vec<IpAddr> = hosts.iter().filter(idle).copied().collect();
    if let Some(durable) = server.states.durable().filter(|_| !idle.is_empty())
        && let Err(e) = durable.unwatch(&idle.iter().map(|host| key(*host)).collect::<Vec<_>>())
    {
        return tracing::warn!("hosts that hold no locks stay remembered: {e}");
    }
    hosts.retain(|host| !idle.contains(host));
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
    let told = server.monitors.before.iter().map(|host| tell(server, *host));
    stream::iter(told).buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
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

async fn tell(server: &Server, host: IpAddr) {
    let Some(name) = name_for(server, host) else { return };
    let change = Change { name, state: server.monitors.state };
    for attempt in 1..=ATTEMPTS {
        match nlm::notify(&nlm::way(server, host), &change).await {
            Ok(()) => return tracing::debug!(%host, "was told to take its locks again"),
            Err(e) => {
                tracing::debug!(%host, attempt, "was not told to take its locks again: {e}")
            }
        }
        rt::sleep(PAUSE).await;
    }
    tracing::warn!(%host, "its status monitor cannot be reached: what it had locked may be lost to it");
}
