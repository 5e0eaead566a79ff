//! CLOSE.
//!
//! Spec: [MS-SMB2] 3.3.5.10.
//! Does not: wait for other requests on the open: they end by themselves.

use weft_store::opens::Access;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::close::{Flags, Request, Response};
use weft_wire::smb2::create::CreateOptions;

use super::caching::Interim;
use super::{attributes, caching};
use crate::server::context::{Answer, OpContext, Reply};

pub(super) async fn close(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let id = cx.file_id(request.file);
    if let Some(open) = cx.session().opens.find(id, cx.tree().id)
        && open.options.contains(CreateOptions::DELETE_ON_CLOSE)
    {
        // As a FileDispositionInformation does: whoever keeps a handle for its cache alone gives it up, and does not hold the
        // deletion up. It is closed all the same where nobody does.
        let (opens, by) = (open.vfs.opens(), Some(open.claim.key()));
        let _ = caching::wait(cx, Interim::Silent, opens.clear(open.node, by, Access::Handle)).await;
    }
    let mut open = cx.session().opens.remove(id, cx.tree().id).ok_or(NtStatus::FILE_CLOSED)?;
    open.settle().await;
    // Attributes as they will be: the kept time is restored by now, and a file that is to be deleted still has some.
    let summary = match request.flags.contains(Flags::POSTQUERY_ATTRIB) {
        true => {
            let beside = open.vfs.beside(open.node).await.unwrap_or_default();
            let attr = open.vfs.getattr(open.node).await.ok();
            attr.map(|attr| attributes::summary(&attr, beside.dos, &open.name()))
        }
        false => None,
    };
    // Last: whoever waits for a lock or an oplock of this open is answered after its client, not before. The handle is closed
    // also where the file that goes with it does not go, which its client has to hear ([MS-SMB2] 3.3.5.10).
    open.leave().await?;
    let mut reply = Reply::new();
    Response { summary }.emit(&mut reply.message);
    Ok(reply)
}
