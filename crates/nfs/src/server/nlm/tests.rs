//! Hosts that lock, without a network; only a client that receives GRANTED listens on loopback.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use bytes::Bytes;
use weft_machine::net::Holder as Certified;
use weft_machine::{Listener, Pool, Stream};
use weft_store::backend::Ram;
use weft_store::opens::Key;
use weft_store::rules::{Ports, Protection};
use weft_store::{Exists, Make, SetAttr, Share as Served, Vfs};
use weft_transport::{Outgoing, Security, record};
use weft_wire::nfs3::Handle;
use weft_wire::nsm;
use weft_wire::rpc::{AuthStat, AuthSys, Call, Credential};
use weft_wire::rpcbind;

use super::*;
use crate::server::durable::Durable;
use crate::server::file_id::FileId;
use crate::server::tests::{
    make, node_of, results_for, results_for_as, results_of, results_over, server, server_where,
};
use crate::server::{Config, Limits, Policy};

const HERE: &str = "127.0.0.1:700";
const THERE: &str = "192.0.2.7:700";

fn object(text: &str) -> Object {
    Object(Bytes::copy_from_slice(text.as_bytes()))
}

fn part(file: Handle, svid: u32, offset: u64, length: u64) -> Lock {
    Lock { caller: object("box"), file, owner: object(&format!("{svid}@box")), svid, offset, length }
}

fn wish(lock: Lock, exclusive: bool, block: bool) -> LockArgs {
    LockArgs { cookie: object("cookie"), block, exclusive, lock, reclaim: false, state: 1 }
}

async fn call<T: Xdr>(server: &Server, peer: &'static str, number: u32, args: &impl Xdr) -> T {
    results_for(server, peer, (PROGRAM, VERSION, number), args).await
}

async fn locked(server: &Server, peer: &'static str, args: &LockArgs) -> Status {
    let answer: Answer = call(server, peer, procedure::LOCK, args).await;
    assert_eq!(answer.cookie, args.cookie);
    answer.status
}

async fn unlocked(server: &Server, peer: &'static str, lock: Lock) -> Status {
    let args = UnlockArgs { cookie: object("u"), lock };
    call::<Answer>(server, peer, procedure::UNLOCK, &args).await.status
}

async fn tested(server: &Server, peer: &'static str, lock: Lock, exclusive: bool) -> Result<Status, Holder> {
    let args = TestArgs { cookie: object("t"), exclusive, lock };
    call::<TestAnswer>(server, peer, procedure::TEST, &args).await.outcome
}

#[test]
fn owners_of_one_host_and_of_two_keep_each_other_out() {
    let server = server();
    let file = make(&server, b"f");
    rt::block_on(async {
        let server = &server;
        assert_eq!(locked(server, HERE, &wish(part(file, 1, 0, 10), true, false)).await, Status::GRANTED);
        assert_eq!(locked(server, HERE, &wish(part(file, 2, 9, 1), false, false)).await, Status::DENIED);
        assert_eq!(locked(server, HERE, &wish(part(file, 2, 10, 0), true, false)).await, Status::GRANTED);
        // The same owner name from another host is another owner.
        assert_eq!(locked(server, THERE, &wish(part(file, 1, 5, 1), true, false)).await, Status::DENIED);
        let holder = tested(server, THERE, part(file, 1, 100, 1), false).await.unwrap_err();
        assert_eq!((holder.svid, holder.owner, holder.exclusive), (2, object("2@box"), true));
        assert_eq!((holder.offset, holder.length), (10, 0));
        assert_eq!(unlocked(server, HERE, part(file, 1, 0, 0)).await, Status::GRANTED);
        assert_eq!(unlocked(server, HERE, part(file, 2, 0, 0)).await, Status::GRANTED);
        assert_eq!(tested(server, THERE, part(file, 1, 0, 0), true).await, Ok(Status::GRANTED));
        assert_eq!(server.locking.table.len(), 0, "nothing is kept of hosts without locks");
        // Invalid ranges.
        let beyond = part(file, 1, u64::MAX, 2);
        assert_eq!(locked(server, HERE, &wish(beyond, true, false)).await, Status::FBIG);
        let nowhere = Handle::new(&[1; 40]).unwrap();
        assert_eq!(locked(server, HERE, &wish(part(nowhere, 1, 0, 1), true, false)).await, Status::STALE_FH);
    })
    .unwrap();
}

