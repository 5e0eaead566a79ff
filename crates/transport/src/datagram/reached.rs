//! Addresses that are verified by a TCP connection, whose handshake needs an answer that arrived.
//!
//! UDP verifies no source address, and RPC has no cookie for that as QUIC does (RFC 9000 section 8): a sender that
//! forges an address directs the answers to it, and the answer to a READ is some 300 times as long as the call. So the
//! length of an answer by UDP depends on whether the address is in this table. The table is bounded; `datagram` applies
//! it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_machine::{Time, rt};

/// How long an address is remembered after its last connection has ended.
pub const REMEMBERED: Duration = Duration::from_secs(600);
/// Addresses remembered at a time. Beyond that, the addresses whose last connection ended longest ago are removed.
pub const MAX_REACHED: usize = 4096;

/// The table. Clones share it.
#[derive(Clone, Default, Debug)]
pub struct Reached(Arc<Mutex<HashMap<IpAddr, Seen>>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Open connections.
    connections: usize,
    /// When the last one has ended.
    ended: Time,
}

impl Seen {
    fn counts(&self, now: Time) -> bool {
        self.connections > 0 || now < self.ended + REMEMBERED
    }
}

impl Reached {
    /// Registers a connection from this address, which is verified until [`REMEMBERED`] after the guard is dropped.
    pub fn arrive(&self, ip: IpAddr) -> Presence {
        let ip = ip.to_canonical();
        let mut table = self.table();
        if !table.contains_key(&ip) && table.len() >= MAX_REACHED {
            let idle = table.iter().filter(|(_, seen)| seen.connections == 0);
            // An address with an open connection is never removed.
            let Some(oldest) = idle.min_by_key(|(_, seen)| seen.ended).map(|(ip, _)| *ip) else {
                return Presence(None);
            };
            table.remove(&oldest);
        }
        let seen = table.entry(ip).or_insert(Seen { connections: 0, ended: Time::ZERO });
        seen.connections = seen.connections.saturating_add(1);
        Presence(Some((self.clone(), ip)))
    }

    /// Whether this address is verified.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.table().get(&ip.to_canonical()).is_some_and(|seen| seen.counts(rt::now()))
    }

    // Each step leaves the table usable.
    fn table(&self) -> MutexGuard<'_, HashMap<IpAddr, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered open connection.
#[derive(Debug)]
pub struct Presence(Option<(Reached, IpAddr)>);

impl Drop for Presence {
    fn drop(&mut self) {
        let Some((reached, ip)) = self.0.take() else { return };
        if let Some(seen) = reached.table().get_mut(&ip) {
            seen.connections = seen.connections.saturating_sub(1);
            seen.ended = rt::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use weft_machine::sim::Sim;

    use super::*;

    fn ip(n: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    #[test]
    fn an_address_is_known_while_it_is_connected_and_for_a_while_after() {
        Sim::new(1).time_limit(4 * REMEMBERED).run(async {
            let reached = Reached::default();
            assert!(!reached.contains(ip(1)));
            let (one, two) = (reached.arrive(ip(1)), reached.arrive("::ffff:10.0.0.1".parse().unwrap()));
            drop(one);
            rt::sleep(2 * REMEMBERED).await;
            assert!(reached.contains(ip(1)) && !reached.contains(ip(2)));
            drop(two);
            rt::sleep(REMEMBERED - Duration::from_secs(1)).await;
            assert!(reached.contains("::ffff:10.0.0.1".parse().unwrap()));
            rt::sleep(Duration::from_secs(2)).await;
            assert!(!reached.contains(ip(1)));
        });
    }

    #[test]
    fn the_table_is_bounded_and_keeps_who_is_there() {
        let reached = Reached::default();
        let here = reached.arrive(ip(0));
        for n in 1..2 * MAX_REACHED as u32 {
            drop(reached.arrive(ip(n)));
            assert!(reached.contains(ip(n)) && reached.contains(ip(0)));
        }
        assert_eq!(reached.table().len(), MAX_REACHED);
        drop(here);
        let all: Vec<_> = (0..MAX_REACHED as u32).map(|n| reached.arrive(ip(n))).collect();
        // One more than the table can hold, while all of them stay.
        drop(reached.arrive(ip(u32::from(u16::MAX))));
        assert!(!reached.contains(ip(u32::from(u16::MAX))) && reached.contains(ip(1)));
        assert_eq!(reached.table().len(), MAX_REACHED);
        drop(all);
    }
}
