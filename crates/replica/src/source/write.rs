//! A write on its way: placed, logged, applied, acknowledged, answered.
//!
//! Spec: the crate's page. Owns: nothing but the tasks that carry placed writes to their end.
//! Does not: send anything (see `session`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use weft_machine::{Payload, rt};
use weft_store::Error as StoreError;
use weft_store::block::{BlockOp, Medium, Outcome};

use super::exchange::GIVEN_UP;
use super::{Active, Core, Lock, Source};
use crate::record::{Header, Kind, Record, sum_of};
use crate::replay;
use crate::status::Phase;

pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn halted(core: &Core) -> Option<StoreError> {
    let why = match &core.halted {
        Some(halt) => halt.why.clone(),
        None if core.given_up => GIVEN_UP.into(),
        None => return None,
    };
    Some(StoreError::Io(std::io::Error::other(why)))
}

impl Source {
    /// Whether what was answered is durable: it is, unless the log has failed.
    pub(super) fn flushed(&self) -> Result<(), StoreError> {
        halted(&self.core()).map_or(Ok(()), Err)
    }

    /// Carries out what changes something. Dropping the future does not undo it.
    pub(super) async fn change(self: &Arc<Self>, member: usize, op: BlockOp) -> Result<Outcome, StoreError> {
        let number = member as u16;
        let (mut placed, mut last) = (Vec::new(), 0);
        match op {
            BlockOp::Write { mut offset, data, .. } => {
                let mut rest = Payload::Chain(data);
                while !rest.is_empty() {
                    let Payload::Chain(piece) = rest.take_front(rest.len().min(self.longest)) else {
                        unreachable!("a part of a chain is a chain")
                    };
                    let len = piece.iter().map(Bytes::len).sum::<usize>();
                    // The one time that the payload is looked at on this side.
                    let kind = Kind::Write { len: len as u32, sum: sum_of(&piece) };
                    last = self.place(number, offset, kind, piece).await?;
                    placed.push(last);
                    offset = offset.saturating_add(len as u64);
                }
            }
            BlockOp::WriteZeroes { fast: true, .. }
                if self.volume(member).is_ok_and(|volume| volume.geometry().medium == Medium::Device) =>
            {
                return Err(StoreError::NotSupported);
            }
            BlockOp::WriteZeroes { offset, len, keep_space, .. } => {
                last = self.place(number, offset, Kind::Zeroes { len, keep_space }, Vec::new()).await?;
            }
            // Both sides have to read the same afterwards.
            BlockOp::Trim { offset, len, .. } => {
                last =
                    self.place(number, offset, Kind::Zeroes { len, keep_space: false }, Vec::new()).await?;
            }
            BlockOp::Read { .. } | BlockOp::Flush | BlockOp::Status { .. } => {
                return Err(StoreError::Invalid);
            }
        }
        self.changed
            .until(|| {
                let mut core = self.core();
                let applied =
                    !core.active.contains_key(&last) && placed.iter().all(|s| !core.active.contains_key(s));
                if applied && core.is_acknowledged(last) {
                    let alone = core.is_alone(last);
                    core.answered_alone = core.answered_alone.saturating_add(alone.into());
                    #[cfg(test)]
                    let replicated = core.state.peers.iter().any(Option::is_some);
                    #[cfg(test)]
                    crate::tests::answered(self, last, !alone && replicated);
                    return Some(Ok(Outcome::Done));
                }
                halted(&core).map(Err)
            })
            .await
    }

