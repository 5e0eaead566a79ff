//! Copies blocks, bypassing the log: the first copy, the ranges in the bitmap, and comparison by checksums. `session`
//! decides when a copy is needed.
//!
//! Dirty ranges are copied in order, a stretch at a time: its pieces travel concurrently, then a barrier makes them
//! durable, and only then are its bits cleared. A hole travels as a message. Writes to the range of a piece are held
//! back until the destination has it, so a transport may read the volume late. If a volume returns a range of its file,
//! the payload is not read here: the transport moves it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use weft_machine::{Payload, rt};
use weft_store::block::{BlockOp, Extent, Outcome};

use super::Source;
use super::session::End;
use crate::digest::digests;
use crate::error::Error;
use crate::peer::Link;
use crate::status::{Differs, Mode, Phase, Verified};

/// Bytes of one piece.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes under one checksum.
pub(super) const CHECK_BYTES: u32 = 64 << 10;
/// Bytes between two barriers.
const STRETCH_BYTES: u64 = 256 << 20;
/// The longest range that is searched for holes at a time, and locked as one hole.
const LOOK_BYTES: u64 = 64 << 20;
/// Extents of one status request to a volume.
const EXTENTS: usize = 256;

/// An extent of a volume, as it was when asked for. More extents are asked for than the next ranges need, because a
/// file system may have to walk the whole extent for each request.
struct Seen {
    member: usize,
    range: Range<u64>,
    hole: bool,
}

/// A part of a stretch.
struct Piece {
    member: usize,
    range: Range<u64>,
    /// It was a hole when the volume was asked.
    hole: bool,
}

impl Source {
    /// Makes the destination equal, then waits until a range has to be copied again.
    pub(super) async fn resync(&self, n: usize, link: Link<'_>) -> Result<Infallible, End> {
        let (compare, is_whole) = {
            let core = self.core();
            let (partner, _) = core.peer(n)?;
            let compare = partner.phase == Phase::SeededCopy;
            (compare, compare || partner.phase == Phase::InitialBlockCopy)
        };
        let needed = self.core().peer(n).map(|(partner, _)| !partner.consistent)?;
        if needed {
            let mut seen = VecDeque::new();
            while let Some((stretch, pieces)) = self.stretch(n, &mut seen).await? {
                self.copy(n, link, pieces, compare).await?;
                // Flushing may take a slow disk longer than the answer to anything else. The beats of this session find out
                // whether the destination is still there.
                link.barrier().await?;
                self.on_peer(n, |partner, _| {
                    for (member, range) in stretch {
                        if let Some(map) = partner.maps.get_mut(member) {
                            map.finish(range);
                        }
                    }
                });
                self.persist_bitmaps().await?;
            }
            self.finish(n, link, is_whole).await?;
        }
        // A range that is marked from now on needs another resync, which both sides have to begin.
        let marked = self.owner.until(|| {
            let core = self.core();
            core.peer(n).map_or(Some(()), |(p, _)| (!p.is_clean() && !p.comparing).then_some(()))
        });
        marked.await;
        Err(End::Again)
    }

    /// Ends the copy: the destination is consistent when it has every record that the copied blocks may contain. If the
    /// copy `is_whole`, and not only of the bitmap, the findings of an earlier comparison are void.
    async fn finish(&self, n: usize, link: Link<'_>, is_whole: bool) -> Result<(), End> {
        let at = self.log.fill().last;
        let arrived = self.owner.until(|| {
            let core = self.core();
            core.peer(n).map_or(Some(()), |(partner, _)| (partner.acked >= at).then_some(()))
        });
        arrived.await;
        self.in_time(link.finish(at)).await?;
        let finished = |state: &mut crate::state::State| {
            if let Some(Some(peer)) = state.peers.get_mut(n) {
                peer.copied = true;
                // Writes are answered without it until it has caught up.
                peer.unprotected |= peer.mode == Mode::Synchronous;
                if is_whole {
                    peer.verified = None;
                }
            }
        };
        self.persist(finished).await?;
        self.on_peer(n, |partner, _| partner.consistent = true);
        self.caught_up(n);
        self.protect(n).await?;
        Ok(())
    }

