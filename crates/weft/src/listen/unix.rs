//! A listening Unix socket with a path, for local clients.
//!
//! Owns: the socket and its file, which goes when this is dropped. Does not: speak a protocol.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use weft_machine::net::{Readable, Socket};

/// The socket. Who may connect is decided by the rights of its file: as the umask has it, its owner.
pub(crate) struct PathListener {
    socket: Readable<Listening>,
    path: PathBuf,
}

struct Listening(UnixListener);

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PathListener {
    /// Listens at `path`. A socket that a dead process has left behind is replaced.
    pub(crate) fn bind(path: &Path) -> io::Result<PathListener> {
        let listener = match UnixListener::bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        listener.set_nonblocking(true)?;
        Ok(PathListener { socket: Readable::new(Listening(listener))?, path: path.to_owned() })
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        loop {
            match self.socket.inner().0.accept() {
                Ok((stream, _)) => return Ok(stream.into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.readable().await?,
                // accept(2): a connection that was gone before it was accepted.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// A socket at which nobody listens.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

impl Drop for PathListener {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.path) {
            tracing::warn!("{} was left behind: {e}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::rt;

    use super::*;

    #[test]
    fn what_a_dead_process_left_is_replaced_and_what_lives_is_not() {
        rt::block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("nbd.sock");
            drop(UnixListener::bind(&path).unwrap());
            assert!(path.exists());
            let listener = PathListener::bind(&path).unwrap();
            assert_eq!(PathListener::bind(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);
            let _client = UnixStream::connect(&path).unwrap();
            listener.accept().await.unwrap();
            drop(listener);
            assert!(!path.exists());
            // A file that is no socket is somebody's.
            std::fs::write(&path, b"mine").unwrap();
            assert!(PathListener::bind(&path).is_err() && path.exists());
        })
        .unwrap();
    }
}
