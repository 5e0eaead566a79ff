//! Calls as they come from the wire, against a server without a network: headers, credentials, limits, bad arguments.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use proptest::prelude::*;
use weft_machine::sim::Sim;
use weft_machine::{File, Payload, rt};
use weft_store::backend::Ram;
use weft_store::opens::{Opening, Rights};
use weft_store::rules::Network;
use weft_store::{NodeId, Vfs};
use weft_transport::{
    Detached, Message, Outgoing, Part, Peer, RemotePayload, Security, Sending, Ticket, Traffic,
};
use weft_wire::mount::{DirPath, MountResult, MountStatus};
use weft_wire::nfs3::*;
use weft_wire::rpc::{AuthStat, AuthSys, Call, Credential, Flavor, Reply};
use weft_wire::xdr::{Decoder, Encoder};
use weft_wire::{mount, nfs3};

use super::file_id::FileId;
use super::*;
use crate::memory::without_rdma;

mod acting;
pub mod audit;
mod create;
mod judged;
pub(super) mod known;
mod rights;
mod strange;
mod unread;
mod unreadable;

/// A peer that has sent some messages and disconnected.
struct Script {
    peer: Peer,
    security: Option<Security>,
    calls: RefCell<VecDeque<Message>>,
    replies: RefCell<Vec<Outgoing>>,
}

/// The peer's address, unless a test says otherwise.
pub(super) const PEER: &str = "192.0.2.1:700";

fn tcp(text: &str) -> Peer {
    Peer::Tcp(text.parse().expect("an address"))
}

impl Script {
    fn of(peer: Peer, messages: &[Bytes]) -> Rc<Script> {
        let message =
            |body: &Bytes| Message { body: body.clone(), detached: None, ticket: Ticket::default() };
        let calls = RefCell::new(messages.iter().map(message).collect());
        Rc::new(Script { peer, security: None, calls, replies: RefCell::default() })
    }
}

impl Channel for Script {
    without_rdma!();
    fn peer(&self) -> Peer {
        self.peer
    }
    fn security(&self) -> Option<Security> {
        self.security
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(std::future::ready(Ok(self.try_recv())))
    }
    fn try_recv(&self) -> Option<Message> {
        self.calls.borrow_mut().pop_front()
    }
    fn send(&self, message: Outgoing) -> Sending {
        self.replies.borrow_mut().push(message);
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

pub(super) fn server() -> Arc<Server> {
    server_where(Policy { decides: false, squash_root: true })
}

pub(super) fn server_where(policy: Policy) -> Arc<Server> {
    let shares = vec![
        Share::new("ram", Vfs::new(Ram::new(16 << 20))),
        Share::new("other", Vfs::new(Ram::new(16 << 20))),
    ];
    Server::new(Config { shares, pool: Pool::new(0), limits: Limits::default(), policy, durable: None })
}

pub(super) fn node_of(server: &Server, handle: &Handle) -> NodeId {
    match rt::block_on(server.handles.open(&server.shares.now(), handle)).unwrap() {
        Ok(handles::Named::Node(file)) => file.node,
        other => panic!("{other:?}"),
    }
}

pub(super) fn handle_of(server: &Server, share: usize, node: NodeId) -> Handle {
    let file = FileId { share: server.share(share).key(), node };
    rt::block_on(server.handles.make(&server.shares.now(), file)).unwrap().unwrap()
}

/// All replies to these messages, and how the connection ended.
fn converse(server: &Server, messages: &[Bytes]) -> (Vec<Outgoing>, Result<(), Error>) {
    converse_by(server, PEER, messages)
}

/// The same by this peer.
pub(super) fn converse_by(
    server: &Server,
    peer: &str,
    messages: &[Bytes],
) -> (Vec<Outgoing>, Result<(), Error>) {
    let script = Script::of(tcp(peer), messages);
    let ended = rt::block_on(server.serve(script.clone())).unwrap();
    (script.replies.take(), ended)
}

pub(super) fn stream(reply: Outgoing) -> Bytes {
    rt::block_on(stream_of(reply)).unwrap()
}

/// The same, for tests that run a loop of their own.
async fn stream_of(reply: Outgoing) -> Bytes {
    let mut bytes = Vec::new();
    for part in reply.parts {
        match part {
            Part::Bytes(piece) => bytes.extend_from_slice(&piece),
            Part::Payload { data, .. } => {
                let len = data.len();
                let chain = data.into_chain(&Pool::new(16 << 20)).await.unwrap();
                bytes.extend_from_slice(&chain.concat());
                bytes.resize(bytes.len() + weft_wire::xdr::pad(len), 0);
            }
        }
    }
    Bytes::from(bytes)
}

/// The results of a call by this peer, for tests that run a loop of their own.
pub(super) async fn results_for<T: Xdr>(
    server: &Server,
    peer: &'static str,
    number: (u32, u32, u32),
    args: &impl Xdr,
) -> T {
    results_of(server, tcp(peer), Credential::None, number, args).await.unwrap()
}

/// The same for this caller; or how the call was refused.
pub(super) async fn results_for_as<T: Xdr>(
    server: &Server,
    peer: &'static str,
    credential: Credential,
    number: (u32, u32, u32),
    args: &impl Xdr,
) -> Result<T, Reply> {
    results_of(server, tcp(peer), credential, number, args).await
}

/// The same by any peer.
pub(super) async fn results_of<T: Xdr>(
    server: &Server,
    peer: Peer,
    credential: Credential,
    number: (u32, u32, u32),
    args: &impl Xdr,
) -> Result<T, Reply> {
    results_over(server, (peer, None), credential, number, args).await
}

/// The same over a connection with this protection.
pub(super) async fn results_over<T: Xdr>(
    server: &Server,
    (peer, security): (Peer, Option<Security>),
    credential: Credential,
    (program, version, procedure): (u32, u32, u32),
    args: &impl Xdr,
) -> Result<T, Reply> {
    let script = Script::of(peer, &[call_of(program, version, procedure, credential, args)]);
    let script = Rc::new(Script { security, ..Rc::into_inner(script).unwrap() });
    server.serve(script.clone()).await.unwrap();
    let reply = script.replies.borrow_mut().pop().expect("a reply");
    let [Part::Bytes(body)] = &reply.parts[..] else { panic!("{reply:?}") };
    let mut d = Decoder::new(body.clone());
    let (xid, reply) = Reply::parse(&mut d).unwrap();
    assert_eq!(xid, 7);
    if reply != Reply::Success {
        return Err(reply);
    }
    let value = T::parse(&mut d).unwrap();
    d.end().unwrap();
    Ok(value)
}

pub(super) fn call_of(
    program: u32,
    version: u32,
    procedure: u32,
    credential: Credential,
    args: &impl Xdr,
) -> Bytes {
    let mut e = Encoder::default();
    Call { xid: 7, program, version, procedure, credential }.emit(&mut e);
    args.emit(&mut e);
    e.into_bytes()
}

/// The status of a call of version 3.
pub(super) fn status_of(server: &Server, procedure: u32, args: &impl Xdr) -> Status {
    let credential = Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), 1, 1));
    let call = call_of(nfs3::PROGRAM, nfs3::VERSION, procedure, credential, args);
    let (reply, mut d) = reply_to_parts(server, PEER, call);
    assert_eq!(reply, Reply::Success);
    Status(d.u32().unwrap())
}

