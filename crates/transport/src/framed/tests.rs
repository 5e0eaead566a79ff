//! What unidentified peers cost, and how long they are waited for.

use std::sync::Arc;

use futures_util::FutureExt;
use weft_machine::sim::{Cut, CutHow, Faults, Side, Sim};
use weft_machine::{Listener, Time};

use super::*;
use crate::nbss::{Config, Nbss};
use crate::strangers::{LOGON, LOGON_MESSAGE};

const POOL_BYTES: usize = 32 << 20;

/// A server's channel of an unidentified peer, its two pools, and the peer.
async fn strange() -> (Rc<dyn Channel>, Pool, Pool, Stream) {
    strange_over(|_| ()).await
}

/// The same over a stream on which `prepare` was called.
async fn strange_over(prepare: impl FnOnce(&Stream)) -> (Rc<dyn Channel>, Pool, Pool, Stream) {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let (theirs, ours) = futures_util::join!(Stream::connect(listener.local_addr()), listener.accept());
    let ours = Stream::from_socket(ours.unwrap()).unwrap();
    prepare(&ours);
    let (pool, strangers) = (Pool::new(POOL_BYTES), Pool::new(POOL_BYTES));
    let terms = Strangers {
        pool: strangers.clone(),
        identified: pool.clone(),
        arriving: Arc::default(),
        max_message: LOGON_MESSAGE,
        limit: LOGON,
    };
    let config = Config { gather: true, ..Config::default() };
    let channel = Nbss::of_stranger(ours, pool.clone(), config, terms);
    (channel, pool, strangers, theirs.unwrap())
}

fn header(len: usize) -> Bytes {
    Bytes::copy_from_slice(&(len as u32).to_be_bytes())
}

/// Lets the channel receive what has arrived, which completes no message.
async fn takes_nothing_whole(channel: &Rc<dyn Channel>) {
    for _ in 0..4 {
        assert!(channel.recv().now_or_never().is_none());
        rt::yield_now().await;
    }
}

#[test]
fn an_idle_stranger_costs_no_buffer() {
    rt::block_on(async {
        let (channel, pool, strangers, peer) = strange().await;
        takes_nothing_whole(&channel).await;
        assert_eq!((pool.in_use_bytes(), strangers.in_use_bytes()), (0, 0));
        peer.send_all(&[header(3), Bytes::from_static(b"one")]).await.unwrap();
        assert_eq!(channel.recv().await.unwrap().unwrap().body, "one");
        takes_nothing_whole(&channel).await;
        assert_eq!((pool.in_use_bytes(), strangers.in_use_bytes()), (0, 0));
    })
    .unwrap();
}

#[test]
fn what_a_stranger_announces_costs_nothing_until_it_comes() {
    rt::block_on(async {
        let (channel, pool, strangers, peer) = strange().await;
        let body = Bytes::from(vec![7; LOGON_MESSAGE]);
        peer.send_all(&[header(body.len()), body.slice(..4)]).await.unwrap();
        rt::sleep(Duration::ZERO).await;
        takes_nothing_whole(&channel).await;
        assert!(strangers.in_use_bytes() <= 4096, "{}", strangers.in_use_bytes());
        peer.send_all(&[body.slice(4..20_000)]).await.unwrap();
        takes_nothing_whole(&channel).await;
        assert!(strangers.in_use_bytes() <= 65_536, "{}", strangers.in_use_bytes());
        peer.send_all(&[body.slice(20_000..)]).await.unwrap();
        assert_eq!(channel.recv().await.unwrap().unwrap().body, body);
        assert_eq!(pool.in_use_bytes(), 0, "others' buffers are not for strangers");
        // One byte more than a log-on needs.
        peer.send_all(&[header(LOGON_MESSAGE + 1)]).await.unwrap();
        assert!(matches!(channel.recv().await, Err(Error::Violation(_))));
    })
    .unwrap();
}

