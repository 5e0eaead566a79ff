//! A session: one log-on over one or more connections, and the shares connected through it.
//!
//! Spec: [MS-SMB2] 3.2.4.2 (connecting), 3.2.4.23 (logging off), 3.2.5.5 (tree connect). What it shares with its trees
//! and files is in `core`. It does not reconnect by itself: see [`Session::again`] and [`Tree::reopen`].

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_transport::{Channel, Kind, Traffic};
use weft_wire::smb2::ioctl::{self, CtlCode, NetworkInterface};
use weft_wire::smb2::session_setup::SessionFlags;
use weft_wire::smb2::tree_connect::{self, RequestFlags, ShareFlags};
use weft_wire::smb2::{Command, Dialect, FileId, Guid, echo, logoff};

use super::connections::{Connection, Connections};
use super::core::Core;
use super::description::Description;
use super::error::{Denial, Error};
use super::leases::Leases;
use super::link::{Link, Policy, TreeConnect};
use super::negotiate::negotiate;
use super::options::{Options, Wish};
use super::setup::{authenticate, bind};
use super::tree::Tree;

/// Requests that one binding takes with NTLM: no two bindings may use the same MessageIds.
const LEGS: u32 = 2;
/// Largest IOCTL output that we ask for: one credit.
const IOCTL_OUTPUT: u32 = 64 << 10;

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
    fn log_on(
        channel: Rc<dyn Channel>,
        options: Options,
        lost: Option<(Guid, u64)>,
    ) -> LocalBoxFuture<'static, Result<Session, Error>> {
        Box::pin(async move {
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
        })
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
