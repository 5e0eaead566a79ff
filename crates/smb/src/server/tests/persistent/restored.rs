//! Which handles of earlier runs come back, and when: their share may be away for a start, and their user another one.

use super::*;
use crate::auth::Secret;
use crate::server::User;
use crate::server::user_id::UserId;

/// Moves a folder to another name.
fn move_folder(dir: &Path, from: &str, to: &str) {
    std::fs::rename(dir.join(from), dir.join(to)).unwrap();
}

/// The share on this folder.
fn data(dir: &Path) -> Share {
    Share::new("Data", Vfs::new(Dir::open(dir.join("data")).unwrap()))
}

fn user(name: &str, rid: Option<u32>) -> User {
    User { rid, ..User::new(name, Secret::password(PASSWORD)) }
}

/// A run of a server with these shares and users, whose configuration has these shares as continuously available.
fn run<T>(
    dir: &Path,
    (shares, continuous): (Vec<Share>, &[&str]),
    alice: Option<u32>,
    story_of: impl AsyncFnOnce(World, Journal) -> T,
) -> T {
    story(async {
        let journal = Journal::open(&dir.join("state"), "test").unwrap();
        let world = World::with(|config| {
            config.shares = shares;
            config.users = vec![user("alice", alice), user("bob", None)];
            config.offers.journal = Some(journal.clone());
            config.offers.continuous = continuous.iter().map(|name| (*name).into()).collect();
        });
        world.server.restore().await.unwrap();
        story_of(world, journal).await
    })
}

/// A handle of alice's with a lock, from a run before.
fn before(dir: &Path, alice: Option<u32>) -> FileId {
    std::fs::create_dir_all(dir.join("data")).unwrap();
    run(dir, (vec![data(dir)], &["data"]), alice, async |world, _| {
        let mut client = client(&world, 1, "alice").await;
        let file = create(&mut client, &wish(vec![persistent()])).await.unwrap().file;
        assert_eq!(lock(&mut client, file, 0x15, EXCLUSIVE).await, NtStatus::SUCCESS);
        file
    })
}

/// Her client has the handle back, with the lock, and nobody else got the file until then.
async fn is_back(world: &World, file: FileId) {
    let mut bob = client(world, 2, "bob").await;
    assert_eq!(create(&mut bob, &wish(Vec::new())).await.unwrap_err(), UNAVAILABLE);
    let mut alice = client(world, 1, "alice").await;
    let back = create(&mut alice, &wish(vec![again(file)])).await.unwrap();
    assert_eq!(lock(&mut alice, back.file, 0x16, EXCLUSIVE).await, NtStatus::LOCK_NOT_GRANTED);
    assert_eq!(lock(&mut alice, back.file, 0x17, lock::Flags::UNLOCK).await, NtStatus::SUCCESS);
}

fn is_recorded(journal: &Journal) -> bool {
    !journal.records(|_| true).unwrap().is_empty()
}

/// They were forgotten at the first start without the folder.
#[test]
fn a_share_that_is_away_takes_no_handle_along() {
    let dir = tempfile::tempdir().unwrap();
    let file = before(dir.path(), None);
    let other = || Share::new("Other", Vfs::new(Dir::open(dir.path()).unwrap()));
    for _ in 0..2 {
        run(dir.path(), (vec![other()], &["data"]), None, async |world, journal| {
            assert!(is_recorded(&journal));
            assert_eq!(world.server.handles.unrestored().len(), 1);
        });
    }
    // The next start has the share again.
    run(dir.path(), (vec![other(), data(dir.path())], &["data"]), None, async |world, _| {
        assert!(world.server.handles.unrestored().is_empty());
        is_back(&world, file).await;
    });
}

