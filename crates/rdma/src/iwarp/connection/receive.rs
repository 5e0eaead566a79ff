//! The receiving half: bytes become segments, and segments are placed.
//!
//! Implements RFC 5044 4.4 and 6 (FPDUs), RFC 5041 7.1 (checks before placement), RFC 5040 5 and 7.2. It owns the
//! posted receive buffers. Nothing is placed before it is checked.
//!
//! The destination of a segment's payload is known once its header has arrived; the remainder is then received directly
//! into it: `recv_slots` returns that destination as the first slot. With CRCs, this is done only for Read Responses
//! and for fill regions ([`crate::verbs::Access::RemoteFill`]): nobody may look at their memory before a message says
//! so, and none does if a CRC does not match. For fill regions, the destinations of later segments are offered as well
//! (see `ahead`). Other Writes and Sends are then staged whole, verified, and placed afterwards: one counted copy, out
//! of a ring that stays in the second-level cache.
//!
//! Segments of one message arrive in order (TCP), so a message offset other than the next one is refused, and a receive
//! buffer never contains bytes that the peer did not send.

mod marked;
mod ring;

use std::collections::VecDeque;
use std::io::IoSliceMut;

use weft_machine::{Buf, Time, buf};
use weft_wire::mpa::{self, CRC_LEN, Crc, LENGTH_LEN};
use weft_wire::rdmap::{self, Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE, ReadRequest, Terminate};
use weft_wire::{ddp, ddp::Header};

use self::marked::Marked;
use self::ring::Ring;
use super::{Connection, PendingRead, State};
use crate::iwarp::ahead::{GUESSES, Gaps, NO_GAPS, Plan};
use crate::iwarp::regions::{RegionPosition, Regions};
use crate::iwarp::setup::{Agreed, Role};
use crate::iwarp::terminate::{Fault, Refused};
use crate::verbs::{Done, Stag, add, tally};

/// Staging of a connection that has received little: room for any header, and for a short message.
const STAGING_FIRST: usize = 4 << 10;
/// Staging grows by this factor when it was full: a peer has sent at least a quarter of what it occupies here.
const STAGING_GROWTH: usize = 4;
/// Maximum staging with CRCs: several FPDUs, and well inside a second-level cache.
const STAGING_CRC: usize = 256 << 10;
/// Maximum staging without CRCs: headers and what arrives with them.
const STAGING_PLAIN: usize = 64 << 10;
/// Without CRCs, how much is received into staging while its destination is unknown: enough for a batch of small
/// messages in one call, little enough that most of a large transfer goes to its destination directly.
const BLIND_BYTES: usize = 16 << 10;
/// With CRCs, how much of a Read Response must be missing for the remainder to be received directly into its buffer.
const DIRECT_MIN: usize = 8 << 10;
/// Bytes checksummed at a time, between two prefetches of the memory that the payload will be copied to.
const CRC_STEP: usize = 4096;

/// Bytes of staging that a connection starts with.
pub(in crate::iwarp) fn first_staging(agreed: &Agreed) -> usize {
    // A stream with markers is staged whole.
    if agreed.marked { STAGING_CRC } else { STAGING_FIRST }
}

/// A request for more staging; see [`Connection::staging_wanted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::iwarp) struct Staging {
    /// Room in bytes.
    pub(in crate::iwarp) bytes: usize,
    /// Nothing can be received without it; otherwise it only saves system calls.
    pub(in crate::iwarp) needed: bool,
}

/// The receiving half of a connection.
pub(in crate::iwarp) struct Rx {
    ring: Ring,
    /// The ring was full: more arrived at once than it can hold.
    was_full: bool,
    /// The size that the ring grows to at most.
    most_staging: usize,
    /// The stream in front of the ring, if we required markers.
    marked: Option<Marked>,
    /// Bytes that the ring lacks for the next step.
    lacking: usize,
    crc: bool,
    phase: Phase,
    /// Posted receive buffers, oldest first.
    pub(in crate::iwarp) recvs: VecDeque<(u64, Buf)>,
    /// Bytes received so far of the message in the first of them.
    pub(in crate::iwarp) recv_filled: usize,
    pub(in crate::iwarp) send_msn: u32,
    pub(in crate::iwarp) read_msn: u32,
    /// An empty Send as the very first message is not delivered to the user.
    empty_send_opens: bool,
    /// The predicted payloads that `recv_slots` gave room for, beyond the current one.
    plan: Option<Plan>,
    gaps: Box<Gaps>,
    /// No prediction is made while the bytes of a wrong one are taken in.
    no_plan: bool,
}

