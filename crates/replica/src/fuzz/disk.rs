//! A disk of the simulation: forgets what was not flushed when its host dies, tears writes, rots, and carries out
//! changes whose futures were dropped, later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::clock::Time;
use weft_machine::sim::{Rng, with_rng};
use weft_machine::{Payload, rt};
use weft_store::Error;
use weft_store::block::{Block, BlockOp, Extent, Geometry, Medium, Outcome};

const SECTOR: usize = 512;

/// What is on the disk; it outlives hosts.
#[derive(Debug, Default)]
struct Platter {
    /// As the living host sees it.
    seen: Vec<u8>,
    /// What the death of the host leaves for certain.
    durable: Vec<u8>,
    /// Since the last flush, with a number each.
    pending: Vec<(u64, usize, Vec<u8>)>,
    next: u64,
    /// Sectors that cannot be read until they are written to.
    failed: BTreeSet<usize>,
    /// Where the next write goes instead.
    misdirected: Option<usize>,
    /// Handles of hosts that have died say another number.
    host: u64,
    /// Nothing more can be written.
    full: bool,
    /// It answers everything with an error.
    broken: bool,
    /// Nanoseconds that an operation takes at most.
    slowest: u64,
    /// Nanoseconds that a flush takes for each byte that was written since the last one.
    flush_per_byte: u64,
    /// Changes whose futures were dropped, and when they land: later requests wait for that, as `store::block`
    /// promises.
    abandoned: Vec<(Time, usize, Vec<u8>)>,
}

/// How much longer a change takes whose future was dropped.
const ABANDONED_TIMES: u64 = 50;

impl Platter {
    fn put(&mut self, at: usize, data: Vec<u8>) {
        self.seen[at..at + data.len()].copy_from_slice(&data);
        let sectors = at / SECTOR..(at + data.len()).div_ceil(SECTOR);
        self.failed.retain(|sector| !sectors.contains(sector));
        let number = self.next;
        self.next += 1;
        self.pending.push((number, at, data));
    }

    /// Abandoned changes have landed.
    fn land(&mut self) {
        for (_, at, data) in std::mem::take(&mut self.abandoned) {
            self.put(at, data);
        }
    }
}

/// A disk, to be opened by one host after the other.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<Platter>>);

/// A host's handle. When the host has died, what it asks for never ends.
#[derive(Clone, Debug)]
pub struct Handle {
    disk: Disk,
    host: u64,
}

impl Disk {
    pub fn new(content: Vec<u8>, slowest: Duration) -> Disk {
        let platter = Platter {
            seen: content.clone(),
            durable: content,
            slowest: slowest.as_nanos() as u64,
            ..Platter::default()
        };
        Disk(Arc::new(Mutex::new(platter)))
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().expect("no test panics with it locked")
    }

    pub fn open(&self) -> Arc<dyn Block> {
        let platter = self.platter();
        Arc::new(Handle { disk: self.clone(), host: platter.host })
    }

    /// It has `size` bytes from now on, if it has less, and what is new holds anything.
    pub fn lengthen(&self, size: usize, rng: &mut Rng) {
        let mut platter = self.platter();
        let mut new = vec![0; size.saturating_sub(platter.seen.len())];
        rng.fill(&mut new);
        platter.seen.extend(&new);
        platter.durable.extend(&new);
    }

    /// What the host sees now.
    pub fn content(&self) -> Vec<u8> {
        let mut platter = self.platter();
        platter.land();
        platter.seen.clone()
    }

    /// What was flushed.
    #[cfg(test)]
    pub fn durable(&self) -> Vec<u8> {
        self.platter().durable.clone()
    }

