//! Delegations: who is granted one, who recalls it, and what happens to a client that does not answer.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::poll_immediate;
use weft_machine::rt;
use weft_store::opens::{Caching, Form, Holder, Opening, Recall, Rights};
use weft_wire::nlm;

use super::live::{Live, story};
use super::*;
use crate::server::tests::results_for;

fn read_of(granted: &Delegation) -> Stateid {
    let Delegation::Read(stateid, false, ..) = granted else { panic!("{granted:?}") };
    *stateid
}

fn write_of(granted: &Delegation) -> Stateid {
    let Delegation::Write(stateid, false, ..) = granted else { panic!("{granted:?}") };
    *stateid
}

/// Holds its delegation forever.
struct Silent;

impl Holder for Silent {
    fn recall(&self, _: Recall) -> bool {
        true
    }
}

#[test]
fn a_reader_is_told_before_somebody_writes() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let (file, opened) = a.open(&server, "f", share::READ).await;
        let delegation = read_of(&opened.delegation);
        // Readers share the file; each has a delegation.
        let (_, second) = b.open(&server, "f", share::READ).await;
        let other = read_of(&second.delegation);
        // It permits as much as an open, and outlives it.
        assert_eq!(a.at(file, Op::Commit(Commit { offset: 0, count: 0 })).await.status, Status::OK);
        a.close(file, opened.stateid).await;
        let fields = Op::Setattr(Setattr { stateid: delegation, attributes: mode(0o640) });
        assert_eq!(a.at(file, fields).await.status, Status::DELAY, "b caches the mode");
        let asked = b.wire.asked().await;
        assert_eq!(asked.recall().stateid, other);
        b.wire.answer(&asked, Status::OK, |_| ());
        assert_eq!(b.at(file, Op::Delegreturn(other)).await.status, Status::OK);
        assert!(a.wire.is_silent().await);
        // Its own writing recalls nothing from a client.
        let (_, own) = a.open(&server, "f", share::WRITE).await;
        assert!(a.wire.is_silent().await);
        assert_eq!(a.at(file, Op::Close(Close { seqid: 0, stateid: own.stateid })).await.status, Status::OK);

        assert_eq!(b.try_open(&server, "f", share::WRITE).await.unwrap_err(), Status::DELAY);
        let asked = a.wire.asked().await;
        assert_eq!(asked.call.program, 0x4000_0000);
        let (session, sequence, slot) = (a.session, 1, 0);
        assert_eq!(
            (asked.sequence.session, asked.sequence.sequence, asked.sequence.slot),
            (session, sequence, slot)
        );
        assert_eq!((asked.recall().stateid, asked.recall().handle), (delegation, file));
        a.wire.answer(&asked, Status::OK, |_| ());
        assert_eq!(b.try_open(&server, "f", share::WRITE).await.unwrap_err(), Status::DELAY);
        // While it returns the delegation, it opens what it had promised to its own users.
        let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"late")) };
        let claim = Claim::DelegCurFh(delegation);
        let late = Op::Open(Open { seqid: 0, access: share::READ, deny: 0, owner, how: None, claim });
        assert_eq!(a.at(file, late).await.status, Status::OK);
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::OK);
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::BAD_STATEID);
        let (_, writes) = b.open(&server, "f", share::WRITE).await;
        assert_eq!(writes.delegation, Delegation::None, "others read");
        assert!(a.wire.is_silent().await);
    });
}

