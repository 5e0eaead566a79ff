//! Logs go to standard error; standard output belongs to results.
//!
//! Owns: the level, and how many lines of one kind there are. `WEFT_LOG` (as `tracing` filters are written) overrides `-v`.
//!
//! Clients can have the server warn them as often as they like: of a request to an encrypted share in the clear, of a limit that
//! they have reached. So warnings from one place in the code come at a bounded rate, whatever place that is; what was left out
//! is counted. What one address does several times in a row is told of once: who looks for the protocol of a port asks in several
//! languages, each by a connection of its own.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Warnings and errors from one place at once.
const BURST: u32 = 100;
/// The same line about the same address within so long is one event.
const TOGETHER: Duration = Duration::from_secs(10);
/// Lines that are remembered for that; those beyond are logged again.
const MOST_LINES: usize = 64;
/// After a burst, one in so long.
const PAUSE: Duration = Duration::from_secs(1);

/// Starts logging at the level that `-v` asks for; a server also tells what it does, a client only what is wrong.
pub(crate) fn start(verbose: u8, server: bool) {
    let level = match verbose {
        0 if server => "info",
        0 => "warn",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("WEFT_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // Where standard error is a pipe that somebody has closed, there is nobody to be told of that either; the attempt would
        // panic, and end the server with its log.
        .log_internal_errors(false)
        .finish()
        .with(Floods::default())
        .init();
}

/// What each place in the code has logged lately: there are as many as there are lines that log.
#[derive(Default)]
struct Floods {
    places: Mutex<HashMap<Identifier, Flow>>,
    repeated: Mutex<Repeated>,
}

impl<S: Subscriber> Layer<S> for Floods {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        // What somebody has asked to see he sees; what is told of each client (a log-on) is not for us to leave out.
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let now = Instant::now();
        let mut about = About::default();
        event.record(&mut about);
        if let Some(ip) = about.ip {
            let line = (event.metadata().callsite(), ip, about.message);
            if !self.repeated.lock().unwrap_or_else(PoisonError::into_inner).is_first(line, now) {
                return false;
            }
        }
        let left_out = {
            let mut flows = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            flows.entry(event.metadata().callsite()).or_insert_with(|| Flow::new(now)).pass(now)
        };
        match left_out {
            None => return false,
            Some(0) => {}
            Some(n) => note!("  {n} lines like the next one were not logged"),
        }
        true
    }
}

/// What a line says, and of whom.
#[derive(Default)]
struct About {
    ip: Option<IpAddr>,
    message: String,
}

impl Visit for About {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            // Processes of this host have no address.
            "peer" => self.ip = format!("{value:?}").parse().ok().map(|addr: SocketAddr| addr.ip()),
            "message" => self.message = format!("{value:?}"),
            _ => {}
        }
    }
}

/// The lines about peers that were logged lately: where in the code, about which address, what.
#[derive(Default)]
struct Repeated(VecDeque<(PeerLine, Instant)>);

type PeerLine = (Identifier, IpAddr, String);

impl Repeated {
    fn is_first(&mut self, line: PeerLine, now: Instant) -> bool {
        while self.0.front().is_some_and(|(_, at)| now.duration_since(*at) >= TOGETHER) {
            self.0.pop_front();
        }
        if self.0.iter().any(|(known, _)| *known == line) {
            return false;
        }
        if self.0.len() >= MOST_LINES {
            self.0.pop_front();
        }
        self.0.push_back((line, now));
        true
    }
}

/// A bucket of lines, which fills by one each [`PAUSE`].
struct Flow {
    left: u32,
    filled: Instant,
    left_out: u64,
}

impl Flow {
    fn new(now: Instant) -> Flow {
        Flow { left: BURST, filled: now, left_out: 0 }
    }

    /// Whether a line is logged; then how many were not since the last one.
    fn pass(&mut self, now: Instant) -> Option<u64> {
        let pauses = now.duration_since(self.filled).as_nanos() / PAUSE.as_nanos();
        let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
        if pauses > 0 {
            self.left = self.left.saturating_add(pauses).min(BURST);
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            None => {
                self.left_out = self.left_out.saturating_add(1);
                None
            }
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.left_out))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One `weft ls` by the wrong protocol had six lines.
    #[test]
    fn what_an_address_does_in_a_row_is_told_of_once() {
        #[derive(Clone, Default)]
        struct Told(std::sync::Arc<Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Told {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                let mut about = About::default();
                event.record(&mut about);
                self.0.lock().unwrap().push(format!("{:?} {}", about.ip, about.message));
            }
        }
        let told = Told::default();
        let subscriber = tracing_subscriber::registry().with(told.clone()).with(Floods::default());
        tracing::subscriber::with_default(subscriber, || {
            for (peer, why) in [
                ("10.0.0.1:1", "a"),
                ("10.0.0.1:2", "a"),
                ("10.0.0.2:3", "a"),
                ("10.0.0.1:4", "b"),
                ("local", "a"),
                ("local", "a"),
            ] {
                tracing::warn!(peer = %peer, "closed: {why}");
            }
        });
        let told = told.0.lock().unwrap();
        let expected = [
            "Some(10.0.0.1) closed: a",
            "Some(10.0.0.2) closed: a",
            "Some(10.0.0.1) closed: b",
            "None closed: a",
            "None closed: a",
        ];
        assert_eq!(*told, expected);
    }

    #[test]
    fn a_place_that_logs_all_the_time_logs_a_burst_and_then_one_line_a_second() {
        let start = Instant::now();
        let mut flow = Flow::new(start);
        let logged: Vec<_> =
            (0..10_000).filter_map(|ms| flow.pass(start + Duration::from_millis(ms))).collect();
        assert_eq!(logged.len(), BURST as usize + 9);
        assert_eq!(logged[..BURST as usize], [0; BURST as usize]);
        assert_eq!(logged[BURST as usize + 1..], [999; 8]);
        // Quiet for long, it may say as much as before.
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..2 * BURST).filter_map(|_| flow.pass(later)).count(), BURST as usize);
    }
}