#[test]
fn a_large_message_of_a_known_peer_has_its_buffer_when_part_of_it_is_here() {
    rt::block_on(async {
        let (channel, pool, strangers, peer) = strange().await;
        channel.authenticated();
        let body = Bytes::from((0..4_u32 << 20).map(|n| n as u8).collect::<Vec<_>>());
        peer.send_all(&[header(body.len()), body.slice(..100)]).await.unwrap();
        takes_nothing_whole(&channel).await;
        assert!(pool.in_use_bytes() <= MAX_STAGING, "{}", pool.in_use_bytes());
        let sent = async { peer.send_all(&[body.slice(100..)]).await.unwrap() };
        let (received, ()) = futures_util::join!(channel.recv(), sent);
        assert_eq!(received.unwrap().unwrap().body, body);
        assert_eq!(strangers.in_use_bytes(), 0);
        // And so on, small messages after large ones.
        for len in [10, 70_000, 3, 1 << 20, 1 << 16, (1 << 16) + 1, 5] {
            let chain = [header(len), body.slice(..len)];
            let sent = async { peer.send_all(&chain).await.unwrap() };
            let (received, ()) = futures_util::join!(channel.recv(), sent);
            assert_eq!(received.unwrap().unwrap().body, body.slice(..len));
        }
    })
    .unwrap();
}

/// The kernel joins what it receives into large blocks, and each counts as received until its last byte is taken. So the
/// buffer of a socket may be full although less waits in it than the low-water mark, and nothing more arrives then. The
/// kernel reports that, once: a wait that forgets the report must make it check again, also if the mark stays the same.
#[test]
fn a_wait_below_the_mark_of_the_wait_before_ends_if_the_buffer_is_full() {
    /// The remainder of one message, and the awaited part of the next; half of the buffer.
    const MARK: usize = 188_000;
    /// Bytes of a large message that are taken with the one before.
    const HEAD: usize = 4096;
    rt::block_on(async {
        // The kernel doubles it.
        let (channel, _, _, peer) = strange_over(|ours| ours.set_buffers(1 << 16, MARK).unwrap()).await;
        channel.authenticated();
        let first = Bytes::from(vec![1; 2 * MARK + 2 * HEAD]);
        let second = Bytes::from(vec![2; 2 * MARK + HEAD]);
        let begun = first.len() - MARK;
        peer.send_all(&[header(first.len()), first.slice(..begun)]).await.unwrap();
        rt::sleep(Duration::from_millis(5)).await;
        takes_nothing_whole(&channel).await;
        let rest = Bytes::from([&first[begun..], &header(second.len()), &second].concat());
        let sending = rt::spawn(async move {
            // Slowly, because the kernel joins only what has been acknowledged.
            for at in (0..rest.len()).step_by(60_000) {
                peer.send_all(&[rest.slice(at..rest.len().min(at + 60_000))]).await.unwrap();
                rt::sleep(Duration::from_micros(500)).await;
            }
        });
        // The last bytes that fit come with a probe of the closed window.
        rt::sleep(Duration::from_millis(500)).await;
        for expected in [first, second] {
            let received = rt::timeout(Duration::from_secs(5), channel.recv()).await;
            let received = received.expect("the message is on its way");
            assert_eq!(received.unwrap().unwrap().body, expected);
        }
        sending.await;
    })
    .unwrap();
}

#[test]
fn a_channel_that_waits_for_memory_and_not_for_its_peer_says_so() {
    rt::block_on(async {
        let (channel, pool, _, peer) = strange().await;
        channel.authenticated();
        takes_nothing_whole(&channel).await;
        assert!(!channel.waits_for_memory());
        let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(MAX_STAGING)).collect();
        let body = Bytes::from(vec![7; 1 << 20]);
        peer.send_all(&[header(body.len()), body.slice(..100_000)]).await.unwrap();
        takes_nothing_whole(&channel).await;
        assert!(channel.waits_for_memory());
        drop(held);
        let sent = async { peer.send_all(&[body.slice(100_000..)]).await.unwrap() };
        let (received, ()) = futures_util::join!(channel.recv(), sent);
        assert_eq!(received.unwrap().unwrap().body, body);
        assert!(!channel.waits_for_memory());
    })
    .unwrap();
}

