//! The control segment of a connection: the memory that both processes share, besides payload.
//!
//! It has two halves of equal shape, the connecting side's first. All words have 64 bits; words written by different
//! sides lie 128 bytes apart, because processors prefetch cache lines in pairs.
//!
//! ```text
//! word   0  hazard         what the owner is accessing in the peer's memory (see regions)
//!       16  sleeping       the owner sleeps; its peer must ring
//!       32  ended          the owner accepts nothing more
//!       48  news taken     how far the owner has read its news
//!       64  recvs taken    how far the owner has read the peer's receive ring
//!       80  traffic        bytes and operations written, bytes and operations read, by the owner
//!      128  recvs          RECV_SLOTS slots, the owner produces: its posted receive buffers
//!    +2048  news           NEWS_SLOTS slots, the peer produces: messages for the owner, the end
//!    +4096  regions        REGIONS entries, the owner writes: what the peer may access
//! ```
//!
//! Nobody trusts its content; every reader copies first and then checks.

use std::sync::atomic::AtomicU64;

use weft_machine::shm::{Sleeper, Word, Words};

/// Words of a slot besides its stamp: a slot is half a cache line.
pub(super) const SLOT_WORDS: usize = 3;
/// Receive buffers that one side can have posted.
pub(super) const RECV_SLOTS: usize = 512;
/// Each message consumes one of the receiver's posted buffers, so there are never more news than `RECV_SLOTS` messages
/// and the end.
pub(super) const NEWS_SLOTS: usize = 2 * RECV_SLOTS;
/// Regions that one side can have registered; an STag uses 12 bits for the index.
pub(super) const REGIONS: usize = 1 << REGION_BITS;
pub(super) const REGION_BITS: u32 = 12;
/// Words of a region's entry.
pub(super) const REGION_WORDS: usize = 4;
/// A region's entry; `regions` describes its words.
pub(super) type Entry = [AtomicU64; REGION_WORDS];

const HAZARD: usize = 0;
const SLEEPING: usize = 16;
const ENDED: usize = 32;
const NEWS_TAKEN: usize = 48;
const RECVS_TAKEN: usize = 64;
const TRAFFIC: usize = 80;
const RECVS: usize = 128;
const NEWS: usize = RECVS + RECV_SLOTS * (SLOT_WORDS + 1);
const REGION_TABLE: usize = NEWS + NEWS_SLOTS * (SLOT_WORDS + 1);
const HALF: usize = REGION_TABLE + REGIONS * REGION_WORDS;

/// Words of the whole segment.
pub(super) const SEGMENT_WORDS: usize = 2 * HALF;
/// Bytes of the whole segment.
pub(super) const SEGMENT_BYTES: usize = SEGMENT_WORDS * size_of::<u64>();

/// Which half belongs to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Connecting,
    Accepting,
}

/// One side's half.
pub(super) struct Half {
    /// See `regions::Hazard`.
    pub(super) hazard: Word,
    pub(super) sleeping: Sleeper,
    pub(super) ended: Word,
    pub(super) news_taken: Words,
    pub(super) recvs_taken: Words,
    pub(super) traffic: [Word; 4],
    pub(super) recvs: Words,
    pub(super) news: Words,
    pub(super) regions: Words,
}

impl Half {
    /// The half of `segment` that starts at word `start`: 0 or `HALF`.
    fn at(segment: &Words, start: usize) -> Half {
        let half = segment.part(start..start.saturating_add(HALF));
        let part = |from: usize, len: usize| half.part(from..from.saturating_add(len));
        Half {
            hazard: half.word(HAZARD),
            sleeping: Sleeper::new(part(SLEEPING, 1)),
            ended: half.word(ENDED),
            news_taken: part(NEWS_TAKEN, 1),
            recvs_taken: part(RECVS_TAKEN, 1),
            traffic: [TRAFFIC, TRAFFIC + 1, TRAFFIC + 2, TRAFFIC + 3].map(|at| half.word(at)),
            recvs: part(RECVS, RECV_SLOTS * (SLOT_WORDS + 1)),
            news: part(NEWS, NEWS_SLOTS * (SLOT_WORDS + 1)),
            regions: part(REGION_TABLE, REGIONS * REGION_WORDS),
        }
    }
}

/// (our half, the peer's half).
pub(super) fn halves(segment: &Words, side: Side) -> (Half, Half) {
    let (first, second) = (Half::at(segment, 0), Half::at(segment, HALF));
    match side {
        Side::Connecting => (first, second),
        Side::Accepting => (second, first),
    }
}
