//! The provider's stories that the conformance suite, which knows no shared memory, cannot tell: hostile peers, slabs,
//! files from disk, death.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use weft_machine::buf::{MAX_BUF, copies, memfd};
use weft_machine::net::Readable;
use weft_machine::shm::{Doorbell, Ringer, Socket, Words};
use weft_machine::{Buf, File, FileRange, Payload, rt};

use super::layout::{Half, SEGMENT_BYTES, SEGMENT_WORDS, Side, halves};
use super::message::{MAX_MESSAGE, Message};
use super::news::{News, Posted};
use super::queue_pair::{Parts, ShmQueuePair};
use super::slabs::PeerSlabs;
use super::*;
use crate::{
    Access, Completion, Disconnect, Done, PostError, Provider as _, Refusal, Segment, Stag, Work, WorkError,
};

type Qp = Rc<dyn QueuePair>;

struct World {
    provider: Provider,
    pool: Pool,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(256 << 20);
    let config = Config { dir: dir.path().join("weft"), ..Config::default() };
    World { provider: Provider::new(pool.clone(), config), pool, _dir: dir }
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Runs a story on a core of its own.
fn run<T>(story: impl Future<Output = T>) -> T {
    rt::block_on(async { rt::timeout(Duration::from_secs(30), story).await.expect("the story hangs") })
        .unwrap()
}

/// (connecting, accepting), with `recvs` receive buffers of 4 KiB posted on both sides.
async fn pair(world: &World, recvs: usize) -> (Qp, Qp) {
    let listener = world.provider.listen(any_port()).await.unwrap();
    let accept = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let recvs = (0..recvs).map(|id| recv(&world.pool, id as u64)).collect();
        request.accept(ConnectParams::default(), recvs).await.unwrap()
    };
    let connect = world.provider.connect(listener.local_addr(), ConnectParams::default());
    let (b, a) = futures_util::future::join(accept, connect).await;
    let (a, _) = a.unwrap();
    for id in 0..recvs {
        a.post(recv(&world.pool, id as u64)).unwrap();
    }
    (a, b)
}

fn recv(pool: &Pool, id: u64) -> Work {
    Work::Recv { id, buf: pool.try_alloc(4096).unwrap() }
}

fn send(id: u64, data: &'static [u8]) -> Work {
    Work::Send {
        id,
        data: vec![Bytes::from_static(data)],
        invalidate: None,
        solicited: false,
        signalled: true,
    }
}

fn filled(pool: &Pool, len: usize, byte: u8) -> Buf {
    let mut buf = pool.try_alloc(len).unwrap();
    buf.set_len(len);
    buf.fill(byte);
    buf
}

fn write(id: u64, data: impl Into<Payload>, to: Segment) -> Work {
    Work::Write { id, data: data.into(), to, signalled: true }
}

/// What comes next, one at a time.
struct Completions<'a>(&'a Qp, std::collections::VecDeque<Completion>);

impl Completions<'_> {
    async fn next(&mut self) -> Result<Completion, Disconnect> {
        while self.1.is_empty() {
            let mut out = Vec::new();
            poll_fn(|cx| self.0.poll(cx, &mut out)).await?;
            assert!(!out.is_empty());
            self.1.extend(out);
        }
        Ok(self.1.pop_front().unwrap())
    }

    async fn done(&mut self) -> Done {
        self.next().await.unwrap().result.unwrap()
    }

    async fn received(&mut self) -> Bytes {
        loop {
            if let Done::Received { buf, .. } = self.done().await {
                return buf.freeze();
            }
        }
    }

    /// (id, error) of all that flushes, and the end.
    async fn until_the_end(&mut self) -> (Vec<(u64, WorkError)>, Disconnect) {
        let mut failed = Vec::new();
        loop {
            match self.next().await {
                Ok(completion) => failed.extend(completion.result.err().map(|e| (completion.id, e))),
                Err(end) => return (failed, end),
            }
        }
    }
}

fn completions(qp: &Qp) -> Completions<'_> {
    Completions(qp, Default::default())
}

#[test]
fn set_up_carries_private_data_and_limits_both_ways() {
    let world = world();
    run(async {
        let listener = world.provider.listen(any_port()).await.unwrap();
        let params = ConnectParams { private_data: Bytes::from_static(b"hello"), ird: 5, ord: 50 };
        let accept = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            assert_eq!(&request.private_data()[..], b"hello");
            assert_eq!(request.peer(), format!("shm:pid {}", std::process::id()));
            let params = ConnectParams { private_data: Bytes::from_static(b"welcome"), ird: 7, ord: 70 };
            request.accept(params, Vec::new()).await.unwrap()
        };
        let (b, a) =
            futures_util::future::join(accept, world.provider.connect(listener.local_addr(), params)).await;
        let (a, answer) = a.unwrap();
        assert_eq!(&answer[..], b"welcome");
        assert_eq!((a.caps().ird, a.caps().ord), (5, 7));
        assert_eq!((b.caps().ird, b.caps().ord), (7, 5));
        assert_eq!((a.provider(), a.caps().kernel_bypass), ("shm", true));
    });
}

