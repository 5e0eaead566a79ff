//! Stories with injected delays. Each looks for its own operations, because the books are the process's.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, mpsc};
use std::task::Waker;
use std::time::Instant;

use super::*;
use crate::meter::{Class, Moved, Subject};
use crate::net::Stream;
use crate::{clock, net, rt};

static CLASS: Class = Class::new(
    "recorded",
    "test",
    &[
        "hops", "hangs", "blocks", "workers", "queue", "no queue", "sent", "spent", "partner", "hidden",
        "patient", "fast", "carried",
    ],
);
const THRESHOLD_TIME: Duration = Duration::from_millis(20);
/// How much the recorder's clock and the tests' may differ in a test.
const CLOCKS_DIFFER: Duration = Duration::from_millis(1);

fn what(operation: &str) -> What {
    let at = [
        "hops", "hangs", "blocks", "workers", "queue", "no queue", "sent", "spent", "partner", "hidden",
        "patient", "fast", "carried",
    ]
    .iter()
    .position(|name| *name == operation);
    CLASS.what(at.expect("a name of the class"), Subject::NONE)
}

fn run<T>(test: impl Future<Output = T>) -> T {
    enable(THRESHOLD_TIME);
    rt::block_on(test).expect("the loop starts")
}

fn found(operation: &str) -> Vec<Slow> {
    let is = |slow: &Slow| {
        slow.named.as_ref().is_some_and(|n| (n.protocol, n.operation) == ("recorded", operation))
    };
    slow().into_iter().filter(is).collect()
}

fn only(operation: &str) -> Slow {
    let mut all = found(operation);
    assert_eq!(all.len(), 1, "{operation}: {all:?}");
    all.remove(0)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The injected time is at this hop, and nearly nothing of it elsewhere.
#[track_caller]
fn assert_at(slow: &Slow, hop: Hop, injected: u64) {
    assert!(slow.hops.of(hop) >= ms(injected) * 8 / 10, "{hop} of {injected} ms: {slow:?}");
}

/// The only operation of this name, once it is shown to be at this hop.
fn seen_at(operation: &str, hop: Hop) -> Slow {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(slow) = found(operation).into_iter().find(|slow| slow.at == Some(hop)) {
            return slow;
        }
        assert!(Instant::now() < until, "{operation} is not shown at {hop}: {:?}", found(operation));
        std::thread::sleep(ms(1));
    }
}

/// Operations of this name that are told as longer than all of this took: what a busy host holds up is slow indeed.
fn longer_than(operation: &str, took: Duration) -> Vec<Slow> {
    found(operation).into_iter().filter(|slow| slow.total > took + CLOCKS_DIFFER).collect()
}

#[track_caller]
fn assert_whole(slow: &Slow) {
    let sum: Duration = Hop::ALL.into_iter().map(|hop| slow.hops.of(hop)).sum();
    assert!(sum.abs_diff(slow.total) < ms(1), "{sum:?} of {slow:?}");
}

#[test]
fn each_wait_is_told_by_what_it_is_for_and_all_add_up() {
    let begun = Instant::now();
    run(async {
        recorded(async {
            is(what("hops"));
            moves(8192);
            described(
                async {
                    at(Hop::Disk, rt::sleep(ms(60))).await;
                    // Unnamed waits are for its turn.
                    rt::sleep(ms(40)).await;
                    at(Hop::Wire, rt::sleep(ms(50))).await;
                },
                || Details { file: "f".repeat(1000), ..Details::default() },
            )
            .await;
        })
        .await;
    });
    let besides = begun.elapsed() - ms(60 + 40 + 50);
    let slow = only("hops");
    assert_at(&slow, Hop::Disk, 60);
    assert_at(&slow, Hop::Queue, 40);
    assert_at(&slow, Hop::Wire, 50);
    assert!(slow.hops.of(Hop::Store) <= besides + CLOCKS_DIFFER, "{slow:?}, {besides:?}");
    assert_whole(&slow);
    assert_eq!((slow.at, slow.bytes, slow.details.file.len()), (None, 8192, flight::MAX_TEXT_BYTES));
    let age = clock::wall().saturating_sub(slow.began);
    assert!(age >= slow.total && age < Duration::from_secs(60), "{age:?}");
}

