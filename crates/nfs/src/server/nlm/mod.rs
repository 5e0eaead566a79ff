//! NLM version 4: byte-range locks and share modes of NFSv3 clients, in the table that also holds those of SMB and
//! NFSv4.
//!
//! See RFC 1813 appendix II. [`Locking`] records the names of lock owners and what they hold. Deadlocks are not
//! detected; `nsm` hears of hosts that restart.
//!
//! A host is represented by its address, over a connection. A datagram proves no address, so a datagram that reports
//! a restart only makes us ask that host's status monitor over TCP ([`restarted`]).
//!
//! A LOCK that has to wait is answered with BLOCKED. A task waits for the lock, and tells the client by GRANTED. If
//! the client cannot be told, or no longer wants the lock, the lock is released; a client that still waits repeats
//! its request.

mod callback;
mod table;

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use weft_machine::budget::Full;
use weft_machine::{Budget, rt};
use weft_store::access;
use weft_store::opens::{Access, Conflict, LockOwner, Opening, Opens, Range, Refused, Rights, SetFailed};
use weft_store::{Kind as NodeKind, NodeId, ShareKey, ShareList};
use weft_transport::Peer;
use weft_wire::nfs3::Status as Nfs;
use weft_wire::nlm::*;
use weft_wire::nsm::Name;
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder, Xdr};

use super::Server;
use super::caller::{READ, WRITE};
use super::context::{Context, Node, Results, args};
use super::file_id::FileId;
use super::guard;
use super::outgoing::Outgoing;
use super::v4::state::{LockedBy, Ranges};
use callback::CallbackTarget;
pub(super) use callback::notify;
pub use table::HostId;
use table::{OwnerId, Table, Wish};

/// Bits of [`Share::access`] and [`Share::deny`].
const SHARE_READ: u32 = 1;
const SHARE_WRITE: u32 = 2;

/// Named in the log when the memory limit is reached.
const MEMORY: &str = "memory for byte-range locks";
const NO_ROOM: SetFailed = SetFailed::Refused(Refused::Limit(MEMORY));

/// The lock manager's state.
pub(super) struct Locking {
    table: Arc<Table>,
    /// The port of clients' rpcbind.
    rpcbind: u16,
    /// Calls to clients.
    calls: Outgoing,
    /// Limits the queries to clients' status monitors about restarts.
    questions: Outgoing,
}

impl Locking {
    /// An empty state, whose memory is charged to `budget`.
    pub fn new(budget: Budget) -> Locking {
        Locking {
            table: Arc::new(Table::new(budget)),
            rpcbind: weft_wire::rpcbind::PORT,
            calls: Outgoing::calls(),
            questions: Outgoing::questions(),
        }
    }

    /// The addresses of hosts that hold locks or share modes, or wait for a lock.
    pub fn addresses(&self) -> HashSet<IpAddr> {
        self.table.addresses()
    }
}

/// How to call a host.
pub(super) fn callback_target(server: &Server, host: IpAddr) -> CallbackTarget {
    let Locking { rpcbind, calls, .. } = &server.locking;
    CallbackTarget { host, port: *rpcbind, pool: server.pool.clone(), calls: calls.clone() }
}

/// Whether a lock is monitored: a client that uses NM_LOCK is not notified of a restart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Monitored {
    Yes,
    No,
}

