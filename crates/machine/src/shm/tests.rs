use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::dir::choose;
use super::*;
use crate::buf::memfd;
use crate::net::Peer;

/// A directory of its own, removed afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("weft-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const CAPACITY: usize = 4;

/// A ring and its underlying words.
fn ring() -> (Words, Words, Producer<2>, Consumer<2>) {
    let words = Words::create("test", CAPACITY * 3 + 1).unwrap();
    let (slots, taken) = (words.part(0..CAPACITY * 3), words.part(CAPACITY * 3..CAPACITY * 3 + 1));
    let producer = Producer::new(slots.clone(), taken.clone());
    let consumer = Consumer::new(slots.clone(), taken.clone());
    (slots, taken, producer, consumer)
}

#[test]
fn slots_arrive_in_order_across_many_laps() {
    let (_, _, mut producer, mut consumer) = ring();
    let mut read = 0;
    for n in 0..1000u64 {
        producer.push([n, !n]).unwrap();
        assert!(consumer.has_news());
        if n % 3 == 2 {
            while let Some(words) = consumer.pop() {
                assert_eq!(words, [read, !read]);
                read += 1;
            }
        }
    }
    assert_eq!(read, 999);
}

#[test]
fn a_full_ring_refuses_until_a_slot_is_taken() {
    let (_, _, mut producer, mut consumer) = ring();
    for n in 0..CAPACITY as u64 {
        producer.push([n, 0]).unwrap();
    }
    assert_eq!(producer.push([9, 9]), Err(Full));
    assert_eq!(consumer.pop(), Some([0, 0]));
    producer.push([4, 0]).unwrap();
    assert_eq!(producer.push([9, 9]), Err(Full));
    assert_eq!(std::iter::from_fn(|| consumer.pop()).map(|w| w[0]).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn a_hostile_taken_index_gives_no_room_and_no_panic() {
    let (_, taken, mut producer, _) = ring();
    for n in 0..CAPACITY as u64 {
        producer.push([n, 0]).unwrap();
    }
    for hostile in [5, 6, 1 << 40, u64::MAX, u64::MAX - 3] {
        taken[0].store(hostile, Ordering::Relaxed);
        assert_eq!(producer.push([9, 9]), Err(Full), "taken {hostile:#x}");
    }
    taken[0].store(4, Ordering::Relaxed);
    producer.push([9, 9]).unwrap();
}

#[test]
fn hostile_stamps_yield_at_most_the_slot_that_is_next() {
    let (slots, _, mut producer, mut consumer) = ring();
    for stamp in [2, 3, 5, 1 << 63, u64::MAX] {
        slots[0].store(stamp, Ordering::Relaxed);
        assert_eq!(consumer.pop(), None, "stamp {stamp:#x}");
    }
    slots[0].store(0, Ordering::Relaxed);
    producer.push([7, 8]).unwrap();
    // A stale stamp of this lap is not news in the next one.
    assert_eq!(consumer.pop(), Some([7, 8]));
    for _ in 0..CAPACITY {
        assert_eq!(consumer.pop(), None);
    }
}

#[test]
fn slots_cross_threads_whole() {
    const SLOTS: u64 = 200_000;
    let (_, _, mut producer, mut consumer) = ring();
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < SLOTS {
            match producer.push([next, next.wrapping_mul(0x9e37_79b9_7f4a_7c15)]) {
                Ok(()) => next += 1,
                Err(Full) => std::thread::yield_now(),
            }
        }
    });
    let mut expected = 0;
    while expected < SLOTS {
        match consumer.pop() {
            Some(words) => {
                assert_eq!(words, [expected, expected.wrapping_mul(0x9e37_79b9_7f4a_7c15)]);
                expected += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    sender.join().unwrap();
}

/// A consumer that goes to sleep by the doorbell's rules whenever the ring is empty must not sleep through a slot.
#[test]
fn no_news_is_slept_through() {
    const SLOTS: u64 = 20_000;
    let (_, _, mut producer, mut consumer) = ring();
    let words = Words::create("test", 1).unwrap();
    let (mine, theirs) = (Sleeper::new(words.clone()), Sleeper::new(words));
    let (bell, their_bell) = Doorbell::new().unwrap();
    let sender = std::thread::spawn(move || {
        for n in 0..SLOTS {
            while producer.push([n, 0]) == Err(Full) {
                std::thread::yield_now();
            }
            theirs.wake(&their_bell);
        }
    });
    let mut expected = 0;
    while expected < SLOTS {
        while let Some([n, _]) = consumer.pop() {
            assert_eq!(n, expected);
            expected += 1;
        }
        mine.announce();
        if !consumer.has_news() && expected < SLOTS {
            let mut fds = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(
                rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
                1,
                "slept through slot {expected}"
            );
            assert!(bell.silence().unwrap());
        }
        mine.awake();
    }
    sender.join().unwrap();
}

#[test]
fn a_bell_rings_once_per_sleep() {
    let words = Words::create("test", 1).unwrap();
    let (mine, theirs) = (Sleeper::new(words.clone()), Sleeper::new(words));
    let (bell, ringer) = Doorbell::new().unwrap();
    assert!(!theirs.wake(&ringer));
    assert!(!bell.silence().unwrap());
    mine.announce();
    assert!(theirs.wake(&ringer));
    assert!(!theirs.wake(&ringer), "the second of a burst costs no system call");
    assert!(bell.silence().unwrap());
    assert!(!bell.silence().unwrap());
}

#[test]
fn nothing_that_could_block_its_ringer_is_adopted() {
    let (_reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let (seqpacket, _peer) = Socket::pair().unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for fd in [writer, eventfd, seqpacket.as_fd().try_clone_to_owned().unwrap(), tcp.into()] {
        assert_eq!(Ringer::adopt(fd).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    }
}

/// The peer shares the file description of the bell that we ring: it makes the description blocking and fills it up.
#[test]
fn a_peer_cannot_make_ringing_wait() {
    let (bell, passed) = Doorbell::new().unwrap();
    let ringer = Ringer::adopt(passed.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let flags = rustix::fs::fcntl_getfl(&passed).unwrap();
    rustix::fs::fcntl_setfl(&passed, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    assert!(
        !rustix::fs::fcntl_getfl(&ringer).unwrap().contains(rustix::fs::OFlags::NONBLOCK),
        "one description"
    );
    let full = rustix::net::SendFlags::DONTWAIT;
    while rustix::net::send(&passed, &[0; 4096], full).is_ok() {}
    let (done, rung) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        (0..1000).for_each(|_| ringer.ring());
        done.send(ringer).unwrap();
    });
    let ringer = rung.recv_timeout(std::time::Duration::from_secs(20)).expect("ringing waits for the peer");
    // Nor does silencing wait: the ring bytes are taken out a piece at a time.
    assert!(bell.silence().unwrap());
    while bell.silence().unwrap() {}
    assert!(!bell.silence().unwrap());
    // A bell that nobody can ring reports so.
    drop((passed, ringer));
    assert_eq!(bell.silence().unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn messages_and_descriptors_pass() {
    let (a, b) = Socket::pair().unwrap();
    let words = Words::create("test", 8).unwrap();
    words[5].store(42, Ordering::Relaxed);
    a.send(b"first", &[words.segment_fd()]).unwrap();
    a.send(b"second", &[]).unwrap();
    let mut bytes = [0; 16];
    let Received { len, mut fds } = b.try_recv(&mut bytes).unwrap();
    assert_eq!((&bytes[..len], fds.len()), (&b"first"[..], 1));
    let theirs = Words::over(adopt(fds.remove(0), 64, 64).unwrap());
    assert_eq!((theirs.len(), theirs[5].load(Ordering::Relaxed)), (8, 42));
    theirs[6].store(43, Ordering::Relaxed);
    assert_eq!(words[6].load(Ordering::Relaxed), 43);
    let Received { len, fds } = b.try_recv(&mut bytes).unwrap();
    assert_eq!((&bytes[..len], fds.len()), (&b"second"[..], 0));
    assert_eq!(b.try_recv(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    a.send(b"longer than the room for it", &[]).unwrap();
    assert_eq!(b.try_recv(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn a_hang_up_is_seen_without_reading() {
    let (a, b) = Socket::pair().unwrap();
    assert!(!b.hung_up());
    a.send(b"unread", &[]).unwrap();
    assert!(!b.hung_up());
    drop(a);
    assert!(b.hung_up());
    let mut bytes = [0; 16];
    assert_eq!(b.try_recv(&mut bytes).unwrap().len, 6);
    assert_eq!(b.try_recv(&mut bytes).unwrap().len, 0);
}

#[test]
fn only_memory_that_cannot_shrink_is_adopted() {
    assert!(adopt(memfd("test", 4096).unwrap(), 4096, 4096).is_ok());
    for (min, max) in [(4097, 8192), (1, 4095)] {
        assert!(adopt(memfd("test", 4096).unwrap(), min, max).is_err());
    }
    assert!(adopt(memfd("test", 0).unwrap(), 0, 4096).is_err());
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    assert!(adopt(unsealed, 4096, 4096).is_err());
    let (bell, _ringer) = Doorbell::new().unwrap();
    assert!(adopt(bell.as_fd().try_clone_to_owned().unwrap(), 1, 4096).is_err());
    assert!(rustix::fs::ftruncate(memfd("test", 4096).unwrap(), 0).is_err(), "ours are sealed");
}

#[test]
fn a_peer_of_another_user_is_refused() {
    assert!(check_same_user(1000, 1000).is_ok());
    for (peer, own) in [(1001, 1000), (0, 1000), (1000, 0)] {
        assert_eq!(check_same_user(peer, own).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[test]
fn listeners_replace_dead_sockets_and_respect_live_ones() {
    let dir = Dir::new();
    let listener = PathListener::bind(&dir.0, "x.sock").unwrap();
    assert_eq!(listener.try_accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let again = PathListener::bind(&dir.0, "x.sock").unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse);
    // The second attempt has connected to the listener; take that connection away.
    drop(listener.try_accept().unwrap());
    let client = Socket::connect(&dir.0.join("x.sock")).unwrap();
    let server = listener.try_accept().unwrap();
    let own = Peer::Local { uid: rustix::process::geteuid().as_raw(), pid: Some(std::process::id()) };
    assert_eq!(server.peer().unwrap(), own);
    client.send(b"hello", &[]).unwrap();
    let path = listener.path().to_owned();
    drop(listener);
    assert!(!path.exists());

    // The remains of a killed process: a socket without a listener.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(PathListener::bind(&dir.0, "x.sock").unwrap());

    fs::write(&path, "not a socket").unwrap();
    assert!(PathListener::bind(&dir.0, "x.sock").is_err(), "a file that is not ours to remove");
    assert_eq!(fs::read(&path).unwrap(), b"not a socket");
}

#[test]
fn the_runtime_directory_is_private() {
    let dir = Dir::new();
    let path = dir.0.join("weft");
    secure_dir(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    secure_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o710)).unwrap();
    assert_eq!(secure_dir(&path).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let link = dir.0.join("link");
    std::os::unix::fs::symlink(&dir.0, &link).unwrap();
    assert_eq!(secure_dir(&link).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    let file = dir.0.join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(secure_dir(&file).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn the_runtime_directory_follows_the_environment() {
    let dir = Dir::new();
    assert_eq!(choose(Some(dir.0.clone().into()), 7), dir.0.join("weft"));
    for unusable in [None, Some("".into()), Some("relative".into()), Some(dir.0.join("missing").into())] {
        assert_eq!(choose(unusable, 7), Path::new("/tmp/weft-7"));
    }
}
