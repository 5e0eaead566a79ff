//! Registered regions: the table that a side publishes, and how its peer accesses them safely.
//!
//! Each region has an entry in shared memory; the peer checks STag, rights and bounds against it before every access.
//! The checks are those of RFC 5040 5 and 5042 (STags) and RFC 5041 7.2 (bounds). The table owns the memory of the
//! regions until they are taken back. It moves no bytes.
//!
//! An entry is `state | slab, length | offset in the slab | unused`; `state` is `STag << 32 | rights << 1 | valid`.
//!
//! Taking a region back must not return while the peer is still inside it. The peer announces its accesses in its
//! *hazard* word: (A1) store hazard=index, (A2) full fence, (A3) read `state` and `ended`, access only if they allow
//! it, (A4) clear the hazard. The owner: (O1) clears `state`, (O2) full fence, (O3) waits while the hazard names the
//! region. Either A2 comes first, then O3 sees the hazard and waits for A4; or O2 comes first, then A3 sees the cleared
//! state and accesses nothing. This needs no read-modify-write and no lock, and nobody waits for an access to another
//! region. An access is a synchronous stretch of one thread (never across an await), so the wait lasts at most one
//! copy; a peer that died during an access is recognised by its hung-up socket. The same protocol with `ended` instead
//! of `state` protects receive buffers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::shm::{Word, Words};
use weft_machine::{Buf, Pool, Window, rt};

use super::layout::{Entry, REGION_BITS, REGIONS};
use crate::{Access, PostError, Refusal, Segment, Stag};

/// Checks of the hazard before the thread yields the processor: about as long as a 16 KiB copy.
const SPINS: u32 = 2_000;

const VALID: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const GENERATIONS: u32 = 1 << (32 - REGION_BITS);

/// Hazard value of an access to receive buffers rather than to a region.
const RECEIVE_HAZARD: u64 = u64::MAX;

fn index_of(stag: Stag) -> usize {
    const MASK: u32 = REGIONS as u32 - 1;
    (stag.0 & MASK) as usize
}

/// The hazard value of an access to this region.
fn hazard_of(stag: Stag) -> u64 {
    (index_of(stag) as u64).saturating_add(1)
}

/// The entry that `stag` names, in either side's table. Tables have an entry for every index that an STag can hold.
fn entry_of(table: &Words, stag: Stag) -> Option<&Entry> {
    table.as_chunks().0.get(index_of(stag))
}

/// The peer neither finished its access nor died within the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stuck;

/// (O2) and (O3): waits until `hazard` holds no value that `waits_for` selects, or `dead` reports that its owner is
/// gone; no longer than `limit`.
fn wait_out(
    hazard: &AtomicU64,
    limit: Duration,
    waits_for: impl Fn(u64) -> bool,
    dead: impl Fn() -> bool,
) -> Result<(), Stuck> {
    fence(Ordering::SeqCst);
    let mut spins = 0u32;
    let mut deadline = None;
    loop {
        if !waits_for(hazard.load(Ordering::Acquire)) {
            return Ok(());
        }
        spins = spins.wrapping_add(1);
        if !spins.is_multiple_of(SPINS) {
            std::hint::spin_loop();
            continue;
        }
        if dead() {
            return Ok(());
        }
        let now = rt::now();
        if now >= *deadline.get_or_insert(now + limit) {
            return Err(Stuck);
        }
        // Both ends may share one core.
        std::thread::yield_now();
    }
}

/// The regions that we have opened to the peer.
pub(super) struct RegionTable {
    entries: Words,
    /// What each index holds, up to the highest ever used.
    slots: Vec<OwnSlot>,
    /// Unused indices of `slots`; the last one taken back is reused first.
    free: Vec<u16>,
    limit: usize,
    first_generation: u32,
}

struct OwnSlot {
    stag: Stag,
    held: Option<Held>,
}

