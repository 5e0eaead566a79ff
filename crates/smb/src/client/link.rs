//! One connection: numbers, protects and sends requests within their credits, and hands responses to their waiters.
//!
//! Spec: [MS-SMB2] 3.2.4.1 (sending), 3.2.5.1 (receiving), 3.2.5.19 (breaks), 3.2.4.24 (cancelling). Owns the channel,
//! the table of outstanding requests, the credits and the keys (see `protect`). One task per connection receives and
//! hands each response straight to its waiter: one task switch for the receiver, one for the waiter. (If waiters
//! received for each other, the first switch would be saved, but a waiter that is not polled would stall the others.)
//! It does not interpret the commands.
//!
//! A response that violates the protocol or fails its signature ends the connection for every request ([MS-SMB2]
//! 3.2.5.1.3 allows this, and nothing that follows could be trusted).

mod call;
mod protect;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::rt::{self, Task};
use weft_machine::{Pool, Time};
use weft_transport::{Channel, Outgoing, Part, Silence, Starved};
use weft_wire::smb2::compression::MAGIC_COMPRESSED;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::transform::MAGIC_ENCRYPTED;
use weft_wire::smb2::{Command, HEADER_LEN, Header, Id, Malformed, NtStatus, cancel, compound, echo};

pub(super) use call::{Call, Reply};
pub(super) use protect::{Policy, Protection, Security, TreeConnect};

use super::credits::{Credits, WaiterId};
use super::error::Error;
use super::leases::Leases;
use super::region::Region;
use crate::compression::Agreed;

/// An outstanding request.
struct Slot {
    command: Command,
    protection: Protection,
    tree: u32,
    /// Credits that it holds; 0 once an interim response has returned them (3.2.5.1.5).
    charge: u16,
    state: SlotState,
    async_id: Option<u64>,
}

enum SlotState {
    Waiting(Option<Waker>),
    Done(Reply),
    /// Nobody waits, but the response still carries credits. Until it arrives the server may use the exposed memory:
    /// revoking earlier would end the connection under the server's RDMA operation.
    Abandoned(#[allow(dead_code, reason = "held for its drop")] Option<Region>),
}

struct State {
    pending: foldhash::HashMap<u64, Slot>,
    credits: Credits,
    next_message_id: u64,
    /// Reserved MessageIds; see [`Link::skip`].
    skipped: Vec<u64>,
    /// Whether they are still reserved.
    skipping: bool,
    multi_credit: bool,
    security: Option<Rc<Security>>,
    /// How messages may be compressed.
    compression: Option<Rc<Agreed>>,
    /// ChannelSequence (3.x).
    sequence: Option<Rc<Cell<u16>>>,
    /// The leases of the session.
    leases: Option<Rc<Leases>>,
    /// Breaks that are not acknowledged yet.
    broken: Vec<Call>,
    /// No second warning that the server is working is logged before this time.
    told_until: Option<Time>,
    /// Why the connection has ended.
    ended: Option<Error>,
    /// Counts messages received, for the watchdog.
    received: u64,
}

/// A connection. Dropping it closes the channel.
pub(super) struct Link {
    shared: Rc<Shared>,
    _receiver: Task<()>,
    watchdog: RefCell<Task<()>>,
}

struct Shared {
    channel: Rc<dyn Channel>,
    pool: Pool,
    state: RefCell<State>,
}

/// The right to send one request with this charge.
pub(super) struct Permit {
    shared: Rc<Shared>,
    /// At most the requested charge; 0 once used.
    pub charge: u16,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.charge > 0 {
            self.shared.state.borrow_mut().credits.give_back(self.charge);
        }
    }
}

impl Link {
    /// Takes over a fresh channel.
    pub fn new(channel: Rc<dyn Channel>, pool: Pool, credits: u16, timeout: Duration) -> Link {
        let shared = Rc::new(Shared {
            channel,
            pool,
            state: RefCell::new(State {
                pending: foldhash::HashMap::default(),
                credits: Credits::new(credits),
                next_message_id: 0,
                skipped: Vec::new(),
                skipping: false,
                multi_credit: false,
                security: None,
                compression: None,
                sequence: None,
                leases: None,
                broken: Vec::new(),
                told_until: None,
                ended: None,
                received: 0,
            }),
        });
        let _receiver = rt::spawn(receive(shared.clone()));
        let watchdog = rt::spawn(watch(shared.clone(), timeout, None));
        Link { shared, _receiver, watchdog: RefCell::new(watchdog) }
    }

