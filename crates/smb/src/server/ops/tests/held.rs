//! Memory that the sessions of an address, or of a user, occupy: bounded whatever its kind, and freed again.

use weft_machine::Source;
use weft_store::rights::Right;
use weft_store::vfs::{Exists, Make, NodeId, SetAttr};
use weft_wire::smb2::change_notify;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::lock::{self, Element};
use weft_wire::smb2::query_directory;

use super::*;
use crate::server::held::{DESCRIPTORS_OF_OPEN, LOCK_BYTES, OPEN_BYTES, TREE_BYTES, WATCH_BYTES};

/// The total budget; one address alone gets a fifth.
const HELD: usize = 1 << 20;
const PART: usize = HELD / 5;

impl Bench {
    /// The same server, from another address.
    pub(super) fn from(&self, host: u8, user: &str) -> Bench {
        let (profile, id) = (self.connection.negotiated().profile, 1000 + u64::from(host));
        let source = Some(Source::V4([192, 0, 2, host].into()));
        let held = self.server.held.charge_if_room(Holder { source, user: Some(user.into()) }, SESSION_BYTES);
        let session = session_of(&self.connection, held, id, user, profile);
        let tree = session.connect(self.tree.share.clone(), Right::Write, 10).unwrap();
        Bench {
            vfs: self.vfs.clone(),
            server: self.server.clone(),
            client: self.client.clone(),
            connection: self.connection.clone(),
            session,
            tree,
            ids: Cell::new(0),
        }
    }

    /// Opens it as often as possible.
    async fn open_all(&self, path: &str) -> Vec<FileId> {
        self.open_until(path, NtStatus::INSUFFICIENT_RESOURCES).await
    }

    /// Opens it until this status is returned.
    async fn open_until(&self, path: &str, last: NtStatus) -> Vec<FileId> {
        let mut files = Vec::new();
        loop {
            assert!(files.len() < 1000, "what is open has an end");
            match self.open(&Wish::file(path)).await {
                Ok(file) => files.push(file),
                Err(status) => {
                    assert_eq!(status, last);
                    return files;
                }
            }
        }
    }

    async fn lock(&self, file: FileId, offset: u64, flags: lock::Flags) -> Result<(), NtStatus> {
        let locks = vec![Element { offset, length: 1, flags }];
        self.ask(Command::Lock, |out| lock::Request { sequence: 0, file, locks }.emit(out)).await.map(drop)
    }
}

fn holding(story: impl AsyncFnOnce(Bench)) {
    rt::block_on(story(Bench::holding(HELD))).unwrap();
}

#[test]
fn opens_of_all_sessions_of_an_address_have_a_part_and_leave_the_rest_to_others() {
    holding(async |b| {
        b.put("f", b"x").await;
        let before = b.server.held.used_bytes();
        let again = b.from(1, "tester");
        let files = b.open_all("f").await;
        // Another session at the same address gets no additional budget.
        assert_eq!(again.open_all("f").await.len(), 0);
        let held = b.server.held.used_bytes();
        assert!(held <= PART && held > PART - 2 * OPEN_BYTES - SESSION_BYTES, "{held}");
        // The refused requests created nothing.
        let make = Wish { disposition: CreateDisposition::Create, ..Wish::file("new") };
        assert_eq!(status(b.open(&make).await), NtStatus::INSUFFICIENT_RESOURCES);
        let other = b.from(2, "other");
        assert_eq!(status(other.open(&Wish::file("new")).await), NtStatus::OBJECT_NAME_NOT_FOUND);
        let others = other.open_all("f").await;
        assert!(others.len() * 2 > files.len(), "{} {}", others.len(), files.len());
        for file in files {
            b.close(file).await.unwrap();
        }
        other.session.end(&b.server.sessions).await;
        for gone in [again, other] {
            b.connection.forget(gone.session.id);
        }
        assert_eq!(b.server.held.used_bytes(), before);
    });
}

