//! Cores: threads with a loop of their own, and a way to hand them work.
//!
//! A task stays on the core that started it, so connections need no locks; only a `Send` closure moves between cores,
//! and creates the future where it will live. This file owns the threads; it balances load by round robin over
//! the cores that return to their loops.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use super::reactor::{self, Counters, Options, SharedCounters};
use super::watchdog::{Beat, Watchdog};
use super::{Task, spawn_real};

/// Options for a set of cores.
#[derive(Clone, Debug, Default)]
pub struct CoresOptions {
    /// Bind each thread to one of the CPUs this process may use, in turn.
    pub pin: bool,
    /// Options for each core's loop.
    pub core: Options,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Inbox {
    jobs: VecDeque<Job>,
    stop: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Mailbox(Mutex<Inbox>);

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nothing inside the lock can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        let waker = {
            let mut inbox = self.lock();
            change(&mut inbox);
            inbox.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A core's main task: starts what arrives until told to stop.
    async fn serve(&self) {
        loop {
            let jobs = std::future::poll_fn(|cx| {
                let mut inbox = self.lock();
                if inbox.stop {
                    return Poll::Ready(None);
                }
                if inbox.jobs.is_empty() {
                    inbox.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(Some(std::mem::take(&mut inbox.jobs)))
            });
            let Some(jobs) = jobs.await else { return };
            jobs.into_iter().for_each(|job| job());
        }
    }
}

struct Thread {
    mailbox: Arc<Mailbox>,
    counters: Arc<SharedCounters>,
    beat: &'static Beat,
    handle: Option<JoinHandle<()>>,
}

/// A set of cores. Dropping it stops them, as [`Cores::shutdown`] does.
pub struct Cores {
    /// Empty under simulation, where all cores are the simulated one.
    threads: Vec<Thread>,
    watchdog: Option<Watchdog>,
    len: usize,
    turn: AtomicUsize,
}

impl Cores {
    /// Starts `n` (at least one) threads named `name`-0, `name`-1, ..., each with a loop of its own.
    pub fn start(n: usize, name: &str) -> io::Result<Cores> {
        Cores::start_with(n, name, &CoresOptions::default())
    }

    /// [`Cores::start`] with options.
    pub fn start_with(n: usize, name: &str, options: &CoresOptions) -> io::Result<Cores> {
        let mut cores =
            Cores { threads: Vec::new(), watchdog: None, len: n.max(1), turn: AtomicUsize::new(0) };
        if crate::sim::active() {
            return Ok(cores);
        }
        let cpus = if options.pin { allowed_cpus()? } else { Vec::new() };
        for i in 0..cores.len {
            let cpu = (!cpus.is_empty()).then(|| cpus[i % cpus.len()]);
            cores.threads.push(start_thread(format!("{name}-{i}"), cpu, options.core.clone())?);
        }
        let watched =
            cores.threads.iter().enumerate().map(|(i, thread)| (format!("{name}-{i}"), thread.beat));
        cores.watchdog = Some(Watchdog::start(name, watched.collect())?);
        Ok(cores)
    }

    /// How many cores there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The number of a core, round robin. A core that the watchdog has reported as blocked is passed by until it is
    /// back: what would start there waits as long as the core does.
    pub fn next(&self) -> usize {
        let turn = || self.turn.fetch_add(1, Ordering::Relaxed) % self.len;
        let is_away = |i: usize| self.threads.get(i).is_some_and(|thread| thread.beat.is_away());
        (0..self.len).map(|_| turn()).find(|&i| !is_away(i)).unwrap_or_else(turn)
    }

    /// Runs the future made by `make` on core `i` (modulo their number), to its end or until shutdown.
    #[track_caller]
    pub fn run<M, F>(&self, i: usize, make: M)
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        // A panic of `make` ends the task, not the core.
        let spawned = Location::caller();
        let job = move || match crate::sim::active() {
            true => super::spawn(async move { make().await }).detach(),
            false => Task(spawn_real(async move { make().await }, spawned)).detach(),
        };
        match self.threads.get(i % self.len) {
            Some(thread) => thread.mailbox.change(|inbox| inbox.jobs.push_back(Box::new(job))),
            None => job(),
        }
    }

    /// The counters of each core's loop.
    pub fn counters(&self) -> Vec<Counters> {
        self.threads.iter().map(|thread| thread.counters.load()).collect()
    }

    /// Each core's beat, for the watchdog.
    #[cfg(test)]
    pub(super) fn beats(&self) -> Vec<&'static Beat> {
        self.threads.iter().map(|thread| thread.beat).collect()
    }

    /// Stops all cores, dropping what still runs on them, and waits for their threads.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        for thread in &self.threads {
            thread.mailbox.change(|inbox| inbox.stop = true);
        }
        let mut ended = Vec::new();
        for thread in &mut self.threads {
            // If a task drops the last reference, this runs on one of the cores: that core ends afterwards.
            if let Some(handle) = thread.handle.take()
                && handle.thread().id() != std::thread::current().id()
            {
                if let Err(panic) = handle.join()
                    && !std::thread::panicking()
                {
                    std::panic::resume_unwind(panic);
                }
                ended.push(thread.beat);
            }
        }
        // The watchdog also reports cores that do not end; only then can their beats be reused.
        self.watchdog = None;
        ended.into_iter().for_each(Beat::give_back);
    }
}

fn start_thread(name: String, cpu: Option<usize>, options: Options) -> io::Result<Thread> {
    let mailbox = Arc::new(Mailbox::default());
    let counters = Arc::new(SharedCounters::default());
    let beat = Beat::take();
    let (ready, started) = mpsc::channel();
    let (theirs, their_counters) = (mailbox.clone(), counters.clone());
    let handle = std::thread::Builder::new().name(name).spawn(move || {
        let life = async {
            // The starter waits for this, so it cannot have gone away.
            let _ = ready.send(Ok(()));
            theirs.serve().await;
        };
        let result =
            pin_to(cpu).and_then(|()| reactor::block_on(&options, Some((their_counters, beat)), life));
        if let Err(e) = result {
            let _ = ready.send(Err(e));
        }
    })?;
    match started.recv() {
        Ok(Ok(())) => Ok(Thread { mailbox, counters, beat, handle: Some(handle) }),
        Ok(Err(e)) => Err(e),
        Err(mpsc::RecvError) => Err(io::Error::other("a core's thread ended before it started")),
    }
}

fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

fn pin_to(cpu: Option<usize>) -> io::Result<()> {
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    Ok(())
}