/// Slots of one receive.
const MAX_SLOTS: usize = 2 * GUESSES + 3;
/// Ring position for bytes that follow a prediction: the bytes between the payloads are put in front of them.
const BEHIND_PLAN: usize = 64;

/// Where the next received bytes go, in this order. No slot is empty.
pub(in crate::iwarp) struct Slots<'a> {
    slots: [IoSliceMut<'a>; MAX_SLOTS],
    used: usize,
}

impl<'a> Slots<'a> {
    fn new() -> Slots<'a> {
        Slots { slots: std::array::from_fn(|_| IoSliceMut::new(&mut [])), used: 0 }
    }

    fn push(&mut self, room: &'a mut [u8]) {
        if let Some(slot) = self.slots.get_mut(self.used).filter(|_| !room.is_empty()) {
            *slot = IoSliceMut::new(room);
            self.used = self.used.saturating_add(1);
        }
    }
}

impl<'a> std::ops::Deref for Slots<'a> {
    type Target = [IoSliceMut<'a>];
    fn deref(&self) -> &[IoSliceMut<'a>] {
        self.slots.split_at(self.used.min(MAX_SLOTS)).0
    }
}

impl std::ops::DerefMut for Slots<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.slots.split_at_mut(self.used.min(MAX_SLOTS)).0
    }
}

/// What the next bytes are.
#[derive(Clone, Copy)]
enum Phase {
    /// The length and headers of an FPDU, or the whole FPDU if it is staged.
    Header,
    /// Payload, of which `placed` bytes have arrived. `crc` covers the bytes before them, if CRCs are used.
    Payload { segment: Segment, placed: usize, crc: Option<Crc> },
    /// Pad and CRC.
    Trailer { segment: Segment, crc: Option<Crc> },
}

/// An admitted segment.
#[derive(Clone, Copy)]
struct Segment {
    header: Header,
    opcode: Opcode,
    target: Target,
    payload: usize,
    ulpdu: u16,
}

impl Segment {
    fn refused(&self) -> Refused {
        Refused { segment_len: self.ulpdu, header: self.header, read: None }
    }

    /// Payload still to arrive after `placed` bytes; `placed <= self.payload`.
    fn rest(&self, placed: usize) -> usize {
        self.payload.saturating_sub(placed)
    }
}

/// Where a segment's payload goes.
#[derive(Clone, Copy)]
enum Target {
    /// There is no payload, or nobody looks at it.
    Nowhere,
    /// A region that the peer may write.
    Region(RegionPosition),
    /// The buffer of the oldest pending Read, from this byte.
    Sink(usize),
    /// The oldest receive buffer, from this byte.
    Recv(usize),
    /// RDMAP headers, parsed in the ring.
    Control,
}

/// The fault and the segment that it concerns.
type Refusal = (Fault, Option<Refused>);

impl Rx {
    pub(in crate::iwarp) fn new(agreed: &Agreed, staging: Buf) -> Rx {
        assert!(!agreed.marked || staging.capacity() >= mpa::MAX_FPDU, "staging holds a whole FPDU");
        Rx {
            ring: Ring::new(staging),
            was_full: false,
            most_staging: if agreed.crc || agreed.marked { STAGING_CRC } else { STAGING_PLAIN },
            marked: agreed.marked.then(|| Marked::new(agreed.crc)),
            lacking: 0,
            // The CRC covers the markers, so it is checked before they are removed.
            crc: agreed.crc && !agreed.marked,
            phase: Phase::Header,
            recvs: VecDeque::new(),
            recv_filled: 0,
            send_msn: 1,
            read_msn: 1,
            empty_send_opens: agreed.role == Role::Responder { empty_send_opens: true },
            plan: None,
            gaps: Box::new(NO_GAPS),
            no_plan: false,
        }
    }

    /// Whether the stream would be cut inside a segment if it ended now.
    pub(in crate::iwarp) fn inside_fpdu(&self) -> bool {
        self.ring.len() > 0
            || !matches!(self.phase, Phase::Header)
            || self.marked.as_ref().is_some_and(|marked| !marked.is_empty())
    }

    /// The stream has ended: staged bytes are dropped.
    pub(in crate::iwarp) fn discard(&mut self) {
        self.ring.clear();
        self.marked.iter_mut().for_each(Marked::clear);
        self.phase = Phase::Header;
        self.recv_filled = 0;
    }