/// Answers a call.
pub(super) async fn answer(
    cx: &Context<'_>,
    number: u32,
    mut d: Decoder,
    mut body: Encoder,
) -> Result<Results, Reply> {
    let d = &mut d;
    match number {
        procedure::NULL => {}
        procedure::TEST => test(cx, args(d)?).await.emit(&mut body),
        procedure::LOCK => lock(cx, args(d)?, Monitored::Yes).await.emit(&mut body),
        procedure::NM_LOCK => lock(cx, args(d)?, Monitored::No).await.emit(&mut body),
        procedure::CANCEL => cancel(cx, args(d)?).await.emit(&mut body),
        procedure::UNLOCK => unlock(cx, args(d)?).await.emit(&mut body),
        procedure::TEST_MSG => later(cx, procedure::TEST_RES, test(cx, args(d)?).await),
        procedure::LOCK_MSG => later(cx, procedure::LOCK_RES, lock(cx, args(d)?, Monitored::Yes).await),
        procedure::CANCEL_MSG => later(cx, procedure::CANCEL_RES, cancel(cx, args(d)?).await),
        procedure::UNLOCK_MSG => later(cx, procedure::UNLOCK_RES, unlock(cx, args(d)?).await),
        procedure::SHARE => share(cx, args(d)?).await.emit(&mut body),
        procedure::UNSHARE => unshare(cx, args(d)?).await.emit(&mut body),
        procedure::FREE_ALL => {
            // The state number in FREE_ALL means nothing (XNFS, NLM_FREE_ALL): everything is freed.
            let Notify { name, .. } = args(d)?;
            restarted(cx, &name, None).await?;
        }
        // We send GRANTED and receive its result as a reply; nobody grants us locks.
        _ => return Err(Reply::ProcedureUnavailable),
    }
    Ok(Results::new(body, None))
}

/// Sends the answer to a `_MSG` as a call of its own. A host with too many unfinished calls gets no answer: it
/// repeats its request, as after a lost answer.
fn later(cx: &Context<'_>, number: u32, result: impl Xdr + 'static) {
    let Some(host) = cx.peer.ip() else { return };
    let target = callback_target(cx.server, host);
    let Some(permit) = target.calls.enter(host) else {
        return tracing::debug!(%host, number, "limit reached: calls to a client's lock manager");
    };
    rt::spawn(async move { callback::answer(&target, &permit, number, &result).await }).detach();
}

/// A request whose file and range are resolved.
struct Asked<'a> {
    node: Node<'a>,
    range: Range,
    host: HostId,
    owner: OwnerId,
}

impl Asked<'_> {
    fn wish(&self, lock: &Lock, exclusive: bool) -> Wish {
        let (offset, length) = (lock.offset, lock.length);
        Wish { owner: self.owner.clone(), node: self.node.id, offset, length, exclusive }
    }

    fn holds(&self, id: LockOwner) -> bool {
        self.node.share.vfs.opens().holds_ranges(self.node.id, id)
    }
}

fn host(cx: &Context<'_>, name: &Object) -> Result<HostId, Status> {
    let addr = cx.peer.ip().ok_or(Status::FAILED)?;
    // A copy, because a slice would keep the call's whole receive buffer in use.
    Ok(HostId { addr, name: bytes::Bytes::copy_from_slice(&name.0) })
}

fn kept(object: &Object) -> Object {
    Object(bytes::Bytes::copy_from_slice(&object.0))
}

/// The same for requests that release something. Mode bits do not prevent that, but other users of a host, on
/// unreserved ports, cannot release what root of that host holds.
async fn named<'a>(cx: &Context<'a>, lock: &Lock) -> Result<Asked<'a>, Status> {
    let node = cx.node(&lock.file).await.map_err(|_| Status::STALE_FH)?;
    if !cx.lets_in(node.share.key()) {
        return Err(Status::DENIED);
    }
    at(cx, lock, node)
}

async fn asked<'a>(cx: &Context<'a>, lock: &Lock, rights: &[u32]) -> Result<Asked<'a>, Status> {
    let node = file(cx, &lock.file, rights).await?;
    at(cx, lock, node)
}

fn at<'a>(cx: &Context<'a>, lock: &Lock, node: Node<'a>) -> Result<Asked<'a>, Status> {
    // 0 means to the end, which NFSv4 writes as all ones.
    let length = if lock.length == 0 { u64::MAX } else { lock.length };
    let range = Range::to_end(lock.offset, length).ok_or(Status::FBIG)?;
    let owner = OwnerId { share: node.share.key(), owner: kept(&lock.owner), svid: lock.svid };
    Ok(Asked { node, range, host: host(cx, &lock.caller)?, owner })
}

/// The rights one of which suffices for what keeps nobody from reading. A caller may have opened the file for either.
const EITHER: &[u32] = &[READ, WRITE];

