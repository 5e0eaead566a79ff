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
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex;
use weft_machine::{Time, random, rt};
use weft_transport::{Channel, Traffic};
use weft_wire::nfs3::Xdr;
use weft_wire::rpc::Credential;
use weft_wire::xdr::{Decoder, Encoder};

use super::Error;
use super::rpc::{Cargo, Program, Rpc};

/// Connections of a mount.
pub const MAX_LINES: usize = 16;
/// How long a server may be away before calls fail.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a call is repeated on a server that has never answered anything: what takes connections and closes them is
/// perhaps no server of NFS.
const FIRST_ATTEMPTS: u32 = 3;
/// A server that is away for longer than this is told of.
const UNTOLD: Duration = Duration::from_secs(2);
/// The pauses between attempts to reach it grow from here to there.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

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
    /// The server has answered something.
    answered: Cell<bool>,
    /// What moved on connections that are gone.
    before: Cell<Traffic>,
    /// Whether the user is told of waits: not while a mount is made, which has a limit of its caller's, who tells it.
    tells: Rc<Cell<bool>>,
    /// Until then nobody is told again that the server is away.
    told_until: Cell<Option<Time>>,
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
            answered: Cell::new(false),
            before: Cell::default(),
            tells: Rc::default(),
            told_until: Cell::default(),
        }
    }

    /// So many connections, the first of them this one; each is made when it is first used, and whenever it was lost. Until
    /// [`Lines::mounted`] nobody is told of waits.
    pub fn many(&self, dial: Dial, lines: usize) -> Lines {
        let more = (1..lines.clamp(1, MAX_LINES)).map(|_| Line::default());
        let tells = Rc::<Cell<bool>>::default();
        let first = self.lines.first().and_then(Line::current);
        let first = Line {
            rpc: RefCell::new(first.map(|rpc| rpc.watched(tells.clone()))),
            dialing: Mutex::default(),
        };
        Lines {
            first: self.first.clone(),
            credential: self.credential.clone(),
            dial: Some(dial),
            lines: std::iter::once(first).chain(more).collect(),
            turn: Cell::new(0),
            next_xid: Cell::new(self.next_xid.get()),
            lost: Cell::new(0),
            answered: Cell::new(self.answered.get()),
            before: Cell::default(),
            tells,
            told_until: Cell::default(),
        }
    }

    /// From now on the user is told of waits.
    pub fn mounted(&self) {
        self.tells.set(true);
    }

    /// From now on a lost connection is one to a server of NFS, which is perhaps started again.
    pub fn answered(&self) {
        self.answered.set(true);
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

    /// Calls a procedure and parses its results.
    pub async fn call<R: Xdr>(
        &self,
        program: Program,
        procedure: u32,
        args: &impl Xdr,
        cargo: Cargo,
    ) -> Result<R, Error> {
        self.call_with(program, procedure, |e| args.emit(e), cargo).await
    }

    /// The same with arguments that are emitted by hand, because they end with the length of the payload.
    pub async fn call_with<R: Xdr>(
        &self,
        program: Program,
        procedure: u32,
        args: impl FnOnce(&mut Encoder),
        cargo: Cargo,
    ) -> Result<R, Error> {
        Ok(R::parse(&mut self.results(program, procedure, args, cargo).await?)?)
    }

    /// The same; the cursor stands at the results.
    pub async fn results(
        &self,
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
        let (mut losses, mut pause, mut away) = (0u32, PAUSES.0, None);
        loop {
            let rpc = self.connected(line, away).await?;
            match rpc.results(xid, head.clone(), cargo.attempt().await).await {
                Err(Error::Channel(e)) if repeatable && passes(&e) => {
                    self.lose(line, &rpc);
                    losses = losses.saturating_add(1);
                    let since = *away.get_or_insert_with(rt::now);
                    if rt::now().since(since) >= PATIENCE || !self.answered.get() && losses >= FIRST_ATTEMPTS
                    {
                        return Err(Error::Channel(e));
                    }
                    tracing::debug!(xid, procedure, "is asked again: {e}");
                    self.tell(since, format_args!("the server ends connections without an answer ({e})"));
                    // One that is lost is made again at once; one that is lost again and again is not.
                    if losses > 1 {
                        rt::sleep(pause).await;
                        pause = pause.saturating_mul(2).min(PAUSES.1);
                    }
                }
                outcome => {
                    if !matches!(outcome, Err(Error::Channel(_))) {
                        self.answered.set(true);
                    }
                    return outcome;
                }
            }
        }
    }

    /// Tells once for all calls that the server has been away for long, and how long it is waited for.
    fn tell(&self, since: Time, what: std::fmt::Arguments<'_>) {
        let now = rt::now();
        let (so_far, told) = (now.since(since), self.told_until.get().is_some_and(|until| now < until));
        if self.tells.get() && !told && so_far >= UNTOLD {
            let left = PATIENCE.saturating_sub(so_far);
            self.told_until.set(Some(now + left));
            tracing::warn!("{what}; trying for {} s at most", left.as_secs());
        }
    }

    /// The connection of a line, made if there is none. `away`: since when the server is known to be away.
    async fn connected(&self, line: &Line, away: Option<Time>) -> Result<Rc<Rpc>, Error> {
        if let Some(rpc) = line.current() {
            return Ok(rpc);
        }
        let dial = self.dial.as_ref().ok_or_else(closed)?;
        let _alone = line.dialing.lock().await;
        let (since, mut pause) = (away.unwrap_or_else(rt::now), PAUSES.0);
        let until = since + PATIENCE;
        loop {
            if let Some(rpc) = line.current() {
                return Ok(rpc);
            }
            match dial().await {
                Ok(channel) => {
                    let rpc = Rpc::new(channel, self.credential.clone());
                    *line.rpc.borrow_mut() = Some(rpc.watched(self.tells.clone()));
                }
                Err(e) if passes(&e) && self.answered.get() && rt::now() < until => {
                    tracing::debug!("the server is not reached: {e}");
                    self.tell(since, format_args!("the server cannot be reached ({e})"));
                    rt::sleep(pause).await;
                    pause = pause.saturating_mul(2).min(PAUSES.1);
                }
                Err(e) => return Err(Error::Channel(Arc::new(e))),
            }
        }
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
