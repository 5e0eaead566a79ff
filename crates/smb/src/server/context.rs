//! What an operation sees: the server, its connection, session and tree, the request, and the shape of a reply.
//!
//! Spec: [MS-SMB2] 3.3.1 (abstract data model). What is checked before an operation runs is in [`super::admission`].
//!
//! `ops` gives the core three things: `ops::dispatch(cx) -> Answer` carries out CREATE to SET_INFO and IOCTL by
//! `cx.header().command`; `ops::Opens` (`Default + Send + Sync`, one in every [`Session`]) is the open table; its
//! `close_tree` and `close_all` end opens, delete-on-close included. NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_*,
//! ECHO and CANCEL belong to the core.
//!
//! Owns: nothing beyond the operation; everything is shared by `Rc` or `Arc`. Does not: sign, encrypt, count credits
//! or look at other requests of the compound (see [`super::connection`]).

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Buf, Payload};
use weft_transport::{Channel, SHORT_ANSWER, Segment, Stag};
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{Command, Dialect, FileId, HEADER_LEN, Header, NtStatus, error};

use super::admission::Admitted;
use super::connection::Connection;
use super::ops::Outstanding;
use super::requests::{Cancel, MAX_WAITING};
use super::session::{Session, Tree};
use super::{Config, Server};
use crate::crypto::SigningKey;

/// The state that one operation runs in. Cheap to clone parts out of; lives until the operation has answered.
///
/// It is made of nothing but an [`Admitted`] request, so the session, the signature or encryption, and the tree have been
/// checked. The core has also checked the header, and that the sequence window and the credit charge allow it.
pub(crate) struct OpContext {
    admitted: Admitted,
    /// The FileId of the request before this one in a related compound ([MS-SMB2] 3.3.5.2.7.2), then the one that
    /// this request used; [`OpContext::file_id`] and [`OpContext::set_file_id`] keep it.
    pub(super) file_id: Cell<Option<FileId>>,
    /// AsyncId, once an interim response has gone out.
    pub(super) async_id: Cell<Option<u64>>,
    /// The open that it counts on; see [`super::ops::Outstanding`].
    pub(super) outstanding: RefCell<Option<Outstanding>>,
    /// Whether the request is the last one of its message.
    last: bool,
    /// Entered with the connection while the operation waits.
    cancel: OnceCell<Rc<Cancel>>,
}

impl Drop for OpContext {
    fn drop(&mut self) {
        if self.cancel.get().is_some() {
            self.connection().waiting.leave(self.header().message_id);
        }
    }
}

impl OpContext {
    /// For an operation that nothing has been done of. `file_id`: of the request before, in a related compound; `last`: no request
    /// follows in its message.
    #[inline(always)]
    pub fn new(admitted: Admitted, file_id: Option<FileId>, last: bool) -> OpContext {
        OpContext {
            admitted,
            file_id: Cell::new(file_id),
            async_id: Cell::new(None),
            outstanding: RefCell::new(None),
            last,
            cancel: OnceCell::new(),
        }
    }

    /// The same request for a task of its own, which may outlast the connection that it came by. What it learns of
    /// FileId and AsyncId is taken over by [`OpContext::adopt`].
    pub fn detach(&self) -> OpContext {
        let detached = OpContext::new(self.admitted.detach(), self.file_id.get(), self.last);
        detached.async_id.set(self.async_id.get());
        detached
    }

    /// The end of a request that was detached.
    pub fn adopt(&self, detached: &OpContext) {
        self.file_id.set(detached.file_id.get());
        self.async_id.set(detached.async_id.get());
        self.outstanding.replace(detached.outstanding.take());
    }

    /// The server: configuration, sessions, start time.
    pub fn server(&self) -> &Arc<Server> {
        &self.connection().server
    }

    /// The connection that the request came by.
    pub fn connection(&self) -> &Rc<Connection> {
        self.admitted.connection()
    }

    /// The session that it names.
    pub fn session(&self) -> &Arc<Session> {
        self.admitted.session()
    }

    /// The tree that it names.
    pub fn tree(&self) -> &Arc<Tree> {
        self.admitted.tree()
    }

    /// Its header.
    pub fn header(&self) -> &Header {
        self.admitted.header()
    }

    /// The whole SMB2 message, header first, without the rest of the compound: the offsets in SMB2 structures count
    /// from its start. Slices of it are owned and cheap (a WRITE's payload is `message.slice(..)`).
    pub fn message(&self) -> &Bytes {
        self.admitted.message()
    }

    /// Whether it came encrypted. Then the answer is encrypted too, and RDMA channels are refused
    /// unless their payload is encrypted as well.
    pub fn encrypted(&self) -> bool {
        self.admitted.encrypted()
    }

    /// The key that verified its signature, when it came signed: the answer is signed by it too.
    pub fn signed(&self) -> Option<&Arc<SigningKey>> {
        self.admitted.signed()
    }

    /// The FileId that the request means: the one that it carries, or, whatever that is, the one of the request before
    /// it when it is related. Remembers it for the requests that follow.
    pub fn file_id(&self, carried: FileId) -> FileId {
        let related = self.header().flags.contains(Flags::RELATED_OPERATIONS);
        let id = if related { self.file_id.get().unwrap_or(carried) } else { carried };
        self.file_id.set(Some(id));
        id
    }

    /// What CREATE opened: requests related to it inherit it.
    pub fn set_file_id(&self, id: FileId) {
        self.file_id.set(Some(id));
    }

    /// The negotiated dialect.
    pub fn dialect(&self) -> Dialect {
        self.connection().dialect()
    }

    /// The transport: `remote` is the payload of an RDMA WRITE.
    pub fn channel(&self) -> &Rc<dyn Channel> {
        &self.connection().channel
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.server().config
    }

