//! The thread that writes the audit log to its file.
//!
//! Several events that wait are written by one call. A write that fails, for example because the disk is full, leaves
//! no part of a line: the file is cut to its length before, its events are counted as lost, and the thread tries again
//! until it can write the line that says how many. A file that cannot be cut (`chattr +a`) keeps the lines that are whole,
//! and the next line begins after the end of the torn one. The file has the mode 0600 if it is new; an existing one keeps
//! its mode.
//!
//! A disk that hangs holds this thread alone: the queue fills up, and what it cannot take is lost.
//!
//! What clients are denied too often is not in the queue, but counted ([`super::denials`]): the thread tells the counts
//! about once a second, and all that is left when everything is to be on the disk.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::OFlags;
use weft_machine::{LogLimit, clock, rt};

use super::denials::LeftOut;
use super::event::{Event, Wanted};
use super::line;
use super::queue::{Audit, Counts, MOST_EVENTS, Message, queue};

/// Bytes of lines that one call writes, besides the last line.
const BATCH_BYTES: usize = 64 << 10;
/// The interval between attempts to tell what was lost.
const RETRY: Duration = Duration::from_millis(500);

/// What to write, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The file; its folder exists.
    pub file: PathBuf,
    /// The events.
    pub wanted: Wanted,
}

/// Why there can be no audit log.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file cannot be opened or created.
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// It is a folder, a pipe or a device.
    #[error("is not a regular file")]
    NoFile,
    /// Its name is a symbolic link.
    #[error("is a symbolic link: name the file that it leads to")]
    Link,
    /// The system has no thread for it.
    #[error("no thread can be started for it: {0}")]
    Thread(io::Error),
}

/// Opens the file and starts the thread. It ends with the last clone of the result.
///
/// # Errors
/// The file cannot be written.
pub fn start(rules: Rules) -> Result<Audit, Unusable> {
    let Rules { file, wanted } = rules;
    let opened = open(&file)?;
    let (audit, receiver, counts) = queue(MOST_EVENTS, wanted);
    let writer = Writer::new(file, opened, receiver, counts);
    let thread = std::thread::Builder::new().name("weft-audit".to_owned());
    thread.spawn(move || writer.run()).map_err(Unusable::Thread)?;
    Ok(audit)
}

fn open(path: &Path) -> Result<File, Unusable> {
    // Opening a pipe without a reader would wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(|e| match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => Unusable::Link,
        Ok(found) if !found.is_file() => Unusable::NoFile,
        _ => Unusable::Open(e),
    })?;
    match file.metadata().map_err(Unusable::Open)?.is_file() {
        true => Ok(file),
        false => Err(Unusable::NoFile),
    }
}

/// Whether the last line of an open file has no end; `None` if nobody can tell.
fn ends_torn(path: &Path, file: &File) -> Option<bool> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let readable = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    let found = readable.metadata().ok()?;
    let Some(last) = found.len().checked_sub(1).filter(|_| is_same(file, &readable)) else {
        return (found.len() == 0).then_some(false);
    };
    let mut byte = [0];
    readable.read_exact_at(&mut byte, last).ok()?;
    Some(byte != *b"\n")
}

fn is_same(one: &File, other: &File) -> bool {
    let place = |file: &File| file.metadata().map(|found| (found.dev(), found.ino())).ok();
    place(one).is_some_and(|found| Some(found) == place(other))
}

