//! Listening sockets that the service manager has bound and passes to this process: socket activation,
//! sd_listen_fds(3).
//!
//! They stay bound while no server runs, so clients that connect during a restart wait in their queues and are not
//! refused. [`receive`] takes them over once. Their user checks them, then offers them ([`offer`]); from then on binding
//! an address takes the socket that is bound to it already ([`super::Listener::bind`], [`tcp`], [`udp`], [`unix`]). So
//! whoever binds need not know where a socket comes from.
//!
//! The descriptors are the process's own from its start, so the table of those that are offered is the process's as well.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType, ipproto, sockopt};

/// The first descriptor that is passed (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;
/// The most sockets that are taken over.
pub const MAX_PASSED: usize = 256;

/// A descriptor that the service manager has passed.
#[derive(Debug)]
pub struct Passed {
    /// Its number.
    pub number: RawFd,
    /// FileDescriptorName=; by default the name of the socket unit. Empty if there are no names.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    fd: OwnedFd,
}

/// What a passed descriptor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A listening TCP socket.
    Tcp(SocketAddr),
    /// A bound UDP socket.
    Udp(SocketAddr),
    /// A listening Unix stream socket with a path.
    Unix(PathBuf),
    /// Something that nobody can accept connections on, in words.
    Unfit(&'static str),
}

/// Why the passed descriptors cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum Unreceived {
    /// A variable is not what sd_listen_fds(3) says.
    #[error("{0}={1} is not a number")]
    NoNumber(&'static str, String),
    /// There are more than anybody needs.
    #[error("LISTEN_FDS={0}: at most {MAX_PASSED} descriptors can be passed")]
    Many(usize),
    /// There are other names than descriptors.
    #[error("LISTEN_FDNAMES has {0} names for {1} descriptors (LISTEN_FDS)")]
    Names(usize, usize),
    /// A number is not a descriptor that was open when the process began.
    #[error("{}, which LISTEN_FDS announces, is not open: pass it, or lower LISTEN_FDS", named(*.0, .1))]
    NotOpen(RawFd, String),
    /// The system refuses to tell what a descriptor is.
    #[error("descriptor {0}: {1}")]
    Io(RawFd, io::Error),
}

/// A descriptor and its name, as messages have it.
fn named(number: RawFd, name: &str) -> String {
    match name {
        "" => format!("descriptor {number}"),
        name => format!("descriptor {number} ({name})"),
    }
}

/// The names of the passed descriptors, by LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES; none if they are meant for
/// another process.
fn announced(own: u32, variable: impl Fn(&str) -> Option<String>) -> Result<Vec<String>, Unreceived> {
    let number = |name| {
        let text: Option<String> = variable(name);
        text.map(|text| text.parse::<usize>().map_err(|_| Unreceived::NoNumber(name, text))).transpose()
    };
    let (Some(pid), Some(count)) = (number("LISTEN_PID")?, number("LISTEN_FDS")?) else { return Ok(vec![]) };
    if usize::try_from(own) != Ok(pid) {
        return Ok(vec![]);
    }
    if count > MAX_PASSED {
        return Err(Unreceived::Many(count));
    }
    match variable("LISTEN_FDNAMES") {
        Some(names) if count > 0 => {
            let names: Vec<String> = names.split(':').map(str::to_owned).collect();
            match names.len() == count {
                true => Ok(names),
                false => Err(Unreceived::Names(names.len(), count)),
            }
        }
        _ => Ok(vec![String::new(); count]),
    }
}

/// Takes over what the service manager has passed; nothing the second time.
///
/// # Errors
/// The announcement is malformed, or a descriptor is not open.
pub fn receive() -> Result<Vec<Passed>, Unreceived> {
    static RECEIVED: AtomicBool = AtomicBool::new(false);
    if RECEIVED.swap(true, Ordering::AcqRel) {
        return Ok(vec![]);
    }
    let names = announced(std::process::id(), |name| std::env::var(name).ok())?;
    (FIRST..).zip(names).map(|(number, name)| Passed::take(number, name)).collect()
}

impl Passed {
    fn take(number: RawFd, name: String) -> Result<Passed, Unreceived> {
        // SAFETY: F_GETFD has no arguments and changes nothing.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        // What was passed has come through execve(2). What this process has opened since has the flag, and may have got the
        // number of a passed descriptor that was closed.
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            return Err(Unreceived::NotOpen(number, name));
        }
        // SAFETY: the descriptor is open, and it is nobody else's: it was open when the process began, the environment says
        // that it was passed to this process, and `receive` takes each one once.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        let looked = rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).and_then(|()| kind(&fd));
        let kind = looked.map_err(|e| Unreceived::Io(number, e.into()))?;
        Ok(Passed { number, name, kind, fd })
    }
}

