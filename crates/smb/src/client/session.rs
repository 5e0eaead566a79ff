//! A session: one log-on over one or more connections, and the shares connected through it.
//!
//! Spec: [MS-SMB2] 3.2.4.2 (connecting), 3.2.4.20 (IOCTL), 3.2.4.23 (logging off), 3.2.5.5 (tree connect, validation).
//! Owns the connections, shared with its trees and files; dropping the last of them closes the connections. It does not
//! reconnect by itself: see [`Session::again`] and [`Tree::reopen`].

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Pool, rt};
use weft_transport::{Channel, Kind, Traffic};
use weft_wire::smb2::ioctl::{self, CtlCode, NetworkInterface};
use weft_wire::smb2::negotiate::{CipherId, SigningId};
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::session_setup::SessionFlags;
use weft_wire::smb2::tree_connect::{self, RequestFlags, ShareFlags};
use weft_wire::smb2::{Command, Dialect, FileId, Guid, NtStatus, echo, logoff};

use super::connections::{Connection, Connections};
use super::error::{Denial, Error};
use super::leases::Leases;
use super::link::{Call, Link, Policy, Protection, Reply, Security, TreeConnect};
use super::negotiate::{Negotiated, negotiate};
use super::options::{Options, Wish};
use super::setup::{authenticate, bind};
use super::tree::Tree;

/// Payload bytes per credit ([MS-SMB2] 3.1.5.2).
pub(super) const CREDIT_BYTES: usize = 64 << 10;
/// Bytes of a message besides its payload: transform header, header, the largest fixed part of a body.
const OVERHEAD: usize = 256;
/// Requests that one binding takes with NTLM: no two bindings may use the same MessageIds.
const LEGS: u32 = 2;
/// Largest IOCTL output that we ask for: one credit.
const IOCTL_OUTPUT: u32 = 64 << 10;

/// State shared by session, trees and files.
pub(super) struct Core {
    pub connections: Connections,
    /// What the first connection negotiated; the others agree with it.
    pub negotiated: Rc<Negotiated>,
    pub options: Options,
    /// The session's keys, needed to bind further connections.
    security: Rc<Security>,
    /// What we or the server require of every request.
    pub policy: Policy,
    /// Number of bindings attempted.
    bindings: Cell<u32>,
    /// A tree for IOCTLs that need no particular one; see [`Session::any_tree`].
    any_tree: Cell<Option<TreeConnect>>,
    /// The leases of its durable handles.
    pub leases: Rc<Leases>,
    validated: Cell<bool>,
    /// The session was logged off: its trees and files have ended too, and nothing is encrypted with its keys any more.
    ended: Cell<bool>,
}

impl Core {
    /// A request that names no tree.
    fn request(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        Call::new(command, TreeConnect::NONE, self.policy, emit)
    }

    /// This tree ends.
    pub fn left(&self, tree: TreeConnect) {
        if self.any_tree.get() == Some(tree) {
            self.any_tree.set(None);
        }
    }

    /// Sends a request and ignores its response, for handles that are dropped; does nothing after a log-off.
    pub fn let_go(&self, call: Call) {
        if !self.ended.get() {
            self.connections.any().link.send_and_forget(call);
        }
    }

    /// How many bytes one READ may ask for, or one WRITE carry, on this connection.
    pub fn io_bytes(&self, connection: &Connection, server: u32, by_rdma: bool) -> usize {
        let limits = connection.link.channel().limits();
        let carried = match limits.max_rdma {
            Some(max) if by_rdma => max,
            _ => limits.max_message.saturating_sub(OVERHEAD),
        };
        let paid = match connection.negotiated.multi_credit {
            true => CREDIT_BYTES.saturating_mul(connection.link.window().min(u32::from(u16::MAX)) as usize),
            false => CREDIT_BYTES,
        };
        (server as usize).min(carried).min(paid).clamp(1, weft_machine::buf::MAX_BUF)
    }

    /// The buffer pool.
    pub fn pool(&self) -> &Pool {
        &self.options.pool
    }

    /// The connection for payload: one with RDMA if there is one.
    pub fn pick(&self, tree: TreeConnect) -> Rc<Connection> {
        self.connections.pick(|connection| u32::from(self.rdma_by(connection, tree)))
    }