/// The right for what keeps everybody else away (fcntl(2): a write lock needs a descriptor that is open for writing).
const ALONE: &[u32] = &[WRITE];

/// The file of a handle, on which the caller must have one of these rights. The owner has what he had when he opened it.
async fn file<'a>(
    cx: &Context<'a>,
    handle: &weft_wire::nfs3::Handle,
    rights: &[u32],
) -> Result<Node<'a>, Status> {
    let node = cx.node(handle).await.map_err(|status| match status {
        Nfs::STALE | Nfs::BADHANDLE => Status::STALE_FH,
        _ => Status::FAILED,
    })?;
    cx.admit(node.share.id).map_err(|_| Status::DENIED)?;
    let caller = cx.caller_in(node.share.id);
    let attr = node.share.vfs.getattr(node.id).await.map_err(|_| Status::STALE_FH)?;
    if attr.kind != NodeKind::File {
        return Err(Status::FAILED);
    }
    let descriptor = access::stored(&node.share.vfs, &attr).await.map_err(|_| Status::FAILED)?;
    for &right in rights {
        if node.check_data(&caller, &attr, right).await.is_ok()
            && caller.admitted(descriptor.as_ref(), guard::data(right)).is_ok()
        {
            return Ok(node);
        }
    }
    Err(Status::DENIED)
}

/// In the grace period after a restart, only reclaims are admitted.
fn in_turn(cx: &Context<'_>, reclaim: bool) -> Result<(), Status> {
    match (reclaim, cx.server.states.grace.lasts(rt::now())) {
        (false, true) => Err(Status::DENIED_GRACE_PERIOD),
        (true, false) => Err(Status::DENIED),
        _ => Ok(()),
    }
}

async fn test(cx: &Context<'_>, args: TestArgs) -> TestAnswer {
    let outcome = async {
        let asked = asked(cx, &args.lock, EITHER).await;
        // DENIED names the holder of the conflicting lock (RFC 1813 6.3.1), which callers without access must not
        // learn.
        let asked =
            asked.map_err(|status| Ok(if status == Status::DENIED { Status::FAILED } else { status }))?;
        if cx.server.states.grace.lasts(rt::now()) {
            return Err(Ok(Status::DENIED_GRACE_PERIOD));
        }
        let opens = asked.node.share.vfs.opens();
        let known = cx.server.locking.table.owner(&asked.host, &asked.owner);
        // The id of an owner without locks matches nobody.
        let id = known.unwrap_or_else(|| opens.lock_owner());
        match opens.test_range(asked.node.id, id, asked.range, args.exclusive) {
            None => Ok(Status::GRANTED),
            Some(conflict) => Err(Err(holder(cx, asked.node.share.key(), &conflict))),
        }
    };
    let outcome: Result<Status, Result<Status, Holder>> = outcome.await;
    TestAnswer { cookie: args.cookie, outcome: outcome.or_else(|other| other) }
}

/// The holder of a conflicting lock. Owners over SMB and NFSv4 have no NLM names.
fn holder(cx: &Context<'_>, share: ShareKey, conflict: &Conflict) -> Holder {
    let words = conflict.owner.and_then(|id| cx.server.locking.table.words(share, id));
    let (owner, svid) = words.unwrap_or_default();
    let length = if conflict.range.is_to_end() { 0 } else { conflict.range.len };
    Holder { exclusive: conflict.exclusive, svid, owner, offset: conflict.range.offset, length }
}

async fn lock(cx: &Context<'_>, args: LockArgs, monitored: Monitored) -> Answer {
    let status = take(cx, &args, monitored).await.unwrap_or_else(|status| status);
    Answer { cookie: args.cookie, status }
}

