//! The notification socket of a service manager (sd_notify(3)): its address, and the messages to it.
//!
//! A service manager that does not read its socket delays nothing here: a thread sends, in order, and a message that is not
//! taken within a limit is lost, which the log tells once. Without a socket nothing is sent.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the service manager may take to make room for a message. A start that nobody hears of fails after 90 s, by
/// default.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// How long the end of the process waits for the last messages.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);
/// The most messages that wait; the oldest is lost first, because the last ones say how things are.
const MOST_WAITING: usize = 32;

/// Sends to the service manager; clones send in one order.
#[derive(Clone)]
pub(super) struct Notifier(Option<Arc<Outbox>>);

struct Outbox {
    /// As the environment has it.
    socket: String,
    address: SocketAddr,
    taken_within: Duration,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<String>,
    /// Whether the thread has taken one that is not sent yet.
    is_sending: bool,
    /// Whether the log has told of a lost message; until one arrives again.
    has_told: bool,
}

/// An address that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NOTIFY_SOCKET={0} is neither an absolute path of at most 107 bytes nor @NAME: the service manager is told nothing"
)]
struct NoAddress(String);

/// The address in NOTIFY_SOCKET: a path, or a name of the abstract namespace behind `@`. None if it is empty.
fn address_of(text: &OsStr) -> Result<Option<SocketAddr>, NoAddress> {
    let address = match text.as_bytes() {
        [] => return Ok(None),
        [b'/', ..] => SocketAddr::from_pathname(text).ok(),
        [b'@', name @ ..] if !name.is_empty() => SocketAddr::from_abstract_name(name).ok(),
        _ => None,
    };
    address.map(Some).ok_or_else(|| NoAddress(text.to_string_lossy().into_owned()))
}

