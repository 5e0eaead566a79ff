//! The session: requests in slots, exactly once; and the way back when the server has forgotten it, or everything.
//!
//! Spec: RFC 8881 2.10.6 (exactly once), 8.4.2 (restart of the server), 18.35, 18.36, 18.46, 18.51. Owns: the client id, the
//! session, the list of open files. Does not: reconnect (`lines` does, and sends what was not answered again in the same
//! words, with the same slot and number: the slot's memory on the server answers it).
//!
//! Errors: what passes by itself (DELAY, GRACE) is waited for, as long as the server may be away; what a session's end
//! explains is asked again in the next one, after open files were taken back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::lock::Mutex;
use weft_machine::{Pool, Time, random, rt};
use weft_transport::{Channel, Kind};
use weft_wire::nfs4::{
    BindConn, CallbackSec, ChannelAttrs, ClientOwner, CreateSession, CreateSessionOk, ExchangeId,
    ExchangeIdOk, Op, Opaque, ProtectHow, Sequence, SequenceOk, SessionId, Status, UpTo, Verifier,
    exchange_flag, opnum, session_flag,
};
use weft_wire::xdr::Malformed;

use super::callback;
use super::compound::{self, Results};
use super::opened::{Back, Opened};
use super::slots::{Slots, Turn};
use crate::client::Error;
use crate::client::lines::Lines;
use crate::client::patience::Patience;
use crate::client::rpc::{Cargo, Program};

/// NFS version 4.
const NFS: Program = Program(weft_wire::nfs4::PROGRAM, weft_wire::nfs4::VERSION);
/// Requests outstanding at a time.
const MAX_SLOTS: u32 = 64;
/// Operations of a compound.
const MAX_OPERATIONS: u32 = 32;
/// What is around the payload of a READ or WRITE: headers, SEQUENCE, handles.
pub(super) const AROUND_BYTES: u32 = 1024;
/// Longest reply that the server is to keep for a repetition.
const MAX_KEPT_BYTES: u32 = 4096;
/// A session that keeps less keeps nothing.
const MIN_KEPT_BYTES: u32 = 512;
/// How often a session may be lost while it is made, or while one request is asked.
const MAX_LOSSES: u32 = 16;
/// Files that nobody has any more and that were not closed; from so many on they are closed before the next open.
const MAX_FORGOTTEN: usize = 16;

/// What a server keeps of us.
pub(crate) struct Client {
    pub lines: Lines,
    pub pool: Pool,
    owner: ClientOwner,
    /// The short name that the server gave, and the number of the next CREATE_SESSION.
    known: Cell<Option<(u64, u32)>>,
    current: RefCell<Option<Rc<Session>>>,
    /// One makes the session, the others wait.
    making: Mutex<()>,
    /// Sessions that are of no use to us, and that the server perhaps has still.
    over: RefCell<Vec<SessionId>>,
    /// Open files by their owners' numbers, to be taken back.
    files: RefCell<BTreeMap<u64, Weak<Opened>>>,
    next_owner: Cell<u64>,
    /// What closes files that nobody has any more, and that the server perhaps has open.
    forgotten: RefCell<Vec<Vec<Op>>>,
    recovered: Cell<u32>,
    /// Largest READ and WRITE in bytes.
    pub sizes: Cell<(usize, usize)>,
}

pub(super) struct Session {
    id: SessionId,
    slots: Rc<Slots>,
    fore: ChannelAttrs,
    /// When the server last answered: the lease counts from there.
    renewed: Cell<Time>,
}

/// A request that opens or closes a file. One that is not answered, because whoever waited has given up or the connection is
/// lost, may leave the file open for the server: then it is closed later.
pub(super) struct Unanswered<'a> {
    client: &'a Client,
    /// What closes it; nothing once it was answered.
    close: Vec<Op>,
}

impl Unanswered<'_> {
    pub fn answered(mut self) {
        self.close.clear();
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.close.is_empty() {
            self.client.close_later(std::mem::take(&mut self.close));
        }
    }
}

