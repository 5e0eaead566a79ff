//! Receiving ahead: predicts where the next segments of an RDMA Write will go, so that one receive call can take
//! several.
//!
//! An FPDU carries 64 KiB at most (RFC 5044 4), and one receive call for each of them costs a large transfer a tenth of
//! its speed. [`Plan`] is the prediction; it relies on the segments of a message following each other (RFC 5041 5.2).
//! It does not interpret bytes: `receive` parses all of them in order, and moves those that a wrong guess has put into
//! a region back out.
//!
//! A guess is made only into memory whose content does not matter ([`crate::verbs::Access::RemoteFill`]) and where
//! nothing was written yet, so a wrong one does no harm. It assumes that the next payload is as long as this one and
//! follows it in the region, until the region is full.

use weft_wire::ddp::TAGGED_LEN;
use weft_wire::mpa::{self, CRC_LEN, LENGTH_LEN};

use super::regions::RegionPosition;

/// Payloads predicted at a time: half a megabyte.
pub(super) const GUESSES: usize = 8;
/// Pad, CRC, length and headers between two payloads.
const MAX_GAP: usize = 3 + CRC_LEN + LENGTH_LEN + TAGGED_LEN;

/// A guess about what follows the payload that is being received.
pub(super) struct Plan {
    /// Where the first predicted payload would go.
    pub(super) place: RegionPosition,
    /// Bytes between two payloads.
    pub(super) gap: usize,
    /// Lengths of the predicted payloads.
    lens: [usize; GUESSES],
    /// The number of predicted payloads.
    count: usize,
    /// Whether the last predicted payload fills the region, so that the message ends with it.
    pub(super) full: bool,
}

impl Plan {
    /// Predicts what follows a payload of `payload` bytes in an FPDU of `ulpdu`, with `room` bytes of the region behind
    /// it.
    pub(super) fn new(place: RegionPosition, ulpdu: u16, payload: usize, mut room: usize) -> Option<Plan> {
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

    /// Where predicted payload `i` would go.
    pub(super) fn place_of(&self, i: usize) -> RegionPosition {
        self.place.advanced(self.lens.iter().take(i).sum())
    }

    /// Lengths of the predicted payloads.
    pub(super) fn lens(&self) -> &[usize] {
        self.lens.split_at(self.count.min(GUESSES)).0
    }

    /// The part of `gap` that precedes a predicted payload.
    pub(super) fn between<'a>(&self, gap: &'a mut Gap) -> &'a mut [u8] {
        gap.split_at_mut(self.gap.min(MAX_GAP)).0
    }
}

/// Room for the bytes between two payloads.
pub(super) type Gap = [u8; MAX_GAP];

/// Room for the bytes between all predicted payloads.
pub(super) type Gaps = [Gap; GUESSES];

/// Gaps to receive into.
pub(super) const NO_GAPS: Gaps = [[0; MAX_GAP]; GUESSES];
