//! The configuration of a server: what it serves, where it listens, who logs on, and its limits.
//!
//! A command line (see `crate::args`) or a file produces a [`ServeConfig`]. [`ServeConfig::check`] turns it into a
//! [`Plan`], or reports which key is wrong and how to write it in its origin. `crate::serve` carries a plan out. The
//! defaults are here. A field has the name of its key in a file; types and names contain the units. Nothing here
//! parses a command line, binds, or opens anything for writing.

mod admin;
mod announce;
mod check;
pub(crate) mod edit;
mod entries;
mod error;
mod exposed;
mod file;
pub(crate) mod find;
pub(crate) mod key;
mod looks;
mod macs;
mod mistake;
mod own;
mod ports;
pub(crate) mod reference;
mod row;
mod secret;
mod share;
mod sources;
mod table;
mod types;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weft_announce::MAX_NAME;
use weft_smb::auth::Principals;
use weft_smb::server::{Dialect, Signing};
use weft_store::audit::Wanted;

pub(crate) use self::admin::AdminAddress;
pub(crate) use self::check::{AbsentShare, Plan, PlannedShare};
pub(crate) use self::entries::{capture, certificate};
pub(crate) use self::error::{ConfigError, Problem};
pub(crate) use self::file::read;
pub(crate) use self::key::{Key, Origin};
pub(crate) use self::looks::{Looks, Place, is_mount, share_of_folder};
pub(crate) use self::mistake::{BadFile, MAX_SHOWN};
pub(crate) use self::row::TakesEffect;
pub(crate) use self::share::{LOOK_LIMIT, ShareConfig, ShareSource};
pub(crate) use self::sources::Sources;
pub(crate) use self::table::keys_of_option;
use crate::addresses::Addresses;
use crate::args::{Crc, ProviderKind};
use crate::default_port;
use crate::logging::LogFormat;

/// The default of [`Limits::buffers_bytes`]. Valid on each host: [`buffers_within`].
pub(crate) const BUFFERS_BYTES: u64 = 1 << 30;
/// The default of [`CaptureConfig::limit_bytes`].
pub(crate) const CAPTURE_BYTES: u64 = 1 << 30;
/// The minimum of [`Limits::buffers_bytes`]: four of the largest buffers. Peers before log-on may hold one of them,
/// and others must still have room.
pub(crate) const MIN_BUFFERS_BYTES: u64 = 4 * weft_machine::buf::MAX_BUF as u64;
/// Whether this is a value of [`Limits::buffers_bytes`] on a host of so much memory. The default always is.
pub(crate) fn are_buffers(buffers: u64, memory: u64) -> bool {
    buffers == BUFFERS_BYTES || (MIN_BUFFERS_BYTES..=memory).contains(&buffers)
}
/// The memory for payload buffers on a host of so much memory, bytes. The default is more than a small host has: it gets half of
/// its memory. Other limits have been checked.
pub(crate) fn buffers_within(buffers: u64, memory: u64) -> u64 {
    if buffers <= memory {
        return buffers;
    }
    (memory / 2).max(MIN_BUFFERS_BYTES)
}

/// The maximum of [`Limits::cores`].
pub(crate) const MAX_CORES: usize = 1024;
/// The maximum of [`Limits::spin`].
pub(crate) const MAX_SPIN: Duration = Duration::from_secs(1);
/// Bounds and default of the duration from which on an operation is slow. Below the lower one, whatever the host's
/// scheduler does would be recorded.
pub(crate) const MIN_SLOW: Duration = Duration::from_millis(1);
pub(crate) const MAX_SLOW: Duration = Duration::from_secs(3600);
pub(crate) const DEFAULT_SLOW: Duration = Duration::from_millis(100);

