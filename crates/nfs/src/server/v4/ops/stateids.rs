//! TEST_STATEID, FREE_STATEID, DELEGRETURN and WANT_DELEGATION (RFC 8881 18.48, 18.38, 18.6, 18.49).

use weft_store::Kind as NodeKind;
use weft_wire::nfs4::{DelegClaim, Delegation, Stateid, Status, WantDelegation, share};

use super::super::close::close;
use super::super::compound::Compound;
use super::super::delegations;
use super::super::io;
use super::super::names::status;
use super::super::state::{Kind, LockedBy};
use crate::server::caller::{READ, WRITE};
use crate::server::guard;

/// The status that a use of the state id would return.
pub fn test(c: &Compound<'_>, stateid: &Stateid) -> Status {
    match c.speaker().and_then(|speaker| c.cx.server.states.current(stateid, speaker)) {
        Ok(_) => Status::OK,
        Err(status) => status,
    }
}

pub async fn free(c: &Compound<'_>, stateid: &Stateid) -> Result<(), Status> {
    let states = &c.cx.server.states;
    let named = io::actual(c, stateid)?;
    let state = states.find(&named, c.speaker()?)?;
    if let Some(right) = state.delegation() {
        // RFC 8881 18.38.3: FREE_STATEID acknowledges a revoked state.
        if !right.is_revoked() {
            return Err(Status::LOCKS_HELD);
        }
        states.drop_delegation(&state);
        close(&state).await;
        return Ok(());
    }
    let state = states.current(&named, c.speaker()?)?;
    let Kind::Lock { id, ranges, .. } = &state.kind else { return Err(Status::LOCKS_HELD) };
    let node = c.node_of(state.file).ok_or(Status::BAD_STATEID)?;
    let by = LockedBy { opens: node.share.vfs.opens(), node: state.file.node, owner: *id };
    if !ranges.end_empty(by) {
        return Err(Status::LOCKS_HELD);
    }
    states.drop_locks(&state);
    Ok(())
}

pub async fn delegreturn(c: &Compound<'_>, stateid: &Stateid) -> Result<(), Status> {
    let node = c.node()?;
    let states = &c.cx.server.states;
    let state = states.current(&io::actual(c, stateid)?, c.speaker()?)?;
    if state.delegation().is_none() || state.file != node.file() {
        return Err(Status::BAD_STATEID);
    }
    state.lease.renew(c.now);
    states.drop_delegation(&state);
    close(&state).await;
    Ok(())
}

/// WANT_DELEGATION: the delegation that an OPEN would be granted, without an open.
pub async fn want(c: &Compound<'_>, args: &WantDelegation) -> Result<Delegation, Status> {
    let node = c.node()?;
    let attr = node.attr().await?;
    if attr.kind != NodeKind::File {
        return Err(Status::WRONG_TYPE);
    }
    let client = c.client(0)?;
    match args.claim {
        DelegClaim::Fh => {}
        DelegClaim::Previous(_) => return Err(Status::NO_GRACE),
        DelegClaim::PrevFh => return Err(Status::NOTSUPP),
    }
    if args.want & !(share::WANT_DELEG_MASK | share::WANT_SIGNAL | share::WANT_PUSH) != 0 {
        return Err(Status::INVAL);
    }
    let (data, rights) = match args.want & share::WANT_DELEG_MASK {
        share::WANT_READ_DELEG => (share::READ, READ),
        share::WANT_WRITE_DELEG | share::WANT_ANY_DELEG => (share::BOTH, READ | WRITE),
        share::WANT_NO_DELEG | share::WANT_CANCEL => (0, 0),
        _ => return Err(Status::INVAL),
    };
    node.check_open(&c.cx.caller, &attr, rights).await.map_err(|e| status(&e))?;
    node.admit(c.cx, &attr, guard::data(rights)).await.map_err(|e| status(&e))?;
    c.cx.server.states.remember(&client)?;
    Ok(delegations::grant(c, &client, &node, args.want | data, None).await)
}
