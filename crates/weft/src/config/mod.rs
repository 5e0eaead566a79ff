//! The configuration of a server: what it serves, where it listens, who logs on, and its limits.
//!
//! A command line (see `crate::args`) or a file produces a [`ServeConfig`]. [`ServeConfig::check`] makes a [`Plan`] of it, or says
//! which key is wrong, and how to write it where it came from. A plan is carried out by `crate::serve`.
//! Owns: the defaults. A field has the name of its key in a file; units are in types and names.
//! Does not: parse a command line, bind, or open anything that is written to.

mod check;
mod error;
pub(crate) mod key;
mod ports;
mod share;

use std::path::PathBuf;
use std::time::Duration;

use weft_smb::server::{Dialect, Signing};

pub(crate) use self::check::{Plan, PlannedShare};
pub(crate) use self::error::{ConfigError, Problem};
pub(crate) use self::key::{Key, Origin};
pub(crate) use self::share::{ShareConfig, ShareSource, share_of_folder};
use crate::addresses::Addresses;
use crate::args::{Crc, ProviderKind};

/// The port of SMB where root may not be needed: 445 is reserved.
pub(crate) const SMB_PORT: u16 = 4450;
/// Where clients look for SMB Direct on iWARP ([MS-SMBD] 2.1); Linux's cifs looks nowhere else.
pub(crate) const SMB_DIRECT_PORT: u16 = 5445;
/// The port that NBD clients assume.
pub(crate) const NBD_PORT: u16 = 10809;
/// What [`Limits::buffers_bytes`] is by default.
pub(crate) const BUFFERS_BYTES: u64 = 1 << 30;
/// What [`CaptureConfig::limit_bytes`] is by default.
pub(crate) const CAPTURE_BYTES: u64 = 1 << 30;
/// The least of [`Limits::buffers_bytes`]: four of the largest, so that peers who have not logged on, who may hold one,
/// leave room for others.
pub(crate) const MIN_BUFFERS_BYTES: u64 = 4 * weft_machine::buf::MAX_BUF as u64;
/// The most of [`Limits::cores`].
pub(crate) const MAX_CORES: usize = 1024;
/// The most of [`Limits::spin`].
pub(crate) const MAX_SPIN: Duration = Duration::from_secs(1);

/// What a server is asked to be. Nothing of it has been checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    /// Where it was written: errors name its keys as they are written there.
    pub origin: Origin,
    /// What has to survive a restart is kept in this directory; `None` is the user's.
    pub state_dir: Option<PathBuf>,
    /// Addresses and ports.
    pub listeners: Listeners,
    /// Bounds, and how the threads work.
    pub limits: Limits,
    /// Who may log on.
    pub users: Vec<UserConfig>,
    /// What is served as files. At most one of them has the volumes.
    pub shares: Vec<ShareConfig>,
    /// What is served as blocks.
    pub volumes: Vec<VolumeConfig>,
    /// Copies of volumes on other hosts.
    pub replication: ReplicationConfig,
    /// Certificates.
    pub tls: TlsConfig,
    /// What SMB asks of its clients and offers them.
    pub smb: SmbConfig,
    /// What NFS asks of its clients and offers them, where an export does not say otherwise.
    pub nfs: NfsConfig,
    /// How payload travels by RDMA.
    pub rdma: RdmaConfig,
}

/// Where the server listens: every port at every address. Port 0 is any that is free; `None` is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listeners {
    /// The addresses; of none, loopback.
    pub addresses: Vec<Addresses>,
    /// TCP port of SMB, which is served where there are shares.
    pub smb_port: u16,
    /// Port of SMB Direct, of every provider.
    pub smb_direct_port: u16,
    /// TCP port of NFS.
    pub nfs_port: Option<u16>,
    /// Port of NFS over RDMA, of every provider.
    pub nfs_rdma_port: Option<u16>,
    /// TCP port of MOUNT.
    pub mountd_port: Option<u16>,
    /// TCP port of an rpcbind of our own.
    pub rpcbind_port: Option<u16>,
    /// NFS (version 3), MOUNT and rpcbind by UDP too, at the same ports.
    pub nfs_udp: bool,
    /// TCP port of NBD.
    pub nbd_port: Option<u16>,
    /// Unix socket of NBD.
    pub nbd_socket: Option<PathBuf>,
}

