//! The server: NFS versions 3 and 4, MOUNT, NLM, NSM and rpcbind on any channel.
//!
//! [`Server`] holds what connections share: the key of file handles, the run's part of the write verifier, the cache
//! of open files. [`Server::serve`] runs one connection; `ops` has one file per procedure. See RFC 5531 (RPC), RFC
//! 1813 (NFS, MOUNT), and `v4` for version 4. The server does not listen, does not register with another host's
//! rpcbind, and does not depend on the transport.
//!
//! Identity: a server that is not root acts as itself for everyone. One that is root believes the ids of AUTH_SYS
//! (except root's, unless configured). Shares that act for their callers leave the decision to the kernel, see `judged`;
//! in others it decides by the mode bits, see `caller`. Callers with Kerberos tickets prove who they are, see `gss`.

mod answers;
mod at_once;
mod attributes;
mod audit;
mod caller;
mod connection;
mod context;
mod credential;
mod dispatch;
mod duplicates;
mod durable;
mod export;
mod familiar;
mod file_id;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gss;
mod guard;
mod handles;
mod header;
mod identity;
mod instead;
mod judged;
mod line;
mod meter;
mod monitors;
mod mount;
mod nlm;
mod nsm;
mod ops;
mod outgoing;
mod peer_shares;
mod rpcbind;
mod shares;
mod stability;
mod v4;
mod watch;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex as Queue;
use weft_machine::rt::{self, Drain};
use weft_machine::{Pool, clock, random};
use weft_store::audit::{Audit, Recent};
use weft_store::{CurrentShares, Share, Timestamp};
use weft_transport::datagram::Reached;
use weft_transport::{Channel, Error};

use audit::Auditing;
pub use caller::Policy;
use duplicates::Duplicates;
pub use durable::{Durable, Unusable};
use files::OpenFiles;
use gss::Gss;
#[cfg(test)]
pub(crate) use gss::tests as gss_tests;
pub use gss::{Kerberos, Users};
use handles::Handles;
use monitors::Monitors;
use mount::Mounts;
use nlm::Locking;
use outgoing::Outgoing;
use rpcbind::Services;
pub use rpcbind::{Net, Role, Service};
use stability::Run;
use v4::state::States;
pub use watch::Watch;

/// The configuration of a server.
pub struct Config {
    /// Shares; each is exported as "/NAME".
    pub shares: Vec<Share>,
    /// The pool from which channels take their buffers.
    pub pool: Pool,
    /// Resource limits.
    pub limits: Limits,
    /// What callers may do.
    pub policy: Policy,
    /// State that outlives this run. Without it, handles are stale after a restart, and clients can reclaim nothing.
    pub durable: Option<Durable>,
}

/// Limits on the resources that clients can occupy.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest READ and WRITE in bytes; what FSINFO announces, unless the channel carries less.
    pub max_payload: u32,
    /// Largest READDIR and READDIRPLUS reply in bytes.
    pub max_listing: u32,
    /// Requests of one connection that run at the same time.
    pub requests: usize,
    /// Unread replies of one connection; at this number, no more requests are read.
    pub replies: usize,
    /// Files kept open between requests.
    pub open_files: usize,
    /// Entries of MOUNT's DUMP list.
    pub mounts: usize,
    /// How long an NFSv4 client may be silent before others may take over its locks and opens.
    pub lease: Duration,
    /// Memory for the state of NFSv4 and NLM clients: sessions with their cached replies, owners, opens, locks. One
    /// address gets at most a fifth.
    pub state_memory: usize,
    /// NFSv4 clients, confirmed or not.
    pub clients: usize,
    /// File descriptors for NFSv4 opens. One address gets at most half.
    pub descriptors: usize,
}

/// Files kept open between requests may use one in this many of the process's descriptors.
const CACHED_PART: usize = 8;
/// NFSv4 opens may use one in this many. SMB has a share of its own.
const OPENED_PART: usize = 4;

impl Limits {
    /// Limits for a process that may have this many descriptors.
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
            // 240 sessions of the largest size, or about 600 of the size that Linux requests.
            state_memory: 128 << 20,
            clients: 4096,
            descriptors: usize::MAX,
        }
    }
}

/// The state that all connections share.
pub struct Server {
    shares: Arc<CurrentShares>,
    /// Held while shares are replaced.
    replacing: Queue<()>,
    limits: Limits,
    pool: Pool,
    policy: Policy,
    /// Version 4 state of all clients.
    states: States,
    /// Distinguishes this server from others.
    identity: [u8; 16],
    /// When it started.
    born: Timestamp,
    handles: Handles,
    files: Arc<OpenFiles>,
    mounts: Mounts,
    /// Locks of version 3 clients.
    locking: Locking,
    /// Connections to clients of minor version 0.
    back_channels: Outgoing,
    monitors: Monitors,
    duplicates: Duplicates,
    /// Addresses that have connected; only for these are source addresses over UDP trusted.
    reached: Reached,
    strangers: connection::Strangers,
    /// Contexts of callers with tickets, if there is a keytab.
    gss: OnceLock<Gss>,
    /// What rpcbind announces, once known.
    services: OnceLock<Services>,
    /// The audit log, if there is one.
    auditing: OnceLock<Auditing>,
    drain: Drain,
    /// The source of the write verifiers in WRITE and COMMIT.
    run: Run,
}

