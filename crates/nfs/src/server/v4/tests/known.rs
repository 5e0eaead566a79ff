//! READs and WRITEs of open files that a connection knows: they are answered at once, and as on a connection that knows nothing.

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_store::opens::{Opening, Range, Rights};

use super::*;
use crate::server::tests::known::{Step, replies};

/// Bytes from the beginning of a reply to the results of the first operation: the tag is [`call`]'s.
const TO_RESULTS: usize = Reply::SUCCESS_BYTES + 4 + 4 + 8 + 4;

/// A client with a session, and a file that it has opened.
struct Opened {
    server: Arc<Server>,
    session: SessionId,
    file: Handle,
    stateid: Stateid,
    node: NodeId,
    vfs: Vfs,
}

impl Opened {
    fn new() -> Opened {
        let server = server();
        let modern = Modern::new(&server, "a");
        // Twice, so that it can be downgraded.
        modern.open("f", 1, 0);
        let (file, stateid) = modern.open("f", 3, 0);
        assert_eq!(modern.status(file, write_op(stateid, 0, b"0123456789abcdef")), Status::OK);
        let session = modern.session;
        let node =
            rt::block_on(async { server.vfs(0).lookup(NodeId::ROOT, b"f", false).await.unwrap().node });
        let vfs = server.vfs(0).clone();
        Opened { server: server.clone(), session, file, stateid, node: node.unwrap(), vfs }
    }

    fn in_slot(&self, (slot, sequence): (u32, u32), cache: bool, ops: &[Op]) -> Bytes {
        let args = Sequence { session: self.session, sequence, slot, highest_slot: slot, cache };
        call(1, 1, &[&[Op::Sequence(args), Op::Putfh(self.file)], ops].concat())
    }

    /// In slot 1, which nothing else uses.
    fn read(&self, sequence: u32, offset: u64, count: u32) -> Bytes {
        self.in_slot((1, sequence), false, &[read_op(self.stateid, offset, count)])
    }

    /// In slot 2, as Linux does it.
    fn write(&self, sequence: u32, offset: u64, data: &'static [u8]) -> Bytes {
        let look =
            Op::Getattr(Bitmap::of(&[attr::CHANGE, attr::SIZE, attr::TIME_METADATA, attr::TIME_MODIFY]));
        self.in_slot((2, sequence), false, &[write_op(self.stateid, offset, data), look])
    }

    fn replies(&self, calls: impl IntoIterator<Item = Bytes>) -> (Vec<Answer>, usize) {
        let (replies, at_once) = self.raw(calls);
        (replies.into_iter().map(answer).collect(), at_once)
    }

    fn raw(&self, calls: impl IntoIterator<Item = Bytes>) -> (Vec<Bytes>, usize) {
        let steps: Vec<Step> = calls.into_iter().map(Step::Call).collect();
        rt::block_on(async { replies(&self.server, steps).await }).unwrap()
    }

    fn content(&self) -> Vec<u8> {
        let content = async {
            let file = self.vfs.open(self.node, false).await.unwrap();
            let data = file.read(0, 100).data().await.unwrap();
            data.into_chain(&weft_machine::Pool::new(1 << 20)).await.unwrap().concat()
        };
        rt::block_on(content).unwrap()
    }
}

fn answer(reply: Bytes) -> Answer {
    let mut d = Decoder::new(reply);
    assert_eq!(Reply::parse(&mut d).unwrap().1, Reply::Success);
    let head = ReplyHead::parse(&mut d).unwrap();
    Answer { status: head.status, count: head.count, d }
}

