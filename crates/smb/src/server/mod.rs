//! The SMB server: connections, sessions, trees, and the operations on them.
//!
//! Spec: [MS-SMB2] 3.3.
//! Owns: the users, the table of sessions, the limits. Does not: listen or accept (the caller hands over channels),
//! nor touch files (the store does).

mod about;
mod accounts;
mod admission;
mod clients;
mod connection;
mod context;
mod credits;
pub mod dfs;
mod frame;
mod held;
pub mod journal;
mod logons;
mod negotiate;
mod notices;
mod ops;
mod outgoing;
mod pipes;
mod requests;
mod session;
mod session_setup;
mod shares;
mod status;
mod tree;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use weft_machine::budget::Holder;
use weft_machine::rt::Drain;
use weft_machine::{Budget, Pool, Source};
use weft_store::vfs::Share;
use weft_transport::Channel;
pub use weft_wire::smb2::Dialect;

use crate::auth::{Delays, Keytab, Secret, ServerNames, Users};
use crate::crypto::Engine;
pub use about::{About, Served, SessionAbout, ShareAbout};
use accounts::Accounts;
use clients::Clients;
use connection::Connection;
use logons::Refusals;
use session::Sessions;
use shares::Shares;

/// What READ, WRITE and transact can move at most: what SMB Direct peers and Windows use.
pub const MAX_IO: u32 = 8 << 20;

/// Somebody who may log on.
pub struct User {
    /// Name, compared without regard to case.
    pub name: String,
    /// What proves it.
    pub secret: Secret,
}

/// One network interface that clients may use for more channels ([MS-SMB2] 2.2.32.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Interface number.
    pub index: u32,
    /// Address.
    pub addr: IpAddr,
    /// Bits per second.
    pub link_speed_bps: u64,
    /// Whether SMB Direct is served on it.
    pub rdma: bool,
    /// Whether it spreads connections over queues.
    pub rss: bool,
}

/// Where clients find out which interfaces there are: asked each time, because links come and go.
pub struct Interfaces(Box<dyn Fn() -> Vec<NetworkInterface> + Send + Sync>);

impl Interfaces {
    /// Those that `list` gives when a client asks.
    pub fn asked(list: impl Fn() -> Vec<NetworkInterface> + Send + Sync + 'static) -> Interfaces {
        Interfaces(Box::new(list))
    }

    pub(crate) fn list(&self) -> Vec<NetworkInterface> {
        (self.0)()
    }
}

impl From<Vec<NetworkInterface>> for Interfaces {
    /// Always the same.
    fn from(list: Vec<NetworkInterface>) -> Interfaces {
        Interfaces::asked(move || list.clone())
    }
}

/// Bounds on what peers can make the server keep.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions of one connection.
    pub sessions: usize,
    /// Channels of one session: connections that it is bound to.
    pub channels: usize,
    /// How long a session is valid until its client has to authenticate again; `None` for as long as it likes.
    pub session_ms: Option<u64>,
    /// Trees of one session.
    pub trees: usize,
    /// Opens of one session.
    pub opens: usize,
    /// What all sessions together can make the server keep, in bytes: opens, locks, pipes, watches and what waits in them. An
    /// address can have a quarter, a user all of what is free.
    pub held_bytes: usize,
    /// Descriptors of files that all sessions have open. An address, or a user, can have as many as it leaves free.
    pub descriptors: usize,
    /// Credits that a connection can hold, thus requests that it can have outstanding.
    pub credits: u16,
    /// Requests in one compound.
    pub compound: usize,
    /// Largest READ, WRITE or transact in bytes; at most [`MAX_IO`].
    pub max_io: u32,
    /// How long a connection may take to authenticate, and an authentication may take from its first token to its last.
    pub authenticate_ms: u64,
    /// Credits that a connection can hold before somebody has logged on: clients ask for one or two then.
    pub credits_of_strangers: u16,
    /// Authentications in progress of a connection before somebody has logged on. Each keeps some 4 KiB.
    pub half_open_of_strangers: usize,
    /// The same from then on: several users of a client may log on at a time.
    pub half_open: usize,
}

