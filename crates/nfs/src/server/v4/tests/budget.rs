//! The state that clients can create is limited, and clients that take all they can leave room for others.

use super::*;

const HOSTS: [&str; 10] = [
    "192.0.2.10:700",
    "192.0.2.11:700",
    "192.0.2.12:700",
    "192.0.2.13:700",
    "192.0.2.14:700",
    "192.0.2.15:700",
    "192.0.2.16:700",
    "192.0.2.17:700",
    "192.0.2.18:700",
    "192.0.2.19:700",
];
const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

/// The largest channel that a client can request.
fn greedy() -> ChannelAttrs {
    ChannelAttrs { max_requests: u32::MAX, max_response_cached: u32::MAX, ..channel() }
}

fn with_memory(memory: usize) -> Arc<Server> {
    // No client is idle, however slow the machine is.
    let lease = std::time::Duration::from_secs(1 << 20);
    server_with(Limits { state_memory: memory, lease, ..Limits::default() })
}

fn used(server: &Server) -> usize {
    server.states.budget.used_bytes()
}

/// Creates sessions until no more are granted; returns each with its number of slots.
fn sessions(server: &Server, peer: &str, client: &Modern<'_>, first: u32) -> Vec<(SessionId, u32)> {
    let mut made = Vec::new();
    for sequence in first.. {
        let mut answer = send_by(server, peer, call(1, 1, &[create_session(client.id, sequence, greedy())]));
        match answer.next(opnum::CREATE_SESSION) {
            Status::OK => {
                let ok = CreateSessionOk::parse(&mut answer.d).unwrap();
                made.push((ok.session, ok.fore.max_requests));
            }
            Status::DELAY => {
                // It has not used up a sequence number of the client.
                let again =
                    send_by(server, peer, call(1, 1, &[create_session(client.id, sequence, greedy())]));
                assert_eq!(again.status, Status::DELAY);
                break;
            }
            Status::NOSPC => break,
            other => panic!("{other:?}"),
        }
    }
    made
}

/// A file that yields most of a cached reply.
fn large_file(server: &Server) -> (Handle, Stateid) {
    static CONTENT: [u8; 7000] = [7; 7000];
    let writer = Modern::new(server, "writer");
    let (file, stateid) = writer.open("large", 3, 0);
    assert_eq!(writer.status(file, write_op(stateid, 0, &CONTENT)), Status::OK);
    (file, Stateid { seqid: 0, other: [0; 12] })
}

