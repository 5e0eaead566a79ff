//! Who waits for the core of a source, and whom an event wakes.
//!
//! A write waits twice: for its place in the log, and for its answer. Both waits are kept in the core, under its lock,
//! so nothing can change between a look and the wait that follows it. An event wakes exactly those whose condition it
//! has made true: a write that waits for an answer is found by its sequence, so n writes cause n wake-ups. What few
//! tasks wait for (the loops of the destinations, an administrator) is in the outline: see `outline`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range};
use std::task::Waker;

use weft_machine::recorder::{self, Hop};

use super::outline::{News, Outline};
use super::{Active, Core, Source};
use crate::owner::{Owned, Wakes};
use crate::record::overlap;
#[cfg(debug_assertions)]
use crate::status::Phase;

/// The waits of one source.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Writes that wait until their record is applied and acknowledged, by its sequence. A write of several records
    /// waits for one after the other.
    answers: BTreeMap<u64, Waker>,
    /// What the flight recorder is told of them: a write waits for its own disk, then for the partner.
    recorded: BTreeMap<u64, recorder::Waiting>,
    /// Everything through here was acknowledged when [`Owned::settle`] looked last. Each write in `answers` that is
    /// applied is behind it.
    acknowledged: u64,
    /// Writes without a place in the log, in the order in which they came.
    unplaced: VecDeque<Unplaced>,
    next_ticket: u64,
    /// Records in the log that wait for an earlier one of the same range, by their sequence.
    blocked: BTreeMap<u64, Waker>,
    /// The record that this event has applied.
    applied: Option<(u64, Active)>,
    /// This event may have made room for a write without a place.
    has_room: bool,
}

/// A write without a place in the log.
#[derive(Debug)]
struct Unplaced {
    ticket: u64,
    member: u16,
    range: Range<u64>,
    bytes: usize,
    /// `None`: it is awake, and looks again.
    waker: Option<Waker>,
}

impl Owned for Core {
    type Outline = Outline;
    type News = News;

    fn outline(&self) -> Outline {
        Outline::of(self)
    }

    fn renew(&self, outline: &mut Outline) -> Option<News> {
        outline.renew(self)
    }

    fn settle(&mut self, is_news: bool) -> Wakes {
        let mut wakes = Wakes::default();
        if is_news && (self.halted.is_some() || self.given_up) {
            // Whoever waits is refused.
            wakes.extend(std::mem::take(&mut self.waiting.answers).into_values());
            wakes.extend(self.waiting.unplaced.iter_mut().filter_map(|write| write.waker.take()));
            wakes.extend(self.locks.iter_mut().filter_map(|lock| lock.waker.take()));
        }
        self.settle_answers(&mut wakes);
        let applied = self.waiting.applied.take();
        if let Some((sequence, record)) = &applied {
            self.settle_applied(*sequence, record, &mut wakes);
        }
        if std::mem::take(&mut self.waiting.has_room) || is_news || applied.is_some() {
            self.settle_unplaced(&mut wakes);
        }
        wakes
    }

    #[cfg(debug_assertions)]
    fn everyone(&mut self) -> Wakes {
        let Core { waiting, locks, .. } = self;
        let mut wakes = Wakes::default();
        wakes.extend(std::mem::take(&mut waiting.answers).into_values());
        wakes.extend(std::mem::take(&mut waiting.blocked).into_values());
        wakes.extend(waiting.unplaced.iter_mut().filter_map(|write| write.waker.take()));
        wakes.extend(locks.iter_mut().filter_map(|lock| lock.waker.take()));
        wakes
    }

    #[cfg(debug_assertions)]
    fn check(&self) {
        let Waiting { answers, acknowledged, unplaced, blocked, .. } = &self.waiting;
        let bytes = self.active.values().map(|active| active.bytes).sum::<usize>();
        assert_eq!(self.active_bytes, bytes, "payload on its way is counted wrongly");
        assert_eq!(*acknowledged, self.acknowledged_through(), "an acknowledgment was not looked at");
        let forgotten = answers.range(..=*acknowledged).find(|(s, _)| !self.active.contains_key(s));
        assert!(forgotten.is_none(), "a write waits for what it has: {forgotten:?}");
        let forgotten = blocked.keys().find(|sequence| !self.is_blocked(**sequence));
        assert!(forgotten.is_none(), "record {forgotten:?} waits for none");
        assert!(unplaced.iter().map(|write| write.ticket).is_sorted(), "a write has passed another");
        for lock in self.locks.iter().filter(|lock| lock.waker.is_some()) {
            assert!(self.is_active(lock.member, &lock.range), "a range is free, and its lock still waits");
        }
        for partner in self.peers.iter().flatten() {
            let is_said_to = partner.phase == Phase::ContinuouslyReplicating && !partner.is_lost();
            assert!(
                !is_said_to || partner.follows(),
                "a destination is said to follow, and takes no command"
            );
            assert!(partner.connected || partner.commands.is_empty(), "a command waits for no session");
        }
        if self.halted.is_some() || self.given_up {
            let waits = !answers.is_empty() || unplaced.iter().any(|write| write.waker.is_some());
            assert!(!waits, "a write waits for a source that has stopped");
        }
    }
}

