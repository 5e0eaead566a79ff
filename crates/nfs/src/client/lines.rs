//! Connections to one server: calls take turns on them, and go on where a connection was lost.
//!
//! What: [`Lines`]. Spec: RFC 5531 section 8 (a call that is repeated keeps its xid), RFC 1813 4.5 (the server's cache of
//! duplicates). Owns: the connections, and how they are made anew. Does not: write again what a server lost (`file`).
//!
//! A call whose connection ends before its answer is sent again, word for word, on the next one: a server that has carried it
//! out finds it among the calls that it has answered. Without a way to dial anew there is one connection, and its end is
//! the end of every call. A call that lends its buffer (`Cargo::source`) is not repeated: the buffer went with it.

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
use weft_wire::rpc::Credential;
use weft_wire::xdr::{Decoder, Encoder};

use super::Error;
use super::patience::{Patience, Told};
use super::rpc::{Cargo, Program, Rpc};

/// Connections of a mount.
pub const MAX_LINES: usize = 16;
/// How often a call is repeated on a server that has never answered anything: what takes connections and closes them is
/// perhaps no server of NFS.
const FIRST_ATTEMPTS: u32 = 3;
/// A server that is away for longer than this is told of.
const UNTOLD: Duration = Duration::from_secs(2);
/// The pauses between attempts to reach it grow from here to there.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A server that was given up is not tried for so long, nor for longer than so once it is: a command with many files has a request for each.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// Makes a connection to the server, over the transport of the first.
pub type Dial = Rc<dyn Fn() -> LocalBoxFuture<'static, Result<Rc<dyn Channel>, weft_transport::Error>>>;

/// All connections of a mount.
pub(crate) struct Lines {
    first: Rc<dyn Channel>,
    credential: Credential,
    dial: Option<Dial>,
    lines: Vec<Line>,
    /// Whose turn it is.
    turn: Cell<usize>,
    next_xid: Cell<u32>,
    lost: Cell<u32>,
    /// How much the server has answered.
    answers: Cell<u64>,
    /// All connections were lost, and a request had nothing of its limit left. Until then it is not tried again.
    given_up: Cell<Option<Time>>,
    /// What moved on connections that are gone.
    before: Cell<Traffic>,
    told: Rc<Told>,
}

/// One of them.
#[derive(Default)]
struct Line {
    rpc: RefCell<Option<Rc<Rpc>>>,
    /// One dials, the others wait.
    dialing: Mutex<()>,
}

fn closed() -> Error {
    Error::Channel(Arc::new(weft_transport::Error::Closed))
}

impl Line {
    fn current(&self) -> Option<Rc<Rpc>> {
        self.rpc.borrow().clone()
    }
}

impl Lines {
    /// One connection, whose end is the end.
    pub fn one(rpc: &Rc<Rpc>, credential: Credential) -> Lines {
        let line = Line { rpc: RefCell::new(Some(rpc.clone())), dialing: Mutex::default() };
        let start = random::bytes().map_or(1, u32::from_be_bytes);
        Lines {
            first: rpc.channel().clone(),
            credential,
            dial: None,
            lines: vec![line],
            turn: Cell::new(0),
            // Far from those that the first connection counts itself.
            next_xid: Cell::new(start),
            lost: Cell::new(0),
            answers: Cell::new(0),
            given_up: Cell::new(None),
            before: Cell::default(),
            told: Rc::default(),
        }
    }

    /// So many connections, the first of them this one; each is made when it is first used, and whenever it was lost. Until
    /// [`Lines::mounted`] nobody is told of waits.
    pub fn many(&self, dial: Dial, lines: usize) -> Lines {
        let more = (1..lines.clamp(1, MAX_LINES)).map(|_| Line::default());
        let told = Rc::<Told>::default();
        let first = self.lines.first().and_then(Line::current);
        let first =
            Line { rpc: RefCell::new(first.map(|rpc| rpc.watched(told.clone()))), dialing: Mutex::default() };
        Lines {
            first: self.first.clone(),
            credential: self.credential.clone(),
            dial: Some(dial),
            lines: std::iter::once(first).chain(more).collect(),
            turn: Cell::new(0),
            next_xid: Cell::new(self.next_xid.get()),
            lost: Cell::new(0),
            answers: Cell::new(self.answers.get()),
            given_up: Cell::new(None),
            before: Cell::default(),
            told,
        }
    }

    /// From now on the user is told of waits.
    pub fn mounted(&self) {
        self.told.tells.set(true);
    }

    /// From now on a lost connection is one to a server of NFS, which is perhaps started again.
    pub fn answered(&self) {
        self.hear();
    }

    fn hear(&self) {
        self.answers.set(self.answers.get().wrapping_add(1).max(1));
        self.given_up.set(None);
    }

    /// Nothing is left of a request. Gives the server up where nothing has come since `answers`, and there is no connection.
    fn give_up(&self, answers: u64) {
        if answers == self.answers.get() && self.count().0 == 0 {
            self.given_up.set(Some(rt::now() + GIVEN_UP));
        }
    }

