//! The state of one connection.
//!
//! Spec: [MS-SMB2] 3.3.1.7. Owns what was negotiated, the sequence window, this connection's channels of sessions,
//! which end with it, and the answers that the network has not taken. Requests are received and run in `serve`.

mod serve;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::meter::Class;
use weft_machine::recorder::{Details, Operation, User};
use weft_machine::{Buf, LogLimit, Payload, Pool, Source, rt};
use weft_transport::{Channel, Outgoing, Rooms, Sending, read_into_room};
use weft_wire::smb2::{Dialect, Header, Id, NtStatus};

use super::Server;
use super::answer::Reply;
use super::authentication::InProgress;
use super::clients::Ticket;
use super::concerned::Concerned;
use super::credits::Window;
use super::meter;
use super::negotiated::Negotiated;
use super::notices::{Mailbox, Notice};
use super::outgoing::{self, Ready};
use super::requests::Waiting;
use super::session::{Binding, Refused, Session};
use crate::compression::Agreed;
use crate::crypto::{Preauth, Sender, SigningKey};

/// Wrong signatures per connection before it is closed: one may be an accident, more are an attack.
const MOST_FORGED: u32 = 4;
/// Unsent bytes in memory up to which requests are still received. READs of an encrypted session count, and the medium
/// should not run dry.
const MAX_UNSENT_BYTES: usize = 256 << 10;

/// The state of a connection that outlives a request.
pub(crate) struct Connection {
    /// The transport.
    pub channel: Rc<dyn Channel>,
    /// What its requests are counted under.
    pub(super) class: &'static Class,
    pub(super) server: Arc<Server>,
    /// For logs.
    pub(super) peer: String,
    /// The same for the flight recorder.
    pub(super) client_address: Arc<str>,
    /// The client is on this host, so there is no man in the middle.
    pub(super) of_this_host: bool,
    /// The source that failed log-ons are charged to.
    pub(super) source: Source,
    /// 3.1.1: the hash over NEGOTIATE, with which every session's chain starts.
    pub(super) preauth: Rc<RefCell<Preauth>>,
    pub(super) waiting: Waiting,
    /// Authentications between two round trips, by their future SessionId.
    pub(super) in_progress: RefCell<HashMap<u64, InProgress>>,
    negotiated: OnceCell<Negotiated>,
    /// An SMB1 negotiate was answered with a request to negotiate again.
    negotiating: Cell<bool>,
    window: RefCell<Window>,
    /// The sessions that have this connection as a channel.
    bindings: RefCell<foldhash::HashMap<u64, Rc<Binding>>>,
    /// Notices for this client from other connections and cores.
    mailbox: Arc<Mailbox>,
    /// Notices that the medium has not taken yet, in the order of sending.
    undelivered: RefCell<BTreeMap<u64, Notice>>,
    /// Held from each user's first log-on.
    clients: RefCell<Vec<Ticket>>,
    unsent: RefCell<Vec<Unsent>>,
    /// Whether a log-on has succeeded on this connection.
    authenticated: Cell<bool>,
    /// Has one reference per authentication in progress, plus one.
    half_open: Rc<()>,
    /// Requests with a wrong signature.
    forged: Cell<u32>,
    /// Interim responses sent.
    interims: Cell<u64>,
    rooms: Rooms,
    ended: Cell<Option<&'static str>>,
    /// Shows why a client does not use RDMA.
    pub(super) asked: Cell<Asked>,
}

/// The queries that a client has sent on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub interfaces: bool,
    pub endpoints: bool,
}

/// A message that the medium has possibly not taken yet.
struct Unsent {
    taken: Sending,
    fallback: Vec<Header>,
    _held: Vec<Bytes>,
    /// Ends when this is dropped.
    operation: Operation,
    concerned: Concerned,
}

impl Connection {
    pub(super) fn new(server: Arc<Server>, channel: Rc<dyn Channel>) -> Connection {
        let peer = channel.peer();
        Connection {
            of_this_host: peer.is_of_this_host(),
            source: Source::of(peer),
            peer: peer.to_string(),
            client_address: peer.to_string().into(),
            preauth: Rc::default(),
            waiting: Waiting::default(),
            in_progress: RefCell::default(),
            negotiated: OnceCell::new(),
            negotiating: Cell::new(false),
            window: RefCell::new(Window::new(server.config.limits.credits)),
            bindings: RefCell::default(),
            mailbox: Mailbox::open(),
            undelivered: RefCell::default(),
            clients: RefCell::default(),
            unsent: RefCell::default(),
            authenticated: Cell::new(false),
            half_open: Rc::default(),
            forged: Cell::new(0),
            interims: Cell::new(0),
            rooms: Rooms::default(),
            ended: Cell::new(None),
            asked: Cell::default(),
            class: meter::class(channel.kind()),
            server,
            channel,
        }
    }

    /// The names of what a request concerns.
    pub(super) fn details(&self, concerned: Concerned) -> Details {
        let session = self.session(concerned.session_id);
        let open = session.as_ref().zip(concerned.file);
        let open = open.and_then(|(session, file)| session.opens.find(file, concerned.tree_id));
        Details {
            client: Some(self.client_address.clone()),
            user: session.map_or(User::None, |session| User::Named(session.user.clone())),
            file: open.map(|open| open.last_name()).unwrap_or_default(),
        }
    }