fn nfs(procedure: u32, args: &impl Xdr) -> Bytes {
    call_of(nfs3::PROGRAM, nfs3::VERSION, procedure, Credential::None, args)
}

/// The header of the reply to one message, and the remainder.
fn reply_to(server: &Server, message: Bytes) -> (Reply, Decoder) {
    let (mut replies, ended) = converse(server, &[message]);
    ended.unwrap();
    let mut d = Decoder::new(stream(replies.pop().expect("a reply")));
    assert!(replies.is_empty());
    let (xid, reply) = Reply::parse(&mut d).unwrap();
    assert_eq!(xid, 7);
    (reply, d)
}

/// The same for the tests of version 4, by this peer.
pub(super) fn reply_to_parts(server: &Server, peer: &str, message: Bytes) -> (Reply, Decoder) {
    replies_to_parts(server, peer, None, &[message]).remove(0)
}

/// The same for messages of one connection with this protection.
pub(super) fn replies_to_parts(
    server: &Server,
    peer: &str,
    security: Option<Security>,
    messages: &[Bytes],
) -> Vec<(Reply, Decoder)> {
    rt::block_on(replies_in_parts(server, peer, security, messages)).unwrap()
}

/// The same beside other connections.
pub(super) async fn replies_in_parts(
    server: &Server,
    peer: &str,
    security: Option<Security>,
    messages: &[Bytes],
) -> Vec<(Reply, Decoder)> {
    let script = Script::of(tcp(peer), messages);
    let script = Rc::new(Script { security, ..Rc::into_inner(script).unwrap() });
    server.serve(script.clone()).await.unwrap();
    let mut replies = Vec::new();
    for reply in script.replies.take() {
        let mut d = Decoder::new(stream_of(reply).await);
        replies.push((Reply::parse(&mut d).unwrap().1, d));
    }
    replies
}

/// The reply to a message whose payload is still with the client.
pub(super) fn reply_to_distant(
    server: &Server,
    message: Bytes,
    payload: Rc<dyn RemotePayload>,
) -> (Reply, Decoder) {
    let detached = Some(Detached::There(payload));
    let call = Message { body: message, detached, ticket: Ticket::default() };
    let script = Rc::new(Script {
        peer: tcp(PEER),
        security: None,
        calls: RefCell::new([call].into()),
        replies: RefCell::default(),
    });
    rt::block_on(server.serve(script.clone())).unwrap().unwrap();
    let mut d = Decoder::new(stream(script.replies.borrow_mut().pop().expect("a reply")));
    (Reply::parse(&mut d).unwrap().1, d)
}

fn results<T: Xdr>(server: &Server, message: Bytes) -> T {
    let (reply, mut d) = reply_to(server, message);
    assert_eq!(reply, Reply::Success);
    let value = T::parse(&mut d).unwrap();
    d.end().unwrap();
    value
}

fn root(server: &Server) -> Handle {
    let args = DirPath(Bytes::from_static(b"/ram"));
    let message = call_of(mount::PROGRAM, mount::VERSION, mount::procedure::MNT, Credential::None, &args);
    match results(server, message) {
        MountResult::Ok { handle, .. } => handle,
        other => panic!("{other:?}"),
    }
}

