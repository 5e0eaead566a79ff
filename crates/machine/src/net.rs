//! Byte streams and listeners: TCP and Unix sockets, and their simulated counterparts.
//!
//! Receives and sends are plain system calls that never wait, made when the core knows the socket to be ready: on a
//! busy connection that is one call per batch, and the caller chooses where received bytes go (a header staging area, a
//! region). It owns the sockets. Framing of messages is in `transport`, placement by STag in `rdma::iwarp`.

mod certificate;
mod credentials;
pub mod inherited;
mod interfaces;
mod link;
mod path;
mod peer;
mod reserved;
mod socket;
mod source;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::file::busy::{self, Claim};
use crate::file::{self, FileRange, Piece};
use crate::rt;
use crate::rt::readiness::Registered;
use crate::sim;

pub use certificate::Holder;
pub use credentials::PeerCredentials;
pub use interfaces::{Interface, interfaces};
pub use link::{Link, Tls, TlsError};
pub use path::Path;
pub use peer::Peer;
pub use reserved::{SourcePort, may_reserve};
pub use source::Source;

/// Time limit of [`Stream::connect`].
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The TCP congestion control within this host, unless another is requested. There is no network to be fair to, and
/// bbr, the default of many systems, paces data that could be sent at once: iWARP ran at half the speed. Every Linux
/// has reno, and allows everybody to choose it.
pub const LOOPBACK_CONGESTION: &str = "reno";

/// Slices that a send passes to the kernel in one call (the kernel takes up to 1024, UIO_MAXIOV): enough for a megabyte
/// in page-sized pieces, and few enough for the stack.
const SLICES_PER_CALL: usize = 256;

/// A connected byte stream. Both directions work at once through a shared reference; each direction has one user at a
/// time (of two tasks that wait to receive, only the last one is woken).
pub struct Stream(Kind, Peer);

enum Kind {
    Real(socket::Stream),
    Sim(sim::net::Stream),
}

/// A connection that no core owns yet: [`Listener::accept`] returns it, and the core that it is moved to turns it into
/// a [`Stream`]. Dropping it closes the connection.
pub struct Socket(SocketKind, Peer);

enum SocketKind {
    Tcp(OwnedFd),
    Unix(UnixStream),
    Sim(sim::net::Stream),
}

/// A listening TCP socket.
pub struct Listener(ListenerKind);

enum ListenerKind {
    Real(socket::Listener),
    Sim(sim::net::Listener),
}

impl Socket {
    /// A TCP socket that was accepted elsewhere, with the address that accept(2) returned.
    ///
    /// # Errors
    /// It cannot be set to non-blocking mode.
    pub fn from_tcp((socket, peer): (std::net::TcpStream, SocketAddr)) -> io::Result<Socket> {
        socket.set_nonblocking(true)?;
        Ok(Socket(SocketKind::Tcp(socket.into()), Peer::Tcp(peer)))
    }

    /// A connected Unix socket.
    ///
    /// # Errors
    /// It is not connected: the kernel reports no peer.
    pub fn from_unix(socket: UnixStream) -> io::Result<Socket> {
        let peer = Peer::of_unix(&socket)?;
        Ok(Socket(SocketKind::Unix(socket), peer))
    }

    /// The peer, as known when the connection was accepted.
    pub fn peer(&self) -> Peer {
        self.1
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("peer", &self.peer()).finish()
    }
}

fn within_this_host(addr: SocketAddr) -> bool {
    addr.ip().is_loopback()
}

/// Whether connections of this process may use this TCP congestion control. The kernel loads a module for it if
/// permitted, so this tries it on a socket instead of looking it up.
pub fn try_congestion(algorithm: &str) -> io::Result<()> {
    socket::try_congestion(algorithm)
}

/// Whether accepting failed because the process or the system has run out of descriptors or memory.
pub fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