    /// Takes the next dirty ranges to be copied, and cuts them into pieces.
    #[allow(clippy::type_complexity)]
    async fn stretch(
        &self,
        n: usize,
        seen: &mut VecDeque<Seen>,
    ) -> Result<Option<(Vec<(usize, Range<u64>)>, Vec<Piece>)>, End> {
        let ranges = self.on_peer(n, |partner, _| {
            let (mut ranges, mut bytes) = (Vec::new(), 0);
            for (member, map) in partner.maps.iter_mut().enumerate() {
                let mut from = 0;
                while bytes < STRETCH_BYTES {
                    let Some(range) = map.start(from, LOOK_BYTES) else { break };
                    bytes = len(&range).saturating_add(bytes);
                    from = range.end;
                    ranges.push((member, range));
                }
            }
            ranges
        });
        let ranges = ranges.ok_or(Error::NoPeer(n))?;
        if ranges.is_empty() {
            return Ok(None);
        }
        let mut pieces = Vec::new();
        for (member, range) in &ranges {
            // These holes may be outdated, and serve to cut pieces only: each hole is checked again under its lock. A
            // newer hole travels as zeros.
            for (part, hole) in self.parts(*member, range.clone(), seen).await? {
                let step = if hole { len(&part) } else { PIECE_BYTES };
                let mut at = part.start;
                while at < part.end {
                    let end = at.saturating_add(step).min(part.end);
                    pieces.push(Piece { member: *member, range: at..end, hole });
                    at = end;
                }
            }
        }
        Ok(Some((ranges, pieces)))
    }