    pub fn channel(&self) -> &Rc<dyn Channel> {
        &self.shared.channel
    }

    /// Requests may cost several credits from now on.
    pub fn set_multi_credit(&self) {
        self.shared.state.borrow_mut().multi_credit = true;
    }

    /// The session is established: its keys protect messages from now on.
    pub fn set_security(&self, security: Rc<Security>) {
        self.shared.state.borrow_mut().security = Some(security);
    }

    /// Messages may be compressed from now on: the server's, and our WRITEs.
    pub fn set_compression(&self, compression: Option<Rc<Agreed>>) {
        self.shared.state.borrow_mut().compression = compression;
    }

    /// The session's keys, once it is established.
    pub fn security(&self) -> Result<Rc<Security>, Error> {
        let security = self.shared.state.borrow().security.clone();
        security.ok_or(Error::Misuse("protection before a session is established"))
    }

    /// Requests carry this ChannelSequence from now on; only in 3.x, which defines the field.
    pub fn set_sequence(&self, sequence: Rc<Cell<u16>>) {
        self.shared.state.borrow_mut().sequence = Some(sequence);
    }

    /// Breaks of these leases are acknowledged from now on.
    pub fn set_leases(&self, leases: Rc<Leases>) {
        self.shared.state.borrow_mut().leases = Some(leases);
    }

    /// Shortens the time until the server is given up, because there are other connections, and probes it before that.
    pub fn set_patience(&self, limit: Duration, probe: Policy) {
        *self.watchdog.borrow_mut() = rt::spawn(watch(self.shared.clone(), limit, Some(probe)));
    }

    /// Reserves this many MessageIds, as far as the server has granted them, until [`Link::end_skipping`]. Binding
    /// requests are signed with the same key on every connection, and with AES-GMAC the id is the nonce, which must not
    /// repeat.
    pub fn skip(&self, ids: u32) {
        let state = &mut *self.shared.state.borrow_mut();
        let ids = u64::from(ids.min(state.credits.window().saturating_sub(2)));
        let next = state.next_message_id.saturating_add(ids);
        state.skipped = (state.next_message_id..next).rev().collect();
        state.next_message_id = next;
        state.skipping = true;
    }

    /// Releases the reserved ids for use.
    pub fn end_skipping(&self) {
        self.shared.state.borrow_mut().skipping = false;
    }

    /// Whether nothing more can be sent.
    pub fn is_ended(&self) -> bool {
        self.shared.state.borrow().ended.is_some()
    }

    /// How often a request waited for credits.
    pub fn starved(&self) -> u64 {
        self.shared.state.borrow().credits.starved()
    }

    /// Total credits, at least 1.
    pub fn window(&self) -> u32 {
        self.shared.state.borrow().credits.window()
    }

    /// Waits for `charge` credits; returns fewer if the server grants fewer.
    pub async fn permit(&self, charge: u16) -> Result<Permit, Error> {
        permit(&self.shared, charge).await
    }

    /// Sends a request and waits for its response.
    pub async fn call(&self, call: Call) -> Result<Reply, Error> {
        let permit = self.permit(call.charge).await?;
        if permit.charge < call.charge {
            return Err(Error::Misuse("the server grants too few credits for so large a request"));
        }
        self.send(permit, call)?.await
    }

    /// Sends a request now. The future resolves to its response; dropping it cancels the request.
    pub fn send(&self, permit: Permit, call: Call) -> Result<Pending, Error> {
        let (message_id, outgoing) = self.compose(permit, call, 0)?;
        Ok(self.launch(message_id, outgoing))
    }