/// What became of one attempt.
enum Attempt {
    /// The results behind SEQUENCE's.
    Done(Results),
    /// This session is no more, or its slots are out of step.
    Over,
}

/// Whether the server keeps the reply, so that a repetition is answered and not carried out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Yes,
    /// Whatever is asked may be carried out twice.
    No,
}

impl Client {
    /// A client that no server knows yet.
    pub fn new(lines: Lines, pool: Pool) -> Result<Rc<Client>, Error> {
        let (verifier, id): (Verifier, [u8; 16]) = (random::bytes()?, random::bytes()?);
        // Every mount is a client of its own: nothing of an earlier run is to be taken over.
        let name: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let owner = ClientOwner { verifier, id: Opaque(Bytes::from(format!("weft {name}"))) };
        Ok(Rc::new(Client {
            lines,
            pool,
            owner,
            known: Cell::new(None),
            current: RefCell::new(None),
            making: Mutex::default(),
            over: RefCell::default(),
            files: RefCell::default(),
            next_owner: Cell::new(0),
            forgotten: RefCell::default(),
            recovered: Cell::new(0),
            sizes: Cell::new((1, 1)),
        }))
    }

    /// How often a server had forgotten the session.
    pub fn recovered(&self) -> u32 {
        self.recovered.get()
    }

    /// Asks until there is an answer that says something, in whichever session there is then. `ops` are put together for
    /// every attempt, because a new session may have brought new state ids. `payload` as in [`compound::emit`].
    pub(super) async fn run(
        &self,
        ops: impl Fn() -> Vec<Op>,
        keep: Keep,
        payload: Option<u32>,
        cargo: Cargo,
    ) -> Result<Results, Error> {
        self.run_within(&Patience::new(), ops, keep, payload, cargo).await
    }

    /// The same with a limit that is not the usual one.
    pub(super) async fn run_within(
        &self,
        patience: &Patience,
        ops: impl Fn() -> Vec<Op>,
        keep: Keep,
        payload: Option<u32>,
        mut cargo: Cargo,
    ) -> Result<Results, Error> {
        let mut losses = 0u32;
        loop {
            let session = self.session(patience).await?;
            let taken = self.lines.in_time(patience, session.slots.take()).await?;
            let Some(turn) = taken else { continue };
            let ops = ops();
            let attempt = self.attempt(patience, &session, turn, &ops, keep, payload, cargo.again());
            let results = match attempt.await? {
                Attempt::Done(results) => results,
                Attempt::Over => {
                    losses = losses.saturating_add(1);
                    if losses > MAX_LOSSES {
                        return Err(Error::Status4(Status::BADSESSION));
                    }
                    self.lose(&session);
                    continue;
                }
            };
            match results.status {
                // It was carried out, and its answer is lost: such a request may be carried out again.
                Status::RETRY_UNCACHED_REP if keep == Keep::No => {}
                status @ (Status::DELAY | Status::GRACE) if busy(patience, status).await => {}
                _ => return Ok(results),
            }
        }
    }

    /// Our address has changed: the server knows the session there once it is told (RFC 8881 18.34). Whether it worked shows
    /// at the next request.
    async fn bind(&self, patience: &Patience, session: SessionId) -> Result<(), Error> {
        const FORE: u32 = 1;
        let bind = BindConn { session, direction: FORE, rdma: false };
        self.alone(patience, &Op::BindConnToSession(bind)).await.map(drop)
    }

