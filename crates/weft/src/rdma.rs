//! `weft rdma`: RDMA without a storage protocol. Each command is a module; `weft_load::verbs` measures and checks.

mod bench;
mod devices;
mod perf;
mod ping;
mod server;

use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_machine::rt;

use crate::Failure;
use crate::args::{Core, Perf, Rdma};
use crate::misuse::Misuse;

/// Runs the command.
pub(crate) fn run(args: Rdma) -> Result<ExitCode, Failure> {
    match args {
        Rdma::Bench(args) => bench::run(args),
        Rdma::Devices(args) => devices::run(args),
        Rdma::Ping(args) => ping::run(args),
        Rdma::Perf(Perf::Server(args)) => perf::serve(args),
        Rdma::Perf(Perf::Client(args)) => perf::run(args),
    }
}

/// Binds this process to a processor if one was named, and returns the options of its loop.
fn settle(core: &Core) -> Result<rt::Options, Failure> {
    if let Some(cpu) = core.cpu {
        pin(cpu).map_err(|e| match e.is::<NoProcessor>() {
            true => Misuse::new(format!("--cpu {cpu}: {e}")).into(),
            false => e,
        })?;
    }
    Ok(rt::Options { spin_max: Duration::from_micros(core.spin_us), ..rt::Options::default() })
}

/// This process may not use the processor.
#[derive(Debug, thiserror::Error)]
#[error("this process has no processor {0}: `taskset -p $$` and nproc show the available ones")]
struct NoProcessor(usize);

/// Binds this thread, and threads it starts later, to a processor.
pub(crate) fn pin(cpu: usize) -> Result<(), Failure> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(NoProcessor(cpu).into());
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Not compared with the current mask: a child of a bound process may bind itself elsewhere.
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| match e {
        rustix::io::Errno::INVAL => NoProcessor(cpu).into(),
        e => e.into(),
    })
}

/// Raises this process's descriptor limit to the maximum: each connection takes at least one.
pub(crate) fn raise_descriptors() -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}