pub(super) fn make(server: &Server, name: &'static [u8]) -> Handle {
    let object = DirOp { dir: root(server), name: Name(Bytes::from_static(name)) };
    let args = CreateArgs { object, how: CreateHow::Guarded(SetAttributes::default()) };
    let made: Outcome<CreateOk, WccOnly> = results(server, nfs(procedure::CREATE, &args));
    made.unwrap().object.unwrap()
}

fn link(server: &Server, dir: Handle, name: &'static [u8], target: &'static [u8]) {
    let object = DirOp { dir, name: Name(Bytes::from_static(name)) };
    let target = weft_wire::nfs3::Path(Bytes::from_static(target));
    let args = SymlinkArgs { object, attributes: SetAttributes::default(), target };
    let made: Outcome<CreateOk, WccOnly> = results(server, nfs(procedure::SYMLINK, &args));
    made.unwrap();
}

/// How long the server takes for this many queued calls on each of this many connections.
fn time_for(connections: usize, calls: usize, networks: Vec<Network>) -> Duration {
    let mut share = Share::new("ram", Vfs::new(Ram::new(1 << 20)));
    share.rules.nfs.networks = networks;
    let policy = Policy { decides: false, squash_root: true };
    let limits = Limits::default();
    let server =
        Server::new(Config { shares: vec![share], pool: Pool::new(0), limits, policy, durable: None });
    let null = call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::NULL, Credential::None, &());
    Sim::new(1).run(async {
        let begun = rt::now();
        let all = (0..connections).map(async |_| {
            let script = Script::of(tcp(PEER), &vec![null.clone(); calls]);
            server.serve(script.clone()).await.unwrap();
            assert_eq!(script.replies.borrow().len(), calls);
        });
        join_all(all).await;
        rt::now().since(begun)
    })
}

#[test]
fn a_client_that_no_export_lets_in_makes_a_thousand_calls_a_second() {
    let elsewhere = vec!["10.0.0.0/8".parse::<Network>().unwrap()];
    let taken = time_for(1, 5000, elsewhere);
    assert!(taken >= Duration::from_millis(4900) && taken <= Duration::from_millis(5100), "{taken:?}");
    // Admitted clients are answered as fast as they ask, and so are a few calls of anybody.
    assert_eq!(time_for(1, 5000, Vec::new()), Duration::ZERO);
    let elsewhere = vec!["10.0.0.0/8".parse::<Network>().unwrap()];
    assert_eq!(time_for(1, 63, elsewhere), Duration::ZERO);
    // Each of a hundred connections has a quarter of that.
    let elsewhere = vec!["10.0.0.0/8".parse::<Network>().unwrap()];
    let taken = time_for(100, 640, elsewhere);
    assert!(taken >= Duration::from_secs(2) && taken <= Duration::from_secs(3), "{taken:?}");
}

#[test]
fn nothing_is_cut_off_a_file_while_others_may_take_it_back_after_a_restart() {
    let server = server();
    let object = make(&server, b"f");
    Sim::new(1).run(async {
        let resize = async |size| {
            let attributes = SetAttributes { size: Some(size), ..SetAttributes::default() };
            let args = SetattrArgs { object, attributes, guard: None };
            let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::SETATTR);
            let done: Outcome<WccOnly, WccOnly> = results_for(&server, PEER, number, &args).await;
            done.map(|_| ()).map_err(|failed| failed.status)
        };
        let until = rt::now() + Duration::from_secs(3600);
        let reserved = server.vfs(0).opens().reserve(until);
        assert_eq!(resize(100).await, Ok(()), "what grows takes nothing away");
        // Each is a new request, not a repetition.
        assert_eq!(resize(1).await, Err(Status::JUKEBOX));
        assert_eq!(resize(101).await, Ok(()));
        drop(reserved);
        assert_eq!(resize(0).await, Ok(()));
    });
}

#[test]
fn a_mount_follows_links_that_stay_in_the_share() {
    let server = server();
    let mkdir = |dir, name| {
        let object = DirOp { dir, name: Name(Bytes::from_static(name)) };
        let args = MkdirArgs { object, attributes: SetAttributes::default() };
        let made: Outcome<CreateOk, WccOnly> = results(&server, nfs(procedure::MKDIR, &args));
        made.unwrap().object.unwrap()
    };
    let mount = |path: &'static [u8]| {
        let args = DirPath(Bytes::from_static(path));
        let message = call_of(mount::PROGRAM, mount::VERSION, mount::procedure::MNT, Credential::None, &args);
        match results(&server, message) {
            MountResult::Ok { handle, .. } => Ok(handle),
            MountResult::Failed(status) => Err(status),
        }
    };
    let top = root(&server);
    let a = mkdir(top, b"a");
    let b = mkdir(a, b"b");
    make(&server, b"f");
    for (dir, name, target) in [
        (top, &b"to a"[..], &b"a/."[..]),
        (b, b"back", b"../../to a/b"),
        (b, b"out", b"../../../ram"),
        (b, b"host", b"/etc"),
        (top, b"round", b"round"),
        (top, b"file", b"f"),
        (top, b"nowhere", b"none"),
    ] {
        link(&server, dir, name, target);
    }
    assert_eq!(mount(b"/ram/to a/b"), Ok(b));
    assert_eq!(mount(b"/ram/a/b/back/back"), Ok(b));
    assert_eq!(mount(b"/ram/a/.."), Ok(top));
    for refused in [&b"/ram/.."[..], b"/ram/a/b/out", b"/ram/a/b/host", b"/ram/round"] {
        assert_eq!(mount(refused), Err(MountStatus::ACCES));
    }
    assert_eq!(mount(b"/ram/file"), Err(MountStatus::NOTDIR));
    assert_eq!(mount(b"/ram/nowhere"), Err(MountStatus::NOENT));
}

