//! The driver, over simulated sockets and under virtual time: rough networks, cuts, silence, strangers.

use std::io;
use std::rc::Rc;

use weft_machine::sim::{Cut, CutHow, Faults, Side, Sim};
use weft_machine::{Peer, Stream, rt};

use super::*;
use crate::iwarp::{Config, Provider};
use crate::verbs::{self, ConnectError, ConnectParams, Disconnect, Provider as _, QueuePair, WorkError};

fn provider(pool: &Pool, config: Config) -> Provider {
    Provider::new(pool.clone(), config)
}

fn any_port() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn next(qp: &Rc<dyn QueuePair>, seen: &mut Vec<Completion>) -> Result<(), Disconnect> {
    std::future::poll_fn(|cx| qp.poll(cx, seen)).await
}

/// Everything up to the end.
async fn drain(qp: &Rc<dyn QueuePair>) -> (Vec<Completion>, Disconnect) {
    let mut seen = Vec::new();
    loop {
        if let Err(reason) = next(qp, &mut seen).await {
            return (seen, reason);
        }
    }
}

/// A client that writes, reads and sends; a server with a region for each. Returns how both ended.
async fn job(pool: &Pool, config: Config) -> [(Vec<Completion>, Disconnect); 2] {
    const LEN: usize = 300_000;
    let (client, server) = (provider(pool, config.clone()), provider(pool, config));
    let listener = server.listen(any_port()).await.unwrap();
    let addr = listener.local_addr();
    let recv = |id| Work::Recv { id, buf: pool.try_alloc(4096).unwrap() };
    let serve = async {
        let request = listener.accept().await.unwrap().request().await.ok()?;
        let qp = request.accept(ConnectParams::default(), vec![recv(0), recv(1)]).await.ok()?;
        let mut seen = Vec::new();
        while !seen.iter().any(|c: &Completion| c.id == 0) {
            if let Err(reason) = next(&qp, &mut seen).await {
                return Some((seen, reason));
            }
        }
        let sink = qp.register(pool.buf_from(&vec![FILL; LEN]).unwrap(), Access::RemoteWrite).ok()?;
        let source = qp.register(pool.buf_from(&pattern(1, LEN)).unwrap(), Access::RemoteRead).ok()?;
        let told: Vec<u8> = [sink, source]
            .iter()
            .flat_map(|s| [&s.stag.0.to_be_bytes()[..], &s.offset.to_be_bytes()].concat())
            .collect();
        let send = Work::Send {
            id: 9,
            data: vec![told.into()],
            invalidate: None,
            solicited: false,
            signalled: false,
        };
        qp.post(send).ok()?;
        let (rest, reason) = drain(&qp).await;
        if rest.iter().any(|c| c.id == 1 && c.result.is_ok()) {
            assert!(qp.invalidate(sink.stag).unwrap()[..] == pattern(2, LEN));
        }
        seen.extend(rest);
        Some((seen, reason))
    };
    let ask = async {
        let (qp, _) = client.connect(addr, ConnectParams::default()).await.ok()?;
        let send = |id, data: &'static [u8]| Work::Send {
            id,
            data: vec![Bytes::from_static(data)],
            invalidate: None,
            solicited: false,
            signalled: true,
        };
        qp.post(recv(0)).ok()?;
        qp.post(send(1, b"hello")).ok()?;
        let mut seen = Vec::new();
        let told = loop {
            if let Err(reason) = next(&qp, &mut seen).await {
                return Some((seen, reason));
            }
            let told = seen.iter().find_map(|c| match &c.result {
                Ok(Done::Received { buf, .. }) => Some(buf.to_vec()),
                _ => None,
            });
            if let Some(told) = told {
                break told;
            }
        };
        let segment = |at: usize| Segment {
            stag: verbs::Stag(u32::from_be_bytes(told[at..at + 4].try_into().unwrap())),
            offset: u64::from_be_bytes(told[at + 4..at + 12].try_into().unwrap()),
            len: LEN as u32,
        };
        let data = Bytes::from(pattern(2, LEN)).into();
        qp.post(Work::Write { id: 2, data, to: segment(0), signalled: true }).ok()?;
        qp.post(Work::Read { id: 3, into: pool.try_alloc(LEN).unwrap(), from: segment(12) }).ok()?;
        qp.post(send(4, b"written")).ok()?;
        while !seen.iter().any(|c| c.id == 3) {
            if let Err(reason) = next(&qp, &mut seen).await {
                return Some((seen, reason));
            }
        }
        if let Some(Completion { result: Ok(Done::Read { buf }), .. }) = seen.iter().find(|c| c.id == 3) {
            assert!(buf[..] == pattern(1, LEN));
        }
        qp.close();
        let (rest, reason) = drain(&qp).await;
        seen.extend(rest);
        Some((seen, reason))
    };
    let (served, asked) = futures_util::join!(serve, ask);
    let never = || (Vec::new(), Disconnect::Lost(io::ErrorKind::NotConnected));
    [served.unwrap_or_else(never), asked.unwrap_or_else(never)]
}

