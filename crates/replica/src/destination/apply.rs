//! Applies the log to the volumes, in order, and makes room in it.

use std::ops::Range;

use futures_util::future::{LocalBoxFuture, try_join_all};

use super::Destination;
use super::waiting::Awaited;
use crate::error::{Damage, Error};
use crate::peer::AHEAD_BYTES;
use crate::record::{Record, overlap};
use crate::replay;
use crate::state::State;

/// The most records that are applied concurrently, if they do not overlap.
const BATCH: usize = 64;

impl Destination {
    /// Applies logged records until the destination is closed, fails or becomes a source. The caller has to run this.
    pub fn run(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            // The records that opening has applied may fill the log, and then no further record would come that makes room.
            if let Err(e) = self.checkpoint().await {
                self.fail(format!("no room could be made in the log: {e}"));
                return;
            }
            loop {
                let more = self.until(|core| {
                    if core.failed.is_some() || core.retired || core.closing {
                        return Ok(false);
                    }
                    if core.has(Awaited::Unapplied) { Ok(true) } else { Err(Awaited::Unapplied) }
                });
                if !more.await {
                    return;
                }
                match self.apply_some().await {
                    Ok(()) => {}
                    Err(Error::Log(damage)) => return self.stop_at(damage).await,
                    Err(e) => return self.fail(format!("the log could not be applied: {e}")),
                }
                if self.log.is_filling()
                    && let Err(e) = self.checkpoint().await
                {
                    self.fail(format!("no room could be made in the log: {e}"));
                    return;
                }
            }
        })
    }

    /// A record cannot be read. After it is opened again, this side goes on before that record.
    async fn stop_at(&self, damage: Damage) {
        let broken = |state: &mut State| (state.consistent, state.damaged) = (false, true);
        let persisted = self.persist(broken).await;
        self.handle(|core| core.damage = Some(damage));
        self.fail(match persisted {
            Ok(()) => damage.to_string(),
            Err(e) => format!("{damage}; and the journal has failed: {e}"),
        });
    }

    /// Applies the next records that do not overlap each other.
    async fn apply_some(&self) -> Result<(), Error> {
        let _turn = self.volumes.enter().await;
        let from = self.core().applied.saturating_add(1);
        let through = self.log.fill().durable.min(from.saturating_add(BATCH as u64).saturating_sub(1));
        let (mut batch, mut ranges): (Vec<Record>, Vec<(u16, Range<u64>)>) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for sequence in from..=through {
            // Another task may have applied and freed it before this one entered the gate.
            let record = self.log.record(sequence).await?;
            let (member, offset) = (record.header.member, record.header.offset);
            let range = offset..offset.saturating_add(record.header.range_len());
            let overlaps = ranges.iter().any(|(m, r)| *m == member && overlap(r, &range));
            if overlaps || bytes > self.config.memory_bytes / 4 {
                break;
            }
            bytes = record.header.payload_len().saturating_add(bytes);
            ranges.push((member, range));
            batch.push(record);
        }
        let Some(last) = batch.last().map(|record| record.header) else { return Ok(()) };
        // A batch is applied as a whole, behind all earlier ones: snapshots are taken between batches.
        for record in &batch {
            if let Some(op) = record.operation() {
                self.preserve(record.header.member, &op).await;
            }
        }
        try_join_all(batch.iter().map(|record| replay::apply(&self.side, record))).await?;
        self.handle(|core| (core.applied, core.applied_ms) = (last.sequence, last.unix_ms));
        Ok(())
    }

    /// Waits until every record that is logged now is applied, but not for later ones: a source that is faster than
    /// these volumes would make the wait endless.
    pub(super) async fn drain(&self) -> Result<(), Error> {
        let asked = self.log.fill().last;
        loop {
            let more = self.until(|core| match &core.failed {
                Some(why) => Ok(Err(Error::Halted(why.clone()))),
                // Another task may have applied them; or a resync that began meanwhile has replaced them by others, and
                // fewer.
                None if core.applied >= core.log.last.min(asked) => Ok(Ok(false)),
                None if core.has(Awaited::Unapplied) => Ok(Ok(true)),
                None => Err(Awaited::Unapplied),
            });
            match more.await? {
                true => self.apply_some().await?,
                false => return Ok(()),
            }
        }
    }

    /// Flushes the volumes and frees the applied records.
    pub(super) async fn checkpoint(&self) -> Result<(), Error> {
        // A resync that begins meanwhile may replace the records that are about to go.
        let _turn = self.volumes.enter().await;
        self.settle(AHEAD_BYTES, |_| ()).await
    }

    /// Takes a checkpoint and changes the state in one durable step. The caller holds the gate of the volumes. The
    /// youngest records stay, as many as the source may lose in a crash after it has sent them: this side has to name
    /// what they changed.
    pub(super) async fn settle(&self, leave: u64, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let applied = self.core().applied;
        let through = if leave == 0 { applied } else { applied.min(self.log.through_leaving(leave)) };
        replay::flush(&self.side).await?;
        let _turn = self.journal.gate.enter().await;
        let tail = self.log.tail_after(through);
        self.write_state(|state| {
            state.tail = tail;
            change(state);
        })
        .await?;
        self.handle(|_| self.log.free_through(through));
        Ok(())
    }

    /// Changes the state and makes it durable.
    pub(super) async fn persist(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let _turn = self.journal.gate.enter().await;
        self.write_state(change).await
    }

    /// Writes a changed state to the journal, and changes memory when it is durable. If this is dropped, only the
    /// journal may have changed, until it is written next. The caller holds the journal's gate.
    pub(super) async fn write_state(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let (before, mut state, session) = {
            let core = self.core();
            (
                core.state.promised,
                State { claimed: core.claimed, told: core.told, ..core.state.clone() },
                core.session,
            )
        };
        change(&mut state);
        let unsure = Unsure { destination: self, session };
        self.journal.write_state(state.clone()).await?;
        std::mem::forget(unsure);
        self.handle(|core| {
            // Keep a claim that arrived meanwhile and is only in memory; a promotion may have promised a later era.
            if core.state.promised != before && core.state.promised.epoch >= state.promised.epoch {
                state.promised = core.state.promised;
            }
            core.state = state;
        });
        Ok(())
    }
}

/// A write of the journal that may be incomplete: the journal holds the state in memory or the new one. If this is
/// dropped and not forgotten, the session that was current at the start of the write ends. A session that was claimed
/// since is not confirmed before it has written the journal again.
struct Unsure<'a> {
    destination: &'a Destination,
    session: Option<u64>,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        self.destination.release(|core| {
            if core.session == self.session {
                core.session = None;
            }
        });
    }
}
