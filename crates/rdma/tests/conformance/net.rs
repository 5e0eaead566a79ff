//! Connects two queue pairs of one provider, and waits for their completions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use weft_machine::{Buf, Pool, rt};
use weft_rdma::{
    Access, Completion, ConnectParams, Disconnect, Done, PostError, Provider, QueuePair, Refusal, Segment,
    Work, WorkError, shm,
};

use crate::{Kind, Medium};

/// The value of every byte before somebody writes it.
pub const FILL: u8 = 0xa5;

/// A provider, and a pool for each side.
pub struct Net {
    pub provider: Rc<dyn Provider>,
    pub client_provider: Rc<dyn Provider>,
    pub pool: Pool,
    pub client_pool: Pool,
    pub name: &'static str,
    pub copies_per_received_byte: u64,
    pub medium: Medium,
}

impl Net {
    pub fn run<F: AsyncFnOnce(&Net)>(kind: &Kind, case: F) {
        // RUST_LOG=debug shows the messages of a device.
        let filter = std::env::var("RUST_LOG").map_or_else(|_| Targets::new(), |text| text.parse().unwrap());
        let lines = tracing_subscriber::fmt::layer().with_test_writer();
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
        let medium = match (kind.medium)() {
            Ok(medium) => medium,
            Err(why) => return println!("skipped: {why}"),
        };
        let (pool, client_pool) = (Pool::new(256 << 20), Pool::new(256 << 20));
        let net = Net {
            provider: (kind.make)(pool.clone()),
            client_provider: (kind.make_client)(client_pool.clone()),
            pool,
            client_pool,
            name: kind.name,
            copies_per_received_byte: kind.copies_per_received_byte,
            medium,
        };
        rt::block_on(async { rt::timeout(medium.case_limit, case(&net)).await.expect("the case hangs") })
            .unwrap();
    }

    /// A connection whose first message has been delivered.
    pub async fn connect(&self) -> Pair {
        let listener = self.provider.listen(self.any_port()).await.unwrap();
        let addr = listener.local_addr();
        let accept = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            let buf = self.pool.alloc(64).await;
            let recvs = vec![Work::Recv { id: 0, buf }];
            let qp = request.accept(ConnectParams::default(), recvs).await.unwrap();
            End::new(qp, self.pool.clone(), self.medium)
        };
        let connect = async {
            let (qp, _) = self.client_provider.connect(addr, ConnectParams::default()).await.unwrap();
            let client = End::new(qp, self.client_pool.clone(), self.medium);
            client.send(0, b"hello");
            client
        };
        let (server, client) = futures_util::join!(accept, connect);
        assert_eq!(&server.received(0).await[..], b"hello");
        assert!(matches!(client.done(0).await, Done::Sent));
        Pair { client, server }
    }

    /// Where to listen: any port on this medium's address.
    pub fn any_port(&self) -> SocketAddr {
        SocketAddr::new(self.medium.ip, 0)
    }
}

/// A directory of this test process for the sockets of the shm provider, the same for its children.
pub fn shm_config() -> shm::Config {
    let pid = std::env::var("WEFT_TEST_PARENT").unwrap_or_else(|_| std::process::id().to_string());
    let dir = std::env::temp_dir().join(format!("weft-conformance-{pid}"));
    shm::Config { dir, ..shm::Config::default() }
}

/// Two connected queue pairs.
pub struct Pair {
    pub client: End,
    pub server: End,
}

impl Pair {
    /// The peer refuses work `id` of the client, for one of the reasons `expected` if the medium names one, and both
    /// sides report the same.
    pub async fn refused_on_both_sides(&self, id: u64, expected: &[Refusal]) {
        let (refusal, refused) = futures_util::join!(self.server.refuses(), self.client.refused(id));
        if self.client.medium.refusals_named {
            assert_eq!(refusal, refused);
            assert!(expected.contains(&refusal.unwrap()), "{refusal:?} is none of {expected:?}");
        } else {
            println!("{}: here {refusal:?}, there {refused:?}", std::thread::current().name().unwrap_or(""));
        }
    }
}

/// A queue pair and the completions that nobody has taken yet.
pub struct End {
    pub qp: Rc<dyn QueuePair>,
    pub pool: Pool,
    medium: Medium,
    seen: RefCell<VecDeque<Completion>>,
    next_id: Cell<u64>,
}

impl End {
    pub fn new(qp: Rc<dyn QueuePair>, pool: Pool, medium: Medium) -> End {
        End { qp, pool, medium, seen: RefCell::default(), next_id: Cell::new(1 << 32) }
    }

    pub fn fresh_id(&self) -> u64 {
        self.next_id.set(self.next_id.get() + 1);
        self.next_id.get()
    }

    async fn poll(&self) -> Result<(), Disconnect> {
        let mut out = Vec::new();
        let result = std::future::poll_fn(|cx| self.qp.poll(cx, &mut out)).await;
        if result.is_ok() {
            assert!(!out.is_empty(), "poll without a completion");
        }
        self.seen.borrow_mut().extend(out);
        result
    }

    /// The next completion of any work.
    pub async fn next(&self) -> Result<Completion, Disconnect> {
        loop {
            if let Some(completion) = self.seen.borrow_mut().pop_front() {
                return Ok(completion);
            }
            self.poll().await?;
        }
    }

