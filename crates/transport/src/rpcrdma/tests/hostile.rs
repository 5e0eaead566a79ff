//! Peers that break the rules.

use proptest::prelude::*;
use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_wire::rpcrdma::{Segment as Wire, WriteChunk};

use super::*;

/// A server, and a raw peer.
struct Raw {
    server: Rc<RpcRdma>,
    server_qp: Rc<FakeQp>,
    peer: Rc<FakeQp>,
    pool: Pool,
}

impl Raw {
    fn new() -> Raw {
        Raw::with_pool(64 << 20)
    }

    fn with_pool(bytes: usize) -> Raw {
        let (peer, server_qp) = pair(1024);
        let pool = Pool::new(bytes);
        let server = server_of(server_qp.clone(), &pool, Config::default(), PrivateData::default());
        peer.post_receives(64, &pool);
        Raw { server, server_qp, peer, pool }
    }

    fn call(&self, header: Header, stream: &[u8]) {
        let mut e = Encoder::default();
        header.emit(&mut e);
        self.peer.send_raw([&e.into_bytes()[..], stream].concat());
    }

    fn shown(&self) -> Option<Message> {
        self.server.recv().now_or_never().map(|m| m.unwrap().unwrap())
    }

    /// The server's own error reply.
    fn error(&self) -> Option<ErrorCode> {
        self.peer.received().iter().find_map(|m| match Header::parse(m.clone()) {
            Ok((Header { body: Body::Error(code), .. }, _)) => Some(code),
            _ => None,
        })
    }

    fn still_serves(&self) {
        self.call(msg(99, Chunks::default()), &words(&[99, 0]));
        assert_eq!(self.shown().expect("the next call").body, words(&[99, 0]));
    }

    /// A region of the peer.
    fn region(&self, content: &[u8], access: weft_rdma::Access) -> Wire {
        let buf = self.pool.buf_from(content).unwrap();
        chunks::to_wire(self.peer.register(buf, access).unwrap())
    }
}

fn msg(xid: u32, chunks: Chunks) -> Header {
    Header { xid, version: VERSION, credits: 1, body: Body::Msg(chunks) }
}

fn nomsg(xid: u32, chunks: Chunks) -> Header {
    Header { xid, version: VERSION, credits: 1, body: Body::NoMsg(chunks) }
}

fn reads(list: &[(u32, Wire)]) -> Chunks {
    let reads = list.iter().map(|&(position, target)| ReadSegment { position, target }).collect();
    Chunks { reads, ..Chunks::default() }
}

const NOWHERE: Wire = Wire { handle: 666, length: 100, offset: 0 };

#[test]
fn chunk_lists_that_break_a_rule_are_answered_and_the_connection_goes_on() {
    let huge = Wire { length: u32::MAX, ..NOWHERE };
    let body = words(&[7, 0]);
    let other_xid = words(&[8, 0]);
    let cases: Vec<(&str, Header, &[u8])> = vec![
        ("no position-zero chunk", nomsg(7, Chunks::default()), &[]),
        ("payload chunk alone", nomsg(7, reads(&[(8, NOWHERE)])), &[]),
        ("position-zero chunk beside a message", msg(7, reads(&[(0, NOWHERE)])), &body),
        ("odd position", msg(7, reads(&[(6, NOWHERE)])), &body),
        ("position behind the stream", msg(7, reads(&[(12, NOWHERE)])), &body),
        ("two payload chunks", msg(7, reads(&[(4, NOWHERE), (8, NOWHERE)])), &body),
        ("huge payload", msg(7, reads(&[(8, huge), (8, huge)])), &body),
        ("huge call", nomsg(7, reads(&[(0, huge)])), &[]),
        ("empty position-zero chunk", nomsg(7, reads(&[(0, Wire { length: 0, ..NOWHERE })])), &[]),
        ("other xid", msg(7, Chunks::default()), &other_xid),
        ("no message", msg(7, Chunks::default()), &[]),
        ("half an xid", msg(7, Chunks::default()), &body[..3]),
    ];
    for (what, header, stream) in cases {
        let raw = Raw::new();
        raw.call(header, stream);
        assert!(raw.shown().is_none(), "{what}");
        assert_eq!(raw.error(), Some(ErrorCode::Chunk), "{what}");
        raw.still_serves();
    }
}

