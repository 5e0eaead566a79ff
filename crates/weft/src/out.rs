//! Printing for commands.
//!
//! A closed pipe (`weft ls ... | head -1`) is not an error: the remaining output is dropped, and the exit status is
//! the command's own. Any other write failure, above all a full disk, is a failure of the command. A failure to write
//! to standard error cannot be reported anywhere. Printed text includes names and messages from servers. So no line
//! can move the cursor, colour the terminal, set its window title or reverse text: such characters are shown by
//! number, as in JSON. Nothing here panics, unlike `println!` and `eprintln!`.

use std::ffi::OsStr;
use std::fmt::{self, Arguments};
use std::io::{self, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::misuse::Misuse;

/// The state directory that the command line names.
static STATE_DIR: OnceLock<PathBuf> = OnceLock::new();

/// Remembers the option `--state-dir`, which commands that the user is told to type must repeat. A directory of the
/// environment is not repeated: those commands run in the same environment.
pub(crate) fn remember_state_dir(dir: Option<&Path>) {
    let of_environment = std::env::var_os("WEFT_STATE_DIR");
    if let Some(dir) = dir.filter(|dir| of_environment.as_deref() != Some(dir.as_os_str())) {
        STATE_DIR.get_or_init(|| dir.to_owned());
    }
}

/// What to add to the commands in `text` that act on this host's servers and volumes. The text comes from a server or a
/// room below, and some of its commands are for another host, whose state directory is unknown here.
pub(crate) fn state_dir_advice(text: &str) -> Option<String> {
    advice_for(text, STATE_DIR.get()?)
}

fn advice_for(text: &str, dir: &Path) -> Option<String> {
    let names_command =
        ["weft replica ", "weft volume ", "weft status"].iter().any(|words| text.contains(words));
    let repeated = text.contains("--state-dir");
    (names_command && !repeated)
        .then(|| format!("on this host, add --state-dir {} to these commands", shell_word(dir)))
}

/// The reader of standard output is gone.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints a line to standard output; returns a `Result`.
macro_rules! say {
    () => { $crate::out::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::line(format_args!($($text)*)) };
}

/// Prints a line to standard error.
macro_rules! note {
    () => { $crate::out::note(format_args!("")) };
    ($($text:tt)*) => { $crate::out::note(format_args!($($text)*)) };
}

/// Prints a line to standard output.
pub(crate) fn line(text: Arguments) -> io::Result<()> {
    print(format_args!("{}\n", harmless(text)))
}

/// Prints our own text, which may be coloured, to standard output.
pub(crate) fn print(text: Arguments) -> io::Result<()> {
    let mut out = io::stdout().lock();
    heard(out.write_fmt(text).and_then(|()| out.flush()))
}

fn heard(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(of_stdout(e)),
        Ok(()) => Ok(()),
    }
}

/// Names standard output in the error.
fn of_stdout(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("standard output: {e}"))
}

/// Standard output for lines, for commands with long or endless output: a closed pipe is an error that ends the
/// command, and [`ended_by_reader`] recognizes it. Only text is written, and it cannot control the terminal.
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        told(write_shown(&mut io::stdout(), bytes)).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        told(io::stdout().flush()).map_err(of_stdout)
    }
}

/// Writes all of the text with control characters made visible. `write!` and JSON pass pieces that are whole
/// characters.
fn write_shown(out: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(acts_in_lines) => out.write(bytes),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            out.write_all(shown(&text, acts_in_lines).as_bytes()).map(|()| bytes.len())
        }
    }
}

/// Standard output for file contents only, which are written unchanged. All other output uses [`Stdout`].
pub(crate) struct FileToStdout;

impl Write for FileToStdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        told(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        told(io::stdout().flush())
    }
}

fn told<T>(written: io::Result<T>) -> io::Result<T> {
    written.inspect_err(|e| {
        if e.kind() == io::ErrorKind::BrokenPipe {
            CLOSED.store(true, Ordering::Relaxed);
        }
    })
}

/// The name of standard input and output.
pub(crate) const STANDARD: &str = "-";

/// Whether a command's output file is standard output, so that nothing else may be printed there.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path == Path::new(STANDARD) || path == Path::new("/dev/stdout")
}

