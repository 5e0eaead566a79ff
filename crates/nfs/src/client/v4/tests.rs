//! The version 4.1 client against our server, with connections that end at every possible reply. Time is virtual.

mod abandoned;
mod locks;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_machine::sim::Sim;
use weft_machine::{Buf, Pool, rt};
use weft_store::backend::{Dir, Ram};
use weft_store::{Share, Vfs};
use weft_transport::{
    Access, Channel, Error as Failed, Exposed, Kind, Limits as Carries, Message, Outgoing, Part, Sending,
    Ticket, Traffic,
};
use weft_wire::nfs4::{
    self, CALLBACK_VERSION, CB_COMPOUND, CB_NULL, CompoundHead, Op, ReplyHead, Status, Xdr,
};
use weft_wire::rpc::{Call, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use super::*;
use crate::client::{Credential, Dial, Error, Options, SetAttributes};
use crate::server::{Config, Durable, Limits, Policy, Server};

/// One direction of a connection.
#[derive(Default)]
struct Queue {
    messages: RefCell<VecDeque<Bytes>>,
    reader: RefCell<Option<Waker>>,
}

impl Queue {
    fn wake(&self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }
}

/// A connection, and when it ends.
struct Wire {
    to_server: Queue,
    to_client: Queue,
    gone: Cell<bool>,
    host: [u8; 4],
    world: Rc<World>,
}

impl Wire {
    fn cut(&self) {
        self.gone.set(true);
        self.to_server.wake();
        self.to_client.wake();
    }

    /// Holds up the last request, which the server has not received yet.
    fn hold_up(&self) -> Bytes {
        self.to_server.messages.borrow_mut().pop_back().unwrap()
    }

    /// A request that was held up arrives.
    fn arrives(&self, request: Bytes) {
        self.to_server.messages.borrow_mut().push_back(request);
        self.to_server.wake();
    }
}

/// One end of a connection.
struct End {
    wire: Rc<Wire>,
    server: bool,
}

impl End {
    fn queues(&self) -> (&Queue, &Queue) {
        match self.server {
            true => (&self.wire.to_server, &self.wire.to_client),
            false => (&self.wire.to_client, &self.wire.to_server),
        }
    }
}

impl Channel for End {
    fn kind(&self) -> Kind {
        Kind::Record
    }
    fn medium(&self) -> &'static str {
        "memory"
    }
    fn peer(&self) -> weft_transport::Peer {
        weft_transport::Peer::Tcp((self.wire.host, 700).into())
    }
    fn limits(&self) -> Carries {
        Carries { max_message: 1 << 20, max_rdma: None }
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Failed>> {
        Box::pin(poll_fn(|cx| match self.try_recv() {
            Some(message) => Poll::Ready(Ok(Some(message))),
            None if self.wire.gone.get() => Poll::Ready(Ok(None)),
            None => {
                self.queues().0.reader.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }))
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.queues().0.messages.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
    fn send(&self, message: Outgoing) -> Sending {
        if self.wire.gone.get() {
            return Sending::answered(Err(Failed::Closed));
        }
        let mut bytes = Vec::new();
        for part in message.parts {
            match part {
                Part::Bytes(piece) => bytes.extend_from_slice(&piece),
                Part::Payload { data, .. } => {
                    let chain = data.into_chain(&self.wire.world.pool).now_or_never().unwrap().unwrap();
                    let data = chain.concat();
                    bytes.extend_from_slice(&data);
                    bytes.resize(bytes.len() + weft_wire::xdr::pad(data.len()), 0);
                }
            }
        }
        if self.server {
            let world = &self.wire.world;
            world.replies.set(world.replies.get() + 1);
            if world.speaks.get() == 0 {
                return Sending::answered(Ok(()));
            }
            world.speaks.set(world.speaks.get() - 1);
            let left = world.until.get();
            world.until.set(left.saturating_sub(1));
            if left == 1 {
                // It was carried out, and the reply is lost with the connection.
                self.wire.cut();
                return Sending::answered(Ok(()));
            }
        }
        let mut message = Bytes::from(bytes);
        match self.server {
            true => message = self.wire.world.with_refusal(message),
            false => {
                self.wire.world.sent.borrow_mut().extend(operations(&message).iter().map(Op::number));
                message = self.wire.world.until_refused(message);
            }
        }
        let (_, to) = self.queues();
        to.messages.borrow_mut().push_back(message);
        to.wake();
        Sending::answered(Ok(()))
    }
    fn cork(&self, _on: bool) {}
    fn expose(&self, _buf: Buf, _access: Access) -> Result<Exposed, Failed> {
        unreachable!("NFS names no segments")
    }
    fn revoke(&self, _exposed: Exposed) -> Option<Buf> {
        None
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {
        self.wire.cut();
    }
}

/// A request of version 4.1.
fn compound(request: &Bytes) -> Option<(Call, CompoundHead, Vec<Op>)> {
    let mut d = Decoder::new(request.clone());
    let call = Call::parse(&mut d).ok()?;
    if (call.program, call.version) != (nfs4::PROGRAM, nfs4::VERSION) {
        return None;
    }
    let head = CompoundHead::parse(&mut d).unwrap();
    let ops = (0..head.count).map(|_| Op::parse(&mut d, head.minor).unwrap()).collect();
    Some((call, head, ops))
}

/// Its operations.
fn operations(request: &Bytes) -> Vec<Op> {
    compound(request).map_or_else(Vec::new, |(_, _, ops)| ops)
}

/// The status that the server returns for an operation instead of carrying it out.
type Refuses = Rc<dyn Fn(&Op) -> Option<Status>>;

/// A server that can be restarted, and when its connections end.
struct World {
    server: RefCell<Arc<Server>>,
    start: Box<dyn Fn() -> Arc<Server>>,
    wires: RefCell<Vec<Rc<Wire>>>,
    pool: Pool,
    /// Operations that the clients have sent.
    sent: RefCell<Vec<u32>>,
    /// Replies so far.
    replies: Cell<usize>,
    /// The connection ends at this reply, counted from now; 0 means never.
    until: Cell<usize>,
    dialed: Cell<usize>,
    /// After this many more replies, the server falls silent.
    speaks: Cell<usize>,
    /// The client's address.
    host: Cell<[u8; 4]>,
    /// Another client's action on "f" while this client is away.
    meanwhile: RefCell<Option<Rc<super::Mount>>>,
    refuses: RefCell<Option<Refuses>>,
    /// The refused operations of outstanding requests, by xid.
    refused: RefCell<BTreeMap<u32, (u32, Status)>>,
}

impl World {
    fn new(start: impl Fn() -> Arc<Server> + 'static) -> Rc<World> {
        Rc::new(World {
            server: RefCell::new(start()),
            start: Box::new(start),
            wires: RefCell::default(),
            pool: Pool::new(16 << 20),
            sent: RefCell::default(),
            replies: Cell::new(0),
            until: Cell::new(0),
            dialed: Cell::new(0),
            speaks: Cell::new(usize::MAX),
            host: Cell::new([192, 0, 2, 1]),
            meanwhile: RefCell::default(),
            refuses: RefCell::default(),
            refused: RefCell::default(),
        })
    }

    /// From now on, the server refuses the operations for which `refuses` returns a status.
    fn refuse(&self, refuses: impl Fn(&Op) -> Option<Status> + 'static) {
        *self.refuses.borrow_mut() = Some(Rc::new(refuses));
    }

    /// The server receives a request only up to the operation that it refuses, so that its reply cache stays in step.
    fn until_refused(&self, request: Bytes) -> Bytes {
        let Some(refuses) = self.refuses.borrow().clone() else { return request };
        let Some((call, head, ops)) = compound(&request) else { return request };
        let refused = ops.iter().enumerate().find_map(|(n, op)| Some((n, op.number(), refuses(op)?)));
        let Some((n, op, status)) = refused else { return request };
        self.refused.borrow_mut().insert(call.xid, (op, status));
        let mut e = Encoder::default();
        call.emit(&mut e);
        CompoundHead { count: n as u32, ..head }.emit(&mut e);
        ops[..n].iter().for_each(|op| op.emit(&mut e));
        e.into_bytes()
    }

    /// The reply to such a request ends with the refused operation.
    fn with_refusal(&self, reply: Bytes) -> Bytes {
        let mut d = Decoder::new(reply.clone());
        let Ok((xid, outcome)) = Reply::parse(&mut d) else { return reply };
        let Some((op, refused)) = self.refused.borrow_mut().remove(&xid) else { return reply };
        let ReplyHead { status, tag, count } = ReplyHead::parse(&mut d).unwrap();
        assert_eq!(status, Status::OK, "refused before the operation to refuse");
        let mut e = Encoder::default();
        outcome.emit(xid, &mut e);
        ReplyHead { status: refused, tag, count: count + 1 }.emit(&mut e);
        e.raw(&d.rest());
        e.u32(op);
        e.u32(refused.0);
        e.into_bytes()
    }

    fn in_memory() -> Rc<World> {
        World::new(|| server(Share::new("data", Vfs::new(Ram::new(64 << 20))), LEASE, None))
    }

    fn channel(self: &Rc<World>) -> Rc<dyn Channel> {
        let wire = Rc::new(Wire {
            to_server: Queue::default(),
            to_client: Queue::default(),
            gone: Cell::new(false),
            host: self.host.get(),
            world: self.clone(),
        });
        self.wires.borrow_mut().push(wire.clone());
        let (server, end) = (self.server.borrow().clone(), Rc::new(End { wire: wire.clone(), server: true }));
        rt::spawn(async move { drop(server.serve(end).await) }).detach();
        Rc::new(End { wire, server: false })
    }

    /// A mount whose connections are dialled again. Another client may act in between.
    async fn mount(self: &Rc<World>, connections: usize) -> Mount {
        self.try_mount(connections).await.unwrap()
    }

    async fn try_mount(self: &Rc<World>, connections: usize) -> Result<Mount, Error> {
        let world = self.clone();
        let dial: Dial = Rc::new(move || {
            let world = world.clone();
            async move {
                world.dialed.set(world.dialed.get() + 1);
                let other = world.meanwhile.borrow().clone();
                if let Some(other) = other {
                    other_writes(&other).await;
                }
                Ok(world.channel())
            }
            .boxed_local()
        });
        let options = Options { credential: Credential::None, pool: Pool::new(16 << 20) };
        Mount::connect(self.channel(), "/data", options, Some((dial, connections))).await
    }

    /// Another client's mount, whose connection stays.
    async fn other(self: &Rc<World>) -> Rc<Mount> {
        let options = Options { credential: Credential::None, pool: Pool::new(16 << 20) };
        Rc::new(Mount::connect(self.channel(), "/data", options, None).await.unwrap())
    }

    /// The server is killed and restarted: connections end, and its memory is lost.
    async fn restart(&self) {
        self.wires.take().iter().for_each(|wire| wire.cut());
        // A state directory has one owner, so all serving tasks must have ended.
        while Arc::strong_count(&self.server.borrow()) > 1 {
            rt::yield_now().await;
        }
        *self.server.borrow_mut() = server(Share::new("none", Vfs::new(Ram::new(1 << 20))), LEASE, None);
        *self.server.borrow_mut() = (self.start)();
    }
}

const LEASE: Duration = Duration::from_secs(60);

fn server(share: Share, lease: Duration, durable: Option<Durable>) -> Arc<Server> {
    Server::new(Config {
        shares: vec![share],
        pool: Pool::new(16 << 20),
        limits: Limits { lease, ..Limits::default() },
        policy: Policy { decides: false, squash_root: false },
        durable,
    })
}

/// Overwrites all of "f".
async fn other_writes(mount: &Mount) {
    let Ok(file) = mount.open("f", true).await else { return };
    let size = file.stat().await.unwrap().size as usize;
    if size > 0 {
        file.write(0, Bytes::from(vec![b'z'; size])).await.unwrap();
    }
    file.close().await.unwrap();
}

const PIECES: [&[u8]; 4] = [b"alpha--", b"bravo--", b"charlie", b"delta--"];

/// All requests that must not be carried out twice, one after the other.
async fn story(mount: &Mount) -> Result<(), Error> {
    mount.mkdir("dir", SetAttributes::default()).await?;
    let file = mount.create_new("f", SetAttributes::default()).await?;
    for (n, piece) in PIECES.iter().enumerate() {
        file.write(7 * n as u64, Bytes::from_static(piece)).await?;
    }
    file.commit().await?;
    file.close().await?;
    mount.rename("f", "dir/g").await?;
    mount.rename("dir/g", "f").await?;
    mount.symlink("link", "f").await?;
    mount.remove("link").await?;
    mount.rmdir("dir").await
}

/// The content of "f": how much another client has overwritten, and whether the remainder is as written.
async fn overwritten(mount: &Mount) -> usize {
    let file = mount.open("f", false).await.unwrap();
    let content = file.read(0, 100).await.unwrap();
    file.close().await.unwrap();
    let others = content.iter().take_while(|byte| **byte == b'z').count();
    assert_eq!(content[others..], PIECES.concat()[others..], "{content:?}");
    others
}

/// The server accepts a session from a new address once a client proves that it knows it.
#[test]
fn a_client_whose_address_changes_keeps_its_session_and_its_files() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(2).await;
        let file = mount.create_new("f", SetAttributes::default()).await.unwrap();
        for n in 2..12 {
            world.host.set([192, 0, 2, n]);
            world.wires.take().iter().for_each(|wire| wire.cut());
            for _ in 0..4 {
                file.write(0, Bytes::from_static(b"alpha--")).await.unwrap();
            }
        }
        file.close().await.unwrap();
        assert_eq!(mount.recovered(), 0);
    });
}

#[test]
fn a_connection_that_is_cut_at_any_reply_loses_nothing_and_doubles_nothing() {
    // The number of replies in the story.
    let replies = Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let before = world.replies.get();
        story(&mount).await.unwrap();
        world.replies.get() - before
    });
    assert!(replies >= 13, "{replies}");
    let mut seen = Vec::new();
    for cut in 1..=replies {
        let others = Sim::new(cut as u64).run(async {
            let world = World::in_memory();
            let mount = world.mount(1).await;
            // A write carried out twice would undo what another client wrote in between.
            let other = world.other().await;
            other.null().await.unwrap();
            *world.meanwhile.borrow_mut() = Some(other.clone());
            world.until.set(cut);
            story(&mount).await.unwrap_or_else(|e| panic!("cut at reply {cut}: {e}"));
            assert_eq!((world.dialed.get(), mount.connections().1), (1, 1), "cut at reply {cut}");
            assert_eq!(mount.recovered(), 0, "the session goes on");
            *world.meanwhile.borrow_mut() = None;
            overwritten(&other).await
        });
        seen.push(others);
    }
    // mkdir, OPEN; the four writes; the remaining requests, with the whole file present.
    assert_eq!(seen[..7], [0, 0, 7, 14, 21, 28, 28]);
}

