//! Fuzzes the server with misbehaving clients that know the protocol: their calls are well-formed, name existing
//! objects, and make no sense.
//!
//! See RFC 1813, RFC 7530, RFC 8881 and RFC 7862. The server's shares are in memory, and the clients are made by
//! hand. Ordinary tests check the replies to honest clients. This file is built for tests and fuzzers only.
//!
//! An input is a [`Script`]. Its calls (made by `v3` and `v4`) name handles, state ids, clients and sessions from
//! earlier replies; they are sent on several connections, repeated, damaged, and overlapped; time passes, connections
//! end, and the server's own calls are answered or not. Checked: no panic; every call is answered once, given time;
//! replies can be parsed and have a result for each operation up to the one that failed; every connection ends when
//! its peer leaves; another client is served afterwards; no buffer leaks, and no open outlives its client forever.

mod v3;
mod v4;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::{Script, Sim};
use weft_machine::{Payload, Pool, rt};
use weft_store::backend::Ram;
use weft_store::{NodeId, Share, ShareId, Vfs};
use weft_transport::{Channel, Error, Message, Outgoing, Part, Peer, Sending, Ticket, Traffic};
use weft_wire::rpc::{AuthSys, Call, Credential, Reply};
use weft_wire::xdr::{Decoder, Encoder, Xdr};

use super::file_id::FileId;
use super::{Config, Limits, Policy, Server};
use crate::memory::without_rdma;

/// A name, as in `fuzz/`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: &[Target] = &[("nfs_server", nfs_server)];

const MAX_ACTS: usize = 120;
const CONNECTIONS: usize = 3;
/// Most items kept of each kind; the oldest are forgotten.
const MAX_KNOWN: usize = 16;
/// Longer than any wait for a client: a lease, a recall and what follows.
const PATIENCE: Duration = Duration::from_secs(600);
const SHARE_BYTES: u64 = 1 << 20;

thread_local! {
    // One for all inputs, because creating a pool costs as much as a short script.
    static POOL: Pool = Pool::new(16 << 20);
}

/// Runs a script of misbehaving clients.
pub fn nfs_server(data: &[u8]) {
    let pool = POOL.with(Pool::clone);
    let mut script = Script::new(data);
    let mut files = Vec::new();
    Sim::new(u64::from(script.byte())).time_limit(Duration::from_secs(1 << 20)).run(async {
        let mut world = World::new(&pool).await;
        files.extend(world.server.shares.now().iter().map(|share| Arc::downgrade(share.vfs.opens())));
        let mut acts = 0;
        while !script.is_over() && acts < MAX_ACTS {
            world.act(&mut script).await;
            acts += 1;
        }
        world.end().await;
    });
    assert_eq!(pool.in_use_bytes(), 0, "a buffer is lost");
    assert!(
        files.iter().all(|opens| opens.strong_count() == 0),
        "an open outlives its client and the server"
    );
}

/// One connection, and the replies that its client waits for.
struct Wire {
    peer: &'static str,
    calls: RefCell<VecDeque<Bytes>>,
    replies: RefCell<VecDeque<Outgoing>>,
    server: RefCell<Option<Waker>>,
    left: Cell<bool>,
    ended: Cell<bool>,
}

impl Wire {
    fn say(&self, message: Bytes) {
        self.calls.borrow_mut().push_back(message);
        self.wake();
    }

    fn leave(&self) {
        self.left.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.server.take() {
            waker.wake();
        }
    }
}

