//! Requests that end without a reply, because the caller gives up or the server does not answer: what the server may
//! still carry out undoes nothing that comes later, and what was to be undone is.

use std::collections::BTreeSet;

use weft_store::NodeId;
use weft_wire::nfs4::{Close, Locku, Stateid, opnum};

use super::*;
use crate::client::{ByteRange, File, LockKind, OnConflict};

use LockKind::{Exclusive, Shared};
use OnConflict::{Fail, Wait};

const R: ByteRange = ByteRange { offset: 0, len: 10 };

async fn create(mount: &Mount) -> File {
    mount.create("f", SetAttributes::default()).await.unwrap()
}

async fn is_locked_for(file: &File) -> bool {
    match file.lock(R, Shared, Fail).await {
        Ok(()) => false,
        Err(e) if e.is_locked() => true,
        Err(e) => panic!("{e}"),
    }
}

/// Two mounts, each with the same file open, and the connection of the first.
struct Two {
    world: Rc<World>,
    mount: Mount,
    _other: Rc<Mount>,
    wire: Rc<Wire>,
    file: File,
    theirs: File,
}

impl Two {
    async fn new() -> Two {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let wire = world.wires.borrow().last().unwrap().clone();
        let other = world.other().await;
        let (file, theirs) = (create(&mount).await, create(&other).await);
        Two { world, mount, _other: other, wire, file, theirs }
    }

    /// Sends a request and gives it up; the server has not received it yet. It is in the second slot, so that the next
    /// request does not wait for it: that is in the first slot.
    async fn given_up<T>(&self, request: impl Future<Output = T>) -> Bytes {
        let mut first = pin!(self.file.stat());
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        assert!(request.now_or_never().is_none());
        let late = self.wire.hold_up();
        first.await.unwrap();
        late
    }

    /// The request arrives, and the server has processed it.
    async fn arrives(&self, late: Bytes) {
        self.wire.arrives(late);
        self.mount.null().await.unwrap();
    }
}

#[test]
fn an_unlock_that_is_given_up_does_not_undo_a_later_lock() {
    Sim::new(1).run(async {
        let two = Two::new().await;
        two.file.lock(R, Exclusive, Fail).await.unwrap();
        let late = two.given_up(two.file.unlock(R)).await;
        two.file.lock(R, Exclusive, Fail).await.unwrap();
        two.arrives(late).await;
        assert!(is_locked_for(&two.theirs).await);
        assert_eq!(two.mount.recovered(), 0);
        two.file.unlock(R).await.unwrap();
        assert!(!is_locked_for(&two.theirs).await);
    });
}

#[test]
fn only_proof_that_a_lock_without_a_reply_was_refused_counts_as_unlocked() {
    // A server without POSIX semantics returns LOCK_RANGE if the owner has the lock already.
    for status in [Status::LOCK_RANGE, Status::SERVERFAULT, Status::IO, Status::RESOURCE] {
        Sim::new(1).run(async {
            let Two { world, mount, _other, file, theirs, .. } = Two::new().await;
            assert!(file.lock(R, Exclusive, Fail).now_or_never().is_none());
            mount.null().await.unwrap();
            world.refuse(move |op| matches!(op, Op::Lock(_)).then_some(status));
            let unlocked = file.unlock(R).await;
            assert!(matches!(unlocked, Err(Error::Status4(s)) if s == status), "{status}: {unlocked:?}");
            world.refuse(|_| None);
            assert!(is_locked_for(&theirs).await);
            file.unlock(R).await.unwrap();
            assert!(!is_locked_for(&theirs).await);
        });
    }
    for status in [Status::OPENMODE, Status::INVAL, Status::BAD_RANGE] {
        Sim::new(1).run(async {
            let Two { world, mount, _other, file, .. } = Two::new().await;
            world.refuse(move |op| matches!(op, Op::Lock(_)).then_some(status));
            assert!(file.lock(R, Exclusive, Fail).now_or_never().is_none());
            mount.null().await.unwrap();
            file.unlock(R).await.unwrap();
        });
    }
}

