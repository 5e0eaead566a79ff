//! Messages that nobody asked for: oplock and lease breaks on their way to a connection, from whatever core.
//!
//! Spec: [MS-SMB2] 3.3.4.1.6 (which connection), 3.3.4.6, 3.3.4.7 (the next one when one fails).
//! Owns: what a connection has not sent yet, at most [`MAX_WAITING`]. Does not: seal or send; the connection does, and
//! hands on what it cannot.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;

use super::session::Session;

/// Notices that one connection may have waiting: more than a client has opens on one.
const MAX_WAITING: usize = 16_384;

/// A message of the server, on its way to the client of a session by any of the session's connections.
pub(crate) struct Notice {
    /// Whose it is: its keys seal it where everything is encrypted.
    pub(super) session: Arc<Session>,
    /// One whole message, header first; not signed (3.3.4.6).
    pub(super) message: Vec<u8>,
    /// Connections that took it and may not have brought it to the client.
    tried: Vec<Arc<Mailbox>>,
}

impl Notice {
    pub(super) fn new(session: Arc<Session>, message: Vec<u8>) -> Notice {
        Notice { session, message, tried: Vec::new() }
    }

    /// Sends it again, by a connection that has not tried it yet.
    pub(super) fn send_past(mut self, mailbox: &Arc<Mailbox>) -> bool {
        self.tried.push(mailbox.clone());
        self.send()
    }

    /// Tries the session's connections in turn. False when none took it: the client is gone, or reads nothing.
    #[must_use = "a client that cannot be told has lost what it was to be told about"]
    pub(crate) fn send(self) -> bool {
        let session = self.session.clone();
        let mut notice = self;
        for mailbox in session.mailboxes() {
            if notice.tried.iter().any(|tried| Arc::ptr_eq(tried, &mailbox)) {
                continue;
            }
            match mailbox.put(notice) {
                Ok(()) => return true,
                Err(back) => notice = back,
            }
        }
        false
    }
}

impl Notice {
    /// Sends it again, by the `nth` connection, counted round: one that took it may have lost it since. False when that
    /// one does not take it.
    pub(crate) fn send_by(self, nth: usize) -> bool {
        let mailboxes = self.session.mailboxes();
        let mailbox = nth.checked_rem(mailboxes.len()).and_then(|at| mailboxes.get(at));
        mailbox.is_some_and(|mailbox| mailbox.put(self).is_ok())
    }
}

/// A connection's letter box; the connection empties it, others fill it.
#[derive(Default)]
pub(super) struct Mailbox {
    /// `None` once the connection has ended.
    waiting: Mutex<Option<VecDeque<Notice>>>,
    /// Whether there may be something; looked at without the lock.
    any: AtomicBool,
    waker: AtomicWaker,
}

impl Mailbox {
    pub fn open() -> Arc<Mailbox> {
        Arc::new(Mailbox { waiting: Mutex::new(Some(VecDeque::new())), ..Mailbox::default() })
    }

    /// Wakes the connection; gives the notice back when it has ended or does not keep up.
    fn put(&self, notice: Notice) -> Result<(), Notice> {
        match &mut *self.lock() {
            Some(waiting) if waiting.len() < MAX_WAITING => waiting.push_back(notice),
            _ => return Err(notice),
        }
        self.any.store(true, Ordering::SeqCst);
        self.waker.wake();
        Ok(())
    }

    /// Whether something waits. One load.
    pub fn has_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Wakes this task when something comes. Look again afterwards: it may have come before.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Everything that waits.
    pub fn take(&self) -> VecDeque<Notice> {
        let mut waiting = self.lock();
        self.any.store(false, Ordering::SeqCst);
        waiting.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The connection has ended: nothing more comes in; what waits is for others.
    pub fn close(&self) -> VecDeque<Notice> {
        self.lock().take().unwrap_or_default()
    }

    // What it guards is changed by calls that cannot panic half-way.
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Notice>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