#[test]
fn a_share_that_comes_back_at_a_reload_brings_its_handles() {
    let dir = tempfile::tempdir().unwrap();
    let file = before(dir.path(), None);
    run(dir.path(), (vec![], &["data"]), None, async |world, journal| {
        let server = &world.server;
        let reload = async |shares: Vec<Share>| {
            server.restore_on(&shares).await.unwrap();
            server.replace_shares(shares);
            server.replace_users(&[user("alice", None), user("bob", None)], &[]).await;
        };
        // Of another share nothing comes back.
        let other = Share::new("Other", Vfs::new(Dir::open(dir.path()).unwrap()));
        reload(vec![other.clone()]).await;
        assert!(is_recorded(&journal));
        let shares = vec![other, data(dir.path())];
        reload(shares.clone()).await;
        is_back(&world, file).await;
        // Once: its client has closed it meanwhile.
        reload(shares).await;
        assert!(server.handles.unrestored().is_empty());
    });
}

/// The disk with the folder is not mounted, but its mount point is a folder as well, with a file of this name. The handles were
/// forgotten.
#[test]
fn another_folder_at_the_path_of_a_share_takes_no_handle_along() {
    for returns_at_a_reload in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let file = before(dir.path(), None);
        move_folder(dir.path(), "data", "disk");
        std::fs::create_dir(dir.path().join("data")).unwrap();
        std::fs::write(dir.path().join("data/f"), "another file").unwrap();
        let mount = || {
            move_folder(dir.path(), "data", "mount point");
            move_folder(dir.path(), "disk", "data");
        };
        for start in 0..2 {
            run(dir.path(), (vec![data(dir.path())], &["data"]), None, async |world, journal| {
                assert!(is_recorded(&journal));
                assert_eq!(world.server.handles.unrestored().len(), 1);
                let mut alice = client(&world, 1, "alice").await;
                let refused = create(&mut alice, &wish(vec![again(file)])).await.unwrap_err();
                assert_eq!(refused, NtStatus::OBJECT_NAME_NOT_FOUND);
                if returns_at_a_reload && start == 1 {
                    mount();
                    let shares = vec![data(dir.path())];
                    world.server.restore_on(&shares).await.unwrap();
                    world.server.replace_shares(shares);
                    is_back(&world, file).await;
                }
            });
        }
        if !returns_at_a_reload {
            mount();
            run(dir.path(), (vec![data(dir.path())], &["data"]), None, async |world, _| {
                assert!(world.server.handles.unrestored().is_empty());
                is_back(&world, file).await;
            });
        }
    }
}

#[test]
fn a_record_of_an_older_version_learns_in_which_folder_its_file_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = before(dir.path(), None);
    let root = |journal: &Journal| journal.records(|_| true).unwrap()[0].1.root;
    let known = story(async {
        let journal = Journal::open(&dir.path().join("state"), "test").unwrap();
        let (id, record) = journal.records(|_| true).unwrap().pop().unwrap();
        journal.save_all(vec![(id, Record { root: None, ..record.clone() })]).await.unwrap();
        assert_eq!(root(&journal), None);
        record.root
    });
    assert!(known.is_some());
    run(dir.path(), (vec![data(dir.path())], &["data"]), None, async |world, journal| {
        assert_eq!(root(&journal), known);
        is_back(&world, file).await;
    });
}

#[test]
fn a_share_that_is_not_configured_any_more_takes_its_handles_along() {
    let dir = tempfile::tempdir().unwrap();
    before(dir.path(), None);
    // Not as continuously available, at least.
    run(dir.path(), (vec![data(dir.path())], &["other"]), None, async |world, journal| {
        assert!(!is_recorded(&journal));
        assert!(world.server.handles.unrestored().is_empty());
    });
}

/// A folder whose disk does not answer, or fails.
struct Hung {
    folder: Dir,
    fails: bool,
    is_over: Arc<AtomicBool>,
}

impl Backend for Hung {
    fn kind(&self) -> &'static str {
        self.folder.kind()
    }

    fn changes_on_the_host(&self) -> bool {
        self.folder.changes_on_the_host()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match self.is_over.load(Ordering::Relaxed) {
            true => self.folder.submit(op, by),
            false if self.fails => Box::pin(async { Err(Error::Io(io::Error::other("a bad sector"))) }),
            false => Box::pin(std::future::pending()),
        }
    }
}

