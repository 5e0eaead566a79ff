//! Stories of one client and one server, with an attacker between them.

mod compressed;
mod direct;
mod encrypted_share;
mod foreign;
mod kept;
mod leased;
mod locks;
mod multichannel;
mod own;
mod story;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::Buf;
use weft_transport::{
    Access, Channel, Exposed, Kind, Limits, Message, Outgoing, Part, Segment, Sending, Traffic,
};
use weft_wire::smb2::negotiate::CipherId;
use weft_wire::smb2::{Dialect, Header};

/// Each cipher, with a dialect that supports it.
const CIPHERS: [(Dialect, CipherId); 6] = [
    (Dialect::V3_0, CipherId::AES_128_CCM),
    (Dialect::V3_0_2, CipherId::AES_128_CCM),
    (Dialect::V3_1_1, CipherId::AES_128_CCM),
    (Dialect::V3_1_1, CipherId::AES_256_CCM),
    (Dialect::V3_1_1, CipherId::AES_128_GCM),
    (Dialect::V3_1_1, CipherId::AES_256_GCM),
];

type Change = Box<dyn Fn(&mut Vec<u8>) -> bool>;

/// A man in the middle: sees everything that the client sends and may change what it receives.
struct Between {
    inner: Rc<dyn Channel>,
    /// Returns whether it changed the message.
    change: RefCell<Option<Change>>,
    changed: Cell<u32>,
    seen: RefCell<Vec<u8>>,
    /// The headers of what the client sent unencrypted.
    plain: RefCell<Vec<Header>>,
    exposed: Cell<u32>,
}

impl Between {
    fn new(inner: Rc<dyn Channel>) -> Rc<Between> {
        Rc::new(Between {
            inner,
            change: RefCell::new(None),
            changed: Cell::new(0),
            seen: RefCell::new(Vec::new()),
            plain: RefCell::default(),
            exposed: Cell::new(0),
        })
    }

    /// Installs the change for the following messages.
    fn tamper(&self, change: impl Fn(&mut Vec<u8>) -> bool + 'static) {
        self.change.replace(Some(Box::new(change)));
    }

    fn pass(&self, mut message: Message) -> Message {
        if let Some(change) = &*self.change.borrow() {
            let mut bytes = message.body.to_vec();
            self.changed.set(self.changed.get() + u32::from(change(&mut bytes)));
            message.body = bytes.into();
        }
        self.seen.borrow_mut().extend_from_slice(&message.body);
        message
    }

    fn saw(&self, what: &[u8]) -> bool {
        self.seen.borrow().windows(what.len()).any(|w| w == what)
    }
}

impl Channel for Between {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }
    fn medium(&self) -> &'static str {
        self.inner.medium()
    }
    fn peer(&self) -> weft_transport::Peer {
        self.inner.peer()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, weft_transport::Error>> {
        Box::pin(async { Ok(self.inner.recv().await?.map(|m| self.pass(m))) })
    }
    fn try_recv(&self) -> Option<Message> {
        self.inner.try_recv().map(|m| self.pass(m))
    }
    fn send(&self, message: Outgoing) -> Sending {
        if let Some(Part::Bytes(bytes)) = message.parts.first() {
            self.plain.borrow_mut().extend(Header::parse(bytes).ok());
        }
        for part in &message.parts {
            match part {
                Part::Bytes(bytes) => self.seen.borrow_mut().extend_from_slice(bytes),
                Part::Payload { data: weft_machine::Payload::Chain(chain), .. } => {
                    chain.iter().for_each(|bytes| self.seen.borrow_mut().extend_from_slice(bytes));
                }
                Part::Payload { .. } => panic!("a client has no files"),
            }
        }
        self.inner.send(message)
    }
    fn cork(&self, on: bool) {
        self.inner.cork(on);
    }
    fn remote(&self, from: Vec<Segment>) -> Box<dyn weft_transport::RemotePayload> {
        self.inner.remote(from)
    }
    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, weft_transport::Error> {
        self.exposed.set(self.exposed.get() + 1);
        self.inner.expose(buf, access)
    }
    fn revoke(&self, exposed: Exposed) -> Option<Buf> {
        self.inner.revoke(exposed)
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn close(&self) {
        self.inner.close();
    }
}
