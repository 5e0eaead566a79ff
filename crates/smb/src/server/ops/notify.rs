//! The watch of an open directory, and the requests that wait for it.
//!
//! Spec: [MS-FSA] 2.1.5.11 (the request), [MS-SMB2] 3.3.4.17 (closing). Owns the watch, from the first request until
//! the open closes: changes between two requests are kept for the next one. Requests are answered in order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use weft_store::vfs::{Changes, NodeId, Watch};
use weft_wire::smb2::NtStatus;

/// Waiting requests per open.
const MAX_WAITING: usize = 128;
/// Folders below the watched one whose judgement is remembered, the latest ones.
const MAX_REMEMBERED: usize = 64;

/// What the user of a watch may do with a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// List its names.
    pub(super) lists: bool,
    /// Reach what is in it.
    pub(super) enters: bool,
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
    /// What the user may do in folders below: changes in a folder may be told when it is gone.
    remembered: VecDeque<(NodeId, Reach)>,
}

impl Notify {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the queue consistent, so a poisoned lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is watched yet.
    pub(super) fn is_new(&self) -> bool {
        self.state().watch.is_none()
    }

    /// The first request decides what is watched; a simultaneous one on another channel has no effect.
    pub(super) fn begin(&self, watch: Watch, capacity: u32) {
        let mut state = self.state();
        if state.watch.is_none() && !state.closed {
            (state.watch, state.capacity) = (Some(Arc::new(watch)), capacity);
        }
    }

    /// Joins the queue of requests.
    pub(super) fn enter(&self) -> Result<QueuedRequest<'_>, NtStatus> {
        let mut state = self.state();
        if state.waiting.len() >= MAX_WAITING {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let id = state.next;
        state.next = state.next.wrapping_add(1);
        state.waiting.push_back((id, None));
        Ok(QueuedRequest { notify: self, id })
    }

    /// Remembers what the user may do in a folder.
    pub(super) fn remember(&self, dir: NodeId, reach: Reach) {
        let mut state = self.state();
        state.remembered.retain(|(known, _)| *known != dir);
        if state.remembered.len() >= MAX_REMEMBERED {
            state.remembered.pop_front();
        }
        state.remembered.push_back((dir, reach));
    }

    /// What the user could do in a folder that is gone, if that is still known.
    pub(super) fn remembered(&self, dir: NodeId) -> Option<Reach> {
        self.state().remembered.iter().find(|(known, _)| *known == dir).map(|(_, reach)| *reach)
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
pub(super) struct QueuedRequest<'a> {
    notify: &'a Notify,
    id: u64,
}

impl QueuedRequest<'_> {
    /// The changes, once this request is the first in the queue, and the size of its answer.
    pub(super) fn poll(&self, task: &mut Context<'_>) -> Poll<Result<(Changes, u32), NtStatus>> {
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
