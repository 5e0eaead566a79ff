//! Two channels, or a channel and a bare stream, in simulated worlds; and tests that need real sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::prelude::*;
use weft_machine::file::busy;
use weft_machine::file::system::FileSystem;
use weft_machine::net::Socket;
use weft_machine::sim::{self, Cut, CutHow, Faults, Side, Sim};
use weft_machine::{File, FileRange, Listener, Payload, Pool, Stream, buf, rt};
use weft_rdma::{Access, Segment, Stag};

use super::*;
use crate::channel::{Channel, Error, Outgoing, Part, To};

const HEAD_BYTES: u64 = 4096;

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Two connected streams; the first one initiated the connection.
async fn streams() -> (Stream, Stream) {
    let listener = Listener::bind(any_port()).unwrap();
    let (dialled, accepted) = futures_util::join!(Stream::connect(listener.local_addr()), listener.accept());
    (dialled.unwrap(), Stream::from_socket(accepted.unwrap()).unwrap())
}

async fn channels() -> (Rc<dyn Channel>, Rc<dyn Channel>) {
    let (a, b) = streams().await;
    (
        Nbss::channel(a, Pool::new(64 << 20), Config::default()),
        Nbss::channel(b, Pool::new(64 << 20), Config::default()),
    )
}

/// A channel, and the bare stream at its other end.
async fn half() -> (Rc<dyn Channel>, Stream) {
    let (peer, ours) = streams().await;
    (Nbss::channel(ours, Pool::new(64 << 20), Config::default()), peer)
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut bytes = Header::Message { len: body.len() }.emit().unwrap().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ salt) as u8).collect()
}

async fn next(channel: &Rc<dyn Channel>) -> Bytes {
    channel.recv().await.unwrap().unwrap().body
}

async fn read_exactly(stream: &Stream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let n = stream.recv(&mut [std::io::IoSliceMut::new(&mut bytes[filled..])]).await.unwrap();
        assert!(n > 0, "the stream ends after {filled} of {len} bytes");
        filled += n;
    }
    bytes
}

async fn file_of(content: &[u8]) -> File {
    let file = File::in_memory("nbss-test").unwrap();
    file.write_at(0, &[Bytes::copy_from_slice(content)]).await.unwrap();
    file
}

fn reply(head: &[u8], payload: impl Into<Payload>) -> Outgoing {
    let parts = vec![
        Part::Bytes(Bytes::copy_from_slice(head)),
        Part::Payload { data: payload.into(), to: To::Inline },
    ];
    Outgoing { parts, ..Outgoing::default() }
}

#[test]
fn a_batch_of_requests_is_received_without_a_copy() {
    Sim::new(1).run(async {
        let (channel, peer) = half().await;
        let bodies: Vec<Vec<u8>> = (0..30).map(|i| pattern(100 + i, i)).collect();
        let wire: Vec<u8> = bodies.iter().flat_map(|body| frame(body)).collect();
        peer.send_all(&[wire.into()]).await.unwrap();
        let before = buf::copies();
        assert_eq!(next(&channel).await, bodies[0]);
        for body in &bodies[1..] {
            assert_eq!(channel.try_recv().expect("came with the first").body, body);
        }
        assert!(channel.try_recv().is_none());
        assert_eq!(buf::copies(), before);
        assert_eq!(channel.traffic().received.1, 30);
    });
}

#[test]
fn large_messages_are_copied_by_their_heads_only() {
    Sim::new(2).run(async {
        let (a, b) = channels().await;
        let body = Bytes::from(pattern(1 << 20, 3));
        let sending = rt::spawn({
            let body = body.clone();
            async move {
                for _ in 0..20 {
                    a.send(Outgoing::bytes(body.clone())).await.unwrap();
                }
                a
            }
        });
        let before = buf::copies().1;
        for _ in 0..20 {
            assert!(next(&b).await == body);
        }
        let copied = buf::copies().1 - before;
        assert!(copied <= 20 * HEAD_BYTES, "{copied} bytes copied");
        sending.await;
    });
}

#[test]
fn messages_of_8_kib_are_rarely_copied() {
    Sim::new(3).run(async {
        let (a, b) = channels().await;
        let body = Bytes::from(pattern(8192 + 84, 3));
        let before = buf::copies().1;
        for _ in 0..100 {
            a.cork(true);
            let sends: Vec<_> = (0..16).map(|_| a.send(Outgoing::bytes(body.clone()))).collect();
            a.cork(false);
            for _ in 0..16 {
                assert_eq!(next(&b).await, body);
            }
            join_all(sends).await.into_iter().for_each(|sent| sent.unwrap());
        }
        let copied = buf::copies().1 - before;
        assert!(copied * 5 < 1600 * body.len() as u64, "{copied} bytes copied");
    });
}

