//! READs and WRITEs of callers and files that a connection knows: they are answered at once, and as on a connection that knows
//! nothing.

use weft_machine::recorder::User;
use weft_store::opens::Range;
use weft_store::rules::Protection;
use weft_store::{DirName, Make, SetAttr};
use weft_wire::xdr::Data;

use super::*;
use crate::server::at_once::AT_ONCE;
use crate::server::caller::Caller;
use crate::server::familiar::{Beginning, Familiar, Known, Procedure};
use crate::server::ops::at_once::LOOKS;
use crate::server::peer_shares::PeerShares;

/// What happens on a connection, one after the other.
pub(in crate::server) enum Step {
    Call(Bytes),
    /// Calls that arrive together.
    Calls(Vec<Bytes>),
    /// By others.
    Change(LocalBoxFuture<'static, ()>),
}

/// A connection on which changes happen between the calls.
struct Steps {
    steps: RefCell<VecDeque<Step>>,
    arrived: RefCell<VecDeque<Bytes>>,
    replies: RefCell<Vec<Outgoing>>,
}

impl Channel for Steps {
    without_rdma!();
    fn peer(&self) -> Peer {
        tcp(PEER)
    }
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(async {
            loop {
                let step = self.steps.borrow_mut().pop_front();
                match step {
                    None => return Ok(None),
                    Some(Step::Change(change)) => change.await,
                    Some(Step::Call(body)) => self.arrived.borrow_mut().push_back(body),
                    Some(Step::Calls(bodies)) => self.arrived.borrow_mut().extend(bodies),
                }
                if let Some(message) = self.try_recv() {
                    return Ok(Some(message));
                }
            }
        })
    }
    fn try_recv(&self) -> Option<Message> {
        let body = self.arrived.borrow_mut().pop_front()?;
        Some(Message { body, detached: None, ticket: Ticket::default() })
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

/// The replies of one connection, and how many of them were given at once.
pub(in crate::server) async fn replies(
    server: &Server,
    steps: impl IntoIterator<Item = Step>,
) -> (Vec<Bytes>, usize) {
    let steps = RefCell::new(steps.into_iter().collect());
    let steps = Rc::new(Steps { steps, arrived: RefCell::default(), replies: RefCell::default() });
    let before = AT_ONCE.get();
    server.serve(steps.clone()).await.unwrap();
    let mut replies = Vec::new();
    for reply in steps.replies.take() {
        replies.push(stream_of(reply).await);
    }
    (replies, AT_ONCE.get() - before)
}

const OWNER: u32 = 10;
const STRANGER: u32 = 11;

fn by(uid: u32) -> Credential {
    Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, uid))
}

fn read_by(uid: u32, file: &Handle, offset: u64, count: u32) -> Bytes {
    let args = ReadArgs { file: *file, offset, count };
    call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::READ, by(uid), &args)
}

fn write_by(uid: u32, file: &Handle, offset: u64, data: &'static [u8], stable: Stable) -> Bytes {
    let head = WriteHead { file: *file, offset, count: data.len() as u32, stable };
    let args = WriteArgs { head, data: Data::Here(Bytes::from_static(data)) };
    call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::WRITE, by(uid), &args)
}

/// A server that decides by claimed ids, and the handle of a file of OWNER that others may read.
async fn served() -> (Arc<Server>, Handle, NodeId) {
    let server = server_where(Policy { decides: true, squash_root: true });
    let set = SetAttr { mode: Some(0o644), uid: Some(OWNER), gid: Some(OWNER), ..SetAttr::default() };
    let vfs = server.vfs(0).clone();
    let made = vfs.create(NodeId::ROOT, b"file", Make::File, weft_store::Exists::Fail, set).await.unwrap();
    let node = made.attr.node;
    let file = vfs.open(node, true).await.unwrap();
    file.write(0, &[Bytes::from_static(b"0123456789abcdef")]).await.unwrap();
    let id = FileId { share: server.share(0).key(), node };
    let handle = server.handles.make(&server.shares.now(), id).await.unwrap();
    (server, handle, node)
}

/// The status, and the bytes behind it.
fn results(reply: &Bytes) -> (Status, Bytes) {
    let mut d = Decoder::new(reply.clone());
    assert_eq!(Reply::parse(&mut d).unwrap().1, Reply::Success);
    (Status(d.u32().unwrap()), d.rest())
}

