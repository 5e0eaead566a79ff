//! The channel over a connection: what users call, and the future that a sender waits on.
//!
//! [`RpcRdma`] is the channel. It holds a reference to the connection, and so do its futures. `driver` posts and polls.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, Pool};
use weft_rdma::QueuePair;

use super::driver::{Inner, Role, Sent, Unsent};
use super::requester::Shape;
use super::responder::Arrived;
use super::{Config, remote};
use crate::channel::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, Peer, Sending, Stages, Traffic,
};

/// Messages that wait to be sent; more means that the caller ignores its futures.
const MAX_UNSENT: usize = 1 << 16;

/// RPC over RDMA. Dropping it closes the connection.
pub struct RpcRdma(Rc<Inner>);

impl RpcRdma {
    pub(super) fn new(qp: Rc<dyn QueuePair>, pool: Pool, config: Config, role: Role) -> Rc<RpcRdma> {
        Rc::new(RpcRdma(Inner::new(qp, pool, config, role)))
    }
}

impl Drop for RpcRdma {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits until the queue pair has taken one message.
struct Taken {
    inner: Rc<Inner>,
    sent: Rc<Sent>,
    looked: bool,
    /// Whether it may be the future that the queue pair wakes.
    waited: bool,
}

impl Future for Taken {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.sent.outcome.take() {
            return Poll::Ready(outcome);
        }
        if !self.looked {
            // The first poll only checks: a caller that polls once, to learn whether the message was refused at once,
            // must not become the task that the queue pair wakes.
            self.looked = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = true;
        *self.sent.waker.borrow_mut() = Some(cx.waker().clone());
        self.inner.drive(cx);
        if !self.inner.state.borrow().out.messages.is_empty() {
            self.inner.wake_reader();
        }
        match self.sent.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.sent.waker.take();
        if self.waited {
            self.inner.hand_over();
        }
    }
}

impl Channel for RpcRdma {
    fn kind(&self) -> Kind {
        Kind::RpcRdma
    }

    fn medium(&self) -> &'static str {
        self.0.qp.provider()
    }

    fn peer(&self) -> Peer {
        self.0.qp.peer()
    }

    fn limits(&self) -> Limits {
        Limits { max_message: self.0.config.max_message, max_rdma: Some(self.0.config.max_payload) }
    }

    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(poll_fn(|cx| {
            if let Some(message) = self.try_recv() {
                return Poll::Ready(Ok(Some(message)));
            }
            *self.0.reader.borrow_mut() = Some(cx.waker().clone());
            self.0.drive(cx);
            if let Some(message) = self.try_recv() {
                return Poll::Ready(Ok(Some(message)));
            }
            match &self.0.state.borrow().ended {
                Some(ending) => Poll::Ready(ending.at_reader()),
                None => Poll::Pending,
            }
        }))
    }

    fn try_recv(&self) -> Option<Message> {
        let arrived = self.0.state.borrow_mut().out.messages.pop_front()?;
        Some(match arrived {
            Arrived::Whole(message) => message,
            Arrived::Left(left) => remote::message(left, &self.0),
        })
    }

    fn send(&self, message: Outgoing) -> Sending {
        let sent = Rc::new(Sent { bytes: message.memory_bytes(), ..Sent::default() });
        {
            let state = &mut *self.0.state.borrow_mut();
            let shape = match &state.role {
                Role::Requester(requester) => Shape::of(&message, requester.terms()).map(Some),
                Role::Responder(_) => Ok(None),
            };
            let shape = match shape {
                Ok(shape) => shape,
                Err(e) => return Sending::answered(Err(e)),
            };
            let refusal = match &state.ended {
                Some(ending) => Some(ending.at_sender()),
                None if state.closing => Some(Error::Closed),
                None if state.unsent.len() >= MAX_UNSENT => Some(Error::Misuse("too many unsent messages")),
                None => None,
            };
            if let Some(e) = refusal {
                return Sending::answered(Err(e));
            }
            state.unsent.push_back(Unsent { message, shape, sent: sent.clone() });
        }
        self.0.try_advance();
        Sending::waiting(Taken { inner: self.0.clone(), sent, looked: false, waited: false })
    }

    fn backlog(&self) -> usize {
        let state = self.0.state.borrow();
        [state.unsent.len(), usize::from(state.preparing.is_some()), state.sends.len()].iter().sum()
    }

    fn waits_for_memory(&self) -> bool {
        let state = self.0.state.borrow();
        // A call that is being prepared waits for its buffers, and all later ones wait with it.
        state.preparing.is_some() || !state.waiting.is_empty()
    }

    fn has_ended(&self) -> bool {
        self.0.state.borrow().ended.is_some()
    }

    fn unsent_bytes(&self) -> usize {
        let state = self.0.state.borrow();
        let unsent = state.unsent.iter().map(|unsent| &unsent.sent);
        let preparing = state.preparing.iter().map(|preparing| &preparing.sent);
        let all = state.sends.iter().map(|(_, sent)| sent).chain(preparing).chain(unsent);
        all.fold(0, |sum, sent| sum.saturating_add(sent.bytes))
    }

    fn stages(&self) -> Stages {
        [Some(self.0.stage.clone()), self.0.qp.stage()]
    }

    /// Sends are not gathered: each is one work request, and the provider gathers what it can.
    fn cork(&self, _on: bool) {}

    fn expose(&self, _buf: Buf, _access: Access) -> Result<Exposed, Error> {
        Err(Error::Misuse("RPC offers memory by source and sink"))
    }

    fn revoke(&self, _exposed: Exposed) -> Option<Buf> {
        None
    }

    fn traffic(&self) -> Traffic {
        self.0.qp.traffic()
    }

    fn close(&self) {
        self.0.state.borrow_mut().closing = true;
        self.0.try_advance();
    }
}
