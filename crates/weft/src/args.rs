//! The command line.
//!
//! Owns: names, defaults and help of every option. Does not: act.

mod bench;
mod compare;
mod rdma;
pub(crate) mod replica;
mod volume;

use std::ffi::OsString;
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{ArgGroup, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use weft_machine::net;

pub(crate) use self::bench::*;
pub(crate) use self::compare::*;
pub(crate) use self::rdma::*;
pub(crate) use self::replica::*;
pub(crate) use self::volume::*;
use crate::addresses::{Addresses, LOCALHOST};

/// Longest busy polling that makes sense, in microseconds: a second.
const MAX_SPIN_US: u64 = 1_000_000;

/// RDMA file storage for any Ethernet, in user space.
#[derive(Parser, Debug)]
#[command(name = "weft", version, about, max_term_width = 100)]
pub(crate) struct Args {
    /// Log more: -v what happens to connections, -vv each protocol step
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// End when nobody can read standard output any more: for a process that another weft starts
    #[arg(long, global = true, hide = true)]
    pub end_with_reader: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// The command line, where a number or size may begin with a hyphen: it is refused with the range, and not for an option.
    pub(crate) fn of_line(
        line: impl IntoIterator<Item: Into<OsString> + Clone>,
    ) -> Result<Args, clap::Error> {
        let command = with_negative_values(Args::command());
        let mut found = command.clone().try_get_matches_from(line).map_err(|mut error| {
            // That an option which does not exist can be passed as a value (`weft ls -- -l`) helps nobody: no URL begins so.
            if error.kind() == ErrorKind::UnknownArgument {
                error.remove(ContextKind::Suggested);
            }
            error
        })?;
        Args::from_arg_matches_mut(&mut found).map_err(|e| e.format(&mut command.clone()))
    }
}

fn with_negative_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let is_size = arg.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "SIZE"));
        match arg.get_action().takes_values() && !arg.is_positional() {
            true if is_size => arg.allow_hyphen_values(true),
            true => arg.allow_negative_numbers(true),
            false => arg,
        }
    });
    command.mut_subcommands(with_negative_values)
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve folders and ramdisks over SMB (and NFS), on TCP and RDMA; volumes over NBD
    Serve(Box<Serve>),
    /// Create, list and change volumes
    Volume(Volume),
    /// Replicate volumes to other hosts
    Replica(Box<Replica>),
    /// Show what a running server serves, to whom, and whether RDMA carries the payload
    Status(Status),
    /// Copy a file or folder to or from a server, and verify the copy
    Cp(Cp),
    /// List a folder on a server, or the server's shares
    Ls(Ls),
    /// Write files from a server to standard output
    Cat(Cat),
    /// Write standard input to a file on a server
    Put(Put),
    /// Show a file's metadata
    Stat(Stat),
    /// Make one folder equal to another, to or from a server, copying only what differs
    Sync(Sync),
    /// Serve a ramdisk here, sweep READ and WRITE over TCP, iWARP and shared memory, write a report
    Demo(Demo),
    /// Measure a server as the white papers did, RDMA beside TCP, or by workloads of your own
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Explain, step by step, whether RDMA to a host works and why not
    Doctor(Doctor),
    /// RDMA without storage: check data, measure, list providers
    #[command(subcommand)]
    Rdma(Rdma),
    /// Write the manual pages into a folder
    Man(Man),
}

