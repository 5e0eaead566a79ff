//! Rights of users and groups on a share, and users who come and go while the server runs.

use weft_store::backend::ram::Ram;
use weft_store::rights::{Principal, Rights};
use weft_store::vfs::{Share, Vfs};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions};
use weft_wire::smb2::create_context::{DurableFlags, RequestContext};
use weft_wire::smb2::ioctl::{self, CtlCode, Flags};
use weft_wire::smb2::offload::{OffloadRead, OffloadReadAnswer, OffloadWrite, Token};
use weft_wire::smb2::{Command, FileId, NtStatus, tree_connect};

use super::harness::*;
use crate::auth::Secret;
use crate::server::User;

fn list(names: &[&str]) -> Option<Vec<Principal>> {
    Some(names.iter().map(|name| name.parse().unwrap()).collect())
}

fn user(name: &str, groups: &[&str]) -> User {
    User {
        name: name.into(),
        secret: Secret::password(PASSWORD),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        rid: None,
        is_server_itself: false,
    }
}

/// The share may be read by the group staff, with bob in it, and written by alice; eve has no right.
fn world() -> World {
    World::with(|config| {
        config.shares[0].rules.rights = Rights { read: list(&["@staff"]), write: list(&["alice"]) };
        config.users = vec![user("alice", &[]), user("bob", &["staff"]), user("eve", &["ops"])];
    })
}

async fn logged_on(world: &World, name: &str) -> Client {
    let mut client = world.connect();
    client.negotiate(Offer { guid: [name.as_bytes()[0]; 16], ..Offer::default() }).await;
    client.log_on(name, PASSWORD).await.unwrap();
    client
}

async fn create(client: &mut Client, request: create::Request) -> NtStatus {
    client.status(Command::Create, |out| request.emit(out)).await
}

fn opening(name: &str, access: AccessMask) -> create::Request {
    create::Request {
        desired_access: access,
        disposition: CreateDisposition::Open,
        ..create_request(name, CreateOptions::NONE)
    }
}

async fn open(client: &mut Client, name: &str, access: AccessMask) -> FileId {
    let (header, bytes) = client.call(Command::Create, |out| opening(name, access).emit(out)).await;
    assert_eq!(header.status, NtStatus::SUCCESS);
    create::Response::parse(&bytes).unwrap().file
}

#[test]
fn a_right_bounds_what_its_user_may_do_and_none_hides_the_share() {
    story(async {
        let world = world();
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        let file = alice.open("f", CreateOptions::NONE).await;
        assert_eq!(alice.write(file, b"of alice").await, NtStatus::SUCCESS);

        let mut bob = logged_on(&world, "bob").await;
        let (header, bytes) = bob.tree_connect(r"\\s\data").await;
        bob.tree = header.tree_id().unwrap();
        let most = AccessMask(tree_connect::Response::parse(&bytes).unwrap().maximal_access);
        assert!(most.contains(AccessMask::FILE_READ_DATA) && !most.contains(AccessMask::FILE_WRITE_DATA));
        let file = open(&mut bob, "f", AccessMask::FILE_READ_DATA).await;
        assert_eq!(&bob.read(file, 8).await.1[..], b"of alice");
        assert_ne!(bob.write(file, b"of bob").await, NtStatus::SUCCESS);
        for access in [
            AccessMask::FILE_WRITE_DATA,
            AccessMask::DELETE,
            AccessMask::WRITE_DAC,
            AccessMask::FILE_WRITE_EA,
        ] {
            assert_eq!(create(&mut bob, opening("f", access)).await, NtStatus::ACCESS_DENIED, "{access:?}");
        }
        assert_eq!(
            create(&mut bob, create_request("new", CreateOptions::NONE)).await,
            NtStatus::ACCESS_DENIED
        );
        let delete = create::Request {
            disposition: CreateDisposition::Open,
            ..create_request("f", CreateOptions::DELETE_ON_CLOSE)
        };
        assert_eq!(create(&mut bob, delete).await, NtStatus::ACCESS_DENIED);
        let folder = create_request("folder", CreateOptions::DIRECTORY_FILE);
        assert_eq!(create(&mut bob, folder).await, NtStatus::ACCESS_DENIED);
        let stream = create_request("f:stream", CreateOptions::NONE);
        assert_eq!(create(&mut bob, stream).await, NtStatus::ACCESS_DENIED);

        let mut eve = logged_on(&world, "eve").await;
        assert_eq!(eve.tree_connect(r"\\s\data").await.0.status, NtStatus::ACCESS_DENIED);
        assert_eq!(eve.tree_connect(r"\\s\IPC$").await.0.status, NtStatus::SUCCESS);
    });
}