#[test]
fn versions_and_procedures_of_others() {
    let raw = Raw::new();
    raw.peer.send_raw(words(&[7, 2, 1, 0, 0, 0, 0]));
    assert!(raw.shown().is_none());
    assert_eq!(raw.error(), Some(ErrorCode::Version { low: 1, high: 1 }));
    // RDMA_MSGP is refused; RDMA_DONE, RDMA_ERROR and messages that are too short are ignored.
    raw.peer.send_raw(words(&[7, 1, 1, 2, 0, 0, 0, 0, 0]));
    assert!(raw.shown().is_none());
    assert_eq!(raw.error(), Some(ErrorCode::Chunk));
    let errors: [&[u32]; 5] = [
        &[7, 1, 1, 4, 2],
        &[7, 1, 1, 4, 1, 1, 1],
        &[7, 2, 1, 4, 1, 2, 2],
        &[7, 1, 1, 4, 1],
        &[7, 1, 1, 4, 9, 0, 0],
    ];
    for ignored in [&[7, 1, 1, 3, 0, 0, 0][..], &[7, 1, 1], &[]].into_iter().chain(errors) {
        raw.peer.send_raw(words(ignored));
        assert!(raw.shown().is_none());
        assert_eq!(raw.error(), None, "{ignored:?}");
    }
    raw.still_serves();
}

#[test]
fn a_chunk_of_many_pieces_is_gathered_in_order() {
    let raw = Raw::new();
    let access = weft_rdma::Access::RemoteRead;
    let call = words(&[7, 0, 5]);
    let stream = [&call[..5], &call[5..]].map(|piece| (0, raw.region(piece, access)));
    // The padding may be a segment of its own (RFC 8166 3.4.5.2).
    let payload = [&b"he"[..], b"l", b"lo", b"\0\0\0"].map(|piece| (12, raw.region(piece, access)));
    raw.call(nomsg(7, reads(&[&stream[..], &payload[..]].concat())), &[]);
    let shown = raw.shown().unwrap();
    assert_eq!(shown.body, call);
    assert_eq!(shown.detached.unwrap().here().unwrap(), "hello\0\0\0");
}

#[test]
fn a_client_that_never_calls_holds_little_and_is_let_go_in_time() {
    Sim::new(4).run(async {
        let (peer, server_qp) = pair(1024);
        let pool = Pool::new(64 << 20);
        server_qp.post_receives(Receives::first(64) as usize, &pool);
        let deadline = rt::now() + FIRST_CALL_LIMIT;
        let (peer_says, config) = (PrivateData::default(), Config::default().normal());
        let server = super::super::server(server_qp, peer_says, config, pool.clone(), Some(deadline));
        assert!(pool.in_use_bytes() <= 16 << 10, "{}", pool.in_use_bytes());
        peer.post_receives(1, &Pool::new(0));
        // Messages that are no calls do not extend the deadline.
        peer.send_raw(words(&[7, 1, 1, 3, 0, 0, 0]));
        peer.send_raw(words(&[7, 2, 1, 0, 0, 0, 0]));
        assert!(matches!(server.recv().await, Err(Error::TimedOut("the first call"))));
        assert_eq!(rt::now(), deadline);
        drop((server, peer));
        assert_eq!(pool.in_use_bytes(), 0);
    });
}

/// A call in two segments of `len` bytes each; the peer has no such memory.
fn in_two_segments(xid: u32, len: u32) -> Header {
    let segment = |handle| (0, Wire { handle, length: len, offset: 0 });
    nomsg(xid, reads(&[segment(666), segment(667)]))
}

