//! A caller that is not the client gets nothing of it: its sessions, their replies, its name, its states.

use std::path::Path;
use std::time::Duration;

use weft_machine::net::Holder;
use weft_store::backend::Dir;
use weft_store::rules::{Export, Ports, Protection};

use super::*;
use crate::server::Durable;

/// A caller, over some kind of connection.
#[derive(Clone, Copy, Debug)]
struct Somebody {
    peer: &'static str,
    security: Option<Security>,
    uid: u32,
}

/// The victim, unless a test says otherwise: root of its host, by plain TCP.
const VICTIM: Somebody = Somebody { peer: PEER, security: None, uid: 0 };
/// Each differs from the victim in one respect.
const OTHER_ADDRESS: Somebody = Somebody { peer: "192.0.2.66:700", ..VICTIM };
const OTHER_PORT: Somebody = Somebody { peer: "192.0.2.1:40000", ..VICTIM };
const OTHER_USER: Somebody = Somebody { uid: 4242, ..VICTIM };
const TLS: Somebody = Somebody { security: Some(Security { holder: None }), ..VICTIM };
const CERTIFIED: Somebody = Somebody { security: Some(Security { holder: Some(Holder([1; 32])) }), ..VICTIM };
const OTHER_HOLDER: Somebody =
    Somebody { security: Some(Security { holder: Some(Holder([2; 32])) }), ..VICTIM };

impl Somebody {
    fn run(self, server: &Server, ops: &[Op]) -> Answer {
        send_over(server, self.peer, self.security, &[call(1, self.uid, ops)]).remove(0)
    }

    /// The status of a compound.
    fn status(self, server: &Server, ops: &[Op]) -> Status {
        self.run(server, ops).status
    }

    /// The status of the second of two compounds on one connection; the first associates the connection with the
    /// session, if permitted.
    fn second(self, server: &Server, first: &[Op], second: &[Op]) -> Status {
        let calls = [call(1, self.uid, first), call(1, self.uid, second)];
        send_over(server, self.peer, self.security, &calls).remove(1).status
    }

    fn exchange_id(self, server: &Server, name: &'static str, verifier: Verifier) -> ExchangeIdOk {
        self.run(server, &[exchange_id(name, verifier, 0)]).ok(opnum::EXCHANGE_ID)
    }

    fn client(self, server: &Server, name: &'static str) -> Victim {
        let ExchangeIdOk { client, sequence, .. } = self.exchange_id(server, name, *b"verifier");
        let mut answer = self.run(server, &[create_session(client, sequence, channel())]);
        let CreateSessionOk { session, .. } = answer.ok(opnum::CREATE_SESSION);
        Victim { who: self, client, session, next: 1.into() }
    }

    fn old(self, server: &Server, minor_0: &[Op]) -> Status {
        send_over(server, self.peer, self.security, &[call(0, self.uid, minor_0)]).remove(0).status
    }
}

/// A client with a session.
struct Victim {
    who: Somebody,
    client: u64,
    session: SessionId,
    next: std::cell::Cell<u32>,
}

impl Victim {
    fn in_slot(&self, slot: u32, sequence: u32, cache: bool) -> Op {
        Op::Sequence(Sequence { session: self.session, sequence, slot, highest_slot: slot, cache })
    }

    fn run(&self, server: &Server, ops: &[Op]) -> Answer {
        let number = self.next.replace(self.next.get() + 1);
        let mut answer = self.who.run(server, &[&[self.in_slot(0, number, false)], ops].concat());
        answer.ok::<SequenceOk>(opnum::SEQUENCE);
        answer
    }

    fn open(&self, server: &Server, name: &str, deny: u32) -> (Handle, Stateid) {
        let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        let open = Open { seqid: 0, access: share::BOTH, deny, owner, how, claim: Claim::Null(text(name)) };
        let mut answer = self.run(server, &[Op::Putfh(root(server)), Op::Open(open), Op::Getfh]);
        answer.ok::<()>(opnum::PUTFH);
        let ok: OpenOk = answer.ok(opnum::OPEN);
        (answer.ok(opnum::GETFH), ok.stateid)
    }

    fn works(&self, server: &Server) -> bool {
        self.run(server, &[Op::Putrootfh]).status == Status::OK
    }
}