#[test]
fn a_rejection_carries_its_reason() {
    let world = world();
    run(async {
        let listener = world.provider.listen(any_port()).await.unwrap();
        let reject = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            request.reject(Bytes::from_static(b"full")).await.unwrap();
        };
        let connect = world.provider.connect(listener.local_addr(), ConnectParams::default());
        let ((), result) = futures_util::future::join(reject, connect).await;
        assert!(matches!(result, Err(ConnectError::Rejected(why)) if &why[..] == b"full"));
    });
}

#[test]
fn nobody_there_says_what_to_do() {
    let world = world();
    run(async {
        let addr = world.provider.listen(any_port()).await.unwrap().local_addr();
        // That listener is gone again, and its socket with it.
        let result = world.provider.connect(addr, ConnectParams::default()).await;
        assert!(matches!(result, Err(ConnectError::Unavailable(what)) if what.contains("XDG_RUNTIME_DIR")));
    });
}

#[test]
fn one_listener_per_port() {
    let world = world();
    run(async {
        let first = world.provider.listen(any_port()).await.unwrap();
        let second = world.provider.listen(first.local_addr()).await;
        assert_eq!(second.err().unwrap().kind(), io::ErrorKind::AddrInUse);
        let port = first.local_addr();
        drop(first);
        world.provider.listen(port).await.unwrap();
    });
}

#[test]
fn payload_is_never_copied_by_us() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 4).await;
        let before = copies();
        let file = File::in_memory("test").unwrap();
        file.write_at(0, &[Bytes::from(vec![3; 100_000])]).await.unwrap();
        let region = b.register(filled(&world.pool, 100_000, 0), Access::RemoteWrite).unwrap();
        let range = FileRange { file, offset: 1, len: 99_999 };
        a.post(write(1, Payload::File(range), region)).unwrap();
        let chain =
            Payload::Chain(vec![Bytes::from_static(b"head"), Bytes::new(), Bytes::from_static(b"tail")]);
        a.post(write(2, chain, Segment { offset: 10, ..region })).unwrap();
        let source = b.register(filled(&world.pool, 5000, 9), Access::RemoteRead).unwrap();
        let into = world.pool.try_alloc(5000).unwrap();
        a.post(Work::Read { id: 3, into, from: source }).unwrap();
        a.post(send(4, b"done")).unwrap();
        let mut at_a = completions(&a);
        assert!(matches!(at_a.done().await, Done::Written));
        assert!(matches!(at_a.done().await, Done::Written));
        let Done::Read { buf } = at_a.done().await else { panic!() };
        assert!(buf.len() == 5000 && buf.iter().all(|&byte| byte == 9));
        assert_eq!(&completions(&b).received().await[..], b"done");
        let data = b.invalidate(region.stag).unwrap();
        assert_eq!(&data[8..20], b"\x03\x03headtail\x03\x03");
        assert_eq!((data[99_998], data[99_999]), (3, 0));
        assert_eq!(copies(), before);
        assert_eq!(a.traffic().written, (99_999 + 8, 2));
        assert_eq!(b.traffic().placed, (99_999 + 8, 2));
        assert_eq!((a.traffic().read, b.traffic().served), ((5000, 1), (5000, 1)));
        assert_eq!((a.traffic().sent, b.traffic().received), ((4, 1), (4, 1)));
    });
}

#[test]
fn bytes_that_others_read_are_lent_where_they_lie() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 4).await;
        let bytes = filled(&world.pool, 10_000, 7).freeze();
        let before = copies();
        let lent = b.lend(&bytes.slice(100..9_000)).expect("of the pool");
        let again = b.lend(&bytes).expect("twice at a time");
        assert_eq!((lent.len, again.len, lent.stag == again.stag), (8_900, 10_000, false));
        for (id, from) in [(1, lent), (2, again)] {
            a.post(Work::Read { id, into: world.pool.try_alloc(10_000).unwrap(), from }).unwrap();
            let Done::Read { buf } = completions(&a).done().await else { panic!() };
            assert_eq!(buf[..], bytes[..from.len as usize]);
        }
        assert_eq!(copies(), before);
        assert!(b.lend(&Bytes::from(vec![0; 100])).is_none(), "not of the pool");
        // Nothing comes back, and it is over for the peer: a Read of it would end the connection.
        let file = File::in_memory("test").unwrap();
        assert!(a.read_into(lent, &file, 0).is_some());
        assert!(b.invalidate(lent.stag).is_none());
        assert!(a.read_into(lent, &file, 0).is_none());
        assert!(a.read_into(again, &file, 0).is_some(), "the other is none the wiser");
        // It is only lent for reading.
        a.post(write(3, Bytes::from_static(b"no"), Segment { len: 2, ..again })).unwrap();
        let (failed, _) = completions(&a).until_the_end().await;
        assert_eq!(failed[0], (3, WorkError::Remote(Refusal::Access)));
        assert!(bytes.iter().all(|&byte| byte == 7));
        drop((a, b, bytes));
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

