//! Grants delegations, and answers GETATTR for a file that is delegated for writing.
//!
//! See RFC 8881 10.4, 10.4.3 (attributes of a file that is delegated for writing), 18.16.3 and 20.1, and RFC 9754.
//! The store's table of opens recalls delegations on a conflict.
//!
//! A client gets a delegation if it can be called back, and if the file has no conflicting open now and had none
//! recently: a recall makes two clients wait, so a delegation must pay off over more than one open.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weft_machine::rt;
use weft_store::Attr;
use weft_store::opens::{Access, Caching, Form, Opening, Reach, Refused, Rights};
use weft_wire::nfs4::{
    Ace, Attributes, Bitmap, CbGetattr, CbOp, Delegation as Granted, Fattr, SpaceLimit, Stateid, Status,
    Text, Xdr, attr, share, why_no_delegation as why,
};

use super::compound::Compound;
use super::fs_object::FsObject;
use super::names::status;
use super::state::{Client, Delegation, Held, Kind, Speaker, State};
use crate::server::caller::READ;
use crate::server::context::Node;
use crate::server::guard;

/// How long the writer of a file may take to report its attributes before the delegation is recalled.
const PATIENCE: Duration = Duration::from_secs(5);
/// The attributes requested from the writer.
const ASKED: Bitmap = Bitmap::of(&[attr::CHANGE, attr::SIZE]);
const TIMES: Bitmap = Bitmap::of(&[attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY]);
/// How long an operation that can be delayed waits for a recall.
const MOMENT: Duration = Duration::from_millis(250);

/// Grants the delegation that an OPEN requests; `wishes` is its `share_access`.
pub(super) async fn grant(
    c: &Compound<'_>,
    client: &Arc<Client>,
    node: &Node<'_>,
    wishes: u32,
    open: Option<&State>,
) -> Granted {
    let explicit = wishes & share::WANT_DELEG_MASK != 0 && c.minor > 0;
    let refused = |why| if explicit { Granted::NoneExt(why, false) } else { Granted::None };
    let writes = wishes & share::WRITE != 0;
    let write = match wishes & share::WANT_DELEG_MASK {
        share::WANT_NO_DELEG => return refused(why::NOT_WANTED),
        share::WANT_CANCEL => return refused(why::CANCELLED),
        share::WANT_READ_DELEG => false,
        _ => writes,
    };
    if node.is_attribute() {
        return refused(why::NOT_SUPP_FTYPE);
    }
    // A delegation permits reading, whatever its open permits.
    if wishes & share::READ == 0 && may_read(c, node).await.is_err() {
        return refused(why::RESOURCE);
    }
    let states = &c.cx.server.states;
    if !client.back().is_some_and(|back| back.is_up()) || states.grace.lasts(c.now) {
        return refused(why::RESOURCE);
    }
    if states.delegated.is_contended(node.file(), c.now, states.limits.contention) {
        return refused(why::CONTENTION);
    }
    {
        let mut mine = client.mine();
        if mine.states.len() >= states.limits.states || !mine.delegated.insert(node.file()) {
            return refused(why::RESOURCE);
        }
    }
    let times = c.minor > 1 && wishes & share::WANT_DELEG_TIMESTAMPS != 0;
    let granted = match enter(c, client, node, write, times, open).await {
        // Another client reads the file; a read delegation is still possible.
        Ok(None) if write && !explicit && wishes & share::READ != 0 => {
            enter(c, client, node, false, times, open).await
        }
        granted => granted,
    };
    match granted {
        Ok(Some(state)) => described(&state, write_of(&state), times),
        Ok(None) | Err(_) => {
            client.mine().delegated.remove(&node.file());
            refused(why::CONTENTION)
        }
    }
}

/// Whether the caller may read the file.
async fn may_read(c: &Compound<'_>, node: &Node<'_>) -> Result<(), Status> {
    let attr = node.attr().await?;
    node.check_open(&c.cx.caller, &attr, READ).await.map_err(|e| status(&e))?;
    node.admit(c.cx, &attr, guard::data(READ)).await.map_err(|e| status(&e))
}

