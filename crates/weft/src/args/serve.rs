//! The command line of the server. The module `config` turns it into a configuration.

mod config;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{ArgGroup, ValueEnum};

use super::{
    Misread, ProviderKind, memory, number, parse_bytes, parse_congestion, parse_dialect, parse_size,
    within_memory,
};
use crate::addresses::{Addresses, LOCALHOST};
use crate::config::{AdminAddress, MAX_CORES, MAX_SPIN, MIN_BUFFERS_BYTES, are_buffers};
use crate::default_port;
use crate::logging::LogFormat;

/// `weft serve`.
#[derive(clap::Args, Clone, Debug)]
#[command(group = ArgGroup::new("door").multiple(true))]
#[command(group = ArgGroup::new("volumes").multiple(true))]
// Every option of NFS requires one of these: none is accepted without effect, and none serves NFS on its own.
#[command(group = ArgGroup::new("nfs").multiple(true))]
#[command(group = ArgGroup::new("nfs_tcp").multiple(true))]
// A file may contain the other half.
#[command(group = ArgGroup::new("nfs_cert").multiple(true))]
#[command(group = ArgGroup::new("nfs_key").multiple(true))]
#[command(group = ArgGroup::new("nbd_cert").multiple(true))]
#[command(group = ArgGroup::new("nbd_key").multiple(true))]
#[command(group = ArgGroup::new("capture").multiple(true))]
#[command(group = ArgGroup::new("admin_address").multiple(true))]
#[command(group = ArgGroup::new("admin_cert").multiple(true))]
#[command(group = ArgGroup::new("admin_key").multiple(true))]
#[command(after_help = "Examples:\n  weft serve ./data --user alice\n  \
WEFT_PASSWORD=secret weft serve ./data --ram scratch=1G --user alice --nfs-port 2049 --mountd-port 20048\n  \
weft serve --volume vol1 --nbd\n  weft serve --config weft.toml\n\n\
A share is named after its folder. The password comes from WEFT_PASSWORD, is asked for on a terminal, or is generated and printed.\n\
NFS and NBD have no passwords: they are served only if --nfs-port, --nfs-rdma-port or an --nbd option is given.")]
pub(crate) struct Serve {
    /// Read the configuration from this file (see weft config); options override it [default if DIR, --ram and
    /// --volume are missing too: $XDG_CONFIG_HOME/weft/weft.toml or ~/.config/weft/weft.toml, for root
    /// /etc/weft/weft.toml]
    // It is a member of each group that an option requires, because the file may contain what the option requires.
    // `ServeConfig::check` verifies that.
    #[arg(long, value_name = "FILE", groups = ["volumes", "door", "nfs", "nfs_tcp", "nfs_cert", "nfs_key", "nbd_cert",
        "nbd_key", "capture", "admin_address", "admin_cert", "admin_key"])]
    pub config: Option<PathBuf>,
    /// The arguments that the user has given, which override a file; `None` means all
    #[arg(skip)]
    pub typed: Option<BTreeSet<String>>,
    /// Folders to share, each under its own name
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// A share in memory, with its size limit: NAME=512M
    #[arg(long, value_name = "NAME=SIZE", value_parser = parse_ram)]
    pub ram: Vec<(String, u64)>,
    /// A volume to serve, by its name
    #[arg(long, value_name = "NAME", group = "volumes", requires = "door")]
    pub volume: Vec<String>,
    /// Serve the volumes over NBD at the standard port, 10809
    #[arg(long, group = "door", requires = "volumes")]
    pub nbd: bool,
    /// Serve the volumes over NBD at this TCP port; 0 picks a free one
    #[arg(long, value_name = "N", group = "door", requires = "volumes", value_parser = number::<u16>(..))]
    pub nbd_port: Option<u16>,
    /// Serve the volumes over NBD at this Unix socket
    #[arg(long, value_name = "PATH", group = "door", requires = "volumes")]
    pub nbd_socket: Option<PathBuf>,
    /// Certificate chain for NBD, in PEM; NBD then requires TLS
    #[arg(long, value_name = "FILE", group = "nbd_cert", requires_all = ["nbd_key", "volumes"])]
    pub nbd_tls_cert: Option<PathBuf>,
    /// Private key of the NBD certificate, in PEM
    #[arg(long, value_name = "FILE", group = "nbd_key", requires = "nbd_cert")]
    pub nbd_tls_key: Option<PathBuf>,
    /// Admit only NBD clients whose certificate is signed by an authority in this PEM file
    #[arg(long, value_name = "FILE", requires = "nbd_cert")]
    pub nbd_tls_clients: Option<PathBuf>,
    /// Refuse writes to the volumes
    #[arg(long, requires = "volumes")]
    pub nbd_read_only: bool,
    /// Serve the volumes as files of a share, over SMB (and NFS), called "volumes" or NAME
    #[arg(long, value_name = "NAME", group = "door", requires = "volumes", num_args = 0..=1, require_equals = true,
        default_missing_value = "volumes")]
    pub share_volumes: Option<String>,
    /// Let volumes be replicated to and from other hosts (weft replica); serves SMB with a hidden share
    #[arg(long, group = "door", requires = "volumes")]
    pub replica: bool,
    /// State directory: the list of volumes, NFS state that survives a restart (the key of file handles, clients),
    /// and SMB's persistent handles [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft; not for NFS on port 0]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// Serve a status page for browsers (/), metrics for Prometheus (/metrics) and the status (/api/v1/status) over HTTP
    /// at this loopback address with port, or at unix:PATH for this user and group; any other address needs
    /// --admin-token-file or --admin-tls-clients
    #[arg(long, value_name = "ADDR", group = "admin_address")]
    pub admin: Option<AdminAddress>,
    /// File with the bearer token that clients of --admin must show; only its owner may read it
    #[arg(long, value_name = "FILE", requires = "admin_address")]
    pub admin_token_file: Option<PathBuf>,
    /// Form of the log on standard error: text for people, or one JSON object per line
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// Certificate chain for --admin, in PEM: it then serves HTTPS
    #[arg(long, value_name = "FILE", group = "admin_cert", requires_all = ["admin_key", "admin_address"])]
    pub admin_tls_cert: Option<PathBuf>,
    /// Private key of the --admin certificate, in PEM
    #[arg(long, value_name = "FILE", group = "admin_key", requires = "admin_cert")]
    pub admin_tls_key: Option<PathBuf>,
    /// Admit only clients of --admin whose certificate is signed by an authority in this PEM file
    #[arg(long, value_name = "FILE", requires = "admin_cert")]
    pub admin_tls_clients: Option<PathBuf>,
    /// User who may log on beside those of `weft user`; the password comes from WEFT_PASSWORD, is asked for or
    /// generated [default: none if there are such users; otherwise $USER, or weft]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub user: Option<String>,
    /// Keytab with a key of cifs/HOST: users of its realm can also log on to SMB with Kerberos tickets, if they may
    /// log on at all. With a key of nfs/HOST: exports can ask for tickets (`--export NAME:sec=krb5p`)
    #[arg(long, value_name = "FILE")]
    pub keytab: Option<PathBuf>,
    /// Address to listen on, or a name of this host (all its addresses); localhost means 127.0.0.1 and ::1. Before
    /// you listen on anything but loopback, consider who can reach it (repeatable)
    #[arg(long, value_name = "ADDR", default_value = LOCALHOST)]
    pub listen: Vec<Addresses>,
    /// TCP port of SMB; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = default_port::WEFT_SMB, value_parser = number::<u16>(..))]
    pub smb_port: u16,
    /// Port of SMB Direct, for every provider; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = default_port::SMB_DIRECT, value_parser = number::<u16>(..))]
    pub smbd_port: u16,
    /// TCP port of NFS; 0 picks a free one
    #[arg(long, value_name = "N", groups = ["nfs", "nfs_tcp"], value_parser = number::<u16>(..))]
    pub nfs_port: Option<u16>,
    /// Port of NFS over RDMA, for every provider; 0 picks a free one
    #[arg(long, value_name = "N", group = "nfs", value_parser = number::<u16>(..))]
    pub nfs_rdma_port: Option<u16>,
    /// TCP port of the MOUNT protocol; 0 picks a free one
    #[arg(long, value_name = "N", requires = "nfs", value_parser = number::<u16>(..))]
    pub mountd_port: Option<u16>,
    /// Port for a built-in rpcbind, which tells NFS clients the other ports (they look at 111); 0 picks a free one
    #[arg(long, value_name = "N", requires = "nfs", value_parser = number::<u16>(..))]
    pub rpcbind_port: Option<u16>,
    /// Also serve NFS (version 3), MOUNT and rpcbind over UDP at the same ports. An address that has made no TCP
    /// connection gets only short answers, and no file data
    #[arg(long, requires = "nfs_tcp")]
    pub nfs_udp: bool,
    /// Register with this host's rpcbind, and unregister at the end
    #[arg(long, requires = "nfs", conflicts_with = "rpcbind_port")]
    pub rpcbind: bool,
    /// Certificate chain for NFS, in PEM: clients may use TLS (RFC 9289); `--export NAME:xprtsec=tls` requires it
    #[arg(long, value_name = "FILE", group = "nfs_cert", requires_all = ["nfs_key", "nfs"])]
    pub nfs_tls_cert: Option<PathBuf>,
    /// Private key of the NFS certificate, in PEM
    #[arg(long, value_name = "FILE", group = "nfs_key", requires = "nfs_cert")]
    pub nfs_tls_key: Option<PathBuf>,
    /// Ask NFS clients for a certificate signed by an authority in this PEM file; `--export NAME:xprtsec=mtls`
    /// requires one
    #[arg(long, value_name = "FILE", requires = "nfs_cert")]
    pub nfs_tls_clients: Option<PathBuf>,
    /// Let NFS clients' root act as root, if this server runs as root; by default root is mapped to nobody
    #[arg(long, requires = "nfs")]
    pub no_root_squash: bool,
    /// NFS options of a share: ro, secure (client ports below 1024 only; the default if this server runs as root),
    /// insecure, sync, async (acknowledge changes of names and attributes before they are durable), root_squash,
    /// no_root_squash, all_squash, anonuid=N, anongid=N, net=ADDR/BITS (repeatable), sec=sys:none:krb5:krb5i:krb5p (one
    /// or more), xprtsec=none|tls|mtls (repeatable)
    #[arg(long, value_name = "NAME:OPTION,...", requires = "nfs", value_parser = crate::exports::parse)]
    pub export: Vec<crate::exports::ExportOption>,
    /// RDMA providers to serve with, separated by commas: iwarp serves clients on any host, over TCP; shm serves this
    /// user's clients on this host; rnic serves clients of this host's RDMA devices. TCP is served as well
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "iwarp,shm")]
    pub rdma: Vec<ProviderKind>,
    /// Write the RDMA traffic to this file, for Wireshark; shared-memory traffic is shown as equivalent iWARP. The
    /// file contains payload, encrypted or not as it was sent; slow
    #[arg(long, value_name = "FILE", group = "capture")]
    pub pcap: Option<PathBuf>,
    /// Size limit of the capture file [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "capture")]
    pub pcap_limit: Option<u64>,
    /// Which SMB sessions must sign; others sign if their client asks for it
    #[arg(long, value_enum, default_value_t = SmbSigning::Auto)]
    pub signing: SmbSigning,
    /// The same as --signing required
    #[arg(long, conflicts_with = "signing")]
    pub require_signing: bool,
    /// Oldest SMB dialect to speak: 2.0.2, 2.1, 3.0, 3.0.2 or 3.1.1. Dialects below 3.0 neither encrypt nor detect a
    /// downgrade
    #[arg(long, value_name = "DIALECT", default_value = "3.0", value_parser = parse_dialect)]
    pub min_dialect: weft_smb::server::Dialect,
    /// Another name or address by which SMB clients reach this server: a DNS alias, the outside of a NAT
    /// (repeatable). On an unprotected session, a log-on that names another server is refused because it may be
    /// relayed
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub server_name: Vec<String>,
    /// Refuse sessions that are not encrypted
    #[arg(long)]
    pub require_encryption: bool,
    /// Require encryption on this share; NFS then does not offer it (repeatable)
    #[arg(long, value_name = "NAME")]
    pub encrypt_share: Vec<String>,
    /// Let open handles on this share survive a server restart if clients ask for it (persistent handles); writes go
    /// through to the disk (repeatable)
    #[arg(long, value_name = "NAME")]
    pub continuous_availability: Vec<String>,
    /// Support the POSIX extensions of SMB 3.1.1 for clients that ask for them: modes, links, owners, exact names
    #[arg(long)]
    pub posix: bool,
    /// Compress messages for clients that ask for it
    #[arg(long)]
    pub compress: bool,
    /// Tell clients to ask for compression on this share; implies --compress (repeatable)
    #[arg(long, value_name = "NAME")]
    pub compress_share: Vec<String>,
    /// DFS referral: clients that open the path go to the first reachable target: dfs/projects=//nas/projects; makes
    /// the share the root of a DFS namespace for SMB clients (repeatable)
    #[arg(long, value_name = "SHARE/NAME=//HOST/SHARE", value_parser = weft_smb::server::dfs::Link::parse)]
    pub dfs_link: Vec<weft_smb::server::dfs::Link>,
    /// Hide files that the user may not read from this share's listings, over SMB (repeatable)
    #[arg(long, value_name = "NAME")]
    pub hide_unreadable: Vec<String>,
    /// Refuse every change to this share, over all protocols (repeatable)
    #[arg(long, value_name = "NAME")]
    pub read_only: Vec<String>,
    /// Offer snapshots of this share's folder as previous versions over SMB; PATTERN matches the snapshot folders,
    /// whose names contain the time in UTC: data=.zfs/snapshot/daily-%Y-%m-%d (repeatable)
    #[arg(long, value_name = "NAME=PATTERN", value_parser = parse_snapshots)]
    pub snapshots: Vec<(String, String)>,
    /// Do not confine the server to its files (Landlock) and to the system calls that it needs (seccomp)
    #[arg(long)]
    pub unconfined: bool,
    /// Print the ready line as a JSON object
    #[arg(long)]
    pub json: bool,
    /// Serving threads, one per core [default: one per processor]
    #[arg(long, value_name = "N", value_parser = number::<usize>(1..=MAX_CORES as u64))]
    pub cores: Option<usize>,
    /// Bind thread i to processor i
    #[arg(long)]
    pub pin: bool,
    /// When iWARP connections carry a CRC32C
    #[arg(long, value_enum, default_value_t = Crc::Always)]
    pub crc: Crc,
    /// TCP congestion control of connections [default: the system's; reno on loopback ports]
    #[arg(long, value_name = "NAME", value_parser = parse_congestion)]
    pub congestion: Option<String>,
    /// Longest busy polling before a serving thread sleeps, in microseconds: trades CPU time for latency; 0 never
    /// polls
    #[arg(long, value_name = "N", default_value_t = weft_machine::rt::SPIN_MAX.as_micros() as u64,
        value_parser = number::<u64>(..=MAX_SPIN.as_micros() as u64))]
    pub spin_us: u64,
    /// Memory for payload buffers: from 64M to this host's memory; by default no more than half of a memory below 1G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_buffers)]
    pub buffers: u64,
}

