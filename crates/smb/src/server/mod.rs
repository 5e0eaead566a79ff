//! The SMB server: connections, sessions, trees, and the operations on them.
//!
//! Spec: [MS-SMB2] 3.3.
//! Owns the users, the table of sessions, and the limits. The caller listens and hands over accepted channels; the
//! store accesses the files.

mod about;
mod accounts;
mod acting;
mod admission;
mod answer;
mod audit;
mod authentication;
mod clients;
mod concerned;
mod connection;
mod context;
mod credits;
pub mod dfs;
mod directory;
mod frame;
mod held;
pub mod journal;
mod limits;
mod logons;
mod meter;
mod negotiate;
mod negotiated;
mod notices;
mod ops;
mod outgoing;
mod pipes;
mod requests;
mod session;
mod session_setup;
mod spare;
mod status;
mod system;
mod tree;
mod user_id;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, join, join_all};
use weft_machine::budget::Holder;
use weft_machine::nss::Lookups;
use weft_machine::rt::Drain;
use weft_machine::{Budget, Pool, Source};
use weft_store::audit::Audit;
use weft_store::rights::Right;
use weft_store::vfs::{CurrentShares, Share, ShareKey, Vfs};
use weft_transport::Channel;
pub use weft_wire::smb2::Dialect;

use crate::auth::{Delays, Keytab, Principals, Secret, ServerNames};
use crate::crypto::Engine;
pub use about::{About, Served, SessionAbout, ShareAbout};
pub use accounts::CREATED_RIDS;
use clients::Clients;
use connection::Connection;
use directory::{Directory, Who};
use logons::Refusals;
use session::{Session, Sessions};
use spare::Spare;
use system::System;

/// The most that READ, WRITE and transact can move: what SMB Direct peers and Windows use.
pub const MAX_IO: u32 = 8 << 20;

/// A user that may log on.
pub struct User {
    /// Name; compared case-insensitively.
    pub name: String,
    /// The password's hash.
    pub secret: Secret,
    /// The groups that the user is in.
    pub groups: Vec<String>,
    /// The relative id of the user's SID, from [`CREATED_RIDS`]; no two users have the same. `None`: it is derived from
    /// the name, so that a later user of this name has the same SID.
    pub rid: Option<u32>,
    /// Whether the user is the server's own user, where the user has no account of the system: the one whose password was
    /// chosen when the server was started.
    pub is_server_itself: bool,
}

impl User {
    /// A user without groups.
    pub fn new(name: impl Into<String>, secret: Secret) -> User {
        User { name: name.into(), secret, groups: Vec::new(), rid: None, is_server_itself: false }
    }
}

/// A network interface that clients may use for further channels ([MS-SMB2] 2.2.32.5).
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
    /// Whether it distributes connections over receive queues (RSS).
    pub rss: bool,
}

/// The list of interfaces for clients, queried on each request because links come and go.
pub struct Interfaces(Box<dyn Fn() -> Vec<NetworkInterface> + Send + Sync>);

impl Interfaces {
    /// An interface list that `list` produces on each request.
    pub fn asked(list: impl Fn() -> Vec<NetworkInterface> + Send + Sync + 'static) -> Interfaces {
        Interfaces(Box::new(list))
    }

    pub(crate) fn list(&self) -> Vec<NetworkInterface> {
        (self.0)()
    }
}

impl From<Vec<NetworkInterface>> for Interfaces {
    /// A fixed list.
    fn from(list: Vec<NetworkInterface>) -> Interfaces {
        Interfaces::asked(move || list.clone())
    }
}