#[test]
fn what_hangs_is_shown_while_it_hangs() {
    let (told, waits) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let core = std::thread::spawn(move || {
        run(async {
            recorded(async {
                is(what("hangs"));
                at(
                    Hop::Disk,
                    rt::blocking(move || {
                        told.send(()).unwrap();
                        ended.recv().unwrap();
                    }),
                )
                .await;
            })
            .await;
        });
    });
    waits.recv().unwrap();
    seen_at("hangs", Hop::Disk);
    std::thread::sleep(ms(60));
    let slow = only("hangs");
    assert_eq!(slow.at, Some(Hop::Disk));
    assert_at(&slow, Hop::Disk, 60);
    end.send(()).unwrap();
    core.join().unwrap();
    assert_eq!(only("hangs").at, None);
}

#[test]
fn an_operation_that_blocks_its_core_is_shown_although_it_never_waits() {
    let (told, waits) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let core = std::thread::spawn(move || {
        run(async {
            let operation = AtOnce::begin(what("blocks"));
            told.send(()).unwrap();
            ended.recv().unwrap();
            // Counted first, as every operation is.
            CLASS.answered(Subject::NONE, 2, meter::started(), Moved::default());
            answered(|| Details { file: "blocked".to_owned(), ..Details::default() });
            drop(operation);
        });
    });
    waits.recv().unwrap();
    std::thread::sleep(ms(60));
    let slow = only("blocks");
    assert_eq!(slow.at, Some(Hop::Store));
    assert_at(&slow, Hop::Store, 60);
    end.send(()).unwrap();
    core.join().unwrap();
    let slow = only("blocks");
    assert_eq!((slow.at, &*slow.details.file), (None, "blocked"));
    assert_at(&slow, Hop::Store, 60);
}

#[test]
fn a_wait_for_a_worker_is_told_apart_from_its_work() {
    let (release, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let releases = std::thread::spawn(move || {
        seen_at("workers", Hop::Pool);
        std::thread::sleep(ms(90));
        drop(release);
    });
    run(async {
        let begun = Arc::new(AtomicU8::new(0));
        let others: Vec<_> = (0..4)
            .map(|_| {
                let (held, begun) = (held.clone(), begun.clone());
                rt::spawn(rt::lengthy(move || {
                    begun.fetch_add(1, Ordering::Relaxed);
                    let _ = held.lock().unwrap().recv();
                }))
            })
            .collect();
        while begun.load(Ordering::Relaxed) < 4 {
            rt::sleep(ms(1)).await;
        }
        recorded(async {
            is(what("workers"));
            rt::lengthy(|| std::thread::sleep(ms(60))).await;
        })
        .await;
        for other in others {
            other.await;
        }
    });
    releases.join().unwrap();
    let slow = only("workers");
    // Other tests may have used the places as well.
    assert_at(&slow, Hop::Pool, 90);
    assert_at(&slow, Hop::Store, 60);
    assert_whole(&slow);
}

#[test]
fn a_message_that_waits_for_a_busy_core_has_queued() {
    let (first, second) = run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let stream = Stream::from_socket(net::Socket::from_unix(ours).unwrap()).unwrap();
        let server = rt::spawn(async move {
            let mut bytes = [0; 8];
            let mut answered = Vec::new();
            for operation in ["queue", "no queue"] {
                stream.recv(&mut [IoSliceMut::new(&mut bytes)]).await.unwrap();
                recorded(async { is(what(operation)) }).await;
                answered.push(Instant::now());
                stream.try_send(&[IoSlice::new(b"done")]).unwrap();
            }
            answered
        });
        let idle = Instant::now();
        rt::sleep(ms(30)).await;
        std::io::Write::write_all(&mut &theirs, b"1").unwrap();
        // Another task has the core.
        std::thread::sleep(ms(100));
        let idle_again = Instant::now();
        rt::sleep(ms(50)).await;
        // Nothing but a busy host keeps the core from this one.
        std::io::Write::write_all(&mut &theirs, b"2").unwrap();
        let [first, second] = server.await.try_into().unwrap();
        (first.duration_since(idle) - ms(30), second.duration_since(idle_again) - ms(50))
    });
    let slow = only("queue");
    assert_at(&slow, Hop::Queue, 100);
    assert!(longer_than("queue", first).is_empty(), "{slow:?} of {first:?}");
    assert!(longer_than("no queue", second).is_empty(), "{:?} of {second:?}", found("no queue"));
}

