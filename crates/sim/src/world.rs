//! The shared state of a simulated world: its disk, the models of what clients may see, and the trace.
//!
//! `run` runs the server, `work` the clients.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::disk::Disk;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::model::{Model, Protocol};
use crate::names::{Alone, Names};
use crate::tap::Taps;
use crate::trace::Trace;

/// Where the servers listen.
pub(crate) const SMB: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 445);
pub(crate) const NFS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2049);
/// What clients call the share, and who they are.
pub(crate) const SHARE: &str = "data";
pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "correct horse";
/// Virtual time after which a call that has not ended never will: longer than any client waits.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(900);

/// See the module.
#[derive(Default)]
pub(crate) struct World {
    pub disk: Disk,
    pub model: Model,
    pub names: Names,
    pub alone: Alone,
    pub locks: Locks,
    pub leases: Leases,
    pub taps: Taps,
    pub trace: Trace,
    /// Calls that were answered with success.
    pub answered: Cell<u64>,
    /// Connections of SMB that broke under a request.
    pub broken: Cell<u64>,
    /// Crashes of process and host.
    pub crashes: Cell<u64>,
}

impl World {
    /// The server may have forgotten what it has granted to clients of this protocol, or to all.
    pub fn grants_lost(&self, of: Option<Protocol>) {
        self.alone.lost(of);
        self.locks.lost(of);
        // Only clients of SMB have leases, and no break reaches one of a connection that is cut.
        self.leases.lost();
    }

    /// A client of SMB has lost all connections of its session, which it finds out by its next request.
    pub(crate) fn session_lost(&self, by: usize) {
        self.alone.session_lost(by);
        self.locks.released_all(by);
        self.leases.released_all(by);
    }
}

macro_rules! tell {
    ($world:expr, $($what:tt)*) => { $world.trace.tell(format_args!($($what)*)) };
}
pub(crate) use tell;
