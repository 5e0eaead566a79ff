//! Channels over the real providers: iwarp in a simulated world, and shm.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use weft_machine::sim::{Faults, Sim};
use weft_machine::{Buf, File, FileRange, Payload, Pool, buf, rt};
use weft_rdma::{Access, ConnectParams, Done, Provider, QueuePair, Work, WorkError, iwarp, shm};
use weft_wire::smbd::{DataTransfer, NegotiateRequest, NegotiateResponse, VERSION};

use super::*;
use crate::channel::{Channel, Error, Kind, Outgoing, Part, Segment, Stag, To};

/// A provider, its pool, and the address for a peer.
struct Net {
    provider: Rc<dyn Provider>,
    pool: Pool,
    _dir: Option<tempfile::TempDir>,
}

/// The longest message between two of our own.
const LONGEST: usize = config::MAX_FRAGMENTED as usize;
const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

impl Net {
    fn iwarp(pool: Pool) -> Net {
        let provider = Rc::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default()));
        Net { provider, pool, _dir: None }
    }

    fn shm(pool: Pool) -> Net {
        let dir = tempfile::tempdir().unwrap();
        let config = shm::Config { dir: dir.path().join("weft"), ..shm::Config::default() };
        Net { provider: Rc::new(shm::Provider::new(pool.clone(), config)), pool, _dir: Some(dir) }
    }

    async fn channels(&self, ours: Config, theirs: Config) -> (Rc<Smbd>, Rc<Smbd>) {
        let listener = self.provider.listen(SocketAddr::from(ANY)).await.unwrap();
        let accepting = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            accept(request, theirs, self.pool.clone()).await.unwrap()
        };
        let connecting = connect(&*self.provider, listener.local_addr(), ours, self.pool.clone());
        let (connected, accepted) = futures_util::join!(connecting, accepting);
        (connected.unwrap(), accepted)
    }

    async fn pair(&self) -> (Rc<Smbd>, Rc<Smbd>) {
        self.channels(Config::default(), Config::default()).await
    }

    /// A channel, and the bare queue pair that connected to it (with receives posted) and sent `request`.
    async fn half(&self, request: Vec<u8>) -> (Result<Rc<Smbd>, Error>, Rc<dyn QueuePair>) {
        let listener = self.provider.listen(SocketAddr::from(ANY)).await.unwrap();
        let accepting = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            accept(request, Config::default(), self.pool.clone()).await
        };
        let connecting = async {
            let (peer, _) =
                self.provider.connect(listener.local_addr(), ConnectParams::default()).await.unwrap();
            for _ in 0..20 {
                peer.post(Work::Recv { id: 0, buf: self.pool.try_alloc(8192).unwrap() }).unwrap();
            }
            say(&peer, request);
            peer
        };
        futures_util::join!(accepting, connecting)
    }
}

/// Sends raw bytes, unless there are none.
fn say(peer: &Rc<dyn QueuePair>, bytes: Vec<u8>) {
    if !bytes.is_empty() {
        let send = Work::Send {
            id: 1,
            data: vec![bytes.into()],
            invalidate: None,
            solicited: false,
            signalled: false,
        };
        // A connection that has ended accepts no work.
        let _ = peer.post(send);
    }
}

/// The next raw message; `None` at the end of the connection.
async fn hear(peer: &Rc<dyn QueuePair>) -> Option<Vec<u8>> {
    loop {
        let mut completions = Vec::new();
        std::future::poll_fn(|cx| peer.poll(cx, &mut completions)).await.ok()?;
        let mut heard = completions.into_iter().filter_map(|completion| match completion.result {
            Ok(Done::Received { buf, .. }) => Some(buf.to_vec()),
            _ => None,
        });
        if let Some(first) = heard.next() {
            assert!(heard.next().is_none(), "two messages in one batch");
            return Some(first);
        }
    }
}

fn request() -> Vec<u8> {
    let mut bytes = Vec::new();
    NegotiateRequest {
        min_version: VERSION,
        max_version: VERSION,
        credits_requested: 10,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
    }
    .emit(&mut bytes);
    bytes
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ salt) as u8).collect()
}

async fn next(channel: &Smbd) -> Bytes {
    channel.recv().await.unwrap().unwrap().body
}

