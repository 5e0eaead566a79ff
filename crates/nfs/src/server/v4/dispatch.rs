//! Runs the operations of a COMPOUND in order until one fails, and builds the reply.
//!
//! See RFC 7530 1.6.3 and 15.2, RFC 8881 16.2 and 2.10.6 (sessions). `ops` carries out operations; the session's slot
//! caches the reply.
//!
//! The session, or the channel, bounds the length of a reply.

use std::cell::Cell;

use bytes::Bytes;
use weft_machine::{Buf, rt};
use weft_store::Error;
use weft_transport::SHORT_ANSWER;
use weft_wire::nfs4::{Bitmap, CompoundHead, MINOR_VERSION, NoOp, Op, ReplyHead, Status, UpTo, Xdr, opnum};
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder, Malformed};

use super::audit::{self, Moved};
use super::compound::{Compound, SlotTurn};
use super::fs_object::FsObject;
use super::names::{status, utf8};
use super::reply::Body;
use super::state::session::Kept;
use super::{at_once, named, ops};
use crate::server::context::{Context, Results};
use crate::server::credential::Credential;
use crate::server::duplicates::{Asked, MAX_ANSWER};
use crate::server::export::Views;
use crate::server::header::Header;
use crate::server::instead::{CompoundCut, Cut, RequestSlot};

/// Space that every reply has: for the RPC header and the results of small operations.
const SMALL: usize = 1024;
/// The longest result other than a listing or payload: that of an extended attribute.
const LONGEST_RESULT: usize = 64 << 10;
/// The longest reply cached without a request to do so; a slot is charged this much.
const MAX_UNASKED: usize = 128;

/// Whether the compound goes on.
enum Next {
    /// The operation ended with this status; its result is in the reply.
    Ended(Status),
    /// The whole cached reply of the same request.
    Replayed(Bytes),
}

