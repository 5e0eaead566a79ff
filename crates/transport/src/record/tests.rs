use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;

use bytes::Bytes;
use futures_util::FutureExt;
use weft_machine::net::Socket;
use weft_machine::{File, FileRange, Payload, Pool, Stream, rt};

use super::*;
use crate::channel::{Channel, Error, Outgoing, Part, To};

fn pair() -> (TcpStream, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, Socket::from_tcp(listener.accept().unwrap()).unwrap())
}

/// A channel, and the bare socket at its other end.
fn channel(config: Config) -> (Rc<dyn Channel>, TcpStream) {
    let (peer, ours) = pair();
    (Record::channel(Stream::from_socket(ours).unwrap(), Pool::new(32 << 20), config), peer)
}

fn fragment(last: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = Fragment { last, len: body.len() as u32 }.emit().unwrap().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

async fn next(channel: &Rc<dyn Channel>) -> Bytes {
    channel.recv().await.unwrap().unwrap().body
}

#[test]
fn records_of_one_and_of_many_fragments() {
    rt::block_on(async {
        let (channel, mut peer) = channel(Config::default());
        let mut wire = fragment(true, b"one.");
        wire.extend(fragment(false, b"tw"));
        wire.extend(fragment(false, b""));
        wire.extend(fragment(true, b"o..."));
        wire.extend(fragment(true, b"three..."));
        peer.write_all(&wire).unwrap();
        assert_eq!(next(&channel).await, "one.");
        assert_eq!(next(&channel).await, "two...");
        assert_eq!(next(&channel).await, "three...");
        drop(peer);
        assert!(channel.recv().await.unwrap().is_none());
    })
    .unwrap();
}

#[test]
fn what_comes_in_fragments_is_joined_in_memory_of_the_pool() {
    rt::block_on(async {
        let (mut peer, ours) = pair();
        let pool = Pool::new(16 << 20);
        let channel = Record::channel(Stream::from_socket(ours).unwrap(), pool.clone(), Config::default());
        peer.write_all(&[fragment(false, &[1; 9000]), fragment(true, &[2; 9000])].concat()).unwrap();
        let body = next(&channel).await;
        assert_eq!(body, [[1; 9000], [2; 9000]].concat());
        assert!(pool.location(&body).is_some(), "it is none of the heap's");
        // If the pool has no memory, the next fragment waits for it, and so does the reader of the message.
        peer.write_all(&fragment(false, &[3; 3000])).unwrap();
        for _ in 0..8 {
            assert!(channel.recv().now_or_never().is_none());
            rt::yield_now().await;
        }
        drop(body);
        let sizes = [4 << 20, 1 << 20, 64 << 10, 4096];
        let all: Vec<_> =
            sizes.iter().flat_map(|size| std::iter::from_fn(|| pool.try_alloc(*size))).collect();
        peer.write_all(&fragment(true, &[4; 3000])).unwrap();
        for _ in 0..8 {
            assert!(channel.try_recv().is_none() && channel.recv().now_or_never().is_none());
            rt::yield_now().await;
        }
        assert_eq!(pool.waiting(), 1);
        drop(all);
        assert_eq!(next(&channel).await, [[3; 3000], [4; 3000]].concat());
        drop((channel, peer));
    })
    .unwrap();
}

#[test]
fn a_large_record_may_come_in_large_fragments() {
    rt::block_on(async {
        let (channel, mut peer) = channel(Config::default());
        let body: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
        let wire = [fragment(false, &body[..300_000]), fragment(true, &body[300_000..])].concat();
        let writer = std::thread::spawn(move || {
            peer.write_all(&wire).unwrap();
            peer.write_all(&fragment(true, b"next")).unwrap();
            peer
        });
        assert!(next(&channel).await == body);
        assert_eq!(next(&channel).await, "next");
        writer.join().unwrap();
    })
    .unwrap();
}

#[test]
fn payload_inside_a_message_is_followed_by_its_fill() {
    rt::block_on(async {
        let (channel, mut peer) = channel(Config::default());
        let file = File::in_memory("record").unwrap();
        let content = vec![7; 200_001];
        file.write_at(0, &[Bytes::from(content.clone())]).await.unwrap();
        for len in [5, 200_001] {
            let range = FileRange { file: file.clone(), offset: 0, len };
            let parts = vec![
                Part::Bytes(Bytes::from_static(b"head")),
                Part::Payload { data: Payload::File(range), to: To::Ticket },
                Part::Bytes(Bytes::from_static(b"tail")),
            ];
            let sent = channel.send(Outgoing { parts, ..Outgoing::default() });
            let whole = [b"head", &content[..len], &[0; 3], b"tail"].concat();
            let reader = std::thread::spawn(move || {
                let mut got = vec![0; 4 + 4 + len + 3 + 4];
                peer.read_exact(&mut got).unwrap();
                (got, peer)
            });
            sent.await.unwrap();
            let (got, back) = reader.join().unwrap();
            peer = back;
            assert!(got == fragment(true, &whole));
        }
    })
    .unwrap();
}

#[test]
fn a_source_is_sent_behind_the_last_part() {
    rt::block_on(async {
        let (channel, mut peer) = channel(Config::default());
        let pool = Pool::new(0);
        let parts = vec![Part::Bytes(Bytes::from_static(b"head"))];
        let source = pool.buf_from(b"hello");
        channel.send(Outgoing { parts, source, ..Outgoing::default() }).await.unwrap();
        let mut got = vec![0; 16];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got, fragment(true, b"headhello\0\0\0"));
    })
    .unwrap();
}

#[test]
fn what_exceeds_a_limit_ends_the_channel() {
    let config = Config { max_message: 1000, ..Config::default() };
    let too_long = fragment(true, &[0; 1001]);
    let long_in_sum = [fragment(false, &[0; 600]), fragment(true, &[0; 401])].concat();
    let longest_announced = vec![0xff; 4];
    let many_fragments = fragment(false, b"").repeat(1025);
    for wire in [too_long, long_in_sum, longest_announced, many_fragments] {
        rt::block_on(async {
            let (channel, mut peer) = channel(config);
            peer.write_all(&wire).unwrap();
            match channel.recv().await {
                Err(Error::Violation(_)) => {}
                other => panic!("{other:?}"),
            }
        })
        .unwrap();
    }
}

#[test]
fn a_stream_that_ends_inside_a_record_is_no_orderly_end() {
    let wire = [fragment(false, b"abc"), fragment(true, b"defgh")].concat();
    for len in 1..wire.len() {
        rt::block_on(async {
            let (channel, mut peer) = channel(Config::default());
            peer.write_all(&wire[..len]).unwrap();
            drop(peer);
            let end = channel.recv().await;
            assert!(matches!(end, Err(Error::Io(_))), "{len}: {end:?}");
        })
        .unwrap();
    }
}

#[test]
fn a_corked_channel_answers_a_batch_in_one_piece() {
    rt::block_on(async {
        let (channel, mut peer) = channel(Config::default());
        channel.cork(true);
        for _ in 0..3 {
            drop(channel.send(Outgoing::bytes(&b"answer.."[..])));
        }
        peer.set_nonblocking(true).unwrap();
        assert!(peer.read(&mut [0; 64]).is_err());
        // The reader would sleep: nothing is held back any more.
        assert!(channel.recv().now_or_never().is_none());
        peer.set_nonblocking(false).unwrap();
        let mut got = [0; 36];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got[..], fragment(true, b"answer..").repeat(3));
    })
    .unwrap();
}