#[test]
fn a_call_under_the_number_of_another_is_carried_out() {
    let server = server();
    let dir = root(&server);
    // The two calls differ only in the end of the last name.
    let long = |last: u8| Name(Bytes::from([vec![b'n'; 254], vec![last]].concat()));
    let at = |name| DirOp { dir, name };
    make(&server, b"f");
    let rename = |from, to| {
        let args = RenameArgs { from: at(from), to: at(to) };
        let done: Outcome<RenameWcc, RenameWcc> = results(&server, nfs(procedure::RENAME, &args));
        done.map(drop).map_err(|failure| failure.status)
    };
    assert_eq!(rename(Name(Bytes::from_static(b"f")), long(b'a')), Ok(()));
    // Every call of these tests has the same xid.
    assert_eq!(rename(long(b'a'), long(b'b')), Ok(()));
    make(&server, b"g");
    assert_eq!(rename(Name(Bytes::from_static(b"g")), long(b'a')), Ok(()));
    assert_eq!(rename(long(b'a'), long(b'c')), Ok(()));
    for name in [long(b'b'), long(b'c')] {
        let found: Outcome<LookupOk, AttrOnly> = results(&server, nfs(procedure::LOOKUP, &at(name)));
        found.unwrap();
    }
}

fn status<T: std::fmt::Debug, F: std::fmt::Debug>(outcome: Outcome<T, F>) -> Status {
    outcome.unwrap_err().status
}

#[test]
fn programs_versions_and_procedures_that_are_not_here() {
    let server = server();
    let none = || Credential::None;
    let ask =
        |program, version, procedure| reply_to(&server, call_of(program, version, procedure, none(), &())).0;
    assert_eq!(ask(nfs3::PROGRAM, 3, 0), Reply::Success);
    assert_eq!(ask(mount::PROGRAM, 3, 0), Reply::Success);
    assert_eq!(ask(nfs3::PROGRAM, 5, 0), Reply::ProgramMismatch { low: 3, high: 4 });
    assert_eq!(ask(mount::PROGRAM, 1, 0), Reply::ProgramMismatch { low: 3, high: 3 });
    assert_eq!(ask(100_022, 4, 0), Reply::ProgramUnavailable);
    assert_eq!(ask(nfs3::PROGRAM, 3, 22), Reply::ProcedureUnavailable);
    assert_eq!(ask(mount::PROGRAM, 3, 6), Reply::ProcedureUnavailable);
}

#[test]
fn credentials_that_are_not_understood_are_refused() {
    let server = server();
    let ask = |credential| reply_to(&server, call_of(nfs3::PROGRAM, 3, 0, credential, &())).0;
    assert_eq!(ask(Credential::Sys(AuthSys::new(Bytes::new(), 0, 0))), Reply::Success);
    assert_eq!(ask(Credential::Other(Flavor(3))), Reply::AuthError(AuthStat::TOOWEAK));
    let mut rpc_3 = nfs(0, &()).to_vec();
    rpc_3[11] = 3;
    assert_eq!(reply_to(&server, rpc_3.into()).0, Reply::RpcMismatch { low: 2, high: 2 });
}

#[test]
fn arguments_that_end_early_are_garbage_at_every_length() {
    let server = server();
    let file = make(&server, b"f");
    let write = WriteArgs {
        head: WriteHead { file, offset: 0, count: 5, stable: Stable::FileSync },
        data: Bytes::from_static(b"hello").into(),
    };
    let message = nfs(procedure::WRITE, &write);
    let header = nfs(procedure::WRITE, &()).len();
    for len in header..message.len() {
        assert_eq!(reply_to(&server, message.slice(..len)).0, Reply::GarbageArgs, "{len}");
    }
    let written: Outcome<WriteOk, WccOnly> = results(&server, message);
    assert_eq!(written.unwrap().committed, Stable::FileSync);
}

#[test]
fn what_is_no_call_ends_the_connection() {
    let server = server();
    let good = nfs(0, &());
    for len in 0..good.len() {
        let (replies, ended) = converse(&server, &[good.clone(), good.slice(..len)]);
        assert!(matches!(ended, Err(Error::Malformed(_))), "{len}");
        assert_eq!(replies.len(), 1);
    }
}

#[test]
fn whoever_runs_the_server_sees_the_version_and_who_calls() {
    let server = server();
    let by = |uid| Credential::Sys(AuthSys::new("client".into(), uid, 100));
    let args = GetattrArgs { object: root(&server) };
    let getattr = |uid| call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::GETATTR, by(uid), &args);
    let asked = call_of(mount::PROGRAM, mount::VERSION, mount::procedure::NULL, by(7), &());
    let calls = [asked, getattr(0), getattr(1000)];
    let watch = Watch::default();
    let script = Script::of(tcp(PEER), &calls);
    rt::block_on(server.serve_watched(script.clone(), &watch)).unwrap().unwrap();
    assert_eq!(script.replies.borrow().len(), 3);
    // The user who mounts is not the user who uses the mount.
    assert_eq!((watch.version(), watch.users()), (Some((3, 0)), vec![0, 1000]));
}