async fn file_of(content: &[u8]) -> File {
    let file = File::in_memory("smbd-test").unwrap();
    file.write_at(0, &[Bytes::copy_from_slice(content)]).await.unwrap();
    file
}

fn region(net: &Net, len: usize) -> Buf {
    let mut buf = net.pool.try_alloc(len).unwrap();
    buf.set_len(len);
    buf.fill(0xa5);
    buf
}

fn with_payload(head: &'static str, data: impl Into<Payload>, to: To) -> Outgoing {
    let parts = vec![Part::Bytes(head.into()), Part::Payload { data: data.into(), to }];
    Outgoing { parts, ..Outgoing::default() }
}

/// Cuts a segment into pieces of these lengths.
fn cut(mut segment: Segment, lens: &[u32]) -> Vec<Segment> {
    lens.iter()
        .map(|&len| {
            let piece = Segment { len, ..segment };
            segment.offset += u64::from(len);
            piece
        })
        .collect()
}

/// Quick and rough simulated networks.
fn over_iwarp<F: Future<Output = ()>>(case: impl Fn(Net) -> F) {
    for seed in 0..4 {
        let faults = if seed < 2 { Faults::default() } else { Faults::rough() };
        Sim::new(seed).faults(faults).run(case(Net::iwarp(Pool::new(128 << 20))));
    }
}

fn over_shm<F: Future<Output = ()>>(case: impl Fn(Net) -> F) {
    rt::block_on(case(Net::shm(Pool::new(128 << 20)))).unwrap();
}

macro_rules! over_every_provider {
    ($($case:ident)*) => {
        mod iwarp_channel {
            $(#[test]
            fn $case() {
                super::over_iwarp(super::$case);
            })*
        }
        mod shm_channel {
            $(#[test]
            fn $case() {
                super::over_shm(super::$case);
            })*
        }
    };
}

over_every_provider! {
    messages_of_every_size_both_ways
    payload_is_written_into_the_peers_segments
    payload_is_fetched_from_the_peers_segments
    payload_is_fetched_into_a_file_where_both_lie_in_memory
    inline_payload_travels_in_the_message
    a_reply_revokes_the_region_that_it_filled
    a_write_to_a_revoked_region_ends_the_channel
    an_unreadable_inline_file_fails_its_own_message_alone
    misuse_is_refused_before_anything_is_sent
    a_reader_that_does_not_read_makes_the_sender_wait
    close_sends_what_was_queued
    dropping_a_channel_ends_it
    fetches_end_with_the_channel
    completions_after_the_end_free_every_buffer_once
    completions_are_noticed_while_a_reader_is_not_polled
    an_empty_pool_delays_and_does_not_fail
    hostile_peers_are_disconnected
    a_peer_of_another_version_is_told_so
    a_message_over_the_credits_ends_the_channel
}

async fn messages_of_every_size_both_ways(net: Net) {
    let (a, b) = net.pair().await;
    assert_eq!((a.kind(), a.medium()), (Kind::Smbd, net.provider.name()));
    assert_eq!((a.limits().max_message, a.limits().max_rdma), (LONGEST, Some(8 << 20)));
    assert_eq!(b.limits(), a.limits());
    let lens = [1, 100, 8111, 8112, 8113, 16_224, 16_225, 100_000, LONGEST];
    for (from, to) in [(&a, &b), (&b, &a)] {
        let sends = join_all(lens.iter().map(|&len| from.send(Outgoing::bytes(pattern(len, len)))));
        let receiving = async {
            for len in lens {
                assert!(next(to).await == pattern(len, len), "{len} bytes");
            }
        };
        let (sent, ()) = futures_util::join!(sends, receiving);
        sent.into_iter().for_each(|sent| sent.unwrap());
        assert_eq!(from.backlog(), 0);
    }
    assert!(b.try_recv().is_none());
    a.close();
    assert!(b.recv().await.unwrap().is_none());
    assert!(a.recv().await.unwrap().is_none());
}

