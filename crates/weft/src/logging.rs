//! Logs go to standard error; standard output belongs to results.
//!
//! Owns: the level. `WEFT_LOG` (as `tracing` filters are written) overrides `-v`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

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
        .init();
}
