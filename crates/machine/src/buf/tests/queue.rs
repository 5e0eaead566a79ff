//! Requests that wait for memory are served in order, woken once, and leave nothing behind when they are dropped.

use super::*;

#[test]
fn an_empty_pool_makes_the_request_wait() {
    let pool = Pool::new(MAX_BUF);
    let all = pool.try_alloc(MAX_BUF).unwrap();
    assert!(pool.try_alloc(1).is_none());
    let mut waiter = Waiter::new(&pool, &[1]);
    assert!(waiter.poll().is_none());
    drop(all);
    assert_eq!(waiter.woken(), 1);
    assert!(waiter.poll().is_some());
}

#[test]
fn a_small_request_passes_a_large_one_that_what_is_free_does_not_suffice_for() {
    let pool = Pool::new(MAX_BUF);
    let mut quarters: Vec<Buf> = (0..4).map(|_| pool.try_alloc(MAX_BUF / 4).unwrap()).collect();
    let mut large = Waiter::new(&pool, &[MAX_BUF / 2]);
    let mut medium = Waiter::new(&pool, &[MAX_BUF / 8]);
    let mut small = [(); 2].map(|()| Waiter::new(&pool, &[MIN_BUF]));
    assert!(large.poll().is_none() && medium.poll().is_none());
    assert!(small.iter_mut().all(|small| small.poll().is_none()));
    quarters.pop();
    assert_eq!(small.each_ref().map(Waiter::woken), [1, 1]);
    assert!(pool.try_alloc(MIN_BUF).is_some(), "one that comes later too");
    assert!(pool.try_alloc(MAX_BUF / 8).is_none(), "the remainder is reserved for the first");
    assert_eq!((large.woken(), medium.woken()), (0, 0), "nobody is woken for nothing");
    let small = small.map(|mut small| small.poll().unwrap());
    quarters.pop();
    assert_eq!(large.woken(), 0, "what the small ones hold is missing");
    drop(small);
    assert_eq!((large.woken(), medium.woken()), (1, 0));
    quarters.pop();
    assert!(large.poll().is_some() && medium.poll().is_some());
}

#[test]
fn small_requests_without_end_do_not_starve_a_large_one() {
    const SMALL: usize = 64 << 10;
    let pool = Pool::new(MAX_BUF);
    // A quarter is free, which does not suffice.
    let mut rest: Vec<Buf> = (0..3).map(|_| pool.try_alloc(MAX_BUF / 4).unwrap()).collect();
    let mut large = Waiter::new(&pool, &[MAX_BUF / 2]);
    assert!(large.poll().is_none());
    let mut held = std::collections::VecDeque::new();
    let mut passed_bytes = 0;
    let mut last = loop {
        if held.len() == 4 {
            held.pop_front();
        }
        let mut small = Waiter::new(&pool, &[SMALL]);
        match small.poll() {
            Some(buf) => held.push_back(buf),
            None => break small,
        }
        passed_bytes += SMALL;
        assert!(passed_bytes <= 4 * MAX_BUF / 2, "the large one starves");
    };
    assert_eq!(passed_bytes, 4 * MAX_BUF / 2, "they pass it that often");
    // Now everything that becomes free is for the large one, and then the small one has its turn.
    held.clear();
    assert_eq!((large.woken(), last.woken()), (0, 0));
    rest.pop();
    assert_eq!((large.woken(), last.woken()), (1, 0));
    rest.pop();
    assert_eq!(last.woken(), 1);
    assert!(large.poll().is_some() && last.poll().is_some());
}

