//! Clients that break rules, volumes that fail, and limits that hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::buf::MAX_BUF;
use weft_machine::{Pool, rt, sim};
use weft_store::Error as StoreError;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};
use weft_store::volume::plain::Plain;
use weft_wire::nbd::transmission::{Code, Command, Request, command_flags as flag};

use super::client::{Client, SIZE, server, server_over, tell};
use crate::negotiation::Agreed;
use crate::{Error, Limits, execute};

#[test]
fn what_is_no_request_ends_the_connection() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let client = Client::go(&server, "vol1", true).await;
        client.send(&[0xff; 28]).await;
        assert!(matches!(client.ended.wait().await, Err(Error::Malformed(_))));
        // A payload that is too long to skip: the stream cannot continue.
        let mut client = Client::go(&server, "vol1", true).await;
        client.ask(Command::WRITE, 0, 0, (32 << 20) + 1, &[]).await;
        assert!(matches!(client.ended.wait().await, Err(Error::Violation(_))));
        assert!(client.is_over().await);
    });
}

#[test]
fn a_client_that_dies_at_any_byte_takes_nobody_along() {
    tell(async {
        let server = server(&["vol1"], Limits { piece_bytes: 4096, ..Limits::default() });
        let write = Request { flags: flag::FUA, command: Command::WRITE, cookie: 1, offset: 512, len: 9000 };
        let bytes = [&write.emit()[..], &[7; 9000]].concat();
        for cut in (0..64).chain((64..bytes.len()).step_by(997)) {
            let client = Client::go(&server, "vol1", cut % 2 == 0).await;
            client.send(&bytes[..cut]).await;
            drop(client.stream);
            let ended = client.ended.wait().await;
            assert!(ended.is_ok() == (cut == 0), "cut at {cut}: {ended:?}");
        }
        // Other clients are still served.
        assert_eq!(Client::go(&server, "vol1", true).await.read(SIZE - 1, 1).await, [0]);
    });
}

#[test]
fn a_client_that_announces_and_does_not_send_gives_its_buffer_back() {
    tell(async {
        let limits = Limits { payload: std::time::Duration::ZERO, piece_bytes: 8192, ..Limits::default() };
        let server = server(&["vol1"], limits);
        for len in [4096, 100_000] {
            let mut client = Client::go(&server, "vol1", true).await;
            client.ask(Command::WRITE, 0, 0, len, &[1; 10]).await;
            assert!(matches!(client.ended.wait().await, Err(Error::Violation(_))));
            assert_eq!(server.resources.received.in_use_bytes(), 0);
        }
    });
}

#[test]
fn what_a_client_begins_it_ends_in_time() {
    tell(async {
        let limits = Limits { payload: std::time::Duration::ZERO, ..Limits::default() };
        let server = server(&["vol1"], limits);
        // Half a request.
        let client = Client::go(&server, "vol1", true).await;
        client.send(&[0x25, 0x60]).await;
        assert!(matches!(client.ended.wait().await, Err(Error::Violation(_))));
        // The payload of a WRITE that is refused because it ends beyond the volume.
        let mut client = Client::go(&server, "vol1", true).await;
        client.ask(Command::WRITE, 0, SIZE, 4096, &[1; 10]).await;
        assert!(matches!(client.ended.wait().await, Err(Error::Violation(_))));
        // Between requests, a client may wait as long as it likes.
        let mut client = Client::go(&server, "vol1", true).await;
        for _ in 0..2 {
            rt::sleep(std::time::Duration::from_millis(5)).await;
            assert_eq!(client.read(0, 1).await, [0]);
        }
    });
}

#[test]
fn a_client_that_keeps_requests_coming_lets_others_have_their_turn() {
    const REQUESTS: usize = 4000;
    const REPLY_LEN: usize = 16;
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let client = Client::go_by_tcp(&server, "vol1").await;
        let flush = Request { flags: 0, command: Command::FLUSH, cookie: 1, offset: 0, len: 0 }.emit();
        client.send(&flush.repeat(REQUESTS)).await;
        let waiting = || client.stream.waiting_bytes().expect("counted");
        let (mut before, mut most) = (waiting(), 0);
        while waiting() < REQUESTS * REPLY_LEN {
            rt::yield_now().await;
            most = most.max(waiting() - before);
            before = waiting();
        }
        assert!(most < REQUESTS * REPLY_LEN, "{most} bytes of answers in one turn");
    });
}

