//! The numbers by which the server recognizes a repeated LOCK.
//!
//! Spec: [MS-SMB2] 3.2.1.5 (OperationBuckets), 2.2.26 (LockSequence), 3.2.4.19. Owns the next number of each bucket.

use std::cell::RefCell;

/// Size of OperationBuckets (3.2.1.5).
const MAX_BUCKETS: usize = 64;

/// OperationBuckets (3.2.1.5): the sequence number of the next LOCK under each index.
#[derive(Default)]
pub(super) struct LockSequences(RefCell<Vec<Bucket>>);

/// The most LOCKs in a row of one bucket that nobody answers. One more could get the number that the server has
/// remembered last: it would be taken for a repeated one, and answered without being carried out.
const MOST_UNANSWERED: u8 = 14;

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// LockSequenceNumber, 4 bits.
    number: u8,
    /// Whether a LOCK with this number is unanswered.
    busy: bool,
    /// LOCKs since the last one that the server has answered with success, which nobody has answered: at most
    /// [`MOST_UNANSWERED`].
    unanswered: u8,
}

impl Bucket {
    fn next_number(self) -> u8 {
        self.number.wrapping_add(1) & 0xf
    }

    /// Free for another LOCK after one that was not answered. It gets another number, because the server may have
    /// carried that one out.
    fn given_up(self) -> Bucket {
        Bucket { number: self.next_number(), busy: false, unanswered: self.unanswered.saturating_add(1) }
    }

    fn is_free(self) -> bool {
        !self.busy && self.unanswered < MOST_UNANSWERED
    }
}

impl LockSequences {
    /// The numbers of a handle that was reconnected: the server remembers those of the LOCKs it has carried out.
    pub fn continues(&self, lost: &LockSequences) {
        let free = |bucket: &Bucket| if bucket.busy { bucket.given_up() } else { *bucket };
        let buckets = lost.0.borrow().iter().map(free).collect();
        self.0.replace(buckets);
    }

    /// `None` if all are in use: a LOCK without a number is carried out, but not recognized when it is repeated.
    pub fn take(&self) -> Option<LockSequence<'_>> {
        let buckets = &mut *self.0.borrow_mut();
        let free = buckets.iter().position(|bucket| bucket.is_free()).unwrap_or(buckets.len());
        if free == buckets.len() {
            if free >= MAX_BUCKETS {
                return None;
            }
            buckets.push(Bucket::default());
        }
        let bucket = buckets.get_mut(free)?;
        bucket.busy = true;
        Some(LockSequence { sequences: self, bucket: free, number: bucket.number, answered: false })
    }
}

/// LockSequenceIndex and LockSequenceNumber of a LOCK, in use until it is answered or given up.
pub(super) struct LockSequence<'a> {
    sequences: &'a LockSequences,
    /// LockSequenceIndex - 1.
    bucket: usize,
    number: u8,
    answered: bool,
}

impl LockSequence<'_> {
    /// 2.2.26: the number in the lower four bits, and the index above it.
    pub fn on_wire(&self) -> u32 {
        (self.bucket as u32).saturating_add(1) << 4 | u32::from(self.number)
    }

    fn becomes(&self, next: impl FnOnce(Bucket) -> Bucket) {
        if let Some(bucket) = self.sequences.0.borrow_mut().get_mut(self.bucket) {
            *bucket = next(*bucket);
        }
    }

    /// The server has carried it out, and remembers its number.
    pub fn done(mut self) {
        self.becomes(|bucket| Bucket { number: bucket.next_number(), ..Bucket::default() });
        self.answered = true;
    }

    /// The server has refused it, and remembers nothing.
    pub fn refused(mut self) {
        self.becomes(|bucket| Bucket { busy: false, ..bucket });
        self.answered = true;
    }
}

impl Drop for LockSequence<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.becomes(Bucket::given_up);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lock_has_a_number_that_the_server_has_not_seen_under_its_index() {
        let sequences = LockSequences::default();
        let take = || sequences.take().unwrap();
        let next = || {
            let sequence = take();
            let on_wire = sequence.on_wire();
            sequence.done();
            on_wire
        };
        assert_eq!([next(), next(), next()], [0x10, 0x11, 0x12]);
        let (one, two) = (take(), take());
        assert_eq!([one.on_wire(), two.on_wire()], [0x13, 0x20]);
        // A handle that is reconnected meanwhile continues the numbers.
        let again = LockSequences::default();
        again.continues(&sequences);
        assert_eq!(again.take().unwrap().on_wire(), 0x14);
        one.refused();
        assert_eq!(take().on_wire(), 0x13, "the server does not know that number");
        for _ in 0..12 {
            next();
        }
        assert_eq!(next(), 0x10, "four bits");
        let all: Vec<_> = std::iter::from_fn(|| sequences.take()).collect();
        assert_eq!((all.len(), all.last().unwrap().on_wire() >> 4), (63, 64));
        drop((all, two));
        assert_eq!(sequences.0.borrow().len(), 64);
    }

    /// The server answers a LOCK with the number that it remembers without carrying it out. Sixteen LOCKs on a lost
    /// connection came back to that number.
    #[test]
    fn locks_that_nobody_answers_do_not_come_back_to_a_number_that_the_server_remembers() {
        let sequences = LockSequences::default();
        let first = sequences.take().unwrap();
        let remembered = first.on_wire();
        first.done();
        let unanswered: Vec<u32> =
            std::iter::from_fn(|| Some(sequences.take()?.on_wire())).take(2_000).collect();
        assert_eq!(unanswered.len(), MAX_BUCKETS * usize::from(MOST_UNANSWERED), "then there is none");
        assert!(!unanswered.contains(&remembered));
    }
}
