//! RPC calls, many outstanding on one channel.
//!
//! [`Rpc`] is the table of outstanding calls (RFC 5531 section 8, xid), one of which receives for all. A watched
//! channel is closed when the server owes replies and has been silent for a minute; the watch also ends calls whose
//! request has no time left. Channels are reliable, so nothing is retransmitted here; `connections` reconnects.
//! [`Outbound`] is a call that may be sent several times; with a ticket, each attempt is signed anew (see `gss`).
//!
//! Operation: no task receives. One of the waiting calls, the leader, receives for all: it puts each reply into the
//! table and wakes its call. When its own reply arrives, it wakes another call to lead. A lone call thus waits for
//! the channel directly.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{FutureExt, LocalBoxFuture};
use weft_machine::rt::{self, Task};
use weft_machine::{Buf, Payload, Pool, Time, random};
use weft_transport::{Channel, Detached, Message, Outgoing, Part, Silence, Starved, To};
use weft_wire::nfs3::Xdr;
use weft_wire::rpc::gss::MAX_TOKEN;
use weft_wire::rpc::{AuthStat, Call, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use super::Error;
use super::credential::Credential;
use super::gss::{Context as Security, Exchange, Named, Ticket, is_of_context};
use super::patience::{Due, Patience, Told};
use super::v4::callback;
use crate::gss::PROTECTION_BYTES;

/// How long a server that owes replies may be silent before the connection counts as lost.
const SILENCE: Duration = Duration::from_secs(60);
/// How often silence is checked; a silence of this length is reported.
const WATCH: Duration = Duration::from_secs(5);
/// Length of a reply without any large item: attributes of two directories, a handle.
const SHORT_REPLY: usize = 512;
/// How often a call is repeated in a new context, because the server does not accept its context.
pub(crate) const RENEWALS: u32 = 1;

/// What a call carries beside its arguments.
#[derive(Default)]
pub(crate) struct Cargo {
    /// Content of the opaque that the arguments end with.
    pub payload: Option<Payload>,
    /// The same as a buffer that may be lent to the transport.
    pub source: Option<Buf>,
    /// The pool that the reply's payload is received into, and its largest size.
    pub sink: Option<(Pool, usize)>,
    /// Longest reply, without what the sink receives; 0 stands for a short one.
    pub longest_reply: usize,
}

impl Cargo {
    /// Copies this for another attempt; a lent buffer goes with the first.
    pub fn again(&mut self) -> Cargo {
        Cargo {
            payload: self.payload.clone(),
            source: self.source.take(),
            sink: self.sink.clone(),
            longest_reply: self.longest_reply,
        }
    }

    /// The cargo of one attempt: a sink of its own, and the lent buffer in the first attempt only.
    pub async fn attempt(&mut self) -> Attempt {
        let sink = match &self.sink {
            Some((pool, len)) => {
                let mut sink = pool.alloc(*len).await;
                sink.set_len(*len);
                Some(sink)
            }
            None => None,
        };
        Attempt {
            payload: self.payload.clone(),
            source: self.source.take(),
            sink,
            longest_reply: self.longest_reply,
        }
    }
}

/// See [`Cargo::attempt`].
pub(crate) struct Attempt {
    payload: Option<Payload>,
    source: Option<Buf>,
    sink: Option<Buf>,
    longest_reply: usize,
}

/// A program and its version.
#[derive(Clone, Copy)]
pub(crate) struct Program(pub u32, pub u32);

/// A call that may be sent several times, with the same transaction id.
pub(crate) struct Outbound {
    xid: u32,
    program: Program,
    procedure: u32,
    form: Form,
}

/// What is encoded once.
enum Form {
    /// The call as sent, except for the payload behind it.
    Whole(Bytes),
    /// The arguments. The header is encoded and signed at each attempt, and the arguments are protected.
    Arguments(Ticket, Bytes),
}

impl Outbound {
    pub fn new(
        xid: u32,
        program: Program,
        procedure: u32,
        credential: &Credential,
        args: impl FnOnce(&mut Encoder),
    ) -> Outbound {
        let mut e = Encoder::with_capacity(256);
        let form = match credential.constant() {
            Ok(credential) => {
                let Program(program, version) = program;
                Call { xid, program, version, procedure, credential }.emit(&mut e);
                args(&mut e);
                Form::Whole(e.into_bytes())
            }
            Err(ticket) => {
                args(&mut e);
                Form::Arguments(ticket.clone(), e.into_bytes())
            }
        };
        Outbound { xid, program, procedure, form }
    }

    /// Whether a failed attempt may succeed in a new context.
    pub fn is_renewable(&self, e: &Error) -> bool {
        matches!((&self.form, e), (Form::Arguments(..), Error::Rpc(reply)) if is_of_context(reply))
    }
}

pub(crate) struct Rpc {
    channel: Rc<dyn Channel>,
    credential: Credential,
    next_xid: Cell<u32>,
    table: RefCell<HashMap<u32, Waiting>>,
    /// The xid of the call that receives.
    leader: Cell<Option<u32>>,
    /// The leader's waker while it receives. The channel wakes it, and so does the watch when the leader's request
    /// ends.
    leading: RefCell<Option<Waker>>,
    ended: RefCell<Option<Error>>,
    /// Counts messages received.
    received: Cell<u64>,
    /// When the last of them was received, rounded down to the watch's interval.
    heard: Cell<Time>,
    /// When the latest call that has been answered was sent.
    answered: Cell<Time>,
    /// Ends with this value.
    watch: RefCell<Option<Task<()>>>,
}

/// A call in the table.
#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    reply: Option<Message>,
    due: Option<Due>,
    /// Set when its request has no time left; its limit.
    late: Option<Duration>,
    told: bool,
}

