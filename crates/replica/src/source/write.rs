//! The path of a write: placed, logged, applied, acknowledged, answered. `session` sends it.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::poll;
use weft_machine::recorder::{self, Hop};
use weft_machine::{Payload, rt};
use weft_store::Error as StoreError;
use weft_store::block::{BlockOp, Medium, Outcome};

use super::exchange::GIVEN_UP;
use super::waiting::{RecordWait, Ticket};
use super::{Active, Core, Lock, Source};
use crate::record::{Header, Kind, Record, sum_of};
use crate::replay;
use crate::status::Phase;

/// Payload of a record that the writer of the log applies itself: so much is copied while a disk does nothing.
const AT_ONCE_BYTES: usize = 64 << 10;

fn halted(core: &Core) -> Option<StoreError> {
    let why = match &core.halted {
        Some(halt) => halt.why.clone(),
        None if core.given_up => GIVEN_UP.into(),
        None => return None,
    };
    Some(StoreError::Io(std::io::Error::other(why)))
}

impl Source {
    /// Answers a flush: every answered write is durable, unless the log has failed.
    pub(super) fn flushed(&self) -> Result<(), StoreError> {
        halted(&self.core()).map_or(Ok(()), Err)
    }

    /// Carries out a write, zeroes or a trim. Dropping the future does not undo it.
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
                    // This side reads the payload only here.
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
            // Both sides must read the same afterwards, so a trim writes zeros.
            BlockOp::Trim { offset, len, .. } => {
                last =
                    self.place(number, offset, Kind::Zeroes { len, keep_space: false }, Vec::new()).await?;
            }
            BlockOp::Read { .. } | BlockOp::Flush | BlockOp::Status { .. } => {
                return Err(StoreError::Invalid);
            }
        }
        self.answer(&placed, last).await
    }

    /// Waits until the records of one write are applied, and all of them acknowledged, and answers it.
    async fn answer(&self, placed: &[u64], last: u64) -> Result<Outcome, StoreError> {
        let mut unanswered = RecordWait::for_answer(self);
        poll_fn(|cx| {
            self.handle(|core| {
                unanswered.leave(core);
                let mut all = placed.iter().copied().chain([last]);
                let unapplied = all.find(|sequence| core.active.contains_key(sequence));
                let awaited = unapplied.or_else(|| (!core.is_acknowledged(last)).then_some(last));
                let Some(awaited) = awaited else {
                    let alone = core.is_alone(last);
                    core.answered_alone = core.answered_alone.saturating_add(alone.into());
                    #[cfg(test)]
                    let replicated = core.state.peers.iter().any(Option::is_some);
                    #[cfg(test)]
                    crate::tests::answered(self, last, !alone && replicated);
                    return Poll::Ready(Ok(Outcome::Done));
                };
                if let Some(e) = halted(core) {
                    return Poll::Ready(Err(e));
                }
                unanswered.wait(core, awaited, cx.waker());
                Poll::Pending
            })
        })
        .await
    }

    /// Places a change in the log, when there is room for it and its range is not being copied.
    async fn place(
        self: &Arc<Self>,
        member: u16,
        offset: u64,
        kind: Kind,
        payload: Vec<Bytes>,
    ) -> Result<u64, StoreError> {
        let bytes: usize = payload.iter().map(Bytes::len).sum();
        let mut payload = Some(payload);
        let (mut began, mut full) = (None, None);
        let mut ticket = Ticket::new(self);
        let placed = poll_fn(|cx| {
            let (placed, is_full) = self.handle(|core| {
                if let Some(e) = halted(core) {
                    return (Poll::Ready(Err(e)), false);
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
                if core.holds_back(member, &range, bytes) || ticket.is_behind(core) {
                    ticket.wait(core, member, &range, bytes, cx.waker());
                    // The event that has woken it, if any, may let another one pass.
                    core.make_way();
                    return (Poll::Pending, false);
                }
                let record = Record { header, payload: payload.take().unwrap_or_default() };
                #[cfg(any(test, fuzzing))]
                let copy = record.clone();
                let sequence = match self.log.place(record) {
                    Ok(sequence) => sequence,
                    Err(unplaced) => {
                        payload = Some(unplaced.payload);
                        began.get_or_insert_with(rt::now);
                        full.get_or_insert_with(|| recorder::wait(Hop::Replica));
                        ticket.wait(core, member, &range, bytes, cx.waker());
                        return (Poll::Pending, true);
                    }
                };
                #[cfg(test)]
                crate::tests::placed(self, sequence, &copy);
                #[cfg(any(test, fuzzing))]
                crate::fuzz::placed(sequence, &copy);
                core.active.insert(sequence, Active { member, range, bytes });
                core.active_bytes = core.active_bytes.saturating_add(bytes);
                core.written_bytes = core.written_bytes.saturating_add(header.range_len());
                if let Some(began) = began {
                    core.log_wait = core.log_wait.saturating_add(rt::now().since(began));
                }
                ticket.leave(core);
                (Poll::Ready(Ok((sequence, core.ahead))), false)
            });
            if is_full {
                self.make_room();
            }
            placed
        });
        let (sequence, ahead) = placed.await?;
        if ahead {
            // It may be sent while it is logged.
            self.log.sends.notify();
        }
        let (is_writer, is_filling) = self.log.next_steps();
        if is_writer {
            rt::spawn(self.clone().write_log()).detach();
        }
        if is_filling {
            self.make_room();
        }
        Ok(sequence)
    }

    /// Writes the placed records, batch by batch, and starts to apply each batch.
    async fn write_log(self: Arc<Self>) {
        loop {
            while let Some(batch) = self.log.write_next().await {
                self.begin_to_apply(batch).await;
            }
            if let Some(why) = self.log.failure() {
                self.halt(Phase::Failed, format!("the journal has failed: {why}"), None);
                return;
            }
            // A record may have been placed since the last batch was found empty.
            if !self.log.claim_writer() {
                return;
            }
        }
    }

    /// Starts to apply a batch. One short record mostly needs no wait, and costs less than a task for it.
    async fn begin_to_apply(self: &Arc<Self>, batch: Vec<Record>) {
        let at_once = matches!(&batch[..], [record] if record.header.payload_len() <= AT_ONCE_BYTES);
        let mut applied = Box::pin(self.clone().apply(batch));
        if !at_once || poll!(&mut applied).is_pending() {
            rt::spawn(applied).detach();
        }
    }

    /// Applies a batch, each record behind the earlier ones that it overlaps.
    async fn apply(self: Arc<Self>, mut batch: Vec<Record>) {
        if batch.len() == 1
            && let Some(only) = batch.pop()
        {
            return self.apply_one(only).await;
        }
        join_all(batch.into_iter().map(|record| self.apply_one(record))).await;
    }

    async fn apply_one(&self, record: Record) {
        let sequence = record.header.sequence;
        // A record that no earlier one blocks is never blocked: later ones wait for it.
        if self.core().is_blocked(sequence) {
            self.unblocked(sequence).await;
        }
        if let Err(e) = replay::apply(&self.side, &record).await {
            // The write is in the log here and at destinations: only a replay makes the volume match.
            self.halt(
                Phase::Failed,
                format!("a write that is in the log could not be carried out: {e}"),
                None,
            );
            return;
        }
        self.handle(|core| core.finish(sequence));
    }

    /// Waits until no earlier record of its range is left.
    async fn unblocked(&self, sequence: u64) {
        let mut blocked = RecordWait::for_earlier(self);
        poll_fn(|cx| {
            self.handle(|core| {
                blocked.leave(core);
                if core.is_blocked(sequence) {
                    blocked.wait(core, sequence, cx.waker());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
        })
        .await;
    }

    /// Holds back writes to a range. Active records of the range have been applied when this returns.
    pub(crate) async fn lock(&self, member: u16, range: Range<u64>) -> Locked<'_> {
        let id = self.handle(|core| {
            core.next_lock = core.next_lock.wrapping_add(1);
            let id = core.next_lock;
            core.locks.push(Lock { id, member, range: range.clone(), waker: None });
            id
        });
        let locked = Locked { source: self, id };
        poll_fn(|cx| {
            self.handle(|core| {
                let waits = core.halted.is_none() && core.is_active(member, &range);
                let waker = waits.then(|| cx.waker().clone());
                if let Some(lock) = core.locks.iter_mut().find(|lock| lock.id == id) {
                    lock.waker = waker;
                }
                if waits { Poll::Pending } else { Poll::Ready(()) }
            })
        })
        .await;
        locked
    }
}

/// Holds back writes to a range until it is dropped.
pub(crate) struct Locked<'a> {
    source: &'a Source,
    id: u64,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.source.release(|core| {
            core.locks.retain(|lock| lock.id != self.id);
            core.make_way();
        });
    }
}

#[cfg(all(test, debug_assertions))]
impl Source {
    /// Breaks an invariant, by an event that returns a guard.
    pub(crate) fn break_down(&self) {
        let _locked = self.handle(|core| {
            core.active_bytes = usize::MAX;
            Locked { source: self, id: 0 }
        });
    }
}