/// Answers one COMPOUND.
pub(in crate::server) async fn compound(
    cx: &Context<'_>,
    call: &Header,
    credential: &Credential,
    mut d: Decoder,
    body: Encoder,
) -> Result<Results, Reply> {
    let head = CompoundHead::parse(&mut d).map_err(|Malformed(why)| {
        tracing::debug!(why, "cannot parse a compound");
        Reply::GarbageArgs
    })?;
    // Sessions have sequence numbers instead.
    let duplicates = &cx.server.duplicates;
    let mut asked = (head.minor == 0)
        .then(|| Asked::new(duplicates.number(&cx.origin, call, credential), head.tag.0.clone(), d.clone()));
    let mut reply = Body::new(body);
    let start = reply.tail.len();
    let known = head.minor <= MINOR_VERSION;
    let refused = if !known { Some(Status::MINOR_VERS_MISMATCH) } else { utf8(&head.tag).err() };
    ReplyHead { status: refused.unwrap_or(Status::OK), tag: head.tag.clone(), count: 0 }
        .emit(&mut reply.tail);
    if refused.is_some() {
        return Ok(reply.into_results(Cut::Never));
    }
    cx.watch.called(call.version, head.minor, credential);
    at_once::meet(cx, credential, &head, &d);
    if let Some(asked) = &mut asked
        && let Some(answer) = asked.answered(duplicates).await
    {
        return Ok(reply.replayed(start, &answer));
    }
    let count_at = reply.tail.len().saturating_sub(4);
    let views = Views::of(cx);
    let compound = Compound {
        cx,
        views: &views,
        minor: head.minor,
        now: rt::now(),
        credential,
        current: None,
        saved: None,
        stateid: None,
        saved_stateid: None,
        turn: None,
        payload_lost: false,
        has_replaced: Cell::new(false),
        request_bytes: d.total(),
        announced: head.count,
        index: 0,
        reply,
    };
    let mut run = Run {
        c: compound,
        next: opnum::ILLEGAL,
        asked,
        was_short: true,
        has_changed: false,
        first_payload: None,
        room: None,
        limit: cx.limits.max_message.min((cx.max_payload() as usize).saturating_add(SMALL * 64)),
    };
    let status = loop {
        if run.c.index == head.count {
            break Status::OK;
        }
        let next = run.step(&mut d).await;
        run.c.index = run.c.index.saturating_add(1);
        match next {
            Next::Ended(Status::OK) if run.c.index < head.count && !run.was_short => {
                rt::yield_if_due().await;
            }
            Next::Ended(Status::OK) => {}
            Next::Ended(status) => break status,
            Next::Replayed(kept) => return Ok(run.c.reply.replayed(start, &kept)),
        }
    };
    let Run { c: Compound { mut reply, turn, index, payload_lost, .. }, .. } = run;
    let Run { asked, room, has_changed, first_payload, .. } = run;
    let first = reply.head();
    first.patch_u32(start, status.0);
    first.patch_u32(count_at, index);
    let mut request = None;
    if let Some(SlotTurn { session, slot, sequence, keep }) = turn {
        // A lone SEQUENCE costs nothing to cache (RFC 8881 2.10.6.1.3), unless its tag is long.
        let whole = reply.is_one_buffer();
        let short = reply.tail.len().saturating_sub(start) <= MAX_UNASKED;
        let kept = match () {
            // The client repeats the request (RFC 8881 2.10.6.1), and its payload with it. What the compound has changed
            // before must not be repeated.
            () if payload_lost && !has_changed => Kept::NotExecuted,
            () if (keep || index == 1 && short) && whole => Kept::Reply(reply.tail.copy_from(start)),
            () => Kept::Lost,
        };
        session.finish(slot, kept);
        request = Some(RequestSlot { session, slot, sequence });
    }
    if let Some(asked) = asked
        && reply.is_one_buffer()
        && reply.tail.len().saturating_sub(start) <= MAX_ANSWER
    {
        asked.keep(|| reply.tail.copy_from(start));
    }
    let cut = match first_payload {
        Some(FirstPayload { status_at, count, is_behind_all: true }) => Cut::Compound(CompoundCut {
            // Within a message.
            count_at: count_at.saturating_sub(start) as u32,
            status_at: status_at.saturating_sub(start) as u32,
            count,
            slot: request,
        }),
        _ => Cut::Never,
    };
    Ok(reply.into_results(cut).within(room))
}

/// A compound, and the state that only the dispatch loop needs.
struct Run<'a> {
    c: Compound<'a>,
    /// Index of the operation after the running one.
    next: u32,
    /// The request in the duplicate cache, if no session slot protects it from being carried out twice.
    asked: Option<Asked>,
    /// The last operation cost next to nothing, whatever its arguments.
    was_short: bool,
    /// An operation that may change something was carried out.
    has_changed: bool,
    first_payload: Option<FirstPayload>,
    /// A buffer for a reply that becomes long.
    room: Option<Box<Buf>>,
    /// Longest reply.
    limit: usize,
}

/// The first result with payload, which may prove unreadable when the reply is sent.
#[derive(Clone, Copy)]
struct FirstPayload {
    /// The offset of its status in the reply.
    status_at: usize,
    /// The number of results up to it.
    count: u32,
    /// Nothing was changed behind it.
    is_behind_all: bool,
}

/// Whether the operation is not idempotent and no owner's sequence number protects it.
fn changes(op: &Op) -> bool {
    matches!(op, Op::Create(_) | Op::Link(_) | Op::Remove(_) | Op::Rename(_) | Op::Setattr(_))
}