#[test]
fn random_bytes_end_a_connection_and_nothing_else() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..200 {
            let mut bytes = Vec::new();
            for _ in 0..1 + round {
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes());
            }
            let client = match round % 3 {
                0 => Client::silent(&server),
                1 => Client::connect(&server).await,
                _ => Client::go(&server, "vol1", true).await,
            };
            // The server may have closed the connection before all is sent.
            drop(client.stream.send_all(&[bytes.into()]).await);
            drop(client.stream);
            assert!(client.ended.wait().await.is_err(), "round {round}");
        }
    });
}

/// A block device whose replies and failures the test controls.
#[derive(Debug)]
struct Slow {
    inside: Plain,
    held: AtomicBool,
    failing: AtomicBool,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new() -> Arc<Slow> {
        Arc::new(Slow {
            inside: Plain::in_memory(SIZE).expect("memory"),
            held: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        })
    }
}

/// A request that has neither finished nor been dropped.
struct UnderWay<'a>(&'a AtomicUsize);

impl UnderWay<'_> {
    fn new(count: &AtomicUsize) -> UnderWay<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Block for Slow {
    fn geometry(&self) -> Geometry {
        self.inside.geometry()
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(async move {
            let counted = UnderWay::new(&self.under_way);
            self.most.fetch_max(self.under_way.load(Ordering::Relaxed), Ordering::Relaxed);
            while self.held.load(Ordering::Relaxed) {
                rt::yield_now().await;
            }
            drop(counted);
            match self.failing.load(Ordering::Relaxed) {
                true => Err(std::io::Error::other("the disk is broken").into()),
                false => self.inside.submit(op).await,
            }
        })
    }
}

#[test]
fn requests_under_way_are_limited_and_none_is_lost() {
    tell(async {
        let slow = Slow::new();
        let limits = Limits { requests: 8, ..Limits::default() };
        let server = server_over(&["vol1"], vec![slow.clone()], limits);
        let mut client = Client::go(&server, "vol1", true).await;
        slow.held.store(true, Ordering::Relaxed);
        let mut open = Vec::new();
        for i in 0..100 {
            open.push(client.ask(Command::WRITE, 0, i * 512, 512, &[i as u8; 512]).await);
        }
        while slow.under_way.load(Ordering::Relaxed) < 8 {
            rt::yield_now().await;
        }
        slow.held.store(false, Ordering::Relaxed);
        for _ in 0..100 {
            let answer = client.answer(0, 0).await;
            open.retain(|cookie| *cookie != answer.cookie);
        }
        assert!(open.is_empty());
        assert_eq!(slow.most.load(Ordering::Relaxed), 8);
    });
}

/// Others wait for what a request was granted, so requests that are no longer polled are dropped.
#[test]
fn a_write_in_pieces_is_given_up_by_a_server_that_drains_while_others_go_on() {
    tell(async {
        let slow = Slow::new();
        let limits = Limits { piece_bytes: 1 << 20, ..Limits::default() };
        let server = server_over(&["vol1"], vec![slow.clone()], limits);
        let mut client = Client::go(&server, "vol1", false).await;
        slow.held.store(true, Ordering::Relaxed);
        let first = client.ask(Command::WRITE, 0, 0, 512, &[1; 512]).await;
        client.ask(Command::WRITE, 0, 0, 5 << 20, &vec![2; 1 << 20]).await;
        while slow.under_way.load(Ordering::Relaxed) < 2 {
            rt::yield_now().await;
        }
        server.drain();
        // How many turns that takes depends on the machine.
        while slow.under_way.load(Ordering::Relaxed) == 2 {
            rt::yield_now().await;
        }
        for _ in 0..100 {
            rt::yield_now().await;
        }
        assert_eq!(slow.under_way.load(Ordering::Relaxed), 1, "the first one goes on");
        slow.held.store(false, Ordering::Relaxed);
        assert_eq!(client.answer(0, 0).await.cookie, first);
        assert!(client.is_over().await);
        drop(client.stream);
        client.ended.wait().await.expect("in order");
    });
}

