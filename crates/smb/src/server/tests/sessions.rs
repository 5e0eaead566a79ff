//! Log-on, log-off, trees, and what remains when a connection is lost.

use futures_util::future::LocalBoxFuture;
use weft_store::backend::ram::Ram;
use weft_store::vfs::{Backend, Caller, Error, NodeId, Op, Outcome, Share, Vfs};
use weft_wire::ntlm;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::negotiate::{Capabilities, SecurityMode};
use weft_wire::smb2::tree_connect::{self, ShareType};
use weft_wire::smb2::{Command, Dialect, FileId, Header, NtStatus, logoff, session_setup, tree_disconnect};

use super::harness::*;
use crate::auth::Secret;
use crate::crypto::Sender;
use crate::server::User;
use crate::server::journal::Gate;
use weft_machine::rt;

use std::time::Duration;

#[test]
fn wrong_password_unknown_user_and_another_try() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        assert_eq!(client.log_on("alice", "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(client.log_on("eve", PASSWORD).await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(client.log_on("", "").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(world.server.session_count(), 0);
        client.log_on("ALICE", PASSWORD).await.unwrap();
        assert_eq!(world.server.session_count(), 1);
    });
}

#[test]
fn nothing_works_without_a_session() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        let request =
            tree_connect::Request { flags: tree_connect::RequestFlags::NONE, path: r"\\s\data".into() };
        assert_eq!(
            client.status(Command::TreeConnect, |out| request.emit(out)).await,
            NtStatus::USER_SESSION_DELETED
        );
        // Nor with a guessed one, nor with another session's.
        let other = world.client().await;
        for id in [1, u64::MAX, other.session] {
            client.session = id;
            client.tree = other.tree;
            let status = client
                .status(Command::Create, |out| create_request("x", CreateOptions::NONE).emit(out))
                .await;
            assert_eq!(status, NtStatus::USER_SESSION_DELETED);
        }
        // An incomplete session does not count.
        client.session = 0;
        client.tree = 0;
        assert_eq!(world.server.session_count(), 1);
    });
}

#[test]
fn session_ids_are_not_a_sequence() {
    story(async {
        let world = World::new();
        let (a, b) = (world.client().await.session, world.client().await.session);
        assert!(a != b && a != 0 && b != 0 && a.abs_diff(b) > 1 << 20);
    });
}

#[test]
fn a_session_ends_with_logoff() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        client.sign = true;
        let file = client.open("f", CreateOptions::DELETE_ON_CLOSE).await;
        let (header, _) = client.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        assert!(header.flags.contains(weft_wire::smb2::header::Flags::SIGNED), "by the keys that it had");
        client.sign = false;
        let (status, _) = client.read(file, 10).await;
        assert_eq!(status, NtStatus::USER_SESSION_DELETED);
        assert_eq!(world.server.session_count(), 0);
        // The file is gone with its open.
        let mut other = world.client().await;
        let mut open = create_request("f", CreateOptions::NONE);
        open.disposition = weft_wire::smb2::create::CreateDisposition::Open;
        let status = other.status(Command::Create, |out| open.emit(out)).await;
        assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_lost_connection_closes_what_was_open() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        client.open("gone", CreateOptions::DELETE_ON_CLOSE).await;
        client.wire.hang_up();
        client.assert_closed().await;
        rt::sleep(Duration::from_millis(1)).await;
        assert_eq!(world.server.session_count(), 0);
        let mut other = world.client().await;
        let mut open = create_request("gone", CreateOptions::NONE);
        open.disposition = weft_wire::smb2::create::CreateDisposition::Open;
        let status = other.status(Command::Create, |out| open.emit(out)).await;
        assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

/// A memory disk on which a deletion completes when the story allows it.
struct SlowDisk {
    disk: Ram,
    gate: Gate,
}

impl Backend for SlowDisk {
    fn kind(&self) -> &'static str {
        self.disk.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match op {
            Op::Remove { .. } => Box::pin(async move {
                let _held = self.gate.lock().await;
                self.disk.submit(op, by).await
            }),
            op => self.disk.submit(op, by),
        }
    }
}