#[test]
fn from_the_third_one_on_they_are_answered_at_once() {
    rt::block_on(async {
        let (server, file, _) = served().await;
        let read = |at| Step::Call(read_by(STRANGER, &file, at, 4));
        let (replies_, at_once) = replies(&server, (0..5).map(read)).await;
        assert_eq!(at_once, 3, "the first is seen, the second is kept");
        for (at, reply) in replies_.iter().enumerate() {
            let (status, rest) = results(reply);
            assert_eq!(status, Status::OK);
            let expected = &b"0123456789abcdef"[at..at + 4];
            assert!(rest.ends_with(expected), "{rest:?}");
        }
        let write = |at| Step::Call(write_by(OWNER, &file, at, b"xy", Stable::Unstable));
        let (written, at_once) = replies(&server, (0..5).map(write)).await;
        assert_eq!(at_once, 3);
        assert!(written.iter().all(|reply| results(reply).0 == Status::OK));
        let (now, _) = replies(&server, [Step::Call(read_by(OWNER, &file, 0, 16))]).await;
        assert!(now[0].ends_with(b"xxxxxy6789abcdef"), "{:?}", now[0]);
    })
    .unwrap();
}

/// A change by somebody else, the calls that come after it, and how many of them may be answered at once.
type Case =
    (&'static str, fn(Arc<Server>, NodeId) -> LocalBoxFuture<'static, ()>, fn(&Handle) -> Bytes, usize);

fn set(server: Arc<Server>, node: NodeId, set: SetAttr) -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        server.vfs(0).setattr(node, set).await.unwrap();
    })
}

fn nothing(_: Arc<Server>, _: NodeId) -> LocalBoxFuture<'static, ()> {
    Box::pin(async {})
}

const READ_IT: fn(&Handle) -> Bytes = |file| read_by(STRANGER, file, 2, 8);
const WRITE_IT: fn(&Handle) -> Bytes = |file| write_by(OWNER, file, 2, b"new", Stable::Unstable);

const CASES: &[Case] = &[
    ("nothing, READ", nothing, READ_IT, 1),
    ("nothing, WRITE", nothing, WRITE_IT, 1),
    ("READ to the end", nothing, |file| read_by(STRANGER, file, 8, 100), 1),
    ("READ past the end", nothing, |file| read_by(STRANGER, file, 100, 8), 1),
    ("READ past every end", nothing, |file| read_by(STRANGER, file, u64::MAX, 8), 1),
    ("READ of nothing", nothing, |file| read_by(STRANGER, file, 0, 0), 1),
    (
        "READ with more than arguments",
        nothing,
        |file| [&read_by(STRANGER, file, 0, 4)[..], b"more"].concat().into(),
        0,
    ),
    ("READ with less than arguments", nothing, |file| read_by(STRANGER, file, 0, 4).slice(..100), 0),
    ("WRITE to be durable", nothing, |file| write_by(OWNER, file, 0, b"new", Stable::FileSync), 0),
    ("WRITE past every end", nothing, |file| write_by(OWNER, file, u64::MAX, b"new", Stable::Unstable), 0),
    ("WRITE of nothing", nothing, |file| write_by(OWNER, file, 3, b"", Stable::Unstable), 1),
    (
        "WRITE without all of its data",
        nothing,
        |file| {
            let whole = write_by(OWNER, file, 0, b"0123", Stable::Unstable);
            whole.slice(..whole.len() - 4)
        },
        0,
    ),
    (
        "WRITE with another count than data",
        nothing,
        |file| {
            let head = WriteHead { file: *file, offset: 0, count: 5, stable: Stable::Unstable };
            let args = WriteArgs { head, data: Data::Here(Bytes::from_static(b"new")) };
            call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::WRITE, by(OWNER), &args)
        },
        0,
    ),
    (
        "truncated",
        |server, node| set(server, node, SetAttr { size: Some(4), ..SetAttr::default() }),
        READ_IT,
        1,
    ),
    (
        "forbidden to others",
        |server, node| set(server, node, SetAttr { mode: Some(0o600), ..SetAttr::default() }),
        READ_IT,
        0,
    ),
    (
        "forbidden to write",
        |server, node| set(server, node, SetAttr { uid: Some(12), ..SetAttr::default() }),
        WRITE_IT,
        0,
    ),
    (
        "removed",
        |server, _| {
            Box::pin(async move {
                server.vfs(0).remove(NodeId::ROOT, b"file").await.unwrap();
            })
        },
        READ_IT,
        0,
    ),
    (
        "replaced",
        |server, _| {
            Box::pin(async move {
                let vfs = server.vfs(0).clone();
                let set = SetAttr::default();
                vfs.create(NodeId::ROOT, b"new", Make::File, weft_store::Exists::Fail, set).await.unwrap();
                let at = |name| DirName { dir: NodeId::ROOT, name };
                vfs.rename(at(&b"new"[..]), at(&b"file"[..]), true).await.unwrap();
            })
        },
        READ_IT,
        0,
    ),
    (
        "opened by somebody who shares it with nobody",
        |server, node| {
            Box::pin(async move {
                let opens = server.vfs(0).opens().clone();
                let open =
                    opens.try_open(node, &Opening::new(Rights::ALL, Rights::NONE, opens.key())).unwrap();
                std::mem::forget(open);
            })
        },
        READ_IT,
        0,
    ),
    (
        "locked",
        |server, node| {
            Box::pin(async move {
                let opens = server.vfs(0).opens().clone();
                let open =
                    opens.try_open(node, &Opening::new(Rights::ALL, Rights::ALL, opens.key())).unwrap();
                open.lock(Range::new(0, 4).unwrap(), true).await.unwrap();
                std::mem::forget(open);
            })
        },
        READ_IT,
        0,
    ),
    (
        "no longer served",
        |server, _| {
            Box::pin(async move {
                let shares = vec![Share::new("another", Vfs::new(Ram::new(1 << 20)))];
                server.replace_shares(shares).await;
            })
        },
        READ_IT,
        0,
    ),
    (
        "served read-only",
        |server, _| {
            Box::pin(async move {
                let mut share = (*server.share(0)).clone();
                share.rules.nfs.read_only = true;
                server.replace_shares(vec![share]).await;
            })
        },
        WRITE_IT,
        0,
    ),
    (
        "served to another network",
        |server, _| {
            Box::pin(async move {
                let mut share = (*server.share(0)).clone();
                share.rules.nfs.networks = vec!["203.0.113.0/24".parse().unwrap()];
                server.replace_shares(vec![share]).await;
            })
        },
        READ_IT,
        0,
    ),
];