#[test]
fn a_server_that_falls_silent_at_any_reply_has_one_limit() {
    let mut seen = Vec::new();
    for speaks in 0..12 {
        seen.push(Sim::new(speaks as u64).run(async {
            let world = World::in_memory();
            world.speaks.set(speaks);
            let begun = rt::now();
            let ended = async { story(&world.try_mount(1).await?).await };
            assert!(ended.await.is_err());
            (rt::now() - begun).as_secs()
        }));
    }
    // EXCHANGE_ID, CREATE_SESSION, RECLAIM_COMPLETE, the walk; mkdir, OPEN, the four writes; COMMIT, which may take
    // long; CLOSE.
    assert_eq!(seen, [90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 180, 90]);
}

#[test]
fn requests_side_by_side_survive_the_end_of_their_connections() {
    for cut in [1, 5, 17, 40] {
        Sim::new(cut as u64).run(async {
            let world = World::in_memory();
            let mount = Rc::new(world.mount(3).await);
            let file = Rc::new(mount.create("f", SetAttributes::default()).await.unwrap());
            world.until.set(cut);
            let tasks: Vec<_> = (0..100u64)
                .map(|n| {
                    let file = file.clone();
                    rt::spawn(async move { file.write(8 * n, Bytes::from(format!("{n:08}"))).await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            file.commit().await.unwrap();
            let expected: String = (0..100).map(|n| format!("{n:08}")).collect();
            assert_eq!(file.read(0, 1000).await.unwrap(), expected);
            assert_eq!((mount.connections().1, mount.recovered()), (1, 0));
        });
    }
}

#[test]
fn a_session_that_the_server_has_forgotten_is_made_anew_and_files_are_open_again() {
    // With a grace period, and without one: then nothing can be reclaimed, and files are opened again.
    for grace in [LEASE, Duration::ZERO] {
        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, kept) = (folder.path().to_owned(), state.path().to_owned());
        Sim::new(1).run(async {
            let world = World::new(move || {
                let durable = Durable::open(&kept, "story").unwrap();
                server(Share::new("data", Vfs::new(Dir::open(&path).unwrap())), grace, Some(durable))
            });
            let mount = world.mount(1).await;
            let file = mount.create("f", SetAttributes::default()).await.unwrap();
            file.write(0, Bytes::from_static(b"before ")).await.unwrap();
            for n in 0..3 {
                world.restart().await;
                file.write(7 + 5 * n, Bytes::from_static(b"again")).await.unwrap();
            }
            file.commit().await.unwrap();
            assert_eq!(file.read(0, 100).await.unwrap(), "before againagainagain");
            assert_eq!(mount.recovered(), 3);
            file.close().await.unwrap();
            mount.end().await.unwrap();
        });
    }
}

#[test]
fn a_session_that_is_out_of_step_is_ended_for_the_server_too() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let client = &mount.client;
        // The caller that ends the session gives up before the reply.
        let first = client.lose_session();
        assert!(client.is_known(first).await);
        world.speaks.set(0);
        let given_up = rt::timeout(Duration::from_secs(1), mount.mkdir("dir", SetAttributes::default()));
        assert!(given_up.await.is_err());
        assert_eq!(client.lost(), 1, "the next one has it ended");
        world.speaks.set(usize::MAX);
        mount.mkdir("dir", SetAttributes::default()).await.unwrap();
        assert_eq!((client.lost(), client.is_known(first).await), (0, false));
        // On a connection that the session has not seen.
        let second = client.lose_session();
        world.wires.take().iter().for_each(|wire| wire.cut());
        mount.rmdir("dir").await.unwrap();
        assert_eq!((client.lost(), client.is_known(second).await), (0, false));
        // Before the server forgets the client, which has another session.
        client.lose_session();
        let client = client.clone();
        mount.end().await.unwrap();
        assert_eq!(client.lost(), 0);
    });
}