    /// Sends one request without payload; repeats it over another connection if its own is lost.
    pub async fn call(&self, mut call: Call) -> Result<Reply, Error> {
        let mut backoff = ReplayBackoff::new(&self.options);
        loop {
            let connection = self.connections.any();
            if self.connections.len() == 1 && self.connections.lost() == 0 {
                return connection.link.call(call).await;
            }
            match connection.link.call(call.clone()).await {
                Err(e) if self.connections.goes_on(&connection, &e) => {}
                Ok(reply) if reply.header.status == NtStatus::FILE_NOT_AVAILABLE && backoff.wait().await => {}
                answered => return answered,
            }
            call.replay = true;
        }
    }

    /// One IOCTL.
    pub async fn ioctl(&self, tree: TreeConnect, request: &ioctl::Request) -> Result<Bytes, Error> {
        let mut call = Call::new(Command::Ioctl, tree, self.policy, |out| request.emit(out));
        // 3.2.4.1.5: a request may cost several credits only if that was negotiated.
        let bytes = request.input.len().max(request.max_output_response as usize);
        if self.connections.any().negotiated.multi_credit {
            call.charge = u16::try_from(bytes.div_ceil(CREDIT_BYTES).max(1)).unwrap_or(u16::MAX);
        }
        let message = self.call(call).await?.success()?;
        Ok(ioctl::Response::parse(&message)?.output)
    }

    /// 3.2.5.5: nothing else protects NEGOTIATE in 3.0 and 3.0.2, so the server repeats its NEGOTIATE response in a
    /// signed message.
    async fn validate(&self, tree: TreeConnect) -> Result<(), Error> {
        if !self.validated.get() {
            self.validate_on(&self.connections.any(), tree).await?;
            self.validated.set(true);
        }
        Ok(())
    }

    async fn validate_on(&self, connection: &Connection, tree: TreeConnect) -> Result<(), Error> {
        let dialect = self.negotiated.profile.dialect;
        if dialect < Dialect::V3_0 || dialect >= Dialect::V3_1_1 {
            return Ok(());
        }
        let request = ioctl::Request {
            code: CtlCode::VALIDATE_NEGOTIATE_INFO,
            file: FileId::RELATED,
            input: connection.negotiated.validation(),
            max_input_response: 0,
            max_output_response: 24,
            flags: ioctl::Flags::IS_FSCTL,
        };
        let call = Call::new(Command::Ioctl, tree, self.policy, |out| request.emit(out)).at_least_signed();
        let reply = connection.link.call(call).await?;
        let output = match reply.success() {
            Ok(message) => ioctl::Response::parse(&message)?.output,
            // 3.2.5.14.12: a signed refusal means that the server does not know the request; unsigned responses were
            // rejected earlier.
            Err(e) if e.status().is_some_and(|s| s != NtStatus::ACCESS_DENIED) => return Ok(()),
            Err(e) => return Err(e),
        };
        connection.negotiated.validate(&output)
    }
}

/// A log-on at a server. Cloning shares it; the connections close when the last clone, tree and file is dropped.
///
/// ```no_run
/// # async fn example(channel: std::rc::Rc<dyn weft_transport::Channel>, pool: weft_machine::Pool)
/// # -> Result<(), weft_smb::client::Error> {
/// use weft_smb::client::{OpenOptions, Options, Session};
///
/// let session = Session::connect(channel, Options::new("server", "alice", "secret", pool)).await?;
/// println!("{}", session.describe());
/// let tree = session.tree("data").await?;
/// let file = tree.open("dir/hello.txt", OpenOptions::read()).await?;
/// let bytes = file.read(0, 4096).await?;
/// file.close().await?;
/// session.logoff().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Session(Rc<Core>);

impl Session {
    /// Negotiates and logs on over a fresh channel.
    ///
    /// # Errors
    /// [`Error::Status`] with STATUS_LOGON_FAILURE for a wrong user name or password; [`Error::Denied`] if the server
    /// does not support what `options` requires.
    pub async fn connect(channel: Rc<dyn Channel>, options: Options) -> Result<Session, Error> {
        Session::log_on(channel, options, None).await
    }

