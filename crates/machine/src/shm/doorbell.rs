//! Wakes a sleeping peer, without a system call while it is awake.
//!
//! Each sleeper has a pair of connected sockets and a `sleeping` word in shared memory. An eventfd would be cheaper by
//! half a microsecond, but both sides share its open file description: a peer that clears O_NONBLOCK on it and fills
//! the counter would block the ringer. It uses unix(7) and send(2) MSG_DONTWAIT. The algorithm is Dekker's. Sleeper:
//! (S1) store sleeping=1, (S2) full fence, (S3) check the ring, sleep only if it is empty. Waker: (W1) publish in the
//! ring, (W2) full fence, (W3) check sleeping, ring the bell if it is 1. The two fences are ordered one way or the
//! other: if S2 comes first then W3 sees the 1, if W2 comes first then S3 sees the news. So the sleeper never sleeps
//! with unseen news and a silent bell. It carries no data; a bell may ring once too often, but never too seldom.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Word, Words};

/// Bytes taken out at a time, one for each ring.
const RINGS: usize = 256;

/// Our bell, which can be awaited and silenced.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// The other end of a bell, rung by the peer of its owner.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

impl Doorbell {
    /// A new, silent bell and its ringer.
    pub fn new() -> io::Result<(Doorbell, Ringer)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (bell, ringer) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Doorbell(bell), Ringer(ringer)))
    }

    /// Silences the bell; true if it had rung. A bell that is rung meanwhile may keep ringing. An error if nobody can
    /// ring it any more.
    pub fn silence(&self) -> io::Result<bool> {
        Ok(self.take_rings()? > 0)
    }

    /// The same; true if it may still be ringing, because so many rings were taken that more may be left.
    pub fn still_rings(&self) -> io::Result<bool> {
        Ok(self.take_rings()? == RINGS)
    }

    fn take_rings(&self) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.0, &mut [0u8; RINGS], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok((_, n)) => return Ok(n),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Ringer {
    /// A descriptor passed by a peer, for ringing its bell. It must be a Unix stream socket: sending to one without
    /// waiting is a property of the call, which the peer, who shares the description and its flags, cannot change.
    pub fn adopt(fd: OwnedFd) -> io::Result<Ringer> {
        // A descriptor that is not a socket has no such options.
        let domain = rustix::net::sockopt::socket_domain(&fd);
        let kind = rustix::net::sockopt::socket_type(&fd);
        if (domain, kind) != (Ok(AddressFamily::UNIX), Ok(SocketType::STREAM)) {
            let text = "the peer passed a doorbell that is not a Unix stream socket";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Ringer(fd))
    }

    /// Rings, and never waits. A full bell is ringing already; if its owner is gone, nobody needs to be woken.
    pub fn ring(&self) {
        let _ = rustix::net::send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Ringer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The `sleeping` word of one side.
pub struct Sleeper(Word);

impl Sleeper {
    /// Uses the first of `words`.
    pub fn new(words: Words) -> Sleeper {
        Sleeper(words.word(0))
    }

    /// S1 and S2: from now on the waker rings. The sleeper must check the ring after this.
    pub fn announce(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Awake again.
    pub fn awake(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// W2 and W3 without the bell, after publishing: whether the sleeper sleeps, so that somebody must ring.
    pub fn is_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }

    /// W2 and W3, after publishing: rings `bell` if the sleeper sleeps, once per sleep. True if it rang.
    pub fn wake(&self, bell: &Ringer) -> bool {
        fence(Ordering::SeqCst);
        // The swap makes a burst of news cost one system call, not one each.
        let asleep = self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0;
        if asleep {
            bell.ring();
        }
        asleep
    }
}
