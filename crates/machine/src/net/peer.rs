//! The other end of a connection.
//!
//! The address is the one that accept(2), connect(2) or the RDMA connection manager reported when the connection was
//! made; the socket is never queried later. A socket that its peer has reset no longer has an address (getpeername(2):
//! ENOTCONN), and rules about addresses must not depend on how fast a peer resets.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use super::credentials::PeerCredentials;

/// The other end of a connection, by how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// By TCP.
    Tcp(SocketAddr),
    /// By UDP: anybody can forge the address, until an answer is known to have arrived there.
    Udp(SocketAddr),
    /// By RDMA over a network.
    Rdma(SocketAddr),
    /// A process of this host, as reported by the kernel (SO_PEERCRED).
    Local {
        /// Its effective user when it connected.
        uid: u32,
        /// Its process id, for logs; none if it is in a PID namespace that this process does not see.
        pid: Option<u32>,
    },
}

impl Peer {
    /// The process at the other end of a Unix socket.
    ///
    /// # Errors
    /// The socket is not connected.
    pub fn of_unix(socket: impl AsFd) -> io::Result<Peer> {
        let PeerCredentials { uid, pid, .. } = PeerCredentials::of(socket)?;
        Ok(Peer::Local { uid, pid })
    }

    /// The same peer, if its connection carries RDMA (iWARP).
    #[must_use]
    pub fn by_rdma(self) -> Peer {
        match self {
            Peer::Tcp(addr) | Peer::Udp(addr) | Peer::Rdma(addr) => Peer::Rdma(addr),
            local @ Peer::Local { .. } => local,
        }
    }

    /// Its address and port, if it is reached over a network.
    pub fn addr(&self) -> Option<SocketAddr> {
        match *self {
            Peer::Tcp(addr) | Peer::Udp(addr) | Peer::Rdma(addr) => Some(addr),
            Peer::Local { .. } => None,
        }
    }

    /// Its address without the port, if it is reached over a network; an IPv4 address as such, also if it was mapped
    /// into IPv6.
    pub fn ip(&self) -> Option<IpAddr> {
        self.addr().map(|addr| addr.ip().to_canonical())
    }

    /// Whether it is on this host, so that nobody is in between.
    pub fn is_of_this_host(&self) -> bool {
        self.ip().is_none_or(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(addr) | Peer::Udp(addr) | Peer::Rdma(addr) => addr.fmt(f),
            Peer::Local { uid, pid: Some(pid) } => write!(f, "local uid {uid} pid {pid}"),
            Peer::Local { uid, pid: None } => write!(f, "local uid {uid} of another PID namespace"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_local_processes_are_of_this_host() {
        for (peer, here) in [
            ("127.0.0.1:5", true),
            ("[::1]:5", true),
            ("[::ffff:127.1.2.3]:5", true),
            ("10.0.0.1:5", false),
            ("[fe80::1%2]:5", false),
            ("[2001:db8::1]:5", false),
        ] {
            let addr = peer.parse().unwrap();
            let peers = [Peer::Tcp(addr), Peer::Rdma(addr)];
            assert_eq!(peers.map(|peer| peer.is_of_this_host()), [here; 2], "{peer}");
        }
        assert!(Peer::Local { uid: 0, pid: Some(4) }.is_of_this_host());
    }
}
