//! The session: requests in slots, carried out exactly once, and recovery after the server has lost the session or
//! all its state.
//!
//! See RFC 8881 2.10.6 (exactly once), 8.4.2 (server restart), 18.35, 18.36, 18.46 and 18.51. [`Client`] owns the
//! client id, the session and the list of open files. `connections` reconnects and repeats unanswered requests byte for
//! byte, with the same slot and sequence number, so that the server's reply cache answers them.
//!
//! Errors: transient ones (DELAY, GRACE) are waited for, as long as the server may be away. Those caused by the
//! session's end are repeated in the next session, after open files were reclaimed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex;
use weft_machine::{Pool, Time, random, rt};
use weft_transport::Kind;
use weft_wire::nfs4::{
    BindConn, CallbackSec, ChannelAttrs, ClientOwner, CreateSession, CreateSessionOk, ExchangeId,
    ExchangeIdOk, Op, Opaque, ProtectHow, Sequence, SequenceOk, SessionId, Status, UpTo, Verifier,
    exchange_flag, opnum, session_flag,
};
use weft_wire::xdr::Malformed;

use super::callback;
use super::compound::{self, Results};
use super::opened::{Back, Opened, stays_open};
use super::slots::{SlotGuard, Slots};
use crate::client::Error;
use crate::client::connections::Connections;
use crate::client::patience::Patience;
use crate::client::rpc::{Cargo, Program};

/// NFS version 4.
pub(super) const NFS: Program = Program(weft_wire::nfs4::PROGRAM, weft_wire::nfs4::VERSION);
/// Requests outstanding at a time.
const MAX_SLOTS: u32 = 64;
/// Operations of a compound.
const MAX_OPERATIONS: u32 = 32;
/// What surrounds the payload of a READ or WRITE: headers, SEQUENCE, handles.
pub(super) const AROUND_BYTES: u32 = 1024;
/// Longest reply that the server is asked to cache for repetitions.
const MAX_KEPT_BYTES: u32 = 4096;
/// If a session caches less than this, no reply is requested to be cached.
const MIN_KEPT_BYTES: u32 = 512;
/// How often a session may be lost while it is created, or during one request.
const MAX_LOSSES: u32 = 16;
/// Attempts to bind connections to a lost session before it is ended: enough for [`MAX_LINES`].
///
/// [`MAX_LINES`]: crate::client::MAX_LINES
const MAX_BINDS: u32 = 6;
/// Abandoned files that were not closed; when there are this many, some are closed before the next open.
const MAX_FORGOTTEN: usize = 16;

/// The client's state on a server.
pub(crate) struct Client {
    pub connections: Connections,
    pub pool: Pool,
    owner: ClientOwner,
    /// The client id that the server assigned, and the sequence number of the next CREATE_SESSION.
    known: Cell<Option<(u64, u32)>>,
    /// Whether the server does not have the state of this client id yet: open files have to be reclaimed, and
    /// RECLAIM_COMPLETE sent. A caller that gives up meanwhile leaves this to the next one.
    owes_reclaim: Cell<bool>,
    current: RefCell<Option<Rc<Session>>>,
    /// Held by the task that creates the session; the others wait for it.
    making: Mutex<()>,
    /// Sessions that we no longer use and that may still exist on the server.
    over: RefCell<Vec<SessionId>>,
    /// Open files by their owners' numbers, for reclaim.
    files: RefCell<BTreeMap<u64, Weak<Opened>>>,
    next_owner: Cell<u64>,
    /// Abandoned files, which the server may still have open. Those that it refuses to close come first.
    forgotten: RefCell<Vec<Closing>>,
    /// Whether one of them may have locks, for which others wait.
    left_locks: Cell<bool>,
    /// The task that closes these.
    keeper: RefCell<Option<Waker>>,
    /// Held by the task that closes abandoned files.
    closing: Mutex<()>,
    recovered: Cell<u32>,
    /// Whether the mount has ended: then nothing is done on the server that no caller waits for.
    pub ended: Cell<bool>,
    /// Largest READ and WRITE in bytes.
    pub sizes: Cell<(usize, usize)>,
}