#[test]
fn locks_of_smb_and_of_version_4_stand_in_the_same_table() {
    let server = server();
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    rt::block_on(async {
        let server = &server;
        let opens = server.vfs(0).opens().clone();
        let key: Key = opens.key();
        let smb = opens.try_open(node, &Opening::new(Rights::READ, Rights::ALL, key)).unwrap();
        let first = Range::new(0, 10).unwrap();
        smb.try_lock(first, true).unwrap();
        assert_eq!(locked(server, HERE, &wish(part(file, 1, 5, 1), false, false)).await, Status::DENIED);
        let holder = tested(server, HERE, part(file, 1, 5, 1), false).await.unwrap_err();
        assert_eq!((holder.svid, holder.owner, holder.length), (0, Object::default(), 10));
        let four = opens.lock_owner();
        opens.try_set_range(node, four, Range::new(20, 5).unwrap(), false).unwrap();
        assert_eq!(locked(server, HERE, &wish(part(file, 1, 20, 1), false, false)).await, Status::GRANTED);
        assert_eq!(locked(server, HERE, &wish(part(file, 1, 24, 1), true, false)).await, Status::DENIED);
        // And the reverse.
        assert!(smb.try_lock(Range::new(20, 1).unwrap(), true).is_err());
    })
    .unwrap();
}

/// A client that receives GRANTED: rpcbind and NLM on one port. Records what it receives, and returns `answer`.
async fn client(listener: Listener, answer: Status, told: Rc<RefCell<Vec<TestArgs>>>) {
    let port = listener.local_addr().port();
    loop {
        let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
        rt::spawn(converse(stream, port, answer, told.clone())).detach();
    }
}

async fn converse(stream: Stream, port: u16, answer: Status, told: Rc<RefCell<Vec<TestArgs>>>) {
    let channel = record::Record::channel(stream, Pool::new(1 << 20), record::Config::default());
    while let Ok(Some(message)) = channel.recv().await {
        let mut d = Decoder::new(message.body);
        let call = Call::parse(&mut d).unwrap();
        let mut e = Encoder::default();
        Reply::Success.emit(call.xid, &mut e);
        if call.program == rpcbind::PROGRAM {
            u32::from(port).emit(&mut e);
        } else {
            assert_eq!((call.program, call.procedure), (PROGRAM, procedure::GRANTED));
            let args = TestArgs::parse(&mut d).unwrap();
            Answer { cookie: args.cookie.clone(), status: answer }.emit(&mut e);
            told.borrow_mut().push(args);
        }
        channel.send(Outgoing::bytes(e.into_bytes())).await.unwrap();
    }
}

/// A server whose clients have their rpcbind where this listens.
fn server_of_client() -> (Arc<Server>, Listener) {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let mut server = server();
    Arc::get_mut(&mut server).unwrap().locking.rpcbind = listener.local_addr().port();
    (server, listener)
}

#[test]
fn who_waits_is_told_when_it_has_the_lock_and_loses_it_when_it_does_not_want_it() {
    for wanted in [true, false] {
        rt::block_on(async {
            let (server, listener) = server_of_client();
            let server = &server;
            let share = server.share(0);
            let made = share.vfs.create(
                NodeId::ROOT,
                b"f",
                weft_store::Make::File,
                weft_store::Exists::Fail,
                weft_store::SetAttr::default(),
            );
            let node = made.await.unwrap().attr.node;
            let file = server
                .handles
                .make(&server.shares.now(), FileId { share: server.share(0).key(), node })
                .await
                .unwrap();
            let told = Rc::new(RefCell::new(Vec::new()));
            let status = if wanted { Status::GRANTED } else { Status::DENIED };
            rt::spawn(client(listener, status, told.clone())).detach();
            assert_eq!(
                locked(server, THERE, &wish(part(file, 1, 0, 10), true, false)).await,
                Status::GRANTED
            );
            let waits = wish(part(file, 2, 5, 1), true, true);
            assert_eq!(locked(server, HERE, &waits).await, Status::BLOCKED);
            // Requested again before it is granted: still one wait.
            assert_eq!(locked(server, HERE, &waits).await, Status::BLOCKED);
            assert!(told.borrow().is_empty());
            assert_eq!(unlocked(server, THERE, part(file, 1, 0, 10)).await, Status::GRANTED);
            let opens = share.vfs.opens();
            let other = opens.lock_owner();
            let mut seen = false;
            // The wait has ended once the table no longer contains it.
            while !seen || server.locking.table.waits() > 0 {
                seen = !told.borrow().is_empty();
                rt::yield_now().await;
            }
            let [args] = &told.borrow()[..] else { panic!("told once") };
            assert_eq!((&args.cookie, &args.lock), (&waits.cookie, &waits.lock));
            let held = opens.test_range(node, other, Range::new(5, 1).unwrap(), false).is_some();
            assert_eq!(held, wanted);
        })
        .unwrap();
    }
}

#[test]
fn a_wait_that_is_cancelled_is_over() {
    let server = server();
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    rt::block_on(async {
        let server = &server;
        assert_eq!(locked(server, THERE, &wish(part(file, 1, 0, 10), true, false)).await, Status::GRANTED);
        let waits = wish(part(file, 2, 5, 1), true, true);
        assert_eq!(locked(server, HERE, &waits).await, Status::BLOCKED);
        let args = CancelArgs { cookie: object("c"), block: true, exclusive: true, lock: waits.lock.clone() };
        let cancel = async || call::<Answer>(server, HERE, procedure::CANCEL, &args).await.status;
        assert_eq!(cancel().await, Status::GRANTED);
        assert_eq!(cancel().await, Status::DENIED, "it waits no more");
        assert_eq!(unlocked(server, THERE, part(file, 1, 0, 0)).await, Status::GRANTED);
        for _ in 0..10 {
            rt::yield_now().await;
        }
        let opens = server.vfs(0).opens().clone();
        assert_eq!(opens.test_range(node, opens.lock_owner(), Range::new(0, 100).unwrap(), true), None);
        assert_eq!(server.locking.table.len(), 0);
    })
    .unwrap();
}