#[test]
fn a_session_is_ended_over_any_number_of_new_connections() {
    for connections in [2, 3, 4, 7, 16] {
        Sim::new(1).run(async {
            let world = World::in_memory();
            let mount = world.mount(connections).await;
            let lost = mount.client.lose_session();
            world.wires.take().iter().for_each(|wire| wire.cut());
            mount.null().await.unwrap();
            let known = mount.client.is_known(lost).await;
            assert_eq!((mount.client.lost(), known), (0, false), "{connections} connections");
        });
    }
}

#[test]
fn after_a_restart_open_files_are_taken_back_while_others_wait_for_the_grace_period() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, kept) = (folder.path().to_owned(), state.path().to_owned());
    Sim::new(1).run(async {
        let world = World::new(move || {
            let durable = Durable::open(&kept, "story").unwrap();
            server(Share::new("data", Vfs::new(Dir::open(&path).unwrap())), LEASE, Some(durable))
        });
        let mount = world.mount(1).await;
        let file = mount.create("f", SetAttributes::default()).await.unwrap();
        file.write(0, Bytes::from_static(b"one")).await.unwrap();
        let silent = world.mount(1).await;
        let left = silent.create("left", SetAttributes::default()).await.unwrap();
        world.restart().await;
        // State is reclaimed at once; a new file has to wait until the absent client has missed the period.
        let start = rt::now();
        file.write(3, Bytes::from_static(b"two")).await.unwrap();
        assert!(rt::now().since(start) < Duration::from_secs(5), "{:?}", rt::now().since(start));
        let new = mount.create("new", SetAttributes::default()).await.unwrap();
        let waited = rt::now().since(start);
        assert!(waited > LEASE / 2 && waited < LEASE * 2, "{waited:?}");
        file.commit().await.unwrap();
        new.close().await.unwrap();
        file.close().await.unwrap();
        drop(left);
    });
    assert_eq!(std::fs::read(folder.path().join("f")).unwrap(), b"onetwo");
}