#[test]
fn keepalives_are_skipped() {
    Sim::new(4).run(async {
        let (channel, peer) = half().await;
        let keepalive = Header::KeepAlive.emit().unwrap();
        let wire =
            [&keepalive[..], &frame(b"one"), &keepalive, &keepalive, &frame(b"two"), &keepalive].concat();
        peer.send_all(&[wire.into()]).await.unwrap();
        peer.shutdown_write();
        assert_eq!(next(&channel).await, "one");
        assert_eq!(next(&channel).await, "two");
        assert!(channel.recv().await.unwrap().is_none());
    });
}

#[test]
fn another_type_of_message_ends_the_channel_behind_what_came_before() {
    Sim::new(5).run(async {
        for kind in [0x81, 0x82, 0x83, 0x84, 0xff, 0x47] {
            let (channel, peer) = half().await;
            let wire = [&frame(b"good")[..], &[kind, 0, 0, 4], b"evil"].concat();
            peer.send_all(&[wire.into()]).await.unwrap();
            assert_eq!(next(&channel).await, "good");
            for _ in 0..2 {
                assert!(matches!(channel.recv().await, Err(Error::Malformed(_))));
            }
        }
    });
}

#[test]
fn a_message_longer_than_the_limit_is_refused_before_memory_is_taken() {
    Sim::new(6).run(async {
        for len in [1001, 1 << 20, nbss::MAX_MESSAGE] {
            let (peer, ours) = streams().await;
            let pool = Pool::new(64 << 20);
            let channel =
                Nbss::channel(ours, pool.clone(), Config { max_message: 1000, ..Config::default() });
            assert_eq!(channel.limits().max_message, 1000);
            let wire = [frame(&[7; 1000]), Header::Message { len }.emit().unwrap().to_vec()].concat();
            peer.send_all(&[wire.into()]).await.unwrap();
            assert_eq!(next(&channel).await.len(), 1000);
            assert!(matches!(channel.recv().await, Err(Error::Violation(_))));
            assert!(pool.in_use_bytes() <= 64 << 10);
        }
    });
}

#[test]
fn a_stream_cut_anywhere_gives_whole_messages_and_then_an_error() {
    Sim::new(7).run(async {
        let bodies = [pattern(3, 1), pattern(0, 2), pattern(50, 3), pattern(20_000, 4)];
        let wire: Vec<u8> = bodies.iter().flat_map(|body| frame(body)).collect();
        let ends: Vec<usize> = bodies
            .iter()
            .scan(0, |at, body| {
                *at += 4 + body.len();
                Some(*at)
            })
            .collect();
        let cuts = (0..80).chain([wire.len() - 10_000, wire.len() - 1, wire.len()]);
        for cut in cuts {
            let (channel, peer) = half().await;
            peer.send_all(&[Bytes::copy_from_slice(&wire[..cut])]).await.unwrap();
            peer.shutdown_write();
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            for body in &bodies[..whole] {
                assert!(next(&channel).await == body);
            }
            let end = channel.recv().await;
            if cut == 0 || ends.contains(&cut) {
                assert!(end.unwrap().is_none(), "an orderly end at {cut}");
            } else {
                let Err(Error::Io(e)) = end else { panic!("cut at {cut}: {end:?}") };
                assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof);
            }
        }
    });
}

#[test]
fn messages_go_out_in_the_order_of_the_calls() {
    Sim::new(8).run(async {
        let (a, b) = channels().await;
        let sends: Vec<_> = (0..50).map(|i| a.send(Outgoing::bytes(pattern(9000, i)))).collect();
        // Dropped futures cancel nothing; the others are polled in reverse order.
        let sends: Vec<_> =
            sends.into_iter().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, s)| s).rev().collect();
        let (sent, ()) = futures_util::join!(join_all(sends), async {
            for i in 0..50 {
                assert!(next(&b).await == pattern(9000, i));
            }
        });
        assert!(sent.into_iter().all(|sent| sent.is_ok()));
        assert_eq!(a.backlog(), 0);
        assert_eq!(a.traffic().sent, (50 * 9000, 50));
    });
}

