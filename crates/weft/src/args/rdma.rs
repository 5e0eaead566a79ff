//! The command line of `weft rdma` and `weft doctor`: names, defaults and help of their options.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use weft_load::verbs::perf::{MAX_DEPTH, MAX_SIZE, Op};
use weft_load::verbs::ping;

use super::{Crc, Misread, parse_size, parse_within};
use crate::host::Host;

/// `weft rdma`.
#[derive(Subcommand, Debug)]
pub(crate) enum Rdma {
    /// Check that bytes reach a host by RDMA Read and return by RDMA Write unchanged (rping's protocol)
    Ping(Ping),
    /// Measure latency and bandwidth of Send, Write and Read, as perftest does
    #[command(subcommand)]
    Perf(Perf),
    /// List the RDMA providers of this host and their limits
    Devices(Devices),
    /// Compare iWARP with plain TCP, and shared memory with bare memory, on this host
    Bench(Bench),
}

/// `weft rdma bench`.
#[derive(clap::Args, Debug)]
pub(crate) struct Bench {
    /// Exit non-zero and name the line if a bound is missed
    #[arg(long)]
    pub gate: bool,
    /// Rounds; each measures everything once, references alternating with their subjects
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = super::number::<u32>(1..=1000))]
    pub rounds: u32,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = parse_seconds)]
    pub duration: f64,
    /// Measure only lines whose name contains TEXT: "64 KiB", "shm", "connections"
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Write the figures of every round as JSON to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run the other side of a measurement instead
    #[arg(long, value_enum, hide = true)]
    pub peer: Option<Peer>,
    /// Run on this processor only
    #[arg(long, value_name = "N", hide = true, value_parser = super::number::<usize>(..))]
    pub cpu: Option<usize>,
    /// Connections that the peer holds
    #[arg(long, value_name = "N", hide = true, default_value_t = 1, value_parser = super::number::<u32>(..))]
    pub connections: u32,
    /// Port that the peer connects to
    #[arg(long, value_name = "PORT", hide = true, value_parser = super::number::<u16>(..))]
    pub port: Option<u16>,
}

/// The processes of `weft rdma bench` besides its servers.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A plain TCP server
    Tcp,
    /// Answers through the shared memory on standard input
    Atomic,
    /// Holds many connections
    Idle,
}

/// `weft rdma devices`.
#[derive(clap::Args, Debug)]
pub(crate) struct Devices {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `weft doctor`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft doctor server                     SMB Direct (5445), NFS over RDMA (20049), SMB (445)\n  \
weft doctor server:20049\n  \
WEFT_PASSWORD=... weft doctor server:5445 --user alice --smb-port 4450\n\n\
Exit status: 0 if RDMA is used or can be used, 1 if not, 2 for a wrong command line."
)]
pub(crate) struct Doctor {
    /// The server: HOST, or HOST:PORT with the RDMA port [default port: the service's own: smb 5445, nfs 20049, ping
    /// 7174; without --service, those of smb and nfs]
    pub host: Host,
    /// Service to test [default: by the port: 20049 nfs, 7174 ping, else smb]
    #[arg(long, value_enum)]
    pub service: Option<Service>,
    /// Log on as NAME, to see what the server announces and which transport a session uses; the password comes from
    /// WEFT_PASSWORD
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Port of SMB over TCP, for --user [default: 445; on loopback also 4450]
    #[arg(long, value_name = "N", requires = "user", value_parser = super::number::<u16>(1..))]
    pub smb_port: Option<u16>,
    /// When to use a CRC on iWARP
    #[arg(long, value_enum, default_value_t = Crc::Always)]
    pub crc: Crc,
    /// Seconds to wait for each connection and answer
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = parse_seconds)]
    pub timeout: f64,
    /// Print the checklist as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// The service on an RDMA port.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// SMB Direct
    Smb,
    /// NFS over RDMA
    Nfs,
    /// `weft rdma ping --server`, `weft rdma perf server`, rping
    Ping,
}

/// `weft rdma perf`.
#[derive(Subcommand, Debug)]
pub(crate) enum Perf {
    /// The passive side; it also answers `weft rdma ping` and rping
    Server(PerfServer),
    /// The active side, which measures
    Client(PerfClient),
}

/// A kind of RDMA provider.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderKind {
    /// RDMA over TCP (iWARP), in user space
    Iwarp,
    /// RDMA over shared memory, between processes of one user on one host
    Shm,
    /// The RDMA devices of this host, through rdma-core: RoCE, InfiniBand, iWARP adapters, siw, rxe
    Rnic,
}

