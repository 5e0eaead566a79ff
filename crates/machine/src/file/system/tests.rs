use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use super::*;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn one_slow_call_sends_the_next_to_workers_until_calls_were_quick_for_a_while() {
    let mut pace = Pace::default();
    assert!(!pace.is_slow(at(0)));
    pace.took(SLOW_CALL - MS, at(5));
    assert!(!pace.is_slow(at(5)));
    pace.took(SLOW_CALL, at(100));
    assert!(pace.is_slow(at(100)) && pace.is_slow(at(99) + CALM));
    // Fast calls change nothing; another slow one restarts the period.
    let quick = pace.begin(at(200));
    pace.end(quick, at(201));
    let slow = pace.begin(at(5000));
    pace.end(slow, at(5000) + SLOW_CALL);
    assert!(pace.is_slow(at(100) + CALM) && pace.is_slow(at(5000) + CALM));
    assert!(!pace.is_slow(at(5000) + SLOW_CALL + CALM));
}

#[test]
fn a_call_that_does_not_end_keeps_others_from_cores_however_long_it_takes() {
    let mut pace = Pace::default();
    let hangs = pace.begin(at(0));
    assert!(!pace.is_slow(at(1)), "it may end at any moment");
    for later in [at(0) + SLOW_CALL, at(0) + CALM * 100] {
        let quick = pace.begin(later);
        pace.end(quick, later + MS);
        assert!(pace.is_slow(later));
    }
    pace.end(hangs, at(0) + CALM * 100);
    assert!(!pace.is_slow(at(0) + CALM * 101));
    // The end of a call that was already reported changes nothing.
    pace.end(hangs, at(0) + CALM * 200);
    assert!(!pace.is_slow(at(0) + CALM * 200));
}

#[test]
fn a_file_system_that_hangs_leaves_places_to_every_other() {
    let mut places = Places::default();
    let mut taken = |number| {
        let mut taken = 0;
        while places.take(number) == Taken::Now {
            taken += 1;
        }
        taken
    };
    assert_eq!(taken(1), MAX_PLACES);
    // The first ones take the shared places; each of the others has its own.
    let all: Vec<usize> = (2..30).map(&mut taken).collect();
    assert_eq!(
        all[..3],
        [MAX_PLACES, MAX_PLACES, OWN_PLACES + SHARED_PLACES - 3 * (MAX_PLACES - OWN_PLACES)]
    );
    assert!(all[3..15].iter().all(|taken| *taken == OWN_PLACES));
    assert_eq!(MAX_PLACES + all.iter().sum::<usize>(), ALL_PLACES);
}

#[test]
fn who_waits_has_its_turn_in_order_and_no_more_wait_than_may() {
    let mut places = Places::default();
    while places.take(7) == Taken::Now {}
    let tickets: Vec<u64> = (0..MAX_WAITING).map(|_| places.wait(7, Waker::noop().clone())).collect();
    assert_eq!(places.take(7), Taken::Full);
    assert_eq!(places.take(8), Taken::Now, "of another file system");
    assert_eq!(places.give(7).len(), 1);
    let granted = |ticket| places.lanes[&7].waiting.is_granted(ticket);
    assert!(granted(tickets[0]) && !granted(tickets[1]));
    assert_eq!(places.lanes[&7].taken, MAX_PLACES);
}

/// A device number that no file system has.
fn unmounted() -> Arc<FileSystem> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    FileSystem::of((4095, u32::try_from(number).unwrap()))
}

