//! Time: monotonic time as a value that protocol code is given, and the one place where other crates read the time of day.
//!
//! Under simulation every answer is the simulation's, so that a run depends on its seed alone. The house test keeps the protocol
//! crates from reading the system's clocks directly. Sleeping is in [`crate::rt`].

mod time;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use self::time::Time;
use crate::{rt, sim};

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

/// The time since an [`instant`].
pub fn since(earlier: Instant) -> Duration {
    instant().saturating_duration_since(earlier)
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
