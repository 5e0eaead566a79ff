//! Byte streams and listeners: TCP and Unix sockets, and their simulated twins.
//!
//! Receives and sends try the system call first and wait for readiness only on EAGAIN: on a busy connection that is
//! one call per batch, and the caller chooses where received bytes land (a header staging area, a region).
//! Owns: the sockets. Does not: frame messages (see `transport`) or place by STag (see `rdma::iwarp`).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use bytes::Bytes;
use compio_runtime::fd::PollFd;
use rustix::net::{RecvFlags, SendFlags};

use crate::file::FileRange;

/// A connected byte stream. Both directions work at once through a shared reference.
pub struct Stream {
    fd: PollFd<OwnedFd>,
    peer: Option<SocketAddr>,
}

/// A listening TCP socket.
pub struct Listener {
    fd: PollFd<std::net::TcpListener>,
    local: SocketAddr,
}

/// A descriptor whose readability can be awaited: an eventfd, a Unix socket that someone else reads.
pub struct Readable<T: AsFd + 'static>(PollFd<T>);

impl<T: AsFd + 'static> Readable<T> {
    /// Watches `fd` on this core.
    pub fn new(fd: T) -> io::Result<Readable<T>> {
        Ok(Readable(PollFd::new(fd)?))
    }

    /// Waits until the descriptor is readable (or its peer has gone). It may wake once without cause: try, and wait
    /// again on EAGAIN.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.read_ready().await
    }

    /// Poll form of [`Readable::readable`].
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(cx)
    }

    /// Waits until the descriptor is writable.
    pub async fn writable(&self) -> io::Result<()> {
        self.0.write_ready().await
    }

    /// The descriptor itself.
    pub fn inner(&self) -> &T {
        &self.0
    }
}

impl Listener {
    /// Listens on `addr`; port 0 picks any.
    pub fn bind(addr: SocketAddr) -> io::Result<Listener> {
        let socket = std::net::TcpListener::bind(addr)?;
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        Ok(Listener { fd: PollFd::new(socket)?, local })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next connection, as a plain socket that can be moved to the core that will own it.
    pub async fn accept(&self) -> io::Result<std::net::TcpStream> {
        loop {
            match self.fd.accept() {
                Ok((socket, _)) => return Ok(socket),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.fd.accept_ready().await?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Stream {
    /// Takes over a connected TCP socket on this core.
    pub fn from_tcp(socket: std::net::TcpStream) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let peer = socket.peer_addr().ok();
        Ok(Stream { fd: PollFd::new(OwnedFd::from(socket))?, peer })
    }

    /// Connects to `addr`.
    pub async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        let socket = crate::rt::blocking(move || {
            std::net::TcpStream::connect_timeout(&addr, std::time::Duration::from_secs(10))
        })
        .await?;
        Stream::from_tcp(socket)
    }

    /// The peer's address, where it has one.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Receives into `into`, in order, as much as one call gives; 0 is the end of the stream.
    pub async fn recv(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_recv(cx, into)).await
    }

    /// Poll form of [`Stream::recv`].
    pub fn poll_recv(&self, cx: &mut Context<'_>, into: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_recv(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => match self.fd.poll_read_ready(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => return Poll::Pending,
                },
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// One receive that never waits.
    pub fn try_recv(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut control = rustix::net::RecvAncillaryBuffer::default();
        Ok(rustix::net::recvmsg(&self.fd, into, &mut control, RecvFlags::DONTWAIT)?.bytes)
    }

    /// One send that never waits; the count may be short.
    pub fn try_send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(&self.fd, from, &mut control, flags)?)
    }

    /// Poll form of a send: as much as one call takes.
    pub fn poll_send(&self, cx: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_send(from) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => match self.fd.poll_write_ready(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => return Poll::Pending,
                },
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return Poll::Ready(other),
            }
        }
    }

    /// Sends all of `chain` as one gather write (more calls only when the socket buffer is full).
    pub async fn send_all(&self, chain: &[Bytes]) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> =
            chain.iter().filter(|b| !b.is_empty()).map(|b| IoSlice::new(b)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            // The kernel takes at most UIO_MAXIOV slices a call.
            let batch = rest.len().min(1024);
            let n = std::future::poll_fn(|cx| self.poll_send(cx, &rest[..batch])).await?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut rest, n);
        }
        Ok(())
    }

    /// Sends a range of a file without bringing it to user space (sendfile).
    pub async fn send_file(&self, range: &FileRange) -> io::Result<()> {
        let (mut offset, mut left) = (range.offset, range.len);
        while left > 0 {
            match rustix::fs::sendfile(&self.fd, &range.file, Some(&mut offset), left) {
                // The file shrank under us: the peer was promised these bytes (see FileRange::len).
                Ok(0) => {
                    let zeros = Bytes::from_static(&[0; 4096]);
                    while left > 0 {
                        let n = left.min(zeros.len());
                        self.send_all(&[zeros.slice(..n)]).await?;
                        left -= n;
                    }
                }
                Ok(n) => left -= n,
                Err(rustix::io::Errno::AGAIN) => {
                    std::future::poll_fn(|cx| self.fd.poll_write_ready(cx)).await?;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Ends both directions: the peer sees the end of the stream, pending receives return 0.
    pub fn shutdown(&self) {
        // A socket that the peer closed first is already shut down.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
