//! Waking a peer that sleeps, without a system call while it is awake.
//!
//! What: an eventfd per sleeper and a `sleeping` word in shared memory.
//! Spec: eventfd(2). The argument is Dekker's. Sleeper: (S1) store sleeping=1, (S2) full fence, (S3) look at the
//! ring, sleep only when it is empty. Waker: (W1) publish in the ring, (W2) full fence, (W3) look at sleeping, ring
//! the bell when it is 1. The two fences are ordered one way or the other: if S2 comes first then W3 sees the 1, if W2
//! comes first then S3 sees the news. So never does the sleeper sleep with unseen news and a silent bell.
//! Owns: the eventfd. Does not: carry data; a bell may ring once too often, never too seldom.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Words;

/// An eventfd: ours to await, or a peer's to ring.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new, silent bell.
    pub fn new() -> io::Result<Doorbell> {
        Ok(Doorbell(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// A descriptor that a peer passed as its bell. One that may block is refused: whoever rings it would wait for its
    /// owner, a full pipe's for example.
    pub fn adopt(fd: OwnedFd) -> io::Result<Doorbell> {
        if !rustix::fs::fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK) {
            let text = "the peer passed a doorbell that may block";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Doorbell(fd))
    }

    /// Rings. A bell that cannot count further is ringing already; one whose owner is gone has nobody to wake.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences the bell; true when it had rung.
    pub fn silence(&self) -> bool {
        loop {
            match rustix::io::read(&self.0, &mut [0u8; 8]) {
                Err(Errno::INTR) => {}
                other => return other.is_ok(),
            }
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The `sleeping` word of one side.
pub struct Sleeper(Words);

impl Sleeper {
    /// Over the first of `words`.
    pub fn new(words: Words) -> Sleeper {
        assert!(!words.is_empty());
        Sleeper(words)
    }

    fn word(&self) -> &AtomicU64 {
        &self.0[0]
    }

    /// S1 and S2: from now on the waker rings. Look at the ring after this.
    pub fn announce(&self) {
        self.word().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Awake again.
    pub fn awake(&self) {
        self.word().store(0, Ordering::Relaxed);
    }

    /// W2 and W3 without the bell, after publishing: whether the sleeper sleeps, so that somebody must ring.
    pub fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word().load(Ordering::Relaxed) != 0
    }

    /// W2 and W3, after publishing: rings `bell` when the sleeper sleeps, once per sleep. True when it rang.
    pub fn wake(&self, bell: &Doorbell) -> bool {
        fence(Ordering::SeqCst);
        // The swap makes a burst of news cost one system call, not one each.
        let asleep = self.word().load(Ordering::Relaxed) != 0 && self.word().swap(0, Ordering::Relaxed) != 0;
        if asleep {
            bell.ring();
        }
        asleep
    }
}
