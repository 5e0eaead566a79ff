//! CREATE for an existing open: reconnecting a durable handle, and repeating a CREATE that was carried out.
//!
//! Spec: [MS-SMB2] 3.3.5.9.7, 3.3.5.9.12 (reconnects), 3.3.5.9 (replay). Nothing is opened, and no caching rights are
//! requested: the answer describes the open again.

use std::sync::Arc;
use std::time::Duration;

use weft_machine::rt;
use weft_store::rights::Right;
use weft_store::vfs::Share;
use weft_wire::smb2::create::{CreateAction, OplockLevel, Request, Response};
use weft_wire::smb2::create_context::RequestContext;
use weft_wire::smb2::{FileId, Guid, NtStatus};

use super::super::attributes::{self, Metadata};
use super::super::audit;
use super::super::caching::{self, Caching};
use super::super::caching_rights::level_of;
use super::super::durable::Claim;
use super::super::granting::{self, Wanted};
use super::super::opens::Open;
use super::super::owned_open::OwnedOpen;
use super::super::path::Path;
use super::super::{recording, resolve};
use super::OpenedFile;
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// A client that lost its connection may be back on another core before the server has noticed the loss.
const GRACE: Duration = Duration::from_millis(50);

/// Reconnects a durable handle.
pub(super) async fn reconnect(
    cx: &OpContext,
    share: &Share,
    request: &Request,
    file: FileId,
    v2: Option<(Guid, bool)>,
) -> Answer {
    let taken = take(cx, share, request, file, v2).await?;
    let open = taken.clone();
    let file = super::enter(cx, taken, OwnedOpen::keep).await?;
    granting::reconnect(cx, &open, file);
    // The durable context is not repeated.
    let mut reply = Reply::with_capacity(256);
    describe(cx, share, request, &open, file).await?.emit(&mut reply.message);
    Ok(reply)
}

