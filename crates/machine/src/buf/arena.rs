//! The slabs of a pool as one space of blocks, and the memory that they occupy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::slab::Slab;
use super::{CLASSES, MIN_BUF, Mapping, SLAB_BYTES};

/// How far the address space of the slabs may exceed the limit: by this factor, once for each size. Allocation takes
/// the free block with the lowest address, so blocks of size n lie above the end of the smaller sizes only if blocks of
/// n and larger sizes fill that space without a gap, at most the limit; the sum over the sizes is the bound. So a
/// request within the limit always finds a place, however the live buffers are distributed. The gaps between them are
/// address space only; punching bounds the memory. Without an adversary the slabs end one above the limit.
const MAX_SPREAD: usize = CLASSES;
/// The most slabs that a piece can address: 16 TiB.
const MAX_SLABS: usize = 1 << 18;
/// The minimum to punch when memory is at its limit, so that not every request punches.
const PUNCH_BYTES: usize = 4 << 20;

/// A block of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) slab: u32,
    page: u16,
    pub(super) order: u8,
}

impl Piece {
    pub(super) fn bytes(self) -> usize {
        MIN_BUF << self.order
    }

    /// Where it begins in its slab.
    pub(super) fn offset(self) -> usize {
        usize::from(self.page) * MIN_BUF
    }
}

/// The slabs' data that needs no lock.
#[derive(Clone)]
pub(super) struct Mappings {
    /// Indexed by slab number. A slab stays mapped as long as the pool lives.
    slabs: Arc<[OnceLock<Arc<Mapping>>]>,
    punches: Arc<AtomicU64>,
}

impl Mappings {
    pub(super) fn new(limit_bytes: usize) -> Mappings {
        let slabs = limit_bytes.div_ceil(SLAB_BYTES).saturating_mul(MAX_SPREAD).min(MAX_SLABS);
        Mappings { slabs: (0..slabs).map(|_| OnceLock::new()).collect(), punches: Arc::default() }
    }

    pub(super) fn get(&self, number: u32) -> Option<&Arc<Mapping>> {
        self.slabs.get(number as usize)?.get()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Mapping>> {
        self.slabs.iter().map_while(OnceLock::get)
    }

    /// How often memory was punched. The holder of a block sees all earlier punches of its memory.
    pub(super) fn punches(&self) -> u64 {
        self.punches.load(Ordering::Relaxed)
    }
}

pub(super) struct Arena {
    slabs: Vec<Slab>,
    mappings: Mappings,
    limit_bytes: usize,
    /// Memory that the slabs occupy: every page used since it was last punched.
    /// `taken blocks <= touched_bytes <= limit_bytes`, while the taken blocks are within the limit.
    touched_bytes: usize,
}

impl Arena {
    pub(super) fn new(limit_bytes: usize, mappings: Mappings) -> Arena {
        Arena { slabs: Vec::new(), mappings, limit_bytes, touched_bytes: 0 }
    }

    pub(super) fn touched_bytes(&self) -> usize {
        self.touched_bytes
    }

    /// Whether everything is free and merged.
    pub(super) fn is_whole(&self) -> bool {
        self.slabs.iter().all(Slab::is_whole)
    }

    /// A block of the existing slabs; the caller ensures that all taken blocks are within the limit.
    pub(super) fn take(&mut self, order: u8) -> Option<Piece> {
        let (slab, page, new_pages) =
            self.slabs.iter_mut().zip(0..).find_map(|(slab, number)| {
                slab.take(order).map(|(page, new_pages)| (number, page, new_pages))
            })?;
        Some(self.taken(slab, page, new_pages, order))
    }

    /// The same from a new slab. `None` if the system has no memory for one.
    pub(super) fn take_of_new(&mut self, order: u8) -> Option<Piece> {
        let number = self.slabs.len();
        let place = self.mappings.slabs.get(number)?;
        let mut slab = Slab::new()
            .inspect_err(|e| {
                tracing::warn!("no memory for another slab of {SLAB_BYTES} bytes of buffers: {e}")
            })
            .ok()?;
        place.get_or_init(|| slab.mapping().clone());
        let (page, new_pages) = slab.take(order)?;
        self.slabs.push(slab);
        Some(self.taken(number as u32, page, new_pages, order))
    }

    /// Returns memory of free blocks to the system if the new block's memory would exceed the limit.
    fn taken(&mut self, slab: u32, page: usize, new_pages: usize, order: u8) -> Piece {
        self.touched_bytes += new_pages * MIN_BUF;
        let excess = self.touched_bytes.saturating_sub(self.limit_bytes);
        if excess > 0 {
            self.punch(excess.max(PUNCH_BYTES));
        }
        Piece { slab, page: page as u16, order }
    }

    pub(super) fn give(&mut self, piece: Piece) {
        self.slabs[piece.slab as usize].give(usize::from(piece.page), piece.order);
    }

    /// Returns memory of free blocks to the system, from the highest address down: `wanted` bytes, or as much as there
    /// is, or somewhat more. The result is how much it was.
    pub(super) fn punch(&mut self, wanted: usize) -> usize {
        let mut punched = 0;
        for slab in self.slabs.iter_mut().rev() {
            if punched >= wanted {
                break;
            }
            let (pages, result) = slab.punch((wanted - punched).div_ceil(MIN_BUF));
            punched += pages * MIN_BUF;
            if let Err(e) = result {
                tracing::warn!("memory of free buffers cannot be returned to the system: {e}");
                break;
            }
        }
        self.touched_bytes -= punched;
        self.mappings.punches.fetch_add(u64::from(punched > 0), Ordering::Relaxed);
        punched
    }
}
