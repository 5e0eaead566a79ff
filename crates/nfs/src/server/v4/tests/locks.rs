//! Byte-range locks.

use super::super::state::{Kind, LockedBy, Speaker, State, Unchanged};
use super::*;
use weft_store::opens::Range;

fn lock(exclusive: bool, offset: u64, length: u64, locker: Locker) -> Op {
    let kind = LockType { exclusive, waits: false };
    Op::Lock(Lock { kind, reclaim: false, offset, length, locker })
}

fn first(open_seqid: u32, open_stateid: Stateid, client: u64, name: &'static str) -> Locker {
    let owner = Owner { client, owner: Opaque(Bytes::from_static(name.as_bytes())) };
    Locker::New { open_seqid, open_stateid, lock_seqid: 0, owner }
}

#[test]
fn two_clients_and_one_range() {
    let server = server();
    let (mut a, mut b) = (Old::new(&server, "a"), Old::new(&server, "b"));
    let (file, open_a) = a.open("f", 3, 0);
    let (_, open_b) = b.open("f", 3, 0);
    let mut answer = a.run(&[Op::Putfh(file), lock(true, 0, 10, first(a.seqid, open_a, a.id, "la"))]);
    a.seqid += 1;
    answer.ok::<()>(opnum::PUTFH);
    let held: Stateid = answer.ok(opnum::LOCK);
    assert_eq!(held.seqid, 1);
    // The conflicting owner, and the range.
    let mut answer = b.run(&[Op::Putfh(file), lock(false, 9, u64::MAX, first(b.seqid, open_b, b.id, "lb"))]);
    b.seqid += 1;
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!(answer.next(opnum::LOCK), Status::DENIED);
    let denied = LockDenied::parse(&mut answer.d).unwrap();
    answer.end();
    assert_eq!((denied.offset, denied.length, denied.kind.exclusive), (0, 10, true));
    assert_eq!(denied.owner.owner, Opaque(Bytes::from_static(b"la")));
    let kind = LockType { exclusive: false, waits: false };
    let test = |client: &Old<'_>, name, offset, length| {
        let owner = client.owner(name);
        client.status(file, Op::Lockt(Lockt { kind, offset, length, owner }))
    };
    assert_eq!(test(&b, "lb", 0, 1), Status::DENIED);
    assert_eq!(test(&b, "lb", 10, 1), Status::OK);
    assert_eq!(test(&a, "la", 0, 1), Status::OK);
    assert_eq!(test(&b, "lb", 0, 0), Status::INVAL);
    assert_eq!(test(&b, "lb", 3, u64::MAX - 1), Status::INVAL);
    // A part is unlocked; repeating that changes nothing.
    let unlock = |seqid, stateid, offset| Op::Locku(Locku { kind, seqid, stateid, offset, length: 5 });
    assert_eq!(a.status(file, unlock(9, held, 5)), Status::BAD_SEQID);
    assert_eq!(a.status(file, unlock(1, held, 5)), Status::OK);
    assert_eq!(a.status(file, unlock(1, held, 5)), Status::OK);
    assert_eq!(a.status(file, unlock(2, held, 0)), Status::OLD_STATEID);
    assert_eq!(test(&b, "lb", 5, 5), Status::OK);
    let held = Stateid { seqid: 2, ..held };
    assert_eq!(a.status(file, lock(false, 0, 5, Locker::Known { stateid: held, seqid: 3 })), Status::OK);
    assert_eq!(b.status(file, lock(false, 0, 3, first(b.seqid, open_b, b.id, "lb"))), Status::OK);
    // An owner with locks is not forgotten; CLOSE releases them.
    assert_eq!(a.run(&[Op::ReleaseLockowner(a.owner("la"))]).status, Status::LOCKS_HELD);
    assert_eq!(a.status(file, Op::Close(Close { seqid: a.seqid, stateid: open_a })), Status::OK);
    assert_eq!(a.run(&[Op::ReleaseLockowner(a.owner("la"))]).status, Status::OK);
    let held = Stateid { seqid: 3, ..held };
    assert_eq!(a.status(file, unlock(4, held, 0)), Status::BAD_STATEID);
}

