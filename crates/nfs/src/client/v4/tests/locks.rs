//! Byte-range locks: between clients, when a connection is lost in the middle, and when the server loses them.

use weft_wire::nfs4::opnum;

use super::*;
use crate::client::{ByteRange, File, LockConflict, LockKind, OnConflict};

use LockKind::{Exclusive, Shared};
use OnConflict::{Fail, Wait};

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

async fn create(mount: &Mount) -> File {
    mount.create("f", SetAttributes::default()).await.unwrap()
}

async fn fails(file: &File, offset: u64, len: u64, kind: LockKind) -> LockConflict {
    match file.lock(range(offset, len), kind, Fail).await {
        Err(Error::Locked(conflict)) => conflict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_excludes_others_and_is_replaced_and_split_by_its_owner() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let (one, two) = (world.mount(1).await, world.mount(1).await);
        let (mine, theirs) = (create(&one).await, create(&two).await);
        mine.lock(range(0, 100), Shared, Fail).await.unwrap();
        theirs.lock(range(90, 10), Shared, Fail).await.unwrap();
        // An upgrade fails as a whole; the lock stays.
        let conflict = fails(&mine, 0, 100, Exclusive).await;
        assert_eq!(conflict, LockConflict { range: range(90, 10), kind: Shared });
        assert_eq!(fails(&theirs, 0, 1, Exclusive).await.range, range(0, 100));
        theirs.unlock(range(90, 10)).await.unwrap();
        mine.lock(range(0, 100), Exclusive, Fail).await.unwrap();
        mine.unlock(range(40, 20)).await.unwrap();
        theirs.lock(range(40, 20), Exclusive, Fail).await.unwrap();
        assert_eq!(
            fails(&theirs, 39, 1, Shared).await,
            LockConflict { range: range(0, 40), kind: Exclusive }
        );
        assert_eq!(fails(&theirs, 60, u64::MAX, Shared).await.range, range(60, 40));
        mine.lock(range(0, 10), Shared, Fail).await.unwrap();
        theirs.lock(range(9, 1), Shared, Fail).await.unwrap();
        // Locks are advisory among clients of NFS.
        theirs.write(20, Bytes::from_static(b"theirs")).await.unwrap();
        assert_eq!(mine.read(20, 6).await.unwrap(), "theirs");
        // Another open of the same mount is another owner.
        let again = create(&one).await;
        assert_eq!(fails(&again, 60, 1, Shared).await.range, range(60, 40));
        mine.close().await.unwrap();
        theirs.unlock(ByteRange::WHOLE).await.unwrap();
        again.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        assert_eq!(fails(&theirs, 7, 1, Shared).await.range, ByteRange::WHOLE);
        two.end().await.unwrap();
        one.end().await.unwrap();
    });
}

#[test]
fn a_lock_waits_until_the_range_is_free() {
    Sim::new(2).run(async {
        let world = World::in_memory();
        let (one, two) = (world.mount(1).await, world.mount(1).await);
        let (mine, theirs) = (create(&one).await, create(&two).await);
        mine.lock(range(0, 10), Exclusive, Wait).await.unwrap();
        let begun = rt::now();
        let unlock = async {
            rt::sleep(Duration::from_secs(900)).await;
            mine.unlock(range(0, 10)).await.unwrap();
        };
        let (locked, ()) = futures_util::join!(theirs.lock(range(5, 1), Exclusive, Wait), unlock);
        locked.unwrap();
        let waited = rt::now() - begun;
        assert!((900..905).contains(&waited.as_secs()), "{waited:?}");
        // A file with locks that is dropped is unlocked and closed in the end.
        drop(theirs);
        two.end().await.unwrap();
        mine.lock(range(5, 1), Exclusive, Fail).await.unwrap();
        one.end().await.unwrap();
    });
}