#[test]
fn file_ranges_of_every_size_arrive_between_other_parts() {
    Sim::new(9).run(async {
        let (a, b) = channels().await;
        let content = pattern(3 << 20, 5);
        let file = file_of(&content).await;
        let lens = [1, 512, 8192, 40_000, 48 << 10, 65_536, 200_000, 1 << 20, 0];
        let receiving = async {
            for len in lens {
                let got = next(&b).await;
                assert_eq!(got[..4], *b"head");
                assert!(got[4..4 + len] == content[100..100 + len], "{len} bytes");
                assert_eq!(got[4 + len..], *b"tail");
            }
        };
        let sends = lens.map(|len| {
            let mut outgoing =
                reply(b"head", Payload::File(FileRange { file: file.clone(), offset: 100, len }));
            outgoing.parts.push(Part::Bytes("tail".into()));
            a.send(outgoing)
        });
        let (sent, ()) = futures_util::join!(join_all(sends), receiving);
        assert!(sent.into_iter().all(|sent| sent.is_ok()));
    });
}

#[test]
fn payload_is_not_copied_on_send() {
    Sim::new(10).run(async {
        let (a, peer) = half().await;
        let file = file_of(&pattern(1 << 20, 5)).await;
        let before = buf::copies();
        for len in [8192, 1 << 20] {
            let inline = a.send(reply(b"head", Bytes::from(vec![1; len])));
            let range =
                a.send(reply(b"head", Payload::File(FileRange { file: file.clone(), offset: 0, len })));
            let (read, inline, range) =
                futures_util::join!(read_exactly(&peer, 2 * (8 + len)), inline, range);
            inline.unwrap();
            range.unwrap();
            assert_eq!(read.len(), 2 * (8 + len));
        }
        assert_eq!(buf::copies(), before);
    });
}

#[test]
fn a_file_that_shrank_is_sent_with_zeros() {
    Sim::new(11).run(async {
        let (a, b) = channels().await;
        for len in [8192, 200_000] {
            let file = file_of(&pattern(1000, 1)).await;
            let sent = a.send(reply(b"head", Payload::File(FileRange { file, offset: 0, len })));
            let (sent, got) = futures_util::join!(sent, next(&b));
            sent.unwrap();
            assert_eq!(got.len(), 4 + len);
            assert_eq!(got[4..1004], pattern(1000, 1));
            assert!(got[1004..].iter().all(|&byte| byte == 0));
        }
    });
}

/// A file on disk that is completely in the page cache, after as many short reads as it takes to be mapped.
async fn mapped_file(content: &[u8]) -> File {
    let file = File::from(OwnedFd::from(tempfile::tempfile().unwrap()));
    file.write_at(0, &[Bytes::copy_from_slice(content)]).await.unwrap();
    let asked = (0..1000).find(|_| file.is_mapped());
    assert!(asked.is_some_and(|asked| asked > 0), "mapped after some reads, and not at once");
    file
}

#[test]
fn short_ranges_of_a_mapped_file_leave_without_a_read() {
    rt::block_on(async {
        let (a, b) = channels().await;
        let content = pattern(1 << 20, 3);
        let file = mapped_file(&content).await;
        let ranges = [(0, 8192), (4095, 2), (100_000, 16_000), ((1 << 20) - 5, 5)];
        a.cork(true);
        let sends = ranges.map(|(offset, len)| {
            let range = FileRange { file: file.clone(), offset: offset as u64, len };
            assert!(range.mapped().is_some(), "{len} bytes at {offset}");
            a.send(reply(b"head", Payload::File(range)))
        });
        a.cork(false);
        for (offset, len) in ranges {
            let got = next(&b).await;
            assert!(got[4..] == content[offset..offset + len], "{len} bytes at {offset}");
        }
        assert!(join_all(sends).await.into_iter().all(|sent| sent.is_ok()));
        // Data appended after the mapping was made is read.
        file.write_at(1 << 20, &[Bytes::from_static(b"more")]).await.unwrap();
        let range = FileRange { file, offset: 1 << 20, len: 4 };
        assert!(range.mapped().is_none());
        a.send(reply(b"head", Payload::File(range))).await.unwrap();
        assert_eq!(next(&b).await, "headmore");
    })
    .unwrap();
}

#[test]
fn a_mapped_file_that_shrinks_under_a_batch_is_sent_with_zeros() {
    rt::block_on(async {
        let (a, b) = channels().await;
        let content = pattern(64 << 10, 3);
        let file = mapped_file(&content).await;
        let range = |offset| Payload::File(FileRange { file: file.clone(), offset, len: 8192 });
        a.cork(true);
        let sends: Vec<_> = (0..6).map(|i| a.send(reply(&[i; 4], range(u64::from(i) * 8192)))).collect();
        // In the middle of the third.
        file.set_len(20_000).unwrap();
        a.cork(false);
        for (i, sent) in sends.into_iter().enumerate() {
            let got = next(&b).await;
            sent.await.unwrap();
            let (start, end) = (i * 8192, ((i + 1) * 8192).min(20_000).max(i * 8192));
            assert_eq!(got.len(), 4 + 8192, "message {i}");
            assert_eq!(got[..4], [i as u8; 4]);
            assert!(got[4..4 + end - start] == content[start..end], "message {i}");
            assert!(got[4 + end - start..].iter().all(|&byte| byte == 0), "message {i}");
        }
        assert_eq!(a.backlog(), 0);
    })
    .unwrap();
}

