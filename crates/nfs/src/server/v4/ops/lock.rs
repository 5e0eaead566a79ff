//! LOCK, LOCKT, LOCKU and RELEASE_LOCKOWNER (RFC 8881 18.10 to 18.12; RFC 7530 16.10 to 16.12, 16.37).
//!
//! The store's table of opens holds the ranges, together with those of SMB. No request blocks here: a client that
//! waits repeats its request, and with sessions it is notified when the lock may be free (RFC 8881 20.11).

use std::sync::Arc;

use bytes::Bytes;
use weft_machine::budget::Full;
use weft_machine::{recorder, rt};
use weft_store::Kind as NodeKind;
use weft_store::opens::{Conflict, LockOwner as Id, Range, Refused, SetFailed};
use weft_wire::nfs4::{
    CbNotifyLock, CbOp, Lock, LockDenied, LockType, Locker, Lockt, Locku, Opaque, Owner as WireOwner,
    Stateid, Status, share,
};

use super::super::close::give_back;
use super::super::compound::Compound;
use super::super::fs_object::{FsObject, no_file};
use super::super::io;
use super::super::state::budget::no_room;
use super::super::state::clients::NotHeld;
use super::super::state::{
    Kind, LockOwner, LockedBy, OwnerSequence, Ranges, SequenceCheck, State, Unchanged,
};
use super::open::clear;
use crate::server::context::Node;

/// Most denied locks of a client for which it is notified.
const MAX_AWAITED: usize = 256;

/// Why locking a range failed.
enum Failed {
    Status(Status),
    Denied(LockDenied),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Failed {
        Failed::Status(status)
    }
}

pub async fn lock(c: &mut Compound<'_>, n: u32, args: Lock) -> Status {
    let node = match c.node() {
        Ok(node) => node,
        Err(status) => return c.put::<()>(n, Err(status)),
    };
    match &args.locker {
        Locker::New { open_seqid, open_stateid, lock_seqid, owner } => {
            let seqids = (*open_seqid, *lock_seqid);
            first(c, n, &node, &args, open_stateid, seqids, owner).await
        }
        Locker::Known { stateid, seqid } => {
            in_turn(c, n, *seqid, stateid, async |c, state| set(c, &node, &args, state).await).await
        }
    }
}

/// The first lock of an owner under an open, in the sequence of both owners.
async fn first(
    c: &mut Compound<'_>,
    n: u32,
    node: &Node<'_>,
    args: &Lock,
    stateid: &Stateid,
    (open_seqid, lock_seqid): (u32, u32),
    owner: &WireOwner,
) -> Status {
    let found = io::actual(c, stateid).and_then(|stateid| c.cx.server.states.find(&stateid, c.speaker()?));
    let open = match found {
        Ok(state) if state.file == node.file() => state,
        Ok(_) => return c.put::<()>(n, Err(Status::BAD_STATEID)),
        Err(status) => return c.put::<()>(n, Err(status)),
    };
    let Kind::Open { owner: open_owner, .. } = &open.kind else {
        return c.put::<()>(n, Err(Status::BAD_STATEID));
    };
    let mut turn = open_owner.turn().await;
    if let Some(ended) = c.out_of_turn(&turn, open_seqid, n) {
        return ended;
    }
    let at = c.reply.next_result();
    let result = async {
        let named = io::actual(c, stateid)?;
        if open.has_ended() || (c.minor == 0 && !open_owner.is_confirmed()) {
            return Err(Status::BAD_STATEID.into());
        }
        open.is_current(named.seqid, c.minor > 0)?;
        let client = c.client(owner.client)?;
        if client.id != open.lease.client {
            return Err(Status::BAD_STATEID.into());
        }
        let lock_owner = client.lock_owner(&owner.owner.0, c.cx.server.states.limits.owners);
        let lock_owner = lock_owner.map_err(|full| no_room(full, c.minor))?;
        let mut lock_turn = lock_owner.turn().await;
        if c.minor == 0
            && !lock_turn.is_new()
            && !matches!(lock_turn.check(lock_seqid, n)?, SequenceCheck::Next)
        {
            return Err(Status::BAD_SEQID.into());
        }
        let known = open.held().locks.iter().find(|state| is_of(state, &lock_owner)).cloned();
        let opens = node.share.vfs.opens();
        let id = lock_owner.id(node.share.key(), || opens.lock_owner());
        let result = match known {
            Some(state) => set(c, node, args, &state).await,
            None => {
                let room = client.state_room().and_then(|charge| Ok((charge, client.ranges()?)));
                let (charge, ranges) = room.map_err(|full| no_room(full, c.minor))?;
                take(c, node, args, &open, (id, &ranges), &lock_owner.name).await?;
                let kind = Kind::Lock { owner: lock_owner.clone(), id, open: open.clone(), ranges };
                let state = c.cx.server.states.enter(open.lease.clone(), node, kind, charge);
                // Entered under its open first: revoking an open closes all locks entered under it.
                let held = match enter(&open, &state) {
                    true => client.hold(&state, &c.cx.server.shares),
                    false => Err(NotHeld::Expired),
                };
                match held {
                    Ok(()) => Ok(state.stateid()),
                    Err(why) => {
                        give_back(c.cx.server, state).await;
                        Err(Status::from(why).into())
                    }
                }
            }
        };
        if c.minor == 0 {
            // The lock owner's sequence number advances; the open owner caches the reply.
            lock_turn.advance(lock_seqid, result.as_ref().map_or_else(Failed::status, |_| Status::OK));
        }
        result
    };
    let result = result.await;
    let ended = c.put_lock(n, result);
    if c.minor == 0 {
        turn.answered(open_seqid, c.answered(n, ended, at));
    }
    ended
}

