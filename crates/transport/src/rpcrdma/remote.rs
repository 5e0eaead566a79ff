//! Payload of a call that is left in the peer's memory until the protocol knows its destination.
//!
//! It implements [`RemotePayload`] for a message: straight into a file in memory by `QueuePair::read_into`, or received by
//! RDMA Read. RFC 8166 3.4.5 lets a responder pull when it likes, before it replies. The connection may end first.
//! `responder` and `driver` post and complete the Reads.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use weft_machine::recorder::{self, Hop};
use weft_machine::{File, payload};
use weft_rdma::Segment;

use super::driver::{Inner, Role};
use super::responder::{Fetched, Left};
use crate::channel::{Detached, Error, Message, RemotePayload, fill};

/// The message of a call, with its payload in the peer's memory.
pub(super) fn message(left: Left, inner: &Rc<Inner>) -> Message {
    let Left { body, payload, ticket } = left;
    let there = There { inner: Rc::downgrade(inner), payload };
    Message { body, detached: Some(Detached::There(Rc::new(there))), ticket }
}

struct There {
    inner: Weak<Inner>,
    payload: Vec<Segment>,
}

impl fmt::Debug for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("There").field(&self.payload).finish()
    }
}

impl RemotePayload for There {
    fn len(&self) -> usize {
        Segment::total(&self.payload) as usize
    }

    fn fill(&self, file: &File, offset: u64, len: usize) -> Option<io::Result<()>> {
        // The padding may be part of the chunk (RFC 8166 3.4.5.2), and does not belong to the file.
        fill(&*self.inner.upgrade()?.qp, &self.payload, file, offset, len)
    }

    fn fetch(&self) -> payload::Fetching {
        let fetched = Rc::new(Fetched::default());
        if let Some(inner) = self.inner.upgrade()
            && let state = &mut *inner.state.borrow_mut()
            && state.ended.is_none()
            && let Role::Responder(responder) = &mut state.role
        {
            responder.fetch(self.payload.clone(), fetched.clone());
        } else {
            fetched.outcome.replace(Some(None));
        }
        Box::pin(recorder::at(Hop::Wire, Fetching { inner: self.inner.clone(), fetched, waited: false }))
    }
}

/// Waits for payload.
struct Fetching {
    inner: Weak<Inner>,
    fetched: Rc<Fetched>,
    /// Whether it may be the future that the queue pair wakes.
    waited: bool,
}

impl Fetching {
    fn outcome(&self) -> Option<io::Result<Bytes>> {
        let outcome = self.fetched.outcome.take()?;
        Some(outcome.ok_or(Error::Closed.into()))
    }
}

impl Future for Fetching {
    type Output = io::Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.outcome() {
            return Poll::Ready(outcome);
        }
        let Some(inner) = self.inner.upgrade() else { return Poll::Ready(Err(Error::Closed.into())) };
        self.fetched.waker.replace(Some(cx.waker().clone()));
        inner.drive(cx);
        if !inner.state.borrow().out.messages.is_empty() {
            inner.wake_reader();
        }
        self.waited = true;
        match self.outcome() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.fetched.waker.take();
        if self.waited
            && let Some(inner) = self.inner.upgrade()
        {
            inner.hand_over();
        }
    }
}
