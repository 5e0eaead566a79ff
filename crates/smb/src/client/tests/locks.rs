//! Byte-range locks: between handles, between sessions, and when a connection is lost in the middle.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join, poll_immediate};
use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::{Dialect, NtStatus};

use super::super::*;
use super::multichannel::tcp;
use super::own::Own;

use LockKind::{Exclusive, Shared};
use OnConflict::{Fail, Wait};

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

async fn open(own: &Own, options: Options) -> (Session, File) {
    let session = Session::connect(tcp(own).await, options).await.unwrap();
    let file = session.tree("data").await.unwrap().open("f", OpenOptions::create()).await.unwrap();
    (session, file)
}

fn status(outcome: Result<(), Error>) -> Option<NtStatus> {
    outcome.unwrap_err().status()
}

#[test]
fn a_lock_excludes_others_until_it_is_unlocked() {
    for dialect in [Dialect::V2_1, Dialect::V3_0, Dialect::V3_1_1] {
        Sim::new(71).run(async {
            let own = Own::new(|_| {});
            let options = || Options { dialects: dialect..=dialect, ..own.options() };
            let ((_one, mine), (_two, theirs)) = (open(&own, options()).await, open(&own, options()).await);
            mine.write(0, Bytes::from_static(b"twenty bytes of data")).await.unwrap();
            mine.lock(range(0, 10), Exclusive, Fail).await.unwrap();
            let refused = theirs.lock(range(9, 1), Shared, Fail).await.unwrap_err();
            assert!(refused.is_locked(), "{refused}");
            assert!(theirs.read(5, 1).await.unwrap_err().is_locked());
            theirs.lock(range(10, 10), Shared, Fail).await.unwrap();
            mine.lock(range(10, 5), Shared, Fail).await.unwrap();
            assert!(mine.lock(range(19, 9), Exclusive, Fail).await.unwrap_err().is_locked());
            assert!(mine.write(12, Bytes::from_static(b"x")).await.unwrap_err().is_locked());
            // Beyond the end of the file.
            theirs.lock(range(1 << 40, 1), Exclusive, Fail).await.unwrap();
            mine.unlock(range(0, 10)).await.unwrap();
            theirs.lock(range(0, 10), Exclusive, Fail).await.unwrap();
            // Closing a handle releases its locks.
            theirs.close().await.unwrap();
            mine.unlock(range(10, 5)).await.unwrap();
            mine.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        });
    }
}

#[test]
fn a_lock_waits_until_the_range_is_free() {
    Sim::new(72).run(async {
        let own = Own::new(|_| {});
        let ((_one, mine), (_two, theirs)) =
            (open(&own, own.options()).await, open(&own, own.options()).await);
        mine.lock(range(0, 10), Exclusive, Wait).await.unwrap();
        let begun = rt::now();
        let unlock = async {
            // Longer than the server may be silent, or at work on another request.
            rt::sleep(Duration::from_secs(900)).await;
            mine.unlock(range(0, 10)).await.unwrap();
        };
        let (locked, ()) = join(theirs.lock(range(5, 1), Exclusive, Wait), unlock).await;
        locked.unwrap();
        assert!(rt::now() - begun >= Duration::from_secs(900));
        assert!(mine.lock(range(5, 1), Shared, Fail).await.unwrap_err().is_locked());
        // One that is given up is cancelled, and does not get the lock later.
        let given_up = mine.lock(range(5, 1), Exclusive, Wait);
        assert!(rt::timeout(Duration::from_secs(1), given_up).await.is_err());
        theirs.unlock(range(5, 1)).await.unwrap();
        rt::sleep(Duration::from_secs(1)).await;
        theirs.lock(range(5, 1), Exclusive, Fail).await.unwrap();
    });
}

#[test]
fn a_wait_ends_with_its_handle_and_with_its_connection() {
    Sim::new(73).run(async {
        let own = Own::new(|_| {});
        let (_one, mine) = open(&own, own.options()).await;
        mine.lock(range(0, 1), Exclusive, Fail).await.unwrap();
        let (_two, theirs) = open(&own, own.options()).await;
        let closes = async {
            rt::sleep(Duration::from_secs(1)).await;
            theirs.clone().close().await.unwrap();
        };
        let (waited, ()) = join(theirs.lock(range(0, 1), Shared, Wait), closes).await;
        assert_eq!(status(waited), Some(NtStatus::RANGE_NOT_LOCKED));
        let channel = tcp(&own).await;
        let session = Session::connect(channel.clone(), own.options()).await.unwrap();
        let lost = session.tree("data").await.unwrap().open("f", OpenOptions::write()).await.unwrap();
        let mut waiting = pin!(lost.lock(range(0, 1), Shared, Wait));
        assert!(poll_immediate(&mut waiting).await.is_none());
        channel.cut();
        assert!(waiting.await.unwrap_err().is_loss());
    });
}

