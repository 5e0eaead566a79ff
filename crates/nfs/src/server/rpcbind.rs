//! rpcbind: tells clients the ports of this server's programs.
//!
//! See RFC 1833. The list is made once. Others cannot register (SET and UNSET return false), and calls are not
//! forwarded (CALLIT, BCAST and INDIRECT would lend the server's address to any caller).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use weft_machine::clock;
use weft_transport::Kind;
use weft_wire::mount::List;
use weft_wire::rpc::Reply;
use weft_wire::rpcbind::{self, Address, Binding, Mapping, Text, procedure, protocol, semantics};
use weft_wire::xdr::{Decoder, Encoder, Xdr};
use weft_wire::{mount, nfs3, nfs4, nlm, nsm};

use super::context::{Context, Results, args};

/// The transport of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// RPC over RDMA, which has netids of its own (RFC 8166).
    Rdma,
}

/// A program that listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its number.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Its transport.
    pub net: Net,
    /// Its port.
    pub port: u16,
}

/// The programs that a port is announced for. Every port answers all programs; this is what clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// NFS, and version 3's lock manager. Version 4 is not announced over UDP, which has no congestion control (RFC
    /// 7530 3.1).
    Nfs,
    /// MOUNT.
    Mount,
    /// rpcbind itself.
    Rpcbind,
}

impl Service {
    /// The services that a port of this role offers.
    pub fn of(role: Role, net: Net, port: u16) -> Vec<Service> {
        let versions: &[(u32, u32)] = match (role, net) {
            (Role::Nfs, Net::Udp) => {
                &[(nfs3::PROGRAM, nfs3::VERSION), (nlm::PROGRAM, nlm::VERSION), (nsm::PROGRAM, nsm::VERSION)]
            }
            (Role::Nfs, Net::Tcp) => &[
                (nfs3::PROGRAM, nfs3::VERSION),
                (nfs4::PROGRAM, nfs4::VERSION),
                (nlm::PROGRAM, nlm::VERSION),
                (nsm::PROGRAM, nsm::VERSION),
            ],
            (Role::Nfs, Net::Rdma) => &[(nfs3::PROGRAM, nfs3::VERSION), (nfs4::PROGRAM, nfs4::VERSION)],
            (Role::Mount, _) => &[(mount::PROGRAM, mount::VERSION)],
            (Role::Rpcbind, _) => &[
                (rpcbind::PROGRAM, rpcbind::PORTMAP),
                (rpcbind::PROGRAM, rpcbind::RPCBIND[0]),
                (rpcbind::PROGRAM, rpcbind::RPCBIND[1]),
            ],
        };
        versions.iter().map(|&(program, version)| Service { program, version, net, port }).collect()
    }

    /// "tcp", "udp6" and so on, for services at this address.
    pub fn netid(&self, at: IpAddr) -> &'static str {
        match (self.net, at) {
            (Net::Tcp, IpAddr::V4(_)) => "tcp",
            (Net::Tcp, IpAddr::V6(_)) => "tcp6",
            (Net::Udp, IpAddr::V4(_)) => "udp",
            (Net::Udp, IpAddr::V6(_)) => "udp6",
            (Net::Rdma, IpAddr::V4(_)) => "rdma",
            (Net::Rdma, IpAddr::V6(_)) => "rdma6",
        }
    }

    /// Its protocol number in rpcbind version 2, which supports TCP and UDP only.
    pub fn protocol(&self) -> Option<u32> {
        match self.net {
            Net::Tcp => Some(protocol::TCP),
            Net::Udp => Some(protocol::UDP),
            Net::Rdma => None,
        }
    }
}

/// The services and addresses that are announced.
#[derive(Debug)]
pub(super) struct Services {
    /// Addresses, each of which offers the whole list.
    pub listen: Vec<IpAddr>,
    pub list: Vec<Service>,
}

impl Services {
    /// The address that a caller is told, preferably of its own family. If all of this host's addresses are served,
    /// it is one that the caller can reach.
    pub fn at(&self, caller: Option<SocketAddr>) -> Option<IpAddr> {
        let same_family =
            |ip: &&IpAddr| caller.is_some_and(|peer| peer.ip().to_canonical().is_ipv4() == ip.is_ipv4());
        let at = self.listen.iter().find(same_family).or(self.listen.first())?;
        match caller {
            Some(caller) if at.is_unspecified() => facing(caller).or(Some(*at)),
            _ => Some(*at),
        }
    }

    /// All addresses that a caller is told: its own, and those of the other family.
    fn everywhere(&self, at: IpAddr) -> impl Iterator<Item = IpAddr> {
        let others = self.listen.iter().copied().filter(move |ip| *ip != at && !ip.is_unspecified());
        let others = others.filter(move |_| self.listen.contains(&at));
        std::iter::once(at).chain(others)
    }

