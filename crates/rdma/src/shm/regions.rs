//! Registered regions: the table that a side publishes, and how its peer reaches into it safely.
//!
//! What: an entry per region in shared memory; the peer checks STag, rights and bounds against it before every access.
//! Spec: RFC 5040 5 and 5042 (STag checks), RFC 5041 7.2 (bounds).
//! Owns: the memory of the regions, until they are taken back. Does not: move bytes.
//!
//! An entry is `state | slab, length | offset in the slab | unused`; `state` is `STag << 32 | rights << 1 | valid`.
//!
//! Taking a region back must not return while the peer is still inside it. The peer announces what it accesses in
//! its *hazard* word: (A1) store hazard=index, (A2) full fence, (A3) look at `state` and at `ended`, access only when
//! they allow it, (A4) clear the hazard. The owner: (O1) clear `state`, (O2) full fence, (O3) wait while the hazard
//! names the region. Either A2 comes first, then O3 sees the hazard and waits for A4; or O2 comes first, then A3 sees
//! the cleared state and touches nothing. No read-modify-write, no lock, and nobody waits for an access to another
//! region. Accesses are synchronous stretches of one thread (never across an await), so the wait is at most one
//! copy long; a peer that died inside is recognised by its hung-up socket. The same protocol with `ended` instead
//! of `state` protects receive buffers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::shm::Words;
use weft_machine::{Buf, Pool, Window, rt};

use super::layout::{REGION_BITS, REGION_WORDS, REGIONS};
use crate::{Access, PostError, Refusal, Segment, Stag};

/// Looks at the hazard before the processor is offered to others: about as long as a 16 KiB copy.
const SPINS: u32 = 2_000;

const VALID: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const GENERATIONS: u32 = 1 << (32 - REGION_BITS);

/// Hazard value of an access to receive buffers rather than to a region.
const RECEIVE_HAZARD: u64 = u64::MAX;

fn index_of(stag: Stag) -> usize {
    (stag.0 & (REGIONS as u32 - 1)) as usize
}

/// The peer neither left nor died within the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stuck;

/// (O2) and (O3): waits until `hazard` is none that `waits_for` names, or `dead` says that its owner is gone; no longer
/// than `limit`.
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
        spins += 1;
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
    /// What each index holds, as far as ever used.
    slots: Vec<OwnSlot>,
    /// Indices of `slots` that hold nothing; the last taken back is reused first.
    free: Vec<u16>,
    limit: usize,
    first_generation: u32,
}

struct OwnSlot {
    stag: Stag,
    held: Option<Held>,
}

/// What a region keeps alive.
#[derive(Debug)]
pub(super) enum Held {
    /// Memory that is its owner's alone when it is taken back.
    Window(Window),
    /// Bytes that others read, too. Nobody writes them, the peer no more than we.
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

    fn entry(&self, index: usize) -> &[AtomicU64] {
        &self.entries[index * REGION_WORDS..(index + 1) * REGION_WORDS]
    }

    /// Where a buffer would lie for the peer; `None` when it is not of `pool`.
    pub(super) fn add(&mut self, pool: &Pool, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let window = buf.into_window();
        let place = window.location(pool).ok_or(PostError::Misuse("region not in the provider's pool"))?;
        let len = window.len();
        self.open(Held::Window(window), place, len, access)
    }

