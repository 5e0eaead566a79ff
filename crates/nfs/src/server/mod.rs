//! The server: NFS versions 3 and 4, MOUNT, NLM, NSM and rpcbind on any channel.
//!
//! What: [`Server`] holds what connections share; [`Server::serve`] runs one connection. One file per procedure in `ops`.
//! Spec: RFC 5531 (RPC), RFC 1813 (NFS, MOUNT), see `v4`. Owns: file handles' key, the run's part of the write verifier, the cache of open files.
//! Does not: listen, register with another host's rpcbind, know which transport carries a call.
//!
//! Identity: a server that is not root acts as itself for everybody. One that is root believes the ids of AUTH_SYS (but
//! root's, unless told to) and decides by the mode bits: see `caller`.

mod answers;
mod attributes;
mod caller;
mod connection;
mod context;
mod dispatch;
mod duplicates;
mod durable;
mod export;
mod file_id;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod guard;
mod handles;
mod identity;
mod line;
mod monitors;
mod mount;
mod nlm;
mod nsm;
mod ops;
mod outgoing;
mod rpcbind;
mod shares;
mod stability;
mod v4;
mod watch;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weft_machine::rt::{self, Drain};
use weft_machine::{Pool, clock, random};
use weft_store::rules::Way;
use weft_store::{Share, Timestamp};
use weft_transport::datagram::Reached;
use weft_transport::{Channel, Error, Peer};

pub use caller::Policy;
use duplicates::Duplicates;
pub use durable::{Durable, Unusable};
use files::OpenFiles;
use handles::Handles;
use monitors::Monitors;
use mount::Mounts;
use nlm::Locking;
use outgoing::Outgoing;
use rpcbind::Services;
pub use rpcbind::{Net, Role, Service};
use shares::Shares;
use stability::Run;
use v4::state::States;
pub use watch::Watch;

/// What a server is made of.
pub struct Config {
    /// Shares; each is exported as "/NAME".
    pub shares: Vec<Share>,
    /// Where channels take their buffers from.
    pub pool: Pool,
    /// Bounds.
    pub limits: Limits,
    /// What callers may do.
    pub policy: Policy,
    /// What outlives this run. Without it handles are stale after a restart, and nobody can reclaim anything.
    pub durable: Option<Durable>,
}

/// Bounds of what clients can make the server hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest READ and WRITE in bytes; what FSINFO announces, unless the channel carries less.
    pub max_payload: u32,
    /// Largest READDIR and READDIRPLUS reply in bytes.
    pub max_listing: u32,
    /// Requests of one connection that are carried out at a time.
    pub requests: usize,
    /// Replies of one connection that its peer has not taken; then no more requests are read.
    pub replies: usize,
    /// Files kept open between requests.
    pub open_files: usize,
    /// Entries of the list that MOUNT's DUMP shows.
    pub mounts: usize,
    /// How long an NFSv4 client may be silent before others may take what it holds.
    pub lease: Duration,
    /// Memory for what is kept of NFSv4 clients and of NLM's: sessions with their replies, owners, opens, locks. One address
    /// gets at most a fifth.
    pub state_memory: usize,
    /// NFSv4 clients, confirmed or not.
    pub clients: usize,
    /// Descriptors of files that NFSv4 clients have open. One address gets at most half.
    pub descriptors: usize,
}

/// Of the descriptors of a process, files that are kept open between requests have one in so many at most.
const CACHED_PART: usize = 8;
/// Files that NFSv4 clients have open have one in so many at most. SMB has a part of its own.
const OPENED_PART: usize = 4;

impl Limits {
    /// For a process that may have so many descriptors.
    pub fn within(descriptors: usize) -> Limits {
        let limits = Limits::default();
        Limits {
            open_files: limits.open_files.min(descriptors / CACHED_PART),
            descriptors: descriptors / OPENED_PART,
            ..limits
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_payload: 1 << 20,
            max_listing: 64 << 10,
            requests: 256,
            replies: 256,
            open_files: 512,
            mounts: 1024,
            lease: Duration::from_secs(60),
            // 240 sessions at their largest, or some 600 as Linux asks for them.
            state_memory: 128 << 20,
            clients: 4096,
            descriptors: usize::MAX,
        }
    }
}

/// What all connections share.
pub struct Server {
    shares: Shares,
    limits: Limits,
    pool: Pool,
    policy: Policy,
    /// What version 4 remembers of its clients.
    states: States,
    /// Tells this server from others.
    identity: [u8; 16],
    /// When it started.
    born: Timestamp,
    handles: Handles,
    /// Some share has rules of its own.
    ruled: bool,
    files: Arc<OpenFiles>,
    mounts: Mounts,
    /// What clients of version 3 lock.
    locking: Locking,
    /// Connections to clients of minor version 0.
    back_channels: Outgoing,
    monitors: Monitors,
    duplicates: Duplicates,
    /// Where connections have come from: what UDP claims is believed of these addresses alone.
    reached: Reached,
    strangers: connection::Strangers,
    /// What rpcbind tells, once it is known.
    services: OnceLock<Services>,
    drain: Drain,
    /// Whose verifiers those of WRITE and COMMIT are.
    run: Run,
}

