//! CLOSE.
//!
//! Spec: [MS-SMB2] 3.3.5.10. Owns: nothing. Does not: wait for other requests on the open: they end by themselves.

use weft_store::vfs::Beside;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::close::{Flags, Request, Response};

use super::attributes;
use crate::server::context::{Answer, OpContext, Reply};

pub(super) async fn close(cx: &OpContext) -> Answer {
    let request = Request::parse(&cx.message)?;
    let id = cx.file_id(request.file);
    let open = cx.session.opens.remove(id, cx.tree.id).ok_or(NtStatus::FILE_CLOSED)?;
    // Attributes as they will be: the kept time is restored first, but a deleted file has none afterwards.
    let wanted = request.flags.contains(Flags::POSTQUERY_ATTRIB);
    let beside =
        if wanted { open.vfs.beside(open.node).await.unwrap_or_default() } else { Beside::default() };
    let before = if wanted { open.vfs.getattr(open.node).await.ok() } else { None };
    open.close().await;
    let after = if wanted { open.vfs.getattr(open.node).await.ok() } else { None };
    let summary = after.or(before).map(|attr| attributes::summary(&attr, beside.dos, &open.name()));
    let mut reply = Reply::new();
    Response { summary }.emit(&mut reply.message);
    Ok(reply)
}