    /// What NEGOTIATE settled; operations run only after it.
    pub fn negotiated(&self) -> &Negotiated {
        self.negotiated.get().expect("operations run after NEGOTIATE")
    }

    /// How messages may be compressed, if that was negotiated.
    pub(super) fn compression(&self) -> Option<&Agreed> {
        self.is_negotiated().then(|| self.negotiated().compression.as_ref()).flatten()
    }

    /// The negotiated dialect.
    pub fn dialect(&self) -> Dialect {
        self.negotiated().dialect
    }

    /// Ends the connection without an answer, after the operation that calls this: the peer or a man in the middle
    /// broke a rule that forbids further communication (a failed negotiate validation). The first reason is logged.
    pub fn terminate(&self, reason: &'static str) {
        if self.ended.get().is_none() {
            static CLOSED: LogLimit = LogLimit::new();
            if let Some(left_out) = CLOSED.pass(rt::now()) {
                tracing::warn!(peer = %self.peer, "connection closed: {reason}{left_out}");
            }
            self.ended.set(Some(reason));
        }
    }

    /// 3.3.5.2.4: a request had a wrong signature. It is refused; a client that repeats this is disconnected.
    pub(super) fn forged(&self) {
        self.forged.set(self.forged.get().saturating_add(1));
        static FORGED: LogLimit = LogLimit::new();
        if let Some(left_out) = FORGED.pass(rt::now()) {
            tracing::warn!(peer = %self.peer, "refused: a request with a wrong signature{left_out}");
        }
        if self.forged.get() == MOST_FORGED {
            self.terminate("3.3.5.2.4: wrong signatures");
        }
    }

    /// The key of this session that the message proves its sender to have: the channel's, also after the session's end,
    /// or the session's own if it belongs to other connections. The error that the session is not one of this
    /// connection is signed only for such a sender: otherwise anyone could obtain signatures under message ids that the
    /// session's own connections use, which reveals a GMAC key.
    pub(super) fn proven(&self, id: u64, message: &[u8]) -> Option<Arc<SigningKey>> {
        let ours = self.bindings.borrow().get(&id).map(|binding| binding.signing.clone());
        let theirs = || self.server.sessions.find(id).map(|session| session.keys.signing.clone());
        let proven = |key: &Arc<SigningKey>| key.verify(Sender::Client, message);
        ours.filter(proven).or_else(|| theirs().filter(proven))
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    pub(super) fn is_negotiated(&self) -> bool {
        self.negotiated.get().is_some()
    }

    pub(super) fn negotiating(&self) -> bool {
        self.negotiating.get()
    }

    pub(super) fn set_negotiating(&self) {
        self.negotiating.set(true);
    }

    pub(super) fn set_negotiated(&self, negotiated: Negotiated) {
        let first = self.negotiated.set(negotiated).is_ok();
        debug_assert!(first, "a second NEGOTIATE ends the connection");
    }

    fn multi_credit(&self) -> bool {
        self.negotiated.get().is_some_and(Negotiated::multi_credit)
    }

    /// See [`OpContext::max_payload`](super::context::OpContext::max_payload).
    pub(super) fn max_payload(&self, header: &Header) -> u32 {
        (u32::from(self.charge(header)) * 65_536).min(self.negotiated().max_io)
    }

    /// The credits that a request costs (3.3.5.2.3): one if the dialect has no other charge, or the request states
    /// none.
    pub(super) fn charge(&self, header: &Header) -> u16 {
        if self.multi_credit() { header.credit_charge.max(1) } else { 1 }
    }

    /// Largest payload inside a message, in bytes.
    pub(super) fn max_inline(&self) -> usize {
        /// Overhead of an inline payload: transform header, SMB2 header, the longest fixed part (a WRITE's). Linux on
        /// SMB Direct requests exactly what this leaves of its own limit.
        const HEADERS: usize = 52 + 64 + 48;
        self.channel.limits().max_message.saturating_sub(HEADERS)
    }

    pub(super) fn take_credits(&self, message_id: u64, charge: u16) -> bool {
        self.window.borrow_mut().take(message_id, charge)
    }

    pub(super) fn grant(&self, charge: u16, wanted: u16) -> u16 {
        let limit = match self.authenticated.get() {
            true => u16::MAX,
            false => self.server.config.limits.credits_of_strangers,
        };
        self.window.borrow_mut().grant(charge, wanted, limit)
    }

    /// The live session with this id, if it belongs to this connection.
    pub(super) fn session(&self, id: u64) -> Option<Arc<Session>> {
        self.bindings.borrow().get(&id).map(|b| &b.session).filter(|session| !session.is_ended()).cloned()
    }

    /// This connection's channel of the session with this id, unless the session has ended.
    pub(super) fn binding(&self, id: u64) -> Option<Rc<Binding>> {
        self.bindings.borrow().get(&id).filter(|binding| !binding.session.is_ended()).cloned()
    }

    /// The live sessions of this connection.
    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        let bindings = self.bindings.borrow();
        bindings.values().map(|b| &b.session).filter(|session| !session.is_ended()).cloned().collect()
    }

