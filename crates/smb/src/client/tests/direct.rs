//! A channel with RDMA between two ends in one thread: the far end reaches exactly the memory that the client exposes.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, File, Payload, Pool, Window};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, Part, RemotePayload, Segment, Sending,
    Stag, Ticket, To, Traffic,
};

const MAX_MESSAGE: usize = 1 << 20;
const MAX_RDMA: usize = 8 << 20;

/// One end.
pub struct Direct {
    pool: Pool,
    inbox: RefCell<VecDeque<Bytes>>,
    reader: RefCell<Option<Waker>>,
    closed: Cell<bool>,
    peer: RefCell<Weak<Direct>>,
    /// Memory exposed to the peer. `None` as access: the peer has invalidated it, and its owner has not revoked it yet.
    regions: RefCell<HashMap<u32, (Window, Option<Access>)>>,
    next: Cell<u32>,
    traffic: RefCell<Traffic>,
    /// Regions that the peer invalidated.
    pub invalidated: Cell<u32>,
    /// Every byte that this end moved by RDMA, as it moved.
    pub tap: RefCell<Vec<u8>>,
    /// Whether one bit of all RDMA payload from this end is flipped in transit.
    pub damage: Cell<bool>,
    /// Whether this end reports that it waits for memory.
    pub starved: Cell<bool>,
    /// Whether the peer can invalidate regions of this end.
    pub revocable: Cell<bool>,
}

/// Two connected ends.
pub fn pair(pool: &Pool) -> (Rc<Direct>, Rc<Direct>) {
    let end = || {
        Rc::new(Direct {
            pool: pool.clone(),
            inbox: RefCell::default(),
            reader: RefCell::default(),
            closed: Cell::new(false),
            peer: RefCell::default(),
            regions: RefCell::default(),
            next: Cell::new(0x1000),
            traffic: RefCell::default(),
            invalidated: Cell::new(0),
            tap: RefCell::default(),
            damage: Cell::new(false),
            starved: Cell::new(false),
            revocable: Cell::new(true),
        })
    };
    let (a, b) = (end(), end());
    a.peer.replace(Rc::downgrade(&b));
    b.peer.replace(Rc::downgrade(&a));
    (a, b)
}

impl Direct {
    /// How many regions are exposed to the peer.
    pub fn open_regions(&self) -> usize {
        self.regions.borrow().len()
    }

    /// The other end.
    pub fn far(&self) -> Rc<Direct> {
        self.peer.borrow().upgrade().expect("the other end is there")
    }

    fn moved(&self, data: &mut [u8]) {
        if let (true, Some(byte)) = (self.damage.get(), data.first_mut()) {
            *byte ^= 0x10;
        }
        self.tap.borrow_mut().extend_from_slice(data);
    }