#[test]
fn a_read_goes_straight_into_a_file_in_memory() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 4).await;
        const LEN: usize = 3 << 20;
        let source = b.register(filled(&world.pool, LEN, 7), Access::RemoteRead).unwrap();
        let file = File::in_memory("test").unwrap();
        let before = copies();
        a.read_into(source, &file, 1000).expect("it goes so").unwrap();
        a.read_into(Segment { offset: 5, len: 10, ..source }, &file, 0).expect("it goes so").unwrap();
        assert_eq!(file.len().unwrap(), 1000 + LEN as u64);
        let range = FileRange { file: file.clone(), offset: 0, len: 1000 + LEN };
        let found = Payload::File(range).into_chain(&world.pool).await.unwrap().concat();
        assert!(found[..10].iter().all(|&byte| byte == 7) && found[10..1000].iter().all(|&byte| byte == 0));
        assert!(found[1000..].iter().all(|&byte| byte == 7));
        assert_eq!(copies(), before);
        let moved = (LEN as u64 + 10, 2);
        assert_eq!((a.traffic().read, b.traffic().served), (moved, moved));
        // What a Read would end the connection for is left to a Read; and a disk would keep the peer waiting.
        let outside = Segment { offset: 1, ..source };
        assert!(a.read_into(outside, &file, 0).is_none());
        let closed = b.register(filled(&world.pool, 10, 0), Access::RemoteWrite).unwrap();
        assert!(a.read_into(closed, &file, 0).is_none());
        let on_disk = File::from(OwnedFd::from(tempfile::tempfile().unwrap()));
        assert!(a.read_into(source, &on_disk, 0).is_none());
        assert!(b.invalidate(source.stag).unwrap().iter().all(|&byte| byte == 7));
        assert!(a.read_into(source, &file, 0).is_none());
        b.post(send(1, b"alive")).unwrap();
        assert_eq!(&completions(&a).received().await[..], b"alive");
        a.close();
        assert!(a.read_into(closed, &file, 0).is_none());
    });
}

/// On file systems that know RWF_NOWAIT this goes to the disk; the result is the same everywhere.
#[test]
fn a_file_from_disk_holds_later_work_in_order() {
    const LEN: usize = 3 << 20;
    let world = world();
    run(async {
        let (a, b) = pair(&world, 4).await;
        let mut on_disk = tempfile::tempfile().unwrap();
        let pattern: Vec<u8> = (0..LEN as u32).map(|n| (n / 4096 + n) as u8).collect();
        io::Write::write_all(&mut on_disk, &pattern).unwrap();
        on_disk.sync_all().unwrap();
        rustix::fs::fadvise(&on_disk, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let range = FileRange { file: File::from(OwnedFd::from(on_disk)), offset: 0, len: LEN };
        let region = b.register(filled(&world.pool, LEN, 0), Access::RemoteWrite).unwrap();
        a.post(write(1, Payload::File(range), region)).unwrap();
        a.post(write(2, Bytes::from_static(b"over"), region)).unwrap();
        a.post(send(3, b"after")).unwrap();
        let a2 = a.clone();
        let ids = rt::spawn(async move {
            let mut at_a = completions(&a2);
            let mut ids = Vec::new();
            for _ in 0..3 {
                let completion = at_a.next().await.unwrap();
                completion.result.unwrap();
                ids.push(completion.id);
            }
            ids
        });
        assert_eq!(&completions(&b).received().await[..], b"after");
        let data = b.invalidate(region.stag).unwrap();
        assert_eq!(&data[..4], b"over");
        assert!(data[4..] == pattern[4..]);
        assert_eq!(ids.await, [1, 2, 3]);
    });
}

#[test]
fn closing_lets_queued_work_out_first() {
    const LEN: usize = 2 << 20;
    let world = world();
    run(async {
        let (a, b) = pair(&world, 4).await;
        let mut on_disk = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut on_disk, &vec![1; LEN]).unwrap();
        on_disk.sync_all().unwrap();
        rustix::fs::fadvise(&on_disk, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let range = FileRange { file: File::from(OwnedFd::from(on_disk)), offset: 0, len: LEN };
        let region = b.register(filled(&world.pool, LEN, 0), Access::RemoteWrite).unwrap();
        a.post(write(1, Payload::File(range), region)).unwrap();
        a.post(send(2, b"last words")).unwrap();
        a.close();
        assert!(matches!(a.post(send(3, b"too late")), Err((PostError::Closed, _))));
        let mut at_a = completions(&a);
        assert!(matches!(at_a.done().await, Done::Written));
        assert!(matches!(at_a.done().await, Done::Sent));
        let (flushed, end) = at_a.until_the_end().await;
        assert_eq!((flushed.len(), end), (4, Disconnect::Local));
        let mut at_b = completions(&b);
        assert_eq!(&at_b.received().await[..], b"last words");
        assert_eq!(at_b.until_the_end().await.1, Disconnect::Peer);
        assert!(b.invalidate(region.stag).unwrap().iter().all(|&byte| byte == 1));
    });
}

#[test]
fn an_unreadable_file_fails_its_write() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 1).await;
        let region = b.register(filled(&world.pool, 100, 0), Access::RemoteWrite).unwrap();
        let directory = std::fs::File::open("/").unwrap();
        let range = FileRange { file: File::from(OwnedFd::from(directory)), offset: 0, len: 100 };
        a.post(write(1, Payload::File(range), region)).unwrap();
        let (failed, end) = completions(&a).until_the_end().await;
        assert_eq!(failed[0], (1, WorkError::Payload(io::ErrorKind::IsADirectory)));
        assert_eq!(end, Disconnect::Local);
        assert_eq!(completions(&b).until_the_end().await.1, Disconnect::Peer);
    });
}