/// A channel whose peer has sent part of a message, for which there is no memory. It fits into the socket's buffer, so the
/// end of the stream can follow it.
async fn starved() -> (Rc<dyn Channel>, Pool, Vec<Buf>, Stream) {
    let (channel, pool, _, peer) = strange().await;
    channel.authenticated();
    takes_nothing_whole(&channel).await;
    let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(MAX_STAGING)).collect();
    peer.send_all(&[header(1 << 16), Bytes::from(vec![7; 30_000])]).await.unwrap();
    rt::sleep(Duration::from_millis(5)).await;
    takes_nothing_whole(&channel).await;
    assert!(channel.waits_for_memory() && pool.waiting() == 1);
    (channel, pool, held, peer)
}

#[test]
fn a_client_that_leaves_while_its_message_waits_for_memory_is_noticed() {
    // Closing with unread bytes is a reset.
    for unread in [false, true] {
        rt::block_on(async {
            let (channel, pool, held, peer) = starved().await;
            if unread {
                channel.send(Outgoing::bytes("an answer")).await.unwrap();
                rt::sleep(Duration::from_millis(5)).await;
            }
            drop(peer);
            let ended = rt::timeout(Duration::from_secs(5), channel.recv()).await;
            assert!(matches!(ended.expect("its end is noticed"), Err(Error::Io(_))));
            assert_eq!(pool.waiting(), 0, "its place in the queue is free");
            drop(held);
            assert_eq!(pool.in_use_bytes(), 0, "and so is what it held");
        })
        .unwrap();
    }
}

#[test]
fn a_simulated_client_that_leaves_while_its_message_waits_for_memory_is_noticed() {
    for how in [CutHow::Reset, CutHow::Close] {
        let cuts = vec![Cut { connection: 0, side: Side::Dialer, at_byte: 40_000, how }];
        let faults = Faults { cuts, socket_buffer_bytes: 2 << 20, ..Faults::default() };
        Sim::new(6).faults(faults).run(async {
            let (channel, pool, held, peer) = starved().await;
            let _ = peer.send_all(&[Bytes::from(vec![7; 35_000])]).await;
            assert!(channel.recv().await.is_err(), "{how:?}");
            assert_eq!(pool.waiting(), 0);
            drop(held);
            assert_eq!(pool.in_use_bytes(), 0);
        });
    }
}

#[test]
fn a_channel_that_is_told_to_close_gives_back_what_a_message_has_that_has_not_arrived() {
    rt::block_on(async {
        let (channel, pool, _, peer) = strange().await;
        channel.authenticated();
        peer.send_all(&[header(4 << 20), Bytes::from(vec![7; 600_000])]).await.unwrap();
        rt::sleep(Duration::from_millis(5)).await;
        takes_nothing_whole(&channel).await;
        assert!(pool.in_use_bytes() >= 4 << 20);
        channel.close();
        assert!(channel.recv().await.unwrap().is_none());
        assert_eq!(pool.in_use_bytes(), 0, "although the channel still lives");
    })
    .unwrap();
}

/// The staging of a channel that has received little.
const MAX_STAGING: usize = 64 << 10;

#[test]
fn a_peer_that_becomes_known_inside_a_message_goes_on_with_it() {
    for part in [2, 4, 5, 100, 5000, 20_000, 40_000] {
        rt::block_on(async {
            let (channel, _, strangers, peer) = strange().await;
            let body = Bytes::from((0..60_000_u32).map(|n| n as u8).collect::<Vec<_>>());
            let message = Bytes::from([&header(body.len())[..], &body].concat());
            peer.send_all(&[message.slice(..part)]).await.unwrap();
            takes_nothing_whole(&channel).await;
            channel.authenticated();
            peer.send_all(&[message.slice(part..)]).await.unwrap();
            assert_eq!(channel.recv().await.unwrap().unwrap().body, body);
            peer.send_all(&[header(1 << 20), Bytes::from(vec![1; 1 << 20])]).await.unwrap();
            assert_eq!(channel.recv().await.unwrap().unwrap().body.len(), 1 << 20);
            drop(channel);
            rt::yield_now().await;
            assert_eq!(strangers.in_use_bytes(), 0);
        })
        .unwrap();
    }
}