/// Two system calls and a short segment each time that the peer has made room would gain nothing: what fills the segment follows.
#[test]
fn a_full_socket_keeps_its_last_segment_for_the_rest() {
    use rustix::net::sockopt::tcp_cork;
    rt::block_on(async {
        let (a, b) = streams().await;
        a.set_buffers(64 << 10, 64 << 10).unwrap();
        b.set_buffers(64 << 10, 64 << 10).unwrap();
        let socket = a.fd().unwrap().try_clone_to_owned().unwrap();
        let a = Nbss::channel(a, Pool::new(64 << 20), Config::default());
        let b = Nbss::channel(b, Pool::new(64 << 20), Config::default());
        let content = pattern(1 << 20, 3);
        let file = File::in_memory("full").unwrap();
        file.write_at(0, &[Bytes::from(content.clone())]).await.unwrap();
        a.cork(true);
        let sendings: Vec<_> = (0..4)
            .map(|_| {
                let range = FileRange { file: file.clone(), offset: 0, len: content.len() };
                a.send(reply(b"head", Payload::File(range)))
            })
            .collect();
        a.cork(false);
        assert_eq!(a.backlog(), 4, "the peer takes nothing");
        assert!(tcp_cork(&socket).unwrap());
        for _ in 0..4 {
            assert!(next(&b).await[4..] == content[..]);
        }
        for sending in sendings {
            sending.await.unwrap();
        }
        assert!(!tcp_cork(&socket).unwrap(), "nothing follows");
    })
    .unwrap();
}

/// The pages may be gone, and fault in only when the worker has ended.
#[test]
fn what_a_batch_has_of_a_mapped_file_that_a_worker_locks_meanwhile_is_read() {
    rt::block_on(async {
        let ((a, b), pool) = (streams().await, Pool::new(64 << 20));
        let a = Nbss::channel(a, pool.clone(), Config::default());
        let b = Nbss::channel(b, Pool::new(64 << 20), Config::default());
        let content = pattern(64 << 10, 3);
        let file = mapped_file(&content).await;
        let range = FileRange { file: file.clone(), offset: 0, len: 8192 };
        assert!(range.mapped().is_some());
        a.cork(true);
        let mut sending = a.send(reply(b"head", Payload::File(range)));
        let claim = busy::alone(file.inode().unwrap()).await;
        // Data that is read goes into memory of the pool.
        let taken = [1 << 20, 4096].map(|len| Vec::from_iter(std::iter::from_fn(|| pool.try_alloc(len))));
        a.cork(false);
        for _ in 0..100 {
            rt::yield_now().await;
        }
        assert!(futures_util::poll!(&mut sending).is_pending());
        drop((taken, claim));
        sending.await.unwrap();
        assert!(next(&b).await[4..] == content[..8192]);
    })
    .unwrap();
}

/// Nothing follows. The kernel takes a batch in portions of up to 32 KiB, so with some of these lengths in front, part
/// of the message has been sent when the remainder is found missing.
#[test]
fn a_mapped_file_that_shrinks_under_its_last_message_is_sent_with_zeros() {
    rt::block_on(async {
        let (a, b) = channels().await;
        let content = pattern(16 << 10, 3);
        for (before, left) in (0..16).flat_map(|before| [0, 4095, 12_288].map(|left| (before * 2048, left))) {
            let file = mapped_file(&content).await;
            let range = FileRange { file: file.clone(), offset: 0, len: content.len() };
            assert!(range.mapped().is_some());
            a.cork(true);
            let first = a.send(reply(b"", Payload::from(Bytes::from(pattern(before + 1, 5)))));
            let last = a.send(reply(b"head", Payload::File(range)));
            file.set_len(left as u64).unwrap();
            a.cork(false);
            assert_eq!(next(&b).await.len(), before + 1);
            let got = next(&b).await;
            first.await.unwrap();
            last.await.unwrap();
            let payload = &got[4..];
            assert_eq!(payload.len(), content.len(), "{left} bytes left behind {before}");
            assert!(payload[..left] == content[..left], "{left} bytes left behind {before}");
            assert!(payload[left..].iter().all(|&byte| byte == 0), "{left} bytes left behind {before}");
        }
    })
    .unwrap();
}