#[test]
fn each_refusal_ends_both_sides_with_its_reason() {
    type Case = (&'static str, fn(&World, &Qp, Segment) -> Work, Refusal);
    let cases: [Case; 7] = [
        ("too long", |_, _, _| send(1, &[0; 4097]), Refusal::TooLong),
        (
            "revoked",
            |_, b, to| {
                b.invalidate(to.stag).unwrap();
                write(1, Bytes::from_static(b"x"), to)
            },
            Refusal::InvalidStag,
        ),
        (
            "outside",
            |_, _, to| write(1, Bytes::from_static(b"x"), Segment { offset: 4096, ..to }),
            Refusal::Bounds,
        ),
        (
            "outside, by a file",
            |_, _, to| {
                let range = FileRange { file: File::in_memory("t").unwrap(), offset: 0, len: 100 };
                write(1, Payload::File(range), Segment { offset: 4000, ..to })
            },
            Refusal::Bounds,
        ),
        (
            "read of a write region",
            |world, _, from| Work::Read { id: 1, into: world.pool.try_alloc(4096).unwrap(), from },
            Refusal::Access,
        ),
        (
            "write to a read region",
            |world, b, _| {
                let to = b.register(filled(&world.pool, 10, 0), Access::RemoteRead).unwrap();
                write(1, Bytes::from_static(b"x"), to)
            },
            Refusal::Access,
        ),
        (
            "invalidates nothing",
            |_, _, to| Work::Send {
                id: 1,
                data: Vec::new(),
                invalidate: Some(Stag(to.stag.0 ^ 1 << 31)),
                solicited: false,
                signalled: false,
            },
            Refusal::InvalidStag,
        ),
    ];
    for (what, case, refusal) in cases {
        let world = world();
        run(async {
            let (a, b) = pair(&world, 1).await;
            let region = b.register(filled(&world.pool, 4096, 5), Access::RemoteWrite).unwrap();
            a.post(case(&world, &b, region)).unwrap();
            let (failed, end) = completions(&a).until_the_end().await;
            assert_eq!(failed[0], (1, WorkError::Remote(refusal)), "{what}");
            assert_eq!(end, Disconnect::Terminated(refusal), "{what}");
            assert!(matches!(a.post(send(2, b"x")), Err((PostError::Closed, _))));
            let (failed, end) = completions(&b).until_the_end().await;
            assert_eq!(failed, [(0, WorkError::Flushed)], "{what}");
            assert_eq!(end, Disconnect::Refused(refusal), "{what}");
            if let Some(data) = b.invalidate(region.stag) {
                assert!(data.iter().all(|&byte| byte == 5), "{what}: something was placed");
            }
        });
        assert_eq!(world.pool.in_use_bytes(), 0, "{what}: a buffer leaks");
    }
}

#[test]
fn a_message_without_a_buffer_is_refused() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 1).await;
        a.post(send(1, b"first")).unwrap();
        a.post(send(2, b"second")).unwrap();
        let mut at_a = completions(&a);
        assert!(matches!(at_a.done().await, Done::Sent));
        let (failed, end) = at_a.until_the_end().await;
        assert_eq!(failed[0], (2, WorkError::Remote(Refusal::NoBuffer)));
        assert_eq!(end, Disconnect::Terminated(Refusal::NoBuffer));
        let mut at_b = completions(&b);
        assert_eq!(&at_b.received().await[..], b"first", "what came before counts");
        assert_eq!(at_b.until_the_end().await.1, Disconnect::Refused(Refusal::NoBuffer));
    });
}

#[test]
fn a_send_can_revoke_a_region_which_waits_for_its_owner() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 2).await;
        let region = b.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        a.post(write(1, Bytes::from_static(b"data"), region)).unwrap();
        let data = vec![Bytes::from_static(b"take it")];
        let invalidate = Some(region.stag);
        a.post(Work::Send { id: 2, data, invalidate, solicited: true, signalled: false }).unwrap();
        let Done::Received { invalidated, solicited, buf } = completions(&b).done().await else { panic!() };
        assert_eq!((invalidated, solicited, &buf[..]), (Some(region.stag), true, &b"take it"[..]));
        assert_eq!(&b.invalidate(region.stag).unwrap()[..5], b"data\x01");
        assert!(b.invalidate(region.stag).is_none());
    });
}

#[test]
fn queues_have_their_limits() {
    let mut world = world();
    world.provider.config.max_send_work = 2;
    world.provider.config.max_recv_work = 3;
    world.provider.config.max_regions = 1;
    run(async {
        let (a, b) = pair(&world, 3).await;
        assert!(matches!(
            a.post(recv(&world.pool, 9)),
            Err((PostError::QueueFull, Work::Recv { id: 9, .. }))
        ));
        a.post(send(0, b"x")).unwrap();
        a.post(send(1, b"x")).unwrap();
        assert!(matches!(a.post(send(2, b"x")), Err((PostError::QueueFull, Work::Send { id: 2, .. }))));
        assert!(matches!(completions(&a).done().await, Done::Sent));
        a.post(send(2, b"x")).unwrap();
        let region = b.register(filled(&world.pool, 1, 0), Access::RemoteRead).unwrap();
        assert!(matches!(
            b.register(filled(&world.pool, 1, 0), Access::RemoteRead),
            Err(PostError::RegionsFull(1))
        ));
        b.invalidate(region.stag).unwrap();
        b.register(filled(&world.pool, 1, 0), Access::RemoteRead).unwrap();
    });
}