#[test]
fn a_server_that_unlocks_only_exact_ranges_unlocks_what_was_given_up() {
    Sim::new(1).run(async {
        let Two { world, mount, _other, file, theirs, .. } = Two::new().await;
        let exact = |at: &Locku| (at.offset, at.length) == (R.offset, R.len);
        world.refuse(move |op| match op {
            Op::Locku(at) if !exact(at) => Some(Status::LOCK_RANGE),
            _ => None,
        });
        assert!(file.lock(R, Exclusive, Fail).now_or_never().is_none());
        mount.null().await.unwrap();
        // The next lock first undoes the one without a reply.
        file.lock(ByteRange { offset: 50, len: 1 }, Exclusive, Fail).await.unwrap();
        assert!(!is_locked_for(&theirs).await);
    });
}

/// A server whose state survives, with a grace period.
fn durable_world(folder: &tempfile::TempDir, state: &tempfile::TempDir) -> Rc<World> {
    let (path, kept) = (folder.path().to_owned(), state.path().to_owned());
    World::new(move || {
        let durable = Durable::open(&kept, "abandoned").unwrap();
        server(Share::new("data", Vfs::new(Dir::open(&path).unwrap())), LEASE, Some(durable))
    })
}

#[test]
fn a_recovery_that_is_given_up_at_any_reply_is_completed_by_the_next_request() {
    // SEQUENCE, DESTROY_SESSION, CREATE_SESSION, EXCHANGE_ID, CREATE_SESSION, both OPENs, RECLAIM_COMPLETE, WRITE.
    for speaks in 0..=9 {
        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Sim::new(speaks as u64).run(async {
            let world = durable_world(&folder, &state);
            let mount = world.mount(1).await;
            let (file, second) = (create(&mount).await, create(&mount).await);
            file.lock(R, Exclusive, Fail).await.unwrap();
            world.restart().await;
            world.speaks.set(speaks);
            let given_up = rt::timeout(Duration::from_secs(1), second.write(0, Bytes::from_static(b"one")));
            assert_eq!(given_up.await.is_err(), speaks < 9, "{speaks}");
            world.speaks.set(usize::MAX);
            second.write(0, Bytes::from_static(b"two")).await.unwrap_or_else(|e| panic!("{speaks}: {e}"));
            second.lock(R, Exclusive, Fail).await.unwrap_or_else(|e| panic!("{speaks}: {e}"));
            assert!(matches!(file.read(0, 1).await, Err(Error::LocksLost)), "{speaks}");
            mount.end().await.unwrap();
        });
        assert_eq!(std::fs::read(folder.path().join("f")).unwrap(), b"two");
    }
}

#[test]
fn a_recovery_that_fails_is_completed_by_the_next_request() {
    // One operation of the recovery fails once.
    let is_reclaim = |op: &Op| matches!(op, Op::ReclaimComplete(_));
    let is_second_session = |op: &Op| matches!(op, Op::CreateSession(_));
    for (fails, nth) in [(is_reclaim as fn(&Op) -> bool, 1), (is_second_session, 2)] {
        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Sim::new(1).run(async {
            let world = durable_world(&folder, &state);
            let mount = world.mount(1).await;
            let file = create(&mount).await;
            world.restart().await;
            let left = Cell::new(nth);
            world.refuse(move |op| {
                if !fails(op) {
                    return None;
                }
                left.set(left.get() - 1);
                (left.get() == 0).then_some(Status::SERVERFAULT)
            });
            let failed = file.write(0, Bytes::from_static(b"one")).await;
            assert!(matches!(failed, Err(Error::Status4(Status::SERVERFAULT))), "{failed:?}");
            file.write(0, Bytes::from_static(b"two")).await.unwrap();
            file.lock(R, Exclusive, Fail).await.unwrap();
            mount.end().await.unwrap();
        });
    }
}

