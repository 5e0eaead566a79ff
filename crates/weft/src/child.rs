//! Runs this program as another process: the other side of a measurement.
//!
//! The process never outlives this one, even if no destructor runs: this process holds the reading end of the child's
//! standard output pipe, and the child ends when that end is closed ([`end_with_reader`]). A parent-death signal
//! (PR_SET_PDEATHSIG) would arrive when the thread that started the child ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::Value;

use crate::Failure;

/// How long a process whose reader is gone may take to shut down.
const GRACE: Duration = Duration::from_secs(5);
/// How long one that nobody needs any more may take, before it is killed.
const TIDYING: Duration = Duration::from_millis(500);

/// A process that has printed its ready line.
pub(crate) struct Service {
    child: Child,
    ready: Value,
    /// The process runs as long as this is open.
    _stdout: BufReader<ChildStdout>,
}

/// From now on this process ends, as by SIGTERM, when no process can read its standard output any more.
pub(crate) fn end_with_reader() {
    std::thread::spawn(|| {
        let stdout = std::io::stdout();
        // No event is requested: poll reports POLLERR for a pipe without a reader in any case.
        while let Ok(0) | Err(Errno::INTR) = poll(&mut [PollFd::new(&stdout, PollFlags::empty())], None) {}
        let _ = kill_process(getpid(), Signal::TERM);
        std::thread::sleep(GRACE);
        std::process::exit(1);
    });
}

impl Service {
    /// Starts `weft` with these arguments and waits for its ready line, a JSON object. The caller may set one
    /// environment variable and choose standard input.
    pub(crate) fn start(
        args: &[&str],
        variable: Option<(&str, &str)>,
        stdin: Stdio,
    ) -> Result<Service, Failure> {
        Service::spawn(Command::new(std::env::current_exe()?), args, variable, stdin)
    }

    /// Like `start`; signals from the terminal do not reach the process. `log` sets its log level.
    pub(crate) fn start_apart(
        args: &[&str],
        variable: Option<(&str, &str)>,
        stdin: Stdio,
        log: &str,
    ) -> Result<Service, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.process_group(0);
        // The log of the measured process does not interest the user, unless asked for.
        if std::env::var_os("WEFT_LOG").is_none() {
            command.env("WEFT_LOG", log);
        }
        Service::spawn(command, args, variable, stdin)
    }

    fn spawn(
        mut command: Command,
        args: &[&str],
        variable: Option<(&str, &str)>,
        stdin: Stdio,
    ) -> Result<Service, Failure> {
        command.args(args).arg("--end-with-reader").stdin(stdin).stdout(Stdio::piped());
        if let Some((name, value)) = variable {
            command.env(name, value);
        }
        let mut child = command.spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("the process has no standard output")?;
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line)?;
        match serde_json::from_str(&line) {
            Ok(ready) => Ok(Service { child, ready, _stdout: stdout }),
            Err(e) => {
                // The process printed the reason on standard error; do not leave it running.
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("`weft {}` did not become ready: {e}", args.join(" ")).into())
            }
        }
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A port from its ready line.
    pub(crate) fn port(&self, name: &str) -> Result<u16, Failure> {
        let port = self.ready[name].as_u64().and_then(|port| u16::try_from(port).ok());
        port.ok_or_else(|| format!("the ready line has no {name}").into())
    }

    /// A number from its ready line.
    pub(crate) fn number(&self, name: &str) -> Result<f64, Failure> {
        self.ready[name].as_f64().ok_or_else(|| format!("the ready line has no {name}").into())
    }

    /// Asks it to end, and waits; an unsuccessful exit is an error.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}").into()) }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // After `stop` it has already ended, and its number may be another's. Otherwise something failed, and the process must
        // not stay behind. It has a moment to remove its sockets.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let until = Instant::now() + TIDYING;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