    fn binding(&self, service: &Service, at: IpAddr) -> Binding {
        Binding {
            program: service.program,
            version: service.version,
            netid: service.netid(at).into(),
            address: rpcbind::universal(SocketAddr::new(at, service.port)).into(),
            owner: "weft".into(),
        }
    }

    fn mappings(&self) -> List<Mapping> {
        let mapping = |service: &Service| {
            let Service { program, version, port, .. } = *service;
            Some(Mapping { program, version, protocol: service.protocol()?, port: port.into() })
        };
        List(self.list.iter().filter_map(mapping).collect())
    }

    fn port(&self, asked: &Mapping) -> u32 {
        let of_program = |service: &&Service| {
            service.program == asked.program && service.protocol() == Some(asked.protocol)
        };
        let mut found = self.list.iter().filter(of_program).peekable();
        // RFC 1833 3.2: if the version is missing, any other version of the program is returned.
        let first = found.peek().copied();
        found
            .find(|service| service.version == asked.version)
            .or(first)
            .map_or(0, |service| service.port.into())
    }

    /// The service for GETADDR (any version will do) and GETVERSADDR (only the exact version).
    fn find(&self, asked: &Binding, net: Net, exactly: bool) -> Option<&Service> {
        let of_program = |service: &&Service| service.program == asked.program && service.net == net;
        let mut found = self.list.iter().filter(of_program).peekable();
        let first = if exactly { None } else { found.peek().copied() };
        found.find(|service| service.version == asked.version).or(first)
    }
}

