//! `weft rdma`: RDMA without a storage protocol.
//!
//! Owns: nothing; each command is a module. Does not: measure or check (see `weft_load::verbs`).

mod devices;
mod perf;
mod ping;
mod server;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weft_machine::rt;

use crate::Failure;
use crate::args::{Core, Perf, Rdma};

/// Runs the command.
pub(crate) fn run(args: Rdma) -> Result<ExitCode, Failure> {
    match args {
        Rdma::Devices(args) => devices::run(args),
        Rdma::Ping(args) => ping::run(args),
        Rdma::Perf(Perf::Server(args)) => perf::serve(args),
        Rdma::Perf(Perf::Client(args)) => perf::run(args),
    }
}

/// Binds this process to a processor, where one was named, and says how its loop runs.
fn settle(core: &Core) -> Result<rt::Options, Failure> {
    if let Some(cpu) = core.cpu {
        pin(cpu)?;
    }
    Ok(rt::Options { spin_max: Duration::from_micros(core.spin_us), ..rt::Options::default() })
}

/// Binds this thread, and those that it starts, to a processor.
pub(crate) fn pin(cpu: usize) -> Result<(), Failure> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    if cpu >= rustix::thread::CpuSet::MAX_CPU || !allowed.is_set(cpu) {
        let cpus: Vec<String> = (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|n| allowed.is_set(*n))
            .map(|n| n.to_string())
            .collect();
        return Err(
            format!("this process may not run on processor {cpu}, only on {}", cpus.join(", ")).into()
        );
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// A flag that the first Ctrl-C or SIGTERM raises; the second ends the process.
fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopped.clone())?;
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    Ok(stopped)
}