/// One share, which trusts the callers' credentials.
fn server_for(export: Export) -> Arc<Server> {
    let mut share = Share::new("ram", Vfs::new(Ram::new(16 << 20)));
    share.rules.nfs = export;
    let policy = Policy { decides: false, squash_root: false };
    let pool = weft_machine::Pool::new(16 << 20);
    Server::new(Config { shares: vec![share], pool, limits: Limits::default(), policy, durable: None })
}

#[test]
fn a_session_is_made_again_and_used_by_nobody_else() {
    // The creator, and the status that each other caller gets when it repeats the session's request, uses the
    // session, destroys it or binds to it.
    use Status as S;
    let stale = (S::STALE_CLIENTID, S::BADSESSION, S::BADSESSION, S::BADSESSION);
    let user = (S::CLID_INUSE, S::OK, S::WRONG_CRED, S::WRONG_CRED);
    for (victim, stranger, told) in [
        (VICTIM, OTHER_PORT, stale),
        (VICTIM, OTHER_USER, user),
        (TLS, VICTIM, stale),
        (CERTIFIED, VICTIM, stale),
        (CERTIFIED, TLS, stale),
        (CERTIFIED, OTHER_HOLDER, stale),
    ] {
        let server = server_for(Export::default());
        let it = victim.client(&server, "victim");
        let again = create_session(it.client, 1, channel());
        let sequence = it.in_slot(3, 1, false);
        let bind = Op::BindConnToSession(BindConn { session: it.session, direction: 2, rdma: false });
        let (create, by_sequence, destroy, bound) = told;
        let who = format!("{victim:?} {stranger:?}");
        assert_eq!(stranger.status(&server, std::slice::from_ref(&again)), create, "{who}");
        assert_eq!(stranger.status(&server, std::slice::from_ref(&sequence)), by_sequence, "{who}");
        let use_it = [it.in_slot(4, 1, false)];
        assert_eq!(stranger.second(&server, &use_it, &[Op::DestroySession(it.session)]), destroy, "{who}");
        assert_eq!(stranger.status(&server, &[bind]), bound, "{who}");
        assert_ne!(stranger.status(&server, &[Op::DestroyClientid(it.client)]), S::OK, "{who}");
        assert!(it.works(&server), "{who}");
        // The client itself gets the same reply as before.
        let mut answer = victim.run(&server, &[again]);
        assert_eq!(answer.ok::<CreateSessionOk>(opnum::CREATE_SESSION).session, it.session);
    }
}

#[test]
fn other_addresses_use_a_session_whose_number_they_know() {
    let server = server_for(Export::default());
    let it = VICTIM.client(&server, "victim");
    let elsewhere = OTHER_ADDRESS;
    // RFC 8881 18.37.3: a connection that is not associated with the session cannot end it.
    let unbound = Status::CONN_NOT_BOUND_TO_SESSION;
    assert_eq!(elsewhere.status(&server, &[Op::DestroySession(it.session)]), unbound);
    // Trunking begins like this: the client sees that it is the same server. Its id alone is useless there.
    let known = elsewhere.exchange_id(&server, "victim", *b"verifier");
    assert_eq!((known.client, known.sequence), (it.client, 2));
    assert_ne!(known.flags & exchange_flag::CONFIRMED_R, 0);
    let create = create_session(it.client, 2, channel());
    assert_eq!(elsewhere.status(&server, std::slice::from_ref(&create)), Status::STALE_CLIENTID);
    assert_eq!(elsewhere.status(&server, &[create_session(it.client, 1, channel())]), Status::STALE_CLIENTID);
    // Only the client knows the session id. The destination of callbacks is set by its own user, from a reserved
    // port.
    let bind = [Op::BindConnToSession(BindConn { session: it.session, direction: 1, rdma: false })];
    assert_eq!(Somebody { uid: 1, ..elsewhere }.status(&server, &bind), Status::WRONG_CRED);
    let any_user = Somebody { peer: "192.0.2.66:40000", ..elsewhere };
    assert_eq!(any_user.status(&server, &bind), Status::BADSESSION);
    assert_eq!(any_user.status(&server, &[it.in_slot(0, 1, false)]), Status::BADSESSION);
    assert_eq!(
        elsewhere.status(&server, std::slice::from_ref(&create)),
        Status::STALE_CLIENTID,
        "none of these"
    );
    // RFC 8881 2.10.3.1: the first SEQUENCE associates a connection with the session, for any user of the client.
    assert_eq!(Somebody { uid: 5, ..elsewhere }.status(&server, &[it.in_slot(0, 1, false)]), Status::OK);
    assert_eq!(elsewhere.status(&server, &[it.in_slot(0, 2, false)]), Status::OK);
    // From then on the client is known there, and by its own word at a third address.
    assert_eq!(elsewhere.status(&server, &[create]), Status::OK);
    let third = Somebody { peer: "192.0.2.67:700", ..VICTIM };
    assert_eq!(third.status(&server, &bind), Status::OK);
    assert_eq!(third.status(&server, &[create_session(it.client, 3, channel())]), Status::OK);
    assert!(VICTIM.status(&server, &[it.in_slot(0, 3, false)]) == Status::OK, "and where it was before");
}

