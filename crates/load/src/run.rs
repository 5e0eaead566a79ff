//! Runs one workload on one thread and counts its operations.
//!
//! [`drive`] keeps the queue full until it is stopped; an observer in any thread sets the counted time through a
//! [`Watch`]. [`run`] does both for one thread. Histograms have a fixed size; [`crate::result`] reduces them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join;
use serde::{Deserialize, Serialize};
use weft_machine::{Time, buf, rt};

use crate::cpu;
use crate::pattern;
use crate::result::{EndSample, Latencies, Sample, Traffic};
use crate::target::{Carried, Target, TargetError};
use crate::workload::{Mix, Offsets, Workload};

/// How much longer than planned a run waits for its first operation.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the observer checks.
const GLANCE: Duration = Duration::from_millis(1);

/// Lets another thread observe and control a run.
#[derive(Debug)]
pub struct Watch {
    /// Operations that finish from here on are counted; nanoseconds of [`rt::now`].
    from: AtomicU64,
    /// Operations that finish from here on are no longer counted.
    until: AtomicU64,
    stop: AtomicBool,
    /// Operations since the start, counted or not.
    operations: AtomicU64,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch {
            from: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(u64::MAX),
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
        }
    }
}

impl Watch {
    /// Counts operations that finish between these moments.
    pub fn count(&self, from: Option<Time>, until: Option<Time>) {
        for (cell, at) in [(&self.from, from), (&self.until, until)] {
            if let Some(at) = at {
                cell.store(at.as_nanos(), Ordering::Relaxed);
            }
        }
    }

    /// No operation starts from now on.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Operations finished since the start, counted or not.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The counts of one thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counted {
    /// Operations completed in the counted time.
    pub operations: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Latency of each operation.
    pub latency: Latencies,
    /// Latencies of a mix's READs.
    pub reads: Option<Latencies>,
    /// Latencies of a mix's WRITEs.
    pub writes: Option<Latencies>,
    /// Bytes that this thread's own code copied in the counted time.
    pub copied_bytes: u64,
    /// How the payload travelled in the counted time.
    pub traffic: Traffic,
    /// How long operations that could have started were overdue; 0 without a rate limit.
    pub late: Duration,
}

impl Counted {
    fn new(mix: Mix) -> Counted {
        let part = matches!(mix, Mix::Percent(_)).then(Latencies::new);
        Counted {
            operations: 0,
            bytes: 0,
            latency: Latencies::new(),
            reads: part.clone(),
            writes: part,
            copied_bytes: 0,
            traffic: Traffic::default(),
            late: Duration::ZERO,
        }
    }

    /// Adds the counts of another thread for the same time.
    pub fn merge(&mut self, other: &Counted) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
        for (mine, theirs) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            if let (Some(mine), Some(theirs)) = (mine.as_mut(), theirs) {
                mine.merge(theirs);
            }
        }
        self.copied_bytes += other.copied_bytes;
        self.traffic.add(&other.traffic);
        self.late = self.late.max(other.late);
    }
}

/// The measurements of one run.
#[derive(Debug)]
pub struct Measured {
    /// The thread's counts.
    pub counted: Counted,
    /// Length of the counted time.
    pub elapsed: Duration,
    /// CPU time of this process in the counted time.
    pub client_cpu: Duration,
    /// CPU time of the server process in the counted time; `None` if it runs elsewhere.
    pub server_cpu: Option<Duration>,
}

impl Measured {
    /// Converts to the form that the result takes.
    pub fn sample(self) -> Sample {
        let end = |cpu| EndSample { cpu, ..EndSample::default() };
        Sample {
            operations: self.counted.operations,
            bytes: self.counted.bytes,
            seconds: self.elapsed.as_secs_f64(),
            latency: self.counted.latency,
            client: end(Some(self.client_cpu)),
            server: self.server_cpu.map(|cpu| end(Some(cpu))),
            ..Sample::default()
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An operation failed.
    #[error("{0}")]
    Target(TargetError),
    /// A short read: the file is smaller than the span.
    #[error(
        "a read of {wanted} bytes at offset {offset} returned {came}: the file is smaller than the workload's span"
    )]
    Short {
        /// Offset of the read.
        offset: u64,
        /// Bytes requested.
        wanted: u32,
        /// Bytes received.
        came: usize,
    },
    /// A read returned wrong bytes.
    #[error(
        "verification failed: file {file} has a wrong byte at offset {offset}: the server or its path corrupts data"
    )]
    Corrupt {
        /// Number of the file.
        file: usize,
        /// Offset of the first wrong byte.
        offset: u64,
    },
    /// CPU time could not be read.
    #[error("cannot read the CPU time of a process: {0}")]
    Cpu(std::io::Error),
}