#[test]
fn an_unreadable_file_fails_its_own_message_alone() {
    // Real descriptors that refuse reads.
    rt::block_on(async {
        let (a, b) = channels().await;
        let unreadable = || {
            let sink = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
            let file = File::from(OwnedFd::from(sink));
            Payload::File(FileRange { file, offset: 0, len: 100 })
        };
        let good = Payload::File(FileRange { file: file_of(&[9; 100]).await, offset: 0, len: 100 });
        a.cork(true);
        let first = a.send(reply(b"first", good.clone()));
        let bad = a.send(reply(b"bad", unreadable()));
        let last = a.send(reply(b"last", good));
        a.cork(false);
        let lone = a.send(reply(b"bad", unreadable()));
        assert!(matches!(bad.await, Err(Error::Io(_))));
        assert!(matches!(lone.await, Err(Error::Io(_))));
        first.await.unwrap();
        last.await.unwrap();
        assert_eq!(next(&b).await[..5], *b"first");
        assert_eq!(next(&b).await[..4], *b"last");
        assert_eq!(a.backlog(), 0);
        assert_eq!(a.traffic().sent, (105 + 104, 2));
    })
    .unwrap();
}

/// A file that fails like a disk with a bad block: the memory of this process, more than a megabyte of which is readable
/// before the returned offset; reading what follows is an I/O error.
fn failing_file() -> (File, u64) {
    const READABLE: u64 = 2 << 20;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let part = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        (at(start), at(end), line.contains(" r") && !line.contains('['))
    };
    let parts: Vec<_> = maps.lines().map(part).collect();
    let mut begins = 0;
    for (i, (start, end, readable)) in parts.iter().enumerate() {
        let goes_on = i > 0 && parts[i - 1].1 == *start && parts[i - 1].2;
        if !goes_on {
            begins = *start;
        }
        let next = parts.get(i + 1).map_or(u64::MAX, |next| next.0);
        if *readable && end - begins >= READABLE && next > *end {
            let memory = std::fs::File::open("/proc/self/mem").unwrap();
            return (File::from(OwnedFd::from(memory)), *end);
        }
    }
    panic!("no gap behind a long part:\n{maps}");
}

#[test]
fn a_long_file_that_cannot_be_read_fails_its_own_message_alone() {
    rt::block_on(async {
        let (a, b) = channels().await;
        let (failing, bad_at) = failing_file();
        let content = pattern(3 << 20, 9);
        let file = file_of(&content).await;
        let good = |len| Payload::File(FileRange { file: file.clone(), offset: 0, len });
        let refusing = |system: Option<bool>| {
            let sink = OwnedFd::from(std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap());
            match system {
                None => File::from(sink),
                Some(blocks) => File::on(sink, FileSystem::fixed(blocks)),
            }
        };
        let bad = [
            FileRange { file: failing.clone(), offset: bad_at, len: 100_000 },
            FileRange { file: failing.clone(), offset: bad_at - 50_000, len: 2 << 20 },
            FileRange { file: refusing(None), offset: 0, len: 3 << 20 },
            FileRange { file: refusing(Some(true)), offset: 0, len: 100_000 },
        ];
        let receiving = async {
            for len in [200_000, 3 << 20, 50_000, 7, 100_000] {
                let got = next(&b).await;
                assert_eq!(got[..4], *b"good");
                assert!(got[4..] == content[..len], "{len} bytes");
            }
        };
        let sending = async {
            a.cork(true);
            let first = a.send(reply(b"good", good(200_000)));
            let bads = bad.map(|range| a.send(reply(b"bad", Payload::File(range))));
            let second = a.send(reply(b"good", good(3 << 20)));
            // A good range before the bad one, of the same message.
            let both = [100, 100_000].map(|len| {
                let mut both = reply(b"bad", good(len));
                let range = FileRange { file: failing.clone(), offset: bad_at, len: 30_000 };
                both.parts.push(Part::Payload { data: Payload::File(range), to: To::Inline });
                a.send(both)
            });
            let third = a.send(reply(b"good", good(50_000)));
            a.cork(false);
            for bad in join_all(bads.into_iter().chain(both)).await {
                assert!(matches!(bad, Err(Error::Io(_))), "{bad:?}");
            }
            for good in join_all([first, second, third]).await {
                good.unwrap();
            }
            // Nothing but the bad one is queued.
            let lone = a.send(reply(
                b"bad",
                Payload::File(FileRange { file: failing, offset: bad_at, len: 1 << 20 }),
            ));
            assert!(matches!(lone.await, Err(Error::Io(_))));
            a.send(reply(b"good", good(7))).await.unwrap();
            a.send(reply(b"good", good(100_000))).await.unwrap();
        };
        let ((), ()) = futures_util::join!(sending, receiving);
        assert_eq!(a.backlog(), 0);
        let lens = [200_000, 3 << 20, 50_000, 7, 100_000].map(|len| len + 4);
        assert_eq!(a.traffic().sent, (lens.iter().sum(), 5));
    })
    .unwrap();
}