#[test]
fn from_the_third_one_on_they_are_answered_at_once() {
    let opened = Opened::new();
    let (answers, at_once) = opened.replies((1..=5).map(|n| opened.read(n, u64::from(n), 4)));
    assert_eq!(at_once, 3, "the first is seen, the second is kept");
    for (n, mut answer) in (1..).zip(answers) {
        assert_eq!((answer.status, answer.count), (Status::OK, 3));
        let ok: SequenceOk = answer.ok(opnum::SEQUENCE);
        let expected = SequenceOk {
            session: opened.session,
            sequence: n,
            slot: 1,
            highest_slot: 7,
            target_highest_slot: 7,
            flags: 0,
        };
        assert_eq!(ok, expected);
        answer.ok::<()>(opnum::PUTFH);
        assert!(!answer.ok::<bool>(opnum::READ));
        assert_eq!(answer.d.opaque(9).unwrap(), b"0123456789abcdef"[n as usize..][..4]);
        answer.end();
    }
    let (answers, at_once) = opened.replies((1..=5).map(|n| opened.write(n, u64::from(n), b"xy")));
    assert_eq!(at_once, 3);
    let mut changes = Vec::new();
    for mut answer in answers {
        assert_eq!((answer.status, answer.count), (Status::OK, 4));
        answer.ok::<SequenceOk>(opnum::SEQUENCE);
        answer.ok::<()>(opnum::PUTFH);
        let ok: WriteOk = answer.ok(opnum::WRITE);
        assert_eq!((ok.count, ok.committed), (2, Stable::Unstable));
        let fattr: Fattr = answer.ok(opnum::GETATTR);
        assert_eq!(
            fattr.mask,
            Bitmap::of(&[attr::CHANGE, attr::SIZE, attr::TIME_METADATA, attr::TIME_MODIFY])
        );
        changes.push(u64::from_be_bytes(*fattr.values.first_chunk().unwrap()));
        answer.end();
    }
    assert!(changes.is_sorted(), "{changes:?}");
    assert_eq!(&opened.content()[..], b"0xxxxxy789abcdef");
}

#[test]
fn without_a_session_they_are_answered_at_once_too() {
    let server = server();
    let mut old = Old::new(&server, "old");
    let (file, stateid) = old.open("f", 3, 0);
    let one = |op: Op| Step::Call(call(0, 1, &[Op::Putfh(file), op]));
    let steps =
        (0..4).map(|n| one(write_op(stateid, n, b"abc"))).chain((0..4).map(|n| one(read_op(stateid, n, 2))));
    let steps: Vec<Step> = steps.collect();
    let (all, at_once) = rt::block_on(async { replies(&server, steps).await }).unwrap();
    assert_eq!(at_once, 4);
    let last = all.into_iter().map(answer).next_back();
    let mut last = last.unwrap();
    assert_eq!((last.status, last.count), (Status::OK, 2));
    last.ok::<()>(opnum::PUTFH);
    last.ok::<bool>(opnum::READ);
    assert_eq!(&last.d.opaque(9).unwrap()[..], b"ab");
}

type Change = fn(&Opened) -> LocalBoxFuture<'static, ()>;

/// What happens, the request that comes then, and how many of the two at the end of the connection may be answered at once: that
/// request and a repetition of it.
type Case = (&'static str, Change, fn(&Opened) -> Bytes, usize);

fn nothing(_: &Opened) -> LocalBoxFuture<'static, ()> {
    Box::pin(async {})
}

/// Carried out on another connection.
fn by_another(opened: &Opened, ops: &[Op]) -> LocalBoxFuture<'static, ()> {
    let (server, message) = (opened.server.clone(), opened.in_slot((3, 1), false, ops));
    Box::pin(async move {
        let (replies, _) = replies(&server, [Step::Call(message)]).await;
        assert_eq!(answer(replies[0].clone()).status, Status::OK);
    })
}