/// The requested configuration of a server, unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServeConfig {
    /// Where its values were written: errors name keys as they are written there, and share this value.
    pub sources: Arc<Sources>,
    /// The directory of state that survives a restart; `None` is the user's default.
    pub state_dir: Option<PathBuf>,
    /// Where metrics and the status are served over HTTP.
    pub admin: Option<AdminAddress>,
    /// The file with the token that its clients must show.
    pub admin_token_file: Option<PathBuf>,
    /// The log.
    pub log: LogConfig,
    /// The audit log.
    pub audit: AuditConfig,
    /// How the server announces itself on its networks.
    pub announce: AnnounceConfig,
    /// Addresses and ports.
    pub listeners: Listeners,
    /// Resource limits and thread settings.
    pub limits: Limits,
    /// A user who may log on beside those of `weft user`; the password is not part of the configuration. `None`: one
    /// with a default name, if there are no others.
    pub user: Option<String>,
    /// The shares. At most one of them contains the volumes.
    pub shares: Vec<ShareConfig>,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
    /// Replication of volumes to and from other hosts.
    pub replication: ReplicationConfig,
    /// What the process gives up when it starts.
    pub confine: ConfineConfig,
    /// Certificates.
    pub tls: TlsConfig,
    /// Requirements and features of SMB.
    pub smb: SmbConfig,
    /// Accounts of the system.
    pub identity: IdentityConfig,
    /// Which users Kerberos principals are.
    pub kerberos: KerberosConfig,
    /// Requirements and features of NFS, unless an export overrides them.
    pub nfs: NfsConfig,
    /// RDMA settings.
    pub rdma: RdmaConfig,
}

/// The log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// The form of its lines.
    pub format: LogFormat,
    /// Operations that take this long are recorded and logged; see [`MIN_SLOW`] and [`MAX_SLOW`].
    pub slow: Duration,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { format: LogFormat::default(), slow: DEFAULT_SLOW }
    }
}

/// The audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuditConfig {
    /// Its file; `None`: there is none.
    pub file: Option<PathBuf>,
    /// What it contains; `None`: everything.
    pub events: Option<Wanted>,
}

impl AuditConfig {
    /// What it contains.
    pub(crate) fn wanted(&self) -> Wanted {
        self.events.unwrap_or(Wanted::ALL)
    }
}

/// Whether and how the server announces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnounceConfig {
    /// Whether by Multicast DNS.
    pub mdns: bool,
    /// Whether by WS-Discovery.
    pub ws_discovery: bool,
    /// The name of the server; `None` is that of the host.
    pub name: Option<String>,
    /// The workgroup that WS-Discovery tells.
    pub workgroup: String,
    /// The network interfaces; if empty, all but loopback.
    pub interfaces: Vec<String>,
}

/// The default of [`AnnounceConfig::workgroup`], which Windows has, too.
const WORKGROUP: &str = "WORKGROUP";

impl Default for AnnounceConfig {
    fn default() -> AnnounceConfig {
        let (name, workgroup, interfaces) = (None, WORKGROUP.to_owned(), Vec::new());
        AnnounceConfig { mdns: false, ws_discovery: false, name, workgroup, interfaces }
    }
}

impl AnnounceConfig {
    /// Whether the server announces itself.
    pub(crate) fn is_on(&self) -> bool {
        self.mdns || self.ws_discovery
    }

    /// The name of the server, on the host with this node name.
    pub(crate) fn name_on(&self, node: &str) -> String {
        self.name.clone().unwrap_or_else(|| of_node(node))
    }
}

/// The first label of a node name. Characters that a name of a host does not have become hyphens.
fn of_node(node: &str) -> String {
    let first = node.split('.').next().unwrap_or_default();
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let label: String = first.chars().take(MAX_NAME).map(safe).collect();
    match label.trim_matches('-') {
        "" => "weft".to_owned(),
        label => label.to_owned(),
    }
}

/// Where the server listens: every port at every address. Port 0 is any free port; `None` is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listeners {
    /// The addresses; if empty, loopback.
    pub addresses: Vec<Addresses>,
    /// TCP port of SMB, which is served if there are shares.
    pub smb_port: u16,
    /// Port of SMB Direct, for every provider.
    pub smb_direct_port: u16,
    /// TCP port of NFS.
    pub nfs_port: Option<u16>,
    /// Port of NFS over RDMA, for every provider.
    pub nfs_rdma_port: Option<u16>,
    /// TCP port of MOUNT.
    pub mountd_port: Option<u16>,
    /// TCP port of our built-in rpcbind.
    pub rpcbind_port: Option<u16>,
    /// Whether NFS (version 3), MOUNT and rpcbind are also served over UDP at the same ports.
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
            smb_port: default_port::WEFT_SMB,
            smb_direct_port: default_port::SMB_DIRECT,
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
    /// Whether NFS is served, over any transport.
    pub(crate) fn serve_nfs(&self) -> bool {
        self.nfs_port.is_some() || self.nfs_rdma_port.is_some()
    }

    /// Whether NBD is served, over any transport.
    fn serve_nbd(&self) -> bool {
        self.nbd_port.is_some() || self.nbd_socket.is_some()
    }
}