/// Limits on the resources that peers can occupy.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Sessions per connection.
    pub sessions: usize,
    /// Channels per session: connections that are bound to it.
    pub channels: usize,
    /// How long a session is valid before its client must authenticate again; `None` for no limit.
    pub session_ms: Option<u64>,
    /// Trees per session.
    pub trees: usize,
    /// Opens per session.
    pub opens: usize,
    /// Memory that all sessions together can occupy, in bytes: opens, locks, pipes, watches and what is queued in them.
    /// One address can occupy a quarter of what it leaves free, one user as much as it leaves free.
    pub held_bytes: usize,
    /// File descriptors that all sessions together can hold. An address or a user can hold as many as it leaves free.
    pub descriptors: usize,
    /// Credits that a connection can hold, and so the number of its outstanding requests.
    pub credits: u16,
    /// Requests in one compound.
    pub compound: usize,
    /// Largest READ, WRITE or transact in bytes; at most [`MAX_IO`].
    pub max_io: u32,
    /// Time limit for a connection to authenticate, and for an authentication from its first token to its last.
    pub authenticate_ms: u64,
    /// Credits that a connection can hold before the first log-on: clients ask for one or two then.
    pub credits_of_strangers: u16,
    /// Authentications in progress on a connection before the first log-on. Each takes about 4 KiB.
    pub half_open_of_strangers: usize,
    /// Authentications in progress after the first log-on: several users of a client may log on at the same time.
    pub half_open: usize,
}

/// Clients' open files may use at most one in this many of the process's descriptors. NFS has its own parts.
const OPENED_PART: usize = 4;

impl Limits {
    /// The limits for a process with this many descriptors.
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

/// Which requests must be signed. Clients that ask for signing always get it; encrypted sessions need none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signing {
    /// Requests of all sessions.
    Required,
    /// Requests of sessions that a man in the middle could reach: all except those from this host (loopback, shared
    /// memory) and those on RDMA connections whose client cannot sign RDMA payload, which would otherwise lose RDMA.
    #[default]
    Exposed,
    /// Requests of clients that ask for it.
    Enabled,
}

/// A server's configuration.
pub struct Config {
    /// Identifies this server to clients; should be stable across restarts.
    pub server_guid: [u8; 16],
    /// NetBIOS-like name, shown in the NTLM challenge.
    pub name: String,
    /// The shares.
    pub shares: Vec<Share>,
    /// The users.
    pub users: Vec<User>,
    /// The groups, with and without members.
    pub groups: Vec<String>,
    /// The names by which clients may call this server, including `name`.
    pub names: Arc<ServerNames>,
    /// Which sessions must sign.
    pub signing: Signing,
    /// The oldest supported dialect.
    pub min_dialect: Dialect,
    /// Refuse sessions that do not encrypt.
    pub require_encryption: bool,
    /// Let a session have several connections (3.x).
    pub multichannel: bool,
    /// Answer to FSCTL_QUERY_NETWORK_INTERFACE_INFO.
    pub interfaces: Interfaces,
    /// Answer to FSCTL_WEFT_ENDPOINTS: lines of UTF-8.
    pub endpoints: String,
    /// Optional features.
    pub offers: Offers,
    /// Payload buffers.
    pub pool: Pool,
    /// Limits.
    pub limits: Limits,
}

