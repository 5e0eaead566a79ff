//! Decides when to log that requests wait for memory.
//!
//! A moment of it is normal where a client sends more than a disk takes. A request that has waited for [`LONG`] is worth
//! a line, so that an administrator sees why clients stand still. It does not look at the pool itself.

use std::time::Duration;

use weft_machine::Time;

/// How long a request waits before that is logged.
const LONG: Duration = Duration::from_secs(5);
/// The time between two lines.
const REMIND: Duration = Duration::from_secs(60);

/// The request that has waited longest, and when it was last logged that one does.
#[derive(Default)]
pub(super) struct Shortage {
    oldest: Option<(u64, Time)>,
    logged: Option<Time>,
}

impl Shortage {
    /// How long the oldest request, with this number, has waited, if that is to be logged now.
    pub(super) fn look(&mut self, now: Time, oldest: Option<u64>) -> Option<Duration> {
        let oldest = oldest?;
        let same = self.oldest.filter(|(number, _)| *number == oldest);
        let (_, since) = *self.oldest.insert(same.unwrap_or((oldest, now)));
        let waited = now.since(since);
        let due = self.logged.is_none_or(|logged| now.since(logged) >= REMIND);
        if waited < LONG || !due {
            return None;
        }
        self.logged = Some(now);
        Some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_that_waits_for_long_is_logged_once_a_minute_and_many_that_wait_for_a_moment_are_not() {
        let mut shortage = Shortage::default();
        let mut look = |secs, oldest| shortage.look(Time::ZERO + Duration::from_secs(secs), oldest).is_some();
        assert!(!(0..100).any(|secs| look(secs, Some(secs / 4))), "another one each time");
        assert!(!(100..200).any(|secs| look(secs, None)));
        let logged: Vec<u64> = (200..300).filter(|secs| look(*secs, Some(1000))).collect();
        assert_eq!(logged, [205, 265]);
    }
}
