//! The ring log: appends records in order, flushes those together that arrive together, and reads them again by
//! sequence.
//!
//! The layout of a record is in `wire::repl::record`; the ring is an array of sectors that starts over at its end. In
//! memory are the index of the ring, the records to be written, and copies of the youngest ones. The log knows no
//! volumes and no peers; its owner decides when a record may go ([`Log::free_through`]).
//!
//! A record is *placed* under a short lock, which gives it its sequence and its position. One task at a time
//! ([`Log::claim_writer`]) writes the placed records, in as few calls as the ring allows, and flushes; records that are
//! placed meanwhile form the next batch. So no batch begins before the previous one is durable, and a crash loses only
//! an end of the log.
//!
//! Recovery starts at the tail that the state names. Each record needs the log's identity, the next sequence, a life no
//! lower than the previous one, and a payload with the right sum (see [`crate::scan`]). The first one that fails is the
//! end of the log; or damage, if a later record says that it was durable once, or it cannot be read at all.
//!
//! A log that has failed to write stays failed, because the content of the ring is unknown then.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use weft_machine::Pool;
use weft_store::block::{Block, BlockOp};

use crate::error::{Damage, Error};
use crate::journal::{LogMemory, Names, Side, read};
use crate::peer::APPEND_BYTES;
use crate::record::{Header, Kind, Record, SECTOR};
use crate::scan::{Found, Scan};
use crate::signal::Signal;
use crate::state::{Layout, State, Tail};

/// The most records in one log; their index takes some 30 MB.
pub const MAX_RECORDS: usize = 1 << 18;

/// The part of the pool that written records of all groups may keep: a record that is on the medium is read from there, so
/// it keeps no buffer that a receiver waits for.
pub(crate) const KEPT_PART: usize = 32;

/// The least that a record keeps of the pool.
pub(crate) const LEAST_KEPT: usize = 4096;

fn kept_bytes(record: &Record) -> usize {
    match record.payload.is_empty() {
        true => 0,
        false => record.header.record_len().max(LEAST_KEPT),
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let mut ring = self.ring();
        while self.forget_oldest(&mut ring) {}
    }
}

/// A log, open for writing.
#[derive(Debug)]
pub(crate) struct Log {
    block: Arc<dyn Block>,
    pool: Pool,
    names: Names,
    layout: Layout,
    log: u64,
    /// The most bytes of written records that are kept in memory.
    recent_limit: usize,
    memory: LogMemory,
    /// What the written records of all groups may keep.
    kept_limit: usize,
    ring: Mutex<Ring>,
    /// More records may be sent, or the log has failed. A source's loops wait for it, one for each destination, and so
    /// does [`Log::durable_through`]. A write or an append waits in the core of its side.
    pub sends: Signal,
}

#[derive(Debug)]
struct Ring {
    life: u64,
    /// Where the next record goes.
    head: u64,
    /// The sequence of the next record.
    next: u64,
    /// Last sequence that is durable.
    durable: u64,
    /// The records in the ring, oldest first.
    entries: VecDeque<Entry>,
    /// Bytes from the tail to the head, pads included.
    used: u64,
    /// Records that are placed and not written yet.
    queue: VecDeque<Queued>,
    /// The youngest records, with their payload.
    recent: VecDeque<Record>,
    recent_bytes: usize,
    writing: bool,
    failed: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    header: Header,
    position: u64,
    /// Bytes that are freed with it: its own, and those of a pad in front of it.
    bytes: u64,
}

impl Entry {
    /// Bytes of the pad in front of it.
    fn pad(&self) -> u64 {
        self.bytes.saturating_sub(self.header.record_len() as u64)
    }
}

impl Ring {
    fn claim_writer(&mut self) -> bool {
        let claimed = !self.writing && !self.queue.is_empty() && self.failed.is_none();
        self.writing |= claimed;
        claimed
    }

    /// The last sequence that was placed.
    fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }
}

/// A record that is placed and not written yet.
#[derive(Debug)]
struct Queued {
    record: Record,
    position: u64,
}

