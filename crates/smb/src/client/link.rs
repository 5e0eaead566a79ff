//! One connection: requests go out numbered, protected and paid for; responses find their waiters.
//!
//! Spec: [MS-SMB2] 3.2.4.1 (sending), 3.2.5.1 (receiving), 3.2.5.19 (breaks), 3.2.4.24 (cancelling).
//! Owns: the channel, the table of outstanding requests, the credits, the keys (see `protect`). A task per connection receives and
//! hands each response straight to its waiter: one task switch for the receiver, one for the waiter. (Letting the
//! waiters receive for each other saves the first, but a waiter that is not polled would then stop all others.)
//! Does not: know what the commands mean.
//!
//! Errors: a response that breaks a rule or fails its signature ends the connection for all ([MS-SMB2] 3.2.5.1.3
//! allows it, and nothing that follows could be trusted).

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

pub(super) use protect::{Protection, Security};

use super::credits::{Credits, Place};
use super::error::Error;
use super::leases::Leases;
use super::region::Region;
use crate::compression::Agreed;
use crate::ids::IdMap;

/// A request, all but its numbers.
#[derive(Clone)]
pub(super) struct Call {
    pub command: Command,
    pub tree: u32,
    pub protection: Protection,
    /// [`HEADER_LEN`] bytes to be filled in, then the body.
    pub message: Vec<u8>,
    /// What follows the body: a WRITE's data.
    pub payload: Bytes,
    /// It was sent before, by a connection that is lost.
    pub replay: bool,
    /// Credits that it costs: one for each 64 KiB that it carries or asks for.
    pub charge: u16,
}

impl Call {
    /// A call whose body `emit` appends.
    pub fn new(command: Command, tree: u32, protection: Protection, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        // Header, the largest body of the hot path, channel information and a few descriptors.
        const ROOM: usize = 192;
        let mut message = Vec::with_capacity(ROOM);
        message.resize(HEADER_LEN, 0);
        emit(&mut message);
        Call { command, tree, protection, message, payload: Bytes::new(), replay: false, charge: 1 }
    }
}

/// A response: the whole message, header first.
pub(super) struct Reply {
    pub header: Header,
    pub message: Bytes,
}

impl Reply {
    /// The message, if the status is success.
    pub fn success(self) -> Result<Bytes, Error> {
        match self.header.status {
            NtStatus::SUCCESS => Ok(self.message),
            status => Err(Error::Status { command: self.header.command, status }),
        }
    }
}

/// An outstanding request.
struct Slot {
    command: Command,
    protection: Protection,
    tree: u32,
    /// Credits that it holds; 0 once an interim response has taken and given them (3.2.5.1.5).
    charge: u16,
    state: SlotState,
    async_id: Option<u64>,
}

