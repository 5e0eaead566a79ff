//! SIGTERM and SIGINT as something to wait for.
//!
//! Owns: the pipe that the signal handlers write to. A second signal ends the process at once.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

/// The signals that ask the process to end.
pub(crate) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Takes over both signals.
    pub(crate) fn catch() -> io::Result<Signals> {
        let (pipe, write) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT] {
            // The second signal of a kind finds the flag set and exits with the conventional status.
            let again = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
            signal_hook::flag::register(signal, again)?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Signals { pipe })
    }

    /// Blocks until the first of them comes.
    pub(crate) fn wait(mut self) -> io::Result<()> {
        loop {
            match self.pipe.read(&mut [0]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map(|_| ()),
            }
        }
    }
}
