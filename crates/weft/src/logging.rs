//! Logs go to standard error; standard output belongs to results. `WEFT_LOG` overrides `-v`: a level, and modules with
//! levels of their own. One that is not understood is refused, because nobody would notice the missing lines.
//!
//! A line is text for people, or a JSON object (`--log-format`). In the journal of systemd it has a priority
//! (sd-daemon(3)), and text has no time, because the journal keeps its own.
//!
//! Clients can trigger warnings as often as they like, for example by unencrypted requests to an encrypted share, or
//! by exceeding a limit. So each place in the code logs warnings at a bounded rate, and skipped lines are counted.
//! Repeated events of one address are logged once: a client that probes a port's protocol tries several, each with
//! its own connection.

mod form;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use weft_machine::meter::Events;

pub(crate) use self::form::{LogFormat, is_json, use_format};
use crate::misuse::Misuse;

/// Warnings and errors that one place may log in a burst.
const BURST: u32 = 100;
/// The same line about the same address within this time is one event.
const TOGETHER: Duration = Duration::from_secs(10);
/// How many lines are remembered for that; further ones are logged again.
const MOST_LINES: usize = 64;
/// After a burst, one line per this interval.
const PAUSE: Duration = Duration::from_secs(1);

/// The environment variable.
const VARIABLE: &str = "WEFT_LOG";

/// Starts logging at the level that `-v` asks for; a server also logs what it does, a client only problems.
///
/// # Errors
/// `WEFT_LOG` is not a filter.
pub(crate) fn start(verbose: u8, server: bool) -> Result<(), Misuse> {
    let level = match verbose {
        0 if server => LevelFilter::INFO,
        0 => LevelFilter::WARN,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = match std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) {
        None => Targets::new().with_default(level),
        Some(text) => filter(&text.to_string_lossy())?,
    };
    let form = form::Form::of_stderr();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(form.is_coloured())
        // If standard error is a closed pipe, nobody can be told of that either; the attempt would panic, and end the
        // server with its log.
        .log_internal_errors(false)
        .event_format(form);
    tracing_subscriber::registry().with(filter).with(lines).with(Floods::default()).init();
    Ok(())
}

/// The filter that this value of `WEFT_LOG` describes: `LEVEL`, `MODULE=LEVEL`, or a module of Weft, of which all is
/// logged. `EnvFilter` would take spans and fields, too, which nobody needs here, and bring an engine for regular
/// expressions: 300 KB of the program.
fn filter(text: &str) -> Result<Targets, Misuse> {
    let mut filter = Targets::new();
    for directive in text.split(',').filter(|directive| !directive.is_empty()) {
        let wrong = |why: &str| {
            Misuse::new(format!(
                "{VARIABLE}: {directive:?} {why}; write for example {VARIABLE}=debug or {VARIABLE}=info,weft_smb=trace"
            ))
        };
        let (module, level) = match directive.split_once('=') {
            // An empty level would be parsed as `error`.
            Some((_, "")) => return Err(wrong("has no level")),
            Some((module, level)) => {
                let level = level.parse().map_err(|e| wrong(&format!("is not a directive ({e})")))?;
                (module, level)
            }
            None => match directive.parse::<LevelFilter>() {
                Ok(level) => {
                    filter = filter.with_default(level);
                    continue;
                }
                // A filter takes any word for a module, even a misspelt level.
                Err(_) if !directive.starts_with("weft") => {
                    return Err(wrong(
                        "is neither a level (error, warn, info, debug, trace, off) nor a module of Weft",
                    ));
                }
                Err(_) => (directive, LevelFilter::TRACE),
            },
        };
        let is_of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
        if module.is_empty() || !module.chars().all(is_of_path) {
            return Err(wrong("does not name a module"));
        }
        filter = filter.with_target(module, level);
    }
    Ok(filter)
}

/// Lines that were left out here.
pub(crate) static LEFT_OUT: Events = Events::new();

/// What each place in the code has logged recently, bounded by the number of places that log.
#[derive(Default)]
struct Floods {
    places: Mutex<HashMap<Identifier, Flow>>,
    repeated: Mutex<Repeated>,
}

