//! Ends a group for good: its volumes become ordinary volumes (docs/replication.md, "Fronts").

use std::sync::Arc;

use weft_store::block::{Block, BlockOp};

use super::life::Core;
use super::{Cause, Group, LINKS_END_WITHIN, State};
use crate::error::Error;
use crate::source::Source;
use crate::status::{Phase, Status};

/// Proof that the volumes of a group hold every answered write, durably, and have no users. Only then may the group's
/// log be removed.
#[derive(Debug)]
pub struct Settled(());

/// The fronts of a group while [`Group::end`] runs: their requests wait. When this is dropped, none waits any more,
/// wherever `end` stopped.
struct HeldFronts<'a> {
    group: &'a Group,
    /// The running source, as long as nothing has changed: it carries out the requests if the group does not end.
    source: Option<Arc<Source>>,
    /// Otherwise they are refused, for this reason.
    why: String,
}

impl Drop for HeldFronts<'_> {
    fn drop(&mut self) {
        if self.group.owner.is_broken() {
            return;
        }
        let Some(source) = self.source.take() else {
            if !self.group.is_ending() {
                self.group.owner.handle(|core| core.hold_fronts(false));
            }
            return self.group.fronts.iter().for_each(|front| front.refuse(&self.why));
        };
        // In this order: a source that stops after this look has its fronts closed by the task.
        self.group.owner.handle(|core| core.hold_fronts(false));
        let halted = source.halted();
        for (member, front) in self.group.fronts.iter().enumerate() {
            match &halted {
                Some((_, why)) => front.refuse(why),
                None => front.begin(source.block(member)),
            }
        }
    }
}

impl Group {
    /// Ends it for good: `forget` removes the group's files, durably, and then the volumes are ordinary volumes, with
    /// the blocks `bare`. The order keeps a crash or an error from losing answered writes: the volumes hold the records
    /// of the log, durably, before that is removed; and nobody writes to them directly while a crash could bring the
    /// group back.
    ///
    /// Requests wait meanwhile: the source carries out those that it has begun, and the volumes carry out the rest. No
    /// request is refused because of this, unless it fails.
    ///
    /// After an error the group is as it was, or closed until this is called again; a side whose log could not be
    /// applied is closed until the server starts again. `give_up` gives up the records that a copy cannot apply.
    pub async fn end(
        &self,
        bare: &[Arc<dyn Block>],
        give_up: bool,
        forget: impl AsyncFnOnce(&Settled) -> Result<(), String>,
    ) -> Result<(), String> {
        if !self.is_settled() {
            // Before its fronts are touched: their requests wait for it to be opened.
            self.is_open()?;
            self.prepare_end(bare, give_up).await?;
        }
        let mut held = self.hold_to_end(give_up).await?;
        let ended = async {
            let settled = self.settle(held.source.take(), give_up).await?;
            forget(&settled).await
        };
        if let Err(why) = ended.await {
            held.why.clone_from(&why);
            return Err(why);
        }
        for (front, block) in self.fronts.iter().zip(bare) {
            front.open(block.clone()).await;
        }
        Ok(())
    }

    /// Refuses to end if that would lose something or wait for long, and applies the log of a stopped source if the
    /// volumes lack its records. An error leaves everything as it was.
    async fn prepare_end(&self, bare: &[Arc<dyn Block>], give_up: bool) -> Result<(), String> {
        if let Some(status) = self.copy_that_counts(give_up)
            && status.full
        {
            return Err(format!(
                "{}: a disk is full here, and {} records that its source has answered are in its log alone: make room first, or --force \
                 gives them up",
                self.name,
                status.last.saturating_sub(status.applied)
            ));
        }
        self.has_room()?;
        // If its partnership was ended once, its log may be older than its volumes.
        if let State::Stopped(stopped) = self.state()
            && stopped.cause != Cause::Over
            && let Some(source) = &stopped.source
        {
            let name = &self.name;
            source.apply_all().await.map_err(|e| {
                format!("{name}: its log cannot be applied to its volumes: {e}. To give that up: `weft replica resolve {name} --keep there`")
            })?;
        }
        let flushed = match self.state() {
            State::Stopped(stopped) if stopped.source.is_some() => flush(bare).await.map_err(Error::from),
            // It is flushed when it is closed; if most is done before, requests do not wait for it.
            State::Source(source) if !self.is_ending() => source.checkpoint().await,
            // A copy is flushed when it is closed; for others it is unknown what is missing.
            _ => Ok(()),
        };
        flushed.map_err(|e| format!("{}: its volumes cannot be flushed, so its log stays: {e}", self.name))
    }

