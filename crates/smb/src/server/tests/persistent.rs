//! Persistent and resilient handles, and applications that move between nodes.
//!
//! A server crash is simulated by dropping its tasks and connections without notice: the journal and the folder remain.

mod audited;
mod restored;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::LocalBoxFuture;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use weft_machine::budget::Holder;
use weft_store::backend::Dir;
use weft_store::vfs::{Backend, Caller, Error, Op, Outcome, Share, Vfs};
use weft_wire::smb2::access::{AccessMask, ShareAccess};
use weft_wire::smb2::create::{self, CreateAction, CreateOptions, OplockLevel};
use weft_wire::smb2::create_context::{
    DurableFlags, Lease, LeaseFlags, LeaseState, LeaseV2, RequestContext, ResponseContext,
};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::lock::{self, Element};
use weft_wire::smb2::negotiate::Capabilities;
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::{Command, Dialect, FileId, Guid, NtStatus, set_info, tree_connect, tree_disconnect};

use super::harness::*;
use crate::server::Limits;
use crate::server::held::OPEN_BYTES;
use crate::server::journal::{Cached, Gate, Journal, Record};

const KEY: Guid = [0x11; 16];
const CREATE: Guid = [0x22; 16];
const RWH: LeaseState = LeaseState(7);
const UNAVAILABLE: NtStatus = NtStatus::FILE_NOT_AVAILABLE;

/// One run of a server on this folder.
fn life<T>(dir: &Path, story_of: impl AsyncFnOnce(World) -> T) -> T {
    let (folder, state) = (dir.join("data"), dir.join("state"));
    std::fs::create_dir_all(&folder).unwrap();
    story(async {
        let world = World::with(|config| {
            config.shares = vec![
                Share::new("Data", Vfs::new(Dir::open(&folder).unwrap())),
                Share::new("Other", Vfs::new(Dir::open(&folder).unwrap())),
            ];
            config.offers.journal = Some(Journal::open(&state, "test").unwrap());
            config.offers.continuous = vec!["data".into()];
        });
        world.server.restore().await.unwrap();
        story_of(world).await
    })
}

async fn client(world: &World, guid: u8, user: &str) -> Client {
    client_at(world, "client", guid, user).await
}

async fn client_at(world: &World, peer: &str, guid: u8, user: &str) -> Client {
    let mut client = world.connect_from(peer);
    let offer = Offer { guid: [guid; 16], ..Offer::default() };
    let capabilities = offer.capabilities | Capabilities::PERSISTENT_HANDLES;
    client.negotiate(Offer { capabilities, ..offer }).await;
    client.log_on(user, PASSWORD).await.unwrap();
    client.tree().await;
    client
}

fn wish(contexts: Vec<RequestContext>) -> create::Request {
    let leased = contexts.iter().any(|context| matches!(context, RequestContext::Lease(_)));
    let oplock = if leased { OplockLevel::LEASE } else { OplockLevel::NONE };
    create::Request { oplock, contexts, ..create_request("f", CreateOptions::NONE) }
}

fn persistent() -> RequestContext {
    RequestContext::DurableV2 { timeout_ms: 30_000, flags: DurableFlags::PERSISTENT, create_guid: CREATE }
}

fn again(file: FileId) -> RequestContext {
    RequestContext::DurableReconnectV2 { file, create_guid: CREATE, flags: DurableFlags::PERSISTENT }
}

fn lease(state: LeaseState) -> RequestContext {
    let v2 = Some(LeaseV2 { parent_key: [0; 16], epoch: 7 });
    RequestContext::Lease(Lease { key: KEY, state, flags: LeaseFlags::NONE, v2 })
}

async fn create(client: &mut Client, request: &create::Request) -> Result<create::Response, NtStatus> {
    let (header, body) = client.call(Command::Create, |out| request.emit(out)).await;
    match header.status {
        NtStatus::SUCCESS => Ok(create::Response::parse(&body).unwrap()),
        status => Err(status),
    }
}

fn is_persistent(response: &create::Response) -> bool {
    response.contexts.iter().any(|context| {
        matches!(context, ResponseContext::DurableV2 { flags, .. } if flags.contains(DurableFlags::PERSISTENT))
    })
}

async fn lock(client: &mut Client, file: FileId, sequence: u32, flags: lock::Flags) -> NtStatus {
    let locks = vec![Element { offset: 10, length: 20, flags }];
    let request = lock::Request { file, sequence, locks };
    client.status(Command::Lock, |out| request.emit(out)).await
}

const EXCLUSIVE: lock::Flags = lock::Flags(lock::Flags::EXCLUSIVE_LOCK.0 | lock::Flags::FAIL_IMMEDIATELY.0);

