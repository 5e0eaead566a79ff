//! The command line of `weft bench`.
//!
//! Owns: names, defaults and help of its options. Does not: act, or read the command lines of other loaders.

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
    /// SMB: READ and WRITE round trips, 1 KiB to 256 KiB, RDMA beside TCP (sqlio paper, figure 1)
    Latency(PictureOf),
    /// SMB: throughput, IOPS and cycles per byte, 2 KiB to 256 KiB, READ, WRITE and half of each, 20 files, queue depth 10,
    /// 2 threads (diskspd paper, figures 1 to 3)
    Smb(PictureOf),
    /// SMB: READs of 512 KiB, 8 KiB and 1 KiB: bandwidth, IOPS, latency (the table of Windows Server 2012 Beta)
    Table(PictureOf),
    /// NFS: sequential READ and WRITE, 4 KiB to 4 MiB, 16 streams of two clients: throughput, interrupts, idle cores
    /// (iozone paper, figures 3 to 6)
    Nfs(PictureOf),
    /// All of these in one report
    All(PictureOf),
    /// The first copy of a replicated volume: bandwidth, processor time and memory of both ends (Storage Replica post); then
    /// durable writes, not replicated, asynchronously, and synchronously over each transport. HOST is `local`
    Replica(PictureOf),
    /// Workloads of your own, from a job file (the guide lists its keys)
    Run(JobOf),
    /// Take diskspd's command line: -b8K -w0 -r -o10 -t2 -d20 //HOST/SHARE/FILE
    #[command(after_help = AS_ELSEWHERE)]
    Diskspd(LoaderOf),
    /// Take sqlio's command line: -kR -s100 -t1 -o1 -b8 -frandom -BN -LS //HOST/SHARE/FILE
    #[command(after_help = AS_ELSEWHERE)]
    Sqlio(LoaderOf),
    /// Take iozone's command line: -i 0 -i 1 -r 64k -s 16m -t 2 -F nfs://HOST/EXPORT/1 nfs://HOST/EXPORT/2
    #[command(after_help = AS_ELSEWHERE)]
    Iozone(LoaderOf),
    /// Hold two results against each other: ratios, and whether they are better, worse, or the same within the noise
    Compare(Compare),
    /// Print a result that was written before: as tables, HTML, CSV
    Show(Show),
    /// Be a part of the clients of a `weft bench` on another host
    Agent(AgentOf),
}

const AS_ELSEWHERE: &str = "Options of weft come first, then the command line as it is. The file's server may be `local`:\n  \
weft bench diskspd --out report.html -b8K -w30 -r -o10 -t2 -d20 -c64M //local/bench/file\n\n\
The papers' own lines work as printed; --folder says where their files are:\n  \
weft bench sqlio --folder //nas/share -T100 -s20 -t1 -BN -LSi -dz testfile.dat -o40 -b8\n  \
weft bench iozone --folder nfs://nas/export -n -i 1 -M -c -e -w -I -+u -t 16 -s 1g -r 32K\n\n\
A file that does not exist is made and removed again; one that exists is never written to.";

/// `weft bench run`.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct JobOf {
    /// The job file, in TOML
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The server, instead of the one that the file names
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
    /// Folder of files that the command line names without a server (sqlio's -dz, iozone without -F): //HOST/SHARE/FOLDER,
    /// or a URL
    #[arg(long, value_name = "URL")]
    pub folder: Option<String>,
    /// The command line, as that loader takes it
    #[arg(value_name = "LINE", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub line: Vec<String>,
}

/// `weft bench agent`.
#[derive(clap::Args, Debug, Clone)]
#[command(
    after_help = "The token that conductors need is in WEFT_AGENT_TOKEN, or is made up and printed. The password of an SMB \
server is in WEFT_PASSWORD: it never goes from host to host."
)]
pub(crate) struct AgentOf {
    /// Where conductors find it; anything but loopback is your decision
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7175")]
    pub listen: SocketAddr,
    /// End after one conversation
    #[arg(long)]
    pub once: bool,
    /// Tell what the weft server of this host spends, to `weft bench ... --server-agent`
    #[arg(long, conflicts_with = "server_pid")]
    pub server: bool,
    /// The same of a server with this process number, with its children
    #[arg(long, value_name = "PID", value_parser = super::number::<u32>(1..))]
    pub server_pid: Option<u32>,
    /// The weft server's state directory [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
}

