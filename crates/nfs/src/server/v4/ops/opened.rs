//! OPEN_CONFIRM, OPEN_DOWNGRADE and CLOSE: an owner's operations on an open (RFC 8881 18.18, 18.2; RFC 7530 16.18,
//! 16.19, 16.2).

use std::sync::Arc;

use weft_store::opens::Refused;
use weft_wire::nfs4::{Close, OpenConfirm, OpenDowngrade, Stateid, Status, share};

use super::super::close;
use super::super::compound::Compound;
use super::super::io;
use super::super::state::{Kind, Owner, OwnerSequence, State};
use super::open::{bit, rights, sharing};

/// An operation of an open's owner, in its sequence.
async fn in_turn(
    c: &mut Compound<'_>,
    n: u32,
    seqid: u32,
    stateid: &Stateid,
    confirmed: bool,
    act: impl AsyncFnOnce(&Compound<'_>, &Arc<State>, &Owner, &mut OwnerSequence) -> Result<Stateid, Status>,
) -> Status {
    let (state, owner) = match find(c, stateid) {
        Ok(found) => found,
        Err(status) => return c.put::<()>(n, Err(status)),
    };
    let mut turn = owner.turn().await;
    if let Some(ended) = c.out_of_turn(&turn, seqid, n) {
        return ended;
    }
    let at = c.reply.next_result();
    let usable = match () {
        () if state.has_ended() => Err(Status::BAD_STATEID),
        () if owner.is_confirmed() != confirmed => Err(Status::BAD_STATEID),
        () => {
            let seqid = io::actual(c, stateid).map(|stateid| stateid.seqid);
            seqid.and_then(|seqid| state.is_current(seqid, c.minor > 0))
        }
    };
    let result = match usable {
        Ok(()) => {
            state.lease.renew(c.now);
            if let Ok(client) = c.client(state.lease.client) {
                c.forget_closed(&client, &mut turn);
            }
            act(c, &state, &owner, &mut turn).await
        }
        Err(status) => Err(status),
    };
    if let Ok(stateid) = result {
        c.stateid = Some(stateid);
    }
    let ended = c.put(n, result);
    if c.minor == 0 {
        turn.answered(seqid, c.answered(n, ended, at));
    }
    ended
}

/// The open with this state id on the current file, closed or not.
fn find(c: &Compound<'_>, stateid: &Stateid) -> Result<(Arc<State>, Arc<Owner>), Status> {
    let object = c.object()?;
    let state = c.cx.server.states.find(&io::actual(c, stateid)?, c.speaker()?)?;
    let Kind::Open { owner, .. } = &state.kind else { return Err(Status::BAD_STATEID) };
    let owner = owner.clone();
    match object {
        super::super::fs_object::FsObject::Node(node) if node.file() == state.file => Ok((state, owner)),
        _ => Err(Status::BAD_STATEID),
    }
}

pub async fn confirm(c: &mut Compound<'_>, n: u32, args: &OpenConfirm) -> Status {
    in_turn(c, n, args.seqid, &args.stateid, false, async |_, state, owner, _| {
        owner.confirm();
        Ok(state.changed())
    })
    .await
}

pub async fn downgrade(c: &mut Compound<'_>, n: u32, args: &OpenDowngrade) -> Status {
    let (access, deny) = (args.access & !share::WANT_DELEG_MASK, args.deny);
    in_turn(c, n, args.seqid, &args.stateid, true, async |_, state, _, _| {
        if access == 0 || access > share::BOTH || deny > share::BOTH {
            return Err(Status::INVAL);
        }
        let mut held = state.held_mut();
        let kept = reduced(held.asked, access, deny).ok_or(Status::INVAL)?;
        let Some(open) = &held.open else { return Err(Status::BAD_STATEID) };
        open.change(rights(access), sharing(deny)).map_err(|refused| match refused {
            Refused::Sharing => Status::SHARE_DENIED,
            _ => Status::BAD_STATEID,
        })?;
        (held.access, held.deny, held.asked) = (access, deny, kept);
        drop(held);
        Ok(state.changed())
    })
    .await
}

/// RFC 8881 18.18.3: the remaining access must be the union of some of the OPENs. Returns those that fit.
fn reduced(asked: u16, access: u32, deny: u32) -> Option<u16> {
    let (mut kept, mut union) = (0, (0, 0));
    for a in 1..=share::BOTH {
        for d in 0..=share::BOTH {
            if asked & bit(a, d) != 0 && a & !access == 0 && d & !deny == 0 {
                kept |= bit(a, d);
                union = (union.0 | a, union.1 | d);
            }
        }
    }
    (union == (access, deny)).then_some(kept)
}

pub async fn close(c: &mut Compound<'_>, n: u32, args: &Close) -> Status {
    let ended = in_turn(c, n, args.seqid, &args.stateid, true, async |c, state, _, turn| {
        let locks = std::mem::take(&mut state.held_mut().locks);
        for lock in &locks {
            c.cx.server.states.drop_locks(lock);
            close::close(lock).await;
        }
        close::close(state).await;
        turn.forget(state);
        if c.minor == 0 {
            // The state id stays known, so that the CLOSE can be repeated.
            state.end();
            turn.closed = Some(Arc::downgrade(state));
            return Ok(state.changed());
        }
        c.cx.server.states.leave(state);
        if let Ok(client) = c.client(0) {
            client.mine().states.remove(&state.other);
        }
        // RFC 8881 18.2.4.
        Ok(Stateid::INVALID)
    })
    .await;
    if ended == Status::OK {
        c.stateid = None;
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_was_asked_for() {
        let asked = bit(1, 0) | bit(2, 3);
        assert_eq!(reduced(asked, 3, 3), Some(asked));
        assert_eq!(reduced(asked, 1, 0), Some(bit(1, 0)));
        assert_eq!(reduced(asked, 2, 3), Some(bit(2, 3)));
        for (access, deny) in [(1, 1), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)] {
            assert_eq!(reduced(asked, access, deny), None);
        }
    }
}