#[test]
fn a_host_that_restarts_holds_nothing_and_nobody_else_can_say_so() {
    let server = server();
    let file = make(&server, b"f");
    rt::block_on(async {
        let server = &server;
        assert_eq!(locked(server, HERE, &wish(part(file, 1, 0, 0), true, false)).await, Status::GRANTED);
        let change = nsm::Change { name: object("box"), state: 5 };
        let notify = async |peer| {
            let number = (nsm::PROGRAM, nsm::VERSION, nsm::procedure::NOTIFY);
            results_for::<()>(server, peer, number, &change).await;
        };
        notify(THERE).await;
        assert!(tested(server, THERE, part(file, 1, 0, 0), true).await.is_err());
        notify(HERE).await;
        assert_eq!(tested(server, THERE, part(file, 1, 0, 0), true).await, Ok(Status::GRANTED));
        // The same by FREE_ALL.
        assert_eq!(locked(server, HERE, &wish(part(file, 1, 0, 0), true, false)).await, Status::GRANTED);
        let notify = Notify { name: object("box"), state: 7 };
        call::<()>(server, HERE, procedure::FREE_ALL, &notify).await;
        assert_eq!(tested(server, THERE, part(file, 1, 0, 0), true).await, Ok(Status::GRANTED));
    })
    .unwrap();
}

#[test]
fn share_modes_meet_those_of_others() {
    let server = server();
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    rt::block_on(async {
        let server = &server;
        let share = |owner: &str, access, deny| ShareArgs {
            cookie: object("s"),
            share: Share { caller: object("box"), file, owner: object(owner), deny, access },
            reclaim: false,
        };
        let ask = async |number, args: &ShareArgs| -> Status {
            call::<ShareAnswer>(server, HERE, number, args).await.status
        };
        assert_eq!(ask(procedure::SHARE, &share("a", SHARE_READ, SHARE_WRITE)).await, Status::GRANTED);
        assert_eq!(ask(procedure::SHARE, &share("b", SHARE_WRITE, 0)).await, Status::DENIED);
        assert_eq!(ask(procedure::SHARE, &share("b", SHARE_READ, 0)).await, Status::GRANTED);
        // An SMB open for writing is refused, too.
        let opens = server.vfs(0).opens().clone();
        let writes = Opening::new(Rights::WRITE, Rights::ALL, opens.key());
        assert!(opens.try_open(node, &writes).is_err());
        // It cancels, and later leaves.
        assert_eq!(ask(procedure::SHARE, &share("a", SHARE_READ, 0)).await, Status::GRANTED);
        assert_eq!(ask(procedure::SHARE, &share("b", SHARE_WRITE, SHARE_READ)).await, Status::DENIED);
        assert_eq!(ask(procedure::UNSHARE, &share("a", SHARE_READ, 0)).await, Status::GRANTED);
        assert_eq!(ask(procedure::SHARE, &share("b", SHARE_WRITE, SHARE_READ)).await, Status::GRANTED);
        assert_eq!(ask(procedure::UNSHARE, &share("b", 0, 0)).await, Status::GRANTED);
        assert!(opens.try_open(node, &writes).is_ok());
        assert_eq!(server.locking.table.len(), 0);
    })
    .unwrap();
}

#[test]
fn after_a_restart_those_come_first_who_had_locks() {
    let state = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let dir = weft_store::backend::Dir::open(folder.path()).unwrap();
        Server::new(Config {
            shares: vec![weft_store::Share::new("ram", weft_store::Vfs::new(dir))],
            pool: Pool::new(0),
            limits: Limits::default(),
            policy: Policy { decides: false, squash_root: true },
            durable: Some(Durable::open(state.path(), "test").unwrap()),
        })
    };
    let first = start();
    let file = make(&first, b"f");
    let mine = wish(part(file, 1, 0, 10), true, false);
    rt::block_on(async { assert_eq!(locked(&first, HERE, &mine).await, Status::GRANTED) }).unwrap();
    drop(first);
    let second = start();
    let again = LockArgs { reclaim: true, ..mine.clone() };
    rt::block_on(async {
        let theirs = wish(part(file, 9, 50, 1), true, false);
        assert_eq!(locked(&second, THERE, &theirs).await, Status::DENIED_GRACE_PERIOD);
        assert_eq!(locked(&second, HERE, &again).await, Status::GRANTED);
        // The host reports its own restart: nothing remains to be reclaimed.
        let notify = Notify { name: object("box"), state: 7 };
        call::<()>(&second, HERE, procedure::FREE_ALL, &notify).await;
    })
    .unwrap();
    drop(second);
    let third = start();
    rt::block_on(async {
        assert_eq!(locked(&third, HERE, &again).await, Status::DENIED, "there is no grace");
        assert_eq!(locked(&third, HERE, &mine).await, Status::GRANTED);
    })
    .unwrap();
}