    /// Data and holes of a range, as of the last request to the volume.
    async fn parts(
        &self,
        member: usize,
        range: Range<u64>,
        seen: &mut VecDeque<Seen>,
    ) -> Result<Vec<(Range<u64>, bool)>, Error> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            // Earlier extents are seldom needed again.
            while seen.front().is_some_and(|part| part.member != member || part.range.end <= at) {
                seen.pop_front();
            }
            match seen.front() {
                Some(part) if part.range.contains(&at) => {
                    let end = part.range.end.min(range.end);
                    parts.push((at..end, part.hole));
                    at = end;
                }
                _ => {
                    let size = self.size(member);
                    let mut from = at;
                    let found = self.some_extents(member, at..size).await?;
                    *seen = found
                        .into_iter()
                        .map(|extent| {
                            let range = from..from.saturating_add(extent.len);
                            from = range.end;
                            Seen { member, range, hole: extent.hole }
                        })
                        .collect();
                }
            }
        }
        Ok(parts)
    }

    /// Data and holes from the start of a range on, at least one and at most [`EXTENTS`].
    async fn some_extents(&self, member: usize, range: Range<u64>) -> Result<Vec<Extent>, Error> {
        let op = BlockOp::Status { offset: range.start, len: len(&range), max_extents: EXTENTS };
        match self.volume(member)?.submit(op).await? {
            Outcome::Extents(extents) if extents.first().is_some_and(|extent| extent.len > 0) => Ok(extents),
            _ => Err(Error::State("a volume did not say what a range is made of")),
        }
    }

    /// Data and holes of a range. More of them than [`EXTENTS`] are asked for in turns.
    async fn extents(&self, member: usize, range: Range<u64>) -> Result<Vec<(Range<u64>, bool)>, Error> {
        let mut parts = Vec::new();
        let mut offset = range.start;
        while offset < range.end {
            for extent in self.some_extents(member, offset..range.end).await? {
                let end = offset.saturating_add(extent.len).min(range.end);
                parts.push((offset..end, extent.hole));
                offset = end;
            }
        }
        Ok(parts)
    }

    /// Copies pieces, several at a time.
    async fn copy(&self, n: usize, link: Link<'_>, pieces: Vec<Piece>, compare: bool) -> Result<(), End> {
        let at_a_time = (self.config.copy_bytes as u64 / PIECE_BYTES).max(1) as usize;
        let mut pieces = pieces.into_iter();
        let mut window = FuturesUnordered::new();
        loop {
            while window.len() < at_a_time
                && let Some(piece) = pieces.next()
            {
                window.push(self.copy_piece(n, link, piece, compare));
            }
            match window.next().await {
                None => return Ok(()),
                Some(copied) => copied?,
            }
        }
    }

    async fn copy_piece(&self, n: usize, link: Link<'_>, piece: Piece, compare: bool) -> Result<(), End> {
        let Piece { member, range, hole } = piece;
        let number = member as u16;
        let _locked = self.lock(number, range.clone()).await;
        let mut sent: u64 = 0;
        // A hole that is new may be sent as zeros, but data that is new in an old hole has to be sent.
        let parts = match hole {
            true => self.extents(member, range.clone()).await?,
            false => vec![(range.clone(), false)],
        };
        for (part, hole) in parts {
            if hole {
                self.in_time(link.zero(number, part.start, len(&part))).await?;
                continue;
            }
            let mut at = part.start;
            while at < part.end {
                let end = at.saturating_add(PIECE_BYTES).min(part.end);
                let more = match compare {
                    true => self.send_different(link, member, at..end).await?,
                    false => self.send(link, member, at..end).await?,
                };
                sent = more.saturating_add(sent);
                at = end;
            }
        }
        let now = self.side.wall.now_ms();
        self.on_peer(n, |partner, _| {
            partner.copied_bytes = partner.copied_bytes.saturating_add(len(&range));
            partner.sent_bytes = partner.sent_bytes.saturating_add(sent);
            partner.heard_ms = now;
        });
        Ok(())
    }

    async fn payload(&self, member: usize, range: &Range<u64>) -> Result<Payload, Error> {
        let op = BlockOp::Read { offset: range.start, len: len(range) as usize };
        match self.volume(member)?.submit(op).await? {
            Outcome::Data(payload) => Ok(payload),
            _ => Err(Error::State("a volume did not answer a read with data")),
        }
    }

    async fn bytes(&self, member: usize, range: &Range<u64>) -> Result<Vec<Bytes>, Error> {
        let payload = self.payload(member, range).await?;
        Ok(payload.into_chain(&self.side.pool).await.map_err(weft_store::Error::from)?)
    }

    /// Sends a range and returns the bytes that travelled.
    async fn send(&self, link: Link<'_>, member: usize, range: Range<u64>) -> Result<u64, End> {
        let len = len(&range);
        let payload = match self.config.find_zeroes {
            true => {
                let chain = self.bytes(member, &range).await?;
                if chain.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0)) {
                    self.in_time(link.zero(member as u16, range.start, len)).await?;
                    return Ok(0);
                }
                Payload::Chain(chain)
            }
            false => self.payload(member, &range).await?,
        };
        self.in_time(link.write_blocks(member as u16, range.start, payload)).await?;
        Ok(len)
    }

    /// Sends the parts of a range that differ.
    async fn send_different(&self, link: Link<'_>, member: usize, range: Range<u64>) -> Result<u64, End> {
        let mut sent: u64 = 0;
        for part in self.different(link, member, &range, 0).await? {
            sent = self.send(link, member, part).await?.saturating_add(sent);
        }
        Ok(sent)
    }

    /// Which pieces of a range differ, neighbours joined. The range is locked, and not longer than a few MiB.
    async fn different(
        &self,
        link: Link<'_>,
        member: usize,
        range: &Range<u64>,
        after: u64,
    ) -> Result<Vec<Range<u64>>, End> {
        let asked = link.checksums(member as u16, range.start, len(range), CHECK_BYTES, after);
        let theirs = self.in_time(asked).await?;
        let chain = self.bytes(member, range).await?;
        let ours = rt::blocking(move || digests(&chain, CHECK_BYTES as usize)).await;
        let mut parts: Vec<Range<u64>> = Vec::new();
        let starts = range.clone().step_by(CHECK_BYTES as usize);
        for (start, (ours, theirs)) in starts.zip(ours.iter().zip(&theirs)) {
            if ours == theirs {
                continue;
            }
            let end = start.saturating_add(CHECK_BYTES.into()).min(range.end);
            match parts.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => parts.push(start..end),
            }
        }
        Ok(parts)
    }

    /// Compares everything, and with `repair` marks what differs.
    pub(super) async fn compare_all(&self, n: usize, link: Link<'_>, repair: bool) -> Result<Verified, End> {
        let mut verified = Verified { at_ms: 0, bytes: 0, different: 0, first: Vec::new() };
        for member in 0..self.side.members.len() {
            let size = self.size(member);
            let mut at = 0;
            while at < size {
                let range = at..PIECE_BYTES.saturating_add(at).min(size);
                let different = {
                    let _locked = self.lock(member as u16, range.clone()).await;
                    let after = self.log.fill().last;
                    let arrived = self.owner.until(|| {
                        let has = self.core().peer(n).map_or(true, |(p, _)| p.acked >= after);
                        has.then_some(())
                    });
                    arrived.await;
                    self.different(link, member, &range, after).await?
                };
                verified.bytes = verified.bytes.saturating_add(len(&range));
                verified.different = different.iter().map(len).fold(verified.different, u64::saturating_add);
                let more = Verified::MOST_FIRST.saturating_sub(verified.first.len());
                let named = different.iter().take(more);
                let named = named.map(|part| Differs { member, offset: part.start, len: len(part) });
                verified.first.extend(named);
                if repair && !different.is_empty() {
                    self.on_peer(n, |partner, _| {
                        if let Some(map) = partner.maps.get_mut(member) {
                            different.into_iter().for_each(|part| map.mark(part.start, len(&part)));
                        }
                    });
                }
                at = range.end;
            }
        }
        verified.at_ms = self.side.wall.now_ms();
        if repair && verified.different > 0 {
            self.persist_bitmaps().await?;
        }
        Ok(verified)
    }
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}
