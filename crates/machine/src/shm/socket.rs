//! The socket between two processes of one host: carries set-up messages and descriptors, and reveals the peer's death.
//!
//! It relies on unix(7): SOCK_SEQPACKET keeps message boundaries, SCM_RIGHTS passes descriptors, SO_PEERCRED identifies
//! the peer's user. This file owns the sockets and the listener's path. Messages are not framed, and payload goes
//! elsewhere.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, FlockOperation};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::secure_dir;
use crate::net::{Peer, PeerCredentials};

/// Descriptors in one message: a control segment and a doorbell, or a slab.
const MAX_FDS: usize = 2;
/// Connections that wait for `accept`.
const BACKLOG: i32 = 128;

/// A connected, non-blocking socket that keeps message boundaries.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// One message.
#[derive(Debug, Default)]
pub struct Received {
    /// Its length; 0 is the end of the connection.
    pub len: usize,
    /// The descriptors passed with it.
    pub fds: Vec<OwnedFd>,
}

/// Refuses a peer of another user. Root is no exception, because either side can damage the other's data.
pub fn check_same_user(peer_uid: u32, own_uid: u32) -> io::Result<()> {
    if peer_uid == own_uid {
        return Ok(());
    }
    let text = format!("shared memory peer has uid {peer_uid}, this process {own_uid}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl Socket {
    /// Connects to the listener at `path` and checks that it belongs to the same user. Never waits: `WouldBlock` means
    /// that the listener's backlog is full.
    pub fn connect(path: &Path) -> io::Result<Socket> {
        let fd = new_socket()?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        Socket::trusted(fd)
    }

    /// Two ends of one connection.
    pub fn pair() -> io::Result<(Socket, Socket)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Socket(a), Socket(b)))
    }

    /// Takes over a duplicate descriptor of a connected socket.
    pub fn from_connected(fd: OwnedFd) -> Socket {
        Socket(fd)
    }

    /// Takes over a connected socket after checking the peer's user.
    fn trusted(fd: OwnedFd) -> io::Result<Socket> {
        let peer = PeerCredentials::of(&fd)?;
        check_same_user(peer.uid, rustix::process::geteuid().as_raw())?;
        Ok(Socket(fd))
    }

    /// The process at the other end.
    pub fn peer(&self) -> io::Result<Peer> {
        Peer::of_unix(&self.0)
    }

    /// Sends one message; never waits.
    ///
    /// # Panics
    /// With more than two descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Receives one message into `into`; never waits. A message that does not fit, in bytes or descriptors, is
    /// `InvalidData`.
    pub fn try_recv(&self, into: &mut [u8]) -> io::Result<Received> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(into)], &mut control, flags) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = part {
                fds.extend(passed);
            }
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "message longer than this protocol allows",
            ));
        }
        Ok(Received { len: message.bytes, fds })
    }

    /// Whether the peer closed its end or died. The kernel closes a dying process's descriptors only after its last
    /// thread has stopped running user code, so a peer that has hung up no longer accesses shared memory.
    pub fn hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&now)) {
            Ok(_) => fds[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR),
            Err(_) => false,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listening socket at a path, which is removed with the listener.
#[derive(Debug)]
pub struct PathListener {
    fd: OwnedFd,
    path: PathBuf,
    dir: OwnedFd,
}

/// Holds the directory's lock, so that finding a stale socket and replacing it is one step for all processes.
struct Locked<'a>(&'a OwnedFd);

impl Locked<'_> {
    fn new(dir: &OwnedFd) -> io::Result<Locked<'_>> {
        loop {
            match rustix::fs::flock(dir, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(()) => return Ok(Locked(dir)),
            }
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Releasing a held lock cannot fail.
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

fn is_socket(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

impl PathListener {
    /// Listens at `name` in `dir`, a directory of this user (see [`secure_dir`]). A stale socket without a listener,
    /// left by a killed process, is replaced; a live one is `AddrInUse`.
    pub fn bind(dir: &Path, name: &str) -> io::Result<PathListener> {
        let path = dir.join(name);
        let address = SocketAddrUnix::new(&path)?;
        let dir = secure_dir(dir)?;
        let fd = new_socket()?;
        let locked = Locked::new(&dir)?;
        match rustix::net::connect(new_socket()?, &address) {
            Err(Errno::NOENT) => {}
            Err(Errno::CONNREFUSED) if is_socket(&path) => rustix::fs::unlink(&path)?,
            // Connected, a full backlog, or not a socket at all: we must not remove it.
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, BACKLOG)?;
        drop(locked);
        Ok(PathListener { fd, path, dir })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection; never waits. A peer of another user, or one that the kernel does not identify, is closed and
    /// reported as `PermissionDenied`: every other error is one of the listener.
    pub fn try_accept(&self) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(&self.fd, flags)?;
        Socket::trusted(socket).map_err(|e| io::Error::new(io::ErrorKind::PermissionDenied, e))
    }
}

impl AsFd for PathListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PathListener {
    fn drop(&mut self) {
        // Under the lock, and before the descriptor closes: while it is open nobody takes over the path, so the socket
        // removed here is our own.
        let _locked = Locked::new(&self.dir);
        if let Err(e) = rustix::fs::unlink(&self.path) {
            tracing::warn!("cannot remove {}: {e}", self.path.display());
        }
    }
}