    /// Like [`Link::send`]; also returns the message that was sent, which preauthentication integrity needs.
    /// `session_id` is used only until the session is established. Not for encrypted messages.
    pub fn send_recorded(
        &self,
        permit: Permit,
        call: Call,
        session_id: u64,
    ) -> Result<(Pending, Bytes), Error> {
        let (message_id, outgoing) = self.compose(permit, call, session_id)?;
        let sent = match outgoing.parts.first() {
            Some(Part::Bytes(bytes)) => bytes.clone(),
            _ => Bytes::new(),
        };
        Ok((self.launch(message_id, outgoing), sent))
    }

    fn launch(&self, message_id: u64, outgoing: Outgoing) -> Pending {
        launch(&self.shared, message_id, outgoing)
    }

    fn compose(&self, permit: Permit, call: Call, session_id: u64) -> Result<(u64, Outgoing), Error> {
        self.shared.compose(permit, call, session_id)
    }

    /// See [`send_and_forget`].
    pub fn send_and_forget(&self, call: Call) {
        send_and_forget(&self.shared, call);
    }
}

async fn permit(shared: &Rc<Shared>, charge: u16) -> Result<Permit, Error> {
    /// Leaves the queue when the caller gives up.
    struct Queued<'a>(&'a Rc<Shared>, WaiterId);
    impl Drop for Queued<'_> {
        fn drop(&mut self) {
            self.0.state.borrow_mut().credits.leave(&self.1);
        }
    }
    let mut queued = Queued(shared, WaiterId::default());
    let charge = poll_fn(|cx| {
        let state = &mut *shared.state.borrow_mut();
        match &state.ended {
            Some(e) => Poll::Ready(Err(e.clone())),
            None => state.credits.poll_take(cx, charge, &mut queued.1),
        }
    })
    .await?;
    Ok(Permit { shared: shared.clone(), charge })
}

/// Acknowledges a lease break (3.2.5.19.2): nothing is cached under the lease. Others wait for the acknowledgement, so
/// this waits for a credit.
async fn acknowledge(shared: Rc<Shared>, call: Call) {
    let sent = permit(&shared, 1).await.and_then(|permit| shared.compose(permit, call, 0));
    match sent {
        Ok((message_id, outgoing)) => launch(&shared, message_id, outgoing).forget(),
        Err(e) => tracing::debug!("cannot acknowledge a lease break: {e}"),
    }
}

/// Sends a request and ignores its response, if a credit is free (for dropped handles and probes).
fn send_and_forget(shared: &Rc<Shared>, call: Call) {
    let permit = {
        let state = &mut *shared.state.borrow_mut();
        if state.ended.is_some() {
            return;
        }
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiter = WaiterId::default();
        match state.credits.poll_take(&mut cx, 1, &mut waiter) {
            Poll::Ready(Ok(charge)) => Permit { shared: shared.clone(), charge },
            _ => return state.credits.leave(&waiter),
        }
    };
    if let Ok((message_id, outgoing)) = shared.compose(permit, call, 0) {
        launch(shared, message_id, outgoing).forget();
    }
}

fn launch(shared: &Rc<Shared>, message_id: u64, outgoing: Outgoing) -> Pending {
    // If the send completes later or never, nobody waits for it: the receiver notices the end of the channel.
    if let Some(Err(e)) = shared.channel.send(outgoing).now_or_never() {
        // The message may have left in part, so the connection is unusable.
        shared.end(e.into());
    }
    Pending { shared: shared.clone(), message_id, region: None, at_work: None }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.end(Error::Closed);
    }
}