#[test]
fn a_file_with_locks_that_is_abandoned_is_unlocked_while_its_mount_is_idle() {
    // The file is dropped; its CLOSE is given up; its only LOCK gets no reply.
    for end in ["drop", "close", "lock"] {
        Sim::new(7).run(async {
            let world = World::in_memory();
            let (mount, other) = (world.mount(1).await, world.other().await);
            let (file, theirs) = (create(&mount).await, create(&other).await);
            let idle = mount.open("f", false).await.unwrap();
            match end {
                "lock" => {
                    assert!(file.lock(ByteRange::WHOLE, Exclusive, Fail).now_or_never().is_none());
                    // The server carries it out.
                    mount.null().await.unwrap();
                }
                _ => file.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap(),
            }
            fails(&theirs, 0, 1, Shared).await;
            if end == "close" {
                assert!(file.close().now_or_never().is_none());
            }
            drop(file);
            let begun = rt::now();
            theirs.lock(range(0, 1), Exclusive, Wait).await.unwrap();
            let waited = rt::now() - begun;
            assert!(waited < Duration::from_secs(1), "{end}: {waited:?}");
            // Nothing else is closed, and the lease is still renewed.
            rt::sleep(LEASE * 3).await;
            idle.lock(range(5, 1), Shared, Fail).await.unwrap();
            assert_eq!(mount.recovered(), 0);
            mount.end().await.unwrap();
        });
    }
}

#[test]
fn wrong_use_is_an_error() {
    Sim::new(3).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let file = create(&mount).await;
        for wrong in [range(0, 0), range(3, u64::MAX - 1), range(u64::MAX, u64::MAX)] {
            assert!(matches!(file.lock(wrong, Shared, Fail).await, Err(Error::Misuse(_))), "{wrong:?}");
            assert!(matches!(file.unlock(wrong).await, Err(Error::Misuse(_))), "{wrong:?}");
        }
        // Unlocking what is not locked is no error, before the first lock and after it.
        file.unlock(ByteRange::WHOLE).await.unwrap();
        file.lock(range(0, 1), Shared, Fail).await.unwrap();
        file.unlock(range(100, 1)).await.unwrap();
        file.close().await.unwrap();
        assert!(matches!(file.lock(range(0, 1), Shared, Fail).await, Err(Error::Status4(_))));
        let reader = mount.open("f", false).await.unwrap();
        reader.lock(range(0, 1), Shared, Fail).await.unwrap();
        let refused = reader.lock(range(0, 1), Exclusive, Fail).await;
        assert!(matches!(refused, Err(Error::Status4(Status::OPENMODE))), "{refused:?}");
        let options = Options { credential: Credential::None, pool: Pool::new(1 << 20) };
        let old = crate::client::Mount::connect(world.channel(), "/data", options).await.unwrap();
        let file = old.open("f").await.unwrap();
        assert!(matches!(file.lock(range(0, 1), Shared, Fail).await, Err(Error::Misuse(_))));
        assert!(matches!(file.unlock(range(0, 1)).await, Err(Error::Misuse(_))));
    });
}

#[test]
fn a_connection_that_is_cut_at_any_reply_loses_no_lock() {
    async fn story(file: &File) {
        file.lock(range(0, 10), Exclusive, Fail).await.unwrap();
        file.lock(range(20, 10), Exclusive, Wait).await.unwrap();
        file.unlock(range(0, 5)).await.unwrap();
        file.write(20, Bytes::from_static(b"locked")).await.unwrap();
    }
    for cut in 0..=4 {
        Sim::new(cut as u64).run(async {
            let world = World::in_memory();
            let (mount, other) = (world.mount(1).await, world.other().await);
            let (file, theirs) = (create(&mount).await, create(&other).await);
            world.until.set(cut);
            story(&file).await;
            assert_eq!(
                (mount.connections().1, mount.recovered()),
                ((cut > 0).into(), 0),
                "cut at reply {cut}"
            );
            theirs.lock(range(0, 5), Exclusive, Fail).await.unwrap();
            for locked in [5, 20] {
                fails(&theirs, locked, 1, Shared).await;
            }
            file.close().await.unwrap();
            theirs.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        });
    }
}

