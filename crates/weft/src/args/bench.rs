//! The command line of `weft bench`: names, defaults and help of its options. The command lines of other loaders are
//! parsed elsewhere.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use super::compare::{Compare, Show};
use super::parse_size;
use super::rdma::parse_seconds;
use crate::host::Host;

/// `weft bench`.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// SMB: READ and WRITE round trips, 1 KiB to 256 KiB, RDMA against TCP (sqlio paper, figure 1)
    Latency(PictureOf),
    /// SMB: throughput, IOPS and cycles per byte, 2 KiB to 256 KiB, READ, WRITE and a half-and-half mix, 20 files,
    /// queue depth 10, 2 threads (diskspd paper, figures 1 to 3)
    Smb(PictureOf),
    /// SMB: READs of 512 KiB, 8 KiB and 1 KiB: bandwidth, IOPS, latency (the table of Windows Server 2012 Beta)
    Table(PictureOf),
    /// NFS: sequential READ and WRITE, 4 KiB to 4 MiB, 16 streams from two clients: throughput, interrupts, idle
    /// cores (iozone paper, figures 3 to 6)
    Nfs(PictureOf),
    /// All of the above in one report
    All(PictureOf),
    /// The first copy of a replicated volume: bandwidth, processor time and memory on both hosts (Storage Replica
    /// post); then durable writes without replication, replicated asynchronously, and synchronously over each
    /// transport. HOST is `local`
    Replica(PictureOf),
    /// Workloads of your own, from a job file (docs/guide.md lists its keys)
    Run(JobOf),
    /// Run diskspd's command line: -b8K -w0 -r -o10 -t2 -d20 //HOST/SHARE/FILE
    #[command(after_help = AS_ELSEWHERE)]
    Diskspd(LoaderOf),
    /// Run sqlio's command line: -kR -s100 -t1 -o1 -b8 -frandom -BN -LS //HOST/SHARE/FILE
    #[command(after_help = AS_ELSEWHERE)]
    Sqlio(LoaderOf),
    /// Run iozone's command line: -i 0 -i 1 -r 64k -s 16m -t 2 -F nfs://HOST/EXPORT/1 nfs://HOST/EXPORT/2
    #[command(after_help = AS_ELSEWHERE)]
    Iozone(LoaderOf),
    /// Compare two results: print ratios, and whether each figure is better, worse, or the same within the noise
    Compare(Compare),
    /// Print an earlier result as tables, HTML or CSV
    Show(Show),
    /// Run clients for a `weft bench` on another host
    Agent(AgentOf),
}

const AS_ELSEWHERE: &str = "Weft's options come first, then the loader's command line unchanged. The file's server may be `local`:\n  \
weft bench diskspd --out report.html -b8K -w30 -r -o10 -t2 -d20 -c64M //local/bench/file\n\n\
The command lines printed in the papers work unchanged; --folder says where their files are:\n  \
weft bench sqlio --folder //nas/share -T100 -s20 -t1 -BN -LSi -dz testfile.dat -o40 -b8\n  \
weft bench iozone --folder nfs://nas/export -n -i 1 -M -c -e -w -I -+u -t 16 -s 1g -r 32K\n\n\
A file that does not exist is created and later removed; an existing file is never written to.";

/// `weft bench run`.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct JobOf {
    /// The job file, in TOML
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The server, instead of the one named in the file
    pub host: Option<String>,
    #[command(flatten)]
    pub server: ServerOf,
    #[command(flatten)]
    pub measuring: Measuring,
    /// Measure only points whose name contains TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}

/// `weft bench diskspd`, `sqlio`, `iozone`.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct LoaderOf {
    #[command(flatten)]
    pub server: ServerOf,
    #[command(flatten)]
    pub measuring: Measuring,
    /// Folder of the files that the command line names without a server (sqlio's -dz, iozone without -F):
    /// //HOST/SHARE/FOLDER, or a URL
    #[arg(long, value_name = "URL")]
    pub folder: Option<String>,
    /// The loader's command line
    #[arg(value_name = "LINE", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub line: Vec<String>,
}

/// `weft bench agent`.
#[derive(clap::Args, Debug, Clone)]
#[command(
    after_help = "WEFT_AGENT_TOKEN holds the token that `weft bench` must present; without it, a token is generated and \
printed. The password of an SMB server comes from WEFT_PASSWORD: it is never sent between hosts."
)]
pub(crate) struct AgentOf {
    /// Address to listen on for `weft bench`; before you listen on anything but loopback, consider who can reach it
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7175")]
    pub listen: SocketAddr,
    /// End after serving one `weft bench` run
    #[arg(long)]
    pub once: bool,
    /// Report the resources that this host's weft server uses, for `weft bench ... --server-agent`
    #[arg(long, conflicts_with = "server_pid")]
    pub server: bool,
    /// The same for the server with this process number, including its children
    #[arg(long, value_name = "PID", value_parser = super::number::<u32>(1..))]
    pub server_pid: Option<u32>,
    /// The weft server's state directory [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
}