/// Resource limits of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Memory for payload buffers: [`are_buffers`].
    pub buffers_bytes: u64,
    /// Serving threads: `1 <= cores <= MAX_CORES`; `None` is one per processor.
    pub cores: Option<usize>,
    /// Whether thread i is bound to processor i.
    pub pin: bool,
    /// Longest busy polling before a serving thread sleeps, at most [`MAX_SPIN`].
    pub spin: Duration,
    /// TCP congestion control of connections; `None` is the system's default, and reno on loopback ports.
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

/// A volume, by its name in the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeConfig {
    /// Its name.
    pub name: String,
    /// Whether writes are refused, over any protocol.
    pub read_only: bool,
}

/// Replication of volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplicationConfig {
    /// Whether the volumes can be replicated to and from other hosts.
    pub enabled: bool,
}

/// What the process gives up when it starts, where the kernel can take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfineConfig {
    /// Whether it reaches only the files that it needs.
    pub landlock: bool,
    /// Whether it can no longer make system calls that no server needs.
    pub seccomp: bool,
    /// Folders below which it may serve shares that a reload adds; `None`: usual places.
    pub folders: Option<Vec<PathBuf>>,
}

impl Default for ConfineConfig {
    fn default() -> ConfineConfig {
        ConfineConfig { landlock: true, seccomp: true, folders: None }
    }
}

/// Certificates, by protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsConfig {
    /// For NFS: clients may ask for TLS (RFC 9289).
    pub nfs: Option<CertificateConfig>,
    /// For NBD, which then requires TLS.
    pub nbd: Option<CertificateConfig>,
    /// For the admin server, which then requires TLS.
    pub admin: Option<CertificateConfig>,
}

/// A certificate, and the authorities for client certificates.
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
    /// Which sessions must sign.
    pub signing: Signing,
    /// The oldest accepted dialect.
    pub min_dialect: Dialect,
    /// Additional names by which clients reach this server.
    pub server_names: Vec<String>,
    /// Whether unencrypted sessions are refused.
    pub require_encryption: bool,
    /// Whether clients may use the POSIX extensions.
    pub posix: bool,
    /// Whether Macs are answered what they ask beyond SMB.
    pub macos: bool,
    /// The model that Macs are told.
    pub mac_model: String,
    /// Whether a server that is root acts as the accounts of its users.
    pub act_as_callers: bool,
    /// Whether messages are compressed for clients that ask for it. Set implicitly by a share that requests
    /// compression.
    pub compress: bool,
    /// The keytab for Kerberos tickets.
    pub keytab: Option<PathBuf>,
}

impl Default for SmbConfig {
    fn default() -> SmbConfig {
        SmbConfig {
            signing: Signing::default(),
            // Older dialects neither encrypt nor detect a downgrade.
            min_dialect: Dialect::V3_0,
            server_names: Vec::new(),
            require_encryption: false,
            posix: false,
            macos: true,
            mac_model: "Xserve".into(),
            act_as_callers: true,
            compress: false,
            keytab: None,
        }
    }
}

/// Accounts of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdentityConfig {
    /// Whether users with the name of an account of the system have its uid and groups, and rights may name groups of
    /// the system. `None`: if the server runs as root.
    pub system_users: Option<bool>,
}

impl IdentityConfig {
    /// Whether accounts of the system are used.
    pub(crate) fn uses_system(self) -> bool {
        self.system_users.unwrap_or_else(weft_store::is_root)
    }
}

/// Which users Kerberos principals are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KerberosConfig {
    /// Whether a principal of the realm with the name of an account of the system may log on without being a user of
    /// `weft user`.
    pub system_users: bool,
    /// The users of certain principals.
    pub map: Principals,
}

/// NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NfsConfig {
    /// Whether clients' root is mapped to nobody.
    pub root_squash: bool,
    /// Whether a server that is root acts as the users whom clients name.
    pub act_as_callers: bool,
    /// Whether the ports are registered with this host's rpcbind.
    pub register: bool,
}

impl Default for NfsConfig {
    fn default() -> NfsConfig {
        NfsConfig { root_squash: true, act_as_callers: true, register: false }
    }
}

/// RDMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdmaConfig {
    /// The providers to serve with.
    pub providers: Vec<ProviderKind>,
    /// When iWARP connections carry a CRC.
    pub crc: Crc,
    /// The capture of RDMA traffic.
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
    /// Its size limit.
    pub limit_bytes: u64,
}