#[test]
fn a_client_that_has_moved_without_a_word_begins_anew() {
    let server = server_for(Export::default());
    let it = VICTIM.client(&server, "victim");
    let moved = || OTHER_ADDRESS.exchange_id(&server, "victim", *b"verifier");
    let known = moved();
    assert_eq!(known.client, it.client);
    let create = create_session(known.client, known.sequence, channel());
    assert_eq!(OTHER_ADDRESS.status(&server, &[create]), Status::STALE_CLIENTID);
    let new = moved();
    assert_ne!(new.client, it.client);
    assert_eq!(new.flags & exchange_flag::CONFIRMED_R, 0);
    let create = create_session(new.client, new.sequence, channel());
    assert_eq!(OTHER_ADDRESS.status(&server, &[create]), Status::OK);
    // At its earlier address it is served as before.
    assert_eq!(VICTIM.status(&server, &[it.in_slot(0, 1, false)]), Status::OK);
}

#[test]
fn a_kept_reply_is_its_askers_alone() {
    let server = server_for(Export::default());
    let it = CERTIFIED.client(&server, "victim");
    assert_eq!(it.run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
    let (file, stateid) = it.open(&server, "secret", 0);
    assert_eq!(it.run(&server, &[Op::Putfh(file), write_op(stateid, 0, b"secret")]).status, Status::OK);
    let ops = [it.in_slot(1, 1, true), Op::Putfh(file), read_op(stateid, 0, 6)];
    let read = |who: Somebody| {
        let answer = who.run(&server, &ops);
        let rest = answer.d.peek(200).to_vec();
        (answer.status, rest.windows(6).any(|bytes| bytes == b"secret"))
    };
    assert_eq!(read(CERTIFIED), (Status::OK, true));
    assert_eq!(read(CERTIFIED), (Status::OK, true), "to whom it was said before");
    for stranger in [VICTIM, TLS, OTHER_HOLDER] {
        assert_eq!(read(stranger), (Status::BADSESSION, false), "{stranger:?}");
    }
    // RFC 8881 2.10.6.1.3.1.
    assert_eq!(read(Somebody { uid: 4242, ..CERTIFIED }), (Status::SEQ_FALSE_RETRY, false));
    // Another connection of the host belongs to the same client.
    assert_eq!(read(Somebody { peer: "192.0.2.1:701", ..CERTIFIED }), (Status::OK, true));
}

#[test]
fn whoever_says_a_clients_name_elsewhere_is_another_client() {
    // And the status for a stranger that has learned the id of the victim's record without sessions.
    let stale = Status::STALE_CLIENTID;
    for (victim, stranger, renewed) in [
        (VICTIM, OTHER_ADDRESS, Status::OK),
        (VICTIM, OTHER_PORT, stale),
        (CERTIFIED, VICTIM, stale),
        (CERTIFIED, OTHER_HOLDER, stale),
        // And the reverse: nobody blocks a name for its owner.
        (OTHER_PORT, VICTIM, Status::OK),
    ] {
        let who = format!("{victim:?} {stranger:?}");
        let server = server_for(Export::default());
        let it = victim.client(&server, "victim");
        assert_eq!(it.run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
        let (file, stateid) = it.open(&server, "f", 0);
        let new_run = stranger.exchange_id(&server, "victim", *b"whatever");
        assert_ne!(new_run.client, it.client);
        let create = create_session(new_run.client, new_run.sequence, channel());
        assert_eq!(stranger.status(&server, &[create]), Status::OK, "{who}");
        assert_eq!(
            it.run(&server, &[Op::Putfh(file), write_op(stateid, 0, b"x")]).status,
            Status::OK,
            "{who}"
        );

        // The same without sessions.
        let location = NetAddr { netid: text("tcp"), addr: text("0.0.0.0.0.0") };
        let setclientid = |verifier| {
            let client = ClientOwner { verifier, id: Opaque(Bytes::from_static(b"old")) };
            let callback = CallbackClient { program: 0x4000_0000, location: location.clone() };
            Op::Setclientid(Setclientid { client, callback, callback_ident: 1 })
        };
        let confirmed = |who: Somebody, verifier| {
            let call = call(0, who.uid, &[setclientid(verifier)]);
            let mut answer = send_over(&server, who.peer, who.security, &[call]).remove(0);
            let confirm: Confirm = answer.ok(opnum::SETCLIENTID);
            (confirm.client, who.old(&server, &[Op::SetclientidConfirm(confirm)]))
        };
        let (old, done) = confirmed(victim, *b"boot1111");
        assert_eq!(done, Status::OK);
        assert_eq!(confirmed(stranger, *b"evil2222").1, Status::OK);
        assert_eq!(victim.old(&server, &[Op::Renew(old)]), Status::OK, "{who}");
        assert_eq!(stranger.old(&server, &[Op::Renew(old)]), renewed, "{who}");
        assert_eq!(Somebody { uid: 7, ..victim }.old(&server, &[Op::Renew(old)]), Status::OK, "its users");
    }
}

#[test]
fn a_client_that_restarts_where_it_was_takes_its_own_place() {
    let server = server_for(Export::default());
    let it = CERTIFIED.client(&server, "victim");
    let again = CERTIFIED.exchange_id(&server, "victim", *b"reboots-");
    let create = create_session(again.client, again.sequence, channel());
    // Another port, as after any restart.
    let after = Somebody { peer: "192.0.2.1:999", ..CERTIFIED };
    assert_eq!(after.status(&server, &[create]), Status::OK);
    assert_eq!(CERTIFIED.status(&server, &[it.in_slot(0, 1, false)]), Status::BADSESSION);
}

#[test]
fn who_is_let_in_nowhere_has_nothing_to_do_with_clients() {
    let near = || Export { networks: vec!["192.0.2.0/28".parse().unwrap()], ..Export::default() };
    let secure = Export { ports: Some(Ports::Reserved), ..Export::default() };
    let certified = Export { protection: Protection::Mutual, ..Export::default() };
    for (export, victim, stranger) in
        [(near(), VICTIM, OTHER_ADDRESS), (secure, VICTIM, OTHER_PORT), (certified, CERTIFIED, TLS)]
    {
        let server = server_for(export);
        let it = victim.client(&server, "victim");
        let bind = Op::BindConnToSession(BindConn { session: it.session, direction: 1, rdma: false });
        let ops = [
            exchange_id("stranger", *b"verifier", 0),
            create_session(it.client, 1, channel()),
            it.in_slot(1, 1, false),
            bind,
            Op::DestroySession(it.session),
            Op::DestroyClientid(it.client),
        ];
        for op in ops {
            assert_eq!(stranger.status(&server, std::slice::from_ref(&op)), Status::ACCESS, "{op:?}");
        }
        let client = ClientOwner { verifier: *b"verifier", id: Opaque(Bytes::from_static(b"old")) };
        let location = NetAddr { netid: text("tcp"), addr: text("0.0.0.0.0.0") };
        let callback = CallbackClient { program: 0x4000_0000, location };
        let confirm = Confirm { client: it.client, verifier: *b"verifier" };
        let owner = Owner { client: it.client, owner: Opaque(Bytes::from_static(b"owner")) };
        let ops = [
            Op::Setclientid(Setclientid { client, callback, callback_ident: 1 }),
            Op::SetclientidConfirm(confirm),
            Op::Renew(it.client),
            Op::ReleaseLockowner(owner),
        ];
        for op in ops {
            assert_eq!(stranger.old(&server, std::slice::from_ref(&op)), Status::ACCESS, "{op:?}");
        }
        assert!(it.works(&server));
    }
}

#[test]
fn the_grace_period_is_ended_by_those_who_had_something_and_not_in_their_name() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let started = |folder: &Path, state: &Path| {
        let mut share = Share::new("data", Vfs::new(Dir::open(folder).unwrap()));
        share.rules.nfs = Export::default();
        Server::new(Config {
            shares: vec![share],
            pool: weft_machine::Pool::new(16 << 20),
            limits: Limits { lease: Duration::from_secs(3600), ..Limits::default() },
            policy: Policy { decides: false, squash_root: false },
            durable: Some(Durable::open(state, "story").unwrap()),
        })
    };
    let server = started(folder.path(), state.path());
    let it = CERTIFIED.client(&server, "victim");
    assert_eq!(it.run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
    let (file, _) = it.open(&server, "f", share::WRITE);
    drop(server);

    let server = started(folder.path(), state.path());
    let owner = || Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
    let open = |claim| Op::Open(Open { seqid: 0, access: 3, deny: 2, owner: owner(), how: None, claim });
    for stranger in [OTHER_ADDRESS, OTHER_PORT, OTHER_HOLDER, Somebody { uid: 4242, ..CERTIFIED }] {
        let other = stranger.client(&server, "victim");
        let mut answer = other.run(&server, &[Op::Putfh(file), open(Claim::Previous(0))]);
        answer.ok::<()>(opnum::PUTFH);
        assert_eq!(answer.next(opnum::OPEN), Status::RECLAIM_BAD, "{stranger:?}");
        assert_eq!(other.run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
        let taken = other.run(&server, &[Op::Putfh(root(&server)), open(Claim::Null(text("f")))]);
        assert_eq!(taken.status, Status::GRACE, "{stranger:?}");
    }
    let it = CERTIFIED.client(&server, "victim");
    // Nor can a user of the host that uses its session.
    let other_user = Somebody { uid: 4242, ..CERTIFIED };
    let complete = [it.in_slot(2, 1, false), Op::ReclaimComplete(false)];
    assert_eq!(other_user.status(&server, &complete), Status::WRONG_CRED);
    assert_eq!(it.run(&server, &[Op::Putfh(file), open(Claim::Previous(0))]).status, Status::OK);
    assert_eq!(it.run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
}

#[test]
fn nobody_uses_a_state_of_a_client_with_a_session_without_it() {
    let server = server_for(Export::default());
    let it = VICTIM.client(&server, "victim");
    assert_eq!(it.run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
    let (file, stateid) = it.open(&server, "f", 0);
    let kind = LockType { exclusive: true, waits: false };
    let locker = Locker::New {
        open_seqid: 0,
        open_stateid: stateid,
        lock_seqid: 0,
        owner: Owner { client: 0, owner: Opaque(Bytes::from_static(b"l")) },
    };
    let lock = Op::Lock(Lock { kind, reclaim: false, offset: 0, length: 5, locker });
    let mut answer = it.run(&server, &[Op::Putfh(file), lock]);
    answer.ok::<()>(opnum::PUTFH);
    let locked: Stateid = answer.ok(opnum::LOCK);
    for stranger in [VICTIM, OTHER_ADDRESS, OTHER_PORT, OTHER_USER] {
        let ops = [
            Op::Locku(Locku { kind, seqid: 0, stateid: locked, offset: 0, length: 5 }),
            Op::Close(Close { seqid: 0, stateid }),
            Op::Delegreturn(stateid),
            Op::OpenDowngrade(OpenDowngrade { stateid, seqid: 0, access: 1, deny: 0 }),
            read_op(stateid, 0, 1),
            write_op(stateid, 0, b"x"),
        ];
        for op in ops {
            let status = stranger.old(&server, &[Op::Putfh(file), op.clone()]);
            assert_eq!(status, Status::BAD_STATEID, "{stranger:?} {op:?}");
        }
    }
    assert_eq!(it.run(&server, &[Op::Putfh(file), write_op(stateid, 0, b"x")]).status, Status::OK);
}

#[test]
fn a_state_of_a_client_without_a_session_is_used_from_where_it_was_made() {
    let server = server_for(Export::default());
    let mut old = Old::new(&server, "old");
    let (file, stateid) = old.open("f", 3, 0);
    let read = |who: Somebody| who.old(&server, &[Op::Putfh(file), read_op(stateid, 0, 1)]);
    assert_eq!(read(VICTIM), Status::OK);
    assert_eq!(read(OTHER_USER), Status::OK, "another user of the host, whom mode bits may keep out");
    assert_eq!(read(OTHER_PORT), Status::BAD_STATEID);
    assert_eq!(read(TLS), Status::OK, "who has more than was asked for");
    // A session gives access only to its own client's states.
    let it = VICTIM.client(&server, "new");
    let other = it.run(&server, &[Op::Putfh(file), read_op(stateid, 0, 1)]);
    assert_eq!(other.status, Status::BAD_STATEID);
}

#[test]
fn ids_say_nothing_of_other_ids() {
    let server = server_for(Export::default());
    let names = ["a", "b", "c", "d"];
    let clients: Vec<_> = names.map(|name| VICTIM.client(&server, name)).into_iter().collect();
    for pair in clients.windows(2) {
        assert!(pair[0].client.abs_diff(pair[1].client) > 1 << 24);
        assert_ne!(pair[0].client >> 32, pair[1].client >> 32);
    }
    assert_eq!(clients[0].run(&server, &[Op::ReclaimComplete(false)]).status, Status::OK);
    let ids = ["f", "g", "h"].map(|name| clients[0].open(&server, name, 0).1.other);
    for pair in ids.windows(2) {
        let number = |id: &[u8; 12]| u64::from_be_bytes(*id.last_chunk().unwrap());
        assert!(number(&pair[0]).abs_diff(number(&pair[1])) > 1 << 24);
    }
}

/// The reply cache for requests without sessions is consulted before the share's rules.
#[test]
fn a_kept_answer_without_a_session_is_its_askers_alone() {
    let server = server_for(Export::default());
    let make =
        Create { kind: CreateType::Other(FileType::DIR), name: text("d"), attributes: Fattr::default() };
    let call = numbered_call(77, 0, 0, &[Op::Putfh(root(&server)), Op::Create(make)]);
    let ask = |who: Somebody| {
        send_over(&server, who.peer, who.security, std::slice::from_ref(&call)).remove(0).status
    };
    assert_eq!(ask(CERTIFIED), Status::OK);
    assert_eq!(ask(CERTIFIED), Status::OK, "as before");
    for stranger in [VICTIM, TLS, OTHER_HOLDER, OTHER_PORT, OTHER_ADDRESS] {
        assert_eq!(ask(stranger), Status::EXIST, "{stranger:?}");
    }
}

#[test]
fn who_may_not_write_flushes_nothing_unless_he_has_opened_the_file_for_that() {
    let share = Share::new("ram", Vfs::new(Ram::new(16 << 20)));
    let (pool, limits) = (weft_machine::Pool::new(16 << 20), Limits::default());
    let policy = Policy { decides: true, squash_root: false };
    let server = Server::new(Config { shares: vec![share], pool, limits, policy, durable: None });
    let mut owner = Modern::new(&server, "owner");
    owner.uid = 2001;
    let (file, stateid) = owner.open("f", share::BOTH, 0);
    let chmod = |bits| {
        let set = Op::Setattr(Setattr { stateid, attributes: mode(bits) });
        assert_eq!(owner.status(file, set), Status::OK);
    };
    let commit = |who: &Modern<'_>| who.status(file, Op::Commit(Commit { offset: 0, count: 0 }));
    let mut other = Modern::new(&server, "other");
    other.uid = 2002;
    chmod(0o644);
    assert_eq!((commit(&owner), commit(&other)), (Status::OK, Status::ACCESS));
    chmod(0o666);
    let (_, opened) = other.open("f", share::BOTH, 0);
    chmod(0o600);
    assert_eq!(other.status(file, write_op(opened, 0, b"data")), Status::OK);
    assert_eq!(commit(&other), Status::OK, "it makes durable what he could write");
    other.uid = 2003;
    assert_eq!(commit(&other), Status::ACCESS, "another user of the same client");
}
