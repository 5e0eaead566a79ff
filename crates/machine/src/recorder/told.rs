//! A recorded operation in words, for people and for the log.

use std::fmt::Write;
use std::time::Duration;

use super::flight::{Details, Known};
use super::hop::{Hop, PerHop};
use crate::meter::{self, Named};
use crate::{LogLimit, clock, rt};

/// A slow operation.
#[derive(Clone, Debug)]
pub struct Slow {
    /// What it is; `None` if its message was not understood yet.
    pub named: Option<Named>,
    /// Who does it to what.
    pub details: Details,
    /// Bytes of payload, or 0.
    pub bytes: u64,
    /// When it was received, since 1970.
    pub began: Duration,
    /// How long it has taken.
    pub total: Duration,
    /// The same by hop.
    pub hops: PerHop<Duration>,
    /// Where it is; `None`: it has ended.
    pub at: Option<Hop>,
}

impl Slow {
    pub(super) fn new(known: Known, now: u64, wall: Duration) -> Slow {
        let age = meter::duration(now.saturating_sub(known.received));
        Slow {
            named: known.what.named(),
            details: known.details,
            bytes: known.bytes,
            began: wall.saturating_sub(age),
            total: meter::duration(known.until.saturating_sub(known.received)),
            hops: known.hops.map(meter::duration),
            at: known.at,
        }
    }
}

/// Writes a line about an operation that was slow.
pub(super) fn log(known: &Known) {
    static SLOW: LogLimit = LogLimit::new();
    let Some(left_out) = SLOW.pass(rt::now()) else { return };
    let slow = Slow::new(known.clone(), known.until, clock::wall());
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = match &slow.named {
        Some(named) => write!(line, "{} {}", named.protocol, named.operation),
        None => write!(line, "an operation"),
    };
    if let Some(named) = slow.named.as_ref().filter(|named| !named.share.is_empty()) {
        let _ = write!(line, " on {}", named.share);
    }
    if let Some(client) = &slow.details.client {
        let _ = write!(line, " of {client}");
    }
    let mut hops: Vec<Hop> = Hop::ALL.into_iter().filter(|hop| slow.hops.of(*hop).as_millis() > 0).collect();
    hops.sort_by_key(|hop| std::cmp::Reverse(slow.hops.of(*hop)));
    let hops: Vec<String> =
        hops.iter().map(|hop| format!("{hop} {} ms", slow.hops.of(*hop).as_millis())).collect();
    // No fault of this server's, mostly, and common on a host with much to do.
    tracing::info!(
        "slow: {line} took {} ms ({}); `weft status --slow` shows the last ones{left_out}",
        slow.total.as_millis(),
        hops.join(", ")
    );
}
