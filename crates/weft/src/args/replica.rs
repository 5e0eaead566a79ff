//! The command line of `weft replica`: names, defaults and help of every option.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{Misread, Transport, default_user, parse_size};
use crate::default_port;
use crate::serve::replica::names::GroupName;

/// `weft replica`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
weft serve --volume vol1 --nbd --replica --listen 0.0.0.0 --user alice        (on both hosts)\n  \
weft replica check other --user alice\n  \
weft replica create vol1 other:vol1 --mode sync --user alice\n  \
weft replica status --watch\n  \
weft replica switch vol1                    (exchanges the roles)\n  \
weft replica switch vol1 --failover         (on the destination, when the source is lost)\n\n\
These commands talk to this host's server that uses the same state directory. --user is the user of the other host's weft\n\
serve, by default this user's name; the password comes from WEFT_PASSWORD or is asked for.")]
pub(crate) struct Replica {
    /// The server's state directory [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true, global = true)]
    pub state_dir: Option<PathBuf>,
    /// The server with this process number, if several run
    #[arg(long, value_name = "N", global = true, value_parser = super::number::<u32>(..))]
    pub pid: Option<u32>,
    /// What to do
    #[command(subcommand)]
    pub command: ReplicaCommand,
}

/// A command of `weft replica`.
#[derive(Subcommand, Debug)]
pub(crate) enum ReplicaCommand {
    /// Check whether a host is fit to be a destination: ports, round trip, bandwidth, speed of its log; recommends
    /// sync or async
    Check(ReplicaCheck),
    /// Replicate volumes to another host
    Create(ReplicaCreate),
    /// Show the state of all replication groups on this host
    Status(ReplicaStatus),
    /// Export a writable snapshot of the copy over NBD, while replication continues
    TestFailover(ReplicaTest),
    /// Exchange the roles; with --failover, on the destination: become the source when the source is lost
    Switch(ReplicaSwitch),
    /// Pause replication; blocks written meanwhile are recorded and sent later
    Suspend(ReplicaGroup),
    /// Resume a suspended replication
    Resume(ReplicaGroup),
    /// Compare both sides while they are in use
    Verify(ReplicaVerify),
    /// End replication; both sides keep their data
    Remove(ReplicaRemove),
    /// On the source: enlarge a replicated volume on both sides, while it is in use
    Resize(ReplicaResize),
    /// Decide which side counts if both were written to, or if the source's log is damaged
    Resolve(ReplicaResolve),
}

/// How to reach the other server.
#[derive(clap::Args, Debug)]
pub(crate) struct Other {
    /// User to log on as on the other host
    #[arg(long, default_value_t = default_user(), value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub user: String,
    /// TCP port of SMB on the other host
    #[arg(long, value_name = "N", default_value_t = default_port::WEFT_SMB, value_parser = super::number::<u16>(1..))]
    pub smb_port: u16,
    /// Transport to use
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Encrypt all traffic, RDMA included
    #[arg(long)]
    pub encrypt: bool,
    /// Use the other host's address in this network: 10.0.0.0/24
    #[arg(long, value_name = "NETWORK", value_parser = parse_network)]
    pub network: Option<Network>,
}

/// `weft replica check`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaCheck {
    /// The intended destination: HOST, or HOST:VOLUME
    pub host: String,
    /// Names of volumes on that host to check
    #[arg(value_name = "VOLUME")]
    pub volumes: Vec<String>,
    #[command(flatten)]
    pub other: Other,
    /// Write the result as an HTML page to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// When a write is acknowledged.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaMode {
    /// Acknowledge a write when both sides have it: losing the source loses nothing
    Sync,
    /// Acknowledge a write when the source has it: losing the source loses the last moments
    Async,
}

/// How synchronous writes behave while a destination is away. Named as in DRBD.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnLoss {
    /// Acknowledge writes without it; the status shows them as unprotected
    #[default]
    Continue,
    /// Hold writes until it is back and has caught up: no acknowledged write is ever on one side only
    SuspendIo,
}

/// Behaviour when the log is full because a destination is slow. Named as in DRBD.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnCongestion {
    /// Writes wait for the destination
    #[default]
    Block,
    /// Writes continue; the destination's missing blocks are noted in the bitmap and copied when it has caught up
    PullAhead,
}

impl From<OnLoss> for weft_replica::source::OnLoss {
    fn from(on_loss: OnLoss) -> Self {
        match on_loss {
            OnLoss::Continue => Self::Continue,
            OnLoss::SuspendIo => Self::Wait,
        }
    }
}

