//! An open file whose writes and flushes are counted.
//!
//! A write is counted before it is answered, even if it has failed, because a part of it may have been written.

use std::sync::Arc;

use bytes::Bytes;
use weft_machine::rt;

use super::super::Error;
use super::super::flushes::{Failures, Flushes};
use super::{Done, Ended, Layer, Object, ObjectOp, Submission};

/// See the module.
#[derive(Debug)]
pub struct Counted {
    inner: Arc<dyn Object>,
    flushes: Flushes,
}

impl Counted {
    /// Adds each failed flush of `inner` to `failures`.
    pub fn new(inner: Arc<dyn Object>, failures: &Failures) -> Counted {
        Counted { inner, flushes: Flushes::new(failures.clone()) }
    }

    async fn flush(&self, ended: Ended) -> Result<Done, Error> {
        let flush = |ended| match self.inner.plain() {
            // The kernel ends a flush whether or not somebody waits.
            Some(_) => self.inner.submit(ObjectOp::Sync { ended }),
            // Any other flush may stop while nobody polls it. As a task it ends: the next flush gets its turn, and a
            // failure that is reported only once is counted.
            None => {
                let inner = self.inner.clone();
                let flush = async move {
                    let done = inner.submit(ObjectOp::sync()).await.map(drop);
                    ended(&done);
                    done.map(|()| Done::Done)
                };
                Submission::later(rt::uncancelled(flush))
            }
        };
        let done = self.flushes.run(flush).await;
        ended(&done);
        done.map(|()| Done::Done)
    }
}

impl Layer for Counted {
    fn inner(&self) -> &dyn Object {
        &*self.inner
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        match op {
            ObjectOp::Sync { ended } => Submission::later(self.flush(ended)),
            op if op.changes() => self.inner.submit(op).then(|done| {
                if !matches!(done, Ok(Done::NeedsMemory)) {
                    self.flushes.wrote();
                }
                Submission::Now(done)
            }),
            op => self.inner.submit(op),
        }
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        let done = self.inner.write_now(offset, chain)?;
        self.flushes.wrote();
        Some(done)
    }

    fn is_unflushed(&self) -> bool {
        self.flushes.is_due()
    }

    fn failed_flushes(&self) -> u64 {
        self.flushes.failed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, mpsc};

    use futures_util::FutureExt;
    use futures_util::future::join;
    use weft_machine::File;

    use super::*;
    use crate::vfs::{NodeId, OpenFile};

    /// A file whose first flush fails, on a worker, when it is told to end.
    #[derive(Debug)]
    struct Failing {
        file: File,
        first: Mutex<Option<mpsc::Receiver<()>>>,
        begun: Arc<AtomicU64>,
    }

    impl Object for Failing {
        fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
            let ObjectOp::Sync { ended } = op else { unreachable!("it is only flushed") };
            let first = self.first.lock().unwrap().take();
            let begun = self.begun.clone();
            Submission::later(async move {
                rt::blocking(move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    let done = match first {
                        Some(end) => {
                            Err(end.recv().map_or(Error::Invalid, |()| rustix::io::Errno::IO.into()))
                        }
                        None => Ok(()),
                    };
                    ended(&done);
                    done.map(|()| Done::Done)
                })
                .await
            })
        }

        fn plain(&self) -> Option<&File> {
            Some(&self.file)
        }
    }

    #[test]
    fn a_client_is_told_of_a_loss_whose_request_was_lost_with_its_connection() {
        let (end, ends) = mpsc::channel();
        let begun = Arc::<AtomicU64>::default();
        let file = File::in_memory("failing").unwrap();
        let failing = Failing { file, first: Mutex::new(Some(ends)), begun: begun.clone() };
        let failures = Failures::default();
        let file = OpenFile::new(NodeId(7), Arc::new(Counted::new(Arc::new(failing), &failures)));
        let told = AtomicU64::new(0);
        rt::block_on(async {
            let mut lost = Box::pin(file.sync_for(&told));
            while begun.load(Ordering::SeqCst) == 0 {
                assert!((&mut lost).now_or_never().is_none());
                rt::yield_now().await;
            }
            drop(lost);
            end.send(()).unwrap();
            assert!(matches!(file.sync_for(&told).await, Err(Error::Io(_))));
            assert_eq!((failures.count(), begun.load(Ordering::SeqCst)), (1, 2));
            file.sync_for(&told).await.unwrap();
        })
        .unwrap();
    }

    /// An object without a descriptor that has lost a write. It reports that once, to the flush that begins first, and
    /// late.
    #[derive(Debug, Default)]
    struct ReportsOnce(AtomicU64);

    impl Object for ReportsOnce {
        fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
            let ObjectOp::Sync { ended } = op else { panic!("only flushes") };
            let is_first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
            Submission::later(async move {
                let mut done = Ok(());
                if is_first {
                    for _ in 0..8 {
                        rt::yield_now().await;
                    }
                    done = Err(rustix::io::Errno::IO.into());
                }
                ended(&done);
                done.map(|()| Done::Done)
            })
        }
    }

    fn lossy() -> (Counted, Failures) {
        let failures = Failures::default();
        (Counted::new(Arc::new(ReportsOnce::default()), &failures), failures)
    }

    /// Otherwise a COMMIT that succeeds beside one that fails would return the verifier of the lost WRITEs.
    #[test]
    fn a_failure_is_counted_before_a_concurrent_flush_succeeds() {
        let (counted, failures) = lossy();
        let flush = async || {
            let done = Object::submit(&counted, ObjectOp::sync()).await;
            (done.is_ok(), failures.count())
        };
        let told = rt::block_on(async { join(flush(), flush()).await }).unwrap();
        assert_eq!(told, ((false, 1), (true, 1)));
    }

    #[test]
    fn a_failure_is_counted_although_its_flush_is_given_up() {
        let (counted, failures) = lossy();
        rt::block_on(async {
            assert!(Object::submit(&counted, ObjectOp::sync()).now_or_never().is_none());
            Object::submit(&counted, ObjectOp::sync()).await.unwrap();
        })
        .unwrap();
        assert_eq!(failures.count(), 1);
    }
}
