//! Waiting for SIGTERM, SIGINT and SIGHUP (the terminal is gone). This module owns the signal handlers.
//!
//! A second signal ends the process at once. A command stopped by the first one cleans up and then ends by that
//! signal. A server that is the first process of a container reaps orphans (SIGCHLD).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use futures_util::future::{Either, select};
use rustix::process::{Resource, WaitOptions, getpid, getrlimit, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{SigId, flag, low_level};
use weft_machine::rt;

use crate::Failure;

/// How often the flag is checked for a signal.
pub(crate) const ATTENTION: Duration = Duration::from_millis(50);
/// How long a command may take afterwards to remove its unfinished work: in total it ends within a second.
const GRACE: Duration = Duration::from_millis(750);

/// The signals that end a process in order. SIGHUP stays ignored if it was ignored at the start, so that `nohup`
/// keeps the process running.
fn ending() -> impl Iterator<Item = i32> {
    // The mask is hexadecimal, bit 0 is signal 1 (proc_pid_status(5)). Without /proc no signal is known to be
    // ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let hang_up = (ignored & (1 << (SIGHUP - 1)) == 0).then_some(SIGHUP);
    [SIGTERM, SIGINT].into_iter().chain(hang_up)
}

/// State shared by the handlers of [`ending`]'s signals.
struct Handlers {
    /// Whether the next signal has its default action: when nothing checks the flag, and from the second signal on.
    at_once: Arc<AtomicBool>,
    /// The flag that a command checks.
    stopped: Arc<AtomicBool>,
    /// The signal that raised it; 0 before.
    raised_by: Arc<AtomicUsize>,
    installed: Mutex<Installed>,
}

/// Which handlers of [`Handlers`] are installed.
#[derive(Default)]
struct Installed {
    ids: Vec<SigId>,
    /// Whether this process has other handlers, those of a server. Then these ones are installed only while something
    /// checks the flag: a server drains on a signal, and must not end by it.
    serves: bool,
}

impl Handlers {
    /// The state of this process, without handlers.
    fn of_process() -> &'static Handlers {
        static OF_PROCESS: OnceLock<Handlers> = OnceLock::new();
        OF_PROCESS.get_or_init(|| Handlers {
            at_once: Arc::new(AtomicBool::new(true)),
            stopped: Arc::default(),
            raised_by: Arc::default(),
            installed: Mutex::default(),
        })
    }

    /// Its handlers, which are installed now if they are not yet. Until some code asks for attention, signals have
    /// their default actions.
    fn installed() -> io::Result<&'static Handlers> {
        let handlers = Handlers::of_process();
        let mut installed = handlers.lock();
        if !installed.ids.is_empty() {
            return Ok(handlers);
        }
        for signal in ending() {
            // They act in this order.
            installed.ids.push(flag::register_conditional_default(signal, handlers.at_once.clone())?);
            let number = usize::try_from(signal).unwrap_or_default();
            installed.ids.push(flag::register_usize(signal, handlers.raised_by.clone(), number)?);
            installed.ids.push(flag::register(signal, handlers.at_once.clone())?);
            installed.ids.push(flag::register(signal, handlers.stopped.clone())?);
        }
        Ok(handlers)
    }

    fn lock(&self) -> MutexGuard<'_, Installed> {
        // No change under this lock can be interrupted.
        self.installed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the signals to the handlers of a server, which are installed.
    fn leave_to_server() {
        let mut installed = Handlers::of_process().lock();
        installed.serves = true;
        installed.remove();
    }
}

impl Installed {
    fn remove(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}

/// From now on a write past the file size limit (`ulimit -f`) fails with EFBIG and does not end the process: any
/// client of a server could trigger such a write. This installs a handler, because an ignored signal would be
/// inherited by child programs.
pub(crate) fn outlive_long_files() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// The longest file that this process may write, if `ulimit -f` limits it.
pub(crate) fn longest_file() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// A flag raised by the first of [`ending`]'s signals; [`end`] then ends the process by that signal. The second ends
/// it at once.
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let handlers = Handlers::installed()?;
    handlers.at_once.store(false, Ordering::SeqCst);
    Ok(handlers.stopped.clone())
}

/// The same for a command that serves until a signal, for which a signal is a success.
pub(crate) fn drain_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let drained = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        flag::register_conditional_default(signal, drained.clone())?;
        flag::register(signal, drained.clone())?;
    }
    Handlers::leave_to_server();
    Ok(drained)
}

/// Runs `ask`, which changes something that must be undone before a signal ends the process; `ask` gets the flag.
pub(crate) fn attentively<T>(ask: impl FnOnce(&AtomicBool) -> io::Result<T>) -> io::Result<T> {
    // Before the first signal can come.
    let before = Handlers::of_process().at_once.swap(false, Ordering::SeqCst);
    let handlers = Handlers::installed()?;
    let done = ask(&handlers.stopped);
    if handlers.stopped.load(Ordering::SeqCst) {
        return done;
    }
    let mut installed = handlers.lock();
    match installed.serves {
        // From here on the server's own handlers act alone.
        true => installed.remove(),
        false => handlers.at_once.store(before, Ordering::SeqCst),
    }
    done
}

