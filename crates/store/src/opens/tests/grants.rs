//! Caching rights: which are granted together, which accesses break them, and which accesses wait.

use std::pin::pin;
use std::task::{Context, Poll};

use super::*;

/// A client that is notified of recalls.
#[derive(Default)]
struct Client {
    told: Mutex<Vec<(Caching, Caching, bool)>>,
    revoked: AtomicUsize,
    gone: AtomicBool,
}

impl Client {
    fn told(&self) -> Vec<(Caching, Caching, bool)> {
        std::mem::take(&mut self.told.lock().unwrap())
    }
}

impl Holder for Client {
    fn recall(&self, recall: Recall) -> bool {
        self.told.lock().unwrap().push((recall.from, recall.to, recall.acknowledge));
        !self.gone.load(Ordering::Relaxed)
    }
    fn revoked(&self, _: NodeId, _: Key) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens for everything, sharing everything, and asks for `caching`.
fn cached(t: &Arc<Opens>, form: Form, caching: Caching) -> (Open, Arc<Client>, Caching) {
    let (open, client) = (open(t, Rights::ALL, Rights::ALL).unwrap(), Arc::new(Client::default()));
    let (granted, _) = open.request(form, caching, client.clone());
    (open, client, granted)
}

fn opening(t: &Opens) -> Opening {
    Opening::new(Rights::READ, Rights::ALL, t.key())
}

#[test]
fn what_is_granted_next_to_what() {
    use Caching as C;
    let cases = [
        // (first, second) asked for; what the second gets.
        ((Form::Oplock, C::R), (Form::Oplock, C::RWH), C::R),
        ((Form::Oplock, C::R), (Form::Oplock, C::R), C::R),
        ((Form::Lease, C::R), (Form::Lease, C::RWH), C::RH),
        ((Form::Lease, C::RH), (Form::Lease, C::RW), C::R),
        ((Form::Lease, C::RH), (Form::Oplock, C::R), C::NONE),
        ((Form::Lease, C::R), (Form::Oplock, C::RWH), C::R),
        ((Form::Oplock, C::R), (Form::Lease, C::RWH), C::R),
    ];
    for ((form, first), (other_form, second), expected) in cases {
        let t = table();
        let (_a, _, granted) = cached(&t, form, first);
        assert_eq!(granted, first);
        assert_eq!(
            cached(&t, other_form, second).2,
            expected,
            "{form:?} {first:?}, {other_form:?} {second:?}"
        );
    }
    // A sole opener gets everything; with byte-range locks there are no shared rights.
    let t = table();
    let (a, _, granted) = cached(&t, Form::Lease, C::RWH);
    assert_eq!(granted, C::RWH);
    a.try_lock(range(0, 1), true).unwrap();
    assert_eq!(t.recall(NODE, None, Access::Write), Err(Refused::Recalling));
    t.acknowledge(NODE, a.key(), C::NONE).unwrap();
    assert_eq!(cached(&t, Form::Lease, C::RH).2, C::NONE);
    // A file to be deleted is not kept open.
    let t = table();
    let a = open(&t, Rights::ALL, Rights::ALL).unwrap();
    a.set_delete_pending(true);
    assert_eq!(a.request(Form::Lease, C::RWH, Arc::new(Client::default())).0, C::RW);
}

#[test]
fn rights_of_a_key_grow_and_never_shrink() {
    use Caching as C;
    for (has, wants, gets) in [
        (C::R, C::RH, C::RH),
        (C::R, C::RW, C::RW),
        (C::RH, C::RWH, C::RWH),
        (C::RW, C::RWH, C::RWH),
        (C::RH, C::RW, C::RH),
        (C::RWH, C::R, C::RWH),
        (C::RW, C::NONE, C::RW),
    ] {
        let t = table();
        let (a, client, _) = cached(&t, Form::Lease, has);
        let again = t.try_open(NODE, &Opening::new(Rights::ALL, Rights::ALL, a.key())).unwrap();
        assert_eq!(again.request(Form::Lease, wants, client.clone()), (gets, false));
        // One key, however many opens: none of them takes anything from it.
        assert!(client.told().is_empty());
        drop(a);
        assert_eq!(t.caching(NODE, again.key()).0, gets);
        let key = again.key();
        drop(again);
        assert_eq!(t.caching(NODE, key), (C::NONE, None));
        assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn what_an_access_breaks() {
    use Access as A;
    use Caching as C;
    use Form::{Delegation, Lease, Oplock};
    // The remaining rights, and whether the access waits.
    let cases = [
        (Oplock, C::RWH, A::Open, C::R, true),
        (Oplock, C::RW, A::Read, C::R, true),
        (Oplock, C::RWH, A::Overwrite, C::NONE, true),
        (Oplock, C::RWH, A::Rename, C::NONE, true),
        (Oplock, C::RW, A::Rename, C::RW, false),
        (Oplock, C::RWH, A::Handle, C::RWH, false),
        (Oplock, C::R, A::Open, C::R, false),
        (Oplock, C::R, A::Write, C::NONE, false),
        (Lease, C::RWH, A::Open, C::RH, true),
        (Lease, C::RW, A::Open, C::R, true),
        (Lease, C::RH, A::Open, C::RH, false),
        (Lease, C::RWH, A::Overwrite, C::NONE, true),
        (Lease, C::RH, A::Overwrite, C::NONE, false),
        (Lease, C::RH, A::Write, C::NONE, false),
        (Lease, C::RH, A::Handle, C::R, true),
        (Lease, C::RWH, A::Rename, C::RW, true),
        (Lease, C::RH, A::Children, C::NONE, false),
        (Delegation, C::RH, A::Open, C::RH, false),
        (Delegation, C::RH, A::Rename, C::NONE, true),
        (Delegation, C::RWH, A::Read, C::NONE, true),
    ];
    for (form, has, access, left, waits) in cases {
        let t = table();
        let (a, client, granted) = cached(&t, form, has);
        assert_eq!(granted, has);
        let outcome = t.recall(NODE, None, access);
        assert_eq!(outcome == Err(Refused::Recalling), waits, "{form:?} {has:?} {access:?}");
        let told = client.told();
        if left == has {
            assert!(told.is_empty(), "{form:?} {has:?} {access:?}");
            continue;
        }
        let acknowledge = has != C::R;
        assert_eq!(told, [(has, left, acknowledge)], "{form:?} {has:?} {access:?}");
        // Asked once; its own accesses do not matter.
        assert_eq!(t.recall(NODE, None, access).is_err(), waits);
        assert!(form == Oplock && has == C::R || t.recall(NODE, Some(a.key()), access).is_ok());
        assert!(client.told().is_empty());
        match acknowledge {
            true => t.acknowledge(NODE, a.key(), left).unwrap(),
            false => assert_eq!(t.acknowledge(NODE, a.key(), left), Err(AckFailed::NotRecalled)),
        }
        assert_eq!(t.caching(NODE, a.key()), (left, None));
        assert_eq!(t.recall(NODE, None, access), Ok(()));
    }
}

#[test]
fn an_open_waits_for_the_holder() {
    let t = table();
    let (a, client, _) = cached(&t, Form::Lease, Caching::RWH);
    let (woken, waker) = Woken::new();
    let mut cx = Context::from_waker(&waker);
    weft_machine::rt::block_on(async {
        let other = opening(&t);
        let mut wait = pin!(t.open(NODE, &other));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        assert_eq!(client.told(), [(Caching::RWH, Caching::RH, true)]);
        assert_eq!(t.caching(NODE, a.key()), (Caching::RWH, Some(Caching::RH)));
        // Nobody keeps more than what is left.
        assert_eq!(t.acknowledge(NODE, a.key(), Caching::RWH), Err(AckFailed::TooMuch(Caching::RH)));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        t.acknowledge(NODE, a.key(), Caching::R).unwrap();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        let Poll::Ready(Ok(_b)) = wait.as_mut().poll(&mut cx) else { panic!("not opened") };
        assert_eq!(t.caching(NODE, a.key()), (Caching::R, None));
    })
    .unwrap();
}

#[test]
fn a_handle_that_nobody_uses_is_closed_rather_than_in_the_way() {
    let t = table();
    let holder = Opening::new(Rights::READ, Rights::NONE, t.key());
    let a = t.try_open(NODE, &holder).unwrap();
    let client = Arc::new(Client::default());
    assert_eq!(a.request(Form::Lease, Caching::RH, client.clone()).0, Caching::RH);
    let wish = Opening::new(Rights::READ, Rights::ALL, t.key());
    assert_eq!(t.try_open(NODE, &wish).unwrap_err(), Refused::Recalling);
    assert_eq!(client.told(), [(Caching::RH, Caching::R, true)]);
    // If it stays open, it is a violation; if it is closed, it was no conflict.
    t.acknowledge(NODE, a.key(), Caching::R).unwrap();
    assert_eq!(t.try_open(NODE, &wish).unwrap_err(), Refused::Sharing);
    a.close();
    t.try_open(NODE, &wish).unwrap();
}

#[test]
fn others_may_need_more_before_the_holder_agrees() {
    let t = table();
    let (a, client, _) = cached(&t, Form::Lease, Caching::RWH);
    assert_eq!(t.try_open(NODE, &opening(&t)).unwrap_err(), Refused::Recalling);
    let overwrite = Opening { overwrites: true, ..opening(&t) };
    assert_eq!(t.try_open(NODE, &overwrite).unwrap_err(), Refused::Recalling);
    assert_eq!(client.told(), [(Caching::RWH, Caching::RH, true)]);
    t.acknowledge(NODE, a.key(), Caching::RH).unwrap();
    // Handles first; both wait for the end.
    assert_eq!(client.told(), [(Caching::RH, Caching::R, true)]);
    assert_eq!(t.try_open(NODE, &opening(&t)).unwrap_err(), Refused::Recalling);
    assert_eq!(t.try_open(NODE, &overwrite).unwrap_err(), Refused::Recalling);
    t.acknowledge(NODE, a.key(), Caching::R).unwrap();
    assert_eq!(client.told(), [(Caching::R, Caching::NONE, false)]);
    t.try_open(NODE, &overwrite).unwrap();
}

#[test]
fn a_right_grows_to_what_was_asked_for_or_not_at_all() {
    let t = table();
    let (a, client, _) = cached(&t, Form::Lease, Caching::R);
    let (_b, _, _) = cached(&t, Form::Lease, Caching::RH);
    assert_eq!(a.request(Form::Lease, Caching::RWH, client.clone()).0, Caching::R);
    assert_eq!(a.request(Form::Lease, Caching::RH, client).0, Caching::RH);
}

#[test]
fn who_does_not_answer_loses_everything() {
    use weft_machine::sim::Sim;
    let sim = Sim::new(1);
    sim.run(async {
        let t = table();
        let (a, client, _) = cached(&t, Form::Lease, Caching::RWH);
        let begun = weft_machine::rt::now();
        let _b = t.open(NODE, &opening(&t)).await.unwrap();
        assert_eq!(weft_machine::rt::now() - begun, BREAK_TIMEOUT);
        assert_eq!(client.told().len(), 1);
        assert_eq!(client.revoked.load(Ordering::Relaxed), 1);
        assert_eq!(t.acknowledge(NODE, a.key(), Caching::RH), Err(AckFailed::NotRecalled));
    });
}

#[test]
fn who_deletes_a_file_waits_for_one_break_of_a_client_that_does_not_answer() {
    use weft_machine::sim::Sim;
    for (form, rights) in
        [(Form::Lease, Caching::RWH), (Form::Lease, Caching::RH), (Form::Oplock, Caching::RWH)]
    {
        Sim::new(1).run(async move {
            let t = table();
            let (_a, _client, _) = cached(&t, form, rights);
            let begun = weft_machine::rt::now();
            // Opening it takes the writes back, and removing the name the handle.
            let b = t.open(NODE, &opening(&t)).await.unwrap();
            t.clear(NODE, Some(b.key()), Access::Handle).await.unwrap();
            t.clear(NODE, Some(b.key()), Access::Rename).await.unwrap();
            assert_eq!(weft_machine::rt::now() - begun, BREAK_TIMEOUT, "{form:?} {rights:?}");
        });
    }
}

#[test]
fn who_cannot_be_told_has_agreed() {
    let t = table();
    let (a, client, _) = cached(&t, Form::Oplock, Caching::RWH);
    client.gone.store(true, Ordering::Relaxed);
    t.try_open(NODE, &opening(&t)).unwrap();
    assert_eq!(client.told().len(), 1);
    assert_eq!(t.caching(NODE, a.key()).0, Caching::R);
}

#[test]
fn attributes_are_nobodys_business() {
    let t = table();
    let (_a, client, _) = cached(&t, Form::Lease, Caching::RWH);
    let look = Opening { reach: Reach::Attributes, ..Opening::new(Rights::NONE, Rights::ALL, t.key()) };
    t.try_open(NODE, &look).unwrap();
    t.try_open(NODE, &Opening { reach: Reach::Security, ..look }).unwrap();
    assert!(client.told().is_empty());
    let empty = Opening { overwrites: true, ..look };
    assert_eq!(t.try_open(NODE, &empty).unwrap_err(), Refused::Recalling);
    let t = table();
    let (_a, _client, _) = cached(&t, Form::Oplock, Caching::RW);
    t.try_open(NODE, &look).unwrap();
    assert_eq!(
        t.try_open(NODE, &Opening { reach: Reach::Security, ..look }).unwrap_err(),
        Refused::Recalling
    );
    // Nor do they prevent another opener from being alone.
    let t = table();
    let _look = t.try_open(NODE, &look).unwrap();
    assert_eq!(cached(&t, Form::Lease, Caching::RWH).2, Caching::RWH);
}

#[test]
fn a_write_takes_read_caches_along_and_does_not_wait() {
    let t = table();
    let (a, one, _) = cached(&t, Form::Oplock, Caching::R);
    let (b, two, _) = cached(&t, Form::Oplock, Caching::R);
    a.may_write(0, 1).unwrap();
    // A level II oplock does not survive its own open's writes either.
    assert_eq!(one.told(), [(Caching::R, Caching::NONE, false)]);
    assert_eq!(two.told(), [(Caching::R, Caching::NONE, false)]);
    a.may_write(0, 1).unwrap();
    b.try_lock(range(0, 1), true).unwrap();
    assert!(one.told().is_empty() && two.told().is_empty());
    let t = table();
    let (a, one, _) = cached(&t, Form::Lease, Caching::R);
    let (_b, two, _) = cached(&t, Form::Lease, Caching::RH);
    a.may_write(0, 1).unwrap();
    assert!(one.told().is_empty());
    assert_eq!(two.told(), [(Caching::RH, Caching::NONE, true)]);
}

#[test]
fn those_without_opens_pass_through_the_same_gate() {
    let t = table();
    weft_machine::rt::block_on(async {
        t.pass(NODE, Access::Write, Rights::WRITE).await.unwrap();
        let holder = Opening::new(Rights::READ, Rights::READ, t.key());
        let a = t.open(NODE, &holder).await.unwrap();
        assert_eq!(t.pass(NODE, Access::Write, Rights::WRITE).await, Err(Refused::Sharing));
        t.pass(NODE, Access::Read, Rights::READ).await.unwrap();
        let client = Arc::new(Client::default());
        a.request(Form::Delegation, Caching::RWH, client.clone());
        let (_, waker) = Woken::new();
        let mut cx = Context::from_waker(&waker);
        let mut read = pin!(t.pass(NODE, Access::Read, Rights::READ));
        assert!(read.as_mut().poll(&mut cx).is_pending());
        assert_eq!(client.told(), [(Caching::RWH, Caching::NONE, true)]);
        // A delegation outlives its opens, and ends by being given back.
        let key = a.key();
        drop(a);
        assert_eq!(t.caching(NODE, key).0, Caching::RWH);
        t.give_back(NODE, key);
        assert_eq!(read.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
        assert_eq!(t.known_nodes.load(Ordering::Relaxed), 0);
    })
    .unwrap();
}

#[test]
fn delegations_keep_writers_out_and_are_granted_whole() {
    let t = table();
    let reading = |access| Opening::new(access, Rights::ALL, t.key());
    let holder = Arc::new(Client::default());
    let one = t.try_open(NODE, &reading(Rights::READ)).unwrap();
    let two = t.try_open(NODE, &reading(Rights::READ)).unwrap();
    // Another client reads: no write delegation, and not half of one.
    assert_eq!(one.request(Form::Delegation, Caching::RWH, holder.clone()).0, Caching::NONE);
    for open in [&one, &two] {
        assert_eq!(open.request(Form::Delegation, Caching::RH, holder.clone()).0, Caching::RH);
    }
    // Readers come and go; a lease is granted beside.
    let three = t.try_open(NODE, &reading(Rights::READ)).unwrap();
    assert_eq!(three.request(Form::Lease, Caching::RWH, holder.clone()).0, Caching::RH);
    drop(three);
    // An open refused by share modes recalls no delegation.
    let exclusive = Opening::new(Rights::READ, Rights::NONE, t.key());
    assert_eq!(t.try_open(NODE, &exclusive).unwrap_err(), Refused::Sharing);
    assert!(holder.told().is_empty());
    // A writer waits for both.
    let writer = reading(Rights::WRITE);
    assert_eq!(t.try_open(NODE, &writer).unwrap_err(), Refused::Recalling);
    assert_eq!(holder.told(), [(Caching::RH, Caching::NONE, true); 2]);
    t.give_back(NODE, one.key());
    assert_eq!(t.try_open(NODE, &writer).unwrap_err(), Refused::Recalling);
    t.give_back(NODE, two.key());
    let _writer = t.try_open(NODE, &writer).unwrap();
    // Beside a writer nobody gets one.
    assert_eq!(one.request(Form::Delegation, Caching::RH, holder.clone()).0, Caching::NONE);
}

#[test]
fn who_deletes_on_close_asks_for_handles_that_are_only_cached() {
    let t = table();
    let (a, client, _) = cached(&t, Form::Lease, Caching::RH);
    let b = open(&t, Rights::DELETE, Rights::ALL).unwrap();
    b.set_delete_on_close();
    assert!(client.told().is_empty(), "b may still be asked not to");
    assert!(b.close().is_none());
    assert_eq!(client.told(), [(Caching::RH, Caching::R, true)]);
    // A holder that does not close delays the deletion, and carries it out.
    assert!(t.delete_pending(NODE));
    assert!(a.close().is_some());
}

#[test]
fn opens_that_may_all_be_closed_when_asked_for() {
    let t = table();
    assert!(t.only_cached(NODE));
    let (a, _, _) = cached(&t, Form::Lease, Caching::RH);
    let (b, _, _) = cached(&t, Form::Lease, Caching::RH);
    assert!(t.only_cached(NODE));
    let c = open(&t, Rights::READ, Rights::ALL).unwrap();
    assert!(!t.only_cached(NODE));
    drop(c);
    // It was asked, and stays.
    assert_eq!(t.recall(NODE, None, Access::Rename), Err(Refused::Recalling));
    t.acknowledge(NODE, a.key(), Caching::R).unwrap();
    t.acknowledge(NODE, b.key(), Caching::R).unwrap();
    assert!(!t.only_cached(NODE));
    // An NFSv4 client closes what it does not use.
    let t = table();
    let (_d, _, _) = cached(&t, Form::Delegation, Caching::RH);
    assert!(!t.only_cached(NODE));
}

#[test]
fn an_open_looks_at_no_right_that_it_takes_nothing_from() {
    use super::super::grants::LOOKS;
    let t = table();
    let cached: Vec<_> = (0..1000).map(|_| cached(&t, Form::Lease, Caching::RH)).collect();
    let before = LOOKS.get();
    for _ in 0..10 {
        let mut opening = opening(&t);
        opening.access = Rights::ALL;
        let one = t.try_open(NODE, &opening).unwrap();
        assert_eq!(one.request(Form::Lease, Caching::RWH, Arc::new(Client::default())).0, Caching::RH);
        assert!(one.close().is_none());
    }
    assert_eq!(LOOKS.get() - before, 0);
    // A write breaks all rights to read. Without them there is nothing to examine.
    let one = open(&t, Rights::ALL, Rights::ALL).unwrap();
    assert!(one.may_write(0, 1).is_ok());
    assert!(cached.iter().all(|(_, client, _)| client.told() == [(Caching::RH, Caching::NONE, true)]));
    for (open, ..) in &cached {
        t.acknowledge(NODE, open.key(), Caching::NONE).unwrap();
    }
    let before = LOOKS.get();
    one.may_write(0, 1).unwrap();
    t.recall(NODE, None, Access::Write).unwrap();
    drop(cached);
    assert_eq!(LOOKS.get() - before, 0);
}