#[test]
fn nobody_gets_one_who_cannot_be_called_or_does_not_want_it() {
    story(async {
        let server = server();
        let deaf = Live::with(&server, "deaf", 0).await;
        let why = |granted: &Delegation| match granted {
            Delegation::NoneExt(why, _) => *why,
            other => panic!("{other:?}"),
        };
        use why_no_delegation as no;
        let (_, opened) = deaf.open(&server, "f", share::READ).await;
        assert_eq!(opened.delegation, Delegation::None);
        let (file, opened) = deaf.open(&server, "f", share::READ | share::WANT_READ_DELEG).await;
        assert_eq!(why(&opened.delegation), no::RESOURCE);
        assert_eq!(deaf.flags.get(), 0);
        let a = Live::new(&server, "a").await;
        let (_, opened) = a.open(&server, "f", share::READ | share::WANT_NO_DELEG).await;
        assert_eq!(why(&opened.delegation), no::NOT_WANTED);
        // Another client has it open, so it can be cached for reading only.
        let (_, opened) = a.open(&server, "f", share::BOTH | share::WANT_WRITE_DELEG).await;
        assert_eq!(why(&opened.delegation), no::CONTENTION);
        let (_, opened) = a.open(&server, "f", share::READ | share::WANT_READ_DELEG).await;
        let had = read_of(&opened.delegation);
        // One per file is enough; it can also be requested without an open.
        let (_, opened) = a.open(&server, "f", share::READ | share::WANT_READ_DELEG).await;
        assert_eq!(why(&opened.delegation), no::RESOURCE);
        assert_eq!(a.at(file, Op::Delegreturn(had)).await.status, Status::OK);
        let want = |want| Op::WantDelegation(WantDelegation { want, claim: DelegClaim::Fh });
        let granted: Delegation = a.at(file, want(share::WANT_READ_DELEG)).await.ok(opnum::WANT_DELEGATION);
        read_of(&granted);
        let granted: Delegation = a.at(file, want(share::WANT_CANCEL)).await.ok(opnum::WANT_DELEGATION);
        assert_eq!(why(&granted), no::CANCELLED);
    });
}

#[test]
fn who_may_only_write_is_not_delegated_a_file() {
    use weft_store::{Exists, Make, SetAttr};

    story(async {
        let server = server_of(Limits::default(), Policy { decides: true, squash_root: true });
        let vfs = &server.vfs(0);
        let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        vfs.setattr(NodeId::ROOT, open).await.unwrap();
        for (name, mode) in [("drop", 0o622), ("drop2", 0o622), ("open", 0o666)] {
            let set = SetAttr { mode: Some(mode), uid: Some(0), gid: Some(0), ..SetAttr::default() };
            let made = vfs.make(NodeId::ROOT, name.as_bytes(), Make::File, Exists::Fail, set).await;
            vfs.settle(made.unwrap().1).await.unwrap();
        }
        let a = Live::new(&server, "a").await;
        for (name, want) in [("drop", 0), ("drop2", share::WANT_READ_DELEG)] {
            let (file, opened) = a.open(&server, name, share::WRITE | want).await;
            if let Delegation::Read(stateid, ..) | Delegation::Write(stateid, ..) = opened.delegation {
                let read = a.at(file, read_op(stateid, 0, 10)).await.status;
                panic!("granted a delegation; a READ by it returns {read:?}");
            }
            assert_eq!(a.at(file, read_op(opened.stateid, 0, 10)).await.status, Status::OPENMODE);
            assert_eq!(a.at(file, read_op(Stateid::ANONYMOUS, 0, 10)).await.status, Status::ACCESS);
        }
        let (_, opened) = a.open(&server, "open", share::WRITE).await;
        write_of(&opened.delegation);
    });
}

#[test]
fn who_does_not_give_back_in_time_loses_it_and_is_told() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let (file, opened) = a.open(&server, "f", share::READ).await;
        let delegation = read_of(&opened.delegation);
        assert_eq!(b.try_open(&server, "f", share::WRITE).await.unwrap_err(), Status::DELAY);
        let asked = a.wire.asked().await;
        // It may not have received its grant yet, so it is asked again.
        a.wire.answer(&asked, Status::BADHANDLE, |_| ());
        let again = a.wire.asked().await;
        assert_eq!((again.recall(), again.sequence.sequence), (asked.recall(), 2));
        a.wire.answer(&again, Status::OK, |_| ());
        for _ in 0..5 {
            rt::sleep(Duration::from_secs(11)).await;
            assert_eq!(b.try_open(&server, "f", share::WRITE).await.unwrap_err(), Status::DELAY);
            assert_eq!(a.run(&[]).await.status, Status::OK);
        }
        rt::sleep(Duration::from_secs(11)).await;
        b.open(&server, "f", share::WRITE).await;
        assert_eq!(a.run(&[]).await.status, Status::OK);
        assert_eq!(a.flags.get(), sequence_flag::RECALLABLE_STATE_REVOKED);
        assert_eq!(a.at(file, read_op(delegation, 0, 1)).await.status, Status::DELEG_REVOKED);
        let tested: TestStateidOk =
            a.run(&[Op::TestStateid(UpTo(vec![delegation]))]).await.ok(opnum::TEST_STATEID);
        assert_eq!(tested.0, [Status::DELEG_REVOKED]);
        assert_eq!(a.run(&[Op::FreeStateid(delegation)]).await.status, Status::OK);
        assert_eq!(a.run(&[]).await.status, Status::OK);
        assert_eq!(a.flags.get(), 0);
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::BAD_STATEID);
    });
}