#[test]
fn a_guessed_handle_opens_nothing() {
    let server = server();
    let good = root(&server);
    for at in 0..good.as_bytes().len() {
        let mut guess = good.as_bytes().to_vec();
        guess[at] ^= 1;
        let args = GetattrArgs { object: Handle::new(&guess).unwrap() };
        let outcome: Outcome<GetattrOk, ()> = results(&server, nfs(procedure::GETATTR, &args));
        assert!(matches!(status(outcome), Status::STALE | Status::BADHANDLE));
    }
    let of_another_run = root(&self::server());
    let args = GetattrArgs { object: of_another_run };
    assert_eq!(
        status(results::<Outcome<GetattrOk, ()>>(&server, nfs(procedure::GETATTR, &args))),
        Status::STALE
    );
}

#[test]
fn a_read_is_a_range_of_the_file_and_never_longer_than_the_channel_carries() {
    let server = server();
    let file = make(&server, b"f");
    let vfs = &server.vfs(0);
    let node = node_of(&server, &file);
    let content = vec![5; 3 << 20];
    rt::block_on(async {
        vfs.open(node, true).await.unwrap().write(0, &[Bytes::from(content)]).await.unwrap();
    })
    .unwrap();
    let args = ReadArgs { file, offset: 100, count: u32::MAX };
    let (mut replies, _) = converse(&server, &[nfs(procedure::READ, &args)]);
    let parts = replies.pop().unwrap().parts;
    let Some(Part::Payload { data: Payload::File(range), to: weft_transport::To::Ticket }) = parts.get(1)
    else {
        panic!("{parts:?}")
    };
    assert_eq!((range.offset, range.len), (100, (1 << 20) - 4096));
}

/// Payload in a client's memory, and whether a file can be filled from there.
#[derive(Debug)]
struct Afar(Bytes, bool);