async fn payload_is_written_into_the_peers_segments(net: Net) {
    let (client, server) = net.pair().await;
    let content = pattern(400_000, 9);
    let file = file_of(&content).await;
    let pieces = [Bytes::from(content[..1000].to_vec()), Bytes::from(content[1000..].to_vec())];
    let payloads = [
        Payload::Chain(pieces.to_vec()),
        Payload::File(FileRange { file, offset: 0, len: 400_000 }),
        Payload::Chain(Vec::new()),
    ];
    for data in payloads {
        let len = data.len();
        let exposed = client.expose(region(&net, 500_000), Access::RemoteWrite).unwrap();
        let segments = cut(exposed.segments[0], &[10, 100_000, 1, 299_000, 989, 4096]);
        let copies = buf::copies();
        let sent = server.send(with_payload("head", data, To::Segments(segments)));
        let (sent, message) = futures_util::join!(sent, next(&client));
        sent.unwrap();
        if net.provider.name() == "shm" {
            assert_eq!(buf::copies(), copies, "payload was copied");
        }
        assert_eq!(message, "head");
        let filled = client.revoke(exposed).unwrap();
        assert!(filled[..len] == content[..len]);
        assert!(filled[len..].iter().all(|&byte| byte == 0xa5), "written beyond the payload");
    }
    assert_eq!(server.traffic().written.0, 800_000);
}

/// What the peer has exposed, and why it does not come.
fn fetch(channel: &dyn Channel, from: Vec<Segment>) -> impl Future<Output = Result<Bytes, Error>> + use<> {
    let fetching = channel.remote(from).fetch();
    async { fetching.await.map_err(|e| e.downcast().unwrap_or_else(Error::Io)) }
}

async fn payload_is_fetched_from_the_peers_segments(net: Net) {
    let (client, server) = net.pair().await;
    let content = pattern(300_000, 5);
    let exposed = client.expose(net.pool.buf_from(&content).unwrap(), Access::RemoteRead).unwrap();
    let whole = exposed.segments.clone();
    assert!(fetch(&*server, whole.clone()).await.unwrap() == content);
    let pieces = cut(whole[0], &[1, 0, 99_999, 200_000]);
    assert!(fetch(&*server, pieces).await.unwrap() == content);
    assert!(fetch(&*server, vec![]).await.unwrap().is_empty());
    // Many at once, some of them dropped.
    let fetches: Vec<_> = (0..40)
        .map(|i| fetch(&*server, vec![Segment { offset: whole[0].offset + i * 1000, len: 1000, ..whole[0] }]))
        .collect();
    for (i, fetch) in fetches.into_iter().enumerate() {
        if i % 3 == 0 {
            assert!(fetch.now_or_never().is_none_or(|fetched| fetched.is_ok()));
        } else {
            assert!(fetch.await.unwrap() == content[i * 1000..(i + 1) * 1000]);
        }
    }
    assert_eq!(client.revoke(exposed).unwrap()[..], content[..]);
}

async fn payload_is_fetched_into_a_file_where_both_lie_in_memory(net: Net) {
    let (client, server) = net.pair().await;
    let content = pattern(300_000, 5);
    let exposed = client.expose(net.pool.buf_from(&content).unwrap(), Access::RemoteRead).unwrap();
    let pieces = cut(exposed.segments[0], &[1, 0, 99_999, 200_000]);
    let file = file_of(&[1; 50]).await;
    let fetched = server.remote(pieces.clone()).fill(&file, 50, 300_000);
    assert_eq!(fetched.is_some(), net.provider.name() == "shm");
    if let Some(fetched) = fetched {
        fetched.unwrap();
        let range = FileRange { file: file.clone(), offset: 0, len: 300_050 };
        let found = Payload::File(range).into_chain(&net.pool).await.unwrap().concat();
        assert!(found[..50] == [1; 50] && found[50..] == content);
    }
    let long = Segment { len: 9 << 20, ..exposed.segments[0] };
    assert!(server.remote(vec![long]).fill(&file, 0, 9 << 20).is_none());
    assert!(client.revoke(exposed).unwrap()[..] == content[..]);
    assert!(server.remote(pieces).fill(&file, 0, 300_000).is_none());
}

async fn inline_payload_travels_in_the_message(net: Net) {
    let (a, b) = net.pair().await;
    let content = pattern(100_000, 3);
    let file = file_of(&content).await;
    for len in [0, 1, 8000, 100_000] {
        for to in [To::Inline, To::Ticket] {
            let range = FileRange { file: file.clone(), offset: 0, len };
            let sent = a.send(with_payload("head", Payload::File(range), to));
            let (sent, got) = futures_util::join!(sent, next(&b));
            sent.unwrap();
            assert_eq!(got[..4], *b"head");
            assert!(got[4..] == content[..len]);
        }
    }
}