#[test]
fn a_handle_outlives_the_server_with_its_lease_and_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    let file = life(dir.path(), async |world| {
        let mut alice = client(&world, 1, "alice").await;
        let (_, message) = alice.tree_connect(r"\\server\Data").await;
        let flag = tree_connect::ShareCapabilities::CONTINUOUS_AVAILABILITY;
        assert!(tree_connect::Response::parse(&message).unwrap().capabilities.contains(flag));
        let opened = create(&mut alice, &wish(vec![lease(RWH), persistent()])).await.unwrap();
        assert!(is_persistent(&opened));
        assert_eq!(alice.write(opened.file, b"acknowledged").await, NtStatus::SUCCESS);
        assert_eq!(lock(&mut alice, opened.file, 0x15, EXCLUSIVE).await, NtStatus::SUCCESS);
        opened.file
    });
    let file = life(dir.path(), async |world| {
        // Meanwhile nobody else gets it, by any means.
        let mut bob = client(&world, 2, "bob").await;
        assert_eq!(create(&mut bob, &wish(Vec::new())).await.unwrap_err(), UNAVAILABLE);
        let theft = create(&mut bob, &wish(vec![lease(RWH), again(file)])).await;
        assert!(theft.is_err(), "another user, another client");
        let mut alice = client(&world, 1, "alice").await;
        let plain =
            RequestContext::DurableReconnectV2 { file, create_guid: CREATE, flags: DurableFlags::NONE };
        let refused = create(&mut alice, &wish(vec![lease(RWH), plain])).await.unwrap_err();
        assert_eq!(refused, NtStatus::OBJECT_NAME_NOT_FOUND);
        let back = create(&mut alice, &wish(vec![lease(RWH), again(file)])).await.unwrap();
        assert_eq!(back.file.persistent, file.persistent);
        let state = back.contexts.iter().find_map(|context| match context {
            ResponseContext::Lease(lease) => Some(lease.state),
            _ => None,
        });
        assert_eq!(state, Some(RWH));
        // Acknowledged data is there, the lock is held, and the LOCK is known to have been carried out.
        assert_eq!(&alice.read(back.file, 100).await.1[..], b"acknowledged");
        assert_eq!(lock(&mut alice, back.file, 0x15, EXCLUSIVE).await, NtStatus::SUCCESS, "the same again");
        assert_eq!(lock(&mut alice, back.file, 0x16, EXCLUSIVE).await, NtStatus::LOCK_NOT_GRANTED);
        assert_eq!(lock(&mut alice, back.file, 0x17, lock::Flags::UNLOCK).await, NtStatus::SUCCESS);
        back.file
    });
    life(dir.path(), async |world| {
        let mut alice = client(&world, 1, "alice").await;
        let back = create(&mut alice, &wish(vec![lease(RWH), again(file)])).await.unwrap();
        assert_eq!(lock(&mut alice, back.file, 0x27, EXCLUSIVE).await, NtStatus::SUCCESS, "it was unlocked");
        assert_eq!(alice.close(back.file).await, NtStatus::SUCCESS);
    });
    life(dir.path(), async |world| {
        // A closed handle is gone.
        let mut alice = client(&world, 1, "alice").await;
        let gone = create(&mut alice, &wish(vec![lease(RWH), again(file)])).await.unwrap_err();
        assert_eq!(gone, NtStatus::OBJECT_NAME_NOT_FOUND);
        create(&mut client(&world, 2, "bob").await, &wish(Vec::new())).await.unwrap();
    });
}

