//! The same tests on io_uring, on epoll and, where no real descriptor is involved, in the simulator.

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use super::*;
use crate::File;
use crate::rt::{Cores, Driver, Options, block_on_with, spawn, yield_now};
use crate::sim::{Faults, Rng, Sim};

/// Runs `test` on real sockets, with both drivers and with and without spinning.
fn on_real<F: Future>(test: impl Fn() -> F) {
    for driver in [Driver::Auto, Driver::Epoll] {
        for spin_max in [Duration::ZERO, rt::SPIN_MAX] {
            block_on_with(&Options { driver, spin_max }, test()).expect("the loop starts");
        }
    }
}

/// Runs `test` on real sockets and on simulated ones, good and rough.
fn on_all<F: Future>(test: impl Fn() -> F) {
    on_real(&test);
    Sim::new(1).run(test());
    for seed in 2..10 {
        Sim::new(seed).faults(Faults::rough()).run(test());
    }
}

async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
    let addr = listener.local_addr();
    let accepting = spawn(async move { listener.accept().await });
    let ours = Stream::connect(addr).await.expect("connect");
    assert_eq!(ours.peer(), Peer::Tcp(addr));
    let theirs = Stream::from_socket(accepting.await.expect("accept")).expect("take over");
    assert_eq!(theirs.peer().addr(), ours.local_addr());
    assert_eq!(theirs.local_addr(), Some(addr));
    (ours, theirs)
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

async fn recv_some(stream: &Stream, room: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0xa5; room];
    let n = stream.recv(&mut [IoSliceMut::new(&mut bytes)]).await?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Receives `len` bytes, or less at the end of the stream.
async fn recv_len(stream: &Stream, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let some = recv_some(stream, (len - all.len()).min(70_000)).await.expect("recv");
        if some.is_empty() {
            break;
        }
        all.extend_from_slice(&some);
    }
    all
}

#[test]
fn a_long_chain_arrives_whole_and_in_order() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let all = pattern(3, 1_500_000);
        let whole = Bytes::from(all.clone());
        // More pieces than one call takes, some of them empty, at the ends too.
        let mut chain = vec![Bytes::new()];
        let mut at = 0;
        let mut rng = Rng::new(4);
        while at < whole.len() {
            let n = rng.below(4000).min(whole.len() - at);
            chain.push(whole.slice(at..at + n));
            at += n;
        }
        chain.push(Bytes::new());
        assert!(chain.len() > 2 * SLICES_PER_CALL);
        let sending = spawn(async move {
            ours.send_all(&chain).await.expect("send");
            ours.send_all(&[]).await.expect("nothing is no error");
            ours
        });
        assert!(recv_len(&theirs, all.len()).await == all);
        drop(sending.await);
        assert_eq!(recv_some(&theirs, 10).await.expect("the end"), []);
    });
}

#[test]
fn received_bytes_land_in_the_slices_in_order() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        ours.send_all(&[Bytes::from_static(b"head"), Bytes::from_static(b"payload")]).await.expect("send");
        drop(ours);
        let (mut head, mut rest, mut all) = ([0u8; 4], [0u8; 20], Vec::<u8>::new());
        loop {
            let n = theirs
                .recv(&mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut rest)])
                .await
                .expect("recv");
            if n == 0 {
                break;
            }
            all.extend(head.iter().chain(&rest).take(n));
        }
        assert_eq!(all, b"headpayload");
    });
}

#[test]
fn half_close_ends_one_direction_only() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        ours.send_all(&[Bytes::from_static(b"question")]).await.expect("send");
        ours.shutdown_write();
        assert_eq!(recv_len(&theirs, 100).await, b"question", "the end of the stream follows the bytes");
        theirs.send_all(&[Bytes::from_static(b"answer")]).await.expect("the other direction is open");
        theirs.shutdown_write();
        assert_eq!(recv_len(&ours, 100).await, b"answer");
        let error = ours.send_all(&[Bytes::from_static(b"more")]).await.expect_err("the direction is closed");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn shutdown_ends_a_pending_receive_here_and_there() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let ours = Rc::new(ours);
        let waiting = ours.clone();
        let here = spawn(async move { recv_some(&waiting, 10).await });
        let there = spawn(async move { recv_some(&theirs, 10).await });
        yield_now().await;
        ours.shutdown();
        assert_eq!(here.await.expect("the end"), []);
        assert_eq!(there.await.expect("the end"), []);
    });
}

