use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn buffers_are_page_aligned_and_come_back() {
    let pool = Pool::new(MAX_BUF);
    let mut buf = pool.try_alloc(5000).unwrap();
    assert_eq!(buf.capacity(), 8192);
    assert_eq!(buf.room().as_ptr() as usize % 4096, 0);
    assert_eq!(pool.in_use_bytes(), 8192);
    buf.extend_from_slice(b"abc");
    let bytes = buf.freeze();
    let tail = bytes.slice(1..);
    drop(bytes);
    assert_eq!(&tail[..], b"bc");
    assert_eq!(pool.in_use_bytes(), 8192);
    drop(tail);
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn an_empty_pool_makes_the_request_wait() {
    let pool = Pool::new(MAX_BUF);
    let all = pool.try_alloc(MAX_BUF).unwrap();
    assert!(pool.try_alloc(1).is_none());
    struct Flag(AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let woken = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(pool.poll_alloc(&mut cx, 1).is_pending());
    drop(all);
    assert!(woken.0.load(Ordering::SeqCst));
    assert!(pool.poll_alloc(&mut cx, 1).is_ready());
}

#[test]
fn windows_never_reach_outside() {
    let pool = Pool::new(MAX_BUF);
    let mut buf = pool.try_alloc(4096).unwrap();
    buf.set_len(4096);
    buf.fill(0xa5);
    let window = buf.into_window();
    assert!(window.slice(4096, 0).is_some());
    assert!(window.slice(4096, 1).is_none());
    assert!(window.slice(usize::MAX, 2).is_none());
    assert!(!window.write_at(4090, b"too long"));
    assert!(window.write_at(4088, b"fits in."));
    let part = window.slice(4000, 96).unwrap();
    assert!(part.clone().try_into_buf().is_err());
    let window = window.try_into_buf().unwrap_err();
    drop(part);
    let buf = window.try_into_buf().unwrap();
    assert_eq!(&buf[4080..], b"\xa5\xa5\xa5\xa5\xa5\xa5\xa5\xa5fits in.");
}

#[test]
fn payload_copies_are_counted() {
    let before = copies();
    let mut to = [0; 4];
    copy(&mut to, b"data");
    assert_eq!(copies(), (before.0 + 1, before.1 + 4));
}

#[test]
fn a_split_buffer_returns_when_both_parts_are_gone() {
    let pool = Pool::new(MAX_BUF);
    let mut buf = pool.buf_from(b"headtail").unwrap();
    let room = buf.capacity();
    let front = buf.split_to(4);
    assert_eq!((&front[..], &buf[..]), (&b"head"[..], &b"tail"[..]));
    assert_eq!((front.capacity(), buf.capacity()), (4, room - 4));
    buf.extend_from_slice(b"s");
    let front = front.freeze();
    assert_eq!((&front[..], &buf[..]), (&b"head"[..], &b"tails"[..]));
    drop(buf);
    assert_eq!(pool.in_use_bytes(), room);
    drop(front);
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn a_pool_knows_its_own_memory() {
    let (pool, other) = (Pool::new(MAX_BUF), Pool::new(MAX_BUF));
    let buf = pool.buf_from(b"here").unwrap();
    let address = buf.as_ptr() as usize;
    let slab = pool.slab_around(address).unwrap();
    assert!(slab.start <= address && address + buf.capacity() <= slab.end);
    assert_eq!(other.slab_around(address), None);
    assert_eq!(pool.slab_around(slab.end), None);
    assert_eq!(buf.into_window().address(), address);
}