impl Rpc {
    pub fn new(channel: Rc<dyn Channel>, credential: Credential) -> Rc<Rpc> {
        // The first xid matters only to people who read captures of several connections.
        let start = random::bytes().map_or(1, u32::from_be_bytes);
        Rc::new(Rpc {
            channel,
            credential,
            next_xid: Cell::new(start),
            table: RefCell::default(),
            leader: Cell::new(None),
            leading: RefCell::new(None),
            ended: RefCell::new(None),
            received: Cell::new(0),
            heard: Cell::new(Time::ZERO),
            answered: Cell::new(Time::ZERO),
            watch: RefCell::default(),
        })
    }

    /// From now on, the connection ends when the server owes replies and is silent for a minute, and a call ends when
    /// its request has no time left. The user is told before that.
    pub fn watched(self: Rc<Rpc>, told: Rc<Told>) -> Rc<Rpc> {
        *self.watch.borrow_mut() = Some(rt::spawn(watch(Rc::downgrade(&self), told)));
        self
    }

    pub fn channel(&self) -> &Rc<dyn Channel> {
        &self.channel
    }

    /// When something was last received, to the watch's precision.
    pub fn heard(&self) -> Time {
        self.heard.get()
    }

    /// Calls a procedure and parses its results.
    pub async fn call<R: Xdr>(
        &self,
        program: Program,
        procedure: u32,
        args: &impl Xdr,
        cargo: Cargo,
    ) -> Result<R, Error> {
        self.call_as(&self.credential, program, procedure, args, cargo).await
    }

    /// The same with another credential.
    pub async fn call_as<R: Xdr>(
        &self,
        credential: &Credential,
        program: Program,
        procedure: u32,
        args: &impl Xdr,
        mut cargo: Cargo,
    ) -> Result<R, Error> {
        let call = Outbound::new(self.take_xid(), program, procedure, credential, |e| args.emit(e));
        let mut renewals = 0;
        loop {
            match self.results(&call, cargo.attempt().await, None).await {
                Err(e) if renewals < RENEWALS && call.is_renewable(&e) => renewals = RENEWALS,
                results => return Ok(R::parse(&mut results?)?),
            }
        }
    }

