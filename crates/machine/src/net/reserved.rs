//! Connects from reserved ports, which a host gives only to root: NFS servers take them as evidence that root of the
//! client host permits the call (exports(5), `secure`).
//!
//! It follows bindresvport(3), and nfs(5) on `resvport`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

use super::socket::{self, Unconnected};

/// The first and last reserved port to use: those of Linux's NFS client. Most lower ones belong to services.
const PORTS: (u16, u16) = (665, 1023);
const COUNT: u32 = PORTS.1 as u32 - PORTS.0 as u32 + 1;

/// The local port of an outgoing connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourcePort {
    /// Any port that the system chooses.
    #[default]
    Any,
    /// A reserved port if this process may use one and one is free; otherwise as [`SourcePort::Any`].
    Reserved,
}

/// All of them, starting at a random one, so that programs that start together do not try the same ones.
fn ports() -> impl Iterator<Item = u16> {
    let start = RandomState::new().build_hasher().finish() as u32 % COUNT;
    (0..COUNT).map(move |n| PORTS.0 + ((start + n) % COUNT) as u16)
}

/// Whether this process may use reserved ports: as root, with CAP_NET_BIND_SERVICE, or if the system reserves fewer
/// (`net.ipv4.ip_unprivileged_port_start`).
pub fn may_reserve() -> bool {
    let any: SocketAddr = (Ipv4Addr::UNSPECIFIED, 0).into();
    let tried = ports().next().zip(Unconnected::to(any, None).ok());
    // A port in use was not denied.
    tried.is_some_and(|(port, socket)| !is_denied(socket.bind((Ipv4Addr::UNSPECIFIED, port).into())))
}

fn is_denied(bound: io::Result<()>) -> bool {
    bound.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// Connects from a reserved port if possible.
pub(super) async fn connect(addr: SocketAddr, congestion: Option<&str>) -> io::Result<socket::Stream> {
    let any: IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    for port in ports() {
        let socket = Unconnected::to(addr, congestion)?;
        match socket.bind(SocketAddr::new(any, port)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return Unconnected::to(addr, congestion)?.connect(addr).await;
            }
            Err(e) => return Err(e),
        }
        match socket.connect(addr).await {
            // A connection between these two ends has just ended (TIME_WAIT), or still exists.
            Err(e) if is_taken(&e) => {}
            done => return done,
        }
    }
    tracing::warn!(
        "no reserved port ({} to {}) is free for a connection to {addr}: an NFS export that requires one will refuse it; ports of connections \
         that have ended are free again after a minute",
        PORTS.0,
        PORTS.1
    );
    Unconnected::to(addr, congestion)?.connect(addr).await
}

fn is_taken(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{CONNECT_LIMIT, Listener, Peer, Stream};
    use super::*;
    use crate::rt;

    #[test]
    fn every_reserved_port_is_tried_once() {
        let all: BTreeSet<u16> = ports().collect();
        assert_eq!(all.len(), ports().count());
        assert_eq!((all.first(), all.last()), (Some(&PORTS.0), Some(&PORTS.1)));
    }

    #[test]
    fn a_connection_comes_from_a_reserved_port_where_that_may_be() {
        let may = may_reserve();
        rt::block_on(async {
            for host in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
                let listener = match Listener::bind((host, 0).into()) {
                    Err(e) if host.is_ipv6() && is_taken(&e) => continue,
                    bound => bound.unwrap(),
                };
                let to = listener.local_addr();
                // More connections at a time than one port could carry.
                let mut held = Vec::new();
                for _ in 0..20 {
                    let connecting = Stream::connect_from(to, CONNECT_LIMIT, None, SourcePort::Reserved);
                    held.push(connecting.await.unwrap());
                    let Peer::Tcp(from) = listener.accept().await.unwrap().peer() else { panic!("TCP") };
                    let reserved = (PORTS.0..=PORTS.1).contains(&from.port());
                    assert_eq!(reserved, may, "{from}");
                }
                let plain = Stream::connect_from(to, CONNECT_LIMIT, None, SourcePort::Any);
                held.push(plain.await.unwrap());
                assert!(listener.accept().await.unwrap().peer().addr().unwrap().port() >= 1024);
            }
        })
        .unwrap();
    }
}