#[test]
fn an_answer_that_is_not_taken_waits_for_the_wire_or_for_the_disk() {
    let begun = Instant::now();
    run(async {
        let stage = Stage::new();
        let ((), mut operation) = kept(async { is(what("sent")) }).await;
        operation.sending([stage.clone()], Details::default);
        // Nothing changes if it is told again.
        operation.sending([stage.clone()], Details::default);
        staged(&stage, at(Hop::Disk, rt::sleep(ms(60)))).await;
        let waits = found("sent");
        assert!(matches!(&waits[..], [Slow { at: Some(Hop::Wire), .. }]), "{waits:?}");
        rt::sleep(ms(80)).await;
        drop(operation);
    });
    let most = begun.elapsed() - ms(60);
    let slow = only("sent");
    assert_at(&slow, Hop::Disk, 60);
    assert_at(&slow, Hop::Wire, 80);
    assert!(slow.hops.of(Hop::Wire) <= most + CLOCKS_DIFFER, "{slow:?}");
    assert_whole(&slow);
}

#[test]
fn a_long_call_on_the_core_is_told_by_what_it_was() {
    run(async {
        recorded(async {
            is(what("spent"));
            std::thread::sleep(ms(50));
            spent(Hop::Disk);
            std::thread::sleep(ms(40));
            spent(Hop::Decode);
            std::thread::sleep(ms(30));
        })
        .await;
    });
    let slow = only("spent");
    assert_at(&slow, Hop::Disk, 50);
    assert_at(&slow, Hop::Decode, 40);
    assert_at(&slow, Hop::Store, 30);
    assert_whole(&slow);
}

#[test]
fn another_thread_may_say_what_an_operation_waits_for() {
    run(async {
        recorded(async {
            is(what("partner"));
            let mut waiting = wait(Hop::Disk);
            let (wakers, theirs) = mpsc::channel::<Waker>();
            let is_over = Arc::new(AtomicU8::new(0));
            let over = is_over.clone();
            let other = std::thread::spawn(move || {
                // Once the operation waits: while a busy host keeps it from that, it is in the store.
                let first = theirs.recv().unwrap();
                std::thread::sleep(ms(50));
                waiting.becomes(Hop::Replica);
                std::thread::sleep(ms(70));
                drop(waiting);
                over.store(1, Ordering::Release);
                theirs.try_iter().last().unwrap_or(first).wake();
            });
            std::future::poll_fn(|cx| {
                let _ = wakers.send(cx.waker().clone());
                if is_over.load(Ordering::Acquire) == 1 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            other.join().unwrap();
        })
        .await;
    });
    let slow = only("partner");
    assert_at(&slow, Hop::Disk, 50);
    assert_at(&slow, Hop::Replica, 70);
    assert_whole(&slow);
}

#[test]
fn waits_on_purpose_are_not_slow() {
    run(async {
        recorded(async {
            is(what("hidden"));
            hide();
            rt::sleep(ms(60)).await;
        })
        .await;
        recorded(async {
            is(what("hidden"));
            rt::yield_now().await;
            hide();
            rt::sleep(ms(60)).await;
        })
        .await;
        recorded(async {
            is(what("patient"));
            is_patient();
            at(Hop::Peer, rt::sleep(ms(60))).await;
        })
        .await;
    });
    for operation in ["hidden", "patient"] {
        assert!(found(operation).is_empty(), "{operation}: {:?}", found(operation));
    }
}

#[test]
fn what_does_not_take_long_is_not_slow() {
    let begun = Instant::now();
    run(async {
        recorded(async { is(what("fast")) }).await;
        recorded(async {
            is(what("fast"));
            rt::yield_now().await;
        })
        .await;
    });
    assert!(longer_than("fast", begun.elapsed()).is_empty(), "{:?}", found("fast"));
}

#[test]
fn work_that_continues_in_another_task_is_the_same_operation() {
    run(async {
        recorded(async {
            is(what("carried"));
            rt::to_the_end(async {
                rt::sleep(ms(30)).await;
                at(Hop::Disk, rt::sleep(ms(80))).await;
            })
            .await;
        })
        .await;
    });
    let slow = only("carried");
    assert_at(&slow, Hop::Disk, 80);
    assert_at(&slow, Hop::Queue, 30);
    assert_whole(&slow);
}
