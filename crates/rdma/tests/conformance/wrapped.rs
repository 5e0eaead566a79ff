//! What the layers add, beyond preserving the contract.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::SocketAddr;
use std::rc::Rc;

use weft_machine::{Pool, rt};
use weft_rdma::wrap::Wrapped;
use weft_rdma::wrap::fault::{Fault, Faults};
use weft_rdma::wrap::pcap::{Capture, Pcap};
use weft_rdma::wrap::trace::{Counts, Trace};
use weft_rdma::{Access, ConnectParams, Disconnect, Done, PostError, Provider, Segment, Work, iwarp};
use weft_wire::ddp::Header;
use weft_wire::mpa::{CRC_LEN, Crc, LENGTH_LEN};
use weft_wire::rdmap::{Opcode, ReadRequest};

use crate::net::{End, part, pattern};

fn plain(pool: &Pool) -> Rc<dyn Provider> {
    Rc::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default()))
}

/// A wrapped client and a bare server, with receive buffers 0..n at the server.
async fn connect(client: &dyn Provider, server: &dyn Provider, pool: &Pool, n: u64) -> (End, End) {
    let listener = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let accept = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let recvs = (0..n).map(|id| Work::Recv { id, buf: pool.try_alloc(4096).unwrap() }).collect();
        request.accept(ConnectParams::default(), recvs).await.unwrap()
    };
    let connect = client.connect(listener.local_addr(), ConnectParams::default());
    let (server, client) = futures_util::join!(accept, connect);
    let end = |qp| End::new(qp, pool.clone(), crate::software().unwrap());
    (end(client.unwrap().0), end(server))
}

#[test]
fn trace_counts_by_kind() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let trace = Trace::default();
        let wrapped = Wrapped::new(plain(&pool), trace.clone());
        let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 2).await;
        client.send(1, b"hello");
        server.received(0).await;
        let sink = server.region(100, Access::RemoteWrite);
        client.write(2, pattern(1, 100), sink);
        client.write(3, pattern(1, 50), part(sink, 0, 50));
        client.recv(4, 100);
        let into = pool.try_alloc(1).unwrap();
        let long = Work::Read { id: 5, from: Segment { len: into.capacity() as u32 + 1, ..sink }, into };
        assert!(matches!(client.try_post(long), Err(PostError::Misuse(_))));
        let own = client.region(10, Access::RemoteRead);
        client.qp.invalidate(own.stag).unwrap();
        client.qp.close();
        client.end().await;
        let expected = Counts {
            opened: 1,
            ended: 1,
            sends: 1,
            recvs: 1,
            writes: 2,
            refused: 1,
            succeeded: 3,
            failed: 1,
            registered: 1,
            invalidated: 1,
            ..Counts::default()
        };
        assert_eq!(trace.counts(), expected);
    })
    .unwrap();
}

#[test]
fn refusals_come_from_the_seed_and_lose_nothing() {
    let run = |seed| {
        rt::block_on(async {
            let pool = Pool::new(64 << 20);
            let faults = Faults { refuse_one_in: 3, ..Faults::default() };
            let wrapped = Wrapped::new(plain(&pool), Fault::new(seed, faults));
            let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 50).await;
            let mut refused = Vec::new();
            for id in 0..50 {
                let data = vec![pattern(id, 100).into()];
                let mut work = Work::Send { id, data, invalidate: None, solicited: false, signalled: true };
                while let Err((e, back)) = client.qp.post(work) {
                    assert!(matches!(e, PostError::QueueFull));
                    refused.push(id);
                    work = back;
                }
            }
            for id in 0..50 {
                assert!(server.received(id).await[..] == pattern(id, 100));
            }
            refused
        })
        .unwrap()
    };
    assert!(run(1).len() > 5);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_cut_ends_the_connection_with_everything_completed() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let faults = Faults { cut_one_in: 10, ..Faults::default() };
        let wrapped = Wrapped::new(plain(&pool), Fault::new(7, faults));
        let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 1000).await;
        let mut posted = 0;
        for id in 0..1000 {
            let data = vec![pattern(id, 100).into()];
            let work = Work::Send { id, data, invalidate: None, solicited: false, signalled: true };
            match client.try_post(work) {
                Ok(()) => posted += 1,
                Err(PostError::Closed) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!((1..1000).contains(&posted), "{posted} posted");
        let (completions, reason) = client.end().await;
        assert_eq!(reason, Disconnect::Local);
        assert!(completions.iter().map(|c| c.id).eq(0..posted));
        let (received, reason) = server.end().await;
        assert_eq!(reason, Disconnect::Peer);
        let arrived = received.iter().filter(|c| matches!(c.result, Ok(Done::Received { .. }))).count();
        let sent = completions.iter().filter(|c| c.result.is_ok()).count();
        assert_eq!(arrived, sent);
        assert_eq!(received.len(), 1000);
    })
    .unwrap();
}

