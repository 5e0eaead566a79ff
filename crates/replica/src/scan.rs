//! Reads a ring that nobody writes to, record after record from its tail, and tells its end from damage.
//!
//! Records are written in batches, none before the previous one is durable. So a crash may leave any part of the last
//! batch, and leaves all of those before. If a later record says that a missing one was settled, others relied on that,
//! and it is damage, not the end. A record that the medium cannot read may have been anything, and counts as damage.
//! Damage to the last batch cannot be told from an end if nothing was written behind it; a partner that has the batch
//! notices.
//!
//! What damage means for a side is decided in [`crate::source`] and [`crate::destination`].

use std::ops::Range;

use bytes::Bytes;
use weft_store::block::{BlockOp, Extent, Outcome};

use crate::error::Damage;
use crate::journal::{Side, read};
use crate::record::{Header, Kind, Record, SECTOR};
use crate::state::{Layout, State};

/// Bytes of one read.
const WINDOW_BYTES: usize = 1 << 20;

/// What was found where the next record is expected.
pub(crate) enum Found {
    /// That record, and its position.
    Record(Record, u64),
    /// Anything else.
    End,
    /// The medium cannot read it.
    Unreadable,
}

/// Reads one record after the other through a window.
pub(crate) struct Scan<'a> {
    side: &'a Side,
    layout: Layout,
    log: u64,
    at: u64,
    window: Bytes,
    window_at: u64,
    /// How much to read next.
    step: usize,
    /// A range that is known to be no hole.
    stored: Range<u64>,
}

