//! The table of RDMA providers: adding one is one line here.
//!
//! Owns: nothing.

use weft_machine::Pool;
use weft_rdma::{Provider, iwarp, shm};

use crate::args::Crc;

/// The providers that serve on this host, in the order in which they are announced.
pub(crate) fn serving(pool: &Pool, crc: Crc, congestion: Option<&str>) -> Vec<Box<dyn Provider>> {
    vec![iwarp_provider(pool, crc == Crc::Always, congestion), shm_provider(pool)]
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