/// `weft man`.
#[derive(clap::Args, Debug)]
pub(crate) struct Man {
    /// Folder for the pages; created if missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

impl Command {
    /// Whether it stays and serves, so that its log tells what it does.
    pub(crate) fn serves(&self) -> bool {
        match self {
            Command::Serve(_)
            | Command::Rdma(Rdma::Ping(Ping { server: true, .. }) | Rdma::Perf(Perf::Server(_))) => true,
            Command::Cp(_) | Command::Ls(_) | Command::Cat(_) | Command::Put(_) => false,
            Command::Stat(_)
            | Command::Sync(_)
            | Command::Demo(_)
            | Command::Volume(_)
            | Command::Bench(_) => false,
            Command::Status(_) | Command::Replica(_) => false,
            Command::Doctor(_) | Command::Rdma(_) | Command::Man(_) => false,
        }
    }
}

/// `weft serve`.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("door").multiple(true))]
#[command(group = ArgGroup::new("served").multiple(true).required(true))]
// Options of NFS require one of these, so that none of them is accepted without effect, and none serves NFS by itself.
#[command(group = ArgGroup::new("nfs").multiple(true))]
#[command(after_help = "Examples:\n  weft serve ./data --user alice\n  \
WEFT_PASSWORD=secret weft serve ./data --ram scratch=1G --user alice --nfs-port 2049 --mountd-port 20048\n  \
weft serve --volume vol1 --nbd\n\n\
A share is named after its folder. The password comes from WEFT_PASSWORD, is asked for on a terminal, or is made up and printed.\n\
NFS and NBD have no passwords: they are served only where --nfs-port, --nfs-rdma-port or an --nbd option asks for them.")]
pub(crate) struct Serve {
    /// Folders to share, each under its own name
    #[arg(value_name = "DIR", group = "served")]
    pub dirs: Vec<PathBuf>,
    /// A share in memory, with its size limit: NAME=512M
    #[arg(long, value_name = "NAME=SIZE", group = "served", value_parser = parse_ram)]
    pub ram: Vec<(String, u64)>,
    /// A volume to serve over NBD, by its name
    #[arg(long, value_name = "NAME", group = "served", requires = "door")]
    pub volume: Vec<String>,
    /// Serve the volumes over NBD at its port, 10809
    #[arg(long, group = "door", requires = "volume")]
    pub nbd: bool,
    /// Serve the volumes over NBD at this TCP port; 0 takes any
    #[arg(long, value_name = "N", group = "door", requires = "volume", value_parser = number::<u16>(..))]
    pub nbd_port: Option<u16>,
    /// Serve the volumes over NBD at this Unix socket
    #[arg(long, value_name = "PATH", group = "door", requires = "volume")]
    pub nbd_socket: Option<PathBuf>,
    /// Certificate for NBD, a chain in PEM: then it is spoken under TLS only
    #[arg(long, value_name = "FILE", requires_all = ["nbd_tls_key", "volume"])]
    pub nbd_tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "nbd_tls_cert")]
    pub nbd_tls_key: Option<PathBuf>,
    /// Let in only NBD clients with a certificate that one of these authorities has signed
    #[arg(long, value_name = "FILE", requires = "nbd_tls_cert")]
    pub nbd_tls_clients: Option<PathBuf>,
    /// Refuse writes to the volumes
    #[arg(long, requires = "volume")]
    pub nbd_read_only: bool,
    /// Serve the volumes as files of a share, over SMB (and NFS); it is called "volumes" unless NAME says otherwise
    #[arg(long, value_name = "NAME", group = "door", requires = "volume", num_args = 0..=1, require_equals = true,
        default_missing_value = "volumes")]
    pub share_volumes: Option<String>,
    /// Let the volumes be copied to other hosts, and from there to here (weft replica); serves SMB, and a hidden share
    #[arg(long, group = "door", requires = "volume")]
    pub replica: bool,
    /// Where volumes are remembered, what NFS needs after a restart (the key of its file handles, its clients), and persistent
    /// handles of SMB
    /// [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft; not for NFS on port 0]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// Who may log on
    #[arg(long, default_value_t = default_user(), value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub user: String,
    /// Keytab with a key of cifs/HOST: users of the realm log on to SMB by Kerberos tickets, too, if they may log on at all
    #[arg(long, value_name = "FILE")]
    pub keytab: Option<PathBuf>,
    /// Address to listen on, or a name of this host with all its addresses; localhost is 127.0.0.1 and ::1. Anything but loopback
    /// is your decision (repeatable)
    #[arg(long = "listen", value_name = "ADDR", default_value = LOCALHOST)]
    pub each_listen: Vec<Addresses>,
    /// All of them.
    #[arg(skip)]
    pub listen: Addresses,
    /// TCP port of SMB; 0 takes any
    #[arg(long, value_name = "N", default_value_t = 4450, value_parser = number::<u16>(..))]
    pub smb_port: u16,
    /// Port of SMB Direct, of every provider; 0 takes any
    #[arg(long, value_name = "N", default_value_t = 5445, value_parser = number::<u16>(..))]
    pub smbd_port: u16,
    /// TCP port of NFS; 0 takes any
    #[arg(long, value_name = "N", group = "nfs", value_parser = number::<u16>(..))]
    pub nfs_port: Option<u16>,
    /// Port of NFS over RDMA, of every provider; 0 takes any
    #[arg(long, value_name = "N", group = "nfs", value_parser = number::<u16>(..))]
    pub nfs_rdma_port: Option<u16>,
    /// TCP port of the MOUNT protocol; 0 takes any
    #[arg(long, value_name = "N", requires = "nfs", value_parser = number::<u16>(..))]
    pub mountd_port: Option<u16>,
    /// Tell NFS clients the other ports at this one: rpcbind, which they look for at 111; 0 takes any
    #[arg(long, value_name = "N", requires = "nfs", value_parser = number::<u16>(..))]
    pub rpcbind_port: Option<u16>,
    /// Serve NFS (version 3), MOUNT and rpcbind by UDP, too, at the same ports. Addresses that have made no connection by TCP get
    /// short answers alone, and no files
    #[arg(long, requires = "nfs_port")]
    pub nfs_udp: bool,
    /// Register with the rpcbind that runs on this host, and take that back at the end
    #[arg(long, requires = "nfs", conflicts_with = "rpcbind_port")]
    pub rpcbind: bool,
    /// Certificate for NFS, a chain in PEM: clients may ask for TLS (RFC 9289); `--export NAME:xprtsec=tls` makes them
    #[arg(long, value_name = "FILE", requires_all = ["nfs_tls_key", "nfs"])]
    pub nfs_tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "nfs_tls_cert")]
    pub nfs_tls_key: Option<PathBuf>,
    /// Ask NFS clients for a certificate that one of these authorities has signed; `--export NAME:xprtsec=mtls` wants it
    #[arg(long, value_name = "FILE", requires = "nfs_tls_cert")]
    pub nfs_tls_clients: Option<PathBuf>,
    /// Let NFS callers who say that they are root be root, where this server is; by default they are nobody
    #[arg(long, requires = "nfs")]
    pub no_root_squash: bool,
    /// How a share is offered over NFS: ro, secure (callers have a port below 1024; the default where this server is root), insecure,
    /// root_squash, no_root_squash, all_squash, anonuid=N, anongid=N, net=ADDR/BITS (repeatable), sec=sys:none,
    /// xprtsec=none|tls|mtls (repeatable)
    #[arg(long, value_name = "NAME:OPTION,...", requires = "nfs", value_parser = crate::exports::parse)]
    pub export: Vec<crate::exports::ExportOption>,
    /// RDMA providers to serve with
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_values_t = [ProviderKind::Iwarp, ProviderKind::Shm])]
    pub rdma: Vec<ProviderKind>,
    /// Write what goes over RDMA into this file, for Wireshark: also what passes by shared memory, as the iWARP that it would be.
    /// Payload included, encrypted or not as it was sent; slow
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// How large that file may become
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size, requires = "pcap")]
    pub pcap_limit: u64,
    /// Whose SMB sessions must sign. Others sign if their client asks for it
    #[arg(long, value_enum, default_value_t = SmbSigning::Auto)]
    pub signing: SmbSigning,
    /// The same as --signing required
    #[arg(long, conflicts_with = "signing")]
    pub require_signing: bool,
    /// Oldest SMB dialect to speak: 2.0.2, 2.1, 3.0, 3.0.2 or 3.1.1. Those below 3.0 neither encrypt nor detect a downgrade
    #[arg(long, value_name = "DIALECT", default_value = "3.0", value_parser = parse_dialect)]
    pub min_dialect: weft_smb::server::Dialect,
    /// A further name or address by which SMB clients call this server: an alias in DNS, the outside of a NAT (repeatable). A log-on
    /// that names another server is refused where the session is not protected: it may be relayed
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub server_name: Vec<String>,
    /// Refuse sessions that are not encrypted
    #[arg(long)]
    pub require_encryption: bool,
    /// Let nothing of this share travel unencrypted; NFS does not offer it then (repeatable)
    #[arg(long, value_name = "NAME")]
    pub encrypt_share: Vec<String>,
    /// Handles on this share survive a restart of the server where clients ask for that (persistent handles); writes go
    /// through to the disk (repeatable)
    #[arg(long, value_name = "NAME")]
    pub continuous_availability: Vec<String>,
    /// Speak the POSIX extensions of SMB 3.1.1 with clients that ask for them: modes, links, owners, exact names
    #[arg(long)]
    pub posix: bool,
    /// Compress messages with clients that ask for it
    #[arg(long)]
    pub compress: bool,
    /// Tell clients to ask for compression on this share; implies --compress (repeatable)
    #[arg(long, value_name = "NAME")]
    pub compress_share: Vec<String>,
    /// A name that leads elsewhere, to the first of several targets that is there: dfs/projects=//nas/projects; makes the share
    /// the root of a DFS namespace for SMB clients (repeatable)
    #[arg(long, value_name = "SHARE/NAME=//HOST/SHARE", value_parser = weft_smb::server::dfs::Link::parse)]
    pub dfs_link: Vec<weft_smb::server::dfs::Link>,
    /// Leave out of this share's listings what their user may not read, over SMB (repeatable)
    #[arg(long, value_name = "NAME")]
    pub hide_unreadable: Vec<String>,
    /// Let nobody change anything in this share, over whatever protocol (repeatable)
    #[arg(long, value_name = "NAME")]
    pub read_only: Vec<String>,
    /// Offer the snapshots of this share's folder as previous versions, over SMB; their folders' names have the time, in UTC:
    /// data=.zfs/snapshot/daily-%Y-%m-%d (repeatable)
    #[arg(long, value_name = "NAME=PATTERN", value_parser = parse_snapshots)]
    pub snapshots: Vec<(String, String)>,
    /// Print the ready line as a JSON object
    #[arg(long)]
    pub json: bool,
    /// Threads that serve, one per core [default: one per processor]
    #[arg(long, value_name = "N", value_parser = number::<usize>(1..=1024))]
    pub cores: Option<usize>,
    /// Bind thread i to processor i
    #[arg(long)]
    pub pin: bool,
    /// Whether iWARP connections carry a CRC32C that the peer did not ask for
    #[arg(long, value_enum, default_value_t = Crc::Always)]
    pub crc: Crc,
    /// TCP congestion control of connections [default: the system's; reno on ports of loopback]
    #[arg(long, value_name = "NAME", value_parser = parse_congestion)]
    pub congestion: Option<String>,
    /// Longest busy polling before a serving thread sleeps, in microseconds: lower latency for CPU time; 0 never polls
    #[arg(long, value_name = "N", default_value_t = weft_machine::rt::SPIN_MAX.as_micros() as u64,
        value_parser = number::<u64>(..=MAX_SPIN_US))]
    pub spin_us: u64,
    /// Memory for payload buffers: 64M to the memory of this host
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_buffers)]
    pub buffers: u64,
}