#[test]
fn calls_that_hang_keep_the_loop_running_and_another_file_system_answering() {
    rt::block_on(async {
        let (hangs, answers) = (unmounted(), unmounted());
        let (release, gate) = mpsc::channel::<()>();
        let (gate, ended) = (Arc::new(Mutex::new(gate)), Arc::new(AtomicUsize::new(0)));
        let call = |hangs: Arc<FileSystem>| {
            let (gate, ended) = (gate.clone(), ended.clone());
            async move {
                let hang = move || {
                    let _ = lock(&gate).recv();
                    ended.fetch_add(1, Ordering::SeqCst)
                };
                hangs.names(hang).await
            }
        };
        let tasks: Vec<_> = (0..2 * MAX_PLACES).map(|_| rt::spawn(call(hangs.clone()))).collect();
        let given_up = rt::spawn(call(hangs.clone()));
        // All have asked for a place: half of them and the last one wait.
        while lock(&PLACES).lanes.get(&hangs.number).is_none_or(|lane| lane.waiting.len() <= MAX_PLACES) {
            rt::yield_now().await;
        }
        assert_eq!(lock(&PLACES).lanes[&hangs.number].taken, MAX_PLACES);
        assert_eq!(answers.names(|| 7).await, Ok(7));
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        // A call that waits leaves nothing behind, and one that has begun runs to its end.
        drop(given_up);
        let mut tasks = tasks.into_iter();
        drop(tasks.next());
        drop(release);
        for task in tasks {
            task.await.unwrap();
        }
        while ended.load(Ordering::SeqCst) < 2 * MAX_PLACES {
            rt::yield_now().await;
        }
        assert!(!lock(&PLACES).lanes.contains_key(&hangs.number));
    })
    .unwrap();
}

#[test]
fn a_slow_call_on_a_core_moves_the_next_ones_away() {
    rt::block_on(async {
        let system = unmounted();
        system.inline(|| ());
        assert!(!system.blocks());
        system.was_slow(rt::now());
        assert!(system.blocks());
        // The period is over when a call ends that finds the last slow one so long ago.
        lock(&system.pace).slow = Some(Time::ZERO);
        system.update(Time::ZERO + CALM);
        assert!(!system.blocks());
        // A slow disk accepts data as usual, until a call has not ended for long.
        let number = lock(&system.pace).begin(Time::ZERO);
        system.update(Time::ZERO + SLOW_CALL);
        assert!(system.blocks() && !system.may_hang());
        system.update(Time::ZERO + HUNG_CALL);
        assert!(system.may_hang() && system.trouble_at(Time::ZERO + HUNG_CALL).is_some());
        lock(&system.pace).end(number, Time::ZERO + HUNG_CALL);
        system.update(Time::ZERO + HUNG_CALL);
        assert!(system.blocks() && !system.may_hang());
    })
    .unwrap();
}

#[test]
fn what_is_mounted_decides_until_it_is_another_thing() {
    let system = unmounted();
    let mount = |kind: &str| Mount { device: system.device, point: "/srv".into(), kind: kind.to_owned() };
    learn(&[mount("fuse.sshfs")]);
    assert!(system.blocks() && system.may_hang());
    learn(&[]);
    assert!(system.blocks(), "it was unmounted, and is in use");
    learn(&[mount("ext4")]);
    assert!(!system.blocks());
}

#[test]
fn descriptors_of_what_may_block_are_closed_elsewhere_and_in_order() {
    let system = unmounted();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let closed = |fd: &OwnedFd| rustix::io::read(fd, &mut [0]) == Ok(0);
    // At once, because nothing indicates that it may block.
    drop(Descriptor::new(writer, Some(system.clone())));
    assert!(closed(&reader));
    system.may_hang.store(true, Ordering::Release);
    let (release, gate) = mpsc::channel::<()>();
    system.later(move || _ = gate.recv());
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let copy = writer.try_clone().unwrap();
    drop(Descriptor::new(writer, Some(system.clone())));
    assert_eq!(lock(&system.later).asked, 2);
    for _ in 0..MAX_CLOSING {
        drop(Descriptor::new(copy.try_clone().unwrap(), Some(system.clone())));
    }
    assert!(system.closes_too_much());
    drop(release);
    system.settle();
    assert_eq!(lock(&system.later).done, 2 + MAX_CLOSING as u64);
    assert!(!system.closes_too_much());
}
