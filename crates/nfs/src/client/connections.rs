//! Connections to one server: calls are distributed over them and survive the loss of a connection.
//!
//! [`Connections`] dials lost connections again. RFC 5531 section 8: a repeated call keeps its xid; RFC 1813 4.5: the
//! server caches replies to find duplicates. Writing again what a server lost is left to `file`.
//!
//! A call whose connection ends before the reply is sent again, byte for byte, on the next one. A server that has
//! already carried it out finds it in its duplicate request cache. A call with a ticket has the same transaction id and
//! arguments, and a new sequence number (RFC 2203 5.3.3.1); it is also sent again when the server does not accept its context. Without a dial function there is one connection,
//! and all calls end with it. A call that lends its buffer (`Cargo::source`) is not repeated, because the buffer went
//! with it.

use std::cell::{Cell, RefCell};
use std::ops::Add;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex;
use weft_machine::{Time, random, rt};
use weft_transport::{Channel, Traffic};
use weft_wire::nfs3::Xdr;
use weft_wire::rpc::gss::Service;
use weft_wire::xdr::{Decoder, Encoder};

use super::Error;
use super::credential::Credential;
use super::patience::{Patience, Told};
use super::rpc::{Cargo, Outbound, Program, RENEWALS, Rpc};

/// Most connections of one mount.
pub const MAX_LINES: usize = 16;
/// How often a call is repeated to a server that has never answered: a peer that accepts connections and closes them
/// may not be an NFS server.
const FIRST_ATTEMPTS: u32 = 3;
/// An outage of the server that lasts longer than this is reported to the user.
const UNTOLD: Duration = Duration::from_secs(2);
/// Shortest and longest pause between attempts to reach the server.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// After the server was given up, no attempt is made for this long, and the next attempt lasts no longer than this: a
/// command on many files makes a request for each of them.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// How long the server may take to end a context, for which a command waits before it ends.
const DESTROYED_WITHIN: Duration = Duration::from_secs(1);
/// What surrounds the payload of a call that is one message: headers, arguments, what protects them.
const AROUND_BYTES: usize = 4096;

/// Makes a connection to the server, over the transport of the first.
pub type Dial = Rc<dyn Fn() -> LocalBoxFuture<'static, Result<Rc<dyn Channel>, weft_transport::Error>>>;

/// All connections of a mount.
pub(crate) struct Connections {
    first: Rc<dyn Channel>,
    credential: Credential,
    dial: Option<Dial>,
    connections: Vec<Connection>,
    /// Index of the connection that takes the next call.
    turn: Cell<usize>,
    next_xid: Cell<u32>,
    lost: Cell<u32>,
    /// Number of replies received.
    answers: Cell<u64>,
    /// Set when all connections were lost and a request had no time left. No attempt is made before this time.
    given_up: Cell<Option<Time>>,
    /// Traffic of connections that have ended.
    before: Cell<Traffic>,
    told: Rc<Told>,
}

/// One connection.
#[derive(Default)]
struct Connection {
    rpc: RefCell<Option<Rc<Rpc>>>,
    /// Held by the task that dials; the others wait for it.
    dialing: Mutex<()>,
}

fn closed() -> Error {
    Error::Channel(Arc::new(weft_transport::Error::Closed))
}

impl Connection {
    fn current(&self) -> Option<Rc<Rpc>> {
        self.rpc.borrow().clone()
    }
}

impl Connections {
    /// A single connection that is not dialled again.
    pub fn one(rpc: &Rc<Rpc>, credential: Credential) -> Connections {
        let connection = Connection { rpc: RefCell::new(Some(rpc.clone())), dialing: Mutex::default() };
        let start = random::bytes().map_or(1, u32::from_be_bytes);
        Connections {
            first: rpc.channel().clone(),
            credential,
            dial: None,
            connections: vec![connection],
            turn: Cell::new(0),
            // Distant from the xids that the first connection assigns itself.
            next_xid: Cell::new(start),
            lost: Cell::new(0),
            answers: Cell::new(0),
            given_up: Cell::new(None),
            before: Cell::default(),
            told: Rc::default(),
        }
    }

