//! The source of connections, as limits count it.
//!
//! Every limit per address uses this one type, so that all limits agree on what an address is: an IPv6 host may use
//! every address of its /64 (RFC 4291 2.5.4), so the prefix is the source, and an IPv4 address is the same source in
//! either notation. All processes of this host that connect by a local socket or shared memory are one source, because
//! a new process costs an attacker nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Peer;

/// A source of connections. It is small and of fixed size, so that tables of it are bounded in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// An IPv4 address, also if it is mapped into IPv6.
    V4(Ipv4Addr),
    /// The /64 prefix of an IPv6 address.
    V6(u64),
    /// This host, without a network.
    Local,
}

impl Source {
    /// The source of a peer.
    pub fn of(peer: Peer) -> Source {
        peer.ip().map_or(Source::Local, Source::of_ip)
    }

    /// The source of connections from this address; also used for the server's own connections to it.
    pub fn of_ip(ip: IpAddr) -> Source {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Source::V4(ip),
            IpAddr::V6(ip) => Source::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::V4(ip) => ip.fmt(f),
            Source::V6(prefix) => write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(*prefix) << 64)),
            Source::Local => f.write_str("local"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_one_source() {
        let of = |text: &str| {
            let addr = text.parse().unwrap();
            let source = Source::of(Peer::Tcp(addr));
            assert_eq!(source, Source::of(Peer::Rdma(addr)));
            assert_eq!(source, Source::of(Peer::Udp(addr)));
            source
        };
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff]:6"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
        assert_eq!(of("[::ffff:10.0.0.1]:5"), of("10.0.0.1:7"));
        assert_ne!(of("10.0.0.2:5"), of("10.0.0.1:5"));
        let local = |pid| Source::of(Peer::Local { uid: 0, pid });
        assert_eq!(local(Some(4)), local(None));
        let shown = ["10.0.0.1:7", "[2001:db8:0:1::7]:5"].map(|addr| of(addr).to_string());
        assert_eq!(shown, ["10.0.0.1", "2001:db8:0:1::/64"]);
        assert_eq!(local(Some(4)).to_string(), "local");
    }
}