/// A host that accepts connections and never replies.
#[test]
fn answers_that_a_host_does_not_take_hold_few_connections() {
    rt::block_on(async {
        let (server, _listener) = server_of_client();
        let nowhere = Handle::new(&[1; 40]).unwrap();
        for n in 0..100 {
            let args = TestArgs { cookie: object("c"), exclusive: true, lock: part(nowhere, n, 0, 1) };
            call::<()>(&server, HERE, procedure::TEST_MSG, &args).await;
        }
        assert_eq!(server.locking.calls.len(), 16);
    })
    .unwrap();
}

/// A server with this much memory for clients' state, whose share admits these ports.
fn server_with(state_memory: usize, ports: Ports) -> Arc<Server> {
    let mut share = Served::new("ram", Vfs::new(Ram::new(16 << 20)));
    share.rules.nfs.ports = Some(ports);
    Server::new(Config {
        shares: vec![share],
        pool: Pool::new(0),
        limits: Limits { state_memory, ..Limits::default() },
        policy: Policy { decides: false, squash_root: true },
        durable: None,
    })
}

const MEMORY: usize = 1 << 20;

#[test]
fn names_that_one_address_makes_up_lock_nobody_else_out() {
    let server = server_with(MEMORY, Ports::Any);
    let file = make(&server, b"f");
    rt::block_on(async {
        let server = &server;
        let named = |n: u64| Lock { caller: object(&format!("host-{n}")), ..part(file, 1, n, 1) };
        let mut held = 0;
        while locked(server, HERE, &wish(named(held), true, false)).await == Status::GRANTED {
            held += 1;
            assert!(held < 4096, "an address has a part of the memory");
        }
        assert!(held > 10, "{held}");
        assert!(server.states.budget.used_bytes() <= MEMORY / 5);
        assert_eq!(locked(server, HERE, &wish(named(held), true, false)).await, Status::DENIED_NOLOCKS);
        let theirs = wish(part(file, 1, 1 << 40, 1), true, false);
        assert_eq!(locked(server, THERE, &theirs).await, Status::GRANTED);
        for n in 0..held {
            assert_eq!(unlocked(server, HERE, named(n)).await, Status::GRANTED);
        }
        assert_eq!(server.locking.table.len(), 1);
        assert_eq!(locked(server, HERE, &wish(named(held), true, false)).await, Status::GRANTED);
    })
    .unwrap();
}

#[test]
fn byte_ranges_are_counted_as_what_their_address_holds() {
    let server = server_with(MEMORY, Ports::Any);
    let (file, other) = (make(&server, b"f"), make(&server, b"g"));
    rt::block_on(async {
        let server = &server;
        assert_eq!(locked(server, HERE, &wish(part(other, 1, 0, 0), true, false)).await, Status::GRANTED);
        let mut ranges = 0;
        while locked(server, HERE, &wish(part(file, 1, 2 * ranges, 1), true, false)).await == Status::GRANTED
        {
            ranges += 1;
            assert!(ranges < 2048, "ranges are memory");
        }
        assert!(ranges > 100 && server.states.budget.used_bytes() <= MEMORY / 5, "{ranges}");
        assert_eq!(locked(server, THERE, &wish(part(file, 1, 1, 1), true, false)).await, Status::GRANTED);
        // Without memory, a lock cannot be split but can be released.
        let mut split = Status::GRANTED;
        for at in [5, 15, 25] {
            split = unlocked(server, HERE, part(other, 1, at, 1)).await;
        }
        assert_eq!(split, Status::DENIED_NOLOCKS);
        assert_eq!(unlocked(server, HERE, part(other, 1, 0, 5)).await, Status::GRANTED);
        assert_eq!(unlocked(server, HERE, part(file, 1, 0, 0)).await, Status::GRANTED);
        assert_eq!(unlocked(server, HERE, part(other, 1, 35, 1)).await, Status::GRANTED);
        assert_eq!(unlocked(server, HERE, part(other, 1, 0, 0)).await, Status::GRANTED);
        assert_eq!(unlocked(server, THERE, part(file, 1, 0, 0)).await, Status::GRANTED);
        assert_eq!((server.locking.table.len(), server.states.budget.used_bytes()), (0, 0));
    })
    .unwrap();
}

async fn locked_by(server: &Server, peer: Peer, args: &LockArgs) -> Result<Status, Reply> {
    let number = (PROGRAM, VERSION, procedure::LOCK);
    let answer: Result<Answer, Reply> = results_of(server, peer, Credential::None, number, args).await;
    answer.map(|answer| answer.status)
}