/// Options of iWARP connections.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Iwarp {
    /// When iWARP connections carry a CRC32C
    #[arg(long, value_enum, default_value_t = Crc::Always)]
    pub crc: Crc,
    /// As initiator, ask for iWARP's peer-to-peer mode (RFC 6581), in which either side may send first
    #[arg(long)]
    pub peer_to_peer: bool,
    /// TCP congestion control of connections, for example reno [default: the system's; reno within this host]
    #[arg(long, value_name = "NAME", value_parser = super::parse_congestion)]
    pub congestion: Option<String>,
}

/// Where a server of `weft rdma` listens.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Listen {
    /// Address to listen on; before you listen on anything but loopback, consider who can reach it
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub listen: IpAddr,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = ping::PORT, value_parser = super::number::<u16>(..))]
    pub port: u16,
}

/// `weft rdma ping`.
#[derive(clap::Args, Debug)]
#[command(
    // Options of one side do nothing on the other, so they are refused there. Clap drops `requires = "server"` where a
    // host is given, because the two exclude each other.
    mut_arg("listen", |listen| listen.conflicts_with("host").help("With --server: address to listen on; before you listen on anything but loopback, consider who can reach it")),
    mut_arg("port", |port| port.conflicts_with("host").help("With --server: port to listen on; 0 picks a free one. To ping another port, write HOST:PORT")),
    after_help = "Examples:\n  weft rdma ping server            the server runs: weft rdma ping --server --listen ADDR\n  \
weft rdma ping server:7174 -c 1000 -s 4096 --quiet\n\n\
It speaks the protocol of rdma-core's rping: `rping -s` answers `weft rdma ping`, and `weft rdma ping --server` answers \
`rping -c -a ADDR`. For more than 64 bytes per round, start rping's server with -S too."
)]
pub(crate) struct Ping {
    /// The host to ping: HOST or HOST:PORT [default port: 7174]
    #[arg(required_unless_present = "server", conflicts_with_all = ["server"])]
    pub host: Option<Host>,
    /// Answer pings instead
    #[arg(long)]
    pub server: bool,
    #[command(flatten)]
    pub listen: Listen,
    /// RDMA provider; a server takes several [default: iwarp; for a server: iwarp,shm]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub provider: Vec<ProviderKind>,
    #[command(flatten)]
    pub iwarp: Iwarp,
    /// Rounds
    #[arg(short, long, value_name = "N", default_value_t = 10, conflicts_with = "server", value_parser = super::number::<u64>(1..))]
    pub count: u64,
    /// Bytes per round, up to 1M
    #[arg(short, long, value_name = "SIZE", default_value = "64", conflicts_with = "server", value_parser = parse_round)]
    pub size: u32,
    /// Print only the summary, no line per round
    #[arg(short, long, conflicts_with = "server")]
    pub quiet: bool,
    /// Print the result (for a server: the ready line) as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// How a measuring process runs.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Core {
    /// Run on this processor only
    #[arg(long, value_name = "N", value_parser = super::number::<usize>(..))]
    pub cpu: Option<usize>,
    /// Longest busy polling before a sleep, in microseconds; 0 never polls
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = super::number::<u64>(..=super::MAX_SPIN_US))]
    pub spin_us: u64,
}

/// `weft rdma perf server`.
#[derive(clap::Args, Debug)]
pub(crate) struct PerfServer {
    #[command(flatten)]
    pub listen: Listen,
    /// RDMA providers to listen with [default: iwarp,shm]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub provider: Vec<ProviderKind>,
    #[command(flatten)]
    pub iwarp: Iwarp,
    #[command(flatten)]
    pub core: Core,
    /// Print the ready line as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft rdma perf client`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft rdma perf client server                         Writes of 2 bytes to 1 MiB, latency and bandwidth\n  \
weft rdma perf client server --op send --size 8 --qd 1 --only latency\n  \
weft rdma perf client server --op read,write --size 64K,1M --qd 1..128 --crc asked --duration 2\n  \
weft rdma perf client localhost --provider shm --check\n\n\
A..B stands for A, the powers of two between, and B. Latency is perftest's: half of the round trip for Sends and Writes,\n\
the whole for Reads. A CRC is used if either side asks for it: --crc asked on both sides turns it off."
)]
pub(crate) struct PerfClient {
    /// The server: HOST or HOST:PORT [default port: 7174]
    pub host: Host,
    /// Operations to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write")]
    pub op: Vec<Operation>,
    /// Bytes per operation: 64K, or 2..1M, or a list
    #[arg(long, value_name = "SIZES", default_value = "2..1M", value_parser = |text: &str| Sweep::parse(text, u64::from(MAX_SIZE)))]
    pub size: Sweep,
    /// Queue depth, for bandwidth only: 16, or 1..128, or a list
    #[arg(long, value_name = "DEPTHS", default_value = "16", value_parser = |text: &str| Sweep::parse(text, u64::from(MAX_DEPTH)))]
    pub qd: Sweep,
    /// Measure only latency or only bandwidth
    #[arg(long, value_enum)]
    pub only: Option<Figure>,
    /// RDMA provider
    #[arg(long, value_enum, default_value_t = ProviderKind::Iwarp)]
    pub provider: ProviderKind,
    #[command(flatten)]
    pub iwarp: Iwarp,
    #[command(flatten)]
    pub core: Core,
    /// Seconds of each line
    #[arg(long, value_name = "S", default_value_t = 0.5, conflicts_with = "count", value_parser = parse_seconds)]
    pub duration: f64,
    /// Operations per line, instead of a duration
    #[arg(long, value_name = "N", value_parser = super::number::<u64>(1..))]
    pub count: Option<u64>,
    /// Both directions at the same time, and their sum: only bandwidth of Writes and Reads
    #[arg(long, short = 'b')]
    pub bidirectional: bool,
    /// Verify every byte (slows the measurement); wrong bytes make the exit status non-zero
    #[arg(long)]
    pub check: bool,
    /// Print the lines as a JSON array
    #[arg(long)]
    pub json: bool,
}