/// A client's host restarts while one of its requests is running: nobody would ever close what that gets.
#[test]
fn a_client_that_was_replaced_gets_nothing_more() {
    use super::super::close::give_back;
    use super::super::state::Speaker;

    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let denies = |deny| {
            let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"alone")) };
            let how = Some(CreateHow::Unchecked(Fattr::default()));
            let claim = Claim::Null(text("f"));
            Op::Open(Open { seqid: 0, access: share::WRITE, deny, owner, how, claim })
        };
        assert_eq!(b.run(&[Op::Putfh(root(&server)), denies(0)]).await.status, Status::OK);
        let session = server.states.session(&b.session, &origin(PEER)).unwrap();
        let client = server.states.client(Speaker::Session(&session), 0).unwrap();
        let state = client.mine().states.values().next().unwrap().clone();
        assert_eq!(client.hold(&state, &server.shares), Ok(()), "its own");
        let wire = super::live::Connection::new(&server);
        let known: ExchangeIdOk =
            wire.compound(2, &[exchange_id("b", *b"another!", 0)]).await.ok(opnum::EXCHANGE_ID);
        let create = create_session(known.client, known.sequence, channel());
        assert_eq!(wire.compound(2, &[create]).await.status, Status::OK);
        assert!(client.hold(&state, &server.shares).is_err() && client.mine().states.is_empty());
        give_back(&server, state).await;
        let alone = [Op::Putfh(root(&server)), denies(share::BOTH)];
        assert_eq!(a.run(&alone).await.status, Status::OK, "nobody else has it open");
    });
}

#[test]
fn a_recall_outlives_its_connection() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let (file, opened) = a.open(&server, "f", share::READ).await;
        let delegation = read_of(&opened.delegation);
        assert_eq!(b.try_open(&server, "f", share::WRITE).await.unwrap_err(), Status::DELAY);
        let asked = a.wire.asked().await;
        a.wire.hang_up().await;
        // The client returns on another connection, which becomes its back channel once it binds it.
        let a = Live { wire: super::live::Connection::new(&server), ..a };
        assert_eq!(a.run(&[]).await.status, Status::OK);
        let down = sequence_flag::CB_PATH_DOWN | sequence_flag::CB_PATH_DOWN_SESSION;
        assert_eq!(a.flags.get(), down);
        let bind = BindConn { session: a.session, direction: 2, rdma: false };
        let bound: BindConn =
            a.wire.compound(2, &[Op::BindConnToSession(bind)]).await.ok(opnum::BIND_CONN_TO_SESSION);
        assert_eq!(bound.direction, 2);
        let again = a.wire.asked().await;
        // The same question in the same slot with the same sequence number: the client may have seen it.
        assert_eq!((&again.sequence, &again.op), (&asked.sequence, &asked.op));
        a.wire.answer(&again, Status::OK, |_| ());
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::OK);
        assert_eq!(a.flags.get(), 0);
        b.open(&server, "f", share::WRITE).await;
    });
}

