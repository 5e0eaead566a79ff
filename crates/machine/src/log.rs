//! Log lines that others can provoke, at a bounded rate.
//!
//! Owns: the count of what was left out. Does not: log; the caller does, where [`LogLimit::pass`] lets it.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Time;

/// Lines of a kind at the beginning of each burst: enough to see who it is.
const BURST: u32 = 10;
/// Then one line in so long. A kind of message is quiet for this long before a burst begins anew.
const INTERVAL: Duration = Duration::from_secs(60);

/// The limit of one kind of message: `static REFUSED: LogLimit = LogLimit::new();`.
#[derive(Debug)]
pub struct LogLimit {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Since when this interval lasts.
    since: Option<Time>,
    /// Lines logged in it.
    logged: u32,
    /// Lines left out since the last one that was logged.
    left_out: u64,
}

/// How many lines of a kind were left out before this one; shown behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(pub u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more like this were not logged)"),
        }
    }
}

impl Default for LogLimit {
    fn default() -> LogLimit {
        LogLimit::new()
    }
}

impl LogLimit {
    /// Of a kind of message that nobody has logged yet.
    pub const fn new() -> LogLimit {
        LogLimit::every(INTERVAL)
    }

    /// The same, of a kind that lasts until somebody mends something: after its first lines one in `interval`.
    pub const fn every(interval: Duration) -> LogLimit {
        LogLimit { interval, state: Mutex::new(State { since: None, logged: 0, left_out: 0 }) }
    }

    /// Whether to log a line now: then what to show behind it.
    pub fn pass(&self, now: Time) -> Option<LeftOut> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = state.since.is_none_or(|since| now.since(since) >= self.interval);
        if over {
            // A burst that goes on has one line an interval; one that was quiet for an interval has its first lines again.
            state.logged = if state.left_out > 0 { BURST } else { 0 };
            state.since = Some(now);
        } else if state.logged >= BURST {
            state.left_out = state.left_out.saturating_add(1);
            return None;
        }
        state.logged = state.logged.saturating_add(1);
        Some(LeftOut(std::mem::take(&mut state.left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_by_its_first_lines_and_then_once_in_a_while() {
        let limit = LogLimit::new();
        let at = |ms: u64| Time::ZERO + Duration::from_millis(ms);
        let logged: Vec<_> = (0..120_000).filter_map(|ms| limit.pass(at(ms))).collect();
        // The first lines, and one at the end of each interval.
        assert_eq!(logged.len(), BURST as usize + 1);
        assert_eq!(logged[..BURST as usize], [LeftOut(0); BURST as usize]);
        assert_eq!(logged[BURST as usize], LeftOut(60_000 - u64::from(BURST)));
        assert_eq!(logged[BURST as usize].to_string(), " (59990 more like this were not logged)");
        // Quiet for an interval, it tells what was left out, and begins anew an interval later.
        assert_eq!(limit.pass(at(180_000)), Some(LeftOut(59_999)));
        assert_eq!(limit.pass(at(240_000)), Some(LeftOut(0)));
        assert_eq!(limit.pass(at(240_001)).map(|left| left.to_string()), Some(String::new()));
    }
}
