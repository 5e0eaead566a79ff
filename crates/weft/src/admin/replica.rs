//! The admin requests and answers about replication. `serve::replica` carries them out, and `crate::replica` prints
//! them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::replica::{Objection, OnCongestion, OnLoss};
use crate::serve::replica::config::{Address, Policy};
use crate::serve::replica::names::GroupName;
use crate::status::Traffic;

/// A command. `group` is the name of a group or of one of its volumes.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "replica", rename_all = "kebab-case")]
pub(crate) enum Command {
    /// The state of all groups.
    Status,
    /// Starts replicating volumes to another server.
    Create(Box<Create>),
    /// Pauses replication until `Resume`.
    Suspend {
        /// The group.
        group: String,
        /// The destination, if there are several.
        to: Option<String>,
    },
    /// Ends `Suspend`.
    Resume {
        /// The group.
        group: String,
        /// The destination, if there are several.
        to: Option<String>,
    },
    /// Exchanges the roles, or makes a copy the source.
    Switch {
        /// The group.
        group: String,
        /// The destination, if there are several.
        to: Option<String>,
        /// On a destination: become the source without asking it.
        failover: bool,
        /// Known objections to override. Older versions sent `force`, which overrides all.
        #[serde(default)]
        past: Vec<Objection>,
    },
    /// Compares both sides.
    Verify {
        /// The group.
        group: String,
        /// The destination, if there are several.
        to: Option<String>,
        /// Copies differences again, from the source to the copy.
        repair: bool,
    },
    /// Ends replication.
    Remove {
        /// The group.
        group: String,
        /// The destination, if there are several.
        to: Option<String>,
        /// Even if the other side cannot be told, or the copy is not consistent.
        force: bool,
    },
    /// Both sides were written to: chooses the one that counts.
    Resolve {
        /// The group.
        group: String,
        /// This side counts; otherwise the other.
        keep_here: bool,
        /// Even if this side was set back and a copy has its lost records: continue without them, or follow a source
        /// that lacks them.
        #[serde(default)]
        force: bool,
    },
    /// Begins or ends a writable snapshot of a copy.
    TestFailover {
        /// The group.
        group: String,
        /// Ends it.
        end: bool,
    },
    /// Grows a volume on both sides.
    Resize {
        /// The group.
        group: String,
        /// Bytes; `None`: the volume's size on this host.
        size: Option<u64>,
    },
}

/// See [`Command::Create`].
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Create {
    /// The volumes on this host.
    pub volumes: Vec<String>,
    /// Their names on the other host.
    pub their_volumes: Vec<String>,
    /// The group's name, on both sides.
    pub group: Option<GroupName>,
    /// How to reach the other server.
    pub address: Address,
    /// Whether writes wait for the other side.
    pub synchronous: bool,
    /// Whether the other side holds an older copy, to be compared.
    pub seeded: bool,
    /// Whether the other side's contents may be overwritten.
    pub overwrite: bool,
    /// Bytes of each side's log.
    pub log_bytes: Option<u64>,
    /// The address by which the other side reaches this one, if it differs from the one this side uses.
    pub return_host: Option<String>,
    /// How writes behave while the other side is away.
    pub on_loss: Option<OnLoss>,
    /// Behaviour when the log is full because the other side is slow.
    pub on_congestion: Option<OnCongestion>,
}

/// An answer.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// Done; a sentence for the user.
    Done(String),
    /// All groups.
    Status(Vec<Group>),
    /// The result of a comparison.
    Verified {
        /// Bytes compared.
        bytes: u64,
        /// Bytes in pieces that differ.
        different: u64,
        /// The first of these pieces.
        #[serde(default)]
        first: Vec<Differs>,
        /// Host of the source.
        #[serde(default)]
        source: String,
        /// Host of the copy.
        #[serde(default)]
        copy: String,
    },
}

/// A piece that differs between the sides.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Differs {
    /// Name of the volume at the source.
    pub volume: String,
    /// Its offset in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The current state of a group.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Group {
    /// Its name.
    pub name: String,
    /// Its volumes.
    pub volumes: Vec<String>,
    /// "source", "destination", "starting" or "stopped".
    pub role: String,
    /// Why it is stopped.
    pub stopped: Option<String>,
    /// Why the other side is stopped, if it says so.
    #[serde(default)]
    pub partner_stopped: Option<String>,
    /// Set if the source of this copy says that it no longer knows the partnership.
    #[serde(default)]
    pub partner_removed: Option<String>,
    /// What to type if all sides are copies and none is the source.
    #[serde(default)]
    pub no_source: Option<String>,
    /// NBD URIs of the snapshots of an open test failover.
    #[serde(default)]
    pub test_failover: Vec<String>,
    /// Whether it is lost when the process ends.
    pub in_memory: bool,
    /// Behaviour of its source when a destination is away or slow.
    #[serde(default, flatten)]
    pub policy: Policy,
    /// The engine's report; `null` while it does not run.
    pub engine: Value,
    /// The links to its partners.
    pub links: Vec<Link>,
}

/// The link to a partner.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Link {
    /// The partner's name.
    pub name: String,
    /// HOST:PORT.
    pub address: String,
    /// "tcp", "iwarp", "shm", "rnic"; empty while not connected.
    pub transport: String,
    /// Why this transport was chosen.
    #[serde(default)]
    pub reason: String,
    /// The negotiated parameters.
    pub description: String,
    /// Bytes and operations, as seen from this side.
    pub traffic: Traffic,
}