#[test]
fn ten_greedy_clients_stay_within_the_budget_and_an_honest_one_works() {
    let memory = 4 << 20;
    let server = with_memory(memory);
    let (file, anonymous) = large_file(&server);
    let known = Modern::by(&server, "198.51.100.1:700", "known", channel());
    assert_eq!(known.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    let mut kept = Vec::new();
    for (peer, name) in HOSTS.into_iter().zip(NAMES) {
        let client = Modern::by(&server, peer, name, greedy());
        for (session, slots) in sessions(&server, peer, &client, 2) {
            for slot in 0..slots {
                let sequence = Sequence { session, sequence: 1, slot, highest_slot: slots - 1, cache: true };
                let ops = [Op::Sequence(sequence), Op::Putfh(file), read_op(anonymous, 0, 7000)];
                // A session with shorter cached replies announces that, and its slot caches as much.
                let status = send_by(&server, peer, call(1, 1, &ops)).status;
                assert!(matches!(status, Status::OK | Status::REP_TOO_BIG_TO_CACHE), "{status:?}");
            }
            kept.push((peer, server.states.session(&session, &origin(peer)).unwrap()));
        }
    }
    let bytes: usize = kept.iter().map(|(_, session)| session.kept_bytes()).sum();
    assert!(bytes > memory / 8, "they did fill what they got: {bytes}");
    assert!(bytes <= used(&server) && used(&server) <= memory, "{bytes} {}", used(&server));
    // An existing client and a new one both work as ever.
    let new = Modern::by(&server, "198.51.100.2:700", "new", channel());
    assert_eq!(new.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    for (client, name) in [(known, "of-known"), (new, "of-new")] {
        let (file, stateid) = client.open(name, 3, 0);
        assert_eq!(client.status(file, write_op(stateid, 0, b"hello")), Status::OK);
        assert_eq!(client.status(file, read_op(stateid, 0, 5)), Status::OK);
        let close = Op::Close(Close { seqid: 0, stateid });
        assert_eq!(client.status(file, close), Status::OK);
    }
    // When the greedy clients are gone, all of it is free.
    let before = used(&server);
    for (peer, session) in kept {
        let destroy = [
            Op::Sequence(Sequence {
                session: session.id,
                sequence: 2,
                slot: 0,
                highest_slot: 0,
                cache: false,
            }),
            Op::DestroySession(session.id),
        ];
        assert_eq!(send_by(&server, peer, call(1, 1, &destroy)).status, Status::OK);
    }
    assert!(used(&server) < before / 4, "{} of {before}", used(&server));
}

#[test]
fn a_client_is_asked_to_use_fewer_slots_when_others_come_and_gets_them_back() {
    let server = with_memory(4 << 20);
    let wants = |slots| ChannelAttrs { max_requests: slots, max_response_cached: 4096, ..channel() };
    let first = Modern::by(&server, HOSTS[0], "first", wants(64));
    let sequence = |slot, number, highest_slot| {
        let sequence =
            Sequence { session: first.session, sequence: number, slot, highest_slot, cache: false };
        let mut answer = send_by(&server, HOSTS[0], call(1, 1, &[Op::Sequence(sequence)]));
        match answer.next(opnum::SEQUENCE) {
            Status::OK => {
                let ok = SequenceOk::parse(&mut answer.d).unwrap();
                Ok((ok.highest_slot, ok.target_highest_slot))
            }
            status => Err(status),
        }
    };
    let (highest, target) = sequence(0, 1, 0).unwrap();
    assert_eq!((highest, target), (31, 31), "a quarter of what its address may have");
    assert_eq!(sequence(31, 1, 31), Ok((31, 31)));
    // Others take what is left.
    let others: Vec<_> = HOSTS[1..]
        .iter()
        .zip(NAMES)
        .map(|(peer, name)| {
            let client = Modern::by(&server, peer, name, greedy());
            let made = sessions(&server, peer, &client, 2);
            (client, made, peer)
        })
        .collect();
    let before = used(&server);
    assert_eq!(sequence(0, 2, 31), Ok((31, 15)));
    assert_eq!(sequence(31, 2, 31), Ok((31, 15)), "another slot says nothing about what was read");
    assert_eq!(sequence(0, 3, 31), Ok((31, 15)), "it has been told, and uses more still");
    let (highest, target) = sequence(0, 4, 0).unwrap();
    assert_eq!((highest, target), (15, 7), "now the slots are gone, and there are too many yet");
    assert_eq!(before - used(&server), 16 * (4096 + 256));
    assert_eq!(sequence(31, 3, 31), Err(Status::BADSLOT));
    assert_eq!(sequence(15, 1, 15).unwrap().0, 15);
    drop(
        others
            .into_iter()
            .flat_map(|(client, made, peer)| {
                made.into_iter()
                    .map(|(session, _)| session)
                    .chain([client.session])
                    .map(move |session| (session, peer))
            })
            .map(|(session, peer)| {
                let number = 1;
                let alone = Sequence { session, sequence: number, slot: 0, highest_slot: 0, cache: false };
                let destroy = [Op::Sequence(alone), Op::DestroySession(session)];
                assert_eq!(send_by(&server, peer, call(1, 1, &destroy)).status, Status::OK);
            })
            .collect::<Vec<_>>(),
    );
    // A client that uses all slots gets more, as new ones, up to the agreed number.
    assert_eq!(sequence(15, 2, 15), Ok((31, 31)));
    assert_eq!(sequence(31, 1, 31), Ok((31, 31)));
}

#[test]
fn owners_and_opens_are_within_the_budget_of_their_address() {
    let server = with_memory(1 << 20);
    let greedy = Modern::by(&server, HOSTS[0], "greedy", channel());
    assert_eq!(greedy.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    let open = |client: &Modern<'_>, owner: String, name: &str| {
        let owner = Owner { client: 0, owner: Opaque(Bytes::from(owner.into_bytes())) };
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        let open = Open { seqid: 0, access: 1, deny: 0, owner, how, claim: Claim::Null(text(name)) };
        client.at_root(&[Op::Open(open)]).status
    };
    let mut opened = 0;
    let refused = loop {
        match open(&greedy, format!("owner-{opened:04}-{}", "x".repeat(900)), "f") {
            Status::OK => opened += 1,
            status => break status,
        }
    };
    assert_eq!(refused, Status::DELAY, "RFC 8881 knows no NFS4ERR_RESOURCE");
    assert!((50..100).contains(&opened), "{opened}");
    assert!(used(&server) <= (1 << 20) / 5);
    // Others continue, and so does this one after it has closed something.
    let other = Modern::by(&server, HOSTS[1], "other", channel());
    assert_eq!(other.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    assert_eq!(open(&other, "owner".to_owned(), "g"), Status::OK);
    let mut old = Old::new(&server, "old");
    old.open("h", 1, 0);
    // Owners without opens are no reason to refuse one.
    let holder = Modern::by(&server, HOSTS[2], "holder", channel());
    assert_eq!(holder.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    for n in 0..400 {
        let name = format!("many-{n:04}-{}", "y".repeat(900));
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        let owner = Owner { client: 0, owner: Opaque(Bytes::from(name.into_bytes())) };
        let open = Open { seqid: 0, access: 1, deny: 0, owner, how, claim: Claim::Null(text("k")) };
        let mut answer = holder.at_root(&[Op::Open(open), Op::Getfh]);
        let ok: OpenOk = answer.ok(opnum::OPEN);
        let handle: Handle = answer.ok(opnum::GETFH);
        let close = Op::Close(Close { seqid: 0, stateid: ok.stateid });
        assert_eq!(holder.status(handle, close), Status::OK, "{n}");
    }
}

#[test]
fn however_many_clients_an_address_has_it_holds_a_fifth() {
    const MEMORY: usize = 128 << 20;
    for clients in [1, 10, 1000] {
        let server = with_memory(MEMORY);
        let mut sessions = 0;
        for n in 0..clients {
            let id = Opaque(Bytes::from(format!("client-{n}").into_bytes()));
            let client = ClientOwner { verifier: [1; 8], id };
            let protect = ProtectHow::None;
            let exchange = ExchangeId { client, flags: 0, protect, implementation: UpTo::default() };
            let mut answer = send_by(&server, HOSTS[0], call(1, 1, &[Op::ExchangeId(exchange)]));
            if answer.next(opnum::EXCHANGE_ID) != Status::OK {
                break;
            }
            let known = ExchangeIdOk::parse(&mut answer.d).unwrap();
            let made = (known.sequence..).take_while(|sequence| {
                let create = create_session(known.client, *sequence, greedy());
                send_by(&server, HOSTS[0], call(1, 1, &[create])).status == Status::OK
            });
            sessions += made.count();
        }
        println!("{clients} clients: {sessions} sessions, {} bytes", used(&server));
        assert!(sessions > 0 && used(&server) <= MEMORY / 5, "{clients}: {}", used(&server));
        let other = Modern::by(&server, HOSTS[1], "other", channel());
        assert_eq!(other.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
        other.open("f", 3, 0);
    }
}

#[test]
fn byte_ranges_are_counted_as_what_their_address_holds() {
    const MEMORY: usize = 1 << 20;
    let server = with_memory(MEMORY);
    let client = Modern::new(&server, "a");
    let kind = LockType { exclusive: true, waits: false };
    let take = |file, offset, length, locker| {
        let lock = Lock { kind, reclaim: false, offset, length, locker };
        let mut answer = client.run(&[Op::Putfh(file), Op::Lock(lock)]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::LOCK) {
            Status::OK => Ok(Stateid::parse(&mut answer.d).unwrap()),
            status => Err(status),
        }
    };
    let first = |file, open_stateid| {
        let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"locker")) };
        take(file, 0, u64::MAX, Locker::New { open_seqid: 0, open_stateid, lock_seqid: 0, owner }).unwrap()
    };
    let (file, open) = client.open("f", 3, 0);
    let (other, open_of_other) = client.open("g", 3, 0);
    let (held, whole) = (first(file, open), first(other, open_of_other));
    let before = used(&server);
    let clear = |file, stateid, offset, length| {
        let stateid = Stateid { seqid: 0, ..stateid };
        client.status(file, Op::Locku(Locku { kind, seqid: 0, stateid, offset, length }))
    };
    assert_eq!(clear(file, held, 0, u64::MAX), Status::OK);
    let mut ranges = 0;
    let refused = loop {
        let stateid = Stateid { seqid: 0, ..held };
        match take(file, 2 * ranges, 1, Locker::Known { stateid, seqid: 0 }) {
            Ok(_) => ranges += 1,
            Err(status) => break status,
        }
        assert!(ranges < 2048, "ranges are memory");
    };
    assert_eq!(refused, Status::DELAY);
    assert!(ranges > 100 && used(&server) <= MEMORY / 5, "{ranges}");
    // Without memory, a lock cannot be split but can be released.
    assert_eq!([5, 15, 25].map(|at| clear(other, whole, at, 1)).last(), Some(&Status::DELAY));
    assert_eq!(clear(file, held, 0, u64::MAX), Status::OK);
    assert_eq!(clear(other, whole, 35, 1), Status::OK);
    assert_eq!(clear(other, whole, 0, u64::MAX), Status::OK);
    assert!(used(&server) < before);
}

#[test]
fn who_opens_all_the_files_that_it_may_leaves_descriptors_to_others() {
    const DESCRIPTORS: usize = 80;
    let server = server_with(Limits { descriptors: DESCRIPTORS, ..Limits::default() });
    let by = |peer, name| {
        let client = Modern::by(&server, peer, name, channel());
        assert_eq!(client.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
        client
    };
    let how = || Some(CreateHow::Unchecked(Fattr::default()));
    let take_all = |client: &Modern<'_>| {
        let mut opened = 0;
        loop {
            let open = client.open_op(&format!("{opened}"), 1, 0, how());
            match client.at_root(&[open]).status {
                Status::OK => opened += 1,
                status => break (opened, status),
            }
            assert!(opened < DESCRIPTORS, "descriptors have an end");
        }
    };
    // One alone gets half of them: an open takes two. Each further one takes half of the remainder.
    let (greedy, second) = (by(HOSTS[0], "greedy"), by(HOSTS[1], "second"));
    assert_eq!(take_all(&greedy), (20, Status::NOSPC), "it is not asked to wait for itself");
    assert_eq!(take_all(&second), (10, Status::NOSPC));
    // A refused OPEN leaves no file behind, which would fail an exclusive one when it is repeated.
    let lookup = |name: &str| second.at_root(&[Op::Lookup(text(name))]).status;
    let guarded = || Some(CreateHow::Guarded(Fattr::default()));
    let exclusive = || Some(CreateHow::Exclusive41([7; 8], Fattr::default()));
    for how in [how(), guarded(), exclusive()] {
        assert_eq!(second.at_root(&[second.open_op("lock", 2, 0, how)]).status, Status::NOSPC);
        assert_eq!(lookup("lock"), Status::NOENT);
    }
    for how in [guarded(), exclusive()] {
        assert_eq!(second.at_root(&[second.open_op("0", 2, 0, how)]).status, Status::EXIST);
    }
    assert_eq!(lookup("20"), Status::NOENT);
    let mut old = Old::new(&server, "old");
    old.open("one", 1, 0);
    for n in 0.. {
        let name = format!("old-{n}");
        let status = old.at_root(&[old.open_op(old.seqid, &name, 1, 0, how())]).status;
        if status != Status::OK {
            assert_eq!((status, n), (Status::RESOURCE, 4), "minor version 0 has a word for it");
            assert_eq!(lookup(&name), Status::NOENT);
            break;
        }
        old.seqid += 1;
    }
    // What is closed becomes available again.
    let (file, stateid) = {
        let mut answer = greedy.at_root(&[greedy.open_op("0", 1, 0, how()), Op::Getfh]);
        let ok: OpenOk = answer.ok(opnum::OPEN);
        (answer.ok(opnum::GETFH), ok.stateid)
    };
    assert_eq!(greedy.status(file, Op::Close(Close { seqid: 0, stateid })), Status::OK);
    assert_eq!(by(HOSTS[2], "third").at_root(&[greedy.open_op("new", 1, 0, how())]).status, Status::OK);
}

#[test]
fn names_by_the_thousand_from_one_address_keep_nobody_out() {
    let server = server_with(Limits { clients: 64, ..Limits::default() });
    let ask = |peer: &str, minor, name: String| {
        let id = Opaque(Bytes::from(name.into_bytes()));
        let client = ClientOwner { verifier: [1; 8], id };
        let op = if minor > 0 {
            let protect = ProtectHow::None;
            Op::ExchangeId(ExchangeId { client, flags: 0, protect, implementation: UpTo::default() })
        } else {
            let location = NetAddr { netid: text("tcp"), addr: text("0.0.0.0.0.0") };
            let callback = CallbackClient { program: 0x4000_0000, location };
            Op::Setclientid(Setclientid { client, callback, callback_ident: 1 })
        };
        send_by(&server, peer, call(minor, 1, &[op])).status
    };
    for n in 0..200 {
        ask(HOSTS[0], n % 2, format!("flood-{n}"));
    }
    assert_eq!(ask(HOSTS[0], 1, "one more".to_owned()), Status::DELAY);
    assert_eq!(ask(HOSTS[1], 1, "honest".to_owned()), Status::OK);
    let other = Modern::by(&server, HOSTS[2], "other", channel());
    assert_eq!(other.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    // A client that holds something stays, whoever else comes.
    let (_, stateid) = other.open("f", 1, 0);
    for n in 0..200 {
        ask(HOSTS[3], n % 2, format!("second-{n}"));
    }
    let (file, _) = other.open("f", 1, 0);
    assert_eq!(other.status(file, read_op(stateid, 0, 1)), Status::OLD_STATEID, "known, and older");
}

#[test]
fn a_long_tag_is_not_kept_without_being_asked_for() {
    let server = with_memory(1 << 20);
    let a = Modern::new(&server, "a");
    let mut e = Encoder::default();
    let credential = Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), 1, 1));
    Call { xid: 77, program: PROGRAM, version: VERSION, procedure: COMPOUND, credential }.emit(&mut e);
    CompoundHead { tag: text(&"t".repeat(8000)), minor: 1, count: 1 }.emit(&mut e);
    a.sequence_op(2, 0, false).emit(&mut e);
    let (reply, _) = reply_to_parts(&server, PEER, e.into_bytes());
    assert_eq!(reply, Reply::Success);
    assert_eq!(server.states.session(&a.session, &origin(PEER)).unwrap().kept_bytes(), 0);
}

