//! A moment after another, for engines in which arithmetic has to say what it does at the edge.

use std::time::Duration;

use weft_machine::Time;

/// `now` and `limit`; at the end of time, that.
#[allow(clippy::arithmetic_side_effects, reason = "Time saturates")]
pub(crate) fn after(now: Time, limit: Duration) -> Time {
    now + limit
}
