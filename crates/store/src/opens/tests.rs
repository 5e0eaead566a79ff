use std::pin::pin;
use std::task::Wake;

use super::*;

const NODE: NodeId = NodeId(7);

fn table() -> Arc<Opens> {
    Arc::new(Opens::default())
}

fn range(offset: u64, len: u64) -> Range {
    Range::new(offset, len).unwrap()
}

#[test]
fn share_modes_work_both_ways() {
    let sets =
        || (0..8).map(|bits| Rights { read: bits & 1 != 0, write: bits & 2 != 0, delete: bits & 4 != 0 });
    for first_access in sets() {
        for first_share in sets() {
            for access in sets() {
                for share in sets() {
                    let t = table();
                    let _first = t.open(NODE, first_access, first_share).unwrap();
                    let clash = |wants: Rights, allows: Rights| {
                        (wants.read && !allows.read)
                            || (wants.write && !allows.write)
                            || (wants.delete && !allows.delete)
                    };
                    let none = access == Rights::NONE || first_access == Rights::NONE;
                    let expected = !none && (clash(access, first_share) || clash(first_access, share));
                    let second = t.open(NODE, access, share);
                    assert_eq!(
                        second.is_err(),
                        expected,
                        "{first_access:?} {first_share:?} {access:?} {share:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_closed_open_is_in_nobodys_way() {
    let t = table();
    let first = t.open(NODE, Rights::WRITE, Rights::NONE).unwrap();
    assert_eq!(t.open(NODE, Rights::READ, Rights::ALL).unwrap_err(), Refused::Sharing);
    assert_eq!(t.may(NODE, Rights::READ), Err(Refused::Sharing));
    assert_eq!(t.may(NodeId(8), Rights::READ), Ok(()));
    assert!(first.close().is_none());
    assert_eq!(t.may_remove(NODE), Ok(()));
    assert!(!t.is_open(NODE));
    drop(t.open(NODE, Rights::READ, Rights::NONE).unwrap());
    assert_eq!(t.open_nodes.load(Ordering::Relaxed), 0);
}

#[test]
fn the_last_close_removes() {
    let t = table();
    let a = t.open(NODE, Rights::DELETE, Rights::ALL).unwrap();
    let b = t.open(NODE, Rights::READ, Rights::ALL).unwrap();
    a.set_delete_on_close();
    assert!(!b.delete_pending());
    assert!(a.close().is_none());
    assert!(b.delete_pending());
    assert_eq!(t.open(NODE, Rights::READ, Rights::ALL).unwrap_err(), Refused::DeletePending);
    assert_eq!(t.may(NODE, Rights::READ), Err(Refused::DeletePending));
    let removal = b.close().expect("the last one out");
    assert_eq!(removal.node(), NODE);
    assert_eq!(t.open(NODE, Rights::READ, Rights::ALL).unwrap_err(), Refused::DeletePending);
    drop(removal);
    assert!(t.open(NODE, Rights::READ, Rights::ALL).unwrap().close().is_none());
}

#[test]
fn a_deletion_at_once_leaves_the_others_open() {
    let t = table();
    let a = t.open(NODE, Rights::DELETE, Rights::ALL).unwrap();
    let b = t.open(NODE, Rights::READ, Rights::ALL).unwrap();
    a.set_delete_pending(true);
    a.set_delete_at_once(true);
    drop(a.close().expect("removed before the last close"));
    assert!(!b.delete_pending());
    assert!(b.close().is_none());
    assert!(b.close().is_none());
    assert_eq!(t.open_nodes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_pending_deletion_can_be_called_off() {
    let t = table();
    let a = t.open(NODE, Rights::DELETE, Rights::ALL).unwrap();
    a.set_delete_pending(true);
    assert!(t.delete_pending(NODE));
    a.set_delete_pending(false);
    let b = t.open(NODE, Rights::READ, Rights::ALL).unwrap();
    drop(a);
    assert!(b.close().is_none());
}

#[test]
fn locks_conflict_as_the_specification_says() {
    let t = table();
    let a = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    let b = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    assert!(a.may_write(0, u64::MAX).is_ok());
    a.try_lock(range(10, 10), true).unwrap();
    // Exclusive: nobody else reads, writes or locks; the owner reads and writes but locks no second time.
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
    // Back in the order of the specification, each by its exact range and its owner.
    assert_eq!(b.unlock(range(10, 10)), Err(Refused::NotLocked));
    assert_eq!(a.unlock(range(10, 9)), Err(Refused::NotLocked));
    a.unlock(range(10, 10)).unwrap();
    assert_eq!(a.unlock(range(10, 10)), Err(Refused::NotLocked));
    // A close takes all of its locks along.
    drop(a);
    b.unlock(range(100, 10)).unwrap();
    assert!(b.may_write(0, u64::MAX).is_ok());
    assert_eq!(b.lock_count.load(Ordering::Relaxed), 0);
}

#[test]
fn empty_ranges_and_the_end_of_the_world() {
    assert!(Range::new(u64::MAX, 2).is_none());
    assert!(Range::new(u64::MAX, 1).is_some());
    assert!(Range::new(u64::MAX, 0).is_some());
    assert!(Range::new(1, u64::MAX).is_some());
    assert!(Range::new(2, u64::MAX).is_none());
    let t = table();
    let a = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    let b = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    a.try_lock(range(0, u64::MAX), true).unwrap();
    b.try_lock(range(0, 0), true).unwrap();
    b.try_lock(range(u64::MAX, 1), true).unwrap();
    assert_eq!(b.try_lock(range(5, 0), true), Err(Refused::Locked));
    assert_eq!(a.may_write(u64::MAX, 1), Err(Refused::Locked));
    assert_eq!(a.may_write(u64::MAX, u64::MAX), Err(Refused::Locked));
}

struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waiting_lock_is_granted_when_the_way_is_free() {
    let t = table();
    let a = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    let b = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    a.try_lock(range(0, 10), true).unwrap();
    let woken = Arc::new(Woken(AtomicUsize::new(0)));
    let waker = Waker::from(woken.clone());
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
    let c = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    let mut lock = pin!(c.lock(range(0, 1), true));
    assert!(lock.as_mut().poll(&mut cx).is_pending());
    c.close();
    assert_eq!(woken.0.load(Ordering::SeqCst), 3);
    assert_eq!(lock.as_mut().poll(&mut cx), Poll::Ready(Err(Refused::NotLocked)));
    // A closed open takes no locks that nobody would give back.
    assert_eq!(b.try_lock(range(50, 1), true), Err(Refused::NotLocked));
}

#[test]
fn locks_are_bounded() {
    let t = table();
    let a = t.open(NODE, Rights::ALL, Rights::ALL).unwrap();
    for i in 0..MAX_LOCKS as u64 {
        a.try_lock(range(i, 1), true).unwrap();
    }
    assert!(matches!(a.try_lock(range(1 << 40, 1), true), Err(Refused::Limit(_))));
}