#[test]
fn a_free_block_wakes_only_whom_it_serves() {
    let pool = Pool::new(MAX_BUF);
    let mut held: Vec<Buf> = (0..4).map(|_| pool.try_alloc(MAX_BUF / 4).unwrap()).collect();
    let mut waiters: Vec<Waiter> = (0..8).map(|_| Waiter::new(&pool, &[MAX_BUF / 4])).collect();
    for waiter in &mut waiters {
        assert!(waiter.poll().is_none());
        assert!(waiter.poll().is_none(), "a second poll is no second request");
    }
    assert_eq!(pool.waiting(), 8);
    held.pop();
    let woken: Vec<usize> = waiters.iter().map(Waiter::woken).collect();
    assert_eq!(woken, [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(waiters[1].poll().is_none(), "what was granted to the first is not for the second");
    assert!(waiters[0].poll().is_some());
}

#[test]
fn who_gives_up_lets_the_next_go_on() {
    let pool = Pool::new(MAX_BUF);
    let half = pool.try_alloc(MAX_BUF / 2).unwrap();
    let mut first = Waiter::new(&pool, &[MAX_BUF]);
    let mut second = Waiter::new(&pool, &[MAX_BUF / 2]);
    let mut third = Waiter::new(&pool, &[MAX_BUF / 2]);
    assert!(first.poll().is_none() && second.poll().is_none() && third.poll().is_none());
    drop(first);
    assert_eq!((second.woken(), third.woken()), (1, 0));
    // Granted, but never fetched.
    drop(second);
    assert_eq!(third.woken(), 1);
    drop(half);
    drop(third.poll().unwrap());
    assert_eq!((pool.in_use_bytes(), pool.waiting()), (0, 0));
}

#[test]
fn another_task_may_poll_on_and_another_size_is_another_request() {
    let pool = Pool::new(MAX_BUF);
    let all = pool.try_alloc(MAX_BUF).unwrap();
    let mut waiter = Waiter::new(&pool, &[MIN_BUF]);
    let old = waiter.wakes.clone();
    assert!(waiter.poll().is_none());
    waiter.wakes = Arc::default();
    assert!(waiter.poll().is_none());
    waiter.sizes = vec![MAX_BUF];
    assert!(waiter.poll().is_none());
    assert_eq!(pool.waiting(), 1);
    drop(all);
    assert_eq!((old.0.load(Ordering::SeqCst), waiter.woken()), (0, 1));
    assert_eq!(waiter.poll().unwrap()[0].capacity(), MAX_BUF);
}

#[test]
fn a_wait_for_several_holds_none_of_them() {
    let pool = Pool::new(MAX_BUF);
    let held = pool.try_alloc(MAX_BUF / 2).unwrap();
    let sizes = [MAX_BUF / 2, MAX_BUF / 4];
    let (mut one, mut other) = (Waiter::new(&pool, &sizes), Waiter::new(&pool, &sizes));
    assert!(one.poll().is_none() && other.poll().is_none());
    assert_eq!(pool.in_use_bytes(), MAX_BUF / 2);
    drop(held);
    let bufs = one.poll().unwrap();
    assert_eq!(bufs.iter().map(Buf::capacity).collect::<Vec<_>>(), sizes);
    assert!(other.poll().is_none());
    drop(bufs);
    assert!(other.poll().is_some());
}

#[test]
fn what_can_never_be_is_an_error_and_no_wait() {
    let pool = Pool::new(MAX_BUF);
    let mut cx = Context::from_waker(Waker::noop());
    let mut waiting = Waiting::default();
    let over = |wanted_bytes| OverLimit { wanted_bytes, limit_bytes: MAX_BUF };
    let mut ask = |sizes: &[usize]| match pool.poll_alloc_many(&mut cx, sizes, &mut waiting) {
        Poll::Ready(Err(e)) => e,
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(&[MAX_BUF, 1]), over(MAX_BUF + MIN_BUF));
    assert_eq!(ask(&[usize::MAX]), over(usize::MAX));
    assert_eq!(ask(&[MAX_BUF; 3]), over(3 * MAX_BUF));
    assert!(pool.try_alloc_many(&[MAX_BUF, 1]).is_none());
}

#[test]
fn what_another_thread_keeps_is_brought_back_for_who_waits() {
    let pool = Pool::new(64 << 20);
    // Threads are assigned to caches in turn, so several of them reach every one.
    for _ in 0..16 {
        let pool = pool.clone();
        std::thread::spawn(move || drop(pool.try_alloc_many(&[MIN_BUF; 8]))).join().unwrap();
    }
    assert_eq!(pool.in_use_bytes(), 0);
    let all = pool.try_alloc_many(&[MAX_BUF; 4]);
    assert!(all.is_some(), "kept blocks are no use, and do not count");
}

/// Threads that take, wait, give up and free at random: every waiting request is served in the end, and nothing is
/// lost.
#[test]
fn many_threads_lose_no_wake_up() {
    let pool = Pool::new(MAX_BUF);
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let pool = pool.clone();
            scope.spawn(move || {
                struct Unpark(std::thread::Thread);
                impl std::task::Wake for Unpark {
                    fn wake(self: Arc<Self>) {
                        self.0.unpark();
                    }
                }
                let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                let mut random = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed + 1);
                let mut cx = Context::from_waker(&waker);
                for _ in 0..2000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let sizes = [MIN_BUF << (random % 12), MIN_BUF << ((random >> 8) % 12)];
                    let mut waiting = Waiting::default();
                    while pool.poll_alloc_many(&mut cx, &sizes, &mut waiting).is_pending() {
                        if (random >> 16).is_multiple_of(8) {
                            break;
                        }
                        std::thread::park();
                    }
                }
            });
        }
    });
    assert_eq!((pool.in_use_bytes(), pool.waiting()), (0, 0));
    assert!(pool.is_whole());
}
