//! Messages that two servers exchange before and after replication: joining as a copy, and ending the partnership.
//!
//! They are JSON, because they are rare and must be understood by other versions. They travel by FSCTL_WEFT_EXCHANGE
//! through the door `setup`, always in an encrypted session, because they carry passwords. The parent module carries
//! them out.

use std::collections::BTreeSet;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use weft_store::volume::MAX_SIZE;
use weft_wire::repl::record::MAX_MEMBERS;

use super::config::{Address, ListNumber, Partner, Policy};
use super::door;
use super::error::{Misfit, NoRoom};
use super::most::Most;
use super::names::GroupName;
use super::position::Holds;
use super::stopped::Mark;
use crate::out::{self, Said};

/// The longest message, bytes.
pub(super) const MAX_MESSAGE: usize = 64 << 10;
/// The beginning of the answer to a message that a server does not know: every version uses it.
pub(super) const UNREADABLE: &str = "a message that cannot be read";
/// The largest log that any side may ask for.
pub(super) const MOST_LOG_BYTES: u64 = 64 << 30;
/// Logs and growth requested by another server must leave this part of the free space.
pub(super) const PART_LEFT: u64 = 16;
/// Logs are multiples of this.
pub(super) const LOG_UNIT: u64 = 4096;

/// A request of a source's server.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Ask {
    /// Asks about volumes and obstacles.
    Look {
        /// Names of volumes on that server.
        volumes: Vec<String>,
        /// Whether to measure the log's location as well, which takes time.
        measure: bool,
    },
    /// Asks to become a destination.
    Join(Box<Join>),
    /// Ends the partnership: the copy becomes an ordinary volume.
    Leave {
        /// 32 hexadecimal digits.
        partnership: String,
        /// If not empty, the group is meant only if these are its volumes there. A server that does not know this
        /// field ignores it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<String>,
        /// The epoch of the sending source: a copy that follows a later source is not its copy. Zero from an older
        /// version.
        #[serde(default)]
        epoch: u64,
    },
    /// The source's volumes are about to grow: asks to reserve as much room.
    Grow {
        /// 32 hexadecimal digits.
        partnership: String,
        /// New sizes of the source's volumes, in bytes.
        sizes: Vec<u64>,
    },
    /// Asks for the latest epoch there: [`Tell::Epoch`]. A server that does not know this answers with an error.
    Epoch {
        /// 32 hexadecimal digits.
        partnership: String,
    },
    /// Reports that the group is stopped on the sending side, which the receiver's status shows.
    Stopped {
        /// 32 hexadecimal digits.
        partnership: String,
        /// The sender's sentence. It is shown if the cause is unknown.
        why: Said,
        /// The kind of reason, worded by the side that shows it.
        #[serde(default)]
        cause: Said,
        /// The sender's host.
        #[serde(default)]
        host: Said,
        /// The sender, and the message's number.
        #[serde(default, flatten)]
        mark: Mark,
        /// The side with the most data, as far as the sender knows.
        #[serde(default, flatten)]
        most: Most,
    },
    /// Asks what the side has: [`Tell::Holds`]. A server that does not know this answers with an error.
    Holds {
        /// 32 hexadecimal digits.
        partnership: String,
    },
    /// Sends the source's list of destinations: [`Tell::Known`]. A server that does not know this answers with an
    /// error, [`UNREADABLE`].
    Know {
        /// 32 hexadecimal digits.
        partnership: String,
        /// All destinations except the receiver.
        list: Box<List>,
    },
    /// Reports that the sender is no longer stopped. A server that does not know this shows the old report for half a
    /// minute.
    Goes {
        /// 32 hexadecimal digits.
        partnership: String,
        /// The sender, and the message's number.
        #[serde(default, flatten)]
        mark: Mark,
    },
    /// Asks for an empty answer, to measure the round trip.
    Nothing,
}

/// A checked [`Ask::Join`].
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(try_from = "Wished")]
pub(super) struct Join(Wished);