#[test]
fn wrong_use_is_an_error() {
    Sim::new(74).run(async {
        let own = Own::new(|_| {});
        let (session, file) = open(&own, own.options()).await;
        for beyond in [range(2, u64::MAX), range(u64::MAX, 2)] {
            assert!(matches!(file.lock(beyond, Exclusive, Fail).await, Err(Error::Misuse(_))), "{beyond:?}");
            assert!(matches!(file.unlock(beyond).await, Err(Error::Misuse(_))), "{beyond:?}");
        }
        assert_eq!(status(file.unlock(range(0, 10)).await), Some(NtStatus::RANGE_NOT_LOCKED));
        file.lock(range(0, 10), Exclusive, Fail).await.unwrap();
        // A part is not what was locked, and a handle's own lock conflicts.
        assert_eq!(status(file.unlock(range(0, 5)).await), Some(NtStatus::RANGE_NOT_LOCKED));
        assert!(file.lock(range(0, 5), Exclusive, Fail).await.unwrap_err().is_locked());
        let other = session.tree("data").await.unwrap().open("f", OpenOptions::read()).await.unwrap();
        let text = other.unlock(range(0, 10)).await.unwrap_err().to_string();
        assert!(text.contains("not locked through this handle"), "{text}");
        let closed = file.clone();
        file.close().await.unwrap();
        assert_eq!(status(closed.lock(range(0, 1), Shared, Fail).await), Some(NtStatus::FILE_CLOSED));
        let directory = OpenOptions {
            access: AccessMask::FILE_GENERIC_READ,
            options: CreateOptions::DIRECTORY_FILE,
            ..OpenOptions::read()
        };
        let root = session.tree("data").await.unwrap().open("", directory).await.unwrap();
        assert_eq!(status(root.lock(range(0, 1), Shared, Fail).await), Some(NtStatus::INVALID_PARAMETER));
    });
}

#[test]
fn a_lock_whose_answer_is_lost_with_its_connection_is_not_taken_twice() {
    Sim::new(75).run(async {
        let own = Own::new(|_| {});
        let first = tcp(&own).await;
        let session = Session::connect(first.clone(), own.options()).await.unwrap();
        let file = session.tree("data").await.unwrap().open("f", OpenOptions::create()).await.unwrap();
        session.add(tcp(&own).await).await.unwrap();
        file.lock(range(50, 1), Shared, Fail).await.unwrap();
        // The server carries the LOCK out, and its answer does not arrive.
        first.silent.set(true);
        file.lock(range(0, 10), Shared, Fail).await.unwrap();
        assert_eq!(session.lost_connections(), 1);
        file.unlock(range(0, 10)).await.unwrap();
        assert_eq!(status(file.unlock(range(0, 10)).await), Some(NtStatus::RANGE_NOT_LOCKED));
    });
}

#[test]
fn a_handle_that_is_reconnected_locks_under_numbers_that_the_server_has_not_seen() {
    for dialect in [Dialect::V2_1, Dialect::V3_1_1] {
        Sim::new(76).run(async {
            let own = Own::new(|_| {});
            let options = Options { dialects: dialect..=dialect, ..own.options() };
            let channel = tcp(&own).await;
            let session = Session::connect(channel.clone(), options.clone()).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open_kept("f", OpenOptions::create()).await.unwrap();
            // The last number that the server remembers is the one that a new handle begins with.
            assert_eq!(status(file.unlock(range(0, 10)).await), Some(NtStatus::RANGE_NOT_LOCKED));
            for _ in 0..8 {
                file.lock(range(0, 10), Exclusive, Fail).await.unwrap();
                file.unlock(range(0, 10)).await.unwrap();
            }
            channel.cut();
            assert!(file.read(0, 1).await.unwrap_err().is_loss());
            let session = session.again(tcp(&own).await).await.unwrap();
            let again = session.tree("data").await.unwrap().reopen(&file).await.unwrap();
            again.lock(range(40, 10), Exclusive, Fail).await.unwrap();
            let (_other, theirs) = open(&own, options).await;
            let refused = theirs.lock(range(40, 1), Shared, Fail).await.unwrap_err();
            assert!(refused.is_locked(), "{dialect}: {refused}");
            again.unlock(range(40, 10)).await.unwrap();
            theirs.lock(ByteRange::WHOLE, Exclusive, Fail).await.unwrap();
        });
    }
}
