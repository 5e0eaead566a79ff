//! TEST_STATEID, FREE_STATEID, DELEGRETURN. Spec: RFC 8881 18.48, 18.38, 18.6.

use weft_wire::nfs4::{Stateid, Status};

use super::super::compound::Compound;
use super::super::io;
use super::super::state::Kind;

/// What a use of the state id would answer.
pub fn test(c: &Compound<'_>, stateid: &Stateid) -> Status {
    match c.cx.server.states.current(stateid, c.client_id()) {
        Ok(_) => Status::OK,
        Err(status) => status,
    }
}

pub fn free(c: &Compound<'_>, stateid: &Stateid) -> Result<(), Status> {
    let states = &c.cx.server.states;
    let state = states.current(&io::actual(c, stateid)?, c.client_id())?;
    let Kind::Lock { id, .. } = &state.kind else { return Err(Status::LOCKS_HELD) };
    let node = c.node_of(state.share, state.node).ok_or(Status::BAD_STATEID)?;
    if node.share.vfs.opens().holds_ranges(state.node, *id) {
        return Err(Status::LOCKS_HELD);
    }
    states.drop_locks(&state);
    Ok(())
}

pub fn delegreturn(c: &Compound<'_>, stateid: &Stateid) -> Result<(), Status> {
    c.node()?;
    c.cx.server.states.current(&io::actual(c, stateid)?, c.client_id())?;
    // No state is a delegation.
    Err(Status::BAD_STATEID)
}