#[test]
fn a_rough_network_changes_nothing_but_the_time_it_takes() {
    for seed in 0..6 {
        let config = Config { crc: seed % 2 == 0, ..Config::default() };
        let run = || {
            let pool = Pool::new(64 << 20);
            let sim = Sim::new(seed).faults(Faults::rough());
            let [served, asked] = sim.run(job(&pool, config.clone()));
            assert_eq!(asked.1, Disconnect::Local);
            assert_eq!(served.1, Disconnect::Peer);
            assert!(asked.0.iter().all(|c| c.result.is_ok()), "{:?}", asked.0);
            assert!(served.0.iter().all(|c| c.result.is_ok()), "{:?}", served.0);
            sim.digest()
        };
        assert_eq!(run(), run(), "equal seeds give equal runs");
    }
}

#[test]
fn a_connection_may_break_anywhere() {
    for how in [CutHow::Reset, CutHow::Close] {
        for side in [Side::Dialer, Side::Acceptor] {
            for at_byte in [0, 10, 23, 24, 25, 60, 80, 100, 1000, 70_000, 200_000, 300_100] {
                let pool = Pool::new(64 << 20);
                let cuts = vec![Cut { connection: 0, side, at_byte, how }];
                let sim = Sim::new(at_byte).faults(Faults { cuts, ..Faults::default() });
                let ends = sim.run(job(&pool, Config::default()));
                for (completions, reason) in &ends {
                    let orderly =
                        matches!(reason, Disconnect::Lost(_) | Disconnect::Peer | Disconnect::Local);
                    assert!(orderly, "{how:?} {side:?} {at_byte}: {reason}");
                    for completion in completions {
                        assert!(
                            matches!(&completion.result, Ok(_) | Err(WorkError::Flushed)),
                            "{how:?} {side:?} {at_byte}: {completion:?}"
                        );
                    }
                }
                drop(ends);
                drop(sim);
                assert_eq!(pool.in_use_bytes(), 0, "{how:?} {side:?} {at_byte}: buffers lost");
            }
        }
    }
}

/// A half-made connection does not last.
#[test]
fn silence_during_set_up_times_out() {
    Sim::new(1).run(async {
        let pool = Pool::new(64 << 20);
        let provider = provider(&pool, Config::default());
        let timed_out = |error: Option<ConnectError>| matches!(error, Some(ConnectError::TimedOut(_)));
        // A client that sends nothing.
        let listener = provider.listen(any_port()).await.unwrap();
        let silent = Stream::connect(listener.local_addr()).await.unwrap();
        let start = rt::now();
        let request = listener.accept().await.unwrap().request().await;
        assert!(timed_out(request.err()));
        assert_eq!(rt::now() - start, Config::default().setup_timeout);
        drop(silent);
        // A server that sends nothing.
        let silent = weft_machine::Listener::bind(any_port()).unwrap();
        let start = rt::now();
        let connected = provider.connect(silent.local_addr(), ConnectParams::default()).await;
        assert!(timed_out(connected.err()));
        assert_eq!(rt::now() - start, Config::default().setup_timeout);
    });
}

/// A peer that reads nothing, with a socket that takes one byte, does not hold a side up either.
#[test]
fn a_request_that_nobody_reads_times_out() {
    let faults = Faults { socket_buffer_bytes: 1, ..Faults::default() };
    Sim::new(1).faults(faults).run(async {
        let pool = Pool::new(64 << 20);
        let provider = provider(&pool, Config::default());
        let deaf = weft_machine::Listener::bind(any_port()).unwrap();
        let start = rt::now();
        let connected = provider.connect(deaf.local_addr(), ConnectParams::default()).await;
        assert!(matches!(connected.err(), Some(ConnectError::TimedOut("the MPA request"))));
        assert_eq!(rt::now() - start, Config::default().setup_timeout);
    });
}

