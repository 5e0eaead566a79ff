//! CHANGE_NOTIFY: waits until something changes in a directory.
//!
//! Spec: [MS-SMB2] 3.3.5.19, [MS-FSA] 2.1.5.11 (the request), 2.1.4.1 (what is reported), [MS-FSCC] 2.7.1 (the
//! entries). The watch of an open is in [`super::notify`]. The store detects the changes, whichever protocol or program
//! made them. Streams that the store does not keep are not reported.

use std::task::Poll;

use futures_util::future::{Either, select};
use weft_machine::recorder;
use weft_store::vfs::{Action as Happened, Change as Told, Changes, Kind, What};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::change_notify::{Flags, Request, Response};
use weft_wire::smb2::fscc::notify::{Action, Change};

use super::opens::Open;
use super::{path, visibility};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;
use crate::server::held::WATCH_BYTES;

pub(super) async fn change_notify(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = cx.open(request.file)?;
    let limit = request.output_buffer_length;
    if limit > cx.max_payload() || open.kind != Kind::Dir {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_READ_DATA)?;
    if open.claim.delete_pending() {
        return Err(NtStatus::DELETE_PENDING.into());
    }
    if open.notify.is_new() {
        // This would wait, since nothing has happened yet. A refused request gets no watch either: a directory's
        // watches are limited.
        cx.may_wait()?;
        let tree = request.flags.contains(Flags::WATCH_TREE);
        let held = cx.session().hold(WATCH_BYTES)?;
        let watch = open.vfs.watch(open.node, tree, What(request.completion_filter), held).await?;
        open.notify.begin(watch, limit);
    }
    let (changes, capacity) = wait(cx, &open).await?;
    answer(changes, limit.min(capacity) as usize)
}

/// The changes that the open has seen and its user may be told of, once the requests before this one are answered.
async fn wait(cx: &OpContext, open: &Open) -> Result<(Changes, u32), Failure> {
    let turn = open.notify.enter()?;
    let mut has_waited = false;
    loop {
        let mut waiting = std::pin::pin!(std::future::poll_fn(|task| turn.poll(task)));
        // Changes may be queued already.
        let (changes, capacity) = match futures_util::poll!(waiting.as_mut()) {
            Poll::Ready(outcome) => outcome?,
            Poll::Pending => {
                if !std::mem::replace(&mut has_waited, true) {
                    cx.may_wait()?;
                    cx.pending();
                    recorder::hide();
                }
                match select(waiting, std::pin::pin!(cx.cancelled())).await {
                    Either::Left((outcome, _)) => outcome?,
                    Either::Right(_) => return Err(NtStatus::CANCELLED.into()),
                }
            }
        };
        let visible = visibility::visible(cx, open, changes).await?;
        if !visible.is_empty() {
            return Ok((visible, capacity));
        }
    }
}

fn answer(changes: Changes, limit: usize) -> Answer {
    if changes.ended {
        return Err(NtStatus::DELETE_PENDING.into());
    }
    let mut buffer = Vec::new();
    let told: Vec<_> = changes.changes.into_iter().map(entry).collect();
    Change::emit_list(&told, &mut buffer);
    // 3.3.5.19: changes that do not fit are dropped; the client lists the directory again.
    if changes.overflowed || buffer.len() > limit {
        let mut reply = Reply::new();
        reply.status = NtStatus::NOTIFY_ENUM_DIR;
        Response::default().emit(&mut reply.message);
        return Ok(reply);
    }
    let mut reply = Reply::with_capacity(buffer.len().saturating_add(8));
    Response { buffer: buffer.into() }.emit(&mut reply.message);
    Ok(reply)
}

/// A change in SMB's terms.
fn entry(told: Told) -> Change {
    let action = match told.action {
        Happened::Added => Action::ADDED,
        Happened::Removed => Action::REMOVED,
        Happened::Modified => Action::MODIFIED,
        Happened::RenamedFrom => Action::RENAMED_OLD_NAME,
        Happened::RenamedTo => Action::RENAMED_NEW_NAME,
        Happened::StreamAdded => Action::ADDED_STREAM,
        Happened::StreamRemoved => Action::REMOVED_STREAM,
        Happened::StreamModified => Action::MODIFIED_STREAM,
    };
    let names: Vec<_> = told.path.split(|&b| b == b'/').map(path::from_store).collect();
    Change { action, name: names.join("\\") }
}
