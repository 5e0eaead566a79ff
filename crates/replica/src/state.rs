//! The durable state of a side of a partnership: two copies of one page, so that a torn write leaves one.
//!
//! [`crate::journal`] reads and writes the copies. Layout version 1, little-endian:
//!
//! ```text
//!   0   8  "WeftRep\0"
//!   8   4  layout version
//!  12   4  flags: 1 source, 2 consistent, 4 gave up what only it had, 8 has held a copy, 16 the log was closed empty,
//!          32 records of the log were lost, 64 records may have been sent before they were durable here, 128 its first copy
//!          was begun and never finished
//!  16   8  generation: the copy of the larger one counts; copy number = generation modulo 2
//!  24  16  partnership
//!  40   8  identity of the log
//!  48   8  life: openings of the log for writing
//!  56  24  tail of the log: position, sequence of the first record, least life of it
//!  80  24  layout: bytes of a bitmap, where the log begins in the journal, bytes of the log
//! 104  24  the latest era that has claimed this side, which it may not have adopted yet
//! 128   4  number of eras | number of volumes | number of peers | zero, a byte each
//! 132   .  eras, 24 each: epoch, tag, after
//!       .  volumes, 16 each: size, bytes of a granule
//!       .  peers, 16 and a name each: flags (1 present, 2 synchronous, 4 seeded, 8 copied, 16 unprotected,
//!          32 suspended, 64 may be gone), length of the name, 6 zero, covered
//! 3352  .  what comparisons have found, 88 for each number of a peer: when the last one ended, or zero; bytes that were compared;
//!          bytes that differed; the first 4 of these pieces, 16 each: offset, length (4; zero: none), number of the volume (2), 2 zero
//! 4056  8  last sequence that the source of this copy said that it had, at its last hello; zero where nothing was said
//! 4064  8  last sequence that the source of this copy is known to have had durable, of what is here
//! 4072 16  the source was set back: last sequence that its copy has as well, and last that the copy has; zeros where it was not.
//!          A side that gave up for that keeps them: it follows no source that has less
//! 4088  1  number of the destination that has that, plus one; zero where it is not known
//! 4092  4  CRC32C of the 4092 bytes before
//! ```
//!
//! Older versions neither read nor keep the bytes from 3352 on: to them they are part of the zeros behind the peers.
//! The rules are those of a volume's superblock: magic and version come first, the sum is last and covers everything,
//! and a write replaces the older copy. A promise goes to both copies before anything relies on it
//! (`State::promises_as`), so the copy that is left when the other is damaged does not promise less.

use weft_wire::repl::MAX_SEQUENCE;
use weft_wire::repl::control::{Era, MAX_ERAS};
use weft_wire::repl::record::MAX_MEMBERS;

use crate::bitmap::{MAX_BYTES, PAGE_BITS, PAGE_BYTES};
use crate::history;
use crate::status::{Differs, Mode, Role, Verified};

/// Bytes of one copy.
pub const COPY_BYTES: usize = 4096;
/// The version that this module writes.
pub const VERSION: u32 = 1;
/// The most destinations of one source.
pub const MAX_PEERS: usize = 8;
/// The longest name of a peer, bytes.
pub const MAX_NAME: usize = 128;

const BITMAPS_AT: u64 = 2 * COPY_BYTES as u64;
const MAGIC: [u8; 8] = *b"WeftRep\0";
const SUM_AT: usize = COPY_BYTES - 4;
const CLAIM_AT: usize = 4056;
const FOUND_BYTES: usize = 24 + 16 * Verified::MOST_FIRST;
const FOUND_AT: usize = CLAIM_AT - MAX_PEERS * FOUND_BYTES;
const CLAIM_BYTES: usize = 33;
// Counts and lengths take a byte each.
const _: () = assert!(MAX_ERAS < 256 && MAX_MEMBERS < 256 && MAX_PEERS < 256 && MAX_NAME < 256);