/// Whose SMB sessions must sign.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SmbSigning {
    /// All but those of this host (loopback, shared memory) and of RDMA clients that cannot sign payload (Linux)
    Auto,
    /// All
    Required,
    /// None
    Enabled,
}

impl Serve {
    /// What the two options say together.
    pub(crate) fn smb_signing(&self) -> weft_smb::server::Signing {
        use weft_smb::server::Signing;
        match self.signing {
            _ if self.require_signing => Signing::Required,
            SmbSigning::Auto => Signing::Exposed,
            SmbSigning::Required => Signing::Required,
            SmbSigning::Enabled => Signing::Enabled,
        }
    }
}

/// When iWARP uses a CRC.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crc {
    /// On every connection
    Always,
    /// Where the peer asks for it
    Asked,
}

/// How a client reaches the server.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Shared memory where the server is on this host, else an RDMA device where both have one, else iWARP, else TCP;
    /// says what it took
    Auto,
    /// Plain TCP
    Tcp,
    /// RDMA over TCP (iWARP), in user space
    Iwarp,
    /// RDMA over shared memory, on one host
    Shm,
    /// RDMA by a device of this host (rdma-core)
    Rnic,
}

/// Options of everything that connects.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Connect {
    /// How to reach the server
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Use no CRC on iWARP unless the server asks for one
    #[arg(long)]
    pub no_crc: bool,
    /// Encrypt the SMB session
    #[arg(long)]
    pub encrypt: bool,
    /// Sign the SMB session
    #[arg(long)]
    pub sign: bool,
    /// Compress SMB over TCP where the server supports it
    #[arg(long)]
    pub compress: bool,
    /// Oldest SMB dialect to speak: 2.1, 3.0, 3.0.2 or 3.1.1 [default: 3.0]. With 2.1 nothing shows whether the server knows the
    /// password, or that somebody in between has changed what it says, unless --sign
    #[arg(long, value_name = "DIALECT", value_parser = parse_dialect)]
    pub min_dialect: Option<weft_smb::server::Dialect>,
    /// Log on to SMB with your Kerberos ticket (kinit) instead of a password; HOST must be the name in cifs/HOST
    #[arg(short, long)]
    pub kerberos: bool,
    /// Connections to the server's address [default: 1]; an SMB session has one more to each of its other addresses
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=16))]
    pub channels: Option<u32>,
}

