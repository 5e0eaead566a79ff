//! Decides by which right data is read or written: a state id, or none.
//!
//! See RFC 7530 9.1.4.3 and 9.1.6, RFC 8881 8.2.3 and 9.1.2 (special state ids, locked). A request with an open uses
//! the open's file; one without checks share modes and uses the cache of open files.

use std::sync::Arc;

use weft_store::opens::{Access, Range, Refused, Rights};
use weft_store::{Attr, Error, Kind, OpenFile};
use weft_wire::nfs4::{Stateid, Status, share};

use super::compound::Compound;
use super::fs_object::no_file;
use super::names::status;
use super::state::{Speaker, State, States};
use crate::server::caller::{Caller, READ, WRITE};
use crate::server::context::{Context, Node};
use crate::server::guard;

/// The intended operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    /// Read this range.
    Read(u64, u64),
    /// Write this range.
    Write(u64, u64),
    /// Set the size.
    Resize,
}

impl Intent {
    fn writes(self) -> bool {
        !matches!(self, Intent::Read(..))
    }
}

/// The live state that a state id names on the current node. `None`: a special state id, which names no state.
pub(super) fn state(
    c: &Compound<'_>,
    node: &Node<'_>,
    stateid: &Stateid,
) -> Result<Option<Arc<State>>, Status> {
    let named = actual(c, stateid)?;
    if named == Stateid::ANONYMOUS || named == Stateid::BYPASS {
        return Ok(None);
    }
    let state = state_now(&c.cx.server.states, c.speaker()?, node, &named)?;
    state.lease.renew(c.now);
    Ok(Some(state))
}

/// The same for a state id that is no special one; the lease is not renewed.
fn state_now(
    states: &States,
    speaker: Speaker<'_>,
    node: &Node<'_>,
    stateid: &Stateid,
) -> Result<Arc<State>, Status> {
    let state = states.current(stateid, speaker)?;
    if state.file != node.file() {
        return Err(Status::BAD_STATEID);
    }
    // Only owners of minor version 0 are confirmed.
    if !speaker.has_session() && state.open_owner().is_some_and(|owner| !owner.is_confirmed()) {
        return Err(Status::BAD_STATEID);
    }
    Ok(state)
}

/// Resolves a state id: with sessions, one special value stands for the current state id (RFC 8881 16.2.3.1.2).
pub(super) fn actual(c: &Compound<'_>, stateid: &Stateid) -> Result<Stateid, Status> {
    if c.minor > 0 && *stateid == Stateid::CURRENT {
        c.stateid.ok_or(Status::BAD_STATEID)
    } else {
        Ok(*stateid)
    }
}

/// The open file, if the state id permits the operation.
pub(super) async fn file(
    c: &Compound<'_>,
    node: &Node<'_>,
    stateid: &Stateid,
    intent: Intent,
) -> Result<OpenFile, Status> {
    file_in(c, c.cx, node, stateid, intent).await
}

/// The same for a node whose share may not be that of the current file handle; `cx` is the context for its share.
pub(super) async fn file_in(
    c: &Compound<'_>,
    cx: &Context<'_>,
    node: &Node<'_>,
    stateid: &Stateid,
    intent: Intent,
) -> Result<OpenFile, Status> {
    if intent.writes() {
        may_write(node, &cx.caller).map_err(|e| status(&e))?;
    }
    let Some(state) = state(c, node, stateid)? else {
        return without_open(c, cx, node, stateid, intent).await;
    };
    let (file, opener) = opened(&state, intent)?;
    if opener != cx.caller.uid() {
        // A state id is not a secret: another caller that sends it has only the rights of the mode bits.
        let wanted = if intent.writes() { WRITE } else { READ };
        let attr = node.attr().await?;
        node.check_data(&cx.caller, &attr, wanted).await.map_err(|e| status(&e))?;
        node.admit(cx, &attr, guard::data(wanted)).await.map_err(|e| status(&e))?;
    }
    Ok(file)
}

/// The same with its state, whose lease is not renewed, if the state id alone decides: it is no special one, and the caller has
/// opened the file. `None`: see `file`.
pub(super) fn file_now(
    (states, speaker): (&States, Speaker<'_>),
    node: &Node<'_>,
    caller: &Caller,
    stateid: &Stateid,
    intent: Intent,
) -> Option<(OpenFile, Arc<State>)> {
    if intent.writes() {
        may_write(node, caller).ok()?;
    }
    let state = state_now(states, speaker, node, stateid).ok()?;
    let (file, opener) = opened(&state, intent).ok()?;
    (opener == caller.uid()).then_some((file, state))
}

/// The share may have become read-only since the open.
fn may_write(node: &Node<'_>, caller: &Caller) -> Result<(), Error> {
    if node.share.vfs.is_read_only() { Err(Error::ReadOnly) } else { caller.check_writable(WRITE) }
}

/// The file of an open that permits the operation and is not blocked by locks, and the user who opened it.
fn opened(state: &State, intent: Intent) -> Result<(OpenFile, u32), Status> {
    let held = state.held();
    let Some(open) = &held.open else { return Err(Status::BAD_STATEID) };
    let needed = if intent.writes() { share::WRITE } else { share::READ };
    if held.access & needed == 0 {
        return Err(Status::OPENMODE);
    }
    match intent {
        Intent::Read(offset, len) => open.may_transfer(offset, len, false),
        Intent::Write(offset, len) => open.may_transfer(offset, len, true),
        Intent::Resize => open.may_transfer(0, u64::MAX, true),
    }
    .map_err(|refused| if refused == Refused::Closed { Status::BAD_STATEID } else { Status::LOCKED })?;
    Ok((held.file.clone(), held.opener))
}

/// RFC 7530 9.1.4.3: without a state, other clients' share modes and SMB's locks decide.
async fn without_open(
    c: &Compound<'_>,
    cx: &Context<'_>,
    node: &Node<'_>,
    stateid: &Stateid,
    intent: Intent,
) -> Result<OpenFile, Status> {
    let attr: Attr = node.attr().await?;
    if attr.kind != Kind::File {
        return Err(no_file(attr.kind, c.minor));
    }
    let wanted = if intent.writes() { WRITE } else { READ };
    node.check_data(&cx.caller, &attr, wanted).await.map_err(|e| status(&e))?;
    if cx.server.states.grace.lasts(c.now) {
        return Err(Status::GRACE);
    }
    let opens = node.share.vfs.opens();
    let (access, rights) = match intent {
        Intent::Resize => (Access::Overwrite, Rights::WRITE),
        Intent::Write(..) => (Access::Write, Rights::WRITE),
        Intent::Read(..) => (Access::Read, Rights::READ),
    };
    // All ones bypass locks for reading; for writing they mean the same as all zeros.
    if intent.writes() || *stateid != Stateid::BYPASS {
        opens.pass(node.id, access, rights).await.map_err(locked)?;
        let (offset, len) = match intent {
            Intent::Read(offset, len) | Intent::Write(offset, len) => (offset, len),
            Intent::Resize => (0, u64::MAX),
        };
        if let Some(range) = Range::new(offset, len) {
            opens.may_transfer(node.id, range, intent.writes()).map_err(locked)?;
        }
    }
    let files = &cx.server.files;
    let opened = files.open_as(&node.share.vfs, node.share.key(), &attr, intent.writes(), &cx.caller).await;
    opened.map_err(|e| status(&e))
}

fn locked(refused: Refused) -> Status {
    match refused {
        Refused::Limit(_) => Status::DELAY,
        _ => Status::LOCKED,
    }
}