/// Ends the open of a file marked for deletion by one request, whose client disconnects before the deletion completes.
async fn lost_while_a_file_goes(end: impl FnOnce(&mut Client, FileId)) {
    let gate = Gate::default();
    let disk = SlowDisk { disk: Ram::new(1 << 20), gate: gate.clone() };
    let world = World::with(|config| config.shares = vec![Share::new("Data", Vfs::new(disk))]);
    let mut client = world.client().await;
    client.sign = true;
    let file = client.open("gone", CreateOptions::DELETE_ON_CLOSE).await;
    client.open("beside", CreateOptions::DELETE_ON_CLOSE).await;
    let held = gate.lock().await;
    end(&mut client, file);
    rt::sleep(Duration::from_millis(1)).await;
    client.wire.hang_up();
    rt::sleep(Duration::from_millis(1)).await;
    drop(held);
    rt::sleep(Duration::from_millis(1)).await;
    assert_eq!(world.server.session_count(), 0);
    let vfs = &world.server.shares.now()[0].vfs.clone();
    for name in [&b"gone"[..], b"beside"] {
        assert!(matches!(vfs.lookup(NodeId::ROOT, name, false).await, Err(Error::NotFound)));
    }
    assert_eq!(vfs.opens().open_nodes(), []);
}

#[test]
fn a_disk_that_hangs_keeps_no_other_session_alive() {
    story(async {
        let gate = Gate::default();
        let disk = SlowDisk { disk: Ram::new(1 << 20), gate: gate.clone() };
        let world = World::with(|config| config.shares = vec![Share::new("Data", Vfs::new(disk))]);
        let mut clients = Vec::new();
        for name in ["one", "two", "three"] {
            let mut client = world.client().await;
            let file = client.open(name, CreateOptions::DELETE_ON_CLOSE).await;
            let second = client.tree_connect(r"\\server\data").await.0.tree_id().unwrap();
            clients.push((client, file, second));
        }
        let held = gate.lock().await;
        world.server.replace_shares(Vec::new());
        let (server, users) = (world.server.clone(), [User::new("alice", Secret::password(PASSWORD))]);
        let replaced = rt::spawn(async move { server.replace_users(&users, &[]).await });
        rt::sleep(Duration::from_millis(1)).await;
        for (client, file, second) in &mut clients {
            assert_eq!(client.read(*file, 1).await.0, NtStatus::NETWORK_NAME_DELETED);
            client.tree = *second;
            assert_eq!(client.read(*file, 1).await.0, NtStatus::NETWORK_NAME_DELETED);
        }
        drop(held);
        replaced.await;
    });
}

#[test]
fn a_file_goes_with_its_close_whatever_becomes_of_the_client() {
    story(lost_while_a_file_goes(|client, file| {
        let request = client.request(Command::Close, |out| close_request(file).emit(out));
        client.send(request);
    }));
}

#[test]
fn files_go_with_a_logoff_whatever_becomes_of_the_client() {
    story(lost_while_a_file_goes(|client, _| {
        let request = client.request(Command::Logoff, |out| logoff::Request.emit(out));
        client.send(request);
    }));
}

#[test]
fn trees() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        client.sign = true;
        let first = client.tree;
        for (path, status, kind) in [
            (r"\\10.0.0.1\DATA", NtStatus::SUCCESS, Some(ShareType::Disk)),
            (r"\\server\ipc$", NtStatus::SUCCESS, Some(ShareType::Pipe)),
            (r"\\server\nope", NtStatus::BAD_NETWORK_NAME, None),
            (r"\\server\", NtStatus::BAD_NETWORK_NAME, None),
            ("data", NtStatus::INVALID_PARAMETER, None),
            ("", NtStatus::INVALID_PARAMETER, None),
        ] {
            let (header, bytes) = client.tree_connect(path).await;
            assert_eq!(header.status, status, "{path}");
            let response = tree_connect::Response::parse(&bytes).ok();
            assert_eq!(response.map(|r| r.share_type), kind, "{path}");
            assert!(kind.is_none() || !matches!(header.tree_id(), None | Some(0) | Some(u32::MAX)));
        }
        let file = client.open("f", CreateOptions::NONE).await;
        let disconnect =
            client.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
        assert_eq!(disconnect, NtStatus::SUCCESS);
        assert_eq!(client.read(file, 1).await.0, NtStatus::NETWORK_NAME_DELETED);
        let again = client.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
        assert_eq!(again, NtStatus::NETWORK_NAME_DELETED);
        // A handle of another tree is invalid here.
        client.tree().await;
        assert_ne!(client.tree, first);
        assert_eq!(client.read(file, 1).await.0, NtStatus::FILE_CLOSED);
    });
}