    /// The completion of `id`; others are kept for later.
    pub async fn completion(&self, id: u64) -> Completion {
        loop {
            let at = self.seen.borrow().iter().position(|completion| completion.id == id);
            if let Some(at) = at {
                return self.seen.borrow_mut().remove(at).unwrap();
            }
            self.poll().await.unwrap_or_else(|e| panic!("ended without completing {id}: {e}"));
        }
    }

    pub async fn done(&self, id: u64) -> Done {
        self.completion(id).await.result.unwrap_or_else(|e| panic!("work {id} failed: {e}"))
    }

    /// The message that arrived in the receive buffer `id`.
    pub async fn received(&self, id: u64) -> Buf {
        match self.done(id).await {
            Done::Received { buf, .. } => buf,
            other => panic!("no message: {other:?}"),
        }
    }

    /// Everything up to the end, and its reason.
    pub async fn end(&self) -> (Vec<Completion>, Disconnect) {
        let reason = loop {
            if let Err(reason) = self.poll().await {
                break reason;
            }
        };
        // And it stays ended.
        assert_eq!(self.poll().await, Err(reason.clone()));
        (self.seen.borrow_mut().drain(..).collect(), reason)
    }

    /// How the peer refused work `id`, whether or not it completed before that was known. A device may know only that
    /// the other side ended the connection: then `None`. It never reports success instead.
    pub async fn refused(&self, id: u64) -> Option<Refusal> {
        let (completions, reason) = self.end().await;
        for completion in completions {
            match completion.result {
                Err(WorkError::Remote(refusal)) => {
                    assert_eq!(completion.id, id, "another work was blamed");
                    assert_eq!(reason, Disconnect::Terminated(refusal));
                    return Some(refusal);
                }
                Ok(Done::Read { .. }) if completion.id == id => panic!("a refused Read was carried out"),
                _ => {}
            }
        }
        self.unless_unnamed(reason, |reason| match reason {
            Disconnect::Terminated(refusal) => Some(refusal),
            _ => None,
        })
    }

    /// This side refused the peer.
    pub async fn refuses(&self) -> Option<Refusal> {
        let reason = self.end().await.1;
        self.unless_unnamed(reason, |reason| match reason {
            Disconnect::Refused(refusal) => Some(refusal),
            _ => None,
        })
    }

    fn unless_unnamed(
        &self,
        reason: Disconnect,
        named: impl Fn(Disconnect) -> Option<Refusal>,
    ) -> Option<Refusal> {
        let refusal = named(reason.clone());
        let may_be_unnamed = matches!(reason, Disconnect::Peer | Disconnect::Lost(_));
        assert!(
            refusal.is_some() || !self.medium.refusals_named && may_be_unnamed,
            "no refusal but the end: {reason}"
        );
        refusal
    }

    pub fn try_post(&self, work: Work) -> Result<(), PostError> {
        self.qp.post(work).map_err(|(e, _)| e)
    }

    pub fn post(&self, work: Work) {
        self.try_post(work).unwrap();
    }

    pub fn recv(&self, id: u64, capacity: usize) {
        let buf = self.pool.try_alloc(capacity).unwrap();
        self.post(Work::Recv { id, buf });
    }

    pub fn send(&self, id: u64, data: &[u8]) {
        let data = vec![Bytes::copy_from_slice(data)];
        self.post(Work::Send { id, data, invalidate: None, solicited: false, signalled: true });
    }

    pub fn write(&self, id: u64, data: impl Into<Bytes>, to: Segment) {
        self.post(Work::Write { id, data: data.into().into(), to, signalled: true });
    }

    pub fn read(&self, id: u64, from: Segment) {
        let into = self.pool.try_alloc(from.len as usize).unwrap();
        self.post(Work::Read { id, into, from });
    }

    /// A registered region of `len` bytes of [`FILL`].
    pub fn region(&self, len: usize, access: Access) -> Segment {
        self.region_of(&vec![FILL; len], access)
    }

    pub fn region_of(&self, bytes: &[u8], access: Access) -> Segment {
        self.qp.register(self.pool.buf_from(bytes).unwrap(), access).unwrap()
    }

    /// Returns when everything sent to this side so far has been handled: a message there and back.
    pub async fn settle(&self, peer: &End) {
        let (id, peer_id) = (self.fresh_id(), peer.fresh_id());
        self.recv(id, 16);
        peer.recv(peer_id, 16);
        peer.send(peer.fresh_id(), b"ping");
        self.received(id).await;
        self.send(self.fresh_id(), b"pong");
        peer.received(peer_id).await;
    }
}

/// `len` bytes that differ by position and `seed`, and are never [`FILL`] for long.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31).wrapping_add(i >> 8).wrapping_add(seed * 17)) as u8).collect()
}

/// A part of a segment, without any check.
pub fn part(of: Segment, offset: u64, len: u32) -> Segment {
    Segment { stag: of.stag, offset: of.offset.wrapping_add(offset), len }
}

/// Drives other futures while waiting for one.
pub async fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = rt::now() + Duration::from_secs(20);
    while !ready() {
        assert!(rt::now() < deadline, "never happened: {what}");
        rt::sleep(Duration::from_millis(1)).await;
    }
}