fn kind(fd: &OwnedFd) -> Result<Kind, Errno> {
    let socket = match sockopt::socket_type(fd) {
        Err(Errno::NOTSOCK) => return Ok(Kind::Unfit("no socket")),
        socket => socket?,
    };
    let local = rustix::net::getsockname(fd)?;
    let listens = sockopt::socket_acceptconn(fd)?;
    let is_ip = [AddressFamily::INET, AddressFamily::INET6].contains(&local.address_family());
    let has_protocol =
        |usual| Ok::<_, Errno>(sockopt::socket_protocol(fd)?.is_none_or(|found| found == usual));
    Ok(match socket {
        SocketType::STREAM if !listens => Kind::Unfit("a connection (Accept=yes)"),
        // Above all MPTCP's: it has no TCP_USER_TIMEOUT, so a peer that vanishes would hold its connection for ever.
        SocketType::STREAM if is_ip && !has_protocol(ipproto::TCP)? => {
            Kind::Unfit("a stream socket of another protocol than TCP (SocketProtocol=)")
        }
        SocketType::DGRAM if is_ip && !has_protocol(ipproto::UDP)? => {
            Kind::Unfit("a datagram socket of another protocol than UDP (SocketProtocol=)")
        }
        SocketType::STREAM if is_ip => SocketAddr::try_from(local).map(Kind::Tcp)?,
        SocketType::STREAM => match path_of(local) {
            Some(path) => Kind::Unix(path),
            None => Kind::Unfit("a stream socket without a path or IP address"),
        },
        SocketType::DGRAM if is_ip => SocketAddr::try_from(local).map(Kind::Udp)?,
        _ => Kind::Unfit(
            "a socket of another type (ListenDatagram= or ListenSequentialPacket= of a path, ListenNetlink=)",
        ),
    })
}

fn path_of(local: SocketAddrAny) -> Option<PathBuf> {
    let path = SocketAddrUnix::try_from(local).ok()?.path_bytes()?.to_owned();
    Some(PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(path)))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Tcp(addr) => write!(f, "a TCP socket at {addr}"),
            Kind::Udp(addr) => write!(f, "a UDP socket at {addr}"),
            Kind::Unix(path) => write!(f, "a Unix socket at {}", path.display()),
            Kind::Unfit(what) => f.write_str(what),
        }
    }
}

/// Those that wait to be bound.
static OFFERED: Mutex<Vec<Passed>> = Mutex::new(Vec::new());

/// From now on, whoever binds the address of one of these gets it.
pub fn offer(passed: Vec<Passed>) {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner).extend(passed);
}

fn take(fits: impl Fn(&Kind) -> bool) -> Option<OwnedFd> {
    let mut offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = offered.iter().position(|one| fits(&one.kind))?;
    Some(offered.swap_remove(found).fd)
}

/// A TCP listener at this address: the passed one, or a new one.
///
/// # Errors
/// It cannot be bound.
pub fn tcp(addr: SocketAddr) -> io::Result<TcpListener> {
    match take(|kind| *kind == Kind::Tcp(addr)) {
        Some(fd) => Ok(fd.into()),
        None => TcpListener::bind(addr),
    }
}

/// A UDP socket at this address: the passed one, or a new one.
///
/// # Errors
/// It cannot be bound.
pub fn udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    match take(|kind| *kind == Kind::Udp(addr)) {
        Some(fd) => Ok(fd.into()),
        None => UdpSocket::bind(addr),
    }
}

