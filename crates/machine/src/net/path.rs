//! The kernel's data about the path of a TCP connection.
//!
//! See tcp(7) TCP_MAXSEG, ip(7) IP_MTU and ipv6(7) IPV6_MTU. It sends no probes; the kernel learns the MTU from the
//! route and from replies.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use super::Stream;

/// Sizes of a connection's path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Payload of one TCP segment.
    pub segment_bytes: u32,
    /// The largest packet that the path carries, as far as known.
    pub mtu_bytes: u32,
}

impl Stream {
    /// The connection's path; `None` if it is not a TCP connection, or is simulated.
    pub fn path(&self) -> io::Result<Option<Path>> {
        let (Some(fd), Some(peer)) = (self.fd(), self.peer().addr()) else { return Ok(None) };
        let mtu = match peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        Ok(Some(Path {
            segment_bytes: option(&fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?,
            mtu_bytes: option(&fd, mtu.0, mtu.1)?,
        }))
    }
}

/// An option of a socket whose value is an int.
fn option(fd: &impl AsFd, level: libc::c_int, name: libc::c_int) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as it is borrowed; value and len are valid for writes, and len is the size
    // of value.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(value).map_err(|_| io::Error::other("a negative size"))
}

#[cfg(test)]
mod tests {
    use crate::net::{Listener, Stream};
    use crate::rt;

    #[test]
    fn a_segment_fits_into_a_packet() {
        rt::block_on(async {
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let stream = Stream::connect(listener.local_addr()).await.unwrap();
            let path = stream.path().unwrap().unwrap();
            assert!(path.segment_bytes >= 500 && path.segment_bytes < path.mtu_bytes, "{path:?}");
        })
        .unwrap();
    }

    #[test]
    fn a_unix_socket_has_no_path() {
        rt::block_on(async {
            let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let socket = crate::net::Socket::from_unix(one).unwrap();
            assert_eq!(Stream::from_socket(socket).unwrap().path().unwrap(), None);
        })
        .unwrap();
    }
}