async fn take(cx: &Context<'_>, args: &LockArgs, monitored: Monitored) -> Result<Status, Status> {
    let asked = asked(cx, &args.lock, if args.exclusive { ALONE } else { EITHER }).await?;
    in_turn(cx, args.reclaim)?;
    let table = &cx.server.locking.table;
    let opens = asked.node.share.vfs.opens();
    // A client with a delegation or lease on the file may have locked it locally, or may be about to.
    opens.clear(asked.node.id, None, Access::Write).await.map_err(|_| Status::FAILED)?;
    let state = Some(args.state).filter(|state| monitored == Monitored::Yes && *state != 0);
    let entered = table
        .enter(&asked.host, &asked.owner, state, asked.node.id, opens)
        .map_err(|_| Status::DENIED_NOLOCKS)?;
    if monitored == Monitored::Yes {
        super::monitors::monitor(cx.server, asked.host.addr)?;
    }
    let set = || opens.try_set_range(asked.node.id, entered.id, asked.range, args.exclusive);
    let by = LockedBy { opens, node: asked.node.id, owner: entered.id };
    let attempt = || entered.ranges.lock(by, set).unwrap_or(Err(NO_ROOM));
    let mut done = attempt();
    if matches!(done, Err(SetFailed::Conflict(_))) && super::v4::clear_lapsed(cx.server, &asked.node).await {
        done = attempt();
    }
    let wish = asked.wish(&args.lock, args.exclusive);
    let outcome = match done {
        Ok(()) => {
            // The client may have waited for this lock, and repeats its request because it heard nothing.
            if let Some(blocked) = table.unblock(&asked.host, &wish, None) {
                blocked.waiting.abort();
            }
            Ok(Status::GRANTED)
        }
        Err(SetFailed::Conflict(_)) if args.block && monitored == Monitored::Yes => {
            wait(cx.server, &asked, (entered.id, entered.ranges.clone()), args, wish.clone())
        }
        Err(SetFailed::Conflict(_)) => Err(Status::DENIED),
        Err(SetFailed::Refused(Refused::Limit(_))) => Err(Status::DENIED_NOLOCKS),
        Err(SetFailed::Refused(_)) => Err(Status::FAILED),
    };
    if outcome.is_ok() && !cx.server.shares.serves(asked.owner.share) {
        // Whoever released the locks of the share may have missed this one.
        if let Some(blocked) = table.unblock(&asked.host, &wish, None) {
            blocked.waiting.abort();
        }
        opens.release_ranges(asked.node.id, entered.id);
        return Err(Status::STALE_FH);
    }
    outcome
}

/// Spawns a task that waits for the lock and tells the client.
fn wait(
    server: &Server,
    asked: &Asked<'_>,
    (id, ranges): (LockOwner, Arc<Ranges>),
    args: &LockArgs,
    wish: Wish,
) -> Result<Status, Status> {
    let table = server.locking.table.clone();
    let opens = asked.node.share.vfs.opens().clone();
    let (host, node, range, exclusive) = (asked.host.clone(), asked.node.id, asked.range, args.exclusive);
    let owner = asked.owner.clone();
    let lock = Lock { caller: kept(&args.lock.caller), owner: kept(&args.lock.owner), ..args.lock.clone() };
    let target = callback_target(server, host.addr);
    let (waiting, ended) = AbortHandle::new_pair();
    let entered = table.block(&host, &wish, &kept(&args.cookie), waiting);
    let Some(number) = entered.map_err(|_| Status::DENIED_NOLOCKS)? else { return Ok(Status::BLOCKED) };
    let task = async move {
        let mut set = pin!(opens.set_range(node, id, range, exclusive));
        let done = poll_fn(|cx| {
            let mut attempt =
                || ranges.lock(LockedBy { opens: &opens, node, owner: id }, || set.as_mut().poll(cx));
            table.poll_granted(&host, &wish, number, || {
                attempt().unwrap_or(Poll::Ready(Err(Refused::Limit(MEMORY))))
            })
        });
        let done = done.await;
        let wanted = match done {
            None => return,
            Some(Ok(cookie)) => callback::granted(&target, cookie, exclusive, lock).await,
            Some(Err(refused)) => {
                tracing::debug!(host = %host.addr, "a blocked lock cannot be granted: {refused}");
                false
            }
        };
        // A repeated request has been granted the lock meanwhile.
        if table.unblock(&host, &wish, Some(number)).is_some()
            && !wanted
            && let Err(refused) = give_back(&table, &opens, &host, &owner, node, range)
        {
            tracing::warn!(host = %host.addr, "could not release a lock that its host does not want: {refused}");
        }
    };
    rt::spawn(Abortable::new(task, ended).map(drop)).detach();
    Ok(Status::BLOCKED)
}

