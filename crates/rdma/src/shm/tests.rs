//! Tests of the provider that the conformance suite, which knows no shared memory, cannot contain: hostile peers,
//! slabs, files from disk, death.

mod hostile;

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use weft_machine::buf::{MAX_BUF, copies, memfd};
use weft_machine::net::Readable;
use weft_machine::shm::{Doorbell, Ringer, Socket, Words};
use weft_machine::{Buf, File, FileRange, Payload, Peer, rt};

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

/// Runs a story on its own core.
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

/// Returns completions one at a time.
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

    /// (id, error) of all flushed work, and the end.
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
            let own = Peer::Local { uid: rustix::process::geteuid().as_raw(), pid: Some(std::process::id()) };
            assert_eq!(request.peer(), own);
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
        // That listener is gone, and its socket with it.
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
        let lent = b.register_shared(&bytes.slice(100..9_000)).expect("of the pool");
        let again = b.register_shared(&bytes).expect("twice at a time");
        assert_eq!((lent.len, again.len, lent.stag == again.stag), (8_900, 10_000, false));
        for (id, from) in [(1, lent), (2, again)] {
            a.post(Work::Read { id, into: world.pool.try_alloc(10_000).unwrap(), from }).unwrap();
            let Done::Read { buf } = completions(&a).done().await else { panic!() };
            assert_eq!(buf[..], bytes[..from.len as usize]);
        }
        assert_eq!(copies(), before);
        assert!(b.register_shared(&Bytes::from(vec![0; 100])).is_none(), "not of the pool");
        // Nothing is returned, and the peer's access has ended: a Read of it would end the connection.
        let file = File::in_memory("test").unwrap();
        assert!(a.read_into(lent, &file, 0).is_some());
        assert!(b.invalidate(lent.stag).is_none());
        assert!(a.read_into(lent, &file, 0).is_none());
        assert!(a.read_into(again, &file, 0).is_some(), "the other is none the wiser");
        // It is lent for reading only.
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
        // An error that would end the connection is left to a Read; and a disk would make the peer wait.
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

/// On file systems that support RWF_NOWAIT this reads from disk; the result is the same everywhere.
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
        // An empty Write touches no memory: its STag is not checked (RFC 5041 and 5040).
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
