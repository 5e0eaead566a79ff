//! Sessions: slots, repetitions, which operations need a session and which must be alone.

use super::*;

#[test]
fn a_retry_gets_the_first_answer() {
    let server = server();
    let a = Modern::new(&server, "a");
    let mut ops = vec![a.sequence_op(2, 0, true), Op::Putfh(root(&server))];
    let make =
        Create { kind: CreateType::Other(FileType::DIR), name: text("d"), attributes: Fattr::default() };
    ops.push(Op::Create(make));
    let send_again = |ops: &[Op]| send(&server, call(1, 1, ops));
    let (mut first, mut again) = (send_again(&ops), send_again(&ops));
    assert_eq!(first.status, Status::OK);
    assert_eq!((again.status, again.count), (Status::OK, 3));
    while first.d.remaining() > 0 {
        assert_eq!(first.d.u32(), again.d.u32());
    }
    again.end();
    // Another request with the same number is not a repetition, nor is one of the same bytes that declares fewer
    // operations.
    let mut shorter = call(1, 1, &ops).to_vec();
    let count = call(1, 1, &[]).len() - 4;
    shorter[count..][..4].copy_from_slice(&2u32.to_be_bytes());
    assert_eq!(send(&server, shorter.into()).status, Status::SEQ_FALSE_RETRY);
    ops[2] = Op::Remove(text("d"));
    assert_eq!(send_again(&ops).status, Status::SEQ_FALSE_RETRY);
    // A reply is cached only if that was requested.
    ops[0] = a.sequence_op(3, 0, false);
    assert_eq!(send_again(&ops).status, Status::OK);
    let mut again = send_again(&ops);
    assert_eq!(again.status, Status::RETRY_UNCACHED_REP);
    again.ok::<SequenceOk>(opnum::SEQUENCE);
    assert_eq!(again.next(opnum::PUTFH), Status::RETRY_UNCACHED_REP);
    // Data is cached as it was read.
    a.sequence.set(3);
    let (file, stateid) = a.open("f", 3, 0);
    assert_eq!(a.status(file, write_op(stateid, 0, b"hello")), Status::OK);
    let read = [a.sequence_op(6, 0, true), Op::Putfh(file), read_op(stateid, 0, 5)];
    let _ = send_again(&read);
    let mut again = send_again(&read);
    again.ok::<SequenceOk>(opnum::SEQUENCE);
    again.ok::<()>(opnum::PUTFH);
    again.ok::<bool>(opnum::READ);
    assert_eq!(&again.d.opaque(5).unwrap()[..], b"hello");
    again.end();
}

#[test]
fn slots_and_sessions_that_are_not() {
    let server = server();
    let a = Modern::new(&server, "a");
    let status = |ops: &[Op]| send(&server, call(1, 1, ops)).status;
    assert_eq!(status(&[a.sequence_op(1, 8, false)]), Status::BADSLOT);
    for sequence in [0, 3, 77] {
        assert_eq!(status(&[a.sequence_op(sequence, 0, false)]), Status::SEQ_MISORDERED);
    }
    assert_eq!(status(&[a.sequence_op(0, 1, false)]), Status::SEQ_MISORDERED);
    let foreign = Sequence { session: [9; 16], sequence: 1, slot: 0, highest_slot: 0, cache: false };
    assert_eq!(status(&[Op::Sequence(foreign)]), Status::BADSESSION);
    assert_eq!(status(&[Op::Putrootfh]), Status::OP_NOT_IN_SESSION);
    assert_eq!(status(&[a.sequence_op(2, 0, false), a.sequence_op(3, 0, false)]), Status::SEQUENCE_POS);
    let exchange = exchange_id("x", [0; 8], 0);
    assert_eq!(status(&[exchange.clone(), Op::Putrootfh]), Status::NOT_ONLY_OP);
    assert_eq!(
        status(&[a.sequence_op(3, 0, false), exchange]),
        Status::OK,
        "behind a SEQUENCE it need not be alone"
    );
    let destroy = Op::DestroySession(a.session);
    assert_eq!(status(&[a.sequence_op(4, 0, false), destroy.clone(), Op::Putrootfh]), Status::NOT_ONLY_OP);
    let many = vec![Op::Putrootfh; 16];
    assert_eq!(status(&[&[a.sequence_op(5, 0, false)], &many[..]].concat()), Status::TOO_MANY_OPS);
    assert_eq!(status(&[Op::DestroyClientid(a.id)]), Status::CLIENTID_BUSY);
    // Each message here uses a connection of its own.
    assert_eq!(status(std::slice::from_ref(&destroy)), Status::CONN_NOT_BOUND_TO_SESSION);
    assert_eq!(status(&[a.sequence_op(5, 0, false), destroy.clone()]), Status::OK);
    assert_eq!(status(&[destroy]), Status::BADSESSION);
    assert_eq!(status(&[a.sequence_op(6, 0, false)]), Status::BADSESSION);
    assert_eq!(status(&[Op::DestroyClientid(a.id)]), Status::OK);
    assert_eq!(status(&[Op::DestroyClientid(a.id)]), Status::STALE_CLIENTID);
}