fn write_of(state: &State) -> bool {
    state.delegation().is_some_and(|right| right.write)
}

fn described(state: &State, write: bool, times: bool) -> Granted {
    // No local opens: the client asks the server once for each user.
    let nobody = Ace { kind: 0, flags: 0, mask: 0, who: Text::default() };
    let (stateid, recalled) = (state.stateid(), state.delegation().is_some_and(|right| right.is_recalled()));
    match write {
        true => Granted::Write(stateid, recalled, SpaceLimit::Size(u64::MAX), nobody, times),
        false => Granted::Read(stateid, recalled, nobody, times),
    }
}

/// The delegation, unless an open conflicts.
async fn enter(
    c: &Compound<'_>,
    client: &Arc<Client>,
    node: &Node<'_>,
    write: bool,
    times: bool,
    open: Option<&State>,
) -> Result<Option<Arc<State>>, Status> {
    let vfs = &node.share.vfs;
    let states = &c.cx.server.states;
    let key = client.key(node.share.key(), vfs.opens());
    let nothing = Opening::new(Rights::NONE, Rights::ALL, key);
    let opening = Opening { reach: Reach::Attributes, delegates: true, ..nothing };
    let Ok(charge) = client.state_room() else { return Ok(None) };
    let Ok(descriptors) = states.descriptors(client) else { return Ok(None) };
    let Ok(held_open) = vfs.opens().try_open(node.id, &opening) else { return Ok(None) };
    let handle = FsObject::Node(*node).handle(c.cx).await?;
    let lease = states.limits.lease;
    let file = node.file();
    let all = states.delegated.clone();
    let right = Delegation::new(write, times, handle, lease, vfs.opens().clone(), file, key, all);
    let caching = if write { Caching::RWH } else { Caching::RH };
    let (got, recalling) = held_open.request(Form::Delegation, caching, right.clone());
    if got != caching || recalling {
        return Ok(None);
    }
    // From here on, any failure must return it.
    let entered = async {
        let known = open.map(|state| (state.held().access, state.held().file.clone()));
        let file = match known {
            Some((access, file)) if !write || access & share::WRITE != 0 => file,
            _ => vfs.as_server().open(node.id, write).await.map_err(|e| status(&e))?,
        };
        Ok((file, vfs.hold(node.id).await.map_err(|e| status(&e))?))
    };
    let (file, hold) = entered.await.inspect_err(|_: &Status| right.give_back())?;
    let held = Held {
        open: Some(held_open),
        file,
        _descriptors: descriptors,
        opener: c.cx.caller.uid(),
        hold: Some(hold),
        access: if write { share::BOTH } else { share::READ },
        deny: 0,
        locks: Vec::new(),
        asked: 0,
        audited: Vec::new(),
    };
    let kind = Kind::Delegation { held: RwLock::new(held), right: right.clone() };
    let state = states.enter(client.lease.clone(), node, kind, charge);
    states.delegated.enter(&state);
    right.entered(client, &state);
    if client.hold(&state, &c.cx.server.shares).is_ok() {
        return Ok(Some(state));
    }
    super::close::give_back(c.cx.server, state).await;
    Ok(None)
}

/// The delegation under which a client opens a file (CLAIM_DELEGATE_CUR).
pub(super) fn claimed(
    c: &Compound<'_>,
    node: &Node<'_>,
    stateid: &Stateid,
    access: u32,
) -> Result<(), Status> {
    let state = super::io::state(c, node, stateid)?.ok_or(Status::BAD_STATEID)?;
    let right = state.delegation().ok_or(Status::BAD_STATEID)?;
    if access & share::WRITE != 0 && !right.write { Err(Status::INVAL) } else { Ok(()) }
}

/// Admits an operation on a name or on attributes after recalling the clients that cache the file. Waits a moment for
/// their reply; after that, the client is told to try again.
pub(super) async fn pass(node: &Node<'_>, access: Access, rights: Rights) -> Result<(), Status> {
    let opens = node.share.vfs.opens();
    match rt::timeout(MOMENT, opens.pass(node.id, access, rights)).await {
        Ok(passed) => passed.map_err(|refused| status(&refused.into())),
        Err(rt::Elapsed) => Err(Status::DELAY),
    }
}