#[test]
fn contradictory_work_is_the_callers_fault() {
    let world = world();
    run(async {
        let (a, _b) = pair(&world, 1).await;
        let to = Segment { stag: Stag(1), offset: 0, len: 3 };
        let misuse = |work| assert!(matches!(a.post(work), Err((PostError::Misuse(_), _))));
        misuse(write(1, Bytes::from_static(b"four"), to));
        misuse(Work::Read {
            id: 1,
            into: world.pool.try_alloc(1).unwrap(),
            from: Segment { len: 4097, ..to },
        });
        misuse(Work::Recv { id: 1, buf: Pool::new(MAX_BUF).try_alloc(1).unwrap() });
        let mut buf = filled(&world.pool, 100, 0);
        let front = buf.split_to(50);
        misuse(Work::Recv { id: 1, buf });
        assert!(a.register(front, Access::RemoteRead).is_ok(), "the last part of a buffer is a buffer");
        // An empty Write touches no memory: its STag is not looked at (RFC 5041 and 5040).
        a.post(write(1, Bytes::new(), to)).unwrap();
        assert!(matches!(completions(&a).done().await, Done::Written));
    });
}

#[test]
fn slabs_that_the_pool_grows_later_are_passed_in_time() {
    let world = world();
    run(async {
        let (a, b) = pair(&world, 1).await;
        // Five of the largest buffers do not fit one slab.
        let regions: Vec<_> = (0..5u8)
            .map(|n| (n, b.register(filled(&world.pool, MAX_BUF, n), Access::RemoteRead).unwrap()))
            .collect();
        assert!(world.pool.slabs().len() > 1);
        let late = filled(&world.pool, 4096, 0);
        b.post(Work::Recv { id: 7, buf: late }).unwrap();
        for (n, region) in regions {
            let into = world.pool.try_alloc(1).unwrap();
            let from = Segment { offset: MAX_BUF as u64 - 10, len: 10, ..region };
            a.post(Work::Read { id: 0, into, from }).unwrap();
            let Done::Read { buf } = completions(&a).done().await else { panic!() };
            assert_eq!(&buf[..], [n; 10]);
        }
        a.post(send(1, b"one")).unwrap();
        a.post(send(2, b"two")).unwrap();
        let mut at_b = completions(&b);
        assert_eq!(&at_b.received().await[..], b"one");
        assert_eq!(&at_b.received().await[..], b"two");
    });
}

#[test]
fn two_cores_talk_and_sleep() {
    const ROUNDS: u32 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let config = Config { dir: dir.path().join("weft"), ..Config::default() };
    let pool = Pool::new(256 << 20);
    let (tell, told) = std::sync::mpsc::channel();
    let (server_pool, server_config) = (pool.clone(), config.clone());
    let server = std::thread::spawn(move || {
        // A server that never spins: each message must wake it.
        let options = rt::Options { spin_max: Duration::ZERO, ..rt::Options::default() };
        rt::block_on_with(&options, async {
            let provider = Provider::new(server_pool.clone(), server_config);
            let listener = provider.listen(any_port()).await.unwrap();
            tell.send(listener.local_addr()).unwrap();
            let request = listener.accept().await.unwrap().request().await.unwrap();
            let qp = request.accept(ConnectParams::default(), vec![recv(&server_pool, 0)]).await.unwrap();
            let mut all = completions(&qp);
            loop {
                match all.next().await {
                    Ok(Completion { result: Ok(Done::Received { buf, .. }), .. }) => {
                        qp.post(recv(&server_pool, 0)).unwrap();
                        let data = vec![buf.freeze()];
                        qp.post(Work::Send {
                            id: 1,
                            data,
                            invalidate: None,
                            solicited: false,
                            signalled: false,
                        })
                        .unwrap();
                    }
                    Ok(Completion { result, .. }) => assert_eq!(result.unwrap_err(), WorkError::Flushed),
                    Err(end) => return end,
                }
            }
        })
        .unwrap()
    });
    let addr = told.recv().unwrap();
    run(async {
        let provider = Provider::new(pool.clone(), config);
        let (qp, _) = provider.connect(addr, ConnectParams::default()).await.unwrap();
        let mut all = completions(&qp);
        for round in 0..ROUNDS {
            qp.post(recv(&pool, 0)).unwrap();
            let data = vec![Bytes::copy_from_slice(&round.to_le_bytes())];
            qp.post(Work::Send { id: 1, data, invalidate: None, solicited: false, signalled: false })
                .unwrap();
            assert_eq!(&all.received().await[..], round.to_le_bytes());
        }
    });
    assert_eq!(server.join().unwrap(), Disconnect::Peer);
    assert_eq!(pool.in_use_bytes(), 0);
}

// ---- peers that do not play by the rules ----