pub(super) struct Session {
    id: SessionId,
    slots: Rc<Slots>,
    fore: ChannelAttrs,
    /// When the server last replied; the lease counts from there.
    renewed: Cell<Time>,
}

/// What closes an abandoned file: two compounds, the second of which is sent whatever the first one returns.
#[derive(Clone)]
pub(super) struct Closing {
    /// Unlocks what the file may have locked.
    pub unlock: Option<Vec<Op>>,
    pub close: Vec<Op>,
}

/// A request that opens or closes a file. If it gets no reply, because the caller gave up or the connection was lost,
/// the server may have the file open: then it is closed later.
pub(super) struct Unanswered<'a> {
    client: &'a Client,
    /// `None` once the reply has arrived.
    closing: Option<Closing>,
}

impl Unanswered<'_> {
    pub fn answered(mut self) {
        self.closing = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.closing.take().into_iter().for_each(|closing| self.client.close_later(closing));
    }
}

/// The outcome of one attempt.
enum Attempt {
    /// The results after that of SEQUENCE.
    Done(Results),
    /// The session has ended, or its slots are out of step.
    Over,
}

/// Whether the server caches the reply, so that a repetition is answered and not carried out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Yes,
    /// The request may be carried out twice.
    No,
}

impl Client {
    /// A client that no server knows yet.
    pub fn new(connections: Connections, pool: Pool) -> Result<Rc<Client>, Error> {
        let (verifier, id): (Verifier, [u8; 16]) = (random::bytes()?, random::bytes()?);
        // Every mount is a client of its own, and takes over nothing from an earlier run.
        let name: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let owner = ClientOwner { verifier, id: Opaque(Bytes::from(format!("weft {name}"))) };
        Ok(Rc::new(Client {
            connections,
            pool,
            owner,
            known: Cell::new(None),
            owes_reclaim: Cell::new(false),
            current: RefCell::new(None),
            making: Mutex::default(),
            over: RefCell::default(),
            files: RefCell::default(),
            next_owner: Cell::new(0),
            forgotten: RefCell::default(),
            left_locks: Cell::new(false),
            keeper: RefCell::default(),
            closing: Mutex::default(),
            recovered: Cell::new(0),
            ended: Cell::new(false),
            sizes: Cell::new((1, 1)),
        }))
    }

    /// How often the server has lost the session.
    pub fn recovered(&self) -> u32 {
        self.recovered.get()
    }

    /// Repeats the request until it gets a conclusive reply, in whichever session exists then. `ops` is called for
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

