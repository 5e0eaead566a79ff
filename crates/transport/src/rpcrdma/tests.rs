//! Both roles over an in-memory queue pair: how messages are sent, who holds which memory, and what hostile peers can
//! do.

mod fake;
mod hostile;

use futures_util::FutureExt;
use weft_machine::{Buf, File, FileRange, Payload, buf};
use weft_rdma::{Segment, Stag};
use weft_wire::rpcrdma::{Body, Chunks, ErrorCode, Header, ReadSegment, VERSION};
use weft_wire::xdr::Encoder;

use self::fake::{Did, FakeQp, pair};
use super::*;
use crate::channel::{Channel, Detached, Error, Message, Outgoing, Part, To};

struct Pair {
    client: Rc<RpcRdma>,
    server: Rc<RpcRdma>,
    client_qp: Rc<FakeQp>,
    server_qp: Rc<FakeQp>,
    client_pool: Pool,
    server_pool: Pool,
}

fn server_of(qp: Rc<FakeQp>, pool: &Pool, config: Config, peer: PrivateData) -> Rc<RpcRdma> {
    let config = config.normal();
    qp.post_receives(Receives::first(config.credits) as usize, pool);
    server(qp, peer, config, pool.clone(), None)
}

impl Pair {
    fn new(client: Config, server: Config) -> Pair {
        Pair::with_queue(client, server, 1024)
    }

    fn with_queue(client: Config, server: Config, max_send_work: usize) -> Pair {
        Pair::of(pair(max_send_work), client, server)
    }

    /// The server reads into files, and the client lends what is in its pool.
    fn reaching() -> Pair {
        let (client_qp, server_qp) = pair(1024);
        server_qp.reaches.replace(Some(Pool::new(0)));
        let pair = Pair::of((client_qp, server_qp), Config::default(), Config::default());
        pair.client_qp.reaches.replace(Some(pair.client_pool.clone()));
        pair
    }

    fn of((client_qp, server_qp): (Rc<FakeQp>, Rc<FakeQp>), client: Config, server: Config) -> Pair {
        let (client_pool, server_pool) = (Pool::new(64 << 20), Pool::new(64 << 20));
        let private = client.normal().private_data();
        let answer = server.normal().private_data().emit();
        let server = server_of(server_qp.clone(), &server_pool, server, private);
        let client = super::client(client_qp.clone(), &answer, client.normal(), client_pool.clone());
        let client = client.now_or_never().unwrap().unwrap();
        Pair { client, server, client_qp, server_qp, client_pool, server_pool }
    }

    fn default() -> Pair {
        Pair::new(Config::default(), Config::default())
    }

    fn call(&self, call: Outgoing) {
        drop(self.client.send(call));
    }

    fn at_server(&self) -> Message {
        self.server.recv().now_or_never().expect("a call").unwrap().unwrap()
    }

    fn at_client(&self) -> Message {
        self.client.recv().now_or_never().expect("a reply").unwrap().unwrap()
    }

    fn reply(&self, ticket: crate::channel::Ticket, parts: Vec<Part>) {
        drop(self.server.send(Outgoing { parts, ticket, ..Outgoing::default() }));
    }

    fn sink(&self, len: usize) -> Option<Buf> {
        let mut buf = self.client_pool.try_alloc(len).unwrap();
        buf.room().fill(0xa5);
        buf.set_len(len);
        Some(buf)
    }
}

