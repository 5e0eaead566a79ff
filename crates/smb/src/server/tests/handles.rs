//! What clients hold beyond a request: oplocks, leases, durable handles; how they are broken, and attempts to steal
//! them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use weft_machine::budget::Holder;
use weft_machine::{Source, rt};
use weft_store::NodeId;
use weft_store::opens::Access;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{self, CreateAction, CreateDisposition, CreateOptions, OplockLevel};
use weft_wire::smb2::create_context::{
    DurableFlags, Lease, LeaseFlags, LeaseState, LeaseV2, RequestContext, ResponseContext,
};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::Rename;
use weft_wire::smb2::lock;
use weft_wire::smb2::oplock_break::{ACK_REQUIRED, Acknowledgment, Notification};
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::{
    Command, FileId, Guid, Header, Id, NtStatus, ioctl, logoff, set_info, tree_disconnect,
};

use super::harness::*;
use crate::auth::Secret;
use crate::server::User;

const KEY: Guid = [0x11; 16];
const CREATE: Guid = [0x22; 16];
const RWH: LeaseState =
    LeaseState(LeaseState::READ_CACHING.0 | LeaseState::WRITE_CACHING.0 | LeaseState::HANDLE_CACHING.0);
const RH: LeaseState = LeaseState(LeaseState::READ_CACHING.0 | LeaseState::HANDLE_CACHING.0);

/// A client with its own ClientGuid, logged on as `user`.
async fn client(world: &World, guid: u8, user: &str) -> Client {
    let mut client = world.connect();
    client.negotiate(Offer { guid: [guid; 16], ..Offer::default() }).await;
    client.log_on(user, PASSWORD).await.unwrap();
    client.tree().await;
    client
}

/// The same from an address; it signs.
async fn client_at(world: &World, peer: &str, guid: u8, user: &str) -> Client {
    let mut client = world.connect_from(peer);
    client.negotiate(Offer { guid: [guid; 16], ..Offer::default() }).await;
    client.log_on(user, PASSWORD).await.unwrap();
    client.sign = true;
    client.tree().await;
    client
}

fn with_oplock(oplock: OplockLevel, contexts: Vec<RequestContext>) -> create::Request {
    create::Request { oplock, contexts, ..create_request("f", CreateOptions::NONE) }
}

fn lease(key: Guid, state: LeaseState) -> RequestContext {
    let v2 = Some(LeaseV2 { parent_key: [0; 16], epoch: 7 });
    RequestContext::Lease(Lease { key, state, flags: LeaseFlags::NONE, v2 })
}

fn durable(timeout_ms: u32) -> RequestContext {
    RequestContext::DurableV2 { timeout_ms, flags: DurableFlags::NONE, create_guid: CREATE }
}

fn reconnect(file: FileId) -> RequestContext {
    RequestContext::DurableReconnectV2 { file, create_guid: CREATE, flags: DurableFlags::NONE }
}

async fn create(client: &mut Client, request: &create::Request) -> Result<create::Response, NtStatus> {
    let (header, body) = client.call(Command::Create, |out| request.emit(out)).await;
    finished(&header, &body)
}

fn finished(header: &Header, body: &bytes::Bytes) -> Result<create::Response, NtStatus> {
    match header.status {
        NtStatus::SUCCESS => Ok(create::Response::parse(body).unwrap()),
        status => Err(status),
    }
}

/// Sends a CREATE that must wait: there is an interim response.
async fn begin(client: &mut Client, request: &create::Request) {
    let (header, _) = client.call(Command::Create, |out| request.emit(out)).await;
    assert_eq!(header.status, NtStatus::PENDING);
    assert!(matches!(header.id, Id::Async(_)));
}

async fn end(client: &mut Client) -> Result<create::Response, NtStatus> {
    let (header, body) = client.recv().await.unwrap();
    finished(&header, &body)
}

async fn told(client: &mut Client) -> Notification {
    let (header, body) = client.recv().await.unwrap();
    assert_eq!((header.command, header.message_id), (Command::OplockBreak, u64::MAX));
    Notification::parse(&body).unwrap()
}

async fn acknowledge(client: &mut Client, what: Acknowledgment) -> NtStatus {
    client.status(Command::OplockBreak, |out| what.emit(out)).await
}

fn lease_of(response: &create::Response) -> Lease {
    let lease = response.contexts.iter().find_map(|context| match context {
        ResponseContext::Lease(lease) => Some(*lease),
        _ => None,
    });
    lease.expect("a lease")
}

fn is_durable(response: &create::Response) -> bool {
    response
        .contexts
        .iter()
        .any(|c| matches!(c, ResponseContext::DurableV2 { .. } | ResponseContext::Durable))
}

/// A durable handle of alice's, whose connection is lost.
async fn lost(world: &World, timeout_ms: u32) -> create::Response {
    let mut alice = client(world, 1, "alice").await;
    let request = with_oplock(OplockLevel::BATCH, vec![durable(timeout_ms)]);
    let opened = create(&mut alice, &request).await.unwrap();
    assert!(is_durable(&opened));
    assert_eq!(alice.write(opened.file, b"content").await, NtStatus::SUCCESS);
    alice.wire.hang_up();
    alice.assert_closed().await;
    rt::yield_now().await;
    opened
}

async fn back(client: &mut Client, file: FileId) -> Result<create::Response, NtStatus> {
    create(client, &with_oplock(OplockLevel::NONE, vec![reconnect(file)])).await
}

#[test]
fn no_part_of_a_handle_is_zero() {
    story(async {
        let world = World::new();
        let mut alice = client(&world, 1, "alice").await;
        for _ in 0..2 {
            let opened = create(&mut alice, &with_oplock(OplockLevel::NONE, Vec::new())).await.unwrap();
            assert!(opened.file.persistent != 0 && opened.file.volatile != 0, "{:?}", opened.file);
        }
    });
}

