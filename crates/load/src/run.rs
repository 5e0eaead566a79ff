//! Runs one workload against one target and measures it.
//!
//! Owns: the recorder of the run. Does not: aggregate; see [`crate::result`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use weft_machine::{Time, rt};

use crate::cpu;
use crate::target::{Target, TargetError};
use crate::workload::{Offsets, Workload};

/// Latencies up to a minute with three digits: 190 KiB, however many samples.
const MAX_LATENCY_NS: u64 = 60_000_000_000;

/// What one run showed.
#[derive(Debug)]
pub struct Measured {
    /// Operations completed while counting.
    pub operations: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// How long the counting took.
    pub elapsed: Duration,
    /// Latency of each operation in nanoseconds.
    pub latency: Histogram<u64>,
    /// CPU time of this process while counting.
    pub client_cpu: Duration,
    /// CPU time of the server process while counting; `None` when it runs elsewhere.
    pub server_cpu: Option<Duration>,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An operation failed.
    #[error("{0}")]
    Target(TargetError),
    /// A read came back short: the file is smaller than the span.
    #[error(
        "a read of {wanted} bytes at offset {offset} returned {came}: the file is smaller than the workload's span"
    )]
    Short {
        /// Offset of the read.
        offset: u64,
        /// Bytes asked for.
        wanted: u32,
        /// Bytes that came.
        came: usize,
    },
    /// CPU time could not be read.
    #[error("CPU time of a process: {0}")]
    Cpu(std::io::Error),
}

struct Recorder {
    offsets: RefCell<Offsets>,
    latency: RefCell<Histogram<u64>>,
    issued: Cell<u64>,
    operations: Cell<u64>,
    bytes: Cell<u64>,
    /// Counting from here (after the warm-up) ...
    from: Time,
    /// ... to here; no operation starts later.
    until: Time,
}

/// Runs `workload`. `server_pid` is the server's process where it runs on this host.
pub async fn run(
    target: Rc<dyn Target>,
    workload: &Workload,
    server_pid: Option<u32>,
) -> Result<Measured, RunError> {
    let from = rt::now() + workload.warm_up;
    let recorder = Rc::new(Recorder {
        offsets: RefCell::new(Offsets::new(workload)),
        latency: RefCell::new(
            Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds are constants that fit"),
        ),
        issued: Cell::new(0),
        operations: Cell::new(0),
        bytes: Cell::new(0),
        from,
        until: from + workload.duration,
    });
    // One block of incompressible-looking data serves all writes.
    let data: Bytes =
        (0..workload.size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>().into();
    let workers: Vec<_> = (0..workload.queue_depth.max(1))
        .map(|_| rt::spawn(worker(target.clone(), recorder.clone(), *workload, data.clone())))
        .collect();
    rt::sleep_until(from).await;
    let cpu_now = || -> Result<(Duration, Option<Duration>), RunError> {
        let client = cpu::time_of(std::process::id()).map_err(RunError::Cpu)?;
        let server = server_pid.map(cpu::time_of).transpose().map_err(RunError::Cpu)?;
        Ok((client, server))
    };
    let before = cpu_now()?;
    let started = rt::now();
    for worker in workers {
        worker.await?;
    }
    let elapsed = rt::now().since(started);
    let after = cpu_now()?;
    let latency = recorder.latency.borrow().clone();
    Ok(Measured {
        operations: recorder.operations.get(),
        bytes: recorder.bytes.get(),
        elapsed,
        latency,
        client_cpu: after.0.saturating_sub(before.0),
        server_cpu: after.1.zip(before.1).map(|(a, b)| a.saturating_sub(b)),
    })
}

async fn worker(
    target: Rc<dyn Target>,
    recorder: Rc<Recorder>,
    workload: Workload,
    data: Bytes,
) -> Result<(), RunError> {
    let mut start = rt::now();
    while start < recorder.until {
        let offset = recorder.offsets.borrow_mut().take();
        let n = recorder.issued.get();
        recorder.issued.set(n + 1);
        if workload.mix.is_read(n) {
            let came = target.read(offset, workload.size).await.map_err(RunError::Target)?;
            if came != workload.size as usize {
                return Err(RunError::Short { offset, wanted: workload.size, came });
            }
        } else {
            target.write(offset, data.clone()).await.map_err(RunError::Target)?;
        }
        let end = rt::now();
        if end >= recorder.from {
            recorder.latency.borrow_mut().saturating_record(end.since(start).as_nanos() as u64);
            recorder.operations.set(recorder.operations.get() + 1);
            recorder.bytes.set(recorder.bytes.get() + u64::from(workload.size));
        }
        start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