#[test]
fn a_lease_is_kept_while_nothing_is_done() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let file = mount.create("f", SetAttributes::default()).await.unwrap();
        let before = world.replies.get();
        rt::sleep(LEASE * 10).await;
        assert!(world.replies.get() - before >= 10, "{}", world.replies.get() - before);
        file.write(0, Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(mount.recovered(), 0);
        file.close().await.unwrap();
    });
}

#[test]
fn a_file_that_is_dropped_is_closed_in_the_end() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        for n in 0..40 {
            drop(mount.create(&format!("f{n}"), SetAttributes::default()).await.unwrap());
        }
        let open = mount.open("f1", false).await.unwrap();
        mount.end().await.unwrap();
        // The server knows no client, so nothing can conflict.
        drop(open);
        assert!(matches!(mount.null().await, Err(Error::Channel(_))) || mount.connections().0 > 0);
    });
}

#[test]
fn what_is_given_up_is_not_left_open() {
    // The abandoned request, and whether the server received it.
    for (given_up, sent) in
        ["open", "close", "close of a dropped one"].map(|what| [(what, true), (what, false)]).concat()
    {
        Sim::new(1).run(async {
            let share = Share::new("data", Vfs::new(Ram::new(64 << 20)));
            let opens = share.vfs.opens().clone();
            let share = Cell::new(Some(share));
            let world = World::new(move || server(share.take().unwrap(), LEASE, None));
            let mount = world.mount(1).await;
            let create = |name: String| {
                let mount = &mount;
                async move { mount.create(&name, SetAttributes::default()).await.unwrap() }
            };
            let file = create("f".into()).await;
            if given_up == "close of a dropped one" {
                for n in 0..16 {
                    drop(create(format!("dropped {n}")).await);
                }
            }
            if !sent {
                let wires = world.wires.take();
                *world.meanwhile.borrow_mut() = Some(world.other().await);
                wires.iter().for_each(|wire| wire.cut());
            }
            match given_up {
                "close" => assert!(file.close().now_or_never().is_none()),
                _ => assert!(create("g".into()).now_or_never().is_none()),
            }
            drop(file);
            mount.end().await.unwrap();
            if let Some(other) = world.meanwhile.take() {
                other.end().await.unwrap();
            }
            assert_eq!(opens.open_nodes(), [], "{given_up}, sent: {sent}");
        });
    }
}

