//! The log of log-ons: user, source, and the reason of a refusal.
//!
//! Every success is logged at info. Refusals are logged at warn, at most [`BURST`] in a row and then one per [`PAUSE`],
//! with the number of those left out, so that an attacker cannot fill the disk. Passwords and keys are never logged;
//! names from the network are escaped and truncated ([`escaped`]).

use std::fmt::{self, Display, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weft_machine::Time;

/// Refusals that are logged without a pause in between.
const BURST: u32 = 20;
/// The interval after which one more may be logged.
const PAUSE: Duration = Duration::from_secs(1);
/// Characters of a name in the log: Windows user names have at most 20, principals are longer.
const MOST_CHARS: usize = 64;

/// Limits the log lines about refusals of one server.
pub(super) struct Refusals(Mutex<Budget>);

struct Budget {
    left: u32,
    /// When `left` was last replenished.
    since: Time,
    left_out: u64,
}

impl Default for Refusals {
    fn default() -> Refusals {
        Refusals(Mutex::new(Budget { left: BURST, since: Time::ZERO, left_out: 0 }))
    }
}

impl Refusals {
    /// Logs that `user`, the name that the client claims, was refused.
    pub fn log(&self, user: Option<&str>, source: &str, reason: impl Display, now: Time) {
        let Some(left_out) = self.take(now) else { return };
        let user = escaped(user.unwrap_or(""));
        match left_out {
            0 => tracing::warn!(%user, %source, "log-on refused: {reason}"),
            _ => tracing::warn!(%user, %source, left_out, "log-on refused: {reason}"),
        }
    }

    /// Whether a line may be logged now; if so, how many were left out before it.
    fn take(&self, now: Time) -> Option<u64> {
        let budget = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.since(budget.since).as_secs().checked_div(PAUSE.as_secs()).unwrap_or(0);
        if passed > 0 {
            budget.left = budget.left.saturating_add(u32::try_from(passed).unwrap_or(BURST)).min(BURST);
            budget.since = now;
        }
        match budget.left.checked_sub(1) {
            Some(left) => {
                budget.left = left;
                Some(std::mem::take(&mut budget.left_out))
            }
            None => {
                budget.left_out = budget.left_out.saturating_add(1);
                None
            }
        }
    }
}

/// A name from the network made safe for the log: on one line, without control characters, of limited length.
pub(super) fn escaped(name: &str) -> Escaped<'_> {
    Escaped(name)
}

/// See [`escaped`].
pub(super) struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars().take(MOST_CHARS) {
            match c {
                // Letters and digits of every script stay readable; marks that reorder or hide text do not.
                c if c.is_alphanumeric() || (c.is_ascii_graphic() && !matches!(c, '"' | '\\')) => {
                    f.write_char(c)?;
                }
                ' ' => f.write_char(c)?,
                c => write!(f, "{}", c.escape_default())?,
            }
        }
        if self.0.chars().nth(MOST_CHARS).is_some() {
            f.write_str("...")?;
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn refusals_are_counted_once_there_are_many() {
        let refusals = Refusals::default();
        let burst = (0..100).filter(|_| refusals.take(at(5)).is_some()).count();
        assert_eq!(burst, BURST as usize);
        assert_eq!(refusals.take(at(6)), Some(80), "what was left out is told");
        assert_eq!(refusals.take(at(6)), None);
        assert_eq!(refusals.take(at(600)), Some(1));
        assert_eq!((0..100).filter(|_| refusals.take(at(600)).is_some()).count(), BURST as usize - 1);
    }

    #[test]
    fn a_name_from_the_network_cannot_forge_a_line() {
        let name = "eve\n2026-01-01 INFO logged on user=\"alice\"\u{1b}[2J\u{202e}\\";
        let shown = escaped(name).to_string();
        assert_eq!(shown, r#""eve\n2026-01-01 INFO logged on user=\"alice\"\u{1b}[2J\u{202e}\\""#);
        assert_eq!(escaped("Jörg Ω").to_string(), "\"Jörg Ω\"");
        assert_eq!(escaped(&"x".repeat(5000)).to_string().len(), MOST_CHARS + 5);
    }
}
