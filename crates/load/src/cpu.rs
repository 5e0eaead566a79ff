//! What work costs the processors: a process's CPU time, converted to cycles of the nominal clock.
//!
//! Virtual machines often hide the hardware cycle counters, so "cycles" here are CPU time times the nominal (TSC)
//! frequency; every report says so. Nothing is estimated; a value that cannot be read is an error.

use std::fs;
use std::io;

pub use weft_machine::cpu::time_of;

/// How a result's cycles were obtained, if by a hardware counter.
pub const COUNTED: &str = "counted by the processor (perf_event)";
/// The same if no counter is available.
pub const CYCLES: &str = "CPU time of the process x nominal clock";

/// The processor's name and its nominal frequency in Hz.
pub fn processor() -> io::Result<(String, f64)> {
    let text = fs::read_to_string("/proc/cpuinfo")?;
    let field = |name: &str| {
        text.lines()
            .find(|l| l.starts_with(name))
            .and_then(|l| l.split_once(':'))
            .map(|(_, v)| v.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "unknown".into());
    let mhz: f64 = field("cpu MHz")
        .and_then(|v| v.parse().ok())
        .ok_or_else(|| io::Error::other("/proc/cpuinfo names no frequency"))?;
    Ok((model, mhz * 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_a_frequency() {
        let (_, hz) = processor().unwrap();
        assert!(hz > 1e8 && hz < 1e11);
    }
}
