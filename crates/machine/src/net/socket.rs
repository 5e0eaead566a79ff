//! Real sockets: system calls that never wait, made while the descriptor is considered ready (see `rt::readiness`).
//!
//! It owns the descriptor. `Stream` loops until everything is sent.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};

use super::inherited;
use crate::file::FileRange;
use crate::rt::readiness::Registered;
use crate::rt::turn;

/// Bytes read at a time from files that sendfile refuses.
pub(super) const STAGING_BYTES: usize = 16 << 10;
/// How long an accepted connection may be silent before the kernel probes its peer (TCP_KEEPIDLE), how often it probes
/// again (TCP_KEEPINTVL), and after how many unanswered probes the connection ends (TCP_KEEPCNT): one minute after a
/// peer has vanished, its open files are closed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 9;
/// The same for a peer that vanished, or stopped reading, while an answer was in transit to it. TCP sends no probes
/// then, and retransmits for a quarter of an hour (tcp_retries2), or forever to a peer with a closed window. A
/// protocol may set a shorter limit ([`super::Stream::set_unacknowledged_limit`]), which also limits the probes above.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

pub(super) struct Listener {
    fd: Registered<std::net::TcpListener>,
    local: SocketAddr,
}

impl Listener {
    pub(super) fn bind(addr: SocketAddr) -> io::Result<Listener> {
        let socket = inherited::tcp(addr)?;
        socket.set_nonblocking(true)?;
        // Accepted sockets inherit these options.
        rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
        rustix::net::sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
        rustix::net::sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
        let unacknowledged_ms = u32::try_from(UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&socket, unacknowledged_ms)?;
        let local = socket.local_addr()?;
        Ok(Listener { fd: Registered::new(socket)?, local })
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Accepted sockets inherit it.
    pub(super) fn set_congestion(&self, algorithm: &str) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_tcp_congestion(self.fd.inner(), algorithm)?)
    }

    /// The next connection, with the address from accept(2). A connection without an address is closed: nobody could
    /// decide whether its peer is admitted.
    pub(super) async fn accept(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let error = match rustix::net::acceptfrom_with(self.fd.inner(), flags) {
                Ok((socket, peer)) => match peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
                    Some(peer) => return Ok((socket, peer)),
                    None => {
                        tracing::debug!("refused a connection to {}: its peer has no address", self.local);
                        continue;
                    }
                },
                Err(e) => e,
            };
            match error {
                Errno::AGAIN => {
                    self.fd.clear_readable();
                    std::future::poll_fn(|cx| self.fd.poll_readable(cx)).await;
                }
                // accept(2), "Error handling": an error of a waiting connection is not an error of the listener.
                Errno::INTR
                | Errno::CONNABORTED
                | Errno::NETDOWN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
                | Errno::TIMEDOUT
                | Errno::PERM => {}
                _ => return Err(error.into()),
            }
        }
    }
}

pub(super) struct Stream {
    fd: Registered<OwnedFd>,
    /// A local socket has no segments.
    tcp: bool,
}

impl Stream {
    /// Takes over a non-blocking socket.
    pub(super) fn from_tcp(socket: OwnedFd) -> io::Result<Stream> {
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(Stream { fd: Registered::new(socket)?, tcp: true })
    }

    pub(super) fn from_unix(socket: UnixStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        Ok(Stream { fd: Registered::new(OwnedFd::from(socket))?, tcp: false })
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.fd).ok()?).ok()
    }
}

/// A TCP socket that will become a [`Stream`].
pub(super) struct Unconnected(OwnedFd);

impl Unconnected {
    /// A socket that can connect to `addr`.
    pub(super) fn to(addr: SocketAddr, congestion: Option<&str>) -> io::Result<Unconnected> {
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(algorithm) = congestion {
            rustix::net::sockopt::set_tcp_congestion(&socket, algorithm)?;
        }
        Ok(Unconnected(socket))
    }

    /// Binds it to its own address. The port of an ended connection can be reused towards other peers; whether that
    /// works shows when it connects.
    pub(super) fn bind(&self, own: SocketAddr) -> io::Result<()> {
        rustix::net::sockopt::set_socket_reuseaddr(&self.0, true)?;
        Ok(rustix::net::bind(&self.0, &own)?)
    }

    pub(super) async fn connect(self, addr: SocketAddr) -> io::Result<Stream> {
        let Unconnected(socket) = self;
        // An interrupted connect continues in the background like one in progress (connect(2)).
        let waiting = match rustix::net::connect(&socket, &addr) {
            Ok(()) => false,
            Err(Errno::INPROGRESS | Errno::INTR) => true,
            Err(e) => return Err(e.into()),
        };
        let stream = Stream { fd: Registered::new(socket)?, tcp: true };
        if waiting {
            stream.fd.clear_writable();
            std::future::poll_fn(|cx| stream.fd.poll_writable(cx)).await;
            rustix::net::sockopt::socket_error(&stream.fd)??;
        }
        Ok(stream)
    }
}

