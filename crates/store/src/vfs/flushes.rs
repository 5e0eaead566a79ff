//! Flushes of files: concurrent flushes of one open file share a call, and every failure is counted.
//!
//! The kernel reports a failed write-back once per descriptor and then forgets the pages, so a later successful flush
//! says nothing about them. A protocol whose clients share descriptors, or whose writers are not told about the
//! failure (in NFS, only the sender of the next COMMIT is), compares [`Failures`] instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::lock::Mutex;

use super::Error;
use super::object::{Ended, Submission};

/// The number of failed flushes of a file system's files, or of one of them. It increases before anybody is told about
/// the failure.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    count: Arc<AtomicU64>,
    /// The file system's, if these are one file's.
    all: Option<Arc<AtomicU64>>,
}

impl Failures {
    /// Those of one file, which count here as well.
    pub(super) fn of_one(&self) -> Failures {
        Failures { count: Arc::default(), all: Some(self.count.clone()) }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn add(&self) {
        for count in self.all.iter().chain([&self.count]) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The flushes of one open file, one after the other. Requests that arrive while one runs share the next.
#[derive(Debug)]
pub(super) struct Flushes {
    failures: Failures,
    /// How many of them were this descriptor's.
    failed: Arc<AtomicU64>,
    /// Number of flushes begun.
    begun: AtomicU64,
    /// Number of writes completed.
    written: AtomicU64,
    /// How many of these were completed before the last successful flush began; `flushed <= written`.
    flushed: Arc<AtomicU64>,
    last: Arc<Mutex<Last>>,
}

/// The result of the last flush.
#[derive(Debug, Default)]
struct Last {
    /// Its number; `number <= begun`.
    number: u64,
    failed: Option<Error>,
}

impl Flushes {
    pub(super) fn new(failures: Failures) -> Flushes {
        Flushes {
            failures,
            failed: Arc::default(),
            begun: AtomicU64::new(0),
            written: AtomicU64::new(0),
            flushed: Arc::default(),
            last: Arc::default(),
        }
    }

    /// Counts a completed write.
    pub(super) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether there was a write since the last successful flush began.
    pub(super) fn is_due(&self) -> bool {
        self.flushed.load(Ordering::SeqCst) < self.written.load(Ordering::SeqCst)
    }

    /// How many flushes of this descriptor have failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    /// Makes durable what was written before this call, by calling `flush` unless another flush covers it. `flush`
    /// must end even if nobody polls it: others wait for their turns.
    pub(super) async fn run<'a>(&self, flush: impl FnOnce(Ended) -> Submission<'a>) -> Result<(), Error> {
        // A flush that has already begun may have missed recent writes.
        let before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.clone().lock_owned().await;
        if last.number <= before {
            let number = self.begun.fetch_add(1, Ordering::SeqCst).saturating_add(1);
            let count = self.counting();
            // The call holds the turn, not this future: the next flush begins when this one's failure has been
            // counted, even if nobody waits for this one any more.
            let ended = Box::new(move |done: &Result<(), Error>| {
                count(done);
                *last = Last { number, failed: done.as_ref().err().map(Error::repeated) };
            });
            return flush(ended).await.map(drop);
        }
        last.failed.as_ref().map_or(Ok(()), |failed| Err(failed.repeated()))
    }

    /// Counts a flush, which begins now, when it ends.
    fn counting(&self) -> impl FnOnce(&Result<(), Error>) + Send + 'static {
        let (failures, failed, flushed) = (self.failures.clone(), self.failed.clone(), self.flushed.clone());
        let written = self.written.load(Ordering::SeqCst);
        move |done| match done {
            Ok(()) => drop(flushed.fetch_max(written, Ordering::SeqCst)),
            Err(_) => {
                failures.add();
                failed.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::join_all;
    use weft_machine::rt;

    use super::*;
    use crate::vfs::Done;

    /// A flush on a worker thread.
    fn flush(
        call: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> impl FnOnce(Ended) -> Submission<'static> {
        |ended| {
            Submission::later(async move {
                let done = rt::blocking(move || {
                    let done = call();
                    ended(&done);
                    done
                });
                done.await.map(|()| Done::Done)
            })
        }
    }

    fn failing() -> Result<(), Error> {
        Err(rustix::io::Errno::IO.into())
    }

    fn code(e: &Error) -> Option<i32> {
        let Error::Io(e) = e else { panic!("{e}") };
        e.raw_os_error()
    }

    #[test]
    fn who_comes_while_a_flush_runs_shares_the_next_and_its_failure() {
        let (failures, calls) = (Failures::default(), Arc::new(AtomicU64::new(0)));
        let flushes = Flushes::new(failures.clone());
        let (go, waits) = mpsc::channel::<()>();
        rt::block_on(async {
            let first = flushes.run(flush(move || {
                waits.recv().unwrap();
                Ok(())
            }));
            let others = join_all((0..8).map(|_| {
                let calls = calls.clone();
                flushes.run(flush(move || {
                    calls.fetch_add(1, Ordering::SeqCst);
                    failing()
                }))
            }));
            // The first has begun when the others arrive.
            let others = async {
                let all = others;
                go.send(()).unwrap();
                all.await
            };
            let (first, others) = futures_util::future::join(first, others).await;
            first.unwrap();
            assert!(others.iter().all(|other| code(other.as_ref().unwrap_err()) == Some(5)));
        })
        .unwrap();
        assert_eq!((calls.load(Ordering::SeqCst), failures.count()), (1, 1));
    }

    #[test]
    fn a_failure_is_counted_although_nobody_waits_for_it_any_more() {
        let failures = Failures::default();
        let flushes = Flushes::new(failures.clone());
        let (go, waits) = mpsc::channel::<()>();
        rt::block_on(async {
            let begun = Arc::new(AtomicU64::new(0));
            let tell = begun.clone();
            let mut given_up = Box::pin(flushes.run(flush(move || {
                tell.store(1, Ordering::SeqCst);
                waits.recv().unwrap();
                failing()
            })));
            // A flush that has not begun does not count yet.
            while begun.load(Ordering::SeqCst) == 0 {
                assert!(futures_util::poll!(&mut given_up).is_pending());
                rt::yield_now().await;
            }
            drop(given_up);
            go.send(()).unwrap();
            // It begins after the other one, and so ends after that was counted.
            flushes.run(flush(|| Ok(()))).await.unwrap();
        })
        .unwrap();
        assert_eq!(failures.count(), 1);
    }
}
