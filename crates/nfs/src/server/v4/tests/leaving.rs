//! Removal of clients: everything that they had goes with them, and the others lose nothing.

use std::path::Path;
use std::time::Duration;

use super::super::state::{Client, Kind, Speaker, State};
use super::*;
use crate::server::Durable;
use crate::server::durable::Who;

const ELSEWHERE: &str = "192.0.2.66:700";

fn durable_server(state: &Path) -> Arc<Server> {
    Server::new(Config {
        shares: vec![Share::new("ram", Vfs::new(Ram::new(16 << 20)))],
        pool: weft_machine::Pool::new(16 << 20),
        limits: Limits { lease: Duration::from_secs(3600), ..Limits::default() },
        policy: Policy { decides: false, squash_root: true },
        durable: Some(Durable::open(state, "story").unwrap()),
    })
}

/// The journal after the next sweep.
fn remembered(server: &Server) -> Vec<Who> {
    weft_machine::rt::block_on(super::super::sweep(server)).unwrap();
    server.states.durable().unwrap().clients().unwrap()
}

fn setclientid(name: &str, verifier: Verifier, ident: u32) -> Op {
    let callback = CallbackClient {
        program: 0x4000_0000,
        location: NetAddr { netid: text("tcp"), addr: text("0.0.0.0.0.0") },
    };
    let client = ClientOwner { verifier, id: Opaque(Bytes::copy_from_slice(name.as_bytes())) };
    Op::Setclientid(Setclientid { client, callback, callback_ident: ident })
}

fn record(server: &Server, client: &Modern<'_>) -> Arc<Client> {
    let session = server.states.session(&client.session, &origin(client.peer)).unwrap();
    server.states.client(Speaker::Session(&session), 0).unwrap()
}

fn any_state(client: &Client) -> Arc<State> {
    client.mine().states.values().find(|state| matches!(state.kind, Kind::Open { .. })).unwrap().clone()
}

#[test]
fn a_client_that_changes_its_callback_is_not_taken_for_one_that_was_never_confirmed() {
    const CLIENTS: usize = 8;
    let server = server_with(Limits { clients: CLIENTS, ..Limits::default() });
    let mut old = Old::new(&server, "holder");
    let (file, stateid) = old.open("f", share::READ, share::BOTH);
    let change: Confirm = old.run(&[setclientid("holder", *b"first---", 2)]).ok(opnum::SETCLIENTID);
    assert_eq!(change.client, old.id);
    // Names from its address fill the table; a client from another address gets a place.
    for n in 0..CLIENTS {
        old.run(&[setclientid(&format!("name {n}"), [1; 8], 0)]);
    }
    let by_other = |op: Op| send_by(&server, ELSEWHERE, call(0, 1, &[op]));
    let other: Confirm = by_other(setclientid("other", [1; 8], 0)).ok(opnum::SETCLIENTID);
    assert_eq!(by_other(Op::SetclientidConfirm(other)).status, Status::OK);
    assert_eq!(old.run(&[Op::Renew(old.id)]).status, Status::OK);
    assert_eq!(old.status(file, read_op(stateid, 0, 1)), Status::OK);
    // The change still exists, and has no effect until it is confirmed.
    let client = server.states.client(Speaker::Alone(&origin(PEER)), old.id).unwrap();
    let ident = || client.mine().callback.as_ref().unwrap().ident;
    assert_eq!(ident(), 1);
    let stale = Confirm { verifier: [9; 8], ..change.clone() };
    assert_eq!(old.run(&[Op::SetclientidConfirm(stale)]).status, Status::STALE_CLIENTID);
    for _ in 0..2 {
        assert_eq!(old.run(&[Op::SetclientidConfirm(change.clone())]).status, Status::OK);
        assert_eq!(ident(), 2);
    }
    // Another instance drops an unconfirmed change, and the reverse.
    let change: Confirm = old.run(&[setclientid("holder", *b"first---", 3)]).ok(opnum::SETCLIENTID);
    let again: Confirm = old.run(&[setclientid("holder", *b"second--", 4)]).ok(opnum::SETCLIENTID);
    assert_eq!(old.run(&[Op::SetclientidConfirm(change)]).status, Status::STALE_CLIENTID);
    let change: Confirm = old.run(&[setclientid("holder", *b"first---", 5)]).ok(opnum::SETCLIENTID);
    assert_eq!(old.run(&[Op::SetclientidConfirm(again)]).status, Status::STALE_CLIENTID);
    assert_eq!(old.run(&[Op::SetclientidConfirm(change)]).status, Status::OK);
    assert_eq!((ident(), old.run(&[Op::Renew(old.id)]).status), (5, Status::OK));
}

