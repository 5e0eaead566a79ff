//! CHANGE_NOTIFY: waits until something changes in a directory.
//!
//! Spec: [MS-SMB2] 3.3.5.19, [MS-FSA] 2.1.5.11 (the request), 2.1.4.1 (what is reported), [MS-FSCC] 2.7.1 (the
//! entries). Owns the watch of an open, from its first request until the open closes: changes between two requests are
//! kept for the next one. Requests on one open are answered in order. The store detects the changes, whichever protocol
//! or program made them. Streams that the store does not keep are not reported.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::future::{Either, select};
use weft_store::vfs::{Action as Happened, Change as Told, Changes, Kind, Watch, What};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::change_notify::{Flags, Request, Response};
use weft_wire::smb2::fscc::notify::{Action, Change};

use super::opens::{self, Open};
use super::path;
use crate::server::answer::{Answer, Reply};
use crate::server::context::OpContext;
use crate::server::held::WATCH_BYTES;

/// Waiting requests per open.
const MAX_WAITING: usize = 128;

pub(super) async fn change_notify(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = opens::find(cx, request.file)?;
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

/// The changes that the open has seen, once the requests before this one are answered.
async fn wait(cx: &OpContext, open: &Open) -> Result<(Changes, u32), NtStatus> {
    let turn = open.notify.enter()?;
    let mut waiting = std::pin::pin!(std::future::poll_fn(|task| turn.poll(task)));
    // Changes may be queued already.
    if let Poll::Ready(outcome) = futures_util::poll!(waiting.as_mut()) {
        return outcome;
    }
    cx.may_wait()?;
    cx.pending();
    match select(waiting, std::pin::pin!(cx.cancelled())).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right(_) => Err(NtStatus::CANCELLED),
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

/// The changes that an open has seen in its directory, and the requests that wait for more.
#[derive(Default)]
pub(super) struct Notify(Mutex<State>);

#[derive(Default)]
struct State {
    watch: Option<Arc<Watch>>,
    /// The buffer size of the first request: later answers are not larger either ([MS-FSA] 2.1.5.11 allocates the
    /// buffer then).
    capacity: u32,
    /// The waiting requests, in order; the first one polls the watch.
    waiting: VecDeque<(u64, Option<Waker>)>,
    next: u64,
    closed: bool,
}

impl Notify {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the queue consistent, so a poisoned lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_new(&self) -> bool {
        self.state().watch.is_none()
    }

    /// The first request decides what is watched; a simultaneous one on another channel has no effect.
    fn begin(&self, watch: Watch, capacity: u32) {
        let mut state = self.state();
        if state.watch.is_none() && !state.closed {
            (state.watch, state.capacity) = (Some(Arc::new(watch)), capacity);
        }
    }

    fn enter(&self) -> Result<QueuedRequest<'_>, NtStatus> {
        let mut state = self.state();
        if state.waiting.len() >= MAX_WAITING {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let id = state.next;
        state.next = state.next.wrapping_add(1);
        state.waiting.push_back((id, None));
        Ok(QueuedRequest { notify: self, id })
    }

    /// 3.3.4.17: closing an open ends its waiting requests with STATUS_NOTIFY_CLEANUP.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.watch = None;
        let wakers: Vec<_> = state.waiting.iter_mut().filter_map(|(_, waker)| waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A request in the queue; leaves it when dropped.
struct QueuedRequest<'a> {
    notify: &'a Notify,
    id: u64,
}

impl QueuedRequest<'_> {
    fn poll(&self, task: &mut Context<'_>) -> Poll<Result<(Changes, u32), NtStatus>> {
        let mut state = self.notify.state();
        let Some(watch) = state.watch.clone().filter(|_| !state.closed) else {
            return Poll::Ready(Err(NtStatus::NOTIFY_CLEANUP));
        };
        let first = state.waiting.front().is_some_and(|(id, _)| *id == self.id);
        if first && let Poll::Ready(changes) = watch.poll_next(task) {
            return Poll::Ready(Ok((changes, state.capacity)));
        }
        // To be woken when it is first in the queue, and when the open closes.
        if let Some((_, waker)) = state.waiting.iter_mut().find(|(id, _)| *id == self.id) {
            *waker = Some(task.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.notify.state();
        state.waiting.retain(|(id, _)| *id != self.id);
        let next = state.waiting.front_mut().and_then(|(_, waker)| waker.take());
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}