    /// Uses this many connections, the first of which is the current one. Each is dialled at its first use and after
    /// every loss. Waits are reported to the user only after [`Connections::mounted`].
    pub fn many(&self, dial: Dial, connections: usize) -> Connections {
        let more = (1..connections.clamp(1, MAX_LINES)).map(|_| Connection::default());
        let told = Rc::<Told>::default();
        let first = self.connections.first().and_then(Connection::current);
        let first = Connection {
            rpc: RefCell::new(first.map(|rpc| rpc.watched(told.clone()))),
            dialing: Mutex::default(),
        };
        Connections {
            first: self.first.clone(),
            credential: self.credential.clone(),
            dial: Some(dial),
            connections: std::iter::once(first).chain(more).collect(),
            turn: Cell::new(0),
            next_xid: Cell::new(self.next_xid.get()),
            lost: Cell::new(0),
            answers: Cell::new(self.answers.get()),
            given_up: Cell::new(None),
            before: Cell::default(),
            told,
        }
    }

    /// From now on, waits are reported to the user.
    pub fn mounted(&self) {
        self.told.tells.set(true);
    }

    /// From now on, a lost connection counts as one to an NFS server, which may be restarting.
    pub fn answered(&self) {
        self.hear();
    }

    fn hear(&self) {
        self.answers.set(self.answers.get().wrapping_add(1).max(1));
        self.given_up.set(None);
    }

    /// Called when a request has no time left. Gives the server up if nothing has been received since `answers` and
    /// no connection exists.
    fn give_up(&self, answers: u64) {
        if answers == self.answers.get() && self.count().0 == 0 {
            self.given_up.set(Some(rt::now() + GIVEN_UP));
        }
    }

    /// Whether calls are repeated after a connection was lost.
    pub fn repeats(&self) -> bool {
        self.dial.is_some()
    }

    /// A connection, for its limits and its name.
    pub fn channel(&self) -> Rc<dyn Channel> {
        let current = self.connections.iter().find_map(Connection::current);
        current.map_or_else(|| self.first.clone(), |rpc| rpc.channel().clone())
    }

    /// Traffic of all connections.
    pub fn traffic(&self) -> Traffic {
        let now = self.connections.iter().filter_map(Connection::current).map(|rpc| rpc.channel().traffic());
        now.fold(self.before.get(), Add::add)
    }

    /// The number of open connections, and how many were lost.
    pub fn count(&self) -> (usize, u32) {
        (self.connections.iter().filter_map(Connection::current).count(), self.lost.get())
    }

    /// Whether calls may have payload beside them, in memory that the other side reads or writes.
    pub fn places(&self) -> bool {
        !self.protects() && self.channel().limits().placed_payload().is_some()
    }

    /// Whether calls lend buffers, which go with the first attempt.
    pub fn lends(&self) -> bool {
        self.places() && !self.repeats() && self.credential.ticket().is_none()
    }

    /// Whether calls are protected as a whole. Then nothing travels beside them (RFC 8166 8.2.2.3).
    fn protects(&self) -> bool {
        self.credential.ticket().is_some_and(|ticket| ticket.service() != Service::None)
    }

    /// Largest payload of a call.
    pub fn max_payload(&self) -> usize {
        let limits = self.channel().limits();
        let inside = limits.max_message.saturating_sub(AROUND_BYTES);
        limits.placed_payload().filter(|_| !self.protects()).unwrap_or(inside)
    }

    /// Makes the server forget the context of a ticket, if there is one and the server is there.
    pub async fn end_context(&self, program: Program) {
        let rpc = self.connections.iter().find_map(Connection::current);
        let Some((ticket, rpc)) = self.credential.ticket().zip(rpc) else { return };
        match rt::timeout(DESTROYED_WITHIN, rpc.destroy(ticket, program)).await {
            Ok(Ok(())) => {}
            // The server ends an unused context by itself.
            Ok(Err(e)) => tracing::debug!("the context of RPCSEC_GSS was not ended: {e}"),
            Err(rt::Elapsed) => tracing::debug!("the context of RPCSEC_GSS was not ended in time"),
        }
    }

