//! The command line of `weft replica`.
//!
//! Owns: names, defaults and help of every option. Does not: act.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{Transport, default_user, parse_size};
use crate::serve::replica::names::GroupName;

/// `weft replica`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
weft serve --volume vol1 --nbd --replica --listen 0.0.0.0 --user alice        (on both hosts)\n  \
weft replica check other\n  \
weft replica create vol1 other:vol1 --mode sync\n  \
weft replica status --watch\n  \
weft replica switch vol1                    (roles are exchanged)\n  \
weft replica switch vol1 --failover         (on the destination, when the source is lost)\n\n\
These commands talk to the server that runs on this host with the same state directory. The password of the other server's\n\
user comes from WEFT_PASSWORD or is asked for.")]
pub(crate) struct Replica {
    /// The server's state directory [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true, global = true)]
    pub state_dir: Option<PathBuf>,
    /// The server with this process number, where several run
    #[arg(long, value_name = "N", global = true, value_parser = super::number::<u32>(..))]
    pub pid: Option<u32>,
    /// What to do
    #[command(subcommand)]
    pub command: ReplicaCommand,
}

/// What to do with a replica.
#[derive(Subcommand, Debug)]
pub(crate) enum ReplicaCommand {
    /// Look whether a host is fit to be a destination: ports, round trip, bandwidth, speed of its log; says sync or async
    Check(ReplicaCheck),
    /// Copy volumes to another host, and keep the copy equal
    Create(ReplicaCreate),
    /// How all groups of this host are doing
    Status(ReplicaStatus),
    /// Use a writable picture of the copy, over NBD, while replication goes on
    TestFailover(ReplicaTest),
    /// Exchange the roles; with --failover on the destination: become the source when the source is lost
    Switch(ReplicaSwitch),
    /// Send nothing for now; what is written meanwhile is remembered
    Suspend(ReplicaGroup),
    /// End a suspension
    Resume(ReplicaGroup),
    /// Compare both sides while they are in use
    Verify(ReplicaVerify),
    /// End replication; both sides keep what they have
    Remove(ReplicaRemove),
    /// On the source: make a replicated volume longer, on both sides, while it is in use
    Resize(ReplicaResize),
    /// Decide which side counts when both were written to, or the source's log is damaged
    Resolve(ReplicaResolve),
}

/// How the other server is reached.
#[derive(clap::Args, Debug)]
pub(crate) struct Other {
    /// Who logs on there
    #[arg(long, default_value_t = default_user(), value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub user: String,
    /// TCP port of its SMB
    #[arg(long, value_name = "N", default_value_t = 4450, value_parser = super::number::<u16>(1..))]
    pub smb_port: u16,
    /// By which way
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Encrypt everything, by RDMA too
    #[arg(long)]
    pub encrypt: bool,
    /// Take the address of the host that lies in this network: 10.0.0.0/24
    #[arg(long, value_name = "NETWORK", value_parser = parse_network)]
    pub network: Option<Network>,
}

/// `weft replica check`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaCheck {
    /// The host that is to have the copy, or HOST:VOLUME
    pub host: String,
    /// Volumes there that are to be looked at, by their names
    #[arg(value_name = "VOLUME")]
    pub volumes: Vec<String>,
    #[command(flatten)]
    pub other: Other,
    /// Write a page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// When a write is answered.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaMode {
    /// When both sides have it: nothing is lost with the source
    Sync,
    /// When this side has it: the last moments are lost with the source
    Async,
}

/// What synchronous writes do while a destination is away. Named as in DRBD.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnLoss {
    /// They are answered without it, and the status says that they are unprotected
    #[default]
    Continue,
    /// They wait until it is back and has everything: nothing is ever answered that one side alone has
    SuspendIo,
}