/// The passed Unix socket at this absolute path. Its file is the service manager's.
pub fn unix(path: &Path) -> Option<UnixListener> {
    take(|kind| matches!(kind, Kind::Unix(bound) if bound == path)).map(UnixListener::from)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn announced_by(variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        announced(7, variable).map_err(|e| e.to_string())
    }

    #[test]
    fn descriptors_are_for_the_process_that_is_named() {
        let pid = ("LISTEN_PID", "7");
        assert_eq!(announced_by(&[]), Ok(vec![]));
        assert_eq!(announced_by(&[("LISTEN_PID", "8"), ("LISTEN_FDS", "2")]), Ok(vec![]));
        assert_eq!(announced_by(&[pid, ("LISTEN_FDS", "0"), ("LISTEN_FDNAMES", "")]), Ok(vec![]));
        assert_eq!(announced_by(&[pid, ("LISTEN_FDS", "2")]), Ok(vec![String::new(); 2]));
        let names = ("LISTEN_FDNAMES", "smb:nfs");
        assert_eq!(announced_by(&[pid, ("LISTEN_FDS", "2"), names]), Ok(vec!["smb".into(), "nfs".into()]));
        for (variables, says) in [
            ([pid, ("LISTEN_FDS", "3"), names], "LISTEN_FDNAMES has 2 names for 3 descriptors (LISTEN_FDS)"),
            ([pid, ("LISTEN_FDS", "x"), names], "LISTEN_FDS=x is not a number"),
            ([("LISTEN_PID", "-7"), ("LISTEN_FDS", "1"), names], "LISTEN_PID=-7 is not a number"),
            ([pid, ("LISTEN_FDS", "257"), names], "LISTEN_FDS=257: at most 256 descriptors can be passed"),
        ] {
            assert_eq!(announced_by(&variables), Err(says.into()));
        }
    }

    #[test]
    fn a_descriptor_says_what_it_is() {
        let passed = |fd: OwnedFd| Passed::take(handed_over(fd), "x".into()).unwrap().kind;
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = tcp.local_addr().unwrap();
        let connection = std::net::TcpStream::connect(addr).unwrap();
        assert_eq!(passed(tcp.into()), Kind::Tcp(addr));
        let udp = UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).unwrap();
        let addr = udp.local_addr().unwrap();
        assert_eq!(passed(udp.into()), Kind::Udp(addr));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert_eq!(passed(UnixListener::bind(&path).unwrap().into()), Kind::Unix(path));
        let file = tempfile::tempfile().unwrap();
        for unfit in [
            OwnedFd::from(connection),
            OwnedFd::from(UnixStream::pair().unwrap().0),
            OwnedFd::from(UnixDatagram::unbound().unwrap()),
            OwnedFd::from(file),
        ] {
            assert!(matches!(passed(unfit), Kind::Unfit(_)));
        }
        let of_protocol = |kind, protocol| {
            let made = rustix::net::socket(AddressFamily::INET, kind, Some(protocol));
            made.inspect(|fd| {
                rustix::net::bind(fd, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            })
        };
        // A kernel may have been built without them.
        if let Ok(mptcp) = of_protocol(SocketType::STREAM, ipproto::MPTCP) {
            rustix::net::listen(&mptcp, 1).unwrap();
            let says = "a stream socket of another protocol than TCP (SocketProtocol=)";
            assert_eq!(passed(mptcp), Kind::Unfit(says));
        }
        if let Ok(lite) = of_protocol(SocketType::DGRAM, ipproto::UDPLITE) {
            assert!(matches!(passed(lite), Kind::Unfit(_)));
        }
    }

    /// A descriptor as it comes through execve(2).
    fn handed_over(fd: OwnedFd) -> RawFd {
        rustix::io::fcntl_setfd(&fd, FdFlags::empty()).unwrap();
        fd.into_raw_fd()
    }

    /// Weft took a descriptor of its own for one that was passed, and called it "no socket".
    #[test]
    fn a_number_that_this_process_has_opened_itself_was_not_passed() {
        let own = tempfile::tempfile().unwrap();
        for (number, name) in [(own.as_raw_fd(), "smb"), (own.as_raw_fd() + 4000, "")] {
            let refused = Passed::take(number, name.into()).unwrap_err();
            assert!(matches!(refused, Unreceived::NotOpen(..)), "{refused}");
            let says = format!("{}, which LISTEN_FDS announces, is not open: pass it", named(number, name));
            assert!(refused.to_string().starts_with(&says), "{refused}");
        }
        // It is still this process's.
        own.metadata().unwrap();
    }

    #[test]
    fn who_binds_an_address_gets_the_socket_that_has_it() {
        let bound = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = bound.local_addr().unwrap();
        assert_eq!(tcp(addr).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // A client that connects before anybody serves.
        let _early = std::net::TcpStream::connect(addr).unwrap();
        offer(vec![Passed::take(handed_over(bound.into()), "smb".into()).unwrap()]);
        let taken = tcp(addr).unwrap();
        assert_eq!(taken.local_addr().unwrap(), addr);
        taken.accept().unwrap();
        // Once.
        assert_eq!(tcp(addr).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
