//! LOCK, CHANGE_NOTIFY and OPLOCK_BREAK.

use std::pin::pin;

use futures_util::future::{Either, join, poll_immediate, select};
use weft_store::vfs::{Backend, Caller, Error, Op, Outcome};
use weft_wire::smb2::create_context::LeaseState;
use weft_wire::smb2::lock::{Element, Flags, Request};
use weft_wire::smb2::oplock_break;

use super::*;

const EXCLUSIVE: Flags = Flags::EXCLUSIVE_LOCK;
const SHARED: Flags = Flags::SHARED_LOCK;
const NOW: Flags = Flags::FAIL_IMMEDIATELY;

fn request(file: FileId, ranges: &[(u64, u64, Flags)]) -> Request {
    let element = |&(offset, length, flags): &(u64, u64, Flags)| Element { offset, length, flags };
    Request { sequence: 0, file, locks: ranges.iter().map(element).collect() }
}

async fn lock(b: &Bench, file: FileId, ranges: &[(u64, u64, Flags)]) -> Result<(), NtStatus> {
    b.ask(Command::Lock, |out| request(file, ranges).emit(out)).await.map(drop)
}

async fn two(b: &Bench) -> (FileId, FileId) {
    b.put("f", &[0; 100]).await;
    (b.open(&Wish::file("f")).await.unwrap(), b.open(&Wish::file("f")).await.unwrap())
}

#[test]
fn locks_keep_others_out() {
    run(async |b| {
        let (one, two) = two(&b).await;
        lock(&b, one, &[(10, 10, EXCLUSIVE)]).await.unwrap();
        assert_eq!(status(payload::read(&b, two, 0, 11).await), NtStatus::FILE_LOCK_CONFLICT);
        assert_eq!(status(payload::write(&b, two, 19, b"x").await), NtStatus::FILE_LOCK_CONFLICT);
        payload::write(&b, one, 10, b"x").await.unwrap();
        payload::write(&b, two, 20, b"x").await.unwrap();
        assert_eq!(status(lock(&b, two, &[(0, 100, SHARED | NOW)]).await), NtStatus::LOCK_NOT_GRANTED);
        // All or none.
        let answer = lock(&b, two, &[(50, 10, EXCLUSIVE | NOW), (15, 1, EXCLUSIVE | NOW)]).await;
        assert_eq!(status(answer), NtStatus::LOCK_NOT_GRANTED);
        lock(&b, one, &[(50, 10, SHARED | NOW)]).await.unwrap();
        assert_eq!(status(payload::write(&b, one, 50, b"x").await), NtStatus::FILE_LOCK_CONFLICT);
        lock(&b, one, &[(10, 10, Flags::UNLOCK), (50, 10, Flags::UNLOCK)]).await.unwrap();
        assert_eq!(status(lock(&b, one, &[(10, 10, Flags::UNLOCK)]).await), NtStatus::RANGE_NOT_LOCKED);
        lock(&b, two, &[(0, u64::MAX, EXCLUSIVE | NOW)]).await.unwrap();
        b.close(two).await.unwrap();
        payload::write(&b, one, 0, b"x").await.unwrap();
    });
}