    /// Replaces this session, whose connections are all lost: logs on as the same client and user over a fresh channel.
    /// Use [`Tree::reopen`] to reconnect its durable handles.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub async fn again(&self, channel: Rc<dyn Channel>) -> Result<Session, Error> {
        let lost = (self.0.negotiated.client_guid(), self.0.security.session_id);
        let mut options = self.0.options.clone();
        // A restarted server may have another ServerGuid.
        options.server = None;
        Session::log_on(channel, options, Some(lost)).await
    }

    /// `lost`: ClientGuid and SessionId of the session that this one replaces.
    async fn log_on(
        channel: Rc<dyn Channel>,
        options: Options,
        lost: Option<(Guid, u64)>,
    ) -> Result<Session, Error> {
        let link = Link::new(channel, options.pool.clone(), options.credits, options.timeout);
        let negotiated = Rc::new(negotiate(&link, &options, lost.map(|(client, _)| client)).await?);
        if options.encryption == Wish::Required && negotiated.profile.cipher.is_none() {
            return Err(Denial::Encryption.into());
        }
        link.set_compression(negotiated.compression.clone());
        if negotiated.multi_credit {
            link.set_multi_credit();
        }
        let (security, flags) =
            authenticate(&link, &negotiated, &options, lost.map_or(0, |(_, id)| id)).await?;
        let sealed = options.encryption == Wish::Required || flags.contains(SessionFlags::ENCRYPT_DATA);
        if sealed && security.keys.sealer.is_none() {
            return Err(Denial::Encryption.into());
        }
        let security = Rc::new(security);
        link.set_security(security.clone());
        let policy = Policy { sealed, signed: negotiated.signing_required() };
        let leases = Rc::new(Leases::new(policy));
        link.set_leases(leases.clone());
        Ok(Session(Rc::new(Core {
            leases,
            policy,
            connections: Connections::new(Connection::new(link, negotiated.clone())),
            negotiated,
            options,
            security,
            bindings: Cell::new(0),
            any_tree: Cell::new(None),
            validated: Cell::new(false),
            ended: Cell::new(false),
        })))
    }

    /// Whether the session may have more connections (see [`Session::add`]).
    pub fn is_multichannel(&self) -> bool {
        self.0.negotiated.multichannel()
    }

    /// Binds one more connection to the session, over a fresh channel. Payload prefers connections with RDMA, and among
    /// those the one with the fewest bytes in flight. A lost connection is no longer used, and its unanswered requests
    /// are repeated over another one.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the server or the dialect has no multichannel; [`Error::Violation`] if another server
    /// answers. The session itself is unaffected.
    pub async fn add(&self, channel: Rc<dyn Channel>) -> Result<(), Error> {
        let core = &self.0;
        if !self.is_multichannel() {
            return Err(Error::Misuse("the server has one connection per session: no multichannel"));
        }
        let options = &core.options;
        let link = Link::new(channel, options.pool.clone(), options.credits, options.timeout);
        let negotiated = negotiate(&link, options, Some(core.negotiated.client_guid())).await?;
        if !negotiated.agrees(&core.negotiated) {
            return Err(Error::Violation("another server answers there, or it negotiates differently"));
        }
        link.set_compression(negotiated.compression.clone());
        if negotiated.multi_credit {
            link.set_multi_credit();
        }
        let bindings = core.bindings.replace(core.bindings.get().saturating_add(1));
        link.skip(bindings.saturating_mul(LEGS));
        let security = bind(&link, &negotiated, options, &core.security).await?;
        link.set_security(Rc::new(security));
        link.end_skipping();
        link.set_leases(core.leases.clone());
        let connection = Connection::new(link, Rc::new(negotiated));
        if core.validated.get() {
            core.validate_on(&connection, self.any_tree().await?).await?;
        }
        core.connections.add(connection);
        for connection in core.connections.live() {
            connection.link.set_patience(options.failover.min(options.timeout), core.policy);
        }
        Ok(())
    }

    /// The live connections of the session, oldest first.
    pub fn carriers(&self) -> Vec<Carrier> {
        let carrier = |connection: Rc<Connection>| {
            let channel = connection.link.channel();
            Carrier {
                peer: channel.peer().to_string(),
                transport: channel.kind(),
                medium: channel.medium(),
                traffic: channel.traffic(),
            }
        };
        self.0.connections.live().into_iter().filter(|c| !c.link.is_ended()).map(carrier).collect()
    }

    /// Number of connections lost while others remained.
    pub fn lost_connections(&self) -> u32 {
        self.0.connections.lost()
    }

    /// Connects to a share.
    pub async fn tree(&self, share: &str) -> Result<Tree, Error> {
        if share.is_empty() || share.contains(['\\', '/', '\0']) {
            return Err(Error::Misuse("a share name contains no slashes"));
        }
        let core = &self.0;
        let request = tree_connect::Request {
            flags: RequestFlags::NONE,
            path: format!(r"\\{}\{share}", core.options.host),
        };
        let mut call = core.request(Command::TreeConnect, |out| request.emit(out));
        // 3.2.4.1.1: in 3.1.1 this request is signed even if others are not.
        if core.negotiated.profile.dialect >= Dialect::V3_1_1 {
            call = call.at_least_signed();
        }
        let reply = core.call(call).await?;
        let id = reply.header.tree_id().ok_or(Error::Violation("TREE_CONNECT: no TreeId"))?;
        let response = tree_connect::Response::parse(&reply.success()?)?;
        let tree = TreeConnect { id, sealed: response.flags.contains(ShareFlags::ENCRYPT_DATA) };
        if tree.sealed && core.security.keys.sealer.is_none() {
            return Err(Denial::Encryption.into());
        }
        core.validate(tree).await?;
        if core.any_tree.get().is_none() {
            core.any_tree.set(Some(tree));
        }
        Ok(Tree::new(core.clone(), tree, &response))
    }

    /// A tree for requests that need no particular one: the first that is still connected, or that of `IPC$`. Its share
    /// may require encryption.
    async fn any_tree(&self) -> Result<TreeConnect, Error> {
        match self.0.any_tree.get() {
            Some(tree) => Ok(tree),
            None => {
                // Kept for the session's lifetime: only its id is needed.
                let tree = self.tree("IPC$").await?.keep();
                self.0.any_tree.set(Some(tree));
                Ok(tree)
            }
        }
    }

    /// The server's name as the user gave it.
    pub(super) fn host(&self) -> &str {
        &self.0.options.host
    }

    /// Sends a control code that concerns no file. Connects to `IPC$` if no share was connected yet.
    pub async fn ioctl(&self, code: CtlCode, input: Bytes) -> Result<Bytes, Error> {
        let tree = self.any_tree().await?;
        let request = ioctl::Request {
            code,
            file: FileId::RELATED,
            input,
            max_input_response: 0,
            max_output_response: IOCTL_OUTPUT,
            flags: ioctl::Flags::IS_FSCTL,
        };
        self.0.ioctl(tree, &request).await
    }

    /// The server's interfaces, to choose further connections from.
    pub async fn interfaces(&self) -> Result<Vec<NetworkInterface>, Error> {
        let output = self.ioctl(CtlCode::QUERY_NETWORK_INTERFACE_INFO, Bytes::new()).await?;
        Ok(NetworkInterface::parse_list(&output)?)
    }

    /// The other addresses at which a Weft server listens. Other servers do not know the request and fail it with
    /// STATUS_INVALID_DEVICE_REQUEST or STATUS_NOT_SUPPORTED.
    pub async fn endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        let output = self.ioctl(CtlCode::WEFT_ENDPOINTS, Bytes::new()).await?;
        let text = std::str::from_utf8(&output).map_err(|_| Error::Violation("endpoints are not UTF-8"))?;
        Ok(text.lines().filter_map(Endpoint::parse).collect())
    }

    /// Makes one empty round trip.
    pub async fn echo(&self) -> Result<(), Error> {
        let call = self.0.request(Command::Echo, |out| echo::Request.emit(out));
        let message = self.0.call(call).await?.success()?;
        echo::Response::parse(&message)?;
        Ok(())
    }

    /// Ends the session; the server closes its open files.
    pub async fn logoff(&self) -> Result<(), Error> {
        let call = self.0.request(Command::Logoff, |out| logoff::Request.emit(out));
        let message = self.0.connections.any().link.call(call).await?.success()?;
        logoff::Response::parse(&message)?;
        self.0.ended.set(true);
        Ok(())
    }

    /// What was negotiated, and what protects requests outside of shares. A share may require more: see
    /// [`Tree::describe`].
    pub fn describe(&self) -> Description {
        self.0.describe(TreeConnect::NONE)
    }

    /// Traffic so far, by RDMA and in messages, over all connections.
    pub fn traffic(&self) -> Traffic {
        self.0.connections.traffic()
    }

    /// How often a request waited for credits, on the live connections.
    pub fn credits_starved(&self) -> u64 {
        self.0.connections.live().iter().map(|connection| connection.link.starved()).sum()
    }
}