/// The durable state of a side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Counts the writes.
    pub generation: u64,
    /// The identity of the partnership.
    pub partnership: [u8; 16],
    /// The role.
    pub role: Role,
    /// Whether the volumes, with the log applied, hold a state that a source's once had.
    pub consistent: bool,
    /// It was a source, and records that only it has may be overwritten.
    pub gave_up: bool,
    /// Whether it has ever held anything of the partnership.
    pub holds: bool,
    /// Its log was closed empty, and nothing was placed in it since.
    pub closed: bool,
    /// Its log has lost records that may have been applied: until a resync, nobody can name what they changed.
    pub damaged: bool,
    /// It is a source that may have sent records before they were durable in its own log: the next opening begins an
    /// era.
    pub ahead: bool,
    /// Its first copy was begun and never finished: a source that believes it finished means another copy.
    pub unfinished: bool,
    /// The last sequence here that its source is known to have had durable: a source that has less was set back.
    pub claimed: u64,
    /// The last sequence that its source reported. As long as this side lacks it, answered writes may be missing.
    pub told: u64,
    /// A source that was set back, as a destination has found: the last sequence that both have, and the last one of
    /// the destination. Somebody has to decide. A side that gave up because of that follows no source that has less.
    pub set_back: Option<(u64, u64)>,
    /// The number of that destination.
    pub set_back_by: Option<u8>,
    /// The identity of the log.
    pub log: u64,
    /// Openings of the log.
    pub life: u64,
    /// Where the log begins.
    pub tail: Tail,
    /// The layout of the journal.
    pub layout: Layout,
    /// The latest source that has claimed it.
    pub promised: Era,
    /// The history of its records; never empty.
    pub eras: Vec<Era>,
    /// Its volumes.
    pub members: Vec<Member>,
    /// Its destinations, by number; `None` where one was removed.
    pub peers: Vec<Option<PeerState>>,
}

/// Where a log begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Position in the ring.
    pub position: u64,
    /// The sequence of the first record.
    pub sequence: u64,
    /// The least life of that record.
    pub life: u64,
}

/// The layout of a journal. Bitmaps begin behind the two copies of the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of one bitmap.
    pub bitmap_bytes: u64,
    /// Where the ring begins.
    pub log_at: u64,
    /// Its length.
    pub log_bytes: u64,
}

impl Layout {
    /// The position in the ring at this distance from its beginning.
    pub(crate) fn place(self, at: u64) -> u64 {
        at.checked_rem(self.log_bytes).unwrap_or(0)
    }

    /// Where the journal ends.
    pub(crate) fn end(self) -> u64 {
        self.log_at.saturating_add(self.log_bytes)
    }

    /// Bytes from a position to the end of the ring.
    pub(crate) fn to_end(self, at: u64) -> u64 {
        self.log_bytes.saturating_sub(at)
    }
}

/// The offset of the bitmap for a peer and a volume, in a group of this many volumes.
pub(crate) fn bitmap_at(bitmap_bytes: u64, members: usize, peer: usize, member: usize) -> u64 {
    let before = peer.saturating_mul(members).saturating_add(member) as u64;
    before.saturating_mul(bitmap_bytes).saturating_add(BITMAPS_AT)
}

/// A volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Bytes that are replicated: at most those of the volume.
    pub size: u64,
    /// Bytes that one bit of its bitmaps stands for: a power of two.
    pub granule: u64,
}

impl Member {
    /// Pages of one of its bitmaps.
    pub fn pages(&self) -> u64 {
        self.size.div_ceil(self.granule.max(1)).div_ceil(PAGE_BITS)
    }

    /// The same volume with another size: with coarser granules if a bitmap of `bitmap_bytes` has no room for its bits.
    pub fn resized(self, size: u64, bitmap_bytes: u64) -> Member {
        let mut member = Member { size, ..self };
        while member.pages().saturating_mul(PAGE_BYTES as u64) > bitmap_bytes
            && let Some(coarser) = member.granule.checked_mul(2)
        {
            member.granule = coarser;
        }
        member
    }
}