#[test]
fn dropped_receives_lose_nothing() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let all = pattern(5, 40_000);
        let bytes = Bytes::from(all.clone());
        let sending = spawn(async move {
            for at in (0..bytes.len()).step_by(100) {
                ours.send_all(&[bytes.slice(at..at + 100)]).await.expect("send");
                yield_now().await;
            }
            ours
        });
        let mut got = Vec::new();
        let mut abandoned = 0;
        while got.len() < all.len() {
            // Polled exactly once, then dropped.
            let mut receive = Box::pin(recv_some(&theirs, 333));
            let first = std::future::poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx))).await;
            drop(receive);
            match first {
                Poll::Ready(some) => got.extend(some.expect("recv")),
                Poll::Pending => {
                    abandoned += 1;
                    // Wait properly half of the time: a wait must work after a dropped one.
                    if abandoned % 2 == 0 {
                        got.extend(recv_some(&theirs, 77).await.expect("recv"));
                    } else {
                        yield_now().await;
                    }
                }
            }
        }
        assert!(got == all);
        assert!(abandoned > 0, "some receives were dropped while they waited");
        drop(sending.await);
    });
}

#[test]
fn an_abandoned_wait_is_taken_over_by_the_next() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let theirs = Rc::new(theirs);
        let abandoned = theirs.clone();
        let task = spawn(async move { recv_some(&abandoned, 10).await });
        yield_now().await;
        assert!(!task.is_finished());
        drop(task);
        ours.send_all(&[Bytes::from_static(b"one")]).await.expect("send");
        // Received without a wait, so that the readiness requested by the first wait is stale.
        let mut got = vec![0; 3];
        let mut done = 0;
        while done < 3 {
            match theirs.try_recv(&mut [IoSliceMut::new(&mut got[done..])]) {
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    rt::sleep(Duration::from_micros(100)).await
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(got, b"one");
        let waiting = theirs.clone();
        let task = spawn(async move { recv_len(&waiting, 3).await });
        for _ in 0..10 {
            yield_now().await;
        }
        assert!(!task.is_finished(), "a stale readiness is no data");
        ours.send_all(&[Bytes::from_static(b"two")]).await.expect("send");
        assert_eq!(task.await, b"two");
    });
}

#[test]
fn both_directions_flow_at_once_whatever_waits_on_the_other() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let len = 1_000_000;
        let run = |stream: Stream, seed: u64, expected: u64| {
            let stream = Rc::new(stream);
            let sender = stream.clone();
            let sending = spawn(async move {
                let bytes = Bytes::from(pattern(seed, len));
                sender.send_all(&[bytes]).await.expect("send");
            });
            spawn(async move {
                let got = recv_len(&stream, len).await;
                assert!(got == pattern(expected, len));
                sending.await;
                stream
            })
        };
        let (a, b) = (run(ours, 6, 7), run(theirs, 7, 6));
        let (a, b) = (a.await, b.await);
        // Now each end waits to receive, and a send still goes through, more than once.
        for _ in 0..3 {
            let receiver = b.clone();
            let receiving = spawn(async move { recv_len(&receiver, 200_000).await });
            yield_now().await;
            a.send_all(&[Bytes::from(pattern(8, 200_000))]).await.expect("send");
            assert!(receiving.await == pattern(8, 200_000));
        }
    });
}

fn file_of(bytes: &[u8]) -> File {
    let file = File::in_memory("net-test").expect("memfd");
    let chain = [Bytes::copy_from_slice(bytes)];
    let mut writing = std::pin::pin!(file.write_at(0, &chain));
    // Writing to memory does not wait.
    let written = writing.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(written, std::task::Poll::Ready(Ok(()))));
    file.clone()
}

#[test]
fn a_file_follows_its_header() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let all = pattern(9, 1_200_000);
        let range = FileRange { file: file_of(&all), offset: 12_345, len: 1_100_000 };
        let sending = spawn(async move {
            ours.send_all_more(&[Bytes::from_static(b"header")]).await.expect("send");
            ours.send_file(&range).await.expect("send file");
            ours.send_file(&FileRange { len: 0, ..range }).await.expect("nothing is no error");
            ours.send_all(&[Bytes::from_static(b"trailer")]).await.expect("send");
            ours
        });
        assert_eq!(recv_len(&theirs, 6).await, b"header");
        assert!(recv_len(&theirs, 1_100_000).await == all[12_345..][..1_100_000]);
        assert_eq!(recv_len(&theirs, 7).await, b"trailer");
        drop(sending.await);
    });
}