impl Core {
    /// Whether payload may move by RDMA on this connection. If messages are signed or encrypted, the payload must be
    /// too, which requires a negotiated RDMA transform.
    pub fn rdma_by(&self, connection: &Connection, tree: TreeConnect) -> bool {
        let protected = match self.transform(tree) {
            Some(kind) => connection.negotiated.transforms.contains(&kind),
            None => true,
        };
        protected
            && self.negotiated.profile.dialect >= Dialect::V3_0
            && connection.link.channel().limits().max_rdma.is_some()
    }

    /// See [`Tree::describe`].
    pub fn describe(&self, tree: TreeConnect) -> Description {
        let connection = self.pick(tree);
        let channel = connection.link.channel();
        let profile = &connection.negotiated.profile;
        let protection = self.policy.of(tree);
        Description {
            peer: channel.peer().to_string(),
            transport: channel.kind(),
            medium: channel.medium(),
            dialect: profile.dialect,
            signing: (protection == Protection::Signed).then_some(profile.signing),
            cipher: profile.cipher.filter(|_| protection == Protection::Sealed),
            by_share: tree.sealed && !self.policy.sealed,
            rdma: self.rdma_by(&connection, tree),
            server_guid: self.negotiated.server_guid,
            connections: self.connections.len(),
        }
    }

