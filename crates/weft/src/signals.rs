//! SIGTERM, SIGINT and SIGHUP (the terminal is gone) as something to wait for.
//!
//! Owns: the signal handlers. A second signal ends the process at once; a command that the first has stopped ends by that signal, after
//! it has tidied up.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use futures_util::future::{Either, select};
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use weft_machine::rt;

use crate::Failure;

/// How soon a signal is noticed.
pub(crate) const ATTENTION: Duration = Duration::from_millis(50);
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

/// What the handlers of [`ending`]'s signals share.
struct Handlers {
    /// Whether the next signal has its default action: where nobody looks at the flag, and from the second signal on.
    at_once: Arc<AtomicBool>,
    /// The flag that a command looks at.
    stopped: Arc<AtomicBool>,
    /// The signal that raised it; 0 before.
    raised_by: Arc<AtomicUsize>,
}

impl Handlers {
    /// Those of this process. Until something asks for attention, signals do what they do by default.
    fn installed() -> io::Result<&'static Handlers> {
        static INSTALLED: OnceLock<io::Result<Handlers>> = OnceLock::new();
        let installed = INSTALLED.get_or_init(|| {
            let handlers = Handlers {
                at_once: Arc::new(AtomicBool::new(true)),
                stopped: Arc::default(),
                raised_by: Arc::default(),
            };
            for signal in ending() {
                // In this order they act.
                flag::register_conditional_default(signal, handlers.at_once.clone())?;
                let number = usize::try_from(signal).unwrap_or_default();
                flag::register_usize(signal, handlers.raised_by.clone(), number)?;
                flag::register(signal, handlers.at_once.clone())?;
                flag::register(signal, handlers.stopped.clone())?;
            }
            Ok(handlers)
        });
        installed.as_ref().map_err(|e| io::Error::new(e.kind(), e.to_string()))
    }
}

/// A write past the limit on the size of files (`ulimit -f`) fails with EFBIG from now on, and ends no process: any client of a
/// server could choose to write there. A handler, where ignoring would be handed down to programs that this one starts.
pub(crate) fn outlive_long_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// The longest file that this process may write, where `ulimit -f` bounds it.
pub(crate) fn longest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Set by one of [`ending`]'s signals from now on, and [`end`] ends the process by it. The second ends the process where it stands.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let handlers = Handlers::installed()?;
    handlers.at_once.store(false, Ordering::SeqCst);
    Ok(handlers.stopped.clone())
}

/// The same for what serves until then, whose end is a success.
pub(crate) fn drain_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let drained = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        flag::register_conditional_default(signal, drained.clone())?;
        flag::register(signal, drained.clone())?;
    }
    Ok(drained)
}

/// Asks for something that has to be taken back before a signal ends the process; `ask` is given the flag.
pub(crate) fn attentively<T>(ask: impl FnOnce(&AtomicBool) -> io::Result<T>) -> io::Result<T> {
    let handlers = Handlers::installed()?;
    let before = handlers.at_once.swap(false, Ordering::SeqCst);
    let done = ask(&handlers.stopped);
    if !handlers.stopped.load(Ordering::SeqCst) {
        handlers.at_once.store(before, Ordering::SeqCst);
    }
    done
}

/// Takes a key for the signal that it makes on terminals, unless there was one already.
pub(crate) fn interrupted_by_key() -> io::Result<()> {
    let handlers = Handlers::installed()?;
    let _ = handlers.raised_by.compare_exchange(0, SIGINT as usize, Ordering::SeqCst, Ordering::SeqCst);
    handlers.stopped.store(true, Ordering::SeqCst);
    Ok(())
}

/// Ends a process that a signal has stopped by that signal: a shell ends its loop or script only where a command says so. Otherwise
/// `code` is how it ended.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    let raised_by = Handlers::installed().map_or(0, |handlers| handlers.raised_by.load(Ordering::SeqCst));
    let (Ok(signal), Ok(status)) = (i32::try_from(raised_by), u8::try_from(128 + raised_by)) else {
        return code;
    };
    if signal == 0 {
        return code;
    }
    // What the end of `main` does. A thread that writes may hold the lock, and wait for a reader who does not read.
    let (done, flushed) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = io::stdout().flush();
        let _ = done.send(());
    });
    let _ = flushed.recv_timeout(ATTENTION);
    // The first process of a container is not ended by signals: it says what a shell would say of it.
    if !rustix::process::getpid().is_init() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    ExitCode::from(status)
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
        Either::Right(_) => Err("interrupted; the server, or a local disk, does not answer".into()),
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
            // The second signal of a kind finds the flag set and ends the process where it stands.
            let again = Arc::new(AtomicBool::new(false));
            flag::register_conditional_default(signal, again.clone())?;
            flag::register(signal, again)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_past_the_longest_file_ends_no_process() {
        outlive_long_files().unwrap();
        signal_hook::low_level::raise(SIGXFSZ).unwrap();
    }
}