/// Enters locks under their open, unless that was closed meanwhile; then the two would keep each other alive forever.
fn enter(open: &State, locks: &Arc<State>) -> bool {
    let mut held = open.held_mut();
    let is_open = held.open.is_some();
    if is_open {
        held.locks.push(locks.clone());
    }
    is_open
}

fn is_of(state: &State, owner: &Arc<LockOwner>) -> bool {
    matches!(&state.kind, Kind::Lock { owner: known, .. } if Arc::ptr_eq(known, owner))
}

/// An operation on existing locks, in their owner's sequence.
async fn in_turn(
    c: &mut Compound<'_>,
    n: u32,
    seqid: u32,
    stateid: &Stateid,
    act: impl AsyncFnOnce(&Compound<'_>, &Arc<State>) -> Result<Stateid, Failed>,
) -> Status {
    let found = c.node().and_then(|node| {
        let state = c.cx.server.states.find(&io::actual(c, stateid)?, c.speaker()?)?;
        let here = state.file == node.file();
        match &state.kind {
            Kind::Lock { owner, .. } if here => Ok((state.clone(), owner.clone())),
            _ => Err(Status::BAD_STATEID),
        }
    });
    let (state, owner) = match found {
        Ok(found) => found,
        Err(status) => return c.put::<()>(n, Err(status)),
    };
    let mut turn: futures_util::lock::OwnedMutexGuard<OwnerSequence> = owner.turn().await;
    if let Some(ended) = c.out_of_turn(&turn, seqid, n) {
        return ended;
    }
    let at = c.reply.next_result();
    let usable = match () {
        () if state.has_ended() => Err(Status::BAD_STATEID),
        () => io::actual(c, stateid).and_then(|named| state.is_current(named.seqid, c.minor > 0)),
    };
    let result = match usable {
        Ok(()) => {
            state.lease.renew(c.now);
            act(c, &state).await
        }
        Err(status) => Err(status.into()),
    };
    let ended = c.put_lock(n, result);
    if c.minor == 0 {
        turn.answered(seqid, c.answered(n, ended, at));
    }
    ended
}

/// Locks one more range.
async fn set(c: &Compound<'_>, node: &Node<'_>, args: &Lock, state: &Arc<State>) -> Result<Stateid, Failed> {
    let Kind::Lock { id, open, owner, ranges } = &state.kind else { return Err(Status::BAD_STATEID.into()) };
    take(c, node, args, open, (*id, ranges), &owner.name).await?;
    Ok(state.changed())
}

async fn take(
    c: &Compound<'_>,
    node: &Node<'_>,
    args: &Lock,
    open: &State,
    (id, ranges): (Id, &Ranges),
    name: &Bytes,
) -> Result<(), Failed> {
    let range = range(args.offset, args.length)?;
    let grace = &c.cx.server.states.grace;
    match (args.reclaim, grace.lasts(c.now)) {
        (true, false) => return Err(Status::NO_GRACE.into()),
        (false, true) => return Err(Status::GRACE.into()),
        _ => {}
    }
    let needed = if args.kind.exclusive { share::WRITE } else { share::READ };
    if open.held().access & needed == 0 {
        return Err(Status::OPENMODE.into());
    }
    let opens = node.share.vfs.opens();
    let key = open.held().open.as_ref().map(weft_store::opens::Open::key);
    let set = || opens.try_set_range_as(node.id, key, id, range, args.kind.exclusive);
    let by = LockedBy { opens, node: node.id, owner: id };
    let attempt = || match ranges.lock(by, set) {
        Ok(done) => Ok(done),
        Err(Unchanged::Full) => Ok(Err(SetFailed::Refused(Refused::Limit("memory for byte-range locks")))),
        // Closed or revoked in the meantime.
        Err(Unchanged::Ended) => Err(Status::BAD_STATEID),
    };
    let mut done = attempt()?;
    if matches!(done, Err(SetFailed::Conflict(_))) && clear(c, node).await {
        done = attempt()?;
    }
    match done {
        Ok(()) => Ok(()),
        Err(SetFailed::Conflict(conflict)) => {
            if args.kind.waits && c.minor > 0 {
                tell_when_free(c, node, open, (id, name), range, args.kind.exclusive).await;
            }
            Err(Failed::Denied(denied(c, node, &conflict)))
        }
        Err(SetFailed::Refused(Refused::Limit(_))) if c.minor == 0 => Err(Status::RESOURCE.into()),
        Err(SetFailed::Refused(Refused::Limit(_))) => Err(Status::DELAY.into()),
        Err(SetFailed::Refused(_)) => Err(Status::INVAL.into()),
    }
}

/// Sends CB_NOTIFY_LOCK to the owner once the conflict is gone; one at a time for each file and owner. A client that
/// hears nothing repeats its request, so a lost notification does no harm.
async fn tell_when_free(
    c: &Compound<'_>,
    node: &Node<'_>,
    open: &State,
    (id, name): (Id, &Bytes),
    range: Range,
    exclusive: bool,
) {
    let states = &c.cx.server.states;
    let Some(client) = states.holder(&open.lease) else { return };
    let Ok(handle) = FsObject::Node(*node).handle(c.cx).await else { return };
    if !client.back().is_some_and(|back| back.is_up()) {
        return;
    }
    let Ok(charge) = client.awaited_room() else { return };
    let awaited = (node.file(), id);
    {
        let mut mine = client.mine();
        if mine.awaited.len() >= MAX_AWAITED || !mine.awaited.insert(awaited) {
            return;
        }
    }
    let (opens, file, lease) = (node.share.vfs.opens().clone(), node.id, states.limits.lease);
    let owner = WireOwner { client: client.id, owner: Opaque(name.clone()) };
    let client = Arc::downgrade(&client);
    rt::spawn(async move {
        let _charge = charge;
        recorder::is_patient();
        let freed = rt::timeout(lease, opens.range_freed(file, id, range, exclusive)).await;
        let Some(client) = client.upgrade() else { return };
        client.mine().awaited.remove(&awaited);
        if let (Ok(Ok(())), Some(back)) = (freed, client.back()) {
            back.ask(CbOp::NotifyLock(CbNotifyLock { handle, owner }), drop);
        }
    })
    .detach();
}

/// RFC 8881 18.10.3: neither empty nor beyond the last possible byte.
fn range(offset: u64, length: u64) -> Result<Range, Status> {
    Range::to_end(offset, length).ok_or(Status::INVAL)
}

/// The holder of the conflicting lock. An SMB open has no owner name.
fn denied(c: &Compound<'_>, node: &Node<'_>, conflict: &Conflict) -> LockDenied {
    let states = &c.cx.server.states;
    let owner = conflict.owner.and_then(|id| states.lock_owner_of(node.share.key(), id));
    let owner = match owner {
        Some(owner) => WireOwner { client: states.shown(owner.client), owner: Opaque(owner.name.clone()) },
        None => WireOwner { client: 0, owner: Opaque::default() },
    };
    let length = if conflict.range.is_to_end() { u64::MAX } else { conflict.range.len };
    let kind = LockType { exclusive: conflict.exclusive, waits: false };
    LockDenied { offset: conflict.range.offset, length, kind, owner }
}

/// `Some`: the conflicting lock.
pub async fn lockt(c: &Compound<'_>, args: Lockt) -> Result<Option<LockDenied>, Status> {
    let node = c.node()?;
    let client = c.client(args.owner.client)?;
    let kind = node.attr().await?.kind;
    if kind != NodeKind::File {
        return Err(no_file(kind, c.minor));
    }
    let range = range(args.offset, args.length)?;
    if c.cx.server.states.grace.lasts(c.now) {
        return Err(Status::GRACE);
    }
    let opens = node.share.vfs.opens();
    let known = client.mine().lock_owners.get(&args.owner.owner.0).cloned();
    // The id of an owner without locks matches nobody.
    let id =
        known.map_or_else(|| opens.lock_owner(), |owner| owner.id(node.share.key(), || opens.lock_owner()));
    let test = || opens.test_range(node.id, id, range, args.kind.exclusive);
    let mut conflict = test();
    if conflict.is_some() && clear(c, &node).await {
        conflict = test();
    }
    Ok(conflict.map(|conflict| denied(c, &node, &conflict)))
}

pub async fn locku(c: &mut Compound<'_>, n: u32, args: &Locku) -> Status {
    in_turn(c, n, args.seqid, &args.stateid, async |c, state| {
        let range = range(args.offset, args.length)?;
        let node = c.node()?;
        let Kind::Lock { id, ranges, .. } = &state.kind else { return Err(Status::BAD_STATEID.into()) };
        let opens = node.share.vfs.opens();
        let clear = || opens.clear_range(node.id, *id, range);
        // Splitting a range may need memory for one more than the limit allows.
        let cleared = ranges.unlock(LockedBy { opens, node: node.id, owner: *id }, range, clear);
        let cleared = cleared.map_err(|unchanged| match unchanged {
            Unchanged::Full => no_room(Full, c.minor),
            Unchanged::Ended => Status::BAD_STATEID,
        })?;
        cleared.map_err(|_| no_room(Full, c.minor))?;
        Ok(state.changed())
    })
    .await
}

pub async fn release_lockowner(c: &Compound<'_>, owner: &WireOwner) -> Result<(), Status> {
    let client = c.client(owner.client)?;
    let Some(owner) = client.mine().lock_owners.get(&owner.owner.0).cloned() else { return Ok(()) };
    let _turn = owner.turn().await;
    let states: Vec<_> =
        client.mine().states.values().filter(|state| is_of(state, &owner)).cloned().collect();
    for state in &states {
        let Kind::Lock { id, .. } = &state.kind else { continue };
        let Some(node) = c.node_of(state.file) else { continue };
        if node.share.vfs.opens().holds_ranges(state.file.node, *id) {
            return Err(Status::LOCKS_HELD);
        }
    }
    states.iter().for_each(|state| c.cx.server.states.drop_locks(state));
    client.mine().lock_owners.remove(&owner.name);
    Ok(())
}

impl Failed {
    fn status(&self) -> Status {
        match self {
            Failed::Status(status) => *status,
            Failed::Denied(_) => Status::DENIED,
        }
    }
}

impl Compound<'_> {
    fn put_lock(&mut self, n: u32, result: Result<Stateid, Failed>) -> Status {
        match result {
            Ok(stateid) => {
                self.stateid = Some(stateid);
                self.put(n, Ok(stateid))
            }
            Err(Failed::Status(status)) => self.put::<()>(n, Err(status)),
            Err(Failed::Denied(denied)) => self.denied(n, &denied),
        }
    }
}
