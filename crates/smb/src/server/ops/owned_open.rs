//! An open that is in no table: whoever has it decides what becomes of it.
//!
//! Spec: [MS-SMB2] 3.3.4.17 (closing an open). Owns: the closing of its open, begun or not.
//! Does not: know what closing takes; [`Open`] does.
//!
//! A new open, and one that was taken out of a table, goes into a table or is closed. A request does either; its future is
//! dropped when its connection is lost, and the open must not go with it: a file that is to be deleted would stay, and
//! the record of a persistent handle too. So the closing goes on in a task of its own from where the request left it.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_store::vfs::Error;

use super::opens::Open;

/// An open that only its holder can close. Dropped, it is closed by a task of its own.
#[must_use = "it is closed when it is dropped"]
pub(crate) struct OwnedOpen {
    /// `None` once a table has it.
    open: Option<Arc<Open>>,
    closing: Closing,
    /// Whether closing it gives back what it holds.
    leaves: bool,
}

/// How far closing an open is.
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

    /// For the table that it goes into.
    pub(super) fn hand_over(mut self) -> Arc<Open> {
        self.open.take().expect("whoever hands it over has none any more")
    }

    /// Its session ends: it waits for its client where it can, and comes back to be closed otherwise.
    pub(super) fn keep(self) -> Result<(), OwnedOpen> {
        let Some(durable) = self.durable.get() else { return Err(self) };
        if !(self.is_persistent() || self.resilient().is_some() || self.may_be_kept()) {
            return Err(self);
        }
        let (home, timeout) = (durable.home().clone(), self.resilient().unwrap_or(durable.timeout()));
        home.keep(self, timeout)
    }

    /// Closes without a CLOSE: restores the kept time and removes what is to be deleted. No client is left to be told when that
    /// fails; the log tells.
    pub(super) async fn close(mut self) {
        self.settle().await;
        let _ = self.leave().await;
    }

    /// [`OwnedOpen::close`], for whoever does not wait for it.
    pub(super) fn close_detached(self) {
        drop(self);
    }

    /// The first half of closing: what the file is to look like afterwards. The open still holds what it holds.
    pub(super) async fn settle(&mut self) {
        if matches!(self.closing, Closing::NotBegun) {
            let work = self.open.as_ref().and_then(Open::settle);
            self.closing = work.map_or(Closing::Settled, Closing::Settling);
        }
        if let Closing::Settling(work) = &mut self.closing {
            work.await;
            self.closing = Closing::Settled;
        }
    }

    /// The second half, for what is settled: gives back what it holds, and removes what is to be deleted. Fails where that
    /// stays.
    pub(super) async fn leave(mut self) -> Result<(), Error> {
        let work = self.open.as_ref().and_then(Open::leave);
        self.closing = work.map_or(Closing::Done, Closing::Leaving);
        let Closing::Leaving(work) = &mut self.closing else { return Ok(()) };
        let left = work.await;
        self.closing = Closing::Done;
        left
    }

    /// Only the first half: what it holds is given back with its last request, and nothing is deleted.
    pub(super) async fn retire(mut self) {
        self.leaves = false;
        self.settle().await;
        self.closing = Closing::Done;
    }
}

impl Deref for OwnedOpen {
    type Target = Arc<Open>;

    fn deref(&self) -> &Arc<Open> {
        self.open.as_ref().expect("whoever hands it over has none any more")
    }
}

impl Drop for OwnedOpen {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let closing = mem::replace(&mut self.closing, Closing::Done);
        if !matches!(closing, Closing::Done) {
            // It has the bare open: when the core stops, this task is dropped and must not start another.
            rt::spawn(finish(open, closing, self.leaves)).detach();
        }
    }
}

/// Closes an open that somebody else has begun to close.
async fn finish(open: Arc<Open>, closing: Closing, leaves: bool) {
    let settling = match closing {
        Closing::NotBegun => open.settle(),
        Closing::Settling(work) => Some(work),
        Closing::Settled => None,
        Closing::Leaving(work) => {
            // The log tells what stays.
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