#[test]
fn a_disk_that_does_not_answer_at_the_start_takes_no_handle_along() {
    for fails in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let file = before(dir.path(), None);
        let is_over = Arc::<AtomicBool>::default();
        let hung =
            Hung { folder: Dir::open(dir.path().join("data")).unwrap(), fails, is_over: is_over.clone() };
        let shares = vec![Share::new("Data", Vfs::new(hung))];
        run(dir.path(), (shares.clone(), &["data"]), None, async |world, journal| {
            assert!(is_recorded(&journal));
            assert_eq!(world.server.handles.unrestored().len(), 1);
            is_over.store(true, Ordering::Relaxed);
            world.server.restore_on(&shares).await.unwrap();
            is_back(&world, file).await;
        });
    }
}

/// Bob, who got the name of an earlier alice, got her open file as well.
#[test]
fn a_later_user_of_the_name_gets_no_handle() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Some(0x4000_1000), Some(0x4000_1001));
    let file = before(dir.path(), first);
    // The same user again: nothing is lost.
    run(dir.path(), (vec![data(dir.path())], &["data"]), first, async |world, journal| {
        assert_eq!(journal.records(|_| true).unwrap()[0].1.user_id, Some(UserId::Rid(0x4000_1000)));
        is_back(&world, file).await;
    });
    // Also if her share is away when she is removed.
    run(dir.path(), (vec![], &["data"]), second, async |_, journal| assert!(is_recorded(&journal)));
    run(dir.path(), (vec![data(dir.path())], &["data"]), second, async |world, journal| {
        assert!(!is_recorded(&journal));
        let mut alice = client(&world, 1, "alice").await;
        let refused = create(&mut alice, &wish(vec![again(file)])).await.unwrap_err();
        assert_eq!(refused, NtStatus::OBJECT_NAME_NOT_FOUND);
        create(&mut client(&world, 2, "bob").await, &wish(Vec::new())).await.unwrap();
    });
}

#[test]
fn a_running_server_tells_users_of_one_name_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Some(0x4000_1000), Some(0x4000_1001));
    std::fs::create_dir(dir.path().join("data")).unwrap();
    run(dir.path(), (vec![data(dir.path())], &["data"]), first, async |world, journal| {
        let replace = async |rid| {
            world.server.replace_users(&[user("alice", rid), user("bob", None)], &[]).await;
        };
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![persistent()])).await.unwrap().file;
        replace(first).await;
        assert!(alice.is_served().await, "the same user");
        alice.wire.hang_up();
        settle().await;
        let _other = client(&world, 3, "alice").await;
        assert_eq!(world.server.sessions.len(), 1);
        replace(second).await;
        assert_eq!(world.server.sessions.len(), 0);
        settle().await;
        assert!(!is_recorded(&journal), "the handle is gone with its user");
        let mut alice = client(&world, 1, "alice").await;
        let refused = create(&mut alice, &wish(vec![again(file)])).await.unwrap_err();
        assert_eq!(refused, NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn a_record_of_an_older_version_is_from_now_on_of_the_user_who_has_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let rid = Some(0x4000_1000);
    let file = before(dir.path(), rid);
    story(async {
        let journal = Journal::open(&dir.path().join("state"), "test").unwrap();
        let (id, record) = journal.records(|_| true).unwrap().pop().unwrap();
        journal.save_all(vec![(id, Record { user_id: None, ..record })]).await.unwrap();
    });
    run(dir.path(), (vec![data(dir.path())], &["data"]), rid, async |world, journal| {
        assert_eq!(journal.records(|_| true).unwrap()[0].1.user_id, Some(UserId::Rid(0x4000_1000)));
        is_back(&world, file).await;
    });
}