async fn a_reply_revokes_the_region_that_it_filled(net: Net) {
    let (client, server) = net.pair().await;
    let exposed = client.expose(region(&net, 10_000), Access::RemoteWrite).unwrap();
    let segments = exposed.segments.clone();
    let data = Bytes::from(pattern(10_000, 1));
    let outgoing = Outgoing {
        invalidate: Some(segments[0].stag),
        ..with_payload("done", data.clone(), To::Segments(segments))
    };
    let (sent, message) = futures_util::join!(server.send(outgoing), next(&client));
    sent.unwrap();
    assert_eq!(message, "done");
    // The region is closed; its owner still gets the memory.
    assert_eq!(client.revoke(exposed).unwrap()[..], data);
}

async fn a_write_to_a_revoked_region_ends_the_channel(net: Net) {
    let (client, server) = net.pair().await;
    let exposed = client.expose(region(&net, 10_000), Access::RemoteWrite).unwrap();
    let segments = exposed.segments.clone();
    let untouched = client.revoke(exposed).unwrap();
    let data = Bytes::from(pattern(10_000, 1));
    // iWARP learns of the refusal after the Send was handed to TCP.
    let _ = server.send(with_payload("done", data, To::Segments(segments))).await;
    assert!(matches!(server.recv().await, Err(Error::Rdma(_) | Error::Work(WorkError::Remote(_)))));
    assert!(client.recv().await.is_err());
    assert!(server.send(Outgoing::bytes("more")).await.is_err());
    assert!(untouched.iter().all(|&byte| byte == 0xa5));
}

async fn an_unreadable_inline_file_fails_its_own_message_alone(net: Net) {
    let (a, b) = net.pair().await;
    let sink = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(sink));
    let bad = a.send(with_payload("bad", Payload::File(FileRange { file, offset: 0, len: 100 }), To::Inline));
    let good = a.send(Outgoing::bytes("good"));
    let (bad, good, got) = futures_util::join!(bad, good, next(&b));
    assert!(matches!(bad, Err(Error::Io(_))));
    good.unwrap();
    assert_eq!(got, "good");
    assert_eq!(a.backlog(), 0);
}

async fn misuse_is_refused_before_anything_is_sent(net: Net) {
    let (a, b) = net.pair().await;
    let segment = Segment { stag: Stag(1), offset: 0, len: 10 };
    let large = Segment { len: u32::MAX, ..segment };
    let bad = [
        Outgoing::default(),
        Outgoing::bytes(vec![0; LONGEST + 1]),
        with_payload("x", Bytes::from(vec![0; 11]), To::Segments(vec![segment])),
        with_payload("x", Bytes::from(vec![0; (8 << 20) + 1]), To::Segments(vec![large])),
    ];
    for outgoing in bad {
        assert!(matches!(a.send(outgoing).await, Err(Error::Misuse(_))));
    }
    assert!(matches!(fetch(&*a, vec![large]).await, Err(Error::Misuse(_))));
    a.send(Outgoing::bytes("fine")).await.unwrap();
    assert_eq!(next(&b).await, "fine");
}

async fn a_reader_that_does_not_read_makes_the_sender_wait(net: Net) {
    let (a, b) = net.pair().await;
    let sends: Vec<_> = (0..700).map(|i| a.send(Outgoing::bytes(pattern(3000, i)))).collect();
    rt::sleep(Duration::from_millis(50)).await;
    assert!(a.backlog() >= 700 - 2 * 256, "{} messages wait", a.backlog());
    assert!(a.unsent_bytes() >= a.backlog(), "{} bytes wait", a.unsent_bytes());
    for i in 0..700 {
        assert!(next(&b).await == pattern(3000, i));
    }
    join_all(sends).await.into_iter().for_each(|sent| sent.unwrap());
}