#[test]
fn what_a_writer_has_made_of_a_file_is_asked_and_not_guessed() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let access = share::BOTH | share::WANT_WRITE_DELEG | share::WANT_DELEG_TIMESTAMPS;
        let (file, opened) = a.open(&server, "f", access).await;
        let delegation = write_of(&opened.delegation);
        let wanted = Bitmap::of(&[attr::CHANGE, attr::SIZE, attr::TIME_MODIFY]);
        let attributes = async |of: &Live| {
            let fattr: Fattr = of.at(file, Op::Getattr(wanted)).await.ok(opnum::GETATTR);
            Attributes::parse(&fattr).unwrap()
        };
        let own = attributes(&a).await;
        assert!(a.wire.is_silent().await, "its holder is not asked");
        let told = |size, change| Attributes {
            size: Some(size),
            change: Some(change),
            time_deleg_modify: Some(Time { seconds: 9, nseconds: 0 }),
            ..Attributes::default()
        };
        let answering = async |told: Attributes| {
            let asked = a.wire.asked().await;
            let CbOp::Getattr(of) = &asked.op else { panic!("{:?}", asked.op) };
            assert!(of.handle == file && of.wanted.has(attr::TIME_DELEG_MODIFY));
            a.wire.answer(&asked, Status::OK, |e| told.fattr().emit(e));
        };
        let mut seen = Vec::new();
        let first = own.change.unwrap();
        for (size, change) in [(0, first), (5, first + 1), (5, first + 1), (9, first + 2)] {
            let (values, ()) = futures_util::join!(attributes(&b), answering(told(size, change)));
            assert_eq!((values.size, values.time_modify.unwrap().seconds), (Some(size), 9));
            seen.push(values.change.unwrap() - first);
        }
        assert_eq!(seen, [0, 1, 1, 2]);
        // A client that does not answer is asked to return it.
        assert_eq!(b.at(file, Op::Getattr(wanted)).await.status, Status::DELAY);
        assert!(matches!(a.wire.asked().await.op, CbOp::Getattr(_)));
        assert_eq!(a.wire.asked().await.recall().stateid, delegation);
        // The holder sends the times with the delegation itself, and nobody else may.
        let fattr =
            Attributes { time_deleg_modify: Some(Time { seconds: 7, nseconds: 0 }), ..Attributes::default() };
        let set = |stateid| Op::Setattr(Setattr { stateid, attributes: fattr.fattr() });
        assert_eq!(b.at(file, set(Stateid::ANONYMOUS)).await.status, Status::BAD_STATEID);
        assert_eq!(a.at(file, set(opened.stateid)).await.status, Status::INVAL);
        assert_eq!(a.at(file, set(delegation)).await.status, Status::OK);
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::OK);
        assert_eq!(attributes(&b).await.time_modify.unwrap().seconds, 7);
    });
}

#[test]
fn times_that_come_back_as_they_were_change_nothing() {
    story(async {
        let server = server();
        let a = Live::new(&server, "a").await;
        let access = share::BOTH | share::WANT_WRITE_DELEG | share::WANT_DELEG_TIMESTAMPS;
        let (file, opened) = a.open(&server, "f", access).await;
        let delegation = write_of(&opened.delegation);
        let wanted = Bitmap::of(&[attr::CHANGE, attr::TIME_ACCESS, attr::TIME_METADATA, attr::TIME_MODIFY]);
        let attributes = async || {
            let fattr: Fattr = a.at(file, Op::Getattr(wanted)).await.ok(opnum::GETATTR);
            Attributes::parse(&fattr).unwrap()
        };
        let before = attributes().await;
        let told = |time_deleg_access, time_deleg_modify| {
            let attributes = Attributes { time_deleg_access, time_deleg_modify, ..Attributes::default() };
            Op::Setattr(Setattr { stateid: delegation, attributes: attributes.fattr() })
        };
        let (accessed, modified) = (before.time_access, before.time_modify);
        assert_eq!(a.at(file, told(accessed, modified)).await.status, Status::OK);
        assert_eq!(attributes().await, before);
        // One of them differs, which the change time shows.
        let later = Time { seconds: modified.unwrap().seconds + 1, ..modified.unwrap() };
        assert_eq!(a.at(file, told(accessed, Some(later))).await.status, Status::OK);
        let after = attributes().await;
        assert_eq!((after.time_access, after.time_modify), (accessed, Some(later)));
        assert_ne!(after.time_metadata, before.time_metadata);
    });
}

#[test]
fn names_and_other_protocols_recall_it_too() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let vfs = &server.vfs(0);
        let opens = vfs.opens();
        let give_back = async |file: Handle, delegation| {
            let asked = a.wire.asked().await;
            assert_eq!(asked.recall().stateid, delegation);
            a.wire.answer(&asked, Status::OK, |_| ());
            assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::OK);
        };
        // An SMB open waits for the return, and then succeeds.
        let (file, opened) = a.open(&server, "smb", share::READ).await;
        let node = vfs.lookup(NodeId::ROOT, b"smb", false).await.unwrap().node;
        assert_eq!(opens.count(node), 1);
        a.close(file, opened.stateid).await;
        // A delegation counts as no open.
        assert_eq!((opens.count(node), opens.is_open(node)), (0, true));
        let smb = Opening::new(Rights::ALL, Rights::ALL, opens.key());
        let (smb, ()) =
            futures_util::join!(opens.open(node, &smb), give_back(file, read_of(&opened.delegation)));
        // An SMB lease is recalled in turn; until it is returned, nobody opens and nothing is delegated.
        let smb = smb.unwrap();
        assert_eq!(smb.request(Form::Lease, Caching::RWH, Arc::new(Silent)).0, Caching::RWH);
        assert_eq!(a.try_open(&server, "smb", share::READ).await.unwrap_err(), Status::DELAY);
        opens.acknowledge(node, smb.key(), Caching::RH).unwrap();
        let (_, opened) = a.open(&server, "smb", share::READ | share::WANT_READ_DELEG).await;
        assert!(matches!(opened.delegation, Delegation::NoneExt(why_no_delegation::CONTENTION, _)));
        // Others remove its name, rename it, or link it: RFC 8881 10.4.
        for n in 0..3 {
            let name = ["removed", "renamed", "linked"][n];
            let (file, opened) = a.open(&server, name, share::READ).await;
            a.close(file, opened.stateid).await;
            let root = root(&server);
            let act = [
                vec![Op::Putfh(root), Op::Remove(text(name))],
                vec![Op::Putfh(root), Op::Savefh, Op::Rename(Rename { from: text(name), to: text("moved") })],
                vec![Op::Putfh(file), Op::Savefh, Op::Putfh(root), Op::Link(text("second"))],
            ];
            assert_eq!(b.run(&act[n]).await.status, Status::DELAY, "{name}");
            give_back(file, read_of(&opened.delegation)).await;
            assert_eq!(b.run(&act[n]).await.status, Status::OK, "{name}");
        }
    });
}