#[test]
fn hosts_that_hold_nothing_are_not_remembered_at_the_cost_of_others() {
    let server = server();
    let file = make(&server, b"f");
    rt::block_on(async {
        let server = &server;
        let of =
            |net: u16, n: u16| Peer::Tcp(SocketAddr::new([0x2001, 0xdb8, 0, net, 0, 0, 0, n].into(), 700));
        let number = (PROGRAM, VERSION, procedure::UNLOCK);
        for n in 0..200 {
            let lock = part(file, 1, 0, 1);
            assert_eq!(
                locked_by(server, of(1, n), &wish(lock.clone(), true, false)).await,
                Ok(Status::GRANTED)
            );
            let args = UnlockArgs { cookie: object("u"), lock };
            let answer: Result<Answer, Reply> =
                results_of(server, of(1, n), Credential::None, number, &args).await;
            assert_eq!(answer.unwrap().status, Status::GRANTED);
        }
        // A network whose hosts all hold something gets no further ones; another network has its own part.
        let mut granted = 0;
        while locked_by(server, of(1, granted), &wish(part(file, 1, granted.into(), 1), true, false)).await
            == Ok(Status::GRANTED)
        {
            granted += 1;
        }
        assert_eq!(granted, 64);
        let other = wish(part(file, 1, 1000, 1), true, false);
        assert_eq!(locked_by(server, of(2, 1), &other).await, Ok(Status::GRANTED));
    })
    .unwrap();
}

#[test]
fn hosts_are_remembered_for_as_long_as_they_may_have_something_to_take_again() {
    let dir = tempfile::tempdir().unwrap();
    let life = |story: &dyn Fn(&Server, Handle)| {
        let share = Served::new("ram", Vfs::new(Ram::new(8 << 20)));
        let server = Server::new(Config {
            shares: vec![share],
            pool: Pool::new(8 << 20),
            limits: Limits::default(),
            durable: Some(Durable::open(dir.path(), "test").unwrap()),
            policy: Policy { decides: false, squash_root: true },
        });
        let file = make(&server, b"f");
        story(&server, file);
    };
    let minutes = |n: u64| rt::now() + std::time::Duration::from_secs(60 * n);
    let remembered = |server: &Server| server.states.durable().unwrap().hosts().unwrap().len();
    life(&|server, file| {
        rt::block_on(async {
            for (peer, first) in [(HERE, 0), (THERE, 1)] {
                let lock = wish(part(file, 1, first, 1), true, false);
                assert_eq!(locked(server, peer, &lock).await, Status::GRANTED);
            }
        })
        .unwrap();
        assert_eq!(remembered(server), 2);
    });
    life(&|server, file| {
        assert!(server.monitors.any_before());
        rt::block_on(async {
            crate::server::monitors::sweep(server, rt::now());
            assert_eq!(remembered(server), 2, "they may come");
            let again = LockArgs { reclaim: true, ..wish(part(file, 1, 0, 1), true, false) };
            assert_eq!(locked(server, HERE, &again).await, Status::GRANTED);
            // Hosts that did not return hold nothing; hosts that hold something stay.
            crate::server::monitors::sweep(server, minutes(2));
            crate::server::monitors::sweep(server, minutes(60));
            assert_eq!(remembered(server), 1);
            assert_eq!(unlocked(server, HERE, part(file, 1, 0, 0)).await, Status::GRANTED);
            crate::server::monitors::sweep(server, minutes(61));
            crate::server::monitors::sweep(server, minutes(62));
            assert_eq!(remembered(server), 1, "most lock again soon");
            let more = wish(part(file, 1, 0, 1), true, false);
            assert_eq!(locked(server, HERE, &more).await, Status::GRANTED);
            crate::server::monitors::sweep(server, minutes(70));
            assert_eq!(remembered(server), 1);
            assert_eq!(unlocked(server, HERE, part(file, 1, 0, 0)).await, Status::GRANTED);
            crate::server::monitors::sweep(server, minutes(71));
            crate::server::monitors::sweep(server, minutes(77));
            assert_eq!(remembered(server), 0);
        })
        .unwrap();
    });
    life(&|server, _| assert!(!server.monitors.any_before(), "nobody waits for anybody"));
}

/// Sends a restart notification; returns the reply.
async fn notified(server: &Server, peer: Peer, state: u32) -> Result<(), Reply> {
    let change = nsm::Change { name: object("box"), state };
    let number = (nsm::PROGRAM, nsm::VERSION, nsm::procedure::NOTIFY);
    results_of(server, peer, Credential::None, number, &change).await
}

async fn freed(server: &Server, peer: Peer) -> Result<(), Reply> {
    let all = Notify { name: object("box"), state: 0 };
    results_of(server, peer, Credential::None, (PROGRAM, VERSION, procedure::FREE_ALL), &all).await
}

