//! Limits the connections that the server makes to clients.
//!
//! A few bytes from a client make the server call it (an NLM call that wants its answer as a call, SETCLIENTID of
//! minor version 0). The client needs no rights for that, and may leave such a connection unanswered. So each
//! connection takes a permit, of which each address has a few and all addresses together a bounded number.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_machine::{Source, rt};

/// Connections for NLM and NSM calls, each a few seconds long: in total, and per host.
const MAX_CALLS: (usize, usize) = (256, 16);
/// Connections for asking clients' status monitors about a restart, which anybody's datagram can trigger.
const MAX_QUESTIONS: (usize, usize) = (64, 1);
/// Connections for the back channels of NFSv4.0, each as long as its client lives.
const MAX_BACK_CHANNELS: (usize, usize) = (1024, 64);
/// How often a waiting caller checks for a free permit.
const PAUSE: Duration = Duration::from_millis(50);

/// The permits for connections. Cloning shares them.
#[derive(Clone)]
pub(super) struct Outgoing(Arc<Counts>);

struct Counts {
    of_all: usize,
    of_host: usize,
    /// The hosts that occupy permits.
    hosts: Mutex<HashMap<Source, usize>>,
}

/// The permit of one connection, given back on drop.
#[must_use = "a connection keeps its permit as long as it lasts"]
pub(super) struct ConnectionPermit {
    counts: Arc<Counts>,
    host: Source,
}

impl Counts {
    // Every section leaves the map consistent.
    fn hosts(&self) -> MutexGuard<'_, HashMap<Source, usize>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing {
    /// For calls of NLM and NSM.
    pub fn calls() -> Outgoing {
        Outgoing::new(MAX_CALLS)
    }

    /// For questions to status monitors.
    pub fn questions() -> Outgoing {
        Outgoing::new(MAX_QUESTIONS)
    }

    /// For back channels.
    pub fn back_channels() -> Outgoing {
        Outgoing::new(MAX_BACK_CHANNELS)
    }

    fn new((of_all, of_host): (usize, usize)) -> Outgoing {
        Outgoing(Arc::new(Counts { of_all, of_host, hosts: Mutex::default() }))
    }

    /// Takes a permit for a connection to `host`, if one is free.
    pub fn enter(&self, host: IpAddr) -> Option<ConnectionPermit> {
        let host = Source::of_ip(host);
        let mut hosts = self.0.hosts();
        let own = hosts.get(&host).copied().unwrap_or(0);
        if own >= self.0.of_host || hosts.values().sum::<usize>() >= self.0.of_all {
            return None;
        }
        hosts.insert(host, own.saturating_add(1));
        Some(ConnectionPermit { counts: self.0.clone(), host })
    }

    /// Waits for a permit, at most this long.
    pub async fn enter_within(&self, host: IpAddr, patience: Duration) -> Option<ConnectionPermit> {
        let until = rt::now() + patience;
        loop {
            match self.enter(host) {
                None if rt::now() < until => rt::sleep(PAUSE).await,
                permit => return permit,
            }
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.hosts().values().sum()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut hosts = self.counts.hosts();
        match hosts.get_mut(&self.host) {
            Some(own) if *own > 1 => *own = own.saturating_sub(1),
            _ => drop(hosts.remove(&self.host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_some_places_and_leaves_others_theirs() {
        let outgoing = Outgoing::new((5, 3));
        let host = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut held: Vec<_> = (0..9).filter_map(|_| outgoing.enter(host(1))).collect();
        assert_eq!(held.len(), 3);
        assert!(outgoing.enter("::ffff:192.0.2.1".parse().unwrap()).is_none(), "it is the same host");
        held.extend((0..9).filter_map(|_| outgoing.enter(host(2))));
        assert_eq!((held.len(), outgoing.len()), (5, 5));
        assert!(outgoing.enter(host(3)).is_none());
        held.truncate(4);
        assert!(outgoing.enter(host(3)).is_some());
        held.clear();
        assert!(outgoing.0.hosts().is_empty(), "nothing is kept of hosts that are not called");
    }

    #[test]
    fn an_ipv6_host_does_not_become_many_by_choosing_addresses() {
        let outgoing = Outgoing::new((5, 3));
        let address = |net: u16, n: u16| IpAddr::from([0x2001, 0xdb8, 0, net, 0, 0, 0, n]);
        let held: Vec<_> = (0..9).filter_map(|n| outgoing.enter(address(1, n))).collect();
        assert_eq!(held.len(), 3);
        assert!(outgoing.enter(address(2, 1)).is_some(), "another network has its own permits");
    }
}
