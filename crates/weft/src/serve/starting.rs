//! Waiting for the start of a server: what it is doing is told if that takes long, and a signal ends it.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::StartError;
use crate::Failure;
use crate::signals::{ATTENTION, Signals};

/// How often a start that is not finished is told.
const SLOW: Duration = Duration::from_secs(10);
/// How long a start may go on after a signal. It then ends in order, like a server that serves.
const GRACE: Duration = Duration::from_secs(5);

/// What a start is doing, in words.
#[derive(Clone, Debug, Default)]
pub(super) struct Step(Arc<Mutex<&'static str>>);

impl Step {
    /// The start does this from now on.
    pub(super) fn begin(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    fn now(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the server has started.
pub(super) fn started<T>(
    start: &Receiver<Result<T, StartError>>,
    step: &Step,
    signals: &Signals,
) -> Result<T, Failure> {
    let begun = Instant::now();
    let mut told = Duration::ZERO;
    let mut asked_to_end = None;
    loop {
        match start.recv_timeout(ATTENTION) {
            Ok(services) => return Ok(services?),
            Err(RecvTimeoutError::Disconnected) => {
                return Err("the first core ended before everything listened".into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = Instant::now();
        if signals.ended() && now.duration_since(*asked_to_end.get_or_insert(now)) >= GRACE {
            return Err(format!("ended by a signal before it was ready, while {}", step.now()).into());
        }
        let waited = now.duration_since(begun);
        if waited.saturating_sub(told) >= SLOW {
            told = waited;
            tracing::warn!("not ready after {} s: still {}", waited.as_secs(), step.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_start_that_hangs_ends_by_a_signal_and_says_what_it_was_doing() {
        let (_report, start) = mpsc::channel::<Result<(), _>>();
        let step = Step::default();
        step.begin("opening the volumes");
        step.begin("looking up the users of rights");
        let signals = Signals::new().unwrap();
        signals.end();
        let begun = Instant::now();
        let failed = started(&start, &step, &signals).err().unwrap().to_string();
        assert_eq!(failed, "ended by a signal before it was ready, while looking up the users of rights");
        assert!(begun.elapsed() >= GRACE, "a start that is nearly finished has time");
    }

    #[test]
    fn a_start_that_fails_says_so_after_a_signal_too() {
        let (report, start) = mpsc::channel::<Result<(), _>>();
        let signals = Signals::new().unwrap();
        signals.end();
        drop(report);
        let failed = started(&start, &Step::default(), &signals).err().unwrap().to_string();
        assert_eq!(failed, "the first core ended before everything listened");
    }
}
