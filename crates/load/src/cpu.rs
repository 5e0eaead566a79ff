//! What work costs the processors: CPU time of a process, turned into cycles of the nominal clock.
//!
//! Virtual machines often hide the hardware cycle counters, so "cycles" here are CPU time times the nominal (TSC)
//! frequency; every report says so.
//! Owns: nothing. Does not: estimate; what cannot be read is an error.

use std::fs;
use std::io;
use std::time::Duration;

/// CPU time that the process `pid` has used in all of its threads, to the nanosecond.
pub fn time_of(pid: u32) -> io::Result<Duration> {
    let mut nanos = 0u64;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = thread?.path().join("schedstat");
        match fs::read_to_string(path) {
            Ok(text) => {
                let run = text.split_whitespace().next().and_then(|field| field.parse::<u64>().ok());
                nanos += run.ok_or_else(|| io::Error::other("schedstat has no run time"))?;
            }
            // A thread that ended between the listing and the read.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(Duration::from_nanos(nanos))
}

/// The processor: its name and nominal frequency in Hz.
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
    fn a_busy_process_uses_time() {
        let before = time_of(std::process::id()).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let used = time_of(std::process::id()).unwrap() - before;
        assert!(used >= Duration::from_millis(5), "{used:?}");
    }

    #[test]
    fn the_processor_has_a_frequency() {
        let (_, hz) = processor().unwrap();
        assert!(hz > 1e8 && hz < 1e11);
    }
}