impl Notifier {
    /// Starts the thread, if NOTIFY_SOCKET has this value.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn start(socket: Option<&OsStr>) -> io::Result<Notifier> {
        Notifier::start_with(socket, TAKEN_WITHIN)
    }

    fn start_with(socket: Option<&OsStr>, taken_within: Duration) -> io::Result<Notifier> {
        let Some(socket) = socket else { return Ok(Notifier(None)) };
        let address = match address_of(socket) {
            Ok(Some(address)) => address,
            Ok(None) => return Ok(Notifier(None)),
            Err(e) => {
                tracing::warn!("{e}");
                return Ok(Notifier(None));
            }
        };
        let outbox = Arc::new(Outbox {
            socket: socket.to_string_lossy().into_owned(),
            address,
            taken_within,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let sent = outbox.clone();
        std::thread::Builder::new().name("weft-notify".to_owned()).spawn(move || sent.run())?;
        Ok(Notifier(Some(outbox)))
    }

    /// Sends a message, lines of `NAME=VALUE`, after all earlier ones. Does not wait.
    pub(super) fn tell(&self, message: impl Into<String>) {
        let Some(outbox) = &self.0 else { return };
        let mut queue = outbox.lock();
        let lost = if queue.waiting.len() < MOST_WAITING { None } else { queue.waiting.pop_front() };
        queue.waiting.push_back(message.into());
        outbox.changed.notify_all();
        if let Some(lost) = lost {
            outbox.lost(queue, &lost, &"too many messages wait for it");
        }
    }

    /// Sends a message that is repeated, unless the one before it is still on its way.
    pub(super) fn repeat(&self, message: &str) {
        let is_idle = |outbox: &Arc<Outbox>| outbox.lock().is_idle();
        if self.0.as_ref().is_some_and(is_idle) {
            self.tell(message);
        }
    }

    /// Waits until everything is sent, for a limited time.
    pub(super) fn flush(&self) {
        let Some(outbox) = &self.0 else { return };
        let is_busy = |queue: &mut Queue| !queue.is_idle();
        let waited = outbox.changed.wait_timeout_while(outbox.lock(), FLUSHED_WITHIN, is_busy);
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = queue.waiting.back().cloned() {
            outbox.lost(queue, &last, &"it does not read its socket, and the server ends");
        }
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_sending
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Each change is a call that does not panic half-way.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let Some(message) = queue.waiting.pop_front() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.is_sending = true;
            drop(queue);
            let sent = self.send(&message);
            queue = self.lock();
            queue.is_sending = false;
            self.changed.notify_all();
            match sent {
                Ok(()) => queue.has_told = false,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let seconds = self.taken_within.as_secs();
                    self.lost(queue, &message, &format_args!("it has not read its socket for {seconds} s"));
                    queue = self.lock();
                }
                Err(e) => {
                    self.lost(queue, &message, &e);
                    queue = self.lock();
                }
            }
        }
    }

    fn send(&self, message: &str) -> io::Result<()> {
        // Anew for each message: the service manager may have bound it again.
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(self.taken_within))?;
        socket.connect_addr(&self.address)?;
        socket.send(message.as_bytes()).map(drop)
    }

    /// Tells the log of a lost message, unless it was told of one and none has arrived since.
    fn lost(&self, mut queue: MutexGuard<'_, Queue>, message: &str, why: &dyn std::fmt::Display) {
        if std::mem::replace(&mut queue.has_told, true) {
            return;
        }
        drop(queue);
        let first = message.lines().next().unwrap_or_default();
        tracing::warn!("the service manager (NOTIFY_SOCKET={}) was not told {first}: {why}", self.socket);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn notifier(socket: impl AsRef<OsStr>, taken_within: Duration) -> Notifier {
        Notifier::start_with(Some(socket.as_ref()), taken_within).unwrap()
    }

    fn received(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    /// Fills the queue of a socket that nobody reads.
    fn fill(address: &SocketAddr) -> usize {
        let other = UnixDatagram::unbound().unwrap();
        other.connect_addr(address).unwrap();
        other.set_nonblocking(true).unwrap();
        (0..).take_while(|_| other.send(b"other").is_ok()).count()
    }

    #[test]
    fn an_address_is_a_path_or_an_abstract_name() {
        let of = |text: &str| address_of(OsStr::new(text));
        assert_eq!(of("").unwrap().map(drop), None);
        let path = of("/run/systemd/notify").unwrap().unwrap();
        assert_eq!(path.as_pathname().unwrap(), std::path::Path::new("/run/systemd/notify"));
        assert_eq!(of("@a/b").unwrap().unwrap().as_abstract_name().unwrap(), b"a/b");
        let long = format!("/{}", "x".repeat(200));
        for wrong in ["run/notify", "@", "vsock:2:1234", &long] {
            assert_eq!(of(wrong).unwrap_err(), NoAddress(wrong.to_owned()));
            notifier(wrong, TAKEN_WITHIN).tell("READY=1");
        }
    }

    #[test]
    fn messages_arrive_in_order_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@weft-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&address_of(OsStr::new(&name)).unwrap().unwrap()).unwrap();
        let by_path = UnixDatagram::bind(&path).unwrap();
        for (manager, notifier) in
            [(by_path, notifier(&path, TAKEN_WITHIN)), (by_name, notifier(&name, TAKEN_WITHIN))]
        {
            let messages = ["READY=1\nSTATUS=x", "RELOADING=1", "READY=1", "STOPPING=1"];
            messages.iter().for_each(|message| notifier.tell(*message));
            messages.iter().for_each(|message| assert_eq!(received(&manager), *message));
            notifier.flush();
            notifier.repeat("WATCHDOG=1");
            assert_eq!(received(&manager), "WATCHDOG=1");
        }
        // A socket that is gone, or was never there.
        let gone = notifier(dir.path().join("none"), TAKEN_WITHIN);
        gone.tell("READY=1");
        gone.flush();
        Notifier::start(None).unwrap().tell("READY=1");
    }

    #[test]
    fn a_socket_that_is_full_delays_nobody_and_gets_what_comes_later_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let fillers = fill(&manager.local_addr().unwrap());
        let begun = Instant::now();
        let notifier = notifier(&path, Duration::from_secs(3600));
        notifier.tell("READY=1");
        // Of a sign of life that cannot be sent, one does not pile up on another.
        (0..1000).for_each(|_| notifier.repeat("WATCHDOG=1"));
        for n in 0..2 * MOST_WAITING {
            notifier.tell(format!("STATUS={n}"));
        }
        notifier.tell("STOPPING=1");
        assert!(begun.elapsed() < Duration::from_secs(60), "it waits for nobody");
        notifier.flush();
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(notifier.0.as_ref().unwrap().lock().has_told);
        (0..fillers).for_each(|_| assert_eq!(received(&manager), "other"));
        let mut last = String::new();
        let mut count = 0;
        while last != "STOPPING=1" {
            last = received(&manager);
            assert_ne!(last, "WATCHDOG=1");
            count += 1;
        }
        assert!((MOST_WAITING..=MOST_WAITING + 1).contains(&count), "{count}");
        notifier.flush();
        assert!(!notifier.0.as_ref().unwrap().lock().has_told, "they arrive again");
    }

    #[test]
    fn a_message_that_is_not_taken_in_time_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let fillers = fill(&manager.local_addr().unwrap());
        let notifier = notifier(&path, Duration::from_millis(50));
        notifier.tell("READY=1");
        notifier.flush();
        assert!(notifier.0.as_ref().unwrap().lock().has_told);
        (0..fillers).for_each(|_| assert_eq!(received(&manager), "other"));
        notifier.tell("STOPPING=1");
        assert_eq!(received(&manager), "STOPPING=1");
    }
}