fn words(words: &[u32]) -> Bytes {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn bytes(part: Bytes) -> Vec<Part> {
    vec![Part::Bytes(part)]
}

fn payload(content: &[u8], to: To) -> Part {
    Part::Payload { data: Bytes::copy_from_slice(content).into(), to }
}

fn header(message: &[u8]) -> (Header, Bytes) {
    Header::parse(Bytes::copy_from_slice(message)).unwrap()
}

fn chunks_of(header: Header) -> (Chunks, bool) {
    match header.body {
        Body::Msg(chunks) => (chunks, false),
        Body::NoMsg(chunks) => (chunks, true),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_short_call_and_its_reply_are_one_send_each() {
    let pair = Pair::default();
    pair.call(Outgoing::bytes(words(&[7, 0, 2])));
    let call = pair.at_server();
    assert_eq!(call.body, words(&[7, 0, 2]));
    assert!(call.detached.is_none());
    pair.reply(call.ticket, bytes(words(&[7, 1, 0])));
    assert_eq!(pair.at_client().body, words(&[7, 1, 0]));
    assert_eq!((pair.client_qp.did().len(), pair.server_qp.did().len()), (1, 1));
}

#[test]
fn credits_grow_with_the_clients_use_of_them_up_to_all() {
    let pair = Pair::default();
    let mut granted = Vec::new();
    for round in 0..8 {
        for xid in 0..64 {
            pair.call(Outgoing::bytes(words(&[round * 64 + xid, 0])));
        }
        for _ in 0..64 {
            // The client sends all that it may before the server takes any.
            assert!(pair.client.recv().now_or_never().is_none());
            let call = pair.at_server();
            let xid = u32::from_be_bytes(*call.body.first_chunk().unwrap());
            pair.reply(call.ticket, bytes(words(&[xid, 1])));
            granted.extend(pair.server_qp.sent().iter().map(|sent| header(sent).0.credits));
            assert_eq!(pair.at_client().body, words(&[xid, 1]));
        }
    }
    granted.dedup();
    assert_eq!(granted, [4, 8, 16, 32, 64]);
}

#[test]
fn a_grant_is_never_zero() {
    // Linux reads a grant of 0 as 1: one RPC at a time.
    let pair = Pair::new(Config::default(), Config { credits: 0, ..Config::default() });
    pair.call(Outgoing::bytes(words(&[7, 0])));
    let call = pair.at_server();
    pair.reply(call.ticket, bytes(words(&[7, 1])));
    assert_eq!(header(&pair.server_qp.sent()[0]).0.credits, 1);
    // An error reply grants credits, too.
    pair.client_qp.send_raw(words(&[7, 9, 1, 0, 0, 0, 0]));
    drop(pair.server.recv().now_or_never());
    assert_eq!(header(&pair.server_qp.sent()[0]).0.credits, 1);
}

#[test]
fn the_client_keeps_to_what_is_granted() {
    let pair = Pair::new(Config::default(), Config { credits: 3, ..Config::default() });
    (0..10).for_each(|xid| pair.call(Outgoing::bytes(words(&[xid, 0]))));
    // Before the first reply only one call may be assumed.
    let mut sent = pair.client_qp.sent().len();
    assert_eq!(sent, 1);
    for answered in 1..=10 {
        let Message { body, ticket, .. } = pair.at_server();
        pair.reply(ticket, bytes(body));
        pair.at_client();
        sent += pair.client_qp.sent().len();
        assert_eq!(sent, 10.min(answered + 3));
    }
}

#[test]
fn a_peer_that_does_not_keep_to_its_credits_is_cut_off() {
    let pair = Pair::new(Config::default(), Config { credits: 4, ..Config::default() });
    // Each is delivered, so that its receive buffer is posted again; none is answered.
    for xid in 0..8 {
        pair.client_qp.send_raw([header_bytes(xid), words(&[xid])].concat());
        assert_eq!(pair.at_server().body, words(&[xid]));
    }
    pair.client_qp.send_raw([header_bytes(9), words(&[9])].concat());
    assert!(matches!(pair.server.recv().now_or_never(), Some(Err(Error::Violation(_)))));
}

fn header_bytes(xid: u32) -> Bytes {
    words(&[xid, 1, 64, 0, 0, 0, 0])
}

#[test]
fn a_result_goes_into_the_write_chunk_without_its_fill() {
    let pair = Pair::default();
    let sink = pair.sink(4096);
    pair.call(Outgoing { parts: bytes(words(&[7, 0])), sink, ..Outgoing::default() });
    let call = pair.at_server();
    let parts = vec![Part::Bytes(words(&[7, 1, 5])), payload(b"hello", To::Ticket), Part::Bytes(words(&[9]))];
    pair.reply(call.ticket, parts);
    let did = pair.server_qp.did();
    let [Did::Write { bytes, signalled: false, .. }, Did::Send { bytes: message, .. }] = &did[..] else {
        panic!("{did:?}")
    };
    assert_eq!(bytes, b"hello");
    let (reply, stream) = header(message);
    assert_eq!(stream, words(&[7, 1, 5, 9]));
    assert_eq!(chunks_of(reply).0.writes[0][0].length, 5);
    let reply = pair.at_client();
    assert_eq!(reply.body, words(&[7, 1, 5, 9]));
    assert_eq!(reply.detached.unwrap().here().unwrap(), "hello");
    assert_eq!(pair.client_qp.regions(), 0);
}

#[test]
fn a_file_range_is_written_by_the_provider_or_loaded_when_it_travels_inline() {
    let file = File::in_memory("range").unwrap();
    file.write_at(0, &[Bytes::from_static(b"0123456789")]).now_or_never().unwrap().unwrap();
    let range = || Part::Payload {
        data: Payload::File(FileRange { file: file.clone(), offset: 2, len: 5 }),
        to: To::Ticket,
    };
    let pair = Pair::default();
    let before = buf::copies();
    let sink = pair.sink(100);
    pair.call(Outgoing { parts: bytes(words(&[7, 0])), sink, ..Outgoing::default() });
    pair.reply(pair.at_server().ticket, vec![Part::Bytes(words(&[7, 5])), range()]);
    assert_eq!(pair.at_client().detached.unwrap().here().unwrap(), "23456");
    pair.call(Outgoing::bytes(words(&[8, 0])));
    pair.reply(pair.at_server().ticket, vec![Part::Bytes(words(&[8, 5])), range()]);
    let reply = pair.at_client();
    assert_eq!(reply.body[..], [&words(&[8, 5])[..], b"23456\0\0\0"].concat());
    assert!(reply.detached.is_none());
    assert_eq!(buf::copies(), before);
}

#[test]
fn a_sink_that_is_not_used_comes_back_empty() {
    let pair = Pair::default();
    let sink = pair.sink(4096);
    pair.call(Outgoing { parts: bytes(words(&[7, 0])), sink, ..Outgoing::default() });
    pair.reply(pair.at_server().ticket, bytes(words(&[7, 1, 70])));
    // RFC 8166 4.3.2.2: the chunk is returned with its segments empty.
    let (reply, _) = header(&pair.server_qp.sent()[0]);
    let (chunks, _) = chunks_of(reply);
    assert_eq!(chunks.writes.len(), 1);
    assert_eq!(chunks.writes[0][0].length, 0);
    assert_eq!(pair.at_client().detached.unwrap().here().unwrap(), "");
}

#[test]
fn a_large_payload_of_a_call_is_pulled_and_a_small_one_is_not() {
    let pair = Pair::default();
    for (xid, len, pulled) in [(1, 100, false), (2, 3000, false), (3, 5000, true), (4, 1 << 20, true)] {
        let content: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let head = words(&[xid, 0, len as u32]);
        let mut source = pair.client_pool.try_alloc(len).unwrap();
        source.set_len(len);
        source.copy_from_slice(&content);
        let before = buf::copies();
        pair.call(Outgoing { parts: bytes(head.clone()), source: Some(source), ..Outgoing::default() });
        let call = pair.at_server();
        assert_eq!(buf::copies(), before, "a source is never copied");
        let sent = pair.client_qp.sent();
        let (chunks, _) = chunks_of(header(&sent[0]).0);
        if pulled {
            assert_eq!(chunks.reads[0].position as usize, head.len());
            assert_eq!(chunks.reads[0].target.length as usize, len);
            assert_eq!(call.body, head);
            assert!(call.detached.unwrap().here().unwrap() == content);
        } else {
            assert!(chunks.reads.is_empty());
            assert!(call.body[..head.len()] == head && call.body[head.len()..][..len] == content);
            assert_eq!(call.body.len() % 4, 0);
            assert!(call.detached.is_none());
        }
        pair.reply(call.ticket, bytes(words(&[xid])));
        pair.at_client();
        assert_eq!(pair.client_qp.regions(), 0);
    }
}

/// A call with this payload, from a client that keeps the bytes.
fn kept(pair: &Pair, xid: u32, content: &[u8]) -> (Bytes, Outgoing) {
    let content = pair.client_pool.buf_from(content).unwrap().freeze();
    let data = content.clone().into();
    let head = words(&[xid, 0, content.len() as u32]);
    let parts = vec![Part::Bytes(head), Part::Payload { data, to: To::Inline }];
    (content, Outgoing { parts, ..Outgoing::default() })
}

#[test]
fn payload_is_lent_left_and_placed_without_a_copy_of_ours() {
    let pair = Pair::reaching();
    let file = File::in_memory("placed").unwrap();
    for (xid, len) in [(1, 5000), (2, 1 << 20)] {
        let content: Vec<u8> = (0..len).map(|n| n as u8 ^ xid as u8).collect();
        let (content, call) = kept(&pair, xid, &content);
        let before = buf::copies();
        pair.call(call);
        let call = pair.at_server();
        let Some(Detached::There(there)) = call.detached else { panic!("{:?}", call.detached) };
        assert_eq!(there.len(), len);
        there.fill(&file, 10, len - 1).expect("it goes so").unwrap();
        assert_eq!(buf::copies(), before);
        assert!(!pair.server_qp.did().iter().any(|did| matches!(did, Did::Read { .. })));
        let range = FileRange { file: file.clone(), offset: 10, len: len - 1 };
        let placed = Payload::File(range).into_chain(&pair.server_pool).now_or_never().unwrap().unwrap();
        assert!(placed.concat() == content[..len - 1]);
        pair.reply(call.ticket, bytes(words(&[xid])));
        pair.at_client();
        assert_eq!(pair.client_qp.regions(), 0);
        assert!(there.fill(&file, 0, len).is_none(), "it is the client's again");
    }
}

#[test]
fn payload_that_was_left_comes_when_it_is_asked_for() {
    let pair = Pair::reaching();
    let (content, call) = kept(&pair, 1, &[5; 10_000]);
    pair.call(call);
    // A call without payload is delivered as usual, and later ones in order.
    pair.call(Outgoing::bytes(words(&[2, 0])));
    let call = pair.at_server();
    let Some(Detached::There(there)) = &call.detached else { panic!("{:?}", call.detached) };
    assert!(there.fetch().now_or_never().expect("at once").unwrap() == content);
    assert_eq!(pair.server_qp.did().iter().filter(|did| matches!(did, Did::Read { .. })).count(), 1);
    pair.reply(call.ticket, bytes(words(&[1])));
    pair.at_client();
    let next = pair.at_server();
    assert!(next.body == words(&[2, 0]) && next.detached.is_none());
}

#[test]
fn payload_that_was_left_waits_for_a_buffer_and_ends_with_the_connection() {
    let pair = Pair::reaching();
    let (_, call) = kept(&pair, 1, &[5; 10_000]);
    pair.call(call);
    let call = pair.at_server();
    let Some(Detached::There(there)) = &call.detached else { panic!("{:?}", call.detached) };
    let rest = || pair.server_pool.try_alloc(10_000);
    let all: Vec<Buf> = std::iter::from_fn(rest).collect();
    let mut fetching = there.fetch();
    assert!((&mut fetching).now_or_never().is_none());
    drop(all);
    assert!((&mut fetching).now_or_never().expect("there is room").is_ok());
    let all: Vec<Buf> = std::iter::from_fn(rest).collect();
    let mut fetching = there.fetch();
    assert!((&mut fetching).now_or_never().is_none());
    pair.client_qp.close();
    for fetching in [fetching, there.fetch()] {
        let ended = fetching.now_or_never().expect("at once").unwrap_err();
        assert!(matches!(ended.downcast(), Ok(Error::Closed)));
    }
    drop(all);
}

#[test]
fn payload_in_shared_memory_is_copied_once_to_be_opened() {
    let pair = Pair::default();
    let content = vec![3; 10_000];
    let before = buf::copies();
    let parts = vec![Part::Bytes(words(&[7, 10_000])), payload(&content, To::Inline)];
    pair.call(Outgoing { parts, ..Outgoing::default() });
    assert!(pair.at_server().detached.unwrap().here().unwrap() == content);
    assert_eq!(buf::copies().0 - before.0, 1);
}

#[test]
fn a_long_call_is_pulled_whole_and_a_long_reply_is_pushed_whole() {
    let pair = Pair::default();
    let long: Vec<u32> = std::iter::once(7).chain(0..5000).collect();
    let call = Outgoing { parts: bytes(words(&long)), longest_reply: 40_000, ..Outgoing::default() };
    pair.call(call);
    let call = pair.at_server();
    assert_eq!(call.body, words(&long));
    let (chunks, nomsg) = chunks_of(header(&pair.client_qp.sent()[0]).0);
    assert!(nomsg && chunks.reads[0].position == 0 && chunks.reply.is_some());
    let parts = vec![Part::Bytes(words(&long)), payload(b"inline", To::Ticket)];
    pair.reply(call.ticket, parts);
    let did = pair.server_qp.did();
    assert!(matches!(did.last(), Some(Did::Send { .. })), "the Send is last");
    let reply = pair.at_client();
    assert_eq!(reply.body[..], [&words(&long)[..], b"inline\0\0"].concat());
    assert_eq!(pair.client_qp.regions(), 0);
}

#[test]
fn a_reply_chunk_that_is_not_needed_is_returned_empty() {
    let pair = Pair::default();
    pair.call(Outgoing { parts: bytes(words(&[7])), longest_reply: 40_000, ..Outgoing::default() });
    pair.reply(pair.at_server().ticket, bytes(words(&[7, 1])));
    let (chunks, nomsg) = chunks_of(header(&pair.server_qp.sent()[0]).0);
    assert!(!nomsg);
    assert_eq!(chunks.reply.unwrap()[0].length, 0);
    assert_eq!(pair.at_client().body, words(&[7, 1]));
}

#[test]
fn thresholds_are_1024_with_a_peer_that_says_nothing() {
    for (config, fits) in
        [(Config { inline_bytes: 1024, ..Config::default() }, 996), (Config::default(), 4068)]
    {
        let pair = Pair::new(config, Config::default());
        for (xid, len, long) in [(1, fits, false), (2, fits + 4, true)] {
            let mut stream = words(&[xid]).to_vec();
            stream.resize(len, 0);
            pair.call(Outgoing { parts: bytes(stream.into()), ..Outgoing::default() });
            let call = pair.at_server();
            assert_eq!(call.body.len(), len);
            assert_eq!(chunks_of(header(&pair.client_qp.sent()[0]).0).1, long, "{len}");
            pair.reply(call.ticket, bytes(words(&[xid])));
            pair.at_client();
        }
    }
}

#[test]
fn a_reply_that_has_no_room_is_an_error_and_the_next_call_is_served() {
    let pair = Pair::default();
    pair.call(Outgoing::bytes(words(&[7])));
    pair.reply(pair.at_server().ticket, bytes(words(&[7; 3000])));
    assert_eq!(header(&pair.server_qp.sent()[0]).0.body, Body::Error(ErrorCode::Chunk));
    // RPC's closest equivalent: accepted, SYSTEM_ERR.
    assert_eq!(pair.at_client().body, words(&[7, 1, 0, 0, 0, 5]));
    // The same for a result that exceeds the sink.
    let sink = pair.sink(4);
    pair.call(Outgoing { parts: bytes(words(&[8])), sink, ..Outgoing::default() });
    let call = pair.at_server();
    pair.reply(call.ticket, vec![Part::Bytes(words(&[8, 5])), payload(b"hello", To::Ticket)]);
    assert_eq!(pair.at_client().body, words(&[8, 1, 0, 0, 0, 5]));
    assert_eq!(pair.client_qp.regions(), 0);
    pair.call(Outgoing::bytes(words(&[9])));
    assert_eq!(pair.at_server().body, words(&[9]));
}

#[test]
fn memory_is_revoked_with_the_reply_where_both_agreed() {
    for (client, server, revoked) in [(true, true, true), (true, false, false), (false, true, false)] {
        let config = |remote_invalidation| Config { remote_invalidation, ..Config::default() };
        let pair = Pair::new(config(client), config(server));
        let sink = pair.sink(4096);
        pair.call(Outgoing { parts: bytes(words(&[7])), sink, ..Outgoing::default() });
        pair.reply(pair.at_server().ticket, vec![Part::Bytes(words(&[7, 5])), payload(b"hello", To::Ticket)]);
        let did = pair.server_qp.did();
        let Some(Did::Send { invalidate, .. }) = did.last() else { panic!() };
        assert_eq!(invalidate.is_some(), revoked);
        assert_eq!(pair.at_client().detached.unwrap().here().unwrap(), "hello");
        assert_eq!(pair.client_qp.regions(), 0);
        // A call without chunks has nothing to revoke.
        pair.call(Outgoing::bytes(words(&[8])));
        pair.reply(pair.at_server().ticket, bytes(words(&[8])));
        assert!(matches!(pair.server_qp.did()[..], [Did::Send { invalidate: None, .. }]));
    }
}

#[test]
fn replies_wait_for_room_in_a_small_send_queue_and_all_arrive() {
    let pair = Pair::with_queue(Config::default(), Config::default(), 2);
    let mut outstanding = Vec::new();
    let mut replies = Vec::new();
    for xid in 0..40 {
        let sink = pair.sink(64);
        pair.call(Outgoing { parts: bytes(words(&[xid])), sink, ..Outgoing::default() });
    }
    while replies.len() < 40 {
        while let Some(call) = pair.server.recv().now_or_never() {
            outstanding.push(call.unwrap().unwrap());
        }
        for Message { body, ticket, .. } in outstanding.drain(..) {
            pair.reply(ticket, vec![Part::Bytes(body), payload(b"payload", To::Ticket)]);
        }
        while let Some(reply) = pair.client.recv().now_or_never() {
            replies.push(reply.unwrap().unwrap());
        }
    }
    assert!(replies.iter().all(|r| matches!(&r.detached, Some(Detached::Here(bytes)) if bytes == "payload")));
    replies.sort_by_key(|r| r.body.clone());
    assert!(replies.iter().zip(0..).all(|(r, xid)| r.body == words(&[xid])));
}

#[test]
fn a_pull_waits_for_the_pool_and_holds_nothing_meanwhile() {
    let pair = Pair::default();
    let rest = 64 << 20;
    let mut held = Vec::new();
    while let Some(buf) = pair.server_pool.try_alloc(1 << 20) {
        held.push(buf);
    }
    while let Some(buf) = pair.server_pool.try_alloc(1) {
        held.push(buf);
    }
    assert_eq!(pair.server_pool.in_use_bytes(), rest);
    let parts = vec![Part::Bytes(words(&[7, 100_000])), payload(&[1; 100_000], To::Inline)];
    pair.call(Outgoing { parts, ..Outgoing::default() });
    assert!(pair.server.recv().now_or_never().is_none());
    assert!(pair.server_qp.did().is_empty());
    held.clear();
    assert_eq!(pair.at_server().detached.unwrap().here().unwrap().len(), 100_000);
}

#[test]
fn a_client_whose_call_waits_for_memory_says_so() {
    let pair = Pair::default();
    let held: Vec<_> = [1 << 20, 1]
        .map(|len| std::iter::from_fn(|| pair.client_pool.try_alloc(len)).collect::<Vec<_>>())
        .into();
    assert!(!pair.client.waits_for_memory());
    let long: Vec<u32> = std::iter::once(7).chain(0..5000).collect();
    pair.call(Outgoing { parts: bytes(words(&long)), ..Outgoing::default() });
    // The reader drives the connection.
    assert!(pair.client.recv().now_or_never().is_none());
    assert!(pair.client_qp.sent().is_empty());
    assert!(pair.client.waits_for_memory());
    drop(held);
    assert!(pair.client.recv().now_or_never().is_none());
    assert_eq!(pair.at_server().body, words(&long));
    assert!(!pair.client.waits_for_memory());
}

#[test]
fn a_call_that_cannot_travel_fails_alone_and_at_once() {
    let pair = Pair::default();
    let two = vec![Part::Bytes(words(&[7])), payload(b"a", To::Inline), payload(b"b", To::Inline)];
    for parts in [vec![], bytes(Bytes::from_static(b"xid")), two] {
        let refused = pair.client.send(Outgoing { parts, ..Outgoing::default() }).now_or_never();
        assert!(matches!(refused, Some(Err(Error::Misuse(_)))));
    }
    pair.call(Outgoing::bytes(words(&[8])));
    assert_eq!(pair.at_server().body, words(&[8]));
}

#[test]
fn the_end_of_a_connection_reaches_everybody() {
    let pair = Pair::default();
    pair.call(Outgoing::bytes(words(&[7])));
    let call = pair.at_server();
    pair.server.close();
    assert!(pair.client.recv().now_or_never().unwrap().unwrap().is_none());
    let sent =
        pair.server.send(Outgoing { parts: bytes(words(&[7])), ticket: call.ticket, ..Outgoing::default() });
    assert!(matches!(sent.now_or_never(), Some(Err(Error::Closed))));
    assert!(matches!(
        pair.client.send(Outgoing::bytes(words(&[8]))).now_or_never(),
        Some(Err(Error::Closed))
    ));
}