#[test]
fn an_oplock_is_broken_before_another_opens_the_file() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let held = create(&mut alice, &with_oplock(OplockLevel::BATCH, Vec::new())).await.unwrap();
        assert_eq!(held.oplock, OplockLevel::BATCH);
        let early = Acknowledgment::Oplock { level: OplockLevel::II, file: held.file };
        assert_eq!(acknowledge(&mut alice, early).await, NtStatus::INVALID_DEVICE_STATE, "3.3.5.22.1");
        begin(&mut bob, &with_oplock(OplockLevel::II, Vec::new())).await;
        assert_eq!(told(&mut alice).await, Notification::Oplock { level: OplockLevel::II, file: held.file });
        // Cached data is written now, and bob sees it.
        assert_eq!(alice.write(held.file, b"kept back").await, NtStatus::SUCCESS);
        let agreed = Acknowledgment::Oplock { level: OplockLevel::II, file: held.file };
        assert_eq!(acknowledge(&mut alice, agreed).await, NtStatus::SUCCESS);
        let opened = end(&mut bob).await.unwrap();
        assert_eq!((opened.oplock, opened.summary.end_of_file), (OplockLevel::II, 9));
        assert_eq!(acknowledge(&mut alice, agreed).await, NtStatus::INVALID_OPLOCK_PROTOCOL);
        // A write breaks both without asking.
        assert_eq!(bob.write(opened.file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(
            told(&mut alice).await,
            Notification::Oplock { level: OplockLevel::NONE, file: held.file }
        );
        let none = Notification::Oplock { level: OplockLevel::NONE, file: opened.file };
        assert_eq!(told(&mut bob).await, none);
    });
}

#[test]
fn an_open_that_waits_for_an_oplock_is_cancelled_or_outlasts_it() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let held = create(&mut alice, &with_oplock(OplockLevel::BATCH, Vec::new())).await.unwrap();
        let wish = with_oplock(OplockLevel::NONE, Vec::new());
        let (header, _) = bob.call(Command::Create, |out| wish.emit(out)).await;
        told(&mut alice).await;
        let mut cancel = Header::request(Command::Cancel, header.message_id);
        (cancel.session_id, cancel.id) = (bob.session, header.id);
        let mut message = cancel.to_bytes().to_vec();
        weft_wire::smb2::cancel::Request.emit(&mut message);
        bob.send(message);
        assert_eq!(end(&mut bob).await.unwrap_err(), NtStatus::CANCELLED);
        // Alice never answers: after 35 seconds the request proceeds.
        let begun = rt::now();
        begin(&mut bob, &wish).await;
        end(&mut bob).await.unwrap();
        assert!((rt::now() - begun).as_secs() <= 35);
        let late = Acknowledgment::Oplock { level: OplockLevel::II, file: held.file };
        assert_eq!(acknowledge(&mut alice, late).await, NtStatus::INVALID_OPLOCK_PROTOCOL);
    });
}

#[test]
fn a_lease_is_one_for_all_opens_of_its_key() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let first = with_oplock(OplockLevel::LEASE, vec![lease(KEY, RH)]);
        let opened = create(&mut alice, &first).await.unwrap();
        assert_eq!((opened.oplock, lease_of(&opened).state), (OplockLevel::LEASE, RH));
        let more = with_oplock(OplockLevel::LEASE, vec![lease(KEY, RWH)]);
        let again = create(&mut alice, &more).await.unwrap();
        assert_eq!(lease_of(&again).state, RWH);
        assert_eq!(lease_of(&again).v2.unwrap().epoch, lease_of(&opened).v2.unwrap().epoch + 1);
        // The key belongs to this file, even while the other one does not exist.
        let other = create::Request { name: "g".into(), ..more.clone() };
        assert_eq!(create(&mut alice, &other).await.unwrap_err(), NtStatus::INVALID_PARAMETER);
        assert_eq!(
            create(&mut alice, &create_request("g", CreateOptions::NONE)).await.unwrap().action,
            CreateAction::CREATED
        );
        // Bob's key with the same value is a different one.
        begin(&mut bob, &more).await;
        let epoch = lease_of(&again).v2.unwrap().epoch + 1;
        let expected = Notification::Lease { epoch, flags: ACK_REQUIRED, key: KEY, current: RWH, new: RH };
        assert_eq!(told(&mut alice).await, expected);
        let breaking = create(&mut alice, &first).await.unwrap();
        assert!(lease_of(&breaking).flags.contains(LeaseFlags::BREAK_IN_PROGRESS));
        let keep = |state| Acknowledgment::Lease { key: KEY, state };
        assert_eq!(acknowledge(&mut bob, keep(RH)).await, NtStatus::UNSUCCESSFUL);
        let nobodys = Acknowledgment::Lease { key: [0x44; 16], state: RH };
        assert_eq!(acknowledge(&mut bob, nobodys).await, NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(acknowledge(&mut alice, keep(RWH)).await, NtStatus::REQUEST_NOT_ACCEPTED);
        assert_eq!(acknowledge(&mut alice, keep(RH)).await, NtStatus::SUCCESS);
        assert_eq!(acknowledge(&mut alice, keep(RH)).await, NtStatus::UNSUCCESSFUL);
        assert_eq!(lease_of(&end(&mut bob).await.unwrap()).state, RH);
    });
}