#[test]
fn calls_whose_reads_are_never_answered_hold_a_share_of_the_pool_and_end_in_time() {
    Sim::new(1).run(async {
        let raw = Raw::with_pool(64 << 20);
        let before = raw.pool.in_use_bytes();
        raw.server_qp.reads_wait.set(true);
        for xid in 0..127 {
            raw.call(in_two_segments(xid, 256 << 10), &[]);
            assert!(raw.shown().is_none());
        }
        let held = raw.pool.in_use_bytes() - before;
        let receives = 64 * 4096;
        assert!((1 << 20..=(16 << 20) + receives).contains(&held), "{held}");
        let begun = rt::now();
        assert!(matches!(raw.server.recv().await, Err(Error::TimedOut(_))));
        assert_eq!(rt::now().since(begun), responder::PULL_LIMIT);
        drop((raw.server, raw.peer, raw.server_qp));
        assert_eq!(raw.pool.in_use_bytes(), 0);
    });
}

#[test]
fn calls_beyond_the_share_are_pulled_when_those_before_them_are_here() {
    Sim::new(3).run(async {
        let raw = Raw::new();
        raw.server_qp.reads_wait.set(true);
        let access = weft_rdma::Access::RemoteRead;
        let call = |xid| [words(&[xid, 0]).to_vec(), vec![5; (1 << 20) - 8]].concat();
        for xid in 0..12 {
            let halves =
                call(xid).chunks(512 << 10).map(|half| (0, raw.region(half, access))).collect::<Vec<_>>();
            raw.call(nomsg(xid, reads(&halves)), &[]);
            assert!(raw.shown().is_none());
        }
        // Two MiB each, of the sixteen that a connection may hold.
        assert!(raw.shown().is_none());
        raw.server_qp.answer_reads();
        assert_eq!(raw.server_qp.did().len(), 2 * 8);
        for xid in 0..12 {
            assert_eq!(raw.shown().expect("a call").body, call(xid));
        }
    });
}

#[test]
fn a_call_waits_for_all_of_its_buffers_at_once() {
    Sim::new(2).run(async {
        let raw = Raw::with_pool(16 << 20);
        let access = weft_rdma::Access::RemoteRead;
        let call = [words(&[7, 0]).to_vec(), vec![5; 512 << 10]].concat();
        let halves = [&call[..256 << 10], &call[256 << 10..]].map(|half| (0, raw.region(half, access)));
        // One size class is missing: 1 MiB for the whole, 256 and 512 KiB for the Reads.
        let sum = (1 << 20) + (256 << 10) + (512 << 10);
        let mut taken: Vec<Buf> = Vec::new();
        while raw.pool.limit_bytes() - raw.pool.in_use_bytes() >= sum {
            taken.extend(raw.pool.try_alloc(4096));
        }
        let full = raw.pool.in_use_bytes();
        raw.call(nomsg(7, reads(&halves)), &[]);
        for _ in 0..3 {
            // Each of these is one poll, which returns.
            assert!(raw.shown().is_none());
            assert_eq!(raw.pool.in_use_bytes(), full);
        }
        let shown = rt::timeout(std::time::Duration::from_secs(9), async {
            let waiting = raw.server.recv();
            taken.clear();
            waiting.await
        });
        assert_eq!(shown.await.unwrap().unwrap().unwrap().body, call);
    });
}

#[test]
fn a_call_beyond_its_connections_share_is_refused_before_anything_is_allocated() {
    let raw = Raw::with_pool(16 << 20);
    // Many small segments: each takes a buffer, in addition to the whole.
    let segment = |_| (0, Wire { handle: 666, length: 6200, offset: 0 });
    let payload = |_| (8, Wire { handle: 666, length: 33_000, offset: 0 });
    let list: Vec<_> = (0..130).map(segment).chain((0..30).map(payload)).collect();
    raw.call(nomsg(7, reads(&list)), &[]);
    assert!(raw.shown().is_none());
    assert_eq!(raw.error(), Some(ErrorCode::Chunk));
    assert!(raw.server_qp.did().iter().all(|did| !matches!(did, Did::Read { .. })));
    raw.still_serves();
}

