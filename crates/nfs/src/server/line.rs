//! Calls from the server to a client, over one connection, from any core.
//!
//! A [`CallbackLine`] holds the unsent calls, those that wait for a reply, and the sessions that used the connection.
//! See RFC 5531 section 8 (xid) and RFC 8881 2.10.3.1 (the back channel). The connection's own core sends and
//! receives.
//!
//! The connection checks for calls with one atomic load, and the caller wakes it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder};

/// Most unanswered calls on one line; every back channel has fewer slots.
const MAX_CALLS: usize = 1024;

/// Most sessions remembered for one connection; the oldest is forgotten first, and remembered again at its next use.
const MAX_SESSIONS: usize = 64;

/// The outcome of a call.
#[derive(Debug)]
pub(super) enum Heard {
    /// Results, after the header.
    Results(Decoder),
    /// The peer does not accept such calls.
    Refused,
    /// The line ended first.
    Ended,
}

/// Receives the outcome.
pub(super) type Done = Box<dyn FnOnce(Heard) + Send>;

/// One connection, as seen from other cores.
#[derive(Default)]
pub(super) struct CallbackLine {
    /// Something is to be sent.
    waiting: AtomicBool,
    closed: AtomicBool,
    inner: Mutex<Inner>,
    /// Most recently used last; at most [`MAX_SESSIONS`].
    sessions: Mutex<Vec<[u8; 16]>>,
}

#[derive(Default)]
struct Inner {
    next_xid: u32,
    unsent: VecDeque<Bytes>,
    asked: HashMap<u32, Done>,
    connection: Option<Waker>,
}

/// The connection's end of its line.
pub(super) struct CallbackLineEnd<'a> {
    line: &'a CallbackLine,
    /// The waker registered in the line, kept here so that its mutex is taken once per task and not once per sleep.
    known: Option<Waker>,
}

/// Whether a message is a reply (RFC 5531 section 9).
pub(super) fn is_reply(message: &Bytes) -> bool {
    message.get(4..8) == Some(&[0, 0, 0, 1])
}

impl CallbackLine {
    // Every change leaves the lists consistent.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls can be sent.
    pub fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// Sends the call that `emit` encodes for a given xid. `Err`: the line has ended, or has too many calls already.
    pub fn call(&self, emit: impl FnOnce(u32, &mut Encoder), done: Done) -> Result<(), Done> {
        let mut inner = self.inner();
        if !self.is_open() || inner.asked.len() >= MAX_CALLS {
            return Err(done);
        }
        inner.next_xid = inner.next_xid.wrapping_add(1);
        let xid = inner.next_xid;
        let mut e = Encoder::with_capacity(512);
        emit(xid, &mut e);
        inner.unsent.push_back(e.into_bytes());
        inner.asked.insert(xid, done);
        self.waiting.store(true, Ordering::Release);
        let waker = inner.connection.clone();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Delivers a reply that the connection has received. A reply without a call is dropped.
    pub fn deliver(&self, message: Bytes) {
        let mut d = Decoder::new(message);
        let Ok((xid, reply)) = Reply::parse(&mut d) else { return };
        let done = self.inner().asked.remove(&xid);
        let Some(done) = done else { return };
        done(if reply == Reply::Success { Heard::Results(d) } else { Heard::Refused });
    }

    /// The connection has ended, and all outstanding calls with it.
    pub fn close(&self) {
        let asked = {
            let mut inner = self.inner();
            self.closed.store(true, Ordering::Release);
            inner.unsent.clear();
            std::mem::take(&mut inner.asked)
        };
        asked.into_values().for_each(|done| done(Heard::Ended));
    }

    /// This session was used on the connection, which associates the two (RFC 8881 2.10.3.1).
    pub fn associate(&self, session: &[u8; 16]) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.last() == Some(session) {
            return;
        }
        sessions.retain(|known| known != session);
        if sessions.len() == MAX_SESSIONS {
            sessions.remove(0);
        }
        sessions.push(*session);
    }

    /// Whether the connection is associated with this session.
    pub fn is_associated(&self, session: &[u8; 16]) -> bool {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).contains(session)
    }

    pub fn join(&self) -> CallbackLineEnd<'_> {
        CallbackLineEnd { line: self, known: None }
    }
}

impl CallbackLineEnd<'_> {
    /// The next call to send.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Bytes> {
        if !self.known.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.known = Some(cx.waker().clone());
            self.line.inner().connection.clone_from(&self.known);
        }
        // Checked after registering the waker: a call made in between is either seen here or wakes the task.
        if !self.line.waiting.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        let mut inner = self.line.inner();
        let next = inner.unsent.pop_front();
        self.line.waiting.store(!inner.unsent.is_empty(), Ordering::Release);
        next.map_or(Poll::Pending, Poll::Ready)
    }
}

/// However a connection ends, its line ends too.
impl Drop for CallbackLineEnd<'_> {
    fn drop(&mut self) {
        self.line.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn reply(xid: u32) -> Bytes {
        let mut e = Encoder::default();
        Reply::Success.emit(xid, &mut e);
        e.u32(7);
        e.into_bytes()
    }

    #[test]
    fn every_call_is_answered_once_or_told_that_the_line_ended() {
        let line = CallbackLine::default();
        let answers = Arc::new(Mutex::new(Vec::new()));
        let call = |n: u32| {
            let answers = answers.clone();
            let done = move |heard: Heard| {
                let heard = match heard {
                    Heard::Results(mut d) => Some(d.u32()),
                    Heard::Refused | Heard::Ended => None,
                };
                answers.lock().unwrap().push((n, heard));
            };
            line.call(|xid, e| e.u32(xid), Box::new(done)).is_ok()
        };
        let mut place = line.join();
        let cx = Context::from_waker(Waker::noop());
        assert!(place.poll(&cx).is_pending());
        assert!(call(1) && call(2));
        assert_eq!(place.poll(&cx), Poll::Ready(Bytes::from_static(&[0, 0, 0, 1])));
        assert_eq!(place.poll(&cx), Poll::Ready(Bytes::from_static(&[0, 0, 0, 2])));
        assert!(place.poll(&cx).is_pending());
        assert!(is_reply(&reply(2)));
        line.deliver(reply(2));
        line.deliver(reply(2));
        line.deliver(Bytes::from_static(b"no reply"));
        assert_eq!(*answers.lock().unwrap(), [(2, Some(Ok(7)))]);
        drop(place);
        assert_eq!(answers.lock().unwrap().last(), Some(&(1, None)));
        assert!(!call(3) && !line.is_open());
    }
}