#[test]
fn a_file_that_proves_unreadable_inside_its_message_ends_the_connection_and_is_told() {
    let ((), log) = sim::logged(3, async {
        let (a, b) = channels().await;
        let (file, bad_at) = failing_file();
        let offset = bad_at - (1 << 20) - 4096;
        a.cork(true);
        let first = a.send(reply(b"first", Bytes::from_static(b"whole")));
        let bad = a.send(reply(b"head", Payload::File(FileRange { file, offset, len: 3 << 20 })));
        a.cork(false);
        let receiving = async {
            assert_eq!(next(&b).await, "firstwhole");
            b.recv().await.map(|message| message.is_some())
        };
        let (first, bad, ended) = futures_util::join!(first, bad, receiving);
        first.unwrap();
        assert!(matches!(bad, Err(Error::Io(_))), "{bad:?}");
        assert!(!matches!(ended, Ok(true)), "{ended:?}");
        assert!(a.has_ended());
    });
    let told = log
        .iter()
        .filter(|(_, line)| line.starts_with("a file cannot be read") && line.contains("os error 5"));
    assert_eq!(told.count(), 1, "{log:?}");
}

/// Reads of such a file are made by worker threads only, and what was read before the message began is sent.
#[test]
fn long_files_whose_reads_may_block_are_sent_whole() {
    rt::block_on(async {
        let (a, b) = channels().await;
        let content = pattern(3 << 20, 4);
        let mut disk = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut disk, &content).unwrap();
        let file = File::on(OwnedFd::from(disk), FileSystem::fixed(true));
        let ranges = [(5, 30_000), (0, 3 << 20), (100_000, 1 << 20), (77, (1 << 20) + 1), (3, 10)];
        a.cork(true);
        let sends = ranges.map(|(offset, len)| {
            let range = FileRange { file: file.clone(), offset: offset as u64, len };
            a.send(reply(b"head", Payload::File(range)))
        });
        let receiving = async {
            for (offset, len) in ranges {
                let got = next(&b).await;
                assert!(got[4..] == content[offset..offset + len], "{len} bytes at {offset}");
            }
        };
        a.cork(false);
        let (sent, ()) = futures_util::join!(join_all(sends), receiving);
        assert!(sent.into_iter().all(|sent| sent.is_ok()));
    })
    .unwrap();
}

/// The peer has many requests outstanding, then a few, then one, then sends in pieces; a gathering channel must never
/// make it wait forever, lose or reorder anything.
#[test]
fn a_gathering_channel_serves_a_peer_that_changes_its_ways() {
    const LEN: usize = 116;
    rt::block_on(async {
        let listener = std::net::TcpListener::bind(any_port()).unwrap();
        let addr = listener.local_addr().unwrap();
        let client = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect(addr).unwrap();
            stream.set_nodelay(true).unwrap();
            let mut answered = 0u64;
            let mut asked = 0u64;
            for (depth, pieces, count) in
                [(32, 1, 20_000), (3, 1, 300), (1, 1, 300), (32, 1, 20_000), (2, 2, 300), (9, 3, 300)]
            {
                let end = asked + count;
                while answered < end {
                    while asked < end && asked - answered < depth {
                        let mut body = vec![0; LEN];
                        body[..8].copy_from_slice(&asked.to_le_bytes());
                        let wire = frame(&body);
                        for piece in wire.chunks(wire.len().div_ceil(pieces)) {
                            stream.write_all(piece).unwrap();
                        }
                        asked += 1;
                    }
                    let mut answer = [0; 12];
                    stream.read_exact(&mut answer).unwrap();
                    assert_eq!(answer[4..], answered.to_le_bytes());
                    answered += 1;
                }
            }
            answered
        });
        let socket = Socket::from_tcp(rt::blocking(move || listener.accept()).await.unwrap()).unwrap();
        let config = Config { gather: true, ..Config::default() };
        let channel = Nbss::channel(Stream::from_socket(socket).unwrap(), Pool::new(64 << 20), config);
        let mut served = 0;
        while let Some(first) = channel.recv().await.unwrap() {
            channel.cork(true);
            let mut next = Some(first);
            while let Some(message) = next {
                assert_eq!(message.body.len(), LEN);
                drop(channel.send(Outgoing::bytes(message.body.slice(..8))));
                served += 1;
                next = channel.try_recv();
            }
            channel.cork(false);
        }
        assert_eq!(client.join().unwrap(), served);
    })
    .unwrap();
}