/// Where a command prints its messages: standard output, or standard error if standard output carries one of its
/// files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Console {
    /// No file goes to standard output.
    Stdout,
    /// A file goes to standard output, so nothing else may.
    Stderr,
}

impl Console {
    /// The console of a command that writes these files.
    pub(crate) fn beside<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<Console, Failure> {
        match files.into_iter().filter(|path| is_standard_output(path)).count() {
            0 => Ok(Console::Stdout),
            1 => Ok(Console::Stderr),
            _ => {
                let several = "standard output (`-`) takes only one format; write the others to files";
                Err(Misuse::new(several).into())
            }
        }
    }

    /// Like `beside`, for a command that also prints a JSON object if `json` is set.
    pub(crate) fn beside_json<'a>(
        json: bool,
        files: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Console, Failure> {
        Console::beside(files.into_iter().chain(json.then_some(Path::new(STANDARD))))
    }

    /// Prints our own text, which may be coloured.
    pub(crate) fn print(self, text: Arguments) -> io::Result<()> {
        match self {
            Console::Stdout => print(text),
            Console::Stderr => {
                // A failure is ignored, as in `note`.
                io::stderr().lock().write_fmt(text).ok();
                Ok(())
            }
        }
    }

    /// Reports a written file; nothing is reported for standard output.
    pub(crate) fn wrote(self, path: &Path) -> io::Result<()> {
        match is_standard_output(path) {
            true => Ok(()),
            false => self.print(format_args!("{}\n", harmless(format_args!("wrote {}", path.display())))),
        }
    }
}

/// Whether a command failed only because the reader of its output is gone.
pub(crate) fn ended_by_reader(failure: &(dyn std::error::Error + 'static)) -> bool {
    let io = failure.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = failure.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
    CLOSED.load(Ordering::Relaxed) && io.or(json) == Some(io::ErrorKind::BrokenPipe)
}

/// Prints a line to standard error.
pub(crate) fn note(text: Arguments) {
    // If standard error is closed, there is no other place to report it.
    io::stderr().lock().write_fmt(format_args!("{}\n", harmless(text))).ok();
}

/// Text with every character that could control a terminal made visible.
fn harmless(text: Arguments) -> String {
    let text = text.to_string();
    if !text.contains(acts) {
        return text;
    }
    shown(&text, acts_in_lines)
}

/// Whether a character acts on a terminal, within a line.
fn acts_in_lines(c: char) -> bool {
    c != '\n' && acts(c)
}

/// A message from another host, as one line. It is made harmless on arrival, so code that prints, logs or stores it
/// need not know its origin.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(from = "String", into = "String")]
pub(crate) struct Said(String);

impl From<String> for Said {
    fn from(text: String) -> Said {
        match text.contains(acts) {
            true => Said(name(&text)),
            false => Said(text),
        }
    }
}

impl From<Said> for String {
    fn from(said: Said) -> String {
        said.0
    }
}

impl Deref for Said {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lines that are coloured or laid out later: nothing in them can control a terminal.
pub(crate) fn lines(text: &str) -> String {
    shown(text, acts_in_lines)
}

/// A name as part of a line: line breaks are made visible too.
pub(crate) fn name(name: &str) -> String {
    shown(name, acts)
}

/// A path as part of a line.
pub(crate) fn path_name(path: &Path) -> String {
    name(&path.to_string_lossy())
}

/// A command that a message tells the user to type. Our own words are literals, and everything else is quoted here:
/// text from a user, a folder or a server reaches the shell only as a plain word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShellCommand {
    words: Vec<Word>,
    /// An operand begins with a hyphen.
    ends_options: bool,
}

/// One or more words of a shell command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Other(String),
    Operand(String),
}

impl ShellCommand {
    /// Begins with these literal words.
    pub(crate) fn new(words: &'static str) -> ShellCommand {
        ShellCommand { words: vec![Word::Other(words.to_owned())], ends_options: false }
    }

    /// Appends literal words.
    pub(crate) fn words(mut self, words: &'static str) -> ShellCommand {
        self.words.push(Word::Other(words.to_owned()));
        self
    }

    /// Appends `--state-dir` if the user gave that option: the command then acts on the same servers and volumes.
    pub(crate) fn here(self) -> ShellCommand {
        self.at(STATE_DIR.get().map(PathBuf::as_path))
    }

    fn at(self, state_dir: Option<&Path>) -> ShellCommand {
        match state_dir {
            Some(dir) => self.option("--state-dir", dir),
            None => self,
        }
    }