#[test]
fn users_of_one_host_share_their_lease_after_a_restart() {
    let made = |create_guid| RequestContext::DurableV2 {
        timeout_ms: 30_000,
        flags: DurableFlags::PERSISTENT,
        create_guid,
    };
    let back = |file, create_guid| RequestContext::DurableReconnectV2 {
        file,
        create_guid,
        flags: DurableFlags::PERSISTENT,
    };
    let state = |opened: &create::Response| {
        let lease = opened.contexts.iter().find_map(|context| match context {
            ResponseContext::Lease(lease) => Some(lease.state),
            _ => None,
        });
        lease.unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    // Two users of a terminal server, whose client has one cache for both.
    let users = [("alice", [0x22; 16]), ("bob", [0x33; 16])];
    let files = life(dir.path(), async |world| {
        let mut files = Vec::new();
        for (user, create_guid) in users {
            let mut client = client_at(&world, "192.0.2.1:700", 1, user).await;
            let opened = create(&mut client, &wish(vec![lease(RWH), made(create_guid)])).await.unwrap();
            assert!(is_persistent(&opened), "{user}");
            assert_eq!(state(&opened), RWH, "{user}");
            files.push(opened.file);
        }
        files
    });
    // Twice: a handle that comes back keeps the address, too.
    for _ in 0..2 {
        life(dir.path(), async |world| {
            for ((user, create_guid), file) in users.iter().zip(&files) {
                let mut client = client_at(&world, "192.0.2.1:701", 1, user).await;
                let wish = wish(vec![lease(RWH), back(*file, *create_guid)]);
                let returned =
                    create(&mut client, &wish).await.unwrap_or_else(|status| panic!("{user}: {status:?}"));
                assert_eq!(state(&returned), RWH, "{user}");
            }
        });
    }
}

#[test]
fn what_is_written_down_of_a_handle_is_charged_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let below = vec!["x".repeat(250); 12];
    std::fs::create_dir_all(dir.path().join("data").join(below[1..].join("/"))).unwrap();
    let (path, path_bytes) = (below.join("\\"), below.join("/").len());
    let at = |name: &str, contexts| create::Request { name: name.into(), ..wish(contexts) };
    let charged = life(dir.path(), async |world| {
        let held = &world.server.held;
        let mut alice = client(&world, 1, "alice").await;
        let before = held.used_bytes();
        let opened = create(&mut alice, &at(&path, vec![lease(RWH), persistent()])).await.unwrap();
        assert!(is_persistent(&opened));
        let charged = held.used_bytes() - before;
        assert!(charged > OPEN_BYTES + path_bytes, "{charged}");
        // If the budget allows the open but not its path, the handle is not persistent.
        let free = Limits::default().held_bytes - held.used_bytes();
        let room = 4 * held.used_bytes() + 10 * OPEN_BYTES;
        let rest = held.restore(Holder { source: None, user: None }, free - room);
        let other = RequestContext::DurableV2 {
            timeout_ms: 30_000,
            flags: DurableFlags::PERSISTENT,
            create_guid: [0x23; 16],
        };
        let mut deep = vec!["x".repeat(250); 12];
        deep[11] = "y".into();
        let fits = held.used_bytes();
        let opened = create(&mut alice, &at(&deep.join("\\"), vec![other])).await;
        assert!(!is_persistent(&opened.unwrap()));
        assert!(held.used_bytes() - fits < path_bytes);
        drop(rest);
        charged
    });
    life(dir.path(), async |world| {
        assert_eq!(world.server.held.used_bytes(), charged, "the same after a restart");
    });
}

#[test]
fn a_create_whose_answer_was_lost_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let first = life(dir.path(), async |world| {
        create(&mut client(&world, 1, "alice").await, &wish(vec![persistent()])).await.unwrap()
    });
    life(dir.path(), async |world| {
        let mut alice = client(&world, 1, "alice").await;
        let anew = create(&mut alice, &wish(vec![persistent()])).await.unwrap_err();
        assert_eq!(anew, NtStatus::DUPLICATE_OBJECTID, "it does not say that it comes again");
        alice.replay = true;
        let second = create(&mut alice, &wish(vec![persistent()])).await.unwrap();
        alice.replay = false;
        assert!(is_persistent(&second));
        assert_eq!(second.file.persistent, first.file.persistent);
        assert_eq!(second.action, CreateAction::CREATED, "as it was told the first time");
        assert_eq!(alice.write(second.file, b"x").await, NtStatus::SUCCESS);
    });
}

/// Opens are indexed for the check in every CREATE: the file is free when the last one is gone, and two clients may
/// have chosen the same GUID.
#[test]
fn a_file_is_reserved_until_the_last_of_its_handles_is_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let handles = life(dir.path(), async |world| {
        let mut handles = Vec::new();
        for guid in [1, 2] {
            let mut client = client(&world, guid, "alice").await;
            handles.push(create(&mut client, &wish(vec![persistent()])).await.unwrap().file);
        }
        handles
    });
    life(dir.path(), async |world| {
        let mut bob = client(&world, 3, "bob").await;
        let mut clients = Vec::new();
        for (guid, file) in [1, 2].into_iter().zip(handles) {
            assert_eq!(create(&mut bob, &wish(Vec::new())).await.unwrap_err(), UNAVAILABLE);
            let mut client = client(&world, guid, "alice").await;
            create(&mut client, &wish(vec![again(file)])).await.unwrap();
            clients.push(client);
        }
        create(&mut bob, &wish(Vec::new())).await.unwrap();
    });
}

