//! OPLOCK_BREAK: the client acknowledges a break of its caching rights.
//!
//! Spec: [MS-SMB2] 3.3.5.22.1 (oplocks), 3.3.5.22.2 (leases). The store's table of opens starts breaks.

use weft_machine::rt;
use weft_store::opens::{AckFailed, Caching as Rights, Waiters};
use weft_wire::smb2::create::OplockLevel;
use weft_wire::smb2::create_context::LeaseState;
use weft_wire::smb2::oplock_break::{Request, Response};
use weft_wire::smb2::{FileId, Guid, NtStatus};

use super::caching::Caching;
use super::caching_rights::level_of;
use super::granting;
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

pub(super) async fn oplock_break(cx: &OpContext) -> Answer {
    let (response, waiters) = match Request::parse(cx.message())? {
        Request::Oplock { level, file } => oplock(cx, level, file)?,
        Request::Lease { key, state } => lease(cx, key, state)?,
    };
    for open in cx.session().opens.select(|open| match (&response, &open.caching) {
        (Response::Oplock { file, .. }, _) => open.persistent == file.persistent,
        (Response::Lease { key, .. }, Caching::Lease(lease)) => lease.key() == *key,
        _ => false,
    }) {
        // A failure is logged. The record then overstates the caching rights, which a reconnecting client is told.
        let _ = open.save_record().await;
    }
    let mut reply = Reply::new();
    response.emit(&mut reply.message);
    // The acknowledging client gets its answer first: the answer is with the transport before another task on this core
    // runs. The specification leaves the order open, but clients check at that point what others were granted.
    rt::spawn(async move { drop(waiters) }).detach();
    Ok(reply)
}

fn oplock(cx: &OpContext, level: OplockLevel, file: FileId) -> Result<(Response, Waiters), Failure> {
    let open = cx.open(file)?;
    let (opens, key) = (open.vfs.opens(), open.claim.key());
    let (has, left) = opens.caching(open.node, key);
    let left = match (&open.caching, left) {
        (Caching::Oplock(_), Some(left)) => left,
        // The oplock was already broken, by a break that needs no acknowledgement or that was acknowledged. This is
        // Windows' status; its object store knows no such break ([MS-FSA] 2.1.5.19).
        (Caching::Oplock(_), None) if !has.write => return Err(NtStatus::INVALID_OPLOCK_PROTOCOL.into()),
        // 3.3.5.22.1: Open.OplockState is not Breaking.
        _ => return Err(NtStatus::INVALID_DEVICE_STATE.into()),
    };
    let (keep, status) = match level {
        OplockLevel::NONE => (Rights::NONE, None),
        OplockLevel::II => (left.and(Rights::R), None),
        OplockLevel::EXCLUSIVE if has.handle => (Rights::NONE, None),
        OplockLevel::LEASE => (Rights::NONE, Some(NtStatus::INVALID_PARAMETER)),
        _ => (Rights::NONE, Some(NtStatus::INVALID_OPLOCK_PROTOCOL)),
    };
    match (opens.give_way(open.node, key, keep), status) {
        (Ok(waiters), None) => {
            Ok((Response::Oplock { level: level_of(keep), file: cx.file_id(file) }, waiters))
        }
        (_, Some(status)) => Err(status.into()),
        // The break timed out at this moment.
        (Err(AckFailed::NotRecalled | AckFailed::TooMuch(_)), None) => {
            Err(NtStatus::INVALID_OPLOCK_PROTOCOL.into())
        }
    }
}

fn lease(cx: &OpContext, key: Guid, state: LeaseState) -> Result<(Response, Waiters), Failure> {
    let lease = cx.server().handles.leases.find(granting::claimant(cx), key);
    let waiters = lease.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?.acknowledge(state)?;
    Ok((Response::Lease { key, state }, waiters))
}