#[test]
fn messages_longer_than_agreed() {
    let server = server();
    let fore = ChannelAttrs { max_request: 400, max_response: 400, max_response_cached: 200, ..channel() };
    let a = Modern::unclaimed(&server, "a", fore.clone());
    assert_eq!(a.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    let name = "x".repeat(200);
    let status = |ops: &[Op]| send(&server, call(1, 1, ops)).status;
    let long = [a.sequence_op(2, 0, false), Op::Putrootfh, Op::Lookup(text(&name)), Op::Lookup(text(&name))];
    assert_eq!(status(&long), Status::REQ_TOO_BIG);
    let all = Op::Getattr(super::super::attributes::supported(1).without(Bitmap::of(&[48, 54, 74])));
    assert_eq!(status(&[a.sequence_op(2, 0, true), Op::Putrootfh, all.clone()]), Status::REP_TOO_BIG);
    let some = Op::Getattr(Bitmap::of(&[0, 1, 2, 3, 4, 8, 20, 33, 36, 37, 47, 51, 52, 53]));
    assert_eq!(
        status(&[a.sequence_op(3, 0, true), Op::Putrootfh, some.clone()]),
        Status::REP_TOO_BIG_TO_CACHE
    );
    assert_eq!(status(&[a.sequence_op(4, 0, false), Op::Putrootfh, some]), Status::OK);
    let nothing = ChannelAttrs { max_response_cached: 10, ..fore.clone() };
    let b = Modern::unclaimed(&server, "b", nothing);
    assert_eq!(status(&[b.sequence_op(1, 0, true)]), Status::REP_TOO_BIG_TO_CACHE);
    assert_eq!(status(&[b.sequence_op(1, 0, false)]), Status::OK, "what was refused took no turn");
    let small = ChannelAttrs { max_response: 20, ..fore };
    let mut answer = send(&server, call(1, 1, &[exchange_id("c", [0; 8], 0)]));
    let known: ExchangeIdOk = answer.ok(opnum::EXCHANGE_ID);
    assert_eq!(status(&[create_session(known.client, known.sequence, small)]), Status::TOOSMALL);
}

#[test]
fn clients_by_name() {
    let server = server();
    let ask = |uid, name, verifier, flags| {
        let mut answer = send(&server, call(1, uid, &[exchange_id(name, verifier, flags)]));
        match answer.next(opnum::EXCHANGE_ID) {
            Status::OK => Ok(ExchangeIdOk::parse(&mut answer.d).unwrap()),
            status => Err(status),
        }
    };
    use exchange_flag::{CONFIRMED_R, UPD_CONFIRMED_REC_A};
    assert_eq!(ask(1, "c", [1; 8], UPD_CONFIRMED_REC_A).unwrap_err(), Status::NOENT);
    assert_eq!(ask(1, "c", [1; 8], CONFIRMED_R).unwrap_err(), Status::INVAL);
    let pending = ask(1, "c", [1; 8], 0).unwrap();
    assert_eq!(pending.flags & CONFIRMED_R, 0);
    let known = ask(1, "c", [1; 8], 0).unwrap();
    assert_ne!(known.client, pending.client, "an unconfirmed record is replaced");
    let session =
        |uid, client, sequence| send(&server, call(1, uid, &[create_session(client, sequence, channel())]));
    assert_eq!(session(1, pending.client, 1).status, Status::STALE_CLIENTID);
    assert_eq!(session(1, known.client, 7).status, Status::SEQ_MISORDERED);
    assert_eq!(session(2, known.client, 1).status, Status::CLID_INUSE);
    let first: CreateSessionOk = session(1, known.client, 1).ok(opnum::CREATE_SESSION);
    let again: CreateSessionOk = session(1, known.client, 1).ok(opnum::CREATE_SESSION);
    assert_eq!(first, again);
    assert_ne!(
        session(1, known.client, 2).ok::<CreateSessionOk>(opnum::CREATE_SESSION).session,
        first.session
    );
    let confirmed = ask(1, "c", [1; 8], 0).unwrap();
    assert_eq!((confirmed.client, confirmed.sequence), (known.client, 3));
    assert_eq!(confirmed.flags & CONFIRMED_R, CONFIRMED_R);
    assert_eq!(ask(1, "c", [2; 8], UPD_CONFIRMED_REC_A).unwrap_err(), Status::NOT_SAME);
    assert_eq!(ask(2, "c", [1; 8], UPD_CONFIRMED_REC_A).unwrap_err(), Status::PERM);
    assert_eq!(ask(1, "c", [1; 8], UPD_CONFIRMED_REC_A).unwrap().client, known.client);
    // A new instance of the client: the old sessions end when it creates its own.
    let restarted = ask(1, "c", [2; 8], 0).unwrap();
    let use_of = |session| {
        let sequence = Sequence { session, sequence: 1, slot: 1, highest_slot: 1, cache: false };
        send(&server, call(1, 1, &[Op::Sequence(sequence)])).status
    };
    assert_eq!(use_of(first.session), Status::OK);
    assert_eq!(session(1, restarted.client, 1).status, Status::OK);
    assert_eq!(use_of(first.session), Status::BADSESSION);
}

#[test]
fn nothing_is_opened_before_reclaim_complete() {
    let server = server();
    let a = Modern::unclaimed(&server, "a", channel());
    let how = || Some(CreateHow::Unchecked(Fattr::default()));
    assert_eq!(a.at_root(&[a.open_op("f", 1, 0, how())]).status, Status::GRACE);
    assert_eq!(a.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    assert_eq!(a.run(&[Op::ReclaimComplete(false)]).status, Status::COMPLETE_ALREADY);
    assert_eq!(a.at_root(&[a.open_op("f", 1, 0, how())]).status, Status::OK);
    let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"o")) };
    let reclaim = Open { seqid: 0, access: 1, deny: 0, owner, how: None, claim: Claim::Previous(0) };
    assert_eq!(a.at_root(&[Op::Lookup(text("f")), Op::Open(reclaim)]).status, Status::NO_GRACE);
}

