//! One connection: its state, and the loop that receives requests and sends answers.
//!
//! Spec: [MS-SMB2] 3.3.1.7 (state), 3.3.5.1 (accepting), 3.3.7.1 (loss). Owns what was negotiated, the sequence window,
//! this connection's channels of sessions (which end with it), and every request in flight. All requests run inside the
//! connection's task.
//!
//! Each message is processed as far as possible without waiting, before the next one is looked at; work that must wait
//! joins the futures in flight. Answers to a batch of messages leave together. Receiving stops while the number of
//! requests in flight or unsent reaches the client's credits, or while unsent answers take [`MAX_UNSENT_BYTES`]: a
//! client that does not read its answers waits, and memory does not grow. A long answer takes its buffer from the pool,
//! from a part shared by all connections of its address, before it is built, and holds it until the network has taken
//! the answer.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use weft_machine::{Buf, LogLimit, Pool, Source, rt};
use weft_transport::{Channel, Error, Message, Outgoing, Rooms, Sending};
use weft_wire::smb2::{Dialect, Header, Id, NtStatus};

use super::about::Asked;
use super::clients::Ticket;
use super::context::{OpContext, Reply};
use super::credits::Window;
pub(crate) use super::negotiate::Negotiated;
use super::notices::{Mailbox, Notice};
use super::outgoing::{self, Ready};
use super::requests::Waiting;
use super::session::{Binding, Refused, Session};
use super::session_setup::InProgress;
use super::{Server, frame};
use crate::compression::Agreed;
use crate::crypto::{Preauth, Sender, SigningKey};
use crate::ids::IdMap;

/// Wrong signatures per connection before it is closed: one may be an accident, more are an attack.
const MOST_FORGED: u32 = 4;
/// How often, and at what interval, to check whether the client's host has acknowledged a notice.
const UNACKNOWLEDGED_LOOKS: u32 = 20;
const UNACKNOWLEDGED_PAUSE: Duration = Duration::from_millis(150);
/// Messages processed before their answers are sent.
const BATCH: usize = 64;
/// Batches without a pause before other tasks on this core get a turn, unless the clock ends the turn earlier.
const BATCHES_IN_A_ROW: usize = 4;

/// Unsent bytes in memory up to which requests are still received. READs of an encrypted session count, and the medium
/// should not run dry.
const MAX_UNSENT_BYTES: usize = 256 << 10;

