//! Sources of passwords: the environment, the terminal, or a random generator. A password is zeroed on drop and never
//! logged.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use weft_machine::random;
use zeroize::Zeroizing;

use crate::signals;

/// The environment variable.
pub(crate) const VARIABLE: &str = "WEFT_PASSWORD";

/// Bytes of entropy in a generated password; 12 characters in base 32.
const RANDOM_BYTES: usize = 12;

/// The longest line accepted as a password, in bytes; the buffer never moves in memory while it is typed.
const MAX_TYPED: usize = 1024;
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
const BACKSPACE: u8 = 8;
const CTRL_U: u8 = 21;
const DELETE: u8 = 127;

/// A password, and whether we generated it (then it must be printed).
pub(crate) struct Password {
    /// The secret.
    pub text: Zeroizing<String>,
    /// Whether it was generated.
    pub made_up: bool,
}

/// The environment's password. An empty one usually comes from a script whose variable is unset, and is ignored:
/// nobody chooses an empty password.
fn from_environment() -> Option<Zeroizing<String>> {
    let text = Zeroizing::new(std::env::var(VARIABLE).ok()?);
    if text.is_empty() {
        note!("weft: {VARIABLE} is empty and is ignored");
        return None;
    }
    Some(text)
}

/// Whether this process has no terminal, and a service manager reads what it prints: systemd.exec(5), sd_notify(3).
pub(crate) fn is_in_service() -> bool {
    let is_journal = || {
        let stderr = rustix::fs::fstat(io::stderr()).ok()?;
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        Some(stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
    };
    !io::stdin().is_terminal()
        && std::env::var_os(VARIABLE).is_none_or(|text| text.is_empty())
        && (std::env::var_os("NOTIFY_SOCKET").is_some() || is_journal().unwrap_or(false))
}

/// The password of a server's user: from the environment, from the terminal (empty: generated), or generated.
///
/// # Errors
/// The server is a service, whose journal would contain the generated password.
pub(crate) fn for_server(user: &str) -> io::Result<Password> {
    if let Some(text) = from_environment() {
        return Ok(Password { text, made_up: false });
    }
    if is_in_service() {
        return Err(io::Error::other(format!(
            "no password for {user}: set {VARIABLE} in the environment of the service (an EnvironmentFile that only root reads), or \
             leave the user out and add one with `weft user add {user}`"
        )));
    }
    if io::stdin().is_terminal() {
        let text = ask(&io::stdin(), &format!("Password for {user} (empty: generate one): "))?;
        if !text.is_empty() {
            return Ok(Password { text, made_up: false });
        }
    }
    Ok(Password { text: make_up()?, made_up: true })
}

/// A new password for a user: from the environment, or typed twice on the terminal.
pub(crate) fn new_for(user: &str) -> io::Result<Password> {
    if let Some(text) = from_environment() {
        return Ok(Password { text, made_up: false });
    }
    if !io::stdin().is_terminal() {
        return Err(io::Error::other(format!(
            "no password for {user}: run the command on a terminal, set {VARIABLE}, or give --generate"
        )));
    }
    let text = ask(&io::stdin(), &format!("New password for {user}: "))?;
    if text.is_empty() {
        return Err(io::Error::other("the password is empty: give --generate to have one made"));
    }
    let again = ask(&io::stdin(), "The same again: ")?;
    if text != again {
        return Err(io::Error::other("the two passwords differ: nothing was changed"));
    }
    Ok(Password { text, made_up: false })
}

/// A password that was generated.
pub(crate) fn generated() -> io::Result<Password> {
    Ok(Password { text: make_up()?, made_up: true })
}

/// The password for logging on to a server: from the environment or the terminal.
pub(crate) fn for_client(user: &str, host: &str) -> io::Result<Zeroizing<String>> {
    if let Some(text) = from_environment() {
        return Ok(text);
    }
    let prompt = format!("Password for {user}@{host}: ");
    if io::stdin().is_terminal() {
        return ask(&io::stdin(), &prompt);
    }
    // Standard input may be the data to copy.
    match File::options().read(true).write(true).open("/dev/tty") {
        Ok(terminal) => ask(&terminal, &prompt),
        Err(_) => Err(io::Error::other(format!(
            "no password for {user} at {host}: run the command on a terminal, or set {VARIABLE}"
        ))),
    }
}

/// Asks on the terminal without showing the typed characters.
///
/// Keys are read one by one. If Ctrl-C raised a signal, it would end the process and leave the terminal without echo,
/// or be deferred by a handler. Signals from other processes are noticed, too.
fn ask(terminal: &impl AsFd, prompt: &str) -> io::Result<Zeroizing<String>> {
    signals::attentively(|stopped| {
        let shown = tcgetattr(terminal)?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
        hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Before the question: a program that types sees it and answers at once, and this discards what was typed before.
        tcsetattr(terminal, OptionalActions::Flush, &hidden)?;
        // The question belongs on the terminal, and standard error may be a file. Standard input is often open for
        // reading only.
        if rustix::io::write(terminal, prompt.as_bytes()).is_err() {
            crate::out::note(format_args!("{prompt}"));
        }
        let typed = typed(|| {
            await_key(terminal, stopped)?;
            let mut key = [0];
            Ok((rustix::io::retry_on_intr(|| rustix::io::read(terminal, &mut key))? == 1).then_some(key[0]))
        });
        tcsetattr(terminal, OptionalActions::Flush, &shown)?;
        let _ = rustix::io::write(terminal, b"\n");
        if typed.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {
            signals::interrupted_by_key()?;
        }
        typed
    })
}

fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "interrupted at the password")
}