/// The table of clients by itself, where time is an argument.
#[test]
fn idle_clients_go_when_others_find_no_room() {
    use super::super::state::{Limits as StateLimits, Session, States};
    use crate::server::identity::{Identity, Principal};
    use weft_machine::Time as Clock;

    let limits =
        StateLimits { memory: 1 << 20, lease: std::time::Duration::from_secs(60), ..StateLimits::default() };
    let states = States::new(limits, 1, None, Vec::new(), false, Clock::ZERO);
    let principal = Principal { flavor: 1, uid: 1, proved: None };
    let by = |n: u8| Identity { principal, origin: origin(&format!("192.0.2.{n}:700")) };
    let session = |n: u8, number: u32, now: Clock| {
        let id = Opaque(Bytes::from(format!("client {n} {number}").into_bytes()));
        let client = ClientOwner { verifier: [1; 8], id };
        let (client, _, sequence) = states.exchange_id(&client, 0, &by(n), now)?;
        let Op::CreateSession(args) = create_session(client, sequence, greedy()) else { unreachable!() };
        let mut name = [n; 16];
        name[1..5].copy_from_slice(&number.to_be_bytes());
        let make = |lease, fore: ChannelAttrs, charge| {
            let back = super::super::state::Back::new(
                Some(name),
                1,
                super::super::state::back::Route {
                    program: 0,
                    credential: Credential::None,
                    ident: 0,
                    minor: 1,
                },
            );
            let ok =
                CreateSessionOk { session: name, sequence, flags: 0, fore: fore.clone(), back: channel() };
            Ok((Session::new(name, lease, fore, back, charge), ok))
        };
        let fore = ChannelAttrs { max_requests: 64, max_response_cached: 8192, ..channel() };
        states.create_session(&args, fore, &by(n), now, make).map(|(ok, _)| (by(n), ok.session))
    };
    let mut made = Vec::new();
    for n in 0..30 {
        made.extend((0..).map_while(|number| session(n, number, Clock::ZERO).ok()));
    }
    let now = Clock::ZERO + std::time::Duration::from_secs(1);
    assert_eq!(session(100, 0, now), Err(Status::DELAY), "those that were active lately stay");
    let now = Clock::ZERO + std::time::Duration::from_secs(20);
    let new = session(100, 1, now).unwrap();
    let is_there = |(by, id): &(Identity, SessionId)| states.session(id, &by.origin).is_ok();
    assert!(is_there(&new));
    let stay = made.iter().filter(|made| is_there(made)).count();
    assert!(0 < stay && stay < made.len(), "{stay} of {}: only those that held too much", made.len());
}
