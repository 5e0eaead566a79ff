//! The nudge: an empty RDMA Write that an initiator sends when its first FPDUs get no answer.
//!
//! RFC 5044 7.1.2 rule 3 lets the initiator send at once; RFC 5040 5.2 allows an empty RDMA Write, whose STag and
//! offset are not checked. This file decides when to send it. `send` sends it.
//!
//! Linux's siw (6.12) as responder leaves an FPDU unread if it arrives 0.3 ms after its MPA reply, but not if it
//! arrives after 2 ms; the next bytes make it read both. Until then both sides wait. The nudge supplies these bytes. It
//! does no harm to other peers: it is an FPDU without an effect.

use std::time::Duration;

use weft_machine::Time;

/// Silence before the first nudge: far above a round trip, yet too short to look like a hang to a user.
const FIRST: Duration = Duration::from_millis(40);
/// Number of nudges, each after twice the silence of the one before: 2.5 s in all.
const MOST: u8 = 6;

/// Whether the peer has answered, and when to nudge it.
#[derive(Debug)]
pub(super) enum Nudge {
    /// The peer has answered, or we may not speak first, or it was nudged often enough.
    Done,
    /// We have sent nothing yet that the peer could answer.
    Quiet,
    /// We have sent something: when the next nudge is due, the silence before it, and how many nudges are left.
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

    /// Whether to nudge now; if so, schedules the next nudge.
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