#[test]
fn shares_are_replaced_while_they_are_used() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let file = client.open("f", CreateOptions::NONE).await;
        assert_eq!(client.write(file, b"kept").await, NtStatus::SUCCESS);
        let old = world.server.shares.named("data").unwrap();
        let ruled = Share { vfs: old.vfs.clone().read_only(), ..old };
        world.server.replace_shares(vec![ruled, Share::new("New", Vfs::new(Ram::new(1 << 20)))]);
        // A connected client keeps its access.
        assert_eq!(client.write(file, b"more").await, NtStatus::SUCCESS);
        assert_eq!(client.tree_connect(r"\\server\new").await.0.status, NtStatus::SUCCESS);
        client.tree().await;
        let create = client.status(Command::Create, |out| create_request("g", CreateOptions::NONE).emit(out));
        assert_eq!(create.await, NtStatus::MEDIA_WRITE_PROTECTED);
        world.server.replace_shares(Vec::new());
        assert_eq!(client.tree_connect(r"\\server\data").await.0.status, NtStatus::BAD_NETWORK_NAME);
    });
}

#[test]
fn an_unprotected_tree_connect_ends_a_3_1_1_connection() {
    story(async {
        let world = World::new();
        for (dialect, closed) in [(Dialect::V3_1_1, true), (Dialect::V3_0_2, false)] {
            let mut client = world.connect();
            client.negotiate(Offer::dialect(dialect)).await;
            client.log_on("alice", PASSWORD).await.unwrap();
            let request =
                tree_connect::Request { flags: tree_connect::RequestFlags::NONE, path: r"\\s\data".into() };
            let request = client.request(Command::TreeConnect, |out| request.emit(out));
            client.send(request);
            assert_eq!(client.recv().await.is_none(), closed, "{dialect}");
        }
    });
}

#[test]
fn limits_hold() {
    story(async {
        let world = World::with(|config| {
            config.limits.sessions = 2;
            config.limits.trees = 3;
            config.limits.opens = 2;
        });
        let mut client = world.client().await;
        client.sign = true;
        for _ in 0..2 {
            assert_eq!(client.tree_connect(r"\\s\data").await.0.status, NtStatus::SUCCESS);
        }
        let (header, _) = client.tree_connect(r"\\s\data").await;
        assert_eq!(header.status, NtStatus::INSUFFICIENT_RESOURCES);
        for name in ["a", "b"] {
            client.open(name, CreateOptions::NONE).await;
        }
        let third =
            client.status(Command::Create, |out| create_request("c", CreateOptions::NONE).emit(out)).await;
        assert!(third.is_error(), "{third}");
        // Sessions count from their first round trip on.
        client.sign = false;
        (client.session, client.tree, client.keys) = (0, 0, None);
        client.log_on("bob", PASSWORD).await.unwrap();
        (client.session, client.keys) = (0, None);
        assert_eq!(client.log_on("bob", PASSWORD).await.unwrap_err(), NtStatus::INSUFFICIENT_RESOURCES);
    });
}

#[test]
fn a_new_session_ends_the_previous_one_of_the_same_user() {
    story(async {
        let world = World::new();
        for (user, ends) in [("bob", false), ("alice", true)] {
            let mut old = world.client().await;
            let previous = old.session;
            let mut new = world.connect();
            new.negotiate(Offer::default()).await;
            new.log_on_with(user, PASSWORD, |setup| setup.previous_session_id = previous).await.unwrap();
            let request = create_request("x", CreateOptions::NONE);
            let status = old.status(Command::Create, |out| request.emit(out)).await;
            let expected = if ends { NtStatus::USER_SESSION_DELETED } else { NtStatus::SUCCESS };
            assert_eq!(status, expected, "{user}");
        }
    });
}

#[test]
fn a_session_can_authenticate_again_as_the_same_user_only() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        client.sign = true;
        client.log_on("alice", PASSWORD).await.unwrap();
        client.open("still here", CreateOptions::NONE).await;
        assert_eq!(client.log_on("bob", PASSWORD).await.unwrap_err(), NtStatus::ACCESS_DENIED);
        client.open("still here", CreateOptions::NONE).await;
        // A failure ends the session (3.3.5.5.3).
        assert_eq!(client.log_on("alice", "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(world.server.session_count(), 0);
    });
}