#[test]
fn a_create_that_comes_again_asks_for_the_same() {
    let dir = tempfile::tempdir().unwrap();
    life(dir.path(), async |world| {
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![persistent()])).await.unwrap().file;
        // Not used yet: the CREATE can be repeated, but only with the same parameters.
        alice.replay = true;
        assert_eq!(create(&mut alice, &wish(vec![persistent()])).await.unwrap().file, file);
        let flags = DurableFlags::NONE;
        let plain = RequestContext::DurableV2 { timeout_ms: 0, flags, create_guid: CREATE };
        assert_eq!(create(&mut alice, &wish(vec![plain])).await.unwrap_err(), NtStatus::INVALID_PARAMETER);
        alice.replay = false;
        assert_eq!(alice.write(file, b"x").await, NtStatus::SUCCESS);
        // Once its client has used it, nobody gets it a second time.
        alice.replay = true;
        assert_eq!(create(&mut alice, &wish(vec![persistent()])).await.unwrap_err(), UNAVAILABLE);
    });
    life(dir.path(), async |world| {
        let mut bob = client(&world, 2, "bob").await;
        bob.replay = true;
        let theft = create(&mut bob, &wish(vec![persistent()])).await.unwrap_err();
        assert_eq!(theft, NtStatus::ACCESS_DENIED, "another user");
        let mut alice = client(&world, 1, "alice").await;
        alice.replay = true;
        let same = wish(vec![persistent()]);
        let others = [
            create::Request { options: CreateOptions::NON_DIRECTORY_FILE, ..same.clone() },
            create::Request { desired_access: AccessMask::GENERIC_READ, ..same.clone() },
            create::Request { share_access: ShareAccess::NONE, ..same.clone() },
        ];
        for other in others {
            let mismatch = create(&mut alice, &other).await.unwrap_err();
            assert_eq!(mismatch, NtStatus::CONTEXT_MISMATCH, "{other:?}");
        }
        let back = create(&mut alice, &same).await.unwrap();
        alice.replay = false;
        assert_eq!(&alice.read(back.file, 100).await.1[..], b"x");
    });
}

/// A server whose journal can be held, and one share on this folder.
fn with_journal(folder: &Path) -> (World, Journal) {
    let journal = Journal::on(Disk::default());
    let world = World::with(|config| {
        config.shares = vec![Share::new("Data", Vfs::new(Dir::open(folder).unwrap()))];
        config.offers.journal = Some(journal.clone());
        config.offers.continuous = vec!["data".into()];
    });
    (world, journal)
}

/// A CREATE of `f` in flight, whose record is not on disk.
fn send_create(client: &mut Client, request: &create::Request) {
    let request = client.request(Command::Create, |out| request.emit(out));
    client.send(request);
}

/// Long enough for everything that needs no peer, and shorter than any wait for a client.
async fn settle() {
    weft_machine::rt::sleep(std::time::Duration::from_secs(1)).await;
}

#[test]
fn a_create_whose_client_is_lost_while_it_is_written_down_is_kept_as_long_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let (world, journal) = with_journal(dir.path());
        let gate = Gate::default();
        let held = gate.lock().await;
        journal.hold(Some(gate.clone()));
        let mut alice = client(&world, 1, "alice").await;
        send_create(&mut alice, &wish(vec![persistent()]));
        settle().await;
        alice.wire.hang_up();
        settle().await;
        assert_eq!(world.server.sessions.len(), 0);
        assert_eq!(journal.records(|_| true).unwrap().len(), 0);
        journal.hold(None);
        drop(held);
        settle().await;
        // It was carried out, and its client may repeat it.
        assert_eq!(journal.records(|_| true).unwrap().len(), 1);
        let mut bob = client(&world, 2, "bob").await;
        assert_eq!(create(&mut bob, &wish(Vec::new())).await.unwrap_err(), UNAVAILABLE);
        // The client does not return.
        weft_machine::rt::sleep(std::time::Duration::from_secs(31)).await;
        assert_eq!(journal.records(|_| true).unwrap(), []);
        assert_eq!(world.server.handles.creates(), 0);
        create(&mut bob, &wish(Vec::new())).await.unwrap();
    });
}

#[test]
fn a_create_whose_client_is_lost_while_it_is_written_down_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let (world, journal) = with_journal(dir.path());
        let gate = Gate::default();
        let held = gate.lock().await;
        journal.hold(Some(gate.clone()));
        let mut alice = client(&world, 1, "alice").await;
        let new = create::Request {
            disposition: create::CreateDisposition::Create,
            ..wish(vec![lease(RWH), persistent()])
        };
        send_create(&mut alice, &new);
        settle().await;
        alice.wire.hang_up();
        settle().await;
        journal.hold(None);
        drop(held);
        settle().await;
        let mut alice = client(&world, 1, "alice").await;
        alice.replay = true;
        let made = create(&mut alice, &new).await.unwrap();
        alice.replay = false;
        assert!(is_persistent(&made));
        assert_eq!(made.action, CreateAction::CREATED);
        assert_eq!(alice.write(made.file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(alice.close(made.file).await, NtStatus::SUCCESS);
        assert_eq!(journal.records(|_| true).unwrap(), []);
        assert_eq!(world.server.handles.creates(), 0);
    });
}

#[test]
fn a_create_whose_tree_goes_while_it_is_written_down_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let (world, journal) = with_journal(dir.path());
        let gate = Gate::default();
        let held = gate.lock().await;
        journal.hold(Some(gate.clone()));
        let mut alice = client(&world, 1, "alice").await;
        send_create(&mut alice, &wish(vec![persistent()]));
        settle().await;
        let left = alice.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
        assert_eq!(left, NtStatus::SUCCESS);
        journal.hold(None);
        drop(held);
        assert_eq!(alice.recv().await.unwrap().0.status, NtStatus::FILE_CLOSED);
        assert_eq!(journal.records(|_| true).unwrap(), []);
        assert_eq!(world.server.handles.creates(), 0);
        create(&mut client(&world, 2, "bob").await, &wish(Vec::new())).await.unwrap();
    });
}