/// The same for a change of attributes by a client that may itself hold a delegation.
pub(super) async fn clear(c: &Compound<'_>, node: &Node<'_>, access: Access) -> Result<(), Status> {
    let opens = node.share.vfs.opens();
    let speaks = c.turn.as_ref().map(|turn| Speaker::Session(&turn.session));
    let client = speaks.and_then(|speaker| c.cx.server.states.client(speaker, 0).ok());
    let key = client.map(|client| client.key(node.share.key(), opens));
    match rt::timeout(MOMENT, opens.clear(node.id, key, access)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Refused::Limit(_))) | Err(rt::Elapsed) => Err(Status::DELAY),
        Ok(Err(refused)) => Err(status(&refused.into())),
    }
}

/// RFC 8881 10.4.3: fills in the attributes of a file whose write delegation another client holds, including data
/// that it has not written back.
pub(super) async fn as_written(
    c: &Compound<'_>,
    node: &Node<'_>,
    values: &mut Attributes,
) -> Result<(), Status> {
    let Some(state) = c.cx.server.states.delegated.writer(node.file()) else { return Ok(()) };
    let Some(right) = state.delegation().filter(|right| !right.is_revoked()) else { return Ok(()) };
    if c.is_of(&state.lease) {
        return Ok(());
    }
    let known = ask(c, &state, right).await;
    let Some(told) = known else {
        // The writer does not answer, so its delegation is recalled.
        let _ = node.share.vfs.opens().recall(node.id, None, Access::Read);
        return Err(Status::DELAY);
    };
    let Attr { size, .. } = node.attr().await?;
    let mut seen = right.seen.lock().unwrap_or_else(PoisonError::into_inner);
    // The values that it started from are unknown, but they were those of the file: a change shows as another size,
    // or as a change attribute that is not ours.
    let ours = values.change.is_none_or(|change| told.change.is_none_or(|theirs| theirs == change));
    let changed = !ours || told.size.is_some_and(|theirs| theirs != size);
    if changed && seen.told != told {
        seen.changes = seen.changes.wrapping_add(1);
    }
    let changes = seen.changes;
    seen.told = told.clone();
    drop(seen);
    if let (Some(change), true) = (&mut values.change, changes > 0) {
        *change = change.saturating_add(changes);
    }
    if let (Some(size), Some(theirs)) = (&mut values.size, told.size) {
        *size = theirs;
    }
    if let (Some(time), Some(theirs)) = (&mut values.time_access, told.time_deleg_access) {
        *time = theirs;
    }
    if let (Some(time), Some(theirs)) = (&mut values.time_modify, told.time_deleg_modify) {
        *time = theirs;
    }
    Ok(())
}

/// The writer's reply to CB_GETATTR; `None` without one.
async fn ask(c: &Compound<'_>, state: &Arc<State>, right: &Delegation) -> Option<Attributes> {
    let client = c.cx.server.states.holder(&state.lease)?;
    let back = client.back().filter(|back| back.is_up())?;
    let wanted = if right.times { ASKED.or(TIMES) } else { ASKED };
    let heard = Heard::default();
    let tell = heard.clone();
    back.ask(CbOp::Getattr(CbGetattr { handle: right.handle, wanted }), move |answer| {
        let attributes = match answer {
            Ok((Status::OK, mut d)) => Fattr::parse(&mut d).and_then(|fattr| Attributes::parse(&fattr)).ok(),
            _ => None,
        };
        tell.set(attributes);
    });
    rt::timeout(PATIENCE, heard).await.ok().flatten()
}

/// A reply on its way from another core.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    /// `Some(None)`: there will be no reply.
    answer: Option<Option<Attributes>>,
    waiting: Option<Waker>,
}

impl Heard {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, attributes: Option<Attributes>) {
        let waker = {
            let mut slot = self.slot();
            slot.answer = Some(attributes);
            slot.waiting.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Heard {
    type Output = Option<Attributes>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Attributes>> {
        let mut slot = self.slot();
        match slot.answer.take() {
            Some(attributes) => Poll::Ready(attributes),
            None => {
                slot.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