    /// Everything goes through one buffer where the markers are removed.
    fn marked_slots(&mut self) -> Slots<'_> {
        let mut slots = Slots::new();
        slots.push(self.marked.as_mut().map_or(&mut [][..], Marked::free));
        slots
    }
}

impl Connection {
    /// [`Connection::recv_slots`] if that is one piece of memory: with CRCs on, between two messages, while only
    /// messages are expected from the peer. Cheaper for a caller that polls often.
    pub(in crate::iwarp) fn recv_room(&mut self) -> Option<&mut [u8]> {
        let one = matches!(self.rx.phase, Phase::Header)
            && self.rx.ring.len() == 0
            && self.is_all_staged()
            && self.rx.marked.is_none();
        if !one {
            return None;
        }
        self.rx.plan = None;
        Some(self.rx.ring.free(usize::MAX).0)
    }

    /// Everything that may arrive would be staged.
    fn is_all_staged(&self) -> bool {
        self.rx.crc && self.reads.is_empty() && !self.regions.any_fill()
    }

    /// The staging that would be better than the current ring. While it is needed, nothing may be received.
    pub(in crate::iwarp) fn staging_wanted(&self) -> Option<Staging> {
        let Rx { ring, was_full, most_staging, lacking, .. } = &self.rx;
        let needed = *lacking > 0 && ring.len() == ring.capacity();
        let wanted = (needed || *was_full) && ring.capacity() < *most_staging && self.ended().is_none();
        wanted.then(|| Staging {
            bytes: ring.capacity().saturating_mul(STAGING_GROWTH).min(*most_staging),
            needed,
        })
    }

    /// Replaces the staging by a larger buffer.
    pub(in crate::iwarp) fn stage_in(&mut self, buf: Buf) {
        if buf.capacity() > self.rx.ring.capacity() {
            self.rx.ring.move_to(buf);
            self.rx.was_full = false;
        }
    }