/// The state of a connection that outlives a request.
pub(crate) struct Connection {
    /// The transport.
    pub channel: Rc<dyn Channel>,
    pub(super) server: Arc<Server>,
    /// For logs.
    pub(super) peer: String,
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
    bindings: RefCell<IdMap<u64, Rc<Binding>>>,
    /// Notices for this client from other connections and cores.
    mailbox: Arc<Mailbox>,
    /// Notices that the medium has not taken yet, in the order of sending.
    undelivered: RefCell<BTreeMap<u64, Notice>>,
    /// Held from the first log-on.
    client: OnceCell<Ticket>,
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

/// A message that the medium has possibly not taken yet.
struct Unsent {
    taken: Sending,
    fallback: Vec<Header>,
    _held: Vec<Bytes>,
}

type Inflight = FuturesUnordered<LocalBoxFuture<'static, ()>>;

impl Connection {
    pub(super) fn new(server: Arc<Server>, channel: Rc<dyn Channel>) -> Connection {
        let peer = channel.peer();
        Connection {
            of_this_host: peer.is_of_this_host(),
            source: Source::of(peer),
            peer: peer.to_string(),
            preauth: Rc::default(),
            waiting: Waiting::default(),
            in_progress: RefCell::default(),
            negotiated: OnceCell::new(),
            negotiating: Cell::new(false),
            window: RefCell::new(Window::new(server.config.limits.credits)),
            bindings: RefCell::default(),
            mailbox: Mailbox::open(),
            undelivered: RefCell::default(),
            client: OnceCell::new(),
            unsent: RefCell::default(),
            authenticated: Cell::new(false),
            half_open: Rc::default(),
            forged: Cell::new(0),
            interims: Cell::new(0),
            rooms: Rooms::default(),
            ended: Cell::new(None),
            asked: Cell::default(),
            server,
            channel,
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

    /// See [`OpContext::max_payload`].
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

    /// Registers the client with its dialect (3.3.5.5.3); false if it uses another one elsewhere. 2.0.2 has no
    /// ClientGuid.
    pub(super) fn enter_client(&self) -> bool {
        let negotiated = self.negotiated();
        if negotiated.dialect < Dialect::V2_1 || self.client.get().is_some() {
            return true;
        }
        match self.server.clients.enter(negotiated.client_guid, negotiated.dialect) {
            Some(ticket) => self.client.set(ticket).is_ok(),
            None => false,
        }
    }

    /// Sends the notices in the mailbox. Those that the medium does not take go to the session's other channels.
    fn deliver(self: &Rc<Self>, inflight: &mut Inflight) {
        for notice in self.mailbox.take() {
            let message = match notice.session.encrypt {
                false => Ok(notice.message.clone()),
                true => outgoing::seal_short(&notice.message, &notice.session),
            };
            let Ok(message) = message else {
                self.terminate("the session's nonces are used up");
                return;
            };
            let sending = self.channel.send(Outgoing::bytes(message));
            let others = notice.session.mailboxes().len() > 1;
            if !sending.is_taken() || others {
                let undelivered = &mut *self.undelivered.borrow_mut();
                let n = undelivered.last_key_value().map_or(0, |(last, _)| last.wrapping_add(1));
                undelivered.insert(n, notice);
                let connection = self.clone();
                inflight.push(Box::pin(async move {
                    if sending.await.is_ok() {
                        connection.confirm(n).await;
                    }
                }));
            }
        }
    }

    /// Waits for a buffer for an answer of at most `len` bytes.
    pub(super) async fn room(&self, len: usize) -> Box<Buf> {
        self.rooms.room(&self.answers(), len).await
    }

    fn answers(&self) -> Pool {
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
        self.unsent.borrow_mut().push(Unsent { taken, fallback: ready.fallback, _held: ready.held });
    }

    /// Sends an interim response with the credits of `cx`'s request; returns its AsyncId. See [`OpContext::pending`].
    pub(super) fn interim(&self, cx: &OpContext) -> u64 {
        self.interims.set(self.interims.get().wrapping_add(1));
        let async_id = cx.header().message_id;
        let credits = self.grant(self.charge(cx.header()), cx.header().credits);
        let mut header = cx.header().reply(NtStatus::PENDING, credits);
        header.id = Id::Async(async_id);
        let message = outgoing::interim(&header);
        let message = match cx.encrypted() {
            true => match outgoing::seal_short(&message, cx.session()) {
                Ok(message) => message,
                Err(_) => {
                    self.terminate("the session's nonces are used up");
                    return async_id;
                }
            },
            false => message,
        };
        self.send(outgoing::short(Outgoing::bytes(message)));
        async_id
    }

    /// Number of interim responses sent.
    pub(super) fn interims(&self) -> u64 {
        self.interims.get()
    }

    /// 3.3.4.6: a notice that does not reach the client is sent over another channel, if there is one. The only sign of
    /// that is that the client's host does not acknowledge it.
    async fn confirm(&self, n: u64) {
        let mut before = 0;
        for _ in 0..UNACKNOWLEDGED_LOOKS {
            let now = self.channel.unacknowledged();
            // A busy connection always has unacknowledged bytes; if they become fewer, the client is alive.
            if now == 0 || now < before {
                self.undelivered.borrow_mut().remove(&n);
                return;
            }
            before = now;
            rt::sleep(UNACKNOWLEDGED_PAUSE).await;
        }
        let notice = self.undelivered.borrow_mut().remove(&n);
        if notice.is_some_and(|notice| notice.send_past(&self.mailbox)) {
            tracing::info!(peer = %self.peer, "a notice is not acknowledged; sending it over another channel");
        }
    }

    /// Serves until the peer or a protocol violation ends the connection.
    pub(super) async fn run(self: Rc<Connection>) {
        let mut inflight = Inflight::new();
        self.serve(&mut inflight).await;
        // Cancels the requests in flight; then nothing uses the sessions any more.
        drop(inflight);
        self.channel.close();
        let bindings: Vec<_> = self.bindings.borrow_mut().drain().collect();
        let unsent = std::mem::take(&mut *self.undelivered.borrow_mut());
        let unsent: Vec<Notice> = unsent.into_values().chain(self.mailbox.close()).collect();
        for (_, binding) in bindings {
            binding.leave(&self.server.sessions).await;
        }
        let lost = unsent.into_iter().filter_map(|notice| (!notice.send()).then_some(())).count();
        if lost > 0 {
            tracing::debug!(peer = %self.peer, "{lost} notices not sent: their client is gone");
        }
    }

    async fn serve(self: &Rc<Connection>, inflight: &mut Inflight) {
        let most = usize::from(self.server.config.limits.credits.max(1));
        let mut login = LoginTimer::new(self.server.config.limits.authenticate_ms);
        let mut batches = 0usize;
        let server = self.server.clone();
        let mut drain = server.drain.join();
        // Dropped while nothing should be received, because a kept future must be polled.
        let mut receiving = None;
        loop {
            let mut paused = false;
            let event = poll_fn(|cx| {
                let draining = drain.poll(cx);
                let event = self.poll_event(cx, inflight, &mut receiving, &mut login, most, draining);
                paused |= event.is_pending();
                event
            })
            .await;
            match event {
                Event::Progress => {}
                Event::Ended => return,
                Event::Drained => {
                    tracing::debug!(peer = %self.peer, "connection drained");
                    return;
                }
                Event::Received(Ok(Some(_))) if self.channel.has_ended() => return,
                Event::Received(Ok(Some(message))) => {
                    self.batch(message, inflight, most).await;
                    receiving = None;
                    batches = if paused { 0 } else { batches.saturating_add(1) };
                    if batches == BATCHES_IN_A_ROW {
                        batches = 0;
                        rt::yield_now().await;
                    }
                }
                Event::Received(Ok(None)) => {
                    tracing::debug!(peer = %self.peer, "connection ended by the peer");
                    return;
                }
                Event::Received(Err(e)) => {
                    static LOST: LogLimit = LogLimit::new();
                    if let Some(left_out) = LOST.pass(rt::now()) {
                        tracing::warn!(peer = %self.peer, "connection lost: {e}{left_out}");
                    }
                    return;
                }
                Event::TooLate => {
                    return self.terminate("not authenticated in time");
                }
            }
            self.settle(inflight).await;
            if self.is_ended() {
                return;
            }
            rt::yield_if_due().await;
        }
    }

    fn poll_event<'a>(
        self: &'a Rc<Self>,
        cx: &mut Context<'_>,
        inflight: &mut Inflight,
        receiving: &mut Option<LocalBoxFuture<'a, Result<Option<Message>, Error>>>,
        login: &mut LoginTimer,
        most: usize,
        draining: bool,
    ) -> Poll<Event> {
        let mut progress = false;
        // Notices precede the answers of requests that may be waiting for the client's reaction.
        if !self.is_ended() && self.mailbox.has_any() {
            self.deliver(inflight);
            progress = true;
        }
        // Requests in flight are not carried out after the channel has ended.
        while !self.channel.has_ended()
            && let Poll::Ready(Some(())) = inflight.poll_next_unpin(cx)
        {
            progress = true;
            if rt::turn_is_over() {
                break;
            }
        }
        if self.channel.has_ended() {
            // Others may wait for what these requests hold, and receiving may wait for their memory.
            inflight.clear();
        }
        if self.is_ended() {
            return Poll::Ready(Event::Ended);
        }
        if progress || !self.unsent.borrow().is_empty() {
            return Poll::Ready(Event::Progress);
        }
        if draining {
            *receiving = None;
            let left = !inflight.is_empty() && !self.channel.has_ended();
            return if left { Poll::Pending } else { Poll::Ready(Event::Drained) };
        }
        if !self.channel.has_ended() && (inflight.len() >= most || self.is_full()) {
            *receiving = None;
        } else if rt::turn_is_over() {
            // A request in flight has used up the turn.
            cx.waker().wake_by_ref();
        } else if let Poll::Ready(received) =
            receiving.get_or_insert_with(|| self.channel.recv()).as_mut().poll(cx)
        {
            return Poll::Ready(Event::Received(received));
        }
        self.mailbox.register(cx.waker());
        if self.mailbox.has_any() {
            cx.waker().wake_by_ref();
        }
        login.poll(cx, self.is_logged_on()).map(|()| Event::TooLate)
    }

    /// Handles a message and those that arrived with it; their answers leave together.
    async fn batch(self: &Rc<Connection>, first: Message, inflight: &mut Inflight, most: usize) {
        self.channel.cork(true);
        let mut next = Some(first);
        let mut handled = 0usize;
        while let Some(message) = next {
            match frame::read_at_once(self, &message.body) {
                Some(Ok(None)) => {}
                Some(Ok(Some(answered))) => {
                    self.start(frame::finish(self.clone(), answered), inflight).await;
                }
                Some(Err(reason)) => self.terminate(reason),
                None => self.start(frame::handle(self.clone(), message.body), inflight).await,
            }
            // A break that this request caused leaves before the next answer, so that the client can attribute it.
            if self.mailbox.has_any() && !self.is_ended() {
                self.deliver(inflight);
            }
            handled = handled.saturating_add(1);
            let held = inflight.len().saturating_add(self.unsent.borrow().len());
            if handled == BATCH
                || held >= most
                || self.is_ended()
                || self.channel.has_ended()
                || self.is_full()
                || rt::turn_is_over()
            {
                break;
            }
            next = self.channel.try_recv();
        }
        self.channel.cork(false);
    }

    /// Runs a future as far as possible; the remainder continues in flight.
    async fn start(&self, work: impl Future<Output = ()> + 'static, inflight: &mut Inflight) {
        let mut work: LocalBoxFuture<'static, ()> = Box::pin(work);
        if poll_once(work.as_mut()).await.is_none() {
            inflight.push(work);
        }
    }

    /// Follows up on sent messages: waits in flight for those that the medium has not taken, and answers a payload that
    /// could not be read with an error.
    async fn settle(self: &Rc<Connection>, inflight: &mut Inflight) {
        loop {
            let unsent = std::mem::take(&mut *self.unsent.borrow_mut());
            if unsent.is_empty() {
                return;
            }
            for mut sending in unsent {
                let taken: Pin<&mut Sending> = Pin::new(&mut sending.taken);
                match poll_once(taken).await {
                    Some(outcome) => self.sent(outcome, &sending.fallback),
                    None => {
                        let connection = self.clone();
                        inflight.push(Box::pin(async move {
                            let outcome = sending.taken.await;
                            connection.sent(outcome, &sending.fallback);
                        }));
                    }
                }
            }
        }
    }

    fn sent(&self, outcome: Result<(), Error>, fallback: &[Header]) {
        match outcome {
            Ok(()) => {}
            Err(Error::Io(e)) if !fallback.is_empty() && !self.is_ended() => {
                tracing::warn!(peer = %self.peer, "a READ failed: {e}");
                let outgoing = outgoing::unreadable(fallback);
                self.send(outgoing::short(outgoing));
            }
            // The receiving side sees this too, and logs the reason.
            Err(e) => tracing::debug!(peer = %self.peer, "cannot send an answer: {e}"),
        }
    }
}

/// Polls once, with the task's own waker.
async fn poll_once<T>(mut future: Pin<&mut (dyn Future<Output = T> + '_)>) -> Option<T> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

enum Event {
    /// A request in flight completed, or something was sent.
    Progress,
    Received(Result<Option<Message>, Error>),
    TooLate,
    Ended,
    /// The server drains, and nothing is in flight.
    Drained,
}

/// Ends a connection that has had no session for too long.
struct LoginTimer {
    limit: Duration,
    /// Runs while there is no session.
    sleep: Option<LocalBoxFuture<'static, ()>>,
}

impl LoginTimer {
    fn new(limit_ms: u64) -> LoginTimer {
        LoginTimer { limit: Duration::from_millis(limit_ms), sleep: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>, logged_on: bool) -> Poll<()> {
        if logged_on {
            self.sleep = None;
            return Poll::Pending;
        }
        let limit = self.limit;
        self.sleep.get_or_insert_with(|| Box::pin(rt::sleep(limit))).as_mut().poll(cx)
    }
}
