//! One COMPOUND: operations in order until one fails.
//!
//! Spec: RFC 7530 1.6.3, 15.2; RFC 8881 16.2, 2.10.6 (sessions). Owns: the current and the saved file handle, the reply.
//! Does not: keep a reply; the slot of the session does.
//!
//! Buffers: results are one buffer, cut where payload (READ, READLINK) lies between them, so that the transport decides
//! where that goes. What one reply can grow to is bounded by the session, or by the channel.

use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Buf, Payload, Time, rt};
use weft_store::{NodeId, ShareId};
use weft_transport::{Part, SHORT_ANSWER, To};
use weft_wire::nfs4::{
    Bitmap, CompoundHead, MINOR_VERSION, NoOp, Op, ReplyHead, Stateid, Status, UpTo, Xdr, opnum,
};
use weft_wire::rpc::{Call, Credential, Reply};
use weft_wire::xdr::{Decoder, Encoder, Malformed, fill, pad};

use super::names::{status, utf8};
use super::ops;
use super::place::Place;
use super::state::session::Kept;
use super::state::{Client, Identity, Lease, Principal, Session, Speaker};
use crate::server::context::{Context, Node, Results};
use crate::server::duplicates::{Asked, MAX_ANSWER};

/// What every reply has room for: the RPC header and the results of small operations.
const SMALL: usize = 1024;
/// The longest result of an operation that is neither a listing nor payload: an extended attribute's.
const LONGEST_RESULT: usize = 64 << 10;
/// The longest reply that is kept without being asked for; a slot is charged for as much.
const MAX_UNASKED: usize = 128;

/// A compound that is being carried out.
pub(super) struct Compound<'a> {
    /// As the share of the current place sees it.
    pub cx: &'a Context<'a>,
    /// As each share with rules sees it, and as none does.
    views: (&'a [(ShareId, Context<'a>)], &'a Context<'a>),
    pub minor: u32,
    pub now: Time,
    pub credential: &'a Credential,
    pub current: Option<Place<'a>>,
    pub saved: Option<Place<'a>>,
    /// The current state id and the saved one (RFC 8881 16.2.3.1.2).
    pub stateid: Option<Stateid>,
    pub saved_stateid: Option<Stateid>,
    pub turn: Option<SlotTurn>,
    /// Bytes of the whole request.
    pub request_bytes: usize,
    /// Operations that the client announced.
    pub announced: u32,
    /// Number of the operation that is carried out.
    pub index: u32,
    /// The operation behind it.
    next: u32,
    /// The request, where no slot of a session keeps it from being carried out twice.
    asked: Option<Asked>,
    /// The operation that has ended costs next to nothing, whatever it was asked for.
    was_short: bool,
    pub reply: Body,
    /// For a reply that becomes long.
    room: Option<Box<Buf>>,
    /// Longest reply.
    limit: usize,
}

/// The slot that the compound runs in.
pub(super) struct SlotTurn {
    pub session: Arc<Session>,
    pub slot: u32,
    /// The reply is to be kept.
    pub keep: bool,
}

/// Bytes of an operation's number before its result.
const NUMBER_BYTES: usize = 4;

/// The reply: buffers with payload behind each but the last.
#[derive(Default)]
pub(super) struct Body {
    done: Vec<(Encoder, Payload, To)>,
    pub tail: Encoder,
    /// Bytes in `done`.
    before: usize,
    /// Of these, without payload.
    results_before: usize,
}

impl Body {
    /// Ends a buffer with payload, whose length the buffer ends with.
    pub fn payload(&mut self, payload: Payload) {
        self.end(payload, To::Ticket);
    }

    /// The same with payload that always travels in the message. Its length is put in front.
    pub fn inline(&mut self, payload: Payload) {
        self.tail.u32(payload.len() as u32);
        self.end(payload, To::Inline);
    }