async fn close_sends_what_was_queued(net: Net) {
    let (a, b) = net.pair().await;
    let sends: Vec<_> = (0..400).map(|i| a.send(Outgoing::bytes(pattern(10_000, i)))).collect();
    a.close();
    assert!(matches!(a.send(Outgoing::bytes("late")).await, Err(Error::Closed)));
    for i in 0..400 {
        assert!(next(&b).await == pattern(10_000, i));
    }
    assert!(b.recv().await.unwrap().is_none());
    // The last may have been in transit when the connection ended.
    assert!(join_all(sends).await.into_iter().filter(|sent| sent.is_ok()).count() >= 390);
}

async fn dropping_a_channel_ends_it(net: Net) {
    let (a, b) = net.pair().await;
    drop(a);
    assert!(b.recv().await.unwrap().is_none());
    assert!(b.send(Outgoing::bytes("x")).await.is_err());
    assert!(b.expose(region(&net, 100), Access::RemoteRead).is_err());
}

async fn fetches_end_with_the_channel(net: Net) {
    let (client, server) = net.pair().await;
    let exposed = client.expose(region(&net, 1 << 20), Access::RemoteRead).unwrap();
    let fetches: Vec<_> = (0..10).map(|_| fetch(&*server, exposed.segments.clone())).collect();
    let fetches = rt::spawn(join_all(fetches));
    drop(client);
    server.close();
    // Whatever their outcome, they end.
    let ended = rt::timeout(Duration::from_secs(20), fetches).await.expect("a fetch never ends");
    assert!(ended.into_iter().all(
        |fetched| fetched.is_err_and(|e| !matches!(e, Error::Misuse(_))) || net.provider.name() == "shm"
    ));
}

/// Sends and RDMA Reads are in flight when both ends go: a later completion finds nothing freed, and frees its own
/// buffer.
async fn completions_after_the_end_free_every_buffer_once(net: Net) {
    let before = net.pool.in_use_bytes();
    for round in 0..4 {
        let (client, server) = net.pair().await;
        let exposed = client.expose(region(&net, 1 << 20), Access::RemoteRead).unwrap();
        let sends: Vec<_> = (0..50).map(|i| server.send(Outgoing::bytes(pattern(100_000, i)))).collect();
        let fetches: Vec<_> = (0..10).map(|_| fetch(&*server, exposed.segments.clone())).collect();
        match round {
            0 => drop(client),
            1 => client.close(),
            2 => server.close(),
            _ => drop((sends, fetches)),
        }
        drop(server);
    }
    let freed = async {
        while net.pool.in_use_bytes() > before {
            rt::yield_now().await;
            rt::sleep(Duration::from_millis(1)).await;
        }
    };
    let freed = rt::timeout(Duration::from_secs(60), freed).await;
    assert!(freed.is_ok(), "{} bytes are held", net.pool.in_use_bytes() - before);
}

async fn completions_are_noticed_while_a_reader_is_not_polled(net: Net) {
    let (client, server) = net.pair().await;
    let content = pattern(300_000, 5);
    let exposed = client.expose(net.pool.buf_from(&content).unwrap(), Access::RemoteRead).unwrap();
    let mut reading = server.recv();
    assert!((&mut reading).now_or_never().is_none());
    assert!(fetch(&*server, exposed.segments.clone()).await.unwrap() == content);
    let big = Bytes::from(pattern(1 << 20, 1));
    let (sent, got) = futures_util::join!(server.send(Outgoing::bytes(big.clone())), next(&client));
    sent.unwrap();
    assert!(got == big);
    client.send(Outgoing::bytes("now")).await.unwrap();
    assert_eq!(reading.await.unwrap().unwrap().body, "now");
}

async fn an_empty_pool_delays_and_does_not_fail(net: Net) {
    let (a, b) = net.pair().await;
    let mut hoard = Vec::new();
    while let Some(buf) = net.pool.try_alloc(1 << 20) {
        hoard.push(buf);
    }
    while let Some(buf) = net.pool.try_alloc(4096) {
        hoard.push(buf);
    }
    let body = Bytes::from(pattern(300_000, 1));
    let file = file_of(&body).await;
    let inline = with_payload("file", Payload::File(FileRange { file, offset: 0, len: 1000 }), To::Inline);
    let sends = vec![a.send(Outgoing::bytes(body.clone())), a.send(inline), a.send(Outgoing::bytes("last"))];
    let sends = rt::spawn(join_all(sends));
    rt::sleep(Duration::from_millis(20)).await;
    assert!(b.try_recv().is_none(), "reassembled into nothing");
    hoard.clear();
    assert!(next(&b).await == body);
    assert!(next(&b).await[4..] == body[..1000]);
    assert_eq!(next(&b).await, "last");
    sends.await.into_iter().for_each(|sent| sent.unwrap());
}