    /// Ends all of them.
    pub fn close(&self) {
        self.connections.iter().filter_map(Connection::current).for_each(|rpc| rpc.channel().close());
    }

    /// Calls a procedure and parses its results. `patience` is that of the request to which the call belongs.
    pub async fn call<R: Xdr>(
        &self,
        patience: &Patience,
        program: Program,
        procedure: u32,
        args: &impl Xdr,
        cargo: Cargo,
    ) -> Result<R, Error> {
        self.call_with(patience, program, procedure, |e| args.emit(e), cargo).await
    }

    /// Like [`Connections::call`], with arguments that are emitted by hand because they end with the length of the
    /// payload.
    pub async fn call_with<R: Xdr>(
        &self,
        patience: &Patience,
        program: Program,
        procedure: u32,
        args: impl FnOnce(&mut Encoder),
        cargo: Cargo,
    ) -> Result<R, Error> {
        Ok(R::parse(&mut self.results(patience, program, procedure, args, cargo).await?)?)
    }

    /// Like [`Connections::call_with`], but returns a cursor at the results.
    pub async fn results(
        &self,
        patience: &Patience,
        program: Program,
        procedure: u32,
        args: impl FnOnce(&mut Encoder),
        mut cargo: Cargo,
    ) -> Result<Decoder, Error> {
        let xid = self.next_xid.get();
        self.next_xid.set(xid.wrapping_add(1));
        let call = Outbound::new(xid, program, procedure, &self.credential, args);
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        let connection = turn.checked_rem(self.connections.len()).and_then(|at| self.connections.get(at));
        let connection = connection.ok_or_else(closed)?;
        let repeatable = self.repeats() && cargo.source.is_none();
        let (mut losses, mut renewals, mut pause, mut answers) = (0u32, 0, PAUSES.0, 0);
        if let Some(until) = self.given_up.get() {
            if rt::now() < until {
                return Err(patience.late());
            }
            patience.hurry(GIVEN_UP);
        }
        loop {
            let rpc = self.connected(connection, patience).await?;
            let outcome = match self.prepare(&rpc, &call, patience).await {
                Ok(()) => rpc.results(&call, cargo.attempt().await, Some(patience)).await,
                Err(e) => Err(e),
            };
            match outcome {
                Err(e) if renewals < RENEWALS && call.is_renewable(&e) => {
                    self.hear();
                    renewals = RENEWALS;
                }
                Err(Error::Channel(e)) if repeatable && passes(&e) => {
                    self.lose(connection, &rpc);
                    if losses == 0 {
                        answers = self.answers.get();
                    }
                    losses = losses.saturating_add(1);
                    let left = patience.lost(rpc.heard());
                    if left.is_zero() {
                        self.give_up(answers);
                    }
                    if left.is_zero() || self.answers.get() == 0 && losses >= FIRST_ATTEMPTS {
                        return Err(Error::Channel(e));
                    }
                    tracing::debug!(xid, procedure, "call is repeated: {e}");
                    self.tell(
                        patience,
                        format_args!("the server ends connections without an answer ({e}); trying"),
                    );
                    // The first loss is redialled at once, repeated ones after a pause.
                    if losses > 1 {
                        rt::sleep(pause.min(left)).await;
                        pause = pause.saturating_mul(2).min(PAUSES.1);
                        if patience.is_over() {
                            self.give_up(answers);
                            return Err(Error::Channel(e));
                        }
                    }
                }
                outcome => {
                    match outcome {
                        // The attempt after giving up failed too: the server accepts connections but does not answer.
                        Err(Error::Late(_)) if self.given_up.get().is_some() => {
                            self.given_up.set(Some(rt::now() + GIVEN_UP));
                        }
                        Err(Error::Channel(_) | Error::Late(_) | Error::Starved(_)) => {}
                        _ => self.hear(),
                    }
                    return outcome;
                }
            }
        }
    }