    /// One request in one slot, however often a busy server has to be asked.
    #[allow(clippy::too_many_arguments)]
    async fn attempt(
        &self,
        patience: &Patience,
        session: &Session,
        mut turn: Turn,
        ops: &[Op],
        keep: Keep,
        payload: Option<u32>,
        mut cargo: Cargo,
    ) -> Result<Attempt, Error> {
        if turn.is_doubtful() {
            // With the number of the request that was given up: whether that was seen or not, this one settles it.
            match self.settled(patience, session, &turn).await? {
                true => turn.advance(),
                false => return Ok(Attempt::Over),
            }
        }
        let mut bound = false;
        loop {
            let sequence = session.sequence(&turn, keep);
            let cargo = cargo.again();
            let head = |e: &mut _| compound::emit(Some(&sequence), ops, payload, e);
            let d = self.lines.results(patience, NFS, weft_wire::nfs4::COMPOUND, head, cargo).await?;
            let mut results = Results::parse(d)?;
            match results.next(opnum::SEQUENCE)? {
                Status::OK => {
                    let ok: SequenceOk = results.result()?;
                    let same = (ok.session, ok.sequence, ok.slot)
                        == (sequence.session, sequence.sequence, sequence.slot);
                    if !same {
                        return Err(Malformed("RFC 8881 18.46: the answer of another slot").into());
                    }
                    session.renewed.set(rt::now());
                    session.slots.aim(ok.target_highest_slot);
                    turn.advance();
                    turn.answered();
                    return Ok(Attempt::Done(results));
                }
                // The request is being carried out, or the server is busy: the number is not used up.
                status @ Status::DELAY if busy(patience, status).await => {}
                Status::CONN_NOT_BOUND_TO_SESSION if !bound => {
                    bound = true;
                    self.bind(patience, session.id).await?;
                }
                status if ends_session(status) => {
                    tracing::debug!(%status, "the session is over");
                    return Ok(Attempt::Over);
                }
                status => {
                    // One that is still being carried out leaves its slot in doubt.
                    if status != Status::DELAY {
                        turn.answered();
                    }
                    return Err(Error::Status4(status));
                }
            }
        }
    }

    /// Uses up the number of a request that was given up. False: the session is over.
    async fn settled(&self, patience: &Patience, session: &Session, turn: &Turn) -> Result<bool, Error> {
        let sequence = session.sequence(turn, Keep::No);
        let mut bound = false;
        loop {
            let head = |e: &mut _| compound::emit(Some(&sequence), &[], None, e);
            let cargo = Cargo { longest_reply: MAX_KEPT_BYTES as usize, ..Cargo::default() };
            let d = self.lines.results(patience, NFS, weft_wire::nfs4::COMPOUND, head, cargo).await?;
            match Results::parse(d)?.next(opnum::SEQUENCE)? {
                // Fresh, or the answer of the one that was given up; or there was another one with this number.
                Status::OK | Status::SEQ_FALSE_RETRY | Status::RETRY_UNCACHED_REP => return Ok(true),
                status @ Status::DELAY if busy(patience, status).await => {}
                Status::CONN_NOT_BOUND_TO_SESSION if !bound => {
                    bound = true;
                    self.bind(patience, session.id).await?;
                }
                status if ends_session(status) => return Ok(false),
                status => return Err(Error::Status4(status)),
            }
        }
    }

    /// The session, made if there is none.
    async fn session(&self, patience: &Patience) -> Result<Rc<Session>, Error> {
        if let Some(session) = self.current.borrow().clone() {
            return Ok(session);
        }
        let _alone = self.lines.in_time(patience, self.making.lock()).await?;
        if let Some(session) = self.current.borrow().clone() {
            return Ok(session);
        }
        let session = self.make(patience).await?;
        *self.current.borrow_mut() = Some(session.clone());
        Ok(session)
    }