#[test]
fn a_copied_client_guid_and_key_give_nobody_anothers_lease() {
    story(async {
        let carol = User::new("carol", Secret::password(PASSWORD));
        let world = World::with(|config| config.users.push(carol));
        let mut mallory = client_at(&world, "192.0.2.66:700", 1, "bob").await;
        let leased = |name: &str, state| create::Request {
            name: name.into(),
            ..with_oplock(OplockLevel::LEASE, vec![lease(KEY, state)])
        };
        create(&mut mallory, &leased("mallorys", RWH)).await.unwrap();
        let mut alice = client_at(&world, "192.0.2.1:700", 1, "alice").await;
        let opened = create(&mut alice, &leased("f", RWH)).await.unwrap();
        assert_eq!(lease_of(&opened).state, RWH, "whatever mallory, who was first, has opened by it");
        // Somebody opens the file: alice is told, and only she can acknowledge that.
        let mut other = client_at(&world, "192.0.2.2:700", 2, "alice").await;
        begin(&mut other, &create_request("f", CreateOptions::NONE)).await;
        assert!(matches!(
            told(&mut alice).await,
            Notification::Lease { key: KEY, current: RWH, new: RH, .. }
        ));
        let keep = |state| Acknowledgment::Lease { key: KEY, state };
        assert_eq!(
            acknowledge(&mut mallory, keep(RH)).await,
            NtStatus::UNSUCCESSFUL,
            "that of his own lease"
        );
        assert!(!other.wire.is_answered(), "it waits for alice");
        assert_eq!(acknowledge(&mut alice, keep(RH)).await, NtStatus::SUCCESS);
        let opened = end(&mut other).await.unwrap();
        assert_eq!(other.close(opened.file).await, NtStatus::SUCCESS);
        assert_eq!(lease_of(&create(&mut alice, &leased("f", RWH)).await.unwrap()).state, RWH);
        begin(&mut mallory, &create_request("f", CreateOptions::NONE)).await;
        told(&mut alice).await;
        assert_eq!(acknowledge(&mut alice, keep(RH)).await, NtStatus::SUCCESS);
        end(&mut mallory).await.unwrap();
        // The users of one host share a lease, as those of a terminal server do.
        let mut carol = client_at(&world, "192.0.2.1:701", 1, "carol").await;
        assert_eq!(acknowledge(&mut carol, keep(RH)).await, NtStatus::OBJECT_NAME_NOT_FOUND, "not yet");
        assert_eq!(lease_of(&create(&mut carol, &leased("f", RH)).await.unwrap()).state, RH);
        assert_eq!(acknowledge(&mut carol, keep(RH)).await, NtStatus::UNSUCCESSFUL, "nothing is broken");
        assert!(alice.is_served().await, "no break came before this answer");
    });
}

