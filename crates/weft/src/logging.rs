//! Logs go to standard error; standard output belongs to results.
//!
//! Owns: the level. `WEFT_LOG` (as `tracing` filters are written) overrides `-v`.

use tracing_subscriber::EnvFilter;

/// Starts logging at the level that `-v` asks for.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("WEFT_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
