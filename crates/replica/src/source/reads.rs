//! Counts failed reads of a source's volumes, and logs them from time to time.
//!
//! A read bypasses the log, and its failure does not stop the source: the bytes may be readable on a destination.
//! Without this count only the client would learn of it.

use weft_machine::clock::Time;
use weft_machine::rt;
use weft_store::Error;
use weft_store::health::REMIND;

use super::Source;

/// Reads that have failed since the source was opened.
#[derive(Debug, Default)]
pub(super) struct FailedReads {
    pub count: u64,
    /// Where the last one failed, and why.
    pub last: Option<String>,
    told: Option<Time>,
}

impl FailedReads {
    /// Counts a failure. Returns whether to log it: at most once in [`REMIND`], however often clients read.
    fn add(&mut self, what: &str, now: Time) -> bool {
        self.count = self.count.saturating_add(1);
        self.last = Some(what.to_owned());
        let is_due = |told: Time| now.since(told) >= REMIND;
        let tell = self.told.is_none_or(is_due);
        if tell {
            self.told = Some(now);
        }
        tell
    }
}

impl Source {
    /// A read of this volume has failed. Only errors of the medium count, not invalid requests.
    pub(super) fn read_failed(&self, member: usize, offset: u64, len: u64, e: &Error) {
        let Error::Io(e) = e else { return };
        let volume = self.side.names.volume(member);
        let what = format!("{volume}: {len} bytes at {offset} cannot be read: {e}");
        if self.handle(|core| core.failed_reads.add(&what, rt::now())) {
            let group = &self.config.group;
            tracing::error!(
                "group {group}: {what}; a copy may have them: `weft replica switch {group}` makes it the source"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_told_once_in_a_while_however_often_a_client_reads() {
        let mut reads = FailedReads::default();
        let began = Time::ZERO;
        assert!(reads.add("a", began));
        assert!((1..100).all(|n| !reads.add("b", began + REMIND * n / 100)));
        assert!(reads.add("c", began + REMIND));
        assert_eq!((reads.count, reads.last.as_deref()), (101, Some("c")));
    }
}