/// A destination, as its source remembers it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerState {
    /// Its name, as the caller gave it.
    pub name: String,
    /// When writes are answered.
    pub mode: Mode,
    /// Whether its first copy is made by comparing checksums.
    pub seeded: bool,
    /// Whether its first copy was finished.
    pub copied: bool,
    /// Whether writes may have been answered that it does not have.
    pub unprotected: bool,
    /// Whether it is suspended.
    pub suspended: bool,
    /// Whether this source goes on although the destination says that it does not know the partnership: it has said so
    /// before, or has never followed this source.
    pub may_be_gone: bool,
    /// Bitmaps and log bring it up to date if it has everything up to here.
    pub covered: u64,
    /// The result of the last comparison, unless a new copy was made since.
    pub verified: Option<Verified>,
}

/// Why a copy of the state is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damaged {
    /// No magic number.
    #[error("it is no journal of a replica")]
    Magic,
    /// The checksum is wrong.
    #[error("its checksum does not fit: it was damaged, or written in part")]
    Sum,
    /// A layout that this program does not know.
    #[error("its layout has version {0}, which this program is too old for")]
    Version(u32),
    /// The journal is shorter than it says.
    #[error("it has {has} bytes of {needs}: its log was cut off")]
    Short {
        /// Its length.
        has: u64,
        /// Its length with the log.
        needs: u64,
    },
    /// A field is out of range under a right checksum.
    #[error("{0} makes no sense")]
    Field(&'static str),
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (front, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged::Field("a count"))?;
        self.0 = rest;
        Ok(*front)
    }

    fn u64(&mut self) -> Result<u64, Damaged> {
        self.take().map(u64::from_le_bytes)
    }

    fn era(&mut self) -> Result<Era, Damaged> {
        Ok(Era { epoch: self.u64()?, tag: self.u64()?, after: self.u64()? })
    }
}

fn flags(bits: &[bool]) -> u32 {
    bits.iter().enumerate().map(|(n, on)| u32::from(*on) << n).sum()
}

fn emit_found(found: &Verified) -> [u8; FOUND_BYTES] {
    let mut out = Vec::with_capacity(FOUND_BYTES);
    [found.at_ms, found.bytes, found.different].iter().for_each(|word| out.extend(word.to_le_bytes()));
    for piece in found.first.iter().take(Verified::MOST_FIRST) {
        out.extend(piece.offset.to_le_bytes());
        out.extend(u32::try_from(piece.len).unwrap_or(u32::MAX).to_le_bytes());
        out.extend((piece.member as u16).to_le_bytes());
        out.extend([0; 2]);
    }
    let mut bytes = [0; FOUND_BYTES];
    bytes.iter_mut().zip(&out).for_each(|(to, from)| *to = *from);
    bytes
}

fn parse_found(bytes: &[u8]) -> Result<Option<Verified>, Damaged> {
    let mut r = Reader(bytes);
    let mut found = Verified { at_ms: r.u64()?, bytes: r.u64()?, different: r.u64()?, first: Vec::new() };
    for _ in 0..Verified::MOST_FIRST {
        let (offset, len) = (r.u64()?, u32::from_le_bytes(r.take()?));
        let [low, high, ..] = r.take::<4>()?;
        if len > 0 {
            let member = u16::from_le_bytes([low, high]).into();
            found.first.push(Differs { member, offset, len: len.into() });
        }
    }
    Ok((found.at_ms > 0).then_some(found))
}

impl State {
    /// The current era.
    pub fn era(&self) -> Era {
        self.eras.last().copied().unwrap_or(Era { epoch: 0, tag: 0, after: 0 })
    }

    /// The current era, if it began because the end of the log may have been lost.
    pub fn restarted(&self) -> Option<Era> {
        match self.eras.last_chunk::<2>() {
            Some([before, era]) if before.epoch == era.epoch => Some(*era),
            _ => None,
        }
    }

