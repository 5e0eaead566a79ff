//! Remembers which parts of a file were recently in the page cache.
//!
//! [`Warm`] has a bit for each [`CHUNK`]. The parent queries the kernel.
//!
//! A query costs two system calls and, if the records of the pages are not in the processor's cache, more than copying
//! a small answer. What was seen in the page cache is therefore trusted for [`BELIEVED`]. The kernel may have evicted
//! it meanwhile: then one answer is read from disk on its core, and nothing worse happens.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Time;

/// The bytes covered by one bit.
const CHUNK: u64 = 64 << 10;
/// Bits of a word.
const BITS: u64 = u64::BITS as u64;
/// The words of the largest file that is remembered completely, 32 GiB; parts beyond that are queried each time.
const MAX_WORDS: u64 = 8192;
/// How long an observation is trusted.
const BELIEVED: Duration = Duration::from_secs(10);

/// The observations of one open file.
#[derive(Debug, Default)]
pub(super) struct Warm {
    seen: OnceLock<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// When the first of the bits was set, in nanoseconds.
    since: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl Warm {
    /// Whether all of `range` was seen recently.
    pub(super) fn knows(&self, range: &Range<u64>, now: Time) -> bool {
        let Some(seen) = self.seen.get() else { return false };
        seen.forget_old(now);
        let mut chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        chunks.all(|chunk| {
            let word = usize::try_from(chunk / BITS).ok().and_then(|at| seen.words.get(at));
            word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (chunk % BITS)) != 0)
        })
    }

    /// `range`, widened to whole bits.
    pub(super) fn widen(range: &Range<u64>) -> Range<u64> {
        range.start / CHUNK * CHUNK..range.end.div_ceil(CHUNK).saturating_mul(CHUNK)
    }

    /// All of `range` is in the page cache. `len` returns the file's length; called once.
    pub(super) fn saw(&self, range: &Range<u64>, now: Time, len: impl FnOnce() -> u64) {
        let seen = self.seen.get_or_init(|| Seen::new(len(), now));
        seen.forget_old(now);
        for chunk in range.start.div_ceil(CHUNK)..range.end / CHUNK {
            if let Some(word) = usize::try_from(chunk / BITS).ok().and_then(|at| seen.words.get(at)) {
                word.fetch_or(1 << (chunk % BITS), Ordering::Relaxed);
            }
        }
    }
}

impl Seen {
    fn new(len: u64, now: Time) -> Seen {
        let words = len.div_ceil(CHUNK).div_ceil(BITS).clamp(1, MAX_WORDS);
        Seen { since: AtomicU64::new(now.as_nanos()), words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Bits that another core sets in between may be cleared as well, or stay a little longer: neither matters.
    fn forget_old(&self, now: Time) {
        let since = Time::from_nanos(self.since.load(Ordering::Relaxed));
        if now.since(since) > BELIEVED {
            self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.since.store(now.as_nanos(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 * CHUNK;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_seen_is_known_for_a_while() {
        let warm = Warm::default();
        assert!(!warm.knows(&(0..CHUNK), at(1)));
        warm.saw(&(CHUNK..3 * CHUNK), at(1), || LEN);
        assert!(warm.knows(&(CHUNK..3 * CHUNK), at(1)));
        assert!(warm.knows(&(CHUNK + 1..CHUNK + 2), at(11)));
        assert!(!warm.knows(&(CHUNK..3 * CHUNK + 1), at(11)));
        assert!(!warm.knows(&(CHUNK..3 * CHUNK), at(12)));
    }

    #[test]
    fn half_a_chunk_says_nothing_about_the_other_half() {
        let warm = Warm::default();
        warm.saw(&(CHUNK / 2..2 * CHUNK + 1), at(1), || LEN);
        assert!(!warm.knows(&(CHUNK / 2..CHUNK), at(1)));
        assert!(warm.knows(&(CHUNK..2 * CHUNK), at(1)));
        assert!(!warm.knows(&(2 * CHUNK..2 * CHUNK + 1), at(1)));
    }

    #[test]
    fn a_file_that_has_grown_is_remembered_as_far_as_it_was() {
        let warm = Warm::default();
        warm.saw(&(0..CHUNK), at(1), || CHUNK);
        warm.saw(&(1000 * CHUNK..1001 * CHUNK), at(1), || LEN);
        assert!(warm.knows(&(0..CHUNK), at(1)));
        assert!(!warm.knows(&(1000 * CHUNK..1001 * CHUNK), at(1)));
    }
}
