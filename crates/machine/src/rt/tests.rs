use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Waker;

use super::*;
use crate::net::Readable;

/// Runs `test` on a real loop of each driver that works here, and on epoll in any case.
fn on_each_driver<F: Future>(test: impl Fn() -> F) {
    for driver in [Driver::Auto, Driver::Epoll] {
        let options = Options { driver, ..Options::default() };
        block_on_with(&options, test()).expect("the loop starts");
    }
}

thread_local! {
    /// Blocking calls that this thread handed to workers.
    pub(crate) static BLOCKING_CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Records that it was dropped.
struct OnDrop(Rc<Cell<bool>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn timers_end_in_the_order_of_their_deadlines() {
    on_each_driver(|| async {
        loop {
            let order = Rc::new(RefCell::new(Vec::new()));
            let start = now();
            let tasks: Vec<_> = [9, 5, 7, 4, 6]
                .into_iter()
                .map(|ms| {
                    let order = order.clone();
                    spawn(async move {
                        sleep_until(start + Duration::from_millis(ms)).await;
                        assert!(now().since(start) >= Duration::from_millis(ms), "no timer ends early");
                        order.borrow_mut().push(ms);
                    })
                })
                .collect();
            yield_now().await;
            // On a busy machine the first deadline may have passed before all timers were set: try again.
            let in_time = now().since(start) < Duration::from_millis(4);
            for task in tasks {
                task.await;
            }
            if in_time {
                assert_eq!(*order.borrow(), [4, 5, 6, 7, 9]);
                break;
            }
        }
    });
}

#[test]
fn timeout_gives_the_output_or_drops_the_future() {
    on_each_driver(|| async {
        assert_eq!(timeout(Duration::from_secs(60), async { 7 }).await, Ok(7));
        assert_eq!(timeout(Duration::ZERO, async { 7 }).await, Ok(7), "what is ready at once is in time");
        let dropped = Rc::new(Cell::new(false));
        let witness = OnDrop(dropped.clone());
        let never = async move {
            let _witness = witness;
            std::future::pending::<()>().await;
        };
        assert_eq!(timeout(Duration::from_millis(1), never).await, Err(Elapsed));
        assert!(dropped.get());
        assert_eq!(io::Error::from(Elapsed).kind(), io::ErrorKind::TimedOut);
    });
}

#[test]
fn dropping_a_task_cancels_it_and_detaching_does_not() {
    on_each_driver(|| async {
        let dropped = Rc::new(Cell::new(false));
        let witness = OnDrop(dropped.clone());
        let task = spawn(async move {
            let _witness = witness;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        assert!(!task.is_finished());
        drop(task);
        while !dropped.get() {
            yield_now().await;
        }
        let ran = Rc::new(Cell::new(false));
        let theirs = ran.clone();
        spawn(async move { theirs.set(true) }).detach();
        while !ran.get() {
            yield_now().await;
        }
    });
}

#[test]
fn what_still_runs_at_the_end_is_dropped() {
    let dropped = Rc::new(Cell::new(false));
    let witness = OnDrop(dropped.clone());
    block_on(async move {
        spawn(async move {
            let _witness = witness;
            std::future::pending::<()>().await;
        })
        .detach();
        yield_now().await;
    })
    .expect("the loop starts");
    assert!(dropped.get());
}

#[test]
#[should_panic(expected = "the task's own words")]
fn an_awaited_task_passes_its_panic_on() {
    let result = block_on(async { spawn(async { panic!("the task's own words") }).await });
    result.expect("the loop starts")
}

/// Starts a task when it is dropped.
struct SpawnsOnDrop(Rc<Cell<bool>>);

impl Drop for SpawnsOnDrop {
    fn drop(&mut self) {
        let told = OnDrop(self.0.clone());
        spawn(async move {
            let _told = told;
            unreachable!("its core has stopped");
        })
        .detach();
    }
}

#[test]
fn a_task_that_is_started_while_tasks_are_dropped_is_dropped_as_well() {
    let dropped: Vec<Rc<Cell<bool>>> = (0..100).map(|_| Rc::default()).collect();
    on_each_driver(|| async {
        for dropped in &dropped {
            dropped.set(false);
            let last = SpawnsOnDrop(dropped.clone());
            spawn(async move {
                let _last = last;
                std::future::pending::<()>().await;
            })
            .detach();
        }
        yield_now().await;
    });
    assert!(dropped.iter().all(|dropped| dropped.get()));
}

#[test]
fn a_panic_of_the_main_future_still_drops_the_tasks() {
    let dropped = Rc::new(Cell::new(false));
    let witness = OnDrop(dropped.clone());
    let run = std::panic::AssertUnwindSafe(move || {
        block_on(async move {
            spawn(async move {
                let _witness = witness;
                std::future::pending::<()>().await;
            })
            .detach();
            yield_now().await;
            panic!("on purpose");
        })
    });
    assert!(std::panic::catch_unwind(run).is_err());
    assert!(dropped.get());
    // The thread can run another loop.
    assert_eq!(block_on(async { 1 }).expect("the loop starts"), 1);
}

#[test]
fn blocking_calls_run_elsewhere_and_any_number_gets_its_turn() {
    on_each_driver(|| async {
        let here = std::thread::current().id();
        assert_ne!(blocking(|| std::thread::current().id()).await, here);
        let running = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..BLOCKING_MAX * 3)
            .map(|i| {
                let running = running.clone();
                spawn(blocking(move || {
                    let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    (i, at_once)
                }))
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            let (number, at_once) = task.await;
            assert_eq!(number, i);
            assert!(at_once <= BLOCKING_MAX);
        }
    });
}

#[test]
fn calls_that_take_long_keep_no_others_from_their_turn() {
    on_each_driver(|| async {
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let begun = Rc::new(Cell::new(0));
        // More than there are places of any kind, so they take all of them.
        let tasks: Vec<_> = (0..2 * BLOCKING_MAX)
            .map(|i| {
                let (held, begun) = (held.clone(), begun.clone());
                let wait = move || held.lock().unwrap().recv().unwrap();
                spawn(async move {
                    begun.set(begun.get() + 1);
                    match i % 2 {
                        0 => lengthy(wait).await,
                        _ => ranged(wait).await,
                    }
                })
            })
            .collect();
        // A turn on a busy machine ends before it has come to all of them.
        while begun.get() < tasks.len() {
            yield_now().await;
        }
        assert_eq!((LENGTHY.places().taken, RANGES.places().taken), (LENGTHY_MAX, RANGES_MAX));
        assert_eq!(blocking(|| 7).await, 7);
        tasks.iter().for_each(|_| release.send(()).unwrap());
        for task in tasks {
            task.await;
        }
    });
}

#[test]
fn a_wake_from_another_thread_ends_a_sleep() {
    on_each_driver(|| async {
        for round in 0..200 {
            let done = Arc::new(AtomicBool::new(false));
            let (give, take) = mpsc::channel::<Waker>();
            let theirs = done.clone();
            let thread = std::thread::spawn(move || {
                let waker = take.recv().expect("the core sends its waker");
                theirs.store(true, Ordering::SeqCst);
                waker.wake();
            });
            let mut give = Some(give);
            let wait = std::future::poll_fn(move |cx| {
                if done.load(Ordering::SeqCst) {
                    return Poll::Ready(());
                }
                if let Some(give) = give.take() {
                    give.send(cx.waker().clone()).expect("the thread waits");
                }
                Poll::Pending
            });
            // Both the main future and tasks must be reachable.
            if round % 2 == 0 {
                wait.await
            } else {
                spawn(wait).await
            }
            thread.join().expect("the thread ends");
        }
    });
}

#[test]
fn the_last_reference_to_the_cores_may_be_let_go_of_by_a_task_on_one() {
    let cores = std::sync::Arc::new(Cores::start(2, "core-test").expect("threads start"));
    let (let_go, wait) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let held = cores.clone();
    cores.run(0, move || async move {
        // Until the other reference is gone.
        let gone = wait.recv();
        drop(held);
        tell.send(gone).expect("the test listens");
    });
    drop(cores);
    drop(let_go);
    assert!(told.recv().expect("the task lives on").is_err());
}

#[test]
fn cores_run_what_they_are_given_where_they_are_told() {
    let cores = Cores::start(3, "core-test").expect("threads start");
    let (tell, told) = mpsc::channel();
    for i in 0..6 {
        let tell = tell.clone();
        cores.run(i, move || async move {
            yield_now().await;
            let name = std::thread::current().name().map(str::to_owned);
            tell.send((i, name)).expect("the test listens");
        });
    }
    let mut seen: Vec<_> = (0..6).map(|_| told.recv().expect("each future runs")).collect();
    seen.sort();
    for (i, name) in seen {
        assert_eq!(name.as_deref(), Some(&*format!("core-test-{}", i % 3)));
    }
    assert_eq!([cores.next(), cores.next(), cores.next(), cores.next()], [0, 1, 2, 0]);
    assert_eq!(cores.counters().len(), 3);
    cores.shutdown();
}

#[test]
fn shutdown_drops_what_still_runs_on_a_core_and_a_panicking_task_does_not_end_it() {
    struct Tell(mpsc::Sender<&'static str>);
    impl Drop for Tell {
        fn drop(&mut self) {
            self.0.send("dropped").expect("the test listens");
        }
    }
    let (tell, told) = mpsc::channel();
    let options = CoresOptions { pin: true, ..CoresOptions::default() };
    let cores = Cores::start_with(1, "core-test", &options).expect("threads start");
    cores.run(0, || async { panic!("on purpose") });
    cores.run(0, || -> std::future::Ready<()> { panic!("on purpose, before there is a future") });
    cores.run(0, move || async move {
        let tell = Tell(tell);
        tell.0.send("running").expect("the test listens");
        std::future::pending::<()>().await;
    });
    assert_eq!(told.recv(), Ok("running"));
    cores.shutdown();
    assert_eq!(told.recv(), Ok("dropped"));
    assert!(told.recv().is_err());
}

/// The consuming end of a ring in shared memory: the producer raises `head`, and signals `bell` only if it finds
/// `sleeping` set.
struct Ring {
    head: AtomicU64,
    sleeping: AtomicBool,
    bell: OwnedFd,
    signals: AtomicU64,
}

impl Ring {
    fn new() -> Arc<Ring> {
        use rustix::event::EventfdFlags;
        let bell =
            rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("eventfd");
        Arc::new(Ring {
            head: AtomicU64::new(0),
            sleeping: AtomicBool::new(false),
            bell,
            signals: AtomicU64::new(0),
        })
    }

    fn produce(&self) {
        self.head.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.signals.fetch_add(1, Ordering::Relaxed);
            rustix::io::write(&self.bell, &1u64.to_ne_bytes()).expect("the bell rings");
        }
    }
}

struct RingPoller {
    ring: Arc<Ring>,
    seen: Cell<u64>,
    reader: RefCell<Option<Waker>>,
    asleep: Cell<bool>,
}

impl Poller for RingPoller {
    fn poll(&self) -> bool {
        assert!(!self.asleep.get(), "no poll between before_sleep and after_sleep");
        if self.ring.head.load(Ordering::SeqCst) == self.seen.get() {
            return false;
        }
        self.reader.take().map(Waker::wake).is_some()
    }

    fn before_sleep(&self) -> bool {
        assert!(!self.asleep.replace(true), "before_sleep comes once");
        self.ring.sleeping.store(true, Ordering::SeqCst);
        if self.ring.head.load(Ordering::SeqCst) == self.seen.get() {
            return true;
        }
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
        false
    }

    fn after_sleep(&self) {
        assert!(self.asleep.replace(false), "after_sleep follows before_sleep");
        self.ring.sleeping.store(false, Ordering::SeqCst);
    }
}

/// Passes items from a thread to a core by a polled ring; hangs if a wake-up is lost.
fn items_through_a_ring(
    options: &Options,
    items: u64,
    pause: impl Fn(u64) + Send + 'static,
) -> (u64, Counters) {
    let ring = Ring::new();
    let theirs = ring.clone();
    block_on_with(options, async move {
        let poller = Rc::new(RingPoller {
            ring: ring.clone(),
            seen: Cell::new(0),
            reader: RefCell::new(None),
            asleep: Cell::new(false),
        });
        let _guard = register_poller(poller.clone());
        let bell = Readable::new(ring.bell.try_clone().expect("a descriptor")).expect("the bell is watched");
        // The bell only ends sleeps: the poller finds the items.
        spawn(async move {
            loop {
                bell.readable().await.expect("the bell can be waited for");
                // Somebody else silenced it since it was seen readable: nothing to take.
                let _ = rustix::io::read(bell.inner(), &mut [0u8; 8]);
            }
        })
        .detach();
        let producer = std::thread::spawn(move || {
            for i in 0..items {
                pause(i);
                theirs.produce();
            }
        });
        while poller.seen.get() < items {
            std::future::poll_fn(|cx| {
                let head = ring.head.load(Ordering::SeqCst);
                if head != poller.seen.get() {
                    poller.seen.set(head);
                    return Poll::Ready(());
                }
                *poller.reader.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
        producer.join().expect("the producer ends");
        (ring.signals.load(Ordering::Relaxed), counters())
    })
    .expect("the loop starts")
}

#[test]
fn no_wake_up_is_lost_between_a_poller_and_its_producer() {
    for driver in [Driver::Auto, Driver::Epoll] {
        for spin_max in [Duration::ZERO, Duration::from_micros(3), SPIN_MAX] {
            let options = Options { driver, spin_max };
            // Pauses around the length of a spin, so that items arrive in each phase of falling asleep.
            let (_, counters) = items_through_a_ring(&options, 3000, |i| {
                for _ in 0..(i * 7919) % 4000 {
                    std::hint::spin_loop();
                }
            });
            if spin_max.is_zero() {
                assert_eq!((counters.spins_won, counters.spins_lost), (0, 0), "no spin was allowed");
            }
        }
    }
}

#[test]
fn a_core_with_a_poller_sleeps_and_is_woken_by_the_descriptor() {
    let options = Options { spin_max: Duration::ZERO, ..Options::default() };
    let (signals, counters) = items_through_a_ring(&options, 50, |_| {
        // Long enough for the core to fall asleep on any machine that is not overloaded; if it were too short, the test
        // would only see fewer signals.
        std::thread::park_timeout(Duration::from_millis(1));
    });
    assert!(signals > 0, "at least one item found the core asleep");
    assert!(counters.sleeps > 0);
}

#[test]
fn a_removed_poller_is_asked_no_more() {
    struct Count(Cell<u64>);
    impl Poller for Count {
        fn poll(&self) -> bool {
            self.0.set(self.0.get() + 1);
            false
        }
        fn before_sleep(&self) -> bool {
            true
        }
        fn after_sleep(&self) {}
    }
    block_on(async {
        let (first, second) = (Rc::new(Count(Cell::new(0))), Rc::new(Count(Cell::new(0))));
        let first_guard = register_poller(first.clone());
        let _second_guard = register_poller(second.clone());
        sleep(Duration::from_millis(1)).await;
        assert!(first.0.get() > 0 && second.0.get() > 0);
        drop(first_guard);
        let (first_before, second_before) = (first.0.get(), second.0.get());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(first.0.get(), first_before);
        assert!(second.0.get() > second_before);
        assert_eq!(Rc::strong_count(&first), 1, "the list lets go of it");
    })
    .expect("the loop starts");
}

#[test]
fn an_idle_core_costs_next_to_nothing() {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    on_each_driver(|| async {
        let before = cpu();
        // Wakes 20 times: far more often than a core without connections does.
        for _ in 0..20 {
            sleep(Duration::from_millis(10)).await;
        }
        let used = cpu() - before;
        // At least 200 ms of one CPU have passed; the spins together take a fraction of a millisecond.
        assert!(used < Duration::from_millis(10), "{used:?}");
        assert!(counters().sleeps >= 20);
    });
}

/// Makes the kernel refuse io_uring to this thread with `errno`, as the seccomp filters of container runtimes do.
fn forbid_io_uring(errno: i32) {
    // struct sock_filter of seccomp(2): load the system call's number, compare, refuse or allow.
    let load =
        libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 };
    let compare = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_io_uring_setup as u32,
    };
    let answer = |k| libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k };
    let mut filter =
        [load, compare, answer(libc::SECCOMP_RET_ERRNO | errno as u32), answer(libc::SECCOMP_RET_ALLOW)];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl takes these arguments; the program and what it points to live until it returns, and the filter
    // concerns this thread only.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn where_io_uring_is_forbidden_epoll_takes_over() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let thread = std::thread::spawn(move || {
            forbid_io_uring(errno);
            let strict = Options { driver: Driver::IoUring, ..Options::default() };
            block_on_with(&strict, async {}).expect_err("io_uring is forbidden");
            block_on(async {
                sleep(Duration::from_millis(1)).await;
                let (a, b) = std::os::unix::net::UnixStream::pair().expect("socketpair");
                let b = Readable::new(b).expect("watch");
                let writing = blocking(move || rustix::io::write(&a, b"x").map(|_| a));
                let _a = writing.await.expect("write");
                b.readable().await.expect("wait");
            })
            .expect("the loop starts all the same");
        });
        thread.join().expect("epoll does it");
    }
}

#[test]
fn what_is_not_to_be_cancelled_runs_to_its_end_when_nobody_awaits_it() {
    on_each_driver(|| async {
        let ended = Rc::new(Cell::new(0));
        let counts = |ended: Rc<Cell<usize>>| async move {
            yield_now().await;
            ended.set(ended.get() + 1);
            ended.get()
        };
        assert_eq!(uncancelled(counts(ended.clone())).await, 1);
        drop(uncancelled(counts(ended.clone())));
        while ended.get() < 2 {
            yield_now().await;
        }
    });
}

#[test]
fn what_has_begun_and_has_to_wait_runs_to_its_end_when_nobody_awaits_it() {
    on_each_driver(|| async {
        let ended = Rc::new(Cell::new(0));
        let waits = |turns: usize| {
            let ended = ended.clone();
            async move {
                for _ in 0..turns {
                    yield_now().await;
                }
                ended.set(ended.get() + 1);
            }
        };
        let begin = |turns| {
            let mut begun = Box::pin(to_the_end(waits(turns)));
            begun.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(begin(0), "without another task");
        assert!(!begin(3));
        while ended.get() < 2 {
            yield_now().await;
        }
        drop(to_the_end(waits(0)));
        to_the_end(waits(3)).await;
        assert_eq!(ended.get(), 3, "what was never polled has not begun");
    });
}

#[test]
fn a_turn_ends_by_the_clock_and_begins_anew_when_the_task_is_polled_again() {
    on_each_driver(|| async {
        let others = Rc::new(Cell::new(0));
        let seen = others.clone();
        let other = spawn(async move {
            loop {
                seen.set(seen.get() + 1);
                yield_now().await;
            }
        });
        yield_now().await;
        let before = others.get();
        while !turn_is_over() {
            std::hint::spin_loop();
        }
        assert!(turn_is_over(), "it stays over");
        assert_eq!(others.get(), before, "nobody interrupts a task");
        yield_if_due().await;
        assert!(others.get() > before);
        drop(other);
    });
}

/// A request is one of several futures of a connection's task: a second poll by the task in the same turn gives nobody
/// else a turn.
#[test]
fn who_yields_waits_for_another_poll_of_the_whole_task() {
    on_each_driver(|| async {
        while !turn_is_over() {
            std::hint::spin_loop();
        }
        let mut yielding = pin!(yield_if_due());
        let first =
            std::future::poll_fn(|cx| Poll::Ready((0..10).any(|_| yielding.as_mut().poll(cx).is_ready())));
        assert!(!first.await);
        yielding.await;
    });
}

/// Tasks that run until their turns are over, again and again, and count their turns. All have shown that they have much
/// to do: they wait in the background, see `background::tests` for what happens there.
struct Busy {
    turns: Rc<Cell<usize>>,
    tasks: Vec<Task<()>>,
}

impl Busy {
    async fn start(count: usize) -> Busy {
        let turns = Rc::new(Cell::new(0));
        let task = |_| {
            let turns = turns.clone();
            spawn(async move {
                loop {
                    turns.set(turns.get() + 1);
                    while !turn_is_over() {
                        std::hint::spin_loop();
                    }
                    yield_if_due().await;
                }
            })
        };
        let tasks = (0..count).map(task).collect();
        let busy = Busy { turns, tasks };
        while busy.turns() < 6 * count || background::is_empty() {
            yield_now().await;
        }
        busy
    }

    fn turns(&self) -> usize {
        self.turns.get()
    }

    /// Waits until they have had so many more turns.
    async fn run(&self, turns: usize) {
        let until = self.turns() + turns;
        while self.turns() < until {
            yield_now().await;
        }
    }
}

#[test]
fn a_task_with_little_to_do_does_not_wait_for_all_that_have_much() {
    const BUSY: usize = 10;
    const ROUNDS: usize = 20;
    on_each_driver(|| async {
        let busy = Busy::start(BUSY).await;
        let before = busy.turns();
        spawn(async {
            for _ in 0..ROUNDS {
                yield_now().await;
            }
        })
        .await;
        // One turn in each round; a host that takes the processor away makes it a few more.
        let turns = busy.turns() - before;
        assert!(turns < BUSY * ROUNDS / 2, "{turns} turns");
    });
}

#[test]
fn tasks_with_much_to_do_get_turns_beside_others_without_a_pause_and_cost_nothing_once_they_have_ended() {
    on_each_driver(|| async {
        let mut busy = Busy::start(2).await;
        let restless = spawn(async {
            loop {
                yield_now().await;
            }
        });
        busy.run(5).await;
        // One that ends while it waits takes nobody's turn.
        busy.tasks.pop();
        busy.run(5).await;
        busy.tasks.clear();
        let before = busy.turns();
        while !background::is_empty() {
            yield_now().await;
        }
        assert_eq!(busy.turns(), before);
        drop(restless);
    });
}

#[test]
fn a_loop_inside_a_loop_leaves_the_background_of_the_outer_one_alone() {
    on_each_driver(|| async {
        let busy = Busy::start(2).await;
        let before = busy.turns();
        let inner = block_on(async {
            assert!(background::is_empty());
            Busy::start(2).await.run(5).await;
        });
        inner.expect("the loop starts");
        assert_eq!(busy.turns(), before);
        busy.run(5).await;
    });
}

/// Runs for so long without a look at the clock of its turn, again and again, and counts it.
fn spawn_bursts(ticks: u64, bursts: &Rc<Cell<usize>>) -> Task<()> {
    let bursts = bursts.clone();
    spawn(async move {
        loop {
            bursts.set(bursts.get() + 1);
            let began = turn::ticks();
            while turn::ticks().saturating_sub(began) < ticks {
                std::hint::spin_loop();
            }
            yield_now().await;
        }
    })
}

/// Their polls are too short for the background, and they are runnable without a pause.
#[test]
fn timers_and_sockets_are_checked_between_tasks_that_yield_without_end() {
    const ROUNDS: usize = 20;
    on_each_driver(|| async {
        let bursts = Rc::new(Cell::new(0));
        let ticks = turn::TURN_TICKS / 20;
        let bursting = [spawn_bursts(ticks, &bursts), spawn_bursts(ticks, &bursts)];
        let counted = bursts.clone();
        let waited = spawn(async move {
            let before = counted.get();
            for _ in 0..ROUNDS {
                sleep(Duration::from_micros(1)).await;
            }
            counted.get() - before
        })
        .await;
        assert!(waited < 25 * ROUNDS, "{waited} bursts");
        drop(bursting);
    });
}

/// The core sleeps or spins when a timer wakes the task, which then has to wait in the background: nothing else happens
/// that would wake the core again.
#[test]
fn who_used_up_a_turn_and_slept_runs_when_it_is_woken() {
    on_each_driver(|| async {
        spawn(async {
            for micros in [5, 10, 20, 30, 50, 100, 1000, 5000] {
                while !turn_is_over() {
                    std::hint::spin_loop();
                }
                sleep(Duration::from_micros(micros)).await;
            }
        })
        .await;
    });
}

#[test]
fn no_turn_ends_outside_a_core() {
    assert!(!turn_is_over());
}