/// Over shared memory, whose provider needs none of the pool to deliver.
#[test]
fn a_channel_that_waits_for_memory_and_not_for_its_peer_says_so() {
    rt::block_on(async {
        let net = Net::shm(Pool::new(128 << 20));
        let (a, b) = net.pair().await;
        let hoard = [1 << 20, 4096].map(|len| Vec::from_iter(std::iter::from_fn(|| net.pool.try_alloc(len))));
        let body = Bytes::from(pattern(300_000, 1));
        let sending = rt::spawn(a.send(Outgoing::bytes(body.clone())));
        let says_so = rt::timeout(Duration::from_secs(10), async {
            while !b.waits_for_memory() {
                assert!(b.try_recv().is_none(), "reassembled into nothing");
                rt::yield_now().await;
            }
        });
        says_so.await.unwrap();
        drop(hoard);
        assert!(next(&b).await == body);
        assert!(!b.waits_for_memory());
        sending.await.unwrap();
    })
    .unwrap();
}

async fn hostile_peers_are_disconnected(net: Net) {
    let mut wrong_offset = DataTransfer::header(10, 1, 0, 0, 8).to_vec();
    wrong_offset.resize(32, 0);
    wrong_offset[12] = 20;
    let mut too_long = DataTransfer::header(10, 1, 0, 2 << 20, 8).to_vec();
    too_long.resize(32, 0);
    for message in [vec![0xff; 19], vec![0; 40], wrong_offset, too_long] {
        let (channel, peer) = net.half(request()).await;
        let channel = channel.unwrap();
        let response = NegotiateResponse::parse(&hear(&peer).await.unwrap()).unwrap();
        assert_eq!((response.status, response.credits_granted), (0, 10));
        say(&peer, message);
        assert!(matches!(channel.recv().await, Err(Error::Malformed(_) | Error::Violation(_))));
        assert!(channel.send(Outgoing::bytes("x")).await.is_err());
        while hear(&peer).await.is_some() {}
    }
    for first in [vec![1], vec![0; 20], DataTransfer::header(1, 1, 0, 0, 0).to_vec()] {
        let (channel, peer) = net.half(first).await;
        assert!(channel.is_err());
        while hear(&peer).await.is_some() {}
    }
}

async fn a_peer_of_another_version_is_told_so(net: Net) {
    let mut other = request();
    other[..4].copy_from_slice(&[0, 2, 0, 3]);
    let (channel, peer) = net.half(other).await;
    assert!(matches!(channel, Err(Error::Violation(_))));
    let refusal = NegotiateResponse::parse(&hear(&peer).await.unwrap()).unwrap();
    assert_eq!(refusal.status, 0xc000_00bb);
    assert!(hear(&peer).await.is_none());
}

async fn a_message_over_the_credits_ends_the_channel(net: Net) {
    let (channel, peer) = net.half(request()).await;
    let channel = channel.unwrap();
    hear(&peer).await.unwrap();
    let message = [&DataTransfer::header(10, 0, 0, 0, 4)[..], b"data"].concat();
    for _ in 0..11 {
        say(&peer, message.clone());
    }
    // Ten were granted; none can be granted again, because the peer grants us no credits to do so.
    let mut whole = 0;
    let end = loop {
        match channel.recv().await {
            Ok(Some(message)) => assert_eq!(message.body, "data"),
            end => break end,
        }
        whole += 1;
    };
    assert!(whole <= 10);
    assert!(end.is_err(), "{end:?}");
}

#[test]
fn a_silent_peer_is_given_up_after_five_seconds() {
    Sim::new(1).run(async {
        let net = Net::iwarp(Pool::new(128 << 20));
        let start = rt::now();
        let (channel, _peer) = net.half(Vec::new()).await;
        assert!(matches!(channel, Err(Error::TimedOut(_))));
        assert_eq!((rt::now() - start).as_secs(), 5);
    });
}

