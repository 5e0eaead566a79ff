//! A client's connection that breaks under a request: the server gets the request, and its answer gets lost.
//!
//! A client whose session has another connection sends the request again there, marked as a replay ([MS-SMB2] 3.2.4.1.10), so the server gets
//! it twice.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, Peer, Pool};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, RemotePayload, Security, Segment,
    Sending, Traffic,
};

use crate::tap::passed_on;

/// See the module.
pub struct Fragile {
    channel: Rc<dyn Channel>,
    /// What is to be done when the next request breaks it.
    breaks: RefCell<Option<Box<dyn FnOnce()>>>,
    broken: Cell<bool>,
}

impl Fragile {
    /// The channel, which does not break yet.
    pub fn new(channel: Rc<dyn Channel>) -> Rc<Fragile> {
        Rc::new(Fragile { channel, breaks: RefCell::default(), broken: Cell::new(false) })
    }

    /// The next request breaks it.
    pub fn will_break(&self, then: impl FnOnce() + 'static) {
        *self.breaks.borrow_mut() = Some(Box::new(then));
    }

    /// Nothing breaks it any more.
    pub fn is_safe(&self) {
        self.breaks.take();
    }

    /// Whether it was broken.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }
}

impl Channel for Fragile {
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        self.channel.recv()
    }

    fn try_recv(&self) -> Option<Message> {
        self.channel.try_recv()
    }

    fn send(&self, message: Outgoing) -> Sending {
        let sending = self.channel.send(message);
        if let Some(then) = self.breaks.take() {
            self.broken.set(true);
            // What was sent still arrives.
            self.channel.close();
            then();
        }
        sending
    }

    fn close(&self) {
        self.channel.close();
    }

    passed_on!();
}