#[test]
fn locks_of_nfs_are_advisory_to_nfs_and_those_of_smb_are_not() {
    let server = server();
    let (mut a, mut b) = (Old::new(&server, "a"), Old::new(&server, "b"));
    let (file, open_a) = a.open("f", 3, 0);
    let (_, open_b) = b.open("f", 3, 0);
    let mut answer = a.run(&[Op::Putfh(file), lock(true, 0, 10, first(a.seqid, open_a, a.id, "la"))]);
    answer.ok::<()>(opnum::PUTFH);
    let held: Stateid = answer.ok(opnum::LOCK);
    for (client, stateid) in [(&a, open_a), (&a, held), (&b, open_b), (&b, Stateid::ANONYMOUS)] {
        assert_eq!(client.status(file, write_op(stateid, 0, b"x")), Status::OK);
        assert_eq!(client.status(file, read_op(stateid, 0, 1)), Status::OK);
    }
    let opens = server.vfs(0).opens().clone();
    let handle = weft_wire::nfs3::Handle::new(file.as_bytes()).unwrap();
    let node = crate::server::tests::node_of(&server, &handle);
    let all = weft_store::opens::Rights::ALL;
    let smb = opens.try_open(node, &weft_store::opens::Opening::new(all, all, opens.key())).unwrap();
    let range = |offset| weft_store::opens::Range::new(offset, 10).unwrap();
    assert!(smb.try_lock(range(5), true).is_err(), "it is locked");
    smb.try_lock(range(20), true).unwrap();
    assert_eq!(b.status(file, write_op(open_b, 25, b"x")), Status::LOCKED);
    assert_eq!(b.status(file, read_op(open_b, 25, 1)), Status::LOCKED);
    assert_eq!(b.status(file, read_op(open_b, 10, 10)), Status::OK);
    let kind = LockType { exclusive: false, waits: false };
    let mut answer =
        a.run(&[Op::Putfh(file), Op::Lockt(Lockt { kind, offset: 25, length: 1, owner: a.owner("la") })]);
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!(answer.next(opnum::LOCKT), Status::DENIED);
    assert_eq!(
        LockDenied::parse(&mut answer.d).unwrap().owner,
        Owner { client: 0, owner: Opaque::default() }
    );
}

#[test]
fn who_is_refused_a_lock_is_told_a_name_that_is_of_no_use() {
    let server = server();
    let (mut a, b) = (Old::new(&server, "a"), Old::new(&server, "b"));
    let (file, open_a) = a.open("f", 3, 0);
    let locked = a.status(file, lock(true, 0, 10, first(a.seqid, open_a, a.id, "la")));
    assert_eq!(locked, Status::OK);
    let kind = LockType { exclusive: true, waits: false };
    let told = || {
        let test = Op::Lockt(Lockt { kind, offset: 0, length: 1, owner: b.owner("lb") });
        let mut answer = b.run(&[Op::Putfh(file), test]);
        answer.ok::<()>(opnum::PUTFH);
        assert_eq!(answer.next(opnum::LOCKT), Status::DENIED);
        LockDenied::parse(&mut answer.d).unwrap().owner
    };
    let owner = told();
    assert_eq!((&owner.owner.0[..], owner.client == a.id), (&b"la"[..], false));
    assert_eq!(owner, told(), "two who hold locks can be told apart");
    assert_eq!(b.run(&[Op::Renew(owner.client)]).status, Status::STALE_CLIENTID);
}