/// An unchecked [`Join`].
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Wished {
    /// 32 hexadecimal digits.
    pub partnership: String,
    /// The group's name on the receiving server.
    pub group: GroupName,
    /// Names of the volumes on the receiving server, in the group's order.
    pub volumes: Vec<String>,
    /// Bytes of the source's volumes.
    pub sizes: Vec<u64>,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// The source's name.
    pub source: Said,
    /// How the destination reaches the source when the roles are exchanged.
    pub back: Address,
    /// Whether writes wait for the destination.
    pub synchronous: bool,
    /// The policy after an exchange of roles.
    #[serde(default, flatten)]
    pub policy: Policy,
    /// Whether the volumes' contents may be overwritten or compared.
    pub may_overwrite: bool,
}

impl TryFrom<Wished> for Join {
    type Error = Misfit;

    fn try_from(wished: Wished) -> Result<Join, Misfit> {
        door::parse_partnership(&wished.partnership).ok_or(Misfit::Partnership)?;
        few_and_distinct(&wished.volumes)?;
        if wished.volumes.is_empty() || wished.sizes.len() != wished.volumes.len() {
            return Err(Misfit::Sizes);
        }
        if let Some(size) = wished.sizes.iter().find(|size| !(1..=MAX_SIZE).contains(*size)) {
            return Err(Misfit::Size(*size));
        }
        if wished.log_bytes > MOST_LOG_BYTES || !wished.log_bytes.is_multiple_of(LOG_UNIT) {
            return Err(Misfit::Log { bytes: wished.log_bytes, most: MOST_LOG_BYTES, unit: LOG_UNIT });
        }
        let Address { host, user, .. } = &wished.back;
        if let Some(odd) = [host, user].into_iter().find(|text| out::name(text) != **text) {
            return Err(Misfit::Text(odd.clone()));
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

/// The destinations of a source, as it sends them to one of them.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct List {
    /// Orders lists.
    pub number: ListNumber,
    /// The random number that identifies the source's server.
    pub server: u64,
    /// The source's own address as it sees it; used if none of the known partners is the source.
    pub source: Option<Partner>,
    /// All other destinations.
    pub partners: Vec<Partner>,
    /// The name of the destination that becomes the source; empty if it is the receiver, or if there is none.
    #[serde(default)]
    pub successor: Said,
}

/// Whether these names can be the volumes of one group.
pub(crate) fn few_and_distinct(volumes: &[String]) -> Result<(), Misfit> {
    if volumes.len() > MAX_MEMBERS {
        return Err(Misfit::TooMany(volumes.len()));
    }
    let mut known = BTreeSet::new();
    match volumes.iter().find(|volume| !known.insert(*volume)) {
        Some(twice) => Err(Misfit::Twice(twice.clone())),
        None => Ok(()),
    }
}

/// Whether another server may use this many bytes of the free space; `what` is for the error.
pub(super) fn leaves_enough(what: &'static str, bytes: u64, free: u64) -> Result<(), NoRoom> {
    match bytes > free.saturating_sub(free / PART_LEFT) {
        true => Err(NoRoom { what, bytes, free, part_left: PART_LEFT }),
        false => Ok(()),
    }
}

/// The other server's answer.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Tell {
    /// To [`Ask::Look`].
    Looked {
        /// Bytes per second of durable writes to its journal's folder, and milliseconds of one small durable write;
        /// if it was measured.
        log: Option<(f64, f64)>,
        /// The volumes, in the order of the request.
        volumes: Vec<Found>,
        /// A random number that identifies the server under any host name. Zero from an older version.
        #[serde(default)]
        server: u64,
    },
    /// To [`Ask::Epoch`].
    Epoch(u64),
    /// To [`Ask::Holds`].
    Holds(Holds),
    /// To [`Ask::Know`].
    Known {
        /// The count of the list in force there: if it is larger than the sent one, a later list was received, and
        /// the sent one is ignored.
        count: u64,
        /// Destinations that are left out, because their addresses lead to a known side.
        left_out: Vec<Said>,
    },
    /// The request was carried out.
    Done,
    /// The request failed; this sentence says why.
    Error(Said),
}

/// A volume of the other server.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Found {
    /// Its name.
    pub name: Said,
    /// Bytes.
    pub size: u64,
    /// Bytes in use, as far as its file system knows.
    pub used: u64,
    /// The group that already contains it.
    pub group: Option<Said>,
}
