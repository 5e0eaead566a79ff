//! Why a server does not start: what object, what cause, and what to write.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use weft_store::volume::Error as VolumeError;

use super::capture::CannotCapture;
use super::registration::Unregistered;
use crate::config::{Key, Origin};
use crate::out::path_name;

/// Why a server does not start, although its configuration can be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// There is no address space.
    #[error(
        "the system has no memory for the first buffers, which take 64 MiB of address space: `ulimit -v`, `ulimit -f`, or the limit \
         of the service or container, is too low"
    )]
    NoMemory,
    /// The system gives no random numbers.
    #[error(transparent)]
    NoRandomness(#[from] weft_machine::random::Unavailable),
    /// A port is not to be had.
    #[error(transparent)]
    Listen(#[from] CannotListen),
    /// A volume is not to be served, or is of no use.
    #[error(transparent)]
    Volume(#[from] Unserved),
    /// Every volume is of no use.
    #[error("nothing is left to serve: volume {volume}: {why}")]
    NothingLeft { volume: String, why: String },
    /// Replication does not begin; a sentence of `serve::replica`.
    #[error("{0}")]
    Replication(String),
    /// No capture.
    #[error(transparent)]
    Capture(#[from] CannotCapture),
    /// No admin socket, although its directory was named.
    #[error("{key}: {fault}")]
    Admin { key: String, fault: AdminFault },
    /// Persistent handles cannot be written down.
    #[error("persistent handles cannot be kept in {}: {source}", path_name(dir))]
    Handles { dir: PathBuf, source: weft_smb::server::journal::Unusable },
    /// Those that were written down cannot be read.
    #[error("persistent handles: {0}")]
    Restore(#[from] weft_smb::server::journal::Unusable),
    /// What NFS has to remember cannot be written down, although its directory was named.
    #[error("NFS clients would not survive a restart: {0}")]
    Durable(#[from] weft_nfs::server::Unusable),
    /// The rpcbind of this host does not know us.
    #[error("{key}: {fault}")]
    Unregistered { key: String, fault: Unregistered },
    /// Too few descriptors; a sentence of `listen::quota`.
    #[error("{0}")]
    Descriptors(String),
}

/// A volume that is not served. One that is lost is left out instead.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unserved {
    /// It is in a group, and this server does not replicate.
    #[error(
        "volume {volume} is replicated, in the group {group}: add --replica; `weft replica remove {group}` ends that"
    )]
    Replicated { volume: String, group: String },
    /// It may be.
    #[error(
        "volume {volume} may be replicated, in the group {group}: {why}; add --replica, and `weft replica status` says what to do"
    )]
    MayBeReplicated { volume: String, group: String, why: String },
    /// Nobody knows it, or somebody else has it.
    #[error("{0}")]
    Open(VolumeError),
    /// Its file is another one, and that cannot be written down.
    #[error("volume {volume}: {source}")]
    Accept { volume: String, source: VolumeError },
    /// Which groups there are cannot be read; a sentence of `serve::replica`.
    #[error("{0}")]
    Groups(String),
    /// There is no place where volumes are remembered.
    #[error("{0}")]
    Remembered(String),
}

/// Why there is no admin socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminFault {
    /// Its directory is none.
    #[error("{} is a file: name a folder", path_name(.0))]
    File(PathBuf),
    /// It cannot be bound.
    #[error("no admin socket in {}: {source}", path_name(dir))]
    Bind { dir: PathBuf, source: io::Error },
    /// There is no place for it.
    #[error("no admin socket: neither XDG_STATE_HOME nor HOME is set")]
    NoPlace,
}

/// What chooses the port or socket that cannot be had: as the user writes it.
#[derive(Clone, Debug)]
pub(crate) struct Choice(String);

impl Choice {
    /// An option with its value.
    pub(crate) fn option(text: &str) -> Choice {
        Choice(text.to_owned())
    }

    /// A port that was configured by this key.
    pub(crate) fn port(key: &Key, origin: Origin) -> Choice {
        match origin {
            Origin::Flags => Choice(format!("{} N", key.at(origin))),
            Origin::File => Choice(key.at(origin).to_owned()),
        }
    }
}

/// A port that is not to be had.
#[derive(Debug)]
pub(crate) enum CannotListen {
    /// At an address.
    At { addr: SocketAddr, choice: Choice, source: io::Error },
    /// At an address, by TCP or by UDP at the same port.
    AtBoth { addr: SocketAddr, choice: Choice, source: io::Error },
    /// On a device for RDMA.
    Device { addr: SocketAddr, source: io::Error },
    /// At a Unix socket.
    Socket { path: PathBuf, source: io::Error },
}

impl std::error::Error for CannotListen {}

impl fmt::Display for CannotListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CannotListen::At { addr, choice, source } => at(*addr, choice, source, f),
            CannotListen::AtBoth { addr, choice, source } => {
                f.write_str("TCP or UDP: ")?;
                at(*addr, choice, source, f)
            }
            CannotListen::Device { addr, source } => on_device(addr.ip(), addr.port(), source, f),
            CannotListen::Socket { path, source } => {
                write!(f, "cannot listen on {}: {source}", path_name(path))
            }
        }
    }
}

fn at(
    addr: SocketAddr,
    Choice(choice): &Choice,
    source: &io::Error,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let advice = match source.kind() {
        io::ErrorKind::AddrInUse => {
            let port = addr.port();
            return write!(
                f,
                "cannot listen on {addr}: another program has the port (`ss -ltnp sport = :{port}` shows it); choose another by \
                 {choice}, or 0 for any"
            );
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root, CAP_NET_BIND_SERVICE (setcap cap_net_bind_service=+ep on the weft program) or a lower \
             net.ipv4.ip_unprivileged_port_start (sysctl): or choose a higher one by "
        }
        io::ErrorKind::AddrNotAvailable => {
            return write!(f, "cannot listen on {addr}: {source}; this host does not have that address");
        }
        _ => return write!(f, "cannot listen on {addr}: {source}"),
    };
    write!(f, "cannot listen on {addr}: {source}{advice}{choice}")
}

fn on_device(ip: IpAddr, port: u16, source: &io::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match source.kind() {
        io::ErrorKind::Unsupported => write!(f, "--rdma rnic: {source}"),
        io::ErrorKind::AddrInUse => write!(
            f,
            "--rdma rnic: port {port} is in use; iWARP devices share the ports of TCP: leave iwarp out (--rdma rnic,shm)"
        ),
        _ => write!(
            f,
            "--rdma rnic: no RDMA device listens on {ip}: {source}; choose the address of one: --listen ADDR"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::key;

    #[test]
    fn a_port_that_is_taken_is_chosen_anew_where_it_was_chosen() {
        let addr: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let said = |kind: io::ErrorKind, origin| {
            let choice = Choice::port(&key::NFS_PORT, origin);
            CannotListen::At { addr, choice, source: kind.into() }.to_string()
        };
        let taken = said(io::ErrorKind::AddrInUse, Origin::Flags);
        assert!(taken.ends_with("choose another by --nfs-port N, or 0 for any"), "{taken}");
        let taken = said(io::ErrorKind::AddrInUse, Origin::File);
        assert!(taken.ends_with("choose another by listeners.nfs_port, or 0 for any"), "{taken}");
        let denied = said(io::ErrorKind::PermissionDenied, Origin::Flags);
        assert!(denied.contains("need root") && denied.ends_with("a higher one by --nfs-port N"), "{denied}");
    }
}
