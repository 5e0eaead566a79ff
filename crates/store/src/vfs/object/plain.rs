//! An open file of the host, or one in memory.
//!
//! Buffers: a read is a range that the transport fetches late. A write takes slices of the received message, or lets the peer's
//! memory fill the file, if the transport reaches both.

use bytes::Bytes;
use weft_machine::file::busy::{self, Unlocked};
use weft_machine::{File, FileRange, Payload, PayloadSource, Pool, RemotePayload};

use super::super::Error;
use super::{Admit, Done, Object, ObjectOp, Submission};

/// See the module.
#[derive(Debug)]
pub struct Plain(pub File);

impl Plain {
    fn read(&self, offset: u64, len: usize, size: Option<u64>) -> Result<Payload, Error> {
        let size = size.map_or_else(|| self.0.len(), Ok)?;
        Ok(range(&self.0, size, offset, len))
    }

    /// Lets the source of a write fill the file. The caller has a claim.
    fn fill(
        &self,
        offset: u64,
        payload: &dyn RemotePayload,
        len: usize,
        unlocked: Unlocked,
    ) -> Result<Done, Error> {
        let filled = payload.fill(&self.0, offset, len).transpose();
        drop(unlocked);
        Ok(filled?.map_or(Done::NeedsMemory, |()| Done::Done))
    }

    fn append(&self, bytes: &[u8], admit: Admit<'_>, unlocked: Unlocked) -> Result<Done, Error> {
        let appended = self.0.append_here(bytes, admit);
        drop(unlocked);
        appended.map(|()| Done::Done)
    }

    /// Runs a call at once, unless a worker has claimed the file.
    fn unlocked<'a>(&'a self, call: impl FnOnce(Unlocked) -> Result<Done, Error> + 'a) -> Submission<'a> {
        match Unlocked::all() {
            Some(unlocked) => Submission::Now(call(unlocked)),
            None => Submission::later(async { call(busy::shared_of(&self.0).await?) }),
        }
    }
}

/// The file with the bytes of an object, once the object would answer a read.
async fn readable(from: &dyn Object, offset: u64) -> Result<&File, Error> {
    let content = from.content().ok_or(Error::NotSupported)?;
    from.submit(ObjectOp::Read { offset, len: 1, size: None }).await?;
    Ok(content)
}

/// The existing bytes of `[offset, offset + len)` of a file of `size` bytes, as a range to be read later.
pub(crate) fn range(file: &File, size: u64, offset: u64, len: usize) -> Payload {
    let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
    Payload::File(FileRange { file: file.clone(), offset, len })
}

impl Object for Plain {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let file = &self.0;
        match op {
            ObjectOp::Read { offset, len, size } => {
                Submission::Now(self.read(offset, len, size).map(Done::Data))
            }
            ObjectOp::Write { offset, source: PayloadSource::Memory(chain) } => {
                match self.write_now(offset, chain) {
                    Some(written) => Submission::Now(written.map(|()| Done::Done)),
                    None => Submission::later(async move {
                        file.write_at(offset, chain).await?;
                        Ok(Done::Done)
                    }),
                }
            }
            ObjectOp::Write { .. } if !file.is_in_memory() => Submission::Now(Ok(Done::NeedsMemory)),
            ObjectOp::Write { offset, source: PayloadSource::Remote { payload, len } } => {
                self.unlocked(move |unlocked| self.fill(offset, payload, len, unlocked))
            }
            // Its file system may block.
            ObjectOp::Append { bytes, admit } if file.blocking().is_some() => Submission::later(async move {
                let _unlocked = busy::shared_of(file).await?;
                file.append(bytes, admit).await?;
                Ok(Done::Done)
            }),
            ObjectOp::Append { bytes, admit } => {
                self.unlocked(move |unlocked| self.append(bytes, admit, unlocked))
            }
            ObjectOp::Sync { ended } => Submission::later(async move {
                let synced = file.clone();
                // While a worker has claimed the file, this waits as a task: waiting in the kernel would occupy a
                // worker for as long.
                let flush = busy::blocking_in(file, move || {
                    let done = rustix::fs::fsync(&synced).map_err(Error::from);
                    ended(&done);
                    done
                });
                flush.await?.map(|()| Done::Done)
            }),
            ObjectOp::Allocate { offset, len, keep_size } => Submission::later(async move {
                file.allocate(offset, len, keep_size).await?;
                Ok(Done::Done)
            }),
            ObjectOp::Zero { offset, len, keep_space } => Submission::later(async move {
                match keep_space {
                    true => file.zero_range(offset, len).await?,
                    false => file.punch_hole(offset, len).await?,
                }
                Ok(Done::Done)
            }),
            ObjectOp::Copy { at, from, offset, len } => Submission::later(async move {
                let from = readable(from, offset).await?;
                Ok(Done::Copied(file.copy_from(at, from, offset, len).await?))
            }),
            ObjectOp::Clone { at, from, offset, len } => Submission::later(async move {
                let from = readable(from, offset).await?;
                file.clone_range(at, from, offset, len).await?;
                Ok(Done::Done)
            }),
            ObjectOp::Extents { offset, len, max } => {
                Submission::later(async move { Ok(Done::Extents(file.data_ranges(offset, len, max).await?)) })
            }
            ObjectOp::Len => Submission::Now(file.len().map(Done::Len).map_err(Error::from)),
            ObjectOp::Resize { size } => self.unlocked(move |unlocked| {
                let sized = file.set_len(size);
                drop(unlocked);
                Ok(sized.map(|()| Done::Done)?)
            }),
            ObjectOp::Exchange { .. } => Submission::Now(Err(Error::NotSupported)),
        }
    }

    fn plain(&self) -> Option<&File> {
        Some(&self.0)
    }

    fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        // One system call, whereas a range costs two (one for the size).
        let mut buf = pool.try_alloc(len)?;
        buf.set_len(len);
        let window = buf.into_window();
        // An error here occurs again, with its reason, when the range is read.
        let read = self.0.try_read_at(offset, &window)?.ok()?;
        let mut buf = window.try_into_buf().ok()?;
        buf.set_len(read);
        Some(Payload::from(buf.freeze()))
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        Some(self.0.try_write_at(offset, chain)?.map_err(Error::from))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use weft_machine::rt;

    use super::*;

    /// In the kernel it would also wait, and take its worker from readers of other files.
    #[test]
    fn a_flush_begins_when_no_worker_has_the_file() {
        let file = tempfile::tempfile().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(file));
        let (release, gate) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicBool::new(false));
        rt::block_on(async {
            let locks = file.clone();
            let call = rt::spawn(async move { busy::ranged(&locks, move || gate.recv().is_err()).await });
            while !busy::is_locked(&file) {
                rt::yield_now().await;
            }
            let (object, begins) = (Plain(file.clone()), begun.clone());
            let flush = object
                .submit(ObjectOp::Sync { ended: Box::new(move |_| begins.store(true, Ordering::SeqCst)) });
            let others = async {
                for _ in 0..100 {
                    rt::yield_now().await;
                }
                assert!(!begun.load(Ordering::SeqCst));
                drop(release);
            };
            let (flushed, ()) = futures_util::future::join(flush, others).await;
            flushed.unwrap();
            assert!(call.await.unwrap() && begun.load(Ordering::SeqCst));
        })
        .unwrap();
    }
}