/// Options of the published comparisons.
#[derive(clap::Args, Debug, Clone)]
#[command(
    after_help = "HOST is `local` (a Weft server is started on this host, with its share in memory), HOST[:PORT], or a URL:\n  \
smb://USER@HOST:PORT/SHARE/FOLDER or nfs://HOST:PORT/EXPORT?mountport=N&rdmaport=N.\n\n\
Examples:\n  weft bench all local --out report.html\n  weft bench smb nas --user alice --share data --transport tcp\n  \
weft bench nfs 'nfs://nas/export?mountport=20048' --out nfs.json\n\n\
The password comes from WEFT_PASSWORD or is asked for. Test files go into a new folder weft-bench-*, which is removed."
)]
pub(crate) struct PictureOf {
    /// The server: `local`, HOST, HOST:PORT, smb://USER@HOST/SHARE or nfs://HOST/EXPORT
    pub host: String,
    #[command(flatten)]
    pub server: ServerOf,
    #[command(flatten)]
    pub measuring: Measuring,
    /// A first look: fewer block sizes and shorter measurements; all comparisons take less than a minute
    #[arg(long)]
    pub quick: bool,
    /// Clients, each with its own connections [default: 2 for NFS's 16 streams, else 1]
    #[arg(long, value_name = "N", value_parser = super::number::<u32>(1..=256))]
    pub clients: Option<u32>,
    /// Measure only points whose name contains TEXT: "READ 8 KiB", "WRITE"
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}

/// Which server, and how it is reached.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct ServerOf {
    /// User to log on as (SMB)
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// SMB share or NFS export [default: the only one that the server lists]
    #[arg(long, value_name = "NAME")]
    pub share: Option<String>,
    /// The NFS server, for `all`: nfs://HOST:PORT/EXPORT?mountport=N&rdmaport=N [default: HOST at its usual ports]
    #[arg(long, value_name = "URL")]
    pub nfs: Option<String>,
    /// Transports to measure [default: tcp, and every available kind of RDMA]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub transport: Vec<Over>,
    /// Connections per SMB session
    #[arg(long, value_name = "N", value_parser = super::number::<u32>(1..=16))]
    pub channels: Option<u32>,
    /// Sign SMB sessions
    #[arg(long)]
    pub sign: bool,
    /// Encrypt SMB sessions
    #[arg(long)]
    pub encrypt: bool,
    /// Compress SMB over TCP
    #[arg(long)]
    pub compress: bool,
    /// TCP congestion control of these clients' connections [default: the system's; reno within this host]
    #[arg(long, value_name = "NAME", value_parser = super::parse_congestion)]
    pub congestion: Option<String>,
    /// Process number of a server on this host; its processor time and memory are measured, including its children
    #[arg(long, value_name = "PID", value_parser = super::number::<u32>(1..))]
    pub server_pid: Option<u32>,
    /// An agent on the server's host that reports the resources the server uses (start it with: weft bench agent
    /// --server)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "server_pid")]
    pub server_agent: Option<Host>,
    /// An agent that runs clients: each agent gets one client, this host the others (repeatable; see `weft bench
    /// agent --help`)
    #[arg(long, value_name = "HOST:PORT")]
    pub agent: Vec<Host>,
    /// Cores of the server that `local` starts; the clients get the others
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::number::<u32>(1..=1024))]
    pub server_cores: u32,
}

/// How to measure, and which files get the figures.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Measuring {
    /// Seconds of each measurement [default: 0.5; 0.08 with --quick]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    /// Repetitions of each point, alternating between transports; medians are shown [default: 3]
    #[arg(long, value_name = "N", value_parser = super::number::<u32>(1..=1000))]
    pub repetitions: Option<u32>,
    /// Start counting when the throughput is steady: three windows within this percentage of each other
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "5", value_parser = super::compare::parse_percent)]
    pub until_steady: Option<f64>,
    /// Verify every byte that is read
    #[arg(long)]
    pub verify: bool,
    /// Size of each file [default: the comparison's own]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_size: Option<u64>,
    /// Write the figures to FILE.html, FILE.json, FILE.csv, FILE.md (the papers' claims), or - for JSON on standard
    /// output (repeatable)
    #[arg(long, value_name = "FILE")]
    pub out: Vec<PathBuf>,
    /// Refuse to measure while the machine is busy or client and server share a core, instead of marking the result
    #[arg(long)]
    pub strict: bool,
    /// Print no progress line per second
    #[arg(short, long)]
    pub quiet: bool,
}

/// A transport as results name it.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Over {
    /// Plain TCP
    Tcp,
    /// RDMA over TCP, with CRC32C
    Iwarp,
    /// RDMA over TCP without CRC32C, if the server agrees
    IwarpNocrc,
    /// RDMA over shared memory, on one host
    Shm,
    /// RDMA by a device of this host
    Rnic,
}

impl Over {
    /// The transport's name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Over::Tcp => "tcp",
            Over::Iwarp => "iwarp",
            Over::IwarpNocrc => "iwarp-nocrc",
            Over::Shm => "shm",
            Over::Rnic => "rnic",
        }
    }
}