/// A peer made by hand: the other half of the segment, and the other end of the socket.
struct Raw {
    socket: Socket,
    segment: Words,
    /// (the peer's own half, the half of the queue pair under test).
    halves: (Half, Half),
    slab: OwnedFd,
    /// Its own bell, and what rings that of the queue pair.
    bells: (Doorbell, Ringer),
}

const RAW_SLAB: usize = 1 << 20;

fn raw(pool: &Pool) -> (Qp, Raw) {
    let (ours, theirs) = Socket::pair().unwrap();
    let segment = Words::create("test", SEGMENT_WORDS).unwrap();
    let ((our_bell, ring_ours), (their_bell, ring_theirs)) =
        (Doorbell::new().unwrap(), Doorbell::new().unwrap());
    let parts = Parts {
        side: Side::Connecting,
        link: Readable::new(ours).unwrap(),
        segment: segment.clone(),
        our_bell,
        their_bell: ring_theirs,
        pool: pool.clone(),
        slabs: PeerSlabs::default(),
        caps: Config::default().caps(),
        stall_limit: Duration::from_millis(20),
        peer: "raw".into(),
    };
    let qp: Qp = ShmQueuePair::new(parts).unwrap();
    let halves = halves(&segment, Side::Accepting);
    (
        qp,
        Raw {
            socket: theirs,
            segment,
            halves,
            slab: memfd("raw", RAW_SLAB).unwrap(),
            bells: (their_bell, ring_ours),
        },
    )
}

impl Raw {
    fn pass_slab(&self, number: u32) {
        self.socket.send(&Message::Slab { number }.emit(), &[self.slab.as_fd()]).unwrap();
    }

    fn posted(&self) -> weft_machine::shm::Producer<3> {
        weft_machine::shm::Producer::new(self.halves.0.recvs.clone(), self.halves.1.recvs_taken.clone())
    }

    fn news(&self) -> weft_machine::shm::Producer<3> {
        weft_machine::shm::Producer::new(self.halves.1.news.clone(), self.halves.0.news_taken.clone())
    }
}

#[test]
fn a_peer_that_dies_is_noticed_and_everything_flushes() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        qp.post(recv(&world.pool, 7)).unwrap();
        let region = qp.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        // It dies in the middle of an access.
        raw.halves.0.hazard[0].store(u64::from(region.stag.0 & 0xfff) + 1, Ordering::Release);
        drop(raw);
        let (flushed, end) = completions(&qp).until_the_end().await;
        assert_eq!(flushed, [(7, WorkError::Flushed)]);
        assert_eq!(end, Disconnect::Lost(io::ErrorKind::ConnectionReset));
        assert_eq!(qp.invalidate(region.stag).unwrap().len(), 10);
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

