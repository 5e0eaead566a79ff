//! The table of RDMA providers: adding one is one line here.

use std::io;
use std::path::PathBuf;

use weft_machine::Pool;
use weft_machine::net::SourcePort;
use weft_rdma::wrap::Wrapped;
use weft_rdma::wrap::pcap::{Capture, Pcap};
use weft_rdma::{Caps, Provider, iwarp, rnic, shm};

use crate::Failure;
use crate::args::{Crc, Iwarp, ProviderKind};

/// The providers to serve with, in the order in which they are announced.
pub(crate) fn serving(
    pool: &Pool,
    chosen: &[ProviderKind],
    crc: Crc,
    congestion: Option<&str>,
) -> Vec<Box<dyn Provider>> {
    let make = |kind: &ProviderKind| match kind {
        ProviderKind::Iwarp => iwarp_provider(pool, crc == Crc::Always, congestion),
        ProviderKind::Shm => shm_provider(pool),
        ProviderKind::Rnic => rnic_provider(pool),
    };
    let kinds = [ProviderKind::Iwarp, ProviderKind::Shm, ProviderKind::Rnic];
    kinds.iter().filter(|kind| chosen.contains(kind)).map(make).collect()
}

/// A provider that also writes all its traffic to `capture`.
pub(crate) fn captured(provider: Box<dyn Provider>, capture: &Capture) -> Box<dyn Provider> {
    Box::new(Wrapped::new(provider.into(), Pcap::new(capture.clone())))
}

/// The provider of this kind; the error says why this host has none.
pub(crate) fn of_kind(
    kind: ProviderKind,
    pool: &Pool,
    options: &Iwarp,
) -> Result<Box<dyn Provider>, Failure> {
    match kind {
        ProviderKind::Iwarp => {
            let config = iwarp::Config {
                crc: options.crc == Crc::Always,
                congestion: options.congestion.clone(),
                peer_to_peer: options.peer_to_peer,
                ..iwarp::Config::default()
            };
            Ok(Box::new(iwarp::Provider::new(pool.clone(), config)))
        }
        ProviderKind::Shm => Ok(shm_provider(pool)),
        ProviderKind::Rnic => {
            rnic::devices()?;
            Ok(rnic_provider(pool))
        }
    }
}

/// Why a provider is not available on this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unavailable {
    /// The directory of its sockets cannot be used.
    #[error("{}: {source}", .dir.display())]
    Sockets { dir: PathBuf, source: io::Error },
    /// There is no RDMA device.
    #[error(transparent)]
    Devices(rnic::Unavailable),
}

/// A provider as `weft rdma devices` lists it.
pub(crate) struct Listed {
    /// "iwarp", "shm", "rnic".
    pub name: &'static str,
    /// The hosts or processes it reaches.
    pub reaches: &'static str,
    /// Its limits, or why it is not available here.
    pub state: Result<Caps, Unavailable>,
    /// Its devices or sockets, one line each.
    pub devices: Vec<String>,
}

/// Every provider that Weft knows, available on this host or not.
pub(crate) fn listed() -> Vec<Listed> {
    // Nothing connects, so the pool stays empty.
    let pool = Pool::new(0);
    let shm_dir = shm::Config::default().dir;
    vec![
        Listed {
            name: "iwarp",
            reaches: "any host by TCP, in user space; peers may be cards, Linux's siw or Weft",
            state: Ok(iwarp_provider(&pool, true, None).caps()),
            devices: Vec::new(),
        },
        Listed {
            name: "shm",
            reaches: "processes of this user on this host",
            state: match weft_machine::shm::secure_dir(&shm_dir) {
                Ok(_) => Ok(shm_provider(&pool).caps()),
                Err(source) => Err(Unavailable::Sockets { dir: shm_dir.clone(), source }),
            },
            devices: vec![format!("sockets in {}", shm_dir.display())],
        },
        rnic_listed(&pool),
    ]
}

/// The RDMA devices of this host.
fn rnic_listed(pool: &Pool) -> Listed {
    let reaches = "hosts with an RDMA device (InfiniBand, RoCE, iWARP, siw, rxe), by rdma-core";
    match rnic::devices() {
        Ok(devices) => Listed {
            name: "rnic",
            reaches,
            state: Ok(rnic_provider(pool).caps()),
            devices: devices.iter().map(describe).collect(),
        },
        Err(e) => Listed { name: "rnic", reaches, state: Err(Unavailable::Devices(e)), devices: Vec::new() },
    }
}

/// Describes a device in one line: kind, limits, ports.
fn describe(device: &rnic::Device) -> String {
    let head = format!("{} ({}, {})", device.name, device.node, device.transport);
    match &device.details {
        Err(e) => format!("{head}: cannot be opened: {e}"),
        Ok(details) => {
            let limits = &details.limits;
            let ports = details.ports.iter().map(|port| {
                let netdev = port.netdev.as_deref().unwrap_or("no network device");
                format!(
                    "; port {} {} on {} ({netdev}), MTU {}",
                    port.number, port.state, port.link, port.mtu_bytes
                )
            });
            format!(
                "{head}: IRD {}, ORD {}, {} regions{}",
                limits.ird,
                limits.ord,
                limits.regions,
                ports.collect::<String>()
            )
        }
    }
}

/// The iWARP provider; `crc` asks for a CRC even if the peer does not.
pub(crate) fn iwarp_provider(pool: &Pool, crc: bool, congestion: Option<&str>) -> Box<dyn Provider> {
    iwarp_from(SourcePort::Any, pool, crc, congestion)
}

/// The same, connecting from these ports.
pub(crate) fn iwarp_from(
    source_port: SourcePort,
    pool: &Pool,
    crc: bool,
    congestion: Option<&str>,
) -> Box<dyn Provider> {
    let congestion = congestion.map(str::to_owned);
    let config = iwarp::Config { crc, congestion, source_port, ..iwarp::Config::default() };
    Box::new(iwarp::Provider::new(pool.clone(), config))
}

/// The provider of RDMA devices; their absence shows when it is used.
pub(crate) fn rnic_provider(pool: &Pool) -> Box<dyn Provider> {
    Box::new(rnic::Provider::new(pool.clone(), rnic::Config::default()))
}

/// The shared-memory provider.
pub(crate) fn shm_provider(pool: &Pool) -> Box<dyn Provider> {
    Box::new(shm::Provider::new(pool.clone(), shm::Config::default()))
}
