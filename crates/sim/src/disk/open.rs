//! An open file of the disk.

use std::fmt;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use weft_machine::sim::with_rng;
use weft_machine::{DataRanges, Payload, PayloadSource, rt};
use weft_store::object::Ended;
use weft_store::{Done, Error, Object, ObjectOp, Submission};

use super::medium::State;
use super::{Held, SECTOR, eio, happens};

/// See the module.
pub(super) struct Open {
    pub(super) held: Held,
    /// Failed flushes that this open has been told of.
    pub(super) seen: AtomicU64,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open({:?})", self.held.node)
    }
}

impl Open {
    fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        self.held.disk.running()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, Error> {
        let mut state = self.state()?;
        let bytes = &state.content(self.held.node).now;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Bytes::copy_from_slice(&bytes[from..bytes.len().min(from.saturating_add(len))]))
    }

    async fn write(&self, offset: u64, chain: &[Bytes]) -> Result<(), Error> {
        let mut at = usize::try_from(offset).map_err(|_| Error::TooLarge)?;
        let fails = self.state()?.faults.failing_write_one_in;
        for piece in chain {
            // A sector at a time is what a reader sees whole.
            for part in piece.chunks(SECTOR * 4) {
                if happens(fails) {
                    return Err(eio());
                }
                self.state()?.write(self.held.node, at, part)?;
                at += part.len();
                if with_rng(|rng| rng.one_in(4)) {
                    rt::yield_now().await;
                }
            }
        }
        Ok(())
    }

    /// Goes on when nobody waits for it any more, as in the kernel; ends with the host.
    fn sync(&self, ended: Ended) -> Result<impl Future<Output = Result<Done, Error>> + use<>, Error> {
        let (disk, node) = (self.held.disk.clone(), self.held.node);
        let mut state = self.state()?;
        state.flushes += 1;
        let (number, fails, crashes) =
            (state.flushes, happens(state.faults.failing_flush_one_in), state.crashes);
        let content = state.content(node);
        let (bytes, failures) = (content.flushed(), content.failures + u64::from(fails));
        drop(state);
        // As the kernel has it: of flushes of one open that run at the same time only one is told, although each has lost what it was to write.
        // That the other clients of the open learn of it is up to the server.
        let told = self.seen.swap(failures, Ordering::SeqCst) < failures;
        Ok(rt::uncancelled(async move {
            disk.shared.travel().await;
            let mut state = disk.lock();
            if state.crashes != crashes {
                return Err(eio());
            }
            state.failures += u64::from(fails);
            let content = state.content(node);
            if fails {
                content.fail();
            } else if number > content.synced_by {
                (content.synced, content.synced_by) = (bytes, number);
                state.commit_attributes(node);
                state.commit_creation(node);
            }
            drop(state);
            let result = if told { Err(eio()) } else { Ok(()) };
            ended(&result);
            result.map(|()| Done::Done)
        }))
    }

    async fn carry_out(&self, op: ObjectOp<'_>) -> Result<Done, Error> {
        let node = self.held.node;
        self.held.disk.shared.travel().await;
        Ok(match op {
            ObjectOp::Read { offset, len, .. } => Done::Data(Payload::from(self.read(offset, len)?)),
            ObjectOp::Write { offset, source: PayloadSource::Memory(chain) } => {
                self.write(offset, chain).await?;
                Done::Done
            }
            ObjectOp::Write { source: PayloadSource::Remote { .. }, .. } => Done::NeedsMemory,
            ObjectOp::Append { bytes, admit } => {
                let at = self.state()?.content(node).now.len();
                admit(at as u64)?;
                self.state()?.write(node, at, bytes)?;
                Done::Done
            }
            ObjectOp::Sync { ended } => return self.sync(ended)?.await,
            ObjectOp::Allocate { offset, len, keep_size } => {
                let end = offset.checked_add(len).ok_or(Error::TooLarge)?;
                let mut state = self.state()?;
                if !keep_size && end > state.content(node).now.len() as u64 {
                    state.resize(node, end)?;
                }
                Done::Done
            }
            ObjectOp::Zero { offset, len, .. } => {
                let mut state = self.state()?;
                let size = state.content(node).now.len();
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(size);
                let to = usize::try_from(offset.saturating_add(len)).unwrap_or(usize::MAX).min(size);
                state.write(node, from, &vec![0; to - from])?;
                Done::Done
            }
            ObjectOp::Copy { at, from, offset, len } => {
                let len = usize::try_from(len).map_err(|_| Error::TooLarge)?;
                let Done::Data(Payload::Chain(chain)) =
                    from.submit(ObjectOp::Read { offset, len, size: None }).await?
                else {
                    return Err(Error::NotSupported);
                };
                self.write(at, &chain).await?;
                Done::Copied(chain.iter().map(|piece| piece.len() as u64).sum())
            }
            ObjectOp::Extents { offset, len, .. } => {
                let size = self.state()?.content(node).now.len() as u64;
                let end = offset.saturating_add(len).min(size);
                let ranges = (offset < end).then_some(offset..end).into_iter().collect();
                Done::Extents(DataRanges { ranges, more: false })
            }
            ObjectOp::Len => Done::Len(self.state()?.content(node).now.len() as u64),
            ObjectOp::Resize { size } => {
                self.state()?.resize(node, size)?;
                Done::Done
            }
            ObjectOp::Clone { .. } | ObjectOp::Exchange { .. } => return Err(Error::NotSupported),
        })
    }
}

impl Object for Open {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        Submission::later(self.carry_out(op))
    }
}