impl From<OnCongestion> for weft_replica::source::OnFull {
    fn from(on_congestion: OnCongestion) -> Self {
        match on_congestion {
            OnCongestion::Block => Self::Slow,
            OnCongestion::PullAhead => Self::Resync,
        }
    }
}

/// `weft replica create`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaCreate {
    /// Volumes of this host; several, separated by commas, form a group that keeps the order of writes
    #[arg(value_name = "VOLUME[,VOLUME...]", value_delimiter = ',', num_args = 1, required = true)]
    pub volumes: Vec<String>,
    /// The other host, and the names of its volumes if they differ
    #[arg(value_name = "HOST[:VOLUME,...]")]
    pub to: String,
    /// When to acknowledge a write
    #[arg(long, value_enum, default_value_t = ReplicaMode::Sync)]
    pub mode: ReplicaMode,
    /// The other side holds an older copy: compare, and copy only the differences
    #[arg(long)]
    pub seeded: bool,
    /// Allow overwriting the contents of the other side's volumes
    #[arg(long, conflicts_with = "seeded")]
    pub overwrite: bool,
    /// The group's name [default: the name of its first volume]
    #[arg(long, value_name = "NAME")]
    pub group: Option<GroupName>,
    /// Size of each side's log [default: a quarter of the volumes, 64M to 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub log_size: Option<u64>,
    /// How synchronous writes behave while the other side is away [default: continue]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_loss: Option<OnLoss>,
    /// Behaviour when the log is full because the other side is slow [default: block]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_congestion: Option<OnCongestion>,
    /// Address by which the other host reaches this one, if it differs from the one detected here
    #[arg(long, value_name = "HOST")]
    pub return_host: Option<String>,
    /// Compress data sent over TCP, if both servers can
    #[arg(long)]
    pub compress: bool,
    #[command(flatten)]
    pub other: Other,
}

/// `weft replica status`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaStatus {
    /// Repeat until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A command on a group.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaGroup {
    /// The group, or one of its volumes
    pub group: String,
    /// The destination, if there are several
    #[arg(long, value_name = "HOST:GROUP")]
    pub to: Option<String>,
}

/// `weft replica switch`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaSwitch {
    #[command(flatten)]
    pub group: ReplicaGroup,
    /// On the destination: become the source with the data received so far, without asking the source, which must
    /// have been silent for ten seconds (the command waits for that)
    #[arg(long)]
    pub failover: bool,
    /// Override the reasons against a failover, as the refusal names them; reasons not listed still prevent it
    #[arg(
        long,
        requires = "failover",
        value_enum,
        value_name = "REASON,...",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true
    )]
    pub force: Option<Vec<Objection>>,
}

/// A reason against a failover.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Objection {
    /// The source was last heard from less than ten seconds ago
    Alive,
    /// The source has said that it has records which never arrived here
    Behind,
    /// A resync was under way: the copy mixes data of different moments
    Resync,
    /// Another side has more records
    OtherHasMore,
    /// The roles were exchanged: another side is now the source
    Switched,
    /// The source answers but does not know the partnership: it was removed there
    Removed,
}

impl Objection {
    /// The word to type.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Objection::Alive => "alive",
            Objection::Behind => "behind",
            Objection::Resync => "resync",
            Objection::OtherHasMore => "other-has-more",
            Objection::Switched => "switched",
            Objection::Removed => "removed",
        }
    }
}