impl Listener {
    /// Listens on `addr`, by the socket that the service manager has bound to it, if any ([`inherited`]); port 0 chooses any.
    pub fn bind(addr: SocketAddr) -> io::Result<Listener> {
        if sim::active() {
            return Ok(Listener(ListenerKind::Sim(sim::net::Listener::bind(addr)?)));
        }
        let listener = socket::Listener::bind(addr)?;
        if within_this_host(addr) {
            listener.set_congestion(LOOPBACK_CONGESTION)?;
        }
        Ok(Listener(ListenerKind::Real(listener)))
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            ListenerKind::Real(listener) => listener.local_addr(),
            ListenerKind::Sim(listener) => listener.local_addr(),
        }
    }

    /// Sets the TCP congestion control of connections accepted from now on (see [`Stream::connect_with`]). No effect
    /// under simulation.
    pub fn set_congestion(&self, algorithm: &str) -> io::Result<()> {
        match &self.0 {
            ListenerKind::Real(listener) => listener.set_congestion(algorithm),
            ListenerKind::Sim(_) => Ok(()),
        }
    }

    /// The next connection, as a socket that can be moved to the core that will own it.
    ///
    /// Connections that fail before they are accepted are skipped. An error means that the process has run out of
    /// descriptors or memory ([`is_exhausted`]: others may release some) or that the listener itself is broken.
    pub async fn accept(&self) -> io::Result<Socket> {
        match &self.0 {
            ListenerKind::Real(listener) => {
                let (socket, peer) = listener.accept().await?;
                Ok(Socket(SocketKind::Tcp(socket), Peer::Tcp(peer)))
            }
            ListenerKind::Sim(listener) => {
                let stream = listener.accept().await?;
                let peer = Peer::Tcp(stream.peer_addr());
                Ok(Socket(SocketKind::Sim(stream), peer))
            }
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.local_addr()).finish()
    }
}

impl Stream {
    /// Takes over a connected socket on this core. TCP sends at once (TCP_NODELAY).
    pub fn from_socket(Socket(socket, peer): Socket) -> io::Result<Stream> {
        let kind = match socket {
            SocketKind::Tcp(socket) => Kind::Real(socket::Stream::from_tcp(socket)?),
            SocketKind::Unix(socket) => Kind::Real(socket::Stream::from_unix(socket)?),
            SocketKind::Sim(stream) => Kind::Sim(stream),
        };
        Ok(Stream(kind, peer))
    }

