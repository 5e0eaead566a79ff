//! NSM: who restarted. Clients tell us that they did, and we tell those that had locks that we did.
//!
//! Spec: X/Open XNFS chapter 11; RFC 1813 6.1. Owns: which hosts have locked something, over restarts where there is a state
//! directory. Does not: monitor hosts for others of this host (MON): that is its own status monitor's.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use weft_machine::rt;
use weft_wire::nlm::{Object, Status};
use weft_wire::nsm::{Change, Name, StatAnswer, procedure};
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder, Xdr};

use super::dispatch::{Connection, Results, args};
use super::durable::Durable;
use super::nlm::{self, HostId};
use super::{Server, rpcbind};

/// Hosts that are remembered.
const MAX_HOSTS: usize = 4096;
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
    hosts: Mutex<HashSet<HostId>>,
    /// Those of the last run.
    before: Vec<HostId>,
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
        Monitors { state, hosts: Mutex::new(before.iter().cloned().collect()), before }
    }

    /// Whether somebody may have something to reclaim.
    pub fn any_before(&self) -> bool {
        !self.before.is_empty()
    }

    // A set's insert or remove leaves it usable even if it panicked.
    fn hosts(&self) -> MutexGuard<'_, HashSet<HostId>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hosts(durable: &Durable) -> Vec<HostId> {
    match durable.hosts() {
        Ok(names) => names.iter().filter_map(|name| from_key(name)).collect(),
        Err(e) => {
            tracing::error!("clients of the last run cannot be told to take their locks again: {e}");
            Vec::new()
        }
    }
}

/// As it is remembered: the address as text, a zero, the name.
fn key(host: &HostId) -> Vec<u8> {
    [host.addr.to_string().as_bytes(), &[0], &host.name].concat()
}

fn from_key(key: &[u8]) -> Option<HostId> {
    let mut parts = key.splitn(2, |b| *b == 0);
    let (addr, name) = (parts.next()?, parts.next()?);
    let addr = std::str::from_utf8(addr).ok()?.parse().ok()?;
    Some(HostId { addr, name: Bytes::copy_from_slice(name) })
}

/// Remembers a host before it is told that it has a lock.
pub(super) fn monitor(server: &Server, host: &HostId) -> Result<(), Status> {
    let mut hosts = server.monitors.hosts();
    if hosts.contains(host) {
        return Ok(());
    }
    if hosts.len() >= MAX_HOSTS {
        return Err(Status::DENIED_NOLOCKS);
    }
    if let Some(durable) = server.states.durable()
        && let Err(e) = durable.watch(&key(host))
    {
        tracing::error!("a lock was refused, which would not outlive a restart: {e}");
        return Err(Status::FAILED);
    }
    hosts.insert(host.clone());
    Ok(())
}

/// The host has nothing to take again.
pub(super) fn forget(server: &Server, host: &HostId) {
    if !server.monitors.hosts().remove(host) {
        return;
    }
    if let Some(durable) = server.states.durable()
        && let Err(e) = durable.unwatch(&key(host))
    {
        tracing::warn!("a host that restarted stays remembered: {e}");
    }
}

/// Answers a call.
pub(super) async fn answer(
    cx: &Connection<'_>,
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
            let Change { name, .. } = args(&mut d)?;
            // Who speaks for a host has its address.
            if let Some(addr) = cx.peer.ip() {
                let host = HostId { addr, name: name.0 };
                nlm::give_up(cx.server, &host).await;
            }
        }
        _ => return Err(Reply::ProcedureUnavailable),
    }
    Ok(Results::new(body, None))
}

/// Tells those who had locks in the last run that this one has begun.
pub(super) async fn notify(server: &Server) {
    let told = server.monitors.before.iter().map(|host| tell(server, host));
    stream::iter(told).buffer_unordered(AT_ONCE).for_each(|()| std::future::ready(())).await;
}

async fn tell(server: &Server, host: &HostId) {
    // Clients know a server by whatever name it was mounted by: an address of it, most of the time.
    let to = SocketAddr::new(host.addr, 0);
    let facing = match server.services.get() {
        Some(services) => services.at(Some(to)),
        None => rpcbind::facing(to),
    };
    let Some(name) = facing.map(|ip: IpAddr| Object(Bytes::from(ip.to_string()))) else { return };
    let change = Change { name, state: server.monitors.state };
    for attempt in 1..=ATTEMPTS {
        match nlm::notify(&nlm::way(server, host.addr), &change).await {
            Ok(()) => return tracing::debug!(host = %host.addr, "was told to take its locks again"),
            Err(e) => {
                tracing::debug!(host = %host.addr, attempt, "was not told to take its locks again: {e}")
            }
        }
        rt::sleep(PAUSE).await;
    }
    tracing::warn!(host = %host.addr, "its status monitor cannot be reached: what it had locked may be lost to it");
}
