//! Limits the rate of log lines that others can provoke.
//!
//! It counts the lines left out. The caller logs, if [`LogLimit::pass`] allows it.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Time;
use crate::meter::Events;

/// Lines of a kind at the start of each burst: enough to identify the cause.
const BURST: u32 = 10;
/// After that, one line per interval. A kind of message must be quiet for this long before a new burst begins.
const INTERVAL: Duration = Duration::from_secs(60);

/// Lines that limits have left out, in the whole process.
pub static LEFT_OUT: Events = Events::new();

/// The limit of one kind of message: `static REFUSED: LogLimit = LogLimit::new();`.
#[derive(Debug)]
pub struct LogLimit {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Start of the current interval.
    since: Option<Time>,
    /// Lines logged in it.
    logged: u32,
    /// Lines left out since the last logged one.
    left_out: u64,
}

/// The number of lines of a kind left out before this one; appended to it.
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
    /// The limit of a kind of message that has not been logged yet.
    pub const fn new() -> LogLimit {
        LogLimit::every(INTERVAL)
    }

    /// The same for a kind that persists until somebody fixes the cause: after its first lines, one line per
    /// `interval`.
    pub const fn every(interval: Duration) -> LogLimit {
        LogLimit { interval, state: Mutex::new(State { since: None, logged: 0, left_out: 0 }) }
    }

    /// Whether to log a line now; if so, the text to append.
    pub fn pass(&self, now: Time) -> Option<LeftOut> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = state.since.is_none_or(|since| now.since(since) >= self.interval);
        if over {
            // A continuing burst gets one line per interval; after a quiet interval the first lines are logged again.
            state.logged = if state.left_out > 0 { BURST } else { 0 };
            state.since = Some(now);
        } else if state.logged >= BURST {
            state.left_out = state.left_out.saturating_add(1);
            LEFT_OUT.count();
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
        // After a quiet interval, it reports the lines left out, and starts again an interval later.
        assert_eq!(limit.pass(at(180_000)), Some(LeftOut(59_999)));
        assert_eq!(limit.pass(at(240_000)), Some(LeftOut(0)));
        assert_eq!(limit.pass(at(240_001)).map(|left| left.to_string()), Some(String::new()));
    }
}
