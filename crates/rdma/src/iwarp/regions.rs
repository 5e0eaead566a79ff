//! The region table of one connection: which STags the peer may use, for which access, and where.
//!
//! Implements RFC 5041 7.1 (checks before placement), RFC 5040 7.2, RFC 5042 6.2 and 6.3 (STags are valid on one stream
//! only and hard to guess). It owns the registered memory.
//!
//! ```text
//! STag:  | slot, 12 bits | key, 20 bits, new at each registration |
//! ```
//!
//! The peer sees a region at a random base offset, which is a multiple of the page size. A region whose STag the peer
//! has revoked keeps its slot until the owner takes its buffer.

use std::sync::Arc;

use bytes::Bytes;
use siphasher::sip::SipHasher13;
use weft_machine::Buf;

use super::terminate::Fault;
use crate::verbs::{Access, PostError, Segment, Stag};

/// Slots that 12 bits can number.
pub(super) const MAX_REGIONS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;
const KEY_BITS: u32 = 32 - SLOT_BITS;

/// The table.
pub(super) struct Regions {
    slots: Vec<Option<Region>>,
    free: Vec<u32>,
    keys: Keys,
    limit: usize,
    /// Number of fill regions ([`Access::RemoteFill`]).
    fills: usize,
}

struct Region {
    stag: Stag,
    base: u64,
    len: usize,
    memory: Memory,
    /// For a fill region, whose unwritten bytes are undefined: the end of the last byte written.
    fill: Option<usize>,
    /// The peer may still use it.
    live: bool,
}

enum Memory {
    /// For Writes of the peer.
    Writable(Buf),
    /// For Reads of the peer; responses under way hold slices of `bytes`, which share `owner`.
    Readable { owner: Arc<Buf>, bytes: Bytes },
}