#[test]
fn a_change_that_is_given_up_does_not_arrive_after_the_unlock() {
    for truncates in [false, true] {
        Sim::new(1).run(async {
            let two = Two::new().await;
            two.file.lock(R, Exclusive, Fail).await.unwrap();
            let late = match truncates {
                true => two.given_up(two.file.set_len(1)).await,
                false => two.given_up(two.file.write(0, Bytes::from_static(b"mine"))).await,
            };
            two.file.unlock(R).await.unwrap();
            two.theirs.lock(R, Exclusive, Fail).await.unwrap();
            two.theirs.write(0, Bytes::from_static(b"theirs")).await.unwrap();
            two.arrives(late).await;
            assert_eq!(two.theirs.read(0, 10).await.unwrap(), "theirs", "truncates: {truncates}");
            assert_eq!(two.mount.recovered(), 0);
        });
    }
}

/// A server whose open files can be counted.
fn counted() -> (Rc<World>, impl Fn() -> Vec<NodeId>) {
    let share = Share::new("data", Vfs::new(Ram::new(64 << 20)));
    let opens = share.vfs.opens().clone();
    let share = Cell::new(Some(share));
    (World::new(move || server(share.take().unwrap(), LEASE, None)), move || opens.open_nodes())
}

#[test]
fn a_file_that_the_server_does_not_close_yet_is_closed_later() {
    // The server is busy for longer than one request waits, or refuses because of the locks; the file is dropped or
    // closed.
    for (status, drops) in
        [Status::DELAY, Status::LOCKS_HELD].map(|status| [(status, true), (status, false)]).concat()
    {
        Sim::new(1).run(async {
            let (world, open_nodes) = counted();
            let mount = world.mount(1).await;
            let file = create(&mount).await;
            file.lock(R, Exclusive, Fail).await.unwrap();
            let begun = rt::now();
            world.refuse(move |op| {
                let busy = rt::now().since(begun) < Duration::from_secs(200);
                matches!(op, Op::Close(_)).then_some(status).filter(|_| busy)
            });
            if !drops {
                let closed = file.close().await;
                assert!(matches!(closed, Err(Error::Status4(s)) if s == status), "{status}: {closed:?}");
            }
            drop(file);
            rt::sleep(Duration::from_secs(500)).await;
            assert_eq!(open_nodes(), [], "{status}, drops: {drops}");
            mount.end().await.unwrap();
        });
    }
}

#[test]
fn a_file_that_cannot_be_closed_keeps_no_other_open() {
    Sim::new(1).run(async {
        let (world, open_nodes) = counted();
        let mount = world.mount(1).await;
        let bad = Rc::new(Cell::new(None::<Stateid>));
        let first = bad.clone();
        world.refuse(move |op| match op {
            Op::Close(Close { stateid, .. }) => {
                first.set(Some(first.get().unwrap_or(*stateid)));
                (first.get() == Some(*stateid)).then_some(Status::LOCKS_HELD)
            }
            _ => None,
        });
        for n in 0..60 {
            let file = mount.create(&format!("f{n}"), SetAttributes::default()).await;
            drop(file.unwrap_or_else(|e| panic!("{n}: {e}")));
        }
        assert!(open_nodes().len() <= 17, "{}", open_nodes().len());
        assert!(mount.client.close_forgotten(true).await.is_err());
        assert_eq!(open_nodes().len(), 1, "all others are closed");
        world.refuse(|_| None);
        mount.end().await.unwrap();
        assert_eq!(open_nodes(), []);
    });
}

#[test]
fn an_open_does_not_wait_for_another_that_closes_abandoned_files() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let mut files = Vec::new();
        for n in 0..20 {
            files.push(mount.create(&format!("f{n}"), SetAttributes::default()).await.unwrap());
        }
        files.truncate(3);
        // Its caller does not poll it any more. It does not receive for the others: that does the request before it.
        let mut stat = pin!(mount.stat(""));
        assert!(futures_util::poll!(stat.as_mut()).is_pending());
        let mut first = pin!(mount.create("g", SetAttributes::default()));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        stat.await.unwrap();
        drop(files);
        let begun = rt::now();
        create(&mount).await.close().await.unwrap();
        assert!(rt::now() - begun < Duration::from_secs(1), "{:?}", rt::now() - begun);
        first.await.unwrap();
    });
}