#[test]
fn the_current_state_id() {
    let server = server();
    let a = Modern::new(&server, "a");
    let how = Some(CreateHow::Unchecked(Fattr::default()));
    let open = a.open_op("f", 3, 0, how);
    let close = Op::Close(Close { seqid: 0, stateid: Stateid::CURRENT });
    let write = write_op(Stateid::CURRENT, 0, b"hello");
    assert_eq!(a.at_root(&[open.clone(), write.clone(), close.clone()]).status, Status::OK);
    // Another file handle has none.
    assert_eq!(
        a.at_root(&[open.clone(), Op::Putfh(root(&server)), Op::Lookup(text("f")), close.clone()]).status,
        Status::BAD_STATEID
    );
    // It is saved and restored with the handle.
    let there_and_back = [open, Op::Savefh, Op::Putrootfh, Op::Restorefh, write, close.clone()];
    assert_eq!(a.at_root(&there_and_back).status, Status::OK);
    assert_eq!(a.at_root(&[Op::Lookup(text("f")), close]).status, Status::BAD_STATEID);
}

#[test]
fn states_are_tested_and_are_their_clients_own() {
    let server = server();
    let (a, b) = (Modern::new(&server, "a"), Modern::new(&server, "b"));
    let (file, stateid) = a.open("f", 3, 0);
    let unknown = Stateid { other: [3; 12], ..stateid };
    let ahead = Stateid { seqid: 9, ..stateid };
    let mut answer = a.run(&[Op::TestStateid(UpTo(vec![stateid, ahead, unknown, Stateid::ANONYMOUS]))]);
    let statuses: TestStateidOk = answer.ok(opnum::TEST_STATEID);
    assert_eq!(statuses.0, [Status::OK, Status::BAD_STATEID, Status::BAD_STATEID, Status::BAD_STATEID]);
    assert_eq!(b.status(file, read_op(stateid, 0, 1)), Status::BAD_STATEID);
    assert_eq!(a.run(&[Op::FreeStateid(stateid)]).status, Status::LOCKS_HELD);
    let mut answer = a.run(&[Op::Putfh(file), Op::Close(Close { seqid: 0, stateid })]);
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!(answer.ok::<Stateid>(opnum::CLOSE), Stateid::INVALID);
    assert_eq!(a.status(file, Op::Close(Close { seqid: 0, stateid })), Status::BAD_STATEID);
}