/// Of the descriptors of a process, files that clients have open have one in so many at most. NFS has parts of its own.
const OPENED_PART: usize = 4;

impl Limits {
    /// For a process that may have so many descriptors.
    pub fn within(descriptors: usize) -> Limits {
        Limits { descriptors: descriptors / OPENED_PART, ..Limits::default() }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 64,
            channels: 32,
            session_ms: None,
            trees: 256,
            opens: 16_384,
            held_bytes: 256 << 20,
            descriptors: usize::MAX,
            credits: 8192,
            compound: 64,
            max_io: MAX_IO,
            authenticate_ms: 30_000,
            credits_of_strangers: 32,
            half_open_of_strangers: 4,
            half_open: 32,
        }
    }
}

/// Whose requests must be signed. Clients that ask for signing get it in any case, and encrypted sessions need none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signing {
    /// Those of all sessions.
    Required,
    /// Those of sessions on which others may be in between: all but those of this host (loopback, shared memory) and of RDMA
    /// connections whose client cannot sign payload there, which would otherwise have no use of RDMA.
    #[default]
    Exposed,
    /// Those of clients that ask for it.
    Enabled,
}

/// What a server is made of.
pub struct Config {
    /// Identifies this server to clients; stable over restarts where possible.
    pub server_guid: [u8; 16],
    /// NetBIOS-like name, shown in the NTLM challenge.
    pub name: String,
    /// What is served.
    pub shares: Vec<Share>,
    /// Who may log on.
    pub users: Vec<User>,
    /// The names that clients may call this server by, `name` among them.
    pub names: Arc<ServerNames>,
    /// Whose sessions must sign.
    pub signing: Signing,
    /// The oldest dialect that is spoken.
    pub min_dialect: Dialect,
    /// Refuse sessions that do not encrypt.
    pub require_encryption: bool,
    /// Let a session have several connections (3.x).
    pub multichannel: bool,
    /// Answer to FSCTL_QUERY_NETWORK_INTERFACE_INFO.
    pub interfaces: Interfaces,
    /// Answer to FSCTL_WEFT_ENDPOINTS: UTF-8 lines.
    pub endpoints: String,
    /// What not every server offers.
    pub offers: Offers,
    /// Payload buffers.
    pub pool: Pool,
    /// Bounds.
    pub limits: Limits,
}

impl Config {
    /// These shares for these users, called "WEFT" and by no other name, with what nobody has asked to be otherwise. A server that is
    /// started again has the same `server_guid`.
    pub fn new(server_guid: [u8; 16], shares: Vec<Share>, users: Vec<User>, pool: Pool) -> Config {
        Config {
            server_guid,
            name: "WEFT".into(),
            shares,
            users,
            names: ServerNames::new(["weft"], Vec::new).into(),
            signing: Signing::default(),
            min_dialect: Dialect::V3_0,
            require_encryption: false,
            multichannel: true,
            interfaces: Vec::new().into(),
            endpoints: String::new(),
            offers: Offers::default(),
            pool,
            limits: Limits::default(),
        }
    }
}

/// What a server offers beyond what all do; nothing of it by default.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Names that lead to other shares.
    pub dfs: dfs::Namespace,
    /// Compress messages with clients that ask for it, on connections without RDMA.
    pub compression: bool,
    /// Shares whose clients are told to ask for it; in lower case.
    pub compressed: Vec<String>,
    /// What Kerberos tickets are checked against.
    pub keytab: Option<Arc<Keytab>>,
    /// Where handles are kept that outlive the server.
    pub journal: Option<journal::Journal>,
    /// Shares that are continuously available: clients may ask for such handles; in lower case. Needs `journal`.
    pub continuous: Vec<String>,
    /// Speak the POSIX extensions with clients that ask for them.
    pub posix: bool,
}