#[test]
fn a_client_that_is_gone_is_in_nobodys_way() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let (_, opened) = a.open(&server, "f", share::BOTH).await;
        write_of(&opened.delegation);
        a.wire.hang_up().await;
        rt::sleep(Duration::from_secs(61)).await;
        assert_eq!(b.run(&[]).await.status, Status::OK);
        b.open(&server, "f", share::READ).await;
    });
}

#[test]
fn answers_that_are_none_leave_the_question_open() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let (file, opened) = a.open(&server, "f", share::READ).await;
        let delegation = read_of(&opened.delegation);
        assert_eq!(b.try_open(&server, "f", share::WRITE).await.unwrap_err(), Status::DELAY);
        // Whole words: a record cut elsewhere is not XDR at all.
        for words in (6..22).chain([100]) {
            let asked = a.wire.asked().await;
            assert_eq!(asked.recall().stateid, delegation);
            a.wire.answer_badly(&asked, words * 4);
            a.wire.answer_badly(&asked, words * 4);
        }
        // A rejected RPC is not an answer either, and a reply without a question is dropped.
        let asked = a.wire.asked().await;
        a.wire.refuse(asked.call.xid.wrapping_add(7));
        a.wire.refuse(asked.call.xid);
        let asked = a.wire.asked().await;
        a.wire.answer(&asked, Status::OK, |_| ());
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::OK);
        b.open(&server, "f", share::WRITE).await;
    });
}

#[test]
fn a_lock_of_version_3_waits_until_a_delegation_is_back() {
    story(async {
        let server = server();
        let a = Live::new(&server, "a").await;
        let (file, opened) = a.open(&server, "f", share::BOTH).await;
        let delegation = write_of(&opened.delegation);
        let object = |text: &'static str| nlm::Object(Bytes::from_static(text.as_bytes()));
        let handle = weft_wire::nfs3::Handle::new(file.as_bytes()).unwrap();
        let (caller, owner) = (object("box"), object("1@box"));
        let lock = nlm::Lock { caller, file: handle, owner, svid: 1, offset: 0, length: 0 };
        let (cookie, block, exclusive) = (object("cookie"), false, true);
        let args = nlm::LockArgs { cookie, block, exclusive, lock, reclaim: false, state: 1 };
        let number = (nlm::PROGRAM, nlm::VERSION, nlm::procedure::LOCK);
        let mut locking = pin!(results_for::<nlm::Answer>(&server, "192.0.2.7:700", number, &args));
        // Its client may lock the file locally until it has received the recall.
        assert!(poll_immediate(&mut locking).await.is_none());
        let asked = a.wire.asked().await;
        assert_eq!(asked.recall().stateid, delegation);
        a.wire.answer(&asked, Status::OK, |_| ());
        assert!(poll_immediate(&mut locking).await.is_none());
        assert_eq!(a.at(file, Op::Delegreturn(delegation)).await.status, Status::OK);
        assert_eq!(locking.await.status, nlm::Status::GRANTED);
    });
}

