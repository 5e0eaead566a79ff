//! Why something could not be done with a replica.
//!
//! What: [`Error`]. Spec: none. Does not: name a peer's reasons (see `wire::repl::control::Refusal`).

use std::time::Duration;

use crate::peer;
use crate::scan::Damage;
use crate::state::Damaged;
use crate::status::Role;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The journal's state cannot be believed.
    #[error("the state in the journal is of no use: {0}")]
    Damaged(#[from] Damaged),
    /// Records of its log that it has answered for are gone: it is not opened, since nobody knows what they changed. What
    /// goes on with the rest is [`crate::rescue::salvage`]; what makes it a destination, [`crate::rescue::give_up`].
    #[error("{0}")]
    Log(Damage),
    /// The journal failed, or is full; or a volume, of which that is not said.
    #[error("{0}")]
    Store(#[from] weft_store::Error),
    /// A volume failed, or is full.
    #[error("{volume}: {source}")]
    Volume {
        /// "volume NAME".
        volume: String,
        /// How.
        #[source]
        source: weft_store::Error,
    },
    /// It is opened as what it is not.
    #[error("this side is a {}, not a {}", name(*.is), name(*.wanted))]
    Role {
        /// What it is.
        is: Role,
        /// What was wanted.
        wanted: Role,
    },
    /// The volumes are not those of the journal.
    #[error("{0}")]
    Members(String),
    /// More, or less, than can be.
    #[error("{0}")]
    Limit(String),
    /// There is no such peer.
    #[error("there is no destination number {0}")]
    NoPeer(usize),
    /// Not in this state of affairs, and why.
    #[error("{0}")]
    State(&'static str),
    /// A copy is not promoted: all that speaks against it now, and not everything of that was passed over.
    #[error("{}", listed(.0))]
    Objections(Vec<Objection>),
    /// What the peer said, or that it said nothing.
    #[error("the destination: {0}")]
    Peer(#[from] peer::Error),
    /// This side has given up, and it is not known whether another one has taken over.
    #[error("{0}")]
    GivenUp(String),
    /// It was stopped, fenced or has failed.
    #[error("{0}")]
    Halted(String),
}

impl Error {
    /// Whether there may be room one day.
    pub(crate) fn is_full(&self) -> bool {
        let (Error::Store(e) | Error::Volume { source: e, .. }) = self else { return false };
        matches!(e, weft_store::Error::NoSpace)
    }
}

/// What speaks against the promotion of a copy.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum Objection {
    /// Its source was heard of so long ago, and may be written to.
    #[error("its source is alive: it was heard of {:.1} s ago, and what it answers from now on would be missing here", .0.as_secs_f64())]
    Alive(Duration),
    /// The copy has not caught up with what its source had when they met last.
    #[error("its source had {0} {records} more, which never came here", records = if *.0 == 1 { "record" } else { "records" })]
    Behind(u64),
    /// It is no state that the source ever had.
    #[error("a resync is under way: what is here is no state that the source ever had")]
    Inconsistent,
    /// It is what this side had as a source, before it gave up.
    #[error("this side gave up for another one, which is to overwrite what it has")]
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