#[test]
fn a_durable_handle_comes_back_once_to_whom_it_belongs() {
    story(async {
        let world = World::new();
        let opened = lost(&world, 0).await;
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        // Not for another user, under another CREATE, or for a guessed FileId.
        assert_eq!(back(&mut bob, opened.file).await.unwrap_err(), NtStatus::ACCESS_DENIED);
        let wrong = RequestContext::DurableReconnectV2 {
            file: opened.file,
            create_guid: [0x33; 16],
            flags: DurableFlags::NONE,
        };
        let wrong = with_oplock(OplockLevel::NONE, vec![wrong]);
        assert_eq!(create(&mut alice, &wrong).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        let nobodys = FileId { persistent: opened.file.persistent + 1, ..opened.file };
        assert_eq!(back(&mut alice, nobodys).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        let leased = with_oplock(OplockLevel::LEASE, vec![reconnect(opened.file), lease(KEY, RWH)]);
        assert_eq!(create(&mut alice, &leased).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        // The handle's earlier FileId is invalid now.
        assert_eq!(alice.read(opened.file, 7).await.0, NtStatus::FILE_CLOSED);
        let returned = back(&mut alice, opened.file).await.unwrap();
        assert_eq!(returned.file.persistent, opened.file.persistent);
        assert_eq!((returned.oplock, returned.action), (OplockLevel::BATCH, CreateAction::OPENED));
        assert_eq!(&alice.read(returned.file, 7).await.1[..], b"content");
        // While a session has it nobody else gets it.
        assert_eq!(back(&mut alice, opened.file).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(alice.close(returned.file).await, NtStatus::SUCCESS);
        assert_eq!(back(&mut alice, opened.file).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_durable_handle_waits_as_long_as_it_was_promised() {
    story(async {
        let world = World::new();
        let opened = lost(&world, 10_000).await;
        rt::sleep(Duration::from_millis(9_900)).await;
        let mut alice = client(&world, 1, "alice").await;
        let returned = back(&mut alice, opened.file).await.unwrap();
        // Lost again: the timeout restarts, and the earlier scavenger finds nothing to close.
        alice.wire.hang_up();
        rt::sleep(Duration::from_millis(9_900)).await;
        let mut alice = client(&world, 1, "alice").await;
        back(&mut alice, returned.file).await.unwrap();
        alice.wire.hang_up();
        rt::sleep(Duration::from_millis(10_100)).await;
        let mut alice = client(&world, 1, "alice").await;
        assert_eq!(back(&mut alice, opened.file).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        // Its oplock is gone too: nobody waits.
        create(&mut alice, &with_oplock(OplockLevel::NONE, Vec::new())).await.unwrap();
    });
}

#[test]
fn a_durable_handle_waits_on_where_its_session_has_as_many_opens_as_it_may() {
    story(async {
        let world = World::with(|config| config.limits.opens = 1);
        let opened = lost(&world, 0).await;
        let mut alice = client(&world, 1, "alice").await;
        let other = create_request("other", CreateOptions::NONE);
        let other = create(&mut alice, &other).await.unwrap();
        let full = NtStatus::TOO_MANY_OPENED_FILES;
        assert_eq!(back(&mut alice, opened.file).await.unwrap_err(), full);
        assert_eq!(alice.close(other.file).await, NtStatus::SUCCESS);
        let returned = back(&mut alice, opened.file).await.unwrap();
        assert_eq!(&alice.read(returned.file, 7).await.1[..], b"content");
    });
}

#[test]
fn a_break_that_nobody_can_be_told_of_ends_a_durable_handle() {
    story(async {
        let world = World::new();
        let opened = lost(&world, 0).await;
        let mut bob = client(&world, 2, "bob").await;
        begin(&mut bob, &with_oplock(OplockLevel::BATCH, Vec::new())).await;
        let his = end(&mut bob).await.unwrap();
        assert_eq!(his.oplock, OplockLevel::BATCH);
        let mut alice = client(&world, 1, "alice").await;
        assert_eq!(back(&mut alice, opened.file).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        // The same for a lease.
        assert_eq!(bob.close(his.file).await, NtStatus::SUCCESS);
        let request = with_oplock(OplockLevel::LEASE, vec![lease(KEY, RWH), durable(0)]);
        let opened = create(&mut alice, &request).await.unwrap();
        assert!(is_durable(&opened));
        alice.wire.hang_up();
        alice.assert_closed().await;
        begin(&mut bob, &with_oplock(OplockLevel::BATCH, Vec::new())).await;
        assert_eq!(end(&mut bob).await.unwrap().oplock, OplockLevel::BATCH);
        let mut alice = client(&world, 1, "alice").await;
        let request = with_oplock(OplockLevel::LEASE, vec![lease(KEY, RWH), reconnect(opened.file)]);
        assert_eq!(create(&mut alice, &request).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_break_of_what_has_no_connection_waits_for_no_other_connection_of_its_client() {
    story(async {
        let world = World::new();
        let mut lost = client(&world, 1, "alice").await;
        let request = with_oplock(OplockLevel::LEASE, vec![lease(KEY, RH), durable(0)]);
        let opened = create(&mut lost, &request).await.unwrap();
        // Breaks can be sent over this one as well.
        let mut alice = client(&world, 1, "alice").await;
        create(&mut alice, &by_lease("other", 9, RWH)).await.unwrap();
        lost.wire.hang_up();
        lost.assert_closed().await;
        let began = rt::now();
        let mut bob = client(&world, 2, "bob").await;
        let alone = create::Request {
            share_access: weft_wire::smb2::access::ShareAccess::NONE,
            ..with_oplock(OplockLevel::NONE, Vec::new())
        };
        begin(&mut bob, &alone).await;
        end(&mut bob).await.unwrap();
        assert!(rt::now().since(began) < Duration::from_secs(5), "nobody would have acknowledged it");
        let request = with_oplock(OplockLevel::LEASE, vec![lease(KEY, RH), reconnect(opened.file)]);
        assert_eq!(create(&mut alice, &request).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_reconnect_and_a_break_meet() {
    // Either one gets the handle, whoever comes first; the other is told.
    for seed in 0..50 {
        weft_machine::sim::Sim::new(seed).run(async {
            let world = World::new();
            let opened = lost(&world, 0).await;
            let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
            let wish = with_oplock(OplockLevel::NONE, Vec::new());
            let again = with_oplock(OplockLevel::NONE, vec![reconnect(opened.file)]);
            let (mine, theirs) = (
                alice.request(Command::Create, |out| again.emit(out)),
                bob.request(Command::Create, |out| wish.emit(out)),
            );
            match seed % 2 {
                0 => (alice.send(mine), bob.send(theirs)),
                _ => (bob.send(theirs), alice.send(mine)),
            };
            let (header, body) = alice.recv().await.unwrap();
            let (interim, _) = bob.recv().await.unwrap();
            assert_eq!(interim.status, NtStatus::PENDING);
            if let Ok(returned) = finished(&header, &body) {
                // She has it, and is notified of him.
                assert!(matches!(told(&mut alice).await, Notification::Oplock { .. }));
                let agreed = Acknowledgment::Oplock { level: OplockLevel::NONE, file: returned.file };
                assert_eq!(acknowledge(&mut alice, agreed).await, NtStatus::SUCCESS);
                assert_eq!(&alice.read(returned.file, 7).await.1[..], b"content");
            } else {
                assert_eq!(header.status, NtStatus::OBJECT_NAME_NOT_FOUND);
            }
            end(&mut bob).await.unwrap();
        });
    }
}

#[test]
fn what_is_not_kept() {
    story(async {
        let world = World::new();
        let mut alice = client(&world, 1, "alice").await;
        // Without handle caching nothing is durable.
        for oplock in [OplockLevel::NONE, OplockLevel::II, OplockLevel::EXCLUSIVE] {
            let opened =
                create(&mut alice, &with_oplock(oplock, vec![RequestContext::Durable])).await.unwrap();
            assert!(!is_durable(&opened), "{oplock:?}");
            assert_eq!(alice.close(opened.file).await, NtStatus::SUCCESS);
        }
        // Contexts that contradict each other.
        for contexts in [
            vec![durable(0), RequestContext::Durable],
            vec![durable(0), reconnect(FileId { persistent: 1, volatile: 1 })],
        ] {
            let answer = create(&mut alice, &with_oplock(OplockLevel::BATCH, contexts)).await;
            assert_eq!(answer.unwrap_err(), NtStatus::INVALID_PARAMETER);
        }
        // Disconnecting a tree closes its handles; losing a session does not.
        let request = with_oplock(OplockLevel::BATCH, vec![durable(0)]);
        let opened = create(&mut alice, &request).await.unwrap();
        let left = alice.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
        assert_eq!(left, NtStatus::SUCCESS);
        alice.tree().await;
        assert_eq!(back(&mut alice, opened.file).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        let opened = create(&mut alice, &request).await.unwrap();
        assert_eq!(alice.status(Command::Logoff, |out| logoff::Request.emit(out)).await, NtStatus::SUCCESS);
        let mut alice = client(&world, 1, "alice").await;
        back(&mut alice, opened.file).await.unwrap();
    });
}

#[test]
fn a_file_to_be_deleted_goes_with_its_durable_handle() {
    story(async {
        let world = World::new();
        let mut alice = client(&world, 1, "alice").await;
        let options = CreateOptions::DELETE_ON_CLOSE;
        let request = with_oplock(OplockLevel::BATCH, vec![durable(0)]);
        let opened = create(&mut alice, &create::Request { options, ..request }).await.unwrap();
        assert_eq!(alice.write(opened.file, b"content").await, NtStatus::SUCCESS);
        alice.wire.hang_up();
        alice.assert_closed().await;
        // A new client does not see it, and creates a new file.
        let mut bob = client(&world, 2, "bob").await;
        begin(&mut bob, &with_oplock(OplockLevel::NONE, Vec::new())).await;
        let made = end(&mut bob).await.unwrap();
        assert_eq!((made.action, made.summary.end_of_file), (CreateAction::CREATED, 0));
    });
}

#[test]
fn a_create_that_comes_again_opens_nothing_twice() {
    story(async {
        let world = World::new();
        let mut alice = client(&world, 1, "alice").await;
        let disposition = CreateDisposition::Create;
        let request = create::Request { disposition, ..with_oplock(OplockLevel::BATCH, vec![durable(0)]) };
        let opened = create(&mut alice, &request).await.unwrap();
        alice.replay = true;
        let again = create(&mut alice, &request).await.unwrap();
        assert_eq!((again.file, again.action), (opened.file, CreateAction::CREATED));
        assert!(is_durable(&again));
        // Another client's CREATE with the same GUID is independent.
        let mut bob = client(&world, 2, "bob").await;
        bob.replay = true;
        assert_eq!(create(&mut bob, &request).await.unwrap_err(), NtStatus::OBJECT_NAME_COLLISION);
        // Without the flag it is not a repetition, and once the handle was used the CREATE cannot be repeated.
        alice.replay = false;
        assert_eq!(create(&mut alice, &request).await.unwrap_err(), NtStatus::DUPLICATE_OBJECTID);
        assert_eq!(alice.write(opened.file, b"x").await, NtStatus::SUCCESS);
        alice.replay = true;
        assert_eq!(create(&mut alice, &request).await.unwrap_err(), NtStatus::OBJECT_NAME_COLLISION);
    });
}

/// Otherwise its client would believe that there is no such name, and the open would stay.
#[test]
fn a_create_that_comes_again_finds_its_open_although_the_file_has_lost_its_name() {
    story(async {
        let world = World::new();
        let mut alice = client(&world, 1, "alice").await;
        let contexts = vec![durable(0), RequestContext::MaximalAccess(None)];
        let request = with_oplock(OplockLevel::NONE, contexts);
        let opened = create(&mut alice, &request).await.unwrap();
        // As NFS removes it.
        let vfs = world.server.shares.now()[0].vfs.clone();
        vfs.remove(NodeId::ROOT, b"f").await.unwrap();
        alice.replay = true;
        let again = create(&mut alice, &request).await.unwrap();
        assert_eq!((again.file, again.action), (opened.file, CreateAction::CREATED));
        alice.replay = false;
        assert_eq!(alice.close(opened.file).await, NtStatus::SUCCESS);
    });
}

#[test]
fn a_create_outlasts_the_channel_that_it_came_by() {
    story(async {
        let world = World::new();
        let (mut bob, mut alice) = (client(&world, 2, "bob").await, client(&world, 1, "alice").await);
        let mut other = world.connect();
        other.negotiate(Offer { guid: [1; 16], ..Offer::default() }).await;
        other.bind(&alice).await.unwrap();
        (other.tree, other.sign, other.replay) = (alice.tree, true, true);
        let held = create(&mut bob, &with_oplock(OplockLevel::BATCH, Vec::new())).await.unwrap();
        let request = with_oplock(OplockLevel::NONE, vec![durable(0)]);
        begin(&mut alice, &request).await;
        told(&mut bob).await;
        assert_eq!(create(&mut other, &request).await.unwrap_err(), NtStatus::FILE_NOT_AVAILABLE);
        alice.wire.hang_up();
        alice.assert_closed().await;
        assert_eq!(create(&mut other, &request).await.unwrap_err(), NtStatus::FILE_NOT_AVAILABLE);
        assert_eq!(bob.close(held.file).await, NtStatus::SUCCESS);
        rt::yield_now().await;
        let opened = create(&mut other, &request).await.unwrap();
        assert_eq!(other.close(opened.file).await, NtStatus::SUCCESS);
    });
}

#[test]
fn a_directory_is_cached_until_others_change_it() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let dir = create::Request {
            name: "d".into(),
            options: CreateOptions::DIRECTORY_FILE,
            ..with_oplock(OplockLevel::LEASE, vec![lease(KEY, RWH), durable(0)])
        };
        let opened = create(&mut alice, &dir).await.unwrap();
        assert_eq!(lease_of(&opened).state, RH, "there is nothing to write back");
        assert!(!is_durable(&opened));
        // Changes that its own client makes and declares do not break it.
        let v2 = Some(LeaseV2 { parent_key: KEY, epoch: 0 });
        let flags = LeaseFlags::PARENT_LEASE_KEY_SET;
        let own = RequestContext::Lease(Lease { key: [0x55; 16], state: RWH, flags, v2 });
        let own = create::Request { name: "d\\own".into(), ..with_oplock(OplockLevel::LEASE, vec![own]) };
        let file = create(&mut alice, &own).await.unwrap().file;
        assert_eq!(alice.write(file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        assert!(alice.is_served().await, "no break came before this answer");
        // Looking does not break it; a new name does, without waiting.
        let look = create::Request { contexts: Vec::new(), oplock: OplockLevel::NONE, ..dir.clone() };
        create(&mut bob, &look).await.unwrap();
        let theirs = create_request("d\\theirs", CreateOptions::NONE);
        create(&mut bob, &theirs).await.unwrap();
        let epoch = lease_of(&opened).v2.unwrap().epoch + 1;
        let (current, new) = (RH, LeaseState::NONE);
        let expected = Notification::Lease { epoch, flags: ACK_REQUIRED, key: KEY, current, new };
        assert_eq!(told(&mut alice).await, expected);
        let agreed = Acknowledgment::Lease { key: KEY, state: LeaseState::NONE };
        assert_eq!(acknowledge(&mut alice, agreed).await, NtStatus::SUCCESS);
        // Changes through any protocol count.
        let dir = create::Request { contexts: vec![lease(KEY, RWH)], ..dir };
        let again = create(&mut alice, &dir).await.unwrap();
        assert_eq!(lease_of(&again).state, RH);
        let vfs = &world.server.shares.now()[0].vfs.clone();
        let d = vfs.lookup(weft_store::NodeId::ROOT, b"d", false).await.unwrap().node;
        vfs.remove(d, b"own").await.unwrap();
        assert!(matches!(told(&mut alice).await, Notification::Lease { new: LeaseState::NONE, .. }));
    });
}

#[test]
fn a_break_that_is_not_acknowledged_goes_out_by_the_next_channel() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let mut other = world.connect();
        other.negotiate(Offer { guid: [1; 16], ..Offer::default() }).await;
        other.bind(&alice).await.unwrap();
        (other.tree, other.sign) = (alice.tree, true);
        let held = create(&mut alice, &with_oplock(OplockLevel::BATCH, Vec::new())).await.unwrap();
        let begun = rt::now();
        begin(&mut bob, &with_oplock(OplockLevel::NONE, Vec::new())).await;
        // The first channel swallows it; the second gets it in time.
        let expected = Notification::Oplock { level: OplockLevel::II, file: held.file };
        assert_eq!(told(&mut other).await, expected);
        assert_eq!((rt::now() - begun).as_secs(), 5);
        let agreed = Acknowledgment::Oplock { level: OplockLevel::NONE, file: held.file };
        assert_eq!(acknowledge(&mut other, agreed).await, NtStatus::SUCCESS);
        end(&mut bob).await.unwrap();
        assert_eq!(told(&mut alice).await, expected);
    });
}

fn by_lease(name: &str, key: u8, state: LeaseState) -> create::Request {
    create::Request { name: name.into(), ..with_oplock(OplockLevel::LEASE, vec![lease([key; 16], state)]) }
}

/// Sends a SET_INFO without waiting for its answer.
fn begin_rename(client: &mut Client, file: FileId, to: &str, replace_if_exists: bool) {
    let mut buffer = Vec::new();
    Rename { replace_if_exists, root_directory: 0, name: to.into() }.emit(&mut buffer);
    let request = set_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::RENAME.0,
        additional_information: 0,
        file,
        buffer: buffer.into(),
    };
    let message = client.request(Command::SetInfo, |out| request.emit(out));
    client.send(message);
}

/// The answer, which is the only message: a SET_INFO has no interim response.
async fn renamed(client: &mut Client) -> NtStatus {
    let (header, _) = client.recv().await.unwrap();
    assert_eq!(header.command, Command::SetInfo);
    assert_ne!(header.status, NtStatus::PENDING);
    header.status
}

async fn told_of(client: &mut Client, wanted: u8) -> LeaseState {
    match told(client).await {
        Notification::Lease { key, new, flags: ACK_REQUIRED, .. } if key == [wanted; 16] => new,
        other => panic!("{other:?}"),
    }
}

/// Records how many messages had been sent when it was woken.
#[derive(Default)]
struct WokenAt(AtomicUsize);

impl Wake for WokenAt {
    fn wake(self: Arc<Self>) {
        self.0.store(SENT.get(), Ordering::Relaxed);
    }
}

/// On a server with several cores, woken tasks run at once.
#[test]
fn whoever_gives_way_is_answered_before_others_go_on() {
    for by_lease in [true, false] {
        story(async {
            let world = World::new();
            let mut holder = client(&world, 1, "bob").await;
            let wish = match by_lease {
                true => with_oplock(OplockLevel::LEASE, vec![lease(KEY, RH)]),
                false => with_oplock(OplockLevel::BATCH, Vec::new()),
            };
            let held = create(&mut holder, &wish).await.unwrap().file;
            let vfs = &world.server.shares.now()[0].vfs.clone();
            let node = vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().node;
            let woken = Arc::new(WokenAt::default());
            let mut waits = pin!(vfs.opens().clear(node, None, Access::Rename));
            let waker = Waker::from(woken.clone());
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let agreed = match told(&mut holder).await {
                Notification::Lease { key, new, .. } => Acknowledgment::Lease { key, state: new },
                Notification::Oplock { level, .. } => Acknowledgment::Oplock { level, file: held },
            };
            let before = SENT.get();
            assert_eq!(acknowledge(&mut holder, agreed).await, NtStatus::SUCCESS);
            waits.await.unwrap();
            while woken.0.load(Ordering::Relaxed) == 0 {
                rt::yield_now().await;
            }
            assert_eq!(woken.0.load(Ordering::Relaxed), before + 1, "by lease: {by_lease}");
        });
    }
}

#[test]
fn a_directory_moves_when_handles_below_it_are_kept_for_caches_alone() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let dir = alice.open("d", CreateOptions::DIRECTORY_FILE).await;
        let one = create(&mut bob, &by_lease("d\\1", 1, RH)).await.unwrap().file;
        let two = create(&mut bob, &by_lease("d\\2", 2, RH)).await.unwrap().file;
        // They are recalled one after the other, and closed.
        begin_rename(&mut alice, dir, "moved", false);
        assert_eq!(told_of(&mut bob, 1).await, LeaseState::READ_CACHING);
        assert_eq!(bob.close(one).await, NtStatus::SUCCESS);
        assert_eq!(told_of(&mut bob, 2).await, LeaseState::READ_CACHING);
        assert_eq!(bob.close(two).await, NtStatus::SUCCESS);
        assert_eq!(renamed(&mut alice).await, NtStatus::SUCCESS);
        // A client that keeps its handle blocks the rename.
        let one = create(&mut bob, &by_lease("moved\\1", 1, RH)).await.unwrap().file;
        begin_rename(&mut alice, dir, "again", false);
        assert_eq!(told_of(&mut bob, 1).await, LeaseState::READ_CACHING);
        let agreed = Acknowledgment::Lease { key: [1; 16], state: LeaseState::READ_CACHING };
        assert_eq!(acknowledge(&mut bob, agreed).await, NtStatus::SUCCESS);
        assert_eq!(renamed(&mut alice).await, NtStatus::ACCESS_DENIED);
        // If one blocks it anyway, no other is recalled.
        create(&mut bob, &by_lease("moved\\2", 2, RH)).await.unwrap();
        begin_rename(&mut alice, dir, "again", false);
        assert_eq!(renamed(&mut alice).await, NtStatus::ACCESS_DENIED);
        assert_eq!(bob.close(one).await, NtStatus::SUCCESS);
        assert!(bob.is_served().await, "no break came before this answer");
    });
}

#[test]
fn a_file_becomes_a_link_once_handles_that_are_kept_for_caches_are_closed() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let name = |disposition| create::Request { disposition, ..by_lease("new", 1, RWH) };
        let cached = create(&mut bob, &name(CreateDisposition::Create)).await.unwrap().file;
        let attributes = create::Request {
            desired_access: AccessMask::FILE_WRITE_ATTRIBUTES,
            ..create_request("new", CreateOptions::NONE)
        };
        let file = create(&mut alice, &attributes).await.unwrap().file;
        let mut data = 0xA000_000Cu32.to_le_bytes().to_vec();
        for field in [14u16, 0, 0, 2, 0, 2, 1, 0, u16::from(b'x')] {
            data.extend(field.to_le_bytes());
        }
        let set = ioctl::Request {
            code: ioctl::CtlCode::SET_REPARSE_POINT,
            file,
            input: data.into(),
            max_input_response: 0,
            max_output_response: 4096,
            flags: ioctl::Flags::IS_FSCTL,
        };
        let begin = |alice: &mut Client| {
            let message = alice.request(Command::Ioctl, |out| set.emit(out));
            alice.send(message);
        };
        // Who is refused for another reason disturbs nobody.
        assert_eq!(bob.write(cached, b"x").await, NtStatus::SUCCESS);
        begin(&mut alice);
        assert_ne!(alice.recv().await.unwrap().0.status, NtStatus::SUCCESS);
        assert_eq!(bob.close(cached).await, NtStatus::SUCCESS);
        let cached = create(&mut bob, &name(CreateDisposition::Overwrite)).await.unwrap().file;
        // A client that keeps its handle keeps the file.
        begin(&mut alice);
        let left = told_of(&mut bob, 1).await;
        assert_eq!(left, LeaseState::READ_CACHING | LeaseState::WRITE_CACHING);
        let agreed = Acknowledgment::Lease { key: [1; 16], state: left };
        assert_eq!(acknowledge(&mut bob, agreed).await, NtStatus::SUCCESS);
        assert_eq!(alice.recv().await.unwrap().0.status, NtStatus::SHARING_VIOLATION);
        assert_eq!(bob.close(cached).await, NtStatus::SUCCESS);
        let cached = create(&mut bob, &name(CreateDisposition::Open)).await.unwrap().file;
        begin(&mut alice);
        told_of(&mut bob, 1).await;
        assert_eq!(bob.close(cached).await, NtStatus::SUCCESS);
        assert_eq!(alice.recv().await.unwrap().0.status, NtStatus::SUCCESS);
    });
}

#[test]
fn a_batch_oplock_below_a_directory_gives_way_to_its_rename() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let dir = alice.open("d", CreateOptions::DIRECTORY_FILE).await;
        let wish = create::Request { name: "d\\f".into(), ..with_oplock(OplockLevel::BATCH, Vec::new()) };
        let held = create(&mut bob, &wish).await.unwrap().file;
        begin_rename(&mut alice, dir, "moved", false);
        let none = Notification::Oplock { level: OplockLevel::NONE, file: held };
        assert_eq!(told(&mut bob).await, none);
        assert_eq!(bob.close(held).await, NtStatus::SUCCESS);
        assert_eq!(renamed(&mut alice).await, NtStatus::SUCCESS);
    });
}

#[test]
fn what_is_kept_open_for_a_cache_alone_can_be_replaced() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let source = alice.open("source", CreateOptions::NONE).await;
        let target = create(&mut bob, &by_lease("target", 1, RWH)).await.unwrap().file;
        begin_rename(&mut alice, source, "target", true);
        let left = told_of(&mut bob, 1).await;
        assert_eq!(left, LeaseState::READ_CACHING | LeaseState::WRITE_CACHING);
        let agreed = Acknowledgment::Lease { key: [1; 16], state: left };
        assert_eq!(acknowledge(&mut bob, agreed).await, NtStatus::SUCCESS);
        assert_eq!(renamed(&mut alice).await, NtStatus::ACCESS_DENIED, "bob uses it");
        begin_rename(&mut alice, source, "target", true);
        assert_eq!(renamed(&mut alice).await, NtStatus::ACCESS_DENIED);
        assert_eq!(bob.close(target).await, NtStatus::SUCCESS);
        let target = create(&mut bob, &by_lease("target", 1, RWH)).await.unwrap().file;
        begin_rename(&mut alice, source, "target", true);
        told_of(&mut bob, 1).await;
        assert_eq!(bob.close(target).await, NtStatus::SUCCESS);
        assert_eq!(renamed(&mut alice).await, NtStatus::SUCCESS);
    });
}

#[test]
fn a_directory_that_is_kept_open_for_a_cache_alone_takes_what_is_moved_to_it() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        alice.open("f", CreateOptions::NONE).await;
        let file = alice.open("f", CreateOptions::NONE).await;
        let dir = create::Request { options: CreateOptions::DIRECTORY_FILE, ..by_lease("d", 1, RH) };
        let held = create(&mut bob, &dir).await.unwrap().file;
        begin_rename(&mut alice, file, "d\\f", false);
        assert_eq!(told_of(&mut bob, 1).await, LeaseState::READ_CACHING);
        assert_eq!(bob.close(held).await, NtStatus::SUCCESS);
        assert_eq!(renamed(&mut alice).await, NtStatus::SUCCESS);
    });
}