    /// The host dies: of what was not flushed, each write is there, is not, or is there in part.
    pub fn die(&self, rng: &mut Rng) {
        let mut platter = self.platter();
        platter.land();
        let Platter { durable, pending, .. } = &mut *platter;
        for (_, at, data) in pending.drain(..) {
            let fate = rng.below(3);
            for (number, sector) in data.chunks(SECTOR).enumerate() {
                if fate == 0 || (fate == 1 && rng.below(2) == 0) {
                    let start = at + number * SECTOR;
                    durable[start..start + sector.len()].copy_from_slice(sector);
                }
            }
        }
        platter.seen = platter.durable.clone();
        platter.host += 1;
    }

    /// Of what was not flushed nothing is there when the host dies.
    pub fn forget(&self) {
        let mut platter = self.platter();
        platter.abandoned.clear();
        platter.pending.clear();
    }

    /// The sector there cannot be read any more, until it is written to.
    pub fn fail(&self, at: usize) {
        self.platter().failed.insert(at / SECTOR);
    }

    /// The next write goes there, and nobody is told.
    pub fn misdirect(&self, to: usize) {
        self.platter().misdirected = Some(to);
    }

    /// Bytes are there as if they had been written, durably.
    pub fn plant(&self, at: usize, data: &[u8]) {
        let mut platter = self.platter();
        platter.seen[at..at + data.len()].copy_from_slice(data);
        platter.durable[at..at + data.len()].copy_from_slice(data);
    }

    /// Another disk is in its place, or what is left of it: whoever has it open goes on with that.
    pub fn replace(&self, content: Vec<u8>) {
        let mut platter = self.platter();
        platter.abandoned.clear();
        platter.pending.clear();
        platter.failed.clear();
        platter.durable.clone_from(&content);
        platter.seen = content;
    }

    /// An operation takes so long at most from now on.
    #[cfg(test)]
    pub fn slow_down(&self, slowest: Duration) {
        self.platter().slowest = slowest.as_nanos() as u64;
    }

    /// A flush takes so long for each byte from now on.
    #[cfg(test)]
    pub fn slow_flushes_down(&self, per_byte: Duration) {
        self.platter().flush_per_byte = per_byte.as_nanos() as u64;
    }

    /// There is no space any more, or there is again.
    pub fn fill(&self, full: bool) {
        self.platter().full = full;
    }

    /// It answers everything with an error, or works again.
    pub fn break_down(&self, broken: bool) {
        self.platter().broken = broken;
    }

    /// A disk that has failed is read after all.
    pub fn mend(&self) {
        self.platter().failed.clear();
    }

    /// One of the first so many bytes changes by itself.
    pub fn rot(&self, first: usize, rng: &mut Rng) {
        let mut platter = self.platter();
        let at = rng.below(first / SECTOR) * SECTOR + rng.below(SECTOR);
        platter.seen[at] ^= 0x55;
        platter.durable[at] ^= 0x55;
    }
}

impl Handle {
    async fn pause(&self) {
        let most = self.disk.platter().slowest;
        rt::sleep(Duration::from_nanos(with_rng(|rng| rng.within(0..=most)))).await;
        self.alive().await;
    }