#[test]
fn a_restart_that_is_told_late_or_twice_frees_nothing_that_was_locked_since() {
    let server = server();
    let file = make(&server, b"f");
    let here = Peer::Tcp(HERE.parse().unwrap());
    rt::block_on(async {
        let server = &server;
        let since =
            |svid: u32, state| LockArgs { state, ..wish(part(file, svid, svid.into(), 1), true, false) };
        assert_eq!(locked(server, HERE, &since(1, 3)).await, Status::GRANTED);
        assert_eq!(locked(server, HERE, &since(2, 5)).await, Status::GRANTED);
        let held =
            async |svid: u32| tested(server, THERE, part(file, 9, svid.into(), 1), true).await.is_err();
        for (state, before, after) in [(3, true, true), (5, false, true), (5, false, true), (7, false, false)]
        {
            notified(server, here, state).await.unwrap();
            assert_eq!((held(1).await, held(2).await), (before, after), "{state}");
        }
        assert_eq!(server.locking.table.len(), 0);
        // FREE_ALL has no state number.
        assert_eq!(locked(server, HERE, &since(1, 9)).await, Status::GRANTED);
        freed(server, here).await.unwrap();
        assert!(!held(1).await);
    })
    .unwrap();
}

/// A client's rpcbind and status monitor, with this state number.
async fn monitor(listener: Listener, state: Rc<Cell<u32>>) {
    let port = listener.local_addr().port();
    loop {
        let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
        let state = state.clone();
        let answers = async move {
            let channel = record::Record::channel(stream, Pool::new(1 << 20), record::Config::default());
            while let Ok(Some(message)) = channel.recv().await {
                let call = Call::parse(&mut Decoder::new(message.body)).unwrap();
                let mut e = Encoder::default();
                Reply::Success.emit(call.xid, &mut e);
                if call.program == rpcbind::PROGRAM {
                    u32::from(port).emit(&mut e);
                } else {
                    assert_eq!((call.program, call.procedure), (nsm::PROGRAM, nsm::procedure::STAT));
                    nsm::StatAnswer { result: 0, state: state.get() }.emit(&mut e);
                }
                channel.send(Outgoing::bytes(e.into_bytes())).await.unwrap();
            }
        };
        rt::spawn(answers).detach();
    }
}

#[test]
fn a_datagram_in_a_hosts_name_frees_its_locks_only_where_the_host_says_the_same() {
    rt::block_on(async {
        let (server, listener) = server_of_client();
        let server = &server;
        let vfs = server.vfs(0);
        let made = vfs.create(
            NodeId::ROOT,
            b"f",
            weft_store::Make::File,
            weft_store::Exists::Fail,
            weft_store::SetAttr::default(),
        );
        let file = server
            .handles
            .make(
                &server.shares.now(),
                FileId { share: server.share(0).key(), node: made.await.unwrap().attr.node },
            )
            .await
            .unwrap();
        let udp = Peer::Udp(HERE.parse().unwrap());
        let mine = wish(part(file, 1, 0, 0), true, false);
        // That address has not connected: the lock would be kept for a claimed address.
        assert_eq!(locked_by(server, udp, &mine).await, Err(Reply::AuthError(AuthStat::TOOWEAK)));
        assert_eq!(locked(server, HERE, &mine).await, Status::GRANTED);
        let held = async || tested(server, THERE, part(file, 9, 0, 1), true).await.is_err();
        let state = Rc::new(Cell::new(1));
        rt::spawn(monitor(listener, state.clone())).detach();
        // Forged, whatever number it names: the host has not restarted.
        for number in [0, 1, 3, 0x7fff_ffff] {
            notified(server, udp, number).await.unwrap();
        }
        freed(server, udp).await.unwrap();
        assert!(held().await);
        // Its status monitor does not answer.
        state.set(0);
        assert_eq!(notified(server, udp, 3).await, Err(Reply::SystemError));
        assert!(held().await);
        state.set(3);
        notified(server, udp, 3).await.unwrap();
        assert!(!held().await);
        // No host without locks is queried.
        state.set(0);
        notified(server, udp, 5).await.unwrap();
    })
    .unwrap();
}

#[test]
fn a_lock_that_is_being_taken_can_be_given_back_whatever_comes_between() {
    enum Between {
        Unlock,
        FailingLock,
        FreeAll,
        Restart,
    }
    let server = server();
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    let here = Peer::Tcp(HERE.parse().unwrap());
    let host = HostId { addr: here.ip().unwrap(), name: Bytes::from_static(b"box") };
    let mine = part(file, 1, 0, 10);
    let owner = OwnerId { share: server.share(0).key(), owner: mine.owner.clone(), svid: mine.svid };
    rt::block_on(async {
        let server = &server;
        let (table, opens) = (&server.locking.table, &server.vfs(0).opens().clone());
        let theirs = part(file, 9, 100, 1);
        assert_eq!(locked(server, THERE, &wish(theirs.clone(), true, false)).await, Status::GRANTED);
        for between in [Between::Unlock, Between::FailingLock, Between::FreeAll, Between::Restart] {
            let entered = table.enter(&host, &owner, Some(1), node, opens).unwrap();
            match between {
                Between::Unlock => assert_eq!(unlocked(server, HERE, mine.clone()).await, Status::GRANTED),
                Between::FailingLock => {
                    let lock = wish(part(file, 1, 100, 1), true, false);
                    assert_eq!(locked(server, HERE, &lock).await, Status::DENIED);
                }
                Between::FreeAll => freed(server, here).await.unwrap(),
                Between::Restart => notified(server, here, 3).await.unwrap(),
            }
            let set = || opens.try_set_range(node, entered.id, Range::new(0, 10).unwrap(), true);
            assert!(matches!(
                entered.ranges.lock(LockedBy { opens, node, owner: entered.id }, set),
                Ok(Ok(()))
            ));
            drop(entered);
            assert!(tested(server, THERE, part(file, 9, 0, 1), true).await.is_err(), "it is locked");
            assert_eq!(unlocked(server, HERE, mine.clone()).await, Status::GRANTED);
            assert_eq!(tested(server, THERE, part(file, 9, 0, 1), true).await, Ok(Status::GRANTED));
            assert!(!table.knows(&host));
        }
        // A request that ends before it has locked leaves nothing.
        drop(table.enter(&host, &owner, None, node, opens).unwrap());
        assert_eq!(unlocked(server, THERE, theirs).await, Status::GRANTED);
        assert_eq!((table.len(), server.states.budget.used_bytes()), (0, 0));
    })
    .unwrap();
}