/// `weft replica verify`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaVerify {
    #[command(flatten)]
    pub group: ReplicaGroup,
    /// With --force: overwrite differences on the copy with the data of this side, the source. If the copy is right,
    /// run `weft replica switch` first. Without --force nothing is overwritten
    #[arg(long)]
    pub repair: bool,
    /// With --repair: overwrite the differences
    #[arg(long, requires = "repair")]
    pub force: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weft replica remove`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaRemove {
    #[command(flatten)]
    pub group: ReplicaGroup,
    /// Proceed even if the other side cannot be told, the group is stopped, or the copy mixes data of different
    /// moments
    #[arg(long)]
    pub force: bool,
}

/// `weft replica test-failover`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaTest {
    /// The group, or one of its volumes, on the destination
    pub group: String,
    /// End the test; everything written to the snapshot is lost
    #[arg(long)]
    pub end: bool,
}

/// `weft replica resize`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaResize {
    /// The volume, or a group of one volume
    pub group: String,
    /// The new size [default: the volume's size on this host]
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
}

/// The side that counts.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// This host
    Here,
    /// The other host: data that only this side has is overwritten
    There,
}

/// `weft replica resolve`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaResolve {
    /// The group, or one of its volumes
    pub group: String,
    /// The side that counts
    #[arg(long, value_enum)]
    pub keep: Keep,
    /// If this side was set back to an older state: with `--keep here`, proceed even if a copy has records that this
    /// side no longer has; with `--keep there`, follow even a source that lacks them
    #[arg(long)]
    pub force: bool,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: std::net::IpAddr,
    bits: u32,
}

impl Network {
    /// Whether an address lies in it.
    pub(crate) fn contains(&self, address: std::net::IpAddr) -> bool {
        use std::net::IpAddr::{V4, V6};
        match (self.address, address) {
            (V4(a), V4(b)) => (a.to_bits() ^ b.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0,
            (V6(a), V6(b)) => (a.to_bits() ^ b.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0,
            _ => false,
        }
    }
}

fn parse_network(text: &str) -> Result<Network, Misread> {
    let (address, bits) = text.split_once('/').ok_or(Misread::Network)?;
    let address: std::net::IpAddr = address.parse().map_err(|_| Misread::Network)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or(Misread::Network)?;
    Ok(Network { address, bits })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn create(words: &[&str]) -> ReplicaCreate {
        let args = Args::try_parse_from([&["weft", "replica", "create"], words].concat()).unwrap();
        let Command::Replica(replica) = args.command else { panic!("replica") };
        let ReplicaCommand::Create(create) = replica.command else { panic!("create") };
        create
    }

    #[test]
    fn volumes_come_with_commas() {
        let one = create(&["vol1", "other"]);
        assert_eq!((one.volumes, &*one.to, one.mode), (vec!["vol1".to_owned()], "other", ReplicaMode::Sync));
        let two =
            create(&["data,log", "other:data,log", "--group", "db", "--mode", "async", "--log-size", "64M"]);
        assert_eq!(two.volumes, ["data", "log"]);
        assert_eq!((two.group.as_deref(), two.log_size), (Some("db"), Some(64 << 20)));
        assert_eq!((two.on_loss, two.on_congestion), (None, None));
        let strict = create(&["vol1", "other", "--on-loss", "suspend-io", "--on-congestion", "pull-ahead"]);
        assert_eq!(
            strict.on_loss.zip(strict.on_congestion),
            Some((OnLoss::SuspendIo, OnCongestion::PullAhead))
        );
    }

    #[test]
    fn a_failover_is_forced_past_what_is_named() {
        let force = |words: &[&str]| {
            let all = [&["weft", "replica", "switch", "vol1"], words].concat();
            let args = Args::try_parse_from(all).map_err(|e| e.kind())?;
            let Command::Replica(replica) = args.command else { panic!("replica") };
            let ReplicaCommand::Switch(switch) = replica.command else { panic!("switch") };
            Ok(switch.force)
        };
        assert_eq!(force(&["--failover"]), Ok(None));
        assert_eq!(force(&["--failover", "--force"]), Ok(Some(Vec::new())));
        for objection in Objection::value_variants() {
            let named = format!("--force={}", objection.word());
            assert_eq!(force(&["--failover", &named]), Ok(Some(vec![*objection])));
        }
        let both = Some(vec![Objection::Behind, Objection::Alive]);
        assert_eq!(force(&["--failover", "--force=behind,alive"]), Ok(both));
        use clap::error::ErrorKind;
        assert_eq!(force(&["--failover", "--force=all"]), Err(ErrorKind::InvalidValue));
        assert_eq!(force(&["--force=alive"]), Err(ErrorKind::MissingRequiredArgument));
    }

    #[test]
    fn a_network_contains_its_addresses() {
        let network = parse_network("10.1.0.0/16").unwrap();
        assert!(network.contains("10.1.255.3".parse().unwrap()));
        assert!(!network.contains("10.2.0.1".parse().unwrap()));
        assert!(!network.contains("::1".parse().unwrap()));
        assert!(parse_network("0.0.0.0/0").unwrap().contains("1.2.3.4".parse().unwrap()));
        assert!(parse_network("fd00::/8").unwrap().contains("fd12::7".parse().unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129"] {
            assert!(parse_network(wrong).is_err(), "{wrong}");
        }
    }
}