/// A CREATE that made a persistent handle is repeated as if it were the first (3.3.5.9).
pub(super) async fn resume(
    cx: &OpContext,
    share: &Share,
    request: &Request,
    made: &Open,
    create_guid: Guid,
) -> Answer {
    // Only its owner gets it, and only for the same request; a different lease means another file.
    let session = cx.session();
    if !made.durable.get().is_some_and(|durable| durable.is_of(&session.user, session.user_id)) {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    if !recording::is_same_request(made, request) {
        return Err(NtStatus::CONTEXT_MISMATCH.into());
    }
    let file = FileId { persistent: made.persistent, volatile: 0 };
    let taken = take(cx, share, request, file, Some((create_guid, true))).await?;
    let open = taken.clone();
    let file = super::enter(cx, taken, OwnedOpen::keep).await?;
    granting::reconnect(cx, &open, file);
    let mut response = describe(cx, share, request, &open, file).await?;
    response.contexts.extend(open.durable.get().map(|durable| durable.describe()));
    let mut reply = Reply::with_capacity(256);
    Response { action: open.action, ..response }.emit(&mut reply.message);
    Ok(reply)
}

/// Takes the handle out of the preserved ones.
async fn take(
    cx: &OpContext,
    share: &Share,
    request: &Request,
    file: FileId,
    v2: Option<(Guid, bool)>,
) -> Result<OwnedOpen, Failure> {
    let lease = request.contexts.iter().find_map(|context| match context {
        RequestContext::Lease(lease) => Some(*lease),
        _ => None,
    });
    let session = cx.session();
    let (client, user, user_id) = (session.client_guid, &*session.user, session.user_id);
    let (create_guid, persistent) = (v2.map(|(guid, _)| guid), v2.is_some_and(|(_, persistent)| persistent));
    // The share may have become read-only since.
    let right = if share.vfs.is_read_only() { Right::Read } else { cx.tree().right };
    let claim = Claim { file, create_guid, client, user, user_id, lease, persistent, right };
    let preserved = &cx.server().handles.preserved;
    let look = || {
        preserved.peek(&claim, |open| {
            // A handle goes back only to whom the kernel would judge alike.
            let same_share =
                Arc::ptr_eq(open.vfs.opens(), share.vfs.opens()) && open.vfs.caller() == share.vfs.caller();
            (open.node, same_share, matches!(open.caching, Caching::Lease(_)))
        })
    };
    let (node, same_share, leased) = match look() {
        Err(NtStatus::OBJECT_NAME_NOT_FOUND) => {
            rt::sleep(GRACE).await;
            look()?
        }
        known => known?,
    };
    if !same_share {
        return Err(NtStatus::OBJECT_NAME_NOT_FOUND.into());
    }
    // A lease belongs to a file, and the client must name the same one.
    if leased {
        let path = Path { normalizes: cx.session().is_mac(), ..Path::parse(&request.name)? };
        let found = resolve::resolve(&share.vfs, &path).await?.found;
        if found.is_none_or(|(attr, _)| attr.node != node) {
            return Err(NtStatus::INVALID_PARAMETER.into());
        }
    }
    let taken = preserved.take(&claim)?;
    audit::returned(cx, &taken);
    Ok(taken)
}

/// Answers a CREATE that was carried out before.
pub(super) async fn replay(
    cx: &OpContext,
    share: &Share,
    request: &Request,
    open: &Arc<Open>,
    persistent: bool,
) -> Answer {
    let wanted = Wanted::of(request, cx.dialect());
    let same_kind = match (&open.caching, &wanted) {
        (Caching::Lease(known), Wanted::Lease(lease)) => lease.key == known.key(),
        (Caching::Lease(_), _) | (Caching::Oplock(_), Wanted::Lease(_)) => false,
        _ => true,
    };
    let owner = open.create.get().is_some_and(|create| create.is_of(&cx.session().user));
    if !owner || !same_kind {
        return Err(NtStatus::ACCESS_DENIED.into());
    }
    // It belongs to another session, or to none.
    let (file, tree) = cx.session().opens.name_of(open).ok_or(NtStatus::DUPLICATE_OBJECTID)?;
    if tree != cx.tree().id {
        return Err(NtStatus::DUPLICATE_OBJECTID.into());
    }
    if open.is_persistent() && !persistent {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    // Like Windows: a lower level than that of the first CREATE is answered as if it had been granted, with the
    // consequences; the open itself does not change.
    let (has, _) = open.vfs.opens().caching(open.node, open.claim.key());
    let (says, kept) = match wanted {
        Wanted::Nothing => (Some(OplockLevel::NONE), false),
        Wanted::Oplock(rights) => (has.contains(rights).then(|| level_of(rights)), rights.handle),
        Wanted::Lease(_) => (None, true),
    };
    let durable = open.durable.get().filter(|_| kept).map(|durable| durable.describe());
    let mut reply = Reply::with_capacity(256);
    let mut response = describe(cx, share, request, open, file).await?;
    response.contexts.extend(durable);
    Response { oplock: says.unwrap_or(response.oplock), action: open.action, ..response }
        .emit(&mut reply.message);
    Ok(reply)
}

/// Describes an open as if it had just been opened.
async fn describe(
    cx: &OpContext,
    share: &Share,
    request: &Request,
    open: &Open,
    file: FileId,
) -> Result<Response, Failure> {
    cx.set_file_id(file);
    let attr = open.vfs.getattr(open.node).await?;
    let xattrs = open.vfs.xattr_summary(open.node).await?;
    let summary = attributes::summary(&attr, xattrs.dos, &open.name());
    let place = match super::asks_maximal(&request.contexts) {
        true => Some(open.place_or_last().await?),
        false => None,
    };
    let about = OpenedFile {
        vfs: &open.vfs,
        share: &share.name,
        metadata: Metadata { attr: &attr, dos: xattrs.dos },
        place,
        change_time: summary.change_time,
    };
    let mut contexts = super::answer_contexts(cx, &request.contexts, about).await?;
    let oplock = caching::describe(open, &mut contexts);
    Ok(Response { oplock, flags: 0, action: CreateAction::OPENED, summary, file, contexts })
}
