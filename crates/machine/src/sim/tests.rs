use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::*;
use crate::net::{Listener, Stream};
use crate::rt::{self, Cores, now, sleep, spawn, timeout, yield_now};

async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(([10, 0, 0, 1], 0).into()).expect("bind");
    let addr = listener.local_addr();
    let accepting = spawn(async move { listener.accept().await });
    let ours = Stream::connect(addr).await.expect("connect");
    let theirs = Stream::from_socket(accepting.await.expect("accept")).expect("take over");
    (ours, theirs)
}

async fn recv_all(stream: &Stream) -> (Vec<u8>, io::Result<()>) {
    let mut all = Vec::new();
    loop {
        let mut some = [0; 1000];
        match stream.recv(&mut [IoSliceMut::new(&mut some)]).await {
            Ok(0) => return (all, Ok(())),
            Ok(n) => all.extend_from_slice(&some[..n]),
            Err(e) => return (all, Err(e)),
        }
    }
}

/// The message of the panic that `run` ends with.
fn panic_of(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it panics");
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
        .unwrap()
}

#[test]
fn the_generator_is_the_published_one() {
    // xoshiro256** seeded from 0 by splitmix64, as others compute it.
    let mut rng = Rng::new(0);
    assert_eq!(rng.bits(), 0x99ec_5f36_cb75_f2b4);
    assert!((0..1000).all(|_| (5..=9).contains(&rng.within(5..=9))));
    assert_eq!(rng.below(0), 0);
    assert_eq!(rng.within(7..=7), 7);
    let mut bytes = [0; 13];
    rng.fill(&mut bytes);
    assert_ne!(bytes, [0; 13]);
}

#[test]
fn time_jumps_from_timer_to_timer() {
    let order = Rc::new(RefCell::new(Vec::new()));
    let sim = Sim::new(1);
    sim.run(async {
        let start = now();
        for minutes in [30, 10, 20] {
            let order = order.clone();
            spawn(async move {
                sleep(Duration::from_secs(minutes * 60)).await;
                order.borrow_mut().push(minutes);
            })
            .detach();
        }
        sleep(Duration::from_secs(31 * 60)).await;
        assert_eq!(now().since(start), Duration::from_secs(31 * 60), "to the nanosecond");
    });
    assert_eq!(*order.borrow(), [10, 20, 30]);
    sim.run(async { assert_eq!(now().as_nanos(), 31 * 60 * 1_000_000_000, "time goes on") });
}

#[test]
fn timeouts_blocking_and_cores_work_as_on_real_cores() {
    Sim::new(2).run(async {
        let never = std::future::pending::<()>();
        assert_eq!(timeout(Duration::from_secs(5), never).await, Err(rt::Elapsed));
        assert_eq!(now().as_nanos(), 5_000_000_000);
        let here = std::thread::current().id();
        assert_eq!(rt::blocking(move || std::thread::current().id()).await, here, "inline");
        let cores = Cores::start(4, "none").expect("no threads");
        let ran = Rc::new(Cell::new(0));
        let (tell, told) = std::sync::mpsc::channel();
        for i in 0..4 {
            let tell = tell.clone();
            cores.run(
                i,
                move || async move { tell.send(std::thread::current().id()).expect("received below") },
            );
        }
        while ran.get() < 4 {
            yield_now().await;
            while let Ok(id) = told.try_recv() {
                assert_eq!(id, here);
                ran.set(ran.get() + 1);
            }
        }
        cores.shutdown();
    });
}

#[test]
fn dropped_tasks_end_and_detached_ones_run_on() {
    Sim::new(3).run(async {
        let log = Rc::new(RefCell::new(Vec::new()));
        let worker = |name: &'static str| {
            let log = log.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                log.borrow_mut().push(name);
                name
            }
        };
        drop(spawn(worker("dropped")));
        spawn(worker("detached")).detach();
        assert_eq!(spawn(worker("awaited")).await, "awaited");
        sleep(Duration::from_secs(1)).await;
        log.borrow_mut().sort_unstable();
        assert_eq!(*log.borrow(), ["awaited", "detached"]);
    });
}