impl Default for Listeners {
    fn default() -> Listeners {
        Listeners {
            addresses: vec![Addresses::default()],
            smb_port: SMB_PORT,
            smb_direct_port: SMB_DIRECT_PORT,
            nfs_port: None,
            nfs_rdma_port: None,
            mountd_port: None,
            rpcbind_port: None,
            nfs_udp: false,
            nbd_port: None,
            nbd_socket: None,
        }
    }
}

impl Listeners {
    /// Whether NFS is served, over whatever transport.
    pub(crate) fn serve_nfs(&self) -> bool {
        self.nfs_port.is_some() || self.nfs_rdma_port.is_some()
    }

    /// Whether NBD is served, over whatever transport.
    fn serve_nbd(&self) -> bool {
        self.nbd_port.is_some() || self.nbd_socket.is_some()
    }
}

/// Bounds of what the process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory for payload buffers: `MIN_BUFFERS_BYTES <= buffers_bytes <= memory of this host`.
    pub buffers_bytes: u64,
    /// Threads that serve: `1 <= cores <= MAX_CORES`; `None` is one per processor.
    pub cores: Option<usize>,
    /// Whether thread i is bound to processor i.
    pub pin: bool,
    /// Longest busy polling before a serving thread sleeps, at most [`MAX_SPIN`].
    pub spin: Duration,
    /// TCP congestion control of connections; `None` is the system's, and reno on ports of loopback.
    pub congestion: Option<String>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            buffers_bytes: BUFFERS_BYTES,
            cores: None,
            pin: false,
            spin: weft_machine::rt::SPIN_MAX,
            congestion: None,
        }
    }
}

/// Who may log on. The password comes from elsewhere: a configuration holds none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserConfig {
    /// The name, which is not empty.
    pub name: String,
}

/// A volume, by the name under which the state directory remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeConfig {
    /// Its name.
    pub name: String,
    /// Whether writes are refused, by whatever protocol it is served.
    pub read_only: bool,
}

/// Replication of volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicationConfig {
    /// Whether the volumes can be copied to other hosts, and from there.
    pub enabled: bool,
}

/// Certificates, by the protocol that shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsConfig {
    /// For NFS: clients may ask for TLS (RFC 9289).
    pub nfs: Option<CertificateConfig>,
    /// For NBD, which is then spoken under TLS only.
    pub nbd: Option<CertificateConfig>,
}

/// A certificate, and those whose clients are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateConfig {
    /// The chain, in PEM.
    pub certificate: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// The authorities that sign certificates of clients, in PEM.
    pub clients: Option<PathBuf>,
}

/// SMB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmbConfig {
    /// Whose sessions must sign.
    pub signing: Signing,
    /// The oldest dialect that is spoken.
    pub min_dialect: Dialect,
    /// Further names by which clients call this server.
    pub server_names: Vec<String>,
    /// Whether sessions that are not encrypted are refused.
    pub require_encryption: bool,
    /// Whether the POSIX extensions are spoken with clients that ask for them.
    pub posix: bool,
    /// Whether messages are compressed with clients that ask for it. A share that asks clients to implies it.
    pub compress: bool,
    /// What Kerberos tickets are checked against.
    pub keytab: Option<PathBuf>,
}

impl Default for SmbConfig {
    fn default() -> SmbConfig {
        SmbConfig {
            signing: Signing::default(),
            // Those below neither encrypt nor detect a downgrade.
            min_dialect: Dialect::V3_0,
            server_names: Vec::new(),
            require_encryption: false,
            posix: false,
            compress: false,
            keytab: None,
        }
    }
}

/// NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NfsConfig {
    /// Whether callers who say that they are root become nobody.
    pub root_squash: bool,
    /// Whether the ports are registered with the rpcbind of this host.
    pub register: bool,
}

impl Default for NfsConfig {
    fn default() -> NfsConfig {
        NfsConfig { root_squash: true, register: false }
    }
}

/// RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdmaConfig {
    /// What is served with.
    pub providers: Vec<ProviderKind>,
    /// Whether iWARP connections carry a CRC that the peer did not ask for.
    pub crc: Crc,
    /// Where what goes over RDMA is written down.
    pub capture: Option<CaptureConfig>,
}

impl Default for RdmaConfig {
    fn default() -> RdmaConfig {
        let providers = vec![ProviderKind::Iwarp, ProviderKind::Shm];
        RdmaConfig { providers, crc: Crc::Always, capture: None }
    }
}

/// A capture of RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CaptureConfig {
    /// The file.
    pub file: PathBuf,
    /// How large it may become.
    pub limit_bytes: u64,
}
