//! What the rings carry: receive buffers in one direction, messages and the end in the other.
//!
//! Each item is three words, copied out of shared memory and then parsed into a typed value.
//!
//! ```text
//! receive buffer   slot:16 | capacity:32<<16    slab number            offset in the slab
//! message          1:8 | flags:8 | slot:16 | length:32<<32   invalidated STag   0
//! refused          2:8                          refusal, encoded       0
//! closed           3:8                          0                      0
//! ```
//!
//! Parsing does not check that a slot or an STag exists; the owner of the table does.

use super::layout::{RECV_SLOTS, SLOT_WORDS};
use crate::{Refusal, Stag};

/// A slot's words besides its stamp.
pub(super) type Slot = [u64; SLOT_WORDS];

/// A posted receive buffer of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    /// Its owner's index, `< RECV_SLOTS`.
    pub(super) slot: u16,
    /// Room in bytes.
    pub(super) capacity: u32,
    /// The slab that contains it.
    pub(super) slab: u32,
    /// Its offset in the slab.
    pub(super) offset: u64,
}

impl Posted {
    pub(super) fn emit(&self) -> Slot {
        [u64::from(self.slot) | u64::from(self.capacity) << 16, u64::from(self.slab), self.offset]
    }

    pub(super) fn parse([first, slab, offset]: Slot) -> Option<Posted> {
        let slot = first as u16;
        let capacity = u32::try_from(first >> 16).ok()?;
        let slab = u32::try_from(slab).ok()?;
        (usize::from(slot) < RECV_SLOTS).then_some(Posted { slot, capacity, slab, offset })
    }
}

/// An item of news from the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A message has arrived in the receive buffer `slot`.
    Message { slot: u16, len: u32, invalidated: Option<Stag>, solicited: bool },
    /// Our own table refused an access of the other side, which has ended the connection.
    Refused(Refusal),
    /// Orderly end.
    Closed,
}

const MESSAGE: u64 = 1;
const REFUSED: u64 = 2;
const CLOSED: u64 = 3;
const SOLICITED: u64 = 1 << 8;
const INVALIDATES: u64 = 1 << 9;

impl News {
    pub(super) fn emit(&self) -> Slot {
        match *self {
            News::Message { slot, len, invalidated, solicited } => {
                let mut first = MESSAGE | u64::from(slot) << 16 | u64::from(len) << 32;
                if solicited {
                    first |= SOLICITED;
                }
                if invalidated.is_some() {
                    first |= INVALIDATES;
                }
                [first, u64::from(invalidated.map_or(0, |stag| stag.0)), 0]
            }
            News::Refused(refusal) => [REFUSED, encode(refusal), 0],
            News::Closed => [CLOSED, 0, 0],
        }
    }

    pub(super) fn parse([first, second, _]: Slot) -> Option<News> {
        match first & 0xff {
            MESSAGE => {
                let slot = (first >> 16) as u16;
                if usize::from(slot) >= RECV_SLOTS {
                    return None;
                }
                let invalidated = match first & INVALIDATES {
                    0 => None,
                    _ => Some(Stag(u32::try_from(second).ok()?)),
                };
                let (len, solicited) = ((first >> 32) as u32, first & SOLICITED != 0);
                Some(News::Message { slot, len, invalidated, solicited })
            }
            REFUSED => decode(second).map(News::Refused),
            CLOSED => Some(News::Closed),
            _ => None,
        }
    }
}

fn encode(refusal: Refusal) -> u64 {
    match refusal {
        Refusal::InvalidStag => 1,
        Refusal::Bounds => 2,
        Refusal::Access => 3,
        Refusal::NotAssociated => 4,
        Refusal::NoBuffer => 5,
        Refusal::TooLong => 6,
        Refusal::TooManyReads => 7,
        Refusal::CannotInvalidate => 8,
        Refusal::Other { layer, etype, code } => {
            9 | u64::from(layer) << 8 | u64::from(etype) << 16 | u64::from(code) << 24
        }
    }
}

fn decode(word: u64) -> Option<Refusal> {
    Some(match word & 0xff {
        1 => Refusal::InvalidStag,
        2 => Refusal::Bounds,
        3 => Refusal::Access,
        4 => Refusal::NotAssociated,
        5 => Refusal::NoBuffer,
        6 => Refusal::TooLong,
        7 => Refusal::TooManyReads,
        8 => Refusal::CannotInvalidate,
        9 => Refusal::Other { layer: (word >> 8) as u8, etype: (word >> 16) as u8, code: (word >> 24) as u8 },
        _ => return None,
    })
}