    /// This session is of no more use.
    fn lose(&self, session: &Rc<Session>) {
        session.slots.end();
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, session)) {
            *current = None;
            self.over.borrow_mut().push(session.id);
            self.recovered.set(self.recovered.get().saturating_add(1));
        }
    }

    /// RFC 8881 8.4.2, 2.10.10.1: a session, with a new client id where the server does not know ours any more, and then
    /// with all open files taken back.
    async fn make(&self, patience: &Patience) -> Result<Rc<Session>, Error> {
        self.end_lost(patience, false).await?;
        // A server that restarts while files are taken back has forgotten those that were.
        let mut reclaim = false;
        for _ in 0..MAX_LOSSES {
            let (client, number) = match self.known.get() {
                Some(known) => known,
                None => {
                    let ok = self.exchange_id(patience).await?;
                    reclaim |= ok.flags & exchange_flag::CONFIRMED_R == 0;
                    self.known.set(Some((ok.client, ok.sequence)));
                    (ok.client, ok.sequence)
                }
            };
            let mut results = self.alone(patience, &Op::CreateSession(self.wishes(client, number))).await?;
            let made = match results.next(opnum::CREATE_SESSION)? {
                Status::OK => results.result::<CreateSessionOk>()?,
                Status::STALE_CLIENTID | Status::SEQ_MISORDERED => {
                    self.known.set(None);
                    continue;
                }
                status @ Status::DELAY if busy(patience, status).await => continue,
                status => return Err(Error::Status4(status)),
            };
            self.known.set(Some((client, number.wrapping_add(1))));
            // Until it can be used: whoever gives up meanwhile leaves it to the next.
            self.over.borrow_mut().push(made.session);
            if made.fore.max_operations < 8 || made.fore.max_requests == 0 {
                return Err(Malformed("RFC 8881 18.36: a session with too little room").into());
            }
            let session = Rc::new(Session {
                id: made.session,
                slots: Slots::new(made.fore.max_requests.min(MAX_SLOTS)),
                fore: made.fore,
                renewed: Cell::new(rt::now()),
            });
            if !reclaim || self.reclaim(&session).await? {
                self.over.borrow_mut().retain(|lost| *lost != session.id);
                return Ok(session);
            }
        }
        Err(Error::Status4(Status::BADSESSION))
    }

    /// Has the server end the sessions that are of no use. Each is kept in mind until that was answered, also by one who gives
    /// up meanwhile. Who does not insist leaves one that the server still works for, and goes on.
    async fn end_lost(&self, patience: &Patience, insists: bool) -> Result<(), Error> {
        let mut bound = None;
        loop {
            let Some(session) = self.over.borrow().last().copied() else { return Ok(()) };
            match self.alone(patience, &Op::DestroySession(session)).await?.status {
                Status::DELAY if !insists => return Ok(()),
                status @ Status::DELAY if busy(patience, status).await => continue,
                status @ Status::DELAY => return Err(Error::Status4(status)),
                // RFC 8881 18.37.3: by a connection of the session alone, and this may be a new one.
                Status::CONN_NOT_BOUND_TO_SESSION if bound != Some(session) => {
                    bound = Some(session);
                    self.bind(patience, session).await?;
                    continue;
                }
                // One that it does not know is what was wanted.
                Status::OK | Status::BADSESSION | Status::DEADSESSION => {}
                status => tracing::debug!(%status, "a session is left to the server"),
            }
            self.over.borrow_mut().retain(|lost| *lost != session);
        }
    }

    async fn exchange_id(&self, patience: &Patience) -> Result<ExchangeIdOk, Error> {
        let op = Op::ExchangeId(ExchangeId {
            client: self.owner.clone(),
            flags: 0,
            protect: ProtectHow::None,
            implementation: UpTo::default(),
        });
        loop {
            let mut results = self.alone(patience, &op).await?;
            if results.status == Status::DELAY && busy(patience, results.status).await {
                continue;
            }
            return results.ok(opnum::EXCHANGE_ID);
        }
    }

    /// An operation outside any session.
    async fn alone(&self, patience: &Patience, op: &Op) -> Result<Results, Error> {
        let head = |e: &mut _| compound::emit(None, std::slice::from_ref(op), None, e);
        let cargo = Cargo { longest_reply: MAX_KEPT_BYTES as usize, ..Cargo::default() };
        Results::parse(self.lines.results(patience, NFS, weft_wire::nfs4::COMPOUND, head, cargo).await?)
    }

    fn wishes(&self, client: u64, sequence: u32) -> CreateSession {
        let channel = self.lines.channel();
        let message = (payload_of(&*channel) as u32).saturating_add(AROUND_BYTES);
        let back = ChannelAttrs {
            header_pad: 0,
            max_request: 4096,
            max_response: 4096,
            max_response_cached: 0,
            max_operations: 4,
            max_requests: 1,
            rdma_ird: UpTo::default(),
        };
        let fore = ChannelAttrs {
            max_request: message,
            max_response: message,
            max_response_cached: MAX_KEPT_BYTES,
            max_operations: MAX_OPERATIONS,
            max_requests: MAX_SLOTS,
            ..back.clone()
        };
        // Calls of the server come as messages of their own only where messages are all there is (RFC 8167 is not spoken).
        let flags = if channel.kind() == Kind::Record { session_flag::CONN_BACK_CHAN } else { 0 };
        CreateSession {
            client,
            sequence,
            flags,
            fore,
            back,
            callback_program: callback::PROGRAM,
            callback_sec: UpTo(vec![CallbackSec::None]),
        }
    }

    /// Takes back the files that are open, says that this is all, and opens anew what could not be taken back. False: the
    /// session was lost over it.
    async fn reclaim(&self, session: &Session) -> Result<bool, Error> {
        let files: Vec<_> = self.files.borrow().values().filter_map(Weak::upgrade).collect();
        // What was closed for the server by its restart.
        self.forgotten.borrow_mut().clear();
        let mut anew = Vec::new();
        for file in files {
            match self.within(session, &file.reclaim(Back::Previous), Keep::Yes).await? {
                None => return Ok(false),
                Some(results) => match file.taken(results)? {
                    Status::OK => {}
                    status => {
                        tracing::debug!(%status, "an open file is not given back");
                        anew.push(file);
                    }
                },
            }
        }
        match self.within(session, &[Op::ReclaimComplete(false)], Keep::Yes).await? {
            None => return Ok(false),
            Some(mut results) => match results.next(opnum::RECLAIM_COMPLETE)? {
                Status::OK | Status::COMPLETE_ALREADY => {}
                status => return Err(Error::Status4(status)),
            },
        }
        for file in anew {
            let Some(results) = self.within(session, &file.reclaim(Back::Anew), Keep::Yes).await? else {
                return Ok(false);
            };
            let status = file.taken(results)?;
            file.lost.set((status != Status::OK).then_some(status));
        }
        Ok(true)
    }

    /// A request in a session that is not everybody's yet. `None`: the session is over.
    async fn within(&self, session: &Session, ops: &[Op], keep: Keep) -> Result<Option<Results>, Error> {
        let patience = &Patience::new();
        loop {
            let Some(turn) = self.lines.in_time(patience, session.slots.take()).await? else {
                return Ok(None);
            };
            match self.attempt(patience, session, turn, ops, keep, None, Cargo::default()).await? {
                Attempt::Over => return Ok(None),
                Attempt::Done(results) => match results.status {
                    status @ (Status::DELAY | Status::GRACE) if busy(patience, status).await => {}
                    _ => return Ok(Some(results)),
                },
            }
        }
    }

    /// A name for an owner of opens, and its number.
    pub fn new_owner(&self) -> (u64, Opaque) {
        let number = self.next_owner.get();
        self.next_owner.set(number.wrapping_add(1));
        (number, Opaque(Bytes::copy_from_slice(&number.to_be_bytes())))
    }

    pub fn enter(&self, number: u64, file: &Rc<Opened>) {
        self.files.borrow_mut().insert(number, Rc::downgrade(file));
    }

    /// A file is not open any more.
    pub fn leave(&self, number: u64) {
        self.files.borrow_mut().remove(&number);
    }

    /// Has these operations close what nobody has any more, some time.
    pub fn close_later(&self, close: Vec<Op>) {
        self.forgotten.borrow_mut().push(close);
    }

    /// To be kept until the request that opens or closes a file is answered.
    pub(super) fn unanswered(&self, close: Vec<Op>) -> Unanswered<'_> {
        Unanswered { client: self, close }
    }

    /// Closes what nobody has any more, once there is enough of it (or `all`).
    pub async fn close_forgotten(&self, all: bool) -> Result<(), Error> {
        if !all && self.forgotten.borrow().len() < MAX_FORGOTTEN {
            return Ok(());
        }
        loop {
            let next = self.forgotten.borrow_mut().pop();
            let Some(ops) = next else { return Ok(()) };
            let unanswered = self.unanswered(ops.clone());
            // What the server does not know is closed.
            self.run(|| ops.clone(), Keep::Yes, None, Cargo::default()).await?;
            unanswered.answered();
        }
    }

    /// Tells the server that we are still here, when it has not heard of us for half of `lease`.
    pub async fn renew(&self, lease: Duration) -> Result<(), Error> {
        let idle = match &*self.current.borrow() {
            Some(session) => rt::now().since(session.renewed.get()),
            None => return Ok(()),
        };
        if idle < part(lease, 2) {
            return Ok(());
        }
        self.run(Vec::new, Keep::No, None, Cargo::default()).await.map(drop)
    }

    /// Closes all files, ends the session, and has the server forget us.
    pub async fn end(&self) -> Result<(), Error> {
        let open: Vec<_> = self.files.borrow().values().filter_map(Weak::upgrade).collect();
        for file in open {
            file.close().await?;
        }
        self.close_forgotten(true).await?;
        let session = self.current.borrow_mut().take();
        if let Some(session) = session {
            // Within itself: whatever connection this goes by is one of the session's then (RFC 8881 18.37.3).
            self.within(&session, &[Op::DestroySession(session.id)], Keep::No).await?;
            session.slots.end();
        }
        if let Some((client, _)) = self.known.take() {
            let patience = &Patience::new();
            // RFC 8881 18.50.3: a client with a session is not forgotten.
            self.end_lost(patience, true).await?;
            self.alone(patience, &Op::DestroyClientid(client)).await?;
        }
        Ok(())
    }

    /// What the session allows of a payload, to read and to write.
    pub async fn room(&self) -> Result<(usize, usize), Error> {
        let fore = self.session(&Patience::new()).await?.fore.clone();
        let room = |message: u32| message.saturating_sub(AROUND_BYTES).max(1) as usize;
        let most = payload_of(&*self.lines.channel());
        Ok((room(fore.max_response).min(most), room(fore.max_request).min(most)))
    }
}

