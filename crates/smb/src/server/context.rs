//! The view of an operation: the server, its connection, session and tree, and the request.
//!
//! Spec: [MS-SMB2] 3.3.1 (abstract data model). The checks before an operation are in [`super::admission`].
//!
//! `ops` provides three things: `ops::dispatch(cx) -> Answer` executes CREATE to SET_INFO and IOCTL by
//! `cx.header().command`; `ops::Opens` (`Default + Send + Sync`, one in every [`Session`]) is the open table; its
//! `close_tree` and `close_all` close opens, including delete-on-close. NEGOTIATE, SESSION_SETUP, LOGOFF, TREE_*, ECHO
//! and CANCEL belong to the core.
//!
//! Everything is shared through `Rc` or `Arc`. Signing, encryption, credits and the other requests of the compound are
//! in [`super::connection`].

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::Buf;
use weft_machine::recorder::Details;
use weft_transport::{Channel, SHORT_ANSWER};
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::{Command, Dialect, FileId, Header, NtStatus, create};

use super::admission::Admitted;
use super::answer::Failure;
use super::concerned::Concerned;
use super::connection::Connection;
use super::ops::{Open, Outstanding};
use super::requests::{Cancel, MAX_WAITING};
use super::session::{Session, Tree};
use super::{Config, Server};
use crate::crypto::SigningKey;

/// The state that one operation runs in. Its parts are cheap to clone; it lives until the operation has answered.
///
/// It can be made only from an [`Admitted`] request, so the session, the signature or encryption, and the tree have
/// been checked. The core has also checked the header, the sequence window and the credit charge.
pub(crate) struct OpContext {
    admitted: Admitted,
    /// The FileId of the previous request in a related compound ([MS-SMB2] 3.3.5.2.7.2), then the one that this request
    /// used; maintained by [`OpContext::file_id`] and [`OpContext::set_file_id`].
    pub(super) file_id: Cell<Option<FileId>>,
    /// AsyncId, once an interim response was sent.
    pub(super) async_id: Cell<Option<u64>>,
    /// The open that this request is counted on; see [`super::ops::Outstanding`].
    pub(super) outstanding: RefCell<Option<Outstanding>>,
    /// Whether the request is the last one in its message.
    last: bool,
    /// The payload that a WRITE has written, and whether it came by RDMA.
    pub(super) written: Cell<(u32, bool)>,
    /// Registered with the connection while the operation waits.
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
    /// A context for an operation that has not started. `file_id` is the previous request's in a related compound;
    /// `last` means that no request follows in its message.
    #[inline(always)]
    pub fn new(admitted: Admitted, file_id: Option<FileId>, last: bool) -> OpContext {
        OpContext {
            admitted,
            file_id: Cell::new(file_id),
            async_id: Cell::new(None),
            outstanding: RefCell::new(None),
            last,
            written: Cell::new((0, false)),
            cancel: OnceCell::new(),
        }
    }

    /// The same request for a separate task, which may outlive the connection. [`OpContext::adopt`] takes over the
    /// FileId and AsyncId that the task learns.
    pub fn detach(&self) -> OpContext {
        let detached = OpContext::new(self.admitted.detach(), self.file_id.get(), self.last);
        detached.async_id.set(self.async_id.get());
        detached
    }

    /// Takes over the results of a detached request.
    pub fn adopt(&self, detached: &OpContext) {
        self.file_id.set(detached.file_id.get());
        self.async_id.set(detached.async_id.get());
        self.written.set(detached.written.get());
        self.outstanding.replace(detached.outstanding.take());
    }

    /// Whatever this request waits for, the buffer that it was received into does not wait with it; see
    /// [`Admitted::leave_buffer`].
    #[inline]
    pub(super) fn leaving_its_buffer(mut self) -> OpContext {
        self.admitted.leave_buffer();
        self
    }

    /// The server: configuration, sessions, start time.
    pub fn server(&self) -> &Arc<Server> {
        &self.connection().server
    }

    /// The connection that the request arrived on.
    pub fn connection(&self) -> &Rc<Connection> {
        self.admitted.connection()
    }

    /// Its session.
    pub fn session(&self) -> &Arc<Session> {
        self.admitted.session()
    }

    /// Its tree.
    pub fn tree(&self) -> &Arc<Tree> {
        self.admitted.tree()
    }

    /// Its header.
    pub fn header(&self) -> &Header {
        self.admitted.header()
    }