impl Connect {
    /// By this transport, and otherwise as where no option is given.
    pub(crate) fn by(transport: Transport) -> Connect {
        Connect {
            transport,
            no_crc: false,
            encrypt: false,
            sign: false,
            compress: false,
            min_dialect: None,
            kerberos: false,
            channels: None,
        }
    }

    /// Refuses for NFS what SMB alone has: who asks for encryption must not send in clear.
    pub(crate) fn check_nfs(&self) -> Result<(), String> {
        let of_smb = [
            (self.encrypt, "--encrypt", "weft's NFS client has no encryption"),
            (self.sign, "--sign", "weft's NFS client has no signatures"),
            (self.kerberos, "--kerberos", "weft's NFS client knows no tickets"),
            (self.compress, "--compress", "NFS has no compression"),
            (
                self.min_dialect.is_some(),
                "--min-dialect",
                "?vers=3 or ?vers=4.1 behind the URL chooses a version of NFS",
            ),
        ];
        match of_smb.into_iter().find(|(asked, ..)| *asked) {
            Some((_, option, because)) => Err(format!("{option} is for SMB; {because}")),
            None => Ok(()),
        }
    }
}

/// `weft cp`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft cp smb://alice@127.0.0.1:4450/data/big.iso ./copy.iso --transport iwarp\n  \
weft cp ./big.iso smb://alice@127.0.0.1:4450/data/\n  \
weft cp nfs://nas/data/big.iso ./copy.iso\n  \
weft cp 'nfs://127.0.0.1:2049/data/big.iso?mountport=20048' ./copy.iso\n\n\
The password comes from WEFT_PASSWORD or is asked for."
)]
pub(crate) struct Cp {
    /// A local file, - for standard input (as target: output), smb://USER@HOST:PORT/SHARE/PATH,
    /// or nfs://HOST:PORT/EXPORT/PATH?vers=3|4.1&mountport=N&rdmaport=N
    pub from: String,
    /// Where to: the same forms; in a folder (or with a trailing slash) the copy keeps the file's name
    pub to: String,
    /// Copy folders and everything in them
    #[arg(short, long)]
    pub recursive: bool,
    #[command(flatten)]
    pub transfer: Transfer,
    /// Files copied at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number::<u32>(1..=64))]
    pub files: u32,
}