#[test]
fn strangers_are_not_waited_for_for_ever() {
    Sim::new(1).run(async {
        let (channel, .., _peer) = strange().await;
        let begun = rt::now();
        assert!(matches!(channel.recv().await, Err(Error::TimedOut(_))));
        let waited = rt::now().since(begun);
        assert!(waited >= LOGON && waited < LOGON + 2 * TICK, "{waited:?}");
        let (channel, .., peer) = strange().await;
        channel.authenticated();
        rt::sleep(20 * LOGON).await;
        peer.send_all(&[header(1), Bytes::from_static(b"x")]).await.unwrap();
        assert_eq!(channel.recv().await.unwrap().unwrap().body, "x", "a known peer may be idle");
    });
}

#[test]
fn a_message_that_comes_byte_by_byte_ends_the_connection() {
    /// How long the channel tolerates it.
    async fn trickle(known: bool) -> Duration {
        let (channel, .., peer) = strange().await;
        if known {
            channel.authenticated();
        }
        rt::spawn(async move {
            let mut next = header(1000);
            loop {
                if peer.send_all(&[next.split_to(1)]).await.is_err() {
                    return;
                }
                if next.is_empty() {
                    next = Bytes::from_static(&[0; 900]);
                }
                rt::sleep(Duration::from_secs(1)).await;
            }
        })
        .detach();
        let begun: Time = rt::now();
        assert!(matches!(channel.recv().await, Err(Error::TimedOut(_))));
        rt::now().since(begun)
    }
    Sim::new(2).run(async {
        let (strange, known) = (trickle(false).await, trickle(true).await);
        assert!(strange < Duration::from_secs(30), "{strange:?}");
        assert!(known > Duration::from_secs(50) && known < Duration::from_secs(90), "{known:?}");
    });
}

#[test]
fn a_client_that_leaves_between_messages_is_no_fault_however_it_leaves() {
    for (at_byte, inside) in [(7, false), (9, true)] {
        for how in [CutHow::Reset, CutHow::Close] {
            let cuts = vec![Cut { connection: 0, side: Side::Dialer, at_byte, how }];
            Sim::new(5).faults(Faults { cuts, ..Faults::default() }).run(async {
                let (channel, .., peer) = strange().await;
                let two = [header(3), Bytes::from_static(b"one"), header(3), Bytes::from_static(b"two")];
                let _ = peer.send_all(&two).await;
                assert_eq!(channel.recv().await.unwrap().unwrap().body, "one");
                match channel.recv().await {
                    Ok(None) => assert!(!inside, "{how:?}"),
                    Err(Error::Io(_)) => assert!(inside, "{how:?}"),
                    other => panic!("{other:?}"),
                }
            });
        }
    }
}

#[test]
fn a_server_that_does_not_read_blames_nobody() {
    Sim::new(3).run(async {
        let (channel, .., peer) = strange().await;
        channel.authenticated();
        peer.send_all(&[header(5), Bytes::from_static(b"ab")]).await.unwrap();
        rt::sleep(Duration::from_secs(1)).await;
        takes_nothing_whole(&channel).await;
        // The reader was dropped: the remainder may have arrived long ago.
        rt::sleep(Duration::from_secs(1000)).await;
        peer.send_all(&[Bytes::from_static(b"cde")]).await.unwrap();
        assert_eq!(channel.recv().await.unwrap().unwrap().body, "abcde");
    });
}

#[test]
fn a_peer_that_sends_nothing_but_keepalives_lets_others_have_their_turn() {
    const KEEPALIVES: usize = 1 << 20;
    let faults = Faults { socket_buffer_bytes: 8 << 20, ..Faults::default() };
    Sim::new(4).faults(faults).run(async {
        let (channel, .., peer) = strange().await;
        peer.send_all(&[[0x85, 0, 0, 0].repeat(KEEPALIVES).into(), header(1), "x".into()]).await.unwrap();
        rt::sleep(Duration::from_secs(1)).await;
        let mut turns = 0;
        let mut receiving = channel.recv();
        let message = poll_fn(|cx| {
            turns += 1;
            receiving.as_mut().poll(cx)
        });
        assert_eq!(message.await.unwrap().unwrap().body, "x");
        assert!(turns >= 4, "{turns}");
    });
}