impl Stream {
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.fd.poll_readable(cx)
    }

    pub(super) fn poll_hangup(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.fd.poll_over(cx)
    }

    pub(super) fn waiting_bytes(&self) -> io::Result<usize> {
        if !self.tcp {
            return Ok(usize::MAX);
        }
        Ok(usize::try_from(rustix::io::ioctl_fionread(&self.fd)?).unwrap_or(usize::MAX))
    }

    pub(super) fn forget_readable(&self) {
        self.fd.drained();
    }

    pub(super) fn try_recv(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        let received = match into {
            // A plain receive costs the kernel less than a scattering one.
            [into] => rustix::net::recv(&self.fd, &mut **into, RecvFlags::DONTWAIT).map(|(n, _)| n),
            _ => {
                let mut control = rustix::net::RecvAncillaryBuffer::default();
                let received = rustix::net::recvmsg(&self.fd, into, &mut control, RecvFlags::DONTWAIT);
                received.map(|received| received.bytes)
            }
        };
        match received {
            Ok(bytes) => {
                turn::set_arrived(self.fd.take_since());
                if bytes < room {
                    self.fd.drained();
                }
                Ok(bytes)
            }
            Err(e) => {
                if e == Errno::AGAIN {
                    self.fd.clear_readable();
                }
                Err(e.into())
            }
        }
    }

    pub(super) fn try_send(&self, from: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        let sent = match from {
            [from] => rustix::net::send(&self.fd, from, flags),
            _ => {
                rustix::net::sendmsg(&self.fd, from, &mut rustix::net::SendAncillaryBuffer::default(), flags)
            }
        };
        match sent {
            Err(Errno::AGAIN) => {
                self.fd.clear_writable();
                Err(Errno::AGAIN.into())
            }
            other => Ok(other?),
        }
    }

    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        into: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.fd.poll_readable(cx));
            match self.try_recv(into) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    pub(super) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.fd.poll_writable(cx));
            match self.try_send(from, more) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                other => return Poll::Ready(other),
            }
        }
    }

    pub(super) fn poll_send_file(
        &self,
        cx: &mut Context<'_>,
        range: &FileRange,
        from: usize,
        to: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.fd.poll_writable(cx));
            // An offset beyond any possible file reads like a file that has shrunk.
            let mut offset = range.offset.saturating_add(from as u64);
            match rustix::fs::sendfile(&self.fd, &range.file, Some(&mut offset), to - from) {
                // The file has shrunk, or sendfile does not support this file system: copy by hand.
                Ok(0)
                | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::SPIPE | Errno::OVERFLOW) => {
                    let mut staging = [0; STAGING_BYTES];
                    let n = range.read_or_zero(from, (to - from).min(staging.len()), &mut staging)?;
                    return self.poll_send(cx, &[IoSlice::new(&staging[..n])], from + n < to);
                }
                Ok(n) => return Poll::Ready(Ok(n)),
                Err(Errno::AGAIN) => self.fd.clear_writable(),
                Err(Errno::INTR) => {}
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
    }

    pub(super) async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        // An edge before all of it has come then means that no more will.
        self.set_low_water(into.len())?;
        let mut before = None;
        let seen = loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            match rustix::net::recv(&self.fd, &mut *into, flags).map(|(n, _)| n) {
                Ok(n) if n == into.len() || n == 0 || before == Some(n) => break n,
                Ok(n) => before = Some(n),
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            self.fd.clear_readable();
            std::future::poll_fn(|cx| self.fd.poll_readable(cx)).await;
        };
        self.set_low_water(1)?;
        Ok(seen)
    }

    pub(super) fn set_low_water(&self, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let size = size_of_val(&bytes) as libc::socklen_t;
        // SAFETY: the descriptor is open while `self` lives, and the kernel reads an int during the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const bytes).cast(),
                size,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn is_full(&self) -> bool {
        !self.fd.is_writable()
    }

    pub(super) fn hold(&self, on: bool) -> io::Result<()> {
        if self.tcp {
            rustix::net::sockopt::set_tcp_cork(&self.fd, on)?;
        }
        Ok(())
    }

    pub(super) fn unacknowledged(&self) -> io::Result<usize> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open while `self` lives, and the kernel writes an int during the call (SIOCOUTQ, which
        // has TIOCOUTQ's number).
        let result = unsafe { libc::ioctl(self.fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if result == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        // If the peer closed first, the socket is already shut down.
        let _ = rustix::net::shutdown(&self.fd, how);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// See [`super::try_congestion`].
pub(super) fn try_congestion(algorithm: &str) -> io::Result<()> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::sockopt::set_tcp_congestion(&socket, algorithm)?)
}