#[test]
fn a_lock_that_is_given_up_can_be_unlocked() {
    // The first LOCK of a file, whose state id is unknown, or a later one; the server receives it before the next
    // request, or after that.
    for (first, late) in [(true, false), (true, true), (false, false), (false, true)] {
        Sim::new(1).run(async {
            let world = World::in_memory();
            let mount = world.mount(1).await;
            let wire = world.wires.borrow().last().unwrap().clone();
            let other = world.other().await;
            let (file, theirs) = (create(&mount).await, create(&other).await);
            if !first {
                file.lock(range(50, 10), Exclusive, Fail).await.unwrap();
            }
            // The LOCK is in the second slot, and the next request in the first one.
            let mut stat = pin!(file.stat());
            assert!(futures_util::poll!(stat.as_mut()).is_pending());
            assert!(file.lock(range(0, 10), Exclusive, Fail).now_or_never().is_none());
            let held_up = late.then(|| wire.hold_up());
            stat.await.unwrap();
            if !late {
                assert_eq!(fails(&theirs, 0, 1, Shared).await.range, range(0, 10));
            }
            file.unlock(range(0, 10)).await.unwrap();
            held_up.into_iter().for_each(|request| wire.arrives(request));
            mount.null().await.unwrap();
            theirs.lock(range(0, 10), Exclusive, Fail).await.unwrap();
            // What was locked with a reply stays locked, and the file can be locked again.
            match first {
                true => file.lock(range(50, 10), Exclusive, Fail).await.unwrap(),
                false => assert_eq!(fails(&theirs, 50, 1, Shared).await.range, range(50, 10)),
            }
            assert_eq!((fails(&file, 9, 1, Shared).await.range, mount.recovered()), (range(0, 10), 0));
            file.close().await.unwrap();
            theirs.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        });
    }
}

#[test]
fn a_lock_that_is_given_up_and_would_be_denied_holds_nothing() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let (mount, other) = (world.mount(1).await, world.other().await);
        let (file, theirs) = (create(&mount).await, create(&other).await);
        theirs.lock(range(0, 10), Exclusive, Fail).await.unwrap();
        assert!(file.lock(range(5, 10), Exclusive, Fail).now_or_never().is_none());
        file.lock(range(10, 10), Exclusive, Fail).await.unwrap();
        file.unlock(ByteRange::WHOLE).await.unwrap();
        assert!(file.lock(range(5, 10), Exclusive, Fail).now_or_never().is_none());
        file.close().await.unwrap();
        theirs.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
    });
}

#[test]
fn a_file_is_unlocked_before_it_is_closed_even_if_no_lock_had_a_reply() {
    // The first LOCK, or a later one, gets no reply; then the file is closed, dropped, or its CLOSE is given up.
    for (first, end) in ["close", "drop", "give up"].map(|end| [(true, end), (false, end)]).concat() {
        Sim::new(1).run(async {
            let world = World::in_memory();
            let mount = world.mount(1).await;
            let file = create(&mount).await;
            if !first {
                file.lock(range(0, 10), Exclusive, Fail).await.unwrap();
                file.unlock(ByteRange::WHOLE).await.unwrap();
            }
            assert!(file.lock(range(20, 10), Exclusive, Fail).now_or_never().is_none());
            world.sent.borrow_mut().clear();
            match end {
                "close" => file.close().await.unwrap(),
                "drop" => {}
                _ => assert!(file.close().now_or_never().is_none()),
            }
            drop(file);
            mount.end().await.unwrap();
            let sent = world.sent.take();
            let place = |number| sent.iter().position(|sent| *sent == number).unwrap();
            assert!(place(opnum::LOCKU) < place(opnum::CLOSE), "{end}, first: {first}: {sent:?}");
        });
    }
}

async fn everything_is_refused(file: &File) {
    let outcomes = [
        file.read(0, 1).await.map(drop),
        file.write(0, Bytes::from_static(b"x")).await,
        file.set_len(0).await,
        file.lock(range(50, 1), Shared, Wait).await,
        file.unlock(ByteRange::WHOLE).await,
    ];
    for (n, outcome) in outcomes.into_iter().enumerate() {
        assert!(matches!(outcome, Err(Error::LocksLost)), "{n}: {outcome:?}");
    }
}

