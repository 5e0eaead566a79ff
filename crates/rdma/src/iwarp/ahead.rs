//! Receiving ahead: where several segments of one Write will probably go, for one receive call.
//!
//! What: [`Plan`], the guess; an FPDU carries 64 KiB at most (RFC 5044 4), and a receive call for each of them costs a
//! large transfer a tenth of its speed. Spec: RFC 5041 5.2 (segments of a message follow each other).
//! Owns: room for the few bytes between two payloads. Does not: decide what a byte is; `receive` parses all of them in
//! their order, and takes bytes that a wrong guess has put into a region out of it again.
//!
//! The guess is made only into memory whose content does not matter ([`crate::verbs::Access::RemoteFill`]) and where
//! nothing was written yet: a wrong one harms nobody. It is that segments go on as they began: the next payload is as
//! long as this one, behind it in the region, until that is full.

use weft_wire::ddp::TAGGED_LEN;
use weft_wire::mpa::{self, CRC_LEN, LENGTH_LEN};

use super::regions::Place;

/// Payloads guessed at a time: half a megabyte.
pub(super) const GUESSES: usize = 8;
/// Pad, CRC, length and headers between two payloads.
const MAX_GAP: usize = 3 + CRC_LEN + LENGTH_LEN + TAGGED_LEN;

/// A guess about what follows the payload that is being received.
pub(super) struct Plan {
    /// Where the first guessed payload would go.
    pub(super) place: Place,
    /// Bytes between two payloads.
    pub(super) gap: usize,
    /// Lengths of the guessed payloads.
    lens: [usize; GUESSES],
    /// How many there are.
    count: usize,
    /// Whether the last of them fills the region, so that the message ends with it.
    pub(super) full: bool,
}

impl Plan {
    /// Guesses what follows a payload of `payload` bytes in an FPDU of `ulpdu`, with `room` bytes of the region behind it.
    pub(super) fn new(place: Place, ulpdu: u16, payload: usize, mut room: usize) -> Option<Plan> {
        let gap = mpa::trailer_len(ulpdu).saturating_add(LENGTH_LEN + TAGGED_LEN);
        let mut plan = Plan { place, gap, lens: [0; GUESSES], count: 0, full: false };
        for len in &mut plan.lens {
            if room == 0 {
                break;
            }
            *len = payload.min(room);
            room = room.saturating_sub(*len);
            plan.count = plan.count.saturating_add(1);
        }
        plan.full = room == 0;
        (payload > 0 && plan.count > 0).then_some(plan)
    }

    /// Where the guessed payload `i` would go.
    pub(super) fn place_of(&self, i: usize) -> Place {
        self.place.advanced(self.lens.iter().take(i).sum())
    }

    /// Lengths of the guessed payloads.
    pub(super) fn lens(&self) -> &[usize] {
        self.lens.split_at(self.count.min(GUESSES)).0
    }

    /// The part of `gap` that stands before a guessed payload.
    pub(super) fn between<'a>(&self, gap: &'a mut Gap) -> &'a mut [u8] {
        gap.split_at_mut(self.gap.min(MAX_GAP)).0
    }
}

/// Room for what lies between two payloads.
pub(super) type Gap = [u8; MAX_GAP];

/// Room for what lies between the payloads.
pub(super) type Gaps = [Gap; GUESSES];

/// Empty room.
pub(super) const NO_GAPS: Gaps = [[0; MAX_GAP]; GUESSES];