#[test]
fn users_of_a_host_neither_lock_nor_free_in_exports_for_reserved_ports() {
    const ANY: &str = "127.0.0.1:40000";
    let server = server_with(1 << 20, Ports::Reserved);
    let file = make(&server, b"f");
    rt::block_on(async {
        let server = &server;
        let mine = wish(part(file, 1, 0, 0), true, false);
        assert_eq!(locked(server, ANY, &mine).await, Status::DENIED);
        assert_eq!(server.locking.table.len(), 0);
        assert_eq!(locked(server, HERE, &mine).await, Status::GRANTED);
        assert_eq!(tested(server, ANY, part(file, 2, 0, 1), true).await, Ok(Status::FAILED));
        assert_eq!(unlocked(server, ANY, part(file, 1, 0, 0)).await, Status::DENIED);
        let args = CancelArgs { cookie: object("c"), block: true, exclusive: true, lock: mine.lock.clone() };
        assert_eq!(call::<Answer>(server, ANY, procedure::CANCEL, &args).await.status, Status::DENIED);
        let any = Peer::Tcp(ANY.parse().unwrap());
        notified(server, any, 5).await.unwrap();
        freed(server, any).await.unwrap();
        let share = ShareArgs {
            cookie: object("s"),
            share: Share { caller: object("box"), file, owner: object("a"), deny: 0, access: SHARE_READ },
            reclaim: false,
        };
        for number in [procedure::SHARE, procedure::UNSHARE] {
            assert_eq!(call::<ShareAnswer>(server, ANY, number, &share).await.status, Status::DENIED);
        }
        assert!(tested(server, THERE, part(file, 2, 0, 1), true).await.is_err(), "it is locked still");
        freed(server, Peer::Tcp(HERE.parse().unwrap())).await.unwrap();
        assert_eq!(tested(server, THERE, part(file, 2, 0, 1), true).await, Ok(Status::GRANTED));
    })
    .unwrap();
}

#[test]
fn who_may_only_read_locks_no_other_reader_out() {
    const OWNER: (u32, u32) = (2001, 1);
    const MEMBER: (u32, u32) = (2002, 3000);
    const STRANGER: (u32, u32) = (2003, 1);
    let server = server_where(Policy { decides: true, squash_root: true });
    let file = make(&server, b"f");
    let node = node_of(&server, &file);
    rt::block_on(async {
        let server = &server;
        let chmod = async |mode| {
            let set =
                SetAttr { uid: Some(OWNER.0), gid: Some(MEMBER.1), mode: Some(mode), ..SetAttr::default() };
            server.vfs(0).setattr(node, set).await.unwrap();
        };
        let user = |(uid, gid)| Credential::Sys(AuthSys::new(Bytes::from_static(b"box"), uid, gid));
        let lock = async |who: (u32, u32), exclusive| {
            let args = wish(part(file, who.0, 0, 0), exclusive, false);
            let number = (PROGRAM, VERSION, procedure::LOCK);
            let answer: Answer = results_for_as(server, HERE, user(who), number, &args).await.unwrap();
            unlocked(server, HERE, args.lock).await;
            answer.status
        };
        let share = async |who: (u32, u32), access| {
            let share = Share { caller: object("box"), file, owner: object("a"), deny: 0, access };
            let args = ShareArgs { cookie: object("s"), share, reclaim: false };
            let number = (PROGRAM, VERSION, procedure::SHARE);
            let answer: ShareAnswer = results_for_as(server, HERE, user(who), number, &args).await.unwrap();
            call::<ShareAnswer>(server, HERE, procedure::UNSHARE, &args).await;
            answer.status
        };
        use Status as S;
        for (mode, who, exclusive, shared) in [
            (0o664, OWNER, S::GRANTED, S::GRANTED),
            (0o664, MEMBER, S::GRANTED, S::GRANTED),
            (0o664, STRANGER, S::DENIED, S::GRANTED),
            (0o620, MEMBER, S::GRANTED, S::GRANTED),
            (0o600, MEMBER, S::DENIED, S::DENIED),
            (0o000, OWNER, S::GRANTED, S::GRANTED),
        ] {
            chmod(mode).await;
            assert_eq!(lock(who, true).await, exclusive, "{mode:o} {who:?}");
            assert_eq!(lock(who, false).await, shared, "{mode:o} {who:?}");
            assert_eq!(share(who, SHARE_WRITE).await, exclusive, "{mode:o} {who:?}");
            assert_eq!(share(who, SHARE_READ).await, shared, "{mode:o} {who:?}");
        }
        // Who may read may ask whether somebody else has it locked.
        chmod(0o644).await;
        let args = TestArgs { cookie: object("t"), exclusive: true, lock: part(file, STRANGER.0, 0, 0) };
        let number = (PROGRAM, VERSION, procedure::TEST);
        let answer: TestAnswer = results_for_as(server, HERE, user(STRANGER), number, &args).await.unwrap();
        assert_eq!(answer.outcome, Ok(S::GRANTED));
    })
    .unwrap();
}