#[test]
fn a_lock_needs_the_right_open() {
    let server = server();
    let mut a = Old::new(&server, "a");
    let (file, open) = a.open("f", 1, 0);
    let mut status = |exclusive, offset, length| {
        let op = lock(exclusive, offset, length, first(a.seqid, open, a.id, "la"));
        a.seqid += 1;
        a.status(file, op)
    };
    assert_eq!(status(true, 0, 1), Status::OPENMODE);
    assert_eq!(status(false, 0, 0), Status::INVAL);
    assert_eq!(status(false, 3, u64::MAX - 1), Status::INVAL);
    assert_eq!(status(false, 0, u64::MAX), Status::OK);
    let reclaim = Lock {
        kind: LockType { exclusive: false, waits: false },
        reclaim: true,
        offset: 0,
        length: 1,
        locker: first(a.seqid, open, a.id, "other"),
    };
    assert_eq!(a.status(file, Op::Lock(reclaim)), Status::NO_GRACE);
}

#[test]
fn with_sessions_locks_need_no_numbers() {
    let server = server();
    let (a, b) = (Modern::new(&server, "a"), Modern::new(&server, "b"));
    let (file, open_a) = a.open("f", 3, 0);
    let (_, open_b) = b.open("f", 3, 0);
    let mut answer = a.run(&[Op::Putfh(file), lock(true, 0, 10, first(0, open_a, 0, "l"))]);
    answer.ok::<()>(opnum::PUTFH);
    let held: Stateid = answer.ok(opnum::LOCK);
    assert_eq!(b.status(file, lock(true, 0, 1, first(0, open_b, 0, "l"))), Status::DENIED);
    assert_eq!(a.run(&[Op::FreeStateid(held)]).status, Status::LOCKS_HELD);
    let kind = LockType { exclusive: true, waits: false };
    let unlock = |stateid| Op::Locku(Locku { kind, seqid: 0, stateid, offset: 0, length: u64::MAX });
    // Sequence number 0 means the current state.
    assert_eq!(a.status(file, unlock(Stateid { seqid: 0, ..held })), Status::OK);
    assert_eq!(a.status(file, unlock(held)), Status::OLD_STATEID);
    assert_eq!(a.run(&[Op::FreeStateid(Stateid { seqid: 0, ..held })]).status, Status::OK);
    assert_eq!(a.run(&[Op::FreeStateid(Stateid { seqid: 0, ..held })]).status, Status::BAD_STATEID);
    assert_eq!(b.status(file, lock(true, 0, 1, first(0, open_b, 0, "l"))), Status::OK);
}

/// Found by the fuzzer: an open and its owner kept each other alive, and so did an open and its locks. If the client
/// returned as another one, or never, they stayed, with the open file.
#[test]
fn what_a_client_held_is_freed_when_it_is_gone() {
    let server = server();
    let held = |speaker: Speaker<'_>, client| -> Vec<_> {
        let client = server.states.client(speaker, client).unwrap();
        let mine = client.mine();
        mine.states.values().map(Arc::downgrade).collect()
    };

    let mut old = Old::new(&server, "old");
    let (file, opened) = old.open("f", share::BOTH, 0);
    let locker = first(old.seqid, opened, old.id, "locks");
    assert_eq!(old.status(file, lock(true, 0, 5, locker)), Status::OK);
    old.seqid += 1;
    let (other, closed) = old.open("g", share::READ, 0);
    assert_eq!(old.status(other, Op::Close(Close { seqid: old.seqid, stateid: closed })), Status::OK);
    let states = held(Speaker::Alone(&origin(PEER)), old.id);
    assert_eq!(states.len(), 3, "an open, its locks, and a CLOSE that could be asked again");
    let again = old.setclientid("old", *b"second--");
    assert_eq!(old.run(&[Op::SetclientidConfirm(again)]).status, Status::OK);
    assert!(states.iter().all(|state| state.upgrade().is_none()));

    let new = Modern::new(&server, "new");
    let (file, opened) = new.open("f", share::BOTH, 0);
    assert_eq!(new.status(file, lock(true, 9, 5, first(0, opened, 0, "locks"))), Status::OK);
    let session = server.states.session(&new.session, &origin(PEER)).unwrap();
    let states = held(Speaker::Session(&session), new.id);
    assert_eq!(states.len(), 2);
    let mut answer = send(&server, call(1, 1, &[exchange_id("new", *b"reboots-", 0)]));
    let known: ExchangeIdOk = answer.ok(opnum::EXCHANGE_ID);
    let made = send(&server, call(1, 1, &[create_session(known.client, known.sequence, channel())]));
    assert_eq!(made.status, Status::OK);
    assert!(states.iter().all(|state| state.upgrade().is_none()));
}

