//! Byte-range locks of SMB and POSIX, separately and together.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::super::locks::LOOKS;
use super::*;

/// Its payload may still be on the way when others already have the file for themselves.
#[test]
fn a_request_that_the_close_of_its_open_has_overtaken_is_refused() {
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    assert!(a.may_write(0, 10).is_ok());
    a.close();
    let b = open(&t, Rights::ALL, Rights::NONE).unwrap();
    assert_eq!(a.may_write(0, 10), Err(Refused::Closed));
    assert_eq!(a.may_read(0, 10), Err(Refused::Closed));
    assert_eq!(a.may_transfer(0, 10, true), Err(Refused::Closed));
    assert!(b.may_write(0, 10).is_ok() && b.may_read(0, 10).is_ok());
}

#[test]
fn locks_conflict_as_the_specification_says() {
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    let b = open(&t, Rights::ALL, Rights::ALL).unwrap();
    assert!(a.may_write(0, u64::MAX).is_ok());
    a.try_lock(range(10, 10), true).unwrap();
    // Exclusive: nobody else reads, writes or locks; the owner reads and writes but cannot lock again.
    assert_eq!(b.may_read(0, 11), Err(Refused::Locked));
    assert_eq!(b.may_write(19, 1), Err(Refused::Locked));
    assert!(b.may_read(0, 10).is_ok());
    assert!(b.may_read(20, u64::MAX).is_ok());
    assert!(a.may_read(0, 100).is_ok() && a.may_write(0, 100).is_ok());
    assert_eq!(b.try_lock(range(19, 5), false), Err(Refused::Locked));
    assert_eq!(a.try_lock(range(0, 11), true), Err(Refused::Locked));
    a.try_lock(range(12, 1), false).unwrap();
    // Shared: everybody reads and shares, nobody writes, not even the owner.
    b.try_lock(range(100, 10), false).unwrap();
    a.try_lock(range(105, 10), false).unwrap();
    assert!(a.may_read(100, 10).is_ok());
    assert_eq!(a.may_write(100, 1), Err(Refused::Locked));
    assert_eq!(b.may_write(100, 1), Err(Refused::Locked));
    assert_eq!(a.try_lock(range(100, 1), true), Err(Refused::Locked));
    // Unlocked in the order of the specification, each by its exact range and owner.
    assert_eq!(b.unlock(range(10, 10)), Err(Refused::NotLocked));
    assert_eq!(a.unlock(range(10, 9)), Err(Refused::NotLocked));
    a.unlock(range(10, 10)).unwrap();
    assert_eq!(a.unlock(range(10, 10)), Err(Refused::NotLocked));
    // A close releases all of its locks.
    drop(a);
    b.unlock(range(100, 10)).unwrap();
    assert!(b.may_write(0, u64::MAX).is_ok());
    assert_eq!(b.locks.load(Ordering::Relaxed), 0);
}

#[test]
fn empty_ranges_and_the_end_of_the_world() {
    assert!(Range::new(u64::MAX, 2).is_none());
    assert!(Range::new(u64::MAX, 1).is_some());
    assert!(Range::new(u64::MAX, 0).is_some());
    assert!(Range::new(1, u64::MAX).is_some());
    assert!(Range::new(2, u64::MAX).is_none());
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    let b = open(&t, Rights::ALL, Rights::ALL).unwrap();
    a.try_lock(range(0, u64::MAX), true).unwrap();
    b.try_lock(range(0, 0), true).unwrap();
    b.try_lock(range(u64::MAX, 1), true).unwrap();
    assert_eq!(b.try_lock(range(5, 0), true), Err(Refused::Locked));
    assert_eq!(a.may_write(u64::MAX, 1), Err(Refused::Locked));
    assert_eq!(a.may_write(u64::MAX, u64::MAX), Err(Refused::Locked));
}

#[test]
fn a_waiting_lock_is_granted_when_the_way_is_free() {
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    let b = open(&t, Rights::ALL, Rights::ALL).unwrap();
    a.try_lock(range(0, 10), true).unwrap();
    let (woken, waker) = Woken::new();
    let mut cx = Context::from_waker(&waker);
    {
        let mut lock = pin!(b.lock(range(5, 1), true));
        assert!(lock.as_mut().poll(&mut cx).is_pending());
        assert!(lock.as_mut().poll(&mut cx).is_pending());
        a.unlock(range(0, 10)).unwrap();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(lock.as_mut().poll(&mut cx).is_ready());
    }
    let mut lock = pin!(a.lock(range(0, 10), false));
    assert!(lock.as_mut().poll(&mut cx).is_pending());
    b.close();
    assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    assert!(lock.as_mut().poll(&mut cx).is_ready());
    // Closing its handle ends the wait.
    let c = open(&t, Rights::ALL, Rights::ALL).unwrap();
    let mut lock = pin!(c.lock(range(0, 1), true));
    assert!(lock.as_mut().poll(&mut cx).is_pending());
    c.close();
    assert_eq!(woken.0.load(Ordering::SeqCst), 3);
    assert_eq!(lock.as_mut().poll(&mut cx), Poll::Ready(Err(Refused::NotLocked)));
    // A closed open takes no locks, because nobody would release them.
    assert_eq!(b.try_lock(range(50, 1), true), Err(Refused::NotLocked));
}