#[test]
fn a_restart_of_the_server_loses_locks_and_says_so() {
    // With a grace period, in which the file is reclaimed, and without one: then it is opened anew.
    for grace in [LEASE, Duration::ZERO] {
        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, kept) = (folder.path().to_owned(), state.path().to_owned());
        Sim::new(4).run(async {
            let world = World::new(move || {
                let durable = Durable::open(&kept, "locks").unwrap();
                server(Share::new("data", Vfs::new(Dir::open(&path).unwrap())), grace, Some(durable))
            });
            let mount = world.mount(1).await;
            let (locked, free) = (create(&mount).await, create(&mount).await);
            locked.lock(range(0, 10), Exclusive, Fail).await.unwrap();
            locked.write(0, Bytes::from_static(b"under a lock")).await.unwrap();
            locked.commit().await.unwrap();
            free.lock(range(50, 1), Exclusive, Fail).await.unwrap();
            free.unlock(range(50, 1)).await.unwrap();
            world.restart().await;
            everything_is_refused(&locked).await;
            assert_eq!(mount.recovered(), 1);
            // Nothing was locked through this one, so nothing is lost; the first file's locks are gone.
            free.lock(range(0, 10), Exclusive, Fail).await.unwrap();
            assert_eq!(free.read(0, 100).await.unwrap(), "under a lock");
            everything_is_refused(&locked).await;
            locked.close().await.unwrap();
            let again = create(&mount).await;
            assert!(again.lock(range(0, 1), Shared, Fail).await.unwrap_err().is_locked());
            free.close().await.unwrap();
            again.lock(range(0, 1), Shared, Fail).await.unwrap();
            mount.end().await.unwrap();
        });
    }
}

#[test]
fn data_that_a_restart_has_lost_is_not_written_again_without_its_lock() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, kept) = (folder.path().to_owned(), state.path().to_owned());
    Sim::new(5).run(async {
        let world = World::new(move || {
            let durable = Durable::open(&kept, "locks").unwrap();
            server(Share::new("data", Vfs::new(Dir::open(&path).unwrap())), LEASE, Some(durable))
        });
        let mount = world.mount(1).await;
        let file = create(&mount).await;
        file.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        file.write(0, Bytes::from_static(b"not committed")).await.unwrap();
        world.restart().await;
        assert!(matches!(file.commit().await, Err(Error::LocksLost)));
        assert!(matches!(file.close().await, Err(Error::LocksLost)));
        // It is closed all the same.
        let again = create(&mount).await;
        again.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        mount.end().await.unwrap();
    });
}

#[test]
fn who_is_away_for_a_lease_period_loses_its_locks_to_others_and_hears_so() {
    Sim::new(6).run(async {
        let world = World::in_memory();
        let other = world.mount(1).await;
        let theirs = create(&other).await;
        let away = Rc::new(Cell::new(false));
        let (dialed, to) = (away.clone(), world.clone());
        let dial: Dial = Rc::new(move || {
            let there = if dialed.get() { Err(Failed::Closed) } else { Ok(to.channel()) };
            async move { there }.boxed_local()
        });
        let channel = world.channel();
        let wire = world.wires.borrow().last().unwrap().clone();
        let options = Options { credential: Credential::None, pool: Pool::new(16 << 20) };
        let mount = Mount::connect(channel, "/data", options, Some((dial, 1))).await.unwrap();
        let file = create(&mount).await;
        file.lock(range(0, 10), Exclusive, Fail).await.unwrap();
        file.lock(range(50, 10), Exclusive, Fail).await.unwrap();
        file.unlock(range(50, 10)).await.unwrap();
        away.set(true);
        wire.cut();
        let begun = rt::now();
        theirs.lock(range(9, 1), Exclusive, Wait).await.unwrap();
        let waited = rt::now() - begun;
        assert!(waited >= LEASE && waited < LEASE * 3, "{waited:?}");
        away.set(false);
        everything_is_refused(&file).await;
        file.close().await.unwrap();
        let again = create(&mount).await;
        assert_eq!(fails(&again, 0, 10, Shared).await.range, range(9, 1));
        again.lock(range(0, 9), Exclusive, Fail).await.unwrap();
    });
}