    /// Connects to `addr` by TCP, within [`CONNECT_LIMIT`].
    pub async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        Stream::connect_within(addr, CONNECT_LIMIT).await
    }

    /// Connects to `addr` by TCP; [`io::ErrorKind::TimedOut`] after `limit`.
    pub async fn connect_within(addr: SocketAddr, limit: Duration) -> io::Result<Stream> {
        Stream::connect_with(addr, limit, None).await
    }

    /// [`Stream::connect_within`] with a TCP congestion control, such as `reno`, in place of the system's (within this
    /// host: [`LOOPBACK_CONGESTION`]). No effect under simulation.
    ///
    /// It is set before the connection exists and cannot be changed later: a connection that began under bbr stays
    /// paced, whatever is set then.
    pub async fn connect_with(
        addr: SocketAddr,
        limit: Duration,
        congestion: Option<&str>,
    ) -> io::Result<Stream> {
        Stream::connect_from(addr, limit, congestion, SourcePort::Any).await
    }

    /// [`Stream::connect_with`] from a port of `source`.
    pub async fn connect_from(
        addr: SocketAddr,
        limit: Duration,
        congestion: Option<&str>,
        source: SourcePort,
    ) -> io::Result<Stream> {
        if sim::active() {
            let connected = rt::timeout(limit, sim::net::Stream::connect(addr)).await??;
            return Ok(Stream(Kind::Sim(connected), Peer::Tcp(addr)));
        }
        let congestion = congestion.or(within_this_host(addr).then_some(LOOPBACK_CONGESTION));
        let connecting = async {
            match source {
                SourcePort::Any => socket::Unconnected::to(addr, congestion)?.connect(addr).await,
                SourcePort::Reserved => reserved::connect(addr, congestion).await,
            }
        };
        let connected = rt::timeout(limit, connecting).await??;
        Ok(Stream(Kind::Real(connected), Peer::Tcp(addr)))
    }

    /// Connects to a Unix socket of this host.
    pub async fn connect_unix(path: &std::path::Path) -> io::Result<Stream> {
        // Connecting to a Unix socket waits only for room in the backlog.
        let path = path.to_owned();
        Stream::from_socket(Socket::from_unix(rt::blocking(move || UnixStream::connect(path)).await?)?)
    }

    /// The peer, as known when the connection was made.
    pub fn peer(&self) -> Peer {
        self.1
    }

    /// Our own address, if the socket has one.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Real(stream) => stream.local_addr(),
            Kind::Sim(stream) => Some(stream.local_addr()),
        }
    }

    /// The descriptor, for system calls that this type does not offer; `None` under simulation.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Kind::Real(stream) => Some(stream.as_fd()),
            Kind::Sim(_) => None,
        }
    }

    /// Receives into `into`, in order, as much as one call returns; 0 is the end of the stream. Dropping the future
    /// loses no bytes.
    pub async fn recv(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_recv(cx, into)).await
    }

    /// Poll form of [`Stream::recv`].
    pub fn poll_recv(&self, cx: &mut Context<'_>, into: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        match &self.0 {
            Kind::Real(stream) => stream.poll_recv(cx, into),
            Kind::Sim(stream) => stream.poll_recv(cx, into),
        }
    }

    /// Copies the next bytes without consuming them, until `into` is full or no more will come; returns how many. Not
    /// supported under simulation.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.0 {
            Kind::Real(stream) => stream.peek(into).await,
            Kind::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// One receive that never waits: [`io::ErrorKind::WouldBlock`] if there is nothing.
    pub fn try_recv(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &self.0 {
            Kind::Real(stream) => stream.try_recv(into),
            Kind::Sim(stream) => stream.try_recv(into),
        }
    }

    /// One send that never waits; the count may be short, and is never 0 for a non-empty send.
    pub fn try_send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            Kind::Real(stream) => stream.try_send(from, false),
            Kind::Sim(stream) => stream.try_send(from),
        }
    }

    /// Poll form of a send: as much as one call takes.
    pub fn poll_send(&self, cx: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_send_flagged(cx, from, false)
    }

    /// [`Stream::poll_send`] of bytes that are followed by more at once: the last, partial segment is held back for
    /// them (MSG_MORE; at most 200 ms).
    pub fn poll_send_more(&self, cx: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll_send_flagged(cx, from, true)
    }

    /// While on, a partial last segment waits for the next send, including file ranges (TCP_CORK; at most 200 ms). No
    /// effect on sockets without segments.
    pub fn hold(&self, on: bool) -> io::Result<()> {
        match &self.0 {
            Kind::Real(stream) => stream.hold(on),
            Kind::Sim(_) => Ok(()),
        }
    }

    /// Whether a send had no room, and none has been reported since. Unknown under simulation: false.
    pub fn is_full(&self) -> bool {
        match &self.0 {
            Kind::Real(stream) => stream.is_full(),
            Kind::Sim(_) => false,
        }
    }

    /// Whether [`Stream::poll_send_pieces`] accepts pieces of mapped files.
    pub fn takes_mapped(&self) -> bool {
        matches!(self.0, Kind::Real(_))
    }

    /// [`Stream::poll_send`], or with `more` [`Stream::poll_send_more`], of pieces that may lie in mapped files if
    /// [`Stream::takes_mapped`] allows it. EFAULT ([`crate::file::is_lost`]): the file of the first piece has become
    /// shorter.
    pub fn poll_send_pieces(
        &self,
        cx: &mut Context<'_>,
        from: &[Piece<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_flagged(cx, Piece::as_slices(from), more)
    }

    fn poll_send_flagged(
        &self,
        cx: &mut Context<'_>,
        from: &[IoSlice<'_>],
        more: bool,
    ) -> Poll<io::Result<usize>> {
        match &self.0 {
            Kind::Real(stream) => stream.poll_send(cx, from, more),
            Kind::Sim(stream) => stream.poll_send(cx, from),
        }
    }

    /// Sends all of `chain` as one gather write (several calls only if the socket buffer is full).
    ///
    /// A future dropped half-way has sent an unknown part: the stream can then only be closed.
    pub async fn send_all(&self, chain: &[Bytes]) -> io::Result<()> {
        self.send_chain(chain, false).await
    }

    /// [`Stream::send_all`] of bytes that are followed by more at once, such as [`Stream::send_file`]: small headers
    /// then share a segment with what follows (MSG_MORE).
    pub async fn send_all_more(&self, chain: &[Bytes]) -> io::Result<()> {
        self.send_chain(chain, true).await
    }

    async fn send_chain(&self, chain: &[Bytes], more: bool) -> io::Result<()> {
        let mut rest = chain;
        // Bytes of rest[0] that were already sent.
        let mut skip = 0;
        while let Some(first) = rest.first() {
            if skip == first.len() {
                rest = &rest[1..];
                skip = 0;
                continue;
            }
            // The limit of slices per call must not separate a short chain from its end.
            let last_call = rest.len() <= SLICES_PER_CALL;
            let sent = std::future::poll_fn(|cx| {
                let mut slices = [IoSlice::new(&[]); SLICES_PER_CALL];
                let n = fill(&mut slices, rest, skip);
                self.poll_send_flagged(cx, &slices[..n], more || !last_call)
            });
            let mut sent = sent.await?;
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            // Skips the slices that were sent.
            while sent > 0 {
                let here = rest[0].len() - skip;
                if sent < here {
                    skip += sent;
                    break;
                }
                sent -= here;
                rest = &rest[1..];
                skip = 0;
            }
        }
        Ok(())
    }

    /// Sends a range of a file without copying it to user space (sendfile; or by reading if the file system refuses
    /// that). Bytes that the file has lost to a truncation are sent as zeros, because the peer was promised
    /// [`FileRange::len`] bytes.
    pub async fn send_file(&self, range: &FileRange) -> io::Result<()> {
        self.send_file_begun(range, false).await
    }

    /// [`Stream::send_file`] of a range whose beginning was found in the page cache just now, if `is_warm`
    /// ([`FileRange::begins_warm`]): it is not looked for again.
    pub async fn send_file_begun(&self, range: &FileRange, is_warm: bool) -> io::Result<()> {
        let mut done = 0;
        let mut is_warm = is_warm;
        while done < range.len {
            if range.file.blocking().is_some() {
                // On some file systems sendfile fetches the file's attributes, even if the pages are cached.
                let piece = (range.len - done).min(file::FETCHED_BYTES);
                let bytes = range.fetch(done, piece).await.map_err(file::unreadable)?;
                done += piece;
                self.send_chain(&[bytes], done < range.len).await?;
                continue;
            }
            // Disk reads happen on a worker thread, not inside sendfile on this core.
            let warm = done + (range.len - done).min(file::WARM_BYTES);
            // Nothing is claimed while no worker frees blocks.
            let mut claims = match std::mem::take(&mut is_warm) && !file::busy::any() {
                true => Vec::new(),
                false => range.warm_claimed(done, warm - done).await.map_err(file::unreadable)?,
            };
            while done < warm {
                let sent =
                    std::future::poll_fn(|cx| self.poll_send_claimed(cx, range, done..warm, &mut claims));
                match sent.await.map_err(|e| range.blamed(e))? {
                    0 => break,
                    sent => done += sent,
                }
            }
        }
        Ok(())
    }

    /// [`Stream::poll_send_file`] with the result of [`FileRange::warm_claimed`], which is released after one attempt.
    pub fn poll_send_claimed(
        &self,
        cx: &mut Context<'_>,
        range: &FileRange,
        part: Range<usize>,
        claims: &mut Vec<Claim>,
    ) -> Poll<io::Result<usize>> {
        let sent = self.poll_send_file(cx, range, part.start, part.end);
        claims.clear();
        sent
    }

    /// Sends some of `range` between its bytes `from` and `to`; returns how many. Bytes that are not in the page cache
    /// are read from disk inside the call ([`FileRange::warm`] prevents that). 0: while the peer took nothing a worker
    /// has begun to free the file's blocks, so the cached pages may be gone, and the range must be warmed again.
    ///
    /// # Panics
    /// If `from >= to` or `to > range.len`.
    pub fn poll_send_file(
        &self,
        cx: &mut Context<'_>,
        range: &FileRange,
        from: usize,
        to: usize,
    ) -> Poll<io::Result<usize>> {
        assert!(from < to && to <= range.len, "nothing to send");
        if busy::is_locked(&range.file) {
            return Poll::Ready(Ok(0));
        }
        match &self.0 {
            Kind::Real(stream) => stream.poll_send_file(cx, range, from, to),
            Kind::Sim(stream) => {
                let mut staging = [0; socket::STAGING_BYTES];
                let n = range.read_or_zero(from, (to - from).min(staging.len()), &mut staging)?;
                stream.poll_send(cx, &[IoSlice::new(&staging[..n])])
            }
        }
    }

    /// Shuts down both directions: the peer sees the end of the stream, pending receives return 0.
    pub fn shutdown(&self) {
        match &self.0 {
            Kind::Real(stream) => stream.shutdown(rustix::net::Shutdown::Both),
            Kind::Sim(stream) => stream.shutdown(),
        }
    }

    /// Shuts down the sending direction: the peer sees the end of the stream after what was sent, and can still send.
    pub fn shutdown_write(&self) {
        match &self.0 {
            Kind::Real(stream) => stream.shutdown(rustix::net::Shutdown::Write),
            Kind::Sim(stream) => stream.shutdown_write(),
        }
    }

    /// Bytes that our kernel took and the peer's has not acknowledged. Zero if unknown (simulation, sockets other than
    /// TCP, closed sockets).
    pub fn unacknowledged(&self) -> usize {
        match &self.0 {
            Kind::Real(stream) => stream.unacknowledged().unwrap_or(0),
            Kind::Sim(_) => 0,
        }
    }

    /// The TCP congestion control in use; under simulation `none`.
    pub fn congestion(&self) -> io::Result<String> {
        match self.fd() {
            Some(fd) => Ok(rustix::net::sockopt::tcp_congestion(fd)?),
            None => Ok("none".into()),
        }
    }

    /// Drops a peer that does not acknowledge sent data for this long (TCP_USER_TIMEOUT, RFC 5482). No effect under
    /// simulation.
    pub fn set_unacknowledged_limit(&self, limit: Duration) -> io::Result<()> {
        match self.fd() {
            Some(fd) => {
                let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
                Ok(rustix::net::sockopt::set_tcp_user_timeout(fd, limit_ms)?)
            }
            None => Ok(()),
        }
    }

    /// Bytes that have arrived and were not received yet (FIONREAD). `usize::MAX` where a wait for more would not end:
    /// under simulation, and on local sockets, whose senders wait for room and which do not honour
    /// [`Stream::set_low_water`].
    pub fn waiting_bytes(&self) -> io::Result<usize> {
        match &self.0 {
            Kind::Real(stream) => stream.waiting_bytes(),
            Kind::Sim(_) => Ok(usize::MAX),
        }
    }

    /// Waits until `bytes` bytes have arrived and were not received yet, or as many as the kernel has room for, or no
    /// more will come. If dropped, it leaves the low-water mark that it has set.
    pub async fn wait_for(&self, bytes: usize) -> io::Result<()> {
        if self.waiting_bytes()? >= bytes {
            return Ok(());
        }
        self.forget_readable();
        self.set_low_water(bytes)?;
        std::future::poll_fn(|cx| self.poll_readable(cx)).await;
        self.set_low_water(1)
    }

    /// Waits until an event says that a receive may succeed. To wait for a new event, call [`Stream::forget_readable`]
    /// first.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Kind::Real(stream) => stream.poll_readable(cx),
            Kind::Sim(_) => Poll::Ready(()),
        }
    }

    /// Waits until the peer has closed or reset the connection, without receiving what it sent before: for whoever cannot
    /// receive at present. Data that arrives may wake the task as well.
    pub fn poll_hangup(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            Kind::Real(stream) => stream.poll_hangup(cx),
            Kind::Sim(stream) => stream.poll_hangup(cx),
        }
    }

    /// The available bytes are not enough: [`Stream::poll_readable`] waits for events from now on. Set the low-water mark
    /// afterwards, even to the value that it has: what the kernel has reported already, such as a full buffer, it reports
    /// again only then.
    pub fn forget_readable(&self) {
        if let Kind::Real(stream) = &self.0 {
            stream.forget_readable();
        }
    }

    /// From now on a wait for bytes ends only when this many have come, or at the end of the stream (SO_RCVLOWAT); a
    /// stream starts with 1. Receiving without waiting takes whatever is there. No effect under simulation.
    pub fn set_low_water(&self, bytes: usize) -> io::Result<()> {
        match &self.0 {
            Kind::Real(stream) => stream.set_low_water(bytes),
            Kind::Sim(_) => Ok(()),
        }
    }

    /// Requests socket buffers of these sizes in bytes (the kernel doubles them, and caps them by its sysctls). A
    /// buffer with a fixed size no longer grows by itself. No effect under simulation.
    pub fn set_buffers(&self, send_bytes: usize, receive_bytes: usize) -> io::Result<()> {
        if let Some(fd) = self.fd() {
            rustix::net::sockopt::set_socket_send_buffer_size(fd, send_bytes)?;
            rustix::net::sockopt::set_socket_recv_buffer_size(fd, receive_bytes)?;
        }
        Ok(())
    }
}

