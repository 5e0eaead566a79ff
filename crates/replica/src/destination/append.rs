//! Appends of a source: sorted by their sequence, written behind the end of the log, and answered when they are
//! durable.

use std::future::poll_fn;
use std::iter::Peekable;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_wire::repl::control::Refusal;

use super::waiting::{Awaited, Wait};
use super::{Core, Destination, MAX_WAITING};
use crate::record::{Header, Kind, Record};
use crate::status::Phase;

impl Destination {
    /// Appends records of consecutive sequences to the log. Answered when they are durable. Records that the log
    /// already has are skipped.
    pub fn append(
        self: &Arc<Self>,
        session: u64,
        records: Vec<Record>,
    ) -> LocalBoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            self.check(session)?;
            let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
            let (first, last) = (first.header.sequence, last.header.sequence);
            for (sequence, record) in (first..).zip(&records) {
                self.judge(record, sequence)?;
            }
            let _counted = self.handle(|core| {
                if core.appends >= MAX_WAITING {
                    return Err(Refusal::Gap(self.log.fill().last));
                }
                core.appends = core.appends.saturating_add(1);
                Ok(Counted(self))
            })?;
            self.place_all(session, records).await?;
            self.until_has(session, Awaited::Durable(last)).await
        })
    }

    /// Places records. Earlier ones may still be in flight, and the log may be full.
    async fn place_all(self: &Arc<Self>, session: u64, records: Vec<Record>) -> Result<(), Refusal> {
        let mut records = records.into_iter().peekable();
        let mut wait = Wait::new(self);
        poll_fn(|cx| {
            let placed = self.handle(|core| {
                wait.leave(core);
                match (self.place(core, session, &mut records), records.peek()) {
                    (Err(refusal), _) => Poll::Ready(Err(refusal)),
                    (Ok(()), None) => Poll::Ready(Ok(())),
                    // A full disk keeps the log full.
                    (Ok(()), Some(_)) if self.space.is_wanted() => Poll::Ready(Err(Refusal::NoSpace)),
                    (Ok(()), Some(next)) => {
                        wait.enter(core, Awaited::Turn(next.header.sequence), cx.waker());
                        Poll::Pending
                    }
                }
            });
            if self.log.claim_writer() {
                // A separate task: placed records are written even if the request is dropped.
                rt::spawn(self.clone().write_log()).detach();
            }
            placed
        })
        .await
    }

    /// Places the records that continue the log, as far as there is room.
    fn place(
        &self,
        core: &mut Core,
        session: u64,
        records: &mut Peekable<std::vec::IntoIter<Record>>,
    ) -> Result<(), Refusal> {
        self.admit(core, session)?;
        if core.state.eras != core.offered || core.beginning > 0 {
            return Err(Refusal::Inconsistent);
        }
        let mut end = self.log.fill().last;
        while let Some(record) = records.peek() {
            let sequence = record.header.sequence;
            if sequence == end.saturating_add(1) {
                // The source had the settled records durable before it sent this one.
                let claimed = record.header.settled.min(sequence);
                let header = Header { claimed, ..record.header };
                match self.log.place(Record { header, payload: record.payload.clone() }) {
                    Ok(placed) => end = placed,
                    Err(_) => break,
                }
                core.claimed = core.claimed.max(claimed);
                if core.phase == Phase::ReplayingLog {
                    core.told = match record.header.settled {
                        // It was sent before it was durable there. Such a source waits for this side, so no
                        // answered write is missing.
                        settled if settled < sequence => 0,
                        settled => core.told.max(settled),
                    };
                }
                #[cfg(any(test, fuzzing))]
                crate::fuzz::placed(end, record);
            } else if sequence > end {
                break;
            }
            records.next();
        }
        Ok(())
    }

    fn judge(&self, record: &Record, sequence: u64) -> Result<(), Refusal> {
        let header = &record.header;
        let inside = self.is_inside(header.member, header.offset, header.range_len());
        if header.kind == Kind::Pad || header.sequence != sequence || !inside {
            return Err(Refusal::Invalid);
        }
        if self.config.check_payloads && !record.is_whole() {
            return Err(Refusal::Damaged);
        }
        Ok(())
    }

    async fn write_log(self: Arc<Self>) {
        loop {
            while self.log.write_next().await.is_some() {
                // More of the log is durable.
                self.handle(|_| ());
            }
            if let Some(why) = self.log.failure() {
                self.fail(format!("the journal has failed: {why}"));
                return;
            }
            if !self.log.claim_writer() {
                return;
            }
        }
    }
}

/// Counts one append until it is dropped.
struct Counted<'a>(&'a Destination);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.release(|core| core.appends = core.appends.saturating_sub(1));
    }
}

#[cfg(all(test, debug_assertions))]
impl Destination {
    /// Breaks an invariant, by an event that returns a guard.
    pub(crate) fn break_down(&self) {
        let _counted = self.handle(|core| {
            core.appends = core.appends.saturating_add(1);
            core.applied = u64::MAX;
            Counted(self)
        });
    }
}