#[test]
fn a_file_that_shrank_is_padded_with_zeros() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let all = pattern(10, 300_000);
        let range = FileRange { file: file_of(&all), offset: 1000, len: 250_000 };
        range.file.set_len(101_000).expect("truncate");
        let sending = spawn(async move {
            ours.send_file(&range).await.expect("send file");
            range.file.set_len(0).expect("truncate");
            ours.send_file(&FileRange { len: 5, ..range }).await.expect("send file");
            ours.send_all(&[Bytes::from_static(b"!")]).await.expect("send");
            ours
        });
        let got = recv_len(&theirs, 250_006).await;
        assert!(got[..100_000] == all[1000..101_000]);
        assert!(got[100_000..250_005].iter().all(|&byte| byte == 0));
        assert_eq!(got[250_005..], *b"!");
        drop(sending.await);
    });
}

#[test]
fn a_file_that_sendfile_refuses_is_read() {
    on_real(|| async {
        let (ours, theirs) = pair().await;
        // This file has no splice operation, so sendfile returns EINVAL.
        let file = std::fs::File::open("/proc/self/cmdline").expect("procfs");
        let mut content = vec![0; 4096];
        let n = file.read_at(&mut content, 0).expect("read");
        assert!(n > 0);
        let mut offset = 0;
        let refused = rustix::fs::sendfile(ours.fd().expect("real"), &file, Some(&mut offset), 1);
        assert_eq!(refused, Err(rustix::io::Errno::INVAL));
        let range =
            FileRange { file: File::from(std::os::fd::OwnedFd::from(file)), offset: 0, len: content.len() };
        ours.send_file(&range).await.expect("send file");
        assert_eq!(recv_len(&theirs, content.len()).await, content, "read, then padded");
    });
}

#[test]
fn a_file_offset_beyond_all_files_is_an_error_not_a_panic() {
    on_all(|| async {
        let (ours, _theirs) = pair().await;
        let range = FileRange { file: file_of(b"x"), offset: u64::MAX - 2, len: 100 };
        ours.send_file(&range).await.expect_err("no such place");
    });
}

#[test]
fn a_peer_that_closes_with_bytes_unread_resets() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        theirs.send_all(&[Bytes::from_static(b"last words")]).await.expect("send");
        ours.send_all(&[Bytes::from_static(b"never read")]).await.expect("send");
        // The bytes must have arrived for the close to be a reset.
        assert_eq!(recv_some(&theirs, 1).await.expect("recv"), b"n");
        drop(theirs);
        // Bytes sent before the reset may still be read; then the error shows.
        let error = loop {
            match recv_some(&ours, 100).await {
                Ok(some) => assert!(!some.is_empty(), "a reset is not an orderly end"),
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let error = ours.send_all(&[Bytes::from_static(b"x")]).await.expect_err("nobody is there");
        assert!(
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset),
            "{error}"
        );
    });
}

#[test]
fn sending_to_a_peer_that_has_gone_fails_in_the_end() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let waiting = Rc::new(ours);
        let receiver = waiting.clone();
        let receiving = spawn(async move { recv_some(&receiver, 10).await });
        drop(theirs);
        assert_eq!(receiving.await.expect("an orderly end"), []);
        let range = FileRange { file: file_of(&[7; 100]), offset: 0, len: 100 };
        let error = loop {
            if let Err(e) = waiting.send_file(&range).await {
                break e;
            }
            rt::sleep(Duration::from_micros(10)).await;
        };
        assert!(
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset),
            "{error}"
        );
    });
}

#[test]
fn a_stream_dropped_while_a_receive_waits_is_closed_at_once() {
    on_all(|| async {
        let (ours, theirs) = pair().await;
        let task = spawn(async move { recv_some(&ours, 10).await });
        yield_now().await;
        drop(task);
        assert_eq!(recv_some(&theirs, 10).await.expect("the end"), []);
    });
}

#[test]
fn a_peer_that_has_reset_before_it_is_accepted_keeps_its_address() {
    on_real(async || {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let client = std::net::TcpStream::connect(listener.local_addr()).expect("connect");
        let addr = client.local_addr().expect("an address");
        // Closing with a linger of zero is a reset.
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("no lingering");
        drop(client);
        let socket = listener.accept().await.expect("accept");
        assert_eq!(socket.peer(), Peer::Tcp(addr));
        let stream = Stream::from_socket(socket).expect("take over");
        assert_eq!(stream.peer(), Peer::Tcp(addr));
        recv_some(&stream, 1).await.expect_err("the connection was reset");
    });
}

