//! A listening Unix socket with a path, for local clients. It owns the socket and its file, which is removed on drop.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use weft_machine::net::{Peer, Readable, Socket, inherited};
use weft_machine::{LogLimit, rt};

/// Connections waiting to be accepted.
const BACKLOG: i32 = 128;
/// Only the owner connects.
const OWNER: u32 = 0o600;

/// The socket. The permissions of its file decide who may connect: only its owner, whatever the umask.
pub(crate) struct PathListener {
    socket: Readable<Listening>,
    /// Dropped after the socket, unless it was handed over; none if the service manager has bound the socket.
    file: Option<SocketFile>,
}

/// The file of a socket; removed on drop.
pub(crate) struct SocketFile(PathBuf);

struct Listening(UnixListener);

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PathListener {
    /// Listens at `path`. A socket left by a dead process is replaced.
    pub(crate) fn bind(path: &Path) -> io::Result<PathListener> {
        let (listener, file) = listen_at(path, OWNER)?;
        listener.set_nonblocking(true)?;
        Ok(PathListener { socket: Readable::new(Listening(listener))?, file })
    }

    /// Hands over the file to a caller that is certain to drop it at the end: a task may be dropped with its core.
    pub(crate) fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// Accepts the next connection. An error is one of the listener: a connection whose other end the kernel does not
    /// identify is closed, and delays nobody else.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        static UNIDENTIFIED: LogLimit = LogLimit::new();
        loop {
            match Socket::from_unix(self.accept_stream().await?) {
                Ok(socket) => return Ok(socket),
                Err(e) => {
                    if let Some(left_out) = UNIDENTIFIED.pass(rt::now()) {
                        tracing::warn!("refused a connection to a Unix socket: {e}{left_out}");
                    }
                }
            }
        }
    }

    /// Accepts the next connection, and returns the user at its other end.
    pub(crate) async fn accept_known(&self) -> io::Result<(Socket, u32)> {
        let socket = self.accept().await?;
        match socket.peer() {
            Peer::Local { uid, .. } => Ok((socket, uid)),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    async fn accept_stream(&self) -> io::Result<UnixStream> {
        loop {
            match self.socket.inner().0.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.socket.readable().await?,
                // accept(2): the connection was gone before it was accepted.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Listens at `path` for the users whom this mode lets write to the socket. A socket left by a dead process is replaced. One
/// that the service manager has bound is used as it is; its file and its mode are the service manager's.
///
/// # Errors
/// Also if other users could put a socket of theirs in its place.
pub(crate) fn listen_at(path: &Path, mode: u32) -> io::Result<(UnixListener, Option<SocketFile>)> {
    check_folder(path)?;
    if let Some(listener) = inherited::unix(&std::path::absolute(path)?) {
        return Ok((listener, None));
    }
    let near = Near::of(path)?;
    let listener = match bind_closed(&near.path, mode) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
            std::fs::remove_file(path)?;
            bind_closed(&near.path, mode)?
        }
        other => other?,
    };
    Ok((listener, Some(SocketFile(path.to_owned()))))
}

/// Listens at a path that other users cannot connect to: the file gets the socket's mode (unix(7)), so there is no
/// moment at which they could.
fn bind_closed(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    if mode != OWNER {
        // The umask has narrowed it.
        set_mode(path, mode)?;
    }
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Sets the mode of the socket at `path`. chmod(2) would follow a link that somebody has put in its place, and fchmod(2) does
/// not reach the file of a socket.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let flags = (OFlags::PATH | OFlags::NOFOLLOW).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.file_type().is_socket() || found.uid() != rustix::process::geteuid().as_raw() {
        let text = "another user has put another file in the place of the new socket: choose another folder";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    // The descriptor names this file, whatever the path names meanwhile.
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(opened, Permissions::from_mode(mode))
}

/// Refuses a folder in which other users could replace the socket by their own, which clients would trust.
fn check_folder(path: &Path) -> io::Result<()> {
    const STICKY: u32 = 0o1000;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = folder.metadata()?;
    // The group of the server's own user is often his alone.
    let is_own_group = found.gid() == rustix::process::getegid().as_raw();
    let others = if is_own_group { 0o002 } else { 0o022 };
    if found.mode() & STICKY != 0 || found.mode() & others == 0 {
        return Ok(());
    }
    let text = format!(
        "other users can write to {}, and could put their own socket in its place: chmod go-w it, or choose another folder",
        folder.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// The mode of the socket at `path` if every user of this host may connect to it: the file admits all, and so does each of its
/// folders (path_resolution(7)).
pub(crate) fn open_to_all(path: &Path) -> io::Result<Option<u32>> {
    const WRITE: u32 = 0o002;
    const SEARCH: u32 = 0o001;
    let path = std::path::absolute(path)?;
    let mode = path.symlink_metadata()?.mode() & 0o7777;
    if mode & WRITE == 0 {
        return Ok(None);
    }
    for folder in path.ancestors().skip(1) {
        if folder.metadata()?.mode() & SEARCH == 0 {
            return Ok(None);
        }
    }
    Ok(Some(mode))
}

/// Connects to the socket at `path`, of any length.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(&Near::of(path)?.path)
}

/// Whether no process listens on a socket.
pub(crate) fn is_abandoned(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    is_socket && connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// The size of `sun_path` (unix(7)), whose last byte is 0.
const SUN_PATH_BYTES: usize = 108;
/// The longest name of a socket whose path does not fit into its address, so that [`Near`] leads to it.
const MAX_NAME_BYTES: usize = SUN_PATH_BYTES - 1 - "/proc/self/fd/2147483647/".len();

fn fits(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() < SUN_PATH_BYTES
}

/// The most bytes that the name of the socket at `path` may have, if it has more.
pub(crate) fn name_limit(path: &Path) -> Option<usize> {
    let name = path.file_name().map_or(0, |name| name.as_bytes().len());
    (!fits(path) && name > MAX_NAME_BYTES).then_some(MAX_NAME_BYTES)
}

/// A path that fits into a socket address: a longer path is reached through its open folder.
struct Near {
    path: PathBuf,
    /// Keeps the descriptor that `path` uses open.
    _folder: Option<File>,
}

impl Near {
    fn of(path: &Path) -> io::Result<Near> {
        if fits(path) {
            return Ok(Near { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let flags = rustix::fs::OFlags::PATH.bits().cast_signed();
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
        let path = Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        Ok(Near { path, _folder: Some(folder) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            tracing::warn!("{} was left behind: {e}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::rt;

    use super::*;

    #[test]
    fn a_socket_may_lie_deep_and_tells_who_connects() {
        rt::block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let deep = dir.path().join("d".repeat(100)).join("e".repeat(100));
            std::fs::create_dir_all(&deep).unwrap();
            let path = deep.join("s.sock");
            let listener = PathListener::bind(&path).unwrap();
            assert!(path.exists() && !is_abandoned(&path));
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600, "nobody else's to connect to");
            let _client = connect(&path).unwrap();
            // The check above connected, too.
            for _ in 0..2 {
                let (_, uid) = listener.accept_known().await.unwrap();
                assert_eq!(uid, rustix::process::geteuid().as_raw());
            }
            drop(listener);
            assert!(!path.exists());
        })
        .unwrap();
    }

    #[test]
    fn a_wider_mode_reaches_the_socket_and_nothing_that_is_put_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        let (_listener, file) = listen_at(&path, 0o666).unwrap();
        assert_eq!(mode(&path), 0o666, "whatever the umask");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, b"").unwrap();
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let link = dir.path().join("link");
        for target in [&secret, &path] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(set_mode(&link, 0o777).is_err(), "{target:?}");
            std::fs::remove_file(&link).unwrap();
        }
        assert!(set_mode(&secret, 0o777).is_err(), "no socket");
        assert_eq!((mode(&secret), mode(&path)), (0o600, 0o666));
        drop(file);
    }

    #[test]
    fn a_socket_is_open_to_all_if_its_folders_are_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        // The folder of temporary files may be this user's alone.
        let above: Vec<_> = dir.path().ancestors().skip(1).map(|folder| folder.metadata().unwrap()).collect();
        let is_reached = above.iter().all(|folder| folder.mode() & 0o001 != 0);
        for (outer, inner, socket, open) in [
            (0o755, 0o755, 0o666, true),
            (0o711, 0o701, 0o602, true),
            (0o755, 0o755, 0o660, false),
            (0o755, 0o750, 0o666, false),
            (0o700, 0o755, 0o666, false),
        ] {
            set(&path, socket);
            set(&folder, inner);
            set(dir.path(), outer);
            let open = open && is_reached;
            assert_eq!(open_to_all(&path).unwrap(), open.then_some(socket), "{outer:o} {inner:o} {socket:o}");
        }
        assert!(open_to_all(&folder.join("none")).is_err());
    }

    #[test]
    fn a_folder_to_which_others_may_write_has_no_socket_unless_it_is_sticky() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd.sock");
        for (mode, admits) in [(0o777, false), (0o702, false), (0o1777, true), (0o755, true), (0o770, true)] {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let bound = listen_at(&path, OWNER);
            assert_eq!(bound.is_ok(), admits, "{mode:o}");
            if let Err(e) = bound {
                assert!(e.to_string().contains("chmod go-w"), "{e}");
                assert!(!path.exists());
            }
        }
    }

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
            // A file that is not a socket belongs to somebody.
            std::fs::write(&path, b"mine").unwrap();
            assert!(PathListener::bind(&path).is_err() && path.exists());
        })
        .unwrap();
    }
}
