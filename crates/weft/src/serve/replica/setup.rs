//! What two servers say to each other before and after replication: who becomes whose copy, and that it is over.
//!
//! Spec: this file; JSON, because it is rare and has to be understood by other versions. Travels by FSCTL_WEFT_EXCHANGE through
//! the door `setup`, in a session that is always encrypted: it carries passwords.
//! Owns: nothing. Does not: carry anything out (see the parent).

use serde::{Deserialize, Serialize};

use super::config::{Address, Policy};
use super::stopped::Mark;

/// The longest message, bytes.
pub(super) const MAX_MESSAGE: usize = 64 << 10;

/// Asked by a source's server.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Ask {
    /// What volumes are there, and what would be in the way?
    Look {
        /// Volumes, by their names there.
        volumes: Vec<String>,
        /// Measure the log's place as well, which takes its time.
        measure: bool,
    },
    /// Become a destination.
    Join(Box<Join>),
    /// The partnership is over: the copy becomes a volume like any other.
    Leave {
        /// 32 hexadecimal digits.
        partnership: String,
    },
    /// The source's volumes are about to grow: give these as much room.
    Grow {
        /// 32 hexadecimal digits.
        partnership: String,
        /// Bytes of the source's volumes.
        sizes: Vec<u64>,
    },
    /// Which epoch is the latest there: [`Tell::Epoch`]. A server that does not know this answers with an error.
    Epoch {
        /// 32 hexadecimal digits.
        partnership: String,
    },
    /// The group is stopped on the side that says so, which shows in the status of the other.
    Stopped {
        /// 32 hexadecimal digits.
        partnership: String,
        /// A sentence, as it is told there. It is shown where the cause is not known.
        why: String,
        /// What kind of reason it is, to be worded by whoever shows it.
        #[serde(default)]
        cause: String,
        /// The host that says it.
        #[serde(default)]
        host: String,
        /// Who says it, and when.
        #[serde(default, flatten)]
        mark: Mark,
    },
    /// It is not stopped any more. A server that does not know this goes on to show what it was told, for half a minute.
    Goes {
        /// 32 hexadecimal digits.
        partnership: String,
        /// Who says it, and when.
        #[serde(default, flatten)]
        mark: Mark,
    },
    /// Says that it is done, so that the round trip can be measured.
    Nothing,
}

/// See [`Ask::Join`].
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Join {
    /// 32 hexadecimal digits.
    pub partnership: String,
    /// What the group is to be called there.
    pub group: String,
    /// Volumes, by their names there, in the group's order.
    pub volumes: Vec<String>,
    /// Bytes of the source's volumes.
    pub sizes: Vec<u64>,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// What the source is called.
    pub source: String,
    /// How the destination reaches the source when the roles are exchanged.
    pub back: Address,
    /// Whether writes will wait.
    pub synchronous: bool,
    /// For when the roles are exchanged.
    #[serde(default, flatten)]
    pub policy: Policy,
    /// What the volumes hold may go, or is compared.
    pub may_overwrite: bool,
}

/// Answered by the other server.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Tell {
    /// To [`Ask::Look`].
    Looked {
        /// Bytes a second that its journal's place takes, durably, and milliseconds of one small durable write there; where
        /// it was measured.
        log: Option<(f64, f64)>,
        /// The volumes, as they were asked for.
        volumes: Vec<Found>,
        /// A random number of the server, by which it is known under whatever name. Zero where an older one does not say.
        #[serde(default)]
        server: u64,
    },
    /// To [`Ask::Epoch`].
    Epoch(u64),
    /// It is done.
    Done,
    /// It is not, and this sentence says why.
    Error(String),
}

/// A volume of the other server.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Found {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes that hold something, as far as its file system knows.
    pub used: u64,
    /// The group that it is in already.
    pub group: Option<String>,
}
