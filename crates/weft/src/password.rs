//! Where passwords come from: the environment, the terminal, or chance.
//!
//! Owns: the secret until it is handed over; it is zeroed on drop. Does not: log it.

use std::io::{self, BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// The environment variable.
pub(crate) const VARIABLE: &str = "WEFT_PASSWORD";

/// Bytes of entropy in a made-up password; 12 characters of base 32.
const RANDOM_BYTES: usize = 12;

/// A password and whether we made it up (then the user must be told).
pub(crate) struct Password {
    /// The secret.
    pub text: Zeroizing<String>,
    /// Whether it was made up here.
    pub made_up: bool,
}

/// The password of a server's user: from the environment, asked for on a terminal (empty: make one up), or made up.
pub(crate) fn for_server(user: &str) -> io::Result<Password> {
    if let Ok(text) = std::env::var(VARIABLE) {
        return Ok(Password { text: Zeroizing::new(text), made_up: false });
    }
    if io::stdin().is_terminal() {
        let text = ask(&format!("Password for {user} (empty: make one up): "))?;
        if !text.is_empty() {
            return Ok(Password { text, made_up: false });
        }
    }
    Ok(Password { text: make_up()?, made_up: true })
}

/// The password for a server: from the environment or the terminal.
pub(crate) fn for_client(user: &str, host: &str) -> io::Result<Zeroizing<String>> {
    if let Ok(text) = std::env::var(VARIABLE) {
        return Ok(Zeroizing::new(text));
    }
    if io::stdin().is_terminal() {
        return ask(&format!("Password for {user}@{host}: "));
    }
    Err(io::Error::other(format!("no password: set {VARIABLE} or run on a terminal")))
}

/// Asks on the terminal without showing what is typed.
fn ask(prompt: &str) -> io::Result<Zeroizing<String>> {
    let stdin = io::stdin();
    eprint!("{prompt}");
    io::stderr().flush()?;
    let shown = tcgetattr(&stdin)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &hidden)?;
    let mut line = Zeroizing::new(String::new());
    let read = stdin.lock().read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Flush, &shown)?;
    eprintln!();
    read?;
    let end = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(end);
    Ok(line)
}

fn make_up() -> io::Result<Zeroizing<String>> {
    // No characters that look alike.
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = Zeroizing::new([0u8; RANDOM_BYTES]);
    getrandom::fill(&mut bytes[..]).map_err(|e| io::Error::other(format!("no random numbers: {e}")))?;
    Ok(Zeroizing::new(bytes.iter().map(|b| char::from(LETTERS[usize::from(b % 32)])).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_passwords_differ() {
        let (a, b) = (make_up().unwrap(), make_up().unwrap());
        assert_eq!(a.len(), RANDOM_BYTES);
        assert_ne!(*a, *b);
    }
}