/// Options of a picture.
#[derive(clap::Args, Debug, Clone)]
#[command(
    after_help = "HOST is `local` (a Weft server is started here, with its share in memory), HOST[:PORT], or a URL:\n  \
smb://USER@HOST:PORT/SHARE/FOLDER or nfs://HOST:PORT/EXPORT?mountport=N&rdmaport=N.\n\n\
Examples:\n  weft bench all local --out report.html\n  weft bench smb nas --user alice --share data --transport tcp\n  \
weft bench nfs 'nfs://nas/export?mountport=20048' --out nfs.json\n\n\
The password comes from WEFT_PASSWORD or is asked for. Files are made in a folder weft-bench-* of their own, and removed."
)]
pub(crate) struct PictureOf {
    /// The server: `local`, HOST, HOST:PORT, smb://USER@HOST/SHARE or nfs://HOST/EXPORT
    pub host: String,
    #[command(flatten)]
    pub server: ServerOf,
    #[command(flatten)]
    pub measuring: Measuring,
    /// A first look: fewer block sizes, shorter measurements; all pictures take less than a minute
    #[arg(long)]
    pub quick: bool,
    /// Clients, each with connections of its own [default: 2 for NFS's 16 streams, else 1]
    #[arg(long, value_name = "N", value_parser = super::number::<u32>(1..=256))]
    pub clients: Option<u32>,
    /// Measure only points whose name contains TEXT: "READ 8 KiB", "WRITE"
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}

/// Which server, and how it is reached.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct ServerOf {
    /// Who logs on (SMB)
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// SMB share or NFS export [default: the only one that the server lists]
    #[arg(long, value_name = "NAME")]
    pub share: Option<String>,
    /// Where NFS is, for `all`: nfs://HOST:PORT/EXPORT?mountport=N&rdmaport=N [default: HOST at its usual ports]
    #[arg(long, value_name = "URL")]
    pub nfs: Option<String>,
    /// Transports to measure [default: tcp, and each kind of RDMA that there is]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub transport: Vec<Over>,
    /// Connections of an SMB session
    #[arg(long, value_name = "N", value_parser = super::number::<u32>(1..=16))]
    pub channels: Option<u32>,
    /// Sign SMB sessions
    #[arg(long)]
    pub sign: bool,
    /// Encrypt SMB sessions
    #[arg(long)]
    pub encrypt: bool,
    /// Compress what travels by SMB over TCP
    #[arg(long)]
    pub compress: bool,
    /// TCP congestion control of these clients' connections [default: the system's; reno within this host]
    #[arg(long, value_name = "NAME", value_parser = super::parse_congestion)]
    pub congestion: Option<String>,
    /// Process of a server on this host, to measure its processor time and memory with those of its children
    #[arg(long, value_name = "PID", value_parser = super::number::<u32>(1..))]
    pub server_pid: Option<u32>,
    /// An agent on the server's host that tells what the server spends (there: weft bench agent --server)
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "server_pid")]
    pub server_agent: Option<Host>,
    /// An agent that runs clients: one each, then here (repeatable; see `weft bench agent --help`)
    #[arg(long, value_name = "HOST:PORT")]
    pub agent: Vec<Host>,
    /// Cores of the server of `local`; the clients get the others
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::number::<u32>(1..=1024))]
    pub server_cores: u32,
}

/// How it is measured, and where the figures go.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Measuring {
    /// Seconds of each measurement [default: 0.5; 0.08 for a quick look]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    /// Repetitions of each point, transports in turn; medians are shown [default: 3]
    #[arg(long, value_name = "N", value_parser = super::number::<u32>(1..=1000))]
    pub repetitions: Option<u32>,
    /// Count only once the throughput is steady: three windows within this percentage of each other
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "5", value_parser = super::compare::parse_percent)]
    pub until_steady: Option<f64>,
    /// Compare every byte that is read
    #[arg(long)]
    pub verify: bool,
    /// Bytes of each file [default: what the picture has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_size: Option<u64>,
    /// Where the figures go: FILE.html, FILE.json, FILE.csv, FILE.md for the papers' claims, or - for JSON on standard
    /// output (repeatable)
    #[arg(long, value_name = "FILE")]
    pub out: Vec<PathBuf>,
    /// Refuse to measure while the machine is busy, or where client and server share a core, instead of marking it
    #[arg(long)]
    pub strict: bool,
    /// No line per second
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
    /// The same without CRC32C, where the server agrees
    IwarpNocrc,
    /// RDMA over shared memory, on one host
    Shm,
    /// RDMA by a device of this host
    Rnic,
}

impl Over {
    /// As results name it.
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