impl<S: Subscriber> Layer<S> for Floods {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        // The user asked for these levels, so they are complete; the events of each client (a log-on) must not be
        // left out.
        if *event.metadata().level() > Level::WARN {
            return true;
        }
        let now = Instant::now();
        let mut about = About::default();
        event.record(&mut about);
        if let Some(ip) = about.ip {
            let line = (event.metadata().callsite(), ip, about.message);
            if !self.repeated.lock().unwrap_or_else(PoisonError::into_inner).is_first(line, now) {
                LEFT_OUT.count();
                return false;
            }
        }
        let left_out = {
            let mut flows = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            flows.entry(event.metadata().callsite()).or_insert_with(|| Flow::new(now)).pass(now)
        };
        match left_out {
            None => {
                LEFT_OUT.count();
                return false;
            }
            Some(0) => {}
            Some(n) => form::left_out(n, *event.metadata().level()),
        }
        true
    }
}

/// A line's text and the address it concerns.
#[derive(Default)]
struct About {
    ip: Option<IpAddr>,
    message: String,
}

impl Visit for About {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            // Processes on this host have no address.
            "peer" => self.ip = format!("{value:?}").parse().ok().map(|addr: SocketAddr| addr.ip()),
            "message" => self.message = format!("{value:?}"),
            _ => {}
        }
    }
}

/// Recent lines about peers: place in the code, address, text.
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

/// A token bucket of lines, which gains one token per [`PAUSE`].
struct Flow {
    left: u32,
    filled: Instant,
    left_out: u64,
}

impl Flow {
    fn new(now: Instant) -> Flow {
        Flow { left: BURST, filled: now, left_out: 0 }
    }

    /// Whether a line is logged; if so, how many were skipped since the last one.
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

    /// One `weft ls` with the wrong protocol used to log six lines.
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

    /// Such a value was ignored, and so was a misspelt level.
    #[test]
    fn a_filter_that_is_not_understood_is_refused_with_an_example() {
        for text in ["debug", "INFO", "off", "info,weft_smb=trace", "weft_nfs", "rustls=warn,"] {
            assert!(filter(text).is_ok(), "{text}");
        }
        assert_eq!(filter("info,weft_smb=trace").unwrap().to_string(), "weft_smb=trace,info");
        for (text, directive) in [
            ("debgu", "debgu"),
            ("info,weft_smb=loud", "weft_smb=loud"),
            ("weft_smb==debug,info", "weft_smb==debug"),
            ("info, weft_smb=debug", " weft_smb=debug"),
            ("weft_smb=debug\u{fffd}", "weft_smb=debug\u{fffd}"),
            ("weft_smb=", "weft_smb="),
            ("=debug", "=debug"),
            ("weft[a{b}]=trace", "weft[a{b}]=trace"),
            ("[{peer}]=trace", "[{peer}]=trace"),
        ] {
            let refused = filter(text).err().unwrap_or_else(|| panic!("{text} is accepted")).to_string();
            assert!(refused.starts_with(&format!("WEFT_LOG: {directive:?} ")), "{refused}");
            assert!(refused.contains("WEFT_LOG=debug"), "{refused}");
            assert_eq!(crate::exit_status::status_of(&filter(text).unwrap_err()), 2);
        }
    }

    #[test]
    fn a_filter_lets_through_what_it_names() {
        let filtered =
            |text: &str, module: &str, level: Level| filter(text).unwrap().would_enable(module, &level);
        assert!(filtered("debug", "weft_smb::server", Level::DEBUG));
        assert!(!filtered("debug", "weft_smb::server", Level::TRACE));
        assert!(filtered("info,weft_smb=trace", "weft_smb::server", Level::TRACE));
        assert!(!filtered("info,weft_smb=trace", "weft_nfs", Level::DEBUG));
        assert!(filtered("info,weft_smb=trace", "weft_nfs", Level::INFO));
        assert!(filtered("weft_nfs", "weft_nfs::server", Level::TRACE));
        assert!(!filtered("weft_nfs", "weft_smb", Level::ERROR));
        assert!(!filtered("info,weft_nfs=off", "weft_nfs", Level::ERROR));
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
        // After a long quiet time it may log a full burst again.
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..2 * BURST).filter_map(|_| flow.pass(later)).count(), BURST as usize);
    }
}
