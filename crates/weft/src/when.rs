//! A moment in UTC, written as `2026-11-21 23:40:05`. Nothing here reads a clock or knows time zones.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds and nanoseconds since 1970, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct When {
    /// Seconds; negative before 1970.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

impl When {
    /// Whether both are the same within the precision of file systems, some of which round to two seconds.
    pub(crate) fn is_about(self, other: When) -> bool {
        self.secs.abs_diff(other.secs) < 2
    }

    /// In RFC 3339 form, for JSON: `2026-11-21T23:40:05Z`.
    pub(crate) fn rfc3339(self) -> String {
        self.to_string().replace(' ', "T") + "Z"
    }

    /// As the standard library's type; `None` outside of its range.
    pub(crate) fn to_system(self) -> Option<SystemTime> {
        let whole = Duration::from_secs(self.secs.unsigned_abs());
        let second = match self.secs < 0 {
            true => UNIX_EPOCH.checked_sub(whole),
            false => UNIX_EPOCH.checked_add(whole),
        };
        second?.checked_add(Duration::from_nanos(u64::from(self.nanos)))
    }
}

impl From<(i64, u32)> for When {
    fn from((secs, nanos): (i64, u32)) -> When {
        When { secs, nanos }
    }
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> When {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => {
                When { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
            }
            Err(before) => {
                let before = before.duration();
                let secs = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                // Nanoseconds count forwards from the previous second.
                match before.subsec_nanos() {
                    0 => When { secs, nanos: 0 },
                    nanos => When { secs: secs.saturating_sub(1), nanos: 1_000_000_000 - nanos },
                }
            }
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil(self.secs.div_euclid(86_400));
        let of_day = self.secs.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

/// Year, month and day of a day counted from 1970, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Counted from 1 March of year 0, so that leap days come last. A cycle of 400 years has 146,097 days.
    let days = days.saturating_add(719_468);
    let (cycle, of_cycle) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + cycle * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_the_same_for_the_standard_library_also_before_1970() {
        for (secs, nanos) in
            [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-315_619_200, 1), (-11_644_473_600, 100)]
        {
            let when = When { secs, nanos };
            assert_eq!(When::from(when.to_system().unwrap()), when);
        }
    }

    #[test]
    fn moments_are_written_in_utc() {
        let text = |secs| When { secs, nanos: 0 }.to_string();
        assert_eq!(text(0), "1970-01-01 00:00:00");
        assert_eq!(text(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(text(1_795_305_605), "2026-11-22 00:00:05");
        assert_eq!(When { secs: 0, nanos: 5 }.rfc3339(), "1970-01-01T00:00:00Z");
        assert_eq!(text(-1), "1969-12-31 23:59:59");
        assert_eq!(text(-11_644_473_600), "1601-01-01 00:00:00");
    }
}
