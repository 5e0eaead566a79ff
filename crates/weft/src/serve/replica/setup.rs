//! What two servers say to each other before and after replication: who becomes whose copy, and that it is over.
//!
//! Spec: this file; JSON, because it is rare and has to be understood by other versions. Travels by FSCTL_WEFT_EXCHANGE through
//! the door `setup`, in a session that is always encrypted: it carries passwords.
//! Does not: carry anything out (see the parent).

use std::collections::BTreeSet;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use weft_store::volume::MAX_SIZE;
use weft_wire::repl::record::MAX_MEMBERS;

use super::config::{Address, Policy};
use super::destinations::List;
use super::door;
use super::names::GroupName;
use super::partners::{Holds, Most};
use super::stopped::Mark;
use crate::out::{self, Said};

/// The longest message, bytes.
pub(super) const MAX_MESSAGE: usize = 64 << 10;
/// How the answer to a message begins that is not known to a server: every version says it like this.
pub(super) const UNREADABLE: &str = "a message that cannot be read";
/// The largest log, whoever asks for it.
pub(super) const MOST_LOG_BYTES: u64 = 64 << 30;
/// Logs and growth that another server asks for leave this part of what is free to others.
pub(super) const PART_LEFT: u64 = 16;
/// What logs have multiples of.
pub(super) const LOG_UNIT: u64 = 4096;

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
        /// Unless empty: the group is meant only if its volumes there are these. A server that does not know this passes over it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<String>,
        /// Of the source that says it: a copy that follows a later one is no copy of it. Zero from an older version.
        #[serde(default)]
        epoch: u64,
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
        why: Said,
        /// What kind of reason it is, to be worded by whoever shows it.
        #[serde(default)]
        cause: Said,
        /// The host that says it.
        #[serde(default)]
        host: Said,
        /// Who says it, and when.
        #[serde(default, flatten)]
        mark: Mark,
        /// Which side has most, as far as it has found out.
        #[serde(default, flatten)]
        most: Most,
    },
    /// What does that side have: [`Tell::Holds`]. A server that does not know this answers with an error.
    Holds {
        /// 32 hexadecimal digits.
        partnership: String,
    },
    /// Which destinations its source has: [`Tell::Known`]. A server that does not know this answers with an error, [`UNREADABLE`].
    Know {
        /// 32 hexadecimal digits.
        partnership: String,
        /// They, but for the one that is told this.
        list: Box<List>,
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

/// See [`Ask::Join`]: one that makes sense by itself.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(try_from = "Wished")]
pub(super) struct Join(Wished);

/// A [`Join`] that nobody has checked.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Wished {
    /// 32 hexadecimal digits.
    pub partnership: String,
    /// What the group is to be called there.
    pub group: GroupName,
    /// Volumes, by their names there, in the group's order.
    pub volumes: Vec<String>,
    /// Bytes of the source's volumes.
    pub sizes: Vec<u64>,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// What the source is called.
    pub source: Said,
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

impl TryFrom<Wished> for Join {
    type Error = String;

    fn try_from(wished: Wished) -> Result<Join, String> {
        door::parse_partnership(&wished.partnership).ok_or("a partnership has 32 hexadecimal digits")?;
        few_and_distinct(&wished.volumes)?;
        if wished.volumes.is_empty() || wished.sizes.len() != wished.volumes.len() {
            return Err("the number of volumes and that of their sizes differ, or there is none".into());
        }
        if let Some(size) = wished.sizes.iter().find(|size| !(1..=MAX_SIZE).contains(*size)) {
            return Err(format!("no volume has {size} bytes"));
        }
        if wished.log_bytes > MOST_LOG_BYTES || !wished.log_bytes.is_multiple_of(LOG_UNIT) {
            return Err(format!(
                "a log has at most {MOST_LOG_BYTES} bytes, in multiples of {LOG_UNIT}, not {}",
                wished.log_bytes
            ));
        }
        let Address { host, user, .. } = &wished.back;
        if let Some(odd) = [host, user].into_iter().find(|text| out::name(text) != **text) {
            return Err(format!("{odd:?} can be no host or user"));
        }
        Ok(Join(wished))
    }
}

impl Deref for Join {
    type Target = Wished;

    fn deref(&self) -> &Wished {
        &self.0
    }
}

/// Whether these can be the volumes of one group, as far as their names tell.
pub(super) fn few_and_distinct(volumes: &[String]) -> Result<(), String> {
    if volumes.len() > MAX_MEMBERS {
        return Err(format!("a group has at most {MAX_MEMBERS} volumes, not {}", volumes.len()));
    }
    let mut known = BTreeSet::new();
    match volumes.iter().find(|volume| !known.insert(*volume)) {
        Some(twice) => Err(format!("volume {twice:?} is named twice")),
        None => Ok(()),
    }
}

/// Whether so many bytes can be given to another server of those that are free; `what` is for the error.
pub(super) fn leaves_enough(what: &str, bytes: u64, free: u64) -> Result<(), String> {
    match bytes > free.saturating_sub(free / PART_LEFT) {
        true => Err(format!(
            "{what} takes {bytes} bytes, and {free} are free there, of which one {PART_LEFT}th is left to others"
        )),
        false => Ok(()),
    }
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
    /// To [`Ask::Holds`].
    Holds(Holds),
    /// To [`Ask::Know`].
    Known {
        /// The count of the list that counts there: a larger one than was said is of a later list, and what was said is forgotten.
        count: u64,
        /// Destinations that are not taken over, since their addresses lead to a side that is known already.
        left_out: Vec<Said>,
    },
    /// It is done.
    Done,
    /// It is not, and this sentence says why.
    Error(Said),
}

/// A volume of the other server.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Found {
    /// Its name.
    pub name: Said,
    /// Bytes.
    pub size: u64,
    /// Bytes that hold something, as far as its file system knows.
    pub used: u64,
    /// The group that it is in already.
    pub group: Option<Said>,
}