#[test]
fn locks_are_kept_for_a_lost_client_only_while_it_alone_writes() {
    story(async {
        let world = World::new();
        for (state, kept) in [(RWH, true), (RH, false)] {
            let mut alice = client(&world, 1, "alice").await;
            let wish = with_oplock(OplockLevel::LEASE, vec![lease(KEY, state), durable(0)]);
            let opened = create(&mut alice, &wish).await.unwrap();
            assert!(is_durable(&opened));
            let lock = lock::Request {
                sequence: 0,
                file: opened.file,
                locks: vec![lock::Element { offset: 0, length: 1, flags: lock::Flags::EXCLUSIVE_LOCK }],
            };
            assert_eq!(alice.status(Command::Lock, |out| lock.emit(out)).await, NtStatus::SUCCESS);
            alice.wire.hang_up();
            alice.assert_closed().await;
            rt::yield_now().await;
            let mut alice = client(&world, 1, "alice").await;
            let contexts = vec![lease(KEY, state), reconnect(opened.file)];
            let again = create(&mut alice, &with_oplock(OplockLevel::LEASE, contexts)).await;
            assert_eq!(again.is_ok(), kept, "{state:?}");
            if let Ok(opened) = again {
                assert_eq!(alice.close(opened.file).await, NtStatus::SUCCESS);
            }
        }
    });
}

