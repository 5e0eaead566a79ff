//! Additional connections of an SMB session: opens them at once, and reopens lost ones.
//!
//! [MS-SMB2] 3.2.4.2.2 (alternate connections), 3.2.4.20.10 (the server's interfaces). A task maintains the session's
//! connections as long as the session is used. The session chooses a connection for each request; the parent module
//! makes the first one.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use weft_machine::{Pool, rt};
use weft_smb::client::{NetworkInterface, Session, Tree};
use weft_transport::{Channel, nbss, smbd};

use super::WHOLE_LIMIT;
use super::dial::{Dial, Medium};
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::url::Url;

/// How often to look for lost connections and new interfaces.
const INTERVAL: Duration = Duration::from_secs(5);
/// An address of the server that takes longer to answer is useless to a session that has others.
const PATIENCE: Duration = Duration::from_secs(3);
/// The maximum number of connections: more help nobody, and the server refuses 32.
const MOST: usize = 16;

/// How a connection that should stay open reaches the server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    medium: Medium,
    addr: SocketAddr,
}

/// The parameters for reopening channels.
#[derive(Clone)]
pub(super) struct Keeper {
    url: Url,
    options: Connect,
    pool: Pool,
    congestion: Option<String>,
    /// The medium and address of the first connection.
    first: Route,
    /// TCP port of the server, and the port of `first.medium`.
    rdma_port: u16,
}

/// Opens a channel to a port of the server; returns the address that answered.
pub(super) async fn open(
    dial: &Dial<'_>,
    medium: Medium,
    port: u16,
) -> Result<(SocketAddr, Rc<dyn Channel>), Failure> {
    let pool = dial.pool;
    let Some(provider) = dial.provider(medium)? else {
        let (addr, stream) = dial.tcp(port).await?;
        return Ok((addr, nbss::Nbss::channel(stream, pool.clone(), nbss::Config::default())));
    };
    let connect =
        async |addr| smbd::connect(provider.as_ref(), addr, smbd::Config::default(), pool.clone()).await;
    let (addr, channel) = dial.rdma(&format!("SMB Direct by {}", medium.name()), port, connect).await?;
    Ok((addr, channel))
}

impl Keeper {
    pub(super) fn new(dial: &Dial<'_>, medium: Medium, addr: SocketAddr) -> Keeper {
        Keeper {
            url: dial.url.clone(),
            options: dial.options.clone(),
            pool: dial.pool.clone(),
            congestion: dial.congestion.map(str::to_owned),
            first: Route { medium, addr },
            rdma_port: addr.port(),
        }
    }

