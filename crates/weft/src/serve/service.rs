//! What the service manager is told (sd_notify(3)): that the server is ready, reloads, ends, and is alive. Without a
//! service manager nothing is sent.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use sd_notify::NotifyState;
use weft_machine::rt::Cores;

/// Tells that the server accepts connections.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells that a reload begins; [`ready`] ends it.
pub(super) fn reloading() {
    tell(&[NotifyState::Reloading]);
}

/// Tells that the server ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells, as often as the service manager wants it (`WatchdogSec`), that every core still runs its tasks. If one does
/// not, the service manager restarts the server.
pub(super) fn watch(cores: Arc<Cores>) -> std::io::Result<()> {
    let Some(period) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let every = period / 2;
    let watch = move || loop {
        let until = Instant::now() + every;
        if all_turn(&cores, until) {
            tell(&[NotifyState::Watchdog]);
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    };
    std::thread::Builder::new().name("weft-watchdog".to_owned()).spawn(watch).map(drop)
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

fn tell(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::warn!("the service manager cannot be told: {e}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