    /// Where the next received bytes go. There is always room for at least one byte, unless more staging is needed.
    pub(in crate::iwarp) fn recv_slots(&mut self) -> Slots<'_> {
        if self.rx.marked.is_some() {
            return self.rx.marked_slots();
        }
        self.rx.plan = self.plan();
        let staged = match self.rx.phase {
            Phase::Header if self.is_all_staged() => usize::MAX,
            Phase::Header => BLIND_BYTES.max(self.rx.lacking),
            // More of the same message follows: stop after its next header, so that its payload can be received
            // directly.
            Phase::Payload { segment, .. } | Phase::Trailer { segment, .. } if !segment.header.last() => {
                mpa::trailer_len(segment.ulpdu)
                    .saturating_add(LENGTH_LEN)
                    .saturating_add(segment.header.len())
            }
            _ => BLIND_BYTES,
        };
        let Connection { regions, reads, rx, .. } = self;
        let mut slots = Slots::new();
        if let (
            Some(plan),
            Phase::Payload {
                segment: segment @ Segment { target: Target::Region(place), .. }, placed, ..
            },
        ) = (&rx.plan, rx.phase)
        {
            let (rest, mut room) = regions.unfilled(place, placed).split_at_mut(segment.rest(placed));
            slots.push(rest);
            for (gap, &len) in rx.gaps.iter_mut().zip(plan.lens()) {
                let (next, later) = room.split_at_mut(len);
                slots.push(plan.between(gap));
                slots.push(next);
                room = later;
            }
            slots.push(rx.ring.behind(BEHIND_PLAN, if plan.full { BLIND_BYTES } else { plan.gap }));
            return slots;
        }
        let direct = match rx.phase {
            // The region is gone: the bytes are staged, and placing them reports the fault.
            Phase::Payload { segment, placed, .. } => {
                let rest = segment.rest(placed);
                room(regions, reads, &mut rx.recvs, segment.target, placed, rest).unwrap_or_default()
            }
            _ => &mut [],
        };
        let (first, second) = rx.ring.free(staged);
        slots.push(direct);
        slots.push(first);
        slots.push(second);
        slots
    }

    /// What follows the current payload, if it can be predicted; see `ahead`.
    fn plan(&mut self) -> Option<Plan> {
        let Phase::Payload { segment, placed, .. } = self.rx.phase else { return None };
        let Target::Region(place) = segment.target else { return None };
        if segment.header.last() || self.rx.no_plan {
            return None;
        }
        let room = self.regions.unfilled(place, placed).len().checked_sub(segment.rest(placed))?;
        Plan::new(place.advanced(segment.payload), segment.ulpdu, segment.payload, room)
    }

    /// `n` bytes arrived in the slots that `recv_slots` gave last; nothing else was called in between.
    pub(in crate::iwarp) fn received(&mut self, n: usize, now: Time) {
        if matches!(self.state, State::Ended(_)) {
            // Discarded: the ring was offered and stays empty.
            return;
        }
        self.take_in(n, now);
        if self.rx.inside_fpdu() && self.ended().is_none() {
            self.patience.awaits_fpdu(now);
        }
    }

    fn take_in(&mut self, n: usize, now: Time) {
        if self.rx.marked.is_some() {
            return self.received_marked(n, now);
        }
        let plan = self.rx.plan.take();
        let left = n.saturating_sub(self.received_in_place(n));
        match plan {
            Some(plan) => self.received_ahead(&plan, left, now),
            None => {
                self.rx.ring.commit(left);
                self.rx.was_full |= self.rx.ring.len() == self.rx.ring.capacity();
                self.work_off(now);
            }
        }
    }

    /// Accounts for up to `n` bytes of the current payload that were received directly into place; returns how many.
    fn received_in_place(&mut self, n: usize) -> usize {
        let Phase::Payload { segment, placed, mut crc } = self.rx.phase else { return 0 };
        let to = self.room(segment.target, placed, segment.rest(placed)).unwrap_or_default();
        let direct = n.min(to.len());
        if let Some(crc) = &mut crc {
            crc.update(to.split_at(direct).0);
        }
        self.arrived(&segment, placed, direct);
        self.rx.phase = Phase::Payload { segment, placed: placed.saturating_add(direct), crc };
        direct
    }

    /// `left` bytes arrived in the slots after the current payload.
    fn received_ahead(&mut self, plan: &Plan, mut left: usize, now: Time) {
        for (i, &len) in plan.lens().iter().enumerate() {
            // A payload longer than predicted continues where the next one was expected. Placing the bytes between them
            // there would overwrite bytes that were not parsed yet.
            if matches!(self.rx.phase, Phase::Payload { segment, placed, .. } if placed < segment.payload) {
                return self.guessed_wrong(plan, i, None, left, now);
            }
            let Rx { gaps, ring, .. } = &mut self.rx;
            let Some(gap) = gaps.get_mut(i) else { break };
            let between = plan.between(gap);
            let between = between.split_at(left.min(between.len())).0;
            ring.put(between);
            left = left.saturating_sub(between.len());
            self.work_off(now);
            if left == 0 || matches!(self.state, State::Ended(_)) {
                return;
            }
            let here = left.min(len);
            let right = match self.rx.phase {
                Phase::Payload {
                    segment: Segment { target: Target::Region(place), .. }, placed: 0, ..
                } if place == plan.place_of(i) => self.received_in_place(here),
                _ => 0,
            };
            left = left.saturating_sub(right);
            if right < here {
                return self.guessed_wrong(plan, i, Some(right), left, now);
            }
        }
        self.rx.ring.take_behind(BEHIND_PLAN, left);
        self.work_off(now);
    }

    /// The prediction does not hold for the last `left` bytes, from byte `at` of payload `i` on, or from the bytes
    /// before it. They are first collected elsewhere: parsing them may end the region that they lie in.
    fn guessed_wrong(&mut self, plan: &Plan, i: usize, at: Option<usize>, left: usize, now: Time) {
        let mut bytes = vec![0; left];
        let mut unfilled = bytes.as_mut_slice();
        let mut take = |from: &[u8]| {
            let part = from.len().min(unfilled.len());
            let (to, later) = std::mem::take(&mut unfilled).split_at_mut(part);
            buf::copy(to, from.split_at(part).0);
            unfilled = later;
        };
        for (j, (&len, gap)) in plan.lens().iter().zip(self.rx.gaps.iter_mut()).enumerate().skip(i) {
            let skip = at.filter(|_| j == i);
            if skip.is_none() {
                take(plan.between(gap));
            }
            // The region still exists: nothing has ended it since the bytes were received into it.
            let skip = skip.unwrap_or(0);
            let rest = len.saturating_sub(skip);
            let Ok(room) = self.regions.place(plan.place_of(j), skip, rest) else { break };
            take(room);
        }
        self.rx.ring.peek_behind(BEHIND_PLAN, unfilled);
        self.rx.no_plan = true;
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() && !matches!(self.state, State::Ended(_)) {
            let mut later = bytes;
            for slot in self.recv_slots().iter_mut() {
                let part = slot.len().min(later.len());
                let (from, behind) = later.split_at(part);
                buf::copy(slot.split_at_mut(part).0, from);
                later = behind;
                if part < slot.len() {
                    break;
                }
            }
            self.take_in(bytes.len().saturating_sub(later.len()), now);
            bytes = later;
        }
        self.rx.no_plan = false;
    }

    fn received_marked(&mut self, n: usize, now: Time) {
        let mut arrived = n;
        loop {
            let Rx { marked: Some(marked), ring, .. } = &mut self.rx else { return };
            marked.commit(std::mem::take(&mut arrived));
            match marked.next(ring) {
                Ok(true) => self.work_off(now),
                Ok(false) => return,
                Err(fault) => return self.fail(fault, None, now),
            }
        }
    }

    /// Processes all received bytes as far as possible.
    fn work_off(&mut self, now: Time) {
        loop {
            match self.step(now) {
                Ok(true) => {}
                Ok(false) => return,
                Err((fault, refused)) => return self.fail(fault, refused, now),
            }
        }
    }

    /// Takes the next step that the received bytes allow; false when more bytes are needed.
    fn step(&mut self, now: Time) -> Result<bool, Refusal> {
        if matches!(self.state, State::Ended(_)) {
            return Ok(false);
        }
        match self.rx.phase {
            Phase::Header => self.step_header(now),
            Phase::Payload { segment, placed, mut crc } => {
                let n = segment.rest(placed).min(self.rx.ring.len());
                self.rx.ring.checksum(n, &mut crc);
                self.place_staged(&segment, placed, 0, n).map_err(|f| (f, Some(segment.refused())))?;
                self.rx.ring.consume(n);
                let placed = placed.saturating_add(n);
                if placed < segment.payload {
                    self.rx.phase = Phase::Payload { segment, placed, crc };
                    return Ok(false);
                }
                self.rx.phase = Phase::Trailer { segment, crc };
                Ok(true)
            }
            Phase::Trailer { segment, mut crc } => {
                let pad = mpa::pad(segment.ulpdu);
                let trailer = mpa::trailer_len(segment.ulpdu);
                if self.rx.ring.len() < trailer {
                    return Ok(false);
                }
                self.rx.ring.checksum(pad, &mut crc);
                if crc.is_some_and(|crc| !self.rx.ring.holds(pad, crc)) {
                    return Err((Fault::Crc, None));
                }
                self.rx.ring.consume(trailer);
                self.rx.phase = Phase::Header;
                self.finish(&segment, now)?;
                Ok(true)
            }
        }
    }

    fn step_header(&mut self, now: Time) -> Result<bool, Refusal> {
        const LONGEST: usize = LENGTH_LEN + ddp::UNTAGGED_LEN;
        let mut start = [0; LONGEST];
        if self.rx.ring.peek(0, &mut start).len() <= LENGTH_LEN {
            return Ok(false);
        }
        let [high, low, segment @ ..] = start;
        let [control, ..] = segment;
        let ulpdu = u16::from_be_bytes([high, low]);
        let header_len = Header::len_of(control);
        // Shorter than its own header: the stream has lost its framing (or never had any).
        if usize::from(ulpdu) < header_len {
            return Err((Fault::Framing, None));
        }
        let whole = mpa::fpdu_len(ulpdu);
        let headers = LENGTH_LEN.saturating_add(header_len);
        if !self.has(headers) {
            return Ok(false);
        }
        // With CRCs this is preliminary, because the bytes may be damaged; nothing is decided by it yet.
        let header = segment.get(..header_len).ok_or((Fault::Framing, None))?;
        let admitted = self.admit_segment(header, ulpdu);
        let target = admitted.as_ref().map_or(Target::Nowhere, |segment| segment.target);
        let staged = match target {
            Target::Control => true,
            // A short remainder is not worth a receive of its own.
            Target::Sink(_) => self.rx.crc && whole.saturating_sub(self.rx.ring.len()) < DIRECT_MIN,
            Target::Region(place) if self.regions.is_fill(place) => false,
            _ => self.rx.crc,
        };
        if !staged {
            let segment = admitted?;
            let mut crc = self.rx.crc.then(Crc::default);
            self.rx.ring.checksum(headers, &mut crc);
            self.rx.ring.consume(headers);
            self.rx.phase = Phase::Payload { segment, placed: 0, crc };
            return Ok(true);
        }
        if !self.has(whole) {
            return Ok(false);
        }
        let payload = admitted.as_ref().map_or(0, |segment| segment.payload);
        if self.rx.crc && !self.crc_matches(whole.saturating_sub(CRC_LEN), target, payload) {
            return Err((Fault::Crc, None));
        }
        let segment = admitted?;
        if matches!(target, Target::Control) {
            self.control(&segment, headers, whole, now)?;
        } else {
            self.place_staged(&segment, 0, headers, payload).map_err(|f| (f, Some(segment.refused())))?;
            self.rx.ring.consume(whole);
            self.finish(&segment, now)?;
        }
        Ok(true)
    }

    /// Whether the ring holds `bytes` bytes; if not, notes the shortfall for the next receive.
    fn has(&mut self, bytes: usize) -> bool {
        self.rx.lacking = bytes.saturating_sub(self.rx.ring.len());
        self.rx.lacking == 0
    }

    /// Verifies the FPDU at the front of the ring. Its payload's likely destination is prefetched meanwhile: without
    /// that, the copy that follows took longer than all the rest of receiving.
    fn crc_matches(&mut self, covered: usize, target: Target, payload: usize) -> bool {
        let Connection { regions, reads, rx, .. } = self;
        let mut place = room(regions, reads, &mut rx.recvs, target, 0, payload).unwrap_or_default();
        let mut crc = Crc::default();
        let (first, second) = rx.ring.slices(0, covered);
        for piece in first.chunks(CRC_STEP).chain(second.chunks(CRC_STEP)) {
            let (soon, later) = place.split_at_mut(CRC_STEP.min(place.len()));
            buf::prefetch(soon);
            place = later;
            crc.update(piece);
        }
        rx.ring.holds(covered, crc)
    }

    /// Parses and checks a header.
    fn admit_segment(&mut self, bytes: &[u8], ulpdu: u16) -> Result<Segment, Refusal> {
        let header = Header::parse(bytes).map_err(|malformed| {
            let fault = match malformed {
                ddp::Malformed::Version { tagged: true } => Fault::TaggedVersion,
                ddp::Malformed::Version { tagged: false } => Fault::UntaggedVersion,
                ddp::Malformed::Truncated => Fault::Framing,
            };
            (fault, None)
        })?;
        let payload = usize::from(ulpdu).checked_sub(header.len()).ok_or((Fault::Framing, None))?;
        let refused = Refused { segment_len: ulpdu, header, read: None };
        let (opcode, target) = self.admit(&header, payload).map_err(|fault| (fault, Some(refused)))?;
        Ok(Segment { header, opcode, target, payload, ulpdu })
    }

    /// Makes every check that is possible before the payload is touched, and returns the payload's destination.
    fn admit(&mut self, header: &Header, payload: usize) -> Result<(Opcode, Target), Fault> {
        let opcode = Opcode::parse(header.control()).map_err(|malformed| match malformed {
            rdmap::Malformed::Version => Fault::RdmapVersion,
            _ => Fault::UnexpectedOpcode,
        })?;
        let target = match header {
            Header::Tagged(h) => match opcode {
                // An empty segment's STag and offset are not looked at (RFC 5041 5.2).
                Opcode::Write if payload == 0 => Target::Nowhere,
                Opcode::Write => Target::Region(self.regions.admit_write(h.stag, h.to, payload)?),
                Opcode::ReadResponse => self.admit_response(h, payload)?,
                _ => return Err(Fault::UnexpectedOpcode),
            },
            Header::Untagged(h) => match (h.qn, opcode) {
                (
                    QN_SEND,
                    Opcode::Send
                    | Opcode::SendInvalidate
                    | Opcode::SendSolicited
                    | Opcode::SendSolicitedInvalidate,
                ) => self.admit_send(h, opcode, payload)?,
                (QN_READ_REQUEST, Opcode::ReadRequest) => {
                    in_sequence(h, self.rx.read_msn, 0)?;
                    // The payload exceeds the buffers of this queue, whose number is the IRD.
                    if payload > rdmap::READ_REQUEST_LEN {
                        return Err(Fault::TooLong);
                    }
                    if self.tx.responses() >= usize::from(self.caps.ird) {
                        return Err(Fault::TooManyReads);
                    }
                    Target::Control
                }
                (QN_TERMINATE, Opcode::Terminate) => {
                    in_sequence(h, 1, 0)?;
                    if payload > rdmap::MAX_TERMINATE_LEN {
                        return Err(Fault::TooLong);
                    }
                    Target::Control
                }
                (QN_SEND | QN_READ_REQUEST | QN_TERMINATE, _) => return Err(Fault::UnexpectedOpcode),
                _ => return Err(Fault::InvalidQueue),
            },
        };
        Ok((opcode, target))
    }

    fn admit_response(&self, h: &ddp::Tagged, payload: usize) -> Result<Target, Fault> {
        // An unsolicited response.
        let read = self.reads.front().ok_or(Fault::UnexpectedOpcode)?;
        if payload == 0 {
            return Ok(Target::Nowhere);
        }
        if h.stag != read.sink_stag {
            return Err(Fault::InvalidStag);
        }
        if h.to != read.sink_to.wrapping_add(read.filled as u64) || payload > read.missing() {
            return Err(Fault::Bounds);
        }
        Ok(Target::Sink(read.filled))
    }

    fn admit_send(&self, h: &ddp::Untagged, opcode: Opcode, payload: usize) -> Result<Target, Fault> {
        in_sequence(h, self.rx.send_msn, self.rx.recv_filled)?;
        let first = !self.tx.may_send && h.msn == 1;
        if first && self.rx.empty_send_opens && payload == 0 && h.last && opcode == Opcode::Send {
            return Ok(Target::Nowhere);
        }
        let (_, buf) = self.rx.recvs.front().ok_or(Fault::NoBuffer)?;
        if payload > buf.capacity().saturating_sub(self.rx.recv_filled) {
            return Err(Fault::TooLong);
        }
        Ok(Target::Recv(self.rx.recv_filled))
    }

    /// Places `len` bytes found at offset `from` in the ring, as payload from its byte `at` on.
    fn place_staged(&mut self, segment: &Segment, at: usize, from: usize, len: usize) -> Result<(), Fault> {
        if len == 0 {
            return Ok(());
        }
        let Connection { regions, reads, rx, .. } = self;
        let (first, second) = rx.ring.slices(from, len);
        let to = room(regions, reads, &mut rx.recvs, segment.target, at, len)?;
        if to.is_empty() {
            return Ok(());
        }
        let (to_first, to_second) = to.split_at_mut(first.len());
        buf::copy(to_first, first);
        if !second.is_empty() {
            buf::copy(to_second, second);
        }
        self.arrived(segment, at, len);
        Ok(())
    }

    fn room(&mut self, target: Target, at: usize, len: usize) -> Result<&mut [u8], Fault> {
        room(&mut self.regions, &mut self.reads, &mut self.rx.recvs, target, at, len)
    }

    /// Accounts for payload that was placed, from its byte `at` on.
    fn arrived(&mut self, segment: &Segment, at: usize, len: usize) {
        match segment.target {
            Target::Nowhere | Target::Control => {}
            Target::Region(place) => {
                add(&mut self.traffic.placed.0, len as u64);
                self.regions.filled(place, at.saturating_add(len));
            }
            Target::Sink(_) => {
                if let Some(read) = self.reads.front_mut() {
                    read.filled = read.filled.saturating_add(len);
                }
            }
            Target::Recv(_) => self.rx.recv_filled = self.rx.recv_filled.saturating_add(len),
        }
    }

    /// A valid segment has arrived completely: delivers what it completes.
    fn finish(&mut self, segment: &Segment, now: Time) -> Result<(), Refusal> {
        let fault = |fault: Fault| (fault, Some(segment.refused()));
        if segment.header.last() {
            match (segment.opcode, &segment.header) {
                (Opcode::Write, _) => add(&mut self.traffic.placed.1, 1),
                (Opcode::ReadResponse, _) => self.deliver_read(now).map_err(fault)?,
                (_, Header::Untagged(h)) => self.deliver_send(segment, h).map_err(fault)?,
                (_, Header::Tagged(_)) => {}
            }
        }
        self.spoken_to(now);
        Ok(())
    }

    /// A valid FPDU has arrived: a responder may send from now on.
    fn spoken_to(&mut self, now: Time) {
        self.tx.may_send = true;
        self.nudge.end();
        self.patience.fpdu_ended();
        self.end_if_drained(now);
    }

    fn deliver_read(&mut self, now: Time) -> Result<(), Fault> {
        // Shorter than requested.
        if self.reads.front().is_none_or(|read| read.filled != read.len) {
            return Err(Fault::Bounds);
        }
        let read = self.reads.pop_front().ok_or(Fault::UnexpectedOpcode)?;
        self.patience.oldest_read(self.reads.front().map(|read| read.len), now);
        if let Some((id, mut into)) = read.user {
            into.set_len(read.len);
            tally(&mut self.traffic.read, read.len);
            self.tx.read_done();
            self.complete(id, Done::Read { buf: into });
        }
        Ok(())
    }

    fn deliver_send(&mut self, segment: &Segment, h: &ddp::Untagged) -> Result<(), Fault> {
        self.rx.send_msn = self.rx.send_msn.wrapping_add(1);
        if matches!(segment.target, Target::Nowhere) {
            return Ok(());
        }
        let mut invalidated = None;
        if segment.opcode.invalidates() {
            let stag = Stag(h.invalidate);
            self.regions.revoke(stag)?;
            invalidated = Some(stag);
        }
        let (id, mut buf) = self.rx.recvs.pop_front().ok_or(Fault::NoBuffer)?;
        let len = std::mem::take(&mut self.rx.recv_filled);
        buf.set_len(len);
        tally(&mut self.traffic.received, len);
        self.complete(id, Done::Received { buf, invalidated, solicited: segment.opcode.solicited() });
        Ok(())
    }

    /// Handles a Read Request or a Terminate that is completely in the ring.
    fn control(&mut self, segment: &Segment, at: usize, whole: usize, now: Time) -> Result<(), Refusal> {
        let mut body = [0; rdmap::MAX_TERMINATE_LEN];
        let refused = segment.refused();
        let room = body.get_mut(..segment.payload).ok_or((Fault::TooLong, Some(refused)))?;
        let body = self.rx.ring.peek(at, room);
        self.rx.ring.consume(whole);
        if !segment.header.last() {
            return Err((Fault::MalformedControl, Some(refused)));
        }
        if segment.opcode == Opcode::Terminate {
            match Terminate::parse(body) {
                Ok(terminate) => self.terminated(&terminate, now),
                Err(_) => self.unreadable_terminate(now),
            }
            return Ok(());
        }
        let request = ReadRequest::parse(body).map_err(|_| (Fault::MalformedControl, Some(refused)))?;
        self.rx.read_msn = self.rx.read_msn.wrapping_add(1);
        let bytes = if request.size == 0 {
            // Neither STag nor offset are checked (RFC 5040 5.2.1).
            bytes::Bytes::new()
        } else {
            self.regions
                .admit_read(request.source_stag, request.source_to, request.size as usize)
                .map_err(|fault| (fault, Some(Refused { read: Some(request), ..refused })))?
        };
        self.tx.respond(request, segment.header, bytes);
        self.spoken_to(now);
        Ok(())
    }
}