/// Ends a persistent handle whose file is to be deleted, while its client disconnects.
async fn lost_while_it_closes(end: impl FnOnce(&mut Client, FileId)) {
    let dir = tempfile::tempdir().unwrap();
    let (world, journal) = with_journal(dir.path());
    let mut alice = client(&world, 1, "alice").await;
    let named = create_request("f", CreateOptions::DELETE_ON_CLOSE);
    let named = create::Request { contexts: vec![persistent()], ..named };
    let file = create(&mut alice, &named).await.unwrap().file;
    assert_eq!(journal.records(|_| true).unwrap().len(), 1);
    let gate = Gate::default();
    let held = gate.lock().await;
    journal.hold(Some(gate.clone()));
    end(&mut alice, file);
    settle().await;
    alice.wire.hang_up();
    settle().await;
    assert_eq!(world.server.sessions.len(), 0);
    assert!(dir.path().join("f").exists());
    journal.hold(None);
    drop(held);
    settle().await;
    assert!(!dir.path().join("f").exists());
    assert_eq!(journal.records(|_| true).unwrap(), []);
    assert_eq!(world.server.handles.creates(), 0);
    assert_eq!(world.server.shares.now()[0].vfs.opens().open_nodes(), []);
}

#[test]
fn a_close_whose_client_is_lost_is_carried_out() {
    story(lost_while_it_closes(|client, file| {
        let request = client.request(Command::Close, |out| close_request(file).emit(out));
        client.send(request);
    }));
}

#[test]
fn a_tree_disconnect_whose_client_is_lost_closes_what_is_open() {
    story(lost_while_it_closes(|client, _| {
        let request = client.request(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out));
        client.send(request);
    }));
}

#[test]
fn a_record_whose_client_was_lost_does_not_follow_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let (world, journal) = with_journal(dir.path());
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![persistent()])).await.unwrap().file;
        let gate = Gate::default();
        let held = gate.lock().await;
        // The first LOCK goes to the slow disk; the client gives up.
        journal.hold(Some(gate.clone()));
        let lock_of = |file, offset, sequence| {
            let locks = vec![Element { offset, length: 1, flags: EXCLUSIVE }];
            lock::Request { file, sequence, locks }
        };
        let first = alice.request(Command::Lock, |out| lock_of(file, 0, 0x15).emit(out));
        alice.send(first);
        settle().await;
        journal.hold(None);
        alice.wire.hang_up();
        settle().await;
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![again(file)])).await.unwrap().file;
        let second = alice.request(Command::Lock, |out| lock_of(file, 10, 0x25).emit(out));
        alice.send(second);
        settle().await;
        drop(held);
        assert_eq!(alice.recv().await.unwrap().0.status, NtStatus::SUCCESS);
        settle().await;
        let (_, record) = journal.records(|_| true).unwrap().pop().unwrap();
        assert_eq!(record.locks, [(0, 1, true), (10, 1, true)]);
    });
}

/// A disk that can run full.
#[derive(Clone, Debug, Default)]
struct Disk {
    memory: Arc<InMemoryBackend>,
    full: Arc<AtomicBool>,
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        match self.full.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.memory.sync_data(),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        match self.full.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.memory.write(offset, data),
        }
    }
}

#[test]
fn what_cannot_be_written_down_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let disk = Disk { full: full.clone(), ..Disk::default() };
    story(async {
        let world = World::with(|config| {
            config.shares = vec![Share::new("Data", Vfs::new(Dir::open(dir.path()).unwrap()))];
            config.offers.journal = Some(Journal::on(disk));
            config.offers.continuous = vec!["data".into()];
        });
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![persistent()])).await.unwrap().file;
        let mut bob = client(&world, 2, "bob").await;
        let other = create(&mut bob, &wish(Vec::new())).await.unwrap().file;
        assert_eq!(lock(&mut alice, file, 0x15, EXCLUSIVE).await, NtStatus::SUCCESS);
        full.store(true, Ordering::Release);
        let failed = NtStatus(0xC000_00E9);
        // The UNLOCK is undone, and its repetition is not taken for done.
        for _ in 0..2 {
            assert_eq!(lock(&mut alice, file, 0x16, lock::Flags::UNLOCK).await, failed);
            assert_eq!(lock(&mut bob, other, 0, EXCLUSIVE).await, NtStatus::LOCK_NOT_GRANTED);
        }
        // So is a LOCK.
        let beyond = |file, sequence| {
            let locks = vec![Element { offset: 100, length: 1, flags: EXCLUSIVE }];
            lock::Request { file, sequence, locks }
        };
        let mine = beyond(file, 0x27);
        assert_eq!(alice.status(Command::Lock, |out| mine.emit(out)).await, failed);
        let his = beyond(other, 0);
        assert_eq!(bob.status(Command::Lock, |out| his.emit(out)).await, NtStatus::SUCCESS);
        // And a file marked for deletion stays.
        let delete = set_info::Request {
            info_type: InfoType::FILE,
            class: FileClass::DISPOSITION.0,
            additional_information: 0,
            file,
            buffer: vec![1].into(),
        };
        assert_eq!(alice.status(Command::SetInfo, |out| delete.emit(out)).await, failed);
        // Once there is space it works again, without a restart.
        full.store(false, Ordering::Release);
        assert_eq!(lock(&mut alice, file, 0x16, lock::Flags::UNLOCK).await, NtStatus::SUCCESS);
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        assert_eq!(bob.close(other).await, NtStatus::SUCCESS);
        assert!(dir.path().join("f").exists());
    });
}