    fn take_xid(&self) -> u32 {
        let xid = self.next_xid.get();
        self.next_xid.set(xid.wrapping_add(1));
        xid
    }

    /// Establishes a context for a call by ticket, if it needs one.
    pub async fn prepare(&self, call: &Outbound, patience: &Patience) -> Result<(), Error> {
        let Form::Arguments(ticket, _) = &call.form else { return Ok(()) };
        self.security(ticket, call.program, Some(patience)).await.map(drop)
    }

    fn security<'a>(
        &'a self,
        ticket: &'a Ticket,
        Program(program, version): Program,
        patience: Option<&'a Patience>,
    ) -> LocalBoxFuture<'a, Result<Rc<Security>, Error>> {
        Box::pin(async move { ticket.context((program, version), &Line { rpc: self, patience }).await })
    }

    /// Makes the server forget the context of a ticket.
    pub async fn destroy(&self, ticket: &Ticket, Program(program, version): Program) -> Result<(), Error> {
        ticket.destroy((program, version), &Line { rpc: self, patience: None }).await
    }

    /// Sends a call and returns a cursor at its results.
    pub fn results<'a>(
        &'a self,
        call: &'a Outbound,
        cargo: Attempt,
        patience: Option<&'a Patience>,
    ) -> LocalBoxFuture<'a, Result<Decoder, Error>> {
        Box::pin(async move {
            let (ticket, arguments) = match &call.form {
                Form::Whole(bytes) => {
                    let mut parts = vec![Part::Bytes(bytes.clone())];
                    let Attempt { payload, source, sink, longest_reply } = cargo;
                    parts.extend(payload.map(|data| Part::Payload { data, to: To::Inline }));
                    let longest_reply = longest_reply.max(SHORT_REPLY);
                    let outgoing = Outgoing { parts, source, sink, longest_reply, ..Outgoing::default() };
                    let Message { body, detached, .. } = self.send(call.xid, outgoing, patience).await?;
                    let mut d = Decoder::reduced(body, detached.and_then(Detached::here));
                    return match Reply::parse(&mut d)? {
                        (_, Reply::Success) => Ok(d),
                        (_, refused) => Err(Error::Rpc(refused)),
                    };
                }
                Form::Arguments(ticket, arguments) => (ticket, arguments),
            };
            let Attempt { payload, source, sink, longest_reply } = cargo;
            let Outbound { xid, program: Program(program, version), procedure, .. } = *call;
            let named = Named { xid, program, version, procedure };
            loop {
                let security = self.security(ticket, call.program, patience).await?;
                let Some(number) = security.number().await else { continue };
                let parts = match security.call(named, &number, arguments, payload.clone()) {
                    Ok(parts) => parts,
                    // The library does not use a context that has expired.
                    Err(e) => {
                        tracing::debug!("a context of RPCSEC_GSS cannot be used: {e}");
                        ticket.forget(&security);
                        return Err(Error::Rpc(Reply::AuthError(AuthStat::GSS_CTXPROBLEM)));
                    }
                };
                let longest_reply = longest_reply.max(SHORT_REPLY).saturating_add(PROTECTION_BYTES);
                let outgoing = Outgoing { parts, source, sink, longest_reply, ..Outgoing::default() };
                let reply = self.send(xid, outgoing, patience).await?;
                let results = security.results(&number, reply);
                if let Err(Error::Rpc(refused)) = &results
                    && is_of_context(refused)
                {
                    tracing::debug!("the server does not accept the context of RPCSEC_GSS: {refused}");
                    ticket.forget(&security);
                }
                return results;
            }
        })
    }

    async fn send(
        &self,
        xid: u32,
        outgoing: Outgoing,
        patience: Option<&Patience>,
    ) -> Result<Message, Error> {
        if let Some(ended) = &*self.ended.borrow() {
            return Err(ended.clone());
        }
        let due = patience.map(Patience::due);
        if self.table.borrow_mut().insert(xid, Waiting { due, ..Waiting::default() }).is_some() {
            return Err(Error::Busy);
        }
        let place = CallEntry { rpc: self, xid };
        // A message that cannot be sent at all fails now. Later failures end the channel, or arrive as a reply.
        if let Some(Err(e)) = self.channel.send(outgoing).now_or_never() {
            return Err(Error::Channel(Arc::new(e)));
        }
        let mut receiving = None;
        let replied = poll_fn(|cx| self.poll_reply(cx, xid, &mut receiving));
        let reply = match due.and_then(|due| due.until) {
            // Only a request that is repeated has a timer of its own; the watch covers all others.
            Some(until) => rt::timeout(until.since(rt::now()), replied)
                .await
                .unwrap_or_else(|_| Err(patience.map_or(Error::Busy, Patience::late))),
            None => replied.await,
        };
        drop(receiving);
        drop(place);
        reply
    }

    fn poll_reply<'a>(
        &'a self,
        cx: &mut Context<'_>,
        xid: u32,
        receiving: &mut Option<LocalBoxFuture<'a, Result<Option<Message>, weft_transport::Error>>>,
    ) -> Poll<Result<Message, Error>> {
        loop {
            if let Some(reply) = self.table.borrow_mut().get_mut(&xid).and_then(|w| w.reply.take()) {
                return Poll::Ready(Ok(reply));
            }
            if let Some(ended) = &*self.ended.borrow() {
                return Poll::Ready(Err(ended.clone()));
            }
            if let Some(late) = self.table.borrow().get(&xid).and_then(|w| w.late) {
                return Poll::Ready(Err(Error::Late(late)));
            }
            if self.leader.get().is_some_and(|leader| leader != xid) {
                if let Some(waiting) = self.table.borrow_mut().get_mut(&xid) {
                    waiting.waker = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
            self.leader.set(Some(xid));
            let future = receiving.get_or_insert_with(|| self.channel.recv());
            let received = match future.as_mut().poll(cx) {
                Poll::Ready(received) => received,
                Poll::Pending => {
                    let mut leading = self.leading.borrow_mut();
                    if !leading.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                        *leading = Some(cx.waker().clone());
                    }
                    return Poll::Pending;
                }
            };
            *receiving = None;
            match received {
                Ok(Some(message)) => {
                    self.deliver(message);
                    while let Some(message) = self.channel.try_recv() {
                        self.deliver(message);
                    }
                }
                Ok(None) => self.end(Error::Channel(Arc::new(weft_transport::Error::Closed))),
                Err(e) => self.end(Error::Channel(Arc::new(e))),
            }
        }
    }

    /// A reply to an abandoned call is dropped. A call from the server is answered at once.
    fn deliver(&self, message: Message) {
        self.received.set(self.received.get().wrapping_add(1));
        if let Some(answer) = callback::answer(&message.body) {
            if let Some(Err(e)) = self.channel.send(Outgoing::bytes(answer)).now_or_never() {
                // The next receive reports the channel's end.
                tracing::debug!("a call from the server was not answered: {e}");
            }
            return;
        }
        let xid = message.body.first_chunk().map(|xid| u32::from_be_bytes(*xid));
        let mut table = self.table.borrow_mut();
        if let Some(waiting) = xid.and_then(|xid| table.get_mut(&xid)) {
            waiting.reply = Some(message);
            if let Some(due) = waiting.due {
                self.answered.set(self.answered.get().max(due.sent));
            }
            if let Some(waker) = waiting.waker.take() {
                waker.wake();
            }
        }
    }

    /// Checks the outstanding calls. Returns the latest time of the next check; `None`: the connection has ended.
    /// `quiet`: nothing was received since the previous check.
    fn check_calls(&self, now: Time, quiet: bool, told: &Told) -> Option<Time> {
        let heard = self.heard.get();
        let (mut next, mut first, mut owed_since) = (now + WATCH, None::<Time>, None::<Time>);
        for (xid, waiting) in &mut *self.table.borrow_mut() {
            let Some(due) = waiting.due.filter(|_| waiting.reply.is_none()) else { continue };
            let overtaken = due.is_overtaken(self.answered.get());
            let end = if overtaken { due.end(heard).min(due.passed_over()) } else { due.end(heard) };
            if end <= now {
                waiting.late = Some(due.silence);
                let leads = self.leader.get() == Some(*xid);
                let waker = if leads { self.leading.take() } else { waiting.waker.take() };
                waker.into_iter().for_each(Waker::wake);
                continue;
            }
            if overtaken && told.tells.get() && !std::mem::replace(&mut waiting.told, true) {
                let left = end.since(now).as_secs();
                tracing::warn!(
                    "the server answers other requests but not this one; waiting for {left} s at most"
                );
            }
            // Calls made from now on end later than the next check.
            next = next.min(end);
            if due.passed_over() > now {
                next = next.min(due.passed_over());
            }
            first = Some(first.map_or(end, |first| first.min(end)));
            owed_since = Some(owed_since.map_or(due.sent, |since| since.min(due.sent)));
        }
        let (Some(first), Some(owed_since)) = (first, owed_since) else { return Some(next) };
        let silent_since = owed_since.max(heard);
        let silent = now.since(silent_since);
        let why = Silence::of(&*self.channel);
        if silent >= SILENCE {
            self.end(match why {
                Silence::Memory => Error::Starved(Starved(SILENCE)),
                Silence::Server => Error::Channel(Arc::new(weft_transport::Error::TimedOut("an answer"))),
            });
            self.channel.close();
            return None;
        }
        if quiet && silent >= WATCH {
            // Without memory, other connections receive nothing either.
            let end = match why {
                Silence::Memory => first.min(silent_since + SILENCE),
                Silence::Server => first,
            };
            told.tell(end, format_args!("{why}; waiting"));
        }
        Some(next)
    }

    fn end(&self, e: Error) {
        self.ended.borrow_mut().get_or_insert(e);
        self.table.borrow_mut().values_mut().filter_map(|w| w.waker.take()).for_each(Waker::wake);
    }
}

