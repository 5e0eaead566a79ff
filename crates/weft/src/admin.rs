//! Talking to a running `weft serve`: where its socket is, the format of the conversation, and the client side.
//!
//! Layout: `STATE/run/PID.sock`, a Unix socket per server; STATE is the state directory, and other users cannot enter
//! `run`. A connection carries lines: each request is a JSON object with a field `do`, each answer an object with
//! `ok` or
//! `error`, in the order of the requests. [`endpoint`] carries requests out.

pub(crate) mod endpoint;
pub(crate) mod replica;

use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weft_machine::file::private;

use crate::Failure;
use crate::config::AbsentShare;
use crate::listen::unix;
use crate::out::ShellCommand;

/// Longest request in bytes.
const MAX_REQUEST: usize = 64 << 10;
/// Longest answer in bytes: the maximum number of connections, at some 2 KiB each.
const MAX_ANSWER: u64 = 64 << 20;
/// How long a server may take to answer from what it already knows.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a server may take to read its configuration again: file systems that do not answer cost it some looks.
const RELOAD_PATIENCE: Duration = Duration::from_secs(60);
/// After this time the user is told what the command is waiting for.
const SAYS_AFTER: Duration = Duration::from_secs(5);
const SUFFIX: &str = ".sock";

/// What a running server can be asked.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// What the server serves, and to whom.
    Status,
    /// The slow operations.
    Slow,
    /// Replication.
    Replica(replica::Command),
    /// Read the users and groups again.
    Users,
    /// Read the configuration, the users and the groups again.
    Reload {
        /// Only if the server was started with this configuration file.
        file: Option<PathBuf>,
    },
    /// Grow a volume that it serves.
    Grow {
        /// The volume's name.
        volume: String,
        /// The new size in bytes.
        size: u64,
    },
}

impl Request {
    /// The command that shows whether the request was done; `None` for requests that change nothing.
    fn shown_by(&self) -> Option<String> {
        match self {
            Request::Grow { volume, .. } => {
                Some(ShellCommand::new("weft volume info").operand(volume).here().to_string())
            }
            Request::Status
            | Request::Slow
            | Request::Users
            | Request::Reload { .. }
            | Request::Replica(replica::Command::Status | replica::Command::Verify { .. }) => None,
            Request::Replica(_) => Some(ShellCommand::new("weft replica status").here().to_string()),
        }
    }

    /// What happens to the request if the user interrupts the wait for the answer.
    fn when_interrupted(&self) -> String {
        match (self, self.shown_by()) {
            (Request::Replica(replica::Command::Switch { failover: true, .. }), Some(command)) => format!(
                "; Ctrl-C cancels it while it waits for the source to be silent, but not once it has begun: `{command}` shows the state"
            ),
            (_, Some(command)) => format!("; it continues even after Ctrl-C: `{command}` shows the state"),
            (_, None) => String::new(),
        }
    }
}

/// What a reload has changed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// New shares.
    pub added: Vec<String>,
    /// Shares that are no longer served.
    pub removed: Vec<String>,
    /// Shares with other rules.
    pub changed: Vec<String>,
    /// Keys whose new values need a restart.
    pub restart: Vec<String>,
    /// Shares whose folders cannot be served.
    #[serde(default)]
    pub absent: Vec<AbsentShare>,
    /// Which folders the server's user may not write, and which served shares have another folder after a restart only.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("read the configuration again")?;
        let parts = [
            ("new shares", &self.added),
            ("shares that are gone", &self.removed),
            ("changed shares", &self.changed),
            ("keys that need a restart", &self.restart),
        ];
        for (what, names) in parts.iter().filter(|(_, names)| !names.is_empty()) {
            write!(f, "; {what}: {}", names.join(", "))?;
        }
        self.absent.iter().try_for_each(|absent| write!(f, "; {absent}"))?;
        self.warnings.iter().try_for_each(|warning| write!(f, "; {warning}"))
    }
}

/// The server received the request but did not answer: it may still carry it out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unanswered(String);