/// Options of everything that copies.
#[derive(clap::Args, Debug)]
pub(crate) struct Transfer {
    #[command(flatten)]
    pub connect: Connect,
    /// Bytes of one operation, 512 to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = |text: &str| parse_within(text, 512, 16 << 20))]
    pub block: u64,
    /// Operations outstanding at a time, of each file
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = number::<u32>(1..=1024))]
    pub queue_depth: u32,
    /// Skip reading the copy back to compare it
    #[arg(long)]
    pub no_verify: bool,
    /// Keep the partial file when a copy fails or is interrupted; the next run continues from it
    #[arg(long)]
    pub resume: bool,
    /// Seconds to keep reconnecting when all connections to an SMB server are lost; 0 fails at once
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = number::<u32>(0..=86400))]
    pub patience: u32,
    /// No progress bar
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the outcome as a JSON object
    #[arg(long)]
    pub json: bool,
}

impl Transfer {
    /// How long the server may be away.
    pub(crate) fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.patience.into())
    }
}

/// `weft sync`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft sync ./photos smb://alice@nas/data/photos\n  \
weft sync --delete smb://alice@nas/data/photos ./photos\n\n\
A file is copied when its size or its time differs. The copy gets the time of its source.")]
pub(crate) struct Sync {
    /// Source folder: a local one, smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH
    pub from: String,
    /// Destination folder; created if missing
    pub to: String,
    /// After copying, delete files that the source does not have
    #[arg(long)]
    pub delete: bool,
    /// Only print what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub transfer: Transfer,
    /// Files copied at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number::<u32>(1..=64))]
    pub files: u32,
}

/// `weft cat`.
#[derive(clap::Args, Debug)]
pub(crate) struct Cat {
    /// smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH?mountport=N
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    #[command(flatten)]
    pub connect: Connect,
}