#[test]
fn a_pulled_call_with_another_xid_is_refused() {
    let raw = Raw::new();
    let region = raw.region(&words(&[8, 0]), weft_rdma::Access::RemoteRead);
    raw.call(nomsg(7, reads(&[(0, region)])), &[]);
    assert!(raw.shown().is_none());
    assert_eq!(raw.error(), Some(ErrorCode::Chunk));
    raw.still_serves();
}

#[test]
fn memory_that_is_not_there_ends_the_connection_only() {
    let raw = Raw::new();
    raw.call(msg(7, reads(&[(8, NOWHERE)])), &words(&[7, 0]));
    assert!(matches!(raw.server.recv().now_or_never(), Some(Err(_))));
    let raw = Raw::new();
    raw.call(msg(7, Chunks { writes: vec![vec![NOWHERE]], ..Chunks::default() }), &words(&[7, 0]));
    let ticket = raw.shown().unwrap().ticket;
    let parts = vec![Part::Bytes(words(&[7, 5])), payload(b"hello", To::Ticket)];
    drop(raw.server.send(Outgoing { parts, ticket, ..Outgoing::default() }));
    assert!(matches!(raw.server.recv().now_or_never(), Some(Err(_))));
}

#[test]
fn a_write_chunk_of_many_segments_is_filled_in_order() {
    let raw = Raw::new();
    let access = weft_rdma::Access::RemoteWrite;
    let writes: Vec<WriteChunk> =
        vec![(0..40).map(|_| raw.region(&[0xa5; 3], access)).collect(), vec![raw.region(&[0xa5; 3], access)]];
    raw.call(msg(7, Chunks { writes: writes.clone(), ..Chunks::default() }), &words(&[7, 0]));
    let ticket = raw.shown().unwrap().ticket;
    let content: Vec<u8> = (0..100).collect();
    let parts = vec![Part::Bytes(words(&[7, 100])), payload(&content, To::Ticket)];
    drop(raw.server.send(Outgoing { parts, ticket, ..Outgoing::default() }));
    let did = raw.server_qp.did();
    let written: Vec<u8> = did
        .iter()
        .flat_map(|did| match did {
            Did::Write { bytes, .. } => bytes.clone(),
            _ => Vec::new(),
        })
        .collect();
    assert_eq!(written, content);
    // 34 segments: a queue of work without any signal would never drain.
    assert!(did.iter().any(|did| matches!(did, Did::Write { signalled: true, .. })));
    let Some(Did::Send { bytes, .. }) = did.last() else { panic!() };
    let (chunks, _) = chunks_of(header(bytes).0);
    let lengths: Vec<u32> = chunks.writes[0].iter().map(|s| s.length).collect();
    assert_eq!(lengths[..34], [[3; 33].as_slice(), &[1]].concat());
    assert_eq!(lengths[34..], [0; 6]);
    // The second chunk is returned, unused.
    assert_eq!(chunks.writes[1].len(), 1);
    assert_eq!(chunks.writes[1][0].length, 0);
}

/// A client, and a raw peer that plays the server.
struct RawServer {
    client: Rc<RpcRdma>,
    client_qp: Rc<FakeQp>,
    peer: Rc<FakeQp>,
    pool: Pool,
}

impl RawServer {
    fn new() -> RawServer {
        let (client_qp, peer) = pair(1024);
        let pool = Pool::new(64 << 20);
        peer.post_receives(64, &pool);
        let answer = Config::default().private_data().emit();
        let client = super::super::client(client_qp.clone(), &answer, Config::default(), pool.clone());
        let client = client.now_or_never().unwrap().unwrap();
        RawServer { client, client_qp, peer, pool }
    }