#[test]
fn a_corked_channel_sends_when_told_or_when_its_reader_sleeps() {
    Sim::new(12).run(async {
        let (a, b) = channels().await;
        a.cork(true);
        let first = a.send(Outgoing::bytes("first"));
        rt::sleep(Duration::from_secs(1)).await;
        assert!(b.recv().now_or_never().is_none(), "it came through the cork");
        assert_eq!(a.backlog(), 1);
        a.cork(false);
        first.await.unwrap();
        assert_eq!(next(&b).await, "first");
        a.cork(true);
        let second = a.send(Outgoing::bytes("second"));
        assert!(a.recv().now_or_never().is_none());
        second.await.unwrap();
        assert_eq!(next(&b).await, "second");
    });
}

#[test]
fn a_corked_channel_does_not_hold_back_without_limit() {
    Sim::new(13).run(async {
        let (a, b) = channels().await;
        a.cork(true);
        let sends: Vec<_> = (0..200).map(|i| a.send(Outgoing::bytes(pattern(9000, i)))).collect();
        for i in 0..100 {
            assert!(next(&b).await == pattern(9000, i));
        }
        drop(sends);
    });
}

#[test]
fn segments_are_filled_while_a_cork_says_that_more_is_on_its_way() {
    rt::block_on(async {
        let (peer, ours) = streams().await;
        let socket = ours.fd().expect("a real stream").try_clone_to_owned().unwrap();
        let holds = || rustix::net::sockopt::tcp_cork(&socket).unwrap();
        let a = Nbss::channel(ours, Pool::new(64 << 20), Config::default());
        a.cork(true);
        let mut sends = vec![a.send(Outgoing::bytes(pattern(60_000, 0)))];
        assert!(!holds(), "nothing has left yet");
        sends.extend((1..3).map(|i| a.send(Outgoing::bytes(pattern(60_000, i)))));
        assert!(holds(), "a segment of its own for what is left of the last message");
        a.cork(false);
        let len = 3 * (60_000 + nbss::HEADER_LEN);
        let (sent, bytes) = futures_util::join!(join_all(sends), read_exactly(&peer, len));
        assert!(sent.into_iter().all(|sent| sent.is_ok()));
        assert!(!holds(), "the last message waits for nothing");
        assert!(bytes == (0..3).flat_map(|i| frame(&pattern(60_000, i))).collect::<Vec<_>>());
    })
    .unwrap();
}

#[test]
fn a_peer_that_does_not_read_makes_senders_wait() {
    Sim::new(14).run(async {
        let (a, peer) = half().await;
        let sends: Vec<_> = (0..8).map(|_| a.send(Outgoing::bytes(vec![1; 1 << 20]))).collect();
        let mut sends = join_all(sends);
        let waited = rt::timeout(Duration::from_secs(60), &mut sends).await;
        assert!(waited.is_err(), "the messages went nowhere, yet were taken");
        assert!(a.backlog() >= 7);
        assert!(a.unsent_bytes() >= 7 << 20, "{} bytes wait", a.unsent_bytes());
        let (sent, _) = futures_util::join!(sends, read_exactly(&peer, 8 * ((1 << 20) + 4)));
        assert!(sent.into_iter().all(|sent| sent.is_ok()));
        assert_eq!(a.unsent_bytes(), 0);
    });
}

#[test]
fn close_sends_what_was_queued() {
    Sim::new(15).run(async {
        let (a, peer) = half().await;
        let queued = a.send(Outgoing::bytes(vec![1; 2 << 20]));
        a.close();
        assert!(matches!(a.send(Outgoing::bytes("late")).await, Err(Error::Closed)));
        let (sent, read) = futures_util::join!(queued, read_exactly(&peer, 4 + (2 << 20)));
        sent.unwrap();
        assert_eq!(read[4..], vec![1; 2 << 20]);
        assert!(a.recv().await.unwrap().is_none());
        let mut one = [0];
        assert_eq!(peer.recv(&mut [std::io::IoSliceMut::new(&mut one)]).await.unwrap(), 0);
    });
}

#[test]
fn a_closed_channel_does_not_wait_for_ever_for_a_peer_that_does_not_read() {
    Sim::new(16).run(async {
        let (a, peer) = half().await;
        let queued = a.send(Outgoing::bytes(vec![1; 8 << 20]));
        drop(a);
        let gave_up = rt::timeout(Duration::from_secs(6), queued).await;
        assert!(matches!(gave_up, Ok(Err(Error::Closed))), "{gave_up:?}");
        drop(peer);
    });
}

