//! The result as JSON: the fields of [`Report`] unchanged, in SI units (bytes, seconds, nanoseconds, cycles).

use std::io;

use crate::result::Report;

/// Writes `report` to `out`.
pub fn write(report: &Report, mut out: impl io::Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, report)?;
    writeln!(out)?;
    // Dropping a buffered writer would lose its content silently.
    out.flush()
}
