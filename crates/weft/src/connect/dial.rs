//! Reaches a port of a server at any of its addresses, over TCP or RDMA, and orders the transports to try.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weft_machine::net::{CONNECT_LIMIT, SourcePort};
use weft_machine::{Pool, Stream, Time};
use weft_rdma::{Provider, rnic};

use super::reach;
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::providers;
use crate::url::{Scheme, Url};

/// Time limit for setting up RDMA with one address, including the protocol's negotiation. A provider's own set-up
/// limit is the same, and its error is more precise.
const RDMA_LIMIT: Duration = weft_rdma::SETUP_LIMIT;
/// A wait for a connection exceeds the waits for its addresses by this much, because their errors are more precise.
const CONNECT_SLACK: Duration = Duration::from_millis(500);

/// The chosen transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Tcp,
    Iwarp,
    Shm,
    Rnic,
}

impl Medium {
    /// Its name in options and reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Medium::Tcp => "tcp",
            Medium::Iwarp => "iwarp",
            Medium::Shm => "shm",
            Medium::Rnic => "rnic",
        }
    }
}

/// Parameters of a connection attempt, for either protocol.
pub(super) struct Dial<'a> {
    pub url: &'a Url,
    pub options: &'a Connect,
    pub pool: &'a Pool,
    pub congestion: Option<&'a str>,
    /// Addresses of the URL's host, in the order in which they are tried.
    pub ips: Vec<IpAddr>,
    /// The address at which the server was reached; from then on it is tried first.
    pub reached: Cell<Option<IpAddr>>,
    /// When [`super::WHOLE_LIMIT`] ends.
    pub until: Time,
}

impl<'a> Dial<'a> {
    /// Resolves the host of `url`. Attempts end at `until`.
    pub(super) async fn new(
        url: &'a Url,
        options: &'a Connect,
        pool: &'a Pool,
        congestion: Option<&'a str>,
        until: Time,
    ) -> Result<Dial<'a>, Failure> {
        let ips = reach::resolve(&url.host).await?;
        Ok(Dial { url, options, pool, congestion, ips, reached: Cell::new(None), until })
    }

    /// The possible addresses of a port of the server.
    pub(super) fn addresses(&self, port: u16) -> Vec<SocketAddr> {
        let reached = self.reached.get();
        let others = self.ips.iter().copied().filter(|ip| Some(*ip) != reached);
        reached.into_iter().chain(others).map(|ip| SocketAddr::new(ip, port)).collect()
    }

    /// Total time limit for all addresses: each has its own limit and starts a little after the one before.
    fn of_all(&self, one: Duration) -> Duration {
        let others = u32::try_from(self.ips.len().saturating_sub(1)).unwrap_or(u32::MAX);
        one + reach::STAGGER.saturating_mul(others) + CONNECT_SLACK
    }

    /// Connects to a port of the server at any of its addresses.
    pub(super) async fn tcp(&self, port: u16) -> Result<(SocketAddr, Stream), Failure> {
        let host = &self.url.host;
        let connecting = async {
            let (congestion, source) = (self.congestion, source_port(self.url.scheme));
            let connect = async |addr| Stream::connect_from(addr, CONNECT_LIMIT, congestion, source).await;
            match reach::first(&self.addresses(port), connect).await {
                Ok(reached) => Ok(reached),
                Err(failed) => {
                    let refused = failed.iter().any(|(_, e)| e.kind() == io::ErrorKind::ConnectionRefused);
                    let advice = match refused {
                        true if self.url.scheme == Scheme::Nfs && port == self.url.port => {
                            "is the server running, and does it serve NFS at this port (weft serve: --nfs-port)?"
                        }
                        true => "is the server running, and is this its port?",
                        false => "is the address right, and does a firewall allow this port?",
                    };
                    Err(format!("{}; {advice}", reach::told(host, port, &failed)).into())
                }
            }
        };
        let limit = self.of_all(CONNECT_LIMIT);
        let whom = reach::authority(host, port);
        let (addr, stream) = reach::patiently_until(self.until, limit, whom, connecting).await?;
        self.reached.set(Some(addr.ip()));
        Ok((addr, stream))
    }

    /// Connects by RDMA to any of the server's addresses with `connect`.
    pub(super) async fn rdma<T, E: std::fmt::Display>(
        &self,
        what: &str,
        port: u16,
        connect: impl AsyncFn(SocketAddr) -> Result<T, E>,
    ) -> Result<(SocketAddr, T), Failure> {
        let connecting = async {
            let connected = reach::first(&self.addresses(port), connect).await;
            connected
                .map_err(|failed| format!("{what}: {}", reach::told(&self.url.host, port, &failed)).into())
        };
        let limit = self.of_all(RDMA_LIMIT);
        let (addr, connected) = reach::patiently_until(self.until, limit, what, connecting).await?;
        self.reached.set(Some(addr.ip()));
        Ok((addr, connected))
    }

    /// The provider of an RDMA medium; `None` for TCP.
    pub(super) fn provider(&self, medium: Medium) -> Result<Option<Box<dyn Provider>>, Failure> {
        Ok(match medium {
            Medium::Tcp => None,
            Medium::Iwarp => {
                let (source, crc) = (source_port(self.url.scheme), !self.options.no_crc);
                Some(providers::iwarp_from(source, self.pool, crc, self.congestion))
            }
            // Its sockets are named by port alone: a port of another host's server may be a local server's socket.
            Medium::Shm if !self.is_here() => {
                let host = &self.url.host;
                return Err(format!(
                    "shared memory reaches only servers on this host, and {host} is another host; omit --transport, or choose iwarp or tcp"
                )
                .into());
            }
            Medium::Shm => Some(providers::shm_provider(self.pool)),
            Medium::Rnic => Some(providers::rnic_provider(self.pool)),
        })
    }

    /// Whether the server's address belongs to this host.
    fn is_here(&self) -> bool {
        match self.reached.get() {
            Some(ip) => reach::is_local(ip),
            None => self.ips.iter().copied().any(reach::is_local),
        }
    }

    /// The transports to try in order, each with the reason to show if it works.
    pub(super) fn choices(&self, announced: impl Fn(Medium) -> bool) -> Vec<(Medium, &'static str)> {
        match self.options.transport {
            Transport::Tcp => vec![(Medium::Tcp, "TCP, as requested")],
            Transport::Iwarp => vec![(Medium::Iwarp, "iWARP, as requested")],
            Transport::Shm => vec![(Medium::Shm, "shared memory, as requested")],
            Transport::Rnic => vec![(Medium::Rnic, "an RDMA device, as requested")],
            Transport::Auto => {
                let mut choices = Vec::new();
                if announced(Medium::Shm) {
                    choices.push((Medium::Shm, "the server is on this host"));
                }
                if announced(Medium::Rnic) && rnic::devices().is_ok() {
                    choices.push((Medium::Rnic, "both sides have an RDMA device"));
                }
                if announced(Medium::Iwarp) {
                    choices.push((Medium::Iwarp, "the server announces RDMA"));
                }
                choices
                    .push((Medium::Tcp, "no RDMA: the server does not announce it, or it was not reachable"));
                choices
            }
        }
    }
}

/// NFS servers may require a reserved port; SMB servers have passwords.
fn source_port(scheme: Scheme) -> SourcePort {
    match scheme {
        Scheme::Nfs => SourcePort::Reserved,
        Scheme::Smb => SourcePort::Any,
    }
}