impl Server {
    /// A server for `config`.
    ///
    /// # Panics
    /// When the system has no random numbers, without which handles could be guessed.
    pub fn new(config: Config) -> Arc<Server> {
        let Config { shares, pool, limits, policy, durable } = config;
        let settled = |share: Share| match share.rules.nfs.asynchronous {
            true => share,
            false => Share { vfs: share.vfs.clone().settled(), ..share },
        };
        let shares = Shares::new(shares.into_iter().map(settled).collect());
        let (mut key, mut identity) = (secret(), secret());
        let mut before = Vec::new();
        if let Some(durable) = &durable {
            (key, identity) = (durable.key, durable.identity);
            before = durable.clients().unwrap_or_else(|e| {
                tracing::error!("clients of the last run cannot reclaim what they had: {e}");
                Vec::new()
            });
        }
        let since = clock::wall();
        let born = Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() };
        let state_limits = v4::state::Limits {
            lease: limits.lease,
            memory: limits.state_memory,
            clients: limits.clients,
            descriptors: limits.descriptors,
            ..v4::state::Limits::default()
        };
        let epoch = u32::from_be_bytes(secret());
        let monitors = Monitors::new(durable.as_ref());
        let silent = monitors.any_before();
        let files = Arc::new(OpenFiles::new(limits.open_files));
        files.follow(&shares);
        let states = States::new(state_limits, epoch, durable, before, silent, rt::now());
        states.grace.reserve(shares.iter().map(|share| share.vfs.opens()));
        Arc::new(Server {
            handles: Handles::new(key),
            ruled: shares.iter().any(|share| !share.rules.nfs.is_plain()),
            shares,
            limits,
            pool,
            policy,
            identity,
            born,
            files,
            mounts: Mounts::new(limits.mounts),
            locking: Locking::new(states.budget.clone()),
            back_channels: Outgoing::back_channels(),
            states,
            monitors,
            duplicates: Duplicates::default(),
            reached: Reached::default(),
            strangers: connection::Strangers::default(),
            services: OnceLock::new(),
            drain: Drain::default(),
            run: Run::new(),
        })
    }

    /// Lets rpcbind tell that these programs answer at each address of `listen`; where one stands for every address of this host,
    /// each caller is told one that it can reach. Without this the program is not served. Only the first list counts.
    pub fn announce(&self, listen: Vec<IpAddr>, services: Vec<Service>) {
        let _ = self.services.set(Services { listen, list: services });
    }

    /// Answers the calls of one peer until it leaves, breaks the protocol or the server drains. Both programs are
    /// answered on every channel. Requests run concurrently and are answered in the order in which they finish.
    pub async fn serve(&self, channel: Rc<dyn Channel>) -> Result<(), Error> {
        self.serve_watched(channel, &Watch::default()).await
    }

    /// The same, and tells what it has seen of the client.
    pub async fn serve_watched(&self, channel: Rc<dyn Channel>, watch: &Watch) -> Result<(), Error> {
        connection::serve(self, channel, watch).await
    }

    /// Tells clients of version 3 that had locks in the last run to take them again. Takes away, from time to time, what
    /// NFSv4 clients hold that have been silent for long: clients of other protocols cannot. To be run beside the
    /// connections; it never ends.
    pub async fn tend(&self) {
        let sweep = async {
            loop {
                rt::sleep(self.limits.lease).await;
                v4::sweep(self).await;
                monitors::sweep(self, rt::now());
            }
        };
        futures_util::future::join(nsm::notify(self), sweep).await;
    }

    /// The addresses from which connections have come, for the ports of UDP.
    pub fn reached(&self) -> Reached {
        self.reached.clone()
    }

    /// Whether this peer may use any share.
    fn lets_in(&self, peer: Peer) -> bool {
        self.shares.iter().any(|share| share.rules.nfs.admits(peer, self.policy.ports()).is_ok())
    }

    /// The same for a connection that is protected so.
    fn lets_in_by(&self, peer: Peer, way: Way) -> bool {
        let ports = self.policy.ports();
        self.shares.iter().map(|share| &share.rules.nfs).any(|export| export.lets_in(peer, ports, way))
    }

    /// Whether what a share asks has to be looked at in each call of this peer.
    fn rules_for(&self, peer: Peer) -> bool {
        self.ruled || !self.policy.ports().include(peer)
    }

    /// Ends all connections as soon as the requests that they have begun are answered.
    pub fn drain(&self) {
        self.drain.begin();
    }
}

/// One of the parts of a table that is split so that cores seldom wait for each other; always the same for one `hash`.
#[expect(clippy::indexing_slicing, reason = "a remainder of the length")]
fn shard<T, const N: usize>(shards: &[T; N], hash: usize) -> &T {
    &shards[hash.checked_rem(N).unwrap_or(0)]
}

/// Numbers that nobody guesses.
///
/// # Panics
/// Where the system has none.
fn secret<const N: usize>() -> [u8; N] {
    random::bytes().expect("random numbers")
}

#[cfg(test)]
mod tests;