    fn end(&mut self, payload: Payload, to: To) {
        let fill = pad(payload.len());
        self.results_before = self.results_len();
        self.before = self.len().saturating_add(payload.len()).saturating_add(fill);
        self.done.push((std::mem::take(&mut self.tail), payload, to));
    }

    pub fn len(&self) -> usize {
        self.before.saturating_add(self.tail.len())
    }

    /// The same without payload.
    fn results_len(&self) -> usize {
        self.results_before.saturating_add(self.tail.len())
    }

    /// Where in `tail` the next operation's result begins: its status, behind the number.
    pub fn next_result(&self) -> usize {
        self.tail.len().saturating_add(NUMBER_BYTES)
    }

    fn head(&mut self) -> &mut Encoder {
        self.done.first_mut().map_or(&mut self.tail, |(head, ..)| head)
    }

    /// The first `start` bytes, and behind them what was kept of another reply.
    fn replayed(mut self, start: usize, kept: &[u8]) -> Results {
        let mut head = std::mem::take(self.head());
        head.truncate(start);
        head.raw(kept);
        Results::new(head, None)
    }

    fn into_results(self) -> Results {
        let mut parts = Vec::with_capacity(self.done.len().saturating_mul(2).saturating_add(1));
        for (bytes, data, to) in self.done {
            parts.push(Part::Bytes(bytes.into_bytes()));
            parts.push(Part::Payload { data, to });
        }
        if !self.tail.is_empty() {
            parts.push(Part::Bytes(self.tail.into_bytes()));
        }
        Results::Parts(parts, None)
    }
}

/// Whether the compound goes on.
pub(super) enum Next {
    /// The operation ended like this; its result is in the reply.
    Ended(Status),
    /// The reply of the same request that came earlier, whole.
    Replayed(Bytes),
}

/// Answers one COMPOUND.
pub(in crate::server) async fn compound(
    cx: &Context<'_>,
    call: &Call,
    mut d: Decoder,
    body: Encoder,
) -> Result<Results, Reply> {
    let head = CompoundHead::parse(&mut d).map_err(|Malformed(why)| {
        tracing::debug!(why, "a compound does not parse");
        Reply::GarbageArgs
    })?;
    // Sessions have numbers of their own.
    let duplicates = &cx.server.duplicates;
    let mut asked = (head.minor == 0)
        .then(|| Asked::new(duplicates.number(&cx.origin, call), head.tag.0.clone(), d.clone()));
    let mut reply = Body { tail: body, ..Body::default() };
    let start = reply.tail.len();
    let known = head.minor <= MINOR_VERSION;
    let refused = if !known { Some(Status::MINOR_VERS_MISMATCH) } else { utf8(&head.tag).err() };
    ReplyHead { status: refused.unwrap_or(Status::OK), tag: head.tag, count: 0 }.emit(&mut reply.tail);
    if refused.is_some() {
        return Ok(reply.into_results());
    }
    cx.watch.called(call.version, head.minor, &call.credential);
    if let Some(asked) = &mut asked
        && let Some(answer) = asked.answered(duplicates).await
    {
        return Ok(reply.replayed(start, &answer));
    }
    let count_at = reply.tail.len().saturating_sub(4);
    let views = cx.views();
    let mut compound = Compound {
        cx,
        views: (&views, cx),
        minor: head.minor,
        now: rt::now(),
        credential: &call.credential,
        current: None,
        saved: None,
        stateid: None,
        saved_stateid: None,
        turn: None,
        request_bytes: d.total(),
        announced: head.count,
        index: 0,
        next: opnum::ILLEGAL,
        asked,
        was_short: true,
        reply,
        room: None,
        limit: cx.limits.max_message.min((cx.max_payload() as usize).saturating_add(SMALL * 64)),
    };
    let status = loop {
        if compound.index == head.count {
            break Status::OK;
        }
        let next = compound.step(&mut d).await;
        compound.index = compound.index.saturating_add(1);
        match next {
            Next::Ended(Status::OK) if compound.index < head.count && !compound.was_short => {
                rt::yield_if_due().await;
            }
            Next::Ended(Status::OK) => {}
            Next::Ended(status) => break status,
            Next::Replayed(kept) => return Ok(compound.reply.replayed(start, &kept)),
        }
    };
    let Compound { mut reply, turn, index, asked, room, .. } = compound;
    let first = reply.head();
    first.patch_u32(start, status.0);
    first.patch_u32(count_at, index);
    if let Some(SlotTurn { session, slot, keep }) = turn {
        // A SEQUENCE alone costs nothing to keep (RFC 8881 2.10.6.1.3), unless its tag is long.
        let whole = reply.done.is_empty();
        let short = reply.tail.len().saturating_sub(start) <= MAX_UNASKED;
        let kept = match () {
            () if (keep || index == 1 && short) && whole => Kept::Reply(reply.tail.copy_from(start)),
            () => Kept::Lost,
        };
        session.finish(slot, kept);
    }
    if let Some(asked) = asked
        && reply.done.is_empty()
        && reply.tail.len().saturating_sub(start) <= MAX_ANSWER
    {
        asked.keep(|| reply.tail.copy_from(start));
    }
    Ok(reply.into_results().within(room))
}