    /// Forgets that somebody had more records than this side.
    pub fn forget_set_back(&mut self) {
        (self.set_back, self.set_back_by) = (None, None);
    }

    /// The sequence behind which a side whose log begins with record `first` can name every range that its records
    /// have changed: by its log, and if it has given up as a source, by the bitmaps of its destinations as well. They do
    /// not name what a side has received as a destination; one that gives up as such stays consistent.
    pub fn names_behind(&self, first: u64) -> u64 {
        let bitmaps = self.gave_up && !self.consistent;
        let covered = self.peers.iter().flatten().map(|peer| peer.covered).filter(|_| bitmaps);
        covered.fold(first.saturating_sub(1), u64::min)
    }

    /// The last record that a source must have before this side follows it: this side was set back, and a copy has that
    /// record.
    pub fn floor(&self) -> Option<u64> {
        let (_, copy) = self.set_back?;
        (self.role == Role::Destination && self.gave_up).then_some(copy)
    }

    /// The name of the destination that has found that this side was set back.
    pub fn set_back_by_name(&self) -> Option<&str> {
        let peer = self.peers.get(usize::from(self.set_back_by?))?.as_ref()?;
        Some(&peer.name)
    }

    /// Sets the sizes of the volumes.
    pub fn resize(&mut self, sizes: &[u64]) {
        for (member, size) in self.members.iter_mut().zip(sizes) {
            *member = member.resized(*size, self.layout.bitmap_bytes);
        }
    }

    /// Begins an era, and forgets one if there are too many. Earlier eras end where it begins: a copy that has not
    /// reached an era that it knows has no record of it.
    pub fn push_era(&mut self, era: Era) {
        self.eras.iter_mut().for_each(|earlier| earlier.after = earlier.after.min(era.after));
        self.eras.push(era);
        while self.eras.len() > MAX_ERAS {
            self.forget_era();
        }
    }

    /// Begins an era for the opening of a source, behind its last record `after`; `lost_nothing`: it has every record
    /// that it may have sent. The era tells later records from those of another opening, should this side be set back.
    pub(crate) fn open_era(&mut self, draw: u64, after: u64, lost_nothing: bool) -> Era {
        let tag = history::opening_tag(draw, self.life, lost_nothing);
        let era = Era { epoch: self.era().epoch, tag, after };
        self.push_era(era);
        era
    }

    /// Chooses the era to forget. The first era of an epoch stays as long as possible: a side that was away while a
    /// source was reopened many times knows at least that one. The era behind the forgotten one then begins where that
    /// did, so that no side is taken to share more of this history than it does.
    fn forget_era(&mut self) {
        let same_epoch = |pair: &[Era]| matches!(pair, [a, b] if a.epoch == b.epoch);
        // Not the last one, which is the current era.
        let earlier = self.eras.split_last().map_or(&[][..], |(_, earlier)| earlier);
        match earlier.windows(2).position(same_epoch) {
            Some(first) => {
                let second = first.saturating_add(1);
                let forgotten = self.eras.remove(second);
                if let Some(next) = self.eras.get_mut(second) {
                    next.after = next.after.min(forgotten.after);
                }
            }
            None => {
                self.eras.remove(0);
            }
        }
    }

    /// Whether it promises the same as `before`: it differs only in the progress of replication, which is the tail of
    /// the log, *covered* of destinations, and *claimed*. An older copy that lacks progress loses nothing silently.
    /// Every other field is a promise that others rely on.
    pub(crate) fn promises_as(&self, before: &State) -> bool {
        let mut same = State {
            generation: before.generation,
            tail: before.tail,
            claimed: before.claimed,
            ..self.clone()
        };
        if self.tail != before.tail {
            // Records have left the log. A resync, which clears bits, leaves the tail where it is.
            for (peer, earlier) in same.peers.iter_mut().zip(&before.peers) {
                if let (Some(peer), Some(earlier)) = (peer, earlier) {
                    peer.covered = earlier.covered;
                }
            }
        }
        same == *before
    }

