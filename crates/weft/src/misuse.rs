//! A mistake in a command line: no file, server or time would change the outcome.

/// A command line that can never be carried out as written: the exit status is the one for lines that clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(String);

impl Misuse {
    pub(crate) fn new(sentence: impl Into<String>) -> Misuse {
        Misuse(sentence.into())
    }
}

/// Refuses `--only TEXT`: `what` (a point, a line) has no such text in its name.
pub(crate) fn none_has(only: &str, what: &str) -> Misuse {
    Misuse::new(format!("--only {only:?}: no {what} has this text in its name"))
}