    /// Whether calls are repeated where a connection was lost.
    pub fn repeats(&self) -> bool {
        self.dial.is_some()
    }

    /// A connection: for its limits and its name.
    pub fn channel(&self) -> Rc<dyn Channel> {
        let current = self.lines.iter().find_map(Line::current);
        current.map_or_else(|| self.first.clone(), |rpc| rpc.channel().clone())
    }

    /// What moved on all of them.
    pub fn traffic(&self) -> Traffic {
        let now = self.lines.iter().filter_map(Line::current).map(|rpc| rpc.channel().traffic());
        now.fold(self.before.get(), Add::add)
    }

    /// The connections that there are, and how many were lost.
    pub fn count(&self) -> (usize, u32) {
        (self.lines.iter().filter_map(Line::current).count(), self.lost.get())
    }

    /// Ends all of them.
    pub fn close(&self) {
        self.lines.iter().filter_map(Line::current).for_each(|rpc| rpc.channel().close());
    }

    /// Calls a procedure and parses its results. `patience` is that of the request which the call belongs to.
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

    /// The same with arguments that are emitted by hand, because they end with the length of the payload.
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

    /// The same; the cursor stands at the results.
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
        let head = program.head(xid, procedure, &self.credential, args);
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        let line = turn.checked_rem(self.lines.len()).and_then(|at| self.lines.get(at));
        let line = line.ok_or_else(closed)?;
        let repeatable = self.repeats() && cargo.source.is_none();
        let (mut losses, mut pause, mut answers) = (0u32, PAUSES.0, 0);
        if let Some(until) = self.given_up.get() {
            if rt::now() < until {
                return Err(patience.late());
            }
            patience.hurry(GIVEN_UP);
        }
        loop {
            let rpc = self.connected(line, patience).await?;
            match rpc.results(xid, head.clone(), cargo.attempt().await, Some(patience)).await {
                Err(Error::Channel(e)) if repeatable && passes(&e) => {
                    self.lose(line, &rpc);
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
                    tracing::debug!(xid, procedure, "is asked again: {e}");
                    self.tell(
                        patience,
                        format_args!("the server ends connections without an answer ({e}); trying"),
                    );
                    // One that is lost is made again at once; one that is lost again and again is not.
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
                        // Tried again in vain: it takes connections, and says nothing.
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

    /// Tells that the server has been away for long.
    fn tell(&self, patience: &Patience, what: std::fmt::Arguments<'_>) {
        let end = patience.end();
        if patience.so_far() >= UNTOLD {
            self.told.tell(end, what);
        }
    }

    /// The connection of a line, made if there is none.
    async fn connected(&self, line: &Line, patience: &Patience) -> Result<Rc<Rpc>, Error> {
        if let Some(rpc) = line.current() {
            return Ok(rpc);
        }
        let dial = self.dial.as_ref().ok_or_else(closed)?;
        let _alone = self.in_time(patience, line.dialing.lock()).await?;
        let (mut last, mut pause, answers) = (None, PAUSES.0, self.answers.get());
        loop {
            if let Some(rpc) = line.current() {
                return Ok(rpc);
            }
            match rt::timeout(patience.end().since(rt::now()), dial()).await {
                Ok(Ok(channel)) => {
                    let rpc = Rpc::new(channel, self.credential.clone());
                    *line.rpc.borrow_mut() = Some(rpc.watched(self.told.clone()));
                }
                Ok(Err(e)) if passes(&e) && self.answers.get() > 0 => {
                    let left = patience.lost(Time::ZERO);
                    tracing::debug!("the server is not reached: {e}");
                    self.tell(patience, format_args!("the server cannot be reached ({e}); trying"));
                    last = Some(Error::Channel(Arc::new(e)));
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

    /// Waits for what earlier requests hold, as long as the server has to answer this one.
    pub async fn in_time<T>(&self, patience: &Patience, what: impl Future<Output = T>) -> Result<T, Error> {
        let mut what = pin!(what);
        // Mostly there is nothing to wait for, and no timer is wanted.
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

    /// When something came last.
    fn heard(&self) -> Time {
        let heard = self.lines.iter().filter_map(Line::current).map(|rpc| rpc.heard());
        heard.max().unwrap_or(Time::ZERO)
    }

    /// Takes a connection out that has ended, once.
    fn lose(&self, line: &Line, rpc: &Rc<Rpc>) {
        let mut current = line.rpc.borrow_mut();
        if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, rpc)) {
            *current = None;
            self.lost.set(self.lost.get().saturating_add(1));
            self.before.set(self.before.get() + rpc.channel().traffic());
            rpc.channel().close();
        }
    }
}

/// Errors of a connection that another one may not have. What a server says wrongly it will say again.
fn passes(e: &weft_transport::Error) -> bool {
    use weft_transport::Error::{Closed, Connect, Io, Malformed, Misuse, Rdma, TimedOut, Violation, Work};
    match e {
        Closed | Connect(_) | Io(_) | Rdma(_) | TimedOut(_) | Work(_) => true,
        Malformed(_) | Violation(_) | Misuse(_) => false,
    }
}