const CASES: &[Case] = &[
    ("READ", nothing, |o| o.read(4, 2, 8), 1),
    ("WRITE", nothing, |o| o.write(4, 2, b"new"), 1),
    ("READ to the end", nothing, |o| o.read(4, 8, 100), 1),
    ("READ past every end", nothing, |o| o.read(4, u64::MAX, 8), 1),
    ("READ of nothing", nothing, |o| o.read(4, 0, 0), 1),
    ("WRITE past every end", nothing, |o| o.write(4, u64::MAX, b"new"), 0),
    (
        "WRITE that is to be durable",
        nothing,
        |o| {
            let data = Bytes::from_static(b"new").into();
            let write = Write { stateid: o.stateid, offset: 0, stable: Stable::FileSync, data };
            o.in_slot((2, 4), false, &[Op::Write(write), Op::Getattr(Bitmap::of(&[attr::SIZE]))])
        },
        0,
    ),
    (
        "WRITE without its data",
        nothing,
        |o| {
            let whole = o.write(4, 0, b"0123");
            whole.slice(..whole.len() - 30)
        },
        0,
    ),
    (
        "WRITE without its GETATTR",
        nothing,
        |o| {
            let whole = o.write(4, 0, b"0123");
            let look =
                Op::Getattr(Bitmap::of(&[attr::CHANGE, attr::SIZE, attr::TIME_METADATA, attr::TIME_MODIFY]));
            let look = call(1, 1, &[look]).len() - call(1, 1, &[]).len();
            whole.slice(..whole.len() - look)
        },
        0,
    ),
    (
        "WRITE and more attributes",
        nothing,
        |o| {
            let look = Op::Getattr(Bitmap::of(&[attr::SIZE, attr::ACL]));
            o.in_slot((2, 4), false, &[write_op(o.stateid, 2, b"new"), look])
        },
        0,
    ),
    (
        "WRITE and something else",
        nothing,
        |o| o.in_slot((2, 4), false, &[write_op(o.stateid, 2, b"new"), Op::Getfh]),
        0,
    ),
    ("a number too far", nothing, |o| o.read(5, 2, 8), 0),
    ("a number too low", nothing, |o| o.read(2, 2, 8), 0),
    ("a slot that is not", nothing, |o| o.in_slot((8, 1), false, &[read_op(o.stateid, 2, 8)]), 0),
    (
        "a first request in another slot",
        nothing,
        |o| o.in_slot((4, 1), false, &[read_op(o.stateid, 2, 8)]),
        1,
    ),
    ("a reply to be cached", nothing, |o| o.in_slot((1, 4), true, &[read_op(o.stateid, 2, 8)]), 0),
    ("no state", nothing, |o| o.in_slot((1, 4), false, &[read_op(Stateid::ANONYMOUS, 2, 8)]), 0),
    ("the current state id", nothing, |o| o.in_slot((1, 4), false, &[read_op(Stateid::CURRENT, 2, 8)]), 0),
    (
        "a newer state id",
        nothing,
        |o| {
            let stateid = Stateid { seqid: 9, ..o.stateid };
            o.in_slot((1, 4), false, &[read_op(stateid, 2, 8)])
        },
        0,
    ),
    (
        "closed",
        |o| by_another(o, &[Op::Close(Close { seqid: 0, stateid: o.stateid })]),
        |o| o.read(4, 2, 8),
        0,
    ),
    (
        "closed, WRITE",
        |o| by_another(o, &[Op::Close(Close { seqid: 0, stateid: o.stateid })]),
        |o| o.write(4, 2, b"new"),
        0,
    ),
    (
        "opened for reading only",
        |o| {
            by_another(
                o,
                &[Op::OpenDowngrade(OpenDowngrade { stateid: o.stateid, seqid: 0, access: 1, deny: 0 })],
            )
        },
        |o| o.write(4, 2, b"new"),
        0,
    ),
    (
        "removed",
        |o| by_another(o, &[Op::Putrootfh, Op::Lookup(text("ram")), Op::Remove(text("f"))]),
        |o| o.read(4, 2, 8),
        1,
    ),
    (
        "locked",
        |o| {
            let opens = o.server.vfs(0).opens().clone();
            let node = o.node;
            Box::pin(async move {
                let open =
                    opens.try_open(node, &Opening::new(Rights::ALL, Rights::ALL, opens.key())).unwrap();
                open.lock(Range::new(0, 4).unwrap(), true).await.unwrap();
                std::mem::forget(open);
            })
        },
        |o| o.read(4, 2, 8),
        0,
    ),
    (
        "a session that has ended",
        |o| {
            let session = o.session;
            let server = o.server.clone();
            Box::pin(async move {
                let from = origin(PEER);
                server.states.session(&session, &from).unwrap().end();
            })
        },
        |o| o.read(4, 2, 8),
        0,
    ),
    (
        "no longer served",
        |o| {
            let server = o.server.clone();
            Box::pin(async move {
                server.replace_shares(vec![Share::new("another", Vfs::new(Ram::new(1 << 20)))]).await;
            })
        },
        |o| o.read(4, 2, 8),
        0,
    ),
    (
        "served read-only",
        |o| {
            let server = o.server.clone();
            Box::pin(async move {
                let mut share = (*server.share(0)).clone();
                share.rules.nfs.read_only = true;
                server.replace_shares(vec![share]).await;
            })
        },
        |o| o.write(4, 2, b"new"),
        0,
    ),
    (
        "by another user",
        nothing,
        |o| {
            let args = Sequence { session: o.session, sequence: 4, slot: 1, highest_slot: 1, cache: false };
            call(1, 7, &[Op::Sequence(args), Op::Putfh(o.file), read_op(o.stateid, 2, 8)])
        },
        0,
    ),
];