#[test]
fn a_user_who_goes_away_loses_sessions_and_handles_and_others_keep_theirs() {
    story(async {
        let world = world();
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        let kept = alice.open("f", CreateOptions::NONE).await;
        let mut bob = logged_on(&world, "bob").await;
        bob.tree().await;
        let lost = open(&mut bob, "f", AccessMask::FILE_READ_DATA).await;
        let mut eve = logged_on(&world, "eve").await;

        world.server.replace_users(&[user("alice", &[]), user("eve", &["staff"])], &[]).await;
        assert_eq!(bob.read(lost, 1).await.0, NtStatus::USER_SESSION_DELETED);
        let mut again = world.connect();
        again.negotiate(Offer::default()).await;
        assert_eq!(again.log_on("bob", PASSWORD).await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(alice.write(kept, b"x").await, NtStatus::SUCCESS);
        // A right that a session gains takes effect at the next TREE_CONNECT.
        eve.tree().await;
        let file = open(&mut eve, "f", AccessMask::FILE_READ_DATA).await;

        // A right that it loses takes effect at once.
        world.server.replace_users(&[user("alice", &[]), user("eve", &[])], &[]).await;
        assert_eq!(eve.read(file, 1).await.0, NtStatus::NETWORK_NAME_DELETED);
        assert_eq!(eve.tree_connect(r"\\s\data").await.0.status, NtStatus::ACCESS_DENIED);
        assert!(alice.is_served().await && eve.is_served().await);
        assert_eq!(world.server.session_count(), 2);
    });
}

#[test]
fn a_handle_that_waits_comes_back_only_with_the_right_that_it_had() {
    story(async {
        let world = world();
        let waiting = |client: &mut Client, name: &str| {
            let guid = [name.as_bytes()[0]; 16];
            let context =
                RequestContext::DurableV2 { timeout_ms: 0, flags: DurableFlags::NONE, create_guid: guid };
            let request = create::Request {
                oplock: create::OplockLevel::BATCH,
                contexts: vec![context],
                ..create_request(name, CreateOptions::NONE)
            };
            client.request(Command::Create, |out| request.emit(out))
        };
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        let request = waiting(&mut alice, "f");
        alice.send(request);
        let (header, bytes) = alice.recv().await.unwrap();
        assert_eq!(header.status, NtStatus::SUCCESS);
        let file = create::Response::parse(&bytes).unwrap().file;
        alice.wire.hang_up();
        weft_machine::rt::sleep(std::time::Duration::from_secs(1)).await;

        let reconnect = |file| {
            let context = RequestContext::DurableReconnectV2 {
                file,
                create_guid: [b'f'; 16],
                flags: DurableFlags::NONE,
            };
            create::Request {
                oplock: create::OplockLevel::BATCH,
                contexts: vec![context],
                ..create_request("f", CreateOptions::NONE)
            }
        };
        // Meanwhile she may only read.
        world.server.replace_users(&[user("alice", &["staff"])], &[]).await;
        let mut share = Share::clone(&world.server.shares.now()[0]);
        share.rules.rights.write = list(&[]);
        world.server.replace_shares(vec![share.clone()]);
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        assert_eq!(create(&mut alice, reconnect(file)).await, NtStatus::ACCESS_DENIED);
        // Or nobody may write any more.
        share.rules.rights.write = list(&["alice"]);
        let read_only = share.vfs.clone().read_only();
        world.server.replace_shares(vec![Share { vfs: read_only, ..share.clone() }]);
        alice.tree().await;
        assert_eq!(create(&mut alice, reconnect(file)).await, NtStatus::ACCESS_DENIED);
        world.server.replace_shares(vec![share]);
        alice.tree().await;
        assert_eq!(create(&mut alice, reconnect(file)).await, NtStatus::SUCCESS);
        alice.wire.hang_up();
        weft_machine::rt::sleep(std::time::Duration::from_secs(1)).await;

        // A user who was removed has no handle, even if somebody of this name comes back.
        world.server.replace_users(&[user("bob", &[])], &[]).await;
        world.server.replace_users(&[user("alice", &[])], &[]).await;
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        assert_eq!(create(&mut alice, reconnect(file)).await, NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

/// The status of an IOCTL, and its output.
async fn ioctl(client: &mut Client, code: CtlCode, file: FileId, input: Vec<u8>) -> (NtStatus, Vec<u8>) {
    let flags = Flags::IS_FSCTL;
    let input = input.into();
    let request =
        ioctl::Request { code, file, input, max_input_response: 0, max_output_response: 4096, flags };
    let (header, bytes) = client.call(Command::Ioctl, |out| request.emit(out)).await;
    let output = ioctl::Response::parse(&bytes).map(|response| response.output.to_vec());
    (header.status, output.unwrap_or_default())
}

/// A token of a file's first sector.
async fn token(client: &mut Client, file: FileId) -> Token {
    let mut input = Vec::new();
    OffloadRead { size: OffloadRead::LEN, ttl_ms: 0, offset: 0, len: 512 }.emit(&mut input);
    let (status, output) = ioctl(client, CtlCode::OFFLOAD_READ, file, input).await;
    assert_eq!(status, NtStatus::SUCCESS);
    OffloadReadAnswer::parse(&output).unwrap().token
}

async fn copy(client: &mut Client, token: &Token, to: FileId) -> NtStatus {
    let (size, token) = (OffloadWrite::LEN, Some(token.clone()));
    let mut input = Vec::new();
    OffloadWrite { size, offset: 0, len: 512, transfer_offset: 0, token }.emit(&mut input);
    ioctl(client, CtlCode::OFFLOAD_WRITE, to, input).await.0
}

#[test]
fn a_token_ends_with_the_right_to_read_its_share_and_with_the_share() {
    story(async {
        let world = World::with(|config| {
            config.shares.push(Share::new("other", Vfs::new(Ram::new(1 << 20))));
            config.users = vec![user("alice", &[]), user("bob", &[])];
        });
        let users = [user("alice", &[]), user("bob", &[])];
        let shares: Vec<Share> = world.server.shares.now().iter().map(|share| Share::clone(share)).collect();
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        let data = alice.tree;
        let from = alice.open("from", CreateOptions::NONE).await;
        assert_eq!(alice.write(from, &[1; 512]).await, NtStatus::SUCCESS);
        let first = token(&mut alice, from).await;
        alice.tree = alice.tree_connect(r"\\s\other").await.0.tree_id().unwrap();
        let to = alice.open("to", CreateOptions::NONE).await;
        assert_eq!(alice.write(to, &[2; 512]).await, NtStatus::SUCCESS);
        assert_eq!(copy(&mut alice, &first, to).await, NtStatus::SUCCESS);

        // Only bob may read the share now.
        let mut barred = shares.clone();
        barred[0].rules.rights.read = list(&["bob"]);
        world.server.replace_shares(barred);
        world.server.replace_users(&users, &[]).await;
        assert_eq!(copy(&mut alice, &first, to).await, NtStatus::INVALID_TOKEN);

        world.server.replace_shares(shares.clone());
        world.server.replace_users(&users, &[]).await;
        let other = std::mem::replace(&mut alice.tree, data);
        alice.tree().await;
        let from = open(&mut alice, "from", AccessMask::FILE_READ_DATA).await;
        let second = token(&mut alice, from).await;
        alice.tree = other;
        world.server.replace_users(&users, &[]).await;
        assert_eq!(copy(&mut alice, &second, to).await, NtStatus::SUCCESS, "nothing has changed for her");
        world.server.replace_shares(vec![shares[1].clone()]);
        world.server.replace_users(&users, &[]).await;
        assert_eq!(copy(&mut alice, &second, to).await, NtStatus::INVALID_TOKEN);
    });
}

/// An AppInstanceId is no secret, and must not give a reader the file of its writer.
#[test]
fn only_who_may_do_as_much_takes_a_file_over_from_another_instance_of_its_application() {
    story(async {
        let world = world();
        let mut alice = logged_on(&world, "alice").await;
        alice.tree().await;
        let app = |access| create::Request {
            desired_access: access,
            contexts: vec![RequestContext::AppInstance([7; 16])],
            ..create_request("f", CreateOptions::NONE)
        };
        let (header, bytes) =
            alice.call(Command::Create, |out| app(AccessMask::FILE_GENERIC_WRITE).emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        let file = create::Response::parse(&bytes).unwrap().file;
        let mut bob = logged_on(&world, "bob").await;
        bob.tree().await;
        let reads =
            create::Request { disposition: CreateDisposition::Open, ..app(AccessMask::FILE_READ_DATA) };
        assert_eq!(create(&mut bob, reads.clone()).await, NtStatus::SUCCESS);
        assert_eq!(alice.write(file, b"hers").await, NtStatus::SUCCESS, "a reader took it away");
        // Another host of hers takes it over.
        let mut again = world.connect();
        again.negotiate(Offer { guid: [8; 16], ..Offer::default() }).await;
        again.log_on("alice", PASSWORD).await.unwrap();
        again.tree().await;
        assert_eq!(create(&mut again, reads).await, NtStatus::SUCCESS);
        assert_eq!(alice.write(file, b"hers").await, NtStatus::FILE_CLOSED);
    });
}