#[test]
fn accepted_connections_are_asked_whether_their_peer_is_there() {
    use rustix::net::sockopt;
    on_real(async || {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let _peer = Stream::connect(listener.local_addr()).await.expect("connect");
        let stream = Stream::from_socket(listener.accept().await.expect("accept")).expect("take over");
        let fd = stream.fd().expect("a descriptor");
        assert!(sockopt::socket_keepalive(fd).expect("keepalive"));
        let asked = sockopt::tcp_keepidle(fd).expect("idle")
            + sockopt::tcp_keepintvl(fd).expect("interval") * sockopt::tcp_keepcnt(fd).expect("count");
        assert!(asked <= Duration::from_secs(60), "{asked:?}");
        // While an answer is in transit to the peer, no probes are sent.
        let unacknowledged_ms = sockopt::tcp_user_timeout(fd).expect("a limit");
        assert!((1..=60_000).contains(&unacknowledged_ms), "{unacknowledged_ms}");
        // SMB's connections are dropped sooner.
        stream.set_unacknowledged_limit(Duration::from_secs(30)).expect("another limit");
        assert_eq!(sockopt::tcp_user_timeout(fd).expect("a limit"), 30_000);
    });
}

#[test]
fn a_stream_waits_for_a_part_and_not_for_what_never_comes() {
    const PART: usize = 256 << 10;
    on_real(async || {
        let (ours, theirs) = pair().await;
        let chain = [Bytes::from(vec![1; PART])];
        let sending = spawn(async move {
            ours.send_all(&chain).await.expect("sent");
            ours
        });
        theirs.wait_for(PART).await.expect("there");
        // Or as much as there is room for.
        assert!(theirs.waiting_bytes().expect("counted") >= 16 << 10);
        recv_len(&theirs, PART).await;
        let ours = sending.await;
        // The remainder does not come; the end does.
        ours.send_all(&[Bytes::from_static(b"less")]).await.expect("sent");
        let ended = spawn(async move {
            theirs.wait_for(PART).await.expect("ended");
            recv_some(&theirs, 8).await.expect("what came")
        });
        yield_now().await;
        drop(ours);
        assert_eq!(ended.await, b"less");
        // A local socket has less room than that.
        let (a, b) = UnixStream::pair().expect("socketpair");
        let over =
            |socket| Stream::from_socket(Socket::from_unix(socket).expect("connected")).expect("take over");
        let (a, b) = (over(a), over(b));
        b.wait_for(1 << 30).await.expect("not waited for");
        drop(a);
    });
}

#[test]
fn peers_are_told_apart_by_how_they_come() {
    let addr = "[::ffff:192.0.2.1]:700".parse().expect("an address");
    let peer = Peer::Tcp(addr);
    assert_eq!(peer.ip(), Some([192, 0, 2, 1].into()), "IPv4, however it is written");
    assert_eq!((peer.by_rdma(), peer.to_string()), (Peer::Rdma(addr), addr.to_string()));
    let local = Peer::Local { uid: 1000, pid: Some(7) };
    assert_eq!((local.by_rdma(), local.addr(), local.ip()), (local, None, None));
    assert_eq!(local.to_string(), "local uid 1000 pid 7");
    let outside = Peer::Local { uid: 1000, pid: None };
    assert_eq!(outside.to_string(), "local uid 1000 of another PID namespace");
}