impl RemotePayload for Afar {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fill(&self, file: &File, offset: u64, len: usize) -> Option<io::Result<()>> {
        let bytes = Pool::new(0).buf_from(&self.0[..len]).unwrap();
        self.1.then(|| file.place_at(offset, &bytes.into_window()))
    }
    fn fetch(&self) -> weft_machine::payload::Fetching {
        assert!(!self.1, "what can be filled in is not fetched");
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

#[test]
fn the_clients_memory_fills_a_file_or_else_is_fetched() {
    let server = server();
    let file = make(&server, b"f");
    let ask = |message: Bytes, afar: Afar| {
        let (reply, mut d) = reply_to_distant(&server, message, Rc::new(afar));
        assert_eq!(reply, Reply::Success);
        Status(d.u32().unwrap())
    };
    let write = |count: u32, offset: u64| {
        let mut e = Encoder::default();
        e.raw(&nfs(procedure::WRITE, &()));
        WriteHead { file, offset, count, stable: Stable::FileSync }.emit(&mut e);
        e.into_bytes()
    };
    // With the chunk's padding, and without.
    assert_eq!(ask(write(5, 0), Afar(Bytes::from_static(b"hello\0\0\0"), true)), Status::OK);
    assert_eq!(ask(write(6, 5), Afar(Bytes::from_static(b" there"), false)), Status::OK);
    assert_eq!(ask(write(1, u64::MAX - 5), Afar(Bytes::from_static(b"x"), true)), Status::FBIG);
    let args = ReadArgs { file, offset: 0, count: 100 };
    let read: Outcome<ReadOk, AttrOnly> = results(&server, nfs(procedure::READ, &args));
    assert_eq!(&read.unwrap().data[..], b"hello there");
    // For a procedure that does not fetch payload itself, it is fetched first.
    let object = DirOp { dir: root(&server), name: Name(Bytes::from_static(b"link")) };
    let mut e = Encoder::default();
    e.raw(&nfs(procedure::SYMLINK, &object));
    SetAttributes::default().emit(&mut e);
    e.u32(3);
    assert_eq!(ask(e.into_bytes(), Afar(Bytes::from_static(b"a/b"), false)), Status::OK);
}

#[test]
fn a_write_that_contradicts_itself_is_invalid() {
    let server = server();
    let file = make(&server, b"f");
    let write = |count, offset| WriteArgs {
        head: WriteHead { file, offset, count, stable: Stable::Unstable },
        data: Bytes::from_static(b"hello").into(),
    };
    let ask = |args| status(results::<Outcome<WriteOk, WccOnly>>(&server, nfs(procedure::WRITE, &args)));
    assert_eq!(ask(write(4, 0)), Status::INVAL);
    assert_eq!(ask(write(6, 0)), Status::INVAL);
    assert_eq!(ask(write(5, u64::MAX)), Status::FBIG);
    assert_eq!(ask(write(5, u64::MAX - 5)), Status::FBIG);
    // Below FSINFO's limit, and beyond the largest file of a ramdisk: not a lack of space.
    assert_eq!(ask(write(5, 1 << 62)), Status::FBIG);
    let dir = WriteArgs { head: WriteHead { file: root(&server), ..write(5, 0).head }, ..write(5, 0) };
    assert_eq!(ask(dir), Status::INVAL);
}

#[test]
fn the_write_verifier_changes_with_the_server() {
    let verifier = || {
        let server = server();
        let file = make(&server, b"f");
        let args = CommitArgs { file, offset: 0, count: 0 };
        results::<Outcome<CommitOk, WccOnly>>(&server, nfs(procedure::COMMIT, &args)).unwrap().verifier
    };
    assert_ne!(verifier(), verifier());
}

#[test]
fn share_modes_of_others_are_respected_and_pass() {
    let server = server();
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    let opens = server.vfs(0).opens().clone();
    let read = ReadArgs { file, offset: 0, count: 1 };
    let ask = || reply_to(&server, nfs(procedure::READ, &read)).1.u32().map(Status).unwrap();
    assert_eq!(ask(), Status::OK);
    let exclusive = opens.try_open(node, &Opening::new(Rights::ALL, Rights::NONE, opens.key())).unwrap();
    assert_eq!(ask(), Status::JUKEBOX);
    let object = DirOp { dir: root(&server), name: Name(Bytes::from_static(b"f")) };
    let remove = nfs(procedure::REMOVE, &RemoveArgs { object });
    assert_eq!(status(results::<Outcome<WccOnly, WccOnly>>(&server, remove)), Status::JUKEBOX);
    drop(exclusive);
    assert_eq!(ask(), Status::OK);
}

#[test]
fn a_guard_keeps_changes_off_a_file_that_changed() {
    let server = server();
    let file = make(&server, b"f");
    let guarded = |guard| SetattrArgs {
        object: file,
        attributes: SetAttributes { mode: Some(0o600), ..SetAttributes::default() },
        guard: Some(guard),
    };
    type Done = Outcome<WccOnly, WccOnly>;
    let ask = |args| Box::new(results::<Done>(&server, nfs(procedure::SETATTR, &args)));
    assert_eq!(status(*ask(guarded(Time { seconds: 1, nseconds: 2 }))), Status::NOT_SYNC);
    let get = nfs(procedure::GETATTR, &GetattrArgs { object: file });
    let now = results::<Outcome<GetattrOk, ()>>(&server, get).unwrap().attributes;
    let wcc = ask(guarded(now.ctime)).unwrap().wcc;
    assert_eq!(wcc.before.unwrap().ctime, now.ctime);
    assert_eq!(wcc.after.unwrap().mode, 0o600);
}

#[test]
fn a_size_that_no_file_can_have_is_too_big() {
    let server = server();
    let object = make(&server, b"f");
    let sized = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    let set = |size| {
        let args = SetattrArgs { object, attributes: sized(size), guard: None };
        status(results::<Outcome<WccOnly, WccOnly>>(&server, nfs(procedure::SETATTR, &args)))
    };
    // One above FSINFO's limit; and a limit of the file system itself, which is not a lack of space.
    assert_eq!(set(1 << 63), Status::FBIG);
    assert_eq!(set(u64::MAX), Status::FBIG);
    let object = DirOp { dir: root(&server), name: Name(Bytes::from_static(b"g")) };
    let args = CreateArgs { object, how: CreateHow::Guarded(sized(1 << 63)) };
    let made = results::<Outcome<CreateOk, WccOnly>>(&server, nfs(procedure::CREATE, &args));
    assert_eq!(status(made), Status::FBIG);
    const EFBIG: i32 = 27;
    let told = weft_store::Error::from(std::io::Error::from_raw_os_error(EFBIG));
    assert_eq!(super::attributes::status(&told), Status::FBIG);
}

#[test]
fn a_listing_keeps_to_its_room_and_says_when_there_is_none() {
    let server = server();
    let dir = root(&server);
    for name in [&b"one"[..], b"two-two", b"three-three-three"] {
        let object = DirOp { dir, name: Name(Bytes::from_static(name)) };
        let args = MkdirArgs { object, attributes: SetAttributes::default() };
        results::<Outcome<CreateOk, WccOnly>>(&server, nfs(procedure::MKDIR, &args)).unwrap();
    }
    for plus in [false, true] {
        let mut seen_with_room = Vec::new();
        for room in (0..1200).step_by(4) {
            let (message, verifier) = (room as u32, [0; 8]);
            let (mut cookie, mut names) = (0, Vec::new());
            loop {
                let call = if plus {
                    let args =
                        ReaddirplusArgs { dir, cookie, verifier, dircount: message, maxcount: message };
                    nfs(procedure::READDIRPLUS, &args)
                } else {
                    nfs(procedure::READDIR, &ReaddirArgs { dir, cookie, verifier, count: message })
                };
                let (_, d) = reply_to(&server, call);
                let body = d.rest();
                let mut d = Decoder::new(body.clone());
                if d.u32().unwrap() != 0 {
                    assert_eq!(Status(u32::from_be_bytes(*body.first_chunk().unwrap())), Status::TOOSMALL);
                    names.clear();
                    break;
                }
                assert!(body.len() - 4 <= room, "{} bytes for {room}", body.len() - 4);
                let (page, eof): (Vec<(Bytes, u64)>, bool) = if plus {
                    let l = ReaddirplusOk::parse(&mut d).unwrap();
                    (l.entries.into_iter().map(|e| (e.name.0, e.cookie)).collect(), l.eof)
                } else {
                    let l = ReaddirOk::parse(&mut d).unwrap();
                    (l.entries.into_iter().map(|e| (e.name.0, e.cookie)).collect(), l.eof)
                };
                cookie = page.last().map_or(cookie, |(_, cookie)| *cookie);
                assert!(eof || !page.is_empty());
                names.extend(page.into_iter().map(|(name, _)| name));
                if eof {
                    break;
                }
            }
            if !names.is_empty() {
                names.sort();
                assert_eq!(names, [&b"."[..], b"..", b"one", b"three-three-three", b"two-two"]);
                seen_with_room.push(room);
            }
        }
        assert!(seen_with_room.len() > 100);
    }
}

#[test]
fn links_and_renames_stay_inside_their_share() {
    let server = server();
    let file = make(&server, b"f");
    let other = handle_of(&server, 1, NodeId::ROOT);
    let name = |dir| DirOp { dir, name: Name(Bytes::from_static(b"f")) };
    let link = nfs(procedure::LINK, &LinkArgs { file, link: name(other) });
    assert_eq!(status(results::<Outcome<LinkWcc, LinkWcc>>(&server, link)), Status::XDEV);
    let rename = nfs(procedure::RENAME, &RenameArgs { from: name(root(&server)), to: name(other) });
    assert_eq!(status(results::<Outcome<RenameWcc, RenameWcc>>(&server, rename)), Status::XDEV);
}

#[test]
fn devices_are_made_by_root_alone() {
    let server = server_where(Policy { decides: true, squash_root: true });
    let object = DirOp { dir: handle_of(&server, 0, NodeId::ROOT), name: Name(Bytes::from_static(b"null")) };
    let numbers = SpecData { major: 1, minor: 3 };
    let node = Node::Device(FileType::Chr, SetAttributes::default(), numbers);
    let mknod = nfs(procedure::MKNOD, &MknodArgs { object, node });
    assert_eq!(status(results::<Outcome<CreateOk, WccOnly>>(&server, mknod)), Status::PERM);
}

#[test]
fn what_was_carried_out_is_not_carried_out_again() {
    let server = server();
    make(&server, b"f");
    let object = || DirOp { dir: root(&server), name: Name(Bytes::from_static(b"f")) };
    let remove = nfs(procedure::REMOVE, &RemoveArgs { object: object() });
    type Removed = Outcome<WccOnly, WccOnly>;
    let first = results::<Removed>(&server, remove.clone());
    assert!(first.is_ok());
    assert_eq!(results::<Removed>(&server, remove.clone()), first);
    // The same request with another xid is a new request.
    let mut other = remove.to_vec();
    other[3] ^= 1;
    let (mut replies, _) = converse(&server, &[other.into()]);
    let mut d = Decoder::new(stream(replies.pop().unwrap()));
    Reply::parse(&mut d).unwrap();
    assert_eq!(status(Removed::parse(&mut d).unwrap()), Status::NOENT);
    // And so is another request with the same xid.
    let rename = RenameArgs { from: object(), to: object() };
    let rename = nfs(procedure::RENAME, &rename);
    assert_eq!(status(results::<Outcome<RenameWcc, RenameWcc>>(&server, rename)), Status::NOENT);
}

/// Xids can be guessed. A request under the xid of another client's next request must not answer that one.
#[test]
fn an_answer_is_kept_for_whoever_asked_and_nobody_else() {
    let server = server();
    let object = DirOp { dir: root(&server), name: Name(Bytes::from_static(b"d")) };
    let args = MkdirArgs { object, attributes: SetAttributes::default() };
    let ask = |peer, uid| {
        let user = Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, uid));
        let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::MKDIR);
        let made =
            rt::block_on(results_for_as::<Outcome<CreateOk, WccOnly>>(&server, peer, user, number, &args));
        made.unwrap().unwrap().map_or_else(|failed| failed.status, |_| Status::OK)
    };
    assert_eq!(ask(PEER, 1), Status::OK);
    assert_eq!(ask("192.0.2.1:999", 1), Status::OK, "connected again, asked again");
    assert_eq!(ask(PEER, 2), Status::EXIST, "another user");
    assert_eq!(ask("192.0.2.1:40000", 1), Status::EXIST, "who only says that he is that user");
    assert_eq!(ask("192.0.2.2:700", 1), Status::EXIST, "another host");
}

