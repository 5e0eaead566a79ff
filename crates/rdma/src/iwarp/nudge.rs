//! The nudge: an empty RDMA Write that an initiator sends when its first FPDUs are answered by silence.
//!
//! Spec: RFC 5044 7.1.2 rule 3 (the initiator may send at once), RFC 5040 5.2 (an RDMA Write may be empty, and then
//! nothing of it is looked at). Owns: when. Does not: send.
//!
//! Seen with Linux's siw (6.12) as responder: an FPDU that arrived 0.3 ms after its MPA reply stayed unread for ever, one
//! that arrived after 2 ms did not; and the next bytes made it read both. Until then both sides wait. The next bytes are
//! this. Whoever is not waiting is not harmed: it is an FPDU without an effect.

use std::time::Duration;

use weft_machine::Time;

/// Silence before the first nudge: far above a round trip, and still no hang in the eyes of a user.
const FIRST: Duration = Duration::from_millis(40);
/// Nudges, each after twice the silence of the one before: 2.5 s in all.
const MOST: u8 = 6;

/// Whether the peer has been heard, and what to do about it.
#[derive(Debug)]
pub(super) enum Nudge {
    /// It was heard, or it is not ours to speak first, or it was nudged often enough.
    Done,
    /// Nothing was sent yet that it could answer.
    Quiet,
    /// Something was sent: the time, the silence before it, and how many are left.
    Due { at: Time, after: Duration, left: u8 },
}

impl Nudge {
    pub(super) fn new(initiator: bool) -> Nudge {
        if initiator { Nudge::Quiet } else { Nudge::Done }
    }

    /// Bytes went to the socket.
    pub(super) fn sent(&mut self, now: Time) {
        if matches!(self, Nudge::Quiet) {
            *self = Nudge::Due { at: now + FIRST, after: FIRST, left: MOST };
        }
    }

    /// A valid FPDU has arrived, or none will.
    pub(super) fn end(&mut self) {
        *self = Nudge::Done;
    }

    pub(super) fn at(&self) -> Option<Time> {
        match self {
            Nudge::Due { at, .. } => Some(*at),
            Nudge::Done | Nudge::Quiet => None,
        }
    }

    /// Whether to nudge now; then the next one is later.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let Nudge::Due { at, after, left } = *self else { return false };
        if now < at {
            return false;
        }
        *self = match left {
            0 | 1 => Nudge::Done,
            _ => {
                let after = after.saturating_mul(2);
                Nudge::Due { at: now + after, after, left: left.saturating_sub(1) }
            }
        };
        true
    }
}