/// A folder that counts the flushes of directories, which fail on demand.
struct Flushed {
    folder: Dir,
    flushes: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
}

impl Backend for Flushed {
    fn kind(&self) -> &'static str {
        self.folder.kind()
    }

    fn changes_on_the_host(&self) -> bool {
        self.folder.changes_on_the_host()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if matches!(op, Op::SyncDir { .. }) {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            if self.fails.load(Ordering::Relaxed) {
                return Box::pin(async { Err(Error::Io(io::Error::other("a bad sector"))) });
            }
        }
        self.folder.submit(op, by)
    }
}

/// After a crash of the host, a handle whose file has no name would be lost.
#[test]
fn a_handle_is_persistent_once_the_name_of_its_file_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let flushed =
        Flushed { folder: Dir::open(dir.path()).unwrap(), flushes: Arc::default(), fails: Arc::default() };
    let (flushes, fails) = (flushed.flushes.clone(), flushed.fails.clone());
    let disk = Disk::default();
    story(async {
        let world = World::with(|config| {
            config.shares = vec![Share::new("Data", Vfs::new(flushed))];
            config.offers.journal = Some(Journal::on(disk));
            config.offers.continuous = vec!["data".into()];
        });
        let mut bob = client(&world, 2, "bob").await;
        create(&mut bob, &wish(Vec::new())).await.unwrap();
        assert_eq!(flushes.load(Ordering::Relaxed), 0, "a handle that is not persistent waits for no disk");
        let mut alice = client(&world, 1, "alice").await;
        fails.store(true, Ordering::Relaxed);
        let plain = create(&mut alice, &wish(vec![persistent()])).await.unwrap();
        assert!(!is_persistent(&plain) && flushes.load(Ordering::Relaxed) == 1);
        assert_eq!(alice.close(plain.file).await, NtStatus::SUCCESS);
        fails.store(false, Ordering::Relaxed);
        // Also that of a file which another client has just created.
        let opened = create(&mut alice, &wish(vec![persistent()])).await.unwrap();
        assert_eq!(opened.action, CreateAction::OPENED);
        assert!(is_persistent(&opened) && flushes.load(Ordering::Relaxed) == 2);
    });
}