/// Returns when a key can be read; a signal before that is an error.
fn await_key(terminal: &impl AsFd, stopped: &AtomicBool) -> io::Result<()> {
    let attention = Timespec::try_from(signals::ATTENTION).map_err(io::Error::other)?;
    loop {
        if stopped.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        match poll(&mut [PollFd::new(terminal, PollFlags::IN)], Some(&attention)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Reads a line of keys; backspace and Ctrl-U delete.
fn typed(mut key: impl FnMut() -> io::Result<Option<u8>>) -> io::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_TYPED));
    loop {
        match key()? {
            None | Some(b'\r' | b'\n' | CTRL_D) => break,
            Some(CTRL_C) => return Err(interrupted()),
            Some(CTRL_U) => line.clear(),
            Some(BACKSPACE | DELETE) => {
                // Removes all bytes of a character.
                while line.pop().is_some_and(|byte| byte & 0xC0 == 0x80) {}
            }
            Some(_) if line.len() == MAX_TYPED => {
                return Err(io::Error::other("that is too long for a password"));
            }
            Some(byte) => line.push(byte),
        }
    }
    let text = std::str::from_utf8(&line).map_err(|_| io::Error::other("the password is not UTF-8"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn make_up() -> io::Result<Zeroizing<String>> {
    // Characters that look alike are left out.
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = Zeroizing::new([0u8; RANDOM_BYTES]);
    random::fill(&mut bytes[..])?;
    Ok(Zeroizing::new(bytes.iter().map(|b| char::from(LETTERS[usize::from(b % 32)])).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_a_line() {
        let line = |keys: &str| {
            let mut keys = keys.bytes();
            typed(move || Ok(keys.next())).map(|line| line.to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(line("secret\nmore").as_deref(), Ok("secret"));
        assert_eq!(line("wrong\u{15}seä\u{7f}cret\r").as_deref(), Ok("secret"));
        assert_eq!(line("\u{8}x").as_deref(), Ok("x"));
        assert_eq!(line("\u{4}").as_deref(), Ok(""));
        assert!(line("secr\u{3}et\n").unwrap_err().contains("interrupted"));
        assert!(line(&"x".repeat(MAX_TYPED + 1)).is_err());
    }

    #[test]
    fn made_up_passwords_differ() {
        let (a, b) = (make_up().unwrap(), make_up().unwrap());
        assert_eq!(a.len(), RANDOM_BYTES);
        assert_ne!(*a, *b);
    }
}
