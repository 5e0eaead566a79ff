//! The table of RDMA providers: adding one is one line here.
//!
//! Owns: nothing.

use weft_machine::Pool;
use weft_rdma::{Provider, iwarp, rnic, shm};

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
        ProviderKind::Rnic => {
            rnic::devices()?;
            Ok(rnic_provider(pool))
        }
    }
}

/// iWARP; `crc` asks for a CRC even where the peer does not.
pub(crate) fn iwarp_provider(pool: &Pool, crc: bool, congestion: Option<&str>) -> Box<dyn Provider> {
    let config = iwarp::Config { crc, congestion: congestion.map(str::to_owned), ..iwarp::Config::default() };
    Box::new(iwarp::Provider::new(pool.clone(), config))
}

/// RDMA devices; whether there are any is seen when it is used.
pub(crate) fn rnic_provider(pool: &Pool) -> Box<dyn Provider> {
    Box::new(rnic::Provider::new(pool.clone(), rnic::Config::default()))
}

/// Shared memory.
pub(crate) fn shm_provider(pool: &Pool) -> Box<dyn Provider> {
    Box::new(shm::Provider::new(pool.clone(), shm::Config::default()))
}