    /// A dial to one address of the server.
    fn dial(&self, ip: IpAddr) -> Dial<'_> {
        Dial {
            url: &self.url,
            options: &self.options,
            pool: &self.pool,
            congestion: self.congestion.as_deref(),
            ips: vec![ip],
            reached: Cell::new(None),
            until: rt::now() + WHOLE_LIMIT,
        }
    }

    /// Replaces a session whose connections are all lost, in the same share.
    pub(super) async fn again(&self, lost: &Session) -> Result<(Session, Tree), Failure> {
        let Route { medium, addr } = self.first;
        let first = self.log_on(lost, medium, addr).await;
        let Err(why) = first else { return first };
        if medium == Medium::Tcp || self.options.transport != Transport::Auto {
            return Err(why);
        }
        tracing::debug!("cannot reconnect over {}: {why}", medium.name());
        self.log_on(lost, Medium::Tcp, SocketAddr::new(addr.ip(), self.url.port)).await
    }

    async fn log_on(
        &self,
        lost: &Session,
        medium: Medium,
        addr: SocketAddr,
    ) -> Result<(Session, Tree), Failure> {
        let session = lost.again(open(&self.dial(addr.ip()), medium, addr.port()).await?.1).await?;
        let tree = session.tree(&self.url.share).await?;
        Ok((session, tree))
    }

    /// Maintains the session's connections until dropped.
    pub(super) async fn keep(self, session: Session) {
        loop {
            rt::sleep(INTERVAL).await;
            self.fill(&session).await;
        }
    }

    /// Opens the missing connections.
    pub(super) async fn fill(&self, session: &Session) {
        if !session.is_multichannel() {
            return;
        }
        let interfaces = match session.interfaces().await {
            Ok(interfaces) => interfaces,
            Err(e) => {
                tracing::debug!("the server's interfaces: {e}");
                Vec::new()
            }
        };
        let mut missing = self.routes(&interfaces);
        for carrier in session.carriers() {
            let is = |route: &Route| {
                route.medium.name() == carrier.medium
                    && (route.medium == Medium::Shm || route.addr.to_string() == carrier.peer)
            };
            if let Some(i) = missing.iter().position(is) {
                missing.remove(i);
            }
        }
        join_all(missing.into_iter().map(|route| self.add(session, route))).await;
    }

    async fn add(&self, session: &Session, route: Route) {
        let Route { medium, addr } = route;
        let adding = async {
            let (_, channel) = open(&self.dial(addr.ip()), medium, addr.port()).await?;
            Ok::<_, Failure>(session.add(channel).await?)
        };
        match rt::timeout(PATIENCE, adding).await {
            Ok(Ok(())) => tracing::info!("the session has another connection: {} to {addr}", medium.name()),
            Ok(Err(e)) => tracing::debug!("no connection by {} to {addr}: {e}", medium.name()),
            Err(_) => tracing::debug!("no connection by {} to {addr} in time", medium.name()),
        }
    }

    /// Every connection that should exist, including the first: as many as requested to the address that the user
    /// named, one to each further address of the server, and, with RDMA, one over TCP as a fallback.
    fn routes(&self, interfaces: &[NetworkInterface]) -> Vec<Route> {
        let Route { medium, addr } = self.first;
        let count = self.options.channels.unwrap_or(1).max(1) as usize;
        let mut routes = vec![self.first.clone(); count];
        // The two addresses of loopback are one link, not two.
        let same_reach = |interface: &&NetworkInterface| {
            interface.addr != addr.ip() && !interface.addr.is_loopback() && !addr.ip().is_loopback()
        };
        if medium != Medium::Shm {
            for interface in interfaces.iter().filter(same_reach) {
                let route = Route { medium, addr: SocketAddr::new(interface.addr, self.rdma_port) };
                if !routes.contains(&route) {
                    routes.push(route);
                }
            }
        }
        if medium != Medium::Tcp && self.options.transport == Transport::Auto {
            routes.push(Route { medium: Medium::Tcp, addr: SocketAddr::new(addr.ip(), self.url.port) });
        }
        routes.truncate(MOST);
        routes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(medium: Medium, transport: Transport, channels: Option<u32>) -> Keeper {
        let options = Connect { channels, ..Connect::by(transport) };
        let url = Url::parse("smb://alice@10.0.0.1:4450/data/x").unwrap().unwrap();
        let addr: SocketAddr =
            if medium == Medium::Tcp { "10.0.0.1:4450" } else { "10.0.0.1:5445" }.parse().unwrap();
        let (pool, ips) = (&Pool::new(1 << 20), vec![addr.ip()]);
        let (congestion, reached, until) = (None, Cell::new(None), rt::now() + WHOLE_LIMIT);
        let dial = Dial { url: &url, options: &options, pool, congestion, ips, reached, until };
        Keeper::new(&dial, medium, addr)
    }

    fn told(addr: &str) -> NetworkInterface {
        NetworkInterface { index: 2, rss: false, rdma: true, link_speed_bps: 1, addr: addr.parse().unwrap() }
    }

    fn routes(keeper: &Keeper, interfaces: &[NetworkInterface]) -> Vec<String> {
        keeper
            .routes(interfaces)
            .iter()
            .map(|route| format!("{} {}", route.medium.name(), route.addr))
            .collect()
    }

    #[test]
    fn one_connection_to_each_address_and_a_standby_beside_rdma() {
        let interfaces = [told("10.0.0.1"), told("10.0.1.1"), told("127.0.0.1")];
        let tcp = keeper(Medium::Tcp, Transport::Auto, None);
        assert_eq!(routes(&tcp, &interfaces), ["tcp 10.0.0.1:4450", "tcp 10.0.1.1:4450"]);
        let iwarp = keeper(Medium::Iwarp, Transport::Auto, Some(2));
        assert_eq!(
            routes(&iwarp, &interfaces),
            ["iwarp 10.0.0.1:5445", "iwarp 10.0.0.1:5445", "iwarp 10.0.1.1:5445", "tcp 10.0.0.1:4450"]
        );
        let asked = keeper(Medium::Iwarp, Transport::Iwarp, None);
        assert_eq!(routes(&asked, &[]), ["iwarp 10.0.0.1:5445"], "what was asked for and nothing else");
        let shm = keeper(Medium::Shm, Transport::Auto, None);
        assert_eq!(routes(&shm, &interfaces), ["shm 10.0.0.1:5445", "tcp 10.0.0.1:4450"]);
        assert_eq!(keeper(Medium::Tcp, Transport::Tcp, Some(1000)).routes(&[]).len(), MOST);
    }
}
