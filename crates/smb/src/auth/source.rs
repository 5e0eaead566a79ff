//! Where a log-on comes from, as delays and the log count it.
//!
//! Spec: none. One IPv6 host may use every address of its /64 (RFC 4291 2.5.4), so the prefix is the source. Processes of this
//! host that come by shared memory are one source: a new process costs an attacker nothing.
//! Does not: ask the socket; the transport has named the peer.

use std::net::{IpAddr, Ipv4Addr};

use weft_transport::Peer;

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
    /// The source of a peer.
    pub fn of(peer: Peer) -> Source {
        match peer.ip() {
            Some(IpAddr::V4(ip)) => Source::V4(ip),
            Some(IpAddr::V6(ip)) => Source::V6((ip.to_bits() >> 64) as u64),
            None => Source::Local,
        }
    }
}

/// Whether a peer is on this host: nobody is in between.
pub fn is_of_this_host(peer: Peer) -> bool {
    peer.ip().is_none_or(|ip| ip.is_loopback())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_one_source() {
        let of = |text: &str| Source::of(Peer::Tcp(text.parse().unwrap()));
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff]:6"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
        assert_eq!(of("[::ffff:10.0.0.1]:5"), of("10.0.0.1:7"));
        let local = |pid| Source::of(Peer::Local { uid: 0, pid });
        assert_eq!(local(4), local(5));
        for (peer, here) in [
            ("127.0.0.1:5", true),
            ("[::1]:5", true),
            ("[::ffff:127.1.2.3]:5", true),
            ("10.0.0.1:5", false),
            ("[fe80::1%2]:5", false),
            ("[2001:db8::1]:5", false),
        ] {
            let addr = peer.parse().unwrap();
            assert_eq!([Peer::Tcp(addr), Peer::Rdma(addr)].map(is_of_this_host), [here; 2], "{peer}");
        }
        assert!(is_of_this_host(Peer::Local { uid: 0, pid: 4 }));
    }
}