/// Both round trips as the anonymous user, bare NTLM.
async fn as_nobody(client: &mut Client) -> NtStatus {
    let flags = ntlm::Flags(0xe208_8297);
    let authenticate = ntlm::Authenticate {
        flags,
        lm_response: vec![0],
        nt_response: Vec::new(),
        domain: String::new(),
        user: String::new(),
        workstation: String::new(),
        session_key: Vec::new(),
        mic: None,
    };
    let mut status = NtStatus::SUCCESS;
    for token in [ntlm::Negotiate { flags }.emit(), authenticate.emit()] {
        let setup = session_setup::Request {
            flags: session_setup::RequestFlags::NONE,
            security_mode: SecurityMode::SIGNING_ENABLED,
            capabilities: Capabilities::NONE,
            previous_session_id: 0,
            token: token.into(),
        };
        let mut request = client.request(Command::SessionSetup, |out| setup.emit(out));
        if let Some(keys) = &client.keys {
            keys.signing.sign(Sender::Client, &mut request);
        }
        client.wire.send(request);
        let header = Header::parse(&client.recv_frame().await.unwrap()).unwrap();
        client.credits += u64::from(header.credits);
        (client.session, status) = (header.session_id, header.status);
    }
    status
}

#[test]
fn nobody_gets_in_and_nobody_loses_a_session_by_proving_nothing() {
    story(async {
        let world = World::with(|config| config.limits.session_ms = Some(60_000));
        let mut client = world.client().await;
        client.sign = true;
        let kept = client.open("a", CreateOptions::NONE).await;
        // 3.3.5.5.3: a session that has a user keeps it.
        assert_eq!(as_nobody(&mut client).await, NtStatus::SUCCESS);
        assert_eq!(client.read(kept, 10).await.0, NtStatus::END_OF_FILE);
        rt::sleep(Duration::from_secs(59)).await;
        assert_eq!(as_nobody(&mut client).await, NtStatus::SUCCESS);
        rt::sleep(Duration::from_secs(2)).await;
        assert_eq!(client.read(kept, 10).await.0, NtStatus::NETWORK_SESSION_EXPIRED, "nothing was proven");
        let mut other = world.connect();
        other.negotiate(Offer { guid: [3; 16], ..Offer::default() }).await;
        assert_eq!(as_nobody(&mut other).await, NtStatus::ACCESS_DENIED);
    });
}

#[test]
fn a_session_expires_and_lives_again_after_another_authentication() {
    story(async {
        let world = World::with(|config| config.limits.session_ms = Some(60_000));
        let mut client = world.client().await;
        client.sign = true;
        let (kept, closed) =
            (client.open("a", CreateOptions::NONE).await, client.open("b", CreateOptions::NONE).await);
        rt::sleep(Duration::from_secs(59)).await;
        assert_eq!(client.read(kept, 10).await.0, NtStatus::END_OF_FILE);
        rt::sleep(Duration::from_secs(2)).await;
        for sign in [true, false] {
            client.sign = sign;
            assert_eq!(client.read(kept, 10).await.0, NtStatus::NETWORK_SESSION_EXPIRED, "signed: {sign}");
        }
        client.sign = true;
        assert_eq!(client.close(closed).await, NtStatus::SUCCESS, "3.3.5.2.9: cleaning up goes on");
        client.log_on("alice", PASSWORD).await.unwrap();
        assert_eq!(client.read(kept, 10).await.0, NtStatus::END_OF_FILE, "with the same keys");
        rt::sleep(Duration::from_secs(61)).await;
        let (header, _) = client.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
    });
}

#[test]
fn a_client_that_speaks_one_dialect_here_and_another_there_is_refused() {
    story(async {
        let world = World::new();
        let first = world.client().await;
        let mut second = world.connect();
        second.negotiate(Offer::dialect(Dialect::V2_1)).await;
        assert_eq!(second.log_on("alice", PASSWORD).await.unwrap_err(), NtStatus::USER_SESSION_DELETED);
        let mut other = world.connect();
        other.negotiate(Offer { guid: [3; 16], ..Offer::dialect(Dialect::V2_1) }).await;
        other.log_on("alice", PASSWORD).await.unwrap();
        first.wire.hang_up();
        rt::sleep(Duration::from_millis(1)).await;
        second.log_on("alice", PASSWORD).await.unwrap();
    });
}