    /// Like [`Client::run`], with another time limit.
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
            let taken = self.connections.in_time(patience, session.slots.take()).await?;
            let Some(slot_guard) = taken else { continue };
            let ops = ops();
            let attempt = self.attempt(patience, &session, slot_guard, &ops, keep, payload, cargo.again());
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
                // It was carried out, and the reply is lost; a request with [`Keep::No`] may be carried out again.
                Status::RETRY_UNCACHED_REP if keep == Keep::No => {}
                status @ (Status::DELAY | Status::GRACE) if busy(patience, status).await => {}
                _ => return Ok(results),
            }
        }
    }

    /// Our address has changed; the server associates the connection with the session once it is told (RFC 8881
    /// 18.34). The next request shows whether that worked.
    async fn bind(&self, patience: &Patience, session: SessionId) -> Result<(), Error> {
        const FORE: u32 = 1;
        let bind = BindConn { session, direction: FORE, rdma: false };
        self.alone(patience, &Op::BindConnToSession(bind)).await.map(drop)
    }

    /// Sends one request in one slot, as often as a busy server requires.
    #[allow(clippy::too_many_arguments)]
    async fn attempt(
        &self,
        patience: &Patience,
        session: &Session,
        mut slot_guard: SlotGuard,
        ops: &[Op],
        keep: Keep,
        payload: Option<u32>,
        mut cargo: Cargo,
    ) -> Result<Attempt, Error> {
        if slot_guard.is_doubtful() {
            // Uses the sequence number of the abandoned request, and so resolves whether the server has seen that
            // one.
            match self.settled(patience, session, &slot_guard).await? {
                true => slot_guard.advance(),
                false => return Ok(Attempt::Over),
            }
        }
        let mut bound = false;
        loop {
            let sequence = session.sequence(&slot_guard, keep);
            let cargo = cargo.again();
            let head = |e: &mut _| compound::emit(Some(&sequence), ops, payload, e);
            let d = self.connections.results(patience, NFS, weft_wire::nfs4::COMPOUND, head, cargo).await?;
            let mut results = Results::parse(d)?;
            match results.next(opnum::SEQUENCE)? {
                Status::OK => {
                    let ok: SequenceOk = results.result()?;
                    let same = (ok.session, ok.sequence, ok.slot)
                        == (sequence.session, sequence.sequence, sequence.slot);
                    if !same {
                        return Err(Malformed("RFC 8881 18.46: the reply of another slot").into());
                    }
                    session.renewed.set(rt::now());
                    session.slots.aim(ok.target_highest_slot);
                    slot_guard.advance();
                    slot_guard.answered();
                    return Ok(Attempt::Done(results));
                }
                // The request is still running, or the server is busy: the sequence number is not used up.
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
                    // A request that is still running leaves its slot in doubt.
                    if status != Status::DELAY {
                        slot_guard.answered();
                    }
                    return Err(Error::Status4(status));
                }
            }
        }
    }

    /// Uses up the sequence number of an abandoned request. Returns false if the session has ended.
    fn settled<'a>(
        &'a self,
        patience: &'a Patience,
        session: &'a Session,
        slot_guard: &'a SlotGuard,
    ) -> LocalBoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let sequence = session.sequence(slot_guard, Keep::No);
            let mut bound = false;
            loop {
                let head = |e: &mut _| compound::emit(Some(&sequence), &[], None, e);
                let cargo = Cargo { longest_reply: MAX_KEPT_BYTES as usize, ..Cargo::default() };
                let d =
                    self.connections.results(patience, NFS, weft_wire::nfs4::COMPOUND, head, cargo).await?;
                match Results::parse(d)?.next(opnum::SEQUENCE)? {
                    // A first execution, the cached reply of the abandoned request, or proof that another request had
                    // this number.
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
        })
    }

    /// From now on, the server carries out no request that was abandoned before, in this session or in one that was lost.
    /// A request that undoes one is sent after this: in another slot, or on another connection, it could overtake it.
    ///
    /// This does not cover a request in a slot beyond the server's target, which the server may have retired: it might
    /// still arrive before that.
    pub(super) async fn settle(&self) -> Result<(), Error> {
        let patience = &Patience::new();
        for _ in 0..MAX_LOSSES {
            let session = self.session(patience).await?;
            if !self.over.borrow().is_empty() {
                // No session is being made, which would be on the list until it is usable.
                let _alone = self.connections.in_time(patience, self.making.lock()).await?;
                self.end_lost(patience, true).await?;
            }
            while let Some(mut slot_guard) =
                self.connections.in_time(patience, session.slots.take_doubtful()).await?
            {
                if !self.settled(patience, &session, &slot_guard).await? {
                    self.lose(&session);
                    break;
                }
                slot_guard.advance();
                slot_guard.answered();
            }
            // The session may have been lost meanwhile. The server may still carry out its requests until it has ended.
            if self.over.borrow().is_empty() {
                return Ok(());
            }
        }
        Err(Error::Status4(Status::BADSESSION))
    }

    /// The session, created if necessary.
    async fn session(&self, patience: &Patience) -> Result<Rc<Session>, Error> {
        if let Some(session) = self.current.borrow().clone() {
            return Ok(session);
        }
        let _alone = self.connections.in_time(patience, self.making.lock()).await?;
        if let Some(session) = self.current.borrow().clone() {
            return Ok(session);
        }
        let session = self.make(patience).await?;
        *self.current.borrow_mut() = Some(session.clone());
        Ok(session)
    }

    /// Gives up this session.
    fn lose(&self, session: &Rc<Session>) {
        session.slots.end();
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, session)) {
            *current = None;
            self.over.borrow_mut().push(session.id);
            self.recovered.set(self.recovered.get().saturating_add(1));
        }
    }

    /// RFC 8881 8.4.2, 2.10.10.1: creates a session. If the server no longer knows our client id, gets a new one and
    /// reclaims all open files.
    fn make<'a>(&'a self, patience: &'a Patience) -> LocalBoxFuture<'a, Result<Rc<Session>, Error>> {
        Box::pin(async move {
            self.end_lost(patience, false).await?;
            for _ in 0..MAX_LOSSES {
                let (client, number) = match self.known.get() {
                    Some(known) => known,
                    None => {
                        let ok = self.exchange_id(patience).await?;
                        if ok.flags & exchange_flag::CONFIRMED_R == 0 {
                            self.owes_reclaim.set(true);
                            // The restart has closed these on the server.
                            self.forgotten.borrow_mut().clear();
                        }
                        self.known.set(Some((ok.client, ok.sequence)));
                        (ok.client, ok.sequence)
                    }
                };
                let mut results =
                    self.alone(patience, &Op::CreateSession(self.wishes(client, number))).await?;
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
                // Until it is usable: a caller that gives up meanwhile leaves it to the next one.
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
                if !self.owes_reclaim.get() || self.reclaim(&session).await? {
                    self.over.borrow_mut().retain(|lost| *lost != session.id);
                    return Ok(session);
                }
            }
            Err(Error::Status4(Status::BADSESSION))
        })
    }

    /// Makes the server end unused sessions. Each stays on the list until the server has ended it, even if the caller
    /// gives up meanwhile. Without `insists`, a session that is still in use on the server is left there.
    async fn end_lost(&self, patience: &Patience, insists: bool) -> Result<(), Error> {
        let lost = self.over.borrow().clone();
        for session in lost {
            let mut binds = 0u32;
            loop {
                match self.alone(patience, &Op::DestroySession(session)).await?.status {
                    // A session that the server does not know has ended already.
                    Status::OK | Status::BADSESSION | Status::DEADSESSION => {
                        self.over.borrow_mut().retain(|lost| *lost != session);
                        break;
                    }
                    // RFC 8881 18.37.3: only a connection bound to the session may do this, and this may be a new one.
                    // Connections take turns, so every attempt binds one more than the last.
                    Status::CONN_NOT_BOUND_TO_SESSION if binds < MAX_BINDS => {
                        binds = binds.saturating_add(1);
                        for _ in 0..binds {
                            self.bind(patience, session).await?;
                        }
                    }
                    status @ (Status::DELAY | Status::BACK_CHAN_BUSY)
                        if insists && busy(patience, status).await => {}
                    status if insists => return Err(Error::Status4(status)),
                    status => {
                        tracing::debug!(%status, "an unused session stays on the server for now");
                        break;
                    }
                }
            }
        }
        Ok(())
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
    fn alone<'a>(&'a self, patience: &'a Patience, op: &'a Op) -> LocalBoxFuture<'a, Result<Results, Error>> {
        Box::pin(async move {
            let head = |e: &mut _| compound::emit(None, std::slice::from_ref(op), None, e);
            let cargo = Cargo { longest_reply: MAX_KEPT_BYTES as usize, ..Cargo::default() };
            Results::parse(
                self.connections.results(patience, NFS, weft_wire::nfs4::COMPOUND, head, cargo).await?,
            )
        })
    }

    fn wishes(&self, client: u64, sequence: u32) -> CreateSession {
        let channel = self.connections.channel();
        let message = (self.payload() as u32).saturating_add(AROUND_BYTES);
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
        // The server can call us in separate messages only on a record transport (RFC 8167 is not supported).
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

    /// Reclaims the open files, sends RECLAIM_COMPLETE, and opens again what could not be reclaimed. Returns false if
    /// the session was lost meanwhile. Until this has completed, it is repeated from the start in the next session:
    /// the same owner is granted the same open again, and a server that restarts meanwhile has forgotten all of them.
    async fn reclaim(&self, session: &Session) -> Result<bool, Error> {
        let files: Vec<_> = self.files.borrow().values().filter_map(Weak::upgrade).collect();
        let mut anew = Vec::new();
        for file in files {
            match self.within(session, &file.reclaim(Back::Previous), Keep::Yes).await? {
                None => return Ok(false),
                Some(results) => match file.taken(results)? {
                    Status::OK => {}
                    status => {
                        tracing::debug!(%status, "an open file could not be reclaimed");
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
        self.owes_reclaim.set(false);
        Ok(true)
    }

    /// Sends a request in a session that others cannot use yet. `None`: the session has ended.
    async fn within(&self, session: &Session, ops: &[Op], keep: Keep) -> Result<Option<Results>, Error> {
        let patience = &Patience::new();
        loop {
            let Some(slot_guard) = self.connections.in_time(patience, session.slots.take()).await? else {
                return Ok(None);
            };
            match self.attempt(patience, session, slot_guard, ops, keep, None, Cargo::default()).await? {
                Attempt::Over => return Ok(None),
                Attempt::Done(results) => match results.status {
                    status @ (Status::DELAY | Status::GRACE) if busy(patience, status).await => {}
                    _ => return Ok(Some(results)),
                },
            }
        }
    }

    /// A new open owner's name and number.
    pub fn new_owner(&self) -> (u64, Opaque) {
        let number = self.next_owner.get();
        self.next_owner.set(number.wrapping_add(1));
        (number, Opaque(Bytes::copy_from_slice(&number.to_be_bytes())))
    }

    pub fn enter(&self, number: u64, file: &Rc<Opened>) {
        self.files.borrow_mut().insert(number, Rc::downgrade(file));
    }

    /// Removes a file that is no longer open.
    pub fn leave(&self, number: u64) {
        self.files.borrow_mut().remove(&number);
    }

    /// Queues an abandoned file to be closed.
    pub(super) fn close_later(&self, closing: Closing) {
        let locks = closing.unlock.is_some();
        self.forgotten.borrow_mut().push(closing);
        if locks {
            self.left_locks.set(true);
            self.keeper.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Ready while there are abandoned files with locks. One task waits for this, and closes them.
    pub fn poll_left_locks(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.left_locks.get() {
            return Poll::Ready(());
        }
        self.keeper.replace(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Closes abandoned files if any of them has locks.
    pub async fn close_left_locks(&self) -> Result<(), Error> {
        if self.left_locks.get() { self.close_forgotten(true).await } else { Ok(()) }
    }

    /// The guard to hold until a request that opens or closes a file is answered.
    pub(super) fn unanswered(&self, closing: Closing) -> Unanswered<'_> {
        Unanswered { client: self, closing: Some(closing) }
    }

    /// Closes abandoned files, latest first: all of them, or so many that fewer than [`MAX_FORGOTTEN`] are left, unless
    /// another task is doing that.
    ///
    /// # Errors
    /// More are left, because the server does not close them. Each was tried once, and the next call tries the others
    /// first.
    pub async fn close_forgotten(&self, all: bool) -> Result<(), Error> {
        let left = || self.forgotten.borrow().len();
        let is_enough = || left() < if all { 1 } else { MAX_FORGOTTEN };
        if !all && is_enough() {
            return Ok(());
        }
        let _alone = match all {
            // Whoever returns from here knows that none is being closed: the session may end.
            true => self.connections.in_time(&Patience::new(), self.closing.lock()).await?,
            // The task that closes them may be an open that its caller no longer polls.
            false => match self.closing.try_lock() {
                Some(alone) => alone,
                None => return Ok(()),
            },
        };
        let (mut refusals, mut refused) = (0usize, Status::OK);
        while !is_enough() && left() > refusals {
            let Some(closing) = self.forgotten.borrow_mut().pop() else { break };
            let unanswered = self.unanswered(closing.clone());
            self.settle().await?;
            if let Some(ops) = &closing.unlock {
                self.run(|| ops.clone(), Keep::Yes, None, Cargo::default()).await?;
            }
            let closed = self.run(|| closing.close.clone(), Keep::Yes, None, Cargo::default()).await?.status;
            unanswered.answered();
            if stays_open(closed) {
                (refusals, refused) = (refusals.saturating_add(1), closed);
                self.forgotten.borrow_mut().insert(0, closing);
            }
        }
        self.left_locks.set(self.forgotten.borrow().iter().any(|closing| closing.unlock.is_some()));
        if is_enough() { Ok(()) } else { Err(Error::Status4(refused)) }
    }

    /// Renews the lease if the server has not heard from us for half of `lease`.
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

    /// Closes all files, ends the session, and makes the server forget this client.
    pub async fn end(&self) -> Result<(), Error> {
        let open: Vec<_> = self.files.borrow().values().filter_map(Weak::upgrade).collect();
        for file in open {
            file.close().await?;
        }
        self.close_forgotten(true).await?;
        let session = self.current.borrow_mut().take();
        if let Some(session) = session {
            // In the session itself, which binds the connection to it (RFC 8881 18.37.3).
            self.within(&session, &[Op::DestroySession(session.id)], Keep::No).await?;
            session.slots.end();
        }
        if let Some((client, _)) = self.known.take() {
            let patience = &Patience::new();
            // RFC 8881 18.50.3: the server does not forget a client that has a session.
            self.end_lost(patience, true).await?;
            self.alone(patience, &Op::DestroyClientid(client)).await?;
        }
        Ok(())
    }

    /// Largest payload that the connections carry.
    fn payload(&self) -> usize {
        self.connections.max_payload().clamp(1, weft_wire::nfs4::MAX_DATA)
    }

    /// The largest payloads that the session allows, for reading and for writing.
    pub async fn room(&self) -> Result<(usize, usize), Error> {
        let fore = self.session(&Patience::new()).await?.fore.clone();
        let room = |message: u32| message.saturating_sub(AROUND_BYTES).max(1) as usize;
        let most = self.payload();
        Ok((room(fore.max_response).min(most), room(fore.max_request).min(most)))
    }
}

#[cfg(test)]
impl Client {
    /// Brings the session out of step with the server, which keeps it.
    pub fn lose_session(&self) -> SessionId {
        let session = self.current.borrow().clone().unwrap();
        self.lose(&session);
        session.id
    }

    /// Number of sessions that the server still has to end.
    pub fn lost(&self) -> usize {
        self.over.borrow().len()
    }

    /// Whether the server knows this session.
    pub async fn is_known(&self, session: SessionId) -> bool {
        let bind = BindConn { session, direction: 1, rdma: false };
        let bound = self.alone(&Patience::new(), &Op::BindConnToSession(bind)).await;
        bound.unwrap().status == Status::OK
    }
}

/// Waits for a server that is busy or has just started; returns whether to repeat the request.
async fn busy(patience: &Patience, status: Status) -> bool {
    patience.busy(format_args!("the server is busy, or has just started ({status})")).await
}

impl Session {
    fn sequence(&self, slot_guard: &SlotGuard, keep: Keep) -> Sequence {
        Sequence {
            session: self.id,
            sequence: slot_guard.sequence(),
            slot: slot_guard.slot,
            highest_slot: self.slots.highest(),
            cache: keep == Keep::Yes && self.fore.max_response_cached >= MIN_KEPT_BYTES,
        }
    }
}

/// Whether SEQUENCE reports that the session is gone or its slots are out of step with ours; a new session is in
/// step.
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

/// One `n`th of a duration; `n` is not zero.
pub(super) fn part(time: Duration, n: u32) -> Duration {
    time.checked_div(n).unwrap_or(time)
}