    /// Refuses to end a group that is being opened: its log may have records that its volumes lack, and its role is not known
    /// yet.
    fn is_open(&self) -> Result<(), String> {
        match self.state() {
            State::Starting if self.has_ended() => Err(format!(
                "{} was interrupted while it was being opened: start the server again",
                self.name
            )),
            State::Starting => Err(format!("{} is being opened: try again in a moment", self.name)),
            _ => Ok(()),
        }
    }

    /// Refuses to end a source whose writes wait for a full disk: they would fail, and its volumes would lack what its
    /// log has.
    pub fn has_room(&self) -> Result<(), String> {
        match self.state() {
            State::Source(source) if source.status().full => {
                Err(format!("{}: a disk is full here, and writes wait for it: make room first", self.name))
            }
            _ => Ok(()),
        }
    }

    /// The status of a copy whose records are not to be lost.
    fn copy_that_counts(&self, give_up: bool) -> Option<Status> {
        match self.state() {
            State::Destination(copy) if !give_up => Some(copy.status()).filter(|status| status.consistent),
            _ => None,
        }
    }

    /// Lets requests wait, and has a source carry out those that it has begun. An error leaves everything as it was.
    async fn hold_to_end(&self, give_up: bool) -> Result<HeldFronts<'_>, String> {
        let source = match self.state() {
            State::Source(source) if !self.is_ending() => Some(source),
            _ => None,
        };
        let is_running = source.is_some();
        self.owner.handle(|core| core.hold_fronts(true));
        let why = format!("{}: the end of replication was interrupted: repeat the command", self.name);
        let held = HeldFronts { group: self, source, why };
        let is_idle = self.hold_fronts("replication ends").await;
        if is_running && !is_idle {
            self.has_room()?;
            if !give_up {
                return Err(format!(
                    "{}: writes have not been carried out for {} s, `weft replica status` says why: try again when they are",
                    self.name,
                    LINKS_END_WITHIN.as_secs()
                ));
            }
        }
        Ok(held)
    }

    /// Ends the task. `source`: the side is this source. Its requests wait.
    async fn settle(&self, source: Option<Arc<Source>>, give_up: bool) -> Result<Settled, String> {
        if self.is_settled() {
            return Ok(Settled(()));
        }
        // Also after an attempt that failed: whether the volumes have everything depends on how this source ended.
        let source = source.or_else(|| match self.state() {
            State::Source(source) => Some(source),
            _ => None,
        });
        if source.is_none() {
            self.is_open()?;
        }
        let counts = source.is_some() || self.copy_that_counts(give_up).is_some();
        let closed = self.finish().await;
        if !self.has_ended() {
            return Err(format!("{} is still being opened: try again in a moment", self.name));
        }
        let closed = match source.and_then(|source| source.halted()) {
            // It was closed, now or by an earlier attempt. Otherwise that ends in another phase.
            Some((Phase::Suspended, _)) => Ok(()),
            // It may have stopped just before, for another reason.
            Some((_, why)) => Err(Error::Halted(why)),
            None => closed,
        };
        match closed {
            // A later write may be only in the log.
            Err(e) if counts => {
                return Err(format!(
                    "{}: its volumes may lack what its log has: {e}; start the server again",
                    self.name
                ));
            }
            Err(e) => tracing::warn!("group {}: while closing: {e}", self.name),
            Ok(()) => {}
        }
        self.owner.handle(Core::settles);
        Ok(Settled(()))
    }
}

async fn flush(volumes: &[Arc<dyn Block>]) -> Result<(), weft_store::Error> {
    for volume in volumes {
        volume.submit(BlockOp::Flush).await?;
    }
    Ok(())
}