/// Whether the operation must not be carried out twice, and no owner's number protects it.
fn changes(op: &Op) -> bool {
    matches!(op, Op::Create(_) | Op::Link(_) | Op::Remove(_) | Op::Rename(_) | Op::Setattr(_))
}

impl<'a> Compound<'a> {
    /// The next operation.
    async fn step(&mut self, d: &mut Decoder) -> Next {
        // WRITE brings its data itself; the one other operation with payload is short.
        if d.is_distant() && self.peek_op(d) == opnum::CREATE {
            match self.cx.fetch().await {
                Ok(content) => d.arrived(content),
                Err(e) => return self.failed(opnum::CREATE, status(&e)),
            }
        }
        let op = match Op::parse(d, self.minor) {
            Ok(op) => op,
            Err(NoOp::Illegal) => return self.failed(opnum::ILLEGAL, Status::OP_ILLEGAL),
            Err(NoOp::BadXdr(number, Malformed(why))) => {
                tracing::debug!(number, why, "arguments do not parse");
                return self.failed(number, Status::BADXDR);
            }
        };
        let number = op.number();
        if self.minor == 0 && self.index >= self.cx.server.states.limits.operations {
            return self.failed(number, Status::RESOURCE);
        }
        if self.minor > 0
            && let Err(status) = ops::session::admit(self, &op)
        {
            return self.failed(number, status);
        }
        if changes(&op)
            && self.asked.as_ref().is_some_and(|asked| !asked.has_begun())
            && let Some(answer) = Box::pin(self.begin()).await
        {
            return Next::Replayed(answer);
        }
        // The way to a READ's or a WRITE's file: no look at the clock for these.
        self.was_short = matches!(
            op,
            Op::Sequence(_)
                | Op::Putfh(_)
                | Op::Putrootfh
                | Op::Savefh
                | Op::Restorefh
                | Op::Getfh
                | Op::Read(_)
        );
        let (parts, at) = (self.reply.done.len(), self.reply.tail.len());
        self.next = self.peek_op(d);
        let status = match op {
            Op::Sequence(args) => match ops::session::sequence(self, &args, d) {
                Ok((ok, None)) => return Next::Ended(self.put(number, Ok(ok))),
                Ok((_, Some(Kept::Reply(reply)))) => return Next::Replayed(reply),
                Ok((ok, Some(_))) => {
                    // The second operation says that nothing was kept (RFC 8881 18.46.3).
                    self.put(number, Ok(ok));
                    self.index = self.index.saturating_add(1);
                    return self.failed(self.peek_op(d), Status::RETRY_UNCACHED_REP);
                }
                Err(status) => return self.failed(number, status),
            },
            op => match self.may_be_long(&op) {
                Some(more) if !Box::pin(self.make_room(more)).await => {
                    return self.failed(number, Status::DELAY);
                }
                _ => self.run(number, op).await,
            },
        };
        if let Some(status) = self.overflow() {
            // What has grown too long is a listing or data; nothing that changed anything is that long.
            if parts == self.reply.done.len() {
                self.reply.tail.truncate(at);
            } else {
                self.reply.tail = self.reply.done.swap_remove(parts).0;
                self.reply.done.truncate(parts);
                self.reply.tail.truncate(at);
                (self.reply.before, self.reply.results_before) = (0, 0);
            }
            return self.failed(number, status);
        }
        Next::Ended(status)
    }