/// The TCP payloads of a capture, in order: the source port of each, and its bytes.
fn packets(mut file: &File) -> Vec<(u16, Vec<u8>)> {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_3c4d, 101));
    let (mut at, mut found) = (24, Vec::new());
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        assert_eq!(word(at + 12) as usize, len, "all of a packet is there");
        let packet = &bytes[at + 16..at + 16 + len];
        assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), len);
        let tcp = &packet[20..];
        found.push((u16::from_be_bytes([tcp[0], tcp[1]]), tcp[20..].to_vec()));
        at += 16 + len;
    }
    found.retain(|(_, data)| !data.is_empty());
    found
}

/// The content of an FPDU, after its CRC was checked.
fn opened(fpdu: &[u8]) -> (Header, Vec<u8>) {
    let (body, crc) = fpdu.split_at(fpdu.len() - CRC_LEN);
    let mut sum = Crc::default();
    sum.update(body);
    assert_eq!(sum.field(), crc);
    let ulpdu = &body[LENGTH_LEN..][..usize::from(u16::from_be_bytes([body[0], body[1]]))];
    let header = Header::parse(ulpdu).unwrap();
    (header, ulpdu[header.len()..].to_vec())
}

#[test]
fn a_capture_shows_both_directions_as_they_would_be_on_the_wire() {
    let file = tempfile::tempfile().unwrap();
    let capture = Capture::new(file.try_clone().unwrap(), 1 << 20).unwrap();
    let server_port = rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let wrapped = Wrapped::new(plain(&pool), Pcap::new(capture));
        let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 2).await;
        client.recv(9, 4096);
        let sink = server.region(40_000, Access::RemoteWrite);
        client.write(1, pattern(1, 40_000), sink);
        client.send(2, b"hello");
        server.received(0).await;
        server.send(3, b"good day");
        client.received(9).await;
        let source = server.region(100, Access::RemoteRead);
        client.read(4, source);
        client.completion(4).await;
        client.qp.close();
        client.end().await;
        client.qp.peer().addr().unwrap().port()
    })
    .unwrap();
    let packets = packets(&file);
    assert!(packets[0].0 != server_port && packets[0].1.starts_with(b"MPA ID Req Frame"));
    assert!(packets[1].0 == server_port && packets[1].1.starts_with(b"MPA ID Rep Frame"));
    let messages: Vec<_> = packets[2..]
        .iter()
        .map(|(port, fpdu)| {
            let (header, data) = opened(fpdu);
            (*port == server_port, Opcode::parse(header.control()).unwrap(), header.last(), data)
        })
        .collect();
    let written: Vec<u8> = messages[..3].iter().flat_map(|(_, _, _, data)| data.clone()).collect();
    assert!(written == pattern(1, 40_000));
    assert!(messages[..3].iter().all(|(server, opcode, ..)| !server && *opcode == Opcode::Write));
    assert!(messages[..3].iter().map(|(_, _, last, _)| *last).eq([false, false, true]));
    assert_eq!(messages[3], (false, Opcode::Send, true, b"hello".to_vec()));
    assert_eq!(messages[4], (true, Opcode::Send, true, b"good day".to_vec()));
    let (server, opcode, _, request) = &messages[5];
    assert_eq!((*server, *opcode), (false, Opcode::ReadRequest));
    assert_eq!(ReadRequest::parse(request).unwrap().size, 100);
    let (server, opcode, last, response) = &messages[6];
    assert_eq!((*server, *opcode, *last, response.len()), (true, Opcode::ReadResponse, true, 100));
    assert_eq!(messages.len(), 7);
}

#[test]
fn a_capture_ends_at_its_limit_with_a_whole_packet_and_the_connection_goes_on() {
    let file = tempfile::tempfile().unwrap();
    let capture = Capture::new(file.try_clone().unwrap(), 10_000).unwrap();
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let wrapped = Wrapped::new(plain(&pool), Pcap::new(capture));
        let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 20).await;
        for id in 0..20 {
            client.send(id, &pattern(id, 1000));
            assert!(server.received(id).await[..] == pattern(id, 1000));
        }
    })
    .unwrap();
    assert!((8_000..=10_000).contains(&file.metadata().unwrap().len()));
    assert_eq!(packets(&file).len(), 2 + 8);
}