    /// The bytes of one copy.
    ///
    /// # Panics
    /// If a limit is exceeded, which is checked when elements are added.
    pub fn emit(&self) -> [u8; COPY_BYTES] {
        assert!(
            self.eras.len() <= MAX_ERAS && self.members.len() <= MAX_MEMBERS && self.peers.len() <= MAX_PEERS
        );
        let mut out = Vec::with_capacity(COPY_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        let source = self.role == Role::Source;
        let bits = [
            source,
            self.consistent,
            self.gave_up,
            self.holds,
            self.closed,
            self.damaged,
            self.ahead,
            self.unfinished,
        ];
        out.extend(flags(&bits).to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.partnership);
        let words = |out: &mut Vec<u8>, words: &[u64]| words.iter().for_each(|w| out.extend(w.to_le_bytes()));
        let Tail { position, sequence, life } = self.tail;
        words(&mut out, &[self.log, self.life, position, sequence, life]);
        words(&mut out, &[self.layout.bitmap_bytes, self.layout.log_at, self.layout.log_bytes]);
        words(&mut out, &[self.promised.epoch, self.promised.tag, self.promised.after]);
        out.extend([self.eras.len(), self.members.len(), self.peers.len(), 0].map(|n| n as u8));
        self.eras.iter().for_each(|era| words(&mut out, &[era.epoch, era.tag, era.after]));
        self.members.iter().for_each(|member| words(&mut out, &[member.size, member.granule]));
        for peer in &self.peers {
            let Some(p) = peer else {
                out.extend([0; 16]);
                continue;
            };
            assert!(p.name.len() <= MAX_NAME);
            let synchronous = p.mode == Mode::Synchronous;
            let bits = [true, synchronous, p.seeded, p.copied, p.unprotected, p.suspended, p.may_be_gone];
            out.extend([flags(&bits) as u8, p.name.len() as u8, 0, 0, 0, 0, 0, 0]);
            out.extend(p.covered.to_le_bytes());
            out.extend(p.name.as_bytes());
        }
        assert!(out.len() <= FOUND_AT, "a state of {} bytes", out.len());
        out.resize(FOUND_AT, 0);
        for n in 0..MAX_PEERS {
            let found = self.peers.get(n).and_then(|peer| peer.as_ref()?.verified.as_ref());
            out.extend(found.map_or([0; FOUND_BYTES], emit_found));
        }
        let (both, copy) = self.set_back.unwrap_or_default();
        words(&mut out, &[self.told, self.claimed, both, copy]);
        out.push(self.set_back_by.map_or(0, |n| n.saturating_add(1)));
        let mut bytes = [0; COPY_BYTES];
        let (content, sum) = bytes.split_at_mut(SUM_AT);
        content.iter_mut().zip(&out).for_each(|(to, from)| *to = *from);
        sum.copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
        bytes
    }

    /// Reads one copy.
    pub fn parse(bytes: &[u8; COPY_BYTES]) -> Result<State, Damaged> {
        let (content, sum) = bytes.split_at(SUM_AT);
        let mut r = Reader(content);
        if r.take()? != MAGIC {
            return Err(Damaged::Magic);
        }
        if sum != crc32c::crc32c(content).to_le_bytes() {
            return Err(Damaged::Sum);
        }
        let version = u32::from_le_bytes(r.take()?);
        if version != VERSION {
            return Err(Damaged::Version(version));
        }
        let flags = u32::from_le_bytes(r.take()?);
        if flags >= 256 {
            return Err(Damaged::Field("its flags"));
        }
        let (generation, partnership, log, life) = (r.u64()?, r.take()?, r.u64()?, r.u64()?);
        let tail = Tail { position: r.u64()?, sequence: r.u64()?, life: r.u64()? };
        let layout = Layout { bitmap_bytes: r.u64()?, log_at: r.u64()?, log_bytes: r.u64()? };
        let promised = r.era()?;
        let [eras, members, peers, _] = r.take::<4>()?.map(usize::from);
        if eras == 0 || eras > MAX_ERAS || members == 0 || members > MAX_MEMBERS || peers > MAX_PEERS {
            return Err(Damaged::Field("a count"));
        }
        let eras = (0..eras).map(|_| r.era()).collect::<Result<Vec<_>, _>>()?;
        let members = (0..members).map(|_| {
            let member = Member { size: r.u64()?, granule: r.u64()? };
            let sane = member.granule.is_power_of_two() && member.size > 0;
            sane.then_some(member).ok_or(Damaged::Field("a volume"))
        });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let peers = (0..peers).map(|_| {
            let [flags, len, ..] = r.take::<8>()?;
            let covered = r.u64()?;
            let (name, rest) =
                r.0.split_at_checked(len.into()).ok_or(Damaged::Field("the name of a peer"))?;
            r.0 = rest;
            if flags & 1 == 0 {
                return Ok(None);
            }
            let bit = |n: u8| flags & (1 << n) != 0;
            Ok(Some(PeerState {
                name: std::str::from_utf8(name).map_err(|_| Damaged::Field("the name of a peer"))?.to_owned(),
                mode: if bit(1) { Mode::Synchronous } else { Mode::Asynchronous },
                seeded: bit(2),
                copied: bit(3),
                unprotected: bit(4),
                suspended: bit(5),
                may_be_gone: bit(6),
                covered,
                verified: None,
            }))
        });
        let mut peers = peers.collect::<Result<Vec<_>, _>>()?;
        if tail.sequence == 0 || tail.sequence > MAX_SEQUENCE + 1 {
            return Err(Damaged::Field("the tail of its log"));
        }
        let bitmaps_end = bitmap_at(layout.bitmap_bytes, members.len(), MAX_PEERS, 0);
        let fits = layout.bitmap_bytes <= MAX_BYTES
            && bitmaps_end <= layout.log_at
            && layout.log_at.checked_add(layout.log_bytes).is_some()
            && members
                .iter()
                .all(|member| member.pages().saturating_mul(PAGE_BYTES as u64) <= layout.bitmap_bytes);
        if !fits || tail.position >= layout.log_bytes {
            return Err(Damaged::Field("its layout"));
        }
        let found = content.get(FOUND_AT..CLAIM_AT).unwrap_or_default();
        for (peer, found) in peers.iter_mut().zip(found.chunks_exact(FOUND_BYTES)) {
            if let Some(peer) = peer {
                peer.verified = parse_found(found)?;
            }
        }
        let (_, mut claim) = content.split_at(CLAIM_AT);
        claim = claim.get(..CLAIM_BYTES).unwrap_or_default();
        let mut r = Reader(claim);
        let (told, claimed, both, copy) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let [by] = r.take()?;
        if told.max(claimed) > MAX_SEQUENCE || copy > MAX_SEQUENCE || both > copy {
            return Err(Damaged::Field("what its source had"));
        }
        Ok(State {
            generation,
            partnership,
            role: if flags & 1 != 0 { Role::Source } else { Role::Destination },
            consistent: flags & 2 != 0,
            gave_up: flags & 4 != 0,
            holds: flags & 8 != 0,
            closed: flags & 16 != 0,
            damaged: flags & 32 != 0,
            ahead: flags & 64 != 0,
            unfinished: flags & 128 != 0,
            claimed,
            told,
            set_back: (copy > 0).then_some((both, copy)),
            set_back_by: by.checked_sub(1).filter(|_| copy > 0),
            log,
            life,
            tail,
            layout,
            promised,
            eras,
            members,
            peers,
        })
    }

    /// Chooses the valid copy with the larger generation.
    pub fn latest(first: &[u8; COPY_BYTES], second: &[u8; COPY_BYTES]) -> Result<State, Damaged> {
        match (State::parse(first), State::parse(second)) {
            (Err(e @ Damaged::Version(_)), _) | (_, Err(e @ Damaged::Version(_))) => Err(e),
            (Ok(a), Ok(b)) => Ok(if a.generation > b.generation { a } else { b }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            // Report the more specific reason of the two.
            (Err(Damaged::Magic), Err(e)) | (Err(e), Err(_)) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(generation: u64) -> State {
        let peer = PeerState {
            name: "b.example:vol1".into(),
            mode: Mode::Synchronous,
            seeded: true,
            copied: false,
            unprotected: true,
            suspended: false,
            may_be_gone: true,
            covered: 99,
            verified: None,
        };
        State {
            generation,
            partnership: *b"0123456789abcdef",
            role: Role::Source,
            consistent: true,
            gave_up: false,
            holds: true,
            closed: true,
            damaged: true,
            ahead: false,
            unfinished: false,
            claimed: 0,
            told: 0,
            set_back: None,
            set_back_by: None,
            log: 1,
            life: 2,
            tail: Tail { position: 512, sequence: 4, life: 5 },
            layout: Layout { bitmap_bytes: 4096, log_at: 4 << 20, log_bytes: 1 << 20 },
            promised: Era { epoch: 2, tag: 3, after: 0 },
            eras: vec![Era { epoch: 1, tag: 7, after: 0 }, Era { epoch: 2, tag: 8, after: 40 }],
            members: vec![Member { size: 1 << 30, granule: 65536 }],
            peers: vec![None, Some(peer)],
        }
    }

    #[test]
    fn the_layout_is_what_it_was() {
        let bytes = state(0x0102).emit();
        assert_eq!(&bytes[..24], b"WeftRep\0\x01\0\0\0\x3b\0\0\0\x02\x01\0\0\0\0\0\0");
        assert_eq!(&bytes[24..48], b"0123456789abcdef\x01\0\0\0\0\0\0\0");
        assert_eq!(&bytes[128..132], b"\x02\x01\x02\0");
        assert!(bytes[FOUND_AT..SUM_AT].iter().all(|byte| *byte == 0));
        assert_eq!(State::parse(&bytes), Ok(state(0x0102)));
        let mut compared = state(1);
        let first = vec![Differs { member: 3, offset: 0x66, len: 0x77 }];
        let found = Verified { at_ms: 0x33, bytes: 0x44, different: 0x55, first };
        compared.peers[1].as_mut().expect("a peer").verified = Some(found);
        let bytes = compared.emit();
        assert_eq!(&bytes[3440..3464], b"\x33\0\0\0\0\0\0\0\x44\0\0\0\0\0\0\0\x55\0\0\0\0\0\0\0");
        assert_eq!(&bytes[3464..3480], b"\x66\0\0\0\0\0\0\0\x77\0\0\0\x03\0\0\0");
        assert_eq!(State::parse(&bytes), Ok(compared));
        let claims = State {
            told: 0x44,
            claimed: 0x11,
            set_back: Some((0x22, 0x33)),
            set_back_by: Some(4),
            ..state(1)
        };
        let bytes = claims.emit();
        assert_eq!(&bytes[4056..4064], b"\x44\0\0\0\0\0\0\0");
        assert_eq!(&bytes[4064..4088], b"\x11\0\0\0\0\0\0\0\x22\0\0\0\0\0\0\0\x33\0\0\0\0\0\0\0");
        assert_eq!(State::parse(&bytes), Ok(claims));
    }

    #[test]
    fn an_era_that_was_not_reached_ends_where_the_next_begins() {
        let mut state = state(1);
        assert_eq!(state.restarted(), None);
        state.push_era(Era { epoch: 3, tag: 9, after: 30 });
        let after: Vec<u64> = state.eras.iter().map(|era| era.after).collect();
        assert_eq!(after, [0, 30, 30]);
        let again = Era { epoch: 3, tag: 10, after: 35 };
        state.push_era(again);
        (state.ahead, state.damaged, state.unfinished) = (true, false, true);
        assert_eq!(state.restarted(), Some(again));
        assert_eq!(State::parse(&state.emit()), Ok(state));
    }

    #[test]
    fn openings_are_told_apart() {
        let mut state = state(1);
        let opened = state.open_era(5, 40, true);
        assert!(history::lost_nothing(&opened) && state.eras.len() == 3);
        let again = state.open_era(6, 40, false);
        assert!(!history::lost_nothing(&again) && state.eras.len() == 4);
        assert_eq!((state.era(), again.epoch, again.after), (again, opened.epoch, 40));
    }

    #[test]
    fn of_too_many_eras_the_first_of_an_epoch_stays_and_what_is_forgotten_counts_as_lost() {
        let mut state = state(1);
        state.eras = vec![Era { epoch: 1, tag: 100, after: 0 }];
        for n in 0..80 {
            state.push_era(Era { epoch: 1 + n / 40, tag: n, after: 10 * n });
        }
        assert_eq!(state.eras.len(), MAX_ERAS);
        let firsts: Vec<_> = state.eras.iter().map(|era| (era.epoch, era.tag)).take(3).collect();
        // The first of epoch 2 is that of tag 40.
        assert_eq!(firsts, [(1, 100), (2, 40), (2, 80 - 30)]);
        // What a copy of the first era alone has behind 0, where the second began, is not of this history.
        assert_eq!(state.eras[1].after, 0);
        // Between the first of epoch 2 and those that are remembered lies the first that was forgotten.
        assert_eq!(state.eras[2].after, 410);
        assert!(state.eras.is_sorted_by_key(|era| era.after));
        assert_eq!(state.era(), Era { epoch: 2, tag: 79, after: 790 });
    }

    #[test]
    fn a_torn_write_leaves_the_older_copy() {
        let (old, new) = (state(6), state(7));
        let (kept, whole) = (old.emit(), new.emit());
        for below in [state(5).emit(), [0; COPY_BYTES], [0xa5; COPY_BYTES]] {
            for cut in 0..COPY_BYTES {
                let mut torn = below;
                torn[..cut].copy_from_slice(&whole[..cut]);
                let expected = if torn == whole { &new } else { &old };
                assert_eq!(State::latest(&kept, &torn).as_ref(), Ok(expected), "cut at {cut}");
            }
        }
        assert_eq!(State::latest(&kept, &whole), Ok(new));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let whole = state(3).emit();
        for bit in 0..8 * COPY_BYTES {
            let mut damaged = whole;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(State::parse(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_layout_that_makes_no_sense_is_refused() {
        let ruin: [fn(&mut State); 6] = [
            |state| state.layout.bitmap_bytes = 1 << 40,
            |state| state.layout.log_at = 8192,
            |state| state.layout.log_bytes = u64::MAX,
            |state| state.tail.position = 1 << 20,
            // Bitmaps of them would take more than they have.
            |state| state.members[0].granule = 1,
            |state| state.members[0].size = u64::MAX,
        ];
        for (number, ruin) in ruin.iter().enumerate() {
            let mut state = state(1);
            ruin(&mut state);
            assert_eq!(State::parse(&state.emit()), Err(Damaged::Field("its layout")), "number {number}");
        }
    }

    #[test]
    fn the_fullest_state_fits() {
        let mut full = state(1);
        let piece = Differs { member: MAX_MEMBERS - 1, offset: u64::MAX, len: u32::MAX.into() };
        let first = vec![piece; Verified::MOST_FIRST];
        let verified = Some(Verified { at_ms: u64::MAX, bytes: u64::MAX, different: u64::MAX, first });
        let name = "x".repeat(MAX_NAME);
        let peer = PeerState { name, verified, ..full.peers[1].clone().expect("a peer") };
        full.peers = vec![Some(peer); MAX_PEERS];
        full.members = vec![full.members[0]; MAX_MEMBERS];
        (0..2 * MAX_ERAS as u64).for_each(|n| full.push_era(Era { epoch: 3 + n, tag: n, after: 41 }));
        assert_eq!(full.eras.len(), MAX_ERAS);
        assert_eq!(State::parse(&full.emit()), Ok(full));
    }
}