#[test]
fn who_waits_for_a_lock_is_told_when_it_can_be_had() {
    story(async {
        let server = server();
        let (a, b) = (Live::new(&server, "a").await, Live::new(&server, "b").await);
        let (file, mine) = a.open(&server, "f", share::BOTH | share::WANT_NO_DELEG).await;
        let (_, theirs) = b.open(&server, "f", share::BOTH | share::WANT_NO_DELEG).await;
        assert!(theirs.flags & open_flag::MAY_NOTIFY_LOCK != 0);
        let owner = || Owner { client: 0, owner: Opaque(Bytes::from_static(b"locks")) };
        let lock = |open_stateid, waits| {
            let locker = Locker::New { open_seqid: 0, open_stateid, lock_seqid: 0, owner: owner() };
            let kind = LockType { exclusive: true, waits };
            Op::Lock(Lock { kind, reclaim: false, offset: 0, length: 9, locker })
        };
        let held: Stateid = a.at(file, lock(mine.stateid, true)).await.ok(opnum::LOCK);
        // Twice, and not for a client that does not wait.
        for waits in [false, true, true] {
            assert_eq!(b.at(file, lock(theirs.stateid, waits)).await.status, Status::DENIED);
        }
        assert!(b.wire.is_silent().await);
        let unlock = Locku {
            kind: LockType { exclusive: true, waits: false },
            seqid: 0,
            stateid: held,
            offset: 0,
            length: 9,
        };
        assert_eq!(a.at(file, Op::Locku(unlock)).await.status, Status::OK);
        let asked = b.wire.asked().await;
        let CbOp::NotifyLock(told) = &asked.op else { panic!("{:?}", asked.op) };
        assert_eq!((told.handle, &told.owner.owner), (file, &owner().owner));
        b.wire.answer(&asked, Status::OK, |_| ());
        assert_eq!(b.at(file, lock(theirs.stateid, true)).await.status, Status::OK);
        assert!(b.wire.is_silent().await);
    });
}

#[test]
fn a_long_copy_goes_on_after_its_answer() {
    story(async {
        let server = server();
        let a = Live::new(&server, "a").await;
        let access = share::BOTH | share::WANT_NO_DELEG;
        let (from, source) = a.open(&server, "from", access).await;
        let (to, target) = a.open(&server, "to", access).await;
        const SIZE: u64 = 24 << 20;
        let resize = Attributes { size: Some(SIZE), ..Attributes::default() }.fattr();
        let resize = Op::Setattr(Setattr { stateid: source.stateid, attributes: resize });
        assert_eq!(a.at(from, resize).await.status, Status::OK);
        let copy = |synchronous, count| {
            Op::Copy(Copy {
                from_stateid: source.stateid,
                to_stateid: target.stateid,
                from_offset: 0,
                to_offset: 0,
                count,
                consecutive: false,
                synchronous,
                servers: UpTo::default(),
            })
        };
        let run = async |op| {
            let mut answer = a.run(&[Op::Putfh(from), Op::Savefh, Op::Putfh(to), op]).await;
            answer.ok::<()>(opnum::PUTFH);
            answer.ok::<()>(opnum::SAVEFH);
            answer.ok::<()>(opnum::PUTFH);
            answer.ok::<CopyOk>(opnum::COPY)
        };
        // A short copy, and one whose client wants to wait, are complete when they are answered.
        for (synchronous, count) in [(false, 1 << 20), (true, SIZE)] {
            let done = run(copy(synchronous, count)).await;
            assert_eq!((done.synchronous, done.response.count), (true, count));
        }
        let begun = run(copy(false, 0)).await;
        let [id] = begun.response.callback.0[..] else { panic!("{begun:?}") };
        assert!(!begun.synchronous);
        let asked = a.wire.asked().await;
        let CbOp::Offload(told) = &asked.op else { panic!("{:?}", asked.op) };
        let OffloadEnd::Done(done) = &told.end else { panic!("{:?}", told.end) };
        assert_eq!((told.handle, told.stateid, done.count), (to, id, SIZE));
        // Until the client is notified, it may ask.
        let status: OffloadStatusOk = a.at(to, Op::OffloadStatus(id)).await.ok(opnum::OFFLOAD_STATUS);
        assert_eq!((status.count, status.complete.0), (SIZE, vec![Status::OK]));
        assert_eq!(a.at(to, Op::OffloadCancel(id)).await.status, Status::COMPLETE_ALREADY);
        a.wire.answer(&asked, Status::OK, |_| ());
        assert!(a.wire.is_silent().await);
        assert_eq!(a.at(to, Op::OffloadStatus(id)).await.status, Status::BAD_STATEID);
    });
}
