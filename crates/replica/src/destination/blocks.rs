//! Resyncs and comparisons: blocks that bypass the log on their way to the volumes, and checksums of what the volumes
//! hold.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{RemotePayload, rt};
use weft_store::block::{Block, BlockOp};
use weft_wire::repl::control::Refusal;
use weft_wire::repl::record::SECTOR;

use super::Destination;
use super::waiting::Awaited;
use crate::digest::digests;
use crate::error::Error;
use crate::journal::read;
use crate::replay;

/// The longest range of one comparison.
const MAX_CHECK_BYTES: u64 = 64 << 20;
/// The least bytes of a piece: as many as sources ask for. The digest of a few bytes would reveal them.
const LEAST_PIECE: u32 = 64 << 10;

impl Destination {
    /// Stores bytes in a volume, bypassing the log. Durable after a barrier.
    pub fn write_blocks(
        self: &Arc<Self>,
        session: u64,
        member: u16,
        offset: u64,
        data: Vec<Bytes>,
    ) -> LocalBoxFuture<'_, Result<(), Refusal>> {
        Box::pin(
            async move { self.store(session, member, BlockOp::Write { offset, data, durable: false }).await },
        )
    }

    /// Lets a peer's memory fill a range of a volume, bypassing the log, as [`Destination::write_blocks`] would store it. The
    /// range may be torn, because the copy is inconsistent meanwhile. Returns false if the volume does not lie in memory, or
    /// the peer's memory is out of reach.
    pub fn fill_blocks<'a>(
        self: &'a Arc<Self>,
        session: u64,
        member: u16,
        offset: u64,
        payload: &'a dyn RemotePayload,
        len: usize,
    ) -> LocalBoxFuture<'a, Result<bool, Refusal>> {
        Box::pin(async move {
            let (_stores, block) = self.stores(session, member)?;
            let Some(file) = block.memory() else { return Ok(false) };
            let bytes = len as u64;
            if !self.is_inside(member, offset, bytes) {
                return Err(Refusal::Invalid);
            }
            self.preserve_range(member, offset, bytes).await;
            match payload.fill(file, offset, len) {
                None => Ok(false),
                Some(Ok(())) => {
                    self.handle(|core| core.stored(bytes));
                    Ok(true)
                }
                Some(Err(e)) => {
                    Err(self.medium(&replay::of_volume(&self.side, usize::from(member), e.into())))
                }
            }
        })
    }

    /// Prepares to store bytes in a volume, bypassing the log. The first value marks that as under way until it is
    /// dropped.
    fn stores(&self, session: u64, member: u16) -> Result<(Stores<'_>, &Arc<dyn Block>), Refusal> {
        let stores = self.handle(|core| {
            self.hear(core, session)?;
            if core.state.consistent {
                // Blocks are copied only during a resync: a consistent copy must not change.
                return Err(Refusal::Invalid);
            }
            core.storing = core.storing.saturating_add(1);
            Ok(Stores(self))
        })?;
        let block = self.bare.get(usize::from(member)).ok_or(Refusal::Invalid)?;
        Ok((stores, block))
    }

    pub(super) async fn store(&self, session: u64, member: u16, op: BlockOp) -> Result<(), Refusal> {
        let (_stores, block) = self.stores(session, member)?;
        let (bytes, (offset, len)) = match &op {
            BlockOp::Write { data, offset, .. } => {
                let bytes = data.iter().map(|bytes| bytes.len() as u64).sum();
                (bytes, (*offset, bytes))
            }
            BlockOp::WriteZeroes { offset, len, .. } => (0, (*offset, *len)),
            _ => return Err(Refusal::Invalid),
        };
        if !self.is_inside(member, offset, len) {
            return Err(Refusal::Invalid);
        }
        self.preserve(member, &op).await;
        match block.submit(op).await {
            Ok(_) => {
                self.handle(|core| core.stored(bytes));
                Ok(())
            }
            Err(weft_store::Error::Invalid) => Err(Refusal::Invalid),
            Err(e) => Err(self.medium(&replay::of_volume(&self.side, usize::from(member), e))),
        }
    }

    pub(super) async fn barrier(&self, session: u64) -> Result<(), Refusal> {
        self.check(session)?;
        let flushed = self.space.unless_full(replay::flush(&self.side)).await.ok_or(Refusal::NoSpace)?;
        flushed.map_err(|e| self.medium(&e))
    }

    pub(super) async fn checksums(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        len: u64,
        piece: u32,
        after: u64,
    ) -> Result<Vec<[u8; 16]>, Refusal> {
        self.check(session)?;
        let block = self.side.members.get(usize::from(member)).ok_or(Refusal::Invalid)?;
        // The last piece ends with the range, at the end of an extent or of the volume, so on a sector.
        let whole = |n: u64| n.is_multiple_of(SECTOR as u64);
        if len == 0 || len > MAX_CHECK_BYTES || !whole(offset) || !whole(len) || piece < LEAST_PIECE {
            return Err(Refusal::Invalid);
        }
        if !self.is_inside(member, offset, len) {
            return Err(Refusal::Invalid);
        }
        self.until_has(session, Awaited::Applied(after)).await?;
        self.recheck(session)?;
        let chain = read(block, &self.side.pool, offset, len as usize).await.map_err(|e| match e {
            Error::Store(e) => self.medium(&replay::of_volume(&self.side, usize::from(member), e)),
            other => self.medium(&other),
        })?;
        Ok(rt::blocking(move || digests(&chain, piece as usize)).await)
    }
}

/// Marks blocks as being written to a volume until it is dropped.
struct Stores<'a>(&'a Destination);

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        self.0.release(|core| core.storing = core.storing.saturating_sub(1));
    }
}