#[test]
fn bytes_under_way_are_limited_below_what_the_pool_has() {
    tell(async {
        let slow = Slow::new();
        let limits = Limits { unanswered_bytes: 1 << 20, ..Limits::default() };
        let server = server_over(&["vol1"], vec![slow.clone()], limits);
        let mut client = Client::go(&server, "vol1", false).await;
        slow.held.store(true, Ordering::Relaxed);
        let piece = 256 << 10;
        let asked: Vec<u64> = (0..40).collect();
        let sending = async {
            for i in &asked {
                client.ask(Command::WRITE, 0, i * piece, piece as u32, &vec![1; piece as usize]).await;
            }
        };
        let release = async {
            while slow.under_way.load(Ordering::Relaxed) < 4 {
                rt::yield_now().await;
            }
            for _ in 0..100 {
                rt::yield_now().await;
            }
            slow.held.store(false, Ordering::Relaxed);
        };
        futures_util::future::join(sending, release).await;
        for _ in &asked {
            assert_eq!(client.answer(0, 0).await.error, None);
        }
        assert_eq!(slow.most.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn what_the_volume_fails_at_is_the_clients_to_know() {
    tell(async {
        let slow = Slow::new();
        let server =
            server_over(&["vol1"], vec![slow.clone()], Limits { piece_bytes: 1 << 20, ..Limits::default() });
        for structured in [true, false] {
            let mut client = Client::go(&server, "vol1", structured).await;
            slow.failing.store(true, Ordering::Relaxed);
            assert_eq!(client.write(0, 0, &[1; 512]).await, Some(Code::Io));
            // In pieces: what follows the failed piece is discarded.
            assert_eq!(client.write(0, 0, &vec![1; 5 << 20]).await, Some(Code::Io));
            for command in [Command::READ, Command::FLUSH, Command::TRIM] {
                let len = if command == Command::FLUSH { 0 } else { 512 };
                assert_eq!(client.call(command, 0, 0, len).await.error, Some(Code::Io));
            }
            slow.failing.store(false, Ordering::Relaxed);
            assert_eq!(client.write(0, 0, &[1; 512]).await, None);
        }
    });
}

#[test]
fn an_announced_write_has_no_buffer_until_part_of_it_is_here() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let len = 1 << 20;
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let mut client = Client::go_by_tcp(&server, "vol1").await;
        client.ask(Command::WRITE, 0, 0, len, &data[..1000]).await;
        for _ in 0..4 {
            rt::yield_now().await;
        }
        assert_eq!((server.resources.received.in_use_bytes(), server.resources.pool.in_use_bytes()), (0, 0));
        let sent = client.stream.send_all(&[data[1000..].to_vec().into()]).await;
        sent.expect("the rest");
        assert_eq!(client.answer(0, 0).await.error, None);
        assert_eq!(client.read(0, len).await, data);
        assert_eq!(server.resources.received.in_use_bytes(), 0);
    });
}

/// Regression: each flush of a volume that could no longer be flushed was logged, forever.
#[test]
fn a_volume_that_fails_for_hours_fills_no_log() {
    let ((), lines) = sim::logged(1, async {
        let blocks = [Slow::new() as Arc<dyn Block>, Slow::new()];
        let server = server_over(&["vol1", "vol2"], blocks.into(), Limits::default());
        let failed = |export: usize| {
            let (export, failures) = server.chosen(export).expect("there is such an export");
            let agreed = Agreed { export, failures, structured: true, context: false };
            let flush = Request { flags: 0, command: Command::FLUSH, cookie: 1, offset: 0, len: 0 };
            execute::failed(&agreed, &flush, &std::io::Error::other("the disk is broken").into());
        };
        for _ in 0..3600 {
            failed(0);
            rt::sleep(Duration::from_secs(1)).await;
        }
        failed(1);
    });
    // The first ten, and five reminders; another volume has its own.
    let failures: Vec<_> = lines.iter().filter(|(_, line)| line.contains("the volume failed")).collect();
    assert_eq!(failures.len(), 16);
    assert!(failures[14].1.contains("599 more like this"), "{failures:?}");
}

#[test]
fn buffers_come_back() {
    tell(async {
        let pool = Pool::new(4 * MAX_BUF);
        let block: Arc<dyn Block> = Arc::new(Plain::in_memory(SIZE).expect("memory"));
        let export =
            crate::Export { name: "vol1".into(), description: String::new(), block, read_only: false };
        let server = crate::Server::new(crate::Config {
            exports: vec![export],
            pool: pool.clone(),
            received: pool.clone(),
            tls: None,
            limits: Limits::default(),
        });
        let mut client = Client::go(&server, "vol1", true).await;
        client.write(0, 0, &vec![1; 6 << 20]).await;
        client.read(0, 4096).await;
        client.ask(Command::DISC, 0, 0, 0, &[]).await;
        client.ended.wait().await.expect("in order");
        assert_eq!(pool.in_use_bytes(), 0);
    });
}