/// Unlocks, and forgets an owner that holds nothing more. Returns whether there was memory for the remaining pieces.
fn give_back(
    table: &Table,
    opens: &Opens,
    host: &HostId,
    owner: &OwnerId,
    node: NodeId,
    range: Range,
) -> Result<(), Refused> {
    let Some(id) = table.owner(host, owner) else { return Ok(()) };
    let clear = || opens.clear_range(node, id, range);
    match table.ranges(host, owner, node) {
        Some(ranges) => ranges
            .unlock(LockedBy { opens, node, owner: id }, range, clear)
            .map_err(|_| Refused::Limit(MEMORY))??,
        None => clear()?,
    }
    table.leave(host, owner, node, |id| opens.holds_ranges(node, id));
    Ok(())
}

async fn cancel(cx: &Context<'_>, args: CancelArgs) -> Answer {
    let cancelled = async {
        in_turn(cx, false)?;
        let asked = named(cx, &args.lock).await?;
        let table = &cx.server.locking.table;
        let wish = asked.wish(&args.lock, args.exclusive);
        let blocked = table.unblock(&asked.host, &wish, None).ok_or(Status::DENIED)?;
        blocked.waiting.abort();
        let opens = asked.node.share.vfs.opens();
        if blocked.granted {
            give_back(table, opens, &asked.host, &asked.owner, asked.node.id, asked.range)
                .map_err(|_| Status::DENIED_NOLOCKS)?;
        }
        table.leave(&asked.host, &asked.owner, asked.node.id, |id| asked.holds(id));
        Ok(Status::GRANTED)
    };
    let status = cancelled.await.unwrap_or_else(|status: Status| status);
    Answer { cookie: args.cookie, status }
}

async fn unlock(cx: &Context<'_>, args: UnlockArgs) -> Answer {
    let unlocked = async {
        in_turn(cx, false)?;
        let asked = named(cx, &args.lock).await?;
        let opens = asked.node.share.vfs.opens();
        let table = &cx.server.locking.table;
        give_back(table, opens, &asked.host, &asked.owner, asked.node.id, asked.range)
            .map_err(|_| Status::DENIED_NOLOCKS)?;
        // Unlocking a range without locks succeeds (RFC 1813 6.3.4).
        Ok(Status::GRANTED)
    };
    let status = unlocked.await.unwrap_or_else(|status: Status| status);
    Answer { cookie: args.cookie, status }
}

fn rights(bits: u32) -> Rights {
    Rights { read: bits & SHARE_READ != 0, write: bits & SHARE_WRITE != 0, delete: false }
}

async fn share(cx: &Context<'_>, args: ShareArgs) -> ShareAnswer {
    let shared = async {
        let Share { caller, file: handle, owner, deny, access } = &args.share;
        let node = file(cx, handle, if access & SHARE_WRITE != 0 { ALONE } else { EITHER }).await?;
        in_turn(cx, args.reclaim)?;
        let host = host(cx, caller)?;
        let denied = rights(*deny);
        let allows = Rights { read: !denied.read, write: !denied.write, delete: true };
        let access = rights(*access);
        let opens = node.share.vfs.opens();
        // `in_turn` has checked the grace period.
        let opening = Opening { past_grace: true, ..Opening::new(access, allows, opens.key()) };
        let done = cx.server.locking.table.share(
            &host,
            node.file(),
            &kept(owner),
            |open| open.change(access, allows).is_ok(),
            || opens.try_open(node.id, &opening).ok(),
        );
        match done {
            Ok(true) => {}
            Ok(false) => return Err(Status::DENIED),
            Err(Full) => return Err(Status::DENIED_NOLOCKS),
        }
        let monitored = super::monitors::monitor(cx.server, host.addr);
        // Whoever released the share modes of the share may have missed this one.
        let served = cx.server.shares.serves(node.share.key());
        if let Err(status) = monitored.and(if served { Ok(()) } else { Err(Status::STALE_FH) }) {
            if let Some(open) = cx.server.locking.table.unshare(&host, node.file(), owner) {
                super::v4::close_open(&node.share.vfs, open).await;
            }
            return Err(status);
        }
        Ok(Status::GRANTED)
    };
    let status = shared.await.unwrap_or_else(|status: Status| status);
    ShareAnswer { cookie: args.cookie, status, sequence: 0 }
}