enum SlotState {
    Waiting(Option<Waker>),
    Done(Reply),
    /// Nobody waits any more; the response still carries credits. Until it comes the server may use the memory that
    /// it was offered: taking it back earlier would end the connection under the server's RDMA operation.
    Abandoned(#[allow(dead_code, reason = "held for its drop")] Option<Region>),
}

struct State {
    pending: IdMap<u64, Slot>,
    credits: Credits,
    next_message_id: u64,
    /// Ids that were left out for a while; see [`Link::skip`].
    skipped: Vec<u64>,
    /// Whether those may be used.
    skipping: bool,
    multi_credit: bool,
    security: Option<Rc<Security>>,
    /// How messages may be compressed.
    compression: Option<Rc<Agreed>>,
    /// ChannelSequence (3.x).
    sequence: Option<Rc<Cell<u16>>>,
    /// The leases of the session.
    leases: Option<Rc<Leases>>,
    /// Breaks of them that are not acknowledged.
    broken: Vec<Call>,
    /// Until then nobody is told again that the server is at work.
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

/// The right to send one request of this charge.
pub(super) struct Permit {
    shared: Rc<Shared>,
    /// At most what was asked for; 0 once used.
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
    /// Takes over a channel on which nothing was sent yet.
    pub fn new(channel: Rc<dyn Channel>, pool: Pool, credits: u16, timeout: Duration) -> Link {
        let shared = Rc::new(Shared {
            channel,
            pool,
            state: RefCell::new(State {
                pending: IdMap::default(),
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

    /// The dialect has requests of several credits from now on.
    pub fn set_multi_credit(&self) {
        self.shared.state.borrow_mut().multi_credit = true;
    }

    /// The session is established: from now on its keys protect.
    pub fn set_security(&self, security: Rc<Security>) {
        self.shared.state.borrow_mut().security = Some(security);
    }

    /// Messages may be compressed from now on, those of the server and WRITEs of ours.
    pub fn set_compression(&self, compression: Option<Rc<Agreed>>) {
        self.shared.state.borrow_mut().compression = compression;
    }

    /// The session's keys, once it is established.
    pub fn security(&self) -> Result<Rc<Security>, Error> {
        let security = self.shared.state.borrow().security.clone();
        security.ok_or(Error::Misuse("protection before a session is established"))
    }

    /// Requests carry this ChannelSequence from now on; only in 3.x, where the field means that.
    pub fn set_sequence(&self, sequence: Rc<Cell<u16>>) {
        self.shared.state.borrow_mut().sequence = Some(sequence);
    }

    /// Breaks of these leases are acknowledged from now on.
    pub fn set_leases(&self, leases: Rc<Leases>) {
        self.shared.state.borrow_mut().leases = Some(leases);
    }

    /// Gives the server up sooner, because there are other connections, but asks it for a sign of life before.
    pub fn set_patience(&self, limit: Duration, probe: Protection) {
        *self.watchdog.borrow_mut() = rt::spawn(watch(self.shared.clone(), limit, Some(probe)));
    }

    /// Leaves out so many MessageIds, as far as the server has granted them, until [`Link::end_skipping`]: requests to bind
    /// are signed by one key on all connections, and with AES-GMAC the id is the nonce, which must not come twice.
    pub fn skip(&self, ids: u32) {
        let state = &mut *self.shared.state.borrow_mut();
        let ids = u64::from(ids.min(state.credits.window().saturating_sub(2)));
        let next = state.next_message_id.saturating_add(ids);
        state.skipped = (state.next_message_id..next).rev().collect();
        state.next_message_id = next;
        state.skipping = true;
    }

    /// What was left out is used from now on.
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

    /// Credits in all, at least 1.
    pub fn window(&self) -> u32 {
        self.shared.state.borrow().credits.window()
    }

    /// Waits for credits: `charge` of them, fewer when the server gives fewer.
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

    /// Sends a request now. The future gives its response; dropping it cancels the request.
    pub fn send(&self, permit: Permit, call: Call) -> Result<Pending, Error> {
        let (message_id, outgoing) = self.compose(permit, call, 0)?;
        Ok(self.launch(message_id, outgoing))
    }

    /// The same; also gives what was sent, which preauthentication integrity needs. `session_id` counts only while no
    /// session is established. Not of use for encrypted messages.
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
    struct Queued<'a>(&'a Rc<Shared>, Place);
    impl Drop for Queued<'_> {
        fn drop(&mut self) {
            self.0.state.borrow_mut().credits.leave(&self.1);
        }
    }
    let mut queued = Queued(shared, Place::default());
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

/// Tells the server that a lease is given back as it wants it (3.2.5.19.2): nothing is cached by it. Others wait for that,
/// so it waits for a credit.
async fn acknowledge(shared: Rc<Shared>, call: Call) {
    let sent = permit(&shared, 1).await.and_then(|permit| shared.compose(permit, call, 0));
    match sent {
        Ok((message_id, outgoing)) => launch(&shared, message_id, outgoing).forget(),
        Err(e) => tracing::debug!("a lease break is not acknowledged: {e}"),
    }
}

/// Sends a request for whose response nobody waits, if a credit is free (handles that are dropped, signs of life).
fn send_and_forget(shared: &Rc<Shared>, call: Call) {
    let permit = {
        let state = &mut *shared.state.borrow_mut();
        if state.ended.is_some() {
            return;
        }
        let mut cx = Context::from_waker(Waker::noop());
        let mut place = Place::default();
        match state.credits.poll_take(&mut cx, 1, &mut place) {
            Poll::Ready(Ok(charge)) => Permit { shared: shared.clone(), charge },
            _ => return state.credits.leave(&place),
        }
    };
    if let Ok((message_id, outgoing)) = shared.compose(permit, call, 0) {
        launch(shared, message_id, outgoing).forget();
    }
}

fn launch(shared: &Rc<Shared>, message_id: u64, outgoing: Outgoing) -> Pending {
    // What the medium takes later, or never, nobody waits for: the receiver sees the end of the channel.
    if let Some(Err(e)) = shared.channel.send(outgoing).now_or_never() {
        // It may have left in part: nothing that follows on this connection makes sense.
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
    /// Gives a request its numbers and its protection; from now on its response is awaited.
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
                // Its number is used up and will never be seen by the server, whose window then closes.
                self.end(e.clone());
                Err(e)
            }
        }
    }

    /// Ends the connection for everybody.
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

    /// Takes a frame.
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
    /// Takes one response.
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
            // 3.2.5.1.2: to be discarded.
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
            // Its limit begins.
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
        // What those who are woken ask for next leaves as it is asked for: the server begins with the first while the others
        // are on their way. (Holding it back until all have asked saves system calls, and has both ends wait by turns.)
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

/// How often in its limit a silent server is looked at: it is told of after one such step.
const WATCH_STEPS: u32 = 12;

/// The server has said that it is at work on a request: this long it is not told.
const WORK_UNTOLD: Duration = Duration::from_secs(5);
/// How long work may take that waits for other clients, to open a file or to rename it: a client that does not answer the break
/// of its lease loses it after 35 s (3.3.2.5), and there may be a few such, one after the other.
const SHARED_WORK_LIMIT: Duration = Duration::from_secs(120);
/// How long work on content may take: a disk may have gigabytes to write before a FLUSH is done.
const CONTENT_WORK_LIMIT: Duration = Duration::from_secs(600);

/// How long the server may be at work on a request; `None` for what waits for others by its nature.
fn work_limit(command: Command) -> Option<Duration> {
    match command {
        Command::ChangeNotify | Command::Lock => None,
        Command::Read | Command::Write | Command::Flush | Command::Ioctl => Some(CONTENT_WORK_LIMIT),
        _ => Some(SHARED_WORK_LIMIT),
    }
}

/// Returns when the server has been at work for too long; tells the user before.
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
    // Requests of one kind that wait together are told once.
    if first {
        let why = match command {
            Command::Create | Command::SetInfo => " (other clients may have the file open)",
            _ => "",
        };
        tracing::warn!("the server is at work{why}; waiting for {} s at most", left.as_secs());
    }
    rt::sleep(left).await;
}

/// Ends a connection whose server owes an answer and says nothing. Costs nothing per request. Requests that the
/// server has answered "pending" have limits of their own, see [`work_limit`].
///
/// With a `probe` the server is asked for a sign of life, an ECHO under this protection, before it is given up.
async fn watch(shared: Rc<Shared>, limit: Duration, probe: Option<Protection>) {
    let step = limit.checked_div(WATCH_STEPS).unwrap_or(limit);
    // What had been received when it fell silent, and how many steps ago that was.
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
                // What it is asked for may take long; this does not.
                if let Some(protection) = probe {
                    let call = Call::new(Command::Echo, 0, protection, |out| echo::Request.emit(out));
                    send_and_forget(&shared, call);
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
            // Where others carry the session on, nobody waits. A log-on has a limit of its caller's, who tells it.
            Some((1, _)) if probe.is_none() && logged_on => {
                let left = limit.saturating_sub(step).as_secs();
                tracing::warn!("{}; waiting for {left} s at most", why());
            }
            _ => {}
        }
    }
}

/// A request that was sent; its response.
pub(super) struct Pending {
    shared: Rc<Shared>,
    message_id: u64,
    /// Memory that the request offers to the server; to be taken back by whoever gets the response.
    pub region: Option<Region>,
    /// Runs while the server is at work, where that has a limit.
    at_work: Option<(Duration, LocalBoxFuture<'static, ()>)>,
}

impl Pending {
    /// Lets the request take its course.
    pub fn forget(self) {
        if let Some(slot) = self.shared.state.borrow_mut().pending.get_mut(&self.message_id) {
            slot.state = SlotState::Abandoned(None);
        }
    }

    /// The server is at work: an error once that has taken too long. Whoever drops this then cancels the request.
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
    /// Whoever drops a request that is not answered does not want it any more: CANCEL (3.2.4.24).
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
