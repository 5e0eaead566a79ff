//! What a server is asked about replication, and what it answers.
//!
//! Owns: the shapes. Does not: carry anything out (see `serve::replica`), or print (see `crate::replica`).

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
    /// How all groups are doing.
    Status,
    /// Volumes become copied to another server.
    Create(Box<Create>),
    /// Nothing is sent until `Resume`.
    Suspend {
        /// Which.
        group: String,
        /// The destination, where there are several.
        to: Option<String>,
    },
    /// Ends `Suspend`.
    Resume {
        /// Which.
        group: String,
        /// The destination, where there are several.
        to: Option<String>,
    },
    /// Roles are exchanged, or a copy becomes the source.
    Switch {
        /// Which.
        group: String,
        /// The destination, where there are several.
        to: Option<String>,
        /// On a destination: become the source without asking it.
        failover: bool,
        /// What is known to speak against that, and is passed over. Older versions said `force`, and meant everything.
        #[serde(default)]
        past: Vec<Objection>,
    },
    /// Both sides are compared.
    Verify {
        /// Which.
        group: String,
        /// The destination, where there are several.
        to: Option<String>,
        /// What differs is copied again, from the source to the copy.
        repair: bool,
    },
    /// Replication ends.
    Remove {
        /// Which.
        group: String,
        /// The destination, where there are several.
        to: Option<String>,
        /// Also when the other side does not hear of it, or the copy is not consistent.
        force: bool,
    },
    /// Both sides were written to: one of them counts.
    Resolve {
        /// Which.
        group: String,
        /// This side counts; otherwise the other.
        keep_here: bool,
        /// Also where this side was set back, and a copy has what it has had: go on without that, or follow a source that lacks it.
        #[serde(default)]
        force: bool,
    },
    /// A writable picture of a copy begins, or ends.
    TestFailover {
        /// Which.
        group: String,
        /// It ends.
        end: bool,
    },
    /// A volume grows, on both sides.
    Resize {
        /// Which.
        group: String,
        /// Bytes; `None`: as many as it has here.
        size: Option<u64>,
    },
}

/// See [`Command::Create`].
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Create {
    /// The volumes here.
    pub volumes: Vec<String>,
    /// What they are called there.
    pub their_volumes: Vec<String>,
    /// The group's name, on both sides.
    pub group: Option<GroupName>,
    /// How the other server is reached.
    pub address: Address,
    /// Writes wait for the other side.
    pub synchronous: bool,
    /// The other side is compared.
    pub seeded: bool,
    /// What the other side holds may go.
    pub overwrite: bool,
    /// Bytes of each side's log.
    pub log_bytes: Option<u64>,
    /// How the other side reaches this one, where it is not the address by which this one reaches it.
    pub return_host: Option<String>,
    /// What writes do while the other side is away.
    pub on_loss: Option<OnLoss>,
    /// What happens when the log is full because it is slow.
    pub on_congestion: Option<OnCongestion>,
}

/// An answer.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// A sentence.
    Done(String),
    /// All groups.
    Status(Vec<Group>),
    /// What a comparison found.
    Verified {
        /// Bytes that were compared.
        bytes: u64,
        /// Bytes of pieces that differ.
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

/// A piece that is not the same on both sides.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Differs {
    /// Name of the volume at the source.
    pub volume: String,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A group as it is now.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Group {
    /// Its name.
    pub name: String,
    /// Its volumes.
    pub volumes: Vec<String>,
    /// "source", "destination", "starting" or "stopped".
    pub role: String,
    /// Why it is stopped.
    pub stopped: Option<String>,
    /// Why the other side is stopped, where it says so.
    #[serde(default)]
    pub partner_stopped: Option<String>,
    /// The source of this copy does not know the partnership any more, where it says so.
    #[serde(default)]
    pub partner_removed: Option<String>,
    /// What to type where all sides are copies, and nobody serves it.
    #[serde(default)]
    pub no_source: Option<String>,
    /// Where the pictures of an open test failover are served: NBD URIs.
    #[serde(default)]
    pub test_failover: Vec<String>,
    /// Whether it is gone with the process.
    pub in_memory: bool,
    /// What its source does when a destination is away, or slow.
    #[serde(default, flatten)]
    pub policy: Policy,
    /// What the engine says; `null` while it does not run.
    pub engine: Value,
    /// The ways to its partners.
    pub links: Vec<Link>,
}

/// The way to a partner.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
pub(crate) struct Link {
    /// What the partner is called.
    pub name: String,
    /// HOST:PORT.
    pub address: String,
    /// "tcp", "iwarp", "shm", "rnic"; empty while there is none.
    pub transport: String,
    /// Why that one.
    #[serde(default)]
    pub reason: String,
    /// What was agreed on.
    pub description: String,
    /// What moved, seen from this side.
    pub traffic: Traffic,
}
