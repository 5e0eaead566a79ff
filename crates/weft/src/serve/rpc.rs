//! The ports of RPC programs: NFS, MOUNT and rpcbind, each over TCP, and optionally UDP with the same number. This
//! module owns the sockets until they serve; the RPC program is chosen later.

use std::net::SocketAddr;

use weft_machine::net::Tls;
use weft_machine::{Listener, Pool, rt};
use weft_nfs::server::{Net, Role, Service};
use weft_transport::datagram;

use super::error::{CannotListen, Choice};
use crate::addresses::{bind_each, port_of};
use crate::config::{Key, Plan};
use crate::listen::{self, Acceptor, Framing, quota};

/// One port.
pub(super) struct RpcPort {
    role: Role,
    /// One per address.
    bound: Vec<(Listener, Option<datagram::Port>)>,
}

impl RpcPort {
    /// Binds both; port 0 takes any that is free for both.
    pub(super) async fn bind(
        plan: &Plan,
        pool: &Pool,
        role: Role,
        (key, port): (Key, u16),
    ) -> Result<RpcPort, CannotListen> {
        let nfs_udp = plan.config().listeners.nfs_udp;
        let bind = async |addr: SocketAddr| {
            let tcp = Listener::bind(addr)?;
            let udp = nfs_udp.then(|| datagram::Port::bind(tcp.local_addr(), pool.clone()));
            Ok((tcp, udp.transpose()?))
        };
        let bound = bind_each(&plan.listen, port, bind, |(tcp, _)| port_of(tcp)).await;
        match bound {
            Ok(bound) => Ok(RpcPort { role, bound }),
            Err((addr, source)) => {
                let choice = Choice::port(&key, plan.config().sources.origin_of(&key));
                Err(match nfs_udp {
                    true => CannotListen::AtBoth { addr, choice, source },
                    false => CannotListen::At { addr, choice, source },
                })
            }
        }
    }

    /// Its number.
    pub(super) fn port(&self) -> u16 {
        self.bound.first().map_or(0, |(tcp, _)| port_of(tcp))
    }

    /// The services to register with rpcbind.
    pub(super) fn services(&self) -> impl Iterator<Item = Service> {
        let (role, port) = (self.role, self.port());
        let udp = self.bound.iter().any(|(_, udp)| udp.is_some()).then_some(Net::Udp);
        std::iter::once(Net::Tcp).chain(udp).flat_map(move |net| Service::of(role, net, port))
    }

    /// Accepts on it. `reached` are the addresses that get answers of any length over UDP.
    pub(super) fn serve(
        self,
        acceptor: &Acceptor,
        tls: Option<Tls>,
        reached: &datagram::Reached,
        serve: &listen::Serve,
    ) {
        let service = match self.role {
            Role::Nfs => quota::Service::Nfs,
            Role::Mount => quota::Service::Mount,
            Role::Rpcbind => quota::Service::Rpcbind,
        };
        for (tcp, udp) in self.bound {
            let framing = Framing::Record(tls.clone());
            rt::spawn(acceptor.clone().tcp(tcp, service, framing, serve.clone())).detach();
            if let Some(udp) = udp {
                let udp = udp.trusting(reached.clone());
                rt::spawn(acceptor.clone().udp(udp, serve.clone())).detach();
            }
        }
    }
}
