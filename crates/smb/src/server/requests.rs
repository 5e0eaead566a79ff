//! Requests in flight: how a CANCEL finds and wakes one.
//!
//! Spec: [MS-SMB2] 3.3.5.16.
//! Owns: one flag and waker per request. Does not: stop an operation; the operation looks at its [`Cancel`].

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tells one operation that the client gave it up.
#[derive(Default)]
pub(crate) struct Cancel {
    set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Cancel {
    /// A CANCEL came.
    pub fn set(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Ends once [`Cancel::set`] was called. For one waiter.
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