impl Core {
    /// Whether a write of this range has to wait, whatever room the log has: the roles are being exchanged, its range
    /// is being copied, or too much payload is on its way.
    pub(super) fn holds_back(&self, member: u16, range: &Range<u64>, bytes: usize) -> bool {
        self.quiet || self.is_crowded(bytes) || self.is_locked(member, range)
    }

    fn is_locked(&self, member: u16, range: &Range<u64>) -> bool {
        self.locks.iter().any(|lock| lock.member == member && overlap(&lock.range, range))
    }

    fn is_crowded(&self, bytes: usize) -> bool {
        self.active_bytes > 0 && self.active_bytes.saturating_add(bytes) > self.memory_bytes
    }

    /// Whether an earlier record of its range is not applied yet.
    pub(super) fn is_blocked(&self, sequence: u64) -> bool {
        let Some(own) = self.active.get(&sequence) else { return false };
        let mut earlier = self.active.range(..sequence);
        earlier.any(|(_, other)| other.member == own.member && overlap(&other.range, &own.range))
    }

    /// The record of this sequence is in its volume.
    pub(super) fn finish(&mut self, sequence: u64) {
        if let Some(recorded) = self.waiting.recorded.get_mut(&sequence) {
            recorded.becomes(Hop::Replica);
        }
        if let Some(record) = self.active.remove(&sequence) {
            self.active_bytes = self.active_bytes.saturating_sub(record.bytes);
            self.waiting.applied = Some((sequence, record));
        }
    }

    /// The log has room, or a range is free.
    pub(super) fn make_way(&mut self) {
        self.waiting.has_room = true;
    }

    /// Wakes those who waited for a record to be applied: its writer, later records and copies of its range.
    fn settle_applied(&mut self, sequence: u64, record: &Active, wakes: &mut Wakes) {
        let meets =
            |member: u16, range: &Range<u64>| member == record.member && overlap(range, &record.range);
        if sequence <= self.waiting.acknowledged {
            wakes.extend(self.waiting.answers.remove(&sequence));
        }
        if !self.waiting.blocked.is_empty() {
            let later = self.waiting.blocked.range(sequence..).map(|(later, _)| *later);
            let free = later.filter(|later| {
                let waited = self.active.get(later).is_some_and(|own| meets(own.member, &own.range));
                waited && !self.is_blocked(*later)
            });
            let free: Vec<u64> = free.collect();
            wakes.extend(free.iter().filter_map(|later| self.waiting.blocked.remove(later)));
        }
        for n in 0..self.locks.len() {
            let Some(lock) = self.locks.get(n) else { break };
            let waited = lock.waker.is_some() && meets(lock.member, &lock.range);
            if waited && !self.is_active(lock.member, &lock.range) {
                wakes.extend(self.locks.get_mut(n).and_then(|lock| lock.waker.take()));
            }
        }
    }

    /// Whether a write waits for its place.
    pub(super) fn has_unplaced(&self) -> bool {
        !self.waiting.unplaced.is_empty()
    }

    /// Whether records of a range are in the log and not in the volume.
    pub(super) fn is_active(&self, member: u16, range: &Range<u64>) -> bool {
        self.active.values().any(|active| active.member == member && overlap(&active.range, range))
    }

    /// Follows the mark through which everything is acknowledged: writes that it has passed are woken, in order.
    fn settle_answers(&mut self, wakes: &mut Wakes) {
        let through = self.acknowledged_through();
        let before = std::mem::replace(&mut self.waiting.acknowledged, through);
        if through <= before {
            return;
        }
        let passed = self.waiting.answers.range((Bound::Excluded(before), Bound::Included(through)));
        let applied = passed.map(|(sequence, _)| *sequence).filter(|s| !self.active.contains_key(s));
        let applied: Vec<u64> = applied.collect();
        wakes.extend(applied.iter().filter_map(|sequence| self.waiting.answers.remove(sequence)));
    }