#[test]
fn what_a_peer_said_before_it_died_counts() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        qp.post(recv(&world.pool, 7)).unwrap();
        let Half { recvs, .. } = &raw.halves.1;
        let mut ring = weft_machine::shm::Consumer::<3>::new(recvs.clone(), raw.halves.0.recvs_taken.clone());
        let slot = Posted::parse(ring.pop().unwrap()).unwrap().slot;
        let news = News::Message { slot, len: 3, invalidated: None, solicited: false };
        raw.news().push(news.emit()).unwrap();
        drop(raw);
        let mut all = completions(&qp);
        assert_eq!(all.received().await.len(), 3);
        assert_eq!(all.until_the_end().await.1, Disconnect::Lost(io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn a_peer_stopped_inside_our_memory_is_given_up_and_the_memory_kept() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        let region = qp.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        raw.halves.0.hazard[0].store(u64::from(region.stag.0 & 0xfff) + 1, Ordering::Release);
        assert!(qp.invalidate(region.stag).is_none(), "not back yet");
        assert_eq!(completions(&qp).until_the_end().await.1, Disconnect::Lost(io::ErrorKind::TimedOut));
        drop(qp);
        assert!(quarantine::kept() > 0);
        assert!(world.pool.in_use_bytes() > 0);
        drop(raw);
        quarantine::sweep();
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

/// It had passed its own end of the socket, which held itself open in what we had not read: the memory was never free.
#[test]
fn the_memory_of_a_given_up_peer_is_free_when_it_dies_whatever_it_has_passed() {
    let world = world();
    run(async {
        let (qp, raw) = raw(&world.pool);
        let region = qp.register(filled(&world.pool, 10, 1), Access::RemoteWrite).unwrap();
        raw.halves.0.hazard[0].store(u64::from(region.stag.0 & 0xfff) + 1, Ordering::Release);
        raw.socket.send(&Message::Slab { number: 0 }.emit(), &[raw.socket.as_fd()]).unwrap();
        drop(qp);
        assert!(world.pool.in_use_bytes() > 0);
        drop(raw);
        quarantine::sweep();
    });
    assert_eq!(world.pool.in_use_bytes(), 0);
}

#[test]
fn news_that_make_no_sense_end_the_connection() {
    let message = |slot, len| News::Message { slot, len, invalidated: None, solicited: false }.emit();
    for slot in [
        [0, 0, 0],
        [77, 0, 0],
        message(3, 1),
        message(511, 1),
        [1 | 512 << 16, 0, 0],
        [1 | 1 << 9, 1 << 32, 0],
        message(0, 4097),
        message(0, u32::MAX),
        [2, 99, 0],
    ] {
        let world = world();
        run(async {
            let (qp, raw) = raw(&world.pool);
            qp.post(recv(&world.pool, 7)).unwrap();
            raw.news().push(slot).unwrap();
            let end = completions(&qp).until_the_end().await.1;
            assert!(matches!(end, Disconnect::Violation(_)), "{slot:x?}: {end}");
        });
        assert_eq!(world.pool.in_use_bytes(), 0);
    }
}

#[test]
fn receive_buffers_outside_of_the_peers_slabs_end_the_connection() {
    let good = Posted { slot: 0, capacity: 4096, slab: 0, offset: 0 };
    for posted in [
        Posted { slab: 1, ..good },
        Posted { slab: u32::MAX, ..good },
        Posted { offset: RAW_SLAB as u64 - 3, ..good },
        Posted { offset: u64::MAX, ..good },
        Posted { offset: u64::MAX - 3, ..good },
    ] {
        let world = world();
        run(async {
            let (qp, raw) = raw(&world.pool);
            raw.pass_slab(0);
            raw.posted().push(posted.emit()).unwrap();
            qp.post(send(1, b"four")).unwrap();
            let (failed, end) = completions(&qp).until_the_end().await;
            assert_eq!(failed, [(1, WorkError::Flushed)]);
            assert!(matches!(end, Disconnect::Violation(_)), "{posted:?}: {end}");
        });
    }
}

#[test]
fn regions_outside_of_the_peers_slabs_end_the_connection() {
    for (slab, offset) in [(0, RAW_SLAB as u64), (0, u64::MAX), (0, RAW_SLAB as u64 - 1), (9, 0)] {
        for op in 0..3 {
            let world = world();
            run(async {
                let (qp, raw) = raw(&world.pool);
                raw.pass_slab(0);
                let stag = Stag(1 << 12 | 5);
                let rights = if op == 2 { 0b01 } else { 0b11 };
                let entry = &raw.halves.0.regions[5 * 4..];
                entry[1].store(slab << 32 | 0xffff_ffff, Ordering::Relaxed);
                entry[2].store(offset, Ordering::Relaxed);
                entry[0].store(u64::from(stag.0) << 32 | rights, Ordering::Release);
                let segment = Segment { stag, offset: 0, len: 100 };
                let range = FileRange { file: File::in_memory("t").unwrap(), offset: 0, len: 100 };
                let work = match op {
                    0 => write(1, Bytes::from_static(&[1; 100]), segment),
                    1 => write(1, Payload::File(range), segment),
                    _ => Work::Read { id: 1, into: world.pool.try_alloc(100).unwrap(), from: segment },
                };
                qp.post(work).unwrap();
                let (failed, end) = completions(&qp).until_the_end().await;
                assert_eq!(failed, [(1, WorkError::Flushed)]);
                assert!(matches!(end, Disconnect::Violation(_)), "{slab} {offset:#x} {op}: {end}");
            });
        }
    }
}

#[test]
fn slabs_that_are_no_slabs_end_the_connection() {
    let world = world();
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let good = Message::Slab { number: 0 }.emit();
    let accept = Message::Accept { ird: 1, ord: 1, private_data: Bytes::new() }.emit();
    let bad_number = Message::Slab { number: 1024 }.emit();
    let memory = memfd("test", 4096).unwrap();
    let cases: [(&[u8], Option<&OwnedFd>); 6] = [
        (&good, None),
        (&good, Some(&unsealed)),
        (&bad_number, Some(&memory)),
        (&accept, Some(&memory)),
        (b"?", None),
        (&[0; MAX_MESSAGE + 1], None),
    ];
    for (n, (bytes, fd)) in cases.into_iter().enumerate() {
        run(async {
            let (qp, raw) = raw(&world.pool);
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            raw.socket.send(bytes, &fds).unwrap();
            let end = completions(&qp).until_the_end().await.1;
            assert!(matches!(end, Disconnect::Violation(_)), "case {n}: {end}");
        });
    }
}

#[test]
fn set_up_survives_strangers() {
    let mut world = world();
    world.provider.config.setup_limit = Duration::from_millis(50);
    let segment = memfd("test", SEGMENT_BYTES).unwrap();
    let short = memfd("test", SEGMENT_BYTES - 8).unwrap();
    let good = Message::Request { ird: 1, ord: 1, private_data: Bytes::new() }.emit();
    let slab = Message::Slab { number: 0 }.emit();
    type Case<'a> = (&'a [u8], Vec<&'a OwnedFd>);
    let cases: [Case<'_>; 7] = [
        (b"GET / HTTP/1.1\r\n\r\n........", vec![]),
        (&good[..good.len() - 1], vec![&segment, &segment]),
        (&good, vec![]),
        (&good, vec![&segment]),
        (&good, vec![&short, &segment]),
        (&slab, vec![&segment]),
        // A peer that says nothing.
        (b"", vec![]),
    ];
    run(async {
        let listener = world.provider.listen(any_port()).await.unwrap();
        let path = world.provider.config.dir.join(Provider::socket_name(listener.local_addr().port()));
        for (n, (bytes, fds)) in cases.into_iter().enumerate() {
            let stranger = Socket::connect(&path).unwrap();
            if !bytes.is_empty() {
                let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                stranger.send(bytes, &fds).unwrap();
            }
            let result = listener.accept().await.unwrap().request().await;
            match (n, result.err().expect("a stranger was let in")) {
                (6, ConnectError::TimedOut(_)) => {}
                (6, other) => panic!("{other}"),
                (_, ConnectError::Violation(_) | ConnectError::Io(_)) => {}
                (_, other) => panic!("case {n}: {other}"),
            }
        }
        drop(Socket::connect(&path).unwrap());
        assert!(listener.accept().await.unwrap().request().await.is_err());
    });
}

#[test]
fn messages_survive_truncation_and_the_round_trip() {
    let private_data = Bytes::from_static(b"private");
    for message in [
        Message::Request { ird: 1, ord: 2, private_data: private_data.clone() },
        Message::Accept { ird: 65535, ord: 0, private_data: Bytes::new() },
        Message::Reject { private_data },
        Message::Slab { number: 0x0102_0304 },
    ] {
        let bytes = message.emit();
        assert_eq!(Message::parse(&bytes).unwrap(), message);
        for len in 0..24 {
            assert!(Message::parse(&bytes[..len]).is_err());
        }
    }
    assert!(Message::parse(&[Message::Slab { number: 0 }.emit(), vec![0; 509]].concat()).is_err());
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::InvalidStag),
        Just(Refusal::Bounds),
        Just(Refusal::Access),
        Just(Refusal::NotAssociated),
        Just(Refusal::NoBuffer),
        Just(Refusal::TooLong),
        Just(Refusal::TooManyReads),
        Just(Refusal::CannotInvalidate),
        (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(layer, etype, code)| Refusal::Other {
            layer,
            etype,
            code
        }),
    ]
}