impl Config {
    /// A server with these shares and users, named "WEFT" only, and defaults for everything else. Use the same
    /// `server_guid` again after a restart.
    pub fn new(server_guid: [u8; 16], shares: Vec<Share>, users: Vec<User>, pool: Pool) -> Config {
        Config {
            server_guid,
            name: "WEFT".into(),
            shares,
            users,
            groups: Vec::new(),
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

/// Optional features of a server; all off by default.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// DFS links to other shares.
    pub dfs: dfs::Namespace,
    /// Compress messages with clients that ask for it, on connections without RDMA.
    pub compression: bool,
    /// Shares whose clients are told to request compression; in lower case.
    pub compressed: Vec<String>,
    /// The keytab that Kerberos tickets are checked against.
    pub keytab: Option<Arc<Keytab>>,
    /// Which users the principals of tickets are.
    pub principals: Arc<Principals>,
    /// Finds accounts and groups of the system: a user with the name of an account has its uid and its groups, and
    /// rights may name groups of the system.
    pub system: Option<Arc<Lookups>>,
    /// The journal of handles that survive a restart of the server.
    pub journal: Option<journal::Journal>,
    /// Continuously available shares, on which clients may ask for persistent handles; in lower case. Needs `journal`.
    pub continuous: Vec<String>,
    /// Offer the POSIX extensions to clients that ask for them.
    pub posix: bool,
    /// Answer Macs what they ask beyond SMB, with this model of the server; `None`: they are answered like other clients.
    pub mac_model: Option<Arc<str>>,
    /// The audit log.
    pub audit: Audit,
}

impl Offers {
    /// Whether a share's handles can survive a restart of the server.
    pub(crate) fn is_continuous(&self, share: &str) -> bool {
        self.journal.is_some()
            && !self.continuous.is_empty()
            && self.continuous.contains(&share.to_lowercase())
    }
}

/// A server, shared by all cores.
pub struct Server {
    /// The configuration without its shares and users, which are in `shares` and `directory`.
    pub(crate) config: Config,
    pub(crate) shares: CurrentShares,
    pub(crate) sessions: Sessions,
    /// State that outlives a session, or belongs to a client rather than to one of its sessions.
    pub(crate) handles: ops::Handles,
    /// Accounts and groups of the system.
    pub(crate) system: Arc<System>,
    clients: Arc<Clients>,
    directory: directory::Current,
    delays: Delays,
    refusals: Refusals,
    /// Memory that sessions occupy.
    held: Budget,
    /// The budget for [`Limits::descriptors`].
    descriptors: Budget,
    name: Arc<str>,
    drain: Drain,
    spare: Spare,
}

impl Server {
    /// A server without connections.
    pub fn new(mut config: Config) -> Arc<Server> {
        config.limits.max_io = config.limits.max_io.min(MAX_IO);
        let name = Arc::from(config.name.as_str());
        let system = Arc::new(System::new(config.offers.system.take()));
        let (users, groups) = (std::mem::take(&mut config.users), std::mem::take(&mut config.groups));
        let directory = Directory::new(&config.name, &users, &groups, system.clone());
        // Measured now rather than during the first log-on.
        Engine::choose();
        let held = Budget::new(config.limits.held_bytes);
        let descriptors = Budget::shared(config.limits.descriptors, held::DESCRIPTOR_SHARE);
        let shares = CurrentShares::new(std::mem::take(&mut config.shares));
        let spare = Spare::new(config.pool.clone());
        Arc::new(Server {
            config,
            shares,
            sessions: Sessions::default(),
            handles: ops::Handles::default(),
            system,
            clients: Arc::default(),
            directory: directory::Current::new(directory),
            delays: Delays::default(),
            refusals: Refusals::default(),
            held,
            descriptors,
            name,
            drain: Drain::default(),
            spare,
        })
    }

    /// Returns memory that was not needed lately to the system. Must be called every few seconds, as [`Pool::trim`].
    pub fn trim(&self) {
        self.spare.trim();
    }

    /// Serves these shares from now on. A connected tree keeps its share with its requirements until the client
    /// connects again, or until [`Server::replace_users`]. A share whose files should stay open must have the same file
    /// system as the one that it replaces.
    pub fn replace_shares(&self, shares: Vec<Share>) {
        self.shares.replace(shares);
    }

    /// Lets these users log on from now on, and ends what the current users and shares no longer allow: sessions and
    /// waiting handles of users who are gone, even if others have their names now, trees and waiting handles on shares that are gone or serve other files,
    /// trees whose share now demands more than when they were connected, and tokens of what the user may no longer
    /// read. All other sessions stay, also if the password has changed. `groups` are the names of all groups, also of
    /// those without members.
    ///
    /// Accounts of the system are looked up again: sessions of users who are only there end with their account.
    pub fn replace_users<'a>(&'a self, users: &'a [User], groups: &'a [String]) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let directory = Directory::new(&self.name, users, groups, self.system.clone());
            let directory = self.directory.replace(directory);
            let shares = self.shares.now();
            let is_served = |vfs: &Vfs| shares.iter().any(|share| share.vfs.id() == vfs.id());
            let stays = |user: &str, id, vfs: &Vfs| directory.knows_user(user, id) && is_served(vfs);
            self.handles.close_waiting_unless(stays);
            // Nobody who is gone stays while a directory service does not answer, and no tree waits for a disk that hangs.
            let apply = async {
                self.system.read_again().await;
                self.resolve_groups().await;
                let sessions = self.sessions.all();
                let may_read = |user: &str, share: ShareKey| {
                    let who = match sessions.iter().find(|session| *session.user == *user) {
                        Some(session) => session.who(),
                        None => Who { user, is_ours: directory.is_ours(user), account: None },
                    };
                    shares.of(share).is_some_and(|share| directory.right(who, &share.rules) >= Right::Read)
                };
                self.handles.end_tokens_unless(may_read);
                let ends = sessions.iter().map(async |session| {
                    session
                        .disconnect_unless(|tree| tree::is_allowed(session, tree, &directory, &shares))
                        .await;
                });
                join(self.end_unknown(&directory), join_all(ends)).await;
                self.handles.end_tokens_unless(may_read);
            };
            join(self.end_unknown(&directory), apply).await;
            // Sessions that ended may have left handles that wait.
            self.handles.close_waiting_unless(stays);
        })
    }

    /// Ends the sessions of users who may no longer use the server, together.
    async fn end_unknown(&self, directory: &Directory) {
        let sessions = self.sessions.all();
        let is_known = |session: &Session| {
            directory.knows(session.who()) && directory.knows_user(&session.user, session.user_id)
        };
        let unknown = sessions.iter().filter(|session| !is_known(session));
        let ends = unknown.map(async |session| {
            tracing::info!(user = %session.user, "the session ends: its user was removed");
            session.end(&self.sessions).await;
        });
        join_all(ends).await;
    }

    /// Asks for the ids of the groups of the system that rights name.
    pub(crate) async fn resolve_groups(&self) {
        if self.system.is_used() {
            let (shares, directory) = (self.shares.now(), self.directory());
            self.system.resolve(shares.iter().map(|share| &**share), directory.all_groups()).await;
        }
    }

    /// Whether this user, who is not ours, may log on by ticket with an account of the system.
    pub(crate) fn admits_system_user(&self, user: &str) -> bool {
        self.config.offers.keytab.is_some() && self.config.offers.principals.may_be_system(user)
    }

    /// The users at this time.
    pub(crate) fn directory(&self) -> Arc<Directory> {
        self.directory.get()
    }

    /// Reopens the handles that clients had in the previous run, and keeps them for those clients. Call this before
    /// serving.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn restore(self: &Arc<Server>) -> LocalBoxFuture<'_, Result<(), journal::Unusable>> {
        Box::pin(async move { ops::restore(self).await })
    }

    /// Reopens the handles that were not restored because their shares were absent or did not answer, on those of these
    /// shares that are there now. Call this before the shares are served, because clients would open the files.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn restore_on<'a>(
        self: &'a Arc<Server>,
        shares: &'a [Share],
    ) -> LocalBoxFuture<'a, Result<(), journal::Unusable>> {
        Box::pin(ops::restore_on(self, shares))
    }

    /// Serves one connection to its end. One task per connection; requests run inside it.
    pub async fn serve(self: &Arc<Server>, channel: Rc<dyn Channel>) {
        self.accept(channel).run().await;
    }

    /// A connection that is not running yet, so that the caller can observe it meanwhile.
    pub fn accept(self: &Arc<Server>, channel: Rc<dyn Channel>) -> Served {
        Served(Rc::new(Connection::new(self.clone(), channel)))
    }

    /// Ends all connections on every core: received requests are answered, no more are accepted.
    pub fn drain(&self) {
        self.drain.begin();
    }

    /// Who is charged for a client's resources. If only one user can log on, its share would be everything, and a few
    /// addresses could exhaust it for the next one; then only addresses are charged.
    fn holder(&self, source: Option<Source>, user: &Arc<str>) -> Holder {
        Holder { source, user: self.has_several_users().then(|| user.clone()) }
    }

    /// Whether several users can log on.
    fn has_several_users(&self) -> bool {
        self.directory().has_several() || self.config.offers.keytab.is_some()
    }

    /// The current number of sessions.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }
}

#[cfg(any(test, fuzzing))]
mod tests;
#[cfg(fuzzing)]
pub use tests::fuzz::smb_server;