impl Shared {
    /// Assigns the request its numbers and its protection; its response is expected from now on.
    fn compose(&self, mut permit: Permit, call: Call, session_id: u64) -> Result<(u64, Outgoing), Error> {
        let charge = std::mem::take(&mut permit.charge);
        let Call { command, tree, protection, mut message, payload, replay, charge: _ } = call;
        let (message_id, security, compression) = {
            let state = &mut *self.state.borrow_mut();
            let credits = state.credits.sent(charge);
            if let Some(e) = &state.ended {
                return Err(e.clone());
            }
            let usable = charge == 1 && !state.skipping;
            let message_id = match usable.then(|| state.skipped.pop()).flatten() {
                Some(id) => id,
                None => {
                    let id = state.next_message_id;
                    state.next_message_id = id.saturating_add(u64::from(charge));
                    id
                }
            };
            let mut header = Header {
                // 3.2.4.1.5: 0 in dialects without multi-credit requests.
                credit_charge: if state.multi_credit { charge } else { 0 },
                credits,
                id: Id::tree(tree),
                session_id: state.security.as_ref().map_or(session_id, |s| s.session_id),
                ..Header::request(command, message_id)
            };
            if let Some(sequence) = &state.sequence {
                header.set_channel_sequence(sequence.get());
            }
            if replay {
                header.flags |= Flags::REPLAY_OPERATION;
            }
            if let Some(place) = message.first_chunk_mut::<HEADER_LEN>() {
                *place = header.to_bytes();
            }
            let waiting = SlotState::Waiting(None);
            let slot = Slot { command, protection, tree, charge, state: waiting, async_id: None };
            state.pending.insert(message_id, slot);
            (message_id, state.security.clone(), state.compression.clone().filter(|_| !payload.is_empty()))
        };
        match protect::protect(
            &self.pool,
            security.as_deref(),
            protection,
            message,
            payload,
            compression.as_deref(),
        ) {
            Ok(outgoing) => Ok((message_id, outgoing)),
            Err(e) => {
                // The request's number is used up without reaching the server, so the server's window would stall.
                self.end(e.clone());
                Err(e)
            }
        }
    }

    /// Ends the connection for every request.
    fn end(&self, error: Error) {
        let state = &mut *self.state.borrow_mut();
        if state.ended.is_some() {
            return;
        }
        tracing::debug!(peer = %self.channel.peer(), "connection ended: {error}");
        state.ended = Some(error);
        for slot in state.pending.values_mut() {
            if let SlotState::Waiting(waker) = &mut slot.state
                && let Some(waker) = waker.take()
            {
                waker.wake();
            }
        }
        state.pending.retain(|_, slot| !matches!(slot.state, SlotState::Abandoned(_)));
        state.credits.wake_all();
        self.channel.close();
    }

    /// Processes a frame.
    fn handle(self: &Rc<Self>, frame: Bytes) -> Result<(), Error> {
        let state = &mut *self.state.borrow_mut();
        state.received = state.received.wrapping_add(1);
        let sealed = frame.starts_with(&MAGIC_ENCRYPTED);
        let frame =
            if sealed { protect::open(&self.pool, state.security.as_deref(), &frame)? } else { frame };
        let frame = match frame.starts_with(&MAGIC_COMPRESSED) {
            true => protect::decompress(&self.pool, state.compression.as_deref(), &frame)?,
            false => frame,
        };
        if frame.is_empty() {
            return Err(Error::Malformed(Malformed("empty message")));
        }
        for message in compound::split(frame) {
            state.response(message?, sealed)?;
        }
        for call in state.broken.drain(..) {
            rt::spawn(acknowledge(self.clone(), call)).detach();
        }
        Ok(())
    }
}

impl State {
    /// Processes one response.
    fn response(&mut self, message: Bytes, sealed: bool) -> Result<(), Error> {
        let header = Header::parse(&message)?;
        if !header.is_response() {
            return Err(Error::Violation("a request from the server"));
        }
        // 3.2.5.19: oplock and lease breaks, and other notifications. We hold no oplocks.
        if header.message_id == u64::MAX {
            let leases = self.leases.as_ref().filter(|_| header.command == Command::OplockBreak);
            self.broken.extend(leases.and_then(|leases| leases.broken(&message)));
            return Ok(());
        }
        let Some(slot) = self.pending.get_mut(&header.message_id) else {
            // 3.2.5.1.2: such a response is discarded.
            tracing::debug!(message_id = header.message_id, "response to no request");
            return Ok(());
        };
        if header.command != slot.command {
            return Err(Error::Violation("a response of another command than its request"));
        }
        let interim = header.status == NtStatus::PENDING && header.async_id().is_some();
        protect::check(self.security.as_deref(), slot.protection, &header, &message, sealed, interim)?;
        self.credits.received(std::mem::take(&mut slot.charge), header.credits);
        if interim {
            slot.async_id = header.async_id();
            // Wake the waiter so that it starts the time limit for the server's work.
            if let SlotState::Waiting(Some(waker)) = &slot.state {
                waker.wake_by_ref();
            }
            return Ok(());
        }
        match std::mem::replace(&mut slot.state, SlotState::Done(Reply { header, message })) {
            SlotState::Waiting(waker) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
                Ok(())
            }
            SlotState::Abandoned(_) => {
                self.pending.remove(&header.message_id);
                Ok(())
            }
            SlotState::Done(_) => Err(Error::Violation("two responses to one request")),
        }
    }
}

