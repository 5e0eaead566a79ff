//! CHANGE_NOTIFY.
//!
//! Spec: [MS-SMB2] 3.3.5.19: an object store that does not support notifications fails the request with
//! STATUS_NOT_SUPPORTED. Windows' Explorer and cifs.ko go on without then. Owns: nothing. Does not: watch.

use weft_store::vfs::Kind;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::change_notify::Request;

use super::opens;
use crate::server::context::{Answer, OpContext};

pub(super) fn change_notify(cx: &OpContext) -> Answer {
    let request = Request::parse(&cx.message)?;
    let open = opens::find(cx, request.file)?;
    if request.output_buffer_length > cx.max_payload() || open.kind != Kind::Dir {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_READ_DATA)?;
    Err(NtStatus::NOT_SUPPORTED.into())
}