#[test]
fn a_client_in_whose_place_another_user_comes_takes_its_sessions_along() {
    let server = server_with(Limits { state_memory: 1 << 20, ..Limits::default() });
    let mut used = Vec::new();
    let mut last = None;
    for uid in [1, 2].repeat(50) {
        let by = |op: Op| send(&server, call(1, uid, &[op]));
        let known: ExchangeIdOk = by(exchange_id("same", *b"verifier", 0)).ok(opnum::EXCHANGE_ID);
        let create = create_session(known.client, known.sequence, channel());
        let made: CreateSessionOk = by(create).ok(opnum::CREATE_SESSION);
        if let Some(before) = last.replace(made.session) {
            assert!(server.states.session(&before, &origin(PEER)).is_err());
        }
        used.push(server.states.budget.used_bytes());
    }
    assert!(used.iter().all(|bytes| *bytes == used[0]), "{used:?}");
}

#[test]
fn whichever_way_a_client_goes_nothing_comes_to_it_and_nothing_of_it_is_on_disk() {
    for way in ["another user", "another run", "another run that goes, too", "DESTROY_CLIENTID"] {
        let state = tempfile::tempdir().unwrap();
        let server = durable_server(state.path());
        let a = Modern::new(&server, "a");
        let (file, stateid) = a.open("f", 3, 0);
        let (client, state) = (record(&server, &a), any_state(&record(&server, &a)));
        assert_eq!(remembered(&server).len(), 1);
        assert_eq!(a.status(file, Op::Close(Close { seqid: 0, stateid })), Status::OK);
        let by = |uid, op: Op| send(&server, call(1, uid, &[op]));
        match way {
            "another user" => {
                assert_eq!(by(2, exchange_id("a", *b"verifier", 0)).status, Status::OK);
            }
            "DESTROY_CLIENTID" => {
                assert_eq!(by(1, Op::DestroyClientid(a.id)).status, Status::CLIENTID_BUSY);
                assert_eq!(a.run(&[Op::DestroySession(a.session)]).status, Status::OK);
                assert_eq!(by(1, Op::DestroyClientid(a.id)).status, Status::OK);
                assert_eq!(server.states.durable().unwrap().clients().unwrap(), [], "before it is told so");
            }
            _ => {
                let known: ExchangeIdOk = by(1, exchange_id("a", *b"reboots-", 0)).ok(opnum::EXCHANGE_ID);
                let create = create_session(known.client, known.sequence, channel());
                let made: CreateSessionOk = by(1, create).ok(opnum::CREATE_SESSION);
                if way == "another run that goes, too" {
                    let session = made.session;
                    let sequence = Sequence { session, sequence: 1, slot: 0, highest_slot: 0, cache: false };
                    let destroy = [Op::Sequence(sequence), Op::DestroySession(session)];
                    assert_eq!(send(&server, call(1, 1, &destroy)).status, Status::OK);
                    assert_eq!(by(1, Op::DestroyClientid(known.client)).status, Status::OK);
                }
            }
        }
        assert_eq!(remembered(&server), [], "{way}");
        assert!(server.states.session(&a.session, &origin(PEER)).is_err(), "{way}");
        // One of its requests is still running.
        assert!(client.hold(&state, &server.shares).is_err() && client.mine().states.is_empty(), "{way}");
        assert_eq!(server.states.remember(&client), Err(Status::EXPIRED), "{way}");
        assert_eq!(remembered(&server), [], "{way}");
    }
}

/// Without a session there is no DESTROY_CLIENTID, and the other user's record has its own journal entry.
#[test]
fn a_client_in_whose_place_another_user_comes_is_not_on_disk() {
    let state = tempfile::tempdir().unwrap();
    let server = durable_server(state.path());
    let mut old = Old::new(&server, "old");
    let (file, stateid) = old.open("f", 3, 0);
    assert_eq!(old.status(file, Op::Close(Close { seqid: old.seqid, stateid })), Status::OK);
    old.seqid += 1;
    // The CLOSE can be repeated until the owner's next request.
    let lookup = old.at_root(&[old.open_op(old.seqid, "none", 1, 0, None)]).status;
    assert_eq!((lookup, remembered(&server).len()), (Status::NOENT, 1));
    let other = Old { uid: 2, ..Old::new(&server, "other") };
    let confirm = other.setclientid("old", *b"verifier");
    assert_eq!(other.run(&[Op::SetclientidConfirm(confirm)]).status, Status::OK);
    assert_eq!(remembered(&server), []);
}