/// A LOCK that found its state alive on one connection continues after the state has ended on another one.
fn lock_late(server: &Server, state: &State, end: &str) {
    let Kind::Lock { id, ranges, .. } = &state.kind else { panic!("locks") };
    let opens = &server.vfs(0).opens().clone();
    let range = Range::new(0, 10).unwrap();
    let set = || opens.try_set_range(state.file.node, *id, range, true);
    let by = LockedBy { opens, node: state.file.node, owner: *id };
    let late = ranges.lock(by, set);
    assert!(!opens.holds_ranges(state.file.node, *id), "{end}: nobody would ever release it");
    assert!(matches!(late, Err(Unchanged::Ended)), "{end}");
    let cleared = ranges.unlock(by, range, || ());
    assert_eq!(cleared, Err(Unchanged::Ended), "{end}");
}

#[test]
fn no_range_is_locked_for_locks_that_have_ended_meanwhile() {
    let kind = LockType { exclusive: true, waits: false };
    let whole = |seqid, stateid| Op::Locku(Locku { kind, seqid, stateid, offset: 0, length: u64::MAX });
    for end in ["CLOSE", "RELEASE_LOCKOWNER", "another run"] {
        let server = server();
        let mut old = Old::new(&server, "old");
        let (file, opened) = old.open("f", share::BOTH, 0);
        let locker = first(old.seqid, opened, old.id, "locks");
        old.seqid += 1;
        let mut answer = old.run(&[Op::Putfh(file), lock(true, 0, 5, locker)]);
        answer.ok::<()>(opnum::PUTFH);
        let held: Stateid = answer.ok(opnum::LOCK);
        let state = server.states.find(&held, Speaker::Alone(&origin(PEER))).unwrap();
        match end {
            "CLOSE" => {
                let close = Op::Close(Close { seqid: old.seqid, stateid: opened });
                assert_eq!(old.status(file, close), Status::OK);
            }
            "RELEASE_LOCKOWNER" => {
                assert_eq!(old.status(file, whole(1, held)), Status::OK);
                assert_eq!(old.run(&[Op::ReleaseLockowner(old.owner("locks"))]).status, Status::OK);
            }
            _ => {
                let again = old.setclientid("old", *b"second--");
                assert_eq!(old.run(&[Op::SetclientidConfirm(again)]).status, Status::OK);
            }
        }
        lock_late(&server, &state, end);
    }
    let server = server();
    let new = Modern::new(&server, "new");
    let (file, opened) = new.open("f", share::BOTH, 0);
    let mut answer = new.run(&[Op::Putfh(file), lock(true, 0, 5, first(0, opened, 0, "locks"))]);
    answer.ok::<()>(opnum::PUTFH);
    let held: Stateid = answer.ok(opnum::LOCK);
    let session = server.states.session(&new.session, &origin(PEER)).unwrap();
    let state = server.states.find(&held, Speaker::Session(&session)).unwrap();
    assert_eq!(new.status(file, whole(0, held)), Status::OK);
    assert_eq!(new.run(&[Op::FreeStateid(Stateid { seqid: 0, ..held })]).status, Status::OK);
    lock_late(&server, &state, "FREE_STATEID");
}