/// The memory for `len` bytes of a segment's payload, from its byte `at` on; empty if the payload goes nowhere. This is
/// the only way to the user's memory, and it checks every time, because the region may have gone since the segment was
/// admitted.
fn room<'a>(
    regions: &'a mut Regions,
    reads: &'a mut VecDeque<PendingRead>,
    recvs: &'a mut VecDeque<(u64, Buf)>,
    target: Target,
    at: usize,
    len: usize,
) -> Result<&'a mut [u8], Fault> {
    match target {
        Target::Nowhere | Target::Control => Ok(&mut []),
        Target::Region(place) => regions.place(place, at, len),
        Target::Sink(start) => {
            let read = reads.front_mut().and_then(|read| read.user.as_mut());
            let (_, into) = read.ok_or(Fault::UnexpectedOpcode)?;
            part(into.room(), start, at, len).ok_or(Fault::Bounds)
        }
        Target::Recv(start) => {
            let (_, buf) = recvs.front_mut().ok_or(Fault::NoBuffer)?;
            part(buf.room(), start, at, len).ok_or(Fault::TooLong)
        }
    }
}

/// `len` bytes at offset `at` of what begins at `start`.
fn part(room: &mut [u8], start: usize, at: usize, len: usize) -> Option<&mut [u8]> {
    room.get_mut(start.checked_add(at)?..)?.get_mut(..len)
}

/// MSN and MO must be the next ones (RFC 5041 7.1).
fn in_sequence(h: &ddp::Untagged, msn: u32, mo: usize) -> Result<(), Fault> {
    if h.msn != msn {
        return Err(Fault::MsnRange);
    }
    if h.mo as usize != mo {
        return Err(Fault::InvalidOffset);
    }
    Ok(())
}