#[test]
fn mounts_are_listed_until_they_are_unmounted() {
    let server = server();
    root(&server);
    root(&server);
    let ask = |procedure| call_of(mount::PROGRAM, 3, procedure, Credential::None, &());
    let dump = || results::<mount::List<mount::MountEntry>>(&server, ask(mount::procedure::DUMP)).0;
    let entries = dump();
    assert_eq!(entries.len(), 1);
    assert_eq!((&entries[0].hostname.0[..], &entries[0].directory.0[..]), (&b"192.0.2.1"[..], &b"/ram"[..]));
    let path = DirPath(Bytes::from_static(b"/ram"));
    let umnt = call_of(mount::PROGRAM, 3, mount::procedure::UMNT, Credential::None, &path);
    results::<()>(&server, umnt);
    assert!(dump().is_empty());
    root(&server);
    results::<()>(&server, ask(mount::procedure::UMNTALL));
    assert!(dump().is_empty());
}

#[test]
fn files_kept_open_are_bounded_and_a_removed_one_is_closed() {
    let server = server();
    let vfs = server.vfs(0);
    let files = OpenFiles::new(16, server.shares.clone());
    rt::block_on(async {
        let set = weft_store::SetAttr::default;
        let exists = weft_store::Exists::Fail;
        for n in 0..200 {
            let name = format!("f{n}");
            let make = weft_store::Make::File;
            let attr = vfs.create(NodeId::ROOT, name.as_bytes(), make, exists, set()).await.unwrap().attr;
            files
                .open(&vfs, FileId { share: server.share(0).key(), node: attr.node }, n % 2 == 0)
                .await
                .unwrap();
        }
    })
    .unwrap();
    assert!(files.len() <= 16);
    let file = make(&server, b"gone");
    let read = nfs(procedure::READ, &ReadArgs { file, offset: 0, count: 1 });
    reply_to(&server, read.clone());
    assert_eq!(server.files.len(), 1);
    let object = DirOp { dir: root(&server), name: Name(Bytes::from_static(b"gone")) };
    results::<Outcome<WccOnly, WccOnly>>(&server, nfs(procedure::REMOVE, &RemoveArgs { object })).unwrap();
    assert_eq!(server.files.len(), 0);
    assert_eq!(reply_to(&server, read).1.u32().map(Status), Ok(Status::STALE));
}