/// The replies to a request that follows a change, and to its repetition, on a connection that knows the file or on one that does
/// not: without the session, the times and the write verifier, which differ. How many were given at once.
fn after((_, change, request, _): &Case, is_known: bool) -> (Vec<Vec<u8>>, usize, Vec<u8>) {
    let opened = Opened::new();
    let warm = (1..=3).flat_map(|n| [opened.read(n, 0, 4), opened.write(n, 0, b"0123")]).map(Step::Call);
    let request = request(&opened);
    // As a client repeats it, and once more as another request of the same number.
    let again = [&request[..4], &request[4..]].concat();
    let mut other = request.to_vec();
    let last = other.len() - 1;
    other[last] ^= 1;
    let requests = [request, again.into(), other.into()].map(Step::Call);
    let changed = Step::Change(change(&opened));
    let (replies, at_once) = rt::block_on(async {
        if is_known {
            replies(&opened.server, warm.chain([changed]).chain(requests)).await
        } else {
            replies(&opened.server, warm.chain([changed])).await;
            replies(&opened.server, requests).await
        }
    })
    .unwrap();
    let masked = replies[replies.len() - 3..].iter().map(|reply| {
        let mut reply = reply.to_vec();
        // The transaction id and the session.
        reply[..4].fill(0);
        if let Some(session) = reply.get_mut(TO_RESULTS + 8..TO_RESULTS + 24) {
            session.fill(0);
        }
        // The verifier of a WRITE, and the attributes behind it.
        let write = TO_RESULTS + 44 + 8;
        if reply.get(write..write + 8) == Some(&[0, 0, 0, 38, 0, 0, 0, 0]) {
            reply[write + 16..].fill(0);
        }
        reply
    });
    let masked = masked.collect();
    (masked, at_once, opened.content())
}

#[test]
fn after_a_change_they_are_answered_as_on_a_new_connection() {
    for case in CASES {
        let (what, .., expected) = case;
        let (known, at_once, content) = after(case, true);
        // Each of the two kinds is seen once and kept once.
        assert_eq!(at_once, 2 + expected, "{what}");
        let (fresh, at_once, same) = after(case, false);
        assert_eq!(at_once, 0, "{what}");
        assert_eq!(known, fresh, "{what}");
        assert_eq!(content, same, "{what}");
    }
}

#[test]
fn a_repetition_is_told_that_its_reply_was_not_cached() {
    let opened = Opened::new();
    let calls: Vec<Bytes> = (1..=4).map(|n| opened.write(n, 0, b"abcd")).collect();
    let last = calls.last().cloned().unwrap();
    let (_, at_once) = opened.replies(calls);
    assert_eq!(at_once, 2);
    let (mut answers, _) = opened.replies([last, opened.write(4, 0, b"more"), opened.write(5, 0, b"next")]);
    assert_eq!(answers[0].status, Status::RETRY_UNCACHED_REP);
    answers[0].ok::<SequenceOk>(opnum::SEQUENCE);
    assert_eq!(answers[0].next(opnum::PUTFH), Status::RETRY_UNCACHED_REP);
    assert_eq!((answers[1].status, answers[1].count), (Status::SEQ_FALSE_RETRY, 1));
    assert_eq!(answers[2].status, Status::OK);
    assert_eq!(&opened.content()[..6], b"next45");
}

#[test]
fn a_slot_that_was_taken_for_nothing_is_as_before() {
    let opened = Opened::new();
    let session = opened.server.states.session(&opened.session, &origin(PEER)).unwrap();
    let is_go = |begun| matches!(begun, Ok(super::super::state::Begun::Go));
    let taken = session.begin_at_once(6, 1, 77).unwrap();
    assert!(session.begin_at_once(6, 1, 77).is_none() && session.begin_at_once(6, 2, 77).is_none());
    assert!(matches!(session.begin(6, 1, 77), Err(Status::DELAY)), "its reply is on its way");
    drop(taken);
    assert!(session.begin_at_once(6, 2, 77).is_none(), "not the next one");
    session.begin_at_once(6, 1, 77).unwrap().answered();
    assert!(session.begin_at_once(6, 1, 77).is_none(), "a repetition");
    assert!(is_go(session.begin(6, 2, 78)));
    session.finish(6, super::super::state::session::Kept::Reply(Bytes::from_static(b"kept")));
    drop(session.begin_at_once(6, 3, 79));
    let kept = session.begin(6, 2, 78);
    assert!(
        matches!(&kept, Ok(super::super::state::Begun::Again(super::super::state::session::Kept::Reply(kept))) if kept == "kept"),
        "the last reply is still there"
    );
}