#[test]
fn what_undoes_a_request_that_is_given_up_does_not_overtake_it() {
    Sim::new(1).run(async {
        let share = Share::new("data", Vfs::new(Ram::new(64 << 20)));
        let opens = share.vfs.opens().clone();
        let share = Cell::new(Some(share));
        let world = World::new(move || server(share.take().unwrap(), LEASE, None));
        let mount = world.mount(1).await;
        let wire = world.wires.borrow().last().unwrap().clone();
        // The OPEN is in the second slot, and is held up; the request that closes the file is in the first one.
        let mut first = pin!(mount.stat(""));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        assert!(mount.create("f", SetAttributes::default()).now_or_never().is_none());
        let late = wire.hold_up();
        first.await.unwrap();
        mount.client.close_forgotten(true).await.unwrap();
        wire.arrives(late);
        mount.null().await.unwrap();
        assert_eq!((opens.open_nodes(), mount.recovered()), (Vec::new(), 0));
        mount.end().await.unwrap();
    });
}

#[test]
fn a_server_that_calls_is_answered_in_the_words_of_one_who_holds_nothing() {
    let call = |program, version, procedure, args: &dyn Fn(&mut Encoder)| {
        let mut e = Encoder::default();
        Call { xid: 7, program, version, procedure, credential: weft_wire::rpc::Credential::None }
            .emit(&mut e);
        args(&mut e);
        let answer = callback::answer(&e.into_bytes()).unwrap();
        let mut d = Decoder::new(answer);
        (Reply::parse(&mut d).unwrap(), d)
    };
    let nothing = |_: &mut Encoder| ();
    let ok = (7, Reply::Success);
    assert_eq!(call(callback::PROGRAM, CALLBACK_VERSION, CB_NULL, &nothing).0, ok);
    assert_eq!(call(1, 1, 0, &nothing).0.1, Reply::ProgramUnavailable);
    assert_eq!(call(callback::PROGRAM, 9, 0, &nothing).0.1, Reply::ProgramMismatch { low: 1, high: 1 });
    assert_eq!(call(callback::PROGRAM, 1, 9, &nothing).0.1, Reply::ProcedureUnavailable);
    assert_eq!(call(callback::PROGRAM, 1, CB_COMPOUND, &nothing).0.1, Reply::GarbageArgs);
    // CB_SEQUENCE, followed by an operation that is not implemented here (CB_RECALL_ANY is 8).
    let (reply, mut d) = call(callback::PROGRAM, 1, CB_COMPOUND, &|e| {
        [0, 1, 0, 2, 11].iter().for_each(|word| e.u32(*word));
        e.fixed(&[9; 16]);
        [3, 0, 0, 0, 0, 8].iter().for_each(|word| e.u32(*word));
    });
    assert_eq!(reply, ok);
    let words: Vec<_> = std::iter::from_fn(|| d.u32().ok()).collect();
    let session = u32::from_be_bytes([9; 4]);
    let notsupp = Status::NOTSUPP.0;
    assert_eq!(words, [notsupp, 0, 2, 11, 0, session, session, session, session, 3, 0, 0, 0, 8, notsupp]);
    // A reply is ignored.
    let mut e = Encoder::default();
    Reply::Success.emit(7, &mut e);
    assert!(callback::answer(&e.into_bytes()).is_none());
}
