//! The table of RDMA providers: adding one is one line here.
//!
//! Owns: nothing.

use weft_machine::Pool;
use weft_rdma::{Caps, Provider, iwarp, shm};

use crate::Failure;
use crate::args::{Crc, Iwarp, ProviderKind};

/// The providers that serve on this host, in the order in which they are announced.
pub(crate) fn serving(pool: &Pool, crc: Crc, congestion: Option<&str>) -> Vec<Box<dyn Provider>> {
    vec![iwarp_provider(pool, crc == Crc::Always, congestion), shm_provider(pool)]
}

/// The provider of a kind; the error says why this host has none.
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
        ProviderKind::Rnic => Err(format!("provider rnic: {NO_RNIC}").into()),
    }
}

/// Why there is no provider for RDMA cards.
const NO_RNIC: &str = "this build of Weft does not drive RDMA cards yet, iwarp talks to them over TCP";

/// A provider as `weft rdma devices` lists it.
pub(crate) struct Listed {
    /// "iwarp", "shm", "rnic".
    pub name: &'static str,
    /// What it reaches.
    pub reaches: &'static str,
    /// Its limits, or why it is not available here.
    pub state: Result<Caps, String>,
    /// What it stands on, a line each.
    pub devices: Vec<String>,
}

/// Every provider that Weft knows, available here or not.
pub(crate) fn listed() -> Vec<Listed> {
    // Nothing is connected: the pool stays empty.
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
                Err(e) => Err(format!("{}: {e}", shm_dir.display())),
            },
            devices: vec![format!("sockets in {}", shm_dir.display())],
        },
        Listed {
            name: "rnic",
            reaches: "hosts with an RDMA card (InfiniBand, RoCE, iWARP), by rdma-core",
            state: Err(NO_RNIC.into()),
            devices: Vec::new(),
        },
    ]
}

/// iWARP; `crc` asks for a CRC even where the peer does not.
pub(crate) fn iwarp_provider(pool: &Pool, crc: bool, congestion: Option<&str>) -> Box<dyn Provider> {
    let config = iwarp::Config { crc, congestion: congestion.map(str::to_owned), ..iwarp::Config::default() };
    Box::new(iwarp::Provider::new(pool.clone(), config))
}

/// Shared memory.
pub(crate) fn shm_provider(pool: &Pool) -> Box<dyn Provider> {
    Box::new(shm::Provider::new(pool.clone(), shm::Config::default()))
}