/// What happens when the log is full because a destination is slow. Named as in DRBD.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnCongestion {
    /// Writes wait for it
    #[default]
    Block,
    /// Writes go on; what it lacks is noted in the bitmap, and copied when it has caught up
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
    /// Volumes of this host; several, with commas in between, are a group that keeps the order of writes
    #[arg(value_name = "VOLUME[,VOLUME...]", value_delimiter = ',', num_args = 1, required = true)]
    pub volumes: Vec<String>,
    /// The other host, and what the volumes are called there if it is something else
    #[arg(value_name = "HOST[:VOLUME,...]")]
    pub to: String,
    /// When a write is answered
    #[arg(long, value_enum, default_value_t = ReplicaMode::Sync)]
    pub mode: ReplicaMode,
    /// The other side holds an older copy: compare, and copy what differs
    #[arg(long)]
    pub seeded: bool,
    /// What the other side's volumes hold may go
    #[arg(long, conflicts_with = "seeded")]
    pub overwrite: bool,
    /// The group's name [default: that of its first volume]
    #[arg(long, value_name = "NAME")]
    pub group: Option<GroupName>,
    /// Bytes of each side's log [default: a quarter of the volumes, 64M to 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub log_size: Option<u64>,
    /// What synchronous writes do while the other side is away [default: continue]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_loss: Option<OnLoss>,
    /// What happens when the log is full because the other side is slow [default: block]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub on_congestion: Option<OnCongestion>,
    /// How the other host reaches this one, where that is another address than it looks like from here
    #[arg(long, value_name = "HOST")]
    pub return_host: Option<String>,
    /// Compress what travels over TCP, where both servers can
    #[arg(long)]
    pub compress: bool,
    #[command(flatten)]
    pub other: Other,
}

/// `weft replica status`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaStatus {
    /// Again and again, until Ctrl-C
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
    /// The destination, where there are several
    #[arg(long, value_name = "HOST:GROUP")]
    pub to: Option<String>,
}

/// `weft replica switch`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaSwitch {
    #[command(flatten)]
    pub group: ReplicaGroup,
    /// On the destination: become the source with what has come here, without asking the source, which has to have been silent
    /// for ten seconds (waited for)
    #[arg(long)]
    pub failover: bool,
    /// Pass over what speaks against it, named as the refusal names it; nothing that is not named is passed over
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

/// What speaks against a failover.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Objection {
    /// The source was heard of less than ten seconds ago
    Alive,
    /// The source has said that it has records which never came here
    Behind,
    /// A resync was under way: the copy is of no single moment
    Resync,
    /// Another side has more
    OtherHasMore,
    /// The roles were exchanged: another side is the source by now
    Switched,
    /// Its source answers, and knows nothing of the partnership: it was removed there
    Removed,
}

impl Objection {
    /// As it is typed.
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
    /// With --force: overwrite what differs on the copy with what this side, the source, has. If the copy is right, `weft replica
    /// switch` first. Without --force nothing is overwritten
    #[arg(long)]
    pub repair: bool,
    /// With --repair: overwrite it
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
    /// Also when the other side cannot be told, the group is stopped, or the copy is of no single moment
    #[arg(long)]
    pub force: bool,
}

/// `weft replica test-failover`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaTest {
    /// The group, or one of its volumes, on the destination
    pub group: String,
    /// End it: what was written to the picture is gone
    #[arg(long)]
    pub end: bool,
}

/// `weft replica resize`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaResize {
    /// The volume, or a group of one volume
    pub group: String,
    /// The new size; without it, what the volume has here
    #[arg(value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
}

/// Which side counts.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// This host's
    Here,
    /// The other host's: what only this side has is overwritten
    There,
}

/// `weft replica resolve`.
#[derive(clap::Args, Debug)]
pub(crate) struct ReplicaResolve {
    /// The group, or one of its volumes
    pub group: String,
    /// Which side counts
    #[arg(long, value_enum)]
    pub keep: Keep,
    /// Where this side was set back: with `--keep here` also if a copy has records that this side has no more, with `--keep there`
    /// follow also a source that lacks them
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

fn parse_network(text: &str) -> Result<Network, String> {
    let example = "write ADDRESS/BITS, for example 10.0.0.0/24";
    let (address, bits) = text.split_once('/').ok_or(example)?;
    let address: std::net::IpAddr = address.parse().map_err(|_| example)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or(example)?;
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