/// The files of a thread, and the counters of their connections.
pub struct Files {
    /// The open files; at least one.
    pub targets: Vec<Rc<dyn Target>>,
    /// Numbers of the files, which determine their pattern. As many as `targets`.
    pub numbers: Vec<u64>,
    /// The traffic of the connections.
    pub carried: Box<dyn Fn() -> Carried>,
}

impl Files {
    /// One file, number 0, whose connection has no counters.
    pub fn one(target: Rc<dyn Target>) -> Files {
        Files { targets: vec![target], numbers: vec![0], carried: Box::new(Carried::default) }
    }
}

/// Runs `workload` on one file, with its own warm-up. `server_pid` is the server's process if it runs on this host.
pub async fn run(
    target: Rc<dyn Target>,
    workload: &Workload,
    server_pid: Option<u32>,
) -> Result<Measured, RunError> {
    let watch = Arc::new(Watch::default());
    let (theirs, counted) = (*workload, watch.clone());
    let driving = rt::spawn(async move { drive(&Files::one(target), &theirs, &counted).await });
    // An operation that fails ends the run at once.
    let (counted, timed) = try_join(driving, keep_time(workload, server_pid, &watch)).await?;
    Ok(Measured {
        counted,
        elapsed: timed.elapsed,
        client_cpu: timed.client_cpu,
        server_cpu: timed.server_cpu,
    })
}

/// The counted time of one run.
struct Timed {
    elapsed: Duration,
    client_cpu: Duration,
    server_cpu: Option<Duration>,
}

/// Opens and closes the counted time, then stops `watch`.
async fn keep_time(workload: &Workload, server_pid: Option<u32>, watch: &Watch) -> Result<Timed, RunError> {
    let cpu_now = || -> Result<(Duration, Option<Duration>), RunError> {
        let client = cpu::time_of(std::process::id()).map_err(RunError::Cpu)?;
        let server = server_pid.map(cpu::time_of).transpose().map_err(RunError::Cpu)?;
        Ok((client, server))
    };
    rt::sleep(workload.warm_up).await;
    let before = cpu_now()?;
    let from = rt::now();
    watch.count(Some(from), None);
    let earlier = watch.operations();
    rt::sleep(workload.duration).await;
    // On a slow machine even the first operation may take longer.
    while watch.operations() == earlier && rt::now().since(from) < workload.duration + PATIENCE {
        rt::sleep(GLANCE).await;
    }
    let until = rt::now();
    watch.count(None, Some(until));
    let after = cpu_now()?;
    rt::sleep(workload.cool_down).await;
    watch.stop();
    Ok(Timed {
        elapsed: until.since(from),
        client_cpu: after.0.saturating_sub(before.0),
        server_cpu: after.1.zip(before.1).map(|(a, b)| a.saturating_sub(b)),
    })
}

/// Keeps the queue full until `watch` is stopped or an operation fails.
pub async fn drive(files: &Files, workload: &Workload, watch: &Watch) -> Result<Counted, RunError> {
    let thread = Thread::new(files, workload, watch);
    let places = (0..workload.queue_depth.max(1)).map(|place| thread.place(place as usize));
    futures_util::future::try_join_all(places).await?;
    Ok(thread.counted())
}

/// The run of one thread.
struct Thread<'a> {
    files: &'a Files,
    workload: &'a Workload,
    watch: &'a Watch,
    /// One per file: in sequential order, every file has its own position.
    offsets: Vec<RefCell<Offsets>>,
    /// All writes share one block of incompressible bytes, unless they are verified.
    data: Bytes,
    issued: Cell<u64>,
    /// When the next operation is due, if the rate is limited.
    due: Cell<Time>,
    counted: RefCell<Counted>,
    begun: Cell<Option<(Carried, u64)>>,
    ended: Cell<Option<(Carried, u64)>>,
}