    /// The same with bytes that are shared, for reading.
    pub(super) fn lend(&mut self, bytes: &Bytes, place: (u32, u64)) -> Result<Segment, PostError> {
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
            Some(slot) => (slot.stag.0 >> REGION_BITS) + 1,
            None => self.first_generation,
        };
        // Generation 0 is left out, so no valid STag is a small number.
        let generation = if generation % GENERATIONS == 0 { 1 } else { generation % GENERATIONS };
        let stag = Stag(generation << REGION_BITS | index as u32);
        if self.free.pop().is_none() {
            self.slots.push(OwnSlot { stag, held: None });
        }
        let slot = &mut self.slots[index];
        slot.stag = stag;
        slot.held = Some(held);
        let entry = self.entry(index);
        entry[1].store(u64::from(slab) << 32 | u64::from(len), Ordering::Relaxed);
        entry[2].store(offset, Ordering::Relaxed);
        let rights = match access {
            Access::RemoteRead => 0,
            Access::RemoteWrite | Access::RemoteFill => WRITABLE,
        };
        entry[0].store(u64::from(stag.0) << 32 | rights | VALID, Ordering::Release);
        Ok(Segment { stag, offset: 0, len })
    }

    /// Whether `stag` is a region that has not been taken back, revoked or not.
    pub(super) fn holds(&self, stag: Stag) -> bool {
        self.slots.get(index_of(stag)).is_some_and(|slot| slot.stag == stag && slot.held.is_some())
    }

    /// Ends the peer's rights without taking the memory back: what the peer's Send with Invalidate does.
    pub(super) fn revoke(&self, stag: Stag) {
        if self.holds(stag) {
            self.entry(index_of(stag))[0].store(0, Ordering::Release);
        }
    }

    /// Takes a region back. On `Ok` the peer is outside and stays outside; on `Err` it is still inside, and the
    /// memory must be kept until it is known to be dead.
    pub(super) fn take(
        &mut self,
        stag: Stag,
        hazard: &AtomicU64,
        limit: Duration,
        dead: impl Fn() -> bool,
    ) -> Option<Result<Held, (Stuck, Held)>> {
        if !self.holds(stag) {
            return None;
        }
        let index = index_of(stag);
        self.entry(index)[0].store(0, Ordering::Release);
        let held = self.slots[index].held.take()?;
        match wait_out(hazard, limit, |hazard| hazard == index as u64 + 1, dead) {
            Ok(()) => {
                self.free.push(index as u16);
                Some(Ok(held))
            }
            Err(stuck) => Some(Err((stuck, held))),
        }
    }

    /// Everything that has not been taken back, for quarantine.
    pub(super) fn drain(&mut self) -> Vec<Held> {
        self.slots.iter_mut().filter_map(|slot| slot.held.take()).collect()
    }
}

/// Waits until the peer accesses nothing of ours at all. Our `ended` word was set before.
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
    /// The peer's table says no.
    Refused(Refusal),
    /// The peer has ended.
    Ended,
}

/// The peer's side of things, as we reach into it: its table and our hazard.
pub(super) struct Reach {
    /// Ours.
    hazard: Words,
    /// The peer's.
    ended: Words,
    /// The peer's.
    regions: Words,
}

/// What an entry of the peer's table allows: a range of one of its slabs. Not yet checked against that slab.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slab: u32,
    pub(super) offset: u64,
}

/// While this lives, the peer takes nothing back from under us.
pub(super) struct Inside<'a>(&'a AtomicU64);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Reach {
    pub(super) fn new(hazard: Words, ended: Words, regions: Words) -> Reach {
        Reach { hazard, ended, regions }
    }

    fn enter(&self, hazard: u64) -> Result<Inside<'_>, Denied> {
        self.hazard[0].store(hazard, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let inside = Inside(&self.hazard[0]);
        if self.ended[0].load(Ordering::Acquire) != 0 {
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
    ) -> Result<(Inside<'_>, Place), Denied> {
        let index = index_of(segment.stag);
        let inside = self.enter(index as u64 + 1)?;
        let entry = &self.regions[index * REGION_WORDS..(index + 1) * REGION_WORDS];
        let state = entry[0].load(Ordering::Acquire);
        if state & VALID == 0 || state >> 32 != u64::from(segment.stag.0) {
            return Err(Denied::Refused(Refusal::InvalidStag));
        }
        if (state & WRITABLE != 0) != (access == Access::RemoteWrite) {
            return Err(Denied::Refused(Refusal::Access));
        }
        let (first, start) = (entry[1].load(Ordering::Relaxed), entry[2].load(Ordering::Relaxed));
        let (slab, region_len) = ((first >> 32) as u32, first & 0xffff_ffff);
        let end = segment.offset.checked_add(len as u64);
        if end.is_none_or(|end| end > region_len) {
            return Err(Denied::Refused(Refusal::Bounds));
        }
        let offset = start.checked_add(segment.offset).ok_or(Denied::Refused(Refusal::Bounds))?;
        Ok((inside, Place { slab, offset }))
    }

    /// Send with Invalidate: ends our rights to a region of the peer. False when there is no such region.
    pub(super) fn invalidate(&self, stag: Stag) -> bool {
        let state = &self.regions[index_of(stag) * REGION_WORDS];
        let seen = state.load(Ordering::Acquire);
        let ours = seen & VALID != 0 && seen >> 32 == u64::from(stag.0);
        // The owner may be taking it back at the same moment: then it is not there any more.
        ours && state.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests;