#[test]
fn what_tcp_cannot_do_is_misuse() {
    Sim::new(17).run(async {
        let (a, _b) = channels().await;
        let segment = Segment { stag: Stag(1), offset: 0, len: 8 };
        let refused = a.remote(vec![segment]).fetch().await.unwrap_err();
        assert!(matches!(refused.downcast(), Ok(Error::Misuse(_))));
        let buf = Pool::new(1 << 24).buf_from(&[0; 16]).unwrap();
        assert!(matches!(a.expose(buf, Access::RemoteRead), Err(Error::Misuse(_))));
        let long = vec![0; a.limits().max_message + 1];
        assert!(matches!(a.send(Outgoing::bytes(long)).await, Err(Error::Misuse(_))));
        assert_eq!(a.backlog(), 0);
        assert_eq!((a.kind(), a.medium(), a.limits().max_rdma), (Kind::Nbss, "tcp", None));
    });
}

#[test]
fn a_rough_network_loses_nothing() {
    for seed in 0..20 {
        Sim::new(seed).faults(Faults::rough()).run(async move {
            let (a, b) = channels().await;
            let file = file_of(&pattern(300_000, 77)).await;
            let lens: Vec<usize> = (0..40)
                .map(|_| {
                    sim::with_rng(|rng| match rng.below(4) {
                        0 => 1 + rng.below(100),
                        1 => 8192 + rng.below(200),
                        2 => 16_380 + rng.below(10),
                        _ => rng.below(200_000),
                    })
                })
                .collect();
            let send_all = |channel: Rc<dyn Channel>, salt: usize| {
                let (lens, file) = (lens.clone(), file.clone());
                async move {
                    for (i, &len) in lens.iter().enumerate() {
                        let outgoing = if i % 3 == 0 {
                            reply(b"file", Payload::File(FileRange { file: file.clone(), offset: 50, len }))
                        } else {
                            reply(b"data", Bytes::from(pattern(len, i ^ salt)))
                        };
                        channel.cork(i % 5 < 3);
                        let sent = channel.send(outgoing);
                        if i % 7 == 0 {
                            channel.cork(false);
                            sent.await.unwrap();
                        }
                    }
                    channel.cork(false);
                }
            };
            let receive_all = |channel: Rc<dyn Channel>, salt: usize| {
                let lens = lens.clone();
                async move {
                    let content = pattern(300_000, 77);
                    for (i, &len) in lens.iter().enumerate() {
                        let got = next(&channel).await;
                        assert_eq!(got.len(), 4 + len);
                        if i % 3 == 0 {
                            assert!(got[4..] == content[50..50 + len]);
                        } else {
                            assert!(got[4..] == pattern(len, i ^ salt));
                        }
                    }
                }
            };
            futures_util::join!(
                send_all(a.clone(), 1),
                send_all(b.clone(), 2),
                receive_all(a.clone(), 2),
                receive_all(b.clone(), 1),
            );
        });
    }
}

#[test]
fn a_connection_that_breaks_ends_both_channels() {
    for seed in 0..30u64 {
        for how in [CutHow::Reset, CutHow::Close] {
            let cut = Cut { connection: 0, side: Side::Dialer, at_byte: 1 + seed * 3000, how };
            let faults = Faults { cuts: vec![cut], ..Faults::rough() };
            Sim::new(seed).faults(faults).run(async move {
                let (a, b) = channels().await;
                let sends = (0..30).map(|i| a.send(Outgoing::bytes(pattern(5000, i))));
                let (sent, received) = futures_util::join!(join_all(sends), async {
                    let mut whole = 0;
                    loop {
                        match b.recv().await {
                            Ok(Some(message)) => assert!(message.body == pattern(5000, whole)),
                            Ok(None) | Err(Error::Io(_)) => break whole,
                            Err(e) => panic!("{e}"),
                        }
                        whole += 1;
                    }
                });
                assert!(received < 30, "the cut came too late to test anything");
                assert!(sent.iter().any(|sent| sent.is_err()), "messages were taken by nobody");
                assert!(matches!(a.recv().await, Ok(None) | Err(Error::Io(_))));
                assert!(a.send(Outgoing::bytes("more")).await.is_err());
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_end_in_order_or_in_error(
        seed in any::<u64>(),
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        shorten in any::<bool>(),
    ) {
        if shorten {
            // Lengths that are possible.
            bytes.chunks_mut(16).for_each(|chunk| chunk.iter_mut().take(3).for_each(|byte| *byte = 0));
        }
        Sim::new(seed).faults(Faults::rough()).run(async move {
            let (channel, peer) = half().await;
            let total = bytes.len();
            peer.send_all(&[bytes.into()]).await.unwrap();
            peer.shutdown_write();
            let mut received = 0;
            while let Ok(Some(message)) = channel.recv().await {
                received += 4 + message.body.len();
            }
            assert!(received <= total);
        });
    }
}
