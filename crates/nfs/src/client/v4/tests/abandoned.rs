//! Requests that end without a reply, because the caller gives up or the server does not answer: what the server may
//! still carry out undoes nothing that comes later, and what was to be undone is.

use weft_wire::nfs4::Locku;

use super::*;
use crate::client::{ByteRange, File, LockKind, OnConflict};

use LockKind::{Exclusive, Shared};
use OnConflict::Fail;

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