#[test]
fn a_lock_in_a_session_that_the_server_does_not_end_yet_is_not_carried_out_after_it_was_undone() {
    // The session was lost before, or is lost when the slot of the abandoned request is resolved.
    for lost in [true, false] {
        Sim::new(1).run(async {
            let two = Two::new().await;
            let late = two.given_up(two.file.lock(R, Exclusive, Fail)).await;
            let (busy, misordered) = (Cell::new(2), Cell::new(!lost));
            two.world.refuse(move |op| match op {
                Op::DestroySession(_) if busy.get() > 0 => {
                    busy.set(busy.get() - 1);
                    Some(Status::DELAY)
                }
                Op::Sequence(_) if misordered.take() => Some(Status::SEQ_MISORDERED),
                _ => None,
            });
            if lost {
                two.mount.client.lose_session();
            }
            two.file.unlock(R).await.unwrap();
            two.arrives(late).await;
            assert!(!is_locked_for(&two.theirs).await, "lost before: {lost}");
            assert_eq!((two.mount.recovered(), two.mount.client.lost()), (1, 0));
        });
    }
}

#[test]
fn a_lock_that_waits_for_the_unlock_of_a_close_is_not_sent() {
    Sim::new(1).run(async {
        let two = Two::new().await;
        two.file.lock(R, Exclusive, Fail).await.unwrap();
        two.world.sent.borrow_mut().clear();
        let (closed, locked) = futures_util::join!(two.file.close(), two.file.lock(R, Exclusive, Wait));
        closed.unwrap();
        assert!(matches!(locked, Err(Error::Status4(Status::BAD_STATEID))), "{locked:?}");
        let sent: BTreeSet<_> = two.world.sent.take().into_iter().collect();
        assert!(sent.contains(&opnum::CLOSE) && !sent.contains(&opnum::LOCK), "{sent:?}");
        assert!(!is_locked_for(&two.theirs).await);
    });
}

#[test]
fn a_file_is_closed_even_if_the_server_does_not_unlock_it() {
    Sim::new(1).run(async {
        let two = Two::new().await;
        two.file.lock(R, Exclusive, Fail).await.unwrap();
        two.world.refuse(|op| matches!(op, Op::Locku(_)).then_some(Status::LOCK_RANGE));
        two.file.close().await.unwrap();
        assert!(!is_locked_for(&two.theirs).await);
    });
}

#[test]
fn a_mount_that_could_not_be_ended_does_not_dial_again() {
    Sim::new(1).run(async {
        let world = World::in_memory();
        let mount = world.mount(1).await;
        let (file, _open) = (create(&mount).await, create(&mount).await);
        file.lock(R, Exclusive, Fail).await.unwrap();
        world.speaks.set(0);
        drop(file);
        assert!(mount.end().await.is_err());
        // What was under way when it ended fails as well.
        rt::sleep(LEASE * 4).await;
        let dialed = world.dialed.get();
        rt::sleep(LEASE * 20).await;
        assert_eq!(world.dialed.get(), dialed);
    });
}

#[test]
fn a_close_waits_for_the_lock_before_it() {
    Sim::new(1).run(async {
        let two = Two::new().await;
        // So that the LOCK is not sent at once.
        two.given_up(two.file.set_len(1)).await;
        two.world.sent.borrow_mut().clear();
        let (locked, closed) = futures_util::join!(two.file.lock(R, Exclusive, Fail), two.file.close());
        locked.unwrap();
        closed.unwrap();
        let sent = two.world.sent.take();
        let changes: Vec<_> =
            sent.into_iter().filter(|op| [opnum::LOCK, opnum::LOCKU, opnum::CLOSE].contains(op)).collect();
        assert_eq!(changes, [opnum::LOCK, opnum::LOCKU, opnum::CLOSE]);
        assert!(!is_locked_for(&two.theirs).await);
    });
}
