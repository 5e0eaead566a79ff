//! Unsolicited messages (oplock and lease breaks) on their way to a connection, from any core.
//!
//! Spec: [MS-SMB2] 3.3.4.1.6 (which connection), 3.3.4.6, 3.3.4.7 (the next one when one fails). Owns the unsent
//! notices of a connection, at most [`MAX_WAITING`]. The connection encrypts and sends them, and passes on those that
//! it cannot send.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;

use super::session::Session;

/// Notices that may be queued for one connection: more than a client's opens there.
const MAX_WAITING: usize = 16_384;

/// A server message for the client of a session, over any of the session's connections.
pub(crate) struct Notice {
    /// Its session, whose keys encrypt it if everything is encrypted.
    pub(super) session: Arc<Session>,
    /// One whole message, header first; not signed (3.3.4.6).
    pub(super) message: Vec<u8>,
    /// Connections that took it but may not have delivered it.
    tried: Vec<Arc<Mailbox>>,
}

impl Notice {
    pub(super) fn new(session: Arc<Session>, message: Vec<u8>) -> Notice {
        Notice { session, message, tried: Vec::new() }
    }

    /// Sends it again, over a connection that has not tried it yet.
    pub(super) fn send_past(mut self, mailbox: &Arc<Mailbox>) -> bool {
        self.tried.push(mailbox.clone());
        self.send()
    }

    /// Tries the session's connections in turn. Returns false if none took it: the client is gone, or does not read.
    #[must_use = "a client that cannot be notified loses its lease or oplock"]
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
    /// Sends it again over connection `nth`, modulo their number: the one that took it may have lost it since. Returns
    /// false if that connection does not take it.
    pub(crate) fn send_by(self, nth: usize) -> bool {
        let mailboxes = self.session.mailboxes();
        let mailbox = nth.checked_rem(mailboxes.len()).and_then(|at| mailboxes.get(at));
        mailbox.is_some_and(|mailbox| mailbox.put(self).is_ok())
    }
}

/// A connection's mailbox; the connection empties it, others fill it.
#[derive(Default)]
pub(super) struct Mailbox {
    /// `None` once the connection has ended.
    waiting: Mutex<Option<VecDeque<Notice>>>,
    /// Whether there may be a notice; read without the lock.
    any: AtomicBool,
    waker: AtomicWaker,
}

impl Mailbox {
    pub fn open() -> Arc<Mailbox> {
        Arc::new(Mailbox { waiting: Mutex::new(Some(VecDeque::new())), ..Mailbox::default() })
    }

    /// Wakes the connection; returns the notice if the connection has ended or its queue is full.
    fn put(&self, notice: Notice) -> Result<(), Notice> {
        match &mut *self.lock() {
            Some(waiting) if waiting.len() < MAX_WAITING => waiting.push_back(notice),
            _ => return Err(notice),
        }
        self.any.store(true, Ordering::SeqCst);
        self.waker.wake();
        Ok(())
    }

    /// Whether a notice is queued. One load.
    pub fn has_any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Wakes this task when a notice arrives. Check again afterwards: it may have arrived before.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Takes all queued notices.
    pub fn take(&self) -> VecDeque<Notice> {
        let mut waiting = self.lock();
        self.any.store(false, Ordering::SeqCst);
        waiting.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the mailbox because the connection has ended; returns the queued notices, for other connections.
    pub fn close(&self) -> VecDeque<Notice> {
        self.lock().take().unwrap_or_default()
    }

    // Every update is one call that cannot panic half-way, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Notice>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