impl Server {
    /// Creates a server.
    ///
    /// # Panics
    /// If the system has no random numbers, without which handles could be guessed.
    pub fn new(config: Config) -> Arc<Server> {
        let Config { shares, pool, limits, policy, durable } = config;
        let shares = Arc::new(CurrentShares::new(shares.into_iter().map(shares::settled).collect()));
        let list = shares.now();
        let (mut key, mut identity) = (secret(), secret());
        let mut before = Vec::new();
        if let Some(durable) = &durable {
            (key, identity) = (durable.key, durable.identity);
            before = durable.clients().unwrap_or_else(|e| {
                tracing::error!("clients of the last run cannot reclaim their state: {e}");
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
        let files = Arc::new(OpenFiles::new(limits.open_files, shares.clone()));
        files.follow(list.iter().map(|share| &**share));
        let states = States::new(state_limits, epoch, durable, before, silent, rt::now());
        states.grace.reserve(list.iter().map(|share| share.vfs.opens()), rt::now());
        Arc::new(Server {
            handles: Handles::new(key),
            shares,
            replacing: Queue::default(),
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
            gss: OnceLock::new(),
            services: OnceLock::new(),
            auditing: OnceLock::new(),
            drain: Drain::default(),
            run: Run::new(),
        })
    }

    /// Makes rpcbind announce that these programs answer at each address of `listen`; for an unspecified address,
    /// each caller is told one that it can reach. Without this call, rpcbind is not served. Only the first call has
    /// an effect.
    pub fn announce(&self, listen: Vec<IpAddr>, services: Vec<Service>) {
        let _ = self.services.set(Services { listen, list: services });
    }

    /// Accepts callers with Kerberos tickets (RPCSEC_GSS). Only the first call has an effect.
    pub fn accept_tickets(&self, kerberos: Kerberos) {
        let _ = self.gss.set(Gss::new(kerberos));
    }

    /// The users of this server from now on. It matters to callers with tickets only.
    pub fn replace_users(&self, users: Users) {
        if let Some(gss) = self.gss.get() {
            gss.replace_users(users);
        }
    }

    /// Tells this audit log what callers do. Call it before connections are served; only the first call has an effect.
    pub fn audit_to(&self, audit: Audit) {
        if audit.is_on() {
            let _ = self.auditing.set(Auditing { audit, recent: Recent::new(secret()) });
        }
    }

    /// Answers the calls of one peer until it disconnects, breaks the protocol, or the server drains. Every channel
    /// answers all programs. Requests run concurrently and are answered in the order in which they finish.
    pub async fn serve(&self, channel: Rc<dyn Channel>) -> Result<(), Error> {
        self.serve_watched(channel, &Watch::default()).await
    }

    /// The same, and publishes what it learns about the client.
    pub fn serve_watched<'a>(
        &'a self,
        channel: Rc<dyn Channel>,
        watch: &'a Watch,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { connection::serve(self, channel, watch).await })
    }

    /// Tells version 3 clients that held locks in the last run to reclaim them. Periodically revokes the state of
    /// NFSv4 clients that have been silent for long, which clients of other protocols cannot do. Run it beside the
    /// connections; it never returns.
    pub fn run_housekeeping(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let sweep = async {
                loop {
                    rt::sleep(self.limits.lease).await;
                    v4::sweep(self).await;
                    monitors::sweep(self, rt::now());
                    if let Some(gss) = self.gss.get() {
                        gss.sweep();
                    }
                }
            };
            futures_util::future::join(nsm::notify(self), sweep).await;
        })
    }

    /// The addresses that have connected, for the UDP ports.
    pub fn reached(&self) -> Reached {
        self.reached.clone()
    }

    /// The share at this position.
    #[cfg(test)]
    fn share(&self, at: usize) -> Arc<Share> {
        self.shares.now()[at].clone()
    }

    /// Its files.
    #[cfg(test)]
    fn vfs(&self, at: usize) -> weft_store::Vfs {
        self.share(at).vfs.clone()
    }

    /// Ends each connection once the requests that it has begun are answered.
    pub fn drain(&self) {
        self.drain.begin();
    }
}

/// Selects a part of a table that is split so that cores rarely contend; always the same part for one `hash`.
#[expect(clippy::indexing_slicing, reason = "a remainder of the length")]
fn shard<T, const N: usize>(shards: &[T; N], hash: usize) -> &T {
    &shards[hash.checked_rem(N).unwrap_or(0)]
}

/// Unguessable random bytes.
///
/// # Panics
/// If the system has none.
fn secret<const N: usize>() -> [u8; N] {
    random::bytes().expect("random numbers")
}

#[cfg(test)]
mod tests;