#[test]
fn whoever_claims_to_be_a_client_does_not_choose_its_dialect() {
    story(async {
        let world = World::new();
        let mut bob = world.connect();
        bob.negotiate(Offer::dialect(Dialect::V2_1)).await;
        bob.log_on("bob", PASSWORD).await.unwrap();
        // With the same ClientGuid, which anybody on the way can read.
        let mut alice = world.client().await;
        assert!(alice.is_served().await && bob.is_served().await);
    });
}

#[test]
fn who_does_not_authenticate_in_time_is_disconnected() {
    story(async {
        let world = World::new();
        let (mut idle, mut half) = (world.connect(), world.connect());
        half.negotiate(Offer::default()).await;
        let mut good = world.client().await;
        rt::sleep(Duration::from_secs(29)).await;
        assert!(!idle.wire.closed_by_server.get() && !half.wire.closed_by_server.get());
        rt::sleep(Duration::from_secs(2)).await;
        idle.assert_closed().await;
        half.assert_closed().await;
        rt::sleep(Duration::from_secs(600)).await;
        assert!(good.is_served().await);
        // After its last session ends it has the full time again.
        good.sign = true;
        good.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
        rt::sleep(Duration::from_secs(31)).await;
        good.assert_closed().await;
    });
}

#[test]
fn passwords_cannot_be_guessed_by_trying() {
    story(async {
        let world = World::new();
        let start = rt::now();
        // From several connections at once, from the same address.
        let guess = |n: u32| {
            let world = world.clone();
            async move {
                let mut client = world.connect();
                client.negotiate(Offer::default()).await;
                client.log_on("alice", &format!("guess {n}")).await.unwrap_err()
            }
        };
        for n in 0..10 {
            assert_eq!(guess(n).await, NtStatus::LOGON_FAILURE);
        }
        assert!(rt::now() - start > Duration::from_secs(5), "{:?}", rt::now() - start);
        let crowd = futures_util::future::join_all((0..20).map(guess)).await;
        let refused = crowd.iter().filter(|status| **status == NtStatus::ACCOUNT_LOCKED_OUT).count();
        assert!(refused >= 18, "{refused} of 20");
        // The right password waits like all others, and then succeeds.
        rt::sleep(Duration::from_secs(60)).await;
        world.client().await;
        let start = rt::now();
        world.client().await;
        assert_eq!(rt::now() - start, Duration::ZERO, "forgiven");
    });
}

/// Twelve sources of wrong passwords used to lock out everybody, even with the right password and from anywhere.
#[test]
fn nobody_is_locked_out_by_the_failures_of_others() {
    story(async {
        let world = World::new();
        let attempt = |peer: String, password: &'static str| {
            let world = world.clone();
            async move {
                let mut client = world.connect_from(&peer);
                client.negotiate(Offer { guid: [3; 16], ..Offer::default() }).await;
                client.log_on("alice", password).await.map(|_| ())
            }
        };
        let attack = |round: u32| {
            futures_util::future::join_all(
                (0..60).map(|n| attempt(format!("10.6.{round}.{}:1", n % 12), "guess")),
            )
        };
        for round in 0..3 {
            for outcome in attack(round).await {
                assert!(matches!(outcome, Err(NtStatus::LOGON_FAILURE | NtStatus::ACCOUNT_LOCKED_OUT)));
            }
        }
        let start = rt::now();
        let (_, owner) = futures_util::future::join(attack(3), attempt("10.0.0.7:1".into(), PASSWORD)).await;
        assert_eq!(owner, Ok(()));
        attempt("[2001:db8::7]:1".into(), PASSWORD).await.unwrap();
        let begun = rt::now();
        attempt("10.0.0.7:2".into(), PASSWORD).await.unwrap();
        assert_eq!(rt::now() - begun, Duration::ZERO, "who was let in before does not wait");
        assert!(begun - start < Duration::from_secs(30));
    });
}

thread_local! {
    static LINES: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Appends to the thread's log.
struct Lines;

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What is logged while `story` runs, on its thread. There is one subscriber for the whole process: per-test
/// subscribers would race with other tests for the callsite state that tracing caches.
fn logged(story: impl FnOnce()) -> String {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_ansi(false)
            .with_writer(|| Lines)
            .init();
    });
    LINES.take();
    story();
    String::from_utf8(LINES.take()).unwrap()
}

