//! The process at the other end of a Unix socket, as the kernel reports it: SO_PEERCRED, unix(7).
//!
//! The kernel translates the process id into the PID namespace of the one who asks. A peer outside that namespace has
//! no id in it, and the kernel says 0 (pid_namespaces(7)). rustix's `UCred` has no room for 0, so this file asks the
//! kernel itself. Who may connect is decided elsewhere.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end, at the time it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its process id; none if it is in a PID namespace that this process does not see.
    pub pid: Option<u32>,
}

impl PeerCredentials {
    /// Those of the peer of a connected Unix socket.
    ///
    /// # Errors
    /// It is not a socket.
    pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `length` bytes to `found`, which has
        // that size, and any bytes are a valid `ucred`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(PeerCredentials::from(found))
    }
}

impl From<libc::ucred> for PeerCredentials {
    fn from(found: libc::ucred) -> PeerCredentials {
        let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0);
        PeerCredentials { uid: found.uid, gid: found.gid, pid }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_is_the_process_that_connected() {
        let (end, _other) = UnixStream::pair().unwrap();
        let own = PeerCredentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            pid: Some(std::process::id()),
        };
        assert_eq!(PeerCredentials::of(&end).unwrap(), own);
        let file = tempfile::tempfile().unwrap();
        assert_eq!(PeerCredentials::of(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn a_process_of_another_pid_namespace_has_a_user_and_no_id() {
        let outside = PeerCredentials::from(libc::ucred { pid: 0, uid: 7, gid: 8 });
        assert_eq!(outside, PeerCredentials { uid: 7, gid: 8, pid: None });
    }
}
