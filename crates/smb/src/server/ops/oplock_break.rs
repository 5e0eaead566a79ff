//! OPLOCK_BREAK: nothing was granted, so there is nothing to give back.
//!
//! Spec: [MS-SMB2] 3.3.5.22.1 (oplocks), 3.3.5.22.2 (leases). Owns: nothing. Does not: break.

use weft_wire::smb2::NtStatus;
use weft_wire::smb2::oplock_break::Request;

use super::opens;
use crate::server::context::{Answer, OpContext};

pub(super) fn oplock_break(cx: &OpContext) -> Answer {
    match Request::parse(&cx.message)? {
        Request::Oplock { file, .. } => {
            opens::find(cx, file)?;
            Err(NtStatus::INVALID_DEVICE_STATE.into())
        }
        Request::Lease { .. } => Err(NtStatus::OBJECT_NAME_NOT_FOUND.into()),
    }
}
