//! What the service manager is told (sd_notify(3)): that the server is ready, what it serves, that it reloads, ends, and
//! is alive. Without a service manager nothing is sent.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weft_machine::rt::Cores;

use super::notify::Notifier;

/// The shortest time between two signs of life: more often the cores would have nothing else to do.
const LEAST_BETWEEN: Duration = Duration::from_millis(50);

/// The service manager, if one has started this process.
#[derive(Clone)]
pub(super) struct ServiceManager(Notifier);

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn of_environment() -> std::io::Result<ServiceManager> {
        Ok(ServiceManager(Notifier::start(std::env::var_os("NOTIFY_SOCKET").as_deref())?))
    }

    /// Tells that the server accepts connections.
    pub(super) fn ready(&self, status: &str) {
        self.0.tell(format!("READY=1\nSTATUS={status}\n"));
    }

    /// Tells what is served now.
    pub(super) fn status(&self, status: &str) {
        self.0.tell(format!("STATUS={status}\n"));
    }

    /// Tells that a reload begins; [`ServiceManager::ready`] ends it.
    pub(super) fn reloading(&self) {
        // Type=notify-reload distinguishes it by this from the reloads before.
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32).as_micros();
        self.0.tell(format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n"));
    }

    /// Tells that the server ends.
    pub(super) fn stopping(&self) {
        self.0.tell("STOPPING=1\n");
    }

    /// Waits until it was told everything, for a limited time.
    pub(super) fn flush(&self) {
        self.0.flush();
    }

    /// Tells, as often as it wants (`WatchdogSec`), that every core still runs its tasks. If one does not, the service
    /// manager restarts the server.
    pub(super) fn watch(&self, cores: Arc<Cores>) -> std::io::Result<()> {
        let variable = |name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
        let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        let period = match watchdog(usec.as_deref(), pid.as_deref(), std::process::id()) {
            Ok(Some(period)) => period,
            Ok(None) => return Ok(()),
            Err(nonsense) => {
                tracing::warn!("{nonsense}");
                return Ok(());
            }
        };
        let every = (period / 2).max(LEAST_BETWEEN);
        if every >= period {
            tracing::warn!(
                "the service manager wants a sign of life every {} us (WATCHDOG_USEC) and gets one every {} ms: set a longer \
                 WatchdogSec= in the unit",
                period.as_micros(),
                every.as_millis()
            );
        }
        let manager = self.0.clone();
        let watch = move || loop {
            let until = Instant::now() + every;
            if all_turn(&cores, until) {
                manager.repeat("WATCHDOG=1\n");
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        };
        std::thread::Builder::new().name("weft-watchdog".to_owned()).spawn(watch).map(drop)
    }
}

/// A variable of the watchdog that is not what sd_watchdog_enabled(3) says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}={1} is not {2}: the service manager gets no sign of life; set WatchdogSec= in the unit")]
struct Nonsense(&'static str, String, &'static str);

/// How often the service manager wants a sign of life; none if it wants it of another process.
fn watchdog(usec: Option<&str>, pid: Option<&str>, own: u32) -> Result<Option<Duration>, Nonsense> {
    let Some(usec) = usec else { return Ok(None) };
    if let Some(pid) = pid {
        let wanted: Result<u32, _> = pid.parse();
        match wanted {
            Ok(wanted) if wanted == own => {}
            Ok(_) => return Ok(None),
            Err(_) => return Err(Nonsense("WATCHDOG_PID", pid.to_owned(), "a process id")),
        }
    }
    match usec.parse() {
        // The latter is systemd's infinity.
        Err(_) | Ok(0 | u64::MAX) => {
            Err(Nonsense("WATCHDOG_USEC", usec.to_owned(), "a number of microseconds above 0"))
        }
        Ok(micros) => Ok(Some(Duration::from_micros(micros))),
    }
}

/// Whether every core runs a task until then.
fn all_turn(cores: &Cores, until: Instant) -> bool {
    let (alive, answers) = mpsc::channel();
    for core in 0..cores.len() {
        let alive = alive.clone();
        cores.run(core, move || async move {
            // The receiver gives up only when the core is late.
            let _ = alive.send(());
        });
    }
    (0..cores.len()).all(|_| answers.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_for_the_process_that_is_named() {
        let of = |usec, pid| watchdog(usec, pid, 7).map_err(|e| e.to_string());
        assert_eq!(of(None, Some("7")), Ok(None));
        assert_eq!(of(Some("400000"), None), Ok(Some(Duration::from_millis(400))));
        assert_eq!(of(Some("1"), Some("7")), Ok(Some(Duration::from_micros(1))));
        assert_eq!(of(Some("400000"), Some("8")), Ok(None));
        for (usec, pid, says) in [
            (
                "0",
                "7",
                "WATCHDOG_USEC=0 is not a number of microseconds above 0: the service manager gets no",
            ),
            ("-1", "7", "WATCHDOG_USEC=-1 is not a number of microseconds"),
            ("2min", "7", "WATCHDOG_USEC=2min is not a number of microseconds"),
            ("", "7", "WATCHDOG_USEC= is not"),
            ("18446744073709551615", "7", "WATCHDOG_USEC=18446744073709551615 is not"),
            ("400000", "me", "WATCHDOG_PID=me is not a process id"),
        ] {
            let said = of(Some(usec), Some(pid)).unwrap_err();
            assert!(said.starts_with(says), "{said}");
        }
    }

    #[test]
    fn a_core_that_does_not_turn_is_noticed_until_it_does() {
        let cores = Cores::start(2, "test-core").unwrap();
        let soon = || Instant::now() + Duration::from_millis(50);
        let long = || Instant::now() + Duration::from_secs(60);
        assert!(all_turn(&cores, long()));
        let (release, blocked) = mpsc::channel::<()>();
        cores.run(1, move || async move {
            // Blocks the thread, as a system call that does not return. The sender is dropped.
            let _ = blocked.recv();
        });
        assert!(!all_turn(&cores, soon()));
        assert!(!all_turn(&cores, soon()));
        drop(release);
        assert!(all_turn(&cores, long()));
    }
}
