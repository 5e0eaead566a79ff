//! CLOSE.
//!
//! Spec: [MS-SMB2] 3.3.5.10. Other requests on the open are not waited for: they end by themselves.

use weft_store::opens::Access;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::close::{Flags, Request, Response};
use weft_wire::smb2::create::CreateOptions;

use super::recalls::Interim;
use super::{afp_streams, attributes, recalls};
use crate::server::answer::{Answer, Reply};
use crate::server::context::OpContext;

pub(super) async fn close(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let id = cx.file_id(request.file);
    if let Some(open) = cx.session().opens.find(id, cx.tree().id)
        && open.options.contains(CreateOptions::DELETE_ON_CLOSE)
    {
        // As for a FileDispositionInformation: clients that keep a handle only for its cache must close it, so that
        // they do not delay the deletion. The open is closed in any case.
        let (opens, by) = (open.vfs.opens(), Some(open.claim.key()));
        let _ = recalls::wait(cx, Interim::Silent, opens.clear(open.node, by, Access::Handle)).await;
    }
    if let Some(open) = cx.session().opens.find(id, cx.tree().id)
        && cx.session().is_mac()
    {
        Box::pin(afp_streams::tidy(cx, &open)).await;
    }
    let mut open = cx.session().opens.remove(id, cx.tree().id).ok_or(NtStatus::FILE_CLOSED)?;
    open.settle().await;
    // The final attributes: the kept time is restored by now, and a file that will be deleted still has some.
    let summary = match request.flags.contains(Flags::POSTQUERY_ATTRIB) {
        true => {
            let xattrs = open.vfs.xattr_summary(open.node).await.unwrap_or_default();
            let attr = open.vfs.getattr(open.node).await.ok();
            attr.map(|attr| attributes::summary(&attr, xattrs.dos, &open.name()))
        }
        false => None,
    };
    // Last: requests that wait for a lock or an oplock of this open are answered after its own client. The handle is
    // closed even if its file cannot be deleted, which the client must be told ([MS-SMB2] 3.3.5.10).
    open.leave().await?;
    let mut reply = Reply::new();
    Response { summary }.emit(&mut reply.message);
    Ok(reply)
}
