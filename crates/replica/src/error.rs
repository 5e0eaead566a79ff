//! Why an operation on a replica failed. The reasons of a peer are in `wire::repl::control::Refusal`.

use std::fmt;
use std::time::Duration;

use crate::peer;
use crate::state::Damaged;
use crate::status::Role;

/// Why an operation on a replica failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The journal's state is not valid.
    #[error("the state in the journal is unusable: {0}")]
    Damaged(#[from] Damaged),
    /// Answered records of its log are lost: it is not opened, because nobody knows what they changed.
    /// [`crate::rescue::salvage`] goes on with the remainder, [`crate::rescue::give_up`] makes it a destination.
    #[error("{0}")]
    Log(Damage),
    /// The journal failed or is full; or a volume that is not named.
    #[error("{0}")]
    Store(#[from] weft_store::Error),
    /// A volume failed or is full.
    #[error("{volume}: {source}")]
    Volume {
        /// "volume NAME".
        volume: String,
        /// The cause.
        #[source]
        source: weft_store::Error,
    },
    /// It was opened in the other role.
    #[error("this side is a {}, not a {}", name(*.is), name(*.wanted))]
    Role {
        /// Its role.
        is: Role,
        /// The expected role.
        wanted: Role,
    },
    /// The volumes are not those of the journal.
    #[error("{0}")]
    Members(String),
    /// A value beyond a limit.
    #[error("{0}")]
    Limit(String),
    /// There is no such peer.
    #[error("there is no destination number {0}")]
    NoPeer(usize),
    /// Not possible in the current state; the text says why.
    #[error("{0}")]
    State(&'static str),
    /// A copy is not promoted: the current objections, not all of which were overridden.
    #[error("{}", listed(.0))]
    Objections(Vec<Objection>),
    /// The peer refused, or did not answer.
    #[error("the destination: {0}")]
    Peer(#[from] peer::Error),
    /// This side has given up its role, and it is unknown whether the other side has taken over.
    #[error("{0}")]
    GivenUp(String),
    /// It was stopped, fenced or has failed.
    #[error("{0}")]
    Halted(String),
}

impl Error {
    /// Whether the cause is a full disk, so that it may pass.
    pub(crate) fn is_full(&self) -> bool {
        let (Error::Store(e) | Error::Volume { source: e, .. }) = self else { return false };
        matches!(e, weft_store::Error::NoSpace | weft_store::Error::OverQuota)
    }
}

/// Records that were durable and are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The first lost record.
    pub first: u64,
    /// The last record known to have existed: nothing from `first` on is reliable.
    pub last: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { first, last } = self;
        match first == last {
            true => write!(f, "its log is damaged: record {first} cannot be read"),
            false => write!(
                f,
                "its log is damaged: record {first} cannot be read, though later ones, up to {last}, exist"
            ),
        }
    }
}

/// An objection to the promotion of a copy.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum Objection {
    /// Its source was heard from this long ago, and may still answer writes.
    #[error("its source is alive: it was heard from {:.1} s ago, and writes that it answers from now on would be missing here", .0.as_secs_f64())]
    Alive(Duration),
    /// The copy lacks records that its source had at the last hello.
    #[error("its source had {0} more {records}, which never arrived here", records = if *.0 == 1 { "record" } else { "records" })]
    Behind(u64),
    /// Its volumes hold no state that the source ever had.
    #[error("a resync is under way: the volumes here hold no state that the source ever had")]
    Inconsistent,
    /// Its volumes hold what this side had as a source, before it gave up.
    #[error("this side gave up for another one, which is to overwrite its volumes")]
    GaveUp,
}

fn listed(objections: &[Objection]) -> String {
    objections.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Source => "source",
        Role::Destination => "destination",
    }
}