#[test]
fn fetches_that_fill_the_pool_together_all_end() {
    Sim::new(4).run(async {
        let net = Net::iwarp(Pool::new(16 << 20));
        let (client, server) = net.pair().await;
        let exposed = client.expose(region(&net, 2 << 20), Access::RemoteRead).unwrap();
        let whole = exposed.segments[0];
        let half = whole.len / 2;
        let halves = [0, half].map(|at| Segment { offset: whole.offset + u64::from(at), len: half, ..whole });
        // Half the buffers of all fetches exceed the pool: none may hold its own while it waits for the rest.
        let fetches =
            join_all((0..9).map(|_| async { fetch(&*server, halves.to_vec()).await.unwrap().len() }));
        let fetched = rt::timeout(Duration::from_secs(20), fetches).await.expect("they wait for each other");
        assert_eq!(fetched, [2 << 20; 9]);
    });
}

#[test]
fn an_idle_connection_lives_and_a_dead_one_is_noticed() {
    Sim::new(1).run(async {
        let net = Net::iwarp(Pool::new(128 << 20));
        let (a, b) = net.pair().await;
        a.send(Outgoing::bytes("here")).await.unwrap();
        assert_eq!(b.recv().await.unwrap().unwrap().body, "here");
        let reading = rt::spawn(async move { (b.recv().await, rt::now()) });
        rt::sleep(Duration::from_secs(1000)).await;
        a.send(Outgoing::bytes("still there")).await.unwrap();
        let (received, _) = reading.await;
        assert_eq!(received.unwrap().unwrap().body, "still there");
    });
    Sim::new(2).run(async {
        let net = Net::iwarp(Pool::new(128 << 20));
        let (a, _b) = net.pair().await;
        rt::sleep(Duration::from_secs(1)).await;
        let start = rt::now();
        weft_machine::sim::cut_all(weft_machine::sim::CutHow::Silent);
        let end = a.recv().await;
        assert!(matches!(end, Err(Error::TimedOut(_) | Error::Rdma(_))), "{end:?}");
        assert!((rt::now() - start).as_secs() <= 126, "noticed after {:?}", rt::now() - start);
    });
}

#[test]
fn iwarp_peers_without_rfc_6581_get_their_read_depths_back_as_they_sent_them() {
    // New Linux sends big-endian, old cifs.ko little-endian.
    for (asked, answered) in [
        ([0, 0, 0, 32, 0, 0, 0, 1], [0, 0, 0, 16, 0, 0, 0, 1]),
        ([8, 0, 0, 0, 1, 0, 0, 0], [8, 0, 0, 0, 1, 0, 0, 0]),
    ] {
        Sim::new(1).run(async move {
            let net = Net::iwarp(Pool::new(128 << 20));
            let listener = net.provider.listen(SocketAddr::from(ANY)).await.unwrap();
            let accepting = async {
                let request = listener.accept().await.unwrap().request().await.unwrap();
                accept(request, Config::default(), net.pool.clone()).await
            };
            let connecting = async {
                let private_data = Bytes::copy_from_slice(&asked);
                let params = ConnectParams { private_data, ..ConnectParams::default() };
                let (peer, answer) = net.provider.connect(listener.local_addr(), params).await.unwrap();
                peer.post(Work::Recv { id: 0, buf: net.pool.try_alloc(8192).unwrap() }).unwrap();
                say(&peer, request());
                (peer, answer)
            };
            let (channel, (_peer, answer)) = futures_util::join!(accepting, connecting);
            channel.unwrap();
            assert_eq!(answer[..], answered);
        });
    }
}

#[test]
fn read_depths_of_zero_are_rejected() {
    Sim::new(1).run(async {
        let net = Net::iwarp(Pool::new(128 << 20));
        let listener = net.provider.listen(SocketAddr::from(ANY)).await.unwrap();
        let accepting = async {
            let request = listener.accept().await.unwrap().request().await.unwrap();
            accept(request, Config::default(), net.pool.clone()).await
        };
        let params = ConnectParams { private_data: Bytes::from_static(&[0; 8]), ..ConnectParams::default() };
        let (accepted, connected) =
            futures_util::join!(accepting, net.provider.connect(listener.local_addr(), params));
        assert!(matches!(accepted, Err(Error::Violation(_))));
        assert!(matches!(connected, Err(weft_rdma::ConnectError::Rejected(_))));
    });
}