async fn unshare(cx: &Context<'_>, args: ShareArgs) -> ShareAnswer {
    let unshared = async {
        in_turn(cx, false)?;
        let node = cx.node(&args.share.file).await.map_err(|_| Status::STALE_FH)?;
        if !cx.lets_in(node.share.key()) {
            return Err(Status::DENIED);
        }
        let host = host(cx, &args.share.caller)?;
        let file = node.file();
        if let Some(open) = cx.server.locking.table.unshare(&host, file, &args.share.owner) {
            super::v4::close_open(&node.share.vfs, open).await;
        }
        Ok(Status::GRANTED)
    };
    let status = unshared.await.unwrap_or_else(|status: Status| status);
    ShareAnswer { cookie: args.cookie, status, sequence: 0 }
}

/// A host reports its restart, by FREE_ALL or NOTIFY, which releases its earlier locks. `state` is its new state
/// number, if it sent one; locks taken under that number stay, because NOTIFY is repeated until it is answered. In
/// shares that do not admit callers from there (`net=`, reserved ports), nothing is released.
///
/// A datagram is only a reason to ask the host over TCP, because a forged address could free the locks of another
/// host. If the host does not answer, the datagram gets an error, so that it is sent again.
pub(super) async fn restarted(cx: &Context<'_>, name: &Object, state: Option<u32>) -> Result<(), Reply> {
    let Ok(host) = host(cx, name) else { return Ok(()) };
    let table = &cx.server.locking.table;
    if !table.knows(&host) {
        return Ok(());
    }
    let proven = !matches!(cx.peer, Peer::Udp(_));
    let state = match proven {
        true => state,
        false => Some(state_by_tcp(cx, &host).await.ok_or(Reply::SystemError)?),
    };
    let is_older = |since: Option<u32>| match (since, state) {
        (Some(since), Some(now)) => now.wrapping_sub(since).cast_signed() > 0,
        // Locks without a state number could be from any time.
        (None, _) => proven,
        (_, None) => true,
    };
    let freed = table.free(&host, |share, since| is_older(since) && cx.lets_in(share));
    give_up(cx.list(), freed).await;
    super::monitors::forget_idle(cx.server, host.addr);
    Ok(())
}

/// The state number of a host, queried from its status monitor.
async fn state_by_tcp(cx: &Context<'_>, host: &HostId) -> Option<u32> {
    // One query per host at a time, whoever claims to be it.
    let permit = cx.server.locking.questions.enter(host.addr)?;
    let asked = Name { name: super::monitors::name_for(cx.server, host.addr)? };
    match callback::stat(&callback_target(cx.server, host.addr), &permit, &asked).await {
        Ok(answer) => Some(answer.state).filter(|state| *state != 0),
        Err(e) => {
            tracing::debug!(host = %host.addr, "could not confirm a restart that a datagram reported: {e}");
            None
        }
    }
}

/// Releases what was taken from a host in shares of this list.
async fn give_up(shares: &ShareList, freed: table::Freed) {
    for (FileId { share, node }, id) in freed.ranges {
        if let Some(share) = shares.of(share) {
            share.vfs.opens().release_ranges(node, id);
        }
    }
    for (share, open) in freed.shares {
        if let Some(share) = shares.of(share) {
            super::v4::close_open(&share.vfs, open).await;
        }
    }
}

/// Releases what hosts hold, and ends their waits, in shares of the list `old` that are no longer served.
pub(super) async fn release(server: &Server, old: &ShareList, gone: &[ShareKey]) {
    let table = &server.locking.table;
    for host in table.hosts_known() {
        give_up(old, table.free(&host, |share, _| gone.contains(&share))).await;
    }
}

#[cfg(test)]
mod tests;