    /// Number of sessions, including authentications in progress.
    pub(super) fn sessions_len(&self) -> usize {
        // Sessions that were ended elsewhere are removed here.
        self.bindings.borrow_mut().retain(|_, binding| !binding.session.is_ended());
        self.bindings.borrow().len().saturating_add(self.in_progress.borrow().len())
    }

    /// Whether a user is logged on here.
    pub(super) fn is_logged_on(&self) -> bool {
        self.bindings.borrow().values().any(|binding| !binding.session.is_ended())
    }

    /// A slot for one more authentication, freed on drop; `None` if all are taken.
    pub(super) fn half_open(&self) -> Option<Rc<()>> {
        let limits = &self.server.config.limits;
        let most = if self.authenticated.get() { limits.half_open } else { limits.half_open_of_strangers };
        (Rc::strong_count(&self.half_open) <= most).then(|| self.half_open.clone())
    }

    /// Makes this connection a channel of a session.
    pub(super) fn bind(&self, session: Arc<Session>, signing: Arc<SigningKey>) -> Result<(), Refused> {
        let id = session.id;
        let (must_sign, limit) = (self.negotiated().signing_required(), self.server.config.limits.channels);
        let binding = Binding::join(session, signing, must_sign, &self.mailbox, limit)?;
        self.bindings.borrow_mut().insert(id, binding);
        if !self.authenticated.replace(true) {
            self.channel.authenticated();
        }
        Ok(())
    }

    pub(super) fn forget(&self, id: u64) {
        self.bindings.borrow_mut().remove(&id);
    }

    /// Registers the user's client with its dialect (3.3.5.5.3); false if the user has a connection from it with another
    /// one. 2.0.2 has no ClientGuid.
    pub(super) fn enter_client(&self, user: &Arc<str>) -> bool {
        let negotiated = self.negotiated();
        let mut clients = self.clients.borrow_mut();
        if negotiated.dialect < Dialect::V2_1 || clients.iter().any(|ticket| *ticket.user() == **user) {
            return true;
        }
        let ticket = self.server.clients.enter(negotiated.client_guid, user, negotiated.dialect);
        let entered = ticket.is_some();
        clients.extend(ticket);
        entered
    }

    /// Waits for a buffer for an answer of at most `len` bytes.
    pub(super) async fn room(&self, len: usize) -> Box<Buf> {
        self.rooms.room(&self.answers(), len).await
    }

    /// Payload of a file system that may block, read into a buffer.
    pub(super) async fn read_into_room(&self, data: Payload) -> io::Result<Payload> {
        read_into_room(&self.answers(), data).await
    }

    /// The memory of answers until the client has read them.
    pub(super) fn answers(&self) -> Pool {
        self.channel.answers().unwrap_or_else(|| self.server.config.pool.clone())
    }

    /// How often an answer has waited for a buffer.
    pub(super) fn waits(&self) -> u64 {
        self.rooms.waits()
    }

    /// Moves a long answer into its buffer. If its operation could not know the length in advance, this waits for a
    /// buffer, and nothing is received meanwhile.
    pub(super) async fn settle_in(&self, reply: &mut Reply) {
        let room = match reply.room.take() {
            Some(room) => room,
            None => self.rooms.room_afterwards(&self.answers(), reply.message.len()).await,
        };
        reply.put_into(*room);
    }

    /// Whether the client must read answers before more is received from it.
    fn is_full(&self) -> bool {
        self.rooms.is_full(&*self.channel, MAX_UNSENT_BYTES)
    }

    /// Queues a message of answers.
    pub(super) fn send(&self, ready: Ready) {
        let taken = self.channel.send(ready.outgoing);
        if taken.is_taken() {
            return;
        }
        let (operation, concerned) = (Operation::current(), ready.concerned);
        let unsent = Unsent { taken, fallback: ready.fallback, _held: ready.held, operation, concerned };
        self.unsent.borrow_mut().push(unsent);
    }

    /// Sends an interim response with the credits of a request, encrypted for `sealed`; returns its AsyncId. See
    /// [`OpContext::pending`](super::context::OpContext::pending).
    pub(super) fn interim(&self, request: &Header, sealed: Option<&Session>) -> u64 {
        self.interims.set(self.interims.get().wrapping_add(1));
        let async_id = request.message_id;
        let credits = self.grant(self.charge(request), request.credits);
        let mut header = request.reply(NtStatus::PENDING, credits);
        header.id = Id::Async(async_id);
        let message = outgoing::interim(&header);
        let message = match sealed {
            Some(session) => match outgoing::seal_short(&message, session) {
                Ok(message) => message,
                Err(_) => {
                    self.terminate("the session's nonces are used up");
                    return async_id;
                }
            },
            None => message,
        };
        self.send(outgoing::short(Outgoing::bytes(message)));
        async_id
    }

    /// Number of interim responses sent.
    pub(super) fn interims(&self) -> u64 {
        self.interims.get()
    }
}