proptest! {
    #[test]
    fn slots_round_trip(
        slot in 0u16..512, len: u32, stag in proptest::option::of(any::<u32>()), solicited: bool,
        slab: u32, offset: u64, refusal in any_refusal(),
    ) {
        let message = News::Message { slot, len, invalidated: stag.map(Stag), solicited };
        for news in [message, News::Refused(refusal), News::Closed] {
            prop_assert_eq!(News::parse(news.emit()), Some(news));
        }
        let posted = Posted { slot, capacity: len, slab, offset };
        prop_assert_eq!(Posted::parse(posted.emit()), Some(posted));
    }

    #[test]
    fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..64), slot: [u64; 3]) {
        let _ = Message::parse(&bytes);
        let _ = News::parse(slot);
        let _ = Posted::parse(slot);
    }

    /// A peer that scribbles over the whole control segment, with values that look right more often than chance.
    #[test]
    fn scribbling_never_reaches_outside(
        words in proptest::collection::vec((0..SEGMENT_WORDS, any::<u64>(), 0u8..6), 1..200),
        works in proptest::collection::vec(0u8..6, 1..12),
    ) {
        let world = world();
        run(async {
            let (qp, raw) = raw(&world.pool);
            raw.pass_slab(0);
            for id in 0..4 {
                qp.post(recv(&world.pool, id)).unwrap();
            }
            let own = qp.register(filled(&world.pool, 100, 1), Access::RemoteWrite).unwrap();
            let mut words = words.into_iter();
            for work in works {
                for (at, value, shape) in words.by_ref().take(20) {
                    let word = match shape {
                        0 => &raw.segment[at],
                        1 => &raw.halves.1.news[at % 32],
                        2 => &raw.halves.0.recvs[at % 32],
                        _ => &raw.halves.0.regions[at % 32],
                    };
                    // Hazards are tested elsewhere: they cost a second each.
                    let hazard = std::ptr::eq(word, &raw.halves.0.hazard[0]);
                    let value = match shape {
                        _ if hazard => 0,
                        0 => value,
                        1 | 2 => [1, 2, 3, value & 0xf, value & 0xfff_0fff, 1 | (value & 0xf) << 32][at % 6],
                        _ => [0b11 | 1 << 44 | (at as u64 % 8) << 32, value & 0xff_ffff, 0][at % 3],
                    };
                    word.store(value, Ordering::Release);
                }
                let segment = Segment { stag: Stag(1 << 12 | u32::from(work)), offset: 0, len: 100 };
                let work = match work {
                    0 | 1 => send(1, b"scribble"),
                    2 => write(1, Bytes::from_static(&[1; 100]), segment),
                    3 => Work::Read { id: 1, into: world.pool.try_alloc(100).unwrap(), from: segment },
                    4 => recv(&world.pool, 2),
                    _ => Work::Send {
                        id: 1, data: Vec::new(), invalidate: Some(segment.stag), solicited: false, signalled: false,
                    },
                };
                match qp.post(work) {
                    Ok(()) | Err((PostError::Closed | PostError::QueueFull, _)) => {}
                    Err((e, _)) => panic!("{e}"),
                }
                let mut out = Vec::new();
                let _ = poll_fn(|cx| std::task::Poll::Ready(qp.poll(cx, &mut out))).await;
            }
            let _ = qp.traffic();
            assert_eq!(qp.invalidate(own.stag).map(|buf| buf.len()), Some(100));
        });
        assert_eq!(world.pool.in_use_bytes(), 0);
    }
}
