//! An open that is in no table: its holder decides what happens to it.
//!
//! Spec: [MS-SMB2] 3.3.4.17 (closing an open). Owns the closing of its open, whether begun or not; the steps are in
//! [`Open`].
//!
//! A new open, and one that was taken out of a table, must go into a table or be closed. A request does either; its
//! future is dropped when its connection is lost, but the open must not be dropped unclosed: a file marked for deletion
//! would stay, and so would the record of a persistent handle. So a separate task continues the closing where the
//! request left it.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_store::vfs::Error;

use super::opens::Open;

/// An open that only its holder can close. On drop, a separate task closes it.
#[must_use = "dropping it closes the open"]
pub(crate) struct OwnedOpen {
    /// `None` once a table has it.
    open: Option<Arc<Open>>,
    closing: Closing,
    /// Whether closing releases its locks, share modes and rights.
    leaves: bool,
}

/// The progress of closing an open.
enum Closing {
    NotBegun,
    Settling(LocalBoxFuture<'static, ()>),
    Settled,
    Leaving(LocalBoxFuture<'static, Result<(), Error>>),
    Done,
}

impl OwnedOpen {
    pub(super) fn new(open: Arc<Open>) -> OwnedOpen {
        OwnedOpen { open: Some(open), closing: Closing::NotBegun, leaves: true }
    }

    /// Releases it to a table.
    pub(super) fn hand_over(mut self) -> Arc<Open> {
        self.open.take().expect("the open is only taken when it is handed over")
    }

    /// Preserves it because its session ends; returns it to be closed if it is not durable.
    pub(super) fn keep(self) -> Result<(), OwnedOpen> {
        let Some(durable) = self.durable.get() else { return Err(self) };
        if !(self.is_persistent() || self.resilient().is_some() || self.may_be_kept()) {
            return Err(self);
        }
        let (home, timeout) = (durable.home().clone(), self.resilient().unwrap_or(durable.timeout()));
        home.keep(self, timeout)
    }

    /// Closes without a CLOSE: restores the kept time and deletes the file if it is marked for deletion. No client can
    /// be told of a failure; it is logged.
    pub(super) async fn close(mut self) {
        self.settle().await;
        let _ = self.leave().await;
    }

    /// Like [`OwnedOpen::close`], without waiting.
    pub(super) fn close_detached(self) {
        drop(self);
    }

    /// The first half of closing: the final state of the file. The open still holds its locks and rights.
    pub(super) async fn settle(&mut self) {
        if matches!(self.closing, Closing::NotBegun) {
            let work = self.open.as_ref().and_then(|open| open.settle(self.leaves));
            self.closing = work.map_or(Closing::Settled, Closing::Settling);
        }
        if let Closing::Settling(work) = &mut self.closing {
            work.await;
            self.closing = Closing::Settled;
        }
    }

    /// The second half, once settled: releases its locks and rights, and deletes the file if it is marked for deletion.
    /// Fails if the file stays.
    pub(super) async fn leave(mut self) -> Result<(), Error> {
        let work = self.open.as_ref().and_then(Open::leave);
        self.closing = work.map_or(Closing::Done, Closing::Leaving);
        let Closing::Leaving(work) = &mut self.closing else { return Ok(()) };
        let left = work.await;
        self.closing = Closing::Done;
        left
    }

    /// Only the first half: its last request releases what it holds, and nothing is deleted.
    pub(super) async fn retire(mut self) {
        self.leaves = false;
        self.settle().await;
        self.closing = Closing::Done;
    }
}

impl Deref for OwnedOpen {
    type Target = Arc<Open>;

    fn deref(&self) -> &Arc<Open> {
        self.open.as_ref().expect("the open is only taken when it is handed over")
    }
}

impl Drop for OwnedOpen {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let closing = mem::replace(&mut self.closing, Closing::Done);
        if !matches!(closing, Closing::Done) {
            // The task has the bare open: if the core stops and drops the task, it must not start another one.
            rt::spawn(finish(open, closing, self.leaves)).detach();
        }
    }
}

/// Finishes a close that was already begun.
async fn finish(open: Arc<Open>, closing: Closing, leaves: bool) {
    let settling = match closing {
        Closing::NotBegun => open.settle(leaves),
        Closing::Settling(work) => Some(work),
        Closing::Settled => None,
        Closing::Leaving(work) => {
            // A failure is logged.
            let _ = work.await;
            return;
        }
        Closing::Done => return,
    };
    if let Some(work) = settling {
        work.await;
    }
    if leaves && let Some(work) = open.leave() {
        let _ = work.await;
    }
}