    async fn alive(&self) {
        if self.disk.platter().host != self.host {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for changes whose futures were dropped.
    async fn finish_abandoned(&self) {
        loop {
            let last = self.disk.platter().abandoned.iter().map(|(lands, ..)| *lands).max();
            let Some(last) = last else { return };
            rt::sleep_until(last).await;
            self.alive().await;
            let mut platter = self.disk.platter();
            if platter.abandoned.iter().all(|(lands, ..)| *lands <= last) {
                platter.land();
            }
        }
    }

    /// Changes bytes. A future that is dropped once this has begun does not keep them from landing.
    async fn put(&self, offset: u64, data: Vec<u8>, is_hint: bool) -> Result<(), Error> {
        let mut begun = Begun { handle: self, change: Some((offset as usize, data)) };
        self.pause().await;
        let change = begun.change.take();
        let mut platter = self.disk.platter();
        if platter.broken {
            return Err(std::io::Error::from_raw_os_error(5).into());
        }
        if platter.full && !is_hint {
            return Err(Error::NoSpace);
        }
        if let Some((at, data)) = change {
            let at = platter.misdirected.take().unwrap_or(at);
            platter.put(at, data);
        }
        Ok(())
    }

    async fn flush(&self) {
        let (until, nanos) = {
            let platter = self.disk.platter();
            let bytes: usize = platter.pending.iter().map(|(_, _, data)| data.len()).sum();
            (platter.next, platter.flush_per_byte.saturating_mul(bytes as u64))
        };
        self.pause().await;
        if nanos > 0 {
            rt::sleep(Duration::from_nanos(nanos)).await;
            self.alive().await;
        }
        let mut platter = self.disk.platter();
        let Platter { durable, pending, .. } = &mut *platter;
        pending.retain(|(number, at, data)| {
            let stays = *number >= until;
            if !stays {
                durable[*at..*at + data.len()].copy_from_slice(data);
            }
            stays
        });
    }
}

/// A change that lands later when this is dropped before it is taken.
struct Begun<'a> {
    handle: &'a Handle,
    change: Option<(usize, Vec<u8>)>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let Some((at, data)) = self.change.take() else { return };
        let mut platter = self.handle.disk.platter();
        if platter.host == self.handle.host && !platter.full {
            let lands = rt::now() + Duration::from_nanos(platter.slowest.saturating_mul(ABANDONED_TIMES));
            platter.abandoned.push((lands, at, data));
        }
    }
}

impl Block for Handle {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.disk.platter().seen.len() as u64, medium: Medium::File, preferred: 512 }
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            op.validate(self.geometry().size)?;
            self.alive().await;
            self.finish_abandoned().await;
            let change = match &op {
                BlockOp::Write { offset, data, .. } => Some((*offset, data.concat())),
                BlockOp::WriteZeroes { offset, len, .. } | BlockOp::Trim { offset, len, .. } => {
                    Some((*offset, vec![0; *len as usize]))
                }
                _ => None,
            };
            match change {
                None => {
                    self.pause().await;
                    if self.disk.platter().broken {
                        return Err(std::io::Error::from_raw_os_error(5).into());
                    }
                }
                Some((offset, data)) => self.put(offset, data, matches!(op, BlockOp::Trim { .. })).await?,
            }
            let must_last = match op {
                BlockOp::Read { offset, len } => {
                    let at = offset as usize;
                    let platter = self.disk.platter();
                    let sectors = at / SECTOR..(at + len).div_ceil(SECTOR);
                    if platter.failed.range(sectors).next().is_some() {
                        return Err(std::io::Error::from_raw_os_error(5).into());
                    }
                    let bytes = Bytes::copy_from_slice(&platter.seen[at..at + len]);
                    return Ok(Outcome::Data(Payload::Chain(vec![bytes])));
                }
                BlockOp::Status { offset, len, max_extents } => {
                    // Whole runs of zeros are holes: as a sparse file would have it.
                    let platter = self.disk.platter();
                    let mut rest = &platter.seen[offset as usize..(offset + len) as usize];
                    let mut extents = Vec::new();
                    while !rest.is_empty() && extents.len() < max_extents {
                        let hole = rest.iter().take(4096).all(|byte| *byte == 0);
                        let same = |piece: &&[u8]| piece.iter().all(|byte| *byte == 0) == hole;
                        let run: usize = rest.chunks(4096).take_while(same).map(<[u8]>::len).sum();
                        extents.push(Extent { len: run as u64, hole });
                        rest = &rest[run..];
                    }
                    return Ok(Outcome::Extents(extents));
                }
                BlockOp::Write { durable, .. }
                | BlockOp::WriteZeroes { durable, .. }
                | BlockOp::Trim { durable, .. } => durable,
                BlockOp::Flush => true,
            };
            if must_last {
                self.flush().await;
            }
            Ok(Outcome::Done)
        })
    }
}