/// Lets `Bytes` share a buffer that can be reclaimed later.
struct Shared(Arc<Buf>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A checked position in a region for the payload of a Write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionPosition {
    stag: Stag,
    /// First byte in the region's buffer.
    offset: usize,
}

impl RegionPosition {
    /// The position `by` bytes further on.
    pub(super) fn advanced(self, by: usize) -> RegionPosition {
        RegionPosition { offset: self.offset.saturating_add(by), ..self }
    }
}

/// What the owner gets back: the buffer, or a handle while others still refer to it.
pub(super) enum Taken {
    /// The buffer, with no other users.
    Whole(Buf),
    /// Read Responses under way still share it: call [`Lent::claim`] when none of their `Bytes` is left.
    Lent(Lent),
}

/// A buffer that Read Responses under way refer to.
pub(super) struct Lent(Arc<Buf>);

impl Lent {
    /// Whether `bytes` lie in this buffer.
    pub(super) fn holds(&self, bytes: &Bytes) -> bool {
        let own = self.0.as_ptr_range();
        own.contains(&bytes.as_ptr())
    }

    /// The buffer, once nothing else refers to it.
    pub(super) fn claim(self) -> Option<Buf> {
        Arc::try_unwrap(self.0).ok()
    }
}

impl Regions {
    pub(super) fn new(limit: usize, seed: [u64; 2]) -> Regions {
        Regions {
            slots: Vec::new(),
            free: Vec::new(),
            keys: Keys { seed, counter: 0 },
            limit: limit.min(MAX_REGIONS),
            fills: 0,
        }
    }

    /// A tag for the sink of an RDMA Read, which is no region's. No region has the same slot and key at the same time,
    /// so a Write cannot be mistaken for a response; their opcodes differ as well.
    pub(super) fn sink_tag(&mut self) -> (u32, u64) {
        let word = self.keys.next();
        (word as u32, base_of(word))
    }

    pub(super) fn register(&mut self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let len = buf.len();
        let size = u32::try_from(len).map_err(|_| PostError::Misuse("region of 4 GiB or more"))?;
        if len == 0 {
            return Err(PostError::Misuse("empty region"));
        }
        let reused = self.free.pop();
        let slot = match reused {
            Some(slot) => slot,
            None if self.slots.len() < self.limit => self.slots.len() as u32,
            None => return Err(PostError::RegionsFull(self.limit)),
        };
        let word = self.keys.next();
        let stag = Stag(slot << KEY_BITS | (word as u32 & ((1 << KEY_BITS) - 1)));
        let base = base_of(word);
        let memory = match access {
            Access::RemoteWrite | Access::RemoteFill => Memory::Writable(buf),
            Access::RemoteRead => {
                let owner = Arc::new(buf);
                Memory::Readable { bytes: Bytes::from_owner(Shared(owner.clone())), owner }
            }
        };
        let fill = (access == Access::RemoteFill).then_some(0);
        self.fills = self.fills.saturating_add(usize::from(fill.is_some()));
        let region = Some(Region { stag, base, len, memory, fill, live: true });
        match reused.and_then(|slot| self.slots.get_mut(slot as usize)) {
            Some(free) => *free = region,
            None => self.slots.push(region),
        }
        Ok(Segment { stag, offset: base, len: size })
    }

    /// Takes a region out of the table, whether the peer revoked it or not.
    pub(super) fn take(&mut self, stag: Stag) -> Option<Taken> {
        let slot = (stag.0 >> KEY_BITS) as usize;
        let entry = self.slots.get_mut(slot)?;
        let region = entry.take_if(|region| region.stag == stag)?;
        self.free.push(slot as u32);
        self.fills = self.fills.saturating_sub(usize::from(region.fill.is_some()));
        Some(match region.memory {
            Memory::Writable(buf) => Taken::Whole(buf),
            Memory::Readable { owner, bytes } => {
                drop(bytes);
                match Arc::try_unwrap(owner) {
                    Ok(buf) => Taken::Whole(buf),
                    Err(owner) => Taken::Lent(Lent(owner)),
                }
            }
        })
    }

    /// The peer's Send with Invalidate (RFC 5040 5.3).
    pub(super) fn revoke(&mut self, stag: Stag) -> Result<(), Fault> {
        let region = self.live(stag).ok_or(Fault::CannotInvalidate)?;
        region.live = false;
        Ok(())
    }

    /// Checks a Write of `len > 0` bytes at `to`, in the order of RFC 5041 7.1.
    pub(super) fn admit_write(&mut self, stag: u32, to: u64, len: usize) -> Result<RegionPosition, Fault> {
        let region = self.live(Stag(stag)).ok_or(Fault::InvalidStag)?;
        if !matches!(region.memory, Memory::Writable(_)) {
            return Err(Fault::Access);
        }
        let offset = region.range(to, len, Fault::Bounds, Fault::Wrap)?;
        Ok(RegionPosition { stag: Stag(stag), offset })
    }

    /// The bytes of an admitted position, from its byte `at` on. The region may have gone since the position was
    /// admitted.
    pub(super) fn place(&mut self, place: RegionPosition, at: usize, len: usize) -> Result<&mut [u8], Fault> {
        let region = self.live(place.stag).ok_or(Fault::InvalidStag)?;
        let Memory::Writable(buf) = &mut region.memory else { return Err(Fault::Access) };
        let start = place.advanced(at).offset;
        buf.get_mut(start..).and_then(|rest| rest.get_mut(..len)).ok_or(Fault::Bounds)
    }

    /// Whether the table has fill regions.
    pub(super) fn any_fill(&self) -> bool {
        self.fills > 0
    }

    /// Whether a position lies in a fill region.
    pub(super) fn is_fill(&mut self, place: RegionPosition) -> bool {
        self.live(place.stag).is_some_and(|region| region.fill.is_some())
    }

    /// The bytes of an admitted position have arrived, up to byte `end`.
    pub(super) fn filled(&mut self, place: RegionPosition, end: usize) {
        if let Some(high) = self.live(place.stag).and_then(|region| region.fill.as_mut()) {
            *high = (*high).max(place.advanced(end).offset);
        }
    }

    /// The unwritten bytes of a fill region behind byte `at` of a position, whose content does not matter; empty for
    /// other regions.
    pub(super) fn unfilled(&mut self, place: RegionPosition, at: usize) -> &mut [u8] {
        let start = place.advanced(at).offset;
        match self.live(place.stag) {
            Some(Region { memory: Memory::Writable(buf), fill: Some(high), .. }) if *high <= start => {
                buf.get_mut(start..).unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    /// Checks a Read of `len > 0` bytes at `to` (RFC 5040 7.2) and lends the bytes.
    pub(super) fn admit_read(&mut self, stag: u32, to: u64, len: usize) -> Result<Bytes, Fault> {
        let region = self.live(Stag(stag)).ok_or(Fault::ReadInvalidStag)?;
        let Memory::Readable { bytes, .. } = &region.memory else { return Err(Fault::ReadAccess) };
        let offset = region.range(to, len, Fault::ReadBounds, Fault::ReadWrap)?;
        let source = bytes.get(offset..).and_then(|rest| rest.get(..len)).ok_or(Fault::ReadBounds)?;
        Ok(bytes.slice_ref(source))
    }

    /// The registered regions, in the order of their slots.
    #[cfg(test)]
    pub(super) fn stags(&self) -> Vec<Stag> {
        self.slots.iter().flatten().map(|region| region.stag).collect()
    }

    fn live(&mut self, stag: Stag) -> Option<&mut Region> {
        let slot = (stag.0 >> KEY_BITS) as usize;
        self.slots.get_mut(slot)?.as_mut().filter(|region| region.live && region.stag == stag)
    }
}

impl Region {
    /// Where `[to, to + len)` begins in the buffer.
    fn range(&self, to: u64, len: usize, bounds: Fault, wrap: Fault) -> Result<usize, Fault> {
        to.checked_add(len as u64).ok_or(wrap)?;
        let offset =
            to.checked_sub(self.base).and_then(|offset| usize::try_from(offset).ok()).ok_or(bounds)?;
        let past = offset.checked_add(len).ok_or(bounds)?;
        if past <= self.len { Ok(offset) } else { Err(bounds) }
    }
}

/// A page multiple below 2^48, so that no region's length makes it wrap.
fn base_of(word: u64) -> u64 {
    (word >> 32) << 12
}

/// Tags that a peer cannot predict from those it has seen: SipHash-1-3 of a counter under a secret seed.
struct Keys {
    seed: [u64; 2],
    counter: u64,
}

impl Keys {
    fn next(&mut self) -> u64 {
        // A 64-bit counter does not run out.
        self.counter = self.counter.wrapping_add(1);
        let [k0, k1] = self.seed;
        SipHasher13::new_with_keys(k0, k1).hash(&self.counter.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::Pool;

    use super::*;

    fn buf(len: usize) -> Buf {
        let pool = Pool::new(1 << 24);
        let mut buf = pool.try_alloc(len).unwrap();
        buf.set_len(len);
        buf.fill(0xa5);
        buf
    }

    #[test]
    fn the_checks_of_rfc_5041_7_1() {
        let mut regions = Regions::new(4, [1, 2]);
        let region = regions.register(buf(100), Access::RemoteWrite).unwrap();
        let (stag, base) = (region.stag.0, region.offset);
        assert!(regions.admit_write(stag, base, 100).is_ok());
        assert!(regions.admit_write(stag, base + 99, 1).is_ok());
        assert_eq!(regions.admit_write(stag, base + 99, 2), Err(Fault::Bounds));
        assert_eq!(regions.admit_write(stag, base + 100, 1), Err(Fault::Bounds));
        assert_eq!(regions.admit_write(stag, base - 1, 1), Err(Fault::Bounds));
        assert_eq!(regions.admit_write(stag, u64::MAX, 1), Err(Fault::Wrap));
        assert_eq!(regions.admit_write(stag, u64::MAX - 3, 8), Err(Fault::Wrap));
        assert_eq!(regions.admit_write(stag ^ 1, base, 1), Err(Fault::InvalidStag));
        assert_eq!(regions.admit_write(u32::MAX, base, 1), Err(Fault::InvalidStag));
        assert_eq!(regions.admit_read(stag, base, 1), Err(Fault::ReadAccess));
        let source = regions.register(buf(100), Access::RemoteRead).unwrap();
        assert_eq!(regions.admit_write(source.stag.0, source.offset, 1), Err(Fault::Access));
        assert_eq!(regions.admit_read(source.stag.0, source.offset, 101), Err(Fault::ReadBounds));
        assert_eq!(regions.admit_read(source.stag.0, u64::MAX, 2), Err(Fault::ReadWrap));
        assert_eq!(regions.admit_read(source.stag.0, source.offset, 100).unwrap().len(), 100);
    }

    #[test]
    fn a_region_that_went_admits_nothing_and_places_nothing() {
        let mut regions = Regions::new(4, [1, 2]);
        let region = regions.register(buf(100), Access::RemoteWrite).unwrap();
        let place = regions.admit_write(region.stag.0, region.offset, 100).unwrap();
        assert!(regions.place(place, 50, 50).is_ok());
        assert_eq!(regions.place(place, 50, 51), Err(Fault::Bounds));
        regions.revoke(region.stag).unwrap();
        assert_eq!(regions.revoke(region.stag), Err(Fault::CannotInvalidate));
        assert_eq!(regions.place(place, 50, 50), Err(Fault::InvalidStag));
        assert_eq!(regions.admit_write(region.stag.0, region.offset, 1), Err(Fault::InvalidStag));
        assert!(matches!(regions.take(region.stag), Some(Taken::Whole(b)) if b.len() == 100));
        assert!(regions.take(region.stag).is_none());
        // The slot is used again, with another key.
        let again = regions.register(buf(100), Access::RemoteWrite).unwrap();
        assert_eq!(again.stag.0 >> KEY_BITS, region.stag.0 >> KEY_BITS);
        assert_ne!(again.stag, region.stag);
        assert_eq!(regions.place(place, 0, 1), Err(Fault::InvalidStag));
    }

    #[test]
    fn the_table_has_a_limit() {
        let mut regions = Regions::new(2, [1, 2]);
        let first = regions.register(buf(1), Access::RemoteRead).unwrap();
        regions.register(buf(1), Access::RemoteRead).unwrap();
        assert!(matches!(regions.register(buf(1), Access::RemoteRead), Err(PostError::RegionsFull(2))));
        regions.take(first.stag).unwrap();
        assert!(regions.register(buf(1), Access::RemoteRead).is_ok());
        assert!(matches!(regions.register(buf(0), Access::RemoteRead), Err(PostError::Misuse(_))));
    }

    #[test]
    fn a_lent_buffer_comes_back_when_the_loan_ends() {
        let mut regions = Regions::new(2, [1, 2]);
        let region = regions.register(buf(100), Access::RemoteRead).unwrap();
        let bytes = regions.admit_read(region.stag.0, region.offset + 10, 20).unwrap();
        let Some(Taken::Lent(lent)) = regions.take(region.stag) else { panic!("still lent") };
        assert!(lent.holds(&bytes));
        assert!(!lent.holds(&Bytes::from_static(b"other")));
        drop(bytes);
        assert_eq!(lent.claim().unwrap().len(), 100);
    }

    #[test]
    fn tags_do_not_repeat_soon() {
        let mut keys = Keys { seed: [3, 4], counter: 0 };
        let mut seen: Vec<u64> = (0..10_000).map(|_| keys.next()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10_000);
    }
}
