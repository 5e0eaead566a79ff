//! Share modes and deletion.

use weft_machine::rt;

use super::*;

#[test]
fn share_modes_work_both_ways() {
    let sets =
        || (0..8).map(|bits| Rights { read: bits & 1 != 0, write: bits & 2 != 0, delete: bits & 4 != 0 });
    for first_access in sets() {
        for first_share in sets() {
            for access in sets() {
                for share in sets() {
                    let t = table();
                    let _first = open(&t, first_access, first_share).unwrap();
                    let clash = |wants: Rights, allows: Rights| {
                        (wants.read && !allows.read)
                            || (wants.write && !allows.write)
                            || (wants.delete && !allows.delete)
                    };
                    let none = access == Rights::NONE || first_access == Rights::NONE;
                    let expected = !none && (clash(access, first_share) || clash(first_access, share));
                    let second = open(&t, access, share);
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
fn an_open_looks_at_no_other_however_many_there_are() {
    use super::super::holders::LOOKS;
    let t = table();
    let others: Vec<_> = (0..1000).map(|_| open(&t, Rights::READ, Rights::ALL).unwrap()).collect();
    let before = LOOKS.get();
    let one = open(&t, Rights::ALL, Rights::ALL).unwrap();
    assert_eq!(open(&t, Rights::READ, Rights::NONE).unwrap_err(), Refused::Sharing);
    assert_eq!(t.may(NODE, Rights::WRITE), Ok(()));
    assert_eq!(one.change(Rights::READ, Rights::NONE), Err(Refused::Sharing));
    assert_eq!(one.change(Rights::DELETE, Rights::ALL), Ok(()));
    assert_eq!(t.may_open_stream(NODE, Rights::READ, Rights::READ), Err(Refused::Sharing));
    one.set_delete_on_close();
    assert!(one.close().is_none());
    assert!(others[0].delete_pending());
    drop(others);
    assert_eq!(LOOKS.get() - before, 0);
    assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_closed_open_is_in_nobodys_way() {
    let t = table();
    let first = open(&t, Rights::WRITE, Rights::NONE).unwrap();
    assert_eq!(open(&t, Rights::READ, Rights::ALL).unwrap_err(), Refused::Sharing);
    assert_eq!(t.may(NODE, Rights::READ), Err(Refused::Sharing));
    assert_eq!(t.may(NodeId(8), Rights::READ), Ok(()));
    assert!(first.close().is_none());
    assert_eq!(t.may_remove(NODE), Ok(()));
    assert!(!t.is_open(NODE));
    drop(open(&t, Rights::READ, Rights::NONE).unwrap());
    assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
}

#[test]
fn the_last_close_removes() {
    let t = table();
    let a = open(&t, Rights::DELETE, Rights::ALL).unwrap();
    let b = open(&t, Rights::READ, Rights::ALL).unwrap();
    a.set_delete_on_close();
    assert!(!b.delete_pending());
    assert!(a.close().is_none());
    assert!(b.delete_pending());
    assert_eq!(open(&t, Rights::READ, Rights::ALL).unwrap_err(), Refused::DeletePending);
    assert_eq!(t.may(NODE, Rights::READ), Err(Refused::DeletePending));
    let removal = b.close().expect("the last one out");
    assert_eq!(removal.node(), NODE);
    // Soon there is nothing, or something else, to be opened.
    assert_eq!(open(&t, Rights::READ, Rights::ALL).unwrap_err(), Refused::Recalling);
    drop(removal);
    assert!(open(&t, Rights::READ, Rights::ALL).unwrap().close().is_none());
}

#[test]
fn a_deletion_at_once_leaves_the_others_open() {
    let t = table();
    let a = open(&t, Rights::DELETE, Rights::ALL).unwrap();
    let b = open(&t, Rights::READ, Rights::ALL).unwrap();
    a.set_delete_pending(true);
    a.set_delete_at_once(true);
    drop(a.close().expect("removed before the last close"));
    assert!(!b.delete_pending());
    assert!(b.close().is_none());
    assert!(b.close().is_none());
    assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_pending_deletion_can_be_called_off() {
    let t = table();
    let a = open(&t, Rights::DELETE, Rights::ALL).unwrap();
    a.set_delete_pending(true);
    assert!(t.delete_pending(NODE));
    a.set_delete_pending(false);
    let b = open(&t, Rights::READ, Rights::ALL).unwrap();
    drop(a);
    assert!(b.close().is_none());
}

#[test]
fn a_removal_is_in_the_name_of_who_marked_it_and_of_who_closed_last() {
    for (marks, closes, named) in
        [(Some(1), Some(1), true), (Some(1), Some(2), false), (Some(1), None, false)]
    {
        for on_close in [true, false] {
            let t = table();
            let keys = [t.key(), t.key()];
            let key = |which: Option<usize>| which.map(|n| keys[n - 1]);
            let a = open(&t, Rights::DELETE, Rights::ALL).unwrap();
            let b = open(&t, Rights::READ, Rights::ALL).unwrap();
            a.set_parent(key(marks));
            b.set_parent(key(closes));
            if on_close {
                a.set_delete_on_close()
            } else {
                a.set_delete_pending(true)
            }
            assert!(a.close().is_none());
            let removal = b.close().unwrap();
            assert_eq!(removal.parent(), key(marks).filter(|_| named), "{marks:?} {closes:?}");
        }
    }
}

#[test]
fn a_stream_shares_the_deletion_of_its_file() {
    let t = table();
    let whole = Rights { delete: false, ..Rights::ALL };
    assert_eq!(t.may_open_stream(NODE, Rights::READ, whole), Ok(()));
    let reads = open(&t, Rights::READ, Rights::ALL).unwrap();
    assert_eq!(t.may_open_stream(NODE, Rights::READ, whole), Ok(()));
    let _deletes = open(&t, Rights::DELETE, Rights::ALL).unwrap();
    assert_eq!(t.may_open_stream(NODE, Rights::READ, whole), Err(Refused::Sharing));
    assert_eq!(t.may_open_stream(NODE, Rights::READ, Rights::ALL), Ok(()));
    assert_eq!(t.may_open_stream(NODE, Rights::NONE, whole), Ok(()), "attributes are nobody's business");
    drop(reads);
}

#[test]
fn nobody_opens_what_one_open_has_alone() {
    rt::block_on(async {
        let t = table();
        let one = open(&t, Rights::NONE, Rights::ALL).unwrap();
        let other = open(&t, Rights::NONE, Rights::ALL).unwrap();
        assert_eq!(one.alone().unwrap_err(), Refused::Sharing);
        drop(other);
        let alone = one.alone().unwrap();
        assert_eq!(one.alone().unwrap_err(), Refused::Sharing);
        assert_eq!(open(&t, Rights::NONE, Rights::ALL).unwrap_err(), Refused::Recalling);
        assert_eq!(t.may(NODE, Rights::WRITE), Err(Refused::Sharing));
        let opening = Opening::new(Rights::READ, Rights::ALL, t.key());
        let mut waits = std::pin::pin!(t.open(NODE, &opening));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(alone);
        let late = waits.await.unwrap();
        assert_eq!(one.alone().unwrap_err(), Refused::Sharing);
        drop(late);
        // The node is forgotten once its open is closed and nobody keeps others away.
        let alone = one.alone().unwrap();
        drop(one);
        drop(alone);
        assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
    })
    .unwrap();
}