/// How full a log is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// First sequence that it holds; one more than the last when it holds none.
    pub first: u64,
    /// Last sequence that was placed.
    pub last: u64,
    /// Last that is durable.
    pub durable: u64,
    /// Bytes in use.
    pub used: u64,
}

impl Log {
    /// Opens the log that the state describes and passes its records to `each`, in order, up to its end or damage.
    /// Records that are appended get this `life`: larger than any before, and durable in the state before the first
    /// append.
    pub async fn open(
        side: &Side,
        state: &State,
        life: u64,
        recent_limit: usize,
        mut each: impl AsyncFnMut(Record) -> Result<(), Error>,
    ) -> Result<(Log, Option<Damage>), Error> {
        let Tail { position, sequence, life: mut least } = state.tail;
        let mut scan = Scan::new(side, state);
        let mut ring = Ring {
            life,
            head: position,
            next: sequence,
            durable: sequence.saturating_sub(1),
            entries: VecDeque::new(),
            used: 0,
            queue: VecDeque::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            writing: false,
            failed: None,
        };
        let mut pad = 0;
        let damage = loop {
            let (record, at) = match scan.next(ring.next, least).await {
                Found::Record(record, at) => (record, at),
                // A log that was closed empty has nothing behind its tail.
                _ if state.closed => break None,
                end => {
                    let rest = state.layout.to_end(ring.used.saturating_add(pad));
                    break scan.damage(ring.next, least, rest, matches!(end, Found::Unreadable)).await;
                }
            };
            let bytes = record.header.record_len() as u64;
            let used = ring.used.saturating_add(pad).saturating_add(bytes);
            if used > state.layout.log_bytes {
                // Once around the ring: the tail follows again.
                break None;
            }
            least = record.header.life;
            if record.header.kind == Kind::Pad {
                if pad > 0 {
                    break None;
                }
                pad = state.layout.to_end(at);
                continue;
            }
            let all = bytes.saturating_add(pad);
            ring.entries.push_back(Entry { header: record.header, position: at, bytes: all });
            ring.used = used;
            pad = 0;
            ring.head = state.layout.place(at.saturating_add(bytes));
            ring.durable = ring.next;
            ring.next = ring.next.saturating_add(1);
            each(record).await?;
        };
        let log = Log {
            block: side.journal.clone(),
            pool: side.pool.clone(),
            names: side.names.clone(),
            layout: state.layout,
            log: state.log,
            recent_limit,
            memory: side.log_memory.clone(),
            kept_limit: side.pool.limit_bytes() / KEPT_PART,
            ring: Mutex::new(ring),
            sends: Signal::default(),
        };
        Ok((log, damage))
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places a record and returns its sequence; or the record, if there is no room. Fills in the header's log, life and
    /// sequence.
    #[allow(clippy::result_large_err, reason = "the caller keeps it, and tries again")]
    pub fn place(&self, mut record: Record) -> Result<u64, Record> {
        let mut ring = self.ring();
        let bytes = record.header.record_len() as u64;
        let to_end = self.layout.to_end(ring.head);
        let pad = if bytes > to_end { to_end } else { 0 };
        // Never quite full: the head does not meet the tail.
        let all = bytes.saturating_add(pad);
        let used = ring.used.saturating_add(all);
        if used >= self.layout.log_bytes || ring.entries.len() >= MAX_RECORDS {
            return Err(record);
        }
        record.header.log = self.log;
        record.header.life = ring.life;
        record.header.sequence = ring.next;
        if pad > 0 {
            let header = Header { kind: Kind::Pad, member: 0, offset: 0, ..record.header };
            let position = ring.head;
            ring.queue.push_back(Queued { record: Record { header, payload: Vec::new() }, position });
            ring.head = 0;
        }
        let position = ring.head;
        let sequence = ring.next;
        ring.entries.push_back(Entry { header: record.header, position, bytes: all });
        ring.used = used;
        ring.head = self.layout.place(position.saturating_add(bytes));
        ring.next = sequence.saturating_add(1);
        self.keep(&mut ring, record.clone());
        while ring.recent_bytes > self.recent_limit && self.forget_oldest(&mut ring) {}
        self.free_kept(&mut ring);
        ring.queue.push_back(Queued { record, position });
        Ok(sequence)
    }

    fn keep(&self, ring: &mut Ring, record: Record) {
        self.memory.0.fetch_add(kept_bytes(&record), Ordering::Relaxed);
        ring.recent_bytes = ring.recent_bytes.saturating_add(record.header.record_len());
        ring.recent.push_back(record);
    }

    fn forget_oldest(&self, ring: &mut Ring) -> bool {
        let Some(oldest) = ring.recent.pop_front() else { return false };
        self.memory.0.fetch_sub(kept_bytes(&oldest), Ordering::Relaxed);
        ring.recent_bytes = ring.recent_bytes.saturating_sub(oldest.header.record_len());
        true
    }

    /// Gives back buffers of records that are on the medium while all groups together keep more than their part of the pool.
    fn free_kept(&self, ring: &mut Ring) {
        while self.memory.0.load(Ordering::Relaxed) > self.kept_limit
            && ring.recent.front().is_some_and(|oldest| oldest.header.sequence <= ring.durable)
        {
            self.forget_oldest(ring);
        }
    }

    /// Whether the caller becomes the writer, because records are placed and there is no writer. It calls
    /// [`Log::write_next`] until that returns `None`.
    pub fn claim_writer(&self) -> bool {
        self.ring().claim_writer()
    }

    /// What follows from a record that was placed: [`Log::claim_writer`] and [`Log::is_filling`].
    pub fn next_steps(&self) -> (bool, bool) {
        let mut ring = self.ring();
        (ring.claim_writer(), self.fills(&ring))
    }

    /// Writes the next batch, makes it durable, and returns its records without pads. `None`: no record was left, or
    /// the write has failed; the caller is no longer the writer.
    pub async fn write_next(&self) -> Option<Vec<Record>> {
        let batch = {
            let mut ring = self.ring();
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while let Some(mut queued) = ring.queue.pop_front() {
                let header = &mut queued.record.header;
                // Records through here are durable before any of this batch is written.
                header.settled = ring.durable;
                bytes = header.record_len().saturating_add(bytes);
                // A pad is written with the record behind it.
                let padded = header.kind == Kind::Pad;
                batch.push(queued);
                if bytes >= APPEND_BYTES && !padded {
                    break;
                }
            }
            if batch.is_empty() {
                ring.writing = false;
                return None;
            }
            batch
        };
        let written = self.write(&batch).await;
        let mut ring = self.ring();
        match written {
            Ok(()) => {
                ring.durable = batch.last().map_or(ring.durable, |last| last.record.header.sequence);
                self.free_kept(&mut ring);
                drop(ring);
                self.sends.notify();
                let records = batch.into_iter().map(|queued| queued.record);
                Some(records.filter(|record| record.header.kind != Kind::Pad).collect())
            }
            Err(e) => {
                ring.failed = Some(e.to_string());
                ring.writing = false;
                drop(ring);
                tracing::error!("group {}: its log cannot be written: {e}", self.names.group());
                self.sends.notify();
                None
            }
        }
    }

    /// Writes consecutive records, in two pieces where the ring starts over, and flushes.
    async fn write(&self, batch: &[Queued]) -> Result<(), Error> {
        let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let mut end = None;
        for Queued { record, position: at } in batch {
            debug_assert!(
                self.entry(record.header.sequence).is_some(),
                "it left the log before it was written"
            );
            match runs.last_mut() {
                Some((start, chain)) if end == Some(*at) && at > start => record.emit(chain),
                _ => {
                    let mut chain = Vec::with_capacity(record.pieces());
                    record.emit(&mut chain);
                    runs.push((*at, chain));
                }
            }
            end = Some(at.saturating_add(record.header.record_len() as u64));
        }
        // One piece is written and made durable in one call.
        let durable = runs.len() == 1;
        for (at, data) in runs {
            let offset = self.layout.log_at.saturating_add(at);
            self.block.submit(BlockOp::Write { offset, data, durable }).await?;
        }
        if !durable {
            self.block.submit(BlockOp::Flush).await?;
        }
        Ok(())
    }

    /// A record from memory, which may not be durable yet.
    pub fn recent(&self, sequence: u64) -> Option<Record> {
        let ring = self.ring();
        let first = ring.recent.front()?.header.sequence;
        ring.recent.get(usize::try_from(sequence.checked_sub(first)?).ok()?).cloned()
    }

    fn entry(&self, sequence: u64) -> Option<Entry> {
        let ring = self.ring();
        let first = ring.entries.front()?.header.sequence;
        ring.entries.get(usize::try_from(sequence.checked_sub(first)?).ok()?).copied()
    }

    /// The last sequence that was placed.
    pub fn last(&self) -> u64 {
        self.ring().last()
    }

    /// The last sequence that is durable.
    pub fn durable(&self) -> u64 {
        self.ring().durable
    }

    /// How full it is.
    pub fn fill(&self) -> Fill {
        let ring = self.ring();
        Fill {
            first: ring.entries.front().map_or(ring.next, |entry| entry.header.sequence),
            last: ring.last(),
            durable: ring.durable,
            used: ring.used,
        }
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        self.ring().failed.clone()
    }

    /// Waits until everything through `sequence` is durable. Fails if the log does.
    pub async fn durable_through(&self, sequence: u64) -> Result<(), Error> {
        let look = || match self.durable() >= sequence {
            true => Some(Ok(())),
            false => self.failure().map(|why| Err(Error::Halted(why))),
        };
        self.sends.until(look).await
    }

    /// Whether it is more than half full, so that room should be made.
    pub fn is_filling(&self) -> bool {
        self.fills(&self.ring())
    }

    fn fills(&self, ring: &Ring) -> bool {
        ring.used > self.layout.log_bytes / 2 || ring.entries.len() > MAX_RECORDS / 2
    }

    /// Through which sequence records have to go until it is half full; 0 if it is no fuller.
    pub fn excess(&self) -> u64 {
        let ring = self.ring();
        let (mut used, mut records) = (ring.used, ring.entries.len());
        let mut through = 0;
        for entry in &ring.entries {
            if used <= self.layout.log_bytes / 2 && records <= MAX_RECORDS / 2 {
                break;
            }
            used = used.saturating_sub(entry.bytes);
            records = records.saturating_sub(1);
            through = entry.header.sequence;
        }
        through
    }

    /// The last sequence that can go if the youngest `bytes` of records have to stay.
    pub fn through_leaving(&self, bytes: u64) -> u64 {
        let ring = self.ring();
        let mut rest = bytes;
        for entry in ring.entries.iter().rev() {
            match rest.checked_sub(entry.header.record_len() as u64) {
                Some(less) => rest = less,
                None => return entry.header.sequence,
            }
        }
        0
    }

    /// The last sequence that may be sent, if at most `bytes` of records may be sent before they are durable.
    pub fn through_ahead(&self, bytes: u64) -> u64 {
        let ring = self.ring();
        // A record that is not durable cannot be read from the medium yet.
        let kept = ring
            .recent
            .front()
            .is_some_and(|oldest| oldest.header.sequence <= ring.durable.saturating_add(1));
        if !kept || ring.failed.is_some() {
            return ring.durable;
        }
        // The records that are not durable are the last entries.
        let undurable = ring.last().saturating_sub(ring.durable) as usize;
        let (mut through, mut rest) = (ring.durable, bytes);
        for entry in ring.entries.range(ring.entries.len().saturating_sub(undurable)..) {
            match rest.checked_sub(entry.header.record_len() as u64) {
                Some(less) => (through, rest) = (entry.header.sequence, less),
                None => break,
            }
        }
        through
    }

    /// Headers of the records in the ring from `from` through `to`.
    pub fn headers(&self, from: u64, to: u64) -> Vec<Header> {
        let ring = self.ring();
        let Some(first) = ring.entries.front().map(|entry| entry.header.sequence) else { return Vec::new() };
        let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        let entries = ring.entries.iter().skip(skip).take_while(|entry| entry.header.sequence <= to);
        entries.map(|entry| entry.header).collect()
    }

    /// Bytes that the records behind `sequence` change, and the time of the first one.
    pub fn behind(&self, sequence: u64) -> (u64, Option<u64>) {
        let ring = self.ring();
        let Some(first) = ring.entries.front().map(|entry| entry.header.sequence) else { return (0, None) };
        let skip = usize::try_from(sequence.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let mut entries = ring.entries.iter().skip(skip);
        let Some(oldest) = entries.next() else { return (0, None) };
        let lengths = entries.map(|entry| entry.header.range_len());
        // A range may be as long as a volume.
        let bytes = lengths.fold(oldest.header.range_len(), u64::saturating_add);
        (bytes, Some(oldest.header.unix_ms))
    }

    /// Reads a durable record, from memory or from the medium. [`Error::Log`] if it is damaged, another error if it has
    /// left the log.
    pub async fn record(&self, sequence: u64) -> Result<Record, Error> {
        if let Some(record) = self.recent(sequence) {
            return Ok(record);
        }
        let entry = self.entry(sequence).ok_or(Error::State("the record has left the log"))?;
        let len = entry.header.payload_len();
        let mut payload = Ok(Vec::new());
        if len > 0 {
            let at = self.layout.log_at.saturating_add(entry.position).saturating_add(SECTOR as u64);
            payload = read(&self.block, &self.pool, at, len).await;
        }
        // It may have been freed and overwritten while it was read.
        if self.entry(sequence).is_none() {
            return Err(Error::State("the record has left the log"));
        }
        let record = payload.map(|payload| Record { header: entry.header, payload });
        match record {
            Ok(record) if record.is_whole() => Ok(record),
            Ok(_) => Err(Error::Log(Damage { first: sequence, last: sequence })),
            Err(e) => {
                tracing::warn!(
                    "group {}: record {sequence} of its log cannot be read: {e}",
                    self.names.group()
                );
                Err(Error::Log(Damage { first: sequence, last: sequence }))
            }
        }
    }

    /// The tail of the log without everything through `sequence`.
    pub fn tail_after(&self, sequence: u64) -> Tail {
        let ring = self.ring();
        let first = ring.entries.front().map_or(0, |entry| entry.header.sequence);
        let skip = usize::try_from(sequence.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        match ring.entries.get(skip) {
            Some(entry) => {
                let pad = entry.pad();
                let position = if pad > 0 { self.layout.to_end(pad) } else { entry.position };
                Tail { position, sequence: entry.header.sequence, life: entry.header.life }
            }
            None => Tail { position: ring.head, sequence: ring.next, life: ring.life },
        }
    }

    /// Frees everything through `sequence`. The durable state already has the new tail.
    pub fn free_through(&self, sequence: u64) {
        let mut ring = self.ring();
        while let Some(entry) = ring.entries.front().copied().filter(|e| e.header.sequence <= sequence) {
            ring.used = ring.used.saturating_sub(entry.bytes);
            ring.entries.pop_front();
        }
        while ring.recent.front().is_some_and(|record| record.header.sequence <= sequence) {
            self.forget_oldest(&mut ring);
        }
    }

    /// Empties the log, which goes on behind `base`. The durable state already says so, with this life. Nothing may be
    /// queued.
    pub fn restart(&self, base: u64, life: u64) {
        let mut ring = self.ring();
        ring.entries.clear();
        while self.forget_oldest(&mut ring) {}
        ring.used = 0;
        ring.next = base.saturating_add(1);
        ring.durable = base;
        ring.life = life;
    }
}