    /// Sends call 7 with a sink of 100 bytes and room for a long reply.
    fn call(&self) -> Chunks {
        let mut sink = self.pool.try_alloc(100).unwrap();
        sink.set_len(100);
        let parts = bytes(words(&[7]));
        drop(self.client.send(Outgoing {
            parts,
            sink: Some(sink),
            longest_reply: 10_000,
            ..Outgoing::default()
        }));
        chunks_of(header(&self.client_qp.sent()[0]).0).0
    }

    fn reply(&self, header: Header, stream: &[u8]) {
        let mut e = Encoder::default();
        header.emit(&mut e);
        self.peer.send_raw([&e.into_bytes()[..], stream].concat());
    }

    fn outcome(&self) -> Option<Result<Option<Message>, Error>> {
        self.client.recv().now_or_never()
    }
}

#[test]
fn a_reply_that_claims_more_than_was_offered_ends_the_connection() {
    let claim = |length| vec![Wire { length, ..NOWHERE }];
    let stretch = Chunks { writes: vec![claim(101)], ..Chunks::default() };
    let many = Chunks { writes: vec![[claim(u32::MAX), claim(u32::MAX)].concat()], ..Chunks::default() };
    let long = Chunks { reply: Some(claim(10_001)), ..Chunks::default() };
    let other_xid = words(&[8]);
    let body = words(&[7]);
    let cases = [
        (msg(7, stretch), &body[..]),
        (msg(7, many), &body),
        (nomsg(7, long), &[]),
        (nomsg(7, Chunks::default()), &[]),
        (msg(7, Chunks::default()), &other_xid),
    ];
    for (header, stream) in cases {
        let raw = RawServer::new();
        raw.call();
        raw.reply(header.clone(), stream);
        assert!(matches!(raw.outcome(), Some(Err(Error::Violation(_)))), "{header:?}");
        assert_eq!(raw.client_qp.regions(), 0);
    }
}

#[test]
fn what_is_no_reply_to_us_is_discarded() {
    let raw = RawServer::new();
    raw.call();
    raw.reply(msg(8, Chunks::default()), &words(&[8]));
    raw.peer.send_raw(words(&[7, 2, 1, 0, 0, 0, 0]));
    raw.peer.send_raw(words(&[7, 1, 1, 2, 0, 0, 0]));
    raw.peer.send_raw(words(&[7]));
    raw.reply(Header { body: Body::Done, ..msg(7, Chunks::default()) }, &[0; 12]);
    assert!(raw.outcome().is_none());
    // A long reply in the room that was offered, used in part; the sink is not used.
    let chunks = raw.client_qp.regions();
    assert_eq!(chunks, 2);
    raw.reply(msg(7, Chunks::default()), &words(&[7, 1]));
    let reply = raw.outcome().unwrap().unwrap().unwrap();
    assert_eq!(reply.body, words(&[7, 1]));
    assert_eq!(reply.detached.unwrap().here().unwrap(), "");
    assert_eq!(raw.client_qp.regions(), 0);
}

#[test]
fn a_grant_of_zero_is_taken_for_one() {
    let raw = RawServer::new();
    for xid in 1..4 {
        drop(raw.client.send(Outgoing::bytes(words(&[xid]))));
    }
    for xid in 1..4 {
        assert_eq!(raw.client_qp.sent().len(), 1, "before reply {xid}");
        raw.reply(Header { credits: 0, ..msg(xid, Chunks::default()) }, &words(&[xid]));
        assert_eq!(raw.outcome().unwrap().unwrap().unwrap().body, words(&[xid]));
    }
}

