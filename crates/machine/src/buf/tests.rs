mod pressure;
mod queue;
mod shares;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use super::*;

/// Counts how often it was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task that waits for buffers of these sizes.
struct Waiter {
    pool: Pool,
    sizes: Vec<usize>,
    waiting: Waiting,
    wakes: Arc<Wakes>,
}

impl Waiter {
    fn new(pool: &Pool, sizes: &[usize]) -> Waiter {
        let (waiting, wakes) = (Waiting::default(), Arc::default());
        Waiter { pool: pool.clone(), sizes: sizes.to_vec(), waiting, wakes }
    }

    fn poll(&mut self) -> Option<Vec<Buf>> {
        let waker = Waker::from(self.wakes.clone());
        let mut cx = Context::from_waker(&waker);
        match self.pool.poll_alloc_many(&mut cx, &self.sizes, &mut self.waiting) {
            Poll::Ready(bufs) => Some(bufs.unwrap()),
            Poll::Pending => None,
        }
    }

    fn woken(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }
}

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