/// What `weft rdma perf` measures.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Messages
    Send,
    /// RDMA Writes
    Write,
    /// RDMA Reads
    Read,
}

impl From<Operation> for Op {
    fn from(operation: Operation) -> Op {
        match operation {
            Operation::Send => Op::Send,
            Operation::Write => Op::Write,
            Operation::Read => Op::Read,
        }
    }
}

/// A kind of table.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// One operation outstanding
    Latency,
    /// Many operations outstanding
    Bandwidth,
}

/// Numbers, in the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sweep(pub Vec<u64>);

impl Sweep {
    /// "64K", "2..1M", "8,64K,1M"; each from 1 to `most`.
    fn parse(text: &str, most: u64) -> Result<Sweep, Misread> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => numbers.push(parse_size(part)?),
                Some((from, to)) => {
                    let (from, to) = (parse_size(from)?, parse_size(to)?);
                    if from > to {
                        return Err(Misread::Descending(part.to_owned()));
                    }
                    let powers = (0..u64::BITS).map(|shift| 1 << shift).filter(|n| from < *n && *n < to);
                    numbers.push(from);
                    numbers.extend(powers);
                    numbers.extend((to > from).then_some(to));
                }
            }
        }
        match numbers.iter().find(|n| **n > most) {
            Some(number) => Err(Misread::TooLarge { number: *number, most }),
            None => Ok(Sweep(numbers)),
        }
    }
}

/// Bytes of a round of `weft rdma ping`.
fn parse_round(text: &str) -> Result<u32, Misread> {
    let (least, most) = (1, ping::MAX_SIZE.into());
    u32::try_from(parse_within(text, least, most)?).map_err(|_| Misread::Size { least, most })
}

/// Seconds, possibly with a fraction.
pub(super) fn parse_seconds(text: &str) -> Result<f64, Misread> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(Misread::Seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_goes_through_the_powers_of_two() {
        let sweep = |text| Sweep::parse(text, 1 << 20).map(|sweep| sweep.0);
        assert_eq!(sweep("64K"), Ok(vec![65_536]));
        assert_eq!(sweep("2..16"), Ok(vec![2, 4, 8, 16]));
        assert_eq!(sweep("3..20"), Ok(vec![3, 4, 8, 16, 20]));
        assert_eq!(sweep("8..8,100,1k"), Ok(vec![8, 100, 1024]));
        assert_eq!(sweep("2..1M").map(|sizes| sizes.len()), Ok(20));
        for wrong in ["", "0", "16..2", "1..", "..4", "2M", "x", "1,,2"] {
            assert!(sweep(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    /// `weft rdma ping HOST --port 5000` pinged port 7174.
    #[test]
    fn an_option_of_the_other_side_of_a_ping_is_refused() {
        let line = |words: &str| {
            let line = format!("weft rdma ping {words}");
            crate::args::Args::of_line(line.split(' ')).map_err(|e| e.to_string())
        };
        for option in ["--port 5000", "--listen 127.0.0.1"] {
            let refused = line(&format!("server {option}")).unwrap_err();
            assert!(refused.contains("cannot be used with"), "{option}: {refused}");
            assert!(line(&format!("--server {option}")).is_ok(), "{option}");
        }
        for option in ["--count 3", "--size 4096", "--quiet"] {
            let refused = line(&format!("--server {option}")).unwrap_err();
            assert!(refused.contains("cannot be used with"), "{option}: {refused}");
            assert!(line(&format!("server:5000 {option}")).is_ok(), "{option}");
        }
        assert!(line("server --size 2M").unwrap_err().contains("from 1 to 1M"));
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "NaN", "inf", "1e9", ""] {
            assert!(parse_seconds(wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
