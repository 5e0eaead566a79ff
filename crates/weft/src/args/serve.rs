//! The command line of the server.
//!
//! Does not: say what it means (see `config`).

mod config;

use std::path::PathBuf;

use clap::{ArgGroup, ValueEnum};

use super::{
    ProviderKind, default_user, memory, number, parse_bytes, parse_congestion, parse_dialect, parse_size,
    parse_within,
};
use crate::addresses::{Addresses, LOCALHOST};
use crate::config::{MAX_CORES, MAX_SPIN, MIN_BUFFERS_BYTES, SMB_DIRECT_PORT, SMB_PORT};

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
    #[arg(long, value_name = "ADDR", default_value = LOCALHOST)]
    pub listen: Vec<Addresses>,
    /// TCP port of SMB; 0 takes any
    #[arg(long, value_name = "N", default_value_t = SMB_PORT, value_parser = number::<u16>(..))]
    pub smb_port: u16,
    /// Port of SMB Direct, of every provider; 0 takes any
    #[arg(long, value_name = "N", default_value_t = SMB_DIRECT_PORT, value_parser = number::<u16>(..))]
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
    /// sync, async (answer changes of names and attributes before they are durable), root_squash, no_root_squash, all_squash, anonuid=N, anongid=N, net=ADDR/BITS (repeatable), sec=sys:none,
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
    /// How large that file may become [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "pcap")]
    pub pcap_limit: Option<u64>,
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
    #[arg(long, value_name = "N", value_parser = number::<usize>(1..=MAX_CORES as u64))]
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
        value_parser = number::<u64>(..=MAX_SPIN.as_micros() as u64))]
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

/// When iWARP uses a CRC.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crc {
    /// On every connection
    Always,
    /// Where the peer asks for it
    Asked,
}

fn parse_ram(text: &str) -> Result<(String, u64), String> {
    let (name, size) = text.split_once('=').ok_or("write NAME=SIZE, for example scratch=512M")?;
    Ok((name.to_owned(), parse_within(size, 1, memory())?))
}

fn parse_snapshots(text: &str) -> Result<(String, String), String> {
    let (name, pattern) =
        text.split_once('=').ok_or("write NAME=PATTERN, for example data=.zfs/snapshot/daily-%Y-%m-%d")?;
    Ok((name.to_owned(), pattern.to_owned()))
}

/// A size that `--buffers` can have here.
fn parse_buffers(text: &str) -> Result<u64, String> {
    let size = parse_bytes(text)?;
    let memory = memory();
    if (MIN_BUFFERS_BYTES..=memory).contains(&size) {
        return Ok(size);
    }
    let (least, most) = (MIN_BUFFERS_BYTES >> 20, memory >> 20);
    Err(format!("buffers take {least}M to {most}M on this host, not {text}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{Args, Command};

    /// SMB Direct is at 5445 on iWARP ([MS-SMBD] 1.9), not at 445 as on InfiniBand; Linux's cifs looks nowhere else.
    #[test]
    fn smb_direct_is_at_the_port_of_iwarp() {
        let args = Args::parse_from(["weft", "serve", "data"]);
        let Command::Serve(serve) = args.command else { panic!("serve") };
        assert_eq!(serve.smbd_port, 5445);
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
}