    /// The transform to apply to RDMA payload.
    pub fn transform(&self, tree: TreeConnect) -> Option<RdmaTransformId> {
        match self.policy.of(tree) {
            Protection::None => None,
            Protection::Signed => Some(RdmaTransformId::SIGNING),
            Protection::Sealed => Some(RdmaTransformId::ENCRYPTION),
        }
    }
}

/// Backoff for repeating a request that was refused because its original is still being carried out.
pub(super) struct ReplayBackoff {
    next: Duration,
    left: Duration,
}

impl ReplayBackoff {
    pub fn new(options: &Options) -> ReplayBackoff {
        ReplayBackoff { next: Duration::from_millis(5), left: options.timeout }
    }

    /// Waits, longer each time; false once the time limit is reached.
    pub async fn wait(&mut self) -> bool {
        if self.left.is_zero() {
            return false;
        }
        let wait = self.next.min(self.left);
        rt::sleep(wait).await;
        self.left = self.left.saturating_sub(wait);
        self.next = self.next.saturating_mul(2).min(Duration::from_secs(1));
        true
    }
}

/// One connection of a session.
#[derive(Clone, Debug)]
pub struct Carrier {
    /// The server's address.
    pub peer: String,
    /// SMB over TCP or SMB Direct.
    pub transport: Kind,
    /// "tcp", "iwarp", "shm", "rnic".
    pub medium: &'static str,
    /// Its traffic so far.
    pub traffic: Traffic,
}

/// An endpoint of a Weft server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// "iwarp", "shm", "nfs", ...
    pub kind: String,
    /// The address or port.
    pub address: String,
}

impl Endpoint {
    fn parse(line: &str) -> Option<Endpoint> {
        let (kind, address) = line.trim().split_once(' ')?;
        Some(Endpoint { kind: kind.to_owned(), address: address.trim().to_owned() })
    }
}

/// The properties of a session, or of a share in it; its `Display` is one line for a user.
#[derive(Clone, Debug)]
pub struct Description {
    /// The server.
    pub peer: String,
    /// SMB over TCP or SMB Direct.
    pub transport: Kind,
    /// "tcp", "iwarp", "shm".
    pub medium: &'static str,
    /// Dialect.
    pub dialect: Dialect,
    /// How messages are signed, if they are.
    pub signing: Option<SigningId>,
    /// How messages are encrypted, if they are.
    pub cipher: Option<CipherId>,
    /// Whether it is the share that requires encryption; the session does not.
    pub by_share: bool,
    /// Whether large READs and WRITEs move by RDMA.
    pub rdma: bool,
    /// The server's identity.
    pub server_guid: Guid,
    /// Number of connections.
    pub connections: usize,
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Kind::Smbd => "SMB Direct over ",
            _ => "",
        };
        write!(f, "SMB {} to {} by {transport}{}", self.dialect, self.peer, self.medium)?;
        match (self.cipher, self.signing) {
            (Some(cipher), _) if self.by_share => write!(f, ", encrypted for the share ({cipher:?})")?,
            (Some(cipher), _) => write!(f, ", encrypted ({cipher:?})")?,
            (None, Some(signing)) => write!(f, ", signed ({signing:?})")?,
            (None, None) => f.write_str(", neither signed nor encrypted")?,
        }
        f.write_str(if self.rdma { ", payload by RDMA" } else { ", payload in messages" })?;
        match self.connections {
            1 => Ok(()),
            n => write!(f, ", {n} connections"),
        }
    }
}
