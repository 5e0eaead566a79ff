//! What a destination's volumes may hold, whatever its source asked for.
//!
//! Every byte of a disk is known or unknown. Records count in the order in which the destination placed them; blocks
//! count when they were answered. Two changes of the same bytes that were under way together leave them unknown, and so
//! do blocks of which no barrier was answered before the host died. A resync that begins makes none of them durable.
//! Everything else is known, bytes that are not replicated included.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::record::{Kind, Record};

/// A byte that is known, or not.
pub(super) type Byte = Option<u8>;

/// A range of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct VolumeRange {
    pub member: usize,
    pub range: Range<usize>,
}

impl VolumeRange {
    pub fn new(member: u16, offset: u64, len: u64) -> VolumeRange {
        VolumeRange { member: member.into(), range: offset as usize..offset.saturating_add(len) as usize }
    }

    fn of(record: &Record) -> VolumeRange {
        VolumeRange::new(record.header.member, record.header.offset, record.header.range_len())
    }

    fn meets(&self, other: &VolumeRange) -> bool {
        self.member == other.member
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

#[derive(Clone, Debug)]
enum Event {
    Record { sequence: u64, record: Record, raced: bool },
    Blocks { id: u64, place: VolumeRange, data: Option<Vec<u8>>, durable: bool },
}

/// Blocks on their way.
#[derive(Debug)]
struct Store {
    place: VolumeRange,
    raced: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Model {
    base: Vec<Vec<Byte>>,
    events: Vec<Event>,
    /// Since the log began, by sequence.
    records: BTreeMap<u64, Record>,
    storing: BTreeMap<u64, Store>,
    stores: u64,
    /// Blocks that were answered before a resync began, and no barrier since: they may go with the host.
    volatile: BTreeMap<u64, VolumeRange>,
    /// The last record that was placed.
    pub last: u64,
    /// The last that the destination has answered for.
    pub acknowledged: u64,
    /// Openings and beginnings of the log that are known of.
    pub life: u64,
    /// The copy may call itself consistent.
    pub consistent: bool,
    /// The highest epoch that was answered for.
    pub promised: u64,
    /// Requests to finish that are under way.
    pub finishing: usize,
    /// Sessions that were welcomed, the latest last.
    pub sessions: Vec<u64>,
}

impl Model {
    pub fn new(volumes: Vec<Vec<u8>>) -> Model {
        Model {
            base: volumes.into_iter().map(|bytes| bytes.into_iter().map(Some).collect()).collect(),
            events: Vec::new(),
            records: BTreeMap::new(),
            storing: BTreeMap::new(),
            stores: 0,
            volatile: BTreeMap::new(),
            last: 0,
            acknowledged: 0,
            life: 0,
            consistent: false,
            promised: 0,
            finishing: 0,
            sessions: Vec::new(),
        }
    }

    pub fn session(&self) -> Option<u64> {
        self.sessions.last().copied()
    }

    /// A source has a session, and no earlier one is listened to.
    pub fn welcomed(&mut self, session: u64, epoch: u64) {
        self.sessions.push(session);
        self.promised = self.promised.max(epoch);
    }

    /// It is a source, of this epoch.
    pub fn promoted(&mut self, epoch: u64) {
        self.consistent = true;
        self.promised = self.promised.max(epoch);
    }

    /// A record has its place in the log.
    pub fn placed(&mut self, sequence: u64, record: &Record) {
        assert_eq!(sequence, self.last + 1, "a sequence is skipped or repeated");
        let place = VolumeRange::of(record);
        let mut raced = false;
        for store in self.storing.values_mut().filter(|store| store.place.meets(&place)) {
            (store.raced, raced) = (true, true);
        }
        self.last = sequence;
        self.records.insert(sequence, record.clone());
        self.events.push(Event::Record { sequence, record: record.clone(), raced });
    }

    /// The destination has answered for everything through `sequence`.
    pub fn appended(&mut self, sequence: u64) {
        assert!(sequence <= self.last, "record {sequence} is answered, and the log ends at {}", self.last);
        self.acknowledged = self.acknowledged.max(sequence);
    }

    /// A resync has begun, with a log that goes on behind `base`: what it held is in the volumes.
    pub fn restarted(&mut self, base: u64, life: u64) {
        for event in &self.events {
            if let Event::Blocks { id, place, durable: false, .. } = event {
                self.volatile.insert(*id, place.clone());
            }
        }
        self.fold(u64::MAX, false);
        self.records.clear();
        (self.last, self.acknowledged, self.life) = (base, base, life);
    }

    /// Blocks are on their way. What is logged and not known to be applied may come before or behind them.
    pub fn storing(&mut self, place: VolumeRange, applied: u64) -> u64 {
        let mut raced =
            self.records.range(applied + 1..).any(|(_, record)| VolumeRange::of(record).meets(&place));
        for other in self.storing.values_mut().filter(|other| other.place.meets(&place)) {
            (other.raced, raced) = (true, true);
        }
        self.stores += 1;
        self.storing.insert(self.stores, Store { place, raced });
        self.stores
    }

    /// They have arrived, or perhaps.
    pub fn stored(&mut self, id: u64, data: Option<Vec<u8>>) {
        let Some(Store { place, raced }) = self.storing.remove(&id) else { return };
        let data = data.filter(|_| !raced);
        self.events.push(Event::Blocks { id, place, data, durable: false });
    }

    /// They were refused.
    pub fn not_stored(&mut self, id: u64) {
        self.storing.remove(&id);
    }

    /// Whoever waits for them is gone.
    pub fn leave(&mut self) {
        let ids: Vec<u64> = self.storing.keys().copied().collect();
        ids.into_iter().for_each(|id| self.stored(id, None));
        self.finishing = 0;
    }

    /// Blocks that a barrier would make durable now.
    pub fn answered_blocks(&self) -> BTreeSet<u64> {
        let id = |event: &Event| match event {
            Event::Blocks { id, .. } => Some(*id),
            Event::Record { .. } => None,
        };
        self.events.iter().filter_map(id).chain(self.volatile.keys().copied()).collect()
    }

    /// And it has.
    pub fn barrier(&mut self, blocks: &BTreeSet<u64>) {
        self.volatile.retain(|id, _| !blocks.contains(id));
        for event in &mut self.events {
            if let Event::Blocks { id, durable, .. } = event {
                *durable |= blocks.contains(id);
            }
        }
    }

    /// It was opened again, after its host had died or not: its log held the records from `first` through `last`, and
    /// they were applied once more.
    pub fn reopened(&mut self, first: u64, last: u64, life: u64, begun: bool, died: bool) {
        if begun {
            // The host died between a resync's beginning and its answer.
            self.fold(u64::MAX, died);
            self.records.clear();
        } else {
            let answered = self.acknowledged;
            assert!(last >= answered, "records through {answered} were answered, and {last} are there");
            assert!(last <= self.last, "record {last} is there, and {} were placed", self.last);
            self.fold(last, died);
            self.records.retain(|sequence, _| (first..=last).contains(sequence));
            let again: Vec<Record> = self.records.values().cloned().collect();
            again.iter().for_each(|record| self.apply(record));
        }
        let volatile = std::mem::take(&mut self.volatile);
        if died {
            volatile.values().for_each(|place| self.fill(place, None));
        }
        (self.last, self.acknowledged, self.life) = (last, last, life);
    }

    /// What is known of the volumes when everything that was placed is applied.
    pub fn known(&self) -> Vec<Vec<Byte>> {
        let mut now =
            Model { base: self.base.clone(), events: self.events.clone(), ..Model::new(Vec::new()) };
        now.fold(u64::MAX, false);
        now.base
    }

    /// Carries out everything, records through `last`; of blocks nobody knows whether they are there if the host has
    /// died.
    fn fold(&mut self, last: u64, died: bool) {
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Record { sequence, .. } if sequence > last => {}
                Event::Record { record, raced: true, .. } => self.fill(&VolumeRange::of(&record), None),
                Event::Record { record, .. } => self.apply(&record),
                Event::Blocks { place, data: Some(data), durable, .. } if durable || !died => {
                    self.write(&place, &data);
                }
                Event::Blocks { place, .. } => self.fill(&place, None),
            }
        }
    }

    fn apply(&mut self, record: &Record) {
        let place = VolumeRange::of(record);
        match record.header.kind {
            Kind::Write { .. } => self.write(&place, &record.payload.concat()),
            Kind::Zeroes { .. } => self.fill(&place, Some(0)),
            Kind::Pad => {}
        }
    }

    fn write(&mut self, place: &VolumeRange, data: &[u8]) {
        let range = &mut self.base[place.member][place.range.clone()];
        range.iter_mut().zip(data).for_each(|(byte, new)| *byte = Some(*new));
    }

    fn fill(&mut self, place: &VolumeRange, with: Byte) {
        self.base[place.member][place.range.clone()].fill(with);
    }
}

/// Where volumes differ from what is known of them.
pub(super) fn difference(volumes: &[Vec<u8>], known: &[Vec<Byte>]) -> Option<String> {
    let differs = |(byte, known): (&u8, &Byte)| known.is_some_and(|known| known != *byte);
    volumes.iter().zip(known).enumerate().find_map(|(member, (volume, known))| {
        let at = volume.iter().zip(known).position(differs)?;
        Some(format!("volume {member}, byte {at}: {} in place of {:?}", volume[at], known[at]))
    })
}