/// Fills `slices` with `chain`, without its first `skip` bytes; returns how many slices it used.
fn fill<'a>(slices: &mut [IoSlice<'a>], chain: &'a [Bytes], skip: usize) -> usize {
    let mut n = 0;
    let firsts = std::iter::once(skip).chain(std::iter::repeat(0));
    for (bytes, skip) in chain.iter().zip(firsts) {
        if n == slices.len() {
            break;
        }
        if skip < bytes.len() {
            slices[n] = IoSlice::new(&bytes[skip..]);
            n += 1;
        }
    }
    n
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

/// A descriptor whose readiness can be awaited: an eventfd, a Unix socket with another reader. Only on real cores.
pub struct Readable<T: AsFd + 'static>(Registered<T>);

impl<T: AsFd + 'static> Readable<T> {
    /// Watches `fd` on this core.
    pub fn new(fd: T) -> io::Result<Readable<T>> {
        Ok(Readable(Registered::new(fd)?))
    }

    /// Waits until the descriptor is readable (or its peer is gone). It may wake once without cause: try, and wait
    /// again on EAGAIN.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Waits for an arrival since the last call, without asking the kernel whether it is still there. So the caller takes
    /// all that there is. The first call returns at once, and any other may do so without cause.
    pub async fn arrived(&self) {
        std::future::poll_fn(|cx| self.0.poll_readable(cx)).await;
        // Before anything is taken: what comes meanwhile is another arrival.
        self.0.clear_readable();
    }

    /// Poll form of [`Readable::readable`].
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_level(PollFlags::IN, || self.0.clear_readable(), || self.0.poll_readable(cx))
    }

    /// Waits until the descriptor is writable.
    pub async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_writable(cx)).await
    }

    /// Poll form of [`Readable::writable`].
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_level(PollFlags::OUT, || self.0.clear_writable(), || self.0.poll_writable(cx))
    }

    /// Edges alone are not sufficient here: a user of the descriptor may leave part of the data.
    fn poll_level(
        &self,
        wanted: PollFlags,
        clear: impl FnOnce(),
        wait: impl FnOnce() -> Poll<()>,
    ) -> Poll<io::Result<()>> {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            // POLLHUP and POLLERR are reported without being requested.
            match rustix::event::poll(&mut [PollFd::new(&self.0, wanted)], Some(&NOW)) {
                Ok(0) => {
                    // Nothing is there now, so the next edge counts.
                    clear();
                    return wait().map(Ok);
                }
                Ok(_) => return Poll::Ready(Ok(())),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Poll::Ready(Err(e.into())),
            }
        }
    }

    /// The descriptor itself.
    pub fn inner(&self) -> &T {
        self.0.inner()
    }
}

#[cfg(test)]
mod tests;