fn messages() -> Vec<Bytes> {
    let handle = Handle::new(&[1; 40]).unwrap();
    let object = || DirOp { dir: handle, name: Name(Bytes::from_static(b"name")) };
    vec![
        nfs(procedure::LOOKUP, &LookupArgs { what: object() }),
        nfs(procedure::READ, &ReadArgs { file: handle, offset: 1, count: 2 }),
        nfs(procedure::CREATE, &CreateArgs { object: object(), how: CreateHow::Exclusive([1; 8]) }),
        nfs(
            procedure::READDIRPLUS,
            &ReaddirplusArgs { dir: handle, cookie: 1, verifier: [0; 8], dircount: 9, maxcount: 9 },
        ),
        call_of(mount::PROGRAM, 3, 1, Credential::None, &DirPath(Bytes::from_static(b"/ram/x"))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn mutated_calls_never_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4),
    ) {
        let server = server();
        let root = root(&server);
        for message in messages() {
            let mut message = message.to_vec();
            // A valid handle, so that some calls get far.
            if let Some(at) = message.windows(40).position(|w| w == [1; 40]) {
                message[at..at + 40].copy_from_slice(root.as_bytes());
            }
            for (at, flip) in &flips {
                let at = at.index(message.len());
                message[at] ^= flip;
            }
            drop(converse(&server, &[message.into()]));
        }
    }
}

#[test]
fn a_request_that_waits_does_not_hold_up_the_others() {
    let server = server();
    let file = make(&server, b"f");
    let write = WriteArgs {
        head: WriteHead { file, offset: 0, count: 5, stable: Stable::FileSync },
        data: Bytes::from_static(b"hello").into(),
    };
    // The sync goes to a worker, so the answer to NULL overtakes it.
    let null = {
        let mut bytes = nfs(0, &()).to_vec();
        bytes[3] = 8;
        Bytes::from(bytes)
    };
    let (replies, ended) = converse(&server, &[nfs(procedure::WRITE, &write), null]);
    ended.unwrap();
    let xids: Vec<u32> = replies.into_iter().map(|r| Decoder::new(stream(r)).u32().unwrap()).collect();
    assert_eq!(xids, [8, 7]);
    assert!(server.serve(Script::of(tcp(PEER), &[])).now_or_never().unwrap().is_ok());
}

/// A peer whose calls arrive as fast as they are taken, until `stop` is set.
struct Endless {
    call: Bytes,
    taken: Cell<usize>,
    stop: Cell<bool>,
}

impl Channel for Endless {
    without_rdma!();
    fn peer(&self) -> Peer {
        tcp(PEER)
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(std::future::ready(Ok(self.try_recv())))
    }
    fn try_recv(&self) -> Option<Message> {
        // Ends a server that never yields to others.
        if self.stop.get() || self.taken.get() == 100_000 {
            return None;
        }
        self.taken.set(self.taken.get() + 1);
        Some(Message { body: self.call.clone(), detached: None, ticket: Ticket::default() })
    }
    fn send(&self, _message: Outgoing) -> Sending {
        Sending::answered(Ok(()))
    }
    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
    fn close(&self) {}
}

#[test]
fn a_client_that_keeps_calls_coming_lets_others_have_their_turn() {
    let call = nfs(nfs3::procedure::NULL, &());
    let endless = Rc::new(Endless { call, taken: Cell::new(0), stop: Cell::new(false) });
    rt::block_on(async {
        let (server, channel) = (server(), endless.clone());
        let serving = rt::spawn(async move { server.serve(channel).await });
        for _ in 0..4 {
            rt::yield_now().await;
        }
        endless.stop.set(true);
        assert!(serving.await.is_ok());
    })
    .unwrap();
    assert!((1..10_000).contains(&endless.taken.get()), "{}", endless.taken.get());
}