/// The memory that a region keeps alive.
#[derive(Debug)]
pub(super) enum Held {
    /// Memory that returns to exclusive use when it is taken back.
    Window(Window),
    /// Bytes with other readers. Nobody writes them, neither the peer nor we.
    Lent(#[allow(dead_code, reason = "held, not looked at")] Bytes),
}

impl RegionTable {
    /// An empty table over our shared entries, for at most `limit` regions.
    pub(super) fn new(entries: Words, limit: usize) -> RegionTable {
        // STags of different connections should not coincide, so that one used on the wrong connection is refused.
        let first_generation = RandomState::new().build_hasher().finish() as u32 % GENERATIONS;
        RegionTable {
            entries,
            slots: Vec::new(),
            free: Vec::new(),
            limit: limit.min(REGIONS),
            first_generation,
        }
    }

    fn entry(&self, stag: Stag) -> Option<&Entry> {
        entry_of(&self.entries, stag)
    }

    /// Where a buffer lies for the peer; `None` if it is not of `pool`.
    pub(super) fn add(&mut self, pool: &Pool, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let window = buf.into_window();
        let place = window.location(pool).ok_or(PostError::Misuse("region not in the provider's pool"))?;
        let len = window.len();
        self.open(Held::Window(window), place, len, access)
    }

    /// The same for shared bytes, for reading.
    pub(super) fn add_shared(&mut self, bytes: &Bytes, place: (u32, u64)) -> Result<Segment, PostError> {
        self.open(Held::Lent(bytes.clone()), place, bytes.len(), Access::RemoteRead)
    }

    fn open(
        &mut self,
        held: Held,
        (slab, offset): (u32, u64),
        len: usize,
        access: Access,
    ) -> Result<Segment, PostError> {
        let len = u32::try_from(len).map_err(|_| PostError::Misuse("region longer than 4 GiB"))?;
        let index = match self.free.last() {
            Some(&index) => usize::from(index),
            None if self.slots.len() < self.limit => self.slots.len(),
            None => return Err(PostError::RegionsFull(self.limit)),
        };
        let generation = match self.slots.get(index) {
            Some(slot) => (slot.stag.0 >> REGION_BITS).saturating_add(1),
            None => self.first_generation,
        };
        // Generation 0 is skipped, so that no valid STag is a small number.
        let generation = if generation % GENERATIONS == 0 { 1 } else { generation % GENERATIONS };
        let stag = Stag(generation << REGION_BITS | index as u32);
        self.free.pop();
        let slot = OwnSlot { stag, held: Some(held) };
        match self.slots.get_mut(index) {
            Some(free) => *free = slot,
            None => self.slots.push(slot),
        }
        let [state, range, start, _] = self.entry(stag).ok_or(PostError::RegionsFull(self.limit))?;
        range.store(u64::from(slab) << 32 | u64::from(len), Ordering::Relaxed);
        start.store(offset, Ordering::Relaxed);
        let rights = match access {
            Access::RemoteRead => 0,
            Access::RemoteWrite | Access::RemoteFill => WRITABLE,
        };
        state.store(u64::from(stag.0) << 32 | rights | VALID, Ordering::Release);
        Ok(Segment { stag, offset: 0, len })
    }

    /// Whether `stag` is a region that has not been taken back; it may be revoked.
    pub(super) fn holds(&self, stag: Stag) -> bool {
        self.slots.get(index_of(stag)).is_some_and(|slot| slot.stag == stag && slot.held.is_some())
    }

    /// Ends the peer's rights without taking the memory back, as the peer's Send with Invalidate does.
    pub(super) fn revoke(&self, stag: Stag) {
        if let Some([state, ..]) = self.entry(stag).filter(|_| self.holds(stag)) {
            state.store(0, Ordering::Release);
        }
    }

    /// Takes a region back. On `Ok` the peer is outside and stays outside; on `Err` it is still inside, and the memory
    /// must be kept until it is known to be dead.
    pub(super) fn take(
        &mut self,
        stag: Stag,
        hazard: &AtomicU64,
        limit: Duration,
        dead: impl Fn() -> bool,
    ) -> Option<Result<Held, (Stuck, Held)>> {
        let [state, ..] = entry_of(&self.entries, stag)?;
        let slot = self.slots.get_mut(index_of(stag)).filter(|slot| slot.stag == stag)?;
        let held = slot.held.take()?;
        state.store(0, Ordering::Release);
        match wait_out(hazard, limit, |hazard| hazard == hazard_of(stag), dead) {
            Ok(()) => {
                self.free.push(index_of(stag) as u16);
                Some(Ok(held))
            }
            Err(stuck) => Some(Err((stuck, held))),
        }
    }

