//! Multicast sockets of one interface. Other programs may share their ports.
//!
//! A socket is bound to the group's address, so it receives no unicast. Routers do not forward packets to that address, so
//! only hosts on the link reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use weft_wire::wsd;

use crate::mdns::{self, Family};

/// A protocol that uses multicast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Multicast {
    /// Multicast DNS.
    Mdns,
    /// WS-Discovery.
    WsDiscovery,
}

impl Multicast {
    /// The address of everybody (RFC 6762 3, WS-Discovery 2.4).
    pub fn group(self, family: Family, index: u32) -> SocketAddr {
        let v6 = |last| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last);
        let (v4, v6, port) = match self {
            Multicast::Mdns => (Ipv4Addr::new(224, 0, 0, 251), v6(0xfb), mdns::PORT),
            Multicast::WsDiscovery => (Ipv4Addr::new(239, 255, 255, 250), v6(0xc), wsd::UDP_PORT),
        };
        match family {
            Family::V4 => SocketAddrV4::new(v4, port).into(),
            Family::V6 => SocketAddrV6::new(v6, port, 0, index).into(),
        }
    }

    /// The number of hops of its packets: mDNS has 255 (RFC 6762 11), WS-Discovery does not leave the link.
    fn hops(self) -> u32 {
        match self {
            Multicast::Mdns => 255,
            Multicast::WsDiscovery => 1,
        }
    }

    /// Longest packet that is read.
    pub fn max_received(self) -> usize {
        match self {
            Multicast::Mdns => mdns::MAX_RECEIVED,
            Multicast::WsDiscovery => wsd::MAX_MESSAGE,
        }
    }
}

/// A socket for the interface with this number, where this host has the address `own`.
pub fn open(what: Multicast, index: u32, own: IpAddr) -> io::Result<UdpSocket> {
    let family = Family::of(own);
    let (domain, group) = match family {
        Family::V4 => (Domain::IPV4, what.group(family, index)),
        Family::V6 => (Domain::IPV6, what.group(family, index)),
    };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    match (group.ip(), own) {
        (IpAddr::V4(ip), IpAddr::V4(own)) => {
            // Otherwise packets of other interfaces would arrive, too, if any program of this host has joined the group there.
            socket.set_multicast_all_v4(false)?;
            socket.bind(&group.into())?;
            socket.join_multicast_v4_n(&ip, &InterfaceIndexOrAddress::Index(index))?;
            socket.set_multicast_if_v4(&own)?;
            socket.set_multicast_ttl_v4(what.hops())?;
            socket.set_multicast_loop_v4(true)?;
            socket.set_ttl_v4(what.hops())?;
        }
        (IpAddr::V6(ip), _) => {
            socket.set_only_v6(true)?;
            // The zone of the address binds it to the interface.
            socket.bind(&group.into())?;
            socket.join_multicast_v6(&ip, index)?;
            socket.set_multicast_if_v6(index)?;
            socket.set_multicast_hops_v6(what.hops())?;
            socket.set_multicast_loop_v6(true)?;
            socket.set_unicast_hops_v6(what.hops())?;
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => return Err(io::ErrorKind::InvalidInput.into()),
    }
    UdpSocket::from_std(socket.into())
}