/// A file that lines are appended to.
trait Log: Write {
    /// Cuts off what is behind this length.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Log for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// Lines that could not be appended.
#[derive(Debug)]
struct Unwritten {
    /// How many of them, from the first on, are in the file nevertheless, because it could not be cut.
    whole: u64,
    why: io::Error,
}

impl From<io::Error> for Unwritten {
    fn from(why: io::Error) -> Unwritten {
        Unwritten { whole: 0, why }
    }
}

/// Appends lines to a file of this length: all of them, or none; if it cannot be cut, those that there is room for. `torn`:
/// whether its last line has no end.
fn append(log: &mut impl Log, length: u64, lines: &str, torn: &mut bool) -> Result<(), Unwritten> {
    static UNCUT: LogLimit = LogLimit::new();
    // A reader finds one line that is no JSON, and not two.
    let (bytes, ends) = match *torn {
        true => (Cow::Owned(format!("\n{lines}")), 1),
        false => (Cow::Borrowed(lines), 0),
    };
    let (written, result) = write_all(log, bytes.as_bytes());
    let Err(why) = result else {
        *torn = false;
        return Ok(());
    };
    if written.is_empty() {
        return Err(why.into());
    }
    let Err(e) = log.cut(length) else { return Err(why.into()) };
    *torn = !written.ends_with(b"\n");
    if *torn && let Some(left_out) = UNCUT.pass(rt::now()) {
        tracing::error!("audit log: a line is incomplete, because the file cannot be cut: {e}{left_out}");
    }
    let whole = written.iter().filter(|byte| **byte == b'\n').count() as u64;
    Err(Unwritten { whole: whole.saturating_sub(ends), why })
}

/// Writes bytes, and returns those that were written.
fn write_all<'a>(log: &mut impl Log, bytes: &'a [u8]) -> (&'a [u8], io::Result<()>) {
    let mut left = bytes;
    let result = loop {
        if left.is_empty() {
            break Ok(());
        }
        match log.write(left) {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => left = left.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => break Err(e),
        }
    };
    let written = bytes.len().saturating_sub(left.len());
    (bytes.get(..written).unwrap_or_default(), result)
}

struct Writer {
    path: PathBuf,
    file: File,
    /// The last line of the file has no end.
    torn: bool,
    receiver: Receiver<Message>,
    counts: Arc<Counts>,
    /// The lines that are written next.
    lines: String,
    /// Their number.
    events: u64,
}

impl Writer {
    fn new(path: PathBuf, file: File, receiver: Receiver<Message>, counts: Arc<Counts>) -> Writer {
        // Left by a run that ended while the disk was full, or with its host.
        let torn = ends_torn(&path, &file).unwrap_or(false);
        Writer { path, file, torn, receiver, counts, lines: String::new(), events: 0 }
    }

    fn run(mut self) {
        loop {
            let has_more = self.counts.lost.load(Ordering::Relaxed) > 0 || self.counts.denials.has_left_out();
            let message = match has_more {
                false => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                true => self.receiver.recv_timeout(RETRY),
            };
            if self.counts.reopen.swap(false, Ordering::SeqCst) {
                self.reopen();
            }
            match message {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.write(true),
            }
            while self.lines.len() < BATCH_BYTES
                && let Ok(message) = self.receiver.try_recv()
            {
                self.take(message);
            }
            self.write(false);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Event(event) => self.add(&event),
            Message::Reopen => {
                self.write(false);
                self.reopen();
            }
            // The counts are looked at after each message.
            Message::Wake => {}
            Message::Flush(done) => {
                self.write(true);
                if let Err(e) = self.file.sync_data() {
                    tracing::warn!("audit log {}: {e}", self.path.display());
                }
                // Who asked may have given up.
                let _ = done.send(());
            }
        }
    }

    fn add(&mut self, event: &Event) {
        self.counts.bytes.fetch_sub(event.bytes(), Ordering::Relaxed);
        line::emit(event, &mut self.lines);
        self.events = self.events.saturating_add(1);
    }

    /// Opens the file by its name again. If that fails, the old one is used on.
    fn reopen(&mut self) {
        match open(&self.path) {
            Ok(file) => self.use_opened(file),
            Err(e) => {
                let fault = self.fault(&e);
                tracing::error!("audit log {fault}");
                self.counts.set_fault(Some(fault));
            }
        }
    }

    fn use_opened(&mut self, file: File) {
        let was_torn = self.torn && is_same(&self.file, &file);
        self.torn = ends_torn(&self.path, &file).unwrap_or(was_torn);
        self.file = file;
        self.counts.set_fault(None);
    }

    /// Why the file cannot be opened anew, what becomes of events, and what to do.
    fn fault(&self, e: &Unusable) -> String {
        let is_deleted = self.file.metadata().is_ok_and(|found| found.nlink() == 0);
        let events = match is_deleted {
            true => "the file that was open is deleted, so events are lost",
            false => "the file that was open is used on",
        };
        // A server that is confined may use the folder that was there when it started, and none that took its place.
        let hint = match e {
            Unusable::Open(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                "; if the folder was made anew, restart the server"
            }
            _ => "",
        };
        format!("{}: {e}; {events}{hint}", self.path.display())
    }