/// The local address used to reach `peer`; nothing is sent.
pub(super) fn facing(peer: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The transport that a caller asks about: the one that it names, or the one that it uses.
fn net(cx: &Context<'_>, netid: &Text) -> Option<Net> {
    match &*netid.0 {
        b"tcp" | b"tcp6" => Some(Net::Tcp),
        b"udp" | b"udp6" => Some(Net::Udp),
        b"rdma" | b"rdma6" => Some(Net::Rdma),
        b"" if cx.kind == Kind::Datagram => Some(Net::Udp),
        b"" => Some(Net::Tcp),
        _ => None,
    }
}

/// Answers a call of any version.
pub(super) fn answer(
    cx: &Context<'_>,
    version: u32,
    number: u32,
    mut d: Decoder,
    mut body: Encoder,
) -> Result<Results, Reply> {
    let Some(services) = cx.server.services.get() else { return Err(Reply::ProgramUnavailable) };
    let old = version == rpcbind::PORTMAP;
    let Some(at) = services.at(cx.peer.addr()) else { return Err(Reply::ProgramUnavailable) };
    match number {
        procedure::NULL => {}
        procedure::SET | procedure::UNSET => {
            if old {
                args::<Mapping>(&mut d)?;
            } else {
                args::<Binding>(&mut d)?;
            }
            false.emit(&mut body);
        }
        procedure::GETPORT if old => services.port(&args(&mut d)?).emit(&mut body),
        procedure::GETPORT => find(cx, services, at, &args(&mut d)?, false).emit(&mut body),
        procedure::GETVERSADDR if version == 4 => {
            find(cx, services, at, &args(&mut d)?, true).emit(&mut body);
        }
        procedure::DUMP if old => services.mappings().emit(&mut body),
        procedure::DUMP => {
            let each = |at| services.list.iter().map(move |service| services.binding(service, at));
            List(services.everywhere(at).flat_map(each).collect()).emit(&mut body);
        }
        procedure::GETTIME if !old => {
            let now = clock::wall().as_secs();
            // RFC 1833 2.2.1: 32 bits of seconds, which wrap in 2106.
            (now as u32).emit(&mut body);
        }
        procedure::GETADDRLIST if version == 4 => {
            let asked: Binding = args(&mut d)?;
            let same =
                |s: &&Service| (s.program, s.version) == (asked.program, asked.version) && s.net != Net::Rdma;
            let each = |at| services.list.iter().filter(same).map(move |service| address(service, at));
            List(services.everywhere(at).flat_map(each).collect()).emit(&mut body);
        }
        _ => return Err(Reply::ProcedureUnavailable),
    }
    Ok(Results::new(body, None))
}

fn find(cx: &Context<'_>, services: &Services, at: IpAddr, asked: &Binding, exactly: bool) -> Text {
    let found = net(cx, &asked.netid).and_then(|net| services.find(asked, net, exactly));
    // A caller that names a family wants an address of it (RFC 1833 2.1); without one, the caller's own family is
    // used.
    let wanted = match &*asked.netid.0 {
        b"" => None,
        netid => Some(netid.ends_with(b"6")),
    };
    let of_family = |ip: &IpAddr| wanted == Some(ip.is_ipv6());
    let at = services.everywhere(at).find(of_family).unwrap_or(at);
    found.map_or("".into(), |service| services.binding(service, at).address)
}

fn address(service: &Service, at: IpAddr) -> Address {
    let udp = service.net == Net::Udp;
    Address {
        address: rpcbind::universal(SocketAddr::new(at, service.port)).into(),
        netid: service.netid(at).into(),
        semantics: if udp { semantics::CLTS } else { semantics::COTS_ORD },
        family: if at.is_ipv4() { "inet" } else { "inet6" }.into(),
        protocol: if udp { "udp" } else { "tcp" }.into(),
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::rt;

    use super::*;
    use crate::server::tests::{results_for, server};

    const PEER: &str = "192.0.2.1:700";

    #[test]
    fn ports_are_told_by_number_and_by_address_and_nobody_registers() {
        let server = server();
        let listen: IpAddr = [192, 0, 2, 9].into();
        let mut services = Service::of(Role::Nfs, Net::Tcp, 2049);
        services.extend(Service::of(Role::Mount, Net::Udp, 20048));
        server.announce(vec![listen], services);
        rt::block_on(async {
            let old = async |program, version, protocol| -> u32 {
                let asked = Mapping { program, version, protocol, port: 0 };
                results_for(&server, PEER, (rpcbind::PROGRAM, 2, procedure::GETPORT), &asked).await
            };
            assert_eq!(old(nfs3::PROGRAM, 3, protocol::TCP).await, 2049);
            assert_eq!(old(nfs3::PROGRAM, 3, protocol::UDP).await, 0);
            assert_eq!(old(nfs3::PROGRAM, 2, protocol::TCP).await, 2049, "another version is told, too");
            assert_eq!(old(mount::PROGRAM, 3, protocol::UDP).await, 20048);
            assert_eq!(old(1, 1, protocol::TCP).await, 0);
            let binding = |program, version, netid: &'static str| Binding {
                program,
                version,
                netid: netid.into(),
                address: "".into(),
                owner: "".into(),
            };
            let new = async |number, asked: &Binding| -> Text {
                results_for(&server, PEER, (rpcbind::PROGRAM, 4, number), asked).await
            };
            let at = |text: &'static str| Text::from(text);
            let getaddr = procedure::GETPORT;
            assert_eq!(new(getaddr, &binding(nfs4::PROGRAM, 4, "tcp")).await, at("192.0.2.9.8.1"));
            assert_eq!(new(getaddr, &binding(nfs4::PROGRAM, 9, "")).await, at("192.0.2.9.8.1"));
            assert_eq!(new(procedure::GETVERSADDR, &binding(nfs4::PROGRAM, 9, "")).await, at(""));
            assert_eq!(new(getaddr, &binding(nfs4::PROGRAM, 4, "carrier-pigeon")).await, at(""));
            for number in [procedure::SET, procedure::UNSET] {
                let asked = binding(nfs4::PROGRAM, 4, "tcp");
                let done: bool = results_for(&server, PEER, (rpcbind::PROGRAM, 3, number), &asked).await;
                assert!(!done);
            }
            let List(all) =
                results_for::<List<Mapping>>(&server, PEER, (rpcbind::PROGRAM, 2, procedure::DUMP), &())
                    .await;
            assert_eq!(all.len(), 5);
        })
        .unwrap();
    }

    #[test]
    fn a_server_on_both_loopback_addresses_is_told_by_both() {
        let server = server();
        let listen = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        server.announce(listen, Service::of(Role::Mount, Net::Tcp, 20048));
        let binding = |netid: &'static str| Binding {
            program: mount::PROGRAM,
            version: 3,
            netid: netid.into(),
            address: "".into(),
            owner: "".into(),
        };
        rt::block_on(async {
            let asks = async |peer, netid| -> Text {
                let number = (rpcbind::PROGRAM, 4, procedure::GETPORT);
                results_for(&server, peer, number, &binding(netid)).await
            };
            let (four, six) = (Text::from("127.0.0.1.78.80"), Text::from("::1.78.80"));
            assert_eq!(asks("127.0.0.1:700", "").await, four);
            assert_eq!(asks("[::1]:700", "").await, six);
            assert_eq!(asks("127.0.0.1:700", "tcp6").await, six);
            assert_eq!(asks("[::1]:700", "tcp").await, four);
            let number = (rpcbind::PROGRAM, 4, procedure::DUMP);
            let List(all) = results_for::<List<Binding>>(&server, "[::1]:700", number, &()).await;
            let netids: Vec<_> = all.iter().map(|binding| binding.netid.clone()).collect();
            assert_eq!(netids, [Text::from("tcp6"), Text::from("tcp")]);
            let number = (rpcbind::PROGRAM, 4, procedure::GETADDRLIST);
            let List(all) =
                results_for::<List<Address>>(&server, "127.0.0.1:700", number, &binding("tcp")).await;
            assert_eq!(all.iter().map(|one| one.address.clone()).collect::<Vec<_>>(), [four, six]);
        })
        .unwrap();
    }

    #[test]
    fn a_caller_of_every_address_is_told_one_that_it_can_reach() {
        assert_eq!(facing("127.0.0.1:9".parse().unwrap()), Some([127, 0, 0, 1].into()));
    }
}
