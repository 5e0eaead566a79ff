//! The form of a log line: text, JSON, and the priorities of the journal.
//!
//! The format can change while the server runs, because its configuration is read after the first lines and can be
//! read again.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Json, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Device and inode of the journal's stream, if the service manager has connected one.
const JOURNAL: &str = "JOURNAL_STREAM";

/// The form of the lines.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

static AS_JSON: AtomicBool = AtomicBool::new(false);
static IN_JOURNAL: OnceLock<bool> = OnceLock::new();

/// Logs in this format from now on.
pub(crate) fn use_format(format: LogFormat) {
    AS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Whether each line of standard error is a JSON object.
pub(crate) fn is_json() -> bool {
    AS_JSON.load(Ordering::Relaxed)
}

/// Writes lines to standard error.
pub(super) struct Form {
    is_journal: bool,
    text: Format<Full>,
    untimed: Format<Full, ()>,
    json: Format<Json>,
}

impl Form {
    /// The form for what standard error is.
    pub(super) fn of_stderr() -> Form {
        let stream = std::env::var(JOURNAL).ok();
        let stderr = rustix::fs::fstat(std::io::stderr()).ok();
        let is_journal =
            stderr.is_some_and(|stderr| is_stream(stream.as_deref(), stderr.st_dev, stderr.st_ino));
        Form::new(*IN_JOURNAL.get_or_init(|| is_journal))
    }

    fn new(is_journal: bool) -> Form {
        Form {
            is_journal,
            text: Format::default().with_target(false),
            untimed: Format::default().with_target(false).with_level(false).without_time(),
            json: Format::default().json().flatten_event(true).with_current_span(false).with_span_list(false),
        }
    }

    /// Whether lines are coloured.
    pub(super) fn is_coloured(&self) -> bool {
        !self.is_journal && std::io::stderr().is_terminal()
    }
}

/// Whether standard error is the stream that the variable names, as `device:inode`.
fn is_stream(variable: Option<&str>, device: u64, inode: u64) -> bool {
    variable.is_some_and(|named| named == format!("{device}:{inode}"))
}

/// The prefix for a priority of syslog, as the journal understands it.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let as_json = AS_JSON.load(Ordering::Relaxed);
        if !self.is_journal {
            return match as_json {
                true => self.json.format_event(context, writer, event),
                false => self.text.format_event(context, writer, event),
            };
        }
        let mut lines = String::new();
        match as_json {
            true => self.json.format_event(context, Writer::new(&mut lines), event)?,
            false => self.untimed.format_event(context, Writer::new(&mut lines), event)?,
        }
        // The journal takes each line for a message of its own.
        lines.lines().try_for_each(|line| {
            writeln!(writer, "{}{}", priority(*event.metadata().level()), line.trim_start())
        })
    }
}

/// Writes that so many lines were left out, which happens while another line is handled.
pub(super) fn left_out(lines: u64, level: Level) {
    let mut line = String::new();
    let in_journal = IN_JOURNAL.get().is_some_and(|is| *is);
    if compose(&mut line, lines, level, AS_JSON.load(Ordering::Relaxed), in_journal).is_ok() {
        // If standard error is closed, nobody can be told.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

fn compose(line: &mut String, lines: u64, level: Level, as_json: bool, in_journal: bool) -> fmt::Result {
    use fmt::Write;
    if in_journal {
        line.push_str(priority(level));
    }
    match as_json {
        true => {
            line.push_str("{\"timestamp\":\"");
            SystemTime.format_time(&mut Writer::new(line))?;
            writeln!(
                line,
                "\",\"level\":\"{level}\",\"message\":\"lines like the next one were not logged\",\"left_out\":{lines}}}"
            )
        }
        false => writeln!(line, "  {lines} lines like the next one were not logged"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Written;

        fn make_writer(&self) -> Written {
            self.clone()
        }
    }

    /// What is written of some events. The format is the process's, so one test tries both.
    fn written(is_journal: bool) -> String {
        let out = Written::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(out.clone())
            .with_ansi(false)
            .event_format(Form::new(is_journal))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("first\nsecond");
            tracing::info!(user = "a\"b\n", uid = 7, "logged on");
        });
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn lines_are_text_or_json_and_have_priorities_in_the_journal() {
        use_format(LogFormat::Text);
        let text = written(false);
        assert!(
            text.contains(" INFO logged on user=\"a\\\"b\\n\" uid=7\n") && text.starts_with("20"),
            "{text}"
        );
        assert_eq!(written(true), "<3>first\n<3>second\n<6>logged on user=\"a\\\"b\\n\" uid=7\n");
        use_format(LogFormat::Json);
        let lines: Vec<Value> =
            written(false).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["level"], &lines[0]["message"]), (&"ERROR".into(), &"first\nsecond".into()));
        assert_eq!((&lines[1]["user"], &lines[1]["uid"]), (&"a\"b\n".into(), &7.into()));
        assert!(lines[1]["timestamp"].as_str().unwrap().ends_with('Z'));
        let journal = written(true);
        assert!(journal.starts_with("<3>{\"timestamp\"") && journal.contains("\n<6>{"), "{journal}");
        use_format(LogFormat::Text);
    }

    #[test]
    fn lines_that_were_left_out_are_told_in_the_same_form() {
        let told = |as_json, in_journal| {
            let mut line = String::new();
            compose(&mut line, 9, Level::WARN, as_json, in_journal).unwrap();
            line
        };
        assert_eq!(told(false, false), "  9 lines like the next one were not logged\n");
        assert_eq!(told(false, true), "<4>  9 lines like the next one were not logged\n");
        let line: Value = serde_json::from_str(&told(true, false)).unwrap();
        assert_eq!((&line["left_out"], &line["level"]), (&9.into(), &"WARN".into()));
    }

    #[test]
    fn only_the_stream_of_the_journal_is_the_journal() {
        assert!(is_stream(Some("8:1234"), 8, 1234));
        for other in [None, Some(""), Some("8:12345"), Some("9:1234"), Some("8 1234")] {
            assert!(!is_stream(other, 8, 1234), "{other:?}");
        }
    }
}