    /// Appends a file, URL, host or name.
    pub(crate) fn operand(mut self, operand: impl AsRef<OsStr>) -> ShellCommand {
        self.ends_options |= operand.as_ref().as_encoded_bytes().starts_with(b"-");
        self.words.push(Word::Operand(shell_word(operand)));
        self
    }

    /// Appends an option with its value.
    pub(crate) fn option(mut self, option: &'static str, value: impl AsRef<OsStr>) -> ShellCommand {
        let hyphen = value.as_ref().as_encoded_bytes().starts_with(b"-");
        let between = if hyphen { "=" } else { " " };
        self.words.push(Word::Other(format!("{option}{between}{}", shell_word(value))));
        self
    }
}

impl fmt::Display for ShellCommand {
    /// In the order given; but if an operand looks like an option, all operands follow the options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |word: &Word| match word {
            Word::Other(text) | Word::Operand(text) => text.clone(),
        };
        let (operands, others): (Vec<&Word>, Vec<&Word>) =
            self.words.iter().partition(|word| self.ends_options && matches!(word, Word::Operand(_)));
        let mut all: Vec<String> = others.into_iter().map(text).collect();
        if self.ends_options {
            all.push("--".to_owned());
        }
        all.extend(operands.into_iter().map(text));
        f.write_str(&all.join(" "))
    }
}

/// Quotes a word for a shell, in one line: bytes that are not text or could control a terminal are written by number,
/// in a form that bash, ksh and zsh read.
pub(crate) fn shell_word(word: impl AsRef<OsStr>) -> String {
    let bytes = word.as_ref().as_encoded_bytes();
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-._+,=@:/%".contains(b);
    // zsh replaces a word that begins with = by a program's path.
    if !bytes.is_empty() && bytes.iter().all(plain) && !bytes.starts_with(b"=") {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(|c: char| acts(c) || c == '\t') => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let mut quoted = "$'".to_owned();
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\n' => quoted.push_str("\\n"),
                        '\t' => quoted.push_str("\\t"),
                        '\'' | '\\' => quoted.extend(['\\', c]),
                        c if acts(c) => {
                            let mut utf8 = [0; 4];
                            let bytes = c.encode_utf8(&mut utf8).bytes();
                            bytes.for_each(|b| quoted.push_str(&format!("\\x{b:02x}")));
                        }
                        c => quoted.push(c),
                    }
                }
                chunk.invalid().iter().for_each(|b| quoted.push_str(&format!("\\x{b:02x}")));
            }
            quoted + "'"
        }
    }
}