#[test]
fn a_client_that_takes_nothing_back_after_a_restart_is_not_on_disk() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let started = || {
        Server::new(Config {
            shares: vec![Share::new("ram", Vfs::new(weft_store::backend::Dir::open(folder.path()).unwrap()))],
            pool: weft_machine::Pool::new(16 << 20),
            limits: Limits { lease: Duration::from_secs(3600), ..Limits::default() },
            policy: Policy { decides: false, squash_root: true },
            durable: Some(Durable::open(state.path(), "story").unwrap()),
        })
    };
    let server = started();
    let (a, b) = (Modern::new(&server, "a"), Modern::new(&server, "b"));
    let (file, _) = a.open("f", 3, 0);
    b.open("f", 3, 0);
    drop(server);
    let server = started();
    let a = Modern::unclaimed(&server, "a", channel());
    let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
    let claim = Claim::Previous(0);
    let reclaim = Op::Open(Open { seqid: 0, access: 3, deny: 0, owner, how: None, claim });
    assert_eq!(a.status(file, reclaim), Status::OK);
    assert_eq!(remembered(&server).len(), 2);
    assert_eq!(a.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    Modern::new(&server, "b");
    let names: Vec<_> = remembered(&server).into_iter().map(|who| who.name).collect();
    assert_eq!(names, [Bytes::from_static(b"a")]);
}

#[test]
fn what_is_taken_from_a_silent_client_is_not_on_disk_when_others_have_it() {
    let state = tempfile::tempdir().unwrap();
    // Every lease expires as soon as it is renewed.
    let server = Server::new(Config {
        shares: vec![Share::new("ram", Vfs::new(Ram::new(16 << 20)))],
        pool: weft_machine::Pool::new(16 << 20),
        limits: Limits { lease: Duration::ZERO, ..Limits::default() },
        policy: Policy { decides: false, squash_root: true },
        durable: Some(Durable::open(state.path(), "story").unwrap()),
    });
    let (mut a, mut b) = (Old::new(&server, "a"), Old::new(&server, "b"));
    a.open("f", 3, 3);
    b.open("f", 3, 3);
    let names: Vec<_> = server.states.durable().unwrap().clients().unwrap();
    assert_eq!(names.into_iter().map(|who| who.name).collect::<Vec<_>>(), [Bytes::from_static(b"b")]);
    assert_eq!(a.run(&[Op::Renew(a.id)]).status, Status::EXPIRED);
    assert_eq!(remembered(&server), []);
}

/// The table of clients by itself, where time is an argument.
#[test]
fn a_client_does_not_make_room_for_its_own_session_by_going() {
    use super::super::state::back::Route;
    use super::super::state::{Back, Limits as StateLimits, Session, States};
    use crate::server::identity::{Identity, Principal};
    use weft_machine::Time as Clock;

    let limits = StateLimits { memory: 1 << 20, lease: Duration::from_secs(60), ..StateLimits::default() };
    let states = States::new(limits, 1, None, Vec::new(), false, Clock::ZERO);
    let principal = Principal { flavor: 1, uid: 1, proved: None };
    let by = |n: u8| Identity { principal, origin: origin(&format!("192.0.2.{n}:700")) };
    let session = |n: u8, client, sequence: u32, now: Clock| {
        let Op::CreateSession(args) = create_session(client, sequence, channel()) else { unreachable!() };
        let make = |lease, fore: ChannelAttrs, charge| {
            let id = weft_machine::random::bytes().unwrap();
            let back = Back::new(
                Some(id),
                1,
                Route { program: 0, credential: Credential::None, ident: 0, minor: 1 },
            );
            let ok = CreateSessionOk { session: id, sequence, flags: 0, fore: fore.clone(), back: channel() };
            Ok((Session::new(id, lease, fore, back, charge), ok))
        };
        let fore = ChannelAttrs { max_requests: 64, max_response_cached: 8192, ..channel() };
        let made = states.create_session(&args, fore, &by(n), now, make);
        made.map(|(ok, taken)| (ok.session, taken.0.len()))
    };
    let mut clients = Vec::new();
    for n in 0..30 {
        for number in 0.. {
            let id = Opaque(Bytes::from(format!("client {n} {number}").into_bytes()));
            let owner = ClientOwner { verifier: [1; 8], id };
            let Ok((client, _, sequence)) = states.exchange_id(&owner, 0, &by(n), Clock::ZERO) else { break };
            let Ok((session, _)) = session(n, client, sequence, Clock::ZERO) else { break };
            clients.push((n, client, session));
        }
    }
    // Each asks after a silence, while it holds nothing and there is no room.
    let now = Clock::ZERO + Duration::from_secs(20);
    let lives = |n: u8, id: &SessionId| states.session(id, &by(n).origin).is_ok();
    for (n, client, first) in clients {
        if !lives(n, &first) {
            // It made room for another one.
            continue;
        }
        let made = session(n, client, 2, now);
        assert!(lives(n, &first), "it is not silent now: {n} {made:?}");
        assert!(made.is_err() || made.is_ok_and(|(id, _)| lives(n, &id)), "a session is its client's");
    }
}