/// `weft put`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tar c ./photos | weft put smb://alice@nas/data/photos.tar")]
pub(crate) struct Put {
    /// smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH?mountport=N
    pub url: String,
    #[command(flatten)]
    pub connect: Connect,
    /// Print the outcome as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft stat`.
#[derive(clap::Args, Debug)]
pub(crate) struct Stat {
    /// smb://USER@HOST:PORT/SHARE/PATH or nfs://HOST:PORT/EXPORT/PATH?mountport=N
    pub url: String,
    #[command(flatten)]
    pub connect: Connect,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft ls`.
#[derive(clap::Args, Debug)]
pub(crate) struct Ls {
    /// smb://USER@HOST:PORT[/SHARE[/PATH]] or nfs://HOST:PORT/EXPORT[/PATH]?mountport=N; without a share, the shares
    pub url: String,
    #[command(flatten)]
    pub connect: Connect,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `weft status`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft status\n  weft status --watch\n  \
weft status --json | jq '.servers[].connections[] | [.peer, .transport, .provider, .traffic.rdma_written_bytes]'\n\n\
It asks the servers of this user on this host, by a socket in their state directory.")]
pub(crate) struct Status {
    /// The server's state directory [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// Only the server with this process number
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..))]
    pub pid: Option<u32>,
    /// Print JSON: {"servers": [...]}
    #[arg(long)]
    pub json: bool,
    /// Again and again, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Seconds in between
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "watch", value_parser = number::<u64>(1..=86_400))]
    pub every: u64,
}

/// `weft demo`.
#[derive(clap::Args, Debug)]
pub(crate) struct Demo {
    /// Where the page goes; - is standard output, and the tables go to standard error then
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Where the figures go as JSON (docs/result-schema.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where the figures go as CSV, with every percentile
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Judge the bounds that the project promises; exit non-zero where one falls short
    #[arg(long)]
    pub gate: bool,
    /// Repetitions of each point; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number::<usize>(1..=1000))]
    pub repetitions: usize,
    /// Length of one measurement in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 150, value_parser = number::<u64>(1..=600_000))]
    pub duration_ms: u64,
    /// Bytes of the file that is read and written; by default no cache of the processor holds it
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = |text: &str| parse_within(text, 1 << 20, memory()))]
    pub file_size: u64,
    /// Fewer points
    #[arg(long)]
    pub quick: bool,
    /// Measure only points whose name contains TEXT: "SMB READ 8 KiB", "qd 1"
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Measure only over these transports, and TCP unless it is left out
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = ["tcp", "iwarp", "iwarp-nocrc", "shm"])]
    pub over: Vec<String>,
}

pub(crate) fn default_user() -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(|| "weft".into())
}

/// A TCP congestion control that this kernel has, and lets us choose.
pub(crate) fn parse_congestion(name: &str) -> Result<String, String> {
    use std::io::ErrorKind;
    let list = |which: &str| {
        let listed = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control"));
        listed.map_or_else(|e| format!("(unknown: {e})"), |names| names.trim().to_owned())
    };
    match net::try_congestion(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            Err(format!("only root may choose it here; everybody may choose {}", list("allowed")))
        }
        Err(_) => Err(format!("this kernel does not offer it; it offers {}", list("available"))),
    }
}

/// A number of this type in a range; what is none is told with the range.
pub(crate) fn number<T: TryFrom<u64>>(
    range: impl RangeBounds<u64> + Clone + Send + std::marker::Sync + 'static,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + std::marker::Sync + 'static {
    move |text| {
        let least = match range.start_bound() {
            Bound::Included(least) => *least,
            Bound::Excluded(below) => below.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let most = match range.end_bound() {
            Bound::Included(most) => *most,
            Bound::Excluded(above) => above.saturating_sub(1),
            Bound::Unbounded => u64::MAX >> (u64::BITS - 8 * size_of::<T>() as u32),
        };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match most {
            u64::MAX => format!("write a number from {least} on"),
            most => format!("write a number from {least} to {most}"),
        })
    }
}

fn parse_ram(text: &str) -> Result<(String, u64), String> {
    let (name, size) = text.split_once('=').ok_or("write NAME=SIZE, for example scratch=512M")?;
    Ok((name.to_owned(), parse_within(size, 1, memory())?))
}

/// A size in a range.
fn parse_within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let size = parse_bytes(text)?;
    match (least..=most).contains(&size) {
        true => Ok(size),
        false => Err(format!("write a size from {} to {}", rounded(least), rounded(most))),
    }
}

/// A size as users write it.
fn rounded(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes}"),
        0x400..0x10_0000 => format!("{}K", bytes >> 10),
        0x10_0000.. => format!("{}M", bytes >> 20),
    }
}

/// Bytes of memory of this host.
fn memory() -> u64 {
    let system = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion, reason = "a word of the system, which is shorter elsewhere")]
    u64::from(system.totalram).saturating_mul(u64::from(system.mem_unit))
}

fn parse_snapshots(text: &str) -> Result<(String, String), String> {
    let (name, pattern) =
        text.split_once('=').ok_or("write NAME=PATTERN, for example data=.zfs/snapshot/daily-%Y-%m-%d")?;
    Ok((name.to_owned(), pattern.to_owned()))
}

/// "3.0", "3.1.1".
fn parse_dialect(text: &str) -> Result<weft_smb::server::Dialect, String> {
    use weft_smb::server::Dialect;
    let known = [Dialect::V2_0_2, Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1];
    let found = known.into_iter().find(|dialect| dialect.to_string() == text);
    found.ok_or_else(|| format!("no dialect {text}: one of 2.0.2, 2.1, 3.0, 3.0.2, 3.1.1"))
}

/// "64K", "512M", "1G", "4096"; binary multiples. More than nothing.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err(format!("a size is more than 0 (write for example 512M), not {text}")),
        size => Ok(size),
    }
}

/// The same, or nothing.
fn parse_bytes(text: &str) -> Result<u64, String> {
    // The parser of numbers takes a plus sign, and "+1G" would make a volume of 8 GiB one of 1 GiB.
    if text.starts_with(['+', '-']) {
        return Err(format!("sizes are absolute: write the whole size (for example 3G), not {text}"));
    }
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        other => return Err(format!("unknown unit {other:?}: write a number with K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("not a size: {text:?} (write for example 512M)"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than this system can count"))
}

/// The least memory for payload buffers: four of the largest, so that peers who have not logged on, who may hold one,
/// leave room for others.
const MIN_BUFFERS: u64 = 4 * weft_machine::buf::MAX_BUF as u64;

/// A size that `--buffers` can have here.
fn parse_buffers(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text)?;
    let memory = memory();
    if (MIN_BUFFERS..=memory).contains(&size) {
        return Ok(size);
    }
    let (least, most) = (MIN_BUFFERS >> 20, memory >> 20);
    Err(format!("buffers take {least}M to {most}M on this host, not {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    /// SMB Direct is at 5445 on iWARP ([MS-SMBD] 1.9), not at 445 as on InfiniBand; Linux's cifs looks nowhere else.
    #[test]
    fn smb_direct_is_at_the_port_of_iwarp() {
        let args = Args::parse_from(["weft", "serve", "data"]);
        let Command::Serve(serve) = args.command else { panic!("serve") };
        assert_eq!(serve.smbd_port, 5445);
    }

    #[test]
    fn what_the_kernel_does_not_offer_is_refused_with_what_it_does() {
        assert_eq!(parse_congestion("reno"), Ok("reno".to_owned()));
        for name in ["nope", ""] {
            let refused = parse_congestion(name).unwrap_err();
            assert!(refused.contains("it offers") && refused.contains("reno"), "{refused}");
        }
        let serve = |option, value| Args::try_parse_from(["weft", "serve", "data", option, value]);
        assert!(serve("--congestion", "reno").is_ok());
        assert!(serve("--congestion", "nope").unwrap_err().to_string().contains("it offers"));
        for command in [&["weft", "rdma", "ping", "host"][..], &["weft", "bench", "smb", "local"]] {
            let args = [command, &["--congestion", "nope"]].concat();
            assert!(Args::try_parse_from(args).unwrap_err().to_string().contains("it offers"), "{command:?}");
        }
        assert!(serve("--user", "alice").is_ok());
        assert!(serve("--user", "").is_err());
    }

    #[test]
    fn buffers_that_cannot_work_are_refused_with_the_range() {
        let serve = |size| Args::try_parse_from(["weft", "serve", "data", "--buffers", size]);
        assert!(serve("64M").is_ok());
        for size in ["1K", "65535K", "1000T"] {
            let refused = serve(size).unwrap_err().to_string();
            assert!(refused.contains("64M to ") && refused.contains(size), "{refused}");
        }
    }

    /// `--mountd-port` alone served files without a password, by the NFS that answers at MOUNT's port as well.
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
            assert!(refused.contains("<--nfs-port <N>|--nfs-rdma-port <N>>"), "{option}: {refused}");
            assert!(line("--nfs-port 0").is_ok(), "{option}");
            assert!(line("--nfs-rdma-port 0").is_ok(), "{option}");
        }
    }

    #[test]
    fn what_can_be_served_is_named_where_nothing_is() {
        for line in ["weft serve", "weft serve --user alice"] {
            let refused = Args::of_line(line.split(' ')).expect_err(line).to_string();
            assert!(refused.contains("<DIR|--ram <NAME=SIZE>|--volume <NAME>>"), "{line}: {refused}");
        }
        let refused = Args::of_line("weft serve data --nbd".split(' ')).unwrap_err().to_string();
        assert!(refused.contains("--volume <NAME>") && !refused.contains("<DIR>..."), "{refused}");
    }

    #[test]
    fn an_option_that_does_not_exist_is_not_taken_for_a_value() {
        let refused = Args::of_line(["weft", "ls", "-l"]).unwrap_err().to_string();
        assert!(refused.contains("unexpected argument '-l'") && !refused.contains("-- -l"), "{refused}");
        let similar = Args::of_line(["weft", "ls", "--jsn", "smb://a@h"]).unwrap_err().to_string();
        assert!(similar.contains("--json"), "{similar}");
    }

    #[test]
    fn man_pages_go_where_they_are_asked_for() {
        assert!(Args::of_line(["weft", "man"]).unwrap_err().to_string().contains("<DIR>"));
        assert!(Args::command().render_help().to_string().contains("manual pages"));
    }

    /// `--encrypt` on nfs:// was ignored, and what was to be secret went in clear.
    #[test]
    fn what_smb_alone_has_is_refused_for_nfs() {
        let connect = |options: &str| {
            let line = ["weft ls nfs://h/s", options].join(" ");
            let args = Args::parse_from(line.split(' ').filter(|word| !word.is_empty()));
            let Command::Ls(ls) = args.command else { panic!("ls") };
            ls.connect
        };
        for option in ["--encrypt", "--sign", "-k", "--kerberos", "--compress", "--min-dialect 3.0"] {
            let says = connect(option).check_nfs().unwrap_err();
            assert!(says.contains(" is for SMB; ") && says.starts_with("--"), "{option}: {says}");
            let url = crate::url::Url::parse("nfs://h/s").unwrap().unwrap();
            assert!(crate::connect::check(&url, &connect(option)).is_err(), "{option}");
            assert!(crate::connect::password_for(&url, &connect(option)).is_err(), "{option}");
        }
        for option in ["", "--no-crc", "--channels 2", "--transport tcp"] {
            assert_eq!(connect(option).check_nfs(), Ok(()), "{option}");
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_with_their_range() {
        let most = rounded(memory());
        for (line, says) in [
            ("weft ls smb://a@h/s --channels 0", "from 1 to 16"),
            ("weft ls smb://a@h/s --channels 17", "from 1 to 16"),
            ("weft cp smb://a@h/s/x . --block 1", "512 to 16M"),
            ("weft cp smb://a@h/s/x . --block 17M", "512 to 16M"),
            ("weft cp smb://a@h/s/x . --queue-depth 0", "from 1 to 1024"),
            ("weft sync smb://a@h/s . --files 0", "from 1 to 64"),
            ("weft serve --ram x=100000T", &most),
            ("weft serve --ram scratch=0", &most),
            ("weft serve d --cores 0", "from 1 to 1024"),
            ("weft serve d --spin-us 99999999", "from 0 to 1000000"),
            ("weft status --watch --every 0", "from 1 to 86400"),
            ("weft status --pid 0", "from 1 to 4294967295"),
            ("weft demo --repetitions 0", "from 1 to 1000"),
            ("weft demo --duration-ms 0", "from 1 to 600000"),
            ("weft demo --file-size 1", &most),
            ("weft demo --over tcp,xyz", "possible values: tcp, iwarp, iwarp-nocrc, shm"),
            ("weft bench smb local --until-steady=-1", "from 0 to 1000"),
            ("weft bench smb local --server-pid 0", "from 1 to 4294967295"),
            ("weft rdma perf client h --spin-us 99999999", "from 0 to 1000000"),
            ("weft doctor h --timeout 0", "0.001"),
            // A value that begins with a hyphen is one, too.
            ("weft cp smb://a@h/s/x . --queue-depth -1", "from 1 to 1024"),
            ("weft serve d --smb-port -1", "from 0 to 65535"),
            ("weft serve d --smb-port 70000", "from 0 to 65535"),
            (
                "weft serve d --nfs-port x",
                "invalid value 'x' for '--nfs-port <N>': write a number from 0 to 65535",
            ),
            ("weft demo --file-size -1", "sizes are absolute"),
            ("weft demo --file-size -1M", "sizes are absolute"),
            ("weft bench smb local --duration -1", "between 0.001 and 86400"),
            ("weft rdma perf client h --count 0", "write a number from 1 on"),
            ("weft rdma ping h --count -1", "write a number from"),
            ("weft doctor h --timeout -1", "0.001"),
            ("weft replica status --pid -1", "from 0 to 4294967295"),
            ("weft doctor h --smb-port 0", "from 1 to 65535"),
        ] {
            let refused = Args::of_line(line.split(' ')).expect_err(line).to_string();
            assert!(refused.contains(says), "{line}: {refused}");
            assert!(!refused.contains("unexpected argument"), "{line}: {refused}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert!(parse_size("0").is_err());
        assert!(parse_size("5X").is_err());
        assert!(parse_size("").is_err());
        let relative = ["+1G", "-1G", "+4096"].map(|text| parse_size(text).unwrap_err());
        assert!(relative.iter().all(|why| why.contains("absolute")), "{relative:?}");
        assert!(parse_size("99999999999T").is_err());
    }
}