    /// Before the first change: the answer, if the same request has come earlier.
    async fn begin(&mut self) -> Option<Bytes> {
        let asked = self.asked.as_mut()?;
        // Nobody waits who holds room: the one that is carried out may wait for that.
        let room = self.room.take().map(|room| room.capacity());
        let answer = asked.begin(&self.cx.server.duplicates).await;
        if let (Some(len), None) = (room, &answer) {
            self.room = self.cx.answers.room(len).await;
        }
        answer
    }

    /// By how much the operation may lengthen a reply that is long already, or becomes so.
    fn may_be_long(&self, op: &Op) -> Option<usize> {
        match op {
            Op::Readdir(args) => {
                Some((args.maxcount.min(self.cx.server.limits.max_listing) as usize).saturating_add(SMALL))
            }
            _ if self.reply.results_len() > SHORT_ANSWER => Some(LONGEST_RESULT),
            _ => None,
        }
    }

    /// Makes sure that there is room for the reply with so much more. False: others have it, and the client asks for the rest again.
    /// Nobody waits who holds some, so that two who need more do not wait for each other.
    async fn make_room(&mut self, more: usize) -> bool {
        let len = self.reply.results_len().saturating_add(more);
        match &self.room {
            None => self.room = self.cx.answers.room(len).await,
            Some(room) if room.capacity() >= len => {}
            Some(_) => match self.cx.answers.try_room(len) {
                Some(room) => self.room = Some(room),
                None => return false,
            },
        }
        true
    }

    fn peek_op(&self, d: &Decoder) -> u32 {
        d.peek(4).first_chunk().map_or(opnum::ILLEGAL, |word| u32::from_be_bytes(*word))
    }

    /// Whether the reply has become too long, for its kind.
    fn overflow(&self) -> Option<Status> {
        let len = self.reply.len();
        match &self.turn {
            None if self.minor == 0 => (len > self.limit).then_some(Status::RESOURCE),
            None => None,
            Some(turn) if len > turn.session.fore.max_response as usize => Some(Status::REP_TOO_BIG),
            Some(turn) if turn.keep && len > turn.session.fore.max_response_cached as usize => {
                Some(Status::REP_TOO_BIG_TO_CACHE)
            }
            Some(_) => None,
        }
    }

    /// Appends the result of an operation that failed before it began.
    fn failed(&mut self, number: u32, status: Status) -> Next {
        self.reply.tail.u32(number);
        self.reply.tail.u32(status.0);
        if number == opnum::SETATTR {
            Bitmap::EMPTY.emit(&mut self.reply.tail);
        }
        Next::Ended(status)
    }

    /// Appends a result.
    pub fn put<T: Xdr>(&mut self, number: u32, result: Result<T, Status>) -> Status {
        let tail = &mut self.reply.tail;
        tail.u32(number);
        match result {
            Ok(value) => {
                tail.u32(Status::OK.0);
                value.emit(tail);
                Status::OK
            }
            Err(status) => {
                tail.u32(status.0);
                status
            }
        }
    }

