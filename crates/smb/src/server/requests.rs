//! Waiting requests: how a CANCEL finds and wakes one.
//!
//! Spec: [MS-SMB2] 3.3.5.16. Owns an entry per request that waits for something a peer decides; others cannot be
//! cancelled. A CANCEL does not stop an operation; the operation watches its [`Cancel`].

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Tells one operation that the client has cancelled it.
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

    /// Completes once a CANCEL has arrived. For one waiter.
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

/// CHANGE_NOTIFYs are refused while a connection has this many waiting requests: Windows lets this many of its 512 wait
/// ([MS-SMB2] 3.3.4.2, note 242), so that a client's other requests always find room.
pub(super) const MAX_WAITING: usize = 511;

/// The waiting requests of a connection. Each holds a credit, so the credits bound them.
#[derive(Default)]
pub(super) struct Waiting {
    by_message_id: RefCell<HashMap<u64, (u64, Rc<Cancel>)>>,
}

impl Waiting {
    /// Registers a request of a session.
    pub fn enter(&self, message_id: u64, session_id: u64, cancel: Rc<Cancel>) {
        self.by_message_id.borrow_mut().insert(message_id, (session_id, cancel));
    }

    /// The number of waiting requests.
    pub fn len(&self) -> usize {
        self.by_message_id.borrow().len()
    }

    /// Removes a request that no longer waits.
    pub fn leave(&self, message_id: u64) {
        self.by_message_id.borrow_mut().remove(&message_id);
    }

    /// Executes a CANCEL: wakes the request if it belongs to the same session.
    pub fn cancel(&self, message_id: u64, session_id: u64) {
        let found = self.by_message_id.borrow().get(&message_id).cloned();
        if let Some((_, cancel)) = found.filter(|(owner, _)| *owner == session_id) {
            cancel.set();
        }
    }
}