/// Whoever can write to the network can forge any address; `xprtsec=mtls` protects against that.
#[test]
fn who_shows_no_certificate_neither_locks_nor_frees_in_exports_that_ask_for_one() {
    let mut share = Served::new("ram", Vfs::new(Ram::new(16 << 20)));
    share.rules.nfs.protection = Protection::Mutual;
    let (shares, policy) = (vec![share], Policy { decides: false, squash_root: true });
    let server =
        Server::new(Config { shares, pool: Pool::new(0), limits: Limits::default(), policy, durable: None });
    rt::block_on(async {
        let server = &server;
        let vfs = &server.vfs(0);
        let made = vfs.create(NodeId::ROOT, b"f", Make::File, Exists::Fail, SetAttr::default());
        let node = made.await.unwrap().attr.node;
        let file = server
            .handles
            .make(&server.shares.now(), FileId { share: server.share(0).key(), node })
            .await
            .unwrap();
        let peer = Peer::Tcp(HERE.parse().unwrap());
        let known = (peer, Some(Security { holder: Some(Certified([1; 32])) }));
        async fn call<T: Xdr>(
            server: &Server,
            by: (Peer, Option<Security>),
            number: u32,
            args: &impl Xdr,
        ) -> T {
            results_over(server, by, Credential::None, (PROGRAM, VERSION, number), args).await.unwrap()
        }
        let mine = wish(part(file, 1, 0, 0), true, false);
        let share = ShareArgs {
            cookie: object("s"),
            share: Share { caller: object("box"), file, owner: object("a"), deny: 0, access: SHARE_READ },
            reclaim: false,
        };
        assert_eq!(call::<Answer>(server, known, procedure::LOCK, &mine).await.status, Status::GRANTED);
        assert_eq!(
            call::<ShareAnswer>(server, known, procedure::SHARE, &share).await.status,
            Status::GRANTED
        );
        let unlock = UnlockArgs { cookie: object("u"), lock: mine.lock.clone() };
        let cancel =
            CancelArgs { cookie: object("c"), block: true, exclusive: true, lock: mine.lock.clone() };
        for stranger in [(peer, None), (peer, Some(Security { holder: None }))] {
            assert_eq!(call::<Answer>(server, stranger, procedure::LOCK, &mine).await.status, Status::DENIED);
            assert_eq!(
                call::<Answer>(server, stranger, procedure::UNLOCK, &unlock).await.status,
                Status::DENIED
            );
            assert_eq!(
                call::<Answer>(server, stranger, procedure::CANCEL, &cancel).await.status,
                Status::DENIED
            );
            let unshared = call::<ShareAnswer>(server, stranger, procedure::UNSHARE, &share).await;
            assert_eq!(unshared.status, Status::DENIED);
            call::<()>(server, stranger, procedure::FREE_ALL, &Notify { name: object("box"), state: 0 })
                .await;
            let notify = (nsm::PROGRAM, nsm::VERSION, nsm::procedure::NOTIFY);
            let change = nsm::Change { name: object("box"), state: 99 };
            results_over::<()>(server, stranger, Credential::None, notify, &change).await.unwrap();
        }
        let other = TestArgs { cookie: object("t"), exclusive: true, lock: part(file, 2, 0, 1) };
        let tested = call::<TestAnswer>(server, known, procedure::TEST, &other).await;
        assert!(tested.outcome.is_err(), "it is locked still");
        assert!(vfs.opens().is_open(node));
        call::<()>(server, known, procedure::FREE_ALL, &Notify { name: object("box"), state: 0 }).await;
        let tested = call::<TestAnswer>(server, known, procedure::TEST, &other).await;
        assert_eq!(tested.outcome, Ok(Status::GRANTED));
        assert!(!vfs.opens().is_open(node));
    })
    .unwrap();
}