impl<'a> Scan<'a> {
    /// Starts at the tail that the state names.
    pub fn new(side: &'a Side, state: &State) -> Scan<'a> {
        let (layout, at) = (state.layout, state.tail.position);
        let (log, window) = (state.log, Bytes::new());
        Scan { side, layout, log, at, window, window_at: 0, step: WINDOW_BYTES, stored: 0..0 }
    }

    /// The record of this sequence, of this life or a later one.
    pub async fn next(&mut self, sequence: u64, least: u64) -> Found {
        if self.layout.to_end(self.at) < SECTOR as u64 {
            self.at = 0;
        }
        let at = self.at;
        let Some(head) = self.bytes(at, SECTOR).await else { return Found::Unreadable };
        let Ok(header) = Header::parse(&head) else { return Found::End };
        let expected = header.log == self.log && header.sequence == sequence && header.life >= least;
        if !expected {
            return Found::End;
        }
        self.take(header).await
    }

    /// The record whose header lies at the current position.
    async fn take(&mut self, header: Header) -> Found {
        let at = self.at;
        if header.record_len() as u64 > self.layout.to_end(at) {
            return Found::End;
        }
        let mut payload = Vec::new();
        if header.payload_len() > 0 {
            let Some(bytes) = self.bytes(at.saturating_add(SECTOR as u64), header.payload_len()).await else {
                return Found::Unreadable;
            };
            payload.push(bytes);
        }
        let record = Record { header, payload };
        if !record.is_whole() {
            return Found::End;
        }
        self.at = match header.kind {
            Kind::Pad => 0,
            _ => self.layout.place(at.saturating_add(header.record_len() as u64)),
        };
        Found::Record(record, at)
    }

    /// Whether `missing`, which was not found, was durable once, according to the next `rest` bytes of the ring.
    pub async fn damage(
        &mut self,
        missing: u64,
        least: u64,
        mut rest: u64,
        unreadable: bool,
    ) -> Option<Damage> {
        let (mut last, mut relied_on) = (missing, unreadable);
        while let Some(header) = self.seek(&mut rest, missing, least).await {
            relied_on |= header.settled >= missing;
            let before_a_pad = u64::from(header.kind == Kind::Pad);
            last = last.max(header.settled).max(header.sequence.saturating_sub(before_a_pad));
            self.pass(&mut rest, SECTOR as u64);
        }
        relied_on.then_some(Damage { first: missing, last })
    }

    /// The next whole record behind damage that continues its history above `above`, in no more than `rest` bytes.
    pub async fn salvage(&mut self, rest: &mut u64, above: u64, least: u64) -> Option<Record> {
        while let Some(header) = self.seek(rest, above, least).await {
            if header.kind != Kind::Pad
                && let Found::Record(record, _) = self.take(header).await
            {
                *rest = rest.saturating_sub(record.header.record_len() as u64);
                return Some(record);
            }
            self.pass(rest, SECTOR as u64);
        }
        None
    }

    /// Moves to the next sector that begins a record of at least this sequence and life.
    async fn seek(&mut self, rest: &mut u64, sequence: u64, least: u64) -> Option<Header> {
        while *rest >= SECTOR as u64 {
            if self.layout.to_end(self.at) < SECTOR as u64 {
                let end = self.layout.to_end(self.at);
                self.pass(rest, end);
            }
            let hole = self.hole().await;
            if hole > 0 {
                self.pass(rest, hole);
                continue;
            }
            if let Some(bytes) = self.bytes(self.at, SECTOR).await
                && let Ok(header) = Header::parse(&bytes)
                && header.log == self.log
                && header.sequence >= sequence
                && header.life >= least
            {
                return Some(header);
            }
            self.pass(rest, SECTOR as u64);
        }
        None
    }

    /// Bytes from here on, in whole sectors, that were never written, so that no record begins in them. Most of a large
    /// log may be a hole, and reading a hole of a volume in memory would allocate it.
    async fn hole(&mut self) -> u64 {
        if self.stored.contains(&self.at) {
            return 0;
        }
        let (offset, len) = (self.layout.log_at.saturating_add(self.at), self.layout.to_end(self.at));
        let extent = match self.side.journal.submit(BlockOp::Status { offset, len, max_extents: 1 }).await {
            Ok(Outcome::Extents(extents)) => extents.first().copied(),
            // If that is not known, it is read.
            _ => None,
        };
        let Extent { len, hole } = extent.unwrap_or(Extent { len, hole: false });
        match hole {
            true => len.saturating_sub(len.checked_rem(SECTOR as u64).unwrap_or(0)),
            false => {
                self.stored = self.at..self.at.saturating_add(len);
                0
            }
        }
    }

    fn pass(&mut self, rest: &mut u64, bytes: u64) {
        self.at = self.layout.place(self.at.saturating_add(bytes));
        *rest = rest.saturating_sub(bytes);
    }

    /// Bytes of the ring; `None` where its medium cannot read them.
    async fn bytes(&mut self, at: u64, len: usize) -> Option<Bytes> {
        let inside = |start: u64, window: &Bytes| {
            let skip = usize::try_from(at.checked_sub(start)?).ok()?;
            let end = skip.checked_add(len)?;
            (end <= window.len()).then(|| window.slice(skip..end))
        };
        if let Some(bytes) = inside(self.window_at, &self.window) {
            return Some(bytes);
        }
        let most = usize::try_from(self.layout.to_end(at)).unwrap_or(WINDOW_BYTES);
        let mut want = self.step.max(len).min(most);
        loop {
            match read(&self.side.journal, &self.side.pool, self.layout.log_at.saturating_add(at), want).await
            {
                Ok(chain) => {
                    self.window = match <[Bytes; 1]>::try_from(chain) {
                        Ok([whole]) => whole,
                        Err(chain) => chain.concat().into(),
                    };
                    self.window_at = at;
                    self.step = want.saturating_mul(2).clamp(SECTOR, WINDOW_BYTES);
                    return inside(at, &self.window);
                }
                // The needed bytes may be readable although a sector behind them is not, so the window is halved.
                // Failing reads are slow on disks, so it grows again in steps.
                Err(_) if want > len => {
                    want = (want / 2).max(len);
                    self.step = want;
                }
                Err(e) => {
                    let group = self.side.names.group();
                    tracing::warn!("group {group}: {len} bytes of its log, at {at}, cannot be read: {e}");
                    return None;
                }
            }
        }
    }
}
