//! A writable snapshot of a block that goes on changing: granules that differ lie in a separate store.
//!
//! Before the base changes, [`Overlay::preserve`] copies the old content to the store; before a partial write to the
//! snapshot, the rest of the granule is copied there. One operation runs at a time: a snapshot is for tests. The index
//! of the store is in memory only, so a snapshot does not survive a restart.
//!
//! A snapshot that cannot preserve the old content ends, and answers every request with an error. The base goes on,
//! because users rely on it.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Payload, Pool};
use weft_store::block::{Block, BlockOp, Extent, Geometry, Outcome};

use crate::error::Error;
use crate::journal::read;
use crate::signal::Gate;

/// What is copied at a time.
const GRANULE: u64 = 64 << 10;
/// The longest read of a snapshot.
const MAX_READ: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub struct Overlay {
    member: u16,
    /// Its name in messages.
    what: String,
    base: Arc<dyn Block>,
    store: Arc<dyn Block>,
    pool: Pool,
    size: u64,
    kept: Mutex<Vec<u64>>,
    gate: Gate,
    /// Why it has ended, if so.
    ended: OnceLock<String>,
}

impl Overlay {
    /// A snapshot of the first `size` bytes of `base` as they are now. `store` reads as zeros and is as long. `what` is
    /// what messages call the volume.
    pub(crate) fn new(
        member: u16,
        what: String,
        base: Arc<dyn Block>,
        store: Arc<dyn Block>,
        size: u64,
        pool: Pool,
    ) -> Overlay {
        let words = size.div_ceil(GRANULE).div_ceil(64) as usize;
        Overlay {
            member,
            what,
            base,
            store,
            pool,
            size,
            kept: Mutex::new(vec![0; words]),
            gate: Gate::default(),
            ended: OnceLock::new(),
        }
    }

    /// Why it has ended, if so.
    pub(crate) fn ended(&self) -> Option<String> {
        self.ended.get().cloned()
    }

    /// The number of its volume in the group.
    pub(crate) fn member(&self) -> u16 {
        self.member
    }

    fn is_kept(&self, granule: u64) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get((granule / 64) as usize).is_some_and(|word| word & (1 << (granule % 64)) != 0)
    }

    fn set_kept(&self, granule: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = kept.get_mut((granule / 64) as usize) {
            *word |= 1 << (granule % 64);
        }
    }

    /// The granule that a byte is in.
    fn granule_at(offset: u64) -> u64 {
        offset / GRANULE
    }

    fn granules(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len).min(self.size);
        Overlay::granule_at(offset)..end.div_ceil(GRANULE)
    }

    fn bounds(&self, granule: u64) -> Range<u64> {
        let start = granule.saturating_mul(GRANULE);
        start..start.saturating_add(GRANULE).min(self.size)
    }

    /// Preserves a range that is about to change in the base. The base may change it in any case.
    pub(crate) async fn preserve(&self, offset: u64, len: u64) {
        let _turn = self.gate.enter().await;
        for granule in self.granules(offset, len) {
            if self.ended.get().is_some() {
                return;
            }
            if let Err(e) = self.keep(granule).await {
                return self.end(&e).await;
            }
        }
    }

    /// Ends the snapshot and frees its store, which is useless now and may be what fills the disk.
    async fn end(&self, e: &Error) {
        let why = format!("the snapshot of {} has ended, because its store failed: {e}", self.what);
        tracing::error!("{why}; replication goes on");
        // First of all: the base changes as soon as nobody waits here.
        let _first = self.ended.set(why);
        let all = BlockOp::Trim { offset: 0, len: self.size, durable: false };
        if let Err(e) = self.store.submit(all).await {
            tracing::warn!(
                "the store of the snapshot of {} could not be emptied, and is freed when its test failover ends: {e}",
                self.what
            );
        }
    }

    async fn keep(&self, granule: u64) -> Result<(), Error> {
        if self.is_kept(granule) {
            return Ok(());
        }
        let Range { start, end } = self.bounds(granule);
        let data = read(&self.base, &self.pool, start, end.saturating_sub(start) as usize).await?;
        self.store.submit(BlockOp::Write { offset: start, data, durable: false }).await?;
        self.set_kept(granule);
        Ok(())
    }

    /// Reads the bytes at once: a later read would see the base changed.
    async fn read(&self, range: Range<u64>) -> Result<Vec<Bytes>, Error> {
        let mut chain = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let granule = Overlay::granule_at(at);
            let kept = self.is_kept(granule);
            let mut end = self.bounds(granule).end.min(range.end);
            while end < range.end && self.is_kept(Overlay::granule_at(end)) == kept {
                end = self.bounds(Overlay::granule_at(end)).end.min(range.end);
            }
            let from = if kept { &self.store } else { &self.base };
            chain.extend(read(from, &self.pool, at, end.saturating_sub(at) as usize).await?);
            at = end;
        }
        Ok(chain)
    }

    /// Prepares a write: granules that it replaces only in part are preserved, the others count as preserved.
    async fn prepare(&self, offset: u64, len: u64) -> Result<(), Error> {
        for granule in self.granules(offset, len) {
            let bounds = self.bounds(granule);
            if bounds.start < offset || bounds.end > offset.saturating_add(len) {
                self.keep(granule).await?;
            }
        }
        Ok(())
    }

    async fn carry_out(&self, op: BlockOp) -> Result<Outcome, Error> {
        let (offset, len, op) = match op {
            BlockOp::Read { offset, len } if len as u64 > MAX_READ => {
                return Err(weft_store::Error::Invalid).map_err(|e: weft_store::Error| {
                    tracing::debug!("a read of {len} bytes at {offset} of a snapshot");
                    e.into()
                });
            }
            BlockOp::Read { offset, len } => {
                let range = offset..offset.saturating_add(len as u64);
                return Ok(Outcome::Data(Payload::Chain(self.read(range).await?)));
            }
            BlockOp::Flush => return Ok(self.store.submit(BlockOp::Flush).await?),
            BlockOp::Status { len, .. } => {
                return Ok(Outcome::Extents(vec![Extent { len, hole: false }]));
            }
            BlockOp::Write { offset, data, durable } => {
                let len = data.iter().map(|bytes| bytes.len() as u64).sum();
                (offset, len, BlockOp::Write { offset, data, durable })
            }
            BlockOp::WriteZeroes { offset, len, durable, keep_space, fast } => {
                (offset, len, BlockOp::WriteZeroes { offset, len, durable, keep_space, fast })
            }
            // Zeros, not the old content: the store holds other bytes there.
            BlockOp::Trim { offset, len, durable } => {
                (offset, len, BlockOp::WriteZeroes { offset, len, durable, keep_space: false, fast: false })
            }
        };
        self.prepare(offset, len).await?;
        let outcome = self.store.submit(op).await?;
        self.granules(offset, len).for_each(|granule| self.set_kept(granule));
        Ok(outcome)
    }
}

impl Block for Overlay {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, ..self.store.geometry() }
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, weft_store::Error>> {
        Box::pin(async move {
            op.validate(self.size)?;
            let _turn = self.gate.enter().await;
            if let Some(why) = self.ended() {
                return Err(weft_store::Error::Io(std::io::Error::other(why)));
            }
            self.carry_out(op).await.map_err(|e| match e {
                Error::Store(e) => e,
                other => weft_store::Error::Io(std::io::Error::other(other.to_string())),
            })
        })
    }
}