#[test]
fn a_late_reply_to_a_call_that_was_given_up_finds_its_memory_in_place() {
    let raw = RawServer::new();
    let chunks = raw.call();
    // Nobody waits any more; the region stays until the reply shows that the server is done with it.
    assert_eq!(raw.client_qp.regions(), 2);
    let target = chunks::from_wire(chunks.writes[0][0]);
    let data = Bytes::from_static(b"late").into();
    raw.peer.post(Work::Write { id: 1, data, to: Segment { len: 4, ..target }, signalled: false }).unwrap();
    let used = Chunks { writes: vec![vec![Wire { length: 4, ..chunks.writes[0][0] }]], ..Chunks::default() };
    raw.reply(msg(7, used), &words(&[7]));
    assert_eq!(raw.outcome().unwrap().unwrap().unwrap().detached.unwrap().here().unwrap(), "late");
    assert_eq!(raw.client_qp.regions(), 0);
    assert_eq!(target.stag, Stag(chunks.writes[0][0].handle));
}

fn sample() -> Vec<u8> {
    let chunks = Chunks {
        reads: vec![ReadSegment { position: 8, target: NOWHERE }],
        writes: vec![vec![NOWHERE, NOWHERE]],
        reply: Some(vec![NOWHERE]),
    };
    let mut e = Encoder::default();
    msg(7, chunks).emit(&mut e);
    [&e.into_bytes()[..], &words(&[7, 0])].concat()
}

#[test]
fn every_truncation_is_survived_by_both_roles() {
    for len in 0..sample().len() {
        let raw = Raw::new();
        raw.peer.send_raw(sample()[..len].to_vec());
        drop(raw.server.recv().now_or_never());
        let raw = RawServer::new();
        raw.call();
        raw.peer.send_raw(sample()[..len].to_vec());
        drop(raw.outcome());
    }
}

proptest! {
    #[test]
    fn mutations_are_survived_by_both_roles(
        flips in proptest::collection::vec((0..200_usize, 1..=255_u8), 1..4),
    ) {
        let mut message = sample();
        for (at, flip) in flips {
            let at = at % message.len();
            message[at] ^= flip;
        }
        let raw = Raw::new();
        raw.peer.send_raw(message.clone());
        if let Some(Ok(Some(shown))) = raw.server.recv().now_or_never() {
            let parts = vec![Part::Bytes(words(&[7, 5])), payload(b"hello", To::Ticket)];
            drop(raw.server.send(Outgoing { parts, ticket: shown.ticket, ..Outgoing::default() }));
            drop(raw.server.recv().now_or_never());
        }
        let raw = RawServer::new();
        raw.call();
        raw.peer.send_raw(message);
        drop(raw.outcome());
    }
}

#[test]
fn a_server_calls_its_client_and_takes_no_more_answers_than_it_asked_for() {
    // RFC 8167 4.1, 5.1: the header does not show the direction, the message does.
    let raw = Raw::new();
    let ask = |xid| raw.server.send(Outgoing::bytes(words(&[xid, 0, 2])));
    let answer = |xid, credits| {
        let header = Header { credits, ..msg(xid, Chunks::default()) };
        raw.call(header, &words(&[xid, 1, 0]));
    };
    let asked = || raw.peer.received();
    for xid in 50..56 {
        drop(ask(xid));
    }
    assert!(raw.shown().is_none());
    // One at a time until the client announces how many it accepts.
    let first = asked();
    assert_eq!(first.len(), 1);
    let (head, stream) = header(&first[0]);
    assert_eq!((head.xid, head.body, stream), (50, Body::Msg(Chunks::default()), words(&[50, 0, 2])));
    answer(50, 3);
    assert_eq!(raw.shown().expect("the answer").body, words(&[50, 1, 0]));
    assert_eq!(asked().len(), 3);
    // Its own calls are carried out meanwhile, as many as it has credits for.
    raw.still_serves();
    // A reply to no call is discarded; a call is answered once.
    answer(50, 9);
    answer(77, 9);
    assert!(raw.shown().is_none());
    answer(52, 0);
    assert_eq!(raw.shown().expect("the answer").body, words(&[52, 1, 0]));
    // A credit of zero means one: two are still outstanding.
    assert_eq!(asked().len(), 0);
    raw.still_serves();
}