impl Unanswered {
    fn new(pid: u32, seconds: u64, request: &Request) -> Unanswered {
        let said = format!("the server with process number {pid}");
        Unanswered(match request.shown_by() {
            Some(command) => format!(
                "{said} has not answered the request within {seconds} s; it may still carry it out: `{command}` shows whether it has"
            ),
            None => format!("{said} did not answer within {seconds} s"),
        })
    }
}

/// The server's answer.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// Success; the shape depends on the request.
    Ok(Value),
    /// Failure; this sentence says why.
    Error(String),
}

/// The folder of the sockets.
fn folder(state: &Path) -> PathBuf {
    state.join("run")
}

/// Creates the folder with access for its owner only, or checks that an existing one is such a folder.
fn make_folder(state: &Path) -> io::Result<PathBuf> {
    if state.exists() && !state.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "that is a file; name a directory"));
    }
    private::folder(state)?;
    let folder = folder(state);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let found = std::fs::symlink_metadata(&folder)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if !ours || found.mode() & 0o077 != 0 {
        let text =
            format!("{} must belong to this user and be closed to others: chmod 700 it", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(folder)
}

/// A server that has a socket.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its process number.
    pub pid: u32,
    path: PathBuf,
}

/// The servers of a state directory, by process number. Sockets of dead processes are ignored.
pub(crate) fn servers(state: &Path) -> Result<Vec<Server>, Failure> {
    let folder = folder(state);
    let entries = match std::fs::read_dir(&folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| {
            let whose =
                if e.kind() == io::ErrorKind::PermissionDenied { run_as(&folder) } else { String::new() };
            format!("cannot look for servers in {}: {e}{whose}", folder.display())
        })?,
    };
    let mut servers = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if let Some(pid) = pid_of(&path)
            && !unix::is_abandoned(&path)
        {
            servers.push(Server { pid, path });
        }
    }
    servers.sort_by_key(|server| server.pid);
    Ok(servers)
}

/// As whom a command can reach the servers, if this user may not look into their folder.
fn run_as(folder: &Path) -> String {
    let reachable = folder.ancestors().find_map(|above| above.metadata().ok());
    match reachable.map(|found| found.uid()) {
        None | Some(0) => "; run the command as root".to_owned(),
        Some(owner) => format!("; run the command as root or as the user {}", weft_store::user_name(owner)),
    }
}

fn pid_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.parse().ok()
}

impl Server {
    /// Sends a request and waits up to `patience` for the answer.
    pub(crate) fn ask_within(&self, request: &Request, patience: Duration) -> Result<Value, Failure> {
        // A command that waits no longer than a status query needs no notice.
        let says_after = if patience > PATIENCE { SAYS_AFTER } else { patience };
        self.ask_saying(request, patience, says_after, || {
            let (pid, seconds, interrupted) = (self.pid, patience.as_secs(), request.when_interrupted());
            note!(
                "the server with process number {pid} has not answered yet; waiting for {seconds} s at most{interrupted}"
            );
        })
    }

    /// Like `ask_within`; calls `late` when the answer takes longer than `says_after`.
    fn ask_saying(
        &self,
        request: &Request,
        patience: Duration,
        says_after: Duration,
        late: impl FnOnce(),
    ) -> Result<Value, Failure> {
        let failed = |what: &str, e: io::Error| {
            Failure::from(format!("{what} the server with process number {}: {e}", self.pid))
        };
        let stream = unix::connect(&self.path).map_err(|e| failed("cannot reach", e))?;
        // Once the server has begun to answer, this limit applies to each piece.
        let first = patience.min(says_after);
        let rest = patience.saturating_sub(first);
        stream.set_read_timeout(Some(first))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        (&stream).write_all(&line).map_err(|e| failed("cannot ask", e))?;
        let mut answer = Vec::new();
        let mut reader = BufReader::new((&stream).take(MAX_ANSWER));
        let is_late = |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let mut read = reader.read_until(b'\n', &mut answer);
        if read.as_ref().is_err_and(is_late) && rest > Duration::ZERO {
            late();
            stream.set_read_timeout(Some(rest))?;
            // The bytes received so far stay in `answer`.
            read = reader.read_until(b'\n', &mut answer);
        }
        match read {
            Ok(0) => {
                return Err(
                    format!("the server with process number {} closed the connection", self.pid).into()
                );
            }
            Ok(_) => {}
            Err(e) if is_late(&e) => {
                return Err(Unanswered::new(self.pid, patience.as_secs(), request).into());
            }
            Err(e) => return Err(failed("no answer from", e)),
        }
        match serde_json::from_slice(&answer)? {
            Answer::Ok(value) => Ok(value),
            Answer::Error(why) => Err(why.into()),
        }
    }

