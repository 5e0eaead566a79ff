//! An established context: its sequence numbers, and calls and replies in its protection.
//!
//! See RFC 2203 5.3. Each attempt of a call has a number of its own: a server discards a number that comes for the second
//! time, or that is below the highest one by the window or more. So a number is only used while it is less than a window
//! above the lowest one whose reply is outstanding: whatever connection a call takes, and however long it is on the way,
//! its number is in the window when it arrives.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use weft_kerberos::{Error as Failed, Principal};
use weft_machine::{Payload, Time};
use weft_transport::{Detached, Message, Part, To};
use weft_wire::rpc::gss::{GssCredential, MAX_SEQUENCE, Procedure, Service};
use weft_wire::rpc::{Call, Credential, Reply};
use weft_wire::xdr::{Decoder, Encoder, fill};

use super::mechanism::Mechanism;
use crate::client::Error;
use crate::gss::{PROTECTION_BYTES, SecurityContext, body, open, seal};

/// What a call names: transaction, program, version and procedure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

/// One context.
pub(crate) struct Context {
    mechanism: RefCell<Box<dyn Mechanism>>,
    service: Service,
    /// The server's name for it.
    handle: Bytes,
    /// At least 1.
    window: u32,
    /// Whose ticket established it.
    pub client: Option<Principal>,
    expires: Option<Time>,
    next: Cell<u32>,
    /// Numbers that are in use.
    outstanding: RefCell<BTreeSet<u32>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Context {
    pub fn new(
        mechanism: Box<dyn Mechanism>,
        service: Service,
        (handle, window): (Bytes, u32),
        client: Option<Principal>,
        expires: Option<Time>,
    ) -> Context {
        Context {
            mechanism: RefCell::new(mechanism),
            service,
            handle,
            window,
            client,
            expires,
            next: Cell::new(1),
            outstanding: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Whether no further call can be made in it.
    pub fn is_over(&self, now: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= now) || self.next.get() >= MAX_SEQUENCE
    }

    /// A number for one attempt of a call, once it is in the window; `None` if the context has used up all.
    pub async fn number(self: &Rc<Context>) -> Option<Number> {
        poll_fn(|cx| {
            let next = self.next.get();
            if next >= MAX_SEQUENCE {
                return Poll::Ready(None);
            }
            let mut outstanding = self.outstanding.borrow_mut();
            if outstanding.first().is_some_and(|lowest| next.saturating_sub(*lowest) >= self.window) {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            self.next.set(next.saturating_add(1));
            outstanding.insert(next);
            Poll::Ready(Some(Number { context: self.clone(), sequence: next }))
        })
        .await
    }

    /// A call with these arguments, and payload behind them.
    ///
    /// # Errors
    /// The library refuses to use the context, for example because it has expired.
    pub fn call(
        &self,
        named: Named,
        number: &Number,
        arguments: &Bytes,
        payload: Option<Payload>,
    ) -> Result<Vec<Part>, Failed> {
        let payload_bytes = payload.as_ref().map_or(0, Payload::len);
        let room = arguments.len().saturating_add(payload_bytes).saturating_add(PROTECTION_BYTES);
        let mut message = Encoder::with_capacity(if self.service == Service::None { 512 } else { room });
        self.header(named, Procedure::Data, number.sequence, &mut message)?;
        if self.service == Service::None {
            message.raw(arguments);
            let mut parts = vec![Part::Bytes(message.into_bytes())];
            parts.extend(payload.map(|data| Part::Payload { data, to: To::Inline }));
            return Ok(parts);
        }
        let mut body = body(number.sequence, room);
        body.raw(arguments);
        match payload {
            None => {}
            Some(Payload::Chain(chain)) => {
                chain.iter().for_each(|bytes| body.raw(bytes));
                body.raw(fill(payload_bytes));
            }
            Some(Payload::File(_)) => return Err(Failed::Unexpected("a range of a file as payload")),
        }
        seal(self, self.service, body, &mut message)?;
        Ok(vec![Part::Bytes(message.into_bytes())])
    }

    /// The call that ends the context, without a body (RFC 2203 5.4).
    pub fn destroy(&self, named: Named, number: &Number) -> Result<Bytes, Failed> {
        let mut message = Encoder::with_capacity(PROTECTION_BYTES);
        self.header(Named { procedure: 0, ..named }, Procedure::Destroy, number.sequence, &mut message)?;
        Ok(message.into_bytes())
    }

    fn header(
        &self,
        Named { xid, program, version, procedure }: Named,
        kind: Procedure,
        sequence: u32,
        message: &mut Encoder,
    ) -> Result<(), Failed> {
        let credential = Credential::Gss(GssCredential {
            procedure: kind,
            sequence,
            service: self.service,
            handle: self.handle.clone(),
            covered_bytes: 0,
            mic: Bytes::new(),
        });
        Call { xid, program, version, procedure, credential }.emit_signed(message, |header| self.mic(header))
    }

    /// The results of a reply, if it is the server's reply to the call with this number (RFC 2203 5.3.3.2).
    ///
    /// # Errors
    /// The server did not carry the call out, or the reply is not its own.
    pub fn results(&self, number: &Number, reply: Message) -> Result<Decoder, Error> {
        let Message { body, detached, .. } = reply;
        let mut d = Decoder::reduced(body, detached.and_then(Detached::here));
        let (_, reply, mic) = Reply::parse_verified(&mut d)?;
        // A failure proves nothing to anybody, and a refused credential has no verifier.
        if reply != Reply::Success {
            return Err(Error::Rpc(reply));
        }
        let mic = mic.ok_or(Error::Forged)?;
        if !self.verify(&number.sequence.to_be_bytes(), &mic) {
            return Err(Error::Forged);
        }
        open(self, self.service, number.sequence, d).ok_or(Error::Forged)
    }
}

impl SecurityContext for Context {
    fn mic(&self, message: &[u8]) -> Result<Vec<u8>, Failed> {
        self.mechanism.borrow_mut().mic(message)
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> bool {
        self.mechanism.borrow_mut().verify(message, mic)
    }

    fn wrap(&self, message: &[u8]) -> Result<Vec<u8>, Failed> {
        self.mechanism.borrow_mut().wrap(message)
    }

    fn unwrap(&self, token: &[u8]) -> Option<Vec<u8>> {
        self.mechanism.borrow_mut().unwrap(token)
    }
}

/// The number of one attempt of a call; dropped when its reply has arrived, or when nobody waits for that any more.
pub(crate) struct Number {
    context: Rc<Context>,
    sequence: u32,
}

impl Drop for Number {
    fn drop(&mut self) {
        self.context.outstanding.borrow_mut().remove(&self.sequence);
        self.context.waiting.take().into_iter().for_each(Waker::wake);
    }
}