impl Offers {
    /// Whether handles of a share can outlive the server.
    pub(crate) fn is_continuous(&self, share: &str) -> bool {
        self.journal.is_some()
            && !self.continuous.is_empty()
            && self.continuous.contains(&share.to_lowercase())
    }
}

/// A server, shared by all cores.
pub struct Server {
    /// Without its shares, which are in `shares`.
    pub(crate) config: Config,
    pub(crate) shares: Shares,
    pub(crate) sessions: Sessions,
    /// What survives a session, or is of a client rather than of one of its sessions.
    pub(crate) handles: ops::Handles,
    clients: Arc<Clients>,
    /// The host and its users as SIDs.
    pub(crate) accounts: Accounts,
    users: Arc<Users>,
    delays: Delays,
    refusals: Refusals,
    /// What sessions make it keep.
    held: Budget,
    /// Of [`Limits::descriptors`].
    descriptors: Budget,
    name: Arc<str>,
    drain: Drain,
}

impl Server {
    /// A server that serves nobody yet.
    pub fn new(mut config: Config) -> Arc<Server> {
        config.limits.max_io = config.limits.max_io.min(MAX_IO);
        let users = config.users.iter().map(|user| (user.name.as_str(), user.secret.clone()));
        let users = Arc::new(Users::new(users));
        let name = Arc::from(config.name.as_str());
        let accounts = Accounts::new(&config.name, config.users.iter().map(|user| user.name.as_str()));
        // Measured now rather than during somebody's log-on.
        Engine::choose();
        let held = Budget::new(config.limits.held_bytes);
        let descriptors = Budget::shared(config.limits.descriptors, held::DESCRIPTOR_SHARE);
        let shares = Shares::new(std::mem::take(&mut config.shares));
        Arc::new(Server {
            config,
            shares,
            sessions: Sessions::default(),
            handles: ops::Handles::default(),
            clients: Arc::default(),
            accounts,
            users,
            delays: Delays::default(),
            refusals: Refusals::default(),
            held,
            descriptors,
            name,
            drain: Drain::default(),
        })
    }

    /// Serves these shares from now on. A tree that is connected keeps the share that it has, and what that asks, until its client
    /// connects anew. A share whose files are to stay open has the file system of the one that it replaces.
    pub fn replace_shares(&self, shares: Vec<Share>) {
        self.shares.replace(shares);
    }

    /// Opens again what clients had open in the last run, and keeps it for them. To be called before anybody is served.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn restore(self: &Arc<Server>) -> Result<(), journal::Unusable> {
        ops::restore(self).await
    }

    /// Serves one connection to its end. One task per connection; requests run inside it.
    pub async fn serve(self: &Arc<Server>, channel: Rc<dyn Channel>) {
        self.accept(channel).run().await;
    }

    /// A connection that is yet to be served, so that somebody can look at it meanwhile.
    pub fn accept(self: &Arc<Server>, channel: Rc<dyn Channel>) -> Served {
        Served(Rc::new(Connection::new(self.clone(), channel)))
    }

    /// Ends all connections, on whatever core: what has been received is answered, nothing more is.
    pub fn drain(&self) {
        self.drain.begin();
    }

    /// On whose account a client keeps what it keeps. Where only one user can log on his part would be everybody's, and a few
    /// addresses would leave the next one nothing: addresses alone count there.
    fn holder(&self, source: Option<Source>, user: &Arc<str>) -> Holder {
        let several = self.config.users.len() > 1 || self.config.offers.keytab.is_some();
        Holder { source, user: several.then(|| user.clone()) }
    }

    /// How many sessions there are now.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(any(test, fuzzing))]
mod tests;
#[cfg(fuzzing)]
pub use tests::fuzz::smb_server;