/// Which SMB sessions must sign.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SmbSigning {
    /// All except sessions from this host (loopback, shared memory) and RDMA clients that cannot sign payload (Linux)
    Auto,
    /// All sessions
    Required,
    /// None, unless the client asks
    Enabled,
}

/// When iWARP uses a CRC.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crc {
    /// On every connection
    Always,
    /// Only if the peer asks for it
    Asked,
}

fn parse_ram(text: &str) -> Result<(String, u64), Misread> {
    let (name, size) = text.split_once('=').ok_or(Misread::NameAndSize)?;
    Ok((name.to_owned(), within_memory(parse_bytes(size)?)?))
}

fn parse_snapshots(text: &str) -> Result<(String, String), Misread> {
    let (name, pattern) = text.split_once('=').ok_or(Misread::NameAndPattern)?;
    Ok((name.to_owned(), pattern.to_owned()))
}

/// A size that `--buffers` accepts on this host.
fn parse_buffers(text: &str) -> Result<u64, Misread> {
    let (size, most) = (parse_bytes(text)?, memory());
    match are_buffers(size, most) {
        true => Ok(size),
        false => Err(Misread::Buffers { least: MIN_BUFFERS_BYTES, most, text: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{Args, Command, ProviderKind};
    use crate::config::{BUFFERS_BYTES, MIN_BUFFERS_BYTES, buffers_within};

    /// SMB Direct listens at iWARP's port 5445 ([MS-SMBD] 1.9), not at InfiniBand's 445; Linux's cifs tries no other.
    #[test]
    fn smb_direct_is_at_the_port_of_iwarp() {
        let args = Args::parse_from(["weft", "serve", "data"]);
        let Command::Serve(serve) = args.command else { panic!("serve") };
        assert_eq!(serve.smbd_port, 5445);
        assert_eq!(serve.rdma, [ProviderKind::Iwarp, ProviderKind::Shm]);
    }

    #[test]
    fn buffers_that_cannot_work_are_refused_with_the_range() {
        let serve = |size| Args::try_parse_from(["weft", "serve", "data", "--buffers", size]);
        assert!(serve("64M").is_ok());
        // The default is accepted by a host with less memory, too.
        assert!(serve("1G").is_ok());
        assert_eq!(buffers_within(BUFFERS_BYTES, 967 << 20), 967 << 19);
        assert_eq!(buffers_within(BUFFERS_BYTES, 100 << 20), MIN_BUFFERS_BYTES);
        assert_eq!(buffers_within(BUFFERS_BYTES, BUFFERS_BYTES), BUFFERS_BYTES);
        assert_eq!(buffers_within(MIN_BUFFERS_BYTES, 967 << 20), MIN_BUFFERS_BYTES);
        for size in ["1K", "65535K", "1000T"] {
            let refused = serve(size).unwrap_err().to_string();
            assert!(refused.contains("64M to ") && refused.contains(size), "{refused}");
        }
    }

    /// `--mountd-port` alone served files without a password, because NFS answers at MOUNT's port as well.
    #[test]
    fn options_of_nfs_want_a_port_of_nfs() {
        for option in [
            "--mountd-port 20050",
            "--rpcbind-port 1111",
            "--rpcbind",
            "--no-root-squash",
            "--export data:ro",
            "--nfs-tls-cert c --nfs-tls-key k",
        ] {
            let line = |more: &str| {
                let line = ["weft serve data", option, more].join(" ");
                Args::of_line(line.split(' ').filter(|word| !word.is_empty()))
            };
            let refused = line("").expect_err(option).to_string();
            assert!(
                refused.contains("<--config <FILE>|--nfs-port <N>|--nfs-rdma-port <N>>"),
                "{option}: {refused}"
            );
            assert!(line("--nfs-port 0").is_ok(), "{option}");
            assert!(line("--nfs-rdma-port 0").is_ok(), "{option}");
        }
    }

    #[test]
    fn what_can_be_served_is_named_where_nothing_is() {
        for line in ["weft serve", "weft serve --user alice"] {
            let Command::Serve(serve) = Args::of_line(line.split(' ')).unwrap().command else {
                panic!("serve")
            };
            assert!(!serve.names_served());
            let refused = serve.config_over(None).unwrap().check().err().unwrap();
            assert!(refused.is_misuse());
            let says = "nothing to serve: give a folder, --ram, --volume or --config FILE; there is no /";
            let said = refused.to_string();
            assert!(said.starts_with(says) && said.ends_with("weft/weft.toml"), "{line}: {said}");
        }
        let refused = Args::of_line("weft serve data --nbd".split(' ')).unwrap_err().to_string();
        assert!(refused.contains("<--config <FILE>|--volume <NAME>>"), "{refused}");
    }
}
