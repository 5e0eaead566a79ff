//! The state that a session shares with its trees and files.
//!
//! Spec: [MS-SMB2] 3.2.1.3 (session), 3.2.1.4 (tree connect), 3.2.4.20 (IOCTL), 3.2.4.22 (leaving), 3.2.5.5
//! (validation). Owns the connections, which close when the last session, tree and file is dropped, and the tree
//! connects, each of which ends with its last tree and file.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Pool, rt};
use weft_wire::security::Sid;
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{Command, Dialect, FileId, NtStatus, tree_disconnect};

use super::connections::{Connection, Connections};
use super::description::Description;
use super::error::Error;
use super::leases::Leases;
use super::link::{Call, Policy, Protection, Reply, Security, TreeConnect};
use super::negotiate::Negotiated;
use super::options::Options;

/// Payload bytes per credit ([MS-SMB2] 3.1.5.2).
pub(super) const CREDIT_BYTES: usize = 64 << 10;
/// Bytes of a message besides its payload: transform header, header, the largest fixed part of a body.
const OVERHEAD: usize = 256;

/// State shared by session, trees and files.
pub(super) struct Core {
    pub connections: Connections,
    /// What the first connection negotiated; the others agree with it.
    pub negotiated: Rc<Negotiated>,
    pub options: Options,
    /// The session's keys, needed to bind further connections.
    pub security: Rc<Security>,
    /// What we or the server require of every request.
    pub policy: Policy,
    /// Number of bindings attempted.
    pub bindings: Cell<u32>,
    /// A tree for IOCTLs that need no particular one; see [`super::session::Session::any_tree`].
    pub any_tree: Cell<Option<TreeConnect>>,
    /// The leases of its durable handles.
    pub leases: Rc<Leases>,
    pub validated: Cell<bool>,
    /// The session was logged off: its trees and files have ended too, and nothing is encrypted with its keys any more.
    pub ended: Cell<bool>,
}

impl Core {
    /// A request that names no tree.
    pub fn request(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
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
    pub fn call(&self, mut call: Call) -> LocalBoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let mut backoff = ReplayBackoff::new(&self.options);
            loop {
                let connection = self.connections.any();
                if self.connections.len() == 1 && self.connections.lost() == 0 {
                    return connection.link.call(call).await;
                }
                match connection.link.call(call.clone()).await {
                    Err(e) if self.connections.goes_on(&connection, &e) => {}
                    Ok(reply)
                        if reply.header.status == NtStatus::FILE_NOT_AVAILABLE && backoff.wait().await => {}
                    answered => return answered,
                }
                call.replay = true;
            }
        })
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
    pub async fn validate(&self, tree: TreeConnect) -> Result<(), Error> {
        if !self.validated.get() {
            self.validate_on(&self.connections.any(), tree).await?;
            self.validated.set(true);
        }
        Ok(())
    }

    pub async fn validate_on(&self, connection: &Connection, tree: TreeConnect) -> Result<(), Error> {
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

    /// See [`super::tree::Tree::describe`].
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

/// A tree connect, shared by its clones and files.
pub(super) struct TreeCore {
    pub core: Rc<Core>,
    pub connect: TreeConnect,
    pub disk: bool,
    /// Part of a DFS namespace.
    pub dfs: bool,
    /// Continuously available: its handles can be persistent.
    pub available: bool,
    /// Do not disconnect: others use its id, or the server has ended it.
    pub kept: Cell<bool>,
    /// The owner of files that are created here, once known.
    pub owner: RefCell<Option<Sid>>,
}

impl TreeCore {
    /// The connection for payload, and whether the payload moves by RDMA.
    pub fn pick(&self) -> (Rc<Connection>, bool) {
        let connection = self.core.pick(self.connect);
        let rdma = self.core.rdma_by(&connection, self.connect);
        (connection, rdma)
    }

    /// See [`Core::transform`].
    pub fn transform(&self) -> Option<RdmaTransformId> {
        self.core.transform(self.connect)
    }

    pub fn call(&self, command: Command, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        Call::new(command, self.connect, self.core.policy, emit)
    }
}

impl Drop for TreeCore {
    fn drop(&mut self) {
        if !self.kept.get() {
            self.core.left(self.connect);
            let call = self.call(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out));
            self.core.let_go(call);
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