#[test]
fn nobody_listens() {
    on_all(|| async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let addr = listener.local_addr();
        drop(listener);
        let error = Stream::connect(addr).await.expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn an_address_in_use_is_an_error() {
    on_all(|| async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let error = Listener::bind(listener.local_addr()).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    });
}

#[test]
fn many_connections_at_once() {
    on_all(|| async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let addr = listener.local_addr();
        let server = spawn(async move {
            for _ in 0..60 {
                let stream =
                    Stream::from_socket(listener.accept().await.expect("accept")).expect("take over");
                spawn(async move {
                    let question = recv_len(&stream, 1000).await;
                    stream.send_all(&[Bytes::from(question)]).await.expect("send");
                })
                .detach();
            }
        });
        let clients: Vec<_> = (0..60)
            .map(|i| {
                spawn(async move {
                    let stream = Stream::connect(addr).await.expect("connect");
                    stream.send_all(&[Bytes::from(pattern(i, 1000))]).await.expect("send");
                    assert!(recv_len(&stream, 1000).await == pattern(i, 1000));
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
        server.await;
    });
}

#[test]
fn a_connection_moves_to_the_core_that_serves_it() {
    let cores = Cores::start(2, "net-test").expect("threads start");
    on_real(|| async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let addr = listener.local_addr();
        for core in 0..4 {
            let connecting = spawn(async move { Stream::connect(addr).await.expect("connect") });
            let socket = listener.accept().await.expect("accept");
            cores.run(core, move || async move {
                let stream = Stream::from_socket(socket).expect("take over");
                let question = recv_len(&stream, 5).await;
                let name = std::thread::current().name().unwrap_or_default().to_owned();
                stream.send_all(&[Bytes::from(question), Bytes::from(name)]).await.expect("send");
            });
            let ours = connecting.await;
            ours.send_all(&[Bytes::from_static(b"where")]).await.expect("send");
            assert_eq!(recv_len(&ours, 100).await, format!("wherenet-test-{}", core % 2).as_bytes());
        }
    });
}

#[test]
fn unix_sockets_work_alike() {
    on_real(|| async {
        let (a, b) = UnixStream::pair().expect("socketpair");
        let over =
            |socket| Stream::from_socket(Socket::from_unix(socket).expect("connected")).expect("take over");
        let (a, b) = (over(a), over(b));
        let own = Peer::Local { uid: rustix::process::geteuid().as_raw(), pid: Some(std::process::id()) };
        assert_eq!((a.peer(), a.peer().addr()), (own, None));
        let sending = spawn(async move {
            a.send_all(&[Bytes::from(pattern(11, 700_000))]).await.expect("send");
            a.send_file(&FileRange { file: file_of(b"file"), offset: 0, len: 4 }).await.expect("send file");
            a
        });
        assert!(recv_len(&b, 700_000).await == pattern(11, 700_000));
        assert_eq!(recv_len(&b, 4).await, b"file");
        drop(sending.await);
        assert_eq!(recv_some(&b, 1).await.expect("the end"), []);
        let directory = std::env::temp_dir().join("there is no such directory of this name/socket");
        let error = Stream::connect_unix(&directory).await.expect_err("no such socket");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn congestion_control_and_buffers_can_be_chosen() {
    on_real(|| async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("a port");
        listener.set_congestion("no such").expect_err("unknown");
        let addr = listener.local_addr();
        assert!(Stream::connect_with(addr, CONNECT_LIMIT, Some("no such")).await.is_err());
        // Within this host the default is reno, whatever the system's default.
        let ours = Stream::connect(addr).await.expect("connected");
        let theirs = Stream::from_socket(listener.accept().await.expect("accepted")).expect("a stream");
        assert_eq!(ours.congestion().expect("TCP"), "reno");
        assert_eq!(theirs.congestion().expect("TCP"), "reno");
        ours.set_buffers(1 << 16, 1 << 16).expect("buffers");
        let size = rustix::net::sockopt::socket_send_buffer_size(ours.fd().expect("real")).expect("size");
        assert!(size >= 1 << 16);
    });
    Sim::new(0).run(async {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("a port");
        listener.set_congestion("reno").expect("ignored");
        let ours = Stream::connect_with(listener.local_addr(), CONNECT_LIMIT, Some("no such")).await;
        assert!(ours.expect("ignored").fd().is_none());
    });
}

#[test]
fn readable_reports_levels_not_edges() {
    use rustix::event::EventfdFlags;
    on_real(|| async {
        let (a, b) = UnixStream::pair().expect("socketpair");
        b.set_nonblocking(true).expect("nonblocking");
        let b = Readable::new(b).expect("watch");
        b.writable().await.expect("an empty socket takes bytes");
        let waiting = std::future::poll_fn(|cx| Poll::Ready(b.poll_readable(cx).is_pending()));
        assert!(waiting.await, "nothing is there yet");
        rustix::io::write(&a, b"four").expect("write");
        for left in (1..=4).rev() {
            b.readable().await.expect("wait");
            let mut byte = [0];
            assert_eq!(
                rustix::io::read(b.inner(), &mut byte),
                Ok(1),
                "{left} bytes are left, and it says so"
            );
        }
        let waiting = std::future::poll_fn(|cx| Poll::Ready(b.poll_readable(cx).is_pending()));
        assert!(waiting.await, "nothing is left");
        drop(a);
        b.readable().await.expect("the peer's end is readable");

        let bell =
            rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("eventfd");
        let ringer = bell.try_clone().expect("a descriptor");
        let bell = Readable::new(bell).expect("watch");
        for _ in 0..50 {
            let ringer = ringer.try_clone().expect("a descriptor");
            let thread = std::thread::spawn(move || rustix::io::write(&ringer, &1u64.to_ne_bytes()));
            bell.readable().await.expect("wait");
            thread.join().expect("the thread ends").expect("the bell rings");
            assert_eq!(rustix::io::read(bell.inner(), &mut [0u8; 8]), Ok(8));
        }
    });
}

#[test]
fn a_socket_without_a_core_is_an_error() {
    let (a, _b) = UnixStream::pair().expect("socketpair");
    let socket = Socket::from_unix(a).expect("connected");
    Stream::from_socket(socket).expect_err("no core runs on this thread");
}