impl<'a> Thread<'a> {
    fn new(files: &'a Files, workload: &'a Workload, watch: &'a Watch) -> Thread<'a> {
        let offsets = files.numbers.iter().map(|number| {
            // The same for every transport, different for every file.
            let seed = workload.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            RefCell::new(Offsets::new(&Workload { seed, ..*workload }))
        });
        Thread {
            files,
            workload,
            watch,
            offsets: offsets.collect(),
            data: settled(files, pattern::block(0, 0, workload.size as usize)),
            issued: Cell::new(0),
            due: Cell::new(rt::now()),
            counted: RefCell::new(Counted::new(workload.mix)),
            begun: Cell::new(None),
            ended: Cell::new(None),
        }
    }

    /// One slot of the queue: one operation after another.
    async fn place(&self, place: usize) -> Result<(), RunError> {
        let files = self.files.targets.len();
        while !self.watch.is_stopped() {
            let start = self.turn().await;
            if self.watch.is_stopped() {
                break;
            }
            let n = self.issued.get();
            self.issued.set(n + 1);
            let is_read = self.workload.mix.is_read(n);
            let file = if self.workload.streams { place % files } else { (n % files as u64) as usize };
            self.operation(file, is_read).await?;
            self.record(start, rt::now(), is_read);
            if !self.workload.think.is_zero() {
                rt::sleep(self.workload.think).await;
            }
        }
        Ok(())
    }

    /// Waits until an operation may start; returns the moment from which its latency counts.
    async fn turn(&self) -> Time {
        let Some(rate) = self.workload.rate.filter(|rate| *rate > 0.0) else { return rt::now() };
        let due = self.due.get();
        self.due.set(due + Duration::from_secs_f64(1.0 / rate));
        let mut now = rt::now();
        if due <= now {
            // It has been waiting since then, behind slow operations, as users would experience.
            return due;
        }
        // In steps, because a stopped run must not wait for an operation that is due in an hour.
        while now < due && !self.watch.is_stopped() {
            rt::sleep(due.since(now).min(Duration::from_millis(100))).await;
            now = rt::now();
        }
        // A timer that fires late is this program's fault, not the server's.
        now
    }

    async fn operation(&self, file: usize, is_read: bool) -> Result<(), RunError> {
        let Workload { size, verify, .. } = *self.workload;
        let offset = self.offsets[file].borrow_mut().take();
        let (target, number) = (&self.files.targets[file], self.files.numbers[file]);
        if !is_read {
            let data = match verify {
                true => pattern::block(number, offset, size as usize).into(),
                false => self.data.clone(),
            };
            return target.write(offset, data).await.map_err(RunError::Target);
        }
        let bytes = target.read(offset, size).await.map_err(RunError::Target)?;
        if bytes.len() != size as usize {
            return Err(RunError::Short { offset, wanted: size, came: bytes.len() });
        }
        match verify.then(|| pattern::differs(number, offset, &bytes)).flatten() {
            Some(offset) => Err(RunError::Corrupt { file, offset }),
            None => Ok(()),
        }
    }

    fn record(&self, start: Time, end: Time, is_read: bool) {
        let watch = self.watch;
        // Only this thread writes it.
        watch.operations.store(watch.operations.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if end.as_nanos() < watch.from.load(Ordering::Relaxed) {
            return;
        }
        if self.begun.get().is_none() {
            self.begun.set(Some(self.now()));
        }
        if end.as_nanos() >= watch.until.load(Ordering::Relaxed) {
            if self.ended.get().is_none() {
                self.ended.set(Some(self.now()));
            }
            return;
        }
        let nanos = end.since(start).as_nanos() as u64;
        let counted = &mut *self.counted.borrow_mut();
        counted.operations += 1;
        counted.bytes += u64::from(self.workload.size);
        counted.latency.record(nanos);
        let part = if is_read { &mut counted.reads } else { &mut counted.writes };
        if let Some(part) = part {
            part.record(nanos);
        }
    }

    /// The traffic of the connections, and the bytes copied.
    fn now(&self) -> (Carried, u64) {
        ((self.files.carried)(), buf::copies().1)
    }

    fn counted(self) -> Counted {
        let mut counted = self.counted.replace(Counted::new(Mix::Read));
        if let Some((begun, copied)) = self.begun.get() {
            let (ended, copied_then) = self.ended.get().unwrap_or_else(|| self.now());
            counted.copied_bytes = copied_then.saturating_sub(copied);
            counted.traffic = travelled(begun, ended, counted.bytes);
        }
        if self.workload.rate.is_some() {
            counted.late = rt::now().since(self.due.get());
        }
        counted
    }
}

/// The block to write, in the memory that the first file's connection prefers.
fn settled(files: &Files, block: Vec<u8>) -> Bytes {
    match files.targets.first() {
        Some(target) => target.settle(block),
        None => block.into(),
    }
}

/// How `payload` bytes travelled between two moments.
fn travelled(begun: Carried, ended: Carried, payload: u64) -> Traffic {
    let (a, b) = (begun.traffic, ended.traffic);
    let moved = |f: fn(&weft_rdma::Traffic) -> (u64, u64)| f(&b).0.saturating_sub(f(&a).0);
    let rdma_read_bytes = moved(|t| t.read) + moved(|t| t.served);
    let rdma_write_bytes = moved(|t| t.written) + moved(|t| t.placed);
    Traffic {
        provider: None,
        rdma_read_bytes,
        rdma_write_bytes,
        send_bytes: moved(|t| t.sent) + moved(|t| t.received),
        inline_bytes: payload.saturating_sub(rdma_read_bytes + rdma_write_bytes),
        credits_starved: begun.starved.zip(ended.starved).map(|(a, b)| b.saturating_sub(a)),
    }
}

#[cfg(test)]
mod tests;