#[test]
fn a_directory_lease_is_spared_by_whoever_names_its_key() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let dir = create::Request { options: CreateOptions::DIRECTORY_FILE, ..by_lease("d", 1, RH) };
        create(&mut alice, &dir).await.unwrap();
        let in_dir = |parent: u8| {
            let v2 = Some(LeaseV2 { parent_key: [parent; 16], epoch: 0 });
            let flags = LeaseFlags::PARENT_LEASE_KEY_SET;
            let own = RequestContext::Lease(Lease { key: [9; 16], state: RWH, flags, v2 });
            create::Request { name: "d\\f".into(), ..with_oplock(OplockLevel::LEASE, vec![own]) }
        };
        let file = create(&mut bob, &in_dir(1)).await.unwrap();
        assert_eq!(bob.write(file.file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(bob.close(file.file).await, NtStatus::SUCCESS);
        assert!(alice.is_served().await, "no break came before this answer");
        // A key of zeros is valid, and is returned ([MS-SMB2] 3.3.5.9.11).
        let file = create(&mut bob, &in_dir(0)).await.unwrap();
        assert!(lease_of(&file).flags.contains(LeaseFlags::PARENT_LEASE_KEY_SET));
        let size = set_info::Request {
            info_type: InfoType::FILE,
            class: FileClass::END_OF_FILE.0,
            additional_information: 0,
            file: file.file,
            buffer: 10u64.to_le_bytes().to_vec().into(),
        };
        assert_eq!(bob.status(Command::SetInfo, |out| size.emit(out)).await, NtStatus::SUCCESS);
        assert_eq!(told_of(&mut alice, 1).await, LeaseState::NONE);
        let agreed = Acknowledgment::Lease { key: [1; 16], state: LeaseState::NONE };
        assert_eq!(acknowledge(&mut alice, agreed).await, NtStatus::SUCCESS);
        // It was notified then: the close adds nothing.
        create(&mut alice, &dir).await.unwrap();
        assert_eq!(bob.close(file.file).await, NtStatus::SUCCESS);
        assert!(alice.is_served().await, "no break came before this answer");
    });
}