/// A server that hangs up late on the first request, and then ignores the one in the older form, gets the time of one
/// attempt.
#[test]
fn all_steps_of_set_up_have_one_limit() {
    Sim::new(1).run(async {
        let pool = Pool::new(64 << 20);
        let listener = weft_machine::Listener::bind(any_port()).unwrap();
        let addr = listener.local_addr();
        let server = rt::spawn(async move {
            let first = listener.accept().await.unwrap();
            rt::sleep(Duration::from_secs(9)).await;
            drop(first);
            let _second = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
        });
        let start = rt::now();
        let connected = provider(&pool, Config::default()).connect(addr, ConnectParams::default()).await;
        assert!(matches!(connected.err(), Some(ConnectError::TimedOut(_))));
        assert_eq!(rt::now() - start, Config::default().setup_timeout);
        drop(server);
    });
}

#[test]
fn strangers_are_sent_away() {
    Sim::new(1).run(async {
        let pool = Pool::new(64 << 20);
        let provider = provider(&pool, Config::default());
        let listener = provider.listen(any_port()).await.unwrap();
        for greeting in
            [&b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..], b"MPA ID Rep Frame\x40\x02\0\0", b"MPA"]
        {
            let stranger = Stream::connect(listener.local_addr()).await.unwrap();
            stranger.send_all(&[Bytes::from_static(greeting)]).await.unwrap();
            stranger.shutdown_write();
            let request = listener.accept().await.unwrap().request().await;
            assert!(matches!(request.err(), Some(ConnectError::Violation(_))));
        }
        // And the other way round.
        let server = weft_machine::Listener::bind(any_port()).unwrap();
        let answer = async {
            let stream = Stream::from_socket(server.accept().await.unwrap()).unwrap();
            stream.send_all(&[Bytes::from_static(b"SSH-2.0-OpenSSH_9.2p1\r\n")]).await.unwrap();
            stream
        };
        let connect = provider.connect(server.local_addr(), ConnectParams::default());
        let (_stream, connected) = futures_util::join!(answer, connect);
        assert!(matches!(connected.err(), Some(ConnectError::Violation(_))));
    });
}

/// A peer that knows only RFC 5044, for which an enhanced request is malformed, is asked again in its own form (RFC
/// 6581 10).
#[test]
fn a_peer_that_hangs_up_on_revision_2_is_asked_in_revision_1() {
    Sim::new(1).run(async {
        let pool = Pool::new(64 << 20);
        let server = weft_machine::Listener::bind(any_port()).unwrap();
        let next = async || {
            let stream = Stream::from_socket(server.accept().await.unwrap()).unwrap();
            let mut request = [0; 20];
            let got = stream.recv(&mut [io::IoSliceMut::new(&mut request)]).await.unwrap();
            assert_eq!(got, 20);
            (stream, request)
        };
        let old = async || {
            let (stream, request) = next().await;
            assert_eq!(request, *b"MPA ID Req Frame\x50\x02\0\x04");
            drop(stream);
            let (stream, request) = next().await;
            assert_eq!(request, *b"MPA ID Req Frame\x40\x01\0\0");
            stream.send_all(&[Bytes::from_static(b"MPA ID Rep Frame\x40\x01\0\x03yes")]).await.unwrap();
            stream
        };
        let client = provider(&pool, Config::default());
        let connect = client.connect(server.local_addr(), ConnectParams::default());
        let (_stream, connected) = futures_util::join!(old(), connect);
        let (qp, said) = connected.unwrap();
        assert_eq!(&said[..], b"yes");
        assert_eq!((qp.caps().ird, qp.caps().ord), (64, 64));
        // Two attempts are enough; and a request that the older form cannot express is not sent in it.
        let closes = async |times: usize| {
            for _ in 0..times {
                next().await;
            }
        };
        for (peer_to_peer, times) in [(false, 2), (true, 1)] {
            let client = provider(&pool, Config { peer_to_peer, ..Config::default() });
            let connect = client.connect(server.local_addr(), ConnectParams::default());
            let ((), connected) = futures_util::join!(closes(times), connect);
            assert!(matches!(connected.err(), Some(ConnectError::Violation(_) | ConnectError::Io(_))));
        }
    });
}