#[test]
fn lock_requests_that_contradict_themselves() {
    run(async |b| {
        let (one, _) = two(&b).await;
        for flags in [Flags::NONE, SHARED | EXCLUSIVE, EXCLUSIVE | Flags::UNLOCK, Flags(0x40), NOW] {
            assert_eq!(status(lock(&b, one, &[(0, 1, flags)]).await), NtStatus::INVALID_PARAMETER);
        }
        let waiting = [(0, 1, EXCLUSIVE | NOW), (5, 1, EXCLUSIVE)];
        assert_eq!(status(lock(&b, one, &waiting).await), NtStatus::INVALID_PARAMETER);
        let mixed = [(0, 1, EXCLUSIVE | NOW), (5, 1, Flags::UNLOCK | NOW)];
        assert_eq!(status(lock(&b, one, &mixed).await), NtStatus::INVALID_PARAMETER);
        assert_eq!(status(lock(&b, one, &[(2, u64::MAX, EXCLUSIVE)]).await), NtStatus::INVALID_LOCK_RANGE);
        let dir = b.open(&Wish::dir("")).await.unwrap();
        assert_eq!(status(lock(&b, dir, &[(0, 1, EXCLUSIVE)]).await), NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn a_lock_waits_and_says_so() {
    run(async |b| {
        let (one, two) = two(&b).await;
        lock(&b, one, &[(0, 10, EXCLUSIVE)]).await.unwrap();
        let cx = b.cx(Command::Lock, |out| request(two, &[(5, 1, EXCLUSIVE)]).emit(out));
        let mut waiting = pin!(dispatch(&cx));
        assert!(poll_immediate(&mut waiting).await.is_none());
        assert!(cx.async_id.get().is_some(), "an interim response");
        let (granted, released) = join(waiting, lock(&b, one, &[(0, 10, Flags::UNLOCK)])).await;
        released.unwrap();
        granted.unwrap();
        assert_eq!(status(payload::read(&b, one, 5, 1).await), NtStatus::FILE_LOCK_CONFLICT);
    });
}

#[test]
fn a_waiting_lock_is_cancelled_or_ends_with_its_handle() {
    run(async |b| {
        let (one, two) = two(&b).await;
        lock(&b, one, &[(0, 10, EXCLUSIVE)]).await.unwrap();
        let cx = b.cx(Command::Lock, |out| request(two, &[(5, 1, EXCLUSIVE)]).emit(out));
        let mut waiting = pin!(dispatch(&cx));
        assert!(poll_immediate(&mut waiting).await.is_none());
        b.connection.waiting.cancel(cx.header().message_id, b.session.id);
        assert_eq!(waiting.await.unwrap_err().status, NtStatus::CANCELLED);
        let cx = b.cx(Command::Lock, |out| request(two, &[(5, 1, EXCLUSIVE)]).emit(out));
        let mut waiting = pin!(dispatch(&cx));
        assert!(poll_immediate(&mut waiting).await.is_none());
        b.close(two).await.unwrap();
        assert_eq!(waiting.await.unwrap_err().status, NtStatus::RANGE_NOT_LOCKED);
        lock(&b, one, &[(0, 10, Flags::UNLOCK)]).await.unwrap();
        lock(&b, one, &[(5, 1, EXCLUSIVE | NOW)]).await.unwrap();
    });
}

/// A disk that never answers at once.
struct Slow(Ram);

impl Backend for Slow {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            rt::yield_now().await;
            self.0.submit(op, by).await
        })
    }
}

#[test]
fn who_waited_for_a_lock_hears_of_it_after_the_close_that_gave_it_back() {
    rt::block_on(async {
        let b = Bench::with(Vfs::new(Slow(Ram::new(DISK))), Dialect::V3_1_1, true);
        let (one, two) = two(&b).await;
        lock(&b, one, &[(0, 10, EXCLUSIVE)]).await.unwrap();
        let cx = b.cx(Command::Lock, |out| request(two, &[(5, 1, EXCLUSIVE)]).emit(out));
        let mut waiting = pin!(dispatch(&cx));
        assert!(poll_immediate(&mut waiting).await.is_none());
        // The close asks for attributes, which takes time; the waiter is polled meanwhile.
        match select(pin!(b.close(one)), waiting).await {
            Either::Left((closed, waiting)) => {
                closed.unwrap();
                waiting.await.unwrap();
            }
            Either::Right(_) => panic!("the lock was granted before its holder's close was answered"),
        }
    })
    .unwrap();
}

#[test]
fn nothing_was_granted() {
    run(async |b| {
        b.put("f", b"").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let oplock = oplock_break::Request::Oplock { level: OplockLevel::II, file };
        let answer = b.ask(Command::OplockBreak, |out| oplock.emit(out)).await;
        assert_eq!(status(answer), NtStatus::INVALID_DEVICE_STATE);
        let lease = oplock_break::Request::Lease { key: [1; 16], state: LeaseState::NONE };
        let answer = b.ask(Command::OplockBreak, |out| lease.emit(out)).await;
        assert_eq!(status(answer), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}