/// A world with a bit of everything, whose outcome depends on the interleaving.
fn busy_world(seed: u64) -> (Vec<u64>, (u64, u64)) {
    let sim = Sim::new(seed).faults(Faults::rough());
    let order = sim.run(async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let (ours, theirs) = pair().await;
        let receiving = spawn(async move { recv_all(&theirs).await });
        let tasks: Vec<_> = (0..10)
            .map(|i| {
                let order = order.clone();
                spawn(async move {
                    for _ in 0..with_rng(|rng| rng.below(5)) {
                        yield_now().await;
                    }
                    sleep(Duration::from_micros(with_rng(|rng| rng.within(0..=3)))).await;
                    order.borrow_mut().push(i);
                })
            })
            .collect();
        ours.send_all(&[Bytes::from(vec![1; 30_000])]).await.expect("send");
        drop(ours);
        for task in tasks {
            task.await;
        }
        assert_eq!(receiving.await.0.len(), 30_000);
        order.take()
    });
    (order, sim.digest())
}

#[test]
fn one_seed_is_one_run() {
    let runs: Vec<_> = (0..20).map(busy_world).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(busy_world(seed as u64), *run);
        assert!(run.1.1 > 100, "the digest covers what happened");
    }
    let mut digests: Vec<_> = runs.iter().map(|run| run.1).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), runs.len(), "another seed is another run");
}

#[test]
fn a_deadlock_is_named() {
    let message = panic_of(|| {
        Sim::new(4).run(async {
            spawn(std::future::pending::<()>()).await;
        });
    });
    assert!(message.starts_with("deadlock"), "{message}");
    assert!(message.contains("sim/tests.rs"), "names where the waiting task was spawned: {message}");
    assert!(!active(), "the thread is free again");
    Sim::new(4).run(async {});
}

#[test]
fn a_run_without_end_meets_the_time_limit() {
    let message = panic_of(|| {
        Sim::new(5).time_limit(Duration::from_secs(10)).run(async {
            loop {
                sleep(Duration::from_secs(1)).await;
            }
        });
    });
    assert!(message.contains("time limit"), "{message}");
}

#[test]
fn a_panic_in_a_task_ends_the_run() {
    let message = panic_of(|| {
        Sim::new(6).run(async {
            spawn(async { panic!("on purpose") }).detach();
            sleep(Duration::from_secs(1)).await;
        });
    });
    assert_eq!(message, "on purpose");
}

#[test]
fn latency_and_bandwidth_take_their_time() {
    let latency = Duration::from_millis(3);
    let faults =
        Faults { latency: latency..=latency, bytes_per_second: Some(1_000_000), ..Faults::default() };
    Sim::new(7).faults(faults).run(async {
        let start = now();
        let (ours, theirs) = pair().await;
        assert_eq!(now().since(start), latency * 2, "a connection costs a round trip");
        let start = now();
        let receiving = spawn(async move { recv_all(&theirs).await.0.len() });
        ours.send_all(&[Bytes::from(vec![0; 500_000])]).await.expect("send");
        drop(ours);
        assert_eq!(receiving.await, 500_000);
        let took = now().since(start);
        assert!(took >= Duration::from_millis(500) + latency, "{took:?}");
        assert!(took < Duration::from_millis(600), "{took:?}");
    });
}

#[test]
fn a_full_buffer_holds_the_sender_back() {
    let faults = Faults { socket_buffer_bytes: 1000, ..Faults::default() };
    Sim::new(8).faults(faults).run(async {
        let (ours, theirs) = pair().await;
        let mut sent = 0;
        let error = loop {
            match ours.try_send(&[IoSlice::new(&[1; 300])]) {
                Ok(n) => sent += n,
                Err(e) => break e,
            }
        };
        assert_eq!((sent, error.kind()), (1000, io::ErrorKind::WouldBlock));
        let sending = spawn(async move {
            ours.send_all(&[Bytes::from(vec![2; 500])]).await.expect("send");
            now()
        });
        sleep(Duration::from_secs(1)).await;
        assert!(!sending.is_finished(), "nobody has read");
        let mut some = [0; 400];
        assert_eq!(theirs.recv(&mut [IoSliceMut::new(&mut some)]).await.expect("recv"), 400);
        sleep(Duration::from_secs(1)).await;
        assert!(!sending.is_finished(), "100 bytes still wait");
        let (rest, end) = recv_all(&theirs).await;
        end.expect("an orderly end");
        assert_eq!(rest.len(), 1100);
        sending.await;
    });
}

#[test]
fn splits_lose_nothing_and_do_split() {
    let faults = Faults { split: true, ..Faults::default() };
    Sim::new(9).faults(faults).run(async {
        let (ours, theirs) = pair().await;
        let all: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        ours.send_all(&[Bytes::from(all.clone())]).await.expect("send");
        drop(ours);
        sleep(Duration::from_secs(1)).await;
        let (mut got, mut receives) = (Vec::new(), 0);
        loop {
            let mut some = vec![0; 10_000];
            let n = theirs.recv(&mut [IoSliceMut::new(&mut some)]).await.expect("recv");
            if n == 0 {
                break;
            }
            receives += 1;
            got.extend_from_slice(&some[..n]);
        }
        assert_eq!(got, all);
        assert!(receives > 3, "{receives}");
    });
}

