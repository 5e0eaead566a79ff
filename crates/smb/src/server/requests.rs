//! Requests that wait: how a CANCEL finds and wakes one.
//!
//! Spec: [MS-SMB2] 3.3.5.16.
//! Owns: an entry per request that waits for something a peer decides; others are not entered, because nothing could
//! cancel them. Does not: stop an operation; the operation looks at its [`Cancel`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Tells one operation that the client gave it up.
#[derive(Default)]
pub(crate) struct Cancel {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Cancel {
    fn set(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Ends once a CANCEL came. For one waiter.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.set.get() {
                return Poll::Ready(());
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// CHANGE_NOTIFYs are refused where a connection has so many requests waiting: as many as Windows lets wait of the 512 that it
/// has for that ([MS-SMB2] 3.3.4.2, note 242), so that a client's other requests always find room.
pub(super) const MAX_WAITING: usize = 511;

/// The waiting requests of a connection. Bounded by the credits, of which each holds one.
#[derive(Default)]
pub(super) struct Waiting {
    by_message_id: RefCell<HashMap<u64, (u64, Rc<Cancel>)>>,
}

impl Waiting {
    /// Enters a request of a session.
    pub fn enter(&self, message_id: u64, session_id: u64, cancel: Rc<Cancel>) {
        self.by_message_id.borrow_mut().insert(message_id, (session_id, cancel));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_message_id.borrow().len()
    }

    /// It waits no longer.
    pub fn leave(&self, message_id: u64) {
        self.by_message_id.borrow_mut().remove(&message_id);
    }

    /// Carries out a CANCEL: of a request of the same session, or of nothing.
    pub fn cancel(&self, message_id: u64, session_id: u64) {
        let found = self.by_message_id.borrow().get(&message_id).cloned();
        if let Some((_, cancel)) = found.filter(|(owner, _)| *owner == session_id) {
            cancel.set();
        }
    }
}
