//! Waking a peer that sleeps, without a system call while it is awake.
//!
//! What: a pair of connected sockets per sleeper and a `sleeping` word in shared memory. An eventfd would be cheaper by half a
//! microsecond, but both sides share its one description: a peer that clears O_NONBLOCK there and fills the counter would block
//! whoever rings.
//! Spec: unix(7), send(2) MSG_DONTWAIT. The argument is Dekker's. Sleeper: (S1) store sleeping=1, (S2) full fence, (S3) look at the
//! ring, sleep only when it is empty. Waker: (W1) publish in the ring, (W2) full fence, (W3) look at sleeping, ring
//! the bell when it is 1. The two fences are ordered one way or the other: if S2 comes first then W3 sees the 1, if W2
//! comes first then S3 sees the news. So never does the sleeper sleep with unseen news and a silent bell.
//! Owns: the sockets. Does not: carry data; a bell may ring once too often, never too seldom.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Word, Words};

/// Bytes taken out at a time: as many rings.
const RINGS: usize = 256;

/// Our bell: to be awaited, and silenced.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// The other end of a bell, for its owner's peer to ring.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

impl Doorbell {
    /// A new, silent bell, and what rings it.
    pub fn new() -> io::Result<(Doorbell, Ringer)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (bell, ringer) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Doorbell(bell), Ringer(ringer)))
    }

    /// Silences the bell; true when it had rung. A bell that is rung meanwhile may go on ringing. An error when nobody can ring
    /// it any more.
    pub fn silence(&self) -> io::Result<bool> {
        loop {
            match rustix::net::recv(&self.0, &mut [0u8; RINGS], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::BrokenPipe.into()),
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Ringer {
    /// A descriptor that a peer passed to ring its bell by. Only a Unix stream socket will do: sending to one without waiting is a
    /// property of the call, which the peer, who shares the description and its flags, cannot change.
    pub fn adopt(fd: OwnedFd) -> io::Result<Ringer> {
        // What is no socket at all has no such options.
        let domain = rustix::net::sockopt::socket_domain(&fd);
        let kind = rustix::net::sockopt::socket_type(&fd);
        if (domain, kind) != (Ok(AddressFamily::UNIX), Ok(SocketType::STREAM)) {
            let text = "the peer passed a doorbell that is no Unix stream socket";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Ringer(fd))
    }

    /// Rings, and never waits. A bell that takes no more rings already; one whose owner is gone has nobody to wake.
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
    /// Over the first of `words`.
    pub fn new(words: Words) -> Sleeper {
        Sleeper(words.word(0))
    }

    /// S1 and S2: from now on the waker rings. Look at the ring after this.
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

    /// W2 and W3, after publishing: rings `bell` when the sleeper sleeps, once per sleep. True when it rang.
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