fn shown(text: &str, hidden: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match hidden(c) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// Control characters (C0, DEL, C1), and characters that change the text direction (Unicode TR 36 and 9).
fn acts(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_server_does_nothing_to_the_terminal() {
        let hostile = "\x1b]0;owned\x07\x1b[2J\r\u{9b}31m\u{202e}gpj.exe\x7f";
        let shown = harmless(format_args!("copy {hostile}\nand more\tü"));
        assert_eq!(
            shown,
            "copy \\u001b]0;owned\\u0007\\u001b[2J\\u000d\\u009b31m\\u202egpj.exe\\u007f\nand more\tü"
        );
        assert_eq!(name("two\nlines"), "two\\u000alines");
        // Valid JSON stays the same JSON.
        let json = serde_json::json!({ "name": hostile });
        let printed = harmless(format_args!("{json}"));
        assert!(!printed.contains(acts));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), json);
    }

    #[test]
    fn lines_that_are_written_do_nothing_to_the_terminal_and_json_stays_json() {
        let hostile = "\x1b[31mRED\nforged \u{9b}2J\u{202e}x";
        let mut out = Vec::new();
        struct Lines<'a>(&'a mut Vec<u8>);
        impl Write for Lines<'_> {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                write_shown(self.0, bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        writeln!(Lines(&mut out), "there: {hostile}\tü").unwrap();
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            "there: \\u001b[31mRED\nforged \\u009b2J\\u202ex\tü\n"
        );
        out.clear();
        let json = serde_json::json!({ "why": hostile });
        serde_json::to_writer_pretty(Lines(&mut out), &json).unwrap();
        assert!(!std::str::from_utf8(&out).unwrap().contains(acts_in_lines));
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&out).unwrap(), json);
        out.clear();
        Lines(&mut out).write_all(b"a\xff\x9b\x1bz").unwrap();
        assert_eq!(std::str::from_utf8(&out).unwrap(), "a\u{fffd}\u{fffd}\\u001bz");
    }

    #[test]
    fn what_another_host_has_said_is_harmless_from_the_moment_it_comes() {
        let said: Said = serde_json::from_str(r#""x\u001b[31mRED\nforged\u009bline""#).unwrap();
        assert_eq!(&*said, "x\\u001b[31mRED\\u000aforged\\u009bline");
        // Unchanged when it is passed on from host to host.
        assert_eq!(Said::from(said.to_string()), said);
    }

    /// The word as a shell parses it.
    #[test]
    fn a_command_that_is_printed_is_the_command_that_is_typed() {
        use std::os::unix::ffi::OsStrExt;
        let words: [&[u8]; 8] =
            [b"plain", b"my  data$x", b"it's", b"two\nlines", b"\x1b[31m\t'\\", b"\xff\xfe ok", b"", b"=ls"];
        for word in words {
            let word = OsStr::from_bytes(word);
            let command = ShellCommand::new("printf").words("'<%s>'").operand(word).to_string();
            assert!(!command.contains(acts) && !command.contains('\t'), "{command:?}");
            let typed = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
            assert_eq!(typed.stdout, [b"<", word.as_bytes(), b">"].concat(), "{command}");
        }
        assert_eq!(ShellCommand::new("mkdir -p").operand("-x").to_string(), "mkdir -p -- -x");
        let switch = |name| {
            ShellCommand::new("weft replica switch").operand(name).option("--to", "[::1]:db").words("--force")
        };
        assert_eq!(switch("db").to_string(), "weft replica switch db --to '[::1]:db' --force");
        assert_eq!(switch("-x").to_string(), "weft replica switch --to '[::1]:db' --force -- -x");
        let serve = ShellCommand::new("weft serve").option("--volume", "-x").words("--nbd");
        assert_eq!(serve.to_string(), "weft serve --volume=-x --nbd");
        assert_eq!(
            ShellCommand::new("weft ls").operand("nfs://h?mountport=1").to_string(),
            "weft ls 'nfs://h?mountport=1'"
        );
    }

    #[test]
    fn a_command_that_is_printed_acts_on_the_same_state_directory() {
        let end = |dir| ShellCommand::new("weft replica remove").operand("db").at(dir).to_string();
        assert_eq!(end(None), "weft replica remove db");
        assert_eq!(end(Some(Path::new("/tmp/a b"))), "weft replica remove db --state-dir '/tmp/a b'");
        let advice = |text| advice_for(text, Path::new("/tmp/s"));
        let added = Some("on this host, add --state-dir /tmp/s to these commands".to_owned());
        assert_eq!(advice("db is stopped: `weft replica remove db --force` ends replication"), added);
        assert_eq!(advice("`weft volume list` lists the volumes"), added);
        assert_eq!(advice("`weft volume list --state-dir /tmp/s` lists the volumes"), None);
        assert_eq!(advice("the disk is full"), None);
    }

    #[test]
    fn words_make_way_for_a_file_that_is_standard_output() {
        let console = |files: &[&'static str]| Console::beside(files.iter().map(Path::new));
        assert_eq!(console(&[]).unwrap(), Console::Stdout);
        assert_eq!(console(&["a.html", "/dev/null"]).unwrap(), Console::Stdout);
        assert_eq!(console(&["a.html", "-"]).unwrap(), Console::Stderr);
        assert_eq!(console(&["/dev/stdout"]).unwrap(), Console::Stderr);
        let refused = console(&["-", "-"]).unwrap_err().to_string();
        assert!(refused.starts_with("standard output (`-`) takes only one format"), "{refused}");
        let json = |files: &[&'static str]| Console::beside_json(true, files.iter().map(Path::new));
        assert_eq!(json(&["a.html"]).unwrap(), Console::Stderr);
        assert!(json(&["-"]).is_err());
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        assert!(heard(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        let full = heard(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(full.to_string().starts_with("standard output: "));
        assert_eq!(of_stdout(io::ErrorKind::BrokenPipe.into()).kind(), io::ErrorKind::BrokenPipe);
    }
}