#[test]
fn who_does_not_come_back_in_time_has_lost_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = life(dir.path(), async |world| {
        create(&mut client(&world, 1, "alice").await, &wish(vec![persistent()])).await.unwrap().file
    });
    life(dir.path(), async |world| {
        weft_machine::rt::sleep(std::time::Duration::from_secs(31)).await;
        let mut bob = client(&world, 2, "bob").await;
        create(&mut bob, &wish(Vec::new())).await.unwrap();
        let mut alice = client(&world, 1, "alice").await;
        let lost = create(&mut alice, &wish(vec![again(file)])).await.unwrap_err();
        assert_eq!(lost, NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_file_that_was_removed_meanwhile_takes_its_handle_along() {
    let dir = tempfile::tempdir().unwrap();
    let file = life(dir.path(), async |world| {
        create(&mut client(&world, 1, "alice").await, &wish(vec![persistent()])).await.unwrap().file
    });
    std::fs::remove_file(dir.path().join("data/f")).unwrap();
    for _ in 0..2 {
        life(dir.path(), async |world| {
            let mut alice = client(&world, 1, "alice").await;
            let lost = create(&mut alice, &wish(vec![again(file)])).await.unwrap_err();
            assert_eq!(lost, NtStatus::OBJECT_NAME_NOT_FOUND);
        });
    }
}

#[test]
fn what_is_not_persistent() {
    let dir = tempfile::tempdir().unwrap();
    life(dir.path(), async |world| {
        // A client that does not announce support.
        let mut plain = world.client().await;
        assert!(!is_persistent(&create(&mut plain, &wish(vec![persistent()])).await.unwrap()));
        // Another share.
        let mut alice = client(&world, 1, "alice").await;
        alice.tree_connect(r"\\server\Other").await;
        // A directory.
        let dir = create_request("d", CreateOptions::DIRECTORY_FILE);
        let made = create::Request { contexts: vec![persistent()], ..dir };
        assert!(!is_persistent(&create(&mut alice, &made).await.unwrap()));
    });
}

fn resiliency(file: FileId, input: Vec<u8>) -> ioctl::Request {
    ioctl::Request {
        code: CtlCode::LMR_REQUEST_RESILIENCY,
        file,
        input: input.into(),
        max_input_response: 0,
        max_output_response: 0,
        flags: ioctl::Flags::IS_FSCTL,
    }
}

#[test]
fn a_resilient_handle_waits_without_any_cache() {
    story(async {
        let world = World::new();
        let mut alice = world.client().await;
        let file = create(&mut alice, &wish(Vec::new())).await.unwrap().file;
        let ask = async |client: &mut Client, input: Vec<u8>| {
            client.status(Command::Ioctl, |out| resiliency(file, input).emit(out)).await
        };
        assert_eq!(ask(&mut alice, vec![0; 7]).await, NtStatus::INVALID_PARAMETER);
        assert_eq!(ask(&mut alice, vec![0xff; 8]).await, NtStatus::INVALID_PARAMETER, "too long");
        let seconds = |n: u32| [(n * 1000).to_le_bytes(), [0; 4]].concat();
        assert_eq!(ask(&mut alice, seconds(20)).await, NtStatus::SUCCESS);
        assert_eq!(lock(&mut alice, file, 0x15, EXCLUSIVE).await, NtStatus::SUCCESS);
        alice.wire.hang_up();
        weft_machine::rt::sleep(std::time::Duration::from_secs(19)).await;
        let mut alice = world.client().await;
        let back = create(&mut alice, &wish(vec![RequestContext::DurableReconnect(file)])).await.unwrap();
        assert_eq!(lock(&mut alice, back.file, 0x15, EXCLUSIVE).await, NtStatus::SUCCESS, "done before");
        alice.wire.hang_up();
        weft_machine::rt::sleep(std::time::Duration::from_secs(21)).await;
        let mut alice = world.client().await;
        let late = create(&mut alice, &wish(vec![RequestContext::DurableReconnect(file)])).await;
        assert_eq!(late.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn an_application_that_moves_takes_its_files_along() {
    story(async {
        let world = World::new();
        let app = |version: Option<u64>| {
            let mut contexts = vec![RequestContext::AppInstance([7; 16])];
            contexts.extend(version.map(|low| RequestContext::AppInstanceVersion { high: 1, low }));
            create::Request { share_access: weft_wire::smb2::access::ShareAccess::NONE, ..wish(contexts) }
        };
        let (mut one, mut two) = (client(&world, 1, "alice").await, client(&world, 2, "alice").await);
        let old = create(&mut one, &app(Some(5))).await.unwrap();
        let forced = NtStatus(0xC000_00B6);
        assert_eq!(create(&mut two, &app(Some(5))).await.unwrap_err(), forced, "the same life");
        assert_eq!(create(&mut two, &app(None)).await.unwrap_err(), forced, "of no known life");
        let new = create(&mut two, &app(Some(6))).await.unwrap();
        assert_eq!(one.write(old.file, b"x").await, NtStatus::FILE_CLOSED);
        assert_eq!(two.write(new.file, b"x").await, NtStatus::SUCCESS);
        // 3.3.5.9.13: the server's dialect counts, not the connection's.
        let mut three = world.connect();
        three.negotiate(Offer { guid: [3; 16], ..Offer::dialect(Dialect::V3_0) }).await;
        three.log_on("alice", PASSWORD).await.unwrap();
        three.tree().await;
        assert_eq!(create(&mut three, &app(None)).await.unwrap_err(), forced);
        // The same client conflicts with itself, as always.
        assert_eq!(create(&mut two, &app(Some(7))).await.unwrap_err(), NtStatus::SHARING_VIOLATION);
    });
}

/// A folder that counts searches for files, and directory reads.
struct Counted {
    folder: Dir,
    searches: Arc<AtomicUsize>,
}

impl Backend for Counted {
    fn kind(&self) -> &'static str {
        self.folder.kind()
    }

    fn changes_on_the_host(&self) -> bool {
        self.folder.changes_on_the_host()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if matches!(op, Op::Find { .. } | Op::Readdir { .. }) {
            self.searches.fetch_add(1, Ordering::Relaxed);
        }
        self.folder.submit(op, by)
    }
}

/// The cost of a restart with many handles.
struct Restart {
    took: std::time::Duration,
    searches: usize,
}

/// Handles whose files were moved or removed before the restart: each needs a search.
const MOVED: usize = 4;

/// One handle in five reads data; the others read attributes, and need one descriptor instead of two.
fn access_of(n: u64) -> AccessMask {
    if n.is_multiple_of(5) { AccessMask::FILE_GENERIC_READ } else { AccessMask::FILE_READ_ATTRIBUTES }
}

/// Opens as many handles as a busy server has, all in one folder; some files are moved while the server is down.
/// Returns the cost of reopening.
fn restarted_with(handles: u64) -> Restart {
    use weft_store::vfs::{Exists, Make, NodeId, SetAttr};

    let dir = tempfile::tempdir().unwrap();
    let (folder, state) = (dir.path().join("data"), dir.path().join("state"));
    std::fs::create_dir_all(folder.join("d")).unwrap();
    story(async {
        let vfs = Vfs::new(Dir::open(&folder).unwrap());
        let d = vfs.lookup(NodeId::ROOT, b"d", false).await.unwrap().node;
        let mut records = Vec::new();
        for n in 1..=handles {
            let name = format!("file-{n}");
            let make = (Make::File, Exists::Fail, SetAttr::default());
            let attr = vfs.create(d, name.as_bytes(), make.0, make.1, make.2).await.unwrap().attr;
            let path = vfs.path(attr.node).await.unwrap();
            assert_eq!(path, format!("d/{name}").into_bytes());
            let mut create_guid = [0; 16];
            create_guid[..8].copy_from_slice(&n.to_le_bytes());
            let record = Record {
                create_guid,
                client: [1; 16],
                user: "alice".into(),
                user_id: None,
                root: None,
                share: "Data".into(),
                file: attr.stable,
                access: access_of(n).0,
                desired: access_of(n).0,
                options: 0,
                sharing: 7,
                action: 1,
                timeout_ms: 60_000,
                delete_pending: false,
                cached: Cached::Nothing,
                locks: Vec::new(),
                sequences: Vec::new(),
                path,
            };
            records.push((n, record));
        }
        Journal::open(&state, "test").unwrap().save_all(records).await.unwrap();
    });
    // Two files that are swapped, one that is moved, one that is removed.
    let at = |name: &str| folder.join("d").join(name);
    std::fs::rename(at("file-1"), at("other")).unwrap();
    std::fs::rename(at("file-2"), at("file-1")).unwrap();
    std::fs::rename(at("other"), at("file-2")).unwrap();
    std::fs::rename(at("file-3"), folder.join("moved")).unwrap();
    std::fs::remove_file(at("file-4")).unwrap();
    story(async {
        let searches = Arc::new(AtomicUsize::new(0));
        let counted = Counted { folder: Dir::open(&folder).unwrap(), searches: searches.clone() };
        let world = World::with(|config| {
            config.shares = vec![Share::new("Data", Vfs::new(counted))];
            config.offers.journal = Some(Journal::open(&state, "test").unwrap());
            config.offers.continuous = vec!["data".into()];
        });
        let begun = std::time::Instant::now();
        world.server.restore().await.unwrap();
        let restart = Restart { took: begun.elapsed(), searches: searches.load(Ordering::Relaxed) };
        let vfs = &world.server.shares.now()[0].vfs.clone();
        assert_eq!(vfs.opens().open_nodes().len() as u64, handles - 1);
        for path in ["d/file-1", "d/file-2", "moved", "d/file-5"] {
            let (dir, name) = path.split_once('/').map_or(("", path), |split| split);
            let dir = match dir {
                "" => NodeId::ROOT,
                dir => vfs.lookup(NodeId::ROOT, dir.as_bytes(), false).await.unwrap().node,
            };
            let attr = vfs.lookup(dir, name.as_bytes(), false).await.unwrap();
            assert!(vfs.opens().is_open(attr.node), "{path}");
            assert_eq!(vfs.find_at(b"nowhere", attr.stable).await.unwrap().node, attr.node);
        }
        restart
    })
}

#[test]
fn every_handle_is_found_again_where_its_file_is_by_now() {
    let restart = restarted_with(200);
    assert_eq!(restart.searches, MOVED, "a file that is where it was is not searched for");
}

/// `cargo test --release -p weft-smb -- --ignored --nocapture thousands`, on a quiet machine: the only test here that
/// measures time.
#[test]
#[ignore = "it wants a limit of 20,000 descriptors and judges by seconds"]
fn thousands_of_handles_are_opened_again() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    const HANDLES: u64 = 10_000;
    /// 12,000 are for files (see `access_of`); the store leaves three in eight to others.
    const DESCRIPTORS: u64 = 20_000;
    const BOUND: std::time::Duration = std::time::Duration::from_secs(2);

    let limit = getrlimit(Resource::Nofile);
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(DESCRIPTORS));
    let wanted = Rlimit { current: raised(limit.current), maximum: raised(limit.maximum) };
    setrlimit(Resource::Nofile, wanted).expect("20,000 descriptors (ulimit -Hn)");
    let restart = restarted_with(HANDLES);
    println!("{HANDLES} handles in one folder: {:?}, {} searches", restart.took, restart.searches);
    assert_eq!(restart.searches, MOVED);
    assert!(restart.took < BOUND, "{:?}", restart.took);
}
