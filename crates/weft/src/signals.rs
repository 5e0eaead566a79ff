//! SIGTERM, SIGINT and SIGHUP (the terminal is gone) as something to wait for.
//!
//! Owns: the pipe that the signal handlers write to. A second signal ends the process at once.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weft_machine::rt;

use crate::Failure;

/// How soon a signal is noticed.
const ATTENTION: Duration = Duration::from_millis(50);
/// How long a command may take after it to remove what it has half done: all told it ends within a second.
const GRACE: Duration = Duration::from_millis(750);

/// The signals that end a process in order. SIGHUP stays ignored where it was when the process began: so `nohup` keeps a
/// process beyond its terminal.
fn ending() -> impl Iterator<Item = i32> {
    // The mask in hexadecimal, bit 0 is signal 1 (proc_pid_status(5)). Without /proc nothing is known to be ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let hang_up = (ignored & (1 << (SIGHUP - 1)) == 0).then_some(SIGHUP);
    [SIGTERM, SIGINT].into_iter().chain(hang_up)
}

/// Set by one of [`ending`]'s signals from now on. The second of a kind ends the process, whatever that is waiting for.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stopped.clone())?;
        signal_hook::flag::register(signal, stopped.clone())?;
    }
    Ok(stopped)
}

/// Carries out a command, which ends by itself soon after the flag is raised, or is dropped where it stands.
pub(crate) async fn until_stopped<T>(
    stopped: &AtomicBool,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let last = async {
        raised(stopped).await;
        rt::sleep(GRACE).await;
    };
    match select(pin!(work), pin!(last)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err("interrupted; the server does not answer".into()),
    }
}

/// Carries out a step, which is dropped when the flag is raised.
pub(crate) async fn unless_stopped<T>(
    stopped: &AtomicBool,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match select(pin!(step), pin!(raised(stopped))).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err("interrupted".into()),
    }
}

/// Returns when the flag is raised.
pub(crate) async fn raised(stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        rt::sleep(ATTENTION).await;
    }
}

/// The signals that ask the process to end.
pub(crate) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Takes them over.
    pub(crate) fn catch() -> io::Result<Signals> {
        let (pipe, write) = UnixStream::pair()?;
        for signal in ending() {
            // The second signal of a kind finds the flag set and exits with the conventional status.
            let again = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
            signal_hook::flag::register(signal, again)?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Signals { pipe })
    }

    /// Blocks until the first of them comes.
    pub(crate) fn wait(mut self) -> io::Result<()> {
        loop {
            match self.pipe.read(&mut [0]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(|_| ()),
            }
        }
    }
}