    /// All regions that were not taken back, for quarantine.
    pub(super) fn drain(&mut self) -> Vec<Held> {
        self.slots.iter_mut().filter_map(|slot| slot.held.take()).collect()
    }
}

/// Waits until the peer accesses none of our memory. Our `ended` word must have been set before.
pub(super) fn wait_outside(
    hazard: &AtomicU64,
    limit: Duration,
    dead: impl Fn() -> bool,
) -> Result<(), Stuck> {
    wait_out(hazard, limit, |hazard| hazard != 0, dead)
}

/// Why an access did not take place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The peer's table refused it.
    Refused(Refusal),
    /// The peer has ended.
    Ended,
}

/// Our view of the peer: its table, and our hazard for accesses to it.
pub(super) struct Reach {
    /// Ours.
    hazard: Word,
    /// The peer's.
    ended: Word,
    /// The peer's.
    regions: Words,
}

/// What an entry of the peer's table allows: a range of one of its slabs. It is not yet checked against that slab.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlabPosition {
    pub(super) slab: u32,
    pub(super) offset: u64,
}

/// While this lives, the peer cannot take the memory back.
pub(super) struct Inside<'a>(&'a AtomicU64);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Reach {
    pub(super) fn new(hazard: Word, ended: Word, regions: Words) -> Reach {
        Reach { hazard, ended, regions }
    }

    fn enter(&self, hazard: u64) -> Result<Inside<'_>, Denied> {
        self.hazard.store(hazard, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let inside = Inside(&self.hazard);
        if self.ended.load(Ordering::Acquire) != 0 {
            return Err(Denied::Ended);
        }
        Ok(inside)
    }

    /// Enters the peer's receive buffers.
    pub(super) fn receive_buffers(&self) -> Result<Inside<'_>, Denied> {
        self.enter(RECEIVE_HAZARD)
    }

    /// Enters the first `len` bytes of `segment`, for `access`.
    pub(super) fn region(
        &self,
        segment: Segment,
        len: usize,
        access: Access,
    ) -> Result<(Inside<'_>, SlabPosition), Denied> {
        let inside = self.enter(hazard_of(segment.stag))?;
        let entry = entry_of(&self.regions, segment.stag);
        let [state, range, start, _] = entry.ok_or(Denied::Refused(Refusal::InvalidStag))?;
        let state = state.load(Ordering::Acquire);
        if state & VALID == 0 || state >> 32 != u64::from(segment.stag.0) {
            return Err(Denied::Refused(Refusal::InvalidStag));
        }
        if (state & WRITABLE != 0) != (access == Access::RemoteWrite) {
            return Err(Denied::Refused(Refusal::Access));
        }
        let (range, start) = (range.load(Ordering::Relaxed), start.load(Ordering::Relaxed));
        let (slab, region_len) = ((range >> 32) as u32, range & 0xffff_ffff);
        let end = segment.offset.checked_add(len as u64);
        if end.is_none_or(|end| end > region_len) {
            return Err(Denied::Refused(Refusal::Bounds));
        }
        let offset = start.checked_add(segment.offset).ok_or(Denied::Refused(Refusal::Bounds))?;
        Ok((inside, SlabPosition { slab, offset }))
    }

    /// Send with Invalidate: ends our rights to a region of the peer. False when there is no such region.
    pub(super) fn invalidate(&self, stag: Stag) -> bool {
        let Some([state, ..]) = entry_of(&self.regions, stag) else { return false };
        let seen = state.load(Ordering::Acquire);
        let ours = seen & VALID != 0 && seen >> 32 == u64::from(stag.0);
        // The owner may be taking it back at the same moment; then the region is gone.
        ours && state.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests;