#[test]
fn after_a_change_they_are_answered_as_on_a_new_connection() {
    for (what, change, call, at_once) in CASES {
        rt::block_on(async {
            let (server, file, node) = served().await;
            let warm = || (0..3).flat_map(|_| [READ_IT(&file), WRITE_IT(&file)]);
            let steps = warm()
                .map(Step::Call)
                .chain([Step::Change(change(server.clone(), node)), Step::Call(call(&file))]);
            let (known, count) = replies(&server, steps).await;
            assert_eq!(count, 2 + at_once, "{what}");
            let (mut fresh, count) = replies(&server, [Step::Call(call(&file))]).await;
            assert_eq!(count, 0);
            let (known, fresh) = (known.last().cloned(), fresh.pop());
            // A WRITE changes the times of the file. Its attributes are 84 bytes behind the status and a flag.
            let but_times = |reply: Option<Bytes>| {
                reply.map(|reply| {
                    let is_success = reply.len() > Reply::SUCCESS_BYTES;
                    let (status, rest) = if is_success { results(&reply) } else { (Status(u32::MAX), reply) };
                    (status, rest.len(), rest)
                })
            };
            let (known, fresh) = (but_times(known), but_times(fresh));
            assert_eq!(
                known.as_ref().map(|(status, len, _)| (*status, *len)),
                fresh.as_ref().map(|(status, len, _)| (*status, *len)),
                "{what}"
            );
            if !what.contains("WRITE") && !what.contains("write") {
                assert_eq!(known, fresh, "{what}");
            }
        })
        .unwrap();
    }
}

#[test]
fn another_caller_is_another_call() {
    rt::block_on(async {
        let (server, file, _) = served().await;
        let calls = (0..6).flat_map(|_| {
            [
                write_by(OWNER, &file, 0, b"own", Stable::Unstable),
                write_by(STRANGER, &file, 0, b"bad", Stable::Unstable),
            ]
        });
        let (all, _) = replies(&server, calls.map(Step::Call)).await;
        for pair in all.chunks(2) {
            assert_eq!(results(&pair[0]).0, Status::OK);
            assert_eq!(results(&pair[1]).0, Status::ACCES);
        }
        let (now, _) = replies(&server, [Step::Call(read_by(OWNER, &file, 0, 3))]).await;
        assert!(now[0].ends_with(b"own\0"), "{:?}", now[0]);
    })
    .unwrap();
}

