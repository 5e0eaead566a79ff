//! A name in a share that leads to a mounted file system which may block, and what listings have asked it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_machine::clock::Time;
use weft_machine::file::system::FileSystem;

/// A file system that had no place for a question is asked again after this time.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// A name that leads to a file system which may block.
#[derive(Clone)]
pub(super) struct Across {
    pub name: Vec<u8>,
    pub system: Arc<FileSystem>,
    pub questions: Arc<Questions>,
}

/// The questions of listings to one mounted file system.
#[derive(Default)]
pub(super) struct Questions(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    /// Calls that have not ended.
    running: usize,
    /// When a listing had waited long enough; `None` if a call has ended since.
    silent: Option<Time>,
}

impl Questions {
    // Each change is one step.
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a listing should ask.
    pub(super) fn may_ask(&self, now: Time) -> bool {
        let asked = self.asked();
        asked.silent.is_none_or(|silent| asked.running == 0 && now.since(silent) >= ASKED_AGAIN)
    }

    /// A listing has waited long enough.
    pub(super) fn has_not_answered(&self, now: Time) {
        self.asked().silent = Some(now);
    }
}

/// A call that is running.
pub(super) struct Question(Arc<Questions>);

impl Question {
    pub(super) fn begin(questions: Arc<Questions>) -> Question {
        questions.asked().running += 1;
        Question(questions)
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut asked = self.0.asked();
        asked.running -= 1;
        asked.silent = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_file_system_that_has_not_answered_is_asked_again_when_its_call_has_ended() {
        let questions = Arc::new(Questions::default());
        assert!(questions.may_ask(at(0)));
        let (first, second) = (Question::begin(questions.clone()), Question::begin(questions.clone()));
        assert!(questions.may_ask(at(1)), "it may answer at any moment");
        questions.has_not_answered(at(2000));
        assert!(!questions.may_ask(at(2000)) && !questions.may_ask(at(3_600_000)));
        drop(first);
        assert!(questions.may_ask(at(3_600_000)));
        questions.has_not_answered(at(3_600_000));
        drop(second);
        // A question that found no place is asked again after a while.
        questions.has_not_answered(at(4_000_000));
        assert!(!questions.may_ask(at(4_009_999)) && questions.may_ask(at(4_010_000)));
    }
}