    /// The most bytes that a READ, WRITE or a QUERY may move: the limit told to the client in NEGOTIATE and the
    /// credits that it paid ([MS-SMB2] 3.3.5.2.5: 64 KiB a credit). The credit charge itself is checked by the core;
    /// an operation compares its own length with this and answers STATUS_INVALID_PARAMETER above it.
    pub fn max_payload(&self) -> u32 {
        self.connection().max_payload(self.header())
    }

    /// Largest payload that an answer can carry inside its message, in bytes.
    pub fn max_inline(&self) -> usize {
        self.connection().max_inline()
    }

    /// Room for an answer of at most so many bytes, to be asked for before it is made, and before anything that others wait for is
    /// held; see [`Reply::room`].
    pub async fn room(&self, len: usize) -> Option<Box<Buf>> {
        match len > SHORT_ANSWER {
            true => Some(Box::pin(self.connection().room(len)).await),
            false => None,
        }
    }

    /// Tells the client that the answer will take long: an interim STATUS_PENDING goes out now
    /// ([MS-SMB2] 3.3.4.2). Call it before waiting for something that a peer decides; again it does nothing. In a
    /// compound it does nothing but for the last request, and for a CREATE (3.3.5.2.7, note 266): there the operation answers
    /// when it can.
    pub fn pending(&self) {
        let tells = self.last || self.header().command == Command::Create;
        if tells && self.async_id.get().is_none() {
            self.async_id.set(Some(self.connection().interim(self)));
        }
    }

    /// Refuses to wait for what may never come, where the connection's client has enough of that waiting (3.3.4.2).
    pub fn may_wait(&self) -> Result<(), NtStatus> {
        match self.connection().waiting.len() < MAX_WAITING {
            true => Ok(()),
            false => Err(NtStatus::INSUFFICIENT_RESOURCES),
        }
    }

    /// Ends when a CANCEL names this request; the operation then answers STATUS_CANCELLED. Operations that cannot
    /// wait long ignore it.
    pub async fn cancelled(&self) {
        let cancel = self.cancel.get_or_init(|| {
            let cancel = Rc::<Cancel>::default();
            self.connection().waiting.enter(self.header().message_id, self.session().id, cancel.clone());
            cancel
        });
        cancel.wait().await;
    }
}

/// A successful answer (or a warning that carries data).
///
/// An operation emits its fixed body and its control bytes behind the reserved header:
///
/// ```ignore
/// let mut reply = Reply::new();
/// response.emit(&mut reply.message);
/// ```
#[derive(Debug)]
pub(crate) struct Reply {
    /// STATUS_SUCCESS, or a status of warning severity with which the body is still sent
    /// (STATUS_BUFFER_OVERFLOW).
    pub status: NtStatus,
    /// [`HEADER_LEN`] bytes that the core fills in, then the body. Offsets in the body count from byte 0 of this.
    pub message: Vec<u8>,
    /// Where a long `message` goes until the network has taken it: memory of the part of the pool that all answers to the client's
    /// address share. In a box, because short answers have none.
    pub room: Option<Box<Buf>>,
    /// Payload of a READ, not read yet when it is a file range: it follows `message` on the wire, or goes into
    /// `segments`.
    pub payload: Option<Payload>,
    /// Segments of the client's memory that the payload goes to by RDMA Write; empty: inline.
    pub segments: Vec<Segment>,
    /// What is done to the payload before it goes into `segments`; `message` then ends with room for telling how.
    pub transform: Option<RdmaTransformId>,
    /// The region that the answer revokes (SMB2_CHANNEL_RDMA_V1_INVALIDATE).
    pub invalidate: Option<Stag>,
    /// Whether its client would like it compressed.
    pub compress: bool,
}

impl Reply {
    /// STATUS_SUCCESS with an empty body behind the reserved header.
    pub fn new() -> Reply {
        Reply::with_capacity(64)
    }

    /// The same, with room for a body of `len` bytes.
    pub fn with_capacity(len: usize) -> Reply {
        let mut message = Vec::with_capacity(HEADER_LEN.saturating_add(len));
        message.resize(HEADER_LEN, 0);
        Reply {
            status: NtStatus::SUCCESS,
            message,
            room: None,
            payload: None,
            segments: Vec::new(),
            transform: None,
            invalidate: None,
            compress: false,
        }
    }

    /// Whether `message` has to be in a room, and is not.
    pub(super) fn is_long(&self) -> bool {
        self.message.len() > HEADER_LEN + SHORT_ANSWER && self.payload.is_none()
    }

    /// Moves the end of `message`, all that the room holds, into it.
    pub(super) fn put_into(&mut self, mut room: Buf) {
        // The core writes the header in front.
        let at = self.message.len().saturating_sub(room.capacity()).max(HEADER_LEN);
        let Some((head, tail)) = self.message.split_at_checked(at) else { return };
        room.set_len(tail.len());
        room.copy_from_slice(tail);
        self.payload = Some(Payload::Chain(vec![room.freeze()]));
        // A truncated vector would keep its memory.
        self.message = head.to_vec();
    }
}

/// An answer that is an ERROR response ([MS-SMB2] 2.2.2). `?` makes one of a plain status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Why.
    pub status: NtStatus,
    /// ErrorData, for the few that carry some (STATUS_BUFFER_TOO_SMALL); mostly empty.
    pub data: error::Response,
    /// A region that even the failed answer revokes.
    pub invalidate: Option<Stag>,
}

impl From<NtStatus> for Failure {
    fn from(status: NtStatus) -> Failure {
        Failure { status, data: error::Response::EMPTY, invalidate: None }
    }
}

/// What `ops::dispatch` gives back.
pub(crate) type Answer = Result<Reply, Failure>;