#[test]
fn locks_are_bounded() {
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    for i in 0..MAX_LOCKS as u64 {
        a.try_lock(range(i, 1), true).unwrap();
    }
    assert!(matches!(a.try_lock(range(1 << 40, 1), true), Err(Refused::Limit(_))));
}

/// Ranges that `owner` holds in the first hundred bytes: one letter a byte, `r` shared, `w` exclusive.
fn map(t: &Opens, owner: LockOwner) -> String {
    let stranger = t.lock_owner();
    let letter = |at| match t.test_range(NODE, stranger, range(at, 1), true) {
        Some(Conflict { owner: Some(found), exclusive, .. }) if found == owner => {
            if exclusive {
                'w'
            } else {
                'r'
            }
        }
        _ => '.',
    };
    (0..20).map(letter).collect()
}

#[test]
fn ranges_of_an_owner_are_split_joined_and_changed() {
    let t = table();
    let a = t.lock_owner();
    t.try_set_range(NODE, a, range(2, 10), false).unwrap();
    assert_eq!(map(&t, a), "..rrrrrrrrrr........");
    // An upgrade in the middle, without ever being unlocked.
    t.try_set_range(NODE, a, range(5, 3), true).unwrap();
    assert_eq!(map(&t, a), "..rrrwwwrrrr........");
    // A downgrade joins what is left and right of it.
    t.try_set_range(NODE, a, range(5, 3), false).unwrap();
    assert_eq!(map(&t, a), "..rrrrrrrrrr........");
    let whole = t.test_range(NODE, t.lock_owner(), range(0, 20), true).unwrap();
    assert_eq!(whole, Conflict { range: range(2, 10), exclusive: false, owner: Some(a) });
    // Neighbours are one range, and any part of it can be unlocked.
    t.try_set_range(NODE, a, range(12, 3), false).unwrap();
    t.clear_range(NODE, a, range(4, 2)).unwrap();
    assert_eq!(map(&t, a), "..rr..rrrrrrrrr.....");
    t.clear_range(NODE, a, range(0, 3)).unwrap();
    t.clear_range(NODE, a, Range::to_end(10, u64::MAX).unwrap()).unwrap();
    assert_eq!(map(&t, a), "...r..rrrr..........");
    assert!(t.holds_ranges(NODE, a));
    t.release_owner(a);
    assert!(!t.holds_ranges(NODE, a));
    assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
}

#[test]
fn whoever_takes_all_locks_of_a_file_keeps_nobody_from_giving_back_his_own() {
    let t = table();
    let (greedy, honest) = (t.lock_owner(), t.lock_owner());
    t.try_set_range(NODE, honest, range(0, 10), true).unwrap();
    let far = |n: usize| range(100 + 2 * n as u64, 1);
    let taken = (0..MAX_LOCKS).take_while(|n| t.try_set_range(NODE, greedy, far(*n), true).is_ok()).count();
    assert_eq!(taken, MAX_LOCKS - 2);
    // One more piece fits, and then none; unlocks that add no piece still succeed.
    t.clear_range(NODE, honest, range(3, 1)).unwrap();
    assert!(matches!(t.clear_range(NODE, honest, range(6, 1)), Err(Refused::Limit(_))));
    t.clear_range(NODE, honest, range(0, 10)).unwrap();
    assert!(!t.holds_ranges(NODE, honest));
}

#[test]
fn owners_and_opens_keep_each_other_out() {
    let t = table();
    let (a, b) = (t.lock_owner(), t.lock_owner());
    let smb = open(&t, Rights::ALL, Rights::ALL).unwrap();
    t.try_set_range(NODE, a, range(0, 10), true).unwrap();
    let in_the_way = Conflict { range: range(0, 10), exclusive: true, owner: Some(a) };
    assert_eq!(t.try_set_range(NODE, b, range(9, 1), false), Err(SetFailed::Conflict(in_the_way)));
    assert_eq!(smb.try_lock(range(5, 1), false), Err(Refused::Locked));
    // SMB knows only mandatory locks; NFS's locks are advisory among NFS clients.
    assert_eq!(smb.may_read(0, 1), Err(Refused::Locked));
    assert!(t.may_transfer(NODE, range(0, 1), true).is_ok());
    smb.try_lock(range(20, 10), true).unwrap();
    assert_eq!(t.may_transfer(NODE, range(29, 5), false), Err(Refused::Locked));
    let in_the_way = t.test_range(NODE, a, range(0, 100), true).unwrap();
    assert_eq!(in_the_way, Conflict { range: range(20, 10), exclusive: true, owner: None });
    // Readers share, also across protocols.
    smb.try_lock(range(40, 1), false).unwrap();
    t.try_set_range(NODE, a, range(40, 1), false).unwrap();
    t.try_set_range(NODE, b, range(40, 1), false).unwrap();
    assert_eq!(smb.may_write(40, 1), Err(Refused::Locked));
    smb.close();
    assert!(t.may_transfer(NODE, range(29, 5), false).is_ok());
}