    /// Writes the lines, preceded by the numbers of events that are missing before them. `all`: also numbers that were
    /// written a short time ago and have grown.
    fn write(&mut self, all: bool) {
        let lost = self.counts.lost.load(Ordering::Relaxed);
        let now = rt::now();
        let left_out = self.counts.denials.due(now, all);
        if self.events == 0 && lost == 0 && left_out.is_empty() {
            return;
        }
        let (mut events_text, events) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.events));
        let taken = events;
        let mut missing = String::new();
        if lost > 0 {
            line::emit_lost(clock::wall(), (lost, None), &mut missing);
        }
        for LeftOut { source, lines } in &left_out {
            line::emit_lost(clock::wall(), (*lines, *source), &mut missing);
        }
        let written = match missing.is_empty() {
            true => self.append(&events_text),
            false => {
                missing.push_str(&events_text);
                self.append(&missing)
            }
        };
        match written {
            Ok(()) => {
                self.counts.lost.fetch_sub(lost, Ordering::Relaxed);
                self.counts.denials.told(&left_out, now);
            }
            Err(Unwritten { mut whole, why }) => {
                // The first lines are those of what is missing.
                if lost > 0 && whole > 0 {
                    self.counts.lost.fetch_sub(lost, Ordering::Relaxed);
                    whole = whole.saturating_sub(1);
                }
                let told = usize::try_from(whole).unwrap_or(usize::MAX).min(left_out.len());
                self.counts.denials.told(left_out.get(..told).unwrap_or_default(), now);
                let events = events.saturating_sub(whole.saturating_sub(told as u64));
                let why = format!("{}: {why}", self.path.display());
                match events {
                    0 => {
                        static STILL: LogLimit = LogLimit::new();
                        if let Some(left_out) = STILL.pass(now) {
                            tracing::warn!("audit log {why}: lost events cannot be told yet{left_out}");
                        }
                        self.counts.explain(why);
                    }
                    events => self.counts.lose(events, why),
                }
            }
        }
        // Whoever asks meanwhile may count them twice, but not lose them.
        self.counts.pending.fetch_sub(taken, Ordering::Relaxed);
        events_text.clear();
        self.lines = events_text;
    }

    /// Appends lines; see [`append`].
    fn append(&mut self, lines: &str) -> Result<(), Unwritten> {
        let mut before = self.file.metadata()?;
        if before.nlink() == 0 {
            // Somebody has deleted it; nobody could read what is written to it.
            match open(&self.path) {
                Ok(file) => self.use_opened(file),
                Err(e) => {
                    self.counts.set_fault(Some(self.fault(&e)));
                    return Err(io::Error::other(e).into());
                }
            }
            before = self.file.metadata()?;
        }
        append(&mut self.file, before.len(), lines, &mut self.torn)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use weft_machine::Source;

    use super::super::event::{Kind, Outcome, Who};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn started(path: &Path) -> Audit {
        start(Rules { file: path.to_owned(), wanted: Wanted::ALL }).unwrap()
    }

    fn event(path: &str) -> Event {
        Event::now(Kind::Delete, Outcome::Done, Who::default()).on(path.into())
    }

    fn paths(file: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(file).unwrap();
        let path =
            |line: &str| line.split("\"path\":\"").nth(1).map(|rest| rest.trim_end_matches("\"}").to_owned());
        text.lines().map(|line| path(line).unwrap_or_else(|| line.to_owned())).collect()
    }

    #[test]
    fn events_are_in_the_file_in_their_order_after_a_flush() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = started(&path);
        (0..1000).for_each(|n| audit.tell(event(&n.to_string())));
        assert!(audit.flush(PATIENCE));
        assert_eq!(paths(&path), (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_renamed_file_is_left_at_the_next_reopening_and_a_deleted_one_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
        let audit = started(&path);
        audit.tell(event("a"));
        assert!(audit.flush(PATIENCE));
        std::fs::rename(&path, &old).unwrap();
        audit.tell(event("b"));
        assert!(audit.flush(PATIENCE) && !path.exists());
        audit.reopen();
        audit.tell(event("c"));
        assert!(audit.flush(PATIENCE));
        assert_eq!((paths(&old), paths(&path)), (vec!["a".into(), "b".into()], vec!["c".into()]));
        std::fs::remove_file(&path).unwrap();
        audit.tell(event("d"));
        assert!(audit.flush(PATIENCE));
        assert_eq!(paths(&path), ["d"]);
    }

    #[test]
    fn what_goes_to_a_deleted_file_that_cannot_be_made_again_is_lost_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("audit.jsonl");
        let audit = started(&path);
        std::fs::remove_dir_all(&folder).unwrap();
        (0..3).for_each(|n| audit.tell(event(&n.to_string())));
        assert!(audit.flush(PATIENCE));
        let losses = audit.losses().expect("they are lost");
        assert_eq!(losses.events, 3);
        assert!(
            losses.why.ends_with("audit.jsonl: cannot be opened: No such file or directory (os error 2)"),
            "{losses:?}"
        );
        std::fs::create_dir(&folder).unwrap();
        audit.tell(event("3"));
        assert!(audit.flush(PATIENCE));
        let lines = paths(&path);
        assert!(lines[0].ends_with("\"event\":\"lost\",\"lost\":3}"), "{lines:?}");
        assert_eq!(lines[1..], ["3"]);
        assert_eq!(audit.losses().map(|losses| losses.events), Some(3), "since the start");
    }

    #[test]
    fn the_thread_writes_what_is_left_and_ends_with_the_last_handle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let (audit, receiver, counts) = queue(8, Wanted::ALL);
        let file = open(&path).unwrap();
        let writer = Writer::new(path.clone(), file, receiver, counts);
        audit.clone().tell(event("a"));
        audit.tell(event("b"));
        drop(audit);
        writer.run();
        assert_eq!(paths(&path), ["a", "b"]);
    }

    #[test]
    fn lost_events_are_told_by_the_next_line_and_no_line_is_torn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let (audit, receiver, counts) = queue(8, Wanted::ALL);
        // A file that cannot be written stands for a full disk.
        std::fs::write(&path, "").unwrap();
        let file = File::open(&path).unwrap();
        let mut writer = Writer::new(path.clone(), file, receiver, counts);
        audit.tell(event("a"));
        audit.tell(event("b"));
        (0..2).for_each(|_| {
            let message = writer.receiver.recv().unwrap();
            writer.take(message);
        });
        writer.write(false);
        assert_eq!(writer.counts.lost.load(Ordering::Relaxed), 2);
        // Still full: nothing more is lost.
        writer.write(false);
        assert_eq!(writer.counts.lost.load(Ordering::Relaxed), 2);
        writer.reopen();
        writer.add(&event("c"));
        writer.write(false);
        let lines = paths(&path);
        assert!(lines[0].ends_with("\"event\":\"lost\",\"lost\":2}"), "{lines:?}");
        assert_eq!(lines[1..], ["c"]);
        assert_eq!(writer.counts.lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_one_client_is_denied_is_counted_by_a_line_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = started(&path);
        let who = |last| Who { source: Some(Source::V4([192, 0, 2, last].into())), ..Who::default() };
        let denied = |who| Event::now(Kind::Open, Outcome::Denied("STATUS_ACCESS_DENIED".into()), who);
        (0..5000).for_each(|_| audit.tell(denied(who(1))));
        (0..3).for_each(|_| audit.tell(denied(who(2))));
        assert!(audit.flush(PATIENCE));
        let text = std::fs::read_to_string(&path).unwrap();
        let lost: Vec<_> = text.lines().filter_map(|line| line.split_once("\"event\":\"lost\",")).collect();
        assert!(!lost.is_empty(), "{text}");
        let number = |(_, rest): &(&str, &str)| {
            let number =
                rest.strip_prefix("\"client\":\"192.0.2.1\",\"lost\":").and_then(|n| n.strip_suffix('}'));
            number.and_then(|number| number.parse::<usize>().ok()).expect("the client and the number")
        };
        // Nothing is told twice, and nothing is missing.
        let lines = text.lines().count() - lost.len();
        assert_eq!(lines + lost.iter().map(number).sum::<usize>(), 5003);
        assert!(lines < 2000, "{lines} lines");
    }

    #[test]
    fn what_was_left_out_is_told_although_the_client_is_quiet() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let audit = started(&path);
        let who = Who { source: Some(Source::Local), ..Who::default() };
        (0..5000).for_each(|_| audit.tell(Event::now(Kind::Open, Outcome::Denied("x".into()), who.clone())));
        let told = || std::fs::read_to_string(&path).unwrap().contains("\"client\":\"local\"");
        let begun = std::time::Instant::now();
        while !told() {
            assert!(begun.elapsed() < PATIENCE, "the thread sleeps");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_full_queue_does_not_keep_the_file_from_being_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1"));
        let (audit, receiver, counts) = queue(4, Wanted::ALL);
        let file = open(&path).unwrap();
        (0..6).for_each(|_| audit.tell(event("before")));
        std::fs::rename(&path, &old).unwrap();
        audit.reopen();
        let writer = Writer::new(path.clone(), file, receiver, counts);
        drop(audit);
        writer.run();
        assert_eq!(paths(&path)[1..], ["before"; 4]);
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("target", &link).unwrap();
        let refused = |path: &Path| open(path).unwrap_err().to_string();
        assert_eq!(refused(dir.path()), "is not a regular file");
        assert_eq!(refused(&pipe), "is not a regular file");
        assert!(refused(&link).starts_with("is a symbolic link"), "{}", refused(&link));
        assert!(refused(&dir.path().join("none/audit")).starts_with("cannot be opened: No such file"));
        assert!(!dir.path().join("target").exists());
    }

    /// A disk with some room, and a file on it that can only grow, as after `chattr +a`.
    #[derive(Default)]
    struct AppendOnly {
        content: Vec<u8>,
        room: usize,
        cuts: usize,
    }

    impl Write for AppendOnly {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.content.extend_from_slice(&bytes[..n]);
            self.room -= n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log for AppendOnly {
        fn cut(&mut self, _: u64) -> io::Result<()> {
            self.cuts += 1;
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    #[test]
    fn a_torn_line_that_cannot_be_cut_off_spoils_no_other() {
        let (mut disk, mut torn) = (AppendOnly { room: 9, ..AppendOnly::default() }, false);
        let append = |disk: &mut AppendOnly, torn: &mut bool, lines| {
            append(disk, disk.content.len() as u64, lines, torn).map_err(|unwritten| unwritten.whole)
        };
        assert_eq!(append(&mut disk, &mut torn, "one\ntwo\nthree\n"), Err(2), "two lines are whole");
        assert!(torn);
        // Not a byte can be written: there is nothing to cut.
        assert_eq!(append(&mut disk, &mut torn, "four\n"), Err(0));
        assert_eq!((disk.cuts, torn), (1, true));
        // The end of the torn line fits, and nothing else: now no line is torn.
        disk.room = 1;
        assert_eq!(append(&mut disk, &mut torn, "five\n"), Err(0));
        assert!(!torn);
        disk.room = 100;
        assert_eq!(append(&mut disk, &mut torn, "six\n"), Ok(()));
        assert_eq!(String::from_utf8(disk.content).unwrap(), "one\ntwo\nt\nsix\n");
    }

    #[test]
    fn a_line_that_an_earlier_run_has_torn_gets_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        for (before, after) in [("", vec!["a"]), ("x\n", vec!["x", "a"]), ("x\ny", vec!["x", "y", "a"])] {
            std::fs::write(&path, before).unwrap();
            let audit = started(&path);
            audit.tell(event("a"));
            assert!(audit.flush(PATIENCE));
            assert_eq!(paths(&path), after);
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_anew_is_a_fault_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        let path = folder.join("audit.jsonl");
        let renamed = folder.join("audit.jsonl.1");
        std::fs::create_dir(&folder).unwrap();
        let audit = started(&path);
        let reopen = |event_path| {
            audit.reopen();
            audit.tell(event(event_path));
            assert!(audit.flush(PATIENCE));
            audit.fault()
        };
        assert_eq!(reopen("a"), None);
        std::fs::rename(&path, &renamed).unwrap();
        std::fs::create_dir(&path).unwrap();
        let fault = reopen("b").unwrap();
        assert!(
            fault.ends_with("audit.jsonl: is not a regular file; the file that was open is used on"),
            "{fault}"
        );
        assert_eq!(paths(&renamed), ["a", "b"]);
        std::fs::remove_file(&renamed).unwrap();
        let fault = reopen("c").unwrap();
        assert!(fault.ends_with("; the file that was open is deleted, so events are lost"), "{fault}");
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(reopen("d"), None);
        assert_eq!(paths(&path)[1..], ["d"]);
    }
}
