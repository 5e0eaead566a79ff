//! What commands print, to whoever still listens.
//!
//! A pipe that was closed (`weft ls ... | head -1`) is nobody's fault: what comes after is not printed, and the exit status
//! is that of the command. Any other failure, a full disk above all, is a failure of the command. Standard error has nobody
//! left to be told.
//! Owns: nothing. Does not: panic, as `println!` and `eprintln!` do.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Nobody reads standard output any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// A line to standard output; its outcome is a `Result`.
macro_rules! say {
    () => { $crate::out::print(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// A line to standard error.
macro_rules! note {
    () => { $crate::out::note(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::note(format_args!("{}\n", format_args!($($text)*))) };
}

/// Text to standard output.
pub(crate) fn print(text: Arguments) -> io::Result<()> {
    let mut out = io::stdout().lock();
    heard(out.write_fmt(text).and_then(|()| out.flush()))
}

fn heard(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Standard output, for what writes for long or for ever: a closed pipe is an error that ends it, and [`ended_by_reader`] knows it.
pub(crate) struct Stdout;

impl Write for Stdout {
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

/// Whether a command failed only because nobody reads what it prints.
pub(crate) fn ended_by_reader(failure: &(dyn std::error::Error + 'static)) -> bool {
    let io = failure.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = failure.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
    CLOSED.load(Ordering::Relaxed) && io.or(json) == Some(io::ErrorKind::BrokenPipe)
}

/// Text to standard error.
pub(crate) fn note(text: Arguments) {
    // Who closed it does not want to know, and there is no third place to say so.
    io::stderr().lock().write_fmt(text).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        assert!(heard(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        let full = heard(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(full.to_string().starts_with("standard output: "));
    }
}