/// The connection's receiver.
async fn receive(shared: Rc<Shared>) {
    let error = loop {
        let first = match shared.channel.recv().await {
            Ok(Some(message)) => message,
            Ok(None) => break Error::Closed,
            Err(e) => break e.into(),
        };
        // Woken waiters send their next requests at once: the server starts on the first while the others are under
        // way. (Holding them back until all have asked would save system calls, but the two ends would then work by
        // turns.)
        let mut next = Some(first);
        let failed = loop {
            let Some(message) = next else { break None };
            if let Err(e) = shared.handle(message.body) {
                break Some(e);
            }
            next = shared.channel.try_recv();
        };
        if let Some(e) = failed {
            break e;
        }
    };
    shared.end(error);
}

/// Checks of a silent server per limit; the first silent step is logged.
const WATCH_STEPS: u32 = 12;

/// How long the server may be working on a request before that is logged.
const WORK_UNTOLD: Duration = Duration::from_secs(5);
/// Time limit for requests that wait for other clients, such as an open or a rename: a client that does not acknowledge
/// a lease break loses the lease after 35 s (3.3.2.5), and there may be several, one after the other.
const SHARED_WORK_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for requests on content: before a FLUSH completes, a disk may have gigabytes to write.
const CONTENT_WORK_LIMIT: Duration = Duration::from_secs(600);

/// How long the server may work on a request; `None` for commands that wait for others by nature.
fn work_limit(command: Command) -> Option<Duration> {
    match command {
        Command::ChangeNotify | Command::Lock => None,
        Command::Read | Command::Write | Command::Flush | Command::Ioctl => Some(CONTENT_WORK_LIMIT),
        _ => Some(SHARED_WORK_LIMIT),
    }
}

/// Completes when the server has been working for too long; logs a warning before.
async fn overdue(shared: Rc<Shared>, command: Command, limit: Duration) {
    rt::sleep(WORK_UNTOLD).await;
    let (now, left) = (rt::now(), limit.saturating_sub(WORK_UNTOLD));
    let first = {
        let state = &mut *shared.state.borrow_mut();
        let first = state.told_until.is_none_or(|until| until <= now);
        if first {
            state.told_until = Some(now + left);
        }
        first
    };
    // One warning for all requests of the same kind that wait together.
    if first {
        let why = match command {
            Command::Create | Command::SetInfo => " (other clients may have the file open)",
            _ => "",
        };
        tracing::warn!("the server is at work{why}; waiting for {} s at most", left.as_secs());
    }
    rt::sleep(left).await;
}

/// Ends the connection if the server owes an answer and is silent. Costs nothing per request. Requests that the server
/// has answered "pending" have limits of their own, see [`work_limit`].
///
/// With a `probe`, an ECHO under this policy asks the server for a sign of life before it is given up.
async fn watch(shared: Rc<Shared>, limit: Duration, probe: Option<Policy>) {
    let step = limit.checked_div(WATCH_STEPS).unwrap_or(limit);
    // How many steps ago the server fell silent, and the message count at that time.
    let mut silent: Option<(u32, u64)> = None;
    loop {
        rt::sleep(step).await;
        let (owed, received, logged_on) = {
            let state = shared.state.borrow();
            let owed = state.pending.values().any(|slot| slot.async_id.is_none());
            (owed, state.received, state.security.is_some())
        };
        silent = match silent {
            _ if !owed => None,
            Some((n, before)) if before == received => Some((n.saturating_add(1), received)),
            _ => {
                // The outstanding requests may take long; an ECHO does not.
                if let Some(policy) = probe {
                    let emit = |out: &mut Vec<u8>| echo::Request.emit(out);
                    send_and_forget(&shared, Call::new(Command::Echo, TreeConnect::NONE, policy, emit));
                }
                Some((0, received))
            }
        };
        let why = || Silence::of(&*shared.channel);
        match silent {
            Some((n, _)) if n >= WATCH_STEPS => {
                return shared.end(match why() {
                    Silence::Memory => Error::Starved(Starved(limit)),
                    Silence::Server => Error::TimedOut,
                });
            }
            // If other connections carry the session, nobody waits. The caller of a log-on has its own limit and
            // reports it.
            Some((1, _)) if probe.is_none() && logged_on => {
                let left = limit.saturating_sub(step).as_secs();
                tracing::warn!("{}; waiting for {left} s at most", why());
            }
            _ => {}
        }
    }
}