    /// Appends a result that ends with payload.
    async fn put_payload<T: Xdr>(&mut self, number: u32, result: Result<(T, Payload), Status>) -> Status {
        let (head, payload) = match result {
            Ok(ok) => ok,
            Err(status) => return self.put::<()>(number, Err(status)),
        };
        let status = self.put(number, Ok(head));
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.keep) else {
            self.reply.payload(payload);
            return status;
        };
        // A reply that is kept has its bytes in it.
        let room = turn.session.fore.max_response_cached as usize;
        if payload.len() > room {
            self.reply.payload(payload);
            return status;
        }
        match payload.into_chain(&self.cx.server.pool).await {
            Ok(chain) => {
                let len: usize = chain.iter().map(Bytes::len).sum();
                chain.iter().for_each(|bytes| self.reply.tail.raw(bytes));
                self.reply.tail.raw(fill(len));
                status
            }
            Err(e) => {
                tracing::warn!("file system error: {e}");
                self.reply.tail.truncate(self.reply.tail.len().saturating_sub(8));
                self.put::<()>(number, Err(Status::IO))
            }
        }
    }

    async fn run(&mut self, n: u32, op: Op) -> Status {
        match op {
            Op::Read(args) => {
                let result = ops::read::read(self, &args).await;
                self.put_payload(n, result).await
            }
            Op::Write(args) => {
                let result = ops::write::write(self, args).await;
                self.put(n, result)
            }
            Op::Getattr(wanted) => {
                let result = ops::getattr::getattr(self, wanted).await;
                self.put(n, result)
            }
            Op::Putfh(handle) => {
                let result = Place::open(self.cx, &handle).await.and_then(|place| {
                    // RFC 8881 2.6.3.1.1.8: who asks how to name itself is not told that it does so wrongly.
                    let asks = matches!(self.next, opnum::SECINFO | opnum::SECINFO_NO_NAME);
                    place.admit(self.cx, asks)?;
                    self.go(place);
                    Ok(())
                });
                self.put(n, result)
            }
            Op::Putrootfh | Op::Putpubfh => {
                self.go(Place::Root);
                self.put(n, Ok(()))
            }
            Op::Getfh => {
                let result = match self.place() {
                    Ok(place) => place.handle(self.cx).await,
                    Err(status) => Err(status),
                };
                self.put(n, result)
            }
            Op::Savefh => {
                let result = self.place().map(|place| {
                    self.saved = Some(place);
                    self.saved_stateid = self.stateid;
                });
                self.put(n, result)
            }
            Op::Restorefh => {
                let missing = if self.minor == 0 { Status::RESTOREFH } else { Status::NOFILEHANDLE };
                let result = self.saved.ok_or(missing).map(|place| {
                    self.stand(place);
                    self.stateid = self.saved_stateid;
                });
                self.put(n, result)
            }
            // Whatever else there is takes a box, so that reads and writes do not carry its room about.
            op => Box::pin(self.run_other(n, op)).await,
        }
    }

    async fn run_other(&mut self, n: u32, op: Op) -> Status {
        macro_rules! run {
            ($result:expr) => {{
                let result = $result;
                self.put(n, result)
            }};
        }
        match op {
            Op::Access(wanted) => run!(ops::access::access(self, wanted).await),
            Op::Commit(args) => run!(ops::write::commit(self, &args).await),
            Op::Create(args) => run!(ops::create::create(self, args).await),
            Op::Link(name) => run!(ops::link::link(self, &name).await),
            Op::Lookup(name) => run!(ops::lookup::lookup(self, &name).await),
            Op::Lookupp => run!(ops::lookup::lookupp(self).await),
            Op::Nverify(fattr) => run!(ops::verify::nverify(self, &fattr).await),
            Op::Verify(fattr) => run!(ops::verify::verify(self, &fattr).await),
            Op::Readdir(args) => run!(ops::readdir::readdir(self, &args).await),
            Op::Readlink => {
                let result = ops::readlink::readlink(self).await;
                self.put_payload(n, result).await
            }
            Op::Remove(name) => run!(ops::remove::remove(self, &name).await),
            Op::Rename(args) => run!(ops::rename::rename(self, &args).await),
            Op::Secinfo(name) => run!(ops::secinfo::secinfo(self, &name).await),
            Op::SecinfoNoName(style) => run!(ops::secinfo::no_name(self, style).await),
            Op::Setattr(args) => {
                let (status, set) = ops::setattr::setattr(self, &args).await;
                self.reply.tail.u32(n);
                self.reply.tail.u32(status.0);
                set.emit(&mut self.reply.tail);
                status
            }

            Op::Open(args) => ops::open::open(self, n, args).await,
            Op::OpenConfirm(args) => ops::opened::confirm(self, n, &args).await,
            Op::OpenDowngrade(args) => ops::opened::downgrade(self, n, &args).await,
            Op::Close(args) => ops::opened::close(self, n, &args).await,
            Op::Lock(args) => ops::lock::lock(self, n, args).await,
            Op::Lockt(args) => match ops::lock::lockt(self, args).await {
                Ok(None) => self.put(n, Ok(())),
                Ok(Some(denied)) => self.denied(n, &denied),
                Err(status) => self.put::<()>(n, Err(status)),
            },
            Op::Locku(args) => ops::lock::locku(self, n, &args).await,
            Op::ReleaseLockowner(owner) => run!(ops::lock::release_lockowner(self, &owner).await),

            Op::Setclientid(args) => match ops::clientid::setclientid(self, &args) {
                Ok(confirm) => self.put(n, Ok(confirm)),
                Err(Ok(using)) => {
                    let status = self.put::<()>(n, Err(Status::CLID_INUSE));
                    using.emit(&mut self.reply.tail);
                    status
                }
                Err(Err(status)) => self.put::<()>(n, Err(status)),
            },
            Op::SetclientidConfirm(args) => run!(ops::clientid::confirm(self, &args).await),
            Op::Renew(client) => run!(ops::clientid::renew(self, client)),

            Op::ExchangeId(args) => run!(ops::session::exchange_id(self, &args)),
            Op::CreateSession(args) => run!(ops::session::create_session(self, &args).await),
            Op::DestroySession(id) => run!(ops::session::destroy_session(self, &id)),
            Op::DestroyClientid(id) => run!(ops::session::destroy_clientid(self, id)),
            Op::BindConnToSession(args) => run!(ops::session::bind_conn(self, &args)),
            Op::BackchannelCtl(args) => run!(ops::session::backchannel_ctl(self, &args)),
            Op::ReclaimComplete(one_fs) => run!(ops::session::reclaim_complete(self, one_fs)),
            Op::TestStateid(ids) => {
                let statuses = ids.0.iter().map(|id| ops::stateids::test(self, id)).collect();
                self.put(n, Ok(UpTo::<Status, { weft_wire::nfs4::MAX_TESTED }>(statuses)))
            }
            Op::FreeStateid(id) => run!(ops::stateids::free(self, &id).await),

            Op::Openattr(make) => run!(super::named::openattr(self, make).await),
            Op::GetDirDelegation => {
                let status = self.place().err().unwrap_or(Status::NOTSUPP);
                self.put::<()>(n, Err(status))
            }
            Op::Delegreturn(id) => run!(ops::stateids::delegreturn(self, &id).await),
            Op::WantDelegation(args) => run!(ops::stateids::want(self, &args).await),
            Op::Delegpurge(_) => self.put::<()>(n, Err(Status::NOTSUPP)),
            other => Box::pin(self.run_ranges(n, other)).await,
        }
    }

    /// Minor version 2, and what is not spoken.
    async fn run_ranges(&mut self, n: u32, op: Op) -> Status {
        macro_rules! run {
            ($result:expr) => {{
                let result = $result;
                self.put(n, result)
            }};
        }
        match op {
            Op::Allocate(args) => run!(ops::ranges::allocate(self, &args).await),
            Op::Deallocate(args) => run!(ops::ranges::deallocate(self, &args).await),
            Op::Seek(args) => run!(ops::ranges::seek(self, &args).await),
            Op::ReadPlus(args) => ops::ranges::read_plus(self, n, &args).await,
            Op::IoAdvise(args) => run!(ops::ranges::io_advise(self, &args)),
            Op::Copy(args) => run!(ops::copy::copy(self, &args).await),
            Op::Clone(args) => run!(ops::copy::clone(self, &args).await),
            Op::OffloadCancel(id) => run!(ops::copy::offload_cancel(self, &id)),
            Op::OffloadStatus(id) => run!(ops::copy::offload_status(self, &id)),
            Op::Getxattr(name) => run!(ops::xattr::get(self, &name).await),
            Op::Setxattr(args) => run!(ops::xattr::set(self, &args).await),
            Op::Listxattrs(args) => run!(ops::xattr::list(self, &args).await),
            Op::Removexattr(name) => run!(ops::xattr::remove(self, &name).await),
            _ => self.put::<()>(n, Err(Status::NOTSUPP)),
        }
    }

    /// LOCK and LOCKT: somebody else's lock is in the way.
    pub fn denied(&mut self, number: u32, denied: &weft_wire::nfs4::LockDenied) -> Status {
        let status = self.put::<()>(number, Err(Status::DENIED));
        denied.emit(&mut self.reply.tail);
        status
    }

    /// The current place.
    pub fn place(&self) -> Result<Place<'a>, Status> {
        self.current.ok_or(Status::NOFILEHANDLE)
    }

    /// The current node; the root of the pseudo file system is none.
    pub fn node(&self) -> Result<Node<'a>, Status> {
        match self.place()? {
            Place::Root | Place::Attributes(_) => Err(Status::ISDIR),
            Place::Node(node) => Ok(node),
        }
    }

    /// Changes the current place; the current state id goes with it (RFC 8881 16.2.3.1.2).
    pub fn go(&mut self, place: Place<'a>) {
        self.stand(place);
        self.stateid = None;
    }

    /// The same without a word about state ids.
    pub fn stand(&mut self, place: Place<'a>) {
        self.current = Some(place);
        let (views, plain) = self.views;
        self.cx = match place {
            Place::Node(node) | Place::Attributes(node) => {
                views.iter().find(|(share, _)| *share == node.share.id).map_or(plain, |(_, view)| view)
            }
            Place::Root => plain,
        };
    }

    /// A node of this share.
    pub fn node_of(&self, share: ShareId, id: NodeId) -> Option<Node<'a>> {
        let share = self.cx.server.shares.get(share)?;
        Some(Node { share, id })
    }

    /// Who asks for what clients have; nobody whom no share lets in.
    pub fn identity(&self) -> Result<Identity, Status> {
        let origin = self.cx.origin()?;
        Ok(Identity { principal: Principal::of(self.credential), origin: *origin })
    }

    /// In whose name it asks.
    pub fn speaker(&self) -> Result<Speaker<'_>, Status> {
        match &self.turn {
            Some(turn) => Ok(Speaker::Session(&turn.session)),
            None => Ok(Speaker::Alone(self.cx.origin()?)),
        }
    }

    /// Whether it speaks for the client of this lease.
    pub fn is_of(&self, lease: &Lease) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.session.lease.client == lease.client)
    }

    /// The client that a request speaks for: that of the session, or the one that it names (minor version 0).
    pub fn client(&self, named: u64) -> Result<Arc<Client>, Status> {
        let client = self.cx.server.states.client(self.speaker()?, named)?;
        client.lease.renew(self.now);
        Ok(client)
    }
}