    /// [`Server::ask_within`] with the time limit for requests that need no work first.
    pub(crate) fn ask(&self, request: &Request) -> Result<Value, Failure> {
        self.ask_within(request, PATIENCE)
    }
}

/// Asks each of these servers; one that does not answer keeps none of the others from being asked.
///
/// # Errors
/// The sentences of `failed` about the servers that failed, or the first error of `answered`.
pub(crate) fn ask_each(
    servers: &[Server],
    request: &Request,
    mut answered: impl FnMut(u32, Value) -> Result<(), Failure>,
    failed: impl Fn(u32, Failure) -> String,
) -> Result<(), Failure> {
    let patience = match request {
        Request::Reload { .. } => RELOAD_PATIENCE,
        _ => PATIENCE,
    };
    let mut failures = Vec::new();
    for server in servers {
        match server.ask_within(request, patience) {
            Ok(answer) => answered(server.pid, answer)?,
            Err(e) => failures.push(failed(server.pid, e)),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_fails_keeps_no_other_from_being_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = |pid: u32| dir.path().join(format!("{pid}{SUFFIX}"));
        let listener = std::os::unix::net::UnixListener::bind(path(2)).unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            stream.write_all(b"{\"ok\":7}\n").unwrap();
        });
        // Nobody listens on the first socket and the last.
        let servers: Vec<Server> = (1..=3).map(|pid| Server { pid, path: path(pid) }).collect();
        let mut answers = Vec::new();
        let answered = |pid, answer| {
            answers.push((pid, answer));
            Ok(())
        };
        let said = ask_each(&servers, &Request::Users, answered, |pid, _| format!("not {pid}"));
        assert_eq!(said.unwrap_err().to_string(), "not 1; not 3");
        assert_eq!(answers, [(2, Value::from(7))]);
        answering.join().unwrap();
    }

    #[test]
    fn a_request_that_is_not_answered_may_still_be_carried_out() {
        let dir = tempfile::tempdir().unwrap();
        // Nothing accepts on this socket, like a suspended server.
        let path = dir.path().join("7.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = Server { pid: 7, path };
        let ask = |request: &Request| server.ask_within(request, Duration::from_millis(1)).unwrap_err();
        let grow = ask(&Request::Grow { volume: "v1".into(), size: 1 << 30 });
        assert!(grow.is::<Unanswered>());
        let said = grow.to_string();
        assert!(said.contains("may still carry it out") && said.contains("`weft volume info v1`"), "{said}");
        assert!(!ask(&Request::Status).to_string().contains("may still"));
        // The notice says beforehand what an interruption does.
        let failover = Request::Replica(replica::Command::Switch {
            group: "v1".into(),
            to: None,
            failover: true,
            past: Vec::new(),
        });
        assert!(failover.when_interrupted().contains("cancels it while it waits"));
        let grow = Request::Grow { volume: "v1".into(), size: 1 << 30 }.when_interrupted();
        assert_eq!(grow, "; it continues even after Ctrl-C: `weft volume info v1` shows the state");
        assert_eq!(Request::Status.when_interrupted(), "");
        // A longer wait is announced once.
        let (mut told, ms) = (0, Duration::from_millis);
        server.ask_saying(&Request::Status, ms(2), ms(1), || told += 1).unwrap_err();
        assert_eq!(told, 1);
        server.ask_saying(&Request::Status, ms(1), ms(1), || panic!("it gives up then")).unwrap_err();
    }
}