#[test]
fn who_opens_all_the_files_that_it_may_leaves_descriptors_to_others() {
    const DESCRIPTORS: usize = 80;
    rt::block_on(async {
        let b = Bench::opening(DESCRIPTORS);
        b.put("f", b"x").await;
        let mine = b.open_until("f", NtStatus::TOO_MANY_OPENED_FILES).await;
        assert_eq!(mine.len(), DESCRIPTORS / 2 / DESCRIPTORS_OF_OPEN, "as many as it leaves");
        // The same user gets no more through another session or another address.
        for host in [1, 2] {
            assert_eq!(
                b.from(host, "tester").open_until("f", NtStatus::TOO_MANY_OPENED_FILES).await.len(),
                0
            );
        }
        let make = Wish { disposition: CreateDisposition::Create, ..Wish::file("new") };
        assert_eq!(status(b.open(&make).await), NtStatus::TOO_MANY_OPENED_FILES);
        let other = b.from(3, "other");
        assert_eq!(status(other.open(&Wish::file("new")).await), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(other.open_until("f", NtStatus::TOO_MANY_OPENED_FILES).await.len(), mine.len() / 2);
        for file in mine {
            b.close(file).await.unwrap();
        }
        other.session.end(&b.server.sessions).await;
        assert_eq!(b.server.descriptors.used_bytes(), 0);
    })
    .unwrap();
}

#[test]
fn a_user_at_many_addresses_leaves_half_to_others() {
    holding(async |b| {
        b.put("f", b"x").await;
        let many: Vec<_> = (2..40)
            .map_while(|host| {
                let room = b.server.held.used_bytes() < HELD / 3;
                room.then(|| b.from(host, "greedy"))
            })
            .collect();
        for bench in &many {
            bench.open_all("f").await;
        }
        assert!(b.server.held.used_bytes() <= HELD / 2 + SESSION_BYTES + OPEN_BYTES);
        assert!(b.from(50, "other").open_all("f").await.len() > 20);
    });
}

#[test]
fn byte_range_locks_count_and_are_given_back() {
    holding(async |b| {
        let now = lock::Flags::FAIL_IMMEDIATELY;
        b.put("f", b"x").await;
        let before = b.server.held.used_bytes();
        let file = b.open(&Wish::file("f")).await.unwrap();
        let mut taken = 0;
        let refused = loop {
            match b.lock(file, taken, lock::Flags::EXCLUSIVE_LOCK | now).await {
                Ok(()) => taken += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, NtStatus::INSUFFICIENT_RESOURCES);
        let room = (PART - before - OPEN_BYTES) / LOCK_BYTES;
        assert!(taken as usize <= room && taken as usize + 2 > room, "{taken} {room}");
        // A refused lock is not charged, and a released one makes room for another.
        b.lock(file, 0, lock::Flags::UNLOCK).await.unwrap();
        assert_eq!(
            status(b.lock(file, 1, lock::Flags::EXCLUSIVE_LOCK | now).await),
            NtStatus::LOCK_NOT_GRANTED
        );
        b.lock(file, 0, lock::Flags::SHARED_LOCK | now).await.unwrap();
        assert_eq!(
            status(b.lock(file, taken, lock::Flags::SHARED_LOCK | now).await),
            NtStatus::INSUFFICIENT_RESOURCES
        );
        b.close(file).await.unwrap();
        assert_eq!(b.server.held.used_bytes(), before);
    });
}

#[test]
fn watches_count_with_what_waits_for_them() {
    holding(async |b| {
        b.mkdir("d").await;
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        let before = b.server.held.used_bytes();
        let notify = async || {
            let (flags, completion_filter) = (change_notify::Flags::NONE, 3);
            let request =
                change_notify::Request { flags, output_buffer_length: 65_536, file: dir, completion_filter };
            b.answer(Command::ChangeNotify, |out| request.emit(out)).await.map(|reply| reply.status)
        };
        let (first, ()) = futures_util::future::join(notify(), b.put("d\\a", b"1")).await;
        assert_eq!(first.unwrap(), NtStatus::SUCCESS);
        assert_eq!(b.server.held.used_bytes(), before + WATCH_BYTES);
        b.put("d\\b", b"1").await;
        assert!(b.server.held.used_bytes() > before + WATCH_BYTES);
        // Far more than the budget allows.
        let node = b.vfs.lookup(NodeId::ROOT, b"d", false).await.unwrap().node;
        for n in 0..2 * PART / 100 {
            let name = format!("d{n:060}");
            b.vfs.create(node, name.as_bytes(), Make::File, Exists::Fail, SetAttr::default()).await.unwrap();
        }
        assert!(b.server.held.used_bytes() <= PART);
        assert_eq!(notify().await.unwrap(), NtStatus::NOTIFY_ENUM_DIR);
        assert_eq!(b.server.held.used_bytes(), before + WATCH_BYTES);
        b.close(dir).await.unwrap();
        assert_eq!(b.server.held.used_bytes(), before - OPEN_BYTES);
    });
}

#[test]
fn what_a_listing_fetched_ahead_counts_and_goes_where_there_is_no_room() {
    holding(async |b| {
        b.mkdir("d").await;
        for n in 0..600 {
            b.put(&format!("d\\{n:03}"), b"").await;
        }
        let before = b.server.held.used_bytes();
        let next = async |file| {
            let flags = query_directory::Flags::RETURN_SINGLE_ENTRY;
            let request = query_directory::Request {
                class: FileClass::NAMES,
                flags,
                file_index: 0,
                file,
                pattern: "*".into(),
                output_buffer_length: 4096,
            };
            let reply = b.answer(Command::QueryDirectory, |out| request.emit(out)).await;
            reply.map(|reply| reply.message).map_err(|failure| failure.status)
        };
        let mut dirs = Vec::new();
        while let Ok(dir) = b.open(&Wish::dir("d")).await {
            next(dir).await.unwrap();
            dirs.push(dir);
        }
        let held = b.server.held.used_bytes();
        assert!(held <= PART && held > before + dirs.len() * OPEN_BYTES + 60_000, "{held}");
        // The last listing prefetches nothing, and still lists everything.
        let last = *dirs.last().unwrap();
        let mut seen = 1;
        while next(last).await.is_ok() {
            seen += 1;
        }
        assert_eq!(seen, 602);
        for dir in dirs {
            b.close(dir).await.unwrap();
        }
        assert_eq!(b.server.held.used_bytes(), before);
    });
}

#[test]
fn trees_are_connected_to_once_where_there_is_no_room() {
    holding(async |b| {
        let full = b.server.held.restore(b.connection.source, HELD);
        let other = b.another_session("other");
        for share in [None, b.tree.share.clone()] {
            assert!(other.connect(share.clone(), Right::Write, 10).is_some(), "to come back to what is open");
            assert!(other.connect(share, Right::Write, 10).is_none());
        }
        drop(full);
        let before = b.server.held.used_bytes();
        assert!(other.connect(None, Right::Write, 10).is_some());
        assert_eq!(b.server.held.used_bytes(), before + TREE_BYTES);
    });
}