/// Whether the operation has the same effect, none, each time it is carried out.
fn only_looks(op: &Op) -> bool {
    matches!(
        op,
        Op::Sequence(_)
            | Op::Putfh(_)
            | Op::Putrootfh
            | Op::Putpubfh
            | Op::Savefh
            | Op::Restorefh
            | Op::Getfh
            | Op::Getattr(_)
            | Op::Access(_)
            | Op::Lookup(_)
            | Op::Lookupp
            | Op::Verify(_)
            | Op::Nverify(_)
            | Op::Read(_)
            | Op::Readdir(_)
            | Op::Readlink
            | Op::Secinfo(_)
            | Op::SecinfoNoName(_)
            | Op::TestStateid(_)
    )
}

impl Run<'_> {
    /// Runs the next operation.
    async fn step(&mut self, d: &mut Decoder) -> Next {
        // WRITE fetches its data itself; the only other operation with payload is short.
        if d.is_distant() && self.peek_op(d) == opnum::CREATE {
            match self.c.cx.fetch().await {
                Ok(content) => d.arrived(content),
                Err(e) => {
                    self.c.payload_lost = matches!(e, Error::Payload(_));
                    return self.failed(opnum::CREATE, status(&e));
                }
            }
        }
        let op = match Op::parse(d, self.c.minor) {
            Ok(op) => op,
            Err(NoOp::Illegal) => return self.failed(opnum::ILLEGAL, Status::OP_ILLEGAL),
            Err(NoOp::BadXdr(number, Malformed(why))) => {
                tracing::debug!(number, why, "cannot parse the arguments");
                return self.failed(number, Status::BADXDR);
            }
        };
        let number = op.number();
        self.c.cx.meter.carries_out(number);
        if self.c.minor == 0 && self.c.index >= self.c.cx.server.states.limits.operations {
            return self.failed(number, Status::RESOURCE);
        }
        if self.c.minor > 0
            && let Err(status) = ops::session::admit(&self.c, &op)
        {
            return self.failed(number, status);
        }
        if changes(&op)
            && self.asked.as_ref().is_some_and(|asked| !asked.has_begun())
            && let Some(answer) = Box::pin(self.begin()).await
        {
            return Next::Replayed(answer);
        }
        // Operations that lead to a READ or WRITE: not worth reading the clock.
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
        let may_change = !only_looks(&op);
        let begins = self.c.reply.mark();
        let status_at = self.c.reply.is_one_buffer().then(|| self.c.reply.next_result());
        self.next = self.peek_op(d);
        let status = match op {
            Op::Sequence(args) => match ops::session::sequence(&mut self.c, &args, d) {
                Ok((ok, None)) => return Next::Ended(self.c.put(number, Ok(ok))),
                Ok((_, Some(Kept::Reply(reply)))) => return Next::Replayed(reply),
                Ok((ok, Some(_))) => {
                    // The second operation reports that nothing was cached (RFC 8881 18.46.3).
                    self.c.put(number, Ok(ok));
                    self.c.index = self.c.index.saturating_add(1);
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
        self.has_changed |= may_change && !self.c.payload_lost;
        match (status_at, &mut self.first_payload) {
            (Some(status_at), first) if !self.c.reply.is_one_buffer() => {
                let count = self.c.index.saturating_add(1);
                *first = Some(FirstPayload { status_at, count, is_behind_all: true });
            }
            (None, Some(first)) => first.is_behind_all &= !may_change,
            _ => {}
        }
        if let Some(status) = self.overflow() {
            // A result that became too long is a listing or data; results of operations that change something are
            // short.
            self.c.reply.take_back(begins);
            return self.failed(number, status);
        }
        Next::Ended(status)
    }

    /// Before the first change: returns the cached reply, if the same request came earlier.
    async fn begin(&mut self) -> Option<Bytes> {
        let asked = self.asked.as_mut()?;
        // Nothing may wait while it holds a buffer, and the next operation may wait for one.
        let room = self.room.take().map(|room| room.capacity());
        let answer = asked.begin(&self.c.cx.server.duplicates).await;
        if let (Some(len), None) = (room, &answer) {
            self.room = match self.c.reply.is_one_buffer() {
                true => self.c.cx.answers.room(len).await,
                false => self.c.cx.answers.try_room(len),
            };
        }
        answer
    }

    /// By how much the operation may lengthen a reply that is or becomes long.
    fn may_be_long(&self, op: &Op) -> Option<usize> {
        match op {
            Op::Readdir(args) => {
                Some((args.maxcount.min(self.c.cx.server.limits.max_listing) as usize).saturating_add(SMALL))
            }
            _ if self.c.reply.results_len() > SHORT_ANSWER => Some(LONGEST_RESULT),
            _ => None,
        }
    }

    /// Makes room for `more` bytes of reply. False: other replies hold the memory, and the client requests the
    /// remainder later. Never waits while holding a buffer, also one with payload, so that two replies that need more cannot
    /// deadlock.
    async fn make_room(&mut self, more: usize) -> bool {
        let len = self.c.reply.results_len().saturating_add(more);
        match &self.room {
            None if self.c.reply.is_one_buffer() => self.room = self.c.cx.answers.room(len).await,
            Some(room) if room.capacity() >= len => {}
            _ => match self.c.cx.answers.try_room(len) {
                Some(room) => self.room = Some(room),
                None => return false,
            },
        }
        true
    }

    fn peek_op(&self, d: &Decoder) -> u32 {
        d.peek(4).first_chunk().map_or(opnum::ILLEGAL, |word| u32::from_be_bytes(*word))
    }

    /// Whether the reply has exceeded a limit, and which.
    fn overflow(&self) -> Option<Status> {
        let len = self.c.reply.len();
        match &self.c.turn {
            None if self.c.minor == 0 => (len > self.limit).then_some(Status::RESOURCE),
            None => None,
            Some(turn) if len > turn.session.fore.max_response as usize => Some(Status::REP_TOO_BIG),
            Some(turn) if turn.keep && len > turn.session.fore.max_response_cached as usize => {
                Some(Status::REP_TOO_BIG_TO_CACHE)
            }
            Some(_) => None,
        }
    }

    /// Appends the result of an operation that failed before it started.
    fn failed(&mut self, number: u32, status: Status) -> Next {
        self.c.reply.tail.u32(number);
        self.c.reply.tail.u32(status.0);
        if number == opnum::SETATTR {
            Bitmap::EMPTY.emit(&mut self.c.reply.tail);
        }
        Next::Ended(status)
    }

    async fn run(&mut self, n: u32, op: Op) -> Status {
        let (c, next) = (&mut self.c, self.next);
        match op {
            Op::Read(args) => {
                let result = ops::read::read(c, &args).await;
                if let Some(auditing) = c.cx.server.auditing.get() {
                    let moved = result.as_ref().map(|(_, data)| data.len() as u64).map_err(|status| *status);
                    if let Some(rest) = audit::moved(c, auditing, &args.stateid, Moved::Read, moved) {
                        Box::pin(rest.tell(c, auditing)).await;
                    }
                }
                c.put_payload(n, result).await
            }
            Op::Write(args) => {
                let stateid = args.stateid;
                let result = ops::write::write(c, args).await;
                if let Some(auditing) = c.cx.server.auditing.get() {
                    let moved = result.as_ref().map(|ok| u64::from(ok.count)).map_err(|e| e.status);
                    if let Some(rest) = audit::moved(c, auditing, &stateid, Moved::Written, moved) {
                        Box::pin(rest.tell(c, auditing)).await;
                    }
                }
                c.payload_lost = result.as_ref().is_err_and(|e| e.payload_lost);
                c.put(n, result.map_err(|e| e.status))
            }
            Op::Getattr(wanted) => {
                let result = ops::getattr::getattr(c, wanted).await;
                c.put(n, result)
            }
            Op::Putfh(handle) => {
                let result = FsObject::open(c.cx, &handle).await.and_then(|object| {
                    // RFC 8881 2.6.3.1.1.8: a client that asks for the security flavours is not refused for its own
                    // flavour.
                    let asks = matches!(next, opnum::SECINFO | opnum::SECINFO_NO_NAME);
                    object.admit(c.cx, asks)?;
                    c.set_current(object);
                    Ok(())
                });
                c.put(n, result)
            }
            Op::Putrootfh | Op::Putpubfh => {
                c.set_current(FsObject::Root);
                c.put(n, Ok(()))
            }
            Op::Getfh => {
                let result = match c.object() {
                    Ok(object) => object.handle(c.cx).await,
                    Err(status) => Err(status),
                };
                c.put(n, result)
            }
            Op::Savefh => {
                let result = c.object().map(|object| {
                    c.saved = Some(object);
                    c.saved_stateid = c.stateid;
                });
                c.put(n, result)
            }
            Op::Restorefh => {
                let missing = if c.minor == 0 { Status::RESTOREFH } else { Status::NOFILEHANDLE };
                let result = c.saved.ok_or(missing).map(|object| {
                    c.set_current_keeping_stateid(object);
                    c.stateid = c.saved_stateid;
                });
                c.put(n, result)
            }
            // All others are boxed, so that the future of reads and writes stays small.
            op => {
                let auditing = c.cx.server.auditing.get();
                let asked = auditing.and_then(|auditing| audit::asked(c, auditing, &op));
                let status = Box::pin(run_other(c, n, op)).await;
                if let (Some(auditing), Some(asked)) = (auditing, asked) {
                    Box::pin(audit::tell(c, auditing, asked, status)).await;
                }
                status
            }
        }
    }
}

/// Operations other than those of an ordinary READ or WRITE.
async fn run_other(c: &mut Compound<'_>, n: u32, op: Op) -> Status {
    macro_rules! run {
        ($result:expr) => {{
            let result = $result;
            c.put(n, result)
        }};
    }
    match op {
        Op::Access(wanted) => run!(ops::access::access(c, wanted).await),
        Op::Commit(args) => run!(ops::write::commit(c, &args).await),
        Op::Create(args) => run!(ops::create::create(c, args).await),
        Op::Link(name) => run!(ops::link::link(c, &name).await),
        Op::Lookup(name) => run!(ops::lookup::lookup(c, &name).await),
        Op::Lookupp => run!(ops::lookup::lookupp(c).await),
        Op::Nverify(fattr) => run!(ops::verify::nverify(c, &fattr).await),
        Op::Verify(fattr) => run!(ops::verify::verify(c, &fattr).await),
        Op::Readdir(args) => run!(ops::readdir::readdir(c, &args).await),
        Op::Readlink => {
            let result = ops::readlink::readlink(c).await;
            c.put_payload(n, result).await
        }
        Op::Remove(name) => run!(ops::remove::remove(c, &name).await),
        Op::Rename(args) => run!(ops::rename::rename(c, &args).await),
        Op::Secinfo(name) => run!(ops::secinfo::secinfo(c, &name).await),
        Op::SecinfoNoName(style) => run!(ops::secinfo::no_name(c, style).await),
        Op::Setattr(args) => {
            let (status, set) = ops::setattr::setattr(c, &args).await;
            c.reply.tail.u32(n);
            c.reply.tail.u32(status.0);
            set.emit(&mut c.reply.tail);
            status
        }

        Op::Open(args) => ops::open::open(c, n, args).await,
        Op::OpenConfirm(args) => ops::opened::confirm(c, n, &args).await,
        Op::OpenDowngrade(args) => ops::opened::downgrade(c, n, &args).await,
        Op::Close(args) => ops::opened::close(c, n, &args).await,
        Op::Lock(args) => ops::lock::lock(c, n, args).await,
        Op::Lockt(args) => match ops::lock::lockt(c, args).await {
            Ok(None) => c.put(n, Ok(())),
            Ok(Some(denied)) => c.denied(n, &denied),
            Err(status) => c.put::<()>(n, Err(status)),
        },
        Op::Locku(args) => ops::lock::locku(c, n, &args).await,
        Op::ReleaseLockowner(owner) => run!(ops::lock::release_lockowner(c, &owner).await),

        Op::Setclientid(args) => match ops::clientid::setclientid(c, &args) {
            Ok(confirm) => c.put(n, Ok(confirm)),
            Err(Ok(using)) => {
                let status = c.put::<()>(n, Err(Status::CLID_INUSE));
                using.emit(&mut c.reply.tail);
                status
            }
            Err(Err(status)) => c.put::<()>(n, Err(status)),
        },
        Op::SetclientidConfirm(args) => run!(ops::clientid::confirm(c, &args).await),
        Op::Renew(client) => run!(ops::clientid::renew(c, client)),

        Op::ExchangeId(args) => run!(ops::session::exchange_id(c, &args)),
        Op::CreateSession(args) => run!(ops::session::create_session(c, &args).await),
        Op::DestroySession(id) => run!(ops::session::destroy_session(c, &id)),
        Op::DestroyClientid(id) => run!(ops::session::destroy_clientid(c, id)),
        Op::BindConnToSession(args) => run!(ops::session::bind_conn(c, &args)),
        Op::BackchannelCtl(args) => run!(ops::session::backchannel_ctl(c, &args)),
        Op::ReclaimComplete(one_fs) => run!(ops::session::reclaim_complete(c, one_fs)),
        Op::TestStateid(ids) => {
            let statuses = ids.0.iter().map(|id| ops::stateids::test(c, id)).collect();
            c.put(n, Ok(UpTo::<Status, { weft_wire::nfs4::MAX_TESTED }>(statuses)))
        }
        Op::FreeStateid(id) => run!(ops::stateids::free(c, &id).await),

        Op::Openattr(make) => run!(named::openattr(c, make).await),
        Op::GetDirDelegation => {
            let status = c.object().err().unwrap_or(Status::NOTSUPP);
            c.put::<()>(n, Err(status))
        }
        Op::Delegreturn(id) => run!(ops::stateids::delegreturn(c, &id).await),
        Op::WantDelegation(args) => run!(ops::stateids::want(c, &args).await),
        Op::Delegpurge(_) => c.put::<()>(n, Err(Status::NOTSUPP)),
        other => Box::pin(run_ranges(c, n, other)).await,
    }
}

/// Minor version 2, and unsupported operations.
async fn run_ranges(c: &mut Compound<'_>, n: u32, op: Op) -> Status {
    macro_rules! run {
        ($result:expr) => {{
            let result = $result;
            c.put(n, result)
        }};
    }
    match op {
        Op::Allocate(args) => run!(ops::ranges::allocate(c, &args).await),
        Op::Deallocate(args) => run!(ops::ranges::deallocate(c, &args).await),
        Op::Seek(args) => run!(ops::ranges::seek(c, &args).await),
        Op::ReadPlus(args) => ops::ranges::read_plus(c, n, &args).await,
        Op::IoAdvise(args) => run!(ops::ranges::io_advise(c, &args)),
        Op::Copy(args) => run!(ops::copy::copy(c, &args).await),
        Op::Clone(args) => run!(ops::copy::clone(c, &args).await),
        Op::OffloadCancel(id) => run!(ops::copy::offload_cancel(c, &id)),
        Op::OffloadStatus(id) => run!(ops::copy::offload_status(c, &id)),
        Op::Getxattr(name) => run!(ops::xattr::get(c, &name).await),
        Op::Setxattr(args) => run!(ops::xattr::set(c, &args).await),
        Op::Listxattrs(args) => run!(ops::xattr::list(c, &args).await),
        Op::Removexattr(name) => run!(ops::xattr::remove(c, &name).await),
        _ => c.put::<()>(n, Err(Status::NOTSUPP)),
    }
}