/// A connection receives into memory of its own peer's share, never into that of other peers.
#[test]
fn staging_comes_from_the_share_of_the_connection_and_does_not_wait_for_ever() {
    let (providers, own) = (Pool::new(64 << 20), Pool::new(16 << 20));
    for markers in [false, true] {
        Sim::new(1).run(async {
            let config = Config { markers, ..Config::default() };
            let server = provider(&providers, config.clone());
            let listener = server.listen(any_port()).await.unwrap();
            let clients = Pool::new(64 << 20);
            let client = provider(&clients, config);
            let accept = async || {
                let mut incoming = listener.accept().await.unwrap();
                incoming.charge(&own);
                let request = incoming.request().await.unwrap();
                request.accept(ConnectParams::default(), Vec::new()).await
            };
            let connect = || client.connect(listener.local_addr(), ConnectParams::default());
            let (accepted, connected) = futures_util::join!(accept(), connect());
            let (_server, (qp, _)) = (accepted.unwrap(), connected.unwrap());
            assert_eq!(providers.in_use_bytes(), 0);
            let first = own.in_use_bytes();
            assert!(first > 0);
            // It also grows there.
            let nowhere = Segment { stag: verbs::Stag(1), offset: 0, len: 8 << 20 };
            let data = Bytes::from(vec![0; 8 << 20]).into();
            qp.post(Work::Write { id: 1, data, to: nowhere, signalled: true }).unwrap();
            rt::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(providers.in_use_bytes(), 0);
            drop((_server, qp));
            // If other connections of the peer have used up the share, no connection is made.
            let held: Vec<_> = std::iter::from_fn(|| own.try_alloc(4096)).collect();
            let (accepted, connected) = futures_util::join!(accept(), connect());
            assert!(matches!(accepted.err(), Some(ConnectError::TimedOut(_))));
            assert!(connected.is_err());
            drop(held);
        });
        assert_eq!((own.in_use_bytes(), providers.in_use_bytes()), (0, 0));
    }
}

/// A peer that neither reads nor closes does not keep a closed connection alive.
#[test]
fn closing_towards_a_dead_peer_ends_in_time() {
    let pool = Pool::new(64 << 20);
    Sim::new(1).run(async {
        let server = provider(&pool, Config::default());
        let listener = server.listen(any_port()).await.unwrap();
        let client = provider(&pool, Config::default());
        let accept = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            request.accept(ConnectParams::default(), Vec::new()).await.unwrap()
        };
        let connect = client.connect(listener.local_addr(), ConnectParams::default());
        let (_server, connected) = futures_util::join!(accept, connect);
        let (qp, _) = connected.unwrap();
        weft_machine::sim::cut_all(CutHow::Silent);
        let nowhere = Segment { stag: verbs::Stag(1), offset: 0, len: 8 << 20 };
        let data = Bytes::from(vec![0; 8 << 20]).into();
        qp.post(Work::Write { id: 1, data, to: nowhere, signalled: true }).unwrap();
        let start = rt::now();
        qp.close();
        let (completions, reason) = drain(&qp).await;
        assert_eq!(reason, Disconnect::Local);
        assert_eq!(completions.len(), 1);
        assert!(rt::now() - start <= Config::default().close_timeout * 2);
    });
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn a_peer_that_has_reset_before_it_is_accepted_keeps_its_address() {
    // The simulation never forgets an address: only a socket of the kernel loses its peer's.
    rt::block_on(async {
        let pool = Pool::new(16 << 20);
        let provider = provider(&pool, Config::default());
        let listener = provider.listen(any_port()).await.unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr()).unwrap();
        let addr = client.local_addr().unwrap();
        // Closing with a linger of zero is a reset.
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let incoming = listener.accept().await.unwrap();
        assert_eq!(incoming.peer(), Peer::Rdma(addr));
        assert!(incoming.request().await.is_err(), "the connection was reset");
        // The next peer is served.
        let connect = provider.connect(listener.local_addr(), ConnectParams::default());
        let accept = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            let peer = request.peer();
            (peer, request.accept(ConnectParams::default(), Vec::new()).await.unwrap())
        };
        let (connected, (peer, _served)) = futures_util::join!(connect, accept);
        let _connected = connected.unwrap();
        assert!(matches!(peer, Peer::Rdma(other) if other.ip() == addr.ip() && other != addr), "{peer}");
    })
    .unwrap();
}