#[test]
fn a_handle_that_deletes_on_close_is_closed_when_cached_ones_are_given_up() {
    story(async {
        let world = World::new();
        let (mut alice, mut bob) = (client(&world, 1, "alice").await, client(&world, 2, "bob").await);
        let held = create(&mut bob, &by_lease("f", 1, RH)).await.unwrap().file;
        let doomed = alice.open("f", CreateOptions::DELETE_ON_CLOSE).await;
        let close = alice.request(Command::Close, |out| close_request(doomed).emit(out));
        alice.send(close);
        assert_eq!(told_of(&mut bob, 1).await, LeaseState::READ_CACHING);
        assert_eq!(bob.close(held).await, NtStatus::SUCCESS);
        let (header, _) = alice.recv().await.unwrap();
        assert_eq!((header.command, header.status), (Command::Close, NtStatus::SUCCESS));
        let again = create::Request {
            disposition: CreateDisposition::Open,
            ..create_request("f", CreateOptions::NONE)
        };
        assert_eq!(create(&mut bob, &again).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

/// Opens and locks as much as the budget allows.
async fn take_all(client: &mut Client) {
    let file = client.open("g", CreateOptions::NONE).await;
    let more = create_request("g", CreateOptions::NONE);
    while create(client, &more).await.is_ok() {}
    for offset in 0.. {
        let flags = lock::Flags::SHARED_LOCK | lock::Flags::FAIL_IMMEDIATELY;
        let locks = vec![lock::Element { offset, length: 1, flags }];
        let request = lock::Request { sequence: 0, file, locks };
        match client.status(Command::Lock, |out| request.emit(out)).await {
            NtStatus::SUCCESS => {}
            status => {
                assert_eq!(status, NtStatus::INSUFFICIENT_RESOURCES);
                return;
            }
        }
    }
}

#[test]
fn who_lost_his_connection_comes_back_where_there_is_no_room() {
    const HELD: usize = 1 << 20;
    let room = |world: &World, source, user: &str| {
        world.server.held.charge(Holder { source, user: Some(user.into()) }, 96).is_ok()
    };
    story(async {
        for who in ["alice", "bob", "others", "alice before the restart"] {
            let world = World::with(|config| config.limits.held_bytes = HELD);
            let mut alice = client(&world, 1, "alice").await;
            let durable = with_oplock(OplockLevel::BATCH, vec![durable(60_000)]);
            let opened = create(&mut alice, &durable).await.unwrap();
            let mut greedy = client(&world, 2, "bob").await;
            let mut kept = Vec::new();
            match who {
                "alice" => {
                    let mut again = client(&world, 3, "alice").await;
                    take_all(&mut again).await;
                    kept.push(again);
                }
                "bob" => take_all(&mut greedy).await,
                _ => {}
            }
            let holder = match who {
                "others" => Holder { source: Some(Source::V4([192, 0, 2, 9].into())), user: None },
                _ => Holder { source: None, user: Some("alice".into()) },
            };
            let taken = if kept.is_empty() && who != "bob" { HELD } else { 0 };
            let _taken = world.server.held.restore(holder, taken);
            assert!(!room(&world, Some(Source::Local), "alice"), "{who}");
            // Others at the same address can still log on.
            let _bob = client(&world, 4, "bob").await;
            // The server has not yet noticed the lost connection.
            let mut new = world.connect();
            new.negotiate(Offer { guid: [1; 16], ..Offer::default() }).await;
            let previous = alice.session;
            let logged_on =
                new.log_on_with("alice", PASSWORD, |setup| setup.previous_session_id = previous).await;
            assert_eq!(logged_on.map(drop), Ok(()), "{who}");
            new.tree().await;
            let returned = back(&mut new, opened.file).await;
            assert_eq!(returned.map(|file| file.file.persistent), Ok(opened.file.persistent), "{who}");
            assert_eq!(world.server.session_count(), 3 + kept.len(), "{who}: bob twice, and alice");
        }
    });
}