    /// Gives a change its place in the history, when there is room for it and nobody copies its range.
    async fn place(
        self: &Arc<Self>,
        member: u16,
        offset: u64,
        kind: Kind,
        payload: Vec<Bytes>,
    ) -> Result<u64, StoreError> {
        let bytes: usize = payload.iter().map(Bytes::len).sum();
        let mut began = None;
        let placed = self.changed.until(|| {
            let mut core = self.core();
            if let Some(e) = halted(&core) {
                return Some(Err(e));
            }
            let header = Header {
                log: 0,
                life: 0,
                epoch: core.state.era().epoch,
                sequence: 0,
                member,
                offset,
                unix_ms: self.side.wall.now_ms(),
                settled: 0,
                claimed: 0,
                kind,
            };
            let range = offset..offset.saturating_add(header.range_len());
            let locked = core.locks.iter().any(|lock| lock.member == member && overlap(&lock.range, &range));
            let active = core.active_bytes.saturating_add(bytes);
            let crowded = core.active_bytes > 0 && active > self.config.memory_bytes;
            if core.quiet || locked || crowded {
                return None;
            }
            let Some(sequence) = self.log.place(Record { header, payload: payload.clone() }) else {
                began.get_or_insert_with(rt::now);
                drop(core);
                self.make_room();
                return None;
            };
            #[cfg(test)]
            crate::tests::placed(self, sequence, &Record { header, payload: payload.clone() });
            #[cfg(any(test, fuzzing))]
            crate::fuzz::placed(sequence, &Record { header, payload: payload.clone() });
            core.active.insert(sequence, Active { member, range, bytes });
            core.active_bytes = active;
            core.written_bytes = core.written_bytes.saturating_add(header.range_len());
            if let Some(began) = began {
                core.log_wait = core.log_wait.saturating_add(rt::now().since(began));
            }
            Some(Ok(sequence))
        });
        let sequence = placed.await?;
        if self.core().ahead {
            // It is sent while it is logged.
            self.log.changed.notify();
        }
        if self.log.claim_writer() {
            rt::spawn(self.clone().write_log()).detach();
        }
        if self.log.is_filling() {
            self.make_room();
        }
        Ok(sequence)
    }

    /// Writes what was placed, batch by batch, and starts applying each.
    async fn write_log(self: Arc<Self>) {
        loop {
            while let Some(batch) = self.log.write_next().await {
                rt::spawn(self.clone().apply(batch)).detach();
            }
            if let Some(why) = self.log.failure() {
                self.halt(Phase::Failed, format!("the journal has failed: {why}"), None);
                return;
            }
            // Something may have been placed between the last look and now.
            if !self.log.claim_writer() {
                return;
            }
        }
    }

    /// Applies a batch, each record behind earlier ones that it overlaps.
    async fn apply(self: Arc<Self>, batch: Vec<Record>) {
        join_all(batch.into_iter().map(|record| self.apply_one(record))).await;
    }

    async fn apply_one(&self, record: Record) {
        let sequence = record.header.sequence;
        self.changed
            .until(|| {
                let core = self.core();
                let own = core.active.get(&sequence)?;
                let earlier = core.active.range(..sequence);
                let waits = earlier
                    .into_iter()
                    .any(|(_, other)| other.member == own.member && overlap(&other.range, &own.range));
                (!waits).then_some(())
            })
            .await;
        if let Err(e) = replay::apply(&self.side, &record).await {
            // The log says that it happened, and so do destinations: only replaying it can make that true.
            self.halt(
                Phase::Failed,
                format!("a write that is in the log could not be carried out: {e}"),
                None,
            );
            return;
        }
        {
            let mut core = self.core();
            if let Some(done) = core.active.remove(&sequence) {
                core.active_bytes = core.active_bytes.saturating_sub(done.bytes);
            }
        }
        self.changed.notify();
    }

    /// Keeps writes away from a range. What is on its way there has been applied when this returns.
    pub(super) async fn lock(&self, member: u16, range: Range<u64>) -> Locked<'_> {
        let id = {
            let mut core = self.core();
            core.next_lock = core.next_lock.wrapping_add(1);
            let id = core.next_lock;
            core.locks.push(Lock { id, member, range: range.clone() });
            id
        };
        let locked = Locked { source: self, id };
        self.changed
            .until(|| {
                let core = self.core();
                let busy = |active: &Active| active.member == member && overlap(&active.range, &range);
                (core.halted.is_some() || !core.active.values().any(busy)).then_some(())
            })
            .await;
        locked
    }
}

/// A range that writes stay away from until this is dropped.
pub(super) struct Locked<'a> {
    source: &'a Source,
    id: u64,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.source.core().locks.retain(|lock| lock.id != self.id);
        self.source.changed.notify();
    }
}
