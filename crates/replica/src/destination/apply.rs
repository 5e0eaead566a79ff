//! Applying the log to the volumes, in order, and making room in it.
//!
//! Spec: the crate's page. Does not: answer anybody.

use std::ops::Range;

use futures_util::future::try_join_all;

use super::Destination;
use crate::error::Error;
use crate::peer::AHEAD_BYTES;
use crate::record::Record;
use crate::replay;
use crate::scan::Damage;
use crate::state::State;

/// Records that are applied beside each other, where they do not overlap.
const BATCH: usize = 64;

impl Destination {
    /// Applies what is logged, until the destination is closed, fails or becomes a source. Somebody has to run this.
    pub async fn run(&self) {
        // What opening it has applied may fill the log, and nothing would be applied that makes room.
        if let Err(e) = self.checkpoint().await {
            self.fail(format!("no room could be made in the log: {e}"));
            return;
        }
        loop {
            let more = self.log.changed.until(|| {
                let core = self.core();
                if core.failed.is_some() || core.retired || core.closing {
                    return Some(false);
                }
                (self.log.fill().durable > core.applied).then_some(true)
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
    }

    /// A record cannot be read any more. Opened again, this side goes on before it.
    async fn stop_at(&self, damage: Damage) {
        let broken = |state: &mut State| (state.consistent, state.damaged) = (false, true);
        let persisted = self.persist(broken).await;
        self.core().damage = Some(damage);
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
            // Somebody else may have applied it, and let it go, before this had its turn.
            let record = self.log.record(sequence).await?;
            let (member, offset) = (record.header.member, record.header.offset);
            let range = offset..offset.saturating_add(record.header.range_len());
            let overlaps =
                ranges.iter().any(|(m, r)| *m == member && r.start < range.end && range.start < r.end);
            if overlaps || bytes > self.config.memory_bytes / 4 {
                break;
            }
            bytes = record.header.payload_len().saturating_add(bytes);
            ranges.push((member, range));
            batch.push(record);
        }
        let Some(last) = batch.last().map(|record| record.header) else { return Ok(()) };
        // All at once, and none before all that were there: a snapshot lies between batches.
        for record in &batch {
            if let Some(op) = record.operation() {
                self.preserve(record.header.member, &op).await;
            }
        }
        try_join_all(batch.iter().map(|record| replay::apply(&self.side, record))).await?;
        {
            let mut core = self.core();
            core.applied = last.sequence;
            core.applied_ms = last.unix_ms;
        }
        self.changed.notify();
        self.log.changed.notify();
        Ok(())
    }

    /// Waits until everything that is logged now is applied. What comes meanwhile is not waited for: a source that is quicker
    /// than these volumes always has something more.
    pub(super) async fn drain(&self) -> Result<(), Error> {
        let asked = self.log.fill().last;
        loop {
            // A resync that began meanwhile may have put other records in place of those, and fewer.
            let fill = self.log.fill();
            let through = fill.last.min(asked);
            {
                let core = self.core();
                if let Some(why) = &core.failed {
                    return Err(Error::Halted(why.clone()));
                }
                if core.applied >= through {
                    return Ok(());
                }
            }
            if fill.durable > self.core().applied {
                self.apply_some().await?;
            } else {
                self.log
                    .changed
                    .until(|| {
                        let core = self.core();
                        let fill = self.log.fill();
                        // Whoever else applies the log may have been quicker.
                        let done = core.applied >= through || fill.last < through;
                        let more = fill.durable > core.applied;
                        (core.failed.is_some() || done || more).then_some(())
                    })
                    .await;
            }
        }
    }

    /// Makes the volumes durable and lets go what the log holds of what is applied.
    pub(super) async fn checkpoint(&self) -> Result<(), Error> {
        // A resync that begins meanwhile may put other records in place of those that are about to go.
        let _turn = self.volumes.enter().await;
        self.settle(AHEAD_BYTES, |_| ()).await
    }

    /// A checkpoint with a change of the state, durable together. The caller is in the gate of the volumes. The youngest records
    /// stay, as many as the source may have lost in a crash after it had sent them: this side has to name what they changed.
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
        self.log.free_through(through);
        self.changed.notify();
        Ok(())
    }

    /// Changes the state and makes it durable.
    pub(super) async fn persist(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let _turn = self.journal.gate.enter().await;
        self.write_state(change).await
    }

    /// Writes a changed state to the journal; memory follows when it is durable. Whoever drops this has changed nothing but what
    /// the journal may say until it is written next. The caller is in the journal's gate.
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
        let mut core = self.core();
        // A claim that came meanwhile is in memory alone; a promotion may have promised more than it did.
        if core.state.promised != before && core.state.promised.epoch >= state.promised.epoch {
            state.promised = core.state.promised;
        }
        core.state = state;
        Ok(())
    }
}

/// Until this is forgotten, the journal says what memory does, or what was about to be written. If that stays so, the session of the
/// time when the write began does not go on. One that was claimed since then is not confirmed before it has written the journal again.
struct Unsure<'a> {
    destination: &'a Destination,
    session: Option<u64>,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        let destination = self.destination;
        {
            let mut core = destination.core();
            if core.session == self.session {
                core.session = None;
            }
        }
        destination.changed.notify();
        destination.log.changed.notify();
    }
}