#[test]
fn an_owner_waits_for_its_range() {
    let t = table();
    let (a, b) = (t.lock_owner(), t.lock_owner());
    t.try_set_range(NODE, a, range(0, 10), true).unwrap();
    let (woken, waker) = Woken::new();
    let mut cx = Context::from_waker(&waker);
    let mut wait = pin!(t.set_range(NODE, b, range(5, 1), true));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    t.clear_range(NODE, a, range(0, 5)).unwrap();
    assert_eq!(woken.0.load(Ordering::SeqCst), 0, "its range is not free yet");
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    t.release_ranges(NODE, a);
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
}

#[test]
fn ranges_to_the_end_of_the_file() {
    assert_eq!(Range::to_end(5, 0), None);
    assert_eq!(Range::to_end(5, u64::MAX - 3), None);
    assert_eq!(Range::to_end(u64::MAX, u64::MAX), None);
    let all = Range::to_end(5, u64::MAX).unwrap();
    assert!(all.is_to_end() && !range(5, 10).is_to_end());
    let t = table();
    let (a, b) = (t.lock_owner(), t.lock_owner());
    t.try_set_range(NODE, a, all, true).unwrap();
    assert!(t.test_range(NODE, b, range(0, 5), true).is_none());
    assert!(t.test_range(NODE, b, range(u64::MAX - 1, 1), false).unwrap().range.is_to_end());
    // What is joined with it cannot overflow.
    t.try_set_range(NODE, a, range(0, 5), true).unwrap();
    t.try_set_range(NODE, a, range(u64::MAX, 1), true).unwrap();
    assert_eq!(t.test_range(NODE, b, range(0, 1), false).unwrap().range, range(0, u64::MAX));
}

#[test]
fn waiting_tasks_are_bounded() {
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    a.try_lock(range(0, 1), true).unwrap();
    let mut tasks = Vec::new();
    for i in 0..=MAX_WAITING {
        let (_, waker) = Woken::new();
        let mut lock = Box::pin(a.lock(range(0, 1), true));
        let polled = lock.as_mut().poll(&mut Context::from_waker(&waker));
        match i == MAX_WAITING {
            false => assert!(polled.is_pending()),
            true => assert!(matches!(polled, Poll::Ready(Err(Refused::Limit(_))))),
        }
        tasks.push((lock, waker));
    }
    // A task that gives up makes room for another.
    drop(tasks.remove(0));
    let mut lock = pin!(a.lock(range(0, 1), true));
    assert!(lock.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn only_those_look_again_who_wait_for_what_was_freed() {
    const MANY: u64 = 1000;
    let t = table();
    let (a, b) = (open(&t, Rights::ALL, Rights::ALL).unwrap(), open(&t, Rights::ALL, Rights::ALL).unwrap());
    let (four, other) = (t.lock_owner(), t.lock_owner());
    for n in 0..MANY {
        a.try_lock(range(2 * n, 1), true).unwrap();
    }
    t.try_set_range(NODE, four, range(5000, 10), true).unwrap();
    let (woken, waker) = Woken::new();
    let mut cx = Context::from_waker(&waker);
    let mut waits: Vec<_> = (0..MANY).map(|n| Box::pin(b.lock(range(2 * n, 1), true))).collect();
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut cx).is_pending()));
    let mut posix = pin!(t.set_range(NODE, other, range(5009, 1), false));
    assert!(posix.as_mut().poll(&mut cx).is_pending());
    let (looks, count) = (LOOKS.get(), || woken.0.load(Ordering::SeqCst));
    // Locks that nobody waits for, and an open that has none.
    for _ in 0..10 {
        b.try_lock(range(4000, 1), true).unwrap();
        b.unlock(range(4000, 1)).unwrap();
        t.try_set_range(NODE, four, range(6000, 10), true).unwrap();
        t.clear_range(NODE, four, range(6000, 10)).unwrap();
        drop(open(&t, Rights::READ, Rights::ALL).unwrap());
        t.release_ranges(NODE, t.lock_owner());
    }
    assert_eq!((count(), LOOKS.get() - looks), (0, 0));
    a.unlock(range(2 * 7, 1)).unwrap();
    assert_eq!(count(), 1);
    assert!(waits[7].as_mut().poll(&mut cx).is_ready());
    // A task that may continue beside a shared lock is notified when it is no longer exclusive.
    t.try_set_range(NODE, four, range(5005, 5), false).unwrap();
    assert_eq!(count(), 2);
    assert_eq!(posix.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    // A close releases all of its locks, and ends waits through it.
    drop(a);
    assert_eq!(count(), 2 + MANY as usize - 1);
    assert!(waits[8].as_mut().poll(&mut cx).is_ready());
    assert_eq!(LOOKS.get() - looks, MANY as usize + 3);
}