    /// The whole SMB2 message, header first, without the rest of the compound: offsets in SMB2 structures count from
    /// its start. Slices of it are owned and cheap (a WRITE's payload is `message.slice(..)`).
    pub fn message(&self) -> &Bytes {
        self.admitted.message()
    }

    /// Whether it was encrypted. If so, the answer is encrypted too, and RDMA channels are refused unless their payload
    /// is encrypted as well.
    pub fn encrypted(&self) -> bool {
        self.admitted.encrypted()
    }

    /// The key that verified its signature, if it was signed; the answer is signed with it too.
    pub fn signed(&self) -> Option<&Arc<SigningKey>> {
        self.admitted.signed()
    }

    /// The FileId that the request refers to: its own, or in a related request the previous one's, whatever it carries
    /// itself. Remembers it for the following requests.
    pub fn file_id(&self, carried: FileId) -> FileId {
        let related = self.header().flags.contains(Flags::RELATED_OPERATIONS);
        let id = if related { self.file_id.get().unwrap_or(carried) } else { carried };
        self.file_id.set(Some(id));
        id
    }

    /// What it concerns, as far as that is known.
    pub(super) fn concerned(&self) -> Concerned {
        Concerned { session_id: self.session().id, tree_id: self.tree().id, file: self.file_id.get() }
    }

    /// The same by names, for the flight recorder.
    pub(super) fn details(&self) -> Details {
        let mut details = self.connection().details(self.concerned());
        if self.header().command == Command::Create
            && let Ok(request) = create::Request::parse(self.message())
        {
            details.file = request.name;
        }
        details
    }

    /// Notes what a WRITE has written, for the counters.
    pub fn set_written(&self, bytes: u32, by_rdma: bool) {
        self.written.set((bytes, by_rdma));
    }

    /// Sets the FileId that CREATE opened: related requests inherit it.
    pub fn set_file_id(&self, id: FileId) {
        self.file_id.set(Some(id));
    }

    /// The open that the request refers to: by its FileId, or by that of the compound. The request counts as
    /// outstanding until it is answered, and is refused if a channel was lost since it was sent (3.3.5.2.10).
    pub fn open(&self, carried: FileId) -> Result<Arc<Open>, Failure> {
        let id = self.file_id(carried);
        let open = self.session().opens.find(id, self.tree().id).ok_or(NtStatus::FILE_CLOSED)?;
        let outstanding = Outstanding::enter(&open, self.dialect(), self.header())?;
        self.outstanding.replace(outstanding);
        open.forbid_replay();
        Ok(open)
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

    /// The most bytes that a READ, WRITE or QUERY may move: the limit that NEGOTIATE announced, and the credits that
    /// the client paid ([MS-SMB2] 3.3.5.2.5: 64 KiB per credit). The core checks the credit charge itself; an operation
    /// compares its own length with this and answers STATUS_INVALID_PARAMETER above it.
    pub fn max_payload(&self) -> u32 {
        self.connection().max_payload(self.header())
    }

    /// Largest payload that an answer can carry inside its message, in bytes.
    pub fn max_inline(&self) -> usize {
        self.connection().max_inline()
    }

    /// A buffer for an answer of at most `len` bytes. Ask for it before building the answer, and before holding
    /// anything that others wait for; see [`Reply::room`](super::answer::Reply::room).
    pub async fn room(&self, len: usize) -> Option<Box<Buf>> {
        match len > SHORT_ANSWER {
            true => Some(Box::pin(self.connection().room(len)).await),
            false => None,
        }
    }

    /// Announces that the answer will take long: sends an interim STATUS_PENDING ([MS-SMB2] 3.3.4.2). Call it before
    /// waiting for something that a peer decides; a second call does nothing. In a compound only the last request, and
    /// a CREATE (3.3.5.2.7, note 266), can be pending; others are answered when they are done.
    pub fn pending(&self) {
        let tells = self.last || self.header().command == Command::Create;
        if tells && self.async_id.get().is_none() {
            let sealed = self.encrypted().then_some(&**self.session());
            self.async_id.set(Some(self.connection().interim(self.header(), sealed)));
        }
    }

    /// Refuses a wait of unlimited length if the connection's client has enough such requests waiting (3.3.4.2).
    pub fn may_wait(&self) -> Result<(), NtStatus> {
        match self.connection().waiting.len() < MAX_WAITING {
            true => Ok(()),
            false => Err(NtStatus::INSUFFICIENT_RESOURCES),
        }
    }

    /// Completes when a CANCEL names this request; the operation then answers STATUS_CANCELLED. Operations that cannot
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
