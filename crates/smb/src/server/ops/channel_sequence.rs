//! ChannelSequence: detects requests on an open that were sent before a channel was lost.
//!
//! Spec: [MS-SMB2] 3.3.5.2.10, 3.3.4.1 (counting answers). Owns an open's sequence number, and the counts of unanswered
//! requests with this number and with earlier ones. A client that loses a channel raises the number on all others, and
//! repeats its unanswered requests.
//!
//! A write that was sent on the lost channel and arrives late must not undo later writes, and one that is still being
//! carried out must not be carried out twice.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_wire::smb2::Header;

/// The state of one open in one word, so that a READ or WRITE pays two atomic operations for it.
///
/// ```text
///  63          48 47                    24 23                     0
/// +--------------+------------------------+------------------------+
/// |   sequence   | OutstandingPreRequests |  OutstandingRequests   |
/// +--------------+------------------------+------------------------+
/// ```
#[derive(Default)]
pub(super) struct ChannelSequence(AtomicU64);

/// Both counts are bounded by the credits of all channels of a session, which are far fewer.
const COUNT: u64 = (1 << 24) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    sequence: u16,
    before: u64,
    now: u64,
}

impl State {
    fn of(word: u64) -> State {
        State { sequence: (word >> 48) as u16, before: word >> 24 & COUNT, now: word & COUNT }
    }

    fn word(self) -> u64 {
        u64::from(self.sequence) << 48 | (self.before & COUNT) << 24 | self.now & COUNT
    }

    /// Unanswered requests.
    fn outstanding(self) -> u64 {
        self.before.saturating_add(self.now)
    }

    /// The state after a request, and whether the request may change anything.
    fn enter(self, sequence: u16, replay: bool) -> (State, Entry) {
        let newer = sequence != self.sequence && sequence.wrapping_sub(self.sequence) <= 0x7FFF;
        let one_more = State { now: self.now.saturating_add(1), ..self };
        match (replay, sequence == self.sequence, newer) {
            (false, true, _) => (one_more, Entry::Counted),
            (false, _, true) => (State { sequence, before: self.outstanding(), now: 1 }, Entry::Counted),
            (true, true, _) if self.before == 0 => (one_more, Entry::Counted),
            (true, true, _) => (self, Entry::Stale),
            (true, _, true) => match self.outstanding() {
                0 => (State { sequence, before: 0, now: 1 }, Entry::Counted),
                before => (State { sequence, before, now: 0 }, Entry::Stale),
            },
            _ => (self, Entry::Stale),
        }
    }
}

/// Whether a request is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Among the outstanding requests.
    Counted,
    /// Not counted, and must not write.
    Stale,
}

impl ChannelSequence {
    /// The CREATE's number (3.3.5.9): a client that has lost channels before does not start at zero.
    pub(super) fn starting(header: &Header) -> ChannelSequence {
        let state = State { sequence: header.channel_sequence(), before: 0, now: 0 };
        ChannelSequence(AtomicU64::new(state.word()))
    }

    /// Counts a request with this number.
    #[inline]
    pub(super) fn count(&self, sequence: u16, replay: bool) -> Entry {
        let mut entry = Entry::Stale;
        let update = |word| {
            let (state, outcome) = State::of(word).enter(sequence, replay);
            entry = outcome;
            Some(state.word())
        };
        // The closure always returns a value, so this cannot fail.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        entry
    }

    /// A request with this number that was counted is answered.
    #[inline]
    pub(super) fn answered(&self, sequence: u16) {
        let update = |word| {
            let state = State::of(word);
            Some(
                match state.sequence == sequence {
                    true => State { now: state.now.saturating_sub(1), ..state },
                    false => State { before: state.before.saturating_sub(1), ..state },
                }
                .word(),
            )
        };
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_sequence_come_and_go() {
        let open = ChannelSequence::default();
        assert_eq!((open.count(0, false), open.count(0, false)), (Entry::Counted, Entry::Counted));
        open.answered(0);
        open.answered(0);
        assert_eq!(open.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_sent_before_a_channel_was_lost_writes_nothing_any_more() {
        let open = ChannelSequence::default();
        assert_eq!(open.count(1, false), Entry::Counted, "the client lost a channel and goes on");
        assert_eq!(open.count(0, false), Entry::Stale, "a late write of before");
        assert_eq!(open.count(0x8001, false), Entry::Stale, "half way round is older, not newer");
        assert_eq!(open.count(0x8000, false), Entry::Counted, "and just short of it newer");
        assert_eq!(open.count(0x0000, true), Entry::Stale);
    }

    #[test]
    fn a_replay_waits_until_its_original_is_answered() {
        let open = ChannelSequence::default();
        assert_eq!(open.count(5, false), Entry::Counted);
        assert_eq!(open.count(6, true), Entry::Stale, "the original is being carried out");
        assert_eq!(open.count(6, true), Entry::Stale, "still");
        assert_eq!(open.count(6, false), Entry::Counted, "others go on");
        open.answered(5);
        assert_eq!(open.count(6, true), Entry::Counted);
        open.answered(6);
        open.answered(6);
        assert_eq!(State::of(open.0.load(Ordering::Relaxed)), State { sequence: 6, before: 0, now: 0 });
    }

    #[test]
    fn a_replay_may_be_the_first_of_its_sequence() {
        let open = ChannelSequence::default();
        assert_eq!(open.count(9, true), Entry::Counted);
        open.answered(9);
        assert_eq!(State::of(open.0.load(Ordering::Relaxed)), State { sequence: 9, before: 0, now: 0 });
    }

    #[test]
    fn sequences_wrap() {
        let open = ChannelSequence::default();
        assert_eq!(open.count(0x7FFF, false), Entry::Counted);
        assert_eq!(open.count(0xFFFE, false), Entry::Counted);
        assert_eq!(open.count(0, false), Entry::Counted);
        assert_eq!(open.count(0xFFFE, false), Entry::Stale);
    }
}
