//! Time: monotonic time as a value that protocol code is given, and the one place where other crates read the time of day.
//!
//! Under simulation every answer is the simulation's, so that a run depends on its seed alone. The house test keeps the protocol
//! crates from reading the system's clocks directly. Sleeping is in [`crate::rt`].

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{rt, sim};

/// Nanoseconds since an arbitrary origin of this process (or of the simulation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// The time `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The real clock of this process: CLOCK_MONOTONIC counted from the first call.
    pub(crate) fn monotonic() -> Time {
        Time(u64::try_from(origin().elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The same moment on the standard library's clock; a time that it cannot express becomes one in the far future.
    pub(crate) fn to_instant(self) -> Instant {
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86400);
        origin() + Duration::from_nanos(self.0).min(CENTURY)
    }
}

/// The time of day, since 1970: the system's clock, or the simulation's, which [`sim::set_wall`] sets. It may jump either way; a clock
/// before 1970 reads as 1970.
pub fn wall() -> Duration {
    match sim::current() {
        Some(world) => world.wall(),
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}

/// [`rt::now`] in the standard library's type.
pub fn instant() -> Instant {
    rt::now().to_instant()
}

fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, rhs: Time) -> Duration {
        self.since(rhs)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    #[test]
    fn a_simulation_has_a_clock_of_its_own_that_can_be_set() {
        let story = || {
            Sim::new(1).run(async {
                let (begun, first) = (instant(), wall());
                assert!(wall() > first, "no two answers are the same");
                rt::sleep(Duration::from_secs(5)).await;
                assert_eq!(instant().duration_since(begun), Duration::from_secs(5));
                assert_eq!(wall().saturating_sub(first).as_secs(), 5);
                sim::set_wall(Duration::from_secs(7));
                assert_eq!((wall().as_secs(), instant().duration_since(begun).as_secs()), (7, 5));
                rt::sleep(Duration::from_secs(1)).await;
                assert_eq!(wall().as_secs(), 8);
                first
            })
        };
        assert_eq!(story(), story());
        assert!(
            wall().as_secs().abs_diff(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()) < 10
        );
    }
}
