//! Flushes of files: those of one descriptor share a call, and whoever was promised something hears of each that failed.
//!
//! The kernel reports a failed write-back once per descriptor and then forgets the pages, so a flush that succeeds later promises
//! nothing about them. A protocol whose clients share descriptors, or whose writers are not told of the failure (NFS: whoever sends the
//! next COMMIT), compares [`Failures`] instead.
//!
//! Owns: the count of failed flushes, and the turns of a descriptor. Does not: decide when something is flushed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::lock::Mutex;
use weft_machine::File;
use weft_machine::file::busy;

/// How many flushes of a file system's files have failed. It rises before anybody is told of the failure.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures(Arc<AtomicU64>);

impl Failures {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The flushes of one descriptor, one after the other. Those that come while one runs share the next.
#[derive(Debug)]
pub(super) struct Flushes {
    failures: Failures,
    /// How many have begun.
    begun: AtomicU64,
    /// How many writes have ended.
    written: AtomicU64,
    /// Of these, how many had ended before the last flush that succeeded began; `flushed <= written`.
    flushed: Arc<AtomicU64>,
    last: Arc<Mutex<Last>>,
}

/// What became of the last flush.
#[derive(Debug, Default)]
struct Last {
    /// Which it was; `number <= begun`.
    number: u64,
    failed: Option<Failed>,
}

/// [`io::Error`] cannot be copied, and a flush fails with a code of the system.
#[derive(Clone, Copy, Debug)]
struct Failed(Option<i32>, io::ErrorKind);

impl Failed {
    fn of(e: &io::Error) -> Failed {
        Failed(e.raw_os_error(), e.kind())
    }

    fn error(self) -> io::Error {
        let Failed(code, kind) = self;
        code.map_or_else(|| kind.into(), io::Error::from_raw_os_error)
    }
}

impl Flushes {
    pub(super) fn new(failures: Failures) -> Flushes {
        Flushes {
            failures,
            begun: AtomicU64::new(0),
            written: AtomicU64::new(0),
            flushed: Arc::default(),
            last: Arc::default(),
        }
    }

    /// A write has ended.
    pub(super) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// How many writes have ended.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// So many writes are durable.
    pub(super) fn flushed(&self, written: u64) {
        self.flushed.fetch_max(written, Ordering::SeqCst);
    }

    /// Whether something was written since the last flush that succeeded began.
    pub(super) fn is_due(&self) -> bool {
        self.flushed.load(Ordering::SeqCst) < self.written.load(Ordering::SeqCst)
    }

    /// Makes durable what was written to `file` before this was called.
    pub(super) async fn flush(&self, file: &File) -> io::Result<()> {
        let flushed = file.clone();
        self.run(file.clone(), move || Ok(rustix::fs::fsync(&flushed)?)).await
    }

    /// While a worker has the file for itself the call waits as a task: in the kernel it would keep a worker's place as long.
    async fn run(
        &self,
        file: File,
        flush: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        // One that has begun already may have passed by what was written since.
        let before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.clone().lock_owned().await;
        if last.number <= before {
            let number = self.begun.fetch_add(1, Ordering::SeqCst).saturating_add(1);
            let (failures, flushed) = (self.failures.clone(), self.flushed.clone());
            let written = self.written.load(Ordering::SeqCst);
            // The call has the turn, not this future: the next flush begins when the failure of this one is counted, even where
            // nobody waits for it any more.
            let flushing = busy::blocking_in(&file, move || {
                let ended = flush();
                match &ended {
                    Ok(()) => drop(flushed.fetch_max(written, Ordering::SeqCst)),
                    Err(_) => failures.add(),
                }
                *last = Last { number, failed: ended.as_ref().err().map(Failed::of) };
                ended
            });
            return flushing.await?;
        }
        last.failed.map_or(Ok(()), |failed| Err(failed.error()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use std::sync::atomic::AtomicBool;

    use futures_util::future::join_all;
    use weft_machine::rt;

    use super::*;

    /// A file that nobody else has.
    fn some() -> File {
        File::from(std::os::fd::OwnedFd::from(tempfile::tempfile().unwrap()))
    }

    fn failing() -> io::Result<()> {
        Err(rustix::io::Errno::IO.into())
    }

    #[test]
    fn who_comes_while_a_flush_runs_shares_the_next_and_its_failure() {
        let (failures, calls) = (Failures::default(), Arc::new(AtomicU64::new(0)));
        let flushes = Flushes::new(failures.clone());
        let (go, waits) = mpsc::channel::<()>();
        rt::block_on(async {
            let first = flushes.run(some(), move || {
                waits.recv().unwrap();
                Ok(())
            });
            let others = join_all((0..8).map(|_| {
                let calls = calls.clone();
                flushes.run(some(), move || {
                    calls.fetch_add(1, Ordering::SeqCst);
                    failing()
                })
            }));
            // The first has begun when the others come.
            let others = async {
                let all = others;
                go.send(()).unwrap();
                all.await
            };
            let (first, others) = futures_util::future::join(first, others).await;
            first.unwrap();
            assert!(others.iter().all(|other| other.as_ref().unwrap_err().raw_os_error() == Some(5)));
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
            let mut given_up = Box::pin(flushes.run(some(), move || {
                tell.store(1, Ordering::SeqCst);
                waits.recv().unwrap();
                failing()
            }));
            // One that has not begun asks the kernel nothing.
            while begun.load(Ordering::SeqCst) == 0 {
                assert!(futures_util::poll!(&mut given_up).is_pending());
                rt::yield_now().await;
            }
            drop(given_up);
            go.send(()).unwrap();
            // It begins behind the other, and so ends when that is counted.
            flushes.run(some(), || Ok(())).await.unwrap();
        })
        .unwrap();
        assert_eq!(failures.count(), 1);
    }

    /// In the kernel it would wait as well, and keep its worker's place from who reads other files.
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
            let (flushes, begins) = (Flushes::new(Failures::default()), begun.clone());
            let flush = flushes.run(file.clone(), move || {
                begins.store(true, Ordering::SeqCst);
                Ok(())
            });
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