/// Handles a typed Ctrl-C as the signal that terminals make of it, unless a signal has already come.
pub(crate) fn interrupted_by_key() -> io::Result<()> {
    let handlers = Handlers::installed()?;
    let _ = handlers.raised_by.compare_exchange(0, SIGINT as usize, Ordering::SeqCst, Ordering::SeqCst);
    handlers.stopped.store(true, Ordering::SeqCst);
    Ok(())
}

/// Ends a process stopped by a signal with that same signal, because a shell ends its loop or script only then.
/// Otherwise returns `code`.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    let raised_by = Handlers::of_process().raised_by.load(Ordering::SeqCst);
    let (Ok(signal), Ok(status)) = (i32::try_from(raised_by), u8::try_from(128 + raised_by)) else {
        return code;
    };
    if signal == 0 {
        return code;
    }
    // What the end of `main` does. A thread that writes may hold the lock and wait for a slow reader.
    let (done, flushed) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = io::stdout().flush();
        let _ = done.send(());
    });
    let _ = flushed.recv_timeout(ATTENTION);
    // Signals do not end the first process of a container: it exits with the status that a shell would report.
    if !getpid().is_init() {
        let _ = low_level::emulate_default_handler(signal);
    }
    ExitCode::from(status)
}

/// Runs a command, which ends by itself soon after the flag is raised, or else is dropped.
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
        Either::Right(_) => Err("interrupted; the server or a local disk does not answer".into()),
    }
}

/// Runs a step, which is dropped when the flag is raised.
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

/// The signals that a server waits for.
pub(crate) struct Signals {
    pipe: UnixStream,
    write: UnixStream,
    catches_hang_ups: bool,
    /// Raised by SIGTERM and SIGINT.
    ended: Arc<AtomicBool>,
}

/// What a signal asks a server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To end (SIGTERM, SIGINT).
    End,
    /// To read its configuration again, or to end with its terminal (SIGHUP).
    HangUp,
}

impl Signals {
    /// All have their default actions still.
    pub(crate) fn new() -> io::Result<Signals> {
        let (pipe, write) = UnixStream::pair()?;
        Ok(Signals { pipe, write, catches_hang_ups: false, ended: Arc::default() })
    }

    /// Installs the handler for SIGHUP: from now on [`Signals::wait`] returns each one.
    pub(crate) fn catch_hang_ups(&mut self) -> io::Result<()> {
        if !self.catches_hang_ups && ending().any(|signal| signal == SIGHUP) {
            low_level::pipe::register(SIGHUP, self.write.try_clone()?)?;
            self.catches_hang_ups = true;
        }
        Ok(())
    }

    /// Installs the handlers for all.
    pub(crate) fn catch(&mut self) -> io::Result<()> {
        self.catch_hang_ups()?;
        for signal in [SIGTERM, SIGINT] {
            // The second signal of a kind finds the flag set and ends the process at once.
            let again = Arc::new(AtomicBool::new(false));
            flag::register_conditional_default(signal, again.clone())?;
            flag::register(signal, again)?;
            flag::register(signal, self.ended.clone())?;
            low_level::pipe::register(signal, self.write.try_clone()?)?;
        }
        Handlers::leave_to_server();
        Ok(())
    }

    /// Whether SIGTERM or SIGINT has come.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// As if SIGTERM had come.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Blocks until the next signal. Several hang-ups in a row may count as one.
    pub(crate) fn wait(&mut self) -> io::Result<Asked> {
        loop {
            match self.pipe.read(&mut [0; 64]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                // Each signal writes a byte, after it has raised its flag.
                Ok(_) if self.ended() => return Ok(Asked::End),
                Ok(_) => return Ok(Asked::HangUp),
            }
        }
    }
}

/// If this is the first process of a container, takes the exit status of each child from now on, on a thread of its own.
/// That process is the parent of all orphans in the container, such as those that a command of `podman exec` leaves: they
/// stay as zombies until their parent does this. A server starts no child whose status it needs itself.
pub(crate) fn reap_orphans() -> io::Result<()> {
    if !getpid().is_init() {
        return Ok(());
    }
    let (mut pipe, write) = UnixStream::pair()?;
    low_level::pipe::register(SIGCHLD, write)?;
    let reap = move || {
        loop {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            match pipe.read(&mut [0; 64]) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return tracing::warn!("orphans of this container stay as zombies: {e}"),
            }
        }
    };
    std::thread::Builder::new().name("orphans".into()).spawn(reap).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_past_the_longest_file_ends_no_process() {
        outlive_long_files().unwrap();
        low_level::raise(SIGXFSZ).unwrap();
    }

    #[test]
    fn a_hang_up_during_a_start_is_followed_after_it() {
        // Also under nohup, which ignores it.
        flag::register(SIGHUP, Arc::default()).unwrap();
        let mut signals = Signals::new().unwrap();
        signals.catch_hang_ups().unwrap();
        low_level::raise(SIGHUP).unwrap();
        signals.catch().unwrap();
        assert_eq!(signals.wait().unwrap(), Asked::HangUp);
    }
}