#[cfg(test)]
impl Client {
    /// The session gets out of step with the server, which has it still.
    pub fn lose_session(&self) -> SessionId {
        let session = self.current.borrow().clone().unwrap();
        self.lose(&session);
        session.id
    }

    /// Sessions that the server is to end.
    pub fn lost(&self) -> usize {
        self.over.borrow().len()
    }

    /// Whether the server has this session.
    pub async fn is_known(&self, session: SessionId) -> bool {
        let bind = BindConn { session, direction: 1, rdma: false };
        let bound = self.alone(&Patience::new(), &Op::BindConnToSession(bind)).await;
        bound.unwrap().status == Status::OK
    }
}

/// Waits for a server that has no time now, or was just started; whether it is to be asked again.
async fn busy(patience: &Patience, status: Status) -> bool {
    patience.busy(format_args!("the server is busy, or was just started ({status})")).await
}

impl Session {
    fn sequence(&self, turn: &Turn, keep: Keep) -> Sequence {
        Sequence {
            session: self.id,
            sequence: turn.sequence(),
            slot: turn.slot,
            highest_slot: self.slots.highest(),
            cache: keep == Keep::Yes && self.fore.max_response_cached >= MIN_KEPT_BYTES,
        }
    }
}

/// Largest payload that the channel carries.
fn payload_of(channel: &dyn Channel) -> usize {
    let limits = channel.limits();
    let inline = limits.max_message.saturating_sub(4096);
    limits.placed_payload().unwrap_or(inline).clamp(1, weft_wire::nfs4::MAX_DATA)
}

/// SEQUENCE says that the session is gone, or that its slots and ours are out of step: then a new one is in step.
fn ends_session(status: Status) -> bool {
    matches!(
        status,
        Status::BADSESSION
            | Status::DEADSESSION
            | Status::SEQ_MISORDERED
            | Status::SEQ_FALSE_RETRY
            | Status::BADSLOT
            | Status::BAD_HIGH_SLOT
            | Status::CONN_NOT_BOUND_TO_SESSION
    )
}

/// The `n`th part of a time; `n` is not zero.
pub(super) fn part(time: Duration, n: u32) -> Duration {
    time.checked_div(n).unwrap_or(time)
}