#[test]
fn who_logs_on_and_who_does_not_is_logged() {
    let log = logged(|| {
        story(async {
            let world = World::new();
            for (user, password, from) in [
                ("Alice", PASSWORD, "10.0.0.7:1"),
                ("alice", "wrong", "10.0.0.8:2"),
                ("eve\nINFO logged on user=alice", "x", "10.0.0.9:3"),
            ] {
                let mut client = world.connect_from(from);
                client.negotiate(Offer { guid: [3; 16], ..Offer::default() }).await;
                assert_eq!(client.log_on(user, password).await.is_ok(), password == PASSWORD);
            }
            let mut client = world.connect_from("10.0.0.10:4");
            client.negotiate(Offer { guid: [4; 16], ..Offer::default() }).await;
            assert_eq!(as_nobody(&mut client).await, NtStatus::ACCESS_DENIED);
        });
    });
    let lines: Vec<&str> =
        log.lines().map(|line| line.split_once("server::").unwrap_or(("", line)).1).collect();
    assert_eq!(lines.len(), 4, "{log}");
    let has = |line: usize, parts: &[&str]| parts.iter().all(|part| lines[line].contains(part));
    assert!(log.lines().next().unwrap().contains(" INFO "), "{log}");
    assert!(has(0, &["logged on user=alice source=10.0.0.7:1 dialect=3.1.1"]), "{log}");
    assert!(log.lines().skip(1).all(|line| line.contains(" WARN ")), "{log}");
    assert!(
        has(1, &["log-on refused: unknown user or wrong password", "user=\"alice\" source=10.0.0.8:2"]),
        "{log}"
    );
    assert!(has(2, &[r#"user="eve\nINFO logged on user=alice" source=10.0.0.9:3"#]), "{log}");
    assert!(has(3, &["log-on refused: anonymous access is not allowed", "source=10.0.0.10:4"]), "{log}");
}

/// First round trips of log-ons that nobody completes.
async fn begin_log_on(client: &mut Client) -> NtStatus {
    let token = ntlm::Negotiate { flags: ntlm::Flags(0xe208_8297) }.emit();
    let setup = session_setup::Request {
        flags: session_setup::RequestFlags::NONE,
        security_mode: SecurityMode::SIGNING_ENABLED,
        capabilities: Capabilities::NONE,
        previous_session_id: 0,
        token: token.into(),
    };
    let session = std::mem::replace(&mut client.session, 0);
    let request = client.request(Command::SessionSetup, |out| setup.emit(out));
    client.session = session;
    client.wire.send(request);
    let header = Header::parse(&client.recv_frame().await.unwrap()).unwrap();
    client.credits += u64::from(header.credits);
    header.status
}

#[test]
fn half_open_sessions_are_bounded_in_number_and_time() {
    story(async {
        let world = World::new();
        for logged_on in [false, true] {
            let mut client = match logged_on {
                false => {
                    let mut client = world.connect();
                    client.negotiate(Offer::default()).await;
                    client
                }
                true => world.client().await,
            };
            let limits = &world.server.config.limits;
            let most = if logged_on { limits.half_open } else { limits.half_open_of_strangers };
            for n in 0..most + 3 {
                let expected = match n < most {
                    true => NtStatus::MORE_PROCESSING_REQUIRED,
                    false => NtStatus::INSUFFICIENT_RESOURCES,
                };
                assert_eq!(begin_log_on(&mut client).await, expected, "{n}");
            }
            if logged_on {
                // Abandoned ones make room.
                rt::sleep(Duration::from_secs(31)).await;
                assert_eq!(begin_log_on(&mut client).await, NtStatus::MORE_PROCESSING_REQUIRED);
            }
        }
    });
}

#[test]
fn strangers_get_few_credits_and_short_messages() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        for _ in 0..40 {
            assert!(client.is_served().await);
        }
        let most = u64::from(world.server.config.limits.credits_of_strangers);
        assert_eq!(client.credits - client.next_id, most);
        client.log_on("alice", PASSWORD).await.unwrap();
        for _ in 0..3 {
            client.sign = true;
            assert!(client.is_served().await);
        }
        assert!(client.credits - client.next_id > most);
        let mut stranger = world.connect();
        stranger.negotiate(Offer::default()).await;
        let request = stranger.request(Command::Write, |out| out.resize(65_537, 0));
        stranger.wire.send(request);
        stranger.assert_closed().await;
        assert!(client.is_served().await);
    });
}
