//! LOCK: byte-range locks.
//!
//! Spec: [MS-SMB2] 3.3.5.14, [MS-FSA] 2.1.5.8, 2.1.5.9. The locks are in the store's table of opens; repeated LOCKs are
//! recognized by the open's [`super::lock_sequences::LockSequences`].

use futures_util::future::{Either, select};
use std::pin::pin;
use weft_machine::recorder;
use weft_store::opens::{LockedRange, Range, Refused};
use weft_store::vfs::Kind;
use weft_wire::smb2::lock::{Element, Flags, Request, Response};
use weft_wire::smb2::negotiate::Capabilities;
use weft_wire::smb2::{Dialect, NtStatus};

use super::opens::Open;
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

pub(super) async fn lock(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = cx.open(request.file)?;
    if open.kind == Kind::Dir {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    // 3.3.5.14: done before, and repeated because its client got no answer.
    let sequenced = open.durable.get().is_some()
        || cx.connection().negotiated().server_capabilities.contains(Capabilities::MULTI_CHANNEL);
    let sequenced = sequenced && cx.dialect() >= Dialect::V2_1;
    if sequenced && open.locks.was_done(request.sequence) {
        return done();
    }
    let changed = match request.locks.first() {
        Some(first) if first.flags.contains(Flags::UNLOCK) => {
            Changed::Unlocked(unlock_all(&open, &request.locks)?)
        }
        Some(_) => Changed::Locked(lock_all(cx, &open, &request.locks).await?),
        None => return Err(NtStatus::INVALID_PARAMETER.into()),
    };
    if sequenced {
        open.locks.done(request.sequence);
    }
    if let Err(status) = open.save_record().await {
        // A change that would not survive a restart is neither acknowledged nor carried out.
        open.locks.forget(request.sequence);
        changed.undo(&open);
        return Err(status.into());
    }
    done()
}

/// The effect of a LOCK, needed to undo it.
enum Changed {
    Locked(Vec<Range>),
    Unlocked(Vec<LockedRange>),
}

impl Changed {
    /// A range that another client has locked meanwhile stays with that client; ours gets an error in any case.
    fn undo(self, open: &Open) {
        match self {
            Changed::Locked(ranges) => unlock_each(open, ranges),
            Changed::Unlocked(ranges) => {
                for LockedRange { range, exclusive } in ranges {
                    if open.lock_again(range, exclusive).is_err() {
                        tracing::warn!(
                            "cannot restore a lock after a failed unlock: another client has locked the range"
                        );
                    }
                }
            }
        }
    }
}

fn unlock_each(open: &Open, ranges: Vec<Range>) {
    for range in ranges {
        // Fails only if the handle was closed meanwhile.
        let _ = open.unlock(range);
    }
}

fn done() -> Answer {
    let mut reply = Reply::new();
    Response.emit(&mut reply.message);
    Ok(reply)
}

fn range(element: &Element) -> Result<Range, NtStatus> {
    Range::new(element.offset, element.length).ok_or(NtStatus::INVALID_LOCK_RANGE)
}

/// 3.3.5.14.1: ranges before a failure stay unlocked.
fn unlock_all(open: &Open, elements: &[Element]) -> Result<Vec<LockedRange>, Failure> {
    // Only a persistent handle may need to undo it.
    let held = if open.is_persistent() { open.claim.locked() } else { Vec::new() };
    let mut unlocked = Vec::new();
    for element in elements {
        // FAIL_IMMEDIATELY could be ignored; Windows refuses it.
        if element.flags != Flags::UNLOCK {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
        let range = range(element)?;
        open.unlock(range)?;
        unlocked.extend(held.iter().find(|known| known.range == range));
    }
    Ok(unlocked)
}

/// 3.3.5.14.2: all ranges or none.
async fn lock_all(cx: &OpContext, open: &Open, elements: &[Element]) -> Result<Vec<Range>, Failure> {
    let at_once = |element: &Element| element.flags.contains(Flags::FAIL_IMMEDIATELY);
    if elements.len() > 1 && !elements.iter().all(at_once) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let mut taken = Vec::with_capacity(elements.len());
    for element in elements {
        match lock_one(cx, open, element).await {
            Ok(range) => taken.push(range),
            Err(failure) => {
                unlock_each(open, taken);
                return Err(failure);
            }
        }
    }
    Ok(taken)
}

async fn lock_one(cx: &OpContext, open: &Open, element: &Element) -> Result<Range, Failure> {
    let exclusive = match element.flags.without(Flags::FAIL_IMMEDIATELY) {
        Flags::EXCLUSIVE_LOCK => true,
        Flags::SHARED_LOCK => false,
        _ => return Err(NtStatus::INVALID_PARAMETER.into()),
    };
    let range = range(element)?;
    let charge = open.lock_charge()?;
    match open.claim.try_lock(range, exclusive) {
        Ok(()) => {
            open.locked(charge);
            return Ok(range);
        }
        Err(Refused::Locked) if element.flags.contains(Flags::FAIL_IMMEDIATELY) => {
            return Err(NtStatus::LOCK_NOT_GRANTED.into());
        }
        Err(Refused::Locked) => {}
        Err(refused) => return Err(refused.into()),
    }
    cx.pending();
    recorder::is_patient();
    match select(pin!(open.claim.lock(range, exclusive)), pin!(cx.cancelled())).await {
        Either::Left((Ok(()), _)) => {
            open.locked(charge);
            Ok(range)
        }
        // The open was closed while this waited.
        Either::Left((Err(Refused::NotLocked), _)) => Err(NtStatus::RANGE_NOT_LOCKED.into()),
        Either::Left((Err(refused), _)) => Err(refused.into()),
        Either::Right(((), _)) => Err(NtStatus::CANCELLED.into()),
    }
}
