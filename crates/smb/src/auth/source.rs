//! Where a log-on comes from, as delays and the log count it.
//!
//! Spec: none. One IPv6 host may use every address of its /64 (RFC 4291 2.5.4), so the prefix is the source. Processes of this
//! host that come by shared memory are one source: a new process costs an attacker nothing.
//! Does not: ask the socket; the transport has named the peer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A source of log-ons. Small and of fixed size, so that tables of it are bounded in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// An IPv4 address, also one that is mapped into IPv6.
    V4(Ipv4Addr),
    /// The /64 prefix of an IPv6 address.
    V6(u64),
    /// Shared memory of this host.
    Local,
}

impl Source {
    /// The source of a peer by the name that its transport gives it: `10.0.0.1:5`, `[2001:db8::1]:5` or `shm:pid 4`.
    pub fn of(peer: &str) -> Source {
        let ip = peer.parse::<SocketAddr>().map(|addr| addr.ip()).or_else(|_| peer.parse());
        match ip.map(|ip: IpAddr| ip.to_canonical()) {
            Ok(IpAddr::V4(ip)) => Source::V4(ip),
            Ok(IpAddr::V6(ip)) => Source::V6((ip.to_bits() >> 64) as u64),
            Err(_) => Source::Local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_one_source() {
        assert_eq!(Source::of("[2001:db8::1]:5"), Source::of("[2001:db8::ffff]:6"));
        assert_ne!(Source::of("[2001:db8::1]:5"), Source::of("[2001:db8:0:1::1]:5"));
        assert_eq!(Source::of("[::ffff:10.0.0.1]:5"), Source::of("10.0.0.1:7"));
        assert_eq!(Source::of("shm:pid 4"), Source::of("shm:pid 5"));
    }
}