    /// Wakes the first write that may have its place now. It wakes the next one when it has got it: one event, one
    /// write. Whether the log has room is known when it is tried.
    fn settle_unplaced(&mut self, wakes: &mut Wakes) {
        for n in 0..self.waiting.unplaced.len() {
            let Some(write) = self.waiting.unplaced.get(n) else { return };
            if self.quiet || self.is_crowded(write.bytes) {
                // Those behind it are not to pass it by again and again.
                return;
            }
            if write.waker.is_some() && !self.holds_back(write.member, &write.range, write.bytes) {
                wakes.extend(self.waiting.unplaced.get_mut(n).and_then(|write| write.waker.take()));
                return;
            }
        }
    }
}

/// A write that waits for its place, until it has got it or is dropped.
pub(super) struct Ticket<'a> {
    source: &'a Source,
    number: Option<u64>,
}

impl<'a> Ticket<'a> {
    pub fn new(source: &'a Source) -> Ticket<'a> {
        Ticket { source, number: None }
    }

    /// Whether it is new, and another write waits that no lock holds back: new writes do not take the room that others wait for.
    pub fn is_behind(&self, core: &Core) -> bool {
        let waits = |write: &Unplaced| !core.is_locked(write.member, &write.range);
        self.number.is_none() && core.waiting.unplaced.iter().any(waits)
    }

    /// Waits, from now on or still.
    pub fn wait(&mut self, core: &mut Core, member: u16, range: &Range<u64>, bytes: usize, waker: &Waker) {
        let Waiting { unplaced, next_ticket, .. } = &mut core.waiting;
        let waker = Some(waker.clone());
        let at = self.number.and_then(|number| unplaced.binary_search_by_key(&number, |w| w.ticket).ok());
        match at.and_then(|at| unplaced.get_mut(at)) {
            Some(write) => write.waker = waker,
            None => {
                *next_ticket = next_ticket.wrapping_add(1);
                let ticket = *next_ticket;
                self.number = Some(ticket);
                unplaced.push_back(Unplaced { ticket, member, range: range.clone(), bytes, waker });
            }
        }
    }

    /// It has its place, or gives up: the next one may look.
    pub fn leave(&mut self, core: &mut Core) {
        if let Some(number) = self.number.take() {
            if let Ok(at) = core.waiting.unplaced.binary_search_by_key(&number, |write| write.ticket) {
                core.waiting.unplaced.remove(at);
            }
            core.make_way();
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.number.is_some() {
            let source = self.source;
            source.release(|core| self.leave(core));
        }
    }
}

/// A wait by a record's sequence, until it is over or dropped.
pub(super) struct RecordWait<'a> {
    source: &'a Source,
    /// Which of the core's waits it is.
    kind: fn(&mut Waiting) -> &mut BTreeMap<u64, Waker>,
    is_answer: bool,
    sequence: Option<u64>,
}

impl<'a> RecordWait<'a> {
    /// A write waits until its record is applied and acknowledged.
    pub fn for_answer(source: &'a Source) -> RecordWait<'a> {
        RecordWait { source, kind: |waiting| &mut waiting.answers, is_answer: true, sequence: None }
    }

    /// A record waits until no earlier record of its range is left.
    pub fn for_earlier(source: &'a Source) -> RecordWait<'a> {
        RecordWait { source, kind: |waiting| &mut waiting.blocked, is_answer: false, sequence: None }
    }

    /// Waits. The condition does not hold yet.
    pub fn wait(&mut self, core: &mut Core, sequence: u64, waker: &Waker) {
        (self.kind)(&mut core.waiting).insert(sequence, waker.clone());
        if self.is_answer {
            let hop = if core.active.contains_key(&sequence) { Hop::Disk } else { Hop::Replica };
            core.waiting.recorded.insert(sequence, recorder::wait(hop));
        }
        self.sequence = Some(sequence);
    }

    /// Waits no more.
    pub fn leave(&mut self, core: &mut Core) {
        if let Some(sequence) = self.sequence.take() {
            (self.kind)(&mut core.waiting).remove(&sequence);
            if self.is_answer {
                core.waiting.recorded.remove(&sequence);
            }
        }
    }
}

impl Drop for RecordWait<'_> {
    fn drop(&mut self) {
        if self.sequence.is_some() {
            let source = self.source;
            source.release(|core| self.leave(core));
        }
    }
}