    fn wake(&self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn end(&self) {
        self.closed.set(true);
        self.wake();
    }

    /// The peer's memory behind a segment, or the end of both sides: a refused access ends an RDMA connection.
    fn reach(&self, peer: &Direct, segment: &Segment, wanted: Access) -> Result<Window, Error> {
        let regions = peer.regions.borrow();
        let window = regions
            .get(&segment.stag.0)
            .filter(|(_, access)| access.is_some_and(|access| access.allows(wanted)))
            .and_then(|(window, _)| window.slice(segment.offset as usize, segment.len as usize));
        window.ok_or_else(|| {
            self.end();
            peer.end();
            Error::Violation("RDMA outside of what is open")
        })
    }

    /// RDMA Read.
    fn pull(&self, from: &[Segment]) -> Result<Bytes, Error> {
        let peer = self.peer.borrow().upgrade().ok_or(Error::Closed)?;
        let mut all = Vec::new();
        for segment in from {
            let window = self.reach(&peer, segment, Access::RemoteRead)?;
            let at = all.len();
            all.resize(at + window.len(), 0);
            assert!(window.read_at(0, &mut all[at..]));
        }
        self.moved(&mut all);
        let mut traffic = self.traffic.borrow_mut();
        traffic.read = (traffic.read.0 + all.len() as u64, traffic.read.1 + 1);
        Ok(Bytes::from(all))
    }

    fn deliver(&self, message: Outgoing) -> Result<(), Error> {
        let peer = self.peer.borrow().upgrade().filter(|peer| !peer.closed.get()).ok_or(Error::Closed)?;
        let mut body = Vec::new();
        for part in message.parts {
            match part {
                Part::Bytes(bytes) => body.extend_from_slice(&bytes),
                Part::Payload { data, to } => {
                    let mut data = self.load(data)?;
                    match to {
                        To::Segments(segments) => {
                            self.moved(&mut data);
                            let mut rest = &data[..];
                            for segment in &segments {
                                let window = self.reach(&peer, segment, Access::RemoteWrite)?;
                                let (now, later) = rest.split_at(window.len().min(rest.len()));
                                assert!(window.write_at(0, now));
                                rest = later;
                            }
                            assert!(rest.is_empty(), "more payload than segments");
                            let mut traffic = self.traffic.borrow_mut();
                            traffic.written = (traffic.written.0 + data.len() as u64, traffic.written.1 + 1);
                        }
                        To::Inline => body.extend_from_slice(&data),
                        To::Ticket => panic!("SMB has no tickets"),
                    }
                }
            }
        }
        assert!(body.len() <= MAX_MESSAGE, "a message of {} bytes", body.len());
        if let Some(stag) = message.invalidate {
            let mut regions = peer.regions.borrow_mut();
            let region = regions.get_mut(&stag.0).ok_or(Error::Violation("invalidates no region"))?;
            region.1 = None;
            peer.invalidated.set(peer.invalidated.get() + 1);
        }
        peer.inbox.borrow_mut().push_back(body.into());
        peer.wake();
        Ok(())
    }

    fn load(&self, data: Payload) -> Result<Vec<u8>, Error> {
        match data {
            Payload::Chain(chain) => Ok(chain.concat()),
            Payload::File(range) => {
                let mut buf = self.pool.try_alloc(range.len).expect("a pool that is large enough");
                buf.set_len(range.len);
                let window = buf.into_window();
                range.try_read_into(&window).expect("in the page cache")?;
                let buf = window.try_into_buf().expect("ours alone");
                Ok(buf.to_vec())
            }
        }
    }
}

/// Memory that the peer has exposed.
struct Exposure {
    end: Weak<Direct>,
    from: Vec<Segment>,
}

impl std::fmt::Debug for Exposure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Exposure").field(&self.from).finish()
    }
}

impl RemotePayload for Exposure {
    fn len(&self) -> usize {
        Segment::total(&self.from) as usize
    }
    fn fill(&self, _: &File, _: u64, _: usize) -> Option<std::io::Result<()>> {
        None
    }
    fn fetch(&self) -> weft_machine::payload::Fetching {
        let end = self.end.upgrade().ok_or(Error::Closed);
        Box::pin(std::future::ready(end.and_then(|end| end.pull(&self.from)).map_err(Into::into)))
    }
}

impl Channel for Direct {
    fn kind(&self) -> Kind {
        Kind::Smbd
    }
    fn medium(&self) -> &'static str {
        "memory"
    }
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Rdma(([192, 0, 2, 1], 445).into())
    }
    fn limits(&self) -> Limits {
        Limits { max_message: MAX_MESSAGE, max_rdma: Some(MAX_RDMA) }
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(poll_fn(|cx| match self.try_recv() {
            Some(message) => Poll::Ready(Ok(Some(message))),
            None if self.closed.get() => Poll::Ready(Ok(None)),
            None => {
                self.reader.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.inbox.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        Sending::answered(self.deliver(message))
    }
    fn cork(&self, _on: bool) {}
    fn remote(&self, from: Vec<Segment>) -> Box<dyn RemotePayload> {
        let own = self.peer.borrow().upgrade().map(|peer| peer.peer.borrow().clone());
        Box::new(Exposure { end: own.unwrap_or_default(), from })
    }
    fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, Error> {
        let stag = self.next.replace(self.next.get() + 0x101);
        let len = buf.len() as u32;
        self.regions.borrow_mut().insert(stag, (buf.into_window(), Some(access)));
        Ok(Exposed {
            segments: vec![Segment { stag: Stag(stag), offset: 0, len }],
            revocable: self.revocable.get(),
        })
    }
    fn revoke(&self, exposed: Exposed) -> Option<Buf> {
        let (window, _) = self.regions.borrow_mut().remove(&exposed.segments[0].stag.0)?;
        Some(window.try_into_buf().expect("nobody else holds it"))
    }
    fn waits_for_memory(&self) -> bool {
        self.starved.get()
    }
    fn traffic(&self) -> Traffic {
        *self.traffic.borrow()
    }
    fn close(&self) {
        self.end();
        if let Some(peer) = self.peer.borrow().upgrade() {
            peer.end();
        }
    }
}
