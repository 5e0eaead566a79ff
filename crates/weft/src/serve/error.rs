//! Why a server does not start: object, cause, and what to write.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use weft_store::volume::Error as VolumeError;

use super::capture::CannotCapture;
use super::registration::Unregistered;
use super::replica::error::{Unlisted, Unremembered};
use crate::config::{Key, Origin};
use crate::listen::quota::FewDescriptors;
use crate::out::path_name;
use crate::users::store::StoreError;

/// Why a server does not start although its configuration is valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// There is too little address space.
    #[error(
        "the system has no memory for the first buffers, which take 64 MiB of address space: `ulimit -v`, `ulimit -f`, or the limit \
         of the service or container, is too low"
    )]
    NoMemory,
    /// The system provides no random numbers.
    #[error(transparent)]
    NoRandomness(#[from] weft_machine::random::Unavailable),
    /// A port cannot be bound.
    #[error(transparent)]
    Listen(#[from] CannotListen),
    /// The users cannot be read.
    #[error(transparent)]
    Users(#[from] StoreError),
    /// A volume cannot be served.
    #[error(transparent)]
    Volume(#[from] Unserved),
    /// No volume can be served.
    #[error("nothing is left to serve: volume {volume}: {why}")]
    NothingLeft { volume: String, why: String },
    /// Replication cannot start.
    #[error(transparent)]
    Replication(#[from] Unremembered),
    /// The capture cannot be written.
    #[error(transparent)]
    Capture(#[from] CannotCapture),
    /// There is no admin socket, although its directory was named.
    #[error("{key}: {fault}")]
    Admin { key: String, fault: AdminFault },
    /// The thread of the admin server cannot be started.
    #[error("the admin server: {0}")]
    AdminThread(io::Error),
    /// Persistent handles cannot be recorded.
    #[error("persistent handles cannot be kept in {}: {source}", path_name(dir))]
    Handles { dir: PathBuf, source: weft_smb::server::journal::Unusable },
    /// The audit log cannot be written.
    #[error("{key}: {} {fault}", path_name(file))]
    Audit { key: String, file: PathBuf, fault: weft_store::audit::Unusable },
    /// The recorded handles cannot be read.
    #[error("persistent handles: {0}")]
    Restore(#[from] weft_smb::server::journal::Unusable),
    /// NFS's state cannot be recorded, although its directory was named.
    #[error("NFS clients would not survive a restart: {0}")]
    Durable(#[from] weft_nfs::server::Unusable),
    /// The rpcbind of this host does not accept our registration.
    #[error("{key}: {fault}")]
    Unregistered { key: String, fault: Unregistered },
    /// Too few descriptors.
    #[error(transparent)]
    Descriptors(#[from] FewDescriptors),
}

/// A volume that is not served. Lost volumes are left out instead.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unserved {
    /// It is in a group, and this server does not replicate.
    #[error(
        "volume {volume} is replicated, in the group {group}: add --replica; `weft replica remove {group}` ends that"
    )]
    Replicated { volume: String, group: String },
    /// It may be in a group.
    #[error(
        "volume {volume} may be replicated, in the group {group}: {why}; add --replica, and `weft replica status` says what to do"
    )]
    MayBeReplicated { volume: String, group: String, why: String },
    /// It does not exist, or another process uses it.
    #[error("{0}")]
    Open(VolumeError),
    /// Its file has been replaced, and that cannot be recorded.
    #[error("volume {volume}: {source}")]
    Accept { volume: String, source: VolumeError },
    /// The list of groups cannot be read.
    #[error(transparent)]
    Groups(#[from] Unlisted),
    /// There is no directory that records volumes.
    #[error("{0}")]
    Remembered(String),
}

/// Why there is no admin socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminFault {
    /// Its directory is a file.
    #[error("{} is a file: give a folder", path_name(.0))]
    File(PathBuf),
    /// It cannot be bound.
    #[error("no admin socket in {}: {source}", path_name(dir))]
    Bind { dir: PathBuf, source: io::Error },
    /// There is no directory for it.
    #[error("no admin socket: neither XDG_STATE_HOME nor HOME is set")]
    NoPlace,
}

/// The option that chooses the port or socket that cannot be bound, as the user writes it.
#[derive(Clone, Debug)]
pub(crate) struct Choice(String);

impl Choice {
    /// An option with its value.
    pub(crate) fn option(text: &str) -> Choice {
        Choice(text.to_owned())
    }

    /// A port configured by this key.
    pub(crate) fn port(key: &Key, origin: Origin) -> Choice {
        match origin {
            Origin::Flags => Choice(format!("{} N", key.at(origin))),
            Origin::File => Choice(key.at(origin).into_owned()),
        }
    }
}

/// A port that cannot be bound.
#[derive(Debug)]
pub(crate) enum CannotListen {
    /// At an address.
    At { addr: SocketAddr, choice: Choice, source: io::Error },
    /// At an address, over TCP or UDP on the same port.
    AtBoth { addr: SocketAddr, choice: Choice, source: io::Error },
    /// On an RDMA device.
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
                "cannot listen on {addr}: another program uses the port (`ss -ltnp sport = :{port}` shows it); choose another with \
                 {choice}, or 0 for any free port"
            );
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root, CAP_NET_BIND_SERVICE (setcap cap_net_bind_service=+ep on the weft program) or a lower \
             net.ipv4.ip_unprivileged_port_start (sysctl): or choose a higher one with "
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
            "--rdma rnic: port {port} is in use; iWARP devices share the ports of TCP: omit iwarp (--rdma rnic,shm)"
        ),
        _ => write!(
            f,
            "--rdma rnic: no RDMA device listens on {ip}: {source}; give the address of one: --listen ADDR"
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
        assert!(taken.ends_with("choose another with --nfs-port N, or 0 for any free port"), "{taken}");
        let taken = said(io::ErrorKind::AddrInUse, Origin::File);
        assert!(taken.ends_with("choose another with listeners.nfs_port, or 0 for any free port"), "{taken}");
        let denied = said(io::ErrorKind::PermissionDenied, Origin::Flags);
        assert!(
            denied.contains("need root") && denied.ends_with("a higher one with --nfs-port N"),
            "{denied}"
        );
    }
}