/// Ends a connection whose server owes replies and is silent, and calls whose requests have no time left. Costs
/// nothing per call.
async fn watch(rpc: Weak<Rpc>, told: Rc<Told>) {
    let (mut last, mut received, mut pause) = (rt::now(), 0, WATCH);
    loop {
        rt::sleep(pause).await;
        let Some(rpc) = rpc.upgrade() else { return };
        let now = rt::now();
        let quiet = std::mem::replace(&mut received, rpc.received.get()) == rpc.received.get();
        if !quiet {
            rpc.heard.set(last);
            told.heard();
        }
        last = now;
        match rpc.check_calls(now, quiet, &told) {
            Some(next) => pause = next.since(now).min(WATCH),
            None => return,
        }
    }
}

/// Carries the messages that establish or end a context.
struct Line<'a> {
    rpc: &'a Rpc,
    patience: Option<&'a Patience>,
}

impl Exchange for Line<'_> {
    fn xid(&self) -> u32 {
        self.rpc.take_xid()
    }

    async fn exchange(&self, xid: u32, message: Bytes) -> Result<Message, Error> {
        let longest_reply = MAX_TOKEN.saturating_add(SHORT_REPLY);
        let outgoing = Outgoing { longest_reply, ..Outgoing::bytes(message) };
        self.rpc.send(xid, outgoing, self.patience).await
    }
}

/// A call's entry in the table; dropping it passes the lead on.
struct CallEntry<'a> {
    rpc: &'a Rpc,
    xid: u32,
}

impl Drop for CallEntry<'_> {
    fn drop(&mut self) {
        let mut table = self.rpc.table.borrow_mut();
        table.remove(&self.xid);
        if self.rpc.leader.get() == Some(self.xid) {
            self.rpc.leader.set(None);
            // Calls without a waker have a reply, or have not been polled yet and will lead when they are.
            if let Some(waker) = table.values_mut().find_map(|w| w.waker.take()) {
                waker.wake();
            }
        }
    }
}