/// What the two ends of a connection see when the dialer's bytes are cut at 1234 of 5000.
fn cut_world(how: CutHow) {
    let cut = Cut { connection: 0, side: Side::Dialer, at_byte: 1234, how };
    let faults = Faults { cuts: vec![cut], socket_buffer_bytes: 2000, ..Faults::default() };
    for split in [false, true] {
        let faults = Faults { split, ..faults.clone() };
        Sim::new(10).faults(faults).run(async {
            let (ours, theirs) = pair().await;
            let limit = Duration::from_secs(60);
            let receiving =
                spawn(async move { timeout(limit, recv_all(&theirs)).await.map(|seen| (seen, theirs)) });
            let sent = timeout(limit, ours.send_all(&[Bytes::from(vec![3; 5000])])).await;
            let received = receiving.await;
            match how {
                CutHow::Reset => {
                    assert_eq!(sent.expect("told").expect_err("cut").kind(), io::ErrorKind::ConnectionReset);
                    let ((got, end), _theirs) = received.expect("told");
                    assert_eq!(got.len(), 1234);
                    assert_eq!(end.expect_err("cut").kind(), io::ErrorKind::ConnectionReset);
                    let (_, end) = recv_all(&ours).await;
                    assert_eq!(end.expect_err("cut").kind(), io::ErrorKind::ConnectionReset);
                }
                CutHow::Close => {
                    assert_eq!(sent.expect("told").expect_err("cut").kind(), io::ErrorKind::BrokenPipe);
                    let ((got, end), _theirs) = received.expect("told");
                    assert_eq!(got.len(), 1234);
                    end.expect("looks orderly");
                }
                CutHow::Silent => {
                    assert_eq!(sent.expect_err("the buffer fills, and that is all"), rt::Elapsed);
                    assert!(received.is_err(), "neither bytes nor an end");
                }
            }
        });
    }
}

#[test]
fn a_cut_by_reset_shows_at_both_ends() {
    cut_world(CutHow::Reset);
}

#[test]
fn a_cut_by_close_looks_like_an_orderly_end() {
    cut_world(CutHow::Close);
}

#[test]
fn a_silent_cut_shows_nowhere() {
    cut_world(CutHow::Silent);
}

#[test]
fn all_connections_can_be_cut_at_once_and_new_ones_made() {
    Sim::new(11).run(async {
        let (a, b) = pair().await;
        let (c, d) = pair().await;
        cut_all(CutHow::Reset);
        for stream in [a, b, c, d] {
            let (got, end) = recv_all(&stream).await;
            assert_eq!((got.len(), end.expect_err("cut").kind()), (0, io::ErrorKind::ConnectionReset));
        }
        let (a, b) = pair().await;
        a.send_all(&[Bytes::from_static(b"hello")]).await.expect("send");
        drop(a);
        assert_eq!(recv_all(&b).await.0, b"hello");
        set_faults(Faults { latency: Duration::from_secs(9)..=Duration::from_secs(9), ..Faults::default() });
        let error = Stream::connect_within(([10, 0, 0, 1], 9).into(), Duration::from_secs(8)).await;
        assert_eq!(error.expect_err("too slow").kind(), io::ErrorKind::TimedOut);
    });
}

#[test]
fn a_listener_takes_so_many_and_the_wildcard_takes_any_address() {
    Sim::new(12).run(async {
        let listener = Listener::bind(([0, 0, 0, 0], 445).into()).expect("bind");
        let mut streams = Vec::new();
        let error = loop {
            match Stream::connect(([10, 1, 2, 3], 445).into()).await {
                Ok(stream) => streams.push(stream),
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(streams.len(), 128, "the backlog is bounded");
        let socket = listener.accept().await.expect("accept");
        assert_eq!(socket.peer().ip(), Some([10, 1, 2, 3].into()));
        drop(listener);
        let (_, end) = recv_all(&streams[1]).await;
        end.expect("a connection nobody accepted ends with its listener");
    });
}

#[test]
fn turns_last_for_ever_in_a_simulation_unless_they_are_short() {
    let looks = async || {
        for _ in 0..100 {
            rt::yield_if_due().await;
        }
    };
    assert!(turns_of_others(looks()) > 10);
    let others = Cell::new(false);
    Sim::new(1).run(async {
        let other = spawn(async {});
        looks().await;
        others.set(other.is_finished());
    });
    assert!(!others.get());
}