impl Channel for Wire {
    without_rdma!();
    fn peer(&self) -> Peer {
        Peer::Tcp(self.peer.parse().expect("an address"))
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(poll_fn(|cx| match self.try_recv() {
            Some(message) => Poll::Ready(Ok(Some(message))),
            None if self.left.get() => Poll::Ready(Ok(None)),
            None => {
                self.server.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.calls.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        self.replies.borrow_mut().push_back(message);
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

/// What a call was, kept until its reply arrives.
enum Asked {
    /// A procedure of version 3.
    V3(u32),
    /// A compound of these operations.
    V4(Vec<weft_wire::nfs4::Op>),
    /// Any other call; its reply is not examined.
    Other,
}

/// Items that calls can name, latest last.
struct RecentItems<T>(VecDeque<T>);

impl<T> Default for RecentItems<T> {
    fn default() -> RecentItems<T> {
        RecentItems(VecDeque::new())
    }
}

impl<T: Clone> RecentItems<T> {
    fn learn(&mut self, thing: T) {
        self.0.push_back(thing);
        // The first ones stay: a root, a working session.
        if self.0.len() > MAX_KNOWN {
            self.0.remove(MAX_KNOWN / 2);
        }
    }

    fn pick(&self, script: &mut Script<'_>) -> Option<T> {
        (!self.0.is_empty()).then(|| self.0[script.below(self.0.len())].clone())
    }
}

/// What clients have learned.
#[derive(Default)]
struct Knowledge {
    handles: RecentItems<Bytes>,
    v4: v4::Knowledge,
}

struct World {
    server: Arc<Server>,
    wires: Vec<Rc<Wire>>,
    known: Knowledge,
    next_xid: u32,
    /// Xids of damaged calls.
    strange: HashSet<u32>,
    /// By connection and xid.
    open: BTreeMap<(usize, u32), Asked>,
    /// Messages to be sent again.
    sent: RecentItems<Bytes>,
    /// The server's callbacks, by connection.
    called: RecentItems<(usize, Bytes)>,
}

impl World {
    async fn new(pool: &Pool) -> World {
        let share = |name: &str| Share::new(name, Vfs::new(Ram::new(SHARE_BYTES)));
        let limits = Limits {
            max_payload: 64 << 10,
            max_listing: 4 << 10,
            requests: 8,
            replies: 8,
            ..Limits::default()
        };
        let server = Server::new(Config {
            shares: vec![share("ram"), share("other")],
            pool: pool.clone(),
            limits,
            policy: Policy { decides: false, squash_root: true },
            durable: None,
        });
        let housekeeper = server.clone();
        rt::spawn(async move { housekeeper.run_housekeeping().await }).detach();
        let mut known = Knowledge::default();
        // That of the first share twice, because most calls use it.
        let shares = server.shares.now();
        for name in ["ram", "ram", "other"] {
            let share = shares.get(ShareId::of_name(name)).expect("a share of this name").key();
            let root = server.handles.make(&shares, FileId { share, node: NodeId::ROOT }).await;
            known.handles.learn(Bytes::copy_from_slice(root.expect("a root").as_bytes()));
        }
        let mut world = World {
            server,
            wires: Vec::new(),
            known,
            next_xid: 1,
            strange: HashSet::new(),
            open: BTreeMap::new(),
            sent: RecentItems::default(),
            called: RecentItems::default(),
        };
        for at in 0..CONNECTIONS {
            world.connect(at);
        }
        for (on, minor, ops) in
            [(0, 1, v4::exchange_id(0)), (1, 1, v4::exchange_id(1)), (2, 0, v4::setclientid())]
        {
            world.compound(on, minor, vec![ops]);
        }
        world.settle(Duration::from_millis(1)).await;
        for (on, minor, op) in v4::second_steps(&world.known.v4) {
            world.compound(on, minor, vec![op]);
        }
        world.settle(Duration::from_millis(1)).await;
        assert_eq!(world.known.v4.sessions.0.len(), 2, "the set-up of sessions fails");
        let root = world.known.handles.0[0].clone();
        for (on, minor, ops) in v4::third_steps(&mut world.known.v4, &root) {
            world.compound(on, minor, ops);
            world.settle(Duration::from_millis(1)).await;
        }
        assert!(world.known.handles.0.len() > 5, "the set-up of files fails");
        world
    }

    /// Opens a new connection at this index.
    fn connect(&mut self, at: usize) {
        const PEERS: [&str; CONNECTIONS] = ["192.0.2.1:700", "192.0.2.1:701", "192.0.2.2:700"];
        let wire = Rc::new(Wire {
            peer: PEERS[at],
            calls: RefCell::default(),
            replies: RefCell::default(),
            server: RefCell::default(),
            left: Cell::new(false),
            ended: Cell::new(false),
        });
        let (server, served) = (self.server.clone(), wire.clone());
        rt::spawn(async move {
            // Any error is the peer's fault.
            let _ = server.serve(served.clone()).await;
            served.ended.set(true);
        })
        .detach();
        match self.wires.get_mut(at) {
            Some(place) => *place = wire,
            None => self.wires.push(wire),
        }
    }

    async fn act(&mut self, script: &mut Script<'_>) {
        let on = script.below(CONNECTIONS);
        match script.byte() % 24 {
            0 => {
                // Messages not yet received stay unanswered; received ones may or may not be answered.
                self.wires[on].leave();
                self.open.retain(|(wire, _), _| *wire != on);
                self.connect(on);
            }
            1 => {
                let seconds = *script.one_of(&[1, 30, 61, 130]);
                self.settle(Duration::from_secs(seconds)).await;
            }
            2 => {
                if let Some(message) = self.sent.pick(script) {
                    self.wires[on].say(message);
                }
            }
            3 => {
                if let Some(message) = self.sent.pick(script) {
                    let damaged = damaged(&message, script);
                    // With two calls of one xid, it is unknown which of them was answered.
                    if let Some(xid) = damaged.first_chunk() {
                        let xid = u32::from_be_bytes(*xid);
                        self.open.remove(&(on, xid));
                        self.strange.insert(xid);
                    }
                    self.wires[on].say(damaged);
                }
            }
            4 | 5 => {
                if let Some((on, call)) = self.called.0.pop_front() {
                    let reply = v4::answer_callback(&call, script);
                    self.wires[on].say(reply);
                }
            }
            6..=10 => {
                let (asked, program, version, procedure, args) = v3::call(&self.known, script);
                self.call(on, asked, (program, version, procedure), script.byte(), &args);
            }
            _ => {
                let (minor, ops) = v4::compound(&mut self.known, script);
                self.compound(on, minor, ops);
            }
        }
        // Calls pile up now and then.
        if script.byte() % 4 != 3 {
            self.settle(Duration::from_millis(1)).await;
        }
    }

    fn compound(&mut self, on: usize, minor: u32, ops: Vec<weft_wire::nfs4::Op>) {
        use weft_wire::nfs4;
        let mut e = Encoder::default();
        let count = ops.len() as u32;
        nfs4::CompoundHead { tag: nfs4::Text::known("fuzz"), minor, count }.emit(&mut e);
        ops.iter().for_each(|op| op.emit(&mut e));
        let number = (nfs4::PROGRAM, nfs4::VERSION, nfs4::COMPOUND);
        self.call(on, Asked::V4(ops), number, 1, &e.into_bytes());
    }

    fn call(&mut self, on: usize, asked: Asked, number: (u32, u32, u32), who: u8, args: &[u8]) {
        let (program, version, procedure) = number;
        while self.strange.contains(&self.next_xid) {
            self.next_xid += 1;
        }
        let xid = self.next_xid;
        self.next_xid += 1;
        let uid = u32::from(who % 3);
        let credential = match who % 8 {
            7 => Credential::None,
            _ => Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, uid)),
        };
        let mut e = Encoder::default();
        Call { xid, program, version, procedure, credential }.emit(&mut e);
        e.raw(args);
        let message = e.into_bytes();
        self.sent.learn(message.clone());
        self.open.insert((on, xid), asked);
        self.wires[on].say(message);
    }

    /// Lets time pass, and examines the replies.
    async fn settle(&mut self, time: Duration) {
        rt::sleep(time).await;
        for on in 0..self.wires.len() {
            loop {
                let reply = self.wires[on].replies.borrow_mut().pop_front();
                let Some(reply) = reply else { break };
                let message = flat(reply, &self.server.pool).await;
                self.hear(on, message);
            }
            if self.wires[on].ended.get() {
                // A damaged message was not a call, which ends the connection.
                self.open.retain(|(wire, _), _| *wire != on);
                self.connect(on);
            }
        }
    }

    fn hear(&mut self, on: usize, message: Bytes) {
        if message.get(4..8) == Some(&[0; 4]) {
            return self.called.learn((on, message));
        }
        let mut d = Decoder::new(message);
        let (xid, reply) = Reply::parse(&mut d).expect("a reply that can be read");
        // `None`: the reply to a message that was sent again.
        let Some(asked) = self.open.remove(&(on, xid)) else { return };
        match (asked, reply) {
            (Asked::V3(procedure), Reply::Success) => v3::learn(procedure, d, &mut self.known),
            (Asked::V4(ops), Reply::Success) => v4::learn(&ops, d, &mut self.known),
            _ => {}
        }
    }

    async fn end(&mut self) {
        self.settle(PATIENCE).await;
        let unanswered: Vec<_> = self.open.keys().collect();
        assert!(unanswered.is_empty(), "never answered: {unanswered:?} (connection, xid)");
        self.connect(0);
        let (program, version, procedure, args) = v3::getattr(&self.known.handles.0[0]);
        self.call(0, Asked::Other, (program, version, procedure), 1, &args);
        self.compound(0, 1, vec![v4::exchange_id(2)]);
        self.settle(Duration::from_millis(1)).await;
        assert!(self.open.is_empty(), "nobody else is served");
        let wires = std::mem::take(&mut self.wires);
        wires.iter().for_each(|wire| wire.leave());
        rt::sleep(PATIENCE).await;
        assert!(wires.iter().all(|wire| wire.ended.get()), "a connection outlives its peer");
    }
}

/// The bytes of a message as a record carries them.
async fn flat(message: Outgoing, pool: &Pool) -> Bytes {
    let mut bytes = Vec::new();
    for part in message.parts {
        match part {
            Part::Bytes(piece) => bytes.extend_from_slice(&piece),
            Part::Payload { data, .. } => {
                let (len, before) = (data.len(), bytes.len());
                let chain = match data {
                    Payload::Chain(chain) => chain,
                    // The file was truncated meanwhile; a transport would end the connection.
                    file => file.into_chain(pool).await.expect("memory"),
                };
                chain.iter().for_each(|piece| bytes.extend_from_slice(piece));
                bytes.resize(before + len + weft_wire::xdr::pad(len), 0);
            }
        }
    }
    bytes.into()
}

/// The message with some bytes changed.
fn damaged(message: &Bytes, script: &mut Script<'_>) -> Bytes {
    let mut bytes = message.to_vec();
    for _ in 0..=script.below(3) {
        let at = script.below(bytes.len());
        bytes[at] = match script.byte() % 4 {
            0 => 0,
            1 => u8::MAX,
            2 => bytes[at] ^ 1 << (script.byte() % 8),
            _ => script.byte(),
        };
    }
    bytes.into()
}

/// A name that may exist, or must not.
fn name(script: &mut Script<'_>) -> Bytes {
    Bytes::from_static(match script.byte() % 16 {
        0..=3 => b"a",
        4..=6 => b"b",
        7 | 8 => b"c",
        9 => b"d",
        10 => b"..",
        11 => b"a/b",
        12 => b"",
        13 => &[b'x'; 300],
        14 => b"\xff\xfe",
        _ => b"A",
    })
}

#[cfg(test)]
mod tests;