#[test]
fn between_writes_that_arrive_together_attributes_are_asked_for_once() {
    rt::block_on(async {
        let (server, file, node) = served().await;
        let write = |at| write_by(OWNER, &file, at, b"xy", Stable::Unstable);
        let read = || read_by(OWNER, &file, 0, 4);
        let known = (0..2).flat_map(|at| [write(at), read()]).map(Step::Call);
        let touched = set(server.clone(), node, SetAttr { mode: Some(0o640), ..SetAttr::default() });
        let together = Step::Calls(vec![write(14), write(15), write(20), read(), write(30)]);
        let before = LOOKS.get();
        let steps = known.chain([together, Step::Change(touched), Step::Call(write(40))]);
        let (all, at_once) = replies(&server, steps).await;
        assert_eq!((at_once, LOOKS.get() - before), (6, 4 + 1 + 2 + 2));
        let attributes = |reply: &Bytes| {
            let (status, rest) = results(reply);
            assert_eq!(status, Status::OK);
            let mut d = Decoder::new(rest);
            let WriteOk { wcc, .. } = WriteOk::parse(&mut d).unwrap();
            (wcc.before.unwrap(), wcc.after.unwrap())
        };
        let [first, second, third, _, fourth, last] = &all[4..] else { panic!("{} replies", all.len()) };
        let chain = [first, second, third, fourth, last].map(attributes);
        let sizes = chain.iter().map(|(before, after)| (before.size, after.size)).collect::<Vec<_>>();
        assert_eq!(sizes, [(16, 16), (16, 17), (17, 22), (22, 32), (32, 42)]);
        for pair in chain.windows(2) {
            assert!(pair[1].0.ctime >= pair[0].1.ctime && pair[1].0.mtime >= pair[0].1.mtime);
        }
    })
    .unwrap();
}

/// As a database does it.
#[test]
fn files_that_are_read_and_written_in_turn_are_known() {
    rt::block_on(async {
        let (server, _, _) = served().await;
        let vfs = server.vfs(0).clone();
        let mut files = Vec::new();
        for n in 0..12 {
            let set = SetAttr { mode: Some(0o644), uid: Some(OWNER), ..SetAttr::default() };
            let name = format!("file {n}");
            let made =
                vfs.create(NodeId::ROOT, name.as_bytes(), Make::File, weft_store::Exists::Fail, set).await;
            let id = FileId { share: server.share(0).key(), node: made.unwrap().attr.node };
            files.push(server.handles.make(&server.shares.now(), id).await.unwrap());
        }
        let turn = || {
            files.iter().flat_map(|file| {
                [read_by(OWNER, file, 0, 4), write_by(OWNER, file, 0, b"data", Stable::Unstable)]
            })
        };
        let (_, at_once) = replies(&server, (0..4).flat_map(|_| turn()).map(Step::Call)).await;
        assert_eq!(at_once, 2 * 24, "those of the third and the fourth turn");
    })
    .unwrap();
}

#[test]
fn a_connection_knows_so_many_and_no_more() {
    rt::block_on(async {
        let (server, ..) = served().await;
        let familiar = Familiar::default();
        let (list, protection) = (server.shares.now(), Protection::None);
        let shares = Rc::new(PeerShares::new(list, server.policy, tcp(PEER), protection));
        // Where the hole is, each call has something else.
        let message =
            |n: u64, hole: u8| [&[0; 14][..], &[hole; 4], &[0; 26], &n.to_be_bytes(), b"arguments"].concat();
        fn beginning(message: &[u8]) -> Beginning<&[u8]> {
            Beginning { bytes: &message[4..52], hole: 10..14 }
        }
        for n in 1..=100 {
            assert!(!familiar.is_wanted(&beginning(&message(n, 1))), "seen once");
            assert!(familiar.is_wanted(&beginning(&message(n, 2))), "seen again");
            for hole in 3..5 {
                let message = message(n, hole);
                let Beginning { bytes, hole } = beginning(&message);
                familiar.enter(Known {
                    beginning: Beginning { bytes: bytes.into(), hole },
                    procedure: Procedure::Read3,
                    shares: shares.clone(),
                    share: server.share(0).clone(),
                    node: NodeId(n),
                    caller: Caller::of(&crate::server::credential::Credential::None, server.policy),
                    user: User::None,
                });
            }
        }
        let known: Vec<_> = (1..=100).filter_map(|n| familiar.find(&message(n, n as u8))).collect();
        assert_eq!(
            known.iter().map(|known| known.node.0).collect::<Vec<_>>(),
            (69..=100).collect::<Vec<_>>()
        );
        assert_eq!(known[0].beginning.hole_of(&message(100, 7)[4..]), Some(&[7; 4][..]));
        assert!(familiar.find(b"").is_none() && familiar.find(&message(100, 1)[..51]).is_none());
        for at in (4..14).chain(18..52) {
            let mut other = message(100, 1);
            other[at] ^= 1;
            assert!(familiar.find(&other).is_none(), "byte {at}");
        }
        let long = [1; 600];
        let long = Beginning { bytes: &long[..], hole: 0..0 };
        assert!(!familiar.is_wanted(&long) && !familiar.is_wanted(&long), "too long");
        familiar.clear();
        assert!(familiar.find(&message(100, 1)).is_none());
    })
    .unwrap();
}