/// The response to a request that was sent.
pub(super) struct Pending {
    shared: Rc<Shared>,
    message_id: u64,
    /// Memory that the request exposes to the server; whoever takes the response revokes it.
    pub region: Option<Region>,
    /// Runs while the server is working, if that has a time limit.
    at_work: Option<(Duration, LocalBoxFuture<'static, ()>)>,
}

impl Pending {
    /// Lets the request complete without a waiter.
    pub fn forget(self) {
        if let Some(slot) = self.shared.state.borrow_mut().pending.get_mut(&self.message_id) {
            slot.state = SlotState::Abandoned(None);
        }
    }

    /// The server is working: returns an error once that has taken too long. Dropping this then cancels the request.
    fn poll_work(&mut self, command: Command, cx: &mut Context<'_>) -> Poll<Result<Reply, Error>> {
        let Some(limit) = work_limit(command) else { return Poll::Pending };
        let begin = || (limit, overdue(self.shared.clone(), command, limit).boxed_local());
        let (limit, timer) = self.at_work.get_or_insert_with(begin);
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(Error::Overdue(*limit))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Future for Pending {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut guard = this.shared.state.borrow_mut();
        let state = &mut *guard;
        let Some(slot) = state.pending.get_mut(&this.message_id) else {
            return Poll::Ready(Err(state.ended.clone().unwrap_or(Error::Closed)));
        };
        match &mut slot.state {
            SlotState::Done(_) => {}
            SlotState::Waiting(waker) => {
                if let Some(e) = &state.ended {
                    return Poll::Ready(Err(e.clone()));
                }
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                let at_work = slot.async_id.is_some().then_some(slot.command);
                drop(guard);
                return at_work.map_or(Poll::Pending, |command| this.poll_work(command, cx));
            }
            SlotState::Abandoned(_) => return Poll::Ready(Err(Error::Closed)),
        }
        match state.pending.remove(&this.message_id).map(|slot| slot.state) {
            Some(SlotState::Done(reply)) => Poll::Ready(Ok(reply)),
            _ => Poll::Ready(Err(Error::Closed)),
        }
    }
}

impl Drop for Pending {
    /// Dropping an unanswered request cancels it: CANCEL (3.2.4.24), which has the request's protection.
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let (protection, tree, async_id, security) = {
            let state = &mut *shared.state.borrow_mut();
            let ended = state.ended.is_some();
            let Some(slot) = state.pending.get_mut(&self.message_id) else { return };
            match slot.state {
                SlotState::Waiting(_) if !ended => slot.state = SlotState::Abandoned(self.region.take()),
                SlotState::Abandoned(_) => return,
                _ => {
                    state.pending.remove(&self.message_id);
                    return;
                }
            }
            (slot.protection, slot.tree, slot.async_id, state.security.clone())
        };
        let mut message = Vec::with_capacity(HEADER_LEN + 4);
        Header {
            // A CANCEL consumes no credit and no message id.
            credit_charge: 0,
            credits: 0,
            id: async_id.map_or(Id::tree(tree), Id::Async),
            session_id: security.as_ref().map_or(0, |s| s.session_id),
            ..Header::request(Command::Cancel, self.message_id)
        }
        .emit(&mut message);
        cancel::Request.emit(&mut message);
        if let Ok(outgoing) =
            protect::protect(&shared.pool, security.as_deref(), protection, message, Bytes::new(), None)
        {
            drop(shared.channel.send(outgoing));
        }
    }
}
