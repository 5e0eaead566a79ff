use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, mpsc};

use bytes::Bytes;

use super::*;
use crate::file::{File, FileRange};
use crate::net::{Socket, Stream};
use crate::rt::{Task, block_on, spawn, yield_now};

/// Two descriptors of one file on a disk.
fn twice() -> (File, File) {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).expect("a temporary file");
    let again = file.reopen().expect("it is there");
    (File::from(std::os::fd::OwnedFd::from(file.into_file())), File::from(std::os::fd::OwnedFd::from(again)))
}

/// Starts a call on a worker that holds `file` until the result is dropped.
async fn held(file: &File) -> (Task<()>, mpsc::Sender<()>) {
    let (release, gate) = mpsc::channel();
    let file = file.clone();
    let begun = Inode::of(&file).expect("its inode");
    let call = spawn(async move {
        let ended = ranged(&file, move || gate.recv().is_err()).await;
        assert!(ended.expect("its inode"));
    });
    while !table().contains_key(&begun) {
        yield_now().await;
    }
    (call, release)
}

async fn is_pending<F: Future>(future: &mut Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

fn run(story: impl Future<Output = ()>) {
    block_on(story).expect("the loop starts");
}

#[test]
fn who_changes_a_file_that_a_worker_has_waits_as_a_task_and_others_go_on() {
    run(async {
        let (file, again) = twice();
        let (call, release) = held(&file).await;
        let bytes = [Bytes::from_static(b"abc")];
        let mut write = pin!(again.write_at(0, &bytes));
        let mut punch = pin!(again.punch_hole(0, 1));
        assert!(is_pending(&mut write).await);
        assert!(is_pending(&mut punch).await);
        // So does a read of what the call frees.
        let range = FileRange { file: again.clone(), offset: 0, len: 1 };
        let mut warm = pin!(range.warm(0, 1));
        assert!(is_pending(&mut warm).await);
        assert!(range.mapped().is_none());
        assert!(is_locked(&again));
        // The core serves another file, and so do the workers.
        let (other, _) = twice();
        assert!(!is_locked(&other));
        other.write_at(0, &bytes).await.expect("written");
        other.allocate(0, 8192, false).await.expect("space");
        assert_eq!(again.len().expect("length"), 0);
        drop(release);
        write.await.expect("written");
        punch.await.expect("a hole");
        warm.await.expect("read");
        call.await;
        assert_eq!(again.len().expect("length"), 3);
        assert!(!table().contains_key(&Inode::of(&file).expect("its inode")), "nothing is left of it");
    });
}

#[test]
fn those_who_wait_for_a_file_take_no_places_of_workers() {
    run(async {
        let (file, again) = twice();
        let (call, release) = held(&file).await;
        let running = Arc::new(AtomicUsize::new(0));
        // More calls than there are places of any kind.
        let waiting: Vec<_> = (0..200)
            .map(|_| {
                let (again, running) = (again.clone(), running.clone());
                let count = move || {
                    let at_once = running.fetch_add(1, Ordering::SeqCst) + 1;
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    at_once
                };
                spawn(async move { ranged(&again, count).await })
            })
            .collect();
        yield_now().await;
        assert_eq!(running.load(Ordering::SeqCst), 0, "the first one still has it");
        let (other, _) = twice();
        other.allocate(0, 8192, false).await.expect("space");
        drop(release);
        for call in waiting {
            assert_eq!(call.await.expect("its inode"), 1);
        }
        call.await;
    });
}

/// A client that has a range freed may request hundreds of reads and syncs of that file.
#[test]
fn reads_and_syncs_of_a_file_that_is_locked_wait_in_no_workers_place_and_none_is_locked_before_they_end() {
    run(async {
        let (file, again) = twice();
        let (call, release) = held(&file).await;
        let trips = rt::tests::BLOCKING_CALLS.get();
        let range = FileRange { file: again.clone(), offset: 0, len: 1 };
        let mut ahead = pin!(range.warm(0, 1));
        let mut sync = pin!(again.sync(true));
        assert!(is_pending(&mut ahead).await);
        assert!(is_pending(&mut sync).await);
        let mut next = pin!(again.punch_hole(0, 1));
        assert!(is_pending(&mut next).await);
        drop(release);
        call.await;
        assert_eq!(rt::tests::BLOCKING_CALLS.get() - trips, 0);
        ahead.await.expect("read");
        assert!(is_pending(&mut next).await);
        assert!(!is_locked(&again), "a sync has it");
        sync.await.expect("durable");
        next.await.expect("a hole");
        assert!(!table().contains_key(&Inode::of(&file).expect("its inode")));
    });
}

/// A client may stop reading in the middle of a range, have that range freed, and continue reading.
#[test]
fn what_is_sent_from_a_file_that_is_locked_meanwhile_waits_as_a_task() {
    let (file, again) = twice();
    sends_beside_a_worker(file, again);
}

/// It needs no warming, so its sender once looped forever before the worker's task got its turn.
#[test]
fn so_does_what_is_sent_from_a_file_in_memory() {
    let file = File::in_memory("sent").expect("memfd");
    sends_beside_a_worker(file.clone(), file);
}

fn sends_beside_a_worker(file: File, again: File) {
    run(async {
        let len = 1 << 20;
        file.write_at(0, &[vec![7; len].into()]).await.expect("written");
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        theirs.set_nonblocking(true).expect("no waiting");
        let ours = Stream::from_socket(Socket::from_unix(ours).expect("a socket")).expect("a stream");
        let range = FileRange { file: again, offset: 0, len };
        let sending = spawn(async move { ours.send_file(&range).await });
        for _ in 0..100 {
            yield_now().await;
        }
        let (call, release) = held(&file).await;
        let mut buf = vec![0; 64 << 10];
        let mut received = 0;
        for _ in 0..100 {
            received += io::Read::read(&mut theirs, &mut buf).unwrap_or(0);
            yield_now().await;
        }
        assert!(received > 0 && received < len && !sending.is_finished(), "{received}");
        // It gets its turn before the next call that locks the file.
        let (next, gate) = mpsc::channel::<()>();
        let next_call = spawn(async move { ranged(&file, move || gate.recv().is_err()).await });
        yield_now().await;
        drop(release);
        call.await;
        let before = received;
        while received == before {
            received += io::Read::read(&mut theirs, &mut buf).unwrap_or(0);
            yield_now().await;
        }
        drop(next);
        while received < len {
            received += io::Read::read(&mut theirs, &mut buf).unwrap_or(0);
            yield_now().await;
        }
        assert!(next_call.await.expect("its inode"));
        sending.await.expect("sent");
    });
}

/// Otherwise each write would cost a table lookup while any file is being synced.
#[test]
fn who_writes_claims_a_file_only_where_somebody_wants_it_alone() {
    run(async {
        let (file, again) = twice();
        let inode = Inode::of(&file).expect("its inode");
        let reads = Claiming::new(inode, Mode::Shared).await;
        let mut waits = pin!(Claiming::new(inode, Mode::Alone));
        assert!(is_pending(&mut waits).await);
        let bytes = [Bytes::from_static(b"abc")];
        let mut write = pin!(again.write_at(0, &bytes));
        assert!(is_pending(&mut write).await, "behind whoever wants it alone");
        drop(reads);
        drop(waits.await);
        write.await.expect("written");
        let reads = Claiming::new(inode, Mode::Shared).await;
        assert!(Unlocked::now(vec![inode]).is_ok());
        drop(reads);
        assert!(!table().contains_key(&inode));
    });
}

/// A rename locks both files on its core.
#[test]
fn who_waits_for_one_of_two_files_keeps_workers_from_the_other() {
    run(async {
        let mut inodes = [twice().0, twice().0].map(|file| Inode::of(&file).expect("its inode"));
        inodes.sort();
        for (wanted, other) in [(inodes[1], inodes[0]), (inodes[0], inodes[1])] {
            let first = alone(wanted).await;
            let mut both = pin!(shared(inodes.to_vec()));
            assert!(is_pending(&mut both).await);
            // The first one is held by now, and the wait for the second one is in order.
            let mut next = pin!(alone(inodes[0]));
            assert!(is_pending(&mut next).await);
            drop(first);
            let unlocked = both.await;
            assert!(unlocked.covers(&inodes));
            let mut late = pin!(alone(inodes[1]));
            for wants in [&mut next, &mut late] {
                assert!(is_pending(wants).await, "{other:?}");
            }
            assert!(inodes.iter().all(|inode| table()[inode].granted != Granted::Alone));
            drop(unlocked);
            drop((next.await, late.await));
            assert!(inodes.iter().all(|inode| !table().contains_key(inode)));
        }
    });
}

#[test]
fn claims_are_granted_in_order_and_shared_ones_together() {
    run(async {
        let (file, _) = twice();
        let inode = Inode::of(&file).expect("its inode");
        let first = alone(inode).await;
        let [mut a, mut b, mut c] =
            [Mode::Shared, Mode::Shared, Mode::Alone].map(|mode| Box::pin(Claiming::new(inode, mode)));
        let mut late = Box::pin(Claiming::new(inode, Mode::Shared));
        for claim in [&mut a, &mut b, &mut c, &mut late] {
            assert!(is_pending(&mut claim.as_mut()).await);
        }
        drop(first);
        let (a, b) = (a.await, b.await);
        for claim in [&mut c, &mut late] {
            assert!(is_pending(&mut claim.as_mut()).await);
        }
        drop(a);
        assert!(is_pending(&mut c.as_mut()).await);
        drop(b);
        let c = c.await;
        assert!(is_pending(&mut late.as_mut()).await);
        drop(c);
        drop(late.await);
        assert!(!table().contains_key(&inode));
    });
}

/// A user who may only read requests hundreds.
#[test]
fn who_writes_waits_for_one_seek_however_many_were_asked_for_before() {
    run(async {
        let (file, again) = twice();
        let inode = Inode::of(&file).expect("its inode");
        let claim = |mode| Box::pin(Claiming::new(inode, mode));
        let first = claim(Mode::Seek).await;
        let mut seeks: Vec<_> = (0..100).map(|_| claim(Mode::Seek)).collect();
        for seek in &mut seeks {
            assert!(is_pending(&mut seek.as_mut()).await);
        }
        let bytes = [Bytes::from_static(b"abc")];
        let mut write = pin!(again.write_at(0, &bytes));
        let (mut reads, mut punch) = (claim(Mode::Shared), claim(Mode::Alone));
        assert!(is_pending(&mut write).await);
        assert!(is_pending(&mut reads.as_mut()).await);
        assert!(is_pending(&mut punch.as_mut()).await);
        drop(first);
        assert!(!is_pending(&mut write).await, "a hundred seeks are not waited for");
        let reads = reads.await;
        // A later claim does not delay the next seek. The seeks do not delay the exclusive claim.
        let mut late = claim(Mode::Shared);
        assert!(is_pending(&mut late.as_mut()).await);
        drop(reads);
        let mut seeks = seeks.into_iter();
        drop(seeks.next().expect("a hundred").await);
        drop(punch.await);
        assert!(is_pending(&mut late.as_mut()).await);
        drop(seeks.next().expect("a hundred").await);
        drop(late.await);
        for seek in seeks {
            drop(seek.await);
        }
        assert!(!table().contains_key(&inode));
        assert!(!is_locked(&file));
    });
}

#[test]
fn whoever_gives_up_waiting_keeps_nobody_from_the_file() {
    run(async {
        let (file, _) = twice();
        let inode = Inode::of(&file).expect("its inode");
        for (is_granted, mode) in
            [(false, Mode::Alone), (true, Mode::Alone), (false, Mode::Seek), (true, Mode::Seek)]
        {
            let first = alone(inode).await;
            let mut gives_up = Box::pin(Claiming::new(inode, mode));
            let mut next = Box::pin(Claiming::new(inode, Mode::Shared));
            assert!(is_pending(&mut gives_up.as_mut()).await);
            assert!(is_pending(&mut next.as_mut()).await);
            if is_granted {
                drop(first);
                drop(gives_up);
            } else {
                drop(gives_up);
                drop(first);
            }
            drop(next.await);
            assert!(!table().contains_key(&inode));
        }
    });
}

#[test]
fn who_gives_up_lets_those_behind_join_what_is_granted() {
    run(async {
        let (file, _) = twice();
        let inode = Inode::of(&file).expect("its inode");
        let reads = Claiming::new(inode, Mode::Shared).await;
        let mut gives_up = Box::pin(Claiming::new(inode, Mode::Alone));
        let mut joins = Box::pin(Claiming::new(inode, Mode::Shared));
        assert!(is_pending(&mut gives_up.as_mut()).await);
        assert!(is_pending(&mut joins.as_mut()).await);
        drop(gives_up);
        drop(joins.await);
        drop(reads);
        assert!(!table().contains_key(&inode));
    });
}

#[test]
fn a_call_that_nobody_awaits_keeps_its_claim_until_it_ends() {
    run(async {
        let (file, again) = twice();
        let (call, release) = held(&file).await;
        // Wait until the worker has it: from then on the call no longer ends with its future.
        while rt::tests::BLOCKING_CALLS.get() == 0 {
            yield_now().await;
        }
        drop(call);
        yield_now().await;
        let bytes = [Bytes::from_static(b"abc")];
        let mut write = pin!(again.write_at(0, &bytes));
        assert!(is_pending(&mut write).await);
        drop(release);
        write.await.expect("written");
    });
}

#[test]
fn two_copies_between_two_files_do_not_wait_for_each_other() {
    run(async {
        let (a, b) = (twice().0, twice().0);
        for file in [&a, &b] {
            file.write_at(0, &[Bytes::from_static(&[7; 8192])]).await.expect("written");
        }
        let copies: Vec<_> = (0..100)
            .map(|i| {
                let (to, from) = if i % 2 == 0 { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
                spawn(async move { to.copy_from(0, &from, 0, 8192).await })
            })
            .collect();
        for copy in copies {
            assert_eq!(copy.await.expect("copied"), 8192);
        }
    });
}