    /// Waits for the context of a call with a ticket, which another call may be establishing.
    async fn prepare(&self, rpc: &Rpc, call: &Outbound, patience: &Patience) -> Result<(), Error> {
        match self.credential.ticket().is_some_and(|ticket| !ticket.is_ready()) {
            true => self.in_time(patience, rpc.prepare(call, patience)).await?,
            false => Ok(()),
        }
    }

    /// Reports that the server has been away for a long time.
    fn tell(&self, patience: &Patience, what: std::fmt::Arguments<'_>) {
        let end = patience.end();
        if patience.so_far() >= UNTOLD {
            self.told.tell(end, what);
        }
    }

    /// Returns the RPC client of a connection, dialling if necessary.
    async fn connected(&self, connection: &Connection, patience: &Patience) -> Result<Rc<Rpc>, Error> {
        if let Some(rpc) = connection.current() {
            return Ok(rpc);
        }
        let dial = self.dial.as_ref().ok_or_else(closed)?;
        let _alone = self.in_time(patience, connection.dialing.lock()).await?;
        let (mut last, mut pause, answers) = (None, PAUSES.0, self.answers.get());
        loop {
            if let Some(rpc) = connection.current() {
                return Ok(rpc);
            }
            match rt::timeout(patience.end().since(rt::now()), dial()).await {
                Ok(Ok(channel)) => {
                    let rpc = Rpc::new(channel, self.credential.clone());
                    *connection.rpc.borrow_mut() = Some(rpc.watched(self.told.clone()));
                }
                Ok(Err(e)) if passes(&e) && self.answers.get() > 0 => {
                    let left = patience.lost(Time::ZERO);
                    tracing::debug!("the server cannot be reached: {e}");
                    self.tell(patience, format_args!("the server cannot be reached ({e}); trying"));
                    let e = Error::Channel(Arc::new(e));
                    // A dial that fails at once is never found late.
                    if left.is_zero() {
                        self.give_up(answers);
                        return Err(e);
                    }
                    last = Some(e);
                    rt::sleep(pause.min(left)).await;
                    pause = pause.saturating_mul(2).min(PAUSES.1);
                }
                Ok(Err(e)) => return Err(Error::Channel(Arc::new(e))),
                Err(rt::Elapsed) => {
                    self.give_up(answers);
                    return Err(last.unwrap_or_else(|| patience.late()));
                }
            }
        }
    }

    /// Waits for what earlier requests hold, no longer than the server may take to answer this request.
    pub async fn in_time<T>(&self, patience: &Patience, what: impl Future<Output = T>) -> Result<T, Error> {
        let mut what = pin!(what);
        // Usually there is nothing to wait for, and no timer is needed.
        if let Poll::Ready(done) = futures_util::poll!(what.as_mut()) {
            return Ok(done);
        }
        loop {
            let left = patience.due().end(self.heard()).since(rt::now());
            if left.is_zero() {
                return Err(patience.late());
            }
            if let Ok(done) = rt::timeout(left, what.as_mut()).await {
                return Ok(done);
            }
        }
    }

    /// When something was last received.
    fn heard(&self) -> Time {
        let heard = self.connections.iter().filter_map(Connection::current).map(|rpc| rpc.heard());
        heard.max().unwrap_or(Time::ZERO)
    }

    /// Removes a connection that has ended, once.
    fn lose(&self, connection: &Connection, rpc: &Rc<Rpc>) {
        let mut current = connection.rpc.borrow_mut();
        if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, rpc)) {
            *current = None;
            self.lost.set(self.lost.get().saturating_add(1));
            self.before.set(self.before.get() + rpc.channel().traffic());
            rpc.channel().close();
        }
    }
}

/// Whether another connection may avoid this error. A malformed message would be sent again.
fn passes(e: &weft_transport::Error) -> bool {
    use weft_transport::Error::{Closed, Connect, Io, Malformed, Misuse, Rdma, TimedOut, Violation, Work};
    match e {
        Closed | Connect(_) | Io(_) | Rdma(_) | TimedOut(_) | Work(_) => true,
        Malformed(_) | Violation(_) | Misuse(_) => false,
    }
}
